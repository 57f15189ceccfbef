/* Shape rules of control flow: If, Loop, Scan. See infer.h.
 *
 * At load a rule walks its subgraphs once with what is known and leaves their facts there: for the
 * layout of their weights. Per plan only an If is asked again, with facts of its own, because its
 * branches may agree on all shapes; Loop and Scan settle in the run. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

static const struct wk_graph *graph_of(const struct infer *in, const char *name,
                                       uint32_t *ret_first)
{
    const struct wk_attr *attr = wk_node_attr(in->node, name);
    if (ret_first && attr)
        *ret_first = attr->first_capture;
    return attr ? attr->graph : NULL;
}

static enum cm_err no_graph(struct infer *in, const char *name)
{
    return wk_node_fail(in->err, CM_INVALID, in->node, "attribute %s is missing", name);
}

/* Facts of all values of a subgraph; formal has its formal inputs' ones. */
static enum cm_err walk_subgraph(struct infer *in, const struct wk_graph *graph, uint32_t first,
                                 const struct wk_fact *formal, const struct wk_fact **ret_facts)
{
    /* Not from the arena: at load a body may be walked often. */
    struct wk_fact *inputs = malloc((graph->n_inputs + 1) * sizeof *inputs);
    struct wk_fact *facts = in->walk->symbolic
                                ? graph->facts
                                : wk_arena_take(in->arena, graph->n_values, sizeof *facts);
    if (!inputs || !facts) {
        free(inputs);
        return wk_node_fail(in->err, CM_NOMEM, in->node, "out of memory");
    }
    for (uint32_t i = 0; i < graph->n_inputs; i++) {
        inputs[i] =
            i < graph->n_formal ? formal[i] : in->facts[in->node->in[first + i - graph->n_formal]];
        inputs[i].rows = WK_ROWS_FREE;
    }
    memset(facts, 0, graph->n_values * sizeof *facts);
    struct wk_walk walk = *in->walk;
    walk.graph = graph;
    walk.facts = facts;
    walk.rows = false;
    *ret_facts = facts;
    enum cm_err code = wk_infer_graph(&walk, inputs);
    free(inputs);
    return code;
}

/* What two ways to a value have in common. False: their types differ. */
static bool meet(const struct wk_fact *a, const struct wk_fact *b, struct wk_fact *ret)
{
    *ret = (struct wk_fact){.dtype = a->dtype, .shape = a->shape};
    ret->unranked = a->unranked || b->unranked || a->shape.rank != b->shape.rank;
    if (ret->unranked)
        ret->shape = (struct cm_shape){0};
    for (unsigned i = 0; i < ret->shape.rank; i++)
        if (a->shape.dims[i] != b->shape.dims[i])
            ret->shape.dims[i] = WK_DIM_ANY;
    if (a->dtype == CM_DTYPE_NONE)
        ret->dtype = b->dtype;
    return a->dtype == b->dtype || a->dtype == CM_DTYPE_NONE || b->dtype == CM_DTYPE_NONE;
}

static struct wk_fact without_contents(const struct wk_fact *fact)
{
    return (struct wk_fact){.dtype = fact->dtype, .shape = fact->shape, .unranked = fact->unranked};
}

/* Input k is one number, as far as that is known. */
static enum cm_err check_one(struct infer *in, unsigned k)
{
    const struct cm_shape *shape = &infer_in(in, k)->shape;
    for (unsigned i = 0; i < shape->rank; i++)
        if (shape->dims[i] >= 0 && shape->dims[i] != 1)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must be one number", k);
    return CM_OK;
}

enum cm_err infer_if(struct infer *in)
{
    uint32_t first[2] = {0};
    const struct wk_graph *graphs[2] = {graph_of(in, "else_branch", &first[0]),
                                        graph_of(in, "then_branch", &first[1])};
    const struct wk_fact *condition = infer_in(in, 0), *facts[2] = {NULL, NULL};
    if (!graphs[0] || !graphs[1])
        return no_graph(in, graphs[0] ? "then_branch" : "else_branch");
    if (condition->dtype != CM_BOOL && condition->dtype != CM_DTYPE_NONE)
        return wk_node_fail(in->err, CM_INVALID, in->node, "the condition is %s, must be BOOL",
                            cm_dtype_name(condition->dtype));
    enum cm_err code = check_one(in, 0);
    if (code != CM_OK)
        return code;
    int certain =
        condition->data && !in->walk->symbolic ? *(const uint8_t *)condition->data != 0 : -1;
    for (int i = 0; i < 2; i++) {
        if (graphs[i]->n_formal || graphs[i]->n_outputs != in->node->n_out)
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "a branch must have no inputs and %u outputs", in->node->n_out);
        if (certain >= 0 && certain != i)
            continue;
        code = walk_subgraph(in, graphs[i], first[i], NULL, &facts[i]);
        /* A branch may be meant for other shapes than these: that matters once it is taken. */
        if (code != CM_OK && (in->walk->symbolic || code == CM_NOMEM))
            return code;
        if (code != CM_OK)
            facts[i] = NULL;
    }
    if (!facts[0] && !facts[1])
        return code;
    for (unsigned k = 0; k < in->node->n_out; k++) {
        struct wk_fact *out = infer_out(in, k);
        const struct wk_fact *a = facts[0] ? &facts[0][graphs[0]->outputs[k]] : NULL;
        const struct wk_fact *b = facts[1] ? &facts[1][graphs[1]->outputs[k]] : NULL;
        struct wk_fact both;
        enum cm_dtype at_load = CM_DTYPE_NONE;
        if (out && !in->walk->symbolic) /* what follows was checked, and packed, for that type */
            at_load = in->walk->graph->facts[in->node->out[k]].dtype;
        if (!meet(a ? a : b, b ? b : a, &both) ||
            (at_load != CM_DTYPE_NONE && both.dtype != CM_DTYPE_NONE && at_load != both.dtype))
            return wk_node_fail(in->err, CM_INVALID, in->node,
                                "output %u has different types in the branches", k);
        if (out)
            *out = both;
    }
    return CM_OK;
}

/* Rounds that may forget a dimension or a rank here and there; the next one forgets all ranks. */
enum { TRIP_ROUNDS = 3 };

/* Walks a body until what it carries from trip to trip agrees with what it started from: n_state
 * formal inputs from `to` on and outputs from `from` on. States that hand shapes on to each other
 * take as many rounds as there are of them, so that in the end every rank is forgotten. */
static enum cm_err walk_trips(struct infer *in, const struct wk_graph *graph, uint32_t first,
                              struct wk_fact *formal, uint32_t to, uint32_t from, uint32_t n_state,
                              const struct wk_fact **ret_facts)
{
    bool same = false;
    for (int round = 0; round <= TRIP_ROUNDS && !same; round++) {
        for (uint32_t i = 0; i < n_state && round == TRIP_ROUNDS; i++)
            formal[to + i] = (struct wk_fact){.dtype = formal[to + i].dtype, .unranked = true};
        same = true;
        enum cm_err code = walk_subgraph(in, graph, first, formal, ret_facts);
        if (code != CM_OK)
            return code;
        for (uint32_t i = 0; i < n_state; i++) {
            struct wk_fact met;
            const struct wk_fact *result = &(*ret_facts)[graph->outputs[from + i]];
            if (!meet(&formal[to + i], result, &met))
                return wk_node_fail(
                    in->err, CM_INVALID, in->node, "carried value %u starts as %s and becomes %s",
                    i, cm_dtype_name(formal[to + i].dtype), cm_dtype_name(result->dtype));
            same = same && met.unranked == formal[to + i].unranked &&
                   cm_shape_equal(&met.shape, &formal[to + i].shape);
            formal[to + i] = met;
        }
    }
    CM_ASSERT(same);
    return CM_OK;
}

static enum cm_err check_body(struct infer *in, const struct wk_graph *graph, uint32_t formal,
                              uint32_t least_outputs, uint32_t extra)
{
    if (graph->n_formal != formal || graph->n_outputs < least_outputs ||
        in->node->n_out > graph->n_outputs - extra)
        return wk_node_fail(in->err, CM_INVALID, in->node,
                            "the body has %u inputs and %u outputs, needs %u and at least %u",
                            graph->n_formal, graph->n_outputs, formal,
                            least_outputs > in->node->n_out + extra ? least_outputs
                                                                    : in->node->n_out + extra);
    return CM_OK;
}

/* formal has room for the body's formal inputs. */
static enum cm_err loop_facts(struct infer *in, const struct wk_graph *graph, uint32_t first,
                              uint32_t n_state, struct wk_fact *formal)
{
    const struct wk_fact *facts = NULL;
    enum cm_err code = CM_OK;
    formal[0] = (struct wk_fact){.dtype = CM_INT64};
    formal[1] = (struct wk_fact){.dtype = CM_BOOL};
    for (uint32_t i = 0; i < n_state; i++) {
        if (!infer_in(in, 2 + i))
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must not be empty", 2 + i);
        formal[2 + i] = without_contents(infer_in(in, 2 + i));
    }
    if (in->walk->symbolic)
        code = walk_trips(in, graph, first, formal, 2, 1, n_state, &facts);
    for (unsigned k = 0; k < in->node->n_out && code == CM_OK; k++) {
        struct wk_fact *out = infer_out(in, k);
        if (!out)
            continue;
        /* The number of trips is data. */
        *out = k < n_state ? formal[2 + k] : without_contents(&graph->facts[graph->outputs[1 + k]]);
        if (k < n_state && !in->walk->symbolic)
            code = infer_later(in, k, out->dtype, -1);
        if (k >= n_state && (out->unranked || out->shape.rank == CM_MAX_RANK))
            code = infer_later(in, k, out->dtype, -1);
        else if (k >= n_state)
            code = infer_later(in, k, out->dtype, out->shape.rank + 1);
    }
    return code;
}

enum cm_err infer_loop(struct infer *in)
{
    if (in->node->n_given < 2)
        return wk_node_fail(in->err, CM_INVALID, in->node, "%u inputs, must be at least 2",
                            in->node->n_given);
    uint32_t first = 0, n_state = in->node->n_given - 2u;
    const struct wk_graph *graph = graph_of(in, "body", &first);
    if (!graph)
        return no_graph(in, "body");
    enum cm_err code = check_body(in, graph, n_state + 2, n_state + 1, 1);
    if (code != CM_OK)
        return code;
    struct wk_fact *formal = calloc(n_state + 2, sizeof *formal);
    code = formal ? loop_facts(in, graph, first, n_state, formal)
                  : wk_node_fail(in->err, CM_NOMEM, in->node, "out of memory");
    free(formal);
    return code;
}

/* Types and ranks of a Scan's formal inputs: states whole (or a row), sequences without an axis. */
static enum cm_err scan_formal(struct infer *in, uint32_t first_in, uint32_t n_state, uint32_t n,
                               struct wk_fact *formal)
{
    bool batched = in->node->opset < 9;
    const struct wk_attr *axes = wk_node_attr(in->node, "scan_input_axes");
    for (uint32_t i = 0; i < n; i++) {
        const struct wk_fact *from = infer_in(in, first_in + i);
        if (!from)
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u must not be empty",
                                first_in + i);
        formal[i] = without_contents(from);
        unsigned drop = (batched ? 1u : 0u) + (i >= n_state ? 1u : 0u), axis = batched ? 1 : 0;
        int64_t given = axes && i >= n_state && i - n_state < axes->count ? axes->ints[i - n_state]
                                                                          : (int64_t)axis;
        if (from->unranked)
            continue;
        if (from->shape.rank < drop ||
            (i >= n_state && !batched && !wk_axis(given, from->shape.rank, &axis)))
            return wk_node_fail(in->err, CM_INVALID, in->node, "input %u has %u dimensions",
                                first_in + i, from->shape.rank);
        formal[i].shape = (struct cm_shape){0};
        for (unsigned d = batched ? 1 : 0; d < from->shape.rank; d++)
            if (i < n_state || d != axis)
                formal[i].shape.dims[formal[i].shape.rank++] = from->shape.dims[d];
    }
    return CM_OK;
}

enum cm_err infer_scan(struct infer *in)
{
    uint32_t first = 0, first_in = in->node->opset < 9 ? 1 : 0;
    uint32_t n = in->node->n_given > first_in ? in->node->n_given - first_in : 0;
    const struct wk_graph *graph = graph_of(in, "body", &first);
    int64_t n_scan = wk_node_int(in->node, "num_scan_inputs", 0);
    const struct wk_fact *facts = NULL;
    if (!graph)
        return no_graph(in, "body");
    if (n_scan < 1 || n_scan > n)
        return wk_node_fail(in->err, CM_INVALID, in->node, "num_scan_inputs = %lld of %u inputs",
                            (long long)n_scan, n);
    uint32_t n_state = n - (uint32_t)n_scan;
    enum cm_err code = check_body(in, graph, n, n_state, 0);
    if (code != CM_OK)
        return code;
    struct wk_fact *formal = calloc(n, sizeof *formal);
    if (!formal)
        code = wk_node_fail(in->err, CM_NOMEM, in->node, "out of memory");
    if (code == CM_OK)
        code = scan_formal(in, first_in, n_state, n, formal);
    if (code == CM_OK && in->walk->symbolic)
        code = walk_trips(in, graph, first, formal, 0, 0, n_state, &facts);
    for (unsigned k = 0; k < in->node->n_out && code == CM_OK; k++) {
        const struct wk_fact *result = &graph->facts[graph->outputs[k]];
        int rank = result->unranked ? -1 : result->shape.rank + (int)first_in;
        if (rank >= 0 && k >= n_state)
            rank++;
        code = infer_later(in, k, k < n_state ? formal[k].dtype : result->dtype,
                           rank > CM_MAX_RANK ? -1 : rank);
    }
    free(formal);
    return code;
}
