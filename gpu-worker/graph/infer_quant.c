/* Shape rules of quantised operators. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

static bool is_byte(enum cm_dtype dtype)
{
    return dtype == CM_INT8 || dtype == CM_UINT8;
}

static bool is_short_float(enum cm_dtype dtype)
{
    return dtype == CM_FP32 || dtype == CM_FP16 || dtype == CM_BF16;
}

static enum cm_err refuse_type(struct infer *in, unsigned k)
{
    return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "input %u has type %s", k,
                        cm_dtype_name(infer_in(in, k)->dtype));
}

static enum cm_err need_type(struct infer *in, unsigned k, enum cm_dtype dtype)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (fact && fact->dtype != dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has type %s, must have %s", k,
                            cm_dtype_name(fact->dtype), cm_dtype_name(dtype));
    return CM_OK;
}

/* Elements of a shape, -1 while they are not known. */
static int64_t count_of(const struct cm_shape *shape)
{
    int64_t count;
    for (unsigned i = 0; i < shape->rank; i++)
        if (!dim_known(shape->dims[i]))
            return -1;
    return cm_shape_count(shape, &count) == CM_OK ? count : -1;
}

/* Input k is one number, or one for each of `each` (0: only one number). */
static enum cm_err need_count(struct infer *in, unsigned k, int64_t each, const char *what)
{
    const struct wk_fact *fact = infer_in(in, k);
    int64_t count = fact ? count_of(&fact->shape) : 1;
    if (count == 1 || count < 0 || !dim_known(each) || (each > 0 && count == each))
        return CM_OK;
    char text[96];
    return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                        each ? "input %u has shape %s: not one number, nor one for each %s"
                             : "input %u has shape %s: must be one number",
                        k, cm_shape_format(&fact->shape, text, sizeof text), what);
}

/* ---- QuantizeLinear and DequantizeLinear ----------------------------------------------------- */

static enum cm_err scales_differ(const struct wk_node *node, const struct cm_shape *x,
                                 const struct cm_shape *scale, struct cm_error *err)
{
    char text_x[96], text_scale[96];
    return wk_node_fail(err, CM_INVALID, node, "a scale of shape %s does not fit input %s",
                        cm_shape_format(scale, text_scale, sizeof text_scale),
                        cm_shape_format(x, text_x, sizeof text_x));
}

enum cm_err wk_quant_resolve(const struct wk_node *node, const struct cm_shape *x,
                             const struct cm_shape *scale, struct cm_error *err,
                             struct wk_quant *ret)
{
    struct wk_quant q = {.outer = 1, .n = 1, .inner = 1, .block = 1};
    int64_t given = wk_node_int(node, "axis", 1), block = wk_node_int(node, "block_size", 0);
    unsigned axis;
    if (block < 0)
        return wk_node_fail(err, CM_INVALID, node, "block_size is %lld", (long long)block);
    if (block == 0 && count_of(scale) == 1 && scale->rank <= 1) {
        q.per_tensor = true;
        *ret = q;
        return CM_OK;
    }
    if (node->opset < 13)
        return scales_differ(node, x, scale, err);
    if (!wk_axis(given, x->rank, &axis))
        return wk_node_fail(err, CM_INVALID, node, "axis %lld of %u dimensions", (long long)given,
                            x->rank);
    for (unsigned i = 0; i < x->rank; i++)
        *(i < axis ? &q.outer : i == axis ? &q.n : &q.inner) *= x->dims[i];
    q.blocks = q.n;
    if (block == 0 && (scale->rank != 1 || scale->dims[0] != q.n))
        return scales_differ(node, x, scale, err);
    if (block > 0) {
        q.blocked = true;
        q.block = block;
        q.blocks = q.n / block + (q.n % block != 0);
        for (unsigned i = 0; i < x->rank; i++)
            if (scale->rank != x->rank || scale->dims[i] != (i == axis ? q.blocks : x->dims[i]))
                return scales_differ(node, x, scale, err);
    }
    *ret = q;
    return CM_OK;
}

/* Shapes once they are known; the output has the input's. */
static enum cm_err quant_shapes(struct infer *in, enum cm_dtype dtype)
{
    const struct wk_fact *x = infer_in(in, 0), *scale = infer_in(in, 1), *zero = infer_in(in, 2);
    struct wk_quant q;
    if (count_of(&scale->shape) >= 0 &&
        (count_of(&x->shape) >= 0 || (count_of(&scale->shape) == 1 && scale->shape.rank <= 1))) {
        enum cm_err code = wk_quant_resolve(in->node, &x->shape, &scale->shape, in->err, &q);
        if (code != CM_OK)
            return code;
    }
    if (zero && count_of(&zero->shape) >= 0 && count_of(&scale->shape) >= 0 &&
        count_of(&zero->shape) != count_of(&scale->shape))
        return wk_node_fail(in->err, CM_INVALID, in->node, "scale and zero point differ in shape");
    return infer_set(in, dtype, &x->shape);
}

static bool is_quantized(enum cm_dtype dtype)
{
    return is_byte(dtype) || dtype == CM_INT16 || dtype == CM_UINT16;
}

enum cm_err infer_quantize(struct infer *in)
{
    const struct wk_fact *zero = infer_in(in, 2);
    enum cm_dtype from = infer_in(in, 0)->dtype, to = zero ? zero->dtype : CM_UINT8;
    int64_t wanted = wk_node_int(in->node, "output_dtype", 0);
    if (!is_short_float(from) && from != CM_INT32)
        return refuse_type(in, 0);
    if (!is_short_float(infer_in(in, 1)->dtype))
        return refuse_type(in, 1);
    if (wanted != 0) {
        enum cm_dtype dtype = wanted > 0 && wanted < 64 ? cm_dtype_from_onnx((int32_t)wanted) : 0;
        if (zero && zero->dtype != dtype)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "output_dtype %lld is not the zero point's type",
                                (long long)wanted);
        to = dtype;
    }
    if (!is_quantized(to))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "only 8 and 16-bit integers are supported as output");
    return quant_shapes(in, to);
}

enum cm_err infer_dequantize(struct infer *in)
{
    enum cm_dtype from = infer_in(in, 0)->dtype;
    if (!is_quantized(from) && from != CM_INT32)
        return refuse_type(in, 0);
    if (!is_short_float(infer_in(in, 1)->dtype))
        return refuse_type(in, 1);
    enum cm_err code = need_type(in, 2, from);
    return code == CM_OK ? quant_shapes(in, infer_in(in, 1)->dtype) : code;
}

enum cm_err infer_dynamic_quantize(struct infer *in)
{
    const struct cm_shape one = {0};
    enum cm_err code = need_type(in, 0, CM_FP32);
    if (code != CM_OK)
        return code;
    infer_set_out(in, 1, CM_FP32, &one);
    infer_set_out(in, 2, CM_UINT8, &one);
    return infer_set(in, CM_UINT8, &infer_in(in, 0)->shape);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

enum cm_err infer_conv_integer(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *w = infer_in(in, 1);
    if (!is_byte(x->dtype) || !is_byte(w->dtype))
        return refuse_type(in, is_byte(x->dtype) ? 1 : 0);
    enum cm_err code = need_type(in, 2, x->dtype);
    if (code == CM_OK)
        code = need_type(in, 3, w->dtype);
    if (code == CM_OK)
        code = need_count(in, 2, 0, "");
    if (code == CM_OK)
        code = infer_conv_at(in, 1, 4, false, CM_INT32);
    return code == CM_OK ? need_count(in, 3, w->shape.dims[0], "output channel") : code;
}

enum cm_err infer_qlinear_conv(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *w = infer_in(in, 3), *zero = infer_in(in, 7);
    enum cm_err code = CM_OK;
    for (unsigned k = 0; k <= 7 && code == CM_OK; k++) {
        bool scale = k == 1 || k == 4 || k == 6;
        if (!infer_in(in, k))
            code = wk_node_fail(in->err, CM_INVALID, in->node, "input %u is missing", k);
        else if (scale)
            code = need_type(in, k, CM_FP32);
        else if (!is_byte(infer_in(in, k)->dtype))
            code = refuse_type(in, k);
        if (code == CM_OK && k != 0 && k != 3 && k != 4 && k != 5)
            code = need_count(in, k, 0, "");
    }
    if (code == CM_OK)
        code = need_type(in, 2, x->dtype);
    if (code == CM_OK)
        code = need_type(in, 5, w->dtype);
    if (code == CM_OK)
        code = need_type(in, 8, CM_INT32);
    if (code == CM_OK)
        code = infer_conv_at(in, 3, 8, false, zero->dtype);
    for (unsigned k = 4; k <= 5 && code == CM_OK; k++)
        code = need_count(in, k, w->shape.dims[0], "output channel");
    return code;
}

/* ---- products -------------------------------------------------------------------------------- */

/* As MatMul: a vector is a matrix of one row or one column whose dimension then goes away. */
static enum cm_err product_shape(struct infer *in, const struct cm_shape *a,
                                 const struct cm_shape *b, struct cm_shape *ret)
{
    struct cm_shape head_a = *a, head_b = *b;
    char text_a[96], text_b[96];
    bool fits = a->rank >= 1 && b->rank >= 1;
    if (fits) {
        int64_t ka = a->dims[a->rank - 1], kb = b->dims[b->rank >= 2 ? b->rank - 2 : 0];
        fits = !dim_known(ka) || !dim_known(kb) || ka == kb;
        head_a.rank = (uint8_t)(a->rank >= 2 ? a->rank - 2 : 0);
        head_b.rank = (uint8_t)(b->rank >= 2 ? b->rank - 2 : 0);
        fits = fits && shape_broadcast(&head_a, &head_b, ret);
    }
    if (!fits)
        return wk_node_fail(in->err, CM_INVALID, in->node, "shapes %s and %s do not fit",
                            cm_shape_format(a, text_a, sizeof text_a),
                            cm_shape_format(b, text_b, sizeof text_b));
    if (a->rank >= 2)
        ret->dims[ret->rank++] = a->dims[a->rank - 2];
    if (b->rank >= 2)
        ret->dims[ret->rank++] = b->dims[b->rank - 1];
    return CM_OK;
}

/* A at input 0, B at input b; zero_a and zero_b (and scales) one number, or per row and column. */
static enum cm_err infer_product(struct infer *in, unsigned b_at, unsigned zero_a, unsigned zero_b,
                                 enum cm_dtype dtype)
{
    const struct wk_fact *a = infer_in(in, 0), *b = infer_in(in, b_at);
    struct cm_shape shape = {0};
    if (!is_byte(a->dtype) || !is_byte(b->dtype))
        return refuse_type(in, is_byte(a->dtype) ? b_at : 0);
    enum cm_err code = need_type(in, zero_a, a->dtype);
    if (code == CM_OK)
        code = need_type(in, zero_b, b->dtype);
    if (code == CM_OK)
        code = product_shape(in, &a->shape, &b->shape, &shape);
    int64_t rows = code == CM_OK && a->shape.rank >= 2 ? a->shape.dims[a->shape.rank - 2] : 1;
    int64_t columns = code == CM_OK && b->shape.rank >= 2 ? b->shape.dims[b->shape.rank - 1] : 1;
    if (code == CM_OK)
        code = need_count(in, zero_a, rows, "row");
    if (code == CM_OK)
        code = need_count(in, zero_b, columns, "column");
    if (code == CM_OK && dtype != CM_INT32)
        code = need_count(in, 1, rows, "row");
    if (code == CM_OK && dtype != CM_INT32)
        code = need_count(in, 4, columns, "column");
    return code == CM_OK ? infer_set(in, dtype, &shape) : code;
}

enum cm_err infer_matmul_integer(struct infer *in)
{
    return infer_product(in, 1, 2, 3, CM_INT32);
}

enum cm_err infer_qlinear_matmul(struct infer *in)
{
    enum cm_err code = CM_OK;
    for (unsigned k = 0; k <= 7 && code == CM_OK; k++)
        if (!infer_in(in, k))
            code = wk_node_fail(in->err, CM_INVALID, in->node, "input %u is missing", k);
        else if (k == 1 || k == 4 || k == 6)
            code = infer_in(in, k)->dtype == CM_FP32 ? CM_OK : refuse_type(in, k);
    for (unsigned k = 6; k <= 7 && code == CM_OK; k++)
        code = need_count(in, k, 0, "");
    if (code == CM_OK && !is_byte(infer_in(in, 7)->dtype))
        code = refuse_type(in, 7);
    return code == CM_OK ? infer_product(in, 3, 2, 5, infer_in(in, 7)->dtype) : code;
}
