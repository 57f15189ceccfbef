/* CPU backend: element-wise operators of two and more operands, with broadcasting. See
 * backend_priv.h.
 *
 * FP32 arithmetic has kernels per instruction set; FP16 and BF16 run on the same kernels, piece by
 * piece through floats, and round once per operator. The rest is plain C (plain.h). */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/broadcast.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/wide.h"

#include <string.h>

enum {
    MAP_UNIT = 1024, /* elements: thread boundaries stay off shared cache lines */
    PIECE = 256
};

/* ---- which function ---------------------------------------------------------------------------*/

/* One more than the enumerator; 0 is none. */
struct binary_row {
    uint8_t kernel, arith, compare;
    k_binary_fn *f32;    /* of floats, where there is no kernel */
    k_arith_fn *boolean; /* of bools */
};

#define KERNEL(name)  .kernel = K_BINARY_##name + 1
#define ARITH(name)   .arith = K_##name + 1
#define COMPARE(name) .compare = K_##name + 1

static const struct binary_row binary_rows[WK_OP_COUNT] = {
    [WK_OP_Add] = {KERNEL(add), ARITH(ADD)},
    [WK_OP_And] = {.boolean = k_bool_and},
    [WK_OP_BitShift] = {ARITH(SHIFT_LEFT)},
    [WK_OP_BitwiseAnd] = {ARITH(AND)},
    [WK_OP_BitwiseOr] = {ARITH(OR)},
    [WK_OP_BitwiseXor] = {ARITH(XOR)},
    [WK_OP_Div] = {KERNEL(div), ARITH(DIV)},
    [WK_OP_Equal] = {COMPARE(EQUAL)},
    [WK_OP_Greater] = {COMPARE(GREATER)},
    [WK_OP_GreaterOrEqual] = {COMPARE(GREATER_EQUAL)},
    [WK_OP_Less] = {COMPARE(LESS)},
    [WK_OP_LessOrEqual] = {COMPARE(LESS_EQUAL)},
    [WK_OP_Max] = {KERNEL(max), ARITH(MAX)},
    [WK_OP_Mean] = {KERNEL(add), ARITH(ADD)},
    [WK_OP_Min] = {KERNEL(min), ARITH(MIN)},
    [WK_OP_Mod] = {ARITH(MOD), .f32 = k_f32_fmod},
    [WK_OP_Mul] = {KERNEL(mul), ARITH(MUL)},
    [WK_OP_Or] = {.boolean = k_bool_or},
    [WK_OP_PRelu] = {ARITH(PRELU), .f32 = k_f32_prelu},
    [WK_OP_Pow] = {.f32 = k_f32_pow},
    [WK_OP_Sub] = {KERNEL(sub), ARITH(SUB)},
    [WK_OP_Sum] = {KERNEL(add), ARITH(ADD)},
    [WK_OP_Xor] = {.boolean = k_bool_xor},
};

static k_binary_fn *float_function(const struct cpu_kernels *kernels, enum wk_op op)
{
    const struct binary_row *row = &binary_rows[op];
    return row->kernel ? kernels->binary[row->kernel - 1] : row->f32;
}

/* Attributes choose between neighbours of the row's entry. */
static enum k_arith arith_op(const struct wk_node *node)
{
    enum k_arith op = (enum k_arith)(binary_rows[node->op].arith - 1);
    if (op == K_MOD && wk_node_int(node, "fmod", 0))
        return K_FMOD;
    if (op == K_SHIFT_LEFT && strcmp(wk_node_string(node, "direction", ""), "RIGHT") == 0)
        return K_SHIFT_RIGHT;
    return op;
}

static k_arith_fn *plain_function(const struct wk_node *node, enum cm_dtype dtype)
{
    const struct binary_row *row = &binary_rows[node->op];
    if (row->boolean)
        return row->boolean;
    if (row->compare)
        return k_compare_for((enum k_compare)(row->compare - 1), dtype);
    return row->arith ? k_arith_for(arith_op(node), dtype) : NULL;
}

/* ---- two operands ---------------------------------------------------------------------------- */

struct binary_step {
    struct cpu_step step;
    cpu_bcast_fn *walk; /* computes one run of the broadcast; context is a struct operands */
    k_binary_fn *f32;
    k_arith_fn *plain;
    enum cm_dtype type_a, type_b, type_y;
    struct cpu_bcast bcast;
    unsigned n_more; /* variadic: further operands, folded into the output one by one */
    const struct cpu_bcast *more;
    float count; /* Mean: what the sum is divided by; else 0 */
};

struct operands {
    const struct binary_step *s;
    const char *a, *b;
    char *y;
};

static void run_floats(void *context, const struct cpu_bcast_run *r)
{
    const struct operands *o = context;
    o->s->f32((const float *)o->a + r->offset[0], r->step[0], (const float *)o->b + r->offset[1],
              r->step[1], (float *)o->y + r->out, r->n);
}

static void run_plain(void *context, const struct cpu_bcast_run *r)
{
    const struct operands *o = context;
    size_t element = cm_dtype_size(o->s->type_a);
    o->s->plain(o->a + r->offset[0] * element, r->step[0], o->b + r->offset[1] * element,
                r->step[1], o->y + r->out * cm_dtype_size(o->s->type_y), r->n);
}

static void run_pow(void *context, const struct cpu_bcast_run *r)
{
    const struct operands *o = context;
    size_t base = cm_dtype_size(o->s->type_a);
    k_pow_mixed(o->s->type_a, o->s->type_b, o->a + r->offset[0] * base, r->step[0],
                o->b + r->offset[1] * cm_dtype_size(o->s->type_b), r->step[1], o->y + r->out * base,
                r->n);
}

/* count elements from i on as floats, or the one that stays. */
static void load_halves(enum cm_dtype dtype, const char *x, const struct cpu_bcast_run *r,
                        unsigned operand, size_t i, size_t count, float *ret)
{
    size_t step = r->step[operand];
    k_cast(dtype, CM_FP32, (const uint16_t *)x + r->offset[operand] + i * step, ret,
           step ? count : 1);
}

static void run_halves(void *context, const struct cpu_bcast_run *r)
{
    const struct operands *o = context;
    float a[PIECE], b[PIECE];
    for (size_t i = 0; i < r->n; i += PIECE) {
        size_t count = r->n - i < PIECE ? r->n - i : PIECE;
        load_halves(o->s->type_a, o->a, r, 0, i, count, a);
        load_halves(o->s->type_a, o->b, r, 1, i, count, b);
        float y[PIECE];
        o->s->f32(a, r->step[0], b, r->step[1], y, count);
        k_cast(CM_FP32, o->s->type_a, y, (uint16_t *)o->y + r->out + i, count);
    }
}

static bool is_half(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16;
}

static void choose_function(const struct cpu_prepare *p, struct binary_step *s)
{
    const struct wk_node *node = p->call->node;
    s->f32 = float_function(p->cpu->kernels, node->op);
    s->plain = plain_function(node, s->type_a);
    if (node->op == WK_OP_Pow && !(s->type_a == CM_FP32 && s->type_b == CM_FP32))
        s->walk = run_pow;
    else if (s->f32 && s->type_a == CM_FP32)
        s->walk = run_floats;
    else if (s->f32 && is_half(s->type_a))
        s->walk = run_halves;
    else
        s->walk = run_plain;
    CM_ASSERT(s->walk != run_plain || s->plain);
}

static void binary_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct binary_step *s = (const struct binary_step *)step;
    struct operands o = {s, run->in[0], run->in[1], run->out[0]};
    (void)cpu, (void)thread;
    cpu_bcast_walk(&s->bcast, i0, i1, s->walk, &o);
}

static struct binary_step *take_binary(struct cpu_prepare *p, cpu_body_fn *body, double operands)
{
    const struct wk_fact *b = wk_call_in(p->call, 1), *out = wk_call_out(p->call);
    size_t count = cpu_count(&out->shape);
    struct binary_step *s =
        cpu_step_take(p, sizeof *s, body, count, MAP_UNIT, operands * (double)count);
    if (!s)
        return NULL;
    s->type_a = wk_call_in(p->call, 0)->dtype;
    s->type_b = b ? b->dtype : s->type_a;
    s->type_y = out->dtype;
    choose_function(p, s);
    return s;
}

enum cm_err cpu_prepare_binary(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape;
    struct cm_shape b;
    enum cm_err code =
        wk_second_shape(p->call->node, a, &wk_call_in(p->call, 1)->shape, p->err, &b);
    if (code != CM_OK)
        return code;
    struct binary_step *s = take_binary(p, binary_body, 1);
    if (!s)
        return CM_NOMEM;
    cpu_bcast_init(&s->bcast, &wk_call_out(p->call)->shape, (const struct cm_shape *[]){a, &b}, 2);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- any number of operands ------------------------------------------------------------------ */

static void copy_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    size_t element = cm_dtype_size(((const struct binary_step *)step)->type_a);
    (void)cpu, (void)thread;
    memcpy((char *)run->out[0] + i0 * element, (const char *)run->in[0] + i0 * element,
           (i1 - i0) * element);
}

/* Operands are folded into the output, which kernels allow in place: it has step 1. */
static void variadic_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                          const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct binary_step *s = (const struct binary_step *)step;
    binary_body(cpu, step, run, i0, i1, thread);
    for (unsigned k = 0; k < s->n_more; k++) {
        struct operands o = {s, run->out[0], run->in[2 + k], run->out[0]};
        cpu_bcast_walk(&s->more[k], i0, i1, s->walk, &o);
    }
    if (s->count > 0 && s->type_a == CM_FP32) {
        float *y = (float *)run->out[0] + i0;
        cpu->kernels->binary[K_BINARY_div](y, 1, &s->count, 0, y, i1 - i0);
    } else if (s->count > 0) {
        double *y = (double *)run->out[0] + i0, count = s->count;
        k_arith_for(K_DIV, CM_FP64)(y, 1, &count, 0, y, i1 - i0);
    }
}

/* One operand's part of a piece of the output, as floats. */
struct half_piece {
    enum cm_dtype dtype;
    const char *x;
    size_t begin;
    float *values;
};

static void read_piece(void *context, const struct cpu_bcast_run *r)
{
    const struct half_piece *piece = context;
    float *to = piece->values + (r->out - piece->begin);
    load_halves(piece->dtype, piece->x, r, 0, 0, r->n, to);
    for (size_t i = 1; !r->step[0] && i < r->n; i++)
        to[i] = to[0];
}

/* FP16 and BF16 are folded as floats and rounded once. more has one walk per operand. */
static void variadic_halves(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct binary_step *s = (const struct binary_step *)step;
    float sum[PIECE], next[PIECE];
    (void)thread;
    for (size_t i = i0; i < i1; i += PIECE) {
        size_t n = i1 - i < PIECE ? i1 - i : PIECE;
        for (unsigned k = 0; k < s->n_more; k++) {
            struct half_piece piece = {s->type_a, run->in[k], i, k ? next : sum};
            cpu_bcast_walk(&s->more[k], i, i + n, read_piece, &piece);
            if (k)
                s->f32(sum, 1, next, 1, sum, n);
        }
        if (s->count > 0)
            cpu->kernels->binary[K_BINARY_div](sum, 1, &s->count, 0, sum, n);
        k_cast(CM_FP32, s->type_a, sum, (uint16_t *)run->out[0] + i, n);
    }
}

enum cm_err cpu_prepare_variadic(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    unsigned n = p->call->node->n_in;
    struct binary_step *s = take_binary(p, variadic_body, n);
    if (!s)
        return CM_NOMEM;
    *ret_step = &s->step;
    if (n == 1) {
        s->step.body = copy_body;
        return CM_OK;
    }
    bool half = is_half(s->type_a);
    struct cpu_bcast *more = wk_arena_take(p->arena, n, sizeof *more);
    if (!more)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    for (unsigned k = 0; k < n; k++) {
        const struct cm_shape *operands[] = {out, &wk_call_in(p->call, k)->shape};
        if (half)
            cpu_bcast_init(&more[k], out, operands + 1, 1);
        else if (k >= 2)
            cpu_bcast_init(&more[k - 2], out, operands, 2);
    }
    cpu_bcast_init(
        &s->bcast, out,
        (const struct cm_shape *[]){&wk_call_in(p->call, 0)->shape, &wk_call_in(p->call, 1)->shape},
        2);
    s->n_more = half ? n : n - 2;
    s->more = more;
    s->count = p->call->node->op == WK_OP_Mean ? (float)n : 0.0f;
    if (half)
        s->step.body = variadic_halves;
    return CM_OK;
}

/* ---- Where ----------------------------------------------------------------------------------- */

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
