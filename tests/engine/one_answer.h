/* One answer, as a function that any model can be put through.
 *
 * The truth is each of 16 different rows run alone by scalar kernels on one thread. Then every
 * batch size 1..16 is run with the rows in changing places, by every instruction set of this
 * machine, on one and on two threads; a byte that differs fails the test (cmocka). */
#ifndef TESTS_ENGINE_ONE_ANSWER_H
#define TESTS_ENGINE_ONE_ANSWER_H

#include "common/tensor.h"

#include <stddef.h>

/* bytes are the model file; shapes one row of each input (the first dimension is replaced). Returns
 * how many combinations of instruction set and threads were checked. */
unsigned one_answer(const void *bytes, size_t length, const struct cm_shape *shapes);

#endif
