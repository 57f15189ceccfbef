/* Quantised numbers: a real number is (q - zero) * scale. Plain C compiled once; pure functions,
 * any thread, same rules as kernels.h. */
#ifndef GPU_WORKER_CPU_QUANT_H
#define GPU_WORKER_CPU_QUANT_H

#include "common/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* The longest dot product of centred 8-bit integers whose float sum is exact: |a*b| <= 255*255, and
 * 258 of these stay below 2^24. Longer ones are cut and the pieces added as integers. */
#define K_EXACT_TERMS 256

/* y[i] = saturate(round_half_even(x[i] / scale) + zero): division in float, for INT32 in double.
 * NaN counts as 0. from is FP32, FP16, BF16 or INT32; to is INT8, UINT8, INT16 or UINT16. scale and
 * zero advance by step (0 or 1). */
void k_quantize(enum cm_dtype from, const void *x, const float *scale, const int32_t *zero,
                size_t step, enum cm_dtype to, void *y, size_t n);

/* y[i] = (x[i] - zero) * scale: the difference is exact, then one rounding to float, the product in
 * float, and for FP16 and BF16 another rounding. from is one of the above or INT32; to FP32, FP16
 * or BF16. */
void k_dequantize(enum cm_dtype from, const void *x, const float *scale, const int32_t *zero,
                  size_t step, enum cm_dtype to, void *y, size_t n);

/* One element of an 8, 16 or 32-bit integer tensor. */
int32_t k_int_at(enum cm_dtype dtype, const void *x, size_t i);

/* y[i] = x[i] - zero[i * step] as exact floats; dtype is INT8 or UINT8. */
void k_center(enum cm_dtype dtype, const void *x, const int32_t *zero, size_t step, float *y,
              size_t n);

/* sum[i] += x[i], x integers in floats, or = where first; wraps at 32 bits. */
void k_accumulate(const float *x, bool first, int32_t *sum, size_t n);

/* y[i] = saturate(round_half_even((float)sum[i] * factor[i * step]) + zero); to is INT8 or UINT8.
 */
void k_requantize(const int32_t *sum, const float *factor, size_t step, int32_t zero,
                  enum cm_dtype to, void *y, size_t n);

#endif
