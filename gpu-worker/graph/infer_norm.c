/* Shape rules of normalisation. See infer.h. */
#include "gpu-worker/graph/infer_reduce.h"

#include "common/check.h"

static enum cm_err need_rank(const struct infer *in, unsigned least)
{
    if (infer_in(in, 0)->shape.rank < least)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "its input has %u dimensions, needs at least %u",
                            infer_in(in, 0)->shape.rank, least);
    return CM_OK;
}

static enum cm_err set_same(struct infer *in)
{
    return infer_set(in, infer_in(in, 0)->dtype, &infer_in(in, 0)->shape);
}

/* ---- BatchNormalization ---------------------------------------------------------------------- */

bool wk_batch_norm_trains(const struct wk_node *node)
{
    if (node->opset >= 14)
        return wk_node_int(node, "training_mode", 0) != 0;
    if (node->opset < 7)
        return wk_node_int(node, "is_test", 0) == 0;
    /* Between these the number of outputs says it. */
    for (unsigned k = 1; k < node->n_out; k++)
        if (node->out[k] >= 0)
            return true;
    return false;
}

/* A parameter is a vector of the channels, or with spatial = 0 one number per element of a row. */
static enum cm_err norm_parameter(struct infer *in, unsigned k, bool spatial)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape, *p = &infer_in(in, k)->shape;
    /* Packing relies on equal parameters where x's channels are free. */
    const struct cm_shape *first = &infer_in(in, 1)->shape;
    bool fits = p->rank == (spatial ? 1 : x->rank - 1) && p->rank == first->rank;
    for (unsigned i = 0; fits && i < p->rank; i++) {
        int64_t dim = x->rank == 1 ? 1 : x->dims[i + 1];
        fits = infer_same_dim(p->dims[i], dim) && infer_same_dim(p->dims[i], first->dims[i]);
    }
    return fits ? infer_need(in, k, INFER_FLOATS) : infer_shapes_differ(in, x, p);
}

enum cm_err infer_batch_norm(struct infer *in)
{
    bool spatial = wk_node_int(in->node, "spatial", 1) != 0;
    bool trains = wk_batch_norm_trains(in->node);
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = need_rank(in, in->node->opset < 14 || !spatial ? 2 : 1);
    for (unsigned k = 1; k < 5 && code == CM_OK; k++)
        code = norm_parameter(in, k, spatial);
    if (code != CM_OK)
        return code;
    for (unsigned k = 1; k < in->node->n_out; k++) {
        if (infer_out(in, k) && !trains)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "has statistics as outputs without training");
        (void)infer_set_out(in, k, infer_in(in, 3)->dtype, &infer_in(in, 3)->shape);
    }
    return set_same(in);
}

/* ---- the others ------------------------------------------------------------------------------ */

enum cm_err infer_instance_norm(struct infer *in)
{
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = need_rank(in, 3);
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++) {
        code = infer_need_same(in, k);
        if (code == CM_OK)
            code = infer_need_vector(in, k, infer_in(in, 0)->shape.dims[1]);
    }
    return code == CM_OK ? set_same(in) : code;
}

enum cm_err infer_group_norm(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    int64_t groups = wk_node_int(in->node, "num_groups", 0);
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = need_rank(in, 2);
    if (code != CM_OK)
        return code;
    if (groups < 1 || groups > WK_MAX_DIM || (dim_known(x->dims[1]) && x->dims[1] % groups != 0))
        return wk_node_fail(in->err, CM_INVALID, in->node, "%lld groups do not divide the channels",
                            (long long)groups);
    /* One scale for each group, and from opset 21 on one for each channel. */
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++) {
        code = infer_need_same(in, k);
        if (code == CM_OK)
            code = infer_need_vector(in, k, in->node->opset < 21 ? groups : x->dims[1]);
    }
    return code == CM_OK ? set_same(in) : code;
}

/* The type of LayerNormalization's statistics, by ONNX's number. */
static enum cm_err stash_type(const struct infer *in, enum cm_dtype *ret)
{
    int64_t given = wk_node_int(in->node, "stash_type", 1);
    *ret = given == 1 ? CM_FP32 : CM_BF16;
    if (given != 1 && given != 16)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "stash_type must be 1 (FP32) or 16 (BF16)");
    return CM_OK;
}

enum cm_err infer_layer_norm(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape rows = x->shape, both;
    enum cm_dtype stash;
    unsigned axis;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = infer_axis(in, -1, rows.rank, &axis);
    if (code == CM_OK)
        code = stash_type(in, &stash);
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++) {
        const struct wk_fact *operand = infer_in(in, k);
        code = infer_need_same(in, k);
        if (code != CM_OK || !operand)
            continue;
        bool fits =
            shape_broadcast(&x->shape, &operand->shape, &both) && both.rank == x->shape.rank;
        for (unsigned i = 0; fits && i < both.rank; i++)
            fits = infer_same_dim(both.dims[i], x->shape.dims[i]);
        if (!fits)
            code = infer_shapes_differ(in, &x->shape, &operand->shape);
    }
    if (code != CM_OK)
        return code;
    for (unsigned i = axis; i < rows.rank; i++)
        rows.dims[i] = 1;
    (void)infer_set_out(in, 1, stash, &rows);
    (void)infer_set_out(in, 2, stash, &rows);
    return set_same(in);
}

enum cm_err infer_lrn(struct infer *in)
{
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = need_rank(in, 2);
    if (code != CM_OK)
        return code;
    if (!wk_node_attr(in->node, "size"))
        return wk_node_fail(in->err, CM_INVALID, in->node, "size is missing");
    return set_same(in);
}

enum cm_err infer_lp_norm(struct infer *in)
{
    unsigned axis;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = infer_axis(in, -1, infer_in(in, 0)->shape.rank, &axis);
    if (code != CM_OK)
        return code;
    return set_same(in);
}

enum cm_err wk_mean_variance_axes(const struct wk_node *node, unsigned rank, struct cm_error *err,
                                  bool ret_axes[CM_MAX_RANK])
{
    static const int64_t usual[] = {0, 2, 3};
    const struct wk_attr *attr = wk_node_attr(node, "axes");
    const int64_t *given = attr ? attr->ints : usual;
    size_t count = attr ? attr->count : CM_COUNT_OF(usual);
    unsigned axis;
    for (unsigned i = 0; i < CM_MAX_RANK; i++)
        ret_axes[i] = false;
    for (size_t i = 0; i < count; i++) {
        if (!wk_axis(given[i], rank, &axis) || ret_axes[axis])
            return wk_node_fail(err, CM_INVALID, node, "axis %lld of %u dimensions",
                                (long long)given[i], rank);
        ret_axes[axis] = true;
    }
    return CM_OK;
}

enum cm_err infer_mean_variance(struct infer *in)
{
    bool axes[CM_MAX_RANK];
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code == CM_OK)
        code = wk_mean_variance_axes(in->node, infer_in(in, 0)->shape.rank, in->err, axes);
    return code == CM_OK ? set_same(in) : code;
}
