/* CPU backend: normalisation. See backend_priv.h.
 *
 * FP32 batch normalisation (inference), layer, instance and group normalisation run on vector
 * kernels; the rest on plain_norm.h. Other floating types are widened. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/broadcast.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/plain_norm.h"
#include "gpu-worker/graph/infer_reduce.h"

static float norm_epsilon(const struct wk_node *node)
{
    return wk_node_float(node, "epsilon", 1e-5f);
}

/* ---- BatchNormalization ---------------------------------------------------------------------- */

struct norm_step {
    struct cpu_step step;
    struct k_scale_shift args;
    float epsilon;
};

/* x as [batch][channels][plane]; with spatial = 0 every element of a row is a channel, and a vector
 * is a batch of one channel. */
struct channels {
    size_t batch, channels, plane;
};

static struct channels as_channels(const struct wk_call *call)
{
    const struct cm_shape *x = &wk_call_in(call, 0)->shape;
    size_t batch = cpu_product(x, 0, 1);
    if (x->rank == 1)
        return (struct channels){batch, 1, 1};
    if (!wk_node_int(call->node, "spatial", 1))
        return (struct channels){batch, cpu_product(x, 1, x->rank), 1};
    return (struct channels){batch, (size_t)x->dims[1], cpu_product(x, 2, x->rank)};
}

/* Constants alone decide scale and shift: they are stored instead of the four parameters. */
static bool norm_folds(const struct wk_call *call)
{
    for (unsigned k = 1; k < 5; k++)
        if (!wk_call_is_constant(call, k))
            return false;
    return wk_call_in(call, 0)->dtype != CM_FP64 && !wk_batch_norm_trains(call->node);
}

void cpu_layout_batch_norm(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    if (!norm_folds(call) || k == 0)
        return;
    size_t channels = cpu_count(&wk_call_in(call, 1)->shape);
    if (k == 1)
        *ret_layout =
            (struct wk_layout){CPU_LAYOUT_BATCH_NORM, 2 * channels * sizeof(float), false};
    else if (k > 1)
        ret_layout->kind = WK_LAYOUT_NONE;
}

void cpu_pack_batch_norm(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    enum { CHUNK = 256 };
    size_t channels = cpu_count(&wk_call_in(call, 1)->shape);
    float *scale = ret_bytes, parts[4][CHUNK];
    CM_ASSERT(k == 1);
    for (size_t i = 0; i < channels; i += CHUNK) {
        size_t n = channels - i < CHUNK ? channels - i : CHUNK;
        for (unsigned j = 0; j < 4; j++) {
            const struct wk_const *c = call->graph->values[call->node->in[j + 1]].constant;
            k_cast(c->dtype, CM_FP32, (const char *)c->data + i * cm_dtype_size(c->dtype), parts[j],
                   n);
        }
        k_f32_bn_fold(parts[0], parts[1], parts[2], parts[3], norm_epsilon(call->node), n,
                      scale + i, scale + channels + i);
    }
}

static void norm_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    struct k_scale_shift args = ((const struct norm_step *)step)->args;
    (void)thread;
    args.x = run->in[0];
    args.y = run->out[0];
    if (!args.scale) {
        args.scale = run->workspace;
        args.shift = args.scale + args.channels;
    }
    cpu->kernels->f32_scale_shift(&args, i0, i1);
}

/* Parameters that the graph computes are folded into the workspace at every run. */
static enum cm_err norm_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    const struct norm_step *s = (const struct norm_step *)step;
    float *scale = run->workspace;
    k_f32_bn_fold(run->in[1], run->in[2], run->in[3], run->in[4], s->epsilon, s->args.channels,
                  scale, scale + s->args.channels);
    cpu_split(cpu, step, run, norm_body, step->items, step->unit);
    return CM_OK;
}

struct channels_step {
    struct cpu_step step;
    struct k_channels args;
    unsigned n_out;
    double momentum;
};

static void channels_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                          const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct channels_step *s = (const struct channels_step *)step;
    struct k_channels args = s->args;
    (void)cpu, (void)thread;
    args.x = run->in[0];
    args.scale = run->in[1];
    args.bias = run->in[2];
    args.y = run->out[0];
    k_channels_normalise(&args, run->in[3], run->in[4], i0, i1);
}

static void train_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct channels_step *s = (const struct channels_step *)step;
    struct k_channels args = s->args;
    struct k_statistics t = {
        .momentum = s->momentum, .old_mean = run->in[3], .old_var = run->in[4]};
    void **results[] = {&t.run_mean, &t.run_var, &t.own_mean, &t.own_var};
    (void)cpu, (void)thread;
    for (unsigned k = 0; k < CM_COUNT_OF(results); k++)
        *results[k] = run->out[k + 1];
    args.x = run->in[0];
    args.scale = run->in[1];
    args.bias = run->in[2];
    args.y = run->out[0];
    k_channels_train(&args, &t, i0, i1);
}

/* Statistics that are not wanted may be missing from the node: the run's list is made long enough.
 */
static enum cm_err train_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                             const struct wk_run *run)
{
    const struct channels_step *s = (const struct channels_step *)step;
    void *out[5] = {NULL};
    struct wk_run all = *run;
    for (unsigned k = 0; k < s->n_out; k++)
        out[k] = run->out[k];
    all.out = out;
    cpu_split(cpu, step, &all, train_body, step->items, 1);
    return CM_OK;
}

static enum cm_err prepare_channels(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct channels c = as_channels(p->call);
    struct channels_step *s = cpu_step_take(p, sizeof *s, channels_body, c.channels, 1,
                                            4 * (double)cpu_count(&wk_call_in(p->call, 0)->shape));
    if (!s)
        return CM_NOMEM;
    s->args = (struct k_channels){.dtype = wk_call_in(p->call, 0)->dtype,
                                  .batch = c.batch,
                                  .channels = c.channels,
                                  .plane = c.plane,
                                  .epsilon = (double)norm_epsilon(p->call->node)};
    s->momentum = (double)wk_node_float(p->call->node, "momentum", 0.9f);
    if (wk_batch_norm_trains(p->call->node)) {
        s->step.run = train_run;
        s->n_out = p->call->node->n_out;
    }
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_batch_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    size_t count = cpu_count(&wk_call_in(p->call, 0)->shape);
    bool folds = norm_folds(p->call);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_batch_norm, folds ? 0x1eu : 0, ret_step);
    if (wk_call_in(p->call, 0)->dtype == CM_FP64 || wk_batch_norm_trains(p->call->node))
        return prepare_channels(p, ret_step);
    struct channels c = as_channels(p->call);
    struct norm_step *s =
        cpu_step_take(p, sizeof *s, norm_body, c.batch * c.channels, 1, (double)count);
    if (!s)
        return CM_NOMEM;
    s->args.channels = c.channels;
    s->args.plane = c.plane;
    s->epsilon = norm_epsilon(p->call->node);
    if (folds) {
        s->args.scale = p->call->constants[1];
        s->args.shift = s->args.scale + s->args.channels;
    } else {
        s->step.run = norm_run;
        p->workspace = (2 * s->args.channels + 1) * sizeof(float);
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- layer, instance and group normalisation ------------------------------------------------- */

struct rows_step {
    struct cpu_step step;
    bool wide; /* FP64 */
    size_t n;  /* of a row */
    float epsilon;
    unsigned n_out;
    bool by_element; /* LayerNormalization's usual form: scale and bias within the row */
    bool has_bias;
    /* Instance, group: each row is then `planes` planes with a scale and a shift each, repeating
     * after `channels`. 0: none. */
    size_t planes, channels, plane;
    /* LayerNormalization's unusual forms: scale and bias are broadcast to the whole. */
    struct cpu_bcast scale, bias;
};

static void rows_f32(const struct cpu_backend *cpu, const struct rows_step *s,
                     const struct wk_run *run, size_t i0, size_t i1)
{
    struct k_norm args = {.n = s->n, .epsilon = s->epsilon, .x = run->in[0], .y = run->out[0]};
    if (s->by_element) {
        args.scale = run->in[1];
        args.bias = s->has_bias ? run->in[2] : NULL;
    }
    args.mean = s->n_out > 1 ? run->out[1] : NULL;
    args.inv = s->n_out > 2 ? run->out[2] : NULL;
    cpu->kernels->f32_layer_norm(&args, i0, i1);
    struct k_scale_shift shift = {s->channels, s->plane,   run->out[0],
                                  run->in[1],  run->in[2], run->out[0]};
    if (s->planes)
        cpu->kernels->f32_scale_shift(&shift, i0 * s->planes, i1 * s->planes);
}

static void rows_f64(const struct rows_step *s, const struct wk_run *run, size_t i0, size_t i1)
{
    struct k_f64_norm args = {
        .n = s->n, .epsilon = (double)s->epsilon, .x = run->in[0], .y = run->out[0]};
    if (s->by_element) {
        args.scale = run->in[1];
        args.bias = s->has_bias ? run->in[2] : NULL;
    }
    args.mean = s->n_out > 1 ? run->out[1] : NULL;
    args.inv = s->n_out > 2 ? run->out[2] : NULL;
    k_f64_layer_norm(&args, i0, i1);
    if (s->planes)
        k_f64_scale_shift(s->channels, s->plane, run->in[1], run->in[2], run->out[0],
                          i0 * s->planes, i1 * s->planes);
}

static void rows_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct rows_step *s = (const struct rows_step *)step;
    (void)thread;
    if (s->wide)
        rows_f64(s, run, i0, i1);
    else
        rows_f32(cpu, s, run, i0, i1);
}

static struct rows_step *take_rows(struct cpu_prepare *p, size_t rows, size_t n)
{
    struct rows_step *s =
        cpu_step_take(p, sizeof *s, rows_body, rows, 1, 3 * (double)rows * (double)n);
    if (!s)
        return NULL;
    s->n = n;
    s->wide = wk_call_in(p->call, 0)->dtype == CM_FP64;
    s->epsilon = norm_epsilon(p->call->node);
    s->n_out = p->call->node->n_out;
    s->has_bias = wk_call_in(p->call, 2) != NULL;
    return s;
}

/* The FP64 walk of spread. */
struct spread_walk {
    k_arith_fn *fn;
    const double *operand;
    double *y;
};

static void spread_f64(void *context, const struct cpu_bcast_run *r)
{
    const struct spread_walk *w = context;
    w->fn(w->y + r->offset[0], r->step[0], w->operand + r->offset[1], r->step[1], w->y + r->out,
          r->n);
}

/* y *= scale, or y += bias, of elements [i0, i1). */
static void spread(const struct cpu_backend *cpu, const struct rows_step *s,
                   const struct cpu_bcast *bcast, bool add, const void *operand, void *y, size_t i0,
                   size_t i1)
{
    struct spread_walk walk = {k_arith_for(add ? K_ADD : K_MUL, CM_FP64), operand, y};
    if (s->wide)
        cpu_bcast_walk(bcast, i0, i1, spread_f64, &walk);
    else
        cpu_bcast_f32(bcast, cpu->kernels->binary[add ? K_BINARY_add : K_BINARY_mul], y, operand, y,
                      i0, i1);
}

static void spread_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct rows_step *s = (const struct rows_step *)step;
    (void)thread;
    spread(cpu, s, &s->scale, false, run->in[1], run->out[0], i0, i1);
    if (s->has_bias)
        spread(cpu, s, &s->bias, true, run->in[2], run->out[0], i0, i1);
}

static enum cm_err spread_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct rows_step *s = (const struct rows_step *)step;
    cpu_split(cpu, step, run, rows_body, step->items, 1);
    cpu_split(cpu, step, run, spread_body, step->items * s->n, 1024);
    return CM_OK;
}

/* The operand has exactly the elements of one row. */
static bool is_row(const struct wk_fact *operand, const struct cm_shape *x, unsigned axis)
{
    unsigned skip = 0;
    if (!operand)
        return true;
    while (operand->shape.rank - skip > x->rank - axis && operand->shape.dims[skip] == 1)
        skip++;
    if (operand->shape.rank - skip != x->rank - axis)
        return false;
    for (unsigned i = axis; i < x->rank; i++)
        if (operand->shape.dims[i - axis + skip] != x->dims[i])
            return false;
    return true;
}

enum cm_err cpu_prepare_layer_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    unsigned axis;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_layer_norm, 0, ret_step);
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", -1), x->rank, &axis));
    struct rows_step *s = take_rows(p, cpu_product(x, 0, axis), cpu_product(x, axis, x->rank));
    if (!s)
        return CM_NOMEM;
    s->by_element =
        is_row(wk_call_in(p->call, 1), x, axis) && is_row(wk_call_in(p->call, 2), x, axis);
    if (!s->by_element) {
        s->step.run = spread_run;
        const struct cm_shape *scale[] = {x, &wk_call_in(p->call, 1)->shape};
        cpu_bcast_init(&s->scale, x, scale, 2);
        if (s->has_bias) {
            const struct cm_shape *bias[] = {x, &wk_call_in(p->call, 2)->shape};
            cpu_bcast_init(&s->bias, x, bias, 2);
        }
    }
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_instance_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_instance_norm, 0, ret_step);
    struct rows_step *s = take_rows(p, cpu_product(x, 0, 2), cpu_product(x, 2, x->rank));
    if (!s)
        return CM_NOMEM;
    s->planes = 1;
    s->channels = (size_t)x->dims[1];
    s->plane = s->n;
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_group_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    size_t groups = (size_t)wk_node_int(p->call->node, "num_groups", 1);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_group_norm, 0, ret_step);
    size_t in_group = (size_t)x->dims[1] / groups, plane = cpu_product(x, 2, x->rank);
    struct rows_step *s = take_rows(p, (size_t)x->dims[0] * groups, in_group * plane);
    if (!s)
        return CM_NOMEM;
    /* One scale per group is one plane per row. */
    bool by_group = p->call->node->opset < 21;
    s->planes = by_group ? 1 : in_group;
    s->channels = by_group ? groups : (size_t)x->dims[1];
    s->plane = by_group ? s->n : plane;
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- the rare kinds -------------------------------------------------------------------------- */

struct rare_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    struct k_reduce reduce; /* MeanVarianceNormalization */
    struct k_along along;   /* LpNormalization */
    unsigned p;
    struct k_lrn lrn;
};

static void lrn_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    struct k_lrn args = ((const struct rare_step *)step)->lrn;
    (void)cpu, (void)thread;
    args.x = run->in[0];
    args.y = run->out[0];
    k_lrn(&args, i0, i1);
}

static void lp_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                    const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct rare_step *s = (const struct rare_step *)step;
    (void)cpu, (void)thread;
    k_lp_norm(s->dtype, &s->along, s->p, run->in[0], run->out[0], i0, i1);
}

static void mean_variance_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct rare_step *s = (const struct rare_step *)step;
    (void)cpu, (void)thread;
    k_mean_variance(s->dtype, &s->reduce, run->in[0], run->out[0], i0, i1);
}

static struct rare_step *take_rare(struct cpu_prepare *p, cpu_body_fn *body, size_t items)
{
    struct rare_step *s = cpu_step_take(p, sizeof *s, body, items, 1,
                                        8 * (double)cpu_count(&wk_call_in(p->call, 0)->shape));
    if (s)
        s->dtype = wk_call_in(p->call, 0)->dtype;
    return s;
}

enum cm_err cpu_prepare_lrn(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_lrn, 0, ret_step);
    struct rare_step *s = take_rare(p, lrn_body, cpu_product(x, 0, 2));
    if (!s)
        return CM_NOMEM;
    s->lrn = (struct k_lrn){.dtype = s->dtype,
                            .channels = (size_t)x->dims[1],
                            .plane = cpu_product(x, 2, x->rank),
                            .size = (size_t)wk_node_int(node, "size", 1),
                            .alpha = (double)wk_node_float(node, "alpha", 1e-4f),
                            .beta = (double)wk_node_float(node, "beta", 0.75f),
                            .bias = (double)wk_node_float(node, "bias", 1.0f)};
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_lp_norm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    unsigned axis;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_lp_norm, 0, ret_step);
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", -1), x->rank, &axis));
    size_t outer = cpu_product(x, 0, axis), inner = cpu_product(x, axis + 1, x->rank);
    struct rare_step *s = take_rare(p, lp_body, outer * inner);
    if (!s)
        return CM_NOMEM;
    s->along = (struct k_along){outer, (size_t)x->dims[axis], inner};
    s->p = (unsigned)wk_node_int(p->call->node, "p", 2);
    *ret_step = &s->step;
    return CM_OK;
}

enum cm_err cpu_prepare_mean_variance(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    bool axes[CM_MAX_RANK];
    size_t items = 1;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_mean_variance, 0, ret_step);
    enum cm_err code = wk_mean_variance_axes(p->call->node, x->rank, p->err, axes);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < x->rank; i++)
        items *= axes[i] ? 1 : (size_t)x->dims[i];
    struct rare_step *s = take_rare(p, mean_variance_body, items);
    if (!s)
        return CM_NOMEM;
    k_reduce_init(x, axes, &s->reduce);
    *ret_step = &s->step;
    return CM_OK;
}
