/* A scheduler core with fake gateways and workers around it, for tests.
 *
 * Everything that the core sends is checked, remembered and written down as words, so that a test
 * can be a table of events and the words that each must cause:
 *
 *   X0:1,2    EXECUTE to worker 0 with the requests 1 and 2, in this order
 *   R0:1=OK   REPLY to gateway 0 for its request 1
 *   L0        RELEASE to worker 0         D0:g    DROP of gateway instance g
 *   A0:2      ABANDON to worker 0 of the third item of a batch
 *   H0        HELD to worker 0            S0:g    RESUMED of gateway instance g
 *   K0        worker 0 reported as hung
 *
 * The request's handle travels in the trace id, which the core only echoes. */
#ifndef TESTS_SCHEDULER_FIXTURE_H
#define TESTS_SCHEDULER_FIXTURE_H

#include "scheduler/core.h"

#include <stddef.h>

#define FX_MODELS       3
#define FX_BATCHES      1024
#define FX_RECORD_WORDS (CM_RECORD_MAX / 8)

/* Positions of the fixture's models. */
enum { FX_EAGER = 0, FX_PATIENT = 1, FX_SINGLE = 2 };

/* An EXECUTE that was sent and not yet answered. */
struct fx_batch {
    uint32_t worker;
    uint64_t batch;
    uint32_t rows;
    uint16_t n_items;
    uint64_t handles[CM_MAX_BATCH_ITEMS];
    uint64_t gateways[CM_MAX_BATCH_ITEMS];
    uint32_t item_rows[CM_MAX_BATCH_ITEMS];
    uint64_t masks[CM_MAX_BATCH_ITEMS];
    int64_t width;
    struct cm_model_ref model;
};

/* Hooks of a test that wants more than words. */
struct fx_hooks {
    void (*on_reply)(void *ctx, uint32_t gateway, const struct cm_record_reply *reply);
    void (*on_release)(void *ctx, uint32_t worker, const struct cm_slab_ref *slab);
    void (*on_execute)(void *ctx, const struct fx_batch *batch);
    void (*on_hung)(void *ctx, uint32_t worker);
    void *ctx;
};

struct fx {
    struct sd_models models;
    struct sd_core *core;
    struct fx_hooks hooks;
    char words[8192];
    size_t used;
    struct fx_batch *batches; /* FX_BATCHES, oldest first */
    uint32_t n_batches;
    uint64_t workers[SD_MAX_WORKERS];   /* instances; 0: not attached */
    uint64_t gateways[SD_MAX_GATEWAYS]; /* instances; 0: not attached */
    uint32_t next_slab;
    struct cm_record_reply last_reply;
    char last_text[CM_MAX_TEXT + 1];
    uint64_t *record; /* scratch of FX_RECORD_WORDS */
};

/* Three models, each with one FP32 input [-1, -1] (rows, width) and two outputs [-1, 4]:
 *   FX_EAGER    max_batch 8, no wait, at most 64 queued
 *   FX_PATIENT  max_batch 4, waits 1000 us
 *   FX_SINGLE   not batchable: [-1, -1] without rows
 * credits 0: the default. */
void fx_open(struct fx *fx, const struct sd_limits *limits);
void fx_close(struct fx *fx);

void fx_add_gateway(struct fx *fx, uint32_t gateway, uint64_t instance);
void fx_del_gateway(struct fx *fx, uint32_t gateway);
/* With every model ready on it. */
void fx_add_worker(struct fx *fx, uint32_t worker, uint64_t instance);
/* Its batches are forgotten. */
void fx_del_worker(struct fx *fx, uint32_t worker, uint64_t now_ns);

struct fx_submit {
    uint32_t gateway;
    uint64_t handle;
    uint32_t model;       /* FX_EAGER ... */
    uint32_t rows;        /* 0: 1 */
    int64_t width;        /* 0: 16 */
    uint64_t deadline_ns; /* 0: CM_NEVER */
    uint8_t priority;
    uint64_t mask; /* 0: 1 */
};
void fx_submit(struct fx *fx, const struct fx_submit *submit, uint64_t now_ns);
/* The record itself, in fx->record; its length. */
uint32_t fx_make_submit(struct fx *fx, const struct fx_submit *submit);
void fx_cancel(struct fx *fx, uint32_t gateway, uint64_t handle, uint64_t now_ns);
void fx_release(struct fx *fx, uint32_t gateway, const struct cm_slab_ref *slab, uint64_t now_ns);

/* The worker's oldest batch ends with this status. Returns false if it has none. */
bool fx_done(struct fx *fx, uint32_t worker, enum cm_err status, uint64_t now_ns);
/* Builds the DONE of a batch in fx->record; its length. */
uint32_t fx_make_done(struct fx *fx, const struct fx_batch *batch, enum cm_err status,
                      const char *text);
/* The oldest batch with this worker; NULL if none. */
const struct fx_batch *fx_oldest(const struct fx *fx, uint32_t worker);
void fx_forget(struct fx *fx, const struct fx_batch *batch);

/* Compares the words since the last call with expected. */
void fx_expect(struct fx *fx, const char *where, const char *expected);

#endif
