/* The fuzz targets, as functions that a test can call too. */
#ifndef TESTS_FUZZ_TARGETS_H
#define TESTS_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

/* Any bytes as a model file. 1 if they load, else 0. */
int fuzz_onnx(const uint8_t *data, size_t size);

/* Any bytes as a safetensors file. 1 if they are one, else 0. */
int fuzz_safetensors(const uint8_t *data, size_t size);

#endif
