/* memmgr's server: start, accept, the once-a-second tick, the end of the grace time, stop.
 * memmgr's loop thread. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The number in "NAME: 123 kB" of /proc/meminfo, in bytes; UINT64_MAX if it is not there. */
static uint64_t meminfo_bytes(const char *name)
{
    char line[128];
    uint64_t found = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return found;
    while (found == UINT64_MAX && fgets(line, sizeof line, file)) {
        unsigned long long kib;
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0 && sscanf(line + length, ": %llu kB", &kib) == 1)
            found = kib * 1024;
    }
    fclose(file);
    return found;
}

/* UINT64_MAX where there is no such file, or "max" in it. */
static uint64_t number_in(const char *path)
{
    unsigned long long value;
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    int got = fscanf(file, "%llu", &value);
    fclose(file);
    return got == 1 ? value : UINT64_MAX;
}

uint64_t mm_default_budget(void)
{
    uint64_t free_bytes = meminfo_bytes("MemAvailable");
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max");
    uint64_t current = number_in("/sys/fs/cgroup/memory.current");
    if (limit != UINT64_MAX && current != UINT64_MAX) {
        uint64_t left = limit > current ? limit - current : 0;
        if (left < free_bytes)
            free_bytes = left;
    }
    if (free_bytes == UINT64_MAX)
        return 1024ull * 1024 * 1024;
    return free_bytes / 2;
}

/* --- Handles --- */

void mm_server_unref(struct mm_server *server)
{
    if (!server->closing || server->n_handles > 0 || server->n_jobs > 0)
        return;
    mm_ledger_fini(&server->ledger);
    free(server->socket_path);
    free(server);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct mm_server *server = handle->data;
    server->n_handles--;
    mm_server_unref(server);
}

static void close_handle(struct mm_server *server, void *handle)
{
    uv_handle_t *h = handle;
    h->data = server;
    uv_close(h, on_handle_closed);
}

/* --- Accepting --- */

static void on_listener(uv_poll_t *poll, int status, int events);

static void on_accept_pause_over(uv_timer_t *timer)
{
    struct mm_server *server = cm_container_of(timer, struct mm_server, accept_pause);
    CM_ASSERT(uv_poll_start(&server->listener, UV_READABLE, on_listener) == 0);
}

/* Out of descriptors (or memory): the waiting connection stays in the backlog and would wake us for
 * ever. Look again a little later. */
static void pause_accepting(struct mm_server *server)
{
    server->ledger.counters.accept_pauses++;
    mm_ledger_evict_all(&server->ledger);
    uv_poll_stop(&server->listener);
    uv_timer_start(&server->accept_pause, on_accept_pause_over, MM_ACCEPT_PAUSE_MS, 0);
}

static bool peer_is_ours(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    struct mm_server *server = cm_container_of(poll, struct mm_server, listener);
    for (unsigned i = 0; i < 16; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause_accepting(server);
            break;
        }
        if (!peer_is_ours(fd) || server->n_conns >= MM_CONNS_MAX) {
            server->ledger.counters.refused++;
            close(fd);
            continue;
        }
        mm_conn_accept(server, fd);
    }
    mm_server_reap(server);
}

/* --- Time --- */

static void on_tick(uv_timer_t *timer)
{
    struct mm_server *server = cm_container_of(timer, struct mm_server, tick);
    uint64_t now_ns = cm_now_ns();
    mm_ledger_trim(&server->ledger, now_ns, server->settled_ns);
    struct mm_conn *conn;
    TAILQ_FOREACH(conn, &server->conns, in_server)
    {
        if (conn->peer.role == CM_ROLE_NONE && now_ns - conn->since_ns > MM_SILENT_NS)
            mm_conn_doom(conn);
    }
    mm_link_rendezvous(server, NULL);
    mm_server_reap(server);
}

static void on_grace_over(uv_timer_t *timer)
{
    struct mm_server *server = cm_container_of(timer, struct mm_server, grace);
    mm_restore_grace_over(server);
    mm_server_reap(server);
}

void mm_server_reap(struct mm_server *server)
{
    while (server->n_doomed > 0) {
        struct mm_conn *conn, *next;
        MM_FOREACH_SAFE(conn, next, &server->conns, in_server)
        {
            if (conn->doomed) {
                mm_conn_close(conn);
                break; /* closing one may doom or change others */
            }
        }
    }
}

/* --- Start and stop --- */

static void start_handles(struct mm_server *server)
{
    CM_ASSERT(uv_timer_init(server->loop, &server->tick) == 0);
    CM_ASSERT(uv_timer_init(server->loop, &server->grace) == 0);
    CM_ASSERT(uv_timer_init(server->loop, &server->accept_pause) == 0);
    server->n_handles += 3;
    uv_timer_start(&server->tick, on_tick, MM_TICK_MS, MM_TICK_MS);
    if (server->restoring)
        uv_timer_start(&server->grace, on_grace_over, MM_GRACE_MS, 0);
}

static enum cm_err start_listener(struct mm_server *server, struct cm_error *err)
{
    int uv = uv_poll_init(server->loop, &server->listener, server->listen_fd);
    if (uv != 0)
        return cm_fail_errno(err, -uv, "cannot watch the socket");
    server->n_handles++;
    CM_ASSERT(uv_poll_start(&server->listener, UV_READABLE, on_listener) == 0);
    return CM_OK;
}

static struct mm_server *new_server(const struct mm_server_options *options)
{
    struct mm_server *server = calloc(1, sizeof *server);
    if (!server)
        return NULL;
    uint64_t realtime_ns = cm_realtime_ns();
    server->loop = options->loop;
    server->lock_fd = server->listen_fd = -1;
    server->epoch = server->last_instance = realtime_ns;
    server->settled_ns = cm_now_ns();
    server->budget_is_default = options->budget == 0;
    mm_ledger_init(&server->ledger, options->budget ? options->budget : mm_default_budget(),
                   realtime_ns);
    server->ledger.close_memory = mm_job_close;
    server->ledger.close_ctx = server;
    TAILQ_INIT(&server->conns);
    TAILQ_INIT(&server->parked);
    TAILQ_INIT(&server->wants);
    TAILQ_INIT(&server->links);
    return server;
}

enum cm_err mm_server_create(const struct mm_server_options *options, struct cm_error *err,
                             struct mm_server **ret_server)
{
    struct mm_server *server = new_server(options);
    if (!server)
        return cm_fail(err, CM_NOMEM, "out of memory");
    enum cm_err code = mm_listen(server, options->run_dir, err, &server->restoring);
    if (code == CM_OK) {
        const struct cm_bus_options bus = {.loop = options->loop,
                                           .run_dir = options->run_dir,
                                           .role = CM_ROLE_MEMMGR,
                                           .index = 0,
                                           .on_message = mm_report_message,
                                           .ctx = server};
        code = cm_bus_open(&bus, err, &server->bus);
    }
    if (code == CM_OK) {
        cm_bus_set_instance(server->bus, server->epoch);
        code = start_listener(server, err);
    }
    if (code != CM_OK) {
        cm_bus_close(server->bus);
        mm_unlisten(server, server->restoring);
        server->closing = true;
        mm_server_unref(server);
        return code;
    }
    start_handles(server);
    *ret_server = server;
    return CM_OK;
}

void mm_server_close(struct mm_server *server)
{
    CM_ASSERT(!server->closing);
    server->closing = true;
    bool clients = false;
    struct mm_conn *conn, *next;
    TAILQ_FOREACH(conn, &server->conns, in_server)
    {
        if (conn->peer.role != CM_ROLE_NONE && conn->peer.role != CM_ROLE_TOOL)
            clients = true;
    }
    /* The name that stays tells the next memmgr that clients will hand back what they hold. */
    mm_unlisten(server, clients);
    MM_FOREACH_SAFE(conn, next, &server->conns, in_server)
    mm_conn_doom(conn);
    mm_server_reap(server);
    mm_link_fini(server);
    cm_bus_close(server->bus);
    close_handle(server, &server->listener);
    close_handle(server, &server->tick);
    close_handle(server, &server->grace);
    close_handle(server, &server->accept_pause);
}
