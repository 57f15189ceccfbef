/* CPU backend: ConvTranspose. See backend_priv.h.
 *
 * The order of operations, for every type: each tap's product is one chain over the input channels
 * from +0; the products that reach an output are added, from the bias (or +0), in (kz, ky, kx)
 * order. So the products of all taps are a matrix product of the transposed weights with the image,
 * and windows that do not overlap differ from those that do in nothing but the way of scattering.
 *
 * FP16 and BF16 are widened to FP32. Double precision rounds every product and every sum. */
#include "gpu-worker/cpu/backend_mixed.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <string.h>

#define BLOCK_FLOATS 65536 /* products at a time: about half of a second-level cache */

struct transpose_step {
    struct cpu_step step;
    struct k_window3 win;
    size_t groups, ic, oc;      /* channels per group */
    size_t block, blocks;       /* items of a group: output channels, or rows of the input */
    size_t weights;             /* of one group */
    bool bias, packed;          /* weights are stored as CPU_LAYOUT_CONV_TRANSPOSE */
    size_t packed_at, block_at; /* workspace offsets in bytes */
    size_t thread_bytes;
};

static size_t taps_of(const struct cm_shape *w)
{
    return cpu_product(w, 2, w->rank);
}

/* ---- weights as [group][output channel, tap][input channel] ---------------------------------- */

static void transpose_weights(const float *from, size_t ic, size_t rows, float *to)
{
    for (size_t c = 0; c < ic; c++)
        for (size_t r = 0; r < rows; r++)
            to[r * ic + c] = from[c * rows + r];
}

/* The same of FP16 and BF16, which are converted one by one. */
static void transpose_halves(enum cm_dtype dtype, const uint16_t *from, size_t ic, size_t rows,
                             float *to)
{
    for (size_t c = 0; c < ic; c++)
        for (size_t r = 0; r < rows; r++)
            k_cast(dtype, CM_FP32, from + c * rows + r, to + r * ic + c, 1);
}

void cpu_layout_conv_transpose(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    const struct wk_fact *w = wk_call_in(call, 1);
    if (k == 1 && w->dtype != CM_FP64)
        *ret_layout = (struct wk_layout){CPU_LAYOUT_CONV_TRANSPOSE,
                                         cpu_count(&w->shape) * sizeof(float), false};
}

void cpu_pack_conv_transpose(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    const struct cm_shape *w = &wk_call_in(call, 1)->shape;
    enum cm_dtype dtype = wk_call_in(call, 1)->dtype;
    const char *data = call->graph->values[call->node->in[1]].constant->data;
    size_t groups = (size_t)wk_node_int(call->node, "group", 1);
    size_t ic = (size_t)w->dims[0] / groups, rows = (size_t)w->dims[1] * taps_of(w);
    CM_ASSERT(k == 1);
    for (size_t g = 0; g < groups; g++) {
        const void *from = data + g * ic * rows * cm_dtype_size(dtype);
        float *to = (float *)ret_bytes + g * ic * rows;
        if (dtype == CM_FP32)
            transpose_weights(from, ic, rows, to);
        else
            transpose_halves(dtype, from, ic, rows, to);
    }
}

static void weights_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct transpose_step *s = (const struct transpose_step *)step;
    float *packed = (void *)((char *)run->workspace + s->packed_at);
    (void)cpu, (void)thread;
    for (; i0 < i1; i0++)
        transpose_weights((const float *)run->in[1] + i0 * s->weights, s->ic, s->weights / s->ic,
                          packed + i0 * s->weights);
}

/* ---- FP32 ------------------------------------------------------------------------------------ */

/* What the bodies share about an item. */
struct item {
    size_t at, group, first, count; /* image and group; its block of channels or input rows */
    const float *x, *weight, *bias;
    float *products, *y;
};

static struct item item_of(const struct transpose_step *s, const struct wk_run *run, size_t i,
                           size_t all, unsigned thread)
{
    char *workspace = run->workspace;
    const float *weights = s->packed ? run->in[1] : (const void *)(workspace + s->packed_at);
    struct item it = {.at = i / s->blocks, .first = i % s->blocks * s->block};
    it.group = it.at % s->groups;
    it.count = all - it.first < s->block ? all - it.first : s->block;
    it.x = (const float *)run->in[0] + it.at * s->ic * k_window3_inputs(&s->win);
    it.weight = weights + it.group * s->weights;
    it.bias = s->bias ? (const float *)run->in[2] + it.group * s->oc : NULL;
    it.products = (void *)(workspace + s->block_at + thread * s->thread_bytes);
    it.y = (float *)run->out[0] + it.at * s->oc * k_window3_outputs(&s->win);
    return it;
}

/* Items are (image, group, block of output channels): windows may overlap. */
static void overlap_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct transpose_step *s = (const struct transpose_step *)step;
    const size_t *kernel = s->win.kernel;
    size_t taps = k_window3_taps(&s->win), pixels = k_window3_inputs(&s->win);
    size_t outputs = k_window3_outputs(&s->win);
    for (; i0 < i1; i0++) {
        struct item it = item_of(s, run, i0, s->oc, thread);
        struct k_gemm g = {.m = it.count * taps, .n = pixels, .k = s->ic, .lda = s->ic};
        g.a = it.weight + it.first * taps * s->ic;
        g.b = it.x;
        g.ldb = g.ldc = pixels;
        g.c = it.products;
        cpu->kernels->f32_gemm(&g, 0, g.m, 0, k_panels(pixels));
        for (size_t c = 0; c < it.count; c++) {
            float *y = it.y + (it.first + c) * outputs;
            float bias = it.bias ? it.bias[it.first + c] : 0.0f;
            for (size_t i = 0; i < outputs; i++)
                y[i] = bias;
            for (size_t t = 0; t < taps; t++) {
                size_t tap[3] = {t / kernel[2] / kernel[1], t / kernel[2] % kernel[1],
                                 t % kernel[2]};
                k_f32_scatter_tap(&s->win, tap, it.products + (c * taps + t) * pixels, y);
            }
        }
    }
}

/* Puts the products of one output channel's taps side by side: bias + product. products is
 * [taps][n] of n pixels from input row `first` on (rows of all depths counted through). */
static void interleave(const struct k_window3 *w, const float *products, size_t first, size_t rows,
                       float bias, float *y)
{
    size_t columns = w->in[2], kw = w->kernel[2], n = rows * columns;
    for (size_t t = 0; t < w->kernel[0] * w->kernel[1]; t++)
        for (size_t r = 0; r < rows; r++) {
            size_t z = (first + r) / w->in[1] * w->kernel[0] + t / w->kernel[1];
            size_t row = (first + r) % w->in[1] * w->kernel[1] + t % w->kernel[1];
            const float *from = products + t * kw * n + r * columns;
            float *to = y + (z * w->out[1] + row) * w->out[2];
            if (kw == 2) {
                for (size_t i = 0; i < columns; i++) {
                    to[2 * i] = bias + from[i];
                    to[2 * i + 1] = bias + from[n + i];
                }
                continue;
            }
            for (size_t i = 0; i < columns; i++)
                for (size_t kx = 0; kx < kw; kx++)
                    to[i * kw + kx] = bias + from[kx * n + i];
        }
}

/* Items are (image, group, block of input rows): kernel and stride are equal and nothing is cut
 * off, so every output has one product. */
static void tiled_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct transpose_step *s = (const struct transpose_step *)step;
    size_t taps = k_window3_taps(&s->win), pixels = k_window3_inputs(&s->win);
    size_t columns = s->win.in[2], outputs = k_window3_outputs(&s->win);
    for (; i0 < i1; i0++) {
        struct item it = item_of(s, run, i0, s->win.in[0] * s->win.in[1], thread);
        size_t n = it.count * columns;
        struct k_gemm g = {.m = s->oc * taps, .n = n, .k = s->ic, .a = it.weight, .lda = s->ic};
        g.b = it.x + it.first * columns;
        g.ldb = pixels;
        g.c = it.products;
        g.ldc = n;
        cpu->kernels->f32_gemm(&g, 0, g.m, 0, k_panels(n));
        for (size_t c = 0; c < s->oc; c++)
            interleave(&s->win, it.products + c * taps * n, it.first, it.count,
                       it.bias ? it.bias[c] : 0.0f, it.y + c * outputs);
    }
}

static enum cm_err transpose_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                 const struct wk_run *run)
{
    const struct transpose_step *s = (const struct transpose_step *)step;
    if (!s->packed)
        cpu_split(cpu, step, run, weights_body, s->groups, 1);
    cpu_split(cpu, step, run, step->body, step->items, step->unit);
    return CM_OK;
}

/* Nothing overlaps and nothing is left over. */
static bool is_tiled(const struct k_window3 *w)
{
    bool tiled = true;
    for (unsigned d = 0; d < WK_SPATIAL; d++)
        tiled = tiled && w->kernel[d] == w->stride[d] && w->dilation[d] == 1 &&
                w->pad_begin[d] == 0 && w->out[d] == w->in[d] * w->stride[d];
    return tiled;
}

static double transpose_work(const struct wk_call *call)
{
    const struct cm_shape *x = &wk_call_in(call, 0)->shape, *w = &wk_call_in(call, 1)->shape;
    return (double)cpu_count(x) * (double)cpu_product(w, 1, w->rank) * 0.25 +
           (double)cpu_count(&wk_call_out(call)->shape);
}

static size_t at_least_one(size_t n)
{
    return n > 0 ? n : 1;
}

/* Windows of dimensions that a node lacks are 1 wide with stride 1, so they never overlap. */
static enum cm_err take_step(struct cpu_prepare *p, cpu_body_fn *body, struct transpose_step **ret)
{
    const struct cm_shape *w = &wk_call_in(p->call, 1)->shape;
    struct wk_window window;
    enum cm_err code = wk_transposed_window_resolve(p->call->node, &wk_call_in(p->call, 0)->shape,
                                                    &w->dims[2], p->err, &window);
    if (code != CM_OK)
        return code;
    struct transpose_step *s = cpu_step_take(p, sizeof *s, body, 0, 1, transpose_work(p->call));
    if (!s)
        return CM_NOMEM;
    s->win = cpu_window3(&window);
    s->groups = (size_t)wk_node_int(p->call->node, "group", 1);
    s->ic = (size_t)w->dims[0] / s->groups;
    s->oc = (size_t)w->dims[1];
    s->bias = wk_call_in(p->call, 2) != NULL;
    s->weights = s->ic * s->oc * taps_of(w);
    *ret = s;
    return CM_OK;
}

static enum cm_err prepare_float(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct transpose_step *s;
    enum cm_err code = take_step(p, overlap_body, &s);
    if (code != CM_OK)
        return code;
    size_t taps = k_window3_taps(&s->win), pixels = k_window3_inputs(&s->win);
    size_t unit = taps * pixels, all = s->oc; /* products of one block, and how many there are */
    if (is_tiled(&s->win)) {
        s->step.body = tiled_body;
        unit = s->oc * taps * s->win.in[2];
        all = s->win.in[0] * s->win.in[1];
    }
    s->block = at_least_one(BLOCK_FLOATS / at_least_one(unit));
    s->block = s->block < all ? s->block : at_least_one(all);
    s->blocks = (all + s->block - 1) / s->block;
    s->step.items = (size_t)wk_call_in(p->call, 0)->shape.dims[0] * s->groups * s->blocks;
    s->step.run = transpose_run;
    s->packed = wk_call_is_constant(p->call, 1);
    if (!s->packed)
        s->packed_at = cpu_take_bytes(p, s->groups * s->weights * sizeof(float));
    s->block_at = cpu_take_bytes(p, 0);
    s->thread_bytes = cpu_thread_floats(p, s->block * unit) * sizeof(float);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- double precision ------------------------------------------------------------------------ */

/* Items are output planes. */
static void double_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct transpose_step *s = (const struct transpose_step *)step;
    const size_t *kernel = s->win.kernel;
    size_t taps = k_window3_taps(&s->win), pixels = k_window3_inputs(&s->win);
    size_t outputs = k_window3_outputs(&s->win), channels = s->groups * s->oc;
    double *products = (void *)((char *)run->workspace + thread * s->thread_bytes);
    (void)cpu;
    for (; i0 < i1; i0++) {
        size_t channel = i0 % channels, at = i0 / channels * s->groups + channel / s->oc;
        const double *x = (const double *)run->in[0] + at * s->ic * pixels;
        const double *weight = (const double *)run->in[1] + channel / s->oc * s->weights;
        double *y = (double *)run->out[0] + i0 * outputs;
        for (size_t i = 0; i < outputs; i++)
            y[i] = s->bias ? ((const double *)run->in[2])[channel] : 0.0;
        for (size_t t = 0; t < taps; t++) {
            size_t tap[3] = {t / kernel[2] / kernel[1], t / kernel[2] % kernel[1], t % kernel[2]};
            memset(products, 0, pixels * sizeof *products);
            for (size_t c = 0; c < s->ic; c++) {
                double f = weight[(c * s->oc + channel % s->oc) * taps + t];
                for (size_t i = 0; i < pixels; i++)
                    products[i] += f * x[c * pixels + i];
            }
            k_f64_scatter_tap(&s->win, tap, products, y);
        }
    }
}

static enum cm_err prepare_double(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct transpose_step *s;
    enum cm_err code = take_step(p, double_body, &s);
    if (code != CM_OK)
        return code;
    s->step.items = (size_t)wk_call_in(p->call, 0)->shape.dims[0] * s->groups * s->oc;
    s->thread_bytes = cpu_thread_floats(p, 2 * k_window3_inputs(&s->win)) * sizeof(float);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_conv_transpose(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    switch (wk_call_in(p->call, 0)->dtype) {
    case CM_FP32:
        return prepare_float(p, ret_step);
    case CM_FP64:
        return prepare_double(p, ret_step);
    default:
        return cpu_prepare_mixed(p, prepare_float, wk_call_is_constant(p->call, 1) ? 2 : 0,
                                 ret_step);
    }
}
