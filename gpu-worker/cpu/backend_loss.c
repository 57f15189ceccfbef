/* CPU backend: losses. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/plain_norm.h"

#include <string.h>

struct loss_step {
    struct cpu_step step;
    const struct wk_node *node;
    struct k_nll nll;
    enum k_nll_reduction reduction;
    bool keeps; /* SoftmaxCrossEntropyLoss: the logarithms are an output, not workspace */
};

static enum cm_err finish(const struct loss_step *s, const struct wk_run *run, const void *scores)
{
    struct k_nll nll = s->nll;
    int64_t bad = 0;
    nll.scores = scores;
    nll.labels = run->in[1];
    nll.weights = s->node->n_in > 2 ? run->in[2] : NULL;
    if (!k_nll_run(&nll, s->reduction, run->out[0], &bad))
        return wk_node_fail(run->err, CM_INVALID, s->node, "label %lld of %zu classes",
                            (long long)bad, nll.classes);
    return CM_OK;
}

static enum cm_err nll_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run)
{
    (void)cpu;
    return finish((const struct loss_step *)step, run, run->in[0]);
}

static void *logarithms(const struct loss_step *s, const struct wk_run *run)
{
    return s->keeps ? run->out[1] : run->workspace;
}

static void log_softmax_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct loss_step *s = (const struct loss_step *)step;
    struct k_along along = {s->nll.batch, s->nll.classes, s->nll.inner};
    struct k_axis axis = {along.outer, along.n, along.inner, run->in[0], logarithms(s, run)};
    (void)thread;
    if (s->nll.dtype == CM_FP32)
        cpu->kernels->f32_logsoftmax(&axis, i0, i1);
    else
        k_f64_logsoftmax(&along, run->in[0], logarithms(s, run), i0, i1);
}

static enum cm_err softmax_loss_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                    const struct wk_run *run)
{
    const struct loss_step *s = (const struct loss_step *)step;
    cpu_split(cpu, step, run, log_softmax_body, s->nll.batch * s->nll.inner, 16);
    return finish(s, run, logarithms(s, run));
}

static struct loss_step *take_loss(struct cpu_prepare *p)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0);
    const char *reduction = wk_node_string(node, "reduction", "mean");
    const struct wk_attr *ignore = wk_node_attr(node, "ignore_index");
    struct loss_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 8 * (double)cpu_count(&x->shape));
    if (!s)
        return NULL;
    s->node = node;
    s->reduction = strcmp(reduction, "none") == 0  ? K_NLL_NONE
                   : strcmp(reduction, "sum") == 0 ? K_NLL_SUM
                                                   : K_NLL_MEAN;
    s->nll = (struct k_nll){.dtype = x->dtype,
                            .wide = wk_call_in(p->call, 1)->dtype == CM_INT64,
                            .ignores = ignore != NULL,
                            .ignore = ignore ? ignore->i : 0,
                            .batch = (size_t)x->shape.dims[0],
                            .classes = (size_t)x->shape.dims[1],
                            .inner = cpu_product(&x->shape, 2, x->shape.rank)};
    return s;
}

enum cm_err cpu_prepare_nll_loss(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_nll_loss, 0, ret_step);
    struct loss_step *s = take_loss(p);
    if (!s)
        return CM_NOMEM;
    s->step.run = nll_run;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_softmax_loss(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_softmax_loss, 0, ret_step);
    struct loss_step *s = take_loss(p);
    if (!s)
        return CM_NOMEM;
    s->step.run = softmax_loss_run;
    s->keeps = node->n_out > 1 && node->out[1] >= 0;
    if (!s->keeps)
        p->workspace = cpu_count(&x->shape) * cm_dtype_size(x->dtype) + 1;
    *ret_step = &s->step;
    return CM_OK;
}
