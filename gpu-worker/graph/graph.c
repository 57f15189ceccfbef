/* Lookups on a loaded graph and its end. The owner's thread; no kernels, no files. */
#include "gpu-worker/graph/graph.h"

#include "gpu-worker/graph/external.h"
#include "proto/onnx.pb-c.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct wk_attr *wk_node_attr(const struct wk_node *node, const char *name)
{
    for (unsigned i = 0; i < node->n_attrs; i++)
        if (strcmp(node->attrs[i].name, name) == 0)
            return &node->attrs[i];
    return NULL;
}

int64_t wk_node_int(const struct wk_node *node, const char *name, int64_t otherwise)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr ? attr->i : otherwise;
}

float wk_node_float(const struct wk_node *node, const char *name, float otherwise)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr ? attr->f : otherwise;
}

const char *wk_node_string(const struct wk_node *node, const char *name, const char *otherwise)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr ? attr->s : otherwise;
}

bool wk_node_has_graphs(const struct wk_node *node)
{
    return node->op == WK_OP_If || node->op == WK_OP_Loop || node->op == WK_OP_Scan;
}

bool wk_dims_fit(const struct cm_shape *shape)
{
    for (unsigned i = 0; i < shape->rank; i++)
        if (shape->dims[i] > WK_MAX_DIM)
            return false;
    return true;
}

const char *wk_printable(const char *name, char *buffer, size_t size)
{
    size_t i = 0;
    for (; i + 1 < size && name[i]; i++) {
        buffer[i] = '?';
        if (name[i] >= 0x20 && name[i] < 0x7f)
            buffer[i] = name[i];
    }
    buffer[i] = 0;
    return buffer;
}

enum cm_err wk_node_fail(struct cm_error *err, enum cm_err code, const struct wk_node *node,
                         const char *format, ...)
{
    char name[96], what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (node->name[0])
        return cm_fail(err, code, "node \"%s\" (%s, opset %d): %s",
                       wk_printable(node->name, name, sizeof name), wk_op_name(node->op),
                       node->opset, what);
    return cm_fail(err, code, "node %u (%s, opset %d): %s", node->position, wk_op_name(node->op),
                   node->opset, what);
}

void wk_graph_drop_proto(struct wk_graph *graph)
{
    for (struct wk_graph *child = graph->child; child; child = child->sibling)
        wk_graph_drop_proto(child);
    if (graph->proto) { /* a subgraph has its model's */
        onnx__model_proto__free_unpacked(graph->proto, NULL);
        wk_external_destroy(graph->external);
    }
    graph->proto = NULL;
    graph->external = NULL;
    wk_arena_fini(&graph->load_arena);
}

void wk_graph_fini(struct wk_graph *graph)
{
    /* Nesting is bounded by the loader. */
    for (struct wk_graph *child = graph->child; child;) {
        struct wk_graph *next = child->sibling;
        wk_graph_fini(child);
        child = next;
    }
    wk_graph_drop_proto(graph);
    wk_arena_fini(&graph->arena);
    *graph = (struct wk_graph){0};
}
