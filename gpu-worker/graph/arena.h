/* A bump allocator for things that live and die together (a graph, a plan). One thread.
 *
 * Never used while a plan runs: a run allocates nothing. */
#ifndef GPU_WORKER_GRAPH_ARENA_H
#define GPU_WORKER_GRAPH_ARENA_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

struct wk_arena_block;

/* Zero-initialised is empty and ready. */
struct wk_arena {
    struct wk_arena_block *blocks;
    size_t used, limit; /* of the newest block */
    size_t bytes, most; /* of all blocks, and how many they may be; 0: any number */
    uint32_t tracked;   /* elements of facts that lie in it; graph/infer.c counts and limits them */
};

/* Zeroed memory, 16-byte aligned, valid until wk_arena_fini. NULL when memory is out, when count *
 * size overflows or when the arena would be larger than `most`. A zero size still gives a distinct
 * pointer. */
void *wk_arena_take(struct wk_arena *arena, size_t count, size_t size);

/* A terminated copy of length bytes of text (NULL is allowed for 0); NULL when memory is out. */
char *wk_arena_text(struct wk_arena *arena, const char *text, size_t length);

/* Frees everything; the arena is then empty and ready, with the same `most`. */
void wk_arena_fini(struct wk_arena *arena);

#endif
