/* Shared by infer*.c only: one node's inference call, dimension and element arithmetic. */
#ifndef GPU_WORKER_GRAPH_INFER_PRIV_H
#define GPU_WORKER_GRAPH_INFER_PRIV_H

#include "gpu-worker/graph/infer.h"

struct infer {
    const struct wk_node *node;
    struct wk_fact *facts; /* of all values */
    struct wk_arena *arena;
    struct cm_error *err;
};

typedef enum cm_err infer_fn(struct infer *in);

/* Input k's fact, NULL if it is left out. Output k's, NULL if it is not wanted. */
const struct wk_fact *infer_in(const struct infer *in, unsigned k);
struct wk_fact *infer_out(const struct infer *in, unsigned k);

/* Sets output 0. */
enum cm_err infer_set(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape);

/* Room for the elements of a value with this shape: NULL in *ret where they are not tracked (type,
 * unknown dimension or too many). CM_NOMEM only. */
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

/* All elements of input k as integers. CM_UNSUPPORTED if its contents are not known before the
 * run; elements may be symbolic. */
enum cm_err infer_elems(struct infer *in, unsigned k, const char *what,
                        const struct wk_elem **ret_elems, unsigned *ret_count);

#define INFER(name) enum cm_err infer_##name(struct infer *in)
INFER(same);
INFER(compute_unary);
INFER(clip);
INFER(binary);
INFER(variadic);
INFER(compare);
INFER(logic);
INFER(where);
INFER(batch_norm);
INFER(softmax);
INFER(matmul);
INFER(gemm);
INFER(conv);
INFER(pool);
INFER(global_pool);
INFER(reduce);
INFER(reshape);
INFER(flatten);
INFER(squeeze);
INFER(unsqueeze);
INFER(shape);
INFER(size);
INFER(slice);
INFER(concat);
INFER(gather);
INFER(transpose);
INFER(cast);
INFER(dropout);
INFER(constant_of_shape);
INFER(expand);
INFER(pad);
#undef INFER

#endif
