/* CPU backend: element-wise operators of one operand, casts, Clip. See backend_priv.h.
 *
 * FP32 runs on a kernel where there is one. FP16 and BF16 then run on the same kernel, piece by
 * piece through floats. Whatever has no kernel, and FP64, is computed in double (wide.h); integers
 * have functions of their own. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/wide.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    MAP_UNIT = 1024, /* elements: thread boundaries stay off shared cache lines */
    PIECE = 256
};

/* ---- which function ---------------------------------------------------------------------------*/

/* An operator's functions, and its attributes with their defaults. kernel and integer are one more
 * than the enumerator; 0 is none. */
struct unary_row {
    k_wide_fn *wide;
    uint8_t kernel, integer;
    const char *a, *b;
    float default_a, default_b;
};

#define KERNEL(name)  .kernel = K_UNARY_##name + 1
#define INTEGER(name) .integer = K_INT_##name + 1

static const struct unary_row unary_rows[WK_OP_COUNT] = {
    [WK_OP_Abs] = {k_wide_abs, KERNEL(abs), INTEGER(ABS)},
    [WK_OP_Acos] = {k_wide_acos},
    [WK_OP_Acosh] = {k_wide_acosh},
    [WK_OP_Asin] = {k_wide_asin},
    [WK_OP_Asinh] = {k_wide_asinh},
    [WK_OP_Atan] = {k_wide_atan},
    [WK_OP_Atanh] = {k_wide_atanh},
    [WK_OP_BitwiseNot] = {NULL, INTEGER(NOT)},
    [WK_OP_Ceil] = {k_wide_ceil, KERNEL(ceil)},
    [WK_OP_Celu] = {k_wide_celu, KERNEL(celu), .a = "alpha", .default_a = 1.0f},
    [WK_OP_Cos] = {k_wide_cos, KERNEL(cos)},
    [WK_OP_Cosh] = {k_wide_cosh},
    [WK_OP_Elu] = {k_wide_elu, KERNEL(elu), .a = "alpha", .default_a = 1.0f},
    [WK_OP_Erf] = {k_wide_erf, KERNEL(erf)},
    [WK_OP_Exp] = {k_wide_exp, KERNEL(exp)},
    [WK_OP_Floor] = {k_wide_floor, KERNEL(floor)},
    [WK_OP_Gelu] = {k_wide_gelu, KERNEL(gelu)},
    [WK_OP_HardSigmoid] = {k_wide_hard_sigmoid, KERNEL(hard_sigmoid), .a = "alpha",
                           .default_a = 0.2f, .b = "beta", .default_b = 0.5f},
    [WK_OP_HardSwish] = {k_wide_hard_swish, KERNEL(hard_swish)},
    [WK_OP_LeakyRelu] = {k_wide_leaky_relu, KERNEL(leaky_relu), .a = "alpha", .default_a = 0.01f},
    [WK_OP_Log] = {k_wide_log, KERNEL(log)},
    [WK_OP_Mish] = {k_wide_mish, KERNEL(mish)},
    [WK_OP_Neg] = {k_wide_neg, KERNEL(neg), INTEGER(NEG)},
    [WK_OP_Reciprocal] = {k_wide_reciprocal, KERNEL(reciprocal)},
    [WK_OP_Relu] = {k_wide_relu, KERNEL(relu), INTEGER(RELU)},
    [WK_OP_Round] = {k_wide_round, KERNEL(round)},
    [WK_OP_Selu] = {k_wide_selu, KERNEL(selu), .a = "alpha",
                    .default_a = 1.67326319217681884765625f, .b = "gamma",
                    .default_b = 1.05070102214813232421875f},
    [WK_OP_Shrink] = {k_wide_shrink, .a = "lambd", .default_a = 0.5f, .b = "bias"},
    [WK_OP_Sigmoid] = {k_wide_sigmoid, KERNEL(sigmoid)},
    [WK_OP_Sign] = {k_wide_sign, KERNEL(sign), INTEGER(SIGN)},
    [WK_OP_Sin] = {k_wide_sin, KERNEL(sin)},
    [WK_OP_Sinh] = {k_wide_sinh},
    [WK_OP_Softplus] = {k_wide_softplus, KERNEL(softplus)},
    [WK_OP_Softsign] = {k_wide_softsign, KERNEL(softsign)},
    [WK_OP_Sqrt] = {k_wide_sqrt, KERNEL(sqrt)},
    [WK_OP_Tan] = {k_wide_tan},
    [WK_OP_Tanh] = {k_wide_tanh, KERNEL(tanh)},
    [WK_OP_ThresholdedRelu] = {k_wide_thresholded_relu, KERNEL(thresholded_relu), .a = "alpha",
                               .default_a = 1.0f},
};

static const struct unary_row gelu_tanh_row = {k_wide_gelu_tanh, KERNEL(gelu_tanh)};

static const struct unary_row *unary_row(const struct wk_node *node)
{
    if (node->op == WK_OP_Gelu && strcmp(wk_node_string(node, "approximate", "none"), "tanh") == 0)
        return &gelu_tanh_row;
    return &unary_rows[node->op];
}

/* ---- running it ------------------------------------------------------------------------------ */

struct unary_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    k_unary_fn *kernel; /* FP32, FP16, BF16 */
    struct k_unary_params params;
    k_integer_fn *integer;
    k_wide_fn *wide;
    struct k_wide_params wide_params;
    k_clip_fn *clip; /* Clip of integers */
    uint64_t low, high;
    bool reads_min, reads_max; /* Clip: bounds that the graph computes */
};

static void kernel_pieces(const struct unary_step *s, const uint16_t *x, uint16_t *y, size_t n)
{
    float piece[PIECE];
    for (size_t i = 0; i < n; i += PIECE) {
        size_t count = n - i < PIECE ? n - i : PIECE;
        k_cast(s->dtype, CM_FP32, x + i, piece, count);
        s->kernel(piece, piece, count, &s->params);
        k_cast(CM_FP32, s->dtype, piece, y + i, count);
    }
}

static void unary_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct unary_step *s = (const struct unary_step *)step;
    size_t element = cm_dtype_size(s->dtype), n = i1 - i0;
    const void *x = (const char *)run->in[0] + i0 * element;
    void *y = (char *)run->out[0] + i0 * element;
    (void)cpu, (void)thread;
    if (s->kernel && s->dtype == CM_FP32)
        s->kernel(x, y, n, &s->params);
    else if (s->kernel)
        kernel_pieces(s, x, y, n);
    else if (s->clip)
        s->clip(x, &s->low, &s->high, y, n);
    else if (s->integer)
        s->integer(x, y, n);
    else
        k_wide_run(s->wide, &s->wide_params, s->dtype, s->dtype, x, y, n);
}

static struct unary_step *take_unary(struct cpu_prepare *p)
{
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct unary_step *s = cpu_step_take(p, sizeof *s, unary_body, count, MAP_UNIT, (double)count);
    if (s)
        s->dtype = wk_call_in(p->call, 0)->dtype;
    return s;
}

static bool runs_on_kernels(enum cm_dtype dtype)
{
    return dtype == CM_FP32 || dtype == CM_FP16 || dtype == CM_BF16;
}

static float attribute(const struct wk_node *node, const char *name, float otherwise)
{
    return name ? wk_node_float(node, name, otherwise) : 0.0f;
}

enum cm_err cpu_prepare_unary(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct unary_row *row = unary_row(node);
    struct unary_step *s = take_unary(p);
    if (!s)
        return CM_NOMEM;
    s->params.alpha = attribute(node, row->a, row->default_a);
    s->params.beta = attribute(node, row->b, row->default_b);
    s->wide_params = (struct k_wide_params){s->params.alpha, s->params.beta};
    if (row->kernel && runs_on_kernels(s->dtype))
        s->kernel = p->cpu->kernels->unary[row->kernel - 1];
    else if (row->integer)
        s->integer = k_integer_for((enum k_integer)(row->integer - 1), s->dtype);
    s->wide = row->wide;
    CM_ASSERT(s->kernel || s->integer || s->wide);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Clip ------------------------------------------------------------------------------------ */

/* A bound of the operand's type, where the step looks for it. */
static void set_bound(struct unary_step *s, bool upper, const void *bound)
{
    if (s->clip)
        memcpy(upper ? &s->high : &s->low, bound, cm_dtype_size(s->dtype));
    else if (s->kernel)
        k_cast(s->dtype, CM_FP32, bound, upper ? &s->params.beta : &s->params.alpha, 1);
    else
        k_cast(s->dtype, CM_FP64, bound, upper ? &s->wide_params.b : &s->wide_params.a, 1);
}

/* Bounds that are computed by the graph are read at run time. */
static enum cm_err clip_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    struct unary_step now = *(const struct unary_step *)step;
    if (now.reads_min)
        set_bound(&now, false, run->in[1]);
    if (now.reads_max)
        set_bound(&now, true, run->in[2]);
    cpu_split(cpu, &now.step, run, unary_body, now.step.items, now.step.unit);
    return CM_OK;
}

/* ONNX's defaults are the least and largest finite numbers of the type, not infinities. */
static void set_default_bounds(struct unary_step *s)
{
    static const double largest[] = {
        [CM_FP16] = 65504.0, [CM_BF16] = 0x1.fep127, [CM_FP32] = FLT_MAX, [CM_FP64] = DBL_MAX};
    if (!s->clip) {
        s->wide_params = (struct k_wide_params){-largest[s->dtype], largest[s->dtype]};
        if (s->kernel)
            s->params = (struct k_unary_params){(float)s->wide_params.a, (float)s->wide_params.b};
        return;
    }
    /* A cast of what is out of range saturates. */
    const double infinite[] = {-(double)INFINITY, (double)INFINITY};
    k_cast(CM_FP64, s->dtype, &infinite[0], &s->low, 1);
    k_cast(CM_FP64, s->dtype, &infinite[1], &s->high, 1);
}

enum cm_err cpu_prepare_clip(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    struct unary_step *s = take_unary(p);
    if (!s)
        return CM_NOMEM;
    s->clip = k_integer_clip_for(s->dtype);
    s->wide = k_wide_clip;
    if (runs_on_kernels(s->dtype))
        s->kernel = p->cpu->kernels->unary[K_UNARY_clip];
    set_default_bounds(s);
    if (node->opset < 11) { /* attributes, with defaults of FP32 whatever the type */
        s->params.alpha = wk_node_float(node, "min", -FLT_MAX);
        s->params.beta = wk_node_float(node, "max", FLT_MAX);
        s->wide_params = (struct k_wide_params){s->params.alpha, s->params.beta};
    }
    for (unsigned k = 1; k < node->n_in; k++) {
        if (p->call->constants[k])
            set_bound(s, k == 2, p->call->constants[k]);
        else if (wk_call_in(p->call, k))
            *(k == 1 ? &s->reads_min : &s->reads_max) = true;
    }
    if (s->reads_min || s->reads_max)
        s->step.run = clip_run;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Cast, CastLike -------------------------------------------------------------------------- */

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

/* ---- IsNaN, IsInf, Not ----------------------------------------------------------------------- */

struct test_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    bool nan, positive, negative; /* what gives true */
};

static void test_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct test_step *s = (const struct test_step *)step;
    size_t element = cm_dtype_size(s->dtype);
    double values[PIECE];
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i += PIECE) {
        size_t count = i1 - i < PIECE ? i1 - i : PIECE;
        uint8_t *y = (uint8_t *)run->out[0] + i;
        k_cast(s->dtype, CM_FP64, (const char *)run->in[0] + i * element, values, count);
        for (size_t k = 0; k < count; k++)
            y[k] = (s->nan && values[k] != values[k]) || (s->positive && values[k] > DBL_MAX) ||
                   (s->negative && values[k] < -DBL_MAX);
    }
}

enum cm_err cpu_prepare_float_test(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct test_step *s = cpu_step_take(p, sizeof *s, test_body, count, MAP_UNIT, (double)count);
    if (!s)
        return CM_NOMEM;
    s->dtype = wk_call_in(p->call, 0)->dtype;
    s->nan = node->op == WK_OP_IsNaN;
    s->positive = !s->nan && wk_node_int(node, "detect_positive", 1);
    s->negative = !s->nan && wk_node_int(node, "detect_negative", 1);
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
