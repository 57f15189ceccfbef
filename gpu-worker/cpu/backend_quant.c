/* CPU backend: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/quant.h"

/* ---- QuantizeLinear, DequantizeLinear -------------------------------------------------------- */

struct quant_step {
    struct cpu_step step;
    bool quantize, has_zero;
    enum cm_dtype from, to, scale_type;
    struct wk_quant q;
    size_t scales;   /* how many; their floats lie at the workspace's start */
    size_t zeros_at; /* offset of as many int32 in the workspace */
};

/* Elements of x from i on that one call can take: their scales are equal or lie side by side. */
static size_t run_length(const struct quant_step *s, size_t i, size_t *ret_scale, size_t *ret_step)
{
    size_t n = (size_t)s->q.n, inner = (size_t)s->q.inner, block = (size_t)s->q.block;
    size_t at = i % inner, a = i / inner % n, outer = i / inner / n;
    *ret_step = 0;
    *ret_scale = a;
    if (s->q.per_tensor) {
        *ret_scale = 0;
        return SIZE_MAX;
    }
    if (s->q.blocked) {
        *ret_scale = (outer * (size_t)s->q.blocks + a / block) * inner + at;
        *ret_step = inner > 1;
        if (inner > 1)
            return inner - at;
        size_t end = (a / block + 1) * block;
        return (end < n ? end : n) - a;
    }
    if (inner > 1)
        return inner - at;
    *ret_step = 1;
    return n - a;
}

static void quant_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct quant_step *s = (const struct quant_step *)step;
    const float *scales = run->workspace;
    const int32_t *zeros = (const void *)((char *)run->workspace + s->zeros_at);
    (void)cpu, (void)thread;
    while (i0 < i1) {
        size_t scale, each, n = run_length(s, i0, &scale, &each);
        const void *x = (const char *)run->in[0] + i0 * cm_dtype_size(s->from);
        void *y = (char *)run->out[0] + i0 * cm_dtype_size(s->to);
        n = n < i1 - i0 ? n : i1 - i0;
        (s->quantize ? k_quantize : k_dequantize)(s->from, x, scales + scale, zeros + scale, each,
                                                  s->to, y, n);
        i0 += n;
    }
}

static enum cm_err quant_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run)
{
    const struct quant_step *s = (const struct quant_step *)step;
    int32_t *zeros = (void *)((char *)run->workspace + s->zeros_at);
    enum cm_dtype zero_type = s->quantize ? s->to : s->from;
    k_cast(s->scale_type, CM_FP32, run->in[1], run->workspace, s->scales);
    for (size_t i = 0; i < s->scales; i++)
        zeros[i] = s->has_zero ? k_int_at(zero_type, run->in[2], i) : 0;
    cpu_split(cpu, step, run, quant_body, step->items, step->unit);
    return CM_OK;
}

static enum cm_err prepare_quant(struct cpu_prepare *p, bool quantize,
                                 const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *scale = wk_call_in(p->call, 1);
    size_t count = cpu_count(&x->shape);
    struct wk_quant q;
    enum cm_err code = wk_quant_resolve(p->call->node, &x->shape, &scale->shape, p->err, &q);
    if (code != CM_OK)
        return code;
    struct quant_step *s = cpu_step_take(p, sizeof *s, quant_body, count, 1024, 4 * (double)count);
    if (!s)
        return CM_NOMEM;
    s->step.run = quant_run;
    s->quantize = quantize;
    s->has_zero = wk_call_in(p->call, 2) != NULL;
    s->from = x->dtype;
    s->to = wk_call_out(p->call)->dtype;
    s->scale_type = scale->dtype;
    s->q = q;
    s->scales = cpu_count(&scale->shape);
    (void)cpu_take_bytes(p, s->scales * sizeof(float));
    s->zeros_at = cpu_take_bytes(p, s->scales * sizeof(int32_t));
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_quantize(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    return prepare_quant(p, true, ret_step);
}

enum cm_err cpu_prepare_dequantize(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    return prepare_quant(p, false, ret_step);
}

/* ---- DynamicQuantizeLinear ------------------------------------------------------------------- */

struct dynamic_step {
    struct cpu_step step;
    size_t count;
    unsigned n_out;
};

/* The scale and zero point that one run has found; the workspace. */
struct dynamic_found {
    float scale;
    int32_t zero;
};

static void dynamic_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct dynamic_found *found = run->workspace;
    (void)cpu, (void)step, (void)thread;
    k_quantize(CM_FP32, (const float *)run->in[0] + i0, &found->scale, &found->zero, 0, CM_UINT8,
               (uint8_t *)run->out[0] + i0, i1 - i0);
}

/* The range is widened to hold 0. Where that leaves one number (all are 0) the scale is 1. */
static enum cm_err dynamic_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    const struct dynamic_step *s = (const struct dynamic_step *)step;
    struct dynamic_found *found = run->workspace;
    float most = 0.0f, least = 0.0f, intermediate;
    struct k_axis axis = {.outer = 1, .n = s->count, .inner = 1, .x = run->in[0], .y = &most};
    uint8_t zero;
    const int32_t none = 0;
    const float one = 1.0f;
    if (s->count > 0) {
        cpu->kernels->f32_reduce_max(&axis, 0, 1);
        axis.y = &least;
        cpu->kernels->f32_reduce_min(&axis, 0, 1);
    }
    most = most < 0.0f ? 0.0f : most;
    least = least > 0.0f ? 0.0f : least;
    found->scale = most == least ? 1.0f : (most - least) / 255.0f;
    intermediate = 0.0f - least / found->scale;
    k_quantize(CM_FP32, &intermediate, &one, &none, 0, CM_UINT8, &zero, 1);
    found->zero = zero;
    if (s->n_out > 1 && run->out[1])
        *(float *)run->out[1] = found->scale;
    if (s->n_out > 2 && run->out[2])
        *(uint8_t *)run->out[2] = zero;
    if (run->out[0])
        cpu_split(cpu, step, run, dynamic_body, step->items, step->unit);
    return CM_OK;
}

enum cm_err cpu_prepare_dynamic_quantize(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    size_t count = cpu_count(&wk_call_in(p->call, 0)->shape);
    struct dynamic_step *s =
        cpu_step_take(p, sizeof *s, dynamic_body, count, 1024, 4 * (double)count);
    if (!s)
        return CM_NOMEM;
    s->step.run = dynamic_run;
    s->count = count;
    s->n_out = p->call->node->n_out;
    (void)cpu_take_bytes(p, sizeof(struct dynamic_found));
    *ret_step = &s->step;
    return CM_OK;
}
