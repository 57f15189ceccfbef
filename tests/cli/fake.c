/* A stand-in for the four programs of a cluster, for tests of the supervisor: the role comes from
 * the program's name. It says READY=1, answers what `ingot up` and `ingot status` ask, and stops on
 * SIGTERM; or misbehaves as the environment variable FAKE_ROLE (FAKE_GATEWAY, ...) says:
 *
 *   die     exits with status 1 after a last line on standard error, before it is ready
 *   usage   exits with status 2
 *   deaf    ignores SIGTERM
 *   silent  runs and never says that it is ready
 *   loading (scheduler) its models never finish loading */
#include "common/bus.h"
#include "common/log.h"
#include "common/proc.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake {
    uv_loop_t loop;
    struct cm_proc *proc;
    struct cm_bus *bus;
    bool loading;
};

static void on_stop(void *ctx)
{
    struct fake *fake = ctx;
    cm_bus_close(fake->bus);
    cm_proc_close(fake->proc);
}

static void fill_model(Ingot__Ipc__Model *model, char *name, bool ready, uint32_t *workers,
                       size_t n_workers)
{
    ingot__ipc__model__init(model);
    model->name = name;
    model->version = 1;
    model->state =
        ready ? INGOT__IPC__MODEL_STATE__MODEL_READY : INGOT__IPC__MODEL_STATE__MODEL_FAILED;
    if (!ready)
        model->reason = (char *)"operator Frobnicate is not supported";
    model->n_workers = ready ? n_workers : 0;
    model->workers = workers;
}

static void answer_models(struct fake *fake, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelTable table = INGOT__IPC__MODEL_TABLE__INIT;
    Ingot__Ipc__Model models[2], *list[2] = {&models[0], &models[1]};
    uint32_t workers[2] = {0, 1};
    fill_model(&models[0], (char *)"good", true, workers, 2);
    fill_model(&models[1], (char *)"bad", false, NULL, 0);
    if (fake->loading)
        models[1].state = INGOT__IPC__MODEL_STATE__MODEL_LOADING;
    table.settled = !fake->loading;
    table.n_models = getenv("FAKE_ALL_GOOD") ? 1 : 2;
    table.models = list;
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE;
    answer.model_table = &table;
    if (cm_bus_answer(fake->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_ERROR, "answer_failed", "what=%s", "models");
}

static void on_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    (void)bus;
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY)
        answer_models(ctx, message);
}

static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return "";
}

/* Port 0 becomes one that tells the processes apart, so that a test sees whether it is kept. */
static void write_addresses(const char *run_dir, const char *grpc, const char *http)
{
    char path[4096], bound[256];
    snprintf(path, sizeof path, "%s/gateway.json", run_dir);
    snprintf(bound, sizeof bound, "%s", grpc);
    if (strcmp(grpc, "127.0.0.1:0") == 0)
        snprintf(bound, sizeof bound, "127.0.0.1:%u", 1024u + (unsigned)getpid() % 60000u);
    FILE *out = fopen(path, "w");
    if (!out)
        exit(CM_EXIT_FAILURE);
    fprintf(out, "{\"grpc\":\"%s\",\"http\":\"%s\",\"tls\":true}\n", bound, http);
    fclose(out);
}

static void misbehave(const char *mode)
{
    if (strcmp(mode, "die") == 0) {
        fprintf(stderr, "the last words of pid %d\n", (int)getpid());
        exit(CM_EXIT_FAILURE);
    }
    if (strcmp(mode, "usage") == 0) {
        fprintf(stderr, "this configuration makes no sense\n");
        exit(CM_EXIT_USAGE);
    }
}

static const char *mode_of(enum cm_role role)
{
    char name[64] = "FAKE_";
    snprintf(name + 5, sizeof name - 5, "%s", cm_role_name(role));
    for (char *c = name; *c; c++)
        if (*c >= 'a' && *c <= 'z')
            *c -= 'a' - 'A';
    const char *mode = getenv(name);
    return mode ? mode : "";
}

int main(int argc, char **argv)
{
    static struct fake fake;
    struct cm_error err = {0};
    const char *base = strrchr(argv[0], '-');
    enum cm_role role = cm_role_from_name(base ? base + 1 : "");
    uint32_t index = (uint32_t)strtoul(option(argc, argv, "--index"), NULL, 10);
    if (role == CM_ROLE_NONE)
        return CM_EXIT_USAGE;
    const char *mode = mode_of(role), *run_dir = option(argc, argv, "--run-dir");
    cm_proc_early(role, index);
    misbehave(mode);
    uv_loop_init(&fake.loop);
    fake.loading = strcmp(mode, "loading") == 0;
    struct cm_proc_options proc = {
        .loop = &fake.loop, .role = role, .index = index, .on_stop = on_stop, .ctx = &fake};
    struct cm_bus_options bus = {.loop = &fake.loop,
                                 .run_dir = run_dir,
                                 .role = role,
                                 .index = index,
                                 .on_message = on_message,
                                 .ctx = &fake};
    if (cm_bus_open(&bus, &err, &fake.bus) != CM_OK)
        return CM_EXIT_FAILURE;
    if (cm_proc_start(&proc, &err, &fake.proc) != CM_OK)
        return CM_EXIT_FAILURE;
    if (strcmp(mode, "deaf") == 0)
        signal(SIGTERM, SIG_IGN);
    if (role == CM_ROLE_GATEWAY)
        write_addresses(run_dir, option(argc, argv, "--grpc"), option(argc, argv, "--http"));
    if (strcmp(mode, "silent") != 0)
        cm_proc_ready(fake.proc, NULL);
    cm_proc_run_dry(&fake.loop);
    return CM_EXIT_OK;
}
