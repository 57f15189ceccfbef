/* Resampling and sampling against nested loops in double precision that are written from the
 * operators' definitions, over modes, ranks, factors and element types, on one and two threads. */
#include "tests/engine/kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 99;

static int pick(int least, int most)
{
    return kit_pick(&random_state, least, most);
}

/* Values that FP16, BF16 and the 8-bit integers hold exactly. */
static double *values(size_t count, enum cm_dtype dtype)
{
    double *data = calloc(count + 1, sizeof *data);
    assert_non_null(data);
    for (size_t i = 0; i < count; i++)
        data[i] = dtype == CM_UINT8 ? pick(0, 127) : pick(-127, 127);
    return data;
}

static uint16_t half_of_integer(int v, bool brain)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (brain)
        return (uint16_t)(bits >> 16);
    if (v == 0)
        return 0;
    return (uint16_t)((bits >> 16 & 0x8000u) | ((bits >> 23 & 0xff) - 112) << 10 |
                      (bits >> 13 & 0x3ff));
}

static double value_at(enum cm_dtype dtype, const void *data, size_t i)
{
    switch (dtype) {
    case CM_FP64:
        return ((const double *)data)[i];
    case CM_FP32:
        return ((const float *)data)[i];
    case CM_UINT8:
        return ((const uint8_t *)data)[i];
    case CM_INT32:
        return ((const int32_t *)data)[i];
    case CM_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        float f;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    default: {
        uint16_t h = ((const uint16_t *)data)[i];
        double m = (h & 0x3ff) / 1024.0, sign = h & 0x8000 ? -1 : 1;
        int e = h >> 10 & 31;
        return sign * (e ? ldexp(1 + m, e - 15) : ldexp(m, -14));
    }
    }
}

static void *stored(enum cm_dtype dtype, const double *data, size_t count)
{
    char *out = calloc(count + 1, 8);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) {
        if (dtype == CM_FP64)
            ((double *)out)[i] = data[i];
        else if (dtype == CM_FP32)
            ((float *)out)[i] = (float)data[i];
        else if (dtype == CM_UINT8)
            ((uint8_t *)out)[i] = (uint8_t)data[i];
        else if (dtype == CM_INT32)
            ((int32_t *)out)[i] = (int32_t)data[i];
        else
            ((uint16_t *)out)[i] = half_of_integer((int)data[i], dtype == CM_BF16);
    }
    return out;
}

/* How far a result may be from the exact one: of the type's rounding, relative to the data. */
static double tolerance(enum cm_dtype dtype)
{
    return dtype == CM_FP64   ? 1e-11
           : dtype == CM_FP32 ? 1e-4
           : dtype == CM_FP16 ? 0.13
           : dtype == CM_BF16 ? 1
                              : 1.001; /* integers are truncated */
}

/* One run per number of threads; bytes are equal, and close to want. Frees m and want. */
static void check(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                  enum cm_dtype dtype, struct cm_shape shape, double *want, double allowed)
{
    void *got[2][1] = {{NULL}, {NULL}};
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        struct cm_shape got_shape;
        kit_load_model(&l, m, threads, NULL);
        kit_run(&l, shapes, inputs, got[threads - 1], &got_shape);
        kit_unload(&l);
        if (!cm_shape_equal(&got_shape, &shape)) {
            char a[96], b[96];
            fail_msg("shape %s, wanted %s", cm_shape_format(&got_shape, a, sizeof a),
                     cm_shape_format(&shape, b, sizeof b));
        }
    }
    for (size_t i = 0; i < kit_count(shape); i++) {
        double y = value_at(dtype, got[0][0], i);
        if (!(fabs(y - want[i]) <= allowed))
            fail_msg("element %zu is %.9g, wanted %.9g", i, y, want[i]);
    }
    assert_memory_equal(got[0][0], got[1][0], kit_count(shape) * cm_dtype_size(dtype));
    free(got[0][0]);
    free(got[1][0]);
    free(want);
    kit_free(m);
}

/* ---- Resize ---------------------------------------------------------------------------------- */

struct resize {
    const char *transform, *mode, *nearest;
    bool antialias, exclude_outside;
    double a, extrapolation;
    struct cm_shape x, y;
    double scale[CM_MAX_RANK], roi[2 * CM_MAX_RANK];
    const double *data;
};

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static double resize_origin(const struct resize *r, unsigned d, double x)
{
    double in = (double)r->x.dims[d], s = r->scale[d], length = in * s;
    double from = r->roi[d], to = r->roi[r->x.rank + d];
    if (is(r->transform, "align_corners"))
        return length == 1 ? 0 : x * (in - 1) / (length - 1);
    if (is(r->transform, "asymmetric"))
        return x / s;
    if (is(r->transform, "tf_half_pixel_for_nn"))
        return (x + 0.5) / s;
    if (is(r->transform, "pytorch_half_pixel") && r->y.dims[d] == 1)
        return 0;
    if (is(r->transform, "half_pixel_symmetric"))
        return in / 2 * (1 - (double)r->y.dims[d] / length) + (x + 0.5) / s - 0.5;
    if (is(r->transform, "tf_crop_and_resize"))
        return length == 1 ? from * (in - 1) + (to - from) * (in - 1) / 2
                           : from * (in - 1) + x * (to - from) * (in - 1) / (length - 1);
    return (x + 0.5) / s - 0.5;
}

static double filter(const struct resize *r, double x)
{
    x = fabs(x);
    if (is(r->mode, "linear"))
        return x < 1 ? 1 - x : 0;
    if (x <= 1)
        return (r->a + 2) * x * x * x - (r->a + 3) * x * x + 1;
    return x < 2 ? r->a * x * x * x - 5 * r->a * x * x + 8 * r->a * x - 4 * r->a : 0;
}

static int64_t nearest_of(const struct resize *r, double x)
{
    double low = floor(x), part = x - low;
    if (part == 0 || is(r->nearest, "floor"))
        return (int64_t)low;
    if (is(r->nearest, "ceil"))
        return (int64_t)low + 1;
    return (int64_t)low + (is(r->nearest, "round_prefer_ceil") ? part >= 0.5 : part > 0.5);
}

/* The value of axes d.. at output at[], for the input's axes before d at offset. */
static double interpolate(const struct resize *r, unsigned d, size_t offset, const int64_t *at,
                          bool *outside)
{
    if (d == r->x.rank)
        return r->data[offset];
    int64_t n = r->x.dims[d];
    double x = resize_origin(r, d, (double)at[d]), sum = 0, total = 0;
    if (is(r->transform, "tf_crop_and_resize") && (x < 0 || x > (double)(n - 1))) {
        *outside = true;
        return 0;
    }
    if (is(r->mode, "nearest")) {
        int64_t i = nearest_of(r, x);
        i = i < 0 ? 0 : i >= n ? n - 1 : i;
        return interpolate(r, d + 1, offset * (size_t)n + (size_t)i, at, outside);
    }
    double stretch = r->antialias && r->scale[d] < 1 ? r->scale[d] : 1;
    int64_t reach = (int64_t)ceil(2 / stretch) + 1;
    for (int64_t k = (int64_t)floor(x) - reach; k <= (int64_t)floor(x) + reach; k++) {
        double w = filter(r, ((double)k - x) * stretch);
        int64_t i = k < 0 ? 0 : k >= n ? n - 1 : k;
        if (w == 0 || (r->exclude_outside && i != k))
            continue;
        total += w;
        sum += w * interpolate(r, d + 1, offset * (size_t)n + (size_t)i, at, outside);
    }
    return sum / total;
}

static double *resize_all(const struct resize *r)
{
    double *want = calloc(kit_count(r->y) + 1, sizeof *want);
    assert_non_null(want);
    for (size_t i = 0; i < kit_count(r->y); i++) {
        int64_t at[CM_MAX_RANK];
        size_t rest = i;
        bool outside = false;
        for (unsigned d = r->y.rank; d-- > 0;) {
            at[d] = (int64_t)(rest % (size_t)r->y.dims[d]);
            rest /= (size_t)r->y.dims[d];
        }
        want[i] = interpolate(r, 0, 0, at, &outside);
        if (outside)
            want[i] = r->extrapolation;
    }
    return want;
}

/* A random geometry; factors whose floats are exact, so that ties fall alike. */
static struct resize random_resize(int round)
{
    static const char *const transforms[] = {
        "half_pixel",         "align_corners",        "asymmetric",          "pytorch_half_pixel",
        "tf_crop_and_resize", "half_pixel_symmetric", "tf_half_pixel_for_nn"};
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    static const char *const nearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                          "ceil"};
    static const double factors[] = {0.5, 0.25, 0.75, 1, 1.25, 1.5, 2, 3, 2.625};
    struct resize r = {.transform = transforms[round % 7],
                       .mode = modes[round % 3],
                       .nearest = nearest[round % 4],
                       .a = -0.75,
                       .extrapolation = 10};
    r.x.rank = r.y.rank = (uint8_t)(round % 11 == 0 ? 1 : pick(2, 4));
    r.antialias = round % 5 == 0 && !is(r.mode, "nearest");
    r.exclude_outside = round % 8 == 1 && is(r.mode, "cubic");
    for (unsigned d = 0; d < r.x.rank; d++) {
        bool still = r.x.rank > 2 && d + 2 < r.x.rank && round % 2;
        r.x.dims[d] = pick(still ? 1 : 4, 9);
        r.scale[d] = still ? 1 : factors[pick(0, 8)];
        r.y.dims[d] = (int64_t)floor((double)r.x.dims[d] * r.scale[d]);
        r.roi[d] = pick(-1, 3) / 8.0;
        r.roi[r.x.rank + d] = pick(5, 9) / 8.0;
        if (still) { /* the whole of it */
            r.roi[d] = 0;
            r.roi[r.x.rank + d] = 1;
        }
    }
    return r;
}

static void add_resize(struct kit_model *m, const struct resize *r, const char *inputs)
{
    kit_node(m, "Resize", inputs, "y");
    kit_attr_s(m, "mode", r->mode);
    kit_attr_s(m, "coordinate_transformation_mode", r->transform);
    if (is(r->mode, "nearest"))
        kit_attr_s(m, "nearest_mode", r->nearest);
    if (r->antialias)
        kit_attr_i(m, "antialias", 1);
    if (r->exclude_outside)
        kit_attr_i(m, "exclude_outside", 1);
    kit_attr_f(m, "cubic_coeff_a", (float)r->a);
    kit_attr_f(m, "extrapolation_value", (float)r->extrapolation);
}

static void resizes(void **state)
{
    static const enum cm_dtype dtypes[] = {CM_FP32, CM_FP32, CM_FP32,  CM_FP64,
                                           CM_FP16, CM_BF16, CM_INT32, CM_UINT8};
    (void)state;
    for (int round = 0; round < 420; round++) {
        struct resize r = random_resize(round);
        enum cm_dtype dtype = dtypes[round / 3 % 8];
        float scales[CM_MAX_RANK], roi[2 * CM_MAX_RANK];
        bool overshoots = is(r.mode, "cubic") && dtype == CM_UINT8;
        double *data = values(kit_count(r.x), dtype);
        void *x = stored(dtype, data, kit_count(r.x));
        const void *inputs[] = {x};
        r.data = data;
        double *want = resize_all(&r);
        for (unsigned d = 0; d < r.x.rank; d++)
            scales[d] = (float)r.scale[d];
        for (unsigned d = 0; d < 2u * r.x.rank; d++)
            roi[d] = (float)r.roi[d];
        for (size_t i = 0; overshoots && i < kit_count(r.y); i++)
            want[i] = want[i] < 0 ? 0 : want[i] > 255 ? 255 : want[i];
        struct kit_model *m = kit_model(19);
        kit_input(m, "x", dtype, r.x);
        kit_const(m, "s", CM_FP32, kit_shape(1, r.x.rank), scales);
        kit_const(m, "r", CM_FP32, kit_shape(1, 2 * r.x.rank), roi);
        add_resize(m, &r, "x,r,s");
        kit_output(m, "y", dtype, r.y);
        check(m, &r.x, inputs, dtype, r.y, want, is(r.mode, "nearest") ? 0 : tolerance(dtype));
        free(data);
        free(x);
    }
}

/* sizes for two axes by name, one factor for both or not; and work for more than one thread. */
static void sized(void **state)
{
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
    (void)state;
    for (int round = 0; round < 36; round++) {
        const char *policy = policies[round % 3];
        int h = pick(3, 40), w = pick(3, 40), to[2] = {pick(5, 90), pick(5, 90)};
        struct resize r = random_resize(4 * (round / 3)); /* transforms and modes mixed */
        double factor[2] = {(double)to[0] / w, (double)to[1] / h}, one;
        if (is(r.transform, "tf_crop_and_resize"))
            continue;
        if (is(r.mode, "nearest"))
            r.mode = "linear"; /* ties may fall differently here */
        one = is(policy, "not_larger") ? fmin(factor[0], factor[1]) : fmax(factor[0], factor[1]);
        r.x = kit_shape(4, 2, 3, h, w);
        r.y = r.x;
        r.scale[0] = r.scale[1] = 1;
        r.scale[3] = is(policy, "stretch") ? factor[0] : one;
        r.scale[2] = is(policy, "stretch") ? factor[1] : one;
        r.y.dims[3] = is(policy, "stretch") ? to[0] : (int64_t)floor(one * w + 0.5);
        r.y.dims[2] = is(policy, "stretch") ? to[1] : (int64_t)floor(one * h + 0.5);
        double *data = values(kit_count(r.x), CM_FP32);
        void *x = stored(CM_FP32, data, kit_count(r.x));
        const void *inputs[] = {x};
        r.data = data;
        struct kit_model *m = kit_model(19);
        kit_input(m, "x", CM_FP32, r.x);
        kit_ints(m, "z", 2, to[0], to[1]);
        add_resize(m, &r, "x,,,z");
        kit_attr_ints(m, "axes", 2, -1, 2);
        kit_attr_s(m, "keep_aspect_ratio_policy", policy);
        kit_output(m, "y", CM_FP32, r.y);
        check(m, &r.x, inputs, CM_FP32, r.y, resize_all(&r), 2e-4);
        free(data);
        free(x);
    }
}

/* The nearest pixel twice and thrice each way, of every size of element and large enough for
 * threads; and the two older operators, with factors in an attribute and below one. */
static void enlarged(void **state)
{
    static const enum cm_dtype dtypes[] = {CM_UINT8, CM_FP16, CM_FP32, CM_FP64};
    (void)state;
    for (int round = 0; round < 32; round++) {
        enum cm_dtype dtype = dtypes[round % 4] == CM_FP16 ? CM_BF16 : dtypes[round % 4];
        int opset = round % 8 < 4 ? 13 : round % 16 < 8 ? 10 : round % 2 ? 9 : 7;
        bool shrink = opset == 10 && round >= 16;
        float scales[4] = {1, 1, round % 3 ? 2 : 3, round % 3 ? 2 : 1};
        struct resize r = {.transform = "asymmetric",
                           .mode = "nearest",
                           .nearest = shrink ? "ceil" : "floor",
                           .x = kit_shape(4, 2, 5, 37, round % 5 ? 60 : 7)};
        if (shrink)
            scales[2] = scales[3] = 0.75f;
        r.y = r.x;
        for (int d = 0; d < 4; d++) {
            r.scale[d] = scales[d];
            r.y.dims[d] = (int64_t)floor((double)r.x.dims[d] * r.scale[d]);
        }
        double *data = values(kit_count(r.x), dtype);
        void *x = stored(dtype, data, kit_count(r.x));
        const void *inputs[] = {x};
        r.data = data;
        struct kit_model *m = kit_model(opset);
        kit_input(m, "x", dtype, r.x);
        if (opset == 7) {
            kit_node(m, "Upsample", "x", "y");
            kit_attr_s(m, "mode", "nearest");
            kit_attr_floats(m, "scales", 4, scales);
        } else {
            kit_const(m, "s", CM_FP32, kit_shape(1, 4), scales);
            kit_node(m, opset == 9 ? "Upsample" : "Resize", opset == 13 ? "x,,s" : "x,s", "y");
            kit_attr_s(m, "mode", "nearest");
        }
        if (opset == 13) {
            kit_attr_s(m, "coordinate_transformation_mode", "asymmetric");
            kit_attr_s(m, "nearest_mode", "floor");
        }
        kit_output(m, "y", dtype, r.y);
        check(m, &r.x, inputs, dtype, r.y, resize_all(&r), 0);
        free(data);
        free(x);
    }
}

/* ---- GridSample ------------------------------------------------------------------------------ */

struct grid {
    const char *mode, *padding;
    bool align;
    struct cm_shape x; /* [1][1][...] */
    const double *data;
};

static double mirror(double v, double low, double high)
{
    if (high <= low)
        return low;
    while (v < low || v > high)
        v = v < low ? 2 * low - v : 2 * high - v;
    return v;
}

static double grid_pixel(const struct grid *g, unsigned d, size_t offset, const double *at);

/* The pixel at integer i of axis d, or zero, with the axes behind it sampled. */
static double grid_tap(const struct grid *g, unsigned d, size_t offset, const double *at, int64_t i)
{
    int64_t n = g->x.dims[d];
    double low = g->align ? 0 : -0.5;
    if (i < 0 || i >= n) {
        if (is(g->padding, "zeros"))
            return 0;
        i = is(g->padding, "border") ? (i < 0 ? 0 : n - 1)
                                     : (int64_t)mirror((double)i, low, (double)(n - 1) - low);
    }
    return grid_pixel(g, d + 1, offset * (size_t)n + (size_t)i, at);
}

static double grid_pixel(const struct grid *g, unsigned d, size_t offset, const double *at)
{
    if (d == g->x.rank)
        return g->data[offset];
    const struct resize cubic = {.mode = "cubic", .a = -0.75}, linear = {.mode = "linear"};
    double n = (double)g->x.dims[d], v = at[g->x.rank - 1 - d], sum = 0;
    double low = g->align ? 0 : -0.5;
    v = g->align ? (v + 1) / 2 * (n - 1) : ((v + 1) * n - 1) / 2;
    if (is(g->mode, "nearest"))
        v = rint(v);
    if (is(g->padding, "border") && !is(g->mode, "cubic"))
        v = v < 0 ? 0 : v > n - 1 ? n - 1 : v;
    if (is(g->padding, "reflection"))
        v = mirror(v, low, n - 1 - low);
    if (is(g->mode, "nearest"))
        return grid_tap(g, d, offset, at, (int64_t)v);
    for (int k = -1; k <= 2; k++) {
        int64_t i = (int64_t)floor(v) + k;
        double w = filter(is(g->mode, "cubic") ? &cubic : &linear, (double)i - v);
        if (w != 0)
            sum += w * grid_tap(g, d, offset, at, i);
    }
    return sum;
}

static void grids(void **state)
{
    static const char *const modes[] = {"linear", "nearest", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    (void)state;
    for (int round = 0; round < 72; round++) {
        bool deep = round % 4 == 3, wide = round % 5 == 4;
        enum cm_dtype dtype = wide ? CM_FP64 : CM_FP32;
        struct grid g = {modes[round % 3], paddings[round / 3 % 3], round % 2, {0}, NULL};
        int n = 2, c = 3, points = round % 9 ? 7 : 3000, rank = deep ? 3 : 2;
        struct cm_shape x = deep ? kit_shape(5, n, c, 4, 3, 5) : kit_shape(4, n, c, 6, 5);
        struct cm_shape grid =
            deep ? kit_shape(5, n, 1, 2, points, 3) : kit_shape(4, n, 2, points, 2);
        struct cm_shape y = deep ? kit_shape(5, n, c, 1, 2, points) : kit_shape(4, n, c, 2, points);
        double *data = values(kit_count(x), CM_FP32), *places = calloc(kit_count(grid), 8);
        double *want = calloc(kit_count(y), 8);
        size_t plane = kit_count(x) / 6, per_image = (size_t)points * 2;
        assert_true(places && want);
        for (size_t i = 0; i < kit_count(grid); i++) /* exact in float, off the borders */
            places[i] = pick(-40, 40) / 32.0 + 1 / 128.0;
        g.x = (struct cm_shape){.rank = (uint8_t)rank};
        for (int d = 0; d < rank; d++)
            g.x.dims[d] = x.dims[d + 2];
        for (size_t i = 0; i < kit_count(y); i++) {
            size_t image = i / per_image, point = i % per_image;
            g.data = data + image * plane;
            want[i] = grid_pixel(&g, 0, 0, places + (image / 3 * per_image + point) * (size_t)rank);
        }
        void *x_data = stored(dtype, data, kit_count(x)), *grid_data = places;
        float *narrow = calloc(kit_count(grid), sizeof *narrow);
        assert_non_null(narrow);
        for (size_t i = 0; i < kit_count(grid); i++)
            narrow[i] = (float)places[i];
        if (!wide)
            grid_data = narrow;
        const void *inputs[] = {x_data, grid_data};
        struct cm_shape shapes[] = {x, grid};
        struct kit_model *m = kit_model(20);
        kit_input(m, "x", dtype, x);
        kit_input(m, "g", dtype, grid);
        kit_node(m, "GridSample", "x,g", "y");
        kit_attr_s(m, "mode", g.mode);
        kit_attr_s(m, "padding_mode", g.padding);
        kit_attr_i(m, "align_corners", g.align);
        kit_output(m, "y", dtype, y);
        check(m, shapes, inputs, dtype, y, want, wide ? 1e-9 : 2e-3);
        free(data);
        free(places);
        free(narrow);
        free(x_data);
    }
}

/* Places that are no numbers, and far away, read nothing that is not there. */
static void wild_grids(void **state)
{
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    static const char *const modes[] = {"bilinear", "nearest", "bicubic"};
    const float places[] = {NAN, 0, INFINITY, 0, -INFINITY, 0, 3e38f, -3e38f, 1e10f, -1e10f};
    const float x[6] = {1, 2, 3, 4, 5, 6};
    struct cm_shape shapes[] = {kit_shape(4, 1, 1, 2, 3), kit_shape(4, 1, 1, 5, 2)};
    const void *inputs[] = {x, places};
    (void)state;
    for (int round = 0; round < 18; round++) {
        struct kit_model *m = kit_model(16);
        struct kit_loaded l;
        void *got[1];
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "g", CM_FP32, shapes[1]);
        kit_node(m, "GridSample", "x,g", "y");
        kit_attr_s(m, "mode", modes[round % 3]);
        kit_attr_s(m, "padding_mode", paddings[round / 3 % 3]);
        kit_attr_i(m, "align_corners", round >= 9);
        kit_output(m, "y", CM_FP32, kit_shape(4, 1, 1, 1, 5));
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, shapes, inputs, got, NULL);
        for (int i = 0; i < 5; i++)
            assert_true(fabsf(((float *)got[0])[i]) <= 12);
        free(got[0]);
        kit_unload(&l);
        kit_free(m);
    }
}

/* ---- AffineGrid, Col2Im, boxes --------------------------------------------------------------- */

static void affine_grids(void **state)
{
    (void)state;
    for (int align = 0; align < 2; align++) {
        const double theta[6] = {0.5, -2, 3, 4, 0.25, -1};
        struct cm_shape shape = kit_shape(3, 1, 2, 3);
        double *want = calloc(3 * 4 * 2, sizeof *want);
        const void *inputs[] = {theta};
        assert_non_null(want);
        for (int i = 0; i < 12; i++) {
            double y = align ? -1 + i / 4 * 1.0 : (2 * (i / 4) + 1) / 3.0 - 1;
            double x = align ? -1 + i % 4 * 2 / 3.0 : (2 * (i % 4) + 1) / 4.0 - 1;
            want[2 * i] = theta[0] * x + theta[1] * y + theta[2];
            want[2 * i + 1] = theta[3] * x + theta[4] * y + theta[5];
        }
        struct kit_model *m = kit_model(20);
        kit_input(m, "t", CM_FP64, shape);
        kit_ints(m, "s", 4, 1, 5, 3, 4);
        kit_node(m, "AffineGrid", "t,s", "y");
        kit_attr_i(m, "align_corners", align);
        kit_output(m, "y", CM_FP64, kit_shape(4, 1, 3, 4, 2));
        check(m, &shape, inputs, CM_FP64, kit_shape(4, 1, 3, 4, 2), want, 1e-12);
    }
}

/* Blocks of 2 x 3 in an image of 4 x 5, with strides, dilations and padding. */
static void col2ims(void **state)
{
    const int stride[2] = {2, 1}, dilation[2] = {2, 1}, pad[2] = {1, 1}, image[2] = {4, 5};
    const int rows = (4 + 2 - 3) / 2 + 1, columns = (5 + 2 - 3) / 1 + 1;
    struct cm_shape shape = kit_shape(3, 2, 3 * 6, rows * columns);
    double *data = values(kit_count(shape), CM_FP32), *want = calloc(2 * 3 * 20, sizeof *want);
    void *x = stored(CM_FP32, data, kit_count(shape));
    const void *inputs[] = {x};
    (void)state;
    assert_non_null(want);
    for (size_t i = 0; i < kit_count(shape); i++) {
        int at = (int)(i % (size_t)(rows * columns)),
            part = (int)(i / (size_t)(rows * columns)) % 6;
        int plane = (int)(i / (size_t)(rows * columns)) / 6;
        int r = at / columns * stride[0] + part / 3 * dilation[0] - pad[0];
        int c = at % columns * stride[1] + part % 3 * dilation[1] - pad[1];
        if (r >= 0 && r < image[0] && c >= 0 && c < image[1])
            want[plane * 20 + r * 5 + c] += data[i];
    }
    struct kit_model *m = kit_model(18);
    kit_input(m, "x", CM_FP32, shape);
    kit_ints(m, "i", 2, image[0], image[1]);
    kit_ints(m, "b", 2, 2, 3);
    kit_node(m, "Col2Im", "x,i,b", "y");
    kit_attr_ints(m, "strides", 2, stride[0], stride[1]);
    kit_attr_ints(m, "dilations", 2, dilation[0], dilation[1]);
    kit_attr_ints(m, "pads", 4, pad[0], pad[1], pad[0], pad[1]);
    kit_output(m, "y", CM_FP32, kit_shape(4, 2, 3, 4, 5));
    check(m, &shape, inputs, CM_FP32, kit_shape(4, 2, 3, 4, 5), want, 0);
    free(data);
    free(x);
}

/* Whole pixels: a sample at a pixel's centre is the pixel. */
static void aligned_boxes(void **state)
{
    const float x[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float rois[8] = {0, 0, 4, 4, 2, 0, 4, 2};
    const int64_t batch[2] = {0, 0};
    struct cm_shape shapes[] = {kit_shape(4, 1, 1, 4, 4), kit_shape(2, 2, 4), kit_shape(1, 2)};
    const void *inputs[] = {x, rois, batch};
    (void)state;
    for (int max = 0; max < 2; max++) {
        /* Bins of 2 x 2 pixels with 2 x 2 samples, and of one pixel with one. */
        static const double average[8] = {2.5, 4.5, 10.5, 12.5, 2, 3, 6, 7};
        static const double most[8] = {5, 7, 13, 15, 2, 3, 6, 7};
        double *want = calloc(8, sizeof *want);
        assert_non_null(want);
        memcpy(want, max ? most : average, sizeof average);
        struct kit_model *m = kit_model(16);
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "r", CM_FP32, shapes[1]);
        kit_input(m, "b", CM_INT64, shapes[2]);
        kit_node(m, "RoiAlign", "x,r,b", "y");
        kit_attr_i(m, "output_height", 2);
        kit_attr_i(m, "output_width", 2);
        kit_attr_s(m, "mode", max ? "max" : "avg");
        kit_output(m, "y", CM_FP32, kit_shape(4, 2, 1, 2, 2));
        check(m, shapes, inputs, CM_FP32, kit_shape(4, 2, 1, 2, 2), want, 1e-6);
    }
}

static void pooled_boxes(void **state)
{
    const float x[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float rois[10] = {0, 0, 0, 3, 3, 0, 2, 2, 9, 9}; /* the second leaves the image */
    struct cm_shape shapes[] = {kit_shape(4, 1, 1, 4, 4), kit_shape(2, 2, 5)};
    const void *inputs[] = {x, rois};
    double *want = calloc(8, sizeof *want);
    (void)state;
    assert_non_null(want);
    memcpy(want, (const double[8]){5, 7, 13, 15, 15, 0, 0, 0}, 8 * sizeof *want);
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, shapes[0]);
    kit_input(m, "r", CM_FP32, shapes[1]);
    kit_node(m, "MaxRoiPool", "x,r", "y");
    kit_attr_ints(m, "pooled_shape", 2, 2, 2);
    kit_output(m, "y", CM_FP32, kit_shape(4, 2, 1, 2, 2));
    check(m, shapes, inputs, CM_FP32, kit_shape(4, 2, 1, 2, 2), want, 0);
}

/* Boxes of an image that does not exist, without numbers, and too large to sample. */
static void bad_boxes(void **state)
{
    static const struct {
        const char *op;
        float number;
        int64_t image;
        const char *message;
    } cases[] = {
        {"RoiAlign", 1, 1, "input 2: index 1 of 1 images"},
        {"RoiAlign", 1, -1, "input 2: index -1 of 1 images"},
        {"RoiAlign", NAN, 0, "box 0 is not finite or too large"},
        {"RoiAlign", 1e30f, 0, "box 0 is not finite or too large"},
        {"MaxRoiPool", 1, 1, "input 1: index 1 of 1 images"},
        {"MaxRoiPool", 1, -1, "input 1: index -1 of 1 images"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool align = is(cases[i].op, "RoiAlign");
        float x[4] = {0}, rois[5] = {0, 0, cases[i].number, cases[i].number, 0};
        float five[5] = {(float)cases[i].image, 0, 0, 1, 1};
        struct kit_model *m = kit_model(16);
        struct kit_loaded l;
        struct cm_shape shapes[] = {kit_shape(4, 1, 1, 2, 2), kit_shape(2, 1, align ? 4 : 5)};
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "r", CM_FP32, shapes[1]);
        kit_const(m, "b", CM_INT64, kit_shape(1, 1), &cases[i].image);
        kit_node(m, cases[i].op, align ? "x,r,b" : "x,r", "y");
        if (!align)
            kit_attr_ints(m, "pooled_shape", 2, 1, 1);
        kit_output(m, "y", CM_FP32, kit_shape(4, 1, 1, 1, 1));
        kit_load_model(&l, m, 2, NULL);
        kit_run_refused(&l, shapes, (const void *[]){x, align ? rois : five}, CM_INVALID,
                        cases[i].op, cases[i].message);
        kit_unload(&l);
        kit_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resizes),      cmocka_unit_test(sized),
        cmocka_unit_test(enlarged),     cmocka_unit_test(grids),
        cmocka_unit_test(wild_grids),   cmocka_unit_test(affine_grids),
        cmocka_unit_test(col2ims),      cmocka_unit_test(aligned_boxes),
        cmocka_unit_test(pooled_boxes), cmocka_unit_test(bad_boxes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
