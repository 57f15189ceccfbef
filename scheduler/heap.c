/* The pairing heap of the queues. Pure; no allocation; iterative, so that no queue length can
 * exhaust the stack. */
#include "scheduler/heap.h"

#include <stddef.h>

/* Joins two trees; both roots have neither siblings nor parents. */
static struct sd_heap_node *meld(sd_heap_less_fn less, struct sd_heap_node *a,
                                 struct sd_heap_node *b)
{
    if (!a)
        return b;
    if (!b)
        return a;
    if (less(b, a)) {
        struct sd_heap_node *swap = a;
        a = b;
        b = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child)
        a->child->prev = b;
    a->child = b;
    return a;
}

/* Joins a list of siblings in two passes: pairs from left to right, then the pairs from right to
 * left. That order is what makes removal logarithmic. */
static struct sd_heap_node *meld_siblings(sd_heap_less_fn less, struct sd_heap_node *first)
{
    struct sd_heap_node *pairs = NULL; /* linked through next, last pair first */
    while (first) {
        struct sd_heap_node *a = first, *b = a->next;
        first = b ? b->next : NULL;
        a->prev = a->next = NULL;
        if (b)
            b->prev = b->next = NULL;
        a = meld(less, a, b);
        a->next = pairs;
        pairs = a;
    }
    struct sd_heap_node *root = NULL;
    while (pairs) {
        struct sd_heap_node *rest = pairs->next;
        pairs->next = NULL;
        root = meld(less, root, pairs);
        pairs = rest;
    }
    return root;
}

void sd_heap_insert(struct sd_heap *heap, struct sd_heap_node *node)
{
    *node = (struct sd_heap_node){0};
    heap->root = meld(heap->less, heap->root, node);
}

void sd_heap_remove(struct sd_heap *heap, struct sd_heap_node *node)
{
    struct sd_heap_node *below = meld_siblings(heap->less, node->child);
    if (node == heap->root) {
        heap->root = below;
    } else {
        if (node->prev->child == node)
            node->prev->child = node->next;
        else
            node->prev->next = node->next;
        if (node->next)
            node->next->prev = node->prev;
        heap->root = meld(heap->less, heap->root, below);
    }
    *node = (struct sd_heap_node){0};
}
