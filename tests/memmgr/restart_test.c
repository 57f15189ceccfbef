/* memmgr dies and comes back: clients notice nothing but time, and the ledger is what it was. */
#include "tests/memmgr/node.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1024ull * 1024)

static void restart(struct node *node, int signal)
{
    int status = node_stop(node, signal);
    assert_true(signal == SIGKILL || status == 0);
    node_start(node);
}

static void reattached(struct agent *agent)
{
    unsigned long long instance = agent->instance, epoch = agent->epoch;
    agent_wait(agent, "lost");
    agent_attached(agent);
    assert_true(agent->instance == instance);
    assert_true(agent->epoch > epoch);
}

static void everything_survives(struct node *node, int signal)
{
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    struct agent *gateway = agent_start(node, "gateway", 0);
    struct lease outputs = agent_acquire(worker, MIB), inputs = agent_acquire(gateway, 3 * MIB);
    struct lease outputs_read = agent_open(gateway, outputs);
    struct lease inputs_read = agent_open(worker, inputs);
    agent_say(worker, "fill %u 5", outputs.slot);
    agent_wait(worker, "filled");
    agent_say(worker, "weights 1 100000 digits/1");
    struct weights weights = agent_weights(worker);
    agent_say(worker, "fill %u 6", weights.slot);
    agent_wait(worker, "filled");
    agent_say(worker, "seal %u", weights.slot);
    agent_weights(worker);
    agent_say(gateway, "want worker 0");
    unsigned slot;
    assert_int_equal(sscanf(agent_wait(gateway, "channel"), "channel %u", &slot), 1);
    agent_wait(worker, "channel");
    struct ledger before = agent_ledger(gateway), after;

    restart(node, signal);
    reattached(worker);
    reattached(gateway);
    LEDGER_UNTIL(gateway, after, after.entries == before.entries && after.awaited == 0);
    assert_true(after.epoch > before.epoch);
    assert_int_equal(after.total, before.total);
    assert_int_equal(after.resident, before.resident);
    assert_int_equal(after.granted, before.granted);
    assert_int_equal(after.sealed, 1);
    assert_int_equal(after.channels, 1);

    /* The old things work, with the old numbers. */
    agent_say(gateway, "check %u 5", outputs_read.slot);
    agent_wait(gateway, "same");
    struct agent *late = agent_start(node, "worker", 1);
    struct lease reopened = agent_open(late, outputs);
    agent_say(late, "check %u 5", reopened.slot);
    agent_wait(late, "same");
    agent_say(late, "weights 1 100000 digits/1");
    struct weights shared = agent_weights(late);
    assert_int_equal(shared.writer, 0);
    agent_say(late, "check %u 6", shared.slot);
    agent_wait(late, "same");
    agent_say(gateway, "send %u 5", slot);
    agent_wait(worker, "got");
    /* New things too. */
    struct lease fresh = agent_acquire(worker, MIB);
    assert_true(fresh.region > outputs.region);
    assert_true(late->instance > gateway->instance);
    /* And all of it comes back. */
    agent_say(worker, "release %u", outputs.slot);
    agent_wait(gateway, "revoked");
    agent_wait(late, "revoked");
    agent_say(worker, "close %u", inputs_read.slot);
    agent_kill(node, late);
    agent_kill(node, worker);
    agent_kill(node, gateway);
    struct agent *tool = agent_start(node, "tool", 1);
    LEDGER_UNTIL(tool, after, after.granted + after.orphaned + after.channels == 0);
    assert_int_equal(after.sealed, 1); /* weights wait for whoever comes back */
    assert_int_equal(after.held, 102400);
}

static void test_killed(void **state)
{
    everything_survives(*state, SIGKILL);
}

static void test_stopped_under_clients(void **state)
{
    everything_survives(*state, SIGTERM);
}

/* After a clean end there is nobody to wait for. */
static void test_clean_end_leaves_no_name(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *agent = agent_start(node, "worker", 0);
    agent_quit(node, agent);
    assert_int_equal(node_stop(node, SIGTERM), 0);
    char path[T_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/memmgr.sock", node->run_dir);
    assert_int_equal(access(path, F_OK), -1);
}

static void test_asked_while_down(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    struct lease kept = agent_acquire(worker, MIB), given = agent_acquire(worker, MIB);
    node_stop(node, SIGKILL);
    agent_wait(worker, "lost");
    agent_say(worker, "acquire 1");
    agent_say(worker, "release %u", given.slot);
    agent_say(worker, "weights 3 1000 x/1");
    agent_say(worker, "want scheduler 0");
    node_start(node);
    agent_attached(worker);
    agent_lease(worker);
    assert_int_equal(agent_weights(worker).writer, 1); /* after the grace time: nobody had them */
    struct agent *scheduler = agent_start(node, "scheduler", 0);
    agent_wait(worker, "channel");
    agent_wait(scheduler, "channel");
    struct ledger ledger = agent_ledger(worker);
    assert_int_equal(ledger.granted, 2); /* kept, and the new one */
    agent_say(worker, "release %u", kept.slot);
    LEDGER_UNTIL(worker, ledger, ledger.granted == 1);
}

static void test_owner_dies_meanwhile(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    struct agent *gateway = agent_start(node, "gateway", 0);
    struct lease lease = agent_acquire(worker, MIB);
    agent_say(worker, "fill %u 4", lease.slot);
    agent_wait(worker, "filled");
    struct lease read = agent_open(gateway, lease);
    agent_say(gateway, "want worker 0");
    agent_wait(gateway, "channel");
    node_stop(node, SIGKILL);
    agent_kill(node, worker);
    node_start(node);
    reattached(gateway);
    struct ledger ledger = agent_ledger(gateway);
    assert_int_equal(ledger.awaited, 1); /* the owner has its grace time */
    agent_wait(gateway, "revoked");
    agent_say(gateway, "check %u 4", read.slot);
    agent_wait(gateway, "same");
    LEDGER_UNTIL(gateway, ledger, ledger.orphaned == 1 && ledger.channels == 0);
    agent_say(gateway, "close %u", read.slot);
    LEDGER_UNTIL(gateway, ledger, ledger.total == 0);
    assert_int_equal(ledger.orphans, 1);
}

static void test_writer_survives(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *writer = agent_start(node, "worker", 0);
    struct agent *other = agent_start(node, "worker", 1);
    agent_say(writer, "weights 1 5000000 digits/1");
    struct weights mine = agent_weights(writer);
    agent_say(other, "weights 1 5000000 digits/1");
    assert_false(agent_has(other, "weights"));
    restart(node, SIGKILL);
    reattached(writer);
    reattached(other);
    struct ledger ledger;
    LEDGER_UNTIL(writer, ledger, ledger.writing == 1);
    agent_say(writer, "fill %u 8", mine.slot);
    agent_wait(writer, "filled");
    node_stop(node, SIGKILL);
    agent_wait(writer, "lost");
    agent_say(writer, "seal %u", mine.slot); /* asked of nobody yet */
    node_start(node);
    agent_attached(writer);
    assert_int_equal(agent_weights(writer).writer, 0);
    struct weights given = agent_weights(other);
    assert_int_equal(given.writer, 0);
    agent_say(other, "check %u 8", given.slot);
    agent_wait(other, "same");
    assert_int_equal(agent_ledger(other).entries, 1);
}

static void test_many_deaths(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    struct agent *gateway = agent_start(node, "gateway", 0);
    struct lease lease = {0};
    for (int i = 0; i < 150; i++) { /* more than one window has to come back */
        lease = agent_acquire(worker, 65536);
        agent_open(gateway, lease);
    }
    for (int round = 0; round < 8; round++) {
        agent_say(worker, "acquire 65536");
        if (round % 2)
            agent_has(gateway, "nothing");
        restart(node, SIGKILL);
        reattached(worker);
        reattached(gateway);
        agent_lease(worker);
        struct ledger ledger;
        LEDGER_UNTIL(gateway, ledger, ledger.granted == 151u + (unsigned)round && !ledger.awaited);
        assert_int_equal(ledger.total, ledger.granted * 65536ull);
        assert_false(agent_has(gateway, "revoked"));
    }
    assert_int_equal(agent_counter(worker, "restore_refused"), 0);
}

static void test_only_one_memmgr(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct node second = *node;
    char command[2 * T_PATH_MAX + 128];
    snprintf(command, sizeof command,
             BINARY_DIR "/bin/ingot-memmgr --run-dir %s 2>&1 | grep -q 'another memmgr is running'",
             second.run_dir);
    assert_int_equal(system(command), 0);
    agent_start(node, "worker", 0); /* the first one is unharmed */
    snprintf(command, sizeof command, BINARY_DIR "/bin/ingot-memmgr --help | grep -q budget");
    assert_int_equal(system(command), 0);
    static const char *const bad[] = {"",
                                      "--run-dir",
                                      "--run-dir /tmp/x --memory-budget none",
                                      "--run-dir /tmp/x --memory-budget 0",
                                      "--run-dir /tmp/x y",
                                      "--run-dir /tmp/x --memory-budget 99999999999G",
                                      "--run-dir /tmp",
                                      "--run-dir /proc/nowhere/here"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(command, sizeof command, BINARY_DIR "/bin/ingot-memmgr %s >/dev/null 2>&1",
                 bad[i]);
        int status = system(command);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), i == 7 ? 1 : 2);
    }
}

#define RESTART_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RESTART_TEST(test_killed),
        RESTART_TEST(test_stopped_under_clients),
        RESTART_TEST(test_clean_end_leaves_no_name),
        RESTART_TEST(test_asked_while_down),
        RESTART_TEST(test_owner_dies_meanwhile),
        RESTART_TEST(test_writer_survives),
        RESTART_TEST(test_many_deaths),
        RESTART_TEST(test_only_one_memmgr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
