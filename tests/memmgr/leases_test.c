/* Leases between real processes: sharing, limits, and what a kill -9 in each state leaves behind.
 */
#include "tests/memmgr/node.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024ull * 1024)

static void test_share(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *owner = agent_start(node, "worker", 0);
    struct agent *reader = agent_start(node, "gateway", 0);
    assert_true(reader->instance > owner->instance);
    struct lease mine = agent_acquire(owner, 100000);
    assert_int_equal(mine.bytes, 131072);
    agent_say(owner, "fill %u 7", mine.slot);
    agent_wait(owner, "filled");
    struct lease theirs = agent_open(reader, mine);
    struct lease again = agent_open(reader, mine);
    agent_say(reader, "check %u 7", theirs.slot);
    agent_wait(reader, "same");
    agent_say(owner, "fill %u 8", mine.slot);
    agent_wait(owner, "filled");
    agent_say(reader, "check %u 8", again.slot);
    agent_wait(reader, "same");
    struct ledger ledger = agent_ledger(reader);
    assert_int_equal(ledger.total, 131072);
    assert_int_equal(ledger.resident, 131072);
    agent_say(reader, "close %u", theirs.slot);
    agent_say(reader, "close %u", again.slot);
    agent_say(owner, "release %u", mine.slot);
    LEDGER_UNTIL(reader, ledger, ledger.idle == 1);
    assert_int_equal(ledger.held, 0);
    agent_quit(node, owner);
    agent_quit(node, reader);
    assert_int_equal(node_stop(node, SIGTERM), 0);
}

static void test_stale_generation(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *owner = agent_start(node, "worker", 0);
    struct agent *reader = agent_start(node, "gateway", 0);
    struct lease first = agent_acquire(owner, 65536);
    agent_say(owner, "release %u", first.slot);
    struct lease second = agent_acquire(owner, 65536);
    assert_int_equal(second.region, first.region); /* from the pool */
    assert_int_equal(second.generation, first.generation + 1);
    agent_say(reader, "open %llu %u", first.region, first.generation);
    assert_non_null(strstr(agent_wait(reader, "error"), "STALE"));
    agent_say(reader, "open %llu %u", first.region + 1000, 1);
    assert_non_null(strstr(agent_wait(reader, "error"), "STALE"));
    agent_open(reader, second);
    assert_int_equal(agent_ledger(reader).stale, 2);
    assert_int_equal(agent_counter(reader, "leases_from_pool"), 1);
}

static void test_limits(void **state)
{
    struct node *node = *state;
    node->budget = "1M";
    node_start(node);
    struct agent *agent = agent_start(node, "worker", 0);
    agent_say(agent, "acquire 0");
    assert_non_null(strstr(agent_wait(agent, "error"), "INVALID"));
    agent_say(agent, "acquire %llu", 2048 * MIB);
    assert_non_null(strstr(agent_wait(agent, "error"), "LIMIT"));
    struct ledger ledger;
    struct lease half = agent_acquire(agent, MIB / 2);
    agent_say(agent, "acquire %llu", MIB);
    assert_string_equal(agent_wait(agent, "error"),
                        "error LIMIT a lease of 1048576 bytes needs 1048576 bytes, 524288 more "
                        "than memmgr can give: budget 1048576, in use 524288");
    agent_say(agent, "release %u", half.slot);
    LEDGER_UNTIL(agent, ledger, ledger.idle == 1);
    agent_acquire(agent, MIB); /* what was pooled makes room */
    assert_int_equal(agent_ledger(agent).total, MIB);
    assert_int_equal(agent_counter(agent, "budget_refused"), 1);
    agent_say(agent, "nonsense");
    assert_non_null(strstr(agent_wait(agent, "error"), "UNSUPPORTED"));
}

static void test_many_and_large(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *agent = agent_start(node, "worker", 0);
    agent_say(agent, "acquire %llu", 64 * MIB); /* on worker threads, both sides */
    agent_say(agent, "many 300 65536");         /* more than the window */
    unsigned long long bytes = 0;
    unsigned slots[301];
    for (int i = 0; i < 301; i++) {
        struct lease lease = agent_lease(agent);
        bytes += lease.bytes;
        slots[i] = lease.slot;
    }
    assert_int_equal(bytes, 64 * MIB + 300 * 65536);
    struct ledger ledger = agent_ledger(agent);
    assert_int_equal(ledger.total, bytes);
    assert_int_equal(ledger.resident, bytes);
    for (int i = 0; i < 301; i++)
        agent_say(agent, "release %u", slots[i]);
    LEDGER_UNTIL(agent, ledger, ledger.held == 0);
    assert_true(ledger.idle <= 17);
}

static void test_lease_limit(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *agent = agent_start(node, "worker", 0);
    agent_say(agent, "many 1000 1");
    for (int i = 0; i < 1000; i++)
        agent_lease(agent);
    agent_say(agent, "many 24 1");
    for (int i = 0; i < 24; i++)
        agent_lease(agent);
    agent_say(agent, "acquire 1");
    assert_non_null(strstr(agent_wait(agent, "error"), "FULL"));
    agent_say(agent, "many 1025 1"); /* the last one is too many for the client itself */
    assert_non_null(strstr(agent_wait(agent, "error"), "FULL"));
}

/* Populating 256 MiB takes a tenth of a second and more; memmgr has time for others meanwhile: many
 * round trips of another process fit in. */
static void test_loop_does_not_stall(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *large = agent_start(node, "worker", 0);
    struct agent *small = agent_start(node, "gateway", 0);
    agent_say(large, "acquire %llu", 256 * MIB);
    unsigned trips = 0;
    struct ledger ledger;
    LEDGER_UNTIL(small, ledger, ledger.entries == 1);
    do {
        struct lease lease = agent_acquire(small, 1);
        agent_say(small, "release %u", lease.slot);
        ledger = agent_ledger(small);
        trips++;
    } while (ledger.fresh == 1);
    assert_true(trips > 16);
    agent_lease(large);
    agent_kill(node, large); /* memmgr has the last descriptor now */
    LEDGER_UNTIL(small, ledger, ledger.held == 0);
}

/* --- Death --- */

static void test_owner_dies(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *reader = agent_start(node, "gateway", 0);
    agent_ledger(reader); /* memmgr's bus is connected */
    unsigned before = node_fds(node);
    struct agent *owner = agent_start(node, "worker", 0);
    struct lease mine = agent_acquire(owner, MIB);
    agent_acquire(owner, MIB); /* nobody reads this one */
    agent_say(owner, "fill %u 9", mine.slot);
    agent_wait(owner, "filled");
    struct lease theirs = agent_open(reader, mine);
    agent_kill(node, owner);
    unsigned slot;
    assert_int_equal(sscanf(agent_wait(reader, "revoked"), "revoked %u", &slot), 1);
    assert_int_equal(slot, theirs.slot);
    agent_say(reader, "check %u 9", theirs.slot);
    agent_wait(reader, "same");
    struct ledger ledger;
    LEDGER_UNTIL(reader, ledger, ledger.orphaned == 1 && ledger.entries == 1);
    agent_say(reader, "open %llu %u", mine.region, mine.generation);
    assert_non_null(strstr(agent_wait(reader, "error"), "STALE"));
    agent_say(reader, "close %u", theirs.slot);
    LEDGER_UNTIL(reader, ledger, ledger.total == 0);
    assert_int_equal(ledger.orphans, 2);
    assert_int_equal(node_fds(node), before);
    assert_false(agent_has(reader, "revoked"));
}

static void test_owner_releases_under_reader(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *reader = agent_start(node, "gateway", 0);
    struct agent *owner = agent_start(node, "worker", 0);
    struct lease mine = agent_acquire(owner, MIB);
    struct lease theirs = agent_open(reader, mine);
    agent_say(owner, "release %u", mine.slot);
    agent_wait(reader, "revoked");
    struct lease other = agent_acquire(owner, MIB);
    assert_int_not_equal(other.region, mine.region); /* still read */
    agent_say(reader, "close %u", theirs.slot);
    struct ledger ledger;
    LEDGER_UNTIL(reader, ledger, ledger.idle == 1);
    other = agent_acquire(owner, MIB);
    assert_int_equal(other.region, mine.region);
}

/* A reader that vanished may only have lost its connection: what it had is not given to others. */
static void test_reader_dies(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *owner = agent_start(node, "worker", 0);
    struct agent *reader = agent_start(node, "gateway", 0);
    struct lease mine = agent_acquire(owner, MIB);
    agent_open(reader, mine);
    agent_kill(node, reader);
    struct ledger ledger;
    LEDGER_UNTIL(owner, ledger, agent_counter(owner, "processes") == 1);
    agent_say(owner, "release %u", mine.slot);
    LEDGER_UNTIL(owner, ledger, ledger.total == 0);
}

static void test_killed_while_asking(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *watcher = agent_start(node, "gateway", 0);
    agent_ledger(watcher);
    unsigned before = node_fds(node);
    for (int round = 0; round < 10; round++) {
        struct agent *owner = agent_start(node, "worker", 0);
        agent_say(owner, "many 40 %llu", round % 2 ? 65536ull : MIB);
        for (int i = 0; i < round * 4; i++)
            agent_lease(owner);
        agent_kill(node, owner);
        struct ledger ledger;
        LEDGER_UNTIL(watcher, ledger, ledger.held == 0 && ledger.fresh == 0);
        assert_int_equal(node_fds(node), before + ledger.idle);
    }
}

/* The successor may be there before the hang-up was seen. */
static void test_successor_attaches_at_once(void **state)
{
    struct node *node = *state;
    node_start(node);
    unsigned long long last = 0;
    for (int i = 0; i < 20; i++) {
        struct agent *agent = agent_start(node, "worker", 3);
        assert_true(agent->instance > last);
        last = agent->instance;
        agent_kill(node, agent);
    }
}

static void test_one_process_a_place(void **state)
{
    struct node *node = *state;
    node_start(node);
    agent_start(node, "worker", 0);
    struct agent *second = agent_spawn(node, "worker", 0);
    char error[LINE_MAX_BYTES];
    snprintf(error, sizeof error, "%s", agent_wait(second, "refused"));
    assert_non_null(strstr(error, "EXISTS another live process is worker.0"));
}

#define LEASE_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LEASE_TEST(test_share),
        LEASE_TEST(test_stale_generation),
        LEASE_TEST(test_limits),
        LEASE_TEST(test_many_and_large),
        LEASE_TEST(test_lease_limit),
        LEASE_TEST(test_loop_does_not_stall),
        LEASE_TEST(test_owner_dies),
        LEASE_TEST(test_owner_releases_under_reader),
        LEASE_TEST(test_reader_dies),
        LEASE_TEST(test_killed_while_asking),
        LEASE_TEST(test_successor_attaches_at_once),
        LEASE_TEST(test_one_process_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
