/* Layout and packing of constants; see weights.h. The owner's thread. */
#include "gpu-worker/graph/weights.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

/* A shared item like this one that exists already, or WK_NO_WEIGHT. */
static uint32_t find_item(const struct wk_weights *weights, int32_t value,
                          const struct wk_layout *layout)
{
    uint32_t i = weights->of_value[value];
    while (i != WK_NO_WEIGHT &&
           (weights->items[i].kind != layout->kind || weights->items[i].bytes != layout->bytes))
        i = weights->items[i].next;
    return layout->shared ? i : WK_NO_WEIGHT;
}

static enum cm_err add_item(struct wk_weights *weights, struct wk_weight item, struct cm_error *err,
                            uint32_t *ret_index)
{
    if (weights->n == weights->room) {
        uint32_t room = weights->room ? weights->room * 2 : 64;
        struct wk_weight *grown = realloc(weights->items, room * sizeof *grown);
        if (!grown)
            return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
        weights->items = grown;
        weights->room = room;
    }
    item.offset = weights->bytes;
    item.next = item.shared ? weights->of_value[item.value] : WK_NO_WEIGHT;
    if (!cm_size_add(weights->bytes, item.bytes, &weights->bytes) ||
        !cm_size_align(weights->bytes, WK_ALIGN, &weights->bytes) ||
        weights->bytes > WK_MAX_WEIGHT_BYTES)
        return cm_fail(err, CM_LIMIT, "the model's weights are too large");
    if (item.shared)
        weights->of_value[item.value] = weights->n;
    *ret_index = weights->n;
    weights->items[weights->n++] = item;
    return CM_OK;
}

static enum cm_err lay_out_input(struct wk_weights *weights, const struct wk_backend *backend,
                                 const struct wk_call *call, uint32_t node, unsigned k,
                                 struct cm_error *err, uint32_t *ret_index)
{
    int32_t value = call->node->in[k];
    struct wk_layout layout = {.kind = WK_LAYOUT_PLAIN, .shared = true};
    backend->ops->layout(backend, call, k, &layout);
    if (layout.kind == WK_LAYOUT_NONE)
        return CM_OK;
    if (layout.kind == WK_LAYOUT_PLAIN)
        layout.bytes = call->graph->values[value].constant->bytes;
    *ret_index = find_item(weights, value, &layout);
    if (*ret_index != WK_NO_WEIGHT)
        return CM_OK;
    return add_item(weights,
                    (struct wk_weight){.value = value,
                                       .node = node,
                                       .input = (uint16_t)k,
                                       .kind = layout.kind,
                                       .shared = layout.shared,
                                       .bytes = layout.bytes},
                    err, ret_index);
}

static enum cm_err lay_out_node(struct wk_weights *weights, const struct wk_backend *backend,
                                const struct wk_graph *graph, uint32_t i, struct cm_error *err)
{
    const struct wk_node *node = &graph->nodes[i];
    struct wk_call call = {.graph = graph, .node = node, .facts = graph->facts};
    if (wk_node_is_folded(node, graph->facts))
        return CM_OK;
    /* What only looks at shapes needs no kernel, also if they are not known yet. */
    bool runs = !wk_node_is_view(node) && !wk_node_has_graphs(node) &&
                !(wk_op_traits(node->op) & WK_SHAPE_ONLY);
    enum cm_err code = !runs ? CM_OK : backend->ops->supports(backend, &call, err);
    for (unsigned k = 0; k < node->n_in && code == CM_OK; k++)
        /* What is known element by element is written into each plan instead. */
        if (wk_call_in(&call, k) && graph->values[node->in[k]].constant &&
            !wk_operand_is_static(node, k) && !graph->facts[node->in[k]].elems)
            code = lay_out_input(weights, backend, &call, i, k, err,
                                 &weights->of_input[weights->first_in[i] + k]);
    return code;
}

static enum cm_err take_tables(struct wk_weights *weights, struct wk_graph *graph,
                               struct cm_error *err)
{
    size_t n_inputs = 0;
    weights->first_in = wk_arena_take(&graph->arena, graph->n_nodes, sizeof(uint32_t));
    weights->of_value = wk_arena_take(&graph->arena, graph->n_values, sizeof(uint32_t));
    for (uint32_t i = 0; i < graph->n_nodes && weights->first_in; i++) {
        weights->first_in[i] = (uint32_t)n_inputs;
        n_inputs += graph->nodes[i].n_in;
    }
    weights->of_input = wk_arena_take(&graph->arena, n_inputs, sizeof(uint32_t));
    weights->of_output = wk_arena_take(&graph->arena, graph->n_outputs, sizeof(uint32_t));
    if (!weights->first_in || !weights->of_value || !weights->of_input || !weights->of_output ||
        n_inputs > UINT32_MAX)
        return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
    memset(weights->of_value, 0xff, graph->n_values * sizeof(uint32_t));
    memset(weights->of_input, 0xff, n_inputs * sizeof(uint32_t));
    memset(weights->of_output, 0xff, graph->n_outputs * sizeof(uint32_t));
    return CM_OK;
}

/* Constants that reach an output or, through a view, a node: stored plain. */
static enum cm_err lay_out_plain(struct wk_weights *weights, const struct wk_graph *graph,
                                 int32_t value, struct cm_error *err, uint32_t *ret_index)
{
    int32_t root = graph->roots[value];
    const struct wk_const *constant = graph->values[root].constant;
    if (!constant || graph->facts[root].elems)
        return CM_OK;
    struct wk_layout layout = {WK_LAYOUT_PLAIN, constant->bytes, true};
    *ret_index = find_item(weights, root, &layout);
    if (*ret_index != WK_NO_WEIGHT)
        return CM_OK;
    return add_item(
        weights,
        (struct wk_weight){
            .value = root, .kind = WK_LAYOUT_PLAIN, .shared = true, .bytes = constant->bytes},
        err, ret_index);
}

static enum cm_err lay_out_views(struct wk_weights *weights, const struct wk_graph *graph,
                                 struct cm_error *err)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++) {
        const struct wk_node *node = &graph->nodes[i];
        if (wk_node_is_view(node) || wk_node_is_folded(node, graph->facts))
            continue;
        for (unsigned k = 0; k < node->n_in && code == CM_OK; k++)
            if (node->in[k] >= 0 && !graph->values[node->in[k]].constant &&
                !wk_operand_is_static(node, k))
                code = lay_out_plain(weights, graph, node->in[k], err,
                                     &weights->of_input[weights->first_in[i] + k]);
    }
    for (uint32_t i = 0; i < graph->n_outputs && code == CM_OK; i++)
        code = lay_out_plain(weights, graph, graph->outputs[i], err, &weights->of_output[i]);
    return code;
}

static enum cm_err lay_out_subgraph(const struct wk_backend *backend, struct wk_graph *graph,
                                    struct cm_error *err, struct wk_weights *parent)
{
    struct wk_weights *weights = wk_arena_take(&graph->arena, 1, sizeof *weights);
    if (!weights)
        return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
    weights->sibling = parent->child;
    parent->child = weights;
    weights->first_byte = parent->bytes;
    enum cm_err code = wk_weights_lay_out(backend, graph, err, weights);
    if (code == CM_OK && (!cm_size_add(parent->bytes, weights->bytes, &parent->bytes) ||
                          parent->bytes > WK_MAX_WEIGHT_BYTES))
        code = cm_fail(err, CM_LIMIT, "the model's weights are too large");
    return code;
}

enum cm_err wk_weights_lay_out(const struct wk_backend *backend, struct wk_graph *graph,
                               struct cm_error *err, struct wk_weights *weights)
{
    enum cm_err code = take_tables(weights, graph, err);
    graph->weights = weights;
    weights->graph = graph;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++)
        code = lay_out_node(weights, backend, graph, i, err);
    if (code == CM_OK)
        code = lay_out_views(weights, graph, err);
    weights->own_bytes = weights->bytes;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++)
        for (unsigned k = 0; k < graph->nodes[i].n_attrs && code == CM_OK; k++)
            if (graph->nodes[i].attrs[k].graph)
                code = lay_out_subgraph(backend, graph->nodes[i].attrs[k].graph, err, weights);
    return code;
}

void wk_weights_fini(struct wk_weights *weights)
{
    for (struct wk_weights *child = weights->child; child; child = child->sibling)
        wk_weights_fini(child);
    free(weights->items);
    weights->items = NULL;
}

void wk_weights_pack(const struct wk_weights *weights, const struct wk_backend *backend,
                     const struct wk_graph *graph, void *base)
{
    for (uint32_t i = 0; i < weights->n; i++) {
        const struct wk_weight *item = &weights->items[i];
        char *out = (char *)base + item->offset;
        size_t end = i + 1 < weights->n ? weights->items[i + 1].offset : weights->own_bytes;
        if (item->kind == WK_LAYOUT_PLAIN) {
            if (item->bytes)
                memcpy(out, graph->values[item->value].constant->data, item->bytes);
        } else {
            struct wk_call call = {
                .graph = graph, .node = &graph->nodes[item->node], .facts = graph->facts};
            backend->ops->pack(backend, &call, item->input, out);
        }
        /* Padding is defined too: equal keys mean equal bytes. */
        memset(out + item->bytes, 0, end - item->offset - item->bytes);
    }
    for (const struct wk_weights *child = weights->child; child; child = child->sibling)
        wk_weights_pack(child, backend, child->graph, (char *)base + child->first_byte);
}
