/* Reductions, running sums, maxima and softmax of types that have no vector kernels. Plain C,
 * compiled once; pure functions, any thread; work is split over items [i0, i1) as in kernels.h.
 *
 * Every sum is one chain in index order, in plain_types.h's type of sums. Integers wrap. */
#ifndef GPU_WORKER_CPU_PLAIN_REDUCE_H
#define GPU_WORKER_CPU_PLAIN_REDUCE_H

#include "gpu-worker/cpu/plain_types.h"

/* Which axes stay and which are summed over, as dimensions with strides in elements; reduced
 * elements are visited in row-major order. An item is an output element. */
struct k_reduce {
    unsigned n_kept, n_reduced;
    size_t kept[CM_MAX_RANK], reduced[CM_MAX_RANK];
    size_t kept_stride[CM_MAX_RANK], reduced_stride[CM_MAX_RANK];
    size_t n; /* elements that one item reduces */
    double p; /* K_REDUCE_LP only */
};

void k_reduce_init(const struct cm_shape *x, const bool axes[CM_MAX_RANK], struct k_reduce *ret);

/* Offset of an item's first element. */
size_t k_reduce_at(const struct k_reduce *r, size_t item);

/* Visits an item's elements as runs of run.n elements with distance run.stride:
 *   for (struct k_reduce_run run = k_reduce_first(r); run.n; k_reduce_next(r, &run)) */
struct k_reduce_run {
    size_t offset, n, stride, index[CM_MAX_RANK];
};
struct k_reduce_run k_reduce_first(const struct k_reduce *r);
void k_reduce_next(const struct k_reduce *r, struct k_reduce_run *run);

/* Without elements: sums 0, products 1, maximum and minimum the type's least and greatest (-inf,
 * inf), means NaN, or 0 for integers. Integers: a mean truncates; l2 and logarithms are taken in
 * double and converted as k_cast does. lp: the p-th root of the sum of |x|^p, floats only. */
enum k_reduce_op {
    K_REDUCE_SUM,
    K_REDUCE_MEAN,
    K_REDUCE_MAX,
    K_REDUCE_MIN,
    K_REDUCE_PROD,
    K_REDUCE_L1,
    K_REDUCE_L2,
    K_REDUCE_SUM_SQUARE,
    K_REDUCE_LOG_SUM,
    K_REDUCE_LOG_SUM_EXP,
    K_REDUCE_LP
};
typedef void k_reduce_fn(const struct k_reduce *r, enum k_reduce_op op, const void *x, void *y,
                         size_t i0, size_t i1);

/* Any type but FP16 and BF16; BOOL has maximum and minimum only. */
k_reduce_fn *k_reduce_for(enum cm_dtype dtype);

/* Index of the greatest or least element of each item, the first or the last of several. NaN counts
 * as what is looked for. n > 0. */
typedef void k_arg_fn(const struct k_along *a, bool greatest, bool last, const void *x, int64_t *y,
                      size_t i0, size_t i1);
k_arg_fn *k_arg_for(enum cm_dtype dtype);

/* Running sums, rounded when stored. exclusive: an element's own value is left out; reverse: from
 * the end. */
typedef void k_cum_sum_fn(const struct k_along *a, bool exclusive, bool reverse, const void *x,
                          void *y, size_t i0, size_t i1);
k_cum_sum_fn *k_cum_sum_for(enum cm_dtype dtype);

/* 1 at the first greatest element, 0 elsewhere. FP32 and FP64. */
typedef void k_along_fn(const struct k_along *a, const void *x, void *y, size_t i0, size_t i1);
k_along_fn *k_hardmax_for(enum cm_dtype dtype);

/* As f32_softmax and f32_logsoftmax, in double, with chains for sums. */
void k_f64_softmax(const struct k_along *a, const void *x, void *y, size_t i0, size_t i1);
void k_f64_logsoftmax(const struct k_along *a, const void *x, void *y, size_t i0, size_t i1);

#endif
