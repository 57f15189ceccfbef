/* The gateway's loop: what comes from memmgr, the scheduler, the bus and the clock, and the stop.
 *
 * Everything here runs on the loop's thread (the main thread) but gw_kick and gw_models_now. */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "common/log.h"
#include "gateway/accept_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCHEDULER      0u /* index */
#define HOUSE_MS       100
#define FLUSH_MS       1 /* RELEASEs of small answers wait for company at most so long */
#define RETRY_MS       2 /* records that found the ring full */
#define HEARTBEAT_NS   CM_NS_PER_S
#define LINK_GRACE_NS  (2 * CM_NS_PER_S) /* a scheduler may be away so long before we say so */
#define LEASE_RETRY_NS CM_NS_PER_S
#define LEASE_IDLE_NS  (30 * CM_NS_PER_S)
#define DRAIN_LINGER_NS                                                       \
    (250 * CM_NS_PER_MS) /* for last bytes and goodbyes, once nothing is open \
                          */

void gw_kick(struct gw *gw, unsigned kicks)
{
    unsigned old = atomic_fetch_or(&gw->kicked, kicks);
    if ((old & kicks) != kicks && !atomic_load(&gw->deaf))
        uv_async_send(&gw->wake);
}

struct gw_models *gw_models_now(struct gw *gw)
{
    pthread_mutex_lock(&gw->models_lock);
    struct gw_models *models = gw->models ? gw_models_ref(gw->models) : NULL;
    pthread_mutex_unlock(&gw->models_lock);
    return models;
}

/* ---- readiness ---- */

static void update_ready(struct gw *gw)
{
    bool near =
        gw_link_up(gw) || (gw->link_lost_ns && cm_now_ns() - gw->link_lost_ns < LINK_GRACE_NS);
    bool ready = gw->attached && gw->memory_answered && gw->was_settled && near &&
                 !atomic_load(&gw->draining);
    bool before = atomic_exchange(&gw->ready, ready);
    if (ready && !gw->announced) {
        gw->announced = true;
        cm_proc_ready(gw->proc, "serving");
        cm_log(CM_LOG_INFO, "ready", "grpc=%s", gw->grpc_address);
    }
    if (ready != before)
        gw_watch_update(gw);
}

/* ---- memory ---- */

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    struct gw *gw = ctx;
    gw_arena_expect(gw->arena, gw->expected_bytes, false);
    /* The first request shall find memory. A refusal counts too: there will be an error to tell. */
    gw->memory_answered = true;
    update_ready(gw);
    if (lease && gw_arena_add(gw->arena, lease)) {
        gw_infer_unpark(gw, NULL);
        return;
    }
    if (lease)
        mm_client_release(gw->client, lease);
    gw->lease_retry_ns = cm_now_ns() + LEASE_RETRY_NS;
    struct cm_error told;
    cm_fail(&told, !lease && error->code == CM_LIMIT ? CM_LIMIT : CM_UNAVAILABLE,
            "no memory for the request's inputs");
    gw_arena_forget(gw->arena);
    gw_infer_unpark(gw, &told);
    if (!lease && error->code != CM_CLOSED)
        cm_log(CM_LOG_WARN, "lease_refused", "bytes=%zu reason=%s", gw->expected_bytes,
               error->text);
}

/* Ahead of need: half used asks for more. */
static void grow(struct gw *gw)
{
    if (!gw->attached || gw->stopping || cm_now_ns() < gw->lease_retry_ns)
        return;
    size_t bytes = gw_arena_wants(gw->arena);
    if (bytes == 0)
        return;
    gw->expected_bytes = bytes;
    gw_arena_expect(gw->arena, bytes, true);
    if (mm_client_acquire(gw->client, bytes, on_lease, gw) != CM_OK) {
        gw_arena_expect(gw->arena, bytes, false);
        gw->lease_retry_ns = cm_now_ns() + LEASE_RETRY_NS;
    }
}

static void shrink(struct gw *gw, uint64_t now_ns, bool all)
{
    struct mm_lease *lease;
    while ((lease = gw_arena_pop(gw->arena, now_ns, LEASE_IDLE_NS, all)))
        mm_client_release(gw->client, lease);
}

/* ---- the scheduler ---- */

static void want_scheduler(struct gw *gw)
{
    if (gw->attached && !gw->stopping &&
        mm_client_want_channel(gw->client, CM_ROLE_SCHEDULER, SCHEDULER) != CM_OK)
        cm_log(CM_LOG_WARN, "channel_not_asked", "peer=scheduler");
}

static void on_hello_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer);

static void say_hello(struct gw *gw)
{
    Ingot__Ipc__Hello hello = INGOT__IPC__HELLO__INIT;
    Ingot__Ipc__Envelope envelope = INGOT__IPC__ENVELOPE__INIT;
    envelope.body_case = INGOT__IPC__ENVELOPE__BODY_HELLO;
    envelope.hello = &hello;
    gw->hello_pending = cm_bus_request(gw->bus, CM_ROLE_SCHEDULER, SCHEDULER, &envelope, 20, 10,
                                       on_hello_answer, gw) == CM_OK;
}

/* No answer, though its channel lives: say it again until it has sent its table. */
static void on_hello_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct gw *gw = ctx;
    (void)answer;
    gw->hello_pending = false;
    if (err == CM_DEADLINE && gw->link.channel && !gw->stopping)
        say_hello(gw);
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    struct gw *gw = ctx;
    (void)channel, (void)length;
    if (type == CM_RECORD_REPLY)
        gw_reply_record(gw, payload);
    else
        gw_count(gw, bad_replies, 1);
}

static void on_flush_timer(uv_timer_t *timer)
{
    gw_link_flush(timer->data);
}

/* Releasing can wait for company: a bell for each small answer would wake two processes for
 * nothing urgent. */
static void on_drained(void *ctx, struct cm_channel *channel)
{
    struct gw *gw = ctx;
    (void)channel;
    if (!uv_is_active((uv_handle_t *)&gw->release_timer))
        uv_timer_start(&gw->release_timer, on_flush_timer, FLUSH_MS, 0);
}

static void on_channel_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct gw *gw = ctx;
    (void)channel;
    cm_log(CM_LOG_WARN, "scheduler_lost", "reason=%s", cm_err_text(reason));
    gw->link_lost_ns = cm_now_ns();
    gw_link_lost(gw);
    want_scheduler(gw);
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    struct gw *gw = ctx;
    struct cm_peer peer = cm_channel_peer(channel);
    struct cm_channel_events events = {on_record, on_drained, on_channel_closed, gw};
    if (peer.role != CM_ROLE_SCHEDULER || gw->stopping) {
        cm_channel_close(channel);
        return;
    }
    if (gw->link.channel) /* the new one may be here before the old one's hang-up */
        gw_link_lost(gw);
    if (cm_channel_start(channel, gw->loop, &events) != CM_OK) {
        cm_channel_close(channel);
        want_scheduler(gw);
        return;
    }
    gw_count(gw, schedulers, 1);
    cm_log(CM_LOG_INFO, "scheduler_found", "instance=%llu", (unsigned long long)peer.instance);
    gw_link_open(gw, channel);
    gw_link_joined(gw);
    if (!gw->hello_pending)
        say_hello(gw);
    update_ready(gw);
}

/* ---- memmgr ---- */

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    struct gw *gw = ctx;
    gw->instance = identity->instance;
    gw->attached = true;
    atomic_store(&gw->process_number, identity->number);
    cm_bus_set_instance(gw->bus, identity->instance);
    cm_log(CM_LOG_INFO, "attached", "instance=%llu", (unsigned long long)identity->instance);
    if (!gw->link.channel)
        want_scheduler(gw);
    grow(gw);
    update_ready(gw);
}

static void on_memmgr_lost(void *ctx)
{
    (void)ctx;
    cm_log(CM_LOG_WARN, "memmgr_lost", "action=reconnecting");
}

static void on_revoked(void *ctx, const struct mm_lease *lease)
{
    gw_leases_revoked(ctx, lease);
}

static void begin_stop(struct gw *gw);

static void on_refused(void *ctx, const struct cm_error *error)
{
    struct gw *gw = ctx;
    cm_log(CM_LOG_ERROR, "refused", "reason=%s", error->text);
    gw->exit_code = CM_EXIT_LOST;
    begin_stop(gw);
}

/* ---- the bus ---- */

static void answer_ack(struct gw *gw, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    if (message->wants_answer && cm_bus_answer(gw->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_DEBUG, "answer_lost", "peer=%s",
               cm_role_name((enum cm_role)(message->sender ? message->sender->role
                                                           : 0))); /* it will be asked again */
}

/* Newer than what we have: later lives have larger instances, and count revisions anew. */
static bool table_is_news(const struct gw *gw, uint64_t scheduler, uint64_t revision)
{
    return !gw->models || scheduler > gw->models->scheduler ||
           (scheduler == gw->models->scheduler && revision > gw->models->revision);
}

static void take_table(struct gw *gw, const Ingot__Ipc__Envelope *message)
{
    const Ingot__Ipc__ModelTable *table = message->model_table;
    if (!message->sender || message->sender->role != CM_ROLE_SCHEDULER)
        return;
    uint64_t scheduler = message->sender->instance;
    struct gw_models *models;
    struct cm_error error;
    if (!table_is_news(gw, scheduler, table->revision)) {
        answer_ack(gw, message);
        return;
    }
    if (gw_models_build(table, scheduler, gw->models, &error, &models) != CM_OK) {
        cm_log(CM_LOG_ERROR, "table_refused", "reason=%s", error.text);
        answer_ack(gw, message); /* sending it again would not mend it */
        return;
    }
    pthread_mutex_lock(&gw->models_lock);
    struct gw_models *old = gw->models;
    gw->models = models;
    pthread_mutex_unlock(&gw->models_lock);
    gw_models_unref(old);
    gw_count(gw, tables, 1);
    gw->was_settled = gw->was_settled || models->settled;
    gw_link_joined(gw);
    update_ready(gw);
    gw_watch_update(gw);
    answer_ack(gw, message); /* it is in force */
}

/* Stats: every counter of the list, every status that occurred, and what is open now. */
struct stats_list {
    Ingot__Ipc__Counter counters[96], *pointers[96];
    size_t n;
};

static void add_counter(struct stats_list *list, const char *name, uint64_t value)
{
    CM_ASSERT(list->n < CM_COUNT_OF(list->counters));
    Ingot__Ipc__Counter *counter = &list->counters[list->n];
    ingot__ipc__counter__init(counter);
    counter->name = (char *)(uintptr_t)name;
    counter->value = value;
    list->pointers[list->n++] = counter;
}

static void add_gauges(struct gw *gw, struct stats_list *list)
{
    struct gw_arena_stats arena = gw_arena_stats(gw->arena);
    pthread_mutex_lock(&gw->link.lock);
    uint32_t held = gw->link.n_held, unsent = gw->link.n_unsent;
    pthread_mutex_unlock(&gw->link.lock);
    uint64_t zombies = 0;
    uint32_t fresh = atomic_load_explicit(&gw->calls.fresh, memory_order_acquire);
    for (uint32_t i = 0; i < fresh; i++) {
        const gw_word *word = &gw->calls.slots[i].word;
        zombies += gw_word_state(word) == GW_CALL_ANSWERED && !gw_word_holds(word, GW_HOLDS_CORE);
    }
    add_counter(list, "in_flight", atomic_load(&gw->in_flight));
    add_counter(list, "streams", atomic_load(&gw->streams));
    add_counter(list, "open_calls", atomic_load(&gw->open_calls));
    add_counter(list, "zombies", zombies);
    add_counter(list, "outputs_held", held);
    add_counter(list, "unsent", unsent);
    add_counter(list, "waiting_for_memory", atomic_load(&gw->n_parked));
    add_counter(list, "leases_open", atomic_load(&gw->n_leases));
    add_counter(list, "input_leases", arena.leases);
    add_counter(list, "input_bytes", arena.bytes);
    add_counter(list, "input_bytes_used", arena.used);
    add_counter(list, "input_blocks", arena.blocks);
    struct gw_accept_stats accept = gw_accept_stats();
    add_counter(list, "connections", accept.open);
    add_counter(list, "connections_accepted", accept.accepted);
    add_counter(list, "connections_capped", accept.capped);
    add_counter(list, "connections_exhausted", accept.exhausted);
    if (gw->tls) {
        struct gw_tls_stats tls = gw_tls_stats(gw->tls);
        add_counter(list, "tls_reloads", tls.reloads);
        add_counter(list, "tls_reload_failures", tls.failures);
        add_counter(list, "tls_expires", (uint64_t)tls.expires);
    }
}

static void answer_stats(struct gw *gw, const Ingot__Ipc__Envelope *message)
{
    struct stats_list list = {.n = 0};
#define X(name, help) add_counter(&list, #name, atomic_load(&gw->counters.name));
    GW_COUNTER_MAP(X)
#undef X
    for (int i = 0; i < 17; i++)
        add_counter(&list, gw_status_name((grpc_status_code)i),
                    atomic_load(&gw->counters.by_status[i]));
    add_gauges(gw, &list);
    Ingot__Ipc__Stats stats = INGOT__IPC__STATS__INIT;
    stats.n_counters = list.n;
    stats.counters = list.pointers;
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_STATS;
    answer.stats = &stats;
    if (cm_bus_answer(gw->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_DEBUG, "answer_lost", "peer=%s",
               cm_role_name((enum cm_role)(message->sender ? message->sender->role : 0)));
}

static void on_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct gw *gw = ctx;
    (void)bus;
    switch (message->body_case) {
    case INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE:
        take_table(gw, message);
        break;
    case INGOT__IPC__ENVELOPE__BODY_STATS_QUERY:
        if (message->wants_answer)
            answer_stats(gw, message);
        break;
    default:
        break; /* from a newer peer: not for us */
    }
}

static void heartbeat(struct gw *gw, uint64_t now_ns)
{
    if (now_ns - gw->heartbeat_ns < HEARTBEAT_NS || !gw->link.channel)
        return;
    gw->heartbeat_ns = now_ns;
    Ingot__Ipc__Heartbeat beat = INGOT__IPC__HEARTBEAT__INIT;
    beat.monotonic_ns = now_ns;
    beat.in_flight = atomic_load(&gw->in_flight);
    Ingot__Ipc__Envelope envelope = INGOT__IPC__ENVELOPE__INIT;
    envelope.body_case = INGOT__IPC__ENVELOPE__BODY_HEARTBEAT;
    envelope.heartbeat = &beat;
    if (cm_bus_send(gw->bus, CM_ROLE_SCHEDULER, SCHEDULER, &envelope) != CM_OK)
        cm_log(CM_LOG_DEBUG, "heartbeat_lost",
               "peer=scheduler"); /* the next one is a second away */
}

/* ---- clocks ---- */

static void on_deadline_timer(uv_timer_t *timer);

static void set_deadline_timer(struct gw *gw)
{
    uint64_t due = atomic_load(&gw->due_ns);
    if (due == CM_NEVER || gw->finished) {
        uv_timer_stop(&gw->deadline_timer);
        return;
    }
    uint64_t now = cm_now_ns();
    uint64_t wait_ms = due > now ? (due - now + CM_NS_PER_MS - 1) / CM_NS_PER_MS : 0;
    uv_update_time(gw->loop);
    uv_timer_start(&gw->deadline_timer, on_deadline_timer, wait_ms, 0);
}

static void on_deadline_timer(uv_timer_t *timer)
{
    struct gw *gw = timer->data;
    gw_infer_expire(gw, cm_now_ns());
    set_deadline_timer(gw);
}

static void on_retry_timer(uv_timer_t *timer)
{
    gw_link_retry(timer->data);
}

static void on_house_timer(uv_timer_t *timer)
{
    struct gw *gw = timer->data;
    uint64_t now = cm_now_ns();
    atomic_store(&gw->alive_ns, now);
    update_ready(gw);
    grow(gw);
    if (!gw->stopping)
        shrink(gw, now, false);
    gw_leases_tidy(gw, now, false);
    gw_link_retry(gw);
    heartbeat(gw, now);
}

/* ---- stopping ---- */

/* Core is gone, no call is open: take the rest apart, so that the loop runs dry. */
static void finish(struct gw *gw)
{
    if (gw->finished)
        return;
    gw->finished = true;
    gw_http_stop(gw->http);
    gw->http = NULL;
    gw_server_stop(gw);
    atomic_store(&gw->deaf, true);
    cm_mailbox_close(&gw->events);
    gw_link_lost(gw);
    gw_link_retry(gw); /* RELEASEs that waited for room: nobody is left to take them */
    gw_leases_tidy(gw, cm_now_ns(), true);
    shrink(gw, cm_now_ns(), true);
    mm_client_destroy(gw->client);
    cm_bus_close(gw->bus);
    cm_proc_close(gw->proc);
    uv_close((uv_handle_t *)&gw->wake, NULL);
    uv_timer_t *timers[] = {&gw->deadline_timer, &gw->house_timer, &gw->release_timer,
                            &gw->drain_timer, &gw->retry_timer};
    for (size_t i = 0; i < CM_COUNT_OF(timers); i++)
        uv_close((uv_handle_t *)timers[i], NULL);
}

/* While calls are open, new ones are refused with UNAVAILABLE, which clients retry. Core is only
 * told when none is open or the drain's time is up: once it shuts down it would reset what still
 * arrives, which clients take for a cancellation, and it would wait up to 20 s for each peer that
 * does not answer. So shutdown and cancel come together, last. */
static void on_drain_timer(uv_timer_t *timer)
{
    struct gw *gw = timer->data;
    uint64_t now = cm_now_ns();
    if (atomic_load(&gw->in_flight) > 0)
        gw->idle_since_ns = now;
    bool idle = now - gw->idle_since_ns > DRAIN_LINGER_NS;
    if (!idle && now < gw->drain_until_ns)
        return;
    uv_timer_stop(timer);
    gw_server_shut_down(gw);
}

static void begin_stop(struct gw *gw)
{
    if (gw->stopping)
        return;
    cm_log(CM_LOG_INFO, "draining", "in_flight=%u", atomic_load(&gw->in_flight));
    gw->stopping = true;
    gw->idle_since_ns = cm_now_ns();
    gw->drain_until_ns = cm_now_ns() + gw->options.drain_ms * CM_NS_PER_MS;
    atomic_store(&gw->draining, true);
    cm_proc_status(gw->proc, "draining");
    update_ready(gw);
    gw_watch_update(gw);
    struct cm_error error;
    cm_fail(&error, CM_UNAVAILABLE, "the server is going away");
    gw_infer_unpark(gw, &error);
    uv_timer_start(&gw->drain_timer, on_drain_timer, 0, 10);
}

static void on_stop(void *ctx)
{
    begin_stop(ctx);
}

static void on_wake(uv_async_t *async)
{
    struct gw *gw = async->data;
    unsigned kicks = atomic_exchange(&gw->kicked, 0);
    if (kicks & GW_KICK_DEADLINE)
        set_deadline_timer(gw);
    if (kicks & GW_KICK_GROW)
        grow(gw);
    if (kicks & GW_KICK_MEMORY)
        gw_infer_unpark(gw, NULL);
    if ((kicks & GW_KICK_LINK) && !uv_is_active((uv_handle_t *)&gw->retry_timer))
        uv_timer_start(&gw->retry_timer, on_retry_timer, RETRY_MS, 0);
    if (kicks & GW_KICK_LEASES)
        gw_leases_tidy(gw, cm_now_ns(), false);
    if (kicks & GW_KICK_SHUT_DOWN)
        finish(gw);
}

/* ---- start ---- */

/* For the supervisor and the command line: where we listen. Complete or not there. */
static enum cm_err write_addresses(struct gw *gw, struct cm_error *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/gateway.json", gw->options.run_dir);
    int m = snprintf(temporary, sizeof temporary, "%s/.gateway.json.%d", gw->options.run_dir,
                     (int)getpid());
    if (n >= (int)sizeof path || m >= (int)sizeof temporary)
        return cm_fail(err, CM_INVALID, "the run directory's path is too long");
    json_t *root = json_pack("{s:s, s:s?, s:b}", "grpc", gw->grpc_address, "http",
                             gw->http ? gw_http_address(gw->http) : NULL, "tls", gw->tls != NULL);
    bool good =
        root && json_dump_file(root, temporary, JSON_COMPACT) == 0 && rename(temporary, path) == 0;
    int error = errno;
    json_decref(root);
    if (good)
        return CM_OK;
    unlink(temporary);
    return cm_fail_errno(err, error, "cannot write gateway.json in the run directory");
}

static void init_handles(struct gw *gw)
{
    uv_timer_t *timers[] = {&gw->deadline_timer, &gw->house_timer, &gw->release_timer,
                            &gw->drain_timer, &gw->retry_timer};
    for (size_t i = 0; i < CM_COUNT_OF(timers); i++) {
        uv_timer_init(gw->loop, timers[i]);
        timers[i]->data = gw;
    }
    int error = uv_async_init(gw->loop, &gw->wake, on_wake);
    CM_ASSERT(error == 0);
    gw->wake.data = gw;
    uv_timer_start(&gw->house_timer, on_house_timer, 0, HOUSE_MS);
}

static enum cm_err open_peers(struct gw *gw, struct cm_error *err)
{
    uint32_t index = (uint32_t)gw->options.index;
    struct cm_proc_options proc = {gw->loop, CM_ROLE_GATEWAY, index, on_stop, gw};
    struct cm_bus_options bus = {gw->loop, gw->options.run_dir, CM_ROLE_GATEWAY,
                                 index,    on_message,          gw};
    struct mm_client_options client = {
        .loop = gw->loop,
        .run_dir = gw->options.run_dir,
        .role = CM_ROLE_GATEWAY,
        .index = index,
        .on_attached = on_attached,
        .on_lost = on_memmgr_lost,
        .on_channel = on_channel,
        .on_revoked = on_revoked,
        .on_refused = on_refused,
        .ctx = gw,
    };
    enum cm_err code = cm_proc_start(&proc, err, &gw->proc);
    if (code == CM_OK)
        code = cm_bus_open(&bus, err, &gw->bus);
    if (code == CM_OK)
        code = mm_client_create(&client, err, &gw->client);
    return code;
}

static enum cm_err start(struct gw *gw, struct cm_error *err)
{
    const struct gw_options *options = &gw->options;
    size_t length, limit = (size_t)options->max_tensor_mb * 1024 * 1024;
    enum cm_err code = gw_arena_create(limit, &gw->arena);
    if (code != CM_OK)
        return cm_fail(err, code, "no memory");
    if (!options->plaintext)
        code = gw_tls_create(options->tls_cert, options->tls_key, options->tls_client_ca, err,
                             &gw->tls);
    if (code == CM_OK && strcmp(options->reflection, "on") == 0) {
        const uint8_t *set = gw_reflection_set(&length);
        code = gw_reflection_create(set, length, &gw->reflection);
        CM_ASSERT(code != CM_CORRUPT); /* it was made at build time */
    }
    if (code == CM_OK && cm_mailbox_init(&gw->events, gw->loop, gw_watch_event, gw) != CM_OK)
        code = cm_fail(err, CM_NOMEM, "no memory");
    if (code != CM_OK)
        return code;
    init_handles(gw);
    code = open_peers(gw, err);
    if (code == CM_OK)
        code = gw_server_start(gw, err);
    if (code == CM_OK && options->http)
        code = gw_http_start(gw, err, &gw->http);
    if (code == CM_OK)
        code = write_addresses(gw, err);
    if (code == CM_OK)
        cm_log(CM_LOG_INFO, "listening", "grpc=%s http=%s tls=%d", gw->grpc_address,
               gw->http ? gw_http_address(gw->http) : "-", gw->tls != NULL);
    return code;
}

static void gw_fini(struct gw *gw)
{
    gw_calls_fini(gw);
    gw_leases_fini(gw);
    gw_link_fini(&gw->link);
    gw_arena_destroy(gw->arena);
    gw_models_unref(gw->models);
    gw_reflection_destroy(gw->reflection);
    gw_tls_destroy(gw->tls);
    pthread_mutex_destroy(&gw->models_lock);
    pthread_mutex_destroy(&gw->parked_lock);
    free(gw);
}

int gw_run(const struct gw_options *options)
{
    uv_loop_t loop;
    struct cm_error error;
    struct gw *gw = calloc(1, sizeof *gw);
    if (!gw || uv_loop_init(&loop) != 0) {
        cm_log(CM_LOG_ERROR, "start_failed", "reason=%s", "no memory");
        return CM_EXIT_FAILURE;
    }
    gw->options = *options;
    gw->loop = &loop;
    atomic_store(&gw->due_ns, CM_NEVER);
    atomic_store(&gw->alive_ns, cm_now_ns());
    pthread_mutex_init(&gw->models_lock, NULL);
    pthread_mutex_init(&gw->parked_lock, NULL);
    gw_link_init(&gw->link);
    enum cm_err code = start(gw, &error);
    if (code != CM_OK) {
        /* Half-built and nothing in flight: the process's end is the cleanup. */
        cm_log(CM_LOG_ERROR, "start_failed", "reason=%s", error.text);
        return code == CM_INVALID ? CM_EXIT_USAGE : CM_EXIT_FAILURE;
    }
    cm_proc_run_dry(&loop);
    int exit_code = gw->exit_code;
    gw_fini(gw);
    cm_log(CM_LOG_INFO, "stopped", "exit=%d", exit_code);
    return exit_code;
}
