/* The real ingot-scheduler and ingot-memmgr as processes, with fake gateways and workers in this
 * one: real channels, real bus, real deaths (SIGKILL). Each wait is for an event, with a bound. */
#include "common/bus.h"
#include "common/channel.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/record.h"
#include "memmgr/client.h"
#include "tests/harness/t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_HANDLES 40000
#define MAX_MODELS  8

static uv_loop_t loop;
static char base[T_PATH_MAX], run_dir[T_PATH_MAX * 2], models[T_PATH_MAX * 2];
static pid_t memmgr, scheduler;

/* ---- processes ---- */

static pid_t start(const char *program, const char *const *arguments)
{
    char path[512];
    snprintf(path, sizeof path, "%s/bin/%s", BINARY_DIR, program);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("INGOT_LOG", "error", 0);
        unsetenv("NOTIFY_SOCKET");
        execv(path, (char *const *)arguments);
        _exit(127);
    }
    return pid;
}

static void kill_hard(pid_t *pid)
{
    int status;
    if (*pid <= 0)
        return;
    kill(*pid, SIGKILL);
    assert_int_equal(waitpid(*pid, &status, 0), *pid);
    *pid = 0;
}

/* Ends a process politely; it must exit with 0. */
static void stop_softly(pid_t *pid)
{
    int status;
    kill(*pid, SIGTERM);
    assert_int_equal(waitpid(*pid, &status, 0), *pid);
    *pid = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void start_memmgr(void)
{
    const char *arguments[] = {"ingot-memmgr",    "--run-dir", run_dir,
                               "--memory-budget", "256M",      NULL};
    memmgr = start("ingot-memmgr", arguments);
}

static void start_scheduler(const char *workers)
{
    const char *arguments[] = {"ingot-scheduler", "--run-dir", run_dir, "--models", models,
                               "--workers",       workers,     NULL};
    scheduler = start("ingot-scheduler", arguments);
}

/* ---- fakes ---- */

struct fake {
    enum cm_role role;
    uint32_t index;
    struct mm_client *memory;
    struct cm_bus *bus;
    struct cm_channel *channel;
    uint64_t instance;
    unsigned channels; /* ever got */
    unsigned closed;   /* ever lost */
    bool hello_acked;
    bool deaf; /* opens its channel and never reads it */
    /* gateways */
    uint64_t table_revision;
    bool settled;
    struct {
        char name[64];
        struct cm_model_ref ref;
        int state;
        char reason[256];
        unsigned n_workers;
    } table[MAX_MODELS];
    unsigned n_table;
    uint8_t *replies; /* how many, by handle */
    unsigned n_replies, n_ok;
    struct cm_record_reply last_reply;
    /* workers */
    bool hold; /* do not answer EXECUTE */
    unsigned loads, executes, releases, drops, abandons, helds, resumes;
    struct cm_slab_ref last_held;
    uint32_t next_slab;
    uint32_t largest_batch;
};

static void send_hello(struct fake *fake);

static void done_ok(struct fake *fake, const struct cm_record_execute *execute)
{
    static uint64_t buffer[CM_RECORD_MAX / 8];
    unsigned char *at = (unsigned char *)buffer;
    struct cm_record_done done = {.batch = execute->batch,
                                  .received_ns = cm_now_ns(),
                                  .started_ns = cm_now_ns(),
                                  .finished_ns = cm_now_ns(),
                                  .n_items = execute->n_items};
    memcpy(at, &done, sizeof done);
    at += sizeof done;
    const struct cm_execute_item *item = cm_execute_first(execute);
    for (uint32_t i = 0; i < execute->n_items; i++, item = cm_execute_next(execute, item)) {
        struct cm_done_item out = {
            .slab = {.worker = fake->instance, .slab = fake->next_slab++, .generation = 1},
            .n_outputs = 1};
        struct cm_tensor_desc desc = {
            .slice = {.region = 1, .generation = 1, .length = 16ull * item->rows},
            .dims = {item->rows, 4},
            .dtype = CM_FP32,
            .rank = 2};
        memcpy(at, &out, sizeof out);
        memcpy(at + sizeof out, &desc, sizeof desc);
        at += sizeof out + sizeof desc;
    }
    enum cm_err code = cm_channel_send(fake->channel, CM_RECORD_DONE, buffer,
                                       (uint32_t)(at - (unsigned char *)buffer), NULL, 0);
    assert_int_equal(code, CM_OK);
    cm_channel_flush(fake->channel);
}

static void worker_record(struct fake *fake, uint8_t type, const void *payload)
{
    const struct cm_record_execute *execute = payload;
    switch (type) {
    case CM_RECORD_EXECUTE:
        fake->executes++;
        if (execute->n_items > fake->largest_batch)
            fake->largest_batch = execute->n_items;
        if (!fake->hold)
            done_ok(fake, execute);
        break;
    case CM_RECORD_RELEASE:
        fake->releases++;
        break;
    case CM_RECORD_ABANDON:
        fake->abandons++;
        break;
    case CM_RECORD_DROP:
        fake->drops++;
        break;
    case CM_RECORD_HELD:
        fake->helds++;
        fake->last_held = ((const struct cm_record_held *)payload)->slab;
        break;
    case CM_RECORD_RESUMED:
        fake->resumes++;
        break;
    default:
        fail_msg("record type %u to a worker", type);
    }
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    struct fake *fake = ctx;
    const struct cm_record_reply *reply = payload;
    (void)channel;
    (void)length;
    if (fake->role == CM_ROLE_WORKER) {
        worker_record(fake, type, payload);
        return;
    }
    assert_int_equal(type, CM_RECORD_REPLY);
    assert_true(reply->request < MAX_HANDLES);
    assert_int_equal(fake->replies[reply->request]++, 0);
    fake->last_reply = *reply;
    fake->n_replies++;
    fake->n_ok += reply->status == CM_OK;
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct fake *fake = ctx;
    (void)reason;
    cm_channel_close(channel);
    if (fake->channel == channel)
        fake->channel = NULL;
    fake->closed++;
    assert_int_equal(mm_client_want_channel(fake->memory, CM_ROLE_SCHEDULER, 0), CM_OK);
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    struct fake *fake = ctx;
    struct cm_channel_events events = {on_record, NULL, on_closed, fake};
    if (fake->channel)
        cm_channel_close(fake->channel);
    fake->channel = channel;
    fake->channels++;
    if (fake->deaf)
        return;
    assert_int_equal(cm_channel_start(channel, &loop, &events), CM_OK);
    if (fake->role == CM_ROLE_GATEWAY) {
        struct cm_record_held held = {.slab = {.worker = 424242, .slab = 7, .generation = 1}};
        struct cm_record_resumed resumed = {.gateway = fake->instance};
        if (fake->channels > 1) /* pretends to hold one output of a worker that is not there */
            assert_int_equal(cm_channel_send(channel, CM_RECORD_HELD, &held, sizeof held, NULL, 0),
                             CM_OK);
        assert_int_equal(
            cm_channel_send(channel, CM_RECORD_RESUMED, &resumed, sizeof resumed, NULL, 0), CM_OK);
        cm_channel_flush(channel);
    }
    send_hello(fake);
}

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    struct fake *fake = ctx;
    bool first = fake->instance == 0;
    fake->instance = identity->instance;
    cm_bus_set_instance(fake->bus, identity->instance);
    if (first)
        assert_int_equal(mm_client_want_channel(fake->memory, CM_ROLE_SCHEDULER, 0), CM_OK);
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    (void)ctx;
    fail_msg("memmgr refused a fake: %s", error->text);
}

static void on_ack(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    (void)ctx;
    (void)err;
    (void)answer;
}

static void on_hello_ack(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct fake *fake = ctx;
    (void)answer;
    if (err == CM_OK)
        fake->hello_acked = true;
}

static void send_hello(struct fake *fake)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Hello hello = INGOT__IPC__HELLO__INIT;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_HELLO;
    message.hello = &hello;
    assert_int_equal(
        cm_bus_request(fake->bus, CM_ROLE_SCHEDULER, 0, &message, 50, 50, on_hello_ack, fake),
        CM_OK);
}

static void send_status(struct fake *fake, const Ingot__Ipc__LoadModel *load)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelStatus status = INGOT__IPC__MODEL_STATUS__INIT;
    Ingot__Ipc__TensorInfo in = INGOT__IPC__TENSOR_INFO__INIT, out = INGOT__IPC__TENSOR_INFO__INIT;
    Ingot__Ipc__TensorInfo *ins[] = {&in}, *outs[] = {&out};
    int64_t in_shape[] = {-1, 16}, out_shape[] = {-1, 4};
    status.id = load->id;
    status.generation = load->generation;
    if (strcmp(load->name, "refused") == 0) {
        status.state = INGOT__IPC__MODEL_STATE__MODEL_FAILED;
        status.reason = "operator Nonsense is not supported";
    } else {
        in.name = "x";
        out.name = "y";
        in.dtype = out.dtype = CM_FP32;
        in.n_shape = out.n_shape = 2;
        in.shape = in_shape;
        out.shape = out_shape;
        status.state = INGOT__IPC__MODEL_STATE__MODEL_READY;
        status.inputs = ins;
        status.outputs = outs;
        status.n_inputs = status.n_outputs = 1;
        status.batchable = true;
        status.max_batch_size = load->max_batch_size;
    }
    message.body_case = INGOT__IPC__ENVELOPE__BODY_MODEL_STATUS;
    message.model_status = &status;
    assert_int_equal(
        cm_bus_request(fake->bus, CM_ROLE_SCHEDULER, 0, &message, 50, 50, on_ack, fake), CM_OK);
}

static void keep_table(struct fake *fake, const Ingot__Ipc__ModelTable *table)
{
    assert_true(table->n_models <= MAX_MODELS);
    fake->table_revision = table->revision;
    fake->settled = table->settled;
    fake->n_table = (unsigned)table->n_models;
    for (unsigned i = 0; i < fake->n_table; i++) {
        const Ingot__Ipc__Model *model = table->models[i];
        snprintf(fake->table[i].name, sizeof fake->table[i].name, "%s", model->name);
        snprintf(fake->table[i].reason, sizeof fake->table[i].reason, "%s", model->reason);
        fake->table[i].ref = (struct cm_model_ref){model->id, model->generation};
        fake->table[i].state = (int)model->state;
        fake->table[i].n_workers = (unsigned)model->n_workers;
    }
}

static void on_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct fake *fake = ctx;
    Ingot__Ipc__Envelope ack = INGOT__IPC__ENVELOPE__INIT;
    assert_int_equal(cm_bus_answer(bus, message, &ack), CM_OK);
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_LOAD_MODEL) {
        fake->loads++;
        send_status(fake, message->load_model);
    } else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE) {
        keep_table(fake, message->model_table);
    } else {
        fail_msg("message %d to a fake", (int)message->body_case);
    }
}

static struct fake *open_fake(enum cm_role role, uint32_t index)
{
    struct cm_error err;
    struct fake *fake = calloc(1, sizeof *fake);
    fake->role = role;
    fake->index = index;
    fake->replies = calloc(MAX_HANDLES, 1);
    struct cm_bus_options bus = {&loop, run_dir, role, index, on_message, fake};
    struct mm_client_options memory = {.loop = &loop,
                                       .run_dir = run_dir,
                                       .role = role,
                                       .index = index,
                                       .on_attached = on_attached,
                                       .on_channel = on_channel,
                                       .on_refused = on_refused,
                                       .ctx = fake};
    if (cm_bus_open(&bus, &err, &fake->bus) != CM_OK ||
        mm_client_create(&memory, &err, &fake->memory) != CM_OK)
        fail_msg("cannot open a fake: %s", err.text);
    return fake;
}

/* As if the process had died: everything is closed at once. */
static void close_fake(struct fake *fake)
{
    cm_channel_close(fake->channel);
    cm_bus_close(fake->bus);
    mm_client_destroy(fake->memory);
    free(fake->replies);
    free(fake);
}

/* ---- requests ---- */

static struct cm_model_ref ref_of(const struct fake *gateway, const char *name)
{
    for (unsigned i = 0; i < gateway->n_table; i++)
        if (strcmp(gateway->table[i].name, name) == 0)
            return gateway->table[i].ref;
    fail_msg("model %s is not in the table", name);
    return (struct cm_model_ref){0};
}

static int state_of(const struct fake *gateway, const char *name)
{
    for (unsigned i = 0; i < gateway->n_table; i++)
        if (strcmp(gateway->table[i].name, name) == 0)
            return gateway->table[i].state;
    return 0;
}

static enum cm_err submit(struct fake *gateway, uint64_t handle, struct cm_model_ref model)
{
    struct cm_record_submit head = {.request = handle,
                                    .deadline_ns = cm_now_ns() + 60 * CM_NS_PER_S,
                                    .output_mask = 1,
                                    .model = model,
                                    .rows = 1,
                                    .n_inputs = 1};
    struct cm_tensor_desc input = {
        .slice = {.region = 1, .length = 64}, .dims = {1, 16}, .dtype = CM_FP32, .rank = 2};
    return cm_channel_send(gateway->channel, CM_RECORD_SUBMIT, &head, sizeof head, &input,
                           sizeof input);
}

static void submit_now(struct fake *gateway, uint64_t handle, struct cm_model_ref model)
{
    assert_int_equal(submit(gateway, handle, model), CM_OK);
    cm_channel_flush(gateway->channel);
}

/* ---- the stage of every test ---- */

static void write_model(const char *name, const char *config)
{
    char path[T_PATH_MAX * 3];
    snprintf(path, sizeof path, "%s/%s", models, name);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/1", models, name);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/1/model.onnx", models, name);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/%s/config.yaml", models, name);
    FILE *out = fopen(path, "w");
    fputs(config, out);
    fclose(out);
}

static int set_stage(void **state)
{
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    t_make_dir(base);
    snprintf(run_dir, sizeof run_dir, "%s/run", base);
    snprintf(models, sizeof models, "%s/models", base);
    mkdir(run_dir, 0700);
    mkdir(models, 0700);
    write_model("alpha", "max_batch_size: 8\n");
    write_model("broken", "max_batch_size: -8\n");
    write_model("refused", "");
    start_memmgr();
    start_scheduler("1");
    return 0;
}

static int clear_stage(void **state)
{
    (void)state;
    t_loop_finish(&loop);
    if (scheduler > 0)
        stop_softly(&scheduler); /* with a sanitizer: and without a leak */
    kill_hard(&memmgr);
    t_remove_dir(base);
    return 0;
}

/* ---- tests ---- */

static void models_load_and_requests_flow(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    T_WAIT(&loop, gateway->n_table == 3);
    assert_false(gateway->settled);
    assert_int_equal(state_of(gateway, "broken"), INGOT__IPC__MODEL_STATE__MODEL_FAILED);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    assert_int_equal(worker->loads, 2); /* the broken one is no worker's business */
    assert_int_equal(state_of(gateway, "alpha"), INGOT__IPC__MODEL_STATE__MODEL_READY);
    assert_int_equal(state_of(gateway, "refused"), INGOT__IPC__MODEL_STATE__MODEL_FAILED);
    assert_string_equal(gateway->table[2].reason, "operator Nonsense is not supported");
    assert_non_null(strstr(gateway->table[1].reason, "broken/config.yaml:1"));

    submit_now(gateway, 1, ref_of(gateway, "alpha"));
    T_WAIT(&loop, gateway->n_replies == 1);
    assert_int_equal(gateway->last_reply.status, CM_OK);
    assert_int_equal(gateway->last_reply.slab.worker, worker->instance);
    struct cm_record_release release = {.slab = gateway->last_reply.slab};
    assert_int_equal(
        cm_channel_send(gateway->channel, CM_RECORD_RELEASE, &release, sizeof release, NULL, 0),
        CM_OK);
    cm_channel_flush(gateway->channel);
    T_WAIT(&loop, worker->releases == 1);

    submit_now(gateway, 2, ref_of(gateway, "refused"));
    T_WAIT(&loop, gateway->n_replies == 2);
    assert_int_equal(gateway->last_reply.status, CM_PRECONDITION);
    close_fake(gateway);
    T_WAIT(&loop, worker->drops == 1);
    close_fake(worker);
}

static void waiting_requests_ride_together(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    struct cm_model_ref alpha = ref_of(gateway, "alpha");
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal(submit(gateway, i, alpha), CM_OK);
    cm_channel_flush(gateway->channel);
    T_WAIT(&loop, gateway->n_ok == 64);
    assert_int_equal(worker->largest_batch, 8);
    close_fake(gateway);
    close_fake(worker);
}

static void a_dead_workers_batch_goes_on(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    worker->hold = true;
    submit_now(gateway, 1, ref_of(gateway, "alpha"));
    T_WAIT(&loop, worker->executes == 1);
    close_fake(worker);
    T_WAIT(&loop, gateway->table[0].n_workers == 0);
    assert_int_equal(state_of(gateway, "alpha"), INGOT__IPC__MODEL_STATE__MODEL_READY);
    struct fake *next = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->n_replies == 1);
    assert_int_equal(gateway->last_reply.status, CM_OK);
    assert_int_equal(gateway->last_reply.attempts, 2);
    close_fake(next);
    close_fake(gateway);
}

static void a_new_scheduler_takes_over(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    struct cm_model_ref old = ref_of(gateway, "alpha");
    worker->hold = true;
    submit_now(gateway, 1, old);
    T_WAIT(&loop, worker->executes == 1);
    gateway->n_table = 0;
    gateway->settled = false;
    kill_hard(&scheduler);
    start_scheduler("1");
    T_WAIT(&loop, gateway->channels == 2 && worker->channels == 2);
    worker->hold = false;
    T_WAIT(&loop, gateway->settled);
    T_WAIT(&loop, worker->resumes >= 1);
    /* The old life's references are stale; with the new ones the request goes through. */
    submit_now(gateway, 2, old);
    T_WAIT(&loop, gateway->n_replies == 1);
    assert_int_equal(gateway->last_reply.status, CM_STALE);
    submit_now(gateway, 1, ref_of(gateway, "alpha"));
    T_WAIT(&loop, gateway->n_ok == 1);
    close_fake(worker);
    close_fake(gateway);
}

static void memmgr_may_die_meanwhile(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    kill_hard(&memmgr);
    submit_now(gateway, 1, ref_of(gateway, "alpha"));
    T_WAIT(&loop, gateway->n_ok == 1);
    start_memmgr();
    /* A worker that comes under the new memmgr reaches the same scheduler. */
    struct fake *second = open_fake(CM_ROLE_WORKER, 1);
    T_WAIT(&loop, gateway->table[0].n_workers == 2);
    assert_int_equal(gateway->channels, 1);
    close_fake(second);
    close_fake(worker);
    close_fake(gateway);
}

static void hostile_peers_lose_their_channel_only(void **state)
{
    (void)state;
    struct fake *good = open_fake(CM_ROLE_GATEWAY, 0), *bad = open_fake(CM_ROLE_GATEWAY, 1);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, good->settled && bad->settled);
    uint64_t seed = 5;
    for (unsigned round = 1; round <= 20; round++) {
        uint64_t noise[16];
        for (unsigned i = 0; i < 16; i++)
            noise[i] = t_random(&seed);
        /* Records of every type, well framed, with random contents: refused or, if they happen to
         * be records, not a gateway's. */
        uint8_t type = (uint8_t)(3 + round % 3);
        assert_int_equal(cm_channel_send(bad->channel, type, noise, 8 * (round % 16), NULL, 0),
                         CM_OK);
        cm_channel_flush(bad->channel);
        T_WAIT(&loop, bad->closed == round && bad->channel != NULL);
        submit_now(good, round, ref_of(good, "alpha"));
        T_WAIT(&loop, good->n_ok == round);
    }
    assert_int_equal(good->channels, 1);
    close_fake(bad);
    close_fake(good);
    close_fake(worker);
}

/* More replies than the ring holds, for a gateway that does not read: none is lost, none comes
 * twice. */
static void full_rings_lose_nothing(void **state)
{
    (void)state;
    enum { COUNT = 30000 };
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    T_WAIT(&loop, gateway->n_table == 3);
    struct cm_model_ref stale = {1, 0};
    uint64_t end_ns = cm_now_ns() + 20 * CM_NS_PER_S;
    for (uint64_t i = 0; i < COUNT && cm_now_ns() < end_ns;) {
        enum cm_err code = submit(gateway, i, stale);
        if (code == CM_OK) {
            i++;
            continue;
        }
        /* Our own ring is full: the scheduler empties it although we read no reply. */
        assert_int_equal(code, CM_FULL);
        cm_channel_flush(gateway->channel);
    }
    cm_channel_flush(gateway->channel);
    assert_int_equal(gateway->n_replies, 0);
    T_WAIT(&loop, gateway->n_replies == COUNT);
    assert_int_equal(gateway->last_reply.status, CM_STALE);
    close_fake(gateway);
}

static uint64_t counter(const Ingot__Ipc__Stats *stats, const char *name)
{
    for (size_t i = 0; i < stats->n_counters; i++)
        if (strcmp(stats->counters[i]->name, name) == 0)
            return stats->counters[i]->value;
    fail_msg("no counter %s", name);
    return 0;
}

struct question {
    bool answered;
    uint64_t submitted, completed, batches, workers, gateways;
    uint64_t model_requests;
    size_t models;
    uint32_t error;
};

static void on_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    struct question *question = ctx;
    question->answered = true;
    if (err != CM_OK)
        return;
    if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_STATS) {
        question->submitted = counter(answer->stats, "submitted");
        question->completed = counter(answer->stats, "completed");
        question->batches = counter(answer->stats, "batches");
        question->workers = counter(answer->stats, "workers");
        question->gateways = counter(answer->stats, "gateways");
    } else if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_MODEL_TABLE) {
        question->models = answer->model_table->n_models;
        question->model_requests = answer->model_table->models[0]->requests;
    } else if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_ERROR) {
        question->error = answer->error->code;
    }
}

static void ignore(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    (void)ctx;
    (void)bus;
    (void)message;
}

static struct question ask(struct cm_bus *tool, Ingot__Ipc__Envelope *message)
{
    struct question question = {0};
    assert_int_equal(
        cm_bus_request(tool, CM_ROLE_SCHEDULER, 0, message, 50, 50, on_answer, &question), CM_OK);
    T_WAIT(&loop, question.answered);
    return question;
}

static struct cm_bus *open_tool(void)
{
    struct cm_bus *tool;
    struct cm_error err;
    struct cm_bus_options options = {&loop,  run_dir, CM_ROLE_TOOL, (uint32_t)getpid(),
                                     ignore, NULL};
    assert_int_equal(cm_bus_open(&options, &err, &tool), CM_OK);
    return tool;
}

static struct question ask_stats(struct cm_bus *tool)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__StatsQuery stats = INGOT__IPC__STATS_QUERY__INIT;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_STATS_QUERY;
    message.stats_query = &stats;
    return ask(tool, &message);
}

static void tools_get_answers(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->settled);
    submit_now(gateway, 1, ref_of(gateway, "alpha"));
    T_WAIT(&loop, gateway->n_ok == 1);
    struct cm_bus *tool = open_tool();
    struct question got = ask_stats(tool);
    assert_int_equal(got.submitted, 1);
    assert_int_equal(got.completed, 1);
    assert_int_equal(got.batches, 1);
    assert_int_equal(got.workers, 1);

    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__ModelsQuery query = INGOT__IPC__MODELS_QUERY__INIT;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY;
    message.models_query = &query;
    got = ask(tool, &message);
    assert_int_equal(got.models, 3);
    assert_int_equal(got.model_requests, 1);

    Ingot__Ipc__LedgerQuery ledger = INGOT__IPC__LEDGER_QUERY__INIT;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_LEDGER_QUERY;
    message.ledger_query = &ledger;
    got = ask(tool, &message);
    assert_int_equal(got.error, CM_UNSUPPORTED);
    cm_bus_close(tool);
    close_fake(worker);
    close_fake(gateway);
}

/* What waits for one peer has a limit: then the peer is given up, and nobody else notices. */
static void a_deaf_gateway_is_given_up(void **state)
{
    (void)state;
    struct cm_bus *tool = open_tool();
    struct fake *good = open_fake(CM_ROLE_GATEWAY, 0), *deaf = open_fake(CM_ROLE_GATEWAY, 1);
    struct fake *worker = open_fake(CM_ROLE_WORKER, 0);
    deaf->deaf = true;
    T_WAIT(&loop, good->settled && deaf->channel);
    bool gone = false;
    uint64_t end_ns = cm_now_ns() + 60 * CM_NS_PER_S;
    while (!gone && cm_now_ns() < end_ns) {
        if (submit(deaf, 1, (struct cm_model_ref){1, 0}) != CM_FULL)
            continue;
        cm_channel_flush(deaf->channel);
        gone = ask_stats(tool).gateways == 1;
    }
    assert_true(gone);
    submit_now(good, 1, ref_of(good, "alpha"));
    T_WAIT(&loop, good->n_ok == 1);
    cm_bus_close(tool);
    close_fake(deaf);
    close_fake(good);
    close_fake(worker);
}

static void settled_waits_for_all_expected_workers(void **state)
{
    (void)state;
    kill_hard(&scheduler);
    start_scheduler("2");
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    struct fake *first = open_fake(CM_ROLE_WORKER, 0);
    T_WAIT(&loop, gateway->n_table == 3 && gateway->table[0].n_workers == 1);
    T_WAIT(&loop, state_of(gateway, "refused") == INGOT__IPC__MODEL_STATE__MODEL_FAILED);
    assert_false(gateway->settled);
    struct fake *second = open_fake(CM_ROLE_WORKER, 1);
    T_WAIT(&loop, gateway->settled);
    assert_int_equal(gateway->table[0].n_workers, 2);
    close_fake(first);
    close_fake(second);
    close_fake(gateway);
}

static void it_stops_when_told(void **state)
{
    (void)state;
    struct fake *gateway = open_fake(CM_ROLE_GATEWAY, 0);
    T_WAIT(&loop, gateway->n_table == 3);
    stop_softly(&scheduler);
    T_WAIT(&loop, gateway->closed == 1);
    close_fake(gateway);
}

static void bad_arguments_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[8];
        int expected;
    } cases[] = {
        {{"ingot-scheduler", NULL}, 2},
        {{"ingot-scheduler", "--run-dir", "/tmp", NULL}, 2},
        {{"ingot-scheduler", "--run-dir", "/tmp", "--models", "/tmp", "--workers", "0", NULL}, 2},
        {{"ingot-scheduler", "--run-dir", "/tmp", "--models", "/nonexistent", NULL}, 2},
        {{"ingot-scheduler", "--nonsense", NULL}, 2},
        {{"ingot-scheduler", "--help", NULL}, 0},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        int status;
        pid_t pid = start("ingot-scheduler", cases[i].arguments);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), cases[i].expected);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_stage, clear_stage)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(models_load_and_requests_flow),
        TEST(waiting_requests_ride_together),
        TEST(a_dead_workers_batch_goes_on),
        TEST(a_new_scheduler_takes_over),
        TEST(memmgr_may_die_meanwhile),
        TEST(hostile_peers_lose_their_channel_only),
        TEST(full_rings_lose_nothing),
        TEST(a_deaf_gateway_is_given_up),
        TEST(tools_get_answers),
        TEST(settled_waits_for_all_expected_workers),
        TEST(it_stops_when_told),
        cmocka_unit_test(bad_arguments_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
