/* Shape rule of Resize and Upsample: which of scales and sizes is given, for which axes, and the
 * factors that follow. See infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"

#include <math.h>
#include <string.h>

/* The operand that decides the sizes: one list of numbers for the named axes. */
struct target {
    const struct wk_fact *fact; /* NULL: the attribute of Upsample 7 */
    const struct wk_attr *attr;
    bool is_sizes, known;
    int64_t length; /* -1: not known */
};

/* Input k unless it is left out or empty, which older opsets use to leave it out. */
static const struct wk_fact *non_empty(const struct wk_node *node, const struct wk_fact *facts,
                                       unsigned k)
{
    if (k >= node->n_in || node->in[k] < 0)
        return NULL;
    const struct wk_fact *fact = &facts[node->in[k]];
    return !fact->unranked && fact->shape.rank == 1 && fact->shape.dims[0] == 0 ? NULL : fact;
}

static enum cm_err find_target(const struct wk_node *node, const struct wk_fact *facts,
                               struct cm_error *err, struct target *ret)
{
    bool old = node->op == WK_OP_Upsample || node->opset < 11;
    const struct wk_fact *scales = non_empty(node, facts, old ? 1 : 2);
    const struct wk_fact *sizes = old ? NULL : non_empty(node, facts, 3);
    double number;
    *ret = (struct target){.attr = wk_node_attr(node, "scales")};
    if (ret->attr) {
        ret->known = true;
        ret->length = (int64_t)ret->attr->count;
        return CM_OK;
    }
    if (!scales == !sizes && !(scales && !dim_known(scales->shape.dims[0])))
        return wk_node_fail(err, CM_INVALID, node, "exactly one of scales and sizes must be given");
    ret->is_sizes = !scales;
    ret->fact = scales ? scales : sizes;
    if (ret->fact->shape.rank != 1 || (scales && scales->dtype != CM_FP32) ||
        (sizes && sizes->dtype != CM_INT64))
        return wk_node_fail(err, CM_INVALID, node,
                            "scales must be a vector of FP32 and sizes one of INT64");
    ret->length = dim_known(ret->fact->shape.dims[0]) ? ret->fact->shape.dims[0] : -1;
    ret->known = ret->length > 0 &&
                 (ret->is_sizes ? ret->fact->elems != NULL : wk_fact_number(ret->fact, 0, &number));
    return CM_OK;
}

/* The axes that scales, sizes and roi speak of; all by default. */
static enum cm_err find_axes(const struct wk_node *node, unsigned rank, struct cm_error *err,
                             unsigned *ret_n, unsigned ret_axes[CM_MAX_RANK])
{
    const struct wk_attr *attr = wk_node_attr(node, "axes");
    bool used[CM_MAX_RANK] = {false};
    *ret_n = attr ? (unsigned)attr->count : rank;
    if (attr && attr->count > rank)
        return wk_node_fail(err, CM_INVALID, node, "axes are out of range or repeated");
    for (unsigned i = 0; i < *ret_n; i++) {
        if (!wk_axis(attr ? attr->ints[i] : (int64_t)i, rank, &ret_axes[i]) || used[ret_axes[i]])
            return wk_node_fail(err, CM_INVALID, node, "axes are out of range or repeated");
        used[ret_axes[i]] = true;
    }
    return CM_OK;
}

static enum cm_err scale_axis(const struct wk_node *node, const struct target *target, unsigned i,
                              int64_t dim, struct cm_error *err, double *ret_scale,
                              int64_t *ret_out)
{
    double scale = 0;
    if (target->attr)
        scale = target->attr->floats[i];
    else if (!wk_fact_number(target->fact, i, &scale))
        return wk_node_fail(err, CM_UNSUPPORTED, node, "scales are not known");
    if (!(scale > 0) || isinf(scale) || (node->op == WK_OP_Upsample && scale < 1))
        return wk_node_fail(err, CM_INVALID, node, "scale %g is out of range", scale);
    *ret_scale = scale;
    *ret_out = scale == 1 ? dim : WK_DIM_ANY;
    if (scale == 1 || !dim_known(dim))
        return CM_OK;
    /* The standard multiplies in single precision. */
    double out = floor((double)((float)dim * (float)scale));
    if (out > (double)WK_MAX_DIM)
        return wk_node_fail(err, CM_LIMIT, node, "scale %g of %lld elements", scale,
                            (long long)dim);
    *ret_out = (int64_t)out;
    return CM_OK;
}

static enum cm_err size_axis(const struct wk_node *node, const struct target *target, unsigned i,
                             int64_t dim, struct cm_error *err, double *ret_scale, int64_t *ret_out)
{
    struct wk_elem size = target->fact->elems[i];
    if (!infer_dim_of_elem(size, ret_out) || *ret_out > WK_MAX_DIM ||
        (dim == 0 && dim_known(*ret_out) && *ret_out != 0))
        return wk_node_fail(err, CM_INVALID, node, "size %lld of %lld elements", (long long)size.v,
                            (long long)dim);
    *ret_scale = dim_known(dim) && dim_known(*ret_out) && dim ? (double)*ret_out / (double)dim : 1;
    return CM_OK;
}

/* One factor for all axes, the smallest or the largest, and sizes rounded to it. */
static enum cm_err keep_aspect(const struct wk_node *node, const struct cm_shape *x, unsigned n,
                               const unsigned *axes, struct cm_error *err, struct wk_resize *r)
{
    const char *policy = wk_node_string(node, "keep_aspect_ratio_policy", "stretch");
    bool larger = strcmp(policy, "not_smaller") == 0;
    if (strcmp(policy, "stretch") == 0)
        return CM_OK;
    double factor = 0;
    for (unsigned i = 0; i < n; i++) {
        if (!dim_known(r->out[axes[i]]) || !dim_known(x->dims[axes[i]])) {
            for (unsigned k = 0; k < n; k++)
                r->out[axes[k]] = WK_DIM_ANY;
            return CM_OK;
        }
        double scale = r->scale[axes[i]];
        if (i == 0 || (larger ? scale > factor : scale < factor))
            factor = scale;
    }
    for (unsigned i = 0; i < n; i++) {
        double out = floor(factor * (double)x->dims[axes[i]] + 0.5);
        if (out > (double)WK_MAX_DIM || factor <= 0)
            return wk_node_fail(err, CM_LIMIT, node, "sizes are out of range");
        r->scale[axes[i]] = factor;
        r->out[axes[i]] = (int64_t)out;
    }
    return CM_OK;
}

static enum cm_err read_roi(const struct wk_node *node, const struct wk_fact *facts, unsigned n,
                            const unsigned *axes, struct cm_error *err, struct wk_resize *r)
{
    const char *mode = wk_node_string(node, "coordinate_transformation_mode", "half_pixel");
    const struct wk_fact *roi = non_empty(node, facts, 1);
    if (strcmp(mode, "tf_crop_and_resize") != 0)
        return CM_OK;
    if (!roi || roi->shape.rank != 1 ||
        (dim_known(roi->shape.dims[0]) && roi->shape.dims[0] != 2 * (int64_t)n))
        return wk_node_fail(err, CM_INVALID, node, "roi must have %u entries", 2 * n);
    for (unsigned i = 0; i < n; i++) {
        if (!wk_fact_number(roi, i, &r->roi_start[axes[i]]) ||
            !wk_fact_number(roi, n + i, &r->roi_end[axes[i]]))
            return CM_OK; /* not known yet; the shape does not depend on it */
        if (!isfinite(r->roi_start[axes[i]]) || !isfinite(r->roi_end[axes[i]]))
            return wk_node_fail(err, CM_INVALID, node, "roi is not finite");
    }
    return CM_OK;
}

enum cm_err wk_resize_resolve(const struct wk_node *node, const struct wk_fact *facts,
                              struct cm_error *err, struct wk_resize *ret)
{
    const struct cm_shape *x = &facts[node->in[0]].shape;
    const char *mode = wk_node_string(node, "mode", "nearest");
    struct target target;
    unsigned n, axes[CM_MAX_RANK];
    enum cm_err code = find_target(node, facts, err, &target);
    if (code == CM_OK)
        code = find_axes(node, x->rank, err, &n, axes);
    if (code != CM_OK)
        return code;
    ret->mode = strcmp(mode, "nearest") == 0 ? WK_RESIZE_NEAREST
                : strcmp(mode, "cubic") == 0 ? WK_RESIZE_CUBIC
                                             : WK_RESIZE_LINEAR;
    if (target.length >= 0 && target.length != n)
        return wk_node_fail(err, CM_INVALID, node, "%lld scales or sizes for %u axes",
                            (long long)target.length, n);
    for (unsigned i = 0; i < x->rank; i++) {
        ret->scale[i] = ret->roi_end[i] = 1;
        ret->roi_start[i] = 0;
        ret->out[i] = x->dims[i];
    }
    for (unsigned i = 0; i < n && code == CM_OK; i++) {
        unsigned a = axes[i];
        if (!target.known)
            ret->out[a] = WK_DIM_ANY;
        else if (target.is_sizes)
            code = size_axis(node, &target, i, x->dims[a], err, &ret->scale[a], &ret->out[a]);
        else
            code = scale_axis(node, &target, i, x->dims[a], err, &ret->scale[a], &ret->out[a]);
    }
    ret->exact =
        target.is_sizes &&
        strcmp(wk_node_string(node, "keep_aspect_ratio_policy", "stretch"), "stretch") == 0;
    if (code == CM_OK && target.known && target.is_sizes)
        code = keep_aspect(node, x, n, axes, err, ret);
    return code == CM_OK ? read_roi(node, facts, n, axes, err, ret) : code;
}

static enum cm_err check_resize(struct infer *in)
{
    const char *mode = wk_node_string(in->node, "mode", "nearest");
    bool nearest = strcmp(mode, "nearest") == 0;
    if (nearest && wk_node_int(in->node, "antialias", 0))
        return wk_node_fail(in->err, CM_INVALID, in->node, "antialias is for linear and cubic");
    if (!nearest && infer_in(in, 0)->dtype == CM_BOOL)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "not supported for BOOL");
    return CM_OK;
}

enum cm_err infer_resize(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {.rank = x->shape.rank};
    struct wk_resize resize;
    enum cm_err code = check_resize(in);
    if (code == CM_OK)
        code = wk_resize_resolve(in->node, in->facts, in->err, &resize);
    if (code != CM_OK)
        return code;
    memcpy(shape.dims, resize.out, sizeof shape.dims);
    return infer_set(in, x->dtype, &shape);
}
