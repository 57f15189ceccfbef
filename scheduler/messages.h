/* Between the control plane's messages and the scheduler's own structs. Generated types stay in
 * messages.c and control.c. Pure; the loop's thread. */
#ifndef SCHEDULER_MESSAGES_H
#define SCHEDULER_MESSAGES_H

#include "scheduler/model.h"

#include "proto/ipc.pb-c.h"

/* A ModelTable message with everything it points to; names are borrowed from models until
 * sd_table_free. */
struct sd_table {
    Ingot__Ipc__ModelTable message;
    void *memory; /* one block */
};

CM_MUST_CHECK enum cm_err sd_table_make(const struct sd_models *models, uint64_t revision,
                                        bool settled, struct sd_table *ret_table);
void sd_table_free(struct sd_table *table);

/* A worker's signature as ours, owned by the caller. CM_INVALID with a sentence for one that a
 * worker must not have sent; CM_NOMEM. */
CM_MUST_CHECK enum cm_err sd_signature_from(const Ingot__Ipc__ModelStatus *status,
                                            struct cm_error *err,
                                            struct sd_signature *ret_signature);

#endif
