/* Is the cluster up? Asks the scheduler for its models once every process is ready, until each
 * model is ready or has said why not, then tells whoever waits. The supervisor's loop. */
#include "deploy/ingot/supervisor_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASK_AGAIN_MS 50
#define ASK_TRY_MS   100
#define ASK_TRIES    10
/* A model serves when one worker has it; the others are waited for too, but not for ever: one of
 * them may be unable to load it. */
#define ALL_WORKERS_NS (10 * CM_NS_PER_S)

void ig_tell(struct ig_supervisor *sup, char stream, const char *format, ...)
{
    char line[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!sup->waiting)
        return;
    if (sup->options->report < 0) {
        fprintf(stream == 'o' ? stdout : stderr, "%s%s\n", stream == 'o' ? "" : "ingot up: ", line);
        fflush(stdout);
        return;
    }
    /* The text may have several lines; each travels with its stream. The reader is a blocking
     * `ingot up`, and what is told is far below the socket's buffer: a short write means that it
     * is gone. */
    for (char *next = line; next;) {
        char *end = strchr(next, '\n');
        if (end)
            *end = '\0';
        char record[sizeof line + 4];
        int length = snprintf(record, sizeof record, "%c %s\n", stream, next);
        if (send(sup->options->report, record, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return;
        next = end ? end + 1 : NULL;
    }
}

/* The start is over: the waiting `ingot up --detach` gets its exit code. */
static void conclude(struct ig_supervisor *sup, int code)
{
    ig_readiness_stop(sup);
    if (sup->waiting && sup->options->report >= 0) {
        char record[16];
        int length = snprintf(record, sizeof record, "x %d\n", code);
        if (send(sup->options->report, record, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            ig_note(sup, "nobody waited for the end of the start");
    }
    sup->waiting = false;
    if (sup->report_polled) {
        sup->report_polled = false;
        uv_close((uv_handle_t *)&sup->report, NULL);
        close(sup->options->report);
    }
}

void ig_readiness_failed(struct ig_supervisor *sup)
{
    conclude(sup, sup->exit_code);
}

/* --- the gateway's addresses */

static void copy_text(const json_t *object, const char *key, char *text, size_t size)
{
    const char *value = json_string_value(json_object_get(object, key));
    snprintf(text, size, "%s", value ? value : "");
}

bool ig_read_addresses(struct ig_supervisor *sup)
{
    char path[PATH_MAX];
    json_error_t why;
    json_t *root =
        json_load_file(ig_run_path(sup->options->run_dir, IG_FILE_GATEWAY, path), 0, &why);
    if (!root)
        return false;
    char grpc[IG_ADDRESS_MAX];
    copy_text(root, "grpc", grpc, sizeof grpc);
    bool known = grpc[0] != '\0';
    if (known) {
        memcpy(sup->grpc, grpc, sizeof grpc);
        copy_text(root, "http", sup->http, sizeof sup->http);
        sup->tls = json_is_true(json_object_get(root, "tls"));
    }
    json_decref(root);
    return known;
}

/* A gateway that comes back must be where its clients look for it, also if the system chose the
 * port the first time. */
static void pin_addresses(struct ig_supervisor *sup)
{
    for (unsigned i = 0; i < sup->n_children; i++) {
        if (sup->children[i].role != CM_ROLE_GATEWAY)
            continue;
        ig_child_set_arg(&sup->children[i], "--grpc", sup->grpc);
        if (sup->http[0])
            ig_child_set_arg(&sup->children[i], "--http", sup->http);
    }
}

/* --- the models */

static void tell_models(struct ig_supervisor *sup, const Ingot__Ipc__ModelTable *table)
{
    if (table->n_models == 0)
        ig_tell(sup, 'o', "no models in %s", sup->options->models_dir);
    for (size_t i = 0; i < table->n_models; i++) {
        const Ingot__Ipc__Model *model = table->models[i];
        if (model->state == INGOT__IPC__MODEL_STATE__MODEL_READY)
            ig_tell(sup, 'o', "model %s version %u: ready on %zu worker%s", model->name,
                    model->version, model->n_workers, model->n_workers == 1 ? "" : "s");
        else
            ig_tell(sup, 'o', "model %s version %u: failed: %s", model->name, model->version,
                    model->reason);
    }
}

static void cluster_is_up(struct ig_supervisor *sup, const Ingot__Ipc__ModelTable *table)
{
    sup->phase = IG_PHASE_UP;
    pin_addresses(sup);
    tell_models(sup, table);
    if (sup->tls && !sup->options->tls_cert[0])
        ig_tell(sup, 'o', "grpc %s (TLS, trust %s/%s)", sup->grpc, sup->options->run_dir,
                IG_FILE_CA);
    else
        ig_tell(sup, 'o', "grpc %s (%s)", sup->grpc, sup->tls ? "TLS" : "plaintext");
    if (sup->http[0])
        ig_tell(sup, 'o', "http %s", sup->http);
    ig_note(sup, "the cluster is up");
    conclude(sup, IG_EXIT_OK);
}

static bool all_ready(const struct ig_supervisor *sup)
{
    for (unsigned i = 0; i < sup->n_children; i++)
        if (sup->children[i].state != IG_CHILD_READY)
            return false;
    return true;
}

/* Each model is ready or failed, and those that are ready are so on every worker. */
static bool settled(struct ig_supervisor *sup, const Ingot__Ipc__ModelTable *table)
{
    bool everywhere = true;
    if (!table->settled)
        return false;
    for (size_t i = 0; i < table->n_models; i++) {
        const Ingot__Ipc__Model *model = table->models[i];
        bool ready = model->state == INGOT__IPC__MODEL_STATE__MODEL_READY;
        if (!ready && model->state != INGOT__IPC__MODEL_STATE__MODEL_FAILED)
            return false;
        if (ready && model->n_workers < sup->options->workers)
            everywhere = false;
    }
    uint64_t now_ns = cm_now_ns();
    if (sup->settled_ns == 0)
        sup->settled_ns = now_ns;
    return everywhere || now_ns - sup->settled_ns > ALL_WORKERS_NS;
}

static void on_ask_again(uv_timer_t *timer)
{
    ig_readiness_check(timer->data);
}

static void on_models(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct ig_supervisor *sup = ctx;
    sup->asking = false;
    if (sup->phase != IG_PHASE_STARTING || !sup->bus)
        return;
    if (err == CM_OK && answer->body_case == INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE &&
        settled(sup, answer->model_table) && all_ready(sup) && ig_read_addresses(sup)) {
        cluster_is_up(sup, answer->model_table);
        return;
    }
    uv_timer_start(&sup->ask_timer, on_ask_again, ASK_AGAIN_MS, 0);
}

static void ignore_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    (void)ctx;
    (void)bus;
    (void)message;
}

static bool open_bus(struct ig_supervisor *sup)
{
    struct cm_error err = {0};
    struct cm_bus_options options = {
        .loop = &sup->loop,
        .run_dir = sup->options->run_dir,
        .role = CM_ROLE_TOOL,
        .index = (uint32_t)getpid(),
        .on_message = ignore_message,
        .ctx = sup,
    };
    if (sup->bus)
        return true;
    if (cm_bus_open(&options, &err, &sup->bus) == CM_OK)
        return true;
    ig_stop(sup, IG_EXIT_FAILURE, "the control bus cannot be opened: %s", err.text);
    return false;
}

void ig_readiness_check(struct ig_supervisor *sup)
{
    Ingot__Ipc__Envelope question = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelsQuery query = INGOT__IPC__MODELS_QUERY__INIT;
    if (sup->phase != IG_PHASE_STARTING || sup->asking || !all_ready(sup) || !open_bus(sup))
        return;
    question.body_case = INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY;
    question.models_query = &query;
    question.wants_answer = 1;
    sup->asking = cm_bus_request(sup->bus, CM_ROLE_SCHEDULER, 0, &question, ASK_TRY_MS, ASK_TRIES,
                                 on_models, sup) == CM_OK;
    if (!sup->asking)
        uv_timer_start(&sup->ask_timer, on_ask_again, ASK_AGAIN_MS, 0);
}

/* --- bounds of the start */

static void on_start_timeout(uv_timer_t *timer)
{
    struct ig_supervisor *sup = timer->data;
    char missing[256] = "";
    size_t used = 0;
    for (unsigned i = 0; i < sup->n_children && used < sizeof missing; i++)
        if (sup->children[i].state != IG_CHILD_READY)
            used += (size_t)snprintf(missing + used, sizeof missing - used, " %s",
                                     sup->children[i].name);
    if (used > 0)
        ig_stop(sup, IG_EXIT_FAILURE, "not ready within %u s:%s; see the logs in %s/%s",
                sup->options->timeout_s, missing, sup->options->run_dir, IG_FILE_LOG_DIR);
    else
        ig_stop(sup, IG_EXIT_FAILURE,
                "the models did not load within %u s; a larger --timeout gives them more",
                sup->options->timeout_s);
}

/* Nobody would learn of the failure, or of the addresses: what was asked for is withdrawn. */
static void on_report_gone(uv_poll_t *poll, int status, int events)
{
    struct ig_supervisor *sup = poll->data;
    (void)status;
    (void)events;
    uv_poll_stop(poll);
    ig_stop(sup, IG_EXIT_FAILURE, "the command that started the cluster has ended");
}

enum cm_err ig_readiness_init(struct ig_supervisor *sup, struct cm_error *err)
{
    sup->waiting = true;
    uv_timer_init(&sup->loop, &sup->start_timer);
    uv_timer_init(&sup->loop, &sup->ask_timer);
    sup->start_timer.data = sup;
    sup->ask_timer.data = sup;
    uv_timer_start(&sup->start_timer, on_start_timeout, sup->options->timeout_s * 1000ull, 0);
    if (sup->options->report < 0)
        return CM_OK;
    int result = uv_poll_init(&sup->loop, &sup->report, sup->options->report);
    if (result != 0)
        return cm_fail(err, CM_IO, "the report socket is none: %s", uv_strerror(result));
    sup->report.data = sup;
    sup->report_polled = true;
    /* It never writes to us: readable means its end. */
    uv_poll_start(&sup->report, UV_READABLE | UV_DISCONNECT, on_report_gone);
    return CM_OK;
}

void ig_readiness_stop(struct ig_supervisor *sup)
{
    uv_timer_stop(&sup->start_timer);
    uv_timer_stop(&sup->ask_timer);
    struct cm_bus *bus = sup->bus;
    sup->bus = NULL; /* first: the close answers the open question */
    cm_bus_close(bus);
}
