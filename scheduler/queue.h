/* Requests and the buckets in which they wait.
 *
 * A bucket holds the requests that may share a run: same model, same element types, same shape of
 * every input without its first dimension (with it, if the model does not batch). A bucket keeps
 * its history of batch times while it is empty; the one that was empty longest goes when the table
 * is full.
 *
 * A request's states (sd_request_move is the only place that changes one):
 *
 *            submit             dispatch                done
 *    FREE ------------> QUEUED ------------> DISPATCHED --------> FREE   REPLY with the result
 *                        |  ^                 |   |
 *        cancel, expiry, |  | worker died,    |   | cancel: REPLY CANCELLED comes with done
 *        gateway died    |  | another try     |   | gateway died: no REPLY
 *                        v  '-----------------'   v
 *                       FREE                   ABANDONED ---------> FREE   RELEASE to the worker
 *                                                       done or
 *                                                       worker died
 *
 * Pure; memory is fixed at creation; one thread. */
#ifndef SCHEDULER_QUEUE_H
#define SCHEDULER_QUEUE_H

#include "scheduler/heap.h"
#include "scheduler/history.h"
#include "scheduler/model.h"

#include "common/record.h"

#include <stdbool.h>
#include <stdint.h>

/* X(name) */
#define SD_REQUEST_STATE_MAP(X) \
    X(FREE)                     \
    X(QUEUED)                   \
    X(DISPATCHED)               \
    X(ABANDONED)

enum sd_request_state {
#define X(name) SD_REQUEST_##name,
    SD_REQUEST_STATE_MAP(X)
#undef X
};

struct sd_bucket;

/* One request. Lists it is in, by state: FREE the free list; QUEUED the gateway table, the deadline
 * heap, and its bucket's heap and list, or, with alone set, the list of suspects; DISPATCHED and
 * ABANDONED the gateway table and its batch. */
struct sd_request {
    enum sd_request_state state;
    bool orphan; /* its gateway is gone: nobody to reply to */
    bool alone;  /* two batches with it died, or one failed: runs by itself */
    uint8_t priority;
    uint8_t deaths;
    uint16_t attempts;
    uint32_t gateway; /* slot */
    uint32_t rows;
    uint64_t handle;      /* the gateway's */
    uint64_t instance;    /* the gateway's */
    uint64_t level;       /* priority with ageing: smaller goes first */
    uint64_t deadline_ns; /* CM_NEVER if none */
    uint64_t order;       /* of arrival */
    uint64_t output_mask;
    struct cm_trace trace;
    struct cm_stage_times times;
    struct sd_model *model;
    struct sd_bucket *bucket;
    struct sd_batch *batch; /* DISPATCHED, ABANDONED: where it is, */
    uint32_t place;         /* and its position there */
    struct cm_tensor_desc *inputs;     /* model->signature.n_inputs of them */
    struct sd_heap_node turn;          /* in the bucket's heap */
    struct sd_heap_node expiry;        /* in the deadline heap, if it has a deadline */
    struct sd_request *before, *after; /* in the bucket's list, or the suspects' */
    struct sd_request *chain;          /* gateway table, free list */
};

struct sd_request_list {
    struct sd_request *first, *last;
};

#define SD_KEY_WORDS (2 + CM_MAX_TENSORS * (1 + CM_MAX_RANK))

struct sd_bucket {
    struct sd_model *model;
    uint32_t users; /* requests, in any state, and batches that point here */
    uint32_t rows;  /* waiting */
    uint32_t items;
    struct sd_heap turns;
    struct sd_request_list arrivals; /* oldest first */
    struct sd_history history;
    uint32_t hash;
    uint32_t key_words;
    int64_t key[SD_KEY_WORDS];
    struct sd_bucket *chain; /* hash table, free list */
    struct sd_bucket *before,
        *after; /* buckets with waiting requests, or idle ones, oldest first */
};

struct sd_bucket_list {
    struct sd_bucket *first, *last;
};

struct sd_queue {
    uint32_t max_requests, max_buckets;
    uint64_t age_step_ns;
    struct sd_request *requests;
    struct cm_tensor_desc *inputs; /* CM_MAX_TENSORS for each request */
    struct sd_request *free_request;
    uint32_t fresh_requests;       /* never used so far: their pages are untouched */
    struct sd_request **by_handle; /* hash of gateway and handle */
    uint32_t handle_mask;
    struct sd_heap deadlines;
    struct sd_request_list suspects; /* waiting to run alone */
    struct sd_bucket *buckets;
    uint32_t fresh_buckets;
    struct sd_bucket **by_key;
    uint32_t key_mask;
    struct sd_bucket_list waiting; /* buckets with requests in turns */
    struct sd_bucket_list idle;    /* buckets without users, least recently used first */
    uint64_t next_order;
    uint32_t queued; /* in QUEUED */
    uint32_t in_use; /* not FREE */
};

CM_MUST_CHECK enum cm_err sd_queue_init(struct sd_queue *queue, uint32_t max_requests,
                                        uint32_t max_buckets, uint64_t age_step_ns);
void sd_queue_fini(struct sd_queue *queue);

/* The request of a gateway's handle; NULL if none is known. */
struct sd_request *sd_queue_find(const struct sd_queue *queue, uint32_t gateway, uint64_t handle);

/* A new request from a SUBMIT that fits model, QUEUED. CM_FULL with a sentence: no request slot or
 * no bucket left. */
CM_MUST_CHECK enum cm_err sd_queue_submit(struct sd_queue *queue, uint32_t gateway,
                                          uint64_t instance, struct sd_model *model,
                                          const struct cm_record_submit *submit, uint64_t now_ns,
                                          struct cm_error *err, struct sd_request **ret_request);

/* QUEUED -> DISPATCHED. */
void sd_queue_take(struct sd_queue *queue, struct sd_request *request);
/* DISPATCHED -> QUEUED, in its old order; alone: as a suspect. */
void sd_queue_put_back(struct sd_queue *queue, struct sd_request *request, bool alone);
/* DISPATCHED -> ABANDONED. */
void sd_queue_abandon(struct sd_request *request);
/* Any state but FREE -> FREE. The slot may be used again at once. */
void sd_queue_free(struct sd_queue *queue, struct sd_request *request);

/* Who of a bucket goes next; NULL if nobody waits. */
struct sd_request *sd_bucket_next(const struct sd_bucket *bucket);
/* The earliest deadline of those who wait: walks them all, so ask only where a batch is not full.
 */
uint64_t sd_bucket_earliest_deadline(const struct sd_bucket *bucket);

/* A batch points to the bucket, or no longer does. */
void sd_bucket_ref(struct sd_queue *queue, struct sd_bucket *bucket);
void sd_bucket_unref(struct sd_queue *queue, struct sd_bucket *bucket);

/* The waiting request with the earliest deadline; NULL if none has one. */
struct sd_request *sd_queue_first_deadline(const struct sd_queue *queue);

/* Total order of waiting requests: level, then deadline, then arrival. */
bool sd_request_before(const struct sd_request *a, const struct sd_request *b);

#endif
