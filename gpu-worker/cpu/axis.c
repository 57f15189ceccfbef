/* f32 reductions and softmax along one axis.
 *
 * Compiled once per instruction set; runs on the caller's thread. The order of every sum is that of
 * kernels.h: 64 strided partial results and one tree. Along the last axis the 64 are four vectors;
 * along another axis a lane is a position of the inner dimensions and the 64 are an array of
 * vectors: the same operations on the same values in the same order. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/k_math.h"
#include "gpu-worker/cpu/kernels.h"

#include <math.h>

enum reduce { SUM, MAX, MIN };

K_INLINE v r_start(const enum reduce op)
{
    return op == SUM ? v_zero() : v_set(op == MAX ? -INFINITY : INFINITY);
}
K_INLINE v r_step(const enum reduce op, v t, v x)
{
    return op == SUM ? v_add(t, x) : op == MAX ? v_max(t, x) : v_min(t, x);
}
K_INLINE float r_step1(const enum reduce op, float t, float x)
{
    if (op == SUM)
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
    if (op == SUM)
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
            s[q] = r_step(op, s[q], v_load(x + i + q * VL));
    }
    K_UNROLL(4)
    for (unsigned q = 0; q < 4; q++)
        if (n - i > q * VL)
            s[q] = r_step(op, s[q], r_load(op, x + i + q * VL, n - i - q * VL));
    return r_fold(op, s);
}

/* 16 columns (lanes of them real) of n values at distance stride. */
K_LARGE v column_reduce(const enum reduce op, const float *x, size_t n, size_t stride, size_t lanes)
{
    v s[64];
    for (unsigned l = 0; l < 64; l++)
        s[l] = r_start(op);
    for (size_t i = 0; i < n; i++)
        s[i % 64] = r_step(op, s[i % 64], v_loadt(x + i * stride, lanes));
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

K_INLINE void reduce_run(const enum reduce op, const bool mean, const struct k_axis *a, size_t i0,
                         size_t i1)
{
    float count = (float)a->n;
    if (a->inner == 1) {
        for (size_t i = i0; i < i1; i++) {
            float t = row_reduce(op, a->x + i * a->n, a->n);
            a->y[i] = mean ? t / count : t;
        }
        return;
    }
    while (i0 < i1) {
        size_t at, lanes = columns_next(a, i0, i1, &at);
        v t = column_reduce(op, a->x + at, a->n, a->inner, lanes);
        v_storet(a->y + i0, mean ? v_div(t, v_set(count)) : t, lanes);
        i0 += lanes;
    }
}

void K_NAME(f32_reduce_sum)(const struct k_axis *a, size_t i0, size_t i1)
{
    reduce_run(SUM, false, a, i0, i1);
}
void K_NAME(f32_reduce_mean)(const struct k_axis *a, size_t i0, size_t i1)
{
    reduce_run(SUM, true, a, i0, i1);
}
void K_NAME(f32_reduce_max)(const struct k_axis *a, size_t i0, size_t i1)
{
    reduce_run(MAX, false, a, i0, i1);
}
void K_NAME(f32_reduce_min)(const struct k_axis *a, size_t i0, size_t i1)
{
    reduce_run(MIN, false, a, i0, i1);
}

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
