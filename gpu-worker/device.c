/* The device thread: see device.h. Everything here but the create, post and destroy functions runs
 * on it.
 *
 *   EXECUTE -> queue (FIFO) -> inputs mapped? -> plan -> room for outputs? -> gather, run -> DONE
 *                                  | no: OPEN_LEASE        | no: NEED_REGION, or wait for RELEASE
 *                                  `---- the head of the queue waits; nothing overtakes it ----'
 *
 * The first batch of a wake-up runs at once; before each further one the loop turns, so that an
 * ABANDON or a RELEASE that came meanwhile is seen first. */
#include "gpu-worker/device.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "gpu-worker/batch.h"
#include "gpu-worker/outputs.h"

#include <stdlib.h>
#include <string.h>

#define MAX_MODELS  256u
#define MAX_LEASES  256u /* of other processes, mapped or refused */
#define MAX_REGIONS 32u  /* own leases for outputs */
#define MAX_HOLDS   16384u
#define IDLE_MS     10000u
#define QUEUE_MAX   64u /* batches; a scheduler sends two at a time */
#define VERDICT_MS  500u
#define PATIENCE_MS 5000u /* less than it takes the scheduler to believe that we hang */

/* Another process's lease as this thread knows it. */
struct mapping {
    enum { MAP_NONE, MAP_OPENING, MAP_OPEN, MAP_REFUSED } state;
    uint64_t region;
    uint32_t generation;
    struct mm_lease *lease;
};

/* A received EXECUTE; the record's bytes follow. */
struct queued {
    struct queued *next;
    uint64_t received_ns;
    uint64_t abandoned[CM_MAX_BATCH_ITEMS / 64]; /* bits: items that nobody wants any more */
    uint32_t n_abandoned;
    uint32_t length;
    struct cm_record_execute record;
};

struct wk_device {
    struct wk_device_options options;
    struct wk_engine *engine;
    uv_thread_t thread;
    uv_loop_t loop;
    uv_timer_t idle;
    uv_idle_t next;      /* active while a batch is ready to run */
    uv_timer_t patience; /* active while the head of the queue waits for memory */
    bool waited_enough;  /* it has gone off */
    bool in_doubt;       /* the channel leads to a scheduler that ended the last one, or died */
    uv_timer_t verdict;
    struct cm_mailbox mailbox;

    struct cm_channel *channel; /* to the scheduler; NULL: none */
    uint64_t scheduler;         /* the instance that the last channel led to */
    bool served;                /* it has sent batches */
    struct queued *first, **last;
    unsigned n_queued;
    bool need_region; /* asked for, not answered */
    bool stopping;
    size_t refused_bytes; /* smallest region that memmgr refused since the last success; 0: none */

    struct wk_loaded *models[MAX_MODELS];
    unsigned n_models;
    struct mapping mappings[MAX_LEASES];
    bool any_refused; /* among them, until the head of the queue is finished */
    struct wk_workspace workspace;
    struct wk_outputs *outputs;
    struct wk_run run;
    unsigned char *record; /* CM_RECORD_MAX bytes for DONE */
    struct wk_counters counters;
};

#define COUNT(device, name, n) \
    atomic_fetch_add_explicit(&(device)->counters.name, (n), memory_order_relaxed)

struct wk_mail *wk_mail_new(enum wk_mail_kind kind)
{
    struct wk_mail *mail = calloc(1, sizeof *mail);
    if (mail)
        mail->kind = kind;
    return mail;
}

/* To the main loop. Out of memory here would lose a step of a protocol: the process ends and its
 * work moves to another worker. */
static void tell(struct wk_device *device, const struct wk_mail *what)
{
    struct wk_mail *mail = wk_mail_new(what->kind);
    if (!mail) {
        cm_log(CM_LOG_ERROR, "out_of_memory", "while=%s", "posting to the main loop");
        abort();
    }
    *mail = *what;
    mail->mail.next = NULL;
    if (!cm_mailbox_post(device->options.owner, &mail->mail))
        free(mail);
}

static void publish_counters(struct wk_device *device)
{
    struct wk_outputs_stats stats = wk_outputs_stats(device->outputs);
    struct wk_counters *c = &device->counters;
    atomic_store_explicit(&c->holds, stats.holds, memory_order_relaxed);
    atomic_store_explicit(&c->stale_references, stats.stale, memory_order_relaxed);
    atomic_store_explicit(&c->output_bytes_used, stats.bytes_used, memory_order_relaxed);
    atomic_store_explicit(&c->output_bytes_total, stats.bytes_total, memory_order_relaxed);
}

/* ---- leases of other processes ---- */

static struct mapping *find_mapping(struct wk_device *device, uint64_t region, uint32_t generation)
{
    for (unsigned i = 0; i < MAX_LEASES; i++) {
        struct mapping *mapping = &device->mappings[i];
        if (mapping->state != MAP_NONE && mapping->region == region &&
            mapping->generation == generation)
            return mapping;
    }
    return NULL;
}

/* A place for a new mapping: an unused one, else one that was refused (it can be asked for again),
 * else an open one, which is closed. NULL: all are being opened. */
static struct mapping *make_mapping(struct wk_device *device, uint64_t region, uint32_t generation)
{
    struct mapping *place = NULL;
    for (unsigned i = 0; i < MAX_LEASES; i++) {
        struct mapping *mapping = &device->mappings[i];
        if (mapping->state == MAP_NONE) {
            place = mapping;
            break;
        }
        if (mapping->state == MAP_REFUSED ||
            (mapping->state == MAP_OPEN && (!place || place->state != MAP_REFUSED)))
            place = mapping;
    }
    if (!place)
        return NULL;
    if (place->state == MAP_OPEN)
        tell(device, &(struct wk_mail){.kind = WK_MAIL_CLOSED_LEASE, .lease = place->lease});
    *place = (struct mapping){MAP_OPENING, region, generation, NULL};
    tell(device,
         &(struct wk_mail){.kind = WK_MAIL_OPEN_LEASE, .number = region, .generation = generation});
    return place;
}

/* CM_OK and bytes; CM_AGAIN: being mapped; CM_STALE: refused; CM_CORRUPT: outside its lease. */
static enum cm_err resolve(struct wk_device *device, const struct cm_slice_ref *slice,
                           const void **ret_bytes)
{
    struct mapping *mapping = find_mapping(device, slice->region, slice->generation);
    if (!mapping)
        mapping = make_mapping(device, slice->region, slice->generation);
    if (!mapping || mapping->state == MAP_OPENING)
        return CM_AGAIN;
    if (mapping->state == MAP_REFUSED)
        return CM_STALE;
    *ret_bytes = mm_lease_resolve(mapping->lease, slice);
    return *ret_bytes ? CM_OK : CM_CORRUPT;
}

static void lease_answered(struct wk_device *device, const struct wk_mail *mail)
{
    struct mapping *mapping = find_mapping(device, mail->number, mail->generation);
    if (!mapping || mapping->state != MAP_OPENING) {
        if (mail->lease)
            tell(device, &(struct wk_mail){.kind = WK_MAIL_CLOSED_LEASE, .lease = mail->lease});
        return;
    }
    mapping->lease = mail->lease;
    mapping->state = mail->lease ? MAP_OPEN : MAP_REFUSED;
    device->any_refused |= !mail->lease;
}

/* Batches resolve and run in one go, so no step holds a mapping between mails. */
static void lease_revoked(struct wk_device *device, const struct wk_mail *mail)
{
    struct mapping *mapping = find_mapping(device, mail->number, mail->generation);
    /* Compared, never followed: it is gone already if our CLOSED_LEASE has crossed this mail. */
    if (mapping && mapping->lease == mail->lease) {
        *mapping = (struct mapping){.state = MAP_NONE};
        tell(device, &(struct wk_mail){.kind = WK_MAIL_CLOSED_LEASE, .lease = mail->lease});
    }
}

/* A refusal answers the batch that waited for it, no later one: an owner that was late to hand its
 * lease back to a new memmgr, or memmgr's want of descriptors, passes. */
static void forget_refusals(struct wk_device *device)
{
    for (unsigned i = 0; device->any_refused && i < MAX_LEASES; i++)
        if (device->mappings[i].state == MAP_REFUSED)
            device->mappings[i] = (struct mapping){.state = MAP_NONE};
    device->any_refused = false;
}

/* ---- batches ---- */

static void close_channel(struct wk_device *device)
{
    cm_channel_close(device->channel);
    device->channel = NULL;
    for (struct queued *batch = device->first; batch;) {
        struct queued *next = batch->next;
        free(batch);
        batch = next;
    }
    device->first = NULL;
    device->last = &device->first;
    device->n_queued = 0;
    device->run.early_batch = 0; /* the next scheduler may number its batches the same */
    device->in_doubt = false;
    uv_timer_stop(&device->verdict);
    forget_refusals(device);
    wk_outputs_limbo(device->outputs);
}

/* Sends payload as DONE. The scheduler's credits bound what is in flight, so a full ring is a
 * broken peer. */
static void send_done(struct wk_device *device, const void *payload, size_t length)
{
    enum cm_err err =
        cm_channel_send(device->channel, CM_RECORD_DONE, payload, (uint32_t)length, NULL, 0);
    if (err == CM_OK) {
        cm_channel_flush(device->channel);
        return;
    }
    cm_log(CM_LOG_ERROR, "done_not_sent", "error=%s", cm_err_text(err));
    close_channel(device);
    tell(device, &(struct wk_mail){.kind = WK_MAIL_CHANNEL_LOST});
}

static void send_failure(struct wk_device *device, const struct queued *batch, enum cm_err code,
                         const char *text)
{
    size_t text_length = strnlen(text, CM_MAX_TEXT);
    struct cm_record_done done = {
        .batch = batch->record.batch,
        .received_ns = batch->received_ns,
        .status = (uint32_t)code,
        .text_length = (uint16_t)text_length,
    };
    memcpy(device->record, &done, sizeof done);
    memcpy(device->record + sizeof done, text, text_length);
    COUNT(device, failed_batches, 1);
    send_done(device, device->record, sizeof done + text_length);
}

static void on_next(uv_idle_t *next);
static void run_next(struct wk_device *device);

static struct wk_loaded *find_model(struct wk_device *device, struct cm_model_ref ref)
{
    for (unsigned i = 0; i < device->n_models; i++) {
        struct wk_loaded *loaded = device->models[i];
        if (loaded->ref.id == ref.id && loaded->ref.generation == ref.generation)
            return loaded;
    }
    return NULL;
}

/* Checks one item's descriptors against the model and resolves them into group. CM_AGAIN: wait. */
static enum cm_err resolve_item(struct wk_device *device, const struct wk_signature *signature,
                                struct wk_row_group *group)
{
    const struct cm_tensor_desc *inputs = cm_execute_inputs(group->item);
    enum cm_err result = CM_OK;
    for (unsigned i = 0; i < signature->n_inputs; i++) {
        if (inputs[i].dtype != signature->inputs[i].dtype ||
            inputs[i].rank != signature->inputs[i].shape.rank)
            return CM_CORRUPT;
        enum cm_err err = resolve(device, &inputs[i].slice, &group->inputs[i]);
        if (err == CM_AGAIN)
            result = CM_AGAIN; /* go on: ask for all of them at once */
        else if (err != CM_OK && result == CM_OK)
            result = err;
    }
    return result;
}

static bool is_abandoned(const struct queued *batch, unsigned item)
{
    return batch->abandoned[item / 64] >> item % 64 & 1;
}

/* Fills device->run from the batch. CM_AGAIN: a lease is being mapped. */
static enum cm_err gather_groups(struct wk_device *device, const struct queued *batch,
                                 struct wk_loaded *loaded, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(loaded->model);
    struct wk_run *run = &device->run;
    const struct cm_execute_item *item = cm_execute_first(&batch->record);
    bool wait = false;
    if (batch->record.n_inputs != signature->n_inputs)
        return cm_fail(err, CM_CORRUPT, "the batch has the wrong number of inputs");
    if (!signature->batchable && batch->record.n_items != 1)
        return cm_fail(err, CM_CORRUPT, "the model takes one request at a time");
    run->loaded = loaded;
    run->batch = batch->record.batch + 1;
    run->n_groups = batch->record.n_items;
    for (unsigned g = 0; g < run->n_groups; g++) {
        run->groups[g] = (struct wk_row_group){.item = item};
        run->groups[g].status = is_abandoned(batch, g)
                                    ? CM_CANCELLED
                                    : resolve_item(device, signature, &run->groups[g]);
        wait |= run->groups[g].status == CM_AGAIN;
        item = cm_execute_next(&batch->record, item);
    }
    return wait ? CM_AGAIN : CM_OK;
}

/* A slab for the run. CM_AGAIN: wait for memory. */
static enum cm_err reserve_slab(struct wk_device *device, struct wk_slab *slab,
                                struct cm_error *err)
{
    size_t bytes = device->run.slab_bytes;
    enum cm_err code = wk_outputs_reserve(device->outputs, bytes, slab);
    if (code != CM_FULL && code != CM_LIMIT)
        return code;
    COUNT(device, waits, 1);
    bool refused = device->refused_bytes && bytes >= device->refused_bytes;
    if (code == CM_LIMIT && refused)
        /* The reason is in the log: it speaks of this node, the sentence goes to a client. */
        return cm_fail(err, CM_UNAVAILABLE, "there is no memory for the outputs now");
    if (!device->need_region && !refused) {
        device->need_region = true;
        tell(device, &(struct wk_mail){.kind = WK_MAIL_NEED_REGION, .number = bytes});
    }
    return CM_AGAIN;
}

static enum cm_err run_batch(struct wk_device *device, const struct queued *batch,
                             struct wk_loaded *loaded, struct cm_error *err)
{
    struct wk_slab slab;
    size_t length = 0;
    struct cm_record_done done = {.batch = batch->record.batch, .received_ns = batch->received_ns};
    enum cm_err code = gather_groups(device, batch, loaded, err);
    if (code != CM_OK || (code = wk_run_prepare(&device->run, &device->workspace, err)) != CM_OK ||
        (code = reserve_slab(device, &slab, err)) != CM_OK)
        return code;
    code = wk_run_execute(&device->run, &device->workspace, &slab, &done.started_ns, err);
    done.finished_ns = cm_now_ns();
    if (code == CM_OK) {
        code = wk_run_describe(&device->run, device->outputs, &slab, &done, device->record,
                               CM_RECORD_MAX, &length);
        if (code != CM_OK)
            cm_fail(err, CM_UNAVAILABLE, "too many results are waiting for their clients");
    }
    if (code != CM_OK) {
        wk_outputs_abandon(device->outputs, &slab);
        return err->code;
    }
    COUNT(device, batches, 1);
    COUNT(device, rows, device->run.rows);
    for (unsigned g = 0; g < device->run.n_groups; g++) {
        if (device->run.groups[g].status == CM_OK)
            COUNT(device, requests, 1);
        else
            COUNT(device, refused_items, 1);
    }
    send_done(device, device->record, length);
    return CM_OK;
}

/* True if the batch is finished, one way or the other; false if it must wait. */
static bool advance(struct wk_device *device, const struct queued *batch)
{
    struct cm_error err = {0};
    struct wk_loaded *loaded = find_model(device, batch->record.model);
    enum cm_err code;
    if (batch->n_abandoned == batch->record.n_items)
        code = cm_fail(&err, CM_CANCELLED, "nobody wants the batch any more");
    else if (!loaded)
        code = cm_fail(&err, CM_STALE, "the worker does not have this model");
    else if (batch->record.deadline_ns <= cm_now_ns())
        code = cm_fail(&err, CM_DEADLINE, "the deadline passed before the batch was run");
    else
        code = run_batch(device, batch, loaded, &err);
    if (code == CM_AGAIN && !device->waited_enough)
        return false;
    if (code == CM_AGAIN)
        code = cm_fail(&err, CM_UNAVAILABLE, "no memory came for the batch in time");
    if (code != CM_OK)
        send_failure(device, batch, code, err.text);
    return true;
}

static void on_patience(uv_timer_t *timer)
{
    struct wk_device *device = timer->data;
    device->waited_enough = true;
    run_next(device);
}

/* The head of the queue may wait so long and no longer: what keeps memory (a client that does not
 * read, a memmgr that is away) must not make a sound worker look hung. */
static void bound_wait(struct wk_device *device, bool waits)
{
    device->waited_enough = false;
    if (!waits)
        uv_timer_stop(&device->patience);
    else if (!uv_is_active((uv_handle_t *)&device->patience))
        uv_timer_start(&device->patience, on_patience, device->options.patience_ms, 0);
}

/* Runs the head of the queue, if it can run. Another one behind it is for the loop's next turn. */
static void run_next(struct wk_device *device)
{
    struct queued *batch = device->first;
    bool finished = batch && advance(device, batch);
    if (finished) {
        device->run.early_batch = 0;
        forget_refusals(device);
    }
    /* While it ran the channel may have gone away, and the queue with it. */
    if (finished && device->first == batch) {
        device->first = batch->next;
        if (!device->first)
            device->last = &device->first;
        device->n_queued--;
        free(batch);
    }
    bound_wait(device, batch && !finished);
    publish_counters(device);
    if (finished && device->first)
        uv_idle_start(&device->next, on_next);
    else
        uv_idle_stop(&device->next);
}

static void on_next(uv_idle_t *next)
{
    run_next(next->data);
}

/* ---- the channel ---- */

static void abandon_item(struct wk_device *device, const struct cm_record_abandon *record)
{
    for (struct queued *batch = device->first; batch; batch = batch->next) {
        if (batch->record.batch != record->batch || record->item >= batch->record.n_items)
            continue;
        batch->n_abandoned += !is_abandoned(batch, record->item);
        batch->abandoned[record->item / 64] |= 1ull << record->item % 64;
        COUNT(device, abandoned, 1);
    }
}

static void queue_batch(struct wk_device *device, const void *payload, uint32_t length)
{
    struct queued *batch = device->n_queued < QUEUE_MAX
                               ? malloc(sizeof *batch - sizeof batch->record + (size_t)length)
                               : NULL;
    device->served = true;
    if (!batch) {
        struct queued lost = {.received_ns = cm_now_ns()};
        memcpy(&lost.record, payload, sizeof lost.record);
        send_failure(device, &lost, CM_UNAVAILABLE, "the worker has no room for the batch");
        return;
    }
    *batch = (struct queued){.received_ns = cm_now_ns(), .length = length};
    memcpy(&batch->record, payload, length);
    *device->last = batch;
    device->last = &batch->next;
    device->n_queued++;
}

/* It lives: see on_verdict. Nothing that it sends is taken any more. */
static void cut_off(struct wk_device *device)
{
    if (!uv_is_active((uv_handle_t *)&device->verdict))
        return; /* said already */
    uv_timer_stop(&device->verdict);
    tell(device, &(struct wk_mail){.kind = WK_MAIL_CUT_OFF});
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    struct wk_device *device = ctx;
    (void)channel;
    if (device->in_doubt)
        cut_off(device);
    else if (type == CM_RECORD_EXECUTE)
        queue_batch(device, payload, length);
    else if (type == CM_RECORD_ABANDON)
        abandon_item(device, payload);
    else if (type == CM_RECORD_RELEASE)
        wk_outputs_release(device->outputs, ((const struct cm_record_release *)payload)->slab);
    else if (type == CM_RECORD_HELD)
        wk_outputs_held(device->outputs, ((const struct cm_record_held *)payload)->slab);
    else if (type == CM_RECORD_RESUMED)
        wk_outputs_resumed(device->outputs, ((const struct cm_record_resumed *)payload)->gateway);
    else if (type == CM_RECORD_DROP)
        wk_outputs_drop(device->outputs, ((const struct cm_record_drop *)payload)->gateway);
    else
        cm_log(CM_LOG_WARN, "record_ignored", "type=%u", (unsigned)type);
}

static void on_drained(void *ctx, struct cm_channel *channel)
{
    struct wk_device *device = ctx;
    (void)channel;
    if (!uv_is_active((uv_handle_t *)&device->next))
        run_next(device);
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct wk_device *device = ctx;
    CM_ASSERT(channel == device->channel);
    cm_log(CM_LOG_WARN, "scheduler_lost", "reason=%s", cm_err_text(reason));
    close_channel(device);
    if (!device->stopping)
        tell(device, &(struct wk_mail){.kind = WK_MAIL_CHANNEL_LOST});
}

/* A scheduler that lives on after its channel to us has ended gave us up as hung: our batches run
 * elsewhere. It cannot say which of our outputs the gateway still reads, and its RESUMED would free
 * them. So this process ends: its memory stays valid for whoever reads it, and the next one serves.
 * But memmgr may also hand out a channel to a scheduler that is just dying: that one is silent, and
 * hangs up at once. */
static void on_verdict(uv_timer_t *timer)
{
    struct wk_device *device = timer->data;
    tell(device, &(struct wk_mail){.kind = WK_MAIL_CUT_OFF});
}

static bool is_cut_off(const struct wk_device *device, const struct cm_channel *channel)
{
    return device->served && cm_channel_peer(channel).instance == device->scheduler;
}

static void take_channel(struct wk_device *device, struct cm_channel *channel)
{
    static const struct cm_channel_events events = {on_record, on_drained, on_closed, NULL};
    struct cm_channel_events mine = events;
    mine.ctx = device;
    bool again = is_cut_off(device, channel);
    if (device->channel)
        close_channel(device);
    device->channel = channel;
    device->scheduler = cm_channel_peer(channel).instance;
    device->served = again;
    enum cm_err err = cm_channel_start(channel, &device->loop, &mine);
    if (err != CM_OK) {
        cm_log(CM_LOG_ERROR, "channel_failed", "error=%s", cm_err_text(err));
        close_channel(device);
        tell(device, &(struct wk_mail){.kind = WK_MAIL_CHANNEL_LOST});
        return;
    }
    device->in_doubt = again;
    if (again)
        uv_timer_start(&device->verdict, on_verdict, VERDICT_MS, 0);
    else
        tell(device, &(struct wk_mail){.kind = WK_MAIL_CHANNEL_READY});
}

/* ---- mails ---- */

static void take_model(struct wk_device *device, const struct wk_mail *mail)
{
    struct wk_mail answer = {.kind = WK_MAIL_MODEL_READY, .model = mail->model, .ref = mail->ref};
    struct wk_loaded *loaded = calloc(1, sizeof *loaded);
    if (!loaded || device->n_models == MAX_MODELS) {
        cm_fail(&answer.error, loaded ? CM_FULL : CM_NOMEM, "the worker has no room for the model");
        free(loaded);
        tell(device, &answer);
        return;
    }
    loaded->model = mail->model;
    loaded->ref = mail->ref;
    loaded->max_rows = mail->max_rows;
    if (wk_loaded_warm(loaded, &device->workspace, &answer.error) != CM_OK) {
        loaded->model = NULL; /* goes back with the answer */
        wk_loaded_fini(loaded);
        free(loaded);
    } else {
        answer.error.code = CM_OK;
        device->models[device->n_models++] = loaded;
    }
    tell(device, &answer);
}

static void route_model(struct wk_device *device, const struct wk_mail *mail)
{
    struct wk_mail answer = {.kind = WK_MAIL_MODEL_READY, .model = mail->model, .ref = mail->ref};
    bool found = false;
    for (unsigned i = 0; i < device->n_models; i++)
        if (device->models[i]->model == mail->model) {
            device->models[i]->ref = mail->ref;
            device->models[i]->max_rows = mail->max_rows;
            found = true;
        }
    CM_ASSERT(found);
    tell(device, &answer);
}

static void take_region(struct wk_device *device, const struct wk_mail *mail)
{
    device->need_region = false;
    if (!mail->lease) {
        device->refused_bytes = mail->number;
        cm_log(CM_LOG_WARN, "no_output_memory", "bytes=%llu error=%s",
               (unsigned long long)mail->number, mail->error.text);
        return;
    }
    device->refused_bytes = 0;
    enum cm_err err =
        wk_outputs_add_region(device->outputs, mail->lease->region, mail->lease->generation,
                              mail->lease->bytes, mail->lease->base);
    if (err == CM_OK)
        return;
    tell(device, &(struct wk_mail){.kind = WK_MAIL_GIVE_REGION, .number = mail->lease->region});
    device->refused_bytes = mail->number;
    cm_log(CM_LOG_WARN, "no_output_memory", "bytes=%llu error=%s", (unsigned long long)mail->number,
           cm_err_text(err));
}

static void stop(struct wk_device *device)
{
    device->stopping = true;
    do
        run_next(device);
    while (uv_is_active((uv_handle_t *)&device->next));
    if (device->channel)
        close_channel(device);
    uv_close((uv_handle_t *)&device->next, NULL);
    uv_close((uv_handle_t *)&device->idle, NULL);
    uv_close((uv_handle_t *)&device->patience, NULL);
    uv_close((uv_handle_t *)&device->verdict, NULL);
    cm_mailbox_close(&device->mailbox);
}

static void on_mail(void *ctx, struct cm_mail *item)
{
    struct wk_device *device = ctx;
    struct wk_mail *mail = cm_container_of(item, struct wk_mail, mail);
    switch (mail->kind) {
    case WK_MAIL_IDENTITY:
        wk_outputs_set_worker(device->outputs, mail->number);
        break;
    case WK_MAIL_CHANNEL:
        take_channel(device, mail->channel);
        break;
    case WK_MAIL_MODEL:
        take_model(device, mail);
        break;
    case WK_MAIL_ROUTE:
        route_model(device, mail);
        break;
    case WK_MAIL_REGION:
        take_region(device, mail);
        break;
    case WK_MAIL_LEASE:
        lease_answered(device, mail);
        break;
    case WK_MAIL_REVOKED:
        lease_revoked(device, mail);
        break;
    case WK_MAIL_STOP:
        if (!device->stopping)
            stop(device);
        break;
    default:
        CM_ASSERT(!"a mail for the main loop");
    }
    free(mail);
    if (!device->stopping)
        run_next(device);
}

/* Gives back, one at a time, a lease that nothing is in. */
static void on_idle(uv_timer_t *timer)
{
    struct wk_device *device = timer->data;
    uint64_t region = 0;
    if (!device->first && wk_outputs_take_idle_region(device->outputs, &region))
        tell(device, &(struct wk_mail){.kind = WK_MAIL_GIVE_REGION, .number = region});
    device->refused_bytes = 0; /* memmgr may have memory again: ask once more */
    run_next(device);
}

static void device_main(void *arg)
{
    struct wk_device *device = arg;
    uv_run(&device->loop, UV_RUN_DEFAULT);
    tell(device, &(struct wk_mail){.kind = WK_MAIL_STOPPED});
}

/* ---- create and destroy, on the main thread ---- */

static enum cm_err init_loop(struct wk_device *device)
{
    int failed = uv_loop_init(&device->loop);
    if (failed)
        return cm_err_from_errno(-failed);
    enum cm_err err = cm_mailbox_init(&device->mailbox, &device->loop, on_mail, device);
    if (err != CM_OK) {
        uv_loop_close(&device->loop);
        return err;
    }
    CM_ASSERT(uv_timer_init(&device->loop, &device->idle) == 0);
    device->idle.data = device;
    CM_ASSERT(uv_timer_init(&device->loop, &device->patience) == 0);
    device->patience.data = device;
    CM_ASSERT(uv_timer_init(&device->loop, &device->verdict) == 0);
    device->verdict.data = device;
    CM_ASSERT(uv_idle_init(&device->loop, &device->next) == 0);
    device->next.data = device;
    CM_ASSERT(uv_timer_start(&device->idle, on_idle, IDLE_MS, IDLE_MS) == 0);
    return CM_OK;
}

static void free_device(struct wk_device *device)
{
    for (unsigned i = 0; i < device->n_models; i++) {
        wk_loaded_fini(device->models[i]);
        free(device->models[i]);
    }
    wk_workspace_fini(&device->workspace);
    wk_outputs_destroy(device->outputs);
    wk_engine_destroy(device->engine);
    free(device->record);
    free(device);
}

enum cm_err wk_device_create(const struct wk_device_options *options, struct cm_error *err,
                             struct wk_device **ret_device)
{
    const struct wk_outputs_options outputs = {.max_holds = MAX_HOLDS, .max_regions = MAX_REGIONS};
    struct wk_device *device = calloc(1, sizeof *device);
    if (!device)
        return cm_fail(err, CM_NOMEM, "no memory for the device thread");
    device->options = *options;
    if (device->options.patience_ms == 0)
        device->options.patience_ms = PATIENCE_MS;
    device->last = &device->first;
    device->record = calloc(1, CM_RECORD_MAX);
    enum cm_err code = device->record ? wk_outputs_create(&outputs, &device->outputs) : CM_NOMEM;
    if (code != CM_OK)
        cm_fail(err, code, "no memory for the device thread");
    else if ((code = wk_engine_create(&options->engine, err, &device->engine)) == CM_OK &&
             (code = init_loop(device)) != CM_OK)
        cm_fail(err, code, "no event loop for the device thread");
    if (code != CM_OK) {
        free_device(device);
        return code;
    }
    int failed = uv_thread_create(&device->thread, device_main, device);
    if (failed) {
        code = cm_fail_errno(err, -failed, "no device thread");
        uv_close((uv_handle_t *)&device->next, NULL);
        uv_close((uv_handle_t *)&device->idle, NULL);
        uv_close((uv_handle_t *)&device->patience, NULL);
        uv_close((uv_handle_t *)&device->verdict, NULL);
        cm_mailbox_close(&device->mailbox);
        uv_run(&device->loop, UV_RUN_DEFAULT);
        uv_loop_close(&device->loop);
        free_device(device);
        return code;
    }
    *ret_device = device;
    return CM_OK;
}

bool wk_device_post(struct wk_device *device, struct wk_mail *mail)
{
    if (cm_mailbox_post(&device->mailbox, &mail->mail))
        return true;
    free(mail);
    return false;
}

struct wk_engine *wk_device_engine(struct wk_device *device)
{
    return device->engine;
}

const struct wk_counters *wk_device_counters(const struct wk_device *device)
{
    return &device->counters;
}

void wk_device_destroy(struct wk_device *device)
{
    if (!device)
        return;
    uv_thread_join(&device->thread);
    CM_ASSERT(uv_loop_close(&device->loop) == 0);
    free_device(device);
}
