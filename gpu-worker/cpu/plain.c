/* Integer, double and boolean element-wise functions, comparisons, where, pow. Plain C compiled
 * once for any x86-64, so there is one result. Pure functions, any thread. */
#include "gpu-worker/cpu/plain.h"

#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/half.h"
#include "gpu-worker/cpu/integers.h"

#include <math.h>
#include <string.h>

#define LOOP2(name, in_type, out_type, expression)                                           \
    static void name(const void *a_, size_t step_a, const void *b_, size_t step_b, void *y_, \
                     size_t n)                                                               \
    {                                                                                        \
        const in_type *a = a_, *b = b_;                                                      \
        out_type *out = y_;                                                                  \
        for (size_t i = 0; i < n; i++) {                                                     \
            in_type p = a[i * step_a], q = b[i * step_b];                                    \
            (void)q;                                                                         \
            out[i] = (out_type)(expression);                                                 \
        }                                                                                    \
    }

/* Sums, differences and products wrap: they are taken in an unsigned type of at least int's size.
 * Division by 0 gives 0 and by -1 negates with wrapping, because both would trap. */
#define INTEGER_LOOPS(id, type, wide)              \
    LOOP2(add_##id, type, type, (wide)p + (wide)q) \
    LOOP2(sub_##id, type, type, (wide)p - (wide)q) \
    LOOP2(mul_##id, type, type, (wide)p *(wide)q)  \
    LOOP2(min_##id, type, type, q < p ? q : p)     \
    LOOP2(max_##id, type, type, q > p ? q : p)
INTEGER_TYPES(INTEGER_LOOPS)
#define UNSIGNED_DIV(id, type, wide) LOOP2(div_##id, type, type, q == 0 ? 0 : p / q)
UNSIGNED_TYPES(UNSIGNED_DIV)
#define SIGNED_DIV(id, type, wide) \
    LOOP2(div_##id, type, type, q == 0 ? 0 : q == -1 ? 0 - (wide)p : (wide)(p / q))
SIGNED_TYPES(SIGNED_DIV)

#define UNSIGNED_LOOPS(id, type, wide)                                   \
    LOOP2(mod_##id, type, type, q == 0 ? 0 : p % q)                      \
    LOOP2(fmod_##id, type, type, q == 0 ? 0 : p % q)                     \
    LOOP2(prelu_##id, type, type, p)                                     \
    LOOP2(shl_##id, type, type, q < 8 * sizeof(type) ? (wide)p << q : 0) \
    LOOP2(shr_##id, type, type, q < 8 * sizeof(type) ? p >> q : 0)
UNSIGNED_TYPES(UNSIGNED_LOOPS)
/* The remainder by -1 is 0, and would trap for the most negative number. */
#define SIGNED_LOOPS(id, type, wide)                                                \
    static type rest_##id(type p, type q)                                           \
    {                                                                               \
        return (type)(q == 0 || q == -1 ? 0 : p % q);                               \
    }                                                                               \
    LOOP2(fmod_##id, type, type, rest_##id(p, q))                                   \
    LOOP2(mod_##id, type, type,                                                     \
          rest_##id(p, q) + ((rest_##id(p, q) ^ q) < 0 && rest_##id(p, q) ? q : 0)) \
    LOOP2(prelu_##id, type, type, p < 0 ? (wide)p * (wide)q : (wide)p)
SIGNED_TYPES(SIGNED_LOOPS)
#define BIT_LOOPS(id, type, wide)     \
    LOOP2(and_##id, type, type, p &q) \
    LOOP2(or_##id, type, type, p | q) \
    LOOP2(xor_##id, type, type, p ^ q)
INTEGER_TYPES(BIT_LOOPS)

LOOP2(add_FP64, double, double, p + q)
LOOP2(sub_FP64, double, double, p - q)
LOOP2(mul_FP64, double, double, p *q)
LOOP2(div_FP64, double, double, p / q)
LOOP2(min_FP64, double, double, q < p || q != q ? q : p)
LOOP2(max_FP64, double, double, q > p || q != q ? q : p)
LOOP2(fmod_FP64, double, double, fmod(p, q)) /* exact by its definition */
LOOP2(prelu_FP64, double, double, p < 0 ? p * q : p)

k_arith_fn *k_arith_for(enum k_arith op, enum cm_dtype dtype)
{
    switch (dtype) {
#define COMMON(id)                                                                  \
    [K_ADD] = add_##id, [K_SUB] = sub_##id, [K_MUL] = mul_##id, [K_DIV] = div_##id, \
    [K_MIN] = min_##id, [K_MAX] = max_##id, [K_FMOD] = fmod_##id, [K_PRELU] = prelu_##id
#define BITS(id) [K_MOD] = mod_##id, [K_AND] = and_##id, [K_OR] = or_##id, [K_XOR] = xor_##id
#define CASE(id, ...)                                                    \
    case CM_##id: {                                                      \
        static k_arith_fn *const fns[K_SHIFT_RIGHT + 1] = {__VA_ARGS__}; \
        return (unsigned)op <= K_SHIFT_RIGHT ? fns[op] : NULL;           \
    }
#define UNSIGNED_CASE(id, type, wide) \
    CASE(id, COMMON(id), BITS(id), [K_SHIFT_LEFT] = shl_##id, [K_SHIFT_RIGHT] = shr_##id)
#define SIGNED_CASE(id, type, wide) CASE(id, COMMON(id), BITS(id))
        UNSIGNED_TYPES(UNSIGNED_CASE)
        SIGNED_TYPES(SIGNED_CASE)
        CASE(FP64, COMMON(FP64))
#undef COMMON
#undef BITS
#undef CASE
#undef UNSIGNED_CASE
#undef SIGNED_CASE
    default:
        return NULL;
    }
}

#define COMPARE_LOOPS(id, type, wide)     \
    LOOP2(eq_##id, type, uint8_t, p == q) \
    LOOP2(lt_##id, type, uint8_t, p < q)  \
    LOOP2(le_##id, type, uint8_t, p <= q) \
    LOOP2(gt_##id, type, uint8_t, p > q)  \
    LOOP2(ge_##id, type, uint8_t, p >= q)
INTEGER_TYPES(COMPARE_LOOPS)
COMPARE_LOOPS(FP32, float, float)
COMPARE_LOOPS(FP64, double, double)
#define COMPARE_HALVES(id, load)                          \
    LOOP2(eq_##id, uint16_t, uint8_t, load(p) == load(q)) \
    LOOP2(lt_##id, uint16_t, uint8_t, load(p) < load(q))  \
    LOOP2(le_##id, uint16_t, uint8_t, load(p) <= load(q)) \
    LOOP2(gt_##id, uint16_t, uint8_t, load(p) > load(q))  \
    LOOP2(ge_##id, uint16_t, uint8_t, load(p) >= load(q))
COMPARE_HALVES(FP16, half_to_float)
COMPARE_HALVES(BF16, bfloat_to_float)
LOOP2(eq_BOOL, uint8_t, uint8_t, (p != 0) == (q != 0))

k_arith_fn *k_compare_for(enum k_compare op, enum cm_dtype dtype)
{
    switch (dtype) {
#define CASE(id, type, wide)                                                            \
    case CM_##id: {                                                                     \
        static k_arith_fn *const fns[] = {eq_##id, lt_##id, le_##id, gt_##id, ge_##id}; \
        return (unsigned)op < sizeof(fns) / sizeof(*fns) ? fns[op] : NULL;              \
    }
        INTEGER_TYPES(CASE)
        CASE(FP16, uint16_t, float)
        CASE(BF16, uint16_t, float)
        CASE(FP32, float, float)
        CASE(FP64, double, double)
#undef CASE
    case CM_BOOL:
        return op == K_EQUAL ? eq_BOOL : NULL;
    default:
        return NULL;
    }
}

void k_f32_fmod(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmodf(a[i * step_a], b[i * step_b]);
}

void k_f32_prelu(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float p = a[i * step_a], q = b[i * step_b];
        y[i] = p < 0 ? p * q : p;
    }
}

#define BOOL2(name, expression)                                                                 \
    void name(const void *a_, size_t step_a, const void *b_, size_t step_b, void *y_, size_t n) \
    {                                                                                           \
        const uint8_t *a = a_, *b = b_;                                                         \
        uint8_t *y = y_;                                                                        \
        for (size_t i = 0; i < n; i++) {                                                        \
            bool p = a[i * step_a] != 0, q = b[i * step_b] != 0;                                \
            y[i] = (uint8_t)(expression);                                                       \
        }                                                                                       \
    }
BOOL2(k_bool_and, p &&q)
BOOL2(k_bool_or, p || q)
BOOL2(k_bool_xor, p != q)

void k_bool_not(const uint8_t *x, uint8_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] == 0;
}

#define WHERE_AS(type)                                                      \
    do {                                                                    \
        const type *p = a, *q = b;                                          \
        type *out = y;                                                      \
        for (size_t i = 0; i < n; i++)                                      \
            out[i] = condition[i * step_c] ? p[i * step_a] : q[i * step_b]; \
    } while (0)

void k_where(size_t element, const uint8_t *condition, size_t step_c, const void *a, size_t step_a,
             const void *b, size_t step_b, void *y, size_t n)
{
    switch (element) {
    case 1:
        WHERE_AS(uint8_t);
        break;
    case 2:
        WHERE_AS(uint16_t);
        break;
    case 4:
        WHERE_AS(uint32_t);
        break;
    case 8:
        WHERE_AS(uint64_t);
        break;
    default:
        break;
    }
}

/* ---- pow ----
 *
 * A float needs fewer bits than f64_pow gives, and a third of its time. */

static double double_from_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof(d));
    return d;
}

/* log2 of a positive finite double: x = 2^e m, m in [sqrt(1/2), sqrt(2)); log m by the series in
 * s = (m - 1) / (m + 1), |s| < 0.1716: terms to s^21 leave less than 2^-58. */
static double log2_own(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint64_t i = bits - 0x3fe6a09e667f3bcdu;
    int64_t e = (int64_t)i >> 52;
    double m = double_from_bits(bits - ((uint64_t)e << 52));
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double t = 1.0 / 21.0;
    for (int n = 19; n >= 1; n -= 2)
        t = t * z + 1.0 / n;
    return (double)e + s * t * 2.0 * 1.4426950408889634;
}

/* 2^x for |x| < 1000: n to nearest, Taylor series of e^(r log 2), |r log 2| < 0.35, to r^14. */
static double exp2_own(double x)
{
    double n = floor(x + 0.5);
    double r = (x - n) * 0.6931471805599453, t = 1.0;
    for (int k = 14; k >= 1; k--)
        t = 1.0 + t * r / k;
    return t * double_from_bits((uint64_t)((int64_t)n + 1023) << 52);
}

static float pow_magnitude(double x, double y)
{
    double p = y * log2_own(x);
    if (p > 200.0)
        return INFINITY;
    return p < -200.0 ? 0.0f : (float)exp2_own(p);
}

/* What is not a power of a positive, finite number is rare and left to f64_pow. */
static float pow_own(float x, float y)
{
    bool plain = x > 0.0f && x < INFINITY && fabsf(y) < INFINITY;
    return plain ? pow_magnitude(x, y) : (float)f64_pow(x, y);
}

static float pow_one(float x, float y)
{
    if (y == 2.0f)
        return x * x;
    if (y == 1.0f)
        return x;
    if (y == 3.0f)
        return (x * x) * x;
    if (y == 0.5f && x >= 0.0f && !isinf(x))
        return sqrtf(x) + 0.0f; /* pow(-0, 0.5) is +0 */
    if (y == -1.0f)
        return 1.0f / x;
    return pow_own(x, y);
}

void k_f32_pow(const float *a, size_t step_a, const float *b, size_t step_b, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = pow_one(a[i * step_a], b[i * step_b]);
}
