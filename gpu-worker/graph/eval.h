/* Running one node outside a plan: to know contents before the run, to fold constants, and for
 * nodes whose shapes depend on data. The owner's thread; allocates. */
#ifndef GPU_WORKER_GRAPH_EVAL_H
#define GPU_WORKER_GRAPH_EVAL_H

#include "gpu-worker/backend.h"
#include "gpu-worker/graph/infer.h"

/* Bytes of an output that is computed while planning. */
#define WK_MAX_EVAL_BYTES 8192

/* Prepares and runs one node. facts are settled and indexed as the node's values are; in and out
 * have the operands' memory. call->constants as for prepare, may be NULL. The caller brackets it
 * with the backend's begin and end if it is worth that. Errors of prepare and run. */
CM_MUST_CHECK enum cm_err wk_eval_run(struct wk_backend *backend, const struct wk_call *call,
                                      const void *const *in, void *const *out,
                                      struct cm_error *err);

/* The same for a node as if none of its operands were a constant of the file (nothing is packed).
 * in[k] is NULL for an operand that is left out or static. */
CM_MUST_CHECK enum cm_err wk_eval_alone(struct wk_backend *backend, const struct wk_node *node,
                                        const struct wk_fact *facts, const void *const *in,
                                        void *const *out, struct cm_error *err);

/* Settles output sizes that depend on contents (NonZero and the like): asks the backend where an
 * output still has unknown dimensions. in has all operands' memory. CM_UNSUPPORTED where the size
 * stays unknown. */
CM_MUST_CHECK enum cm_err wk_eval_measure(struct wk_backend *backend, const struct wk_graph *graph,
                                          const struct wk_node *node, struct wk_fact *facts,
                                          const void *const *in, struct cm_error *err);

/* If all inputs of a node are known and its outputs are small, runs it and takes up the outputs'
 * contents. */
CM_MUST_CHECK enum cm_err wk_eval_known(const struct wk_walk *walk, const struct wk_node *node);

#endif
