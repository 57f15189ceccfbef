/* Which dimensions are equal whatever a request's are. Passes only.
 *
 * Facts say of a free dimension only that it is free. Fusing an Add with the convolution before it
 * needs more: that both operands have the same height. Every dimension of every value gets an
 * identity; equal identities are equal numbers in every run. They come from following the graph's
 * operators, through windows that keep a size and through the shape arithmetic that exporters write
 * around Reshape. What is not followed gets an identity of its own. */
#ifndef GPU_WORKER_GRAPH_PASSES_DIMS_H
#define GPU_WORKER_GRAPH_PASSES_DIMS_H

#include "gpu-worker/graph/passes/edit.h"

/* An identity is a hash of how a number comes about. A file may be made so that two collide; then a
 * plan is refused where the shapes turn out not to fit, so nothing must rely on them in the run. */
typedef uint64_t pass_dim;

struct pass_dims {
    const struct wk_graph *graph;
    pass_dim (*shape)[CM_MAX_RANK]; /* per value: its dimensions */
    pass_dim (
        *elems)[CM_MAX_RANK]; /* per value: its contents, if it has few and facts follow them */
};

/* Scratch of the pass; values that the pass adds later have no entry. CM_NOMEM only. */
CM_MUST_CHECK enum cm_err pass_dims_fill(struct wk_pass *pass, struct pass_dims *ret);

/* How `operand` lies over `out` when they are broadcast, if it is certain that the result has the
 * shape of `out`; false otherwise. */
bool pass_find_spread(const struct pass_dims *dims, int32_t out, int32_t operand,
                      enum wk_spread *ret_spread);

#endif
