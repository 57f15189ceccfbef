/* Log files of the supervised processes. The supervisor's loop. */
#include "deploy/ingot/logsink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool open_file(struct ig_log *log)
{
    struct stat info;
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
    log->open = log->fd >= 0;
    log->bytes = log->open && fstat(log->fd, &info) == 0 ? (uint64_t)info.st_size : 0;
    return log->open;
}

enum cm_err ig_log_init(struct ig_log *log, const char *path, bool show, struct cm_error *err)
{
    memset(log, 0, sizeof *log);
    snprintf(log->path, sizeof log->path, "%s", path);
    log->show = show;
    log->max_bytes = IG_LOG_MAX_BYTES;
    if (!open_file(log))
        return cm_fail_errno(err, errno, "the log file %s cannot be opened", path);
    return CM_OK;
}

void ig_log_fini(struct ig_log *log)
{
    if (log->open)
        close(log->fd);
    log->open = false;
}

static void rotate(struct ig_log *log)
{
    char old[PATH_MAX + 2];
    snprintf(old, sizeof old, "%s.1", log->path);
    rename(log->path, old);
    close(log->fd);
    open_file(log);
}

static void write_file(struct ig_log *log, const char *line, size_t length)
{
    if (!log->open)
        return;
    if (log->bytes + length > log->max_bytes && log->bytes > 0)
        rotate(log);
    while (log->open && length > 0) {
        ssize_t n = write(log->fd, line, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* a full disk must not stop the cluster */
        log->bytes += (uint64_t)n;
        line += n;
        length -= (size_t)n;
    }
}

/* A stopped terminal or a full pipe must not stop the cluster. A pipe that polls writable takes
 * PIPE_BUF bytes at once, and a line with its newline is not longer. */
static void write_terminal(struct ig_log *log, const char *line, size_t length)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) {
        log->lost++;
        return;
    }
    if (log->lost > 0) {
        char note[64];
        int n = snprintf(note, sizeof note, "... %llu lines not shown\n",
                         (unsigned long long)log->lost);
        log->lost = 0;
        if (write(STDERR_FILENO, note, (size_t)n) < 0 || poll(&out, 1, 0) != 1)
            return;
    }
    if (write(STDERR_FILENO, line, length) < 0)
        log->show = false;
}

static void emit(struct ig_log *log)
{
    char *tail = log->tail[log->tail_next];
    log->tail_next = (log->tail_next + 1) % IG_LOG_TAIL_LINES;
    snprintf(tail, IG_LOG_TAIL_BYTES, "%.*s", (int)log->line_length, log->line);
    log->line[log->line_length++] = '\n';
    write_file(log, log->line, log->line_length);
    if (log->show)
        write_terminal(log, log->line, log->line_length);
    log->line_length = 0;
}

void ig_log_feed(struct ig_log *log, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '\n') {
            emit(log);
            continue;
        }
        if (log->line_length == sizeof log->line - 1)
            emit(log);
        log->line[log->line_length++] = bytes[i];
    }
}

void ig_log_end_line(struct ig_log *log)
{
    if (log->line_length > 0)
        emit(log);
}

void ig_log_line(struct ig_log *log, const char *format, ...)
{
    char line[IG_LOG_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    ig_log_end_line(log);
    ig_log_feed(log, line, strlen(line));
    ig_log_end_line(log);
}

const char *ig_log_tail(const struct ig_log *log, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (unsigned i = 0; i < IG_LOG_TAIL_LINES && used < size; i++) {
        const char *line = log->tail[(log->tail_next + i) % IG_LOG_TAIL_LINES];
        if (*line)
            used += (size_t)snprintf(buffer + used, size - used, "  %s\n", line);
    }
    return buffer;
}

void ig_log_clear_tail(struct ig_log *log)
{
    memset(log->tail, 0, sizeof log->tail);
    log->tail_next = 0;
}
