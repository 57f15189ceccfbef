/* The supervisor: starts the four processes of a cluster, keeps them running, stops them.
 *
 * `ingot up` is this, in the foreground or as a session of its own. One uv loop on the main thread;
 * it never waits for a child, a client of its control socket or the terminal. It holds none of the
 * cluster's data: when it is killed, the processes end with it (common/proc.h), and the next `ingot
 * up` starts afresh. */
#ifndef DEPLOY_INGOT_SUPERVISOR_H
#define DEPLOY_INGOT_SUPERVISOR_H

#include "common/err.h"

#include <limits.h>
#include <stdbool.h>

#define IG_WORKERS_MAX  64u
#define IG_THREADS_MAX  256u
#define IG_TIMEOUT_S    300u /* default of up --timeout */
#define IG_GRPC_ADDRESS "127.0.0.1:8500"
#define IG_HTTP_ADDRESS "127.0.0.1:8501"
#define IG_STOP_BOUND_S 45 /* a clean stop ends within this, whatever the processes do */
#define IG_ADDRESS_MAX  256u

/* Paths are absolute; strings live as long as the call. */
struct ig_supervisor_options {
    char run_dir[PATH_MAX];
    char models_dir[PATH_MAX];
    char program_dir[PATH_MAX]; /* ingot-memmgr and the others lie in it */
    char tls_cert[PATH_MAX], tls_key[PATH_MAX], tls_client_ca[PATH_MAX]; /* "" if not given */
    const char *grpc, *http;
    unsigned workers;
    unsigned threads;   /* of each worker; 0: the worker chooses */
    unsigned timeout_s; /* for the start */
    bool plaintext;
    int report; /* socket to the `ingot up --detach` that waits, or -1 in the foreground */
};

/* Runs the cluster until it is told to stop or gives up; returns an exit code (enum ig_exit). All
 * processes are gone when it returns. Prints what became of the start to standard output and
 * complaints to standard error, or both through options->report:
 *
 *   "o TEXT\n" for standard output, "e TEXT\n" for standard error, "x CODE\n" once: the cluster is
 *   up (0), or is not and nothing is left running. */
int ig_supervisor_run(const struct ig_supervisor_options *options);

#endif
