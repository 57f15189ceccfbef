/* Shape rules of signal operators: Fourier transforms, window functions, mel weights. See infer.h.
 */
#include "gpu-worker/graph/infer_priv.h"

#define MAX_LENGTH ((int64_t)1 << 20) /* of a transform */
#define MAX_MELS   4096

static enum cm_err need_float(struct infer *in, unsigned k)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (!fact || fact->dtype == CM_FP32 || fact->dtype == CM_FP16 || fact->dtype == CM_BF16 ||
        fact->dtype == CM_FP64)
        return CM_OK;
    return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                        "input %u has type %s; only floating point is supported", k,
                        cm_dtype_name(fact->dtype));
}

/* Input k, one integer in [least, most], into *ret where it is known by now; otherwise *ret is
 * WK_DIM_ANY. The same where the input is left out. */
static enum cm_err read_int(struct infer *in, unsigned k, const char *what, int64_t least,
                            int64_t most, int64_t *ret)
{
    const struct wk_fact *fact = infer_in(in, k);
    int64_t count;
    *ret = WK_DIM_ANY;
    if (!fact)
        return CM_OK;
    if (!infer_is_tracked_type(fact->dtype))
        return wk_node_fail(in->err, CM_INVALID, in->node, "%s has type %s", what,
                            cm_dtype_name(fact->dtype));
    if (cm_shape_count(&fact->shape, &count) == CM_OK && count != 1)
        return wk_node_fail(in->err, CM_INVALID, in->node, "%s is not one number", what);
    if (!fact->elems || fact->n_elems != 1 || fact->elems[0].kind != WK_ELEM_KNOWN)
        return CM_OK;
    *ret = fact->elems[0].v;
    if (*ret < least || *ret > most)
        return wk_node_fail(in->err, *ret < least ? CM_INVALID : CM_LIMIT, in->node,
                            "%s is %lld, must be %lld to %lld", what, (long long)*ret,
                            (long long)least, (long long)most);
    return CM_OK;
}

/* ---- transforms ------------------------------------------------------------------------------ */

bool wk_dft_axis(const struct wk_node *node, const struct wk_fact *facts, int64_t *ret)
{
    const struct wk_fact *axis = node->n_in > 2 && node->in[2] >= 0 ? &facts[node->in[2]] : NULL;
    if (node->opset < 20)
        *ret = wk_node_int(node, "axis", 1);
    else if (!axis)
        *ret = -2;
    else if (axis->elems && axis->n_elems == 1 && axis->elems[0].kind == WK_ELEM_KNOWN)
        *ret = axis->elems[0].v;
    else
        return false;
    return true;
}

/* Real or complex? The last dimension says it; a one-sided spectrum is of real numbers only. */
static enum cm_err check_parts(struct infer *in, const struct cm_shape *x, bool onesided)
{
    int64_t parts = x->dims[x->rank - 1];
    if (!dim_known(parts))
        return CM_OK;
    if (parts != 1 && parts != 2)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the last dimension is %lld, must be 1 (real) or 2 (complex)",
                            (long long)parts);
    if (onesided && parts == 2)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "onesided needs real numbers, the input is complex");
    return CM_OK;
}

static int64_t bins(int64_t length, bool onesided)
{
    if (!onesided || !dim_known(length))
        return onesided ? WK_DIM_ANY : length;
    return length / 2 + 1;
}

enum cm_err infer_dft(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    bool onesided = wk_node_int(in->node, "onesided", 0) != 0;
    struct cm_shape shape = *x;
    int64_t length, given, unused;
    unsigned axis;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK && x->rank < 2)
        code = wk_node_fail(in->err, CM_INVALID, in->node, "its input has %u dimensions", x->rank);
    if (code == CM_OK)
        code = check_parts(in, x, onesided);
    if (code == CM_OK && onesided && wk_node_int(in->node, "inverse", 0))
        code = wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "onesided and inverse together are not supported");
    if (code == CM_OK)
        code = read_int(in, 1, "dft_length", 1, MAX_LENGTH, &length);
    if (code == CM_OK)
        code = read_int(in, 2, "axis", INT64_MIN, INT64_MAX, &unused);
    if (code != CM_OK)
        return code;
    shape.dims[x->rank - 1] = 2;
    if (!wk_dft_axis(in->node, in->facts, &given)) {
        for (unsigned i = 0; i < x->rank - 1u; i++)
            shape.dims[i] = WK_DIM_ANY;
        return infer_set(in, infer_in(in, 0)->dtype, &shape);
    }
    if (!wk_axis(given, x->rank, &axis) || axis == x->rank - 1u)
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)given, x->rank);
    if (!infer_in(in, 1))
        length = x->dims[axis];
    if (dim_known(length) && (length < 1 || length > MAX_LENGTH))
        return wk_node_fail(in->err, length < 1 ? CM_INVALID : CM_LIMIT, in->node,
                            "a transform of length %lld", (long long)length);
    shape.dims[axis] = bins(length, onesided);
    return infer_set(in, infer_in(in, 0)->dtype, &shape);
}

/* How long a frame is: frame_length, the window, or the whole signal. */
static enum cm_err frame_length(struct infer *in, int64_t *ret)
{
    const struct wk_fact *window = infer_in(in, 2);
    enum cm_err code = read_int(in, 3, "frame_length", 1, MAX_LENGTH, ret);
    if (code != CM_OK)
        return code;
    if (window && window->shape.rank != 1)
        return wk_node_fail(in->err, CM_INVALID, in->node, "the window has %u dimensions",
                            window->shape.rank);
    int64_t size = window ? window->shape.dims[0] : infer_in(in, 0)->shape.dims[1];
    if (!infer_in(in, 3))
        *ret = size;
    else if (window && dim_known(size) && dim_known(*ret) && *ret != size)
        return wk_node_fail(in->err, CM_INVALID, in->node, "the window has %lld, a frame %lld",
                            (long long)size, (long long)*ret);
    if (dim_known(*ret) && (*ret < 1 || *ret > MAX_LENGTH))
        return wk_node_fail(in->err, *ret < 1 ? CM_INVALID : CM_LIMIT, in->node,
                            "a transform of length %lld", (long long)*ret);
    return CM_OK;
}

enum cm_err infer_stft(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *window = infer_in(in, 2);
    bool onesided = wk_node_int(in->node, "onesided", 1) != 0;
    int64_t step, length = 0;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK && window && window->dtype != x->dtype)
        code = wk_node_fail(in->err, CM_INVALID, in->node, "window and signal differ in type");
    if (code == CM_OK && x->shape.rank != 3)
        code = wk_node_fail(in->err, CM_INVALID, in->node,
                            "its signal has %u dimensions, must have 3", x->shape.rank);
    if (code == CM_OK)
        code = check_parts(in, &x->shape, onesided);
    if (code == CM_OK)
        code = read_int(in, 1, "frame_step", 1, WK_MAX_DIM, &step);
    if (code == CM_OK)
        code = frame_length(in, &length);
    if (code != CM_OK)
        return code;
    struct cm_shape shape = {4, {x->shape.dims[0], WK_DIM_ANY, bins(length, onesided), 2}};
    int64_t signal = x->shape.dims[1];
    if (dim_known(signal) && dim_known(length) && signal < length)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the signal has %lld samples, a frame needs %lld", (long long)signal,
                            (long long)length);
    if (dim_known(signal) && dim_known(length) && dim_known(step))
        shape.dims[1] = (signal - length) / step + 1;
    return infer_set(in, x->dtype, &shape);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static enum cm_err output_type(struct infer *in, enum cm_dtype *ret)
{
    int64_t onnx = wk_node_int(in->node, "output_datatype", 1);
    *ret = onnx > 0 && onnx < 64 ? cm_dtype_from_onnx((int32_t)onnx) : CM_DTYPE_NONE;
    if (*ret == CM_DTYPE_NONE || *ret == CM_BOOL)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "output_datatype is %lld",
                            (long long)onnx);
    return CM_OK;
}

enum cm_err infer_signal_window(struct infer *in)
{
    struct cm_shape shape = {.rank = 1};
    enum cm_dtype dtype;
    enum cm_err code = output_type(in, &dtype);
    if (code == CM_OK)
        code = read_int(in, 0, "size", 0, WK_MAX_DIM, &shape.dims[0]);
    return code == CM_OK ? infer_set(in, dtype, &shape) : code;
}

enum cm_err infer_mel_weights(struct infer *in)
{
    struct cm_shape shape = {.rank = 2};
    int64_t length, rate;
    enum cm_dtype dtype;
    enum cm_err code = output_type(in, &dtype);
    if (code == CM_OK)
        code = read_int(in, 0, "num_mel_bins", 1, MAX_MELS, &shape.dims[1]);
    if (code == CM_OK)
        code = read_int(in, 1, "dft_length", 1, WK_MAX_DIM, &length);
    if (code == CM_OK)
        code = read_int(in, 2, "sample_rate", 1, WK_MAX_DIM, &rate);
    for (unsigned k = 3; k <= 4 && code == CM_OK; k++) {
        int64_t count;
        code = need_float(in, k);
        if (code == CM_OK && cm_shape_count(&infer_in(in, k)->shape, &count) == CM_OK && count != 1)
            code = wk_node_fail(in->err, CM_INVALID, in->node, "input %u is not one number", k);
    }
    if (code != CM_OK)
        return code;
    shape.dims[0] = bins(length, true);
    return infer_set(in, dtype, &shape);
}
