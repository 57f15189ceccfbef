/* Operators that move data where the data decide: outputs whose size is counted in the run, shapes
 * and bounds that come with the request; then what is refused, and where rows stay rows. */
#include "tests/engine/kit.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum cm_dtype all_dtypes[] = {
#define X(name, number, bytes, text, onnx) CM_##name,
    CM_DTYPE_MAP(X)
#undef X
};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0] };

/* One run on each number of threads: output 0 has this shape and these bytes. Frees m. */
static void check(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                  struct cm_shape shape, const void *want, size_t bytes)
{
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        struct cm_shape got_shape;
        void *got[1];
        kit_load_model(&l, m, threads, NULL);
        kit_run(&l, shapes, inputs, got, &got_shape);
        if (!cm_shape_equal(&got_shape, &shape)) {
            char a[96], b[96];
            fail_msg("shape %s, wanted %s", cm_shape_format(&got_shape, a, sizeof a),
                     cm_shape_format(&shape, b, sizeof b));
        }
        assert_memory_equal(got[0], want, bytes);
        free(got[0]);
        kit_unload(&l);
    }
    kit_free(m);
}

/* An element with one bit set, below the sign: not zero in any type. */
static void set_element(char *data, enum cm_dtype dtype, size_t i)
{
    data[i * cm_dtype_size(dtype)] = 1;
}

static void non_zeros(void **state)
{
    (void)state;
    for (int i = 0; i < N_DTYPES; i++) {
        enum cm_dtype dtype = all_dtypes[i];
        size_t size = cm_dtype_size(dtype);
        struct cm_shape shape = kit_shape(2, 3, 4);
        char data[12 * 8] = {0};
        const int64_t want[6] = {0, 1, 2, 3, 0, 3};
        const void *inputs[] = {data};
        set_element(data, dtype, 3);
        set_element(data, dtype, 4);
        set_element(data, dtype, 11);
        if (dtype == CM_FP32 || dtype == CM_FP64 || dtype == CM_FP16 || dtype == CM_BF16)
            data[6 * size + size - 1] = (char)0x80; /* -0 is zero */
        struct kit_model *m = kit_model(13);
        kit_input(m, "x", dtype, shape);
        kit_node(m, "NonZero", "x", "y");
        kit_output(m, "y", CM_INT64, kit_shape(2, 2, -1));
        check(m, &shape, inputs, kit_shape(2, 2, 3), want, sizeof want);
    }
    /* None at all, and of a scalar. */
    const float zero[3] = {0, 0, 0}, one = 1;
    const void *inputs[] = {zero};
    struct cm_shape shapes[] = {kit_shape(1, 3)};
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, shapes[0]);
    kit_node(m, "NonZero", "x", "y");
    kit_output(m, "y", CM_INT64, kit_shape(2, 1, -1));
    check(m, shapes, inputs, kit_shape(2, 1, 0), "", 0);
    inputs[0] = &one;
    shapes[0] = kit_shape(0);
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, shapes[0]);
    kit_node(m, "NonZero", "x", "y");
    kit_output(m, "y", CM_INT64, kit_shape(2, 0, -1));
    check(m, shapes, inputs, kit_shape(2, 0, 1), "", 0);
}

static void compresses(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_DTYPES; i++) {
        enum cm_dtype dtype = all_dtypes[i % N_DTYPES];
        bool flat = i >= N_DTYPES;
        size_t size = cm_dtype_size(dtype);
        struct cm_shape shapes[] = {kit_shape(3, 2, 4, 3), kit_shape(1, flat ? 20 : 3)};
        const uint8_t conditions[20] = {0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1};
        char data[24 * 8], want[24 * 8];
        const void *inputs[] = {data, conditions};
        size_t n = 0;
        for (size_t k = 0; k < sizeof data; k++)
            data[k] = (char)(dtype == CM_BOOL ? k % 3 == 0 : k * 7);
        for (size_t e = 0; e < 24; e++) {
            size_t at = flat ? e : e / 3 % 4;
            if (at < (flat ? 20u : 3u) && conditions[at])
                memcpy(want + n++ * size, data + e * size, size);
        }
        struct kit_model *m = kit_model(11);
        kit_input(m, "x", dtype, shapes[0]);
        kit_input(m, "c", CM_BOOL, shapes[1]);
        kit_node(m, "Compress", "x,c", "y");
        if (!flat)
            kit_attr_i(m, "axis", -2);
        kit_output(m, "y", dtype, flat ? kit_shape(1, -1) : kit_shape(3, 2, -1, 3));
        check(m, shapes, inputs, flat ? kit_shape(1, 4) : kit_shape(3, 2, 2, 3), want, n * size);
    }
}

/* Equal scores go by index; what is left feeds a Gather. */
static void suppressions(void **state)
{
    const float boxes[16] = {0, 0, 1, 1, 5, 5, 6, 6, 0, 0.1f, 1, 1.1f, 9, 9, 8, 8};
    const float scores[4] = {0.5f, 0.5f, 0.5f, NAN}, overlap = 0.5f;
    const int64_t most = 3, want[2] = {0, 1};
    struct cm_shape shapes[] = {kit_shape(3, 1, 4, 4), kit_shape(3, 1, 1, 4), kit_shape(0)};
    const void *inputs[] = {boxes, scores, &most};
    (void)state;
    struct kit_model *m = kit_model(11);
    kit_input(m, "b", CM_FP32, shapes[0]);
    kit_input(m, "s", CM_FP32, shapes[1]);
    kit_input(m, "n", CM_INT64, shapes[2]);
    kit_const(m, "o", CM_FP32, kit_shape(0), &overlap);
    kit_ints(m, "two", 1, 2);
    kit_node(m, "NonMaxSuppression", "b,s,n,o", "kept");
    kit_node(m, "Gather", "kept,two", "y");
    kit_attr_i(m, "axis", 1);
    kit_output(m, "y", CM_INT64, kit_shape(2, -1, 1));
    check(m, shapes, inputs, kit_shape(2, 2, 1), want, sizeof want);
}

static void ngrams(void **state)
{
    /* Pool: 1, 2 | 1 2, 2 1; their columns 2, 0 | 3, 1. */
    const int64_t x[8] = {1, 2, 1, 2, 2, 3, 3, 1};
    const float weights[4] = {0.5f, 2, 3, 4};
    const float want[3][8] = {
        {2, 1, 2, 2, 1, 0, 1, 0}, {2, 4, 0.5f, 3, 2, 0, 0.5f, 0}, {4, 4, 1, 6, 2, 0, 0.5f, 0}};
    static const char *const modes[] = {"TF", "IDF", "TFIDF"};
    struct cm_shape shape = kit_shape(2, 2, 4);
    const void *inputs[] = {x};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct kit_model *m = kit_model(9);
        kit_input(m, "x", CM_INT64, shape);
        kit_node(m, "TfIdfVectorizer", "x", "y");
        kit_attr_s(m, "mode", modes[i]);
        kit_attr_i(m, "min_gram_length", 1);
        kit_attr_i(m, "max_gram_length", 2);
        kit_attr_i(m, "max_skip_count", 0);
        kit_attr_ints(m, "ngram_counts", 2, 0, 2);
        kit_attr_ints(m, "ngram_indexes", 4, 2, 0, 3, 1);
        kit_attr_ints(m, "pool_int64s", 6, 1, 2, 1, 2, 2, 1);
        kit_attr_floats(m, "weights", 4, weights);
        kit_output(m, "y", CM_FP32, kit_shape(2, 2, 4));
        check(m, &shape, inputs, kit_shape(2, 2, 4), want[i], sizeof want[i]);
    }
}

/* ---- operands that come with the request ----------------------------------------------------- */

/* x is 0..5 as [2][3]; one operand, a vector of integers, is an input. */
static void bounds_in_the_run(void **state)
{
    static const struct {
        const char *op, *operands;
        int n, given[4], rank, y[4], count;
        float want[12];
    } cases[] = {
        {"Reshape", "x,v", 2, {3, -1}, 2, {3, 2}, 6, {0, 1, 2, 3, 4, 5}},
        {"Expand", "x,v", 3, {2, 1, 1}, 3, {2, 2, 3}, 12, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}},
        {"Tile", "x,v", 2, {1, 2}, 2, {2, 6}, 12, {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}},
        {"Pad", "x,v", 4, {0, 1, 0, -2}, 2, {2, 2}, 4, {0, 0, 0, 3}},
        {"Unsqueeze", "x,v", 1, {-1}, 3, {2, 3, 1}, 6, {0, 1, 2, 3, 4, 5}},
        {"Slice", "x,v,big", 2, {1, 1}, 2, {1, 2}, 2, {4, 5}},
        {"Slice", "x,zero,v", 2, {-1, 2}, 2, {1, 2}, 2, {0, 1}},
        {"Split", "x,v", 2, {1, 2}, 2, {2, 1}, 2, {0, 3}},
        {"ConstantOfShape", "v", 2, {2, 2}, 2, {2, 2}, 4, {0, 0, 0, 0}},
        {"CenterCropPad", "x,v", 2, {1, 1}, 2, {1, 1}, 1, {1}},
        {"Resize", "x,,,v", 2, {2, 6}, 2, {2, 6}, 12, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}},
    };
    const float x[6] = {0, 1, 2, 3, 4, 5};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool split = strcmp(cases[i].op, "Split") == 0;
        int64_t given[4];
        struct cm_shape shapes[] = {kit_shape(2, 2, 3), kit_shape(1, cases[i].n)};
        struct cm_shape y = {.rank = (uint8_t)cases[i].rank}, declared = y;
        const void *inputs[] = {x, given};
        struct kit_model *m = kit_model(18);
        for (int k = 0; k < 4; k++) {
            given[k] = cases[i].given[k];
            y.dims[k] = cases[i].y[k];
            declared.dims[k] = -1;
        }
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "v", CM_INT64, shapes[1]);
        kit_ints(m, "zero", 2, 0, 0);
        kit_ints(m, "big", 2, 9, 9);
        kit_node(m, cases[i].op, cases[i].operands, split ? "y,z" : "y");
        if (split)
            kit_attr_i(m, "axis", 1);
        kit_node(m, "Identity", "x", "unused");
        kit_output(m, "y", CM_FP32, declared);
        kit_output(m, "unused", CM_FP32, shapes[0]);
        for (unsigned threads = 1; threads <= 2; threads++) {
            struct kit_loaded l;
            struct cm_shape got_shape[2];
            void *got[2];
            kit_load_model(&l, m, threads, NULL);
            kit_run(&l, shapes, inputs, got, got_shape);
            if (!cm_shape_equal(&got_shape[0], &y))
                fail_msg("%s: a wrong shape", cases[i].op);
            assert_memory_equal(got[0], cases[i].want, (size_t)cases[i].count * sizeof(float));
            free(got[0]);
            free(got[1]);
            kit_unload(&l);
        }
        kit_free(m);
    }
}

/* Bounds that do not fit are refused in the run, and nothing is lost. */
static void bad_bounds_in_the_run(void **state)
{
    static const struct {
        const char *op, *operands;
        int n, given[4];
        const char *message;
    } cases[] = {
        {"Reshape", "x,v", 2, {4, -1}, "does not fit"},
        {"Expand", "x,v", 2, {2, 7}, "does not fit"},
        {"Tile", "x,v", 2, {-1, 2}, "repeat -1"},
        {"Pad", "x,v", 4, {0, -9, 0, 0}, "pads -9"},
        {"Unsqueeze", "x,v", 1, {5}, "axis 5"},
        {"Split", "x,v", 2, {2, 2}, "the parts have 4 elements"},
        {"ConstantOfShape", "v", 2, {2, -2}, "dimension -2"},
        {"Slice", "x,v,v,v,v", 1, {0}, "step 0"},
        {"Resize", "x,,,v", 2, {2, -6}, "size -6"},
    };
    const float x[6] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool split = strcmp(cases[i].op, "Split") == 0;
        int64_t given[4];
        struct cm_shape shapes[] = {kit_shape(2, 2, 3), kit_shape(1, cases[i].n)};
        struct kit_model *m = kit_model(13);
        struct kit_loaded l;
        for (int k = 0; k < 4; k++)
            given[k] = cases[i].given[k];
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "v", CM_INT64, shapes[1]);
        kit_node(m, cases[i].op, cases[i].operands, split ? "y,z" : "y");
        if (split)
            kit_attr_i(m, "axis", 1);
        kit_node(m, "Shape", "y", "s");
        kit_node(m, "Shape", "s", "t");
        kit_output(m, "s", CM_INT64, kit_shape(1, -1));
        kit_node(m, "Identity", "x", "same");
        kit_output(m, "same", CM_FP32, shapes[0]);
        kit_load_model(&l, m, 1, NULL);
        kit_run_refused(&l, shapes, (const void *[]){x, given}, CM_INVALID, cases[i].op,
                        cases[i].message);
        kit_unload(&l);
        kit_free(m);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

struct refusal {
    int opset;
    const char *op, *operands;
    const char *attribute;
    char type; /* i, s, or 0: none */
    int number;
    const char *text, *message;
};

/* Operands: x [2][3], q [1][4][2][2] (FP32), i [2][3] and v [2] (INT64), f [2] (FP32), s scalar. */
static void refusals(void **state)
{
    static const struct refusal cases[] = {
        {13, "Gather", "x,f", NULL, 0, 0, NULL, "input 1 has type FP32"},
        {13, "Gather", "x,v", "axis", 'i', 2, NULL, "axis is out of range"},
        {13, "GatherElements", "x,v", NULL, 0, 0, NULL, "does not fit input [2]"},
        {13, "GatherND", "x,i", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {13, "GatherND", "x,i", "batch_dims", 'i', 2, NULL, "batch_dims 2"},
        {13, "ScatterElements", "x,i,f", NULL, 0, 0, NULL, "does not fit input [2]"},
        {13, "ScatterElements", "x,i,i", NULL, 0, 0, NULL, "data is FP32 and updates are INT64"},
        {16, "ScatterElements", "x,i,x", "reduction", 's', 0, "max", "reduction must be"},
        {13, "ScatterND", "x,v,f", NULL, 0, 0, NULL, "does not fit input [2]"},
        {11, "OneHot", "i,s,v", "axis", 'i', 3, NULL, "axis is out of range"},
        {11, "OneHot", "i,s,x", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {11, "Compress", "x,v", NULL, 0, 0, NULL, "condition must be a vector of BOOL"},
        {10, "ReverseSequence", "x,v", "time_axis", 'i', 1, NULL, "time_axis and batch_axis"},
        {10, "ReverseSequence", "f,v", NULL, 0, 0, NULL, "does not fit input [2]"},
        {14, "Trilu", "f", NULL, 0, 0, NULL, "does not fit input [2]"},
        {14, "Trilu", "x,v", NULL, 0, 0, NULL, "input 1 must be one element"},
        {11, "Range", "x,s,s", NULL, 0, 0, NULL, "input 0 must be one element"},
        {13, "Tile", "x,one", NULL, 0, 0, NULL, "1 repeats for 2 dimensions"},
        {13, "Tile", "x,low", NULL, 0, 0, NULL, "repeat -3 is out of range"},
        {13, "Split", "x,one", NULL, 0, 0, NULL, "split has 1 entries for 2 outputs"},
        {11, "Split", "x", "axis", 'i', 1, NULL, "3 elements in 2 equal parts"},
        {18, "Split", "x", "num_outputs", 'i', 3, NULL, "num_outputs must be"},
        {13, "DepthToSpace", "x", "blocksize", 'i', 2, NULL, "does not fit input [2,3]"},
        {13, "DepthToSpace", "q", "blocksize", 'i', 3, NULL, "does not fit input [1,4,2,2]"},
        {13, "DepthToSpace", "q", "blocksize", 'i', 0, NULL, "blocksize 0"},
        {13, "DepthToSpace", "q", "mode", 's', 0, "RGB", "mode must be DCR or CRD"},
        {13, "SpaceToDepth", "q", "blocksize", 'i', 3, NULL, "does not fit input [1,4,2,2]"},
        {13, "Pad", "x,one", NULL, 0, 0, NULL, "pads has 1 entries, must have 4"},
        {13, "Pad", "x,pads", "mode", 's', 0, "wrap", "mode must be constant, reflect or edge"},
        {13, "Pad", "x,pads,v", NULL, 0, 0, NULL, "one element of the input's type"},
        {13, "Pad", "x,low", NULL, 0, 0, NULL, "pads has 2 entries"},
        {18, "CenterCropPad", "x,one", NULL, 0, 0, NULL, "shape has 1 entries for 2 axes"},
        {13, "Resize", "x", NULL, 0, 0, NULL, "exactly one of scales and sizes"},
        {13, "Resize", "x,,f,v", NULL, 0, 0, NULL, "exactly one of scales and sizes"},
        {13, "Resize", "x,,scale0", NULL, 0, 0, NULL, "scale 0 is out of range"},
        {13, "Resize", "x,,scale1", NULL, 0, 0, NULL, "1 scales or sizes for 2 axes"},
        {13, "Resize", "x,,f", "mode", 's', 0, "area", "mode must be nearest, linear or cubic"},
        {13, "Resize", "x,,f", "nearest_mode", 's', 0, "up",
         "nearest_mode must be round_prefer_floor,"},
        {13, "Resize", "x,,f", "coordinate_transformation_mode", 's', 0, "tf_crop_and_resize",
         "roi must have 4 entries"},
        {18, "Resize", "x,,f", "antialias", 'i', 1, NULL, "antialias is for linear and cubic"},
        {10, "Resize", "x,f", "mode", 's', 0, "cubic", "mode must be nearest, linear or bilinear"},
        {9, "Upsample", "x,scale0", NULL, 0, 0, NULL, "scale 0 is out of range"},
        {16, "GridSample", "q,x", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {16, "GridSample", "q,q", "mode", 's', 0, "linear",
         "mode must be bilinear, nearest or bicubic"},
        {16, "GridSample", "x,x", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {16, "RoiAlign", "q,x,v", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {16, "RoiAlign", "q,q,v", "mode", 's', 0, "min", "mode must be avg or max"},
        {13, "MaxRoiPool", "q,x", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {11, "NonMaxSuppression", "x,x", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {9, "TfIdfVectorizer", "v", "mode", 's', 0, "TF", "is missing"},
        {18, "Col2Im", "q,v,v", NULL, 0, 0, NULL, "does not fit input [1,4,2,2]"},
        {20, "AffineGrid", "x,v", NULL, 0, 0, NULL, "does not fit input [2,3]"},
        {13, "Reshape", "x,f", NULL, 0, 0, NULL, "must be a vector of INT32 or INT64"},
        {13, "Slice", "x,v,one", NULL, 0, 0, NULL, "starts, ends, axes and steps do not fit"},
        {13, "Concat", "x,q", "axis", 'i', 0, NULL, "input 1 does not fit"},
    };
    const float f[2] = {2, 2}, scale0[2] = {1, 0}, scalar = 3;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct refusal *c = &cases[i];
        struct kit_model *m = kit_model(c->opset);
        struct wk_engine *engine = kit_engine(1, NULL);
        struct wk_model *model = NULL;
        struct cm_error err = {0};
        size_t length;
        kit_input(m, "x", CM_FP32, kit_shape(2, 2, 3));
        kit_input(m, "q", CM_FP32, kit_shape(4, 1, 4, 2, 2));
        kit_input(m, "i", CM_INT64, kit_shape(2, 2, 3));
        kit_input(m, "v", CM_INT64, kit_shape(1, 2));
        kit_const(m, "f", CM_FP32, kit_shape(1, 2), f);
        kit_const(m, "scale0", CM_FP32, kit_shape(1, 2), scale0);
        kit_const(m, "scale1", CM_FP32, kit_shape(1, 1), f);
        kit_const(m, "s", CM_FP32, kit_shape(0), &scalar);
        kit_ints(m, "one", 1, 1);
        kit_ints(m, "low", 2, 1, -3);
        kit_ints(m, "pads", 4, 1, 1, 1, 1);
        kit_node(m, c->op, c->operands, strcmp(c->op, "Split") ? "y" : "y,z");
        if (c->type == 'i')
            kit_attr_i(m, c->attribute, c->number);
        if (c->type == 's')
            kit_attr_s(m, c->attribute, c->text);
        kit_output(m, "y", CM_FP32, kit_shape(1, -1));
        void *bytes = kit_bytes(m, &length);
        enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
        if (code == CM_OK || !strstr(err.text, c->message) || !strstr(err.text, c->op))
            fail_msg("case %zu: %s: %s \"%s\"", i, c->op, cm_err_name(code), err.text);
        free(bytes);
        wk_model_destroy(model);
        wk_engine_destroy(engine);
        kit_free(m);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* x [batch][4][6], img [batch][4][6][6], i [batch][4][6] and l [batch] (INT64), grid
 * [batch][6][6][2]. */
static void rows(void **state)
{
    static const struct {
        const char *op, *operands, *attribute;
        int number;
        bool batchable;
    } cases[] = {
        {"GatherElements", "x,i", "axis", 1, true},
        {"GatherElements", "x,i", "axis", 0, false},
        {"ScatterElements", "x,i,x", "axis", 2, true},
        {"ScatterElements", "x,i,x", "axis", 0, false},
        {"GatherND", "x,t", "batch_dims", 1, true},
        {"GatherND", "x,t", "batch_dims", 0, false},
        {"Tile", "x,r1", NULL, 0, true},
        {"Tile", "x,r2", NULL, 0, false},
        {"Pad", "x,p1", NULL, 0, true},
        {"Pad", "x,p2", NULL, 0, false},
        {"DepthToSpace", "img", "blocksize", 2, true},
        {"SpaceToDepth", "img", "blocksize", 3, true},
        {"Resize", "img,,s1", NULL, 0, true},
        {"Resize", "img,,s2", NULL, 0, false},
        {"GridSample", "img,grid", NULL, 0, true},
        {"OneHot", "i,d,two", "axis", -1, true},
        {"OneHot", "i,d,two", "axis", 0, false},
        {"Trilu", "x", NULL, 0, true},
        {"Trilu", "flat", NULL, 0, false},
        {"ReverseSequence", "x,l", "batch_axis", 0, true},
        {"ReverseSequence", "x,l", NULL, 0, false},
        {"Split", "x", "axis", 1, true},
        {"Compress", "x,c", "axis", 1, true},
        {"Compress", "x,c", "axis", 0, false},
        {"NonZero", "x", NULL, 0, false},
        {"CenterCropPad", "x,a", NULL, 0, true},
    };
    const float s1[4] = {1, 1, 2, 2}, s2[4] = {2, 1, 2, 2}, two[2] = {0, 1};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool reversed = strcmp(cases[i].op, "ReverseSequence") == 0;
        struct kit_model *m = kit_model(18);
        struct wk_engine *engine = kit_engine(1, NULL);
        struct wk_model *model = NULL;
        struct cm_error err = {0};
        size_t length;
        kit_input(m, "x", CM_FP32, kit_shape(3, -1, 4, 6));
        kit_input(m, "flat", CM_FP32, kit_shape(2, -1, 4));
        kit_input(m, "img", CM_FP32, kit_shape(4, -1, 4, 6, 6));
        kit_input(m, "i", CM_INT64, kit_shape(3, -1, 4, 6));
        kit_input(m, "t", CM_INT64, kit_shape(3, -1, 2, 1));
        kit_input(m, "l", CM_INT64, kit_shape(1, -1));
        kit_input(m, "grid", CM_FP32, kit_shape(4, -1, 6, 6, 2));
        kit_ints(m, "r1", 3, 1, 2, 2);
        kit_ints(m, "r2", 3, 2, 1, 1);
        kit_ints(m, "p1", 6, 0, 1, 1, 0, 1, 1);
        kit_ints(m, "p2", 6, 1, 0, 0, 0, 0, 0);
        kit_ints(m, "a", 2, 9, 3);
        kit_ints(m, "d", 1, 3);
        kit_const(m, "s1", CM_FP32, kit_shape(1, 4), s1);
        kit_const(m, "s2", CM_FP32, kit_shape(1, 4), s2);
        kit_const(m, "two", CM_FP32, kit_shape(1, 2), two);
        kit_const(m, "c", CM_BOOL, kit_shape(1, 4), "\1\0\1\1");
        kit_node(m, cases[i].op, cases[i].operands, strcmp(cases[i].op, "Split") ? "y" : "y,z");
        if (cases[i].attribute)
            kit_attr_i(m, cases[i].attribute, cases[i].number);
        if (reversed && cases[i].batchable)
            kit_attr_i(m, "time_axis", 1);
        if (strcmp(cases[i].op, "CenterCropPad") == 0)
            kit_attr_ints(m, "axes", 2, 1, 2);
        kit_output(m, "y", strcmp(cases[i].op, "NonZero") ? CM_FP32 : CM_INT64, KIT_SHAPE0());
        void *bytes = kit_bytes(m, &length);
        if (wk_model_parse(engine, bytes, length, NULL, &err, &model) != CM_OK)
            fail_msg("case %zu: %s: %s", i, cases[i].op, err.text);
        const struct wk_signature *signature = wk_model_signature(model);
        if (signature->batchable != cases[i].batchable)
            fail_msg("case %zu: %s: batchable is %d: %s", i, cases[i].op, signature->batchable,
                     signature->why_not);
        free(bytes);
        wk_model_destroy(model);
        wk_engine_destroy(engine);
        kit_free(m);
    }
}

/* ---- inputs that change while they are read -------------------------------------------------- */

/* Somebody who writes now one and now another number to the same place. */
struct writer {
    volatile float *place;
    float numbers[2];
    _Atomic bool stop;
};

/* The race is what is tested: the thread sanitizer must not see the other half of it. */
__attribute__((no_sanitize("thread"))) static void *write_on(void *context)
{
    struct writer *w = context;
    for (unsigned i = 0; !atomic_load(&w->stop); i++)
        *w->place = w->numbers[i / 64 % 2];
    return NULL;
}

/* Scales that come with the request decide a shape and then the kernel's tables, which must agree
 * whatever happens in between: every run gives one of the two shapes. */
static void shapes_that_change(void **state)
{
    static const char *const modes[] = {"nearest", "linear"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct kit_model *m = kit_model(13);
        struct kit_loaded l;
        struct wk_plan *plan;
        struct cm_error err = {0};
        struct cm_shape shapes[2] = {kit_shape(4, 1, 1, 4, 4), kit_shape(1, 4)};
        kit_input(m, "x", CM_FP32, shapes[0]);
        kit_input(m, "s", CM_FP32, shapes[1]);
        kit_output(m, "y", CM_FP32, kit_shape(4, -1, -1, -1, -1));
        if (i == 1) /* looks at the scales first, but for no shape */
            kit_node(m, "NonZero", "s", "i");
        kit_node(m, "Resize", "x,,s", "y");
        kit_attr_s(m, "mode", modes[i]);
        if (i == 1)
            kit_output(m, "i", CM_INT64, kit_shape(2, 1, -1));
        kit_load_model(&l, m, 1, NULL);
        assert_int_equal(wk_plan_create(l.model, shapes, &err, &plan), CM_OK);
        float *x = kit_guarded(16 * sizeof *x), *scales = kit_guarded(4 * sizeof *scales);
        void *scratch = kit_guarded(wk_plan_scratch_bytes(plan)), *y[2] = {NULL, NULL};
        const void *inputs[2] = {x, scales};
        struct writer writer = {&scales[2], {1.0f, 64.0f}, false};
        pthread_t thread;
        for (int k = 0; k < 4; k++)
            scales[k] = 1.0f;
        assert_int_equal(pthread_create(&thread, NULL, write_on, &writer), 0);
        /* Until the writer has been at work for a while; on a busy machine it may start late. */
        for (int run = 0, seen[2] = {0, 0}; run < 1 << 20 && (seen[0] < 500 || seen[1] < 500);
             run++) {
            enum cm_err code = wk_plan_run(plan, inputs, y, scratch, &err);
            int64_t rows = wk_plan_output_shape(plan, 0)->dims[2];
            if (code != CM_OK || (rows != 4 && rows != 256))
                fail_msg("%s: %lld rows: %s", modes[i], (long long)rows, err.text);
            seen[rows == 256]++;
        }
        atomic_store(&writer.stop, true);
        pthread_join(thread, NULL);
        wk_plan_destroy(plan);
        kit_guarded_free(scratch);
        kit_guarded_free(scales);
        kit_guarded_free(x);
        kit_unload(&l);
        kit_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(non_zeros),          cmocka_unit_test(compresses),
        cmocka_unit_test(suppressions),       cmocka_unit_test(ngrams),
        cmocka_unit_test(bounds_in_the_run),  cmocka_unit_test(bad_bounds_in_the_run),
        cmocka_unit_test(refusals),           cmocka_unit_test(rows),
        cmocka_unit_test(shapes_that_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
