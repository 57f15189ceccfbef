/* One error type for every process: a code from one list, and a code with a sentence.
 *
 * Functions that can fail return enum cm_err; those that read outside input (files, clients, peers)
 * also take a struct cm_error to fill with a sentence that says what to do. errno, nanomsg and gRPC
 * codes are converted at the call that produced them. The code travels in ring records, so its
 * numbers never change meaning: append only. Any thread. */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H

#include <stddef.h>

/* X(name, number, text) */
#define CM_ERR_MAP(X)                                                                      \
    X(OK, 0, "ok")                                                                         \
    X(INVALID, 1, "invalid argument") /* a client's or a file's mistake */                 \
    X(NOT_FOUND, 2, "not found")                                                           \
    X(EXISTS, 3, "already exists")                                                         \
    X(NOMEM, 4, "out of memory")                                                           \
    X(FULL, 5, "full")          /* a queue or table is at its limit */                     \
    X(LIMIT, 6, "over a limit") /* larger than allowed, retry cannot help */               \
    X(AGAIN, 7, "try again")    /* nothing there now; not a failure */                     \
    X(DEADLINE, 8, "deadline exceeded")                                                    \
    X(CANCELLED, 9, "cancelled")                                                           \
    X(CLOSED, 10, "peer is gone")                                                          \
    X(STALE, 11, "stale generation")                                                       \
    X(UNAVAILABLE, 12, "unavailable") /* transient: retry this call */                     \
    X(UNSUPPORTED, 13, "not supported")                                                    \
    X(PRECONDITION, 14, "failed precondition") /* do not retry until the state is fixed */ \
    X(PERMISSION, 15, "permission denied")                                                 \
    X(CORRUPT, 16, "corrupt data") /* bytes from outside break their format */             \
    X(IO, 17, "input/output error")                                                        \
    X(INTERNAL, 18, "internal error")                                                      \
    X(POISON, 19, "request kills its worker")

enum cm_err {
#define X(name, number, text) CM_##name = (number),
    CM_ERR_MAP(X)
#undef X
};

#define CM_MUST_CHECK __attribute__((warn_unused_result))

/* A code and a sentence for a person. The caller owns it; text is always terminated. */
struct cm_error {
    enum cm_err code;
    char text[512];
};

/* The list's text for a code; "unknown error" for a number outside the list. Never NULL. */
const char *cm_err_text(enum cm_err code);

/* The list's name ("INVALID") for logs; "UNKNOWN" outside the list. Never NULL. */
const char *cm_err_name(enum cm_err code);

/* The code for an errno value: ENOMEM, ENOENT, EEXIST, EACCES and EPERM, EAGAIN, ETIMEDOUT, EPIPE
 * and ECONNRESET, EINVAL, EMFILE and ENFILE are told apart; anything else is CM_IO. */
enum cm_err cm_err_from_errno(int errnum);

/* Fills err (NULL is allowed) with code and the formatted sentence, cut to fit, and returns code.
 */
enum cm_err cm_fail(struct cm_error *err, enum cm_err code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As cm_fail, with ": " and strerror(errnum) after the sentence, and the code from errnum. */
enum cm_err cm_fail_errno(struct cm_error *err, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
