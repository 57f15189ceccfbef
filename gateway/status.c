/* Error codes to gRPC status. Pure, any thread. */
#include "gateway/status.h"

struct gw_status gw_status_from(enum cm_err code)
{
    switch (code) {
#define X(ours, theirs, pushback) \
    case CM_##ours:               \
        return (struct gw_status){GRPC_STATUS_##theirs, pushback};
        GW_STATUS_MAP(X)
#undef X
    }
    return (struct gw_status){GRPC_STATUS_INTERNAL, 0};
}

const char *gw_status_name(grpc_status_code code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    return (unsigned)code < sizeof names / sizeof names[0] ? names[code] : "UNKNOWN";
}
