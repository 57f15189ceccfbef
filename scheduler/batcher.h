/* When to close a batch: the one decision of the batching policy, as a pure function of what waits
 * and what time it is. */
#ifndef SCHEDULER_BATCHER_H
#define SCHEDULER_BATCHER_H

#include <stdint.h>

/* Why a batch closed. X(name, counter) */
#define SD_CLOSE_MAP(X)          \
    X(FULL, closed_full)         \
    X(WAITED, closed_waited)     \
    X(DEADLINE, closed_deadline) \
    X(IDLE, closed_idle)

enum sd_close_reason {
    SD_CLOSE_NOT = 0, /* goes on waiting for company */
#define X(name, counter) SD_CLOSE_##name,
    SD_CLOSE_MAP(X)
#undef X
};

/* What waits in one bucket, for a worker that has a credit free. */
struct sd_waiting {
    uint32_t rows;  /* in all */
    uint32_t items; /* requests */
    uint32_t max_rows;
    uint32_t max_items;
    uint64_t max_wait_ns;
    uint64_t oldest_ns;            /* when the oldest was queued */
    uint64_t earliest_deadline_ns; /* CM_NEVER if none has one */
    uint64_t predicted_ns;         /* of a run with the rows that are there; the high guess */
};

struct sd_close {
    enum sd_close_reason reason;
    uint64_t at_ns; /* SD_CLOSE_NOT: when to ask again if nothing arrives; else now */
};

struct sd_close sd_batcher_close(const struct sd_waiting *waiting, uint64_t now_ns);

#endif
