/* Memory planning: buffers that live at the same time never share a byte, on random lifetimes and
 * on shapes of graphs; and the plan is not wasteful where that is easy to say. */
#include "gpu-worker/graph/memplan.h"
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALIGN    128
#define NO_LIMIT SIZE_MAX

static void check(const struct wk_memplan_use *uses, size_t count, size_t total)
{
    for (size_t i = 0; i < count; i++) {
        if (!uses[i].bytes)
            continue;
        assert_int_equal(uses[i].offset % ALIGN, 0);
        assert_true(uses[i].offset + uses[i].bytes <= total);
        for (size_t k = 0; k < i; k++) {
            if (!uses[k].bytes || uses[k].last < uses[i].first || uses[i].last < uses[k].first)
                continue;
            assert_true(uses[k].offset + uses[k].bytes <= uses[i].offset ||
                        uses[i].offset + uses[i].bytes <= uses[k].offset);
        }
    }
}

/* The most bytes that are live in any one step: no plan can be smaller. */
static size_t lower_bound(const struct wk_memplan_use *uses, size_t count, uint32_t steps)
{
    size_t most = 0;
    for (uint32_t step = 0; step < steps; step++) {
        size_t live = 0;
        for (size_t i = 0; i < count; i++)
            if (uses[i].first <= step && step <= uses[i].last)
                live += (uses[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
        most = live > most ? live : most;
    }
    return most;
}

static void random_lifetimes_never_overlap(void **state)
{
    uint64_t random = 11;
    (void)state;
    for (unsigned round = 0; round < 400; round++) {
        size_t count = 1 + kit_next(&random) % 120, total = 0;
        uint32_t steps = 1 + (uint32_t)(kit_next(&random) % 60);
        struct wk_memplan_use uses[128] = {{0}};
        for (size_t i = 0; i < count; i++) {
            uses[i].bytes = kit_next(&random) % 5 ? kit_next(&random) % 100000 : 0;
            uses[i].first = (uint32_t)(kit_next(&random) % steps);
            uses[i].last = uses[i].first + (uint32_t)(kit_next(&random) % (steps - uses[i].first));
        }
        assert_int_equal(wk_memplan(uses, count, ALIGN, NO_LIMIT, &total), CM_OK);
        check(uses, count, total);
        assert_true(total >= lower_bound(uses, count, steps));
        assert_true(total <= 2 * lower_bound(uses, count, steps) + ALIGN);
    }
}

static void a_chain_needs_two_buffers(void **state)
{
    struct wk_memplan_use uses[100] = {{0}};
    size_t total = 0;
    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        uses[i] = (struct wk_memplan_use){.bytes = 4096, .first = i, .last = i + 1};
    assert_int_equal(wk_memplan(uses, 100, ALIGN, NO_LIMIT, &total), CM_OK);
    check(uses, 100, total);
    assert_int_equal(total, 2 * 4096);
}

static void the_smallest_gap_that_fits_is_taken(void **state)
{
    /* Two holes, of 2048 and 1024 bytes, are left while the others live; 1000 bytes go into the
     * smaller one. */
    struct wk_memplan_use uses[] = {
        {.bytes = 8192, .first = 0, .last = 9}, {.bytes = 4096, .first = 0, .last = 9},
        {.bytes = 2048, .first = 0, .last = 1}, {.bytes = 1024, .first = 0, .last = 1},
        {.bytes = 1000, .first = 2, .last = 9},
    };
    size_t total = 0;
    (void)state;
    assert_int_equal(wk_memplan(uses, 5, ALIGN, NO_LIMIT, &total), CM_OK);
    check(uses, 5, total);
    assert_int_equal(total, 8192 + 4096 + 2048 + 1024);
}

static void many_buffers_are_placed_by_class(void **state)
{
    size_t count = 20000, total = 0;
    uint64_t random = 5;
    struct wk_memplan_use *uses = calloc(count, sizeof *uses);
    (void)state;
    assert_non_null(uses);
    for (size_t i = 0; i < count; i++) {
        uses[i].bytes = 1 + kit_next(&random) % 3000;
        uses[i].first = (uint32_t)i;
        uses[i].last = (uint32_t)(i + kit_next(&random) % 20);
    }
    assert_int_equal(wk_memplan(uses, count, ALIGN, NO_LIMIT, &total), CM_OK);
    check(uses, count, total);
    assert_true(total < 4 * lower_bound(uses, count, (uint32_t)count));
    free(uses);
}

static void limits_and_overflow_are_refused(void **state)
{
    struct wk_memplan_use uses[] = {{.bytes = SIZE_MAX - 5, .first = 0, .last = 0},
                                    {.bytes = 4096, .first = 0, .last = 0}};
    size_t total = 77;
    (void)state;
    assert_int_equal(wk_memplan(uses, 2, ALIGN, NO_LIMIT, &total), CM_LIMIT);
    uses[0].bytes = 4096;
    assert_int_equal(wk_memplan(uses, 2, ALIGN, 8191, &total), CM_LIMIT);
    assert_int_equal(total, 77);
    assert_int_equal(wk_memplan(uses, 2, ALIGN, 8192, &total), CM_OK);
    assert_int_equal(total, 8192);
    assert_int_equal(wk_memplan(NULL, 0, ALIGN, 0, &total), CM_OK);
    assert_int_equal(total, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lifetimes_never_overlap),
        cmocka_unit_test(a_chain_needs_two_buffers),
        cmocka_unit_test(the_smallest_gap_that_fits_is_taken),
        cmocka_unit_test(many_buffers_are_placed_by_class),
        cmocka_unit_test(limits_and_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
