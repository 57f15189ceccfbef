/* The buddy allocator: sizes, limits, no overlap, everything merges back. */
#include "tests/harness/t.h"

#include "common/check.h"
#include "memmgr/buddy.h"
#include "tests/harness/alloc.h"

#include <string.h>

static void test_rounds_and_merges(void **state)
{
    (void)state;
    struct mm_buddy *buddy;
    assert_int_equal(mm_buddy_create(1024, 64, &buddy), CM_OK);
    size_t a, b, c;
    assert_int_equal(mm_buddy_alloc(buddy, 1, &a), CM_OK);
    assert_int_equal(mm_buddy_alloc(buddy, 65, &b), CM_OK);
    assert_int_equal(mm_buddy_stats(buddy).used, 64 + 128);
    assert_int_equal(b % 128, 0);
    assert_int_equal(mm_buddy_stats(buddy).blocks, 2);
    assert_int_equal(mm_buddy_stats(buddy).largest_free, 512);
    assert_int_equal(mm_buddy_alloc(buddy, 1024, &c), CM_FULL);
    mm_buddy_free(buddy, a);
    mm_buddy_free(buddy, b);
    assert_int_equal(mm_buddy_stats(buddy).used, 0);
    assert_int_equal(mm_buddy_alloc(buddy, 1024, &c), CM_OK);
    assert_int_equal(c, 0);
    assert_int_equal(mm_buddy_stats(buddy).largest_free, 0);
    mm_buddy_free(buddy, c);
    mm_buddy_destroy(buddy);
}

static void test_fills_completely(void **state)
{
    (void)state;
    struct mm_buddy *buddy;
    assert_int_equal(mm_buddy_create(64 * 256, 64, &buddy), CM_OK);
    bool seen[256] = {false};
    size_t offset;
    for (int i = 0; i < 256; i++) {
        assert_int_equal(mm_buddy_alloc(buddy, 64, &offset), CM_OK);
        assert_int_equal(offset % 64, 0);
        assert_false(seen[offset / 64]);
        seen[offset / 64] = true;
    }
    assert_int_equal(mm_buddy_alloc(buddy, 1, &offset), CM_FULL);
    for (size_t i = 0; i < 256; i++)
        mm_buddy_free(buddy, i * 64);
    assert_int_equal(mm_buddy_stats(buddy).largest_free, 64 * 256);
    mm_buddy_destroy(buddy);
}

static void test_bad_sizes(void **state)
{
    (void)state;
    struct mm_buddy *buddy;
    size_t offset;
    assert_int_equal(mm_buddy_create(1000, 64, &buddy), CM_INVALID);
    assert_int_equal(mm_buddy_create(1024, 48, &buddy), CM_INVALID);
    assert_int_equal(mm_buddy_create(64, 128, &buddy), CM_INVALID);
    assert_int_equal(mm_buddy_create(0, 0, &buddy), CM_INVALID);
    assert_int_equal(mm_buddy_create((size_t)1 << 40, 64, &buddy), CM_INVALID);
    assert_int_equal(mm_buddy_create(64, 64, &buddy), CM_OK);
    assert_int_equal(mm_buddy_alloc(buddy, 0, &offset), CM_INVALID);
    assert_int_equal(mm_buddy_alloc(buddy, 65, &offset), CM_LIMIT);
    assert_int_equal(mm_buddy_alloc(buddy, SIZE_MAX, &offset), CM_LIMIT);
    assert_int_equal(mm_buddy_alloc(buddy, 64, &offset), CM_OK);
    mm_buddy_free(buddy, offset);
    mm_buddy_destroy(buddy);
    mm_buddy_destroy(NULL);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (unsigned n = 1;; n++) {
        struct mm_buddy *buddy;
        t_alloc_fail_at(n);
        enum cm_err code = mm_buddy_create(4096, 64, &buddy);
        if (!t_alloc_failed()) {
            assert_int_equal(code, CM_OK);
            mm_buddy_destroy(buddy);
            assert_int_equal(n, 3);
            break;
        }
        assert_int_equal(code, CM_NOMEM);
    }
}

#define UNITS 1024
#define LIVE  512

struct block {
    size_t first, count;
};

/* A model that cannot be wrong: one byte a unit. */
static void take(unsigned char *units, struct block block)
{
    for (size_t i = 0; i < block.count; i++) {
        assert_int_equal(units[block.first + i], 0);
        units[block.first + i] = 1;
    }
}

static size_t largest_hole(const unsigned char *units)
{
    for (size_t size = UNITS; size > 0; size /= 2) {
        for (size_t at = 0; at < UNITS; at += size) {
            if (!memchr(units + at, 1, size))
                return size;
        }
    }
    return 0;
}

static void test_random(void **state)
{
    (void)state;
    uint64_t seed = 20261130;
    for (int round = 0; round < 20; round++) {
        struct mm_buddy *buddy;
        static unsigned char units[UNITS];
        struct block live[LIVE];
        size_t n_live = 0, used = 0;
        memset(units, 0, sizeof units);
        assert_int_equal(mm_buddy_create(UNITS * 128, 128, &buddy), CM_OK);
        for (int step = 0; step < 4000; step++) {
            size_t size = t_random(&seed) % (1u << (t_random(&seed) % 15)) + 1, offset;
            if (n_live < LIVE && t_random(&seed) % 100 < 55) {
                size_t count = 1;
                while (count * 128 < size)
                    count *= 2;
                enum cm_err code = mm_buddy_alloc(buddy, size, &offset);
                assert_int_equal(code, largest_hole(units) >= count ? CM_OK : CM_FULL);
                if (code != CM_OK)
                    continue;
                assert_int_equal(offset % (count * 128), 0);
                live[n_live] = (struct block){offset / 128, count};
                take(units, live[n_live++]);
                used += count * 128;
            } else if (n_live > 0) {
                size_t which = t_random(&seed) % n_live;
                struct block gone = live[which];
                live[which] = live[--n_live];
                memset(units + gone.first, 0, gone.count);
                mm_buddy_free(buddy, gone.first * 128);
                used -= gone.count * 128;
            }
            struct mm_buddy_stats stats = mm_buddy_stats(buddy);
            assert_int_equal(stats.used, used);
            assert_int_equal(stats.blocks, n_live);
            assert_int_equal(stats.largest_free, largest_hole(units) * 128);
        }
        while (n_live > 0)
            mm_buddy_free(buddy, live[--n_live].first * 128);
        assert_int_equal(mm_buddy_stats(buddy).largest_free, UNITS * 128);
        mm_buddy_destroy(buddy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_and_merges),
        cmocka_unit_test(test_fills_completely),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
