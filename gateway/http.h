/* The plaintext admin port: /livez, /readyz, /health.
 *
 * libmicrohttpd's own thread runs the handlers; they read atomics and snapshots and never wait for
 * the loop, so that a stuck loop is seen and not shared. /livez proves that the gRPC port still
 * takes connections: it dials it and waits until the listener has taken a connection. */
#ifndef GATEWAY_HTTP_H
#define GATEWAY_HTTP_H

#include "common/err.h"

#include <stdint.h>

struct gw;
struct gw_http;

/* Listens on gw->options.http. CM_IO: cannot. Loop thread. */
CM_MUST_CHECK enum cm_err gw_http_start(struct gw *gw, struct cm_error *err,
                                        struct gw_http **ret_http);
const char *gw_http_address(const struct gw_http *http); /* "127.0.0.1:8080" */
/* Ends the thread. NULL is allowed. */
void gw_http_stop(struct gw_http *http);

#endif
