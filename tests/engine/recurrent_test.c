/* RNN, GRU and LSTM against plain loops in double precision, over random layers: every direction,
 * layout, activation and optional operand, constant and computed weights. Each case runs on every
 * instruction set with one and more threads, and sequence by sequence; bytes must be equal. The
 * loops here are written from the operators' definition and share nothing with the engine. */
#include "tests/engine/kit.h"
#include "tests/engine/one_answer.h"

#include "gpu-worker/cpu/features.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { X, W, R, B, LENS, H0, C0, P, N_OPERANDS };
static const char *const operand_names[] = {"x", "w", "r", "b", "lens", "h0", "c0", "p"};
static const char *const output_names[] = {"y", "yh", "yc"};

struct layer {
    const char *op;
    int gates, n_acts, n_out;
    int directions, seq, batch, input, hidden;
    bool reverse, batch_first, linear_before_reset, input_forget;
    float clip; /* 0: none */
    int act[6]; /* -1 in the first: the usual ones */
    bool has[N_OPERANDS], constant[N_OPERANDS], wants[3];
    void *data[N_OPERANDS];
    struct cm_shape shape[N_OPERANDS];
    double *y[3];
    struct cm_shape y_shape[3];
};

static uint64_t random_state = 77;

static int pick(int least, int most)
{
    return kit_pick(&random_state, least, most);
}

static bool chance(int in)
{
    return pick(1, in) == 1;
}

/* ---- the definition -------------------------------------------------------------------------- */

static const char *const act_names[] = {
    "Relu",       "Tanh",        "Sigmoid", "Affine",   "LeakyRelu", "ThresholdedRelu",
    "ScaledTanh", "HardSigmoid", "Elu",     "Softsign", "Softplus"};
enum { N_ACTS = 11 };
/* Parameters that the cases give to those that have them. */
static const float act_alpha = 0.4f, act_beta = 0.3f;

static double act(const struct layer *l, int direction, int k, double x)
{
    const double a = act_alpha, b = act_beta;
    int fn = l->act[0] < 0 ? (l->n_acts > 1 && k == 0 ? 2 : 1) : l->act[direction * l->n_acts + k];
    if (l->clip > 0 && k < 2) /* gates only */
        x = fmin(fmax(x, -(double)l->clip), (double)l->clip);
    switch (fn) {
    case 0:
        return fmax(x, 0);
    case 1:
        return tanh(x);
    case 2:
        return 1 / (1 + exp(-x));
    case 3:
        return a * x + b;
    case 4:
        return x < 0 ? a * x : x;
    case 5:
        return x >= a ? x : 0;
    case 6:
        return a * tanh(b * x);
    case 7:
        return fmin(fmax(a * x + b, 0), 1);
    case 8:
        return x < 0 ? a * (exp(x) - 1) : x;
    case 9:
        return x / (1 + fabs(x));
    default:
        return log(1 + exp(x));
    }
}

/* W x + Wb of gate row `row`, and R h + Rb. */
static double input_part(const struct layer *l, int d, int row, const float *x)
{
    const float *w = (const float *)l->data[W] + (d * l->gates * l->hidden + row) * l->input;
    double sum = l->has[B] ? ((const float *)l->data[B])[d * 2 * l->gates * l->hidden + row] : 0;
    for (int i = 0; i < l->input; i++)
        sum += (double)w[i] * (double)x[i];
    return sum;
}

static double state_part(const struct layer *l, int d, int row, const double *h)
{
    const float *r = (const float *)l->data[R] + (d * l->gates * l->hidden + row) * l->hidden;
    double sum = l->has[B]
                     ? ((const float *)l->data[B])[(d * 2 * l->gates + l->gates) * l->hidden + row]
                     : 0;
    for (int i = 0; i < l->hidden; i++)
        sum += (double)r[i] * h[i];
    return sum;
}

static void lstm_step(const struct layer *l, int d, const float *x, const double *h, double *c,
                      double *ret_h)
{
    const int n = l->hidden;
    for (int j = 0; j < n; j++) {
        const float *p = l->has[P] ? (const float *)l->data[P] + d * 3 * n + j : NULL;
        double gate[4];
        for (int g = 0; g < 4; g++)
            gate[g] = input_part(l, d, g * n + j, x) + state_part(l, d, g * n + j, h);
        double i = act(l, d, 0, gate[0] + (p ? (double)p[0] * c[j] : 0));
        double f = act(l, d, 0, gate[2] + (p ? (double)p[2 * n] * c[j] : 0));
        c[j] = (l->input_forget ? 1 - i : f) * c[j] + i * act(l, d, 1, gate[3]);
        double o = act(l, d, 0, gate[1] + (p ? (double)p[n] * c[j] : 0));
        ret_h[j] = o * act(l, d, 2, c[j]);
    }
}

static void gru_step(const struct layer *l, int d, const float *x, const double *h, double *ret_h)
{
    const int n = l->hidden;
    double *reset = malloc((size_t)n * 2 * sizeof *reset), *gated = reset + n;
    assert_non_null(reset);
    for (int j = 0; j < n; j++) {
        reset[j] = act(l, d, 0, input_part(l, d, n + j, x) + state_part(l, d, n + j, h));
        gated[j] = reset[j] * h[j];
    }
    for (int j = 0; j < n; j++) {
        double z = act(l, d, 0, input_part(l, d, j, x) + state_part(l, d, j, h));
        double part = l->linear_before_reset ? reset[j] * state_part(l, d, 2 * n + j, h)
                                             : state_part(l, d, 2 * n + j, gated);
        ret_h[j] = (1 - z) * act(l, d, 1, input_part(l, d, 2 * n + j, x) + part) + z * h[j];
    }
    free(reset);
}

/* Index of an element's row in Y, and in a state of ONNX's layout. */
static size_t y_at(const struct layer *l, int t, int d, int b)
{
    return (size_t)(l->batch_first ? (b * l->seq + t) * l->directions + d
                                   : (t * l->directions + d) * l->batch + b);
}
static size_t state_at(const struct layer *l, int d, int b)
{
    return (size_t)(l->batch_first ? b * l->directions + d : d * l->batch + b);
}

static void one_sequence(struct layer *l, int d, int b, double *h, double *c, double *next)
{
    const size_t n = (size_t)l->hidden;
    int steps = l->has[LENS] ? ((const int32_t *)l->data[LENS])[b] : l->seq;
    for (size_t j = 0; j < n; j++) {
        h[j] = l->has[H0] ? (double)((float *)l->data[H0])[state_at(l, d, b) * n + j] : 0;
        c[j] = l->has[C0] ? (double)((float *)l->data[C0])[state_at(l, d, b) * n + j] : 0;
    }
    for (int s = 0; s < steps; s++) {
        int t = d == 1 || l->reverse ? steps - 1 - s : s;
        size_t row = (size_t)(l->batch_first ? b * l->seq + t : t * l->batch + b);
        const float *x = (const float *)l->data[X] + row * (size_t)l->input;
        if (l->gates == 4)
            lstm_step(l, d, x, h, c, next);
        else if (l->gates == 3)
            gru_step(l, d, x, h, next);
        for (int j = 0; l->gates == 1 && j < l->hidden; j++)
            next[j] = act(l, d, 0, input_part(l, d, j, x) + state_part(l, d, j, h));
        memcpy(h, next, n * sizeof *h);
        memcpy(l->y[0] + y_at(l, t, d, b) * n, h, n * sizeof *h);
    }
    memcpy(l->y[1] + state_at(l, d, b) * n, h, n * sizeof *h);
    memcpy(l->y[2] + state_at(l, d, b) * n, c, n * sizeof *h);
}

static void compute(struct layer *l)
{
    double *h = malloc((size_t)l->hidden * 3 * sizeof *h);
    assert_non_null(h);
    for (int k = 0; k < 3; k++) {
        l->y[k] = calloc(kit_count(l->y_shape[k]) + 1, sizeof *l->y[k]);
        assert_non_null(l->y[k]);
    }
    for (int d = 0; d < l->directions; d++)
        for (int b = 0; b < l->batch; b++)
            one_sequence(l, d, b, h, h + l->hidden, h + 2 * l->hidden);
    free(h);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Shapes of everything, for a batch. */
static void set_shapes(struct layer *l)
{
    int d = l->directions, g = l->gates * l->hidden, n = l->hidden;
    struct cm_shape state =
        l->batch_first ? kit_shape(3, l->batch, d, n) : kit_shape(3, d, l->batch, n);
    l->shape[X] = l->batch_first ? kit_shape(3, l->batch, l->seq, l->input)
                                 : kit_shape(3, l->seq, l->batch, l->input);
    l->shape[W] = kit_shape(3, d, g, l->input);
    l->shape[R] = kit_shape(3, d, g, n);
    l->shape[B] = kit_shape(2, d, 2 * g);
    l->shape[LENS] = kit_shape(1, l->batch);
    l->shape[H0] = l->shape[C0] = l->y_shape[1] = l->y_shape[2] = state;
    l->shape[P] = kit_shape(2, d, 3 * n);
    l->y_shape[0] = l->batch_first ? kit_shape(4, l->batch, l->seq, d, n)
                                   : kit_shape(4, l->seq, d, l->batch, n);
}

static void make_data(struct layer *l)
{
    for (int k = 0; k < N_OPERANDS; k++) {
        size_t count = kit_count(l->shape[k]);
        float scale = k == W || k == R ? 1.0f / sqrtf((float)(l->input + l->hidden)) : 1.0f;
        float *data = l->data[k] = malloc(count * 4 + 4);
        assert_non_null(data);
        for (size_t i = 0; i < count; i++)
            if (k == LENS)
                ((int32_t *)l->data[k])[i] = pick(0, l->seq);
            else
                data[i] = kit_float(&random_state) * scale;
    }
}

static struct layer random_layer(int gates)
{
    struct layer l = {.gates = gates};
    l.op = gates == 4 ? "LSTM" : gates == 3 ? "GRU" : "RNN";
    l.n_acts = gates == 4 ? 3 : gates == 3 ? 2 : 1;
    l.n_out = gates == 4 ? 3 : 2;
    l.directions = pick(1, 2);
    l.reverse = l.directions == 1 && chance(2);
    l.batch_first = chance(2);
    l.linear_before_reset = chance(2);
    l.input_forget = chance(3);
    l.clip = chance(3) ? 0.6f : 0.0f;
    l.seq = chance(8) ? 0 : pick(1, 7);
    l.batch = chance(3) ? 1 : pick(1, 9);
    l.input = pick(1, 60);
    l.hidden = pick(1, 70);
    if (chance(12)) { /* one row of a wide layer: its products are shared between threads */
        l.batch = l.directions = 1;
        l.seq = 2;
        l.hidden = pick(190, 230);
    }
    l.act[0] = chance(2) ? -1 : 0;
    for (int i = 0; l.act[0] >= 0 && i < 6; i++)
        l.act[i] = pick(0, N_ACTS - 1);
    bool all_constant = chance(2);
    for (int k = 0; k < N_OPERANDS; k++) {
        bool known = k < 6 || gates == 4;
        l.has[k] = k <= R || (known && chance(2));
        l.constant[k] = (k == W || k == R || k == B || k == P) && (all_constant || chance(2));
    }
    for (int k = 0; k < l.n_out; k++)
        l.wants[k] = chance(2);
    if (!l.wants[1] && !l.wants[2])
        l.wants[0] = true;
    set_shapes(&l);
    make_data(&l);
    compute(&l);
    return l;
}

static void free_layer(struct layer *l)
{
    for (int k = 0; k < N_OPERANDS; k++)
        free(l->data[k]);
    for (int k = 0; k < 3; k++)
        free(l->y[k]);
}

static void add_activations(struct kit_model *m, const struct layer *l)
{
    char names[128] = "";
    float alphas[6], betas[6];
    int n_alpha = 0, n_beta = 0;
    if (l->act[0] < 0)
        return;
    for (int i = 0; i < l->n_acts * l->directions; i++) {
        int fn = l->act[i];
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? "," : "",
                 act_names[fn]);
        if (fn >= 3 && fn <= 8)
            alphas[n_alpha++] = act_alpha;
        if (fn == 3 || fn == 6 || fn == 7)
            betas[n_beta++] = act_beta;
    }
    kit_attr_strings(m, "activations", names);
    if (n_alpha)
        kit_attr_floats(m, "activation_alpha", n_alpha, alphas);
    if (n_beta)
        kit_attr_floats(m, "activation_beta", n_beta, betas);
}

/* The layer as a model with its batch and time free. */
static struct kit_model *model_of(const struct layer *l)
{
    struct kit_model *m = kit_model(l->batch_first ? 14 : 7 + pick(0, 14));
    char inputs[64] = "", outputs[32] = "";
    for (int k = 0; k < N_OPERANDS; k++) {
        struct cm_shape shape = l->shape[k];
        if (k == X)
            shape.dims[0] = shape.dims[1] = -1;
        else if (k == LENS)
            shape.dims[0] = -1;
        else if (k == H0 || k == C0)
            shape.dims[!l->batch_first] = -1;
        if (l->has[k] && l->constant[k])
            kit_const(m, operand_names[k], CM_FP32, shape, l->data[k]);
        else if (l->has[k])
            kit_input(m, operand_names[k], k == LENS ? CM_INT32 : CM_FP32, shape);
        snprintf(inputs + strlen(inputs), sizeof inputs - strlen(inputs), "%s%s", k ? "," : "",
                 l->has[k] ? operand_names[k] : "");
    }
    while (inputs[strlen(inputs) - 1] == ',')
        inputs[strlen(inputs) - 1] = 0;
    for (int k = 0; k < 3; k++)
        snprintf(outputs + strlen(outputs), sizeof outputs - strlen(outputs), "%s%s", k ? "," : "",
                 l->wants[k] ? output_names[k] : "");
    while (outputs[strlen(outputs) - 1] == ',')
        outputs[strlen(outputs) - 1] = 0;
    kit_node(m, l->op, inputs, outputs);
    kit_attr_s(m, "direction",
               l->directions == 2 ? "bidirectional"
               : l->reverse       ? "reverse"
                                  : "forward");
    kit_attr_i(m, "hidden_size", l->hidden);
    if (l->batch_first)
        kit_attr_i(m, "layout", 1);
    if (l->gates == 3)
        kit_attr_i(m, "linear_before_reset", l->linear_before_reset);
    if (l->gates == 4)
        kit_attr_i(m, "input_forget", l->input_forget);
    if (l->clip > 0)
        kit_attr_f(m, "clip", l->clip);
    add_activations(m, l);
    for (int k = 0; k < 3; k++)
        if (l->wants[k])
            kit_output(m, output_names[k], CM_FP32, KIT_SHAPE0());
    return m;
}

/* ret[k] is output k, NULL where it is not wanted. */
static void run(const struct layer *l, struct kit_model *m, unsigned threads, enum wk_isa isa,
                float *ret[3])
{
    struct kit_loaded loaded;
    const void *in[N_OPERANDS];
    struct cm_shape in_shapes[N_OPERANDS], shapes[3];
    void *out[3];
    int n = 0;
    for (int k = 0; k < N_OPERANDS; k++)
        if (l->has[k] && !l->constant[k]) {
            in[n] = l->data[k];
            in_shapes[n++] = l->shape[k];
        }
    kit_load_model(&loaded, m, threads, &isa);
    kit_run(&loaded, in_shapes, in, out, shapes);
    kit_unload(&loaded);
    n = 0;
    for (int k = 0; k < 3; k++) {
        ret[k] = l->wants[k] ? out[n] : NULL;
        if (l->wants[k])
            assert_true(cm_shape_equal(&shapes[n++], &l->y_shape[k]));
    }
}

static void check_against_double(const struct layer *l, float *const got[3])
{
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; l->wants[k] && i < kit_count(l->y_shape[k]); i++) {
            double want = l->y[k][i], is = (double)got[k][i];
            if (!(fabs(is - want) <= 2e-5 * (1 + fabs(want))))
                fail_msg("%s seq %d batch %d input %d hidden %d: output %d, element %zu is %.9g, "
                         "wanted %.9g",
                         l->op, l->seq, l->batch, l->input, l->hidden, k, i, is, want);
        }
}

/* The layer's sequence b alone. */
static struct layer alone(const struct layer *l, int b)
{
    struct layer one = *l;
    one.batch = 1;
    set_shapes(&one);
    for (int k = 0; k < N_OPERANDS; k++) {
        one.data[k] = l->data[k];
        if (k != X && k != LENS && k != H0 && k != C0)
            continue;
        size_t outer = k == LENS || l->batch_first ? 1 : (size_t)l->shape[k].dims[0];
        size_t line = kit_count(one.shape[k]) / (outer ? outer : 1) * 4;
        one.data[k] = malloc(kit_count(one.shape[k]) * 4 + 4);
        assert_non_null(one.data[k]);
        for (size_t i = 0; i < outer; i++)
            memcpy((char *)one.data[k] + i * line,
                   (const char *)l->data[k] + (i * (size_t)l->batch + (size_t)b) * line, line);
    }
    return one;
}

static void check_alone(const struct layer *l, float *const all[3], int b)
{
    struct layer one = alone(l, b);
    struct kit_model *m = model_of(&one);
    float *got[3];
    run(&one, m, 1, wk_isa_best(), got);
    size_t row = (size_t)l->hidden;
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; got[k] && i < kit_count(one.y_shape[k]) / row; i++) {
            int d = (int)i % l->directions, t = (int)i / l->directions;
            size_t at = k == 0 ? y_at(l, t, d, b) : state_at(l, (int)i, b);
            if (memcmp(all[k] + at * row, got[k] + i * row, row * sizeof(float)) != 0)
                fail_msg("%s: output %d of sequence %d differs when it runs alone", l->op, k, b);
        }
        free(got[k]);
    }
    free(one.data[X]), free(one.data[LENS]), free(one.data[H0]), free(one.data[C0]);
    kit_free(m);
}

static void one_layer(int gates)
{
    static const unsigned threads[] = {1, 2, 3};
    struct layer l = random_layer(gates);
    struct kit_model *m = model_of(&l);
    float *first[3] = {NULL};
    for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++)
        for (unsigned i = 0; cpu_isa_mask() >> isa & 1 && i < 3; i++) {
            float *got[3];
            run(&l, m, threads[i], (enum wk_isa)isa, got);
            for (int k = 0; k < 3; k++) {
                if (isa == 0 && i == 0) {
                    first[k] = got[k];
                    continue;
                }
                if (got[k])
                    assert_memory_equal(got[k], first[k], kit_count(l.y_shape[k]) * sizeof(float));
                free(got[k]);
            }
        }
    check_against_double(&l, first);
    for (int b = 0; b < l.batch; b++)
        check_alone(&l, first, b);
    for (int k = 0; k < 3; k++)
        free(first[k]);
    kit_free(m);
    free_layer(&l);
}

static void test_rnn(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++)
        one_layer(1);
}

static void test_gru(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++)
        one_layer(3);
}

static void test_lstm(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++)
        one_layer(4);
}

/* More rows than one input product takes, and more steps. */
static void test_long_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct layer l = {.op = "GRU", .gates = 3, .n_acts = 2, .n_out = 2, .directions = 2};
        l.seq = i < 2 ? 150 : 3;
        l.batch = i < 2 ? 2 : 90;
        l.input = 5, l.hidden = 6, l.act[0] = -1;
        l.batch_first = i % 2;
        l.has[X] = l.has[W] = l.has[R] = l.has[LENS] = l.constant[W] = l.constant[R] = true;
        l.wants[0] = l.wants[1] = true;
        set_shapes(&l);
        make_data(&l);
        compute(&l);
        struct kit_model *m = model_of(&l);
        for (unsigned threads = 1; threads <= 2; threads++) {
            float *got[3];
            run(&l, m, threads, wk_isa_best(), got);
            check_against_double(&l, got);
            free(got[0]), free(got[1]);
        }
        kit_free(m);
        free_layer(&l);
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Layers of all three kinds behind each other, the batch first or not. */
static struct kit_model *stack(bool batch_first)
{
    static const char *const ops[] = {"LSTM", "GRU", "RNN"};
    static const int gates[] = {4, 3, 1};
    struct kit_model *m = kit_model(14);
    const char *from = "x";
    char name[4][16], text[64];
    kit_input(m, "x", CM_FP32, kit_shape(3, -1, batch_first ? 5 : -1, 20));
    for (int i = 0; i < 3; i++) {
        snprintf(name[0], sizeof name[0], "w%d", i), snprintf(name[1], sizeof name[1], "r%d", i);
        snprintf(name[2], sizeof name[2], "b%d", i);
        kit_random(m, name[0], kit_shape(3, 2, gates[i] * 10, 20));
        kit_random(m, name[1], kit_shape(3, 2, gates[i] * 10, 10));
        kit_random(m, name[2], kit_shape(2, 2, gates[i] * 20));
        snprintf(text, sizeof text, "%s,%s,%s,%s", from, name[0], name[1], name[2]);
        snprintf(name[3], sizeof name[3], "o%d", i);
        kit_node(m, ops[i], text, name[3]);
        kit_attr_s(m, "direction", "bidirectional");
        kit_attr_i(m, "layout", batch_first);
        snprintf(text, sizeof text, "%s,shape", name[3]);
        from = i == 0 ? "y0" : i == 1 ? "y1" : "y";
        kit_node(m, "Reshape", text, from);
    }
    kit_ints(m, "shape", 3, 0, 0, 20);
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, -1, 20));
    return m;
}

static void test_batches(void **state)
{
    (void)state;
    struct kit_loaded l;
    struct kit_model *m = stack(false);
    kit_load_model(&l, m, 1, NULL);
    assert_false(wk_model_signature(l.model)->batchable);
    assert_non_null(strstr(wk_model_signature(l.model)->why_not, "(LSTM) may mix rows"));
    kit_unload(&l);
    kit_free(m);
    m = stack(true);
    kit_load_model(&l, m, 1, NULL);
    assert_true(wk_model_signature(l.model)->batchable);
    kit_unload(&l);
    struct cm_shape row = kit_shape(3, 1, 5, 20);
    struct one_answer_model model = {.shapes = &row, .rows = ONE_ANSWER_ROWS};
    void *bytes = kit_bytes(m, &model.length);
    model.bytes = bytes;
    assert_true(one_answer(&model) >= 2);
    free(bytes);
    kit_free(m);
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* An LSTM of 4 hidden units over [seq, batch, 3], whose attributes the caller adds. */
static struct kit_model *small(int opset, enum cm_dtype dtype, int gate_rows)
{
    struct kit_model *m = kit_model(opset);
    kit_input(m, "x", dtype, kit_shape(3, -1, -1, 3));
    kit_random(m, "w", kit_shape(3, 1, gate_rows, 3));
    kit_random(m, "r", kit_shape(3, 1, 16, 4));
    kit_input(m, "lens", CM_INT32, kit_shape(1, -1));
    kit_node(m, "LSTM", "x,w,r,,lens", "y");
    kit_output(m, "y", dtype, KIT_SHAPE0());
    return m;
}

static void refuse(struct kit_model *m, enum cm_err code, const char *part)
{
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    size_t length;
    void *bytes = kit_bytes(m, &length);
    enum cm_err got = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (got != code || !strstr(err.text, part))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", cm_err_name(code), part,
                 cm_err_name(got), err.text);
    wk_model_destroy(model);
    wk_engine_destroy(engine);
    free(bytes);
    kit_free(m);
}

static void test_refusals(void **state)
{
    (void)state;
    struct kit_model *m = small(14, CM_FP32, 16);
    kit_attr_strings(m, "activations", "Tanh");
    refuse(m, CM_INVALID, "has 1 activations; 3 are needed");
    m = small(14, CM_FP32, 16);
    kit_attr_strings(m, "activations", "Sigmoid,Tanh,Swish");
    refuse(m, CM_UNSUPPORTED, "activation \"Swish\" is not supported");
    m = small(14, CM_FP32, 16);
    kit_attr_s(m, "direction", "sideways");
    refuse(m, CM_INVALID, "direction must be");
    m = small(14, CM_FP32, 16);
    kit_attr_i(m, "layout", 2);
    refuse(m, CM_INVALID, "layout must be 0 or 1");
    m = small(13, CM_FP32, 16);
    kit_attr_i(m, "layout", 0);
    refuse(m, CM_UNSUPPORTED, "attribute layout");
    m = small(14, CM_FP32, 16);
    kit_attr_f(m, "clip", -1.0f);
    refuse(m, CM_INVALID, "clip must not be negative");
    m = small(14, CM_FP32, 16);
    kit_attr_i(m, "hidden_size", 5);
    refuse(m, CM_INVALID, "does not fit");
    m = small(14, CM_FP32, 16);
    kit_attr_i(m, "hidden_size", 0);
    refuse(m, CM_INVALID, "hidden_size must be positive");
    m = small(14, CM_FP32, 16);
    kit_attr_s(m, "direction", "bidirectional");
    refuse(m, CM_INVALID, "does not fit");
    refuse(small(14, CM_FP32, 15), CM_INVALID, "input 1 of shape");
    refuse(small(14, CM_FP64, 16), CM_UNSUPPORTED, "only FP32 is supported");
}

/* An RNN of 4 hidden units behind a Reshape whose shape is an input: at load not even X's rank is
 * known, so the weights are stored before anyone has compared them with it. */
static struct kit_model *behind_reshape(bool rank_known, struct cm_shape w, struct cm_shape r,
                                        struct cm_shape b)
{
    struct kit_model *m = kit_model(14);
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    kit_input(m, "shape", CM_INT64, kit_shape(1, rank_known ? 3 : -1));
    kit_random(m, "w", w);
    kit_random(m, "r", r);
    kit_random(m, "b", b);
    kit_node(m, "Reshape", "x,shape", "x3");
    kit_node(m, "RNN", "x3,w,r,b", "y");
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 1, -1, -1));
    return m;
}

static void test_late_shapes(void **state)
{
    (void)state;
    static const int64_t wanted[] = {5, 2, 3};
    struct cm_shape shapes[] = {kit_shape(1, 30), kit_shape(1, 3)}, got_shape;
    float x[30], *got[2];
    for (int i = 0; i < 30; i++)
        x[i] = kit_float(&random_state);
    const void *in[] = {x, wanted};
    for (int known = 0; known < 2; known++) {
        struct kit_loaded l;
        struct kit_model *m =
            behind_reshape(known, kit_shape(3, 1, 4, 3), kit_shape(3, 1, 4, 4), kit_shape(2, 1, 8));
        void *out;
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, shapes, in, &out, &got_shape);
        struct cm_shape y = kit_shape(4, 5, 1, 2, 4);
        assert_true(cm_shape_equal(&got_shape, &y));
        got[known] = out;
        kit_unload(&l);
        kit_free(m);
    }
    assert_memory_equal(got[0], got[1], 40 * sizeof(float));
    free(got[0]), free(got[1]);
}

static void test_late_misfits(void **state)
{
    (void)state;
    const struct cm_shape w = kit_shape(3, 1, 4, 3), r = kit_shape(3, 1, 4, 4);
    const struct cm_shape b = kit_shape(2, 1, 8);
    const struct cm_shape bad[][3] = {
        {kit_shape(3, 1, 5, 3), r, b},    {w, kit_shape(3, 1, 4, 1), b},
        {w, kit_shape(3, 1, 900, 4), b},  {w, r, kit_shape(2, 1, 9)},
        {kit_shape(4, 1, 4, 3, 0), r, b}, {kit_shape(1, 12), r, b},
        {kit_shape(3, 2, 4, 3), r, b},    {w, r, kit_shape(1, 8)},
    };
    struct cm_shape shapes[] = {kit_shape(1, 30), kit_shape(1, 3)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kit_loaded l;
        struct wk_plan *plan = NULL;
        struct cm_error err = {0};
        struct kit_model *m = behind_reshape(false, bad[i][0], bad[i][1], bad[i][2]);
        kit_load_model(&l, m, 1, NULL);
        /* The length of "shape" gives the rank when the plan is made. */
        assert_int_equal(wk_plan_create(l.model, shapes, &err, &plan), CM_INVALID);
        assert_non_null(strstr(err.text, "does not fit"));
        kit_unload(&l);
        kit_free(m);
    }
}

/* Lengths are data: refused in the run, naming the node. */
static void test_bad_lengths(void **state)
{
    (void)state;
    struct kit_loaded l;
    struct kit_model *m = small(14, CM_FP32, 16);
    struct cm_shape shapes[] = {kit_shape(3, 2, 2, 3), kit_shape(1, 2)};
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    static const int32_t lens[][2] = {{1, 3}, {-1, 2}, {0, 2}};
    kit_load_model(&l, m, 1, NULL);
    assert_int_equal(wk_plan_create(l.model, shapes, &err, &plan), CM_OK);
    void *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
    float *x = kit_guarded(12 * sizeof *x), *y = kit_guarded(16 * sizeof *y);
    for (unsigned i = 0; i < 3; i++) {
        const void *in[] = {x, lens[i]};
        void *out[] = {y};
        enum cm_err code = wk_plan_run(plan, in, out, scratch, &err);
        assert_int_equal(code, i < 2 ? CM_INVALID : CM_OK);
        if (i < 2)
            assert_non_null(strstr(err.text, "sequence_lens has a number that is not 0 to 2"));
    }
    wk_plan_destroy(plan);
    kit_guarded_free(scratch), kit_guarded_free(x), kit_guarded_free(y);
    kit_unload(&l);
    kit_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rnn),          cmocka_unit_test(test_gru),
        cmocka_unit_test(test_lstm),         cmocka_unit_test(test_long_sequences),
        cmocka_unit_test(test_batches),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_lengths),  cmocka_unit_test(test_late_shapes),
        cmocka_unit_test(test_late_misfits),
    };
    return cmocka_run_group_tests_name("recurrent", tests, NULL, NULL);
}
