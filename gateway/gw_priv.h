/* The gateway's one process object and its calls: what the folder's files share.
 *
 * Threads (README.md draws them):
 *   loop       the main thread: uv loop, memmgr client, bus, the channel's consuming side, REPLYs,
 *              timers, health watches
 *   queue      the completion-queue thread: every event of gRPC core; decodes and submits
 *   http       libmicrohttpd's own thread: reads counters only
 * A function's comment says who may call it; "any" means loop or queue, or core's inner threads for
 * what a slice's destructor calls. */
#ifndef GATEWAY_GW_PRIV_H
#define GATEWAY_GW_PRIV_H

#include "common/bus.h"
#include "common/channel.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/mailbox.h"
#include "common/proc.h"
#include "common/record.h"
#include "gateway/arena.h"
#include "gateway/call_state.h"
#include "gateway/codec.h"
#include "gateway/context.h"
#include "gateway/http.h"
#include "gateway/models.h"
#include "gateway/options.h"
#include "gateway/reflect.h"
#include "gateway/status.h"
#include "gateway/tls.h"
#include "memmgr/client.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

struct gw;
struct gw_call;

/* ---- counters: X(name, help); all only grow ---- */
#define GW_COUNTER_MAP(X)                                                          \
    X(calls, "calls taken, of any method")                                         \
    X(ok, "calls answered with OK")                                                \
    X(client_gone, "calls whose client cancelled, died or let its deadline pass")  \
    X(bytes_in, "tensor bytes copied to shared memory")                            \
    X(bytes_out, "tensor bytes of answers")                                        \
    X(submitted, "SUBMIT records sent")                                            \
    X(resubmitted, "of those, sent again after a scheduler's or a worker's death") \
    X(cancels, "CANCEL records sent")                                              \
    X(releases, "RELEASE records sent")                                            \
    X(replies, "REPLY records taken")                                              \
    X(bad_replies, "REPLY records for no open request, or that make no sense")     \
    X(ring_full, "records that found the scheduler's ring full")                   \
    X(waited_for_memory, "requests that waited for a lease")                       \
    X(refused_calls, "calls refused because too many are open")                    \
    X(zero_copy, "answers sent from a worker's memory")                            \
    X(schedulers, "scheduler lives seen")                                          \
    X(tables, "model tables taken")

struct gw_counters {
#define X(name, help) _Atomic uint64_t name;
    GW_COUNTER_MAP(X)
#undef X
    _Atomic uint64_t by_status[17];
};

#define gw_count(gw, name, n) \
    atomic_fetch_add_explicit(&(gw)->counters.name, (n), memory_order_relaxed)

/* ---- methods ---- */
enum gw_kind { GW_KIND_GENERIC, GW_KIND_UNARY, GW_KIND_INFER, GW_KIND_WATCH, GW_KIND_REFLECT };

/* A small request's handler: bytes are the message, valid during the call; it answers before it
 * returns. Queue thread. */
typedef void (*gw_unary_fn)(struct gw_call *call, const uint8_t *bytes, size_t length);

struct gw_method {
    const char *path; /* NULL: everything that is not listed */
    enum gw_kind kind;
    gw_unary_fn handle;
    bool oip;         /* INFER: the Open Inference Protocol's messages */
    unsigned armed;   /* outstanding request_call's wanted */
    void *registered; /* core's handle */
    unsigned missing; /* not armed for want of slots; under gw_calls.lock */
};

static inline bool gw_is_stream(const struct gw_method *method)
{
    return method->kind == GW_KIND_WATCH || method->kind == GW_KIND_REFLECT;
}

/* ---- calls ---- */
enum gw_tag_kind { GW_TAG_NEW, GW_TAG_RECEIVE, GW_TAG_SEND, GW_TAG_CLOSE, GW_TAG_SHUTDOWN };

struct gw_tag {
    enum gw_tag_kind kind;
    struct gw_call *call;
};

/* Where a request stands with the scheduler; under gw_link.lock. */
enum gw_backend {
    GW_BACKEND_NONE,   /* no scheduler has it: whoever holds BACKEND is at work on it */
    GW_BACKEND_UNSENT, /* waits for a scheduler, or for room in its ring */
    GW_BACKEND_SENT,   /* SUBMIT is out, one REPLY will come or the channel will end */
};

/* One request's outputs in a worker's memory, until the last byte is sent. Any thread drops. */
struct gw_held {
    struct gw *gw;
    struct cm_slab_ref slab;
    atomic_uint refs;
    struct gw_held *next, *previous;         /* gw_link.held; under its lock */
    bool due;                                /* RELEASE found the ring full; under the same lock */
    struct gw_lease *leases[CM_MAX_TENSORS]; /* whose uses it counts; set before refs is shared */
    unsigned n_leases;
};

/* An infer call's part of its slot. Written by the thread that decodes; handed over with the call's
 * move to QUEUED. */
struct gw_infer {
    struct gw_model *model; /* a reference */
    struct gw_block block;  /* inputs; given back with BACKEND */
    struct cm_record_submit submit;
    struct cm_tensor_desc inputs[CM_MAX_TENSORS];
    uint8_t order[CM_MAX_TENSORS]; /* the answer's outputs */
    uint8_t n_outputs;
    char id[GW_ID_MAX];         /* the Open Inference Protocol's, echoed */
    _Atomic uint16_t id_length; /* I1: set after id; a deadline on the loop may read both */
    uint64_t decoded_ns, submitted_ns;
    uint8_t again;        /* submissions after the first that were not a scheduler's death */
    struct gw_held *held; /* loop thread */
    struct cm_record_reply *reply; /* loop thread: a private copy while a lease is being opened */
    struct gw_call *next;          /* list of those that wait for memory, or for a lease */
};

/* A health watch's part; loop thread. */
struct gw_watch {
    char service[256];
    bool known;   /* the request was read */
    bool started; /* initial metadata is out */
    int last;     /* status sent, -1 none */
    struct gw_call *next, *previous;
};

struct gw_event {
    struct cm_mail mail;
    struct gw_call *call;
    enum gw_tag_kind kind;
    bool success;
};

/* A slot. Who may touch what follows from its word: call_state.h. */
struct gw_call {
    gw_word word;
    uint32_t index;
    struct gw *gw;
    struct gw_method *method;
    struct gw_call *free_next;

    grpc_call *core;
    grpc_metadata_array metadata;
    grpc_call_details details; /* generic calls only */
    gpr_timespec core_deadline;
    grpc_byte_buffer *received;
    grpc_byte_buffer *sending;
    int cancelled;
    bool stream_started; /* initial metadata is out */
    struct gw_tag tags[4];
    struct gw_event events[4]; /* watches: each tag's way to the loop */

    enum gw_backend backend; /* under gw_link.lock; NONE whenever BACKEND is not held */
    bool cancel_due;         /* the same; CANCEL found the ring full */

    bool counted; /* in gw.in_flight, or gw.streams */
    uint64_t arrived_ns;
    uint64_t deadline_ns;
    _Atomic uint64_t expires_ns; /* deadline_ns if core does not enforce it, else CM_NEVER */
    struct gw_context context;
    union {
        struct gw_infer infer;
        struct gw_watch watch;
    };
};

struct gw_calls {
    pthread_mutex_t lock; /* free, missing, writes of fresh */
    struct gw_call *slots;
    uint32_t capacity;
    _Atomic uint32_t fresh; /* slots below have been used */
    struct gw_call *free;
    unsigned missing; /* request_call's that are not armed for want of slots */
};

/* ---- the scheduler ---- */
struct gw_link {
    pthread_mutex_t lock;       /* all below, and the channel's sending side */
    struct cm_channel *channel; /* NULL: none */
    uint64_t peer;              /* its scheduler's instance */
    bool joined;                /* that scheduler's model table is here: SUBMITs may go */
    struct gw_held *held;       /* outputs that we owe a RELEASE for */
    uint32_t n_held;
    uint32_t n_due;    /* RELEASEs and CANCELs that wait for room */
    uint32_t n_unsent; /* requests in GW_BACKEND_UNSENT */
};

/* A worker's lease that we have open or are opening. Loop thread, but for uses. */
struct gw_lease {
    uint64_t region;
    uint32_t generation;
    atomic_bool revoked;    /* written by the loop */
    struct mm_lease *lease; /* NULL: still opening */
    atomic_uint uses;       /* held outputs in it; any thread drops */
    uint64_t used_ns;
    struct gw_call *waiting;
    struct gw *gw;
    struct gw_lease *next;
};

struct gw {
    struct gw_options options;
    uv_loop_t *loop;
    struct cm_proc *proc;
    struct mm_client *client;
    struct cm_bus *bus;
    struct gw_tls *tls;
    struct gw_http *http;
    struct gw_arena *arena;
    struct gw_reflection *reflection;
    struct gw_counters counters;

    /* gRPC */
    grpc_server *server;
    grpc_completion_queue *queue;
    pthread_t queue_thread;
    bool queue_running;
    struct gw_calls calls;
    struct gw_tag shutdown_tag;
    char grpc_address[300];
    uint16_t grpc_port;

    struct gw_link link;
    struct gw_lease *leases; /* loop thread */
    atomic_uint n_leases;

    pthread_mutex_t models_lock;
    struct gw_models *models; /* under models_lock; may be NULL */

    /* handed from thread to thread */
    _Atomic uint64_t due_ns;    /* when the loop looks at deadlines next */
    _Atomic uint64_t alive_ns;  /* when the loop last turned */
    atomic_uint in_flight;      /* infer calls */
    atomic_uint streams;        /* health watches, reflection */
    atomic_uint open_calls;     /* slots in use by calls of any method */
    atomic_uint process_number; /* memmgr's, for trace ids */
    atomic_uint trace_sequence;
    atomic_uint kicked;                           /* GW_KICK_...: work for the loop */
    atomic_bool ready, draining, shut_down, deaf; /* deaf: the loop takes no kicks any more */

    /* loop thread */
    uv_async_t wake;
    uv_timer_t deadline_timer, house_timer, release_timer, drain_timer, retry_timer;
    struct cm_mailbox events;
    struct gw_call *watches;
    struct gw_call *parked; /* under parked_lock: wait for memory */
    pthread_mutex_t parked_lock;
    atomic_uint n_parked;
    size_t expected_bytes; /* of the lease that is on its way */
    bool hello_pending;
    bool attached, memory_answered, was_settled, announced, stopping, finished;
    uint64_t instance; /* ours, from memmgr */
    uint64_t link_lost_ns, heartbeat_ns, lease_retry_ns, drain_until_ns, idle_since_ns;
    int exit_code;
};

enum gw_kick {
    GW_KICK_DEADLINE = 1, /* an earlier deadline than due_ns */
    GW_KICK_GROW = 2,     /* a request waits for memory: ask for more */
    GW_KICK_MEMORY = 4,   /* memory came free while requests waited */
    GW_KICK_LINK = 8,     /* records wait for room, or requests for a scheduler */
    GW_KICK_LEASES = 16,  /* a revoked lease has lost its last use */
    GW_KICK_SHUT_DOWN = 32,
};

/* gateway.c: the loop and all that hangs on it. Runs until the process is told to stop; returns its
 * exit code. Main thread. */
int gw_run(const struct gw_options *options);
/* Any thread: makes the loop look at these. */
void gw_kick(struct gw *gw, unsigned kicks);
/* A reference to the present table, or NULL. Any thread. */
struct gw_models *gw_models_now(struct gw *gw);

/* call.c: slots, answers. */
CM_MUST_CHECK enum cm_err gw_calls_init(struct gw *gw, uint32_t capacity);
void gw_calls_fini(struct gw *gw);
/* A slot for method in state ARMED, or NULL, noted in method->missing. Any thread. */
struct gw_call *gw_call_arm(struct gw *gw, struct gw_method *method);
/* ARMED -> FREE: the server shuts down. Queue thread. */
void gw_call_disarm(struct gw_call *call);
/* The slot that a handle means, or NULL; whether it is still that call is for the word to say. */
struct gw_call *gw_call_slot(struct gw *gw, uint64_t handle);
uint64_t gw_call_handle(const struct gw_call *call);
/* Drops a hold and cleans up what that ends. The call must not be touched after it. Any thread. */
void gw_call_drop(struct gw_call *call, uint32_t hold);
/* Answers with an error, if the call has no answer yet. False: it had. Any thread that has a hold,
 * or is before the client's end. */
bool gw_call_fail(struct gw_call *call, const struct cm_error *error);
bool gw_call_failf(struct gw_call *call, enum cm_err code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* After a successful take with SEND: fails with the deadline, cancels what is under way. Loop
 * thread. */
void gw_call_answer_late(struct gw_call *call);
/* Answers OK with a message of these slices (taken over) after a successful gw_word_take with SEND;
 * stats may be NULL. */
void gw_call_answer_taken(struct gw_call *call, grpc_slice *slices, size_t count,
                          const struct gw_stats *stats);
/* Takes and answers OK with one message. False: it had an answer. */
bool gw_call_answer(struct gw_call *call, const void *bytes, size_t length);
/* Streams: one more message, one more receive. False: the call has its answer. Not while the
 * former of its kind is out. */
bool gw_call_send_message(struct gw_call *call, const void *bytes, size_t length);
bool gw_call_receive(struct gw_call *call);
/* Ends a stream with OK. */
bool gw_call_finish(struct gw_call *call);

/* server.c: core, the queue thread. */
CM_MUST_CHECK enum cm_err gw_server_start(struct gw *gw, struct cm_error *err);
/* Posts request_call's that are missing. Any thread. */
void gw_server_rearm(struct gw *gw);
void gw_server_arm(struct gw *gw, struct gw_method *method);
/* Closes all connections; gw.shut_down is set, and the loop kicked, once they are gone. Then stop
 * ends the queue thread. Loop thread. */
void gw_server_shut_down(struct gw *gw);
void gw_server_stop(struct gw *gw);

/* infer.c: from a call's bytes to SUBMIT, and its ends that are not a REPLY. */
/* The call's message is here (or not: NULL). Owns the hold RECEIVE. Queue thread. */
void gw_infer_received(struct gw_call *call);
/* The client is gone: cancels what is under way. The caller has taken the call. Any thread. */
void gw_infer_abandoned(struct gw_call *call);
/* Deadlines that we enforce ourselves. Loop thread. */
void gw_infer_expire(struct gw *gw, uint64_t now_ns);
void gw_infer_watch_deadline(struct gw_call *call);
/* Requests that waited for memory: try again, or fail all with error. Loop thread. */
void gw_infer_unpark(struct gw *gw, const struct cm_error *error);
/* Gives the inputs back and drops BACKEND. gw_call.backend is NONE. Any thread. */
void gw_infer_backend_done(struct gw_call *call);

/* link.c: the channel's sending side, the held outputs. Any thread unless said otherwise. */
void gw_link_init(struct gw_link *link);
void gw_link_fini(struct gw_link *link);
/* QUEUED call: SUBMIT now, or keep it for the next scheduler. CM_FULL: the ring has no room;
 * CM_CANCELLED: it has been ANSWERED. In both cases it is not kept, the caller ends the backend. */
CM_MUST_CHECK enum cm_err gw_link_submit(struct gw_call *call);
/* The same for one whose REPLY asked for it: looks its model up again; ends it if that is gone,
 * keeps it if there is no room. Loop thread. */
void gw_link_submit_again(struct gw_call *call);
/* ANSWERED without the scheduler. True: the caller ends the backend; false: a REPLY or the
 * channel's end will. */
bool gw_link_cancel(struct gw_call *call);
/* A REPLY's call, whose BACKEND is now the caller's, or NULL. Loop thread. */
struct gw_call *gw_link_replied(struct gw *gw, uint64_t request);
/* Owns one reference. NULL: no memory, the slab has been released. Loop thread. */
struct gw_held *gw_held_create(struct gw *gw, const struct cm_slab_ref *slab);
void gw_held_ref(struct gw_held *held);
void gw_held_unref(struct gw_held *held);
/* Loop thread: a new channel, its end, room again, a table that allows SUBMITs. */
void gw_link_open(struct gw *gw, struct cm_channel *channel);
void gw_link_lost(struct gw *gw);
void gw_link_retry(struct gw *gw);
void gw_link_joined(struct gw *gw);
void gw_link_flush(struct gw *gw);
bool gw_link_up(struct gw *gw);

/* reply.c: REPLYs, worker leases, answers. Loop thread. */
void gw_reply_record(struct gw *gw, const struct cm_record_reply *reply);
void gw_leases_revoked(struct gw *gw, const struct mm_lease *lease);
/* Closes what is revoked or idle and not in use; all: whatever is not in use. */
void gw_leases_tidy(struct gw *gw, uint64_t now_ns, bool all);
/* Forgets those that were still in use when the process let go of memmgr; the mappings go with it.
 */
void gw_leases_fini(struct gw *gw);

/* unary.c: the small calls; health.c: Check, and Watch on the loop. */
void gw_server_live(struct gw_call *call, const uint8_t *bytes, size_t length);
void gw_server_ready(struct gw_call *call, const uint8_t *bytes, size_t length);
void gw_model_ready(struct gw_call *call, const uint8_t *bytes, size_t length);
void gw_server_metadata(struct gw_call *call, const uint8_t *bytes, size_t length);
void gw_model_metadata(struct gw_call *call, const uint8_t *bytes, size_t length);
void gw_health_check(struct gw_call *call, const uint8_t *bytes, size_t length);
/* Loop thread: an event of a watch; the statuses may have changed. */
void gw_watch_event(void *ctx, struct cm_mail *mail);
void gw_watch_update(struct gw *gw);

/* A small message's bytes in one piece: buffer, or what gRPC holds. CM_LIMIT: over size. */
CM_MUST_CHECK enum cm_err gw_flatten(grpc_byte_buffer *from, void *buffer, size_t size,
                                     size_t *ret_length);

#endif
