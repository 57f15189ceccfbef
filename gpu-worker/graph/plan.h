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

struct wk_flow;
struct wk_late;

struct wk_step {
    const void *state;
    const void **in; /* filled before the run */
    void **out;
    void *workspace;
    const struct wk_node *node;
    struct wk_flow *flow; /* an If whose outputs are settled; else NULL */
    bool empty;           /* has no bytes to compute: is not run */
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
    uint64_t *sum_ns;         /* inside another plan: per node, of all its runs; NULL: not timed */
    struct wk_late *late;     /* nodes whose shapes depend on data; NULL: none */
    bool *node_is_late;       /* per node; NULL: none is */
    bool *output_is_late;     /* per output: made by these */
    const void **late_data;   /* per output that is late and a constant: its bytes */
};

/* graph's weights (graph->weights) are attached at base. inputs has one settled fact per input of
 * the graph; contents in them hold for every run. Errors as wk_plan_create. */
CM_MUST_CHECK enum cm_err wk_plan_build(struct wk_backend *backend, const struct wk_graph *graph,
                                        const void *base, const struct wk_fact *inputs,
                                        struct cm_error *err, struct wk_plan **ret_plan);

/* The facts of a model's inputs with these shapes; CM_INVALID, CM_LIMIT where they do not fit. */
CM_MUST_CHECK enum cm_err wk_plan_check_inputs(const struct wk_graph *graph,
                                               const struct cm_shape *inputs, struct cm_error *err,
                                               struct wk_fact *ret_facts);

/* Adds what a node took to the plan's times, if it is timed. */
static inline bool wk_plan_is_timed(const struct wk_plan *plan)
{
    return plan->node_ns || plan->sum_ns;
}
void wk_plan_add_time(struct wk_plan *plan, const struct wk_node *node, uint64_t ns);

/* Times the plans of its subgraphs from now on, and those that they make. */
void wk_plan_time_inside(struct wk_plan *plan);

/* wk_plan_run for a plan that runs inside another one's run. */
CM_MUST_CHECK enum cm_err wk_plan_run_inside(struct wk_plan *plan, const void *const *inputs,
                                             void *const *outputs, void *scratch,
                                             struct cm_error *err);

#endif
