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
        cmocka_unit_test(convolutions_take_what_follows),
        cmocka_unit_test(products_take_what_follows),
        cmocka_unit_test(gemm_takes_what_follows),
        cmocka_unit_test(chains_of_elementwise_operators),
        cmocka_unit_test(what_is_used_twice_is_not_fused),
        cmocka_unit_test(what_grows_is_not_fused),
        cmocka_unit_test(at_most_eight_are_fused),
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
