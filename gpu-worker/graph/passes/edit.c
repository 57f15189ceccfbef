/* The index of uses and the edits that keep it true; see edit.h. */
#include "gpu-worker/graph/passes/edit.h"

#include "common/check.h"

#include <string.h>

static enum cm_err out_of_memory(struct wk_pass *pass)
{
    return cm_fail(pass->err, CM_NOMEM, "out of memory while loading a model");
}

void *pass_take(struct wk_pass *pass, size_t count, size_t size)
{
    void *memory = wk_arena_take(&pass->graph->arena, count, size);
    if (!memory)
        (void)out_of_memory(pass);
    return memory;
}

/* ---- uses ------------------------------------------------------------------------------------ */

static uint32_t node_number(const struct wk_pass *pass, const struct wk_node *node)
{
    return (uint32_t)(node - pass->graph->nodes);
}

static void link_use(struct wk_pass *pass, uint32_t use, int32_t value)
{
    struct pass_use *u = &pass->uses[use];
    u->prev = PASS_NONE;
    u->next = pass->first_use[value];
    if (u->next != PASS_NONE)
        pass->uses[u->next].prev = use;
    pass->first_use[value] = use;
    pass->n_uses[value]++;
}

static void unlink_use(struct wk_pass *pass, uint32_t use, int32_t value)
{
    struct pass_use *u = &pass->uses[use];
    if (u->prev != PASS_NONE)
        pass->uses[u->prev].next = u->next;
    else
        pass->first_use[value] = u->next;
    if (u->next != PASS_NONE)
        pass->uses[u->next].prev = u->prev;
    pass->n_uses[value]--;
}

/* Room for more uses; old ones keep their numbers. */
static bool reserve_uses(struct wk_pass *pass, uint32_t more)
{
    if (pass->use_room - pass->use_count >= more)
        return true;
    uint32_t room = pass->use_room * 2 + more + 64;
    struct pass_use *grown = wk_arena_take(&pass->arena, room, sizeof *grown);
    if (!grown)
        return false;
    if (pass->use_count)
        memcpy(grown, pass->uses, pass->use_count * sizeof *grown);
    pass->uses = grown;
    pass->use_room = room;
    return true;
}

static void link_node(struct wk_pass *pass, uint32_t number)
{
    const struct wk_node *node = &pass->graph->nodes[number];
    pass->node_uses[number] = pass->use_count;
    for (unsigned k = 0; k < node->n_in; k++) {
        uint32_t use = pass->use_count++;
        pass->uses[use] = (struct pass_use){.node = number, .slot = k};
        if (node->in[k] >= 0)
            link_use(pass, use, node->in[k]);
    }
}

/* Nodes that no output needs, found from the outputs backwards: nodes are in order, so that one
 * walk from the last to the first sees every user before its operands. */
static void find_idle(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    memset(pass->idle, true, graph->n_nodes * sizeof(bool));
    for (uint32_t i = 0; i < graph->n_outputs; i++)
        if (graph->values[graph->outputs[i]].producer >= 0)
            pass->idle[graph->values[graph->outputs[i]].producer] = false;
    for (uint32_t i = graph->n_nodes; i-- > 0;)
        for (unsigned k = 0; k < graph->nodes[i].n_in && !pass->idle[i]; k++) {
            int32_t in = graph->nodes[i].in[k];
            if (in >= 0 && graph->values[in].producer >= 0)
                pass->idle[graph->values[in].producer] = false;
        }
}

enum cm_err pass_index(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    uint32_t n_uses = graph->n_outputs;
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        n_uses += graph->nodes[i].n_in;
    pass->value_room = graph->n_values;
    pass->first_use = wk_arena_take(&pass->arena, graph->n_values, sizeof(uint32_t));
    pass->n_uses = wk_arena_take(&pass->arena, graph->n_values, sizeof(uint32_t));
    pass->node_uses = wk_arena_take(&pass->arena, graph->n_nodes, sizeof(uint32_t));
    pass->idle = wk_arena_take(&pass->arena, graph->n_nodes, sizeof(bool));
    pass->removed = wk_arena_take(&pass->arena, graph->n_nodes, sizeof(bool));
    pass->stack = wk_arena_take(&pass->arena, graph->n_nodes + 1, sizeof(uint32_t));
    if (!pass->first_use || !pass->n_uses || !pass->node_uses || !pass->idle || !pass->removed ||
        !pass->stack || !reserve_uses(pass, n_uses))
        return out_of_memory(pass);
    memset(pass->first_use, 0xff, graph->n_values * sizeof(uint32_t));
    find_idle(pass);
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        if (!pass->idle[i])
            link_node(pass, i);
    for (uint32_t i = 0; i < graph->n_outputs; i++) {
        uint32_t use = pass->use_count++;
        pass->uses[use] = (struct pass_use){.node = PASS_NONE, .slot = i};
        link_use(pass, use, graph->outputs[i]);
    }
    return CM_OK;
}

static bool has_uses(const struct wk_pass *pass, const struct wk_node *node)
{
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && pass->n_uses[node->out[k]] > 0)
            return true;
    return false;
}

/* No operand after k has the same producer. */
static bool is_last(const struct wk_node *node, unsigned k, const struct wk_graph *graph)
{
    for (unsigned l = k + 1; l < node->n_in; l++)
        if (node->in[l] >= 0 &&
            graph->values[node->in[l]].producer == graph->values[node->in[k]].producer)
            return false;
    return true;
}

static void unlink_node(struct wk_pass *pass, uint32_t number)
{
    const struct wk_node *node = &pass->graph->nodes[number];
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0)
            unlink_use(pass, pass->node_uses[number] + k, node->in[k]);
}

/* If nothing uses the node any more it becomes idle, and then what only fed it. A node becomes idle
 * once, so that all sweeps of a pass together are linear. */
static void sweep(struct wk_pass *pass, uint32_t from)
{
    struct wk_graph *graph = pass->graph;
    uint32_t depth = 0;
    pass->stack[depth++] = from;
    while (depth) {
        uint32_t number = pass->stack[--depth];
        const struct wk_node *node = &graph->nodes[number];
        if (pass->idle[number] || has_uses(pass, node))
            continue;
        pass->idle[number] = true;
        unlink_node(pass, number);
        for (unsigned k = 0; k < node->n_in; k++) {
            int32_t producer = node->in[k] < 0 ? -1 : graph->values[node->in[k]].producer;
            /* With its last use gone it is pushed here and nowhere else. */
            if (producer >= 0 && !pass->idle[producer] &&
                !has_uses(pass, &graph->nodes[producer]) && is_last(node, k, graph))
                pass->stack[depth++] = (uint32_t)producer;
        }
    }
}

/* ---- questions ------------------------------------------------------------------------------- */

struct wk_node *pass_producer(const struct wk_pass *pass, int32_t value)
{
    if (value < 0 || pass->graph->values[value].producer < 0)
        return NULL;
    return &pass->graph->nodes[pass->graph->values[value].producer];
}

struct wk_node *pass_producer_of(const struct wk_pass *pass, int32_t value, enum wk_op op)
{
    struct wk_node *node = pass_producer(pass, value);
    return node && node->op == op ? node : NULL;
}

uint32_t pass_uses(const struct wk_pass *pass, int32_t value)
{
    return pass->n_uses[value];
}

struct wk_node *pass_only_user(const struct wk_pass *pass, int32_t value)
{
    if (pass->n_uses[value] != 1)
        return NULL;
    uint32_t node = pass->uses[pass->first_use[value]].node;
    return node == PASS_NONE ? NULL : &pass->graph->nodes[node];
}

bool pass_is_live(const struct wk_pass *pass, const struct wk_node *node)
{
    uint32_t number = node_number(pass, node);
    return !pass->idle[number] && !pass->removed[number];
}

const struct wk_const *pass_constant(const struct wk_pass *pass, int32_t value)
{
    return value < 0 ? NULL : pass->graph->values[value].constant;
}

bool pass_number(const struct wk_pass *pass, int32_t value, float *ret_number)
{
    const struct wk_const *constant = pass_constant(pass, value);
    if (!constant || constant->dtype != CM_FP32 || constant->bytes != sizeof(float))
        return false;
    memcpy(ret_number, constant->data, sizeof(float));
    return true;
}

bool pass_is_number(const struct wk_pass *pass, int32_t value, float number)
{
    float got;
    return pass_number(pass, value, &got) && memcmp(&got, &number, sizeof got) == 0;
}

bool pass_is_random(const struct wk_node *node)
{
    const char *name = wk_op_name(node->op);
    return strncmp(name, "Random", 6) == 0 || strcmp(name, "Bernoulli") == 0 ||
           strcmp(name, "Multinomial") == 0 ||
           (strcmp(name, "Dropout") == 0 && (node->n_in > 2 || node->opset < 7));
}

bool pass_has_subgraph(const struct wk_node *node)
{
    return wk_node_has_graphs(node);
}

/* ---- edits ----------------------------------------------------------------------------------- */

void pass_replace(struct wk_pass *pass, int32_t value, int32_t by)
{
    struct wk_graph *graph = pass->graph;
    CM_ASSERT(value != by);
    while (pass->first_use[value] != PASS_NONE) {
        uint32_t use = pass->first_use[value];
        const struct pass_use *u = &pass->uses[use];
        unlink_use(pass, use, value);
        if (u->node == PASS_NONE)
            graph->outputs[u->slot] = by;
        else /* the graph's own memory; const is for those who only read it */
            ((int32_t *)graph->nodes[u->node].in)[u->slot] = by;
        link_use(pass, use, by);
    }
    pass->changed = true;
    if (graph->values[value].producer >= 0)
        sweep(pass, (uint32_t)graph->values[value].producer);
}

enum cm_err pass_set_node(struct wk_pass *pass, struct wk_node *node, const struct wk_node *made)
{
    uint32_t number = node_number(pass, node);
    struct wk_node old = *node;
    if (!reserve_uses(pass, made->n_in))
        return out_of_memory(pass);
    CM_ASSERT(made->n_out <= node->n_out && !pass->idle[number]);
    unlink_node(pass, number);
    *node = *made;
    link_node(pass, number);
    for (unsigned k = 0; k < old.n_in; k++)
        if (old.in[k] >= 0 && pass->graph->values[old.in[k]].producer >= 0)
            sweep(pass, (uint32_t)pass->graph->values[old.in[k]].producer);
    pass->changed = true;
    return CM_OK;
}

void pass_remove(struct wk_pass *pass, struct wk_node *node)
{
    uint32_t number = node_number(pass, node);
    if (!pass->idle[number]) {
        pass->idle[number] = true;
        unlink_node(pass, number);
    }
    pass->removed[number] = true;
    pass->changed = true;
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0 && pass->graph->values[node->in[k]].producer >= 0)
            sweep(pass, (uint32_t)pass->graph->values[node->in[k]].producer);
}

enum cm_err pass_compact(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        if (pass->removed[i])
            continue;
        struct wk_node *node = &graph->nodes[count];
        *node = graph->nodes[i];
        for (unsigned k = 0; k < node->n_out; k++)
            if (node->out[k] >= 0)
                graph->values[node->out[k]].producer = (int32_t)count;
        count++;
    }
    graph->n_nodes = count;
    return CM_OK;
}

/* ---- constants and new lists ----------------------------------------------------------------- */

struct wk_const *pass_new_constant(struct wk_pass *pass, enum cm_dtype dtype,
                                   const struct cm_shape *shape, void **ret_data)
{
    size_t bytes;
    struct wk_const *constant = pass_take(pass, 1, sizeof *constant);
    if (!constant || cm_shape_bytes(shape, dtype, &bytes) != CM_OK)
        return NULL;
    *ret_data = wk_arena_take(
        bytes <= WK_SMALL_CONST_BYTES ? &pass->graph->arena : &pass->graph->load_arena, bytes, 1);
    if (!*ret_data) {
        (void)out_of_memory(pass);
        return NULL;
    }
    *constant = (struct wk_const){dtype, *shape, *ret_data, bytes};
    return constant;
}

/* The graph's tables and the index, for twice as many values. */
static enum cm_err grow_values(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    uint32_t n = graph->n_values, room = n * 2 + 16;
    struct wk_value *values = wk_arena_take(&graph->arena, room, sizeof *values);
    struct wk_fact *facts = wk_arena_take(&graph->arena, room, sizeof *facts);
    int32_t *roots = wk_arena_take(&graph->arena, room, sizeof *roots);
    uint32_t *first_use = wk_arena_take(&pass->arena, room, sizeof *first_use);
    uint32_t *n_uses = wk_arena_take(&pass->arena, room, sizeof *n_uses);
    if (!values || !facts || !roots || !first_use || !n_uses)
        return out_of_memory(pass);
    memcpy(values, graph->values, n * sizeof *values);
    memcpy(facts, graph->facts, n * sizeof *facts);
    memcpy(roots, graph->roots, n * sizeof *roots);
    memset(first_use, 0xff, room * sizeof *first_use);
    memcpy(first_use, pass->first_use, n * sizeof *first_use);
    memcpy(n_uses, pass->n_uses, n * sizeof *n_uses);
    graph->values = values;
    graph->facts = facts;
    graph->roots = roots;
    pass->first_use = first_use;
    pass->n_uses = n_uses;
    pass->value_room = room;
    return CM_OK;
}

static void set_constant(struct wk_pass *pass, int32_t value, const struct wk_const *constant)
{
    struct wk_fact *fact = &pass->graph->facts[value];
    pass->graph->values[value].producer = -1;
    pass->graph->values[value].constant = constant;
    fact->dtype = constant->dtype;
    fact->shape = constant->shape;
    fact->unranked = false;
    fact->rows = WK_ROWS_FREE;
    fact->data = constant->bytes <= WK_SMALL_CONST_BYTES ? constant->data : NULL;
}

enum cm_err pass_add_value(struct wk_pass *pass, const char *name, const struct wk_const *constant,
                           int32_t *ret_value)
{
    struct wk_graph *graph = pass->graph;
    if (graph->n_values == pass->value_room) {
        enum cm_err code = grow_values(pass);
        if (code != CM_OK)
            return code;
    }
    *ret_value = (int32_t)graph->n_values++;
    graph->values[*ret_value] = (struct wk_value){.name = name, .input = -1, .producer = -1};
    graph->roots[*ret_value] = *ret_value;
    set_constant(pass, *ret_value, constant);
    return CM_OK;
}

void pass_become_constant(struct wk_pass *pass, int32_t value, const struct wk_const *constant)
{
    set_constant(pass, value, constant);
    pass->changed = true;
}

int32_t *pass_values(struct wk_pass *pass, unsigned count, const int32_t *values)
{
    int32_t *list = pass_take(pass, count, sizeof *list);
    if (list && count)
        memcpy(list, values, count * sizeof *list);
    return list;
}

const struct wk_attr *pass_attrs(struct wk_pass *pass, unsigned count, const struct wk_attr *attrs)
{
    struct wk_attr *list = pass_take(pass, count, sizeof *list);
    if (list && count)
        memcpy(list, attrs, count * sizeof *list);
    return list;
}
