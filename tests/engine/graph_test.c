/* Loading: what a model file must be, and that everything else is refused with a reason. Limits are
 * met in bounded time; nothing crashes. Random damage is fuzz_test's part. */
#include "gpu-worker/graph/graph.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/wire.h"
#include "proto/onnx.pb-c.h"
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

/* Loading these bytes must fail like this. */
static void refuse_bytes(const void *bytes, size_t length, enum cm_err code, const char *part)
{
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    enum cm_err got = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (got != code || !strstr(err.text, part))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", cm_err_name(code), part,
                 cm_err_name(got), err.text);
    assert_null(model);
}

static void refuse(struct kit_model *m, enum cm_err code, const char *part)
{
    size_t length;
    void *bytes = kit_bytes(m, &length);
    refuse_bytes(bytes, length, code, part);
    free(bytes);
    kit_free(m);
}

static struct wk_model *accept(struct kit_model *m)
{
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    size_t length;
    void *bytes = kit_bytes(m, &length);
    if (wk_model_parse(engine, bytes, length, NULL, &err, &model) != CM_OK)
        fail_msg("%s", err.text);
    free(bytes);
    kit_free(m);
    return model;
}

/* x [-1,4] -> Relu -> y */
static struct kit_model *small(void)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_node(m, "Relu", "x", "y");
    return m;
}

static Onnx__NodeProto *node_of(struct kit_model *m, size_t i)
{
    return kit_proto(m)->graph->node[i];
}

/* ---- what is accepted ------------------------------------------------------------------------ */

static void signature_and_key(void **state)
{
    struct kit_model *m = small();
    size_t length;
    uint8_t key_a[32], key_b[32];
    (void)state;
    void *bytes = kit_bytes(m, &length);
    struct wk_model *a = accept(m), *b = NULL;
    const struct wk_signature *s = wk_model_signature(a);
    assert_int_equal(s->n_inputs, 1);
    assert_int_equal(s->n_outputs, 1);
    assert_string_equal(s->inputs[0].name, "x");
    assert_string_equal(s->outputs[0].name, "y");
    assert_int_equal(s->outputs[0].dtype, CM_FP32);
    assert_int_equal(s->outputs[0].shape.rank, 2);
    assert_int_equal(s->outputs[0].shape.dims[0], -1);
    assert_int_equal(s->outputs[0].shape.dims[1], 4);
    assert_true(s->batchable);
    assert_int_equal(wk_model_weights_bytes(a), 0);
    wk_model_weights_key(a, key_a);
    assert_int_equal(wk_model_parse(engine, bytes, length, NULL, NULL, &b), CM_OK);
    wk_model_weights_key(b, key_b);
    assert_memory_equal(key_a, key_b, 32);
    wk_model_destroy(b);
    wk_model_destroy(a);
    free(bytes);
}

static void order_of_the_file_does_not_matter(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "d", CM_FP32, kit_shape(2, -1, 4));
    kit_node(m, "Add", "c,b", "d");
    kit_node(m, "Relu", "b", "c");
    kit_node(m, "Neg", "a", "b");
    kit_node(m, "Exp", "x", "a");
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    const float x[4] = {0, 0, 0, 0};
    const void *in[] = {x};
    struct cm_shape shape = kit_shape(2, 1, 4);
    void *out[1];
    kit_run(&l, &shape, in, out, NULL);
    for (int i = 0; i < 4; i++) /* relu(-1) + -1 */
        assert_true(((float *)out[0])[i] == -1.0f);
    free(out[0]);
    kit_unload(&l);
    kit_free(m);
}

static void dead_nodes_go_away(void **state)
{
    struct kit_model *m = small();
    struct wk_graph graph = {0};
    struct cm_error err = {0};
    size_t length;
    (void)state;
    kit_node(m, "Exp", "x", "unused");
    kit_node(m, "Neg", "unused", "unused2");
    void *bytes = kit_bytes(m, &length);
    assert_int_equal(wk_graph_load(&graph, bytes, length, NULL, &err), CM_OK);
    assert_int_equal(graph.n_nodes, 1);
    wk_graph_fini(&graph);
    free(bytes);
    kit_free(m);
}

static void initializers_may_be_listed_as_inputs(void **state)
{
    struct kit_model *m = kit_model(9);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_input(m, "w", CM_FP32, kit_shape(1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_random(m, "w", kit_shape(1, 4));
    kit_node(m, "Mul", "x,w", "y");
    struct wk_model *model = accept(m);
    assert_int_equal(wk_model_signature(model)->n_inputs, 1);
    assert_int_equal(wk_model_weights_bytes(model), WK_ALIGN);
    wk_model_destroy(model);
}

/* Tensors may hold their elements in typed fields instead of raw bytes. */
static void typed_fields(void **state)
{
    struct kit_model *m = kit_model(13);
    float values[] = {1.5f, -2.0f};
    int32_t half[] = {0x3c00, 0xc000}; /* 1 and -2 in FP16 */
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    kit_random(m, "a", kit_shape(1, 2));
    uint16_t nothing[2] = {0};
    kit_const(m, "h", CM_FP16, kit_shape(1, 2), nothing);
    Onnx__TensorProto *a = kit_proto(m)->graph->initializer[0];
    Onnx__TensorProto *h = kit_proto(m)->graph->initializer[1];
    a->has_raw_data = h->has_raw_data = 0;
    a->n_float_data = h->n_int32_data = 2;
    a->float_data = values;
    h->int32_data = half;
    kit_node(m, "Cast", "h", "hf");
    kit_attr_i(m, "to", 1);
    kit_node(m, "Mul", "a,hf", "p");
    kit_node(m, "Add", "x,p", "y");
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    const float x[2] = {10, 20};
    const void *in[] = {x};
    struct cm_shape shape = kit_shape(1, 2);
    void *out[1];
    kit_run(&l, &shape, in, out, NULL);
    assert_true(((float *)out[0])[0] == 11.5f && ((float *)out[0])[1] == 24.0f);
    free(out[0]);
    kit_unload(&l);
    a->n_float_data = h->n_int32_data = 0;
    kit_free(m);
}

/* Outputs that no step writes: an input, a constant, a shape, and two names of one value. */
static void outputs_of_every_kind(void **state)
{
    struct kit_model *m = kit_model(13);
    const float c[3] = {7, 8, 9};
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 3));
    kit_const(m, "c", CM_FP32, kit_shape(1, 3), c);
    kit_node(m, "Identity", "x", "same");
    kit_node(m, "Identity", "c", "c2");
    kit_node(m, "Shape", "x", "shape");
    kit_node(m, "Relu", "x", "r");
    kit_node(m, "Flatten", "r", "flat");
    kit_node(m, "Neg", "flat", "n");
    kit_output(m, "same", CM_FP32, kit_shape(2, -1, 3));
    kit_output(m, "c2", CM_FP32, kit_shape(1, 3));
    kit_output(m, "shape", CM_INT64, kit_shape(1, 2));
    kit_output(m, "r", CM_FP32, kit_shape(2, -1, 3));
    kit_output(m, "flat", CM_FP32, kit_shape(2, -1, 3));
    kit_output(m, "n", CM_FP32, kit_shape(2, -1, 3));
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    assert_false(wk_model_signature(l.model)->batchable);
    const float x[6] = {1, -2, 3, -4, 5, -6}, relu[6] = {1, 0, 3, 0, 5, 0};
    const int64_t dims[2] = {2, 3};
    const void *in[] = {x};
    struct cm_shape shape = kit_shape(2, 2, 3);
    void *out[6];
    kit_run(&l, &shape, in, out, NULL);
    assert_memory_equal(out[0], x, sizeof x);
    assert_memory_equal(out[1], c, sizeof c);
    assert_memory_equal(out[2], dims, sizeof dims);
    for (int i = 0; i < 6; i++) {
        assert_true(((float *)out[3])[i] == relu[i] && ((float *)out[4])[i] == relu[i]);
        assert_true(((float *)out[5])[i] == -relu[i]);
    }
    for (int i = 0; i < 6; i++)
        free(out[i]);
    kit_unload(&l);
    kit_free(m);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void not_a_model(void **state)
{
    static const uint8_t text[] = "this is not a protobuf at all, but a sentence";
    uint8_t zeros[64] = {0};
    (void)state;
    refuse_bytes("", 0, CM_CORRUPT, "empty");
    refuse_bytes(text, sizeof text, CM_CORRUPT, "not a valid ONNX file");
    refuse_bytes(zeros, sizeof zeros, CM_CORRUPT, "not a valid ONNX file");
    refuse_bytes("\x08\x08", 2, CM_INVALID, "imports no version"); /* ir_version 8 only */
    refuse_bytes("\x10\x08", 2, CM_CORRUPT, "wrong kind");         /* a string as a number */
    refuse_bytes("\x0b\x0c", 2, CM_CORRUPT, "unknown wire type");  /* a group */
    refuse_bytes("\x08\x08\x08\x08", 4, CM_CORRUPT, "appears twice");
    refuse_bytes("\x3a\x7f", 2, CM_CORRUPT, "past the end");
}

static void opsets_and_domains(void **state)
{
    struct kit_model *m = small();
    (void)state;
    kit_proto(m)->opset_import[0]->version = 99;
    refuse(m, CM_UNSUPPORTED, "needs opset 99; supported are 1 to 21");
    m = small();
    kit_proto(m)->opset_import[0]->version = -3;
    refuse(m, CM_UNSUPPORTED, "needs opset -3");
    m = small();
    kit_proto(m)->opset_import[0]->version = 5;
    refuse(m, CM_UNSUPPORTED, "operator Relu of opset 5 is not supported");
    m = small();
    kit_proto(m)->has_ir_version = 0;
    refuse(m, CM_CORRUPT, "ir_version is missing");
    m = small();
    char domain[] = "com.example", op[] = "Frobnicate", name[] = "the node\n\x1b[2J";
    node_of(m, 0)->domain = domain;
    refuse(m, CM_UNSUPPORTED, "com.example.Relu of opset 13");
    m = small();
    node_of(m, 0)->op_type = op;
    node_of(m, 0)->name = name;
    /* Names are made printable: a file must not write to a terminal. */
    refuse(m, CM_UNSUPPORTED, "node \"the node??[2J\" (number 0): operator Frobnicate of opset 13");
    m = small();
    node_of(m, 0)->op_type = NULL;
    refuse(m, CM_UNSUPPORTED, "is not supported");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(1, 4));
    kit_node(m, "HardSwish", "x", "y");
    refuse(m, CM_UNSUPPORTED, "HardSwish of opset 13 is not supported; it is in other opsets");
}

static void graphs_that_are_not_graphs(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    kit_output(m, "a", CM_FP32, kit_shape(1, 4));
    kit_node(m, "Add", "x,b", "a");
    kit_node(m, "Relu", "a", "b");
    refuse(m, CM_INVALID, "cycle");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    kit_output(m, "a", CM_FP32, kit_shape(1, 4));
    kit_node(m, "Add", "x,a", "a");
    refuse(m, CM_INVALID, "cycle");
    m = small();
    kit_node(m, "Add", "x,ghost", "z");
    refuse(m, CM_INVALID, "input \"ghost\" is produced by no node");
    m = small();
    kit_node(m, "Exp", "x", "y");
    refuse(m, CM_INVALID, "tensor \"y\" is defined twice");
    m = small();
    kit_output(m, "ghost", CM_FP32, kit_shape(1, 4));
    refuse(m, CM_INVALID, "output \"ghost\" is produced by no node");
    m = small();
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    refuse(m, CM_INVALID, "listed twice");
    m = small();
    kit_proto(m)->graph->n_output = 0;
    refuse(m, CM_INVALID, "no outputs");
    m = small();
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    refuse(m, CM_INVALID, "\"x\" is defined twice");
    m = small();
    kit_proto(m)->graph = NULL;
    refuse(m, CM_CORRUPT, "holds no graph");
    m = small();
    node_of(m, 0)->n_input = 0;
    refuse(m, CM_INVALID, "0 inputs, must be 1 to 1");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(1, 4));
    kit_node(m, "Add", "x,", "y");
    refuse(m, CM_INVALID, "input 1 must not be empty");
    m = small();
    kit_proto(m)->graph->output[0]->type->tensor_type->elem_type = 7;
    refuse(m, CM_INVALID, "declared as INT64 but is FP32");
}

static void attributes(void **state)
{
    struct kit_model *m = small();
    (void)state;
    kit_attr_i(m, "speed", 11);
    refuse(m, CM_UNSUPPORTED, "attribute speed is not supported");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_node(m, "LeakyRelu", "x", "y");
    kit_attr_i(m, "alpha", 1);
    refuse(m, CM_INVALID, "attribute alpha has the wrong type");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_node(m, "LeakyRelu", "x", "y");
    kit_attr_f(m, "alpha", 1);
    kit_attr_f(m, "alpha", 2);
    refuse(m, CM_INVALID, "attribute alpha appears twice");
    /* An empty string has no bytes at all once it is unpacked. */
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(3, -1, 1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(3, -1, 1, 2));
    kit_node(m, "MaxPool", "x", "y");
    kit_attr_ints(m, "kernel_shape", 1, 3);
    kit_attr_s(m, "auto_pad", "");
    refuse(m, CM_INVALID, "auto_pad = \"\" is not one of ONNX's");
    /* A subgraph where a number belongs. */
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_node(m, "LeakyRelu", "x", "y");
    kit_attr_f(m, "alpha", 1);
    Onnx__GraphProto graph = ONNX__GRAPH_PROTO__INIT;
    Onnx__AttributeProto *attr = node_of(m, 0)->attribute[0];
    attr->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
    attr->g = &graph;
    refuse(m, CM_INVALID, "wrong type");
}

static void tensors(void **state)
{
    Onnx__TensorProto *w;
    (void)state;
#define WITH_TENSOR(change, code, part)          \
    do {                                         \
        struct kit_model *m = small();           \
        kit_random(m, "w", kit_shape(2, 3, 4));  \
        kit_node(m, "Mul", "x,w", "z");          \
        w = kit_proto(m)->graph->initializer[0]; \
        change;                                  \
        refuse(m, code, part);                   \
    } while (0)
    Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    Onnx__StringStringEntryProto *entries[] = {&entry};
    Onnx__TensorProto__Segment segment = ONNX__TENSOR_PROTO__SEGMENT__INIT;
    char location[] = "location", path[] = "../../etc/passwd";
    entry.key = location;
    entry.value = path;
    WITH_TENSOR((w->n_external_data = 1, w->external_data = entries), CM_INVALID,
                "data_location is not EXTERNAL");
    WITH_TENSOR((w->has_data_location = 1, w->data_location = 1), CM_INVALID,
                "both in the model and outside");
    WITH_TENSOR((w->has_data_location = 1, w->data_location = 1, w->has_raw_data = 0),
                CM_UNSUPPORTED, "this model comes without a folder");
    WITH_TENSOR(w->segment = &segment, CM_UNSUPPORTED, "segment");
    WITH_TENSOR(w->raw_data.len--, CM_CORRUPT, "holds 47 bytes, its type and dimensions say 48");
    WITH_TENSOR(w->has_raw_data = 0, CM_CORRUPT, "holds 0 elements, its dimensions say 12");
    WITH_TENSOR(w->dims[0] = -3, CM_INVALID, "negative dimension -3");
    WITH_TENSOR(w->dims[0] = INT64_MAX, CM_LIMIT, "too large");
    WITH_TENSOR((w->dims[0] = INT64_MAX, w->dims[1] = 0), CM_LIMIT, "too large");
    WITH_TENSOR(w->data_type = 8, CM_UNSUPPORTED, "element type 8");
    WITH_TENSOR(w->data_type = -77, CM_UNSUPPORTED, "element type -77");
    WITH_TENSOR(w->data_type = 0, CM_UNSUPPORTED, "element type 0");
    WITH_TENSOR(w->name = NULL, CM_INVALID, "has no name");
    int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 3, 4};
    WITH_TENSOR((w->n_dims = 9, w->dims = nine), CM_LIMIT, "9 dimensions");
#undef WITH_TENSOR
    struct kit_model *m = small();
    kit_proto(m)->graph->input[0]->type->tensor_type->shape->dim[1]->dim_value = INT64_MAX;
    refuse(m, CM_LIMIT, "too large");
    m = small();
    kit_proto(m)->graph->input[0]->type->tensor_type->shape = NULL;
    refuse(m, CM_UNSUPPORTED, "declares no shape");
    m = small();
    kit_proto(m)->graph->input[0]->type = NULL;
    refuse(m, CM_UNSUPPORTED, "is not a tensor: not supported (it goes to operator Relu)");
    m = small();
    Onnx__SparseTensorProto sparse = ONNX__SPARSE_TENSOR_PROTO__INIT;
    Onnx__SparseTensorProto *sparses[] = {&sparse};
    kit_proto(m)->graph->n_sparse_initializer = 1;
    kit_proto(m)->graph->sparse_initializer = sparses;
    refuse(m, CM_UNSUPPORTED, "sparse initializers");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void a_million_nodes(void **state)
{
    struct kit_model *m = small();
    Onnx__GraphProto *graph = kit_proto(m)->graph;
    size_t count = 1000000;
    Onnx__NodeProto **nodes = malloc(count * sizeof *nodes), **before = graph->node;
    (void)state;
    assert_non_null(nodes);
    for (size_t i = 0; i < count; i++)
        nodes[i] = before[0];
    graph->node = nodes;
    graph->n_node = count;
    size_t length;
    void *bytes = kit_bytes(m, &length);
    refuse_bytes(bytes, length, CM_LIMIT, "too many messages and strings");
    free(bytes);
    graph->n_node = WK_MAX_NODES + 1;
    bytes = kit_bytes(m, &length);
    refuse_bytes(bytes, length, CM_LIMIT, "65537 nodes, at most 65536");
    free(bytes);
    graph->node = before;
    graph->n_node = 1;
    free(nodes);
    kit_free(m);
}

/* As many nodes as are allowed, in one chain and in reverse order: loading stays near linear. */
static void the_longest_chain(void **state)
{
    struct kit_model *m = kit_model(13);
    char in[16], out[16];
    (void)state;
    kit_input(m, "v0", CM_FP32, kit_shape(2, -1, 4));
    for (int i = WK_MAX_NODES; i-- > 0;) {
        snprintf(in, sizeof in, "v%d", i);
        snprintf(out, sizeof out, "v%d", i + 1);
        kit_node(m, i % 2 ? "Relu" : "Identity", in, out);
    }
    kit_output(m, "v65536", CM_FP32, kit_shape(2, -1, 4));
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    const float x[4] = {1, -1, 2, -2}, y[4] = {1, 0, 2, 0};
    const void *inputs[] = {x};
    struct cm_shape shape = kit_shape(2, 1, 4);
    void *outputs[1];
    kit_run(&l, &shape, inputs, outputs, NULL);
    for (int i = 0; i < 4; i++)
        assert_true(((float *)outputs[0])[i] == y[i]);
    free(outputs[0]);
    kit_unload(&l);
    kit_free(m);
}

/* Graph in attribute in node in graph ..., written by hand: the stack must not be the limit. */
static void nesting(void **state)
{
    enum { DEPTH = 10000 };
    static uint8_t bytes[DEPTH * 20];
    size_t at = sizeof bytes;
    (void)state;
    for (int i = 0; i < DEPTH; i++) {
        static const uint8_t tags[] = {0x32, 0x2a,
                                       0x0a}; /* attribute.g, node.attribute, graph.node */
        for (int k = 0; k < 3; k++) {
            size_t length = sizeof bytes - at;
            uint8_t varint[10];
            int n = 0;
            for (size_t rest = length; rest || n == 0; rest >>= 7)
                varint[n++] = (uint8_t)(rest & 0x7f) | (rest >> 7 ? 0x80 : 0);
            while (n > 0)
                bytes[--at] = varint[--n];
            bytes[--at] = tags[k];
        }
    }
    uint8_t *file = malloc(sizeof bytes + 16);
    assert_non_null(file);
    size_t length = sizeof bytes - at, head = 0;
    file[head++] = 0x3a; /* model.graph */
    for (size_t rest = length; rest; rest >>= 7)
        file[head++] = (uint8_t)(rest & 0x7f) | (rest >> 7 ? 0x80 : 0);
    memcpy(file + head, bytes + at, length);
    refuse_bytes(file, head + length, CM_LIMIT, "nests deeper than 64");
    free(file);
}

/* Clients take names as UTF-8; a name that goes on behind a NUL would equal another. */
static void text_that_is_none(void **state)
{
    struct kit_model *m = small();
    char latin1[] = "caf\xe9", surrogate[] = "x\xed\xa0\x80", utf8[] = "na\xc3\xafve";
    size_t length;
    (void)state;
    kit_proto(m)->graph->input[0]->name = latin1;
    refuse(m, CM_CORRUPT, "name of a ValueInfoProto is not UTF-8");
    m = small();
    kit_node(m, "Relu", surrogate, "z");
    refuse(m, CM_CORRUPT, "input of a NodeProto is not UTF-8");
    m = small();
    node_of(m, 0)->name = utf8;
    node_of(m, 0)->doc_string = latin1; /* a comment may be anything */
    wk_model_destroy(accept(m));
    m = small();
    char same[] = "same";
    node_of(m, 0)->name = same;
    char *bytes = kit_bytes(m, &length);
    for (size_t i = 0; i + 4 < length; i++)
        if (memcmp(bytes + i, "same", 4) == 0)
            bytes[i + 2] = 0;
    refuse_bytes(bytes, length, CM_CORRUPT, "name of a NodeProto is not UTF-8 text");
    free(bytes);
    kit_free(m);
}

static void many_small_fields(void **state)
{
    /* Empty nodes, two bytes each: protobuf-c would take a hundred bytes for every one. */
    size_t count = 3000000, head = 0, length = 2 * count;
    uint8_t *file = malloc(length + 16);
    (void)state;
    assert_non_null(file);
    file[head++] = 0x3a;
    for (size_t rest = length; rest; rest >>= 7)
        file[head++] = (uint8_t)(rest & 0x7f) | (rest >> 7 ? 0x80 : 0);
    for (size_t i = 0; i < count; i++) {
        file[head + 2 * i] = 0x0a;
        file[head + 2 * i + 1] = 0;
    }
    refuse_bytes(file, head + length, CM_LIMIT, "too many messages");
    free(file);
}

static void shapes_that_explode(void **state)
{
    struct kit_model *m = kit_model(13);
    const int64_t huge[] = {1 << 20, 1 << 20};
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    (void)state;
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    kit_const(m, "s", CM_INT64, kit_shape(1, 2), huge);
    kit_node(m, "ConstantOfShape", "s", "y");
    refuse(m, CM_LIMIT, "larger than 1073741824 bytes");
    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, -1));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    kit_node(m, "Transpose", "x", "t");
    kit_node(m, "MatMul", "x,t", "y");
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    struct cm_shape shape = {.rank = 2, .dims = {1 << 20, 64}};
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_LIMIT);
    shape.dims[1] = INT64_MAX;
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_LIMIT);
    shape.dims[1] = -1;
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_INVALID);
    shape.rank = 200;
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_INVALID);
    shape = kit_shape(1, 4);
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_INVALID);
    assert_non_null(strstr(err.text, "input \"x\" has shape [4], the model takes [-1,-1]"));
    shape = kit_shape(2, 0, 4); /* an empty batch is legal */
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_OK);
    wk_plan_destroy(plan);
    kit_unload(&l);
    kit_free(m);
}

/* An empty tensor's other dimensions are numbers like any: what adds or multiplies them later must
 * not overflow, and nothing may loop over them. */
static void empty_tensors_with_huge_dimensions(void **state)
{
    struct kit_model *m = kit_model(13);
    const int64_t half = (int64_t)1 << 62;
    (void)state;
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    kit_const(m, "a", CM_FP32, (struct cm_shape){.rank = 2, .dims = {half, 0}}, "");
    kit_const(m, "b", CM_FP32, (struct cm_shape){.rank = 2, .dims = {half, 0}}, "");
    kit_node(m, "Concat", "a,b", "y");
    kit_attr_i(m, "axis", 0);
    refuse(m, CM_LIMIT, "too large");

    const int64_t wanted[] = {half, 0};
    m = kit_model(13);
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    kit_const(m, "s", CM_INT64, kit_shape(1, 2), wanted);
    kit_node(m, "ConstantOfShape", "s", "y");
    refuse(m, CM_LIMIT, "dimension larger than 1073741824");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, -1));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    kit_node(m, "Concat", "x,x", "y");
    kit_attr_i(m, "axis", 0);
    struct kit_loaded l;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    struct cm_shape shape = {.rank = 2, .dims = {half, 0}};
    kit_load_model(&l, m, 1, NULL);
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_LIMIT);
    kit_unload(&l);
    kit_free(m);

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(4, -1, 0, 4, 4));
    kit_output(m, "y", CM_FP32, kit_shape(4, -1, 0, 4, 4));
    kit_const(m, "w", CM_FP32, kit_shape(4, 0, 0, 1, 1), "");
    kit_node(m, "Conv", "x,w", "y");
    kit_attr_i(m, "group", (int64_t)1 << 30);
    refuse(m, CM_INVALID, "does not fit weights");
}

/* What computes no element must not count through the dimensions around the missing one. */
static void empty_tensors_take_no_time(void **state)
{
    const int64_t many = (int64_t)1 << 30;
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct kit_model *m = kit_model(13);
        struct kit_loaded l;
        void *out = NULL;
        struct cm_shape shape;
        kit_output(m, "y", CM_FP32, kit_shape(4, -1, -1, -1, -1));
        kit_const(m, "e", CM_FP32, (struct cm_shape){.rank = 4, .dims = {many, many, 0, 4}}, "");
        kit_ints(m, "index", 2, 0, 0);
        if (i == 0) {
            kit_node(m, "Transpose", "e", "y");
        } else if (i == 1) {
            kit_const(m, "a", CM_FP32, (struct cm_shape){.rank = 4, .dims = {1, 1, 0, 0}}, "");
            kit_node(m, "MatMul", "a,e", "y");
        } else {
            kit_const(m, "x", CM_FP32, (struct cm_shape){.rank = 4, .dims = {many, many, 4, 0}},
                      "");
            kit_node(m, "Gather", "x,index", "y");
            kit_attr_i(m, "axis", 2);
        }
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, NULL, NULL, &out, &shape);
        free(out);
        kit_unload(&l);
        kit_free(m);
    }
}

/* With a free channel dimension the input says nothing about the parameters' lengths. */
static void norm_parameters_of_different_lengths(void **state)
{
    static const char *const names[] = {"scale", "shift", "mean", "variance"};
    (void)state;
    for (unsigned shorter = 0; shorter < 4; shorter++) {
        struct kit_model *m = kit_model(15);
        kit_input(m, "x", CM_FP32, kit_shape(4, -1, -1, 2, 2));
        kit_output(m, "y", CM_FP32, kit_shape(4, -1, -1, 2, 2));
        for (unsigned i = 0; i < 4; i++)
            kit_random(m, names[i], kit_shape(1, i == shorter ? 1 : 4000));
        kit_node(m, "BatchNormalization", "x,scale,shift,mean,variance", "y");
        refuse(m, CM_INVALID, "do not fit");
    }
}

static void use_before_attach(void **state)
{
    struct wk_model *model = accept(small());
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    struct cm_shape shape = kit_shape(2, 1, 4);
    (void)state;
    assert_int_equal(wk_plan_create(model, &shape, &err, &plan), CM_PRECONDITION);
    wk_model_destroy(model);
    wk_model_destroy(NULL);
    wk_plan_destroy(NULL);
    wk_engine_destroy(NULL);
}

/* The standard gave these up for operators with other names. */
static bool is_given_up(int op)
{
    return op == WK_OP_Scatter || op == WK_OP_Upsample;
}

/* Every row of the table is well formed, and its text names every operator. */
static void the_table(void **state)
{
    (void)state;
    for (int op = 0; op < WK_OP_COUNT; op++) {
        const char *name = wk_op_name((enum wk_op)op);
        const struct wk_op_version *previous = NULL;
        assert_int_equal(wk_op_from_name(name), op);
        assert_non_null(strstr(wk_engine_ops_text(), name));
        assert_true(is_given_up(op) || wk_op_version((enum wk_op)op, WK_MAX_OPSET));
        for (int opset = WK_MIN_OPSET; opset <= WK_MAX_OPSET; opset++) {
            const struct wk_op_version *version = wk_op_version((enum wk_op)op, opset);
            if (!version) {
                assert_true(!previous || is_given_up(op));
                continue;
            }
            previous = version;
            assert_true(version->min_in <= version->max_in && version->max_out >= 1);
            assert_true(version->max_in <= WK_MAX_NODE_IO);
        }
    }
    assert_int_equal(wk_op_from_name("relu"), WK_OP_COUNT);
    assert_int_equal(wk_op_from_name(""), WK_OP_COUNT);
    const struct wk_op_version *conv = wk_op_version(WK_OP_Conv, 13);
    assert_int_equal(wk_op_attribute(conv, "group"), 'i');
    assert_int_equal(wk_op_attribute(conv, "strides"), 'I');
    assert_int_equal(wk_op_attribute(conv, "stride"), 0);
    assert_int_equal(wk_op_attribute(conv, ""), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signature_and_key),
        cmocka_unit_test(order_of_the_file_does_not_matter),
        cmocka_unit_test(dead_nodes_go_away),
        cmocka_unit_test(initializers_may_be_listed_as_inputs),
        cmocka_unit_test(typed_fields),
        cmocka_unit_test(outputs_of_every_kind),
        cmocka_unit_test(not_a_model),
        cmocka_unit_test(opsets_and_domains),
        cmocka_unit_test(graphs_that_are_not_graphs),
        cmocka_unit_test(attributes),
        cmocka_unit_test(tensors),
        cmocka_unit_test(a_million_nodes),
        cmocka_unit_test(the_longest_chain),
        cmocka_unit_test(nesting),
        cmocka_unit_test(text_that_is_none),
        cmocka_unit_test(many_small_fields),
        cmocka_unit_test(shapes_that_explode),
        cmocka_unit_test(empty_tensors_with_huge_dimensions),
        cmocka_unit_test(empty_tensors_take_no_time),
        cmocka_unit_test(norm_parameters_of_different_lengths),
        cmocka_unit_test(use_before_attach),
        cmocka_unit_test(the_table),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
