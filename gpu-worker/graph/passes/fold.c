/* Pass: constant folding. What constants alone decide is computed once, at load, with the same
 * kernels that would have run, so that no bit changes. See passes.h.
 *
 * A file can ask for more than it holds (a ConstantOfShape of a gigabyte), so that what is computed
 * is bounded in bytes and in work; what is beyond stays a node. So does what fails: it then fails
 * where it would have without this pass. */
#include "gpu-worker/graph/passes/edit.h"

#include "common/check.h"
#include "gpu-worker/graph/cost.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/plan.h"

#include <stdlib.h>
#include <string.h>

#define FOLD_FREE_BYTES  ((double)(64 << 10))  /* of one node, whatever its inputs are */
#define FOLD_GROWTH      8.0                   /* otherwise output bytes per input byte */
#define FOLD_TOTAL_BYTES ((double)(256 << 20)) /* of one model */
#define FOLD_NODE_FLOPS  1e9
#define FOLD_TOTAL_FLOPS 1e10

struct fold {
    struct wk_pass *pass;
    struct wk_backend *backend; /* of this pass alone: the engine's may be running plans */
    double bytes, flops;        /* spent */
};

/* ---- one node as a graph of its own ---------------------------------------------------------- */

/* Values are the node's operands, then its outputs. */
static enum cm_err make_graph(const struct wk_pass *pass, const struct wk_node *node,
                              struct wk_graph *g, struct cm_error *err)
{
    uint32_t n = (uint32_t)node->n_in + node->n_out;
    int32_t *in = wk_arena_take(&g->arena, node->n_in, sizeof *in);
    int32_t *out = wk_arena_take(&g->arena, node->n_out, sizeof *out);
    g->values = wk_arena_take(&g->arena, n, sizeof *g->values);
    g->facts = wk_arena_take(&g->arena, n, sizeof *g->facts);
    g->roots = wk_arena_take(&g->arena, n, sizeof *g->roots);
    g->nodes = wk_arena_take(&g->arena, 1, sizeof *g->nodes);
    g->outputs = wk_arena_take(&g->arena, WK_MAX_IO, sizeof *g->outputs);
    if (!in || !out || !g->values || !g->facts || !g->roots || !g->nodes || !g->outputs)
        return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
    for (unsigned k = 0; k < node->n_in; k++) {
        in[k] = node->in[k] < 0 ? -1 : (int32_t)k;
        g->values[k] = (struct wk_value){
            .name = "", .input = -1, .producer = -1, .constant = pass_constant(pass, node->in[k])};
    }
    for (unsigned k = 0; k < node->n_out; k++) {
        out[k] = node->out[k] < 0 ? -1 : (int32_t)(node->n_in + k);
        g->values[node->n_in + k] = (struct wk_value){.name = "", .input = -1};
        if (out[k] < 0)
            g->values[node->n_in + k].producer = -1;
        else
            g->outputs[g->n_outputs++] = out[k];
    }
    g->n_values = n;
    g->n_nodes = 1;
    g->nodes[0] = *node;
    g->nodes[0].in = in;
    g->nodes[0].out = out;
    return wk_graph_settle(g, err);
}

static void *aligned(size_t bytes)
{
    size_t room;
    if (!cm_size_align(bytes ? bytes : 1, WK_ALIGN, &room))
        return NULL;
    return aligned_alloc(WK_ALIGN, room);
}

/* Runs a planned graph and copies its outputs into constants. */
static enum cm_err run_plan(struct fold *fold, struct wk_plan *plan, unsigned n_outputs,
                            const struct wk_const **ret, struct cm_error *err)
{
    void *outputs[WK_MAX_IO] = {NULL};
    void *scratch = aligned(wk_plan_scratch_bytes(plan));
    enum cm_err code = scratch ? CM_OK : CM_NOMEM;
    for (unsigned i = 0; i < n_outputs && code == CM_OK; i++) {
        size_t bytes;
        code = cm_shape_bytes(wk_plan_output_shape(plan, i), wk_plan_output_dtype(plan, i), &bytes);
        if (code == CM_OK)
            outputs[i] = aligned(bytes);
        if (!outputs[i])
            code = CM_NOMEM;
    }
    if (code == CM_OK)
        code = wk_plan_run(plan, NULL, outputs, scratch, err);
    for (unsigned i = 0; i < n_outputs && code == CM_OK; i++) {
        void *data;
        struct wk_const *constant = pass_new_constant(fold->pass, wk_plan_output_dtype(plan, i),
                                                      wk_plan_output_shape(plan, i), &data);
        if (constant && constant->bytes)
            memcpy(data, outputs[i], constant->bytes);
        if (!constant)
            code = CM_NOMEM;
        ret[i] = constant;
    }
    for (unsigned i = 0; i < n_outputs; i++)
        free(outputs[i]);
    free(scratch);
    return code;
}

/* Wanted outputs of the node, in order, into ret. */
static enum cm_err evaluate(struct fold *fold, const struct wk_node *node,
                            const struct wk_const **ret, struct cm_error *err)
{
    struct wk_graph graph = {0};
    struct wk_weights weights = {0};
    struct wk_plan *plan = NULL;
    void *base = NULL;
    enum cm_err code = make_graph(fold->pass, node, &graph, err);
    if (code == CM_OK)
        code = wk_weights_lay_out(fold->backend, &graph, err, &weights);
    if (code == CM_OK) {
        base = aligned(weights.bytes);
        code = base ? CM_OK : CM_NOMEM;
    }
    if (code == CM_OK) {
        wk_weights_pack(&weights, fold->backend, &graph, base);
        code = wk_plan_build(fold->backend, &graph, base, NULL, err, &plan);
    }
    if (code == CM_OK)
        code = run_plan(fold, plan, graph.n_outputs, ret, err);
    wk_plan_destroy(plan);
    free(base);
    wk_weights_fini(&weights);
    wk_graph_fini(&graph);
    return code;
}

/* ---- which nodes ----------------------------------------------------------------------------- */

static bool has_known_shape(const struct wk_fact *fact)
{
    for (unsigned i = 0; i < fact->shape.rank; i++)
        if (fact->shape.dims[i] < 0)
            return false;
    return !fact->unranked && fact->dtype != CM_DTYPE_NONE;
}

static bool is_affordable(struct fold *fold, const struct wk_node *node)
{
    const struct wk_fact *facts = fold->pass->graph->facts;
    double in = 0, out = 0, flops = wk_node_flops(node, facts);
    for (unsigned k = 0; k < node->n_in; k++)
        in += node->in[k] < 0 ? 0 : wk_fact_bytes(&facts[node->in[k]]);
    for (unsigned k = 0; k < node->n_out; k++)
        out += node->out[k] < 0 ? 0 : wk_fact_bytes(&facts[node->out[k]]);
    if ((out > FOLD_FREE_BYTES && out > FOLD_GROWTH * in) || fold->bytes + out > FOLD_TOTAL_BYTES ||
        flops > FOLD_NODE_FLOPS || fold->flops + flops > FOLD_TOTAL_FLOPS)
        return false;
    fold->bytes += out;
    fold->flops += flops;
    return true;
}

static bool is_foldable(const struct fold *fold, const struct wk_node *node)
{
    const struct wk_graph *graph = fold->pass->graph;
    unsigned wanted = 0;
    if (pass_is_random(node) || pass_has_subgraph(node))
        return false;
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0 && !graph->values[node->in[k]].constant)
            return false;
    for (unsigned k = 0; k < node->n_out; k++) {
        if (node->out[k] >= 0 && !has_known_shape(&graph->facts[node->out[k]]))
            return false;
        wanted += node->out[k] >= 0;
    }
    return wanted <= WK_MAX_IO;
}

/* ---- values that inference has evaluated already --------------------------------------------- */

/* Integers whose every element is known whatever the request is (the Shape of a fixed input, and
 * the arithmetic on it). NULL without an error if they are not. */
static enum cm_err constant_of_elems(struct wk_pass *pass, const struct wk_fact *fact,
                                     const struct wk_const **ret)
{
    void *data;
    *ret = NULL;
    if (!fact->elems || !has_known_shape(fact))
        return CM_OK;
    for (uint32_t i = 0; i < fact->n_elems; i++)
        if (fact->elems[i].kind != WK_ELEM_KNOWN)
            return CM_OK;
    struct wk_const *constant = pass_new_constant(pass, fact->dtype, &fact->shape, &data);
    if (!constant)
        return CM_NOMEM;
    for (uint32_t i = 0; i < fact->n_elems; i++)
        if (fact->dtype == CM_INT64)
            ((int64_t *)data)[i] = fact->elems[i].v;
        else
            ((int32_t *)data)[i] = (int32_t)fact->elems[i].v;
    *ret = constant;
    return CM_OK;
}

static enum cm_err fold_known(struct wk_pass *pass, const struct wk_node *node, bool *ret_folded)
{
    const struct wk_const *constant;
    *ret_folded = false;
    if (node->n_out != 1 || node->out[0] < 0 || pass_is_random(node))
        return CM_OK;
    enum cm_err code = constant_of_elems(pass, &pass->graph->facts[node->out[0]], &constant);
    if (code == CM_OK && constant) {
        pass_become_constant(pass, node->out[0], constant);
        *ret_folded = true;
    }
    return code;
}

/* A view of a constant is the same bytes under another shape. */
static enum cm_err fold_view(struct wk_pass *pass, const struct wk_node *node)
{
    const struct wk_const *from = pass_constant(pass, node->in[0]);
    struct wk_const *constant = pass_take(pass, 1, sizeof *constant);
    if (!constant)
        return CM_NOMEM;
    *constant = *from;
    constant->shape = pass->graph->facts[node->out[0]].shape;
    pass_become_constant(pass, node->out[0], constant);
    return CM_OK;
}

static enum cm_err fold_node(struct fold *fold, const struct wk_node *node, bool *ret_folded)
{
    const struct wk_const *made[WK_MAX_IO] = {NULL};
    struct wk_pass *pass = fold->pass;
    struct cm_error ignored = {0};
    unsigned n = 0;
    enum cm_err code = fold_known(pass, node, ret_folded);
    if (code != CM_OK || *ret_folded || !is_foldable(fold, node))
        return code;
    if (wk_node_is_view(node) && node->out[0] >= 0) {
        *ret_folded = node->n_out == 1 || node->out[1] < 0;
        return *ret_folded ? fold_view(pass, node) : CM_OK;
    }
    if (!is_affordable(fold, node))
        return CM_OK;
    if (!fold->backend) {
        struct wk_engine_options options = {.threads = 1};
        enum wk_isa isa;
        code = wk_cpu_backend_create(&options, pass->err, &fold->backend, &isa);
        if (code != CM_OK)
            return code;
    }
    if (evaluate(fold, node, made, &ignored) != CM_OK)
        return CM_OK;
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            pass_become_constant(pass, node->out[k], made[n++]);
    *ret_folded = true;
    return CM_OK;
}

enum cm_err pass_fold(struct wk_pass *pass)
{
    struct fold fold = {.pass = pass};
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < pass->graph->n_nodes && code == CM_OK; i++) {
        bool folded = false;
        if (pass->idle[i])
            continue;
        code = fold_node(&fold, &pass->graph->nodes[i], &folded);
        if (code == CM_OK && folded)
            pass_remove(pass, &pass->graph->nodes[i]);
    }
    if (fold.backend)
        fold.backend->ops->destroy(fold.backend);
    return code;
}
