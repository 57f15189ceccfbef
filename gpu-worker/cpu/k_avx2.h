/* k.h for AVX2 with FMA: v is two ymm. Only k.h includes this. */
#ifndef GPU_WORKER_CPU_K_AVX2_H
#define GPU_WORKER_CPU_K_AVX2_H

#include <immintrin.h>

typedef struct {
    __m256 lo, hi;
} v;
typedef struct {
    __m256i lo, hi;
} vi;
typedef v vm; /* all bits of a lane set, or none */

/* Eight lanes on, eight off: a load at 8 - n gives the mask of the first n. */
static const int32_t k_avx2_mask[24] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                        -1, -1, -1, -1, 0,  0,  0,  0,  0,  0,  0,  0};

K_INLINE __m256i avx2_mask(unsigned n)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(k_avx2_mask + 16 - (n < 8 ? n : 8)));
}
K_INLINE v v_load(const float *p)
{
    return (v){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
K_INLINE void v_store(float *p, v x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
/* n < 16 elements; the others load as +0 and are not touched in memory. */
K_INLINE v v_loadn(const float *p, unsigned n)
{
    v x;
    x.lo = _mm256_maskload_ps(p, avx2_mask(n));
    x.hi = n > 8 ? _mm256_maskload_ps(p + 8, avx2_mask(n - 8)) : _mm256_setzero_ps();
    return x;
}
K_INLINE void v_storen(float *p, v x, unsigned n)
{
    _mm256_maskstore_ps(p, avx2_mask(n), x.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, avx2_mask(n - 8), x.hi);
}
/* Every second of 32 lanes, a's before b's: from the first, and from the second. */
K_INLINE __m256 avx2_ordered(__m256 x) /* 0 1 4 5 2 3 6 7, which shuffles of pairs leave behind */
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
K_INLINE v v_evens(v a, v b)
{
    return (v){avx2_ordered(_mm256_shuffle_ps(a.lo, a.hi, 0x88)),
               avx2_ordered(_mm256_shuffle_ps(b.lo, b.hi, 0x88))};
}
K_INLINE v v_odds(v a, v b)
{
    return (v){avx2_ordered(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)),
               avx2_ordered(_mm256_shuffle_ps(b.lo, b.hi, 0xdd))};
}
/* Lanes whose bit in m is set, the others +0; memory of the others is not touched. v_loadm reads
 * p[lane], v_gather p[index[lane]]. */
K_INLINE __m256i avx2_bits(unsigned m)
{
    __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)m), bit), bit);
}
K_INLINE v v_loadm(const float *p, unsigned m)
{
    return (v){_mm256_maskload_ps(p, avx2_bits(m)), _mm256_maskload_ps(p + 8, avx2_bits(m >> 8))};
}
K_INLINE v v_gather(const float *p, const int32_t *index, unsigned m)
{
    const __m256i *i = (const __m256i *)(const void *)index;
    __m256 zero = _mm256_setzero_ps();
    return (v){_mm256_mask_i32gather_ps(zero, p, _mm256_loadu_si256(i),
                                        _mm256_castsi256_ps(avx2_bits(m)), 4),
               _mm256_mask_i32gather_ps(zero, p, _mm256_loadu_si256(i + 1),
                                        _mm256_castsi256_ps(avx2_bits(m >> 8)), 4)};
}
K_INLINE v v_set(float x)
{
    return (v){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
K_INLINE v v_bits(uint32_t x)
{
    __m256 y = _mm256_castsi256_ps(_mm256_set1_epi32((int)x));
    return (v){y, y};
}
K_INLINE v v_zero(void)
{
    return (v){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
#define K_AVX2_BINARY(name, op)                     \
    K_INLINE v name(v a, v b)                       \
    {                                               \
        return (v){op(a.lo, b.lo), op(a.hi, b.hi)}; \
    }
K_AVX2_BINARY(v_add, _mm256_add_ps)
K_AVX2_BINARY(v_sub, _mm256_sub_ps)
K_AVX2_BINARY(v_mul, _mm256_mul_ps)
K_AVX2_BINARY(v_div, _mm256_div_ps)
/* a > b ? a : b, and a < b ? a : b: b on ties and where either is NaN. */
K_AVX2_BINARY(v_maxraw, _mm256_max_ps)
K_AVX2_BINARY(v_minraw, _mm256_min_ps)
K_AVX2_BINARY(v_andbits, _mm256_and_ps)
K_AVX2_BINARY(v_xorbits, _mm256_xor_ps)
/* a * b + c, and c - a * b, rounded once. */
K_INLINE v v_fma(v a, v b, v c)
{
    return (v){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
K_INLINE v v_fnma(v a, v b, v c)
{
    return (v){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
K_INLINE v v_sqrt(v x)
{
    return (v){_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)};
}
K_INLINE v v_floor(v x)
{
    return (v){_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)};
}
K_INLINE v v_ceil(v x)
{
    return (v){_mm256_ceil_ps(x.lo), _mm256_ceil_ps(x.hi)};
}
/* To the nearest integer, ties to even. */
K_INLINE v v_round(v x)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (v){_mm256_round_ps(x.lo, NEAREST), _mm256_round_ps(x.hi, NEAREST)};
}
/* Comparisons are false for NaN. */
K_INLINE vm v_lt(v a, v b)
{
    return (v){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
K_INLINE vm v_isnan(v x)
{
    return (v){_mm256_cmp_ps(x.lo, x.lo, _CMP_UNORD_Q), _mm256_cmp_ps(x.hi, x.hi, _CMP_UNORD_Q)};
}
/* m ? a : b */
K_INLINE v v_sel(vm m, v a, v b)
{
    return (v){_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

/* Bit l is lane l's. */
K_INLINE unsigned vm_bits(vm m)
{
    return (unsigned)_mm256_movemask_ps(m.lo) | (unsigned)_mm256_movemask_ps(m.hi) << 8;
}

/* Integers: the bits of a v, wrapping arithmetic, conversion of small values. */
K_INLINE vi v_asint(v x)
{
    return (vi){_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
K_INLINE v vi_asfloat(vi x)
{
    return (v){_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
K_INLINE vi vi_set(uint32_t x)
{
    return (vi){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
K_INLINE vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
K_INLINE vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
K_INLINE vi vi_sll(vi x, int n)
{
    return (vi){_mm256_slli_epi32(x.lo, n), _mm256_slli_epi32(x.hi, n)};
}
K_INLINE vi vi_sra(vi x, int n)
{
    return (vi){_mm256_srai_epi32(x.lo, n), _mm256_srai_epi32(x.hi, n)};
}
K_INLINE v vi_tofloat(vi x)
{
    return (v){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

#endif
