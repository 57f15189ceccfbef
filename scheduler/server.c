/* Start, stop, timers, and the turn that ends every event. The loop's thread. */
#include "scheduler/server_priv.h"

#include "scheduler/repository.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- the alarm ---- */

/* Arms only for an earlier time than is armed: an alarm that comes too early costs one pump, a
 * system call with each request would cost more. */
static void set_alarm(struct sd_server *server, uint64_t at_ns)
{
    if (at_ns >= server->alarm_at_ns)
        return;
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at_ns / CM_NS_PER_S),
                                           .tv_nsec = (long)(at_ns % CM_NS_PER_S)}};
    if (at_ns == 0)
        when.it_value.tv_nsec = 1; /* zero would disarm */
    int rc = timerfd_settime(server->alarm_fd, TFD_TIMER_ABSTIME, &when, NULL);
    CM_ASSERT(rc == 0); /* fails for bad arguments only */
    server->alarm_at_ns = at_ns;
}

static void on_alarm(uv_poll_t *handle, int status, int events)
{
    struct sd_server *server = handle->data;
    uint64_t count;
    (void)status;
    (void)events;
    ssize_t n = read(server->alarm_fd, &count, sizeof count);
    if (n < 0 && errno == EAGAIN)
        return;
    server->alarm_at_ns = CM_NEVER;
    sd_server_turn(server);
}

static void on_retry(uv_timer_t *timer)
{
    sd_server_turn(timer->data);
}

void sd_server_retry_in(struct sd_server *server, uint64_t ms)
{
    bool armed = uv_is_active((uv_handle_t *)&server->retry);
    if (!server->stopping && (!armed || uv_timer_get_due_in(&server->retry) > ms))
        uv_timer_start(&server->retry, on_retry, ms, 0);
}

/* ---- the turn ---- */

static void settle_table(struct sd_server *server)
{
    if (server->settled || !sd_models_settled(&server->models))
        return;
    uint32_t wanted = server->options.workers ? server->options.workers : 1, attached = 0;
    for (uint32_t i = 0; i < SD_MAX_WORKERS; i++)
        attached += server->workers[i] && server->workers[i]->attached;
    if (attached < wanted)
        return;
    server->settled = true;
    server->revision++;
    cm_log(CM_LOG_INFO, "models_settled", "models=%u workers=%u", server->models.count, attached);
}

void sd_server_models_changed(struct sd_server *server)
{
    server->revision++;
}

void sd_server_turn(struct sd_server *server)
{
    if (server->stopping || server->in_turn || !server->core)
        return;
    server->in_turn = true;
    /* To close a peer may make work for others, and to send may condemn a peer. Each round closes
     * at least one, so the rounds end. */
    do {
        if (server->n_doomed > 0)
            sd_peers_close_doomed(server);
        sd_core_pump(server->core, cm_now_ns());
        sd_peers_flush(server);
    } while (server->n_doomed > 0);
    settle_table(server);
    sd_control_push(server);
    set_alarm(server, sd_core_next_wakeup_ns(server->core));
    server->in_turn = false;
}

/* ---- memmgr's events ---- */

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    struct sd_server *server = ctx;
    struct sd_limits limits = {.epoch = (uint32_t)identity->instance};
    struct sd_sink sink = sd_peers_sink;
    cm_log(CM_LOG_INFO, "attached", "instance=%llu epoch=%llu",
           (unsigned long long)identity->instance, (unsigned long long)identity->epoch);
    if (server->core || server->stopping)
        return; /* a new memmgr: channels live on without it */
    server->instance = identity->instance;
    cm_bus_set_instance(server->bus, identity->instance);
    sd_models_renumber(&server->models, (uint32_t)identity->instance);
    sink.ctx = server;
    enum cm_err code = sd_core_create(&limits, &server->models, &sink, &server->core);
    if (code != CM_OK) {
        struct cm_error err;
        cm_fail(&err, code, "no memory for the scheduler's tables");
        server->options.on_lost(server->options.ctx, &err);
        return;
    }
    server->revision = 1;
    server->options.on_ready(server->options.ctx);
}

static void on_memory_lost(void *ctx)
{
    (void)ctx;
    cm_log(CM_LOG_WARN, "memmgr_lost", "action=%s", "reconnecting");
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    struct sd_server *server = ctx;
    if (server->stopping) {
        cm_channel_close(channel);
        return;
    }
    sd_peers_channel(server, channel);
    sd_server_turn(server);
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    struct sd_server *server = ctx;
    if (!server->stopping)
        server->options.on_lost(server->options.ctx, error);
}

/* ---- create, stop, destroy ---- */

static void on_alarm_closed(uv_handle_t *handle)
{
    struct sd_server *server = handle->data;
    close(server->alarm_fd);
}

static enum cm_err make_timers(struct sd_server *server, struct cm_error *err)
{
    uv_loop_t *loop = server->options.loop;
    server->alarm_at_ns = CM_NEVER;
    server->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (server->alarm_fd < 0)
        return cm_fail_errno(err, errno, "cannot create a timer");
    int rc = uv_poll_init(loop, &server->alarm, server->alarm_fd);
    if (rc != 0) {
        close(server->alarm_fd);
        return cm_fail_errno(err, -rc, "cannot watch a timer");
    }
    server->alarm.data = server;
    uv_timer_init(loop, &server->retry);
    server->retry.data = server;
    rc = uv_poll_start(&server->alarm, UV_READABLE, on_alarm);
    CM_ASSERT(rc == 0); /* cannot fail for a new handle */
    return CM_OK;
}

static enum cm_err read_repository(struct sd_server *server, struct cm_error *err)
{
    uint32_t skipped = 0;
    enum cm_err code = sd_repository_scan(server->options.models, &server->models, err, &skipped);
    if (code != CM_OK)
        return code;
    for (uint32_t i = 0; i < server->models.count; i++) {
        const struct sd_model *model = &server->models.items[i];
        if (model->broken)
            cm_log(CM_LOG_WARN, "model_refused", "model=%s reason=%s", model->name, model->reason);
    }
    if (skipped > 0)
        cm_log(CM_LOG_WARN, "models_skipped", "count=%u limit=%u", skipped, SD_MAX_MODELS);
    return CM_OK;
}

static enum cm_err open_planes(struct sd_server *server, struct cm_error *err)
{
    const struct sd_server_options *options = &server->options;
    struct cm_bus_options bus = {
        options->loop, options->run_dir, CM_ROLE_SCHEDULER, 0, sd_control_message, server};
    struct mm_client_options memory = {.loop = options->loop,
                                       .run_dir = options->run_dir,
                                       .role = CM_ROLE_SCHEDULER,
                                       .index = 0,
                                       .on_attached = on_attached,
                                       .on_lost = on_memory_lost,
                                       .on_channel = on_channel,
                                       .on_refused = on_refused,
                                       .ctx = server};
    enum cm_err code = cm_bus_open(&bus, err, &server->bus);
    if (code == CM_OK)
        code = mm_client_create(&memory, err, &server->memory);
    return code;
}

enum cm_err sd_server_create(const struct sd_server_options *options, struct cm_error *err,
                             struct sd_server **ret_server)
{
    struct sd_server *server = calloc(1, sizeof *server);
    if (!server)
        return cm_fail(err, CM_NOMEM, "no memory for the scheduler");
    server->options = *options;
    enum cm_err code = sd_models_init(&server->models, 0);
    if (code != CM_OK)
        cm_fail(err, code, "no memory for the model table");
    if (code == CM_OK)
        code = read_repository(server, err);
    if (code == CM_OK)
        code = make_timers(server, err);
    if (code != CM_OK) {
        sd_server_destroy(server);
        return code;
    }
    code = open_planes(server, err);
    if (code != CM_OK) {
        /* Its handles are on the loop: the caller runs it dry, then destroys. */
        sd_server_stop(server);
    }
    *ret_server = server;
    return code;
}

void sd_server_stop(struct sd_server *server)
{
    if (!server || server->stopping)
        return;
    server->stopping = true;
    sd_peers_close_all(server);
    uv_close((uv_handle_t *)&server->alarm, on_alarm_closed);
    uv_close((uv_handle_t *)&server->retry, NULL);
    if (server->bus)
        cm_bus_close(server->bus);
    mm_client_destroy(server->memory);
}

void sd_server_destroy(struct sd_server *server)
{
    if (!server)
        return;
    sd_core_destroy(server->core);
    sd_models_fini(&server->models);
    free(server);
}
