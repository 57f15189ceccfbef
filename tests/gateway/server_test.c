/* The gateway as a process between a real memmgr, a scheduler and a worker that obey this test, and
 * a gRPC client: what it sends when, and that every call ends once with the right status. */
#include "tests/gateway/fake.h"

#include "common/clock.h"
#include "proto/health.pb-c.h"
#include "proto/ingot.pb-c.h"
#include "tests/gateway/pem.h"

#include <arpa/inet.h>
#include <grpc/grpc_security.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY   INGOT__IPC__MODEL_STATE__MODEL_READY
#define LOADING INGOT__IPC__MODEL_STATE__MODEL_LOADING
#define FAILED  INGOT__IPC__MODEL_STATE__MODEL_FAILED

static grpc_channel *channel;
static struct client_call call;

/* Everything up, both models ready. more: arguments of the gateway. */
static void start_all(const char *const *more)
{
    const char *args[16] = {"--plaintext", "--http", "127.0.0.1:0"};
    size_t n = 3;
    while (more && *more)
        args[n++] = *more++;
    fake_reset(NULL);
    start_memmgr();
    start_gateway(args);
    scheduler_start();
    worker_start(1 << 20);
    scheduler_table(READY, true);
    channel = client_connect(NULL);
}

static void stop_all(void)
{
    grpc_channel_destroy(channel);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

static uint64_t request_of(unsigned submit)
{
    T_WAIT(&loop, sched.n_submits > submit);
    return sched.submits[submit].record.request;
}

/* Waits for the call, which must have this status, and ends it. */
static void ends_with(grpc_status_code status)
{
    client_wait(&call);
    if (call.status != status)
        fail_msg("status %d (%s), not %d", call.status, client_text(&call), status);
}

static Ingot__V1__InferResponse *response(void)
{
    size_t length;
    uint8_t *bytes = client_message(&call, &length);
    assert_non_null(bytes);
    Ingot__V1__InferResponse *read = ingot__v1__infer_response__unpack(NULL, length, bytes);
    free(bytes);
    assert_non_null(read);
    return read;
}

static const char *context(const char *id, uint64_t timeout_us, bool stats)
{
    static unsigned char text[512];
    unsigned char bytes[256];
    Ingot__V1__RequestContext message = INGOT__V1__REQUEST_CONTEXT__INIT;
    message.request_id = (char *)(uintptr_t)id;
    message.timeout_us = timeout_us;
    message.want_stats = stats;
    size_t length = ingot__v1__request_context__pack(&message, bytes);
    EVP_EncodeBlock(text, bytes, (int)length);
    return (const char *)text;
}

/* ---- tests ---- */

static void a_call_goes_through(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 2, context("req-1", 0, true), 10000);
    uint64_t request = request_of(0);
    const struct submit *submit = &sched.submits[0];
    assert_int_equal(submit->record.n_inputs, 1);
    assert_int_equal(submit->record.rows, 2);
    assert_true(submit->record.output_mask == 1);
    assert_true(submit->record.deadline_ns > cm_now_ns() + 5 * CM_NS_PER_S);
    assert_true(submit->record.deadline_ns < cm_now_ns() + 11 * CM_NS_PER_S);
    assert_int_equal(submit->inputs[0].slice.length, 2 * FLOATS * sizeof(float));
    assert_int_equal(submit->inputs[0].dims[0], 2);
    assert_int_equal(gateway_counter("in_flight"), 1);
    reply_output(request, 64, 2, SMALL, 7);
    ends_with(GRPC_STATUS_OK);
    Ingot__V1__InferResponse *read = response();
    assert_int_equal(read->n_outputs, 1);
    assert_string_equal(read->outputs[0]->name, "y");
    assert_int_equal(read->outputs[0]->data.len, 2 * SMALL * sizeof(float));
    assert_memory_equal(read->outputs[0]->data.data, worker_lease->base + 64, 16);
    assert_int_equal(read->stats->batch_rows, 3);
    ingot__v1__infer_response__free_unpacked(read, NULL);
    assert_non_null(client_trailer(&call, "x-ingot-stats-bin"));
    client_fini(&call);
    T_WAIT(&loop, sched.n_releases == 1);
    assert_int_equal(sched.last_release.slab, 7);
    assert_int_equal(sched.n_before_resumed, 0);
    assert_int_equal(gateway_counter("input_blocks"), 0);
    stop_all();
}

static void large_answers_come_from_the_lease(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "large", 1, NULL, 10000);
    reply_output(request_of(0), 4096, 1, LARGE, 8);
    ends_with(GRPC_STATUS_OK);
    Ingot__V1__InferResponse *read = response();
    assert_int_equal(read->outputs[0]->data.len, LARGE * sizeof(float));
    assert_memory_equal(read->outputs[0]->data.data, worker_lease->base + 4096,
                        LARGE * sizeof(float));
    ingot__v1__infer_response__free_unpacked(read, NULL);
    client_fini(&call);
    T_WAIT(&loop, sched.n_releases == 1);
    assert_int_equal(gateway_counter("zero_copy"), 1);
    assert_int_equal(gateway_counter("outputs_held"), 0);
    stop_all();
}

static void errors_are_translated(void **state)
{
    (void)state;
    static const struct {
        enum cm_err ours;
        grpc_status_code theirs;
        const char *pushback;
    } cases[] = {
        {CM_DEADLINE, GRPC_STATUS_DEADLINE_EXCEEDED, NULL},
        {CM_FULL, GRPC_STATUS_UNAVAILABLE, "50"},
        {CM_LIMIT, GRPC_STATUS_RESOURCE_EXHAUSTED, "-1"},
        {CM_POISON, GRPC_STATUS_INTERNAL, NULL},
        {CM_INVALID, GRPC_STATUS_INVALID_ARGUMENT, NULL},
    };
    start_all(NULL);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        client_infer(&call, channel, "small", 1, context("req-9", 0, false), 10000);
        reply_error(request_of(i), cases[i].ours, "a sentence");
        ends_with(cases[i].theirs);
        assert_string_equal(client_text(&call), "a sentence (request id: req-9)");
        assert_string_equal(client_trailer(&call, "x-request-id"), "req-9");
        const char *pushback = client_trailer(&call, "grpc-retry-pushback-ms");
        if (cases[i].pushback)
            assert_string_equal(pushback, cases[i].pushback);
        else
            assert_null(pushback);
        client_fini(&call);
    }
    stop_all();
}

static void a_cancelled_call_is_a_zombie_until_its_reply(void **state)
{
    (void)state;
    start_all(NULL);
    for (unsigned i = 0; i < 2; i++) {
        client_infer(&call, channel, "small", 1, NULL, 10000);
        uint64_t request = request_of(i);
        grpc_call_cancel(call.core, NULL);
        ends_with(GRPC_STATUS_CANCELLED);
        client_fini(&call);
        T_WAIT(&loop, sched.n_cancels == i + 1);
        assert_true(sched.last_cancel == request);
        T_WAIT(&loop, gateway_counter("zombies") == 1);
        assert_int_equal(gateway_counter("input_blocks"), 1); /* a worker may read them */
        if (i == 0)
            reply_error(request, CM_CANCELLED, "cancelled");
        else
            reply_output(request, 0, 1, SMALL, 11); /* the result was first */
        T_WAIT(&loop, gateway_counter("zombies") == 0);
        assert_int_equal(gateway_counter("input_blocks"), 0);
        assert_int_equal(gateway_counter("in_flight"), 0);
    }
    T_WAIT(&loop, sched.n_releases == 1);
    assert_int_equal(sched.last_release.slab, 11);
    stop_all();
}

static void replies_that_make_no_sense_harm_nobody(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    uint64_t request = request_of(0);
    reply_error(request + 1, CM_INTERNAL, "no such slot's call");
    reply_error(request + (1ull << 32), CM_INTERNAL, "another use of the slot");
    reply_error(UINT64_MAX, CM_INTERNAL, "no slot");
    reply_output(request ^ (1ull << 40), 0, 1, SMALL, 3); /* outputs of nobody: let go */
    T_WAIT(&loop, gateway_counter("bad_replies") == 4);
    T_WAIT(&loop, sched.n_releases == 1);
    assert_false(atomic_load(&call.done));
    reply_output(request, 0, 1, SMALL, 4);
    ends_with(GRPC_STATUS_OK);
    reply_output(request, 0, 1, SMALL, 5); /* twice */
    T_WAIT(&loop, sched.n_releases == 3);
    client_fini(&call);

    struct cm_tensor_desc bad[4];
    for (int i = 0; i < 4; i++)
        bad[i] = output_desc(0, 1, SMALL);
    bad[0].index = 1;
    bad[1].dtype = CM_INT32;
    bad[2].slice.offset = worker_lease->bytes - 4;
    bad[3].slice.offset = UINT64_MAX - 4;
    for (unsigned i = 0; i < 3; i++) {
        client_infer(&call, channel, "small", 1, NULL, 10000);
        reply_desc(request_of(1 + i), &bad[i], 20 + i);
        ends_with(GRPC_STATUS_INTERNAL);
        client_fini(&call);
        T_WAIT(&loop, sched.n_releases == 4 + i);
    }
    /* The record check refuses this one: the gateway leaves the channel and finds it again. */
    client_infer(&call, channel, "small", 1, NULL, 10000);
    unsigned hellos = sched.hellos;
    sched.n_resumed = 0;
    reply_desc(request_of(4), &bad[3], 30);
    T_WAIT(&loop, sched.hellos > hellos && sched.n_resumed > 0);
    reply_output(request_of(5), 0, 1, SMALL, 31);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    stop_all();
}

static void a_stale_answer_is_tried_once_more(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    uint64_t request = request_of(0);
    reply_error(request, CM_STALE, "replaced");
    assert_true(request_of(1) == request);
    reply_output(request, 0, 1, SMALL, 1);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);

    client_infer(&call, channel, "small", 1, NULL, 10000);
    reply_error(request_of(2), CM_STALE, "replaced");
    reply_error(request_of(3), CM_STALE, "replaced again");
    ends_with(GRPC_STATUS_UNAVAILABLE);
    client_fini(&call);

    /* The worker died between its answer and our opening of its lease. */
    client_infer(&call, channel, "small", 1, NULL, 10000);
    struct cm_tensor_desc gone = output_desc(0, 1, SMALL);
    gone.slice.region += 1000000;
    reply_desc(request_of(4), &gone, 40);
    reply_output(request_of(5), 0, 1, SMALL, 41);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    assert_int_equal(gateway_counter("leases_open"), 1);
    stop_all();
}

static void calls_outlive_their_scheduler(void **state)
{
    (void)state;
    start_all(NULL);
    struct client_call other;
    client_infer(&call, channel, "small", 2, NULL, 20000);
    uint64_t request = request_of(0);
    client_infer(&other, channel, "small", 1, NULL, 20000);
    request_of(1);
    grpc_call_cancel(other.core, NULL); /* a zombie that the death ends */
    client_wait(&other);
    client_fini(&other);
    T_WAIT(&loop, sched.n_cancels == 1);
    scheduler_die();
    scheduler_start();
    assert_int_equal(sched.n_before_resumed, 0);
    assert_int_equal(sched.n_held, 0);
    client_infer(&other, channel, "small", 1, NULL, 20000); /* taken while nothing is known */
    scheduler_table(LOADING, false);
    T_WAIT(&loop, gateway_counter("unsent") == 2);
    assert_int_equal(gateway_counter("zombies"), 0);
    assert_int_equal(sched.n_submits, 0);
    scheduler_table(READY, true);
    T_WAIT(&loop, sched.n_submits == 2);
    uint64_t requests[2] = {request_of(0), request_of(1)};
    assert_true(requests[0] == request || requests[1] == request);
    assert_int_equal(sched.submits[0].record.model.id, sched.instance % 1000 + 1);
    for (unsigned i = 0; i < 2; i++)
        reply_output(requests[i], 0, sched.submits[i].record.rows, SMALL, i);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    client_wait(&other);
    assert_int_equal(other.status, GRPC_STATUS_OK);
    client_fini(&other);
    /* Or more: memmgr may have given us the dead scheduler's channel once again. */
    assert_true(gateway_counter("resubmitted") >= 2);
    stop_all();
}

static void what_is_still_being_sent_is_held(void **state)
{
    (void)state;
    start_all(NULL);
    /* The lease cannot be opened while memmgr is away, so the answer stays held. */
    client_infer(&call, channel, "small", 1, NULL, 20000);
    uint64_t request = request_of(0);
    kill_hard(&memmgr_pid);
    reply_output(request, 0, 1, SMALL, 77);
    T_WAIT(&loop, gateway_counter("outputs_held") == 1);
    cm_channel_close(sched.channel);
    sched.channel = NULL;
    sched.n_resumed = 0;
    start_memmgr();
    T_WAIT(&loop, sched.channel && sched.n_resumed > 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    /* Told as held if it was not sent by then; else it must not have been. */
    if (sched.n_held == 1)
        assert_int_equal(sched.last_held.slab, 77);
    T_WAIT(&loop, gateway_counter("outputs_held") == 0);
    stop_all();
}

static void nothing_waits_past_its_deadline(void **state)
{
    (void)state;
    start_all(NULL);
    /* The context's deadline is ours to enforce: the scheduler does not answer. */
    uint64_t begin = cm_now_ns();
    client_infer(&call, channel, "small", 1, context("late", 1000000, false), 20000);
    uint64_t request = request_of(0);
    ends_with(GRPC_STATUS_DEADLINE_EXCEEDED);
    uint64_t took = cm_now_ns() - begin;
    assert_non_null(strstr(client_text(&call), "late"));
    assert_true(took >= 990 * CM_NS_PER_MS && took < 6 * CM_NS_PER_S);
    client_fini(&call);
    T_WAIT(&loop, sched.n_cancels == 1);
    reply_error(request, CM_CANCELLED, "cancelled");
    T_WAIT(&loop, gateway_counter("in_flight") == 0);

    /* The client's own, with no scheduler at all. */
    scheduler_die();
    client_infer(&call, channel, "small", 1, NULL, 300);
    ends_with(GRPC_STATUS_DEADLINE_EXCEEDED);
    client_fini(&call);
    scheduler_start();
    T_WAIT(&loop, gateway_counter("in_flight") == 0);
    assert_int_equal(gateway_counter("unsent"), 0);
    stop_all();
}

static void without_a_deadline_there_is_ours(void **state)
{
    (void)state;
    start_all((const char *[]){"--max-deadline-ms", "300", NULL});
    client_infer(&call, channel, "small", 1, NULL, 0);
    request_of(0);
    ends_with(GRPC_STATUS_DEADLINE_EXCEEDED);
    client_fini(&call);
    stop_all();
}

static void small_calls_have_small_messages(void **state)
{
    static uint8_t bytes[65537]; /* an unknown field's value, in the end */
    (void)state;
    start_all(NULL);
    bytes[0] = 15 << 3 | 2;
    bytes[1] = 0xfd, bytes[2] = 0xff, bytes[3] = 0x03; /* 65533 */
    client_start(&call, channel, "/inference.GRPCInferenceService/ServerLive", bytes, sizeof bytes,
                 NULL, 10000);
    ends_with(GRPC_STATUS_RESOURCE_EXHAUSTED);
    client_fini(&call);
    client_start(&call, channel, "/inference.GRPCInferenceService/ServerLive", bytes,
                 sizeof bytes - 1, NULL, 10000);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    stop_all();
}

/* A client that never sends its message must not keep a slot for ever, whatever the method. */
static void calls_without_a_message_end(void **state)
{
    static const char *const paths[] = {"/inference.GRPCInferenceService/ServerLive",
                                        "/grpc.health.v1.Health/Check",
                                        "/ingot.v1.Inference/Infer"};
    (void)state;
    start_all((const char *[]){"--max-deadline-ms", "300", NULL});
    for (unsigned i = 0; i < 3; i++) {
        client_start(&call, channel, paths[i], NULL, 0, NULL, 0);
        ends_with(GRPC_STATUS_DEADLINE_EXCEEDED);
        client_fini(&call);
    }
    T_WAIT(&loop, gateway_counter("open_calls") == 0);
    stop_all();
}

static void models_decide_by_their_state(void **state)
{
    (void)state;
    fake_reset(NULL);
    start_memmgr();
    start_gateway((const char *[]){"--plaintext", "--drain-ms", "2000", NULL});
    scheduler_start();
    channel = client_connect(NULL);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    ends_with(GRPC_STATUS_UNAVAILABLE); /* nothing is known yet */
    client_fini(&call);
    scheduler_table(LOADING, false);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    assert_string_equal(client_trailer(&call, "grpc-retry-pushback-ms"), "50");
    client_fini(&call);
    scheduler_table(FAILED, true);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    ends_with(GRPC_STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(client_text(&call), "it is broken"));
    client_fini(&call);
    client_infer(&call, channel, "none", 1, NULL, 10000);
    ends_with(GRPC_STATUS_NOT_FOUND);
    client_fini(&call);
    assert_int_equal(sched.n_submits, 0);
    stop_all();
}

static void calls_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    struct client_call calls[3];
    start_all((const char *[]){"--max-calls", "2", NULL});
    for (unsigned i = 0; i < 2; i++) {
        client_infer(&calls[i], channel, "small", 1, NULL, 10000);
        request_of(i);
    }
    client_infer(&call, channel, "small", 1, NULL, 10000);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    assert_non_null(client_trailer(&call, "grpc-retry-pushback-ms"));
    client_fini(&call);
    for (unsigned i = 0; i < 2; i++) {
        reply_output(request_of(i), 0, 1, SMALL, i);
        client_wait(&calls[i]);
        assert_int_equal(calls[i].status, GRPC_STATUS_OK);
        client_fini(&calls[i]);
    }
    T_WAIT(&loop, gateway_counter("in_flight") == 0);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    reply_output(request_of(2), 0, 1, SMALL, 2);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    stop_all();
}

static void a_full_ring_pushes_back_and_loses_nothing(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 1, NULL, 10000);
    reply_output(request_of(0), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    /* 200,000 replies of nobody, each owed a RELEASE, against a ring of a megabyte: they all come.
     */
    for (unsigned i = 0; i < 200000; i++) {
        struct cm_tensor_desc desc = output_desc(0, 1, SMALL);
        while (cm_channel_room(sched.channel) < 4096)
            uv_run(&loop, UV_RUN_ONCE);
        reply_desc(UINT64_MAX, &desc, i);
    }
    T_WAIT(&loop, sched.n_releases == 200001);
    assert_int_equal(gateway_counter("outputs_held"), 0);
    stop_all();
}

static void requests_wait_for_memory(void **state)
{
    (void)state;
    /* 64 MiB of inputs fit the first lease. memmgr sleeps while they come, so that the second
     * lease, asked for when half was used, is late. */
    enum { FIT = 64, ALL = FIT + 2 };
    static struct client_call calls[ALL];
    start_all(NULL);
    T_WAIT(&loop, gateway_counter("input_bytes") == 64u << 20);
    kill(memmgr_pid, SIGSTOP);
    for (unsigned i = 0; i < FIT; i++)
        client_infer(&calls[i], channel, "wide", 4, NULL, 60000);
    T_WAIT(&loop, sched.n_submits == FIT);
    for (unsigned i = FIT; i < ALL; i++)
        client_infer(&calls[i], channel, "wide", 4, NULL, 60000);
    T_WAIT(&loop, gateway_counter("waiting_for_memory") == 2);
    assert_int_equal(gateway_counter("input_blocks"), FIT);
    grpc_call_cancel(calls[FIT].core, NULL); /* one does not wait any more */
    client_wait(&calls[FIT]);
    T_WAIT(&loop, gateway_counter("client_gone") == 1);
    /* One block comes back: the other one gets it, before memmgr wakes. */
    reply_error(request_of(0), CM_INTERNAL, "it failed");
    T_WAIT(&loop, sched.n_submits == FIT + 1);
    T_WAIT(&loop, gateway_counter("waiting_for_memory") == 0);
    kill(memmgr_pid, SIGCONT);
    T_WAIT(&loop, gateway_counter("input_leases") == 2);
    for (unsigned i = 1; i < FIT + 1; i++)
        reply_output(request_of(i), 0, 4, SMALL, i);
    unsigned ok = 0, failed = 0; /* whose request was the first to arrive is not known */
    for (unsigned i = 0; i < ALL; i++) {
        client_wait(&calls[i]);
        ok += calls[i].status == GRPC_STATUS_OK;
        failed += calls[i].status == GRPC_STATUS_INTERNAL;
        client_fini(&calls[i]);
    }
    assert_int_equal(calls[FIT].status, GRPC_STATUS_CANCELLED);
    assert_int_equal(ok, ALL - 2);
    assert_int_equal(failed, 1);
    T_WAIT(&loop, gateway_counter("input_blocks") == 0);
    stop_all();
}

static void memory_has_a_limit(void **state)
{
    (void)state;
    struct client_call first;
    start_all((const char *[]){"--max-tensor-memory-mb", "1", NULL});
    T_WAIT(&loop, gateway_counter("input_bytes") == 1u << 20);
    client_infer(&first, channel, "wide", 4, NULL, 10000);
    request_of(0);
    client_infer(&call, channel, "wide", 4, NULL, 10000);
    ends_with(GRPC_STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(client_trailer(&call, "grpc-retry-pushback-ms"), "-1");
    client_fini(&call);
    reply_output(request_of(0), 0, 4, SMALL, 0);
    client_wait(&first);
    assert_int_equal(first.status, GRPC_STATUS_OK);
    client_fini(&first);
    stop_all();
}

/* A TCP connection to the gateway that says nothing. */
static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port =
                                      htons((uint16_t)atoi(strrchr(grpc_address, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void service_resumes_after_a_flood_of_connections(void **state)
{
    (void)state;
    enum { FLOOD = 150 };
    int links[FLOOD];
    start_all(NULL);
    struct rlimit few = {64, 64};
    assert_int_equal(prlimit(gateway_pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < FLOOD; i++)
        links[i] = dial();
    T_WAIT(&loop, gateway_counter("connections_exhausted") > 0);
    for (int i = 0; i < FLOOD; i++)
        close(links[i]);
    T_WAIT(&loop, gateway_counter("connections") < 10);
    client_infer(&call, channel, "small", 1, NULL, 20000);
    reply_output(request_of(0), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    stop_all();
}

static void connections_have_a_cap(void **state)
{
    (void)state;
    int links[8];
    start_all((const char *[]){"--max-connections", "4", NULL});
    client_infer(&call, channel, "small", 1, NULL, 10000);
    reply_output(request_of(0), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    for (int i = 0; i < 8; i++)
        links[i] = dial();
    T_WAIT(&loop, gateway_counter("connections_capped") == 5);
    client_infer(&call, channel, "small", 1, NULL, 10000); /* whoever is in is served */
    reply_output(request_of(1), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    for (int i = 0; i < 8; i++)
        close(links[i]);
    stop_all();
}

/* Until the gateway has heard that it is to stop. */
static void until_refused(void)
{
    struct client_call refused;
    for (;;) {
        client_infer(&refused, channel, "none", 1, NULL, 1000);
        client_wait(&refused);
        grpc_status_code status = refused.status;
        client_fini(&refused);
        if (status == GRPC_STATUS_UNAVAILABLE)
            return;
        assert_int_equal(status, GRPC_STATUS_NOT_FOUND);
    }
}

/* The stop has been asked for: a second signal would end it at once. */
static void gateway_ends(void)
{
    int status = 0;
    T_WAIT(&loop, waitpid(gateway_pid, &status, WNOHANG) == gateway_pid);
    gateway_pid = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_stop_waits_for_open_calls(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 1, NULL, 20000);
    uint64_t request = request_of(0);
    kill(gateway_pid, SIGTERM);
    until_refused();
    assert_false(atomic_load(&call.done));
    reply_output(request, 0, 1, SMALL, 1);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

static void a_stop_does_not_wait_for_ever(void **state)
{
    (void)state;
    start_all((const char *[]){"--drain-ms", "200", NULL});
    client_infer(&call, channel, "small", 1, NULL, 20000);
    request_of(0);       /* never answered */
    int silent = dial(); /* a peer that would not say goodbye */
    uint64_t begin = cm_now_ns();
    assert_int_equal(stop_softly(&gateway_pid), 0);
    assert_true(cm_now_ns() - begin < 8 * CM_NS_PER_S);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    client_fini(&call);
    close(silent);
    grpc_channel_destroy(channel);
}

/* The answer's bytes still point into the worker's memory when the stop's time is up. */
static void a_stop_does_not_wait_for_a_reader(void **state)
{
    (void)state;
    start_all((const char *[]){"--drain-ms", "300", NULL});
    client_reads = false;
    client_infer(&call, channel, "large", 3, NULL, 20000);
    client_reads = true;
    reply_output(request_of(0), 0, 3, LARGE, 1);
    T_WAIT(&loop, gateway_counter("zero_copy") == 1);
    assert_int_equal(gateway_counter("outputs_held"), 1);
    kill(gateway_pid, SIGTERM);
    gateway_ends();
    client_wait(&call);
    client_fini(&call);
    grpc_channel_destroy(channel);
}

/* A scheduler that does not read: its ring is full of RELEASEs, more wait for room. */
static void a_stop_does_not_wait_for_room(void **state)
{
    (void)state;
    start_all(NULL);
    uint64_t give_up = cm_now_ns() + 20 * CM_NS_PER_S;
    struct cm_tensor_desc desc = output_desc(0, 1, SMALL);
    for (unsigned i = 0; i < 60000; i++) {
        while (cm_channel_room(sched.channel) < 4096 && cm_now_ns() < give_up)
            sched_yield();
        reply_desc(UINT64_MAX, &desc, i);
    }
    int status = 0;
    kill(gateway_pid, SIGTERM);
    while (waitpid(gateway_pid, &status, WNOHANG) == 0 && cm_now_ns() < give_up)
        sched_yield();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    gateway_pid = 0;
    grpc_channel_destroy(channel);
}

/* Memory is refused, and the message comes when the stop has begun: it cannot wait for more. */
static void a_stop_does_not_wait_for_memory(void **state)
{
    (void)state;
    fake_reset(NULL);
    start_memmgr_with("16M");
    start_gateway((const char *[]){"--plaintext", "--drain-ms", "2000", NULL});
    scheduler_start();
    scheduler_table(READY, true);
    channel = client_connect(NULL);
    client_start(&call, channel, "/ingot.v1.Inference/Infer", NULL, 0, NULL, 20000);
    T_WAIT(&loop, gateway_counter("in_flight") == 1);
    kill(gateway_pid, SIGTERM);
    until_refused();
    client_say_infer(&call, "small", 1);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

static grpc_status_code check_health(const char *service, int *ret_status)
{
    uint8_t bytes[64];
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    size_t length = grpc__health__v1__health_check_request__pack(&request, bytes);
    client_start(&call, channel, "/grpc.health.v1.Health/Check", bytes, length, NULL, 10000);
    client_wait(&call);
    grpc_status_code code = call.status;
    uint8_t *message = client_message(&call, &length);
    *ret_status = -1;
    if (message) {
        Grpc__Health__V1__HealthCheckResponse *read =
            grpc__health__v1__health_check_response__unpack(NULL, length, message);
        *ret_status = (int)read->status;
        grpc__health__v1__health_check_response__free_unpacked(read, NULL);
    }
    free(message);
    client_fini(&call);
    return code;
}

static bool health_is(const char *service, int wanted)
{
    int status;
    return check_health(service, &status) == GRPC_STATUS_OK && status == wanted;
}

static void health_follows_the_models(void **state)
{
    (void)state;
    int status;
    fake_reset(NULL);
    start_memmgr();
    start_gateway((const char *[]){"--plaintext", "--drain-ms", "2000", NULL});
    channel = client_connect(NULL);
    assert_true(health_is("", 2));
    assert_true(health_is("liveness", 1));
    assert_int_equal(check_health("model/small", &status), GRPC_STATUS_NOT_FOUND);
    scheduler_start();
    scheduler_table(LOADING, false);
    assert_true(health_is("", 2));
    assert_true(health_is("model/small", 2));
    scheduler_table(READY, true);
    T_WAIT(&loop, health_is("", 1));
    assert_true(health_is("model/small", 1));
    assert_true(health_is("small", 1));
    assert_true(health_is("readiness", 1));
    scheduler_die();
    assert_true(health_is("", 1)); /* a scheduler may be away for a moment */
    T_WAIT(&loop, health_is("", 2));
    stop_all();
}

/* Clients that watch must not take the place of those that ask. */
static void watches_leave_room_for_checks(void **state)
{
    enum { MOST = 6 };
    struct client_call watches[MOST + 1];
    (void)state;
    start_all((const char *[]){"--max-connections", "6", NULL});
    for (unsigned i = 0; i <= MOST; i++) {
        client_start(&watches[i], channel, "/grpc.health.v1.Health/Watch", "", 0, NULL, 0);
        T_WAIT(&loop, gateway_counter("streams") > i || atomic_load(&watches[i].done));
    }
    client_wait(&watches[MOST]);
    assert_int_equal(watches[MOST].status, GRPC_STATUS_UNAVAILABLE);
    assert_true(health_is("", 1));
    for (unsigned i = 0; i <= MOST; i++) {
        if (i < MOST)
            assert_false(atomic_load(&watches[i].done));
        grpc_call_cancel(watches[i].core, NULL);
        client_wait(&watches[i]);
        client_fini(&watches[i]);
    }
    T_WAIT(&loop, gateway_counter("streams") == 0);
    stop_all();
}

/* ---- the admin port ---- */

/* One request on a connection of its own; the status code, and the body in body. */
static int http(const char *request, char body[16384])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strrchr(http_address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    char text[256];
    int length = snprintf(text, sizeof text,
                          "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", request);
    assert_int_equal(write(fd, text, (size_t)length), length);
    size_t have = 0;
    ssize_t n;
    while (have < 16383 && (n = read(fd, body + have, 16383 - have)) > 0)
        have += (size_t)n;
    close(fd);
    body[have] = 0;
    assert_true(strncmp(body, "HTTP/1.1 ", 9) == 0);
    int status = atoi(body + 9);
    char *end = strstr(body, "\r\n\r\n");
    assert_non_null(end);
    memmove(body, end + 4, strlen(end + 4) + 1);
    return status;
}

static void the_admin_port_answers(void **state)
{
    char body[16384];
    (void)state;
    start_all(NULL);
    assert_int_equal(http("GET /livez", body), 200);
    assert_int_equal(http("GET /readyz", body), 200);
    assert_int_equal(http("GET /nothing", body), 404);
    assert_int_equal(http("POST /livez", body), 405);
    assert_int_equal(http("GET /health", body), 200);
    json_t *health = json_loads(body, 0, NULL);
    assert_true(json_is_true(json_object_get(health, "live")));
    assert_true(json_is_true(json_object_get(health, "ready")));
    assert_int_equal(json_array_size(json_object_get(health, "models")), 3);
    json_decref(health);

    client_infer(&call, channel, "small", 1, NULL, 20000);
    uint64_t request = request_of(0);
    kill(gateway_pid, SIGTERM);
    until_refused();
    assert_int_equal(http("GET /readyz", body), 503);
    assert_string_equal(body, "draining\n");
    assert_int_equal(http("GET /livez", body), 200);
    reply_output(request, 0, 1, SMALL, 1);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

/* ---- TLS ---- */

static char cert_file[T_PATH_MAX * 2], key_file[T_PATH_MAX * 2], ca_file[T_PATH_MAX * 2];

/* A client's certificate with its key, as texts. */
struct identity {
    char *cert, *key;
};

static struct identity identity_make(void)
{
    char cert[T_PATH_MAX * 2], key[T_PATH_MAX * 2];
    snprintf(cert, sizeof cert, "%s/client.pem", base_dir);
    snprintf(key, sizeof key, "%s/client.key", base_dir);
    pem_make_pair(cert, key);
    return (struct identity){pem_read_text(cert), pem_read_text(key)};
}

static void identity_fini(struct identity *who)
{
    free(who->cert);
    free(who->key);
}

/* A new connection that trusts root: is it served? */
static bool served(const char *root, const struct identity *who)
{
    grpc_ssl_pem_key_cert_pair pair = {0};
    if (who)
        pair = (grpc_ssl_pem_key_cert_pair){who->key, who->cert};
    grpc_channel *fresh =
        client_connect(grpc_ssl_credentials_create(root, who ? &pair : NULL, NULL, NULL));
    client_start(&call, fresh, "/inference.GRPCInferenceService/ServerLive", "", 0, NULL, 10000);
    client_wait(&call);
    grpc_status_code status = call.status;
    client_fini(&call);
    grpc_channel_destroy(fresh);
    assert_true(status == GRPC_STATUS_OK || status == GRPC_STATUS_UNAVAILABLE);
    return status == GRPC_STATUS_OK;
}

static void start_tls(bool mutual)
{
    fake_reset(NULL);
    start_memmgr();
    snprintf(cert_file, sizeof cert_file, "%s/cert.pem", base_dir);
    snprintf(key_file, sizeof key_file, "%s/key.pem", base_dir);
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", base_dir);
    pem_make_pair(cert_file, key_file);
    start_gateway((const char *[]){"--tls-cert", cert_file, "--tls-key", key_file,
                                   mutual ? "--tls-client-ca" : NULL, ca_file, NULL});
    scheduler_start();
}

static void certificates_are_read_again(void **state)
{
    char new_cert[T_PATH_MAX * 2], new_key[T_PATH_MAX * 2];
    (void)state;
    start_tls(false);
    char *old = pem_read_text(cert_file);
    assert_true(served(old, NULL));
    snprintf(new_cert, sizeof new_cert, "%s/new.pem", base_dir);
    snprintf(new_key, sizeof new_key, "%s/new.key", base_dir);
    pem_make_pair(new_cert, new_key);
    char *new = pem_read_text(new_cert);
    /* One of the two is replaced first: until the other is, the old pair serves. */
    assert_int_equal(rename(new_key, key_file), 0);
    assert_true(served(old, NULL));
    assert_int_equal(gateway_counter("tls_reload_failures"), 1);
    assert_int_equal(rename(new_cert, cert_file), 0);
    assert_true(served(new, NULL));
    assert_false(served(old, NULL));
    assert_int_equal(gateway_counter("tls_reloads"), 1);
    pem_write_text(cert_file, "no certificate");
    assert_true(served(new, NULL));
    assert_int_equal(unlink(cert_file), 0);
    assert_true(served(new, NULL));
    pem_write_text(cert_file, new);
    assert_true(served(new, NULL));
    assert_int_equal(gateway_counter("tls_reloads"), 2);
    free(new);
    free(old);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

static void client_authorities_are_read_again(void **state)
{
    (void)state;
    struct identity first = identity_make(), second = identity_make();
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", base_dir);
    pem_write_text(ca_file, first.cert);
    start_tls(true);
    char *root = pem_read_text(cert_file);
    assert_true(served(root, &first));
    assert_false(served(root, &second));
    assert_false(served(root, NULL));
    pem_write_text(ca_file, second.cert);
    assert_true(served(root, &second));
    assert_false(served(root, &first));
    free(root);
    identity_fini(&first);
    identity_fini(&second);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_goes_through),
        cmocka_unit_test(large_answers_come_from_the_lease),
        cmocka_unit_test(errors_are_translated),
        cmocka_unit_test(a_cancelled_call_is_a_zombie_until_its_reply),
        cmocka_unit_test(replies_that_make_no_sense_harm_nobody),
        cmocka_unit_test(a_stale_answer_is_tried_once_more),
        cmocka_unit_test(calls_outlive_their_scheduler),
        cmocka_unit_test(what_is_still_being_sent_is_held),
        cmocka_unit_test(nothing_waits_past_its_deadline),
        cmocka_unit_test(without_a_deadline_there_is_ours),
        cmocka_unit_test(small_calls_have_small_messages),
        cmocka_unit_test(calls_without_a_message_end),
        cmocka_unit_test(models_decide_by_their_state),
        cmocka_unit_test(calls_beyond_the_limit_are_refused),
        cmocka_unit_test(a_full_ring_pushes_back_and_loses_nothing),
        cmocka_unit_test(requests_wait_for_memory),
        cmocka_unit_test(memory_has_a_limit),
        cmocka_unit_test(service_resumes_after_a_flood_of_connections),
        cmocka_unit_test(connections_have_a_cap),
        cmocka_unit_test(a_stop_waits_for_open_calls),
        cmocka_unit_test(a_stop_does_not_wait_for_ever),
        cmocka_unit_test(a_stop_does_not_wait_for_a_reader),
        cmocka_unit_test(a_stop_does_not_wait_for_room),
        cmocka_unit_test(a_stop_does_not_wait_for_memory),
        cmocka_unit_test(health_follows_the_models),
        cmocka_unit_test(watches_leave_room_for_checks),
        cmocka_unit_test(the_admin_port_answers),
        cmocka_unit_test(certificates_are_read_again),
        cmocka_unit_test(client_authorities_are_read_again),
    };
    int failed = cmocka_run_group_tests(tests, fake_setup, NULL);
    fake_reset(NULL);
    fake_teardown(NULL);
    return failed;
}
