/* Kernels that need no instruction-set versions: integers, comparisons, casts, data movement. Plain
 * C compiled once; pure functions, any thread, same rules as kernels.h.
 *
 * Element-wise functions here take n elements with steps 0 or 1 per operand, as k_binary_fn. */
#ifndef GPU_WORKER_CPU_PLAIN_H
#define GPU_WORKER_CPU_PLAIN_H

#include "common/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Arithmetic on integers and FP64. (FP32 has kernels.h; FP16 and BF16 go through floats.)
 * Integers wrap. Integer division truncates; x / 0 is 0; the most negative number / -1 is itself.
 * K_MOD is the remainder with the divisor's sign, K_FMOD with the dividend's (C's % and fmod); of
 * an integer division by 0 both are 0. K_MIN and K_MAX give NaN if an operand is NaN. K_PRELU is
 * a < 0 ? a * b : a. Shifts are for unsigned integers; by the type's width or more they give 0.
 * Bit operations are for integers. */
enum k_arith {
    K_ADD,
    K_SUB,
    K_MUL,
    K_DIV,
    K_MIN,
    K_MAX,
    K_MOD,
    K_FMOD,
    K_PRELU,
    K_AND,
    K_OR,
    K_XOR,
    K_SHIFT_LEFT,
    K_SHIFT_RIGHT
};
typedef void k_arith_fn(const void *a, size_t step_a, const void *b, size_t step_b, void *y,
                        size_t n);
/* NULL where the pair is not supported. */
k_arith_fn *k_arith_for(enum k_arith op, enum cm_dtype dtype);

/* Comparisons give 1 or 0 bytes (CM_BOOL). With NaN all are 0. BOOL only has K_EQUAL. */
enum k_compare { K_EQUAL, K_LESS, K_LESS_EQUAL, K_GREATER, K_GREATER_EQUAL };
k_arith_fn *k_compare_for(enum k_compare op, enum cm_dtype dtype);

/* Booleans: any non-zero byte is true; results are 0 or 1. */
void k_bool_and(const void *a, size_t step_a, const void *b, size_t step_b, void *y, size_t n);
void k_bool_or(const void *a, size_t step_a, const void *b, size_t step_b, void *y, size_t n);
void k_bool_xor(const void *a, size_t step_a, const void *b, size_t step_b, void *y, size_t n);
void k_bool_not(const uint8_t *x, uint8_t *y, size_t n);

/* y[i] = condition[i] ? a[i] : b[i] for elements of 1, 2, 4 or 8 bytes. */
void k_where(size_t element, const uint8_t *condition, size_t step_c, const void *a, size_t step_a,
             const void *b, size_t step_b, void *y, size_t n);

/* K_FMOD and K_PRELU of floats. */
void k_f32_fmod(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n);
void k_f32_prelu(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n);

/* a to the power b in float, from double precision: the correctly rounded value but for about one
 * pair in 10^7; exponents 2, 3, 0.5 and -1 by x*x, (x*x)*x, sqrt(x), 1/x. Special cases as C's pow.
 */
void k_f32_pow(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n);

/* y[i] = (to)x[i], any pair of CM_DTYPE_MAP. Float to integer truncates, saturates, NaN gives 0;
 * integer to integer wraps; to BOOL: x != 0 (NaN is true); to float rounds to nearest even (to FP16
 * and BF16 in one rounding; overflow to infinity). In place only where from == to. */
void k_cast(enum cm_dtype from, enum cm_dtype to, const void *x, void *y, size_t n);

/* Strided copy: y[sum idx*out_stride] = x[sum idx*in_stride] over dims, strides in elements of
 * `element` bytes (1..16, any). Covers transpose, slice, concat, expand (stride 0). Items: [i0, i1)
 * of the product of all dims but the last; none where the last is 0. rank 0 copies one element (one
 * item). */
struct k_copy {
    size_t element;
    unsigned rank;
    size_t dims[CM_MAX_RANK];
    ptrdiff_t in_stride[CM_MAX_RANK], out_stride[CM_MAX_RANK];
    const void *x;
    void *y;
};
size_t k_copy_items(const struct k_copy *c);
void k_copy_run(const struct k_copy *c, size_t i0, size_t i1);

/* Merges and orders dimensions so that k_copy_run moves long runs; the result is the same copy.
 * Call once when planning. */
void k_copy_simplify(struct k_copy *c);

#endif
