/* Shape rules of views (Reshape, Flatten, Squeeze, Unsqueeze) and of shapes as data (Shape, Size,
 * ConstantOfShape), and what all rules of data movement share. See infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"
#include "gpu-worker/cpu/half.h"

#include <string.h>

/* ---- shared ---------------------------------------------------------------------------------- */

enum cm_err infer_bad_shape(struct infer *in, const struct cm_shape *shape)
{
    char text[96];
    return wk_node_fail(in->err, CM_INVALID, in->node, "does not fit input %s",
                        cm_shape_format(shape, text, sizeof text));
}

struct wk_elem infer_known(int64_t v)
{
    return (struct wk_elem){WK_ELEM_KNOWN, v};
}

struct wk_elem infer_elem_of_dim(int64_t dim, enum wk_rows rows)
{
    if (dim_known(dim))
        return infer_known(dim);
    if (dim == WK_DIM_BATCH)
        return (struct wk_elem){WK_ELEM_BATCH, 0};
    return (struct wk_elem){rows == WK_ROWS_MIXED ? WK_ELEM_MIXED : WK_ELEM_ANY, 0};
}

bool infer_dim_of_elem(struct wk_elem elem, int64_t *ret)
{
    if (elem.kind == WK_ELEM_KNOWN) {
        *ret = elem.v;
        return elem.v >= 0;
    }
    *ret = elem.kind == WK_ELEM_BATCH ? WK_DIM_BATCH : WK_DIM_ANY;
    return true;
}

enum cm_err infer_check_indices(struct infer *in, unsigned k, bool narrow)
{
    enum cm_dtype dtype = infer_in(in, k)->dtype;
    if (dtype != CM_INT64 && !(narrow && dtype == CM_INT32))
        return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has type %s, must be %s", k,
                            cm_dtype_name(dtype), narrow ? "INT32 or INT64" : "INT64");
    return CM_OK;
}

enum cm_err infer_check_scalar(struct infer *in, unsigned k)
{
    const struct wk_fact *fact = infer_in(in, k);
    for (unsigned i = 0; fact && i < fact->shape.rank; i++)
        if (dim_known(fact->shape.dims[i]) && fact->shape.dims[i] != 1)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must be one element", k);
    return CM_OK;
}

enum cm_err wk_ints_read(const struct wk_node *node, const struct wk_fact *facts, const char *name,
                         unsigned k, struct cm_error *err, struct wk_ints *ret_ints)
{
    *ret_ints = (struct wk_ints){.attr = name ? wk_node_attr(node, name) : NULL};
    if (k < node->n_in && node->in[k] >= 0)
        ret_ints->input = &facts[node->in[k]];
    const struct wk_fact *input = ret_ints->input;
    ret_ints->given = ret_ints->attr || input;
    ret_ints->known = true;
    ret_ints->length = ret_ints->attr ? (int64_t)ret_ints->attr->count : 0;
    if (!input)
        return CM_OK;
    ret_ints->attr = NULL;
    ret_ints->length = input->unranked ? -1 : input->shape.rank ? input->shape.dims[0] : 1;
    if (ret_ints->length < 0)
        ret_ints->length = -1;
    if ((input->dtype != CM_INT64 && input->dtype != CM_INT32) || input->shape.rank > 1)
        return wk_node_fail(err, CM_INVALID, node, "input %u must be a vector of INT32 or INT64",
                            k);
    ret_ints->known = input->elems != NULL;
    if (input->elems)
        ret_ints->length = input->n_elems;
    return CM_OK;
}

struct wk_elem wk_ints_at(const struct wk_ints *ints, size_t i)
{
    return ints->input ? ints->input->elems[i] : infer_known(ints->attr->ints[i]);
}

bool wk_fact_integer(const struct wk_fact *fact, size_t i, int64_t *ret)
{
    if (fact->elems) {
        *ret = fact->elems[i].v;
        return fact->elems[i].kind == WK_ELEM_KNOWN;
    }
    if (!fact->data)
        return false;
#define X(name, type)                                                  \
    case CM_##name: {                                                  \
        type v;                                                        \
        memcpy(&v, (const char *)fact->data + i * sizeof v, sizeof v); \
        *ret = (int64_t)v;                                             \
        return true;                                                   \
    }
    switch (fact->dtype) {
        X(BOOL, uint8_t)
        X(UINT8, uint8_t)
        X(UINT16, uint16_t)
        X(UINT32, uint32_t)
        X(UINT64, uint64_t)
        X(INT8, int8_t)
        X(INT16, int16_t)
        X(INT32, int32_t)
        X(INT64, int64_t)
    default:
        return false;
    }
#undef X
}

bool wk_fact_number(const struct wk_fact *fact, size_t i, double *ret)
{
    int64_t integer;
    float single;
    uint16_t half;
    if (wk_fact_integer(fact, i, &integer)) {
        *ret = fact->dtype == CM_UINT64 ? (double)(uint64_t)integer : (double)integer;
        return true;
    }
    if (!fact->data)
        return false;
    const char *at = (const char *)fact->data + i * cm_dtype_size(fact->dtype);
    switch (fact->dtype) {
    case CM_FP64:
        memcpy(ret, at, sizeof *ret);
        return true;
    case CM_FP32:
        memcpy(&single, at, sizeof single);
        *ret = single;
        return true;
    case CM_FP16:
        memcpy(&half, at, sizeof half);
        *ret = half_to_float(half);
        return true;
    case CM_BF16:
        memcpy(&half, at, sizeof half);
        *ret = bfloat_to_float(half);
        return true;
    default:
        return false;
    }
}

/* A view keeps its elements. */
static enum cm_err set_view(struct infer *in, const struct cm_shape *shape)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_fact *out = infer_out(in, 0);
    if (out)
        *out = (struct wk_fact){.dtype = x->dtype,
                                .shape = *shape,
                                .n_elems = x->n_elems,
                                .elems = x->elems,
                                .data = x->data};
    return CM_OK;
}

/* The vector of INT64 that names a shape: false in *ret_known where it is not known yet, and then
 * output 0 has been left for later. */
static enum cm_err read_shape_input(struct infer *in, unsigned k, enum cm_dtype dtype,
                                    struct wk_ints *ret_ints, bool *ret_known)
{
    enum cm_err code = wk_ints_read(in->node, in->facts, NULL, k, in->err, ret_ints);
    if (code != CM_OK)
        return code;
    if (infer_in(in, k)->dtype != CM_INT64 ||
        (infer_in(in, k)->shape.rank != 1 && !infer_in(in, k)->unranked))
        return wk_node_fail(in->err, CM_INVALID, in->node, "the shape must be a vector of INT64");
    if (ret_ints->length > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node,
                            "%lld dimensions, at most %d are supported",
                            (long long)ret_ints->length, CM_MAX_RANK);
    *ret_known = ret_ints->known;
    return ret_ints->known ? CM_OK : infer_later(in, 0, dtype, (int)ret_ints->length);
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

/* One entry of Reshape's shape; true in *hole where the entry is -1. */
static enum cm_err reshape_entry(struct infer *in, struct wk_elem entry, unsigned i, bool *hole,
                                 int64_t *ret_dim)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape;
    bool is_known = entry.kind == WK_ELEM_KNOWN;
    *hole = is_known && entry.v == -1;
    if (*hole)
        return CM_OK;
    if (is_known && entry.v == 0 && !wk_node_int(in->node, "allowzero", 0)) {
        if (i >= x->rank)
            return infer_bad_shape(in, x);
        *ret_dim = x->dims[i];
        return CM_OK;
    }
    if (!infer_dim_of_elem(entry, ret_dim))
        return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld in the new shape",
                            (long long)entry.v);
    return CM_OK;
}

enum cm_err infer_reshape(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct wk_ints entries;
    struct cm_shape shape = {0};
    unsigned hole = CM_MAX_RANK;
    bool known, is_hole;
    enum cm_err code = read_shape_input(in, 1, x->dtype, &entries, &known);
    if (code != CM_OK || !known)
        return code;
    shape.rank = (uint8_t)entries.length;
    for (unsigned i = 0; i < shape.rank; i++) {
        code = reshape_entry(in, wk_ints_at(&entries, i), i, &is_hole, &shape.dims[i]);
        if (code != CM_OK)
            return code;
        if (is_hole && hole < CM_MAX_RANK)
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension -1 in the new shape");
        hole = is_hole ? i : hole;
    }
    if (hole < CM_MAX_RANK && !solve_hole(&x->shape, &shape, hole, &shape.dims[hole]))
        return infer_bad_shape(in, &x->shape);
    if (!counts_match(&x->shape, &shape))
        return infer_bad_shape(in, &x->shape);
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
            return infer_bad_shape(in, x);
    return set_view(in, &shape);
}

/* The axes of Squeeze and Unsqueeze, as marks. rank is that of the larger shape. */
static enum cm_err mark_axes(struct infer *in, const struct wk_ints *axes, unsigned rank,
                             bool marks[CM_MAX_RANK])
{
    unsigned axis;
    memset(marks, 0, CM_MAX_RANK * sizeof *marks);
    for (int64_t i = 0; i < axes->length; i++) {
        struct wk_elem given = wk_ints_at(axes, (size_t)i);
        if (given.kind != WK_ELEM_KNOWN || !wk_axis(given.v, rank, &axis) || marks[axis])
            return wk_node_fail(in->err, CM_INVALID, in->node, "axis %lld of %u dimensions",
                                (long long)given.v, rank);
        marks[axis] = true;
    }
    return CM_OK;
}

enum cm_err infer_squeeze(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {0};
    struct wk_ints axes;
    bool marks[CM_MAX_RANK], any_is_free = false;
    enum cm_err code = wk_ints_read(in->node, in->facts, "axes", 1, in->err, &axes);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->shape.rank; i++)
        any_is_free |= !dim_known(x->shape.dims[i]);
    /* Without axes the result's rank depends on the request's shape. */
    if (!axes.known || (axes.length == 0 && any_is_free))
        return infer_later(in, 0, x->dtype,
                           axes.length > 0 && axes.length <= x->shape.rank
                               ? x->shape.rank - (int)axes.length
                               : -1);
    code = mark_axes(in, &axes, x->shape.rank, marks);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->shape.rank; i++) {
        if (marks[i] && dim_known(x->shape.dims[i]) && x->shape.dims[i] != 1)
            return infer_bad_shape(in, &x->shape);
        if (!marks[i] && (axes.length || x->shape.dims[i] != 1))
            shape.dims[shape.rank++] = x->shape.dims[i];
    }
    return set_view(in, &shape);
}

enum cm_err infer_unsqueeze(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {0};
    struct wk_ints axes;
    bool marks[CM_MAX_RANK];
    unsigned from = 0;
    enum cm_err code = wk_ints_read(in->node, in->facts, "axes", 1, in->err, &axes);
    if (code != CM_OK)
        return code;
    if (!axes.given)
        return wk_node_fail(in->err, CM_INVALID, in->node, "axes is missing");
    if (axes.length > CM_MAX_RANK || x->shape.rank + axes.length > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    if (!axes.known)
        return infer_later(in, 0, x->dtype,
                           axes.length < 0 ? -1 : x->shape.rank + (int)axes.length);
    shape.rank = (uint8_t)(x->shape.rank + axes.length);
    code = mark_axes(in, &axes, shape.rank, marks);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = marks[i] ? 1 : x->shape.dims[from++];
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
        elems[i - start] = infer_elem_of_dim(x->shape.dims[i], x->rows);
    return code;
}

enum cm_err infer_size(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    struct cm_shape shape = {0};
    struct wk_elem *elems, size = infer_known(1);
    int64_t product = 1;
    bool has_batch = x->rows == WK_ROWS_MIXED;
    for (unsigned i = 0; i < x->shape.rank; i++) {
        has_batch |= x->shape.dims[i] == WK_DIM_BATCH;
        if (!dim_mul(product, x->shape.dims[i], &product))
            return infer_bad_shape(in, &x->shape);
    }
    if (dim_known(product) || product == WK_DIM_BATCH)
        size = infer_elem_of_dim(product, x->rows);
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
    struct wk_ints from;
    struct wk_elem *elems;
    struct cm_shape shape = {0};
    bool known;
    int64_t value = 0;
    if (attr && attr->tensor->bytes != cm_dtype_size(dtype))
        return wk_node_fail(in->err, CM_INVALID, in->node, "value must be one element");
    enum cm_err code = read_shape_input(in, 0, dtype, &from, &known);
    if (code != CM_OK || !known)
        return code;
    shape.rank = (uint8_t)from.length;
    for (unsigned i = 0; i < shape.rank; i++)
        if (!infer_dim_of_elem(wk_ints_at(&from, i), &shape.dims[i]))
            return wk_node_fail(in->err, CM_INVALID, in->node, "dimension %lld",
                                (long long)wk_ints_at(&from, i).v);
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
        elems[i] = infer_known(value);
    return CM_OK;
}
