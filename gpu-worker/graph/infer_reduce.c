/* Shape rules of what reduces, ranks or scores: reductions, softmax, losses, sorting. See infer.h.
 */
#include "gpu-worker/graph/infer_reduce.h"

#include "common/check.h"

#include <string.h>

/* ---- what the rules of this family share ----------------------------------------------------- */

enum cm_err infer_need(const struct infer *in, unsigned k, unsigned types)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (fact && !(types >> fact->dtype & 1))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input %u has type %s, which it does not take", k,
                            cm_dtype_name(fact->dtype));
    return CM_OK;
}

enum cm_err infer_need_same(const struct infer *in, unsigned k)
{
    const struct wk_fact *first = infer_in(in, 0), *fact = infer_in(in, k);
    if (fact && fact->dtype != first->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                            cm_dtype_name(first->dtype), cm_dtype_name(fact->dtype));
    return CM_OK;
}

enum cm_err infer_shapes_differ(const struct infer *in, const struct cm_shape *a,
                                const struct cm_shape *b)
{
    char text_a[96], text_b[96];
    return wk_node_fail(in->err, CM_INVALID, in->node, "shapes %s and %s do not fit",
                        cm_shape_format(a, text_a, sizeof text_a),
                        cm_shape_format(b, text_b, sizeof text_b));
}

enum cm_err infer_need_vector(const struct infer *in, unsigned k, int64_t dim)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (fact && (fact->shape.rank != 1 || !infer_same_dim(fact->shape.dims[0], dim)))
        return infer_shapes_differ(in, &infer_in(in, 0)->shape, &fact->shape);
    return CM_OK;
}

enum cm_err infer_axis(const struct infer *in, int64_t otherwise, unsigned rank, unsigned *ret_axis)
{
    int64_t given = wk_node_int(in->node, "axis", otherwise);
    if (!wk_axis(given, rank, ret_axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)given, rank);
    return CM_OK;
}

/* Input k is one integer (a scalar, or a vector of one). */
static enum cm_err need_one_integer(const struct infer *in, unsigned k, const char *what)
{
    const struct wk_fact *fact = infer_in(in, k);
    int64_t count = 1;
    for (unsigned i = 0; i < fact->shape.rank; i++)
        if (!infer_same_dim(fact->shape.dims[i], 1))
            count = 0;
    if (count != 1 || fact->shape.rank > 1 || !infer_is_tracked_type(fact->dtype))
        return wk_node_fail(in->err, CM_INVALID, in->node, "%s must be one INT32 or INT64", what);
    return CM_OK;
}

/* ---- reductions ------------------------------------------------------------------------------ */

enum cm_err wk_reduce_axes(const struct wk_node *node, const struct wk_fact *facts,
                           struct cm_error *err, bool ret_axes[CM_MAX_RANK])
{
    unsigned rank = facts[node->in[0]].shape.rank, axis;
    const struct wk_attr *attr = wk_node_attr(node, "axes");
    const struct wk_fact *input = node->n_in > 1 && node->in[1] >= 0 ? &facts[node->in[1]] : NULL;
    size_t count = attr ? attr->count : 0;
    if (input && input->shape.rank == 1 && input->shape.dims[0] == 0)
        input = NULL; /* no axes, whatever its contents */
    if (input && !input->elems)
        return wk_node_fail(err, CM_UNSUPPORTED, node, "axes must follow from constants");
    if (input)
        count = input->n_elems;
    /* No axes: all of them, unless the node says that it then reduces over none. */
    bool all = count == 0 && !wk_node_int(node, "noop_with_empty_axes", 0);
    for (unsigned i = 0; i < CM_MAX_RANK; i++)
        ret_axes[i] = all && i < rank;
    for (size_t i = 0; i < count; i++) {
        if (input && input->elems[i].kind != WK_ELEM_KNOWN)
            return wk_node_fail(err, CM_UNSUPPORTED, node, "axes must follow from constants");
        int64_t given = input ? input->elems[i].v : attr->ints[i];
        if (!wk_axis(given, rank, &axis) || ret_axes[axis])
            return wk_node_fail(err, CM_INVALID, node, "axis %lld of %u dimensions",
                                (long long)given, rank);
        ret_axes[axis] = true;
    }
    return CM_OK;
}

static unsigned reduce_types(enum wk_op op)
{
    unsigned types = INFER_FLOATS | INFER_WIDE_INTS;
    if (op == WK_OP_ReduceMax || op == WK_OP_ReduceMin)
        types |= INFER_BYTES | INFER_TYPE(BOOL);
    return types;
}

/* The axes are an operand whose contents are not known yet. */
static bool axes_come_later(const struct infer *in)
{
    const struct wk_fact *axes = infer_in(in, 1);
    if (!axes || (axes->shape.rank == 1 && axes->shape.dims[0] == 0))
        return false;
    for (uint32_t i = 0; axes->elems && i < axes->n_elems; i++)
        if (axes->elems[i].kind != WK_ELEM_KNOWN)
            return true;
    return !axes->elems;
}

/* The number of axes alone gives the rank. */
static enum cm_err reduce_later(struct infer *in, bool keep)
{
    const struct wk_fact *x = infer_in(in, 0), *axes = infer_in(in, 1);
    int64_t count = axes->shape.rank == 1 ? axes->shape.dims[0] : WK_DIM_ANY;
    int rank = keep ? x->shape.rank : -1;
    if (!keep && count > 0 && count <= x->shape.rank)
        rank = (int)(x->shape.rank - count);
    return infer_later(in, 0, x->dtype, rank);
}

enum cm_err infer_reduce(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *input = infer_in(in, 1);
    struct cm_shape shape = {0};
    bool axes[CM_MAX_RANK], keep = wk_node_int(in->node, "keepdims", 1);
    enum cm_err code = infer_need(in, 0, reduce_types(in->node->op));
    if (code == CM_OK && input && (input->dtype != CM_INT64 || input->shape.rank > 1))
        code = wk_node_fail(in->err, CM_INVALID, in->node, "axes must be a vector of INT64");
    if (code == CM_OK && axes_come_later(in))
        return reduce_later(in, keep);
    if (code == CM_OK)
        code = wk_reduce_axes(in->node, in->facts, in->err, axes);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->shape.rank; i++)
        if (!axes[i])
            shape.dims[shape.rank++] = x->shape.dims[i];
        else if (keep)
            shape.dims[shape.rank++] = 1;
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_arg_reduce(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    struct cm_shape shape = {0};
    unsigned axis;
    enum cm_err code = infer_need(in, 0, INFER_NUMBERS);
    if (code == CM_OK)
        code = infer_axis(in, 0, x->rank, &axis);
    if (code != CM_OK)
        return code;
    if (x->dims[axis] == 0)
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %u has no elements", axis);
    for (unsigned i = 0; i < x->rank; i++)
        if (i != axis)
            shape.dims[shape.rank++] = x->dims[i];
        else if (wk_node_int(in->node, "keepdims", 1))
            shape.dims[shape.rank++] = 1;
    return infer_set(in, CM_INT64, &shape);
}

/* The axis is read in the run: it does not decide the shape. */
enum cm_err infer_cum_sum(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *axis = infer_in(in, 1);
    unsigned at;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS | INFER_WIDE_INTS);
    if (code == CM_OK)
        code = need_one_integer(in, 1, "the axis");
    if (code != CM_OK)
        return code;
    if (axis->elems && axis->elems[0].kind == WK_ELEM_KNOWN &&
        !wk_axis(axis->elems[0].v, x->shape.rank, &at))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)axis->elems[0].v, x->shape.rank);
    return infer_set(in, x->dtype, &x->shape);
}

enum cm_err infer_global_pool(struct infer *in)
{
    struct cm_shape shape = infer_in(in, 0)->shape;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code != CM_OK)
        return code;
    if (shape.rank < 3)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "its input has %u dimensions, needs at least 3", shape.rank);
    for (unsigned i = 2; i < shape.rank; i++)
        shape.dims[i] = 1;
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}

/* ---- softmax, losses ------------------------------------------------------------------------- */

enum cm_err infer_softmax(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    unsigned axis, rank = x->shape.rank;
    int64_t given = wk_node_int(in->node, "axis", in->node->opset < 13 ? 1 : -1);
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code != CM_OK)
        return code;
    /* Below opset 13 the axis only cuts the shape in two, so that it may also stand at the end. A
     * scalar is a row of one element. */
    if (!wk_axis(given, rank, &axis) && !(in->node->opset < 13 && given == (int64_t)rank) &&
        !(rank == 0 && (given == 0 || given == -1)))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)given, rank);
    return infer_set(in, x->dtype, &x->shape);
}

/* What both losses check; shape becomes the loss's. Scores are [N, C, d...], labels [N, d...]. */
static enum cm_err loss_shape(struct infer *in, struct cm_shape *ret_shape)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape, *labels = &infer_in(in, 1)->shape;
    const char *reduction = wk_node_string(in->node, "reduction", "mean");
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = infer_need(in, 1, INFER_TYPE(INT32) | INFER_TYPE(INT64));
    if (code == CM_OK)
        code = infer_need_same(in, 2);
    if (code != CM_OK)
        return code;
    if (x->rank < 2 || labels->rank + 1 != x->rank)
        return infer_shapes_differ(in, x, labels);
    for (unsigned i = 0; i < labels->rank; i++)
        if (!infer_same_dim(labels->dims[i], x->dims[i ? i + 1 : 0]))
            return infer_shapes_differ(in, x, labels);
    *ret_shape = *labels;
    for (unsigned i = 0; i < labels->rank; i++)
        if (!dim_known(labels->dims[i]))
            ret_shape->dims[i] = x->dims[i ? i + 1 : 0];
    if (strcmp(reduction, "none") != 0)
        ret_shape->rank = 0;
    return infer_need_vector(in, 2, x->dims[1]);
}

enum cm_err infer_nll_loss(struct infer *in)
{
    struct cm_shape shape;
    enum cm_err code = loss_shape(in, &shape);
    return code == CM_OK ? infer_set(in, infer_in(in, 0)->dtype, &shape) : code;
}

enum cm_err infer_softmax_loss(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape;
    enum cm_err code = loss_shape(in, &shape);
    if (code == CM_OK)
        code = infer_set(in, x->dtype, &shape);
    return code == CM_OK ? infer_set_out(in, 1, x->dtype, &x->shape) : code;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* k as a dimension: known, or WK_DIM_ANY. */
static enum cm_err top_k_count(struct infer *in, int64_t *ret_k)
{
    const struct wk_fact *fact = infer_in(in, 1);
    *ret_k = WK_DIM_ANY;
    if (in->node->opset < 10) {
        if (!wk_node_attr(in->node, "k"))
            return wk_node_fail(in->err, CM_INVALID, in->node, "attribute k is missing");
        *ret_k = wk_node_int(in->node, "k", 0);
    } else {
        enum cm_err code = need_one_integer(in, 1, "k");
        if (code != CM_OK)
            return code;
        if (!fact->elems || fact->elems[0].kind != WK_ELEM_KNOWN)
            return CM_OK;
        *ret_k = fact->elems[0].v;
    }
    if (*ret_k < 0)
        return wk_node_fail(in->err, CM_INVALID, in->node, "k is %lld", (long long)*ret_k);
    return CM_OK;
}

enum cm_err infer_top_k(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = x->shape;
    unsigned axis;
    int64_t k;
    enum cm_err code = infer_need(in, 0, INFER_NUMBERS);
    if (code == CM_OK)
        code = infer_axis(in, -1, shape.rank, &axis);
    if (code == CM_OK)
        code = top_k_count(in, &k);
    if (code != CM_OK)
        return code;
    if (dim_known(k) && dim_known(shape.dims[axis]) && k > shape.dims[axis])
        return wk_node_fail(in->err, CM_INVALID, in->node, "k is %lld, axis %u has %lld elements",
                            (long long)k, axis, (long long)shape.dims[axis]);
    shape.dims[axis] = k;
    (void)infer_set_out(in, 0, x->dtype, &shape);
    return infer_set_out(in, 1, CM_INT64, &shape);
}

/* How many different slices there are is for the data to say. */
enum cm_err infer_unique(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape y = {.rank = 1, .dims = {WK_DIM_ANY}}, found = y, all = y;
    unsigned axis;
    if (wk_node_attr(in->node, "axis")) {
        enum cm_err code = infer_axis(in, 0, x->shape.rank, &axis);
        if (code != CM_OK)
            return code;
        y = x->shape;
        y.dims[axis] = WK_DIM_ANY;
        all.dims[0] = x->shape.dims[axis];
    } else {
        all.dims[0] = 1;
        for (unsigned i = 0; i < x->shape.rank; i++)
            if (!dim_mul(all.dims[0], x->shape.dims[i], &all.dims[0]))
                return wk_node_fail(in->err, CM_LIMIT, in->node, "its input is too large");
    }
    (void)infer_set_out(in, 1, CM_INT64, &found);
    (void)infer_set_out(in, 2, CM_INT64, &all);
    (void)infer_set_out(in, 3, CM_INT64, &found);
    return infer_set_out(in, 0, x->dtype, &y);
}
