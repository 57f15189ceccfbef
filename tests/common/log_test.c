/* Log lines as they leave on standard error: escaping, conversions, cuts, storms. */
#include "common/log.h"

#include "common/check.h"
#include "common/clock.h"
#include "tests/harness/t.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int saved_stderr = -1;
static FILE *capture;

static void begin_capture(void)
{
    capture = tmpfile();
    assert_non_null(capture);
    saved_stderr = dup(STDERR_FILENO);
    assert_true(dup2(fileno(capture), STDERR_FILENO) >= 0);
}

/* What was written since begin_capture. */
static const char *end_capture(void)
{
    static char text[64 * 1024];
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    rewind(capture);
    size_t n = fread(text, 1, sizeof text - 1, capture);
    text[n] = '\0';
    fclose(capture);
    return text;
}

/* The line from "event=" on. */
#define LINE(expected, ...)                                  \
    do {                                                     \
        begin_capture();                                     \
        cm_log(CM_LOG_INFO, __VA_ARGS__);                    \
        const char *text_ = strstr(end_capture(), "event="); \
        assert_non_null(text_);                              \
        assert_string_equal(text_, expected "\n");           \
    } while (0)

static void test_prefix(void **state)
{
    (void)state;
    begin_capture();
    cm_log(CM_LOG_WARN, "hello", "n=%d", 1);
    const char *text = end_capture();
    int year, month, day, hour, minute, second, micro, used = 0;
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ%n", &year, &month, &day, &hour,
                            &minute, &second, &micro, &used),
                     7);
    assert_int_equal(used, 27);
    assert_string_equal(text + used, " warn worker.3 event=hello n=1\n");
}

static void test_escaping(void **state)
{
    (void)state;
    LINE("event=e s=plain-1.0/x", "e", "s=%s", "plain-1.0/x");
    LINE("event=e s=\"\"", "e", "s=%s", "");
    LINE("event=e s=\"two words\"", "e", "s=%s", "two words");
    LINE("event=e s=\"say \\\"hi\\\"\"", "e", "s=%s", "say \"hi\"");
    LINE("event=e s=\"a\\\\b\"", "e", "s=%s", "a\\b");
    LINE("event=e s=\"k=v\"", "e", "s=%s", "k=v");
    LINE("event=e s=\"x\\n2026 error worker.0 event=forged\" t=1", "e", "s=%s t=%d",
         "x\n2026 error worker.0 event=forged", 1);
    LINE("event=e s=\"\\x1b[31m\\x7f\\xc3\\xa4\\x0d\"", "e", "s=%s", "\x1b[31m\x7f\xc3\xa4\r");
    LINE("event=e s=abc", "e", "s=%.*s", 3, "abcdef");
}

static void test_conversions(void **state)
{
    (void)state;
    LINE("event=e a=-5 b=7 c=ff", "e", "a=%d b=%u c=%x", -5, 7u, 255u);
    LINE("event=e a=18446744073709551615 b=-9223372036854775808", "e", "a=%llu b=%lld", ULLONG_MAX,
         LLONG_MIN);
    LINE("event=e a=42 b=-1 c=9", "e", "a=%zu b=%ld c=%lu", (size_t)42, -1L, 9UL);
    LINE("event=e a=1.500 b=0x0000002a c=100%", "e", "a=%.3f b=0x%08x c=%d%%", 1.5, 42u, 100);
    LINE("event=e a=-1 b=65535", "e", "a=%hd b=%hu", (short)-1, (unsigned short)65535);
    LINE("event=e a=\" \"", "e", "a=%c", ' ');
}

static void test_long_lines_are_cut_whole(void **state)
{
    (void)state;
    static char longer[3 * PIPE_BUF];
    memset(longer, '\n', sizeof longer - 1);
    for (size_t length = 1; length < sizeof longer; length += 97) {
        begin_capture();
        cm_log(CM_LOG_INFO, "e", "s=%.*s after=%d", (int)length, longer, 1);
        const char *text = end_capture();
        size_t n = strlen(text);
        assert_true(n > 0 && n <= PIPE_BUF);
        assert_ptr_equal(strchr(text, '\n'), text + n - 1);
        bool whole = strstr(text, "after=1") != NULL;
        assert_true(whole != (strstr(text, " cut=1\n") != NULL));
    }
}

static void test_levels(void **state)
{
    (void)state;
    begin_capture();
    cm_log(CM_LOG_DEBUG, "quiet", "%s", "x");
    assert_string_equal(end_capture(), "");
}

static void test_storms(void **state)
{
    (void)state;
    struct cm_log_limit limit = {0};
    uint64_t suppressed = 99;
    assert_int_equal(cm_log_allowed(&limit, 5, &suppressed), 1);
    assert_int_equal(suppressed, 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(cm_log_allowed(&limit, CM_NS_PER_S, &suppressed), 0);
    assert_int_equal(cm_log_allowed(&limit, CM_NS_PER_S + 5, &suppressed), 1);
    assert_int_equal(suppressed, 10);
    assert_int_equal(cm_log_allowed(&limit, 3 * CM_NS_PER_S, &suppressed), 1);
    assert_int_equal(suppressed, 0);
}

int main(void)
{
    unsetenv("INGOT_LOG");
    cm_log_init(CM_ROLE_WORKER, 3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),      cmocka_unit_test(test_escaping),
        cmocka_unit_test(test_conversions), cmocka_unit_test(test_long_lines_are_cut_whole),
        cmocka_unit_test(test_levels),      cmocka_unit_test(test_storms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
