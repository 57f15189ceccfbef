/* Commands on a running cluster; see on_cluster.h. */
#include "deploy/ingot/on_cluster.h"

#include "deploy/ingot/rundir.h"

const struct ig_option ig_on_cluster_options[] = {
    IG_OPTION_RUN_DIR(IG_ON_CLUSTER_RUN_DIR),
    {IG_ON_CLUSTER_JSON, "json", NULL, "Print one JSON object instead of text."},
    {0},
};

struct request {
    const char *run_dir;
    bool json;
};

static bool take(const struct ig_command *command, int id, const char *value, void *target)
{
    struct request *request = target;
    (void)command;
    if (id == IG_ON_CLUSTER_RUN_DIR)
        request->run_dir = value;
    else
        request->json = true;
    return true;
}

int ig_on_cluster(const struct ig_command *command, int argc, char **argv,
                  int (*act)(const struct ig_command *command, const char *run_dir, bool json))
{
    struct request request = {0};
    char run_dir[PATH_MAX];
    struct cm_error err = {0};
    int code = ig_take_options(command, argc, argv, take, &request, 0);
    if (code != IG_OPTIONS_TAKEN)
        return code;
    if (ig_run_dir_resolve(request.run_dir, &err, run_dir) != CM_OK)
        return ig_usage(command, "%s", err.text);
    return act(command, run_dir, request.json);
}

int ig_on_cluster_ask(const struct ig_command *command, const char *run_dir,
                      enum cm_err (*ask)(const char *run_dir, struct cm_error *err,
                                         Ingot__Ipc__Envelope **ret_answer),
                      Ingot__Ipc__Envelope **ret_answer)
{
    struct cm_error err = {0};
    json_t *status = NULL;
    enum cm_err code = ig_cluster_status(run_dir, &err, &status);
    json_decref(status);
    if (code == CM_OK)
        code = ask(run_dir, &err, ret_answer);
    if (code == CM_OK)
        return IG_EXIT_OK;
    bool silent = code == CM_NOT_FOUND || code == CM_DEADLINE;
    return ig_complain(command, silent ? IG_EXIT_NO_CLUSTER : IG_EXIT_FAILURE, "%s", err.text);
}
