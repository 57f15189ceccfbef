/* Tensors and nodes of the tests of element-wise operators; see map_kit.h. Test code, one thread.
 */
#include "tests/engine/map_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const enum cm_dtype map_types[MAP_TYPES] = {CM_BOOL, CM_UINT8, CM_UINT16, CM_UINT32, CM_UINT64,
                                            CM_INT8, CM_INT16, CM_INT32,  CM_INT64,  CM_FP16,
                                            CM_BF16, CM_FP32,  CM_FP64};

struct map_tensor map_tensor(enum cm_dtype dtype, struct cm_shape shape)
{
    struct map_tensor t = {dtype, shape, 0, NULL};
    int64_t count = 0;
    assert_int_equal(cm_shape_count(&shape, &count), CM_OK);
    t.count = (size_t)count;
    t.data = calloc(t.count + 1, 8);
    assert_non_null(t.data);
    return t;
}

void map_free(struct map_tensor *t)
{
    free(t->data);
    *t = (struct map_tensor){0};
}

bool map_is_float(enum cm_dtype dtype)
{
    return dtype == CM_FP16 || dtype == CM_BF16 || dtype == CM_FP32 || dtype == CM_FP64;
}

bool map_is_signed(enum cm_dtype dtype)
{
    return dtype == CM_INT8 || dtype == CM_INT16 || dtype == CM_INT32 || dtype == CM_INT64;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* A format of sign, 5 or 8 bits of exponent and the rest: value and code of each other. */
struct format {
    int mantissa, least, largest; /* bits after the point; exponents of normal numbers */
};
static const struct format fp16 = {10, -14, 15}, bf16 = {7, -126, 127};

static double decode(const struct format *f, unsigned bits)
{
    unsigned mantissa = bits & ((1u << f->mantissa) - 1);
    int exponent = (int)((bits & 0x7fff) >> f->mantissa);
    double value;
    if (exponent == f->largest - f->least + 2)
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, f->least - f->mantissa);
    else
        value = ldexp((double)mantissa + (1 << f->mantissa), exponent - 1 + f->least - f->mantissa);
    return bits & 0x8000 ? -value : value;
}

static uint16_t encode(const struct format *f, double value)
{
    unsigned sign = signbit(value) ? 0x8000u : 0, top = (unsigned)(f->largest - f->least + 2);
    double x = fabs(value);
    int exponent = 0;
    if (isnan(value))
        return (uint16_t)(sign | top << f->mantissa | 1u << (f->mantissa - 1));
    if (isinf(value) || x == 0)
        return (uint16_t)(sign | (x == 0 ? 0 : top << f->mantissa));
    frexp(x, &exponent);
    exponent = exponent - 1 < f->least ? f->least : exponent - 1;
    double steps = rint(ldexp(x, f->mantissa - exponent)); /* of the last place, ties to even */
    unsigned code = (unsigned)steps + ((unsigned)(exponent - f->least) << f->mantissa);
    return (uint16_t)(sign | (code >= top << f->mantissa ? top << f->mantissa : code));
}

double map_get(const struct map_tensor *t, size_t i)
{
    switch (t->dtype) {
    case CM_FP16:
        return decode(&fp16, ((const uint16_t *)t->data)[i]);
    case CM_BF16:
        return decode(&bf16, ((const uint16_t *)t->data)[i]);
    case CM_FP32:
        return ((const float *)t->data)[i];
    default:
        assert_int_equal(t->dtype, CM_FP64);
        return ((const double *)t->data)[i];
    }
}

void map_put(struct map_tensor *t, size_t i, double value)
{
    switch (t->dtype) {
    case CM_FP16:
        ((uint16_t *)t->data)[i] = encode(&fp16, value);
        break;
    case CM_BF16:
        ((uint16_t *)t->data)[i] = encode(&bf16, value);
        break;
    case CM_FP32:
        ((float *)t->data)[i] = (float)value;
        break;
    default:
        assert_int_equal(t->dtype, CM_FP64);
        ((double *)t->data)[i] = value;
    }
}

map_int map_get_int(const struct map_tensor *t, size_t i)
{
    size_t bytes = cm_dtype_size(t->dtype);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)t->data + i * bytes, bytes);
    if (map_is_signed(t->dtype) && bits >> (8 * bytes - 1))
        return (map_int)bits - ((map_int)1 << (8 * bytes));
    return (map_int)bits;
}

void map_put_int(struct map_tensor *t, size_t i, map_int value)
{
    size_t bytes = cm_dtype_size(t->dtype);
    uint64_t bits = (uint64_t)value;
    assert_false(map_is_float(t->dtype));
    memcpy((char *)t->data + i * bytes, &bits, bytes);
}

static double special(size_t i)
{
    static const double values[] = {0.0,  -0.0,     1.0,       -1.0, 0.5,  -0.5,  1.5, 2.5,
                                    -2.5, INFINITY, -INFINITY, NAN,  1e-7, -1e-7, 3e4, -3e4};
    return values[i % (sizeof values / sizeof *values)];
}

void map_fill(struct map_tensor *t, uint64_t *state, double range)
{
    for (size_t i = 0; i < t->count; i++) {
        uint64_t bits = kit_next(state);
        if (map_is_float(t->dtype))
            map_put(t, i, i % 5 == 3 ? special(i / 5) : range * (double)kit_float(state));
        else if (t->dtype == CM_BOOL)
            map_put_int(t, i, bits & 1);
        else if (range > 0 && map_is_signed(t->dtype))
            map_put_int(t, i, (map_int)(bits % (uint64_t)(2 * range + 1)) - (map_int)range);
        else if (range > 0)
            map_put_int(t, i, bits % (uint64_t)(range + 1));
        else /* all sizes; some at the ends */
            map_put_int(t, i,
                        i % 7 == 2 ? (map_int)1 << (bits % 64) : (map_int)(bits >> (bits % 60)));
    }
}

double map_epsilon(enum cm_dtype dtype)
{
    return dtype == CM_FP16   ? 0x1p-11
           : dtype == CM_BF16 ? 0x1p-8
           : dtype == CM_FP32 ? 0x1p-24
                              : 0x1p-53;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static const char *const names[] = {"a", "b", "c", "d", "e"};

static void add_attr(struct kit_model *m, const struct map_attr *attr)
{
    if (attr->type == 'i')
        kit_attr_i(m, attr->name, attr->i);
    else if (attr->type == 'f')
        kit_attr_f(m, attr->name, attr->f);
    else if (attr->type == 'I')
        kit_attr_ints(m, attr->name, 1, (int)attr->i);
    else
        kit_attr_s(m, attr->name, attr->s);
}

static struct kit_model *build(const struct map_node *node, const struct map_tensor *inputs, int n,
                               bool constant)
{
    struct kit_model *m = kit_model(node->opset);
    char list[32] = "";
    assert_true(n <= (int)(sizeof names / sizeof *names));
    for (int k = 0; k < n; k++) {
        strcat(list, k ? "," : "");
        if (inputs[k].dtype == CM_DTYPE_NONE)
            continue;
        strcat(list, names[k]);
        if (constant && k > 0)
            kit_const(m, names[k], inputs[k].dtype, inputs[k].shape, inputs[k].data);
        else
            kit_input(m, names[k], inputs[k].dtype, inputs[k].shape);
    }
    kit_node(m, node->op, list, "y");
    for (const struct map_attr *attr = node->attrs; attr->type; attr++)
        add_attr(m, attr);
    return m;
}

static void *run_form(const struct map_node *node, const struct map_tensor *inputs, int n,
                      enum cm_dtype dtype, struct cm_shape shape, bool constant, unsigned threads,
                      const enum wk_isa *isa)
{
    struct kit_model *m = build(node, inputs, n, constant);
    struct kit_loaded l;
    struct cm_shape shapes[5], got;
    const void *in[5];
    void *out[1];
    int n_in = 0;
    kit_output(m, "y", dtype, shape);
    for (int k = 0; k < (constant && n > 0 ? 1 : n); k++)
        if (inputs[k].dtype != CM_DTYPE_NONE) {
            shapes[n_in] = inputs[k].shape;
            in[n_in++] = inputs[k].data;
        }
    kit_load_model(&l, m, threads, isa);
    assert_int_equal(wk_model_signature(l.model)->outputs[0].dtype, dtype);
    kit_run(&l, shapes, in, out, &got);
    if (!cm_shape_equal(&got, &shape))
        fail_msg("%s: the output's shape is wrong", node->op);
    kit_unload(&l);
    kit_free(m);
    return out[0];
}

/* Bit by bit; which NaN it is differs between instruction sets and is not defined. */
static bool same(const struct map_tensor *y, const void *out)
{
    struct map_tensor other = {y->dtype, y->shape, y->count, (void *)out};
    size_t bytes = cm_dtype_size(y->dtype);
    if (memcmp(y->data, out, y->count * bytes) == 0)
        return true;
    for (size_t i = 0; i < y->count; i++)
        if (memcmp((char *)y->data + i * bytes, (const char *)out + i * bytes, bytes) != 0 &&
            !(map_is_float(y->dtype) && isnan(map_get(y, i)) && isnan(map_get(&other, i))))
            return false;
    return true;
}

struct map_tensor map_run(const struct map_node *node, const struct map_tensor *inputs, int n,
                          enum cm_dtype dtype, struct cm_shape shape)
{
    struct map_tensor y = map_tensor(dtype, shape);
    size_t bytes = y.count * cm_dtype_size(dtype);
    const enum wk_isa scalar = WK_ISA_SCALAR;
    /* One thread, two, the plainest instruction set; then constants. */
    for (int form = 0; form < (n > 1 ? 4 : 3); form++) {
        void *out = run_form(node, inputs, n, dtype, shape, form == 3, form == 1 ? 2 : 1,
                             form == 2 ? &scalar : NULL);
        if (form == 0)
            memcpy(y.data, out, bytes);
        else if (!same(&y, out))
            fail_msg("%s of %s: form %d gives other bytes", node->op, cm_dtype_name(dtype), form);
        free(out);
    }
    return y;
}

void map_refuse(const struct map_node *node, const struct map_tensor *inputs, int n,
                enum cm_err code, const char *part)
{
    struct kit_model *m = build(node, inputs, n, false);
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    size_t length;
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    void *bytes = kit_bytes(m, &length);
    enum cm_err got = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (got != code || !strstr(err.text, part))
        fail_msg("%s: wanted %s with \"%s\", got %s with \"%s\"", node->op, cm_err_name(code), part,
                 cm_err_name(got), err.text);
    free(bytes);
    wk_model_destroy(model);
    wk_engine_destroy(engine);
    kit_free(m);
}

size_t map_under(struct cm_shape out, struct cm_shape of, size_t i)
{
    size_t at = 0, stride = 1;
    for (unsigned d = 0; d < of.rank; d++) {
        size_t dim = (size_t)of.dims[of.rank - 1 - d], index = i;
        for (unsigned k = 0; k < d; k++)
            index /= (size_t)out.dims[out.rank - 1 - k];
        index %= (size_t)out.dims[out.rank - 1 - d];
        at += dim == 1 ? 0 : index * stride;
        stride *= dim;
    }
    return at;
}
