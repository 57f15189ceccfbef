/* The control plane: Hello, model loading, the model table, questions of tools. The loop's thread.
 *
 * Every sender is hostile as far as its bytes go; a message of a life that is not attached is
 * acknowledged, so that it is not repeated, and changes nothing. */
#include "scheduler/messages.h"
#include "scheduler/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_MS 100u
#define TRIES  10u

/* What a request's answer needs to find its place again: the peer may be gone by then. */
struct ticket {
    struct sd_server *server;
    uint32_t index;
    uint64_t serial;
    uint32_t model; /* position */
};

static struct ticket *ticket_new(struct sd_server *server, const struct sd_peer *peer,
                                 uint32_t model)
{
    struct ticket *ticket = malloc(sizeof *ticket);
    if (ticket)
        *ticket = (struct ticket){server, peer->index, peer->serial, model};
    return ticket;
}

/* The asked peer, if it is still here over the same channel. */
static struct sd_peer *asked(struct sd_peer *peer, uint64_t serial)
{
    return peer && !peer->doomed && peer->serial == serial ? peer : NULL;
}

/* The peer if the same life is still here. */
static struct sd_peer *same_life(struct sd_peer *peer, uint64_t instance)
{
    return peer && !peer->doomed && peer->instance == instance ? peer : NULL;
}

/* ---- loading ---- */

static void failed(struct sd_server *server, struct sd_model *model, uint32_t worker,
                   const char *reason)
{
    if (sd_model_failed(model, worker, reason))
        sd_server_models_changed(server);
    cm_log(CM_LOG_WARN, "model_failed", "model=%s version=%u worker=%u reason=%s", model->name,
           model->version, worker, reason);
}

static void on_load_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct ticket ticket = *(struct ticket *)ctx;
    struct sd_server *server = ticket.server;
    free(ctx);
    if (server->stopping)
        return;
    struct sd_peer *worker = asked(server->workers[ticket.index], ticket.serial);
    if (!worker)
        return;
    struct sd_model *model = &server->models.items[ticket.model];
    uint8_t *load = &worker->loads[ticket.model];
    worker->loads_sent--;
    if (err != CM_OK && *load == SD_LOAD_SENT) {
        *load = SD_LOAD_WANTED; /* it is alive, so it will read its inbox some time */
    } else if (err == CM_OK && answer->body_case == INGOT__IPC__ENVELOPE__BODY_ERROR) {
        *load = SD_LOAD_ANSWERED;
        failed(server, model, ticket.index, answer->error->text);
    } else if (*load == SD_LOAD_SENT) {
        *load = SD_LOAD_ACKED;
    }
    sd_server_turn(server);
}

static bool send_load(struct sd_server *server, struct sd_peer *worker, uint32_t position)
{
    const struct sd_model *model = &server->models.items[position];
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__LoadModel load = INGOT__IPC__LOAD_MODEL__INIT;
    struct ticket *ticket = ticket_new(server, worker, position);
    load.id = model->ref.id;
    load.generation = model->ref.generation;
    load.name = (char *)model->name;
    load.version = model->version;
    load.max_batch_size = model->config.max_batch_size;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_LOAD_MODEL;
    message.load_model = &load;
    if (ticket && cm_bus_request(server->bus, CM_ROLE_WORKER, worker->index, &message, TRY_MS,
                                 TRIES, on_load_answer, ticket) == CM_OK)
        return true;
    free(ticket);
    return false;
}

static void push_loads(struct sd_server *server, struct sd_peer *worker)
{
    for (uint32_t i = 0; i < server->models.count && worker->loads_sent < SD_LOADS_AT_ONCE; i++) {
        if (worker->loads[i] != SD_LOAD_WANTED)
            continue;
        if (!send_load(server, worker, i)) {
            sd_server_retry_in(server, SD_BUS_RETRY_MS);
            return;
        }
        worker->loads[i] = SD_LOAD_SENT;
        worker->loads_sent++;
    }
}

void sd_control_load_all(struct sd_server *server, struct sd_peer *worker)
{
    for (uint32_t i = 0; i < server->models.count; i++) {
        struct sd_model *model = &server->models.items[i];
        if (model->broken)
            continue;
        worker->loads[i] = SD_LOAD_WANTED;
        if (sd_model_asked(model, worker->index))
            sd_server_models_changed(server);
    }
}

static void ready(struct sd_server *server, struct sd_model *model, uint32_t worker,
                  const Ingot__Ipc__ModelStatus *status)
{
    struct sd_signature signature;
    struct cm_error err = {.code = CM_OK};
    if (sd_signature_from(status, &err, &signature) != CM_OK) {
        failed(server, model, worker, err.text);
        return;
    }
    if (sd_model_ready(model, worker, &signature, &err))
        sd_server_models_changed(server);
    if (err.code != CM_OK)
        cm_log(CM_LOG_WARN, "model_differs", "model=%s worker=%u reason=%s", model->name, worker,
               err.text);
    else
        cm_log(CM_LOG_INFO, "model_ready", "model=%s version=%u worker=%u max_batch=%u",
               model->name, model->version, worker, model->signature.max_batch);
}

static void take_status(struct sd_server *server, const Ingot__Ipc__Envelope *message)
{
    const Ingot__Ipc__ModelStatus *status = message->model_status;
    uint32_t index = message->sender->index;
    struct cm_model_ref ref = {status->id, status->generation};
    struct sd_model *model = sd_models_find(&server->models, ref);
    struct sd_peer *worker = index < SD_MAX_WORKERS
                                 ? same_life(server->workers[index], message->sender->instance)
                                 : NULL;
    if (!model || model->broken || !worker || !worker->attached)
        return;
    if (status->state == INGOT__IPC__MODEL_STATE__MODEL_FAILED)
        failed(server, model, index,
               status->reason[0] ? status->reason : "the worker does not say why");
    else if (status->state == INGOT__IPC__MODEL_STATE__MODEL_READY)
        ready(server, model, index, status);
    else
        return; /* still at it */
    worker->loads[ref.id - 1] = SD_LOAD_ANSWERED;
}

/* ---- the model table ---- */

static void on_table_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct ticket ticket = *(struct ticket *)ctx;
    struct sd_server *server = ticket.server;
    (void)answer;
    free(ctx);
    if (server->stopping)
        return;
    struct sd_peer *gateway = asked(server->gateways[ticket.index], ticket.serial);
    if (!gateway)
        return;
    gateway->table_in_flight = false;
    if (err != CM_OK)
        gateway->table_sent = 0; /* again, and the newest */
    sd_server_turn(server);
}

static void push_table(struct sd_server *server, struct sd_peer *gateway)
{
    if (gateway->table_in_flight || gateway->table_sent == server->revision ||
        server->gateway_hellos[gateway->index].instance != gateway->instance)
        return;
    struct sd_table table = {0};
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    struct ticket *ticket = ticket_new(server, gateway, 0);
    enum cm_err code = sd_table_make(&server->models, server->revision, server->settled, &table);
    message.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE;
    message.model_table = &table.message;
    if (code == CM_OK && ticket)
        code = cm_bus_request(server->bus, CM_ROLE_GATEWAY, gateway->index, &message, TRY_MS, TRIES,
                              on_table_answer, ticket);
    sd_table_free(&table);
    if (code != CM_OK || !ticket) {
        free(ticket);
        sd_server_retry_in(server, SD_BUS_RETRY_MS);
        return;
    }
    gateway->table_in_flight = true;
    gateway->table_sent = server->revision;
}

void sd_control_push(struct sd_server *server)
{
    for (uint32_t i = 0; i < SD_MAX_WORKERS; i++)
        if (server->workers[i] && server->workers[i]->attached && !server->workers[i]->doomed)
            push_loads(server, server->workers[i]);
    for (uint32_t i = 0; i < SD_MAX_GATEWAYS; i++)
        if (server->gateways[i] && !server->gateways[i]->doomed)
            push_table(server, server->gateways[i]);
}

/* ---- Hello and heartbeat ---- */

static struct sd_hello *hello_of(struct sd_server *server, const Ingot__Ipc__Sender *sender)
{
    if (sender->role == CM_ROLE_WORKER && sender->index < SD_MAX_WORKERS)
        return &server->worker_hellos[sender->index];
    if (sender->role == CM_ROLE_GATEWAY && sender->index < SD_MAX_GATEWAYS)
        return &server->gateway_hellos[sender->index];
    return NULL;
}

static void take_hello(struct sd_server *server, const Ingot__Ipc__Sender *sender)
{
    struct sd_hello *hello = hello_of(server, sender);
    /* Instances only grow: an older life's repeated Hello must not undo its successor's. */
    if (!hello || sender->instance == 0 || sender->instance < hello->instance)
        return;
    hello->instance = sender->instance;
    if (sender->role == CM_ROLE_WORKER) {
        sd_peers_try_attach(server, sender->index);
        return;
    }
    struct sd_peer *gateway = server->gateways[sender->index];
    if (gateway && gateway->instance == sender->instance)
        gateway->table_sent = 0; /* it has started over */
}

/* ---- questions ---- */

static void answer(struct sd_server *server, const Ingot__Ipc__Envelope *message,
                   Ingot__Ipc__Envelope *body)
{
    if (cm_bus_answer(server->bus, message, body) != CM_OK)
        cm_log(CM_LOG_DEBUG, "answer_not_sent", "to=%s", cm_role_name(message->sender->role));
}

static void answer_models(struct sd_server *server, const Ingot__Ipc__Envelope *message)
{
    struct sd_table table = {0};
    Ingot__Ipc__Envelope body = INGOT__IPC__ENVELOPE__INIT;
    if (sd_table_make(&server->models, server->revision, server->settled, &table) != CM_OK)
        return; /* the asker asks again */
    body.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE;
    body.model_table = &table.message;
    answer(server, message, &body);
    sd_table_free(&table);
}

/* Gauges beside the core's counters. X(name, value) */
#define GAUGE_MAP(X)                                            \
    X(queue_length, sd_core_queued(server->core))               \
    X(requests_in_use, sd_core_in_use(server->core))            \
    X(batches_in_flight, sd_core_in_flight(server->core))       \
    X(held, sd_core_held(server->core))                         \
    X(workers, count_peers(server->workers, SD_MAX_WORKERS))    \
    X(gateways, count_peers(server->gateways, SD_MAX_GATEWAYS)) \
    X(models, server->models.count)                             \
    X(pending_peers, server->n_pending)                         \
    X(heartbeats, server->heartbeats)                           \
    X(revision, server->revision)                               \
    X(settled, server->settled)

static uint64_t count_peers(struct sd_peer *const *peers, uint32_t count)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        n += peers[i] && peers[i]->attached;
    return n;
}

static void answer_stats(struct sd_server *server, const Ingot__Ipc__Envelope *message)
{
#define X(...) +1
    enum { N = 0 SD_COUNTER_MAP(X) GAUGE_MAP(X) };
#undef X
    Ingot__Ipc__Counter items[N], *list[N];
    Ingot__Ipc__Stats stats = INGOT__IPC__STATS__INIT;
    Ingot__Ipc__Envelope body = INGOT__IPC__ENVELOPE__INIT;
    if (!server->core)
        return; /* not attached yet: the asker asks again */
    const struct sd_counters *counters = sd_core_counters(server->core);
    for (size_t i = 0; i < N; i++) {
        ingot__ipc__counter__init(&items[i]);
        list[i] = &items[i];
    }
#define X(field)                           \
    items[stats.n_counters].name = #field; \
    items[stats.n_counters++].value = counters->field;
    SD_COUNTER_MAP(X)
#undef X
#define X(field, number)                   \
    items[stats.n_counters].name = #field; \
    items[stats.n_counters++].value = (number);
    GAUGE_MAP(X)
#undef X
    stats.counters = list;
    body.body_case = INGOT__IPC__ENVELOPE__BODY_STATS;
    body.stats = &stats;
    answer(server, message, &body);
}

/* ---- the inbox ---- */

static void answer_unsupported(struct sd_server *server, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope body = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    error.code = CM_UNSUPPORTED;
    error.text = "the scheduler does not take this message";
    body.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
    body.error = &error;
    answer(server, message, &body);
}

static void take_question(struct sd_server *server, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope ack = INGOT__IPC__ENVELOPE__INIT;
    const Ingot__Ipc__Sender *sender = message->sender;
    bool from_worker = sender->role == CM_ROLE_WORKER;
    bool acked = true;
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_HELLO && hello_of(server, sender))
        take_hello(server, sender);
    else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_MODEL_STATUS && from_worker)
        take_status(server, message);
    else
        acked = false;
    if (acked)
        answer(server, message, &ack);
    else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY)
        answer_models(server, message);
    else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_STATS_QUERY)
        answer_stats(server, message);
    else
        answer_unsupported(server, message);
}

void sd_control_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct sd_server *server = ctx;
    (void)bus;
    if (server->stopping)
        return;
    if (message->wants_answer) {
        take_question(server, message);
        sd_server_turn(server);
    } else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_HEARTBEAT) {
        struct sd_hello *hello = hello_of(server, message->sender);
        server->heartbeats++;
        if (hello && hello->instance == message->sender->instance)
            hello->heartbeat_ns = cm_now_ns();
    }
}
