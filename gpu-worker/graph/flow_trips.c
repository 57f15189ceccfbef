/* What Loop and Scan share: the state that goes from trip to trip, and outputs that grow by a piece
 * per trip. See flow_priv.h. */
#include "gpu-worker/graph/flow_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

/* Of all scan outputs of a node: they are copied once more when the last trip is over. */
#define MAX_STACKED (WK_MAX_PLAN_BYTES / 2)

/* ---- Loop and Scan: tensors that grow by one piece per trip -----------------------------------
 */

static enum cm_err flow_stack_push(struct wk_flow *flow, struct stack *stack,
                                   const struct wk_tensor *piece, struct cm_error *err)
{
    size_t bytes = flow_tensor_bytes(piece);
    if (stack->count == 0) {
        stack->dtype = piece->dtype;
        stack->piece = piece->shape;
        stack->piece_bytes = bytes;
    } else if (stack->dtype != piece->dtype || !cm_shape_equal(&stack->piece, &piece->shape)) {
        return wk_node_fail(err, CM_INVALID, flow->node,
                            "a scan output changes its type or shape from trip to trip");
    }
    if (stack->used + bytes > WK_MAX_TENSOR_BYTES)
        return wk_node_fail(err, CM_LIMIT, flow->node, "a scan output is larger than %zu bytes",
                            WK_MAX_TENSOR_BYTES);
    if (stack->used + bytes > stack->room) {
        size_t room = stack->used + bytes > 2 * stack->room ? stack->used + bytes : 2 * stack->room;
        char *grown = realloc(stack->memory, room);
        if (!grown)
            return wk_node_fail(err, CM_NOMEM, flow->node, "no memory for a scan output");
        stack->memory = grown;
        stack->room = room;
    }
    if (bytes)
        memcpy(stack->memory + stack->used, piece->data, bytes);
    stack->used += bytes;
    stack->count++;
    return CM_OK;
}

/* The stack as a tensor whose axis `axis` counts the pieces, from the last one if reverse. fact
 * tells type and shape of a piece where there was none. */
enum cm_err flow_stack_tensor(struct wk_flow *flow, const struct stack *stack, unsigned axis,
                              bool reverse, const struct wk_fact *fact, struct cm_error *err,
                              struct wk_tensor *ret)
{
    struct cm_shape piece = stack->count ? stack->piece : fact->shape;
    struct cm_shape shape = {.rank = (uint8_t)(piece.rank + 1)};
    if (piece.rank == CM_MAX_RANK || axis > piece.rank)
        return wk_node_fail(err, CM_INVALID, flow->node,
                            "a scan output cannot be stacked along axis %u", axis);
    for (unsigned i = 0; i < shape.rank; i++) {
        int64_t dim = i == axis ? stack->count : piece.dims[i < axis ? i : i - 1];
        shape.dims[i] = dim < 0 ? 0 : dim; /* never computed, so never known */
    }
    enum cm_err code = wk_tensor_make(ret, stack->count ? stack->dtype : fact->dtype, &shape, err);
    if (code != CM_OK)
        return code;
    size_t outer = 1, inner = stack->piece_bytes;
    for (unsigned i = 0; i < axis; i++)
        outer *= (size_t)piece.dims[i];
    inner = outer && stack->count ? stack->piece_bytes / outer : 0;
    for (int64_t p = 0; p < stack->count; p++) {
        int64_t place = reverse ? stack->count - 1 - p : p;
        for (size_t o = 0; o < outer && inner; o++)
            memcpy((char *)ret->owned + (o * (size_t)stack->count + (size_t)place) * inner,
                   stack->memory + (size_t)p * stack->piece_bytes + o * inner, inner);
    }
    return CM_OK;
}

enum cm_err flow_trips_take(struct wk_flow *flow, struct trips *t, uint32_t n_carried,
                            uint32_t before, struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    *t = (struct trips){.n_formal = graph->n_formal,
                        .n_results = graph->n_outputs,
                        .n_carried = n_carried,
                        .n_stacks = graph->n_outputs - before - n_carried};
    t->formal = calloc(t->n_formal + 1, sizeof *t->formal);
    t->results = calloc(t->n_results + 1, sizeof *t->results);
    t->stacks = calloc(t->n_stacks + 1, sizeof *t->stacks);
    return t->formal && t->results && t->stacks
               ? CM_OK
               : wk_node_fail(err, CM_NOMEM, flow->node, "out of memory");
}

void flow_trips_end(struct trips *t)
{
    for (uint32_t i = 0; t->formal && i < t->n_formal; i++)
        wk_tensor_fini(&t->formal[i]);
    for (uint32_t i = 0; t->results && i < t->n_results; i++)
        wk_tensor_fini(&t->results[i]);
    for (uint32_t i = 0; t->stacks && i < t->n_stacks; i++)
        free(t->stacks[i].memory);
    free(t->formal);
    free(t->results);
    free(t->stacks);
}

/* Results [from, from + n_carried) replace the formal inputs from `to` on; the rest is pushed. */
enum cm_err flow_trips_advance(struct wk_flow *flow, struct trips *t, uint32_t from, uint32_t to,
                               struct cm_error *err)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < t->n_carried; i++) {
        if (t->formal[to + i].dtype != t->results[from + i].dtype)
            return wk_node_fail(err, CM_INVALID, flow->node,
                                "carried value %u changes its type from trip to trip", i);
        wk_tensor_fini(&t->formal[to + i]);
        t->formal[to + i] = t->results[from + i];
        t->results[from + i] = (struct wk_tensor){0};
    }
    for (uint32_t i = 0; i < t->n_stacks && code == CM_OK; i++) {
        const struct wk_tensor *piece = &t->results[from + t->n_carried + i];
        t->stacked += flow_tensor_bytes(piece);
        if (t->stacked > MAX_STACKED)
            code = wk_node_fail(err, CM_LIMIT, flow->node,
                                "its scan outputs are larger together than %zu bytes", MAX_STACKED);
        if (code == CM_OK)
            code = flow_stack_push(flow, &t->stacks[i], piece, err);
    }
    for (uint32_t i = 0; i < t->n_results; i++)
        wk_tensor_fini(&t->results[i]);
    return code;
}

/* A carried tensor as an output: what is borrowed is copied. */
enum cm_err flow_give(struct wk_tensor *from, struct wk_tensor *to, struct cm_error *err)
{
    if (from->owned) {
        *to = *from;
        *from = (struct wk_tensor){0};
        return CM_OK;
    }
    enum cm_err code = wk_tensor_make(to, from->dtype, &from->shape, err);
    if (code == CM_OK && flow_tensor_bytes(from))
        memcpy(to->owned, from->data, flow_tensor_bytes(from));
    return code;
}

enum cm_err flow_trip(struct wk_flow *flow, struct trips *t, const struct wk_fact *facts,
                      const void *const *in, struct cm_error *err)
{
    flow_ask(flow, &flow->bodies[0], t->formal, facts, in);
    return flow_run_body(flow, &flow->bodies[0], t->results, err);
}
