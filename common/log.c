/* Log lines. Any thread; a line is built on the caller's stack and leaves in one write.
 *
 * A line is at most PIPE_BUF bytes, so that lines of several processes on one pipe never mix. What
 * does not fit is cut and says so. */
#include "common/log.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES PIPE_BUF
static const char CUT[] = " cut=1\n";

/* Set by cm_log_init before there are other threads, then constant. */
static char process_name[32] = "-";
static enum cm_log_level minimum = CM_LOG_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

struct line {
    char text[LINE_MAX_BYTES];
    size_t used;
    bool full; /* something did not fit; nothing more is added */
};

static void line_add(struct line *line, const char *bytes, size_t length)
{
    size_t room = sizeof line->text - sizeof CUT - line->used;
    if (line->full || length > room) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->used, bytes, length);
    line->used += length;
}

static void line_add_text(struct line *line, const char *text)
{
    line_add(line, text, strlen(text));
}

/* A value is bare only if a reader that splits at spaces and '=' gets it back unchanged. */
static bool needs_quotes(const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)value[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '=')
            return true;
    }
    return length == 0;
}

static void line_add_value(struct line *line, const char *value, size_t length)
{
    if (!needs_quotes(value, length)) {
        line_add(line, value, length);
        return;
    }
    line_add(line, "\"", 1);
    for (size_t i = 0; i < length && !line->full; i++) {
        unsigned char c = (unsigned char)value[i];
        char escaped[8];
        if (c == '"' || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c == '\n')
            snprintf(escaped, sizeof escaped, "\\n");
        else if (c < ' ' || c >= 0x7f)
            snprintf(escaped, sizeof escaped, "\\x%02x", c);
        else
            snprintf(escaped, sizeof escaped, "%c", c);
        line_add_text(line, escaped);
    }
    line_add(line, "\"", 1);
}

/* One conversion of the format, from its '%' on. */
struct conversion {
    char spec[32]; /* flags and length rewritten for snprintf, width and precision as '*' */
    int width;
    int precision; /* -1 = none */
    int longs;     /* 0, 1 (l), 2 (ll) */
    bool size;     /* z */
    char kind;
};

/* '*' from the arguments or digits from the format. */
static const char *parse_number(const char *p, va_list *args, int *ret_number)
{
    if (*p == '*') {
        *ret_number = va_arg(*args, int);
        return p + 1;
    }
    int number = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        number = number < 1000 ? number * 10 + (*p - '0') : number;
    *ret_number = number;
    return p;
}

static const char *parse_conversion(const char *p, va_list *args, struct conversion *ret)
{
    *ret = (struct conversion){.precision = -1};
    char flags[8];
    size_t n_flags = 0;
    for (p++; *p && strchr("-+ #0", *p); p++)
        if (n_flags < sizeof flags - 1)
            flags[n_flags++] = *p;
    flags[n_flags] = '\0';
    p = parse_number(p, args, &ret->width);
    if (*p == '.')
        p = parse_number(p + 1, args, &ret->precision);
    for (; *p == 'l'; p++)
        ret->longs++;
    for (; *p == 'h'; p++)
        ; /* promoted to int by the call */
    for (; *p == 'z'; p++)
        ret->size = true;
    ret->kind = *p;
    CM_ASSERT(ret->kind && strchr("sdiuxXcfge%", ret->kind));
    const char *length = ret->size ? "z" : ret->longs >= 2 ? "ll" : ret->longs == 1 ? "l" : "";
    snprintf(ret->spec, sizeof ret->spec, "%%%s*.*%s%c", flags, length, ret->kind);
    return p + 1;
}

static void add_integer(struct line *line, const struct conversion *c, va_list *args)
{
    char text[128];
    int n;
    if (c->size)
        n = snprintf(text, sizeof text, c->spec, c->width, c->precision, va_arg(*args, size_t));
    else if (c->longs >= 2)
        n = snprintf(text, sizeof text, c->spec, c->width, c->precision, va_arg(*args, long long));
    else if (c->longs == 1)
        n = snprintf(text, sizeof text, c->spec, c->width, c->precision, va_arg(*args, long));
    else
        n = snprintf(text, sizeof text, c->spec, c->width, c->precision, va_arg(*args, int));
    if (n > 0)
        line_add(line, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void add_conversion(struct line *line, const struct conversion *c, va_list *args)
{
    switch (c->kind) {
    case '%':
        line_add(line, "%", 1);
        return;
    case 's': {
        const char *value = va_arg(*args, const char *);
        if (!value)
            value = "(null)";
        line_add_value(line, value,
                       c->precision >= 0 ? strnlen(value, (size_t)c->precision) : strlen(value));
        return;
    }
    case 'c': {
        char value = (char)va_arg(*args, int);
        line_add_value(line, &value, 1);
        return;
    }
    case 'f':
    case 'g':
    case 'e': {
        char text[400]; /* %f of DBL_MAX has 309 digits */
        int n = snprintf(text, sizeof text, c->spec, c->width, c->precision, va_arg(*args, double));
        if (n > 0)
            line_add(line, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
        return;
    }
    default:
        add_integer(line, c, args);
    }
}

static void add_fields(struct line *line, const char *format, va_list *args)
{
    while (*format) {
        size_t literal = strcspn(format, "%");
        line_add(line, format, literal);
        format += literal;
        if (*format == '%') {
            struct conversion conversion;
            format = parse_conversion(format, args, &conversion);
            add_conversion(line, &conversion, args);
        }
    }
}

static void add_prefix(struct line *line, enum cm_log_level level, const char *event)
{
    uint64_t now = cm_realtime_ns();
    time_t seconds = (time_t)(now / CM_NS_PER_S);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    char text[64];
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%06uZ ", (unsigned)(now % CM_NS_PER_S / CM_NS_PER_US));
    line_add_text(line, text);
    line_add_text(line, level_names[level]);
    line_add_text(line, " ");
    line_add_text(line, process_name);
    line_add_text(line, " event=");
    line_add_text(line, event);
}

static void write_all(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDERR_FILENO, bytes, length);
        if (n < 0 && errno != EINTR)
            return; /* a log that cannot be written has nobody to tell */
        if (n > 0) {
            bytes += n;
            length -= (size_t)n;
        }
    }
}

void cm_log_init(enum cm_role role, uint32_t index)
{
    snprintf(process_name, sizeof process_name, "%s.%u", cm_role_name(role), index);
    const char *wanted = getenv("INGOT_LOG");
    for (size_t i = 0; wanted && i < CM_COUNT_OF(level_names); i++)
        if (strcmp(wanted, level_names[i]) == 0)
            minimum = (enum cm_log_level)i;
}

void cm_log(enum cm_log_level level, const char *event, const char *fields, ...)
{
    if (level < minimum)
        return;
    int saved_errno = errno;
    struct line line;
    if (!fields)
        fields = ""; /* the event says it all */
    line.used = 0;
    line.full = false;
    add_prefix(&line, level, event);
    if (*fields)
        line_add(&line, " ", 1);
    va_list args;
    va_start(args, fields);
    add_fields(&line, fields, &args);
    va_end(args);
    /* line_add left room for this. */
    const char *end = line.full ? CUT : "\n";
    size_t n = strlen(end);
    memcpy(line.text + line.used, end, n);
    write_all(line.text, line.used + n);
    errno = saved_errno;
}

int cm_log_allowed(struct cm_log_limit *limit, uint64_t now_ns, uint64_t *ret_suppressed)
{
    if (now_ns < limit->next_ns) {
        limit->suppressed++;
        return 0;
    }
    limit->next_ns = cm_time_add(now_ns, CM_NS_PER_S);
    *ret_suppressed = limit->suppressed;
    limit->suppressed = 0;
    return 1;
}
