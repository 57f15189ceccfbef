/* Random numbers as a function of a key and an element's index: Philox4x32-10 (Salmon, Moraes, Dror
 * and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). There is no state, so threads,
 * the order of work and earlier runs do not show: the same model with the same input gives the same
 * numbers. Pure functions, any thread. */
#ifndef GPU_WORKER_CPU_RANDOM_H
#define GPU_WORKER_CPU_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* The block function: ret[4] from counter[4] and key[2]. */
void k_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* A key. Seeds that a model gives and numbers of nodes that give none are kept apart. */
uint64_t k_random_key(bool given, uint64_t seed);

/* A multiple of 2^-bits in [0, 1), bits at most 53, all equally likely. */
double k_random_uniform(uint64_t key, uint64_t index, unsigned bits);

/* Mean 0, deviation 1. */
double k_random_normal(uint64_t key, uint64_t index);

#endif
