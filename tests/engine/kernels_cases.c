/* Cases, data and oracles for the kernel tests. Test code; one thread. */
#include "tests/engine/kernels_cases.h"

#include "common/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- oracles ---- */

/* The float oracle's exp and log are the project's own: their value against libm is another test.
 * Of the equal ones of all instruction sets (a case of its own) the fastest, element by element. */
static float own_with(enum k_unary op, float x, float alpha, float beta)
{
    const struct k_unary_params params = {alpha, beta};
    float y;
    cpu_kernels_for(wk_isa_best())->unary[op](&x, &y, 1, &params);
    return y;
}

static float own(enum k_unary op, float x)
{
    return own_with(op, x, 0.0f, 0.0f);
}

static double mul_add(double a, double b, double c)
{
    return a * b + c;
}

#define T            float
#define O(name)      name##_f
#define FMA(a, b, c) fmaf(a, b, c)
#define EXP(x)       own(K_UNARY_exp, x)
#define LOG(x)       own(K_UNARY_log, x)
#define SQRT(x)      sqrtf(x)
#include "tests/engine/kernels_oracle.inc"
#undef T
#undef O
#undef FMA
#undef EXP
#undef LOG
#undef SQRT

#define T            double
#define O(name)      name##_d
#define FMA(a, b, c) mul_add(a, b, c)
#define EXP(x)       exp(x)
#define LOG(x)       log(x)
#define SQRT(x)      sqrt(x)
#include "tests/engine/kernels_oracle.inc"

/* Activation k of a cell: clipped if it is a gate's, then as kernels.h says. */
static float cell_act(const struct k_rnn_cell *c, unsigned k, float x)
{
    const struct k_rnn_act *a = &c->act[k];
    if (k < 2) {
        x = -c->clip > x ? -c->clip : x;
        x = c->clip < x ? c->clip : x;
    }
    switch (a->fn) {
    case K_RNN_RELU:
        return 0.0f > x ? 0.0f : x;
    case K_RNN_TANH:
        return own(K_UNARY_tanh, x);
    case K_RNN_SIGMOID:
        return own(K_UNARY_sigmoid, x);
    case K_RNN_AFFINE:
        return a->alpha * x + a->beta;
    case K_RNN_LEAKY_RELU:
        return x < 0 ? x * a->alpha : x;
    case K_RNN_THRESHOLDED_RELU:
        return x < a->alpha ? 0.0f : x;
    case K_RNN_SCALED_TANH:
        return a->alpha * own(K_UNARY_tanh, a->beta * x);
    case K_RNN_HARD_SIGMOID:
        return own_with(K_UNARY_hard_sigmoid, x, a->alpha, a->beta);
    case K_RNN_ELU:
        return own_with(K_UNARY_elu, x, a->alpha, 0.0f);
    case K_RNN_SOFTSIGN:
        return x / (1.0f + fabsf(x));
    case K_RNN_SOFTPLUS:
        return own(K_UNARY_softplus, x);
    }
    return x;
}

/* One hidden unit: g points to its first gate, p to its peepholes; h, s and reset are replaced. */
static void cell_unit(const struct kc *c, const float *g, const float *p, float recurrent, float *h,
                      float *s, float *reset)
{
    const struct k_rnn_cell *a = &c->u.cell.args;
    const size_t n = a->hidden;
    if (c->op == KC_RNN_CELL) {
        *h = cell_act(a, 0, g[0]);
    } else if (c->op == KC_GRU_RESET) {
        *reset = cell_act(a, 0, g[n]) * *h;
    } else if (c->op == KC_GRU_CELL) {
        float z = cell_act(a, 0, g[0]), fresh = g[2 * n];
        if (a->recurrent)
            fresh = fmaf(cell_act(a, 0, g[n]), recurrent, fresh);
        *h = fmaf(z, *h, (1.0f - z) * cell_act(a, 1, fresh));
    } else {
        float i = cell_act(a, 0, p ? fmaf(p[0], *s, g[0]) : g[0]);
        float f = cell_act(a, 0, p ? fmaf(p[2 * n], *s, g[2 * n]) : g[2 * n]);
        *s = fmaf(a->input_forget ? 1.0f - i : f, *s, i * cell_act(a, 1, g[3 * n]));
        float o = cell_act(a, 0, p ? fmaf(p[n], *s, g[n]) : g[n]);
        *h = o * cell_act(a, 2, *s);
    }
}

static void cell_oracle(const struct kc *c, const float *const in[3], float *y)
{
    const struct k_rnn_cell *a = &c->u.cell.args;
    const size_t n = a->hidden, all = c->u.cell.rows * n;
    memcpy(y, in[1], 2 * all * sizeof(float));
    for (size_t i = 0; i < c->u.cell.rows; i++)
        for (size_t j = 0; j < n; j++) {
            float *h = y + i * n + j;
            cell_unit(c, in[0] + i * a->gates_stride + j, a->peephole ? in[2] + j : NULL,
                      in[1][2 * all + i * n + j], h, h + all, h + 2 * all);
            if (a->y && c->op != KC_GRU_RESET)
                y[3 * all + i * a->y_stride + j] = *h;
        }
}

bool kc_oracle_float(const struct kc *c, const float *const in[3], float *y)
{
    if (c->family == KC_CELL)
        cell_oracle(c, in, y);
    return c->family == KC_CELL || oracle_f(c, in, y);
}

bool kc_oracle_double(const struct kc *c, const float *const in[3], double *y)
{
    /* The logarithm of a sum near 0 has no digits to compare. */
    if (c->family == KC_AXIS && c->op == KC_REDUCE_LOG_SUM)
        return false;
    return oracle_d(c, in, y);
}

/* ---- data ---- */

const char *kc_data_name(enum kc_data data)
{
    static const char *const names[] = {"normal", "special", "tiny"};
    return names[data];
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void kc_fill(enum kc_data data, uint64_t seed, float *x, size_t n)
{
    static const float special[] = {0.0f,      -0.0f,      INFINITY, -INFINITY, NAN,  1e-45f,
                                    -1e-45f,   1e-39f,     3.4e38f,  -3.4e38f,  1.0f, -1.0f,
                                    1.17e-38f, -1.17e-38f, 88.75f,   -103.9f,   0.0f, -0.0f};
    uint64_t state = seed * 2654435761u + data;
    for (size_t i = 0; i < n; i++) {
        uint64_t r = next_random(&state);
        float unit = (float)(int32_t)(r & 0xffffffu) / 8388608.0f - 1.0f; /* [-1, 1), exact */
        if (data == KC_TINY)
            x[i] = unit * (r & 1u << 30 ? 1e-19f : 1e-38f);
        else if (data == KC_SPECIAL && (r >> 32) % 24 == 0)
            x[i] = special[(r >> 40) % CM_COUNT_OF(special)];
        else
            x[i] = unit * (r & 1u << 30 ? 3.0f : 0.5f);
    }
}

void kc_canonical(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != x[i])
            x[i] = (float)NAN;
}

/* ---- running ---- */

size_t kc_workspace(const struct kc *c)
{
    switch (c->family) {
    case KC_GEMM:
        return k_packed_floats(c->u.gemm.k, c->u.gemm.n);
    case KC_CONV:
        return k_conv_workspace(&c->u.conv);
    case KC_DWCONV:
        return k_dwconv_workspace(&c->u.conv);
    case KC_POOL:
        return k_pool_workspace(&c->u.pool);
    default:
        return 0;
    }
}

/* Part `part` of count, with an odd cut: the first parts get one third more. */
static void cut(size_t count, unsigned parts, unsigned part, size_t *i0, size_t *i1)
{
    *i0 = part == 0 ? 0 : (count * part + parts / 2) / parts + (part < parts - 1 && count > 9);
    *i1 = part + 1 == parts
              ? count
              : (count * (part + 1) + parts / 2) / parts + (part + 1 < parts - 1 && count > 9);
}

static void run_gemm(const struct kc *c, const struct cpu_kernels *k, const float *const in[3],
                     float *y, float *workspace, unsigned parts)
{
    struct k_gemm g = c->u.gemm;
    g.a = in[0];
    g.c = y;
    g.b = in[1];
    if (g.ldb == 0) {
        for (size_t p = 0; p < k_panels(g.n); p++)
            k_f32_pack_b(in[1], g.n, 1, g.k, g.n, p, p + 1, workspace);
        g.b = workspace;
    }
    if (g.init)
        g.init = in[2];
    for (unsigned r = 0; r < parts; r++) {
        size_t m0, m1;
        cut(g.m, parts, r, &m0, &m1);
        for (unsigned q = 0; q < parts; q++) {
            size_t p0, p1;
            cut(k_panels(g.n), parts, q, &p0, &p1);
            k->f32_gemm(&g, m0, m1, p0, p1);
        }
    }
}

typedef void axis_fn(const struct k_axis *a, size_t i0, size_t i1);

static axis_fn *axis_kernel(const struct cpu_kernels *k, int op)
{
    axis_fn *const fns[] = {
        k->f32_reduce_sum,         k->f32_reduce_mean,       k->f32_reduce_max,
        k->f32_reduce_min,         k->f32_reduce_prod,       k->f32_reduce_l1,
        k->f32_reduce_l2,          k->f32_reduce_sum_square, k->f32_reduce_log_sum,
        k->f32_reduce_log_sum_exp, k->f32_softmax,           k->f32_logsoftmax};
    return fns[op];
}

/* Floats of one item of an element-wise case. */
static void run_map(const struct kc *c, const struct cpu_kernels *k, const float *const in[3],
                    float *y, size_t i0, size_t i1)
{
    size_t sa = c->u.map.step_a, sb = c->u.map.step_b, n = i1 - i0;
    const float *a = in[0] + i0 * sa;
    if (c->u.map.in_place) {
        memcpy(y + i0, a, n * sizeof(float));
        a = y + i0;
    }
    if (c->family == KC_UNARY)
        k->unary[c->op](a, y + i0, n, &c->u.map.params);
    else
        k->binary[c->op](a, sa, in[1] + i0 * sb, sb, y + i0, n);
}

static void run_cell(const struct kc *c, const struct cpu_kernels *k, const float *const in[3],
                     float *y, size_t i0, size_t i1)
{
    typedef void cell_fn(const struct k_rnn_cell *c, size_t i0, size_t i1);
    cell_fn *const fns[] = {k->f32_rnn_cell, k->f32_lstm_cell, k->f32_gru_reset, k->f32_gru_cell};
    struct k_rnn_cell a = c->u.cell.args;
    const size_t all = c->u.cell.rows * a.hidden, from = i0 * a.hidden;
    for (unsigned s = 0; s < 2; s++)
        memcpy(y + s * all + from, in[1] + s * all + from, (i1 - i0) * a.hidden * sizeof(float));
    a.gates = in[0];
    a.recurrent = a.recurrent ? in[1] + 2 * all : NULL;
    a.peephole = a.peephole ? in[2] : NULL;
    a.h = y, a.c = y + all, a.reset = y + 2 * all;
    a.y = a.y ? y + 3 * all : NULL;
    fns[c->op](&a, i0, i1);
}

static size_t items_of(const struct kc *c)
{
    switch (c->family) {
    case KC_CELL:
        return c->u.cell.rows;
    case KC_CONV:
        return k_conv_items(&c->u.conv);
    case KC_DWCONV:
        return c->u.conv.batch * c->u.conv.groups;
    case KC_POOL:
        return c->u.pool.planes;
    case KC_AXIS:
        return c->u.axis.outer * c->u.axis.inner;
    case KC_SCALE_SHIFT:
        return c->in[0] / c->u.scale_shift.plane;
    case KC_LAYER_NORM:
        return c->u.norm.rows;
    default:
        return c->u.map.n;
    }
}

static void run_items(const struct kc *c, const struct cpu_kernels *k, const float *const in[3],
                      float *y, float *workspace, size_t i0, size_t i1)
{
    struct k_conv conv = c->u.conv;
    struct k_pool pool = c->u.pool;
    struct k_axis axis = c->u.axis;
    struct k_scale_shift s = c->u.scale_shift;
    struct k_norm norm = c->u.norm.args;
    switch (c->family) {
    case KC_CONV:
    case KC_DWCONV:
        conv.x = in[0], conv.weight = in[1], conv.bias = conv.bias ? in[2] : NULL, conv.y = y;
        (c->family == KC_CONV ? k->f32_conv : k->f32_dwconv)(&conv, i0, i1, workspace);
        break;
    case KC_POOL:
        pool.x = in[0], pool.y = y;
        (c->op == 0 ? k->f32_maxpool : k->f32_avgpool)(&pool, i0, i1, workspace);
        break;
    case KC_AXIS:
        axis.x = in[0], axis.y = y;
        axis_kernel(k, c->op)(&axis, i0, i1);
        break;
    case KC_SCALE_SHIFT:
        s.x = in[0], s.scale = in[1], s.shift = in[2], s.y = y;
        k->f32_scale_shift(&s, i0, i1);
        break;
    case KC_CELL:
        run_cell(c, k, in, y, i0, i1);
        break;
    case KC_LAYER_NORM:
        norm.x = in[0], norm.y = y;
        norm.scale = norm.scale ? in[1] : NULL, norm.bias = norm.bias ? in[2] : NULL;
        if (norm.mean) { /* behind the rows */
            norm.mean = y + c->u.norm.rows * norm.n;
            norm.inv = norm.mean + c->u.norm.rows;
        }
        k->f32_layer_norm(&norm, i0, i1);
        break;
    default:
        run_map(c, k, in, y, i0, i1);
    }
}

void kc_run(const struct kc *c, const struct cpu_kernels *k, const float *const in[3], float *y,
            float *workspace, unsigned parts)
{
    if (c->family == KC_GEMM) {
        run_gemm(c, k, in, y, workspace, parts);
        return;
    }
    for (unsigned part = 0; part < parts; part++) {
        size_t i0, i1;
        cut(items_of(c), parts, part, &i0, &i1);
        run_items(c, k, in, y, workspace, i0, i1);
    }
}

/* ---- enumeration ---- */

struct each {
    kc_fn *fn;
    void *context;
};

static void gemm_case(const struct each *e, size_t m, size_t n, size_t k, bool packed,
                      unsigned init)
{
    static const float some = 0;
    static const char *const names[] = {"none", "row", "column", "full", "one"};
    struct kc c = {.family = KC_GEMM, .kernel = "f32_gemm", .terms = k + 1};
    struct k_gemm *g = &c.u.gemm;
    *g = (struct k_gemm){
        .m = m, .n = n, .k = k, .lda = k, .ldb = packed ? 0 : n, .far_b = packed && m % 2};
    g->ldc = n + m % 3;
    g->init = init ? &some : NULL; /* only whether there is one */
    g->init_rs = init == 2 ? 1 : init == 3 ? n : 0;
    g->init_cs = init == 1 || init == 3;
    c.in[0] = m * k;
    c.in[1] = k * n;
    c.in[2] = m * n;
    c.out = m * g->ldc;
    snprintf(c.what, sizeof(c.what), "m %zu n %zu k %zu, B %s, init %s", m, n, k,
             packed ? "packed" : "plain", names[init]);
    e->fn(e->context, &c);
}

static void gemm_cases(const struct each *e, bool small)
{
    static const size_t ms[] = {1, 2, 5, 6, 7, 8, 9, 13, 17};
    static const size_t ns[] = {1, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 95, 97, 100};
    static const size_t ks[] = {0, 1, 2, 19};
    unsigned count = 0;
    for (size_t i = 0; i < CM_COUNT_OF(ms); i += small ? 4 : 1)
        for (size_t j = 0; j < CM_COUNT_OF(ns); j += small ? 3 : 1)
            for (size_t l = 0; l < CM_COUNT_OF(ks); l++)
                for (int packed = 0; packed < 2; packed++)
                    gemm_case(e, ms[i], ns[j], ks[l], packed, count++ % 5);
    gemm_case(e, 0, 20, 3, true, 0);
    gemm_case(e, 3, 0, 2, false, 1);
    gemm_case(e, 3, 49, 769, true, 1);
    gemm_case(e, 3, 49, 769, false, 2);
    if (small)
        return;
    gemm_case(e, 9, 65, 768, true, 0);
    gemm_case(e, 9, 65, 1537, true, 3);
    gemm_case(e, 9, 100, 20, true, 1); /* two panels and one of a vector */
    gemm_case(e, 13, 112, 33, false, 4);
    gemm_case(e, 7, 100, 800, true, 2);
    gemm_case(e, 130, 50, 7, true, 1);
    gemm_case(e, 257, 20, 770, false, 2);
}

struct window_case {
    size_t h, w, kh, kw, sh, sw, dh, dw, top, left, bottom, right;
};

static const struct window_case windows[] = {
    {5, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},    {7, 9, 1, 1, 2, 2, 1, 1, 0, 0, 0, 0},
    {8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},    {13, 17, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {13, 17, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},  {9, 33, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0},
    {14, 14, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2},  {14, 31, 5, 5, 2, 1, 1, 1, 2, 2, 2, 2},
    {15, 20, 7, 7, 2, 2, 1, 1, 3, 3, 3, 3},  {11, 12, 3, 3, 1, 1, 2, 2, 2, 2, 2, 2},
    {11, 40, 3, 2, 3, 4, 1, 3, 0, 1, 2, 0},  {1, 50, 1, 35, 1, 1, 1, 1, 0, 17, 0, 17},
    {1, 70, 1, 3, 1, 2, 1, 2, 0, 2, 0, 2},   {3, 3, 5, 5, 1, 1, 1, 1, 2, 2, 2, 2},
    {2, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0},    {60, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1},
    {4, 100, 3, 3, 2, 1, 1, 1, 1, 1, 1, 1},  {6, 6, 3, 3, 1, 1, 1, 1, 4, 4, 4, 4},
    {40, 200, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1}, {7, 7, 7, 7, 1, 1, 1, 1, 0, 0, 0, 0},
    {14, 14, 5, 5, 2, 2, 1, 1, 2, 2, 2, 2},  {21, 110, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1},
    {23, 77, 5, 5, 2, 2, 1, 1, 1, 2, 0, 3},  {2, 3, 5, 5, 2, 2, 1, 1, 4, 4, 4, 4},
    {12, 50, 5, 5, 1, 1, 1, 1, 0, 0, 0, 0},  {7, 90, 3, 3, 2, 2, 1, 1, 0, 0, 0, 0},
};

static struct k_window window_of(const struct window_case *s)
{
    struct k_window w = {.h = s->h, .w = s->w, .kh = s->kh, .kw = s->kw};
    w.stride_h = s->sh, w.stride_w = s->sw, w.dilation_h = s->dh, w.dilation_w = s->dw;
    w.pad_top = s->top, w.pad_left = s->left, w.pad_bottom = s->bottom, w.pad_right = s->right;
    w.oh = (s->h + s->top + s->bottom - (s->kh - 1) * s->dh - 1) / s->sh + 1;
    w.ow = (s->w + s->left + s->right - (s->kw - 1) * s->dw - 1) / s->sw + 1;
    return w;
}

static void window_text(struct kc *c, const struct k_window *w, const char *more)
{
    snprintf(c->what, sizeof(c->what), "%zux%zu k %zux%zu s %zu,%zu d %zu,%zu p %zu,%zu,%zu,%zu %s",
             w->h, w->w, w->kh, w->kw, w->stride_h, w->stride_w, w->dilation_h, w->dilation_w,
             w->pad_top, w->pad_left, w->pad_bottom, w->pad_right, more);
}

static void conv_case(const struct each *e, const struct window_case *s, size_t batch,
                      size_t groups, size_t ic, size_t oc, bool bias)
{
    static const float some = 0;
    char more[64];
    bool depthwise = ic == 1 && oc == 1;
    for (int direct = 0; direct <= depthwise; direct++) {
        struct kc c = {.family = direct ? KC_DWCONV : KC_CONV};
        c.kernel = direct ? "f32_dwconv" : "f32_conv";
        struct k_conv *v = &c.u.conv;
        *v = (struct k_conv){.win = window_of(s), .batch = batch, .groups = groups};
        v->ic = ic, v->oc = oc, v->bias = bias ? &some : NULL;
        c.terms = ic * s->kh * s->kw + 1;
        c.in[0] = batch * groups * ic * s->h * s->w;
        c.in[1] = groups * oc * ic * s->kh * s->kw;
        c.in[2] = groups * oc;
        c.out = batch * groups * oc * v->win.oh * v->win.ow;
        snprintf(more, sizeof(more), "n %zu g %zu ic %zu oc %zu%s", batch, groups, ic, oc,
                 bias ? " bias" : "");
        window_text(&c, &v->win, more);
        e->fn(e->context, &c);
    }
}

static void conv_cases(const struct each *e, bool small)
{
    for (size_t i = 0; i < CM_COUNT_OF(windows); i++) {
        const struct window_case *s = &windows[i];
        if (small && s->h * s->w > 400)
            continue;
        conv_case(e, s, 1, 1, 3, 5, true);
        conv_case(e, s, 2, 3, 1, 1, true);
        if (small)
            continue;
        conv_case(e, s, 2, 2, 2, 9, false);
        conv_case(e, s, 1, 2, 1, 1, false);
    }
    const struct window_case deep = {6, 9, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct window_case wide = {20, 20, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct window_case point = {20, 30, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const struct window_case small_point = {9, 11, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    conv_case(e, &deep, 1, 1, 100, 4, true); /* k 900: the accumulators are parked */
    if (small)
        return;
    conv_case(e, &wide, 1, 1, 40, 6, true); /* several blocks of panels */
    conv_case(e, &point, 2, 1, 17, 12, true);
    conv_case(e, &small_point, 2, 2, 800, 2, false);
}

static void pool_cases(const struct each *e, bool small)
{
    for (size_t i = 0; i < CM_COUNT_OF(windows); i++)
        for (int op = 0; op < 3; op++) {
            struct kc c = {.family = KC_POOL, .op = op == 0 ? 0 : 1};
            c.kernel = op == 0 ? "f32_maxpool" : "f32_avgpool";
            c.u.pool = (struct k_pool){.win = window_of(&windows[i]), .planes = 4};
            c.u.pool.count_include_pad = op == 2;
            if (i % 2) { /* as with ceil_mode: one more output, partly beyond the pads */
                c.u.pool.win.oh++;
                c.u.pool.win.ow++;
            }
            const struct k_window *w = &c.u.pool.win;
            if (small && w->h * w->w > 400)
                continue;
            c.terms = w->kh * w->kw + 1;
            c.in[0] = c.u.pool.planes * w->h * w->w;
            c.out = c.u.pool.planes * w->oh * w->ow;
            window_text(&c, w, op == 2 ? "count_include_pad" : "");
            e->fn(e->context, &c);
        }
}

static void axis_case(const struct each *e, int op, size_t outer, size_t n, size_t inner)
{
    static const char *const names[] = {
        "f32_reduce_sum",     "f32_reduce_mean",        "f32_reduce_max", "f32_reduce_min",
        "f32_reduce_prod",    "f32_reduce_l1",          "f32_reduce_l2",  "f32_reduce_sum_square",
        "f32_reduce_log_sum", "f32_reduce_log_sum_exp", "f32_softmax",    "f32_logsoftmax"};
    struct kc c = {.family = KC_AXIS, .kernel = names[op], .op = op, .terms = n + 8};
    c.u.axis = (struct k_axis){.outer = outer, .n = n, .inner = inner};
    c.in[0] = outer * n * inner;
    c.out = op >= KC_SOFTMAX ? c.in[0] : outer * inner;
    snprintf(c.what, sizeof(c.what), "[%zu][%zu][%zu]", outer, n, inner);
    e->fn(e->context, &c);
}

static void axis_cases(const struct each *e, bool small)
{
    static const size_t ns[] = {0, 1, 2, 10, 15, 16, 17, 48, 63, 64, 65, 80, 127, 129, 1000};
    static const size_t inners[] = {1, 2, 15, 16, 17, 35};
    for (int op = KC_REDUCE_SUM; op <= KC_LOGSOFTMAX; op++)
        for (size_t i = 0; i < CM_COUNT_OF(ns); i += small ? 3 : 1)
            for (size_t j = 0; j < CM_COUNT_OF(inners); j += small ? 4 : 1)
                axis_case(e, op, inners[j] == 1 ? 5 : 2, ns[i], inners[j]);
}

static void scale_shift_cases(const struct each *e)
{
    static const size_t planes[] = {1, 15, 16, 17, 100};
    for (size_t i = 0; i < CM_COUNT_OF(planes); i++) {
        struct kc c = {.family = KC_SCALE_SHIFT, .kernel = "f32_scale_shift", .terms = 1};
        c.u.scale_shift = (struct k_scale_shift){.channels = 5, .plane = planes[i]};
        c.in[0] = c.out = 2 * 5 * planes[i];
        c.in[1] = c.in[2] = 5;
        snprintf(c.what, sizeof(c.what), "2 x 5 x %zu", planes[i]);
        e->fn(e->context, &c);
    }
}

/* Variant 0 is a layer as most are; the others go through all activations, clipping, peepholes and
 * the rest in mixed company. */
static void cell_case(const struct each *e, int op, size_t hidden, unsigned variant)
{
    static const char *const names[] = {"f32_rnn_cell", "f32_lstm_cell", "f32_gru_reset",
                                        "f32_gru_cell"};
    static const unsigned gates[] = {1, 4, 3, 3}, fns = K_RNN_SOFTPLUS + 1;
    static float some;
    struct kc c = {.family = KC_CELL, .kernel = names[op], .op = op, .terms = 1};
    struct k_rnn_cell *a = &c.u.cell.args;
    size_t rows = c.u.cell.rows = 1 + variant % 5;
    *a = (struct k_rnn_cell){.hidden = hidden, .clip = INFINITY};
    a->act[0].fn = K_RNN_SIGMOID;
    a->act[1].fn = a->act[2].fn = K_RNN_TANH;
    for (unsigned k = 0; k < 3 && variant > 0; k++)
        a->act[k] = (struct k_rnn_act){(enum k_rnn_fn)((variant + 3 * k) % fns), 0.3f, 0.8f};
    if (variant % 2)
        a->clip = 0.7f;
    a->peephole = variant % 3 == 1 ? &some : NULL;
    a->recurrent = variant % 2 ? NULL : &some;
    a->input_forget = variant % 4 == 3;
    a->y = variant % 3 == 2 ? NULL : &some;
    a->gates_stride = gates[op] * hidden + variant % 2;
    a->y_stride = hidden + variant % 4;
    c.in[0] = rows * a->gates_stride;
    c.in[1] = 3 * rows * hidden;
    c.in[2] = 3 * hidden;
    c.out = 3 * rows * hidden + rows * a->y_stride;
    snprintf(c.what, sizeof(c.what), "rows %zu hidden %zu variant %u", rows, hidden, variant);
    e->fn(e->context, &c);
}

static void cell_cases(const struct each *e, bool small)
{
    static const size_t hiddens[] = {1, 7, 15, 16, 17, 31, 32, 33, 49};
    for (int op = KC_RNN_CELL; op <= KC_GRU_CELL; op++)
        for (size_t i = 0; i < CM_COUNT_OF(hiddens); i += small ? 4 : 1)
            for (unsigned variant = 0; variant <= 12; variant += small ? 5 : 1)
                cell_case(e, op, hiddens[i], variant);
}

static void layer_norm_cases(const struct each *e, bool small)
{
    static const size_t ns[] = {1, 3, 15, 16, 17, 63, 64, 65, 80, 100, 129, 768};
    static float some;
    for (size_t i = 0; i < CM_COUNT_OF(ns); i += small ? 3 : 1)
        for (unsigned parts = 0; parts < 4; parts++) {
            size_t rows = 5, n = ns[i];
            struct kc c = {.family = KC_LAYER_NORM, .kernel = "f32_layer_norm", .terms = n + 8};
            c.u.norm.rows = rows;
            c.u.norm.args = (struct k_norm){.n = n, .epsilon = 1e-5f};
            c.u.norm.args.scale = parts > 0 ? &some : NULL;
            c.u.norm.args.bias = parts > 1 ? &some : NULL;
            c.u.norm.args.mean = parts == 3 ? &some : NULL;
            c.in[0] = rows * n;
            c.in[1] = c.in[2] = n;
            c.out = rows * n + (parts == 3 ? 2 * rows : 0);
            snprintf(c.what, sizeof(c.what), "[%zu][%zu] with %u", rows, n, parts);
            e->fn(e->context, &c);
        }
}

static void map_case(const struct each *e, bool unary, int op, size_t n, unsigned steps,
                     bool in_place)
{
    struct kc c = {.family = unary ? KC_UNARY : KC_BINARY, .op = op, .terms = 1};
    c.kernel = unary ? k_unary_name((enum k_unary)op) : k_binary_name((enum k_binary)op);
    c.u.map.n = n;
    c.u.map.step_a = steps & 1;
    c.u.map.step_b = steps >> 1;
    c.u.map.in_place = in_place;
    c.u.map.params = (struct k_unary_params){.alpha = -0.25f, .beta = 0.75f};
    c.in[0] = c.u.map.step_a ? n : 1;
    c.in[1] = c.u.map.step_b ? n : 1;
    c.out = n;
    snprintf(c.what, sizeof(c.what), "n %zu steps %zu %zu%s", n, c.u.map.step_a, c.u.map.step_b,
             in_place ? " in place" : "");
    e->fn(e->context, &c);
}

static void map_cases(const struct each *e, bool small)
{
    static const size_t ns[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1000};
    for (size_t i = small ? 9 : 0; i < CM_COUNT_OF(ns); i++) {
        for (int op = 0; op < K_UNARY_COUNT; op++)
            map_case(e, true, op, ns[i], 1, i % 2);
        for (int op = 0; op < K_BINARY_COUNT; op++)
            for (unsigned steps = 0; steps < 4; steps++)
                map_case(e, false, op, ns[i], steps, steps == 3 && i % 2);
    }
}

void kc_each(bool small, kc_fn *fn, void *context)
{
    const struct each e = {fn, context};
    gemm_cases(&e, small);
    conv_cases(&e, small);
    pool_cases(&e, small);
    axis_cases(&e, small);
    scale_shift_cases(&e);
    cell_cases(&e, small);
    layer_norm_cases(&e, small);
    map_cases(&e, small);
}
