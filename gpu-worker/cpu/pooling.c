/* f32 max and average pooling over padded bands of a plane.
 *
 * Compiled once per instruction set; runs on the caller's thread. A lane is an output pixel, taps
 * run in (ky, kx) order. Filling the padding with -inf (max) or +0 (sum) is the same as skipping
 * it: max(t, -inf) is t, and a sum that started at +0 is never -0. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/kernels.h"
#include "gpu-worker/cpu/window.h"

#include <math.h>

/* Taps t of n (at t*dilation from start) that lie in [low, high). */
static size_t taps_inside(ptrdiff_t start, size_t n, size_t dilation, ptrdiff_t low, ptrdiff_t high)
{
    size_t count = 0;
    for (size_t t = 0; t < n; t++) {
        ptrdiff_t at = start + (ptrdiff_t)(t * dilation);
        count += at >= low && at < high;
    }
    return count;
}

/* The number of taps along one axis that the average counts at output o. */
static float taps_counted(size_t o, size_t stride, size_t n, size_t dilation, size_t size,
                          size_t pad_begin, size_t pad_end, bool include_pad)
{
    ptrdiff_t start = (ptrdiff_t)(o * stride) - (ptrdiff_t)pad_begin;
    ptrdiff_t low = include_pad ? -(ptrdiff_t)pad_begin : 0;
    ptrdiff_t high = (ptrdiff_t)size + (include_pad ? (ptrdiff_t)pad_end : 0);
    return (float)taps_inside(start, n, dilation, low, high);
}

/* One output row. For the average, counts is taps counted per column and rows those of the row. */
K_INLINE void pool_row(const struct k_window *w, const struct window_layout *l, const size_t *taps,
                       const float *in, const float *counts, float rows, float *out,
                       const bool average)
{
    for (size_t x = 0; x < w->ow; x += VL) {
        v t = average ? v_zero() : v_set(-INFINITY);
        const float *line = in + x;
        for (size_t ky = 0; ky < w->kh; ky++, line += w->dilation_h * l->row)
            for (size_t kx = 0; kx < w->kw; kx++) {
                v p = v_load(line + taps[kx]);
                t = average ? v_add(t, p) : v_max(t, p);
            }
        if (average) {
            v n = v_mul(v_set(rows), v_load(counts + x));
            t = v_sel(v_lt(v_zero(), n), v_div(t, n), v_zero());
        }
        v_storet(out + x, t, w->ow - x);
    }
}

K_INLINE void pool_planes(const struct k_pool *p, size_t i0, size_t i1, float *workspace,
                          const bool average)
{
    const struct k_window *w = &p->win;
    struct window_layout l;
    window_layout(w, &l);
    size_t *taps = (size_t *)(void *)workspace;
    float *counts = workspace + l.tables - l.columns, *band = workspace + l.tables;
    if (i0 >= i1 || w->oh == 0 || w->ow == 0)
        return;
    window_taps(w, &l, taps);
    for (size_t x = 0; average && x < l.columns; x++)
        counts[x] = taps_counted(x, w->stride_w, w->kw, w->dilation_w, w->w, w->pad_left,
                                 w->pad_right, p->count_include_pad);
    for (size_t i = i0; i < i1; i++) {
        for (size_t y = 0; y < w->oh; y++) {
            size_t in_band = y % l.band;
            if (in_band == 0) {
                size_t y1 = w->oh - y < l.band ? w->oh : y + l.band;
                window_fill(w, &l, p->x + i * w->h * w->w, y, y1, average ? 0.0f : -INFINITY, band);
            }
            float rows = average ? taps_counted(y, w->stride_h, w->kh, w->dilation_h, w->h,
                                                w->pad_top, w->pad_bottom, p->count_include_pad)
                                 : 0.0f;
            pool_row(w, &l, taps, band + in_band * w->stride_h * l.row, counts, rows,
                     p->y + (i * w->oh + y) * w->ow, average);
        }
    }
}

void K_NAME(f32_maxpool)(const struct k_pool *p, size_t i0, size_t i1, float *workspace)
{
    pool_planes(p, i0, i1, workspace, false);
}

void K_NAME(f32_avgpool)(const struct k_pool *p, size_t i0, size_t i1, float *workspace)
{
    pool_planes(p, i0, i1, workspace, true);
}
