/* Changes to ONNX models that keep them well-formed and make them absurd: other operators,
 * attributes, shapes, types, wiring, constants. Bytes flipped at random rarely get past the loader;
 * these reach shape rules and kernels.
 *
 * Used by fuzz_test (a fixed number, always the same ones) and by libFuzzer as its mutator. */
#ifndef TESTS_FUZZ_MUTATE_H
#define TESTS_FUZZ_MUTATE_H

#include "proto/onnx.pb-c.h"

#include <stddef.h>
#include <stdint.h>

/* Makes one to three changes, which follow from *random. The model is one that protobuf-c has
 * unpacked, with the default allocator. */
void fuzz_change_model(Onnx__ModelProto *model, uint64_t *random);

/* The same for a file of length bytes in room bytes of memory; gives the new length. 0, with bytes
 * unchanged, if they are no model or the changed one does not fit. */
size_t fuzz_mutate(uint8_t *bytes, size_t length, size_t room, uint64_t *random);

/* A copy of a model that was refused because an output has another type than it declares, with
 * that mended; the caller's to free(). NULL if why, the loader's sentence, says something else.
 * Changes would otherwise die of this most of the time. */
uint8_t *fuzz_mend(const uint8_t *bytes, size_t length, const char *why, size_t *ret_length);

#endif
