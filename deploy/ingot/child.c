/* One supervised process: its start, its output, its death. The supervisor's loop. */
#include "deploy/ingot/supervisor_priv.h"

#include "common/check.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ig_child_state_name(enum ig_child_state state)
{
    switch (state) {
#define X(name, text)     \
    case IG_CHILD_##name: \
        return text;
        IG_CHILD_STATE_MAP(X)
#undef X
    }
    return "?";
}

static void set_state(struct ig_child *child, enum ig_child_state state)
{
    child->state = state;
    child->since = time(NULL);
}

enum cm_err ig_child_init(struct ig_child *child, struct ig_supervisor *sup, enum cm_role role,
                          uint32_t index, struct cm_error *err)
{
    char file[64], path[PATH_MAX], program[PATH_MAX];
    memset(child, 0, sizeof *child);
    child->supervisor = sup;
    child->role = role;
    child->index = index;
    set_state(child, IG_CHILD_WAITING);
    snprintf(child->name, sizeof child->name, "%s.%u", cm_role_name(role), index);
    snprintf(file, sizeof file, "%s/%s-%u.log", IG_FILE_LOG_DIR, cm_role_name(role), index);
    enum cm_err code = ig_log_init(&child->log, ig_run_path(sup->options->run_dir, file, path),
                                   sup->options->report < 0, err);
    if (code != CM_OK)
        return code;
    uv_timer_init(&sup->loop, &child->timer);
    child->timer.data = child;
    int length = snprintf(program, sizeof program, "%s/ingot-%s", sup->options->program_dir,
                          cm_role_name(role));
    CM_ASSERT(length > 0 && (size_t)length < sizeof program);
    ig_child_arg(child, program);
    return CM_OK;
}

void ig_child_fini(struct ig_child *child)
{
    for (unsigned i = 0; i < child->n_args; i++)
        free(child->args[i]);
    child->n_args = 0;
    ig_log_fini(&child->log);
}

void ig_child_arg(struct ig_child *child, const char *text)
{
    CM_ASSERT(child->n_args < IG_CHILD_ARGS - 1);
    child->args[child->n_args] = strdup(text);
    /* At the start, a few bytes: nothing sensible is left to do without them. */
    CM_ASSERT(child->args[child->n_args]);
    child->n_args++;
}

void ig_child_set_arg(struct ig_child *child, const char *option, const char *text)
{
    for (unsigned i = 1; i + 1 < child->n_args; i++) {
        if (strcmp(child->args[i], option) != 0)
            continue;
        char *copy = strdup(text);
        if (!copy)
            return;
        free(child->args[i + 1]);
        child->args[i + 1] = copy;
    }
}

/* --- death */

static void describe_exit(struct ig_child *child, int64_t status, int term_signal)
{
    const char *when = child->restart.ready ? "" : " before it was ready";
    if (term_signal)
        snprintf(child->last_exit, sizeof child->last_exit, "killed by signal %d (%s)%s",
                 term_signal, strsignal(term_signal), when);
    else
        snprintf(child->last_exit, sizeof child->last_exit, "exited with status %d%s", (int)status,
                 when);
}

static void give_up(struct ig_child *child, bool configuration)
{
    char tail[IG_LOG_TAIL_LINES * (IG_LOG_TAIL_BYTES + 4)];
    ig_log_tail(&child->log, tail, sizeof tail);
    size_t length = strlen(tail);
    if (length > 0)
        tail[length - 1] = '\0';
    if (configuration)
        ig_stop(child->supervisor, IG_EXIT_USAGE,
                "%s does not accept its arguments or configuration, so starting it again cannot "
                "help%s%s",
                child->name, length ? ". Its last lines:\n" : "", tail);
    else
        ig_stop(child->supervisor, IG_EXIT_FAILURE,
                "%s died %u times within %u s without having been ready (%s)%s%s", child->name,
                IG_RESTART_DEATHS, (unsigned)(IG_RESTART_WINDOW_NS / CM_NS_PER_S), child->last_exit,
                length ? ". Its last lines:\n" : "", tail);
}

static void on_backoff_over(uv_timer_t *timer)
{
    ig_child_start(timer->data);
}

/* All handles of its life are closed. */
static void after_death(struct ig_child *child)
{
    struct ig_supervisor *sup = child->supervisor;
    if (sup->phase == IG_PHASE_STOPPING) {
        uv_timer_stop(&child->timer);
        set_state(child, IG_CHILD_STOPPED);
        ig_advance_stop(sup);
        return;
    }
    set_state(child, IG_CHILD_BACKOFF);
    struct ig_restart_verdict verdict =
        ig_restart_on_exit(&child->restart, cm_now_ns(), child->exit_code);
    if (verdict.action != IG_RESTART_AFTER) {
        ig_note(sup, "%s %s", child->name, child->last_exit);
        give_up(child, verdict.action == IG_RESTART_CONFIGURATION);
        return;
    }
    if (verdict.delay_ns == 0)
        ig_note(sup, "%s %s; it is started again", child->name, child->last_exit);
    else
        ig_note(sup, "%s %s; it is started again in %llu ms", child->name, child->last_exit,
                (unsigned long long)(verdict.delay_ns / CM_NS_PER_MS));
    child->restarts++;
    if (verdict.delay_ns == 0)
        ig_child_start(child);
    else
        uv_timer_start(&child->timer, on_backoff_over, verdict.delay_ns / CM_NS_PER_MS, 0);
}

static void on_process_closed(uv_handle_t *handle)
{
    struct ig_child *child = handle->data;
    CM_ASSERT(child->open > 0);
    if (--child->open == 0)
        after_death(child);
}

/* Its last words may still be in the pipe when its death is known. */
static void drain_output(struct ig_child *child)
{
    uv_os_fd_t fd;
    if (uv_fileno((uv_handle_t *)&child->output, &fd) != 0)
        return;
    char buffer[4096];
    for (unsigned i = 0; i < 256; i++) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        ig_log_feed(&child->log, buffer, (size_t)n);
    }
    ig_log_end_line(&child->log);
}

static void close_life(struct ig_child *child)
{
    child->running = false;
    child->open = 2;
    uv_close((uv_handle_t *)&child->process, on_process_closed);
    uv_close((uv_handle_t *)&child->output, on_process_closed);
}

static void on_exit_status(uv_process_t *process, int64_t status, int term_signal)
{
    struct ig_child *child = process->data;
    drain_output(child);
    describe_exit(child, status, term_signal);
    child->exit_code = term_signal ? -1 : (int)status;
    close_life(child);
}

/* --- life */

static void on_output_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    /* One loop, and each buffer is used up in the callback that follows: one is enough. */
    static char shared[16 * 1024];
    (void)handle;
    (void)suggested;
    *buffer = uv_buf_init(shared, sizeof shared);
}

static void on_output(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer)
{
    struct ig_child *child = stream->data;
    if (length > 0)
        ig_log_feed(&child->log, buffer->base, (size_t)length);
    else if (length < 0)
        uv_read_stop(stream);
}

static int spawn(struct ig_child *child)
{
    struct ig_supervisor *sup = child->supervisor;
    int ends[2];
    int result = uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0);
    if (result != 0)
        return result;
    result = uv_pipe_open(&child->output, ends[0]);
    if (result != 0) {
        close(ends[0]);
        close(ends[1]);
        return result;
    }
    /* Programs log to standard error; what a library prints to standard output goes there too. */
    uv_stdio_container_t stdio[4] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = ends[1]},
        {.flags = UV_INHERIT_FD, .data.fd = ends[1]},
        {.flags = UV_INHERIT_FD, .data.fd = sup->family},
    };
    uv_process_options_t options = {
        .exit_cb = on_exit_status,
        .file = child->args[0],
        .args = child->args,
        .env = sup->environment,
        /* A session of its own: Ctrl-C on the terminal is for the supervisor, which stops the
         * processes in order. */
        .flags = UV_PROCESS_DETACHED,
        .stdio_count = 4,
        .stdio = stdio,
    };
    result = uv_spawn(&sup->loop, &child->process, &options);
    close(ends[1]);
    /* It cannot fail on a stream that was just opened; without it only log lines would be lost. */
    if (result == 0)
        (void)uv_read_start((uv_stream_t *)&child->output, on_output_buffer, on_output);
    return result;
}

void ig_child_start(struct ig_child *child)
{
    struct ig_supervisor *sup = child->supervisor;
    CM_ASSERT(child->state == IG_CHILD_WAITING || child->state == IG_CHILD_BACKOFF);
    CM_ASSERT(child->open == 0);
    set_state(child, IG_CHILD_STARTING);
    ig_restart_on_start(&child->restart);
    ig_log_clear_tail(&child->log);
    uv_pipe_init(&sup->loop, &child->output, 0);
    memset(&child->process, 0, sizeof child->process);
    child->output.data = child;
    child->process.data = child;
    int result = spawn(child);
    if (result == 0) {
        child->running = true;
        ig_note(sup, "%s started, pid %d", child->name, child->process.pid);
        return;
    }
    snprintf(child->last_exit, sizeof child->last_exit, "could not be started: %s",
             uv_strerror(result));
    child->exit_code = -1;
    child->running = false;
    /* The process handle is initialised by uv_spawn alone; if that was not reached it has no type
     * and must not be closed. */
    child->open = 1;
    if (child->process.type == UV_PROCESS) {
        child->open = 2;
        uv_close((uv_handle_t *)&child->process, on_process_closed);
    }
    uv_close((uv_handle_t *)&child->output, on_process_closed);
}

void ig_child_ready(struct ig_child *child)
{
    if (child->state != IG_CHILD_STARTING)
        return;
    ig_restart_on_ready(&child->restart, cm_now_ns());
    set_state(child, IG_CHILD_READY);
    ig_note(child->supervisor, "%s is ready", child->name);
}

/* --- stop */

static void on_stop_deadline(uv_timer_t *timer)
{
    struct ig_child *child = timer->data;
    ig_note(child->supervisor, "%s did not stop in time and is killed", child->name);
    ig_child_kill(child);
}

void ig_child_kill(struct ig_child *child)
{
    if (child->running)
        uv_process_kill(&child->process, SIGKILL);
}

void ig_child_stop(struct ig_child *child, uint64_t deadline_ms)
{
    if (child->state == IG_CHILD_STOPPED || child->state == IG_CHILD_STOPPING)
        return;
    if (!child->running && child->open == 0) {
        uv_timer_stop(&child->timer);
        set_state(child, IG_CHILD_STOPPED);
        return;
    }
    set_state(child, IG_CHILD_STOPPING);
    if (!child->running)
        return; /* it is dead already; after_death comes */
    if (deadline_ms == 0) {
        ig_child_kill(child);
        return;
    }
    uv_process_kill(&child->process, SIGTERM);
    uv_timer_start(&child->timer, on_stop_deadline, deadline_ms, 0);
}
