#include "tests/gateway/fake.h"

#include "common/check.h"
#include "common/clock.h"
#include "proto/ingot.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

uv_loop_t loop;
char base_dir[T_PATH_MAX], run_dir[T_PATH_MAX * 2];
pid_t memmgr_pid, gateway_pid;
char grpc_address[300], http_address[300];
struct fake_scheduler sched;
struct mm_lease *worker_lease;

static struct mm_client *worker;
static uint64_t worker_instance;

/* ---- processes ---- */

static pid_t spawn(const char *program, const char *const *argv)
{
    char path[512];
    pid_t pid;
    snprintf(path, sizeof path, "%s/bin/%s", BINARY_DIR, program);
    int error = posix_spawn(&pid, path, NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    if (error != 0)
        fail_msg("cannot start %s: %s", path, strerror(error));
    return pid;
}

void start_memmgr_with(const char *budget)
{
    const char *argv[] = {"ingot-memmgr", "--run-dir", run_dir, "--memory-budget", budget, NULL};
    memmgr_pid = spawn("ingot-memmgr", argv);
}

void start_memmgr(void)
{
    start_memmgr_with("512M");
}

static bool read_addresses(void)
{
    char path[T_PATH_MAX * 3];
    snprintf(path, sizeof path, "%s/gateway.json", run_dir);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root)
        return false;
    const char *http = json_string_value(json_object_get(root, "http"));
    snprintf(grpc_address, sizeof grpc_address, "%s",
             json_string_value(json_object_get(root, "grpc")));
    snprintf(http_address, sizeof http_address, "%s", http ? http : "");
    json_decref(root);
    return true;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* A condition that only looking shows: the loop turns every few milliseconds while T_WAIT looks. */
static uv_timer_t tick;

void start_gateway(const char *const *args)
{
    const char *argv[32] = {"ingot-gateway", "--run-dir", run_dir};
    size_t n = 3;
    while (args && *args)
        argv[n++] = *args++;
    argv[n] = NULL;
    gateway_pid = spawn("ingot-gateway", argv);
    T_WAIT(&loop, read_addresses());
}

void kill_hard(pid_t *pid)
{
    int status;
    if (*pid <= 0)
        return;
    kill(*pid, SIGKILL);
    waitpid(*pid, &status, 0);
    *pid = 0;
}

int stop_softly(pid_t *pid)
{
    int status = 0;
    kill(*pid, SIGTERM);
    T_WAIT(&loop, waitpid(*pid, &status, WNOHANG) == *pid);
    *pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- the scheduler ---- */

static void take_submit(const struct cm_record_submit *record)
{
    assert_true(sched.n_submits < SUBMITS_MAX);
    struct submit *submit = &sched.submits[sched.n_submits++];
    submit->record = *record;
    memcpy(submit->inputs, cm_submit_inputs(record), record->n_inputs * sizeof submit->inputs[0]);
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    (void)ctx, (void)channel, (void)length;
    if (type != CM_RECORD_HELD && type != CM_RECORD_RESUMED && sched.n_resumed == 0)
        sched.n_before_resumed++;
    switch (type) {
    case CM_RECORD_SUBMIT:
        take_submit(payload);
        break;
    case CM_RECORD_CANCEL:
        sched.last_cancel = ((const struct cm_record_cancel *)payload)->request;
        sched.n_cancels++;
        break;
    case CM_RECORD_RELEASE:
        sched.last_release = ((const struct cm_record_release *)payload)->slab;
        sched.n_releases++;
        break;
    case CM_RECORD_HELD:
        sched.last_held = ((const struct cm_record_held *)payload)->slab;
        sched.n_held++;
        break;
    case CM_RECORD_RESUMED:
        sched.n_resumed++;
        break;
    default:
        fail_msg("record type %u from the gateway", type);
    }
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    (void)ctx, (void)reason;
    cm_channel_close(channel);
    sched.channel = NULL;
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    (void)ctx;
    struct cm_channel_events events = {.on_record = on_record, .on_closed = on_closed};
    assert_int_equal(cm_channel_peer(channel).role, CM_ROLE_GATEWAY);
    assert_int_equal(cm_channel_start(channel, &loop, &events), CM_OK);
    cm_channel_close(sched.channel);
    sched.channel = channel;
}

static void on_scheduler_attached(void *ctx, const struct mm_identity *identity)
{
    (void)ctx;
    sched.instance = identity->instance;
    cm_bus_set_instance(sched.bus, identity->instance);
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    (void)ctx;
    fail_msg("memmgr refuses a fake: %s", error->text);
}

static void on_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    (void)ctx;
    if (message->body_case != INGOT__IPC__ENVELOPE__BODY_HELLO)
        return;
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    sched.hellos++;
    assert_int_equal(cm_bus_answer(bus, message, &answer), CM_OK);
}

void scheduler_start(void)
{
    struct cm_error error;
    memset(&sched, 0, sizeof sched);
    struct cm_bus_options bus = {&loop, run_dir, CM_ROLE_SCHEDULER, 0, on_message, NULL};
    struct mm_client_options client = {.loop = &loop,
                                       .run_dir = run_dir,
                                       .role = CM_ROLE_SCHEDULER,
                                       .on_attached = on_scheduler_attached,
                                       .on_channel = on_channel,
                                       .on_refused = on_refused};
    assert_int_equal(cm_bus_open(&bus, &error, &sched.bus), CM_OK);
    assert_int_equal(mm_client_create(&client, &error, &sched.memory), CM_OK);
    T_WAIT(&loop, sched.channel && sched.hellos > 0 && sched.n_resumed > 0);
}

void scheduler_die(void)
{
    cm_channel_close(sched.channel);
    mm_client_destroy(sched.memory);
    cm_bus_close(sched.bus);
    sched.channel = NULL;
    sched.memory = NULL;
    sched.bus = NULL;
}

static void on_table_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    (void)ctx, (void)answer;
    assert_int_equal(err, CM_OK);
    sched.acks++;
}

static int64_t x_shape[2] = {-1, FLOATS}, small_shape[2] = {-1, SMALL},
               large_shape[2] = {-1, LARGE};

struct table_model {
    Ingot__Ipc__Model model;
    Ingot__Ipc__TensorInfo x, y, *inputs[1], *outputs[1];
    uint32_t workers[1];
};

static void fill_model(struct table_model *to, const char *name, uint32_t id,
                       Ingot__Ipc__ModelState state, int64_t *shape)
{
    ingot__ipc__model__init(&to->model);
    ingot__ipc__tensor_info__init(&to->x);
    ingot__ipc__tensor_info__init(&to->y);
    to->x.name = (char *)(uintptr_t) "x";
    to->y.name = (char *)(uintptr_t) "y";
    to->x.dtype = to->y.dtype = CM_FP32;
    to->x.n_shape = to->y.n_shape = 2;
    to->x.shape = x_shape;
    to->y.shape = shape;
    to->inputs[0] = &to->x;
    to->outputs[0] = &to->y;
    to->model.id = id;
    to->model.generation = 1;
    to->model.name = (char *)(uintptr_t)name;
    to->model.version = 1;
    to->model.state = state;
    to->model.reason = (char *)(uintptr_t) "it is broken";
    to->model.latest = state == INGOT__IPC__MODEL_STATE__MODEL_READY;
    to->model.batchable = true;
    to->model.max_batch_size = 4;
    to->model.n_inputs = to->model.n_outputs = 1;
    to->model.inputs = to->inputs;
    to->model.outputs = to->outputs;
    to->model.n_workers = to->model.latest;
    to->model.workers = to->workers;
}

void scheduler_table(Ingot__Ipc__ModelState state, bool settled)
{
    static uint64_t revision;
    struct table_model models[3] = {0};
    Ingot__Ipc__Model *pointers[3] = {&models[0].model, &models[1].model, &models[2].model};
    Ingot__Ipc__ModelTable table = INGOT__IPC__MODEL_TABLE__INIT;
    Ingot__Ipc__Envelope envelope = INGOT__IPC__ENVELOPE__INIT;
    fill_model(&models[0], "small", (uint32_t)(sched.instance % 1000) + 1, state, small_shape);
    fill_model(&models[1], "large", (uint32_t)(sched.instance % 1000) + 2, state, large_shape);
    fill_model(&models[2], "wide", (uint32_t)(sched.instance % 1000) + 3, state, small_shape);
    models[2].x.shape = large_shape;
    table.revision = ++revision;
    table.settled = settled;
    table.n_models = 3;
    table.models = pointers;
    envelope.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE;
    envelope.model_table = &table;
    unsigned acks = sched.acks;
    assert_int_equal(
        cm_bus_request(sched.bus, CM_ROLE_GATEWAY, 0, &envelope, 50, 20, on_table_answer, NULL),
        CM_OK);
    T_WAIT(&loop, sched.acks > acks);
}

static void send_reply(const struct cm_record_reply *reply, const void *tail, size_t length)
{
    assert_int_equal(cm_channel_send(sched.channel, CM_RECORD_REPLY, reply, sizeof *reply, tail,
                                     (uint32_t)length),
                     CM_OK);
    cm_channel_flush(sched.channel);
}

void reply_error(uint64_t request, enum cm_err status, const char *text)
{
    struct cm_record_reply reply = {
        .request = request, .status = status, .text_length = (uint16_t)strlen(text)};
    send_reply(&reply, text, strlen(text));
}

struct cm_tensor_desc output_desc(uint64_t offset, int64_t rows, int64_t width)
{
    struct cm_tensor_desc desc = {.dtype = CM_FP32, .rank = 2, .dims = {rows, width}};
    desc.slice.region = worker_lease->region;
    desc.slice.generation = worker_lease->generation;
    desc.slice.offset = offset;
    desc.slice.length = (uint64_t)rows * (uint64_t)width * sizeof(float);
    return desc;
}

void reply_desc(uint64_t request, const struct cm_tensor_desc *desc, uint32_t slab)
{
    struct cm_record_reply reply = {
        .request = request,
        .slab = {worker_instance, slab, 1},
        .batch_rows = 3,
        .batch_items = 2,
        .attempts = 1,
        .n_outputs = 1,
    };
    send_reply(&reply, desc, sizeof *desc);
}

void reply_output(uint64_t request, uint64_t offset, int64_t rows, int64_t width, uint32_t slab)
{
    struct cm_tensor_desc desc = output_desc(offset, rows, width);
    reply_desc(request, &desc, slab);
}

struct counter_wait {
    const char *name;
    uint64_t value;
    bool done;
};

static void on_stats(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct counter_wait *wait = ctx;
    assert_int_equal(err, CM_OK);
    assert_int_equal(answer->body_case, INGOT__IPC__ENVELOPE__BODY_STATS);
    wait->done = true;
    for (size_t i = 0; i < answer->stats->n_counters; i++)
        if (strcmp(answer->stats->counters[i]->name, wait->name) == 0) {
            wait->value = answer->stats->counters[i]->value;
            return;
        }
    fail_msg("the gateway has no counter %s", wait->name);
}

uint64_t gateway_counter(const char *name)
{
    struct counter_wait wait = {.name = name};
    Ingot__Ipc__StatsQuery query = INGOT__IPC__STATS_QUERY__INIT;
    Ingot__Ipc__Envelope envelope = INGOT__IPC__ENVELOPE__INIT;
    envelope.body_case = INGOT__IPC__ENVELOPE__BODY_STATS_QUERY;
    envelope.stats_query = &query;
    assert_int_equal(
        cm_bus_request(sched.bus, CM_ROLE_GATEWAY, 0, &envelope, 100, 20, on_stats, &wait), CM_OK);
    T_WAIT(&loop, wait.done);
    return wait.value;
}

/* ---- the worker ---- */

static void on_worker_attached(void *ctx, const struct mm_identity *identity)
{
    (void)ctx;
    worker_instance = identity->instance;
}

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    (void)ctx;
    if (!lease)
        fail_msg("no lease: %s", error->text);
    worker_lease = lease;
}

void worker_start(size_t bytes)
{
    struct cm_error error;
    struct mm_client_options client = {.loop = &loop,
                                       .run_dir = run_dir,
                                       .role = CM_ROLE_WORKER,
                                       .on_attached = on_worker_attached,
                                       .on_refused = on_refused};
    worker_instance = 0;
    worker_lease = NULL;
    assert_int_equal(mm_client_create(&client, &error, &worker), CM_OK);
    T_WAIT(&loop, worker_instance != 0);
    assert_int_equal(mm_client_acquire(worker, bytes, on_lease, NULL), CM_OK);
    T_WAIT(&loop, worker_lease != NULL);
    float *floats = (float *)(void *)worker_lease->base;
    for (size_t i = 0; i < worker_lease->bytes / sizeof *floats; i++)
        floats[i] = (float)i;
}

void worker_die(void)
{
    mm_client_destroy(worker);
    worker = NULL;
}

/* ---- the client ---- */

static grpc_completion_queue *queue;
static pthread_t queue_thread;
static uv_async_t wake;

static void *queue_main(void *ctx)
{
    (void)ctx;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        atomic_store(&((struct client_call *)event.tag)->done, true);
        uv_async_send(&wake);
    }
}

grpc_channel *client_connect(grpc_channel_credentials *credentials)
{
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
         .value.integer = 1},
        /* A connection that a loaded machine was too slow for must not keep the next one waiting
         * for longer than a test waits: an attempt may take 20 seconds, and the pause grows to two
         * minutes. */
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
         .value.integer = 100},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
         .value.integer = 5000},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
         .value.integer = 1000},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_ENABLE_RETRIES,
         .value.integer = 0},
        /* An answer that is not taken stays with the gateway. */
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)(uintptr_t)GRPC_ARG_HTTP2_BDP_PROBE,
         .value.integer = 0},
        {.type = GRPC_ARG_STRING,
         .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = (char *)(uintptr_t) "localhost"},
    };
    grpc_channel_args channel_args = {credentials ? 7 : 6, args};
    if (!credentials)
        credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(grpc_address, credentials, &channel_args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

bool client_reads = true;

static void set_request(struct client_call *call, const void *bytes, size_t length)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);
    call->request = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
}

/* The message and the half-close. */
static size_t add_request(const struct client_call *call, grpc_op *ops)
{
    ops[0].op = GRPC_OP_SEND_MESSAGE;
    ops[0].data.send_message.send_message = call->request;
    ops[1].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    return 2;
}

void client_start(struct client_call *call, grpc_channel *channel, const char *method,
                  const void *bytes, size_t length, const char *context, unsigned timeout_ms)
{
    memset(call, 0, sizeof *call);
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    gpr_timespec deadline = timeout_ms
                                ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                               gpr_time_from_millis(timeout_ms, GPR_TIMESPAN))
                                : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    call->core =
        grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                 grpc_slice_from_static_string(method), NULL, deadline, NULL);
    grpc_metadata metadata = {.key = grpc_slice_from_static_string("x-request-context")};
    if (context)
        metadata.value = grpc_slice_from_copied_string(context);
    grpc_op ops[6];
    size_t n = 1;
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = context ? 1 : 0;
    ops[0].data.send_initial_metadata.metadata = &metadata;
    if (bytes) {
        set_request(call, bytes, length);
        n += add_request(call, &ops[n]);
    }
    if (!client_reads) { /* flow control stops the answer, whose batch never ends */
        assert_int_equal(grpc_call_start_batch(call->core, ops, n, call, NULL), GRPC_CALL_OK);
        return;
    }
    ops[n].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[n++].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[n].op = GRPC_OP_RECV_MESSAGE;
    ops[n++].data.recv_message.recv_message = &call->response;
    ops[n].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[n].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[n].data.recv_status_on_client.status = &call->status;
    ops[n++].data.recv_status_on_client.status_details = &call->details;
    assert_int_equal(grpc_call_start_batch(call->core, ops, n, call, NULL), GRPC_CALL_OK);
    if (context)
        grpc_slice_unref(metadata.value);
}

/* A request of "wide" is too large for a stack. */
static uint8_t infer_bytes[4 * LARGE * sizeof(float) + 512];

static size_t infer_request(const char *model, int64_t rows)
{
    static float values[4 * LARGE];
    int64_t width = strcmp(model, "wide") == 0 ? LARGE : FLOATS, shape[2] = {rows, width};
    assert_true((size_t)(rows * width) <= CM_COUNT_OF(values));
    for (int64_t i = 0; i < rows * width; i++)
        values[i] = (float)i + 0.5f;
    Ingot__V1__Tensor tensor = INGOT__V1__TENSOR__INIT, *pointer = &tensor;
    Ingot__V1__InferRequest request = INGOT__V1__INFER_REQUEST__INIT;
    tensor.name = (char *)(uintptr_t) "x";
    tensor.datatype = (char *)(uintptr_t) "FP32";
    tensor.n_shape = 2;
    tensor.shape = shape;
    tensor.data.data = (uint8_t *)values;
    tensor.data.len = (size_t)(rows * width) * sizeof(float);
    request.model = (char *)(uintptr_t)model;
    request.n_inputs = 1;
    request.inputs = &pointer;
    assert_true(ingot__v1__infer_request__get_packed_size(&request) <= sizeof infer_bytes);
    return ingot__v1__infer_request__pack(&request, infer_bytes);
}

void client_infer(struct client_call *call, grpc_channel *channel, const char *model, int64_t rows,
                  const char *context, unsigned timeout_ms)
{
    size_t length = infer_request(model, rows);
    client_start(call, channel, "/ingot.v1.Inference/Infer", infer_bytes, length, context,
                 timeout_ms);
}

void client_say_infer(struct client_call *call, const char *model, int64_t rows)
{
    static struct client_call sent; /* whose end nobody waits for */
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    set_request(call, infer_bytes, infer_request(model, rows));
    size_t n = add_request(call, ops);
    assert_int_equal(grpc_call_start_batch(call->core, ops, n, &sent, NULL), GRPC_CALL_OK);
}

void client_wait(struct client_call *call)
{
    T_WAIT(&loop, atomic_load(&call->done));
}

uint8_t *client_message(struct client_call *call, size_t *ret_length)
{
    if (!call->response)
        return NULL;
    size_t length = grpc_byte_buffer_length(call->response), at = 0;
    uint8_t *bytes = malloc(length + 1);
    grpc_byte_buffer_reader reader;
    grpc_slice *slice;
    assert_true(bytes && grpc_byte_buffer_reader_init(&reader, call->response));
    while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
        memcpy(bytes + at, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        at += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    *ret_length = length;
    return bytes;
}

static const char *slice_text(grpc_slice slice)
{
    static char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)GRPC_SLICE_LENGTH(slice),
             (const char *)GRPC_SLICE_START_PTR(slice));
    return text;
}

const char *client_text(struct client_call *call)
{
    return slice_text(call->details);
}

const char *client_trailer(struct client_call *call, const char *key)
{
    for (size_t i = 0; i < call->trailing.count; i++)
        if (grpc_slice_str_cmp(call->trailing.metadata[i].key, key) == 0)
            return slice_text(call->trailing.metadata[i].value);
    return NULL;
}

void client_fini(struct client_call *call)
{
    if (call->request)
        grpc_byte_buffer_destroy(call->request);
    if (call->response)
        grpc_byte_buffer_destroy(call->response);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    grpc_call_unref(call->core);
}

/* ---- set-up ---- */

static void on_wake(uv_async_t *async)
{
    (void)async;
}

int fake_setup(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    setenv("INGOT_LOG", "error", 0);
    t_make_dir(base_dir);
    snprintf(run_dir, sizeof run_dir, "%s/run", base_dir);
    if (uv_loop_init(&loop) != 0 || uv_async_init(&loop, &wake, on_wake) != 0 ||
        uv_timer_init(&loop, &tick) != 0)
        return -1;
    uv_timer_start(&tick, on_tick, 5, 5);
    grpc_init();
    queue = grpc_completion_queue_create_for_next(NULL);
    return pthread_create(&queue_thread, NULL, queue_main, NULL);
}

int fake_teardown(void **state)
{
    (void)state;
    grpc_completion_queue_shutdown(queue);
    pthread_join(queue_thread, NULL);
    grpc_completion_queue_destroy(queue);
    grpc_shutdown();
    uv_close((uv_handle_t *)&wake, NULL);
    uv_close((uv_handle_t *)&tick, NULL);
    t_loop_finish(&loop);
    t_remove_dir(base_dir);
    return 0;
}

int fake_reset(void **state)
{
    (void)state;
    if (sched.memory)
        scheduler_die();
    if (worker)
        worker_die();
    kill_hard(&gateway_pid);
    kill_hard(&memmgr_pid);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    t_remove_dir(run_dir);
    return mkdir(run_dir, 0700);
}
