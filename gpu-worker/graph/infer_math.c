/* Shape rules of arithmetic: element-wise, normalisation, softmax, products. See infer.h. */
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

enum cm_err infer_same(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_fact *out = infer_out(in, 0);
    if (out)
        *out = (struct wk_fact){
            .dtype = x->dtype, .shape = x->shape, .n_elems = x->n_elems, .elems = x->elems};
    return CM_OK;
}

enum cm_err infer_compute_unary(struct infer *in)
{
    enum cm_err code = need_float(in, 0);
    return code == CM_OK ? infer_set(in, CM_FP32, &infer_in(in, 0)->shape) : code;
}

enum cm_err infer_clip(struct infer *in)
{
    enum cm_err code = infer_compute_unary(in);
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++) {
        const struct wk_fact *bound = infer_in(in, k);
        if (!bound)
            continue;
        code = need_float(in, k);
        int64_t count;
        if (code == CM_OK && (cm_shape_count(&bound->shape, &count) != CM_OK || count != 1))
            code = wk_node_fail(in->err, CM_INVALID, in->node, "a bound must be one number");
    }
    return code;
}

/* ---- two operands ---------------------------------------------------------------------------- */

static int64_t wrap(enum cm_dtype dtype, uint64_t value)
{
    return dtype == CM_INT32 ? (int32_t)value : (int64_t)value;
}

/* Integer arithmetic as the kernels do it: wrapping, x / 0 is 0. */
static int64_t elem_value(enum wk_op op, enum cm_dtype dtype, int64_t a, int64_t b)
{
    switch (op) {
    case WK_OP_Add:
        return wrap(dtype, (uint64_t)a + (uint64_t)b);
    case WK_OP_Sub:
        return wrap(dtype, (uint64_t)a - (uint64_t)b);
    case WK_OP_Mul:
        return wrap(dtype, (uint64_t)a * (uint64_t)b);
    case WK_OP_Div:
        if (b == 0)
            return 0;
        return b == -1 ? wrap(dtype, -(uint64_t)a) : a / b;
    case WK_OP_Min:
        return a < b ? a : b;
    default:
        CM_ASSERT(op == WK_OP_Max);
        return a > b ? a : b;
    }
}

static bool is_known(struct wk_elem elem, int64_t v)
{
    return elem.kind == WK_ELEM_KNOWN && elem.v == v;
}

static struct wk_elem elem_binary(enum wk_op op, enum cm_dtype dtype, struct wk_elem a,
                                  struct wk_elem b)
{
    struct wk_elem out = {WK_ELEM_ANY, 0};
    if (a.kind == WK_ELEM_KNOWN && b.kind == WK_ELEM_KNOWN) {
        out = (struct wk_elem){WK_ELEM_KNOWN, elem_value(op, dtype, a.v, b.v)};
    } else if ((is_known(b, 1) && (op == WK_OP_Mul || op == WK_OP_Div)) ||
               (is_known(b, 0) && (op == WK_OP_Add || op == WK_OP_Sub))) {
        out = a;
    } else if ((is_known(a, 1) && op == WK_OP_Mul) || (is_known(a, 0) && op == WK_OP_Add)) {
        out = b;
    } else if (a.kind == WK_ELEM_BATCH || a.kind == WK_ELEM_MIXED || b.kind == WK_ELEM_BATCH ||
               b.kind == WK_ELEM_MIXED) {
        out.kind = WK_ELEM_MIXED;
    }
    return out;
}

/* Elements of the result where both operands' are known and line up (equal counts, or one). */
static enum cm_err fold_binary(struct infer *in, const struct wk_fact *a, const struct wk_fact *b,
                               const struct cm_shape *shape)
{
    struct wk_elem *elems;
    int64_t count;
    if (!a->elems || !b->elems || cm_shape_count(shape, &count) != CM_OK ||
        (a->n_elems != 1 && a->n_elems != count) || (b->n_elems != 1 && b->n_elems != count))
        return CM_OK;
    enum cm_err code = infer_track(in, a->dtype, shape, &elems);
    for (int64_t i = 0; code == CM_OK && elems && i < count; i++)
        elems[i] = elem_binary(in->node->op, a->dtype, a->elems[a->n_elems == 1 ? 0 : i],
                               b->elems[b->n_elems == 1 ? 0 : i]);
    return code;
}

enum cm_err infer_binary(struct infer *in)
{
    const struct wk_fact *a = infer_in(in, 0), *b = infer_in(in, 1);
    struct cm_shape shape;
    if (a->dtype != b->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                            cm_dtype_name(a->dtype), cm_dtype_name(b->dtype));
    if (wk_node_attr(in->node, "axis"))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "attribute axis is not supported");
    if (in->node->opset < 7 && !wk_node_int(in->node, "broadcast", 0) &&
        a->shape.rank != b->shape.rank)
        return shapes_differ(in, &a->shape, &b->shape);
    if (!shape_broadcast(&a->shape, &b->shape, &shape))
        return shapes_differ(in, &a->shape, &b->shape);
    enum cm_err code = infer_set(in, a->dtype, &shape);
    if (code == CM_OK && in->node->op != WK_OP_Pow)
        code = fold_binary(in, a, b, &shape);
    return code;
}

enum cm_err infer_variadic(struct infer *in)
{
    const struct wk_fact *first = infer_in(in, 0);
    struct cm_shape shape = first->shape;
    for (unsigned k = 1; k < in->node->n_in; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (!next)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must not be empty", k);
        if (next->dtype != first->dtype)
            return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                                cm_dtype_name(first->dtype), cm_dtype_name(next->dtype));
        if (!shape_broadcast(&shape, &next->shape, &shape))
            return shapes_differ(in, &shape, &next->shape);
    }
    enum cm_err code = infer_set(in, first->dtype, &shape);
    if (code == CM_OK && in->node->n_in == 2 && in->node->op != WK_OP_Sum)
        code = fold_binary(in, first, infer_in(in, 1), &shape);
    return code;
}

/* Two operands of one type -> bool. */
enum cm_err infer_compare(struct infer *in)
{
    const struct wk_fact *a = infer_in(in, 0), *b = infer_in(in, 1);
    struct cm_shape shape;
    if (a->dtype != b->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                            cm_dtype_name(a->dtype), cm_dtype_name(b->dtype));
    if (!shape_broadcast(&a->shape, &b->shape, &shape))
        return shapes_differ(in, &a->shape, &b->shape);
    return infer_set(in, CM_BOOL, &shape);
}

/* One or two bools -> bool. */
enum cm_err infer_logic(struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_in; k++)
        if (infer_in(in, k)->dtype != CM_BOOL)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has type %s, must be BOOL",
                                k, cm_dtype_name(infer_in(in, k)->dtype));
    if (in->node->n_in == 1)
        return infer_set(in, CM_BOOL, &infer_in(in, 0)->shape);
    return infer_compare(in);
}

enum cm_err infer_where(struct infer *in)
{
    const struct wk_fact *choice = infer_in(in, 0), *a = infer_in(in, 1), *b = infer_in(in, 2);
    struct cm_shape shape;
    if (choice->dtype != CM_BOOL || a->dtype != b->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s, %s and %s",
                            cm_dtype_name(choice->dtype), cm_dtype_name(a->dtype),
                            cm_dtype_name(b->dtype));
    if (!shape_broadcast(&a->shape, &b->shape, &shape) ||
        !shape_broadcast(&shape, &choice->shape, &shape))
        return shapes_differ(in, &a->shape, &b->shape);
    return infer_set(in, a->dtype, &shape);
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
