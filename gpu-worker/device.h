/* The device thread: takes batches from the scheduler's channel, runs plans, posts results.
 *
 * It owns the engine, the loaded models and their plans, the channel to the scheduler and the
 * outputs' bookkeeping. The process's main loop (server.h) owns memmgr's client and the bus. The
 * two talk by struct wk_mail only, each through the other's mailbox; a mail belongs to the
 * receiver, which frees it. */
#ifndef GPU_WORKER_DEVICE_H
#define GPU_WORKER_DEVICE_H

#include "common/channel.h"
#include "common/err.h"
#include "common/mailbox.h"
#include "gpu-worker/engine.h"
#include "memmgr/client.h"

#include <stdatomic.h>
#include <stdint.h>

/* X(kind, direction and meaning) */
#define WK_MAIL_MAP(X)                                                                           \
    X(IDENTITY)      /* to device: number = this process's instance */                           \
    X(CHANNEL)       /* to device: channel, a new one to the scheduler */                        \
    X(MODEL)         /* to device: model, ref, max_rows: a new model, attached to its weights */ \
    X(ROUTE)         /* to device: model, ref: the (new) scheduler calls it this */              \
    X(REGION)        /* to device: lease for outputs, or NULL: refused, error says why */        \
    X(LEASE)         /* to device: region, generation, lease of another process or NULL */       \
    X(REVOKED)       /* to device: region, generation, lease of a dead owner: CLOSED_LEASE */    \
    X(STOP)          /* to device: finish what is queued, close, answer STOPPED */               \
    X(CHANNEL_LOST)  /* from device: the scheduler's channel is gone */                          \
    X(CHANNEL_READY) /* from device: a new channel is being read */                              \
    X(CUT_OFF)       /* from device: the scheduler lives and has given this process up */        \
    X(MODEL_READY)   /* from device: model is warm and routed as ref */                          \
    X(NEED_REGION)   /* from device: bytes more for outputs */                                   \
    X(GIVE_REGION)   /* from device: region is not needed any more */                            \
    X(OPEN_LEASE)    /* from device: map region, generation */                                   \
    X(CLOSED_LEASE)  /* from device: lease is out of use: unmap */                               \
    X(STOPPED)       /* from device: the thread has nothing left to do */

enum wk_mail_kind {
#define X(name) WK_MAIL_##name,
    WK_MAIL_MAP(X)
#undef X
};

struct wk_mail {
    struct cm_mail mail;
    enum wk_mail_kind kind;
    struct cm_channel *channel;
    struct wk_model *model;
    struct cm_model_ref ref;
    uint32_t max_rows;
    uint64_t number; /* instance, region or bytes */
    uint32_t generation;
    struct mm_lease *lease;
    struct cm_error error;
};

/* NULL when memory is out. Zero but for kind. */
struct wk_mail *wk_mail_new(enum wk_mail_kind kind);

/* Written by the device thread, read by any (relaxed). X(name) */
#define WK_COUNTER_MAP(X) \
    X(batches)            \
    X(requests)           \
    X(rows)               \
    X(failed_batches)     \
    X(refused_items)      \
    X(abandoned)          \
    X(plans)              \
    X(stale_references)   \
    X(holds)              \
    X(output_bytes_used)  \
    X(output_bytes_total) \
    X(waits)

struct wk_counters {
#define X(name) _Atomic uint64_t name;
    WK_COUNTER_MAP(X)
#undef X
};

struct wk_device;

struct wk_device_options {
    struct wk_engine_options engine;
    uint32_t index;           /* of this worker */
    uint32_t patience_ms;     /* how long a batch may wait for memory; 0: five seconds */
    struct cm_mailbox *owner; /* where the device's mails go; outlives the device */
};

/* Makes the engine and starts the thread. */
CM_MUST_CHECK enum cm_err wk_device_create(const struct wk_device_options *options,
                                           struct cm_error *err, struct wk_device **ret_device);

/* Any thread. Takes mail in any case; false (mail freed) after STOPPED. */
bool wk_device_post(struct wk_device *device, struct wk_mail *mail);

/* For wk_model_parse, pack and attach, which only read the engine and may run beside plans. */
struct wk_engine *wk_device_engine(struct wk_device *device);
const struct wk_counters *wk_device_counters(const struct wk_device *device);

/* After STOPPED: joins and frees, models included. NULL is allowed. */
void wk_device_destroy(struct wk_device *device);

#endif
