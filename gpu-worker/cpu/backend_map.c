/* CPU backend: normalisation, softmax, reductions. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

/* ---- BatchNormalization ---------------------------------------------------------------------- */

struct norm_step {
    struct cpu_step step;
    struct k_scale_shift args;
    float epsilon;
};

static float norm_epsilon(const struct wk_node *node)
{
    return wk_node_float(node, "epsilon", 1e-5f);
}

static bool norm_is_constant(const struct wk_call *call)
{
    for (unsigned k = 1; k < 5; k++)
        if (!wk_call_is_constant(call, k))
            return false;
    return true;
}

void cpu_layout_batch_norm(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    size_t channels = (size_t)wk_call_in(call, 1)->shape.dims[0];
    if (!norm_is_constant(call))
        return;
    if (k == 1)
        *ret_layout =
            (struct wk_layout){CPU_LAYOUT_BATCH_NORM, 2 * channels * sizeof(float), false};
    else
        ret_layout->kind = WK_LAYOUT_NONE;
}

static const float *constant_floats(const struct wk_call *call, unsigned k)
{
    return call->graph->values[call->node->in[k]].constant->data;
}

void cpu_pack_batch_norm(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    size_t channels = (size_t)wk_call_in(call, 1)->shape.dims[0];
    float *scale = ret_bytes;
    CM_ASSERT(k == 1);
    k_f32_bn_fold(constant_floats(call, 1), constant_floats(call, 2), constant_floats(call, 3),
                  constant_floats(call, 4), norm_epsilon(call->node), channels, scale,
                  scale + channels);
}

static void norm_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    struct k_scale_shift args = ((const struct norm_step *)step)->args;
    (void)thread;
    args.x = run->in[0];
    args.y = run->out[0];
    if (!args.scale) {
        args.scale = run->workspace;
        args.shift = args.scale + args.channels;
    }
    cpu->kernels->f32_scale_shift(&args, i0, i1);
}

/* Parameters that the graph computes are folded into the workspace at every run. */
static enum cm_err norm_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    const struct norm_step *s = (const struct norm_step *)step;
    float *scale = run->workspace;
    k_f32_bn_fold(run->in[1], run->in[2], run->in[3], run->in[4], s->epsilon, s->args.channels,
                  scale, scale + s->args.channels);
    cpu_split(cpu, step, run, norm_body, step->items, step->unit);
    return CM_OK;
}

enum cm_err cpu_prepare_batch_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    size_t count = cpu_count(x);
    struct norm_step *s =
        cpu_step_take(p, sizeof *s, norm_body, cpu_product(x, 0, 2), 1, (double)count);
    if (!s)
        return CM_NOMEM;
    s->args.channels = (size_t)x->dims[1];
    s->args.plane = cpu_product(x, 2, x->rank);
    s->epsilon = norm_epsilon(p->call->node);
    if (norm_is_constant(p->call)) {
        s->args.scale = p->call->constants[1];
        s->args.shift = s->args.scale + s->args.channels;
    } else {
        s->step.run = norm_run;
        p->workspace = (2 * s->args.channels + 1) * sizeof(float);
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- along one axis -------------------------------------------------------------------------- */

typedef void axis_fn(const struct k_axis *a, size_t i0, size_t i1);

struct axis_step {
    struct cpu_step step;
    struct k_axis args;
    axis_fn *fn;
    struct k_copy gather; /* reduction over axes that do not lie together: moved first */
};

static void axis_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct axis_step *s = (const struct axis_step *)step;
    struct k_axis args = s->args;
    (void)cpu, (void)thread;
    args.x = s->step.run ? run->workspace : run->in[0];
    args.y = run->out[0];
    s->fn(&args, i0, i1);
}

static struct axis_step *take_axis(struct cpu_prepare *p, size_t outer, size_t n, size_t inner,
                                   double cost)
{
    struct axis_step *s = cpu_step_take(p, sizeof *s, axis_body, outer * inner, 16,
                                        cost * (double)outer * (double)n * (double)inner);
    if (s) {
        s->args.outer = outer;
        s->args.n = n;
        s->args.inner = inner;
    }
    return s;
}

enum cm_err cpu_prepare_softmax(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cpu_kernels *kernels = p->cpu->kernels;
    bool coerced = p->call->node->opset < 13;
    unsigned axis = x->rank;
    /* Below opset 13 everything from the axis on is one row; a scalar, or an axis at the end, gives
     * rows of one element. */
    (void)wk_axis(wk_node_int(p->call->node, "axis", coerced ? 1 : -1), x->rank, &axis);
    size_t n = coerced ? cpu_product(x, axis, x->rank)
                       : cpu_product(x, axis, axis < x->rank ? axis + 1 : axis);
    size_t inner = coerced || axis == x->rank ? 1 : cpu_product(x, axis + 1, x->rank);
    struct axis_step *s = take_axis(p, cpu_product(x, 0, axis), n, inner, 8);
    if (!s)
        return CM_NOMEM;
    s->fn = p->call->node->op == WK_OP_Softmax ? kernels->f32_softmax : kernels->f32_logsoftmax;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_global_pool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    struct axis_step *s = take_axis(p, cpu_product(x, 0, 2), cpu_product(x, 2, x->rank), 1, 1);
    if (!s)
        return CM_NOMEM;
    s->fn = p->call->node->op == WK_OP_GlobalMaxPool ? p->cpu->kernels->f32_reduce_max
                                                     : p->cpu->kernels->f32_reduce_mean;
    *ret_step = &s->step;
    return CM_OK;
}

static void gather_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    struct k_copy copy = ((const struct axis_step *)step)->gather;
    (void)cpu, (void)thread;
    copy.x = run->in[0];
    copy.y = run->workspace;
    k_copy_run(&copy, i0, i1);
}

static enum cm_err reduce_moved_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                    const struct wk_run *run)
{
    const struct axis_step *s = (const struct axis_step *)step;
    cpu_split(cpu, step, run, gather_body, k_copy_items(&s->gather), 1);
    cpu_split(cpu, step, run, axis_body, step->items, step->unit);
    return CM_OK;
}

/* Kept axes first, reduced ones behind, so that one row holds what is summed. */
static void plan_gather(const struct cm_shape *x, const bool axes[CM_MAX_RANK], struct k_copy *ret)
{
    ptrdiff_t strides[CM_MAX_RANK], stride = 1;
    cpu_strides(x, strides);
    *ret = (struct k_copy){.element = sizeof(float)};
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < x->rank; i++)
            if (axes[i] == (pass == 1)) {
                ret->dims[ret->rank] = (size_t)x->dims[i];
                ret->in_stride[ret->rank++] = strides[i];
            }
    for (unsigned i = ret->rank; i-- > 0;) {
        ret->out_stride[i] = stride;
        stride *= (ptrdiff_t)ret->dims[i];
    }
    k_copy_simplify(ret);
}

static axis_fn *reduce_kernel(const struct cpu_kernels *kernels, enum wk_op op)
{
    switch (op) {
    case WK_OP_ReduceMax:
        return kernels->f32_reduce_max;
    case WK_OP_ReduceMin:
        return kernels->f32_reduce_min;
    case WK_OP_ReduceSum:
        return kernels->f32_reduce_sum;
    default:
        CM_ASSERT(op == WK_OP_ReduceMean);
        return kernels->f32_reduce_mean;
    }
}

enum cm_err cpu_prepare_reduce(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    bool axes[CM_MAX_RANK];
    unsigned first = 0, end = x->rank;
    enum cm_err code = wk_reduce_axes(p->call->node, p->call->facts, p->err, axes);
    if (code != CM_OK)
        return code;
    while (first < x->rank && !axes[first])
        first++;
    while (end > first && !axes[end - 1])
        end--;
    bool together = true;
    for (unsigned i = first; i < end; i++)
        together &= axes[i];
    struct axis_step *s;
    if (together) {
        s = take_axis(p, cpu_product(x, 0, first), cpu_product(x, first, end),
                      cpu_product(x, end, x->rank), 1);
    } else {
        size_t kept = cpu_count(&wk_call_out(p->call)->shape), n = 1;
        for (unsigned i = 0; i < x->rank; i++)
            n *= axes[i] ? (size_t)x->dims[i] : 1;
        s = take_axis(p, kept, n, 1, 2);
        p->workspace = cpu_count(x) * sizeof(float) + 1;
    }
    if (!s)
        return CM_NOMEM;
    if (!together) {
        s->step.run = reduce_moved_run;
        plan_gather(x, axes, &s->gather);
    }
    s->fn = reduce_kernel(p->cpu->kernels, p->call->node->op);
    *ret_step = &s->step;
    return CM_OK;
}
