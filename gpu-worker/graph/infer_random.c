/* Shape rules of random numbers, Dropout and EyeLike. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

static bool is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

/* The attribute dtype, or what stands in for it. */
static enum cm_err type_of_output(struct infer *in, enum cm_dtype otherwise, bool need_float,
                                  enum cm_dtype *ret)
{
    const struct wk_attr *attr = wk_node_attr(in->node, "dtype");
    *ret = otherwise;
    if (attr)
        *ret = attr->i >= 0 && attr->i <= INT32_MAX ? cm_dtype_from_onnx((int32_t)attr->i)
                                                    : CM_DTYPE_NONE;
    if (*ret == CM_DTYPE_NONE)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "dtype = %lld is not supported",
                            (long long)attr->i);
    if (need_float && !is_float(*ret))
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "its output has type %s, must be a floating-point type",
                            cm_dtype_name(*ret));
    return CM_OK;
}

static enum cm_err need_float(struct infer *in, unsigned k)
{
    enum cm_dtype dtype = infer_in(in, k)->dtype;
    if (!is_float(dtype))
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "input %u has type %s, must be a floating-point type", k,
                            cm_dtype_name(dtype));
    return CM_OK;
}

/* RandomNormal, RandomUniform: the shape is an attribute. */
enum cm_err infer_random(struct infer *in)
{
    const struct wk_attr *attr = wk_node_attr(in->node, "shape");
    struct cm_shape shape = {0};
    enum cm_dtype dtype;
    if (!attr || attr->count > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the attribute shape is missing or has more than %d dimensions",
                            CM_MAX_RANK);
    shape.rank = (uint8_t)attr->count;
    for (unsigned i = 0; i < shape.rank; i++) {
        shape.dims[i] = attr->ints[i];
        if (shape.dims[i] < 0)
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %u is %lld", i,
                                (long long)shape.dims[i]);
    }
    enum cm_err code = type_of_output(in, CM_FP32, true, &dtype);
    return code == CM_OK ? infer_set(in, dtype, &shape) : code;
}

enum cm_err infer_random_like(struct infer *in)
{
    enum cm_dtype dtype;
    enum cm_err code = type_of_output(in, infer_in(in, 0)->dtype, true, &dtype);
    return code == CM_OK ? infer_set(in, dtype, &infer_in(in, 0)->shape) : code;
}

enum cm_err infer_bernoulli(struct infer *in)
{
    enum cm_dtype dtype;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK)
        code = type_of_output(in, infer_in(in, 0)->dtype, false, &dtype);
    return code == CM_OK ? infer_set(in, dtype, &infer_in(in, 0)->shape) : code;
}

/* Rows of logarithms of shares -> numbers of classes. */
enum cm_err infer_multinomial(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    int64_t samples = wk_node_int(in->node, "sample_size", 1);
    enum cm_dtype dtype;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK)
        code = type_of_output(in, CM_INT32, false, &dtype);
    if (code != CM_OK)
        return code;
    if (dtype != CM_INT32 && dtype != CM_INT64)
        return wk_node_fail(in->err, CM_INVALID, in->node, "dtype must be INT32 or INT64");
    if (x->shape.rank != 2 || samples < 0)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "its input has %u dimensions, must have 2; sample_size is %lld",
                            x->shape.rank, (long long)samples);
    return infer_set(in, dtype, &(struct cm_shape){.rank = 2, .dims = {x->shape.dims[0], samples}});
}

enum cm_err infer_eye_like(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    enum cm_dtype dtype;
    enum cm_err code = type_of_output(in, x->dtype, false, &dtype);
    if (code == CM_OK && x->shape.rank != 2)
        code = wk_node_fail(in->err, CM_INVALID, in->node,
                            "its input has %u dimensions, must have 2", x->shape.rank);
    return code == CM_OK ? infer_set(in, dtype, &x->shape) : code;
}

/* ---- Dropout --------------------------------------------------------------------------------- */

static const struct wk_fact *operand(const struct wk_node *node, const struct wk_fact *facts,
                                     unsigned k)
{
    return k < node->n_in && node->in[k] >= 0 ? &facts[node->in[k]] : NULL;
}

/* Opset 6 marks inference with an attribute, 7 to 11 have nothing else, from 12 on it is what the
 * third operand does not ask for. */
bool wk_dropout_is_identity(const struct wk_node *node, const struct wk_fact *facts)
{
    const struct wk_fact *training = operand(node, facts, 2);
    if (node->opset < 7)
        return wk_node_int(node, "is_test", 0);
    return !training || (training->data && !*(const uint8_t *)training->data);
}

/* ratio and training_mode are scalars, or one number in another shape. */
static enum cm_err check_dropout_operand(struct infer *in, unsigned k)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (!fact)
        return CM_OK;
    for (unsigned i = 0; i < fact->shape.rank; i++)
        if (dim_known(fact->shape.dims[i]) && fact->shape.dims[i] != 1)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must be one number", k);
    if (k == 1)
        return need_float(in, k);
    if (fact->dtype != CM_BOOL)
        return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has type %s, must be BOOL", k,
                            cm_dtype_name(fact->dtype));
    return CM_OK;
}

enum cm_err infer_dropout(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    enum cm_err code = need_float(in, 0);
    for (unsigned k = 1; k <= 2 && code == CM_OK; k++)
        code = check_dropout_operand(in, k);
    if (code == CM_OK)
        code = infer_set_out(in, 0, x->dtype, &x->shape);
    /* The mask became bool with opset 10. */
    if (code == CM_OK)
        code = infer_set_out(in, 1, in->node->opset < 10 ? x->dtype : CM_BOOL, &x->shape);
    return code;
}
