/* The device thread between a scheduler and a main loop that the test plays: batches, abandoned
 * items, waiting for leases and for output memory, a scheduler's death, the end. */
#include "common/check.h"
#include "common/clock.h"
#include "gpu-worker/device.h"
#include "gpu-worker/repo.h"
#include "tests/harness/t.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PIXELS   64
#define IN_BYTES (PIXELS * sizeof(float))
#define OUT      (1u << 20)
#define REGION   42 /* of the gateway's lease */

static const struct cm_model_ref digits = {7, 3};

static struct fixture {
    uv_loop_t loop;
    struct cm_mailbox mailbox;
    struct wk_device *device;
    struct cm_channel *channel; /* the scheduler's end */
    struct mm_lease input, output;
    void *file, *weights;
    unsigned mails[32]; /* seen, by kind */
    bool answer_leases, refuse_leases, give_regions;
    uint64_t need_bytes;
    /* DONEs, in order. */
    unsigned n_done;
    uint32_t status[16], n_items[16], item_status[16][4];
    struct cm_slab_ref slab[16][4];
    bool hung_up;
    uint64_t schedulers; /* so many have come */
} f;

static void tell(struct wk_mail what)
{
    struct wk_mail *mail = wk_mail_new(what.kind);
    assert_non_null(mail);
    *mail = what;
    assert_true(wk_device_post(f.device, mail));
}

static void on_mail(void *ctx, struct cm_mail *item)
{
    struct wk_mail *mail = cm_container_of(item, struct wk_mail, mail);
    (void)ctx;
    f.mails[mail->kind]++;
    if (mail->kind == WK_MAIL_OPEN_LEASE && f.answer_leases)
        tell((struct wk_mail){.kind = WK_MAIL_LEASE,
                              .number = mail->number,
                              .generation = mail->generation,
                              .lease = f.refuse_leases ? NULL : &f.input});
    if (mail->kind == WK_MAIL_NEED_REGION) {
        f.need_bytes = mail->number;
        if (f.give_regions)
            tell((struct wk_mail){
                .kind = WK_MAIL_REGION, .number = mail->number, .lease = &f.output});
    }
    free(mail);
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    const struct cm_record_done *done = payload;
    (void)ctx, (void)channel, (void)length;
    assert_int_equal(type, CM_RECORD_DONE);
    assert_true(f.n_done < 16 && done->n_items <= 4);
    f.status[f.n_done] = done->status;
    f.n_items[f.n_done] = done->n_items;
    const struct cm_done_item *item = cm_done_first(done);
    for (unsigned i = 0; i < done->n_items; i++, item = cm_done_next(item)) {
        f.item_status[f.n_done][i] = item->status;
        f.slab[f.n_done][i] = item->slab;
    }
    f.n_done++;
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    (void)ctx, (void)channel, (void)reason;
    f.hung_up = true;
}

static void open_channel(void)
{
    const struct cm_channel_events events = {on_record, NULL, on_closed, NULL};
    struct cm_channel_fds ends[2];
    struct cm_channel *theirs = NULL;
    struct cm_error err = {0};
    struct cm_peer scheduler = {CM_ROLE_SCHEDULER, 0, f.schedulers};
    assert_int_equal(cm_channel_make(1, 1u << 20, &err, ends), CM_OK);
    assert_int_equal(
        cm_channel_open(&ends[0], (struct cm_peer){CM_ROLE_WORKER, 0, 5}, &err, &f.channel), CM_OK);
    assert_int_equal(cm_channel_open(&ends[1], scheduler, &err, &theirs), CM_OK);
    assert_int_equal(cm_channel_start(f.channel, &f.loop, &events), CM_OK);
    tell((struct wk_mail){.kind = WK_MAIL_CHANNEL, .channel = theirs});
}

static void connect_scheduler(void)
{
    unsigned before = f.mails[WK_MAIL_CHANNEL_READY];
    f.schedulers++;
    open_channel();
    T_WAIT(&f.loop, f.mails[WK_MAIL_CHANNEL_READY] > before);
}

static void load_model(void)
{
    struct cm_error err = {0};
    struct wk_model *model = NULL;
    size_t length = 0;
    struct wk_engine *engine = wk_device_engine(f.device);
    assert_int_equal(
        wk_repo_read(SOURCE_DIR "/deploy/demo/models", "digits", 1, &err, &f.file, &length, NULL),
        CM_OK);
    assert_int_equal(wk_model_parse(engine, f.file, length, NULL, &err, &model), CM_OK);
    assert_int_equal(posix_memalign(&f.weights, WK_ALIGN, wk_model_weights_bytes(model)), 0);
    assert_int_equal(wk_model_pack(model, f.weights, &err), CM_OK);
    assert_int_equal(wk_model_attach(model, f.weights, &err), CM_OK);
    tell((struct wk_mail){.kind = WK_MAIL_MODEL, .model = model, .ref = digits, .max_rows = 8});
    T_WAIT(&f.loop, f.mails[WK_MAIL_MODEL_READY] == 1);
}

static int set_up(void **state)
{
    struct wk_device_options options = {.owner = &f.mailbox, .patience_ms = 500};
    struct cm_error err = {0};
    (void)state;
    memset(&f, 0, sizeof f);
    f.answer_leases = f.give_regions = true;
    f.input = (struct mm_lease){.region = REGION, .generation = 1, .bytes = 1u << 16};
    f.output = (struct mm_lease){.region = 43, .generation = 1, .writable = true, .bytes = OUT};
    assert_int_equal(posix_memalign((void **)&f.input.base, 4096, f.input.bytes), 0);
    assert_int_equal(posix_memalign((void **)&f.output.base, 4096, OUT), 0);
    memset(f.input.base, 0, f.input.bytes);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(cm_mailbox_init(&f.mailbox, &f.loop, on_mail, NULL), CM_OK);
    assert_int_equal(wk_device_create(&options, &err, &f.device), CM_OK);
    tell((struct wk_mail){.kind = WK_MAIL_IDENTITY, .number = 5});
    load_model();
    connect_scheduler();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tell((struct wk_mail){.kind = WK_MAIL_STOP});
    T_WAIT(&f.loop, f.mails[WK_MAIL_STOPPED] == 1);
    T_WAIT(&f.loop, f.hung_up);
    cm_channel_close(f.channel);
    wk_device_destroy(f.device);
    cm_mailbox_close(&f.mailbox);
    t_loop_finish(&f.loop);
    free(f.input.base);
    free(f.output.base);
    free(f.weights);
    free(f.file);
    return 0;
}

/* EXECUTE of items requests of one row each; not visible before flush. */
static void execute(uint64_t batch, uint16_t items, uint64_t region, uint64_t deadline_ns)
{
    struct {
        struct cm_execute_item item;
        struct cm_tensor_desc input;
    } parts[4];
    struct cm_record_execute head = {.batch = batch,
                                     .deadline_ns = deadline_ns,
                                     .model = digits,
                                     .rows = items,
                                     .n_items = items,
                                     .n_inputs = 1};
    assert_true(items <= 4);
    for (unsigned i = 0; i < items; i++) {
        memset(&parts[i], 0, sizeof parts[i]);
        parts[i].item = (struct cm_execute_item){.output_mask = 1, .gateway = 9, .rows = 1};
        parts[i].input = (struct cm_tensor_desc){.slice = {.region = region,
                                                           .generation = 1,
                                                           .offset = i * IN_BYTES,
                                                           .length = IN_BYTES},
                                                 .dims = {1, 1, 8, 8},
                                                 .dtype = CM_FP32,
                                                 .rank = 4};
    }
    assert_int_equal(cm_channel_send(f.channel, CM_RECORD_EXECUTE, &head, sizeof head, parts,
                                     (uint32_t)(items * sizeof parts[0])),
                     CM_OK);
}

static void send_record(uint8_t type, const void *record, uint32_t length)
{
    assert_int_equal(cm_channel_send(f.channel, type, record, length, NULL, 0), CM_OK);
}

/* A counter makes no event on this loop: look again and again, with the usual bound. */
static void wait_for_holds(uint64_t wanted)
{
    uint64_t end = cm_now_ns() + T_BOUND_MS * CM_NS_PER_MS;
    while (atomic_load(&wk_device_counters(f.device)->holds) != wanted) {
        if (cm_now_ns() > end)
            fail_msg("%d ms went by without %llu holds", T_BOUND_MS, (unsigned long long)wanted);
        uv_run(&f.loop, UV_RUN_NOWAIT);
        sched_yield();
    }
}

static void abandoned_items_are_left_out(void **state)
{
    struct cm_record_abandon records[] = {{.batch = 2, .item = 1},  {.batch = 3, .item = 0},
                                          {.batch = 3, .item = 1},  {.batch = 3, .item = 1},
                                          {.batch = 99, .item = 0}, {.batch = 1, .item = 77}};
    (void)state;
    execute(1, 1, REGION, CM_NEVER);
    execute(2, 3, REGION, CM_NEVER);
    execute(3, 2, REGION, CM_NEVER);
    for (unsigned i = 0; i < CM_COUNT_OF(records); i++)
        send_record(CM_RECORD_ABANDON, &records[i], sizeof records[i]);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 3);
    assert_int_equal(f.status[0], CM_OK);
    assert_int_equal(f.status[1], CM_OK);
    assert_int_equal(f.item_status[1][0], CM_OK);
    assert_int_equal(f.item_status[1][1], CM_CANCELLED);
    assert_int_equal(f.item_status[1][2], CM_OK);
    assert_int_equal(f.status[2], CM_CANCELLED);
}

static void a_batch_waits_for_its_lease(void **state)
{
    (void)state;
    f.answer_leases = false;
    execute(1, 1, REGION, CM_NEVER);
    execute(2, 2, REGION, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_OPEN_LEASE] == 1); /* asked for once */
    assert_int_equal(f.n_done, 0);
    tell((struct wk_mail){
        .kind = WK_MAIL_LEASE, .number = REGION, .generation = 1, .lease = &f.input});
    T_WAIT(&f.loop, f.n_done == 2);
    assert_int_equal(f.status[0] | f.status[1], CM_OK);
    tell((struct wk_mail){
        .kind = WK_MAIL_REVOKED, .number = REGION, .generation = 1, .lease = &f.input});
    T_WAIT(&f.loop, f.mails[WK_MAIL_CLOSED_LEASE] == 1);
}

/* Nobody answers: not forever. */
static void no_batch_waits_forever(void **state)
{
    (void)state;
    f.answer_leases = false;
    execute(1, 1, REGION, CM_NEVER);
    execute(2, 1, REGION, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 2);
    assert_int_equal(f.status[0], CM_UNAVAILABLE);
    assert_int_equal(f.status[1], CM_UNAVAILABLE);
}

static void a_refused_lease_fails_its_batch(void **state)
{
    (void)state;
    f.refuse_leases = true;
    execute(1, 2, 1234, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 1);
    assert_int_equal(f.status[0], CM_STALE);
}

static void unknown_models_and_late_batches_are_refused(void **state)
{
    (void)state;
    execute(1, 1, REGION, 1);
    struct cm_record_execute head = {
        .batch = 2, .deadline_ns = CM_NEVER, .model = {8, 3}, .rows = 1, .n_items = 1};
    struct cm_execute_item item = {.output_mask = 1, .gateway = 9, .rows = 1};
    assert_int_equal(
        cm_channel_send(f.channel, CM_RECORD_EXECUTE, &head, sizeof head, &item, sizeof item),
        CM_OK);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 2);
    assert_int_equal(f.status[0], CM_DEADLINE);
    assert_int_equal(f.status[1], CM_STALE);
}

static void output_memory_is_waited_for_or_refused(void **state)
{
    (void)state;
    f.give_regions = false;
    execute(1, 1, REGION, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.need_bytes > 0);
    assert_int_equal(f.n_done, 0);
    struct wk_mail refusal = {.kind = WK_MAIL_REGION, .number = f.need_bytes};
    cm_fail(&refusal.error, CM_LIMIT, "over the budget");
    tell(refusal);
    T_WAIT(&f.loop, f.n_done == 1);
    assert_int_equal(f.status[0], CM_UNAVAILABLE);
}

static void a_new_scheduler_learns_what_is_held(void **state)
{
    (void)state;
    execute(1, 3, REGION, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 1);
    wait_for_holds(3);
    struct cm_record_release release = {f.slab[0][0]};
    send_record(CM_RECORD_RELEASE, &release, sizeof release);
    cm_channel_flush(f.channel);
    wait_for_holds(2);
    cm_channel_close(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_CHANNEL_LOST] == 1);
    connect_scheduler();
    struct cm_record_held held = {f.slab[0][1]};
    struct cm_record_resumed resumed = {9};
    send_record(CM_RECORD_HELD, &held, sizeof held);
    send_record(CM_RECORD_RESUMED, &resumed, sizeof resumed);
    cm_channel_flush(f.channel);
    wait_for_holds(1);
    struct cm_record_drop drop = {9};
    send_record(CM_RECORD_DROP, &drop, sizeof drop);
    cm_channel_flush(f.channel);
    wait_for_holds(0);
    assert_int_equal(atomic_load(&wk_device_counters(f.device)->output_bytes_used), 0);
}

static void a_living_scheduler_frees_nothing(void **state)
{
    (void)state;
    struct cm_record_resumed resumed = {9};
    execute(1, 3, REGION, CM_NEVER);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.n_done == 1);
    wait_for_holds(3);
    /* It has cut the worker off. */
    cm_channel_close(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_CHANNEL_LOST] == 1);
    open_channel();
    send_record(CM_RECORD_RESUMED, &resumed, sizeof resumed);
    send_record(CM_RECORD_RESUMED, &resumed, sizeof resumed);
    cm_channel_flush(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_CUT_OFF] == 1);
    assert_int_equal(f.mails[WK_MAIL_CHANNEL_READY], 1);
    assert_int_equal(atomic_load(&wk_device_counters(f.device)->holds), 3);
    /* It was about to die: its channel hangs up, and the next scheduler is welcome. */
    cm_channel_close(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_CHANNEL_LOST] == 2);
    open_channel();
    cm_channel_close(f.channel);
    T_WAIT(&f.loop, f.mails[WK_MAIL_CHANNEL_LOST] == 3);
    assert_int_equal(f.mails[WK_MAIL_CUT_OFF], 1);
    connect_scheduler();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(abandoned_items_are_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_batch_waits_for_its_lease, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_batch_waits_forever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refused_lease_fails_its_batch, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unknown_models_and_late_batches_are_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(output_memory_is_waited_for_or_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_new_scheduler_learns_what_is_held, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_living_scheduler_frees_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
