/* f32 element-wise functions of one operand.
 *
 * Compiled once per instruction set; runs on the caller's thread. Every f_<name> below is one
 * lane's definition; kernels.h says in words what it is. maxraw(a, b) and minraw(a, b) give b where
 * b is NaN, so the value goes second. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/k_math.h"
#include "gpu-worker/cpu/kernels.h"

K_INLINE v f_relu(v x)
{
    return v_maxraw(v_zero(), x);
}
K_INLINE v f_leaky_relu(v x, v alpha)
{
    return v_sel(v_lt(x, v_zero()), v_mul(x, alpha), x);
}
K_INLINE v f_clip(v x, v low, v high)
{
    return v_minraw(high, v_maxraw(low, x));
}
K_INLINE v f_hard_sigmoid(v x, v alpha, v beta)
{
    return f_clip(v_add(v_mul(alpha, x), beta), v_zero(), v_set(1.0f));
}
K_INLINE v f_hard_swish(v x)
{
    return v_mul(x, f_hard_sigmoid(x, v_set(1.0f / 6.0f), v_set(0.5f)));
}
K_INLINE v f_reciprocal(v x)
{
    return v_div(v_set(1.0f), x);
}
K_INLINE v f_gelu(v x)
{
    v e = v_erf(v_div(x, v_set(1.41421354f)));
    return v_mul(v_mul(x, v_add(v_set(1.0f), e)), v_set(0.5f));
}
K_INLINE v f_gelu_tanh(v x)
{
    v cube = v_mul(v_mul(x, x), x);
    v inner = v_mul(v_set(0.797884583f), v_add(x, v_mul(v_set(0.044715f), cube)));
    return v_mul(v_mul(x, v_add(v_set(1.0f), v_tanh(inner))), v_set(0.5f));
}

K_INLINE v f_elu(v x, v alpha)
{
    return v_sel(v_lt(x, v_zero()), v_mul(alpha, v_expm1(x)), x);
}
K_INLINE v f_celu(v x, v alpha)
{
    return v_sel(v_lt(x, v_zero()), v_mul(alpha, v_expm1(v_div(x, alpha))), x);
}
K_INLINE v f_thresholded_relu(v x, v alpha)
{
    return v_sel(v_lt(alpha, x), x, v_sel(v_isnan(x), x, v_zero()));
}
K_INLINE v f_softsign(v x)
{
    return v_div(x, v_add(v_set(1.0f), v_abs(x)));
}
K_INLINE v f_sign(v x)
{
    v one = v_xorbits(v_set(1.0f), v_andbits(x, v_bits(0x80000000u)));
    return v_sel(v_lt(v_zero(), v_abs(x)), one, v_sel(v_isnan(x), x, v_zero()));
}
/* tanh(log(1 + w)) = (w w + 2 w) / (w w + 2 w + 2) with w = e^x; from x = 20 on it is 1. */
K_INLINE v f_mish(v x)
{
    v w = v_exp(v_minraw(v_set(20.0f), x));
    v p = v_fma(w, w, v_add(w, w));
    return v_mul(x, v_div(p, v_add(p, v_set(2.0f))));
}

/* The loop around an expression of x, alpha and beta. */
#define MAP(name, expression)                                                                    \
    void K_NAME(f32_##name)(const float *in, float *y, size_t n, const struct k_unary_params *p) \
    {                                                                                            \
        const v alpha = v_set(p ? p->alpha : 0.0f), beta = v_set(p ? p->beta : 0.0f);            \
        (void)alpha, (void)beta;                                                                 \
        size_t i = 0;                                                                            \
        for (; n - i >= VL; i += VL) {                                                           \
            v x = v_load(in + i);                                                                \
            v_store(y + i, expression);                                                          \
        }                                                                                        \
        if (i < n) {                                                                             \
            v x = v_loadn(in + i, (unsigned)(n - i));                                            \
            v_storen(y + i, expression, (unsigned)(n - i));                                      \
        }                                                                                        \
    }

MAP(relu, f_relu(x))
MAP(leaky_relu, f_leaky_relu(x, alpha))
MAP(clip, f_clip(x, alpha, beta))
MAP(hard_sigmoid, f_hard_sigmoid(x, alpha, beta))
MAP(hard_swish, f_hard_swish(x))
MAP(sigmoid, v_sigmoid(x))
MAP(tanh, v_tanh(x))
MAP(exp, v_exp(x))
MAP(log, v_log(x))
MAP(sqrt, v_sqrt(x))
MAP(abs, v_abs(x))
MAP(neg, v_neg(x))
MAP(reciprocal, f_reciprocal(x))
MAP(floor, v_floor(x))
MAP(ceil, v_ceil(x))
MAP(erf, v_erf(x))
MAP(gelu, f_gelu(x))
MAP(gelu_tanh, f_gelu_tanh(x))
MAP(sin, v_sin(x))
MAP(cos, v_cos(x))
MAP(softplus, v_softplus(x))
MAP(softsign, f_softsign(x))
MAP(elu, f_elu(x, alpha))
MAP(selu, v_mul(beta, f_elu(x, alpha)))
MAP(celu, f_celu(x, alpha))
MAP(thresholded_relu, f_thresholded_relu(x, alpha))
MAP(mish, f_mish(x))
MAP(silu, v_mul(x, v_sigmoid(x)))
MAP(sign, f_sign(x))
MAP(round, v_round(x))
