/* The one table from our error codes to gRPC's, as the design's list of cases wants it. Pure, any
 * thread. */
#ifndef GATEWAY_STATUS_H
#define GATEWAY_STATUS_H

#include "common/err.h"

#include <grpc/status.h>
#include <stdbool.h>

/* X(our code, gRPC code, push-back in ms: > 0 = retry after it, 0 = none given, -1 = do not retry)
 * CM_AGAIN, CM_EXISTS and CM_PERMISSION are listed so that every code has a line. */
#define GW_STATUS_MAP(X)                    \
    X(OK, OK, 0)                            \
    X(INVALID, INVALID_ARGUMENT, 0)         \
    X(NOT_FOUND, NOT_FOUND, 0)              \
    X(EXISTS, ALREADY_EXISTS, 0)            \
    X(NOMEM, RESOURCE_EXHAUSTED, -1)        \
    X(FULL, UNAVAILABLE, 50)                \
    X(LIMIT, RESOURCE_EXHAUSTED, -1)        \
    X(AGAIN, UNAVAILABLE, 50)               \
    X(DEADLINE, DEADLINE_EXCEEDED, 0)       \
    X(CANCELLED, CANCELLED, 0)              \
    X(CLOSED, UNAVAILABLE, 50)              \
    X(STALE, UNAVAILABLE, 50)               \
    X(UNAVAILABLE, UNAVAILABLE, 50)         \
    X(UNSUPPORTED, UNIMPLEMENTED, 0)        \
    X(PRECONDITION, FAILED_PRECONDITION, 0) \
    X(PERMISSION, PERMISSION_DENIED, 0)     \
    X(CORRUPT, DATA_LOSS, 0)                \
    X(IO, INTERNAL, 0)                      \
    X(INTERNAL, INTERNAL, 0)                \
    X(POISON, INTERNAL, 0)

struct gw_status {
    grpc_status_code code;
    int pushback_ms;
};

/* INTERNAL for a number outside the list. */
struct gw_status gw_status_from(enum cm_err code);

/* "INVALID_ARGUMENT"; "UNKNOWN" outside gRPC's 17 codes. */
const char *gw_status_name(grpc_status_code code);

#endif
