/* The element types of plain kernels, as lists to instantiate them from.
 *
 * X(id, type, sum): the type that sums and products are taken in: modulo 2^64 for integers, whose
 * low bits are the element type's, and double for floating point. FP16 and BF16 are not here: they
 * are converted first (backend_mixed.c). */
#ifndef GPU_WORKER_CPU_PLAIN_TYPES_H
#define GPU_WORKER_CPU_PLAIN_TYPES_H

#include "common/tensor.h"

#define K_TYPES_UNSIGNED(X)       \
    X(UINT8, uint8_t, uint64_t)   \
    X(UINT16, uint16_t, uint64_t) \
    X(UINT32, uint32_t, uint64_t) \
    X(UINT64, uint64_t, uint64_t)
#define K_TYPES_SIGNED(X)       \
    X(INT8, int8_t, uint64_t)   \
    X(INT16, int16_t, uint64_t) \
    X(INT32, int32_t, uint64_t) \
    X(INT64, int64_t, uint64_t)
#define K_TYPES_REAL(X)    \
    X(FP32, float, double) \
    X(FP64, double, double)
#define K_TYPES_NUMBER(X) K_TYPES_UNSIGNED(X) K_TYPES_SIGNED(X) K_TYPES_REAL(X)

/* x[outer][n][inner]; an item is a pair (outer, inner), inner fastest. */
struct k_along {
    size_t outer, n, inner;
};

/* Offset of an item's first element. */
static inline size_t k_along_at(const struct k_along *a, size_t item)
{
    return item / a->inner * a->n * a->inner + item % a->inner;
}

#endif
