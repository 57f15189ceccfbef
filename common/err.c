/* Error codes: names, texts, errno mapping, formatting. Any thread. */
#include "common/err.h"

#include "common/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *cm_err_text(enum cm_err code)
{
    switch (code) {
#define X(name, number, text) \
    case CM_##name:           \
        return text;
        CM_ERR_MAP(X)
#undef X
    }
    return "unknown error";
}

const char *cm_err_name(enum cm_err code)
{
    switch (code) {
#define X(name, number, text) \
    case CM_##name:           \
        return #name;
        CM_ERR_MAP(X)
#undef X
    }
    return "UNKNOWN";
}

enum cm_err cm_err_from_errno(int errnum)
{
    switch (errnum) {
    case 0:
        return CM_OK;
    case ENOMEM:
        return CM_NOMEM;
    case ENOENT:
        return CM_NOT_FOUND;
    case EEXIST:
        return CM_EXISTS;
    case EACCES:
    case EPERM:
        return CM_PERMISSION;
    case EAGAIN:
        return CM_AGAIN;
    case ETIMEDOUT:
        return CM_DEADLINE;
    case EPIPE:
    case ECONNRESET:
        return CM_CLOSED;
    case EINVAL:
        return CM_INVALID;
    case EMFILE:
    case ENFILE:
        return CM_FULL;
    default:
        return CM_IO;
    }
}

enum cm_err cm_fail(struct cm_error *err, enum cm_err code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

enum cm_err cm_fail_errno(struct cm_error *err, int errnum, const char *format, ...)
{
    enum cm_err code = cm_err_from_errno(errnum);
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errnum));
    }
    return code;
}

void cm_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "assertion failed: %s (%s:%d)\n", condition, file, line);
    abort();
}
