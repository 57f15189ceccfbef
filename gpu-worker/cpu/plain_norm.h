/* Normalisation that has no vector kernels: of doubles, and the rare kinds. Plain C, compiled once;
 * pure functions, any thread.
 *
 * FP32 and FP64; computed in double, with sums as chains in index order, rounded when stored. */
#ifndef GPU_WORKER_CPU_PLAIN_NORM_H
#define GPU_WORKER_CPU_PLAIN_NORM_H

#include "gpu-worker/cpu/plain_reduce.h"

/* As f32_layer_norm with plain chains; y = (d * inv) * scale + bias. FP64. Items: rows. */
struct k_f64_norm {
    size_t n;
    double epsilon;
    const double *x, *scale, *bias;
    double *y, *mean, *inv;
};
void k_f64_layer_norm(const struct k_f64_norm *s, size_t i0, size_t i1);

/* y = y * scale[c] + shift[c] over y [batch][channels][plane]. FP64. Items: planes. */
void k_f64_scale_shift(size_t channels, size_t plane, const double *scale, const double *shift,
                       double *y, size_t i0, size_t i1);

/* x [batch][channels][plane] with one set of numbers per channel. Items: channels. */
struct k_channels {
    enum cm_dtype dtype;
    size_t batch, channels, plane;
    double epsilon;
    const void *x, *scale, *bias;
    void *y;
};

/* y = (x - mean[c]) * (scale[c] / sqrt(var[c] + epsilon)) + bias[c]; mean and var of x's type. */
void k_channels_normalise(const struct k_channels *s, const void *mean, const void *var, size_t i0,
                          size_t i1);

/* The same with the batch's own mean and population variance; these are stored, if not NULL, and
 * mixed into running ones: run = old * momentum + own * (1 - momentum). All of x's type. */
struct k_statistics {
    double momentum;
    const void *old_mean, *old_var;
    void *run_mean, *run_var, *own_mean, *own_var;
};
void k_channels_train(const struct k_channels *s, const struct k_statistics *t, size_t i0,
                      size_t i1);

/* y = (x - mean) / (sqrt(variance) + 1e-9) over the reduced elements of each item. */
void k_mean_variance(enum cm_dtype dtype, const struct k_reduce *r, const void *x, void *y,
                     size_t i0, size_t i1);

/* y = x / norm, p 1 or 2; 0 where the norm is 0. Items: pairs as in k_along. */
void k_lp_norm(enum cm_dtype dtype, const struct k_along *a, unsigned p, const void *x, void *y,
               size_t i0, size_t i1);

/* Local response: y = x / (bias + alpha / size * sum of squares)^beta; the sum is over channels
 * [c - (size - 1) / 2, c + size / 2]. Items: planes, batch * channels of them. */
struct k_lrn {
    enum cm_dtype dtype;
    size_t channels, plane, size;
    double alpha, beta, bias;
    const void *x;
    void *y;
};
void k_lrn(const struct k_lrn *s, size_t i0, size_t i1);

/* Negative log likelihood. scores [batch][classes][inner], labels [batch][inner], weights [classes]
 * or NULL. Each loss is -score * weight; ignored labels have loss and weight 0. */
struct k_nll {
    enum cm_dtype dtype;
    bool wide; /* int64 labels, otherwise int32 */
    bool ignores;
    int64_t ignore;
    size_t batch, classes, inner;
    const void *scores, *labels, *weights;
};
enum k_nll_reduction { K_NLL_NONE, K_NLL_SUM, K_NLL_MEAN };

/* Losses to y: one each, or their sum, or that divided by the sum of weights. Labels may change
 * while they are read: each is read once. False, with the label, for one that is no class. */
bool k_nll_run(const struct k_nll *s, enum k_nll_reduction reduction, void *y, int64_t *ret_bad);

#endif
