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
    assert_string_equal(passes_plan(bytes, length, &x, passes_bits("fold"), text, sizeof text),
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
    struct cm_shape x = kit_shape(2, 1, 1);
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    const int64_t index = 9;
    size_t length;
    (void)state;
    kit_random(m, "table", kit_shape(2, 4, 1));
    kit_const(m, "index", CM_INT64, kit_shape(1, 1), &index);
    kit_node(m, "Gather", "table,index", "g");
    kit_node(m, "Mul", "x,g", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 1));
    void *bytes = kit_bytes(m, &length);
    kit_load(&loaded, bytes, length, 1, NULL);
    assert_int_equal(wk_plan_create(loaded.model, &x, &err, &plan), CM_OK);
    void *in = kit_guarded(4), *out = kit_guarded(4),
         *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
    assert_int_equal(wk_plan_run(plan, (const void *[]){in}, &out, scratch, &err), CM_INVALID);
    assert_non_null(strstr(err.text, "Gather"));
    kit_guarded_free(in);
    kit_guarded_free(out);
    kit_guarded_free(scratch);
    wk_plan_destroy(plan);
    kit_unload(&loaded);
    free(bytes);
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
    if (!file) {
        print_message("skipped: %s is not there\n", file_name);
        skip();
    }
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
