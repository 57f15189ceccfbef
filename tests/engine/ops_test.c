/* Operators against plain loops in double precision, over geometries that ONNX's own cases do not
 * reach, with constant and computed operands, on one and two threads. The loops here are written
 * from the operator's definition and share nothing with the engine. */
#include "tests/engine/kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 2024;

static int pick(int least, int most)
{
    return kit_pick(&random_state, least, most);
}

static float *floats(struct cm_shape shape)
{
    float *data = malloc(kit_count(shape) * sizeof *data + 1);
    assert_non_null(data);
    for (size_t i = 0; i < kit_count(shape); i++)
        data[i] = kit_float(&random_state);
    return data;
}

static double *doubles(size_t count)
{
    double *data = calloc(count + 1, sizeof *data);
    assert_non_null(data);
    return data;
}

/* One operand of a case: an input of the model or a constant in it. */
struct operand {
    const char *name;
    struct cm_shape shape;
    float *data;
    bool constant;
};

static struct operand operand(const char *name, struct cm_shape shape, bool constant)
{
    return (struct operand){name, shape, floats(shape), constant};
}

/* Runs m on the operands (each declared here) with 1 and 2 threads and compares output "y" with
 * want, relative to scale. Frees m, the data and want. */
static void check(struct kit_model *m, struct operand *operands, int n, struct cm_shape shape,
                  double *want, double scale)
{
    const void *in[8];
    struct cm_shape shapes[8];
    int n_in = 0;
    for (int i = 0; i < n; i++) {
        if (operands[i].constant) {
            kit_const(m, operands[i].name, CM_FP32, operands[i].shape, operands[i].data);
            continue;
        }
        kit_input(m, operands[i].name, CM_FP32, operands[i].shape);
        in[n_in] = operands[i].data;
        shapes[n_in++] = operands[i].shape;
    }
    kit_output(m, "y", CM_FP32, shape);
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        struct cm_shape got_shape;
        void *got[1];
        kit_load_model(&l, m, threads, NULL);
        kit_run(&l, shapes, in, got, &got_shape);
        kit_unload(&l);
        if (!cm_shape_equal(&got_shape, &shape)) {
            char a[96], b[96];
            fail_msg("shape %s, wanted %s", cm_shape_format(&got_shape, a, sizeof a),
                     cm_shape_format(&shape, b, sizeof b));
        }
        for (size_t i = 0; i < kit_count(shape); i++) {
            double y = ((float *)got[0])[i];
            if (!(fabs(y - want[i]) <= 2e-6 * (scale + fabs(want[i]))))
                fail_msg("element %zu is %.9g, wanted %.9g", i, y, want[i]);
        }
        free(got[0]);
    }
    for (int i = 0; i < n; i++)
        free(operands[i].data);
    free(want);
    kit_free(m);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* A window in both dimensions; 1-D cases have size 1 in dimension 0. */
struct geometry {
    int in[2], kernel[2], stride[2], dilation[2], begin[2], end[2], out[2];
};

static int floor_out(const struct geometry *g, int d)
{
    int extent = (g->kernel[d] - 1) * g->dilation[d] + 1;
    return (g->in[d] + g->begin[d] + g->end[d] - extent) / g->stride[d] + 1;
}

static struct geometry random_geometry(bool flat)
{
    struct geometry g = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, {1, 1}};
    for (int d = flat ? 1 : 0; d < 2; d++) {
        g.kernel[d] = pick(1, 5);
        g.stride[d] = pick(1, 3);
        g.dilation[d] = pick(1, 2);
        int extent = (g.kernel[d] - 1) * g.dilation[d] + 1;
        g.begin[d] = pick(0, extent - 1);
        g.end[d] = pick(0, extent - 1);
        g.in[d] = extent + pick(0, 20);
        g.out[d] = floor_out(&g, d);
    }
    return g;
}

static void window_attrs(struct kit_model *m, const struct geometry *g, bool flat, bool pads)
{
    if (flat) {
        kit_attr_ints(m, "kernel_shape", 1, g->kernel[1]);
        kit_attr_ints(m, "strides", 1, g->stride[1]);
        if (pads)
            kit_attr_ints(m, "pads", 2, g->begin[1], g->end[1]);
        return;
    }
    kit_attr_ints(m, "kernel_shape", 2, g->kernel[0], g->kernel[1]);
    kit_attr_ints(m, "strides", 2, g->stride[0], g->stride[1]);
    if (pads)
        kit_attr_ints(m, "pads", 4, g->begin[0], g->begin[1], g->end[0], g->end[1]);
}

static struct cm_shape image(bool flat, int n, int c, const int size[2])
{
    return flat ? kit_shape(3, n, c, size[1]) : kit_shape(4, n, c, size[0], size[1]);
}

/* The input element under tap (ky, kx) of output (oy, ox), or NULL in the padding. */
static const float *tap(const struct geometry *g, const float *plane, int oy, int ox, int ky,
                        int kx)
{
    int y = oy * g->stride[0] - g->begin[0] + ky * g->dilation[0];
    int x = ox * g->stride[1] - g->begin[1] + kx * g->dilation[1];
    if (y < 0 || y >= g->in[0] || x < 0 || x >= g->in[1])
        return NULL;
    return plane + y * g->in[1] + x;
}

static double *conv_reference(const struct geometry *g, const float *x, const float *w,
                              const float *b, const int sizes[4])
{
    int batch = sizes[0], groups = sizes[1], ic = sizes[2], oc = sizes[3];
    size_t plane = (size_t)(g->in[0] * g->in[1]), at = 0;
    double *y = doubles((size_t)(batch * groups * oc * g->out[0] * g->out[1]));
    for (int n = 0; n < batch; n++)
        for (int o = 0; o < groups * oc; o++)
            for (int oy = 0; oy < g->out[0]; oy++)
                for (int ox = 0; ox < g->out[1]; ox++) {
                    double sum = b ? b[o] : 0;
                    const float *weight = w + (size_t)(o * ic * g->kernel[0] * g->kernel[1]);
                    for (int c = 0; c < ic; c++)
                        for (int ky = 0; ky < g->kernel[0]; ky++)
                            for (int kx = 0; kx < g->kernel[1]; kx++, weight++) {
                                size_t channel = (size_t)((n * groups + o / oc) * ic + c);
                                const float *v = tap(g, x + channel * plane, oy, ox, ky, kx);
                                sum += v ? (double)*v * (double)*weight : 0;
                            }
                    y[at++] = sum;
                }
    return y;
}

static void convolutions(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        bool flat = round % 4 == 3, depthwise = round % 4 == 1, bias = pick(0, 1);
        struct geometry g = random_geometry(flat);
        int groups = depthwise ? pick(1, 20) : pick(1, 3);
        int ic = depthwise ? 1 : pick(1, 6), oc = depthwise ? 1 : pick(1, 20);
        int sizes[4] = {pick(1, 3), groups, ic, oc};
        if (round % 5 == 4) {
            /* auto_pad decides the pads: as small as gives out = ceil(in / stride). */
            for (int d = flat ? 1 : 0; d < 2; d++) {
                g.out[d] = (g.in[d] + g.stride[d] - 1) / g.stride[d];
                int total =
                    (g.out[d] - 1) * g.stride[d] + (g.kernel[d] - 1) * g.dilation[d] + 1 - g.in[d];
                total = total < 0 ? 0 : total;
                g.begin[d] = round % 2 ? total / 2 : total - total / 2;
                g.end[d] = total - g.begin[d];
            }
        }
        struct cm_shape w = image(flat, groups * oc, ic, g.kernel);
        struct operand ops[3] = {operand("x", image(flat, sizes[0], groups * ic, g.in), false),
                                 operand("w", w, pick(0, 3) > 0)};
        if (bias)
            ops[2] = operand("b", kit_shape(1, groups * oc), ops[1].constant);
        struct kit_model *m = kit_model(11);
        kit_node(m, "Conv", bias ? "x,w,b" : "x,w", "y");
        kit_attr_i(m, "group", groups);
        if (flat)
            kit_attr_ints(m, "dilations", 1, g.dilation[1]);
        else
            kit_attr_ints(m, "dilations", 2, g.dilation[0], g.dilation[1]);
        window_attrs(m, &g, flat, round % 5 != 4);
        if (round % 5 == 4)
            kit_attr_s(m, "auto_pad", round % 2 ? "SAME_UPPER" : "SAME_LOWER");
        double *y = conv_reference(&g, ops[0].data, ops[1].data, bias ? ops[2].data : NULL, sizes);
        check(m, ops, bias ? 3 : 2, image(flat, sizes[0], groups * oc, g.out), y,
              ic * g.kernel[0] * g.kernel[1]);
    }
}

static double pool_reference(const struct geometry *g, const float *plane, int oy, int ox,
                             bool average, bool include_pad)
{
    double sum = 0, most = -INFINITY;
    int count = 0;
    for (int ky = 0; ky < g->kernel[0]; ky++)
        for (int kx = 0; kx < g->kernel[1]; kx++) {
            const float *v = tap(g, plane, oy, ox, ky, kx);
            int y = oy * g->stride[0] + ky * g->dilation[0];
            int x = ox * g->stride[1] + kx * g->dilation[1];
            bool padded =
                y < g->begin[0] + g->in[0] + g->end[0] && x < g->begin[1] + g->in[1] + g->end[1];
            count += v || (include_pad && padded);
            if (v) {
                sum += (double)*v;
                most = fmax(most, (double)*v);
            }
        }
    return average ? sum / count : most;
}

static void pools(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        bool flat = round % 4 == 3, average = round % 2, include = pick(0, 1), up = pick(0, 1);
        struct geometry g = random_geometry(flat);
        for (int d = 0; d < 2; d++) {
            /* Windows that see nothing are ONNX's grey zone; keep at least one element in view. */
            int reach = g.dilation[d] > 1 ? 0 : g.kernel[d] / 2;
            g.begin[d] = g.begin[d] > reach ? reach : g.begin[d];
            g.end[d] = g.end[d] > reach ? reach : g.end[d];
            g.out[d] = floor_out(&g, d);
            int covered = (g.out[d] - 1) * g.stride[d] + (g.kernel[d] - 1) * g.dilation[d] + 1;
            if (up && covered < g.in[d] + g.begin[d] + g.end[d] &&
                g.out[d] * g.stride[d] < g.in[d] + g.begin[d])
                g.out[d]++;
        }
        int n = pick(1, 3), c = pick(1, 5);
        struct operand ops[1] = {operand("x", image(flat, n, c, g.in), false)};
        struct kit_model *m = kit_model(19);
        kit_node(m, average ? "AveragePool" : "MaxPool", "x", "y");
        window_attrs(m, &g, flat, true);
        if (flat)
            kit_attr_ints(m, "dilations", 1, g.dilation[1]);
        else
            kit_attr_ints(m, "dilations", 2, g.dilation[0], g.dilation[1]);
        kit_attr_i(m, "ceil_mode", up);
        if (average)
            kit_attr_i(m, "count_include_pad", include);
        struct cm_shape shape = image(flat, n, c, g.out);
        double *y = doubles(kit_count(shape));
        size_t at = 0;
        for (int p = 0; p < n * c; p++)
            for (int oy = 0; oy < g.out[0]; oy++)
                for (int ox = 0; ox < g.out[1]; ox++)
                    y[at++] = pool_reference(&g, ops[0].data + p * g.in[0] * g.in[1], oy, ox,
                                             average, include);
        check(m, ops, 1, shape, y, 1);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Index of a broadcast operand for output element i of shape out. */
static size_t broadcast_index(struct cm_shape out, struct cm_shape in, size_t i)
{
    size_t index = 0, stride = 1;
    for (int d = 1; d <= out.rank; d++) {
        size_t dim = (size_t)out.dims[out.rank - d], at = i % dim;
        i /= dim;
        if (d <= in.rank) {
            if (in.dims[in.rank - d] != 1)
                index += at * stride;
            stride *= (size_t)in.dims[in.rank - d];
        }
    }
    return index;
}

static void matmuls(void **state)
{
    static const int heads[][2][3] = {
        /* {rank, dims...} in front of the matrices of A and of B */
        {{0}, {0}},       {{1, 5}, {0}},       {{1, 5}, {1, 5}},       {{0}, {1, 4}},
        {{2, 2, 3}, {0}}, {{2, 2, 3}, {1, 3}}, {{2, 2, 1}, {2, 1, 3}}, {{1, 1}, {2, 2, 3}},
    };
    (void)state;
    for (int round = 0; round < 64; round++) {
        const int *ha = heads[round % 8][0], *hb = heads[round % 8][1];
        int rows = pick(1, 70), k = pick(1, 40), n = pick(1, 110);
        struct cm_shape a = {.rank = (uint8_t)(ha[0] + 2)}, b = {.rank = (uint8_t)(hb[0] + 2)};
        struct cm_shape head_a = {.rank = (uint8_t)ha[0]}, head_b = {.rank = (uint8_t)hb[0]};
        struct cm_shape head = {.rank = (uint8_t)(ha[0] > hb[0] ? ha[0] : hb[0])}, y;
        for (int i = 0; i < ha[0]; i++)
            a.dims[i] = head_a.dims[i] = ha[1 + i];
        for (int i = 0; i < hb[0]; i++)
            b.dims[i] = head_b.dims[i] = hb[1 + i];
        a.dims[ha[0]] = rows;
        a.dims[ha[0] + 1] = b.dims[hb[0]] = k;
        b.dims[hb[0] + 1] = n;
        for (int d = 1; d <= head.rank; d++) {
            int64_t da = d <= ha[0] ? ha[1 + ha[0] - d] : 1,
                    db = d <= hb[0] ? hb[1 + hb[0] - d] : 1;
            head.dims[head.rank - d] = da > db ? da : db;
        }
        y = head;
        y.dims[y.rank++] = rows;
        y.dims[y.rank++] = n;
        struct operand ops[2] = {operand("a", a, round % 3 == 1), operand("b", b, round % 3 == 2)};
        double *want = doubles(kit_count(y));
        for (size_t h = 0; h < kit_count(head); h++)
            for (int i = 0; i < rows; i++)
                for (int j = 0; j < n; j++)
                    for (int q = 0; q < k; q++)
                        want[(h * (size_t)rows + (size_t)i) * (size_t)n + (size_t)j] +=
                            (double)ops[0].data[(broadcast_index(head, head_a, h) * (size_t)rows +
                                                 (size_t)i) *
                                                    (size_t)k +
                                                (size_t)q] *
                            (double)ops[1]
                                .data[(broadcast_index(head, head_b, h) * (size_t)k + (size_t)q) *
                                          (size_t)n +
                                      (size_t)j];
        struct kit_model *m = kit_model(13);
        kit_node(m, "MatMul", "a,b", "y");
        check(m, ops, 2, y, want, k);
    }
}

static void gemms(void **state)
{
    (void)state;
    for (int round = 0; round < 96; round++) {
        bool ta = round & 1, tb = round & 2;
        float alpha = round & 4 ? 0.5f : 1, beta = round % 3 == 0 ? 1 : round % 3 == 1 ? 2 : 0;
        int rows = pick(1, 40), k = pick(1, 30), n = pick(1, 60), c_kind = round % 6;
        struct cm_shape c[6] = {kit_shape(0),          kit_shape(1, n),       kit_shape(2, 1, n),
                                kit_shape(2, rows, 1), kit_shape(2, rows, n), kit_shape(0)};
        struct cm_shape y = kit_shape(2, rows, n);
        struct operand ops[3] = {
            operand("a", ta ? kit_shape(2, k, rows) : kit_shape(2, rows, k), false),
            operand("b", tb ? kit_shape(2, n, k) : kit_shape(2, k, n), pick(0, 1)),
        };
        if (c_kind < 5)
            ops[2] = operand("c", c[c_kind], pick(0, 1));
        double *want = doubles(kit_count(y));
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int q = 0; q < k; q++)
                    sum += (double)ops[0].data[ta ? q * rows + i : i * k + q] *
                           (double)ops[1].data[tb ? j * k + q : q * n + j];
                size_t at = (size_t)(i * n + j);
                want[at] = (double)alpha * sum;
                if (c_kind < 5)
                    want[at] +=
                        (double)beta * (double)ops[2].data[broadcast_index(y, c[c_kind], at)];
            }
        struct kit_model *m = kit_model(13);
        kit_node(m, "Gemm", c_kind < 5 ? "a,b,c" : "a,b", "y");
        kit_attr_i(m, "transA", ta);
        kit_attr_i(m, "transB", tb);
        kit_attr_f(m, "alpha", alpha);
        kit_attr_f(m, "beta", beta);
        check(m, ops, c_kind < 5 ? 3 : 2, y, want, k);
    }
}

/* ---- element-wise and rows ------------------------------------------------------------------- */

static struct cm_shape random_broadcast(struct cm_shape out)
{
    struct cm_shape in = {.rank = (uint8_t)pick(0, out.rank)};
    for (int d = 1; d <= in.rank; d++)
        in.dims[in.rank - d] = pick(0, 1) ? 1 : out.dims[out.rank - d];
    return in;
}

static void broadcasting(void **state)
{
    static const char *const names[] = {"Add", "Sub", "Mul", "Div", "Min", "Max"};
    (void)state;
    for (int round = 0; round < 90; round++) {
        int op = round % 6, n = op >= 4 && round % 4 ? 3 : 2;
        struct cm_shape y = {.rank = (uint8_t)pick(0, 4)};
        for (int d = 0; d < y.rank; d++)
            y.dims[d] = pick(1, 9);
        struct operand ops[3] = {operand("a", round % 2 ? y : random_broadcast(y), false),
                                 operand("b", round % 2 ? random_broadcast(y) : y, pick(0, 1)),
                                 operand("c", random_broadcast(y), false)};
        double *want = doubles(kit_count(y));
        for (size_t i = 0; i < kit_count(y); i++) {
            double a = ops[0].data[broadcast_index(y, ops[0].shape, i)];
            double b = ops[1].data[broadcast_index(y, ops[1].shape, i)];
            double c = ops[2].data[broadcast_index(y, ops[2].shape, i)];
            const double results[] = {a + b, a - b, a * b, a / b, fmin(a, b), fmax(a, b)};
            want[i] = results[op];
            if (n == 3)
                want[i] = op == 4 ? fmin(want[i], c) : fmax(want[i], c);
        }
        if (n == 2)
            free(ops[2].data);
        struct kit_model *m = kit_model(13);
        kit_node(m, names[op], n == 3 ? "a,b,c" : "a,b", "y");
        check(m, ops, n, y, want, 0);
    }
}

static void softmaxes(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct cm_shape x = kit_shape(4, pick(1, 4), pick(1, 9), pick(1, 70), pick(1, 5));
        bool coerced = round % 2, log_form = round % 4 >= 2;
        int axis = pick(-4, 3), at = axis < 0 ? axis + 4 : axis;
        struct operand ops[1] = {operand("x", x, false)};
        double *want = doubles(kit_count(x));
        size_t outer = 1, n = 1, inner = 1;
        for (int d = 0; d < 4; d++) {
            size_t dim = (size_t)x.dims[d];
            *(d < at ? &outer : d == at || coerced ? &n : &inner) *= dim;
        }
        for (size_t o = 0; o < outer; o++)
            for (size_t i = 0; i < inner; i++) {
                double sum = 0;
                for (size_t k = 0; k < n; k++)
                    sum += exp((double)ops[0].data[(o * n + k) * inner + i]);
                for (size_t k = 0; k < n; k++) {
                    double v = ops[0].data[(o * n + k) * inner + i];
                    want[(o * n + k) * inner + i] = log_form ? v - log(sum) : exp(v) / sum;
                }
            }
        struct kit_model *m = kit_model(coerced ? 11 : 13);
        kit_node(m, log_form ? "LogSoftmax" : "Softmax", "x", "y");
        kit_attr_i(m, "axis", axis);
        check(m, ops, 1, x, want, log_form ? 4 : 0.01);
    }
}

static void means(void **state)
{
    (void)state;
    for (int round = 0; round < 48; round++) {
        struct cm_shape x = kit_shape(4, pick(1, 5), pick(1, 7), pick(1, 20), pick(1, 9));
        struct cm_shape kept = x, y = {0};
        bool keep = round % 2, newer = round % 4 >= 2;
        int marks = round % 16, count = 0;
        int64_t axes[4];
        struct operand ops[1] = {operand("x", x, false)};
        for (int d = 0; d < 4; d++)
            if (marks >> d & 1)
                axes[count++] = d - (d % 2 ? 4 : 0);
        for (int d = 0; d < 4; d++) {
            bool reduced = marks == 0 || marks >> d & 1;
            kept.dims[d] = reduced ? 1 : x.dims[d];
            if (!reduced || keep)
                y.dims[y.rank++] = kept.dims[d];
        }
        double *want = doubles(kit_count(y));
        double n = (double)kit_count(x) / (double)kit_count(y);
        for (size_t i = 0; i < kit_count(x); i++)
            want[broadcast_index(x, kept, i)] += (double)ops[0].data[i] / n;
        struct kit_model *m = kit_model(newer ? 18 : 13);
        kit_node(m, "ReduceMean", newer && count ? "x,axes" : "x", "y");
        kit_attr_i(m, "keepdims", keep);
        if (newer && count)
            kit_const(m, "axes", CM_INT64, kit_shape(1, count), axes);
        else if (count == 1)
            kit_attr_ints(m, "axes", 1, (int)axes[0]);
        else if (count == 2)
            kit_attr_ints(m, "axes", 2, (int)axes[0], (int)axes[1]);
        else if (count == 3)
            kit_attr_ints(m, "axes", 3, (int)axes[0], (int)axes[1], (int)axes[2]);
        else if (count == 4)
            kit_attr_ints(m, "axes", 4, (int)axes[0], (int)axes[1], (int)axes[2], (int)axes[3]);
        check(m, ops, 1, y, want, 1);
    }
}

static void normalisation(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        bool constant = round % 2;
        int c = pick(1, 40);
        struct cm_shape x =
            round < 4 ? kit_shape(4, 2, c, pick(1, 9), pick(1, 9)) : kit_shape(2, pick(1, 9), c);
        struct operand ops[5] = {operand("x", x, false), operand("g", kit_shape(1, c), constant),
                                 operand("b", kit_shape(1, c), constant),
                                 operand("mean", kit_shape(1, c), constant),
                                 operand("var", kit_shape(1, c), constant)};
        for (int i = 0; i < c; i++)
            ops[4].data[i] = fabsf(ops[4].data[i]) + 0.1f;
        double *want = doubles(kit_count(x));
        size_t plane = kit_count(x) / (size_t)(x.dims[0] * c);
        for (size_t i = 0; i < kit_count(x); i++) {
            size_t k = i / plane % (size_t)c;
            want[i] = ((double)ops[0].data[i] - (double)ops[3].data[k]) /
                          sqrt((double)ops[4].data[k] + 1e-3) * (double)ops[1].data[k] +
                      (double)ops[2].data[k];
        }
        struct kit_model *m = kit_model(9);
        kit_node(m, "BatchNormalization", "x,g,b,mean,var", "y");
        kit_attr_f(m, "epsilon", 1e-3f);
        check(m, ops, 5, x, want, 8);
    }
}

static void gelus(void **state)
{
    (void)state;
    for (int tanh_form = 0; tanh_form < 2; tanh_form++) {
        struct operand ops[1] = {operand("x", kit_shape(1, 3000), false)};
        double *want = doubles(3000);
        for (int i = 0; i < 3000; i++) {
            double x = ops[0].data[i] *= 4;
            want[i] = tanh_form ? 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)))
                                : 0.5 * x * (1 + erf(x / sqrt(2)));
        }
        struct kit_model *m = kit_model(20);
        kit_node(m, "Gelu", "x", "y");
        if (tanh_form)
            kit_attr_s(m, "approximate", "tanh");
        check(m, ops, 1, kit_shape(1, 3000), want, 1);
    }
}

static void clips(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        bool low = round & 1, high = round & 2, computed = round & 4;
        struct operand ops[3] = {operand("x", kit_shape(1, 5000), false),
                                 operand("lo", kit_shape(0), !computed),
                                 operand("hi", kit_shape(0), !computed)};
        ops[1].data[0] = -0.25f;
        ops[2].data[0] = 0.5f;
        double *want = doubles(5000);
        for (int i = 0; i < 5000; i++) {
            want[i] = ops[0].data[i];
            want[i] = low ? fmax(want[i], -0.25) : want[i];
            want[i] = high ? fmin(want[i], 0.5) : want[i];
        }
        struct kit_model *m = kit_model(13);
        kit_node(m, "Clip", low ? high ? "x,lo,hi" : "x,lo" : high ? "x,,hi" : "x", "y");
        check(m, ops, 3, kit_shape(1, 5000), want, 0);
    }
}

/* ---- movement -------------------------------------------------------------------------------- */

static void transposes(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct cm_shape x = kit_shape(4, pick(1, 6), pick(1, 6), pick(1, 30), pick(1, 20));
        int perm[4] = {0, 1, 2, 3};
        struct cm_shape y = x;
        struct operand ops[1] = {operand("x", x, false)};
        for (int i = 3; i > 0; i--) {
            int k = pick(0, i), kept = perm[i];
            perm[i] = perm[k];
            perm[k] = kept;
        }
        size_t stride[4] = {(size_t)(x.dims[1] * x.dims[2] * x.dims[3]),
                            (size_t)(x.dims[2] * x.dims[3]), (size_t)x.dims[3], 1};
        for (int i = 0; i < 4; i++)
            y.dims[i] = x.dims[perm[i]];
        double *want = doubles(kit_count(y));
        for (size_t i = 0; i < kit_count(y); i++) {
            size_t rest = i, from = 0;
            for (int d = 3; d >= 0; d--) {
                from += rest % (size_t)y.dims[d] * stride[perm[d]];
                rest /= (size_t)y.dims[d];
            }
            want[i] = ops[0].data[from];
        }
        struct kit_model *m = kit_model(13);
        kit_node(m, "Transpose", "x", "y");
        kit_attr_ints(m, "perm", 4, perm[0], perm[1], perm[2], perm[3]);
        check(m, ops, 1, y, want, 0);
    }
}

static void slices(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct cm_shape x = kit_shape(2, pick(1, 9), pick(1, 40)), y = {.rank = 2};
        bool old = round % 3 == 0;
        int64_t start[2], end[2], step[2];
        struct operand ops[1] = {operand("x", x, false)};
        for (int d = 0; d < 2; d++) {
            start[d] = pick(-45, 45);
            end[d] = pick(-45, 45);
            step[d] = old ? 1 : pick(0, 1) ? pick(1, 4) : -pick(1, 4);
        }
        /* Python's rule, element by element. */
        int64_t chosen[2][64];
        for (int d = 0; d < 2; d++) {
            int64_t dim = x.dims[d], s = start[d] < 0 ? start[d] + dim : start[d];
            int64_t e = end[d] < 0 ? end[d] + dim : end[d];
            if (step[d] > 0) {
                s = s < 0 ? 0 : s;
                e = e > dim ? dim : e;
            } else {
                s = s > dim - 1 ? dim - 1 : s < 0 ? -1 : s;
                e = e < -1 ? -1 : e;
            }
            /* ONNX, unlike Python, moves a start in front of the tensor to its first element. */
            if (step[d] < 0 && s < 0)
                s = 0;
            for (int64_t i = s; step[d] > 0 ? i < e : i > e; i += step[d])
                chosen[d][y.dims[d]++] = i;
        }
        double *want = doubles(kit_count(y));
        for (int64_t i = 0; i < y.dims[0]; i++)
            for (int64_t k = 0; k < y.dims[1]; k++)
                want[i * y.dims[1] + k] = ops[0].data[chosen[0][i] * x.dims[1] + chosen[1][k]];
        struct kit_model *m = kit_model(old ? 9 : 13);
        if (old) {
            kit_node(m, "Slice", "x", "y");
            kit_attr_ints(m, "starts", 2, (int)start[0], (int)start[1]);
            kit_attr_ints(m, "ends", 2, (int)end[0], (int)end[1]);
        } else {
            kit_const(m, "s", CM_INT64, kit_shape(1, 2), start);
            kit_const(m, "e", CM_INT64, kit_shape(1, 2), end);
            kit_const(m, "t", CM_INT64, kit_shape(1, 2), step);
            kit_node(m, "Slice", "x,s,e,,t", "y");
        }
        check(m, ops, 1, y, want, 0);
    }
}

static void concat_pad_expand(void **state)
{
    (void)state;
    struct operand parts[3] = {operand("a", kit_shape(3, 2, 3, 5), false),
                               operand("b", kit_shape(3, 2, 1, 5), true),
                               operand("c", kit_shape(3, 2, 4, 5), false)};
    double *want = doubles(2 * 8 * 5);
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 8; c++)
            for (int i = 0; i < 5; i++)
                want[(n * 8 + c) * 5 + i] = c < 3   ? parts[0].data[(n * 3 + c) * 5 + i]
                                            : c < 4 ? parts[1].data[n * 5 + i]
                                                    : parts[2].data[(n * 4 + c - 4) * 5 + i];
    struct kit_model *m = kit_model(13);
    kit_node(m, "Concat", "a,b,c", "y");
    kit_attr_i(m, "axis", -2);
    check(m, parts, 3, kit_shape(3, 2, 8, 5), want, 0);

    struct operand x[2] = {operand("x", kit_shape(2, 3, 4), false)};
    want = doubles(6 * 5);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 5; k++)
            want[i * 5 + k] = i >= 1 && i < 4 && k < 4 ? (double)x[0].data[(i - 1) * 4 + k] : -2.5;
    m = kit_model(10);
    kit_node(m, "Pad", "x", "y");
    kit_attr_ints(m, "pads", 4, 1, 0, 2, 1);
    kit_attr_f(m, "value", -2.5f);
    check(m, x, 1, kit_shape(2, 6, 5), want, 0);

    struct operand e[1] = {operand("x", kit_shape(3, 3, 1, 2), false)};
    want = doubles(2 * 3 * 4 * 2);
    for (int i = 0; i < 2 * 3 * 4 * 2; i++)
        want[i] = e[0].data[i / 8 % 3 * 2 + i % 2];
    m = kit_model(13);
    kit_ints(m, "s", 4, 2, 1, 4, 1);
    kit_node(m, "Expand", "x,s", "y");
    check(m, e, 1, kit_shape(4, 2, 3, 4, 2), want, 0);
}

/* Indices that come with the request: 32 and 64 bits, from the back, and out of range. */
static void gathers(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        struct kit_model *m = kit_model(13);
        float table[6] = {0, 1, 10, 11, 20, 21};
        int64_t indices[4] = {2, 0, -1, -3};
        int32_t narrow[4] = {2, 0, -1, -3};
        const float want[8] = {20, 21, 0, 1, 20, 21, 0, 1};
        struct cm_shape shape = kit_shape(2, 2, 2);
        const void *in[] = {wide ? (const void *)indices : narrow};
        void *out[1];
        kit_const(m, "t", CM_FP32, kit_shape(2, 3, 2), table);
        kit_input(m, "i", wide ? CM_INT64 : CM_INT32, kit_shape(2, -1, 2));
        kit_node(m, "Gather", "t,i", "y");
        kit_output(m, "y", CM_FP32, kit_shape(3, -1, 2, 2));
        struct kit_loaded l;
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, &shape, in, out, NULL);
        assert_memory_equal(out[0], want, sizeof want);
        free(out[0]);
        for (int bad = 0; bad < 3; bad++) {
            const int64_t values[] = {3, -4, INT32_MIN};
            indices[1] = values[bad];
            narrow[1] = (int32_t)values[bad];
            kit_run_refused(&l, &shape, in, CM_INVALID, "Gather", "of 3 elements");
        }
        kit_unload(&l);
        kit_free(m);
    }
}

/* Arithmetic on integers that come with the request, and casts around it. */
static void integers(void **state)
{
    struct kit_model *m = kit_model(13);
    const int64_t a[4] = {7, -7, INT64_MAX, 5}, b[4] = {2, 2, 1, 0};
    const int64_t sum[4] = {9, -5, INT64_MIN, 5}, quotient[4] = {3, -3, INT64_MAX, 0};
    struct cm_shape shapes[] = {kit_shape(1, 4), kit_shape(1, 4)};
    const void *in[] = {a, b};
    void *out[3];
    (void)state;
    kit_input(m, "a", CM_INT64, kit_shape(1, -1));
    kit_input(m, "b", CM_INT64, kit_shape(1, -1));
    kit_node(m, "Add", "a,b", "sum");
    kit_node(m, "Div", "a,b", "quotient");
    kit_node(m, "Cast", "b", "flag");
    kit_attr_i(m, "to", 9);
    kit_output(m, "sum", CM_INT64, kit_shape(1, -1));
    kit_output(m, "quotient", CM_INT64, kit_shape(1, -1));
    kit_output(m, "flag", CM_BOOL, kit_shape(1, -1));
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    kit_run(&l, shapes, in, out, NULL);
    assert_memory_equal(out[0], sum, sizeof sum);
    assert_memory_equal(out[1], quotient, sizeof quotient);
    assert_memory_equal(out[2], "\1\1\1\0", 4);
    for (int i = 0; i < 3; i++)
        free(out[i]);
    kit_unload(&l);
    kit_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(pools),
        cmocka_unit_test(matmuls),
        cmocka_unit_test(gemms),
        cmocka_unit_test(broadcasting),
        cmocka_unit_test(softmaxes),
        cmocka_unit_test(means),
        cmocka_unit_test(normalisation),
        cmocka_unit_test(clips),
        cmocka_unit_test(gelus),
        cmocka_unit_test(transposes),
        cmocka_unit_test(slices),
        cmocka_unit_test(concat_pad_expand),
        cmocka_unit_test(gathers),
        cmocka_unit_test(integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
