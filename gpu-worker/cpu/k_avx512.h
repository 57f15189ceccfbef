/* k.h for AVX-512 (F, BW, DQ, VL): v is one zmm. Only k.h includes this. */
#ifndef GPU_WORKER_CPU_K_AVX512_H
#define GPU_WORKER_CPU_K_AVX512_H

#include <immintrin.h>

typedef __m512 v;
typedef __m512i vi;
typedef __mmask16 vm;

K_INLINE v v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
K_INLINE void v_store(float *p, v x)
{
    _mm512_storeu_ps(p, x);
}
/* n < 16 elements; the others load as +0 and are not touched in memory. */
K_INLINE v v_loadn(const float *p, unsigned n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
K_INLINE void v_storen(float *p, v x, unsigned n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), x);
}
/* Every second of 32 lanes, a's before b's: from the first, and from the second. */
K_INLINE v v_evens(v a, v b)
{
    __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, i, b);
}
K_INLINE v v_odds(v a, v b)
{
    __m512i i = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, i, b);
}
/* Lanes whose bit in m is set, the others +0; memory of the others is not touched. v_loadm reads
 * p[lane], v_gather p[index[lane]]. */
K_INLINE v v_loadm(const float *p, unsigned m)
{
    return _mm512_maskz_loadu_ps((__mmask16)m, p);
}
K_INLINE v v_gather(const float *p, const int32_t *index, unsigned m)
{
    __m512i i = _mm512_loadu_si512(index);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), (__mmask16)m, i, p, 4);
}
K_INLINE v v_set(float x)
{
    return _mm512_set1_ps(x);
}
K_INLINE v v_bits(uint32_t x)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)x));
}
K_INLINE v v_zero(void)
{
    return _mm512_setzero_ps();
}
K_INLINE v v_add(v a, v b)
{
    return _mm512_add_ps(a, b);
}
K_INLINE v v_sub(v a, v b)
{
    return _mm512_sub_ps(a, b);
}
K_INLINE v v_mul(v a, v b)
{
    return _mm512_mul_ps(a, b);
}
K_INLINE v v_div(v a, v b)
{
    return _mm512_div_ps(a, b);
}
/* a * b + c, and c - a * b, rounded once. */
K_INLINE v v_fma(v a, v b, v c)
{
    return _mm512_fmadd_ps(a, b, c);
}
K_INLINE v v_fnma(v a, v b, v c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
K_INLINE v v_sqrt(v x)
{
    return _mm512_sqrt_ps(x);
}
K_INLINE v v_floor(v x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
K_INLINE v v_ceil(v x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
/* To the nearest integer, ties to even. */
K_INLINE v v_round(v x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a > b ? a : b, and a < b ? a : b: b on ties and where either is NaN. */
K_INLINE v v_maxraw(v a, v b)
{
    return _mm512_max_ps(a, b);
}
K_INLINE v v_minraw(v a, v b)
{
    return _mm512_min_ps(a, b);
}
/* Comparisons are false for NaN. */
K_INLINE vm v_lt(v a, v b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
K_INLINE vm v_isnan(v x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}
/* m ? a : b */
K_INLINE v v_sel(vm m, v a, v b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
K_INLINE v v_andbits(v a, v b)
{
    return _mm512_and_ps(a, b);
}
K_INLINE v v_xorbits(v a, v b)
{
    return _mm512_xor_ps(a, b);
}

/* Bit l is lane l's. */
K_INLINE unsigned vm_bits(vm m)
{
    return m;
}

/* Integers: the bits of a v, wrapping arithmetic, conversion of small values. */
K_INLINE vi v_asint(v x)
{
    return _mm512_castps_si512(x);
}
K_INLINE v vi_asfloat(vi x)
{
    return _mm512_castsi512_ps(x);
}
K_INLINE vi vi_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
K_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
K_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
#define vi_sll(x, n) _mm512_slli_epi32(x, n)
#define vi_sra(x, n) _mm512_srai_epi32(x, n)
K_INLINE v vi_tofloat(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

#endif
