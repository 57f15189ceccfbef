/* Operators of any element type against references; see typed_kit.h. Test code, one thread. */
#include "tests/engine/typed_kit.h"

#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 77;

double *typed_room(size_t count)
{
    double *v = calloc(count + 1, sizeof *v);
    assert_non_null(v);
    return v;
}

struct typed_around typed_around(struct cm_shape shape, int axis)
{
    struct typed_around a = {1, 1, 1};
    if (axis < 0)
        axis += shape.rank;
    for (int d = 0; d < shape.rank; d++)
        *(d < axis ? &a.outer : d == axis ? &a.n : &a.inner) *= (size_t)shape.dims[d];
    return a;
}

bool typed_is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

static bool is_unsigned(enum cm_dtype dtype)
{
    return dtype == CM_UINT8 || dtype == CM_UINT16 || dtype == CM_UINT32 || dtype == CM_UINT64;
}

void typed_begin(struct typed_case *c, int opset)
{
    *c = (struct typed_case){.model = kit_model(opset)};
}

void typed_round(struct typed_operand *operand)
{
    for (size_t i = 0; i < operand->count; i++) {
        char stored[8];
        k_cast(CM_FP64, operand->dtype, &operand->v[i], stored, 1);
        k_cast(operand->dtype, CM_FP64, stored, &operand->v[i], 1);
    }
}

static struct typed_operand *add(struct typed_case *c, const char *name, enum cm_dtype dtype,
                                 struct cm_shape shape)
{
    assert_true(c->n_in < TYPED_OPERANDS);
    struct typed_operand *o = &c->in[c->n_in++];
    *o = (struct typed_operand){name, dtype, shape, NULL, kit_count(shape), false};
    o->v = calloc(o->count + 1, sizeof *o->v);
    assert_non_null(o->v);
    return o;
}

struct typed_operand *typed_random(struct typed_case *c, const char *name, enum cm_dtype dtype,
                                   struct cm_shape shape, double range)
{
    struct typed_operand *o = add(c, name, dtype, shape);
    for (size_t i = 0; i < o->count; i++) {
        double v = (double)kit_float(&random_state) * range;
        o->v[i] = typed_is_float(dtype) ? v : is_unsigned(dtype) ? floor(fabs(v)) : rint(v);
    }
    typed_round(o);
    return o;
}

struct typed_operand *typed_values(struct typed_case *c, const char *name, enum cm_dtype dtype,
                                   struct cm_shape shape, const double *v)
{
    struct typed_operand *o = add(c, name, dtype, shape);
    memcpy(o->v, v, o->count * sizeof *v);
    typed_round(o);
    return o;
}

void typed_output(struct typed_case *c, const char *name, enum cm_dtype dtype,
                  struct cm_shape shape)
{
    assert_true(c->n_out < TYPED_OPERANDS);
    struct typed_operand *o = &c->out[c->n_out++];
    *o = (struct typed_operand){name, dtype, shape, NULL, kit_count(shape), false};
    kit_output(c->model, name, dtype, shape);
}

/* Declares the operands; in and shapes get those that are inputs. */
static int declare(struct typed_case *c, const void *in[TYPED_OPERANDS],
                   struct cm_shape shapes[TYPED_OPERANDS])
{
    int n = 0;
    for (int k = 0; k < c->n_in; k++) {
        struct typed_operand *o = &c->in[k];
        void *stored = calloc(o->count + 1, cm_dtype_size(o->dtype));
        assert_non_null(stored);
        k_cast(CM_FP64, o->dtype, o->v, stored, o->count);
        if (o->constant) {
            kit_const(c->model, o->name, o->dtype, o->shape, stored);
            free(stored);
            continue;
        }
        kit_input(c->model, o->name, o->dtype, o->shape);
        in[n] = stored;
        shapes[n++] = o->shape;
    }
    return n;
}

void typed_run(struct typed_case *c)
{
    const void *in[TYPED_OPERANDS];
    struct cm_shape shapes[TYPED_OPERANDS], got_shapes[2][TYPED_OPERANDS];
    void *got[2][TYPED_OPERANDS];
    int n = declare(c, in, shapes);
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        kit_load_model(&l, c->model, threads, NULL);
        kit_run(&l, shapes, in, got[threads - 1], got_shapes[threads - 1]);
        kit_unload(&l);
    }
    for (int k = 0; k < c->n_out; k++) {
        struct typed_operand *o = &c->out[k];
        char a[96], b[96];
        if (!cm_shape_equal(&got_shapes[0][k], &o->shape))
            fail_msg("output %s has shape %s, wanted %s", o->name,
                     cm_shape_format(&got_shapes[0][k], a, sizeof a),
                     cm_shape_format(&o->shape, b, sizeof b));
        assert_memory_equal(got[0][k], got[1][k], o->count * cm_dtype_size(o->dtype));
        o->v = calloc(o->count + 1, sizeof *o->v);
        assert_non_null(o->v);
        k_cast(o->dtype, CM_FP64, got[0][k], o->v, o->count);
        free(got[0][k]);
        free(got[1][k]);
    }
    for (int k = 0; k < n; k++)
        free((void *)in[k]);
}

static double tolerance(enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_FP16:
        return 0x1p-9;
    case CM_BF16:
        return 0x1p-6;
    case CM_FP32:
        return 4e-6;
    case CM_FP64:
        return 1e-13;
    default:
        return 0;
    }
}

void typed_check(const struct typed_case *c, int k, const double *want, double scale)
{
    const struct typed_operand *o = &c->out[k];
    for (size_t i = 0; i < o->count; i++) {
        double got = o->v[i], allowed = tolerance(o->dtype) * (scale + fabs(want[i]));
        bool same = got == want[i] || (got != got && want[i] != want[i]);
        if (!same && !(fabs(got - want[i]) <= allowed))
            fail_msg("%s of type %s: element %zu is %.17g, wanted %.17g", o->name,
                     cm_dtype_name(o->dtype), i, got, want[i]);
    }
}

void typed_end(struct typed_case *c)
{
    for (int k = 0; k < c->n_in; k++)
        free(c->in[k].v);
    for (int k = 0; k < c->n_out; k++)
        free(c->out[k].v);
    kit_free(c->model);
}

void typed_refused(struct typed_case *c, enum cm_err code, const char *text)
{
    const void *in[TYPED_OPERANDS];
    struct cm_shape shapes[TYPED_OPERANDS];
    struct cm_error err = {0};
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    int n = declare(c, in, shapes);
    size_t length;
    void *bytes = kit_bytes(c->model, &length);
    assert_int_equal(wk_model_parse(engine, bytes, length, NULL, &err, &model), code);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    free(bytes);
    wk_engine_destroy(engine);
    for (int k = 0; k < n; k++)
        free((void *)in[k]);
    typed_end(c);
}
