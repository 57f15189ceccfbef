/* The command line. */
#include "gateway/options.h"
#include "tests/harness/t.h"

#include <stdio.h>
#include <string.h>

static enum cm_err parse(const char *line, struct gw_options *options, struct cm_error *error)
{
    static char copy[1024];
    char *argv[64] = {(char *)(uintptr_t) "ingot-gateway"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return gw_options_parse(argc, argv, error, options);
}

static void values_and_defaults(void **state)
{
    (void)state;
    struct gw_options options;
    struct cm_error error;
    assert_int_equal(parse("--run-dir /r --plaintext", &options, &error), CM_OK);
    assert_string_equal(options.grpc, "127.0.0.1:0");
    assert_int_equal(options.max_message_mb, 64);
    assert_int_equal(options.max_calls, 4096);
    assert_null(options.http);
    assert_int_equal(parse("--run-dir=/r --tls-cert c --tls-key=k --tls-client-ca a --grpc [::1]:7 "
                           "--http h:1 --max-calls 5 --index 3 --reflection off",
                           &options, &error),
                     CM_OK);
    assert_string_equal(options.tls_key, "k");
    assert_int_equal(options.max_calls, 5);
    assert_int_equal(options.index, 3);
    assert_false(options.plaintext);
    assert_int_equal(parse("--nonsense --help", &options, &error), CM_INVALID);
    assert_int_equal(parse("--help", &options, &error), CM_OK);
    assert_true(options.help);
}

static void mistakes_are_told(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "--plaintext",
        "--run-dir /r",
        "--run-dir /r --tls-cert c",
        "--run-dir /r --plaintext --tls-cert c",
        "--run-dir /r --plaintext --max-calls 0",
        "--run-dir /r --plaintext --max-calls -1",
        "--run-dir /r --plaintext --max-calls 5x",
        "--run-dir /r --plaintext --max-calls",
        "--run-dir /r --plaintext --max-calls 99999999999999999999999",
        "--run-dir /r --plaintext --grpc nowhere",
        "--run-dir /r --plaintext --grpc :80",
        "--run-dir /r --plaintext --grpc a:b",
        "--run-dir /r --plaintext --grpc a:65536",
        "--run-dir /r --plaintext --http a",
        "--run-dir /r --plaintext --reflection maybe",
        "--run-dir /r --plaintext extra",
        "--run-dir /r --plaintext --unknown 1",
        "--run-dir",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gw_options options;
        struct cm_error error = {.text = ""};
        assert_int_equal(parse(bad[i], &options, &error), CM_INVALID);
        assert_true(strlen(error.text) > 10);
    }
}

static void addresses_are_split(void **state)
{
    (void)state;
    char host[256];
    uint16_t port;
    assert_int_equal(gw_address_split("[::1]:443", NULL, host, &port), CM_OK);
    assert_string_equal(host, "::1");
    assert_int_equal(port, 443);
    assert_int_equal(gw_address_split("localhost:0", NULL, host, &port), CM_OK);
    assert_string_equal(host, "localhost");
    assert_int_equal(gw_address_split("[]:1", NULL, host, &port), CM_INVALID);
    assert_int_equal(gw_address_split("", NULL, host, &port), CM_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_defaults),
        cmocka_unit_test(mistakes_are_told),
        cmocka_unit_test(addresses_are_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
