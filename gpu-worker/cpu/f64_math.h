/* Elementary functions in double precision, this project's own, because libm's exp, log, sin and
 * pow give different last bits on different machines and versions. For operators that are too rare
 * for kernels, and for whatever wants a float's function correctly rounded: (float)f64_x(y) is, but
 * for about one argument in 10^8.
 *
 * Computed in the 80-bit format of every x86-64 processor with additions, multiplications,
 * divisions and square roots only, so the bits are the same everywhere, and rounded to double once
 * at the end: errors stay below 0.51 units in the last place (f64_math_test measures them),
 * denormal results included. Special cases are those of C (Annex F). Pure functions, any thread;
 * 20 to 150 ns. */
#ifndef GPU_WORKER_CPU_F64_MATH_H
#define GPU_WORKER_CPU_F64_MATH_H

/* The one list: F64(name) is double f64_name(double). */
#define F64_FUNCTIONS(F64) \
    F64(exp)               \
    F64(expm1)             \
    F64(log)               \
    F64(log2)              \
    F64(log1p)             \
    F64(sin)               \
    F64(cos)               \
    F64(tan)               \
    F64(asin)              \
    F64(acos)              \
    F64(atan)              \
    F64(sinh)              \
    F64(cosh)              \
    F64(tanh)              \
    F64(asinh)             \
    F64(acosh)             \
    F64(atanh)             \
    F64(erf)               \
    F64(sigmoid)

#define F64_PROTOTYPE(name) double f64_##name(double x);
F64_FUNCTIONS(F64_PROTOTYPE)
#undef F64_PROTOTYPE
/* f64_sigmoid is 1 / (1 + e^-x); the others are C's functions of that name. */

/* x to the power y. */
double f64_pow(double x, double y);

#endif
