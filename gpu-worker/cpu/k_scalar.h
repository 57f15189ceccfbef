/* k.h in plain C: v is an array of 16 floats. Runs on any x86-64 and is the oracle for the others.
 * Only k.h includes this. */
#ifndef GPU_WORKER_CPU_K_SCALAR_H
#define GPU_WORKER_CPU_K_SCALAR_H

#include <math.h>

typedef struct {
    float f[16];
} v;
typedef struct {
    uint32_t i[16];
} vi;
typedef struct {
    uint32_t m[16]; /* all bits set, or none */
} vm;

#define K_LANE(expression)            \
    v r;                              \
    for (unsigned l = 0; l < VL; l++) \
        r.f[l] = (expression);        \
    return r;
#define K_LANE_INT(expression)        \
    vi r;                             \
    for (unsigned l = 0; l < VL; l++) \
        r.i[l] = (expression);        \
    return r;
#define K_LANE_MASK(expression)           \
    vm r;                                 \
    for (unsigned l = 0; l < VL; l++)     \
        r.m[l] = (expression) ? ~0u : 0u; \
    return r;

K_INLINE uint32_t s_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}
K_INLINE float s_float(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof(x));
    return x;
}

/* fmaf without the instruction, exactly: the product of two floats is exact in double; the sum is
 * rounded to odd (towards the error where the last bit is even), and a sum rounded to odd with two
 * spare bits rounds to float as the exact one would. libm's fmaf gives the same bits, slower. */
K_INLINE float s_fma(float a, float b, float c)
{
    double p = (double)a * (double)b;
    double d = (double)c;
    double s = p + d;
    double t = s - p;
    double e = (p - (s - t)) + (d - t); /* s + e == p + d exactly; NaN if anything is not finite */
    int64_t bits;
    memcpy(&bits, &s, sizeof(bits));
    int64_t inexact = (e < 0.0) | (e > 0.0);
    int64_t away = ((e > 0.0) == (s > 0.0)) ? 1 : -1;
    bits += away * (inexact & ~bits & 1);
    memcpy(&s, &bits, sizeof(s));
    return (float)s;
}

K_INLINE v v_load(const float *p)
{
    v x;
    memcpy(&x, p, sizeof(x));
    return x;
}
K_INLINE void v_store(float *p, v x)
{
    memcpy(p, &x, sizeof(x));
}
/* n < 16 elements; the others load as +0 and are not touched in memory. */
K_INLINE v v_loadn(const float *p, unsigned n){K_LANE(l < n ? p[l] : 0.0f)} K_INLINE
    void v_storen(float *p, v x, unsigned n)
{
    for (unsigned l = 0; l < n; l++)
        p[l] = x.f[l];
}
/* Every second of 32 lanes, a's before b's: from the first, and from the second. */
K_INLINE v v_evens(v a, v b){K_LANE(l < 8 ? a.f[2 * l] : b.f[2 * l - 16])} K_INLINE v
    v_odds(v a, v b){K_LANE(l < 8 ? a.f[2 * l + 1] : b.f[2 * l - 15])}
/* Lanes whose bit in m is set, the others +0; memory of the others is not touched. v_loadm reads
 * p[lane], v_gather p[index[lane]]. */
K_INLINE v v_loadm(const float *p, unsigned m){K_LANE(m >> l & 1 ? p[l] : 0.0f)} K_INLINE v
    v_gather(const float *p, const int32_t *index,
             unsigned m){K_LANE(m >> l & 1 ? p[index[l]] : 0.0f)} K_INLINE v
    v_set(float x){K_LANE(x)} K_INLINE v v_bits(uint32_t x)
{
    return v_set(s_float(x));
}
K_INLINE v v_zero(void)
{
    return v_set(0.0f);
}
K_INLINE v v_add(v a, v b){K_LANE(a.f[l] + b.f[l])} K_INLINE v
    v_sub(v a, v b){K_LANE(a.f[l] - b.f[l])} K_INLINE v
    v_mul(v a, v b){K_LANE(a.f[l] * b.f[l])} K_INLINE v v_div(v a, v b){K_LANE(a.f[l] / b.f[l])}
/* a * b + c, and c - a * b, rounded once. */
K_INLINE v v_fma(v a, v b, v c){K_LANE(s_fma(a.f[l], b.f[l], c.f[l]))} K_INLINE v
    v_fnma(v a, v b, v c){K_LANE(s_fma(-a.f[l], b.f[l], c.f[l]))} K_INLINE v
    v_sqrt(v x){K_LANE(sqrtf(x.f[l]))} K_INLINE v v_floor(v x){K_LANE(floorf(x.f[l]))} K_INLINE v
    v_ceil(v x){K_LANE(ceilf(x.f[l]))} /* To the nearest integer, ties to even. */
K_INLINE v v_round(v x){K_LANE(rintf(x.f[l]))}
/* a > b ? a : b, and a < b ? a : b: b on ties and where either is NaN. */
K_INLINE v v_maxraw(v a, v b){K_LANE(a.f[l] > b.f[l] ? a.f[l] : b.f[l])} K_INLINE v
    v_minraw(v a, v b){K_LANE(a.f[l] < b.f[l] ? a.f[l] : b.f[l])}
/* Comparisons are false for NaN. */
K_INLINE vm v_lt(v a, v b){K_LANE_MASK(a.f[l] < b.f[l])} K_INLINE vm
    v_isnan(v x){K_LANE_MASK(x.f[l] != x.f[l])} /* m ? a : b */
K_INLINE v v_sel(vm m, v a, v b){
    K_LANE(s_float((s_bits(a.f[l]) & m.m[l]) | (s_bits(b.f[l]) & ~m.m[l])))} K_INLINE v
    v_andbits(v a, v b){K_LANE(s_float(s_bits(a.f[l]) & s_bits(b.f[l])))} K_INLINE v
    v_xorbits(v a, v b){K_LANE(s_float(s_bits(a.f[l]) ^ s_bits(b.f[l])))}

/* Bit l is lane l's. */
K_INLINE unsigned vm_bits(vm m)
{
    unsigned bits = 0;
    for (unsigned l = 0; l < VL; l++)
        bits |= (m.m[l] & 1u) << l;
    return bits;
}

/* Integers: the bits of a v, wrapping arithmetic, conversion of small values. */
K_INLINE vi v_asint(v x){K_LANE_INT(s_bits(x.f[l]))} K_INLINE v
    vi_asfloat(vi x){K_LANE(s_float(x.i[l]))} K_INLINE vi
    vi_set(uint32_t x){K_LANE_INT(x)} K_INLINE vi
    vi_add(vi a, vi b){K_LANE_INT(a.i[l] + b.i[l])} K_INLINE vi
    vi_sub(vi a, vi b){K_LANE_INT(a.i[l] - b.i[l])} K_INLINE vi
    vi_sll(vi x, int n){K_LANE_INT(x.i[l] << n)} K_INLINE vi
    vi_sra(vi x, int n){K_LANE_INT((uint32_t)((int32_t)x.i[l] >> n))} K_INLINE v vi_tofloat(vi x)
{
    K_LANE((float)(int32_t)x.i[l])
}

#endif
