/* Outputs' bookkeeping: every hold ends once, stale references change nothing, memory comes back,
 * and a scheduler's death frees exactly what no gateway holds. */
#include "common/check.h"
#include "gpu-worker/outputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define REGION_BYTES (1u << 20)

static unsigned char memory[2][REGION_BYTES];

static struct wk_outputs *make(uint32_t holds)
{
    struct wk_outputs *outputs = NULL;
    struct wk_outputs_options options = {.worker = 77, .max_holds = holds, .max_regions = 2};
    assert_int_equal(wk_outputs_create(&options, &outputs), CM_OK);
    assert_int_equal(wk_outputs_add_region(outputs, 5, 9, REGION_BYTES, memory[0]), CM_OK);
    return outputs;
}

static void one_batch_is_freed_by_its_last_release(void **state)
{
    struct wk_outputs *outputs = make(8);
    struct wk_slab slab;
    struct cm_slab_ref refs[3];
    (void)state;
    assert_int_equal(wk_outputs_reserve(outputs, 1000, &slab), CM_OK);
    assert_int_equal(slab.region, 5);
    assert_int_equal(slab.generation, 9);
    assert_ptr_equal(slab.base, memory[0] + slab.offset);
    for (int i = 0; i < 3; i++)
        assert_int_equal(wk_outputs_hold(outputs, &slab, 1, &refs[i]), CM_OK);
    assert_true(wk_outputs_release(outputs, refs[1]));
    assert_false(wk_outputs_release(outputs, refs[1])); /* twice: stale */
    assert_true(wk_outputs_release(outputs, refs[0]));
    assert_int_equal(wk_outputs_stats(outputs).slabs, 1);
    assert_true(wk_outputs_release(outputs, refs[2]));
    assert_int_equal(wk_outputs_stats(outputs).slabs, 0);
    assert_int_equal(wk_outputs_stats(outputs).bytes_used, 0);
    assert_int_equal(wk_outputs_stats(outputs).stale, 1);
    wk_outputs_destroy(outputs);
}

static void foreign_and_wild_references_are_refused(void **state)
{
    struct wk_outputs *outputs = make(4);
    struct wk_slab slab;
    struct cm_slab_ref ref;
    (void)state;
    assert_int_equal(wk_outputs_reserve(outputs, 1, &slab), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 1, &ref), CM_OK);
    struct cm_slab_ref wild[] = {{78, ref.slab, ref.generation},
                                 {77, 4, ref.generation},
                                 {77, UINT32_MAX, ref.generation},
                                 {77, ref.slab, ref.generation + 1},
                                 {77, ref.slab ^ 1, 1}};
    for (size_t i = 0; i < CM_COUNT_OF(wild); i++)
        assert_false(wk_outputs_release(outputs, wild[i]));
    assert_int_equal(wk_outputs_stats(outputs).holds, 1);
    assert_true(wk_outputs_release(outputs, ref));
    wk_outputs_destroy(outputs);
}

static void limits_are_errors(void **state)
{
    struct wk_outputs *outputs = make(2);
    struct wk_slab a, b, c;
    struct cm_slab_ref ref;
    (void)state;
    assert_int_equal(wk_outputs_reserve(outputs, REGION_BYTES + 1, &a), CM_LIMIT);
    assert_int_equal(wk_outputs_reserve(outputs, REGION_BYTES, &a), CM_OK);
    assert_int_equal(wk_outputs_reserve(outputs, 1, &b), CM_FULL);
    assert_int_equal(wk_outputs_add_region(outputs, 6, 1, REGION_BYTES, memory[1]), CM_OK);
    assert_int_equal(wk_outputs_add_region(outputs, 7, 1, REGION_BYTES, memory[1]), CM_FULL);
    assert_int_equal(wk_outputs_reserve(outputs, 1, &b), CM_OK);
    assert_int_equal(b.region, 6);
    assert_int_equal(wk_outputs_reserve(outputs, 1, &c), CM_FULL); /* no slab left */
    assert_int_equal(wk_outputs_hold(outputs, &a, 1, &ref), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &b, 1, &ref), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &b, 1, &ref), CM_FULL);
    wk_outputs_abandon(outputs, &a);
    wk_outputs_abandon(outputs, &b);
    assert_int_equal(wk_outputs_stats(outputs).holds, 0);
    uint64_t idle = 0;
    assert_true(wk_outputs_take_idle_region(outputs, &idle));
    assert_false(wk_outputs_take_idle_region(outputs, &idle)); /* never the last one */
    wk_outputs_destroy(outputs);
}

static void a_gateways_death_frees_its_holds_only(void **state)
{
    struct wk_outputs *outputs = make(8);
    struct wk_slab slab;
    struct cm_slab_ref of_one, of_two;
    (void)state;
    assert_int_equal(wk_outputs_reserve(outputs, 64, &slab), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 1, &of_one), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 2, &of_two), CM_OK);
    assert_int_equal(wk_outputs_drop(outputs, 1), 1);
    assert_false(wk_outputs_release(outputs, of_one));
    assert_int_equal(wk_outputs_stats(outputs).slabs, 1);
    assert_true(wk_outputs_release(outputs, of_two));
    assert_int_equal(wk_outputs_stats(outputs).slabs, 0);
    wk_outputs_destroy(outputs);
}

static void a_schedulers_death_frees_what_is_not_held(void **state)
{
    struct wk_outputs *outputs = make(16);
    struct wk_slab slab;
    struct cm_slab_ref kept, lost, of_old_gateway, of_next, fresh;
    (void)state;
    assert_int_equal(wk_outputs_reserve(outputs, 64, &slab), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 20, &kept), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 20, &lost), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 10, &of_old_gateway), CM_OK);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 30, &of_next), CM_OK);
    wk_outputs_limbo(outputs);
    assert_int_equal(wk_outputs_hold(outputs, &slab, 20, &fresh), CM_OK); /* the new scheduler's */
    assert_true(wk_outputs_held(outputs, kept));
    assert_int_equal(wk_outputs_resumed(outputs, 20), 2); /* lost, and the older gateway's */
    assert_false(wk_outputs_release(outputs, lost));
    assert_false(wk_outputs_held(outputs, of_old_gateway));
    assert_true(wk_outputs_release(outputs, kept));
    assert_true(wk_outputs_release(outputs, fresh));
    assert_true(wk_outputs_release(outputs, of_next)); /* its own gateway has not spoken yet */
    assert_int_equal(wk_outputs_stats(outputs).slabs, 0);
    wk_outputs_destroy(outputs);
}

/* Random life: a shadow list of references says what must be alive. */
static void random_lives_leave_nothing(void **state)
{
    enum { HOLDS = 64, STEPS = 20000 };
    struct wk_outputs *outputs = make(HOLDS);
    struct cm_slab_ref alive[HOLDS];
    size_t n = 0;
    (void)state;
    assert_int_equal(wk_outputs_add_region(outputs, 6, 1, REGION_BYTES, memory[1]), CM_OK);
    srand(4711);
    for (int step = 0; step < STEPS; step++) {
        if (rand() % 2) {
            struct wk_slab slab;
            size_t bytes = (size_t)(rand() % 60000) + 1;
            int items = rand() % 4 + 1;
            if (wk_outputs_reserve(outputs, bytes, &slab) != CM_OK)
                continue;
            int made = 0;
            for (int i = 0; i < items; i++)
                if (wk_outputs_hold(outputs, &slab, 1 + (uint64_t)(rand() % 3), &alive[n]) ==
                    CM_OK) {
                    n++;
                    made++;
                }
            if (!made)
                wk_outputs_abandon(outputs, &slab);
        } else if (n > 0) {
            size_t i = (size_t)rand() % n;
            struct cm_slab_ref ref = alive[i];
            alive[i] = alive[--n];
            assert_true(wk_outputs_release(outputs, ref));
            assert_false(wk_outputs_release(outputs, ref));
        }
        assert_int_equal(wk_outputs_stats(outputs).holds, n);
    }
    while (n > 0)
        assert_true(wk_outputs_release(outputs, alive[--n]));
    struct wk_outputs_stats stats = wk_outputs_stats(outputs);
    assert_int_equal(stats.slabs, 0);
    assert_int_equal(stats.bytes_used, 0);
    wk_outputs_destroy(outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_batch_is_freed_by_its_last_release),
        cmocka_unit_test(foreign_and_wild_references_are_refused),
        cmocka_unit_test(limits_are_errors),
        cmocka_unit_test(a_gateways_death_frees_its_holds_only),
        cmocka_unit_test(a_schedulers_death_frees_what_is_not_held),
        cmocka_unit_test(random_lives_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
