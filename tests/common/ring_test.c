/* The ring in one process: order, wrap, full, empty, limits, hostile peers, two threads, and the
 * race between publish and sleep. */
#include "common/ring.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/record.h"
#include "tests/harness/t.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct pair {
    struct cm_ring_shared *shared;
    struct cm_ring_producer out;
    struct cm_ring_consumer in;
};

static alignas(8) unsigned char buffer[CM_RECORD_MAX];

/* start: the indices' common value, to test their wrap without writing 4 GiB. */
static void begin(struct pair *p, uint32_t capacity, uint32_t start)
{
    p->shared = aligned_alloc(64, cm_ring_bytes(capacity));
    memset(p->shared, 0, cm_ring_bytes(capacity));
    cm_ring_producer_init(&p->out, p->shared, capacity);
    cm_ring_consumer_init(&p->in, p->shared, capacity);
    atomic_store(&p->shared->written, start);
    atomic_store(&p->shared->read, start);
    p->out.written = p->out.published = p->out.read = start;
    p->in.read = p->in.written = start;
}

static void end(struct pair *p)
{
    free(p->shared);
}

static enum cm_err read_one(struct pair *p, struct cm_frame *frame)
{
    struct cm_error err;
    return cm_ring_read(&p->in, frame, buffer, sizeof buffer, &err);
}

/* All lengths, many times round, in two parts, starting at every kind of index. */
static void test_order_and_wrap(void **state)
{
    (void)state;
    const uint32_t starts[] = {0, 8, 4096, UINT32_MAX - 7, UINT32_MAX - 2047, 0x80000000u};
    static unsigned char payload[1024];
    for (size_t s = 0; s < CM_COUNT_OF(starts); s++) {
        struct pair p;
        begin(&p, 4096, starts[s]);
        uint64_t seed = 5 + s;
        for (unsigned round = 0; round < 3000; round++) {
            uint32_t length = (uint32_t)(t_random(&seed) % 1000);
            uint32_t cut = length ? (uint32_t)(t_random(&seed) % length) : 0;
            for (uint32_t i = 0; i < length; i++)
                payload[i] = (unsigned char)(round * 31 + i);
            uint8_t type = (uint8_t)(1 + round % 9);
            struct cm_frame frame;
            assert_int_equal(read_one(&p, &frame), CM_AGAIN);
            assert_int_equal(cm_ring_write(&p.out, type, payload, cut, payload + cut, length - cut),
                             CM_OK);
            assert_int_equal(read_one(&p, &frame), CM_AGAIN); /* not published yet */
            assert_false(cm_ring_publish(&p.out));
            assert_int_equal(read_one(&p, &frame), CM_OK);
            assert_int_equal(frame.type, type);
            assert_int_equal(frame.payload_length, length);
            assert_memory_equal(buffer, payload, length);
            cm_ring_release(&p.in);
        }
        end(&p);
    }
}

static void test_full_and_room(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, 4096, UINT32_MAX - 1023);
    uint64_t value = 0;
    assert_int_equal(cm_ring_room(&p.out), 4096);
    enum cm_err rc;
    while ((rc = cm_ring_write(&p.out, 2, &value, sizeof value, NULL, 0)) == CM_OK)
        value++;
    assert_int_equal(rc, CM_FULL);
    assert_int_equal(value, 4096 / 24);
    assert_int_equal(cm_ring_room(&p.out), 4096 % 24);
    cm_ring_publish(&p.out);
    struct cm_frame frame;
    assert_int_equal(read_one(&p, &frame), CM_OK);
    /* Read, but not given back yet. */
    assert_int_equal(cm_ring_write(&p.out, 2, &value, sizeof value, NULL, 0), CM_FULL);
    cm_ring_release(&p.in);
    assert_int_equal(cm_ring_write(&p.out, 2, &value, sizeof value, NULL, 0), CM_OK);
    assert_int_equal(cm_ring_write(&p.out, 2, &value, sizeof value, NULL, 0), CM_FULL);
    cm_ring_publish(&p.out);
    for (uint64_t expected = 1; expected <= value; expected++) {
        assert_int_equal(read_one(&p, &frame), CM_OK);
        uint64_t got;
        memcpy(&got, buffer, sizeof got);
        assert_int_equal(got, expected);
    }
    assert_int_equal(read_one(&p, &frame), CM_AGAIN);
    end(&p);
}

static void test_limits(void **state)
{
    (void)state;
    struct pair p;
    struct cm_frame frame;
    struct cm_error err;
    begin(&p, 4096, 0);
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, 4096 / 4 - 16, NULL, 0), CM_OK);
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, 4096 / 4 - 15, NULL, 0), CM_LIMIT);
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, UINT32_MAX, buffer, UINT32_MAX), CM_LIMIT);
    cm_ring_publish(&p.out);
    assert_int_equal(cm_ring_read(&p.in, &frame, buffer, 100, &err), CM_LIMIT);
    end(&p);
    begin(&p, 4 * 1024 * 1024, 0);
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, CM_RECORD_MAX, NULL, 0), CM_OK);
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, CM_RECORD_MAX, buffer, 1), CM_LIMIT);
    cm_ring_publish(&p.out);
    assert_int_equal(read_one(&p, &frame), CM_OK);
    end(&p);
}

static void test_hostile_producer_index(void **state)
{
    (void)state;
    /* ahead of the consumer, who is at 4096 and has seen up to there */
    const int64_t wrong[] = {4, 1, 4096 + 8, 65536, -8, -4096, INT32_MAX, INT32_MIN, 7};
    for (size_t i = 0; i < CM_COUNT_OF(wrong); i++) {
        struct pair p;
        struct cm_frame frame;
        begin(&p, 4096, 4096);
        atomic_store(&p.shared->written, 4096 + (uint32_t)wrong[i]);
        assert_int_equal(read_one(&p, &frame), CM_CORRUPT);
        end(&p);
    }
    /* Possible indices over garbage: less than a frame, then a frame of zeros. */
    struct pair p;
    struct cm_frame frame;
    begin(&p, 4096, 4096);
    atomic_store(&p.shared->written, 4096 + 8);
    assert_int_equal(read_one(&p, &frame), CM_CORRUPT);
    end(&p);
    begin(&p, 4096, 4096);
    atomic_store(&p.shared->written, 4096 + 64);
    assert_int_equal(read_one(&p, &frame), CM_CORRUPT);
    end(&p);
}

static void test_hostile_consumer_index(void **state)
{
    (void)state;
    const int64_t wrong[] = {1, 4, 8, 4096, -4096 - 8, -8000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < CM_COUNT_OF(wrong); i++) {
        struct pair p;
        begin(&p, 4096, 80000);
        while (cm_ring_write(&p.out, 1, buffer, 8, NULL, 0) == CM_OK)
            ;
        cm_ring_publish(&p.out);
        /* relative to what was published: it can be at most there, and not behind the start */
        atomic_store(&p.shared->read, p.out.published + (uint32_t)wrong[i]);
        assert_int_equal(cm_ring_write(&p.out, 1, buffer, 8, NULL, 0), CM_CORRUPT);
        assert_int_equal(cm_ring_room(&p.out), 0);
        end(&p);
    }
    /* Backwards by a possible distance is as wrong. */
    struct pair p;
    struct cm_frame frame;
    begin(&p, 4096, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(cm_ring_write(&p.out, 1, buffer, 8, NULL, 0), CM_OK);
    cm_ring_publish(&p.out);
    for (int i = 0; i < 50; i++)
        assert_int_equal(read_one(&p, &frame), CM_OK);
    cm_ring_release(&p.in);
    assert_true(cm_ring_room(&p.out) > 0);
    atomic_store(&p.shared->read, 24 * 10);
    assert_int_equal(cm_ring_room(&p.out), 0);
    end(&p);
}

/* Each byte of a published record, each bit: never CM_OK with other bytes, never a crash. */
static void test_hostile_bytes(void **state)
{
    (void)state;
    const char payload[] = "a record of some bytes";
    for (uint32_t bit = 0; bit < 8 * (16 + sizeof payload); bit++) {
        struct pair p;
        struct cm_frame frame;
        begin(&p, 4096, 4096 - 24); /* wraps in the payload */
        assert_int_equal(cm_ring_write(&p.out, 4, payload, sizeof payload, NULL, 0), CM_OK);
        assert_int_equal(cm_ring_write(&p.out, 4, payload, sizeof payload, NULL, 0), CM_OK);
        cm_ring_publish(&p.out);
        p.shared->data[(4096 - 24 + bit / 8) % 4096] ^= (unsigned char)(1u << bit % 8);
        enum cm_err rc = read_one(&p, &frame);
        assert_int_equal(rc, bit / 8 == 4 ? CM_UNSUPPORTED : CM_CORRUPT);
        end(&p);
    }
}

static void test_hostile_length(void **state)
{
    (void)state;
    const uint32_t lengths[] = {64, 4096, CM_RECORD_MAX, CM_RECORD_MAX + 1, UINT32_MAX, INT32_MAX};
    for (size_t i = 0; i < CM_COUNT_OF(lengths); i++) {
        struct pair p;
        struct cm_frame frame;
        begin(&p, 4096, 0);
        assert_int_equal(cm_ring_write(&p.out, 4, buffer, 40, NULL, 0), CM_OK);
        cm_ring_publish(&p.out);
        memcpy(p.shared->data + offsetof(struct cm_frame, payload_length), &lengths[i], 4);
        assert_int_equal(read_one(&p, &frame), CM_CORRUPT);
        end(&p);
    }
}

static void test_sleep_says_no_when_there_is_mail(void **state)
{
    (void)state;
    struct pair p;
    struct cm_frame frame;
    begin(&p, 4096, 0);
    assert_true(cm_ring_sleep(&p.in));
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, 8, NULL, 0), CM_OK);
    assert_true(cm_ring_publish(&p.out));  /* the one bell */
    assert_false(cm_ring_publish(&p.out)); /* nothing new */
    assert_int_equal(cm_ring_write(&p.out, 1, buffer, 8, NULL, 0), CM_OK);
    assert_false(cm_ring_publish(&p.out)); /* rung for this sleep already */
    cm_ring_awake(&p.in);
    assert_int_equal(read_one(&p, &frame), CM_OK);
    assert_false(cm_ring_sleep(&p.in)); /* one is left */
    assert_int_equal(atomic_load(&p.shared->asleep), 0);
    assert_int_equal(read_one(&p, &frame), CM_OK);
    assert_true(cm_ring_sleep(&p.in));
    end(&p);
}

/* --- Two threads --- */

struct traffic {
    struct pair p;
    int bell;
    uint64_t count;
    unsigned flush_every;
    uint64_t bells;
};

static void produce(void *arg)
{
    struct traffic *t = arg;
    uint64_t seed = 99;
    for (uint64_t n = 0; n < t->count; n++) {
        uint64_t words[8];
        uint32_t length = (uint32_t)(8 + t_random(&seed) % (sizeof words - 7));
        for (size_t i = 0; i < CM_COUNT_OF(words); i++)
            words[i] = n * 8 + i;
        enum cm_err rc;
        while ((rc = cm_ring_write(&t->p.out, 1, words, length, NULL, 0)) == CM_FULL) {
            if (cm_ring_publish(&t->p.out))
                t->bells += (uint64_t)(write(t->bell, &(uint64_t){1}, 8) == 8);
            sched_yield();
        }
        CM_ASSERT(rc == CM_OK);
        if (n % t->flush_every == 0 && cm_ring_publish(&t->p.out))
            t->bells += (uint64_t)(write(t->bell, &(uint64_t){1}, 8) == 8);
    }
    if (cm_ring_publish(&t->p.out))
        t->bells += (uint64_t)(write(t->bell, &(uint64_t){1}, 8) == 8);
}

/* Sleeps whenever the ring is empty. A lost wake-up shows as the poll's bound. */
static void run_traffic(uint64_t count, unsigned flush_every)
{
    struct traffic t = {.count = count, .flush_every = flush_every};
    begin(&t.p, 4096, UINT32_MAX - 4095);
    t.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uv_thread_t thread;
    assert_int_equal(uv_thread_create(&thread, produce, &t), 0);
    uint64_t sleeps = 0;
    for (uint64_t n = 0; n < count;) {
        struct cm_frame frame;
        enum cm_err rc = read_one(&t.p, &frame);
        if (rc == CM_OK) {
            uint64_t first;
            memcpy(&first, buffer, sizeof first);
            assert_int_equal(first, n * 8);
            n++;
            continue;
        }
        assert_int_equal(rc, CM_AGAIN);
        cm_ring_release(&t.p.in);
        if (!cm_ring_sleep(&t.p.in))
            continue;
        struct pollfd wait = {.fd = t.bell, .events = POLLIN};
        if (poll(&wait, 1, T_BOUND_MS) != 1)
            fail_msg("no wake-up after record %llu", (unsigned long long)n);
        uint64_t rung;
        assert_int_equal(read(t.bell, &rung, sizeof rung), sizeof rung);
        cm_ring_awake(&t.p.in);
        sleeps++;
    }
    uv_thread_join(&thread);
    assert_true(t.bells >= sleeps); /* never more sleeps than bells */
    close(t.bell);
    end(&t.p);
}

static void test_threads_batched(void **state)
{
    (void)state;
    run_traffic(300000, 16);
}

/* A publish for each record and a consumer that is as fast: nearly every record meets a sleeper. */
static void test_threads_sleep_race(void **state)
{
    (void)state;
    run_traffic(100000, 1);
}

/* The same race alone, one record a round, both sides started at the same moment: in no round may
 * the consumer sleep while the producer does not ring. In a stream the next record would hide it.
 * With release and acquire instead of sequential consistency some of the rounds are lost. */
struct duel {
    struct pair p;
    atomic_uint round; /* the consumer starts a round */
    atomic_uint done;  /* the producer ended it */
    unsigned rounds;
    bool rang;
};

/* Spins, so that both sides go within nanoseconds; yields where there is one core for both. */
static void wait_for(atomic_uint *value, unsigned wanted)
{
    for (unsigned spins = 0; atomic_load_explicit(value, memory_order_acquire) != wanted; spins++)
        if (spins % 4096 == 4095)
            sched_yield();
}

static void duel_produce(void *arg)
{
    struct duel *d = arg;
    for (unsigned round = 1; round <= d->rounds; round++) {
        CM_ASSERT(cm_ring_write(&d->p.out, 1, &round, sizeof round, NULL, 0) == CM_OK);
        wait_for(&d->round, round);
        d->rang = cm_ring_publish(&d->p.out);
        atomic_store_explicit(&d->done, round, memory_order_release);
    }
}

/* One thread's worth of rounds; adds to the counts. */
static void run_duel(unsigned rounds, unsigned *slept, unsigned *lost)
{
    struct duel d = {.rounds = rounds};
    begin(&d.p, 4096, 0);
    uv_thread_t thread;
    assert_int_equal(uv_thread_create(&thread, duel_produce, &d), 0);
    for (unsigned round = 1; round <= d.rounds; round++) {
        struct cm_frame frame;
        atomic_store_explicit(&d.round, round, memory_order_release);
        for (volatile unsigned pause = round % 32; pause > 0; pause--)
            ; /* the two do not take the same time to get here */
        bool sleeps = cm_ring_sleep(&d.p.in);
        wait_for(&d.done, round);
        *slept += sleeps;
        *lost += sleeps && !d.rang;
        cm_ring_awake(&d.p.in);
        assert_int_equal(read_one(&d.p, &frame), CM_OK);
        assert_int_equal(read_one(&d.p, &frame), CM_AGAIN);
        cm_ring_release(&d.p.in);
    }
    uv_thread_join(&thread);
    end(&d.p);
}

/* 300000 rounds, or as many as a busy machine manages in two seconds. */
static void test_sleep_or_bell(void **state)
{
    (void)state;
    unsigned slept = 0, lost = 0;
    uint64_t until_ns = cm_now_ns() + 2 * CM_NS_PER_S;
    for (int i = 0; i < 60 && (i == 0 || cm_now_ns() < until_ns); i++)
        run_duel(5000, &slept, &lost);
    if (lost > 0)
        fail_msg("%u of %u sleepers would not have been woken", lost, slept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_wrap),
        cmocka_unit_test(test_full_and_room),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_hostile_producer_index),
        cmocka_unit_test(test_hostile_consumer_index),
        cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_hostile_length),
        cmocka_unit_test(test_sleep_says_no_when_there_is_mail),
        cmocka_unit_test(test_threads_batched),
        cmocka_unit_test(test_threads_sleep_race),
        cmocka_unit_test(test_sleep_or_bell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
