/* Which constants a model keeps, how each is stored, and where in the block of packed weights. The
 * owner's thread. The block's contents follow from the file and the backend's packing version
 * alone, so that processes can share one block. */
#ifndef GPU_WORKER_GRAPH_WEIGHTS_H
#define GPU_WORKER_GRAPH_WEIGHTS_H

#include "gpu-worker/backend.h"

#define WK_NO_WEIGHT UINT32_MAX

struct wk_weight {
    int32_t value;
    uint32_t node;  /* that pack is called for */
    uint16_t input; /* of that node */
    uint32_t kind;
    bool shared;
    size_t bytes, offset;
    uint32_t next; /* shared one of the same value; WK_NO_WEIGHT ends */
};

struct wk_weights {
    uint32_t n, room;
    struct wk_weight *items;
    uint32_t *first_in;  /* per node: where its inputs' entries start in of_input */
    uint32_t *of_input;  /* item of each node input, or WK_NO_WEIGHT */
    uint32_t *of_value;  /* first shared item of each value, or WK_NO_WEIGHT */
    uint32_t *of_output; /* per output: item of one that is a constant itself */
    size_t own_bytes;    /* of items */
    size_t bytes;        /* with those of subgraphs, which follow */
    size_t first_byte;   /* of a subgraph: where its block starts in its parent's */
    const struct wk_graph *graph;
    struct wk_weights *child, *sibling;
};

/* Lays out every constant that a node reads at run time, also in subgraphs. weights must be zeroed
 * and stay where it is as long as the graph: graph->weights points to it. */
CM_MUST_CHECK enum cm_err wk_weights_lay_out(const struct wk_backend *backend,
                                             struct wk_graph *graph, struct cm_error *err,
                                             struct wk_weights *weights);
void wk_weights_fini(struct wk_weights *weights);

/* Writes weights->bytes bytes at base. */
void wk_weights_pack(const struct wk_weights *weights, const struct wk_backend *backend,
                     const struct wk_graph *graph, void *base);

#endif
