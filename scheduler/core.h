/* The scheduler's decisions: requests in, batches out, each request answered exactly once.
 *
 * No input or output, no clock: records of peers and the time come in as arguments, what is to be
 * sent goes out through a sink. The same code runs in the process, in table-driven tests and in
 * property tests. Memory is fixed at creation. One thread. */
#ifndef SCHEDULER_CORE_H
#define SCHEDULER_CORE_H

#include "scheduler/model.h"

#include "common/err.h"
#include "common/record.h"

#include <stdbool.h>
#include <stdint.h>

#define SD_MAX_GATEWAYS 16u

/* Where the core's records go. None of these may call the core; none can fail: what does not fit
 * now is the callee's to keep. head and tail are valid during the call. */
struct sd_sink {
    void (*to_gateway)(void *ctx, uint32_t gateway, uint8_t type, const void *head,
                       uint32_t head_length, const void *tail, uint32_t tail_length);
    void (*to_worker)(void *ctx, uint32_t worker, uint8_t type, const void *head,
                      uint32_t head_length, const void *tail, uint32_t tail_length);
    /* A batch has been with the worker for far too long. Called once for this life of it; the owner
     * then cuts it off and calls sd_core_worker_detach, outside of this call. */
    void (*worker_hung)(void *ctx, uint32_t worker);
    void *ctx;
};

/* The zero value of each field means its default. */
struct sd_limits {
    uint32_t max_requests; /* 16384: waiting and running, over all models */
    uint32_t max_buckets;  /* 1024: shapes in use or remembered */
    uint32_t max_held;     /* 65536: outputs held under an earlier scheduler, for workers to come */
    uint32_t credits;      /* 2: batches with one worker */
    uint64_t age_step_ns;  /* 250 ms: waiting this long is worth one priority */
    uint64_t hang_ns;      /* 10 s: no batch is given up sooner; 6 times that if of a new shape */
    uint32_t epoch;        /* differs between scheduler lives */
};

/* X(name): what StatsQuery tells. */
#define SD_COUNTER_MAP(X)                                                       \
    X(submitted)                                                                \
    X(completed) /* with a result */                                            \
    X(failed)    /* by the worker's status */                                   \
    X(cancelled)                                                                \
    X(expired)                                                                  \
    X(refused) /* at the door: does not fit, queue full, stale model */         \
    X(poison)                                                                   \
    X(orphaned)     /* the gateway died first */                                \
    X(redispatched) /* requests of a dead worker's batches */                   \
    X(split)        /* requests that go on alone */                             \
    X(batches)                                                                  \
    X(batched_requests)                                                         \
    X(batched_rows)                                                             \
    X(closed_full)                                                              \
    X(closed_waited)                                                            \
    X(closed_deadline)                                                          \
    X(closed_idle)                                                              \
    X(closed_alone)                                                             \
    X(worker_deaths)                                                            \
    X(worker_hangs)                                                             \
    X(gateway_deaths)                                                           \
    X(released)           /* RELEASE passed on, or sent for unwanted results */ \
    X(releases_ignored)   /* of workers that are gone */                        \
    X(duplicates_ignored) /* SUBMIT of a handle in use */                       \
    X(dones_ignored)      /* of unknown batches */                              \
    X(cancels_ignored)    /* of unknown requests */                             \
    X(hostile_records)    /* refused with the peer's channel */

struct sd_counters {
#define X(name) uint64_t name;
    SD_COUNTER_MAP(X)
#undef X
};

struct sd_core;

/* models and sink are borrowed for the core's life. The caller changes models only between calls.
 */
CM_MUST_CHECK enum cm_err sd_core_create(const struct sd_limits *limits, struct sd_models *models,
                                         const struct sd_sink *sink, struct sd_core **ret_core);
void sd_core_destroy(struct sd_core *core);

/* A peer is here, its channel is open. The slot is its index and must be free. CM_LIMIT: index too
 * large. */
CM_MUST_CHECK enum cm_err sd_core_gateway_attach(struct sd_core *core, uint32_t gateway,
                                                 uint64_t instance);
CM_MUST_CHECK enum cm_err sd_core_worker_attach(struct sd_core *core, uint32_t worker,
                                                uint64_t instance);

/* A peer, attached or not, is gone. Its own records are void from here on; nothing is sent to it.
 * gateway, dead: workers are told to drop what they hold for it; not dead: the same life comes back
 * on another channel and says what it holds. */
void sd_core_gateway_detach(struct sd_core *core, uint32_t gateway, bool dead);
void sd_core_worker_detach(struct sd_core *core, uint32_t worker, uint64_t now_ns);

/* One checked record (cm_record_check) from an attached peer. CM_CORRUPT with a sentence: a record
 * that this peer must not send; nothing was changed; cut the peer off. Decides nothing yet:
 * sd_core_pump does, once for all records of a wake-up. */
CM_MUST_CHECK enum cm_err sd_core_from_gateway(struct sd_core *core, uint32_t gateway, uint8_t type,
                                               const void *payload, uint32_t length,
                                               uint64_t now_ns, struct cm_error *err);
CM_MUST_CHECK enum cm_err sd_core_from_worker(struct sd_core *core, uint32_t worker, uint8_t type,
                                              const void *payload, uint32_t length, uint64_t now_ns,
                                              struct cm_error *err);

/* Expires, closes and dispatches all that is due at now_ns. Call after records, after changes of
 * peers or models, and at the time that sd_core_next_wakeup_ns named. */
void sd_core_pump(struct sd_core *core, uint64_t now_ns);

/* When sd_core_pump has something to do although nothing happens; CM_NEVER if never. As of the last
 * pump. */
uint64_t sd_core_next_wakeup_ns(const struct sd_core *core);

const struct sd_counters *sd_core_counters(const struct sd_core *core);
uint32_t sd_core_queued(const struct sd_core *core);    /* requests waiting */
uint32_t sd_core_in_use(const struct sd_core *core);    /* requests not answered */
uint32_t sd_core_in_flight(const struct sd_core *core); /* batches with workers */
uint32_t sd_core_held(const struct sd_core *core);      /* outputs remembered for workers to come */

/* Asserts the invariants that tie the tables together; for tests. */
void sd_core_audit(const struct sd_core *core);

#endif
