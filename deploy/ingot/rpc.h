/* A unary gRPC call from C: one channel, one call at a time.
 *
 * gRPC's threads live between open and close. Blocking, bounded by the deadline; main thread. */
#ifndef DEPLOY_INGOT_RPC_H
#define DEPLOY_INGOT_RPC_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

struct ig_rpc;

/* PEM texts; they may go after ig_rpc_open. */
struct ig_rpc_credentials {
    const char *ca_pem;             /* whom to trust; NULL: plaintext */
    const char *cert_pem, *key_pem; /* who we are, for mutual TLS; both or neither */
};

/* Does not connect yet. CM_INVALID: the credentials are not what they should be. */
CM_MUST_CHECK enum cm_err ig_rpc_open(const char *address,
                                      const struct ig_rpc_credentials *credentials,
                                      struct cm_error *err, struct ig_rpc **ret_rpc);
void ig_rpc_close(struct ig_rpc *rpc);

/* The end of a call. */
struct ig_rpc_result {
    int status; /* a gRPC status code; 0 is OK */
    char message[512];
    unsigned char *reply; /* with status 0; ig_rpc_result_fini frees it */
    size_t reply_length;
    uint64_t took_ns;
};

/* method: "/package.Service/Method". Whatever happens is in the result. */
void ig_rpc_call(struct ig_rpc *rpc, const char *method, const void *request, size_t request_length,
                 uint64_t deadline_ms, struct ig_rpc_result *ret_result);
void ig_rpc_result_fini(struct ig_rpc_result *result);

/* "INVALID_ARGUMENT"; "UNKNOWN" for a number outside gRPC's list. */
const char *ig_rpc_status_name(int status);

#endif
