/* The real ingot-worker and ingot-memmgr as processes, with a fake scheduler and gateway in this
 * one: starts that fail, schedulers that give a worker up, leases that cannot be opened yet. Each
 * wait is for an event, with a bound. */
#include "common/bus.h"
#include "common/channel.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/proc.h"
#include "common/record.h"
#include "memmgr/client.h"
#include "tests/engine/kit.h"
#include "tests/harness/t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL 7 /* rows of four floats, and their Relu */
#define OTHER 8 /* has no file */

static uv_loop_t loop;
static char base[T_PATH_MAX], run_dir[T_PATH_MAX * 2], models[T_PATH_MAX * 2];
static pid_t memmgr, worker;

/* ---- processes ---- */

static pid_t start(const char *program, const char *const *arguments)
{
    char path[512];
    snprintf(path, sizeof path, "%s/bin/%s", BINARY_DIR, program);
    char parent[32];
    snprintf(parent, sizeof parent, "%ld", (long)getpid());
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("INGOT_LOG", "error", 0);
        setenv("INGOT_SUPERVISED", parent, 1); /* ends with this process, whatever happens to it */
        unsetenv("NOTIFY_SOCKET");
        execv(path, (char *const *)arguments);
        _exit(127);
    }
    return pid;
}

static void start_worker(const char *in_dir)
{
    const char *arguments[] = {"ingot-worker", "--run-dir", in_dir, "--models", models, NULL};
    worker = start("ingot-worker", arguments);
}

static void start_memmgr(void)
{
    const char *arguments[] = {"ingot-memmgr",    "--run-dir", run_dir,
                               "--memory-budget", "256M",      NULL};
    memmgr = start("ingot-memmgr", arguments);
}

/* True once the process has ended; *ret_status is then its wait status. */
static bool has_ended(pid_t *pid, int *ret_status)
{
    if (*pid == 0)
        return true;
    if (waitpid(*pid, ret_status, WNOHANG) != *pid)
        return false;
    *pid = 0;
    return true;
}

static void stop(pid_t *pid, int signal_number)
{
    int status;
    if (*pid <= 0)
        return;
    kill(*pid, signal_number);
    assert_int_equal(waitpid(*pid, &status, 0), *pid);
    *pid = 0;
}

static void on_child(uv_signal_t *handle, int number)
{
    (void)handle;
    (void)number; /* it wakes the loop */
}

static void expect_exit(int code)
{
    int status = 0;
    uv_signal_t child;
    assert_int_equal(uv_signal_init(&loop, &child), 0);
    assert_int_equal(uv_signal_start(&child, on_child, SIGCHLD), 0);
    T_WAIT(&loop, has_ended(&worker, &status));
    uv_close((uv_handle_t *)&child, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

/* ---- a fake scheduler, and a gateway that only owns a lease ---- */

static uint64_t instance; /* the scheduler's */
static struct mm_client *memory, *gateway;
static struct cm_bus *bus;
static struct cm_channel *channel;
static struct mm_lease *lease;
static unsigned hellos, dones;
static struct cm_record_done last_done;
static int states[OTHER + 1]; /* by model: the last that the worker has said */

static void on_record(void *ctx, struct cm_channel *from, uint8_t type, const void *payload,
                      uint32_t length)
{
    (void)ctx;
    (void)from;
    (void)length;
    assert_int_equal(type, CM_RECORD_DONE);
    memcpy(&last_done, payload, sizeof last_done);
    dones++;
}

static void on_closed(void *ctx, struct cm_channel *ended, enum cm_err reason)
{
    (void)ctx;
    (void)reason;
    if (channel == ended)
        channel = NULL;
    cm_channel_close(ended);
}

static void on_channel(void *ctx, struct cm_channel *opened)
{
    const struct cm_channel_events events = {on_record, NULL, on_closed, NULL};
    (void)ctx;
    assert_null(channel);
    channel = opened;
    assert_int_equal(cm_channel_start(channel, &loop, &events), CM_OK);
}

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    (void)ctx;
    cm_bus_set_instance(bus, identity->instance);
    instance = identity->instance;
}

static void on_gateway_attached(void *ctx, const struct mm_identity *identity)
{
    (void)ctx;
    (void)identity;
}

static void on_message(void *ctx, struct cm_bus *from, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Envelope ack = INGOT__IPC__ENVELOPE__INIT;
    (void)ctx;
    hellos += message->body_case == INGOT__IPC__ENVELOPE__BODY_HELLO;
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_MODEL_STATUS) {
        assert_in_range(message->model_status->id, MODEL, OTHER);
        states[message->model_status->id] = (int)message->model_status->state;
    }
    if (message->wants_answer)
        assert_int_equal(cm_bus_answer(from, message, &ack), CM_OK);
}

static void open_scheduler(void)
{
    struct cm_error err;
    struct cm_bus_options on_bus = {&loop, run_dir, CM_ROLE_SCHEDULER, 0, on_message, NULL};
    struct mm_client_options options = {.loop = &loop,
                                        .run_dir = run_dir,
                                        .role = CM_ROLE_SCHEDULER,
                                        .on_attached = on_attached,
                                        .on_channel = on_channel};
    assert_int_equal(cm_bus_open(&on_bus, &err, &bus), CM_OK);
    assert_int_equal(mm_client_create(&options, &err, &memory), CM_OK);
}

/* As if the process had died. */
static void close_scheduler(void)
{
    cm_channel_close(channel);
    channel = NULL;
    cm_bus_close(bus);
    bus = NULL;
    mm_client_destroy(memory);
    memory = NULL;
}

static void on_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    (void)ctx;
    (void)err;
    (void)answer;
}

static void load(uint32_t id, uint32_t generation, const char *name)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__LoadModel model = INGOT__IPC__LOAD_MODEL__INIT;
    model.id = id;
    model.generation = generation;
    model.name = (char *)name;
    model.version = 1;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_LOAD_MODEL;
    message.load_model = &model;
    states[id] = 0;
    assert_int_equal(cm_bus_request(bus, CM_ROLE_WORKER, 0, &message, 50, 50, on_answer, NULL),
                     CM_OK);
}

/* One row of the model as this generation of its name, at the start of a lease. Returns the status
 * of its DONE. */
static uint32_t run(uint32_t generation, uint64_t region, uint32_t lease_generation)
{
    struct {
        struct cm_execute_item item;
        struct cm_tensor_desc input;
    } tail = {.item = {.output_mask = 1, .gateway = 1, .rows = 1},
              .input = {.slice = {region, lease_generation, 0, 0, 16},
                        .dims = {1, 4},
                        .dtype = CM_FP32,
                        .rank = 2}};
    struct cm_record_execute head = {.batch = 1,
                                     .deadline_ns = CM_NEVER,
                                     .model = {MODEL, generation},
                                     .rows = 1,
                                     .n_items = 1,
                                     .n_inputs = 1};
    unsigned before = dones;
    assert_int_equal(
        cm_channel_send(channel, CM_RECORD_EXECUTE, &head, sizeof head, &tail, sizeof tail), CM_OK);
    cm_channel_flush(channel);
    T_WAIT(&loop, dones == before + 1);
    return last_done.status;
}

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *got)
{
    (void)ctx;
    assert_int_equal(error->code, CM_OK);
    lease = got;
}

static struct mm_lease *acquire(void)
{
    lease = NULL;
    assert_int_equal(mm_client_acquire(gateway, MM_LEASE_MIN, on_lease, NULL), CM_OK);
    T_WAIT(&loop, lease);
    return lease;
}

static void open_gateway(void)
{
    struct cm_error err;
    struct mm_client_options options = {.loop = &loop,
                                        .run_dir = run_dir,
                                        .role = CM_ROLE_GATEWAY,
                                        .on_attached = on_gateway_attached};
    assert_int_equal(mm_client_create(&options, &err, &gateway), CM_OK);
}

/* ---- the stage ---- */

static void write_model(void)
{
    char path[T_PATH_MAX * 3];
    size_t length = 0;
    struct kit_model *model = kit_model(17);
    kit_input(model, "x", CM_FP32, kit_shape(2, -1, 4));
    kit_output(model, "y", CM_FP32, kit_shape(2, -1, 4));
    kit_node(model, "Relu", "x", "y");
    void *bytes = kit_bytes(model, &length);
    snprintf(path, sizeof path, "%s/relu", models);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/relu/1", models);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/relu/1/model.onnx", models);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
    free(bytes);
    kit_free(model);
}

static int set_stage(void **state)
{
    (void)state;
    hellos = dones = 0;
    assert_int_equal(uv_loop_init(&loop), 0);
    t_make_dir(base);
    snprintf(run_dir, sizeof run_dir, "%s/run", base);
    snprintf(models, sizeof models, "%s/models", base);
    mkdir(run_dir, 0700);
    mkdir(models, 0700);
    write_model();
    return 0;
}

static int clear_stage(void **state)
{
    (void)state;
    stop(&worker, SIGTERM);
    stop(&memmgr, SIGKILL);
    t_loop_finish(&loop);
    t_remove_dir(base);
    return 0;
}

/* ---- tests ---- */

static void a_start_that_fails_says_so(void **state)
{
    char nowhere[T_PATH_MAX * 3];
    struct cm_error err;
    (void)state;
    snprintf(nowhere, sizeof nowhere, "%s/nowhere", base);
    start_worker(nowhere);
    expect_exit(CM_EXIT_FAILURE);
    /* Another worker with this index lives. */
    struct cm_bus_options other = {&loop, run_dir, CM_ROLE_WORKER, 0, on_message, NULL};
    assert_int_equal(cm_bus_open(&other, &err, &bus), CM_OK);
    start_worker(run_dir);
    expect_exit(CM_EXIT_FAILURE);
    cm_bus_close(bus);
    bus = NULL;
}

/* Only a new process can: this one cannot know which of its outputs are still read. */
static void a_worker_that_was_given_up_starts_anew(void **state)
{
    (void)state;
    start_memmgr();
    open_scheduler();
    start_worker(run_dir);
    T_WAIT(&loop, channel && hellos == 1);
    /* Nothing was asked of it: a channel that breaks now is replaced. */
    cm_channel_close(channel);
    channel = NULL;
    T_WAIT(&loop, channel && hellos >= 2);
    assert_int_equal(run(1, 1, 1), CM_STALE);
    /* The next scheduler finds it alive. */
    close_scheduler();
    open_scheduler();
    T_WAIT(&loop, channel && hellos >= 3);
    assert_int_equal(run(1, 1, 1), CM_STALE);
    cm_channel_close(channel);
    channel = NULL;
    expect_exit(CM_EXIT_LOST);
    close_scheduler();
}

/* As after memmgr's death, when the owner hands its lease back later than a batch asks for it. */
static void a_lease_that_was_refused_is_asked_for_again(void **state)
{
    (void)state;
    start_memmgr();
    open_scheduler();
    open_gateway();
    start_worker(run_dir);
    T_WAIT(&loop, channel && hellos == 1);
    load(MODEL, 1, "relu");
    T_WAIT(&loop, states[MODEL] == INGOT__IPC__MODEL_STATE__MODEL_READY);
    uint64_t region = acquire()->region;
    assert_int_equal(lease->generation, 1);
    mm_client_release(gateway, lease);
    assert_int_equal(run(1, region, 2), CM_STALE);
    /* Pooled memory comes back with the next generation. */
    acquire();
    assert_true(lease->region == region && lease->generation == 2);
    assert_int_equal(run(1, region, 2), CM_OK);
    mm_client_destroy(gateway);
    close_scheduler();
}

static void a_dead_scheduler_names_no_models(void **state)
{
    (void)state;
    start_memmgr();
    open_scheduler();
    open_gateway();
    start_worker(run_dir);
    T_WAIT(&loop, channel && hellos == 1);
    load(MODEL, 2, "relu");
    T_WAIT(&loop, states[MODEL] == INGOT__IPC__MODEL_STATE__MODEL_READY);
    acquire();
    /* What its predecessor sent comes late. */
    cm_bus_set_instance(bus, instance - 1);
    load(MODEL, 1, "relu");
    cm_bus_set_instance(bus, instance);
    load(OTHER, 2, "other");
    T_WAIT(&loop, states[OTHER] == INGOT__IPC__MODEL_STATE__MODEL_FAILED);
    assert_int_equal(run(2, lease->region, lease->generation), CM_OK);
    mm_client_destroy(gateway);
    close_scheduler();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_start_that_fails_says_so, set_stage, clear_stage),
        cmocka_unit_test_setup_teardown(a_worker_that_was_given_up_starts_anew, set_stage,
                                        clear_stage),
        cmocka_unit_test_setup_teardown(a_lease_that_was_refused_is_asked_for_again, set_stage,
                                        clear_stage),
        cmocka_unit_test_setup_teardown(a_dead_scheduler_names_no_models, set_stage, clear_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
