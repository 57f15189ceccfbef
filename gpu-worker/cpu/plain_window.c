/* Windows over up to three dimensions as plain loops; see plain_window.h. */
#include "gpu-worker/cpu/plain_window.h"

#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/kernels.h"

#include <math.h>
#include <string.h>

size_t k_window3_inputs(const struct k_window3 *w)
{
    return w->in[0] * w->in[1] * w->in[2];
}

size_t k_window3_outputs(const struct k_window3 *w)
{
    return w->out[0] * w->out[1] * w->out[2];
}

size_t k_window3_taps(const struct k_window3 *w)
{
    return w->kernel[0] * w->kernel[1] * w->kernel[2];
}

bool k_window3_is_plain(const struct k_window3 *w)
{
    bool plain = k_window3_taps(w) == 1;
    for (unsigned d = 0; d < 3; d++)
        plain = plain && w->stride[d] == 1 && w->pad_begin[d] == 0 && w->out[d] == w->in[d];
    return plain;
}

/* Where tap t of output o looks; wraps to a huge number in front of the plane. */
static size_t place(const struct k_window3 *w, unsigned d, size_t o, size_t t)
{
    return o * w->stride[d] + t * w->dilation[d] - w->pad_begin[d];
}

/* Three coordinates that count up, last fastest. */
struct counter {
    size_t at[3];
};

static struct counter counter_at(const size_t size[3], size_t i)
{
    return (struct counter){{i / size[2] / size[1], i / size[2] % size[1], i % size[2]}};
}

static void counter_next(struct counter *c, const size_t size[3])
{
    if (++c->at[2] < size[2])
        return;
    c->at[2] = 0;
    if (++c->at[1] < size[1])
        return;
    c->at[1] = 0;
    c->at[0]++;
}

/* The element of a plane under a tap of an output; false in the padding. */
static bool find(const struct k_window3 *w, const size_t o[3], const size_t t[3], size_t *ret)
{
    size_t z = place(w, 0, o[0], t[0]), y = place(w, 1, o[1], t[1]), x = place(w, 2, o[2], t[2]);
    *ret = (z * w->in[1] + y) * w->in[2] + x;
    return z < w->in[0] && y < w->in[1] && x < w->in[2];
}

/* ---- matrices for products ------------------------------------------------------------------- */

/* Neighbouring pixels of one output row. */
struct run {
    size_t z, y, x, count;
};

static size_t split_runs(const struct k_window3 *w, size_t j, size_t count, struct run *runs)
{
    struct counter pixel = counter_at(w->out, j);
    size_t n = 0;
    while (count > 0) {
        size_t rest = w->out[2] - pixel.at[2], take = rest < count ? rest : count;
        runs[n++] = (struct run){pixel.at[0], pixel.at[1], pixel.at[2], take};
        count -= take;
        pixel.at[2] = w->out[2] - 1;
        counter_next(&pixel, w->out);
    }
    return n;
}

/* One tap of a run: x is one channel. */
static void pack_run(const struct k_window3 *w, const struct run *r, const size_t tap[3],
                     const float *x, float *out)
{
    size_t z = place(w, 0, r->z, tap[0]), y = place(w, 1, r->y, tap[1]), stride = w->stride[2];
    ptrdiff_t first = (ptrdiff_t)place(w, 2, r->x, tap[2]);
    size_t i = 0, inside = 0;
    if (z >= w->in[0] || y >= w->in[1]) {
        memset(out, 0, r->count * sizeof *out);
        return;
    }
    x += (z * w->in[1] + y) * w->in[2];
    for (; i < r->count && first < 0; i++, first += (ptrdiff_t)stride)
        out[i] = 0.0f;
    if (i < r->count && (size_t)first < w->in[2]) {
        inside = (w->in[2] - (size_t)first + stride - 1) / stride;
        inside = inside < r->count - i ? inside : r->count - i;
    }
    if (stride == 1)
        memcpy(out + i, x + (inside ? first : 0), inside * sizeof *out);
    else
        for (size_t l = 0; l < inside; l++)
            out[i + l] = x[(size_t)first + l * stride];
    for (i += inside; i < r->count; i++)
        out[i] = 0.0f;
}

void k_f32_pack_window3(const struct k_window3 *w, const float *image, size_t k0, size_t k1,
                        size_t j, size_t count, float *out)
{
    struct run runs[K_PANEL];
    size_t taps = k_window3_taps(w), plane = k_window3_inputs(w), n = split_runs(w, j, count, runs);
    size_t width = (count + K_LANES - 1) / K_LANES * K_LANES;
    for (size_t k = k0; k < k1; k++, out += width) {
        struct counter tap = counter_at(w->kernel, k % taps);
        size_t l = 0;
        for (size_t r = 0; r < n; l += runs[r++].count)
            pack_run(w, &runs[r], tap.at, image + k / taps * plane, out + l);
        memset(out + count, 0, (width - count) * sizeof *out);
    }
}

/* ---- convolution in double ------------------------------------------------------------------- */

/* One tap of one channel over the whole output plane. */
static void conv_tap(const struct k_window3 *w, const double *x, const size_t tap[3], double f,
                     double *y)
{
    for (size_t oz = 0; oz < w->out[0]; oz++)
        for (size_t oy = 0; oy < w->out[1]; oy++, y += w->out[2]) {
            size_t iz = place(w, 0, oz, tap[0]), iy = place(w, 1, oy, tap[1]);
            bool inside = iz < w->in[0] && iy < w->in[1];
            const double *row = inside ? x + (iz * w->in[1] + iy) * w->in[2] : x;
            for (size_t ox = 0; ox < w->out[2]; ox++) {
                size_t ix = place(w, 2, ox, tap[2]);
                y[ox] += f * (inside && ix < w->in[2] ? row[ix] : 0.0);
            }
        }
}

void k_f64_conv_plane(const struct k_window3 *w, const double *image, size_t channels,
                      const double *weight, double bias, double *y)
{
    size_t taps = k_window3_taps(w), plane = k_window3_inputs(w), n = k_window3_outputs(w);
    for (size_t i = 0; i < n; i++)
        y[i] = bias;
    for (size_t c = 0; c < channels; c++) {
        struct counter tap = {{0, 0, 0}};
        for (size_t t = 0; t < taps; t++, counter_next(&tap, w->kernel))
            conv_tap(w, image + c * plane, tap.at, *weight++, y);
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Taps along one dimension that an average counts. */
static size_t counted(const struct k_pool3 *p, unsigned d, size_t o)
{
    const struct k_window3 *w = &p->win;
    size_t low = p->count_include_pad ? 0 : w->pad_begin[d], count = 0;
    size_t high = w->pad_begin[d] + w->in[d] + (p->count_include_pad ? w->pad_end[d] : 0);
    for (size_t t = 0; t < w->kernel[d]; t++) {
        size_t at = o * w->stride[d] + t * w->dilation[d];
        count += at >= low && at < high;
    }
    return count;
}

static double power(double x, unsigned p)
{
    double result = x;
    for (unsigned i = 1; i < p; i++)
        result *= x;
    return result;
}

static double root(double x, unsigned p)
{
    if (p == 1)
        return x;
    return p == 2 ? sqrt(x) : f64_pow(x, 1.0 / p);
}

static int64_t index_of(const struct k_pool3 *p, size_t at)
{
    const size_t *in = p->win.in;
    struct counter c = counter_at(in, at);
    if (!p->column_major)
        return (int64_t)at;
    return (int64_t)(c.at[0] + in[0] * (c.at[1] + in[1] * c.at[2]));
}

/* One output; *ret_at is where the maximum was, SIZE_MAX if nowhere. */
static double pool_one(const struct k_pool3 *p, const double *x, const size_t o[3], size_t *ret_at)
{
    const struct k_window3 *w = &p->win;
    struct counter tap = {{0, 0, 0}};
    double t = p->kind == K_POOL_MAX ? -INFINITY : 0.0;
    size_t taps = k_window3_taps(w), at;
    *ret_at = SIZE_MAX;
    for (size_t i = 0; i < taps; i++, counter_next(&tap, w->kernel)) {
        if (!find(w, o, tap.at, &at))
            continue;
        if (p->kind == K_POOL_AVERAGE) {
            t += x[at];
        } else if (p->kind == K_POOL_LP) {
            t += power(fabs(x[at]), p->p);
        } else if (*ret_at == SIZE_MAX || x[at] > t || isnan(x[at])) {
            t = x[at];
            *ret_at = at;
        }
    }
    if (p->kind == K_POOL_LP)
        return root(t, p->p);
    if (p->kind == K_POOL_AVERAGE) {
        size_t n = counted(p, 0, o[0]) * counted(p, 1, o[1]) * counted(p, 2, o[2]);
        return n ? t / (double)n : 0.0;
    }
    return t;
}

void k_f64_pool_plane(const struct k_pool3 *p, const double *x, double *y, int64_t *index,
                      int64_t base)
{
    struct counter o = {{0, 0, 0}};
    size_t n = k_window3_outputs(&p->win), at;
    for (size_t i = 0; i < n; i++, counter_next(&o, p->win.out)) {
        y[i] = pool_one(p, x, o.at, &at);
        if (index)
            index[i] = at == SIZE_MAX ? -1 : base + index_of(p, at);
    }
}

/* ---- transposed convolution ------------------------------------------------------------------ */

/* Inputs [*ret_first, *ret_end) of dimension d whose place under the tap is inside the output. */
static void inputs_inside(const struct k_window3 *w, unsigned d, size_t tap, size_t *ret_first,
                          size_t *ret_end)
{
    size_t offset = tap * w->dilation[d], pad = w->pad_begin[d], stride = w->stride[d];
    size_t first = offset < pad ? (pad - offset + stride - 1) / stride : 0;
    size_t reach = w->out[d] + pad; /* places are below this, counted with the padding */
    size_t end = offset < reach ? (reach - offset + stride - 1) / stride : 0;
    *ret_end = end < w->in[d] ? end : w->in[d];
    *ret_first = first < *ret_end ? first : *ret_end;
}

#define SCATTER_TAP(name, type)                                                       \
    void name(const struct k_window3 *w, const size_t tap[3], const type *x, type *y) \
    {                                                                                 \
        size_t first[3], end[3], stride = w->stride[2];                               \
        for (unsigned d = 0; d < 3; d++)                                              \
            inputs_inside(w, d, tap[d], &first[d], &end[d]);                          \
        if (first[2] >= end[2])                                                       \
            return;                                                                   \
        for (size_t z = first[0]; z < end[0]; z++)                                    \
            for (size_t r = first[1]; r < end[1]; r++) {                              \
                const type *from = x + (z * w->in[1] + r) * w->in[2] + first[2];      \
                size_t oz = place(w, 0, z, tap[0]), oy = place(w, 1, r, tap[1]);      \
                type *to = y + (oz * w->out[1] + oy) * w->out[2];                     \
                to += place(w, 2, first[2], tap[2]);                                  \
                for (size_t i = 0; i < end[2] - first[2]; i++)                        \
                    to[i * stride] += from[i];                                        \
            }                                                                         \
    }

SCATTER_TAP(k_f32_scatter_tap, float)
SCATTER_TAP(k_f64_scatter_tap, double)
