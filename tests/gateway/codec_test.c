/* Infer requests: what protobuf-c packs is read back; every truncation, random mutations, and one
 * wrong thing at a time against a model's signature. */
#include "gateway/codec.h"
#include "proto/inference.pb-c.h"
#include "proto/ingot.pb-c.h"
#include "tests/gateway/models_kit.h"
#include "tests/harness/t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENTS 4096
#define ROWS     2
#define IMAGE    (ROWS * 64 * sizeof(float))
#define MASK     (ROWS * 3 * sizeof(int64_t))

static float image[ROWS * 64];
static int64_t mask[ROWS * 3];
static struct gw_models *table;
static struct gw_model *pair;

/* ---- requests ---- */

/* An ingot.v1 request for the pair model; fields may be changed before packing. */
struct ingot_request {
    Ingot__V1__InferRequest message;
    Ingot__V1__Tensor tensors[3], *pointers[3];
    int64_t shapes[3][8];
    char *outputs[3];
};

static void ingot_init(struct ingot_request *request)
{
    ingot__v1__infer_request__init(&request->message);
    static const int64_t shapes[3][8] = {{ROWS, 1, 8, 8}, {ROWS, 3}, {1}};
    static const char *const names[3] = {"image", "mask", "extra"};
    memcpy(request->shapes, shapes, sizeof shapes);
    for (int i = 0; i < 3; i++) {
        Ingot__V1__Tensor *tensor = &request->tensors[i];
        ingot__v1__tensor__init(tensor);
        tensor->name = (char *)(uintptr_t)names[i];
        tensor->datatype = (char *)(uintptr_t)(i == 1 ? "INT64" : "FP32");
        tensor->n_shape = i == 0 ? 4 : i == 1 ? 2 : 1;
        tensor->shape = request->shapes[i];
        tensor->data.data = i == 1 ? (uint8_t *)mask : (uint8_t *)image;
        tensor->data.len = i == 0 ? IMAGE : i == 1 ? MASK : 4;
        request->pointers[i] = tensor;
        request->outputs[i] = NULL;
    }
    request->message.model = (char *)(uintptr_t) "pair";
    request->message.n_inputs = 2;
    request->message.inputs = request->pointers;
    request->message.outputs = request->outputs;
}

struct packed {
    uint8_t *bytes;
    size_t length;
    struct gw_wire_segment segments[SEGMENTS];
};

static void pack(const ProtobufCMessage *message, struct packed *packed)
{
    packed->length = protobuf_c_message_get_packed_size(message);
    packed->bytes = malloc(packed->length + 1);
    assert_non_null(packed->bytes);
    protobuf_c_message_pack(message, packed->bytes);
}

/* A cursor over the first length bytes in pieces of at most piece bytes. */
static struct gw_wire cut(struct packed *packed, size_t length, size_t piece)
{
    size_t n = 0;
    for (size_t at = 0; at < length; at += piece) {
        assert_true(n < SEGMENTS);
        size_t here = length - at < piece ? length - at : piece;
        packed->segments[n++] = (struct gw_wire_segment){packed->bytes + at, here};
    }
    struct gw_wire wire;
    gw_wire_init(&wire, packed->segments, n);
    return wire;
}

/* Parse, check, copy; the block is sized exactly, so that a sanitizer sees a byte too far. */
static enum cm_err take(struct gw_wire wire, bool oip, struct cm_error *err, struct gw_plan *plan,
                        unsigned char **ret_block)
{
    struct gw_request *request = malloc(sizeof *request);
    unsigned char *block = NULL;
    assert_non_null(request);
    enum cm_err code = oip ? gw_parse_oip(wire, request, err) : gw_parse_ingot(wire, request, err);
    struct gw_model *model = NULL;
    if (code == CM_OK)
        code = gw_models_find(table, request->model.data, request->model.length,
                              request->version.data, request->version.length, err, &model);
    if (code == CM_OK)
        code = gw_request_check(request, model, err, plan);
    if (code == CM_OK) {
        assert_true(plan->bytes < 1 << 20);
        block = malloc(plan->bytes ? plan->bytes : 1);
        code = gw_request_copy(request, model, plan, block, err);
    }
    free(request);
    if (code == CM_OK && ret_block)
        *ret_block = block;
    else
        free(block);
    return code;
}

static enum cm_err take_ingot(struct ingot_request *request, struct cm_error *err)
{
    struct packed packed;
    struct gw_plan plan;
    pack(&request->message.base, &packed);
    enum cm_err code = take(cut(&packed, packed.length, packed.length), false, err, &plan, NULL);
    free(packed.bytes);
    return code;
}

/* An Open Inference Protocol request for the pair model. */
struct oip_request {
    Inference__ModelInferRequest message;
    Inference__ModelInferRequest__InferInputTensor inputs[2], *pointers[2];
    Inference__InferTensorContents contents[2];
    int64_t shapes[2][4];
    ProtobufCBinaryData raw[3];
};

static void oip_init(struct oip_request *request, bool raw)
{
    static const int64_t shapes[2][4] = {{ROWS, 1, 8, 8}, {ROWS, 3}};
    memcpy(request->shapes, shapes, sizeof shapes);
    inference__model_infer_request__init(&request->message);
    for (int i = 0; i < 2; i++) {
        inference__model_infer_request__infer_input_tensor__init(&request->inputs[i]);
        inference__infer_tensor_contents__init(&request->contents[i]);
        /* In another order than the model's. */
        request->inputs[i].name = (char *)(uintptr_t)(i ? "image" : "mask");
        request->inputs[i].datatype = (char *)(uintptr_t)(i ? "FP32" : "INT64");
        request->inputs[i].n_shape = i ? 4 : 2;
        request->inputs[i].shape = request->shapes[i ? 0 : 1];
        request->inputs[i].contents = raw ? NULL : &request->contents[i];
        request->pointers[i] = &request->inputs[i];
    }
    request->contents[0].n_int64_contents = ROWS * 3;
    request->contents[0].int64_contents = mask;
    request->contents[1].n_fp32_contents = ROWS * 64;
    request->contents[1].fp32_contents = image;
    request->raw[0] = (ProtobufCBinaryData){MASK, (uint8_t *)mask};
    request->raw[1] = (ProtobufCBinaryData){IMAGE, (uint8_t *)image};
    request->raw[2] = (ProtobufCBinaryData){4, (uint8_t *)image};
    request->message.model_name = (char *)(uintptr_t) "pair";
    request->message.model_version = (char *)(uintptr_t) "3";
    request->message.id = (char *)(uintptr_t) "id-7";
    request->message.n_inputs = 2;
    request->message.inputs = request->pointers;
    request->message.n_raw_input_contents = raw ? 2 : 0;
    request->message.raw_input_contents = request->raw;
}

static enum cm_err take_oip(struct oip_request *request, struct cm_error *err)
{
    struct packed packed;
    struct gw_plan plan;
    pack(&request->message.base, &packed);
    enum cm_err code = take(cut(&packed, packed.length, packed.length), true, err, &plan, NULL);
    free(packed.bytes);
    return code;
}

/* ---- tests ---- */

static int setup(void **state)
{
    (void)state;
    uint64_t seed = 31;
    for (size_t i = 0; i < ROWS * 64; i++)
        image[i] = (float)(t_random(&seed) % 1000) / 7;
    for (size_t i = 0; i < ROWS * 3; i++)
        mask[i] = (int64_t)t_random(&seed);
    table = kit_table(&kit_pair, 1, 1, true, NULL);
    pair = kit_find(table, "pair", "");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    gw_models_unref(table);
    return 0;
}

static void check_block(const struct gw_plan *plan, const unsigned char *block)
{
    assert_int_equal(plan->rows, ROWS);
    assert_int_equal(plan->n_inputs, 2);
    assert_int_equal(plan->length[0], IMAGE);
    assert_int_equal(plan->length[1], MASK);
    assert_int_equal(plan->offset[1] % GW_TENSOR_ALIGN, 0);
    assert_memory_equal(block + plan->offset[0], image, IMAGE);
    assert_memory_equal(block + plan->offset[1], mask, MASK);
}

static void requests_are_read_in_any_pieces(void **state)
{
    (void)state;
    struct ingot_request ingot;
    struct oip_request raw, typed;
    ingot_init(&ingot);
    oip_init(&raw, true);
    oip_init(&typed, false);
    const ProtobufCMessage *messages[] = {&ingot.message.base, &raw.message.base,
                                          &typed.message.base};
    for (int i = 0; i < 3; i++) {
        struct packed packed;
        pack(messages[i], &packed);
        for (size_t piece = 1; piece <= packed.length; piece = piece < 40 ? piece + 1 : piece * 2) {
            struct cm_error error = {.text = ""};
            struct gw_plan plan;
            unsigned char *block = NULL;
            if (take(cut(&packed, packed.length, piece), i > 0, &error, &plan, &block) != CM_OK)
                fail_msg("message %d in pieces of %zu: %s", i, piece, error.text);
            check_block(&plan, block);
            assert_true(plan.output_mask == 3);
            free(block);
        }
        free(packed.bytes);
    }
}

static void every_truncation_is_refused_or_whole(void **state)
{
    (void)state;
    struct ingot_request ingot;
    struct oip_request raw, typed;
    ingot_init(&ingot);
    oip_init(&raw, true);
    oip_init(&typed, false);
    const ProtobufCMessage *messages[] = {&ingot.message.base, &raw.message.base,
                                          &typed.message.base};
    for (int i = 0; i < 3; i++) {
        struct packed packed;
        pack(messages[i], &packed);
        for (size_t n = 0; n < packed.length; n++) {
            struct cm_error error = {.text = ""};
            struct gw_plan plan;
            enum cm_err code = take(cut(&packed, n, 37), i > 0, &error, &plan, NULL);
            assert_int_equal(code, CM_INVALID); /* every prefix lacks a tensor's bytes */
            assert_true(error.text[0] != 0);
        }
        free(packed.bytes);
    }
}

static void mutations_never_harm(void **state)
{
    (void)state;
    struct ingot_request ingot;
    struct oip_request raw, typed;
    ingot_init(&ingot);
    oip_init(&raw, true);
    oip_init(&typed, false);
    const ProtobufCMessage *messages[] = {&ingot.message.base, &raw.message.base,
                                          &typed.message.base};
    uint64_t seed = 32;
    unsigned refused = 0;
    for (int i = 0; i < 30000; i++) {
        struct packed packed;
        pack(messages[i % 3], &packed);
        unsigned flips = 1 + t_random(&seed) % 6;
        for (unsigned k = 0; k < flips; k++) {
            size_t limit = t_random(&seed) % 4 ? 120 : packed.length;
            size_t at = t_random(&seed) % (limit < packed.length ? limit : packed.length);
            packed.bytes[at] = (uint8_t)t_random(&seed);
        }
        struct cm_error error = {.text = ""};
        struct gw_plan plan;
        size_t piece = packed.length / (1 + t_random(&seed) % 200) + 1;
        enum cm_err code = take(cut(&packed, packed.length, piece), i % 3 > 0, &error, &plan, NULL);
        assert_true(code == CM_OK || code == CM_INVALID || code == CM_NOT_FOUND ||
                    code == CM_UNSUPPORTED);
        refused += code != CM_OK;
        free(packed.bytes);
    }
    assert_true(refused > 10000);
}

static void unknown_fields_are_skipped(void **state)
{
    (void)state;
    struct ingot_request request;
    struct packed packed;
    ingot_init(&request);
    pack(&request.message.base, &packed);
    const size_t fields = 100000, bytes = 5; /* field 100: varint 300 */
    uint8_t *long_message = malloc(packed.length + fields * bytes);
    struct gw_put put = {long_message, 0, packed.length + fields * bytes};
    for (size_t i = 0; i < fields; i++)
        gw_put_uint(&put, 100, 300);
    gw_put_raw(&put, packed.bytes, packed.length);
    struct gw_wire_segment segment = {long_message, put.length};
    struct gw_wire wire;
    gw_wire_init(&wire, &segment, 1);
    struct cm_error error;
    struct gw_plan plan;
    assert_int_equal(take(wire, false, &error, &plan, NULL), CM_OK);
    free(long_message);
    free(packed.bytes);
}

/* One wrong thing in an ingot.v1 request, and a word of the sentence it must give. */
#define WRONG(word, ...)                                                      \
    do {                                                                      \
        struct ingot_request request;                                         \
        struct cm_error error = {.text = ""};                                 \
        ingot_init(&request);                                                 \
        __VA_ARGS__;                                                          \
        enum cm_err code_ = take_ingot(&request, &error);                     \
        if (code_ != CM_INVALID || !strstr(error.text, word))                 \
            fail_msg("%s: code %d, \"%s\"", #__VA_ARGS__, code_, error.text); \
    } while (0)

static char text(const char *from, char **to)
{
    *to = (char *)(uintptr_t)from;
    return 0;
}

static void wrong_requests_say_what_is_wrong(void **state)
{
    (void)state;
    char many[6000];
    memset(many, 'm', sizeof many - 1);
    many[sizeof many - 1] = 0;
    WRONG("shape [2,1,8,9] does not fit [N,1,8,8]", request.shapes[0][3] = 9);
    WRONG("does not fit", request.tensors[0].n_shape = 3);
    WRONG("does not fit", request.tensors[0].n_shape = 0);
    WRONG("more than 8 dimensions", int64_t dims[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
          request.tensors[0].shape = dims; request.tensors[0].n_shape = 9);
    WRONG("does not fit", request.shapes[0][0] = 0);
    WRONG("does not fit", request.shapes[0][0] = -1);
    WRONG("does not fit", request.shapes[1][1] = -3);
    WRONG("rows", request.shapes[0][0] = 9);
    WRONG("rows", request.shapes[1][0] = 1);
    WRONG("overflows", request.shapes[1][1] = INT64_MAX);
    WRONG("overflows", request.shapes[1][1] = INT64_MAX / 2);
    WRONG("bytes for a shape", request.tensors[0].data.len--);
    WRONG("bytes for a shape", request.tensors[0].data.len = 0);
    WRONG("bytes for a shape", request.shapes[1][1] = 2);
    WRONG("no such input 'imag'", text("imag", &request.tensors[0].name));
    WRONG("no such input", text("", &request.tensors[0].name));
    WRONG("no such input", text(many, &request.tensors[0].name));
    WRONG("given twice", text("mask", &request.tensors[0].name));
    WRONG("no such input 'extra'", request.message.n_inputs = 3);
    WRONG("'mask' is missing", request.message.n_inputs = 1);
    WRONG("'image' is missing", request.message.n_inputs = 0);
    WRONG("datatype FP64, the model wants FP32", text("FP64", &request.tensors[0].datatype));
    WRONG("unknown datatype 'fp32'", text("fp32", &request.tensors[0].datatype));
    WRONG("unknown datatype", text("", &request.tensors[0].datatype));
    WRONG("BYTES", text("BYTES", &request.tensors[0].datatype));
    WRONG("no such output 'x'", text("x", &request.outputs[0]); request.message.n_outputs = 1);
    WRONG("given twice", text("label", &request.outputs[0]); text("label", &request.outputs[1]);
          request.message.n_outputs = 2);
    WRONG("model's name", text("a/b", &request.message.model));
    WRONG("model's version", text("x", &request.message.version));
    WRONG("not UTF-8", text("\xff\xfe", &request.message.model));
    WRONG("inputs[0].name: not UTF-8", text("\xc3", &request.tensors[0].name));
}

static void too_many_tensors_are_refused(void **state)
{
    (void)state;
    struct ingot_request request;
    Ingot__V1__Tensor *many[CM_MAX_TENSORS + 1];
    char *outputs[CM_MAX_TENSORS + 1];
    struct cm_error error;
    ingot_init(&request);
    for (size_t i = 0; i < CM_MAX_TENSORS + 1; i++) {
        many[i] = &request.tensors[0];
        outputs[i] = (char *)(uintptr_t) "label";
    }
    request.message.n_inputs = CM_MAX_TENSORS + 1;
    request.message.inputs = many;
    assert_int_equal(take_ingot(&request, &error), CM_INVALID);
    assert_non_null(strstr(error.text, "more than 16"));
    ingot_init(&request);
    request.message.n_outputs = CM_MAX_TENSORS + 1;
    request.message.outputs = outputs;
    assert_int_equal(take_ingot(&request, &error), CM_INVALID);
}

static void outputs_keep_the_clients_order(void **state)
{
    (void)state;
    struct ingot_request request;
    struct packed packed;
    struct gw_plan plan;
    struct cm_error error;
    ingot_init(&request);
    text("label", &request.outputs[0]);
    text("scores", &request.outputs[1]);
    request.message.n_outputs = 2;
    pack(&request.message.base, &packed);
    assert_int_equal(take(cut(&packed, packed.length, 100), false, &error, &plan, NULL), CM_OK);
    assert_int_equal(plan.n_outputs, 2);
    assert_int_equal(plan.order[0], 1);
    assert_int_equal(plan.order[1], 0);
    free(packed.bytes);
    text("label", &request.outputs[0]);
    request.message.n_outputs = 1;
    pack(&request.message.base, &packed);
    assert_int_equal(take(cut(&packed, packed.length, 100), false, &error, &plan, NULL), CM_OK);
    assert_true(plan.output_mask == 2);
    free(packed.bytes);
}

static void raw_and_typed_do_not_mix(void **state)
{
    (void)state;
    struct oip_request request;
    struct cm_error error;
    oip_init(&request, true);
    request.inputs[0].contents = &request.contents[0];
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    assert_non_null(strstr(error.text, "together with raw_input_contents"));
    oip_init(&request, true);
    request.message.n_raw_input_contents = 1;
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    assert_non_null(strstr(error.text, "1 for 2 inputs"));
    oip_init(&request, true);
    request.message.n_raw_input_contents = 3;
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    oip_init(&request, false);
    request.inputs[1].contents = NULL;
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    assert_non_null(strstr(error.text, "no contents"));
    oip_init(&request, false);
    request.contents[1].n_fp32_contents--;
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    oip_init(&request, false);
    request.shapes[1][1] = 1 << 28; /* asks for much with little */
    assert_int_equal(take_oip(&request, &error), CM_INVALID);
    assert_non_null(strstr(error.text, "too short"));
}

/* One parameter of the request, or of its first input. */
static enum cm_err with_parameter(const char *key, const Inference__InferParameter *value,
                                  bool of_input, struct cm_error *err)
{
    struct oip_request request;
    Inference__ModelInferRequest__ParametersEntry own =
        INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT;
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry input =
        INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__PARAMETERS_ENTRY__INIT;
    Inference__ModelInferRequest__ParametersEntry *own_pointer = &own;
    Inference__ModelInferRequest__InferInputTensor__ParametersEntry *input_pointer = &input;
    oip_init(&request, true);
    own.key = input.key = (char *)(uintptr_t)key;
    own.value = input.value = (Inference__InferParameter *)(uintptr_t)value;
    if (of_input) {
        request.inputs[0].n_parameters = 1;
        request.inputs[0].parameters = &input_pointer;
    } else {
        request.message.n_parameters = 1;
        request.message.parameters = &own_pointer;
    }
    return take_oip(&request, err);
}

static void parameters_are_used_refused_or_ignored(void **state)
{
    (void)state;
    struct cm_error error;
    Inference__InferParameter number = INFERENCE__INFER_PARAMETER__INIT, word = number,
                              flag = number;
    number.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
    word.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    word.string_param = (char *)(uintptr_t) "x";
    flag.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM;
    number.int64_param = 7;
    assert_int_equal(with_parameter("priority", &number, false, &error), CM_OK);
    assert_int_equal(with_parameter("timeout", &number, false, &error), CM_OK);
    assert_int_equal(with_parameter("sequence_id", &number, false, &error), CM_UNSUPPORTED);
    assert_int_equal(with_parameter("sequence_id", &word, false, &error), CM_UNSUPPORTED);
    assert_int_equal(with_parameter("priority", &word, false, &error), CM_INVALID);
    assert_int_equal(with_parameter("timeout", &word, false, &error), CM_INVALID);
    number.int64_param = -1;
    assert_int_equal(with_parameter("priority", &number, false, &error), CM_INVALID);
    assert_int_equal(with_parameter("timeout", &number, false, &error), CM_INVALID);
    number.int64_param = 256;
    assert_int_equal(with_parameter("priority", &number, false, &error), CM_INVALID);
    number.int64_param = 0;
    assert_int_equal(with_parameter("sequence_id", &number, false, &error), CM_OK);
    assert_int_equal(with_parameter("sequence_start", &flag, false, &error), CM_OK);
    assert_int_equal(with_parameter("headers", &word, false, &error), CM_OK);
    assert_int_equal(with_parameter("my_own", &word, false, &error), CM_OK);
    assert_int_equal(with_parameter("triton_x", &word, false, &error), CM_INVALID);
    assert_int_equal(with_parameter("triton_enable_empty_final_response", &flag, false, &error),
                     CM_OK);
    assert_int_equal(with_parameter("shared_memory_region", &word, true, &error), CM_UNSUPPORTED);
    assert_int_equal(with_parameter("classification", &number, true, &error), CM_UNSUPPORTED);
    assert_int_equal(with_parameter("binary_data_size", &number, true, &error), CM_OK);
}

static void a_bool_is_zero_or_one(void **state)
{
    (void)state;
    struct kit_model flags = kit_pair;
    flags.name = "flags";
    flags.n_inputs = 1;
    flags.inputs[0] = (struct kit_tensor){"image", CM_BOOL, 2, {-1, 4}};
    struct gw_models *pair_table = table;
    table = kit_table(&flags, 1, 1, true, NULL);
    uint8_t bytes[4] = {0, 1, 1, 0};
    struct ingot_request request;
    struct cm_error error;
    ingot_init(&request);
    request.message.n_inputs = 1;
    text("flags", &request.message.model);
    text("BOOL", &request.tensors[0].datatype);
    request.tensors[0].n_shape = 2;
    request.shapes[0][0] = 1;
    request.shapes[0][1] = 4;
    request.tensors[0].data = (ProtobufCBinaryData){4, bytes};
    assert_int_equal(take_ingot(&request, &error), CM_OK);
    bytes[2] = 2;
    assert_int_equal(take_ingot(&request, &error), CM_INVALID);
    gw_models_unref(table);
    table = pair_table;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read_in_any_pieces),
        cmocka_unit_test(every_truncation_is_refused_or_whole),
        cmocka_unit_test(mutations_never_harm),
        cmocka_unit_test(unknown_fields_are_skipped),
        cmocka_unit_test(wrong_requests_say_what_is_wrong),
        cmocka_unit_test(too_many_tensors_are_refused),
        cmocka_unit_test(outputs_keep_the_clients_order),
        cmocka_unit_test(raw_and_typed_do_not_mix),
        cmocka_unit_test(parameters_are_used_refused_or_ignored),
        cmocka_unit_test(a_bool_is_zero_or_one),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
