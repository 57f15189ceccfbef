/* CPU backend: operators that move data. Every element type, by size. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <string.h>

/* One strided copy between input `input` and the output, from and to byte offsets. */
struct move {
    struct k_copy copy;
    unsigned input;
    size_t from, to;
};

struct move_step {
    struct cpu_step step;
    unsigned n;
    const struct move *moves;
    /* Pad: the output is filled first. */
    size_t element, count;
    int value_input; /* input that holds the filler, or -1: value */
    uint64_t value;
};

/* The move that cpu_split is running; the step itself is shared by all threads. */
struct one_move {
    struct cpu_step step;
    const struct move *move;
};

static void move_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct move *move = ((const struct one_move *)step)->move;
    struct k_copy copy = move->copy;
    (void)cpu, (void)thread;
    copy.x = (const char *)run->in[move->input] + move->from;
    copy.y = (char *)run->out[0] + move->to;
    k_copy_run(&copy, i0, i1);
}

static enum cm_err move_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    const struct move_step *s = (const struct move_step *)step;
    for (unsigned i = 0; i < s->n; i++) {
        struct one_move one = {*step, &s->moves[i]};
        cpu_split(cpu, &one.step, run, move_body, k_copy_items(&s->moves[i].copy), 1);
    }
    return CM_OK;
}

static enum cm_err take_moves(struct cpu_prepare *p, unsigned n, struct move_step **ret_step,
                              struct move **ret_moves)
{
    const struct wk_fact *out = wk_call_out(p->call);
    size_t count = cpu_count(&out->shape);
    struct move *moves = wk_arena_take(p->arena, n, sizeof *moves);
    struct move_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, (double)count);
    if (!s || !moves)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->step.run = move_run;
    s->n = n;
    s->moves = moves;
    s->element = cm_dtype_size(out->dtype);
    s->count = count;
    for (unsigned i = 0; i < n; i++)
        moves[i].copy.element = s->element;
    *ret_step = s;
    *ret_moves = moves;
    return CM_OK;
}

static void set_dims(struct k_copy *copy, const struct cm_shape *shape)
{
    copy->rank = shape->rank;
    for (unsigned i = 0; i < shape->rank; i++)
        copy->dims[i] = (size_t)shape->dims[i];
}

enum cm_err cpu_prepare_transpose(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    unsigned perm[CM_MAX_RANK];
    ptrdiff_t strides[CM_MAX_RANK];
    struct move_step *s;
    struct move *move;
    enum cm_err code = wk_transpose_perm(p->call->node, x->rank, p->err, perm);
    if (code == CM_OK)
        code = take_moves(p, 1, &s, &move);
    if (code != CM_OK)
        return code;
    cpu_strides(x, strides);
    set_dims(&move->copy, &wk_call_out(p->call)->shape);
    cpu_strides(&wk_call_out(p->call)->shape, move->copy.out_stride);
    for (unsigned i = 0; i < x->rank; i++)
        move->copy.in_stride[i] = strides[perm[i]];
    k_copy_simplify(&move->copy);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_slice(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    ptrdiff_t strides[CM_MAX_RANK], from = 0;
    struct wk_slice slice;
    struct move_step *s;
    struct move *move;
    enum cm_err code = wk_slice_resolve(p->call->node, p->call->facts, p->err, &slice);
    if (code == CM_OK)
        code = take_moves(p, 1, &s, &move);
    if (code != CM_OK)
        return code;
    cpu_strides(x, strides);
    set_dims(&move->copy, &wk_call_out(p->call)->shape);
    cpu_strides(&wk_call_out(p->call)->shape, move->copy.out_stride);
    for (unsigned i = 0; i < x->rank; i++) {
        from += slice.length[i] ? (ptrdiff_t)slice.start[i] * strides[i] : 0;
        /* The step of an axis with one element is not used, and may be any number. */
        move->copy.in_stride[i] = slice.length[i] > 1 ? (ptrdiff_t)slice.step[i] * strides[i] : 0;
    }
    move->from = s->count ? (size_t)from * s->element : 0;
    k_copy_simplify(&move->copy);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_concat(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    ptrdiff_t strides[CM_MAX_RANK];
    unsigned axis, n = p->call->node->n_in;
    struct move_step *s;
    struct move *moves;
    size_t at = 0;
    enum cm_err code = take_moves(p, n, &s, &moves);
    if (code != CM_OK)
        return code;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), out->rank, &axis));
    cpu_strides(out, strides);
    for (unsigned k = 0; k < n; k++) {
        const struct cm_shape *x = &wk_call_in(p->call, k)->shape;
        moves[k].input = k;
        moves[k].to = at * (size_t)strides[axis] * s->element;
        set_dims(&moves[k].copy, x);
        cpu_strides(x, moves[k].copy.in_stride);
        memcpy(moves[k].copy.out_stride, strides, sizeof strides);
        k_copy_simplify(&moves[k].copy);
        at += (size_t)x->dims[axis];
    }
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_expand(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *out = &wk_call_out(p->call)->shape;
    ptrdiff_t strides[CM_MAX_RANK];
    unsigned skip = out->rank - x->rank;
    struct move_step *s;
    struct move *move;
    enum cm_err code = take_moves(p, 1, &s, &move);
    if (code != CM_OK)
        return code;
    cpu_strides(x, strides);
    set_dims(&move->copy, out);
    cpu_strides(out, move->copy.out_stride);
    for (unsigned i = skip; i < out->rank; i++)
        move->copy.in_stride[i] = x->dims[i - skip] == 1 ? 0 : strides[i - skip];
    k_copy_simplify(&move->copy);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- filling --------------------------------------------------------------------------------- */

static void fill_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct move_step *s = (const struct move_step *)step;
    const void *value = s->value_input >= 0 ? run->in[s->value_input] : (const void *)&s->value;
    char *out = run->out[0];
    uint64_t bits = 0;
    (void)cpu, (void)thread;
    memcpy(&bits, value, s->element);
    switch (s->element) {
    case 1:
        memset(out + i0, (int)bits, i1 - i0);
        break;
    case 2:
        for (size_t i = i0; i < i1; i++)
            ((uint16_t *)out)[i] = (uint16_t)bits;
        break;
    case 4:
        for (size_t i = i0; i < i1; i++)
            ((uint32_t *)out)[i] = (uint32_t)bits;
        break;
    default:
        for (size_t i = i0; i < i1; i++)
            ((uint64_t *)out)[i] = bits;
    }
}

static enum cm_err fill_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    cpu_split(cpu, step, run, fill_body, ((const struct move_step *)step)->count, 1024);
    return move_run(cpu, step, run);
}

enum cm_err cpu_prepare_pad(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *out = &wk_call_out(p->call)->shape;
    int64_t begin[CM_MAX_RANK], end[CM_MAX_RANK];
    struct move_step *s;
    struct move *move;
    enum cm_err code = wk_pad_resolve(p->call->node, p->call->facts, p->err, begin, end);
    if (code == CM_OK)
        code = take_moves(p, 1, &s, &move);
    if (code != CM_OK)
        return code;
    s->step.run = fill_run;
    s->value_input = wk_call_in(p->call, 2) ? 2 : -1;
    float value = wk_node_float(p->call->node, "value", 0);
    memcpy(&s->value, &value, sizeof value);
    set_dims(&move->copy, x);
    cpu_strides(x, move->copy.in_stride);
    cpu_strides(out, move->copy.out_stride);
    for (unsigned i = 0; i < x->rank; i++)
        move->to += (size_t)begin[i] * (size_t)move->copy.out_stride[i] * s->element;
    k_copy_simplify(&move->copy);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_constant_of_shape(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_attr *value = wk_node_attr(p->call->node, "value");
    struct move_step *s;
    struct move *moves;
    enum cm_err code = take_moves(p, 0, &s, &moves);
    if (code != CM_OK)
        return code;
    s->step.run = fill_run;
    s->value_input = -1;
    if (value)
        memcpy(&s->value, value->tensor->data, s->element);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Gather ---------------------------------------------------------------------------------- */

struct gather_step {
    struct cpu_step step;
    const struct wk_node *node;
    bool wide; /* int64 indices, otherwise int32 */
    size_t n;  /* of the gathered axis */
    size_t n_indices;
    size_t run_bytes; /* bytes behind the axis */
};

static void gather_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gather_step *s = (const struct gather_step *)step;
    const size_t *indices = run->workspace;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t outer = i / s->n_indices, index = indices[i % s->n_indices];
        memcpy((char *)run->out[0] + i * s->run_bytes,
               (const char *)run->in[0] + (outer * s->n + index) * s->run_bytes, s->run_bytes);
    }
}

/* Indices come from memory that another process may be writing: each is read once, checked, and
 * used from a private copy. */
static enum cm_err gather_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct gather_step *s = (const struct gather_step *)step;
    size_t *indices = run->workspace;
    for (size_t i = 0; i < s->n_indices; i++) {
        int64_t index = s->wide ? ((const volatile int64_t *)run->in[1])[i]
                                : ((const volatile int32_t *)run->in[1])[i];
        int64_t at = index < 0 ? index + (int64_t)s->n : index;
        if (at < 0 || at >= (int64_t)s->n)
            return wk_node_fail(run->err, CM_INVALID, s->node, "index %lld of %zu elements",
                                (long long)index, s->n);
        indices[i] = (size_t)at;
    }
    cpu_split(cpu, step, run, gather_body, step->items, 1);
    return CM_OK;
}

enum cm_err cpu_prepare_gather(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *indices = wk_call_in(p->call, 1);
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    unsigned axis;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), x->shape.rank, &axis));
    size_t n_indices = cpu_count(&indices->shape);
    struct gather_step *s = cpu_step_take(
        p, sizeof *s, NULL, cpu_product(&x->shape, 0, axis) * n_indices, 1, (double)count);
    if (!s)
        return CM_NOMEM;
    s->step.run = gather_run;
    s->node = p->call->node;
    s->wide = indices->dtype == CM_INT64;
    s->n = (size_t)x->shape.dims[axis];
    s->n_indices = n_indices;
    s->run_bytes = cpu_product(&x->shape, axis + 1, x->shape.rank) * cm_dtype_size(x->dtype);
    p->workspace = (n_indices + 1) * sizeof(size_t);
    *ret_step = &s->step;
    return CM_OK;
}
