/* The admin port: see http.h for threads. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "gateway/accept_guard.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define DIAL_MS         1000
#define LOOP_STUCK_NS   (10 * CM_NS_PER_S)

struct gw_http {
    struct gw *gw;
    struct MHD_Daemon *daemon;
    int listener;
    char address[300];
};

/* ---- liveness ---- */

/* A fresh TCP connection to our own port, where "any address" means loopback. */
static int dial(const struct gw *gw)
{
    char host[256], port[8];
    uint16_t wanted;
    if (gw_address_split(gw->grpc_address, NULL, host, &wanted) != CM_OK)
        return -1;
    if (strcmp(host, "0.0.0.0") == 0)
        strcpy(host, "127.0.0.1");
    else if (strcmp(host, "::") == 0)
        strcpy(host, "::1");
    snprintf(port, sizeof port, "%u", wanted);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(host, port, &hints, &list) != 0)
        return -1;
    int fd = -1;
    for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS)
            continue;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

/* The kernel completes connections for a listener that nobody serves: so the dial counts only when
 * the accept guard has seen a connection leave the backlog. */
static const char *dial_failure(const struct gw *gw)
{
    uint64_t before = gw_accept_stats().seen;
    uint64_t give_up = cm_now_ns() + DIAL_MS * CM_NS_PER_MS;
    int fd = dial(gw);
    if (fd < 0)
        return "the gRPC port cannot be dialled";
    while (gw_accept_stats().seen == before && cm_now_ns() < give_up) {
        struct pollfd wait = {fd, POLLIN | POLLHUP, 0};
        poll(&wait, 1, 5);
    }
    close(fd);
    return gw_accept_stats().seen == before ? "the gRPC port takes no connections" : NULL;
}

static const char *live_failure(const struct gw *gw)
{
    if (cm_now_ns() - atomic_load(&gw->alive_ns) > LOOP_STUCK_NS)
        return "the event loop is stuck";
    return dial_failure(gw);
}

/* ---- /health ---- */

static json_t *counters_json(struct gw *gw)
{
    json_t *object = json_object();
#define X(name, help) \
    json_object_set_new(object, #name, json_integer((json_int_t)atomic_load(&gw->counters.name)));
    GW_COUNTER_MAP(X)
#undef X
    return object;
}

static json_t *status_json(struct gw *gw)
{
    json_t *object = json_object();
    for (int i = 0; i < 17; i++) {
        uint64_t count = atomic_load(&gw->counters.by_status[i]);
        if (count > 0)
            json_object_set_new(object, gw_status_name((grpc_status_code)i),
                                json_integer((json_int_t)count));
    }
    return object;
}

static const char *state_text(enum gw_model_state state)
{
    switch (state) {
#define X(name, number)   \
    case GW_MODEL_##name: \
        return #name;
        GW_MODEL_STATE_MAP(X)
#undef X
    }
    return "?";
}

static json_t *models_json(struct gw *gw)
{
    json_t *array = json_array();
    struct gw_models *models = gw_models_now(gw);
    for (uint32_t i = 0; models && i < models->count; i++)
        json_array_append_new(array, json_pack("{s:s, s:i, s:s}", "name", models->models[i]->name,
                                               "version", (int)models->models[i]->version, "state",
                                               state_text(models->models[i]->state)));
    gw_models_unref(models);
    return array;
}

static char *health_json(struct gw *gw, bool live)
{
    struct gw_accept_stats accept = gw_accept_stats();
    struct gw_arena_stats arena = gw_arena_stats(gw->arena);
    json_t *root = json_pack(
        "{s:b, s:b, s:b, s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:o}", "live", live, "ready",
        atomic_load(&gw->ready), "draining", atomic_load(&gw->draining), "version", INGOT_VERSION,
        "in_flight", (int)atomic_load(&gw->in_flight), "connections", (int)accept.open,
        "leases_open", (int)atomic_load(&gw->n_leases), "input_bytes", (json_int_t)arena.bytes,
        "connections_capped", (json_int_t)accept.capped, "connections_exhausted",
        (json_int_t)accept.exhausted, "counters", counters_json(gw), "status", status_json(gw),
        "models", models_json(gw));
    if (root && gw->tls) {
        struct gw_tls_stats tls = gw_tls_stats(gw->tls);
        json_object_set_new(root, "tls",
                            json_pack("{s:I, s:I, s:I}", "reloads", (json_int_t)tls.reloads,
                                      "reload_failures", (json_int_t)tls.failures, "expires",
                                      (json_int_t)tls.expires));
    }
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

/* ---- requests ---- */

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned status, const char *type,
                               const char *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result probe(struct MHD_Connection *connection, const char *failure)
{
    char text[128];
    snprintf(text, sizeof text, "%s\n", failure ? failure : "ok");
    return respond(connection, failure ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, "text/plain",
                   text);
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **state)
{
    struct gw *gw = ((struct gw_http *)ctx)->gw;
    (void)version, (void)upload, (void)state;
    *upload_size = 0; /* bodies are not for us */
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "GET only\n");
    if (strcmp(url, "/livez") == 0)
        return probe(connection, live_failure(gw));
    if (strcmp(url, "/readyz") == 0)
        return probe(connection, atomic_load(&gw->draining) ? "draining"
                                 : atomic_load(&gw->ready)  ? NULL
                                                            : "not ready");
    if (strcmp(url, "/health") != 0)
        return respond(connection, MHD_HTTP_NOT_FOUND, "text/plain", "/livez, /readyz, /health\n");
    const char *failure = live_failure(gw);
    char *text = health_json(gw, !failure);
    if (!text)
        return MHD_NO;
    enum MHD_Result result = respond(connection, MHD_HTTP_OK, "application/json", text);
    free(text);
    return result;
}

/* ---- start and stop ---- */

static enum cm_err listen_on(struct gw_http *http, const char *address, struct cm_error *err)
{
    char host[256], port[8];
    uint16_t wanted;
    enum cm_err code = gw_address_split(address, err, host, &wanted);
    if (code != CM_OK)
        return code;
    snprintf(port, sizeof port, "%u", wanted);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int error = getaddrinfo(host, port, &hints, &list);
    if (error != 0)
        return cm_fail(err, CM_INVALID, "cannot resolve %s: %s", address, gai_strerror(error));
    int one = 1;
    http->listener = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool good = http->listener >= 0 &&
                setsockopt(http->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                bind(http->listener, list->ai_addr, list->ai_addrlen) == 0 &&
                listen(http->listener, CONNECTIONS_MAX) == 0;
    error = errno;
    freeaddrinfo(list);
    if (!good)
        return cm_fail_errno(err, error, "cannot listen for HTTP on %s", address);
    gw_accept_guard_exempt(http->listener);
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    getsockname(http->listener, (struct sockaddr *)&bound, &length);
    uint16_t number =
        ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                                          : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    snprintf(http->address, sizeof http->address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             number);
    return CM_OK;
}

enum cm_err gw_http_start(struct gw *gw, struct cm_error *err, struct gw_http **ret_http)
{
    struct gw_http *http = calloc(1, sizeof *http);
    if (!http)
        return cm_fail(err, CM_NOMEM, "no memory for HTTP");
    http->gw = gw;
    http->listener = -1;
    enum cm_err code = listen_on(http, gw->options.http, err);
    if (code == CM_OK) {
        http->daemon =
            MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD, 0, NULL, NULL, on_request, http,
                             MHD_OPTION_LISTEN_SOCKET, http->listener, MHD_OPTION_CONNECTION_LIMIT,
                             (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 10u,
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)16384, MHD_OPTION_END);
        if (!http->daemon)
            code = cm_fail(err, CM_IO, "cannot start HTTP on %s", gw->options.http);
    }
    if (code != CM_OK) {
        if (http->listener >= 0)
            close(http->listener);
        free(http);
        return code;
    }
    *ret_http = http;
    return CM_OK;
}

const char *gw_http_address(const struct gw_http *http)
{
    return http->address;
}

void gw_http_stop(struct gw_http *http)
{
    if (!http)
        return;
    MHD_stop_daemon(http->daemon); /* closes the listener too */
    free(http);
}
