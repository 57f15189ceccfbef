/* The wire reader and writer: every form, every split of the bytes over segments, every truncation.
 */
#include "common/utf8.h"
#include "gateway/wire.h"
#include "tests/harness/t.h"

#include <string.h>

#define SEGMENTS 64

/* The bytes cut into segments at random places, empty ones included. */
static size_t cut(const uint8_t *bytes, size_t length, uint64_t *seed,
                  struct gw_wire_segment segments[SEGMENTS])
{
    size_t n = 0, at = 0;
    while (at < length && n < SEGMENTS - 1) {
        size_t step = t_random(seed) % 8;
        if (step > length - at)
            step = length - at;
        segments[n++] = (struct gw_wire_segment){bytes + at, step};
        at += step;
    }
    segments[n++] = (struct gw_wire_segment){bytes + at, length - at};
    return n;
}

static struct gw_wire over(const void *bytes, size_t length, struct gw_wire_segment *segment)
{
    struct gw_wire wire;
    *segment = (struct gw_wire_segment){bytes, length};
    gw_wire_init(&wire, segment, 1);
    return wire;
}

static void varints_round_trip(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,          1,          127,       128,       300,
                                      UINT32_MAX, 1ull << 35, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        uint8_t bytes[16];
        struct gw_put put = {bytes, 0, sizeof bytes};
        gw_put_varint(&put, values[i]);
        assert_int_equal(put.length, gw_varint_size(values[i]));
        struct gw_wire_segment segment;
        struct gw_wire wire = over(bytes, put.length, &segment);
        uint64_t value;
        assert_int_equal(gw_wire_varint(&wire, &value), CM_OK);
        assert_true(value == values[i]);
        assert_int_equal(wire.left, 0);
        for (size_t n = 0; n < put.length; n++) {
            wire = over(bytes, n, &segment);
            assert_int_equal(gw_wire_varint(&wire, &value), CM_CORRUPT);
        }
    }
    uint8_t endless[11];
    memset(endless, 0xff, sizeof endless);
    struct gw_wire_segment segment;
    struct gw_wire wire = over(endless, sizeof endless, &segment);
    uint64_t value;
    assert_int_equal(gw_wire_varint(&wire, &value), CM_CORRUPT);
}

static void bad_tags_are_refused(void **state)
{
    (void)state;
    static const uint8_t tags[] = {0x0b /* group */, 0x0c /* end of it */, 0x0e, 0x0f, 0x00, 0x02};
    for (size_t i = 0; i < sizeof tags; i++) {
        struct gw_wire_segment segment;
        struct gw_wire wire = over(&tags[i], 1, &segment);
        uint32_t field;
        enum gw_wire_type type;
        assert_int_equal(gw_wire_next(&wire, &field, &type), CM_CORRUPT);
    }
    static const uint8_t large[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x01};
    struct gw_wire_segment segment;
    struct gw_wire wire = over(large, sizeof large, &segment);
    uint32_t field;
    enum gw_wire_type type;
    assert_int_equal(gw_wire_next(&wire, &field, &type), CM_CORRUPT);
}

/* One field of every type, then a nested message. */
static size_t sample(uint8_t *bytes, size_t size)
{
    struct gw_put put = {bytes, 0, size};
    gw_put_uint(&put, 1, 123456789012345ull);
    gw_put_double(&put, 2, 2.5);
    gw_put_text(&put, 3, "a text that is longer than a segment");
    gw_put_tag(&put, 4, GW_WIRE_FIXED32);
    gw_put_raw(&put, "\x01\x02\x03\x04", 4);
    gw_put_head(&put, 5, 4);
    gw_put_uint(&put, 7, 9);
    gw_put_uint(&put, 8, 8);
    gw_put_bytes(&put, 3000, "", 0);
    assert_true(put.length <= size);
    return put.length;
}

/* Reads the whole sample; CM_OK if all of it was there and right. */
static enum cm_err read_sample(struct gw_wire wire)
{
    enum cm_err code;
    uint32_t field, seen = 0;
    enum gw_wire_type type;
    while ((code = gw_wire_next(&wire, &field, &type)) == CM_OK) {
        uint64_t number;
        uint32_t small;
        struct gw_wire part;
        double real;
        char text[64] = "";
        seen++;
        switch (field) {
        case 1:
            code = gw_wire_varint(&wire, &number);
            assert_true(code != CM_OK || number == 123456789012345ull);
            break;
        case 2:
            code = gw_wire_fixed64(&wire, &number);
            memcpy(&real, &number, sizeof real);
            assert_true(code != CM_OK || real == 2.5);
            break;
        case 3:
            code = gw_wire_bytes(&wire, &part);
            if (code == CM_OK) {
                size_t length = part.left;
                assert_int_equal(gw_wire_copy(&part, text, length), CM_OK);
                assert_string_equal(text, "a text that is longer than a segment");
                assert_int_equal(gw_wire_copy(&part, text, 1), CM_CORRUPT);
            }
            break;
        case 4:
            code = gw_wire_fixed32(&wire, &small);
            assert_true(code != CM_OK || small == 0x04030201);
            break;
        default:
            code = gw_wire_skip(&wire, type);
        }
        if (code != CM_OK)
            return code;
    }
    if (code == CM_AGAIN)
        return seen == 6 ? CM_OK : CM_AGAIN;
    return code;
}

static void any_split_reads_the_same(void **state)
{
    (void)state;
    uint8_t bytes[256];
    size_t length = sample(bytes, sizeof bytes);
    uint64_t seed = 11;
    for (int i = 0; i < 2000; i++) {
        struct gw_wire_segment segments[SEGMENTS];
        struct gw_wire wire;
        gw_wire_init(&wire, segments, cut(bytes, length, &seed, segments));
        assert_int_equal(wire.left, length);
        assert_int_equal(read_sample(wire), CM_OK);
    }
}

static void every_truncation_is_seen(void **state)
{
    (void)state;
    uint8_t bytes[256];
    size_t length = sample(bytes, sizeof bytes);
    uint64_t seed = 12;
    for (size_t n = 0; n < length; n++)
        for (int i = 0; i < 8; i++) {
            struct gw_wire_segment segments[SEGMENTS];
            struct gw_wire wire;
            gw_wire_init(&wire, segments, cut(bytes, n, &seed, segments));
            assert_int_not_equal(read_sample(wire), CM_OK);
        }
}

static void lengths_past_the_end_are_refused(void **state)
{
    (void)state;
    static const uint8_t bytes[][12] = {
        {0x0a, 0x03, 'a', 'b'},
        {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
        {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
    };
    static const size_t lengths[] = {4, 6, 11};
    for (size_t i = 0; i < 3; i++) {
        struct gw_wire_segment segment;
        struct gw_wire wire = over(bytes[i], lengths[i], &segment), part;
        uint32_t field;
        enum gw_wire_type type;
        assert_int_equal(gw_wire_next(&wire, &field, &type), CM_OK);
        assert_int_equal(gw_wire_bytes(&wire, &part), CM_CORRUPT);
    }
}

static void random_bytes_end(void **state)
{
    (void)state;
    uint64_t seed = 13;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[64];
        size_t length = t_random(&seed) % sizeof bytes;
        for (size_t k = 0; k < length; k++)
            bytes[k] = (uint8_t)t_random(&seed);
        struct gw_wire_segment segments[SEGMENTS];
        struct gw_wire wire;
        gw_wire_init(&wire, segments, cut(bytes, length, &seed, segments));
        uint32_t field;
        enum gw_wire_type type;
        enum cm_err code;
        while ((code = gw_wire_next(&wire, &field, &type)) == CM_OK)
            if ((code = gw_wire_skip(&wire, type)) != CM_OK)
                break;
        assert_true(code == CM_AGAIN || code == CM_CORRUPT);
    }
}

static void peek_tells_one_piece_from_two(void **state)
{
    (void)state;
    static const uint8_t bytes[] = "abcdef";
    struct gw_wire_segment segments[] = {{bytes, 0}, {bytes, 3}, {bytes + 3, 3}};
    struct gw_wire wire;
    gw_wire_init(&wire, segments, 3);
    wire.left = 3;
    assert_ptr_equal(gw_wire_peek(&wire), bytes);
    wire.left = 4;
    assert_null(gw_wire_peek(&wire));
    wire.left = 0;
    assert_non_null(gw_wire_peek(&wire));
}

static void utf8_is_checked(void **state)
{
    (void)state;
    static const char *const good[] = {
        "",          "plain", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf",
        "a\xc2\x80z"};
    static const char *const bad[] = {"\x80",
                                      "\xc3",
                                      "\xc0\x80",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "\xff",
                                      "ok\xe2\x82"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(cm_utf8_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(cm_utf8_valid(bad[i], strlen(bad[i])));
}

static void a_full_writer_counts(void **state)
{
    (void)state;
    uint8_t bytes[4] = {0};
    struct gw_put put = {bytes, 0, 3};
    gw_put_raw(&put, "ab", 2);
    gw_put_raw(&put, "cd", 2);
    gw_put_raw(&put, "e", 1);
    assert_int_equal(put.length, 5);
    assert_int_equal(bytes[3], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(varints_round_trip),
        cmocka_unit_test(bad_tags_are_refused),
        cmocka_unit_test(any_split_reads_the_same),
        cmocka_unit_test(every_truncation_is_seen),
        cmocka_unit_test(lengths_past_the_end_are_refused),
        cmocka_unit_test(random_bytes_end),
        cmocka_unit_test(peek_tells_one_piece_from_two),
        cmocka_unit_test(utf8_is_checked),
        cmocka_unit_test(a_full_writer_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
