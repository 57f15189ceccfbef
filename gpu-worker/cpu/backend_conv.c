/* CPU backend: convolution and pooling. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"

static struct k_window kernel_window(const struct wk_window *w)
{
    return (struct k_window){
        .h = (size_t)w->in[0],
        .w = (size_t)w->in[1],
        .oh = (size_t)w->out[0],
        .ow = (size_t)w->out[1],
        .kh = (size_t)w->kernel[0],
        .kw = (size_t)w->kernel[1],
        .stride_h = (size_t)w->stride[0],
        .stride_w = (size_t)w->stride[1],
        .dilation_h = (size_t)w->dilation[0],
        .dilation_w = (size_t)w->dilation[1],
        .pad_top = (size_t)w->pad_begin[0],
        .pad_left = (size_t)w->pad_begin[1],
        .pad_bottom = (size_t)w->pad_end[0],
        .pad_right = (size_t)w->pad_end[1],
    };
}

struct conv_step {
    struct cpu_step step;
    struct k_conv args;
    bool depthwise;
    size_t thread_floats;
};

static void conv_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct conv_step *s = (const struct conv_step *)step;
    struct k_conv args = s->args;
    float *workspace = run->workspace ? (float *)run->workspace + thread * s->thread_floats : NULL;
    args.x = run->in[0];
    args.weight = run->in[1];
    args.bias = args.bias ? run->in[2] : NULL;
    args.y = run->out[0];
    if (s->depthwise)
        cpu->kernels->f32_dwconv(&args, i0, i1, workspace);
    else
        cpu->kernels->f32_conv(&args, i0, i1, workspace);
}

enum cm_err cpu_prepare_conv(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    static const float present = 0;
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape, *w = &wk_call_in(p->call, 1)->shape;
    const struct cm_shape *y = &wk_call_out(p->call)->shape;
    struct wk_window window;
    enum cm_err code = wk_window_resolve(p->call->node, x, &w->dims[2], p->err, &window);
    if (code != CM_OK)
        return code;
    size_t groups = (size_t)wk_node_int(p->call->node, "group", 1);
    struct k_conv args = {
        .win = kernel_window(&window),
        .batch = (size_t)x->dims[0],
        .groups = groups,
        .ic = (size_t)w->dims[1],
        .oc = (size_t)w->dims[0] / groups,
        .bias = wk_call_in(p->call, 2) ? &present : NULL, /* replaced by in[2] at run */
    };
    bool depthwise = args.ic == 1 && args.oc == 1;
    size_t items = depthwise ? args.batch * groups : k_conv_items(&args);
    double work = (double)cpu_count(y) * (double)cpu_product(w, 1, w->rank) * 0.25;
    struct conv_step *s = cpu_step_take(p, sizeof *s, conv_body, items, 1, work);
    if (!s)
        return CM_NOMEM;
    s->args = args;
    s->depthwise = depthwise;
    s->thread_floats =
        cpu_thread_floats(p, depthwise ? k_dwconv_workspace(&args) : k_conv_workspace(&args));
    *ret_step = &s->step;
    return CM_OK;
}

struct pool_step {
    struct cpu_step step;
    struct k_pool args;
    bool average;
    size_t thread_floats;
};

static void pool_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct pool_step *s = (const struct pool_step *)step;
    struct k_pool args = s->args;
    float *workspace = run->workspace ? (float *)run->workspace + thread * s->thread_floats : NULL;
    args.x = run->in[0];
    args.y = run->out[0];
    if (s->average)
        cpu->kernels->f32_avgpool(&args, i0, i1, workspace);
    else
        cpu->kernels->f32_maxpool(&args, i0, i1, workspace);
}

enum cm_err cpu_prepare_pool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    struct wk_window window;
    enum cm_err code = wk_window_resolve(p->call->node, x, NULL, p->err, &window);
    if (code != CM_OK)
        return code;
    struct k_pool args = {
        .win = kernel_window(&window),
        .planes = cpu_product(x, 0, 2),
        .count_include_pad = wk_node_int(p->call->node, "count_include_pad", 0) != 0,
    };
    double work = (double)cpu_count(&wk_call_out(p->call)->shape) * (double)args.win.kh *
                  (double)args.win.kw * 0.5;
    struct pool_step *s = cpu_step_take(p, sizeof *s, pool_body, args.planes, 1, work);
    if (!s)
        return CM_NOMEM;
    s->args = args;
    s->average = p->call->node->op == WK_OP_AveragePool;
    s->thread_floats = cpu_thread_floats(p, k_pool_workspace(&args));
    *ret_step = &s->step;
    return CM_OK;
}
