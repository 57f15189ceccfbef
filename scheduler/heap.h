/* An intrusive pairing heap: the smallest node first, any node out.
 *
 * The queues need "who is next" and "take this one out", both cheap for thousands of waiting
 * requests, without memory of their own: the links lie in the request. Insertion is O(1), removal
 * O(log n) amortised. Pure; the caller's thread. */
#ifndef SCHEDULER_HEAP_H
#define SCHEDULER_HEAP_H

#include <stdbool.h>

struct sd_heap_node {
    struct sd_heap_node *child; /* first child */
    struct sd_heap_node *next;  /* next sibling */
    struct sd_heap_node *prev;  /* parent for a first child, else the sibling before */
};

/* A strict order: must not change for a node while it is in a heap. */
typedef bool (*sd_heap_less_fn)(const struct sd_heap_node *a, const struct sd_heap_node *b);

struct sd_heap {
    struct sd_heap_node *root; /* the smallest; NULL when empty */
    sd_heap_less_fn less;
};

/* node must be in no heap. */
void sd_heap_insert(struct sd_heap *heap, struct sd_heap_node *node);

/* node must be in this heap. */
void sd_heap_remove(struct sd_heap *heap, struct sd_heap_node *node);

#endif
