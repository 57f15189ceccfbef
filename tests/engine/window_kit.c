/* Models and windows of the tests of window operators; see window_kit.h. Test code, one thread. */
#include "tests/engine/window_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 2025;

int pick(int least, int most)
{
    return kit_pick(&random_state, least, most);
}

struct map_tensor random_tensor(enum cm_dtype dtype, struct cm_shape shape)
{
    struct map_tensor t = map_tensor(dtype, shape);
    for (size_t i = 0; i < t.count; i++)
        if (map_is_float(dtype))
            map_put(&t, i, (double)kit_float(&random_state));
        else
            map_put_int(&t, i, (map_int)kit_next(&random_state));
    return t;
}

struct map_tensor ints_of(enum cm_dtype dtype, struct cm_shape shape, const int64_t *values)
{
    struct map_tensor t = map_tensor(dtype, shape);
    for (size_t i = 0; i < t.count; i++)
        map_put_int(&t, i, values[i]);
    return t;
}

struct map_tensor numbers_of(enum cm_dtype dtype, struct cm_shape shape, const double *values)
{
    struct map_tensor t = map_tensor(dtype, shape);
    for (size_t i = 0; i < t.count; i++)
        map_put(&t, i, values[i]);
    return t;
}

void window_free(struct operand *in, int n)
{
    for (int i = 0; i < n; i++)
        map_free(&in[i].t);
}

/* ---- running --------------------------------------------------------------------------------- */

static const char *const output_names[] = {"y", "z", "u"};

static int declare(struct kit_model *m, const struct operand *in, int n, const void **ret_data,
                   struct cm_shape *ret_shapes)
{
    int n_in = 0;
    for (int i = 0; i < n; i++) {
        if (in[i].constant) {
            kit_const(m, in[i].name, in[i].t.dtype, in[i].t.shape, in[i].t.data);
            continue;
        }
        kit_input(m, in[i].name, in[i].t.dtype, in[i].t.shape);
        ret_data[n_in] = in[i].t.data;
        ret_shapes[n_in++] = in[i].t.shape;
    }
    return n_in;
}

void window_run(struct kit_model *m, const struct operand *in, int n, struct map_tensor *out,
                int n_out)
{
    const enum wk_isa isas[] = {WK_ISA_SCALAR, wk_isa_best(), WK_ISA_AVX2};
    const void *data[12];
    struct cm_shape shapes[12], got_shapes[3];
    (void)declare(m, in, n, data, shapes);
    for (int i = 0; i < n_out; i++)
        kit_output(m, output_names[i], out[i].dtype, out[i].shape);
    for (unsigned form = 0; form < 6; form++) {
        struct kit_loaded l;
        void *got[3];
        if (isas[form / 2] > wk_isa_best())
            continue;
        kit_load_model(&l, m, 1 + form % 2, &isas[form / 2]);
        kit_run(&l, shapes, data, got, got_shapes);
        for (int i = 0; i < n_out; i++) {
            char a[96], b[96];
            size_t bytes = out[i].count * cm_dtype_size(out[i].dtype);
            assert_int_equal(wk_model_signature(l.model)->outputs[i].dtype, out[i].dtype);
            if (!cm_shape_equal(&got_shapes[i], &out[i].shape))
                fail_msg("shape %s, wanted %s", cm_shape_format(&got_shapes[i], a, sizeof a),
                         cm_shape_format(&out[i].shape, b, sizeof b));
            if (form == 0)
                memcpy(out[i].data, got[i], bytes);
            else if (memcmp(out[i].data, got[i], bytes) != 0)
                fail_msg("output %d: %s on %u threads gives other bytes", i,
                         wk_isa_name(isas[form / 2]), 1 + form % 2);
            free(got[i]);
        }
        kit_unload(&l);
    }
    kit_free(m);
}

static void expect_error(enum cm_err got, const struct cm_error *err, enum cm_err code,
                         const char *part)
{
    if (got != code || !strstr(err->text, part))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", cm_err_name(code), part,
                 cm_err_name(got), got == CM_OK ? "" : err->text);
}

void window_refuse(struct kit_model *m, struct operand *in, int n, enum cm_err code,
                   const char *part)
{
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    const void *data[12];
    struct cm_shape shapes[12];
    size_t length;
    (void)declare(m, in, n, data, shapes);
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    void *bytes = kit_bytes(m, &length);
    expect_error(wk_model_parse(engine, bytes, length, NULL, &err, &model), &err, code, part);
    free(bytes);
    wk_model_destroy(model);
    wk_engine_destroy(engine);
    kit_free(m);
    window_free(in, n);
}

void window_refuse_run(struct kit_model *m, struct operand *in, int n, const struct map_tensor *out,
                       enum cm_err code, const char *part)
{
    struct kit_loaded l;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    const void *data[12];
    struct cm_shape shapes[12];
    (void)declare(m, in, n, data, shapes);
    kit_output(m, "y", out->dtype, out->shape);
    kit_load_model(&l, m, 1, NULL);
    enum cm_err got = wk_plan_create(l.model, shapes, &err, &plan);
    if (got == CM_OK) {
        void *y = kit_guarded(out->count * 8 + 8),
             *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
        got = wk_plan_run(plan, data, &y, scratch, &err);
        kit_guarded_free(scratch);
        kit_guarded_free(y);
        wk_plan_destroy(plan);
    }
    expect_error(got, &err, code, part);
    kit_unload(&l);
    kit_free(m);
    window_free(in, n);
}

/* ---- windows --------------------------------------------------------------------------------- */

void attr_list(struct kit_model *m, const char *name, int n, const int *v)
{
    assert_true(n >= 1 && n <= 6);
    if (n == 1)
        kit_attr_ints(m, name, 1, v[0]);
    else if (n == 2)
        kit_attr_ints(m, name, 2, v[0], v[1]);
    else if (n == 3)
        kit_attr_ints(m, name, 3, v[0], v[1], v[2]);
    else if (n == 4)
        kit_attr_ints(m, name, 4, v[0], v[1], v[2], v[3]);
    else if (n == 5)
        kit_attr_ints(m, name, 5, v[0], v[1], v[2], v[3], v[4]);
    else
        kit_attr_ints(m, name, 6, v[0], v[1], v[2], v[3], v[4], v[5]);
}

int extent_of(const struct geometry *g, int d)
{
    return (g->kernel[d] - 1) * g->dilation[d] + 1;
}

struct geometry random_geometry(int n)
{
    struct geometry g = {n,         {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
                         {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, {1, 1, 1}};
    for (int d = 3 - n; d < 3; d++) {
        g.kernel[d] = pick(1, n == 3 ? 3 : 5);
        g.stride[d] = pick(1, 3);
        g.dilation[d] = pick(1, 2);
        g.begin[d] = pick(0, g.kernel[d] - 1);
        g.end[d] = pick(0, g.kernel[d] - 1);
        g.in[d] = extent_of(&g, d) + pick(0, n == 3 ? 5 : 20);
        g.out[d] = (g.in[d] + g.begin[d] + g.end[d] - extent_of(&g, d)) / g.stride[d] + 1;
    }
    return g;
}

static size_t product(const int v[3])
{
    return (size_t)v[0] * (size_t)v[1] * (size_t)v[2];
}

size_t inputs_of(const struct geometry *g)
{
    return product(g->in);
}

size_t outputs_of(const struct geometry *g)
{
    return product(g->out);
}

size_t taps_of(const struct geometry *g)
{
    return product(g->kernel);
}

struct cm_shape planes(const struct geometry *g, int batch, int channels, const int size[3])
{
    struct cm_shape shape = {(uint8_t)(2 + g->n), {batch, channels}};
    for (int i = 0; i < g->n; i++)
        shape.dims[2 + i] = size[3 - g->n + i];
    return shape;
}

void window_attrs(struct kit_model *m, const struct geometry *g, bool dilations, bool pads)
{
    int first = 3 - g->n, both[6];
    attr_list(m, "kernel_shape", g->n, &g->kernel[first]);
    attr_list(m, "strides", g->n, &g->stride[first]);
    if (dilations)
        attr_list(m, "dilations", g->n, &g->dilation[first]);
    for (int i = 0; i < g->n; i++) {
        both[i] = g->begin[first + i];
        both[g->n + i] = g->end[first + i];
    }
    if (pads)
        attr_list(m, "pads", 2 * g->n, both);
}

int coordinate(const int size[3], size_t at, int d)
{
    for (int i = 2; i > d; i--)
        at /= (size_t)size[i];
    return (int)(at % (size_t)size[d]);
}

long under(const struct geometry *g, size_t o, size_t t)
{
    long at = 0;
    for (int d = 0; d < 3; d++) {
        int place = coordinate(g->out, o, d) * g->stride[d] - g->begin[d] +
                    coordinate(g->kernel, t, d) * g->dilation[d];
        if (place < 0 || place >= g->in[d])
            return -1;
        at = at * g->in[d] + place;
    }
    return at;
}
