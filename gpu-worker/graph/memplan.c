/* Memory planning: greedy by size, best fit; see memplan.h. Pure, any thread. */
#include "gpu-worker/graph/memplan.h"

#include "common/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { GREEDY_MAX = 8192 /* above, placing each buffer against all others takes too long */ };

static int by_size(const void *a, const void *b)
{
    const struct wk_memplan_use *x = *(struct wk_memplan_use *const *)a;
    const struct wk_memplan_use *y = *(struct wk_memplan_use *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y; /* the same plan on every machine */
}

static int by_first(const void *a, const void *b)
{
    const struct wk_memplan_use *x = *(struct wk_memplan_use *const *)a;
    const struct wk_memplan_use *y = *(struct wk_memplan_use *const *)b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int by_last(const void *a, const void *b)
{
    const struct wk_memplan_use *x = *(struct wk_memplan_use *const *)a;
    const struct wk_memplan_use *y = *(struct wk_memplan_use *const *)b;
    if (x->last != y->last)
        return x->last < y->last ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Rounded up to the alignment; sizes were checked to allow it. */
static size_t padded(const struct wk_memplan_use *use, size_t alignment)
{
    return (use->bytes + alignment - 1) & ~(alignment - 1);
}

/* The smallest gap between the placed buffers (sorted by offset) that are live together with use;
 * behind them all if no gap is large enough. */
static size_t best_offset(struct wk_memplan_use *const *placed, size_t n_placed,
                          const struct wk_memplan_use *use, size_t alignment)
{
    size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX, need = padded(use, alignment);
    for (size_t i = 0; i < n_placed; i++) {
        const struct wk_memplan_use *other = placed[i];
        if (other->last < use->first || other->first > use->last)
            continue;
        if (other->offset > end && other->offset - end >= need && other->offset - end < best_gap) {
            best_gap = other->offset - end;
            best = end;
        }
        size_t other_end = other->offset + padded(other, alignment);
        if (other_end > end)
            end = other_end;
    }
    return best == SIZE_MAX ? end : best;
}

static size_t place_greedy(struct wk_memplan_use **order, size_t count, size_t alignment,
                           struct wk_memplan_use **placed)
{
    size_t total = 0;
    qsort(order, count, sizeof(void *), by_size);
    for (size_t i = 0; i < count; i++) {
        struct wk_memplan_use *use = order[i];
        use->offset = best_offset(placed, i, use, alignment);
        size_t end = use->offset + padded(use, alignment), at = i;
        while (at > 0 && placed[at - 1]->offset > use->offset)
            at--;
        memmove(&placed[at + 1], &placed[at], (i - at) * sizeof(void *));
        placed[at] = use;
        if (end > total)
            total = end;
    }
    return total;
}

/* The smallest c with bytes <= 1 << c, and at least the alignment's. */
static unsigned size_class(size_t bytes, size_t alignment)
{
    size_t least = bytes > alignment ? bytes : alignment;
    return least == 1 ? 0 : 64u - (unsigned)__builtin_clzll(least - 1);
}

/* Large graphs: one free list per power of two; a buffer takes a free block of its class or a new
 * one. next[i] chains the blocks of expired buffers, counted from 1. */
static size_t place_classes(struct wk_memplan_use *uses, struct wk_memplan_use **order,
                            struct wk_memplan_use **expiry, size_t count, size_t alignment,
                            uint32_t *next)
{
    uint32_t head[65] = {0};
    size_t total = 0, expired = 0;
    memcpy(expiry, order, count * sizeof(void *));
    qsort(order, count, sizeof(void *), by_first);
    qsort(expiry, count, sizeof(void *), by_last);
    for (size_t i = 0; i < count; i++) {
        struct wk_memplan_use *use = order[i];
        for (; expired < count && expiry[expired]->last < use->first; expired++) {
            unsigned class = size_class(expiry[expired]->bytes, alignment);
            uint32_t index = (uint32_t)(expiry[expired] - uses);
            next[index] = head[class];
            head[class] = index + 1;
        }
        unsigned class = size_class(use->bytes, alignment);
        if (head[class]) {
            uint32_t index = head[class] - 1;
            use->offset = uses[index].offset;
            head[class] = next[index];
        } else {
            use->offset = total;
            total += (size_t)1 << class;
        }
    }
    return total;
}

/* Adds up what the worst placement could need, so that placing cannot overflow. */
static bool sizes_fit(const struct wk_memplan_use *uses, size_t count, size_t alignment)
{
    size_t sum = 0, one;
    for (size_t i = 0; i < count; i++) {
        if (!cm_size_align(uses[i].bytes, alignment, &one) || !cm_size_mul(one, 2, &one) ||
            !cm_size_add(sum, one, &sum))
            return false;
        CM_ASSERT(uses[i].first <= uses[i].last);
    }
    return true;
}

enum cm_err wk_memplan(struct wk_memplan_use *uses, size_t count, size_t alignment, size_t limit,
                       size_t *ret_bytes)
{
    size_t n = 0, total = 0;
    if (count > UINT32_MAX - 1 || !sizes_fit(uses, count, alignment))
        return CM_LIMIT;
    struct wk_memplan_use **order = calloc(count + 1, sizeof(void *));
    struct wk_memplan_use **other = calloc(count + 1, sizeof(void *));
    uint32_t *next = calloc(count + 1, sizeof *next);
    enum cm_err code = order && other && next ? CM_OK : CM_NOMEM;
    for (size_t i = 0; i < count && code == CM_OK; i++) {
        uses[i].offset = 0;
        if (uses[i].bytes)
            order[n++] = &uses[i];
    }
    if (code == CM_OK)
        total = n <= GREEDY_MAX ? place_greedy(order, n, alignment, other)
                                : place_classes(uses, order, other, n, alignment, next);
    free(next);
    free(other);
    free(order);
    if (code == CM_OK && total > limit)
        code = CM_LIMIT;
    if (code == CM_OK)
        *ret_bytes = total;
    return code;
}
