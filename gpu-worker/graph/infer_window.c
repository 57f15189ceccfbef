/* Shape rules of what slides: convolution, pooling. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <string.h>

enum { MAX_WINDOW = 1 << 20 /* of any kernel, stride, dilation or pad */ };

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

/* What the windows cover in one dimension, at most 2^31 or so where the product is formed. */
static double padded_extent(const struct wk_window *w, unsigned d)
{
    double extent = (double)((w->kernel[d] - 1) * w->dilation[d] + 1);
    double padded = dim_known(w->in[d]) ? (double)(w->in[d] + w->pad_begin[d] + w->pad_end[d]) : 1;
    return extent > padded ? extent : padded;
}

enum cm_err wk_window_resolve(const struct wk_node *node, const struct cm_shape *x,
                              const int64_t *kernel, struct cm_error *err,
                              struct wk_window *ret_window)
{
    unsigned n = x->rank - 2u, first = 2 - n; /* one dimension is a row: height 1 */
    int64_t pads[4];
    enum auto_pad mode = PAD_NOTSET;
    struct wk_window w = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
    if (x->rank < 3 || x->rank > 4)
        return wk_node_fail(err, CM_UNSUPPORTED, node,
                            "its input has %u dimensions; 3 and 4 are supported", x->rank);
    enum cm_err code = read_auto_pad(node, err, &mode);
    if (code == CM_OK && !kernel && !wk_node_attr(node, "kernel_shape"))
        code = wk_node_fail(err, CM_INVALID, node, "kernel_shape is missing");
    if (code == CM_OK && wk_node_attr(node, "kernel_shape"))
        code = read_list(node, "kernel_shape", n, 1, err, &w.kernel[first]);
    if (code == CM_OK)
        code = read_list(node, "strides", n, 1, err, &w.stride[first]);
    if (code == CM_OK)
        code = read_list(node, "dilations", n, 1, err, &w.dilation[first]);
    if (code == CM_OK)
        code = read_list(node, "pads", 2 * (size_t)n, 0, err, pads);
    for (unsigned i = 0; i < n && code == CM_OK; i++) {
        unsigned d = first + i;
        w.in[d] = x->dims[2 + i];
        if (mode == PAD_NOTSET) {
            w.pad_begin[d] = pads[i];
            w.pad_end[d] = pads[n + i];
        }
        if (kernel) {
            if (wk_node_attr(node, "kernel_shape") && w.kernel[d] != kernel[i])
                return wk_node_fail(err, CM_INVALID, node,
                                    "kernel_shape says %lld, the weights have %lld",
                                    (long long)w.kernel[d], (long long)kernel[i]);
            w.kernel[d] = kernel[i];
            if (kernel[i] < 1 || kernel[i] > MAX_WINDOW)
                return wk_node_fail(err, CM_INVALID, node, "the weights have a kernel of size %lld",
                                    (long long)kernel[i]);
        }
        code = resolve_dim(node, mode, d, err, &w);
    }
    /* Kernels may copy a padded plane; strange windows must not make that overflow. */
    if (code == CM_OK && padded_extent(&w, 0) * padded_extent(&w, 1) > MAX_PLANE)
        code = wk_node_fail(err, CM_LIMIT, node, "its padded input is too large");
    if (code == CM_OK)
        *ret_window = w;
    return code;
}

static enum cm_err need_float(struct infer *in, unsigned k)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (fact && fact->dtype != CM_FP32)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input %u has type %s; only FP32 is supported", k,
                            cm_dtype_name(fact->dtype));
    return CM_OK;
}

static enum cm_err set_window_output(struct infer *in, const struct cm_shape *x, int64_t channels,
                                     const struct wk_window *w)
{
    struct cm_shape shape = *x;
    shape.dims[1] = channels;
    for (unsigned i = 2; i < shape.rank; i++)
        shape.dims[i] = w->out[i + 2 - shape.rank];
    return infer_set(in, CM_FP32, &shape);
}

static enum cm_err check_conv_channels(struct infer *in, const struct cm_shape *x,
                                       const struct cm_shape *w, int64_t group)
{
    const struct wk_fact *bias = infer_in(in, 2);
    char text_x[96], text_w[96];
    int64_t needed;
    /* Kernels loop over the groups: there are no more than weights. */
    bool fits = group >= 1 && w->dims[0] >= group && w->dims[0] % group == 0 &&
                dim_known(w->dims[1]) && dim_mul(w->dims[1], group, &needed) &&
                (!dim_known(x->dims[1]) || x->dims[1] == needed);
    if (!fits)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "input %s does not fit weights %s with group %lld",
                            cm_shape_format(x, text_x, sizeof text_x),
                            cm_shape_format(w, text_w, sizeof text_w), (long long)group);
    if (bias && (bias->shape.rank != 1 || bias->shape.dims[0] != w->dims[0]))
        return wk_node_fail(in->err, CM_INVALID, in->node, "bias %s does not fit weights %s",
                            cm_shape_format(&bias->shape, text_x, sizeof text_x),
                            cm_shape_format(w, text_w, sizeof text_w));
    return CM_OK;
}

enum cm_err infer_conv(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape, *w = &infer_in(in, 1)->shape;
    struct wk_window window;
    for (unsigned k = 0; k < 3; k++) {
        enum cm_err code = need_float(in, k);
        if (code != CM_OK)
            return code;
    }
    if (x->rank < 3 || x->rank > 4 || w->rank != x->rank)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "input has %u and weights have %u dimensions; 3 and 4 are supported",
                            x->rank, w->rank);
    for (unsigned i = 0; i < w->rank; i++)
        if (!dim_known(w->dims[i]))
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                                "weights with a free dimension are not supported");
    enum cm_err code = check_conv_channels(in, x, w, wk_node_int(in->node, "group", 1));
    if (code == CM_OK)
        code = wk_window_resolve(in->node, x, &w->dims[2], in->err, &window);
    return code == CM_OK ? set_window_output(in, x, w->dims[0], &window) : code;
}

enum cm_err infer_pool(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    struct wk_window window;
    enum cm_err code = need_float(in, 0);
    if (code == CM_OK && infer_out(in, 1))
        code =
            wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "the indices output is not supported");
    if (code == CM_OK)
        code = wk_window_resolve(in->node, x, NULL, in->err, &window);
    return code == CM_OK ? set_window_output(in, x, x->dims[1], &window) : code;
}
