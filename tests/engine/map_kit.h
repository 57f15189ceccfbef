/* For tests of element-wise operators: tensors of any type as numbers, and one node run in every
 * form (threads, constant operands). Its roundings share nothing with the engine's.
 *
 * Failures inside fail the test at once (cmocka). */
#ifndef TESTS_ENGINE_MAP_KIT_H
#define TESTS_ENGINE_MAP_KIT_H

#include "tests/engine/kit.h"

__extension__ typedef __int128 map_int;

/* dtype CM_DTYPE_NONE: an operand that is left out. */
struct map_tensor {
    enum cm_dtype dtype;
    struct cm_shape shape;
    size_t count;
    void *data;
};

/* Zeroed; map_free frees it. */
struct map_tensor map_tensor(enum cm_dtype dtype, struct cm_shape shape);
void map_free(struct map_tensor *t);

bool map_is_float(enum cm_dtype dtype);
bool map_is_signed(enum cm_dtype dtype); /* integers */

/* Every type in turn: for (int i = 0; i < MAP_TYPES; i++) ... map_types[i]. */
#define MAP_TYPES 13
extern const enum cm_dtype map_types[MAP_TYPES];

/* Element i of a floating-point tensor; storing rounds to nearest even. */
double map_get(const struct map_tensor *t, size_t i);
void map_put(struct map_tensor *t, size_t i, double value);

/* Element i of an integer or bool tensor; storing keeps the low bits. */
map_int map_get_int(const struct map_tensor *t, size_t i);
void map_put_int(struct map_tensor *t, size_t i, map_int value);

/* Random contents: floats in [-range, range) with special values in between, integers of all sizes
 * or, with a range, in [-range, range] (from 0 where unsigned). */
void map_fill(struct map_tensor *t, uint64_t *state, double range);

/* Distance that rounding to the type makes at a value: 2^-11 of it for FP16 and so on. */
double map_epsilon(enum cm_dtype dtype);

/* ---- nodes ----------------------------------------------------------------------------------- */

/* type: i, f, s or I (i is then the only element); 0 ends the list. */
struct map_attr {
    const char *name;
    char type;
    int64_t i;
    float f;
    const char *s;
};

struct map_node {
    const char *op;
    int opset;
    struct map_attr attrs[5];
};

#define MAP_I(name, value)        \
    {                             \
        name, 'i', value, 0, NULL \
    }
#define MAP_F(name, value)        \
    {                             \
        name, 'f', 0, value, NULL \
    }
#define MAP_S(name, value)     \
    {                          \
        name, 's', 0, 0, value \
    }

/* Runs the node on one and two threads, with scalar kernels, and with all operands but the first as
 * constants; all must give the same bytes. The output must have the type and shape. */
struct map_tensor map_run(const struct map_node *node, const struct map_tensor *inputs, int n,
                          enum cm_dtype dtype, struct cm_shape shape);

/* Loading the node with operands of these types and shapes, or planning it, fails with a sentence
 * that contains part. */
void map_refuse(const struct map_node *node, const struct map_tensor *inputs, int n,
                enum cm_err code, const char *part);

/* The element of a dense tensor of shape `of` that lies under element i of shape `out`. */
size_t map_under(struct cm_shape out, struct cm_shape of, size_t i);

#endif
