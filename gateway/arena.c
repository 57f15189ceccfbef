/* Input memory: see arena.h for threads. */
#include "gateway/arena.h"

#include "common/check.h"
#include "common/clock.h"
#include "memmgr/buddy.h"

#include <pthread.h>
#include <stdlib.h>

struct arena_lease {
    struct mm_lease *lease; /* NULL: free entry */
    struct mm_buddy *buddy;
    size_t blocks;
    uint64_t idle_since_ns; /* while blocks is 0 */
};

struct gw_arena {
    pthread_mutex_t lock; /* all below */
    size_t limit;
    size_t bytes; /* of leases */
    size_t used;  /* rounded blocks */
    size_t blocks;
    size_t expected; /* bytes of leases that are on their way */
    size_t refused;  /* largest request refused since the last growth */
    struct arena_lease leases[GW_ARENA_LEASES_MAX];
};

enum cm_err gw_arena_create(size_t limit, struct gw_arena **ret_arena)
{
    struct gw_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return CM_NOMEM;
    arena->limit = limit;
    pthread_mutex_init(&arena->lock, NULL);
    *ret_arena = arena;
    return CM_OK;
}

void gw_arena_destroy(struct gw_arena *arena)
{
    if (!arena)
        return;
    CM_ASSERT(arena->blocks == 0);
    for (size_t i = 0; i < GW_ARENA_LEASES_MAX; i++)
        mm_buddy_destroy(arena->leases[i].buddy);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

static size_t round_up(size_t bytes)
{
    size_t size = GW_ARENA_MIN_BLOCK;
    while (size < bytes)
        size *= 2;
    return size;
}

static bool alloc_locked(struct gw_arena *arena, size_t size, struct gw_block *ret)
{
    for (uint32_t i = 0; i < GW_ARENA_LEASES_MAX; i++) {
        struct arena_lease *entry = &arena->leases[i];
        size_t offset;
        if (!entry->lease || mm_buddy_alloc(entry->buddy, size, &offset) != CM_OK)
            continue;
        entry->blocks++;
        arena->used += size;
        arena->blocks++;
        *ret = (struct gw_block){.base = entry->lease->base + offset,
                                 .region = entry->lease->region,
                                 .offset = offset,
                                 .size = size,
                                 .generation = entry->lease->generation,
                                 .lease = i};
        return true;
    }
    return false;
}

enum cm_err gw_arena_alloc(struct gw_arena *arena, size_t bytes, struct gw_block *ret_block)
{
    if (bytes > arena->limit || bytes > MM_LEASE_MAX)
        return CM_LIMIT;
    size_t size = round_up(bytes);
    enum cm_err code = CM_OK;
    pthread_mutex_lock(&arena->lock);
    if (!alloc_locked(arena, size, ret_block)) {
        size_t lease = size > GW_ARENA_LEASE ? size : GW_ARENA_LEASE;
        bool room = arena->expected > 0 || arena->bytes + lease <= arena->limit ||
                    (arena->bytes == 0 && size <= arena->limit);
        code = room ? CM_FULL : CM_LIMIT;
        if (room && size > arena->refused)
            arena->refused = size;
    }
    pthread_mutex_unlock(&arena->lock);
    return code;
}

void gw_arena_free(struct gw_arena *arena, struct gw_block *block)
{
    if (!block->base)
        return;
    pthread_mutex_lock(&arena->lock);
    struct arena_lease *entry = &arena->leases[block->lease];
    mm_buddy_free(entry->buddy, block->offset);
    arena->used -= block->size;
    arena->blocks--;
    if (--entry->blocks == 0)
        entry->idle_since_ns = cm_now_ns();
    pthread_mutex_unlock(&arena->lock);
    *block = (struct gw_block){0};
}

size_t gw_arena_wants(struct gw_arena *arena)
{
    size_t want = 0;
    pthread_mutex_lock(&arena->lock);
    if (arena->expected == 0) {
        if (arena->refused > 0)
            want = arena->refused > GW_ARENA_LEASE ? arena->refused : GW_ARENA_LEASE;
        else if (arena->used * 2 >= arena->bytes)
            want = GW_ARENA_LEASE;
        if (want > 0 && arena->bytes + want > arena->limit)
            want = arena->bytes == 0 ? round_up(arena->limit / 2 + 1) : 0;
        if (want > arena->limit)
            want /= 2;
    }
    pthread_mutex_unlock(&arena->lock);
    return want;
}

void gw_arena_expect(struct gw_arena *arena, size_t bytes, bool add)
{
    pthread_mutex_lock(&arena->lock);
    if (add)
        arena->expected += bytes;
    else
        arena->expected -= bytes;
    pthread_mutex_unlock(&arena->lock);
}

void gw_arena_forget(struct gw_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    arena->refused = 0;
    pthread_mutex_unlock(&arena->lock);
}

bool gw_arena_add(struct gw_arena *arena, struct mm_lease *lease)
{
    struct mm_buddy *buddy;
    if (mm_buddy_create(lease->bytes, GW_ARENA_MIN_BLOCK, &buddy) != CM_OK)
        return false;
    bool taken = false;
    pthread_mutex_lock(&arena->lock);
    for (size_t i = 0; i < GW_ARENA_LEASES_MAX && !taken; i++) {
        if (arena->leases[i].lease)
            continue;
        arena->leases[i] = (struct arena_lease){lease, buddy, 0, cm_now_ns()};
        arena->bytes += lease->bytes;
        arena->refused = 0;
        taken = true;
    }
    pthread_mutex_unlock(&arena->lock);
    if (!taken)
        mm_buddy_destroy(buddy);
    return taken;
}

struct mm_lease *gw_arena_pop(struct gw_arena *arena, uint64_t now_ns, uint64_t idle_ns, bool all)
{
    struct mm_lease *lease = NULL;
    struct mm_buddy *buddy = NULL;
    size_t count = 0;
    pthread_mutex_lock(&arena->lock);
    for (size_t i = 0; i < GW_ARENA_LEASES_MAX; i++)
        count += arena->leases[i].lease != NULL;
    for (size_t i = 0; i < GW_ARENA_LEASES_MAX && (all || count > 1); i++) {
        struct arena_lease *entry = &arena->leases[i];
        if (!entry->lease || entry->blocks > 0 || (!all && now_ns - entry->idle_since_ns < idle_ns))
            continue;
        lease = entry->lease;
        buddy = entry->buddy;
        arena->bytes -= lease->bytes;
        *entry = (struct arena_lease){0};
        break;
    }
    pthread_mutex_unlock(&arena->lock);
    mm_buddy_destroy(buddy);
    return lease;
}

struct gw_arena_stats gw_arena_stats(struct gw_arena *arena)
{
    pthread_mutex_lock(&arena->lock);
    struct gw_arena_stats stats = {0, arena->bytes, arena->used, arena->blocks};
    for (size_t i = 0; i < GW_ARENA_LEASES_MAX; i++)
        stats.leases += arena->leases[i].lease != NULL;
    pthread_mutex_unlock(&arena->lock);
    return stats;
}
