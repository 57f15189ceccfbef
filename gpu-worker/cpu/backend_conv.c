/* CPU backend: convolution. See backend_priv.h.
 *
 * FP32 with one or two spatial dimensions runs in kernels; with three it is packed here, panel by
 * panel, for the GEMM kernel: the same chain over (channel, kz, ky, kx). FP16 and BF16 are widened
 * to FP32 (backend_mixed.h). Double precision is plain loops. */
#include "gpu-worker/cpu/backend_mixed.h"

#include "common/check.h"
#include "gpu-worker/cpu/pool.h"

#include <stdio.h>

#define PACK_K \
    768 /* rows of packed pixels at a time: one panel of them fits the second-level cache */

struct k_window3 cpu_window3(const struct wk_window *w)
{
    struct k_window3 win;
    for (unsigned d = 0; d < WK_SPATIAL; d++) {
        win.in[d] = (size_t)w->in[d];
        win.out[d] = (size_t)w->out[d];
        win.kernel[d] = (size_t)w->kernel[d];
        win.stride[d] = (size_t)w->stride[d];
        win.dilation[d] = (size_t)w->dilation[d];
        win.pad_begin[d] = (size_t)w->pad_begin[d];
        win.pad_end[d] = (size_t)w->pad_end[d];
    }
    return win;
}

struct k_window cpu_window2(const struct wk_window *w)
{
    return (struct k_window){
        .h = (size_t)w->in[1],
        .w = (size_t)w->in[2],
        .oh = (size_t)w->out[1],
        .ow = (size_t)w->out[2],
        .kh = (size_t)w->kernel[1],
        .kw = (size_t)w->kernel[2],
        .stride_h = (size_t)w->stride[1],
        .stride_w = (size_t)w->stride[2],
        .dilation_h = (size_t)w->dilation[1],
        .dilation_w = (size_t)w->dilation[2],
        .pad_top = (size_t)w->pad_begin[1],
        .pad_left = (size_t)w->pad_begin[2],
        .pad_bottom = (size_t)w->pad_end[1],
        .pad_right = (size_t)w->pad_end[2],
    };
}

/* Below so many panels for each thread channels are shared out, in multiples of CHANNEL_UNIT. */
#define FEW_PANELS   6
#define CHANNEL_UNIT ((size_t)24)

struct conv_step {
    struct cpu_step step;
    struct k_conv args;
    struct cpu_stages stages;
    bool depthwise;
    size_t channel_blocks; /* 0: threads share out pixels, otherwise blocks of output channels */
    size_t thread_floats;
};

/* Items are (image, block of output channels). */
static void run_channels(const struct cpu_backend *cpu, const struct conv_step *s,
                         const struct k_conv *all, size_t i0, size_t i1, float *workspace)
{
    size_t pixels = all->win.oh * all->win.ow, plane = all->win.h * all->win.w;
    size_t k = all->ic * all->win.kh * all->win.kw;
    for (; i0 < i1; i0++) {
        size_t image = i0 / s->channel_blocks, block = i0 % s->channel_blocks, first, end;
        cpu_pool_share(all->oc, CHANNEL_UNIT, s->channel_blocks, block, &first, &end);
        struct k_conv part = *all;
        struct k_epilogue epilogue;
        part.batch = 1;
        part.oc = end - first;
        part.x += image * all->ic * plane;
        part.weight += first * k;
        if (all->bias)
            part.bias += first;
        part.y += (image * all->oc + first) * pixels;
        if (all->epilogue) {
            epilogue = k_epilogue_of(all->epilogue, image * all->oc * pixels);
            epilogue = k_epilogue_rows(&epilogue, first, pixels);
            part.epilogue = &epilogue;
        }
        cpu->kernels->f32_conv(&part, 0, k_conv_items(&part), workspace);
    }
}

static void conv_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct conv_step *s = (const struct conv_step *)step;
    struct k_conv args = s->args;
    struct k_epilogue epilogue;
    float *workspace = run->workspace ? (float *)run->workspace + thread * s->thread_floats : NULL;
    args.x = run->in[0];
    args.weight = run->in[1];
    args.bias = args.bias ? run->in[2] : NULL;
    args.y = run->out[0];
    args.epilogue = cpu_stages_bind(&s->stages, run, &epilogue);
    if (s->channel_blocks)
        run_channels(cpu, s, &args, i0, i1, workspace);
    else if (s->depthwise)
        cpu->kernels->f32_dwconv(&args, i0, i1, workspace);
    else
        cpu->kernels->f32_conv(&args, i0, i1, workspace);
}

static void describe_conv(const struct cpu_backend *cpu, const struct cpu_step *step, char *buffer,
                          size_t size)
{
    snprintf(buffer, size, "f32_%s %s",
             ((const struct conv_step *)step)->depthwise ? "dwconv" : "conv",
             wk_isa_name(cpu->kernels->isa));
}

/* A layer of few panels of pixels cannot be shared out evenly by them (49 pixels are 48 and 1): its
 * output channels are. Each thread then packs the pixels for itself. */
static size_t channel_blocks(const struct cpu_prepare *p, const struct k_conv *c)
{
    size_t threads = p->cpu->threads, panels = k_panels(c->win.oh * c->win.ow);
    if (threads == 1 || c->groups > 1 || c->batch * panels >= FEW_PANELS * threads ||
        c->oc < CHANNEL_UNIT * threads)
        return 0;
    return threads;
}

static double conv_work(const struct wk_call *call)
{
    const struct cm_shape *w = &wk_call_in(call, 1)->shape;
    return (double)cpu_count(&wk_call_out(call)->shape) * (double)cpu_product(w, 1, w->rank) * 0.25;
}

static enum cm_err prepare_planar(struct cpu_prepare *p, const struct wk_window *window,
                                  const struct cpu_step **ret_step)
{
    static const float present = 0;
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *w = &wk_call_in(p->call, 1)->shape;
    size_t groups = (size_t)wk_node_int(p->call->node, "group", 1);
    struct k_conv args = {
        .win = cpu_window2(window),
        .batch = (size_t)x->dims[0],
        .groups = groups,
        .ic = (size_t)w->dims[1],
        .oc = (size_t)w->dims[0] / groups,
        .bias = wk_call_in(p->call, 2) ? &present : NULL, /* replaced by in[2] at run */
    };
    bool depthwise = args.ic == 1 && args.oc == 1;
    size_t blocks = depthwise ? 0 : channel_blocks(p, &args);
    size_t items = depthwise ? args.batch * groups : k_conv_items(&args);
    if (blocks)
        items = args.batch * blocks;
    struct conv_step *s = cpu_step_take(p, sizeof *s, conv_body, items, 1, conv_work(p->call));
    if (!s)
        return CM_NOMEM;
    s->args = args;
    s->depthwise = depthwise;
    s->channel_blocks = blocks;
    s->step.describe = describe_conv;
    s->thread_floats =
        cpu_thread_floats(p, depthwise ? k_dwconv_workspace(&args) : k_conv_workspace(&args));
    *ret_step = &s->step;
    return cpu_stages_init(p, 1, -1, &s->stages);
}

/* ---- three dimensions, and double precision -------------------------------------------------- */

struct volume_step {
    struct cpu_step step;
    struct k_window3 win;
    size_t groups, ic, oc; /* channels per group */
    bool bias;
    size_t thread_floats;
};

/* Items are (image, group, panel of output pixels). */
static void volume_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct volume_step *s = (const struct volume_step *)step;
    size_t pixels = k_window3_outputs(&s->win), panels = k_panels(pixels);
    size_t k_all = s->ic * k_window3_taps(&s->win), plane = k_window3_inputs(&s->win);
    float *packed = (float *)run->workspace + thread * s->thread_floats;
    for (; i0 < i1; i0++) {
        size_t at = i0 / panels, j = i0 % panels * K_PANEL, group = at % s->groups;
        size_t n = pixels - j < K_PANEL ? pixels - j : K_PANEL, k0 = 0;
        const float *weight = (const float *)run->in[1] + group * s->oc * k_all;
        struct k_gemm g = {.m = s->oc, .n = n, .lda = k_all, .ldc = pixels, .b = packed};
        g.c = (float *)run->out[0] + at * s->oc * pixels + j;
        if (s->bias) {
            g.init = (const float *)run->in[2] + group * s->oc;
            g.init_rs = 1;
        }
        do {
            size_t k1 = k_all - k0 < PACK_K ? k_all : k0 + PACK_K;
            k_f32_pack_window3(&s->win, (const float *)run->in[0] + at * s->ic * plane, k0, k1, j,
                               n, packed);
            g.k = k1 - k0;
            g.a = weight + k0;
            if (k0 > 0) { /* the chain goes on from what is parked in the output */
                g.init = g.c;
                g.init_rs = g.ldc;
                g.init_cs = 1;
            }
            cpu->kernels->f32_gemm(&g, 0, g.m, 0, 1);
            k0 = k1;
        } while (k0 < k_all);
    }
}

/* Items are output planes. */
static void double_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct volume_step *s = (const struct volume_step *)step;
    size_t channels = s->groups * s->oc, weights = s->ic * k_window3_taps(&s->win);
    const double *bias = s->bias ? run->in[2] : NULL;
    (void)cpu, (void)thread;
    for (; i0 < i1; i0++) {
        size_t image = i0 / channels, channel = i0 % channels;
        size_t first = image * s->groups + channel / s->oc;
        k_f64_conv_plane(
            &s->win, (const double *)run->in[0] + first * s->ic * k_window3_inputs(&s->win), s->ic,
            (const double *)run->in[1] + channel * weights, bias ? bias[channel] : 0.0,
            (double *)run->out[0] + i0 * k_window3_outputs(&s->win));
    }
}

static enum cm_err prepare_plain(struct cpu_prepare *p, const struct wk_window *window, bool wide,
                                 const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *w = &wk_call_in(p->call, 1)->shape;
    struct volume_step *s = cpu_step_take(p, sizeof *s, wide ? double_body : volume_body, 0, 1,
                                          conv_work(p->call) * (wide ? 8 : 1));
    if (!s)
        return CM_NOMEM;
    s->win = cpu_window3(window);
    s->groups = (size_t)wk_node_int(p->call->node, "group", 1);
    s->ic = (size_t)w->dims[1];
    s->oc = (size_t)w->dims[0] / s->groups;
    s->bias = wk_call_in(p->call, 2) != NULL;
    s->step.items = (size_t)x->dims[0] * s->groups;
    if (wide) {
        s->step.items *= s->oc;
    } else {
        s->step.items *= k_panels(k_window3_outputs(&s->win));
        s->thread_floats = cpu_thread_floats(p, (size_t)PACK_K * K_PANEL);
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* FP32, by the number of dimensions. */
static enum cm_err prepare_float(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *w = &wk_call_in(p->call, 1)->shape;
    struct wk_window window;
    enum cm_err code = wk_window_resolve(p->call->node, x, &w->dims[2], p->err, &window);
    if (code != CM_OK)
        return code;
    return x->rank == 5 ? prepare_plain(p, &window, false, ret_step)
                        : prepare_planar(p, &window, ret_step);
}

enum cm_err cpu_prepare_conv(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    struct wk_window window;
    if (x->dtype == CM_FP32)
        return prepare_float(p, ret_step);
    if (x->dtype != CM_FP64)
        return cpu_prepare_mixed(p, prepare_float, 0, ret_step);
    enum cm_err code = wk_window_resolve(p->call->node, &x->shape,
                                         &wk_call_in(p->call, 1)->shape.dims[2], p->err, &window);
    return code == CM_OK ? prepare_plain(p, &window, true, ret_step) : code;
}
