/* Commands to a running cluster. Main thread, blocking with bounds. */
#include "deploy/ingot/cluster.h"

#include "common/bus.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/tensor.h"
#include "deploy/ingot/rundir.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#define ANSWER_MAX (1u << 20) /* bytes of one line of the supervisor */
#define TRY_MS     50

/* --- the control socket */

enum cm_err ig_control_connect(const char *run_dir, struct cm_error *err,
                               struct ig_control *ret_control)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX];
    ig_run_path(run_dir, IG_FILE_CONTROL, path);
    CM_ASSERT(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return cm_fail_errno(err, errno, "no socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        ret_control->fd = fd;
        return CM_OK;
    }
    int errnum = errno;
    close(fd);
    if (errnum == ENOENT || errnum == ECONNREFUSED || errnum == ENOTDIR)
        return cm_fail(err, CM_NOT_FOUND,
                       "no cluster is running in %s; start one with 'ingot up', or name its "
                       "directory with --run-dir",
                       run_dir);
    return cm_fail_errno(err, errnum, "the supervisor's socket %s", path);
}

/* Waits for something to read; false at the deadline. */
static bool wait_readable(int fd, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = cm_now_ns();
        if (now_ns >= deadline_ns)
            return false;
        int n = poll(&in, 1, (int)((deadline_ns - now_ns) / CM_NS_PER_MS) + 1);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static enum cm_err read_line(int fd, char *line, size_t size, uint64_t deadline_ns,
                             size_t *ret_length)
{
    size_t have = 0;
    while (have < size) {
        if (!wait_readable(fd, deadline_ns))
            return CM_DEADLINE;
        ssize_t n = read(fd, line + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return CM_CLOSED;
        have += (size_t)n;
        if (line[have - 1] == '\n') {
            *ret_length = have - 1;
            return CM_OK;
        }
    }
    return CM_LIMIT;
}

enum cm_err ig_control_ask(struct ig_control *control, const char *command, struct cm_error *err,
                           json_t **ret_answer)
{
    char request[128];
    size_t size = 0;
    int length = snprintf(request, sizeof request, "{\"command\":\"%s\"}\n", command);
    CM_ASSERT(length > 0 && (size_t)length < sizeof request);
    if (send(control->fd, request, (size_t)length, MSG_NOSIGNAL) != length)
        return cm_fail_errno(err, errno, "the supervisor does not listen");
    char *line = malloc(ANSWER_MAX);
    if (!line)
        return cm_fail(err, CM_NOMEM, "no memory for the supervisor's answer");
    uint64_t deadline_ns = cm_time_add(cm_now_ns(), IG_CONTROL_BOUND_MS * CM_NS_PER_MS);
    enum cm_err code = read_line(control->fd, line, ANSWER_MAX, deadline_ns, &size);
    json_t *answer = code == CM_OK ? json_loadb(line, size, 0, NULL) : NULL;
    free(line);
    if (code != CM_OK)
        return cm_fail(err, code, "the supervisor did not answer: %s", cm_err_text(code));
    if (!json_is_object(answer)) {
        json_decref(answer);
        return cm_fail(err, CM_CORRUPT, "the supervisor's answer is not understood");
    }
    *ret_answer = answer;
    return CM_OK;
}

enum cm_err ig_control_wait_end(struct ig_control *control, unsigned bound_ms)
{
    uint64_t deadline_ns = cm_time_add(cm_now_ns(), bound_ms * CM_NS_PER_MS);
    char waste[256];
    for (;;) {
        if (!wait_readable(control->fd, deadline_ns))
            return CM_DEADLINE;
        ssize_t n = read(control->fd, waste, sizeof waste);
        if (n == 0 || (n < 0 && errno != EINTR))
            return CM_OK; /* also a reset: the supervisor is gone */
    }
}

void ig_control_disconnect(struct ig_control *control)
{
    close(control->fd);
    control->fd = -1;
}

enum cm_err ig_cluster_status(const char *run_dir, struct cm_error *err, json_t **ret_status)
{
    struct ig_control control;
    enum cm_err code = ig_control_connect(run_dir, err, &control);
    if (code != CM_OK)
        return code;
    code = ig_control_ask(&control, "status", err, ret_status);
    ig_control_disconnect(&control);
    return code;
}

/* --- the bus */

struct question {
    struct cm_bus *bus;
    uv_timer_t timer;
    enum cm_err code;
    Ingot__Ipc__Envelope *answer;
};

/* The answer is the bus's; ours is the same bytes unpacked again. */
static Ingot__Ipc__Envelope *copy_envelope(const Ingot__Ipc__Envelope *envelope)
{
    size_t length = ingot__ipc__envelope__get_packed_size(envelope);
    unsigned char *bytes = malloc(length ? length : 1);
    if (!bytes)
        return NULL;
    ingot__ipc__envelope__pack(envelope, bytes);
    Ingot__Ipc__Envelope *copy = ingot__ipc__envelope__unpack(NULL, length, bytes);
    free(bytes);
    return copy;
}

static void end_question(struct question *question)
{
    struct cm_bus *bus = question->bus;
    question->bus = NULL;
    cm_bus_close(bus);
    if (!uv_is_closing((uv_handle_t *)&question->timer))
        uv_close((uv_handle_t *)&question->timer, NULL);
}

static void on_answer(void *ctx, enum cm_err code, const Ingot__Ipc__Envelope *answer)
{
    struct question *question = ctx;
    if (!question->bus)
        return; /* the bound was first */
    question->code = code;
    if (code == CM_OK) {
        question->answer = copy_envelope(answer);
        if (!question->answer)
            question->code = CM_NOMEM;
    }
    end_question(question);
}

static void on_bound(uv_timer_t *timer)
{
    struct question *question = cm_container_of(timer, struct question, timer);
    question->code = CM_DEADLINE;
    end_question(question);
}

static void ignore_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    (void)ctx;
    (void)bus;
    (void)message;
}

static enum cm_err start_question(struct question *question, uv_loop_t *loop, const char *run_dir,
                                  struct cm_error *err)
{
    struct cm_bus_options options = {
        .loop = loop,
        .run_dir = run_dir,
        .role = CM_ROLE_TOOL,
        .index = (uint32_t)getpid(),
        .on_message = ignore_message,
        .ctx = question,
    };
    return cm_bus_open(&options, err, &question->bus);
}

enum cm_err ig_bus_ask(const char *run_dir, enum cm_role role, uint32_t index,
                       Ingot__Ipc__Envelope *envelope, unsigned bound_ms, struct cm_error *err,
                       Ingot__Ipc__Envelope **ret_answer)
{
    uv_loop_t loop;
    struct question question = {0};
    if (uv_loop_init(&loop) != 0)
        return cm_fail(err, CM_NOMEM, "no memory for a loop");
    enum cm_err code = start_question(&question, &loop, run_dir, err);
    if (code == CM_OK) {
        uv_timer_init(&loop, &question.timer);
        uv_timer_start(&question.timer, on_bound, bound_ms, 0);
        code = cm_bus_request(question.bus, role, index, envelope, TRY_MS, bound_ms / TRY_MS + 1,
                              on_answer, &question);
        if (code != CM_OK) {
            cm_fail(err, code, "%s cannot be asked: %s", cm_role_name(role), cm_err_text(code));
            end_question(&question);
        }
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    int result = uv_loop_close(&loop);
    CM_ASSERT(result == 0);
    if (code != CM_OK)
        return code;
    if (question.code != CM_OK)
        return cm_fail(err, question.code, "%s did not answer: %s", cm_role_name(role),
                       cm_err_text(question.code));
    if (question.answer->body_case == INGOT__IPC__ENVELOPE__BODY_ERROR) {
        code = cm_fail(err, (enum cm_err)question.answer->error->code, "%s",
                       question.answer->error->text);
        ingot__ipc__envelope__free_unpacked(question.answer, NULL);
        return code == CM_OK ? CM_INTERNAL : code;
    }
    *ret_answer = question.answer;
    return CM_OK;
}

enum cm_err ig_cluster_models(const char *run_dir, unsigned bound_ms, struct cm_error *err,
                              Ingot__Ipc__Envelope **ret_answer)
{
    Ingot__Ipc__Envelope question = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelsQuery query = INGOT__IPC__MODELS_QUERY__INIT;
    Ingot__Ipc__Envelope *answer = NULL;
    question.body_case = INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY;
    question.models_query = &query;
    enum cm_err code = ig_bus_ask(run_dir, CM_ROLE_SCHEDULER, 0, &question, bound_ms, err, &answer);
    if (code != CM_OK)
        return code;
    if (answer->body_case != INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE) {
        ingot__ipc__envelope__free_unpacked(answer, NULL);
        return cm_fail(err, CM_CORRUPT, "the scheduler's answer is not understood");
    }
    *ret_answer = answer;
    return CM_OK;
}

/* --- models */

const char *ig_model_state_name(Ingot__Ipc__ModelState state)
{
    switch (state) {
    case INGOT__IPC__MODEL_STATE__MODEL_LOADING:
        return "loading";
    case INGOT__IPC__MODEL_STATE__MODEL_READY:
        return "ready";
    case INGOT__IPC__MODEL_STATE__MODEL_FAILED:
        return "failed";
    default:
        return "unknown";
    }
}

static json_t *tensors_json(Ingot__Ipc__TensorInfo *const *tensors, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *shape = json_array();
        for (size_t j = 0; j < tensors[i]->n_shape; j++)
            json_array_append_new(shape, json_integer(tensors[i]->shape[j]));
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o}", "name", tensors[i]->name, "datatype",
                            cm_dtype_name((enum cm_dtype)tensors[i]->dtype), "shape", shape));
    }
    return list;
}

json_t *ig_model_json(const Ingot__Ipc__Model *model)
{
    json_t *workers = json_array();
    for (size_t i = 0; i < model->n_workers; i++)
        json_array_append_new(workers, json_integer(model->workers[i]));
    json_t *root = json_pack(
        "{s:s, s:i, s:b, s:s, s:o, s:i, s:b}", "name", model->name, "version", (int)model->version,
        "latest", model->latest, "state", ig_model_state_name(model->state), "workers", workers,
        "max_batch_size", (int)model->max_batch_size, "batchable", model->batchable);
    json_object_set_new(root, "reason", *model->reason ? json_string(model->reason) : json_null());
    json_object_set_new(root, "weights_bytes", json_integer((json_int_t)model->weights_bytes));
    json_object_set_new(root, "queued", json_integer(model->queued));
    json_object_set_new(root, "batches", json_integer((json_int_t)model->batches));
    json_object_set_new(root, "requests", json_integer((json_int_t)model->requests));
    json_object_set_new(root, "rows", json_integer((json_int_t)model->rows));
    json_object_set_new(root, "inputs", tensors_json(model->inputs, model->n_inputs));
    json_object_set_new(root, "outputs", tensors_json(model->outputs, model->n_outputs));
    return root;
}
