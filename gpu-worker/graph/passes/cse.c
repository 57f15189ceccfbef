/* Pass: common subexpressions. Equal constants become one, and nodes with the same operator,
 * attributes and operands become the first of them. See passes.h.
 *
 * Everything is found by a hash of what is compared. Chains are followed for a bounded distance, so
 * that names or bytes which were made to collide cost merges and not time. */
#include "gpu-worker/graph/passes/edit.h"

#include <string.h>

enum { CHAIN_MAX = 32 };

/* heads[hash & mask] and next[i]: indices of nodes or values, PASS_NONE ends. */
struct table {
    uint32_t *heads, *next;
    uint64_t *hashes;
    uint32_t mask;
};

static bool take_table(struct wk_pass *pass, uint32_t count, struct table *ret)
{
    uint32_t size = 16;
    while (size < count)
        size *= 2;
    ret->mask = size - 1;
    ret->heads = wk_arena_take(&pass->arena, size, sizeof(uint32_t));
    ret->next = wk_arena_take(&pass->arena, count, sizeof(uint32_t));
    ret->hashes = wk_arena_take(&pass->arena, count, sizeof(uint64_t));
    if (!ret->heads || !ret->next || !ret->hashes)
        return false;
    memset(ret->heads, 0xff, size * sizeof(uint32_t));
    return true;
}

static void put(struct table *table, uint32_t item, uint64_t hash)
{
    uint32_t *head = &table->heads[hash & table->mask];
    table->hashes[item] = hash;
    table->next[item] = *head;
    *head = item;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const char *at = data;
    uint64_t word;
    for (; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = mix(hash, word);
    }
    word = bytes;
    if (bytes)
        memcpy(&word, at, bytes);
    return mix(hash, word);
}

/* ---- constants ------------------------------------------------------------------------------- */

static uint64_t hash_constant(const struct wk_const *c)
{
    uint64_t hash = mix(c->dtype, c->shape.rank);
    for (unsigned i = 0; i < c->shape.rank; i++)
        hash = mix(hash, (uint64_t)c->shape.dims[i]);
    return hash_bytes(hash, c->data, c->bytes);
}

static bool same_constant(const struct wk_const *a, const struct wk_const *b)
{
    return a->dtype == b->dtype && cm_shape_equal(&a->shape, &b->shape) && a->bytes == b->bytes &&
           (a->data == b->data || a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

/* The same constant under an earlier name, or PASS_NONE. */
static uint32_t find_constant(const struct wk_graph *graph, const struct table *table,
                              const struct wk_const *constant, uint64_t hash)
{
    uint32_t at = table->heads[hash & table->mask];
    for (unsigned n = 0; at != PASS_NONE && n < CHAIN_MAX; n++, at = table->next[at])
        if (table->hashes[at] == hash && same_constant(graph->values[at].constant, constant))
            return at;
    return PASS_NONE;
}

static bool merge_constants(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    struct table table;
    if (!take_table(pass, graph->n_values, &table))
        return false;
    for (uint32_t i = 0; i < graph->n_values; i++) {
        const struct wk_const *constant = graph->values[i].constant;
        if (!constant || pass_uses(pass, (int32_t)i) == 0)
            continue;
        uint64_t hash = hash_constant(constant);
        uint32_t first = find_constant(graph, &table, constant, hash);
        if (first == PASS_NONE)
            put(&table, i, hash);
        else
            pass_replace(pass, (int32_t)i, (int32_t)first);
    }
    return true;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static uint64_t hash_node(const struct wk_node *node)
{
    uint64_t hash = mix(node->op, node->n_in);
    for (unsigned k = 0; k < node->n_in; k++)
        hash = mix(hash, (uint64_t)node->in[k]);
    for (unsigned i = 0; i < node->n_attrs; i++) {
        const struct wk_attr *attr = &node->attrs[i];
        hash = mix(mix(hash, (uint64_t)attr->i), attr->count);
        hash = hash_bytes(hash, &attr->f, sizeof attr->f);
        if (attr->ints)
            hash = hash_bytes(hash, attr->ints, attr->count * sizeof *attr->ints);
    }
    return hash;
}

static bool same_attr(const struct wk_attr *a, const struct wk_attr *b)
{
    if (strcmp(a->name, b->name) != 0 || a->type != b->type || a->count != b->count)
        return false;
    switch (a->type) {
    case 'i':
        return a->i == b->i;
    case 'f':
        return memcmp(&a->f, &b->f, sizeof a->f) == 0;
    case 's':
        return strcmp(a->s, b->s) == 0;
    case 't':
        return same_constant(a->tensor, b->tensor);
    case 'I':
        return a->count == 0 || memcmp(a->ints, b->ints, a->count * sizeof *a->ints) == 0;
    case 'F':
        return a->count == 0 || memcmp(a->floats, b->floats, a->count * sizeof *a->floats) == 0;
    default:
        return false;
    }
}

static bool same_node(const struct wk_node *a, const struct wk_node *b)
{
    if (a->op != b->op || a->opset != b->opset || a->n_in != b->n_in || a->n_out != b->n_out ||
        a->n_attrs != b->n_attrs || a->n_stages || b->n_stages || a->form != b->form ||
        (a->n_in && memcmp(a->in, b->in, a->n_in * sizeof *a->in) != 0))
        return false;
    for (unsigned k = 0; k < a->n_out; k++)
        if ((a->out[k] < 0) != (b->out[k] < 0))
            return false;
    for (unsigned i = 0; i < a->n_attrs; i++)
        if (!same_attr(&a->attrs[i], &b->attrs[i]))
            return false;
    return true;
}

/* The same node earlier, or PASS_NONE. */
static uint32_t find_node(const struct wk_graph *graph, const struct table *table,
                          const struct wk_node *node, uint64_t hash)
{
    uint32_t at = table->heads[hash & table->mask];
    for (unsigned n = 0; at != PASS_NONE && n < CHAIN_MAX; n++, at = table->next[at])
        if (table->hashes[at] == hash && same_node(&graph->nodes[at], node))
            return at;
    return PASS_NONE;
}

enum cm_err pass_cse(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    struct table table;
    if (!merge_constants(pass) || !take_table(pass, graph->n_nodes, &table))
        return cm_fail(pass->err, CM_NOMEM, "out of memory while loading a model");
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        const struct wk_node *node = &graph->nodes[i];
        if (pass->idle[i] || pass_is_random(node) || pass_has_subgraph(node))
            continue;
        uint64_t hash = hash_node(node);
        uint32_t first = find_node(graph, &table, node, hash);
        if (first == PASS_NONE)
            put(&table, i, hash);
        for (unsigned k = 0; k < node->n_out && first != PASS_NONE; k++)
            if (node->out[k] >= 0)
                pass_replace(pass, node->out[k], graph->nodes[first].out[k]);
    }
    return CM_OK;
}
