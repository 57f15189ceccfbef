/* The plan of a model for people and scripts: `ingot run --explain`. Main thread. */
#ifndef DEPLOY_INGOT_EXPLAIN_H
#define DEPLOY_INGOT_EXPLAIN_H

#include "gpu-worker/engine.h"

#include <jansson.h>
#include <stdio.h>

/* [{position, name, op, fused, fate, kernel, datatype, shape, read_bytes, written_bytes, flops,
 * median_us, inside}] in the order of execution; fate is "runs", "view", "known" or "late"
 * (wk_node_fate). median_us is there if node_ns is given: rows of wk_plan_nodes times each. inside
 * is there for control flow: [{attribute, nodes}], whose nodes have mean_us, the mean of these
 * runs. The caller lets go of it. */
json_t *ig_explain_json(const struct wk_plan *plan, const uint64_t *node_ns, size_t rows);

/* The same as a table, with each node's share of the sum of the medians. */
void ig_explain_print(FILE *out, const json_t *list);

#endif
