/* Assertions for our own mistakes, overflow-checked sizes, container_of. Any thread.
 *
 * CM_ASSERT is always on. It never guards anything that a client, a file, a peer process or shared
 * memory supplied: that is an enum cm_err. */
#ifndef COMMON_CHECK_H
#define COMMON_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void cm_assert_failed(const char *condition, const char *file, int line);

#define CM_ASSERT(condition)                                  \
    do {                                                      \
        if (__builtin_expect(!(condition), 0))                \
            cm_assert_failed(#condition, __FILE__, __LINE__); \
    } while (0)

#define cm_container_of(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#define CM_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ret = a * b, ret = a + b; false, with ret untouched, on overflow. */
static inline bool cm_size_mul(size_t a, size_t b, size_t *ret)
{
    size_t out;
    if (__builtin_mul_overflow(a, b, &out))
        return false;
    *ret = out;
    return true;
}

static inline bool cm_size_add(size_t a, size_t b, size_t *ret)
{
    size_t out;
    if (__builtin_add_overflow(a, b, &out))
        return false;
    *ret = out;
    return true;
}

/* Rounds up to a power-of-two alignment; false on overflow. */
static inline bool cm_size_align(size_t size, size_t alignment, size_t *ret)
{
    size_t sum;
    if (!cm_size_add(size, alignment - 1, &sum))
        return false;
    *ret = sum & ~(alignment - 1);
    return true;
}

#endif
