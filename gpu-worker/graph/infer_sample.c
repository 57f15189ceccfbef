/* Shape rules of operators that sample images at places which other tensors name (GridSample,
 * AffineGrid, RoiAlign, MaxRoiPool, NonMaxSuppression), of Col2Im and of TfIdfVectorizer. See
 * infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"

#include <math.h>
#include <string.h>

static bool is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

static enum cm_err unsupported_type(struct infer *in, enum cm_dtype dtype)
{
    return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "not supported for %s",
                        cm_dtype_name(dtype));
}

static bool is_dim(int64_t dim, int64_t want)
{
    return !dim_known(dim) || !dim_known(want) || dim == want;
}

/* ---- grids ----------------------------------------------------------------------------------- */

enum cm_err infer_grid_sample(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *grid = infer_in(in, 1);
    bool old = in->node->opset < 20;
    unsigned rank = x->shape.rank;
    struct cm_shape shape = x->shape;
    if (!is_float(grid->dtype))
        return unsupported_type(in, grid->dtype);
    if (x->dtype == CM_BOOL && strcmp(wk_node_string(in->node, "mode", ""), "nearest") != 0)
        return unsupported_type(in, x->dtype);
    if (rank < 3 || (old && rank != 4))
        return infer_bad_shape(in, &x->shape);
    if (grid->shape.rank != rank || !is_dim(grid->shape.dims[0], x->shape.dims[0]) ||
        !is_dim(grid->shape.dims[rank - 1], rank - 2))
        return infer_bad_shape(in, &grid->shape);
    for (unsigned i = 2; i < rank; i++)
        shape.dims[i] = grid->shape.dims[i - 1];
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_affine_grid(struct infer *in)
{
    const struct wk_fact *theta = infer_in(in, 0);
    struct wk_ints size;
    struct cm_shape shape = {0};
    enum cm_err code = wk_ints_read(in->node, in->facts, NULL, 1, in->err, &size);
    if (code != CM_OK)
        return code;
    if (!is_float(theta->dtype))
        return unsupported_type(in, theta->dtype);
    if (theta->shape.rank != 3)
        return infer_bad_shape(in, &theta->shape);
    if (size.length < 0)
        return infer_later(in, 0, theta->dtype, -1);
    if (size.length != 4 && size.length != 5)
        return wk_node_fail(in->err, CM_INVALID, in->node, "size must have 4 or 5 entries");
    int64_t spatial = size.length - 2;
    if (!is_dim(theta->shape.dims[1], spatial) || !is_dim(theta->shape.dims[2], spatial + 1))
        return infer_bad_shape(in, &theta->shape);
    shape.rank = (uint8_t)(spatial + 2);
    shape.dims[0] = theta->shape.dims[0];
    shape.dims[spatial + 1] = spatial;
    for (int64_t i = 0; i < spatial; i++) {
        shape.dims[i + 1] = WK_DIM_ANY;
        if (size.known &&
            !infer_dim_of_elem(wk_ints_at(&size, (size_t)(i + 2)), &shape.dims[i + 1]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "size has a negative entry");
    }
    if (size.known && wk_ints_at(&size, 0).kind == WK_ELEM_KNOWN &&
        !is_dim(shape.dims[0], wk_ints_at(&size, 0).v))
        return infer_bad_shape(in, &theta->shape);
    return infer_set(in, theta->dtype, &shape);
}

/* ---- boxes ----------------------------------------------------------------------------------- */

enum cm_err infer_roi_align(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *rois = infer_in(in, 1), *batch = infer_in(in, 2);
    int64_t height = wk_node_int(in->node, "output_height", 1);
    int64_t width = wk_node_int(in->node, "output_width", 1);
    enum cm_err code = infer_check_indices(in, 2, false);
    if (code != CM_OK)
        return code;
    if (!is_float(x->dtype) || rois->dtype != x->dtype)
        return unsupported_type(in, x->dtype);
    if (x->shape.rank != 4)
        return infer_bad_shape(in, &x->shape);
    if (rois->shape.rank != 2 || !is_dim(rois->shape.dims[1], 4))
        return infer_bad_shape(in, &rois->shape);
    if (batch->shape.rank != 1 || !is_dim(batch->shape.dims[0], rois->shape.dims[0]))
        return infer_bad_shape(in, &batch->shape);
    if (!isfinite(wk_node_float(in->node, "spatial_scale", 1)))
        return wk_node_fail(in->err, CM_INVALID, in->node, "spatial_scale is not finite");
    int64_t count = dim_known(rois->shape.dims[0]) ? rois->shape.dims[0] : batch->shape.dims[0];
    struct cm_shape shape = {4, {count, x->shape.dims[1], height, width}};
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_max_roi_pool(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *rois = infer_in(in, 1);
    const struct wk_attr *pooled = wk_node_attr(in->node, "pooled_shape");
    if (!is_float(x->dtype) || rois->dtype != x->dtype)
        return unsupported_type(in, x->dtype);
    if (x->shape.rank != 4)
        return infer_bad_shape(in, &x->shape);
    if (rois->shape.rank != 2 || !is_dim(rois->shape.dims[1], 5))
        return infer_bad_shape(in, &rois->shape);
    if (!pooled || pooled->count != 2 || pooled->ints[0] < 1 || pooled->ints[1] < 1 ||
        pooled->ints[0] > WK_MAX_DIM || pooled->ints[1] > WK_MAX_DIM ||
        !isfinite(wk_node_float(in->node, "spatial_scale", 1)))
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "pooled_shape or spatial_scale is missing or out of range");
    struct cm_shape shape = {
        4, {rois->shape.dims[0], x->shape.dims[1], pooled->ints[0], pooled->ints[1]}};
    return infer_set(in, x->dtype, &shape);
}

/* Data decides how many boxes are left. */
enum cm_err infer_non_max_suppression(struct infer *in)
{
    const struct wk_fact *boxes = infer_in(in, 0), *scores = infer_in(in, 1);
    struct cm_shape shape = {2, {WK_DIM_ANY, 3}};
    if (boxes->dtype != CM_FP32 || scores->dtype != CM_FP32)
        return unsupported_type(in, boxes->dtype != CM_FP32 ? boxes->dtype : scores->dtype);
    if (boxes->shape.rank != 3 || !is_dim(boxes->shape.dims[2], 4))
        return infer_bad_shape(in, &boxes->shape);
    if (scores->shape.rank != 3 || !is_dim(scores->shape.dims[0], boxes->shape.dims[0]) ||
        !is_dim(scores->shape.dims[2], boxes->shape.dims[1]))
        return infer_bad_shape(in, &scores->shape);
    for (unsigned k = 2; k < 5; k++) {
        enum cm_err code = infer_check_scalar(in, k);
        if (code != CM_OK)
            return code;
        if (infer_in(in, k) && infer_in(in, k)->dtype != (k == 2 ? CM_INT64 : CM_FP32))
            return unsupported_type(in, infer_in(in, k)->dtype);
    }
    return infer_set(in, CM_INT64, &shape);
}

/* ---- Col2Im ---------------------------------------------------------------------------------- */

/* Entry i of a list attribute with one entry per spatial axis. */
static enum cm_err list_entry(const struct wk_node *node, const char *name, unsigned count,
                              unsigned i, int64_t otherwise, int64_t least, struct cm_error *err,
                              int64_t *ret)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    *ret = attr && attr->count == count ? attr->ints[i] : otherwise;
    if ((attr && attr->count != count) || *ret < least || *ret > WK_MAX_DIM)
        return wk_node_fail(err, CM_INVALID, node, "%s does not fit", name);
    return CM_OK;
}

/* Everything of axis i but the image and the block, which are filled. */
static enum cm_err col2im_axis(const struct wk_node *node, unsigned i, struct cm_error *err,
                               struct wk_col2im *c)
{
    int64_t end;
    unsigned n = c->rank;
    enum cm_err code = list_entry(node, "strides", n, i, 1, 1, err, &c->stride[i]);
    if (code == CM_OK)
        code = list_entry(node, "dilations", n, i, 1, 1, err, &c->dilation[i]);
    if (code == CM_OK)
        code = list_entry(node, "pads", 2 * n, i, 0, 0, err, &c->pad_begin[i]);
    if (code == CM_OK)
        code = list_entry(node, "pads", 2 * n, n + i, 0, 0, err, &end);
    if (code != CM_OK)
        return code;
    if (c->block[i] < 1 || c->block[i] > WK_MAX_DIM || c->image[i] < 0 || c->image[i] > WK_MAX_DIM)
        return wk_node_fail(err, CM_INVALID, node, "image_shape or block_shape is out of range");
    int64_t extent = (c->block[i] - 1) * c->dilation[i] + 1;
    int64_t span = c->image[i] + c->pad_begin[i] + end - extent;
    c->positions[i] = span < 0 ? 0 : span / c->stride[i] + 1;
    return CM_OK;
}

enum cm_err wk_col2im_resolve(const struct wk_node *node, const struct wk_fact *facts,
                              struct cm_error *err, struct wk_col2im *ret)
{
    struct wk_ints image, block;
    enum cm_err code = wk_ints_read(node, facts, NULL, 1, err, &image);
    if (code == CM_OK)
        code = wk_ints_read(node, facts, NULL, 2, err, &block);
    if (code != CM_OK)
        return code;
    int64_t n = image.length >= 0 ? image.length : block.length;
    *ret = (struct wk_col2im){0};
    if (n == 0 || n > CM_MAX_RANK - 2 || (block.length >= 0 && block.length != n))
        return wk_node_fail(err, CM_INVALID, node, "image_shape and block_shape do not fit");
    if (!image.known || !block.known)
        return CM_OK;
    ret->rank = (unsigned)n;
    for (unsigned i = 0; i < ret->rank && code == CM_OK; i++) {
        struct wk_elem size = wk_ints_at(&image, i), part = wk_ints_at(&block, i);
        if (size.kind != WK_ELEM_KNOWN || part.kind != WK_ELEM_KNOWN) {
            ret->rank = 0;
            return CM_OK;
        }
        ret->image[i] = size.v;
        ret->block[i] = part.v;
        code = col2im_axis(node, i, err, ret);
    }
    return code;
}

enum cm_err infer_col2im(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *image = infer_in(in, 1);
    struct wk_col2im c;
    struct cm_shape shape = {0};
    int64_t blocks = 1, positions = 1;
    enum cm_err code = wk_col2im_resolve(in->node, in->facts, in->err, &c);
    if (code != CM_OK)
        return code;
    if (x->dtype == CM_BOOL)
        return unsupported_type(in, x->dtype);
    if (x->shape.rank != 3)
        return infer_bad_shape(in, &x->shape);
    if (c.rank == 0)
        return infer_later(in, 0, x->dtype,
                           image->shape.rank == 1 && dim_known(image->shape.dims[0])
                               ? 2 + (int)image->shape.dims[0]
                               : -1);
    shape.rank = (uint8_t)(c.rank + 2);
    shape.dims[0] = x->shape.dims[0];
    for (unsigned i = 0; i < c.rank; i++) {
        shape.dims[i + 2] = c.image[i];
        if (!dim_mul(blocks, c.block[i], &blocks) ||
            !dim_mul(positions, c.positions[i], &positions))
            return infer_bad_shape(in, &x->shape);
    }
    if (!is_dim(x->shape.dims[2], positions) ||
        (dim_known(x->shape.dims[1]) && x->shape.dims[1] % blocks != 0))
        return infer_bad_shape(in, &x->shape);
    shape.dims[1] = dim_known(x->shape.dims[1]) ? x->shape.dims[1] / blocks : WK_DIM_ANY;
    return infer_set(in, x->dtype, &shape);
}

/* ---- TfIdfVectorizer ------------------------------------------------------------------------- */

/* The attributes that must agree: pools are runs of ngrams of length 1, 2, ... that start where
 * ngram_counts says. */
enum cm_err wk_ngrams_resolve(const struct wk_node *node, struct cm_error *err, int64_t *ret_width)
{
    const struct wk_attr *counts = wk_node_attr(node, "ngram_counts");
    const struct wk_attr *indexes = wk_node_attr(node, "ngram_indexes");
    const struct wk_attr *pool = wk_node_attr(node, "pool_int64s");
    const struct wk_attr *weights = wk_node_attr(node, "weights");
    int64_t least = wk_node_int(node, "min_gram_length", 1);
    int64_t most = wk_node_int(node, "max_gram_length", 1);
    int64_t skip = wk_node_int(node, "max_skip_count", 0);
    size_t entries = 0;
    if (!counts || !indexes || !pool || counts->count == 0)
        return wk_node_fail(err, CM_INVALID, node,
                            "ngram_counts, ngram_indexes or pool_int64s is missing");
    if (least < 1 || most < least || most > 4096 || skip < 0 || skip > 4096 ||
        (size_t)most > counts->count)
        return wk_node_fail(err, CM_INVALID, node, "gram lengths are out of range");
    for (size_t i = 0; i < counts->count; i++) {
        int64_t begin = counts->ints[i];
        int64_t end = i + 1 < counts->count ? counts->ints[i + 1] : (int64_t)pool->count;
        if (begin < 0 || end < begin || end > (int64_t)pool->count || (i == 0 && begin != 0) ||
            (size_t)(end - begin) % (i + 1) != 0)
            return wk_node_fail(err, CM_INVALID, node, "ngram_counts do not fit the pool");
        entries += (size_t)(end - begin) / (i + 1);
    }
    if (indexes->count != entries || (weights && weights->count != entries))
        return wk_node_fail(err, CM_INVALID, node, "ngram_indexes or weights do not fit the pool");
    *ret_width = 0;
    for (size_t i = 0; i < entries; i++) {
        if (indexes->ints[i] < 0 || indexes->ints[i] >= (1 << 24))
            return wk_node_fail(err, CM_INVALID, node, "ngram index %lld is out of range",
                                (long long)indexes->ints[i]);
        if (indexes->ints[i] >= *ret_width)
            *ret_width = indexes->ints[i] + 1;
    }
    return CM_OK;
}

enum cm_err infer_tf_idf(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = x->shape;
    int64_t width = 0;
    enum cm_err code = wk_ngrams_resolve(in->node, in->err, &width);
    if (code != CM_OK)
        return code;
    if (x->dtype != CM_INT32 && x->dtype != CM_INT64)
        return unsupported_type(in, x->dtype);
    if (shape.rank != 1 && shape.rank != 2)
        return infer_bad_shape(in, &x->shape);
    shape.dims[shape.rank - 1] = width;
    return infer_set(in, CM_FP32, &shape);
}
