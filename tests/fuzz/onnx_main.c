/* libFuzzer's entry points for models. Its own mutations of bytes find what is wrong with the
 * reader of the file; the structured ones get behind it. */
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/random.h"
#include "tests/fuzz/targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)fuzz_onnx(data, size);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15ull + 1;
    size_t mutated = below(&random, 8) ? fuzz_mutate(data, size, room, &random) : 0;
    return mutated ? mutated : LLVMFuzzerMutate(data, size, room);
}
