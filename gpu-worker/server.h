/* The worker process on its main loop: memmgr, bus, model loading, and the door to the device
 * thread.
 *
 * Start: attach to memmgr -> a lease for outputs -> a channel to the scheduler -> Hello. From then
 * on the scheduler names models (LoadModel) and sends batches, which the device thread takes
 * directly from the channel. */
#ifndef GPU_WORKER_SERVER_H
#define GPU_WORKER_SERVER_H

#include "common/err.h"
#include "gpu-worker/engine.h"

#include <uv.h>

struct wk_server;

struct wk_server_options {
    uv_loop_t *loop;
    const char *run_dir;
    const char *models; /* the repository's root */
    uint32_t index;
    struct wk_engine_options engine;
    /* Ready to take batches for the first time. May be NULL. */
    void (*on_ready)(void *ctx);
    /* Cannot go on: end with CM_EXIT_LOST after wk_server_stop. */
    void (*on_lost)(void *ctx, const struct cm_error *error);
    void *ctx;
};

/* On failure the process must end: a half-made server is not taken apart. */
CM_MUST_CHECK enum cm_err wk_server_create(const struct wk_server_options *options,
                                           struct cm_error *err, struct wk_server **ret_server);

/* Runs what is queued, lets go of everything; the loop then runs dry. Once. */
void wk_server_stop(struct wk_server *server);

/* After the loop has run dry. NULL is allowed. */
void wk_server_destroy(struct wk_server *server);

#endif
