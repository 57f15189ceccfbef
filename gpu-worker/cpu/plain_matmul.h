/* Products of matrices of types without vector kernels, and determinants. Plain C, compiled once;
 * pure functions, any thread. */
#ifndef GPU_WORKER_CPU_PLAIN_MATMUL_H
#define GPU_WORKER_CPU_PLAIN_MATMUL_H

#include "gpu-worker/cpu/plain_types.h"

/* c[i*n + j] = sum over kk, in this order from 0, of a[i*a_rs + kk*a_cs] * b[kk*b_rs + j*b_cs].
 * Integers wrap. Items: rows [r0, r1) of m. */
struct k_matmul {
    size_t m, n, k;
    const void *a, *b;
    size_t a_rs, a_cs, b_rs, b_cs;
    void *c;
};
typedef void k_matmul_fn(const struct k_matmul *g, size_t r0, size_t r1);

/* Every integer type and FP64; NULL for others. */
k_matmul_fn *k_matmul_for(enum cm_dtype dtype);

/* y = alpha * y, then + beta * c (unless c is NULL), in double for FP64. Factors of 1 change
 * nothing; integers with others are computed in double and converted as k_cast does. y is
 * [m][n], c has strides. Items: rows. */
struct k_scale_add {
    size_t n;
    double alpha, beta;
    const void *c;
    size_t c_rs, c_cs;
    void *y;
};
typedef void k_scale_add_fn(const struct k_scale_add *s, size_t r0, size_t r1);
k_scale_add_fn *k_scale_add_for(enum cm_dtype dtype);

/* Determinants of n x n matrices, FP32 or FP64, by elimination with partial pivoting in double.
 * work: n * n doubles per thread. Items: matrices. */
void k_det(enum cm_dtype dtype, size_t n, const void *x, void *y, double *work, size_t i0,
           size_t i1);

#endif
