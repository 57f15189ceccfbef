/* Shape rules of operators that move whole tensors: Concat, Split, Transpose, Expand, Tile,
 * SpaceToDepth, DepthToSpace. See infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"

#include <string.h>

/* ---- movement -------------------------------------------------------------------------------- */

enum cm_err infer_concat(struct infer *in)
{
    const struct wk_fact *first = infer_in(in, 0);
    struct cm_shape shape = first->shape;
    const struct wk_attr *attr = wk_node_attr(in->node, "axis");
    struct wk_elem *elems;
    unsigned axis, at = 0;
    bool tracked = shape.rank == 1;
    if (!attr || !wk_axis(attr->i, shape.rank, &axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is missing or out of range");
    shape.dims[axis] = 0;
    for (unsigned k = 0; k < in->node->n_in; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (!next || next->dtype != first->dtype || next->shape.rank != shape.rank)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "input %u does not fit the first one", k);
        tracked &= next->elems != NULL;
        for (unsigned i = 0; i < shape.rank; i++) {
            int64_t a = shape.dims[i], b = next->shape.dims[i];
            if (i == axis)
                shape.dims[i] = dim_known(a) && dim_known(b) ? a + b : a == 0 ? b : WK_DIM_ANY;
            else if (dim_known(a) && dim_known(b) && a != b)
                return infer_bad_shape(in, &next->shape);
            else if (dim_known(b) || (a == WK_DIM_BATCH && b == WK_DIM_ANY))
                shape.dims[i] = b;
        }
    }
    infer_set(in, first->dtype, &shape);
    if (!tracked)
        return CM_OK;
    enum cm_err code = infer_track(in, first->dtype, &shape, &elems);
    for (unsigned k = 0; k < in->node->n_in && code == CM_OK && elems; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (next->n_elems)
            memcpy(&elems[at], next->elems, next->n_elems * sizeof *elems);
        at += next->n_elems;
    }
    return code;
}

enum cm_err wk_transpose_perm(const struct wk_node *node, unsigned rank, struct cm_error *err,
                              unsigned ret_perm[CM_MAX_RANK])
{
    const struct wk_attr *attr = wk_node_attr(node, "perm");
    bool used[CM_MAX_RANK] = {false};
    if (attr && attr->count != rank)
        return wk_node_fail(err, CM_INVALID, node, "perm has %zu entries for %u dimensions",
                            attr->count, rank);
    for (unsigned i = 0; i < rank; i++) {
        int64_t from = attr ? attr->ints[i] : (int64_t)(rank - 1 - i);
        if (from < 0 || from >= rank || used[from])
            return wk_node_fail(err, CM_INVALID, node, "perm is not a permutation");
        used[from] = true;
        ret_perm[i] = (unsigned)from;
    }
    return CM_OK;
}

enum cm_err infer_transpose(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {.rank = x->shape.rank};
    unsigned perm[CM_MAX_RANK];
    enum cm_err code = wk_transpose_perm(in->node, shape.rank, in->err, perm);
    for (unsigned i = 0; i < shape.rank && code == CM_OK; i++)
        shape.dims[i] = x->shape.dims[perm[i]];
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}

enum cm_err infer_expand(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_ints entries;
    struct cm_shape target = {0}, shape;
    enum cm_err code = wk_ints_read(in->node, in->facts, NULL, 1, in->err, &entries);
    if (code != CM_OK)
        return code;
    if (infer_in(in, 1)->dtype != CM_INT64)
        return wk_node_fail(in->err, CM_INVALID, in->node, "the shape must be a vector of INT64");
    if (entries.length > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node,
                            "%lld dimensions, at most %d are supported", (long long)entries.length,
                            CM_MAX_RANK);
    if (!entries.known)
        return infer_later(in, 0, x->dtype,
                           entries.length < 0               ? -1
                           : entries.length > x->shape.rank ? (int)entries.length
                                                            : x->shape.rank);
    target.rank = (uint8_t)entries.length;
    for (unsigned i = 0; i < target.rank; i++)
        if (!infer_dim_of_elem(wk_ints_at(&entries, i), &target.dims[i]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld",
                                (long long)wk_ints_at(&entries, i).v);
    if (!shape_broadcast(&x->shape, &target, &shape))
        return infer_bad_shape(in, &x->shape);
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_tile(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {.rank = x->shape.rank};
    struct wk_ints repeats;
    enum cm_err code = wk_ints_read(in->node, in->facts, NULL, 1, in->err, &repeats);
    if (code != CM_OK)
        return code;
    if (repeats.length >= 0 && repeats.length != x->shape.rank)
        return wk_node_fail(in->err, CM_INVALID, in->node, "%lld repeats for %u dimensions",
                            (long long)repeats.length, x->shape.rank);
    if (!repeats.known)
        return infer_later(in, 0, x->dtype, x->shape.rank);
    for (unsigned i = 0; i < shape.rank; i++) {
        int64_t count;
        if (!infer_dim_of_elem(wk_ints_at(&repeats, i), &count) ||
            !dim_mul(x->shape.dims[i], count, &shape.dims[i]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "repeat %lld is out of range",
                                (long long)wk_ints_at(&repeats, i).v);
    }
    return infer_set(in, x->dtype, &shape);
}

/* ---- Split ----------------------------------------------------------------------------------- */

/* Sizes that the node gives. */
static enum cm_err given_sizes(const struct wk_node *node, const struct wk_ints *split,
                               struct cm_error *err, int64_t *ret_sizes)
{
    if (split->length != node->n_out)
        return wk_node_fail(err, CM_INVALID, node, "split has %lld entries for %u outputs",
                            (long long)split->length, node->n_out);
    for (unsigned k = 0; k < node->n_out; k++)
        if (!infer_dim_of_elem(wk_ints_at(split, k), &ret_sizes[k]) || ret_sizes[k] > WK_MAX_DIM)
            return wk_node_fail(err, CM_INVALID, node, "split %lld is out of range",
                                (long long)wk_ints_at(split, k).v);
    return CM_OK;
}

/* Equal parts of a known dimension; from opset 18 the last may be smaller. */
static enum cm_err equal_sizes(const struct wk_node *node, int64_t dim, struct cm_error *err,
                               int64_t *ret_sizes)
{
    int64_t n = node->n_out, chunk = (dim + n - 1) / n;
    if (node->opset < 18 && dim % n != 0)
        return wk_node_fail(err, CM_INVALID, node, "%lld elements in %u equal parts",
                            (long long)dim, node->n_out);
    for (int64_t k = 0, left = dim; k < n; k++) {
        ret_sizes[k] = left < chunk ? left : chunk;
        left -= ret_sizes[k];
    }
    return CM_OK;
}

enum cm_err wk_split_resolve(const struct wk_node *node, const struct wk_fact *facts,
                             struct cm_error *err, unsigned *ret_axis, int64_t *ret_sizes)
{
    const struct cm_shape *x = &facts[node->in[0]].shape;
    const struct wk_attr *parts = wk_node_attr(node, "num_outputs");
    struct wk_ints split;
    int64_t sum = 0;
    enum cm_err code = wk_ints_read(node, facts, "split", 1, err, &split);
    if (code != CM_OK)
        return code;
    if (!wk_axis(wk_node_int(node, "axis", 0), x->rank, ret_axis))
        return wk_node_fail(err, CM_INVALID, node, "axis is out of range");
    if (parts && (split.given || parts->i != node->n_out))
        return wk_node_fail(err, CM_INVALID, node,
                            "num_outputs must be the number of outputs, without split");
    int64_t dim = x->dims[*ret_axis];
    for (unsigned k = 0; k < node->n_out; k++)
        ret_sizes[k] = node->n_out == 1 ? dim : WK_DIM_ANY;
    if (!split.known)
        return CM_OK;
    if (!split.given)
        return dim_known(dim) ? equal_sizes(node, dim, err, ret_sizes) : CM_OK;
    code = given_sizes(node, &split, err, ret_sizes);
    for (unsigned k = 0; k < node->n_out && code == CM_OK; k++) {
        if (!dim_known(ret_sizes[k]))
            return CM_OK;
        sum += ret_sizes[k];
    }
    if (code == CM_OK && dim_known(dim) && sum != dim)
        return wk_node_fail(err, CM_INVALID, node,
                            "the parts have %lld elements together, not %lld", (long long)sum,
                            (long long)dim);
    return code;
}

enum cm_err infer_split(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = x->shape;
    int64_t sizes[WK_MAX_NODE_IO];
    unsigned axis;
    enum cm_err code = wk_split_resolve(in->node, in->facts, in->err, &axis, sizes);
    for (unsigned k = 0; k < in->node->n_out && code == CM_OK; k++) {
        shape.dims[axis] = sizes[k];
        code = infer_set_out(in, k, x->dtype, &shape);
    }
    return code;
}

/* ---- depth and space ------------------------------------------------------------------------- */

static enum cm_err check_blocks(struct infer *in, int64_t *ret_block)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    *ret_block = wk_node_int(in->node, "blocksize", 0);
    if (*ret_block < 1 || *ret_block > 32768)
        return wk_node_fail(in->err, CM_INVALID, in->node, "blocksize %lld", (long long)*ret_block);
    return x->rank == 4 ? CM_OK : infer_bad_shape(in, x);
}

enum cm_err infer_space_to_depth(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = x->shape;
    int64_t block;
    enum cm_err code = check_blocks(in, &block);
    if (code != CM_OK)
        return code;
    for (unsigned i = 2; i < 4; i++) {
        if (dim_known(shape.dims[i]) && shape.dims[i] % block != 0)
            return infer_bad_shape(in, &x->shape);
        shape.dims[i] = dim_known(shape.dims[i]) ? shape.dims[i] / block : WK_DIM_ANY;
    }
    if (!dim_mul(shape.dims[1], block * block, &shape.dims[1]))
        return infer_bad_shape(in, &x->shape);
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_depth_to_space(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = x->shape;
    int64_t block;
    enum cm_err code = check_blocks(in, &block);
    if (code != CM_OK)
        return code;
    if (dim_known(shape.dims[1]) && shape.dims[1] % (block * block) != 0)
        return infer_bad_shape(in, &x->shape);
    shape.dims[1] = dim_known(shape.dims[1]) ? shape.dims[1] / (block * block) : WK_DIM_ANY;
    for (unsigned i = 2; i < 4; i++)
        if (!dim_mul(shape.dims[i], block, &shape.dims[i]))
            return infer_bad_shape(in, &x->shape);
    return infer_set(in, x->dtype, &shape);
}
