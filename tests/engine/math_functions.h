/* The f32 kernels that approximate a function: its value in double precision, and the error that
 * README.md of gpu-worker/cpu promises. Shared by kernels_math_test and math_exhaustive. Test code.
 */
#ifndef TESTS_ENGINE_MATH_FUNCTIONS_H
#define TESTS_ENGINE_MATH_FUNCTIONS_H

#include "gpu-worker/cpu/kernels.h"

#include <math.h>
#include <stdbool.h>

/* alpha and beta that all functions are called with: SELU's. */
#define MATH_ALPHA 1.67326319f
#define MATH_BETA  1.05070102f

static inline double math_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1.0 + exp(x)) : 1.0 / (1.0 + exp(-x));
}
static inline double math_softplus(double x)
{
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}
static inline double math_elu(double x)
{
    return x < 0 ? (double)MATH_ALPHA * expm1(x) : x;
}
static inline double math_selu(double x)
{
    return (double)MATH_BETA * math_elu(x);
}
static inline double math_celu(double x)
{
    return x < 0 ? (double)MATH_ALPHA * expm1(x / (double)MATH_ALPHA) : x;
}
static inline double math_softsign(double x)
{
    return x / (1.0 + fabs(x));
}
static inline double math_mish(double x)
{
    return x * tanh(math_softplus(x));
}
static inline double math_silu(double x)
{
    return x * math_sigmoid(x);
}

struct math_function {
    enum k_unary op;
    double (*want)(double);
    double bound; /* units in the last place */
    float from;   /* the bound holds from here on: below, a factor of the result is denormal */
};

static const struct math_function math_functions[] = {
    {K_UNARY_exp, exp, 1.1, -INFINITY},
    {K_UNARY_log, log, 1.0, -INFINITY},
    {K_UNARY_tanh, tanh, 1.5, -INFINITY},
    {K_UNARY_sigmoid, math_sigmoid, 2.0, -INFINITY},
    {K_UNARY_erf, erf, 1.5, -INFINITY},
    {K_UNARY_sin, sin, 2.0, -INFINITY},
    {K_UNARY_cos, cos, 2.0, -INFINITY},
    {K_UNARY_softplus, math_softplus, 2.0, -INFINITY},
    {K_UNARY_softsign, math_softsign, 2.0, -INFINITY},
    {K_UNARY_elu, math_elu, 2.0, -INFINITY},
    {K_UNARY_selu, math_selu, 2.5, -INFINITY},
    {K_UNARY_celu, math_celu, 2.5, -INFINITY},
    {K_UNARY_mish, math_mish, 4.0, -87.0f},
    {K_UNARY_silu, math_silu, 3.0, -87.0f},
};

/* One unit in the last place of a float near y. */
static inline double math_ulp_of(double y)
{
    int e;
    frexp(y, &e);
    return ldexp(1.0, (e - 1 < -126 ? -126 : e - 1) - 23);
}

/* How many units in the last place got is away from want; infinity where one of them only is NaN or
 * infinite. */
static inline double math_ulps(float got, double want)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0.0 : INFINITY;
    if ((float)want == got) /* also infinities and overflow */
        return isinf((float)want) ? 0.0 : fabs((double)got - want) / math_ulp_of(want);
    if (isinf(got) || isinf((float)want))
        return INFINITY;
    return fabs((double)got - want) / math_ulp_of(want);
}

#endif
