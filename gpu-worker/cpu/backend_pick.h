/* Copies in which each axis of the output names, by a table, a place on the same axis of the input:
 * Pad, Tile, CenterCropPad, Resize with mode nearest. Shared by backend*.c only. */
#ifndef GPU_WORKER_CPU_BACKEND_PICK_H
#define GPU_WORKER_CPU_BACKEND_PICK_H

#include "gpu-worker/cpu/backend_priv.h"

/* No place: the output takes the filler there. */
#define CPU_PICK_NONE UINT32_MAX

struct cpu_pick {
    /* Per axis of the output: its size times an index into the input's axis; NULL: as it is. */
    const uint32_t *index[CM_MAX_RANK];
    int value_input; /* the input that holds the filler, or -1: value */
    uint64_t value;  /* the filler's bytes, from the lowest address */
};

/* Room for an axis's table, in the plan's arena. NULL when memory is out (err is filled). */
uint32_t *cpu_pick_table(struct cpu_prepare *p, int64_t size);

/* The step from input 0 to output 0. */
CM_MUST_CHECK enum cm_err cpu_prepare_pick(struct cpu_prepare *p, const struct cpu_pick *pick,
                                           const struct cpu_step **ret_step);

#endif
