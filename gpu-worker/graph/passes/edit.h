/* What a pass may do to a graph, and the index of uses that makes it cheap. Passes only.
 *
 * A value keeps its meaning for good: a pass may give it another producer or make it a constant,
 * never other contents, so that facts stay true while passes run. Nodes change in place: the last
 * node of a pattern is overwritten with what stands for all of it, and what only fed the pattern
 * loses its uses (it stays in the graph until the pass `dead` takes it away). */
#ifndef GPU_WORKER_GRAPH_PASSES_EDIT_H
#define GPU_WORKER_GRAPH_PASSES_EDIT_H

#include "gpu-worker/backend.h"

#define PASS_NONE UINT32_MAX

/* One operand of a live node, or one output of the graph (node is PASS_NONE), in the list of its
 * value. */
struct pass_use {
    uint32_t node, slot;
    uint32_t next, prev;
};

struct wk_pass {
    struct wk_graph *graph;
    const struct wk_backend *backend; /* asked what it can fuse; never run */
    struct cm_error *err;
    struct wk_arena arena; /* scratch of this pass */
    bool changed;
    /* The index: filled by the driver before the pass, kept true by the functions below. */
    uint32_t value_room;
    uint32_t *first_use; /* per value: PASS_NONE ends */
    uint32_t *n_uses;    /* per value */
    bool *idle;          /* per node: no output needs it; its operands are no uses */
    bool *removed;       /* per node: replaced, not part of the graph any more */
    uint32_t *node_uses; /* per node: the use of operand 0, others follow */
    uint32_t *stack;     /* of nodes, for sweeps */
    struct pass_use *uses;
    uint32_t use_count, use_room;
};

typedef enum cm_err pass_fn(struct wk_pass *pass);

/* Every function that passes.inc names. */
#define PASS(name, what) pass_fn pass_##name;
#include "gpu-worker/graph/passes/passes.inc"
#undef PASS

/* Fills the index. CM_NOMEM only. */
CM_MUST_CHECK enum cm_err pass_index(struct wk_pass *pass);
/* Takes removed nodes out of the graph. CM_NOMEM only. */
CM_MUST_CHECK enum cm_err pass_compact(struct wk_pass *pass);

/* The node that computes a value (an input's index may be -1); NULL for inputs and constants. */
struct wk_node *pass_producer(const struct wk_pass *pass, int32_t value);
/* The same, if the operator is op. */
struct wk_node *pass_producer_of(const struct wk_pass *pass, int32_t value, enum wk_op op);
/* How often outputs and live nodes use a value. */
uint32_t pass_uses(const struct wk_pass *pass, int32_t value);
/* The one node that uses a value, once; NULL if there is none or if anything else does too. */
struct wk_node *pass_only_user(const struct wk_pass *pass, int32_t value);
bool pass_is_live(const struct wk_pass *pass, const struct wk_node *node);

/* Input k, -1 where it is left out. */
static inline int32_t pass_in(const struct wk_node *node, unsigned k)
{
    return k < node->n_in ? node->in[k] : -1;
}
/* A value's constant or NULL; value may be -1. */
const struct wk_const *pass_constant(const struct wk_pass *pass, int32_t value);
/* The one number of an FP32 constant of one element; false for all else. */
bool pass_number(const struct wk_pass *pass, int32_t value, float *ret_number);
/* The value, or an FP32 constant of one element that is exactly this number? */
bool pass_is_number(const struct wk_pass *pass, int32_t value, float number);

/* Every use of a value, also as the graph's output, becomes one of another value. */
void pass_replace(struct wk_pass *pass, int32_t value, int32_t by);

/* Overwrites a node. made has the outputs of the old one; its arrays live in the graph's arena.
 * CM_NOMEM only, and then nothing has changed. */
CM_MUST_CHECK enum cm_err pass_set_node(struct wk_pass *pass, struct wk_node *node,
                                        const struct wk_node *made);

/* Takes a node out of the graph; nothing may use its outputs any more, unless they have become
 * constants. */
void pass_remove(struct wk_pass *pass, struct wk_node *node);

/* Zeroed memory for a constant's bytes, with the constant: valid as wk_const says. NULL when memory
 * is out (err is filled). */
struct wk_const *pass_new_constant(struct wk_pass *pass, enum cm_dtype dtype,
                                   const struct cm_shape *shape, void **ret_data);
/* A new value for a constant. name lives in the graph's arena or is static. */
CM_MUST_CHECK enum cm_err pass_add_value(struct wk_pass *pass, const char *name,
                                         const struct wk_const *constant, int32_t *ret_value);
/* A computed value turns out to be a constant; its producer must be removed by the caller. */
void pass_become_constant(struct wk_pass *pass, int32_t value, const struct wk_const *constant);

/* Memory of the graph's life, with the error filled in when there is none. */
void *pass_take(struct wk_pass *pass, size_t count, size_t size);

/* A new node's list of operands or attributes, in the graph's arena. NULL when memory is out. */
int32_t *pass_values(struct wk_pass *pass, unsigned count, const int32_t *values);
const struct wk_attr *pass_attrs(struct wk_pass *pass, unsigned count, const struct wk_attr *attrs);

/* Draws other bytes in every run, so that two are not one and none is a constant. */
bool pass_is_random(const struct wk_node *node);
/* Has subgraphs; what they do is not seen from outside. */
bool pass_has_subgraph(const struct wk_node *node);

#endif
