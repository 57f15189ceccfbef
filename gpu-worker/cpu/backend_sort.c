/* CPU backend: TopK. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/plain_sort.h"

#include <math.h>

struct top_k_step {
    struct cpu_step step;
    struct k_top_k args;
    k_top_k_fn *fn;
    bool has_values, has_indices;
    size_t heap_floats; /* of workspace per thread */
};

static void top_k_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct top_k_step *s = (const struct top_k_step *)step;
    struct k_top_k args = s->args;
    (void)cpu;
    args.x = run->in[0];
    args.values = s->has_values ? run->out[0] : NULL;
    args.indices = s->has_indices ? run->out[1] : NULL;
    s->fn(&args, (size_t *)(void *)((float *)run->workspace + thread * s->heap_floats), i0, i1);
}

static bool wanted(const struct wk_node *node, unsigned k)
{
    return k < node->n_out && node->out[k] >= 0;
}

enum cm_err cpu_prepare_top_k(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0);
    unsigned axis;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_top_k, 0, ret_step);
    CM_ASSERT(wk_axis(wk_node_int(node, "axis", -1), x->shape.rank, &axis));
    struct k_along along = {cpu_product(&x->shape, 0, axis), (size_t)x->shape.dims[axis],
                            cpu_product(&x->shape, axis + 1, x->shape.rank)};
    size_t k = (size_t)p->call->facts[node->out[wanted(node, 0) ? 0 : 1]].shape.dims[axis];
    struct top_k_step *s = cpu_step_take(p, sizeof *s, top_k_body, along.outer * along.inner, 1,
                                         (double)cpu_count(&x->shape) * (4 + log2((double)k + 1)));
    if (!s)
        return CM_NOMEM;
    s->args =
        (struct k_top_k){.along = along, .k = k, .greatest = wk_node_int(node, "largest", 1) != 0};
    s->fn = k_top_k_for(x->dtype);
    s->has_values = wanted(node, 0);
    s->has_indices = wanted(node, 1);
    s->heap_floats = cpu_thread_floats(p, k * (sizeof(size_t) / sizeof(float)));
    *ret_step = &s->step;
    return CM_OK;
}
