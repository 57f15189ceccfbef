/* `ingot down`. Main thread. */
#include "deploy/ingot/on_cluster.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/supervisor.h"

static const struct ig_option options[] = {
    IG_OPTION_RUN_DIR(IG_ON_CLUSTER_RUN_DIR),
    {0},
};

static int stop(const struct ig_command *command, const char *run_dir, bool json)
{
    (void)json;
    struct cm_error err = {0};
    struct ig_control control;
    json_t *answer = NULL;
    enum cm_err code = ig_control_connect(run_dir, &err, &control);
    if (code != CM_OK)
        return ig_complain(command, code == CM_NOT_FOUND ? IG_EXIT_NO_CLUSTER : IG_EXIT_FAILURE,
                           "%s", err.text);
    code = ig_control_ask(&control, "down", &err, &answer);
    json_decref(answer);
    bool asked = code == CM_OK || code == CM_CLOSED;
    if (asked)
        code = ig_control_wait_end(&control, IG_STOP_BOUND_S * 1000);
    ig_control_disconnect(&control);
    if (asked && code == CM_DEADLINE)
        return ig_complain(command, IG_EXIT_FAILURE,
                           "the cluster in %s is still stopping after %d s; 'ingot status' shows "
                           "which process, and its log is in %s/%s",
                           run_dir, IG_STOP_BOUND_S, run_dir, IG_FILE_LOG_DIR);
    if (code != CM_OK)
        return ig_complain(command, IG_EXIT_FAILURE, "%s", err.text);
    printf("stopped\n");
    return IG_EXIT_OK;
}

static int run_down(const struct ig_command *command, int argc, char **argv)
{
    return ig_on_cluster(command, argc, argv, stop);
}

const struct ig_command ig_command_down = {
    .name = "down",
    .summary = "stop a cluster",
    .synopsis = "[--run-dir DIR]",
    .description = "Stops the cluster of a run directory: the gateway takes no more calls and "
                   "finishes those it has, then the scheduler, the workers and memmgr end. Returns "
                   "when all of them are gone.",
    .options = options,
    .files = "RUN-DIR/supervisor.sock\tWhere the supervisor is asked.\n"
             "RUN-DIR/log\tStays, for whoever wants to know what happened.",
    .exit_codes =
        IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE) | IG_EXIT_BIT(NO_CLUSTER),
    .example = " $ ingot down\n stopped",
    .run = run_down,
};
