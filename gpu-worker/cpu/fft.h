/* Discrete Fourier transforms of any length in double precision, in one fixed order of operations.
 * Plain C compiled once; pure functions, any thread. */
#ifndef GPU_WORKER_CPU_FFT_H
#define GPU_WORKER_CPU_FFT_H

#include <stdbool.h>
#include <stddef.h>

#define K_FFT_MAX     ((size_t)1 << 20) /* longest transform */
#define K_FFT_WORK    2147483648.0      /* multiplications that one transform may need */
#define K_FFT_FACTORS 20                /* 2^20 has 10 of 4; lengths of small primes have fewer */

struct k_complex {
    double re, im;
};

struct k_fft {
    size_t n;
    unsigned n_factors;
    size_t factors[K_FFT_FACTORS];
    const struct k_complex *roots; /* e^(-2 pi i j / n) for j < n; the caller's memory */
};

/* Splits the length into stages. False if it is 0, above K_FFT_MAX, or has a prime factor so large
 * that the transform would take more than K_FFT_WORK multiplications. */
bool k_fft_plan(size_t n, struct k_fft *ret_fft);

/* Fills roots [j0, j1) of n: exact where they are (quarter turns), otherwise from f64_sin and
 * f64_cos of an angle in the first eighth of a turn. */
void k_fft_roots(size_t n, size_t j0, size_t j1, struct k_complex *roots);

/* Transforms x (n numbers, overwritten) with y as room for as many; returns whichever of the two
 * holds the result. inverse: conjugate roots, and every result is divided by n. */
struct k_complex *k_fft_run(const struct k_fft *fft, bool inverse, struct k_complex *x,
                            struct k_complex *y);

#endif
