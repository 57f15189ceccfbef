/* Sliding windows over one plane: output is computed in bands of rows from a padded copy of the
 * input rows that the band needs. Private to the CPU kernels.
 *
 * The copy holds explicit fill values for padding, and splits columns by phase: padded column X
 * lies at phase X % stride_w, place X / stride_w, so that the taps of 16 neighbouring outputs are
 * always 16 neighbouring floats, whatever the stride. */
#ifndef GPU_WORKER_CPU_WINDOW_H
#define GPU_WORKER_CPU_WINDOW_H

#include "gpu-worker/cpu/kernels.h"

/* Floats of a band's copy: half of an L1 cache, unless a few rows need more. */
#define WINDOW_BAND_FLOATS 8192
#define WINDOW_MIN_ROWS    4 /* output rows that a band has at least, for the register tiles */

struct window_layout {
    size_t columns; /* output columns, rounded up to full vectors */
    size_t phase;   /* floats of one phase of a row */
    size_t row;     /* floats of one padded row, all phases */
    size_t rows;    /* padded rows that fit the band */
    size_t band;    /* output rows of a full band */
    size_t tables;  /* floats before the band: tap offsets (size_t) and a row of counts */
    size_t total;   /* floats of the whole workspace */
};

void window_layout(const struct k_window *w, struct window_layout *ret_layout);

/* Fills tap offsets: ret_taps[kx] is the place of tap column kx within a padded row. */
void window_taps(const struct k_window *w, const struct window_layout *l, size_t *ret_taps);

/* Copies the padded rows of output rows [y0, y1) of a plane. */
void window_fill(const struct k_window *w, const struct window_layout *l, const float *plane,
                 size_t y0, size_t y1, float fill, float *band);

/* True where the image itself serves as B of the GEMM: 1x1, stride 1, no padding. */
bool conv_is_plain(const struct k_conv *c);

/* Panels of pixels that f32_conv packs at a time, at least 1. */
size_t conv_block_panels(const struct k_conv *c);

#endif
