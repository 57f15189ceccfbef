/* Shared by infer*.c only: one node's inference call, dimension and element arithmetic. */
#ifndef GPU_WORKER_GRAPH_INFER_PRIV_H
#define GPU_WORKER_GRAPH_INFER_PRIV_H

#include "gpu-worker/graph/infer.h"

struct infer {
    const struct wk_node *node;
    struct wk_fact *facts; /* of all values */
    struct wk_arena *arena;
    struct cm_error *err;
    const struct wk_walk *walk;
    bool missing; /* a rule asked for contents that are not known yet: set by infer_elems */
};

typedef enum cm_err infer_fn(struct infer *in);

/* Input k's fact, NULL if it is left out. Output k's, NULL if it is not wanted. */
const struct wk_fact *infer_in(const struct infer *in, unsigned k);
struct wk_fact *infer_out(const struct infer *in, unsigned k);

/* Sets output 0. */
enum cm_err infer_set(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape);

/* Room for the elements of a value with this shape: NULL in *ret where they are not tracked (type,
 * unknown dimension or too many). CM_NOMEM, and CM_LIMIT for too many of the whole graph. */
enum cm_err infer_track(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape,
                        struct wk_elem **ret);

bool infer_is_tracked_type(enum cm_dtype dtype);

/* Known, or symbolic? */
static inline bool dim_known(int64_t dim)
{
    return dim >= 0;
}
/* Both functions return false where the dimensions do not fit or overflow. */
bool dim_mul(int64_t a, int64_t b, int64_t *ret);
bool dim_broadcast(int64_t a, int64_t b, int64_t *ret);
bool shape_broadcast(const struct cm_shape *a, const struct cm_shape *b, struct cm_shape *ret);

/* Every input has its rank and all its dimensions, and every static operand (ops.inc) its contents:
 * integers in elems, any type in data. What is not settled at load may be in a plan, and what is
 * not settled in a plan will be in the run: then the same rule is asked again. So a rule must say
 * what it can (unknown dimensions are WK_DIM_ANY) and refuse only what is wrong. */
bool infer_is_settled(const struct infer *in);

/* Output k will be settled later: its type is known (CM_DTYPE_NONE: neither), its rank may be (-1:
 * no); all its dimensions become WK_DIM_ANY. */
enum cm_err infer_later(struct infer *in, unsigned k, enum cm_dtype dtype, int rank);

/* Sets output k; it need not be wanted. */
enum cm_err infer_set_out(struct infer *in, unsigned k, enum cm_dtype dtype,
                          const struct cm_shape *shape);

/* All elements of input k as integers; they may be symbolic. Where its contents are not known yet
 * the rule must return what this returns: the walk then leaves all outputs for later, with the type
 * of input 0 and no rank. */
enum cm_err infer_elems(struct infer *in, unsigned k, const char *what,
                        const struct wk_elem **ret_elems, unsigned *ret_count);

/* A convolution whose weights and bias are inputs w_at and bias_at (the latter may be missing),
 * with an output of dtype. */
enum cm_err infer_conv_at(struct infer *in, unsigned w_at, unsigned bias_at, bool transposed,
                          enum cm_dtype dtype);

/* Every rule that ops.inc names. */
#define OP(name, rule, traits, note) enum cm_err infer_##rule(struct infer *in);
#define VER(name, first, last, min_in, max_in, max_out, attributes)
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER

#endif
