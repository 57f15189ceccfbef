/* The order of a cluster's start and stop. The supervisor's loop. */
#include "deploy/ingot/supervisor_priv.h"

#include "common/check.h"
#include "deploy/ingot/certs.h"
#include "deploy/ingot/exit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Longer than the gateway's drain. */
#define FAMILY_BOUND_MS 25000u
#define FAMILY_POLL_MS  20u

/* Who is stopped when: callers first, so that nobody loses the one it still needs. The deadlines
 * add up to less than IG_STOP_BOUND_S. */
static const struct {
    enum cm_role role;
    uint64_t deadline_ms;
} stop_order[] = {
    {CM_ROLE_GATEWAY, 20000}, /* it drains its calls */
    {CM_ROLE_SCHEDULER, 5000},
    {CM_ROLE_WORKER, 10000},
    {CM_ROLE_MEMMGR, 5000},
};

void ig_note(struct ig_supervisor *sup, const char *format, ...)
{
    char line[IG_LOG_LINE_MAX], stamp[32];
    struct timespec now;
    struct tm parts;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    ig_log_line(&sup->log, "%s.%06ldZ info supervisor %s", stamp, now.tv_nsec / 1000, line);
}

/* --- arguments of the processes */

static void add_number(struct ig_child *child, const char *option, unsigned number)
{
    char text[16];
    snprintf(text, sizeof text, "%u", number);
    ig_child_arg(child, option);
    ig_child_arg(child, text);
}

static void add_pair(struct ig_child *child, const char *option, const char *value)
{
    if (!*value)
        return;
    ig_child_arg(child, option);
    ig_child_arg(child, value);
}

static void add_gateway_args(struct ig_child *child, const struct ig_supervisor_options *options)
{
    char cert[PATH_MAX], key[PATH_MAX];
    add_pair(child, "--grpc", options->grpc);
    add_pair(child, "--http", options->http);
    if (options->plaintext) {
        ig_child_arg(child, "--plaintext");
        return;
    }
    bool own = options->tls_cert[0] != '\0';
    add_pair(child, "--tls-cert",
             own ? options->tls_cert : ig_run_path(options->run_dir, IG_FILE_CERT, cert));
    add_pair(child, "--tls-key",
             own ? options->tls_key : ig_run_path(options->run_dir, IG_FILE_KEY, key));
    add_pair(child, "--tls-client-ca", options->tls_client_ca);
}

static void add_args(struct ig_child *child, const struct ig_supervisor_options *options)
{
    add_pair(child, "--run-dir", options->run_dir);
    switch (child->role) {
    case CM_ROLE_WORKER:
        add_number(child, "--index", child->index);
        add_pair(child, "--models", options->models_dir);
        if (options->threads)
            add_number(child, "--threads", options->threads);
        break;
    case CM_ROLE_SCHEDULER:
        add_pair(child, "--models", options->models_dir);
        add_number(child, "--workers", options->workers);
        break;
    case CM_ROLE_GATEWAY:
        add_gateway_args(child, options);
        break;
    default:
        break;
    }
}

static enum cm_err add_child(struct ig_supervisor *sup, enum cm_role role, uint32_t index,
                             struct cm_error *err)
{
    CM_ASSERT(sup->n_children < IG_MAX_CHILDREN);
    struct ig_child *child = &sup->children[sup->n_children];
    enum cm_err code = ig_child_init(child, sup, role, index, err);
    if (code != CM_OK)
        return code;
    sup->n_children++;
    add_args(child, sup->options);
    return CM_OK;
}

/* In start order. */
static enum cm_err add_children(struct ig_supervisor *sup, struct cm_error *err)
{
    enum cm_err code = add_child(sup, CM_ROLE_MEMMGR, 0, err);
    for (unsigned i = 0; i < sup->options->workers && code == CM_OK; i++)
        code = add_child(sup, CM_ROLE_WORKER, i, err);
    if (code == CM_OK)
        code = add_child(sup, CM_ROLE_SCHEDULER, 0, err);
    if (code == CM_OK)
        code = add_child(sup, CM_ROLE_GATEWAY, 0, err);
    return code;
}

/* The environment of the processes: ours, and where to report to. */
static enum cm_err make_environment(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX], notify[PATH_MAX + 32], supervised[64];
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    sup->environment = calloc(n + 3, sizeof *sup->environment);
    if (!sup->environment)
        return cm_fail(err, CM_NOMEM, "no memory for the environment");
    snprintf(notify, sizeof notify, "NOTIFY_SOCKET=%s",
             ig_run_path(sup->options->run_dir, IG_FILE_NOTIFY, path));
    snprintf(supervised, sizeof supervised, "INGOT_SUPERVISED=%ld", (long)getpid());
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "NOTIFY_SOCKET=", 14) &&
            strncmp(environ[i], "INGOT_SUPERVISED=", 17))
            sup->environment[kept++] = strdup(environ[i]);
    sup->environment[kept++] = strdup(supervised);
    sup->environment[kept++] = strdup(notify);
    for (size_t i = 0; i < kept; i++)
        if (!sup->environment[i])
            return cm_fail(err, CM_NOMEM, "no memory for the environment");
    return CM_OK;
}

/* --- start */

void ig_start_others(struct ig_supervisor *sup)
{
    for (unsigned i = 0; i < sup->n_children; i++)
        if (sup->phase != IG_PHASE_STOPPING && sup->children[i].state == IG_CHILD_WAITING)
            ig_child_start(&sup->children[i]);
}

/* Processes of a supervisor that was killed are told so by the kernel and end, the gateway after
 * its calls. Until they are gone, sockets and ports are theirs. */
static void on_begin(uv_timer_t *timer)
{
    struct ig_supervisor *sup = timer->data;
    if (flock(sup->family, LOCK_EX | LOCK_NB) == 0) {
        uv_timer_stop(timer);
        ig_child_start(&sup->children[0]);
        return;
    }
    if (cm_now_ns() - sup->begun_ns > FAMILY_BOUND_MS * CM_NS_PER_MS) {
        ig_stop(
            sup, IG_EXIT_FAILURE,
            "processes of an earlier cluster still run in %s after %u s; %s/%s/supervisor.log has "
            "their pids",
            sup->options->run_dir, FAMILY_BOUND_MS / 1000, sup->options->run_dir, IG_FILE_LOG_DIR);
        return;
    }
    if (uv_timer_get_repeat(timer) == 0) {
        ig_note(sup, "waiting for the processes of an earlier cluster to end");
        uv_timer_start(timer, on_begin, FAMILY_POLL_MS, FAMILY_POLL_MS);
    }
}

static void begin(struct ig_supervisor *sup)
{
    ig_note(sup, "starting in %s", sup->options->run_dir);
    sup->begun_ns = cm_now_ns();
    uv_timer_start(&sup->ask_timer, on_begin, 0, 0);
}

static enum cm_err open_family(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX];
    ig_run_path(sup->options->run_dir, IG_FILE_FAMILY, path);
    sup->family = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (sup->family < 0)
        return cm_fail_errno(err, errno, "the lock file %s cannot be opened", path);
    return CM_OK;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct ig_supervisor *sup = handle->data;
    ig_stop(sup, sup->phase == IG_PHASE_STARTING ? IG_EXIT_FAILURE : IG_EXIT_OK, "signal %s",
            strsignal(number));
}

static void watch_signals(struct ig_supervisor *sup)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    _Static_assert(CM_COUNT_OF(numbers) == CM_COUNT_OF(sup->signals), "one handle each");
    for (unsigned i = 0; i < CM_COUNT_OF(numbers); i++) {
        uv_signal_init(&sup->loop, &sup->signals[i]);
        sup->signals[i].data = sup;
        uv_signal_start(&sup->signals[i], on_signal, numbers[i]);
    }
}

/* The lock says that a supervisor lives here; it cannot outlive it, however it dies. */
static enum cm_err take_lock(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX], pid[16];
    ig_run_path(sup->options->run_dir, IG_FILE_LOCK, path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cm_fail_errno(err, errno, "the lock file %s cannot be opened", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int errnum = errno;
        ssize_t n = read(fd, pid, sizeof pid - 1);
        pid[n > 0 ? n : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        close(fd);
        if (errnum != EWOULDBLOCK)
            return cm_fail_errno(err, errnum, "the lock file %s cannot be locked", path);
        return cm_fail(err, CM_EXISTS,
                       "a cluster is already running in %s (supervisor pid %s); see it with 'ingot "
                       "status', stop it with 'ingot down', or choose another --run-dir",
                       sup->options->run_dir, pid[0] ? pid : "unknown");
    }
    int length = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) != 0 || write(fd, pid, (size_t)length) != length) {
        int errnum = errno;
        close(fd);
        return cm_fail_errno(err, errnum, "the lock file %s cannot be written", path);
    }
    sup->lock = fd;
    return CM_OK;
}

static enum cm_err open_log(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX];
    return ig_log_init(&sup->log,
                       ig_run_path(sup->options->run_dir, IG_FILE_LOG_DIR "/supervisor.log", path),
                       sup->options->report < 0, err);
}

/* The host part of an address that a client could dial; "" for a wildcard or a socket path. */
static void dialled_host(const char *address, char *host, size_t size)
{
    const char *colon = strrchr(address, ':');
    bool bracketed = *address == '[';
    host[0] = '\0';
    if (!colon || strchr(address, '/'))
        return;
    size_t length = (size_t)(colon - address) - (bracketed ? 2 : 0);
    if (length >= size || (bracketed && colon - address < 2))
        return;
    snprintf(host, size, "%.*s", (int)length, address + (bracketed ? 1 : 0));
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        host[0] = '\0';
}

/* Under the lock: another cluster's certificate is not touched. */
static enum cm_err ensure_certificate(struct ig_supervisor *sup, struct cm_error *err)
{
    char own[256] = "", dialled[256];
    bool made = false;
    if (sup->options->plaintext || sup->options->tls_cert[0])
        return CM_OK;
    if (gethostname(own, sizeof own - 1) != 0)
        own[0] = '\0';
    dialled_host(sup->options->grpc, dialled, sizeof dialled);
    struct ig_certs_options options = {
        .run_dir = sup->options->run_dir, .hosts = {own, dialled}, .now = time(NULL)};
    enum cm_err code = ig_certs_ensure(&options, err, &made);
    if (code == CM_OK && made)
        ig_note(sup, "made a private CA and a server certificate, valid for %d days", IG_CERT_DAYS);
    return code;
}

static enum cm_err set_up(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX];
    enum cm_err code = take_lock(sup, err);
    if (code == CM_OK)
        code = open_log(sup, err);
    if (code == CM_OK)
        code = open_family(sup, err);
    if (code == CM_OK)
        code = make_environment(sup, err);
    if (code == CM_OK)
        code = ensure_certificate(sup, err);
    /* What the last cluster's gateway wrote is not true of this one's. */
    if (code == CM_OK)
        unlink(ig_run_path(sup->options->run_dir, IG_FILE_GATEWAY, path));
    if (code == CM_OK)
        code = ig_readiness_init(sup, err);
    if (code == CM_OK)
        code = ig_notify_open(sup, err);
    if (code == CM_OK)
        code = ig_control_open(sup, err);
    if (code == CM_OK)
        code = add_children(sup, err);
    return code;
}

/* --- stop */

static void release_locks(struct ig_supervisor *sup)
{
    if (sup->lock >= 0)
        close(sup->lock);
    if (sup->family >= 0)
        close(sup->family);
    sup->lock = sup->family = -1;
}

static void close_handle(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Nothing runs any more. The hang-up of the control socket says so, hence it is the last. */
static void finish(struct ig_supervisor *sup)
{
    char path[PATH_MAX];
    ig_note(sup, "everything has stopped");
    ig_notify_close(sup);
    unlink(ig_run_path(sup->options->run_dir, IG_FILE_GATEWAY, path));
    ig_readiness_failed(sup);
    release_locks(sup);
    ig_control_close(sup);
    uv_walk(&sup->loop, close_handle, NULL); /* timers and signals */
}

void ig_advance_stop(struct ig_supervisor *sup)
{
    while (sup->stop_stage < CM_COUNT_OF(stop_order)) {
        bool stopped = true;
        for (unsigned i = 0; i < sup->n_children; i++) {
            struct ig_child *child = &sup->children[i];
            if (child->role != stop_order[sup->stop_stage].role && !sup->in_a_hurry)
                continue;
            ig_child_stop(child, sup->in_a_hurry ? 0 : stop_order[sup->stop_stage].deadline_ms);
            stopped = stopped && child->state == IG_CHILD_STOPPED;
        }
        if (!stopped)
            return;
        sup->stop_stage++;
    }
    if (sup->stop_stage == CM_COUNT_OF(stop_order)) {
        sup->stop_stage++;
        finish(sup);
    }
}

void ig_stop(struct ig_supervisor *sup, int code, const char *format, ...)
{
    char reason[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (sup->phase == IG_PHASE_STOPPING) {
        ig_note(sup, "%s: whatever still runs is killed", reason);
        sup->in_a_hurry = true;
        for (unsigned i = 0; i < sup->n_children; i++)
            ig_child_kill(&sup->children[i]);
        ig_advance_stop(sup);
        return;
    }
    ig_note(sup, "stopping: %s", reason);
    /* In the foreground, or while somebody waits for the start, it is told; later the log has it.
     */
    if (code != IG_EXIT_OK)
        ig_tell(sup, 'e', "%s", reason);
    sup->phase = IG_PHASE_STOPPING;
    sup->exit_code = code;
    uv_timer_stop(&sup->start_timer);
    uv_timer_stop(&sup->ask_timer);
    ig_advance_stop(sup);
}

static void tear_down(struct ig_supervisor *sup)
{
    ig_notify_close(sup);
    release_locks(sup);
    ig_control_close(sup);
    uv_walk(&sup->loop, close_handle, NULL);
}

int ig_supervisor_run(const struct ig_supervisor_options *options)
{
    struct cm_error err = {0};
    struct ig_supervisor *sup = calloc(1, sizeof *sup);
    if (!sup || uv_loop_init(&sup->loop) != 0) {
        fprintf(stderr, "ingot up: no memory\n");
        free(sup);
        return IG_EXIT_FAILURE;
    }
    sup->options = options;
    sup->since = time(NULL);
    sup->lock = sup->family = sup->notify_fd = -1;
    sup->waiting = true; /* failures of the set-up are told too */
    watch_signals(sup);
    if (set_up(sup, &err) == CM_OK) {
        begin(sup);
    } else {
        sup->exit_code = err.code == CM_EXISTS ? IG_EXIT_USAGE : IG_EXIT_FAILURE;
        ig_tell(sup, 'e', "%s", err.text);
        ig_readiness_failed(sup);
        tear_down(sup);
    }
    uv_run(&sup->loop, UV_RUN_DEFAULT);
    int result = uv_loop_close(&sup->loop);
    CM_ASSERT(result == 0);
    int exit_code = sup->exit_code;
    for (unsigned i = 0; i < sup->n_children; i++)
        ig_child_fini(&sup->children[i]);
    for (char **line = sup->environment; line && *line; line++)
        free(*line);
    free(sup->environment);
    ig_log_fini(&sup->log);
    free(sup);
    return exit_code;
}
