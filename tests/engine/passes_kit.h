/* Runs a model with all passes, with each of them left out and with none, and compares. Shared by
 * the tests of the passes; failures are cmocka's. */
#ifndef TESTS_ENGINE_PASSES_KIT_H
#define TESTS_ENGINE_PASSES_KIT_H

#include "tests/engine/kit.h"

/* Bytes must be equal where a pass keeps the arithmetic. Passes that change it (and "all", which
 * holds them) may differ by this, relative to the largest expected number of the output. */
#define PASSES_TOLERANCE 1e-5

/* Inputs are random and of these shapes, one for each input of the model. */
void passes_compare(const void *bytes, size_t length, const struct cm_shape *shapes);

/* "Conv+Relu MaxPool Gemm": the operators that run, in their order, with all passes but those in
 * disabled. Views and what shapes decide are left out. text has room for size. */
const char *passes_plan(const void *bytes, size_t length, const struct cm_shape *shapes,
                        uint64_t disabled, char *text, size_t size);

/* Bits of a list like "fold,cse"; "" is none. */
uint64_t passes_bits(const char *names);

#endif
