/* Passes: rewrites of a loaded graph into one that computes the same with less work.
 *
 * A pass is one file and one function. They run once, at load, on a graph that has been checked
 * and whose facts are filled in; each can be left out for debugging. Whoever loads the model runs
 * them: the owner's thread, or a loader's beside plans that run on the same engine, so that a pass
 * only reads the engine's backend. */
#ifndef GPU_WORKER_GRAPH_PASSES_PASSES_H
#define GPU_WORKER_GRAPH_PASSES_PASSES_H

#include "gpu-worker/backend.h"

/* Part of a model's key: changes whenever passes leave other constants behind for equal files. */
#define WK_PASSES_VERSION 4

enum wk_pass_id {
#define PASS(name, what) WK_PASS_##name,
#include "gpu-worker/graph/passes/passes.inc"
#undef PASS
    WK_PASS_COUNT
};

/* On the graph and its subgraphs, each on its own: runs the passes whose bit (1 << id) is not in
 * disabled, then fills the facts anew. Errors are CM_NOMEM; a pass that cannot do something leaves
 * the graph as it is. */
CM_MUST_CHECK enum cm_err wk_passes_run(struct wk_graph *graph, const struct wk_backend *backend,
                                        uint64_t disabled, struct cm_error *err);

#endif
