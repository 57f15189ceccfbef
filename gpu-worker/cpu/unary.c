/* f32 element-wise functions of one operand.
 *
 * Compiled once per instruction set; runs on the caller's thread. What
 * they compute is in k_functions.h and k_math.h. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/k_functions.h"
#include "gpu-worker/cpu/kernels.h"

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
MAP(hard_swish_6, v_div(v_mul(x, f_clip_6(x)), v_set(6.0f)))
MAP(hard_swish_by_6, v_mul(x, v_div(f_clip_6(x), v_set(6.0f))))
MAP(hard_gate, v_mul(x, f_hard_sigmoid(x, alpha, beta)))
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
