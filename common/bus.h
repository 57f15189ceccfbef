/* The control plane: nanomsg between the processes of a node, protobuf messages, one inbox each.
 *
 * Every process has one inbox (PULL, RUN/bus/ROLE-INDEX.ipc) and pushes to its peers' inboxes.
 * nanomsg promises no delivery, so what matters is a request: it has a sequence number, is sent
 * again until it is answered or its tries are used up, and is delivered at most once to each life
 * of its receiver (a repeated sequence number of one sender gets the remembered answer). Small
 * messages only: never one per inference.
 *
 * One uv loop owns a bus; all functions and callbacks are on its thread. Never blocks: what cannot
 * be sent now (a peer that is starting, or slow) waits in a short queue for up to two seconds, then
 * is dropped; a request comes again with its retry. Bytes from peers are hostile input: what is
 * malformed is dropped, counted and logged at most once a second. */
#ifndef COMMON_BUS_H
#define COMMON_BUS_H

#include "common/err.h"
#include "common/role.h"
#include "proto/ipc.pb-c.h"

#include <uv.h>

#define CM_BUS_MESSAGE_MAX (4u * 1024u * 1024u) /* bytes, frame included */
#define CM_BUS_PEERS_MAX   256u
#define CM_BUS_PENDING_MAX 1024u /* requests waiting for an answer */

struct cm_bus;

/* A message from a peer; valid during the call. If message->wants_answer, the callee answers now or
 * later with cm_bus_answer (it keeps message->sender and message->sequence for that). */
typedef void (*cm_bus_message_fn)(void *ctx, struct cm_bus *bus,
                                  const Ingot__Ipc__Envelope *message);

/* Called exactly once for each request. CM_OK: answer is the peer's envelope, valid during the call
 * (its body may be an Error). CM_DEADLINE: no answer after the last try. CM_CLOSED: the bus was
 * closed. */
typedef void (*cm_bus_answer_fn)(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer);

struct cm_bus_options {
    uv_loop_t *loop;
    const char *run_dir;
    enum cm_role role;
    uint32_t index;
    cm_bus_message_fn on_message;
    void *ctx;
};

/* What a bus has done. X(field, meaning) */
#define CM_BUS_COUNTER_MAP(X)                                        \
    X(received, "messages that were delivered to the owner")         \
    X(sent, "messages handed to nanomsg")                            \
    X(refused, "messages from peers that were malformed or unknown") \
    X(repeated, "requests that a peer sent again")                   \
    X(strays, "answers that nobody waits for any more")              \
    X(retried, "requests that were sent again")                      \
    X(expired, "messages dropped because a peer did not take them")

struct cm_bus_counters {
#define X(field, meaning) uint64_t field;
    CM_BUS_COUNTER_MAP(X)
#undef X
};

/* Creates RUN/bus if it is missing and binds the inbox. CM_EXISTS: another process with this role
 * and index is alive. CM_LIMIT: the run directory's path is too long for a Unix socket. */
CM_MUST_CHECK enum cm_err cm_bus_open(const struct cm_bus_options *options, struct cm_error *err,
                                      struct cm_bus **ret_bus);
/* The instance that goes into every envelope's sender; 0 until set (after attach). */
void cm_bus_set_instance(struct cm_bus *bus, uint64_t instance);

struct cm_bus_counters cm_bus_counters(const struct cm_bus *bus);

/* Fire and forget. The bus fills sender and sequence; body belongs to the caller. CM_LIMIT: over
 * CM_BUS_MESSAGE_MAX. CM_FULL: too many peers. CM_CLOSED: the bus is closing. */
CM_MUST_CHECK enum cm_err cm_bus_send(struct cm_bus *bus, enum cm_role role, uint32_t index,
                                      Ingot__Ipc__Envelope *message);

/* Sends until answered: at once, then after try_ms, doubling up to 2 s, at most tries times (at
 * least 1 each); CM_DEADLINE when the wait after the last try is over. Errors as cm_bus_send, and
 * CM_FULL: too many pending; on any failure on_answer is not called. */
CM_MUST_CHECK enum cm_err cm_bus_request(struct cm_bus *bus, enum cm_role role, uint32_t index,
                                         Ingot__Ipc__Envelope *message, unsigned try_ms,
                                         unsigned tries, cm_bus_answer_fn on_answer, void *ctx);

/* Answers a message that wanted it, once. request may be the envelope itself or a copy of its
 * sender and sequence. An answer without a body is sent as Ack. Errors as cm_bus_send. */
CM_MUST_CHECK enum cm_err cm_bus_answer(struct cm_bus *bus, const Ingot__Ipc__Envelope *request,
                                        Ingot__Ipc__Envelope *answer);

/* Pending requests get CM_CLOSED, what is queued for slow peers is dropped, the memory goes when
 * the loop has let go. Legal in callbacks. NULL is allowed. */
void cm_bus_close(struct cm_bus *bus);

#endif
