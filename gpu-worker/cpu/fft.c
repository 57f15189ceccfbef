/* Mixed-radix transforms that sort themselves (Stockham); see fft.h.
 *
 * A stage of radix r takes numbers that lie [r][m][s] (m * r numbers of a transform that is split,
 * s transforms side by side) and leaves them [m][r][s], so that after the last stage they are in
 * order and no bit reversal is needed. */
#include "gpu-worker/cpu/fft.h"

#include "gpu-worker/cpu/f64_math.h"

#define TWO_PI 6.28318530717958647692

bool k_fft_plan(size_t n, struct k_fft *ret_fft)
{
    struct k_fft fft = {.n = n};
    size_t rest = n, radix = 4;
    double work = 0;
    if (n == 0 || n > K_FFT_MAX)
        return false;
    while (rest > 1) {
        if (rest % radix != 0) { /* 4, 2, 3, 5, 7, ... then what is left, a prime */
            radix = radix == 4 ? 2 : radix == 2 ? 3 : radix + 2;
            if (radix > 4 && radix * radix > rest)
                radix = rest;
            continue;
        }
        fft.factors[fft.n_factors++] = radix;
        work += (double)n * (double)radix;
        rest /= radix;
    }
    *ret_fft = fft;
    return work <= K_FFT_WORK;
}

/* e^(-2 pi i j / n), 0 <= j < n, by folding the angle into the first eighth of a turn. */
static struct k_complex root(size_t j, size_t n)
{
    bool below = 2 * j > n, left, swap;
    j = below ? n - j : j; /* of n per turn */
    left = 4 * j > n;
    size_t half = left ? n - 2 * j : 2 * j; /* of 2n per turn, at most a quarter */
    swap = 4 * half > n;
    size_t eighth = swap ? n - 2 * half : 2 * half; /* of 4n per turn */
    double angle = TWO_PI * (double)eighth / (4.0 * (double)n);
    double cosine = f64_cos(angle), sine = f64_sin(angle);
    if (swap) {
        double t = cosine;
        cosine = sine;
        sine = t;
    }
    return (struct k_complex){left ? -cosine : cosine, below ? sine : -sine};
}

void k_fft_roots(size_t n, size_t j0, size_t j1, struct k_complex *roots)
{
    for (size_t j = j0; j < j1; j++)
        roots[j] = root(j, n);
}

static inline struct k_complex times(struct k_complex a, struct k_complex b)
{
    return (struct k_complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static inline struct k_complex plus(struct k_complex a, struct k_complex b)
{
    return (struct k_complex){a.re + b.re, a.im + b.im};
}

static inline struct k_complex minus(struct k_complex a, struct k_complex b)
{
    return (struct k_complex){a.re - b.re, a.im - b.im};
}

static inline struct k_complex root_at(const struct k_fft *f, size_t j, bool inverse)
{
    struct k_complex w = f->roots[j];
    return inverse ? (struct k_complex){w.re, -w.im} : w;
}

/* The three stages; m and s as above. */
static void stage_2(const struct k_fft *f, bool inverse, size_t m, size_t s,
                    const struct k_complex *x, struct k_complex *y)
{
    for (size_t p = 0; p < m; p++) {
        struct k_complex w = root_at(f, p * s, inverse);
        const struct k_complex *from = x + p * s;
        struct k_complex *to = y + 2 * p * s;
        for (size_t q = 0; q < s; q++) {
            struct k_complex a = from[q], b = from[m * s + q];
            to[q] = plus(a, b);
            to[s + q] = times(minus(a, b), w);
        }
    }
}

static void stage_4(const struct k_fft *f, bool inverse, size_t m, size_t s,
                    const struct k_complex *x, struct k_complex *y)
{
    for (size_t p = 0; p < m; p++) {
        struct k_complex w1 = root_at(f, p * s, inverse), w2 = root_at(f, 2 * p * s, inverse);
        struct k_complex w3 = root_at(f, 3 * p * s, inverse);
        const struct k_complex *from = x + p * s;
        struct k_complex *to = y + 4 * p * s;
        for (size_t q = 0; q < s; q++) {
            struct k_complex a = from[q], b = from[m * s + q], c = from[2 * m * s + q];
            struct k_complex d = from[3 * m * s + q];
            struct k_complex e = plus(a, c), g = minus(a, c), h = plus(b, d), t = minus(b, d);
            struct k_complex turned = {t.im, -t.re}; /* (b - d) * e^(-2 pi i / 4) */
            if (inverse)
                turned = (struct k_complex){-t.im, t.re};
            to[q] = plus(e, h);
            to[s + q] = times(plus(g, turned), w1);
            to[2 * s + q] = times(minus(e, h), w2);
            to[3 * s + q] = times(minus(g, turned), w3);
        }
    }
}

static void stage_any(const struct k_fft *f, bool inverse, size_t r, size_t m, size_t s,
                      const struct k_complex *x, struct k_complex *y)
{
    size_t step = f->n / r;
    for (size_t p = 0; p < m; p++)
        for (size_t q = 0; q < s; q++)
            for (size_t k = 0; k < r; k++) {
                struct k_complex sum = x[p * s + q];
                for (size_t j = 1, at = k; j < r; j++, at = at + k < r ? at + k : at + k - r)
                    sum = plus(sum, times(x[(j * m + p) * s + q], root_at(f, at * step, inverse)));
                y[(p * r + k) * s + q] = times(sum, root_at(f, p * k * s, inverse));
            }
}

struct k_complex *k_fft_run(const struct k_fft *fft, bool inverse, struct k_complex *x,
                            struct k_complex *y)
{
    size_t m = fft->n, s = 1;
    for (unsigned i = 0; i < fft->n_factors; i++) {
        size_t r = fft->factors[i];
        m /= r;
        if (r == 2)
            stage_2(fft, inverse, m, s, x, y);
        else if (r == 4)
            stage_4(fft, inverse, m, s, x, y);
        else
            stage_any(fft, inverse, r, m, s, x, y);
        s *= r;
        struct k_complex *swap = x;
        x = y;
        y = swap;
    }
    for (size_t i = 0; inverse && i < fft->n; i++)
        x[i] = (struct k_complex){x[i].re / (double)fft->n, x[i].im / (double)fft->n};
    return x;
}
