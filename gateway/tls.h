/* Server credentials from files that may change while the server runs.
 *
 * core asks before each handshake (on a completion-queue thread); the files' status is compared,
 * and only on a change are they read, checked and handed over. Bad or half-written files keep the
 * old pair and are logged. */
#ifndef GATEWAY_TLS_H
#define GATEWAY_TLS_H

#include "common/err.h"

#include <grpc/grpc_security.h>
#include <stdint.h>

struct gw_tls;

/* client_ca may be NULL: clients are not asked for a certificate. The files are read once, now.
 * The texts are borrowed for the object's life. CM_INVALID with a sentence for bad files. */
CM_MUST_CHECK enum cm_err gw_tls_create(const char *cert, const char *key, const char *client_ca,
                                        struct cm_error *err, struct gw_tls **ret_tls);
/* After the server that uses it. NULL is allowed. */
void gw_tls_destroy(struct gw_tls *tls);

/* New credentials, the caller's to release; tls must outlive the server. NULL on failure. */
grpc_server_credentials *gw_tls_credentials(struct gw_tls *tls);

struct gw_tls_stats {
    uint64_t reloads, failures; /* since start */
    int64_t expires;            /* the certificate's notAfter, seconds since 1970 */
};
struct gw_tls_stats gw_tls_stats(struct gw_tls *tls);

#endif
