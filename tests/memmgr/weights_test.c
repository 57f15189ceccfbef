/* Weights between real processes: one writer, one copy, and writers that die. */
#include "tests/memmgr/node.h"

#include <stdio.h>
#include <string.h>

#define MIB   (1024ull * 1024)
#define BYTES (16 * MIB + 12345)
#define SIZE  (16 * MIB + 16384) /* in pages */

static void write_and_seal(struct agent *writer, struct weights weights, unsigned byte)
{
    agent_say(writer, "fill %u %u", weights.slot, byte);
    agent_wait(writer, "filled");
    agent_say(writer, "seal %u", weights.slot);
    struct weights sealed = agent_weights(writer);
    assert_int_equal(sealed.slot, weights.slot);
    assert_int_equal(sealed.writer, 0);
}

static void test_one_copy(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *agents[4];
    for (unsigned i = 0; i < 4; i++)
        agents[i] = agent_start(node, "worker", i);
    agent_say(agents[0], "weights 1 %llu digits/1", BYTES);
    struct weights writer = agent_weights(agents[0]);
    assert_int_equal(writer.writer, 1);
    for (unsigned i = 1; i < 4; i++) {
        agent_say(agents[i], "weights 1 %llu digits/1", BYTES);
        assert_false(agent_has(agents[i], "weights")); /* not before the seal */
    }
    assert_int_equal(agent_ledger(agents[1]).writing, 1);
    write_and_seal(agents[0], writer, 42);
    for (unsigned i = 1; i < 4; i++) {
        struct weights given = agent_weights(agents[i]);
        assert_int_equal(given.writer, 0);
        assert_int_equal(given.bytes, BYTES);
        agent_say(agents[i], "check %u 42", given.slot);
        agent_wait(agents[i], "same");
    }
    unsigned long long pss = 0, part;
    for (unsigned i = 0; i < 4; i++) {
        agent_say(agents[i], "pss");
        assert_int_equal(sscanf(agent_wait(agents[i], "pss"), "pss %llu", &part), 1);
        assert_in_range(part, SIZE / 4 - 65536, SIZE / 4 + 65536);
        pss += part;
    }
    assert_in_range(pss, SIZE - 65536, SIZE + 65536);
    struct ledger ledger = agent_ledger(agents[0]);
    assert_int_equal(ledger.sealed, 1);
    assert_int_equal(ledger.total, SIZE);
    assert_int_equal(ledger.resident, SIZE);
}

static void test_writer_dies(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *first = agent_start(node, "worker", 0);
    struct agent *second = agent_start(node, "worker", 1);
    struct agent *third = agent_start(node, "worker", 2);
    agent_say(first, "weights 1 %llu digits/1", BYTES);
    struct weights mine = agent_weights(first);
    agent_say(first, "fill %u 1", mine.slot);
    agent_wait(first, "filled");
    agent_say(second, "weights 1 %llu digits/1", BYTES);
    assert_false(agent_has(second, "weights"));
    agent_say(third, "weights 1 %llu digits/1", BYTES);
    assert_false(agent_has(third, "weights"));
    agent_kill(node, first);
    struct weights theirs = agent_weights(second);
    assert_int_equal(theirs.writer, 1);
    assert_false(agent_has(third, "weights"));
    agent_say(second, "check %u 0", theirs.slot); /* nothing of the dead writer's */
    agent_wait(second, "same");
    write_and_seal(second, theirs, 2);
    struct weights given = agent_weights(third);
    agent_say(third, "check %u 2", given.slot);
    agent_wait(third, "same");
    assert_int_equal(agent_counter(third, "writers_lost"), 1);
    assert_int_equal(agent_ledger(third).total, SIZE);
}

/* The writer is killed while its pages are still being populated, or just then. */
static void test_writer_dies_early(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *other = agent_start(node, "worker", 1);
    for (int round = 0; round < 10; round++) {
        struct agent *first = agent_start(node, "worker", 0);
        agent_say(first, "weights %d %llu x", round, 8 * MIB);
        agent_has(first, "nothing");
        agent_say(other, "weights %d %llu x", round, 8 * MIB);
        agent_kill(node, first);
        struct weights mine = agent_weights(other);
        assert_int_equal(mine.writer, 1);
        agent_say(other, "close %u", mine.slot);
    }
    struct ledger ledger;
    LEDGER_UNTIL(other, ledger, ledger.total == 0 && ledger.fresh == 0);
}

static void test_other_size(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *a = agent_start(node, "worker", 0);
    struct agent *b = agent_start(node, "worker", 1);
    agent_say(a, "weights 1 5000 digits/1");
    struct weights mine = agent_weights(a);
    agent_say(b, "weights 1 5001 digits/1");
    assert_non_null(strstr(agent_wait(b, "error"), "INVALID"));
    write_and_seal(a, mine, 3);
    agent_say(b, "weights 1 5001 digits/1");
    assert_non_null(strstr(agent_wait(b, "error"), "INVALID"));
    agent_say(b, "weights 1 5000 digits/1");
    assert_int_equal(agent_weights(b).writer, 0);
}

static void test_killed_holder_finds_them_again(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    agent_say(worker, "weights 1 %llu digits/1", BYTES);
    write_and_seal(worker, agent_weights(worker), 9);
    for (int i = 0; i < 3; i++) {
        agent_kill(node, worker);
        worker = agent_start(node, "worker", 0);
        agent_say(worker, "weights 1 %llu digits/1", BYTES);
        struct weights given = agent_weights(worker);
        assert_int_equal(given.writer, 0);
        agent_say(worker, "check %u 9", given.slot);
        agent_wait(worker, "same");
    }
    assert_int_equal(agent_counter(worker, "weights_written"), 1);
}

static void test_unheld_make_room(void **state)
{
    struct node *node = *state;
    node->budget = "17M";
    node_start(node);
    struct agent *worker = agent_start(node, "worker", 0);
    agent_say(worker, "weights 1 %llu digits/1", BYTES);
    struct weights mine = agent_weights(worker);
    write_and_seal(worker, mine, 9);
    agent_say(worker, "weights 2 %llu digits/2", BYTES);
    const char *error = agent_wait(worker, "error");
    assert_non_null(strstr(error, "LIMIT weights of digits/2"));
    assert_non_null(strstr(error, "more than memmgr can give"));
    agent_say(worker, "close %u", mine.slot);
    struct ledger ledger;
    LEDGER_UNTIL(worker, ledger, ledger.unheld == 1);
    agent_say(worker, "weights 2 %llu digits/2", BYTES);
    assert_int_equal(agent_weights(worker).writer, 1);
    assert_int_equal(agent_ledger(worker).sealed, 0);
    assert_int_equal(agent_counter(worker, "regions_evicted"), 1);
}

static void test_nothing_at_all(void **state)
{
    struct node *node = *state;
    node_start(node);
    struct agent *a = agent_start(node, "worker", 0);
    struct agent *b = agent_start(node, "worker", 1);
    agent_say(a, "weights 1 0 empty/1");
    struct weights mine = agent_weights(a);
    assert_int_equal(mine.writer, 1);
    agent_say(a, "seal %u", mine.slot);
    assert_int_equal(agent_weights(a).writer, 0);
    agent_say(b, "weights 1 0 empty/1");
    assert_int_equal(agent_weights(b).writer, 0);
    agent_say(b, "weights 2 18446744073709551615 huge/1");
    assert_non_null(strstr(agent_wait(b, "error"), "LIMIT"));
}

#define WEIGHTS_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WEIGHTS_TEST(test_one_copy),
        WEIGHTS_TEST(test_writer_dies),
        WEIGHTS_TEST(test_writer_dies_early),
        WEIGHTS_TEST(test_other_size),
        WEIGHTS_TEST(test_killed_holder_finds_them_again),
        WEIGHTS_TEST(test_unheld_make_room),
        WEIGHTS_TEST(test_nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
