/* One batch on the device thread: resolve its inputs, plan, gather, run, describe the outputs.
 *
 * Split from device.c so that the steps can be tested with tensors in ordinary memory. Device
 * thread only; reads its peers' descriptors as hostile input (they were checked for form by
 * cm_record_check, here against model and leases). */
#ifndef GPU_WORKER_BATCH_H
#define GPU_WORKER_BATCH_H

#include "common/err.h"
#include "common/record.h"
#include "gpu-worker/engine.h"
#include "gpu-worker/outputs.h"

#include <stdbool.h>
#include <stdint.h>

#define WK_PLANS_MAX 48 /* per model; the least recently used one makes place */

/* A model with its plans, one per set of input shapes. */
struct wk_loaded {
    struct wk_model *model;
    struct cm_model_ref ref; /* the scheduler's name for it */
    uint32_t max_rows;
    uint64_t clock; /* of uses */
    struct wk_planned {
        struct cm_shape inputs[WK_MAX_IO];
        struct wk_plan *plan; /* NULL: place is free */
        uint64_t used;
    } plans[WK_PLANS_MAX];
};

/* Memory of this process, grown when a plan is made, never on a planned run. */
struct wk_workspace {
    unsigned char *scratch;
    size_t scratch_bytes;
    unsigned char *gather;
    size_t gather_bytes;
    unsigned char *early; /* settled outputs of a run whose other outputs' sizes depend on data */
    size_t early_bytes;
    unsigned char *kept; /* all outputs of such a run as they will lie in the slab */
    size_t kept_bytes;
};

void wk_loaded_fini(struct wk_loaded *loaded);
void wk_workspace_fini(struct wk_workspace *workspace);

/* The plan for these shapes, made if it is new; workspace then has room for it. */
CM_MUST_CHECK enum cm_err wk_loaded_plan(struct wk_loaded *loaded, struct wk_workspace *workspace,
                                         const struct cm_shape *inputs, struct cm_error *err,
                                         struct wk_plan **ret_plan);

/* Plans and runs 1 and max_rows rows of zeros where only the batch dimension is free, so that the
 * first request finds everything warm. Other models are left alone. */
CM_MUST_CHECK enum cm_err wk_loaded_warm(struct wk_loaded *loaded, struct wk_workspace *workspace,
                                         struct cm_error *err);

/* One request of a batch as batch.c sees it. */
struct wk_row_group {
    const struct cm_execute_item *item;
    const void *inputs[WK_MAX_IO]; /* resolved bytes in another process's lease */
    uint32_t first_row;
    enum cm_err status; /* not CM_OK: leaves the batch, its sentence is the code's text */
};

struct wk_run {
    struct wk_loaded *loaded;
    struct wk_row_group groups[CM_MAX_BATCH_ITEMS];
    unsigned n_groups;
    uint64_t batch; /* the batch's number, never 0 */
    /* Results of wk_run_prepare. */
    struct wk_plan *plan;
    uint64_t early_batch; /* the batch that has run already, because its outputs' sizes are data;
                             set it to 0 when a batch ends: another one may get its number */
    uint64_t started_ns;  /* when */
    uint32_t rows;
    size_t output_offset[WK_MAX_IO]; /* in the slab */
    size_t output_row[WK_MAX_IO];    /* bytes of one row; the whole output if not batchable */
    size_t slab_bytes;
};

/* Gives the live groups their rows, checks them against the model, plans, lays out the slab. Where
 * data decides the outputs' sizes it runs the batch too (once, however often it is asked about the
 * same batch in a row) and keeps copies of all outputs: leases may go, and other models may be
 * warmed up, before there is room for them. CM_STALE if no group is left alive. On another error
 * the whole batch fails with err's sentence.
 */
CM_MUST_CHECK enum cm_err wk_run_prepare(struct wk_run *run, struct wk_workspace *workspace,
                                         struct cm_error *err);

/* Gathers and runs into slab, or copies there what has run. ret_started_ns: after the gathering. */
CM_MUST_CHECK enum cm_err wk_run_execute(struct wk_run *run, struct wk_workspace *workspace,
                                         const struct wk_slab *slab, uint64_t *ret_started_ns,
                                         struct cm_error *err);

/* Writes DONE's payload for a run: into buffer of size bytes. Makes the holds. CM_FULL, with no
 * holds left behind, if there is no place for them; CM_LIMIT if it cannot fit. */
CM_MUST_CHECK enum cm_err wk_run_describe(struct wk_run *run, struct wk_outputs *outputs,
                                          const struct wk_slab *slab, struct cm_record_done *done,
                                          unsigned char *buffer, size_t size, size_t *ret_length);

#endif
