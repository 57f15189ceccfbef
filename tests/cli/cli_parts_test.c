/* The small parts of the command line: arguments, run directories, log files, comparison, times. */
#include "common/check.h"
#include "deploy/ingot/command.h"
#include "deploy/ingot/compare.h"
#include "deploy/ingot/logsink.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/show.h"
#include "tests/harness/t.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- arguments */

static void numbers_are_whole_and_in_range(void **state)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t value;
    } cases[] = {
        {"1", true, 1},    {"100", true, 100},
        {"007", true, 7},  {"0", false, 0},
        {"101", false, 0}, {"-1", false, 0},
        {"+1", false, 0},  {" 1", false, 0},
        {"1 ", false, 0},  {"1.0", false, 0},
        {"", false, 0},    {"0x10", false, 0},
        {"1e1", false, 0}, {"99999999999999999999999", false, 0},
    };
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++) {
        uint64_t value = 0;
        if (ig_parse_number(cases[i].text, 1, 100, &value) != cases[i].good ||
            value != cases[i].value)
            fail_msg("'%s' gave %llu", cases[i].text, (unsigned long long)value);
    }
}

static void bindings_have_a_name_and_a_file(void **state)
{
    struct ig_binding binding;
    struct cm_error err;
    char text[400];
    (void)state;
    assert_int_equal(ig_parse_binding("image=a=b.npy", &err, &binding), CM_OK);
    assert_string_equal(binding.name, "image");
    assert_string_equal(binding.file, "a=b.npy");
    assert_int_equal(ig_parse_binding("image", &err, &binding), CM_INVALID);
    assert_int_equal(ig_parse_binding("=x.npy", &err, &binding), CM_INVALID);
    assert_int_equal(ig_parse_binding("image=", &err, &binding), CM_INVALID);
    memset(text, 'n', sizeof text);
    memcpy(text + 255, "=x", 3);
    assert_int_equal(ig_parse_binding(text, &err, &binding), CM_OK);
    memcpy(text + 255, "n=x", 4);
    assert_int_equal(ig_parse_binding(text, &err, &binding), CM_INVALID);
}

static void a_name_is_bound_once(void **state)
{
    struct ig_binding list[2];
    unsigned count = 0;
    (void)state;
    assert_true(ig_add_binding(&ig_command_run, "output", "a=x", list, 2, &count));
    assert_false(ig_add_binding(&ig_command_run, "output", "a=y", list, 2, &count));
    assert_false(ig_add_binding(&ig_command_run, "output", "b", list, 2, &count));
    assert_true(ig_add_binding(&ig_command_run, "output", "b=y", list, 2, &count));
    assert_false(ig_add_binding(&ig_command_run, "output", "c=z", list, 2, &count));
    assert_int_equal(count, 2);
    assert_string_equal(list[0].file, "x");
}

/* Every command's page has every section, and every option of its table stands in it. */
static void manuals_are_whole(void **state)
{
    (void)state;
    for (unsigned i = 0; ig_commands[i]; i++) {
        const struct ig_command *command = ig_commands[i];
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        ig_print_manual(command, out);
        fclose(out);
        static const char *const sections[] = {"NAME\n",      "\nSYNOPSIS\n",    "\nDESCRIPTION\n",
                                               "\nOPTIONS\n", "\nEXIT STATUS\n", "\nEXAMPLE\n"};
        for (unsigned s = 0; s < CM_COUNT_OF(sections); s++)
            assert_non_null(strstr(text, sections[s]));
        for (const struct ig_option *option = command->options; option->name; option++) {
            char flag[64];
            snprintf(flag, sizeof flag, "    --%s", option->name);
            assert_int_equal(strstr(text, flag) != NULL, option->help != NULL);
        }
        for (const char *line = text; *line;) {
            size_t length = strcspn(line, "\n");
            if (length > 100)
                fail_msg("%s: a line of %zu bytes: %.*s", command->name, length, (int)length, line);
            line += length + 1;
        }
        free(text);
    }
}

/* Every exit code that a command documents is in the one list, and OK and USAGE are in all. */
static void exit_codes_are_documented(void **state)
{
    unsigned known = 0;
    (void)state;
#define X(name, number, meaning) known |= IG_EXIT_BIT(name);
    IG_EXIT_MAP(X)
#undef X
    for (unsigned i = 0; ig_commands[i]; i++) {
        assert_int_equal(ig_commands[i]->exit_codes & ~known, 0);
        assert_true(ig_commands[i]->exit_codes & IG_EXIT_BIT(OK));
        assert_true(ig_commands[i]->exit_codes & IG_EXIT_BIT(USAGE));
    }
}

/* --- run directories */

static void run_dir_has_a_default(void **state)
{
    char path[PATH_MAX], here[PATH_MAX], wanted[2 * PATH_MAX];
    struct cm_error err;
    (void)state;
    setenv("INGOT_RUN_DIR", "/tmp/from-env", 1);
    setenv("XDG_RUNTIME_DIR", "/tmp/xdg", 1);
    assert_int_equal(ig_run_dir_resolve("/tmp/given//", &err, path), CM_OK);
    assert_string_equal(path, "/tmp/given");
    assert_int_equal(ig_run_dir_resolve(NULL, &err, path), CM_OK);
    assert_string_equal(path, "/tmp/from-env");
    unsetenv("INGOT_RUN_DIR");
    assert_int_equal(ig_run_dir_resolve(NULL, &err, path), CM_OK);
    assert_string_equal(path, "/tmp/xdg/ingot");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(ig_run_dir_resolve(NULL, &err, path), CM_OK);
    assert_true(path[0] == '/');
    assert_int_equal(ig_run_dir_resolve("", &err, path), CM_INVALID);
    assert_int_equal(chdir("/tmp"), 0);
    assert_non_null(getcwd(here, sizeof here));
    snprintf(wanted, sizeof wanted, "%s/relative", here);
    assert_int_equal(ig_run_dir_resolve("relative", &err, path), CM_OK);
    assert_string_equal(path, wanted);
}

static void run_dir_must_fit_a_socket(void **state)
{
    char path[PATH_MAX], text[200] = "/";
    struct cm_error err;
    (void)state;
    memset(text + 1, 'd', sizeof text - 1);
    text[IG_RUN_DIR_MAX] = '\0';
    assert_int_equal(ig_run_dir_resolve(text, &err, path), CM_OK);
    text[IG_RUN_DIR_MAX] = 'd';
    text[IG_RUN_DIR_MAX + 1] = '\0';
    assert_int_equal(ig_run_dir_resolve(text, &err, path), CM_LIMIT);
    assert_non_null(strstr(err.text, "--run-dir"));
}

static void run_dir_is_private(void **state)
{
    char dir[T_PATH_MAX], path[T_PATH_MAX + 32], link[T_PATH_MAX + 32];
    struct cm_error err;
    struct stat info;
    (void)state;
    t_make_dir(dir);
    snprintf(path, sizeof path, "%s/a/b", dir);
    assert_int_equal(ig_run_dir_prepare(path, &err), CM_OK);
    assert_int_equal(ig_run_dir_prepare(path, &err), CM_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(ig_run_dir_prepare(path, &err), CM_PERMISSION);
    assert_int_equal(chmod(path, 0700), 0);
    snprintf(link, sizeof link, "%s/link", dir);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(ig_run_dir_prepare(link, &err), CM_INVALID);
    t_remove_dir(dir);
}

static void files_are_bounded_and_regular(void **state)
{
    char dir[T_PATH_MAX], path[T_PATH_MAX + 32];
    struct cm_error err;
    unsigned char *bytes = NULL;
    size_t length = 0;
    (void)state;
    t_make_dir(dir);
    snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(ig_write_file(path, 0640, "12345", 5, &err), CM_OK);
    assert_int_equal(ig_read_file(path, 5, &err, &bytes, &length), CM_OK);
    assert_int_equal(length, 5);
    assert_string_equal((char *)bytes, "12345");
    free(bytes);
    assert_int_equal(ig_read_file(path, 4, &err, &bytes, &length), CM_LIMIT);
    assert_int_equal(ig_read_file(dir, 4096, &err, &bytes, &length), CM_INVALID);
    assert_int_equal(ig_read_file("/dev/zero", 4096, &err, &bytes, &length), CM_INVALID);
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ig_read_file(path, 4096, &err, &bytes, &length), CM_INVALID);
    /* What is not a file is written to, not replaced. */
    struct stat info;
    assert_int_equal(ig_write_file("/dev/null", 0644, "x", 1, &err), CM_OK);
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    t_remove_dir(dir);
}

/* --- log files */

static char *read_text(const char *path)
{
    struct cm_error err;
    unsigned char *bytes = NULL;
    size_t length = 0;
    if (ig_read_file(path, 1 << 20, &err, &bytes, &length) != CM_OK)
        fail_msg("%s", err.text);
    return (char *)bytes;
}

static void lines_arrive_whole(void **state)
{
    static struct ig_log log;
    char dir[T_PATH_MAX], path[T_PATH_MAX + 32], tail[4096];
    struct cm_error err;
    (void)state;
    t_make_dir(dir);
    snprintf(path, sizeof path, "%s/x.log", dir);
    assert_int_equal(ig_log_init(&log, path, false, &err), CM_OK);
    ig_log_feed(&log, "one\ntw", 6);
    ig_log_feed(&log, "o\n\nthr", 6);
    ig_log_end_line(&log);
    ig_log_end_line(&log);
    ig_log_line(&log, "number %d", 4);
    char *text = read_text(path);
    assert_string_equal(text, "one\ntwo\n\nthr\nnumber 4\n");
    free(text);
    assert_string_equal(ig_log_tail(&log, tail, sizeof tail), "  one\n  two\n  thr\n  number 4\n");
    for (unsigned i = 0; i < 20; i++)
        ig_log_line(&log, "line %u", i);
    ig_log_tail(&log, tail, sizeof tail);
    assert_null(strstr(tail, "line 11\n"));
    assert_non_null(strstr(tail, "  line 12\n"));
    assert_non_null(strstr(tail, "  line 19\n"));
    ig_log_clear_tail(&log);
    assert_string_equal(ig_log_tail(&log, tail, sizeof tail), "");
    ig_log_fini(&log);
    t_remove_dir(dir);
}

static void log_files_are_bounded(void **state)
{
    static struct ig_log log;
    char dir[T_PATH_MAX], path[T_PATH_MAX + 32], old[T_PATH_MAX + 40];
    struct cm_error err;
    struct stat info;
    (void)state;
    t_make_dir(dir);
    snprintf(path, sizeof path, "%s/x.log", dir);
    snprintf(old, sizeof old, "%s.1", path);
    assert_int_equal(ig_log_init(&log, path, false, &err), CM_OK);
    log.max_bytes = 10000;
    for (unsigned i = 0; i < 1000; i++)
        ig_log_line(&log, "a line of thirty-two bytes %04u", i);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size <= 10000);
    assert_int_equal(stat(old, &info), 0);
    assert_true(info.st_size <= 10000);
    char *text = read_text(path);
    assert_non_null(strstr(text, "bytes 0999\n"));
    free(text);
    /* A line without an end does not grow without bounds either. */
    char block[1000];
    memset(block, 'x', sizeof block);
    for (unsigned i = 0; i < 100; i++)
        ig_log_feed(&log, block, sizeof block);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size <= 10000);
    ig_log_fini(&log);
    /* An existing file is continued and its size counts. */
    assert_int_equal(ig_log_init(&log, path, false, &err), CM_OK);
    assert_int_equal(log.bytes, info.st_size);
    ig_log_fini(&log);
    t_remove_dir(dir);
}

/* --- tensors */

static struct ig_tensor floats(unsigned rows, unsigned columns, const float *values)
{
    struct ig_tensor tensor;
    struct cm_shape shape = {2, {rows, columns}};
    assert_int_equal(ig_tensor_init(&tensor, CM_FP32, &shape, NULL), CM_OK);
    memcpy(tensor.data, values, tensor.bytes);
    return tensor;
}

static void comparison_is_numpys(void **state)
{
    static const struct {
        float actual, expected;
        bool fits;
    } cases[] = {
        {1, 1, true},
        {1.0009f, 1, true},
        {1.0011f, 1, false},
        {0.9f, 1, false},
        {1e-8f, 0, true},
        {1e-6f, 0, false},
        {0.0f, -0.0f, true},
        {NAN, NAN, true},
        {NAN, 1, false},
        {1, NAN, false},
        {INFINITY, INFINITY, true},
        {INFINITY, -INFINITY, false},
        {INFINITY, 3e38f, false},
    };
    struct ig_tolerance tolerance = {IG_TOLERANCE_RELATIVE, IG_TOLERANCE_ABSOLUTE};
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++) {
        struct ig_tensor actual = floats(1, 1, &cases[i].actual);
        struct ig_tensor expected = floats(1, 1, &cases[i].expected);
        struct ig_difference difference = {0};
        struct cm_error err;
        assert_int_equal(ig_tensor_compare(&actual, &expected, &tolerance, &err, &difference),
                         CM_OK);
        if ((difference.mismatches == 0) != cases[i].fits)
            fail_msg("%g against %g", (double)cases[i].actual, (double)cases[i].expected);
        ig_tensor_fini(&actual);
        ig_tensor_fini(&expected);
    }
}

static void comparison_reports_the_worst(void **state)
{
    float have[4] = {1, 2.5f, 10, 0}, want[4] = {1, 2, 10, 0};
    struct ig_tensor actual = floats(2, 2, have), expected = floats(2, 2, want);
    struct ig_tolerance tolerance = {IG_TOLERANCE_RELATIVE, IG_TOLERANCE_ABSOLUTE};
    struct ig_difference difference = {0};
    struct cm_error err;
    (void)state;
    assert_int_equal(ig_tensor_compare(&actual, &expected, &tolerance, &err, &difference), CM_OK);
    assert_int_equal(difference.count, 4);
    assert_int_equal(difference.mismatches, 1);
    assert_int_equal(difference.first, 1);
    assert_true(difference.max_absolute == 0.5 && difference.max_relative == 0.25);
    expected.shape.dims[0] = 4;
    expected.shape.dims[1] = 1;
    assert_int_equal(ig_tensor_compare(&actual, &expected, &tolerance, &err, &difference),
                     CM_INVALID);
    assert_non_null(strstr(err.text, "[4,1]"));
    ig_tensor_fini(&actual);
    ig_tensor_fini(&expected);
}

static void json_has_no_nan(void **state)
{
    float values[6] = {1, NAN, 3, -INFINITY, 2, 2};
    struct ig_tensor tensor = floats(2, 3, values);
    (void)state;
    json_t *root = ig_tensor_json(&tensor);
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(strstr(text, "\"data\":[1.0,\"nan\",3.0,\"-inf\",2.0,2.0]"));
    assert_non_null(strstr(text, "\"argmax\":[2,1]"));
    free(text);
    json_decref(root);
    ig_tensor_fini(&tensor);
}

static void percentiles_are_of_the_sorted_times(void **state)
{
    uint64_t times[200];
    (void)state;
    for (unsigned i = 0; i < 200; i++)
        times[i] = (uint64_t)(200 - i) * 1000;
    struct ig_latency latency = ig_latency_of(times, 200);
    assert_true(latency.min_us == 1 && latency.median_us == 100 && latency.p99_us == 198);
    times[0] = 5000;
    latency = ig_latency_of(times, 1);
    assert_true(latency.min_us == 5 && latency.median_us == 5 && latency.p99_us == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_whole_and_in_range),
        cmocka_unit_test(bindings_have_a_name_and_a_file),
        cmocka_unit_test(a_name_is_bound_once),
        cmocka_unit_test(manuals_are_whole),
        cmocka_unit_test(exit_codes_are_documented),
        cmocka_unit_test(run_dir_has_a_default),
        cmocka_unit_test(run_dir_must_fit_a_socket),
        cmocka_unit_test(run_dir_is_private),
        cmocka_unit_test(files_are_bounded_and_regular),
        cmocka_unit_test(lines_arrive_whole),
        cmocka_unit_test(log_files_are_bounded),
        cmocka_unit_test(comparison_is_numpys),
        cmocka_unit_test(comparison_reports_the_worst),
        cmocka_unit_test(json_has_no_nan),
        cmocka_unit_test(percentiles_are_of_the_sorted_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
