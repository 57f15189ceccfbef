/* f32 depthwise convolutions over NCHW planes.
 *
 * Compiled once per instruction set; runs on the caller's thread. An output is the same chain as in
 * conv.c: from the bias over (ky, kx), padding taps as fma(weight, +0, t).
 *
 * Kernels of 3x3 and 5x5 with stride 1 or 2 read the plane itself: lanes outside it are masked, and
 * up to four output rows share the vectors of the input rows between them. That costs nothing per
 * plane, so planes of 7x7 run as well as large ones. Others go through a padded copy in bands
 * (window.h). */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/kernels.h"
#include "gpu-worker/cpu/window.h"

#include "gpu-worker/cpu/epilogue.h"

/* The scalar version keeps its loops: unrolled, sixteen lanes at a time, they cost gcc minutes. */
#if defined(K_SCALAR)
#define DW_UNROLL(n)
#else
#define DW_UNROLL(n) K_UNROLL(n)
#endif

/* ---- straight from the plane ---- */

enum { DW_ROWS = 4, DW_MAX_K = 5, DW_BAND = 4096 /* outputs between two runs of the epilogue */ };

struct dw_plane {
    const struct k_window *w;
    const uint32_t *masks; /* [vector of a row][DW_MAX_K]: columns that are inside the plane */
    const float *x, *weight;
    float bias;
    float *y;
};

static bool dw_is_direct(const struct k_conv *c)
{
    const struct k_window *w = &c->win;
    return w->kh == w->kw && (w->kh == 3 || w->kh == 5) && w->stride_h == w->stride_w &&
           w->stride_h <= 2 && w->dilation_h == 1 && w->dilation_w == 1;
}

/* A bit for each of 32 columns from `first` on that lies within 0..width-1. */
static uint32_t dw_columns(ptrdiff_t first, size_t width)
{
    ptrdiff_t low = first < 0 ? -first : 0, high = (ptrdiff_t)width - first;
    if (low >= 32 || high <= low)
        return 0;
    return (uint32_t)((high >= 32 ? 0xffffffffull : (1ull << high) - 1) >> low << low);
}

static void dw_fill_masks(const struct k_window *w, uint32_t *masks)
{
    for (size_t x = 0; x < w->ow; x += VL)
        for (size_t kx = 0; kx < DW_MAX_K; kx++)
            *masks++ = dw_columns((ptrdiff_t)(x * w->stride_w + kx) - (ptrdiff_t)w->pad_left, w->w);
}

/* All lanes that tap columns read are inside. */
static bool dw_is_full(const uint32_t *masks, size_t kernel, size_t stride)
{
    uint32_t all = 0xffffffffu;
    for (size_t kx = 0; kx < kernel; kx += stride)
        all &= masks[kx];
    return stride == 1 ? (all & 0xffffu) == 0xffffu : all == 0xffffffffu;
}

/* What tap column kx of 16 neighbouring outputs looks at; row is where tap column 0 of the first
 * one is, perhaps outside the plane. With stride 2 it is every second of 32 columns, and an odd kx
 * shares its loads with the even one before it. */
K_INLINE v dw_load(uintptr_t row, const uint32_t *masks, const unsigned kx, const unsigned S,
                   const bool full)
{
    const unsigned from = S == 2 ? kx & ~1u : kx;
    const float *p = (const float *)(row + from * sizeof(float));
    if (S == 1)
        return full ? v_load(p) : v_loadm(p, masks[from] & 0xffffu);
    const float *q = (const float *)(row + (from + VL) * sizeof(float));
    v a = full ? v_load(p) : v_loadm(p, masks[from] & 0xffffu);
    v b = full ? v_load(q) : v_loadm(q, masks[from] >> VL);
    return kx & 1 ? v_odds(a, b) : v_evens(a, b);
}

/* R output rows from oy on, 16 columns from x on. full: nothing of it is padding. */
K_LARGE void dw_direct_tile(const struct dw_plane *d, const v *f, size_t oy, size_t x,
                            const unsigned R, const unsigned K, const unsigned S, const bool full)
{
    const struct k_window *w = d->w;
    const uint32_t *masks = d->masks + x / VL * DW_MAX_K;
    ptrdiff_t iy = (ptrdiff_t)(oy * S) - (ptrdiff_t)w->pad_top;
    ptrdiff_t at = iy * (ptrdiff_t)w->w + (ptrdiff_t)(x * S) - (ptrdiff_t)w->pad_left;
    uintptr_t row = (uintptr_t)d->x + (uintptr_t)at * sizeof(float);
    v c[DW_ROWS];
    DW_UNROLL(4)
    for (unsigned r = 0; r < R; r++)
        c[r] = v_set(d->bias);
    DW_UNROLL(11)
    for (unsigned j = 0; j < (R - 1) * S + K; j++, iy++, row += w->w * sizeof(float)) {
        bool inside = full || (size_t)iy < w->h;
        DW_UNROLL(5)
        for (unsigned kx = 0; kx < K; kx++) {
            v p = inside ? dw_load(row, masks, kx, S, full) : v_zero();
            DW_UNROLL(4)
            for (unsigned r = 0; r < R; r++)
                if (j >= r * S && j - r * S < K)
                    c[r] = v_fma(f[(j - r * S) * K + kx], p, c[r]);
        }
    }
    float *y = d->y + oy * w->ow + x;
    DW_UNROLL(4)
    for (unsigned r = 0; r < R; r++)
        v_storet(y + r * w->ow, c[r], w->ow - x);
}

K_INLINE void dw_direct_rows(const struct dw_plane *d, const v *f, size_t oy, const unsigned R,
                             const unsigned K, const unsigned S)
{
    const struct k_window *w = d->w;
    bool inside = oy * S >= w->pad_top && oy * S + (R - 1) * S + K <= w->h + w->pad_top;
    for (size_t x = 0; x < w->ow; x += VL) {
        if (inside && dw_is_full(d->masks + x / VL * DW_MAX_K, K, S))
            dw_direct_tile(d, f, oy, x, R, K, S, true);
        else
            dw_direct_tile(d, f, oy, x, R, K, S, false);
    }
}

/* Output rows [y0, y1) of one plane. */
K_INLINE void dw_direct(const struct dw_plane *d, size_t y0, size_t y1, const unsigned K,
                        const unsigned S)
{
    v f[DW_MAX_K * DW_MAX_K];
    DW_UNROLL(25)
    for (unsigned i = 0; i < K * K; i++)
        f[i] = v_set(d->weight[i]);
    for (; y1 - y0 >= 4; y0 += 4)
        dw_direct_rows(d, f, y0, 4, K, S);
    if (y1 - y0 == 3)
        dw_direct_rows(d, f, y0, 3, K, S);
    else if (y1 - y0 == 2)
        dw_direct_rows(d, f, y0, 2, K, S);
    else if (y1 > y0)
        dw_direct_rows(d, f, y0, 1, K, S);
}

static void dw_direct_3_1(const struct dw_plane *d, size_t y0, size_t y1)
{
    dw_direct(d, y0, y1, 3, 1);
}
static void dw_direct_3_2(const struct dw_plane *d, size_t y0, size_t y1)
{
    dw_direct(d, y0, y1, 3, 2);
}
static void dw_direct_5_1(const struct dw_plane *d, size_t y0, size_t y1)
{
    dw_direct(d, y0, y1, 5, 1);
}
static void dw_direct_5_2(const struct dw_plane *d, size_t y0, size_t y1)
{
    dw_direct(d, y0, y1, 5, 2);
}

static void dw_direct_planes(const struct k_conv *c, size_t i0, size_t i1, uint32_t *masks)
{
    const struct k_window *w = &c->win;
    void (*run)(const struct dw_plane *, size_t, size_t) =
        w->kh == 3 ? (w->stride_h == 1 ? dw_direct_3_1 : dw_direct_3_2)
                   : (w->stride_h == 1 ? dw_direct_5_1 : dw_direct_5_2);
    size_t band = DW_BAND / w->ow / DW_ROWS * DW_ROWS;
    band = band ? band : DW_ROWS;
    dw_fill_masks(w, masks);
    for (size_t i = i0; i < i1; i++) {
        size_t channel = i % c->groups;
        struct dw_plane d = {.w = w,
                             .masks = masks,
                             .x = c->x + i * w->h * w->w,
                             .weight = c->weight + channel * w->kh * w->kw,
                             .bias = c->bias ? c->bias[channel] : 0.0f,
                             .y = c->y + i * w->oh * w->ow};
        for (size_t y0 = 0; y0 < w->oh; y0 += band) {
            size_t y1 = w->oh - y0 < band ? w->oh : y0 + band;
            run(&d, y0, y1);
            if (c->epilogue)
                epilogue_run(c->epilogue, d.y + y0 * w->ow, (i * w->oh + y0) * w->ow, channel, 0,
                             (y1 - y0) * w->ow);
        }
    }
}

/* ---- through a padded copy ---- */

struct dw_band {
    const struct k_window *w;
    const struct window_layout *l;
    const size_t *taps;
    const float *weight;
    float bias;
};

/* R output rows by V vectors of one band; columns is what is left of the output row from out on. */
K_INLINE void dw_tile(const struct dw_band *d, const float *in, float *out, size_t columns,
                      const unsigned R, const unsigned V, const unsigned KH, const unsigned KW)
{
    size_t row = d->l->row, step = row * d->w->stride_h, down = row * d->w->dilation_h;
    size_t kh = KH ? KH : d->w->kh, kw = KW ? KW : d->w->kw;
    const float *weight = d->weight;
    v c[4][2];
    K_UNROLL(4)
    for (unsigned r = 0; r < R; r++) {
        K_UNROLL(2)
        for (unsigned j = 0; j < V; j++)
            c[r][j] = v_set(d->bias);
    }
    for (size_t ky = 0; ky < kh; ky++, in += down) {
        K_UNROLL(5)
        for (size_t kx = 0; kx < kw; kx++) {
            v f = v_set(*weight++);
            const float *p = in + d->taps[kx];
            K_UNROLL(4)
            for (unsigned r = 0; r < R; r++) {
                K_UNROLL(2)
                for (unsigned j = 0; j < V; j++)
                    c[r][j] = v_fma(f, v_load(p + r * step + j * VL), c[r][j]);
            }
        }
    }
    K_UNROLL(4)
    for (unsigned r = 0; r < R; r++) {
        K_UNROLL(2)
        for (unsigned j = 0; j < V; j++)
            v_storet(out + r * d->w->ow + j * VL, c[r][j], columns - j * VL);
    }
}

K_INLINE void dw_rows(const struct dw_band *d, const float *in, float *out, const unsigned R,
                      const unsigned KH, const unsigned KW)
{
    size_t ow = d->w->ow, x = 0;
    for (; ow - x > VL; x += 2 * VL) {
        dw_tile(d, in + x, out + x, ow - x, R, 2, KH, KW);
        if (ow - x <= 2 * VL)
            return;
    }
    if (x < ow)
        dw_tile(d, in + x, out + x, ow - x, R, 1, KH, KW);
}

K_INLINE void dw_band_run(const struct dw_band *d, const float *in, float *out, size_t rows,
                          const unsigned KH, const unsigned KW)
{
    size_t step = d->l->row * d->w->stride_h;
    for (; rows >= 4; rows -= 4, in += 4 * step, out += 4 * d->w->ow)
        dw_rows(d, in, out, 4, KH, KW);
    for (; rows > 0; rows--, in += step, out += d->w->ow)
        dw_rows(d, in, out, 1, KH, KW);
}

static void dw_band_3x3(const struct dw_band *d, const float *in, float *out, size_t rows)
{
    dw_band_run(d, in, out, rows, 3, 3);
}
static void dw_band_5x5(const struct dw_band *d, const float *in, float *out, size_t rows)
{
    dw_band_run(d, in, out, rows, 5, 5);
}

static void dw_band_any(const struct dw_band *d, const float *in, float *out, size_t rows)
{
    dw_band_run(d, in, out, rows, 0, 0);
}

static void dw_band_planes(const struct k_conv *c, size_t i0, size_t i1, float *workspace)
{
    const struct k_window *w = &c->win;
    struct window_layout l;
    window_layout(w, &l);
    size_t *taps = (size_t *)(void *)workspace;
    float *band = workspace + l.tables;
    struct dw_band d = {.w = w, .l = &l, .taps = taps};
    bool is3 = w->kh == 3 && w->kw == 3, is5 = w->kh == 5 && w->kw == 5;
    window_taps(w, &l, taps);
    for (size_t i = i0; i < i1; i++) {
        size_t channel = i % c->groups;
        d.weight = c->weight + channel * w->kh * w->kw;
        d.bias = c->bias ? c->bias[channel] : 0.0f;
        for (size_t y0 = 0; y0 < w->oh; y0 += l.band) {
            size_t y1 = w->oh - y0 < l.band ? w->oh : y0 + l.band;
            window_fill(w, &l, c->x + i * w->h * w->w, y0, y1, 0.0f, band);
            float *out = c->y + (i * w->oh + y0) * w->ow;
            (is3 ? dw_band_3x3 : is5 ? dw_band_5x5 : dw_band_any)(&d, band, out, y1 - y0);
            if (c->epilogue)
                epilogue_run(c->epilogue, out, (size_t)(out - c->y), channel, 0, (y1 - y0) * w->ow);
        }
    }
}

void K_NAME(f32_dwconv)(const struct k_conv *c, size_t i0, size_t i1, float *workspace)
{
    if (i0 >= i1 || c->win.oh == 0 || c->win.ow == 0)
        return;
    if (dw_is_direct(c)) /* the masks need less room than a band */
        dw_direct_planes(c, i0, i1, (uint32_t *)(void *)workspace);
    else
        dw_band_planes(c, i0, i1, workspace);
}
