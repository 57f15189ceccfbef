/* Log lines: one event, one line, key=value pairs, to standard error.
 *
 *   2026-11-30T10:00:00.123456Z info worker.0 event=model_ready model=digits version=1
 *
 * Values with spaces, quotes or control bytes are quoted and escaped, so no input can forge a line.
 * Library code does not log; the function that decides what to do about an error does, once.
 * Any thread. */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include "common/role.h"

#include <stdint.h>

enum cm_log_level { CM_LOG_DEBUG, CM_LOG_INFO, CM_LOG_WARN, CM_LOG_ERROR };

/* The name in every line ("worker.0"). Before this call lines carry "-". The environment variable
 * INGOT_LOG=debug|info|warn|error sets the level; info is the default. */
void cm_log_init(enum cm_role role, uint32_t index);

/* cm_log(CM_LOG_INFO, "model_ready", "model=%s version=%d", ...): event is a word; each pair of
 * fields is written key=%conversion; string conversions are escaped by cm_log itself, value by
 * value. fields may be NULL: an event without any. Supported conversions: %s %d %u %zu %llu %lld %x
 * %f (with l, ll, z sizes and precision).
 */
void cm_log(enum cm_log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* For errors that may come in storms: at most one line a second for each struct, with the number
 * held back as suppressed=N in the next. True: the caller should log. */
struct cm_log_limit {
    uint64_t next_ns;
    uint64_t suppressed;
};
int cm_log_allowed(struct cm_log_limit *limit, uint64_t now_ns, uint64_t *ret_suppressed);

#endif
