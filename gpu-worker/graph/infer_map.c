/* Shape rules of element-wise operators. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <string.h>

/* ---- element types --------------------------------------------------------------------------- */

#define T(name)  (1u << CM_##name)
#define FLOATS   (T(FP16) | T(BF16) | T(FP32) | T(FP64))
#define SIGNED   (T(INT8) | T(INT16) | T(INT32) | T(INT64))
#define UNSIGNED (T(UINT8) | T(UINT16) | T(UINT32) | T(UINT64))
#define INTEGERS (SIGNED | UNSIGNED)
#define NUMBERS  (FLOATS | INTEGERS)

static const char *types_text(unsigned types)
{
    switch (types) {
    case FLOATS:
        return "a floating-point type";
    case SIGNED | FLOATS:
        return "a signed type";
    case UNSIGNED:
        return "an unsigned integer type";
    case INTEGERS:
        return "an integer type";
    case T(BOOL):
        return "BOOL";
    default:
        return "a number";
    }
}

static enum cm_err need_types(struct infer *in, unsigned k, unsigned types)
{
    enum cm_dtype dtype = infer_in(in, k)->dtype;
    if (!(types >> dtype & 1))
        return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has type %s, must be %s", k,
                            cm_dtype_name(dtype), types_text(types));
    return CM_OK;
}

static enum cm_err types_differ(struct infer *in, unsigned a, unsigned b)
{
    return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                        cm_dtype_name(infer_in(in, a)->dtype),
                        cm_dtype_name(infer_in(in, b)->dtype));
}

static enum cm_err shapes_differ(struct cm_error *err, const struct wk_node *node,
                                 const struct cm_shape *a, const struct cm_shape *b)
{
    char text_a[96], text_b[96];
    return wk_node_fail(err, CM_INVALID, node, "shapes %s and %s do not fit",
                        cm_shape_format(a, text_a, sizeof text_a),
                        cm_shape_format(b, text_b, sizeof text_b));
}

/* ---- one operand ----------------------------------------------------------------------------- */

enum cm_err infer_same(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_fact *out = infer_out(in, 0);
    if (out)
        *out = (struct wk_fact){.dtype = x->dtype,
                                .shape = x->shape,
                                .n_elems = x->n_elems,
                                .elems = x->elems,
                                .data = x->data};
    return CM_OK;
}

/* One operand of these types -> the same type and shape. */
static enum cm_err map_types(struct infer *in, unsigned types)
{
    const struct wk_fact *x = infer_in(in, 0);
    enum cm_err code = need_types(in, 0, types);
    return code == CM_OK ? infer_set(in, x->dtype, &x->shape) : code;
}

enum cm_err infer_map_float(struct infer *in)
{
    return map_types(in, FLOATS);
}

enum cm_err infer_map_signed(struct infer *in)
{
    return map_types(in, SIGNED | FLOATS);
}

enum cm_err infer_map_number(struct infer *in)
{
    return map_types(in, NUMBERS);
}

enum cm_err infer_map_integer(struct infer *in)
{
    return map_types(in, INTEGERS);
}

enum cm_err infer_gelu(struct infer *in)
{
    return map_types(in, FLOATS);
}

enum cm_err infer_celu(struct infer *in)
{
    if (wk_node_float(in->node, "alpha", 1.0f) == 0.0f)
        return wk_node_fail(in->err, CM_INVALID, in->node, "alpha must not be 0");
    return map_types(in, FLOATS);
}

/* IsNaN, IsInf. */
enum cm_err infer_float_test(struct infer *in)
{
    enum cm_err code = need_types(in, 0, FLOATS);
    return code == CM_OK ? infer_set(in, CM_BOOL, &infer_in(in, 0)->shape) : code;
}

/* A bound is a scalar, or one number in another shape, which exporters write. */
static bool may_be_one(const struct cm_shape *shape)
{
    for (unsigned i = 0; i < shape->rank; i++)
        if (dim_known(shape->dims[i]) && shape->dims[i] != 1)
            return false;
    return true;
}

static bool is_one(const struct cm_shape *shape)
{
    for (unsigned i = 0; i < shape->rank; i++)
        if (shape->dims[i] != 1)
            return false;
    return true;
}

enum cm_err infer_clip(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    enum cm_err code = map_types(in, in->node->opset < 11 ? FLOATS : NUMBERS);
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++) {
        const struct wk_fact *bound = infer_in(in, k);
        if (!bound)
            continue;
        if (bound->dtype != x->dtype)
            return types_differ(in, 0, k);
        if (!may_be_one(&bound->shape) || (infer_is_settled(in) && !is_one(&bound->shape)))
            code = wk_node_fail(in->err, CM_INVALID, in->node, "a bound must be one number");
    }
    return code;
}

/* ---- Cast, CastLike -------------------------------------------------------------------------- */

/* Of the integers that shapes are made of, the values are followed. */
static enum cm_err cast_to(struct infer *in, enum cm_dtype to)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_elem *elems;
    enum cm_err code = infer_set(in, to, &x->shape);
    if (code != CM_OK || !x->elems || !infer_is_tracked_type(to))
        return code;
    code = infer_track(in, to, &x->shape, &elems);
    for (unsigned i = 0; code == CM_OK && elems && i < x->n_elems; i++) {
        elems[i] = x->elems[i];
        if (to == CM_INT32)
            elems[i].v = (int32_t)elems[i].v;
    }
    return code;
}

enum cm_err infer_cast(struct infer *in)
{
    int64_t number = wk_node_int(in->node, "to", 0);
    enum cm_dtype to =
        number >= 0 && number <= INT32_MAX ? cm_dtype_from_onnx((int32_t)number) : CM_DTYPE_NONE;
    if (to == CM_DTYPE_NONE)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "to = %lld is not supported",
                            (long long)number);
    return cast_to(in, to);
}

enum cm_err infer_cast_like(struct infer *in)
{
    return cast_to(in, infer_in(in, 1)->dtype);
}

/* ---- two operands ---------------------------------------------------------------------------- */

/* Below opset 7 the second operand keeps its place at the attribute axis, or at the end, and never
 * stretches the first one. */
static enum cm_err old_second_shape(const struct wk_node *node, const struct cm_shape *a,
                                    const struct cm_shape *b, struct cm_error *err,
                                    struct cm_shape *ret)
{
    const struct wk_attr *at = wk_node_attr(node, "axis");
    struct cm_shape both;
    unsigned axis;
    if (!wk_node_int(node, "broadcast", 0))
        return a->rank == b->rank ? CM_OK : shapes_differ(err, node, a, b);
    if (at && b->rank > 0) {
        if (!wk_axis(at->i, a->rank, &axis) || axis + b->rank > a->rank)
            return wk_node_fail(err, CM_INVALID, node,
                                "axis %lld for operands of %u and %u dimensions", (long long)at->i,
                                a->rank, b->rank);
        while (ret->rank < a->rank - axis)
            ret->dims[ret->rank++] = 1;
    }
    if (ret->rank > a->rank || !shape_broadcast(a, ret, &both))
        return shapes_differ(err, node, a, b);
    return CM_OK;
}

/* A slope per channel in PRelu, whose channels are the first operand's second dimension. */
static void old_slope_shape(const struct cm_shape *x, struct cm_shape *slope)
{
    if (slope->rank == 1 && slope->dims[0] != 1)
        while (slope->rank + 1u < x->rank)
            slope->dims[slope->rank++] = 1;
}

enum cm_err wk_second_shape(const struct wk_node *node, const struct cm_shape *a,
                            const struct cm_shape *b, struct cm_error *err, struct cm_shape *ret)
{
    *ret = *b;
    if (node->opset >= 7)
        return CM_OK;
    if (node->op == WK_OP_PRelu)
        old_slope_shape(a, ret);
    else
        return old_second_shape(node, a, b, err, ret);
    return CM_OK;
}

/* Broadcasts inputs 0 and 1 into output 0. */
static enum cm_err broadcast_to(struct infer *in, enum cm_dtype dtype, struct cm_shape *ret_shape)
{
    const struct cm_shape *a = &infer_in(in, 0)->shape, *b = &infer_in(in, 1)->shape;
    struct cm_shape second;
    enum cm_err code = wk_second_shape(in->node, a, b, in->err, &second);
    if (code != CM_OK)
        return code;
    if (!shape_broadcast(a, &second, ret_shape))
        return shapes_differ(in->err, in->node, a, b);
    return infer_set(in, dtype, ret_shape);
}

/* Two operands of one type out of these. */
static enum cm_err need_pair(struct infer *in, unsigned types)
{
    if (infer_in(in, 0)->dtype != infer_in(in, 1)->dtype)
        return types_differ(in, 0, 1);
    return need_types(in, 0, types);
}

static enum cm_err pair_to(struct infer *in, unsigned types, enum cm_dtype dtype)
{
    struct cm_shape shape;
    enum cm_err code = need_pair(in, types);
    return code == CM_OK ? broadcast_to(in, dtype, &shape) : code;
}

/* Two integers -> the same type. */
enum cm_err infer_bitwise(struct infer *in)
{
    return pair_to(in, INTEGERS, infer_in(in, 0)->dtype);
}

enum cm_err infer_bit_shift(struct infer *in)
{
    return pair_to(in, UNSIGNED, infer_in(in, 0)->dtype);
}

enum cm_err infer_mod(struct infer *in)
{
    enum cm_dtype dtype = infer_in(in, 0)->dtype;
    if (!wk_node_int(in->node, "fmod", 0) && FLOATS >> dtype & 1)
        return wk_node_fail(in->err, CM_INVALID, in->node, "fmod must be 1 for type %s",
                            cm_dtype_name(dtype));
    return pair_to(in, NUMBERS, dtype);
}

/* The base's type is the result's; the exponent may have another from opset 12 on. */
enum cm_err infer_pow(struct infer *in)
{
    const struct wk_fact *base = infer_in(in, 0);
    struct cm_shape shape;
    enum cm_err code = need_types(in, 0, SIGNED | FLOATS);
    if (code == CM_OK)
        code = need_types(in, 1, NUMBERS);
    if (code == CM_OK && in->node->opset < 12 && base->dtype != infer_in(in, 1)->dtype)
        code = types_differ(in, 0, 1);
    return code == CM_OK ? broadcast_to(in, base->dtype, &shape) : code;
}

/* The slope is stretched to the operand's shape, never the other way round. */
enum cm_err infer_prelu(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *slope = infer_in(in, 1);
    struct cm_shape shape;
    enum cm_err code = need_pair(in, NUMBERS);
    if (code == CM_OK)
        code = broadcast_to(in, x->dtype, &shape);
    if (code != CM_OK)
        return code;
    bool grown = shape.rank != x->shape.rank;
    for (unsigned i = 0; !grown && i < shape.rank; i++)
        grown = dim_known(x->shape.dims[i]) && shape.dims[i] != x->shape.dims[i];
    if (grown)
        return shapes_differ(in->err, in->node, &x->shape, &slope->shape);
    return infer_set(in, x->dtype, &x->shape);
}

enum cm_err infer_equal(struct infer *in)
{
    return pair_to(in, NUMBERS | T(BOOL), CM_BOOL);
}

enum cm_err infer_compare(struct infer *in)
{
    return pair_to(in, NUMBERS, CM_BOOL);
}

/* One or two bools -> bool. */
enum cm_err infer_logic(struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_in; k++) {
        enum cm_err code = need_types(in, k, T(BOOL));
        if (code != CM_OK)
            return code;
    }
    if (in->node->n_in == 1)
        return infer_set(in, CM_BOOL, &infer_in(in, 0)->shape);
    return pair_to(in, T(BOOL), CM_BOOL);
}

/* ---- arithmetic, and on the values that shapes are made of ----------------------------------- */

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
    enum cm_err code = need_pair(in, NUMBERS);
    if (code == CM_OK)
        code = broadcast_to(in, a->dtype, &shape);
    return code == CM_OK ? fold_binary(in, a, b, &shape) : code;
}

static enum cm_err variadic_types(struct infer *in, unsigned types)
{
    const struct wk_fact *first = infer_in(in, 0);
    struct cm_shape shape = first->shape;
    enum cm_err code = need_types(in, 0, types);
    for (unsigned k = 1; code == CM_OK && k < in->node->n_in; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (!next)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must not be empty", k);
        if (next->dtype != first->dtype)
            return types_differ(in, 0, k);
        if (!shape_broadcast(&shape, &next->shape, &shape))
            return shapes_differ(in->err, in->node, &shape, &next->shape);
    }
    if (code == CM_OK)
        code = infer_set(in, first->dtype, &shape);
    if (code == CM_OK && in->node->n_in == 2 &&
        (in->node->op == WK_OP_Min || in->node->op == WK_OP_Max))
        code = fold_binary(in, first, infer_in(in, 1), &shape);
    return code;
}

enum cm_err infer_variadic(struct infer *in)
{
    return variadic_types(in, NUMBERS);
}

enum cm_err infer_mean(struct infer *in)
{
    return variadic_types(in, FLOATS);
}

/* ---- Where ----------------------------------------------------------------------------------- */

enum cm_err infer_where(struct infer *in)
{
    const struct wk_fact *choice = infer_in(in, 0), *a = infer_in(in, 1), *b = infer_in(in, 2);
    struct cm_shape shape;
    if (choice->dtype != CM_BOOL || a->dtype != b->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s, %s and %s",
                            cm_dtype_name(choice->dtype), cm_dtype_name(a->dtype),
                            cm_dtype_name(b->dtype));
    if (!shape_broadcast(&a->shape, &b->shape, &shape))
        return shapes_differ(in->err, in->node, &a->shape, &b->shape);
    if (!shape_broadcast(&shape, &choice->shape, &shape))
        return shapes_differ(in->err, in->node, &shape, &choice->shape);
    return infer_set(in, a->dtype, &shape);
}
