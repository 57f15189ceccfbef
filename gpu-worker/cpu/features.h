/* What this CPU and this operating system can run. Probed once; any thread.
 *
 * Also defines wk_isa_name, wk_isa_from_name and wk_isa_best, which engine.h declares. */
#ifndef GPU_WORKER_CPU_FEATURES_H
#define GPU_WORKER_CPU_FEATURES_H

#include "gpu-worker/engine.h"

/* Bit (1u << isa) for every instruction set that CPUID reports and for which the operating system
 * saves the registers (XGETBV). The bit of WK_ISA_SCALAR is always set. */
unsigned cpu_isa_mask(void);

/* Chooses the instruction set of an engine: wanted, or the machine's best if NULL; the environment
 * variable INGOT_CPU_ISA (scalar, avx2, avx512) can only lower it. CM_UNSUPPORTED if the machine
 * lacks wanted, CM_INVALID if the variable is none of the three words. */
CM_MUST_CHECK enum cm_err cpu_isa_choose(const enum wk_isa *wanted, struct cm_error *err,
                                         enum wk_isa *ret_isa);

#endif
