/* cm_record_check: valid records of every type pass; each rule, broken alone, is refused; random
 * bytes and random damage never get past it into a walk that leaves the payload. */
#include "common/record.h"

#include "tests/common/records.h"
#include "tests/harness/t.h"

#include <stdlib.h>

static struct record r; /* 256 KiB: not on the stack */

static enum cm_err check(const struct record *record)
{
    struct cm_error err;
    return cm_record_check(record->type, record->bytes, record->length, &err);
}

static void test_valid(void **state)
{
    (void)state;
    const unsigned counts[] = {1, 2, CM_MAX_TENSORS};
    for (size_t i = 0; i < CM_COUNT_OF(counts); i++) {
        record_submit(&r, counts[i]);
        assert_int_equal(check(&r), CM_OK);
        record_execute(&r, counts[i], 2);
        assert_int_equal(check(&r), CM_OK);
        record_reply(&r, counts[i]);
        assert_int_equal(check(&r), CM_OK);
    }
    record_submit(&r, 0); /* a model may have no inputs */
    assert_int_equal(check(&r), CM_OK);
    record_done(&r, 3, 2);
    assert_int_equal(check(&r), CM_OK);
    record_done(&r, 2, 0); /* items that failed alone */
    assert_int_equal(check(&r), CM_OK);
    record_done_failed(&r, "the device is gone");
    assert_int_equal(check(&r), CM_OK);
    record_done_failed(&r, "");
    assert_int_equal(check(&r), CM_OK);
    record_reply_failed(&r, "cancelled");
    assert_int_equal(check(&r), CM_OK);
}

static void test_largest_fit(void **state)
{
    (void)state;
    record_execute(&r, CM_MAX_BATCH_ITEMS, CM_MAX_TENSORS);
    assert_int_equal(check(&r), CM_OK);
    assert_true(r.length <= CM_RECORD_MAX);
    record_done(&r, CM_MAX_BATCH_ITEMS, CM_MAX_TENSORS / 2);
    assert_int_equal(check(&r), CM_OK);
}

static void test_fixed_sizes(void **state)
{
    (void)state;
    const struct {
        uint8_t type;
        uint32_t length;
    } cases[] = {
        {CM_RECORD_CANCEL, sizeof(struct cm_record_cancel)},
        {CM_RECORD_RELEASE, sizeof(struct cm_record_release)},
        {CM_RECORD_DROP, sizeof(struct cm_record_drop)},
        {CM_RECORD_HELD, sizeof(struct cm_record_held)},
        {CM_RECORD_RESUMED, sizeof(struct cm_record_resumed)},
        {CM_RECORD_ABANDON, sizeof(struct cm_record_abandon)},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++)
        for (uint32_t length = 0; length < 64; length++) {
            record_fixed(&r, cases[i].type, length);
            assert_int_equal(check(&r), length == cases[i].length ? CM_OK : CM_CORRUPT);
        }
    for (unsigned type = 0; type < 256; type++)
        if (type < CM_RECORD_SUBMIT || type > CM_RECORD_ABANDON) {
            record_fixed(&r, (uint8_t)type, 8);
            assert_int_equal(check(&r), CM_CORRUPT);
        }
}

/* Every length but the true one is refused, for each variable record. */
static void test_lengths(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        switch (kind) {
        case 0:
            record_submit(&r, 2);
            break;
        case 1:
            record_execute(&r, 2, 2);
            break;
        case 2:
            record_done(&r, 2, 1);
            break;
        case 3:
            record_reply(&r, 2);
            break;
        case 4:
            record_done_failed(&r, "because");
            break;
        default:
            record_reply_failed(&r, "because");
        }
        uint32_t length = r.length;
        for (r.length = 0; r.length < length + 200; r.length++)
            if (r.length != length)
                assert_int_equal(check(&r), CM_CORRUPT);
    }
}

static struct cm_record_submit *submit(void)
{
    record_submit(&r, 2);
    return (void *)r.bytes;
}

static struct cm_tensor_desc *desc(void)
{
    return (struct cm_tensor_desc *)cm_submit_inputs(submit());
}

static struct cm_record_execute *execute(void)
{
    record_execute(&r, 2, 1);
    return (void *)r.bytes;
}

static struct cm_execute_item *execute_item(void)
{
    return (struct cm_execute_item *)cm_execute_first(execute());
}

static struct cm_record_done *done(void)
{
    record_done(&r, 2, 1);
    return (void *)r.bytes;
}

static struct cm_done_item *done_item(void)
{
    return (struct cm_done_item *)cm_done_first(done());
}

static struct cm_record_reply *reply(void)
{
    record_reply(&r, 2);
    return (void *)r.bytes;
}

static struct cm_record_reply *failed_reply(void)
{
    record_reply_failed(&r, "because");
    return (void *)r.bytes;
}

static struct cm_record_done *failed_done(void)
{
    record_done_failed(&r, "because");
    return (void *)r.bytes;
}

/* One broken rule a line: an lvalue in a fresh valid record, and what is put there. */
#define MUTATIONS(X)                               \
    X(submit()->rows, 0)                           \
    X(submit()->output_mask, 0)                    \
    X(submit()->output_mask, 1u << CM_MAX_TENSORS) \
    X(submit()->output_mask, UINT64_MAX)           \
    X(submit()->n_inputs, 1)                       \
    X(submit()->n_inputs, 3)                       \
    X(submit()->n_inputs, 17)                      \
    X(submit()->n_inputs, 255)                     \
    X(submit()->reserved[0], 1)                    \
    X(submit()->reserved[1], 1)                    \
    X(desc()->dtype, CM_DTYPE_NONE)                \
    X(desc()->dtype, 14)                           \
    X(desc()->dtype, 255)                          \
    X(desc()->dtype, CM_FP64)                      \
    X(desc()->rank, 1)                             \
    X(desc()->rank, 9)                             \
    X(desc()->rank, 255)                           \
    X(desc()->index, 1)                            \
    X(desc()->index, 16)                           \
    X(desc()[1].index, 0)                          \
    X(desc()->reserved[4], 1)                      \
    X(desc()->dims[0], -2)                         \
    X(desc()->dims[0], INT64_MIN)                  \
    X(desc()->dims[0], INT64_MAX)                  \
    X(desc()->dims[1], 65)                         \
    X(desc()->slice.length, 511)                   \
    X(desc()->slice.length, 0)                     \
    X(desc()->slice.length, UINT64_MAX)            \
    X(desc()->slice.offset, UINT64_MAX - 511 + 1)  \
    X(desc()->slice.offset, UINT64_MAX)            \
    X(desc()->slice.reserved, 1)                   \
    X(execute()->rows, 3)                          \
    X(execute()->rows, 0)                          \
    X(execute()->n_items, 0)                       \
    X(execute()->n_items, 1)                       \
    X(execute()->n_items, 3)                       \
    X(execute()->n_items, CM_MAX_BATCH_ITEMS + 1)  \
    X(execute()->n_items, UINT16_MAX)              \
    X(execute()->n_inputs, 0)                      \
    X(execute()->n_inputs, 2)                      \
    X(execute()->n_inputs, 17)                     \
    X(execute()->n_inputs, UINT16_MAX)             \
    X(execute_item()->rows, 0)                     \
    X(execute_item()->rows, UINT32_MAX)            \
    X(execute_item()->output_mask, 0)              \
    X(execute_item()->output_mask, 1ull << 63)     \
    X(execute_item()->reserved, 1)                 \
    X(done()->status, CM_INTERNAL)                 \
    X(done()->status, 20)                          \
    X(done()->status, UINT32_MAX)                  \
    X(done()->n_items, 0)                          \
    X(done()->n_items, 1)                          \
    X(done()->n_items, 3)                          \
    X(done()->n_items, CM_MAX_BATCH_ITEMS + 1)     \
    X(done()->text_length, 1)                      \
    X(failed_done()->status, CM_OK)                \
    X(failed_done()->n_items, 1)                   \
    X(failed_done()->text_length, 6)               \
    X(failed_done()->text_length, 8)               \
    X(failed_done()->text_length, CM_MAX_TEXT + 1) \
    X(done_item()->status, CM_INTERNAL)            \
    X(done_item()->status, 1000)                   \
    X(done_item()->n_outputs, 0)                   \
    X(done_item()->n_outputs, 2)                   \
    X(done_item()->n_outputs, 17)                  \
    X(done_item()->reserved, 1)                    \
    X(reply()->status, CM_INTERNAL)                \
    X(reply()->status, UINT32_MAX)                 \
    X(reply()->n_outputs, 0)                       \
    X(reply()->n_outputs, 1)                       \
    X(reply()->n_outputs, 3)                       \
    X(reply()->n_outputs, 17)                      \
    X(reply()->n_outputs, UINT16_MAX)              \
    X(reply()->text_length, 1)                     \
    X(failed_reply()->status, CM_OK)               \
    X(failed_reply()->status, 20)                  \
    X(failed_reply()->n_outputs, 1)                \
    X(failed_reply()->text_length, 0)              \
    X(failed_reply()->text_length, CM_MAX_TEXT + 1)

static void test_mutations(void **state)
{
    (void)state;
#define X(field, value)                                                    \
    do {                                                                   \
        field = (value);                                                   \
        struct cm_error err = {0};                                         \
        enum cm_err rc = cm_record_check(r.type, r.bytes, r.length, &err); \
        if (rc != CM_CORRUPT || err.text[0] == '\0')                       \
            fail_msg(#field " = " #value ": %s", cm_err_name(rc));         \
    } while (0);
    MUTATIONS(X)
#undef X
}

/* A zero-element tensor and a slice that ends at the last byte are legal. */
static void test_edges_pass(void **state)
{
    (void)state;
    struct cm_tensor_desc *d = desc();
    d->dims[0] = 0;
    d->slice.length = 0;
    assert_int_equal(check(&r), CM_OK);
    d = desc();
    d->slice.offset = UINT64_MAX - d->slice.length;
    assert_int_equal(check(&r), CM_OK);
}

static void test_walks(void **state)
{
    (void)state;
    record_execute(&r, 3, 2);
    const struct cm_record_execute *e = (const void *)r.bytes;
    const struct cm_execute_item *item = cm_execute_first(e);
    for (int i = 0; i < 3; i++, item = cm_execute_next(e, item)) {
        assert_int_equal(item->gateway, 2);
        assert_int_equal(cm_execute_inputs(item)[1].index, 1);
    }
    assert_ptr_equal(item, r.bytes + r.length);

    record_done(&r, 3, 2);
    const struct cm_record_done *d = (const void *)r.bytes;
    const struct cm_done_item *result = cm_done_first(d);
    for (int i = 0; i < 3; i++, result = cm_done_next(result))
        assert_int_equal(cm_done_outputs(result)[1].index, 2);
    assert_ptr_equal(result, r.bytes + r.length);

    record_done_failed(&r, "because");
    assert_memory_equal(cm_done_text((const void *)r.bytes), "because", 7);
    record_reply_failed(&r, "because");
    assert_memory_equal(cm_reply_text((const void *)r.bytes), "because", 7);
    record_reply(&r, 2);
    struct cm_shape shape = cm_desc_shape(&cm_reply_outputs((const void *)r.bytes)[1]);
    assert_true(cm_shape_equal(&shape, &(struct cm_shape){2, {4, 64}}));
}

/* Touches what a reader would touch, so that the address sanitizer sees a check that let too much
 * pass. */
static uint64_t walk(uint8_t type, const void *bytes)
{
    uint64_t sum = 0;
    if (type == CM_RECORD_SUBMIT) {
        const struct cm_record_submit *s = bytes;
        for (unsigned i = 0; i < s->n_inputs; i++)
            sum += cm_submit_inputs(s)[i].slice.length;
    } else if (type == CM_RECORD_EXECUTE) {
        const struct cm_record_execute *e = bytes;
        const struct cm_execute_item *item = cm_execute_first(e);
        for (unsigned i = 0; i < e->n_items; i++, item = cm_execute_next(e, item))
            for (unsigned k = 0; k < e->n_inputs; k++)
                sum += cm_execute_inputs(item)[k].slice.length;
    } else if (type == CM_RECORD_DONE) {
        const struct cm_record_done *d = bytes;
        const struct cm_done_item *item = cm_done_first(d);
        for (unsigned i = 0; i < d->n_items; i++, item = cm_done_next(item))
            for (unsigned k = 0; k < item->n_outputs; k++)
                sum += cm_done_outputs(item)[k].slice.length;
        for (unsigned i = 0; i < d->text_length; i++)
            sum += (unsigned char)cm_done_text(d)[i];
    } else if (type == CM_RECORD_REPLY) {
        const struct cm_record_reply *p = bytes;
        for (unsigned i = 0; i < p->n_outputs; i++)
            sum += cm_reply_outputs(p)[i].slice.length;
        for (unsigned i = 0; i < p->text_length; i++)
            sum += (unsigned char)cm_reply_text(p)[i];
    }
    return sum;
}

/* Deterministic damage: some bytes of a valid record, sometimes its length or type. Each case is
 * checked in a heap block of exactly its length. */
static void test_fuzz(void **state)
{
    (void)state;
    uint64_t seed = 0x1d872b41, sum = 0;
    unsigned passed = 0;
    for (int round = 0; round < 200000; round++) {
        uint64_t n = t_random(&seed);
        if (round % 64 == 0)
            switch (n % 6) {
            case 0:
                record_submit(&r, 1 + n / 8 % 4);
                break;
            case 1:
                record_execute(&r, 1 + n / 8 % 4, n / 64 % 3);
                break;
            case 2:
                record_done(&r, 1 + n / 8 % 3, n / 64 % 3);
                break;
            case 3:
                record_reply(&r, 1 + n / 8 % 4);
                break;
            case 4:
                record_done_failed(&r, "the device is gone");
                break;
            default:
                record_reply_failed(&r, "cancelled");
            }
        uint32_t length = r.length;
        uint8_t type = r.type;
        n = t_random(&seed);
        if (n % 16 == 0)
            length = (uint32_t)(n / 16 % (length + 1));
        if (n % 32 == 1)
            type = (uint8_t)(n / 32 % 12);
        unsigned char *bytes = malloc(length > 0 ? length : 1);
        memcpy(bytes, r.bytes, length);
        for (unsigned k = n / 512 % 4; k > 0 && length > 0; k--) {
            uint64_t m = t_random(&seed);
            /* Small values in the fixed part are the ones that come near to being right. */
            uint32_t at = m % 2 ? (uint32_t)(m / 2 % length) : (uint32_t)(m / 2 % 64 % length);
            bytes[at] = m / 1024 % 2 ? (unsigned char)(m / 2048 % 5) : (unsigned char)(m / 2048);
        }
        struct cm_error err;
        if (cm_record_check(type, bytes, length, &err) == CM_OK) {
            sum += walk(type, bytes);
            passed++;
        }
        free(bytes);
    }
    assert_true(passed > 1000 && sum > 0); /* the damage is not so heavy that nothing passes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),       cmocka_unit_test(test_largest_fit),
        cmocka_unit_test(test_fixed_sizes), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_mutations),   cmocka_unit_test(test_edges_pass),
        cmocka_unit_test(test_walks),       cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
