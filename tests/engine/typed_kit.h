/* Operators of any element type against references in double: shared by tests of operators.
 *
 * A case lists its operands as doubles; they are stored in the case's type, and read back so that
 * the reference computes with the values that the engine sees. Every case runs on one thread and on
 * two, and the two must give equal bytes. Failures fail the test at once. */
#ifndef TESTS_ENGINE_TYPED_KIT_H
#define TESTS_ENGINE_TYPED_KIT_H

#include "tests/engine/kit.h"

#include <stdbool.h>

enum { TYPED_OPERANDS = 8 };

struct typed_operand {
    const char *name;
    enum cm_dtype dtype;
    struct cm_shape shape;
    double *v; /* owned by the case */
    size_t count;
    bool constant;
};

struct typed_case {
    struct kit_model *model;
    int n_in, n_out;
    struct typed_operand in[TYPED_OPERANDS], out[TYPED_OPERANDS];
};

/* The model is made here; nodes and attributes are the caller's to add. */
void typed_begin(struct typed_case *c, int opset);

/* An operand with values from -range to range (integers: whole numbers, unsigned ones from 0). The
 * returned values may be changed before typed_round. */
struct typed_operand *typed_random(struct typed_case *c, const char *name, enum cm_dtype dtype,
                                   struct cm_shape shape, double range);
/* The same with given values. */
struct typed_operand *typed_values(struct typed_case *c, const char *name, enum cm_dtype dtype,
                                   struct cm_shape shape, const double *v);
/* Makes an operand's values what its type holds. typed_random and typed_values have done so. */
void typed_round(struct typed_operand *operand);

void typed_output(struct typed_case *c, const char *name, enum cm_dtype dtype,
                  struct cm_shape shape);

/* Runs; the outputs' v are then filled. */
void typed_run(struct typed_case *c);

/* Output k against want: equal for integers, otherwise within a few roundings of its type relative
 * to scale + |want|. NaN equals NaN. */
void typed_check(const struct typed_case *c, int k, const double *want, double scale);

void typed_end(struct typed_case *c);

/* Parses, packs and plans the case with its shapes, which must be refused somewhere with a sentence
 * that has text in it; and ends the case. */
void typed_refused(struct typed_case *c, enum cm_err code, const char *text);

/* Zeroed room for count numbers. */
double *typed_room(size_t count);

/* A shape as [outer][n][inner] around an axis, which may count from the back. */
struct typed_around {
    size_t outer, n, inner;
};
struct typed_around typed_around(struct cm_shape shape, int axis);

bool typed_is_float(enum cm_dtype dtype);

#endif
