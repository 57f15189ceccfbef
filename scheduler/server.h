/* The scheduler process around its core: channels, bus, memmgr, timers.
 *
 * Start: read the repository -> attach to memmgr -> open for business (on_ready). Gateways and
 * workers ask for their channels themselves. A worker is used when its channel and its Hello are
 * both here, from the same life. One uv loop owns everything; all functions are on its thread. */
#ifndef SCHEDULER_SERVER_H
#define SCHEDULER_SERVER_H

#include "common/err.h"

#include <stdint.h>
#include <uv.h>

struct sd_server;

struct sd_server_options {
    uv_loop_t *loop;
    const char *run_dir; /* memmgr.sock lies in it */
    const char *models;  /* the repository */
    uint32_t workers;    /* so many must have come before the model table counts as settled; 0: 1 */
    /* Attached, bus open, repository read. Called once. */
    void (*on_ready)(void *ctx);
    /* The process cannot go on: end with CM_EXIT_LOST. */
    void (*on_lost)(void *ctx, const struct cm_error *error);
    void *ctx;
};

/* Reads the repository (blocking). CM_NOT_FOUND and the like, with a sentence, if it is not there.
 * Failing late leaves a stopped server whose handles the loop has not let go of: then *ret_server
 * is set all the same, to be destroyed after the loop has run dry. Before the call it is NULL. */
CM_MUST_CHECK enum cm_err sd_server_create(const struct sd_server_options *options,
                                           struct cm_error *err, struct sd_server **ret_server);

/* Closes everything at once: what waits is not answered here, because gateways keep their calls and
 * submit them again to the next scheduler. The loop then runs dry. */
void sd_server_stop(struct sd_server *server);

/* After the loop has run dry. NULL is allowed. */
void sd_server_destroy(struct sd_server *server);

#endif
