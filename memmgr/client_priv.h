/* The client's inside: one connection, the requests under way, what is held. Loop thread only,
 * except for held_work's two functions on uv's worker threads, which touch only their struct held's
 * job fields.
 *
 *   client.c          the public functions, requests and their answers
 *   client_socket.c   connecting, attaching, sending, receiving, losing the connection
 *   client_held.c     leases and weights: mapping, unmapping, handing back
 *   client_peers.c    wanted channels
 *
 * The rule that keeps nothing lost: what memmgr has granted is a struct held from the moment its
 * descriptor arrives to the moment the goodbye is sent; a new connection begins by handing all of
 * them back. */
#ifndef MEMMGR_CLIENT_PRIV_H
#define MEMMGR_CLIENT_PRIV_H

#include "memmgr/client.h"
#include "memmgr/memory.h"
#include "memmgr/wire.h"

#include <sys/queue.h>
#include <sys/un.h>

#define MM_REQUESTS_MAX   1024u /* open requests of this process */
#define MM_WINDOW         64u   /* of them, sent and not answered */
#define MM_CLIENT_PEERS   256u
#define MM_RETRY_FIRST_MS 5u
#define MM_RETRY_LAST_MS  500u
#define MM_INLINE_MAX     (256u * 1024u) /* larger mappings are a worker thread's business */
#define MM_CLIENT_MAGIC   0x434d4d49u

struct held;

/* What the caller waits for. Freed after its callback. */
struct request {
    union mm_wire_any body; /* sequence: of the last sending */
    mm_lease_fn lease_fn;
    mm_weights_fn weights_fn;
    void *ctx;
    struct held *held; /* SEAL: what is sealed */
    TAILQ_ENTRY(request) in_list;
};
TAILQ_HEAD(requests, request);

/*   MAPPING --> HELD --> LEAVING --> (goodbye sent, freed)
 *                 |  ^
 *                 v  | (REMAPPING)
 *               SEALING                                                              */
enum held_state {
    HELD_MAPPING,  /* a worker thread maps; request gets the answer */
    HELD_USED,     /* the caller has it */
    HELD_SEALING,  /* unmapped; SEAL is asked */
    HELD_UNMAPPED, /* a worker thread unmaps, then SEALING or LEAVING */
    HELD_LEAVING,  /* the goodbye is to be sent */
};

struct held {
    struct mm_client *client;
    struct mm_lease lease;     /* region and generation are valid for weights too */
    struct mm_weights weights; /* if is_weights */
    bool is_weights;
    enum held_state state;
    bool known;   /* memmgr counts it on this connection */
    bool lost;    /* memmgr would not have it back */
    bool revoked; /* its owner is gone */
    bool told;    /* on_revoked was called */
    bool seal_next;
    int fd;
    char label[MM_LABEL_BYTES];
    struct request *request;
    uint32_t restore_sequence; /* 0: none under way */
    /* The worker thread's. */
    uv_work_t work;
    bool job_map, job_writable, job_populate;
    int job_fd;
    size_t map_bytes;
    void *base;
    enum cm_err code;
    struct cm_error error;
    TAILQ_ENTRY(held) in_client;
};
TAILQ_HEAD(helds, held);

struct peer {
    enum cm_role role; /* NONE: free */
    uint32_t index;
    uint64_t instance;
    uint64_t channel; /* the newest one's id */
    int memory;       /* a second descriptor of its memory, for handing back; or -1 */
    size_t bytes;
    bool wanted, sent;
    bool known, lost; /* as in struct held */
    uint32_t restore_sequence;
};

struct wire_socket {
    uv_poll_t poll;
    struct mm_client *client;
    int fd;
};

enum client_state { CLIENT_DOWN, CLIENT_ATTACHING, CLIENT_UP, CLIENT_REFUSED };

struct mm_client {
    uint32_t magic;
    struct mm_client_options options;
    struct sockaddr_un address;
    enum client_state state;
    struct wire_socket *socket; /* NULL while down */
    uv_timer_t retry;
    unsigned retry_ms;
    struct mm_identity identity;
    bool closing;
    unsigned n_handles, n_works; /* what keeps the struct alive */
    uint32_t sequence;
    struct requests waiting, sent;
    unsigned n_requests, n_sent; /* n_sent counts what is being handed back too */
    struct helds helds;
    struct peer peers[MM_CLIENT_PEERS];
};

/* --- client.c --- */
void mm_request_answer(struct mm_client *client, struct mm_packet *packet);
/* Calls back with an error and frees the request. */
void mm_request_fail(struct mm_client *client, struct request *request,
                     const struct cm_error *error);
void mm_request_destroy(struct mm_client *client, struct request *request);
/* Sent requests will be sent again, in order. */
void mm_requests_unsend(struct mm_client *client);
void mm_client_unref(struct mm_client *client);

/* --- client_socket.c --- */
void mm_socket_connect(struct mm_client *client);
/* Sends what can be sent now. */
void mm_socket_pump(struct mm_client *client);
/* Ends the connection and tries a new one after the back-off. */
void mm_socket_lost(struct mm_client *client);
void mm_socket_close(struct mm_client *client);
/* CM_OK: sent. Otherwise the pump stops; it has seen to what comes next. */
CM_MUST_CHECK enum cm_err mm_socket_send(struct mm_client *client, const union mm_wire_any *body,
                                         int fd);
uint32_t mm_socket_sequence(struct mm_client *client);

/* --- client_held.c --- */
/* Takes the descriptor of a grant and begins to map it; request is answered then. */
void mm_held_granted(struct mm_client *client, struct request *request, struct mm_packet *packet);
/* The answer to SEAL. */
void mm_held_sealed(struct mm_client *client, struct request *request, struct mm_packet *packet);
/* Unmaps, then says goodbye or, if seal, queues held->request. */
void mm_held_unmap(struct held *held, bool seal);
void mm_held_leave(struct held *held);
void mm_held_revoked(struct mm_client *client, const struct mm_wire_region *which);
/* False if the pump has to stop. */
bool mm_held_pump_restores(struct mm_client *client);
bool mm_held_pump_goodbyes(struct mm_client *client);
/* True if the answer was for one of these. */
bool mm_held_restored(struct mm_client *client, uint32_t sequence, bool accepted);
void mm_held_connection_lost(struct mm_client *client);
void mm_held_abandon(struct mm_client *client);

/* --- client_peers.c --- */
struct peer *mm_peer_find(struct mm_client *client, enum cm_role role, uint32_t index);
struct peer *mm_peer_add(struct mm_client *client, enum cm_role role, uint32_t index);
void mm_peer_channel(struct mm_client *client, struct mm_packet *packet);
void mm_peer_ended(struct mm_client *client, uint64_t channel);
bool mm_peer_pump(struct mm_client *client);
bool mm_peer_restored(struct mm_client *client, uint32_t sequence, bool accepted);
void mm_peer_connection_lost(struct mm_client *client);
void mm_peer_close_all(struct mm_client *client);

#endif
