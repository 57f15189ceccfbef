/* CPU backend: operators whose data decide how much they give: NonZero and Compress. Each has a
 * counting pass (measure) that finds the output's size, and a filling pass that trusts neither the
 * count nor the input to be what they were. See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/half.h"

#include <string.h>

static enum cm_err changed(const struct wk_run *run, const struct wk_node *node)
{
    return wk_node_fail(run->err, CM_INVALID, node, "its input changed while it was read");
}

/* ---- NonZero --------------------------------------------------------------------------------- */

/* FP16 and BF16 are zero without their sign; -0 of the others compares equal to 0. */
static bool is_non_zero(enum cm_dtype dtype, const void *x, size_t i)
{
    switch (dtype) {
    case CM_FP16:
    case CM_BF16:
        return (((const uint16_t *)x)[i] & 0x7fffu) != 0;
    case CM_FP32:
        return ((const float *)x)[i] != 0;
    case CM_FP64:
        return ((const double *)x)[i] != 0;
    default:
        break;
    }
    switch (cm_dtype_size(dtype)) {
    case 1:
        return ((const uint8_t *)x)[i] != 0;
    case 2:
        return ((const uint16_t *)x)[i] != 0;
    case 4:
        return ((const uint32_t *)x)[i] != 0;
    default:
        return ((const uint64_t *)x)[i] != 0;
    }
}

enum cm_err cpu_measure_non_zero(const struct wk_call *call, const void *const *in,
                                 struct wk_fact *facts, struct cm_error *err)
{
    const struct wk_fact *x = wk_call_in(call, 0);
    size_t count = cpu_count(&x->shape), found = 0;
    (void)err;
    for (size_t i = 0; i < count; i++)
        found += is_non_zero(x->dtype, in[0], i);
    facts[call->node->out[0]].shape.dims[1] = (int64_t)found;
    return CM_OK;
}

struct non_zero_step {
    struct cpu_step step;
    const struct wk_node *node;
    enum cm_dtype dtype;
    struct cm_shape shape;
    size_t count, found;
};

static enum cm_err non_zero_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                const struct wk_run *run)
{
    const struct non_zero_step *s = (const struct non_zero_step *)step;
    int64_t *y = run->out[0], index[CM_MAX_RANK] = {0};
    size_t at = 0;
    (void)cpu;
    for (size_t i = 0; i < s->count; i++) {
        if (is_non_zero(s->dtype, run->in[0], i)) {
            if (at == s->found)
                return changed(run, s->node);
            for (unsigned d = 0; d < s->shape.rank; d++)
                y[d * s->found + at] = index[d];
            at++;
        }
        for (unsigned d = s->shape.rank; d-- > 0 && ++index[d] == s->shape.dims[d];)
            index[d] = 0;
    }
    return at == s->found ? CM_OK : changed(run, s->node);
}

enum cm_err cpu_prepare_non_zero(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    struct non_zero_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    s->step.run = non_zero_run;
    s->node = p->call->node;
    s->dtype = x->dtype;
    s->shape = x->shape;
    s->count = cpu_count(&x->shape);
    s->found = (size_t)wk_call_out(p->call)->shape.dims[1];
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- Compress -------------------------------------------------------------------------------- */

/* The axis that is compressed; the whole tensor as a vector without one. */
static void compress_axis(const struct wk_call *call, unsigned *ret_axis, size_t *ret_length)
{
    const struct wk_attr *attr = wk_node_attr(call->node, "axis");
    const struct cm_shape *x = &wk_call_in(call, 0)->shape;
    *ret_axis = 0;
    if (attr)
        CM_ASSERT(wk_axis(attr->i, x->rank, ret_axis));
    *ret_length = attr ? (size_t)x->dims[*ret_axis] : cpu_count(x);
}

static size_t conditions(const struct wk_call *call, size_t length)
{
    size_t given = (size_t)wk_call_in(call, 1)->shape.dims[0];
    return given < length ? given : length;
}

enum cm_err cpu_measure_compress(const struct wk_call *call, const void *const *in,
                                 struct wk_fact *facts, struct cm_error *err)
{
    const uint8_t *condition = in[1];
    size_t length, found = 0;
    unsigned axis;
    compress_axis(call, &axis, &length);
    if ((size_t)wk_call_in(call, 1)->shape.dims[0] > length)
        return wk_node_fail(err, CM_INVALID, call->node, "%lld conditions for %zu elements",
                            (long long)wk_call_in(call, 1)->shape.dims[0], length);
    for (size_t i = 0; i < conditions(call, length); i++)
        found += condition[i] != 0;
    facts[call->node->out[0]].shape.dims[axis] = (int64_t)found;
    return CM_OK;
}

struct compress_step {
    struct cpu_step step;
    const struct wk_node *node;
    size_t length, conditions, found;
    size_t outer, run_bytes;
};

static enum cm_err compress_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                const struct wk_run *run)
{
    const struct compress_step *s = (const struct compress_step *)step;
    const uint8_t *condition = run->in[1];
    size_t at = 0;
    (void)cpu;
    for (size_t i = 0; i < s->conditions; i++) {
        if (!((const volatile uint8_t *)condition)[i])
            continue;
        if (at == s->found)
            return changed(run, s->node);
        for (size_t o = 0; o < s->outer; o++)
            memcpy((char *)run->out[0] + (o * s->found + at) * s->run_bytes,
                   (const char *)run->in[0] + (o * s->length + i) * s->run_bytes, s->run_bytes);
        at++;
    }
    return at == s->found ? CM_OK : changed(run, s->node);
}

enum cm_err cpu_prepare_compress(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    struct compress_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    bool flat = wk_node_attr(p->call->node, "axis") == NULL;
    unsigned axis;
    if (!s)
        return CM_NOMEM;
    compress_axis(p->call, &axis, &s->length);
    s->step.run = compress_run;
    s->node = p->call->node;
    s->conditions = conditions(p->call, s->length);
    s->found = (size_t)out->shape.dims[axis];
    s->outer = flat ? 1 : cpu_product(&x->shape, 0, axis);
    s->run_bytes =
        (flat ? 1 : cpu_product(&x->shape, axis + 1, x->shape.rank)) * cm_dtype_size(x->dtype);
    *ret_step = &s->step;
    return CM_OK;
}
