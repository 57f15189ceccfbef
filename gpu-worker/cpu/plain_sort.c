/* Top-k and unique slices; see plain_sort.h. Plain C compiled once. */
#include "gpu-worker/cpu/plain_sort.h"

#include "gpu-worker/cpu/half.h"

#include <string.h>

/* ---- order of two elements: below, the same, or above ---------------------------------------- */

#define COMPARE_NUMBERS(id, type, sum)                           \
    static int order_##id(const void *x, size_t i, size_t j)     \
    {                                                            \
        type a = ((const type *)x)[i], b = ((const type *)x)[j]; \
        return (a > b) - (a < b);                                \
    }
K_TYPES_UNSIGNED(COMPARE_NUMBERS)
K_TYPES_SIGNED(COMPARE_NUMBERS)

static int order_of_floats(double a, double b)
{
    if (a != a || b != b)
        return (a != a) - (b != b);
    return (a > b) - (a < b);
}

#define COMPARE_FLOATS(id, type, read)                       \
    static int order_##id(const void *x, size_t i, size_t j) \
    {                                                        \
        const type *p = x;                                   \
        return order_of_floats(read(p[i]), read(p[j]));      \
    }
COMPARE_FLOATS(FP16, uint16_t, half_to_float)
COMPARE_FLOATS(BF16, uint16_t, bfloat_to_float)
COMPARE_FLOATS(FP32, float, (double))
COMPARE_FLOATS(FP64, double, (double))

static int order_BOOL(const void *x, size_t i, size_t j)
{
    const uint8_t *p = x;
    return (p[i] != 0) - (p[j] != 0);
}

typedef int order_fn(const void *x, size_t i, size_t j);

static order_fn *order_for(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(id, number, bytes, text, onnx) \
    case CM_##id:                        \
        return order_##id;
        CM_DTYPE_MAP(X)
#undef X
    default:
        return NULL;
    }
}

/* ---- top-k ----------------------------------------------------------------------------------- */

/* The heap holds the best k so far with the worst of them at its root. Everything about types is in
 * `before`: i is to stand before j. */
#define TOP_K(id, type, sum)                                                                      \
    static bool before_##id(const type *x, size_t step, bool greatest, size_t i, size_t j)        \
    {                                                                                             \
        int order = order_##id(x, i * step, j * step);                                            \
        return order == 0 ? i < j : (order > 0) == greatest;                                      \
    }                                                                                             \
    static void sink_##id(const struct k_top_k *t, const type *x, size_t *heap, size_t n,         \
                          size_t at)                                                              \
    {                                                                                             \
        size_t step = t->along.inner, mine = heap[at];                                            \
        for (size_t child; (child = 2 * at + 1) < n; at = child) {                                \
            if (child + 1 < n && before_##id(x, step, t->greatest, heap[child], heap[child + 1])) \
                child++;                                                                          \
            if (!before_##id(x, step, t->greatest, mine, heap[child]))                            \
                break;                                                                            \
            heap[at] = heap[child];                                                               \
        }                                                                                         \
        heap[at] = mine;                                                                          \
    }                                                                                             \
    static void rank_##id(const struct k_top_k *t, const type *x, size_t *heap)                   \
    {                                                                                             \
        size_t k = t->k;                                                                          \
        for (size_t i = 0; i < k; i++)                                                            \
            heap[i] = i;                                                                          \
        for (size_t i = k / 2; i-- > 0;)                                                          \
            sink_##id(t, x, heap, k, i);                                                          \
        for (size_t i = k; i < t->along.n; i++)                                                   \
            if (before_##id(x, t->along.inner, t->greatest, i, heap[0])) {                        \
                heap[0] = i;                                                                      \
                sink_##id(t, x, heap, k, 0);                                                      \
            }                                                                                     \
        for (size_t n = k; n-- > 1;) { /* the worst goes to the end */                            \
            size_t worst = heap[0];                                                               \
            heap[0] = heap[n];                                                                    \
            heap[n] = worst;                                                                      \
            sink_##id(t, x, heap, n, 0);                                                          \
        }                                                                                         \
    }                                                                                             \
    static void top_k_##id(const struct k_top_k *t, size_t *heap, size_t i0, size_t i1)           \
    {                                                                                             \
        struct k_along to = {t->along.outer, t->k, t->along.inner};                               \
        for (size_t i = i0; i < i1 && t->k; i++) {                                                \
            const type *x = (const type *)t->x + k_along_at(&t->along, i);                        \
            size_t at = k_along_at(&to, i);                                                       \
            rank_##id(t, x, heap);                                                                \
            for (size_t r = 0; r < t->k; r++, at += to.inner) {                                   \
                if (t->values)                                                                    \
                    ((type *)t->values)[at] = x[heap[r] * to.inner];                              \
                if (t->indices)                                                                   \
                    t->indices[at] = (int64_t)heap[r];                                            \
            }                                                                                     \
        }                                                                                         \
    }
K_TYPES_NUMBER(TOP_K)

k_top_k_fn *k_top_k_for(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(id, type, sum) \
    case CM_##id:        \
        return top_k_##id;
        K_TYPES_NUMBER(X)
#undef X
    default:
        return NULL;
    }
}

/* ---- unique ---------------------------------------------------------------------------------- */

static int order_of_slices(const struct k_unique *u, order_fn *order, size_t i, size_t j)
{
    const struct k_along *a = &u->along;
    for (size_t o = 0; o < a->outer; o++)
        for (size_t q = 0; q < a->inner; q++) {
            size_t at = o * a->n * a->inner + q;
            int found = order(u->x, at + i * a->inner, at + j * a->inner);
            if (found)
                return found;
        }
    return 0;
}

/* Stable: bottom-up merges from one array to the other. Returns the one that is in order. */
static size_t *sort_slices(const struct k_unique *u, order_fn *order, size_t *from, size_t *to)
{
    size_t n = u->along.n;
    for (size_t i = 0; i < n; i++)
        from[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t start = 0; start < n; start += 2 * width) {
            size_t middle = n - start < width ? n : start + width;
            size_t end = n - middle < width ? n : middle + width, i = start, j = middle;
            for (size_t at = start; at < end; at++) {
                bool left =
                    j == end || (i < middle && order_of_slices(u, order, from[i], from[j]) <= 0);
                to[at] = left ? from[i++] : from[j++];
            }
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* Renumbers groups in the order of their first slices. names: room for count indices. */
static void by_occurrence(size_t n, size_t *names, struct k_unique_groups *groups)
{
    size_t next = 0;
    for (size_t j = 0; j < n; j++)
        if (groups->first[groups->group[j]] == j)
            names[groups->group[j]] = next++;
    for (size_t j = 0; j < n; j++)
        groups->group[j] = names[groups->group[j]];
    memset(groups->size, 0, n * sizeof *groups->size);
    for (size_t j = n; j-- > 0;) {
        groups->first[groups->group[j]] = j;
        groups->size[groups->group[j]]++;
    }
}

void k_unique_find(const struct k_unique *u, enum cm_dtype dtype, size_t *work,
                   struct k_unique_groups *ret)
{
    size_t n = u->along.n;
    order_fn *order = order_for(dtype);
    size_t *sorted = sort_slices(u, order, work, work + n);
    ret->count = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || order_of_slices(u, order, sorted[i - 1], sorted[i]) != 0) {
            ret->first[ret->count] = sorted[i];
            ret->size[ret->count++] = 0;
        }
        ret->group[sorted[i]] = ret->count - 1;
        ret->size[ret->count - 1]++;
    }
    if (!u->sorted && n)
        by_occurrence(n, work, ret);
}

void k_unique_take(const struct k_unique *u, size_t element, const struct k_unique_groups *groups,
                   void *y)
{
    const struct k_along *a = &u->along;
    size_t run = a->inner * element;
    for (size_t o = 0; o < a->outer; o++)
        for (size_t g = 0; g < groups->count; g++)
            memcpy((char *)y + (o * groups->count + g) * run,
                   (const char *)u->x + (o * a->n + groups->first[g]) * run, run);
}
