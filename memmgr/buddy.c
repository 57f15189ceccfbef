/* The buddy allocator: a complete binary tree in one byte array.
 *
 * Node 1 is the whole, node 2n and 2n+1 are the halves of n. best[n] is 1 + the order of the
 * largest free block beneath n (0: none), so a search goes straight down and a change goes straight
 * up: O(log blocks). A block's own order is where its node lies; taken[] tells an allocation's node
 * from the nodes above it. One process, one thread; never touches the memory that it divides. */
#include "memmgr/buddy.h"

#include "common/check.h"

#include <stdlib.h>

#define BLOCKS_MAX ((size_t)1 << 24)

struct mm_buddy {
    size_t bytes, min_block;
    unsigned levels; /* leaves are at depth levels */
    size_t used, blocks;
    uint8_t *taken; /* one bit a node: this very block is allocated */
    uint8_t best[];
};

static bool power_of_two(size_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static unsigned log2_of(size_t value)
{
    return (unsigned)(63 - __builtin_clzll((unsigned long long)value));
}

static bool is_taken(const struct mm_buddy *buddy, size_t node)
{
    return (buddy->taken[node / 8] >> (node % 8)) & 1;
}

static void flip_taken(struct mm_buddy *buddy, size_t node)
{
    buddy->taken[node / 8] ^= (uint8_t)(1u << (node % 8));
}

enum cm_err mm_buddy_create(size_t bytes, size_t min_block, struct mm_buddy **ret)
{
    if (!power_of_two(bytes) || !power_of_two(min_block) || min_block > bytes ||
        bytes / min_block > BLOCKS_MAX)
        return CM_INVALID;
    size_t nodes = bytes / min_block * 2;
    struct mm_buddy *buddy = malloc(sizeof *buddy + nodes);
    uint8_t *taken = calloc(nodes / 8 + 1, 1);
    if (!buddy || !taken) {
        free(buddy);
        free(taken);
        return CM_NOMEM;
    }
    *buddy = (struct mm_buddy){.bytes = bytes,
                               .min_block = min_block,
                               .levels = log2_of(bytes / min_block),
                               .taken = taken};
    buddy->best[0] = 0;
    for (unsigned depth = 0; depth <= buddy->levels; depth++) {
        for (size_t node = (size_t)1 << depth; node < (size_t)2 << depth; node++)
            buddy->best[node] = (uint8_t)(buddy->levels - depth + 1);
    }
    *ret = buddy;
    return CM_OK;
}

void mm_buddy_destroy(struct mm_buddy *buddy)
{
    if (!buddy)
        return;
    free(buddy->taken);
    free(buddy);
}

/* Recomputes best on the way up from a node that changed. order: of that node. */
static void climb(struct mm_buddy *buddy, size_t node, unsigned order)
{
    while (node > 1) {
        node /= 2;
        order++;
        uint8_t left = buddy->best[2 * node], right = buddy->best[2 * node + 1];
        if (left == order && right == order) /* both halves are free as a whole */
            buddy->best[node] = (uint8_t)(order + 1);
        else
            buddy->best[node] = left > right ? left : right;
    }
}

static unsigned order_for(const struct mm_buddy *buddy, size_t size)
{
    size_t blocks = (size - 1) / buddy->min_block + 1;
    return blocks == 1 ? 0 : log2_of(blocks - 1) + 1;
}

enum cm_err mm_buddy_alloc(struct mm_buddy *buddy, size_t size, size_t *ret_offset)
{
    if (size == 0)
        return CM_INVALID;
    if (size > buddy->bytes)
        return CM_LIMIT;
    unsigned want = order_for(buddy, size);
    if (buddy->best[1] < want + 1)
        return CM_FULL;
    size_t node = 1;
    for (unsigned order = buddy->levels; order > want; order--) {
        /* Best fit: go where the smaller largest block lies, if it is enough. */
        uint8_t left = buddy->best[2 * node], right = buddy->best[2 * node + 1];
        bool go_left = left >= want + 1 && (right < want + 1 || left <= right);
        node = 2 * node + (go_left ? 0 : 1);
    }
    buddy->best[node] = 0;
    flip_taken(buddy, node);
    climb(buddy, node, want);
    size_t block = buddy->min_block << want;
    buddy->used += block;
    buddy->blocks++;
    *ret_offset = (node - ((size_t)1 << (buddy->levels - want))) * block;
    return CM_OK;
}

void mm_buddy_free(struct mm_buddy *buddy, size_t offset)
{
    CM_ASSERT(offset < buddy->bytes && offset % buddy->min_block == 0);
    /* The allocation that begins here is the lowest node on this left edge that is taken. */
    size_t node = ((size_t)1 << buddy->levels) + offset / buddy->min_block;
    unsigned order = 0;
    while (!is_taken(buddy, node)) {
        CM_ASSERT(node > 1 && node % 2 == 0); /* not allocated, or not the start of a block */
        node /= 2;
        order++;
    }
    flip_taken(buddy, node);
    buddy->best[node] = (uint8_t)(order + 1);
    climb(buddy, node, order);
    buddy->used -= buddy->min_block << order;
    buddy->blocks--;
}

struct mm_buddy_stats mm_buddy_stats(const struct mm_buddy *buddy)
{
    uint8_t best = buddy->best[1];
    return (struct mm_buddy_stats){.total = buddy->bytes,
                                   .used = buddy->used,
                                   .largest_free = best ? buddy->min_block << (best - 1) : 0,
                                   .blocks = buddy->blocks};
}
