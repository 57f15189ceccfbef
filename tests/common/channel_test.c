/* Channels: two processes, death by kill -9, what was written before a hang-up, closing from every
 * callback, a sender on another thread, hostile descriptors and hostile peers. */
#include "common/channel.h"

#include "common/check.h"
#include "common/record.h"
#include "tests/harness/alloc.h"
#include "tests/harness/t.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPACITY 65536u

/* One end on a loop, with what its callbacks saw. */
struct end {
    struct cm_channel *channel;
    uv_loop_t *loop;
    uint64_t received; /* CANCEL records, whose request must count up */
    unsigned drained;
    unsigned closed;
    enum cm_err reason;
    uint64_t close_at_record; /* 0 = never */
    bool close_at_drained;
    bool echo;
};

static void end_close(struct end *end)
{
    cm_channel_close(end->channel);
    end->channel = NULL;
}

static enum cm_err send_number(struct cm_channel *channel, uint64_t number)
{
    struct cm_record_cancel cancel = {.request = number};
    return cm_channel_send(channel, CM_RECORD_CANCEL, &cancel, sizeof cancel, NULL, 0);
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    struct end *end = ctx;
    const struct cm_record_cancel *cancel = payload;
    CM_ASSERT(channel == end->channel && end->closed == 0);
    CM_ASSERT(type == CM_RECORD_CANCEL && length == sizeof *cancel);
    CM_ASSERT(cancel->request == end->received);
    end->received++;
    if (end->echo)
        CM_ASSERT(send_number(channel, cancel->request) == CM_OK);
    if (end->received == end->close_at_record)
        end_close(end);
}

static void on_drained(void *ctx, struct cm_channel *channel)
{
    struct end *end = ctx;
    CM_ASSERT(channel == end->channel);
    end->drained++;
    if (end->echo)
        cm_channel_flush(channel);
    if (end->close_at_drained)
        end_close(end);
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct end *end = ctx;
    CM_ASSERT(channel == end->channel);
    end->closed++;
    end->reason = reason;
    end_close(end);
}

static void end_open(struct end *end, uv_loop_t *loop, struct cm_channel_fds *fds)
{
    struct cm_error err;
    const struct cm_peer peer = {CM_ROLE_WORKER, 4, 17};
    end->loop = loop;
    CM_ASSERT(cm_channel_open(fds, peer, &err, &end->channel) == CM_OK);
    CM_ASSERT(fds->memory == -1 && fds->lifeline == -1);
    CM_ASSERT(cm_channel_peer(end->channel).instance == 17);
}

static void end_start(struct end *end)
{
    const struct cm_channel_events events = {on_record, on_drained, on_closed, end};
    CM_ASSERT(cm_channel_start(end->channel, end->loop, &events) == CM_OK);
}

static void make(struct cm_channel_fds ends[2])
{
    struct cm_error err;
    assert_int_equal(cm_channel_make(5, CAPACITY, &err, ends), CM_OK);
}

/* Both ends on one loop, started. */
static void begin_pair(uv_loop_t *loop, struct end *a, struct end *b)
{
    struct cm_channel_fds ends[2];
    memset(a, 0, sizeof *a);
    memset(b, 0, sizeof *b);
    assert_int_equal(uv_loop_init(loop), 0);
    make(ends);
    end_open(a, loop, &ends[0]);
    end_open(b, loop, &ends[1]);
    end_start(a);
    end_start(b);
}

static void send_all(struct end *end, uint64_t from, uint64_t count)
{
    for (uint64_t n = from; n < from + count; n++)
        assert_int_equal(send_number(end->channel, n), CM_OK);
    cm_channel_flush(end->channel);
}

/* --- Two processes --- */

static void run_echo(struct cm_channel_fds *fds)
{
    uv_loop_t loop;
    struct end end = {.echo = true};
    CM_ASSERT(uv_loop_init(&loop) == 0);
    end_open(&end, &loop, fds);
    end_start(&end);
    uv_run(&loop, UV_RUN_DEFAULT); /* ends when the parent closes */
    CM_ASSERT(uv_loop_close(&loop) == 0);
    _exit(end.closed == 1 && end.reason == CM_CLOSED ? 0 : 1);
}

static void expect_exit(pid_t pid, int code)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void test_echo_between_processes(void **state)
{
    (void)state;
    struct cm_channel_fds ends[2];
    make(ends);
    pid_t pid = fork();
    if (pid == 0) {
        cm_channel_fds_close(&ends[0]);
        run_echo(&ends[1]);
    }
    cm_channel_fds_close(&ends[1]);
    uv_loop_t loop;
    struct end end = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    end_open(&end, &loop, &ends[0]);
    end_start(&end);
    uint64_t sent = 0;
    for (int turn = 0; turn < 300; turn++) {
        uint64_t burst = (uint64_t)turn % 100 + 1;
        send_all(&end, sent, burst);
        sent += burst;
        T_WAIT(&loop, end.received == sent);
    }
    end_close(&end);
    t_loop_finish(&loop);
    assert_int_equal(end.closed, 0); /* no callback after close */
    expect_exit(pid, 0);
}

static void test_kill_9_is_seen_once(void **state)
{
    (void)state;
    struct cm_channel_fds ends[2];
    make(ends);
    pid_t pid = fork();
    if (pid == 0) {
        struct end end = {0};
        cm_channel_fds_close(&ends[0]);
        end_open(&end, NULL, &ends[1]);
        for (uint64_t n = 0; n < 1000; n++)
            CM_ASSERT(send_number(end.channel, n) == CM_OK);
        cm_channel_flush(end.channel);
        for (;;)
            pause();
    }
    cm_channel_fds_close(&ends[1]);
    uv_loop_t loop;
    struct end end = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    end_open(&end, &loop, &ends[0]);
    end_start(&end);
    T_WAIT(&loop, end.received == 1000);
    assert_int_equal(end.closed, 0);
    kill(pid, SIGKILL);
    T_WAIT(&loop, end.closed);
    assert_int_equal(end.reason, CM_CLOSED);
    t_loop_finish(&loop);
    assert_int_equal(end.closed, 1);
    waitpid(pid, NULL, 0);
}

/* More than one wake-up's worth, all written and the writer gone before the reader even starts. */
static void test_records_before_hang_up_come_first(void **state)
{
    (void)state;
    struct cm_channel_fds ends[2];
    make(ends);
    pid_t pid = fork();
    if (pid == 0) {
        struct end end = {0};
        cm_channel_fds_close(&ends[0]);
        end_open(&end, NULL, &ends[1]);
        for (uint64_t n = 0; n < 2500; n++)
            CM_ASSERT(send_number(end.channel, n) == CM_OK);
        cm_channel_flush(end.channel);
        _exit(0);
    }
    cm_channel_fds_close(&ends[1]);
    expect_exit(pid, 0);
    uv_loop_t loop;
    struct end end = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    end_open(&end, &loop, &ends[0]);
    end_start(&end);
    T_WAIT(&loop, end.closed);
    assert_int_equal(end.received, 2500);
    assert_int_equal(end.reason, CM_CLOSED);
    t_loop_finish(&loop);
}

/* --- One loop --- */

static void test_unpublished_is_not_seen(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct end a, b;
    begin_pair(&loop, &a, &b);
    send_all(&a, 0, 1);
    T_WAIT(&loop, b.received == 1);
    assert_int_equal(send_number(a.channel, 1), CM_OK);
    uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(b.received, 1);
    cm_channel_flush(a.channel);
    T_WAIT(&loop, b.received == 2);
    end_close(&a);
    T_WAIT(&loop, b.closed);
    t_loop_finish(&loop);
}

static void test_full_ring_and_turns(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct end a, b;
    begin_pair(&loop, &a, &b);
    uint64_t sent = 0;
    while (send_number(a.channel, sent) == CM_OK)
        sent++;
    assert_int_equal(sent, CAPACITY / 24);
    assert_int_equal(send_number(a.channel, sent), CM_FULL);
    assert_true(cm_channel_room(a.channel) < 24);
    cm_channel_flush(a.channel);
    T_WAIT(&loop, b.received == sent);
    /* 2730 records are more than two turns of 1024. */
    assert_true(b.drained >= 3);
    assert_int_equal(cm_channel_room(a.channel), CAPACITY);
    send_all(&a, sent, 1);
    T_WAIT(&loop, b.received == sent + 1);
    end_close(&a);
    T_WAIT(&loop, b.closed);
    t_loop_finish(&loop);
}

static void test_close_from_callbacks(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        uv_loop_t loop;
        struct end a, b;
        begin_pair(&loop, &a, &b);
        b.close_at_record = kind == 0 ? 3 : 0;
        b.close_at_drained = kind == 1;
        send_all(&a, 0, 10);
        if (kind == 2)
            end_close(&a); /* b closes in on_closed, a before any callback */
        T_WAIT(&loop, b.channel == NULL);
        assert_int_equal(b.received, kind == 0 ? 3 : 10);
        if (kind < 2) {
            T_WAIT(&loop, a.closed);
            assert_int_equal(a.reason, CM_CLOSED);
            assert_int_equal(b.closed, 0);
        }
        t_loop_finish(&loop);
    }
}

/* An owner that does not close in on_closed: sends say so, nothing is called again. */
static void keep_open(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct end *end = ctx;
    (void)channel;
    end->closed++;
    end->reason = reason;
}

static void test_send_after_hang_up(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct cm_channel_fds ends[2];
    struct end a = {0}, b = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    make(ends);
    end_open(&a, &loop, &ends[0]);
    end_open(&b, &loop, &ends[1]);
    end_close(&b); /* never started */
    const struct cm_channel_events events = {on_record, NULL, keep_open, &a};
    assert_int_equal(cm_channel_start(a.channel, &loop, &events), CM_OK);
    T_WAIT(&loop, a.closed);
    assert_int_equal(send_number(a.channel, 0), CM_CLOSED);
    cm_channel_flush(a.channel);
    for (int i = 0; i < 5; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(a.closed, 1);
    end_close(&a);
    t_loop_finish(&loop);
    cm_channel_close(NULL);
}

struct sender {
    struct cm_channel *channel;
    uint64_t count;
};

static void send_from_thread(void *arg)
{
    struct sender *sender = arg;
    for (uint64_t n = 0; n < sender->count; n++) {
        enum cm_err rc;
        while ((rc = send_number(sender->channel, n)) == CM_FULL) {
            cm_channel_flush(sender->channel);
            sched_yield();
        }
        CM_ASSERT(rc == CM_OK);
        if (n % 7 == 0)
            cm_channel_flush(sender->channel);
    }
    cm_channel_flush(sender->channel);
}

/* The producing side of a belongs to the thread, its consuming side to the loop. */
static void test_sender_on_another_thread(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct end a, b;
    begin_pair(&loop, &a, &b);
    struct sender sender = {a.channel, 100000};
    uv_thread_t thread;
    assert_int_equal(uv_thread_create(&thread, send_from_thread, &sender), 0);
    send_all(&b, 0, 500);
    T_WAIT(&loop, b.received == sender.count && a.received == 500);
    uv_thread_join(&thread);
    end_close(&b);
    T_WAIT(&loop, a.closed);
    t_loop_finish(&loop);
}

/* --- Hostile --- */

/* What the peer may do to its own end, by hand. */
static void expect_reason(void (*attack)(struct cm_channel_fds *, struct cm_ring_producer *),
                          enum cm_err reason, uint64_t received)
{
    uv_loop_t loop;
    struct end a = {0};
    struct cm_channel_fds ends[2];
    assert_int_equal(uv_loop_init(&loop), 0);
    make(ends);
    end_open(&a, &loop, &ends[0]);
    end_start(&a);
    size_t bytes = sizeof(struct cm_channel_header) + 2 * cm_ring_bytes(CAPACITY);
    unsigned char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ends[1].memory, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    struct cm_ring_producer out;
    cm_ring_producer_init(
        &out, (void *)(map + sizeof(struct cm_channel_header) + cm_ring_bytes(CAPACITY)), CAPACITY);
    attack(&ends[1], &out);
    T_WAIT(&loop, a.closed);
    assert_int_equal(a.reason, reason);
    assert_int_equal(a.received, received);
    munmap(map, bytes);
    cm_channel_fds_close(&ends[1]);
    t_loop_finish(&loop);
    assert_int_equal(a.closed, 1);
}

static void ring_bell(struct cm_channel_fds *fds)
{
    assert_int_equal(write(fds->bell_out, &(uint64_t){1}, 8), 8);
}

static void put(struct cm_ring_producer *out, uint8_t type, uint32_t length)
{
    static const unsigned char zeros[64];
    assert_int_equal(cm_ring_write(out, type, zeros, length, NULL, 0), CM_OK);
    cm_ring_publish(out);
}

static void attack_type(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    put(out, CM_RECORD_CANCEL, 8); /* request 0: delivered */
    put(out, 99, 8);
    ring_bell(fds);
}

static void attack_record(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    put(out, CM_RECORD_SUBMIT, 64); /* no rows */
    ring_bell(fds);
}

static void attack_version(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    put(out, CM_RECORD_CANCEL, 8);
    out->shared->data[offsetof(struct cm_frame, version)] = 2;
    ring_bell(fds);
}

static void attack_index(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    atomic_store(&out->shared->written, 3);
    ring_bell(fds);
}

static void attack_lifeline(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    (void)out;
    assert_int_equal(write(fds->lifeline, "x", 1), 1);
}

/* Nonsense, then gone: the nonsense is the reason. */
static void attack_and_die(struct cm_channel_fds *fds, struct cm_ring_producer *out)
{
    put(out, CM_RECORD_CANCEL, 8);
    put(out, CM_RECORD_CANCEL, 9);
    cm_channel_fds_close(fds);
}

static void test_hostile_peer(void **state)
{
    (void)state;
    expect_reason(attack_type, CM_CORRUPT, 1);
    expect_reason(attack_record, CM_CORRUPT, 0);
    expect_reason(attack_version, CM_UNSUPPORTED, 0);
    expect_reason(attack_index, CM_CORRUPT, 0);
    expect_reason(attack_lifeline, CM_CORRUPT, 0);
    expect_reason(attack_and_die, CM_CORRUPT, 1);
}

/* Bells without records are only noise: no callback, and the next record arrives all the same. */
static void test_false_bells(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct cm_channel_fds ends[2];
    struct end a = {0}, b = {0};
    assert_int_equal(uv_loop_init(&loop), 0);
    make(ends);
    int bell = dup(ends[1].bell_out);
    end_open(&a, &loop, &ends[0]);
    end_open(&b, &loop, &ends[1]);
    end_start(&a);
    end_start(&b);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(write(bell, &(uint64_t){1}, 8), 8);
        uv_run(&loop, UV_RUN_ONCE);
    }
    /* So full that a flush cannot add to it. */
    assert_int_equal(write(bell, &(uint64_t){UINT64_MAX - 1}, 8), 8);
    send_all(&b, 0, 1);
    T_WAIT(&loop, a.received == 1);
    assert_int_equal(a.drained, 1);
    close(bell);
    end_close(&a);
    T_WAIT(&loop, b.closed);
    t_loop_finish(&loop);
}

/* A memfd of size bytes with header at its start. */
static int fake_memory(const struct cm_channel_header *header, size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    size_t n = size < sizeof *header ? size : sizeof *header;
    assert_int_equal(pwrite(fd, header, n, 0), n);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static enum cm_err open_with(int memory)
{
    struct cm_channel_fds ends[2];
    struct cm_channel *channel = NULL;
    struct cm_error err = {0};
    make(ends);
    close(ends[0].memory);
    ends[0].memory = memory;
    enum cm_err rc = cm_channel_open(&ends[0], (struct cm_peer){0}, &err, &channel);
    /* Taken also on failure. */
    assert_int_equal(ends[0].memory, -1);
    assert_int_equal(ends[0].bell_in, -1);
    if (rc == CM_OK)
        cm_channel_close(channel);
    else
        assert_true(err.text[0] != '\0');
    cm_channel_fds_close(&ends[1]);
    return rc;
}

static void test_hostile_memory(void **state)
{
    (void)state;
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const size_t size = sizeof(struct cm_channel_header) + 2 * cm_ring_bytes(4096);
    const struct cm_channel_header good = {
        .magic = CM_CHANNEL_MAGIC, .layout = CM_CHANNEL_LAYOUT, .capacity = 4096};
    struct cm_channel_header bad = good;
    assert_int_equal(open_with(fake_memory(&good, size, all)), CM_OK);
    assert_int_equal(open_with(fake_memory(&good, size, 0)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, size, F_SEAL_SHRINK)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, size, F_SEAL_SHRINK | F_SEAL_GROW)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, 0, all)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, 63, all)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, size - 1, all)), CM_CORRUPT);
    assert_int_equal(open_with(fake_memory(&good, size + 1, all)), CM_CORRUPT);
    bad.magic++;
    assert_int_equal(open_with(fake_memory(&bad, size, all)), CM_CORRUPT);
    bad = good;
    bad.layout++;
    assert_int_equal(open_with(fake_memory(&bad, size, all)), CM_UNSUPPORTED);
    bad = good;
    bad.reserved = 1;
    assert_int_equal(open_with(fake_memory(&bad, size, all)), CM_CORRUPT);
    const uint32_t capacities[] = {0, 8, 4095, 4097, 8192, 1u << 27, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < CM_COUNT_OF(capacities); i++) {
        bad = good;
        bad.capacity = capacities[i];
        assert_int_equal(open_with(fake_memory(&bad, size, all)), CM_CORRUPT);
    }
    assert_int_equal(open_with(open("/dev/null", O_RDWR | O_CLOEXEC)), CM_CORRUPT);
    assert_int_equal(open_with(-1), CM_CORRUPT);
}

static void test_make_refuses_sizes(void **state)
{
    (void)state;
    struct cm_channel_fds ends[2];
    struct cm_error err;
    const uint32_t capacities[] = {0, 2048, 4097, 1u << 27, UINT32_MAX};
    for (size_t i = 0; i < CM_COUNT_OF(capacities); i++)
        assert_int_equal(cm_channel_make(1, capacities[i], &err, ends), CM_INVALID);
}

static unsigned open_fds(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_no_memory(void **state)
{
    (void)state;
    unsigned before = open_fds();
    for (unsigned n = 1;; n++) {
        struct cm_channel_fds ends[2];
        struct cm_channel *channel = NULL;
        struct cm_error err;
        make(ends);
        t_alloc_fail_at(n);
        enum cm_err rc = cm_channel_open(&ends[0], (struct cm_peer){0}, &err, &channel);
        bool failed = t_alloc_failed();
        cm_channel_fds_close(&ends[1]);
        if (!failed) {
            assert_int_equal(rc, CM_OK);
            cm_channel_close(channel);
            assert_true(n > 1);
            break;
        }
        assert_int_equal(rc, CM_NOMEM);
    }
    assert_int_equal(open_fds(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo_between_processes),
        cmocka_unit_test(test_kill_9_is_seen_once),
        cmocka_unit_test(test_records_before_hang_up_come_first),
        cmocka_unit_test(test_unpublished_is_not_seen),
        cmocka_unit_test(test_full_ring_and_turns),
        cmocka_unit_test(test_close_from_callbacks),
        cmocka_unit_test(test_send_after_hang_up),
        cmocka_unit_test(test_sender_on_another_thread),
        cmocka_unit_test(test_hostile_peer),
        cmocka_unit_test(test_false_bells),
        cmocka_unit_test(test_hostile_memory),
        cmocka_unit_test(test_make_refuses_sizes),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
