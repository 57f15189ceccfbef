/* `ingot status`: the supervisor's view of the processes and the scheduler's of the models. Main
 * thread. */
#include "deploy/ingot/on_cluster.h"

#include <string.h>

#define MODELS_BOUND_MS 2000 /* a scheduler that is starting again answers within this */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "-";
}

static bool processes_ready(const json_t *status)
{
    size_t i;
    json_t *process, *processes = json_object_get(status, "processes");
    bool ready = json_array_size(processes) > 0;
    json_array_foreach(processes, i, process) ready =
        ready && strcmp(text_of(process, "state"), "ready") == 0;
    return ready && strcmp(text_of(status, "state"), "up") == 0;
}

/* Adds "models" (null if the scheduler does not answer) and returns whether all are ready. */
static bool add_models(const char *run_dir, json_t *status)
{
    struct cm_error err = {0};
    Ingot__Ipc__Envelope *answer = NULL;
    if (ig_cluster_models(run_dir, MODELS_BOUND_MS, &err, &answer) != CM_OK) {
        json_object_set_new(status, "models", json_null());
        return false;
    }
    const Ingot__Ipc__ModelTable *table = answer->model_table;
    bool ready = table->settled;
    json_t *models = json_array();
    for (size_t i = 0; i < table->n_models; i++) {
        ready = ready && table->models[i]->state == INGOT__IPC__MODEL_STATE__MODEL_READY;
        json_array_append_new(models, ig_model_json(table->models[i]));
    }
    json_object_set_new(status, "models", models);
    ingot__ipc__envelope__free_unpacked(answer, NULL);
    return ready;
}

/* --- text */

static void print_processes(const json_t *processes)
{
    size_t i;
    json_t *process;
    printf("\n%-12s %8s  %-9s %-20s %8s  %s\n", "PROCESS", "PID", "STATE", "SINCE", "RESTARTS",
           "LAST EXIT");
    json_array_foreach(processes, i, process)
    {
        char name[64], pid[24] = "-";
        json_t *number = json_object_get(process, "pid");
        snprintf(name, sizeof name, "%s.%lld", text_of(process, "role"),
                 (long long)json_integer_value(json_object_get(process, "index")));
        if (json_is_integer(number))
            snprintf(pid, sizeof pid, "%lld", (long long)json_integer_value(number));
        printf("%-12s %8s  %-9s %-20s %8lld  %s\n", name, pid, text_of(process, "state"),
               text_of(process, "since"),
               (long long)json_integer_value(json_object_get(process, "restarts")),
               text_of(process, "last_exit"));
    }
}

static void print_models(const json_t *models)
{
    size_t i;
    json_t *model;
    if (json_is_null(models)) {
        printf("\nThe scheduler does not answer: the models are not known.\n");
        return;
    }
    printf("\n%-24s %7s  %-9s %7s  %s\n", "MODEL", "VERSION", "STATE", "WORKERS", "REASON");
    json_array_foreach(models, i, model) printf(
        "%-24s %7lld  %-9s %7zu  %s\n", text_of(model, "name"),
        (long long)json_integer_value(json_object_get(model, "version")), text_of(model, "state"),
        json_array_size(json_object_get(model, "workers")), text_of(model, "reason"));
}

static void print_status(const json_t *status)
{
    const json_t *addresses = json_object_get(status, "addresses");
    bool tls = json_is_true(json_object_get(addresses, "tls"));
    bool ca = json_is_string(json_object_get(addresses, "ca"));
    printf("state    %s since %s\n", text_of(status, "state"), text_of(status, "since"));
    printf("run dir  %s\n", text_of(status, "run_dir"));
    printf("models   %s\n", text_of(status, "models_dir"));
    printf("grpc     %s (%s%s%s)\n", text_of(addresses, "grpc"), tls ? "TLS" : "plaintext",
           ca ? ", trust " : "", ca ? text_of(addresses, "ca") : "");
    printf("http     %s\n", text_of(addresses, "http"));
    print_processes(json_object_get(status, "processes"));
    print_models(json_object_get(status, "models"));
}

static int show(const struct ig_command *command, const char *run_dir, bool json)
{
    struct cm_error err = {0};
    json_t *status = NULL;
    enum cm_err code = ig_cluster_status(run_dir, &err, &status);
    if (code != CM_OK)
        return ig_complain(command, code == CM_NOT_FOUND ? IG_EXIT_NO_CLUSTER : IG_EXIT_FAILURE,
                           "%s", err.text);
    bool ready = processes_ready(status);
    ready = add_models(run_dir, status) && ready;
    json_object_set_new(status, "ready", json_boolean(ready));
    if (json) {
        json_dumpf(status, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        print_status(status);
    }
    json_decref(status);
    return ready ? IG_EXIT_OK : IG_EXIT_NOT_READY;
}

static int run_status(const struct ig_command *command, int argc, char **argv)
{
    return ig_on_cluster(command, argc, argv, show);
}

const struct ig_command ig_command_status = {
    .name = "status",
    .summary = "show a cluster's processes, models and addresses",
    .synopsis = "[--run-dir DIR] [--json]",
    .description =
        "Lists every process with its state (waiting, starting, ready, backoff, stopping, "
        "stopped), since when it has it, how often it was started again and how it last ended; "
        "every model with its state (loading, ready, failed) and the workers that have it; and the "
        "addresses in use.\n"
        "\n"
        "With --json: an object with state, ready, version, pid, since, run_dir, models_dir, "
        "addresses {grpc, http, tls, ca}, processes [{role, index, pid, state, since, restarts, "
        "last_exit}] and models (null if the scheduler does not answer).",
    .options = ig_on_cluster_options,
    .files = "RUN-DIR/supervisor.sock\tWhere the supervisor is asked.",
    .exit_codes = IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE) |
                  IG_EXIT_BIT(NO_CLUSTER) | IG_EXIT_BIT(NOT_READY),
    .example = " $ ingot status --json | jq -r '.processes[] | select(.role == \"worker\").pid'\n"
               " 4242",
    .run = run_status,
};
