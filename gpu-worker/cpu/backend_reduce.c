/* CPU backend: reductions, positions of extremes, running sums, softmax. See backend_priv.h.
 *
 * FP32 runs on vector kernels; FP64 and integers on plain_reduce.h; FP16 and BF16 are widened. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/plain_reduce.h"

/* ---- along one axis, FP32 -------------------------------------------------------------------- */

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

/* ---- reductions ------------------------------------------------------------------------------ */

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

static enum k_reduce_op reduce_op(const struct wk_node *node)
{
    switch (node->op) {
    case WK_OP_ReduceL1:
        return K_REDUCE_L1;
    case WK_OP_ReduceL2:
        return K_REDUCE_L2;
    case WK_OP_ReduceLogSum:
        return K_REDUCE_LOG_SUM;
    case WK_OP_ReduceLogSumExp:
        return K_REDUCE_LOG_SUM_EXP;
    case WK_OP_ReduceMax:
    case WK_OP_GlobalMaxPool:
        return K_REDUCE_MAX;
    case WK_OP_ReduceMean:
    case WK_OP_GlobalAveragePool:
        return K_REDUCE_MEAN;
    case WK_OP_ReduceMin:
        return K_REDUCE_MIN;
    case WK_OP_ReduceProd:
        return K_REDUCE_PROD;
    case WK_OP_ReduceSumSquare:
        return K_REDUCE_SUM_SQUARE;
    case WK_OP_GlobalLpPool:
        return wk_node_int(node, "p", 2) == 1   ? K_REDUCE_L1
               : wk_node_int(node, "p", 2) == 2 ? K_REDUCE_L2
                                                : K_REDUCE_LP;
    default:
        CM_ASSERT(node->op == WK_OP_ReduceSum);
        return K_REDUCE_SUM;
    }
}

static axis_fn *reduce_kernel(const struct cpu_kernels *kernels, enum k_reduce_op op)
{
    switch (op) {
    case K_REDUCE_SUM:
        return kernels->f32_reduce_sum;
    case K_REDUCE_MEAN:
        return kernels->f32_reduce_mean;
    case K_REDUCE_MAX:
        return kernels->f32_reduce_max;
    case K_REDUCE_MIN:
        return kernels->f32_reduce_min;
    case K_REDUCE_PROD:
        return kernels->f32_reduce_prod;
    case K_REDUCE_L1:
        return kernels->f32_reduce_l1;
    case K_REDUCE_L2:
        return kernels->f32_reduce_l2;
    case K_REDUCE_SUM_SQUARE:
        return kernels->f32_reduce_sum_square;
    case K_REDUCE_LOG_SUM:
        return kernels->f32_reduce_log_sum;
    case K_REDUCE_LOG_SUM_EXP:
        return kernels->f32_reduce_log_sum_exp;
    default:
        return NULL; /* lp: not for vectors */
    }
}

struct plain_step {
    struct cpu_step step;
    struct k_reduce reduce;
    k_reduce_fn *fn;
    enum k_reduce_op op;
};

static void plain_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct plain_step *s = (const struct plain_step *)step;
    (void)cpu, (void)thread;
    s->fn(&s->reduce, s->op, run->in[0], run->out[0], i0, i1);
}

static enum cm_err prepare_plain(struct cpu_prepare *p, const bool axes[CM_MAX_RANK],
                                 const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    struct plain_step *s =
        cpu_step_take(p, sizeof *s, plain_body, cpu_count(&wk_call_out(p->call)->shape), 8,
                      2 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    k_reduce_init(&x->shape, axes, &s->reduce);
    s->reduce.p = (double)wk_node_int(p->call->node, "p", 2);
    s->fn = k_reduce_for(x->dtype);
    s->op = reduce_op(p->call->node);
    *ret_step = &s->step;
    return CM_OK;
}

static enum cm_err prepare_axes(struct cpu_prepare *p, const bool axes[CM_MAX_RANK],
                                const struct cpu_step **ret_step)
{
    const struct wk_fact *fact = wk_call_in(p->call, 0);
    const struct cm_shape *x = &fact->shape;
    axis_fn *kernel = reduce_kernel(p->cpu->kernels, reduce_op(p->call->node));
    unsigned first = 0, end = x->rank;
    if (fact->dtype != CM_FP32 || !kernel)
        return prepare_plain(p, axes, ret_step);
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
    s->fn = kernel;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_reduce(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    bool axes[CM_MAX_RANK];
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_reduce, 0, ret_step);
    enum cm_err code = wk_reduce_axes(p->call->node, p->call->facts, p->err, axes);
    return code == CM_OK ? prepare_axes(p, axes, ret_step) : code;
}

enum cm_err cpu_prepare_global_pool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    bool axes[CM_MAX_RANK];
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_global_pool, 0, ret_step);
    for (unsigned i = 0; i < CM_MAX_RANK; i++)
        axes[i] = i >= 2 && i < wk_call_in(p->call, 0)->shape.rank;
    return prepare_axes(p, axes, ret_step);
}

/* ---- ArgMax, ArgMin -------------------------------------------------------------------------- */

struct arg_step {
    struct cpu_step step;
    struct k_along along;
    k_arg_fn *fn;
    bool greatest, last;
};

static void arg_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct arg_step *s = (const struct arg_step *)step;
    (void)cpu, (void)thread;
    s->fn(&s->along, s->greatest, s->last, run->in[0], run->out[0], i0, i1);
}

static struct k_along along_axis(const struct cm_shape *x, unsigned axis)
{
    return (struct k_along){cpu_product(x, 0, axis), (size_t)x->dims[axis],
                            cpu_product(x, axis + 1, x->rank)};
}

enum cm_err cpu_prepare_arg_reduce(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    unsigned axis;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_arg_reduce, 0, ret_step);
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), x->shape.rank, &axis));
    struct k_along along = along_axis(&x->shape, axis);
    struct arg_step *s = cpu_step_take(p, sizeof *s, arg_body, along.outer * along.inner, 8,
                                       2 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->along = along;
    s->fn = k_arg_for(x->dtype);
    s->greatest = p->call->node->op == WK_OP_ArgMax;
    s->last = wk_node_int(p->call->node, "select_last_index", 0) != 0;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- CumSum ---------------------------------------------------------------------------------- */

struct cum_sum_step {
    struct cpu_step step;
    const struct wk_node *node;
    struct cm_shape shape;
    bool wide_axis, exclusive, reverse;
    k_cum_sum_fn *fn;
    struct k_along along; /* set in the run's copy */
};

static void cum_sum_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct cum_sum_step *s = (const struct cum_sum_step *)step;
    (void)cpu, (void)thread;
    s->fn(&s->along, s->exclusive, s->reverse, run->in[0], run->out[0], i0, i1);
}

/* The axis may be computed by the graph. */
static enum cm_err cum_sum_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    struct cum_sum_step s = *(const struct cum_sum_step *)step;
    int64_t given =
        s.wide_axis ? *(const volatile int64_t *)run->in[1] : *(const volatile int32_t *)run->in[1];
    unsigned axis;
    if (!wk_axis(given, s.shape.rank, &axis))
        return wk_node_fail(run->err, CM_INVALID, s.node, "axis %lld of %u dimensions",
                            (long long)given, s.shape.rank);
    s.along = along_axis(&s.shape, axis);
    cpu_split(cpu, &s.step, run, cum_sum_body, s.along.outer * s.along.inner, 8);
    return CM_OK;
}

enum cm_err cpu_prepare_cum_sum(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_cum_sum, 0, ret_step);
    struct cum_sum_step *s =
        cpu_step_take(p, sizeof *s, NULL, 0, 1, 2 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->step.run = cum_sum_run;
    s->node = p->call->node;
    s->shape = x->shape;
    s->wide_axis = wk_call_in(p->call, 1)->dtype == CM_INT64;
    s->exclusive = wk_node_int(p->call->node, "exclusive", 0) != 0;
    s->reverse = wk_node_int(p->call->node, "reverse", 0) != 0;
    s->fn = k_cum_sum_for(x->dtype);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Softmax, LogSoftmax, Hardmax ------------------------------------------------------------ */

struct along_step {
    struct cpu_step step;
    struct k_along along;
    k_along_fn *fn;
};

static void along_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct along_step *s = (const struct along_step *)step;
    (void)cpu, (void)thread;
    s->fn(&s->along, run->in[0], run->out[0], i0, i1);
}

/* Below opset 13 everything from the axis on is one row; a scalar, or an axis at the end, gives
 * rows of one element. */
static struct k_along softmax_rows(const struct wk_node *node, const struct cm_shape *x)
{
    bool coerced = node->opset < 13;
    unsigned axis = x->rank;
    (void)wk_axis(wk_node_int(node, "axis", coerced ? 1 : -1), x->rank, &axis);
    if (coerced || axis == x->rank)
        return (struct k_along){cpu_product(x, 0, axis), cpu_product(x, axis, x->rank), 1};
    return along_axis(x, axis);
}

enum cm_err cpu_prepare_softmax(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    enum wk_op op = p->call->node->op;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_softmax, 0, ret_step);
    struct k_along along = softmax_rows(p->call->node, &x->shape);
    if (x->dtype == CM_FP32 && op != WK_OP_Hardmax) {
        const struct cpu_kernels *kernels = p->cpu->kernels;
        struct axis_step *s = take_axis(p, along.outer, along.n, along.inner, 8);
        if (!s)
            return CM_NOMEM;
        s->fn = op == WK_OP_Softmax ? kernels->f32_softmax : kernels->f32_logsoftmax;
        *ret_step = &s->step;
        return CM_OK;
    }
    struct along_step *s = cpu_step_take(p, sizeof *s, along_body, along.outer * along.inner, 8,
                                         30 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->along = along;
    s->fn = op == WK_OP_Hardmax   ? k_hardmax_for(x->dtype)
            : op == WK_OP_Softmax ? k_f64_softmax
                                  : k_f64_logsoftmax;
    *ret_step = &s->step;
    return CM_OK;
}
