/* x-request-context, base64 and traceparent. */
#include "gateway/context.h"
#include "proto/ingot.pb-c.h"
#include "tests/harness/t.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static void base64_agrees_with_openssl(void **state)
{
    (void)state;
    uint64_t seed = 21;
    for (size_t length = 0; length < 100; length++) {
        unsigned char bytes[100], text[200], back[100];
        size_t n = 999;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (unsigned char)t_random(&seed);
        int chars = EVP_EncodeBlock(text, bytes, (int)length);
        assert_int_equal(gw_base64_decode(text, (size_t)chars, back, sizeof back, &n), CM_OK);
        assert_int_equal(n, length);
        assert_memory_equal(back, bytes, length);
        while (chars > 0 && text[chars - 1] == '=')
            chars--; /* without padding */
        assert_int_equal(gw_base64_decode(text, (size_t)chars, back, sizeof back, &n), CM_OK);
        assert_int_equal(n, length);
        if (length > 0)
            assert_int_equal(gw_base64_decode(text, (size_t)chars, back, length - 1, &n), CM_LIMIT);
    }
}

static void bad_base64_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"A",     "A===", "AA=",  "AAA==", "AAAA=", "AA==A", "A A=",
                                      "AA\n=", "AB==", "AAB=", "-_-_",  "%%%",   "====",  "=AAA"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        unsigned char back[16];
        size_t n;
        assert_int_equal(gw_base64_decode(bad[i], strlen(bad[i]), back, sizeof back, &n),
                         CM_INVALID);
    }
}

/* Packs, encodes, parses. */
static enum cm_err parse(const Ingot__V1__RequestContext *message, struct gw_context *context,
                         struct cm_error *err)
{
    unsigned char bytes[1024], text[2048];
    size_t length = ingot__v1__request_context__get_packed_size(message);
    assert_true(length <= sizeof bytes);
    ingot__v1__request_context__pack(message, bytes);
    int chars = EVP_EncodeBlock(text, bytes, (int)length);
    memset(context, 0, sizeof *context);
    return gw_context_parse(text, (size_t)chars, err, context);
}

static void fields_arrive(void **state)
{
    (void)state;
    Ingot__V1__RequestContext message = INGOT__V1__REQUEST_CONTEXT__INIT;
    struct gw_context context;
    struct cm_error error;
    assert_int_equal(parse(&message, &context, &error), CM_OK);
    assert_string_equal(context.request_id, "");
    message.request_id = (char *)(uintptr_t) "req-1:a.b_C";
    message.tenant = (char *)(uintptr_t) "tenant";
    message.priority = 255;
    message.timeout_us = UINT64_MAX;
    message.want_stats = true;
    assert_int_equal(parse(&message, &context, &error), CM_OK);
    assert_string_equal(context.request_id, "req-1:a.b_C");
    assert_string_equal(context.tenant, "tenant");
    assert_int_equal(context.priority, 255);
    assert_true(context.timeout_us == UINT64_MAX);
    assert_true(context.want_stats);
}

static void limits_are_kept(void **state)
{
    (void)state;
    char longest[GW_REQUEST_ID_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[GW_REQUEST_ID_MAX] = 0;
    Ingot__V1__RequestContext message = INGOT__V1__REQUEST_CONTEXT__INIT;
    struct gw_context context;
    struct cm_error error;
    message.request_id = longest;
    assert_int_equal(parse(&message, &context, &error), CM_OK);
    longest[GW_REQUEST_ID_MAX] = 'x';
    longest[GW_REQUEST_ID_MAX + 1] = 0;
    assert_int_equal(parse(&message, &context, &error), CM_INVALID);
    static const char *const bad[] = {"with space", "new\nline", "\x1b[31m", "sl/ash", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        message.request_id = (char *)(uintptr_t)bad[i];
        assert_int_equal(parse(&message, &context, &error), CM_INVALID);
    }
    message.request_id = (char *)(uintptr_t) "fine";
    longest[GW_TENANT_MAX + 1] = 0;
    message.tenant = longest;
    assert_int_equal(parse(&message, &context, &error), CM_INVALID);
    message.tenant = (char *)(uintptr_t) "";
    message.priority = 256;
    assert_int_equal(parse(&message, &context, &error), CM_INVALID);
}

static void malformed_contexts_change_nothing(void **state)
{
    (void)state;
    struct gw_context context = {.request_id = "before"};
    struct cm_error error;
    static const char *const bad[] = {"!", "//////8=", "CgEB////", "Cv8="};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gw_context_parse(bad[i], strlen(bad[i]), &error, &context), CM_INVALID);
        assert_string_equal(context.request_id, "before");
    }
    char *large = calloc(1, GW_CONTEXT_MAX + 1);
    memset(large, 'A', GW_CONTEXT_MAX + 1);
    assert_int_equal(gw_context_parse(large, GW_CONTEXT_MAX + 1, &error, &context), CM_INVALID);
    free(large);
}

static void random_contexts_end(void **state)
{
    (void)state;
    uint64_t seed = 22;
    for (int i = 0; i < 20000; i++) {
        static const char alphabet[] =
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char text[60];
        size_t length = t_random(&seed) % sizeof text;
        for (size_t k = 0; k < length; k++)
            text[k] = alphabet[t_random(&seed) % 64];
        struct gw_context context = {0};
        struct cm_error error;
        enum cm_err code = gw_context_parse(text, length, &error, &context);
        assert_true(code == CM_OK || code == CM_INVALID);
    }
}

static void traceparents_are_kept_or_dropped(void **state)
{
    (void)state;
    static const char good[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    struct gw_context context = {0};
    gw_context_traceparent(&context, good, strlen(good));
    assert_string_equal(context.traceparent, good);
    static const char *const bad[] = {
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331\r01",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gw_context_traceparent(&context, bad[i], strlen(bad[i]));
        assert_string_equal(context.traceparent, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_agrees_with_openssl),
        cmocka_unit_test(bad_base64_is_refused),
        cmocka_unit_test(fields_arrive),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(malformed_contexts_change_nothing),
        cmocka_unit_test(random_contexts_end),
        cmocka_unit_test(traceparents_are_kept_or_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
