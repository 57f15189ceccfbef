/* Shape rules of what slides: convolution, pooling. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <string.h>

enum {
    MAX_WINDOW = 1 << 20, /* of any kernel, stride, dilation or pad */
    MAX_POWER = 64,       /* of LpPool */
};

#define MAX_PLANE 268435456.0 /* floats of a padded plane: 1 GiB */

enum auto_pad { PAD_NOTSET, PAD_VALID, PAD_SAME_UPPER, PAD_SAME_LOWER };

static enum cm_err read_auto_pad(const struct wk_node *node, struct cm_error *err,
                                 enum auto_pad *ret)
{
    static const char *const names[] = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
    const char *text = wk_node_string(node, "auto_pad", "NOTSET");
    for (unsigned i = 0; i < CM_COUNT_OF(names); i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum auto_pad)i;
            return CM_OK;
        }
    char printable[64];
    return wk_node_fail(err, CM_INVALID, node, "auto_pad = \"%s\" is not one of ONNX's",
                        wk_printable(text, printable, sizeof printable));
}

/* An attribute list of n numbers in [least, MAX_WINDOW] into ret[0..n); otherwise the default. */
static enum cm_err read_list(const struct wk_node *node, const char *name, size_t n, int64_t least,
                             struct cm_error *err, int64_t *ret)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    for (size_t i = 0; i < n; i++) {
        ret[i] = attr && attr->count == n ? attr->ints[i] : least;
        if (ret[i] < least || ret[i] > MAX_WINDOW)
            return wk_node_fail(err, least == 0 && ret[i] < 0 ? CM_UNSUPPORTED : CM_INVALID, node,
                                "%s has the value %lld", name, (long long)ret[i]);
    }
    if (attr && attr->count != n)
        return wk_node_fail(err, CM_INVALID, node, "%s has %zu entries, must have %zu", name,
                            attr->count, n);
    return CM_OK;
}

/* Output size and pads of one spatial dimension. */
static enum cm_err resolve_dim(const struct wk_node *node, enum auto_pad mode, unsigned d,
                               struct cm_error *err, struct wk_window *w)
{
    int64_t extent = (w->kernel[d] - 1) * w->dilation[d] + 1;
    if (!dim_known(w->in[d])) {
        w->out[d] = WK_DIM_ANY;
        return CM_OK;
    }
    if (mode == PAD_SAME_UPPER || mode == PAD_SAME_LOWER) {
        w->out[d] = (w->in[d] + w->stride[d] - 1) / w->stride[d];
        int64_t total = (w->out[d] - 1) * w->stride[d] + extent - w->in[d];
        if (total < 0)
            total = 0;
        w->pad_begin[d] = mode == PAD_SAME_UPPER ? total / 2 : total - total / 2;
        w->pad_end[d] = total - w->pad_begin[d];
        return CM_OK;
    }
    int64_t room = w->in[d] + w->pad_begin[d] + w->pad_end[d] - extent;
    if (room < 0)
        return wk_node_fail(err, CM_INVALID, node,
                            "its kernel spans %lld, more than the padded input's %lld",
                            (long long)extent, (long long)room + (long long)extent);
    bool ceil_mode = mode == PAD_NOTSET && wk_node_int(node, "ceil_mode", 0);
    w->out[d] = (room + (ceil_mode ? w->stride[d] - 1 : 0)) / w->stride[d] + 1;
    /* A window that rounding up added must still start inside the input or its left padding. */
    if (ceil_mode && (w->out[d] - 1) * w->stride[d] >= w->in[d] + w->pad_begin[d])
        w->out[d]--;
    return CM_OK;
}

/* What the windows cover in one dimension, at most 2^41 or so. */
static double padded_extent(const struct wk_window *w, unsigned d)
{
    double extent = (double)((w->kernel[d] - 1) * w->dilation[d] + 1);
    double padded = dim_known(w->in[d]) ? (double)(w->in[d] + w->pad_begin[d] + w->pad_end[d]) : 1;
    return extent > padded ? extent : padded;
}

/* Kernels may copy a padded plane; strange windows must not make that overflow. */
static enum cm_err check_plane(const struct wk_node *node, const struct wk_window *w,
                               struct cm_error *err)
{
    double plane = 1;
    for (unsigned d = 0; d < WK_SPATIAL; d++)
        plane *= padded_extent(w, d);
    if (plane > MAX_PLANE)
        return wk_node_fail(err, CM_LIMIT, node, "its padded input is too large");
    return CM_OK;
}

/* kernel_shape, which the weights' dimensions (if there are any) must repeat. */
static enum cm_err read_kernel(const struct wk_node *node, unsigned n, const int64_t *weights,
                               struct cm_error *err, int64_t *ret_kernel)
{
    bool given = wk_node_attr(node, "kernel_shape") != NULL;
    enum cm_err code = CM_OK;
    if (!weights && !given)
        return wk_node_fail(err, CM_INVALID, node, "kernel_shape is missing");
    if (given)
        code = read_list(node, "kernel_shape", n, 1, err, ret_kernel);
    for (unsigned i = 0; weights && i < n && code == CM_OK; i++) {
        if (given && ret_kernel[i] != weights[i])
            return wk_node_fail(err, CM_INVALID, node,
                                "kernel_shape says %lld, the weights have %lld",
                                (long long)ret_kernel[i], (long long)weights[i]);
        if (weights[i] < 1 || weights[i] > MAX_WINDOW)
            return wk_node_fail(err, CM_INVALID, node, "the weights have a kernel of size %lld",
                                (long long)weights[i]);
        ret_kernel[i] = weights[i];
    }
    return code;
}

/* Everything but the output: sizes, kernel, strides, dilations, and pads unless auto_pad rules. */
static enum cm_err read_window(const struct wk_node *node, const struct cm_shape *x,
                               const int64_t *kernel, struct cm_error *err, enum auto_pad *ret_mode,
                               struct wk_window *ret)
{
    struct wk_window w = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0}, {0}};
    int64_t pads[2 * WK_SPATIAL] = {0};
    if (x->rank < 3 || x->rank > 2 + WK_SPATIAL)
        return wk_node_fail(err, CM_UNSUPPORTED, node,
                            "its input has %u dimensions; 3, 4 and 5 are supported", x->rank);
    unsigned n = x->rank - 2u, first = WK_SPATIAL - n;
    enum cm_err code = read_auto_pad(node, err, ret_mode);
    if (code == CM_OK)
        code = read_kernel(node, n, kernel, err, &w.kernel[first]);
    if (code == CM_OK)
        code = read_list(node, "strides", n, 1, err, &w.stride[first]);
    if (code == CM_OK)
        code = read_list(node, "dilations", n, 1, err, &w.dilation[first]);
    if (code == CM_OK)
        code = read_list(node, "pads", 2 * (size_t)n, 0, err, pads);
    for (unsigned i = 0; i < n; i++) {
        w.in[first + i] = x->dims[2 + i];
        if (*ret_mode == PAD_NOTSET) {
            w.pad_begin[first + i] = pads[i];
            w.pad_end[first + i] = pads[n + i];
        }
    }
    *ret = w;
    return code;
}

enum cm_err wk_window_resolve(const struct wk_node *node, const struct cm_shape *x,
                              const int64_t *kernel, struct cm_error *err,
                              struct wk_window *ret_window)
{
    enum auto_pad mode = PAD_NOTSET;
    struct wk_window w;
    enum cm_err code = read_window(node, x, kernel, err, &mode, &w);
    for (unsigned d = WK_SPATIAL + 2u - x->rank; d < WK_SPATIAL && code == CM_OK; d++)
        code = resolve_dim(node, mode, d, err, &w);
    if (code == CM_OK)
        code = check_plane(node, &w, err);
    if (code == CM_OK)
        *ret_window = w;
    return code;
}

/* ---- ConvTranspose --------------------------------------------------------------------------- */

/* Output size and pads of one dimension; wanted is from output_shape, or -1. Pads that follow from
 * a size are never negative: an output that is larger than what the windows reach ends with bias
 * only. Of an odd number SAME_UPPER puts one more at the end, everything else at the beginning. */
static enum cm_err resolve_transposed_dim(const struct wk_node *node, enum auto_pad mode,
                                          unsigned d, int64_t extra, int64_t wanted,
                                          struct cm_error *err, struct wk_window *w)
{
    if (!dim_known(w->in[d])) {
        w->out[d] = wanted >= 0 ? wanted : WK_DIM_ANY;
        return CM_OK;
    }
    int64_t extent = (w->kernel[d] - 1) * w->dilation[d] + 1;
    int64_t full = w->stride[d] * (w->in[d] - 1) + extra + extent;
    if (wanted < 0 && (mode == PAD_SAME_UPPER || mode == PAD_SAME_LOWER))
        wanted = w->in[d] * w->stride[d];
    w->out[d] = full - w->pad_begin[d] - w->pad_end[d];
    if (wanted >= 0) {
        int64_t total = full > wanted ? full - wanted : 0, half = total / 2;
        w->pad_begin[d] = mode == PAD_SAME_UPPER ? half : total - half;
        w->pad_end[d] = total - w->pad_begin[d];
        w->out[d] = wanted;
    }
    if (w->in[d] < 1 || w->out[d] < 1)
        return wk_node_fail(err, CM_INVALID, node, "an input of size %lld gives %lld outputs",
                            (long long)w->in[d], (long long)w->out[d]);
    return CM_OK;
}

enum cm_err wk_transposed_window_resolve(const struct wk_node *node, const struct cm_shape *x,
                                         const int64_t *kernel, struct cm_error *err,
                                         struct wk_window *ret_window)
{
    enum auto_pad mode = PAD_NOTSET;
    const struct wk_attr *sizes = wk_node_attr(node, "output_shape");
    struct wk_window w;
    int64_t extra[WK_SPATIAL] = {0}, wanted[WK_SPATIAL] = {-1, -1, -1};
    enum cm_err code = read_window(node, x, kernel, err, &mode, &w);
    if (code != CM_OK)
        return code;
    unsigned n = x->rank - 2u, first = WK_SPATIAL - n;
    code = read_list(node, "output_padding", n, 0, err, &extra[first]);
    /* Some exporters write all dimensions of the output: the spatial ones are last. */
    if (code == CM_OK && sizes && sizes->count != n && sizes->count != x->rank)
        code = wk_node_fail(err, CM_INVALID, node, "output_shape has %zu entries, must have %u",
                            sizes->count, n);
    for (unsigned i = 0; sizes && i < n && code == CM_OK; i++) {
        wanted[first + i] = sizes->ints[sizes->count - n + i];
        if (wanted[first + i] < 1 || wanted[first + i] > WK_MAX_DIM)
            code = wk_node_fail(err, CM_INVALID, node, "output_shape has the value %lld",
                                (long long)wanted[first + i]);
    }
    for (unsigned d = first; d < WK_SPATIAL && code == CM_OK; d++) {
        if (extra[d] >= w.stride[d] && extra[d] >= w.dilation[d])
            return wk_node_fail(err, CM_INVALID, node,
                                "output_padding %lld is not below the stride or the dilation",
                                (long long)extra[d]);
        code = resolve_transposed_dim(node, mode, d, extra[d], wanted[d], err, &w);
    }
    if (code == CM_OK)
        code = check_plane(node, &w, err);
    if (code == CM_OK)
        *ret_window = w;
    return code;
}

/* ---- attributes alone ------------------------------------------------------------------------ */

enum cm_err wk_window_check(const struct wk_node *node, struct cm_error *err)
{
    static const char *const lists[] = {"kernel_shape", "strides", "dilations", "output_padding"};
    static const int64_t ones[WK_SPATIAL] = {1, 1, 1};
    const struct wk_attr *pads = wk_node_attr(node, "pads");
    bool pools = node->op == WK_OP_AveragePool || node->op == WK_OP_LpPool ||
                 node->op == WK_OP_MaxPool || node->op == WK_OP_MaxUnpool;
    const struct wk_attr *sizes = wk_node_attr(node, "output_shape");
    size_t n = pads && pads->count > 1 ? pads->count / 2 : 1;
    if (sizes) /* which may have two more entries */
        n = sizes->count > WK_SPATIAL ? sizes->count - 2 : sizes->count;
    for (size_t i = CM_COUNT_OF(lists); i-- > 0;) {
        const struct wk_attr *list = wk_node_attr(node, lists[i]);
        n = list ? list->count : n;
    }
    if (n < 1 || n > WK_SPATIAL)
        return wk_node_fail(err, CM_UNSUPPORTED, node,
                            "its attributes speak of %zu spatial dimensions; 1 to %d are supported",
                            n, WK_SPATIAL);
    struct cm_shape x = {.rank = (uint8_t)(2 + n)};
    struct wk_window window;
    for (unsigned i = 0; i < x.rank; i++)
        x.dims[i] = WK_DIM_ANY;
    const int64_t *kernel = pools || wk_node_attr(node, "kernel_shape") ? NULL : ones;
    int64_t group = wk_node_int(node, "group", 1), p = wk_node_int(node, "p", 2);
    if (p < 1 || p > MAX_POWER)
        return wk_node_fail(err, CM_UNSUPPORTED, node, "p = %lld; 1 to %d are supported",
                            (long long)p, MAX_POWER);
    if (group < 1 || group > WK_MAX_DIM)
        return wk_node_fail(err, CM_INVALID, node, "group %lld is out of range", (long long)group);
    return (node->op == WK_OP_ConvTranspose ? wk_transposed_window_resolve
                                            : wk_window_resolve)(node, &x, kernel, err, &window);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static bool is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP32 || dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP64;
}

/* The first n inputs have one and the same floating-point type, or are left out. */
static enum cm_err need_same_float(struct infer *in, unsigned n)
{
    enum cm_dtype dtype = infer_in(in, 0)->dtype;
    if (!is_float(dtype))
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input 0 has type %s; only floating point is supported",
                            cm_dtype_name(dtype));
    for (unsigned k = 1; k < n; k++)
        if (infer_in(in, k) && infer_in(in, k)->dtype != dtype)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "input %u has type %s, input 0 has %s", k,
                                cm_dtype_name(infer_in(in, k)->dtype), cm_dtype_name(dtype));
    return CM_OK;
}

static void window_shape(const struct cm_shape *x, int64_t channels, const struct wk_window *w,
                         struct cm_shape *ret)
{
    *ret = *x;
    ret->dims[1] = channels;
    for (unsigned i = 2; i < ret->rank; i++)
        ret->dims[i] = w->out[i + WK_SPATIAL - ret->rank];
}

static bool dims_known(const struct cm_shape *shape)
{
    for (unsigned i = 0; i < shape->rank; i++)
        if (!dim_known(shape->dims[i]))
            return false;
    return true;
}

static enum cm_err conv_ranks(struct infer *in, const struct cm_shape *x, const struct cm_shape *w)
{
    if (x->rank < 3 || x->rank > 2 + WK_SPATIAL || w->rank != x->rank)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input has %u and weights have %u dimensions; 3, 4 and 5 are supported",
                            x->rank, w->rank);
    return CM_OK;
}

static enum cm_err conv_channels(struct infer *in, const struct cm_shape *x,
                                 const struct cm_shape *w, unsigned bias_k, bool transposed)
{
    const struct wk_fact *bias = infer_in(in, bias_k);
    int64_t group = wk_node_int(in->node, "group", 1), first, second;
    char text_x[96], text_w[96];
    /* Kernels loop over the groups: there are no more than weights. first is what the group divides
     * in the weights' dimension 0, second what dimension 1 makes of all groups. */
    bool fits = group >= 1 && w->dims[0] >= group && w->dims[0] % group == 0 &&
                dim_mul(w->dims[1], group, &second);
    first = w->dims[0];
    int64_t needed = transposed ? first : second, made = transposed ? second : first;
    fits = fits && (!dim_known(x->dims[1]) || x->dims[1] == needed);
    if (!fits)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "input %s does not fit weights %s with group %lld",
                            cm_shape_format(x, text_x, sizeof text_x),
                            cm_shape_format(w, text_w, sizeof text_w), (long long)group);
    if (bias &&
        (bias->shape.rank != 1 || (dim_known(bias->shape.dims[0]) && bias->shape.dims[0] != made)))
        return wk_node_fail(in->err, CM_INVALID, in->node, "bias %s does not fit weights %s",
                            cm_shape_format(&bias->shape, text_x, sizeof text_x),
                            cm_shape_format(w, text_w, sizeof text_w));
    return CM_OK;
}

enum cm_err infer_conv_at(struct infer *in, unsigned w_at, unsigned bias_at, bool transposed,
                          enum cm_dtype dtype)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape, *w = &infer_in(in, w_at)->shape;
    struct wk_window window;
    struct cm_shape shape;
    enum cm_err code = conv_ranks(in, x, w);
    if (code != CM_OK)
        return code;
    if (!dims_known(w)) {
        code = infer_later(in, 0, dtype, x->rank);
        if (infer_out(in, 0))
            infer_out(in, 0)->shape.dims[0] = x->dims[0];
        return code;
    }
    code = conv_channels(in, x, w, bias_at, transposed);
    if (code == CM_OK)
        code = (transposed ? wk_transposed_window_resolve
                           : wk_window_resolve)(in->node, x, &w->dims[2], in->err, &window);
    if (code != CM_OK)
        return code;
    int64_t channels = transposed ? w->dims[1] * wk_node_int(in->node, "group", 1) : w->dims[0];
    window_shape(x, channels, &window, &shape);
    return infer_set(in, dtype, &shape);
}

enum cm_err infer_conv(struct infer *in)
{
    enum cm_err code = need_same_float(in, 3);
    return code == CM_OK ? infer_conv_at(in, 1, 2, false, infer_in(in, 0)->dtype) : code;
}

enum cm_err infer_conv_transpose(struct infer *in)
{
    enum cm_err code = need_same_float(in, 3);
    return code == CM_OK ? infer_conv_at(in, 1, 2, true, infer_in(in, 0)->dtype) : code;
}

enum cm_err infer_pool(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_window window;
    struct cm_shape shape;
    bool small = in->node->op == WK_OP_MaxPool && (x->dtype == CM_INT8 || x->dtype == CM_UINT8);
    enum cm_err code = small ? CM_OK : need_same_float(in, 1);
    if (code == CM_OK)
        code = wk_window_resolve(in->node, &x->shape, NULL, in->err, &window);
    if (code != CM_OK)
        return code;
    window_shape(&x->shape, x->shape.dims[1], &window, &shape);
    infer_set_out(in, 1, CM_INT64, &shape);
    return infer_set(in, x->dtype, &shape);
}

/* ---- MaxUnpool ------------------------------------------------------------------------------- */

/* The size that MaxPool's would have had: (in - 1) * stride - pads + kernel. */
static enum cm_err unpooled_shape(struct infer *in, const struct cm_shape *x, struct cm_shape *ret)
{
    enum auto_pad mode = PAD_NOTSET;
    struct wk_window w;
    enum cm_err code = read_window(in->node, x, NULL, in->err, &mode, &w);
    if (code != CM_OK)
        return code;
    *ret = *x;
    for (unsigned i = 2; i < x->rank; i++) {
        unsigned d = i + WK_SPATIAL - x->rank;
        int64_t *out = &ret->dims[i];
        if (!dim_known(x->dims[i]))
            continue;
        *out = (x->dims[i] - 1) * w.stride[d] - w.pad_begin[d] - w.pad_end[d] + w.kernel[d];
        if (*out < 1)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "an input of size %lld gives %lld outputs", (long long)x->dims[i],
                                (long long)*out);
    }
    return CM_OK;
}

/* output_shape: the whole shape, of which batch and channels must be the input's. */
static enum cm_err given_unpooled_shape(struct infer *in, const struct cm_shape *x,
                                        struct cm_shape *ret)
{
    const struct wk_fact *sizes = infer_in(in, 2);
    if (sizes->dtype != CM_INT64)
        return wk_node_fail(in->err, CM_INVALID, in->node, "output_shape has type %s",
                            cm_dtype_name(sizes->dtype));
    *ret = *x;
    for (unsigned i = 2; i < x->rank; i++)
        ret->dims[i] = WK_DIM_ANY;
    if (!sizes->elems)
        return CM_OK;
    if (sizes->n_elems != x->rank)
        return wk_node_fail(in->err, CM_INVALID, in->node, "output_shape has %u entries, not %u",
                            sizes->n_elems, x->rank);
    for (unsigned i = 0; i < x->rank; i++) {
        if (sizes->elems[i].kind != WK_ELEM_KNOWN)
            continue;
        int64_t size = sizes->elems[i].v;
        if (size < 0 || (i < 2 && dim_known(x->dims[i]) && x->dims[i] != size))
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "output_shape has %lld for dimension %u", (long long)size, i);
        if (i >= 2)
            ret->dims[i] = size;
    }
    return CM_OK;
}

enum cm_err infer_max_unpool(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *indices = infer_in(in, 1);
    struct cm_shape shape, given;
    enum cm_err code = need_same_float(in, 1);
    if (code == CM_OK && indices->dtype != CM_INT64)
        code = wk_node_fail(in->err, CM_INVALID, in->node, "indices have type %s",
                            cm_dtype_name(indices->dtype));
    if (code == CM_OK && dims_known(&x->shape) && dims_known(&indices->shape) &&
        !cm_shape_equal(&x->shape, &indices->shape))
        code = wk_node_fail(in->err, CM_INVALID, in->node, "indices do not have the input's shape");
    if (code == CM_OK)
        code = unpooled_shape(in, &x->shape, &shape);
    if (code == CM_OK && infer_in(in, 2)) {
        code = given_unpooled_shape(in, &x->shape, &given);
        shape = given;
    }
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}
