/* The supervisor's insides, shared by its own files: supervisor.c (order of start and stop),
 * child.c (one process), notify.c (READY), readiness.c (is it up?), control.c (status and down).
 *
 * Everything here belongs to the supervisor's loop. */
#ifndef DEPLOY_INGOT_SUPERVISOR_PRIV_H
#define DEPLOY_INGOT_SUPERVISOR_PRIV_H

#include "common/bus.h"
#include "common/role.h"
#include "deploy/ingot/exit.h"
#include "deploy/ingot/logsink.h"
#include "deploy/ingot/restart_policy.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/supervisor.h"

#include <jansson.h>
#include <time.h>
#include <uv.h>

#define IG_MAX_CHILDREN (IG_WORKERS_MAX + 3u)
#define IG_CHILD_ARGS   24
#define IG_CONTROL_MAX  32u   /* clients of the control socket at a time */
#define IG_CONTROL_LINE 4096u /* bytes of one request */

/* A process's states. The numbers are ours alone; the names are in `ingot status --json`.
 *
 *   waiting -> starting -> ready      -> (dies) backoff -> starting
 *                 |          |                     |
 *                 +----------+-------> stopping    |
 *                 (dies) backoff          |        |
 *                                         v        v
 *                                       stopped <--+
 *
 * X(name, text) */
#define IG_CHILD_STATE_MAP(X) \
    X(WAITING, "waiting")     \
    X(STARTING, "starting")   \
    X(READY, "ready")         \
    X(BACKOFF, "backoff")     \
    X(STOPPING, "stopping")   \
    X(STOPPED, "stopped")

enum ig_child_state {
#define X(name, text) IG_CHILD_##name,
    IG_CHILD_STATE_MAP(X)
#undef X
};

enum ig_phase { IG_PHASE_STARTING, IG_PHASE_UP, IG_PHASE_STOPPING };

struct ig_supervisor;

struct ig_child {
    struct ig_supervisor *supervisor;
    enum cm_role role;
    uint32_t index;
    char name[24]; /* "worker.0" */
    enum ig_child_state state;
    time_t since; /* of the state */
    unsigned restarts;
    char last_exit[160]; /* a sentence; "" before the first death */
    struct ig_restart restart;
    struct ig_log log;

    char *args[IG_CHILD_ARGS]; /* owned */
    unsigned n_args;

    /* One life: the process's handle and the pipe of its standard error. Both are closed before
     * the next life begins; open counts those that are not. */
    uv_process_t process;
    uv_pipe_t output;
    unsigned open;
    bool running;  /* has a pid that may be signalled */
    int exit_code; /* -1: by a signal, or it never ran */

    uv_timer_t timer; /* end of the back-off; deadline of the stop */
};

struct ig_control_client;

struct ig_supervisor {
    const struct ig_supervisor_options *options;
    uv_loop_t loop;
    enum ig_phase phase;
    time_t since;
    int exit_code; /* once stopping */
    bool in_a_hurry;
    unsigned stop_stage;

    struct ig_child children[IG_MAX_CHILDREN];
    unsigned n_children;
    char **environment;
    struct ig_log log; /* the supervisor's own */

    int lock;
    int family; /* locked; every process inherits it, so it stays locked while one of them lives */
    uint64_t begun_ns;
    uv_signal_t signals[3];
    uv_poll_t notify;
    int notify_fd;
    uv_pipe_t control;
    bool control_listening;
    struct ig_control_client *clients;
    unsigned n_clients;

    /* Until the cluster is up: who waits for it, and the question to the scheduler. */
    bool waiting; /* the start has not been reported */
    uv_poll_t report;
    bool report_polled;
    uv_timer_t start_timer;
    uv_timer_t ask_timer;
    struct cm_bus *bus;
    bool asking;
    uint64_t settled_ns; /* when the models first were; 0 before */

    char grpc[IG_ADDRESS_MAX], http[IG_ADDRESS_MAX]; /* as bound; "" until known */
    bool tls;
};

/* --- supervisor.c */

/* One line into the supervisor's log. */
void ig_note(struct ig_supervisor *sup, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Begins the stop, or hurries one that has begun. code: what ig_supervisor_run will return. */
void ig_stop(struct ig_supervisor *sup, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A child has stopped for good, or the stop has just begun: stops who is next, or ends the loop. */
void ig_advance_stop(struct ig_supervisor *sup);
/* memmgr is ready, so the others may start. */
void ig_start_others(struct ig_supervisor *sup);

/* --- child.c */

const char *ig_child_state_name(enum ig_child_state state);
/* Name, log file, timer. Args are added by ig_child_arg afterwards. */
CM_MUST_CHECK enum cm_err ig_child_init(struct ig_child *child, struct ig_supervisor *sup,
                                        enum cm_role role, uint32_t index, struct cm_error *err);
void ig_child_fini(struct ig_child *child);
void ig_child_arg(struct ig_child *child, const char *text);
/* Replaces the argument that follows option, if it is there. */
void ig_child_set_arg(struct ig_child *child, const char *option, const char *text);
/* WAITING or BACKOFF -> STARTING (or, if it cannot even be started, what a death does). */
void ig_child_start(struct ig_child *child);
/* READY=1 came from its pid. */
void ig_child_ready(struct ig_child *child);
/* SIGTERM and a deadline, or SIGKILL now. Leads to STOPPED and ig_advance_stop. */
void ig_child_stop(struct ig_child *child, uint64_t deadline_ms);
void ig_child_kill(struct ig_child *child);

/* --- notify.c */

/* The socket on which the processes say READY=1. */
CM_MUST_CHECK enum cm_err ig_notify_open(struct ig_supervisor *sup, struct cm_error *err);
void ig_notify_close(struct ig_supervisor *sup);

/* --- readiness.c */

CM_MUST_CHECK enum cm_err ig_readiness_init(struct ig_supervisor *sup, struct cm_error *err);
/* A process became ready, or time has passed: asks the scheduler if all processes are. */
void ig_readiness_check(struct ig_supervisor *sup);
/* The start has failed; nothing runs any more. */
void ig_readiness_failed(struct ig_supervisor *sup);
/* Stops asking. */
void ig_readiness_stop(struct ig_supervisor *sup);
/* What the gateway wrote about itself; false (and no change) if it has not yet. */
bool ig_read_addresses(struct ig_supervisor *sup);
/* A line for whoever waits for the start: stream 'o' or 'e'. */
void ig_tell(struct ig_supervisor *sup, char stream, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- control.c */

CM_MUST_CHECK enum cm_err ig_control_open(struct ig_supervisor *sup, struct cm_error *err);
void ig_control_close(struct ig_supervisor *sup);

#endif
