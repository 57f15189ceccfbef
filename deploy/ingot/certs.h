/* The private certificate authority and server certificate that `ingot up` makes when it is given
 * none: EC P-256, in RUN/tls (ca.pem, server.pem, server.key).
 *
 * The authority's key is used once and kept nowhere, so nobody can ever sign a second certificate
 * with it. Blocking; main thread. */
#ifndef DEPLOY_INGOT_CERTS_H
#define DEPLOY_INGOT_CERTS_H

#include "common/err.h"

#include <stdbool.h>
#include <time.h>

#define IG_CERT_DAYS       365 /* how long a new certificate is valid */
#define IG_CERT_RENEW_DAYS 30  /* one with less left is replaced at start */

struct ig_certs_options {
    const char *run_dir;
    /* Host names and addresses to be valid for, beside localhost, 127.0.0.1 and ::1; entries that
     * are NULL are skipped. */
    const char *hosts[4];
    time_t now;
};

/* Makes the files, or keeps those that are there if they fit: readable, key and certificate belong
 * together, signed by ca.pem, valid for long enough and for every host. */
CM_MUST_CHECK enum cm_err ig_certs_ensure(const struct ig_certs_options *options,
                                          struct cm_error *err, bool *ret_made);

#endif
