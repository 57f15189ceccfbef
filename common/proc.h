/* The skeleton of a process: start-up settings, readiness, signals, clean stop.
 *
 * Used by the four main.c files, on the main thread. */
#ifndef COMMON_PROC_H
#define COMMON_PROC_H

#include "common/err.h"
#include "common/role.h"

#include <uv.h>

/* Exit codes of every program, also in deploy/README.md. */
enum cm_exit {
    CM_EXIT_OK = 0,
    CM_EXIT_FAILURE = 1, /* the log's last error line says why */
    CM_EXIT_USAGE = 2,   /* bad arguments or configuration: starting again cannot help */
    CM_EXIT_LOST = 3,    /* something it cannot work without is gone: start again */
};

struct cm_proc;

struct cm_proc_options {
    uv_loop_t *loop;
    enum cm_role role;
    uint32_t index;
    /* SIGTERM or SIGINT came (once); a second signal ends the process at once. The callee drains,
     * closes its handles and lets the loop run dry. */
    void (*on_stop)(void *ctx);
    void *ctx;
};

/* First thing in main, before any library: malloc thresholds that keep large buffers (mmap
 * threshold, trim threshold, top pad), SIGPIPE ignored, RLIMIT_NOFILE raised to its hard limit,
 * umask 0077, log name set, death with the parent (PR_SET_PDEATHSIG) if INGOT_SUPERVISED is set to
 * its pid: if that is not the parent any more, the process ends here with CM_EXIT_LOST. */
void cm_proc_early(enum cm_role role, uint32_t index);

CM_MUST_CHECK enum cm_err cm_proc_start(const struct cm_proc_options *options, struct cm_error *err,
                                        struct cm_proc **ret_proc);

/* Tells the supervisor (sd_notify protocol, $NOTIFY_SOCKET): READY=1 the first time, STATUS=text.
 * No-op without a supervisor. text may be NULL. */
void cm_proc_ready(struct cm_proc *proc, const char *text);
void cm_proc_status(struct cm_proc *proc, const char *text);

/* Closes signal handles; the loop can then run dry. */
void cm_proc_close(struct cm_proc *proc);

/* Runs the loop until nothing is left, then closes it and asserts that no handle is active. */
void cm_proc_run_dry(uv_loop_t *loop);

#endif
