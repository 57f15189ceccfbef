/* For tests of window, quantised and signal operators: one model run on every instruction set and
 * on one and two threads, random windows over one to three dimensions, refusals.
 *
 * Failures inside fail the test at once (cmocka). */
#ifndef TESTS_ENGINE_WINDOW_KIT_H
#define TESTS_ENGINE_WINDOW_KIT_H

#include "tests/engine/map_kit.h"

struct operand {
    const char *name;
    struct map_tensor t;
    bool constant; /* in the model, otherwise its input */
};

/* Declares the operands and the outputs "y", "z", "u", runs the model everywhere, and fills the
 * outputs, whose types and shapes must be as given. All runs must give the same bytes. Frees m, not
 * the operands. */
void window_run(struct kit_model *m, const struct operand *in, int n, struct map_tensor *out,
                int n_out);

/* Loading or planning the model with the operands fails with a sentence that contains part. Frees m
 * and the operands. */
void window_refuse(struct kit_model *m, struct operand *in, int n, enum cm_err code,
                   const char *part);

/* The same for a run of a model that can be planned. */
void window_refuse_run(struct kit_model *m, struct operand *in, int n, const struct map_tensor *out,
                       enum cm_err code, const char *part);

void window_free(struct operand *in, int n);

/* Random numbers in [least, most]; one sequence for a test program. */
int pick(int least, int most);

/* Floating point in [-1, 1), or integers over their whole range. */
struct map_tensor random_tensor(enum cm_dtype dtype, struct cm_shape shape);

/* A tensor of these integers or numbers. */
struct map_tensor ints_of(enum cm_dtype dtype, struct cm_shape shape, const int64_t *values);
struct map_tensor numbers_of(enum cm_dtype dtype, struct cm_shape shape, const double *values);

/* An attribute of up to six numbers. */
void attr_list(struct kit_model *m, const char *name, int n, const int *values);

/* A window; dimensions in front of the last n are 1. */
struct geometry {
    int n;
    int in[3], kernel[3], stride[3], dilation[3], begin[3], end[3], out[3];
};

struct geometry random_geometry(int n);
int extent_of(const struct geometry *g, int d);
size_t inputs_of(const struct geometry *g);
size_t outputs_of(const struct geometry *g);
size_t taps_of(const struct geometry *g);

/* [batch, channels, sizes of the last n dimensions] */
struct cm_shape planes(const struct geometry *g, int batch, int channels, const int size[3]);

/* kernel_shape, strides, and unless they are NULL or all as the default, dilations and pads. */
void window_attrs(struct kit_model *m, const struct geometry *g, bool dilations, bool pads);

/* Place in a plane of what output o looks at with tap t (both counted through), or -1. */
long under(const struct geometry *g, size_t o, size_t t);

/* Coordinate d of a place among these sizes. */
int coordinate(const int size[3], size_t at, int d);

#endif
