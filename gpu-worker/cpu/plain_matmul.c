/* Matrix products and determinants; see plain_matmul.h. Plain C compiled once. */
#include "gpu-worker/cpu/plain_matmul.h"

#include "gpu-worker/cpu/plain.h"

#include <math.h>

enum { BLOCK = 64 /* columns whose sums are kept at once */ };

#define MATMUL(id, type, sum)                                                    \
    static void matmul_##id(const struct k_matmul *g, size_t r0, size_t r1)      \
    {                                                                            \
        for (size_t i = r0; i < r1; i++)                                         \
            for (size_t j0 = 0; j0 < g->n; j0 += BLOCK) {                        \
                size_t width = g->n - j0 < BLOCK ? g->n - j0 : BLOCK;            \
                const type *a = (const type *)g->a + i * g->a_rs;                \
                const type *b = (const type *)g->b + j0 * g->b_cs;               \
                type *c = (type *)g->c + i * g->n + j0;                          \
                sum t[BLOCK] = {0};                                              \
                for (size_t kk = 0; kk < g->k; kk++, a += g->a_cs, b += g->b_rs) \
                    for (size_t j = 0; j < width; j++)                           \
                        t[j] += (sum)*a * (sum)b[j * g->b_cs];                   \
                for (size_t j = 0; j < width; j++)                               \
                    c[j] = (type)t[j];                                           \
            }                                                                    \
    }

#define SCALE_ADD(id, type, sum)                                                     \
    static void scale_add_##id(const struct k_scale_add *s, size_t r0, size_t r1)    \
    {                                                                                \
        for (size_t i = r0; i < r1; i++)                                             \
            for (size_t j = 0; j < s->n; j++) {                                      \
                type *y = (type *)s->y + i * s->n + j;                               \
                type c = s->c ? ((const type *)s->c)[i * s->c_rs + j * s->c_cs] : 0; \
                if (s->alpha == 1.0 && s->beta == 1.0) {                             \
                    *y = (type)((sum)*y + (sum)c);                                   \
                    continue;                                                        \
                }                                                                    \
                double t = s->alpha * (double)*y;                                    \
                if (s->c)                                                            \
                    t += s->beta * (double)c;                                        \
                k_cast(CM_FP64, CM_##id, &t, y, 1);                                  \
            }                                                                        \
    }

#define BOTH(id, type, sum) MATMUL(id, type, sum) SCALE_ADD(id, type, sum)
#define TYPES(X)      \
    K_TYPES_SIGNED(X) \
    K_TYPES_UNSIGNED(X) X(FP64, double, double)

TYPES(BOTH)

#define MATMUL_CASE(id, type, sum) \
    case CM_##id:                  \
        return matmul_##id;
#define SCALE_ADD_CASE(id, type, sum) \
    case CM_##id:                     \
        return scale_add_##id;

k_matmul_fn *k_matmul_for(enum cm_dtype dtype)
{
    switch (dtype) {
        TYPES(MATMUL_CASE)
    default:
        return NULL;
    }
}

k_scale_add_fn *k_scale_add_for(enum cm_dtype dtype)
{
    switch (dtype) {
        TYPES(SCALE_ADD_CASE)
    default:
        return NULL;
    }
}

/* ---- determinants ---------------------------------------------------------------------------- */

/* The row at or below column whose number in it is largest; NaN wins, so that it shows. */
static size_t pivot_of(const double *w, size_t n, size_t column)
{
    size_t best = column;
    for (size_t r = column + 1; r < n; r++) {
        double v = fabs(w[r * n + column]);
        if (v > fabs(w[best * n + column]) || v != v)
            best = r;
    }
    return best;
}

static double det(double *w, size_t n)
{
    double d = 1;
    for (size_t c = 0; c < n; c++) {
        size_t best = pivot_of(w, n, c);
        double pivot = w[best * n + c];
        if (pivot == 0)
            return 0;
        if (best != c) {
            d = -d;
            for (size_t j = c; j < n; j++) {
                double t = w[best * n + j];
                w[best * n + j] = w[c * n + j];
                w[c * n + j] = t;
            }
        }
        d *= pivot;
        for (size_t r = c + 1; r < n; r++) {
            double factor = w[r * n + c] / pivot;
            for (size_t j = c + 1; j < n; j++)
                w[r * n + j] -= factor * w[c * n + j];
        }
    }
    return d;
}

void k_det(enum cm_dtype dtype, size_t n, const void *x, void *y, double *work, size_t i0,
           size_t i1)
{
    size_t element = cm_dtype_size(dtype);
    for (size_t i = i0; i < i1; i++) {
        k_cast(dtype, CM_FP64, (const char *)x + i * n * n * element, work, n * n);
        double d = det(work, n);
        k_cast(CM_FP64, dtype, &d, (char *)y + i * element, 1);
    }
}
