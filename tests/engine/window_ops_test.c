/* Conv, ConvTranspose, pooling and MaxUnpool over one to three dimensions and every type, against
 * plain loops in double precision, on every instruction set and on one and two threads. The loops
 * are written from the operators' definitions and share nothing with the engine. */
#include "tests/engine/window_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};

/* FP16 and BF16 are computed in FP32; scale is the size of what was summed. */
static void check(const struct map_tensor *y, const double *want, double scale)
{
    double sum = y->dtype == CM_FP64 ? 0x1p-48 : 0x1p-19, last = 2 * map_epsilon(y->dtype);
    for (size_t i = 0; i < y->count; i++) {
        double got = map_get(y, i);
        if (!(got == want[i] || fabs(got - want[i]) <= sum * scale + last * fabs(want[i])))
            fail_msg("%s element %zu is %.9g, wanted %.9g", cm_dtype_name(y->dtype), i, got,
                     want[i]);
    }
}

static double *doubles(size_t count)
{
    double *data = calloc(count + 1, sizeof *data);
    assert_non_null(data);
    return data;
}

/* Pads, and for auto_pad outputs as well, as ONNX words them. 0 none, 1 SAME_UPPER, 2 SAME_LOWER,
 * 3 VALID. */
static const char *const auto_pads[] = {NULL, "SAME_UPPER", "SAME_LOWER", "VALID"};

static void resolve_auto_pad(struct geometry *g, int kind)
{
    for (int d = 3 - g->n; d < 3 && kind > 0; d++) {
        int total = 0;
        g->out[d] = (g->in[d] - extent_of(g, d)) / g->stride[d] + 1;
        if (kind < 3) {
            g->out[d] = (g->in[d] + g->stride[d] - 1) / g->stride[d];
            total = (g->out[d] - 1) * g->stride[d] + extent_of(g, d) - g->in[d];
            total = total < 0 ? 0 : total;
        }
        g->begin[d] = kind == 2 ? total - total / 2 : total / 2;
        g->end[d] = total - g->begin[d];
    }
}

/* ---- Conv ------------------------------------------------------------------------------------ */

static double *conv_reference(const struct geometry *g, const struct operand *ops, int n,
                              const int sizes[4])
{
    size_t taps = taps_of(g), outputs = outputs_of(g), plane = inputs_of(g);
    size_t groups = (size_t)sizes[1], ic = (size_t)sizes[2], oc = (size_t)sizes[3], at = 0;
    double *y = doubles((size_t)sizes[0] * groups * oc * outputs);
    for (size_t image = 0; image < (size_t)sizes[0]; image++)
        for (size_t o = 0; o < groups * oc; o++)
            for (size_t p = 0; p < outputs; p++, at++) {
                y[at] = n > 2 ? map_get(&ops[2].t, o) : 0;
                for (size_t c = 0; c < ic; c++)
                    for (size_t t = 0; t < taps; t++) {
                        long place = under(g, p, t);
                        size_t channel = (image * groups + o / oc) * ic + c;
                        if (place >= 0)
                            y[at] += map_get(&ops[0].t, channel * plane + (size_t)place) *
                                     map_get(&ops[1].t, (o * ic + c) * taps + t);
                    }
            }
    return y;
}

static void convolution(int round)
{
    enum cm_dtype dtype = floats[round % 4];
    int n = 1 + round % 3, kind = round % 7 < 4 ? round % 7 : 0;
    struct geometry g = random_geometry(n);
    bool depthwise = round % 5 == 1;
    int groups = pick(1, 3), ic = depthwise ? 1 : pick(1, 5), oc = depthwise ? 1 : pick(1, 9);
    int sizes[4] = {pick(1, 2), groups, ic, oc}, n_ops = 2 + round % 2;
    resolve_auto_pad(&g, kind);
    struct operand ops[3] = {
        {"x", random_tensor(dtype, planes(&g, sizes[0], groups * ic, g.in)), false},
        {"w", random_tensor(dtype, planes(&g, groups * oc, ic, g.kernel)), round % 4 != 3},
        {"b", random_tensor(dtype, kit_shape(1, groups * oc)), round % 4 != 3}};
    struct map_tensor y = map_tensor(dtype, planes(&g, sizes[0], groups * oc, g.out));
    struct kit_model *m = kit_model(11);
    kit_node(m, "Conv", n_ops > 2 ? "x,w,b" : "x,w", "y");
    kit_attr_i(m, "group", groups);
    window_attrs(m, &g, true, kind == 0);
    if (kind)
        kit_attr_s(m, "auto_pad", auto_pads[kind]);
    window_run(m, ops, n_ops, &y, 1);
    double *want = conv_reference(&g, ops, n_ops, sizes);
    check(&y, want, ic * (double)taps_of(&g));
    free(want);
    map_free(&y);
    window_free(ops, 3);
}

static void convolutions(void **state)
{
    (void)state;
    for (int round = 0; round < 84; round++)
        convolution(round);
}

/* Over 768 terms the packed rows are cut and the chain is parked. */
static void long_volumes(void **state)
{
    struct geometry g = {3,         {3, 4, 17}, {3, 3, 3}, {1, 1, 1},
                         {1, 1, 1}, {1, 1, 1},  {1, 1, 1}, {3, 4, 17}};
    int sizes[4] = {1, 1, 30, 5};
    (void)state;
    struct operand ops[2] = {{"x", random_tensor(CM_FP32, planes(&g, 1, 30, g.in)), false},
                             {"w", random_tensor(CM_FP32, planes(&g, 5, 30, g.kernel)), true}};
    struct map_tensor y = map_tensor(CM_FP32, planes(&g, 1, 5, g.out));
    struct kit_model *m = kit_model(11);
    kit_node(m, "Conv", "x,w", "y");
    window_attrs(m, &g, false, true);
    window_run(m, ops, 2, &y, 1);
    double *want = conv_reference(&g, ops, 2, sizes);
    check(&y, want, 810);
    free(want);
    map_free(&y);
    window_free(ops, 2);
}

/* A depth of 1 makes a 3-D convolution a 2-D one: the same bytes, since the chain is the same. */
static void flat_volumes(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct geometry g = random_geometry(2), deep = g;
        int ic = pick(1, 4), oc = pick(1, 20);
        deep.n = 3;
        struct operand ops[2] = {{"x", random_tensor(CM_FP32, planes(&g, 2, ic, g.in)), false},
                                 {"w", random_tensor(CM_FP32, planes(&g, oc, ic, g.kernel)), true}};
        struct map_tensor y[2] = {map_tensor(CM_FP32, planes(&g, 2, oc, g.out)),
                                  map_tensor(CM_FP32, planes(&deep, 2, oc, g.out))};
        for (int i = 0; i < 2; i++) {
            struct kit_model *m = kit_model(11);
            kit_node(m, "Conv", "x,w", "y");
            window_attrs(m, i ? &deep : &g, true, true);
            ops[0].t.shape = planes(i ? &deep : &g, 2, ic, g.in);
            ops[1].t.shape = planes(i ? &deep : &g, oc, ic, g.kernel);
            window_run(m, ops, 2, &y[i], 1);
        }
        assert_memory_equal(y[0].data, y[1].data, y[0].count * sizeof(float));
        map_free(&y[0]);
        map_free(&y[1]);
        window_free(ops, 2);
    }
}

/* ---- ConvTranspose --------------------------------------------------------------------------- */

/* g is the window of the convolution that is transposed: its outputs are the operator's input. */
static double *transposed_reference(const struct geometry *g, const struct operand *ops, int n,
                                    const int sizes[4])
{
    size_t taps = taps_of(g), small = outputs_of(g), plane = inputs_of(g);
    size_t groups = (size_t)sizes[1], ic = (size_t)sizes[2], oc = (size_t)sizes[3];
    double *y = doubles((size_t)sizes[0] * groups * oc * plane);
    for (size_t i = 0; i < (size_t)sizes[0] * groups * oc * plane && n > 2; i++)
        y[i] = map_get(&ops[2].t, i / plane % (groups * oc));
    for (size_t image = 0; image < (size_t)sizes[0]; image++)
        for (size_t c = 0; c < groups * ic; c++)
            for (size_t p = 0; p < small; p++)
                for (size_t o = 0; o < oc; o++)
                    for (size_t t = 0; t < taps; t++) {
                        long place = under(g, p, t);
                        size_t channel = (image * groups + c / ic) * oc + o;
                        if (place >= 0)
                            y[channel * plane + (size_t)place] +=
                                map_get(&ops[0].t, (image * groups * ic + c) * small + p) *
                                map_get(&ops[1].t, (c * oc + o) * taps + t);
                    }
    return y;
}

/* Random sizes such that the output is as the node's attributes make it. form: 0 pads, 1 output
 * padding, 2 output_shape, 3 SAME_UPPER, 4 SAME_LOWER, 5 kernel and stride equal. */
static struct geometry transposed_geometry(int n, int form, int extra[3])
{
    struct geometry g = random_geometry(n);
    for (int d = 3 - n; d < 3; d++) {
        g.out[d] = pick(2, n == 3 ? 4 : 12); /* the operator's input */
        if (form == 5) {
            g.kernel[d] = g.stride[d] = pick(1, 3);
            g.dilation[d] = 1;
            g.begin[d] = g.end[d] = 0;
        }
        extra[d] = form == 1 ? pick(0, g.stride[d] - 1) : 0;
        int full = g.stride[d] * (g.out[d] - 1) + extra[d] + extent_of(&g, d);
        g.in[d] = full - g.begin[d] - g.end[d];
        if (form == 2)
            g.in[d] = full + pick(-1, 1);
        if (form == 3 || form == 4)
            g.in[d] = g.out[d] * g.stride[d];
        if (form >= 2 && form <= 4) {
            int total = full > g.in[d] ? full - g.in[d] : 0;
            g.begin[d] = form == 3 ? total / 2 : total - total / 2;
        }
        if (g.in[d] < 1)
            return transposed_geometry(n, form, extra);
    }
    return g;
}

static void transposed(int round)
{
    enum cm_dtype dtype = floats[round / 2 % 4];
    int n = 1 + round % 3, form = round % 6, extra[3] = {0}, n_ops = 2 + round / 3 % 2;
    struct geometry g = transposed_geometry(n, form, extra);
    int groups = pick(1, 3), ic = pick(1, 7), oc = pick(1, 5);
    int sizes[4] = {pick(1, 2), groups, ic, oc};
    struct operand ops[3] = {
        {"x", random_tensor(dtype, planes(&g, sizes[0], groups * ic, g.out)), false},
        {"w", random_tensor(dtype, planes(&g, groups * ic, oc, g.kernel)), round % 5 != 3},
        {"b", random_tensor(dtype, kit_shape(1, groups * oc)), round % 5 != 3}};
    struct map_tensor y = map_tensor(dtype, planes(&g, sizes[0], groups * oc, g.in));
    struct kit_model *m = kit_model(11);
    kit_node(m, "ConvTranspose", n_ops > 2 ? "x,w,b" : "x,w", "y");
    kit_attr_i(m, "group", groups);
    window_attrs(m, &g, true, form < 2);
    if (form == 1)
        attr_list(m, "output_padding", n, &extra[3 - n]);
    if (form == 2)
        attr_list(m, "output_shape", n, &g.in[3 - n]);
    if (form == 3 || form == 4)
        kit_attr_s(m, "auto_pad", auto_pads[form - 2]);
    window_run(m, ops, n_ops, &y, 1);
    double *want = transposed_reference(&g, ops, n_ops, sizes);
    check(&y, want, ic * (double)taps_of(&g));
    free(want);
    map_free(&y);
    window_free(ops, 3);
}

static void transposed_convolutions(void **state)
{
    (void)state;
    for (int round = 0; round < 96; round++)
        transposed(round);
}

/* ---- pooling --------------------------------------------------------------------------------- */

struct pooling {
    const char *op;
    bool include, column_major;
    int p;
};

static double pool_reference(const struct geometry *g, const struct pooling *q,
                             const struct map_tensor *x, size_t plane, size_t o, int64_t *ret_at)
{
    double sum = 0, most = -INFINITY;
    int count = 0;
    *ret_at = -1;
    for (size_t t = 0; t < taps_of(g); t++) {
        long place = under(g, o, t);
        bool counted = true;
        for (int d = 0; d < 3; d++) {
            int at = coordinate(g->out, o, d) * g->stride[d] +
                     coordinate(g->kernel, t, d) * g->dilation[d];
            counted = counted && at < g->begin[d] + g->in[d] + g->end[d];
        }
        count += place >= 0 || (q->include && counted);
        if (place < 0)
            continue;
        size_t i = plane * inputs_of(g) + (size_t)place;
        double v = map_is_float(x->dtype) ? map_get(x, i) : (double)map_get_int(x, i);
        sum += strcmp(q->op, "LpPool") == 0 ? pow(fabs(v), q->p) : v;
        if (v > most) {
            most = v;
            *ret_at = place;
        }
    }
    if (strcmp(q->op, "MaxPool") == 0)
        return most;
    if (strcmp(q->op, "LpPool") == 0)
        return pow(sum, 1.0 / q->p);
    return count ? sum / count : 0;
}

static int64_t column_major(const struct geometry *g, size_t at)
{
    int64_t index = 0;
    for (int d = 2; d >= 0; d--)
        index = index * g->in[d] + coordinate(g->in, at, d);
    return index;
}

/* Windows that see nothing are ONNX's grey zone: at least one element stays in view. */
static struct geometry pool_geometry(int n, bool up)
{
    struct geometry g = random_geometry(n);
    for (int d = 3 - n; d < 3; d++) {
        int reach = g.dilation[d] > 1 ? 0 : g.kernel[d] / 2;
        g.begin[d] = g.begin[d] > reach ? reach : g.begin[d];
        g.end[d] = g.end[d] > reach ? reach : g.end[d];
        int room = g.in[d] + g.begin[d] + g.end[d] - extent_of(&g, d);
        g.out[d] = room / g.stride[d] + 1;
        if (up && room % g.stride[d] && g.out[d] * g.stride[d] < g.in[d] + g.begin[d])
            g.out[d]++;
    }
    return g;
}

static void pool(int round)
{
    static const char *const names[] = {"MaxPool", "AveragePool", "LpPool", "MaxPool"};
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16, CM_INT8, CM_UINT8};
    bool up = pick(0, 1), indices = round % 4 == 3;
    struct pooling q = {names[round % 4], pick(0, 1), indices && pick(0, 1), pick(1, 4)};
    enum cm_dtype dtype = types[round / 4 % (strcmp(q.op, "MaxPool") == 0 ? 6 : 4)];
    struct geometry g = pool_geometry(1 + round % 3, up);
    int batch = pick(1, 3), channels = pick(1, 4);
    struct operand ops[1] = {{"x", random_tensor(dtype, planes(&g, batch, channels, g.in)), false}};
    struct map_tensor out[2] = {map_tensor(dtype, planes(&g, batch, channels, g.out)),
                                map_tensor(CM_INT64, planes(&g, batch, channels, g.out))};
    struct kit_model *m = kit_model(19);
    kit_node(m, q.op, "x", indices ? "y,z" : "y");
    window_attrs(m, &g, true, true);
    kit_attr_i(m, "ceil_mode", up);
    if (strcmp(q.op, "AveragePool") == 0)
        kit_attr_i(m, "count_include_pad", q.include);
    if (strcmp(q.op, "LpPool") == 0)
        kit_attr_i(m, "p", q.p);
    if (indices)
        kit_attr_i(m, "storage_order", q.column_major);
    window_run(m, ops, 1, out, indices ? 2 : 1);
    size_t n = outputs_of(&g);
    for (size_t i = 0; i < out[0].count; i++) {
        int64_t at, base = (int64_t)(i / n * inputs_of(&g));
        double want = pool_reference(&g, &q, &ops[0].t, i / n, i % n, &at);
        if (map_is_float(dtype)) {
            struct map_tensor one = {dtype, KIT_SHAPE0(), 1,
                                     (char *)out[0].data + i * cm_dtype_size(dtype)};
            check(&one, &want, dtype == CM_FP64 ? 1 : 4);
        } else {
            assert_true(map_get_int(&out[0], i) == (map_int)want);
        }
        if (indices)
            assert_true(map_get_int(&out[1], i) ==
                        base + (q.column_major ? column_major(&g, (size_t)at) : at));
    }
    map_free(&out[0]);
    map_free(&out[1]);
    window_free(ops, 1);
}

static void pools(void **state)
{
    (void)state;
    for (int round = 0; round < 144; round++)
        pool(round);
}

/* A window of padding only has no maximum; NaN wins; of equals the first is named. */
static void odd_maximums(void **state)
{
    const double x[] = {1, 1, NAN, 0, -INFINITY};
    const double want[] = {-INFINITY, 1, 1, NAN, NAN, NAN, 0};
    const int64_t places[] = {-1, 0, 0, 2, 2, 2, 3};
    (void)state;
    struct operand ops[1] = {{"x", numbers_of(CM_FP32, kit_shape(3, 1, 1, 5), x), false}};
    struct map_tensor out[2] = {map_tensor(CM_FP32, kit_shape(3, 1, 1, 7)),
                                map_tensor(CM_INT64, kit_shape(3, 1, 1, 7))};
    struct kit_model *m = kit_model(12);
    kit_node(m, "MaxPool", "x", "y,z");
    kit_attr_ints(m, "kernel_shape", 1, 3);
    kit_attr_ints(m, "pads", 2, 3, 1);
    window_run(m, ops, 1, out, 2);
    for (size_t i = 0; i < 7; i++) {
        double y = map_get(&out[0], i);
        assert_true(y == want[i] || (isnan(y) && isnan(want[i])));
        assert_true(map_get_int(&out[1], i) == places[i]);
    }
    map_free(&out[0]);
    map_free(&out[1]);
    window_free(ops, 1);
}

/* ---- MaxUnpool ------------------------------------------------------------------------------- */

static void unpools(void **state)
{
    (void)state;
    for (int round = 0; round < 24; round++) {
        enum cm_dtype dtype = floats[round % 4];
        int n = 1 + round % 3, wide = round % 2;
        struct geometry g = random_geometry(n);
        int64_t sizes[5] = {2, 3};
        struct cm_shape shape = {(uint8_t)(2 + n), {2, 3}};
        for (int i = 0; i < n; i++) {
            int d = 3 - n + i;
            g.begin[d] = g.end[d] = 0;
            sizes[2 + i] = (g.out[d] - 1) * g.stride[d] + g.kernel[d] + (wide ? pick(0, 3) : 0);
            shape.dims[2 + i] = sizes[2 + i];
        }
        struct map_tensor y = map_tensor(dtype, shape), want = map_tensor(dtype, shape);
        struct operand ops[3] = {{"x", random_tensor(dtype, planes(&g, 2, 3, g.out)), false},
                                 {"i", map_tensor(CM_INT64, planes(&g, 2, 3, g.out)), false},
                                 {"s", ints_of(CM_INT64, kit_shape(1, 2 + n), sizes), true}};
        for (size_t i = 0; i < ops[0].t.count; i++) {
            size_t at = (size_t)pick(0, (int)y.count - 1);
            map_put_int(&ops[1].t, i, (map_int)at);
            map_put(&want, at, map_get(&ops[0].t, i)); /* of repeated places the last one */
        }
        struct kit_model *m = kit_model(11);
        kit_node(m, "MaxUnpool", wide ? "x,i,s" : "x,i", "y");
        window_attrs(m, &g, false, round % 4 < 2);
        window_run(m, ops, wide ? 3 : 2, &y, 1);
        assert_memory_equal(y.data, want.data, y.count * cm_dtype_size(dtype));
        map_free(&y);
        map_free(&want);
        window_free(ops, 3);
    }
}

static void unpool_indices_are_checked(void **state)
{
    static const int64_t bad[] = {-1, 16, INT64_MAX, INT64_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int64_t places[] = {0, 5, bad[i], 15};
        struct operand ops[2] = {{"x", random_tensor(CM_FP32, kit_shape(4, 1, 1, 2, 2)), false},
                                 {"i", ints_of(CM_INT64, kit_shape(4, 1, 1, 2, 2), places), false}};
        struct map_tensor y = map_tensor(CM_FP32, kit_shape(4, 1, 1, 4, 4));
        struct kit_model *m = kit_model(11);
        kit_node(m, "MaxUnpool", "x,i", "y");
        kit_attr_ints(m, "kernel_shape", 2, 2, 2);
        kit_attr_ints(m, "strides", 2, 2, 2);
        window_refuse_run(m, ops, 2, &y, CM_INVALID, "is outside the output's 16 elements");
        map_free(&y);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* One node on x [1,2,9,9] and w [4,2,3,3] (FP32 unless said otherwise). */
static struct kit_model *node_model(const char *op, const char *inputs, struct operand ops[2])
{
    ops[0] = (struct operand){"x", random_tensor(CM_FP32, kit_shape(4, 1, 2, 9, 9)), false};
    ops[1] = (struct operand){"w", random_tensor(CM_FP32, kit_shape(4, 4, 2, 3, 3)), true};
    struct kit_model *m = kit_model(19);
    kit_node(m, op, inputs, "y");
    return m;
}

static void refused_attributes(void **state)
{
    static const struct {
        const char *op, *inputs, *name;
        int n, values[4];
        enum cm_err code;
        const char *part;
    } cases[] = {
        {"Conv", "x,w", "pads", 4, {0, 0, -1, 0}, CM_UNSUPPORTED, "pads has the value -1"},
        {"Conv", "x,w", "pads", 2, {0, 0}, CM_INVALID, "pads has 2 entries, must have 4"},
        {"Conv", "x,w", "strides", 2, {0, 1}, CM_INVALID, "strides has the value 0"},
        {"Conv", "x,w", "dilations", 3, {1, 1, 1}, CM_INVALID, "dilations has 3 entries"},
        {"Conv", "x,w", "dilations", 2, {5, 1}, CM_INVALID, "its kernel spans 11"},
        {"Conv", "x,w", "kernel_shape", 2, {3, 2}, CM_INVALID, "kernel_shape says 2"},
        {"ConvTranspose",
         "x,w",
         "output_padding",
         2,
         {1, 0},
         CM_INVALID,
         "output_padding 1 is not below"},
        {"MaxPool", "x", "strides", 2, {1, 1}, CM_INVALID, "kernel_shape is missing"},
        {"AveragePool", "x", "kernel_shape", 2, {10, 1}, CM_INVALID, "its kernel spans 10"},
        {"LpPool", "x", "kernel_shape", 1, {2}, CM_INVALID, "kernel_shape has 1 entries"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct operand ops[2];
        struct kit_model *m = node_model(cases[i].op, cases[i].inputs, ops);
        attr_list(m, cases[i].name, cases[i].n, cases[i].values);
        bool weights = strlen(cases[i].inputs) > 1;
        window_refuse(m, ops, weights ? 2 : 1, cases[i].code, cases[i].part);
        if (!weights)
            map_free(&ops[1].t);
    }
}

static void refused_transposed(void **state)
{
    static const struct {
        const char *name;
        int n, values[4];
        const char *part;
    } cases[] = {
        {"output_padding", 2, {1, 0}, "output_padding 1 is not below"},
        {"output_shape", 3, {1, 1, 1}, "output_shape has 3 entries, must have 2"},
        {"output_shape", 2, {0, 9}, "output_shape has the value 0"},
        {"pads", 4, {6, 0, 6, 0}, "gives -1 outputs"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct operand ops[2];
        struct kit_model *m = node_model("ConvTranspose", "x,w", ops);
        map_free(&ops[1].t);
        ops[1].t = random_tensor(CM_FP32, kit_shape(4, 2, 4, 3, 3));
        attr_list(m, cases[i].name, cases[i].n, cases[i].values);
        window_refuse(m, ops, 2, CM_INVALID, cases[i].part);
    }
}

static void refused_operands(void **state)
{
    static const struct {
        const char *op;
        enum cm_dtype x, w;
        enum cm_err code;
        const char *part;
    } cases[] = {
        {"Conv", CM_INT32, CM_INT32, CM_UNSUPPORTED, "only floating point is supported"},
        {"Conv", CM_FP16, CM_FP32, CM_INVALID, "input 1 has type FP32, input 0 has FP16"},
        {"ConvTranspose", CM_INT8, CM_INT8, CM_UNSUPPORTED, "only floating point is supported"},
        {"AveragePool", CM_INT8, CM_INT8, CM_UNSUPPORTED, "only floating point is supported"},
        {"MaxPool", CM_INT32, CM_INT32, CM_UNSUPPORTED, "only floating point is supported"},
        {"MaxUnpool", CM_FP32, CM_INT32, CM_INVALID, "indices have type INT32"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool two = strstr(cases[i].op, "Conv") || strstr(cases[i].op, "Un");
        struct operand ops[2] = {{"x", map_tensor(cases[i].x, kit_shape(4, 1, 2, 9, 9)), false},
                                 {"w", map_tensor(cases[i].w, kit_shape(4, 2, 2, 3, 3)), false}};
        struct kit_model *m = kit_model(19);
        kit_node(m, cases[i].op, two ? "x,w" : "x", "y");
        if (!strstr(cases[i].op, "Conv"))
            kit_attr_ints(m, "kernel_shape", 2, 2, 2);
        window_refuse(m, ops, two ? 2 : 1, cases[i].code, cases[i].part);
        if (!two)
            map_free(&ops[1].t);
    }
}

static void refused_rest(void **state)
{
    struct operand ops[3];
    (void)state;
    struct kit_model *m = node_model("Conv", "x,w", ops);
    kit_attr_i(m, "group", 3);
    window_refuse(m, ops, 2, CM_INVALID, "does not fit weights");
    m = node_model("Conv", "x,w", ops);
    kit_attr_s(m, "auto_pad", "SAME");
    window_refuse(m, ops, 2, CM_INVALID, "is not one of ONNX's");
    m = node_model("Conv", "x,w,b", ops);
    ops[2] = (struct operand){"b", random_tensor(CM_FP32, kit_shape(1, 3)), true};
    window_refuse(m, ops, 3, CM_INVALID, "bias [3] does not fit weights");
    m = node_model("MaxPool", "x", ops);
    map_free(&ops[1].t);
    kit_attr_ints(m, "kernel_shape", 2, 2, 2);
    kit_attr_i(m, "storage_order", 2);
    window_refuse(m, ops, 1, CM_INVALID, "storage_order 2");
    m = node_model("LpPool", "x", ops);
    map_free(&ops[1].t);
    kit_attr_ints(m, "kernel_shape", 2, 2, 2);
    kit_attr_i(m, "p", 0);
    window_refuse(m, ops, 1, CM_UNSUPPORTED, "p = 0");
    m = kit_model(19);
    kit_node(m, "MaxPool", "x", "y");
    kit_attr_ints(m, "kernel_shape", 4, 1, 1, 1, 1);
    ops[0] = (struct operand){"x", random_tensor(CM_FP32, kit_shape(6, 1, 1, 2, 2, 2, 2)), false};
    window_refuse(m, ops, 1, CM_UNSUPPORTED, "1 to 3 are supported");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(long_volumes),
        cmocka_unit_test(flat_volumes),
        cmocka_unit_test(transposed_convolutions),
        cmocka_unit_test(pools),
        cmocka_unit_test(odd_maximums),
        cmocka_unit_test(unpools),
        cmocka_unit_test(unpool_indices_are_checked),
        cmocka_unit_test(refused_attributes),
        cmocka_unit_test(refused_transposed),
        cmocka_unit_test(refused_operands),
        cmocka_unit_test(refused_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
