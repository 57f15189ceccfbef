/* CPU backend: operators that are strided copies: Transpose, Slice, Concat, Split, Expand,
 * DepthToSpace, SpaceToDepth. Every element type, by size. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/graph/infer_move.h"

#include <string.h>

/* One strided copy between an input and an output, from and to byte offsets. */
struct move {
    struct k_copy copy;
    unsigned input, output;
    size_t from, to;
};

struct move_step {
    struct cpu_step step;
    unsigned n;
    const struct move *moves;
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
    copy.y = (char *)run->out[move->output] + move->to;
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

/* n moves of elements of input 0's type; work is what they move together, in elements. */
static enum cm_err take_moves(struct cpu_prepare *p, unsigned n, size_t work,
                              struct move_step **ret_step, struct move **ret_moves)
{
    struct move *moves = wk_arena_take(p->arena, n, sizeof *moves);
    struct move_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, (double)work);
    if (!s || !moves)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->step.run = move_run;
    s->n = n;
    s->moves = moves;
    for (unsigned i = 0; i < n; i++)
        moves[i].copy.element = cm_dtype_size(wk_call_in(p->call, 0)->dtype);
    *ret_step = s;
    *ret_moves = moves;
    return CM_OK;
}

/* Elements of output 0. */
static size_t out_count(const struct cpu_prepare *p)
{
    return cpu_count(&wk_call_out(p->call)->shape);
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
        code = take_moves(p, 1, out_count(p), &s, &move);
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
        code = take_moves(p, 1, out_count(p), &s, &move);
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
    move->from = out_count(p) ? (size_t)from * move->copy.element : 0;
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
    enum cm_err code = take_moves(p, n, out_count(p), &s, &moves);
    if (code != CM_OK)
        return code;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), out->rank, &axis));
    cpu_strides(out, strides);
    for (unsigned k = 0; k < n; k++) {
        const struct cm_shape *x = &wk_call_in(p->call, k)->shape;
        moves[k].input = k;
        moves[k].to = at * (size_t)strides[axis] * moves[k].copy.element;
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
    enum cm_err code = take_moves(p, 1, out_count(p), &s, &move);
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

/* ---- Split ----------------------------------------------------------------------------------- */

enum cm_err cpu_prepare_split(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    int64_t *sizes = wk_arena_take(p->arena, node->n_out, sizeof *sizes);
    ptrdiff_t strides[CM_MAX_RANK];
    struct move_step *s;
    struct move *moves;
    unsigned axis = 0;
    size_t at = 0;
    if (!sizes)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    enum cm_err code = wk_split_resolve(node, p->call->facts, p->err, &axis, sizes);
    if (code == CM_OK)
        code = take_moves(p, node->n_out, cpu_count(x), &s, &moves);
    if (code != CM_OK)
        return code;
    cpu_strides(x, strides);
    s->n = 0;
    for (unsigned k = 0; k < node->n_out; k++) {
        struct move *move = &moves[s->n];
        struct cm_shape part = *x;
        part.dims[axis] = sizes[k];
        if (node->out[k] >= 0 && cpu_count(&part) > 0) {
            move->output = k;
            move->from = at * (size_t)strides[axis] * move->copy.element;
            set_dims(&move->copy, &part);
            memcpy(move->copy.in_stride, strides, sizeof strides);
            cpu_strides(&part, move->copy.out_stride);
            k_copy_simplify(&move->copy);
            s->n++;
        }
        at += (size_t)sizes[k];
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- depth and space ------------------------------------------------------------------------- */

/* Strides of the six axes (batch, channel, row, row in block, column, column in block) of the
 * tensor whose blocks lie in space: [batch][channel][row * block][column * block]. */
static void space_strides(ptrdiff_t channels, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t block,
                          ptrdiff_t ret[6])
{
    ret[5] = 1;
    ret[4] = block;
    ret[3] = columns * block;
    ret[2] = columns * block * block;
    ret[1] = rows * ret[2];
    ret[0] = channels * ret[1];
}

/* The same of the tensor whose blocks lie in the channels. */
static void depth_strides(ptrdiff_t channels, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t block,
                          bool channel_first, ptrdiff_t ret[6])
{
    ptrdiff_t plane = rows * columns;
    ret[4] = 1;
    ret[2] = columns;
    ret[5] = channel_first ? plane : channels * plane;
    ret[3] = ret[5] * block;
    ret[1] = channel_first ? block * block * plane : plane;
    ret[0] = channels * block * block * plane;
}

static enum cm_err prepare_blocks(struct cpu_prepare *p, bool to_space,
                                  const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    const struct cm_shape *space = to_space ? &out->shape : &x->shape;
    const struct cm_shape *depth = to_space ? &x->shape : &out->shape;
    size_t block = (size_t)wk_node_int(p->call->node, "blocksize", 1);
    bool channel_first = strcmp(wk_node_string(p->call->node, "mode", "DCR"), "CRD") == 0;
    size_t dims[6] = {(size_t)space->dims[0], (size_t)space->dims[1],
                      (size_t)depth->dims[2], block,
                      (size_t)depth->dims[3], block};
    struct move_step *s;
    struct move *move;
    enum cm_err code = take_moves(p, 1, out_count(p), &s, &move);
    if (code != CM_OK)
        return code;
    move->copy.rank = 6;
    memcpy(move->copy.dims, dims, sizeof dims);
    space_strides((ptrdiff_t)dims[1], (ptrdiff_t)dims[2], (ptrdiff_t)dims[4], (ptrdiff_t)block,
                  to_space ? move->copy.out_stride : move->copy.in_stride);
    depth_strides((ptrdiff_t)dims[1], (ptrdiff_t)dims[2], (ptrdiff_t)dims[4], (ptrdiff_t)block,
                  channel_first, to_space ? move->copy.in_stride : move->copy.out_stride);
    k_copy_simplify(&move->copy);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_space_to_depth(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    return prepare_blocks(p, false, ret_step);
}

enum cm_err cpu_prepare_depth_to_space(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    return prepare_blocks(p, true, ret_step);
}
