/* The command line of ingot-gateway. Main thread, before anything else runs. */
#ifndef GATEWAY_OPTIONS_H
#define GATEWAY_OPTIONS_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The one list of options with a value.
 * X(flag, field, kind, default, minimum, maximum, "VALUE", "help") - kind: TEXT or NUMBER. */
#define GW_OPTION_MAP(X)                                                                        \
    X("run-dir", run_dir, TEXT, NULL, 0, 0, "DIR", "the cluster's run directory (required)")    \
    X("index", index, NUMBER, 0, 0, 255, "N", "this gateway's number")                          \
    X("grpc", grpc, TEXT, "127.0.0.1:0", 0, 0, "ADDR",                                          \
      "host:port for gRPC; port 0 = any free one")                                              \
    X("http", http, TEXT, NULL, 0, 0, "ADDR", "host:port for /livez, /readyz, /health")         \
    X("tls-cert", tls_cert, TEXT, NULL, 0, 0, "FILE", "server certificate chain, PEM")          \
    X("tls-key", tls_key, TEXT, NULL, 0, 0, "FILE", "its private key, PEM")                     \
    X("tls-client-ca", tls_client_ca, TEXT, NULL, 0, 0, "FILE",                                 \
      "clients must show a certificate of this CA, PEM")                                        \
    X("max-message-mb", max_message_mb, NUMBER, 64, 1, 1024, "N", "largest request and answer") \
    X("max-calls", max_calls, NUMBER, 4096, 1, 65536, "N", "infer calls at a time")             \
    X("max-connections", max_connections, NUMBER, 1024, 1, 65536, "N", "connections at a time") \
    X("max-tensor-memory-mb", max_tensor_mb, NUMBER, 1024, 1, 1048576, "N",                     \
      "shared memory for requests' inputs")                                                     \
    X("max-deadline-ms", max_deadline_ms, NUMBER, 60000, 1, 86400000, "N",                      \
      "deadline of calls without one, and the longest")                                         \
    X("drain-ms", drain_ms, NUMBER, 10000, 0, 3600000, "N", "how long a stop waits for calls")  \
    X("reflection", reflection, TEXT, "on", 0, 0, "on|off", "server reflection")

struct gw_options {
#define TEXT                                                         const char *
#define NUMBER                                                       uint64_t
#define X(flag, field, kind, initial, minimum, maximum, value, help) kind field;
    GW_OPTION_MAP(X)
#undef X
#undef TEXT
#undef NUMBER
    bool plaintext;
    bool help;
};

/* The texts point into argv. CM_INVALID with a sentence for the user. With help set nothing else is
 * checked. */
CM_MUST_CHECK enum cm_err gw_options_parse(int argc, char **argv, struct cm_error *err,
                                           struct gw_options *ret_options);

/* The manual, to standard output. */
void gw_options_help(void);

/* Splits "host:port" or "[v6]:port"; host is copied without brackets. CM_INVALID otherwise. */
CM_MUST_CHECK enum cm_err gw_address_split(const char *address, struct cm_error *err,
                                           char ret_host[256], uint16_t *ret_port);

#endif
