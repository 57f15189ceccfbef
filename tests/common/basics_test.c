/* Errors, roles, shapes and frames: pure functions against tables. */
#include "common/args.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/frame.h"
#include "common/role.h"
#include "common/tensor.h"
#include "tests/harness/t.h"

#include <errno.h>
#include <string.h>

static void test_err_lists(void **state)
{
    (void)state;
    assert_string_equal(cm_err_name(CM_INVALID), "INVALID");
    assert_string_equal(cm_err_text(CM_DEADLINE), "deadline exceeded");
    assert_string_equal(cm_err_name((enum cm_err)999), "UNKNOWN");
    assert_string_equal(cm_err_text((enum cm_err)999), "unknown error");
    assert_int_equal(cm_err_from_errno(ENOENT), CM_NOT_FOUND);
    assert_int_equal(cm_err_from_errno(ECONNRESET), CM_CLOSED);
    assert_int_equal(cm_err_from_errno(EXDEV), CM_IO);
}

static void test_err_sentences_are_cut_to_fit(void **state)
{
    (void)state;
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    struct cm_error err;
    assert_int_equal(cm_fail(&err, CM_LIMIT, "%s", longer), CM_LIMIT);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(cm_fail_errno(&err, ENOENT, "%s", longer), CM_NOT_FOUND);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(cm_fail(NULL, CM_FULL, "nobody reads this"), CM_FULL);
    assert_int_equal(cm_fail_errno(&err, EPIPE, "cannot write"), CM_CLOSED);
    assert_non_null(strstr(err.text, "cannot write: "));
}

static void test_roles(void **state)
{
    (void)state;
#define X(name, number, text)                                \
    assert_int_equal(CM_ROLE_##name, number);                \
    assert_string_equal(cm_role_name(CM_ROLE_##name), text); \
    assert_int_equal(cm_role_from_name(text), CM_ROLE_##name);
    CM_ROLE_MAP(X)
#undef X
    assert_string_equal(cm_role_name(CM_ROLE_NONE), "?");
    assert_string_equal(cm_role_name((enum cm_role)77), "?");
    assert_int_equal(cm_role_from_name("work"), CM_ROLE_NONE);
    assert_int_equal(cm_role_from_name(""), CM_ROLE_NONE);
}

static void test_dtypes(void **state)
{
    (void)state;
#define X(name, number, bytes, text, onnx)                               \
    assert_int_equal(CM_##name, number);                                 \
    assert_int_equal(cm_dtype_size(CM_##name), bytes);                   \
    assert_string_equal(cm_dtype_name(CM_##name), text);                 \
    assert_int_equal(cm_dtype_from_name(text, strlen(text)), CM_##name); \
    assert_int_equal(cm_dtype_from_onnx(onnx), CM_##name);               \
    assert_int_equal(cm_dtype_to_onnx(CM_##name), onnx);
    CM_DTYPE_MAP(X)
#undef X
    assert_int_equal(cm_dtype_from_name("FP32x", 4), CM_FP32);
    assert_int_equal(cm_dtype_from_name("FP3", 3), CM_DTYPE_NONE);
    assert_int_equal(cm_dtype_from_name("fp32", 4), CM_DTYPE_NONE);
    assert_int_equal(cm_dtype_from_onnx(8), CM_DTYPE_NONE); /* strings */
    assert_int_equal(cm_dtype_size((enum cm_dtype)200), 0);
}

static void test_shape_sizes(void **state)
{
    (void)state;
    const int64_t big = INT64_MAX;
    const struct {
        struct cm_shape shape;
        enum cm_dtype dtype;
        enum cm_err rc;
        size_t bytes;
    } cases[] = {
        {{0, {0}}, CM_FP32, CM_OK, 4},
        {{2, {3, 5}}, CM_FP64, CM_OK, 120},
        {{1, {0}}, CM_FP32, CM_OK, 0},
        {{3, {7, 0, 9}}, CM_INT8, CM_OK, 0},
        {{1, {-1}}, CM_FP32, CM_INVALID, 0},
        {{2, {0, -5}}, CM_FP32, CM_INVALID, 0},
        {{9, {0}}, CM_FP32, CM_INVALID, 0},
        {{1, {4}}, CM_DTYPE_NONE, CM_INVALID, 0},
        {{1, {4}}, (enum cm_dtype)99, CM_INVALID, 0},
        {{1, {INT64_MAX}}, CM_INT8, CM_OK, (size_t)INT64_MAX},
        {{1, {INT64_MAX}}, CM_FP32, CM_LIMIT, 0},
        {{2, {INT64_MAX, 2}}, CM_INT8, CM_LIMIT, 0},
        {{3, {INT64_MAX, 2, 0}}, CM_INT8, CM_LIMIT, 0},
        {{3, {0, INT64_MAX, 2}}, CM_INT8, CM_LIMIT, 0},
        {{2, {1ll << 32, 1ll << 32}}, CM_INT8, CM_LIMIT, 0},
        {{8, {2, 2, 2, 2, 2, 2, 2, 2}}, CM_BF16, CM_OK, 512},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        size_t bytes = 0;
        enum cm_err rc = cm_shape_bytes(&cases[i].shape, cases[i].dtype, &bytes);
        if (rc != cases[i].rc || bytes != cases[i].bytes)
            fail_msg("case %zu: %s, %zu bytes", i, cm_err_name(rc), bytes);
    }
    int64_t count = 5;
    assert_int_equal(cm_shape_count(&(struct cm_shape){1, {big}}, &count), CM_OK);
    assert_true(count == big);
}

static void test_shape_text(void **state)
{
    (void)state;
    const struct cm_shape shape = {4, {1, 3, 48, -1}};
    char text[64];
    assert_string_equal(cm_shape_format(&shape, text, sizeof text), "[1,3,48,-1]");
    for (size_t size = 1; size < sizeof text; size++) {
        memset(text, '#', sizeof text);
        cm_shape_format(&shape, text, size);
        assert_non_null(memchr(text, '\0', size));
        assert_int_equal(text[size], '#');
    }
    assert_true(cm_shape_equal(&shape, &shape));
    assert_false(cm_shape_equal(&shape, &(struct cm_shape){4, {1, 3, 48, 192}}));
    assert_false(cm_shape_equal(&shape, &(struct cm_shape){3, {1, 3, 48}}));
}

static void test_sizes(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(cm_size_align(1, 64, &out));
    assert_int_equal(out, 64);
    assert_false(cm_size_align(SIZE_MAX - 3, 64, &out));
    assert_false(cm_size_mul(SIZE_MAX / 2, 3, &out));
    assert_false(cm_size_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 64);
    assert_true(cm_time_add(UINT64_MAX - 1, 5) == CM_NEVER);
    assert_true(cm_time_add(1, 5) == 6);
}

static void test_crc_is_crc32c(void **state)
{
    (void)state;
    /* Computed bit by bit here from the polynomial, so that header and library agree with the
     * definition and not only with each other. */
    struct cm_frame frame;
    const char payload[] = "123456789";
    cm_frame_seal(&frame, 5, payload, 9, NULL, 0);
    unsigned char bytes[sizeof frame + 9];
    struct cm_frame header = frame;
    header.crc32c = 0;
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, payload, 9);
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < sizeof bytes; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    assert_int_equal(frame.crc32c, ~crc);
}

static void test_frame_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    unsigned char payload[40];
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (unsigned char)(i * 7);
    struct cm_frame frame, joined;
    cm_frame_seal(&frame, 3, payload, sizeof payload, NULL, 0);
    cm_frame_seal(&joined, 3, payload, 13, payload + 13, sizeof payload - 13);
    assert_memory_equal(&frame, &joined, sizeof frame);
    struct cm_error err;
    assert_int_equal(cm_frame_check(&frame, payload, 64, &err), CM_OK);
    for (size_t bit = 0; bit < 8 * sizeof frame; bit++) {
        struct cm_frame bad = frame;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        /* A length that grew would be read past payload: the header check must stop it, or the
         * caller's limit; here the limit is the true length. */
        enum cm_err rc = cm_frame_check(&bad, payload, sizeof payload, &err);
        if (rc == CM_OK)
            fail_msg("header bit %zu", bit);
        assert_int_equal(rc, bit / 8 == 4 ? CM_UNSUPPORTED : CM_CORRUPT);
    }
    for (size_t bit = 0; bit < 8 * sizeof payload; bit++) {
        payload[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(cm_frame_check(&frame, payload, 64, &err), CM_CORRUPT);
        payload[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(cm_frame_check_header(&frame, sizeof payload - 1, &err), CM_CORRUPT);
}

static void test_version_names_both(void **state)
{
    (void)state;
    struct cm_frame frame;
    struct cm_error err;
    cm_frame_seal(&frame, 1, NULL, 0, NULL, 0);
    frame.version = 9;
    frame.flags = 0xffff; /* another version may define them: the version is judged first */
    assert_int_equal(cm_frame_check(&frame, NULL, 0, &err), CM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "version 9"));
    assert_non_null(strstr(err.text, "process 1"));
}

static void test_trace_ids_sort_by_time(void **state)
{
    (void)state;
    uint64_t early = cm_trace_id(1000 * CM_NS_PER_MS, 0xfff, 0xfffff);
    uint64_t late = cm_trace_id(1001 * CM_NS_PER_MS, 0, 0);
    assert_true(early < late);
    assert_true(cm_trace_id(0, 0x1001, 0x100002) == (1ull << 20 | 2));
}

static bool take_colour(const struct cm_arg *arg, const char *text)
{
    *(bool *)arg->target = strcmp(text, "red") == 0;
    return *(bool *)arg->target;
}

/* Parses up to five words; the exit code, or -1 to go on. */
static int parse_args(const struct cm_arg *args, const char *const words[5])
{
    char program[] = "args", copies[5][32], *argv[7] = {program};
    enum cm_exit code = CM_EXIT_OK;
    int argc = 1;
    for (; argc < 6 && words[argc - 1]; argc++) {
        snprintf(copies[argc - 1], sizeof copies[0], "%s", words[argc - 1]);
        argv[argc] = copies[argc - 1];
    }
    return cm_args_parse(argc, argv, "usage\n", args, &code) ? -1 : (int)code;
}

static void test_args_are_taken_or_refused(void **state)
{
    const char *name = NULL;
    uint32_t number = 7;
    bool red = false;
    const struct cm_arg args[] = {
        {"name", cm_arg_text, .target = &name, .required = true},
        {"number", cm_arg_number, &number, .minimum = 1, .maximum = 64},
        {"colour", take_colour, .target = &red},
        {0},
    };
    static const struct {
        const char *words[5];
        int expected;
    } cases[] = {
        {{"--name", "x"}, -1},
        {{"--name=x", "--number", "64"}, -1},
        {{"--name", "x", "--colour", "red"}, -1},
        {{NULL}, CM_EXIT_USAGE},
        {{"--number", "64"}, CM_EXIT_USAGE},
        {{"--name"}, CM_EXIT_USAGE},
        {{"--name", "x", "more"}, CM_EXIT_USAGE},
        {{"--name", "x", "--other", "1"}, CM_EXIT_USAGE},
        {{"--name", "x", "--number", "0"}, CM_EXIT_USAGE},
        {{"--name", "x", "--number", "65"}, CM_EXIT_USAGE},
        {{"--name", "x", "--number", "+1"}, CM_EXIT_USAGE},
        {{"--name", "x", "--number", "1x"}, CM_EXIT_USAGE},
        {{"--name=x", "--number", "99999999999999999999"}, CM_EXIT_USAGE},
        {{"--name", "x", "--colour", "blue"}, CM_EXIT_USAGE},
        {{"--help"}, CM_EXIT_OK},
        {{"--name", "x", "--help", "--number", "0"}, CM_EXIT_OK},
    };
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++)
        assert_int_equal(parse_args(args, cases[i].words), cases[i].expected);
    assert_int_equal(number, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_lists),
        cmocka_unit_test(test_err_sentences_are_cut_to_fit),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_shape_sizes),
        cmocka_unit_test(test_shape_text),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_crc_is_crc32c),
        cmocka_unit_test(test_frame_every_flipped_bit_is_refused),
        cmocka_unit_test(test_version_names_both),
        cmocka_unit_test(test_trace_ids_sort_by_time),
        cmocka_unit_test(test_args_are_taken_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
