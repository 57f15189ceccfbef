/* Shapes and the batch proof: what a model's signature says before any request has come.
 *
 * Each case is a tiny graph on input x (and k, constants): expected output shape with free
 * dimensions as -1, and whether rows may share a run. The proof must never say yes wrongly: the
 * negative cases are the ones that matter. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct wk_engine *engine;

static int start(void **state)
{
    (void)state;
    engine = kit_engine(1, NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    wk_engine_destroy(engine);
    return 0;
}

/* The model's one output is "y"; frees m. A NULL shape text means: must be refused. */
static void expect(struct kit_model *m, enum cm_dtype dtype, const char *shape, bool batchable,
                   const char *why)
{
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    char text[96];
    size_t length;
    kit_output(m, "y", dtype, (struct cm_shape){0});
    void *bytes = kit_bytes(m, &length);
    enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    free(bytes);
    kit_free(m);
    if (!shape) {
        if (code == CM_OK || !strstr(err.text, why))
            fail_msg("wanted a refusal with \"%s\", got %s \"%s\"", why, cm_err_name(code),
                     err.text);
        wk_model_destroy(model);
        return;
    }
    if (code != CM_OK)
        fail_msg("%s", err.text);
    const struct wk_signature *s = wk_model_signature(model);
    assert_string_equal(cm_shape_format(&s->outputs[0].shape, text, sizeof text), shape);
    if (s->batchable != batchable)
        fail_msg("batchable is %d: %s", s->batchable, s->why_not);
    if (!batchable && !strstr(s->why_not, why))
        fail_msg("wanted a reason with \"%s\", got \"%s\"", why, s->why_not);
    wk_model_destroy(model);
}

/* A model on x with these dimensions. */
static struct kit_model *on(int opset, struct cm_shape shape)
{
    struct kit_model *m = kit_model(opset);
    kit_input(m, "x", CM_FP32, shape);
    return m;
}

#define IMAGE kit_shape(4, -1, 3, -1, -1)
#define FLAT  kit_shape(2, -1, 8)

static void shapes_of_windows(void **state)
{
    struct kit_model *m = on(13, kit_shape(4, -1, 4, 9, 12));
    (void)state;
    kit_random(m, "w", kit_shape(4, 6, 2, 3, 2));
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_i(m, "group", 2);
    kit_attr_ints(m, "strides", 2, 2, 3);
    kit_attr_ints(m, "dilations", 2, 2, 1);
    kit_attr_ints(m, "pads", 4, 1, 0, 2, 1);
    expect(m, CM_FP32, "[-1,6,4,4]", true, "");
    m = on(13, kit_shape(4, -1, 4, 9, 12));
    kit_random(m, "w", kit_shape(4, 6, 4, 3, 2));
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_s(m, "auto_pad", "SAME_UPPER");
    kit_attr_ints(m, "strides", 2, 2, 5);
    expect(m, CM_FP32, "[-1,6,5,3]", true, "");
    m = on(13, kit_shape(3, -1, 4, 9));
    kit_node(m, "MaxPool", "x", "y");
    kit_attr_ints(m, "kernel_shape", 1, 4);
    kit_attr_ints(m, "strides", 1, 3);
    kit_attr_i(m, "ceil_mode", 1);
    expect(m, CM_FP32, "[-1,4,3]", true, "");
    m = on(13, IMAGE);
    kit_node(m, "AveragePool", "x", "y");
    kit_attr_ints(m, "kernel_shape", 2, 3, 3);
    expect(m, CM_FP32, "[-1,3,-1,-1]", true, "");
    m = on(13, kit_shape(4, -1, 4, 2, 2));
    kit_node(m, "MaxPool", "x", "y");
    kit_attr_ints(m, "kernel_shape", 2, 3, 3);
    expect(m, CM_FP32, NULL, false, "kernel spans 3, more than the padded input's 2");
    m = on(13, kit_shape(4, -1, 4, 9, 9));
    kit_random(m, "w", kit_shape(4, 6, 3, 3, 3));
    kit_node(m, "Conv", "x,w", "y");
    expect(m, CM_FP32, NULL, false, "does not fit weights [6,3,3,3]");
    m = on(13, kit_shape(4, -1, 4, 9, 9));
    kit_random(m, "w", kit_shape(4, 6, 4, 3, 3));
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_ints(m, "strides", 2, 0, 1);
    expect(m, CM_FP32, NULL, false, "strides has the value 0");
    m = on(13, kit_shape(4, -1, 4, 9, 9));
    kit_random(m, "w", kit_shape(4, 6, 4, 3, 3));
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_ints(m, "pads", 4, 0, -1, 0, 0);
    expect(m, CM_FP32, NULL, false, "pads has the value -1");
    m = on(13, kit_shape(4, -1, 4, 9, 9));
    kit_random(m, "w", kit_shape(4, 6, 4, 3, 3));
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_i(m, "group", 0);
    expect(m, CM_FP32, NULL, false, "group 0");
}

/* Shape -> Slice -> Cast -> Concat -> Reshape, as exporters write it, is followed symbol by symbol.
 */
static void computed_shapes(void **state)
{
    const int32_t k[] = {48};
    struct kit_model *m = on(9, kit_shape(4, -1, 3, 4, 4));
    (void)state;
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Cast", "s", "s32");
    kit_attr_i(m, "to", 6);
    kit_node(m, "Slice", "s32", "n");
    kit_attr_ints(m, "axes", 1, 0);
    kit_attr_ints(m, "starts", 1, 0);
    kit_attr_ints(m, "ends", 1, 1);
    kit_node(m, "Cast", "n", "n64");
    kit_attr_i(m, "to", 7);
    kit_const(m, "k", CM_INT32, kit_shape(1, 1), k);
    kit_node(m, "Cast", "k", "k64");
    kit_attr_i(m, "to", 7);
    kit_node(m, "Concat", "n64,k64", "shape");
    kit_attr_i(m, "axis", 0);
    kit_node(m, "Reshape", "x,shape", "y");
    expect(m, CM_FP32, "[-1,48]", true, "");
    /* PyTorch: Shape -> Gather -> Unsqueeze -> Concat with -1. */
    m = on(13, IMAGE);
    const int64_t zero = 0;
    kit_const(m, "zero", CM_INT64, KIT_SHAPE0(), &zero);
    kit_ints(m, "axis", 1, 0);
    kit_ints(m, "rest", 1, -1);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Gather", "s,zero", "n");
    kit_node(m, "Unsqueeze", "n,axis", "n1");
    kit_node(m, "Concat", "n1,rest", "shape");
    kit_attr_i(m, "axis", 0);
    kit_node(m, "Reshape", "x,shape", "y");
    expect(m, CM_FP32, "[-1,-1]", true, "");
    /* Arithmetic on a free dimension keeps its rank but not its value. */
    m = on(13, IMAGE);
    kit_ints(m, "two", 1, 2);
    kit_ints(m, "pick", 2, 2, 3);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Gather", "s,pick", "hw");
    kit_node(m, "Mul", "hw,two", "hw2");
    kit_ints(m, "three", 1, 3);
    kit_node(m, "Concat", "three,hw2", "shape");
    kit_attr_i(m, "axis", 0);
    kit_node(m, "ConstantOfShape", "shape", "c");
    kit_node(m, "Shape", "c", "y");
    expect(m, CM_INT64, "[3]", false, "");
    m = on(13, FLAT);
    kit_input(m, "shape", CM_INT64, kit_shape(1, 2));
    kit_node(m, "Reshape", "x,shape", "y");
    expect(m, CM_FP32, "[-1,-1]", false, "is fixed"); /* the request decides its shape */
}

static void reshapes(void **state)
{
    struct kit_model *m = on(13, kit_shape(4, -1, 3, 4, 4));
    (void)state;
    kit_ints(m, "s", 2, -1, 48); /* 48 elements a row: the hole is the batch */
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, "[-1,48]", true, "");
    m = on(13, kit_shape(4, -1, 3, 4, 4));
    kit_ints(m, "s", 2, -1, 24); /* two rows out of one */
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, "[-1,24]", false, "\"y\" (Reshape) may mix rows");
    m = on(13, kit_shape(4, -1, 3, 4, 4));
    kit_ints(m, "s", 3, 0, -1, 8);
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, "[-1,6,8]", true, "");
    m = on(13, IMAGE);
    kit_ints(m, "s", 2, -1, 48); /* a row's size is not known */
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, "[-1,48]", false, "Reshape");
    m = on(13, kit_shape(2, -1, 8));
    kit_ints(m, "s", 2, 4, -1); /* four rows whatever the batch */
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, "[4,-1]", false, "Reshape");
    m = on(13, kit_shape(2, 3, 8));
    kit_ints(m, "s", 2, 5, -1);
    kit_node(m, "Reshape", "x,s", "y");
    expect(m, CM_FP32, NULL, false, "does not fit input [3,8]");
    m = on(13, IMAGE);
    kit_node(m, "Flatten", "x", "y");
    expect(m, CM_FP32, "[-1,-1]", true, "");
    m = on(13, IMAGE);
    kit_node(m, "Flatten", "x", "y");
    kit_attr_i(m, "axis", 2);
    expect(m, CM_FP32, "[-1,-1]", false, "Flatten");
    m = on(13, IMAGE);
    kit_node(m, "Squeeze", "x", "y");
    expect(m, CM_FP32, "[]", false, "");
    m = on(11, kit_shape(3, -1, 1, 8));
    kit_node(m, "Squeeze", "x", "y");
    kit_attr_ints(m, "axes", 1, 1);
    expect(m, CM_FP32, "[-1,8]", true, "");
    m = on(11, FLAT);
    kit_node(m, "Unsqueeze", "x", "y");
    kit_attr_ints(m, "axes", 2, 0, 3);
    expect(m, CM_FP32, "[1,-1,8,1]", false, "its batch is axis 1");
}

static void mixing_is_noticed(void **state)
{
    struct kit_model *m = on(13, FLAT);
    (void)state;
    kit_node(m, "Softmax", "x", "y");
    kit_attr_i(m, "axis", 0);
    expect(m, CM_FP32, "[-1,8]", false, "Softmax");
    m = on(11, FLAT);
    kit_node(m, "Softmax", "x", "y");
    kit_attr_i(m, "axis", 0); /* coerced: one row of everything */
    expect(m, CM_FP32, "[-1,8]", false, "Softmax");
    m = on(13, FLAT);
    kit_node(m, "ReduceMean", "x", "mean");
    kit_attr_ints(m, "axes", 1, 0);
    kit_node(m, "Sub", "x,mean", "y");
    expect(m, CM_FP32, "[-1,8]", false, "\"mean\" (ReduceMean) may mix rows");
    m = on(13, FLAT);
    kit_node(m, "Transpose", "x", "t");
    kit_node(m, "MatMul", "x,t", "y"); /* every row times every row */
    expect(m, CM_FP32, "[-1,-1]", false, "MatMul");
    m = on(13, kit_shape(2, -1, 8));
    kit_random(m, "w", kit_shape(2, 5, 8));
    kit_node(m, "Gemm", "w,x", "y");
    kit_attr_i(m, "transB", 1);
    expect(m, CM_FP32, "[5,-1]", false, "Gemm");
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(2, 5, 8));
    kit_node(m, "Concat", "x,w", "y");
    kit_attr_i(m, "axis", 0);
    expect(m, CM_FP32, "[-1,8]", false, "Concat");
    /* A constant with one line per batch entry only fits one batch size. */
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(2, 4, 8));
    kit_node(m, "Add", "x,w", "y");
    expect(m, CM_FP32, "[4,8]", false, "Add");
    /* The batch axis slips to the right. */
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(3, 1, 1, 8));
    kit_node(m, "Add", "x,w", "y");
    expect(m, CM_FP32, "[1,-1,8]", false, "its batch is axis 1");
    m = on(13, FLAT);
    kit_ints(m, "starts", 1, 1);
    kit_ints(m, "ends", 1, 100);
    kit_node(m, "Slice", "x,starts,ends", "y");
    expect(m, CM_FP32, "[-1,8]", false, "Slice");
    m = on(13, FLAT);
    kit_ints(m, "i", 2, 0, 1);
    kit_node(m, "Gather", "x,i", "y");
    expect(m, CM_FP32, "[2,8]", false, "Gather");
    m = on(13, FLAT);
    kit_ints(m, "p", 4, 1, 0, 0, 0);
    kit_node(m, "Pad", "x,p", "y");
    expect(m, CM_FP32, "[-1,8]", false, "Pad");
    /* A result divided by the batch size: nothing but the shape was looked at. */
    m = on(13, FLAT);
    const int64_t zero = 0;
    kit_const(m, "zero", CM_INT64, KIT_SHAPE0(), &zero);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Gather", "s,zero", "n");
    kit_node(m, "Cast", "n", "nf");
    kit_attr_i(m, "to", 1);
    kit_node(m, "Div", "x,nf", "y");
    expect(m, CM_FP32, "[-1,8]", false, "Cast");
    /* Twice the batch as a shape. */
    m = on(13, FLAT);
    kit_ints(m, "two", 1, 2);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Mul", "s,two", "s2");
    kit_node(m, "ConstantOfShape", "s2", "y");
    expect(m, CM_FP32, "[-1,16]", false, "ConstantOfShape");
    /* The batch leads, but a row's own shape grows with it. */
    for (int form = 0; form < 3; form++) {
        const int64_t first = 0;
        m = on(13, kit_shape(2, -1, 960));
        kit_const(m, "first", CM_INT64, kit_shape(1, 1), &first);
        kit_ints(m, "two", 1, 2);
        kit_ints(m, "hole", 1, -1);
        kit_node(m, "Shape", "x", "s");
        kit_node(m, "Gather", "s,first", "n");
        kit_node(m, "Mul", "n,two", "n2");
        kit_node(m, "Concat", form == 0 ? "n,n2,hole" : "n,n2", "shape");
        kit_attr_i(m, "axis", 0);
        if (form == 0) {
            kit_node(m, "Reshape", "x,shape", "y");
        } else if (form == 1) {
            kit_node(m, "ConstantOfShape", "shape", "y");
        } else {
            kit_random(m, "w", kit_shape(1, 1));
            kit_node(m, "Expand", "w,shape", "y");
        }
        expect(m, CM_FP32, form == 0 ? "[-1,-1,-1]" : "[-1,-1]", false, "may mix rows");
    }
    m = on(13, kit_shape(2, 4, 8));
    kit_node(m, "Relu", "x", "y");
    expect(m, CM_FP32, "[4,8]", false, "first dimension of input \"x\" is fixed");
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(1, 3));
    kit_node(m, "Relu", "w", "y");
    expect(m, CM_FP32, "[3]", false, "output \"y\"");
    /* A region of interest turns the batch round although its size stays. */
    static const float roi[] = {1, 0, 0, 1}, scales[] = {1, 2};
    m = on(13, FLAT);
    kit_const(m, "roi", CM_FP32, kit_shape(1, 4), roi);
    kit_const(m, "scales", CM_FP32, kit_shape(1, 2), scales);
    kit_node(m, "Resize", "x,roi,scales", "y");
    kit_attr_s(m, "coordinate_transformation_mode", "tf_crop_and_resize");
    expect(m, CM_FP32, "[-1,16]", false, "(Resize) may mix rows");
    /* At a width of 5 the element that is picked is the number of rows. */
    const int64_t second = 1, minus_five = -5;
    m = on(13, kit_shape(2, -1, -1));
    kit_const(m, "second", CM_INT64, KIT_SHAPE0(), &second);
    kit_const(m, "minus", CM_INT64, KIT_SHAPE0(), &minus_five);
    kit_ints(m, "front", 1, 0);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Gather", "s,second", "width");
    kit_node(m, "Add", "width,minus", "index");
    kit_node(m, "Gather", "s,index", "count");
    kit_node(m, "Unsqueeze", "count,front", "shape");
    kit_node(m, "ConstantOfShape", "shape", "zeros");
    kit_node(m, "Cos", "zeros", "ones");
    kit_node(m, "ReduceSum", "ones", "total");
    kit_attr_i(m, "keepdims", 0);
    kit_node(m, "Mul", "x,total", "y");
    expect(m, CM_FP32, "[-1,-1]", false, "may mix rows");
}

static void independence_is_proven(void **state)
{
    struct kit_model *m = on(13, kit_shape(3, -1, 5, 8));
    (void)state;
    kit_node(m, "Transpose", "x", "t");
    kit_attr_ints(m, "perm", 3, 0, 2, 1);
    kit_node(m, "MatMul", "x,t", "y");
    expect(m, CM_FP32, "[-1,5,5]", true, "");
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(2, 8, 3));
    kit_random(m, "b", kit_shape(2, 1, 3));
    kit_node(m, "Gemm", "x,w,b", "y");
    expect(m, CM_FP32, "[-1,3]", true, "");
    m = on(13, FLAT);
    kit_random(m, "w", kit_shape(1, 8));
    kit_node(m, "MatMul", "x,w", "y");
    expect(m, CM_FP32, "[-1]", true, "");
    m = on(13, kit_shape(3, -1, 5, 8));
    kit_node(m, "ReduceMean", "x", "mean");
    kit_attr_ints(m, "axes", 2, 1, -1);
    kit_node(m, "Sub", "x,mean", "c");
    kit_node(m, "Softmax", "c", "p");
    kit_attr_i(m, "axis", -2);
    kit_node(m, "Concat", "p,x", "y");
    kit_attr_i(m, "axis", 2);
    expect(m, CM_FP32, "[-1,5,16]", true, "");
    m = on(13, kit_shape(3, -1, 5, 8));
    kit_ints(m, "starts", 2, 0, 1);
    const int64_t ends[] = {INT64_MAX, 4};
    kit_const(m, "ends", CM_INT64, kit_shape(1, 2), ends);
    kit_ints(m, "axes", 2, 0, 1);
    kit_node(m, "Slice", "x,starts,ends,axes", "y"); /* all of the batch, some of the rest */
    expect(m, CM_FP32, "[-1,3,8]", true, "");
    m = kit_model(13);
    kit_input(m, "x", CM_INT64, kit_shape(2, -1, 6));
    kit_random(m, "table", kit_shape(2, 100, 16));
    kit_node(m, "Gather", "table,x", "y");
    expect(m, CM_FP32, "[-1,6,16]", true, "");
    /* A constant repeated for every row. */
    m = on(13, FLAT);
    kit_node(m, "Shape", "x", "s");
    kit_random(m, "w", kit_shape(1, 8));
    kit_node(m, "Expand", "w,s", "e");
    kit_node(m, "Mul", "e,x", "y");
    expect(m, CM_FP32, "[-1,8]", true, "");
    m = on(13, FLAT);
    kit_input(m, "x2", CM_FP32, kit_shape(3, -1, 3, 8));
    kit_ints(m, "axis", 1, 1);
    kit_node(m, "Unsqueeze", "x,axis", "u");
    kit_node(m, "Add", "x2,u", "y");
    expect(m, CM_FP32, "[-1,3,8]", true, "");
}

/* Convolutions, pools, quantised operators and transforms: what keeps rows, and what only seems to.
 */
static void rows_of_windows(void **state)
{
    static const uint8_t zeros[8] = {0};
    const float scales[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    struct kit_model *m = on(13, kit_shape(4, -1, 3, 8, 8));
    (void)state;
    kit_random(m, "w", kit_shape(4, 3, 2, 2, 2));
    kit_node(m, "ConvTranspose", "x,w", "y");
    kit_attr_ints(m, "strides", 2, 2, 2);
    expect(m, CM_FP32, "[-1,2,16,16]", true, "");
    m = on(13, kit_shape(4, -1, 3, 8, 8));
    kit_node(m, "MaxPool", "x", "v,y");
    kit_attr_ints(m, "kernel_shape", 2, 2, 2);
    expect(m, CM_INT64, "[-1,3,7,7]", false, "MaxPool"); /* counted through the whole batch */
    m = on(13, kit_shape(4, -1, 3, 8, 8));
    kit_node(m, "MaxPool", "x", "y,i");
    kit_attr_ints(m, "kernel_shape", 2, 2, 2);
    expect(m, CM_FP32, "[-1,3,7,7]", true, "");
    m = on(13, FLAT);
    kit_node(m, "DynamicQuantizeLinear", "x", "y,s,z"); /* one scale for all */
    expect(m, CM_UINT8, "[-1,8]", false, "DynamicQuantizeLinear");
    m = on(13, FLAT);
    kit_const(m, "s", CM_FP32, KIT_SHAPE0(), scales);
    kit_const(m, "z", CM_UINT8, KIT_SHAPE0(), zeros);
    kit_node(m, "QuantizeLinear", "x,s,z", "q");
    kit_const(m, "w", CM_UINT8, kit_shape(2, 8, 1), zeros);
    kit_node(m, "QLinearMatMul", "q,s,z,w,s,z,s,z", "p");
    kit_node(m, "DequantizeLinear", "p,s,z", "y");
    expect(m, CM_FP32, "[-1,1]", true, "");
    m = on(13, kit_shape(2, -1, 4));
    kit_const(m, "s", CM_FP32, kit_shape(1, 4), scales);
    kit_node(m, "QuantizeLinear", "x,s", "y");
    kit_attr_i(m, "axis", 0); /* row i has scale i */
    expect(m, CM_UINT8, "[-1,4]", false, "QuantizeLinear");
    m = on(13, kit_shape(2, -1, 4));
    kit_const(m, "s", CM_FP32, kit_shape(1, 4), scales);
    kit_node(m, "QuantizeLinear", "x,s", "y");
    expect(m, CM_UINT8, "[-1,4]", true, "");
    for (int axis = 0; axis < 2; axis++) {
        m = on(17, kit_shape(3, -1, 8, 1));
        kit_node(m, "DFT", "x", "y");
        kit_attr_i(m, "axis", axis);
        expect(m, CM_FP32, "[-1,8,2]", axis == 1, axis == 1 ? "" : "DFT");
    }
}

/* Attention as vision models write it: the batch goes to axis 1 and comes back. */
static struct kit_model *attention(int softmax_axis)
{
    struct kit_model *m = on(13, kit_shape(3, -1, 6, 24));
    static const int64_t which[] = {0, 1, 2};
    kit_const(m, "iq", CM_INT64, KIT_SHAPE0(), &which[0]);
    kit_const(m, "ik", CM_INT64, KIT_SHAPE0(), &which[1]);
    kit_const(m, "iv", CM_INT64, KIT_SHAPE0(), &which[2]);
    kit_ints(m, "split", 5, 0, 6, 3, 2, 4);
    kit_ints(m, "join", 3, 0, 6, 8);
    kit_node(m, "Reshape", "x,split", "r");
    kit_node(m, "Transpose", "r", "t"); /* [3, batch, heads, 6, 4] */
    kit_attr_ints(m, "perm", 5, 2, 0, 3, 1, 4);
    kit_node(m, "Gather", "t,iq", "q");
    kit_node(m, "Gather", "t,ik", "k");
    kit_node(m, "Gather", "t,iv", "v");
    kit_node(m, "Transpose", "k", "kt");
    kit_attr_ints(m, "perm", 4, 0, 1, 3, 2);
    kit_node(m, "MatMul", "q,kt", "scores");
    kit_node(m, "Softmax", "scores", "p");
    kit_attr_i(m, "axis", softmax_axis);
    kit_node(m, "MatMul", "p,v", "o");
    kit_node(m, "Transpose", "o", "back");
    kit_attr_ints(m, "perm", 4, 0, 2, 1, 3);
    kit_node(m, "Reshape", "back,join", "y");
    return m;
}

static void rows_on_other_axes(void **state)
{
    struct kit_model *m = attention(-1);
    (void)state;
    expect(m, CM_FP32, "[-1,6,8]", true, "");
    expect(attention(0), CM_FP32, "[-1,6,8]", false, "Softmax");
    /* [5, batch, 8] and back, with a bias that lines up, one that does not, and sums. */
    for (int which = 0; which < 6; which++) {
        const char *why[] = {"", "Add", "", "ReduceSum", "Softmax", "Reshape"};
        m = on(13, kit_shape(3, -1, 5, 8));
        kit_random(m, "bias", kit_shape(3, 5, 1, 8));
        kit_random(m, "slips", kit_shape(4, 1, 5, 3, 8));
        kit_ints(m, "mix", 3, 10, -1, 4);
        kit_node(m, "Transpose", "x", "t");
        kit_attr_ints(m, "perm", 3, 1, 0, 2);
        if (which == 0) {
            kit_node(m, "Add", "t,bias", "u");
        } else if (which == 1) {
            kit_node(m, "Add", "t,slips", "u");
        } else if (which == 2) {
            kit_node(m, "ReduceMean", "t", "u");
            kit_attr_ints(m, "axes", 1, 2);
        } else if (which == 3) {
            kit_node(m, "ReduceSum", "t,one", "u");
            kit_ints(m, "one", 1, 1);
        } else if (which == 4) {
            kit_node(m, "Softmax", "t", "u");
            kit_attr_i(m, "axis", 1);
        } else {
            kit_node(m, "Reshape", "t,mix", "u"); /* rows change places */
        }
        kit_node(m, "Transpose", "u", "y");
        if (which != 1)
            kit_attr_ints(m, "perm", 3, 1, 0, 2);
        expect(m, CM_FP32,
               which == 1   ? "[8,3,5,1]"
               : which == 2 ? "[-1,5,1]"
               : which == 3 ? "[1,5,8]"
               : which == 5 ? "[-1,10,4]"
                            : "[-1,5,8]",
               which == 0 || which == 2, why[which]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_of_windows),  cmocka_unit_test(computed_shapes),
        cmocka_unit_test(reshapes),           cmocka_unit_test(mixing_is_noticed),
        cmocka_unit_test(rows_on_other_axes), cmocka_unit_test(independence_is_proven),
        cmocka_unit_test(rows_of_windows),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
