/* CPU backend: operators that place elements by index: Scatter, ScatterElements, ScatterND; and
 * Col2Im, which adds up overlapping blocks. Every element type. See backend_index.h.
 *
 * The order of additions is that of the updates, whatever the threads: an output line belongs to
 * one thread. FP16 and BF16 are combined in float and rounded once per update. */
#include "gpu-worker/cpu/backend_index.h"

#include "common/check.h"
#include "gpu-worker/cpu/half.h"
#include "gpu-worker/graph/infer_move.h"

#include <math.h>
#include <string.h>

enum reduction { REDUCE_NONE, REDUCE_ADD, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX };

/* y[i] = y[i] op x[i]. */
typedef void combine_fn(enum reduction reduction, void *y, const void *x, size_t n);

/* min and max as kernels.h has them: NaN wins, the first operand on ties. */
#define LESS(a, b)     ((b) < (a) || isnan(b) ? (b) : (a))
#define MORE(a, b)     ((b) > (a) || isnan(b) ? (b) : (a))
#define LESS_INT(a, b) ((b) < (a) ? (b) : (a))
#define MORE_INT(a, b) ((b) > (a) ? (b) : (a))
#define SAME(v)        (v)

#define COMBINE(name, type, wide, load, store, less, more)                                   \
    static void combine_##name(enum reduction reduction, void *y_bytes, const void *x_bytes, \
                               size_t n)                                                     \
    {                                                                                        \
        type *y = y_bytes;                                                                   \
        const type *x = x_bytes;                                                             \
        for (size_t i = 0; i < n; i++) {                                                     \
            wide a = (wide)load(y[i]), b = (wide)load(x[i]);                                 \
            switch (reduction) {                                                             \
            case REDUCE_ADD:                                                                 \
                y[i] = (type)store((wide)(a + b));                                           \
                break;                                                                       \
            case REDUCE_MUL:                                                                 \
                y[i] = (type)store((wide)(a * b));                                           \
                break;                                                                       \
            case REDUCE_MIN:                                                                 \
                y[i] = (type)store(less(load(y[i]), load(x[i])));                            \
                break;                                                                       \
            case REDUCE_MAX:                                                                 \
                y[i] = (type)store(more(load(y[i]), load(x[i])));                            \
                break;                                                                       \
            default:                                                                         \
                y[i] = x[i];                                                                 \
            }                                                                                \
        }                                                                                    \
    }

/* Integers wrap: sums and products are those of their bits. */
COMBINE(UINT8, uint8_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(UINT16, uint16_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(UINT32, uint32_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(UINT64, uint64_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(INT8, int8_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(INT16, int16_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(INT32, int32_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(INT64, int64_t, uint64_t, SAME, SAME, LESS_INT, MORE_INT)
COMBINE(FP16, uint16_t, float, half_to_float, float_to_half, LESS, MORE)
COMBINE(BF16, uint16_t, float, bfloat_to_float, float_to_bfloat, LESS, MORE)
COMBINE(FP32, float, float, SAME, SAME, LESS, MORE)
COMBINE(FP64, double, double, SAME, SAME, LESS, MORE)

/* Of booleans, a sum and a maximum are or, a product and a minimum are and. */
static void combine_BOOL(enum reduction reduction, void *y_bytes, const void *x_bytes, size_t n)
{
    uint8_t *y = y_bytes;
    const uint8_t *x = x_bytes;
    bool either = reduction == REDUCE_ADD || reduction == REDUCE_MAX;
    for (size_t i = 0; i < n; i++)
        y[i] = reduction == REDUCE_NONE ? x[i] : either ? y[i] || x[i] : y[i] && x[i];
}

static combine_fn *combine_for(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bytes, text, onnx) \
    case CM_##name:                        \
        return combine_##name;
        CM_DTYPE_MAP(X)
#undef X
    default:
        CM_ASSERT(!"a type of the list");
        return NULL;
    }
}

static enum reduction reduction_of(const struct wk_node *node)
{
    const char *name = wk_node_string(node, "reduction", "none");
    return strcmp(name, "add") == 0   ? REDUCE_ADD
           : strcmp(name, "mul") == 0 ? REDUCE_MUL
           : strcmp(name, "min") == 0 ? REDUCE_MIN
           : strcmp(name, "max") == 0 ? REDUCE_MAX
                                      : REDUCE_NONE;
}

struct scatter_step {
    struct cpu_step step;
    struct cpu_indices indices;
    enum reduction reduction;
    combine_fn *combine;
    size_t element, bytes; /* bytes: of the whole output */
    /* ScatterElements: lines along axis. ScatterND: tuples of rank indices. */
    unsigned rank, axis;
    size_t dims[CM_MAX_RANK], stride[CM_MAX_RANK], index_dims[CM_MAX_RANK];
    size_t run; /* ScatterND: elements behind the indexed axes */
};

enum { COPY_UNIT = 4096 };

static void start_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    (void)cpu, (void)step, (void)thread;
    memcpy((char *)run->out[0] + i0, (const char *)run->in[0] + i0, i1 - i0);
}

static struct scatter_step *take_scatter(struct cpu_prepare *p, size_t items)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    ptrdiff_t strides[CM_MAX_RANK];
    struct scatter_step *s = cpu_step_take(
        p, sizeof *s, NULL, items, 1,
        (double)cpu_count(&x->shape) + 4 * (double)cpu_count(&wk_call_in(p->call, 2)->shape));
    if (!s)
        return NULL;
    s->indices = cpu_indices_of(p, 1);
    s->reduction = reduction_of(p->call->node);
    s->combine = combine_for(x->dtype);
    s->element = cm_dtype_size(x->dtype);
    s->bytes = cpu_count(&x->shape) * s->element;
    cpu_strides(&x->shape, strides);
    for (unsigned i = 0; i < x->shape.rank; i++) {
        s->dims[i] = (size_t)x->shape.dims[i];
        s->stride[i] = (size_t)strides[i];
    }
    return s;
}

/* Items are lines of the indices along the axis; each writes to a line of the output alone. */
static void lines_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct scatter_step *s = (const struct scatter_step *)step;
    size_t inner = 1, length = s->index_dims[s->axis];
    (void)cpu, (void)thread;
    for (unsigned d = s->axis + 1; d < s->rank; d++)
        inner *= s->index_dims[d];
    for (size_t i = i0; i < i1; i++) {
        size_t rest = i, base = 0, first = i / inner * inner * length + i % inner;
        for (unsigned d = s->rank; d-- > 0;) {
            if (d == s->axis)
                continue;
            base += rest % s->index_dims[d] * s->stride[d];
            rest /= s->index_dims[d];
        }
        for (size_t k = 0; k < length; k++) {
            size_t at = first + k * inner, index;
            if (cpu_index_at(&s->indices, run, at, s->dims[s->axis], &index))
                s->combine(s->reduction,
                           (char *)run->out[0] + (base + index * s->stride[s->axis]) * s->element,
                           (const char *)run->in[2] + at * s->element, 1);
            else
                cpu_bad_note(run, at);
        }
    }
}

static enum cm_err lines_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run)
{
    const struct scatter_step *s = (const struct scatter_step *)step;
    size_t bad;
    cpu_split(cpu, step, run, start_body, s->bytes, COPY_UNIT);
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, lines_body, step->items, 1);
    return cpu_bad_any(run, &bad) ? cpu_bad_report(&s->indices, run, bad, s->dims[s->axis]) : CM_OK;
}

enum cm_err cpu_prepare_scatter_elements(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *indices = &wk_call_in(p->call, 1)->shape;
    unsigned axis = 0;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), indices->rank, &axis));
    struct scatter_step *s =
        take_scatter(p, cpu_count(indices) ? cpu_count(indices) / (size_t)indices->dims[axis] : 0);
    if (!s)
        return CM_NOMEM;
    s->step.run = lines_run;
    s->rank = indices->rank;
    s->axis = axis;
    for (unsigned i = 0; i < s->rank; i++)
        s->index_dims[i] = (size_t)indices->dims[i];
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- ScatterND ------------------------------------------------------------------------------- */

/* Tuples in order on one thread: two of them may name the same place. */
static enum cm_err tuples_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct scatter_step *s = (const struct scatter_step *)step;
    size_t bytes = s->run * s->element;
    cpu_split(cpu, step, run, start_body, s->bytes, COPY_UNIT);
    for (size_t i = 0; i < step->items; i++) {
        size_t at = 0, index;
        for (unsigned k = 0; k < s->rank; k++) {
            if (!cpu_index_at(&s->indices, run, i * s->rank + k, s->dims[k], &index))
                return cpu_bad_report(&s->indices, run, i * s->rank + k, s->dims[k]);
            at += index * s->stride[k];
        }
        s->combine(s->reduction, (char *)run->out[0] + at * s->element,
                   (const char *)run->in[2] + i * bytes, s->run);
    }
    return CM_OK;
}

enum cm_err cpu_prepare_scatter_nd(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *indices = &wk_call_in(p->call, 1)->shape;
    struct scatter_step *s = take_scatter(p, cpu_product(indices, 0, indices->rank - 1u));
    if (!s)
        return CM_NOMEM;
    s->step.run = tuples_run;
    s->rank = (unsigned)indices->dims[indices->rank - 1];
    s->run = cpu_product(x, s->rank, x->rank);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Col2Im ---------------------------------------------------------------------------------- */

struct col2im_step {
    struct cpu_step step;
    struct wk_col2im c;
    combine_fn *combine;
    size_t element, image, block, positions; /* products */
};

/* Where position `at` of the blocks puts element `part` of a block; false outside the image. */
static bool col2im_place(const struct wk_col2im *c, size_t part, size_t at, size_t *ret)
{
    size_t place = 0, stride = 1;
    for (unsigned d = c->rank; d-- > 0;) {
        int64_t i = (int64_t)(at % (size_t)c->positions[d]) * c->stride[d] +
                    (int64_t)(part % (size_t)c->block[d]) * c->dilation[d] - c->pad_begin[d];
        at /= (size_t)c->positions[d];
        part /= (size_t)c->block[d];
        if (i < 0 || i >= c->image[d])
            return false;
        place += (size_t)i * stride;
        stride *= (size_t)c->image[d];
    }
    *ret = place;
    return true;
}

/* Items are images (batch and channel). */
static void col2im_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct col2im_step *s = (const struct col2im_step *)step;
    (void)cpu, (void)thread;
    memset((char *)run->out[0] + i0 * s->image * s->element, 0, (i1 - i0) * s->image * s->element);
    for (size_t i = i0; i < i1; i++)
        for (size_t part = 0; part < s->block; part++)
            for (size_t at = 0; at < s->positions; at++) {
                size_t place, from = (i * s->block + part) * s->positions + at;
                if (col2im_place(&s->c, part, at, &place))
                    s->combine(REDUCE_ADD,
                               (char *)run->out[0] + (i * s->image + place) * s->element,
                               (const char *)run->in[0] + from * s->element, 1);
            }
}

enum cm_err cpu_prepare_col2im(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    struct col2im_step *s = cpu_step_take(p, sizeof *s, col2im_body, cpu_product(&out->shape, 0, 2),
                                          1, 8 * (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    enum cm_err code = wk_col2im_resolve(p->call->node, p->call->facts, p->err, &s->c);
    if (code != CM_OK)
        return code;
    s->combine = combine_for(x->dtype);
    s->element = cm_dtype_size(x->dtype);
    s->image = s->block = s->positions = 1;
    for (unsigned d = 0; d < s->c.rank; d++) {
        s->image *= (size_t)s->c.image[d];
        s->block *= (size_t)s->c.block[d];
        s->positions *= (size_t)s->c.positions[d];
    }
    *ret_step = &s->step;
    return CM_OK;
}
