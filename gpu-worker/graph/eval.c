/* Running one node outside a plan; see eval.h. */
#include "gpu-worker/graph/eval.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_IN = 64, MAX_OUT = 16 }; /* of a node that is run while planning */

enum cm_err wk_eval_run(struct wk_backend *backend, const struct wk_call *call,
                        const void *const *in, void *const *out, struct cm_error *err)
{
    struct wk_arena arena = {.most = WK_MAX_TABLE_BYTES};
    const void *state = NULL;
    void *workspace = NULL;
    size_t workspace_bytes = 0;
    enum cm_err code = backend->ops->prepare(backend, call, &arena, err, &state, &workspace_bytes);
    if (code == CM_OK && workspace_bytes &&
        posix_memalign(&workspace, WK_ALIGN, workspace_bytes) != 0)
        code = wk_node_fail(err, CM_NOMEM, call->node, "no memory for its workspace");
    if (code == CM_OK) {
        struct wk_run run = {in, out, workspace, err};
        code = backend->ops->run(backend, state, &run);
    }
    free(workspace);
    wk_arena_fini(&arena);
    return code;
}

enum cm_err wk_eval_alone(struct wk_backend *backend, const struct wk_node *node,
                          const struct wk_fact *facts, const void *const *in, void *const *out,
                          struct cm_error *err)
{
    struct wk_arena arena = {0};
    size_t n = (size_t)node->n_in + node->n_out;
    struct wk_value *values = wk_arena_take(&arena, n, sizeof *values);
    struct wk_fact *own = wk_arena_take(&arena, n, sizeof *own);
    int32_t *numbers = wk_arena_take(&arena, n, sizeof *numbers);
    const void **constants = wk_arena_take(&arena, n, sizeof *constants);
    if (!values || !own || !numbers || !constants) {
        wk_arena_fini(&arena);
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    }
    struct wk_node copy = *node;
    for (size_t i = 0; i < n; i++) {
        int32_t from = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
        values[i] = (struct wk_value){"", -1, -1, NULL};
        numbers[i] = from < 0 ? -1 : (int32_t)i;
        if (from >= 0)
            own[i] = facts[from];
    }
    copy.in = numbers;
    copy.out = numbers + node->n_in;
    struct wk_graph graph = {
        .n_values = (uint32_t)n, .n_nodes = 1, .values = values, .nodes = &copy, .facts = own};
    struct wk_call call = {&graph, &copy, own, constants};
    enum cm_err code = wk_eval_run(backend, &call, in, out, err);
    wk_arena_fini(&arena);
    return code;
}

enum cm_err wk_eval_measure(struct wk_backend *backend, const struct wk_graph *graph,
                            const struct wk_node *node, struct wk_fact *facts,
                            const void *const *in, struct cm_error *err)
{
    bool settled = true;
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            settled = settled && wk_fact_is_settled(&facts[node->out[k]]);
    if (settled)
        return CM_OK;
    struct wk_call call = {graph, node, facts, NULL};
    enum cm_err code = backend->ops->measure(backend, &call, in, facts, err);
    for (unsigned k = 0; k < node->n_out && code == CM_OK; k++) {
        size_t bytes;
        const struct wk_fact *out = node->out[k] < 0 ? NULL : &facts[node->out[k]];
        if (!out)
            continue;
        if (!wk_fact_is_settled(out))
            code =
                wk_node_fail(err, CM_UNSUPPORTED, node, "the shape of output %u is not settled", k);
        else if (!wk_dims_fit(&out->shape) ||
                 cm_shape_bytes(&out->shape, out->dtype, &bytes) != CM_OK ||
                 bytes > WK_MAX_TENSOR_BYTES)
            code = wk_node_fail(err, CM_LIMIT, node, "its output is larger than %zu bytes",
                                WK_MAX_TENSOR_BYTES);
    }
    return code;
}

/* Dense bytes of every input; false where one is not known. */
static bool gather_inputs(const struct wk_walk *walk, const struct wk_node *node,
                          const void **ret_in, enum cm_err *ret_code)
{
    *ret_code = CM_OK;
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0 && !wk_fact_is_known(&walk->facts[node->in[k]]))
            return false;
    for (unsigned k = 0; k < node->n_in; k++) {
        struct wk_fact *fact = node->in[k] < 0 ? NULL : &walk->facts[node->in[k]];
        bool known;
        ret_in[k] = NULL;
        if (!fact)
            continue;
        /* Kept: many nodes may take the same value. */
        ret_in[k] = fact->data = wk_fact_contents(fact, walk->arena, &known);
        if (!ret_in[k]) {
            *ret_code = wk_node_fail(walk->err, CM_NOMEM, node, "out of memory");
            return false;
        }
    }
    return true;
}

/* Room for every wanted output; false where one is too large to be computed now, or all so far
 * are. */
static bool place_outputs(const struct wk_walk *walk, const struct wk_node *node, void **ret_out,
                          bool *ret_empty, enum cm_err *ret_code)
{
    *ret_code = CM_OK;
    *ret_empty = true;
    for (unsigned k = 0; k < node->n_out; k++) {
        size_t bytes;
        const struct wk_fact *out = node->out[k] < 0 ? NULL : &walk->facts[node->out[k]];
        ret_out[k] = NULL;
        if (!out)
            continue;
        if (!wk_fact_is_settled(out) || cm_shape_bytes(&out->shape, out->dtype, &bytes) != CM_OK ||
            bytes > WK_MAX_EVAL_BYTES ||
            (walk->spent && (walk->spent->evaluated += bytes + WK_ALIGN) > WK_MAX_EVAL_SUM))
            return false;
        /* Kernels may count on the alignment of tensors. */
        char *raw = wk_arena_take(walk->arena, bytes + WK_ALIGN, 1);
        if (!raw) {
            *ret_code = wk_node_fail(walk->err, CM_NOMEM, node, "out of memory");
            return false;
        }
        *ret_empty = *ret_empty && bytes == 0;
        ret_out[k] = raw + (WK_ALIGN - (uintptr_t)raw % WK_ALIGN) % WK_ALIGN;
    }
    return true;
}

enum cm_err wk_eval_known(const struct wk_walk *walk, const struct wk_node *node)
{
    const void *in[MAX_IN];
    void *out[MAX_OUT];
    enum cm_err code;
    if (node->n_in == 0 || node->n_in > MAX_IN || node->n_out > MAX_OUT ||
        wk_node_has_graphs(node) || wk_node_is_folded(node, walk->facts))
        return CM_OK;
    if (!gather_inputs(walk, node, in, &code))
        return code;
    if (wk_node_is_view(node)) {
        struct wk_fact *fact = &walk->facts[node->out[0]];
        return wk_fact_is_settled(fact) ? wk_fact_know(fact, in[0], walk->arena, walk->err) : CM_OK;
    }
    bool settled = true;
    for (unsigned k = 0; k < node->n_out; k++)
        settled = settled && (node->out[k] < 0 || wk_fact_is_settled(&walk->facts[node->out[k]]));
    if (!settled &&
        wk_eval_measure(walk->backend, walk->graph, node, walk->facts, in, walk->err) != CM_OK)
        return CM_OK;
    bool empty;
    if (!place_outputs(walk, node, out, &empty, &code))
        return code;
    if (!empty) /* its other dimensions may be too large to loop over */
        code = wk_eval_alone(walk->backend, node, walk->facts, in, out, walk->err);
    /* What it refuses it will refuse in the run, where the graph may never come to it. */
    if (code != CM_OK && code != CM_NOMEM)
        return CM_OK;
    for (unsigned k = 0; k < node->n_out && code == CM_OK; k++)
        if (out[k])
            code = wk_fact_know(&walk->facts[node->out[k]], out[k], walk->arena, walk->err);
    return code;
}
