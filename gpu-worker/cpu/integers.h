/* The integer types of tensors, as lists for the plain kernels' loops.
 *
 * X(id, type, an unsigned type at least as wide as int, in which wrapping is defined) */
#ifndef GPU_WORKER_CPU_INTEGERS_H
#define GPU_WORKER_CPU_INTEGERS_H

#include <stdint.h>

#define UNSIGNED_TYPES(X)         \
    X(UINT8, uint8_t, uint32_t)   \
    X(UINT16, uint16_t, uint32_t) \
    X(UINT32, uint32_t, uint32_t) \
    X(UINT64, uint64_t, uint64_t)
#define SIGNED_TYPES(X)         \
    X(INT8, int8_t, uint32_t)   \
    X(INT16, int16_t, uint32_t) \
    X(INT32, int32_t, uint32_t) \
    X(INT64, int64_t, uint64_t)
#define INTEGER_TYPES(X) UNSIGNED_TYPES(X) SIGNED_TYPES(X)

#endif
