/* Process skeleton. Main thread only. */
#include "common/proc.h"

#include "common/check.h"
#include "common/log.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A fresh page costs 12 us to touch, so what malloc once got from the kernel stays: no mmap below
 * the first, no trim before the second is unused, and the heap grows by the third at a time. */
#define MMAP_THRESHOLD (1 << 30)
#define TRIM_THRESHOLD (1 << 30)
#define TOP_PAD        (16 << 20)
/* What C libraries accept that limit the threshold to half a heap segment. */
#define MMAP_THRESHOLD_CAPPED (32 << 20)

struct cm_proc {
    struct cm_proc_options options;
    uv_signal_t terminate;
    uv_signal_t interrupt;
    bool stopping;
    bool said_ready;
    unsigned open_handles;
};

/* A supervisor that is killed takes its processes along: a new one must find the run directory
 * free. */
static void die_with_parent(void)
{
    const char *supervisor = getenv("INGOT_SUPERVISED");
    if (!supervisor)
        return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    /* The signal comes for deaths from here on only: look for one that was sooner. */
    if (getppid() != (pid_t)strtol(supervisor, NULL, 10)) {
        cm_log(CM_LOG_ERROR, "supervisor_lost", "pid=%s", supervisor);
        _exit(CM_EXIT_LOST);
    }
}

void cm_proc_early(enum cm_role role, uint32_t index)
{
    if (!mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD))
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_CAPPED);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    mallopt(M_TOP_PAD, TOP_PAD);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    umask(0077);
    cm_log_init(role, index);
    die_with_parent();
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct cm_proc *proc = handle->data;
    if (proc->stopping) {
        cm_log(CM_LOG_WARN, "stop_forced", "signal=%d", number);
        _exit(CM_EXIT_FAILURE);
    }
    proc->stopping = true;
    cm_log(CM_LOG_INFO, "stopping", "signal=%d", number);
    proc->options.on_stop(proc->options.ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct cm_proc *proc = handle->data;
    if (--proc->open_handles == 0)
        free(proc);
}

static int start_signal(struct cm_proc *proc, uv_signal_t *handle, int number)
{
    int rc = uv_signal_init(proc->options.loop, handle);
    if (rc != 0)
        return rc;
    proc->open_handles++;
    handle->data = proc;
    return uv_signal_start(handle, on_signal, number);
}

enum cm_err cm_proc_start(const struct cm_proc_options *options, struct cm_error *err,
                          struct cm_proc **ret_proc)
{
    struct cm_proc *proc = calloc(1, sizeof *proc);
    if (!proc)
        return cm_fail(err, CM_NOMEM, "no memory for the process's state");
    proc->options = *options;
    int rc = start_signal(proc, &proc->terminate, SIGTERM);
    if (rc == 0)
        rc = start_signal(proc, &proc->interrupt, SIGINT);
    if (rc != 0) {
        cm_proc_close(proc);
        return cm_fail_errno(err, -rc, "cannot watch for signals");
    }
    *ret_proc = proc;
    return CM_OK;
}

/* One datagram to $NOTIFY_SOCKET; '@' stands for the NUL of an abstract address. Errors are the
 * supervisor's loss: it also sees the process itself. */
static void notify(const char *message)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@'))
        return;
    size_t length = strlen(path);
    if (length >= sizeof address.sun_path) {
        cm_log(CM_LOG_WARN, "notify_failed", "reason=%s", "NOTIFY_SOCKET is too long");
        return;
    }
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (sendto(fd, message, strlen(message), MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
        cm_log(CM_LOG_WARN, "notify_failed", "reason=%s", strerror(errno));
    close(fd);
}

/* A line feed would start another assignment of the protocol. */
static void notify_status(const char *before, const char *text)
{
    char message[1024];
    int n = snprintf(message, sizeof message, "%s%s%s", before, text ? "STATUS=" : "",
                     text ? text : "");
    if (n <= 0)
        return; /* nothing to say */
    for (char *c = message + strlen(before); *c; c++)
        if (*c == '\n')
            *c = ' ';
    notify(message);
}

void cm_proc_ready(struct cm_proc *proc, const char *text)
{
    notify_status(proc->said_ready ? "" : "READY=1\n", text);
    proc->said_ready = true;
}

void cm_proc_status(struct cm_proc *proc, const char *text)
{
    (void)proc;
    notify_status("", text);
}

void cm_proc_close(struct cm_proc *proc)
{
    if (!proc)
        return;
    if (proc->open_handles == 0) {
        free(proc);
        return;
    }
    /* on_handle_closed runs later, so the count cannot reach zero between these. */
    unsigned count = proc->open_handles;
    uv_close((uv_handle_t *)&proc->terminate, on_handle_closed);
    if (count == 2)
        uv_close((uv_handle_t *)&proc->interrupt, on_handle_closed);
}

void cm_proc_run_dry(uv_loop_t *loop)
{
    uv_run(loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(loop);
    CM_ASSERT(rc == 0);
}
