/* Bump allocator: chained blocks, freed together. One thread; not while a plan runs. */
#include "gpu-worker/graph/arena.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16384, ARENA_ALIGN = 16 };

struct wk_arena_block {
    struct wk_arena_block *next;
    size_t padding; /* keeps data 16-byte aligned */
    unsigned char data[];
};

void *wk_arena_take(struct wk_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (!cm_size_mul(count, size, &bytes) || !cm_size_align(bytes, ARENA_ALIGN, &bytes))
        return NULL;
    if (bytes == 0)
        bytes = ARENA_ALIGN;
    if (!arena->blocks || arena->limit - arena->used < bytes) {
        size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES, total;
        if (!cm_size_add(capacity, sizeof(struct wk_arena_block), &total) ||
            (arena->most && (total > arena->most || arena->bytes > arena->most - total)))
            return NULL;
        struct wk_arena_block *block = calloc(1, total);
        if (!block)
            return NULL;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->bytes += total;
        arena->used = 0;
        arena->limit = capacity;
    }
    void *memory = arena->blocks->data + arena->used;
    arena->used += bytes;
    return memory;
}

char *wk_arena_text(struct wk_arena *arena, const char *text, size_t length)
{
    size_t bytes;
    if (!cm_size_add(length, 1, &bytes))
        return NULL;
    char *copy = wk_arena_take(arena, bytes, 1);
    if (copy && length)
        memcpy(copy, text, length);
    return copy;
}

void wk_arena_fini(struct wk_arena *arena)
{
    while (arena->blocks) {
        struct wk_arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    *arena = (struct wk_arena){.most = arena->most};
}
