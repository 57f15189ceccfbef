/* CPU backend: boxes in images: RoiAlign, MaxRoiPool, NonMaxSuppression. See backend_priv.h.
 *
 * FP16 and BF16 are computed in float and rounded once; FP64 is computed in double. Boxes may lie
 * in memory that another process writes: each number is read once and bounded before it becomes an
 * index. */
#include "gpu-worker/cpu/backend_index.h"

#include "common/check.h"
#include "gpu-worker/cpu/half.h"

#include <math.h>
#include <string.h>

#define MAX_SAMPLES 1048576 /* of one output of RoiAlign */

/* ---- RoiAlign -------------------------------------------------------------------------------- */

struct roi_step {
    struct cpu_step step;
    struct cpu_indices batch; /* RoiAlign */
    const struct wk_node *node;
    enum cm_dtype dtype;
    bool average, half_pixel;
    size_t images, channels, height, width;
    size_t out_height, out_width;
    int64_t sampling;
    double scale;
};

/* Any float type as a double, exactly; read once. */
static double number_at(enum cm_dtype dtype, const void *x, size_t i)
{
    switch (dtype) {
    case CM_FP16:
        return half_to_float(((const volatile uint16_t *)x)[i]);
    case CM_BF16:
        return bfloat_to_float(((const volatile uint16_t *)x)[i]);
    case CM_FP32:
        return ((const volatile float *)x)[i];
    default:
        return ((const volatile double *)x)[i];
    }
}

static void store_number(enum cm_dtype dtype, void *y, size_t i, double v)
{
    switch (dtype) {
    case CM_FP16:
        ((uint16_t *)y)[i] = float_to_half((float)v);
        break;
    case CM_BF16:
        ((uint16_t *)y)[i] = float_to_bfloat((float)v);
        break;
    case CM_FP32:
        ((float *)y)[i] = (float)v;
        break;
    default:
        ((double *)y)[i] = v;
    }
}

/* One box as samples: bins of grid[] samples each. Index 0 is the height. */
struct roi {
    double start[2], bin[2];
    int64_t grid[2];
};

/* false: too many samples, or not numbers. Boxes are float where the tensor is not FP64, and so is
 * the arithmetic that decides the number of samples. */
static bool read_roi(const struct roi_step *s, const void *rois, size_t r, struct roi *ret)
{
    double offset = s->half_pixel ? 0.5 : 0;
    size_t out[2] = {s->out_height, s->out_width};
    for (unsigned d = 0; d < 2; d++) {
        double begin = number_at(s->dtype, rois, 4 * r + 1 - d) * s->scale - offset;
        double end = number_at(s->dtype, rois, 4 * r + 3 - d) * s->scale - offset;
        if (s->dtype != CM_FP64) {
            begin = (float)begin;
            end = (float)end;
        }
        double extent = end - begin;
        if (!s->half_pixel && extent < 1)
            extent = 1;
        ret->start[d] = begin;
        ret->bin[d] = extent / (double)out[d];
        double samples = s->sampling > 0 ? (double)s->sampling : ceil(ret->bin[d]);
        if (!isfinite(begin) || !(samples <= MAX_SAMPLES))
            return false;
        ret->grid[d] = samples > 0 ? (int64_t)samples : 0;
    }
    return ret->grid[0] * ret->grid[1] <= MAX_SAMPLES;
}

/* The two places of one axis and the weight of the second; false outside the image. */
static bool sample_axis(double at, size_t n, size_t ret_place[2], double *ret_weight)
{
    if (!(at >= -1 && at <= (double)n) || n == 0)
        return false;
    at = at < 0 ? 0 : at;
    ret_place[0] = (size_t)at;
    if (ret_place[0] + 1 >= n) {
        ret_place[0] = ret_place[1] = n - 1;
        *ret_weight = 0;
    } else {
        ret_place[1] = ret_place[0] + 1;
        *ret_weight = at - (double)ret_place[0];
    }
    return true;
}

/* The four weighted corners of a sample; zeros outside. */
static void sample_corners(const struct roi_step *s, const void *x, size_t plane, double y_at,
                           double x_at, double ret[4])
{
    size_t row[2], column[2];
    double ly, lx;
    ret[0] = ret[1] = ret[2] = ret[3] = 0;
    if (!sample_axis(y_at, s->height, row, &ly) || !sample_axis(x_at, s->width, column, &lx))
        return;
    for (unsigned k = 0; k < 4; k++) {
        double weight = (k & 2 ? ly : 1 - ly) * (k & 1 ? lx : 1 - lx);
        size_t at = (plane * s->height + row[k >> 1]) * s->width + column[k & 1];
        ret[k] = weight * number_at(s->dtype, x, at);
    }
}

/* One output. Maximum is over weighted corners, not over interpolated samples: so the standard's
 * reference has it, and other runtimes with it. */
static double pool_bin(const struct roi_step *s, const struct roi *roi, const void *x, size_t plane,
                       size_t py, size_t px)
{
    double result = 0, corners[4];
    bool any = false;
    for (int64_t iy = 0; iy < roi->grid[0]; iy++)
        for (int64_t ix = 0; ix < roi->grid[1]; ix++) {
            double y_at = roi->start[0] + (double)py * roi->bin[0] +
                          ((double)iy + 0.5) * roi->bin[0] / (double)roi->grid[0];
            double x_at = roi->start[1] + (double)px * roi->bin[1] +
                          ((double)ix + 0.5) * roi->bin[1] / (double)roi->grid[1];
            sample_corners(s, x, plane, y_at, x_at, corners);
            if (s->average) {
                result += corners[0] + corners[1] + corners[2] + corners[3];
                continue;
            }
            for (unsigned k = 0; k < 4; k++, any = true)
                if (!any || corners[k] > result)
                    result = corners[k];
        }
    int64_t count = roi->grid[0] * roi->grid[1];
    return s->average && count > 1 ? result / (double)count : result;
}

/* Items are boxes times channels. */
static void roi_align_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct roi_step *s = (const struct roi_step *)step;
    size_t pooled = s->out_height * s->out_width;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t r = i / s->channels, image;
        struct roi roi;
        int64_t given = cpu_index_read(&s->batch, run, r);
        image = (size_t)given;
        if (given < 0 || image >= s->images || !read_roi(s, run->in[1], r, &roi)) {
            cpu_bad_note(run, r);
            continue;
        }
        for (size_t k = 0; k < pooled; k++)
            store_number(s->dtype, run->out[0], i * pooled + k,
                         pool_bin(s, &roi, run->in[0], image * s->channels + i % s->channels,
                                  k / s->out_width, k % s->out_width));
    }
}

static enum cm_err roi_align_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                 const struct wk_run *run)
{
    const struct roi_step *s = (const struct roi_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, roi_align_body, step->items, 1);
    if (!cpu_bad_any(run, &bad))
        return CM_OK;
    int64_t image = cpu_index_read(&s->batch, run, bad);
    if (image < 0 || (uint64_t)image >= s->images)
        return wk_node_fail(run->err, CM_INVALID, s->node, "input 2: index %lld of %zu images",
                            (long long)image, s->images);
    return wk_node_fail(run->err, CM_INVALID, s->node,
                        "input 1: box %zu is not finite or too large to sample", bad);
}

static struct roi_step *take_rois(struct cpu_prepare *p)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    struct roi_step *s = cpu_step_take(p, sizeof *s, NULL, cpu_product(&out->shape, 0, 2), 1,
                                       64 * (double)cpu_count(&out->shape));
    if (!s)
        return NULL;
    s->node = p->call->node;
    s->dtype = x->dtype;
    s->images = (size_t)x->shape.dims[0];
    s->channels = (size_t)x->shape.dims[1];
    s->height = (size_t)x->shape.dims[2];
    s->width = (size_t)x->shape.dims[3];
    s->out_height = (size_t)out->shape.dims[2];
    s->out_width = (size_t)out->shape.dims[3];
    s->scale = wk_node_float(p->call->node, "spatial_scale", 1);
    return s;
}

enum cm_err cpu_prepare_roi_align(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const char *transform = wk_node_string(node, "coordinate_transformation_mode", "half_pixel");
    struct roi_step *s = take_rois(p);
    if (!s)
        return CM_NOMEM;
    s->step.run = roi_align_run;
    s->batch = cpu_indices_of(p, 2);
    s->average = strcmp(wk_node_string(node, "mode", "avg"), "avg") == 0;
    s->half_pixel = node->opset >= 16 && strcmp(transform, "half_pixel") == 0;
    s->sampling = wk_node_int(node, "sampling_ratio", 0);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- MaxRoiPool ------------------------------------------------------------------------------ */

/* A coordinate as an integer that arithmetic cannot overflow. */
static int64_t bounded(double v)
{
    return !(v > -0x1p31) ? -((int64_t)1 << 31) : v > 0x1p31 ? (int64_t)1 << 31 : (int64_t)v;
}

static int64_t clamp(int64_t v, size_t n)
{
    return v < 0 ? 0 : v > (int64_t)n ? (int64_t)n : v;
}

/* Places [*ret_begin, *ret_end) of bin i of n between the rounded ends of a box. */
static void pool_range(int64_t begin, int64_t end, size_t i, size_t n, size_t length,
                       int64_t *ret_begin, int64_t *ret_end)
{
    double extent = end - begin + 1 > 1 ? (double)(end - begin + 1) : 1;
    float bin = (float)extent / (float)n;
    *ret_begin = clamp(begin + bounded(floorf((float)i * bin)), length);
    *ret_end = clamp(begin + bounded(ceilf((float)(i + 1) * bin)), length);
}

static void max_roi_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct roi_step *s = (const struct roi_step *)step;
    size_t pooled = s->out_height * s->out_width;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t r = i / s->channels;
        int64_t box[4];
        double image = number_at(s->dtype, run->in[1], 5 * r);
        if (!(image >= 0 && image < (double)s->images)) {
            cpu_bad_note(run, r);
            continue;
        }
        for (unsigned k = 0; k < 4; k++)
            box[k] = bounded(round(number_at(s->dtype, run->in[1], 5 * r + 1 + k) * s->scale));
        size_t plane = (size_t)image * s->channels + i % s->channels;
        for (size_t k = 0; k < pooled; k++) {
            int64_t y0, y1, x0, x1;
            double best = 0;
            pool_range(box[1], box[3], k / s->out_width, s->out_height, s->height, &y0, &y1);
            pool_range(box[0], box[2], k % s->out_width, s->out_width, s->width, &x0, &x1);
            for (int64_t y = y0; y < y1; y++)
                for (int64_t x = x0; x < x1; x++) {
                    double v = number_at(s->dtype, run->in[0],
                                         (plane * s->height + (size_t)y) * s->width + (size_t)x);
                    best = (y == y0 && x == x0) || v > best || isnan(v) ? v : best;
                }
            store_number(s->dtype, run->out[0], i * pooled + k, best);
        }
    }
}

static enum cm_err max_roi_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    const struct roi_step *s = (const struct roi_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, max_roi_body, step->items, 1);
    if (!cpu_bad_any(run, &bad))
        return CM_OK;
    return wk_node_fail(run->err, CM_INVALID, s->node, "input 1: index %g of %zu images",
                        number_at(s->dtype, run->in[1], 5 * bad), s->images);
}

enum cm_err cpu_prepare_max_roi_pool(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct roi_step *s = take_rois(p);
    if (!s)
        return CM_NOMEM;
    s->step.run = max_roi_run;
    p->workspace += sizeof(_Atomic size_t);
    *ret_step = &s->step;
    return CM_OK;
}
