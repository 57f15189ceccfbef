/* Activations and other small functions on logical vectors, for the element-wise kernels and for
 * recurrent cells. Every f_<name> is one lane's definition; kernels.h says in words what it is.
 * maxraw(a, b) and minraw(a, b) give b where b is NaN, so the value goes second. Included by kernel
 * sources after k.h. */
#ifndef GPU_WORKER_CPU_K_FUNCTIONS_H
#define GPU_WORKER_CPU_K_FUNCTIONS_H

#include "gpu-worker/cpu/k_math.h"

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
K_INLINE v f_clip_6(v x)
{
    return f_clip(v_add(x, v_set(3.0f)), v_zero(), v_set(6.0f));
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

#endif
