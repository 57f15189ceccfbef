/* What executes nodes: one small table of functions per backend, so that another device can stand
 * beside the CPU. The engine decides what runs when and where its memory lies; a backend decides
 * how, and how it wants its constants stored.
 *
 * Life of a node in a backend: supports (load) -> layout and pack of its constant inputs (load; the
 * result is shared by processes, so it must not depend on the machine) -> prepare (per plan) ->
 * run. All calls come from the thread that owns the engine. Only prepare may allocate, from the
 * plan's arena; run allocates nothing. */
#ifndef GPU_WORKER_BACKEND_H
#define GPU_WORKER_BACKEND_H

#include "common/err.h"
#include "gpu-worker/engine.h"
#include "gpu-worker/graph/arena.h"
#include "gpu-worker/graph/graph.h"

struct wk_backend;

/* How a constant input is stored among the packed weights. */
#define WK_LAYOUT_NONE  0u /* not stored: run does not read it */
#define WK_LAYOUT_PLAIN 1u /* as in the file, dense row-major */
#define WK_LAYOUT_OWN   2u /* from here on: the backend's own layouts */

struct wk_layout {
    uint32_t kind;
    size_t
        bytes;   /* for WK_LAYOUT_OWN and above; equal kinds and bytes of one constant are shared */
    bool shared; /* false: the bytes depend on more than the one constant */
};

/* One node as a backend sees it. facts are of all values, indexed as node->in and node->out are. */
struct wk_call {
    const struct wk_graph *graph;
    const struct wk_node *node;
    const struct wk_fact *facts;
    /* prepare only: stored bytes of input k where it is constant and stored; otherwise NULL. */
    const void *const *constants;
};

/* Input k's fact, NULL if it is left out. */
static inline const struct wk_fact *wk_call_in(const struct wk_call *call, unsigned k)
{
    if (k >= call->node->n_in || call->node->in[k] < 0)
        return NULL;
    return &call->facts[call->node->in[k]];
}

static inline const struct wk_fact *wk_call_out(const struct wk_call *call)
{
    return &call->facts[call->node->out[0]];
}

/* Input k is a constant of the file. */
static inline bool wk_call_has_constant(const struct wk_call *call, unsigned k)
{
    return wk_call_in(call, k) && call->graph->values[call->node->in[k]].constant;
}

/* Input k is a constant that was checked against the other operands at load, so that the backend
 * may have stored it its own way. */
static inline bool wk_call_is_constant(const struct wk_call *call, unsigned k)
{
    return !call->node->loose && wk_call_has_constant(call, k);
}

/* Operands of one run. in[k] is NULL where input k is left out or not stored. */
struct wk_run {
    const void *const *in;
    void *const *out;
    void *workspace; /* as many bytes as prepare asked for, WK_ALIGN aligned; NULL for 0 */
    struct cm_error *err;
};

/* How the other operand of an element-wise operator lies over its first one, the output of a node
 * that it may be fused with. */
enum wk_spread {
    WK_SPREAD_NONE = 0, /* there is none */
    WK_SPREAD_ONE,      /* one number */
    WK_SPREAD_EACH,     /* the same shape */
    WK_SPREAD_CHANNEL,  /* one number for each index of axis 1 */
    WK_SPREAD_LAST,     /* one for each index of the last axis */
    WK_SPREAD_OTHER,    /* broadcast in another way, without making the first one larger */
};

struct wk_backend_ops {
    const char *name;
    uint32_t packing_version; /* changes whenever equal constants would be stored differently */

    /* CM_OK if the node can run here. Dimensions may still be symbolic. */
    enum cm_err (*supports)(const struct wk_backend *backend, const struct wk_call *call,
                            struct cm_error *err);

    /* Whether host can run a stage of this operator, whose operand lies in this way, on its output.
     * Both compute the same bits as if they ran alone. host may have stages already. With stage ==
     * host->node: whether it can run the form that a pass has given the node. */
    bool (*fuses)(const struct wk_backend *backend, const struct wk_call *host,
                  const struct wk_node *stage, enum wk_spread spread);

    /* How constant input k is to be stored. Depends on constants and attributes only. For a loose
     * node it may only look at the constant itself. */
    void (*layout)(const struct wk_backend *backend, const struct wk_call *call, unsigned k,
                   struct wk_layout *ret_layout);

    /* Writes a layout of the backend's own. Constants' data is readable. */
    void (*pack)(const struct wk_backend *backend, const struct wk_call *call, unsigned k,
                 void *ret_bytes);

    /* Everything that can be decided from concrete shapes. The state lives in arena. */
    enum cm_err (*prepare)(const struct wk_backend *backend, const struct wk_call *call,
                           struct wk_arena *arena, struct cm_error *err, const void **ret_state,
                           size_t *ret_workspace);

    /* One short line about how a prepared node runs, for people. */
    void (*describe)(const struct wk_backend *backend, const struct wk_call *call,
                     const void *state, char *buffer, size_t size);
    /* Fills the unknown dimensions of the outputs' facts from the inputs' contents, for operators
     * whose output size depends on data (NonZero). in has every input's bytes. CM_UNSUPPORTED for
     * an operator that it does not know how to measure. */
    enum cm_err (*measure)(const struct wk_backend *backend, const struct wk_call *call,
                           const void *const *in, struct wk_fact *facts, struct cm_error *err);

    /* Runs one node. Errors are for data that the node refuses (an index out of range). */
    enum cm_err (*run)(struct wk_backend *backend, const void *state, const struct wk_run *run);

    /* Bracket the nodes of one plan run. end waits until all of them have finished. */
    void (*begin)(struct wk_backend *backend);
    void (*end)(struct wk_backend *backend);

    void (*destroy)(struct wk_backend *backend);
};

/* Embedded by each backend. */
struct wk_backend {
    const struct wk_backend_ops *ops;
};

/* The CPU backend (cpu/backend.c): kernels of one instruction set and a pool of threads. Errors as
 * wk_engine_create. */
CM_MUST_CHECK enum cm_err wk_cpu_backend_create(const struct wk_engine_options *options,
                                                struct cm_error *err,
                                                struct wk_backend **ret_backend,
                                                enum wk_isa *ret_isa);

#endif
