/* CPU backend: element-wise operators, normalisation, softmax, reductions. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/broadcast.h"
#include "gpu-worker/cpu/plain.h"

#include <float.h>
#include <string.h>

enum { MAP_UNIT = 1024 /* elements: thread boundaries stay off shared cache lines */ };

/* ---- one operand ----------------------------------------------------------------------------- */

struct unary_step {
    struct cpu_step step;
    k_unary_fn *fn;
    struct k_unary_params params;
    bool reads_min, reads_max; /* Clip: bounds that the graph computes */
};

static void unary_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct unary_step *s = (const struct unary_step *)step;
    (void)cpu, (void)thread;
    s->fn((const float *)run->in[0] + i0, (float *)run->out[0] + i0, i1 - i0, &s->params);
}

static enum k_unary unary_kernel(enum wk_op op)
{
    switch (op) {
    case WK_OP_Abs:
        return K_UNARY_abs;
    case WK_OP_Erf:
        return K_UNARY_erf;
    case WK_OP_Exp:
        return K_UNARY_exp;
    case WK_OP_HardSigmoid:
        return K_UNARY_hard_sigmoid;
    case WK_OP_HardSwish:
        return K_UNARY_hard_swish;
    case WK_OP_LeakyRelu:
        return K_UNARY_leaky_relu;
    case WK_OP_Neg:
        return K_UNARY_neg;
    case WK_OP_Relu:
        return K_UNARY_relu;
    case WK_OP_Sigmoid:
        return K_UNARY_sigmoid;
    case WK_OP_Sqrt:
        return K_UNARY_sqrt;
    case WK_OP_Clip:
        return K_UNARY_clip;
    case WK_OP_Ceil:
        return K_UNARY_ceil;
    case WK_OP_Floor:
        return K_UNARY_floor;
    case WK_OP_Gelu:
        return K_UNARY_gelu;
    case WK_OP_Log:
        return K_UNARY_log;
    case WK_OP_Reciprocal:
        return K_UNARY_reciprocal;
    default:
        CM_ASSERT(op == WK_OP_Tanh);
        return K_UNARY_tanh;
    }
}

static struct unary_step *take_unary(struct cpu_prepare *p)
{
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct unary_step *s = cpu_step_take(p, sizeof *s, unary_body, count, MAP_UNIT, (double)count);
    if (s)
        s->fn = p->cpu->kernels->unary[unary_kernel(p->call->node->op)];
    return s;
}

enum cm_err cpu_prepare_unary(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct unary_step *s = take_unary(p);
    if (!s)
        return CM_NOMEM;
    bool hard = p->call->node->op == WK_OP_HardSigmoid;
    if (strcmp(wk_node_string(p->call->node, "approximate", "none"), "tanh") == 0)
        s->fn = p->cpu->kernels->unary[K_UNARY_gelu_tanh];
    s->params.alpha = wk_node_float(p->call->node, "alpha", hard ? 0.2f : 0.01f);
    s->params.beta = wk_node_float(p->call->node, "beta", 0.5f);
    *ret_step = &s->step;
    return CM_OK;
}

/* Bounds that are computed by the graph are read at run time. */
static enum cm_err clip_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    struct unary_step now = *(const struct unary_step *)step;
    if (now.reads_min)
        memcpy(&now.params.alpha, run->in[1], sizeof(float));
    if (now.reads_max)
        memcpy(&now.params.beta, run->in[2], sizeof(float));
    cpu_split(cpu, &now.step, run, unary_body, now.step.items, now.step.unit);
    return CM_OK;
}

enum cm_err cpu_prepare_clip(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct unary_step *s = take_unary(p);
    if (!s)
        return CM_NOMEM;
    /* ONNX's defaults are the largest finite numbers, not infinities. */
    s->params.alpha = wk_node_float(p->call->node, "min", -FLT_MAX);
    s->params.beta = wk_node_float(p->call->node, "max", FLT_MAX);
    for (unsigned k = 1; k < p->call->node->n_in; k++) {
        if (p->call->constants[k])
            memcpy(k == 1 ? &s->params.alpha : &s->params.beta, p->call->constants[k],
                   sizeof(float));
        else if (wk_call_in(p->call, k))
            *(k == 1 ? &s->reads_min : &s->reads_max) = true;
    }
    if (s->reads_min || s->reads_max)
        s->step.run = clip_run;
    *ret_step = &s->step;
    return CM_OK;
}

struct cast_step {
    struct cpu_step step;
    enum cm_dtype from, to;
};

static void cast_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct cast_step *s = (const struct cast_step *)step;
    (void)cpu, (void)thread;
    k_cast(s->from, s->to, (const char *)run->in[0] + i0 * cm_dtype_size(s->from),
           (char *)run->out[0] + i0 * cm_dtype_size(s->to), i1 - i0);
}

enum cm_err cpu_prepare_cast(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct cast_step *s = cpu_step_take(p, sizeof *s, cast_body, count, MAP_UNIT, (double)count);
    if (!s)
        return CM_NOMEM;
    s->from = wk_call_in(p->call, 0)->dtype;
    s->to = wk_call_out(p->call)->dtype;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- two and more operands ------------------------------------------------------------------- */

struct binary_step {
    struct cpu_step step;
    k_binary_fn *f32; /* NULL: other than FP32 */
    k_arith_fn *other;
    size_t element, out_element; /* bytes of operands and of the result */
    struct cpu_bcast bcast;
    unsigned n_more; /* variadic: further operands, folded into the output one by one */
    const struct cpu_bcast *more;
};

static k_binary_fn *binary_kernel(const struct cpu_kernels *kernels, enum wk_op op)
{
    switch (op) {
    case WK_OP_Add:
    case WK_OP_Sum:
        return kernels->binary[K_BINARY_add];
    case WK_OP_Sub:
        return kernels->binary[K_BINARY_sub];
    case WK_OP_Mul:
        return kernels->binary[K_BINARY_mul];
    case WK_OP_Div:
        return kernels->binary[K_BINARY_div];
    case WK_OP_Min:
        return kernels->binary[K_BINARY_min];
    case WK_OP_Max:
        return kernels->binary[K_BINARY_max];
    default:
        CM_ASSERT(op == WK_OP_Pow);
        return k_f32_pow;
    }
}

static k_arith_fn *other_kernel(enum wk_op op, enum cm_dtype dtype)
{
    switch (op) {
    case WK_OP_Add:
        return k_arith_for(K_ADD, dtype);
    case WK_OP_Sub:
        return k_arith_for(K_SUB, dtype);
    case WK_OP_Mul:
        return k_arith_for(K_MUL, dtype);
    case WK_OP_Div:
        return k_arith_for(K_DIV, dtype);
    case WK_OP_Min:
        return k_arith_for(K_MIN, dtype);
    case WK_OP_Max:
        return k_arith_for(K_MAX, dtype);
    case WK_OP_Equal:
        return k_compare_for(K_EQUAL, dtype);
    case WK_OP_Less:
        return k_compare_for(K_LESS, dtype);
    case WK_OP_LessOrEqual:
        return k_compare_for(K_LESS_EQUAL, dtype);
    case WK_OP_Greater:
        return k_compare_for(K_GREATER, dtype);
    case WK_OP_GreaterOrEqual:
        return k_compare_for(K_GREATER_EQUAL, dtype);
    case WK_OP_And:
        return k_bool_and;
    case WK_OP_Or:
        return k_bool_or;
    case WK_OP_Xor:
        return k_bool_xor;
    default:
        return NULL;
    }
}

/* Arithmetic on FP32 has versions per instruction set; comparisons do not. */
static bool has_versions(enum wk_op op, enum cm_dtype dtype)
{
    switch (op) {
    case WK_OP_Add:
    case WK_OP_Sum:
    case WK_OP_Sub:
    case WK_OP_Mul:
    case WK_OP_Div:
    case WK_OP_Pow:
    case WK_OP_Min:
    case WK_OP_Max:
        return dtype == CM_FP32;
    default:
        return false;
    }
}

bool cpu_supports_binary(enum wk_op op, enum cm_dtype dtype)
{
    return has_versions(op, dtype) || other_kernel(op, dtype);
}

/* One run of a broadcast walk for types that have no instruction-set versions. */
struct other_walk {
    k_arith_fn *fn;
    size_t element, out_element;
    const char *a, *b;
    char *y;
};

static void other_run(void *context, const struct cpu_bcast_run *r)
{
    const struct other_walk *w = context;
    w->fn(w->a + r->offset[0] * w->element, r->step[0], w->b + r->offset[1] * w->element,
          r->step[1], w->y + r->out * w->out_element, r->n);
}

static void apply_binary(const struct binary_step *s, const struct cpu_bcast *bcast, const void *a,
                         const void *b, void *y, size_t e0, size_t e1)
{
    if (s->f32) {
        cpu_bcast_f32(bcast, s->f32, a, b, y, e0, e1);
        return;
    }
    struct other_walk walk = {s->other, s->element, s->out_element, a, b, y};
    cpu_bcast_walk(bcast, e0, e1, other_run, &walk);
}

static void binary_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct binary_step *s = (const struct binary_step *)step;
    (void)cpu, (void)thread;
    apply_binary(s, &s->bcast, run->in[0], run->in[1], run->out[0], i0, i1);
    /* The output is an operand with step 1 here, which kernels allow in place. */
    for (unsigned k = 0; k < s->n_more; k++)
        apply_binary(s, &s->more[k], run->out[0], run->in[2 + k], run->out[0], i0, i1);
}

static enum cm_err take_binary(struct cpu_prepare *p, double operands, struct binary_step **ret)
{
    const struct wk_fact *a = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    size_t count = cpu_count(&out->shape);
    struct binary_step *s =
        cpu_step_take(p, sizeof *s, binary_body, count, MAP_UNIT, operands * (double)count);
    if (!s)
        return CM_NOMEM;
    s->element = cm_dtype_size(a->dtype);
    s->out_element = cm_dtype_size(out->dtype);
    if (has_versions(p->call->node->op, a->dtype))
        s->f32 = binary_kernel(p->cpu->kernels, p->call->node->op);
    else
        s->other = other_kernel(p->call->node->op, a->dtype);
    *ret = s;
    return CM_OK;
}

enum cm_err cpu_prepare_binary(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *shapes[] = {&wk_call_in(p->call, 0)->shape,
                                       &wk_call_in(p->call, 1)->shape};
    struct binary_step *s;
    enum cm_err code = take_binary(p, 1, &s);
    if (code != CM_OK)
        return code;
    cpu_bcast_init(&s->bcast, &wk_call_out(p->call)->shape, shapes, 2);
    *ret_step = &s->step;
    return CM_OK;
}

static void copy_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    size_t element = ((const struct binary_step *)step)->element;
    (void)cpu, (void)thread;
    memcpy((char *)run->out[0] + i0 * element, (const char *)run->in[0] + i0 * element,
           (i1 - i0) * element);
}

enum cm_err cpu_prepare_variadic(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    unsigned n = p->call->node->n_in;
    struct binary_step *s;
    enum cm_err code = take_binary(p, n, &s);
    if (code != CM_OK)
        return code;
    *ret_step = &s->step;
    if (n == 1) {
        s->step.body = copy_body;
        return CM_OK;
    }
    const struct cm_shape *first[] = {&wk_call_in(p->call, 0)->shape,
                                      &wk_call_in(p->call, 1)->shape};
    struct cpu_bcast *more = wk_arena_take(p->arena, n - 2, sizeof *more);
    if (!more)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    cpu_bcast_init(&s->bcast, out, first, 2);
    for (unsigned k = 2; k < n; k++) {
        const struct cm_shape *next[] = {out, &wk_call_in(p->call, k)->shape};
        cpu_bcast_init(&more[k - 2], out, next, 2);
    }
    s->n_more = n - 2;
    s->more = more;
    return CM_OK;
}

struct where_step {
    struct cpu_step step;
    size_t element;
    struct cpu_bcast bcast;
};

/* One run of a three-operand walk. */
struct where_walk {
    size_t element;
    const uint8_t *choice;
    const char *a, *b;
    char *y;
};

static void where_run(void *context, const struct cpu_bcast_run *r)
{
    const struct where_walk *w = context;
    k_where(w->element, w->choice + r->offset[0], r->step[0], w->a + r->offset[1] * w->element,
            r->step[1], w->b + r->offset[2] * w->element, r->step[2], w->y + r->out * w->element,
            r->n);
}

static void where_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct where_step *s = (const struct where_step *)step;
    struct where_walk walk = {s->element, run->in[0], run->in[1], run->in[2], run->out[0]};
    (void)cpu, (void)thread;
    cpu_bcast_walk(&s->bcast, i0, i1, where_run, &walk);
}

enum cm_err cpu_prepare_where(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *out = wk_call_out(p->call);
    const struct cm_shape *shapes[3];
    size_t count = cpu_count(&out->shape);
    struct where_step *s = cpu_step_take(p, sizeof *s, where_body, count, MAP_UNIT, (double)count);
    if (!s)
        return CM_NOMEM;
    for (unsigned k = 0; k < 3; k++)
        shapes[k] = &wk_call_in(p->call, k)->shape;
    s->element = cm_dtype_size(out->dtype);
    cpu_bcast_init(&s->bcast, &out->shape, shapes, 3);
    *ret_step = &s->step;
    return CM_OK;
}

static void not_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    (void)cpu, (void)step, (void)thread;
    k_bool_not((const uint8_t *)run->in[0] + i0, (uint8_t *)run->out[0] + i0, i1 - i0);
}

enum cm_err cpu_prepare_not(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct cpu_step *s = cpu_step_take(p, sizeof *s, not_body, count, MAP_UNIT, (double)count);
    if (!s)
        return CM_NOMEM;
    *ret_step = s;
    return CM_OK;
}

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
