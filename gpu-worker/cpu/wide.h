/* Element-wise functions of one operand in double precision, for FP64 and for operators that have
 * no kernel of their own: other floating-point types come in exactly, are computed here and rounded
 * once on the way out. Plain C compiled once over f64_math.h. Pure functions, any thread. */
#ifndef GPU_WORKER_CPU_WIDE_H
#define GPU_WORKER_CPU_WIDE_H

#include "common/tensor.h"

#include <stddef.h>

/* What a and b are is in the list; unused ones are ignored. */
struct k_wide_params {
    double a, b;
};

/* y may be x. */
typedef void k_wide_fn(const double *x, double *y, size_t n, const struct k_wide_params *params);

/* WIDE(name, expression of x, a, b). NaN gives NaN. */
#define K_WIDE_FUNCTIONS(WIDE)                                        \
    WIDE(abs, fabs(x))                                                \
    WIDE(neg, -x)                                                     \
    WIDE(sign, x > 0 ? 1.0 : x < 0 ? -1.0 : x) /* of -0: -0 */        \
    WIDE(ceil, ceil(x))                                               \
    WIDE(floor, floor(x))                                             \
    WIDE(round, nearbyint(x)) /* ties to even */                      \
    WIDE(sqrt, sqrt(x))                                               \
    WIDE(reciprocal, 1.0 / x)                                         \
    WIDE(exp, f64_exp(x))                                             \
    WIDE(log, f64_log(x))                                             \
    WIDE(sin, f64_sin(x))                                             \
    WIDE(cos, f64_cos(x))                                             \
    WIDE(tan, f64_tan(x))                                             \
    WIDE(asin, f64_asin(x))                                           \
    WIDE(acos, f64_acos(x))                                           \
    WIDE(atan, f64_atan(x))                                           \
    WIDE(sinh, f64_sinh(x))                                           \
    WIDE(cosh, f64_cosh(x))                                           \
    WIDE(tanh, f64_tanh(x))                                           \
    WIDE(asinh, f64_asinh(x))                                         \
    WIDE(acosh, f64_acosh(x))                                         \
    WIDE(atanh, f64_atanh(x))                                         \
    WIDE(erf, f64_erf(x))                                             \
    WIDE(sigmoid, f64_sigmoid(x))                                     \
    WIDE(clip, clip(x, a, b)) /* above b it is b, also where b < a */ \
    WIDE(hard_sigmoid, clip(b + a * x, 0.0, 1.0))                     \
    WIDE(hard_swish, clip(x / 6.0 + 0.5, 0.0, 1.0) * x)               \
    WIDE(relu, x < 0 ? 0.0 : x)                                       \
    WIDE(leaky_relu, x < 0 ? a * x : x)                               \
    WIDE(elu, x < 0 ? a * f64_expm1(x) : x)                           \
    WIDE(selu, (x > 0 ? x : a * f64_expm1(x)) * b)                    \
    WIDE(celu, x < 0 ? a * f64_expm1(x / a) : x)                      \
    WIDE(thresholded_relu, x <= a ? 0.0 : x)                          \
    WIDE(softplus, softplus(x))                                       \
    WIDE(softsign, x / (1.0 + fabs(x)))                               \
    WIDE(shrink, shrink(x, a, b))                                     \
    WIDE(mish, f64_tanh(softplus(x)) * x)                             \
    WIDE(gelu, 0.5 * x * (1.0 + f64_erf(x * 0.70710678118654752)))    \
    WIDE(gelu_tanh, 0.5 * x * (1.0 + f64_tanh(0.79788456080286536 * (x + 0.044715 * (x * x * x)))))

#define K_WIDE_PROTOTYPE(name, expression) k_wide_fn k_wide_##name;
K_WIDE_FUNCTIONS(K_WIDE_PROTOTYPE)
#undef K_WIDE_PROTOTYPE

/* y = (type)fn((double)x) for any element types; both may be the same. Integers saturate. */
void k_wide_run(k_wide_fn *fn, const struct k_wide_params *params, enum cm_dtype from,
                enum cm_dtype to, const void *x, void *y, size_t n);

/* Functions of one operand on integers alone; they wrap. */
enum k_integer { K_INT_ABS, K_INT_NEG, K_INT_SIGN, K_INT_RELU, K_INT_NOT };
typedef void k_integer_fn(const void *x, void *y, size_t n);
/* NULL for what is no integer type. */
k_integer_fn *k_integer_for(enum k_integer op, enum cm_dtype dtype);

/* n elements between two bounds of the same type: min(high, max(low, x)). Integers; the floating
 * types have kernels and k_wide_clip. NULL for what is no integer type. */
typedef void k_clip_fn(const void *x, const void *low, const void *high, void *y, size_t n);
k_clip_fn *k_integer_clip_for(enum cm_dtype dtype);

/* base to the power exponent in base's type, a signed integer or floating point; exponent may have
 * any numeric type; steps as k_arith_fn. FP64: f64_pow; narrower floats: k_f32_pow, or f64_pow
 * where the exponent is no float, rounded once. Integer bases: whole exponents wrap, negative ones
 * truncate (of 0 they give 0, as x / 0 does); with a fraction it is the power of doubles, cast as
 * k_cast does. */
void k_pow_mixed(enum cm_dtype base, enum cm_dtype exponent, const void *a, size_t step_a,
                 const void *b, size_t step_b, void *y, size_t n);

#endif
