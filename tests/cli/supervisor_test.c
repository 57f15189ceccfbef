/* The supervisor with stand-ins for the cluster's programs (fake.c): start, refusal, restart,
 * giving up, stop. */
#include "tests/harness/cluster.h"

#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAKES BINARY_DIR "/tests/fake"

static const struct tc_options fakes = {.programs = FAKES, .workers = 2};

static int set_up(void **state)
{
    static struct tc_cluster cluster;
    static const char *const knobs[] = {"FAKE_MEMMGR",  "FAKE_WORKER",   "FAKE_SCHEDULER",
                                        "FAKE_GATEWAY", "FAKE_ALL_GOOD", "INGOT_RUN_DIR"};
    for (unsigned i = 0; i < sizeof knobs / sizeof knobs[0]; i++)
        unsetenv(knobs[i]);
    tc_init(&cluster);
    *state = &cluster;
    return 0;
}

static int tear_down(void **state)
{
    tc_fini(*state);
    return 0;
}

static const char *text_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

/* Does the command line of pid have text as a whole argument? */
static bool has_argument(const char *pid, const char *text)
{
    char path[64], bytes[8192];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    FILE *in = fopen(path, "r");
    if (!in)
        return false;
    size_t length = fread(bytes, 1, sizeof bytes - 1, in);
    fclose(in);
    bytes[length] = '\0';
    for (size_t i = 0; i < length; i += strlen(bytes + i) + 1)
        if (strcmp(bytes + i, text) == 0)
            return true;
    return false;
}

/* Nothing of the run directory runs any more: every process has its path as an argument. */
static void assert_nothing_left(struct tc_cluster *cluster)
{
    struct tc_result result;
    tc_ingot(cluster, "status", NULL, &result);
    assert_int_equal(result.status, 3);
    assert_contains(result.errors, "ingot up");
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    for (struct dirent *entry; (entry = readdir(proc));)
        if (has_argument(entry->d_name, cluster->run_dir))
            fail_msg("process %s is left", entry->d_name);
    closedir(proc);
}

static void starts_in_order_and_stops(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    assert_contains(cluster->up.output, "model good version 1: ready on 2 workers");
    assert_contains(cluster->up.output, "model bad version 1: failed: operator Frobnicate");
    assert_contains(cluster->up.output, "grpc 127.0.0.1:");
    pid_t gateway = tc_pid(cluster, "gateway", 0);
    pid_t memmgr = tc_pid(cluster, "memmgr", 0);
    assert_true(memmgr > 0 && gateway > 0);
    assert_int_equal(tc_down(cluster), 0);
    assert_int_equal(kill(gateway, 0), -1);
    assert_int_equal(kill(memmgr, 0), -1);
    assert_nothing_left(cluster);
    assert_int_equal(tc_down(cluster), 3);
    /* And again in the same run directory. */
    tc_start(cluster, &fakes);
}

static void status_has_the_documented_shape(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    json_t *status = tc_status(cluster);
    assert_string_equal(text_of(status, "state"), "up");
    assert_string_equal(text_of(status, "run_dir"), cluster->run_dir);
    assert_true(json_is_false(json_object_get(status, "ready"))); /* one model failed */
    json_t *processes = json_object_get(status, "processes");
    assert_int_equal(json_array_size(processes), 5);
    static const char *const roles[] = {"memmgr", "worker", "worker", "scheduler", "gateway"};
    for (unsigned i = 0; i < 5; i++) {
        json_t *process = json_array_get(processes, i);
        assert_string_equal(text_of(process, "role"), roles[i]);
        assert_int_equal(json_integer_value(json_object_get(process, "index")), i == 2 ? 1 : 0);
        assert_true(json_integer_value(json_object_get(process, "pid")) > 1);
        assert_string_equal(text_of(process, "state"), "ready");
        assert_int_equal(strlen(text_of(process, "since")), strlen("2026-01-01T00:00:00Z"));
        assert_true(json_is_integer(json_object_get(process, "restarts")));
        assert_true(json_is_null(json_object_get(process, "last_exit")));
    }
    json_t *models = json_object_get(status, "models");
    assert_int_equal(json_array_size(models), 2);
    assert_string_equal(text_of(json_array_get(models, 1), "state"), "failed");
    json_decref(status);
}

static void status_tells_ready_from_not_ready(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    setenv("FAKE_ALL_GOOD", "1", 1);
    tc_start(cluster, &fakes);
    tc_ingot(cluster, "status", NULL, &result);
    assert_int_equal(result.status, 0);
    assert_contains(result.output, "scheduler.0");
    assert_int_equal(tc_down(cluster), 0);
    unsetenv("FAKE_ALL_GOOD");
    tc_start(cluster, &fakes);
    tc_ingot(cluster, "status", NULL, &result);
    assert_int_equal(result.status, 4);
}

static void second_up_is_refused(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    pid_t gateway = tc_pid(cluster, "gateway", 0);
    assert_int_equal(tc_up(cluster, &fakes), 2);
    assert_contains(cluster->up.errors, "already running");
    assert_contains(cluster->up.errors, "ingot down");
    assert_int_equal(tc_pid(cluster, "gateway", 0), gateway);
}

static void restarts_what_dies(void **state)
{
    static const struct {
        const char *role;
        int index;
    } processes[] = {{"worker", 0}, {"worker", 1}, {"scheduler", 0}, {"gateway", 0}, {"memmgr", 0}};
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    for (unsigned i = 0; i < sizeof processes / sizeof processes[0]; i++) {
        pid_t old = tc_kill(cluster, processes[i].role, processes[i].index);
        tc_wait_ready(cluster, processes[i].role, processes[i].index, old);
        json_t *status = tc_status(cluster);
        json_t *process = tc_process(status, processes[i].role, processes[i].index);
        assert_int_equal(json_integer_value(json_object_get(process, "restarts")), 1);
        assert_contains(text_of(process, "last_exit"), "signal 9");
        json_decref(status);
    }
}

/* Clients know the port; a gateway that comes back must be there, although the system chose it. */
static void gateway_keeps_its_port(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    char before[sizeof cluster->grpc];
    memcpy(before, cluster->grpc, sizeof before);
    pid_t old = tc_kill(cluster, "gateway", 0);
    tc_wait_ready(cluster, "gateway", 0, old);
    json_t *status = tc_status(cluster);
    assert_string_equal(text_of(json_object_get(status, "addresses"), "grpc"), before);
    json_decref(status);
}

static void gives_up_after_five_deaths(void **state)
{
    struct tc_cluster *cluster = *state;
    setenv("FAKE_GATEWAY", "die", 1);
    assert_int_equal(tc_up(cluster, &fakes), 1);
    assert_contains(cluster->up.errors, "gateway.0 died 5 times");
    assert_contains(cluster->up.errors, "the last words of pid");
    assert_nothing_left(cluster);
}

/* The rule holds after the start too: the cluster stops by itself. */
static bool has_no_cluster(void *ctx)
{
    struct tc_result result;
    tc_ingot(ctx, "status", NULL, &result);
    return result.status == 3;
}

static void write_script(const char *dir, const char *name, const char *body)
{
    char path[T_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(body, out);
    fclose(out);
    assert_int_equal(chmod(path, 0700), 0);
}

static void gives_up_on_a_running_cluster(void **state)
{
    struct tc_cluster *cluster = *state;
    char programs[T_PATH_MAX], script[2 * T_PATH_MAX];
    static const char *const roles[] = {"memmgr", "scheduler", "gateway", "worker"};
    snprintf(programs, sizeof programs, "%.200s/programs", cluster->dir);
    assert_int_equal(mkdir(programs, 0700), 0);
    for (unsigned i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "ingot-%s", roles[i]);
        snprintf(script, sizeof script, "#!/bin/sh\nexec " FAKES "/%s \"$@\"\n", name);
        write_script(programs, name, script);
    }
    struct tc_options options = {.programs = programs, .workers = 2};
    tc_start(cluster, &options);
    write_script(programs, "ingot-worker", "#!/bin/sh\necho broken installation >&2\nexit 1\n");
    tc_kill(cluster, "worker", 0);
    tc_wait("the end of the cluster", has_no_cluster, cluster);
    assert_nothing_left(cluster);
    char log[T_PATH_MAX + 64];
    snprintf(log, sizeof log, "%s/log/supervisor.log", cluster->run_dir);
    const char *argv[] = {"/usr/bin/env", "cat", log, NULL};
    struct tc_result result;
    tc_run(argv, 10000, &result);
    assert_contains(result.output, "worker.0 died 5 times");
    assert_contains(result.output, "broken installation");
}

static void configuration_error_is_not_retried(void **state)
{
    struct tc_cluster *cluster = *state;
    setenv("FAKE_SCHEDULER", "usage", 1);
    assert_int_equal(tc_up(cluster, &fakes), 2);
    assert_contains(cluster->up.errors, "scheduler.0 does not accept");
    assert_contains(cluster->up.errors, "this configuration makes no sense");
    assert_nothing_left(cluster);
}

static void start_is_bounded(void **state)
{
    const char *args[] = {"--timeout", "1", NULL};
    struct tc_options options = {.programs = FAKES, .args = args};
    struct tc_cluster *cluster = *state;
    setenv("FAKE_WORKER", "silent", 1);
    assert_int_equal(tc_up(cluster, &options), 1);
    assert_contains(cluster->up.errors, "not ready within 1 s: worker.0");
    assert_nothing_left(cluster);
    unsetenv("FAKE_WORKER");
    setenv("FAKE_SCHEDULER", "loading", 1);
    assert_int_equal(tc_up(cluster, &options), 1);
    assert_contains(cluster->up.errors, "did not load within 1 s");
    assert_nothing_left(cluster);
}

static void deaf_process_is_killed(void **state)
{
    struct tc_cluster *cluster = *state;
    setenv("FAKE_SCHEDULER", "deaf", 1);
    tc_start(cluster, &fakes);
    pid_t scheduler = tc_pid(cluster, "scheduler", 0);
    assert_int_equal(tc_down(cluster), 0);
    assert_int_equal(kill(scheduler, 0), -1);
}

static pid_t supervisor_pid(struct tc_cluster *cluster)
{
    json_t *status = tc_status(cluster);
    pid_t pid = (pid_t)json_integer_value(json_object_get(status, "pid"));
    json_decref(status);
    assert_true(pid > 1);
    return pid;
}

static void second_signal_hurries(void **state)
{
    struct tc_cluster *cluster = *state;
    setenv("FAKE_GATEWAY", "deaf", 1);
    tc_start(cluster, &fakes);
    pid_t supervisor = supervisor_pid(cluster);
    pid_t gateway = tc_pid(cluster, "gateway", 0);
    assert_int_equal(kill(supervisor, SIGTERM), 0);
    /* Once it stops, the second one must be seen as the second. */
    struct tc_result result;
    do
        tc_ingot(cluster, "status", NULL, &result);
    while (result.status == 4 && !strstr(result.output, "stopping"));
    assert_int_equal(kill(supervisor, SIGTERM), 0);
    tc_wait_gone(gateway);
    tc_wait_gone(supervisor);
    assert_nothing_left(cluster);
}

static void death_of_the_supervisor_takes_all_along(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    pid_t gateway = tc_pid(cluster, "gateway", 0), memmgr = tc_pid(cluster, "memmgr", 0);
    pid_t supervisor = supervisor_pid(cluster);
    assert_int_equal(kill(supervisor, SIGKILL), 0);
    tc_wait_gone(gateway);
    tc_wait_gone(memmgr);
    tc_wait_gone(supervisor);
    assert_nothing_left(cluster);
}

/* The next start waits for what the death of a supervisor has left. */
static void starts_after_the_death_of_a_supervisor(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &fakes);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(kill(supervisor_pid(cluster), SIGKILL), 0);
        tc_start(cluster, &fakes);
        json_t *status = tc_status(cluster);
        json_t *gateway = tc_process(status, "gateway", 0);
        assert_int_equal(json_integer_value(json_object_get(gateway, "restarts")), 0);
        json_decref(status);
    }
}

/* `ingot up` with these options, not waited for; its output is the test's. */
static pid_t spawn_up(struct tc_cluster *cluster, bool detach)
{
    const char *argv[] = {
        BINARY_DIR "/bin/ingot",          "up",        "--run-dir", cluster->run_dir, "--models",
        SOURCE_DIR "/deploy/demo/models", "--workers", "2",         "--grpc",         "127.0.0.1:0",
        detach ? "--detach" : NULL,       NULL};
    pid_t pid = 0;
    setenv("INGOT_PROGRAM_DIR", FAKES, 1);
    assert_int_equal(posix_spawn(&pid, argv[0], NULL, NULL, (char *const *)argv, environ), 0);
    unsetenv("INGOT_PROGRAM_DIR");
    return pid;
}

struct wanted {
    struct tc_cluster *cluster;
    const char *state;
};

static bool has_state(void *ctx)
{
    struct wanted *wanted = ctx;
    json_t *status = tc_status(wanted->cluster);
    bool has = strcmp(text_of(status, "state"), wanted->state) == 0;
    json_decref(status);
    return has;
}

static void foreground_ends_with_a_signal(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct tc_cluster *cluster = *state;
    for (unsigned i = 0; i < 3; i++) {
        struct wanted up = {cluster, "up"};
        int status = 0;
        pid_t pid = spawn_up(cluster, false);
        tc_wait("the cluster", has_state, &up);
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_nothing_left(cluster);
    }
}

/* Who interrupts `ingot up --detach` before it has an answer has withdrawn it. */
static void interrupted_start_leaves_nothing(void **state)
{
    struct tc_cluster *cluster = *state;
    struct wanted starting = {cluster, "starting"};
    int status = 0;
    setenv("FAKE_SCHEDULER", "loading", 1);
    pid_t pid = spawn_up(cluster, true);
    tc_wait("the start", has_state, &starting);
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    tc_wait("the end of the cluster", has_no_cluster, cluster);
    assert_nothing_left(cluster);
}

static void certificate_is_kept(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result first, second;
    tc_start(cluster, &fakes);
    const char *argv[] = {"/usr/bin/env", "cat", cluster->ca, NULL};
    tc_run(argv, 10000, &first);
    assert_contains(first.output, "BEGIN CERTIFICATE");
    assert_int_equal(tc_down(cluster), 0);
    tc_start(cluster, &fakes);
    tc_run(argv, 10000, &second);
    assert_string_equal(first.output, second.output);
}

static void bad_arguments_are_refused(void **state)
{
    static const struct {
        const char *args[8];
        const char *complaint;
    } cases[] = {
        {{"--workers", "0"}, "--workers '0'"},
        {{"--workers", "65"}, "--workers '65'"},
        {{"--workers", "1x"}, "--workers '1x'"},
        {{"--grpc", "nowhere"}, "--grpc 'nowhere'"},
        {{"--http", "127.0.0.1:70000"}, "--http"},
        {{"--tls-cert", "/etc/hostname"}, "go together"},
        {{"--tls-client-ca", "/etc/hostname"}, "needs --tls-cert"},
        {{"--plaintext", "--tls-cert", "/etc/hostname", "--tls-key", "/etc/hostname"}, "exclude"},
        {{"--models", "/nonexistent"}, "/nonexistent"},
        {{"--frobnicate"}, "--frobnicate"},
        {{"stray"}, "stray"},
        {{"--timeout", "-1"}, "--timeout"},
    };
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    setenv("INGOT_PROGRAM_DIR", FAKES, 1);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *args[12] = {"--models", SOURCE_DIR "/deploy/demo/models"};
        memcpy(args + 2, cases[i].args, sizeof cases[i].args);
        tc_ingot(cluster, "up", args, &result);
        assert_int_equal(result.status, 2);
        assert_contains(result.errors, cases[i].complaint);
        assert_contains(result.errors, "ingot up --help");
    }
    unsetenv("INGOT_PROGRAM_DIR");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(starts_in_order_and_stops),
        T(status_has_the_documented_shape),
        T(status_tells_ready_from_not_ready),
        T(second_up_is_refused),
        T(restarts_what_dies),
        T(gateway_keeps_its_port),
        T(gives_up_after_five_deaths),
        T(gives_up_on_a_running_cluster),
        T(configuration_error_is_not_retried),
        T(start_is_bounded),
        T(deaf_process_is_killed),
        T(second_signal_hurries),
        T(death_of_the_supervisor_takes_all_along),
        T(starts_after_the_death_of_a_supervisor),
        T(foreground_ends_with_a_signal),
        T(interrupted_start_leaves_nothing),
        T(certificate_is_kept),
        T(bad_arguments_are_refused),
    };
    /* A shell starts background jobs with SIGINT ignored, which children inherit. */
    signal(SIGINT, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
