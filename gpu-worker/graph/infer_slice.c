/* Shape rules of Slice, Pad and CenterCropPad. See infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"

#include <string.h>

#define FULL_SLICE ((int64_t)INT32_MAX) /* ends from here on mean "to the end" of any batch */

/* The axes that operand k (or the attribute) names, or the first n ones. Where they are not known
 * before the run every axis may be meant: false in *ret_known. */
static enum cm_err read_axes(const struct wk_node *node, const struct wk_fact *facts, unsigned k,
                             unsigned rank, int64_t n, struct cm_error *err, bool *ret_known,
                             unsigned ret_axes[CM_MAX_RANK])
{
    bool used[CM_MAX_RANK] = {false};
    struct wk_ints axes;
    enum cm_err code = wk_ints_read(node, facts, "axes", k, err, &axes);
    if (code != CM_OK)
        return code;
    *ret_known = axes.known;
    if (n > rank || (axes.given && axes.length >= 0 && axes.length != n))
        return wk_node_fail(err, CM_INVALID, node, "the number of axes does not fit");
    for (int64_t i = 0; i < n && axes.known; i++) {
        struct wk_elem which = axes.given ? wk_ints_at(&axes, (size_t)i) : infer_known(i);
        if (which.kind != WK_ELEM_KNOWN || !wk_axis(which.v, rank, &ret_axes[i]) ||
            used[ret_axes[i]])
            return wk_node_fail(err, CM_INVALID, node, "axes are out of range or repeated");
        used[ret_axes[i]] = true;
    }
    return CM_OK;
}

/* ---- Slice ----------------------------------------------------------------------------------- */

/* ONNX's clamping of start and end. dim is known. */
static void clamp_axis(int64_t dim, int64_t start, int64_t end, int64_t step, int64_t *ret_start,
                       int64_t *ret_length)
{
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? dim : dim - 1;
    *ret_start = *ret_length = 0;
    if (dim == 0)
        return;
    start = start < 0 ? (start < -dim ? -1 : start + dim) : start;
    end = end < 0 ? (end < -dim ? -1 : end + dim) : end;
    if (step > 0) {
        start = start < low ? low : start > high ? high : start;
        end = end < low ? low : end > high ? high : end;
    } else {
        start = start < 0 ? 0 : start > high ? high : start;
        end = end < low ? low : end > high ? high : end;
    }
    int64_t span = step > 0 ? end - start : start - end;
    /* Steps near the ends of int64 must not overflow when negated. */
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
    *ret_start = start;
    *ret_length = span <= 0 ? 0 : (int64_t)(((uint64_t)span - 1) / stride + 1);
}

/* The three bound lists of a Slice. */
struct bounds {
    struct wk_ints start, end, step;
};

static enum cm_err read_bounds(const struct wk_node *node, const struct wk_fact *facts,
                               struct cm_error *err, struct bounds *ret)
{
    enum cm_err code = wk_ints_read(node, facts, "starts", 1, err, &ret->start);
    if (code == CM_OK)
        code = wk_ints_read(node, facts, "ends", 2, err, &ret->end);
    if (code == CM_OK)
        code = wk_ints_read(node, facts, NULL, 4, err, &ret->step);
    if (code != CM_OK)
        return code;
    int64_t n = ret->start.length, m = ret->end.length, s = ret->step.length;
    if (!ret->start.given || !ret->end.given || (n >= 0 && m >= 0 && n != m) ||
        (ret->step.given && n >= 0 && s >= 0 && s != n))
        return wk_node_fail(err, CM_INVALID, node, "starts, ends, axes and steps do not fit");
    return CM_OK;
}

/* Axis by axis; a symbolic bound or dimension gives WK_DIM_ANY unless all of it is taken. */
static enum cm_err slice_axis(const struct wk_node *node, int64_t dim, struct wk_elem start,
                              struct wk_elem end, struct wk_elem step, struct cm_error *err,
                              int64_t ret[3])
{
    ret[0] = 0;
    ret[1] = 1;
    ret[2] = WK_DIM_ANY;
    if (step.kind != WK_ELEM_KNOWN)
        return CM_OK;
    if (step.v == 0)
        return wk_node_fail(err, CM_INVALID, node, "step 0");
    ret[1] = step.v;
    if (start.kind != WK_ELEM_KNOWN || end.kind != WK_ELEM_KNOWN)
        return CM_OK;
    if (dim_known(dim))
        clamp_axis(dim, start.v, end.v, step.v, &ret[0], &ret[2]);
    else if (start.v == 0 && step.v == 1 && end.v >= FULL_SLICE)
        ret[2] = dim;
    return CM_OK;
}

enum cm_err wk_slice_resolve(const struct wk_node *node, const struct wk_fact *facts,
                             struct cm_error *err, struct wk_slice *ret_slice)
{
    const struct cm_shape *x = &facts[node->in[0]].shape;
    struct bounds b;
    unsigned axes[CM_MAX_RANK];
    bool known;
    enum cm_err code = read_bounds(node, facts, err, &b);
    if (code != CM_OK)
        return code;
    int64_t n = b.start.length >= 0 ? b.start.length : b.end.length;
    code = read_axes(node, facts, 3, x->rank, n < 0 ? 0 : n, err, &known, axes);
    if (code != CM_OK)
        return code;
    known = known && n >= 0;
    for (unsigned i = 0; i < x->rank; i++) {
        ret_slice->start[i] = 0;
        ret_slice->step[i] = 1;
        ret_slice->length[i] = known ? x->dims[i] : WK_DIM_ANY;
    }
    const struct wk_elem unknown = {WK_ELEM_ANY, 0};
    for (int64_t i = 0; i < n && known; i++) {
        size_t at = (size_t)i;
        int64_t one[3] = {0, 1, 0};
        code =
            slice_axis(node, x->dims[axes[i]], b.start.known ? wk_ints_at(&b.start, at) : unknown,
                       b.end.known ? wk_ints_at(&b.end, at) : unknown,
                       !b.step.given  ? infer_known(1)
                       : b.step.known ? wk_ints_at(&b.step, at)
                                      : unknown,
                       err, one);
        if (code != CM_OK)
            return code;
        ret_slice->start[axes[i]] = one[0];
        ret_slice->step[axes[i]] = one[1];
        ret_slice->length[axes[i]] = one[2];
    }
    return CM_OK;
}

enum cm_err infer_slice(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {.rank = x->shape.rank};
    struct wk_slice slice;
    struct wk_elem *elems;
    enum cm_err code = wk_slice_resolve(in->node, in->facts, in->err, &slice);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = slice.length[i];
    infer_set(in, x->dtype, &shape);
    if (!x->elems || shape.rank != 1 || !dim_known(shape.dims[0]))
        return CM_OK;
    code = infer_track(in, x->dtype, &shape, &elems);
    for (int64_t i = 0; i < shape.dims[0] && code == CM_OK && elems; i++)
        elems[i] = x->elems[slice.start[0] + i * slice.step[0]];
    return code;
}

/* ---- Pad ------------------------------------------------------------------------------------- */

/* One axis: begin + dimension + end, each side possibly negative. */
static enum cm_err padded_dim(const struct wk_node *node, int64_t dim, int64_t begin, int64_t end,
                              struct cm_error *err, int64_t *ret_dim)
{
    int64_t sum, cut = (begin < 0 ? begin : 0) + (end < 0 ? end : 0);
    if (begin == 0 && end == 0) {
        *ret_dim = dim;
        return CM_OK;
    }
    *ret_dim = WK_DIM_ANY;
    if (!dim_known(dim))
        return CM_OK;
    if (__builtin_add_overflow(dim, begin, &sum) || __builtin_add_overflow(sum, end, &sum) ||
        sum < 0 || dim + cut < 0)
        return wk_node_fail(err, CM_INVALID, node, "pads %lld and %lld of %lld elements",
                            (long long)begin, (long long)end, (long long)dim);
    if (dim + cut == 0 && sum > 0 && strcmp(wk_node_string(node, "mode", "constant"), "constant"))
        return wk_node_fail(err, CM_INVALID, node, "nothing to pad with: an axis is empty");
    *ret_dim = sum;
    return CM_OK;
}

/* Fills the shape as far as it is known; begin and end are exact where known is true. */
static enum cm_err resolve_pads(const struct wk_node *node, const struct wk_fact *facts,
                                struct cm_error *err, int64_t begin[CM_MAX_RANK],
                                int64_t end[CM_MAX_RANK], struct cm_shape *ret_shape)
{
    const struct cm_shape *x = &facts[node->in[0]].shape;
    struct wk_ints pads, axes_given;
    unsigned axes[CM_MAX_RANK];
    bool known;
    enum cm_err code = wk_ints_read(node, facts, "pads", 1, err, &pads);
    if (code == CM_OK)
        code = wk_ints_read(node, facts, NULL, 3, err, &axes_given);
    if (code != CM_OK)
        return code;
    int64_t n = axes_given.given ? axes_given.length : x->rank;
    n = n < 0 && pads.length >= 0 ? pads.length / 2 : n;
    if (!pads.given || n > x->rank || (n >= 0 && pads.length >= 0 && pads.length != 2 * n))
        return wk_node_fail(err, CM_INVALID, node, "pads has %lld entries, must have %lld",
                            (long long)pads.length, (long long)(2 * n));
    code = read_axes(node, facts, 3, x->rank, n < 0 ? 0 : n, err, &known, axes);
    if (code != CM_OK)
        return code;
    known = known && pads.known && n >= 0;
    memset(begin, 0, CM_MAX_RANK * sizeof *begin);
    memset(end, 0, CM_MAX_RANK * sizeof *end);
    *ret_shape = *x;
    for (unsigned i = 0; i < x->rank && !known; i++)
        ret_shape->dims[i] = WK_DIM_ANY;
    for (int64_t i = 0; i < n && known; i++) {
        struct wk_elem low = wk_ints_at(&pads, (size_t)i),
                       high = wk_ints_at(&pads, (size_t)(n + i));
        if (low.kind != WK_ELEM_KNOWN || high.kind != WK_ELEM_KNOWN) {
            ret_shape->dims[axes[i]] = WK_DIM_ANY;
            continue;
        }
        begin[axes[i]] = low.v;
        end[axes[i]] = high.v;
        if (low.v < -WK_MAX_DIM || low.v > WK_MAX_DIM || high.v < -WK_MAX_DIM ||
            high.v > WK_MAX_DIM)
            return wk_node_fail(err, CM_LIMIT, node, "pads are out of range");
        code = padded_dim(node, x->dims[axes[i]], low.v, high.v, err, &ret_shape->dims[axes[i]]);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

enum cm_err wk_pad_resolve(const struct wk_node *node, const struct wk_fact *facts,
                           struct cm_error *err, int64_t ret_begin[CM_MAX_RANK],
                           int64_t ret_end[CM_MAX_RANK])
{
    struct cm_shape shape;
    return resolve_pads(node, facts, err, ret_begin, ret_end, &shape);
}

enum cm_err infer_pad(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *value = infer_in(in, 2);
    int64_t begin[CM_MAX_RANK], end[CM_MAX_RANK];
    struct cm_shape shape;
    if (value && value->dtype != x->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the value must be one element of the input's type");
    enum cm_err code = infer_check_scalar(in, 2);
    if (code == CM_OK)
        code = resolve_pads(in->node, in->facts, in->err, begin, end, &shape);
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}

/* ---- CenterCropPad --------------------------------------------------------------------------- */

enum cm_err wk_center_resolve(const struct wk_node *node, const struct wk_fact *facts,
                              struct cm_error *err, struct wk_center *ret_center)
{
    const struct cm_shape *x = &facts[node->in[0]].shape, *out = &facts[node->out[0]].shape;
    (void)err;
    for (unsigned i = 0; i < x->rank; i++) {
        int64_t from = x->dims[i], to = out->dims[i];
        /* Odd differences: a crop starts, and padding puts, at the rounded-down half. */
        ret_center->length[i] = from < to ? from : to;
        ret_center->start[i] = from > to ? (from - to) / 2 : 0;
        ret_center->offset[i] = from < to ? (to - from) / 2 : 0;
    }
    return CM_OK;
}

enum cm_err infer_center_crop_pad(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    const struct wk_attr *given = wk_node_attr(in->node, "axes");
    struct cm_shape shape = x->shape;
    struct wk_ints target;
    unsigned axes[CM_MAX_RANK];
    bool known;
    enum cm_err code = wk_ints_read(in->node, in->facts, NULL, 1, in->err, &target);
    if (code != CM_OK)
        return code;
    int64_t n = given ? (int64_t)given->count : x->shape.rank;
    if (target.length >= 0 && target.length != n)
        return wk_node_fail(in->err, CM_INVALID, in->node, "shape has %lld entries for %lld axes",
                            (long long)target.length, (long long)n);
    code = read_axes(in->node, in->facts, CM_MAX_RANK, x->shape.rank, n, in->err, &known, axes);
    for (int64_t i = 0; i < n && code == CM_OK; i++) {
        shape.dims[axes[i]] = WK_DIM_ANY;
        if (target.known &&
            !infer_dim_of_elem(wk_ints_at(&target, (size_t)i), &shape.dims[axes[i]]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld",
                                (long long)wk_ints_at(&target, (size_t)i).v);
    }
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}
