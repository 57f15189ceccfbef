/* The ledger without sockets: the table of states, the pool, the budget, time as an argument. */
#include "tests/harness/t.h"

#include "common/check.h"
#include "common/clock.h"
#include "memmgr/ledger_priv.h"
#include "tests/harness/alloc.h"

#include <string.h>
#include <unistd.h>

#define KIB 1024u
#define MIB (1024u * 1024u)

/* --- States --- */

/* The legal edges once more, written by hand, so that the table is checked and not copied. */
static const char *const legal[] = {
    "new GRANT granted",      "new KEEP idle",         "new ORPHAN orphaned",
    "new AWAIT awaited",      "new ADOPT granted",     "new WRITE writing",
    "new SEAL sealed",        "new DROP gone",         "idle GRANT granted",
    "idle DROP gone",         "granted KEEP idle",     "granted ORPHAN orphaned",
    "granted DROP gone",      "orphaned KEEP idle",    "orphaned DROP gone",
    "orphaned ADOPT granted", "awaited DROP gone",     "awaited ORPHAN orphaned",
    "writing SEAL sealed",    "awaited ADOPT granted", "writing DROP gone",
    "sealed DROP gone",
};

static void test_every_edge(void **state)
{
    (void)state;
    static const char *const events[] = {
#define X(name) #name,
        MM_EVENT_MAP(X)
#undef X
    };
    unsigned found = 0;
    for (unsigned s = 0; s < MM_STATE_COUNT; s++) {
        for (unsigned e = 0; e < MM_EVENT_COUNT; e++) {
            enum mm_state next = MM_STATE_NEW; /* nothing leads there */
            char edge[64] = "";
            if (mm_state_next((enum mm_state)s, (enum mm_event)e, &next))
                snprintf(edge, sizeof edge, "%s %s %s", mm_state_name((enum mm_state)s), events[e],
                         mm_state_name(next));
            else
                assert_int_equal(next, MM_STATE_NEW);
            bool listed = false;
            for (size_t i = 0; i < CM_COUNT_OF(legal); i++)
                listed = listed || strcmp(legal[i], edge) == 0;
            if (edge[0] && !listed)
                fail_msg("edge \"%s\" is not legal", edge);
            found += listed;
        }
    }
    assert_int_equal(found, CM_COUNT_OF(legal));
}

/* --- Regions --- */

static struct mm_region *add(struct mm_ledger *ledger, enum mm_kind kind, size_t bytes)
{
    struct cm_error error;
    struct mm_region *region;
    int fd;
    assert_int_equal(mm_memory_create(bytes, MM_SEALS_LEASE, &error, &fd), CM_OK);
    const struct mm_region_init init = {.kind = kind, .bytes = bytes, .fd = fd};
    assert_int_equal(mm_ledger_add(ledger, &init, 1, &error, &region), CM_OK);
    return region;
}

static void pool(struct mm_ledger *ledger, size_t bytes, uint64_t now_ns)
{
    struct mm_region *region = add(ledger, MM_KIND_LEASE, bytes);
    mm_ledger_move(ledger, region, MM_EVENT_GRANT, now_ns);
    mm_ledger_retire(ledger, region, now_ns);
}

static void test_pool_and_generations(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    mm_ledger_init(&ledger, 64 * MIB, 1000);
    struct mm_region *a = add(&ledger, MM_KIND_LEASE, MIB);
    assert_int_equal(a->number, 1001);
    assert_int_equal(ledger.charged, MIB);
    mm_ledger_move(&ledger, a, MM_EVENT_GRANT, 5);
    assert_int_equal(a->generation, 1);
    mm_ledger_retire(&ledger, a, 6);
    assert_int_equal(a->state, MM_STATE_IDLE);
    assert_ptr_equal(mm_ledger_find_idle(&ledger, MIB), a);
    assert_null(mm_ledger_find_idle(&ledger, 2 * MIB));
    mm_ledger_move(&ledger, a, MM_EVENT_GRANT, 7);
    assert_int_equal(a->generation, 2);
    assert_ptr_equal(mm_ledger_find(&ledger, 1001), a);
    assert_null(mm_ledger_find(&ledger, 1002));
    a->tainted = true; /* somebody vanished with it */
    mm_ledger_retire(&ledger, a, 8);
    assert_null(mm_ledger_find(&ledger, 1001));
    assert_int_equal(ledger.charged, 0);
    mm_ledger_fini(&ledger);
}

static void test_pool_has_a_limit(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    mm_ledger_init(&ledger, 64 * MIB, 1000);
    struct mm_region *granted[MM_IDLE_CLASS_MAX + 3];
    for (unsigned i = 0; i < CM_COUNT_OF(granted); i++) {
        granted[i] = add(&ledger, MM_KIND_LEASE, 64 * KIB);
        mm_ledger_move(&ledger, granted[i], MM_EVENT_GRANT, 1);
    }
    for (unsigned i = 0; i < CM_COUNT_OF(granted); i++)
        mm_ledger_retire(&ledger, granted[i], 2);
    assert_int_equal(ledger.n_regions, MM_IDLE_CLASS_MAX);
    mm_ledger_fini(&ledger);
    assert_int_equal(ledger.charged, 0);
}

static void test_budget_says_the_shortfall(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    struct cm_error error;
    mm_ledger_init(&ledger, 4 * MIB, 1000);
    struct mm_region *held = add(&ledger, MM_KIND_LEASE, 3 * MIB);
    assert_int_equal(mm_ledger_make_room(&ledger, 2 * MIB, "a lease", &error), CM_LIMIT);
    assert_string_equal(error.text, "a lease needs 2097152 bytes, 1048576 more than memmgr can "
                                    "give: budget 4194304, in use 3145728");
    assert_int_equal(mm_ledger_make_room(&ledger, UINT64_MAX, "a lease", &error), CM_LIMIT);
    assert_int_equal(mm_ledger_make_room(&ledger, MIB, "a lease", &error), CM_OK);
    mm_ledger_move(&ledger, held, MM_EVENT_DROP, 0);
    mm_ledger_fini(&ledger);
}

static void test_budget_evicts_oldest_first(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    struct cm_error error;
    mm_ledger_init(&ledger, 4 * MIB, 1000);
    struct mm_region *weights = add(&ledger, MM_KIND_WEIGHTS, MIB);
    mm_ledger_move(&ledger, weights, MM_EVENT_WRITE, 1);
    mm_ledger_move(&ledger, weights, MM_EVENT_SEAL, 2);
    pool(&ledger, MIB, 10);
    pool(&ledger, 2 * MIB, 20);
    /* What cannot help is not thrown away. */
    assert_int_equal(mm_ledger_make_room(&ledger, 5 * MIB, "x", &error), CM_LIMIT);
    assert_int_equal(ledger.n_regions, 3);
    assert_int_equal(mm_ledger_make_room(&ledger, MIB, "x", &error), CM_OK);
    assert_null(mm_ledger_find_idle(&ledger, MIB));
    assert_non_null(mm_ledger_find_idle(&ledger, 2 * MIB));
    assert_int_equal(mm_ledger_make_room(&ledger, 4 * MIB, "x", &error), CM_OK);
    assert_int_equal(ledger.n_regions, 0);
    assert_int_equal(ledger.counters.regions_evicted, 3);
    mm_ledger_fini(&ledger);
}

static void test_time(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    struct mm_holds conn = TAILQ_HEAD_INITIALIZER(conn);
    mm_ledger_init(&ledger, 64 * MIB, 1000);
    pool(&ledger, MIB, CM_NS_PER_S);
    mm_ledger_trim(&ledger, CM_NS_PER_S + MM_IDLE_NS - 1, 0);
    assert_int_equal(ledger.n_regions, 1);
    mm_ledger_trim(&ledger, CM_NS_PER_S + MM_IDLE_NS, 0);
    assert_int_equal(ledger.n_regions, 0);

    struct mm_region *weights = add(&ledger, MM_KIND_WEIGHTS, MIB);
    mm_ledger_move(&ledger, weights, MM_EVENT_WRITE, 1);
    mm_ledger_move(&ledger, weights, MM_EVENT_SEAL, 2);
    struct mm_hold *hold = mm_ledger_hold(weights, NULL, false, &conn);
    mm_ledger_trim(&ledger, 1000 * CM_NS_PER_S, 0);
    assert_int_equal(ledger.n_regions, 1); /* held, however old */
    mm_ledger_unhold(hold, &conn, 1000 * CM_NS_PER_S);
    mm_ledger_trim(&ledger, 1001 * CM_NS_PER_S, 0);
    assert_int_equal(ledger.n_regions, 1); /* a killed worker will want them again */
    mm_ledger_trim(&ledger, 1060 * CM_NS_PER_S, 1030 * CM_NS_PER_S);
    assert_int_equal(ledger.n_regions, 1); /* processes are still coming and going */
    mm_ledger_trim(&ledger, 1090 * CM_NS_PER_S, 1030 * CM_NS_PER_S);
    assert_int_equal(ledger.n_regions, 0);
    mm_ledger_fini(&ledger);
}

static void test_numbers_only_grow(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    mm_ledger_init(&ledger, MIB, 1000);
    assert_int_equal(mm_ledger_number(&ledger), 1001);
    mm_ledger_saw(&ledger, 5000);
    mm_ledger_saw(&ledger, 4000);
    assert_int_equal(mm_ledger_number(&ledger), 5001);
    mm_ledger_fini(&ledger);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct mm_ledger ledger;
    struct cm_error error;
    struct mm_region *region;
    struct mm_holds conn = TAILQ_HEAD_INITIALIZER(conn);
    mm_ledger_init(&ledger, MIB, 1000);
    t_alloc_fail_at(1);
    const struct mm_region_init init = {.kind = MM_KIND_LEASE, .bytes = 4096, .fd = -1};
    assert_int_equal(mm_ledger_add(&ledger, &init, 1, &error, &region), CM_NOMEM);
    assert_true(t_alloc_failed());
    assert_int_equal(ledger.charged, 0);
    region = add(&ledger, MM_KIND_LEASE, 64 * KIB);
    t_alloc_fail_at(1);
    assert_null(mm_ledger_hold(region, NULL, true, &conn));
    assert_true(t_alloc_failed());
    assert_null(region->owner);
    mm_ledger_move(&ledger, region, MM_EVENT_DROP, 1);
    mm_ledger_fini(&ledger);
}

/* --- Memory --- */

static void test_memory_is_checked(void **state)
{
    (void)state;
    struct cm_error error;
    struct mm_memory_id id;
    int fd, readonly, ends[2];
    assert_int_equal(mm_memory_create(64 * KIB, MM_SEALS_LEASE, &error, &fd), CM_OK);
    assert_int_equal(mm_memory_resident(fd), 0);
    assert_int_equal(mm_memory_populate(fd, 64 * KIB, &error), CM_OK);
    assert_int_equal(mm_memory_resident(fd), 64 * KIB);
    assert_int_equal(mm_memory_check(fd, 64 * KIB, MM_SEALS_LEASE, true, &error, &id), CM_OK);
    assert_int_equal(mm_memory_check(fd, 128 * KIB, MM_SEALS_LEASE, true, &error, &id), CM_CORRUPT);
    assert_int_equal(mm_memory_check(fd, 64 * KIB, MM_SEALS_LEASE, false, &error, &id), CM_CORRUPT);
    assert_int_equal(mm_memory_check(fd, 64 * KIB, MM_SEALS_SEALED, true, &error, &id), CM_CORRUPT);
    assert_int_equal(mm_memory_readonly(fd, &error, &readonly), CM_OK);
    struct mm_memory_id same;
    assert_int_equal(mm_memory_check(readonly, 64 * KIB, MM_SEALS_LEASE, false, &error, &same),
                     CM_OK);
    assert_int_equal(id.inode, same.inode);
    void *base;
    assert_int_equal(mm_memory_map(readonly, 64 * KIB, true, &error, &base), CM_PERMISSION);
    assert_int_equal(ftruncate(fd, 0), -1); /* the seals hold */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(mm_memory_check(ends[0], 0, 0, false, &error, &id), CM_CORRUPT);
    close(ends[0]);
    close(ends[1]);
    close(readonly);
    close(fd);
}

static void test_seal_needs_unmapping(void **state)
{
    (void)state;
    struct cm_error error;
    int fd;
    void *base;
    assert_int_equal(mm_memory_create(64 * KIB, MM_SEALS_WRITING, &error, &fd), CM_OK);
    assert_int_equal(mm_memory_map(fd, 64 * KIB, true, &error, &base), CM_OK);
    assert_int_equal(mm_memory_seal(fd, MM_SEALS_SEALED, &error), CM_PRECONDITION);
    mm_memory_unmap(base, 64 * KIB);
    assert_int_equal(mm_memory_seal(fd, MM_SEALS_SEALED, &error), CM_OK);
    assert_int_equal(mm_memory_map(fd, 64 * KIB, true, &error, &base), CM_PERMISSION);
    close(fd);
    size_t rounded;
    assert_false(mm_memory_round(SIZE_MAX, &rounded));
    assert_true(mm_memory_round(0, &rounded));
    assert_int_equal(rounded, 0);
    /* Nothing at all is legal too. */
    assert_int_equal(mm_memory_create(0, MM_SEALS_WRITING, &error, &fd), CM_OK);
    assert_int_equal(mm_memory_populate(fd, 0, &error), CM_OK);
    assert_int_equal(mm_memory_seal(fd, MM_SEALS_SEALED, &error), CM_OK);
    assert_int_equal(mm_memory_map(fd, 0, false, &error, &base), CM_OK);
    assert_null(base);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_edge),
        cmocka_unit_test(test_pool_and_generations),
        cmocka_unit_test(test_pool_has_a_limit),
        cmocka_unit_test(test_budget_says_the_shortfall),
        cmocka_unit_test(test_budget_evicts_oldest_first),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_numbers_only_grow),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_memory_is_checked),
        cmocka_unit_test(test_seal_needs_unmapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
