/* Two real processes and millions of records: order, contents, no lost wake-up. The parent consumes
 * and answers on the second ring of a channel's memory, so that both directions run at once. */
#include "common/channel.h"
#include "common/check.h"
#include "common/ring.h"
#include "tests/harness/t.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPACITY 65536u

#ifdef __SANITIZE_THREAD__
#define RECORDS 300000ull
#else
#define RECORDS 3000000ull
#endif

struct side {
    struct cm_channel_fds fds;
    struct cm_ring_producer out;
    struct cm_ring_consumer in;
    alignas(8) unsigned char buffer[512];
};

static void side_open(struct side *side, struct cm_channel_fds fds)
{
    size_t bytes = sizeof(struct cm_channel_header) + 2 * cm_ring_bytes(CAPACITY);
    unsigned char *map =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fds.memory, 0);
    CM_ASSERT(map != MAP_FAILED);
    unsigned char *a = map + sizeof(struct cm_channel_header), *b = a + cm_ring_bytes(CAPACITY);
    side->fds = fds;
    cm_ring_producer_init(&side->out, (void *)(fds.first ? a : b), CAPACITY);
    cm_ring_consumer_init(&side->in, (void *)(fds.first ? b : a), CAPACITY);
}

static void publish(struct side *side)
{
    if (cm_ring_publish(&side->out))
        CM_ASSERT(write(side->fds.bell_out, &(uint64_t){1}, 8) == 8);
}

/* What record n contains: both processes compute it. */
static uint32_t make_record(uint64_t n, unsigned char bytes[512])
{
    uint64_t state = n * 2 + 1;
    uint32_t length = (uint32_t)(8 + t_random(&state) % 100);
    for (uint32_t at = 0; at < length; at += 8) {
        uint64_t word = at == 0 ? n : t_random(&state);
        memcpy(bytes + at, &word, 8);
    }
    return length;
}

/* Reads one record into side->buffer; sleeps if there is none. */
static uint32_t read_blocking(struct side *side)
{
    for (;;) {
        struct cm_frame frame;
        struct cm_error err;
        enum cm_err rc = cm_ring_read(&side->in, &frame, side->buffer, sizeof side->buffer, &err);
        if (rc == CM_OK)
            return frame.payload_length;
        CM_ASSERT(rc == CM_AGAIN);
        cm_ring_release(&side->in);
        publish(side);
        if (!cm_ring_sleep(&side->in))
            continue;
        struct pollfd wait = {.fd = side->fds.bell_in, .events = POLLIN};
        CM_ASSERT(poll(&wait, 1, T_BOUND_MS) == 1); /* else a wake-up was lost */
        uint64_t rung;
        CM_ASSERT(read(side->fds.bell_in, &rung, sizeof rung) == sizeof rung);
        cm_ring_awake(&side->in);
    }
}

/* Writes one record; waits for the peer to make room. */
static void write_blocking(struct side *side, const void *bytes, uint32_t length)
{
    enum cm_err rc;
    while ((rc = cm_ring_write(&side->out, 1, bytes, length, NULL, 0)) == CM_FULL) {
        publish(side);
        sched_yield();
    }
    CM_ASSERT(rc == CM_OK);
}

/* The child: sends all records in bursts, and at the end reads the parent's sum. */
static void child(struct cm_channel_fds fds)
{
    struct side side;
    unsigned char bytes[512];
    side_open(&side, fds);
    uint64_t seed = 3, sum = 0;
    for (uint64_t n = 0; n < RECORDS; n++) {
        uint32_t length = make_record(n, bytes);
        write_blocking(&side, bytes, length);
        for (uint32_t i = 0; i < length; i++)
            sum = sum * 31 + bytes[i];
        if (t_random(&seed) % 32 == 0)
            publish(&side);
    }
    publish(&side);
    uint64_t theirs;
    CM_ASSERT(read_blocking(&side) == sizeof theirs);
    memcpy(&theirs, side.buffer, sizeof theirs);
    _exit(theirs == sum ? 0 : 1);
}

static void test_stream(void **state)
{
    (void)state;
    struct cm_channel_fds ends[2];
    struct cm_error err;
    assert_int_equal(cm_channel_make(1, CAPACITY, &err, ends), CM_OK);
    pid_t pid = fork();
    if (pid == 0)
        child(ends[1]);
    struct side side;
    side_open(&side, ends[0]);
    unsigned char expected[512];
    uint64_t sum = 0;
    for (uint64_t n = 0; n < RECORDS; n++) {
        uint32_t length = read_blocking(&side);
        if (length != make_record(n, expected) || memcmp(side.buffer, expected, length) != 0)
            fail_msg("record %llu is not what was sent", (unsigned long long)n);
        for (uint32_t i = 0; i < length; i++)
            sum = sum * 31 + side.buffer[i];
    }
    cm_ring_release(&side.in);
    write_blocking(&side, &sum, sizeof sum);
    publish(&side);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cm_channel_fds_close(&ends[0]);
    cm_channel_fds_close(&ends[1]);
}

/* The child answers each record with itself. One record in flight: both sides sleep at each turn.
 */
static void echo(struct cm_channel_fds fds, uint64_t count)
{
    struct side side;
    side_open(&side, fds);
    for (uint64_t n = 0; n < count; n++) {
        uint32_t length = read_blocking(&side);
        write_blocking(&side, side.buffer, length);
        publish(&side);
    }
    _exit(0);
}

static void test_ping_pong(void **state)
{
    (void)state;
    const uint64_t count = RECORDS / 60;
    struct cm_channel_fds ends[2];
    struct cm_error err;
    assert_int_equal(cm_channel_make(1, CAPACITY, &err, ends), CM_OK);
    pid_t pid = fork();
    if (pid == 0)
        echo(ends[1], count);
    struct side side;
    side_open(&side, ends[0]);
    unsigned char bytes[512];
    for (uint64_t n = 0; n < count; n++) {
        uint32_t length = make_record(n, bytes);
        write_blocking(&side, bytes, length);
        publish(&side);
        assert_int_equal(read_blocking(&side), length);
        assert_memory_equal(side.buffer, bytes, length);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cm_channel_fds_close(&ends[0]);
    cm_channel_fds_close(&ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_ping_pong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
