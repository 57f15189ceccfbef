/* memmgr's server: what its files share. Everything runs on one uv loop thread, which never waits
 * for a client; slow kernel work (populating pages) is done by uv's worker threads, which see only
 * their own struct mm_job.
 *
 * A connection that must end is only marked (mm_conn_doom); mm_server_reap closes the marked ones
 * when no handler is on the stack, so no handler loses what it walks over. */
#ifndef MEMMGR_SERVER_PRIV_H
#define MEMMGR_SERVER_PRIV_H

#include "common/bus.h"
#include "common/channel.h"
#include "common/err.h"
#include "common/log.h"
#include "common/role.h"
#include "memmgr/ledger_priv.h"
#include "memmgr/wire.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define MM_CONNS_MAX          512u
#define MM_ASKS_MAX           256u  /* waiting requests of one connection */
#define MM_LEASES_MAX         1024u /* own leases and weights being written, of one connection */
#define MM_OPENS_MAX          8192u /* other's leases and weights, of one connection */
#define MM_WANTS_MAX          256u  /* wanted channels of one connection */
#define MM_CHANNELS_MAX       4096u
#define MM_NUMBERS            4096u
#define MM_TICK_MS            1000u
#define MM_GRACE_MS           2000u /* how long a new memmgr waits for what clients hand back */
#define MM_ACCEPT_PAUSE_MS    50u
#define MM_SILENT_NS          (5ull * 1000000000ull) /* a connection that does not attach ends */
#define MM_CHANNEL_RING_BYTES (1024u * 1024u)
#define MM_CLOCK_SLACK_NS     (86400ull * 1000000000ull)

struct mm_server;

struct mm_server_options {
    uv_loop_t *loop;
    const char *run_dir;
    uint64_t budget; /* bytes; 0: mm_default_budget */
};

/* Locks the run directory, takes the socket, opens the bus inbox. CM_EXISTS: another memmgr lives
 * there. */
CM_MUST_CHECK enum cm_err mm_server_create(const struct mm_server_options *options,
                                           struct cm_error *err, struct mm_server **ret_server);
/* Ends every connection and lets the loop run dry; the memory goes with it. */
void mm_server_close(struct mm_server *server);
/* Half of what the machine, or the control group, has free now. */
uint64_t mm_default_budget(void);

#define MM_CONN_MAGIC 0x4e4e4f43u

struct mm_conn {
    uint32_t magic;
    struct mm_server *server;
    int fd;
    uv_poll_t poll;
    struct cm_peer peer; /* role is NONE until attached */
    uint32_t number;
    uint64_t since_ns;
    bool doomed;
    struct mm_holds holds;
    unsigned n_owned, n_opened;
    struct mm_asks asks;
    unsigned n_asks, n_wants;
    TAILQ_ENTRY(mm_conn) in_server;
};
TAILQ_HEAD(mm_conns, mm_conn);

/* A wish for a channel. making: a job is at it. */
struct mm_want {
    struct mm_conn *conn;
    enum cm_role role;
    uint32_t index;
    bool making;
    TAILQ_ENTRY(mm_want) in_server;
};
TAILQ_HEAD(mm_wants, mm_want);

/* A channel that was handed out, as long as both its ends are attached. fd: its memory, so that the
 * ledger can ask the kernel; never the bells or the lifeline. */
struct mm_link {
    uint64_t id;
    struct cm_peer ends[2];
    int fd;
    struct mm_memory_id memory;
    size_t bytes;
    uint64_t since_ns;
    TAILQ_ENTRY(mm_link) in_server;
};
TAILQ_HEAD(mm_links, mm_link);

struct mm_server {
    uv_loop_t *loop;
    struct mm_ledger ledger;
    struct cm_bus *bus;
    char *socket_path;
    int lock_fd, listen_fd;
    uv_poll_t listener;
    uv_timer_t tick, grace, accept_pause;
    unsigned n_handles, n_jobs; /* what keeps the struct alive */
    bool closing;
    bool restoring; /* the grace time after another memmgr's death */
    /* The budget is half of what was free at start, when clients held what they now hand back. */
    bool budget_is_default;
    uint64_t epoch, last_instance, settled_ns;
    uint32_t next_number;
    uint8_t numbers[MM_NUMBERS / 8];
    struct mm_conns conns;
    unsigned n_conns, n_doomed;
    struct mm_asks parked; /* asks that wait for what may be handed back */
    struct mm_wants wants;
    struct mm_links links;
    unsigned n_links;
    struct cm_log_limit protocol_log, slow_log, restore_log, job_log;
};

/* --- listen.c --- */
/* The directory (made if absent; 0700 and ours, or refused), its lock, its socket.
 * ret_succeeds: a predecessor left its socket behind. */
CM_MUST_CHECK enum cm_err mm_listen(struct mm_server *server, const char *run_dir,
                                    struct cm_error *err, bool *ret_succeeds);
/* Closes the socket; removes its name unless leave says that clients will look for it. */
void mm_unlisten(struct mm_server *server, bool leave);

/* --- server.c --- */
void mm_server_reap(struct mm_server *server);
void mm_server_unref(struct mm_server *server);

/* --- conn.c --- */
void mm_conn_accept(struct mm_server *server, int fd);
void mm_conn_doom(struct mm_conn *conn);
void mm_conn_close(struct mm_conn *conn);
/* Dooms the connection if the peer does not read. */
void mm_conn_send(struct mm_conn *conn, const union mm_wire_any *body, const int *fds);
void mm_conn_fail(struct mm_conn *conn, uint32_t sequence, const struct cm_error *error);
/* The attached connection of a place; NULL if there is none. */
struct mm_conn *mm_conn_find(struct mm_server *server, enum cm_role role, uint32_t index);
/* A copy of a request that has to wait. NULL: over the limit, and FAILED was sent. */
struct mm_ask *mm_ask_create(struct mm_conn *conn, const union mm_wire_any *body);
void mm_ask_wait(struct mm_ask *ask, struct mm_asks *list);
void mm_ask_destroy(struct mm_ask *ask);
/* Fails all that waits in list. */
void mm_asks_fail(struct mm_asks *list, const struct cm_error *error);
bool mm_may_own(struct mm_conn *conn, uint32_t sequence);
bool mm_may_open(struct mm_conn *conn, uint32_t sequence);
/* mm_ledger_hold with the connection's counts; NULL: out of memory, and FAILED was sent. */
struct mm_hold *mm_conn_hold(struct mm_conn *conn, struct mm_region *region, bool owner,
                             uint32_t sequence);
void mm_conn_unhold(struct mm_hold *hold, uint64_t now_ns);

/* --- job.c --- */
struct mm_job;
/* Makes the descriptor of a NEW region and populates it; then mm_lease_ready or mm_weights_ready.
 * On failure nothing was started. */
CM_MUST_CHECK enum cm_err mm_job_populate(struct mm_server *server, struct mm_region *region,
                                          struct cm_error *err);
/* Makes a channel's descriptors; then mm_link_ready. */
CM_MUST_CHECK enum cm_err mm_job_channel(struct mm_server *server, struct mm_want *want);

/* Closes a region's descriptor where nobody waits for it. ctx: the server. */
void mm_job_close(void *ctx, int fd, size_t bytes);

/* --- leases.c --- */
void mm_lease_acquire(struct mm_conn *conn, const union mm_wire_any *body);
void mm_lease_release(struct mm_conn *conn, const union mm_wire_any *body);
void mm_lease_open(struct mm_conn *conn, const union mm_wire_any *body);
void mm_lease_close(struct mm_conn *conn, const union mm_wire_any *body);
void mm_lease_ready(struct mm_server *server, struct mm_region *region, enum cm_err code,
                    const struct cm_error *error);
/* The holder's connection is gone. */
void mm_lease_lost(struct mm_server *server, struct mm_hold *hold, uint64_t now_ns);
/* The owner is gone: tells the readers, or retires the region. */
void mm_lease_orphan(struct mm_server *server, struct mm_region *region, uint64_t now_ns);
/* True: answered, or parked elsewhere. False: still unknown. */
bool mm_lease_try_open(struct mm_conn *conn, const union mm_wire_any *body);

/* --- weights.c --- */
void mm_weights_ask(struct mm_conn *conn, const union mm_wire_any *body);
void mm_weights_seal(struct mm_conn *conn, const union mm_wire_any *body);
void mm_weights_close(struct mm_conn *conn, const union mm_wire_any *body);
void mm_weights_ready(struct mm_server *server, struct mm_region *region, enum cm_err code,
                      const struct cm_error *error);
/* Serves a request that was parked (and is in no list now). */
void mm_weights_again(struct mm_server *server, struct mm_ask *ask);
void mm_weights_lost(struct mm_server *server, struct mm_hold *hold, uint64_t now_ns);

/* --- links.c --- */
void mm_link_want(struct mm_conn *conn, const union mm_wire_any *body);
/* Starts what was waiting for this connection, or could not be made before (conn NULL). */
void mm_link_rendezvous(struct mm_server *server, struct mm_conn *conn);
void mm_link_ready(struct mm_server *server, struct mm_want *want, enum cm_err code,
                   const struct cm_error *error, uint64_t id, struct cm_channel_fds ends[2]);
void mm_link_lost(struct mm_conn *conn);
/* Takes fd in any case. */
CM_MUST_CHECK enum cm_err mm_link_restore(struct mm_conn *conn, const struct mm_wire_restore *body,
                                          int fd, struct cm_error *err);
/* Ends the links whose other end did not come back. */
void mm_link_grace_over(struct mm_server *server);
void mm_link_fini(struct mm_server *server);

/* --- restore.c --- */
void mm_restore(struct mm_conn *conn, struct mm_packet *packet);
/* Tries again all that is parked. */
void mm_restore_unpark(struct mm_server *server);
void mm_restore_grace_over(struct mm_server *server);

/* --- report.c --- */
void mm_report_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message);

#endif
