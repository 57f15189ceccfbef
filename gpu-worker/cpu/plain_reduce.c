/* Reductions of types without vector kernels; see plain_reduce.h. Plain C compiled once. */
#include "gpu-worker/cpu/plain_reduce.h"

#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>

/* ---- which elements -------------------------------------------------------------------------- */

void k_reduce_init(const struct cm_shape *x, const bool axes[CM_MAX_RANK], struct k_reduce *ret)
{
    size_t stride = 1, strides[CM_MAX_RANK];
    for (unsigned i = x->rank; i-- > 0;) {
        strides[i] = stride;
        stride *= (size_t)x->dims[i];
    }
    *ret = (struct k_reduce){.n = 1};
    for (unsigned i = 0; i < x->rank; i++) {
        size_t dim = (size_t)x->dims[i];
        if (axes[i]) {
            ret->reduced[ret->n_reduced] = dim;
            ret->reduced_stride[ret->n_reduced++] = strides[i];
            ret->n *= dim;
        } else {
            ret->kept[ret->n_kept] = dim;
            ret->kept_stride[ret->n_kept++] = strides[i];
        }
    }
}

size_t k_reduce_at(const struct k_reduce *r, size_t item)
{
    size_t at = 0;
    for (unsigned i = r->n_kept; i-- > 0;) {
        at += item % r->kept[i] * r->kept_stride[i];
        item /= r->kept[i];
    }
    return at;
}

struct k_reduce_run k_reduce_first(const struct k_reduce *r)
{
    unsigned last = r->n_reduced - 1;
    if (r->n == 0)
        return (struct k_reduce_run){0};
    if (r->n_reduced == 0)
        return (struct k_reduce_run){.n = 1, .stride = 1};
    return (struct k_reduce_run){.n = r->reduced[last], .stride = r->reduced_stride[last]};
}

void k_reduce_next(const struct k_reduce *r, struct k_reduce_run *run)
{
    for (unsigned i = r->n_reduced > 1 ? r->n_reduced - 1 : 0; i-- > 0;) {
        run->offset += r->reduced_stride[i];
        if (++run->index[i] < r->reduced[i])
            return;
        run->offset -= r->reduced[i] * r->reduced_stride[i];
        run->index[i] = 0;
    }
    run->n = 0;
}

/* ---- for each type --------------------------------------------------------------------------- */

#define T        uint8_t
#define O(name)  name##_UINT8
#define ID       CM_UINT8
#define LEAST    0
#define GREATEST UINT8_MAX
#include "gpu-worker/cpu/plain_reduce.inc"

#define T        uint16_t
#define O(name)  name##_UINT16
#define ID       CM_UINT16
#define LEAST    0
#define GREATEST UINT16_MAX
#include "gpu-worker/cpu/plain_reduce.inc"

#define T        uint32_t
#define O(name)  name##_UINT32
#define ID       CM_UINT32
#define LEAST    0
#define GREATEST UINT32_MAX
#include "gpu-worker/cpu/plain_reduce.inc"

#define T        uint64_t
#define O(name)  name##_UINT64
#define ID       CM_UINT64
#define LEAST    0
#define GREATEST UINT64_MAX
#include "gpu-worker/cpu/plain_reduce.inc"

#define T         int8_t
#define O(name)   name##_INT8
#define ID        CM_INT8
#define LEAST     INT8_MIN
#define GREATEST  INT8_MAX
#define IS_SIGNED 1
#include "gpu-worker/cpu/plain_reduce.inc"

#define T         int16_t
#define O(name)   name##_INT16
#define ID        CM_INT16
#define LEAST     INT16_MIN
#define GREATEST  INT16_MAX
#define IS_SIGNED 1
#include "gpu-worker/cpu/plain_reduce.inc"

#define T         int32_t
#define O(name)   name##_INT32
#define ID        CM_INT32
#define LEAST     INT32_MIN
#define GREATEST  INT32_MAX
#define IS_SIGNED 1
#include "gpu-worker/cpu/plain_reduce.inc"

#define T         int64_t
#define O(name)   name##_INT64
#define ID        CM_INT64
#define LEAST     INT64_MIN
#define GREATEST  INT64_MAX
#define IS_SIGNED 1
#include "gpu-worker/cpu/plain_reduce.inc"

#define T        float
#define O(name)  name##_FP32
#define ID       CM_FP32
#define LEAST    -INFINITY
#define GREATEST INFINITY
#define IS_REAL  1
#include "gpu-worker/cpu/plain_reduce.inc"

#define T        double
#define O(name)  name##_FP64
#define ID       CM_FP64
#define LEAST    -INFINITY
#define GREATEST INFINITY
#define IS_REAL  1
#include "gpu-worker/cpu/plain_reduce.inc"

/* Booleans: any non-zero byte is true. */
static void reduce_BOOL(const struct k_reduce *r, enum k_reduce_op op, const void *x, void *y,
                        size_t i0, size_t i1)
{
    bool any = op == K_REDUCE_MAX;
    for (size_t i = i0; i < i1; i++) {
        const uint8_t *from = (const uint8_t *)x + k_reduce_at(r, i);
        bool t = !any;
        for (struct k_reduce_run run = k_reduce_first(r); run.n; k_reduce_next(r, &run))
            for (size_t j = 0; j < run.n; j++)
                if ((from[run.offset + j * run.stride] != 0) == any)
                    t = any;
        ((uint8_t *)y)[i] = t;
    }
}

#define REDUCE_CASE(id, type, sum) \
    case CM_##id:                  \
        return reduce_##id;
#define ARG_CASE(id, type, sum) \
    case CM_##id:               \
        return arg_##id;
#define CUM_SUM_CASE(id, type, sum) \
    case CM_##id:                   \
        return cum_sum_##id;
#define HARDMAX_CASE(id, type, sum) \
    case CM_##id:                   \
        return hardmax_##id;

k_reduce_fn *k_reduce_for(enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_BOOL:
        return reduce_BOOL;
        K_TYPES_NUMBER(REDUCE_CASE)
    default:
        return NULL;
    }
}

k_arg_fn *k_arg_for(enum cm_dtype dtype)
{
    switch (dtype) {
        K_TYPES_NUMBER(ARG_CASE)
    default:
        return NULL;
    }
}

k_cum_sum_fn *k_cum_sum_for(enum cm_dtype dtype)
{
    switch (dtype) {
        K_TYPES_NUMBER(CUM_SUM_CASE)
    default:
        return NULL;
    }
}

k_along_fn *k_hardmax_for(enum cm_dtype dtype)
{
    switch (dtype) {
        K_TYPES_REAL(HARDMAX_CASE)
    default:
        return NULL;
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void softmax_item(const double *x, double *y, size_t n, size_t stride, bool log)
{
    double m = -INFINITY, sum = 0;
    for (size_t j = 0; j < n; j++)
        if (x[j * stride] > m || x[j * stride] != x[j * stride])
            m = x[j * stride];
    for (size_t j = 0; j < n; j++) {
        double e = f64_exp(x[j * stride] - m);
        sum += e;
        if (!log)
            y[j * stride] = e;
    }
    double log_sum = log ? f64_log(sum) : 0;
    for (size_t j = 0; j < n; j++)
        y[j * stride] = log ? (x[j * stride] - m) - log_sum : y[j * stride] / sum;
}

void k_f64_softmax(const struct k_along *a, const void *x, void *y, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1 && a->n; i++)
        softmax_item((const double *)x + k_along_at(a, i), (double *)y + k_along_at(a, i), a->n,
                     a->inner, false);
}

void k_f64_logsoftmax(const struct k_along *a, const void *x, void *y, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1 && a->n; i++)
        softmax_item((const double *)x + k_along_at(a, i), (double *)y + k_along_at(a, i), a->n,
                     a->inner, true);
}
