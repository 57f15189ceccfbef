/* Proof that rows of different callers may share a run. Pure, the owner's thread.
 *
 * While symbolic shapes are inferred, every value is classed (enum wk_rows): a value is ROWS if one
 * of its axes is the batch (the first one of inputs and outputs) and its row i depends on row i of
 * the model's inputs only, whatever the batch size. What no rule here proves is MIXED; nothing is
 * guessed. */
#ifndef GPU_WORKER_GRAPH_BATCH_H
#define GPU_WORKER_GRAPH_BATCH_H

#include "gpu-worker/graph/graph.h"

/* Sets rows of the node's outputs. Inputs' rows and all shapes and elements are set. */
void wk_batch_node(const struct wk_node *node, struct wk_fact *facts);

/* True if all inputs and outputs of the loaded graph are rows of one batch. Otherwise why says, in
 * a sentence, which input, output or node stands in the way. */
bool wk_batch_proven(const struct wk_graph *graph, char *why, size_t why_size);

#endif
