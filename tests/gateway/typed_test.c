/* Typed contents: every datatype, packed and unpacked, its limits, wrong fields, wrong counts. */
#include "tests/harness/t.h"
#include "common/check.h"
#include "gateway/codec.h"

#include <string.h>

/* A field of InferTensorContents under construction. */
struct built {
    uint8_t bytes[512];
    struct gw_put put;
    struct gw_wire_segment segment;
};

static void begin(struct built *built)
{
    built->put = (struct gw_put){built->bytes, 0, sizeof built->bytes};
}

static struct gw_wire end(struct built *built)
{
    struct gw_wire wire;
    built->segment = (struct gw_wire_segment){built->bytes, built->put.length};
    gw_wire_init(&wire, &built->segment, 1);
    return wire;
}

/* values as varints, packed into one field or one field each. */
static void put_varints(struct built *built, uint32_t field, const uint64_t *values, size_t count,
                        bool packed)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += gw_varint_size(values[i]);
    if (packed)
        gw_put_head(&built->put, field, bytes);
    for (size_t i = 0; i < count; i++) {
        if (packed)
            gw_put_varint(&built->put, values[i]);
        else
            gw_put_uint(&built->put, field, values[i]);
    }
}

struct integer_case {
    enum cm_dtype dtype;
    uint32_t field;
    bool is_signed;
    int64_t minimum;
    uint64_t maximum;
};

static const struct integer_case integers[] = {
    {CM_BOOL, 1, false, 0, 1},
    {CM_INT8, 2, true, INT8_MIN, INT8_MAX},
    {CM_INT16, 2, true, INT16_MIN, INT16_MAX},
    {CM_INT32, 2, true, INT32_MIN, INT32_MAX},
    {CM_INT64, 3, true, INT64_MIN, INT64_MAX},
    {CM_UINT8, 4, false, 0, UINT8_MAX},
    {CM_UINT16, 4, false, 0, UINT16_MAX},
    {CM_UINT32, 4, false, 0, UINT32_MAX},
    {CM_UINT64, 5, false, 0, UINT64_MAX},
};

static void integers_are_converted(void **state)
{
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(integers); i++)
        for (int packed = 0; packed < 2; packed++) {
            const struct integer_case *c = &integers[i];
            uint64_t values[] = {0, 1, (uint64_t)c->minimum, c->maximum};
            struct built built;
            begin(&built);
            put_varints(&built, c->field, values, 4, packed != 0);
            unsigned char out[33];
            memset(out, 0x5a, sizeof out);
            struct cm_error error;
            assert_int_equal(gw_typed_copy(end(&built), c->dtype, 4, out, "x", &error), CM_OK);
            size_t size = cm_dtype_size(c->dtype);
            for (size_t k = 0; k < 4; k++)
                assert_memory_equal(out + k * size, &values[k], size);
            assert_int_equal(out[4 * size], 0x5a);
        }
}

static void integers_out_of_range_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < CM_COUNT_OF(integers); i++) {
        const struct integer_case *c = &integers[i];
        if (c->dtype == CM_BOOL || cm_dtype_size(c->dtype) == 8)
            continue;
        uint64_t wrong[] = {c->maximum + 1, c->is_signed ? (uint64_t)(c->minimum - 1) : 1ull << 40};
        for (int k = 0; k < 2; k++) {
            struct built built;
            begin(&built);
            put_varints(&built, c->field, &wrong[k], 1, true);
            unsigned char out[8];
            struct cm_error error;
            assert_int_equal(gw_typed_copy(end(&built), c->dtype, 1, out, "x", &error), CM_INVALID);
            assert_non_null(strstr(error.text, "does not fit"));
        }
    }
}

static void a_bool_is_any_non_zero(void **state)
{
    (void)state;
    uint64_t values[] = {0, 7, UINT64_MAX};
    struct built built;
    begin(&built);
    put_varints(&built, 1, values, 3, true);
    unsigned char out[3];
    struct cm_error error;
    assert_int_equal(gw_typed_copy(end(&built), CM_BOOL, 3, out, "x", &error), CM_OK);
    assert_memory_equal(out, "\0\1\1", 3);
}

static void floats_keep_their_bits(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0, 0x80000000, 0x7f800000, 0x7fc00001, 1, 0x3f800000};
    for (int packed = 0; packed < 2; packed++) {
        struct built built;
        begin(&built);
        if (packed)
            gw_put_bytes(&built.put, 6, bits, sizeof bits);
        for (size_t i = 0; !packed && i < CM_COUNT_OF(bits); i++) {
            gw_put_tag(&built.put, 6, GW_WIRE_FIXED32);
            gw_put_raw(&built.put, &bits[i], 4);
        }
        uint32_t out[6];
        struct cm_error error;
        assert_int_equal(gw_typed_copy(end(&built), CM_FP32, 6, out, "x", &error), CM_OK);
        assert_memory_equal(out, bits, sizeof bits);
    }
    double values[2] = {-0.0, 1e300}, out[2];
    struct built built;
    struct cm_error error;
    begin(&built);
    gw_put_bytes(&built.put, 7, values, 8);  /* half packed, */
    gw_put_double(&built.put, 7, values[1]); /* half alone */
    assert_int_equal(gw_typed_copy(end(&built), CM_FP64, 2, out, "x", &error), CM_OK);
    assert_memory_equal(out, values, sizeof values);
}

static enum cm_err copy_floats(const void *bytes, size_t length, size_t count)
{
    struct built built;
    float out[8];
    struct cm_error error;
    begin(&built);
    gw_put_bytes(&built.put, 6, bytes, length);
    return gw_typed_copy(end(&built), CM_FP32, count, out, "x", &error);
}

static void counts_must_match(void **state)
{
    (void)state;
    float values[4] = {1, 2, 3, 4};
    assert_int_equal(copy_floats(values, 16, 4), CM_OK);
    assert_int_equal(copy_floats(values, 16, 3), CM_INVALID);
    assert_int_equal(copy_floats(values, 16, 5), CM_INVALID);
    assert_int_equal(copy_floats(values, 15, 4), CM_INVALID);
    assert_int_equal(copy_floats(values, 0, 0), CM_OK);
    uint64_t many[3] = {1, 2, 3};
    struct built built;
    unsigned char out[8];
    struct cm_error error;
    begin(&built);
    put_varints(&built, 3, many, 3, true);
    assert_int_equal(gw_typed_copy(end(&built), CM_INT64, 1, out, "x", &error), CM_INVALID);
}

static void other_fields_are_refused(void **state)
{
    (void)state;
    float value = 1;
    unsigned char out[8];
    struct cm_error error;
    for (uint32_t field = 1; field <= 8; field++) {
        struct built built;
        begin(&built);
        gw_put_bytes(&built.put, 6, &value, 4);
        if (field != 6)
            gw_put_bytes(&built.put, field, "\1", 1);
        enum cm_err code = gw_typed_copy(end(&built), CM_FP32, 1, out, "x", &error);
        assert_int_equal(code, field == 6 ? CM_OK : CM_INVALID);
        begin(&built); /* an empty list says nothing */
        gw_put_bytes(&built.put, 6, &value, 4);
        if (field != 6)
            gw_put_bytes(&built.put, field, "", 0);
        assert_int_equal(gw_typed_copy(end(&built), CM_FP32, 1, out, "x", &error), CM_OK);
    }
    struct built built;
    begin(&built);
    gw_put_bytes(&built.put, 6, &value, 4);
    gw_put_text(&built.put, 99, "from the future");
    assert_int_equal(gw_typed_copy(end(&built), CM_FP32, 1, out, "x", &error), CM_OK);
}

static void half_floats_have_no_typed_form(void **state)
{
    (void)state;
    struct built built;
    unsigned char out[8];
    struct cm_error error;
    begin(&built);
    gw_put_bytes(&built.put, 6, "\0\0\0\0", 4);
    assert_int_equal(gw_typed_copy(end(&built), CM_FP16, 1, out, "x", &error), CM_INVALID);
    assert_int_equal(gw_typed_copy(end(&built), CM_BF16, 1, out, "x", &error), CM_INVALID);
    assert_non_null(strstr(error.text, "raw_input_contents"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_converted),
        cmocka_unit_test(integers_out_of_range_are_refused),
        cmocka_unit_test(a_bool_is_any_non_zero),
        cmocka_unit_test(floats_keep_their_bits),
        cmocka_unit_test(counts_must_match),
        cmocka_unit_test(other_fields_are_refused),
        cmocka_unit_test(half_floats_have_no_typed_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
