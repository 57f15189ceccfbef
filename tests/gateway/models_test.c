/* Model tables: lookup, states, what survives a scheduler's or a worker's death, bad tables. */
#include "tests/gateway/models_kit.h"
#include "tests/harness/t.h"

#include <string.h>

#define READY   INGOT__IPC__MODEL_STATE__MODEL_READY
#define LOADING INGOT__IPC__MODEL_STATE__MODEL_LOADING
#define FAILED  INGOT__IPC__MODEL_STATE__MODEL_FAILED

static struct kit_model named(const char *name, uint32_t version, int state, bool latest)
{
    struct kit_model model = kit_pair;
    model.name = name;
    model.version = version;
    model.state = state;
    model.latest = latest;
    model.reason = state == FAILED ? "an operator is not supported" : NULL;
    return model;
}

static enum cm_err find(const struct gw_models *models, const char *name, const char *version)
{
    struct gw_model *model;
    struct cm_error error;
    return gw_models_find(models, name, strlen(name), version, strlen(version), &error, &model);
}

static void names_and_versions_resolve(void **state)
{
    (void)state;
    struct kit_model list[] = {
        named("b", 2, READY, false), named("a", 1, READY, true),   named("b", 10, READY, true),
        named("ab", 1, READY, true), named("b", 1, FAILED, false), named("b", 11, LOADING, false),
    };
    struct gw_models *table = kit_table(list, 6, 9, true, NULL);
    assert_int_equal(kit_find(table, "a", "")->version, 1);
    assert_string_equal(kit_find(table, "ab", "1")->name, "ab");
    assert_int_equal(kit_find(table, "b", "")->version, 10);
    assert_int_equal(kit_find(table, "b", "2")->version, 2);
    assert_int_equal(kit_find(table, "b", "11")->state, GW_MODEL_LOADING);
    assert_int_equal(find(table, "b", "3"), CM_NOT_FOUND);
    assert_int_equal(find(table, "c", ""), CM_NOT_FOUND);
    assert_int_equal(find(table, "", ""), CM_INVALID);
    assert_int_equal(find(table, "..", ""), CM_INVALID);
    assert_int_equal(find(table, "a/b", ""), CM_INVALID);
    assert_int_equal(find(table, "b", "01"), CM_INVALID);
    assert_int_equal(find(table, "b", "-1"), CM_INVALID);
    assert_int_equal(find(table, "b", "99999999999"), CM_INVALID);
    assert_int_equal(find(NULL, "a", ""), CM_NOT_FOUND);
    gw_models_unref(table);
}

static void without_a_ready_one_the_state_is_told(void **state)
{
    (void)state;
    struct kit_model list[] = {named("x", 1, FAILED, false), named("x", 2, LOADING, false),
                               named("y", 1, FAILED, false)};
    struct gw_models *table = kit_table(list, 3, 9, false, NULL);
    struct cm_error error;
    assert_int_equal(gw_model_usable(kit_find(table, "x", ""), &error), CM_UNAVAILABLE);
    assert_int_equal(gw_model_usable(kit_find(table, "y", ""), &error), CM_PRECONDITION);
    assert_non_null(strstr(error.text, "an operator is not supported"));
    gw_models_unref(table);
}

static void a_ready_model_returns(void **state)
{
    (void)state;
    struct kit_model before = named("m", 1, READY, true), after = named("m", 1, LOADING, false);
    after.id = 77;
    after.n_inputs = after.n_outputs = 0; /* the new scheduler does not know it yet */
    struct gw_models *first = kit_table(&before, 1, 5, true, NULL);

    struct gw_models *second = kit_table(&after, 1, 6, false, first);
    struct gw_model *model = kit_find(second, "m", "");
    assert_int_equal(model->state, GW_MODEL_RETURNING);
    assert_int_equal(model->n_inputs, 2);
    assert_string_equal(model->inputs[0].name, "image");
    assert_string_equal(model->outputs[1].name, "label");
    assert_true(gw_model_same_signature(model, kit_find(first, "m", "")));
    assert_int_equal(gw_model_usable(model, NULL), CM_OK);

    struct gw_models *third = kit_table(NULL, 0, 7, false, second); /* yet another, empty still */
    assert_int_equal(kit_find(third, "m", "")->state, GW_MODEL_RETURNING);
    gw_models_unref(first);
    gw_models_unref(second);

    struct gw_models *fourth = kit_table(&before, 1, 7, true, third);
    assert_int_equal(kit_find(fourth, "m", "")->state, GW_MODEL_READY);
    assert_int_equal(kit_find(fourth, "m", "")->scheduler, 7);
    struct gw_models *fifth = kit_table(NULL, 0, 7, true, fourth); /* settled: it is gone */
    assert_int_equal(find(fifth, "m", ""), CM_NOT_FOUND);
    gw_models_unref(third);
    gw_models_unref(fourth);
    gw_models_unref(fifth);
}

static void a_model_that_never_was_ready_does_not_return(void **state)
{
    (void)state;
    struct kit_model loading = named("m", 1, LOADING, false), failed = named("n", 1, FAILED, false);
    struct kit_model both[] = {loading, failed};
    struct gw_models *first = kit_table(both, 2, 5, false, NULL);
    struct gw_models *second = kit_table(&loading, 1, 6, false, first);
    assert_int_equal(kit_find(second, "m", "")->state, GW_MODEL_LOADING);
    assert_int_equal(find(second, "n", ""), CM_NOT_FOUND);
    gw_models_unref(first);
    gw_models_unref(second);
}

static void a_failed_model_does_not_return(void **state)
{
    (void)state;
    struct kit_model before = named("m", 1, READY, true), after = named("m", 1, FAILED, false);
    struct gw_models *first = kit_table(&before, 1, 5, true, NULL);
    struct gw_models *second = kit_table(&after, 1, 5, true, first);
    assert_int_equal(kit_find(second, "m", "")->state, GW_MODEL_FAILED);
    gw_models_unref(first);
    gw_models_unref(second);
}

static void models_outlive_their_table(void **state)
{
    (void)state;
    struct gw_models *table = kit_table(&kit_pair, 1, 5, true, NULL);
    struct gw_model *model = gw_model_ref(kit_find(table, "pair", ""));
    gw_models_unref(table);
    assert_string_equal(model->inputs[1].name, "mask");
    gw_model_unref(model);
}

/* What the scheduler says of one model must not take the others away: the repository may hold
 * directories that are no models, files without a version, tensors that this gateway cannot serve.
 */
static void a_bad_model_fails_alone(void **state)
{
    (void)state;
    char longest[GW_NAME_MAX + 2];
    memset(longest, 'n', sizeof longest - 1);
    longest[GW_NAME_MAX + 1] = 0;
    struct kit_model bad[9];
    for (size_t i = 0; i < 9; i++) {
        bad[i] = kit_pair;
        bad[i].name = "bad";
    }
    bad[0].inputs[0].dtype = CM_DTYPE_NONE;
    bad[1].version = 0;
    bad[2].inputs[0].dtype = (enum cm_dtype)99;
    bad[3].inputs[0].dims[1] = -2;
    bad[4].outputs[0].name = longest;
    bad[5].inputs[1].name = "\xff";
    bad[6].name = "lost+found";
    bad[7].version = 1u << 31;
    bad[8].name = "";
    for (size_t i = 0; i < 9; i++) {
        struct kit_model both[] = {kit_pair, bad[i]};
        struct gw_models *table = kit_table(both, 2, 5, true, NULL);
        assert_int_equal(kit_find(table, "pair", "")->state, GW_MODEL_READY);
        if (i < 6)
            assert_int_equal(kit_find(table, "bad", "")->state, GW_MODEL_FAILED);
        else
            assert_int_equal(table->count, 1);
        gw_models_unref(table);
    }
}

/* The reason is the scheduler's, if it has one. */
static void a_model_without_a_version_says_so(void **state)
{
    (void)state;
    struct kit_model empty = {
        .name = "empty", .state = FAILED, .reason = "it has no version", .version = 0};
    struct gw_models *table = kit_table(&empty, 1, 5, true, NULL);
    struct cm_error error;
    assert_int_equal(gw_model_usable(kit_find(table, "empty", ""), &error), CM_PRECONDITION);
    assert_string_equal(error.text, "model 'empty' failed to load: it has no version");
    gw_models_unref(table);
}

static void doubled_models_are_refused(void **state)
{
    (void)state;
    struct kit_model twice[] = {kit_pair, kit_pair};
    struct gw_models *table = NULL;
    struct cm_error error;
    assert_int_equal(kit_try_table(twice, 2, 5, true, NULL, &error, &table), CM_CORRUPT);
    assert_null(table);
}

static void shapes_are_written_for_people(void **state)
{
    (void)state;
    struct gw_models *table = kit_table(&kit_pair, 1, 5, true, NULL);
    const struct gw_model *model = kit_find(table, "pair", "");
    char text[64];
    assert_string_equal(gw_model_shape_format(model, &model->inputs[0], text, sizeof text),
                        "[N,1,8,8]");
    assert_string_equal(gw_model_shape_format(model, &model->inputs[1], text, sizeof text),
                        "[N,-1]");
    assert_string_equal(gw_model_shape_format(model, &model->outputs[1], text, sizeof text), "[N]");
    struct gw_tensor_info scalar = {.dtype = CM_FP32};
    assert_string_equal(gw_model_shape_format(model, &scalar, text, sizeof text), "[]");
    gw_model_shape_format(model, &model->inputs[0], text, 4); /* cut, terminated */
    assert_int_equal(strlen(text), 3);
    gw_models_unref(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_versions_resolve),
        cmocka_unit_test(without_a_ready_one_the_state_is_told),
        cmocka_unit_test(a_ready_model_returns),
        cmocka_unit_test(a_model_that_never_was_ready_does_not_return),
        cmocka_unit_test(a_failed_model_does_not_return),
        cmocka_unit_test(models_outlive_their_table),
        cmocka_unit_test(a_bad_model_fails_alone),
        cmocka_unit_test(a_model_without_a_version_says_so),
        cmocka_unit_test(doubled_models_are_refused),
        cmocka_unit_test(shapes_are_written_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
