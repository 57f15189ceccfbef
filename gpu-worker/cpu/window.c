/* Padded copies for sliding windows, and workspace sizes. Plain C, compiled once; pure functions.
 */
#include "gpu-worker/cpu/window.h"

#include "gpu-worker/cpu/gemm.h"

#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t round_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

void window_layout(const struct k_window *w, struct window_layout *ret_layout)
{
    struct window_layout l = {.columns = round_up(w->ow, K_LANES)};
    l.phase = l.columns + (w->kw - 1) * w->dilation_w / w->stride_w;
    l.row = l.phase * w->stride_w;
    size_t reach = (w->kh - 1) * w->dilation_h + 1;
    size_t rows = max_size(WINDOW_BAND_FLOATS / max_size(l.row, 1),
                           (WINDOW_MIN_ROWS - 1) * w->stride_h + reach);
    size_t band = (rows - reach) / w->stride_h + 1;
    l.band = max_size(min_size(band, w->oh), 1);
    l.rows = (l.band - 1) * w->stride_h + reach;
    size_t taps = w->kw * (sizeof(size_t) / sizeof(float));
    l.tables = round_up(taps + l.columns, K_LANES);
    l.total = l.tables + l.rows * l.row;
    *ret_layout = l;
}

void window_taps(const struct k_window *w, const struct window_layout *l, size_t *ret_taps)
{
    for (size_t kx = 0; kx < w->kw; kx++) {
        size_t x = kx * w->dilation_w;
        ret_taps[kx] = x % w->stride_w * l->phase + x / w->stride_w;
    }
}

static void fill_floats(float *p, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        p[i] = value;
}

/* One phase of one row: out[i] is image column i*stride + start, or fill outside [0, width). */
static void fill_phase(const float *in, size_t width, size_t stride, ptrdiff_t start, size_t n,
                       float fill, float *out)
{
    size_t i = start < 0 ? min_size(n, ((size_t)-start + stride - 1) / stride) : 0;
    fill_floats(out, i, fill);
    ptrdiff_t first = start + (ptrdiff_t)(i * stride);
    size_t inside = 0;
    if (first < (ptrdiff_t)width)
        inside = min_size(n - i, (width - (size_t)first + stride - 1) / stride);
    if (inside > 0 && stride == 1)
        memcpy(out + i, in + first, inside * sizeof(float));
    else
        for (size_t j = 0; j < inside; j++)
            out[i + j] = in[(size_t)first + j * stride];
    fill_floats(out + i + inside, n - i - inside, fill);
}

void window_fill(const struct k_window *w, const struct window_layout *l, const float *plane,
                 size_t y0, size_t y1, float fill, float *band)
{
    size_t rows = (y1 - y0 - 1) * w->stride_h + (w->kh - 1) * w->dilation_h + 1;
    for (size_t r = 0; r < rows; r++) {
        float *out = band + r * l->row;
        size_t y = y0 * w->stride_h + r;
        if (y < w->pad_top || y - w->pad_top >= w->h) {
            fill_floats(out, l->row, fill);
            continue;
        }
        const float *in = plane + (y - w->pad_top) * w->w;
        for (size_t f = 0; f < w->stride_w; f++)
            fill_phase(in, w->w, w->stride_w, (ptrdiff_t)f - (ptrdiff_t)w->pad_left, l->phase, fill,
                       out + f * l->phase);
    }
}

size_t k_dwconv_workspace(const struct k_conv *c)
{
    struct window_layout l;
    window_layout(&c->win, &l);
    return l.total;
}

size_t k_pool_workspace(const struct k_pool *p)
{
    struct window_layout l;
    window_layout(&p->win, &l);
    return l.total;
}

size_t k_conv_items(const struct k_conv *c)
{
    return c->batch * c->groups * k_panels(c->win.oh * c->win.ow);
}

/* True where the image itself serves as B: no taps but one, no stride, no padding. */
bool conv_is_plain(const struct k_conv *c)
{
    const struct k_window *w = &c->win;
    return w->kh == 1 && w->kw == 1 && w->stride_h == 1 && w->stride_w == 1 && w->pad_top == 0 &&
           w->pad_left == 0 && w->oh == w->h && w->ow == w->w;
}

/* Panels whose packed pixels fit CONV_BLOCK_FLOATS, at least one. */
size_t conv_block_panels(const struct k_conv *c)
{
    size_t k = c->ic * c->win.kh * c->win.kw;
    size_t panel = K_PANEL * max_size(min_size(k, GEMM_KC), 1);
    size_t panels = k_panels(c->win.oh * c->win.ow);
    return max_size(min_size(CONV_BLOCK_FLOATS / panel, panels), 1);
}

size_t k_conv_workspace(const struct k_conv *c)
{
    if (conv_is_plain(c))
        return 0;
    size_t k = c->ic * c->win.kh * c->win.kw;
    return (conv_block_panels(c) * K_PANEL + K_LANES) * min_size(k, GEMM_KC);
}
