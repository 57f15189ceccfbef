/* CPU backend: outputs that a rule fills: Trilu, Range. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/infer_move.h"

#include <string.h>

/* ---- Trilu ----------------------------------------------------------------------------------- */

struct trilu_step {
    struct cpu_step step;
    bool upper, has_k;
    size_t element, rows, columns;
};

static size_t clamp(int64_t v, size_t most)
{
    return v < 0 ? 0 : (uint64_t)v > most ? most : (size_t)v;
}

/* Items are rows of all matrices. */
static void trilu_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct trilu_step *s = (const struct trilu_step *)step;
    /* The diagonal may lie in memory that another process writes: read once. */
    int64_t k = s->has_k ? *(const volatile int64_t *)run->in[1] : 0;
    size_t line = s->columns * s->element;
    (void)cpu, (void)thread;
    k = k > WK_MAX_DIM ? WK_MAX_DIM : k < -WK_MAX_DIM ? -WK_MAX_DIM : k;
    for (size_t i = i0; i < i1; i++) {
        int64_t diagonal = (int64_t)(i % s->rows) + k;
        size_t split = clamp(s->upper ? diagonal : diagonal + 1, s->columns) * s->element;
        const char *x = (const char *)run->in[0] + i * line;
        char *y = (char *)run->out[0] + i * line;
        if (s->upper) {
            memset(y, 0, split);
            memcpy(y + split, x + split, line - split);
        } else {
            memcpy(y, x, split);
            memset(y + split, 0, line - split);
        }
    }
}

enum cm_err cpu_prepare_trilu(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    unsigned rank = x->shape.rank;
    struct trilu_step *s =
        cpu_step_take(p, sizeof *s, trilu_body, cpu_product(&x->shape, 0, rank - 1), 1,
                      (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->upper = wk_node_int(p->call->node, "upper", 1) != 0;
    s->has_k = wk_call_in(p->call, 1) != NULL;
    s->element = cm_dtype_size(x->dtype);
    s->rows = (size_t)x->shape.dims[rank - 2];
    s->columns = (size_t)x->shape.dims[rank - 1];
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Range ----------------------------------------------------------------------------------- */

struct range_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    struct wk_range range;
};

static void range_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct range_step *s = (const struct range_step *)step;
    uint64_t start = (uint64_t)s->range.start, delta = (uint64_t)s->range.step;
    (void)cpu, (void)thread;
    switch (s->dtype) {
    case CM_INT16:
        for (size_t i = i0; i < i1; i++)
            ((int16_t *)run->out[0])[i] = (int16_t)(start + i * delta);
        break;
    case CM_INT32:
        for (size_t i = i0; i < i1; i++)
            ((int32_t *)run->out[0])[i] = (int32_t)(start + i * delta);
        break;
    case CM_INT64:
        for (size_t i = i0; i < i1; i++)
            ((int64_t *)run->out[0])[i] = (int64_t)(start + i * delta);
        break;
    case CM_FP32:
        for (size_t i = i0; i < i1; i++)
            ((float *)run->out[0])[i] =
                (float)s->range.float_start + (float)i * (float)s->range.float_step;
        break;
    default:
        for (size_t i = i0; i < i1; i++)
            ((double *)run->out[0])[i] = s->range.float_start + (double)i * s->range.float_step;
    }
}

enum cm_err cpu_prepare_range(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct range_step *s = cpu_step_take(p, sizeof *s, range_body, count, 16, (double)count);
    if (!s)
        return CM_NOMEM;
    s->dtype = wk_call_out(p->call)->dtype;
    *ret_step = &s->step;
    return wk_range_resolve(p->call->node, p->call->facts, p->err, &s->range);
}
