/* ModelTable out and ModelStatus in: everything arrives, and a hostile status is refused. */
#include "scheduler/messages.h"

#include "common/check.h"
#include "tests/harness/alloc.h"
#include "tests/harness/t.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A status with one input and one output, to be spoiled by the cases. */
struct spoiled {
    Ingot__Ipc__ModelStatus status;
    Ingot__Ipc__TensorInfo infos[2];
    Ingot__Ipc__TensorInfo *list[64];
    int64_t shape[16];
};

static void good_status(struct spoiled *s)
{
    ingot__ipc__model_status__init(&s->status);
    for (int i = 0; i < 2; i++) {
        ingot__ipc__tensor_info__init(&s->infos[i]);
        s->infos[i].name = i == 0 ? "x" : "y";
        s->infos[i].dtype = CM_FP32;
        s->infos[i].n_shape = 2;
        s->infos[i].shape = s->shape;
    }
    s->shape[0] = -1;
    for (int i = 1; i < 16; i++)
        s->shape[i] = i;
    for (int i = 0; i < 64; i++)
        s->list[i] = &s->infos[i > 0];
    s->status.inputs = s->list;
    s->status.n_inputs = 1;
    s->status.outputs = s->list + 1;
    s->status.n_outputs = 1;
    s->status.max_batch_size = 32;
    s->status.batchable = true;
    s->status.weights_bytes = 123;
}

static char *long_name(void)
{
    static char name[SD_MAX_TENSOR_NAME + 2];
    memset(name, 'n', sizeof name - 1);
    return name;
}

static void hostile_signatures_are_refused(void **state)
{
    (void)state;
    enum {
        GOOD,
        INPUTS,
        OUTPUTS,
        NO_OUTPUT,
        DTYPE,
        HUGE_DTYPE,
        RANK,
        NEGATIVE,
        NAME,
        BATCH,
        SCALAR
    };
    static const enum cm_err expected[] = {
        [GOOD] = CM_OK,           [INPUTS] = CM_LIMIT,     [OUTPUTS] = CM_LIMIT,
        [NO_OUTPUT] = CM_INVALID, [DTYPE] = CM_INVALID,    [HUGE_DTYPE] = CM_INVALID,
        [RANK] = CM_INVALID,      [NEGATIVE] = CM_INVALID, [NAME] = CM_LIMIT,
        [BATCH] = CM_INVALID,     [SCALAR] = CM_INVALID,
    };
    for (unsigned i = 0; i < CM_COUNT_OF(expected); i++) {
        struct spoiled s;
        struct cm_error err = {0};
        struct sd_signature signature;
        good_status(&s);
        if (i == INPUTS)
            s.status.n_inputs = CM_MAX_TENSORS + 1;
        else if (i == OUTPUTS)
            s.status.n_outputs = 60;
        else if (i == NO_OUTPUT)
            s.status.n_outputs = 0;
        else if (i == DTYPE)
            s.infos[0].dtype = 99;
        else if (i == HUGE_DTYPE)
            s.infos[1].dtype = 256 + CM_FP32;
        else if (i == RANK)
            s.infos[0].n_shape = CM_MAX_RANK + 1;
        else if (i == NEGATIVE)
            s.shape[1] = INT64_MIN;
        else if (i == NAME)
            s.infos[1].name = long_name();
        else if (i == BATCH)
            s.status.max_batch_size = 0;
        else if (i == SCALAR)
            s.infos[0].n_shape = 0;
        enum cm_err code = sd_signature_from(&s.status, &err, &signature);
        if (code != expected[i])
            fail_msg("case %u: %s", i, cm_err_name(code));
        assert_true(code == CM_OK || err.text[0] != '\0');
        if (code == CM_OK)
            sd_signature_fini(&signature);
    }
}

static void tables_carry_everything(void **state)
{
    (void)state;
    struct sd_models models;
    struct cm_model_config config;
    struct cm_error err;
    struct sd_table table;
    struct spoiled s;
    struct sd_signature signature;
    cm_model_config_init(&config);
    assert_int_equal(sd_models_init(&models, 9), CM_OK);
    struct sd_model *model = sd_models_add(&models, "digits", 3, &config, NULL);
    sd_models_add(&models, "bad", 1, &config, "it is bad");
    good_status(&s);
    for (uint32_t worker = 0; worker < SD_MAX_WORKERS; worker += 63) {
        assert_int_equal(sd_signature_from(&s.status, &err, &signature), CM_OK);
        sd_model_ready(model, worker, &signature, &err);
    }
    model->queued = 4;
    model->batches = 5;
    model->requests = 6;
    model->rows = 7;
    assert_int_equal(sd_table_make(&models, 77, true, &table), CM_OK);

    size_t length = ingot__ipc__model_table__get_packed_size(&table.message);
    uint8_t *bytes = malloc(length);
    ingot__ipc__model_table__pack(&table.message, bytes);
    sd_table_free(&table);
    sd_models_fini(&models);
    Ingot__Ipc__ModelTable *got = ingot__ipc__model_table__unpack(NULL, length, bytes);
    free(bytes);
    assert_non_null(got);
    assert_int_equal(got->revision, 77);
    assert_true(got->settled);
    assert_int_equal(got->n_models, 2);
    const Ingot__Ipc__Model *digits = got->models[0], *bad = got->models[1];
    assert_string_equal(digits->name, "digits");
    assert_int_equal(digits->id, 1);
    assert_int_equal(digits->generation, 9);
    assert_int_equal(digits->version, 3);
    assert_int_equal(digits->state, INGOT__IPC__MODEL_STATE__MODEL_READY);
    assert_int_equal(digits->n_inputs, 1);
    assert_string_equal(digits->inputs[0]->name, "x");
    assert_int_equal(digits->inputs[0]->n_shape, 2);
    assert_int_equal(digits->inputs[0]->shape[0], -1);
    assert_string_equal(digits->outputs[0]->name, "y");
    assert_int_equal(digits->max_batch_size, 32);
    assert_true(digits->batchable && digits->latest);
    assert_int_equal(digits->weights_bytes, 123);
    assert_int_equal(digits->n_workers, 2);
    assert_int_equal(digits->workers[1], 63);
    assert_int_equal(digits->queued + digits->batches + digits->requests + digits->rows, 22);
    assert_int_equal(bad->state, INGOT__IPC__MODEL_STATE__MODEL_FAILED);
    assert_string_equal(bad->reason, "it is bad");
    ingot__ipc__model_table__free_unpacked(got, NULL);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    struct spoiled s;
    good_status(&s);
    unsigned n = 1;
    for (;; n++) {
        struct cm_error err;
        struct sd_signature signature;
        t_alloc_fail_at(n);
        enum cm_err code = sd_signature_from(&s.status, &err, &signature);
        if (!t_alloc_failed()) {
            assert_int_equal(code, CM_OK);
            sd_signature_fini(&signature);
            break;
        }
        assert_int_equal(code, CM_NOMEM);
    }
    assert_true(n > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_signatures_are_refused),
        cmocka_unit_test(tables_carry_everything),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
