/* Where a child's standard error goes: a log file of bounded size, the last lines in memory, and
 * (in the foreground) the terminal.
 *
 * The supervisor's loop. File writes block as long as the disk does; the terminal is never waited
 * for: lines that it cannot take now are left out there, never in the file. */
#ifndef DEPLOY_INGOT_LOGSINK_H
#define DEPLOY_INGOT_LOGSINK_H

#include "common/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IG_LOG_MAX_BYTES  (8u * 1024u * 1024u) /* then FILE becomes FILE.1 */
#define IG_LOG_LINE_MAX   4096u                /* longer lines are cut into several */
#define IG_LOG_TAIL_LINES 8u
#define IG_LOG_TAIL_BYTES 400u

/* Embedded in the supervisor's process record; ig_log_fini accepts an all-zero one. */
struct ig_log {
    char path[PATH_MAX];
    int fd;
    bool open;
    bool show;          /* also on standard error */
    uint64_t max_bytes; /* of the file; IG_LOG_MAX_BYTES unless a test lowers it */
    uint64_t bytes;
    uint64_t lost; /* lines that the terminal could not take */
    char line[IG_LOG_LINE_MAX];
    size_t line_length;
    char tail[IG_LOG_TAIL_LINES][IG_LOG_TAIL_BYTES];
    unsigned tail_next;
};

CM_MUST_CHECK enum cm_err ig_log_init(struct ig_log *log, const char *path, bool show,
                                      struct cm_error *err);
void ig_log_fini(struct ig_log *log);

/* Bytes as they come; complete lines are written out. A disk error loses lines, nothing else. */
void ig_log_feed(struct ig_log *log, const char *bytes, size_t length);

/* The process is gone: what there is of its last line is a line. */
void ig_log_end_line(struct ig_log *log);

/* One line of our own. */
void ig_log_line(struct ig_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The last lines, oldest first, each with a newline and indented by two spaces, into buffer
 * (terminated). Returns buffer. */
const char *ig_log_tail(const struct ig_log *log, char *buffer, size_t size);
/* Forgets the last lines: a new life begins. */
void ig_log_clear_tail(struct ig_log *log);

#endif
