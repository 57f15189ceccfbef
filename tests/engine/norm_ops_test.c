/* Normalisation of every floating type against plain loops in double: batch (inference and
 * training, every opset's form), layer, instance, group, local response, Lp and mean-variance; and
 * what the batch proof says about this family. */
#include "tests/engine/typed_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};

/* Mean and population variance of n values at distance stride. */
static void moments(const double *x, size_t n, size_t stride, double *mean, double *var)
{
    *mean = *var = 0;
    for (size_t i = 0; i < n; i++)
        *mean += x[i * stride] / (double)n;
    for (size_t i = 0; i < n; i++)
        *var += (x[i * stride] - *mean) * (x[i * stride] - *mean) / (double)n;
}

static void positive(struct typed_operand *o)
{
    for (size_t i = 0; i < o->count; i++)
        o->v[i] = fabs(o->v[i]) + 0.25;
    typed_round(o);
}

/* ---- BatchNormalization ---------------------------------------------------------------------- */

/* Channel of element i, for x [N, C, ...]; without spatial every element of a row is one. */
static size_t channel_of(struct cm_shape x, bool spatial, size_t i)
{
    size_t row = 1, plane = 1;
    for (unsigned d = 1; d < x.rank; d++)
        row *= (size_t)x.dims[d];
    for (unsigned d = 2; d < x.rank; d++)
        plane *= (size_t)x.dims[d];
    if (x.rank == 1)
        return 0;
    return spatial ? i % row / plane : i % row;
}

struct batch {
    int opset;
    bool trains, spatial, constant;
    enum cm_dtype dtype, statistics; /* of x and scale, of mean and variance */
    struct cm_shape x;
};

static void batch_expect(const struct batch *b, struct typed_case *c)
{
    const double *x = c->in[0].v, *scale = c->in[1].v, *bias = c->in[2].v;
    size_t channels = c->in[1].count, n = c->in[0].count;
    double *y = typed_room(n), *own[2] = {typed_room(channels), typed_room(channels)};
    double *run[2] = {typed_room(channels), typed_room(channels)};
    for (size_t ch = 0; ch < channels; ch++) {
        double *mine = typed_room(n), mean = c->in[3].v[ch], var = c->in[4].v[ch];
        size_t count = 0;
        for (size_t i = 0; i < n; i++)
            if (channel_of(b->x, b->spatial, i) == ch)
                mine[count++] = x[i];
        if (b->trains)
            moments(mine, count, 1, &mean, &var);
        own[0][ch] = mean;
        own[1][ch] = var;
        for (int k = 0; k < 2; k++)
            run[k][ch] = (double)0.7f * c->in[3 + k].v[ch] + (1 - (double)0.7f) * own[k][ch];
        for (size_t i = 0; i < n; i++)
            if (channel_of(b->x, b->spatial, i) == ch)
                y[i] = (x[i] - mean) / sqrt(var + (double)0.01f) * scale[ch] + bias[ch];
        free(mine);
    }
    typed_check(c, 0, y, 8);
    for (int k = 1; k < c->n_out; k++)
        typed_check(c, k, k < 3 ? run[k - 1] : own[k - 3], 4);
    free(y);
    for (int k = 0; k < 2; k++) {
        free(own[k]);
        free(run[k]);
    }
}

static void batch_case(const struct batch *b)
{
    static const char *const parameters[] = {"scale", "bias", "mean", "var"};
    static const char *const statistics[] = {"run_mean", "run_var", "own_mean", "own_var"};
    struct cm_shape p = kit_shape(1, b->x.rank == 1 ? 1 : (int)b->x.dims[1]);
    struct typed_case c;
    int n_statistics = !b->trains ? 0 : b->opset < 14 ? 4 : 2;
    if (!b->spatial) {
        p = b->x;
        memmove(p.dims, p.dims + 1, sizeof p.dims - sizeof *p.dims);
        p.rank--;
    }
    typed_begin(&c, b->opset);
    typed_random(&c, "x", b->dtype, b->x, 2);
    for (int k = 0; k < 4; k++)
        typed_random(&c, parameters[k], k < 2 ? b->dtype : b->statistics, p, 1)->constant =
            b->constant;
    positive(&c.in[4]);
    kit_node(c.model, "BatchNormalization", "x,scale,bias,mean,var",
             n_statistics == 4   ? "y,run_mean,run_var,own_mean,own_var"
             : n_statistics == 2 ? "y,run_mean,run_var"
                                 : "y");
    kit_attr_f(c.model, "epsilon", 0.01f);
    kit_attr_f(c.model, "momentum", 0.7f);
    if (b->opset < 7)
        kit_attr_i(c.model, "is_test", !b->trains);
    if (b->opset < 9)
        kit_attr_i(c.model, "spatial", b->spatial);
    if (b->opset >= 14)
        kit_attr_i(c.model, "training_mode", b->trains);
    typed_output(&c, "y", b->dtype, b->x);
    for (int k = 0; k < n_statistics; k++)
        typed_output(&c, statistics[k], b->statistics, p);
    typed_run(&c);
    batch_expect(b, &c);
    typed_end(&c);
}

static void batch_norms(void **state)
{
    static const int opsets[] = {6, 7, 9, 14, 15};
    (void)state;
    for (int o = 0; o < COUNT(opsets); o++)
        for (int t = 0; t < COUNT(floats); t++)
            for (unsigned how = 0; how < 8; how++) {
                struct batch b = {.opset = opsets[o], .trains = how & 1, .constant = how & 2};
                b.spatial = opsets[o] >= 9 || how < 6;
                b.dtype = floats[t];
                b.statistics = opsets[o] == 15 && how & 4 ? CM_FP32 : floats[t];
                b.x = how & 4 ? kit_shape(2, 6, 5) : kit_shape(4, 3, 4, 2, 3);
                batch_case(&b);
            }
    struct batch vector = {.opset = 15, .spatial = true, .dtype = CM_FP32, .statistics = CM_FP32};
    vector.x = kit_shape(1, 7);
    batch_case(&vector);
    vector.trains = true;
    batch_case(&vector);
}

/* Everything is a constant, and nothing is computed at load: what is normalised must be stored
 * although the parameters are kept elsewhere. Larger than what is known while planning. */
static void batch_of_constants(void **state)
{
    enum { CHANNELS = 3, PLANE = 19 * 37, COUNT_X = CHANNELS * PLANE };
    static const float scale[CHANNELS] = {1, 2, 3}, mean[CHANNELS] = {0.5f, 0, 1};
    static const float var[CHANNELS] = {1, 4, 9};
    float x[COUNT_X];
    struct kit_loaded l;
    struct cm_shape shape;
    struct kit_model *m = kit_model(13);
    size_t length;
    void *y;
    uint64_t all;
    (void)state;
    for (int i = 0; i < COUNT_X; i++)
        x[i] = (float)(i % 7 - 3);
    kit_const(m, "x", CM_FP32, kit_shape(4, 1, CHANNELS, 19, 37), x);
    kit_const(m, "scale", CM_FP32, kit_shape(1, CHANNELS), scale);
    kit_const(m, "mean", CM_FP32, kit_shape(1, CHANNELS), mean);
    kit_const(m, "var", CM_FP32, kit_shape(1, CHANNELS), var);
    kit_node(m, "BatchNormalization", "x,scale,scale,mean,var", "y");
    kit_attr_f(m, "epsilon", 0);
    kit_output(m, "y", CM_FP32, kit_shape(4, 1, CHANNELS, 19, 37));
    assert_true(wk_pass_from_name("all", &all));
    void *bytes = kit_bytes(m, &length);
    kit_load_without(&l, bytes, length, all);
    kit_run(&l, NULL, NULL, &y, &shape);
    for (int i = 0; i < COUNT_X; i++) {
        int c = i / PLANE;
        float want = (x[i] - mean[c]) / sqrtf(var[c]) * scale[c] + scale[c];
        assert_true(fabsf(((float *)y)[i] - want) < 1e-5f);
    }
    kit_unload(&l);
    free(y);
    free(bytes);
    kit_free(m);
}

static void batch_refusals(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        static const char *const texts[] = {"do not fit", "statistics as outputs without training",
                                            "which it does not take"};
        struct typed_case c;
        typed_begin(&c, 15);
        typed_random(&c, "x", i == 2 ? CM_INT32 : CM_FP32, kit_shape(3, 2, 3, 4), 1);
        typed_random(&c, "p", CM_FP32, kit_shape(1, i == 0 ? 4 : 3), 1);
        kit_node(c.model, "BatchNormalization", "x,p,p,p,p", i == 1 ? "y,m,v" : "y");
        typed_output(&c, i == 1 ? "m" : "y", CM_FP32,
                     i == 1 ? kit_shape(1, 3) : kit_shape(3, 2, 3, 4));
        typed_refused(&c, i == 2 ? CM_UNSUPPORTED : CM_INVALID, texts[i]);
    }
}

/* ---- layer, instance, group ------------------------------------------------------------------ */

struct layer {
    int axis, bias, odd; /* odd: scale of another shape than the row's */
    bool statistics;
    enum cm_dtype dtype;
};

static size_t product(struct cm_shape shape, int from, int to)
{
    size_t n = 1;
    for (int d = from; d < to; d++)
        n *= (size_t)shape.dims[d];
    return n;
}

static void layer_case(const struct layer *l)
{
    struct cm_shape x = kit_shape(3, 4, 3, 20), p = x, rows = x;
    struct typed_case c;
    int axis = l->axis < 0 ? l->axis + 3 : l->axis;
    size_t n = product(x, axis, 3), n_rows = product(x, 0, axis);
    if (l->odd) {
        p = kit_shape(2, 3, 1);
    } else {
        memmove(p.dims, p.dims + axis, (size_t)(3 - axis) * sizeof *p.dims);
        p.rank = (uint8_t)(3 - axis);
    }
    for (int d = axis; d < 3; d++)
        rows.dims[d] = 1;
    typed_begin(&c, 17);
    const double *v = typed_random(&c, "x", l->dtype, x, 3)->v;
    const double *scale = typed_random(&c, "scale", l->dtype, p, 1)->v;
    const double *bias = l->bias ? typed_random(&c, "bias", l->dtype, p, 1)->v : NULL;
    kit_node(c.model, "LayerNormalization", l->bias ? "x,scale,bias" : "x,scale",
             l->statistics ? "y,mean,inv" : "y");
    kit_attr_i(c.model, "axis", l->axis);
    kit_attr_f(c.model, "epsilon", 0.02f);
    typed_output(&c, "y", l->dtype, x);
    if (l->statistics) {
        typed_output(&c, "mean", CM_FP32, rows);
        typed_output(&c, "inv", CM_FP32, rows);
    }
    double *want = typed_room(240), *means = typed_room(n_rows), *invs = typed_room(n_rows);
    for (size_t i = 0; i < 240; i++) {
        double mean, var;
        size_t at = l->odd ? i / 20 % 3 : i % n;
        moments(v + i / n * n, n, 1, &mean, &var);
        means[i / n] = mean;
        invs[i / n] = 1 / sqrt(var + (double)0.02f);
        want[i] = (v[i] - mean) * invs[i / n] * scale[at] + (bias ? bias[at] : 0);
    }
    typed_run(&c);
    typed_check(&c, 0, want, 6);
    if (l->statistics) {
        typed_check(&c, 1, means, 4);
        typed_check(&c, 2, invs, 4);
    }
    free(want);
    free(means);
    free(invs);
    typed_end(&c);
}

static void layer_norms(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int axis = -3; axis < 3; axis++)
            for (unsigned how = 0; how < 8; how++) {
                struct layer l = {axis, how & 1, how & 2, how & 4, floats[t]};
                layer_case(&l);
            }
}

static void layer_refusals(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        static const char *const texts[] = {"axis 2 of 2 dimensions", "do not fit", "stash_type",
                                            "operands have types FP16 and FP32"};
        struct typed_case c;
        typed_begin(&c, 17);
        typed_random(&c, "x", i == 3 ? CM_FP16 : CM_FP32, kit_shape(2, 4, 6), 1);
        typed_random(&c, "scale", CM_FP32, kit_shape(1, i == 1 ? 4 : 6), 1);
        kit_node(c.model, "LayerNormalization", "x,scale", "y");
        kit_attr_i(c.model, "axis", i == 0 ? 2 : -1);
        kit_attr_i(c.model, "stash_type", i == 2 ? 11 : 1);
        typed_output(&c, "y", CM_FP32, kit_shape(2, 4, 6));
        typed_refused(&c, i == 2 ? CM_UNSUPPORTED : CM_INVALID, texts[i]);
    }
}

/* groups of channels share moments; 0: each channel has its own (InstanceNormalization). */
static void group_case(int opset, int groups, enum cm_dtype dtype, struct cm_shape x)
{
    struct typed_case c;
    size_t channels = (size_t)x.dims[1], plane = product(x, 2, x.rank), n = kit_count(x);
    size_t in_group = groups ? channels / (size_t)groups : 1;
    bool by_group = groups && opset < 21;
    struct cm_shape p = kit_shape(1, by_group ? groups : (int)channels);
    typed_begin(&c, opset);
    const double *v = typed_random(&c, "x", dtype, x, 3)->v;
    const double *scale = typed_random(&c, "scale", dtype, p, 1)->v;
    const double *bias = typed_random(&c, "bias", dtype, p, 1)->v;
    kit_node(c.model, groups ? "GroupNormalization" : "InstanceNormalization", "x,scale,bias", "y");
    if (groups)
        kit_attr_i(c.model, "num_groups", groups);
    kit_attr_f(c.model, "epsilon", 0.01f);
    typed_output(&c, "y", dtype, x);
    double *want = typed_room(n);
    for (size_t i = 0; i < n; i++) {
        size_t row = in_group * plane, channel = i / plane % channels;
        size_t at = by_group ? channel / in_group : channel;
        double mean, var;
        moments(v + i / row * row, row, 1, &mean, &var);
        want[i] = (v[i] - mean) / sqrt(var + (double)0.01f) * scale[at] + bias[at];
    }
    typed_run(&c);
    typed_check(&c, 0, want, 6);
    free(want);
    typed_end(&c);
}

static void group_norms(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int rank = 3; rank <= 5; rank++) {
            struct cm_shape x = kit_shape(rank, 2, 6, 3, 4, 2);
            group_case(6, 0, floats[t], x);
            for (int groups = 1; groups <= 6; groups += groups < 3 ? 1 : 3) {
                group_case(18, groups, floats[t], x);
                group_case(21, groups, floats[t], x);
            }
        }
    for (int i = 0; i < 3; i++) {
        static const int groups[] = {4, 0, 3};
        static const char *const texts[] = {"4 groups do not divide", "num_groups 0", "do not fit"};
        struct typed_case c;
        typed_begin(&c, 18);
        typed_random(&c, "x", CM_FP32, kit_shape(3, 2, 6, 4), 1);
        typed_random(&c, "p", CM_FP32, kit_shape(1, 6), 1);
        kit_node(c.model, "GroupNormalization", "x,p,p", "y");
        kit_attr_i(c.model, "num_groups", groups[i]);
        typed_output(&c, "y", CM_FP32, kit_shape(3, 2, 6, 4));
        typed_refused(&c, CM_INVALID, texts[i]);
    }
}

/* ---- the rare kinds -------------------------------------------------------------------------- */

static void local_responses(void **state)
{
    static const float betas[] = {0.75f, 0.5f, 1.0f, 0.3f};
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int size = 1; size <= 7; size++) {
            float beta = betas[size % 4];
            struct cm_shape x = kit_shape(4, 2, 5, 2, 3);
            struct typed_case c;
            typed_begin(&c, 13);
            const double *v = typed_random(&c, "x", floats[t], x, 3)->v;
            kit_node(c.model, "LRN", "x", "y");
            kit_attr_i(c.model, "size", size);
            kit_attr_f(c.model, "alpha", 0.5f);
            kit_attr_f(c.model, "beta", beta);
            kit_attr_f(c.model, "bias", 2.0f);
            typed_output(&c, "y", floats[t], x);
            double want[60];
            for (int i = 0; i < 60; i++) {
                int channel = i / 6 % 5;
                double sum = 0;
                for (int k = channel - (size - 1) / 2; k <= channel + size / 2; k++)
                    if (k >= 0 && k < 5) {
                        double at = v[i + (k - channel) * 6];
                        sum += at * at;
                    }
                want[i] = v[i] / pow(2 + 0.5 / size * sum, (double)beta);
            }
            typed_run(&c);
            typed_check(&c, 0, want, 1);
            typed_end(&c);
        }
    struct typed_case c;
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_FP32, kit_shape(4, 1, 2, 2, 2), 1);
    kit_node(c.model, "LRN", "x", "y");
    typed_output(&c, "y", CM_FP32, kit_shape(4, 1, 2, 2, 2));
    typed_refused(&c, CM_INVALID, "size is missing");
}

static void lp_norms(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int axis = -3; axis < 3; axis++)
            for (int p = 1; p <= 2; p++) {
                struct cm_shape shape = kit_shape(3, 3, 4, 5);
                int at = (axis + 3) % 3;
                size_t n = (size_t)shape.dims[at], inner = product(shape, at + 1, 3);
                struct typed_case c;
                typed_begin(&c, 13);
                struct typed_operand *x = typed_random(&c, "x", floats[t], shape, 3);
                for (size_t j = 0; j < n; j++)
                    x->v[j * inner] = 0; /* a norm of 0 */
                kit_node(c.model, "LpNormalization", "x", "y");
                kit_attr_i(c.model, "axis", axis);
                kit_attr_i(c.model, "p", p);
                typed_output(&c, "y", floats[t], shape);
                double want[60];
                for (size_t i = 0; i < 60; i++) {
                    size_t first = i / (n * inner) * n * inner + i % inner;
                    double norm = 0;
                    for (size_t j = 0; j < n; j++)
                        norm += pow(fabs(x->v[first + j * inner]), p);
                    norm = p == 2 ? sqrt(norm) : norm;
                    want[i] = norm == 0 ? 0 : x->v[i] / norm;
                }
                typed_run(&c);
                typed_check(&c, 0, want, 1);
                typed_end(&c);
            }
    struct typed_case c;
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 2), 1);
    kit_node(c.model, "LpNormalization", "x", "y");
    kit_attr_i(c.model, "p", 3);
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 2));
    typed_refused(&c, CM_INVALID, "p 3 is not between 1 and 2");
}

static void mean_variances(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int given = 0; given < 2; given++) {
            struct cm_shape shape = kit_shape(4, 2, 3, 2, 4);
            struct typed_case c;
            typed_begin(&c, 13);
            const double *v = typed_random(&c, "x", floats[t], shape, 3)->v;
            kit_node(c.model, "MeanVarianceNormalization", "x", "y");
            if (given)
                kit_attr_ints(c.model, "axes", 2, 1, -1);
            typed_output(&c, "y", floats[t], shape);
            double want[48];
            for (int i = 0; i < 48; i++) {
                double same[48], mean, var;
                size_t n = 0;
                for (int j = 0; j < 48; j++) /* the coordinates that are kept are equal */
                    if (given ? j / 24 == i / 24 && j / 4 % 2 == i / 4 % 2 : j / 8 % 3 == i / 8 % 3)
                        same[n++] = v[j];
                moments(same, n, 1, &mean, &var);
                want[i] = (v[i] - mean) / (sqrt(var) + 1e-9);
            }
            typed_run(&c);
            typed_check(&c, 0, want, 4);
            typed_end(&c);
        }
    struct typed_case c;
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_FP32, kit_shape(3, 2, 2, 2), 1);
    kit_node(c.model, "MeanVarianceNormalization", "x", "y");
    typed_output(&c, "y", CM_FP32, kit_shape(3, 2, 2, 2));
    typed_refused(&c, CM_INVALID, "axis 3 of 3 dimensions");
}

/* ---- the batch proof ------------------------------------------------------------------------- */

struct proof {
    const char *op, *attribute;
    int value;
    bool batchable;
    int rank, opset; /* of x [N, 4, 6, ...]; 0: 13 */
    const char *inputs;
};

static void proofs(void **state)
{
    static const struct proof cases[] = {
        {"LayerNormalization", "axis", -1, true, 3, 17, "x,six"},
        {"LayerNormalization", "axis", 1, true, 3, 17, "x,six"},
        {"LayerNormalization", "axis", 0, false, 3, 17, "x,six"},
        {"InstanceNormalization", NULL, 0, true, 3, 0, "x,four,four"},
        {"GroupNormalization", "num_groups", 2, true, 3, 21, "x,four,four"},
        {"LpNormalization", "axis", 1, true, 3, 0, "x"},
        {"LpNormalization", "axis", 0, false, 3, 0, "x"},
        {"LRN", "size", 3, true, 4, 0, "x"},
        {"MeanVarianceNormalization", NULL, 0, false, 4, 0, "x"},
        {"BatchNormalization", "training_mode", 0, true, 3, 15, "x,four,four,four,four"},
        {"BatchNormalization", "training_mode", 1, false, 3, 15, "x,four,four,four,four"},
        {"ArgMax", "axis", 1, true, 3, 0, "x"},
        {"ArgMin", "axis", 0, false, 3, 0, "x"},
        {"TopK", "axis", 1, true, 3, 0, "x,two"},
        {"CumSum", NULL, 0, true, 3, 0, "x,two"},
        {"CumSum", NULL, 0, false, 3, 0, "x,zero"},
        {"Hardmax", "axis", 1, true, 3, 0, "x"},
        {"Hardmax", "axis", 0, false, 3, 0, "x"},
        {"ReduceL2", "keepdims", 1, false, 3, 0, "x"},
        {"ReduceLogSumExp", "keepdims", 1, false, 3, 0, "x"},
        {"GlobalLpPool", "p", 2, true, 4, 0, "x"},
        {"Det", NULL, 0, true, 3, 0, "x"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        static const float ones[6] = {1, 1, 1, 1, 1, 1};
        const struct proof *p = &cases[i];
        int square = strcmp(p->op, "Det") == 0 ? 4 : 6;
        struct kit_model *m = kit_model(p->opset ? p->opset : 13);
        struct kit_loaded l;
        kit_input(m, "x", CM_FP32, kit_shape(p->rank, -1, 4, square, 5));
        kit_const(m, "four", CM_FP32, kit_shape(1, 4), ones);
        kit_const(m, "six", CM_FP32, kit_shape(1, 6), ones);
        kit_ints(m, "two", 1, 2);
        kit_ints(m, "zero", 1, 0);
        kit_node(m, p->op, p->inputs, "y");
        if (p->attribute)
            kit_attr_i(m, p->attribute, p->value);
        bool reduces = strncmp(p->op, "Arg", 3) == 0 || strcmp(p->op, "Det") == 0;
        kit_output(m, "y", reduces && p->op[0] == 'A' ? CM_INT64 : CM_FP32,
                   p->op[0] == 'D' ? kit_shape(1, -1) : kit_shape(p->rank, -1, -1, -1, -1));
        kit_load_model(&l, m, 1, NULL);
        if (wk_model_signature(l.model)->batchable != p->batchable)
            fail_msg("%s (case %d): batchable is %d: %s", p->op, i, !p->batchable,
                     wk_model_signature(l.model)->why_not);
        kit_unload(&l);
        kit_free(m);
    }
}

static void einsum_proofs(void **state)
{
    static const struct {
        const char *equation;
        bool batchable;
    } cases[] = {{"abc,cd->abd", true},
                 {"abc,cd->bad", false},
                 {"abc,cd->bd", false},
                 {"...c,cd->...d", true},
                 {"abc,cd->adb", true}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        static const float ones[30] = {1};
        struct kit_model *m = kit_model(13);
        struct kit_loaded l;
        kit_input(m, "x", CM_FP32, kit_shape(3, -1, 4, 6));
        kit_const(m, "w", CM_FP32, kit_shape(2, 6, 5), ones);
        kit_node(m, "Einsum", "x,w", "y");
        kit_attr_s(m, "equation", cases[i].equation);
        kit_output(m, "y", CM_FP32, kit_shape(i == 2 ? 2 : 3, -1, -1, -1));
        kit_load_model(&l, m, 1, NULL);
        if (wk_model_signature(l.model)->batchable != cases[i].batchable)
            fail_msg("%s: %s", cases[i].equation, wk_model_signature(l.model)->why_not);
        kit_unload(&l);
        kit_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_norms),     cmocka_unit_test(batch_of_constants),
        cmocka_unit_test(batch_refusals),  cmocka_unit_test(layer_norms),
        cmocka_unit_test(layer_refusals),  cmocka_unit_test(group_norms),
        cmocka_unit_test(local_responses), cmocka_unit_test(lp_norms),
        cmocka_unit_test(mean_variances),  cmocka_unit_test(proofs),
        cmocka_unit_test(einsum_proofs),
    };
    return cmocka_run_group_tests_name("norm_ops", tests, NULL, NULL);
}
