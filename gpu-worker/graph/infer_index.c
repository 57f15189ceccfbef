/* Shape rules of operators that pick or place elements by index: the Gather and Scatter families,
 * OneHot, NonZero, Compress, ReverseSequence, Trilu and Range. See infer_move.h. */
#include "gpu-worker/graph/infer_move.h"

#include "common/check.h"

#include <math.h>
#include <string.h>

/* ---- Gather ---------------------------------------------------------------------------------- */

/* What an index that is not known yet may pick: the batch's size, if that is among the elements. */
static enum wk_elem_kind any_of(const struct wk_fact *x)
{
    bool fixed = true;
    for (uint32_t i = 0; fixed && i < x->n_elems; i++)
        fixed = x->elems[i].kind == WK_ELEM_KNOWN || x->elems[i].kind == WK_ELEM_ANY;
    return fixed ? WK_ELEM_ANY : WK_ELEM_MIXED;
}

enum cm_err infer_gather(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *indices = infer_in(in, 1);
    struct cm_shape shape = {0};
    struct wk_elem *elems;
    unsigned axis;
    enum cm_err code = infer_check_indices(in, 1, true);
    if (code != CM_OK)
        return code;
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
    const enum wk_elem_kind any = any_of(x);
    code = infer_track(in, x->dtype, &shape, &elems);
    for (unsigned i = 0; i < indices->n_elems && code == CM_OK && elems; i++) {
        struct wk_elem index = indices->elems[i];
        if (index.kind != WK_ELEM_KNOWN) {
            elems[i].kind = index.kind == WK_ELEM_ANY ? any : WK_ELEM_MIXED;
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

/* Dimensions that are both known must be equal; the known one is kept. */
static bool same_dim(int64_t a, int64_t b)
{
    return !dim_known(a) || !dim_known(b) || a == b;
}

/* indices and x of the -Elements operators: one rank, and indices no longer than x beside axis. */
static enum cm_err check_elements(struct infer *in, unsigned *ret_axis)
{
    const struct cm_shape *x = &infer_in(in, 0)->shape, *indices = &infer_in(in, 1)->shape;
    enum cm_err code = infer_check_indices(in, 1, true);
    if (code != CM_OK)
        return code;
    if (!wk_axis(wk_node_int(in->node, "axis", 0), x->rank, ret_axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is out of range");
    bool fits = indices->rank == x->rank;
    for (unsigned i = 0; fits && i < x->rank; i++)
        fits = i == *ret_axis || !dim_known(indices->dims[i]) || !dim_known(x->dims[i]) ||
               indices->dims[i] <= x->dims[i];
    return fits ? CM_OK : infer_bad_shape(in, indices);
}

enum cm_err infer_gather_elements(struct infer *in)
{
    unsigned axis;
    enum cm_err code = check_elements(in, &axis);
    return code == CM_OK ? infer_set(in, infer_in(in, 0)->dtype, &infer_in(in, 1)->shape) : code;
}

enum cm_err infer_gather_nd(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *indices = infer_in(in, 1);
    int64_t batch = wk_node_int(in->node, "batch_dims", 0);
    unsigned rank = indices->shape.rank, least = rank < x->shape.rank ? rank : x->shape.rank;
    struct cm_shape shape = {0};
    enum cm_err code = infer_check_indices(in, 1, false);
    if (code != CM_OK)
        return code;
    if (rank < 1 || x->shape.rank < 1 || batch < 0 || batch >= least)
        return wk_node_fail(in->err, CM_INVALID, in->node, "batch_dims %lld is out of range",
                            (long long)batch);
    for (unsigned i = 0; i < batch; i++)
        if (!same_dim(x->shape.dims[i], indices->shape.dims[i]))
            return infer_bad_shape(in, &indices->shape);
    int64_t tuple = indices->shape.dims[rank - 1];
    if (!dim_known(tuple))
        return infer_later(in, 0, x->dtype, -1);
    if (tuple < 1 || tuple > x->shape.rank - batch)
        return infer_bad_shape(in, &indices->shape);
    if (rank - 1 + x->shape.rank - (unsigned)batch - (unsigned)tuple > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    for (unsigned i = 0; i + 1 < rank; i++)
        shape.dims[shape.rank++] = indices->shape.dims[i];
    for (unsigned i = (unsigned)(batch + tuple); i < x->shape.rank; i++)
        shape.dims[shape.rank++] = x->shape.dims[i];
    return infer_set(in, x->dtype, &shape);
}

/* ---- Scatter --------------------------------------------------------------------------------- */

static enum cm_err check_updates(struct infer *in, const struct cm_shape *want)
{
    const struct wk_fact *updates = infer_in(in, 2);
    bool fits = updates->shape.rank == want->rank;
    for (unsigned i = 0; fits && i < want->rank; i++)
        fits = same_dim(updates->shape.dims[i], want->dims[i]);
    if (!fits)
        return infer_bad_shape(in, &updates->shape);
    if (updates->dtype != infer_in(in, 0)->dtype)
        return wk_node_fail(in->err, CM_INVALID, in->node, "data is %s and updates are %s",
                            cm_dtype_name(infer_in(in, 0)->dtype), cm_dtype_name(updates->dtype));
    return CM_OK;
}

enum cm_err infer_scatter_elements(struct infer *in)
{
    unsigned axis;
    enum cm_err code = check_elements(in, &axis);
    if (code == CM_OK)
        code = check_updates(in, &infer_in(in, 1)->shape);
    return code == CM_OK ? infer_set(in, infer_in(in, 0)->dtype, &infer_in(in, 0)->shape) : code;
}

enum cm_err infer_scatter_nd(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *indices = infer_in(in, 1);
    unsigned rank = indices->shape.rank;
    struct cm_shape want = {0};
    enum cm_err code = infer_check_indices(in, 1, false);
    if (code != CM_OK)
        return code;
    if (rank < 1 || x->shape.rank < 1)
        return infer_bad_shape(in, &indices->shape);
    int64_t tuple = indices->shape.dims[rank - 1];
    if (!dim_known(tuple))
        return infer_set(in, x->dtype, &x->shape);
    if (tuple < 1 || tuple > x->shape.rank)
        return infer_bad_shape(in, &indices->shape);
    if (rank - 1 + x->shape.rank - (unsigned)tuple > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    for (unsigned i = 0; i + 1 < rank; i++)
        want.dims[want.rank++] = indices->shape.dims[i];
    for (unsigned i = (unsigned)tuple; i < x->shape.rank; i++)
        want.dims[want.rank++] = x->shape.dims[i];
    code = check_updates(in, &want);
    return code == CM_OK ? infer_set(in, x->dtype, &x->shape) : code;
}

/* ---- made from indices ----------------------------------------------------------------------- */

enum cm_err infer_one_hot(struct infer *in)
{
    const struct wk_fact *indices = infer_in(in, 0), *values = infer_in(in, 2);
    struct cm_shape shape = {.rank = (uint8_t)(indices->shape.rank + 1)};
    double depth;
    unsigned axis;
    enum cm_err code = infer_check_scalar(in, 1);
    if (code != CM_OK)
        return code;
    if (shape.rank > CM_MAX_RANK)
        return wk_node_fail(in->err, CM_LIMIT, in->node, "more than %d dimensions", CM_MAX_RANK);
    if (!wk_axis(wk_node_int(in->node, "axis", -1), shape.rank, &axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is out of range");
    if (values->shape.rank != 1 || !same_dim(values->shape.dims[0], 2))
        return infer_bad_shape(in, &values->shape);
    if (indices->dtype == CM_BOOL || infer_in(in, 1)->dtype == CM_BOOL)
        return wk_node_fail(in->err, CM_INVALID, in->node, "indices and depth must be numbers");
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = i < axis   ? indices->shape.dims[i]
                        : i > axis ? indices->shape.dims[i - 1]
                                   : 0;
    shape.dims[axis] = WK_DIM_ANY;
    if (wk_fact_number(infer_in(in, 1), 0, &depth)) {
        if (!(depth >= 0 && depth <= (double)WK_MAX_DIM))
            return wk_node_fail(in->err, CM_INVALID, in->node, "depth %g is out of range", depth);
        shape.dims[axis] = (int64_t)depth;
    }
    return infer_set(in, values->dtype, &shape);
}

/* Data decides how many there are. */
enum cm_err infer_non_zero(struct infer *in)
{
    struct cm_shape shape = {.rank = 2, .dims = {infer_in(in, 0)->shape.rank, WK_DIM_ANY}};
    return infer_set(in, CM_INT64, &shape);
}

enum cm_err infer_compress(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *condition = infer_in(in, 1);
    const struct wk_attr *attr = wk_node_attr(in->node, "axis");
    struct cm_shape shape = x->shape;
    unsigned axis = 0;
    if (condition->dtype != CM_BOOL || condition->shape.rank != 1)
        return wk_node_fail(in->err, CM_INVALID, in->node, "condition must be a vector of BOOL");
    if (attr && !wk_axis(attr->i, x->shape.rank, &axis))
        return wk_node_fail(in->err, CM_INVALID, in->node, "axis is out of range");
    if (!attr)
        shape.rank = 1;
    shape.dims[axis] = WK_DIM_ANY;
    return infer_set(in, x->dtype, &shape);
}

enum cm_err infer_reverse_sequence(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0), *lengths = infer_in(in, 1);
    int64_t time = wk_node_int(in->node, "time_axis", 0);
    int64_t batch = wk_node_int(in->node, "batch_axis", 1);
    if (x->shape.rank < 2)
        return infer_bad_shape(in, &x->shape);
    if (batch == time)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "time_axis and batch_axis must be 0 and 1 or 1 and 0");
    enum cm_err code = infer_check_indices(in, 1, false);
    if (code != CM_OK)
        return code;
    if (lengths->shape.rank != 1 || !same_dim(lengths->shape.dims[0], x->shape.dims[batch]))
        return infer_bad_shape(in, &lengths->shape);
    return infer_set(in, x->dtype, &x->shape);
}

/* ---- triangles and ranges ------------------------------------------------------------------- */

enum cm_err infer_trilu(struct infer *in)
{
    const struct wk_fact *x = infer_in(in, 0);
    if (x->shape.rank < 2)
        return infer_bad_shape(in, &x->shape);
    if (infer_in(in, 1)) {
        enum cm_err code = infer_check_indices(in, 1, false);
        if (code == CM_OK)
            code = infer_check_scalar(in, 1);
        if (code != CM_OK)
            return code;
    }
    return infer_set(in, x->dtype, &x->shape);
}

/* ceil((limit - start) / step), not below 0: exact in integers. */
static int64_t integer_count(int64_t start, int64_t limit, int64_t step)
{
    if (step > 0 ? start >= limit : start <= limit)
        return 0;
    uint64_t span =
        step > 0 ? (uint64_t)limit - (uint64_t)start : (uint64_t)start - (uint64_t)limit;
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
    uint64_t count = (span - 1) / stride + 1;
    return count > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)count;
}

enum cm_err wk_range_resolve(const struct wk_node *node, const struct wk_fact *facts,
                             struct cm_error *err, struct wk_range *ret)
{
    const struct wk_fact *operands[3];
    double v[3] = {0, 0, 0};
    int64_t n[3] = {0, 0, 0};
    bool known = true;
    for (unsigned k = 0; k < 3; k++) {
        operands[k] = &facts[node->in[k]];
        known = known && wk_fact_number(operands[k], 0, &v[k]);
        (void)wk_fact_integer(operands[k], 0, &n[k]);
    }
    enum cm_dtype dtype = operands[0]->dtype;
    *ret = (struct wk_range){n[0], n[2], WK_DIM_ANY, v[0], v[2]};
    if (!known)
        return CM_OK;
    if (v[2] == 0)
        return wk_node_fail(err, CM_INVALID, node, "delta 0");
    if (dtype != CM_FP32 && dtype != CM_FP64) {
        ret->length = integer_count(n[0], n[1], n[2]);
    } else {
        /* The difference is one of the type's, the quotient one of doubles. */
        double span = dtype == CM_FP32 ? (double)((float)v[1] - (float)v[0]) : v[1] - v[0];
        double count = ceil(span / v[2]);
        if (!(count < (double)WK_MAX_DIM))
            return wk_node_fail(err, CM_LIMIT, node, "a range of %g elements", count);
        ret->length = count > 0 ? (int64_t)count : 0;
    }
    if (ret->length > WK_MAX_DIM)
        return wk_node_fail(err, CM_LIMIT, node, "a range of %lld elements",
                            (long long)ret->length);
    return CM_OK;
}

enum cm_err infer_range(struct infer *in)
{
    enum cm_dtype dtype = infer_in(in, 0)->dtype;
    struct wk_range range;
    struct wk_elem *elems;
    enum cm_err code = CM_OK;
    if (dtype != CM_INT16 && dtype != CM_INT32 && dtype != CM_INT64 && dtype != CM_FP32 &&
        dtype != CM_FP64)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "not supported for %s",
                            cm_dtype_name(dtype));
    for (unsigned k = 0; k < 3 && code == CM_OK; k++) {
        code = infer_check_scalar(in, k);
        if (infer_in(in, k)->dtype != dtype)
            return wk_node_fail(in->err, CM_INVALID, in->node, "operands have types %s and %s",
                                cm_dtype_name(dtype), cm_dtype_name(infer_in(in, k)->dtype));
    }
    if (code == CM_OK)
        code = wk_range_resolve(in->node, in->facts, in->err, &range);
    if (code != CM_OK)
        return code;
    struct cm_shape shape = {.rank = 1, .dims = {range.length}};
    infer_set(in, dtype, &shape);
    if (!dim_known(range.length))
        return CM_OK;
    code = infer_track(in, dtype, &shape, &elems);
    for (int64_t i = 0; i < range.length && code == CM_OK && elems; i++)
        elems[i] =
            infer_known((int64_t)((uint64_t)range.start + (uint64_t)i * (uint64_t)range.step));
    return code;
}
