/* The part of a plan whose shapes depend on data: run node by node, each with its rule, its memory
 * and its kernel found at that moment. The owner's thread; allocates in the run.
 *
 *     plan:  static steps, memory planned  |  late nodes, in order
 *                                           infer -> measure -> allocate -> prepare -> run -> free
 *
 * A node is late if a shape of its inputs or outputs, or the contents of an operand that decides
 * one, are not known when the plan is made; and with it everything that depends on it. */
#ifndef GPU_WORKER_GRAPH_LATE_H
#define GPU_WORKER_GRAPH_LATE_H

#include "gpu-worker/graph/flow.h"
#include "gpu-worker/graph/plan.h"

/* late[i]: node i of the plan's graph is late; facts are the plan's. */
CM_MUST_CHECK enum cm_err wk_late_create(struct wk_plan *plan, const void *base, const bool *late,
                                         struct cm_error *err, struct wk_late **ret_late);
void wk_late_destroy(struct wk_late *late);

/* Where the plan must write the address of a value that its static part has computed, before
 * wk_late_run. value is a root. */
const void **wk_late_slot(struct wk_late *late, int32_t value);

/* Runs all late nodes. Tensors of late outputs live until the next run or wk_late_destroy. */
CM_MUST_CHECK enum cm_err wk_late_run(struct wk_late *late, struct cm_error *err);

/* The control flow of a node of the graph; NULL if it is not a late node or has none. */
struct wk_flow *wk_late_flow(const struct wk_late *late, uint32_t node);

/* After a run: any value of the graph that a late node made. */
const struct wk_fact *wk_late_fact(const struct wk_late *late, int32_t value);
const void *wk_late_data(const struct wk_late *late, int32_t value);

#endif
