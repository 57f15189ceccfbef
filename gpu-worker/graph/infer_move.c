/* Shape rules of operators that move or describe data, with the elements of those that shape
 * computations are made of. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <string.h>

#define FULL_SLICE ((int64_t)INT32_MAX) /* ends from here on mean "to the end" of any batch */

static enum cm_err invalid_shape(struct infer *in, const struct cm_shape *shape)
{
    char text[96];
    return wk_node_fail(in->err, CM_INVALID, in->node, "does not fit input %s",
                        cm_shape_format(shape, text, sizeof text));
}

static struct wk_elem known(int64_t v)
{
    return (struct wk_elem){WK_ELEM_KNOWN, v};
}

/* A dimension as an element and back. */
static struct wk_elem elem_of_dim(int64_t dim, enum wk_rows rows)
{
    if (dim_known(dim))
        return known(dim);
    if (dim == WK_DIM_BATCH)
        return (struct wk_elem){WK_ELEM_BATCH, 0};
    return (struct wk_elem){rows == WK_ROWS_MIXED ? WK_ELEM_MIXED : WK_ELEM_ANY, 0};
}

static bool dim_of_elem(struct wk_elem elem, int64_t *ret)
{
    if (elem.kind == WK_ELEM_KNOWN) {
        *ret = elem.v;
        return elem.v >= 0;
    }
    *ret = elem.kind == WK_ELEM_BATCH ? WK_DIM_BATCH : WK_DIM_ANY;
    return true;
}

/* A view keeps its elements. */
static enum cm_err set_view(struct infer *in, const struct cm_shape *shape)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_fact *out = infer_out(in, 0);
    if (out)
        *out = (struct wk_fact){
            .dtype = x->dtype, .shape = *shape, .n_elems = x->n_elems, .elems = x->elems};
    return CM_OK;
}

/* Elements of a known shape vector as a shape; negative entries are the caller's to interpret. */
static enum cm_err read_shape_input(struct infer *in, unsigned k, const struct wk_elem **ret_elems,
                                    unsigned *ret_rank)
{
    enum cm_err code = infer_elems(in, k, "the shape", ret_elems, ret_rank);
    if (code != CM_OK)
        return code;
    if (infer_in(in, k)->shape.rank != 1 || infer_in(in, k)->dtype != CM_INT64)
        return wk_node_fail(in->err, CM_INVALID, in->node, "the shape must be a vector of INT64");
    if (*ret_rank > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "%u dimensions, at most %d are supported",
                            *ret_rank, CM_MAX_RANK);
    return CM_OK;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* The dimension that makes x and out hold equally many elements, with out.dims[hole] left out.
 * Dimensions that occur on both sides cancel, so that a free one need not be known. */
static bool solve_hole(const struct cm_shape *x, const struct cm_shape *out, unsigned hole,
                       int64_t *ret)
{
    bool used[CM_MAX_RANK] = {false};
    int64_t rest_out = 1, rest_x = 1, symbolic = 0;
    unsigned n_symbolic = 0;
    bool out_is_known = true;
    for (unsigned i = 0; i < out->rank; i++) {
        if (i == hole)
            continue;
        unsigned k = 0;
        /* Only the batch cancels safely: two unknown dimensions need not be equal. */
        while (k < x->rank && (used[k] || dim_known(out->dims[i]) || out->dims[i] != WK_DIM_BATCH ||
                               x->dims[k] != WK_DIM_BATCH))
            k++;
        if (k < x->rank)
            used[k] = true;
        else if (!dim_known(out->dims[i]))
            out_is_known = false;
        else if (!dim_mul(rest_out, out->dims[i], &rest_out))
            return false;
    }
    for (unsigned i = 0; i < x->rank; i++) {
        if (used[i])
            continue;
        if (!dim_known(x->dims[i])) {
            symbolic = x->dims[i];
            n_symbolic++;
        } else if (!dim_mul(rest_x, x->dims[i], &rest_x)) {
            return false;
        }
    }
    *ret = WK_DIM_ANY;
    if (!out_is_known || n_symbolic > 1)
        return true;
    if (n_symbolic == 1) {
        if (rest_x == rest_out && rest_x != 0)
            *ret = symbolic;
        return true;
    }
    if (rest_out == 0 || rest_x % rest_out != 0)
        return false;
    *ret = rest_x / rest_out;
    return true;
}

static bool counts_match(const struct cm_shape *x, const struct cm_shape *out)
{
    int64_t a, b;
    for (unsigned i = 0; i < x->rank; i++)
        if (!dim_known(x->dims[i]))
            return true;
    for (unsigned i = 0; i < out->rank; i++)
        if (!dim_known(out->dims[i]))
            return true;
    return cm_shape_count(x, &a) == CM_OK && cm_shape_count(out, &b) == CM_OK && a == b;
}

enum cm_err infer_reshape(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    const struct wk_elem *elems;
    struct cm_shape shape = {0};
    unsigned rank, hole = CM_MAX_RANK;
    bool allow_zero = wk_node_int(in->node, "allowzero", 0);
    enum cm_err code = read_shape_input(in, 1, &elems, &rank);
    if (code != CM_OK)
        return code;
    shape.rank = (uint8_t)rank;
    for (unsigned i = 0; i < rank; i++) {
        bool is_known = elems[i].kind == WK_ELEM_KNOWN;
        if (is_known && elems[i].v == -1 && hole == CM_MAX_RANK) {
            hole = i;
        } else if (is_known && elems[i].v == 0 && !allow_zero) {
            if (i >= x->rank)
                return invalid_shape(in, x);
            shape.dims[i] = x->dims[i];
        } else if (!dim_of_elem(elems[i], &shape.dims[i])) {
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld in the new shape",
                                (long long)elems[i].v);
        }
    }
    if (hole < CM_MAX_RANK && !solve_hole(x, &shape, hole, &shape.dims[hole]))
        return invalid_shape(in, x);
    if (!counts_match(x, &shape))
        return invalid_shape(in, x);
    return set_view(in, &shape);
}

enum cm_err infer_flatten(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    int64_t given = wk_node_int(in->node, "axis", 1);
    struct cm_shape shape = {.rank = 2, .dims = {1, 1}};
    if (given < -(int64_t)x->rank || given > x->rank)
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                            (long long)given, x->rank);
    unsigned axis = (unsigned)(given < 0 ? given + x->rank : given);
    for (unsigned i = 0; i < x->rank; i++)
        if (!dim_mul(shape.dims[i >= axis], x->dims[i], &shape.dims[i >= axis]))
            return invalid_shape(in, x);
    return set_view(in, &shape);
}

/* The axes of Squeeze and Unsqueeze, as marks. rank is that of the larger shape. */
static enum cm_err read_axes(struct infer *in, unsigned rank, bool marks[CM_MAX_RANK],
                             unsigned *ret_count)
{
    const struct wk_attr *attr = wk_node_attr(in->node, "axes");
    const struct wk_elem *elems = NULL;
    unsigned count = attr ? (unsigned)attr->count : 0, axis;
    enum cm_err code = CM_OK;
    memset(marks, 0, CM_MAX_RANK * sizeof *marks);
    if (infer_in(in, 1))
        code = infer_elems(in, 1, "axes", &elems, &count);
    for (unsigned i = 0; i < count && code == CM_OK; i++) {
        if (elems && elems[i].kind != WK_ELEM_KNOWN)
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                                "axes must follow from constants");
        int64_t given = elems ? elems[i].v : attr->ints[i];
        if (!wk_axis(given, rank, &axis) || marks[axis])
            return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                                (long long)given, rank);
        marks[axis] = true;
    }
    *ret_count = count;
    return code;
}

enum cm_err infer_squeeze(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    struct cm_shape shape = {0};
    bool marks[CM_MAX_RANK];
    unsigned count;
    enum cm_err code = read_axes(in, x->rank, marks, &count);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->rank; i++) {
        /* Without axes the result's rank would depend on the request's shape. */
        if (count == 0 && !dim_known(x->dims[i]))
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                                "without axes the input's dimensions must all be fixed");
        if (marks[i] && dim_known(x->dims[i]) && x->dims[i] != 1)
            return invalid_shape(in, x);
        if (!marks[i] && (count || x->dims[i] != 1))
            shape.dims[shape.rank++] = x->dims[i];
    }
    return set_view(in, &shape);
}

enum cm_err infer_unsqueeze(struct infer *in)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    const struct wk_fact *axes = infer_in(in, 1);
    const struct wk_attr *attr = wk_node_attr(in->node, "axes");
    struct cm_shape shape = {0};
    bool marks[CM_MAX_RANK];
    unsigned count = axes ? axes->n_elems : attr ? (unsigned)attr->count : 0, from = 0;
    if (!axes && !attr)
        return wk_node_fail(in->err, CM_INVALID, in->node, "axes is missing");
    if (count > CM_MAX_RANK || x->rank + count > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    enum cm_err code = read_axes(in, x->rank + count, marks, &count);
    if (code != CM_OK)
        return code;
    shape.rank = (uint8_t)(x->rank + count);
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = marks[i] ? 1 : x->dims[from++];
    return set_view(in, &shape);
}

/* ---- shapes as data -------------------------------------------------------------------------- */

enum cm_err infer_shape(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    int64_t rank = x->shape.rank;
    int64_t start = wk_node_int(in->node, "start", 0), end = wk_node_int(in->node, "end", rank);
    struct wk_elem *elems;
    start += start < 0 ? rank : 0;
    end += end < 0 ? rank : 0;
    start = start < 0 ? 0 : start > rank ? rank : start;
    end = end < start ? start : end > rank ? rank : end;
    struct cm_shape shape = {.rank = 1, .dims = {end - start}};
    enum cm_err code = infer_set(in, CM_INT64, &shape);
    if (code == CM_OK)
        code = infer_track(in, CM_INT64, &shape, &elems);
    for (int64_t i = start; i < end && code == CM_OK; i++)
        elems[i - start] = elem_of_dim(x->shape.dims[i], x->rows);
    return code;
}

enum cm_err infer_size(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {0};
    struct wk_elem *elems, size = known(1);
    int64_t product = 1;
    bool has_batch = x->rows == WK_ROWS_MIXED;
    for (unsigned i = 0; i < x->shape.rank; i++) {
        has_batch |= x->shape.dims[i] == WK_DIM_BATCH;
        if (!dim_mul(product, x->shape.dims[i], &product))
            return invalid_shape(in, &x->shape);
    }
    if (dim_known(product) || product == WK_DIM_BATCH)
        size = elem_of_dim(product, x->rows);
    else
        size.kind = has_batch ? WK_ELEM_MIXED : WK_ELEM_ANY;
    enum cm_err code = infer_set(in, CM_INT64, &shape);
    if (code == CM_OK)
        code = infer_track(in, CM_INT64, &shape, &elems);
    if (code == CM_OK)
        elems[0] = size;
    return code;
}

enum cm_err infer_constant_of_shape(struct infer *in)
{
    const struct wk_attr *attr = wk_node_attr(in->node, "value");
    enum cm_dtype dtype = attr ? attr->tensor->dtype : CM_FP32;
    const struct wk_elem *from;
    struct wk_elem *elems;
    struct cm_shape shape = {0};
    unsigned rank;
    int64_t value = 0;
    enum cm_err code = read_shape_input(in, 0, &from, &rank);
    if (code != CM_OK)
        return code;
    if (attr && attr->tensor->bytes != cm_dtype_size(dtype))
        return wk_node_fail(in->err, CM_INVALID, in->node, "value must be one element");
    shape.rank = (uint8_t)rank;
    for (unsigned i = 0; i < rank; i++)
        if (!dim_of_elem(from[i], &shape.dims[i]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld",
                                (long long)from[i].v);
    infer_set(in, dtype, &shape);
    code = infer_track(in, dtype, &shape, &elems);
    if (code != CM_OK || !elems)
        return code;
    if (attr && dtype == CM_INT64) {
        memcpy(&value, attr->tensor->data, 8);
    } else if (attr) {
        int32_t narrow;
        memcpy(&narrow, attr->tensor->data, 4);
        value = narrow;
    }
    for (unsigned i = 0; i < infer_out(in, 0)->n_elems; i++)
        elems[i] = known(value);
    return CM_OK;
}

/* ---- movement -------------------------------------------------------------------------------- */

enum cm_err infer_concat(struct infer *in)
{
    const struct wk_fact *first = infer_in(in, 0);
    struct cm_shape shape = first->shape;
    const struct wk_attr *attr = wk_node_attr(in->node, "axis");
    struct wk_elem *elems;
    unsigned axis, at = 0;
    bool tracked = shape.rank == 1;
    if (!attr || !wk_axis(attr->i, shape.rank, &axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is missing or out of range");
    shape.dims[axis] = 0;
    for (unsigned k = 0; k < in->node->n_in; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (!next || next->dtype != first->dtype || next->shape.rank != shape.rank)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "input %u does not fit the first one", k);
        tracked &= next->elems != NULL;
        for (unsigned i = 0; i < shape.rank; i++) {
            int64_t a = shape.dims[i], b = next->shape.dims[i];
            if (i == axis)
                shape.dims[i] = dim_known(a) && dim_known(b) ? a + b : a == 0 ? b : WK_DIM_ANY;
            else if (dim_known(a) && dim_known(b) && a != b)
                return invalid_shape(in, &next->shape);
            else if (dim_known(b) || (a == WK_DIM_BATCH && b == WK_DIM_ANY))
                shape.dims[i] = b;
        }
    }
    infer_set(in, first->dtype, &shape);
    if (!tracked)
        return CM_OK;
    enum cm_err code = infer_track(in, first->dtype, &shape, &elems);
    for (unsigned k = 0; k < in->node->n_in && code == CM_OK && elems; k++) {
        const struct wk_fact *next = infer_in(in, k);
        if (next->n_elems)
            memcpy(&elems[at], next->elems, next->n_elems * sizeof *elems);
        at += next->n_elems;
    }
    return code;
}

enum cm_err infer_gather(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *indices = infer_in(in, 1);
    struct cm_shape shape = {0};
    struct wk_elem *elems;
    unsigned axis;
    if (indices->dtype != CM_INT64 && indices->dtype != CM_INT32)
        return wk_node_fail(in->err, CM_INVALID, in->node, "indices have type %s",
                            cm_dtype_name(indices->dtype));
    if (!wk_axis(wk_node_int(in->node, "axis", 0), x->shape.rank, &axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is out of range");
    if (x->shape.rank - 1u + indices->shape.rank > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    for (unsigned i = 0; i < axis; i++)
        shape.dims[shape.rank++] = x->shape.dims[i];
    for (unsigned i = 0; i < indices->shape.rank; i++)
        shape.dims[shape.rank++] = indices->shape.dims[i];
    for (unsigned i = axis + 1; i < x->shape.rank; i++)
        shape.dims[shape.rank++] = x->shape.dims[i];
    infer_set(in, x->dtype, &shape);
    if (!x->elems || !indices->elems || x->shape.rank != 1)
        return CM_OK;
    enum cm_err code = infer_track(in, x->dtype, &shape, &elems);
    for (unsigned i = 0; i < indices->n_elems && code == CM_OK && elems; i++) {
        struct wk_elem index = indices->elems[i];
        if (index.kind != WK_ELEM_KNOWN) {
            elems[i].kind = index.kind == WK_ELEM_ANY ? WK_ELEM_ANY : WK_ELEM_MIXED;
            continue;
        }
        if (index.v < 0)
            index.v += x->n_elems;
        if (index.v < 0 || index.v >= x->n_elems)
            return wk_node_fail(in->err, CM_INVALID, in->node, "index %lld of %u elements",
                                (long long)indices->elems[i].v, x->n_elems);
        elems[i] = x->elems[index.v];
    }
    return code;
}

enum cm_err wk_transpose_perm(const struct wk_node *node, unsigned rank, struct cm_error *err,
                              unsigned ret_perm[CM_MAX_RANK])
{
    const struct wk_attr *attr = wk_node_attr(node, "perm");
    bool used[CM_MAX_RANK] = {false};
    if (attr && attr->count != rank)
        return wk_node_fail(err, CM_INVALID, node, "perm has %zu entries for %u dimensions",
                            attr->count, rank);
    for (unsigned i = 0; i < rank; i++) {
        int64_t from = attr ? attr->ints[i] : (int64_t)(rank - 1 - i);
        if (from < 0 || from >= rank || used[from])
            return wk_node_fail(err, CM_INVALID, node, "perm is not a permutation");
        used[from] = true;
        ret_perm[i] = (unsigned)from;
    }
    return CM_OK;
}

enum cm_err infer_transpose(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {.rank = x->shape.rank};
    unsigned perm[CM_MAX_RANK];
    enum cm_err code = wk_transpose_perm(in->node, shape.rank, in->err, perm);
    for (unsigned i = 0; i < shape.rank && code == CM_OK; i++)
        shape.dims[i] = x->shape.dims[perm[i]];
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}

enum cm_err infer_expand(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    const struct wk_elem *elems;
    struct cm_shape target = {0}, shape;
    unsigned rank;
    enum cm_err code = read_shape_input(in, 1, &elems, &rank);
    if (code != CM_OK)
        return code;
    target.rank = (uint8_t)rank;
    for (unsigned i = 0; i < rank; i++)
        if (!dim_of_elem(elems[i], &target.dims[i]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld",
                                (long long)elems[i].v);
    if (!shape_broadcast(&x->shape, &target, &shape))
        return invalid_shape(in, &x->shape);
    return infer_set(in, x->dtype, &shape);
}

/* ---- Slice ----------------------------------------------------------------------------------- */

/* One bound list of a Slice: an attribute below opset 10, input k from there. */
struct bounds {
    const struct wk_attr *attr;
    const struct wk_fact *input;
    size_t count;
    bool given;
};

static enum cm_err read_bounds(const struct wk_node *node, const struct wk_fact *facts,
                               const char *name, unsigned k, struct cm_error *err,
                               struct bounds *ret)
{
    *ret = (struct bounds){.attr = wk_node_attr(node, name)};
    if (k < node->n_in && node->in[k] >= 0)
        ret->input = &facts[node->in[k]];
    if (ret->input && !ret->input->elems)
        return wk_node_fail(err, CM_UNSUPPORTED, node,
                            "%s must follow from constants and shapes, not from data", name);
    ret->given = ret->attr || ret->input;
    ret->count = ret->input ? ret->input->n_elems : ret->attr ? ret->attr->count : 0;
    return CM_OK;
}

static struct wk_elem bound_at(const struct bounds *bounds, size_t i)
{
    return bounds->input ? bounds->input->elems[i] : known(bounds->attr->ints[i]);
}

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

/* Axis by axis; a symbolic bound or dimension gives WK_DIM_ANY unless all of it is taken. */
static enum cm_err slice_axis(const struct wk_node *node, int64_t dim, struct wk_elem start,
                              struct wk_elem end, struct wk_elem step, struct cm_error *err,
                              int64_t ret[3])
{
    if (step.kind != WK_ELEM_KNOWN)
        return wk_node_fail(err, CM_UNSUPPORTED, node, "steps must follow from constants");
    if (step.v == 0)
        return wk_node_fail(err, CM_INVALID, node, "step 0");
    ret[0] = 0;
    ret[1] = step.v;
    ret[2] = WK_DIM_ANY;
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
    struct bounds starts, ends, axes, steps;
    bool used[CM_MAX_RANK] = {false};
    enum cm_err code = read_bounds(node, facts, "starts", 1, err, &starts);
    if (code == CM_OK)
        code = read_bounds(node, facts, "ends", 2, err, &ends);
    if (code == CM_OK)
        code = read_bounds(node, facts, "axes", 3, err, &axes);
    if (code == CM_OK)
        code = read_bounds(node, facts, "steps", 4, err, &steps);
    if (code != CM_OK)
        return code;
    if (!starts.given || !ends.given || starts.count != ends.count || starts.count > x->rank ||
        (axes.given && axes.count != starts.count) || (steps.given && steps.count != starts.count))
        return wk_node_fail(err, CM_INVALID, node, "starts, ends, axes and steps do not fit");
    for (unsigned i = 0; i < x->rank; i++) {
        ret_slice->start[i] = 0;
        ret_slice->step[i] = 1;
        ret_slice->length[i] = x->dims[i];
    }
    for (size_t i = 0; i < starts.count; i++) {
        struct wk_elem which = axes.given ? bound_at(&axes, i) : known((int64_t)i);
        unsigned axis;
        int64_t one[3] = {0, 1, 0};
        if (which.kind != WK_ELEM_KNOWN || !wk_axis(which.v, x->rank, &axis) || used[axis])
            return wk_node_fail(err, CM_INVALID, node, "axes are out of range or repeated");
        used[axis] = true;
        code = slice_axis(node, x->dims[axis], bound_at(&starts, i), bound_at(&ends, i),
                          steps.given ? bound_at(&steps, i) : known(1), err, one);
        if (code != CM_OK)
            return code;
        ret_slice->start[axis] = one[0];
        ret_slice->step[axis] = one[1];
        ret_slice->length[axis] = one[2];
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

enum cm_err wk_pad_resolve(const struct wk_node *node, const struct wk_fact *facts,
                           struct cm_error *err, int64_t ret_begin[CM_MAX_RANK],
                           int64_t ret_end[CM_MAX_RANK])
{
    unsigned rank = facts[node->in[0]].shape.rank;
    struct bounds pads, axes;
    bool used[CM_MAX_RANK] = {false};
    enum cm_err code = read_bounds(node, facts, "pads", 1, err, &pads);
    if (code == CM_OK)
        code = read_bounds(node, facts, "axes", 3, err, &axes);
    if (code != CM_OK)
        return code;
    size_t n = axes.given ? axes.count : rank;
    if (n > rank || pads.count != 2 * n)
        return wk_node_fail(err, CM_INVALID, node, "pads has %zu entries, must have %zu",
                            pads.count, 2 * n);
    memset(ret_begin, 0, CM_MAX_RANK * sizeof *ret_begin);
    memset(ret_end, 0, CM_MAX_RANK * sizeof *ret_end);
    for (size_t i = 0; i < n; i++) {
        struct wk_elem which = axes.given ? bound_at(&axes, i) : known((int64_t)i);
        struct wk_elem begin = bound_at(&pads, i), end = bound_at(&pads, n + i);
        unsigned axis;
        if (which.kind != WK_ELEM_KNOWN || !wk_axis(which.v, rank, &axis) || used[axis])
            return wk_node_fail(err, CM_INVALID, node, "axes are out of range or repeated");
        used[axis] = true;
        if (begin.kind != WK_ELEM_KNOWN || end.kind != WK_ELEM_KNOWN || begin.v < 0 || end.v < 0)
            return wk_node_fail(err, CM_UNSUPPORTED, node,
                                "pads must follow from constants and not be negative");
        ret_begin[axis] = begin.v;
        ret_end[axis] = end.v;
    }
    return CM_OK;
}

enum cm_err infer_pad(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *value = infer_in(in, 2);
    struct cm_shape shape = x->shape;
    int64_t begin[CM_MAX_RANK], end[CM_MAX_RANK], count;
    if (strcmp(wk_node_string(in->node, "mode", "constant"), "constant") != 0)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "only mode constant is supported");
    if (value &&
        (value->dtype != x->dtype || cm_shape_count(&value->shape, &count) != CM_OK || count != 1))
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the value must be one element of the input's type");
    if (in->node->opset < 11 && x->dtype != CM_FP32)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "only FP32 is supported");
    enum cm_err code = wk_pad_resolve(in->node, in->facts, in->err, begin, end);
    for (unsigned i = 0; i < shape.rank && code == CM_OK; i++) {
        if (begin[i] == 0 && end[i] == 0)
            continue;
        if (!dim_known(shape.dims[i]))
            shape.dims[i] = WK_DIM_ANY;
        else if (__builtin_add_overflow(shape.dims[i], begin[i], &shape.dims[i]) ||
                 __builtin_add_overflow(shape.dims[i], end[i], &shape.dims[i]))
            return invalid_shape(in, &x->shape);
    }
    return code == CM_OK ? infer_set(in, x->dtype, &shape) : code;
}
