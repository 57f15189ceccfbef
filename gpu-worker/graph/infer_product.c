/* Shape rules of products of matrices. See infer.h. */
#include "gpu-worker/graph/infer_reduce.h"

#include "common/check.h"
#include "gpu-worker/graph/einsum.h"

enum cm_err infer_matmul(struct infer *in)
{
    const struct cm_shape *a = &infer_in(in, 0)->shape, *b = &infer_in(in, 1)->shape;
    struct cm_shape head_a = *a, head_b = *b, shape;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS | INFER_WIDE_INTS);
    if (code == CM_OK)
        code = infer_need_same(in, 1);
    if (code != CM_OK)
        return code;
    if (a->rank == 0 || b->rank == 0)
        return infer_shapes_differ(in, a, b);
    int64_t k_a = a->dims[a->rank - 1];
    int64_t k_b = b->dims[b->rank == 1 ? 0 : b->rank - 2];
    head_a.rank = a->rank > 2 ? (uint8_t)(a->rank - 2) : 0;
    head_b.rank = b->rank > 2 ? (uint8_t)(b->rank - 2) : 0;
    if (!infer_same_dim(k_a, k_b) || !shape_broadcast(&head_a, &head_b, &shape))
        return infer_shapes_differ(in, a, b);
    if (a->rank > 1)
        shape.dims[shape.rank++] = a->dims[a->rank - 2];
    if (b->rank > 1)
        shape.dims[shape.rank++] = b->dims[b->rank - 1];
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}

enum cm_err infer_gemm(struct infer *in)
{
    const struct cm_shape *a = &infer_in(in, 0)->shape, *b = &infer_in(in, 1)->shape;
    const struct wk_fact *c = infer_in(in, 2);
    bool trans_a = wk_node_int(in->node, "transA", 0), trans_b = wk_node_int(in->node, "transB", 0);
    struct cm_shape shape = {.rank = 2}, with_c;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS | INFER_WIDE_INTS);
    for (unsigned k = 1; k < 3 && code == CM_OK; k++)
        code = infer_need_same(in, k);
    if (code != CM_OK)
        return code;
    if (a->rank != 2 || b->rank != 2 || !infer_same_dim(a->dims[!trans_a], b->dims[trans_b]))
        return infer_shapes_differ(in, a, b);
    shape.dims[0] = a->dims[trans_a];
    shape.dims[1] = b->dims[!trans_b];
    if (c) {
        /* C may be broadcast to the result but not the other way. */
        if (!shape_broadcast(&shape, &c->shape, &with_c) || with_c.rank != 2 ||
            !infer_same_dim(with_c.dims[0], shape.dims[0]) ||
            !infer_same_dim(with_c.dims[1], shape.dims[1]))
            return infer_shapes_differ(in, &shape, &c->shape);
    }
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}

enum cm_err infer_einsum(struct infer *in)
{
    struct wk_einsum e;
    struct cm_shape shape = {0};
    enum cm_err code = infer_need(in, 0, INFER_NUMBERS);
    for (unsigned k = 1; k < in->node->n_in && code == CM_OK; k++)
        code = infer_need_same(in, k);
    if (code == CM_OK)
        code = wk_einsum_resolve(in->node, in->facts, in->err, &e);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < e.out_rank; i++)
        shape.dims[shape.rank++] = e.dims[e.out[i]];
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}

enum cm_err infer_det(struct infer *in)
{
    struct cm_shape shape = infer_in(in, 0)->shape;
    enum cm_err code = infer_need(in, 0, INFER_FLOATS);
    if (code != CM_OK)
        return code;
    if (shape.rank < 2 || !infer_same_dim(shape.dims[shape.rank - 1], shape.dims[shape.rank - 2]))
        return wk_node_fail(in->err, CM_INVALID, in->node, "its input is not made of squares");
    shape.rank -= 2;
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}
