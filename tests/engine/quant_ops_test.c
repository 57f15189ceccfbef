/* Quantised operators against plain integer loops: exact, so every element must be equal. On every
 * instruction set and on one and two threads. */
#include "tests/engine/window_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum cm_dtype bytes[] = {CM_UINT8, CM_INT8};

static void equal(const struct map_tensor *y, const int64_t *want)
{
    for (size_t i = 0; i < y->count; i++)
        if (map_get_int(y, i) != want[i])
            fail_msg("element %zu is %lld, wanted %lld", i, (long long)map_get_int(y, i),
                     (long long)want[i]);
}

static int64_t *integers(size_t count)
{
    int64_t *data = calloc(count + 1, sizeof *data);
    assert_non_null(data);
    return data;
}

static int64_t saturate(double value, enum cm_dtype dtype)
{
    double bits = 8 * (double)cm_dtype_size(dtype), low = 0, high = ldexp(1, (int)bits) - 1;
    if (map_is_signed(dtype)) {
        low = -ldexp(1, (int)bits - 1);
        high = -low - 1;
    }
    return (int64_t)fmin(fmax(value, low), high);
}

/* Scales of n numbers, and zero points. */
static struct map_tensor scales(enum cm_dtype dtype, struct cm_shape shape)
{
    struct map_tensor t = map_tensor(dtype, shape);
    for (size_t i = 0; i < t.count; i++)
        map_put(&t, i, 0.002 + 0.01 * pick(1, 9));
    return t;
}

/* ---- QuantizeLinear, DequantizeLinear -------------------------------------------------------- */

/* How scales are laid out: per tensor, per axis, in blocks; and where element i finds its own. */
struct layout {
    int kind, axis, block;
    struct cm_shape x, scale;
};

static struct layout random_layout(int kind)
{
    struct layout l = {.kind = kind, .x = kit_shape(3, pick(1, 5), pick(1, 70), pick(1, 5))};
    l.axis = pick(0, 2);
    l.block = pick(1, 7);
    if (kind == 1)
        l.scale = kit_shape(1, (int)l.x.dims[l.axis]);
    if (kind == 2) {
        l.scale = l.x;
        l.scale.dims[l.axis] = (l.x.dims[l.axis] + l.block - 1) / l.block;
    }
    return l;
}

static size_t scale_of(const struct layout *l, size_t i)
{
    size_t at[3], dims[3];
    for (int d = 2; d >= 0; d--) {
        dims[d] = (size_t)l->x.dims[d];
        at[d] = i % dims[d];
        i /= dims[d];
    }
    if (l->kind == 0)
        return 0;
    if (l->kind == 1)
        return at[l->axis];
    at[l->axis] /= (size_t)l->block;
    return (at[0] * (size_t)l->scale.dims[1] + at[1]) * (size_t)l->scale.dims[2] + at[2];
}

static void layout_attrs(struct kit_model *m, const struct layout *l, int opset)
{
    if (opset >= 13)
        kit_attr_i(m, "axis", l->axis - (l->axis % 2 ? 3 : 0));
    if (l->kind == 2)
        kit_attr_i(m, "block_size", l->block);
}

static void quantizing(void **state)
{
    static const enum cm_dtype from[] = {CM_FP32, CM_FP16, CM_BF16, CM_INT32};
    static const enum cm_dtype to[] = {CM_UINT8, CM_INT8, CM_UINT16, CM_INT16};
    (void)state;
    for (int round = 0; round < 96; round++) {
        struct layout l = random_layout(round % 3);
        enum cm_dtype x_type = from[round / 3 % 4], y_type = to[round / 12 % 4];
        enum cm_dtype scale_type = x_type == CM_INT32 ? CM_FP32 : x_type;
        struct operand ops[3] = {{"x", random_tensor(x_type, l.x), false},
                                 {"s", scales(scale_type, l.scale), round % 2},
                                 {"z", random_tensor(y_type, l.scale), round % 2}};
        struct map_tensor y = map_tensor(y_type, l.x);
        int64_t *want = integers(y.count);
        for (size_t i = 0; i < y.count; i++) {
            size_t at = scale_of(&l, i);
            double scale = map_get(&ops[1].t, at), zero = (double)map_get_int(&ops[2].t, at), q;
            if (x_type == CM_INT32) {
                map_put_int(&ops[0].t, i, pick(-40000, 40000));
                q = (double)map_get_int(&ops[0].t, i) / scale;
            } else {
                map_put(&ops[0].t, i, pick(-400, 400) * scale * (i % 3 ? 0.5 : 0.37));
                q = (float)map_get(&ops[0].t, i) / (float)scale;
            }
            want[i] = saturate(rint(q) + zero, y_type);
        }
        int opset = l.kind == 0 && round % 4 == 0 && round / 12 % 4 < 2 ? 10 : 21;
        struct kit_model *m = kit_model(opset);
        kit_node(m, "QuantizeLinear", "x,s,z", "y");
        layout_attrs(m, &l, opset);
        window_run(m, ops, 3, &y, 1);
        equal(&y, want);
        free(want);
        map_free(&y);
        window_free(ops, 3);
    }
}

static void quantizing_odd_numbers(void **state)
{
    const double x[] = {0.5, 1.5, 2.5, -0.5, -1.5, NAN, INFINITY, -INFINITY, 1e30, -1e30, 127.5};
    const int64_t want[] = {10, 12, 12, 10, 8, 10, 127, -128, 127, -128, 127};
    const double one = 1;
    const int64_t ten = 10;
    (void)state;
    struct operand ops[3] = {{"x", numbers_of(CM_FP32, kit_shape(1, 11), x), false},
                             {"s", numbers_of(CM_FP32, KIT_SHAPE0(), &one), true},
                             {"z", ints_of(CM_INT8, KIT_SHAPE0(), &ten), true}};
    struct map_tensor y = map_tensor(CM_INT8, kit_shape(1, 11));
    struct kit_model *m = kit_model(13);
    kit_node(m, "QuantizeLinear", "x,s,z", "y");
    window_run(m, ops, 3, &y, 1);
    equal(&y, want);
    map_free(&y);
    /* Without a zero point the type is UINT8, or what output_dtype says. */
    y = map_tensor(CM_UINT8, kit_shape(1, 11));
    m = kit_model(13);
    kit_node(m, "QuantizeLinear", "x,s", "y");
    window_run(m, ops, 2, &y, 1);
    assert_int_equal(map_get_int(&y, 1), 2);
    assert_int_equal(map_get_int(&y, 4), 0);
    map_free(&y);
    y = map_tensor(CM_INT16, kit_shape(1, 11));
    m = kit_model(21);
    kit_node(m, "QuantizeLinear", "x,s", "y");
    kit_attr_i(m, "output_dtype", 5);
    window_run(m, ops, 2, &y, 1);
    assert_int_equal(map_get_int(&y, 4), -2);
    assert_int_equal(map_get_int(&y, 9), -32768);
    map_free(&y);
    window_free(ops, 3);
}

static void dequantizing(void **state)
{
    static const enum cm_dtype from[] = {CM_UINT8, CM_INT8, CM_UINT16, CM_INT16, CM_INT32};
    static const enum cm_dtype to[] = {CM_FP32, CM_FP16, CM_BF16};
    (void)state;
    for (int round = 0; round < 90; round++) {
        struct layout l = random_layout(round % 3);
        enum cm_dtype x_type = from[round % 5], y_type = to[round / 5 % 3];
        struct operand ops[3] = {{"x", random_tensor(x_type, l.x), false},
                                 {"s", scales(y_type, l.scale), round % 2},
                                 {"z", random_tensor(x_type, l.scale), round % 2}};
        struct map_tensor y = map_tensor(y_type, l.x), want = map_tensor(y_type, l.x);
        bool zero = round % 4 != 0;
        for (size_t i = 0; i < y.count; i++) {
            size_t at = scale_of(&l, i);
            map_int difference =
                map_get_int(&ops[0].t, i) - (zero ? map_get_int(&ops[2].t, at) : 0);
            float product = (float)(int64_t)difference * (float)map_get(&ops[1].t, at);
            map_put(&want, i, (double)product);
        }
        struct kit_model *m = kit_model(21);
        kit_node(m, "DequantizeLinear", zero ? "x,s,z" : "x,s", "y");
        layout_attrs(m, &l, 21);
        window_run(m, ops, zero ? 3 : 2, &y, 1);
        assert_memory_equal(y.data, want.data, y.count * cm_dtype_size(y_type));
        map_free(&y);
        map_free(&want);
        window_free(ops, 3);
    }
}

static void dynamic_quantizing(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        int n = pick(1, 9000);
        struct operand ops[1] = {{"x", random_tensor(CM_FP32, kit_shape(1, n)), false}};
        struct map_tensor out[3] = {map_tensor(CM_UINT8, kit_shape(1, n)),
                                    map_tensor(CM_FP32, KIT_SHAPE0()),
                                    map_tensor(CM_UINT8, KIT_SHAPE0())};
        float most = 0, least = 0, *x = ops[0].t.data;
        for (int i = 0; i < n; i++) {
            x[i] = round == 0 ? 0 : x[i] * 3 + (float)(round % 3 - 1) * 5;
            most = x[i] > most ? x[i] : most;
            least = x[i] < least ? x[i] : least;
        }
        float scale = round == 0 ? 1 : (most - least) / 255;
        int64_t zero = saturate(rint(0 - (double)(least / scale)), CM_UINT8);
        struct kit_model *m = kit_model(11);
        kit_node(m, "DynamicQuantizeLinear", "x", "y,z,u");
        window_run(m, ops, 1, out, 3);
        assert_true(((float *)out[1].data)[0] == scale);
        assert_int_equal(map_get_int(&out[2], 0), zero);
        for (int i = 0; i < n; i++)
            assert_int_equal(map_get_int(&out[0], (size_t)i),
                             saturate(rint((double)(x[i] / scale)) + (double)zero, CM_UINT8));
        for (int i = 0; i < 3; i++)
            map_free(&out[i]);
        window_free(ops, 1);
    }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

/* One channel's sums, exact. */
static int64_t conv_sum(const struct geometry *g, const struct operand *x, const struct operand *w,
                        size_t first, size_t o, size_t ic, size_t p, int64_t x_zero, int64_t w_zero)
{
    int64_t sum = 0;
    size_t taps = taps_of(g);
    for (size_t c = 0; c < ic; c++)
        for (size_t t = 0; t < taps; t++) {
            long place = under(g, p, t);
            if (place < 0)
                continue;
            sum +=
                ((int64_t)map_get_int(&x->t, (first + c) * inputs_of(g) + (size_t)place) - x_zero) *
                ((int64_t)map_get_int(&w->t, (o * ic + c) * taps + t) - w_zero);
        }
    return sum;
}

static int64_t zero_of(const struct map_tensor *t, size_t i)
{
    return t->count == 0 ? 0 : (int64_t)map_get_int(t, t->count > 1 ? i : 0);
}

static float scale_at(const struct map_tensor *t, size_t i)
{
    return (float)map_get(t, t->count > 1 ? i : 0);
}

/* What ONNX calls requantising: the factor is rounded after each of its operations. */
static int64_t requantized(int64_t sum, float a, float b, float y, int64_t zero,
                           enum cm_dtype dtype)
{
    float factor = a * b;
    factor = factor / y;
    float value = (float)(int32_t)sum * factor;
    return saturate(rint((double)value) + (double)zero, dtype);
}

static void integer_convolutions(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct geometry g = random_geometry(1 + round % 3);
        enum cm_dtype xt = bytes[round % 2], wt = bytes[round / 2 % 2], yt = bytes[round / 4 % 2];
        bool linear = round % 3 != 0, each = round % 4 < 2, bias = round % 5 < 3;
        int batch = pick(1, 2), groups = pick(1, 3), ic = round % 7 == 0 ? 40 : pick(1, 5);
        int oc = pick(1, 6), channels = groups * oc;
        struct cm_shape per = each ? kit_shape(1, channels) : KIT_SHAPE0();
        bool constant = round % 2;
        struct operand ops[9] = {
            {"x", random_tensor(xt, planes(&g, batch, groups * ic, g.in)), false},
            {"xs", scales(CM_FP32, KIT_SHAPE0()), constant},
            {"xz", random_tensor(xt, KIT_SHAPE0()), constant},
            {"w", random_tensor(wt, planes(&g, channels, ic, g.kernel)), constant},
            {"ws", scales(CM_FP32, per), constant},
            {"wz", random_tensor(wt, per), constant},
            {"ys", scales(CM_FP32, KIT_SHAPE0()), constant},
            {"yz", random_tensor(yt, KIT_SHAPE0()), constant},
            {"b", random_tensor(CM_INT32, kit_shape(1, channels)), constant}};
        map_put(&ops[6].t, 0, 0.05 * ic * (double)taps_of(&g));
        for (int i = 0; i < channels; i++)
            map_put_int(&ops[8].t, (size_t)i, pick(-5000, 5000));
        struct map_tensor y =
            map_tensor(linear ? yt : CM_INT32, planes(&g, batch, channels, g.out));
        int64_t *want = integers(y.count);
        size_t n = outputs_of(&g);
        for (size_t i = 0; i < y.count; i++) {
            size_t o = i / n % (size_t)channels, image = i / n / (size_t)channels;
            size_t first = (image * (size_t)groups + o / (size_t)oc) * (size_t)ic;
            want[i] = conv_sum(&g, &ops[0], &ops[3], first, o, (size_t)ic, i % n,
                               zero_of(&ops[2].t, 0), zero_of(&ops[5].t, o));
            if (linear)
                want[i] = requantized(want[i] + (bias ? (int64_t)map_get_int(&ops[8].t, o) : 0),
                                      scale_at(&ops[1].t, 0), scale_at(&ops[4].t, o),
                                      scale_at(&ops[6].t, 0), zero_of(&ops[7].t, 0), yt);
        }
        struct kit_model *m = kit_model(10);
        struct operand plain[4] = {ops[0], ops[3], ops[2], ops[5]};
        if (linear)
            kit_node(m, "QLinearConv", bias ? "x,xs,xz,w,ws,wz,ys,yz,b" : "x,xs,xz,w,ws,wz,ys,yz",
                     "y");
        else
            kit_node(m, "ConvInteger", "x,w,xz,wz", "y");
        window_attrs(m, &g, true, true);
        kit_attr_i(m, "group", groups);
        window_run(m, linear ? ops : plain, linear ? 8 + bias : 4, &y, 1);
        equal(&y, want);
        free(want);
        map_free(&y);
        window_free(ops, 9);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static void integer_products(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        enum cm_dtype at = bytes[round % 2], bt = bytes[round / 2 % 2], yt = bytes[round / 4 % 2];
        bool linear = round % 3 != 0, each_a = round % 5 == 0, each_b = round % 4 < 2;
        int heads = round % 3, rows = pick(1, 80), k = round % 6 == 5 ? 700 : pick(1, 30);
        int n = pick(1, round % 6 == 4 ? 400 : 30);
        struct cm_shape a = heads ? kit_shape(3, heads, rows, k) : kit_shape(2, rows, k);
        struct cm_shape b = heads == 2 ? kit_shape(3, heads, k, n) : kit_shape(2, k, n);
        struct cm_shape ys = heads ? kit_shape(3, heads, rows, n) : kit_shape(2, rows, n);
        struct cm_shape per_a = each_a ? kit_shape(1, rows) : KIT_SHAPE0();
        struct cm_shape per_b = each_b ? kit_shape(1, n) : KIT_SHAPE0();
        bool constant = round % 2;
        struct operand ops[8] = {{"a", random_tensor(at, a), false},
                                 {"as", scales(CM_FP32, per_a), constant},
                                 {"az", random_tensor(at, per_a), constant},
                                 {"b", random_tensor(bt, b), constant},
                                 {"bs", scales(CM_FP32, per_b), constant},
                                 {"bz", random_tensor(bt, per_b), constant},
                                 {"ys", scales(CM_FP32, KIT_SHAPE0()), constant},
                                 {"yz", random_tensor(yt, KIT_SHAPE0()), constant}};
        map_put(&ops[6].t, 0, 0.1 * sqrt(k));
        struct map_tensor y = map_tensor(linear ? yt : CM_INT32, ys);
        int64_t *want = integers(y.count);
        bool zeros = linear || round % 2;
        for (size_t i = 0; i < y.count; i++) {
            size_t j = i % (size_t)n, r = i / (size_t)n, row = r % (size_t)rows;
            size_t b0 = heads == 2 ? r / (size_t)rows * (size_t)(k * n) : 0;
            for (size_t q = 0; q < (size_t)k; q++)
                want[i] += ((int64_t)map_get_int(&ops[0].t, r * (size_t)k + q) -
                            (zeros ? zero_of(&ops[2].t, row) : 0)) *
                           ((int64_t)map_get_int(&ops[3].t, b0 + q * (size_t)n + j) -
                            (zeros ? zero_of(&ops[5].t, j) : 0));
            if (linear)
                want[i] = requantized(want[i], scale_at(&ops[1].t, row), scale_at(&ops[4].t, j),
                                      scale_at(&ops[6].t, 0), zero_of(&ops[7].t, 0), yt);
        }
        struct kit_model *m = kit_model(10);
        struct operand plain[4] = {ops[0], ops[3], ops[2], ops[5]};
        if (linear)
            kit_node(m, "QLinearMatMul", "a,as,az,b,bs,bz,ys,yz", "y");
        else
            kit_node(m, "MatMulInteger", zeros ? "a,b,az,bz" : "a,b", "y");
        window_run(m, linear ? ops : plain, linear ? 8 : zeros ? 4 : 2, &y, 1);
        equal(&y, want);
        free(want);
        map_free(&y);
        window_free(ops, 8);
    }
}

/* The largest sums: 255 * 255 each, over the length where floats stop being exact. */
static void extreme_products(void **state)
{
    (void)state;
    for (int k = 256; k <= 259; k++) {
        struct operand ops[2] = {{"a", map_tensor(CM_UINT8, kit_shape(2, 3, k)), false},
                                 {"b", map_tensor(CM_UINT8, kit_shape(2, k, 50)), false}};
        struct map_tensor y = map_tensor(CM_INT32, kit_shape(2, 3, 50));
        memset(ops[0].t.data, 255, ops[0].t.count);
        memset(ops[1].t.data, 255, ops[1].t.count);
        struct kit_model *m = kit_model(10);
        kit_node(m, "MatMulInteger", "a,b", "y");
        window_run(m, ops, 2, &y, 1);
        for (size_t i = 0; i < y.count; i++)
            assert_int_equal(map_get_int(&y, i), 255 * 255 * k);
        map_free(&y);
        window_free(ops, 2);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    const char *op, *inputs;
    int opset;
    enum cm_dtype types[4];
    int sizes[4]; /* 0: one number; x is [2,size] */
    const char *attr;
    int value;
    enum cm_err code;
    const char *part;
} refused[] = {
    {"QuantizeLinear",
     "x,s,z",
     13,
     {CM_FP64, CM_FP32, CM_INT8},
     {4},
     NULL,
     0,
     CM_UNSUPPORTED,
     "input 0 has type FP64"},
    {"QuantizeLinear",
     "x,s,z",
     13,
     {CM_FP32, CM_FP32, CM_INT32},
     {4},
     NULL,
     0,
     CM_UNSUPPORTED,
     "only 8 and 16-bit"},
    {"QuantizeLinear",
     "x,s",
     13,
     {CM_FP32, CM_FP32},
     {4, 3},
     NULL,
     0,
     CM_INVALID,
     "a scale of shape [3] does not fit input [2,4]"},
    {"QuantizeLinear", "x,s", 10, {CM_FP32, CM_FP32}, {4, 4}, NULL, 0, CM_INVALID, "does not fit"},
    {"QuantizeLinear",
     "x,s",
     13,
     {CM_FP32, CM_FP32},
     {4, 4},
     "axis",
     2,
     CM_INVALID,
     "axis 2 of 2 dimensions"},
    {"QuantizeLinear",
     "x,s,z",
     13,
     {CM_FP32, CM_FP32, CM_INT8},
     {4, 4, 0},
     NULL,
     0,
     CM_INVALID,
     "differ in shape"},
    {"QuantizeLinear",
     "x,s",
     21,
     {CM_FP32, CM_FP32},
     {4},
     "block_size",
     -1,
     CM_INVALID,
     "block_size -1"},
    {"QuantizeLinear",
     "x,s",
     21,
     {CM_FP32, CM_FP32},
     {4, 4},
     "block_size",
     2,
     CM_INVALID,
     "does not fit"},
    {"QuantizeLinear",
     "x,s,z",
     21,
     {CM_FP32, CM_FP32, CM_INT8},
     {4},
     "output_dtype",
     2,
     CM_INVALID,
     "output_dtype 2"},
    {"QuantizeLinear",
     "x,s",
     21,
     {CM_FP32, CM_FP32},
     {4},
     "output_dtype",
     21,
     CM_UNSUPPORTED,
     "only 8 and 16-bit"},
    {"DequantizeLinear",
     "x,s",
     13,
     {CM_INT64, CM_FP32},
     {4},
     NULL,
     0,
     CM_UNSUPPORTED,
     "input 0 has type INT64"},
    {"DequantizeLinear",
     "x,s,z",
     13,
     {CM_INT8, CM_FP32, CM_UINT8},
     {4},
     NULL,
     0,
     CM_INVALID,
     "input 2 has type UINT8"},
    {"DynamicQuantizeLinear",
     "x",
     13,
     {CM_FP16},
     {4},
     NULL,
     0,
     CM_INVALID,
     "input 0 has type FP16, must have FP32"},
    {"MatMulInteger",
     "x,s",
     13,
     {CM_FP32, CM_INT8},
     {4, 4},
     NULL,
     0,
     CM_UNSUPPORTED,
     "input 0 has type FP32"},
    {"MatMulInteger",
     "x,s",
     13,
     {CM_INT8, CM_INT8},
     {4, 3},
     NULL,
     0,
     CM_INVALID,
     "shapes [2,4] and [3] do not fit"},
    {"MatMulInteger",
     "x,s,z",
     13,
     {CM_INT8, CM_INT8, CM_UINT8},
     {4, 4},
     NULL,
     0,
     CM_INVALID,
     "input 2 has type UINT8"},
    {"MatMulInteger",
     "x,s,z",
     13,
     {CM_INT8, CM_INT8, CM_INT8},
     {4, 4, 3},
     NULL,
     0,
     CM_UNSUPPORTED,
     "nor one for each row"},
    {"ConvInteger",
     "x,s",
     13,
     {CM_INT8, CM_INT8},
     {4, 4},
     NULL,
     0,
     CM_UNSUPPORTED,
     "3, 4 and 5 are supported"},
};

static void refusals(void **state)
{
    static const char *const names[] = {"x", "s", "z", "u"};
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct operand ops[4];
        int n = (int)(strlen(refused[i].inputs) + 1) / 2;
        for (int k = 0; k < n; k++) {
            int size = refused[i].sizes[k];
            ops[k] = (struct operand){names[k],
                                      map_tensor(refused[i].types[k], k == 0 ? kit_shape(2, 2, size)
                                                                      : size ? kit_shape(1, size)
                                                                             : KIT_SHAPE0()),
                                      false};
        }
        struct kit_model *m = kit_model(refused[i].opset);
        kit_node(m, refused[i].op, refused[i].inputs, "y");
        if (refused[i].attr)
            kit_attr_i(m, refused[i].attr, refused[i].value);
        window_refuse(m, ops, n, refused[i].code, refused[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantizing),           cmocka_unit_test(quantizing_odd_numbers),
        cmocka_unit_test(dequantizing),         cmocka_unit_test(dynamic_quantizing),
        cmocka_unit_test(integer_convolutions), cmocka_unit_test(integer_products),
        cmocka_unit_test(extreme_products),     cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
