/* Answers: what is written by hand, protobuf-c reads. */
#include "gateway/codec.h"
#include "proto/inference.pb-c.h"
#include "proto/ingot.pb-c.h"
#include "tests/gateway/models_kit.h"
#include "tests/harness/t.h"

#include <stdlib.h>
#include <string.h>

static const struct gw_stats stats = {
    .batch_rows = 300,
    .batch_requests = 2,
    .worker = 1,
    .attempts = 1,
    .decode_us = 1.5,
    .total_us = 99.25,
    .trace_id = "0123456789abcdef",
};

static const float scores[20] = {1, 2, 3};
static const int64_t labels[2] = {7, -7};

/* Header pieces and data, put together as they are sent. */
static size_t join(const struct gw_answer *answer, const struct gw_output *outputs,
                   const void *const *data, uint8_t *to)
{
    size_t at = 0;
    for (size_t i = 0; i < answer->n_pieces; i++) {
        size_t start = i ? answer->ends[i - 1] : 0, length = answer->ends[i] - start;
        memcpy(to + at, answer->header.data + start, length);
        at += length;
        if (i + 1 < answer->n_pieces) {
            memcpy(to + at, data[i], outputs[i].length);
            at += outputs[i].length;
        }
    }
    return at;
}

struct fixture {
    struct gw_models *table;
    struct gw_model *model;
    struct gw_output outputs[2];
    const void *data[2];
    uint8_t header[GW_ANSWER_HEADER_MAX];
    uint8_t bytes[GW_ANSWER_HEADER_MAX + 1024];
    struct gw_answer answer;
};

static void init(struct fixture *fixture)
{
    fixture->table = kit_table(&kit_pair, 1, 1, true, NULL);
    fixture->model = kit_find(fixture->table, "pair", "");
    fixture->outputs[0] =
        (struct gw_output){&fixture->model->outputs[0], {2, {2, 10}}, sizeof scores};
    fixture->outputs[1] = (struct gw_output){&fixture->model->outputs[1], {1, {2}}, sizeof labels};
    fixture->data[0] = scores;
    fixture->data[1] = labels;
    fixture->answer.header = (struct gw_put){fixture->header, 0, sizeof fixture->header};
}

static void ingots_answer_reads_back(void **state)
{
    (void)state;
    static struct fixture f;
    init(&f);
    assert_true(gw_answer_ingot(f.model, f.outputs, 2, &stats, &f.answer));
    assert_int_equal(f.answer.n_pieces, 3);
    size_t length = join(&f.answer, f.outputs, f.data, f.bytes);
    Ingot__V1__InferResponse *read = ingot__v1__infer_response__unpack(NULL, length, f.bytes);
    assert_non_null(read);
    assert_string_equal(read->model, "pair");
    assert_string_equal(read->version, "3");
    assert_int_equal(read->n_outputs, 2);
    assert_string_equal(read->outputs[0]->name, "scores");
    assert_string_equal(read->outputs[0]->datatype, "FP32");
    assert_int_equal(read->outputs[0]->n_shape, 2);
    assert_int_equal(read->outputs[0]->shape[1], 10);
    assert_int_equal(read->outputs[0]->data.len, sizeof scores);
    assert_memory_equal(read->outputs[0]->data.data, scores, sizeof scores);
    assert_memory_equal(read->outputs[1]->data.data, labels, sizeof labels);
    assert_int_equal(read->stats->batch_rows, 300);
    assert_true(read->stats->total_us == 99.25);
    assert_string_equal(read->stats->trace_id, stats.trace_id);
    ingot__v1__infer_response__free_unpacked(read, NULL);
    gw_models_unref(f.table);
}

static void the_protocols_answer_reads_back(void **state)
{
    (void)state;
    static struct fixture f;
    init(&f);
    assert_true(
        gw_answer_oip(f.model, f.outputs, 2, (struct gw_text){"id 7", 4}, &stats, &f.answer));
    size_t length = join(&f.answer, f.outputs, f.data, f.bytes);
    Inference__ModelInferResponse *read =
        inference__model_infer_response__unpack(NULL, length, f.bytes);
    assert_non_null(read);
    assert_string_equal(read->model_name, "pair");
    assert_string_equal(read->id, "id 7");
    assert_int_equal(read->n_parameters, 2);
    assert_string_equal(read->parameters[0]->key, "ingot_batch_rows");
    assert_int_equal(read->parameters[0]->value->int64_param, 300);
    assert_string_equal(read->parameters[1]->key, "ingot_batch_requests");
    assert_int_equal(read->parameters[1]->value->int64_param, 2);
    assert_int_equal(read->n_outputs, 2);
    assert_int_equal(read->n_raw_output_contents, 2);
    assert_string_equal(read->outputs[1]->name, "label");
    assert_string_equal(read->outputs[1]->datatype, "INT64");
    assert_memory_equal(read->raw_output_contents[0].data, scores, sizeof scores);
    assert_memory_equal(read->raw_output_contents[1].data, labels, sizeof labels);
    inference__model_infer_response__free_unpacked(read, NULL);
    gw_models_unref(f.table);
}

static void scalars_and_empty_tensors_fit(void **state)
{
    (void)state;
    static struct fixture f;
    init(&f);
    f.outputs[0].shape.rank = 0;
    f.outputs[0].length = 4;
    f.outputs[1].shape = (struct cm_shape){1, {0}};
    f.outputs[1].length = 0;
    assert_true(gw_answer_ingot(f.model, f.outputs, 2, &stats, &f.answer));
    size_t length = join(&f.answer, f.outputs, f.data, f.bytes);
    Ingot__V1__InferResponse *read = ingot__v1__infer_response__unpack(NULL, length, f.bytes);
    assert_non_null(read);
    assert_int_equal(read->outputs[0]->n_shape, 0);
    assert_int_equal(read->outputs[1]->data.len, 0);
    assert_int_equal(read->outputs[1]->n_shape, 1);
    ingot__v1__infer_response__free_unpacked(read, NULL);
    gw_models_unref(f.table);
}

static void a_header_that_does_not_fit_is_told(void **state)
{
    (void)state;
    static struct fixture f;
    init(&f);
    f.answer.header.capacity = 40;
    assert_false(gw_answer_ingot(f.model, f.outputs, 2, &stats, &f.answer));
    assert_false(gw_answer_oip(f.model, f.outputs, 2, (struct gw_text){"", 0}, &stats, &f.answer));
    gw_models_unref(f.table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ingots_answer_reads_back),
        cmocka_unit_test(the_protocols_answer_reads_back),
        cmocka_unit_test(scalars_and_empty_tensors_fit),
        cmocka_unit_test(a_header_that_does_not_fit_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
