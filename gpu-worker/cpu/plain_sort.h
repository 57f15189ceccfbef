/* Ranking: the k greatest or least elements, and the different ones. Plain C, compiled once; pure
 * functions, any thread.
 *
 * Order: numbers by value, NaN above all of them and equal to itself, +0 equal to -0. */
#ifndef GPU_WORKER_CPU_PLAIN_SORT_H
#define GPU_WORKER_CPU_PLAIN_SORT_H

#include "gpu-worker/cpu/plain_types.h"

/* The k first of each item in falling (greatest) or rising order, ties by the lowest index:
 * values[outer][k][inner] and indices of that shape; either may be NULL. k <= n. heap: k indices
 * per thread. Any number type but FP16 and BF16. */
struct k_top_k {
    struct k_along along;
    size_t k;
    bool greatest;
    const void *x;
    void *values;
    int64_t *indices;
};
typedef void k_top_k_fn(const struct k_top_k *t, size_t *heap, size_t i0, size_t i1);
k_top_k_fn *k_top_k_for(enum cm_dtype dtype);

/* Slices x[outer][j][inner] for j < n, and which of them are equal. */
struct k_unique {
    struct k_along along;
    bool sorted; /* else in the order in which they first occur */
    const void *x;
};

/* What k_unique_find gives; arrays of along.n entries from the caller. */
struct k_unique_groups {
    size_t count;
    size_t *first, *size; /* of each group: its first slice, how many slices */
    size_t *group;        /* of each slice */
};

/* Groups equal slices, with slices compared element by element in row-major order. work: 2 * n
 * indices. Every type. */
void k_unique_find(const struct k_unique *u, enum cm_dtype dtype, size_t *work,
                   struct k_unique_groups *ret);

/* Writes the groups' first slices as y[outer][count][inner]; element bytes each. */
void k_unique_take(const struct k_unique *u, size_t element, const struct k_unique_groups *groups,
                   void *y);

#endif
