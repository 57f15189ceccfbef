/* Pieces of control flow, shared by flow*.c only. */
#ifndef GPU_WORKER_GRAPH_FLOW_PRIV_H
#define GPU_WORKER_GRAPH_FLOW_PRIV_H

#include "gpu-worker/graph/flow.h"
#include "gpu-worker/graph/plan.h"

enum { CACHED_PLANS = 4 };

/* A subgraph planned for one set of input types and shapes. */
struct body_plan {
    struct wk_plan *plan;
    void *scratch;
    struct wk_fact *inputs; /* n_inputs of them */
};

struct body {
    const struct wk_graph *graph;
    const char *base; /* its packed weights */
    uint32_t first;   /* of its captured values among the node's inputs */
    struct body_plan plans[CACHED_PLANS];
    unsigned next;         /* to be replaced */
    struct wk_fact *asked; /* room for n_inputs facts */
    const void **in;       /* room for n_inputs addresses */
    void **out;            /* room for n_outputs */
};

struct wk_flow {
    struct wk_backend *backend;
    const struct wk_node *node;
    const struct wk_fact *known;
    struct body bodies[2];
    unsigned n_bodies;
    bool timed;  /* its plans are */
    int certain; /* the branch that an If is known to take, or -1 */
    struct wk_arena arena;
};

/* ---- flow.c ---------------------------------------------------------------------------------- */

size_t flow_tensor_bytes(const struct wk_tensor *tensor);

/* A tensor that the flow does not own. */
struct wk_tensor flow_borrow(const struct wk_fact *fact, const void *data);

/* Sets types, shapes and addresses of a body's inputs: formal has its formal ones, the captured
 * ones are the node's, whose facts and addresses are given. */
void flow_ask(struct wk_flow *flow, struct body *body, const struct wk_tensor *formal,
              const struct wk_fact *facts, const void *const *in);

/* Runs a body for what was asked; out gets n_outputs new tensors, none after a failure. */
enum cm_err flow_run_body(struct wk_flow *flow, struct body *body, struct wk_tensor *out,
                          struct cm_error *err);

/* ---- flow_trips.c ---------------------------------------------------------------------------- */

/* An output that grows by a piece per trip. */
struct stack {
    enum cm_dtype dtype;
    struct cm_shape piece;
    size_t piece_bytes, used, room;
    char *memory;
    int64_t count;
};

/* What Loop and Scan carry from trip to trip, and what they collect. */
struct trips {
    struct wk_tensor *formal;  /* n_formal inputs of the body */
    struct wk_tensor *results; /* n_outputs of the body */
    struct stack *stacks;      /* one per scan output */
    uint32_t n_formal, n_results, n_carried, n_stacks;
    size_t stacked; /* bytes of all stacks */
};

/* Room for a body with n_carried states; before: outputs of the body in front of these. */
enum cm_err flow_trips_take(struct wk_flow *flow, struct trips *t, uint32_t n_carried,
                            uint32_t before, struct cm_error *err);
void flow_trips_end(struct trips *t);

/* Runs the body once for t->formal into t->results. */
enum cm_err flow_trip(struct wk_flow *flow, struct trips *t, const struct wk_fact *facts,
                      const void *const *in, struct cm_error *err);

/* Results [from, from + n_carried) replace the formal inputs from `to` on; the rest is collected.
 */
enum cm_err flow_trips_advance(struct wk_flow *flow, struct trips *t, uint32_t from, uint32_t to,
                               struct cm_error *err);

/* What was collected as a tensor whose axis `axis` counts the pieces, from the last one if reverse.
 * fact tells type and shape of a piece where there was none. */
enum cm_err flow_stack_tensor(struct wk_flow *flow, const struct stack *stack, unsigned axis,
                              bool reverse, const struct wk_fact *fact, struct cm_error *err,
                              struct wk_tensor *ret);

/* A carried tensor as an output: what is borrowed is copied. */
enum cm_err flow_give(struct wk_tensor *from, struct wk_tensor *to, struct cm_error *err);

/* As wk_flow_run. */
enum cm_err flow_run_loop(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                          struct wk_tensor *out, struct cm_error *err);
enum cm_err flow_run_scan(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                          struct wk_tensor *out, struct cm_error *err);

#endif
