/* What a node costs: an estimate for people (`ingot run --explain`) and for limits on work done at
 * load. Pure, any thread. */
#ifndef GPU_WORKER_GRAPH_COST_H
#define GPU_WORKER_GRAPH_COST_H

#include "gpu-worker/graph/graph.h"

/* Floating-point (or integer) operations, a multiply-add as two: exact for products and
 * convolutions, elements times a small factor for the rest. Unknown dimensions count as 1. */
double wk_node_flops(const struct wk_node *node, const struct wk_fact *facts);

/* Bytes of a fact's tensor; unknown dimensions count as 1. */
double wk_fact_bytes(const struct wk_fact *fact);

#endif
