/* Execution of control flow: If, Loop and Scan. Each subgraph is planned for the input shapes that
 * it meets, and its last few plans are kept. The owner's thread.
 *
 * An If whose branches agree on all output shapes is a step of its plan like any other
 * (wk_flow_branch: allocates nothing). Everything else runs with the nodes whose shapes depend on
 * data (graph/late.h). */
#ifndef GPU_WORKER_GRAPH_FLOW_H
#define GPU_WORKER_GRAPH_FLOW_H

#include "gpu-worker/backend.h"

struct wk_flow;
struct wk_plan;

/* A tensor of a run. owned is NULL or the memory to free, which data points into. */
struct wk_tensor {
    enum cm_dtype dtype;
    struct cm_shape shape;
    const void *data;
    void *owned;
};
void wk_tensor_fini(struct wk_tensor *tensor);

/* Uninitialised memory for dtype and shape. CM_LIMIT, CM_NOMEM. */
CM_MUST_CHECK enum cm_err wk_tensor_make(struct wk_tensor *tensor, enum cm_dtype dtype,
                                         const struct cm_shape *shape, struct cm_error *err);

/* For one node of a graph that is being planned. base: the graph's packed weights. known: the
 * plan's facts, which outlive the flow; contents in them may be relied on in every run. */
CM_MUST_CHECK enum cm_err wk_flow_create(struct wk_backend *backend, const struct wk_graph *graph,
                                         const struct wk_node *node, const void *base,
                                         const struct wk_fact *known, struct cm_error *err,
                                         struct wk_flow **ret_flow);
void wk_flow_destroy(struct wk_flow *flow);

/* Plans the branches of an If for the known facts: all of them, or the one that is certain. One
 * that these shapes do not fit stays without a plan, and fails when it is taken. */
CM_MUST_CHECK enum cm_err wk_flow_plan_branches(struct wk_flow *flow, struct cm_error *err);

/* Runs an If that was planned so. in and out as of a step. */
CM_MUST_CHECK enum cm_err wk_flow_branch(struct wk_flow *flow, const void *const *in,
                                         void *const *out, struct cm_error *err);

/* Times the plans of subgraphs from now on (wk_plan_time_inside). */
void wk_flow_time(struct wk_flow *flow);

/* The n-th plan that the flow keeps, and the attribute whose subgraph it is of; NULL beyond the
 * last.
 */
struct wk_plan *wk_flow_plan(const struct wk_flow *flow, unsigned n, const char **ret_attribute);

/* Runs any of the three. facts has the present types and shapes of the node's inputs (indexed by
 * value); out gets one tensor per output, made here, for the caller to end also after a failure. */
CM_MUST_CHECK enum cm_err wk_flow_run(struct wk_flow *flow, const struct wk_fact *facts,
                                      const void *const *in, struct wk_tensor *out,
                                      struct cm_error *err);

#endif
