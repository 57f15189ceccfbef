/* The project's own exp, log, tanh, sigmoid, erf and pow against double-precision libm, and the
 * scalar fused multiply-add against libm's. Test code.
 *
 * The bounds here are the ones that gpu-worker/cpu/README.md states. */
#include "tests/engine/math_functions.h"

#include "common/check.h"
#include "gpu-worker/cpu/features.h"
#include "gpu-worker/cpu/kernels.h"
#include "gpu-worker/cpu/plain.h"

#define K_SCALAR
#include "gpu-worker/cpu/k.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 1000

/* Every STEP-th bit pattern of a float, in blocks; all instruction sets must agree. The address
 * sanitizer has its scalar kernels unoptimised, and looks for other things than errors in ulps. */
#ifdef __SANITIZE_ADDRESS__
#define LESS 16
#define STEP 16381u
#else
#define LESS 1
#define STEP 1021u
#endif

static void check_block(const struct math_function *f, const float *x, size_t n, double *worst,
                        float *worst_at)
{
    const struct k_unary_params params = {MATH_ALPHA, MATH_BETA};
    enum k_unary op = f->op;
    float y[BLOCK], z[BLOCK];
    cpu_kernels_for(wk_isa_best())->unary[op](x, y, n, &params);
    for (unsigned isa = 0; isa < (unsigned)wk_isa_best(); isa++) {
        cpu_kernels_for((enum wk_isa)isa)->unary[op](x, z, n, &params);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&y[i], &z[i], sizeof(float)) != 0 && !(isnan(y[i]) && isnan(z[i])))
                fail_msg("%s(%a): %a on %s, %a on %s", k_unary_name(op), (double)x[i], (double)z[i],
                         wk_isa_name((enum wk_isa)isa), (double)y[i], wk_isa_name(wk_isa_best()));
    }
    for (size_t i = 0; i < n; i++) {
        double u = x[i] < f->from ? 0.0 : math_ulps(y[i], f->want((double)x[i]));
        if (u > *worst) {
            *worst = u;
            *worst_at = x[i];
        }
    }
}

static void test_accuracy(void **state)
{
    (void)state;
    for (unsigned k = 0; k < CM_COUNT_OF(math_functions); k++) {
        const struct math_function *f = &math_functions[k];
        double worst = 0;
        float worst_at = 0, x[BLOCK];
        size_t n = 0;
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += STEP) {
            x[n++] = s_float((uint32_t)bits);
            if (n == BLOCK) {
                check_block(f, x, n, &worst, &worst_at);
                n = 0;
            }
        }
        /* Densely where the pieces of the polynomials meet and most values lie. */
        for (float t = -12.0f; t < 12.0f; t += 0.00037f * LESS) {
            x[n++] = t;
            if (n == BLOCK) {
                check_block(f, x, n, &worst, &worst_at);
                n = 0;
            }
        }
        check_block(f, x, n, &worst, &worst_at);
        printf("%-12s %.3f ulp at %a, %.0f %% of the bound %.1f\n", k_unary_name(f->op), worst,
               (double)worst_at, worst / f->bound * 100, f->bound);
        if (!(worst <= f->bound))
            fail_msg("%s is worse than its bound", k_unary_name(f->op));
    }
}

static float call_with(enum k_unary op, float x, const struct k_unary_params *params)
{
    float y;
    cpu_kernels_for(wk_isa_best())->unary[op](&x, &y, 1, params);
    return y;
}

static float call(enum k_unary op, float x)
{
    return call_with(op, x, NULL);
}

static void test_special_values(void **state)
{
    (void)state;
    assert_true(call(K_UNARY_exp, -INFINITY) == 0.0f && call(K_UNARY_exp, INFINITY) == INFINITY);
    assert_true(call(K_UNARY_exp, 0.0f) == 1.0f && call(K_UNARY_exp, -0.0f) == 1.0f);
    assert_true(call(K_UNARY_exp, -103.0f) == (float)exp(-103.0));
    assert_true(call(K_UNARY_log, 0.0f) == -INFINITY && call(K_UNARY_log, -0.0f) == -INFINITY);
    assert_true(isnan(call(K_UNARY_log, -1.0f)) && isnan(call(K_UNARY_log, -INFINITY)));
    assert_true(call(K_UNARY_log, INFINITY) == INFINITY && call(K_UNARY_log, 1.0f) == 0.0f);
    assert_true(call(K_UNARY_tanh, INFINITY) == 1.0f && call(K_UNARY_tanh, -INFINITY) == -1.0f);
    assert_true(signbit(call(K_UNARY_tanh, -0.0f)) && signbit(call(K_UNARY_erf, -0.0f)));
    assert_true(call(K_UNARY_erf, INFINITY) == 1.0f && call(K_UNARY_erf, -INFINITY) == -1.0f);
    assert_true(call(K_UNARY_sigmoid, INFINITY) == 1.0f);
    assert_true(call(K_UNARY_sigmoid, -INFINITY) == 0.0f && call(K_UNARY_sigmoid, 0.0f) == 0.5f);
    assert_true(isnan(call(K_UNARY_sin, INFINITY)) && isnan(call(K_UNARY_cos, -INFINITY)));
    assert_true(signbit(call(K_UNARY_sin, -0.0f)) && call(K_UNARY_cos, -0.0f) == 1.0f);
    assert_true(call(K_UNARY_sin, 3.4e38f) == (float)sin((double)3.4e38f));
    assert_true(call(K_UNARY_softplus, INFINITY) == INFINITY);
    assert_true(call(K_UNARY_softplus, -INFINITY) == 0.0f);
    const struct k_unary_params one = {1.0f, 1.0f};
    assert_true(call_with(K_UNARY_elu, -INFINITY, &one) == -1.0f);
    assert_true(call_with(K_UNARY_elu, INFINITY, &one) == INFINITY);
    assert_true(signbit(call_with(K_UNARY_elu, -0.0f, &one)));
    assert_true(call(K_UNARY_mish, INFINITY) == INFINITY);
    assert_true(call(K_UNARY_round, 2.5f) == 2.0f && call(K_UNARY_round, -3.5f) == -4.0f);
    assert_true(signbit(call(K_UNARY_relu, -0.0f)) && call(K_UNARY_relu, -1.0f) == 0.0f);
    for (int op = 0; op < K_UNARY_COUNT; op++) {
        struct k_unary_params p = {0.1f, 0.5f};
        float x = NAN, y = 0;
        cpu_kernels_for(wk_isa_best())->unary[op](&x, &y, 1, &p);
        if (!isnan(y))
            fail_msg("%s hides NaN", k_unary_name((enum k_unary)op));
    }
}

/* The element-wise functions that are exact or whose operations kernels.h spells out. */
static void test_exact_functions(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 40961u) {
        float x = s_float((uint32_t)bits), sixth = 1.0f / 6.0f;
        if (isnan(x))
            continue;
        assert_true(call(K_UNARY_floor, x) == floorf(x) && call(K_UNARY_ceil, x) == ceilf(x));
        assert_true(call(K_UNARY_abs, x) == fabsf(x) && call(K_UNARY_neg, x) == -x);
        assert_true(call(K_UNARY_reciprocal, x) == 1.0f / x);
        if (x >= 0)
            assert_true(call(K_UNARY_sqrt, x) == sqrtf(x));
        float gate = fminf(fmaxf(x * sixth + 0.5f, 0.0f), 1.0f), swish = x * gate;
        assert_true(call(K_UNARY_hard_swish, x) == swish || isnan(swish));
        float clip6 = fminf(fmaxf(x + 3.0f, 0.0f), 6.0f);
        float six = (x * clip6) / 6.0f, by_six = x * (clip6 / 6.0f);
        assert_true(call(K_UNARY_hard_swish_6, x) == six || isnan(six));
        assert_true(call(K_UNARY_hard_swish_by_6, x) == by_six || isnan(by_six));
        struct k_unary_params gate_params = {0.2f, 0.5f};
        float gated = x * fminf(fmaxf(x * 0.2f + 0.5f, 0.0f), 1.0f);
        assert_true(call_with(K_UNARY_hard_gate, x, &gate_params) == gated || isnan(gated));
        float gelu = (x * (1.0f + call(K_UNARY_erf, x / 1.41421354f))) * 0.5f;
        assert_true(call(K_UNARY_gelu, x) == gelu || isnan(gelu));
        float silu = x * call(K_UNARY_sigmoid, x);
        assert_true(call(K_UNARY_silu, x) == silu || isnan(silu));
        float softsign = x / (1.0f + fabsf(x));
        assert_true(call(K_UNARY_softsign, x) == softsign || isnan(softsign));
        assert_true(s_bits(call(K_UNARY_round, x)) == s_bits(rintf(x)));
        assert_true(call(K_UNARY_sign, x) == (float)(x > 0) - (float)(x < 0));
        float threshold = 0.7f;
        struct k_unary_params p = {.alpha = threshold};
        assert_true(call_with(K_UNARY_thresholded_relu, x, &p) == (x > threshold ? x : 0.0f));
    }
}

/* ---- the fused multiply-add of the scalar kernels ---- */

static uint64_t random_state = 88172645463325252u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20);
}

static void check_fma(float a, float b, float c)
{
    float got = s_fma(a, b, c), want = fmaf(a, b, c);
    if (s_bits(got) != s_bits(want) && !(isnan(got) && isnan(want)))
        fail_msg("fma(%a, %a, %a) is %a, expected %a", (double)a, (double)b, (double)c, (double)got,
                 (double)want);
}

static void test_scalar_fma(void **state)
{
    (void)state;
    static const float some[] = {0.0f,
                                 -0.0f,
                                 1.0f,
                                 -1.0f,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 1e-45f,
                                 -1e-45f,
                                 1.17549435e-38f,
                                 1e-39f,
                                 3.40282347e+38f,
                                 -3.40282347e+38f,
                                 1.00000012f,
                                 0.99999994f,
                                 1e-23f,
                                 8388609.0f};
    for (unsigned i = 0; i < CM_COUNT_OF(some); i++)
        for (unsigned j = 0; j < CM_COUNT_OF(some); j++)
            for (unsigned k = 0; k < CM_COUNT_OF(some); k++)
                check_fma(some[i], some[j], some[k]);
    for (unsigned i = 0; i < 2000000 / LESS; i++) {
        float a = s_float(random_bits()), b = s_float(random_bits()), c = s_float(random_bits());
        check_fma(a, b, c);
        /* Neighbours of ties and of cancellation: c near -a*b, and half a place away from it. */
        float p = -(a * b);
        check_fma(a, b, p);
        check_fma(a, b, s_float(s_bits(p) + random_bits() % 8 - 4));
        check_fma(a, b, p * 5.9604645e-8f);
        check_fma(a, b, p * 16777216.0f);
    }
}

/* ---- pow ---- */

static float pow1(float x, float y)
{
    float r;
    k_f32_pow(&x, 1, &y, 1, &r, 1);
    return r;
}

static void test_pow(void **state)
{
    (void)state;
    static const float some[] = {0.0f,        -0.0f,       1.0f,     -1.0f,     0.5f, -0.5f,
                                 2.0f,        -2.0f,       3.0f,     -3.0f,     2.5f, -2.5f,
                                 1e30f,       1e-30f,      INFINITY, -INFINITY, NAN,  1e-45f,
                                 16777216.0f, 16777215.0f, -7.0f};
    for (unsigned i = 0; i < CM_COUNT_OF(some); i++)
        for (unsigned j = 0; j < CM_COUNT_OF(some); j++) {
            float got = pow1(some[i], some[j]);
            double want = pow((double)some[i], (double)some[j]);
            if (math_ulps(got, want) > 1.5 || (!isnan(got) && !signbit(got) != !signbit(want)))
                fail_msg("pow(%a, %a) is %a, expected %a", (double)some[i], (double)some[j],
                         (double)got, want);
        }
    double worst = 0;
    for (unsigned i = 0; i < 500000; i++) {
        float x = s_float(random_bits() & 0x7fffffffu);
        float y = s_float((random_bits() & 0x80ffffffu) + 0x3b000000u + (random_bits() % 12 << 23));
        double u = math_ulps(pow1(x, y), pow((double)x, (double)y));
        worst = u > worst ? u : worst;
    }
    printf("pow          %.3f ulp, %.0f %% of the bound 0.6\n", worst, worst / 0.6 * 100);
    assert_true(worst <= 0.6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_exact_functions),
        cmocka_unit_test(test_scalar_fma),
        cmocka_unit_test(test_pow),
    };
    return cmocka_run_group_tests_name("kernels_math", tests, NULL, NULL);
}
