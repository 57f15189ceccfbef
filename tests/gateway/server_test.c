/* The gateway as a process between a real memmgr, a scheduler and a worker that obey this test, and
 * a gRPC client: what it sends when, and that every call ends once with the right status. */
#include "tests/gateway/server_kit.h"

#include "common/clock.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

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
    bytes[1] = 0xfc; /* 65532: a byte less, and still a whole message */
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
    };
    int failed = cmocka_run_group_tests(tests, fake_setup, NULL);
    fake_reset(NULL);
    fake_teardown(NULL);
    return failed;
}
