/* Nodes whose operands are of several floating types, or of a type that has no arithmetic of its
 * own (FP16 and BF16; INT8 and UINT8 where windows slide): prepared as the same node in FP32 or
 * FP64, with conversions around it. Reading is exact; a result is rounded once more when it is
 * stored. Shared by backend*.c only. */
#ifndef GPU_WORKER_CPU_BACKEND_MIXED_H
#define GPU_WORKER_CPU_BACKEND_MIXED_H

#include "gpu-worker/cpu/backend_priv.h"

/* Some operand or result of floating type has another type than the arithmetic's: FP64 where input
 * 0 is that, otherwise FP32. */
bool cpu_is_mixed(const struct cpu_prepare *p);

/* Prepares the node through inner, which sees the arithmetic's type wherever the node has a
 * floating type or, where that is an integer, input 0's. Operands whose bit is set in packed are
 * handed over as they are stored: the operator's own layout, or not at all. */
enum cm_err cpu_prepare_mixed(struct cpu_prepare *p, cpu_prepare_fn *inner, uint32_t packed,
                              const struct cpu_step **ret_step);

#endif
