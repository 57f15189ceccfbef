/* The parts of the scheduler core by themselves: heap, history, closing rule, model table. */
#include "scheduler/batcher.h"
#include "scheduler/heap.h"
#include "scheduler/history.h"
#include "scheduler/model.h"

#include "common/check.h"
#include "common/clock.h"
#include "tests/scheduler/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- heap ---- */

struct number {
    struct sd_heap_node node;
    uint32_t value;
    bool in;
};

static bool number_less(const struct sd_heap_node *a, const struct sd_heap_node *b)
{
    return cm_container_of(a, struct number, node)->value <
           cm_container_of(b, struct number, node)->value;
}

static void heap_keeps_the_smallest_first(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    static struct number numbers[COUNT];
    struct sd_heap heap = {.less = number_less};
    srand(1);
    for (int round = 0; round < 20000; round++) {
        struct number *n = &numbers[rand() % COUNT];
        if (n->in) {
            sd_heap_remove(&heap, &n->node);
        } else {
            n->value = (uint32_t)rand() % 1000;
            sd_heap_insert(&heap, &n->node);
        }
        n->in = !n->in;
        uint32_t least = UINT32_MAX;
        for (int i = 0; i < COUNT; i++)
            if (numbers[i].in && numbers[i].value < least)
                least = numbers[i].value;
        uint32_t top =
            heap.root ? cm_container_of(heap.root, struct number, node)->value : UINT32_MAX;
        assert_int_equal(top, least);
    }
}

/* Many in order, then out: a recursive or quadratic heap would not come back. */
static void heap_takes_long_queues(void **state)
{
    (void)state;
    enum { COUNT = 300000 };
    struct number *numbers = calloc(COUNT, sizeof *numbers);
    struct sd_heap heap = {.less = number_less};
    for (uint32_t i = 0; i < COUNT; i++) {
        numbers[i].value = COUNT - i;
        sd_heap_insert(&heap, &numbers[i].node);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(cm_container_of(heap.root, struct number, node)->value, i + 1);
        sd_heap_remove(&heap, heap.root);
    }
    assert_null(heap.root);
    free(numbers);
}

/* ---- history ---- */

static void history_predicts_from_what_was_measured(void **state)
{
    (void)state;
    struct sd_history history = {0};
    assert_int_equal(sd_history_predict(&history, 5).high_ns, 0);
    for (int i = 0; i < 100; i++)
        sd_history_add(&history, 4, 1000000);
    struct sd_prediction same = sd_history_predict(&history, 3);
    assert_in_range(same.mean_ns, 990000, 1010000);
    assert_true(same.low_ns <= same.mean_ns && same.mean_ns <= same.high_ns);
    assert_in_range(same.low_ns, 900000, 1000000);
    /* Four classes up: at most in proportion. Below: no promise that it is faster. */
    assert_in_range(sd_history_predict(&history, 64).mean_ns, 15000000, 17000000);
    assert_in_range(sd_history_predict(&history, 1).mean_ns, 990000, 1010000);
    assert_true(sd_history_predict(&history, 1).low_ns < 300000);
}

static void history_shrugs_off_a_pause(void **state)
{
    (void)state;
    struct sd_history history = {0};
    for (int i = 0; i < 50; i++)
        sd_history_add(&history, 1, 100000);
    sd_history_add(&history, 1, 10000000000ull);
    assert_true(sd_history_predict(&history, 1).mean_ns < 200000);
    assert_true(sd_history_predict(&history, 1).low_ns < 100000);
}

/* A first measurement that was absurdly slow stops dropping requests by itself. */
static void history_heals_by_doubt(void **state)
{
    (void)state;
    struct sd_history history = {0};
    sd_history_add(&history, 1, 60000000000ull);
    int drops = 0;
    while (sd_history_predict(&history, 1).low_ns > 1000000 && drops < 1000) {
        sd_history_doubt(&history);
        drops++;
    }
    assert_in_range(drops, 1, 100);
}

/* ---- closing rule ---- */

static void batches_close_by_rule(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct sd_waiting waiting;
        uint64_t now;
        struct sd_close expected;
    } cases[] = {
        /* rows items max_rows max_items wait oldest earliest predicted */
        {"no wait configured", {1, 1, 8, 128, 0, 5, CM_NEVER, 0}, 5, {SD_CLOSE_IDLE, 5}},
        {"full by rows", {8, 3, 8, 128, 1000, 5, CM_NEVER, 0}, 5, {SD_CLOSE_FULL, 5}},
        {"more than full", {11, 3, 8, 128, 1000, 5, CM_NEVER, 0}, 5, {SD_CLOSE_FULL, 5}},
        {"full by items", {4, 4, 128, 4, 1000, 5, CM_NEVER, 0}, 5, {SD_CLOSE_FULL, 5}},
        {"waits", {3, 3, 8, 128, 1000, 5, CM_NEVER, 0}, 600, {SD_CLOSE_NOT, 1005}},
        {"waited", {3, 3, 8, 128, 1000, 5, CM_NEVER, 0}, 1005, {SD_CLOSE_WAITED, 1005}},
        {"deadline far", {3, 3, 8, 128, 1000, 5, 5000, 100}, 600, {SD_CLOSE_NOT, 1005}},
        {"deadline near", {3, 3, 8, 128, 1000, 5, 900, 100}, 600, {SD_CLOSE_NOT, 800}},
        {"deadline due", {3, 3, 8, 128, 1000, 5, 900, 100}, 800, {SD_CLOSE_DEADLINE, 800}},
        {"run longer than time", {3, 3, 8, 128, 1000, 5, 90, 100}, 50, {SD_CLOSE_DEADLINE, 50}},
        {"far future", {3, 3, 8, 128, UINT64_MAX, 5, CM_NEVER, 0}, 6, {SD_CLOSE_NOT, CM_NEVER}},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        struct sd_close got = sd_batcher_close(&cases[i].waiting, cases[i].now);
        if (got.reason != cases[i].expected.reason || got.at_ns != cases[i].expected.at_ns)
            fail_msg("%s: reason %d at %llu", cases[i].name, got.reason,
                     (unsigned long long)got.at_ns);
    }
}

/* ---- models ---- */

static struct sd_signature signature_of(const char *name, uint32_t max_batch)
{
    struct sd_signature out = {
        .n_inputs = 1, .n_outputs = 1, .max_batch = max_batch, .batchable = true};
    out.inputs = calloc(1, sizeof *out.inputs);
    out.outputs = calloc(1, sizeof *out.outputs);
    out.inputs[0] = (struct sd_tensor_info){
        .name = strdup(name), .dtype = CM_FP32, .shape = {.rank = 2, .dims = {-1, 3}}};
    out.outputs[0] = out.inputs[0];
    out.outputs[0].name = strdup("out");
    return out;
}

static void models_become_ready_and_stay_so(void **state)
{
    (void)state;
    struct sd_models models;
    struct cm_model_config config;
    struct cm_error err;
    cm_model_config_init(&config);
    assert_int_equal(sd_models_init(&models, 3), CM_OK);
    struct sd_model *model = sd_models_add(&models, "m", 2, &config, NULL);
    assert_int_equal(model->state, SD_MODEL_LOADING);
    assert_false(sd_models_settled(&models));
    sd_model_asked(model, 0);
    sd_model_asked(model, 1);
    assert_true(sd_model_failed(model, 1, "no such operator"));
    assert_int_equal(model->state, SD_MODEL_FAILED);
    assert_string_equal(model->reason, "no such operator");
    assert_false(sd_models_settled(&models)); /* worker 0 has not said */
    struct sd_signature signature = signature_of("x", 8);
    assert_true(sd_model_ready(model, 0, &signature, &err));
    assert_int_equal(model->state, SD_MODEL_READY);
    assert_int_equal(model->ready, 1);
    assert_true(sd_models_settled(&models));
    signature = signature_of("x", 8);
    assert_false(sd_model_ready(model, 0, &signature, &err)); /* said twice: no news */
    assert_true(sd_models_worker_gone(&models, 0));
    assert_int_equal(model->state, SD_MODEL_READY);
    assert_int_equal(model->ready, 0);
    assert_false(sd_model_failed(model, 2, "trouble of one worker"));
    assert_int_equal(model->state, SD_MODEL_READY);
    sd_models_fini(&models);
}

static void workers_must_agree_on_a_signature(void **state)
{
    (void)state;
    struct sd_models models;
    struct cm_model_config config;
    struct cm_error err;
    cm_model_config_init(&config);
    assert_int_equal(sd_models_init(&models, 3), CM_OK);
    struct sd_model *model = sd_models_add(&models, "m", 2, &config, NULL);
    struct sd_signature a = signature_of("x", 8), b = signature_of("renamed", 8);
    sd_model_ready(model, 0, &a, &err);
    sd_model_ready(model, 1, &b, &err);
    assert_int_equal(err.code, CM_PRECONDITION);
    assert_int_equal(model->ready, 1);
    assert_int_equal(model->failed, 2);
    assert_null(b.inputs);
    sd_models_fini(&models);
}

static void references_of_another_life_are_unknown(void **state)
{
    (void)state;
    struct sd_models models;
    struct cm_model_config config;
    cm_model_config_init(&config);
    assert_int_equal(sd_models_init(&models, 3), CM_OK);
    struct sd_model *model = sd_models_add(&models, "m", 2, &config, NULL);
    assert_ptr_equal(sd_models_find(&models, model->ref), model);
    assert_null(sd_models_find(&models, (struct cm_model_ref){1, 2}));
    assert_null(sd_models_find(&models, (struct cm_model_ref){0, 3}));
    assert_null(sd_models_find(&models, (struct cm_model_ref){2, 3}));
    assert_null(sd_models_find(&models, (struct cm_model_ref){UINT32_MAX, 3}));
    sd_models_fini(&models);
}

static void bad_signatures_are_refused(void **state)
{
    (void)state;
    struct cm_error err;
    struct sd_tensor_info good = {.dtype = CM_FP32, .shape = {.rank = 2, .dims = {-1, 3}}};
    struct sd_tensor_info scalar = {.dtype = CM_FP32};
    struct sd_tensor_info negative = {.dtype = CM_FP32, .shape = {.rank = 1, .dims = {-2}}};
    struct sd_tensor_info deep = {.dtype = CM_FP32, .shape = {.rank = CM_MAX_RANK + 1}};
    struct sd_tensor_info unknown = {.dtype = (enum cm_dtype)77};
    const struct {
        struct sd_signature signature;
        enum cm_err expected;
    } cases[] = {
        {{&good, &good, 1, 1, 1, true, 0}, CM_OK},
        {{NULL, &good, 0, 1, 1, false, 0}, CM_OK},
        {{NULL, &good, 0, 1, 1, true, 0}, CM_INVALID},
        {{&scalar, &good, 1, 1, 1, true, 0}, CM_INVALID},
        {{&scalar, &good, 1, 1, 1, false, 0}, CM_OK},
        {{&negative, &good, 1, 1, 1, false, 0}, CM_INVALID},
        {{&deep, &good, 1, 1, 1, false, 0}, CM_INVALID},
        {{&unknown, &good, 1, 1, 1, false, 0}, CM_INVALID},
        {{&good, &unknown, 1, 1, 1, false, 0}, CM_INVALID},
        {{&good, NULL, 1, 0, 1, true, 0}, CM_INVALID},
        {{&good, &good, 1, 1, 0, true, 0}, CM_INVALID},
        {{&good, &good, CM_MAX_TENSORS + 1, 1, 1, true, 0}, CM_INVALID},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++)
        assert_int_equal(sd_signature_check(&cases[i].signature, &err), cases[i].expected);
}

static void submits_are_checked_against_the_signature(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t model, rows, n_inputs;
        uint64_t mask;
        int64_t dims[2];
        uint8_t rank, dtype, index;
        enum cm_err expected;
    } cases[] = {
        {"fits", FX_EAGER, 3, 1, 3, {3, 7}, 2, CM_FP32, 0, CM_OK},
        {"full", FX_EAGER, 8, 1, 1, {8, 7}, 2, CM_FP32, 0, CM_OK},
        {"no row", FX_EAGER, 0, 1, 1, {0, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"too many rows", FX_EAGER, 9, 1, 1, {9, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"rows lie", FX_EAGER, 3, 1, 1, {4, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"no inputs", FX_EAGER, 3, 0, 1, {3, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"wrong dtype", FX_EAGER, 3, 1, 1, {3, 7}, 2, CM_INT64, 0, CM_INVALID},
        {"wrong rank", FX_EAGER, 3, 1, 1, {3, 7}, 1, CM_FP32, 0, CM_INVALID},
        {"wrong index", FX_EAGER, 3, 1, 1, {3, 7}, 2, CM_FP32, 1, CM_INVALID},
        {"no output", FX_EAGER, 3, 1, 0, {3, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"unknown output", FX_EAGER, 3, 1, 4, {3, 7}, 2, CM_FP32, 0, CM_INVALID},
        {"single", FX_SINGLE, 1, 1, 1, {3, 7}, 2, CM_FP32, 0, CM_OK},
        {"single with rows", FX_SINGLE, 3, 1, 1, {3, 7}, 2, CM_FP32, 0, CM_INVALID},
    };
    struct fx fx;
    struct cm_error err;
    fx_open(&fx, NULL);
    fx_add_worker(&fx, 0, 100);
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        struct {
            struct cm_record_submit submit;
            struct cm_tensor_desc input;
        } record = {.submit = {.rows = cases[i].rows,
                               .n_inputs = (uint8_t)cases[i].n_inputs,
                               .output_mask = cases[i].mask},
                    .input = {.dims = {cases[i].dims[0], cases[i].dims[1]},
                              .rank = cases[i].rank,
                              .dtype = cases[i].dtype,
                              .index = cases[i].index}};
        enum cm_err code = sd_model_check(&fx.models.items[cases[i].model], &record.submit, &err);
        if (code != cases[i].expected)
            fail_msg("%s: %s", cases[i].name, cm_err_name(code));
    }
    fx_close(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heap_keeps_the_smallest_first),
        cmocka_unit_test(heap_takes_long_queues),
        cmocka_unit_test(history_predicts_from_what_was_measured),
        cmocka_unit_test(history_shrugs_off_a_pause),
        cmocka_unit_test(history_heals_by_doubt),
        cmocka_unit_test(batches_close_by_rule),
        cmocka_unit_test(models_become_ready_and_stay_so),
        cmocka_unit_test(workers_must_agree_on_a_signature),
        cmocka_unit_test(references_of_another_life_are_unknown),
        cmocka_unit_test(bad_signatures_are_refused),
        cmocka_unit_test(submits_are_checked_against_the_signature),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
