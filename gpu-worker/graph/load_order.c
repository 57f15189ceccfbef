/* Nodes in an order in which producers come first, without those that no output needs. The owner's
 * thread; linear in nodes and edges, without recursion. */
#include "gpu-worker/graph/load_priv.h"

/* Marks what the outputs need, walking producers with an explicit stack: depth is the file's. */
static void mark_live(const struct wk_graph *graph, bool *live, uint32_t *stack)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < graph->n_outputs; i++) {
        int32_t producer = graph->values[graph->outputs[i]].producer;
        if (producer >= 0 && !live[producer]) {
            live[producer] = true;
            stack[depth++] = (uint32_t)producer;
        }
    }
    while (depth) {
        const struct wk_node *node = &graph->nodes[stack[--depth]];
        for (unsigned k = 0; k < node->n_in; k++) {
            int32_t producer = node->in[k] < 0 ? -1 : graph->values[node->in[k]].producer;
            if (producer >= 0 && !live[producer]) {
                live[producer] = true;
                stack[depth++] = (uint32_t)producer;
            }
        }
    }
}

/* Kahn's algorithm. waiting[i] counts the inputs of node i that no placed node has produced; edges
 * lead from each producer to its consumers. Linear in nodes and edges, whatever the file's order.
 */
struct order {
    uint32_t *waiting, *first, *next_edge, *edge_node; /* adjacency: producer -> consumers */
    uint32_t *queue;
    bool *live;
};

static bool take_order(struct wk_arena *arena, uint32_t n_nodes, size_t n_edges, struct order *ret)
{
    ret->waiting = wk_arena_take(arena, n_nodes, sizeof(uint32_t));
    ret->first = wk_arena_take(arena, n_nodes, sizeof(uint32_t));
    ret->queue = wk_arena_take(arena, n_nodes, sizeof(uint32_t));
    ret->next_edge = wk_arena_take(arena, n_edges + 1, sizeof(uint32_t));
    ret->edge_node = wk_arena_take(arena, n_edges + 1, sizeof(uint32_t));
    ret->live = wk_arena_take(arena, n_nodes, sizeof(bool));
    return ret->waiting && ret->first && ret->queue && ret->next_edge && ret->edge_node &&
           ret->live;
}

/* Edges from the last node to the first, so that each list is in file order. Edge 0 ends a list. */
static void link_edges(const struct wk_graph *graph, struct order *order)
{
    uint32_t edge = 1;
    for (uint32_t i = graph->n_nodes; i-- > 0;) {
        const struct wk_node *node = &graph->nodes[i];
        for (unsigned k = 0; k < node->n_in && order->live[i]; k++) {
            int32_t producer = node->in[k] < 0 ? -1 : graph->values[node->in[k]].producer;
            if (producer < 0)
                continue;
            order->waiting[i]++;
            order->edge_node[edge] = i;
            order->next_edge[edge] = order->first[producer];
            order->first[producer] = edge++;
        }
    }
}

static uint32_t run_order(const struct wk_graph *graph, struct order *order)
{
    uint32_t placed = 0, tail = 0;
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        if (order->live[i] && order->waiting[i] == 0)
            order->queue[tail++] = i;
    while (placed < tail)
        for (uint32_t edge = order->first[order->queue[placed++]]; edge;
             edge = order->next_edge[edge])
            if (--order->waiting[order->edge_node[edge]] == 0)
                order->queue[tail++] = order->edge_node[edge];
    return placed;
}

static bool is_ordered(const struct wk_graph *graph, const bool *live)
{
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        for (unsigned k = 0; k < graph->nodes[i].n_in && live[i]; k++)
            if (graph->nodes[i].in[k] >= 0 &&
                graph->values[graph->nodes[i].in[k]].producer >= (int32_t)i)
                return false;
    return true;
}

/* Moves the live nodes, in the chosen order, to the front and renumbers producers. */
static enum cm_err apply_order(struct wk_graph *graph, const uint32_t *order, uint32_t count,
                               struct cm_error *err)
{
    struct wk_node *nodes = wk_arena_take(&graph->arena, count, sizeof *nodes);
    if (!nodes)
        return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
    for (uint32_t i = 0; i < graph->n_values; i++)
        graph->values[i].producer = graph->values[i].producer < 0 ? -1 : -2;
    for (uint32_t i = 0; i < count; i++) {
        nodes[i] = graph->nodes[order[i]];
        for (unsigned k = 0; k < nodes[i].n_out; k++)
            if (nodes[i].out[k] >= 0)
                graph->values[nodes[i].out[k]].producer = (int32_t)i;
    }
    graph->nodes = nodes;
    graph->n_nodes = count;
    return CM_OK;
}

enum cm_err wk_load_order(struct wk_graph *graph, struct cm_error *err)
{
    struct wk_arena scratch = {0};
    struct order order;
    size_t n_edges = 0;
    enum cm_err code = CM_OK;
    uint32_t n_live = 0, placed = 0;
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        n_edges += graph->nodes[i].n_in;
    if (!take_order(&scratch, graph->n_nodes, n_edges, &order)) {
        code = cm_fail(err, CM_NOMEM, "out of memory while loading a model");
        goto out;
    }
    mark_live(graph, order.live, order.queue);
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        n_live += order.live[i];
    if (is_ordered(graph, order.live)) {
        /* The file's order is kept: its author may have chosen it for memory. */
        for (uint32_t i = 0; i < graph->n_nodes; i++)
            if (order.live[i])
                order.queue[placed++] = i;
    } else {
        link_edges(graph, &order);
        placed = run_order(graph, &order);
    }
    if (placed < n_live) {
        uint32_t i = 0;
        while (!order.live[i] || order.waiting[i] == 0)
            i++;
        code = wk_node_fail(err, CM_INVALID, &graph->nodes[i],
                            "depends on its own output (the graph has a cycle)");
        goto out;
    }
    code = apply_order(graph, order.queue, placed, err);
out:
    wk_arena_fini(&scratch);
    return code;
}
