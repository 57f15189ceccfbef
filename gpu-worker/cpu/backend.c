/* The CPU backend: one table row per operator, preparation, and work split over the pool.
 *
 * Runs on the thread that owns the engine; pool threads only run bodies inside cpu_split. How work
 * is split never shows in results: kernels compute every output by one fixed order of operations.
 */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/features.h"

#include <stdio.h>
#include <stdlib.h>

/* Below this much work (in simple operations) other threads cost more than they save: a fork and
 * join takes about a microsecond. */
#define ALONE_WORK 65536.0

/* A thread's share of a step that takes longer than this is cut, so that another can take the rest
 * of it where a core is slower or has other things to do. */
#define LONG_NS    400000.0
#define LONG_PARTS 4u

struct op_row {
    const char *name;
    cpu_prepare_fn *prepare;
    cpu_layout_fn *layout;
    cpu_pack_fn *pack;
    cpu_measure_fn *measure;
};

static const struct op_row rows[WK_OP_COUNT] = {
#define ROW(op, name) [WK_OP_##op] = {#name, cpu_prepare_##name, NULL, NULL, NULL},
#define ROW_PACKED(op, name) \
    [WK_OP_##op] = {#name, cpu_prepare_##name, cpu_layout_##name, cpu_pack_##name, NULL},
#define ROW_MEASURED(op, name) \
    [WK_OP_##op] = {#name, cpu_prepare_##name, NULL, NULL, cpu_measure_##name},
#include "gpu-worker/cpu/rows.inc"
#undef ROW
#undef ROW_PACKED
#undef ROW_MEASURED
};

/* ---- helpers of the operators ---------------------------------------------------------------- */

void *cpu_step_take(struct cpu_prepare *p, size_t size, cpu_body_fn *body, size_t items,
                    size_t unit, double work)
{
    struct cpu_step *step = wk_arena_take(p->arena, 1, size);
    if (!step) {
        (void)cm_fail(p->err, CM_NOMEM, "out of memory while planning");
        return NULL;
    }
    step->body = body;
    step->items = items;
    step->unit = unit;
    step->work = work;
    step->alone = work < ALONE_WORK || p->cpu->threads == 1;
    return step;
}

/* One cpu_split call, as the pool's threads see it. */
struct split {
    const struct cpu_backend *cpu;
    const struct cpu_step *step;
    const struct wk_run *run;
    cpu_body_fn *body;
    size_t items, unit, parts;
};

static void run_part(void *context, size_t part, unsigned thread)
{
    const struct split *s = context;
    size_t begin, end;
    cpu_pool_share(s->items, s->unit, s->parts, part, &begin, &end);
    if (begin < end)
        s->body(s->cpu, s->step, s->run, begin, end, thread);
}

void cpu_split(const struct cpu_backend *cpu, const struct cpu_step *step, const struct wk_run *run,
               cpu_body_fn *body, size_t items, size_t unit)
{
    if (items == 0)
        return;
    if (step->alone) {
        body(cpu, step, run, 0, items, 0);
        return;
    }
    double about_ns = step->work * CPU_WORK_NS;
    bool cut = about_ns >= LONG_NS && items / unit >= 2u * LONG_PARTS * cpu->threads;
    size_t parts = cpu->threads * (cut ? LONG_PARTS : 1u);
    struct split split = {cpu, step, run, body, items, unit, parts};
    cpu_pool_run(cpu->pool, run_part, &split, parts, about_ns);
}

size_t cpu_product(const struct cm_shape *shape, unsigned from, unsigned to)
{
    size_t product = 1;
    for (unsigned i = from; i < to; i++)
        product *= (size_t)shape->dims[i];
    return product;
}

size_t cpu_count(const struct cm_shape *shape)
{
    return cpu_product(shape, 0, shape->rank);
}

void cpu_strides(const struct cm_shape *shape, ptrdiff_t ret_strides[CM_MAX_RANK])
{
    ptrdiff_t stride = 1;
    for (unsigned i = shape->rank; i-- > 0;) {
        ret_strides[i] = stride;
        stride *= (ptrdiff_t)shape->dims[i];
    }
}

/* A workspace that no size_t holds becomes the largest one and stays it: cpu_prepare refuses it. */
static void add_workspace(struct cpu_prepare *p, size_t bytes)
{
    if (!cm_size_add(p->workspace, bytes, &p->workspace))
        p->workspace = SIZE_MAX;
}

size_t cpu_thread_floats(struct cpu_prepare *p, size_t floats)
{
    size_t padded = 0, bytes = SIZE_MAX;
    if (cm_size_align(floats, WK_ALIGN / sizeof(float), &padded) &&
        cm_size_mul(padded, sizeof(float) * p->cpu->threads, &bytes))
        add_workspace(p, bytes);
    else
        p->workspace = SIZE_MAX;
    return padded;
}

size_t cpu_take_bytes(struct cpu_prepare *p, size_t bytes)
{
    size_t at;
    if (!cm_size_align(p->workspace, WK_ALIGN, &at))
        at = SIZE_MAX;
    p->workspace = at;
    add_workspace(p, bytes);
    return at;
}

/* ---- the backend's table --------------------------------------------------------------------- */

static const struct cpu_backend *as_cpu(const struct wk_backend *backend)
{
    return cm_container_of(backend, struct cpu_backend, base);
}

static enum cm_err cpu_supports(const struct wk_backend *backend, const struct wk_call *call,
                                struct cm_error *err)
{
    (void)backend;
    enum cm_dtype dtype = wk_call_in(call, 0) ? wk_call_in(call, 0)->dtype : CM_DTYPE_NONE;
    if (!rows[call->node->op].prepare)
        return wk_node_fail(err, CM_UNSUPPORTED, call->node, "not supported for %s",
                            cm_dtype_name(dtype));
    return CM_OK;
}

static void cpu_layout(const struct wk_backend *backend, const struct wk_call *call, unsigned k,
                       struct wk_layout *ret_layout)
{
    (void)backend;
    /* All but these look at other operands too. */
    if (call->node->loose && rows[call->node->op].layout != cpu_layout_recurrent)
        return;
    if (rows[call->node->op].layout && k < wk_node_own_inputs(call->node))
        rows[call->node->op].layout(call, k, ret_layout);
}

static void cpu_pack(const struct wk_backend *backend, const struct wk_call *call, unsigned k,
                     void *ret_bytes)
{
    (void)backend;
    rows[call->node->op].pack(call, k, ret_bytes);
}

static enum cm_err cpu_measure(const struct wk_backend *backend, const struct wk_call *call,
                               const void *const *in, struct wk_fact *facts, struct cm_error *err)
{
    (void)backend;
    if (!rows[call->node->op].measure)
        return wk_node_fail(err, CM_UNSUPPORTED, call->node,
                            "its output's shape does not follow from its inputs");
    return rows[call->node->op].measure(call, in, facts, err);
}

static bool cpu_can_fuse(const struct wk_backend *backend, const struct wk_call *host,
                         const struct wk_node *stage, enum wk_spread spread)
{
    (void)backend;
    return cpu_fuses(host, stage, spread);
}

static enum cm_err cpu_prepare(const struct wk_backend *backend, const struct wk_call *call,
                               struct wk_arena *arena, struct cm_error *err, const void **ret_state,
                               size_t *ret_workspace)
{
    struct cpu_prepare p = {.cpu = as_cpu(backend), .call = call, .arena = arena, .err = err};
    const struct cpu_step *step = NULL;
    cpu_prepare_fn *prepare = rows[call->node->op].prepare;
    if ((call->node->n_stages || call->node->form != WK_FORM_OWN) && cpu_is_chain(call))
        prepare = cpu_prepare_chain;
    enum cm_err code = prepare(&p, &step);
    if (code == CM_OK && p.workspace > WK_MAX_PLAN_BYTES)
        code = wk_node_fail(err, CM_LIMIT, call->node, "needs too much memory");
    if (code != CM_OK)
        return code;
    *ret_state = step;
    *ret_workspace = p.workspace;
    return CM_OK;
}

static void cpu_describe(const struct wk_backend *backend, const struct wk_call *call,
                         const void *state, char *buffer, size_t size)
{
    const struct cpu_backend *cpu = as_cpu(backend);
    const struct cpu_step *step = state;
    const struct wk_fact *x = wk_call_in(call, 0);
    if (step->describe)
        step->describe(cpu, step, buffer, size);
    else
        snprintf(buffer, size, "%s %s", rows[call->node->op].name,
                 cm_dtype_name(x ? x->dtype : wk_call_out(call)->dtype));
}

static enum cm_err cpu_run(struct wk_backend *backend, const void *state, const struct wk_run *run)
{
    const struct cpu_step *step = state;
    if (step->run)
        return step->run(as_cpu(backend), step, run);
    cpu_split(as_cpu(backend), step, run, step->body, step->items, step->unit);
    return CM_OK;
}

static void cpu_begin(struct wk_backend *backend)
{
    if (as_cpu(backend)->pool)
        cpu_pool_begin(as_cpu(backend)->pool);
}

static void cpu_end(struct wk_backend *backend)
{
    if (as_cpu(backend)->pool)
        cpu_pool_end(as_cpu(backend)->pool);
}

static void cpu_destroy(struct wk_backend *backend)
{
    struct cpu_backend *cpu = cm_container_of(backend, struct cpu_backend, base);
    cpu_pool_destroy(cpu->pool);
    free(cpu);
}

static const struct wk_backend_ops cpu_ops = {
    .name = "cpu",
    .packing_version = 2,
    .supports = cpu_supports,
    .fuses = cpu_can_fuse,
    .layout = cpu_layout,
    .pack = cpu_pack,
    .measure = cpu_measure,
    .prepare = cpu_prepare,
    .describe = cpu_describe,
    .run = cpu_run,
    .begin = cpu_begin,
    .end = cpu_end,
    .destroy = cpu_destroy,
};

enum cm_err wk_cpu_backend_create(const struct wk_engine_options *options, struct cm_error *err,
                                  struct wk_backend **ret_backend, enum wk_isa *ret_isa)
{
    unsigned threads = options->threads ? options->threads : 1;
    enum wk_isa isa;
    enum cm_err code = cpu_isa_choose(options->isa_given ? &options->isa : NULL, err, &isa);
    if (code != CM_OK)
        return code;
    struct cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return cm_fail(err, CM_NOMEM, "out of memory");
    *cpu = (struct cpu_backend){
        .base = {&cpu_ops}, .kernels = cpu_kernels_for(isa), .threads = threads};
    if (threads > 1)
        code = cpu_pool_create(threads, &cpu->pool);
    if (code != CM_OK) {
        free(cpu);
        return cm_fail(err, code, "cannot start %u threads: %s", threads, cm_err_text(code));
    }
    *ret_backend = &cpu->base;
    *ret_isa = isa;
    return CM_OK;
}
