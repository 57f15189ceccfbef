/* CPU backend: copies by one table per axis, and the operators that only make tables: Pad, Tile,
 * CenterCropPad; ConstantOfShape, which is the filler alone. Every element type, by size. See
 * backend_pick.h. */
#include "gpu-worker/cpu/backend_pick.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/graph/infer_move.h"

#include <string.h>

/* A piece of the last axis whose places follow each other (from is CPU_PICK_NONE: filler). */
struct piece {
    uint32_t to, from, length;
};

struct axis {
    const uint32_t *index; /* NULL: as it is */
    size_t in, out;
};

struct pick_step {
    struct cpu_step step;
    size_t element; /* bytes of the filler */
    size_t run;     /* bytes that always stay together */
    unsigned n;     /* axes in front of the last */
    struct axis axes[CM_MAX_RANK];
    struct axis last;
    const struct piece *pieces; /* of the last axis; NULL: place by place */
    size_t n_pieces;
    bool typed;    /* a run can be loaded at once, the filler too where it is needed */
    size_t repeat; /* > 1: the last axis is every place so many times */
    int value_input;
    uint64_t value;
};

static void fill(char *y, const void *value, size_t element, size_t bytes)
{
    uint64_t bits = 0;
    memcpy(&bits, value, element);
    if (element == 1) {
        memset(y, (int)(bits & 0xff), bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += element)
        memcpy(y + at, &bits, element);
}

#define PICK_AS(type)                                                                          \
    for (size_t i = 0; i < n; i++) {                                                           \
        type v;                                                                                \
        memcpy(&v, index[i] == CPU_PICK_NONE ? (const char *)filler : x + index[i] * sizeof v, \
               sizeof v);                                                                      \
        memcpy(y + i * sizeof v, &v, sizeof v);                                                \
    }

/* n places of the last axis, one by one. */
static void pick_places(const struct pick_step *s, const char *x, const uint32_t *index,
                        const void *filler, char *y, size_t n)
{
    switch (s->typed ? s->run : 0) {
    case 1:
        PICK_AS(uint8_t)
        return;
    case 2:
        PICK_AS(uint16_t)
        return;
    case 4:
        PICK_AS(uint32_t)
        return;
    case 8:
        PICK_AS(uint64_t)
        return;
    default:
        break;
    }
    for (size_t i = 0; i < n; i++) {
        if (index[i] == CPU_PICK_NONE)
            fill(y + i * s->run, filler, s->element, s->run);
        else
            memcpy(y + i * s->run, x + index[i] * s->run, s->run);
    }
}

#define REPEAT_AS(type)                                       \
    for (size_t i = 0; i < n; i++) {                          \
        type v;                                               \
        memcpy(&v, x + i * sizeof v, sizeof v);               \
        for (size_t k = 0; k < s->repeat; k++, y += sizeof v) \
            memcpy(y, &v, sizeof v);                          \
    }

/* A whole row in which every place comes `repeat` times: enlarging by an integer. */
static void repeat_row(const struct pick_step *s, const char *x, char *y)
{
    size_t n = s->last.in;
    if (s->run == 4 && s->repeat == 2) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v;
            memcpy(&v, x + 4 * i, 4);
            uint64_t both = (uint64_t)v << 32 | v;
            memcpy(y + 8 * i, &both, 8);
        }
        return;
    }
    switch (s->run) {
    case 1:
        REPEAT_AS(uint8_t)
        break;
    case 2:
        REPEAT_AS(uint16_t)
        break;
    case 4:
        REPEAT_AS(uint32_t)
        break;
    default:
        REPEAT_AS(uint64_t)
    }
}

/* Columns [c0, c1) of one output row from the input row x. */
static void pick_row(const struct pick_step *s, const char *x, const void *filler, char *y,
                     size_t c0, size_t c1)
{
    if (!s->last.index) {
        memcpy(y, x + c0 * s->run, (c1 - c0) * s->run);
    } else if (s->repeat > 1) {
        repeat_row(s, x, y);
    } else if (s->pieces) {
        for (size_t i = 0; i < s->n_pieces; i++) {
            const struct piece *piece = &s->pieces[i];
            char *to = y + piece->to * s->run;
            if (piece->from == CPU_PICK_NONE)
                fill(to, filler, s->element, piece->length * s->run);
            else
                memcpy(to, x + piece->from * s->run, piece->length * s->run);
        }
    } else {
        pick_places(s, x, s->last.index + c0, filler, y, c1 - c0);
    }
}

/* Where the input row of an output row begins, in places; false if it has none. */
static bool input_row(const struct pick_step *s, size_t row, size_t *ret)
{
    size_t at = 0, stride = s->last.in;
    for (unsigned d = s->n; d-- > 0;) {
        size_t index = row % s->axes[d].out;
        row /= s->axes[d].out;
        if (s->axes[d].index) {
            if (s->axes[d].index[index] == CPU_PICK_NONE)
                return false;
            index = s->axes[d].index[index];
        }
        at += index * stride;
        stride *= s->axes[d].in;
    }
    *ret = at;
    return true;
}

static void pick_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct pick_step *s = (const struct pick_step *)step;
    const void *filler = s->value_input >= 0 ? run->in[s->value_input] : (const void *)&s->value;
    const char *done = NULL; /* the row before, if all of it was made here */
    size_t done_from = 0;
    (void)cpu, (void)thread;
    while (i0 < i1) {
        size_t row = i0 / s->last.out, c0 = i0 % s->last.out, from = 0;
        size_t c1 = i1 - i0 < s->last.out - c0 ? c0 + (i1 - i0) : s->last.out;
        char *y = (char *)run->out[0] + i0 * s->run;
        bool whole = c1 - c0 == s->last.out;
        if (!input_row(s, row, &from)) {
            fill(y, filler, s->element, (c1 - c0) * s->run);
            done = NULL;
        } else {
            if (done && whole && done_from == from)
                memcpy(y, done, s->last.out * s->run);
            else
                pick_row(s, (const char *)run->in[0] + from * s->run, filler, y, c0, c1);
            done = whole ? y : NULL;
            done_from = from;
        }
        i0 += c1 - c0;
    }
}

uint32_t *cpu_pick_table(struct cpu_prepare *p, int64_t size)
{
    uint32_t *table = wk_arena_take(p->arena, (size_t)size, sizeof *table);
    if (!table)
        (void)cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    return table;
}

/* Is a table needed at all? */
static bool is_identity(const uint32_t *index, size_t in, size_t out)
{
    if (in != out)
        return false;
    for (size_t i = 0; index && i < out; i++)
        if (index[i] != i)
            return false;
    return true;
}

/* Joins axes that stay as they are with their neighbours; what is left at the end is the run. */
static void join_axes(struct pick_step *s, const struct cpu_pick *pick, const struct cm_shape *x,
                      const struct cm_shape *out)
{
    struct axis axes[CM_MAX_RANK + 1];
    unsigned n = 0;
    for (unsigned i = 0; i < out->rank; i++) {
        size_t in = (size_t)x->dims[i], to = (size_t)out->dims[i];
        bool same = is_identity(pick->index[i], in, to);
        if (same && n > 0 && !axes[n - 1].index) {
            axes[n - 1].in *= in;
            axes[n - 1].out *= to;
        } else {
            axes[n++] = (struct axis){same ? NULL : pick->index[i], in, to};
        }
    }
    if (n > 1 && !axes[n - 1].index)
        s->run *= axes[--n].in;
    if (n == 0)
        axes[n++] = (struct axis){NULL, 1, 1};
    s->last = axes[n - 1];
    s->n = n - 1;
    memcpy(s->axes, axes, s->n * sizeof *axes);
}

/* Long pieces are copied as pieces. */
static enum cm_err find_pieces(struct cpu_prepare *p, struct pick_step *s)
{
    const uint32_t *index = s->last.index;
    size_t n = 0;
#define STARTS(i)                                                                  \
    ((i) == 0 || (index[i] == CPU_PICK_NONE) != (index[(i)-1] == CPU_PICK_NONE) || \
     (index[i] != CPU_PICK_NONE && index[i] != index[(i)-1] + 1))
    for (size_t i = 0; i < s->last.out; i++)
        n += STARTS(i);
    if (n * 8 > s->last.out + 16)
        return CM_OK;
    struct piece *pieces = wk_arena_take(p->arena, n, sizeof *pieces);
    if (!pieces)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->pieces = pieces;
    for (size_t i = 0; i < s->last.out; i++) {
        if (STARTS(i))
            pieces[s->n_pieces++] = (struct piece){(uint32_t)i, index[i], 0};
        pieces[s->n_pieces - 1].length++;
    }
#undef STARTS
    return CM_OK;
}

static size_t find_repeat(const struct pick_step *s)
{
    size_t factor = s->last.in ? s->last.out / s->last.in : 0;
    if (factor < 2 || factor * s->last.in != s->last.out || s->run > 8 || (s->run & (s->run - 1)))
        return 0;
    for (size_t i = 0; i < s->last.out; i++)
        if (s->last.index[i] != i / factor)
            return 0;
    return factor;
}

enum cm_err cpu_prepare_pick(struct cpu_prepare *p, const struct cpu_pick *pick,
                             const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    size_t count = cpu_count(&out->shape);
    struct pick_step *s = cpu_step_take(p, sizeof *s, pick_body, 0, 1, (double)count);
    if (!s)
        return CM_NOMEM;
    s->element = s->run = cm_dtype_size(out->dtype);
    s->value_input = pick->value_input;
    s->value = pick->value;
    *ret_step = &s->step;
    if (count == 0) /* not run; its other dimensions may be anything */
        return CM_OK;
    join_axes(s, pick, &x->shape, &out->shape);
    if (s->last.index) {
        s->typed = true;
        for (size_t i = 0; i < s->last.out; i++)
            s->typed = s->typed && (s->run == s->element || s->last.index[i] != CPU_PICK_NONE);
        s->repeat = find_repeat(s);
        enum cm_err code = s->repeat ? CM_OK : find_pieces(p, s);
        if (code != CM_OK)
            return code;
    }
    s->step.items = s->last.out;
    for (unsigned d = 0; d < s->n; d++)
        s->step.items *= s->axes[d].out;
    s->step.unit = s->repeat > 1 || s->pieces ? s->last.out : 1;
    return CM_OK;
}

/* ---- Tile ------------------------------------------------------------------------------------ */

enum cm_err cpu_prepare_tile(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *out = &wk_call_out(p->call)->shape;
    struct cpu_pick pick = {.value_input = -1};
    for (unsigned i = 0; i < x->rank && cpu_count(out) > 0; i++) {
        if (x->dims[i] == out->dims[i])
            continue;
        uint32_t *index = cpu_pick_table(p, out->dims[i]);
        if (!index)
            return CM_NOMEM;
        for (int64_t o = 0; o < out->dims[i]; o++)
            index[o] = (uint32_t)(o % x->dims[i]);
        pick.index[i] = index;
    }
    return cpu_prepare_pick(p, &pick, ret_step);
}

/* ---- Pad ------------------------------------------------------------------------------------- */

/* Place i of an axis of n elements, i outside 0..n-1 too. */
static int64_t reflected(int64_t i, int64_t n)
{
    if (n == 1)
        return 0;
    int64_t period = 2 * (n - 1), at = i % period;
    at += at < 0 ? period : 0;
    return at < n ? at : period - at;
}

static uint32_t padded_place(const char *mode, int64_t i, int64_t low, int64_t n)
{
    if (i >= 0 && i < n)
        return (uint32_t)(low + i);
    switch (mode[0]) {
    case 'e':
        return (uint32_t)(low + (i < 0 ? 0 : n - 1));
    case 'r':
        return (uint32_t)(low + reflected(i, n));
    case 'w':
        return (uint32_t)(low + (i % n + n) % n);
    default:
        return CPU_PICK_NONE;
    }
}

/* The attribute value of opsets below 11, in the tensor's type. */
static uint64_t pad_value(const struct wk_node *node, enum cm_dtype dtype)
{
    float value = wk_node_float(node, "value", 0);
    uint64_t bits = 0;
    k_cast(CM_FP32, dtype, &value, &bits, 1);
    return bits;
}

enum cm_err cpu_prepare_pad(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    const char *mode = wk_node_string(p->call->node, "mode", "constant");
    struct cpu_pick pick = {.value_input = wk_call_in(p->call, 2) ? 2 : -1,
                            .value = pad_value(p->call->node, x->dtype)};
    int64_t begin[CM_MAX_RANK], end[CM_MAX_RANK];
    enum cm_err code = wk_pad_resolve(p->call->node, p->call->facts, p->err, begin, end);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->shape.rank && cpu_count(&out->shape) > 0; i++) {
        if (begin[i] == 0 && end[i] == 0)
            continue;
        /* Negative padding cuts first; what is left is padded. */
        int64_t low = begin[i] < 0 ? -begin[i] : 0, high = end[i] < 0 ? -end[i] : 0;
        uint32_t *index = cpu_pick_table(p, out->shape.dims[i]);
        if (!index)
            return CM_NOMEM;
        for (int64_t o = 0; o < out->shape.dims[i]; o++)
            index[o] = padded_place(mode, o - (begin[i] > 0 ? begin[i] : 0), low,
                                    x->shape.dims[i] - low - high);
        pick.index[i] = index;
    }
    return cpu_prepare_pick(p, &pick, ret_step);
}

enum cm_err cpu_prepare_center_crop_pad(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *out = &wk_call_out(p->call)->shape;
    struct cpu_pick pick = {.value_input = -1};
    struct wk_center center;
    enum cm_err code = wk_center_resolve(p->call->node, p->call->facts, p->err, &center);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->rank && cpu_count(out) > 0; i++) {
        uint32_t *index = cpu_pick_table(p, out->dims[i]);
        if (!index)
            return CM_NOMEM;
        for (int64_t o = 0; o < out->dims[i]; o++) {
            int64_t at = o - center.offset[i];
            bool inside = at >= 0 && at < center.length[i];
            index[o] = inside ? (uint32_t)(center.start[i] + at) : CPU_PICK_NONE;
        }
        pick.index[i] = index;
    }
    return cpu_prepare_pick(p, &pick, ret_step);
}

/* ---- ConstantOfShape ------------------------------------------------------------------------- */

struct constant_step {
    struct cpu_step step;
    size_t element;
    uint64_t value;
};

static void constant_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                          const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct constant_step *s = (const struct constant_step *)step;
    (void)cpu, (void)thread;
    fill((char *)run->out[0] + i0 * s->element, &s->value, s->element, (i1 - i0) * s->element);
}

enum cm_err cpu_prepare_constant_of_shape(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_attr *value = wk_node_attr(p->call->node, "value");
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    struct constant_step *s =
        cpu_step_take(p, sizeof *s, constant_body, count, 1024, (double)count);
    if (!s)
        return CM_NOMEM;
    s->element = cm_dtype_size(wk_call_out(p->call)->dtype);
    if (value)
        memcpy(&s->value, value->tensor->data, s->element);
    *ret_step = &s->step;
    return CM_OK;
}
