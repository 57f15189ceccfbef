/* Random numbers of the fuzz tests: the same on every machine, from a state that must not be 0. */
#ifndef TESTS_FUZZ_RANDOM_H
#define TESTS_FUZZ_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* xorshift64* */
static inline uint64_t next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* 0 to limit - 1. */
static inline size_t below(uint64_t *state, size_t limit)
{
    return (size_t)((next(state) >> 16) % limit);
}

#endif
