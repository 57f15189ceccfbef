/* CPU backend: random numbers, Dropout, and EyeLike, whose outputs come from an index and not from
 * a tensor. See backend_priv.h.
 *
 * An element's number depends on the seed and the element's index in its tensor alone (random.h):
 * not on threads, earlier runs or iterations of a loop. Where a model gives no seed, the node's
 * place in the file stands in for it, so that two nodes differ and two runs do not. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/random.h"

#include <math.h>
#include <string.h>

enum {
    MAP_UNIT = 1024, /* elements: thread boundaries stay off shared cache lines */
    PIECE = 256,
    DRAW_WORK = 32 /* one random number, in simple operations */
};

static uint64_t node_key(const struct wk_node *node)
{
    const struct wk_attr *seed = wk_node_attr(node, "seed");
    uint32_t bits;
    if (!seed)
        return k_random_key(false, node->position);
    if (seed->type == 'i')
        return k_random_key(true, (uint64_t)seed->i);
    memcpy(&bits, &seed->f, sizeof bits);
    return k_random_key(true, bits);
}

/* ---- RandomNormal, RandomUniform, and the same "like" a tensor; Bernoulli -------------------- */

enum draw { DRAW_UNIFORM, DRAW_NORMAL, DRAW_BERNOULLI };

struct random_step {
    struct cpu_step step;
    enum draw draw;
    uint64_t key;
    enum cm_dtype from, to; /* Bernoulli: the probabilities' type */
    unsigned bits;
    double offset, scale;
};

/* A number below 1 stays below 1 in the output's type. */
static unsigned significant_bits(enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_FP16:
        return 11;
    case CM_BF16:
        return 8;
    case CM_FP32:
        return 24;
    default:
        return 53;
    }
}

static void draw_piece(const struct random_step *s, size_t begin, size_t n, double *values)
{
    for (size_t i = 0; i < n; i++)
        switch (s->draw) {
        case DRAW_UNIFORM:
            values[i] = s->offset + s->scale * k_random_uniform(s->key, begin + i, s->bits);
            break;
        case DRAW_NORMAL:
            values[i] = s->offset + s->scale * k_random_normal(s->key, begin + i);
            break;
        case DRAW_BERNOULLI: /* values are the probabilities */
            values[i] = k_random_uniform(s->key, begin + i, 53) < values[i] ? 1.0 : 0.0;
            break;
        }
}

static void random_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct random_step *s = (const struct random_step *)step;
    double values[PIECE];
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i += PIECE) {
        size_t n = i1 - i < PIECE ? i1 - i : PIECE;
        if (s->draw == DRAW_BERNOULLI)
            k_cast(s->from, CM_FP64, (const char *)run->in[0] + i * cm_dtype_size(s->from), values,
                   n);
        draw_piece(s, i, n, values);
        k_cast(CM_FP64, s->to, values, (char *)run->out[0] + i * cm_dtype_size(s->to), n);
    }
}

static struct random_step *take_random(struct cpu_prepare *p, enum draw draw)
{
    const struct wk_fact *out = wk_call_out(p->call);
    size_t count = cpu_count(&out->shape);
    struct random_step *s =
        cpu_step_take(p, sizeof *s, random_body, count, MAP_UNIT, DRAW_WORK * (double)count);
    if (!s)
        return NULL;
    s->draw = draw;
    s->key = node_key(p->call->node);
    s->to = out->dtype;
    s->bits = significant_bits(s->to);
    return s;
}

enum cm_err cpu_prepare_random_normal(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct random_step *s = take_random(p, DRAW_NORMAL);
    if (!s)
        return CM_NOMEM;
    s->offset = wk_node_float(p->call->node, "mean", 0.0f);
    s->scale = wk_node_float(p->call->node, "scale", 1.0f);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_random_uniform(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct random_step *s = take_random(p, DRAW_UNIFORM);
    if (!s)
        return CM_NOMEM;
    s->offset = wk_node_float(p->call->node, "low", 0.0f);
    s->scale = (double)wk_node_float(p->call->node, "high", 1.0f) - s->offset;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_bernoulli(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct random_step *s = take_random(p, DRAW_BERNOULLI);
    if (!s)
        return CM_NOMEM;
    s->from = wk_call_in(p->call, 0)->dtype;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Multinomial ----------------------------------------------------------------------------- */

struct multinomial_step {
    struct cpu_step step;
    uint64_t key;
    enum cm_dtype from, to;
    size_t classes, samples;
};

/* Running sums of e^(x - largest x): the classes' shares of the last one. */
static double add_up(const struct multinomial_step *s, const char *x, double *sums)
{
    double most = -INFINITY, sum = 0;
    k_cast(s->from, CM_FP64, x, sums, s->classes);
    for (size_t i = 0; i < s->classes; i++)
        if (sums[i] > most)
            most = sums[i];
    for (size_t i = 0; i < s->classes; i++) {
        sum += f64_exp(sums[i] - most);
        sums[i] = sum;
    }
    return sum;
}

/* One row per item. A row that is no distribution (of NaN) gives the last class. */
static void multinomial_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct multinomial_step *s = (const struct multinomial_step *)step;
    double *sums = (double *)run->workspace + thread * s->classes;
    (void)cpu;
    for (size_t row = i0; row < i1; row++) {
        const char *x = (const char *)run->in[0] + row * s->classes * cm_dtype_size(s->from);
        double sum = add_up(s, x, sums);
        for (size_t i = 0; i < s->samples; i++) {
            size_t at = row * s->samples + i;
            double u = sum * k_random_uniform(s->key, at, 53);
            int64_t class = 0;
            while ((size_t) class + 1 < s->classes && !(u < sums[class]))
                class ++;
            k_cast(CM_INT64, s->to, &class, (char *)run->out[0] + at * cm_dtype_size(s->to), 1);
        }
    }
}

enum cm_err cpu_prepare_multinomial(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    size_t classes = (size_t)x->shape.dims[1], samples = (size_t)out->shape.dims[1];
    if (classes == 0 && cpu_count(&out->shape) > 0)
        return wk_node_fail(p->err, CM_INVALID, p->call->node, "there is no class to draw");
    struct multinomial_step *s = cpu_step_take(
        p, sizeof *s, multinomial_body, (size_t)x->shape.dims[0], 1,
        DRAW_WORK * (double)cpu_count(&out->shape) + 32.0 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->key = node_key(p->call->node);
    s->from = x->dtype;
    s->to = out->dtype;
    s->classes = classes;
    s->samples = samples;
    p->workspace = classes * sizeof(double) * p->cpu->threads;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Dropout --------------------------------------------------------------------------------- */

struct dropout_step {
    struct cpu_step step;
    enum cm_dtype dtype, mask, ratio_type;
    bool identity, reads_ratio, reads_training; /* which operands decide in the run */
    uint64_t key;
    double ratio, scale;
};

static void drop_piece(const struct dropout_step *s, const struct wk_run *run, size_t i, size_t n)
{
    size_t element = cm_dtype_size(s->dtype);
    const char *x = (const char *)run->in[0] + i * element;
    double values[PIECE];
    uint8_t kept[PIECE];
    for (size_t k = 0; k < n; k++)
        kept[k] = s->identity || k_random_uniform(s->key, i + k, 53) >= s->ratio;
    if (run->out[0] && s->identity) {
        memcpy((char *)run->out[0] + i * element, x, n * element);
    } else if (run->out[0]) {
        k_cast(s->dtype, CM_FP64, x, values, n);
        for (size_t k = 0; k < n; k++)
            values[k] = kept[k] ? values[k] * s->scale : 0.0;
        k_cast(CM_FP64, s->dtype, values, (char *)run->out[0] + i * element, n);
    }
    if (s->mask != CM_DTYPE_NONE)
        k_cast(CM_BOOL, s->mask, kept, (char *)run->out[1] + i * cm_dtype_size(s->mask), n);
}

static void dropout_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i += PIECE)
        drop_piece((const struct dropout_step *)step, run, i, i1 - i < PIECE ? i1 - i : PIECE);
}

/* The operands may be computed by the graph, so they are looked at in the run. */
static enum cm_err dropout_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    struct dropout_step now = *(const struct dropout_step *)step;
    if (now.reads_training)
        now.identity = !*(const uint8_t *)run->in[2];
    if (now.reads_ratio && !now.identity)
        k_cast(now.ratio_type, CM_FP64, run->in[1], &now.ratio, 1);
    if (!now.identity && !(now.ratio >= 0.0 && now.ratio < 1.0))
        return cm_fail(run->err, CM_INVALID, "a Dropout's ratio is %g, must be in [0, 1)",
                       now.ratio);
    now.scale = 1.0 / (1.0 - now.ratio);
    cpu_split(cpu, &now.step, run, dropout_body, now.step.items, now.step.unit);
    return CM_OK;
}

enum cm_err cpu_prepare_dropout(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0), *ratio = wk_call_in(p->call, 1);
    size_t count = cpu_count(&x->shape);
    struct dropout_step *s =
        cpu_step_take(p, sizeof *s, dropout_body, count, MAP_UNIT, DRAW_WORK * (double)count);
    if (!s)
        return CM_NOMEM;
    s->step.run = dropout_run;
    s->dtype = x->dtype;
    s->identity = wk_dropout_is_identity(node, p->call->facts);
    s->reads_training = wk_call_in(p->call, 2) != NULL;
    s->reads_ratio = ratio != NULL;
    s->ratio_type = ratio ? ratio->dtype : CM_DTYPE_NONE;
    s->ratio = wk_node_float(node, "ratio", 0.5f); /* an attribute below opset 12 */
    s->key = node_key(node);
    if (node->n_out > 1 && node->out[1] >= 0)
        s->mask = p->call->facts[node->out[1]].dtype;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- EyeLike --------------------------------------------------------------------------------- */

struct eye_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    size_t columns;
    int64_t k;
};

/* One row per item. */
static void eye_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct eye_step *s = (const struct eye_step *)step;
    size_t element = cm_dtype_size(s->dtype);
    (void)cpu, (void)thread;
    for (size_t row = i0; row < i1; row++) {
        char *y = (char *)run->out[0] + row * s->columns * element;
        int64_t column;
        memset(y, 0, s->columns * element);
        if (!__builtin_add_overflow((int64_t)row, s->k, &column) && column >= 0 &&
            (uint64_t)column < s->columns)
            k_cast(CM_BOOL, s->dtype, "\1", y + (size_t)column * element, 1);
    }
}

enum cm_err cpu_prepare_eye_like(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *out = wk_call_out(p->call);
    struct eye_step *s = cpu_step_take(p, sizeof *s, eye_body, (size_t)out->shape.dims[0], 1,
                                       (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    s->dtype = out->dtype;
    s->columns = (size_t)out->shape.dims[1];
    s->k = wk_node_int(p->call->node, "k", 0);
    *ret_step = &s->step;
    return CM_OK;
}
