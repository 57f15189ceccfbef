/* Preparations done once per model: packed B and folded batch normalisation. Plain C, one version
 * for every instruction set, so that packed bytes can be shared. Pure functions. */
#include "gpu-worker/cpu/kernels.h"

#include <math.h>
#include <string.h>

void k_f32_pack_b(const float *b, size_t row_stride, size_t col_stride, size_t k, size_t n,
                  size_t p0, size_t p1, float *out)
{
    for (size_t p = p0; p < p1; p++) {
        size_t j = p * K_PANEL;
        size_t cols = n - j < K_PANEL ? n - j : K_PANEL;
        size_t width = (cols + K_LANES - 1) / K_LANES * K_LANES;
        float *to = out + j * k;
        for (size_t kk = 0; kk < k; kk++, to += width) {
            const float *from = b + kk * row_stride + j * col_stride;
            if (col_stride == 1)
                memcpy(to, from, cols * sizeof(float));
            else
                for (size_t c = 0; c < cols; c++)
                    to[c] = from[c * col_stride];
            memset(to + cols, 0, (width - cols) * sizeof(float));
        }
    }
}

void k_f32_bn_fold(const float *gamma, const float *beta, const float *mean, const float *var,
                   float epsilon, size_t channels, float *ret_scale, float *ret_shift)
{
    for (size_t i = 0; i < channels; i++) {
        double root = sqrt((double)var[i] + (double)epsilon);
        float scale = (float)((double)gamma[i] / root);
        double moved = (double)mean[i] * (double)scale;
        ret_scale[i] = scale;
        ret_shift[i] = (float)((double)beta[i] - moved);
    }
}
