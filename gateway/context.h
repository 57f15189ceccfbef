/* What a client says about its call in metadata: x-request-context and traceparent. Pure parsing of
 * hostile bytes; any thread. */
#ifndef GATEWAY_CONTEXT_H
#define GATEWAY_CONTEXT_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GW_REQUEST_ID_MAX 128
#define GW_TENANT_MAX     64
#define GW_CONTEXT_MAX    4096 /* bytes of the header's value */

/* All zero is the default: nothing was said. */
struct gw_context {
    char request_id[GW_REQUEST_ID_MAX + 1];
    char tenant[GW_TENANT_MAX + 1];
    uint8_t priority; /* 0 = default */
    bool want_stats;
    uint64_t timeout_us;  /* 0 = none */
    char traceparent[56]; /* empty, or a valid version-00 value: 55 characters */
};

/* value: base64 (standard alphabet, padded or not) of an ingot.v1.RequestContext. CM_INVALID with a
 * sentence if it is malformed. Sets all fields but traceparent. */
CM_MUST_CHECK enum cm_err gw_context_parse(const void *value, size_t length, struct cm_error *err,
                                           struct gw_context *ret_context);

/* Keeps a valid W3C traceparent; anything else is treated as absent, as the standard wants. */
void gw_context_traceparent(struct gw_context *context, const void *value, size_t length);

/* [A-Za-z0-9._:-]+ */
bool gw_word_valid(const char *text, size_t length);

/* Decodes base64 strictly: no white space, no stray bits. CM_INVALID otherwise, CM_LIMIT if the
 * result exceeds size. */
CM_MUST_CHECK enum cm_err gw_base64_decode(const void *text, size_t length, void *target,
                                           size_t size, size_t *ret_length);

#endif
