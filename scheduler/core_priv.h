/* The inside of the core, shared by core.c (peers and their records), dispatch.c (what leaves) and
 * finish.c (what ends). Nothing else includes it. */
#ifndef SCHEDULER_CORE_PRIV_H
#define SCHEDULER_CORE_PRIV_H

#include "scheduler/core.h"
#include "scheduler/queue.h"
#include "scheduler/workers.h"

#include "common/check.h"
#include "common/clock.h"

/* Gateways that died lately: workers that attach later are told, too. */
#define SD_DROPPED_KEPT 64u

/* Two deaths in company, then alone; the third death, alone, is the request's own doing. */
#define SD_DEATHS_IN_COMPANY 2u

/* The largest EXECUTE: header, items, inputs. It fits a record by construction. */
#define SD_EXECUTE_MAX                  \
    (sizeof(struct cm_record_execute) + \
     CM_MAX_BATCH_ITEMS *               \
         (sizeof(struct cm_execute_item) + CM_MAX_TENSORS * sizeof(struct cm_tensor_desc)))
_Static_assert(SD_EXECUTE_MAX <= CM_RECORD_MAX, "a full batch fits one record");

struct sd_gateway {
    bool attached;
    bool resumed;
    uint64_t instance;
};

struct sd_held {
    uint32_t gateway;
    struct cm_slab_ref slab;
};

struct sd_core {
    struct sd_limits limits;
    struct sd_models *models; /* borrowed */
    struct sd_sink sink;
    struct sd_queue queue;
    struct sd_workers workers;
    struct sd_gateway gateways[SD_MAX_GATEWAYS];
    struct sd_held *held; /* limits.max_held; those of workers that are not here */
    uint32_t n_held;
    uint64_t dropped[SD_DROPPED_KEPT];
    uint32_t n_dropped; /* ever; the ring's index */
    uint64_t wakeup_ns;
    struct sd_counters counters;
    unsigned char *scratch; /* SD_EXECUTE_MAX, for the record that is being built */
};

/* finish.c */

/* The one REPLY without a result for a request that no worker has; frees it. Counts by status. */
void sd_finish_without_result(struct sd_core *core, struct sd_request *request, enum cm_err status,
                              const char *text, uint64_t now_ns);
/* The one REPLY for a SUBMIT that never became a request. */
void sd_refuse(struct sd_core *core, uint32_t gateway, const struct cm_record_submit *submit,
               const struct cm_error *error, uint64_t now_ns);
/* Passes a slab's release on, or notes that its worker is gone. */
void sd_release(struct sd_core *core, const struct cm_slab_ref *slab);
CM_MUST_CHECK enum cm_err sd_done(struct sd_core *core, uint32_t worker,
                                  const struct cm_record_done *done, uint64_t now_ns,
                                  struct cm_error *err);
/* A batch's worker died. */
void sd_batch_lost(struct sd_core *core, struct sd_batch *batch, uint64_t now_ns);

#endif
