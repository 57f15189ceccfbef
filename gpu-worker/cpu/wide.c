/* Element-wise functions in double precision, and on integers; see wide.h. */
#include "gpu-worker/cpu/wide.h"

#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/integers.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 256

/* ---- floating point -------------------------------------------------------------------------- */

static double clip(double x, double low, double high)
{
    double t = low > x ? low : x;
    return high < t ? high : t;
}

static double shrink(double x, double lambda, double bias)
{
    if (x < -lambda)
        return x + bias;
    if (x > lambda)
        return x - bias;
    return x == x ? 0.0 : x;
}

/* log(1 + e^x) without overflow or cancellation. */
static double softplus(double x)
{
    return x > 0 ? x + f64_log1p(f64_exp(-x)) : f64_log1p(f64_exp(x));
}

#define WIDE(name, expression)                                                                    \
    void k_wide_##name(const double *in, double *y, size_t n, const struct k_wide_params *params) \
    {                                                                                             \
        double a = params ? params->a : 0.0, b = params ? params->b : 0.0;                        \
        (void)a, (void)b;                                                                         \
        for (size_t i = 0; i < n; i++) {                                                          \
            double x = in[i];                                                                     \
            y[i] = (expression);                                                                  \
        }                                                                                         \
    }
K_WIDE_FUNCTIONS(WIDE)

void k_wide_run(k_wide_fn *fn, const struct k_wide_params *params, enum cm_dtype from,
                enum cm_dtype to, const void *x, void *y, size_t n)
{
    double values[CHUNK];
    size_t in = cm_dtype_size(from), out = cm_dtype_size(to);
    if (from == CM_FP64 && to == CM_FP64) {
        fn(x, y, n, params);
        return;
    }
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        k_cast(from, CM_FP64, (const char *)x + i * in, values, count);
        fn(values, values, count, params);
        k_cast(CM_FP64, to, values, (char *)y + i * out, count);
    }
}

/* ---- integers -------------------------------------------------------------------------------- */

#define LOOP1(name, type, expression)                     \
    static void name(const void *in_, void *y_, size_t n) \
    {                                                     \
        const type *in = in_;                             \
        type *y = y_;                                     \
        for (size_t i = 0; i < n; i++) {                  \
            type x = in[i];                               \
            y[i] = (type)(expression);                    \
        }                                                 \
    }

#define UNSIGNED_LOOPS(id, type, wide) \
    LOOP1(abs_##id, type, x)           \
    LOOP1(sign_##id, type, x != 0)     \
    LOOP1(relu_##id, type, x)
UNSIGNED_TYPES(UNSIGNED_LOOPS)
#define SIGNED_LOOPS(id, type, wide)                  \
    LOOP1(abs_##id, type, x < 0 ? -(wide)x : (wide)x) \
    LOOP1(sign_##id, type, (x > 0) - (x < 0))         \
    LOOP1(relu_##id, type, x < 0 ? 0 : x)
SIGNED_TYPES(SIGNED_LOOPS)
#define EITHER_LOOPS(id, type, wide) \
    LOOP1(neg_##id, type, -(wide)x)  \
    LOOP1(not_##id, type, ~(wide)x)
INTEGER_TYPES(EITHER_LOOPS)

k_integer_fn *k_integer_for(enum k_integer op, enum cm_dtype dtype)
{
    switch (dtype) {
#define CASE(id, type, wide)                                          \
    case CM_##id: {                                                   \
        static k_integer_fn *const fns[] = {[K_INT_ABS] = abs_##id,   \
                                            [K_INT_NEG] = neg_##id,   \
                                            [K_INT_SIGN] = sign_##id, \
                                            [K_INT_RELU] = relu_##id, \
                                            [K_INT_NOT] = not_##id};  \
        return fns[op];                                               \
    }
        INTEGER_TYPES(CASE)
#undef CASE
    default:
        return NULL;
    }
}

#define CLIP_LOOP(id, type, wide)                                                         \
    static void clip_##id(const void *in_, const void *low_, const void *high_, void *y_, \
                          size_t n)                                                       \
    {                                                                                     \
        const type *in = in_;                                                             \
        type *y = y_, low, high;                                                          \
        memcpy(&low, low_, sizeof low);                                                   \
        memcpy(&high, high_, sizeof high);                                                \
        for (size_t i = 0; i < n; i++) {                                                  \
            type t = low > in[i] ? low : in[i];                                           \
            y[i] = high < t ? high : t;                                                   \
        }                                                                                 \
    }
INTEGER_TYPES(CLIP_LOOP)

k_clip_fn *k_integer_clip_for(enum cm_dtype dtype)
{
    switch (dtype) {
#define CASE(id, type, wide) \
    case CM_##id:            \
        return clip_##id;
        INTEGER_TYPES(CASE)
#undef CASE
    default:
        return NULL;
    }
}

/* ---- pow of mixed types ---------------------------------------------------------------------- */

static bool is_floating(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

static uint64_t pow_whole(uint64_t x, uint64_t exponent, bool negative)
{
    uint64_t r = 1;
    if (negative && x != 1 && x != UINT64_MAX)
        return exponent == 0;
    for (; exponent; exponent >>= 1, x *= x)
        if (exponent & 1)
            r *= x;
    return r;
}

/* Operands of one chunk in a carrier type: n of them, or one repeated. */
static void load(enum cm_dtype from, enum cm_dtype carrier, const void *x, size_t step, size_t i,
                 size_t n, void *ret)
{
    const char *at = (const char *)x + i * step * cm_dtype_size(from);
    k_cast(from, carrier, at, ret, step ? n : 1);
    for (size_t k = 1; !step && k < n; k++)
        memcpy((char *)ret + k * 8, ret, 8); /* both carriers have 8 bytes */
}

/* x holds bases, sign-extended; whole (integers) or exponents is given. */
static void pow_integers(enum cm_dtype base, uint64_t *x, const double *exponents,
                         const uint64_t *whole, bool is_signed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool negative = whole ? is_signed && (int64_t)whole[i] < 0 : exponents[i] < 0;
        if (whole) {
            x[i] = pow_whole(x[i], negative ? 0 - whole[i] : whole[i], negative);
        } else if (floor(exponents[i]) == exponents[i] && fabs(exponents[i]) < 0x1p63) {
            x[i] = pow_whole(x[i], (uint64_t)fabs(exponents[i]), negative);
        } else {
            double wide = (double)(int64_t)x[i];
            uint64_t narrow;
            wide = f64_pow(wide, exponents[i]);
            k_cast(CM_FP64, base, &wide, &narrow, 1);
            k_cast(base, CM_INT64, &narrow, &x[i], 1);
        }
    }
}

/* An exponent that is a float is taken as one, so that it may have any type without a change. */
static double pow_narrow(double x, double exponent)
{
    float base = (float)x, narrow = (float)exponent, y;
    if ((double)narrow != exponent && exponent == exponent)
        return f64_pow(x, exponent);
    k_f32_pow(&base, 0, &narrow, 0, &y, 1);
    return y;
}

static void pow_chunk(enum cm_dtype base, enum cm_dtype exponent, const void *a, size_t step_a,
                      const void *b, size_t step_b, void *y, size_t i, size_t n)
{
    double x[CHUNK], e[CHUNK];
    uint64_t whole_x[CHUNK], whole_e[CHUNK];
    bool fraction = is_floating(exponent);
    char *out = (char *)y + i * cm_dtype_size(base);
    if (!is_floating(base)) {
        load(base, CM_INT64, a, step_a, i, n, whole_x);
        load(exponent, fraction ? CM_FP64 : CM_INT64, b, step_b, i, n,
             fraction ? (void *)e : (void *)whole_e);
        pow_integers(base, whole_x, e, fraction ? NULL : whole_e, exponent != CM_UINT64, n);
        k_cast(CM_INT64, base, whole_x, out, n);
        return;
    }
    load(base, CM_FP64, a, step_a, i, n, x);
    load(exponent, CM_FP64, b, step_b, i, n, e);
    for (size_t k = 0; k < n; k++)
        x[k] = base == CM_FP64 ? f64_pow(x[k], e[k]) : pow_narrow(x[k], e[k]);
    k_cast(CM_FP64, base, x, out, n);
}

void k_pow_mixed(enum cm_dtype base, enum cm_dtype exponent, const void *a, size_t step_a,
                 const void *b, size_t step_b, void *y, size_t n)
{
    for (size_t i = 0; i < n; i += CHUNK)
        pow_chunk(base, exponent, a, step_a, b, step_b, y, i, n - i < CHUNK ? n - i : CHUNK);
}
