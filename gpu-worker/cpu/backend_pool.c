/* CPU backend: AveragePool, MaxPool, LpPool, MaxUnpool. See backend_priv.h.
 *
 * FP32 maximums and averages over one or two dimensions run in kernels, FP16, BF16 and small
 * integers are widened to them. The rest (three dimensions, double precision, indices, LpPool) is
 * computed plane by plane in double precision and rounded once. */
#include "gpu-worker/cpu/backend_mixed.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <string.h>

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

static double pool_work(size_t planes, const struct wk_window *w)
{
    double work = (double)planes * 0.5;
    for (unsigned d = 0; d < WK_SPATIAL; d++)
        work *= (double)w->kernel[d] * (double)w->out[d];
    return work;
}

static enum cm_err prepare_planar(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    struct wk_window window;
    enum cm_err code = wk_window_resolve(p->call->node, x, NULL, p->err, &window);
    if (code != CM_OK)
        return code;
    struct k_pool args = {
        .win = cpu_window2(&window),
        .planes = cpu_product(x, 0, 2),
        .count_include_pad = wk_node_int(p->call->node, "count_include_pad", 0) != 0,
    };
    struct pool_step *s = cpu_step_take(p, sizeof *s, pool_body, args.planes, 1,
                                        pool_work(cpu_product(x, 0, 2), &window));
    if (!s)
        return CM_NOMEM;
    s->args = args;
    s->average = p->call->node->op == WK_OP_AveragePool;
    s->thread_floats = cpu_thread_floats(p, k_pool_workspace(&args));
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- plane by plane -------------------------------------------------------------------------- */

struct plane_step {
    struct cpu_step step;
    struct k_pool3 pool;
    enum cm_dtype dtype;
    bool values, indices; /* which outputs are wanted */
    size_t thread_bytes;
};

static void plane_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct plane_step *s = (const struct plane_step *)step;
    size_t in = k_window3_inputs(&s->pool.win), out = k_window3_outputs(&s->pool.win);
    size_t element = cm_dtype_size(s->dtype);
    double *x = (void *)((char *)run->workspace + thread * s->thread_bytes), *y = x + in;
    (void)cpu;
    for (; i0 < i1; i0++) {
        int64_t *index = s->indices ? (int64_t *)run->out[1] + i0 * out : NULL;
        k_cast(s->dtype, CM_FP64, (const char *)run->in[0] + i0 * in * element, x, in);
        k_f64_pool_plane(&s->pool, x, y, index, (int64_t)(i0 * in));
        if (s->values)
            k_cast(CM_FP64, s->dtype, y, (char *)run->out[0] + i0 * out * element, out);
    }
}

static enum k_pool3_kind kind_of(enum wk_op op)
{
    if (op == WK_OP_MaxPool)
        return K_POOL_MAX;
    return op == WK_OP_AveragePool ? K_POOL_AVERAGE : K_POOL_LP;
}

static bool wants_indices(const struct wk_node *node)
{
    return node->n_out > 1 && node->out[1] >= 0;
}

static enum cm_err prepare_planes(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0);
    struct wk_window window;
    enum cm_err code = wk_window_resolve(node, &x->shape, NULL, p->err, &window);
    if (code != CM_OK)
        return code;
    struct plane_step *s = cpu_step_take(p, sizeof *s, plane_body, cpu_product(&x->shape, 0, 2), 1,
                                         8 * pool_work(cpu_product(&x->shape, 0, 2), &window));
    if (!s)
        return CM_NOMEM;
    s->dtype = x->dtype;
    s->values = node->out[0] >= 0;
    s->indices = wants_indices(node);
    s->pool = (struct k_pool3){
        .win = cpu_window3(&window),
        .kind = kind_of(node->op),
        .count_include_pad = wk_node_int(node, "count_include_pad", 0) != 0,
        .column_major = wk_node_int(node, "storage_order", 0) != 0,
        .p = (unsigned)wk_node_int(node, "p", 2),
    };
    size_t doubles = k_window3_inputs(&s->pool.win) + k_window3_outputs(&s->pool.win);
    s->thread_bytes = cpu_thread_floats(p, 2 * doubles) * sizeof(float);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_pool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    if (p->call->node->op == WK_OP_LpPool || x->dtype == CM_FP64 || x->shape.rank == 5 ||
        wants_indices(p->call->node))
        return prepare_planes(p, ret_step);
    return x->dtype == CM_FP32 ? prepare_planar(p, ret_step)
                               : cpu_prepare_mixed(p, prepare_planar, 0, ret_step);
}

/* ---- MaxUnpool ------------------------------------------------------------------------------- */

struct unpool_step {
    struct cpu_step step;
    const struct wk_node *node;
    size_t element, in, out; /* bytes of an element; elements */
};

/* On one thread: indices may repeat, and then the last one wins. */
static enum cm_err unpool_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct unpool_step *s = (const struct unpool_step *)step;
    const char *x = run->in[0];
    /* They may lie in memory that another process writes: each is read once. */
    const volatile int64_t *indices = run->in[1];
    char *y = run->out[0];
    (void)cpu;
    memset(y, 0, s->out * s->element);
    for (size_t i = 0; i < s->in; i++) {
        int64_t index = indices[i];
        if (index < 0 || (uint64_t)index >= s->out)
            return wk_node_fail(run->err, CM_INVALID, s->node,
                                "index %lld is outside the output's %zu elements", (long long)index,
                                s->out);
        memcpy(y + (size_t)index * s->element, x + i * s->element, s->element);
    }
    return CM_OK;
}

enum cm_err cpu_prepare_max_unpool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    struct unpool_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    s->step.run = unpool_run;
    s->node = p->call->node;
    s->element = cm_dtype_size(x->dtype);
    s->in = cpu_count(&x->shape);
    s->out = cpu_count(&wk_call_out(p->call)->shape);
    *ret_step = &s->step;
    return CM_OK;
}
