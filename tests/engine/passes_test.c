/* Passes over the graph: what each finds, what it leaves alone, and that answers stay what they
 * were.
 *
 *     passes_test                      small graphs
 *     passes_test FILE 3,48,192 ...    this model; one shape for each input, with the batch
 *
 * A file that is not there is a skip with its reason. */
#include "tests/engine/passes_kit.h"

#include "common/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Compares all ways to run m and checks the operators that are left with all passes but
 * `disabled`. Lets go of m. */
static void expect_without(struct kit_model *m, struct cm_shape x, const char *disabled,
                           const char *plan)
{
    char text[1024];
    size_t length;
    void *bytes = kit_bytes(m, &length);
    passes_compare(bytes, length, &x);
    assert_string_equal(passes_plan(bytes, length, &x, passes_bits(disabled), text, sizeof text),
                        plan);
    free(bytes);
    kit_free(m);
}

static void expect(struct kit_model *m, struct cm_shape x, const char *plan)
{
    expect_without(m, x, "", plan);
}

static void number(struct kit_model *m, const char *name, float value)
{
    kit_const(m, name, CM_FP32, KIT_SHAPE0(), &value);
}

static struct kit_model *model(struct cm_shape x)
{
    struct kit_model *m = kit_model(17);
    kit_input(m, "x", CM_FP32, x);
    return m;
}

/* ---- fold ------------------------------------------------------------------------------------ */

static void constants_are_folded(void **state)
{
    enum { WIDE = 2500 }; /* small ones are evaluated while planning, with or without the pass */
    struct kit_model *m = model(kit_shape(2, -1, WIDE));
    (void)state;
    kit_random(m, "a", kit_shape(2, 4, WIDE));
    kit_random(m, "b", kit_shape(2, 1, 4));
    kit_node(m, "MatMul", "b,a", "row");
    kit_node(m, "Exp", "row", "e");
    kit_ints(m, "shape", 1, WIDE);
    kit_node(m, "Reshape", "e,shape", "vector");
    kit_node(m, "Where", "yes,vector,vector", "w");
    kit_const(m, "yes", CM_BOOL, KIT_SHAPE0(), "\1");
    kit_node(m, "Pow", "x,w", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, WIDE));
    kit_output(m, "e", CM_FP32, kit_shape(2, 1, WIDE)); /* an output may become a constant */
    size_t length;
    char text[256];
    void *bytes = kit_bytes(m, &length);
    struct cm_shape x = kit_shape(2, 3, WIDE);
    assert_string_equal(passes_plan(bytes, length, &x, 0, text, sizeof text), "Pow");
    assert_string_equal(
        passes_plan(bytes, length, &x, passes_bits("fold,activation"), text, sizeof text),
        "MatMul Exp Where Pow");
    free(bytes);
    expect(m, x, "Pow");
}

static void a_fixed_shape_is_folded(void **state)
{
    struct kit_model *m = model(kit_shape(2, 3, 5));
    (void)state;
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Cast", "s", "f");
    kit_attr_i(m, "to", 1);
    kit_node(m, "Div", "x,f2", "y");
    kit_node(m, "ReduceMax", "f", "f2");
    kit_output(m, "y", CM_FP32, kit_shape(2, 3, 5));
    expect(m, kit_shape(2, 3, 5), "Div");
}

static void large_results_stay_nodes(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 1));
    (void)state;
    kit_random(m, "one", kit_shape(2, 1, 1));
    kit_ints(m, "shape", 2, 512, 512);
    kit_node(m, "Expand", "one,shape", "big");
    kit_node(m, "ReduceMax", "big", "r");
    kit_node(m, "Mul", "x,r", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 1));
    expect(m, kit_shape(2, 2, 1), "Expand ReduceMax Mul");
}

/* A node that fails on its constants fails in the run, as it would without the pass. */
static void failing_constants_stay_nodes(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 1));
    struct kit_loaded loaded;
    struct cm_shape shape = kit_shape(2, 1, 1);
    const int64_t index = 9;
    const float x = 1;
    (void)state;
    kit_random(m, "table", kit_shape(2, 4, 1));
    kit_const(m, "index", CM_INT64, kit_shape(1, 1), &index);
    kit_node(m, "Gather", "table,index", "g");
    kit_node(m, "Mul", "x,g", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 1));
    kit_load_model(&loaded, m, 1, NULL);
    kit_run_refused(&loaded, &shape, (const void *[]){&x}, CM_INVALID, "Gather", "of 4 elements");
    kit_unload(&loaded);
    kit_free(m);
}

/* ---- cse ------------------------------------------------------------------------------------- */

static void equal_nodes_become_one(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 4));
    (void)state;
    number(m, "two", 2.0f);
    number(m, "again", 2.0f);
    kit_node(m, "Pow", "x,two", "a");
    kit_node(m, "Pow", "x,again", "b");
    kit_node(m, "Softmax", "a", "sa");
    kit_node(m, "Softmax", "b", "sb");
    kit_node(m, "Softmax", "b", "other");
    kit_attr_i(m, "axis", 0);
    kit_node(m, "Pow", "sa,sb", "p");
    kit_node(m, "Pow", "p,other", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "sb", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "sa", CM_FP32, kit_shape(2, -1, 4));
    expect(m, kit_shape(2, 3, 4), "Pow Softmax Softmax Pow Pow");
}

static void constants_of_other_shapes_differ(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 2));
    const float data[] = {1.5f, 2.5f};
    (void)state;
    kit_const(m, "a", CM_FP32, kit_shape(1, 2), data);
    kit_const(m, "b", CM_FP32, kit_shape(2, 1, 2), data);
    kit_node(m, "Pow", "x,a", "p");
    kit_node(m, "Pow", "x,b", "q");
    kit_node(m, "Pow", "p,q", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 2));
    expect(m, kit_shape(2, 3, 2), "Pow Pow Pow");
}

/* ---- activation ------------------------------------------------------------------------------ */

static void bias_of(struct kit_model *m, const char *name, int rank, int axis, int count)
{
    struct cm_shape shape = {.rank = (uint8_t)rank};
    for (int i = 0; i < rank; i++)
        shape.dims[i] = i == axis ? count : 1;
    kit_random(m, name, shape);
}

/* Convolutions of each kind with everything behind them that an epilogue can be. */
static void convolutions_take_what_follows(void **state)
{
    struct kit_model *m = model(kit_shape(4, -1, 6, -1, -1));
    (void)state;
    kit_random(m, "w", kit_shape(4, 6, 6, 3, 3));
    kit_random(m, "b", kit_shape(1, 6));
    kit_node(m, "Conv", "x,w,b", "c");
    kit_attr_ints(m, "pads", 4, 1, 1, 1, 1);
    bias_of(m, "channels", 3, 0, 6);
    kit_node(m, "Mul", "channels,c", "c1");
    number(m, "three", 3.0f);
    kit_node(m, "Sub", "three,c1", "c2");
    kit_node(m, "Add", "c2,x", "c3"); /* a residual: the same height and width, whatever they are */
    kit_node(m, "Relu", "c3", "r");
    kit_random(m, "dw", kit_shape(4, 6, 1, 3, 3));
    kit_node(m, "Conv", "r,dw", "d");
    kit_attr_i(m, "group", 6);
    kit_attr_ints(m, "strides", 2, 2, 2);
    kit_attr_ints(m, "pads", 4, 1, 1, 1, 1);
    kit_node(m, "Clip", "d,zero,six", "d1");
    number(m, "zero", 0.0f);
    number(m, "six", 6.0f);
    kit_random(m, "gw", kit_shape(4, 4, 3, 1, 1));
    kit_node(m, "Conv", "d1,gw", "g");
    kit_attr_i(m, "group", 2);
    kit_node(m, "LeakyRelu", "g", "g1");
    kit_attr_f(m, "alpha", 0.25f);
    kit_node(m, "HardSigmoid", "g1", "y");
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 4, -1, -1));
    expect(m, kit_shape(4, 2, 6, 9, 61),
           "Conv+Mul+Sub+Add+Relu Conv+Clip Conv+LeakyRelu+HardSigmoid");
}

static void products_take_what_follows(void **state)
{
    struct kit_model *m = model(kit_shape(3, -1, -1, 24));
    (void)state;
    kit_random(m, "w", kit_shape(2, 24, 70));
    kit_random(m, "b", kit_shape(1, 70));
    kit_node(m, "MatMul", "x,w", "p");
    kit_node(m, "Add", "b,p", "p1");
    kit_node(m, "Tanh", "p1", "p2");
    kit_random(m, "v", kit_shape(2, 70, 24));
    kit_node(m, "MatMul", "p2,v", "q");
    kit_node(m, "Add", "q,x", "q1");
    kit_node(m, "Transpose", "q1", "t");
    kit_attr_ints(m, "perm", 3, 0, 2, 1);
    kit_node(m, "MatMul", "x,t", "s"); /* a product of each row's own matrices */
    number(m, "root", 5.0f);
    kit_node(m, "Div", "s,root", "s1");
    kit_node(m, "Sub", "s1,s2", "y");
    kit_node(m, "Softmax", "s1", "other");
    kit_node(m, "Neg", "other", "s2");
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, -1, -1));
    expect(m, kit_shape(3, 3, 5, 24),
           "MatMul+Add+Tanh MatMul+Add Transpose MatMul+Div Softmax Neg+Sub");
}

static void gemm_takes_what_follows(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 16));
    (void)state;
    kit_random(m, "w", kit_shape(2, 50, 16));
    kit_node(m, "Gemm", "x,w", "g"); /* its own operand C stays left out */
    kit_attr_i(m, "transB", 1);
    kit_random(m, "b", kit_shape(1, 50));
    kit_node(m, "Add", "g,b", "g1");
    kit_node(m, "Relu", "g1", "g2");
    kit_random(m, "v", kit_shape(2, 50, 16));
    kit_node(m, "Gemm", "g2,v", "h");
    kit_attr_f(m, "alpha", 0.5f); /* scaled behind the product: stays alone */
    kit_node(m, "Add", "h,x", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 16));
    expect(m, kit_shape(2, 7, 16), "Gemm+Add+Relu Gemm Add");
}

static void chains_of_elementwise_operators(void **state)
{
    struct kit_model *m = model(kit_shape(4, -1, 5, -1, 7));
    (void)state;
    kit_random(m, "row", kit_shape(4, 1, 5, 1, 7));
    bias_of(m, "channels", 3, 0, 5);
    kit_node(m, "Mul", "row,x", "a");
    kit_node(m, "Sub", "channels,a", "b");
    kit_node(m, "Exp", "b", "c");
    kit_node(m, "Div", "c,x", "y");
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 5, -1, 7));
    expect(m, kit_shape(4, 3, 5, 97, 7), "Mul+Sub+Exp+Div");
}

/* Numbers that are known once a request's shapes are: fused nodes are run while planning. */
static void known_numbers_are_fused_too(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, -1));
    (void)state;
    number(m, "zero", 0.0f);
    number(m, "half", 0.5f);
    number(m, "six", 6.0f);
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "Cast", "s", "f");
    kit_attr_i(m, "to", 1);
    kit_node(m, "Mul", "f,half", "a");
    kit_node(m, "Clip", "a,zero,six", "b");
    kit_node(m, "Floor", "b", "c");
    kit_node(m, "Clip", "f,zero,six", "d");
    kit_node(m, "Sub", "six,d", "e");
    kit_node(m, "Pow", "c,e", "g");
    kit_node(m, "ReduceMax", "g", "h");
    kit_node(m, "Pow", "x,h", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    expect(m, kit_shape(2, 3, 11), "Pow");
}

static void what_is_used_twice_is_not_fused(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 16));
    (void)state;
    kit_random(m, "w", kit_shape(2, 16, 16));
    kit_node(m, "MatMul", "x,w", "a");
    kit_node(m, "Relu", "a", "b"); /* a is used again */
    kit_node(m, "Softmax", "a", "c");
    kit_node(m, "MatMul", "c,w", "d");
    kit_node(m, "Relu", "d", "e"); /* d is an output */
    kit_node(m, "MatMul", "e,w", "f");
    kit_node(m, "Mul", "f,f", "g"); /* both operands */
    kit_node(m, "Add", "b,g", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 16));
    kit_output(m, "d", CM_FP32, kit_shape(2, -1, 16));
    expect(m, kit_shape(2, 3, 16), "MatMul Softmax MatMul Relu MatMul Mul Relu+Add");
}

static void what_grows_is_not_fused(void **state)
{
    struct kit_model *m = model(kit_shape(3, -1, -1, 8));
    (void)state;
    kit_random(m, "w", kit_shape(2, 8, 1));
    kit_node(m, "MatMul", "x,w", "a");
    kit_node(m, "Add", "a,x", "b"); /* [n,m,1] + [n,m,8] */
    kit_input(m, "z", CM_FP32, kit_shape(3, -1, -1, 8));
    kit_node(m, "Exp", "b", "c");
    kit_node(m, "Mul", "c,z", "y"); /* z has another middle: it may be 1 where c's is not */
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, -1, 8));
    char text[256];
    size_t length;
    void *bytes = kit_bytes(m, &length);
    struct cm_shape equal[] = {kit_shape(3, 2, 4, 8), kit_shape(3, 2, 4, 8)};
    struct cm_shape grows[] = {kit_shape(3, 2, 1, 8), kit_shape(3, 2, 4, 8)};
    passes_compare(bytes, length, equal);
    passes_compare(bytes, length, grows);
    assert_string_equal(passes_plan(bytes, length, equal, 0, text, sizeof text),
                        "MatMul Add+Exp Mul");
    free(bytes);
    kit_free(m);
}

static void at_most_eight_are_fused(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 3));
    char from[8] = "x", to[8];
    (void)state;
    for (int i = 0; i < 12; i++) {
        snprintf(to, sizeof to, i == 11 ? "y" : "a%d", i);
        kit_node(m, i % 2 ? "Neg" : "Sqrt", from, to);
        memcpy(from, to, sizeof from);
    }
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 3));
    expect(m, kit_shape(2, 1, 3), "Sqrt+Neg+Sqrt+Neg+Sqrt+Neg+Sqrt+Neg+Sqrt Neg+Sqrt+Neg");
}

/* ---- conv_bn ----------------------------------------------------------------------------------
 */

static void norm_constants(struct kit_model *m, int channels)
{
    float variance[16];
    for (int i = 0; i < channels; i++)
        variance[i] = 0.3f + 0.2f * (float)i;
    kit_random(m, "gamma", kit_shape(1, channels));
    kit_random(m, "beta", kit_shape(1, channels));
    kit_random(m, "mean", kit_shape(1, channels));
    kit_const(m, "var", CM_FP32, kit_shape(1, channels), variance);
}

static void norms_are_folded_into_convolutions(void **state)
{
    struct kit_model *m = model(kit_shape(4, -1, 4, 9, 9));
    (void)state;
    norm_constants(m, 6);
    kit_random(m, "w", kit_shape(4, 6, 4, 3, 3));
    kit_node(m, "Conv", "x,w", "c");
    kit_node(m, "BatchNormalization", "c,gamma,beta,mean,var", "n");
    kit_attr_f(m, "epsilon", 1e-3f);
    kit_node(m, "Relu", "n", "r");
    kit_random(m, "dw", kit_shape(4, 6, 1, 3, 3));
    kit_random(m, "b", kit_shape(1, 6));
    kit_node(m, "Conv", "r,dw,b", "d");
    kit_attr_i(m, "group", 6);
    kit_node(m, "BatchNormalization", "d,gamma,beta,mean,var", "y");
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 6, 5, 5));
    expect(m, kit_shape(4, 2, 4, 9, 9), "Conv+Relu Conv");
}

static void other_norms_stay(void **state)
{
    struct kit_model *m = model(kit_shape(4, -1, 6, 9, 9));
    (void)state;
    norm_constants(m, 6);
    kit_random(m, "w", kit_shape(4, 6, 6, 1, 1));
    kit_random(m, "v", kit_shape(4, 6, 6, 1, 1));
    kit_random(m, "u", kit_shape(4, 6, 6, 1, 1));
    kit_random(m, "twice", kit_shape(4, 6, 6, 1, 1));
    kit_node(m, "Conv", "x,w", "c"); /* an output too */
    kit_node(m, "BatchNormalization", "c,gamma,beta,mean,var", "n");
    kit_node(m, "Conv", "n,v", "d");
    kit_node(m, "GlobalAveragePool", "d", "g"); /* d is used twice */
    kit_node(m, "BatchNormalization", "d,gamma,beta,mean,var", "e");
    kit_node(m, "Conv", "e,u", "f");
    kit_node(m, "BatchNormalization", "f,gamma,beta,mean,negative", "h"); /* NaN */
    kit_node(m, "Conv", "h,twice", "i"); /* two convolutions have these weights */
    kit_node(m, "BatchNormalization", "i,gamma,beta,mean,var", "j");
    kit_node(m, "Conv", "j,twice", "y");
    const float negative[6] = {-1, 1, 1, 1, 1, 1};
    kit_const(m, "negative", CM_FP32, kit_shape(1, 6), negative);
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 6, 9, 9));
    kit_output(m, "c", CM_FP32, kit_shape(4, -1, 6, 9, 9));
    kit_output(m, "g", CM_FP32, kit_shape(4, -1, 6, 1, 1));
    char text[256];
    size_t length;
    void *bytes = kit_bytes(m, &length);
    struct cm_shape x = kit_shape(4, 2, 6, 9, 9);
    assert_string_equal(passes_plan(bytes, length, &x, 0, text, sizeof text),
                        "Conv BatchNormalization Conv GlobalAveragePool BatchNormalization Conv "
                        "BatchNormalization Conv BatchNormalization Conv");
    free(bytes);
    kit_free(m);
}

/* ---- layer_norm -------------------------------------------------------------------------------
 */

struct layer {
    bool product;     /* d * d instead of Pow */
    bool bias_first;  /* bias + y */
    bool wide_scale;  /* [1,24] instead of [24] */
    bool other_axis;  /* the variance along another axis */
    bool mean_leaves; /* the mean is an output of the graph */
    bool no_bias;
    const char *plan;
};

static void one_layer_norm(const struct layer *layer)
{
    struct kit_model *m = model(kit_shape(3, -1, -1, 24));
    kit_random(m, "scale", layer->wide_scale ? kit_shape(2, 1, 24) : kit_shape(1, 24));
    kit_random(m, "bias", kit_shape(1, 24));
    number(m, "two", 2.0f);
    number(m, "epsilon", 1e-5f);
    kit_node(m, "ReduceMean", "x", "m");
    kit_attr_ints(m, "axes", 1, -1);
    kit_node(m, "Sub", "x,m", "d");
    kit_node(m, layer->product ? "Mul" : "Pow", layer->product ? "d,d" : "d,two", "p");
    kit_node(m, "ReduceMean", "p", "v");
    kit_attr_ints(m, "axes", 1, layer->other_axis ? 1 : 2);
    kit_node(m, "Add", "epsilon,v", "e");
    kit_node(m, "Sqrt", "e", "s");
    kit_node(m, "Div", "d,s", "q");
    kit_node(m, "Mul", "q,scale", layer->no_bias ? "y" : "z");
    if (!layer->no_bias)
        kit_node(m, "Add", layer->bias_first ? "bias,z" : "z,bias", "y");
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, -1, 24));
    if (layer->mean_leaves)
        kit_output(m, "m", CM_FP32, kit_shape(3, -1, -1, 1));
    expect_without(m, kit_shape(3, 2, 7, 24), "activation", layer->plan);
}

static void layer_norms_are_recognised(void **state)
{
    static const struct layer layers[] = {
        {.plan = "LayerNormalization"},
        {.product = true, .bias_first = true, .plan = "LayerNormalization"},
        {.no_bias = true, .plan = "LayerNormalization"},
        {.wide_scale = true, .plan = "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"},
        {.other_axis = true, .plan = "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"},
        {.mean_leaves = true, .plan = "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"},
    };
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(layers); i++)
        one_layer_norm(&layers[i]);
}

/* ---- gelu and swish ---------------------------------------------------------------------------
 */

static void gelus_are_recognised(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 40));
    (void)state;
    number(m, "root", 1.41421354f);
    number(m, "one", 1.0f);
    number(m, "half", 0.5f);
    number(m, "a", 0.044715f);
    number(m, "b", 0.797884583f);
    kit_node(m, "Div", "x,root", "g1");
    kit_node(m, "Erf", "g1", "g2");
    kit_node(m, "Add", "g2,one", "g3");
    kit_node(m, "Mul", "x,g3", "g4");
    kit_node(m, "Mul", "g4,half", "g");
    kit_node(m, "Mul", "g,g", "h1");
    kit_node(m, "Mul", "g,h1", "h2");
    kit_node(m, "Mul", "a,h2", "h3");
    kit_node(m, "Add", "h3,g", "h4");
    kit_node(m, "Mul", "h4,b", "h5");
    kit_node(m, "Tanh", "h5", "h6");
    kit_node(m, "Add", "one,h6", "h7");
    kit_node(m, "Mul", "h7,g", "h8");
    kit_node(m, "Mul", "half,h8", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 40));
    expect_without(m, kit_shape(2, 3, 40), "activation", "Gelu Gelu");
}

/* Halving first rounds otherwise, and an intermediate that is used again stays. */
static void other_gelus_stay(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 40));
    (void)state;
    number(m, "root", 1.41421354f);
    number(m, "one", 1.0f);
    number(m, "half", 0.5f);
    kit_node(m, "Div", "x,root", "g1");
    kit_node(m, "Erf", "g1", "g2");
    kit_node(m, "Add", "g2,one", "g3");
    kit_node(m, "Mul", "x,half", "g4");
    kit_node(m, "Mul", "g4,g3", "g");
    kit_node(m, "Div", "g,root", "h1");
    kit_node(m, "Erf", "h1", "h2");
    kit_node(m, "Add", "h2,one", "h3");
    kit_node(m, "Mul", "g,h3", "h4");
    kit_node(m, "Mul", "h4,half", "h5");
    kit_node(m, "Pow", "h2,h5", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 40));
    expect_without(m, kit_shape(2, 3, 40), "activation",
                   "Div Erf Add Mul Mul Div Erf Add Mul Mul Pow");
}

static void swishes_are_recognised(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 40));
    (void)state;
    number(m, "zero", 0.0f);
    number(m, "one", 1.0f);
    number(m, "three", 3.0f);
    number(m, "six", 6.0f);
    kit_node(m, "Mul", "x,one", "a1");
    kit_node(m, "Sigmoid", "a1", "a2");
    kit_node(m, "Mul", "x,a2", "a");
    kit_node(m, "HardSigmoid", "a", "b1");
    kit_attr_f(m, "alpha", 0.16666667f);
    kit_node(m, "Mul", "b1,a", "b");
    kit_node(m, "Add", "three,b", "c1");
    kit_node(m, "Clip", "c1,zero,six", "c2");
    kit_node(m, "Mul", "b,c2", "c3");
    kit_node(m, "Div", "c3,six", "c");
    kit_node(m, "Add", "c,three", "d1");
    kit_node(m, "Clip", "d1,zero,six", "d2");
    kit_node(m, "Div", "d2,six", "d3");
    kit_node(m, "Mul", "d3,c", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 40));
    size_t length;
    char text[256];
    void *bytes = kit_bytes(m, &length);
    struct cm_shape x = kit_shape(2, 3, 40);
    assert_string_equal(
        passes_plan(bytes, length, &x, passes_bits("activation"), text, sizeof text),
        "Swish HardSwish HardSwish HardSwish");
    free(bytes);
    expect(m, x, "Swish+HardSwish+HardSwish+HardSwish");
}

static void other_gates_stay(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 40));
    (void)state;
    number(m, "zero", 0.0f);
    number(m, "three", 3.0f);
    number(m, "five", 5.0f);
    kit_node(m, "Sigmoid", "x", "s"); /* used again */
    kit_node(m, "Mul", "x,s", "a");
    kit_node(m, "Softmax", "s", "b");
    kit_node(m, "Sigmoid", "b", "c");
    kit_node(m, "Mul", "a,c", "d"); /* another value's gate */
    kit_node(m, "Add", "d,three", "e");
    kit_node(m, "Clip", "e,zero,five", "f");
    kit_node(m, "Mul", "d,f", "g");
    kit_node(m, "Div", "g,five", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 40));
    expect_without(m, kit_shape(2, 3, 40), "activation",
                   "Sigmoid Mul Softmax Sigmoid Mul Add Clip Mul Div");
}

/* ---- views ------------------------------------------------------------------------------------
 */

static void moves_of_nothing_are_views(void **state)
{
    struct kit_model *m = model(kit_shape(4, -1, 1, 5, 7));
    (void)state;
    kit_node(m, "Transpose", "x", "a"); /* a dimension of 1 moves */
    kit_attr_ints(m, "perm", 4, 0, 2, 1, 3);
    kit_node(m, "Softmax", "a", "b");
    kit_node(m, "Transpose", "b", "c"); /* there and back */
    kit_attr_ints(m, "perm", 4, 0, 3, 1, 2);
    kit_node(m, "Transpose", "c", "d");
    kit_attr_ints(m, "perm", 4, 0, 2, 3, 1);
    kit_node(m, "Softmax", "d", "e");
    kit_node(m, "Transpose", "e", "f"); /* two are one */
    kit_attr_ints(m, "perm", 4, 0, 3, 1, 2);
    kit_node(m, "Transpose", "f", "g");
    kit_attr_ints(m, "perm", 4, 0, 1, 3, 2);
    kit_node(m, "Identity", "g", "h");
    kit_node(m, "Flatten", "h", "i");
    kit_ints(m, "shape", 3, -1, 7, 5);
    kit_node(m, "Reshape", "i,shape", "y");
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, 7, 5));
    expect_without(m, kit_shape(4, 3, 1, 5, 7), "activation", "Softmax Softmax Transpose");
}

static void outputs_may_be_what_is_looked_through(void **state)
{
    struct kit_model *m = model(kit_shape(3, -1, 5, 7));
    (void)state;
    kit_node(m, "Transpose", "x", "a");
    kit_attr_ints(m, "perm", 3, 0, 2, 1);
    kit_node(m, "Transpose", "a", "b");
    kit_attr_ints(m, "perm", 3, 0, 2, 1);
    kit_node(m, "Identity", "x", "c");
    kit_output(m, "a", CM_FP32, kit_shape(3, -1, 7, 5));
    kit_output(m, "b", CM_FP32, kit_shape(3, -1, 5, 7));
    kit_output(m, "c", CM_FP32, kit_shape(3, -1, 5, 7));
    expect(m, kit_shape(3, 2, 5, 7), "Transpose");
}

/* ---- dead ------------------------------------------------------------------------------------ */

static void what_passes_leave_is_dropped(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 4));
    (void)state;
    number(m, "two", 2.0f);
    kit_node(m, "Pow", "x,two", "a");
    kit_node(m, "Pow", "x,two", "b");
    kit_node(m, "Pow", "a,b", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    expect_without(m, kit_shape(2, 3, 4), "dead", "Pow Pow Pow");
}

/* ---- the interface --------------------------------------------------------------------------- */

static void keys_depend_on_the_passes(void **state)
{
    struct kit_model *m = model(kit_shape(2, -1, 4));
    struct kit_loaded all, less;
    uint8_t a[32], b[32];
    size_t length;
    (void)state;
    kit_node(m, "Relu", "x", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    void *bytes = kit_bytes(m, &length);
    kit_load_without(&all, bytes, length, 0);
    kit_load_without(&less, bytes, length, passes_bits("fold"));
    wk_model_weights_key(all.model, a);
    wk_model_weights_key(less.model, b);
    assert_memory_not_equal(a, b, sizeof a);
    kit_unload(&all);
    kit_unload(&less);
    free(bytes);
    kit_free(m);
}

static void passes_have_names(void **state)
{
    uint64_t bits = 0, all = 0, seen = 0;
    (void)state;
    assert_true(wk_pass_from_name("all", &all));
    for (unsigned i = 0; wk_pass_name(i); i++) {
        assert_true(wk_pass_from_name(wk_pass_name(i), &bits));
        assert_int_equal(bits & seen, 0);
        assert_non_null(wk_pass_summary(i));
        seen |= bits;
    }
    assert_int_equal(seen, all);
    assert_false(wk_pass_from_name("", &bits));
    assert_false(wk_pass_from_name("folding", &bits));
}

/* ---- a file ---------------------------------------------------------------------------------- */

static const char *file_name;
static char **file_shapes;
static int n_file_shapes;

static void named_model(void **state)
{
    struct cm_shape shapes[WK_MAX_IO] = {{0}};
    (void)state;
    FILE *file = fopen(file_name, "rb");
    if (!file)
        fail_msg("%s cannot be opened", file_name);
    assert_true(n_file_shapes <= WK_MAX_IO);
    for (int i = 0; i < n_file_shapes; i++)
        for (const char *at = file_shapes[i]; *at && shapes[i].rank < CM_MAX_RANK;) {
            char *end;
            shapes[i].dims[shapes[i].rank++] = strtoll(at, &end, 10);
            at = *end == ',' ? end + 1 : end;
        }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    rewind(file);
    assert_true(length > 0);
    void *bytes = malloc((size_t)length);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)length, file), length);
    fclose(file);
    passes_compare(bytes, (size_t)length, shapes);
    free(bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest named[] = {cmocka_unit_test(named_model)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_are_folded),
        cmocka_unit_test(a_fixed_shape_is_folded),
        cmocka_unit_test(large_results_stay_nodes),
        cmocka_unit_test(failing_constants_stay_nodes),
        cmocka_unit_test(equal_nodes_become_one),
        cmocka_unit_test(constants_of_other_shapes_differ),
        cmocka_unit_test(convolutions_take_what_follows),
        cmocka_unit_test(products_take_what_follows),
        cmocka_unit_test(gemm_takes_what_follows),
        cmocka_unit_test(chains_of_elementwise_operators),
        cmocka_unit_test(known_numbers_are_fused_too),
        cmocka_unit_test(what_is_used_twice_is_not_fused),
        cmocka_unit_test(what_grows_is_not_fused),
        cmocka_unit_test(at_most_eight_are_fused),
        cmocka_unit_test(norms_are_folded_into_convolutions),
        cmocka_unit_test(other_norms_stay),
        cmocka_unit_test(layer_norms_are_recognised),
        cmocka_unit_test(gelus_are_recognised),
        cmocka_unit_test(other_gelus_stay),
        cmocka_unit_test(swishes_are_recognised),
        cmocka_unit_test(other_gates_stay),
        cmocka_unit_test(moves_of_nothing_are_views),
        cmocka_unit_test(outputs_may_be_what_is_looked_through),
        cmocka_unit_test(what_passes_leave_is_dropped),
        cmocka_unit_test(keys_depend_on_the_passes),
        cmocka_unit_test(passes_have_names),
    };
    if (argc > 2) {
        file_name = argv[1];
        file_shapes = argv + 2;
        n_file_shapes = argc - 2;
        return cmocka_run_group_tests(named, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
