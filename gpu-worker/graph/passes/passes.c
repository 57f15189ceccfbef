/* Runs the passes in their order. See passes.h. */
#include "gpu-worker/graph/passes/passes.h"

#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/passes/edit.h"

#include <assert.h>
#include <string.h>

static pass_fn *const functions[] = {
#define PASS(name, what) pass_##name,
#include "gpu-worker/graph/passes/passes.inc"
#undef PASS
};

static const char *const names[] = {
#define PASS(name, what) #name,
#include "gpu-worker/graph/passes/passes.inc"
#undef PASS
};

static const char *const summaries[] = {
#define PASS(name, what) what,
#include "gpu-worker/graph/passes/passes.inc"
#undef PASS
};

static_assert(WK_PASS_COUNT <= 64, "a bit each");

const char *wk_pass_name(unsigned i)
{
    return i < WK_PASS_COUNT ? names[i] : NULL;
}

const char *wk_pass_summary(unsigned i)
{
    return i < WK_PASS_COUNT ? summaries[i] : NULL;
}

bool wk_pass_from_name(const char *name, uint64_t *ret_bits)
{
    for (unsigned i = 0; i < WK_PASS_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *ret_bits = (uint64_t)1 << i;
            return true;
        }
    if (strcmp(name, "all") != 0)
        return false;
    *ret_bits = WK_PASS_COUNT == 64 ? UINT64_MAX : ((uint64_t)1 << WK_PASS_COUNT) - 1;
    return true;
}

static enum cm_err run_one(struct wk_pass *pass, unsigned id)
{
    enum cm_err code = pass_index(pass);
    if (code == CM_OK)
        code = functions[id](pass);
    if (code == CM_OK && pass->changed)
        code = pass_compact(pass);
    return code;
}

/* One graph and its subgraphs, whose captured values are inputs to them; nesting is bounded by the
 * loader. */
static enum cm_err run_graph(struct wk_graph *graph, const struct wk_backend *backend,
                             uint64_t disabled, struct cm_error *err, bool *changed)
{
    enum cm_err code = CM_OK;
    for (struct wk_graph *child = graph->child; child && code == CM_OK; child = child->sibling)
        code = run_graph(child, backend, disabled, err, changed);
    if (code != CM_OK)
        return code;
    for (unsigned id = 0; id < WK_PASS_COUNT; id++) {
        if (disabled >> id & 1)
            continue;
        struct wk_pass pass = {.graph = graph, .backend = backend, .err = err};
        code = run_one(&pass, id);
        *changed = *changed || pass.changed;
        wk_arena_fini(&pass.arena);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

enum cm_err wk_passes_run(struct wk_graph *graph, const struct wk_backend *backend,
                          uint64_t disabled, struct cm_error *err)
{
    bool changed = false;
    enum cm_err code = run_graph(graph, backend, disabled, err, &changed);
    return code == CM_OK && changed ? wk_graph_settle(graph, err) : code;
}
