/* Einsum's equation, resolved against the operands' shapes: which label each axis has, how long
 * each label is, and the output's labels. Pure, any thread. */
#ifndef GPU_WORKER_GRAPH_EINSUM_H
#define GPU_WORKER_GRAPH_EINSUM_H

#include "gpu-worker/graph/graph.h"

enum {
    WK_EINSUM_OPERANDS = 64,
    WK_EINSUM_DOTS =
        52, /* labels below are A-Z and a-z; from here on the ellipsis, last axis first */
    WK_EINSUM_LABELS = WK_EINSUM_DOTS + CM_MAX_RANK,
};

struct wk_einsum {
    int64_t dims[WK_EINSUM_LABELS]; /* symbolic ones as in the facts */
    unsigned n_operands;
    uint8_t labels[WK_EINSUM_OPERANDS][CM_MAX_RANK]; /* of each operand's axes */
    unsigned out_rank;
    uint8_t out[CM_MAX_RANK];
};

/* CM_INVALID where the equation is wrong or the shapes do not fit it; CM_LIMIT for an output of too
 * many dimensions. facts are of the graph's values; dimensions may be symbolic. */
CM_MUST_CHECK enum cm_err wk_einsum_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                            struct cm_error *err, struct wk_einsum *ret);

/* The equation by itself: its characters, and as many terms as the node has inputs. */
CM_MUST_CHECK enum cm_err wk_einsum_check(const struct wk_node *node, struct cm_error *err);

#endif
