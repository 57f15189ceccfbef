/* Pieces of the batch proof, shared by batch*.c only. */
#ifndef GPU_WORKER_GRAPH_BATCH_PRIV_H
#define GPU_WORKER_GRAPH_BATCH_PRIV_H

#include "gpu-worker/graph/batch.h"
#include "gpu-worker/graph/infer.h"

/* One output of a node whose inputs' rows are known. */
struct judge {
    const struct wk_node *node;
    const struct wk_fact *facts;
    const struct wk_fact *out;
};

/* Input k's fact, NULL if it is left out. */
const struct wk_fact *batch_input(const struct judge *j, unsigned k);

/* The shape operand k may name the batch, but has no dimension that grows with it in another way:
 * then one row's shape would change with the batch. */
bool batch_names_only(const struct judge *j, unsigned k);

/* The only axis that is the batch; -1 if there is none or more than one. */
int batch_axis(const struct cm_shape *shape);

/* The output, whose batch axis is out_axis, is rows, also where the batch axis of an input or of
 * the output is not the first. At least one input is not FREE, none is MIXED. */
bool batch_moved(const struct judge *j, int out_axis);

#endif
