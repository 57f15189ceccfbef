/* One answer, as functions that any model can be put through: the bytes of a result do not depend
 * on the batch, the place in it, the threads or the instruction set.
 *
 * The truth is what scalar kernels on one thread give, for a batchable model each row alone. A byte
 * that differs from it fails the test (cmocka). */
#ifndef TESTS_ENGINE_ONE_ANSWER_H
#define TESTS_ENGINE_ONE_ANSWER_H

#include "common/tensor.h"

#include <stdbool.h>
#include <stddef.h>

#define ONE_ANSWER_ROWS 16 /* rows of a check, at most */

struct one_answer_model {
    const void *bytes; /* the model file */
    size_t length;
    /* One row of each input (the first dimension is replaced). A model that is not batchable:
     * each input whole, and rows is 1. */
    const struct cm_shape *shapes;
    /* For each input its rows one after another, or the whole; NULL for seeded ones. */
    const void *const *data;
    unsigned rows; /* different rows, and the largest batch, 1..ONE_ANSWER_ROWS */
    /* Scalar kernels, which are slow, run one batch of all rows for each number of threads. */
    bool brief;
};

/* Every batch size 1..rows with the rows in changing places, by every instruction set of this
 * machine, on 1, 2 and 4 threads. A model that is not batchable runs twice in each. Returns how
 * many combinations of instruction set and threads were checked. */
unsigned one_answer(const struct one_answer_model *model);

#endif
