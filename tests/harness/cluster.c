/* Clusters for C tests. Test thread only. */
#include "tests/harness/cluster.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMMAND_BOUND_MS 120000 /* of one command, a slow sanitizer start included */
#define POLL_MS          20
#define MAX_ARGS         64

/* --- programs */

static int spawn(const char *const *argv, int out[2], int err[2], pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    int errnum = posix_spawn(ret_pid, argv[0], &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    return errnum;
}

/* Reads both pipes to their ends; false at the bound. */
static bool collect(int out, int err, uint64_t deadline_ns, struct tc_result *result)
{
    struct pollfd pipes[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    char *texts[2] = {result->output, result->errors};
    size_t used[2] = {0, 0};
    while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
        uint64_t now_ns = cm_now_ns();
        if (now_ns >= deadline_ns)
            return false;
        if (poll(pipes, 2, (int)((deadline_ns - now_ns) / CM_NS_PER_MS) + 1) < 0 && errno != EINTR)
            return false;
        for (int i = 0; i < 2; i++) {
            char waste[4096];
            if (pipes[i].fd < 0 || !pipes[i].revents)
                continue;
            size_t room = TC_OUTPUT_MAX - 1 - used[i];
            ssize_t n =
                read(pipes[i].fd, room ? texts[i] + used[i] : waste, room ? room : sizeof waste);
            if (n <= 0)
                pipes[i].fd = -1;
            else if (room)
                used[i] += (size_t)n;
        }
    }
    return true;
}

void tc_run(const char *const *argv, unsigned bound_ms, struct tc_result *ret_result)
{
    int out[2], err[2], status = 0;
    pid_t pid = 0;
    memset(ret_result, 0, sizeof *ret_result);
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        fail_msg("no pipes");
    if (spawn(argv, out, err, &pid) != 0)
        fail_msg("%s cannot be started", argv[0]);
    bool done = collect(out[0], err[0], cm_now_ns() + bound_ms * CM_NS_PER_MS, ret_result);
    close(out[0]);
    close(err[0]);
    if (!done)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!done)
        fail_msg("%s %s did not end within %u ms", argv[0], argv[1] ? argv[1] : "", bound_ms);
    ret_result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void tc_ingot(struct tc_cluster *cluster, const char *command, const char *const *args,
              struct tc_result *ret_result)
{
    const char *argv[MAX_ARGS] = {BINARY_DIR "/bin/ingot", command, "--run-dir", cluster->run_dir};
    unsigned n = 4;
    for (; args && *args; args++) {
        assert_true(n < MAX_ARGS - 1);
        argv[n++] = *args;
    }
    tc_run(argv, COMMAND_BOUND_MS, ret_result);
}

/* --- life */

void tc_init(struct tc_cluster *cluster)
{
    memset(cluster, 0, sizeof *cluster);
    t_make_dir(cluster->dir);
    int length = snprintf(cluster->run_dir, sizeof cluster->run_dir, "%s/run", cluster->dir);
    assert_true(length > 0 && (size_t)length < sizeof cluster->run_dir);
}

static void take_addresses(struct tc_cluster *cluster)
{
    json_t *status = tc_status(cluster);
    json_t *addresses = json_object_get(status, "addresses");
    const char *grpc = json_string_value(json_object_get(addresses, "grpc"));
    const char *http = json_string_value(json_object_get(addresses, "http"));
    const char *ca = json_string_value(json_object_get(addresses, "ca"));
    assert_non_null(grpc);
    snprintf(cluster->grpc, sizeof cluster->grpc, "%s", grpc);
    snprintf(cluster->http, sizeof cluster->http, "%s", http ? http : "");
    snprintf(cluster->ca, sizeof cluster->ca, "%s", ca ? ca : "");
    json_decref(status);
}

int tc_up(struct tc_cluster *cluster, const struct tc_options *options)
{
    char workers[16];
    const char *args[MAX_ARGS] = {
        "--models",  options->models ? options->models : SOURCE_DIR "/deploy/demo/models",
        "--workers", workers,
        "--grpc",    "127.0.0.1:0",
        "--http",    "127.0.0.1:0",
        "--detach"};
    unsigned n = 9;
    snprintf(workers, sizeof workers, "%u", options->workers ? options->workers : 1);
    for (const char *const *more = options->args; more && *more; more++) {
        assert_true(n < MAX_ARGS - 5);
        args[n++] = *more;
    }
    if (options->programs)
        setenv("INGOT_PROGRAM_DIR", options->programs, 1);
    tc_ingot(cluster, "up", args, &cluster->up);
    unsetenv("INGOT_PROGRAM_DIR");
    if (cluster->up.status == 0)
        take_addresses(cluster);
    return cluster->up.status;
}

void tc_start(struct tc_cluster *cluster, const struct tc_options *options)
{
    if (tc_up(cluster, options) != 0)
        fail_msg("ingot up failed with %d: %s%s", cluster->up.status, cluster->up.output,
                 cluster->up.errors);
}

int tc_down(struct tc_cluster *cluster)
{
    struct tc_result result;
    tc_ingot(cluster, "down", NULL, &result);
    return result.status;
}

/* What `ingot down` could not stop: only processes that this run directory's status names. */
static void force_down(struct tc_cluster *cluster)
{
    size_t i;
    json_t *process, *status = tc_status(cluster);
    pid_t supervisor = (pid_t)json_integer_value(json_object_get(status, "pid"));
    if (supervisor > 0)
        kill(supervisor, SIGKILL);
    json_array_foreach(json_object_get(status, "processes"), i, process)
    {
        pid_t pid = (pid_t)json_integer_value(json_object_get(process, "pid"));
        if (pid > 0)
            kill(pid, SIGKILL);
    }
    json_decref(status);
}

void tc_fini(struct tc_cluster *cluster)
{
    int status = tc_down(cluster);
    if (status != 0 && status != 3)
        force_down(cluster);
    t_remove_dir(cluster->dir);
}

/* --- questions */

json_t *tc_status(struct tc_cluster *cluster)
{
    const char *args[] = {"--json", NULL};
    struct tc_result result;
    tc_ingot(cluster, "status", args, &result);
    return json_loads(result.output, 0, NULL);
}

json_t *tc_process(json_t *status, const char *role, int index)
{
    size_t i;
    json_t *process;
    json_array_foreach(json_object_get(status, "processes"), i, process)
    {
        const char *name = json_string_value(json_object_get(process, "role"));
        if (name && strcmp(name, role) == 0 &&
            json_integer_value(json_object_get(process, "index")) == index)
            return process;
    }
    return NULL;
}

pid_t tc_pid(struct tc_cluster *cluster, const char *role, int index)
{
    json_t *status = tc_status(cluster);
    json_t *pid = json_object_get(tc_process(status, role, index), "pid");
    pid_t value = (pid_t)json_integer_value(pid);
    json_decref(status);
    return value;
}

pid_t tc_kill(struct tc_cluster *cluster, const char *role, int index)
{
    pid_t pid = tc_pid(cluster, role, index);
    assert_true(pid > 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    return pid;
}

void tc_wait(const char *what, tc_condition_fn condition, void *ctx)
{
    uint64_t deadline_ns = cm_now_ns() + T_BOUND_MS * CM_NS_PER_MS;
    while (!condition(ctx)) {
        if (cm_now_ns() >= deadline_ns)
            fail_msg("not within %d ms: %s", T_BOUND_MS, what);
        poll(NULL, 0, POLL_MS);
    }
}

struct awaited {
    struct tc_cluster *cluster;
    const char *role;
    int index;
    pid_t not_pid, pid;
};

static bool is_ready(void *ctx)
{
    struct awaited *awaited = ctx;
    json_t *status = tc_status(awaited->cluster);
    json_t *process = tc_process(status, awaited->role, awaited->index);
    const char *state = json_string_value(json_object_get(process, "state"));
    awaited->pid = (pid_t)json_integer_value(json_object_get(process, "pid"));
    bool ready = state && strcmp(state, "ready") == 0 && awaited->pid > 0 &&
                 awaited->pid != awaited->not_pid;
    json_decref(status);
    return ready;
}

pid_t tc_wait_ready(struct tc_cluster *cluster, const char *role, int index, pid_t not_pid)
{
    struct awaited awaited = {cluster, role, index, not_pid, 0};
    char what[128];
    snprintf(what, sizeof what, "%s.%d ready with a pid other than %d", role, index, (int)not_pid);
    tc_wait(what, is_ready, &awaited);
    return awaited.pid;
}

/* Gone, or a zombie whose parent has not looked: it runs no more. */
static bool is_gone(void *ctx)
{
    pid_t pid = *(pid_t *)ctx;
    char path[64], stat[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "r");
    if (!in)
        return errno == ENOENT;
    size_t length = fread(stat, 1, sizeof stat - 1, in);
    fclose(in);
    stat[length] = '\0';
    const char *name_end = strrchr(stat, ')');
    return length == 0 || (name_end && strncmp(name_end, ") Z", 3) == 0);
}

void tc_wait_gone(pid_t pid)
{
    char what[64];
    snprintf(what, sizeof what, "the end of pid %d", (int)pid);
    tc_wait(what, is_gone, &pid);
}
