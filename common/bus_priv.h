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
struct bus_packet {
    unsigned references;
    bool request; /* in a queue, and nobody else holds it: no longer wanted */
    size_t length;
    unsigned char bytes[];
};

struct bus_packet *bus_packet_ref(struct bus_packet *packet);
void bus_packet_unref(struct bus_packet *packet); /* NULL is allowed */

/* Packs message, which has its sender set. CM_LIMIT over CM_BUS_MESSAGE_MAX, CM_NOMEM. */
CM_MUST_CHECK enum cm_err bus_pack(const Ingot__Ipc__Envelope *message,
                                   struct bus_packet **ret_packet);

/* Bytes of an inbox to an envelope that is safe to use: frame, crc, protobuf, sender with a known
 * role, sequence. Hostile input. CM_CORRUPT, CM_UNSUPPORTED, CM_NOMEM. Free with
 * ingot__ipc__envelope__free_unpacked(envelope, NULL). */
CM_MUST_CHECK enum cm_err bus_parse(const void *bytes, size_t length, struct cm_error *err,
                                    Ingot__Ipc__Envelope **ret_envelope);

/* "RUN/bus/worker-0.ipc" into path; false if it does not fit. */
#define BUS_PATH_MAX 108 /* sun_path, terminator included */
bool bus_path(const char *run_dir, enum cm_role role, uint32_t index, char path[BUS_PATH_MAX]);

/* --- The sending side: one PUSH socket for each peer, made on demand. --- */

struct bus_peers;

/* run_dir and counters must outlive the peers. */
struct bus_peers *bus_peers_create(uv_loop_t *loop, const char *run_dir,
                                   struct cm_bus_counters *counters);
/* Sends now or queues. Keeps its own reference to packet. CM_FULL, CM_NOMEM, CM_IO. */
CM_MUST_CHECK enum cm_err bus_peers_send(struct bus_peers *peers, enum cm_role role, uint32_t index,
                                         struct bus_packet *packet, uint64_t now_ns);
/* Drops what waited too long and closes idle sockets. Returns when to call again, or CM_NEVER. */
uint64_t bus_peers_tick(struct bus_peers *peers, uint64_t now_ns);
/* Closes all sockets and frees the peers; on_closed once the loop has let go of them, which without
 * sockets is at once, from inside this call. */
void bus_peers_close(struct bus_peers *peers, void (*on_closed)(void *ctx), void *ctx);

/* --- What makes delivery at most once. --- */

struct bus_memory;

enum bus_verdict {
    BUS_NEW,     /* deliver it; it is now known */
    BUS_WAITING, /* delivered before, not answered yet */
    BUS_KNOWN,   /* answered before: send the answer again */
    BUS_OLD,     /* older than what is remembered, or its answer is forgotten: drop it */
};

struct bus_memory *bus_memory_create(void);
void bus_memory_destroy(struct bus_memory *memory);
/* BUS_KNOWN sets ret_answer (borrowed). A request for which there is no memory is BUS_OLD: better
 * undelivered than delivered twice. */
enum bus_verdict bus_memory_ask(struct bus_memory *memory, const Ingot__Ipc__Sender *sender,
                                uint64_t sequence, struct bus_packet **ret_answer);
/* Remembers the answer to a request that was BUS_NEW, if that is still remembered. */
void bus_memory_answer(struct bus_memory *memory, const Ingot__Ipc__Sender *sender,
                       uint64_t sequence, struct bus_packet *answer);

#endif
