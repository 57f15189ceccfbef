/* Shared by the shape rules of what sums up (infer_reduce.c, infer_norm.c, infer_product.c) and by
 * the CPU backend, which resolves the same attributes. Pure, any thread. */
#ifndef GPU_WORKER_GRAPH_INFER_REDUCE_H
#define GPU_WORKER_GRAPH_INFER_REDUCE_H

#include "gpu-worker/graph/infer_priv.h"

/* Sets of element types, for infer_need. */
#define INFER_TYPE(id) (1u << CM_##id)
#define INFER_FLOATS   (INFER_TYPE(FP16) | INFER_TYPE(BF16) | INFER_TYPE(FP32) | INFER_TYPE(FP64))
#define INFER_WIDE_INTS \
    (INFER_TYPE(INT32) | INFER_TYPE(INT64) | INFER_TYPE(UINT32) | INFER_TYPE(UINT64))
#define INFER_BYTES (INFER_TYPE(INT8) | INFER_TYPE(UINT8))
#define INFER_NUMBERS \
    (INFER_FLOATS | INFER_WIDE_INTS | INFER_BYTES | INFER_TYPE(INT16) | INFER_TYPE(UINT16))

/* Input k, if it is there, has one of the types. */
enum cm_err infer_need(const struct infer *in, unsigned k, unsigned types);

/* Input k, if it is there, has input 0's type. */
enum cm_err infer_need_same(const struct infer *in, unsigned k);

/* "shapes ... and ... do not fit". */
enum cm_err infer_shapes_differ(const struct infer *in, const struct cm_shape *a,
                                const struct cm_shape *b);

/* a and b may be the same number. */
static inline bool infer_same_dim(int64_t a, int64_t b)
{
    return a == b || !dim_known(a) || !dim_known(b);
}

/* Input k, if it is there, is a vector of dim elements. */
enum cm_err infer_need_vector(const struct infer *in, unsigned k, int64_t dim);

/* The node's axis attribute of an input with rank dimensions, or a refusal. */
enum cm_err infer_axis(const struct infer *in, int64_t otherwise, unsigned rank,
                       unsigned *ret_axis);

/* The BatchNormalization takes its statistics from the batch. */
bool wk_batch_norm_trains(const struct wk_node *node);

/* Which axes a MeanVarianceNormalization averages over. */
CM_MUST_CHECK enum cm_err wk_mean_variance_axes(const struct wk_node *node, unsigned rank,
                                                struct cm_error *err, bool ret_axes[CM_MAX_RANK]);

#endif
