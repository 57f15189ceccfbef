/* Normalisation and losses in plain C; see plain_norm.h. Compiled once. */
#include "gpu-worker/cpu/plain_norm.h"

#include "gpu-worker/cpu/f64_math.h"

#include <math.h>
#include <string.h>

/* An element as a double, and back with one rounding. */
static inline double get(enum cm_dtype dtype, const void *x, size_t i)
{
    return dtype == CM_FP32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static inline void put(enum cm_dtype dtype, void *y, size_t i, double value)
{
    if (dtype == CM_FP32)
        ((float *)y)[i] = (float)value;
    else
        ((double *)y)[i] = value;
}

void k_f64_layer_norm(const struct k_f64_norm *s, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1; i++) {
        const double *x = s->x + i * s->n;
        double *y = s->y + i * s->n, sum = 0, spread = 0;
        for (size_t j = 0; j < s->n; j++)
            sum += x[j];
        double mean = sum / (double)s->n;
        for (size_t j = 0; j < s->n; j++)
            spread += (x[j] - mean) * (x[j] - mean);
        double inv = 1.0 / sqrt(spread / (double)s->n + s->epsilon);
        for (size_t j = 0; j < s->n; j++) {
            double t = (x[j] - mean) * inv;
            if (s->scale)
                t *= s->scale[j];
            y[j] = s->bias ? t + s->bias[j] : t;
        }
        if (s->mean)
            s->mean[i] = mean;
        if (s->inv)
            s->inv[i] = inv;
    }
}

void k_f64_scale_shift(size_t channels, size_t plane, const double *scale, const double *shift,
                       double *y, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1; i++)
        for (size_t j = 0; j < plane; j++)
            y[i * plane + j] = y[i * plane + j] * scale[i % channels] + shift[i % channels];
}

/* ---- by channel ------------------------------------------------------------------------------ */

static void normalise_channel(const struct k_channels *s, size_t c, double mean, double var)
{
    double factor = get(s->dtype, s->scale, c) / sqrt(var + s->epsilon);
    double bias = get(s->dtype, s->bias, c);
    for (size_t n = 0; n < s->batch; n++) {
        size_t at = (n * s->channels + c) * s->plane;
        for (size_t i = at; i < at + s->plane; i++)
            put(s->dtype, s->y, i, (get(s->dtype, s->x, i) - mean) * factor + bias);
    }
}

void k_channels_normalise(const struct k_channels *s, const void *mean, const void *var, size_t i0,
                          size_t i1)
{
    for (size_t c = i0; c < i1; c++)
        normalise_channel(s, c, get(s->dtype, mean, c), get(s->dtype, var, c));
}

static double channel_sum(const struct k_channels *s, size_t c, double mean, bool square)
{
    double t = 0;
    for (size_t n = 0; n < s->batch; n++) {
        size_t at = (n * s->channels + c) * s->plane;
        for (size_t i = at; i < at + s->plane; i++) {
            double d = get(s->dtype, s->x, i) - mean;
            t += square ? d * d : d;
        }
    }
    return t;
}

static void store_statistic(const struct k_channels *s, size_t c, double own, double momentum,
                            const void *old, void *run, void *kept)
{
    if (run)
        put(s->dtype, run, c, get(s->dtype, old, c) * momentum + own * (1.0 - momentum));
    if (kept)
        put(s->dtype, kept, c, own);
}

void k_channels_train(const struct k_channels *s, const struct k_statistics *t, size_t i0,
                      size_t i1)
{
    double count = (double)s->batch * (double)s->plane;
    for (size_t c = i0; c < i1; c++) {
        double mean = channel_sum(s, c, 0, false) / count;
        double var = channel_sum(s, c, mean, true) / count;
        store_statistic(s, c, mean, t->momentum, t->old_mean, t->run_mean, t->own_mean);
        store_statistic(s, c, var, t->momentum, t->old_var, t->run_var, t->own_var);
        normalise_channel(s, c, mean, var);
    }
}

/* ---- others ---------------------------------------------------------------------------------- */

static double item_sum(enum cm_dtype dtype, const struct k_reduce *r, const void *x, size_t at,
                       double mean, bool square)
{
    double t = 0;
    for (struct k_reduce_run run = k_reduce_first(r); run.n; k_reduce_next(r, &run))
        for (size_t i = 0; i < run.n; i++) {
            double d = get(dtype, x, at + run.offset + i * run.stride) - mean;
            t += square ? d * d : d;
        }
    return t;
}

void k_mean_variance(enum cm_dtype dtype, const struct k_reduce *r, const void *x, void *y,
                     size_t i0, size_t i1)
{
    for (size_t item = i0; item < i1; item++) {
        size_t at = k_reduce_at(r, item);
        double mean = item_sum(dtype, r, x, at, 0, false) / (double)r->n;
        double var = item_sum(dtype, r, x, at, mean, true) / (double)r->n;
        double divisor = sqrt(var) + 1e-9;
        for (struct k_reduce_run run = k_reduce_first(r); run.n; k_reduce_next(r, &run))
            for (size_t i = 0; i < run.n; i++) {
                size_t to = at + run.offset + i * run.stride;
                put(dtype, y, to, (get(dtype, x, to) - mean) / divisor);
            }
    }
}

void k_lp_norm(enum cm_dtype dtype, const struct k_along *a, unsigned p, const void *x, void *y,
               size_t i0, size_t i1)
{
    for (size_t item = i0; item < i1; item++) {
        size_t at = k_along_at(a, item);
        double norm = 0;
        for (size_t j = 0; j < a->n; j++) {
            double v = get(dtype, x, at + j * a->inner);
            norm += p == 1 ? fabs(v) : v * v;
        }
        if (p == 2)
            norm = sqrt(norm);
        for (size_t j = 0; j < a->n; j++) {
            double v = get(dtype, x, at + j * a->inner);
            put(dtype, y, at + j * a->inner, norm == 0 ? 0 : v / norm);
        }
    }
}

/* x to the power beta; what networks use in closed form. */
static double power(double x, double beta)
{
    if (beta == 0.75) {
        double root = sqrt(x);
        return root * sqrt(root);
    }
    return beta == 0.5 ? sqrt(x) : beta == 1.0 ? x : f64_pow(x, beta);
}

void k_lrn(const struct k_lrn *s, size_t i0, size_t i1)
{
    size_t before = (s->size - 1) / 2, after = s->size / 2;
    for (size_t item = i0; item < i1; item++) {
        size_t c = item % s->channels, image = item - c;
        size_t first = c < before ? 0 : c - before;
        size_t end = s->channels - c <= after ? s->channels : c + after + 1;
        for (size_t i = 0; i < s->plane; i++) {
            double sum = 0;
            for (size_t k = first; k < end; k++) {
                double v = get(s->dtype, s->x, (image + k) * s->plane + i);
                sum += v * v;
            }
            double x = get(s->dtype, s->x, item * s->plane + i);
            double base = s->bias + s->alpha / (double)s->size * sum;
            put(s->dtype, s->y, item * s->plane + i, x / power(base, s->beta));
        }
    }
}

/* ---- losses ---------------------------------------------------------------------------------- */

static int64_t label_at(const struct k_nll *s, size_t i)
{
    return s->wide ? ((const volatile int64_t *)s->labels)[i]
                   : ((const volatile int32_t *)s->labels)[i];
}

bool k_nll_run(const struct k_nll *s, enum k_nll_reduction reduction, void *y, int64_t *ret_bad)
{
    double sum = 0, weights = 0;
    for (size_t i = 0; i < s->batch * s->inner; i++) {
        int64_t label = label_at(s, i);
        double loss = 0, weight = 0;
        if (!s->ignores || label != s->ignore) {
            if (label < 0 || label >= (int64_t)s->classes) {
                *ret_bad = label;
                return false;
            }
            size_t at = (i / s->inner * s->classes + (size_t)label) * s->inner + i % s->inner;
            weight = s->weights ? get(s->dtype, s->weights, (size_t)label) : 1.0;
            loss = -get(s->dtype, s->scores, at) * weight;
        }
        sum += loss;
        weights += weight;
        if (reduction == K_NLL_NONE)
            put(s->dtype, y, i, loss);
    }
    if (reduction != K_NLL_NONE)
        put(s->dtype, y, 0, reduction == K_NLL_MEAN ? sum / weights : sum);
    return true;
}
