/* The cases that every CPU kernel is tested with: shapes around the tiles, one enumeration for all
 * tests, and the oracles. Test code; one thread.
 *
 * An oracle is the kernel's definition from kernels.h as plain loops, written once and compiled
 * twice: in float with fmaf, which must agree to the bit, and in double, which must agree within
 * rounding. */
#ifndef TESTS_ENGINE_KERNELS_CASES_H
#define TESTS_ENGINE_KERNELS_CASES_H

#include "gpu-worker/cpu/kernels.h"

/* Gaps between rows and bytes around buffers hold this; nothing may change it. */
#define KC_GUARD 0x5ca1ab1eu

enum kc_family {
    KC_GEMM,
    KC_CONV,
    KC_DWCONV,
    KC_POOL,
    KC_AXIS,
    KC_SCALE_SHIFT,
    KC_CELL,
    KC_LAYER_NORM,
    KC_UNARY,
    KC_BINARY
};

/* op of a KC_CELL case: kernels of recurrent layers. */
enum { KC_RNN_CELL, KC_LSTM_CELL, KC_GRU_RESET, KC_GRU_CELL };

/* op of a KC_AXIS case. */
enum {
    KC_REDUCE_SUM,
    KC_REDUCE_MEAN,
    KC_REDUCE_MAX,
    KC_REDUCE_MIN,
    KC_REDUCE_PROD,
    KC_REDUCE_L1,
    KC_REDUCE_L2,
    KC_REDUCE_SUM_SQUARE,
    KC_REDUCE_LOG_SUM,
    KC_REDUCE_LOG_SUM_EXP, /* these two and what follows take logarithms or exponentials */
    KC_SOFTMAX,
    KC_LOGSOFTMAX
};

struct kc {
    enum kc_family family;
    const char *kernel; /* name in kernels.inc, with f32_ */
    int op;             /* enum k_unary, enum k_binary, or one of a family's kernels */
    char what[120];     /* the shape, for messages */
    size_t in[3], out;  /* floats of the operands and the result */
    size_t terms;       /* roundings that add up in one output, for the tolerance */
    union {
        struct k_gemm gemm;
        struct k_conv conv;
        struct k_pool pool;
        struct k_axis axis;
        struct k_scale_shift scale_shift;
        /* Operands: gates; states h, c and recurrent [3][rows][hidden]; peepholes. Result: h, c and
         * reset [3][rows][hidden], then y. Pointers only say which operands there are. */
        struct {
            struct k_rnn_cell args;
            size_t rows;
        } cell;
        struct {
            struct k_norm args; /* scale, bias, mean: NULL or not; pointers are set at run */
            size_t rows;
        } norm;
        struct {
            size_t n, step_a, step_b;
            struct k_unary_params params;
            bool in_place;
        } map;
    } u;
};

typedef void kc_fn(void *context, const struct kc *c);

/* Calls fn for every case. small: only the cheap ones (for emulators). */
void kc_each(bool small, kc_fn *fn, void *context);

/* Floats of workspace that kc_run needs (64-byte aligned). */
size_t kc_workspace(const struct kc *c);

/* Runs the case with k, cut into parts; the cuts are deliberately odd. y holds KC_GUARD before. */
void kc_run(const struct kc *c, const struct cpu_kernels *k, const float *const in[3], float *y,
            float *workspace, unsigned parts);

/* False where the family has no oracle: unary functions are tested against libm; in double, cells
 * are not either, because the project's own functions stand in their definition. */
bool kc_oracle_float(const struct kc *c, const float *const in[3], float *y);
bool kc_oracle_double(const struct kc *c, const float *const in[3], double *y);

/* Input data. */
enum kc_data { KC_NORMAL, KC_SPECIAL, KC_TINY, KC_DATA_COUNT };
const char *kc_data_name(enum kc_data data);
void kc_fill(enum kc_data data, uint64_t seed, float *x, size_t n);

/* All NaN to one NaN: payloads and signs of NaN are not defined. */
void kc_canonical(float *x, size_t n);

#endif
