/* The inside of the server, shared by server.c (start, timers, the turn), peers.c (channels) and
 * control.c (bus messages). Tests look in, too. Everything is on the loop's thread. */
#ifndef SCHEDULER_SERVER_PRIV_H
#define SCHEDULER_SERVER_PRIV_H

#include "scheduler/core.h"
#include "scheduler/model.h"
#include "scheduler/server.h"

#include "common/bus.h"
#include "common/channel.h"
#include "common/log.h"
#include "memmgr/client.h"

#include <stdbool.h>

/* What one peer may owe us in reading before it is given up: it has 1 MiB in the ring besides. */
#define SD_PENDING_BYTES (16u * 1024u * 1024u)

/* How soon what did not fit is tried again: a ring, the bus. */
#define SD_RING_RETRY_MS 1u
#define SD_BUS_RETRY_MS  50u

/* LoadModel requests to one worker that are not acknowledged yet. */
#define SD_LOADS_AT_ONCE 8u

/* A record that did not fit its ring. */
struct sd_pending {
    struct sd_pending *next;
    uint32_t length;
    uint8_t type;
    unsigned char bytes[];
};

enum sd_load { SD_LOAD_NONE = 0, SD_LOAD_WANTED, SD_LOAD_SENT, SD_LOAD_ACKED, SD_LOAD_ANSWERED };

/* One life of a gateway or worker, as long as its channel. */
struct sd_peer {
    struct sd_server *server;
    enum cm_role role;
    uint32_t index;
    uint64_t instance;
    uint64_t serial; /* one process may come again over another channel: this differs then */
    struct cm_channel *channel;
    bool attached; /* the core knows it: gateways at once, workers after their Hello */
    bool doomed;   /* to be closed at the end of the turn */
    bool gone;     /* it hung up; else it is we who close, and it may live */
    bool unflushed;
    struct sd_pending *pending, **pending_tail;
    size_t pending_bytes;
    /* Workers: by model. */
    uint8_t loads[SD_MAX_MODELS];
    uint32_t loads_sent;
    /* Gateways. */
    uint64_t table_sent; /* revision; 0: none */
    bool table_in_flight;
};

/* The last Hello of a role and index; it may come before or after the channel. */
struct sd_hello {
    uint64_t instance; /* 0: none yet */
    uint64_t heartbeat_ns;
};

struct sd_server {
    struct sd_server_options options;
    struct mm_client *memory;
    struct cm_bus *bus;
    struct sd_models models;
    struct sd_core *core; /* from the first attach on */
    uint64_t instance;
    uint64_t last_serial;
    struct sd_peer *workers[SD_MAX_WORKERS];
    struct sd_peer *gateways[SD_MAX_GATEWAYS];
    struct sd_hello worker_hellos[SD_MAX_WORKERS];
    struct sd_hello gateway_hellos[SD_MAX_GATEWAYS];
    uint64_t revision; /* of the model table, grows with each change */
    bool settled;      /* once true stays true */
    bool in_turn;
    bool stopping;
    uint32_t n_doomed;
    uint32_t n_pending; /* peers with pending records */
    int alarm_fd;       /* timerfd: uv timers count milliseconds, batching microseconds */
    uv_poll_t alarm;
    uint64_t alarm_at_ns;
    uv_timer_t retry; /* pending records, and requests that the bus had no room for */
    uint64_t heartbeats;
};

/* server.c: the end of every event. Decides, closes who is doomed, sends, arms the timers. */
void sd_server_turn(struct sd_server *server);
/* Something in the model table has changed. */
void sd_server_models_changed(struct sd_server *server);
/* Another turn after ms, if not sooner. */
void sd_server_retry_in(struct sd_server *server, uint64_t ms);

/* peers.c */
extern const struct sd_sink sd_peers_sink; /* ctx to be filled in */
/* A new channel from memmgr; takes it. */
void sd_peers_channel(struct sd_server *server, struct cm_channel *channel);
/* Tells the core about a worker whose channel and Hello are both here. */
void sd_peers_try_attach(struct sd_server *server, uint32_t worker);
void sd_peers_close_doomed(struct sd_server *server);
void sd_peers_flush(struct sd_server *server);
void sd_peers_close_all(struct sd_server *server);

/* control.c */
void sd_control_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message);
/* A worker is attached: it gets every model. */
void sd_control_load_all(struct sd_server *server, struct sd_peer *worker);
/* Sends what is due: LoadModel to workers, ModelTable to gateways. */
void sd_control_push(struct sd_server *server);

#endif
