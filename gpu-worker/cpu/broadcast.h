/* Broadcasting element-wise operators: a pure walk over the output in runs. Any thread.
 *
 * cpu_bcast_init merges neighbouring dimensions, so that a typical [N,C,H,W] + [1,C,1,1] becomes
 * N*C runs of H*W elements, in each of which an operand either advances by 1 or stays. */
#ifndef GPU_WORKER_CPU_BROADCAST_H
#define GPU_WORKER_CPU_BROADCAST_H

#include "common/tensor.h"
#include "gpu-worker/cpu/kernels.h"

#define CPU_BCAST_OPERANDS 3

struct cpu_bcast {
    unsigned n_operands;
    unsigned rank; /* of the merged dimensions, at least 1 */
    size_t count;  /* output elements */
    size_t dims[CM_MAX_RANK];
    size_t strides[CPU_BCAST_OPERANDS][CM_MAX_RANK]; /* in elements; 0 where the operand stays */
};

/* The output shape of n_operands dense row-major operands by ONNX's (numpy's) rule. CM_INVALID
 * where they do not fit, CM_LIMIT where the product overflows. */
CM_MUST_CHECK enum cm_err cpu_bcast_shape(const struct cm_shape *const *operands,
                                          unsigned n_operands, struct cm_shape *ret_shape);

/* out is what cpu_bcast_shape said. */
void cpu_bcast_init(struct cpu_bcast *b, const struct cm_shape *out,
                    const struct cm_shape *const *operands, unsigned n_operands);

/* One run: n output elements from element out; operand o starts at element offset[o] and advances
 * by step[o], 0 or 1. */
struct cpu_bcast_run {
    size_t out, n;
    size_t offset[CPU_BCAST_OPERANDS], step[CPU_BCAST_OPERANDS];
};
typedef void cpu_bcast_fn(void *context, const struct cpu_bcast_run *run);

/* Calls fn for the runs that make up output elements [e0, e1). */
void cpu_bcast_walk(const struct cpu_bcast *b, size_t e0, size_t e1, cpu_bcast_fn *fn,
                    void *context);

/* y[e0..e1) = fn(a, b) for a float kernel of the table; y as in k_binary_fn. */
void cpu_bcast_f32(const struct cpu_bcast *b, k_binary_fn *fn, const float *x0, const float *x1,
                   float *y, size_t e0, size_t e1);

#endif
