/* A plan: a graph with concrete shapes, its steps in order and all memory placed. See engine.h for
 * the public contract; this header is for engine.c and tests. */
#ifndef GPU_WORKER_GRAPH_PLAN_H
#define GPU_WORKER_GRAPH_PLAN_H

#include "gpu-worker/backend.h"
#include "gpu-worker/graph/weights.h"

/* A pointer of a step that depends on a buffer of the caller's. */
struct wk_patch {
    const void **where;
    size_t offset; /* bytes into scratch, or the index of the input or output */
};

struct wk_step {
    const void *state;
    const void **in; /* filled before the run */
    void **out;
    void *workspace;
    const struct wk_node *node;
    bool empty; /* has no bytes to compute: is not run */
};

/* After the last step: an output whose bytes could not be produced in place. */
struct wk_final_copy {
    const void *from;
    uint32_t output;
    size_t bytes;
};

struct wk_plan {
    struct wk_arena arena;
    struct wk_backend *backend;
    const struct wk_graph *graph;
    struct wk_fact *facts;
    uint32_t n_steps, n_copies;
    struct wk_step *steps;
    struct wk_final_copy *copies;
    uint32_t n_scratch_patches, n_input_patches, n_output_patches;
    struct wk_patch *scratch_patches, *input_patches, *output_patches;
    size_t scratch_bytes;
    const void *last_scratch; /* what scratch patches were last applied for */
    uint64_t *node_ns;        /* per node, or NULL: see wk_plan_time_nodes */
};

/* weights are attached at base. Errors as wk_plan_create. */
CM_MUST_CHECK enum cm_err wk_plan_build(struct wk_backend *backend, const struct wk_graph *graph,
                                        const struct wk_weights *weights, const void *base,
                                        const struct cm_shape *inputs, struct cm_error *err,
                                        struct wk_plan **ret_plan);

#endif
