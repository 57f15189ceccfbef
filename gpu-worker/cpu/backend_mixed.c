/* CPU backend: nodes in a wider type than their tensors'; see backend_mixed.h.
 *
 * The workspace of such a step: the pointers that the inner step sees, the converted operands and
 * results, the inner step's own workspace. */
#include "gpu-worker/cpu/backend_mixed.h"

#include "gpu-worker/cpu/plain.h"

#include <string.h>

enum { CONVERT_UNIT = 1024 };

/* One operand or result; dtype is NONE where it is used as it lies. */
struct converted {
    enum cm_dtype dtype;
    size_t count, at; /* at: bytes into the workspace */
};

struct mixed_step {
    struct cpu_step step;
    const struct cpu_step *inner;
    enum cm_dtype as;
    unsigned n_in, n_out;
    struct converted *operands; /* inputs, then outputs */
    size_t inner_at;
};

/* One conversion, as the threads that share it see it. */
struct conversion {
    struct cpu_step step;
    enum cm_dtype from, to;
    const char *x;
    char *y;
};

static bool is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

static enum cm_dtype arithmetic_of(const struct wk_call *call)
{
    return wk_call_in(call, 0)->dtype == CM_FP64 ? CM_FP64 : CM_FP32;
}

static bool is_mixed_value(const struct wk_call *call, int32_t value)
{
    return value >= 0 && is_float(call->facts[value].dtype) &&
           call->facts[value].dtype != arithmetic_of(call);
}

bool cpu_is_mixed(const struct cpu_prepare *p)
{
    const struct wk_node *node = p->call->node;
    for (unsigned k = 0; k < node->n_in; k++)
        if (is_mixed_value(p->call, node->in[k]))
            return true;
    for (unsigned k = 0; k < node->n_out; k++)
        if (is_mixed_value(p->call, node->out[k]))
            return true;
    return false;
}

/* The value is in the arithmetic's type where inner sees it. */
static bool is_converted(const struct wk_call *call, int32_t value)
{
    return is_mixed_value(call, value) ||
           (value >= 0 && call->facts[value].dtype == wk_call_in(call, 0)->dtype &&
            !is_float(call->facts[value].dtype));
}

/* ---- running --------------------------------------------------------------------------------- */

static void convert_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct conversion *c = (const struct conversion *)step;
    (void)cpu, (void)run, (void)thread;
    k_cast(c->from, c->to, c->x + i0 * cm_dtype_size(c->from), c->y + i0 * cm_dtype_size(c->to),
           i1 - i0);
}

static void convert(const struct cpu_backend *cpu, const struct cpu_step *step,
                    const struct wk_run *run, size_t count, struct conversion c)
{
    c.step.alone = step->alone;
    cpu_split(cpu, &c.step, run, convert_body, count, CONVERT_UNIT);
}

static enum cm_err mixed_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run)
{
    const struct mixed_step *s = (const struct mixed_step *)step;
    char *workspace = run->workspace;
    const void **in = (const void **)(void *)workspace;
    void **out = (void **)(void *)workspace + s->n_in;
    for (unsigned k = 0; k < s->n_in; k++) {
        const struct converted *c = &s->operands[k];
        in[k] = c->dtype ? workspace + c->at : run->in[k];
        if (c->dtype)
            convert(cpu, step, run, c->count,
                    (struct conversion){
                        .from = c->dtype, .to = s->as, .x = run->in[k], .y = workspace + c->at});
    }
    for (unsigned k = 0; k < s->n_out; k++)
        out[k] =
            s->operands[s->n_in + k].dtype ? workspace + s->operands[s->n_in + k].at : run->out[k];
    struct wk_run inner = {
        .in = in, .out = out, .workspace = workspace + s->inner_at, .err = run->err};
    enum cm_err code = CM_OK;
    if (s->inner->run)
        code = s->inner->run(cpu, s->inner, &inner);
    else
        cpu_split(cpu, s->inner, &inner, s->inner->body, s->inner->items, s->inner->unit);
    for (unsigned k = 0; k < s->n_out && code == CM_OK; k++) {
        const struct converted *c = &s->operands[s->n_in + k];
        if (c->dtype)
            convert(
                cpu, step, run, c->count,
                (struct conversion){.from = s->as, .to = c->dtype, .x = out[k], .y = run->out[k]});
    }
    return code;
}

/* ---- preparing ------------------------------------------------------------------------------- */

/* The node as inner sees it: values numbered by operand, facts of the wider type. */
struct twin {
    struct wk_node node;
    struct wk_graph graph;
    struct wk_call call;
};

static bool make_twin(struct cpu_prepare *p, enum cm_dtype as, struct twin *t)
{
    const struct wk_call *call = p->call;
    const struct wk_node *node = call->node;
    size_t n = (size_t)node->n_in + node->n_out;
    int32_t *indices = wk_arena_take(p->arena, n, sizeof *indices);
    struct wk_fact *facts = wk_arena_take(p->arena, n, sizeof *facts);
    struct wk_value *values = wk_arena_take(p->arena, n, sizeof *values);
    if (!indices || !facts || !values)
        return false;
    for (size_t i = 0; i < n; i++) {
        int32_t value = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
        indices[i] = value < 0 ? -1 : (int32_t)i;
        if (value < 0)
            continue;
        facts[i] = call->facts[value];
        values[i] = call->graph->values[value];
        if (is_converted(call, value))
            facts[i].dtype = as;
    }
    t->node = *node;
    t->node.in = indices;
    t->node.out = indices + node->n_in;
    t->graph = (struct wk_graph){.values = values, .n_values = (uint32_t)n};
    t->call = (struct wk_call){&t->graph, &t->node, facts, call->constants};
    return true;
}

static struct converted plan_operand(struct cpu_prepare *p, int32_t value, bool packed,
                                     enum cm_dtype as)
{
    if (packed || !is_converted(p->call, value))
        return (struct converted){0};
    const struct wk_fact *fact = &p->call->facts[value];
    size_t count = cpu_count(&fact->shape);
    return (struct converted){fact->dtype, count, cpu_take_bytes(p, count * cm_dtype_size(as))};
}

enum cm_err cpu_prepare_mixed(struct cpu_prepare *p, cpu_prepare_fn *inner, uint32_t packed,
                              const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    enum cm_dtype as = arithmetic_of(p->call);
    size_t n = (size_t)node->n_in + node->n_out;
    struct twin *t = wk_arena_take(p->arena, 1, sizeof *t);
    struct mixed_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s || !t || !make_twin(p, as, t))
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->operands = wk_arena_take(p->arena, n, sizeof *s->operands);
    if (!s->operands)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->step.run = mixed_run;
    s->as = as;
    s->n_in = node->n_in;
    s->n_out = node->n_out;
    (void)cpu_take_bytes(p, n * sizeof(void *));
    for (unsigned k = 0; k < s->n_in; k++)
        s->operands[k] = plan_operand(p, node->in[k], k < 32 && (packed >> k & 1), as);
    for (unsigned k = 0; k < s->n_out; k++)
        s->operands[s->n_in + k] = plan_operand(p, node->out[k], false, as);
    struct cpu_prepare within = *p;
    within.call = &t->call;
    within.workspace = 0;
    enum cm_err code = inner(&within, &s->inner);
    if (code != CM_OK)
        return code;
    s->step.alone = s->inner->alone;
    s->inner_at = cpu_take_bytes(p, within.workspace);
    *ret_step = &s->step;
    return CM_OK;
}
