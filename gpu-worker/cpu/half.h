/* FP16 and BF16 as bits: exact reading to float, storing with one rounding to nearest even.
 *
 * Integer arithmetic and IEEE operations only, so every machine gives the same bits. Denormals are
 * kept, overflow gives infinity, NaN stays NaN (quiet, its sign kept). Pure, any thread. */
#ifndef GPU_WORKER_CPU_HALF_H
#define GPU_WORKER_CPU_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 0) /* zero or denormal: mantissa * 2^-24, exact */
        bits = float_bits((float)mantissa * 0x1p-24f);
    else if (exponent == 0x1f)
        bits = 0x7f800000u | mantissa << 13;
    else
        bits = (exponent + 112) << 23 | mantissa << 13;
    return float_of_bits(bits | sign);
}

static inline uint16_t float_to_half(float f)
{
    uint32_t bits = float_bits(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x47800000u) /* 2^16 and above */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) /* below 2^-14; a float near 1/2 has FP16's denormal spacing, 2^-24 */
        return (uint16_t)(sign | (float_bits(float_of_bits(a) + 0.5f) - 0x3f000000u));
    a += 0xfffu + (a >> 13 & 1); /* carries into the exponent, up to infinity, where it should */
    return (uint16_t)(sign | (a - 0x38000000u) >> 13);
}

static inline float bfloat_to_float(uint16_t b)
{
    return float_of_bits((uint32_t)b << 16);
}

static inline uint16_t float_to_bfloat(float f)
{
    uint32_t bits = float_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* A float for a second rounding: cut towards zero, and its last bit set where anything was lost, so
 * that ties are told from what lies beside them and only the second rounding shows. */
static inline float double_to_odd_float(double x)
{
    float f = (float)x;
    if ((double)f == x || x != x)
        return f;
    uint32_t bits = float_bits(f);
    if (fabs((double)f) > fabs(x))
        bits--;
    return float_of_bits(bits | 1u);
}

static inline uint16_t double_to_half(double x)
{
    return float_to_half(double_to_odd_float(x));
}

static inline uint16_t double_to_bfloat(double x)
{
    return float_to_bfloat(double_to_odd_float(x));
}

#endif
