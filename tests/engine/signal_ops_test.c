/* DFT, STFT, window functions and MelWeightMatrix against their definitions as plain sums in long
 * double. On every instruction set and on one and two threads. */
#include "tests/engine/window_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};

static void near(const struct map_tensor *y, size_t i, long double want, double scale)
{
    double got = map_get(y, i), last = map_epsilon(y->dtype);
    if (!(fabs(got - (double)want) <=
          last * fabs((double)want) * 1.001 + 1e-13 * scale + (y->dtype == CM_FP16 ? 0x1p-25 : 0)))
        fail_msg("%s element %zu is %.17g, wanted %.17Lg", cm_dtype_name(y->dtype), i, got, want);
}

/* Number k of the transform of n numbers, of which the first `taken` are at `get`. */
struct line {
    const struct map_tensor *x, *window;
    size_t first, stride, parts, taken, n;
};

/* Cosines and sines of the n angles of a circle. */
static const long double (*circle(size_t n))[2]
{
    static long double table[4096][2];
    static size_t filled;
    assert_true(n <= 4096);
    for (size_t i = 0; i < n && filled != n; i++) {
        table[i][0] = cosl(2 * M_PIl * (long double)i / (long double)n);
        table[i][1] = sinl(2 * M_PIl * (long double)i / (long double)n);
    }
    filled = n;
    return (const long double(*)[2])table;
}

static void bin(const struct line *l, size_t k, bool inverse, long double ret[2])
{
    const long double(*angles)[2] = circle(l->n);
    ret[0] = ret[1] = 0;
    for (size_t j = 0; j < l->taken; j++) {
        const long double *angle = angles[j * k % l->n];
        size_t at = (l->first + j * l->stride) * l->parts;
        long double re = map_get(l->x, at), im = l->parts > 1 ? map_get(l->x, at + 1) : 0;
        long double w = l->window ? map_get(l->window, j) : 1;
        long double c = angle[0], s = inverse ? angle[1] : -angle[1];
        ret[0] += w * (re * c - im * s);
        ret[1] += w * (re * s + im * c);
    }
    for (int i = 0; i < 2 && inverse; i++)
        ret[i] /= (long double)l->n;
}

/* ---- DFT ------------------------------------------------------------------------------------- */

static void transform(int round, int samples, int length)
{
    enum cm_dtype dtype = floats[round % 4];
    int axis = round % 3, parts = 1 + round % 2, outer = 1, inner = 1;
    bool inverse = round % 5 == 0, onesided = parts == 1 && !inverse && round % 4 < 2;
    bool late = round % 2; /* opset 20: axis is an input */
    struct cm_shape shape = {4, {pick(1, 3), pick(1, 3), pick(1, 3), parts}};
    shape.dims[axis] = samples;
    for (int d = 0; d < 3; d++)
        *(d < axis ? &outer : d > axis ? &inner : &(int){0}) *= (int)shape.dims[d];
    int64_t given = axis - (round % 4 < 2 ? 4 : 0), wanted = length;
    struct operand ops[3] = {{"x", random_tensor(dtype, shape), false},
                             {"n", ints_of(CM_INT64, KIT_SHAPE0(), &wanted), true},
                             {"a", ints_of(CM_INT64, KIT_SHAPE0(), &given), true}};
    int bins = onesided ? length / 2 + 1 : length;
    shape.dims[axis] = bins;
    shape.dims[3] = 2;
    struct map_tensor y = map_tensor(dtype, shape);
    struct kit_model *m = kit_model(late ? 20 : 17);
    kit_node(m, "DFT", late ? "x,n,a" : "x,n", "y");
    if (!late)
        kit_attr_i(m, "axis", given);
    kit_attr_i(m, "inverse", inverse);
    kit_attr_i(m, "onesided", onesided);
    window_run(m, ops, late ? 3 : 2, &y, 1);
    for (size_t o = 0; o < (size_t)outer; o++)
        for (size_t k = 0; k < (size_t)bins; k++)
            for (size_t i = 0; i < (size_t)inner; i++) {
                struct line l = {
                    &ops[0].t,     NULL,          o * (size_t)(samples * inner) + i,
                    (size_t)inner, (size_t)parts, (size_t)(samples < length ? samples : length),
                    (size_t)length};
                long double want[2];
                size_t at = ((o * (size_t)bins + k) * (size_t)inner + i) * 2;
                bin(&l, k, inverse, want);
                near(&y, at, want[0], length);
                near(&y, at + 1, want[1], length);
            }
    map_free(&y);
    window_free(ops, 3);
}

static void transforms(void **state)
{
    static const int lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                  16, 17, 24, 25, 27, 30, 31, 32, 49, 60, 64, 77, 121};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int k = 0; k < 4; k++) {
            int samples = k < 2 ? lengths[i] : pick(1, 2 * lengths[i]);
            transform((int)i * 7 + k * 5, samples, lengths[i]);
        }
    transform(0, 257, 257);
    transform(1, 1000, 1024);
    transform(4, 2500, 2500); /* its roots are not kept */
}

/* Without dft_length and axis: the whole axis, the first or (opset 20) the last of the signal. */
static void transform_defaults(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct operand ops[1] = {{"x", random_tensor(CM_FP32, kit_shape(4, 1, 6, 10, 1)), false}};
        struct map_tensor y = map_tensor(CM_FP32, kit_shape(4, 1, 6, 10, 2));
        struct kit_model *m = kit_model(late ? 20 : 17);
        kit_node(m, "DFT", "x", "y");
        window_run(m, ops, 1, &y, 1);
        for (size_t i = 0; i < 60; i++) {
            size_t row = i / 10, column = i % 10;
            struct line l = {&ops[0].t,      NULL, late ? row * 10 : column,
                             late ? 1 : 10,  1,    late ? 10u : 6u,
                             late ? 10u : 6u};
            long double want[2];
            bin(&l, late ? column : row, false, want);
            near(&y, 2 * i, want[0], 10);
            near(&y, 2 * i + 1, want[1], 10);
        }
        map_free(&y);
        window_free(ops, 1);
    }
}

/* ---- STFT ------------------------------------------------------------------------------------ */

static void short_transforms(void **state)
{
    (void)state;
    for (int round = 0; round < 32; round++) {
        enum cm_dtype dtype = floats[round % 4];
        int frame = pick(1, 40), step = pick(1, 20), parts = 1 + round / 4 % 2, batch = pick(1, 3);
        int samples = frame + pick(0, 100), frames = (samples - frame) / step + 1;
        bool windowed = round % 3 != 0, onesided = parts == 1 && round % 5 != 0;
        bool sized = !windowed || round % 2;
        int bins = onesided ? frame / 2 + 1 : frame;
        int64_t step64 = step, frame64 = frame;
        struct operand ops[4] = {
            {"x", random_tensor(dtype, kit_shape(3, batch, samples, parts)), false},
            {"s", ints_of(CM_INT64, KIT_SHAPE0(), &step64), true},
            {"f", ints_of(CM_INT64, KIT_SHAPE0(), &frame64), true},
            {"w", random_tensor(dtype, kit_shape(1, frame)), round % 2}};
        struct map_tensor y = map_tensor(dtype, kit_shape(4, batch, frames, bins, 2));
        struct kit_model *m = kit_model(17);
        kit_node(m, "STFT", windowed ? (sized ? "x,s,w,f" : "x,s,w") : "x,s,,f", "y");
        kit_attr_i(m, "onesided", onesided);
        if (!sized) {
            map_free(&ops[2].t);
            ops[2] = ops[3];
            ops[3].t = (struct map_tensor){0};
        }
        window_run(m, ops, windowed && sized ? 4 : 3, &y, 1);
        const struct map_tensor *window = windowed ? &ops[sized ? 3 : 2].t : NULL;
        for (size_t i = 0; i < y.count / 2; i++) {
            size_t k = i % (size_t)bins, f = i / (size_t)bins;
            size_t first = f / (size_t)frames * (size_t)samples + f % (size_t)frames * (size_t)step;
            struct line l = {&ops[0].t,     window,        first,        1,
                             (size_t)parts, (size_t)frame, (size_t)frame};
            long double want[2];
            bin(&l, k, false, want);
            near(&y, 2 * i, want[0], frame);
            near(&y, 2 * i + 1, want[1], frame);
        }
        map_free(&y);
        window_free(ops, 4);
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void window_functions(void **state)
{
    static const struct {
        const char *op;
        long double a0, a1, a2;
    } kinds[] = {{"HannWindow", 0.5L, 0.5L, 0},
                 {"HammingWindow", 25.0L / 46, 21.0L / 46, 0},
                 {"BlackmanWindow", 0.42L, 0.5L, 0.08L}};
    (void)state;
    for (int round = 0; round < 48; round++) {
        enum cm_dtype dtype = floats[round % 4];
        int64_t size = round < 6 ? 1 : pick(2, 700), periodic = round / 4 % 2;
        int kind = round % 3;
        struct operand ops[1] = {
            {"n", ints_of(round % 2 ? CM_INT32 : CM_INT64, KIT_SHAPE0(), &size), true}};
        struct map_tensor y = map_tensor(dtype, kit_shape(1, (int)size));
        struct kit_model *m = kit_model(17);
        kit_node(m, kinds[kind].op, "n", "y");
        kit_attr_i(m, "periodic", periodic);
        kit_attr_i(m, "output_datatype", cm_dtype_to_onnx(dtype));
        window_run(m, ops, 1, &y, 1);
        for (size_t i = 0; i < y.count; i++) {
            long double turn = 2 * M_PIl * (long double)i / (long double)(size - !periodic);
            long double want =
                kinds[kind].a0 - kinds[kind].a1 * cosl(turn) + kinds[kind].a2 * cosl(2 * turn);
            near(&y, i, size == 1 && !periodic ? 1 : want, 0.01);
        }
        map_free(&y);
        window_free(ops, 1);
    }
}

static void integer_windows(void **state)
{
    const int64_t size = 9, want[] = {0, 0, 0, 0, 1, 0, 0, 0, 0};
    (void)state;
    struct operand ops[1] = {{"n", ints_of(CM_INT64, KIT_SHAPE0(), &size), true}};
    struct map_tensor y = map_tensor(CM_INT8, kit_shape(1, 9));
    struct kit_model *m = kit_model(17);
    kit_node(m, "HannWindow", "n", "y");
    kit_attr_i(m, "periodic", 0);
    kit_attr_i(m, "output_datatype", 3);
    window_run(m, ops, 1, &y, 1);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(map_get_int(&y, i), want[i]);
    map_free(&y);
    window_free(ops, 1);
}

static struct kit_model *mel_model(struct operand ops[5], const int64_t ints[3], const double hz[2],
                                   enum cm_dtype dtype)
{
    static const char *const names[] = {"m", "n", "r", "l", "h"};
    struct kit_model *m = kit_model(17);
    for (int k = 0; k < 5; k++)
        ops[k] = (struct operand){names[k],
                                  k < 3 ? ints_of(CM_INT64, KIT_SHAPE0(), &ints[k])
                                        : numbers_of(CM_FP32, KIT_SHAPE0(), &hz[k - 3]),
                                  true};
    kit_node(m, "MelWeightMatrix", "m,n,r,l,h", "y");
    kit_attr_i(m, "output_datatype", cm_dtype_to_onnx(dtype));
    return m;
}

static void mel_weights(void **state)
{
    const int64_t ints[] = {20, 512, 16000};
    const double hz[] = {125, 7500};
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct operand ops[5];
        struct map_tensor y = map_tensor(floats[round], kit_shape(2, 257, 20));
        long double low = 2595 * log10l(1 + 125.0L / 700), high = 2595 * log10l(1 + 7500.0L / 700);
        int edges[22];
        for (int i = 0; i < 22; i++) {
            long double mel = low + (high - low) / 22 * i;
            edges[i] = (int)(513 * 700 * (powl(10, mel / 2595) - 1) / 16000);
        }
        window_run(mel_model(ops, ints, hz, floats[round]), ops, 5, &y, 1);
        for (int j = 0; j < 257; j++)
            for (int i = 0; i < 20; i++) {
                int a = edges[i], b = edges[i + 1], c = edges[i + 2];
                double want = 0;
                if (j >= a && j < b)
                    want = (double)(j - a) / (b - a);
                else if (j >= b && (j < c || j == b))
                    want = c == b ? 1 : (double)(c - j) / (c - b);
                near(&y, (size_t)(j * 20 + i), want, 0);
            }
        map_free(&y);
        window_free(ops, 5);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused_transforms(void **state)
{
    static const struct {
        const char *op;
        int opset, shape[4], integers[2]; /* shape[0] is the rank; inputs 1 and 3, or 1 and 2 */
        const char *attr;
        int value;
        enum cm_err code;
        const char *part;
    } cases[] = {
        {"DFT", 17, {3, 2, 8, 3}, {8}, NULL, 0, CM_INVALID, "the last dimension is 3"},
        {"DFT", 17, {3, 2, 8, 2}, {8}, "onesided", 1, CM_INVALID, "the input is complex"},
        {"DFT", 17, {3, 2, 8, 1}, {0}, NULL, 0, CM_INVALID, "dft_length is 0"},
        {"DFT", 17, {3, 2, 8, 1}, {1 << 21}, NULL, 0, CM_LIMIT, "dft_length is 2097152"},
        {"DFT", 17, {3, 2, 8, 1}, {8}, "axis", 2, CM_INVALID, "axis 2 of 3 dimensions"},
        {"DFT", 17, {3, 2, 8, 1}, {8}, "axis", -4, CM_INVALID, "axis -4 of 3 dimensions"},
        {"DFT", 20, {3, 2, 8, 1}, {8, 5}, NULL, 0, CM_INVALID, "axis 5 of 3 dimensions"},
        {"STFT", 17, {3, 2, 8, 1}, {0, 4}, NULL, 0, CM_INVALID, "frame_step is 0"},
        {"STFT", 17, {3, 2, 8, 1}, {1, 9}, NULL, 0, CM_INVALID, "the signal has 8 samples"},
        {"STFT", 17, {3, 2, 8, 2}, {1, 4}, NULL, 0, CM_INVALID, "the input is complex"},
        {"STFT", 17, {2, 2, 8}, {1, 4}, NULL, 0, CM_INVALID, "its signal has 2 dimensions"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool stft = cases[i].op[0] == 'S', late = cases[i].opset == 20;
        struct cm_shape shape = {(uint8_t)cases[i].shape[0], {0}};
        int64_t first = cases[i].integers[0], second = cases[i].integers[1];
        for (int d = 0; d < shape.rank; d++)
            shape.dims[d] = cases[i].shape[1 + d];
        struct operand ops[3] = {{"x", random_tensor(CM_FP32, shape), false},
                                 {"s", ints_of(CM_INT64, KIT_SHAPE0(), &first), true},
                                 {"f", ints_of(CM_INT64, KIT_SHAPE0(), &second), true}};
        struct kit_model *m = kit_model(cases[i].opset);
        kit_node(m, cases[i].op, stft ? "x,s,,f" : late ? "x,s,f" : "x,s", "y");
        if (cases[i].attr)
            kit_attr_i(m, cases[i].attr, cases[i].value);
        window_refuse(m, ops, stft || late ? 3 : 2, cases[i].code, cases[i].part);
        if (!stft && !late)
            map_free(&ops[2].t);
    }
}

static void refused_rest(void **state)
{
    static const int64_t ints[][3] = {{0, 16, 8192}, {8, 0, 8192}, {8, 16, 0}};
    static const char *const parts[] = {"num_mel_bins is 0", "dft_length is 0", "sample_rate is 0"};
    const double hz[] = {0, 4096}, too_high[] = {0, 9000};
    const int64_t good[] = {8, 16, 8192}, negative = -1, prime = 1048573;
    struct operand ops[5];
    (void)state;
    for (int i = 0; i < 3; i++)
        window_refuse(mel_model(ops, ints[i], hz, CM_FP32), ops, 5, CM_INVALID, parts[i]);
    struct map_tensor y = map_tensor(CM_FP32, kit_shape(2, 9, 8));
    struct kit_model *m = mel_model(ops, good, too_high, CM_FP32);
    window_refuse_run(m, ops, 5, &y, CM_INVALID, "lies outside the spectrum of 9 bins");
    map_free(&y);
    m = kit_model(17);
    ops[0] = (struct operand){"n", ints_of(CM_INT64, KIT_SHAPE0(), &negative), true};
    kit_node(m, "HannWindow", "n", "y");
    window_refuse(m, ops, 1, CM_INVALID, "size is -1");
    m = kit_model(17);
    ops[0] = (struct operand){"n", ints_of(CM_INT64, KIT_SHAPE0(), &good[0]), true};
    kit_node(m, "HannWindow", "n", "y");
    kit_attr_i(m, "output_datatype", 9);
    window_refuse(m, ops, 1, CM_UNSUPPORTED, "output_datatype is 9");
    /* A prime of twenty bits would need 10^12 steps. */
    m = kit_model(17);
    ops[0] = (struct operand){"x", random_tensor(CM_FP32, kit_shape(3, 1, 8, 1)), false};
    ops[1] = (struct operand){"n", ints_of(CM_INT64, KIT_SHAPE0(), &prime), true};
    y = map_tensor(CM_FP32, kit_shape(3, 1, (int)prime, 2));
    kit_node(m, "DFT", "x,n", "y");
    window_refuse_run(m, ops, 2, &y, CM_LIMIT, "its prime factors are large");
    map_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transforms),         cmocka_unit_test(transform_defaults),
        cmocka_unit_test(short_transforms),   cmocka_unit_test(window_functions),
        cmocka_unit_test(integer_windows),    cmocka_unit_test(mel_weights),
        cmocka_unit_test(refused_transforms), cmocka_unit_test(refused_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
