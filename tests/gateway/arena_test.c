/* Input memory: blocks of several leases, limits, growing and shrinking, two threads. */
#include "common/clock.h"
#include "gateway/arena.h"
#include "tests/harness/t.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024u * 1024u)

/* A lease without memmgr; its memory is not needed by the arena, except where a test writes. */
static struct mm_lease *lease(uint64_t region, size_t bytes, bool with_memory)
{
    struct mm_lease *made = calloc(1, sizeof *made);
    made->region = region;
    made->generation = 1;
    made->writable = true;
    made->bytes = bytes;
    made->base = with_memory ? malloc(bytes) : (unsigned char *)(uintptr_t)(region << 32);
    return made;
}

static void nothing_without_a_lease(void **state)
{
    (void)state;
    struct gw_arena *arena;
    struct gw_block block;
    assert_int_equal(gw_arena_create(256 * MIB, &arena), CM_OK);
    assert_int_equal(gw_arena_wants(arena), GW_ARENA_LEASE); /* ahead of need */
    assert_int_equal(gw_arena_alloc(arena, 100, &block), CM_FULL);
    gw_arena_expect(arena, GW_ARENA_LEASE, true);
    assert_int_equal(gw_arena_wants(arena), 0); /* one at a time */
    gw_arena_expect(arena, GW_ARENA_LEASE, false);
    assert_int_equal(gw_arena_wants(arena), GW_ARENA_LEASE);
    gw_arena_destroy(arena);
}

static void blocks_come_and_go(void **state)
{
    (void)state;
    struct gw_arena *arena;
    struct gw_block a, b;
    struct mm_lease *first = lease(1, 64 * MIB, false), *second = lease(2, 64 * MIB, false);
    assert_int_equal(gw_arena_create(256 * MIB, &arena), CM_OK);
    assert_true(gw_arena_add(arena, first));
    assert_int_equal(gw_arena_wants(arena), 0);
    assert_int_equal(gw_arena_alloc(arena, 40 * MIB, &a), CM_OK);
    assert_int_equal(a.region, 1);
    assert_int_equal(a.generation, 1);
    assert_true(a.base == first->base + a.offset);
    assert_int_equal(gw_arena_wants(arena), GW_ARENA_LEASE); /* over half is in use */
    assert_int_equal(gw_arena_alloc(arena, 1, &b), CM_FULL);
    assert_true(gw_arena_add(arena, second));
    assert_int_equal(gw_arena_alloc(arena, 0, &b), CM_OK);
    assert_int_equal(b.region, 2);
    struct gw_arena_stats stats = gw_arena_stats(arena);
    assert_int_equal(stats.leases, 2);
    assert_int_equal(stats.blocks, 2);
    assert_int_equal(stats.bytes, 128 * MIB);
    assert_null(gw_arena_pop(arena, cm_now_ns(), 0, false)); /* both in use */
    gw_arena_free(arena, &a);
    assert_null(a.base);
    gw_arena_free(arena, &a); /* nothing */
    assert_ptr_equal(gw_arena_pop(arena, cm_now_ns() + 1, 0, false), first);
    gw_arena_free(arena, &b);
    assert_null(gw_arena_pop(arena, cm_now_ns() + CM_NS_PER_S, 0, false)); /* the last one stays */
    assert_ptr_equal(gw_arena_pop(arena, cm_now_ns(), 0, true), second);
    gw_arena_destroy(arena);
    free(first);
    free(second);
}

static void limits_hold(void **state)
{
    (void)state;
    struct gw_arena *arena;
    struct gw_block block;
    struct mm_lease *first = lease(1, 64 * MIB, false), *second = lease(2, 64 * MIB, false);
    assert_int_equal(gw_arena_create(128 * MIB, &arena), CM_OK);
    assert_int_equal(gw_arena_alloc(arena, 128 * MIB + 1, &block), CM_LIMIT);
    assert_true(gw_arena_add(arena, first));
    assert_true(gw_arena_add(arena, second));
    assert_int_equal(gw_arena_alloc(arena, 65 * MIB, &block), CM_LIMIT); /* no room for a larger */
    assert_int_equal(gw_arena_wants(arena), 0);
    gw_arena_pop(arena, cm_now_ns(), 0, true);
    gw_arena_pop(arena, cm_now_ns(), 0, true);
    gw_arena_destroy(arena);
    free(first);
    free(second);
}

static void a_large_request_asks_for_a_large_lease(void **state)
{
    (void)state;
    struct gw_arena *arena;
    struct gw_block block;
    assert_int_equal(gw_arena_create(512 * MIB, &arena), CM_OK);
    assert_int_equal(gw_arena_alloc(arena, 100 * MIB, &block), CM_FULL);
    assert_int_equal(gw_arena_wants(arena), 128 * MIB);
    gw_arena_forget(arena);
    assert_int_equal(gw_arena_wants(arena), GW_ARENA_LEASE);
    gw_arena_destroy(arena);
}

static void a_small_limit_gives_a_small_lease(void **state)
{
    (void)state;
    struct gw_arena *arena;
    assert_int_equal(gw_arena_create(32 * MIB, &arena), CM_OK);
    assert_int_equal(gw_arena_wants(arena), 32 * MIB);
    gw_arena_destroy(arena);
}

struct user {
    struct gw_arena *arena;
    uint64_t seed;
};

/* Takes, marks, checks and gives back blocks of any size. */
static void *use(void *ctx)
{
    struct user *user = ctx;
    struct gw_block blocks[16] = {0};
    size_t lengths[16] = {0};
    for (int i = 0; i < 20000; i++) {
        size_t k = t_random(&user->seed) % 16;
        if (blocks[k].base) {
            unsigned char mark = (unsigned char)(0xa0 + k);
            for (size_t at = 0; at < lengths[k]; at += 97)
                if (blocks[k].base[at] != mark)
                    return "a block changed under its owner";
            gw_arena_free(user->arena, &blocks[k]);
        } else {
            lengths[k] = 1 + t_random(&user->seed) % 5000;
            if (gw_arena_alloc(user->arena, lengths[k], &blocks[k]) == CM_OK)
                memset(blocks[k].base, (int)(0xa0 + k), lengths[k]);
        }
    }
    for (size_t k = 0; k < 16; k++)
        gw_arena_free(user->arena, &blocks[k]);
    return NULL;
}

static void two_threads_share_it(void **state)
{
    (void)state;
    struct gw_arena *arena;
    struct mm_lease *first = lease(1, 256 * 1024, true);
    assert_int_equal(gw_arena_create(MIB, &arena), CM_OK);
    assert_true(gw_arena_add(arena, first));
    struct user users[2] = {{arena, 41}, {arena, 42}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *failure;
        pthread_join(threads[i], &failure);
        assert_null(failure);
    }
    assert_int_equal(gw_arena_stats(arena).used, 0);
    assert_ptr_equal(gw_arena_pop(arena, cm_now_ns(), 0, true), first);
    gw_arena_destroy(arena);
    free(first->base);
    free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_without_a_lease),
        cmocka_unit_test(blocks_come_and_go),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(a_large_request_asks_for_a_large_lease),
        cmocka_unit_test(a_small_limit_gives_a_small_lease),
        cmocka_unit_test(two_threads_share_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
