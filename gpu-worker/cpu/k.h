/* The logical vector that every kernel is written against: 16 floats, one zmm, two ymm or an array.
 *
 * Included only by kernel sources, which CMake compiles three times with K_SCALAR, K_AVX2 or
 * K_AVX512 defined and the matching flags. A lane is an output element and every operation below is
 * one IEEE operation per lane, the same in all three: equal bits by construction. All functions are
 * static inline, so no code of one instruction set can leak into another's objects.
 *
 * Deliberately absent: anything that adds across lanes in hardware order, reciprocal estimates,
 * and a max that hides NaN. */
#ifndef GPU_WORKER_CPU_K_H
#define GPU_WORKER_CPU_K_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define K_CAT3(a, b, c) a##b##c
#define K_NAME2(n, isa) K_CAT3(k_, n, isa)
#if defined(K_AVX512)
#define K_NAME(n)  K_NAME2(n, _avx512)
#define K_ISA_TEXT "avx512"
#elif defined(K_AVX2)
#define K_NAME(n)  K_NAME2(n, _avx2)
#define K_ISA_TEXT "avx2"
#elif defined(K_SCALAR)
#define K_NAME(n)  K_NAME2(n, _scalar)
#define K_ISA_TEXT "scalar"
#else
#error "compile with K_SCALAR, K_AVX2 or K_AVX512"
#endif

#define K_INLINE static inline __attribute__((always_inline))
/* For larger pieces: inline on vectors, a function in the scalar version, where inlining sixteen
 * lanes at a time costs gcc half a minute a file. */
#if defined(K_SCALAR)
#define K_LARGE static __attribute__((noinline, unused))
#else
#define K_LARGE K_INLINE
#endif
#define VL          16u
#define K_UNROLL(n) K_PRAGMA(GCC unroll n)
#define K_PRAGMA(x) _Pragma(#x)

#if defined(K_AVX512)
#include "gpu-worker/cpu/k_avx512.h"
#elif defined(K_AVX2)
#include "gpu-worker/cpu/k_avx2.h"
#else
#include "gpu-worker/cpu/k_scalar.h"
#endif

/* From here on: compositions of the above, one text for all. */

/* max and min that let NaN through; on ties the first operand stays. */
K_INLINE v v_max(v a, v b)
{
    return v_sel(v_isnan(b), b, v_maxraw(b, a));
}
K_INLINE v v_min(v a, v b)
{
    return v_sel(v_isnan(b), b, v_minraw(b, a));
}

K_INLINE v v_neg(v x)
{
    return v_xorbits(x, v_bits(0x80000000u));
}
K_INLINE v v_abs(v x)
{
    return v_andbits(x, v_bits(0x7fffffffu));
}

/* Up to 16 elements, the rest zero; n >= 16 loads all. */
K_INLINE v v_loadt(const float *p, size_t n)
{
    return n >= VL ? v_load(p) : v_loadn(p, (unsigned)n);
}
K_INLINE void v_storet(float *p, v x, size_t n)
{
    if (n >= VL)
        v_store(p, x);
    else
        v_storen(p, x, (unsigned)n);
}

#endif
