/* CPU backend: DFT, STFT, window functions, MelWeightMatrix. See backend_priv.h.
 *
 * Everything is computed in double precision in one order of operations and rounded once. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/fft.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <string.h>

/* ---- transforms ------------------------------------------------------------------------------ */

enum { KEPT_ROOTS = 2048 };

/* Both operators: `lines` transforms of a line of the input, which starts at some element, has
 * `taken` of `parts` numbers, each `stride` numbers from the next, and is padded with zeros. */
struct dft_step {
    struct cpu_step step;
    struct k_fft fft;
    enum cm_dtype dtype;
    bool inverse;
    size_t parts, taken, bins; /* 1 or 2; numbers in; numbers out */
    size_t inner, samples;     /* DFT: lines side by side; numbers on the axis */
    size_t frames, frame_step; /* STFT */
    bool framed, windowed;
    size_t roots_at; /* in the workspace, where fft.roots is NULL */
    size_t thread_bytes;
};

static void load_line(const struct dft_step *s, const struct wk_run *run, size_t first,
                      size_t stride, struct k_complex *line)
{
    size_t size = cm_dtype_size(s->dtype);
    const char *x = (const char *)run->in[0] + first * s->parts * size;
    for (size_t j = 0; j < s->taken; j++, x += stride * s->parts * size) {
        double number[2] = {0, 0};
        k_cast(s->dtype, CM_FP64, x, number, s->parts);
        line[j] = (struct k_complex){number[0], number[1]};
    }
    for (size_t j = s->taken; j < s->fft.n; j++)
        line[j] = (struct k_complex){0, 0};
}

static void apply_window(const struct dft_step *s, const struct wk_run *run, struct k_complex *line)
{
    size_t size = cm_dtype_size(s->dtype);
    for (size_t j = 0; j < s->taken; j++) {
        double w;
        k_cast(s->dtype, CM_FP64, (const char *)run->in[2] + j * size, &w, 1);
        line[j] = (struct k_complex){line[j].re * w, line[j].im * w};
    }
}

static void store_line(const struct dft_step *s, const struct wk_run *run, size_t first,
                       size_t stride, const struct k_complex *line)
{
    size_t size = 2 * cm_dtype_size(s->dtype);
    char *y = (char *)run->out[0] + first * size;
    for (size_t j = 0; j < s->bins; j++, y += stride * size)
        k_cast(CM_FP64, s->dtype, &line[j], y, 2);
}

/* The transform with its roots, which may be made anew in every run. */
static struct k_fft with_roots(const struct dft_step *s, const struct wk_run *run)
{
    struct k_fft fft = s->fft;
    if (!fft.roots)
        fft.roots = (const void *)((char *)run->workspace + s->roots_at);
    return fft;
}

static void dft_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct dft_step *s = (const struct dft_step *)step;
    struct k_complex *line = (void *)((char *)run->workspace + thread * s->thread_bytes);
    struct k_complex *room = line + s->fft.n;
    struct k_fft fft = with_roots(s, run);
    (void)cpu;
    for (; i0 < i1; i0++) {
        /* A frame is a line of the signal that starts anew every frame_step samples. */
        size_t outer = s->framed ? i0 / s->frames : i0 / s->inner;
        size_t at = s->framed ? i0 % s->frames * s->frame_step : i0 % s->inner;
        size_t inner = s->framed ? 1 : s->inner;
        size_t out = s->framed ? i0 * s->bins : outer * s->bins * inner + at;
        load_line(s, run, outer * s->samples * inner + at, inner, line);
        if (s->windowed)
            apply_window(s, run, line);
        store_line(s, run, out, inner, k_fft_run(&fft, s->inverse, line, room));
    }
}

static void roots_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct dft_step *s = (const struct dft_step *)step;
    (void)cpu, (void)thread;
    k_fft_roots(s->fft.n, i0, i1, (void *)((char *)run->workspace + s->roots_at));
}

static enum cm_err dft_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run)
{
    const struct dft_step *s = (const struct dft_step *)step;
    if (!s->fft.roots)
        cpu_split(cpu, step, run, roots_body, s->fft.n, 64);
    cpu_split(cpu, step, run, step->body, step->items, step->unit);
    return CM_OK;
}

/* A plan keeps the roots of lengths up to KEPT_ROOTS; those of longer ones, which cost less than
 * the transform, would let a small file ask for much memory. */
static enum cm_err take_step(struct cpu_prepare *p, size_t length, size_t lines,
                             struct dft_step **ret)
{
    struct k_fft fft;
    if (!k_fft_plan(length, &fft))
        return wk_node_fail(p->err, CM_LIMIT, p->call->node,
                            "a transform of length %zu takes too long: its prime factors are large",
                            length);
    double work = 8 * (double)length * (double)lines * (double)(fft.n_factors + 1);
    struct dft_step *s = cpu_step_take(p, sizeof *s, dft_body, lines, 1, work);
    if (!s)
        return CM_NOMEM;
    s->step.run = dft_run;
    s->fft = fft;
    if (length <= KEPT_ROOTS) {
        struct k_complex *roots = wk_arena_take(p->arena, length, sizeof *roots);
        if (!roots)
            return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
        k_fft_roots(length, 0, length, roots);
        s->fft.roots = roots;
    }
    s->dtype = wk_call_in(p->call, 0)->dtype;
    s->thread_bytes =
        cpu_thread_floats(p, 2 * length * sizeof(struct k_complex) / sizeof(float)) * sizeof(float);
    s->roots_at = cpu_take_bytes(p, s->fft.roots ? 0 : length * sizeof(struct k_complex));
    *ret = s;
    return CM_OK;
}

/* An operand that was settled before this: one integer. */
static int64_t int_of(const struct wk_call *call, unsigned k)
{
    const struct wk_fact *fact = wk_call_in(call, k);
    CM_ASSERT(fact->elems && fact->n_elems == 1);
    return fact->elems[0].v;
}

enum cm_err cpu_prepare_dft(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *y = &wk_call_out(p->call)->shape;
    int64_t given = 0;
    unsigned axis = 0;
    struct dft_step *s;
    CM_ASSERT(wk_dft_axis(node, p->call->facts, &given) && wk_axis(given, x->rank, &axis));
    size_t samples = (size_t)x->dims[axis];
    size_t length = wk_call_in(p->call, 1) ? (size_t)int_of(p->call, 1) : samples;
    size_t inner = cpu_product(x, axis + 1, x->rank - 1u);
    enum cm_err code = take_step(p, length, cpu_product(x, 0, axis) * inner, &s);
    if (code != CM_OK)
        return code;
    s->inverse = wk_node_int(node, "inverse", 0) != 0;
    s->parts = (size_t)x->dims[x->rank - 1];
    s->samples = samples;
    s->taken = samples < length ? samples : length;
    s->bins = (size_t)y->dims[axis];
    s->inner = inner;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_stft(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *y = &wk_call_out(p->call)->shape;
    const struct wk_fact *window = wk_call_in(p->call, 2);
    struct dft_step *s;
    size_t length = (size_t)(window ? window->shape.dims[0] : x->dims[1]);
    if (wk_call_in(p->call, 3))
        length = (size_t)int_of(p->call, 3);
    enum cm_err code = take_step(p, length, cpu_product(y, 0, 2), &s);
    if (code != CM_OK)
        return code;
    s->framed = true;
    s->windowed = window != NULL;
    s->parts = (size_t)x->dims[2];
    s->samples = (size_t)x->dims[1];
    s->taken = length;
    s->bins = (size_t)y->dims[2];
    s->frames = (size_t)y->dims[1];
    s->frame_step = (size_t)int_of(p->call, 1);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- window functions ------------------------------------------------------------------------ */

#define TWO_PI 6.28318530717958647692

/* a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n), n being the size or, symmetric, one less. */
struct window_step {
    struct cpu_step step;
    double a0, a1, a2;
    size_t period;
    enum cm_dtype dtype;
};

static double window_at(const struct window_step *s, size_t i)
{
    if (s->period == 0) /* the one element of a symmetric window is its peak */
        return 1.0;
    double turn = TWO_PI * (double)i / (double)s->period;
    double first = s->a0 - s->a1 * f64_cos(turn);
    return s->a2 == 0 ? first : first + s->a2 * f64_cos(2 * turn);
}

static void window_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct window_step *s = (const struct window_step *)step;
    (void)cpu, (void)thread;
    for (; i0 < i1; i0++) {
        double value = window_at(s, i0);
        k_cast(CM_FP64, s->dtype, &value, (char *)run->out[0] + i0 * cm_dtype_size(s->dtype), 1);
    }
}

enum cm_err cpu_prepare_signal_window(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    size_t size = cpu_count(&wk_call_out(p->call)->shape);
    struct window_step *s = cpu_step_take(p, sizeof *s, window_body, size, 64, 64 * (double)size);
    if (!s)
        return CM_NOMEM;
    s->a0 = node->op == WK_OP_HannWindow ? 0.5 : node->op == WK_OP_HammingWindow ? 25.0 / 46 : 0.42;
    s->a1 = node->op == WK_OP_BlackmanWindow ? 0.5 : 1 - s->a0;
    s->a2 = node->op == WK_OP_BlackmanWindow ? 0.08 : 0;
    s->period = wk_node_int(node, "periodic", 1) || size == 0 ? size : size - 1;
    s->dtype = wk_call_out(p->call)->dtype;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- MelWeightMatrix ------------------------------------------------------------------------- */

struct mel_step {
    struct cpu_step step;
    size_t spectrum, mels;
    const size_t *edges; /* mels + 2 of them: each triangle's foot, peak and next peak */
    enum cm_dtype dtype;
};

static void put(const struct mel_step *s, const struct wk_run *run, size_t row, size_t column,
                double value)
{
    k_cast(CM_FP64, s->dtype, &value,
           (char *)run->out[0] + (row * s->mels + column) * cm_dtype_size(s->dtype), 1);
}

static enum cm_err mel_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run)
{
    const struct mel_step *s = (const struct mel_step *)step;
    (void)cpu;
    memset(run->out[0], 0, s->spectrum * s->mels * cm_dtype_size(s->dtype));
    for (size_t i = 0; i < s->mels; i++) {
        size_t low = s->edges[i], center = s->edges[i + 1], high = s->edges[i + 2];
        for (size_t j = low; j < center; j++)
            put(s, run, j, i, (double)(j - low) / (double)(center - low));
        put(s, run, center, i, 1);
        for (size_t j = center; j < high; j++)
            put(s, run, j, i, (double)(high - j) / (double)(high - center));
    }
    return CM_OK;
}

static double mel_of(double hertz)
{
    return 2595 * (f64_log(1 + hertz / 700) / f64_log(10.0));
}

static double hertz_of(double mel)
{
    return 700 * (f64_pow(10.0, mel / 2595) - 1);
}

/* An edge is a bin of the spectrum: not below the one before, and within it up to the last one,
 * which is only the end of the last triangle. */
static enum cm_err find_edges(struct cpu_prepare *p, double low, double high, struct mel_step *s,
                              size_t *edges)
{
    double length = (double)int_of(p->call, 1), rate = (double)int_of(p->call, 2);
    double first = mel_of(low), step = (mel_of(high) - first) / (double)(s->mels + 2);
    size_t before = 0;
    for (size_t i = 0; i < s->mels + 2; i++) {
        double edge = floor((length + 1) * hertz_of((double)i * step + first) / rate);
        double most = (double)s->spectrum - (i < s->mels + 1 ? 1 : 0);
        if (!(edge >= (double)before && edge <= most))
            return wk_node_fail(p->err, CM_INVALID, p->call->node,
                                "mel edge %zu lies outside the spectrum of %zu bins", i,
                                s->spectrum);
        before = edges[i] = (size_t)edge;
    }
    return CM_OK;
}

enum cm_err cpu_prepare_mel_weights(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *low = wk_call_in(p->call, 3), *high = wk_call_in(p->call, 4);
    const struct cm_shape *y = &wk_call_out(p->call)->shape;
    double hertz[2];
    struct mel_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    size_t *edges = s ? wk_arena_take(p->arena, (size_t)y->dims[1] + 2, sizeof *edges) : NULL;
    if (!s || !edges)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    CM_ASSERT(low->data && high->data);
    k_cast(low->dtype, CM_FP64, low->data, &hertz[0], 1);
    k_cast(high->dtype, CM_FP64, high->data, &hertz[1], 1);
    s->step.run = mel_run;
    s->spectrum = (size_t)y->dims[0];
    s->mels = (size_t)y->dims[1];
    s->edges = edges;
    s->dtype = wk_call_out(p->call)->dtype;
    *ret_step = &s->step;
    return find_edges(p, hertz[0], hertz[1], s, edges);
}
