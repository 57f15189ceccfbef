/* Shape rules of arithmetic along axes: normalisation, softmax, products. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <stdio.h>

static enum cm_err need_float(struct infer *in, unsigned k)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (fact && fact->dtype != CM_FP32)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input %u has type %s; only FP32 is supported", k,
                            cm_dtype_name(fact->dtype));
    return CM_OK;
}

static enum cm_err shapes_differ(struct infer *in, const struct cm_shape *a,
                                 const struct cm_shape *b)
{
    char text_a[96], text_b[96];
    return wk_node_fail(in->err, CM_INVALID, in->node, "shapes %s and %s do not fit",
                        cm_shape_format(a, text_a, sizeof text_a),
                        cm_shape_format(b, text_b, sizeof text_b));
}

static enum cm_err infer_compute_unary(struct infer *in)
{
    enum cm_err code = need_float(in, 0);
    return code == CM_OK ? infer_set(in, CM_FP32, &infer_in(in, 0)->shape) : code;
}

/* a and b must be the same number. */
static bool same_dim(int64_t a, int64_t b)
{
    return a == b || !dim_known(a) || !dim_known(b);
}

/* ---- normalisation, softmax ------------------------------------------------------------------ */

enum cm_err infer_batch_norm(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    enum cm_err code = infer_compute_unary(in);
    if (code != CM_OK)
        return code;
    if (x->shape.rank < 2)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "its input has %u dimensions, needs at least 2", x->shape.rank);
    /* Opset 6 marks inference with is_test; training statistics are not this engine's. */
    if (wk_node_int(in->node, "training_mode", 0) ||
        (in->node->opset < 7 && !wk_node_int(in->node, "is_test", 0)))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "training mode is not supported");
    if (!wk_node_int(in->node, "spatial", 1))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "spatial = 0 is not supported");
    for (unsigned k = 1; k < in->node->n_out; k++)
        if (infer_out(in, k))
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                                "outputs other than the first are not supported");
    for (unsigned k = 1; k < 5 && code == CM_OK; k++) {
        const struct wk_fact *parameter = infer_in(in, k);
        code = need_float(in, k);
        if (code == CM_OK &&
            (parameter->shape.rank != 1 || !same_dim(x->shape.dims[1], parameter->shape.dims[0]) ||
             /* Packing relies on it where x's channels are free. */
             !same_dim(infer_in(in, 1)->shape.dims[0], parameter->shape.dims[0])))
            code = shapes_differ(in, &x->shape, &parameter->shape);
    }
    return code;
}

enum cm_err infer_softmax(struct infer *in)
{
    unsigned axis, rank = infer_in(in, 0)->shape.rank;
    int64_t given = wk_node_int(in->node, "axis", in->node->opset < 13 ? 1 : -1);
    /* Below opset 13 the axis only cuts the shape in two, so that it may also stand at the end. */
    if (!wk_axis(given, rank, &axis) && !(in->node->opset < 13 && given == (int64_t)rank))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)given, rank);
    return infer_compute_unary(in);
}

/* ---- products -------------------------------------------------------------------------------- */

enum cm_err infer_matmul(struct infer *in)
{
    const struct cm_shape *a = &infer_in(in, 0)->shape, *b = &infer_in(in, 1)->shape;
    struct cm_shape head_a = *a, head_b = *b, shape;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK)
        code = need_float(in, 1);
    if (code != CM_OK)
        return code;
    if (a->rank == 0 || b->rank == 0)
        return shapes_differ(in, a, b);
    int64_t k_a = a->dims[a->rank - 1];
    int64_t k_b = b->dims[b->rank == 1 ? 0 : b->rank - 2];
    head_a.rank = a->rank > 2 ? (uint8_t)(a->rank - 2) : 0;
    head_b.rank = b->rank > 2 ? (uint8_t)(b->rank - 2) : 0;
    if (!same_dim(k_a, k_b) || !shape_broadcast(&head_a, &head_b, &shape))
        return shapes_differ(in, a, b);
    if (a->rank > 1)
        shape.dims[shape.rank++] = a->dims[a->rank - 2];
    if (b->rank > 1)
        shape.dims[shape.rank++] = b->dims[b->rank - 1];
    return infer_set(in, CM_FP32, &shape);
}

enum cm_err infer_gemm(struct infer *in)
{
    const struct cm_shape *a = &infer_in(in, 0)->shape, *b = &infer_in(in, 1)->shape;
    const struct wk_fact *c = infer_in(in, 2);
    bool trans_a = wk_node_int(in->node, "transA", 0), trans_b = wk_node_int(in->node, "transB", 0);
    struct cm_shape shape = {.rank = 2}, with_c;
    for (unsigned k = 0; k < 3; k++) {
        enum cm_err code = need_float(in, k);
        if (code != CM_OK)
            return code;
    }
    if (a->rank != 2 || b->rank != 2 || !same_dim(a->dims[!trans_a], b->dims[trans_b]))
        return shapes_differ(in, a, b);
    shape.dims[0] = a->dims[trans_a];
    shape.dims[1] = b->dims[!trans_b];
    if (c) {
        /* C may be broadcast to the result but not the other way. */
        if (!shape_broadcast(&shape, &c->shape, &with_c) || with_c.rank != 2 ||
            !same_dim(with_c.dims[0], shape.dims[0]) || !same_dim(with_c.dims[1], shape.dims[1]))
            return shapes_differ(in, &shape, &c->shape);
    }
    return infer_set(in, CM_FP32, &shape);
}
