/* CPU backend: GridSample and AffineGrid. See backend_priv.h.
 *
 * Sampling is in float where both the image and the grid fit it (FP32, FP16, BF16), otherwise in
 * double; other types are converted as a whole before and after. A sample is a nest of sums over
 * the taps of each axis, the first axis outermost. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <string.h>

enum padding { PAD_ZEROS, PAD_BORDER, PAD_REFLECTION };
enum grid_mode { GRID_NEAREST, GRID_LINEAR, GRID_CUBIC };

/* At most four taps per axis; index -1 stands for a zero beside the image. */
struct grid_taps {
    int64_t index[4];
    double weight[4];
};

struct grid_step {
    struct cpu_step step;
    enum grid_mode mode;
    enum padding padding;
    bool align_corners;
    unsigned rank, n_taps; /* spatial axes; taps per axis */
    int64_t dims[CM_MAX_RANK];
    size_t stride[CM_MAX_RANK];
    size_t channels, plane,
        points; /* plane: elements of an image's channel; points: of an output's */
    enum cm_dtype dtype, grid_dtype, work;
    size_t x_count, grid_count, y_count;
    size_t x_at, grid_at, y_at; /* in the workspace, where they are converted */
    bool copy_x, copy_grid, copy_y;
};

/* One conversion or the sampling itself, as cpu_split runs it. */
struct grid_part {
    struct cpu_step step;
    const struct grid_step *grid;
    enum cm_dtype from, to;
    const void *x, *places;
    void *y;
};

/* Mirrors v at the borders low and high until it lies between them. */
static double reflect(double v, double low, double high)
{
    double range = high - low, over = v < low ? low - v : v - high;
    if (v >= low && v <= high)
        return v;
    if (!(range > 0) || !isfinite(v))
        return low > 0 ? low : 0;
    over = fmod(over, 2 * range); /* exact, and so the same everywhere */
    bool even = over < range;
    double inward = even ? over : over - range;
    return (v < low) == even ? low + inward : high - inward;
}

/* The index that tap i of an axis of n elements reads; -1: none. */
static int64_t pixel(const struct grid_step *s, int64_t i, int64_t n)
{
    if (i >= 0 && i < n)
        return i;
    switch (s->padding) {
    case PAD_ZEROS:
        return -1;
    case PAD_BORDER:
        return i < 0 ? 0 : n - 1;
    default:
        break;
    }
    double low = s->align_corners ? 0 : -0.5;
    i = (int64_t)reflect((double)i, low, (double)(n - 1) - low);
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

static void cubic_weights(double x, double w[4])
{
    const double a = -0.75;
    w[0] = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a;
    w[1] = ((a + 2) * x - (a + 3)) * x * x + 1;
    w[2] = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1;
    w[3] = ((a * (2 - x) - 5 * a) * (2 - x) + 8 * a) * (2 - x) - 4 * a;
}

/* Halves go to the even neighbour, but away from zero in volumes, as the standard has it. */
static double round_place(const struct grid_step *s, double v)
{
    return s->rank == 3 ? round(v) : rint(v);
}

/* The taps of one axis for a place in elements. */
static void axis_taps(const struct grid_step *s, double v, int64_t n, struct grid_taps *ret)
{
    double low = s->align_corners ? 0 : -0.5, high = (double)(n - 1) - low;
    if (s->mode == GRID_NEAREST)
        v = round_place(s, v);
    if (s->padding == PAD_ZEROS) {
        if (!(v > -4 && v < (double)n + 4)) { /* not a number, too */
            for (unsigned k = 0; k < s->n_taps; k++)
                *ret = (struct grid_taps){{-1, -1, -1, -1}, {0, 0, 0, 0}};
            return;
        }
    } else if (s->padding == PAD_REFLECTION) {
        v = reflect(v, low, high);
    } else {
        /* A cubic's place stays between a tap inside and one on the border, as other runtimes have
         * it; the standard's reference moves it to the border. Nothing changes from two on. */
        double beyond = s->mode == GRID_CUBIC ? 2 : 0, most = (double)(n - 1) + beyond;
        v = v > most ? most : v >= -beyond ? v : -beyond;
    }
    double floor_v = floor(v), ratio = v - floor_v;
    int64_t first = (int64_t)floor_v - (s->mode == GRID_CUBIC);
    if (s->mode == GRID_NEAREST) {
        first = (int64_t)v;
        ret->weight[0] = 1;
    } else if (s->mode == GRID_LINEAR) {
        ret->weight[0] = 1 - ratio;
        ret->weight[1] = ratio;
    } else {
        cubic_weights(ratio, ret->weight);
    }
    for (unsigned k = 0; k < s->n_taps; k++)
        ret->index[k] = pixel(s, first + k, n);
}

/* float: coordinates are those of float arithmetic, as in other runtimes, so that ties and borders
 * fall alike. */
#define SAMPLE(type)                                                                               \
    static void places_##type(const struct grid_step *s, const type *grid, struct grid_taps *taps) \
    {                                                                                              \
        for (unsigned d = 0; d < s->rank; d++) {                                                   \
            type n = ((const volatile type *)grid)[s->rank - 1 - d], length = (type)s->dims[d];    \
            type v = s->align_corners ? (n + 1) / 2 * (length - 1) : ((n + 1) * length - 1) / 2;   \
            axis_taps(s, (double)v, s->dims[d], &taps[d]);                                         \
        }                                                                                          \
    }                                                                                              \
    static type nest_##type(const struct grid_step *s, const type *x,                              \
                            const struct grid_taps *taps, unsigned d)                              \
    {                                                                                              \
        type sum = 0;                                                                              \
        for (unsigned k = 0; k < s->n_taps; k++) {                                                 \
            int64_t i = taps[d].index[k];                                                          \
            type value = 0;                                                                        \
            if (i >= 0 && d + 1 == s->rank)                                                        \
                value = x[i];                                                                      \
            else if (i >= 0)                                                                       \
                value = nest_##type(s, x + (size_t)i * s->stride[d], taps, d + 1);                 \
            value = (type)taps[d].weight[k] * value;                                               \
            sum = k == 0 ? value : sum + value;                                                    \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
    static void sample_##type(const struct grid_step *s, const type *x, const type *grid, type *y, \
                              size_t i0, size_t i1)                                                \
    {                                                                                              \
        struct grid_taps taps[CM_MAX_RANK];                                                        \
        for (size_t i = i0; i < i1; i++) {                                                         \
            size_t n = i / s->points, point = i % s->points;                                       \
            places_##type(s, grid + i * s->rank, taps);                                            \
            for (size_t c = 0; c < s->channels; c++) {                                             \
                size_t image = n * s->channels + c;                                                \
                y[image * s->points + point] = nest_##type(s, x + image * s->plane, taps, 0);      \
            }                                                                                      \
        }                                                                                          \
    }
SAMPLE(float)
SAMPLE(double)

/* Bytes are moved, not computed with, where the nearest is taken of a type that is not the work's.
 */
static void move_nearest(const struct grid_step *s, const char *x, const void *grid, char *y,
                         size_t i0, size_t i1)
{
    size_t element = cm_dtype_size(s->dtype);
    struct grid_taps taps[CM_MAX_RANK];
    for (size_t i = i0; i < i1; i++) {
        size_t n = i / s->points, point = i % s->points, from = 0;
        bool inside = true;
        if (s->work == CM_FP32)
            places_float(s, (const float *)grid + i * s->rank, taps);
        else
            places_double(s, (const double *)grid + i * s->rank, taps);
        for (unsigned d = 0; d < s->rank; d++) {
            inside = inside && taps[d].index[0] >= 0;
            from += inside ? (size_t)taps[d].index[0] * s->stride[d] : 0;
        }
        for (size_t c = 0; c < s->channels; c++) {
            size_t image = n * s->channels + c;
            char *to = y + (image * s->points + point) * element;
            if (inside)
                memcpy(to, x + (image * s->plane + from) * element, element);
            else
                memset(to, 0, element);
        }
    }
}

static void grid_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct grid_part *part = (const struct grid_part *)step;
    (void)cpu, (void)run, (void)thread;
    if (!part->grid)
        k_cast(part->from, part->to, (const char *)part->x + i0 * cm_dtype_size(part->from),
               (char *)part->y + i0 * cm_dtype_size(part->to), i1 - i0);
    else if (part->grid->mode == GRID_NEAREST)
        move_nearest(part->grid, part->x, part->places, part->y, i0, i1);
    else if (part->to == CM_FP32)
        sample_float(part->grid, part->x, part->places, part->y, i0, i1);
    else
        sample_double(part->grid, part->x, part->places, part->y, i0, i1);
}

static const void *convert(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run, enum cm_dtype from, enum cm_dtype to,
                           const void *x, void *y, size_t count)
{
    struct grid_part part = {*step, NULL, from, to, x, NULL, y};
    cpu_split(cpu, &part.step, run, grid_body, count, 1024);
    return y;
}

static enum cm_err grid_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    const struct grid_step *s = (const struct grid_step *)step;
    char *room = run->workspace;
    const void *x = run->in[0], *grid = run->in[1];
    void *y = run->out[0];
    if (s->copy_x)
        x = convert(cpu, step, run, s->dtype, s->work, x, room + s->x_at, s->x_count);
    if (s->copy_grid)
        grid =
            convert(cpu, step, run, s->grid_dtype, s->work, grid, room + s->grid_at, s->grid_count);
    if (s->copy_y)
        y = room + s->y_at;
    struct grid_part part = {*step, s, s->work, s->work, x, grid, y};
    cpu_split(cpu, &part.step, run, grid_body, step->items, 1);
    if (s->copy_y)
        convert(cpu, step, run, s->work, s->dtype, y, run->out[0], s->y_count);
    return CM_OK;
}

/* Adds room for count elements of the work's type; its place in *ret_at. */
static bool take_room(struct cpu_prepare *p, enum cm_dtype work, size_t count, size_t *ret_at)
{
    size_t bytes;
    *ret_at = p->workspace;
    return cm_size_mul(count, cm_dtype_size(work), &bytes) &&
           cm_size_align(bytes, WK_ALIGN, &bytes) &&
           cm_size_add(p->workspace, bytes, &p->workspace);
}

static void read_modes(const struct wk_node *node, struct grid_step *s)
{
    const char *mode = wk_node_string(node, "mode", "linear");
    const char *padding = wk_node_string(node, "padding_mode", "zeros");
    s->mode = strcmp(mode, "nearest") == 0 ? GRID_NEAREST
              : strstr(mode, "cubic")      ? GRID_CUBIC
                                           : GRID_LINEAR;
    s->n_taps = s->mode == GRID_NEAREST ? 1 : s->mode == GRID_LINEAR ? 2 : 4;
    s->padding = padding[0] == 'z' ? PAD_ZEROS : padding[0] == 'b' ? PAD_BORDER : PAD_REFLECTION;
    s->align_corners = wk_node_int(node, "align_corners", 0) != 0;
}

static bool fits_float(enum cm_dtype dtype)
{
    return dtype == CM_FP32 || dtype == CM_FP16 || dtype == CM_BF16;
}

enum cm_err cpu_prepare_grid_sample(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *grid = wk_call_in(p->call, 1);
    const struct wk_fact *out = wk_call_out(p->call);
    struct grid_step *s =
        cpu_step_take(p, sizeof *s, NULL, 0, 1, 16 * (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    read_modes(p->call->node, s);
    s->step.run = grid_run;
    s->rank = x->shape.rank - 2u;
    *ret_step = &s->step;
    if (cpu_count(&out->shape) == 0) /* not run */
        return CM_OK;
    for (unsigned d = 0; d < s->rank; d++) {
        s->dims[d] = x->shape.dims[d + 2];
        s->stride[d] = cpu_product(&x->shape, d + 3, x->shape.rank);
        if (s->dims[d] == 0)
            return wk_node_fail(p->err, CM_INVALID, p->call->node, "the image is empty");
    }
    s->channels = (size_t)x->shape.dims[1];
    s->plane = cpu_product(&x->shape, 2, x->shape.rank);
    s->points = cpu_product(&out->shape, 2, out->shape.rank);
    s->step.items = (size_t)out->shape.dims[0] * s->points;
    s->dtype = x->dtype;
    s->grid_dtype = grid->dtype;
    bool narrow = fits_float(grid->dtype) && (fits_float(x->dtype) || s->mode == GRID_NEAREST);
    s->work = narrow ? CM_FP32 : CM_FP64;
    s->x_count = cpu_count(&x->shape);
    s->grid_count = cpu_count(&grid->shape);
    s->y_count = cpu_count(&out->shape);
    s->copy_x = s->copy_y = s->mode != GRID_NEAREST && s->dtype != s->work;
    s->copy_grid = s->grid_dtype != s->work;
    if ((s->copy_x && !take_room(p, s->work, s->x_count, &s->x_at)) ||
        (s->copy_grid && !take_room(p, s->work, s->grid_count, &s->grid_at)) ||
        (s->copy_y && !take_room(p, s->work, s->y_count, &s->y_at)))
        return wk_node_fail(p->err, CM_LIMIT, p->call->node, "needs too much memory");
    return CM_OK;
}

/* ---- AffineGrid ------------------------------------------------------------------------------ */

struct affine_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    bool align_corners;
    unsigned rank;
    size_t dims[3], points;
};

/* Coordinate i of n in [-1, 1]. */
static double line_place(size_t i, size_t n, bool align_corners)
{
    if (align_corners)
        return n > 1 ? -1 + 2 * (double)i / (double)(n - 1) : 0;
    return (2 * (double)i + 1) / (double)n - 1;
}

static void affine_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct affine_step *s = (const struct affine_step *)step;
    size_t element = cm_dtype_size(s->dtype);
    unsigned columns = s->rank + 1;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        double theta[12], place[3], out[3];
        size_t rest = i % s->points;
        k_cast(s->dtype, CM_FP64,
               (const char *)run->in[0] + i / s->points * s->rank * columns * element, theta,
               (size_t)s->rank * columns);
        /* Coordinates are in the reverse order of the axes. */
        for (unsigned d = s->rank; d-- > 0;) {
            place[s->rank - 1 - d] = line_place(rest % s->dims[d], s->dims[d], s->align_corners);
            rest /= s->dims[d];
        }
        for (unsigned k = 0; k < s->rank; k++) {
            const double *row = theta + k * columns;
            out[k] = row[0] * place[0];
            for (unsigned d = 1; d < s->rank; d++)
                out[k] += row[d] * place[d];
            out[k] += row[s->rank];
        }
        k_cast(CM_FP64, s->dtype, out, (char *)run->out[0] + i * s->rank * element, s->rank);
    }
}

enum cm_err cpu_prepare_affine_grid(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *out = wk_call_out(p->call);
    unsigned rank = out->shape.rank - 2u;
    struct affine_step *s =
        cpu_step_take(p, sizeof *s, affine_body, cpu_product(&out->shape, 0, rank + 1), 1,
                      16 * (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    s->dtype = out->dtype;
    s->align_corners = wk_node_int(p->call->node, "align_corners", 0) != 0;
    s->rank = rank;
    s->points = cpu_product(&out->shape, 1, rank + 1);
    for (unsigned d = 0; d < rank; d++)
        s->dims[d] = (size_t)out->shape.dims[d + 1];
    *ret_step = &s->step;
    return CM_OK;
}
