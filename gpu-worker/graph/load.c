/* Model file -> graph: names resolved, every number checked, nodes in execution order.
 *
 * Runs on the thread that owns the model. Nothing in the file is trusted: the wire bytes are
 * bounded before protobuf-c sees them, names are looked up by sorting (no table that crafted names
 * could degrade), and lists are walked without recursion. */
#include "gpu-worker/graph/load_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/batch.h"
#include "gpu-worker/graph/external.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_IR = 3, MAX_NAME_BYTES = 65535 };

/* A name and the value that it stands for. */
struct named {
    const char *name;
    int32_t value;
};

struct loader {
    struct wk_graph *graph;
    const Onnx__GraphProto *proto;
    const struct loader *parent; /* of a subgraph: where its captured names are defined */
    const char **captured;       /* of a subgraph: sorted */
    size_t n_captured;
    size_t *total_nodes; /* of the whole file so far */
    size_t *total_graphs;
    int64_t opset;
    struct named *names; /* sorted once complete */
    uint32_t n_names;
    struct cm_error *err;
};

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

static enum cm_err out_of_memory(struct loader *loader)
{
    return cm_fail(loader->err, CM_NOMEM, "out of memory while loading a model");
}

/* No ai.onnx: an operator says best what kind of model that is. */
static enum cm_err refuse_imports(struct loader *loader, const Onnx__ModelProto *model)
{
    char type[96], domain[64];
    if (!model->graph || model->graph->n_node == 0 || !model->n_opset_import)
        return cm_fail(loader->err, CM_INVALID, "the model imports no version of ai.onnx");
    const Onnx__NodeProto *node = model->graph->node[0];
    wk_printable(text_or_empty(node->op_type), type, sizeof type);
    wk_printable(text_or_empty(node->domain), domain, sizeof domain);
    return cm_fail(loader->err, CM_UNSUPPORTED,
                   "the model imports no version of ai.onnx: operator %s%s%s is not supported",
                   domain, domain[0] ? "." : "", type);
}

static enum cm_err find_opset(struct loader *loader, const Onnx__ModelProto *model)
{
    if (!model->has_ir_version || model->ir_version < MIN_IR)
        return cm_fail(loader->err, model->has_ir_version ? CM_UNSUPPORTED : CM_CORRUPT,
                       "not a usable ONNX model: ir_version is %s",
                       model->has_ir_version ? "below 3" : "missing");
    for (size_t i = 0; i < model->n_opset_import; i++) {
        const char *domain = text_or_empty(model->opset_import[i]->domain);
        if (domain[0] && strcmp(domain, "ai.onnx") != 0)
            continue;
        if (loader->opset)
            return cm_fail(loader->err, CM_INVALID, "the model imports two versions of ai.onnx");
        loader->opset = model->opset_import[i]->version;
        if (loader->opset < WK_MIN_OPSET || loader->opset > WK_MAX_OPSET)
            return cm_fail(loader->err, CM_UNSUPPORTED,
                           "the model needs opset %lld; supported are %d to %d",
                           (long long)loader->opset, WK_MIN_OPSET, WK_MAX_OPSET);
    }
    return loader->opset ? CM_OK : refuse_imports(loader, model);
}

/* ---- names ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static const struct named *find_in(const struct named *names, uint32_t count, const char *name)
{
    struct named key = {.name = name};
    return bsearch(&key, names, count, sizeof *names, by_name);
}

/* Value of a name, or -1. */
static int32_t find_value(const struct loader *loader, const char *name)
{
    const struct named *found = find_in(loader->names, loader->n_names, name);
    return found ? found->value : -1;
}

static enum cm_err add_value(struct loader *loader, const char *name, struct wk_value value)
{
    struct wk_graph *graph = loader->graph;
    if (strlen(name) > MAX_NAME_BYTES)
        return cm_fail(loader->err, CM_LIMIT, "a tensor's name is longer than %d bytes",
                       MAX_NAME_BYTES);
    value.name = wk_arena_text(&graph->arena, name, strlen(name));
    if (!value.name)
        return out_of_memory(loader);
    if (!name[0])
        return cm_fail(loader->err, CM_INVALID, "a %s has no name",
                       value.input >= 0 ? "graph input" : "constant");
    loader->names[loader->n_names++] = (struct named){value.name, (int32_t)graph->n_values};
    graph->values[graph->n_values++] = value;
    return CM_OK;
}

static enum cm_err sort_names(struct loader *loader)
{
    char printable[96];
    qsort(loader->names, loader->n_names, sizeof *loader->names, by_name);
    for (uint32_t i = 1; i < loader->n_names; i++)
        if (strcmp(loader->names[i - 1].name, loader->names[i].name) == 0)
            return cm_fail(loader->err, CM_INVALID, "tensor \"%s\" is defined twice",
                           wk_printable(loader->names[i].name, printable, sizeof printable));
    return CM_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum cm_err add_initializers(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    char what[160], printable[96];
    for (size_t i = 0; i < proto->n_initializer; i++) {
        const char *name = text_or_empty(proto->initializer[i]->name);
        const struct wk_const *constant;
        snprintf(what, sizeof what, "initializer \"%s\"",
                 wk_printable(name, printable, sizeof printable));
        enum cm_err code =
            wk_load_tensor(loader->graph, proto->initializer[i], what, loader->err, &constant);
        if (code == CM_OK)
            code = add_value(loader, name,
                             (struct wk_value){.input = -1, .producer = -1, .constant = constant});
        if (code != CM_OK)
            return code;
    }
    return sort_names(loader);
}

/* Formal inputs of a subgraph: what they declare is a comment, the caller decides. */
static enum cm_err add_formal_inputs(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    struct wk_graph *graph = loader->graph;
    uint32_t n_initializers = loader->n_names;
    enum cm_err code = CM_OK;
    for (size_t i = 0; i < proto->n_input && code == CM_OK; i++) {
        const char *name = text_or_empty(proto->input[i]->name);
        if (find_in(loader->names, n_initializers, name))
            continue;
        graph->inputs[graph->n_inputs] = (int32_t)graph->n_values;
        code = add_value(loader, name,
                         (struct wk_value){.input = (int32_t)graph->n_inputs++, .producer = -1});
    }
    graph->n_formal = graph->n_inputs;
    return code;
}

/* Values from outside: constants stay constants, the others become inputs behind the formal ones;
 * ret_from has where each of these comes from in the parent. */
static enum cm_err add_captured(struct loader *loader, const struct wk_node *node,
                                int32_t *ret_from)
{
    struct wk_graph *graph = loader->graph;
    char printable[96];
    for (size_t i = 0; i < loader->n_captured; i++) {
        const char *name = loader->captured[i];
        int32_t from = find_value(loader->parent, name);
        if (from < 0)
            return wk_node_fail(loader->err, CM_INVALID, node,
                                "a subgraph of it uses \"%s\", which nothing defines",
                                wk_printable(name, printable, sizeof printable));
        struct wk_value value = {.input = -1, .producer = -1};
        value.constant = loader->parent->graph->values[from].constant;
        if (!value.constant) {
            value.input = (int32_t)graph->n_inputs;
            ret_from[graph->n_inputs - graph->n_formal] = from;
            graph->inputs[graph->n_inputs++] = (int32_t)graph->n_values;
        }
        enum cm_err code = add_value(loader, name, value);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

static bool uses(char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(text_or_empty(names[i]), name) == 0)
            return true;
    return false;
}

/* wk_load_info; a refusal ends with the operator whose input or output it is, which says more of
 * the model than a name does. What no operator takes gets the first one. */
static enum cm_err load_info(struct loader *loader, const Onnx__ValueInfoProto *proto,
                             const char *what, bool is_input, struct wk_tensor_info *ret_info)
{
    const char *name = text_or_empty(proto->name), *role = is_input ? "goes to" : "comes from";
    enum cm_err code = wk_load_info(proto, what, loader->err, ret_info);
    if (code != CM_UNSUPPORTED || !loader->proto->n_node)
        return code;
    size_t at = 0;
    for (; at < loader->proto->n_node; at++) {
        const Onnx__NodeProto *node = loader->proto->node[at];
        if (is_input ? uses(node->input, node->n_input, name)
                     : uses(node->output, node->n_output, name))
            break;
    }
    if (at == loader->proto->n_node) {
        at = 0;
        role = "goes nowhere; the model begins with";
    }
    char why[sizeof loader->err->text], type[96];
    snprintf(why, sizeof why, "%s", loader->err->text);
    return cm_fail(
        loader->err, code, "%.300s (it %s operator %s)", why, role,
        wk_printable(text_or_empty(loader->proto->node[at]->op_type), type, sizeof type));
}

static enum cm_err add_inputs(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    struct wk_graph *graph = loader->graph;
    uint32_t n_initializers = loader->n_names;
    char what[160], printable[96];
    for (size_t i = 0; i < proto->n_input; i++) {
        const char *name = text_or_empty(proto->input[i]->name);
        /* Old files list initializers among the inputs as well; they stay constants. */
        if (find_in(loader->names, n_initializers, name))
            continue;
        if (graph->n_inputs == WK_MAX_IO)
            return cm_fail(loader->err, CM_LIMIT, "the model has more than %d inputs", WK_MAX_IO);
        snprintf(what, sizeof what, "input \"%s\"",
                 wk_printable(name, printable, sizeof printable));
        struct wk_tensor_info *info = &graph->input_info[graph->n_inputs];
        enum cm_err code = load_info(loader, proto->input[i], what, true, info);
        graph->inputs[graph->n_inputs] = (int32_t)graph->n_values;
        if (code == CM_OK)
            code =
                add_value(loader, name,
                          (struct wk_value){.input = (int32_t)graph->n_inputs++, .producer = -1});
        if (code != CM_OK)
            return code;
    }
    graph->n_formal = graph->n_inputs;
    return CM_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static enum cm_err refuse_operator(struct loader *loader, const Onnx__NodeProto *proto,
                                   size_t position, const char *why)
{
    char name[96], type[96], domain[64];
    wk_printable(text_or_empty(proto->name), name, sizeof name);
    wk_printable(text_or_empty(proto->op_type), type, sizeof type);
    wk_printable(text_or_empty(proto->domain), domain, sizeof domain);
    return cm_fail(loader->err, CM_UNSUPPORTED,
                   "node \"%s\" (number %zu): operator %s%s%s of opset %lld is not supported%s",
                   name, position, domain, domain[0] ? "." : "", type, (long long)loader->opset,
                   why);
}

static enum cm_err read_node(struct loader *loader, const Onnx__NodeProto *proto, size_t position,
                             struct wk_node *node)
{
    struct wk_graph *graph = loader->graph;
    const char *domain = text_or_empty(proto->domain);
    const char *name = text_or_empty(proto->name);
    if (domain[0] && strcmp(domain, "ai.onnx") != 0)
        return refuse_operator(loader, proto, position, " (only the domain ai.onnx is)");
    enum wk_op op = wk_op_from_name(text_or_empty(proto->op_type));
    if (op == WK_OP_COUNT)
        return refuse_operator(loader, proto, position, "");
    const struct wk_op_version *version = wk_op_version(op, loader->opset);
    if (!version)
        return refuse_operator(loader, proto, position, "; it is in other opsets");
    *node = (struct wk_node){.op = op,
                             .position = (uint32_t)position,
                             .opset = (int32_t)loader->opset,
                             .name = wk_arena_text(&graph->arena, name, strlen(name))};
    int32_t *in = wk_arena_take(&graph->arena, proto->n_input, sizeof *in);
    int32_t *out = wk_arena_take(&graph->arena, proto->n_output, sizeof *out);
    if (!node->name || !in || !out)
        return out_of_memory(loader);
    if (proto->n_input < version->min_in || proto->n_input > version->max_in)
        return wk_node_fail(loader->err, CM_INVALID, node, "%zu inputs, must be %u to %u",
                            proto->n_input, version->min_in, version->max_in);
    if (proto->n_output < 1 || proto->n_output > version->max_out)
        return wk_node_fail(loader->err, CM_INVALID, node, "%zu outputs, must be 1 to %u",
                            proto->n_output, version->max_out);
    node->n_in = node->n_given = (uint16_t)proto->n_input;
    node->n_out = (uint16_t)proto->n_output;
    node->in = in;
    node->out = out;
    enum cm_err code = wk_load_attrs(graph, node, version, proto, loader->err);
    return code == CM_OK ? wk_load_check(node, loader->err) : code;
}

/* Outputs become values; a Constant's output becomes a constant and the node goes away. */
static enum cm_err add_outputs(struct loader *loader, const Onnx__NodeProto *proto,
                               struct wk_node *node, int32_t *out)
{
    const struct wk_const *constant = NULL;
    enum cm_err code = CM_OK;
    if (node->op == WK_OP_Constant)
        code = wk_load_constant(loader->graph, node, loader->err, &constant);
    for (size_t i = 0; i < proto->n_output && code == CM_OK; i++) {
        out[i] = -1;
        if (!proto->output[i][0])
            continue;
        out[i] = (int32_t)loader->graph->n_values;
        code =
            add_value(loader, proto->output[i],
                      (struct wk_value){.input = -1,
                                        .producer = constant ? -1 : (int32_t)loader->graph->n_nodes,
                                        .constant = constant});
    }
    return code;
}

static enum cm_err add_nodes(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    struct wk_graph *graph = loader->graph;
    for (size_t i = 0; i < proto->n_node; i++) {
        struct wk_node *node = &graph->nodes[graph->n_nodes];
        enum cm_err code = read_node(loader, proto->node[i], i, node);
        if (code == CM_OK)
            code = add_outputs(loader, proto->node[i], node, (int32_t *)node->out);
        if (code != CM_OK)
            return code;
        if (node->op != WK_OP_Constant)
            graph->n_nodes++;
    }
    return sort_names(loader);
}

static enum cm_err load_subgraphs(struct loader *loader, struct wk_node *node,
                                  const Onnx__NodeProto *proto);

/* Inputs can be resolved once every name is known: files need not be in order. */
static enum cm_err resolve_inputs(struct loader *loader)
{
    struct wk_graph *graph = loader->graph;
    char printable[96];
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        struct wk_node *node = &graph->nodes[i];
        const Onnx__NodeProto *proto = loader->proto->node[node->position];
        int32_t *in = (int32_t *)node->in;
        for (unsigned k = 0; k < node->n_in; k++) {
            in[k] = -1;
            if (!proto->input[k][0])
                continue;
            in[k] = find_value(loader, proto->input[k]);
            if (in[k] < 0)
                return wk_node_fail(loader->err, CM_INVALID, node,
                                    "input \"%s\" is produced by no node, input or initializer",
                                    wk_printable(proto->input[k], printable, sizeof printable));
        }
        const struct wk_op_version *version = wk_op_version(node->op, node->opset);
        for (unsigned k = 0; k < version->min_in; k++)
            if (in[k] < 0)
                return wk_node_fail(loader->err, CM_INVALID, node, "input %u must not be empty", k);
        enum cm_err code = load_subgraphs(loader, node, proto);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

/* Outputs of a subgraph: any value, any number of times. */
static enum cm_err resolve_body_outputs(struct loader *loader, const struct wk_node *node)
{
    const Onnx__GraphProto *proto = loader->proto;
    struct wk_graph *graph = loader->graph;
    char printable[96];
    for (size_t i = 0; i < proto->n_output; i++) {
        const char *name = text_or_empty(proto->output[i]->name);
        graph->outputs[i] = find_value(loader, name);
        if (graph->outputs[i] < 0)
            return wk_node_fail(loader->err, CM_INVALID, node,
                                "output \"%s\" of a subgraph is produced by no node",
                                wk_printable(name, printable, sizeof printable));
        graph->n_outputs++;
    }
    return CM_OK;
}

static enum cm_err resolve_outputs(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    struct wk_graph *graph = loader->graph;
    char what[160], printable[96];
    if (proto->n_output == 0)
        return cm_fail(loader->err, CM_INVALID, "the model has no outputs");
    if (proto->n_output > WK_MAX_IO)
        return cm_fail(loader->err, CM_LIMIT, "the model has more than %d outputs", WK_MAX_IO);
    for (size_t i = 0; i < proto->n_output; i++) {
        const char *name = text_or_empty(proto->output[i]->name);
        snprintf(what, sizeof what, "output \"%s\"",
                 wk_printable(name, printable, sizeof printable));
        graph->outputs[i] = find_value(loader, name);
        if (graph->outputs[i] < 0)
            return cm_fail(loader->err, CM_INVALID, "%s is produced by no node", what);
        for (size_t k = 0; k < i; k++)
            if (graph->outputs[k] == graph->outputs[i])
                return cm_fail(loader->err, CM_INVALID, "%s is listed twice", what);
        enum cm_err code = load_info(loader, proto->output[i], what, false, &graph->output_info[i]);
        if (code != CM_OK)
            return code;
        graph->n_outputs++;
    }
    return CM_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static enum cm_err take_infos(struct loader *loader)
{
    struct wk_graph *graph = loader->graph;
    graph->input_info = wk_arena_take(&graph->arena, WK_MAX_IO, sizeof *graph->input_info);
    graph->output_info = wk_arena_take(&graph->arena, WK_MAX_IO, sizeof *graph->output_info);
    return graph->input_info && graph->output_info ? CM_OK : out_of_memory(loader);
}

static enum cm_err check_size(struct loader *loader)
{
    const Onnx__GraphProto *proto = loader->proto;
    size_t values = proto->n_initializer + proto->n_input + loader->n_captured;
    size_t n_inputs = loader->parent ? proto->n_input + loader->n_captured : WK_MAX_IO;
    size_t n_outputs = loader->parent ? proto->n_output : WK_MAX_IO;
    if (proto->n_sparse_initializer)
        return cm_fail(loader->err, CM_UNSUPPORTED, "sparse initializers are not supported");
    if (proto->n_node > WK_MAX_NODES || (*loader->total_nodes += proto->n_node) > WK_MAX_NODES)
        return cm_fail(loader->err, CM_LIMIT, "the model has %zu nodes, at most %d are supported",
                       *loader->total_nodes > proto->n_node ? *loader->total_nodes : proto->n_node,
                       WK_MAX_NODES);
    if (loader->parent && (proto->n_input > WK_MAX_NODE_IO || proto->n_output > WK_MAX_NODE_IO ||
                           loader->n_captured > WK_MAX_CAPTURES))
        return cm_fail(loader->err, CM_LIMIT, "a subgraph has too many inputs or outputs");
    for (size_t i = 0; i < proto->n_node; i++) {
        if (proto->node[i]->n_input > WK_MAX_NODE_IO || proto->node[i]->n_output > WK_MAX_NODE_IO)
            return cm_fail(loader->err, CM_LIMIT, "node number %zu has more than %d inputs", i,
                           WK_MAX_NODE_IO);
        values += proto->node[i]->n_output;
    }
    if (values > WK_MAX_VALUES)
        return cm_fail(loader->err, CM_LIMIT, "the model has more than %d tensors", WK_MAX_VALUES);
    struct wk_graph *graph = loader->graph;
    struct wk_arena *arena = &graph->arena;
    graph->values = wk_arena_take(arena, values, sizeof *graph->values);
    graph->facts = wk_arena_take(arena, values, sizeof *graph->facts);
    graph->roots = wk_arena_take(arena, values, sizeof *graph->roots);
    graph->nodes = wk_arena_take(arena, proto->n_node + 1, sizeof *graph->nodes);
    graph->inputs = wk_arena_take(arena, n_inputs, sizeof *graph->inputs);
    graph->outputs = wk_arena_take(arena, n_outputs, sizeof *graph->outputs);
    loader->names = malloc((values + 1) * sizeof *loader->names);
    if (!graph->values || !graph->facts || !graph->roots || !graph->nodes || !graph->inputs ||
        !graph->outputs || !loader->names)
        return out_of_memory(loader);
    return CM_OK;
}

/* Nodes are in order, so that a view's input has its root already. */
static void find_roots(struct wk_graph *graph)
{
    for (uint32_t i = 0; i < graph->n_values; i++)
        graph->roots[i] = (int32_t)i;
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        if (wk_node_is_view(&graph->nodes[i]) && graph->nodes[i].out[0] >= 0)
            graph->roots[graph->nodes[i].out[0]] = graph->roots[graph->nodes[i].in[0]];
}

/* Also of subgraphs; nesting is bounded by the loader. */
static void find_all_roots(struct wk_graph *graph)
{
    find_roots(graph);
    for (struct wk_graph *child = graph->child; child; child = child->sibling)
        find_all_roots(child);
}

enum cm_err wk_graph_settle(struct wk_graph *graph, struct cm_error *err)
{
    memset(graph->facts, 0, graph->n_values * sizeof *graph->facts);
    find_all_roots(graph);
    return wk_infer_symbolic(graph, err);
}

/* ---- subgraphs ------------------------------------------------------------------------------- */

/* A list of names that grows; its strings belong to the unpacked file. */
struct list {
    const char **names;
    size_t n, room;
};

static bool list_add(struct list *list, const char *name)
{
    if (list->n == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        const char **grown = realloc(list->names, room * sizeof *grown);
        if (!grown)
            return false;
        list->names = grown;
        list->room = room;
    }
    list->names[list->n++] = name;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void sort_list(struct list *list)
{
    if (list->n)
        qsort(list->names, list->n, sizeof *list->names, by_text);
}

static bool collect_captured(const Onnx__GraphProto *proto, struct list *ret);

static bool collect_used(const Onnx__GraphProto *proto, struct list *used)
{
    bool fine = true;
    for (size_t i = 0; i < proto->n_output; i++)
        fine = fine && list_add(used, text_or_empty(proto->output[i]->name));
    for (size_t i = 0; i < proto->n_node; i++) {
        const Onnx__NodeProto *node = proto->node[i];
        for (size_t k = 0; k < node->n_input; k++)
            fine = fine && (!node->input[k][0] || list_add(used, node->input[k]));
        for (size_t k = 0; k < node->n_attribute && fine; k++)
            if (node->attribute[k]->g)
                fine = collect_captured(node->attribute[k]->g, used);
    }
    return fine;
}

static bool collect_defined(const Onnx__GraphProto *proto, struct list *defined)
{
    bool fine = true;
    for (size_t i = 0; i < proto->n_input; i++)
        fine = fine && list_add(defined, text_or_empty(proto->input[i]->name));
    for (size_t i = 0; i < proto->n_initializer; i++)
        fine = fine && list_add(defined, text_or_empty(proto->initializer[i]->name));
    for (size_t i = 0; i < proto->n_node; i++)
        for (size_t k = 0; k < proto->node[i]->n_output; k++)
            fine = fine && list_add(defined, proto->node[i]->output[k]);
    return fine;
}

/* Appends the names that a subgraph, or one inside it, uses and does not define; each once. Depth
 * is bounded by the wire check. False when memory is out. */
static bool collect_captured(const Onnx__GraphProto *proto, struct list *ret)
{
    struct list used = {0}, defined = {0};
    bool fine = collect_used(proto, &used) && collect_defined(proto, &defined);
    sort_list(&used);
    sort_list(&defined);
    for (size_t i = 0, d = 0; i < used.n && fine; i++) {
        if (i && strcmp(used.names[i - 1], used.names[i]) == 0)
            continue;
        while (d < defined.n && strcmp(defined.names[d], used.names[i]) < 0)
            d++;
        if (d == defined.n || strcmp(defined.names[d], used.names[i]) != 0)
            fine = list_add(ret, used.names[i]);
    }
    free(used.names);
    free(defined.names);
    return fine;
}

static enum cm_err fill_subgraph(struct loader *loader, const struct wk_node *node, int32_t *from)
{
    enum cm_err code = check_size(loader);
    if (code == CM_OK)
        code = add_initializers(loader);
    if (code == CM_OK)
        code = add_formal_inputs(loader);
    if (code == CM_OK)
        code = add_captured(loader, node, from);
    if (code == CM_OK)
        code = add_nodes(loader);
    if (code == CM_OK)
        code = resolve_inputs(loader);
    if (code == CM_OK)
        code = resolve_body_outputs(loader, node);
    if (code == CM_OK)
        code = wk_load_order(loader->graph, loader->err);
    if (code == CM_OK)
        find_roots(loader->graph);
    return code;
}

/* One subgraph. ret_from gets the captured values' numbers in the parent, to be freed. */
static enum cm_err load_subgraph(struct loader *parent, const struct wk_node *node,
                                 const Onnx__GraphProto *proto, struct wk_graph **ret_graph,
                                 int32_t **ret_from)
{
    struct list captured = {0};
    if (++*parent->total_graphs > WK_MAX_SUBGRAPHS)
        return cm_fail(parent->err, CM_LIMIT, "the model has more than %d subgraphs",
                       WK_MAX_SUBGRAPHS);
    struct wk_graph *graph = wk_arena_take(&parent->graph->arena, 1, sizeof *graph);
    enum cm_err code = CM_OK;
    if (!graph || !collect_captured(proto, &captured) ||
        !(*ret_from = malloc((captured.n + 1) * sizeof **ret_from))) {
        free(captured.names);
        return out_of_memory(parent);
    }
    sort_list(&captured);
    graph->sibling = parent->graph->child;
    parent->graph->child = graph;
    graph->external = parent->graph->external;
    struct loader loader = {.graph = graph,
                            .proto = proto,
                            .parent = parent,
                            .captured = captured.names,
                            .n_captured = captured.n,
                            .total_nodes = parent->total_nodes,
                            .total_graphs = parent->total_graphs,
                            .opset = parent->opset,
                            .err = parent->err};
    code = fill_subgraph(&loader, node, *ret_from);
    free(loader.names);
    free(captured.names);
    *ret_graph = graph;
    return code;
}

/* Appends what a subgraph captures to its node's inputs. */
static enum cm_err append_inputs(struct loader *loader, struct wk_node *node, const int32_t *from,
                                 uint32_t count)
{
    if (node->n_in + count > WK_MAX_NODE_IO + 2 * WK_MAX_CAPTURES)
        return wk_node_fail(loader->err, CM_LIMIT, node, "its subgraphs use too many values");
    int32_t *in = wk_arena_take(&loader->graph->arena, node->n_in + count, sizeof *in);
    if (!in)
        return out_of_memory(loader);
    if (node->n_in)
        memcpy(in, node->in, node->n_in * sizeof *in);
    if (count)
        memcpy(in + node->n_in, from, count * sizeof *in);
    node->in = in;
    node->n_in = (uint16_t)(node->n_in + count);
    return CM_OK;
}

static enum cm_err load_subgraphs(struct loader *loader, struct wk_node *node,
                                  const Onnx__NodeProto *proto)
{
    enum cm_err code = CM_OK;
    for (unsigned i = 0; i < node->n_attrs && code == CM_OK; i++) {
        struct wk_attr *attr = (struct wk_attr *)&node->attrs[i];
        int32_t *from = NULL;
        if (attr->type != 'g')
            continue;
        /* Attributes are kept in the file's order. */
        code = load_subgraph(loader, node, proto->attribute[i]->g, &attr->graph, &from);
        attr->first_capture = node->n_in;
        if (code == CM_OK)
            code = append_inputs(loader, node, from, attr->graph->n_inputs - attr->graph->n_formal);
        free(from);
    }
    return code;
}

static enum cm_err build(struct loader *loader)
{
    enum cm_err code = check_size(loader);
    if (code == CM_OK)
        code = take_infos(loader);
    if (code == CM_OK)
        code = add_initializers(loader);
    if (code == CM_OK)
        code = add_inputs(loader);
    if (code == CM_OK)
        code = add_nodes(loader);
    if (code == CM_OK)
        code = resolve_inputs(loader);
    if (code == CM_OK)
        code = resolve_outputs(loader);
    if (code == CM_OK)
        code = wk_load_order(loader->graph, loader->err);
    return code == CM_OK ? wk_graph_settle(loader->graph, loader->err) : code;
}

enum cm_err wk_graph_load(struct wk_graph *graph, const void *bytes, size_t length,
                          const struct wk_load_options *options, struct cm_error *err)
{
    size_t total_nodes = 0, total_graphs = 0;
    struct loader loader = {
        .graph = graph, .err = err, .total_nodes = &total_nodes, .total_graphs = &total_graphs};
    enum cm_err code = wk_wire_check(&onnx__model_proto__descriptor, bytes, length, err);
    if (code != CM_OK)
        return code;
    Onnx__ModelProto *model = onnx__model_proto__unpack(NULL, length, bytes);
    if (!model)
        return cm_fail(err, CM_CORRUPT, "not a valid ONNX file");
    graph->proto = model;
    if (options && options->directory >= 0) {
        graph->external = wk_external_create(options->directory);
        code = graph->external ? CM_OK : out_of_memory(&loader);
    }
    if (code == CM_OK)
        code = find_opset(&loader, model);
    if (code == CM_OK && !model->graph)
        code = cm_fail(err, CM_CORRUPT, "the file holds no graph");
    if (code == CM_OK) {
        loader.proto = model->graph;
        code = build(&loader);
    }
    free(loader.names);
    if (code != CM_OK)
        wk_graph_fini(graph);
    return code;
}
