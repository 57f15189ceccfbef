/* Scan; see flow.h. */
#include "gpu-worker/graph/flow_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Scan -------------------------------------------------------------------------------------
 */

static int64_t list_entry(const struct wk_node *node, const char *name, uint32_t i)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr && i < attr->count ? attr->ints[i] : 0;
}

/* Scan of opset 8 runs for each row of a batch; later ones have no batch. */
struct scan {
    uint32_t first; /* the node's first state input: 1 in opset 8, behind sequence_lens */
    uint32_t n_state, n_scan;
    bool batched;
    int64_t length;
};

/* The axis that scan input i is cut along, and its length. */
static enum cm_err scan_axis(struct wk_flow *flow, const struct scan *scan, uint32_t i,
                             const struct cm_shape *shape, unsigned *ret_axis, struct cm_error *err)
{
    int64_t axis = scan->batched ? 1 : list_entry(flow->node, "scan_input_axes", i);
    if (!wk_axis(axis, shape->rank, ret_axis))
        return wk_node_fail(err, CM_INVALID, flow->node, "scan axis %lld of %u dimensions",
                            (long long)axis, shape->rank);
    return CM_OK;
}

/* Piece `at` of x along axis (and of row `row` where axis 0 is a batch). */
static enum cm_err cut(const struct wk_tensor *x, unsigned axis, int64_t at, bool batched,
                       int64_t row, struct cm_error *err, struct wk_tensor *ret)
{
    struct cm_shape shape = {0};
    size_t outer = 1, element = cm_dtype_size(x->dtype), inner = element, begin = batched ? 1 : 0;
    for (unsigned i = (unsigned)begin; i < x->shape.rank; i++) {
        if (i == axis)
            continue;
        shape.dims[shape.rank++] = x->shape.dims[i];
        if (i < axis)
            outer *= (size_t)x->shape.dims[i];
        else
            inner *= (size_t)x->shape.dims[i];
    }
    enum cm_err code = wk_tensor_make(ret, x->dtype, &shape, err);
    size_t length = (size_t)x->shape.dims[axis];
    const char *from = x->data;
    if (batched)
        from += (size_t)row * outer * length * inner;
    for (size_t o = 0; o < outer && inner && code == CM_OK; o++)
        memcpy((char *)ret->owned + o * inner, from + (o * length + (size_t)at) * inner, inner);
    return code;
}

static enum cm_err scan_shape(struct wk_flow *flow, const struct wk_fact *facts, struct scan *scan,
                              int64_t *ret_rows, struct cm_error *err)
{
    const struct wk_node *node = flow->node;
    scan->batched = node->opset < 9;
    scan->first = scan->batched ? 1 : 0;
    int64_t n_scan = wk_node_int(node, "num_scan_inputs", 0);
    uint32_t n_rest = node->n_given - scan->first;
    if (n_scan < 1 || n_scan > n_rest)
        return wk_node_fail(err, CM_INVALID, node, "num_scan_inputs = %lld", (long long)n_scan);
    scan->n_scan = (uint32_t)n_scan;
    scan->n_state = n_rest - scan->n_scan;
    scan->length = -1;
    *ret_rows = 1;
    for (uint32_t i = 0; i < n_rest; i++) {
        const struct cm_shape *shape = &facts[node->in[scan->first + i]].shape;
        unsigned axis;
        if (scan->batched && (shape->rank == 0 || (i && shape->dims[0] != *ret_rows)))
            return wk_node_fail(err, CM_INVALID, node, "inputs differ in their batch");
        if (scan->batched)
            *ret_rows = shape->dims[0];
        if (i < scan->n_state)
            continue;
        enum cm_err code = scan_axis(flow, scan, i - scan->n_state, shape, &axis, err);
        if (code != CM_OK)
            return code;
        if (scan->length >= 0 && scan->length != shape->dims[axis])
            return wk_node_fail(err, CM_INVALID, node, "inputs differ in their sequence length");
        scan->length = shape->dims[axis];
    }
    if (scan->length > WK_MAX_TRIPS)
        return wk_node_fail(err, CM_LIMIT, node, "more than %d trips", WK_MAX_TRIPS);
    return CM_OK;
}

/* A state of row `row`: the whole input, or a row of it. */
static struct wk_tensor scan_state(const struct wk_fact *fact, const void *data, bool batched,
                                   int64_t row)
{
    struct wk_tensor state = flow_borrow(fact, data);
    if (batched) {
        state.shape.rank--;
        memmove(state.shape.dims, state.shape.dims + 1, state.shape.rank * sizeof(int64_t));
        state.data = (const char *)data + (size_t)row * flow_tensor_bytes(&state);
    }
    return state;
}

static enum cm_err scan_row(struct wk_flow *flow, const struct scan *scan, struct trips *t,
                            const struct wk_fact *facts, const void *const *in, int64_t row,
                            int64_t length, struct cm_error *err)
{
    const struct wk_node *node = flow->node;
    const char *directions = scan->batched ? "directions" : "scan_input_directions";
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < scan->n_state; i++)
        t->formal[i] =
            scan_state(&facts[node->in[scan->first + i]], in[scan->first + i], scan->batched, row);
    for (int64_t trip = 0; trip < length && code == CM_OK; trip++) {
        for (uint32_t i = 0; i < scan->n_scan && code == CM_OK; i++) {
            uint32_t k = scan->first + scan->n_state + i;
            struct wk_tensor x = flow_borrow(&facts[node->in[k]], in[k]);
            unsigned axis = 0;
            code = scan_axis(flow, scan, i, &x.shape, &axis, err);
            wk_tensor_fini(&t->formal[scan->n_state + i]);
            if (code == CM_OK)
                code = cut(&x, axis, list_entry(node, directions, i) ? length - 1 - trip : trip,
                           scan->batched, row, err, &t->formal[scan->n_state + i]);
        }
        if (code == CM_OK)
            code = flow_trip(flow, t, facts, in, err);
        if (code == CM_OK)
            code = flow_trips_advance(flow, t, 0, 0, err);
    }
    return code;
}

/* Rows of a batch become one tensor. */
static enum cm_err join_row(struct wk_flow *flow, struct wk_tensor *out, struct wk_tensor *row,
                            int64_t at, int64_t rows, int64_t pad_to, struct cm_error *err)
{
    struct cm_shape shape = {.rank = (uint8_t)(row->shape.rank + 1)};
    if (row->shape.rank == CM_MAX_RANK)
        return wk_node_fail(err, CM_INVALID, flow->node, "an output has too many dimensions");
    memcpy(shape.dims + 1, row->shape.dims, row->shape.rank * sizeof(int64_t));
    shape.dims[0] = rows;
    if (pad_to >= 0)
        shape.dims[1] = pad_to;
    enum cm_err code = CM_OK;
    if (at == 0) {
        code = wk_tensor_make(out, row->dtype, &shape, err);
        if (code == CM_OK && flow_tensor_bytes(out))
            memset(out->owned, 0, flow_tensor_bytes(out));
    } else if (row->dtype != out->dtype || !cm_shape_equal(&shape, &out->shape)) {
        code = wk_node_fail(err, CM_INVALID, flow->node,
                            "rows differ in their output's type or shape");
    }
    if (code == CM_OK && flow_tensor_bytes(row))
        memcpy((char *)out->owned + (size_t)at * (flow_tensor_bytes(out) / (size_t)rows), row->data,
               flow_tensor_bytes(row));
    return code;
}

static enum cm_err scan_outputs(struct wk_flow *flow, const struct scan *scan, struct trips *t,
                                int64_t row, int64_t rows, struct wk_tensor *out,
                                struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < flow->node->n_out && code == CM_OK; i++) {
        struct wk_tensor made = {0};
        uint32_t s = i - scan->n_state;
        if (i < scan->n_state) {
            code = flow_give(&t->formal[i], &made, err);
        } else {
            unsigned axis = 0;
            const struct stack *stack = &t->stacks[s];
            unsigned rank =
                (stack->count ? stack->piece.rank : graph->facts[graph->outputs[i]].shape.rank) +
                1u;
            int64_t given = scan->batched ? 0 : list_entry(flow->node, "scan_output_axes", s);
            if (!wk_axis(given, rank, &axis))
                code = wk_node_fail(err, CM_INVALID, flow->node, "scan output axis %lld",
                                    (long long)given);
            if (code == CM_OK)
                code = flow_stack_tensor(flow, stack, axis,
                                         !scan->batched &&
                                             list_entry(flow->node, "scan_output_directions", s),
                                         &graph->facts[graph->outputs[i]], err, &made);
        }
        if (code == CM_OK && scan->batched)
            code = join_row(flow, &out[i], &made, row, rows, i < scan->n_state ? -1 : scan->length,
                            err);
        else if (code == CM_OK)
            out[i] = made, made = (struct wk_tensor){0};
        wk_tensor_fini(&made);
    }
    return code;
}

/* Opset 8 may give each row of the batch a length of its own. */
static enum cm_err row_length(struct wk_flow *flow, const struct scan *scan,
                              const struct wk_fact *facts, const void *const *in, int64_t row,
                              int64_t *ret, struct cm_error *err)
{
    *ret = scan->length;
    if (!scan->batched || flow->node->in[0] < 0)
        return CM_OK;
    const struct wk_fact *lengths = &facts[flow->node->in[0]];
    int64_t count;
    if (lengths->dtype != CM_INT64 || cm_shape_count(&lengths->shape, &count) != CM_OK ||
        row >= count)
        return wk_node_fail(err, CM_INVALID, flow->node, "sequence_lens must be INT64 per row");
    memcpy(ret, (const char *)in[0] + 8 * row, 8);
    if (*ret < 0 || *ret > scan->length)
        return wk_node_fail(err, CM_INVALID, flow->node, "sequence length %lld of %lld",
                            (long long)*ret, (long long)scan->length);
    return CM_OK;
}

enum cm_err flow_run_scan(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                          struct wk_tensor *out, struct cm_error *err)
{
    struct scan scan = {0};
    int64_t rows = 0, length = 0;
    enum cm_err code = scan_shape(flow, facts, &scan, &rows, err);
    for (int64_t row = 0; row < rows && code == CM_OK; row++) {
        struct trips t;
        code = flow_trips_take(flow, &t, scan.n_state, 0, err);
        if (code == CM_OK)
            code = row_length(flow, &scan, facts, in, row, &length, err);
        if (code == CM_OK)
            code = scan_row(flow, &scan, &t, facts, in, row, length, err);
        if (code == CM_OK)
            code = scan_outputs(flow, &scan, &t, row, rows, out, err);
        flow_trips_end(&t);
    }
    if (code == CM_OK && rows == 0)
        code = wk_node_fail(err, CM_UNSUPPORTED, flow->node, "an empty batch is not supported");
    return code;
}
