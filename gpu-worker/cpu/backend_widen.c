/* CPU backend: operators on FP16, BF16 and small integers by way of FP32. See backend_priv.h.
 *
 * Every value of these types is a float exactly, so such an operator is the FP32 one between two
 * conversions, the second of which rounds once. The FP32 one's kernels give the same bits on every
 * machine, so this does too. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

enum { MAX_WIDENED = 3 /* inputs of an operator that is widened */ };

struct widened {
    size_t count, at; /* elements; byte offset in the workspace */
    bool convert;     /* otherwise the operand is used as it is */
};

struct widen_step {
    struct cpu_step step;
    const struct cpu_step *inner;
    enum cm_dtype dtype;
    unsigned n_in;
    struct widened in[MAX_WIDENED], out;
};

/* Which operand a cast body is about: the step that cpu_split passes on. */
struct cast_step {
    struct cpu_step step;
    enum cm_dtype from, to;
    const void *x;
    void *y;
};

static void cast_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct cast_step *s = (const struct cast_step *)step;
    (void)cpu, (void)run, (void)thread;
    k_cast(s->from, s->to, (const char *)s->x + i0 * cm_dtype_size(s->from),
           (char *)s->y + i0 * cm_dtype_size(s->to), i1 - i0);
}

static void cast_all(const struct cpu_backend *cpu, const struct widen_step *s,
                     const struct wk_run *run, struct cast_step cast, size_t count)
{
    cast.step.alone = s->step.alone;
    cpu_split(cpu, &cast.step, run, cast_body, count, 1024);
}

static enum cm_err widen_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run)
{
    const struct widen_step *s = (const struct widen_step *)step;
    char *workspace = run->workspace;
    const void *in[MAX_WIDENED];
    void *out[1] = {workspace + s->out.at};
    struct wk_run wide = {in, out, run->workspace, run->err};
    for (unsigned k = 0; k < s->n_in; k++) {
        in[k] = s->in[k].convert ? workspace + s->in[k].at : run->in[k];
        if (s->in[k].convert)
            cast_all(
                cpu, s, run,
                (struct cast_step){
                    .from = s->dtype, .to = CM_FP32, .x = run->in[k], .y = workspace + s->in[k].at},
                s->in[k].count);
    }
    if (s->inner->run) {
        enum cm_err code = s->inner->run(cpu, s->inner, &wide);
        if (code != CM_OK)
            return code;
    } else {
        cpu_split(cpu, s->inner, &wide, s->inner->body, s->inner->items, s->inner->unit);
    }
    cast_all(cpu, s, run,
             (struct cast_step){
                 .from = CM_FP32, .to = s->dtype, .x = workspace + s->out.at, .y = run->out[0]},
             s->out.count);
    return CM_OK;
}

enum cm_err cpu_prepare_widened(struct cpu_prepare *p, cpu_prepare_fn *inner,
                                const struct cpu_step **ret_step)
{
    const struct wk_call *call = p->call;
    const struct cpu_step *inner_step = NULL;
    enum cm_err code = inner(p, &inner_step);
    if (code != CM_OK)
        return code;
    struct widen_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    CM_ASSERT(call->node->n_in <= MAX_WIDENED);
    s->step.run = widen_run;
    s->step.alone = inner_step->alone;
    s->inner = inner_step;
    s->dtype = wk_call_in(call, 0)->dtype;
    s->n_in = call->node->n_in;
    for (unsigned k = 0; k < s->n_in; k++) {
        const struct wk_fact *fact = wk_call_in(call, k);
        if (fact && fact->dtype == s->dtype)
            s->in[k] = (struct widened){cpu_count(&fact->shape), 0, true};
        if (s->in[k].convert)
            s->in[k].at = cpu_take_bytes(p, s->in[k].count * sizeof(float));
    }
    s->out.count = cpu_count(&wk_call_out(call)->shape);
    s->out.at = cpu_take_bytes(p, s->out.count * sizeof(float));
    *ret_step = &s->step;
    return CM_OK;
}
