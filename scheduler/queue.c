/* Request slots, buckets and their order. Pure; nothing is allocated after sd_queue_init. */
#include "scheduler/queue.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- the state machine ---- */

/* Every edge of the picture in the header, and no other: a wrong one is our own mistake, since
 * peers' events are checked against the state before they get here. */
static void sd_request_move(struct sd_request *request, enum sd_request_state to)
{
    static const bool edges[4][4] = {
        [SD_REQUEST_FREE][SD_REQUEST_QUEUED] = true,
        [SD_REQUEST_QUEUED][SD_REQUEST_DISPATCHED] = true,
        [SD_REQUEST_QUEUED][SD_REQUEST_FREE] = true,
        [SD_REQUEST_DISPATCHED][SD_REQUEST_QUEUED] = true,
        [SD_REQUEST_DISPATCHED][SD_REQUEST_ABANDONED] = true,
        [SD_REQUEST_DISPATCHED][SD_REQUEST_FREE] = true,
        [SD_REQUEST_ABANDONED][SD_REQUEST_FREE] = true,
    };
    CM_ASSERT(edges[request->state][to]);
    request->state = to;
}

/* ---- order ---- */

bool sd_request_before(const struct sd_request *a, const struct sd_request *b)
{
    if (a->level != b->level)
        return a->level < b->level;
    if (a->deadline_ns != b->deadline_ns)
        return a->deadline_ns < b->deadline_ns;
    return a->order < b->order;
}

static bool turn_less(const struct sd_heap_node *a, const struct sd_heap_node *b)
{
    return sd_request_before(cm_container_of(a, struct sd_request, turn),
                             cm_container_of(b, struct sd_request, turn));
}

static bool expiry_less(const struct sd_heap_node *a, const struct sd_heap_node *b)
{
    return cm_container_of(a, struct sd_request, expiry)->deadline_ns <
           cm_container_of(b, struct sd_request, expiry)->deadline_ns;
}

/* ---- lists ---- */

static void request_list_append(struct sd_request_list *list, struct sd_request *request)
{
    request->after = NULL;
    request->before = list->last;
    *(list->last ? &list->last->after : &list->first) = request;
    list->last = request;
}

/* By arrival: one that comes back goes before those that came later. */
static void request_list_insert(struct sd_request_list *list, struct sd_request *request)
{
    struct sd_request *after = list->first;
    while (after && after->order < request->order)
        after = after->after;
    if (!after) {
        request_list_append(list, request);
        return;
    }
    request->after = after;
    request->before = after->before;
    *(after->before ? &after->before->after : &list->first) = request;
    after->before = request;
}

static void request_list_remove(struct sd_request_list *list, struct sd_request *request)
{
    *(request->before ? &request->before->after : &list->first) = request->after;
    *(request->after ? &request->after->before : &list->last) = request->before;
    request->before = request->after = NULL;
}

static void bucket_list_append(struct sd_bucket_list *list, struct sd_bucket *bucket)
{
    bucket->after = NULL;
    bucket->before = list->last;
    *(list->last ? &list->last->after : &list->first) = bucket;
    list->last = bucket;
}

static void bucket_list_remove(struct sd_bucket_list *list, struct sd_bucket *bucket)
{
    *(bucket->before ? &bucket->before->after : &list->first) = bucket->after;
    *(bucket->after ? &bucket->after->before : &list->last) = bucket->before;
    bucket->before = bucket->after = NULL;
}

/* ---- hashing ---- */

/* The finaliser of MurmurHash3, as a step: keys are a few words, and a client that finds collisions
 * wins a walk over at most max_buckets entries. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash ^= hash >> 33;
    hash *= 0xff51afd7ed558ccdull;
    hash ^= hash >> 33;
    hash *= 0xc4ceb9fe1a85ec53ull;
    return hash ^ hash >> 33;
}

static uint32_t mask_for(uint32_t entries)
{
    uint32_t size = 16;
    while (size < entries)
        size *= 2;
    return size - 1;
}

static struct sd_request **handle_head(const struct sd_queue *queue, uint32_t gateway,
                                       uint64_t handle)
{
    return &queue->by_handle[mix(gateway, handle) & queue->handle_mask];
}

/* ---- buckets ---- */

static uint32_t make_key(const struct sd_model *model, const struct cm_tensor_desc *inputs,
                         int64_t key[SD_KEY_WORDS])
{
    uint32_t n = 0;
    unsigned first = model->signature.batchable ? 1 : 0;
    key[n++] = model->ref.id;
    key[n++] = model->ref.generation;
    for (uint32_t i = 0; i < model->signature.n_inputs; i++) {
        key[n++] = inputs[i].dtype << 8 | inputs[i].rank;
        for (unsigned d = first; d < inputs[i].rank; d++)
            key[n++] = inputs[i].dims[d];
    }
    return n;
}

static void unlink_key(struct sd_queue *queue, struct sd_bucket *bucket)
{
    struct sd_bucket **link = &queue->by_key[bucket->hash & queue->key_mask];
    while (*link != bucket)
        link = &(*link)->chain;
    *link = bucket->chain;
}

static struct sd_bucket *spare_bucket(struct sd_queue *queue)
{
    if (queue->fresh_buckets > 0)
        return &queue->buckets[queue->max_buckets - queue->fresh_buckets--];
    struct sd_bucket *bucket = queue->idle.first;
    if (!bucket)
        return NULL;
    bucket_list_remove(&queue->idle, bucket);
    unlink_key(queue, bucket);
    return bucket;
}

/* The bucket for these inputs, with a reference for the caller; NULL if all are in use. */
static struct sd_bucket *bucket_get(struct sd_queue *queue, struct sd_model *model,
                                    const struct cm_tensor_desc *inputs)
{
    int64_t key[SD_KEY_WORDS];
    uint32_t words = make_key(model, inputs, key);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < words; i++)
        hash = mix(hash, (uint64_t)key[i]);
    struct sd_bucket **head = &queue->by_key[(uint32_t)hash & queue->key_mask];
    for (struct sd_bucket *bucket = *head; bucket; bucket = bucket->chain) {
        if (bucket->hash == (uint32_t)hash && bucket->key_words == words &&
            memcmp(bucket->key, key, words * sizeof key[0]) == 0) {
            sd_bucket_ref(queue, bucket);
            return bucket;
        }
    }
    struct sd_bucket *bucket = spare_bucket(queue);
    if (!bucket)
        return NULL;
    *bucket = (struct sd_bucket){.model = model,
                                 .users = 1,
                                 .turns = {.less = turn_less},
                                 .hash = (uint32_t)hash,
                                 .key_words = words};
    memcpy(bucket->key, key, words * sizeof key[0]);
    /* The head again: the spare bucket may have been its first. */
    bucket->chain = *head;
    *head = bucket;
    return bucket;
}

void sd_bucket_ref(struct sd_queue *queue, struct sd_bucket *bucket)
{
    if (bucket->users++ == 0)
        bucket_list_remove(&queue->idle, bucket);
}

void sd_bucket_unref(struct sd_queue *queue, struct sd_bucket *bucket)
{
    CM_ASSERT(bucket->users > 0);
    if (--bucket->users == 0)
        bucket_list_append(&queue->idle, bucket);
}

struct sd_request *sd_bucket_next(const struct sd_bucket *bucket)
{
    return bucket->turns.root ? cm_container_of(bucket->turns.root, struct sd_request, turn) : NULL;
}

uint64_t sd_bucket_earliest_deadline(const struct sd_bucket *bucket)
{
    uint64_t earliest = CM_NEVER;
    for (const struct sd_request *r = bucket->arrivals.first; r; r = r->after)
        if (r->deadline_ns < earliest)
            earliest = r->deadline_ns;
    return earliest;
}

/* ---- in and out of the queue ---- */

static void enqueue(struct sd_queue *queue, struct sd_request *request)
{
    struct sd_bucket *bucket = request->bucket;
    if (request->alone) {
        request_list_append(&queue->suspects, request);
    } else {
        if (bucket->items == 0)
            bucket_list_append(&queue->waiting, bucket);
        sd_heap_insert(&bucket->turns, &request->turn);
        if (request->attempts == 0)
            request_list_append(&bucket->arrivals, request);
        else
            request_list_insert(&bucket->arrivals, request);
        bucket->items++;
        bucket->rows += request->rows;
    }
    if (request->deadline_ns != CM_NEVER)
        sd_heap_insert(&queue->deadlines, &request->expiry);
    request->model->queued++;
    queue->queued++;
}

static void dequeue(struct sd_queue *queue, struct sd_request *request)
{
    struct sd_bucket *bucket = request->bucket;
    if (request->alone) {
        request_list_remove(&queue->suspects, request);
    } else {
        sd_heap_remove(&bucket->turns, &request->turn);
        request_list_remove(&bucket->arrivals, request);
        bucket->rows -= request->rows;
        if (--bucket->items == 0)
            bucket_list_remove(&queue->waiting, bucket);
    }
    if (request->deadline_ns != CM_NEVER)
        sd_heap_remove(&queue->deadlines, &request->expiry);
    request->model->queued--;
    queue->queued--;
}

void sd_queue_take(struct sd_queue *queue, struct sd_request *request)
{
    sd_request_move(request, SD_REQUEST_DISPATCHED);
    dequeue(queue, request);
    request->attempts++;
}

void sd_queue_put_back(struct sd_queue *queue, struct sd_request *request, bool alone)
{
    sd_request_move(request, SD_REQUEST_QUEUED);
    request->alone = alone;
    enqueue(queue, request);
}

void sd_queue_abandon(struct sd_request *request)
{
    sd_request_move(request, SD_REQUEST_ABANDONED);
}

/* ---- slots ---- */

struct sd_request *sd_queue_find(const struct sd_queue *queue, uint32_t gateway, uint64_t handle)
{
    struct sd_request *request = *handle_head(queue, gateway, handle);
    /* An orphan belongs to an earlier life in the same slot, whose handles may come again. */
    while (request && (request->gateway != gateway || request->handle != handle || request->orphan))
        request = request->chain;
    return request;
}

static struct sd_request *spare_request(struct sd_queue *queue)
{
    struct sd_request *request = queue->free_request;
    if (request) {
        queue->free_request = request->chain;
        return request;
    }
    if (queue->fresh_requests == 0)
        return NULL;
    uint32_t slot = queue->max_requests - queue->fresh_requests--;
    request = &queue->requests[slot];
    request->inputs = &queue->inputs[(size_t)slot * CM_MAX_TENSORS];
    return request;
}

static void fill(struct sd_queue *queue, struct sd_request *request,
                 const struct cm_record_submit *submit, uint64_t now_ns)
{
    struct cm_tensor_desc *inputs = request->inputs;
    *request = (struct sd_request){
        .priority = submit->priority ? submit->priority : 128,
        .rows = submit->rows,
        .handle = submit->request,
        .deadline_ns = submit->deadline_ns,
        .order = queue->next_order++,
        .output_mask = submit->output_mask,
        .trace = submit->trace,
        .times = {.received_ns = submit->received_ns, .queued_ns = now_ns},
        .inputs = inputs,
    };
    /* Ageing without touching those who wait: one step of waiting is worth one priority, so what
     * arrives a step later starts one level behind, for ever. */
    request->level = now_ns / queue->age_step_ns + request->priority;
    memcpy(inputs, cm_submit_inputs(submit), submit->n_inputs * sizeof *inputs);
}

enum cm_err sd_queue_submit(struct sd_queue *queue, uint32_t gateway, uint64_t instance,
                            struct sd_model *model, const struct cm_record_submit *submit,
                            uint64_t now_ns, struct cm_error *err, struct sd_request **ret_request)
{
    struct sd_bucket *bucket = bucket_get(queue, model, cm_submit_inputs(submit));
    if (!bucket)
        return cm_fail(err, CM_FULL, "too many different shapes are in use at once");
    struct sd_request *request = spare_request(queue);
    if (!request) {
        sd_bucket_unref(queue, bucket);
        return cm_fail(err, CM_FULL, "the scheduler's table of %u requests is full",
                       queue->max_requests);
    }
    fill(queue, request, submit, now_ns);
    request->gateway = gateway;
    request->instance = instance;
    request->model = model;
    request->bucket = bucket;
    struct sd_request **head = handle_head(queue, gateway, request->handle);
    request->chain = *head;
    *head = request;
    queue->in_use++;
    sd_request_move(request, SD_REQUEST_QUEUED);
    enqueue(queue, request);
    *ret_request = request;
    return CM_OK;
}

void sd_queue_free(struct sd_queue *queue, struct sd_request *request)
{
    if (request->state == SD_REQUEST_QUEUED)
        dequeue(queue, request);
    sd_request_move(request, SD_REQUEST_FREE);
    struct sd_request **link = handle_head(queue, request->gateway, request->handle);
    while (*link != request)
        link = &(*link)->chain;
    *link = request->chain;
    sd_bucket_unref(queue, request->bucket);
    request->bucket = NULL;
    request->chain = queue->free_request;
    queue->free_request = request;
    queue->in_use--;
}

struct sd_request *sd_queue_first_deadline(const struct sd_queue *queue)
{
    struct sd_heap_node *root = queue->deadlines.root;
    return root ? cm_container_of(root, struct sd_request, expiry) : NULL;
}

/* ---- memory ---- */

enum cm_err sd_queue_init(struct sd_queue *queue, uint32_t max_requests, uint32_t max_buckets,
                          uint64_t age_step_ns)
{
    size_t inputs = 0;
    *queue = (struct sd_queue){.max_requests = max_requests,
                               .max_buckets = max_buckets,
                               .age_step_ns = age_step_ns,
                               .fresh_requests = max_requests,
                               .fresh_buckets = max_buckets,
                               .deadlines = {.less = expiry_less},
                               .handle_mask = mask_for(max_requests),
                               .key_mask = mask_for(max_buckets)};
    if (!cm_size_mul(max_requests, CM_MAX_TENSORS, &inputs))
        return CM_LIMIT;
    queue->requests = calloc(max_requests, sizeof *queue->requests);
    queue->inputs = calloc(inputs, sizeof *queue->inputs);
    queue->by_handle = calloc((size_t)queue->handle_mask + 1, sizeof(struct sd_request *));
    queue->buckets = calloc(max_buckets, sizeof *queue->buckets);
    queue->by_key = calloc((size_t)queue->key_mask + 1, sizeof(struct sd_bucket *));
    if (!queue->requests || !queue->inputs || !queue->by_handle || !queue->buckets ||
        !queue->by_key) {
        sd_queue_fini(queue);
        return CM_NOMEM;
    }
    return CM_OK;
}

void sd_queue_fini(struct sd_queue *queue)
{
    free(queue->requests);
    free(queue->inputs);
    free(queue->by_handle);
    free(queue->buckets);
    free(queue->by_key);
    *queue = (struct sd_queue){0};
}
