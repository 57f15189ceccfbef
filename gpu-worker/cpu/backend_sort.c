/* CPU backend: TopK and Unique. See backend_priv.h.
 *
 * Unique is grouped twice: to learn how many groups there are, then to write them. Its input may
 * be memory that somebody else changes in between, so the second count is checked. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/plain_sort.h"

#include <math.h>
#include <stdlib.h>

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

/* ---- Unique ---------------------------------------------------------------------------------- */

enum { UNIQUE_ARRAYS = 5 /* of one index per slice: two to sort, and the groups' three */ };

struct unique_step {
    struct cpu_step step;
    const struct wk_node *node;
    struct k_unique args;
    enum cm_dtype dtype;
    int64_t count; /* groups that the outputs have room for; -1: does not matter */
};

static struct k_unique unique_of(const struct wk_node *node, const struct cm_shape *x)
{
    unsigned axis;
    struct k_unique u = {.along = {1, cpu_count(x), 1},
                         .sorted = wk_node_int(node, "sorted", 1) != 0};
    if (wk_node_attr(node, "axis")) {
        CM_ASSERT(wk_axis(wk_node_int(node, "axis", 0), x->rank, &axis));
        u.along = (struct k_along){cpu_product(x, 0, axis), (size_t)x->dims[axis],
                                   cpu_product(x, axis + 1, x->rank)};
    }
    return u;
}

/* indices has UNIQUE_ARRAYS * n entries. */
static struct k_unique_groups find_groups(const struct k_unique *u, enum cm_dtype dtype,
                                          size_t *indices)
{
    size_t n = u->along.n;
    struct k_unique_groups groups = {
        .first = indices + 2 * n, .size = indices + 3 * n, .group = indices + 4 * n};
    k_unique_find(u, dtype, indices, &groups);
    return groups;
}

enum cm_err cpu_measure_unique(const struct wk_call *call, const void *const *in,
                               struct wk_fact *facts, struct cm_error *err)
{
    const struct wk_node *node = call->node;
    const struct wk_fact *x = wk_call_in(call, 0);
    struct k_unique u = unique_of(node, &x->shape);
    size_t bytes;
    if (!cm_size_mul(u.along.n, UNIQUE_ARRAYS * sizeof(size_t), &bytes) ||
        bytes > WK_MAX_PLAN_BYTES)
        return wk_node_fail(err, CM_LIMIT, node, "needs too much memory");
    size_t *indices = malloc(bytes + 1);
    if (!indices)
        return cm_fail(err, CM_NOMEM, "out of memory");
    u.x = in[0];
    int64_t count = (int64_t)find_groups(&u, x->dtype, indices).count;
    free(indices);
    for (unsigned k = 0; k < node->n_out; k++)
        for (unsigned i = 0; wanted(node, k) && i < facts[node->out[k]].shape.rank; i++)
            if (facts[node->out[k]].shape.dims[i] < 0)
                facts[node->out[k]].shape.dims[i] = count;
    return CM_OK;
}

static enum cm_err unique_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct unique_step *s = (const struct unique_step *)step;
    struct k_unique u = s->args;
    (void)cpu;
    u.x = run->in[0];
    struct k_unique_groups groups = find_groups(&u, s->dtype, run->workspace);
    if (s->count >= 0 && groups.count != (size_t)s->count)
        return wk_node_fail(run->err, CM_INVALID, s->node, "its input changed while it was read");
    if (wanted(s->node, 0))
        k_unique_take(&u, cm_dtype_size(s->dtype), &groups, run->out[0]);
    for (size_t g = 0; g < groups.count; g++) {
        if (wanted(s->node, 1))
            ((int64_t *)run->out[1])[g] = (int64_t)groups.first[g];
        if (wanted(s->node, 3))
            ((int64_t *)run->out[3])[g] = (int64_t)groups.size[g];
    }
    for (size_t j = 0; wanted(s->node, 2) && j < u.along.n; j++)
        ((int64_t *)run->out[2])[j] = (int64_t)groups.group[j];
    return CM_OK;
}

enum cm_err cpu_prepare_unique(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0);
    unsigned axis = 0;
    struct unique_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    s->step.run = unique_run;
    s->node = node;
    s->args = unique_of(node, &x->shape);
    s->dtype = x->dtype;
    s->count = -1;
    if (wk_node_attr(node, "axis"))
        CM_ASSERT(wk_axis(wk_node_int(node, "axis", 0), x->shape.rank, &axis));
    for (unsigned k = 0; k < node->n_out; k++)
        if (wanted(node, k) && k != 2)
            s->count = p->call->facts[node->out[k]].shape.dims[k == 0 ? axis : 0];
    if (!cm_size_mul(s->args.along.n, UNIQUE_ARRAYS * sizeof(size_t), &p->workspace))
        p->workspace = SIZE_MAX;
    *ret_step = &s->step;
    return CM_OK;
}
