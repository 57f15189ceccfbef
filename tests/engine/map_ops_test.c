/* Element-wise operators of one operand for every type, against libm in long double: Clip, casts
 * and tests for NaN too. Operators of two operands are in map_binary_test.c. */
#include "common/check.h"
#include "tests/engine/map_kit.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 7;

/* ---- floating point -------------------------------------------------------------------------- */

/* x, and the operator's parameters a and b. */
typedef long double real_fn(long double x, long double a, long double b);

#define REAL(name, expression)                                           \
    static long double name(long double x, long double a, long double b) \
    {                                                                    \
        (void)a, (void)b;                                                \
        return (expression);                                             \
    }
static long double between(long double x, long double low, long double high)
{
    return isnan(x) ? x : fmaxl(low, fminl(high, x));
}
static long double soft(long double x)
{
    return isnan(x) ? x : fmaxl(x, 0) + log1pl(expl(-fabsl(x)));
}
REAL(r_abs, fabsl(x))
REAL(r_acos, acosl(x))
REAL(r_acosh, acoshl(x))
REAL(r_asin, asinl(x))
REAL(r_asinh, asinhl(x))
REAL(r_atan, atanl(x))
REAL(r_atanh, atanhl(x))
REAL(r_ceil, ceill(x))
REAL(r_celu, isnan(x) ? x : fmaxl(0, x) + fminl(0, a *expm1l(x / a)))
REAL(r_cos, cosl(x))
REAL(r_cosh, coshl(x))
REAL(r_elu, x >= 0 ? x : a * expm1l(x))
REAL(r_erf, erfl(x))
REAL(r_exp, expl(x))
REAL(r_floor, floorl(x))
REAL(r_gelu, isinf(x) && x < 0 ? NAN : x * (1 + erfl(x / sqrtl(2))) / 2)
REAL(r_gelu_tanh,
     isinf(x) && x < 0 ? NAN : x * (1 + tanhl(sqrtl(2 / M_PIl) * (x + 0.044715L * x * x * x))) / 2)
REAL(r_hard_sigmoid, between(a *x + b, 0, 1))
REAL(r_hard_swish, isinf(x) && x < 0 ? NAN : x * between(x / 6 + 0.5L, 0, 1))
REAL(r_leaky, x < 0 ? a * x : x)
REAL(r_log, logl(x))
REAL(r_mish, isinf(x) && x < 0 ? NAN : x * tanhl(soft(x)))
REAL(r_neg, -x)
REAL(r_reciprocal, 1 / x)
REAL(r_relu, x < 0 ? 0 : x)
REAL(r_round, rintl(x))
REAL(r_selu, x > 0 ? b * x : b * a * expm1l(x))
REAL(r_shrink, isnan(x) ? x : x < -a ? x + b : x > a ? x - b : 0)
REAL(r_sigmoid, 1 / (1 + expl(-x)))
REAL(r_sign, isnan(x) ? x : (x > 0) - (x < 0))
REAL(r_sin, sinl(x))
REAL(r_sinh, sinhl(x))
REAL(r_softplus, soft(x))
REAL(r_softsign, x / (1 + fabsl(x)))
REAL(r_sqrt, sqrtl(x))
REAL(r_tan, tanl(x))
REAL(r_tanh, tanhl(x))
REAL(r_thresholded, x <= a ? 0 : x)

/* error: in units of half a last place of the result, besides loose * |x| such units where the
 * definition cancels. */
struct real_case {
    struct map_node node;
    real_fn *want;
    double range, error, loose;
    float a, b;
};

static const struct real_case real_cases[] = {
    {{"Abs", 13, {{0}}}, r_abs, 9, 1, 0, 0, 0},
    {{"Acos", 7, {{0}}}, r_acos, 1.1, 2, 0, 0, 0},
    {{"Acosh", 9, {{0}}}, r_acosh, 30, 2, 0, 0, 0},
    {{"Asin", 7, {{0}}}, r_asin, 1.1, 2, 0, 0, 0},
    {{"Asinh", 9, {{0}}}, r_asinh, 30, 2, 0, 0, 0},
    {{"Atan", 7, {{0}}}, r_atan, 30, 2, 0, 0, 0},
    {{"Atanh", 9, {{0}}}, r_atanh, 1.1, 2, 0, 0, 0},
    {{"Ceil", 6, {{0}}}, r_ceil, 40, 1, 0, 0, 0},
    {{"Celu", 12, {MAP_F("alpha", 2.5f)}}, r_celu, 8, 8, 0, 2.5f, 0},
    {{"Celu", 12, {{0}}}, r_celu, 8, 8, 0, 1, 0},
    {{"Cos", 7, {{0}}}, r_cos, 50, 4, 0, 0, 0},
    {{"Cosh", 9, {{0}}}, r_cosh, 9, 2, 0, 0, 0},
    {{"Elu", 6, {MAP_F("alpha", 0.7f)}}, r_elu, 8, 8, 0, 0.7f, 0},
    {{"Elu", 6, {{0}}}, r_elu, 8, 8, 0, 1, 0},
    {{"Erf", 13, {{0}}}, r_erf, 4, 4, 0, 0, 0},
    {{"Exp", 13, {{0}}}, r_exp, 9, 4, 0, 0, 0},
    {{"Floor", 13, {{0}}}, r_floor, 40, 1, 0, 0, 0},
    {{"Gelu", 20, {{0}}}, r_gelu, 6, 4, 2, 0, 0},
    {{"Gelu", 20, {MAP_S("approximate", "tanh")}}, r_gelu_tanh, 6, 6, 4, 0, 0},
    {{"HardSigmoid", 6, {{0}}}, r_hard_sigmoid, 4, 4, 1, 0.2f, 0.5f},
    {{"HardSigmoid", 6, {MAP_F("alpha", 0.4f), MAP_F("beta", 0.3f)}},
     r_hard_sigmoid,
     4,
     4,
     1,
     0.4f,
     0.3f},
    {{"HardSwish", 14, {{0}}}, r_hard_swish, 5, 4, 2, 0, 0},
    {{"LeakyRelu", 16, {{0}}}, r_leaky, 9, 2, 0, 0.01f, 0},
    {{"LeakyRelu", 6, {MAP_F("alpha", 0.3f)}}, r_leaky, 9, 2, 0, 0.3f, 0},
    {{"Log", 13, {{0}}}, r_log, 50, 4, 0, 0, 0},
    {{"Mish", 18, {{0}}}, r_mish, 8, 12, 0, 0, 0},
    {{"Neg", 13, {{0}}}, r_neg, 9, 1, 0, 0, 0},
    {{"Reciprocal", 13, {{0}}}, r_reciprocal, 9, 1, 0, 0, 0},
    {{"Relu", 14, {{0}}}, r_relu, 9, 1, 0, 0, 0},
    {{"Round", 11, {{0}}}, r_round, 40, 1, 0, 0, 0},
    {{"Selu", 6, {{0}}}, r_selu, 8, 8, 0, 1.67326319217681884765625f, 1.05070102214813232421875f},
    {{"Selu", 6, {MAP_F("alpha", 2), MAP_F("gamma", 3)}}, r_selu, 8, 8, 0, 2, 3},
    {{"Shrink", 9, {{0}}}, r_shrink, 2, 2, 0, 0.5f, 0},
    {{"Shrink", 9, {MAP_F("lambd", 1.5f), MAP_F("bias", 0.25f)}}, r_shrink, 3, 2, 0, 1.5f, 0.25f},
    {{"Sigmoid", 13, {{0}}}, r_sigmoid, 9, 6, 0, 0, 0},
    {{"Sign", 13, {{0}}}, r_sign, 9, 1, 0, 0, 0},
    {{"Sin", 7, {{0}}}, r_sin, 50, 4, 0, 0, 0},
    {{"Sinh", 9, {{0}}}, r_sinh, 9, 2, 0, 0, 0},
    {{"Softplus", 6, {{0}}}, r_softplus, 20, 6, 0, 0, 0},
    {{"Softsign", 6, {{0}}}, r_softsign, 9, 4, 0, 0, 0},
    {{"Sqrt", 13, {{0}}}, r_sqrt, 50, 1, 0, 0, 0},
    {{"Tan", 7, {{0}}}, r_tan, 1.5, 2, 0, 0, 0},
    {{"Tanh", 13, {{0}}}, r_tanh, 5, 5, 0, 0, 0},
    {{"ThresholdedRelu", 10, {{0}}}, r_thresholded, 3, 1, 0, 1, 0},
    {{"ThresholdedRelu", 10, {MAP_F("alpha", 0.2f)}}, r_thresholded, 3, 1, 0, 0.2f, 0},
};

static void check_real(const struct real_case *c, const struct map_tensor *x,
                       const struct map_tensor *y)
{
    struct map_tensor rounded = map_tensor(y->dtype, y->shape);
    for (size_t i = 0; i < y->count; i++) {
        double in = map_get(x, i), got = map_get(y, i);
        long double exact = c->want(in, c->a, c->b);
        map_put(&rounded, i, (double)exact);
        double want = map_get(&rounded, i), epsilon = map_epsilon(y->dtype);
        if (isnan(want) || isinf(want)) {
            if (isnan(want) ? !isnan(got) : got != want)
                fail_msg("%s(%g) of %s is %g, not %g", c->node.op, in, cm_dtype_name(y->dtype), got,
                         want);
            continue;
        }
        /* The least normal number stands for what lies below. */
        double size = fmax(fabs((double)exact), y->dtype == CM_FP16 ? 0x1p-14 : 0x1p-126);
        double loose = c->loose > 0 ? c->loose * fabs(in) : 0;
        double allowed = epsilon * (c->error * size + loose) + 1e-300;
        if (!(fabsl(got - exact) <= allowed))
            fail_msg("%s(%.17g) of %s is %.17g, not %.17g", c->node.op, in, cm_dtype_name(y->dtype),
                     got, (double)exact);
    }
    map_free(&rounded);
}

static void real_functions(void **state)
{
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(real_cases); i++)
        for (int type = 0; type < MAP_TYPES; type++) {
            if (!map_is_float(map_types[type]))
                continue;
            struct map_tensor x = map_tensor(map_types[type], kit_shape(3, 7, 11, 13));
            map_fill(&x, &seed, real_cases[i].range);
            struct map_tensor y = map_run(&real_cases[i].node, &x, 1, x.dtype, x.shape);
            check_real(&real_cases[i], &x, &y);
            map_free(&x);
            map_free(&y);
        }
}

/* Work for two threads, in a shape that begins elsewhere: a result knows neither. And nothing at
 * all: an empty tensor. */
static void places_and_threads(void **state)
{
    enum { SMALL = 1000, LARGE = 70001 };
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(real_cases); i++)
        for (int type = 0; type < MAP_TYPES; type++) {
            if (!map_is_float(map_types[type]))
                continue;
            const struct map_node *node = &real_cases[i].node;
            size_t bytes = cm_dtype_size(map_types[type]);
            struct map_tensor x = map_tensor(map_types[type], kit_shape(1, LARGE));
            map_fill(&x, &seed, real_cases[i].range);
            struct map_tensor y = map_run(node, &x, 1, x.dtype, x.shape);
            struct map_tensor part = map_tensor(x.dtype, kit_shape(2, 10, SMALL / 10));
            memcpy(part.data, (char *)x.data + (LARGE - SMALL) * bytes, SMALL * bytes);
            struct map_tensor again = map_run(node, &part, 1, x.dtype, part.shape);
            assert_memory_equal(again.data, (char *)y.data + (LARGE - SMALL) * bytes,
                                SMALL * bytes);
            struct map_tensor none = map_tensor(x.dtype, kit_shape(2, 0, 3));
            struct map_tensor nothing = map_run(node, &none, 1, x.dtype, none.shape);
            map_free(&x), map_free(&y), map_free(&part), map_free(&again);
            map_free(&none), map_free(&nothing);
        }
}

/* ---- integers -------------------------------------------------------------------------------- */

static map_int whole(const char *op, map_int x)
{
    if (strcmp(op, "Abs") == 0)
        return x < 0 ? -x : x;
    if (strcmp(op, "Neg") == 0)
        return -x;
    if (strcmp(op, "Sign") == 0)
        return (x > 0) - (x < 0);
    if (strcmp(op, "Relu") == 0)
        return x < 0 ? 0 : x;
    if (strcmp(op, "BitwiseNot") == 0)
        return -1 - x;
    if (strcmp(op, "Erf") == 0) /* truncated: 0 within 1, and beyond 6 it is 1 in double */
        return (map_int)(double)erfl((long double)x);
    assert_string_equal(op, "Shrink"); /* lambd 2.5, bias 1 */
    return x < -2 ? x + 1 : x > 2 ? x - 1 : 0;
}

static void integer_functions(void **state)
{
    static const struct map_node nodes[] = {
        {"Abs", 13, {{0}}},
        {"Neg", 13, {{0}}},
        {"Sign", 13, {{0}}},
        {"Relu", 14, {{0}}},
        {"BitwiseNot", 18, {{0}}},
        {"Erf", 13, {{0}}},
        {"Shrink", 9, {MAP_F("lambd", 2.5f), MAP_F("bias", 1)}},
    };
    (void)state;
    for (size_t n = 0; n < CM_COUNT_OF(nodes); n++)
        for (int type = 0; type < MAP_TYPES; type++) {
            enum cm_dtype dtype = map_types[type];
            bool needs_sign = strcmp(nodes[n].op, "Neg") == 0 || strcmp(nodes[n].op, "Relu") == 0;
            struct map_tensor x = map_tensor(dtype, kit_shape(2, 23, 29));
            if (map_is_float(dtype) || dtype == CM_BOOL || (needs_sign && !map_is_signed(dtype))) {
                if (!map_is_float(dtype))
                    map_refuse(&nodes[n], &x, 1, CM_INVALID, cm_dtype_name(dtype));
                map_free(&x);
                continue;
            }
            /* Shrink is computed in double. */
            map_fill(&x, &seed, strcmp(nodes[n].op, "Shrink") == 0 ? 100 : 0);
            struct map_tensor y = map_run(&nodes[n], &x, 1, dtype, x.shape);
            struct map_tensor want = map_tensor(dtype, x.shape);
            for (size_t i = 0; i < x.count; i++)
                map_put_int(&want, i, whole(nodes[n].op, map_get_int(&x, i)));
            assert_memory_equal(y.data, want.data, x.count * cm_dtype_size(dtype));
            map_free(&x), map_free(&y), map_free(&want);
        }
}

/* ---- tests for NaN and infinity, Not, Identity ----------------------------------------------- */

static void float_tests(void **state)
{
    static const struct map_node nan = {"IsNaN", 13, {{0}}};
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++) {
        struct map_tensor x = map_tensor(map_types[type], kit_shape(1, 400));
        map_fill(&x, &seed, 3);
        if (!map_is_float(x.dtype)) {
            map_refuse(&nan, &x, 1, CM_INVALID, "must be a floating-point type");
            map_free(&x);
            continue;
        }
        for (int which = 0; which < 5; which++) {
            struct map_node inf = {
                "IsInf",
                20,
                {MAP_I("detect_positive", which & 1), MAP_I("detect_negative", which >> 1 & 1)}};
            struct map_tensor y = map_run(which == 4 ? &nan : &inf, &x, 1, CM_BOOL, x.shape);
            for (size_t i = 0; i < x.count; i++) {
                double v = map_get(&x, i);
                bool want =
                    which == 4 ? isnan(v) : isinf(v) && (v > 0 ? which & 1 : which >> 1 & 1);
                assert_int_equal(((uint8_t *)y.data)[i], want);
            }
            map_free(&y);
        }
        map_free(&x);
    }
}

static void not_and_identity(void **state)
{
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++) {
        struct map_tensor x = map_tensor(map_types[type], kit_shape(2, 3, 50));
        map_fill(&x, &seed, 3);
        struct map_tensor y =
            map_run(&(struct map_node){"Identity", 16, {{0}}}, &x, 1, x.dtype, x.shape);
        assert_memory_equal(x.data, y.data, x.count * cm_dtype_size(x.dtype));
        map_free(&y);
        if (x.dtype != CM_BOOL) {
            map_refuse(&(struct map_node){"Not", 6, {{0}}}, &x, 1, CM_INVALID, "must be BOOL");
        } else {
            y = map_run(&(struct map_node){"Not", 6, {{0}}}, &x, 1, CM_BOOL, x.shape);
            for (size_t i = 0; i < x.count; i++)
                assert_int_equal(((uint8_t *)y.data)[i], !((uint8_t *)x.data)[i]);
            map_free(&y);
        }
        map_free(&x);
    }
}

/* ---- Clip ------------------------------------------------------------------------------------ */

/* bounds: bit 0 a minimum, bit 1 a maximum; swapped: the minimum is above the maximum. */
static void check_clip(enum cm_dtype dtype, int bounds, bool swapped)
{
    struct map_tensor t[3] = {map_tensor(dtype, kit_shape(2, 20, 20)),
                              map_tensor(dtype, KIT_SHAPE0()), map_tensor(dtype, KIT_SHAPE0())};
    bool real = map_is_float(dtype);
    map_fill(&t[0], &seed, real ? 30 : 0);
    for (int k = 1; k < 3; k++) {
        bool low = (k == 1) != swapped;
        if (real)
            map_put(&t[k], 0, low ? -1.5 : 7.25);
        else /* INT64's do not fit a double */
            map_put_int(&t[k], 0, low ? 5 : dtype == CM_INT64 ? ((map_int)1 << 60) + 1 : 100);
    }
    if (!(bounds & 1))
        map_free(&t[1]);
    if (!(bounds & 2))
        map_free(&t[2]);
    struct map_tensor y =
        map_run(&(struct map_node){"Clip", 13, {{0}}}, t, bounds & 2 ? 3 : 2, dtype, t[0].shape);
    double largest = dtype == CM_FP16   ? 65504
                     : dtype == CM_BF16 ? ldexp(255, 120)
                     : dtype == CM_FP32 ? (double)FLT_MAX
                                        : DBL_MAX;
    for (size_t i = 0; i < y.count; i++) {
        if (real) {
            double low = bounds & 1 ? map_get(&t[1], 0) : -largest;
            double high = bounds & 2 ? map_get(&t[2], 0) : largest;
            double x = map_get(&t[0], i), want = isnan(x) ? x : fmin(high, fmax(low, x));
            assert_true(isnan(x) ? isnan(map_get(&y, i)) : map_get(&y, i) == want);
        } else {
            map_int want = map_get_int(&t[0], i);
            if (bounds & 1 && map_get_int(&t[1], 0) > want)
                want = map_get_int(&t[1], 0);
            if (bounds & 2 && map_get_int(&t[2], 0) < want)
                want = map_get_int(&t[2], 0);
            assert_true(map_get_int(&y, i) == want);
        }
    }
    for (int k = 0; k < 3; k++)
        map_free(&t[k]);
    map_free(&y);
}

static void clips(void **state)
{
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++)
        for (int bounds = 0; bounds < 8 && map_types[type] != CM_BOOL; bounds++)
            check_clip(map_types[type], bounds & 3, bounds >> 2);
    /* Below opset 11 bounds are attributes. */
    for (int type = 0; type < MAP_TYPES; type++) {
        if (!map_is_float(map_types[type]))
            continue;
        struct map_tensor x = map_tensor(map_types[type], kit_shape(1, 300));
        map_fill(&x, &seed, 9);
        struct map_node node = {"Clip", 6, {MAP_F("min", -1), MAP_F("max", 2)}};
        struct map_tensor y = map_run(&node, &x, 1, x.dtype, x.shape);
        for (size_t i = 0; i < x.count; i++) {
            double v = map_get(&x, i), want = isnan(v) ? v : fmin(2, fmax(-1, v));
            assert_true(isnan(v) ? isnan(map_get(&y, i)) : map_get(&y, i) == want);
        }
        map_free(&x), map_free(&y);
    }
}

/* ---- casts ----------------------------------------------------------------------------------- */

static void casts(void **state)
{
    (void)state;
    for (int from = 0; from < MAP_TYPES; from++)
        for (int to = 0; to < MAP_TYPES; to++) {
            struct map_tensor x[2] = {map_tensor(map_types[from], kit_shape(2, 10, 10)),
                                      map_tensor(map_types[to], kit_shape(1, 3))};
            struct map_tensor want = map_tensor(map_types[to], x[0].shape);
            for (size_t i = 0; i < x[0].count; i++) { /* what every type can say */
                int v = map_types[from] == CM_BOOL ? i % 3 == 0 : (int)i;
                if (map_is_float(x[0].dtype))
                    map_put(&x[0], i, v);
                else
                    map_put_int(&x[0], i, v);
                if (map_is_float(want.dtype))
                    map_put(&want, i, v);
                else
                    map_put_int(&want, i, want.dtype == CM_BOOL ? v != 0 : v);
            }
            struct map_node cast = {
                "Cast", 19, {MAP_I("to", cm_dtype_to_onnx(want.dtype)), MAP_I("saturate", 1)}};
            struct map_tensor y = map_run(&cast, x, 1, want.dtype, x[0].shape);
            assert_memory_equal(y.data, want.data, y.count * cm_dtype_size(y.dtype));
            map_free(&y);
            y = map_run(&(struct map_node){"CastLike", 15, {{0}}}, x, 2, want.dtype, x[0].shape);
            assert_memory_equal(y.data, want.data, y.count * cm_dtype_size(y.dtype));
            map_free(&y), map_free(&want), map_free(&x[0]), map_free(&x[1]);
        }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refusals(void **state)
{
    static const char *const real_only[] = {"Acos", "Ceil", "Exp", "Gelu", "Mish", "Sqrt", "Tan"};
    struct map_tensor x[3] = {map_tensor(CM_FP32, kit_shape(1, 4)),
                              map_tensor(CM_FP64, KIT_SHAPE0()),
                              map_tensor(CM_FP32, kit_shape(1, 2))};
    struct map_tensor whole_x = map_tensor(CM_INT32, kit_shape(1, 4));
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(real_only); i++)
        map_refuse(&(struct map_node){real_only[i], 20, {{0}}}, &whole_x, 1, CM_INVALID,
                   "input 0 has type INT32, must be a floating-point type");
    map_refuse(&(struct map_node){"BitwiseNot", 18, {{0}}}, x, 1, CM_INVALID, "an integer type");
    map_refuse(&(struct map_node){"BitwiseNot", 17, {{0}}}, &whole_x, 1, CM_UNSUPPORTED,
               "opset 17");
    map_refuse(&(struct map_node){"Gelu", 20, {MAP_S("approximate", "quick")}}, x, 1, CM_INVALID,
               "approximate must be none or tanh");
    map_refuse(&(struct map_node){"Celu", 12, {MAP_F("alpha", 0)}}, x, 1, CM_INVALID,
               "alpha must not be 0");
    map_refuse(&(struct map_node){"Clip", 13, {{0}}}, x, 2, CM_INVALID,
               "operands have types FP32 and FP64");
    map_refuse(&(struct map_node){"Clip", 9, {{0}}}, &whole_x, 1, CM_INVALID, "floating-point");
    map_free(&x[1]);
    map_refuse(&(struct map_node){"Clip", 13, {{0}}}, x, 3, CM_INVALID, "a bound must be one");
    map_refuse(&(struct map_node){"Cast", 13, {MAP_I("to", 8)}}, x, 1, CM_UNSUPPORTED, "to = 8");
    map_refuse(&(struct map_node){"Cast", 13, {MAP_I("to", -1)}}, x, 1, CM_UNSUPPORTED, "to = -1");
    map_refuse(&(struct map_node){"Cast", 13, {{0}}}, x, 1, CM_UNSUPPORTED, "to = 0");
    map_refuse(&(struct map_node){"Elu", 6, {MAP_F("beta", 1)}}, x, 1, CM_UNSUPPORTED, "beta");
    map_free(&x[0]), map_free(&x[2]), map_free(&whole_x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_functions),
        cmocka_unit_test(places_and_threads),
        cmocka_unit_test(integer_functions),
        cmocka_unit_test(float_tests),
        cmocka_unit_test(not_and_identity),
        cmocka_unit_test(clips),
        cmocka_unit_test(casts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
