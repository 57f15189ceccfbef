/* Channels that memmgr makes: the two ends meet in any order, and again after a death. */
#include "tests/memmgr/node.h"

#include <stdio.h>
#include <string.h>

struct end {
    unsigned slot, index;
    char role[16];
    unsigned long long instance;
};

static struct end agent_channel(struct agent *agent)
{
    struct end end;
    assert_int_equal(sscanf(agent_wait(agent, "channel"), "channel %u %15s %u %llu", &end.slot,
                            end.role, &end.index, &end.instance),
                     4);
    return end;
}

static void talk(struct agent *a, struct end from_a, struct agent *b, struct end from_b)
{
    unsigned long long word;
    agent_say(a, "send %u 1234567890123", from_a.slot);
    assert_int_equal(sscanf(agent_wait(b, "got"), "got %*u %llu", &word), 1);
    assert_true(word == 1234567890123ull);
    agent_say(b, "send %u 77", from_b.slot);
    assert_int_equal(sscanf(agent_wait(a, "got"), "got %*u %llu", &word), 1);
    assert_true(word == 77);
}

static void test_asker_second(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *scheduler = agent_start(node, "scheduler", 0);
    struct agent *gateway = agent_start(node, "gateway", 2);
    agent_say(gateway, "want scheduler 0");
    struct end ours = agent_channel(gateway), theirs = agent_channel(scheduler);
    assert_string_equal(ours.role, "scheduler");
    assert_true(ours.instance == scheduler->instance);
    assert_string_equal(theirs.role, "gateway");
    assert_int_equal(theirs.index, 2);
    assert_true(theirs.instance == gateway->instance);
    talk(gateway, ours, scheduler, theirs);
    struct ledger ledger = agent_ledger(gateway);
    assert_int_equal(ledger.channels, 1);
    assert_true(ledger.total > 2 * 1024 * 1024 && ledger.resident >= ledger.total);
}

static void test_asker_first(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *gateway = agent_start(node, "gateway", 0);
    agent_say(gateway, "want scheduler 0");
    agent_say(gateway, "want scheduler 0"); /* changes nothing */
    assert_false(agent_has(gateway, "channel"));
    struct agent *scheduler = agent_start(node, "scheduler", 0);
    talk(gateway, agent_channel(gateway), scheduler, agent_channel(scheduler));
    assert_int_equal(agent_counter(gateway, "channels_made"), 1);
}

/* Both ask: they still get one channel, not two that replace each other. */
static void test_both_ask(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *a = agent_start(node, "worker", 0);
    struct agent *b = agent_start(node, "scheduler", 0);
    agent_say(a, "want scheduler 0");
    agent_say(b, "want worker 0");
    talk(a, agent_channel(a), b, agent_channel(b));
    agent_acquire(a, 1); /* whatever was asked has been seen to */
    agent_acquire(b, 1);
    assert_int_equal(agent_counter(a, "channels_made"), 1);
    assert_false(agent_has(a, "channel"));
    assert_false(agent_has(b, "channel"));
}

static void test_peer_dies_and_returns(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *scheduler = agent_start(node, "scheduler", 0);
    struct agent *worker = agent_start(node, "worker", 0);
    agent_ledger(scheduler);
    unsigned before = node_fds(node);
    for (int round = 0; round < 4; round++) {
        agent_say(scheduler, "want worker 0");
        struct end ours = agent_channel(scheduler);
        assert_true(ours.instance == worker->instance);
        talk(scheduler, ours, worker, agent_channel(worker));
        agent_kill(node, worker);
        assert_non_null(strstr(agent_wait(scheduler, "ended"), "CLOSED"));
        struct ledger ledger;
        LEDGER_UNTIL(scheduler, ledger, ledger.total == 0);
        worker = agent_start(node, "worker", 0);
    }
    assert_int_equal(node_fds(node), before); /* no end is kept here */
}

static void test_hang_up_and_again(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *scheduler = agent_start(node, "scheduler", 0);
    struct agent *worker = agent_start(node, "worker", 0);
    agent_say(scheduler, "want worker 0");
    struct end ours = agent_channel(scheduler);
    agent_channel(worker);
    agent_say(scheduler, "hangup %u", ours.slot);
    assert_non_null(strstr(agent_wait(worker, "ended"), "CLOSED"));
    agent_say(scheduler, "want worker 0");
    ours = agent_channel(scheduler);
    talk(scheduler, ours, worker, agent_channel(worker));
    struct ledger ledger;
    LEDGER_UNTIL(scheduler, ledger, ledger.channels == 1);
    agent_quit(node, worker);
    agent_wait(scheduler, "ended");
    agent_quit(node, scheduler);
}

static void test_asker_dies_while_waiting(void **state)
{
    struct node *node = *state;
    node_start(node);
    for (int round = 0; round < 10; round++) {
        struct agent *gateway = agent_start(node, "gateway", 0);
        agent_say(gateway, "want scheduler 0");
        agent_has(gateway, "nothing");
        if (round % 2) { /* or while the channel is being made */
            struct agent *scheduler = agent_start(node, "scheduler", 0);
            agent_kill(node, gateway);
            agent_kill(node, scheduler);
        } else {
            agent_kill(node, gateway);
        }
    }
    struct agent *tool = agent_start(node, "tool", 99);
    struct ledger ledger;
    LEDGER_UNTIL(tool, ledger, ledger.total == 0);
}

static void test_nobody_to_talk_to(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    agent_say(worker, "want worker 0");
    assert_non_null(strstr(agent_wait(worker, "error"), "INVALID"));
    agent_say(worker, "want memmgr 0");
    assert_non_null(strstr(agent_wait(worker, "error"), "INVALID"));
}

#define CHANNEL_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CHANNEL_TEST(test_asker_second),      CHANNEL_TEST(test_asker_first),
        CHANNEL_TEST(test_both_ask),          CHANNEL_TEST(test_peer_dies_and_returns),
        CHANNEL_TEST(test_hang_up_and_again), CHANNEL_TEST(test_asker_dies_while_waiting),
        CHANNEL_TEST(test_nobody_to_talk_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
