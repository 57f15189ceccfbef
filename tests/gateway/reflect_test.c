/* Reflection: answers read back with protobuf-c, unknown names, hostile questions. */
#include "gateway/reflect.h"
#include "proto/reflection.pb-c.h"
#include "tests/harness/t.h"

#include <string.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest question_message;
typedef Grpc__Reflection__V1__ServerReflectionResponse answer_message;

static struct gw_reflection *reflection;

static int setup(void **state)
{
    (void)state;
    size_t length;
    const uint8_t *set = gw_reflection_set(&length);
    return gw_reflection_create(set, length, &reflection) == CM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gw_reflection_destroy(reflection);
    return 0;
}

static answer_message *ask(const question_message *question)
{
    static uint8_t bytes[GW_REFLECTION_REQUEST_MAX], answer[GW_REFLECTION_ANSWER_MAX];
    size_t length = grpc__reflection__v1__server_reflection_request__pack(question, bytes), n;
    assert_true(gw_reflection_answer(reflection, bytes, length, answer, &n));
    answer_message *read =
        grpc__reflection__v1__server_reflection_response__unpack(NULL, n, answer);
    assert_non_null(read);
    assert_non_null(read->original_request);
    return read;
}

static void let_go(answer_message *answer)
{
    grpc__reflection__v1__server_reflection_response__free_unpacked(answer, NULL);
}

static answer_message *ask_symbol(const char *name)
{
    question_message question = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    question.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL;
    question.file_containing_symbol = (char *)(uintptr_t)name;
    return ask(&question);
}

static void services_are_listed(void **state)
{
    (void)state;
    question_message question = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    question.host = (char *)(uintptr_t) "somewhere";
    question.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES;
    question.list_services = (char *)(uintptr_t) "*";
    answer_message *answer = ask(&question);
    static const char *const wanted[] = {
        "ingot.v1.Inference", "inference.GRPCInferenceService", "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"};
    assert_string_equal(answer->valid_host, "somewhere");
    assert_int_equal(answer->list_services_response->n_service, 5);
    for (size_t i = 0; i < 5; i++) {
        bool found = false;
        for (size_t k = 0; k < 5; k++)
            found |= strcmp(answer->list_services_response->service[k]->name, wanted[i]) == 0;
        assert_true(found);
    }
    let_go(answer);
}

static void symbols_lead_to_files(void **state)
{
    (void)state;
    static const char *const known[] = {
        "ingot.v1.Inference",
        "ingot.v1.Inference.Infer",
        "ingot.v1.InferRequest",
        "inference.GRPCInferenceService.ModelInfer",
        "inference.ModelInferRequest.InferInputTensor",
        "inference.ModelMetadataResponse.TensorMetadata",
        "grpc.health.v1.HealthCheckResponse.ServingStatus",
        "grpc.health.v1.Health.Watch",
        "grpc.reflection.v1alpha.ServerReflectionRequest",
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        answer_message *answer = ask_symbol(known[i]);
        assert_int_equal(
            answer->message_response_case,
            GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE);
        assert_int_equal(answer->file_descriptor_response->n_file_descriptor_proto, 1);
        assert_true(answer->file_descriptor_response->file_descriptor_proto[0].len > 50);
        let_go(answer);
    }
    static const char *const unknown[] = {"", "ingot.v1", "ingot.v1.Infer", "nothing",
                                          "ingot.v1.Inference.Infer.more"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        answer_message *answer = ask_symbol(unknown[i]);
        assert_int_equal(
            answer->message_response_case,
            GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE);
        assert_int_equal(answer->error_response->error_code, 5);
        let_go(answer);
    }
}

static void files_are_found_by_name(void **state)
{
    (void)state;
    question_message question = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    question.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME;
    question.file_by_filename = (char *)(uintptr_t) "grpc/health/v1/health.proto";
    answer_message *answer = ask(&question);
    assert_non_null(answer->file_descriptor_response);
    let_go(answer);
    question.file_by_filename = (char *)(uintptr_t) "../../etc/passwd";
    answer = ask(&question);
    assert_int_equal(answer->error_response->error_code, 5);
    let_go(answer);
}

static void there_are_no_extensions(void **state)
{
    (void)state;
    question_message question = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    question.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE;
    question.all_extension_numbers_of_type = (char *)(uintptr_t) "ingot.v1.Tensor";
    answer_message *answer = ask(&question);
    assert_string_equal(answer->all_extension_numbers_response->base_type_name, "ingot.v1.Tensor");
    let_go(answer);
    Grpc__Reflection__V1__ExtensionRequest extension =
        GRPC__REFLECTION__V1__EXTENSION_REQUEST__INIT;
    extension.containing_type = (char *)(uintptr_t) "ingot.v1.Tensor";
    extension.extension_number = 100;
    question.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION;
    question.file_containing_extension = &extension;
    answer = ask(&question);
    assert_int_equal(answer->error_response->error_code, 5);
    let_go(answer);
    question_message none = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    answer = ask(&none);
    assert_int_equal(answer->error_response->error_code, 3);
    let_go(answer);
}

static void hostile_questions_end(void **state)
{
    (void)state;
    static uint8_t answer[GW_REFLECTION_ANSWER_MAX];
    uint64_t seed = 51;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[64] = {0x22, 20};
        size_t length = t_random(&seed) % sizeof bytes, n;
        for (size_t k = i % 2 ? 2 : 0; k < length; k++)
            bytes[k] = (uint8_t)t_random(&seed);
        if (gw_reflection_answer(reflection, bytes, length, answer, &n))
            assert_true(n <= sizeof answer);
    }
}

static void a_set_that_is_none_is_refused(void **state)
{
    (void)state;
    struct gw_reflection *made = NULL;
    size_t length;
    const uint8_t *set = gw_reflection_set(&length);
    assert_int_equal(gw_reflection_create((const uint8_t *)"", 0, &made), CM_CORRUPT);
    assert_int_equal(gw_reflection_create(set, length - 1, &made), CM_CORRUPT);
    assert_int_equal(gw_reflection_create(set + 1, length - 1, &made), CM_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(services_are_listed),     cmocka_unit_test(symbols_lead_to_files),
        cmocka_unit_test(files_are_found_by_name), cmocka_unit_test(there_are_no_extensions),
        cmocka_unit_test(hostile_questions_end),   cmocka_unit_test(a_set_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
