/* Pass: constant folding. What constants alone decide is computed once, at load, with the same
 * kernels that would have run, so that no bit changes. See passes.h.
 *
 * A file can ask for more than it holds (a ConstantOfShape of a gigabyte), so that what is computed
 * is bounded in bytes and in work; what is beyond stays a node. So does what fails: it then fails
 * where it would have without this pass. */
#include "gpu-worker/graph/passes/edit.h"

#include "common/check.h"
#include "gpu-worker/graph/cost.h"
#include "gpu-worker/graph/eval.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

#define FOLD_FREE_BYTES  ((double)(64 << 10))  /* of one node, whatever its inputs are */
#define FOLD_GROWTH      8.0                   /* otherwise output bytes per input byte */
#define FOLD_TOTAL_BYTES ((double)(256 << 20)) /* of one model */
#define FOLD_NODE_FLOPS  1e9
#define FOLD_TOTAL_FLOPS 5e9 /* about a second */

struct fold {
    struct wk_pass *pass;
    struct wk_backend *backend; /* of this pass alone: the engine's may be running plans */
    double bytes, flops;        /* spent */
};

/* ---- one node ------------------------------------------------------------------------------- */

/* Operands and results of one evaluation. Kernels may count on the alignment of tensors, which the
 * file's bytes do not have. */
struct operands {
    const void **in;  /* per input; NULL where it is left out */
    void **out;       /* per output; NULL where it is not wanted */
    void **copies;    /* of inputs, to be freed */
    const void **was; /* data of the inputs' facts */
};

static void *aligned(size_t bytes)
{
    size_t room;
    if (!cm_size_align(bytes ? bytes : 1, WK_ALIGN, &room))
        return NULL;
    return aligned_alloc(WK_ALIGN, room);
}

static bool take_operands(struct wk_arena *arena, const struct wk_node *node, struct operands *o)
{
    o->in = wk_arena_take(arena, node->n_in, sizeof *o->in);
    o->out = wk_arena_take(arena, node->n_out, sizeof *o->out);
    o->copies = wk_arena_take(arena, node->n_in, sizeof *o->copies);
    o->was = wk_arena_take(arena, node->n_in, sizeof *o->was);
    return o->in && o->out && o->copies && o->was;
}

/* Inputs in memory and in their facts, which let_go puts back. */
static bool fill_operands(const struct wk_graph *graph, const struct wk_node *node,
                          struct operands *o)
{
    bool fine = true;
    for (unsigned k = 0; k < node->n_in; k++) {
        if (node->in[k] < 0)
            continue;
        const struct wk_const *constant = graph->values[node->in[k]].constant;
        o->was[k] = graph->facts[node->in[k]].data;
        o->in[k] = constant->data;
        if ((uintptr_t)constant->data % WK_ALIGN != 0) {
            o->in[k] = o->copies[k] = aligned(constant->bytes);
            if (o->copies[k] && constant->bytes)
                memcpy(o->copies[k], constant->data, constant->bytes);
        }
        fine = fine && o->in[k];
        graph->facts[node->in[k]].data = o->in[k];
    }
    for (unsigned k = 0; k < node->n_out; k++) {
        size_t bytes;
        if (node->out[k] < 0)
            continue;
        const struct wk_fact *fact = &graph->facts[node->out[k]];
        if (cm_shape_bytes(&fact->shape, fact->dtype, &bytes) == CM_OK)
            o->out[k] = aligned(bytes);
        fine = fine && o->out[k];
    }
    return fine;
}

static void let_go(const struct wk_graph *graph, const struct wk_node *node, struct operands *o)
{
    for (unsigned k = node->n_in; k-- > 0;) { /* backwards: an input may be there twice */
        if (node->in[k] >= 0)
            graph->facts[node->in[k]].data = o->was[k];
        free(o->copies[k]);
    }
    for (unsigned k = 0; k < node->n_out; k++)
        free(o->out[k]);
}

/* Every output into ret. Errors mean that the node stays; CM_NOMEM is one of them. */
static enum cm_err evaluate(struct fold *fold, const struct wk_node *node,
                            const struct wk_const **ret)
{
    const struct wk_graph *graph = fold->pass->graph;
    struct wk_arena arena = {0};
    struct cm_error ignored = {0};
    struct operands o;
    if (!take_operands(&arena, node, &o)) {
        wk_arena_fini(&arena);
        return CM_NOMEM;
    }
    enum cm_err code = fill_operands(graph, node, &o) ? CM_OK : CM_NOMEM;
    bool empty = true; /* its other dimensions may be too large to loop over */
    for (unsigned k = 0; k < node->n_out; k++)
        empty = empty && (node->out[k] < 0 || wk_fact_bytes(&graph->facts[node->out[k]]) == 0);
    if (code == CM_OK && !empty)
        code = wk_eval_alone(fold->backend, node, graph->facts, o.in, o.out, &ignored);
    for (unsigned k = 0; k < node->n_out && code == CM_OK; k++) {
        void *data;
        if (node->out[k] < 0)
            continue;
        const struct wk_fact *fact = &graph->facts[node->out[k]];
        struct wk_const *constant = pass_new_constant(fold->pass, fact->dtype, &fact->shape, &data);
        if (constant && constant->bytes)
            memcpy(data, o.out[k], constant->bytes);
        code = constant ? CM_OK : CM_NOMEM;
        ret[k] = constant;
    }
    let_go(graph, node, &o);
    wk_arena_fini(&arena);
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
    flops += in; /* they may have to be copied */
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
    if (pass_is_random(node) || pass_has_subgraph(node))
        return false;
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0 && !graph->values[node->in[k]].constant)
            return false;
    for (unsigned k = 0; k < node->n_out; k++) {
        if (node->out[k] >= 0 && !has_known_shape(&graph->facts[node->out[k]]))
            return false;
    }
    return node->n_out <= WK_MAX_IO;
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
    if (evaluate(fold, node, made) != CM_OK)
        return CM_OK;
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            pass_become_constant(pass, node->out[k], made[k]);
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
