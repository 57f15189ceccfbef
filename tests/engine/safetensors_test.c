/* Headers of safetensors files: what is one, and that everything else is refused with a reason in
 * bounded time and memory. */
#include "gpu-worker/graph/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* The text as the header of a file with data_bytes bytes behind it, in memory of exactly its size.
 */
static enum cm_err parse(const char *text, size_t length, uint64_t data_bytes, struct cm_error *err,
                         struct wk_safetensors *ret)
{
    char *copy = malloc(length);
    assert_non_null(copy);
    memcpy(copy, text, length);
    enum cm_err code = wk_safetensors_parse(
        copy, length, WK_SAFETENSORS_PREFIX + length + data_bytes, "\"f\"", err, ret);
    free(copy);
    return code;
}

static void refuse_bytes(const char *text, size_t length, uint64_t data_bytes, enum cm_err code,
                         const char *part)
{
    struct wk_safetensors file = {0};
    struct cm_error err = {0};
    enum cm_err got = parse(text, length, data_bytes, &err, &file);
    if (got != code || !strstr(err.text, part))
        fail_msg("%.200s: wanted %s with \"%s\", got %s with \"%s\"", text, cm_err_name(code), part,
                 cm_err_name(got), err.text);
    assert_null(file.tensors);
    assert_null(file.arena.blocks);
}

static void refuse(const char *text, uint64_t data_bytes, enum cm_err code, const char *part)
{
    refuse_bytes(text, strlen(text), data_bytes, code, part);
}

static void accept(const char *text, uint64_t data_bytes, struct wk_safetensors *file)
{
    struct cm_error err = {0};
    *file = (struct wk_safetensors){0};
    if (parse(text, strlen(text), data_bytes, &err, file) != CM_OK)
        fail_msg("%s: %s", text, err.text);
}

/* One tensor "t" in front of what follows. */
#define T(dtype, shape, offsets) \
    "\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void what_is_one(void **state)
{
    struct wk_safetensors file;
    (void)state;
    accept("{\"__metadata__\":{\"format\":\"pt\"},"
           "\"b\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[24,40]},"
           "\"a\":{\"data_offsets\":[0,24],\"dtype\":\"F32\",\"shape\":[2,3]},"
           "\"scalar\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[40,41]},"
           "\"caf\xc3\xa9\":{\"dtype\":\"F16\",\"shape\":[4,0,7],\"data_offsets\":[41,41]}}     ",
           41, &file);
    assert_int_equal(file.n, 4);
    const struct wk_safetensor *a = wk_safetensors_find(&file, "a");
    const struct wk_safetensor *b = wk_safetensors_find(&file, "b");
    uint64_t start = a->begin;
    assert_int_equal(a->dtype, CM_FP32);
    assert_int_equal(a->shape.rank, 2);
    assert_int_equal(a->shape.dims[1], 3);
    assert_int_equal(a->end - a->begin, 24);
    assert_int_equal(b->begin, start + 24);
    assert_int_equal(b->end, start + 40);
    assert_int_equal(wk_safetensors_find(&file, "scalar")->end, start + 41);
    assert_int_equal(wk_safetensors_find(&file, "caf\xc3\xa9")->dtype, CM_FP16);
    assert_null(wk_safetensors_find(&file, "__metadata__"));
    assert_null(wk_safetensors_find(&file, ""));
    wk_safetensors_fini(&file);

    accept("{}", 0, &file);
    assert_int_equal(file.n, 0);
    assert_null(wk_safetensors_find(&file, "a"));
    wk_safetensors_fini(&file);
    /* A type that the engine lacks is no reason to refuse its neighbours. */
    accept("{" T("F8_E4M3", "[3]", "[0,3]") "}", 3, &file);
    assert_int_equal(wk_safetensors_find(&file, "t")->dtype, CM_DTYPE_NONE);
    wk_safetensors_fini(&file);
}

static void lengths_of_headers(void **state)
{
    static const struct {
        uint64_t length, file;
        enum cm_err code;
        const char *part;
    } cases[] = {
        {2, 10, CM_OK, ""},
        {100000000, 100000008, CM_OK, ""},
        {100000001, UINT64_MAX, CM_CORRUPT, "header is too large"},
        {UINT64_MAX, UINT64_MAX, CM_CORRUPT, "header is too large"},
        {UINT64_MAX - 7, 100, CM_CORRUPT, "header is too large"},
        {11, 18, CM_CORRUPT, "ends in its header"},
        {2, 7, CM_CORRUPT, "ends in its header"},
        {0, 0, CM_CORRUPT, "ends in its header"},
        {0, 8, CM_CORRUPT, "has no header"},
        {1, 9, CM_CORRUPT, "has no header"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t prefix[WK_SAFETENSORS_PREFIX];
        struct cm_error err = {0};
        size_t length = 0;
        for (unsigned k = 0; k < 8; k++)
            prefix[k] = (uint8_t)(cases[i].length >> (8 * k));
        assert_int_equal(wk_safetensors_header(prefix, cases[i].file, "\"f\"", &err, &length),
                         cases[i].code);
        assert_non_null(strstr(err.text, cases[i].part));
        if (cases[i].code == CM_OK)
            assert_int_equal(length, cases[i].length);
    }
}

static void json_that_is_none(void **state)
{
    (void)state;
    refuse("[]", 0, CM_CORRUPT, "header is not JSON");
    refuse(" {}", 0, CM_CORRUPT, "header is not JSON");
    refuse("\xef\xbb\xbf{}", 0, CM_CORRUPT, "header is not JSON");
    refuse("{} x", 0, CM_CORRUPT, "is not valid");
    refuse("{", 0, CM_CORRUPT, "is not valid");
    refuse("{" T("F32", "[1]", "[0,4]") ",}", 4, CM_CORRUPT, "is not valid");
    refuse("{\"\xff\":1}", 0, CM_CORRUPT, "is not valid");
    refuse("{\"\xc0\xaf\":1}", 0, CM_CORRUPT, "is not valid");
    refuse("{\"a\\u0000b\":1}", 0, CM_CORRUPT, "is not valid");
    refuse_bytes("{}\0", 3, 0, CM_CORRUPT, "is not valid");
    refuse("{" T("F32", "[1]", "[0,4]") "," T("F32", "[1]", "[4,8]") "}", 8, CM_CORRUPT,
           "duplicate");
    refuse("{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
           CM_CORRUPT, "duplicate");
    refuse("{" T("F32", "[1e400]", "[0,4]") "}", 4, CM_CORRUPT, "is not valid");
    refuse("{" T("F32", "[18446744073709551616]", "[0,4]") "}", 4, CM_CORRUPT, "is not valid");
}

static void tensors_that_are_none(void **state)
{
    (void)state;
    refuse("{\"t\":1}", 0, CM_CORRUPT, "is not described by");
    refuse("{\"t\":null}", 0, CM_CORRUPT, "is not described by");
    refuse("{\"t\":{}}", 0, CM_CORRUPT, "is not described by");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, CM_CORRUPT, "is not described by");
    refuse("{\"t\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CM_CORRUPT,
           "is not described by");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
           CM_CORRUPT, "is not described by");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4, CM_CORRUPT,
           "has no data_offsets");
    refuse("{" T("F32", "4", "[0,4]") "}", 4, CM_CORRUPT, "has no shape");
    refuse("{" T("F32", "[-1]", "[0,4]") "}", 4, CM_CORRUPT, "no number from 0 up");
    refuse("{" T("F32", "[1.0]", "[0,4]") "}", 4, CM_CORRUPT, "no number from 0 up");
    refuse("{" T("F32", "[\"1\"]", "[0,4]") "}", 4, CM_CORRUPT, "no number from 0 up");
    refuse("{" T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, CM_LIMIT, "more than 8 dimensions");
    refuse("{" T("F32", "[1]", "[0]") "}", 4, CM_CORRUPT, "has no data_offsets");
    refuse("{" T("F32", "[1]", "[0,4,4]") "}", 4, CM_CORRUPT, "has no data_offsets");
    refuse("{" T("F32", "[1]", "[-4,0]") "}", 4, CM_CORRUPT, "has no data_offsets");
    refuse("{" T("F32", "[1]", "[0.0,4.0]") "}", 4, CM_CORRUPT, "has no data_offsets");
    refuse("{" T("F32", "[1]", "[4,0]") "}", 4, CM_CORRUPT, "outside the file");
    refuse("{" T("F32", "[1]", "[0,5]") "}", 4, CM_CORRUPT, "outside the file");
    refuse("{" T("F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, CM_CORRUPT,
           "outside the file");
    refuse("{" T("F32", "[2]", "[0,4]") "}", 4, CM_CORRUPT, "do not fit its dtype and shape");
    refuse("{" T("F64", "[1]", "[0,4]") "}", 4, CM_CORRUPT, "do not fit its dtype and shape");
    refuse("{" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, CM_CORRUPT, "too large");
    refuse("{" T("U8", "[4294967296,4294967296,0]", "[0,0]") "}", 0, CM_CORRUPT, "too large");
    refuse("{" T("F64", "[2305843009213693952]", "[0,0]") "}", 0, CM_CORRUPT, "too large");
    refuse("{" T("F4", "[2]", "[0,1]") "}", 1, CM_UNSUPPORTED, "element type F4");
    refuse("{" T("F6_E2M3", "[4]", "[0,3]") "}", 3, CM_UNSUPPORTED, "element type F6_E2M3");
    refuse("{" T("f32", "[1]", "[0,4]") "}", 4, CM_UNSUPPORTED, "element type f32");
    refuse("{" T("\x1b[2J", "[1]", "[0,4]") "}", 4, CM_CORRUPT, "is not valid");
    refuse("{\"__metadata__\":[]}", 0, CM_CORRUPT, "nothing but strings");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, CM_CORRUPT, "nothing but strings");
    refuse("{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, CM_CORRUPT, "nothing but strings");
}

static void places_that_do_not_add_up(void **state)
{
    (void)state;
    refuse("{}", 1, CM_CORRUPT, "1 bytes behind its last tensor");
    refuse("{" T("F32", "[1]", "[0,4]") "}", 5, CM_CORRUPT, "1 bytes behind its last tensor");
    refuse("{" T("F32", "[1]", "[4,8]") "}", 8, CM_CORRUPT, "unused bytes in front");
    refuse("{" T("F32", "[1]", "[0,4]") ",\"u\":{\"dtype\":\"U8\",\"shape\":[1],"
                                        "\"data_offsets\":[5,6]}}",
           6, CM_CORRUPT, "\"u\" has unused bytes in front");
    refuse("{" T("F32", "[2]", "[0,8]") ",\"u\":{\"dtype\":\"F32\",\"shape\":[1],"
                                        "\"data_offsets\":[4,8]}}",
           8, CM_CORRUPT, "overlaps another");
    /* Many tensors of one range: the "json attack" that lets a small file claim any amount. */
    refuse("{" T("F32", "[2]", "[0,8]") ",\"u\":{\"dtype\":\"F32\",\"shape\":[2],"
                                        "\"data_offsets\":[0,8]}}",
           8, CM_CORRUPT, "overlaps another");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static char *repeat(const char *before, const char *part, size_t count, const char *after,
                    size_t *ret_length)
{
    size_t head = strlen(before), each = strlen(part), tail = strlen(after);
    char *text = malloc(head + count * each + tail + 1);
    assert_non_null(text);
    memcpy(text, before, head);
    if (count)
        memcpy(text + head, part, each);
    for (size_t have = 1; have < count; have *= 2) {
        size_t more = have < count - have ? have : count - have;
        memcpy(text + head + have * each, text + head, more * each);
    }
    memcpy(text + head + count * each, after, tail + 1);
    *ret_length = head + count * each + tail;
    return text;
}

static char *tensors(size_t count, size_t *ret_length)
{
    char *text = malloc(count * 80 + 16), *at = text;
    assert_non_null(text);
    *at++ = '{';
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                      i ? "," : "", i, i, i + 1);
    *at++ = '}';
    *ret_length = (size_t)(at - text);
    return text;
}

static void as_many_tensors_as_allowed(void **state)
{
    struct wk_safetensors file = {0};
    struct cm_error err = {0};
    size_t length;
    (void)state;
    char *text = tensors(WK_SAFETENSORS_MAX_TENSORS, &length);
    assert_int_equal(parse(text, length, WK_SAFETENSORS_MAX_TENSORS, &err, &file), CM_OK);
    assert_int_equal(file.n, WK_SAFETENSORS_MAX_TENSORS);
    assert_int_equal(wk_safetensors_find(&file, "t65535")->shape.dims[0], 1);
    wk_safetensors_fini(&file);
    free(text);
    text = tensors(WK_SAFETENSORS_MAX_TENSORS + 1, &length);
    refuse_bytes(text, length, WK_SAFETENSORS_MAX_TENSORS + 1, CM_LIMIT, "more than 65536 tensors");
    free(text);
}

/* Headers of the greatest length: processor time and memory stay bounded. */
static void huge_headers(void **state)
{
    static const struct {
        const char *before, *part, *after;
        enum cm_err code;
        const char *reason;
    } cases[] = {
        {"{\"a\":[0", ",0", "]}", CM_LIMIT, "too many values"},
        {"{\"a\":", "[", "", CM_LIMIT, "too many values"},
        {"{\"a\":", "{\"a\":", "", CM_LIMIT, "too many values"},
        {"{\"a\":{}", ",\"a\":{}", "}", CM_LIMIT, "too many values"},
        {"{\"__metadata__\":{\"a\":\"", "x", "\"}}", CM_OK, ""},
        {"{\"a", "\\u0041", "\":1}", CM_CORRUPT, "is not described by"},
        {"{", " ", "}", CM_OK, ""},
        {"{\"a\":", "1", "}", CM_CORRUPT, "is not valid"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length,
            room = WK_SAFETENSORS_MAX_HEADER - strlen(cases[i].before) - strlen(cases[i].after);
        char *text = repeat(cases[i].before, cases[i].part, room / strlen(cases[i].part),
                            cases[i].after, &length);
        struct wk_safetensors file = {0};
        struct cm_error err = {0};
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        enum cm_err code = wk_safetensors_parse(text, length, WK_SAFETENSORS_PREFIX + length,
                                                "\"f\"", &err, &file);
        getrusage(RUSAGE_SELF, &after);
        free(text);
        wk_safetensors_fini(&file);
        double seconds = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                         (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6;
        print_message("%s%s...: %s, %.2f s, peak %ld MB\n", cases[i].before, cases[i].part,
                      cm_err_name(code), seconds, after.ru_maxrss / 1024);
        assert_int_equal(code, cases[i].code);
        assert_non_null(strstr(err.text, cases[i].reason));
        assert_true(seconds < 60);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which take memory themselves \
                                                                   */
        assert_true(after.ru_maxrss < 1024 * 1024);
#endif
    }
}

static void nesting(void **state)
{
    size_t length;
    (void)state;
    char *text = repeat("{\"a\":", "[", 100000, "", &length);
    refuse_bytes(text, length, 0, CM_CORRUPT, "depth");
    free(text);
    text = repeat("{\"a\":{\"b\":[", "{\"c\":[", 100000, "", &length);
    refuse_bytes(text, length, 0, CM_CORRUPT, "depth");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_one),
        cmocka_unit_test(lengths_of_headers),
        cmocka_unit_test(json_that_is_none),
        cmocka_unit_test(tensors_that_are_none),
        cmocka_unit_test(places_that_do_not_add_up),
        cmocka_unit_test(as_many_tensors_as_allowed),
        cmocka_unit_test(nesting),
        cmocka_unit_test(huge_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
