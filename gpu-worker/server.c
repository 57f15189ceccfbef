/* The worker's main loop: see server.h. */
#include "gpu-worker/server.h"

#include "common/bus.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mailbox.h"
#include "gpu-worker/device.h"
#include "gpu-worker/loader.h"
#include "memmgr/client.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_LEASE (16u * 1024u * 1024u) /* the first one, and the least that is added */
#define MAX_OWN      32u
#define HEARTBEAT_MS 1000u
#define ANSWER_MS    100u     /* first try of a request on the bus */
#define ANSWER_TRIES UINT_MAX /* a scheduler that slept still wants to know */

struct wk_server {
    struct wk_server_options options;
    struct mm_client *memory;
    struct cm_bus *bus;
    struct wk_device *device;
    struct wk_loader *loader;
    struct cm_mailbox mailbox; /* from the device */
    uv_timer_t heartbeat;
    uint64_t instance;
    uint64_t scheduler;            /* the newest that has named models */
    struct mm_lease *own[MAX_OWN]; /* output leases */
    bool first_lease_asked;
    bool has_outputs; /* the first output lease is there: the worker can serve */
    bool ready;
    bool stopping;
    bool stopped; /* the device thread has ended */
};

/* A region asked for on behalf of the device. */
struct region_request {
    struct wk_server *server;
    size_t bytes;
};

struct open_request {
    struct wk_server *server;
    uint64_t region;
    uint32_t generation;
};

static void post(struct wk_server *server, const struct wk_mail *what)
{
    struct wk_mail *mail = wk_mail_new(what->kind);
    if (!mail) {
        cm_log(CM_LOG_ERROR, "out_of_memory", "while=%s", "posting to the device");
        abort();
    }
    *mail = *what;
    wk_device_post(server->device, mail);
}

/* ---- leases ---- */

static bool keep_own(struct wk_server *server, struct mm_lease *lease)
{
    for (unsigned i = 0; i < MAX_OWN; i++)
        if (!server->own[i]) {
            server->own[i] = lease;
            return true;
        }
    return false;
}

static void on_region(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    struct region_request *request = ctx;
    struct wk_server *server = request->server;
    struct wk_mail mail = {.kind = WK_MAIL_REGION, .number = request->bytes, .error = *error};
    free(request);
    if (lease && !keep_own(server, lease)) {
        mm_client_release(server->memory, lease);
        lease = NULL;
        cm_fail(&mail.error, CM_FULL, "the worker has all the output leases that it may have");
    }
    mail.lease = lease;
    if (server->stopping)
        return;
    post(server, &mail);
    if (!server->has_outputs && lease) {
        server->has_outputs = true;
        if (mm_client_want_channel(server->memory, CM_ROLE_SCHEDULER, 0) != CM_OK)
            cm_log(CM_LOG_ERROR, "no_channel", "reason=%s", "memmgr's queue is full");
    } else if (!server->has_outputs) {
        server->options.on_lost(server->options.ctx, &mail.error);
    }
}

static void ask_region(struct wk_server *server, size_t bytes)
{
    struct region_request *request = malloc(sizeof *request);
    enum cm_err err = request ? CM_OK : CM_NOMEM;
    if (request) {
        *request = (struct region_request){server, bytes};
        size_t ask = bytes > OUTPUT_LEASE ? bytes : OUTPUT_LEASE;
        err = mm_client_acquire(server->memory, ask, on_region, request);
    }
    if (err == CM_OK)
        return;
    free(request);
    struct wk_mail mail = {.kind = WK_MAIL_REGION, .number = bytes};
    cm_fail(&mail.error, err, "cannot ask for memory: %s", cm_err_text(err));
    post(server, &mail);
}

static void give_region(struct wk_server *server, uint64_t region)
{
    for (unsigned i = 0; i < MAX_OWN; i++)
        if (server->own[i] && server->own[i]->region == region) {
            mm_client_release(server->memory, server->own[i]);
            server->own[i] = NULL;
        }
}

static void on_opened(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    struct open_request *request = ctx;
    struct wk_server *server = request->server;
    struct wk_mail mail = {.kind = WK_MAIL_LEASE,
                           .number = request->region,
                           .generation = request->generation,
                           .lease = lease,
                           .error = *error};
    free(request);
    if (!server->stopping)
        post(server, &mail);
}

static void open_lease(struct wk_server *server, uint64_t region, uint32_t generation)
{
    struct open_request *request = malloc(sizeof *request);
    enum cm_err err = request ? CM_OK : CM_NOMEM;
    if (request) {
        *request = (struct open_request){server, region, generation};
        err = mm_client_open(server->memory, region, generation, on_opened, request);
    }
    if (err == CM_OK)
        return;
    free(request);
    post(server,
         &(struct wk_mail){.kind = WK_MAIL_LEASE, .number = region, .generation = generation});
}

/* ---- messages to the scheduler ---- */

static void on_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    const char *what = ctx;
    (void)answer;
    if (err != CM_OK && err != CM_CLOSED)
        cm_log(CM_LOG_WARN, "no_answer", "message=%s error=%s", what, cm_err_text(err));
}

static void to_scheduler(struct wk_server *server, Ingot__Ipc__Envelope *message, char *what)
{
    enum cm_err err = cm_bus_request(server->bus, CM_ROLE_SCHEDULER, 0, message, ANSWER_MS,
                                     ANSWER_TRIES, on_answer, what);
    if (err != CM_OK)
        cm_log(CM_LOG_ERROR, "not_sent", "message=%s error=%s", what, cm_err_text(err));
}

static void send_hello(struct wk_server *server)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Hello hello = INGOT__IPC__HELLO__INIT;
    const struct wk_engine_options *engine = &server->options.engine;
    hello.isa = (char *)wk_isa_name(wk_engine_isa(wk_device_engine(server->device)));
    hello.threads = engine->threads ? engine->threads : 1;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_HELLO;
    message.hello = &hello;
    to_scheduler(server, &message, "hello");
}

/* Room for one side of a signature as messages. */
struct infos {
    Ingot__Ipc__TensorInfo info[WK_MAX_IO];
    Ingot__Ipc__TensorInfo *list[WK_MAX_IO];
};

static Ingot__Ipc__TensorInfo **to_infos(struct infos *infos, const struct wk_tensor_info *tensors,
                                         unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        ingot__ipc__tensor_info__init(&infos->info[i]);
        infos->info[i].name = (char *)tensors[i].name;
        infos->info[i].dtype = tensors[i].dtype;
        infos->info[i].n_shape = tensors[i].shape.rank;
        infos->info[i].shape = (int64_t *)tensors[i].shape.dims;
        infos->list[i] = &infos->info[i];
    }
    return infos->list;
}

static void on_load_result(void *ctx, const struct wk_load_result *result)
{
    struct wk_server *server = ctx;
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelStatus status = INGOT__IPC__MODEL_STATUS__INIT;
    struct infos inputs, outputs;
    if (server->stopping)
        return;
    status.id = result->ref.id;
    status.generation = result->ref.generation;
    if (result->error.code == CM_OK) {
        const struct wk_signature *signature = result->signature;
        status.state = INGOT__IPC__MODEL_STATE__MODEL_READY;
        status.n_inputs = signature->n_inputs;
        status.inputs = to_infos(&inputs, signature->inputs, signature->n_inputs);
        status.n_outputs = signature->n_outputs;
        status.outputs = to_infos(&outputs, signature->outputs, signature->n_outputs);
        status.max_batch_size = result->max_rows;
        status.weights_bytes = result->weights_bytes;
        status.batchable = signature->batchable;
        status.why_not = (char *)signature->why_not;
        cm_log(CM_LOG_INFO, "model_ready", "id=%u rows=%u weights=%zu", result->ref.id,
               result->max_rows, result->weights_bytes);
    } else {
        status.state = INGOT__IPC__MODEL_STATE__MODEL_FAILED;
        status.reason = (char *)result->error.text;
        cm_log(CM_LOG_ERROR, "model_failed", "id=%u code=%s reason=%s", result->ref.id,
               cm_err_name(result->error.code), result->error.text);
    }
    message.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_STATUS;
    message.model_status = &status;
    to_scheduler(server, &message, "model_status");
}

static void on_heartbeat(uv_timer_t *timer)
{
    struct wk_server *server = timer->data;
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Heartbeat heartbeat = INGOT__IPC__HEARTBEAT__INIT;
    heartbeat.monotonic_ns = cm_now_ns();
    message.body_case = INGOT__IPC__ENVELOPE__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    if (server->ready && cm_bus_send(server->bus, CM_ROLE_SCHEDULER, 0, &message) != CM_OK)
        cm_log(CM_LOG_DEBUG, "heartbeat_not_sent", "to=%s", "scheduler");
}

/* ---- messages from others ---- */

static void answer_stats(struct wk_server *server, const Ingot__Ipc__Envelope *message)
{
#define X(name) +1
    enum { N = 0 WK_COUNTER_MAP(X) };
#undef X
    const struct wk_counters *counters = wk_device_counters(server->device);
    Ingot__Ipc__Counter items[N], *list[N];
    Ingot__Ipc__Stats stats = INGOT__IPC__STATS__INIT;
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
#define X(field)                                                                                  \
    ingot__ipc__counter__init(&items[stats.n_counters]);                                          \
    items[stats.n_counters].name = #field;                                                        \
    items[stats.n_counters].value = atomic_load_explicit(&counters->field, memory_order_relaxed); \
    list[stats.n_counters] = &items[stats.n_counters];                                            \
    stats.n_counters++;
    WK_COUNTER_MAP(X)
#undef X
    stats.counters = list;
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_STATS;
    answer.stats = &stats;
    if (cm_bus_answer(server->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_DEBUG, "answer_not_sent", "to=%s", "stats");
}

static void on_load_model(struct wk_server *server, const Ingot__Ipc__Envelope *message)
{
    const Ingot__Ipc__LoadModel *load = message->load_model;
    /* Instances only grow: what a dead scheduler left in the inbox must not undo its successor's
     * names for the models. It needs no answer. */
    if (message->sender->instance < server->scheduler)
        return;
    server->scheduler = message->sender->instance;
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    struct cm_model_ref ref = {load->id, load->generation};
    enum cm_err err =
        wk_loader_load(server->loader, ref, load->name, load->version, load->max_batch_size);
    if (err != CM_OK) {
        error.code = err;
        error.text = (char *)cm_err_text(err);
        answer.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
        answer.error = &error;
    }
    if (cm_bus_answer(server->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_WARN, "answer_not_sent", "to=%s", "load_model");
}

/* Something that is not for a worker. Who waits for an answer gets one. */
static void refuse_message(struct wk_server *server, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    cm_log(CM_LOG_DEBUG, "message_ignored", "body=%d", (int)message->body_case);
    if (!message->wants_answer)
        return;
    error.code = CM_UNSUPPORTED;
    error.text = (char *)"a worker does not take this message";
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
    answer.error = &error;
    if (cm_bus_answer(server->bus, message, &answer) != CM_OK)
        cm_log(CM_LOG_DEBUG, "answer_not_sent", "to=%s", "a stranger");
}

static void on_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct wk_server *server = ctx;
    (void)bus;
    if (server->stopping)
        return;
    bool from_scheduler = message->sender->role == CM_ROLE_SCHEDULER;
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_LOAD_MODEL && from_scheduler)
        on_load_model(server, message);
    else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_STATS_QUERY)
        answer_stats(server, message);
    else
        refuse_message(server, message);
}

/* ---- memmgr's events ---- */

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    struct wk_server *server = ctx;
    bool first = server->instance == 0;
    server->instance = identity->instance;
    cm_bus_set_instance(server->bus, identity->instance);
    cm_log(CM_LOG_INFO, "attached", "instance=%llu epoch=%llu",
           (unsigned long long)identity->instance, (unsigned long long)identity->epoch);
    if (!first)
        return;
    post(server, &(struct wk_mail){.kind = WK_MAIL_IDENTITY, .number = identity->instance});
    ask_region(server, OUTPUT_LEASE);
}

static void on_memory_lost(void *ctx)
{
    (void)ctx;
    cm_log(CM_LOG_WARN, "memmgr_lost", "action=%s", "reconnecting");
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    struct wk_server *server = ctx;
    if (server->stopping || cm_channel_peer(channel).role != CM_ROLE_SCHEDULER) {
        cm_channel_close(channel);
        return;
    }
    post(server, &(struct wk_mail){.kind = WK_MAIL_CHANNEL, .channel = channel});
}

static void on_revoked(void *ctx, const struct mm_lease *lease)
{
    struct wk_server *server = ctx;
    if (!server->stopping)
        post(server, &(struct wk_mail){.kind = WK_MAIL_REVOKED,
                                       .number = lease->region,
                                       .generation = lease->generation,
                                       .lease = (struct mm_lease *)lease});
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    struct wk_server *server = ctx;
    server->options.on_lost(server->options.ctx, error);
}

/* ---- mails from the device ---- */

static void on_channel_ready(struct wk_server *server)
{
    cm_log(CM_LOG_INFO, "serving", "scheduler=%s", "connected");
    send_hello(server);
    if (!server->ready && server->options.on_ready)
        server->options.on_ready(server->options.ctx);
    server->ready = true;
}

static void on_mail(void *ctx, struct cm_mail *item)
{
    struct wk_server *server = ctx;
    struct wk_mail *mail = cm_container_of(item, struct wk_mail, mail);
    if (mail->kind == WK_MAIL_STOPPED) {
        server->stopped = true;
    } else if (mail->kind == WK_MAIL_CLOSED_LEASE) {
        mm_client_close_lease(server->memory, mail->lease);
    } else if (mail->kind == WK_MAIL_GIVE_REGION) {
        give_region(server, mail->number);
    } else if (server->stopping) {
        /* The rest asks for more work. */
    } else if (mail->kind == WK_MAIL_CHANNEL_READY) {
        on_channel_ready(server);
    } else if (mail->kind == WK_MAIL_CHANNEL_LOST) {
        if (mm_client_want_channel(server->memory, CM_ROLE_SCHEDULER, 0) != CM_OK)
            cm_log(CM_LOG_ERROR, "no_channel", "reason=%s", "memmgr's queue is full");
    } else if (mail->kind == WK_MAIL_CUT_OFF) {
        struct cm_error error;
        cm_fail(&error, CM_CLOSED,
                "the scheduler has given this process up and goes on without it");
        server->options.on_lost(server->options.ctx, &error);
    } else if (mail->kind == WK_MAIL_MODEL_READY) {
        wk_loader_device_answered(server->loader, mail);
    } else if (mail->kind == WK_MAIL_NEED_REGION) {
        ask_region(server, mail->number);
    } else if (mail->kind == WK_MAIL_OPEN_LEASE) {
        open_lease(server, mail->number, mail->generation);
    } else {
        CM_ASSERT(!"a mail for the device");
    }
    free(mail);
}

/* ---- create, stop, destroy ---- */

static enum cm_err create_parts(struct wk_server *server, struct cm_error *err)
{
    const struct wk_server_options *options = &server->options;
    struct wk_device_options device = {
        .engine = options->engine, .index = options->index, .owner = &server->mailbox};
    struct cm_bus_options bus = {options->loop,  options->run_dir, CM_ROLE_WORKER,
                                 options->index, on_message,       server};
    struct mm_client_options memory = {
        .loop = options->loop,
        .run_dir = options->run_dir,
        .role = CM_ROLE_WORKER,
        .index = options->index,
        .on_attached = on_attached,
        .on_lost = on_memory_lost,
        .on_channel = on_channel,
        .on_revoked = on_revoked,
        .on_refused = on_refused,
        .ctx = server,
    };
    enum cm_err code = wk_device_create(&device, err, &server->device);
    if (code == CM_OK)
        code = cm_bus_open(&bus, err, &server->bus);
    if (code == CM_OK)
        code = mm_client_create(&memory, err, &server->memory);
    if (code != CM_OK)
        return code;
    struct wk_loader_options loader = {options->loop,  options->models, server->memory,
                                       server->device, on_load_result,  server};
    code = wk_loader_create(&loader, &server->loader);
    return code == CM_OK ? CM_OK : cm_fail(err, code, "no memory");
}

enum cm_err wk_server_create(const struct wk_server_options *options, struct cm_error *err,
                             struct wk_server **ret_server)
{
    struct wk_server *server = calloc(1, sizeof *server);
    if (!server)
        return cm_fail(err, CM_NOMEM, "no memory");
    server->options = *options;
    enum cm_err code = cm_mailbox_init(&server->mailbox, options->loop, on_mail, server);
    if (code != CM_OK) {
        free(server);
        return cm_fail(err, code, "no mailbox for the main loop");
    }
    CM_ASSERT(uv_timer_init(options->loop, &server->heartbeat) == 0);
    server->heartbeat.data = server;
    code = create_parts(server, err);
    if (code != CM_OK)
        return code; /* the process ends: what was made is the kernel's to clean */
    CM_ASSERT(uv_timer_start(&server->heartbeat, on_heartbeat, HEARTBEAT_MS, HEARTBEAT_MS) == 0);
    *ret_server = server;
    return CM_OK;
}

/* Lets go of what the main loop owns once the device thread has ended and the pool has nothing of
 * ours. */
static void on_stop_tick(uv_timer_t *timer)
{
    struct wk_server *server = timer->data;
    if (!server->stopped || wk_loader_busy(server->loader))
        return;
    cm_mailbox_close(&server->mailbox);
    cm_bus_close(server->bus);
    mm_client_destroy(server->memory);
    uv_close((uv_handle_t *)timer, NULL);
}

void wk_server_stop(struct wk_server *server)
{
    if (server->stopping)
        return;
    server->stopping = true;
    wk_loader_stop(server->loader);
    uv_timer_stop(&server->heartbeat);
    struct wk_mail *mail = wk_mail_new(WK_MAIL_STOP);
    CM_ASSERT(mail);
    wk_device_post(server->device, mail);
    CM_ASSERT(uv_timer_start(&server->heartbeat, on_stop_tick, 1, 5) == 0);
}

void wk_server_destroy(struct wk_server *server)
{
    if (!server)
        return;
    wk_loader_destroy(server->loader);
    wk_device_destroy(server->device);
    free(server);
}
