/* f32 reductions, softmax and layer normalisation along one axis.
 *
 * Compiled once per instruction set; runs on the caller's thread. The order of every sum is that of
 * kernels.h: 64 strided partial results and one tree. Along the last axis the 64 are four vectors;
 * along another axis a lane is a position of the inner dimensions and the 64 are an array of
 * vectors: the same operations on the same values in the same order. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/k_math.h"
#include "gpu-worker/cpu/kernels.h"

#include <math.h>

/* The last two are sums of what a value is made into first. */
enum reduce { SUM, MAX, MIN, PROD, SUM_ABS, SUM_SQUARE };

K_INLINE v r_start(const enum reduce op)
{
    return op == MAX    ? v_set(-INFINITY)
           : op == MIN  ? v_set(INFINITY)
           : op == PROD ? v_set(1.0f)
                        : v_zero();
}
/* Joins partial results. */
K_INLINE v r_step(const enum reduce op, v t, v x)
{
    return op == MAX    ? v_max(t, x)
           : op == MIN  ? v_min(t, x)
           : op == PROD ? v_mul(t, x)
                        : v_add(t, x);
}
/* Takes in a value. */
K_INLINE v r_take(const enum reduce op, v t, v x)
{
    if (op == SUM_SQUARE)
        return v_fma(x, x, t);
    return r_step(op, t, op == SUM_ABS ? v_abs(x) : x);
}
K_INLINE float r_step1(const enum reduce op, float t, float x)
{
    if (op == PROD)
        return t * x;
    if (op != MAX && op != MIN)
        return t + x;
    if (x != x)
        return x;
    return (op == MAX ? x > t : x < t) ? x : t;
}

/* The tree, from four vectors of partial results. */
K_LARGE float r_fold(const enum reduce op, const v s[4])
{
    float t[16];
    v_store(t, r_step(op, r_step(op, s[0], s[2]), r_step(op, s[1], s[3])));
    for (unsigned width = 8; width > 0; width /= 2)
        for (unsigned l = 0; l < width; l++)
            t[l] = r_step1(op, t[l], t[l + width]);
    return t[0];
}

/* The same tree for 16 positions at once. */
K_LARGE v r_fold_lanes(const enum reduce op, v s[64])
{
    for (unsigned l = 0; l < 16; l++)
        s[l] = r_step(op, r_step(op, s[l], s[l + 32]), r_step(op, s[l + 16], s[l + 48]));
    for (unsigned width = 8; width > 0; width /= 2)
        for (unsigned l = 0; l < width; l++)
            s[l] = r_step(op, s[l], s[l + width]);
    return s[0];
}

/* Up to 16 values, the other lanes the operation's neutral value: +0 does not change a sum that
 * started at +0, which is never -0. */
K_INLINE v r_load(const enum reduce op, const float *x, size_t n)
{
    if (n >= VL)
        return v_load(x);
    if (op != MAX && op != MIN && op != PROD)
        return v_loadn(x, (unsigned)n);
    float t[16];
    v_store(t, r_start(op));
    memcpy(t, x, n * sizeof(float));
    return v_load(t);
}

/* One row of n contiguous values. */
K_LARGE float row_reduce(const enum reduce op, const float *x, size_t n)
{
    v s[4] = {r_start(op), r_start(op), r_start(op), r_start(op)};
    size_t i = 0;
    for (; n - i >= 4 * VL; i += 4 * VL) {
        K_UNROLL(4)
        for (unsigned q = 0; q < 4; q++)
            s[q] = r_take(op, s[q], v_load(x + i + q * VL));
    }
    K_UNROLL(4)
    for (unsigned q = 0; q < 4; q++)
        if (n - i > q * VL)
            s[q] = r_take(op, s[q], r_load(op, x + i + q * VL, n - i - q * VL));
    return r_fold(op, s);
}

/* 16 columns (lanes of them real) of n values at distance stride. */
K_LARGE v column_reduce(const enum reduce op, const float *x, size_t n, size_t stride, size_t lanes)
{
    v s[64];
    for (unsigned l = 0; l < 64; l++)
        s[l] = r_start(op);
    for (size_t i = 0; i < n; i++)
        s[i % 64] = r_take(op, s[i % 64], v_loadt(x + i * stride, lanes));
    return r_fold_lanes(op, s);
}

/* Cuts items [*i, i1) of a strided axis into at most 16 columns of one outer position. */
static size_t columns_next(const struct k_axis *a, size_t i, size_t i1, size_t *ret_at)
{
    size_t q = i % a->inner, lanes = a->inner - q;
    if (lanes > i1 - i)
        lanes = i1 - i;
    *ret_at = i / a->inner * a->n * a->inner + q;
    return lanes < VL ? lanes : VL;
}

/* What is done to the result of n values. */
enum finish { PLAIN, MEAN, ROOT, LOG };

K_INLINE v r_finish(const enum finish finish, v t, size_t n)
{
    if (finish == MEAN)
        return v_div(t, v_set((float)n));
    return finish == ROOT ? v_sqrt(t) : finish == LOG ? v_log(t) : t;
}

K_INLINE void reduce_run(const enum reduce op, const enum finish finish, const struct k_axis *a,
                         size_t i0, size_t i1)
{
    if (a->inner == 1) {
        for (size_t i = i0; i < i1; i++) {
            float t = row_reduce(op, a->x + i * a->n, a->n);
            if (finish == PLAIN)
                a->y[i] = t;
            else
                v_storen(a->y + i, r_finish(finish, v_set(t), a->n), 1);
        }
        return;
    }
    while (i0 < i1) {
        size_t at, lanes = columns_next(a, i0, i1, &at);
        v t = column_reduce(op, a->x + at, a->n, a->inner, lanes);
        v_storet(a->y + i0, r_finish(finish, t, a->n), lanes);
        i0 += lanes;
    }
}

#define REDUCTION(name, op, finish)                                       \
    void K_NAME(f32_##name)(const struct k_axis *a, size_t i0, size_t i1) \
    {                                                                     \
        reduce_run(op, finish, a, i0, i1);                                \
    }
REDUCTION(reduce_sum, SUM, PLAIN)
REDUCTION(reduce_mean, SUM, MEAN)
REDUCTION(reduce_max, MAX, PLAIN)
REDUCTION(reduce_min, MIN, PLAIN)
REDUCTION(reduce_prod, PROD, PLAIN)
REDUCTION(reduce_l1, SUM_ABS, PLAIN)
REDUCTION(reduce_l2, SUM_SQUARE, ROOT)
REDUCTION(reduce_sum_square, SUM_SQUARE, PLAIN)
REDUCTION(reduce_log_sum, SUM, LOG)

/* ---- softmax ---- */

/* e^(x - m) of n contiguous values to y (NULL: not kept), and their sum. */
K_LARGE float row_exp_sum(const float *x, float *y, size_t n, float m)
{
    v s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    v max = v_set(m);
    size_t i = 0;
    for (; n - i >= 4 * VL; i += 4 * VL) {
        K_UNROLL(4)
        for (unsigned q = 0; q < 4; q++) {
            v e = v_exp(v_sub(v_load(x + i + q * VL), max));
            if (y)
                v_store(y + i + q * VL, e);
            s[q] = v_add(s[q], e);
        }
    }
    for (unsigned q = 0; q < 4 && i < n; q++, i += n - i < VL ? n - i : VL) {
        float t[16] = {0};
        v e = v_exp(v_sub(v_loadt(x + i, n - i), max));
        v_storet(t, e, n - i); /* lanes beyond n are +0 in the sum */
        s[q] = v_add(s[q], v_load(t));
        if (y)
            v_storet(y + i, e, n - i);
    }
    return r_fold(SUM, s);
}

/* y = x / d, or (x - m) - d. */
K_LARGE void row_finish(const float *x, float *y, size_t n, v m, v d, const bool log)
{
    for (size_t i = 0; i < n; i += n - i < VL ? n - i : VL) {
        v t = v_loadt(x + i, n - i);
        v_storet(y + i, log ? v_sub(v_sub(t, m), d) : v_div(t, d), n - i);
    }
}

K_INLINE void softmax_row(const float *x, float *y, size_t n, const bool log)
{
    float m = row_reduce(MAX, x, n);
    float sum = row_exp_sum(x, log ? NULL : y, n, m);
    if (log)
        row_finish(x, y, n, v_set(m), v_log(v_set(sum)), true);
    else
        row_finish(y, y, n, v_zero(), v_set(sum), false);
}

K_LARGE void softmax_columns(const float *x, float *y, size_t n, size_t stride, size_t lanes,
                             const bool log)
{
    v m = column_reduce(MAX, x, n, stride, lanes);
    v s[64];
    for (unsigned l = 0; l < 64; l++)
        s[l] = v_zero();
    for (size_t i = 0; i < n; i++) {
        v e = v_exp(v_sub(v_loadt(x + i * stride, lanes), m));
        s[i % 64] = v_add(s[i % 64], e);
        if (!log)
            v_storet(y + i * stride, e, lanes);
    }
    v d = r_fold_lanes(SUM, s);
    if (log)
        d = v_log(d);
    for (size_t i = 0; i < n; i++) {
        v t = v_loadt((log ? x : y) + i * stride, lanes);
        v_storet(y + i * stride, log ? v_sub(v_sub(t, m), d) : v_div(t, d), lanes);
    }
}

K_INLINE void softmax_run(const struct k_axis *a, size_t i0, size_t i1, const bool log)
{
    if (a->n == 0)
        return;
    if (a->inner == 1) {
        for (size_t i = i0; i < i1; i++)
            softmax_row(a->x + i * a->n, a->y + i * a->n, a->n, log);
        return;
    }
    while (i0 < i1) {
        size_t at, lanes = columns_next(a, i0, i1, &at);
        softmax_columns(a->x + at, a->y + at, a->n, a->inner, lanes, log);
        i0 += lanes;
    }
}

void K_NAME(f32_softmax)(const struct k_axis *a, size_t i0, size_t i1)
{
    softmax_run(a, i0, i1, false);
}
void K_NAME(f32_logsoftmax)(const struct k_axis *a, size_t i0, size_t i1)
{
    softmax_run(a, i0, i1, true);
}

/* ---- log of a sum of exponentials ---- */

/* The maximum where it is a number to subtract, otherwise 0: infinities then come out as they are.
 */
K_INLINE v shift_of(v m)
{
    v a = v_abs(m);
    return v_sel(v_lt(a, v_set(INFINITY)), m, v_sel(v_isnan(m), m, v_zero()));
}

K_LARGE v columns_log_sum_exp(const float *x, size_t n, size_t stride, size_t lanes)
{
    v m = shift_of(column_reduce(MAX, x, n, stride, lanes));
    v s[64];
    for (unsigned l = 0; l < 64; l++)
        s[l] = v_zero();
    for (size_t i = 0; i < n; i++)
        s[i % 64] = v_add(s[i % 64], v_exp(v_sub(v_loadt(x + i * stride, lanes), m)));
    return v_add(m, v_log(r_fold_lanes(SUM, s)));
}

void K_NAME(f32_reduce_log_sum_exp)(const struct k_axis *a, size_t i0, size_t i1)
{
    if (a->inner == 1) {
        for (size_t i = i0; i < i1; i++) {
            float shift[16];
            const float *x = a->x + i * a->n;
            v m = shift_of(v_set(row_reduce(MAX, x, a->n)));
            v_store(shift, m);
            v t = v_set(row_exp_sum(x, NULL, a->n, shift[0]));
            v_storen(a->y + i, v_add(m, v_log(t)), 1);
        }
        return;
    }
    while (i0 < i1) {
        size_t at, lanes = columns_next(a, i0, i1, &at);
        v_storet(a->y + i0, columns_log_sum_exp(a->x + at, a->n, a->inner, lanes), lanes);
        i0 += lanes;
    }
}

/* ---- layer normalisation ---- */

/* Sum of squared distances from the mean. */
K_LARGE float row_spread(const float *x, size_t n, float mean)
{
    v s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    v m = v_set(mean);
    size_t i = 0;
    for (; n - i >= 4 * VL; i += 4 * VL) {
        K_UNROLL(4)
        for (unsigned q = 0; q < 4; q++) {
            v d = v_sub(v_load(x + i + q * VL), m);
            s[q] = v_fma(d, d, s[q]);
        }
    }
    for (unsigned q = 0; q < 4 && i < n; q++, i += n - i < VL ? n - i : VL) {
        float t[16] = {0};
        v_storet(t, v_sub(v_loadt(x + i, n - i), m), n - i); /* lanes beyond n are +0 */
        v d = v_load(t);
        s[q] = v_fma(d, d, s[q]);
    }
    return r_fold(SUM, s);
}

K_LARGE void row_normalise(const struct k_norm *s, const float *x, float *y, float mean, float inv)
{
    v m = v_set(mean), r = v_set(inv);
    for (size_t i = 0; i < s->n; i += s->n - i < VL ? s->n - i : VL) {
        size_t lanes = s->n - i;
        v t = v_mul(v_sub(v_loadt(x + i, lanes), m), r);
        if (s->scale && s->bias)
            t = v_fma(t, v_loadt(s->scale + i, lanes), v_loadt(s->bias + i, lanes));
        else if (s->scale)
            t = v_mul(t, v_loadt(s->scale + i, lanes));
        v_storet(y + i, t, lanes);
    }
}

void K_NAME(f32_layer_norm)(const struct k_norm *s, size_t i0, size_t i1)
{
    float n = (float)s->n;
    for (size_t i = i0; i < i1; i++) {
        const float *x = s->x + i * s->n;
        float mean = row_reduce(SUM, x, s->n) / n;
        float inv = 1.0f / sqrtf(row_spread(x, s->n, mean) / n + s->epsilon);
        row_normalise(s, x, s->y + i * s->n, mean, inv);
        if (s->mean)
            s->mean[i] = mean;
        if (s->inv)
            s->inv[i] = inv;
    }
}
