/* The fuzz target; see fuzz_model.c. */
#ifndef TESTS_ENGINE_FUZZ_MODEL_H
#define TESTS_ENGINE_FUZZ_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* libFuzzer's entry point. 1 if the bytes loaded as a model, else 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
