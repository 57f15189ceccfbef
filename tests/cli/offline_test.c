/* `ingot run`: the demo model offline, ONNX test case folders made from its own answers, and what
 * is refused. */
#include "common/check.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/tensor_file.h"
#include "tests/engine/kit.h"
#include "tests/harness/cluster.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL  SOURCE_DIR "/deploy/demo/models/digits/1/model.onnx"
#define SAMPLE SOURCE_DIR "/deploy/demo/samples/digit-7.npy"

static int set_up(void **state)
{
    static char dir[T_PATH_MAX];
    t_make_dir(dir);
    *state = dir;
    return 0;
}

static int tear_down(void **state)
{
    t_remove_dir(*state);
    return 0;
}

static const char *below(const char *dir, const char *name, char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%s/%s", dir, name);
    assert_true(length > 0 && length < PATH_MAX);
    return path;
}

static void run(struct tc_result *result, const char *const *args)
{
    const char *argv[32] = {BINARY_DIR "/bin/ingot", "run"};
    for (unsigned n = 2; *args; args++)
        argv[n++] = *args;
    tc_run(argv, 60000, result);
}

#define RUN(result, ...) run((result), (const char *const[]){__VA_ARGS__, NULL})

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void recognises_a_digit(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--repeat", "10");
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "probabilities FP32 [1,10]");
    assert_contains(result.output, "largest at 7");
    assert_contains(result.output, "10 runs: min");
}

static void json_has_the_documented_shape(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--json", "--isa", "scalar", "--threads", "2");
    assert_int_equal(result.status, 0);
    json_t *root = json_loads(result.output, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "isa")), "scalar");
    json_t *output = json_array_get(json_object_get(root, "outputs"), 0);
    assert_string_equal(json_string_value(json_object_get(output, "name")), "probabilities");
    assert_int_equal(json_array_size(json_object_get(output, "data")), 10);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(output, "argmax"), 0)), 7);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "latency_us"), "count")), 1);
    json_decref(root);
}

static void writes_outputs_to_files(void **state)
{
    char npy[PATH_MAX], pb[PATH_MAX], binding[PATH_MAX + 32];
    struct tc_result result;
    struct cm_error err;
    struct ig_tensor a = {0}, b = {0};
    below(*state, "out.npy", npy);
    below(*state, "out.pb", pb);
    snprintf(binding, sizeof binding, "probabilities=%s", npy);
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--output", binding);
    assert_int_equal(result.status, 0);
    snprintf(binding, sizeof binding, "probabilities=%s", pb);
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--output", binding);
    assert_int_equal(result.status, 0);
    assert_int_equal(ig_tensor_read(npy, &err, &a), CM_OK);
    assert_int_equal(ig_tensor_read(pb, &err, &b), CM_OK);
    assert_string_equal(b.name, "probabilities");
    assert_int_equal(a.bytes, 40);
    assert_memory_equal(a.data, b.data, a.bytes);
    ig_tensor_fini(&a);
    ig_tensor_fini(&b);
}

static void lists_operators(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, "--ops");
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "Conv");
    assert_contains(result.output, "opset");
}

static void explains_the_plan(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--explain", "--repeat", "3");
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "probabilities FP32 [1,10]");
    assert_contains(result.output, "FP32 [1,16,8,8]");
    assert_contains(result.output, "share");
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--explain", "--json", "--no-pass", "all");
    assert_int_equal(result.status, 0);
    json_t *root = json_loads(result.output, 0, NULL);
    json_t *plan = json_object_get(root, "plan"), *conv = json_array_get(plan, 1);
    assert_int_equal(json_array_size(plan), 11); /* as in the file */
    assert_string_equal(json_string_value(json_object_get(conv, "op")), "Conv");
    assert_string_equal(json_string_value(json_object_get(conv, "fate")), "runs");
    assert_string_equal(json_string_value(json_object_get(conv, "name")), "conv1");
    assert_int_equal(json_array_size(json_object_get(conv, "shape")), 4);
    assert_int_equal(json_integer_value(json_object_get(conv, "written_bytes")), 4 * 16 * 64);
    assert_true(json_number_value(json_object_get(conv, "flops")) == 2.0 * 9 * 16 * 64);
    assert_true(json_is_number(json_object_get(conv, "median_us")));
    json_decref(root);
}

static void lists_passes(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, "--passes");
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "fold ");
    assert_contains(result.output, "dead ");
}

/* y is the sum x + x in the shape s: its bytes are those of an intermediate value. */
static void outputs_sized_by_data_are_whole(void **state)
{
    char model[PATH_MAX], x_file[PATH_MAX], s_file[PATH_MAX], y_file[PATH_MAX];
    char x_input[PATH_MAX + 8], s_input[PATH_MAX + 8], y_output[PATH_MAX + 8];
    const float numbers[] = {1, 2, 3, 4}, twice[] = {2, 4, 6, 8};
    const int64_t sides[] = {2, 2};
    struct ig_tensor x = {0}, s = {0}, y = {0};
    struct tc_result result;
    struct cm_error err;
    size_t length;
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 4));
    kit_input(m, "s", CM_INT64, kit_shape(1, -1));
    kit_node(m, "Add", "x,x", "sum");
    kit_node(m, "Reshape", "sum,s", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, -1));
    void *bytes = kit_bytes(m, &length);
    kit_free(m);
    assert_int_equal(ig_write_file(below(*state, "sum.onnx", model), 0600, bytes, length, &err),
                     CM_OK);
    free(bytes);
    struct cm_shape shape = kit_shape(1, 4), two = kit_shape(1, 2);
    assert_int_equal(ig_tensor_init(&x, CM_FP32, &shape, &err), CM_OK);
    assert_int_equal(ig_tensor_init(&s, CM_INT64, &two, &err), CM_OK);
    memcpy(x.data, numbers, sizeof numbers);
    memcpy(s.data, sides, sizeof sides);
    assert_int_equal(ig_tensor_write(below(*state, "x.npy", x_file), &x, &err), CM_OK);
    assert_int_equal(ig_tensor_write(below(*state, "s.npy", s_file), &s, &err), CM_OK);
    snprintf(x_input, sizeof x_input, "x=%s", x_file);
    snprintf(s_input, sizeof s_input, "s=%s", s_file);
    snprintf(y_output, sizeof y_output, "y=%s", below(*state, "y.npy", y_file));
    RUN(&result, model, "--input", x_input, "--input", s_input, "--output", y_output);
    assert_int_equal(result.status, 0);
    assert_int_equal(ig_tensor_read(y_file, &err, &y), CM_OK);
    assert_memory_equal(y.data, twice, sizeof twice);
    ig_tensor_fini(&x);
    ig_tensor_fini(&s);
    ig_tensor_fini(&y);
}

/* --- test case folders */

static void copy_file(const char *from, const char *to)
{
    struct cm_error err;
    unsigned char *bytes = NULL;
    size_t length = 0;
    assert_int_equal(ig_read_file(from, 1 << 24, &err, &bytes, &length), CM_OK);
    assert_int_equal(ig_write_file(to, 0600, bytes, length, &err), CM_OK);
    free(bytes);
}

/* DIR/case with the demo model and count data sets, each expecting what the model answers. */
static const char *make_case(const char *dir, unsigned count, char path[PATH_MAX])
{
    char file[PATH_MAX], set[PATH_MAX], input[PATH_MAX + 16], output[PATH_MAX + 32];
    struct cm_error err;
    below(dir, "case", path);
    assert_int_equal(mkdir(path, 0700), 0);
    copy_file(MODEL, below(path, "model.onnx", file));
    for (unsigned i = 0; i < count; i++) {
        char name[32], sample[PATH_MAX];
        struct ig_tensor tensor = {0};
        struct tc_result result;
        snprintf(name, sizeof name, "test_data_set_%u", i);
        below(path, name, set);
        assert_int_equal(mkdir(set, 0700), 0);
        snprintf(sample, sizeof sample, SOURCE_DIR "/deploy/demo/samples/digit-%u.npy", i % 10);
        assert_int_equal(ig_tensor_read(sample, &err, &tensor), CM_OK);
        assert_int_equal(ig_tensor_write(below(set, "input_0.pb", file), &tensor, &err), CM_OK);
        ig_tensor_fini(&tensor);
        snprintf(input, sizeof input, "image=%s", file);
        snprintf(output, sizeof output, "probabilities=%s", below(set, "output_0.pb", file));
        RUN(&result, MODEL, "--input", input, "--output", output);
        assert_int_equal(result.status, 0);
    }
    return path;
}

static void test_case_passes(void **state)
{
    char path[PATH_MAX];
    struct tc_result result;
    make_case(*state, 11, path);
    RUN(&result, "--test-dir", path);
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "test_data_set_0: passed");
    assert_contains(result.output, "test_data_set_10: passed");
    assert_true(strstr(result.output, "set_2:") < strstr(result.output, "set_10:"));
    assert_contains(result.output, "0 of 10 elements differ; largest error 0 absolute");
    RUN(&result, "--test-dir", path, "--json", "--isa", "scalar");
    assert_int_equal(result.status, 0);
    json_t *root = json_loads(result.output, 0, NULL);
    assert_true(json_is_true(json_object_get(root, "passed")));
    assert_int_equal(json_array_size(json_object_get(root, "sets")), 11);
    json_decref(root);
}

static void change_expected(const char *path, float by)
{
    char file[PATH_MAX];
    struct cm_error err;
    struct ig_tensor tensor = {0};
    below(path, "test_data_set_1/output_0.pb", file);
    assert_int_equal(ig_tensor_read(file, &err, &tensor), CM_OK);
    ((float *)tensor.data)[3] += by;
    assert_int_equal(ig_tensor_write(file, &tensor, &err), CM_OK);
    ig_tensor_fini(&tensor);
}

static void test_case_tells_a_difference(void **state)
{
    char path[PATH_MAX];
    struct tc_result result;
    make_case(*state, 2, path);
    change_expected(path, 0.5f);
    RUN(&result, "--test-dir", path);
    assert_int_equal(result.status, 1);
    assert_contains(result.output, "test_data_set_0: passed");
    assert_contains(result.output, "test_data_set_1: FAILED");
    assert_contains(result.output, "1 of 10 elements differ; largest error 0.5 absolute");
    RUN(&result, "--test-dir", path, "--atol", "0.6");
    assert_int_equal(result.status, 0);
}

static void test_case_with_damaged_files_fails(void **state)
{
    char path[PATH_MAX], file[PATH_MAX];
    struct tc_result result;
    struct cm_error err;
    make_case(*state, 2, path);
    below(path, "test_data_set_1/input_0.pb", file);
    assert_int_equal(ig_write_file(file, 0600, "rubbish", 7, &err), CM_OK);
    RUN(&result, "--test-dir", path);
    assert_int_equal(result.status, 1);
    assert_contains(result.output, "test_data_set_1: FAILED");
    assert_contains(result.output, "input_0.pb");
    assert_int_equal(unlink(file), 0);
    RUN(&result, "--test-dir", path);
    assert_int_equal(result.status, 1);
    assert_contains(result.output, "No such file");
    below(path, "model.onnx", file);
    assert_int_equal(ig_write_file(file, 0600, "rubbish", 7, &err), CM_OK);
    RUN(&result, "--test-dir", path);
    assert_int_equal(result.status, 2);
    assert_contains(result.errors, "model.onnx");
    RUN(&result, "--test-dir", *state); /* no data set in it */
    assert_int_equal(result.status, 2);
    assert_contains(result.errors, "no ONNX test case");
}

/* --- refusals */

static void bad_arguments_are_refused(void **state)
{
    static const struct {
        const char *args[8];
        const char *complaint;
    } cases[] = {
        {{NULL}, "which model"},
        {{"/nonexistent.onnx"}, "/nonexistent.onnx"},
        {{SAMPLE}, "digit-7.npy"},
        {{MODEL}, "input 'image' is missing; the model's inputs are: image FP32 [-1,1,8,8]"},
        {{MODEL, "--input", "x=" SAMPLE}, "no input 'x'"},
        {{MODEL, "--input", "image=" SAMPLE, "--input", "image=" SAMPLE},
         "--input image is given twice"},
        {{MODEL, "--input", "image"}, "NAME=FILE"},
        {{MODEL, "--input", "image=/nonexistent.npy"}, "/nonexistent.npy"},
        {{MODEL, "--input", "image=" MODEL}, "end in .npy"},
        {{MODEL, "--input", "image=" SAMPLE, "--output", "y=/tmp/y.npy"}, "no output 'y'"},
        {{MODEL, "--input", "image=" SOURCE_DIR "/deploy/demo/heldout/images.npy"}, "UINT8"},
        {{MODEL, "--isa", "sse9"}, "sse9"},
        {{MODEL, "--threads", "0"}, "--threads"},
        {{MODEL, "--repeat", "-5"}, "--repeat"},
        {{MODEL, "another"}, "another"},
        {{"--test-dir", "/nonexistent"}, "/nonexistent"},
        {{"--test-dir", "/tmp", "--input", "a=b.npy"}, "own inputs"},
        {{"--test-dir", "/tmp", "--rtol", "nan"}, "--rtol"},
        {{"--test-dir", "/tmp", "--explain"}, "--explain is about one run"},
        {{MODEL, "--no-pass", "folding"}, "'folding' is none of fold, "},
    };
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++) {
        struct tc_result result;
        run(&result, cases[i].args);
        if (result.status != 2)
            fail_msg("case %u ended with %d: %s%s", i, result.status, result.output, result.errors);
        assert_contains(result.errors, cases[i].complaint);
    }
}

static void unwritable_output_is_a_failure(void **state)
{
    struct tc_result result;
    (void)state;
    RUN(&result, MODEL, "--input", "image=" SAMPLE, "--output",
        "probabilities=/nonexistent/out.npy");
    assert_int_equal(result.status, 1);
    assert_contains(result.errors, "/nonexistent/out.npy");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(recognises_a_digit),
        T(outputs_sized_by_data_are_whole),
        T(json_has_the_documented_shape),
        T(writes_outputs_to_files),
        T(lists_operators),
        T(explains_the_plan),
        T(lists_passes),
        T(test_case_passes),
        T(test_case_tells_a_difference),
        T(test_case_with_damaged_files_fails),
        T(bad_arguments_are_refused),
        T(unwritable_output_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
