/* Random operators: that their numbers have the distribution they should, depend on seed and index
 * and on nothing else, and come in the right type and shape. Dropout in all its forms. EyeLike. */
#include "common/check.h"
#include "gpu-worker/cpu/random.h"
#include "tests/engine/map_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 100000 };

/* The published answers of Philox4x32-10 (the known-answer tests of Random123). */
static void philox(void **state)
{
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        k_philox(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
    assert_true(k_random_key(true, 1) != k_random_key(false, 1));
    assert_true(k_random_key(true, 1) != k_random_key(true, 2));
}

static double value(const struct map_tensor *t, size_t i)
{
    return map_is_float(t->dtype) ? map_get(t, i) : (double)map_get_int(t, i);
}

/* Mean and variance within five deviations of what n independent draws give; neighbours do not
 * follow each other. fourth: the fourth central moment. */
static void check_moments(const struct map_tensor *t, double mean, double variance, double fourth)
{
    double sum = 0, squares = 0, pairs = 0, n = (double)t->count;
    for (size_t i = 0; i < t->count; i++) {
        double d = value(t, i) - mean;
        sum += d;
        squares += d * d;
        pairs += i ? d * (value(t, i - 1) - mean) : 0;
    }
    double rough = mean * map_epsilon(t->dtype) + 1e-12; /* what rounding may add up to */
    if (fabs(sum / n) > 5 * sqrt(variance / n) + fabs(rough))
        fail_msg("the mean is off by %g", sum / n);
    if (fabs(squares / n - variance) >
        5 * sqrt((fourth - variance * variance) / n) + variance / 500)
        fail_msg("the variance is %g, not %g", squares / n, variance);
    if (fabs(pairs / n) > 5 * variance / sqrt(n) + fabs(rough))
        fail_msg("neighbours correlate: %g", pairs / n / variance);
}

static void same_bytes(const struct map_tensor *a, const struct map_tensor *b, bool want)
{
    bool same = memcmp(a->data, b->data, a->count * cm_dtype_size(a->dtype)) == 0;
    assert_int_equal(same, want);
}

/* ---- RandomNormal, RandomUniform ------------------------------------------------------------- */

static int onnx(enum cm_dtype dtype)
{
    return cm_dtype_to_onnx(dtype);
}

static void uniform(void **state)
{
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++) {
        if (!map_is_float(map_types[type]))
            continue;
        struct map_node node = {"RandomUniform",
                                13,
                                {MAP_I("dtype", onnx(map_types[type])),
                                 {"shape", 'I', MANY, 0, NULL},
                                 MAP_F("seed", 3)}};
        struct map_tensor y = map_run(&node, NULL, 0, map_types[type], kit_shape(1, MANY));
        double low = 1, high = 0;
        for (size_t i = 0; i < y.count; i++) {
            low = fmin(low, map_get(&y, i));
            high = fmax(high, map_get(&y, i));
        }
        assert_true(low >= 0 && low < 1e-2 && high < 1 && high > 0.99);
        /* The small types' steps end before 1, which takes half a step off the mean. */
        double step = type == 10 ? 0x1p-8 : type == 9 ? 0x1p-11 : 0;
        check_moments(&y, 0.5 - step / 2, 1.0 / 12, 1.0 / 80);
        map_free(&y);
    }
}

static void normal(void **state)
{
    struct map_tensor like = map_tensor(CM_INT8, kit_shape(2, MANY / 100, 100));
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++) {
        if (!map_is_float(map_types[type]))
            continue;
        struct map_node node = {"RandomNormalLike",
                                13,
                                {MAP_I("dtype", onnx(map_types[type])), MAP_F("mean", 0.5f),
                                 MAP_F("scale", 2), MAP_F("seed", 8)}};
        struct map_tensor y = map_run(&node, &like, 1, map_types[type], like.shape);
        check_moments(&y, 0.5, 4, 3 * 16);
        size_t beyond = 0; /* two deviations: 4.55 % */
        for (size_t i = 0; i < y.count; i++)
            beyond += fabs(map_get(&y, i) - 0.5) > 4;
        assert_true(fabs((double)beyond / MANY - 0.0455) < (type == 10 ? 0.008 : 0.004));
        map_free(&y);
    }
    map_free(&like);
}

/* Equal seeds are equal numbers, wherever; without one the node's place decides. */
static void seeds(void **state)
{
    struct map_tensor like = map_tensor(CM_FP32, kit_shape(1, 500));
    struct map_node ones[] = {{"RandomUniformLike", 13, {MAP_F("seed", 1)}},
                              {"RandomUniformLike", 13, {MAP_F("seed", 1)}},
                              {"RandomUniformLike", 13, {MAP_F("seed", 2)}},
                              {"RandomUniformLike", 13, {{0}}},
                              {"RandomUniformLike", 13, {{0}}}};
    struct map_tensor y[5];
    (void)state;
    for (int i = 0; i < 5; i++)
        y[i] = map_run(&ones[i], &like, 1, CM_FP32, like.shape);
    same_bytes(&y[0], &y[1], true);
    same_bytes(&y[0], &y[2], false);
    same_bytes(&y[0], &y[3], false);
    same_bytes(&y[3], &y[4], true);
    for (int i = 0; i < 5; i++)
        map_free(&y[i]);
    /* Two nodes of one model: they are not one common subexpression, nor are their numbers. */
    struct kit_model *m = kit_model(13);
    struct kit_loaded l;
    const void *in[] = {like.data};
    void *out[3];
    kit_input(m, "x", CM_FP32, like.shape);
    for (int i = 0; i < 3; i++) {
        kit_node(m, "RandomNormalLike", "x", i == 0 ? "a" : i == 1 ? "b" : "c");
        kit_output(m, i == 0 ? "a" : i == 1 ? "b" : "c", CM_FP32, like.shape);
    }
    kit_load_model(&l, m, 1, NULL);
    kit_run(&l, &like.shape, in, out, NULL);
    assert_memory_not_equal(out[0], out[1], 2000);
    assert_memory_not_equal(out[1], out[2], 2000);
    for (int i = 0; i < 3; i++)
        free(out[i]);
    kit_unload(&l);
    kit_free(m);
    map_free(&like);
}

static void empty_and_refused(void **state)
{
    struct map_node shapes[] = {
        {"RandomNormal", 13, {{0}}},
        {"RandomNormal", 13, {{"shape", 'I', -1, 0, NULL}}},
        {"RandomNormal", 13, {{"shape", 'I', 2, 0, NULL}, MAP_I("dtype", 6)}},
        {"RandomNormal", 13, {{"shape", 'I', 2, 0, NULL}, MAP_I("dtype", 8)}},
        {"RandomUniformLike", 13, {{0}}},
        {"Bernoulli", 15, {{0}}},
        {"Multinomial", 13, {{0}}}};
    const char *const why[] = {"shape is missing",          "shape -1 is not between",
                               "INT32, must be a floating", "dtype = 8 is not supported",
                               "INT64, must be a floating", "INT64, must be a floating",
                               "INT64, must be a floating"};
    struct map_tensor x = map_tensor(CM_INT64, kit_shape(2, 2, 2));
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(shapes); i++)
        map_refuse(&shapes[i], &x, i < 4 ? 0 : 1, i == 3 ? CM_UNSUPPORTED : CM_INVALID, why[i]);
    map_free(&x);
    struct map_tensor none = map_tensor(CM_FP64, kit_shape(2, 0, 4));
    struct map_tensor y =
        map_run(&(struct map_node){"RandomNormalLike", 13, {{0}}}, &none, 1, CM_FP64, none.shape);
    map_free(&y);
    y = map_run(&(struct map_node){"Multinomial", 13, {{0}}}, &none, 1, CM_INT32,
                kit_shape(2, 0, 1));
    map_free(&y), map_free(&none);
}

/* ---- Bernoulli, Multinomial ------------------------------------------------------------------ */

static void bernoulli(void **state)
{
    (void)state;
    for (int from = 0; from < MAP_TYPES; from++)
        for (int to = 0; to < MAP_TYPES; to++) {
            if (!map_is_float(map_types[from]))
                continue;
            static const double shares[] = {0, 0.125, 0.5, 0.75, 1};
            struct map_node node = {
                "Bernoulli", 15, {MAP_I("dtype", onnx(map_types[to])), MAP_F("seed", 5)}};
            struct map_tensor p = map_tensor(map_types[from], kit_shape(2, 5, MANY / 5));
            size_t ones[5] = {0};
            for (size_t i = 0; i < p.count; i++)
                map_put(&p, i, shares[i / (MANY / 5)]);
            struct map_tensor y = map_run(&node, &p, 1, map_types[to], p.shape);
            for (size_t i = 0; i < y.count; i++) {
                assert_true(value(&y, i) == 0 || value(&y, i) == 1);
                ones[i / (MANY / 5)] += value(&y, i) == 1;
            }
            for (int k = 0; k < 5; k++) {
                double n = MANY / 5, s = shares[k];
                assert_true(fabs((double)ones[k] - n * s) <= 5 * sqrt(n * s * (1 - s)));
            }
            map_free(&p), map_free(&y);
        }
}

static void multinomial(void **state)
{
    static const double shares[2][4] = {{0.1, 0.2, 0.3, 0.4}, {0.7, 0, 0.05, 0.25}};
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct map_tensor x = map_tensor(wide ? CM_FP64 : CM_FP32, kit_shape(2, 2, 4));
        struct map_node node = {"Multinomial",
                                13,
                                {MAP_I("dtype", onnx(wide ? CM_INT64 : CM_INT32)),
                                 MAP_I("sample_size", MANY), MAP_F("seed", 1)}};
        for (size_t i = 0; i < 8; i++) /* logarithms of shares times anything */
            map_put(&x, i, log(shares[i / 4][i % 4]) + 3);
        struct map_tensor y =
            map_run(&node, &x, 1, wide ? CM_INT64 : CM_INT32, kit_shape(2, 2, MANY));
        double counts[2][4] = {{0}};
        for (size_t i = 0; i < y.count; i++) {
            assert_in_range((uint64_t)map_get_int(&y, i), 0, 3);
            counts[i / MANY][map_get_int(&y, i)]++;
        }
        for (int i = 0; i < 8; i++) {
            double s = shares[i / 4][i % 4];
            assert_true(fabs(counts[i / 4][i % 4] - MANY * s) <= 5 * sqrt(MANY * s * (1 - s)));
        }
        map_free(&x), map_free(&y);
    }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* Both outputs of a Dropout; mask_type CM_DTYPE_NONE: the mask is not wanted. */
static void run_dropout(int opset, const struct map_attr *attrs, const struct map_tensor *x,
                        const char *inputs, const double *ratio, const bool *training,
                        bool constant, enum cm_dtype mask_type, unsigned threads, void *out[2])
{
    struct kit_model *m = kit_model(opset);
    struct kit_loaded l;
    struct map_tensor r = map_tensor(x->dtype, KIT_SHAPE0());
    struct cm_shape shapes[3] = {x->shape};
    const void *in[3] = {x->data};
    int n = 1;
    kit_input(m, "x", x->dtype, x->shape);
    if (ratio) {
        map_put(&r, 0, *ratio);
        in[n++] = r.data;
        if (constant)
            kit_const(m, "r", r.dtype, r.shape, r.data);
        else
            kit_input(m, "r", r.dtype, r.shape);
    }
    if (training) {
        in[n++] = training;
        if (constant)
            kit_const(m, "t", CM_BOOL, KIT_SHAPE0(), training);
        else
            kit_input(m, "t", CM_BOOL, KIT_SHAPE0());
    }
    kit_node(m, "Dropout", inputs, mask_type ? "y,mask" : "y");
    for (; attrs && attrs->type; attrs++) {
        if (attrs->type == 'i')
            kit_attr_i(m, attrs->name, attrs->i);
        else
            kit_attr_f(m, attrs->name, attrs->f);
    }
    kit_output(m, "y", x->dtype, x->shape);
    if (mask_type)
        kit_output(m, "mask", mask_type, x->shape);
    kit_load_model(&l, m, threads, NULL);
    kit_run(&l, shapes, in, out, NULL);
    kit_unload(&l);
    kit_free(m);
    map_free(&r);
}

/* What is kept is scaled, the rest is 0, and the mask says which. */
static void check_dropped(const struct map_tensor *x, void *const out[2], double ratio)
{
    struct map_tensor y = {x->dtype, x->shape, x->count, out[0]};
    struct map_tensor want = map_tensor(x->dtype, kit_shape(1, 1));
    double dropped = 0;
    for (size_t i = 0; i < x->count; i++) {
        bool kept = ((const uint8_t *)out[1])[i];
        map_put(&want, 0, kept ? map_get(x, i) * (1 / (1 - ratio)) : 0);
        assert_true(map_get(&y, i) == map_get(&want, 0));
        assert_true(((const uint8_t *)out[1])[i] <= 1);
        dropped += !kept;
    }
    double n = (double)x->count;
    assert_true(fabs(dropped - n * ratio) <= 5 * sqrt(n * ratio * (1 - ratio)));
    map_free(&want);
}

static void training(void **state)
{
    static const double ratios[] = {0, 0.25, 0.5, 0.875};
    const struct map_attr seed[] = {MAP_I("seed", 17), {0}};
    bool yes = true;
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++) {
        if (!map_is_float(map_types[type]))
            continue;
        struct map_tensor x = map_tensor(map_types[type], kit_shape(2, MANY / 10, 10));
        size_t bytes = x.count * cm_dtype_size(x.dtype);
        for (size_t i = 0; i < x.count; i++)
            map_put(&x, i, 1 + (double)(i % 100) / 64);
        for (int k = 0; k < 4; k++) {
            void *out[2], *again[2], *other[2];
            run_dropout(13, seed, &x, "x,r,t", &ratios[k], &yes, false, CM_BOOL, 1, out);
            run_dropout(13, seed, &x, "x,r,t", &ratios[k], &yes, true, CM_BOOL, 2, again);
            run_dropout(13, NULL, &x, "x,r,t", &ratios[k], &yes, true, CM_DTYPE_NONE, 1, other);
            check_dropped(&x, out, ratios[k]);
            assert_memory_equal(out[0], again[0], bytes);
            assert_memory_equal(out[1], again[1], x.count);
            if (k == 0)
                assert_memory_equal(out[0], x.data, bytes);
            else
                assert_memory_not_equal(out[0], other[0], bytes);
            free(out[0]), free(out[1]), free(again[0]), free(again[1]), free(other[0]);
        }
        map_free(&x);
    }
}

/* Without training, and in the interfaces before opset 12. */
static void dropout_forms(void **state)
{
    struct map_tensor x = map_tensor(CM_FP32, kit_shape(2, 100, 100));
    const struct map_attr test[] = {MAP_I("is_test", 1), MAP_F("ratio", 0.5f), {0}};
    const struct map_attr ratio[] = {MAP_F("ratio", 0.25f), {0}};
    const double big = 7;
    bool no = false, yes = true;
    uint64_t random = 1;
    void *out[2];
    (void)state;
    for (size_t i = 0; i < x.count; i++)
        map_put(&x, i, kit_float(&random));
    for (int form = 0; form < 6; form++) {
        enum cm_dtype mask = form == 1 || form == 4 ? CM_FP32 : form == 5 ? CM_DTYPE_NONE : CM_BOOL;
        if (form < 2)
            run_dropout(form ? 7 : 10, ratio, &x, "x", NULL, NULL, false, mask, 1, out);
        else if (form == 2)
            run_dropout(12, NULL, &x, "x", NULL, NULL, false, mask, 1, out);
        else if (form == 3) /* the ratio does not matter, not even one that is none */
            run_dropout(13, NULL, &x, "x,r,t", &big, &no, false, mask, 1, out);
        else
            run_dropout(6, test, &x, "x", NULL, NULL, false, mask, 1, out);
        assert_memory_equal(out[0], x.data, x.count * sizeof(float));
        for (size_t i = 0; i < x.count && mask; i++)
            assert_true(mask == CM_FP32 ? ((float *)out[1])[i] == 1 : ((uint8_t *)out[1])[i] == 1);
        free(out[0]);
        if (mask)
            free(out[1]);
    }
    /* Opset 6 trains unless it is told not to; its mask has x's type. */
    run_dropout(6, ratio, &x, "x", NULL, NULL, false, CM_FP32, 1, out);
    for (size_t i = 0; i < x.count; i++)
        ((uint8_t *)out[1])[i] = ((float *)out[1])[i] != 0;
    check_dropped(&x, out, 0.25);
    free(out[0]), free(out[1]);
    /* The ratio is 0.5 where it is left out. */
    run_dropout(13, NULL, &x, "x,,t", NULL, &yes, false, CM_BOOL, 1, out);
    check_dropped(&x, out, 0.5);
    free(out[0]), free(out[1]);
    map_free(&x);
}

static struct kit_model *dropout_model(void)
{
    struct kit_model *m = kit_model(15);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    return m;
}

static void dropout_refusals(void **state)
{
    static const float bad[] = {1.0f, -0.5f, NAN, 2.0f};
    const float x[4] = {0};
    const uint8_t yes = 1;
    struct cm_shape shapes[] = {kit_shape(2, 1, 4), KIT_SHAPE0()};
    struct kit_loaded l;
    struct kit_model *m = dropout_model();
    (void)state;
    kit_input(m, "r", CM_FP32, KIT_SHAPE0());
    kit_const(m, "t", CM_BOOL, KIT_SHAPE0(), &yes);
    kit_node(m, "Dropout", "x,r,t", "y");
    kit_load_model(&l, m, 1, NULL);
    for (size_t i = 0; i < CM_COUNT_OF(bad); i++)
        kit_run_refused(&l, shapes, (const void *[]){x, &bad[i]}, CM_INVALID, "Dropout",
                        "must be in [0, 1)");
    kit_unload(&l);
    kit_free(m);
    struct map_tensor t[3] = {map_tensor(CM_FP32, kit_shape(1, 4)),
                              map_tensor(CM_FP32, kit_shape(1, 2)),
                              map_tensor(CM_INT32, KIT_SHAPE0())};
    struct map_node node = {"Dropout", 13, {{0}}};
    map_refuse(&node, t, 2, CM_INVALID, "input 1 must be one number");
    t[1].dtype = CM_DTYPE_NONE;
    map_refuse(&node, t, 3, CM_INVALID, "input 2 has type INT32, must be BOOL");
    map_refuse(&node, t + 2, 1, CM_INVALID, "must be a floating-point type");
    for (int i = 0; i < 3; i++)
        map_free(&t[i]);
}

/* A row's numbers depend on its place, so rows of different callers never share a run; inference
 * leaves rows alone. */
static void rows(void **state)
{
    (void)state;
    for (int form = 0; form < 5; form++) {
        struct kit_model *m = dropout_model();
        struct kit_loaded l;
        const uint8_t trains = form == 1;
        kit_const(m, "t", CM_BOOL, KIT_SHAPE0(), &trains);
        if (form < 3)
            kit_node(m, "Dropout", form < 2 ? "x,,t" : "x", "y");
        else
            kit_node(m, form == 3 ? "Bernoulli" : "RandomUniformLike", "x", "y");
        kit_load_model(&l, m, 1, NULL);
        assert_int_equal(wk_model_signature(l.model)->batchable, form == 0 || form == 2);
        kit_unload(&l);
        kit_free(m);
    }
}

/* ---- EyeLike --------------------------------------------------------------------------------- */

static void eyes(void **state)
{
    static const int64_t diagonals[] = {0, 1, -2, 40, INT64_MAX, INT64_MIN};
    (void)state;
    for (int from = 0; from < MAP_TYPES; from++)
        for (int to = -1; to < MAP_TYPES; to++) {
            enum cm_dtype dtype = map_types[to < 0 ? from : to];
            for (size_t d = 0; d < CM_COUNT_OF(diagonals); d++) {
                struct map_tensor x = map_tensor(map_types[from], kit_shape(2, 5, 7));
                struct map_node node = {
                    "EyeLike", 9, {MAP_I("k", diagonals[d]), MAP_I("dtype", onnx(dtype))}};
                if (to < 0)
                    node.attrs[1] = (struct map_attr){0};
                struct map_tensor y = map_run(&node, &x, 1, dtype, x.shape);
                for (size_t i = 0; i < 35; i++)
                    assert_true(value(&y, i) ==
                                ((map_int)(i % 7) - (map_int)(i / 7) == (map_int)diagonals[d]));
                map_free(&x), map_free(&y);
            }
        }
    struct map_tensor x = map_tensor(CM_FP32, kit_shape(1, 4));
    map_refuse(&(struct map_node){"EyeLike", 9, {{0}}}, &x, 1, CM_INVALID,
               "1 dimensions, must have 2");
    map_refuse(&(struct map_node){"EyeLike", 9, {MAP_I("dtype", 8)}}, &x, 1, CM_UNSUPPORTED,
               "dtype = 8");
    map_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox),
        cmocka_unit_test(uniform),
        cmocka_unit_test(normal),
        cmocka_unit_test(seeds),
        cmocka_unit_test(empty_and_refused),
        cmocka_unit_test(bernoulli),
        cmocka_unit_test(multinomial),
        cmocka_unit_test(training),
        cmocka_unit_test(dropout_forms),
        cmocka_unit_test(dropout_refusals),
        cmocka_unit_test(rows),
        cmocka_unit_test(eyes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
