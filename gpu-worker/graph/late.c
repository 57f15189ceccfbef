/* Nodes whose shapes depend on data; see late.h. */
#include "gpu-worker/graph/late.h"

#include "common/check.h"
#include "common/clock.h"
#include "gpu-worker/graph/eval.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT32_MAX

/* Where the bytes of a root value are during a run. */
struct slot {
    const void *data;
    void *owned; /* to be freed after the value's last use */
    size_t bytes;
};

struct wk_late {
    struct wk_plan *plan;
    const char *base;
    uint32_t n_nodes;
    uint32_t *nodes;    /* of the graph, in order */
    uint32_t *last_use; /* per root value: position of its last user in nodes; NEVER: an output */
    struct slot *slots; /* per value */
    struct wk_fact *facts;  /* per value: of this run */
    bool *is_ours;          /* per value: made by a late node */
    struct wk_flow **flows; /* per late node: control flow */
    const void **in;        /* room for the operands of one node */
    void **out;
    struct wk_tensor *tensors;
    struct wk_arena tables; /* of all the above */
    struct wk_arena arena;  /* of this run */
    size_t live_bytes;
};

/* ---- making ---------------------------------------------------------------------------------- */

static enum cm_err take_tables(struct wk_late *late, struct cm_error *err)
{
    const struct wk_graph *graph = late->plan->graph;
    unsigned max_in = 1, max_out = 1;
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        max_in = graph->nodes[i].n_in > max_in ? graph->nodes[i].n_in : max_in;
        max_out = graph->nodes[i].n_out > max_out ? graph->nodes[i].n_out : max_out;
    }
    struct wk_arena *arena = &late->tables;
    late->nodes = wk_arena_take(arena, graph->n_nodes, sizeof *late->nodes);
    late->last_use = wk_arena_take(arena, graph->n_values, sizeof *late->last_use);
    late->slots = wk_arena_take(arena, graph->n_values, sizeof *late->slots);
    late->facts = wk_arena_take(arena, graph->n_values, sizeof *late->facts);
    late->is_ours = wk_arena_take(arena, graph->n_values, sizeof *late->is_ours);
    late->flows = wk_arena_take(arena, graph->n_nodes, sizeof *late->flows);
    late->in = wk_arena_take(arena, max_in, sizeof *late->in);
    late->out = wk_arena_take(arena, max_out, sizeof *late->out);
    late->tensors = wk_arena_take(arena, max_out, sizeof *late->tensors);
    if (!late->nodes || !late->last_use || !late->slots || !late->facts || !late->is_ours ||
        !late->flows || !late->in || !late->out || !late->tensors)
        return cm_fail(err, CM_NOMEM, "out of memory while planning");
    return CM_OK;
}

static enum cm_err list_nodes(struct wk_late *late, const bool *is_late, struct cm_error *err)
{
    struct wk_plan *plan = late->plan;
    const struct wk_graph *graph = plan->graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++) {
        const struct wk_node *node = &graph->nodes[i];
        if (!is_late[i])
            continue;
        for (unsigned k = 0; k < node->n_in; k++)
            if (node->in[k] >= 0)
                late->last_use[graph->roots[node->in[k]]] = late->n_nodes;
        for (unsigned k = 0; k < node->n_out; k++)
            if (node->out[k] >= 0) {
                late->is_ours[node->out[k]] = true;
                late->last_use[graph->roots[node->out[k]]] = late->n_nodes;
            }
        if (wk_node_has_graphs(node))
            code = wk_flow_create(plan->backend, graph, node, late->base, plan->facts, err,
                                  &late->flows[late->n_nodes]);
        late->nodes[late->n_nodes++] = i;
    }
    for (uint32_t i = 0; i < graph->n_outputs; i++)
        late->last_use[graph->roots[graph->outputs[i]]] = NEVER;
    return code;
}

enum cm_err wk_late_create(struct wk_plan *plan, const void *base, const bool *is_late,
                           struct cm_error *err, struct wk_late **ret_late)
{
    struct wk_late *late = calloc(1, sizeof *late);
    if (!late)
        return cm_fail(err, CM_NOMEM, "out of memory while planning");
    late->plan = plan;
    late->base = base;
    enum cm_err code = take_tables(late, err);
    if (code == CM_OK)
        code = list_nodes(late, is_late, err);
    if (code == CM_OK)
        *ret_late = late;
    else
        wk_late_destroy(late);
    return code;
}

/* Ends what the run before this one has left. */
static void forget_run(struct wk_late *late)
{
    for (uint32_t i = 0; i < late->n_nodes; i++) {
        const struct wk_node *node = &late->plan->graph->nodes[late->nodes[i]];
        for (unsigned k = 0; k < node->n_out; k++)
            if (node->out[k] >= 0) {
                free(late->slots[node->out[k]].owned);
                late->slots[node->out[k]] = (struct slot){0};
            }
    }
    wk_arena_fini(&late->arena);
    late->live_bytes = 0;
}

void wk_late_destroy(struct wk_late *late)
{
    if (!late)
        return;
    if (late->slots)
        forget_run(late);
    for (uint32_t i = 0; late->flows && i < late->n_nodes; i++)
        wk_flow_destroy(late->flows[i]);
    wk_arena_fini(&late->tables);
    free(late);
}

const void **wk_late_slot(struct wk_late *late, int32_t value)
{
    return &late->slots[value].data;
}

struct wk_flow *wk_late_flow(const struct wk_late *late, uint32_t node)
{
    for (uint32_t i = 0; i < late->n_nodes; i++)
        if (late->nodes[i] == node)
            return late->flows[i];
    return NULL;
}

const struct wk_fact *wk_late_fact(const struct wk_late *late, int32_t value)
{
    return &late->facts[value];
}

const void *wk_late_data(const struct wk_late *late, int32_t value)
{
    const struct slot *slot = &late->slots[late->plan->graph->roots[value]];
    return slot->data ? slot->data : late->facts[value].data;
}

/* ---- one node -------------------------------------------------------------------------------- */

/* What decides shapes is looked at more than once: by the rule, for its memory, by the kernel. It
 * must be the same each time, also where it is an input of the model, which lies in the memory of
 * another process. */
static enum cm_err copy_operand(struct wk_late *late, const struct wk_fact *fact, const void **data,
                                struct cm_error *err)
{
    size_t bytes = 0;
    CM_ASSERT(cm_shape_bytes(&fact->shape, fact->dtype, &bytes) == CM_OK);
    void *copy = wk_arena_take(&late->arena, bytes, 1);
    if (!copy)
        return cm_fail(err, CM_NOMEM, "no memory for what decides a shape");
    if (bytes)
        memcpy(copy, *data, bytes);
    *data = copy;
    return CM_OK;
}

/* Addresses of all operands, and their contents for the rule: it may look at all of them. */
static enum cm_err find_operands(struct wk_late *late, uint32_t index, struct cm_error *err)
{
    const struct wk_graph *graph = late->plan->graph;
    const struct wk_node *node = &graph->nodes[index];
    const struct wk_weights *weights = graph->weights;
    for (unsigned k = 0; k < node->n_in; k++) {
        int32_t value = node->in[k];
        late->in[k] = NULL;
        if (value < 0)
            continue;
        uint32_t item = weights->of_input[weights->first_in[index] + k];
        const struct slot *slot = &late->slots[graph->roots[value]];
        struct wk_fact *fact = &late->facts[value];
        bool known;
        if (item != WK_NO_WEIGHT) {
            /* Packed, perhaps; as contents only what the rule has anyway. */
            late->in[k] = late->base + weights->items[item].offset;
            continue;
        }
        late->in[k] = slot->data;
        /* An operand before this one, which decided nothing, may have left the value uncopied. */
        bool copied = !slot->owned && wk_operand_decides(node, k);
        bool known_as_is = fact->data && fact->data == slot->data;
        if (slot->data && (!fact->data || (copied && known_as_is)) && wk_fact_is_settled(fact)) {
            enum cm_err code = copied ? copy_operand(late, fact, &late->in[k], err) : CM_OK;
            if (code == CM_OK)
                code = wk_fact_know(fact, late->in[k], &late->arena, err);
            if (code != CM_OK)
                return code;
        }
        if (!slot->data)
            late->in[k] = wk_fact_contents(fact, &late->arena, &known);
    }
    return CM_OK;
}

static void drop_dead(struct wk_late *late, uint32_t at, const int32_t *values, unsigned count)
{
    for (unsigned k = 0; k < count; k++) {
        int32_t root = values[k] < 0 ? -1 : late->plan->graph->roots[values[k]];
        struct slot *slot = root < 0 ? NULL : &late->slots[root];
        if (slot && slot->owned && late->last_use[root] == at) {
            late->live_bytes -= slot->bytes;
            free(slot->owned);
            *slot = (struct slot){0};
        }
    }
}

static enum cm_err own(struct wk_late *late, const struct wk_node *node, unsigned k,
                       struct wk_tensor *tensor, struct cm_error *err)
{
    size_t bytes = 0;
    CM_ASSERT(cm_shape_bytes(&tensor->shape, tensor->dtype, &bytes) == CM_OK);
    late->slots[node->out[k]] = (struct slot){tensor->data, tensor->owned, bytes};
    tensor->owned = NULL;
    late->live_bytes += bytes;
    if (late->live_bytes > WK_MAX_PLAN_BYTES)
        return wk_node_fail(err, CM_LIMIT, node, "the run needs more than %zu bytes of memory",
                            WK_MAX_PLAN_BYTES);
    return CM_OK;
}

static enum cm_err run_flow(struct wk_late *late, uint32_t at, const struct wk_node *node,
                            struct cm_error *err)
{
    memset(late->tensors, 0, node->n_out * sizeof *late->tensors);
    enum cm_err code = wk_flow_run(late->flows[at], late->facts, late->in, late->tensors, err);
    for (unsigned k = 0; k < node->n_out; k++) {
        struct wk_tensor *tensor = &late->tensors[k];
        enum cm_dtype at_load =
            node->out[k] < 0 ? CM_DTYPE_NONE : late->plan->graph->facts[node->out[k]].dtype;
        /* What follows was checked, and packed, for that type. */
        if (code == CM_OK && at_load != CM_DTYPE_NONE && at_load != tensor->dtype)
            code = wk_node_fail(err, CM_INVALID, node, "output %u must be %s but is %s", k,
                                cm_dtype_name(at_load), cm_dtype_name(tensor->dtype));
        if (code == CM_OK && node->out[k] >= 0) {
            late->facts[node->out[k]] =
                (struct wk_fact){.dtype = tensor->dtype, .shape = tensor->shape};
            code = own(late, node, k, tensor, err);
        }
        wk_tensor_fini(tensor);
    }
    return code;
}

/* Contents that the rule has found become the outputs' bytes. */
static enum cm_err take_folded(struct wk_late *late, const struct wk_node *node,
                               struct cm_error *err)
{
    for (unsigned k = 0; k < node->n_out; k++) {
        bool known;
        if (node->out[k] < 0)
            continue;
        late->slots[node->out[k]].data =
            wk_fact_contents(&late->facts[node->out[k]], &late->arena, &known);
        if (!known || !late->slots[node->out[k]].data)
            return wk_node_fail(err, known ? CM_NOMEM : CM_INTERNAL, node, "cannot be settled");
    }
    return CM_OK;
}

static enum cm_err run_kernel(struct wk_late *late, const struct wk_node *node,
                              struct cm_error *err)
{
    struct wk_plan *plan = late->plan;
    const struct wk_graph *graph = plan->graph;
    bool empty = true;
    for (unsigned k = 0; k < node->n_out; k++) {
        struct wk_tensor tensor = {0};
        late->out[k] = NULL;
        if (node->out[k] < 0)
            continue;
        const struct wk_fact *fact = &late->facts[node->out[k]];
        enum cm_err code = wk_tensor_make(&tensor, fact->dtype, &fact->shape, err);
        if (code == CM_OK)
            code = own(late, node, k, &tensor, err);
        if (code != CM_OK)
            return code;
        late->out[k] = late->slots[node->out[k]].owned;
        empty = empty && late->slots[node->out[k]].bytes == 0;
    }
    /* What is packed is handed to prepare as well. */
    const void **constants = wk_arena_take(&late->arena, node->n_in, sizeof *constants);
    if (!constants)
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    const struct wk_weights *weights = graph->weights;
    uint32_t first = weights->first_in[node - graph->nodes];
    for (unsigned k = 0; k < node->n_in; k++)
        if (weights->of_input[first + k] != WK_NO_WEIGHT && !node->loose)
            constants[k] = late->in[k];
    struct wk_call call = {graph, node, late->facts, constants};
    enum cm_err code = plan->backend->ops->supports(plan->backend, &call, err);
    return code == CM_OK && !empty ? wk_eval_run(plan->backend, &call, late->in, late->out, err)
                                   : code;
}

static enum cm_err run_node(struct wk_late *late, uint32_t at, struct cm_error *err)
{
    struct wk_plan *plan = late->plan;
    const struct wk_node *node = &plan->graph->nodes[late->nodes[at]];
    struct wk_walk walk = {plan->graph, late->facts, &late->arena, err, NULL, false, false, NULL};
    enum cm_err code = find_operands(late, late->nodes[at], err);
    if (code != CM_OK)
        return code;
    if (wk_node_has_graphs(node)) {
        code = run_flow(late, at, node, err);
    } else {
        code = wk_infer_node(&walk, node);
        if (code == CM_OK && wk_node_is_folded(node, late->facts))
            code = take_folded(late, node, err);
        else if (code == CM_OK)
            code = wk_eval_measure(plan->backend, plan->graph, node, late->facts, late->in, err);
        if (code == CM_OK && !wk_node_is_view(node) && !wk_node_is_folded(node, late->facts))
            code = run_kernel(late, node, err);
    }
    if (code == CM_OK) {
        drop_dead(late, at, node->in, node->n_in);
        drop_dead(late, at, node->out, node->n_out);
    }
    return code;
}

enum cm_err wk_late_run(struct wk_late *late, struct cm_error *err)
{
    enum cm_err code = CM_OK;
    forget_run(late);
    memcpy(late->facts, late->plan->facts, late->plan->graph->n_values * sizeof *late->facts);
    for (uint32_t i = 0; i < late->n_nodes && code == CM_OK; i++) {
        uint64_t start_ns = wk_plan_is_timed(late->plan) ? cm_now_ns() : 0;
        code = run_node(late, i, err);
        if (wk_plan_is_timed(late->plan))
            wk_plan_add_time(late->plan, &late->plan->graph->nodes[late->nodes[i]],
                             cm_now_ns() - start_ns);
    }
    return code;
}
