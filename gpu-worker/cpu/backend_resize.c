/* CPU backend: Resize and Upsample. See backend_priv.h.
 *
 * nearest is a copy by tables (backend_pick.h). linear and cubic are one pass per axis, the last
 * axis first, each output a chain of products and sums over its taps in their order: the sums of
 * the standard's nested definition, so how passes are split over threads never shows. Coordinates
 * and weights are computed in double when the plan is made. FP32, FP16 and BF16 are resampled in
 * float, the other types in double; integers are truncated at the end, as the standard's
 * reference does. */
#include "gpu-worker/cpu/backend_pick.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/graph/infer_move.h"

#include <math.h>
#include <string.h>

#define MAX_TAPS ((size_t)1 << 26) /* of one axis */

/* ---- coordinates ----------------------------------------------------------------------------- */

enum transform {
    HALF_PIXEL,
    HALF_PIXEL_SYMMETRIC,
    PYTORCH_HALF_PIXEL,
    ALIGN_CORNERS,
    ASYMMETRIC,
    TF_HALF_PIXEL_FOR_NN,
    TF_CROP_AND_RESIZE,
};

/* How one axis is resampled. */
struct sampling {
    enum transform transform;
    enum wk_resize_mode mode;
    bool simple; /* nearest before opset 11: up to the next where shrinking, else down */
    const char *nearest;
    double cubic_a;
    bool antialias, exclude_outside, exact;
    int64_t in, out;
    double scale, roi_start, roi_end;
};

static enum transform transform_of(const struct wk_node *node)
{
    static const char *const names[] = {
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
        "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
    const char *given = wk_node_string(node, "coordinate_transformation_mode", "half_pixel");
    if (node->op == WK_OP_Upsample || node->opset < 11)
        return ASYMMETRIC;
    for (unsigned i = 0; i < CM_COUNT_OF(names); i++)
        if (strcmp(given, names[i]) == 0)
            return (enum transform)i;
    CM_ASSERT(!"checked when the model was loaded");
    return HALF_PIXEL;
}

/* x over the factor. Where sizes are given the quotient is rounded once, so that a place that is a
 * whole number comes out as one and floor and ceil do not miss it. */
static double over_scale(const struct sampling *s, double x)
{
    return s->exact ? x * (double)s->in / (double)s->out : x / s->scale;
}

/* Where output o lies on the input's axis; false: outside the crop. The length that the formulas
 * speak of is the exact product, as the standard's cases have it, not the rounded size. */
static bool origin(const struct sampling *s, int64_t o, double *ret)
{
    double x = (double)o, in = (double)s->in, length = s->exact ? (double)s->out : s->scale * in;
    switch (s->transform) {
    case HALF_PIXEL:
        *ret = over_scale(s, x + 0.5) - 0.5;
        return true;
    case HALF_PIXEL_SYMMETRIC:
        *ret = in / 2 * (1 - (double)s->out / length) + over_scale(s, x + 0.5) - 0.5;
        return true;
    case PYTORCH_HALF_PIXEL:
        *ret = s->out == 1 ? 0 : over_scale(s, x + 0.5) - 0.5;
        return true;
    case ALIGN_CORNERS:
        *ret = length == 1 ? 0 : x * (in - 1) / (length - 1);
        return true;
    case ASYMMETRIC:
        *ret = over_scale(s, x);
        return true;
    case TF_HALF_PIXEL_FOR_NN:
        *ret = over_scale(s, x + 0.5);
        return true;
    default:
        *ret = s->roi_start * (in - 1) +
               (length == 1 ? (s->roi_end - s->roi_start) * (in - 1) / 2
                            : x * (s->roi_end - s->roi_start) * (in - 1) / (length - 1));
        return *ret >= 0 && *ret <= in - 1;
    }
}

static int64_t clamp_place(double place, int64_t n)
{
    return !(place > 0) ? 0 : place >= (double)n ? n - 1 : (int64_t)place;
}

static uint32_t nearest_place(const struct sampling *s, int64_t o)
{
    double at, low, ratio;
    bool up;
    if (!origin(s, o, &at))
        return CPU_PICK_NONE;
    low = floor(at);
    ratio = at - low;
    if (ratio == 0)
        up = false;
    else if (s->simple)
        up = s->scale < 1;
    else if (strcmp(s->nearest, "round_prefer_floor") == 0)
        up = ratio > 0.5;
    else if (strcmp(s->nearest, "round_prefer_ceil") == 0)
        up = ratio >= 0.5;
    else
        up = strcmp(s->nearest, "ceil") == 0;
    return (uint32_t)clamp_place(low + up, s->in);
}

/* ---- taps ------------------------------------------------------------------------------------ */

/* n taps per output of one axis, o-major. */
struct taps {
    size_t n;
    const uint32_t *index;
    const double *weight;
    const bool *outside; /* per output: the extrapolation value instead; NULL: none */
};

/* Keys' cubic at distance x. */
static double cubic(double x, double a)
{
    x = fabs(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double triangle(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* The stretch of the filter: shrinking with antialias takes more of the input. */
static double stretch_of(const struct sampling *s)
{
    return s->antialias && s->scale < 1 ? s->scale : 1;
}

/* First tap relative to the place below the coordinate, and how many. */
static double first_tap(const struct sampling *s, double *ret_count)
{
    double reach = s->mode == WK_RESIZE_CUBIC ? 2 : 1;
    double first = floor(-reach / stretch_of(s)) + 1;
    *ret_count = 2 - 2 * first;
    return first;
}

static void weigh(const struct sampling *s, size_t n, double at, double first, uint32_t *index,
                  double *weight)
{
    double low = floor(at), stretch = stretch_of(s), sum = 0;
    for (size_t k = 0; k < n; k++) {
        double place = low + first + (double)k, distance = (place - at) * stretch;
        bool inside = place >= 0 && place <= (double)(s->in - 1);
        weight[k] = s->mode == WK_RESIZE_CUBIC ? cubic(distance, s->cubic_a) : triangle(distance);
        if (s->exclude_outside && !inside)
            weight[k] = 0;
        sum += weight[k];
        index[k] = (uint32_t)clamp_place(place, s->in);
    }
    if (!s->exclude_outside && stretch == 1)
        return; /* they add up to one by construction */
    for (size_t k = 0; k < n && sum != 0; k++)
        weight[k] /= sum;
}

static enum cm_err make_taps(struct cpu_prepare *p, const struct sampling *s, struct taps *ret)
{
    double count, first = first_tap(s, &count), at;
    size_t out = (size_t)s->out;
    if (count * (double)out > (double)MAX_TAPS)
        return wk_node_fail(p->err, CM_LIMIT, p->call->node, "scale %g needs too many weights",
                            s->scale);
    size_t n = (size_t)count;
    uint32_t *index = wk_arena_take(p->arena, out * n, sizeof *index);
    double *weight = wk_arena_take(p->arena, out * n, sizeof *weight);
    bool *outside = wk_arena_take(p->arena, out, sizeof *outside), any = false;
    if (!index || !weight || !outside)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    for (size_t o = 0; o < out; o++) {
        outside[o] = !origin(s, (int64_t)o, &at);
        any |= outside[o];
        if (!outside[o])
            weigh(s, n, at, first, index + o * n, weight + o * n);
    }
    *ret = (struct taps){n, index, weight, any ? outside : NULL};
    return CM_OK;
}

/* The axis stays as it is: every output is its own place with weight one. */
static bool is_untouched(const struct sampling *s, const struct taps *taps)
{
    if (s->in != s->out || taps->outside)
        return false;
    for (size_t i = 0; i < (size_t)s->out * taps->n; i++) {
        double want = taps->index[i] == i / taps->n && taps->weight[i] != 0 ? 1 : 0;
        if (taps->weight[i] != want)
            return false;
    }
    return true;
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* One axis: [outer][in][inner] to [outer][out][inner]. */
struct pass {
    size_t outer, in, out, inner;
    struct taps taps;
    const float *narrow; /* the weights, for FP32 */
};

struct resize_step {
    struct cpu_step step;
    enum cm_dtype dtype, work; /* work: FP32 or FP64 */
    size_t in_count, out_count;
    unsigned n_passes;
    struct pass passes[CM_MAX_RANK];
    size_t buffer_bytes; /* of each of two in the workspace */
    double extrapolation;
};

/* What cpu_split is running: one pass or one cast. */
struct resize_part {
    struct cpu_step step;
    const struct pass *pass;
    enum cm_dtype from, to;
    const void *x;
    void *y;
};

#define PASS(type, weights)                                                                      \
    static void combine_rows_##type(const struct pass *p, const type *w, const uint32_t *index,  \
                                    const type *x, type *restrict y)                             \
    {                                                                                            \
        size_t n = p->inner;                                                                     \
        const type *a = x + index[0] * n, *b = x + index[1] * n;                                 \
        if (p->taps.n == 2) {                                                                    \
            for (size_t i = 0; i < n; i++)                                                       \
                y[i] = w[0] * a[i] + w[1] * b[i];                                                \
            return;                                                                              \
        }                                                                                        \
        const type *c = x + index[2] * n, *d = x + index[3] * n;                                 \
        for (size_t i = 0; i < n; i++)                                                           \
            y[i] = ((w[0] * a[i] + w[1] * b[i]) + w[2] * c[i]) + w[3] * d[i];                    \
        for (size_t k = 4; k < p->taps.n; k++)                                                   \
            for (size_t i = 0; i < n; i++)                                                       \
                y[i] += w[k] * x[index[k] * n + i];                                              \
    }                                                                                            \
    static void combine_line_##type(const struct pass *p, const type *w, const type *x, type *y) \
    {                                                                                            \
        const uint32_t *index = p->taps.index;                                                   \
        size_t n = p->taps.n;                                                                    \
        for (size_t o = 0; o < p->out; o++, index += n, w += n) {                                \
            type sum = w[0] * x[index[0]] + w[1] * x[index[1]];                                  \
            for (size_t k = 2; k < n; k++)                                                       \
                sum += w[k] * x[index[k]];                                                       \
            y[o] = sum;                                                                          \
        }                                                                                        \
    }                                                                                            \
    static void pass_##type(const struct pass *p, const type *x, type *y, size_t i0, size_t i1)  \
    {                                                                                            \
        for (size_t i = i0; i < i1; i++) {                                                       \
            if (p->inner == 1) {                                                                 \
                combine_line_##type(p, weights, x + i * p->in, y + i * p->out);                  \
                continue;                                                                        \
            }                                                                                    \
            size_t o = i % p->out, tap = o * p->taps.n;                                          \
            combine_rows_##type(p, weights + tap, p->taps.index + tap,                           \
                                x + i / p->out * p->in * p->inner, y + i * p->inner);            \
        }                                                                                        \
    }
PASS(float, p->narrow)
PASS(double, p->taps.weight)

static void resize_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct resize_part *part = (const struct resize_part *)step;
    (void)cpu, (void)run, (void)thread;
    if (!part->pass)
        k_cast(part->from, part->to, (const char *)part->x + i0 * cm_dtype_size(part->from),
               (char *)part->y + i0 * cm_dtype_size(part->to), i1 - i0);
    else if (part->to == CM_FP32)
        pass_float(part->pass, part->x, part->y, i0, i1);
    else
        pass_double(part->pass, part->x, part->y, i0, i1);
}

static void cast_all(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, enum cm_dtype from, enum cm_dtype to, const void *x,
                     void *y, size_t count)
{
    struct resize_part part = {*step, NULL, from, to, x, y};
    cpu_split(cpu, &part.step, run, resize_body, count, 1024);
}

/* Places outside a crop get the value itself; the sums above would only come near it. */
static void extrapolate(const struct resize_step *s, void *y)
{
    for (unsigned k = 0; k < s->n_passes; k++) {
        const struct pass *p = &s->passes[k];
        /* Passes go from the last axis to the first: later ones changed what is outside. */
        size_t outer = p->outer, inner = p->inner;
        for (unsigned later = k + 1; later < s->n_passes; later++)
            outer = outer / s->passes[later].in * s->passes[later].out;
        for (size_t i = 0; p->taps.outside && i < outer * p->out; i++) {
            if (!p->taps.outside[i % p->out])
                continue;
            for (size_t e = i * inner; e < (i + 1) * inner; e++) {
                if (s->work == CM_FP32)
                    ((float *)y)[e] = (float)s->extrapolation;
                else
                    ((double *)y)[e] = s->extrapolation;
            }
        }
    }
}

static enum cm_err resize_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct resize_step *s = (const struct resize_step *)step;
    char *buffers[2] = {run->workspace, (char *)run->workspace + s->buffer_bytes};
    const void *x = run->in[0];
    unsigned next = 0;
    void *y = NULL;
    if (s->dtype != s->work) {
        cast_all(cpu, step, run, s->dtype, s->work, x, buffers[0], s->in_count);
        x = buffers[0];
        next = 1;
    }
    for (unsigned k = 0; k < s->n_passes; k++, next ^= 1) {
        const struct pass *p = &s->passes[k];
        bool last = k + 1 == s->n_passes && s->dtype == s->work;
        y = last ? run->out[0] : buffers[next];
        struct resize_part part = {*step, p, s->work, s->work, x, y};
        cpu_split(cpu, &part.step, run, resize_body, p->inner == 1 ? p->outer : p->outer * p->out,
                  1);
        x = y;
    }
    extrapolate(s, y);
    if (s->dtype != s->work)
        cast_all(cpu, step, run, s->work, s->dtype, x, run->out[0], s->out_count);
    return CM_OK;
}

/* ---- preparation ----------------------------------------------------------------------------- */

static struct sampling sampling_of(const struct cpu_prepare *p, const struct wk_resize *r,
                                   unsigned axis)
{
    const struct wk_node *node = p->call->node;
    return (struct sampling){
        .transform = transform_of(node),
        .mode = r->mode,
        .simple = node->op == WK_OP_Upsample || node->opset < 11,
        .nearest = wk_node_string(node, "nearest_mode", "round_prefer_floor"),
        .cubic_a = wk_node_float(node, "cubic_coeff_a", -0.75f),
        .antialias = wk_node_int(node, "antialias", 0) != 0,
        .exclude_outside = wk_node_int(node, "exclude_outside", 0) != 0,
        .exact = r->exact,
        .in = wk_call_in(p->call, 0)->shape.dims[axis],
        .out = r->out[axis],
        .scale = r->scale[axis],
        .roi_start = r->roi_start[axis],
        .roi_end = r->roi_end[axis],
    };
}

static enum cm_err prepare_nearest(struct cpu_prepare *p, const struct wk_resize *r,
                                   const struct cpu_step **ret_step)
{
    const struct wk_fact *out = wk_call_out(p->call);
    struct cpu_pick pick = {.value_input = -1};
    float value = wk_node_float(p->call->node, "extrapolation_value", 0);
    k_cast(CM_FP32, out->dtype, &value, &pick.value, 1);
    for (unsigned i = 0; i < out->shape.rank; i++) {
        struct sampling s = sampling_of(p, r, i);
        uint32_t *index = cpu_pick_table(p, s.out);
        if (!index)
            return CM_NOMEM;
        for (int64_t o = 0; o < s.out; o++)
            index[o] = nearest_place(&s, o);
        pick.index[i] = index;
    }
    return cpu_prepare_pick(p, &pick, ret_step);
}

/* Adds the axis's pass if it has one. dims are those of the tensor so far. */
static enum cm_err add_pass(struct cpu_prepare *p, struct resize_step *s, const struct wk_resize *r,
                            unsigned axis, struct cm_shape *dims)
{
    struct sampling sampling = sampling_of(p, r, axis);
    struct pass *pass = &s->passes[s->n_passes];
    enum cm_err code = make_taps(p, &sampling, &pass->taps);
    if (code != CM_OK || is_untouched(&sampling, &pass->taps))
        return code;
    size_t n = (size_t)sampling.out * pass->taps.n;
    float *narrow = wk_arena_take(p->arena, n, sizeof *narrow);
    if (!narrow)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    for (size_t i = 0; i < n; i++)
        narrow[i] = (float)pass->taps.weight[i];
    pass->narrow = narrow;
    pass->outer = cpu_product(dims, 0, axis);
    pass->in = (size_t)sampling.in;
    pass->out = (size_t)sampling.out;
    pass->inner = cpu_product(dims, axis + 1, dims->rank);
    dims->dims[axis] = sampling.out;
    s->n_passes++;
    size_t bytes;
    if (cm_shape_bytes(dims, s->work, &bytes) != CM_OK || bytes > WK_MAX_PLAN_BYTES / 2)
        return wk_node_fail(p->err, CM_LIMIT, p->call->node, "needs too much memory");
    s->buffer_bytes = bytes > s->buffer_bytes ? bytes : s->buffer_bytes;
    return CM_OK;
}

enum cm_err cpu_prepare_resize(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    struct cm_shape dims = x->shape;
    struct wk_resize r;
    enum cm_err code = wk_resize_resolve(p->call->node, p->call->facts, p->err, &r);
    if (code != CM_OK)
        return code;
    struct resize_step *s =
        cpu_step_take(p, sizeof *s, NULL, 0, 1, 4 * (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    s->step.run = resize_run;
    *ret_step = &s->step;
    if (cpu_count(&out->shape) == 0) /* not run */
        return CM_OK;
    if (r.mode == WK_RESIZE_NEAREST)
        return prepare_nearest(p, &r, ret_step);
    bool single = x->dtype == CM_FP32 || x->dtype == CM_FP16 || x->dtype == CM_BF16;
    s->dtype = x->dtype;
    s->work = single ? CM_FP32 : CM_FP64;
    s->in_count = cpu_count(&x->shape);
    s->out_count = cpu_count(&out->shape);
    s->extrapolation = wk_node_float(p->call->node, "extrapolation_value", 0);
    if (s->dtype != s->work)
        s->buffer_bytes = s->in_count * cm_dtype_size(s->work);
    for (unsigned axis = dims.rank; axis-- > 0 && code == CM_OK;)
        code = add_pass(p, s, &r, axis, &dims);
    if (code != CM_OK)
        return code;
    if (s->n_passes == 0) {
        struct cpu_pick same = {.value_input = -1};
        return cpu_prepare_pick(p, &same, ret_step);
    }
    if (!cm_size_align(s->buffer_bytes, WK_ALIGN, &s->buffer_bytes))
        return wk_node_fail(p->err, CM_LIMIT, p->call->node, "needs too much memory");
    p->workspace = s->n_passes > 1 || s->dtype != s->work ? 2 * s->buffer_bytes : 0;
    return CM_OK;
}
