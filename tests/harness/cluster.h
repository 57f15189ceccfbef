/* A real cluster for a C test: `ingot up --detach` in a run directory of its own, with ports that
 * the system chooses, and what a test asks of it: who runs under which pid, kill, wait, stop.
 *
 * Test thread only. Everything that blocks has a bound. Functions without a result fail the test
 * when what they promise cannot be had. Processes that are killed here are only those that `ingot
 * status` of this run directory names. */
#ifndef TESTS_HARNESS_CLUSTER_H
#define TESTS_HARNESS_CLUSTER_H

#include "tests/harness/t.h"

#include <jansson.h>
#include <sys/types.h>

#define TC_OUTPUT_MAX (64u * 1024u)

/* What a command printed (standard output and error, cut at TC_OUTPUT_MAX) and its exit status, or
 * 128 + the signal that ended it. */
struct tc_result {
    int status;
    char output[TC_OUTPUT_MAX];
    char errors[TC_OUTPUT_MAX];
};

/* Zero values: build's own programs, the demo models, one worker. */
struct tc_options {
    const char *models;
    const char *programs; /* INGOT_PROGRAM_DIR, for stand-ins */
    unsigned workers;
    const char *const *args; /* more arguments of `ingot up`, NULL at the end */
};

struct tc_cluster {
    char dir[T_PATH_MAX]; /* private; holds the run directory and whatever the test puts there */
    char run_dir[T_PATH_MAX];
    char grpc[300], http[300]; /* after a successful start */
    char ca[T_PATH_MAX];       /* "" if plaintext */
    struct tc_result up;       /* of the start */
};

/* Makes the directories. Always followed by tc_fini. */
void tc_init(struct tc_cluster *cluster);
/* Stops what runs (within the bound of `ingot down`, else by force) and removes the directories. */
void tc_fini(struct tc_cluster *cluster);

/* Runs `ingot up --detach`; its exit status (also in cluster->up). */
int tc_up(struct tc_cluster *cluster, const struct tc_options *options);
/* As tc_up; fails the test with what it printed unless it succeeds. */
void tc_start(struct tc_cluster *cluster, const struct tc_options *options);
/* `ingot down`; its exit status. */
int tc_down(struct tc_cluster *cluster);

/* Runs `ingot COMMAND --run-dir RUN ARGS...`; args ends with NULL and may be NULL. */
void tc_ingot(struct tc_cluster *cluster, const char *command, const char *const *args,
              struct tc_result *ret_result);
/* Runs any program (argv[0] is its path) with stdin from /dev/null, for bound_ms at most. */
void tc_run(const char *const *argv, unsigned bound_ms, struct tc_result *ret_result);

/* `ingot status --json`; NULL if there is no cluster. The caller lets go of it. */
json_t *tc_status(struct tc_cluster *cluster);
/* The entry of a process in status, or NULL. Borrowed. */
json_t *tc_process(json_t *status, const char *role, int index);
/* Pid of a process, 0 if it has none now. */
pid_t tc_pid(struct tc_cluster *cluster, const char *role, int index);

/* kill -9; returns the pid. */
pid_t tc_kill(struct tc_cluster *cluster, const char *role, int index);
/* Waits until the process is ready under another pid than that; returns the new one. */
pid_t tc_wait_ready(struct tc_cluster *cluster, const char *role, int index, pid_t not_pid);
/* Waits until the pid is gone. */
void tc_wait_gone(pid_t pid);

/* Polls condition until it holds; fails the test after T_BOUND_MS, naming what. A bounded wait for
 * what only a question can show. */
typedef bool (*tc_condition_fn)(void *ctx);
void tc_wait(const char *what, tc_condition_fn condition, void *ctx);

#endif
