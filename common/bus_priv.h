/* The parts of a bus: packets, envelopes, peers' sockets, remembered answers. Private to
 * common/bus*.c and its tests. All on the bus's loop thread. */
#ifndef COMMON_BUS_PRIV_H
#define COMMON_BUS_PRIV_H

#include "common/bus.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

/* A packed message, frame included. Counted, because a request may lie with its retry and in a
 * queue at once, and an answer with its memory and in a queue. */
struct cm_bus_packet {
    unsigned references;
    bool request; /* in a queue, and nobody else holds it: no longer wanted */
    size_t length;
    unsigned char bytes[];
};

struct cm_bus_packet *cm_bus_packet_ref(struct cm_bus_packet *packet);
void cm_bus_packet_unref(struct cm_bus_packet *packet); /* NULL is allowed */

/* Packs message, which has its sender set. CM_LIMIT over CM_BUS_MESSAGE_MAX, CM_NOMEM. */
CM_MUST_CHECK enum cm_err cm_bus_pack(const Ingot__Ipc__Envelope *message,
                                      struct cm_bus_packet **ret_packet);

/* Bytes of an inbox to an envelope that is safe to use: frame, crc, protobuf, sender with a known
 * role, sequence. Hostile input. CM_CORRUPT, CM_UNSUPPORTED, CM_NOMEM. Free with
 * ingot__ipc__envelope__free_unpacked(envelope, NULL). */
CM_MUST_CHECK enum cm_err cm_bus_parse(const void *bytes, size_t length, struct cm_error *err,
                                       Ingot__Ipc__Envelope **ret_envelope);

/* "RUN/bus/worker-0.ipc" into path; false if it does not fit. */
#define BUS_PATH_MAX 108 /* sun_path, terminator included */
bool cm_bus_path(const char *run_dir, enum cm_role role, uint32_t index, char path[BUS_PATH_MAX]);

/* --- The sending side: one PUSH socket for each peer, made on demand. --- */

struct cm_bus_peers;

/* run_dir and counters must outlive the peers. */
struct cm_bus_peers *cm_bus_peers_create(uv_loop_t *loop, const char *run_dir,
                                         struct cm_bus_counters *counters);
/* Sends now or queues. Keeps its own reference to packet. CM_FULL, CM_NOMEM, CM_IO. */
CM_MUST_CHECK enum cm_err cm_bus_peers_send(struct cm_bus_peers *peers, enum cm_role role,
                                            uint32_t index, struct cm_bus_packet *packet,
                                            uint64_t now_ns);
/* Drops what waited too long and closes idle sockets. Returns when to call again, or CM_NEVER. */
uint64_t cm_bus_peers_tick(struct cm_bus_peers *peers, uint64_t now_ns);
/* Closes all sockets and frees the peers; on_closed once the loop has let go of them, which without
 * sockets is at once, from inside this call. */
void cm_bus_peers_close(struct cm_bus_peers *peers, void (*on_closed)(void *ctx), void *ctx);

/* --- What makes delivery at most once. --- */

struct cm_bus_memory;

enum cm_bus_verdict {
    BUS_NEW,     /* deliver it; it is now known */
    BUS_WAITING, /* delivered before, not answered yet */
    BUS_KNOWN,   /* answered before: send the answer again */
    BUS_OLD,     /* older than what is remembered, or its answer is forgotten: drop it */
};

struct cm_bus_memory *cm_bus_memory_create(void);
void cm_bus_memory_destroy(struct cm_bus_memory *memory);
/* BUS_KNOWN sets ret_answer (borrowed). A request for which there is no memory is BUS_OLD: better
 * undelivered than delivered twice. */
enum cm_bus_verdict cm_bus_memory_ask(struct cm_bus_memory *memory,
                                      const Ingot__Ipc__Sender *sender, uint64_t sequence,
                                      struct cm_bus_packet **ret_answer);
/* Remembers the answer to a request that was BUS_NEW, if that is still remembered. */
void cm_bus_memory_answer(struct cm_bus_memory *memory, const Ingot__Ipc__Sender *sender,
                          uint64_t sequence, struct cm_bus_packet *answer);

#endif
