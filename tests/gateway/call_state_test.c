/* The call's word: every edge of the picture, and that each call ends once however its ends race.
 */
#include "gateway/call_state.h"
#include "tests/harness/t.h"

#include <pthread.h>

static uint64_t fresh(uint32_t holds)
{
    gw_word word;
    atomic_init(&word, 0);
    gw_word_arm(&word);
    gw_word_open(&word, holds);
    return atomic_load(&word);
}

static void a_slot_is_armed_and_disarmed(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, 0);
    gw_word_arm(&word);
    assert_int_equal(gw_word_state(&word), GW_CALL_ARMED);
    assert_int_equal(gw_word_generation(&word), 1);
    gw_word_disarm(&word);
    assert_int_equal(gw_word_state(&word), GW_CALL_FREE);
    gw_word_arm(&word);
    assert_int_equal(gw_word_generation(&word), 2);
}

static void an_answered_call_goes_through_all(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, 0);
    gw_word_arm(&word);
    gw_word_open(&word, GW_HOLD_CLOSE);
    assert_true(gw_word_hold(&word, GW_HOLD_RECEIVE));
    assert_true(gw_word_queue(&word));
    assert_int_equal(gw_word_state(&word), GW_CALL_QUEUED);
    assert_true(gw_word_holds(&word, GW_HOLD_BACKEND));
    struct gw_dropped dropped = gw_word_drop(&word, GW_HOLD_RECEIVE);
    assert_false(dropped.core || dropped.all);
    assert_true(gw_word_take(&word, GW_HOLD_SEND));
    assert_false(gw_word_take(&word, GW_HOLD_SEND));
    assert_false(gw_word_take(&word, 0));
    dropped = gw_word_drop(&word, GW_HOLD_BACKEND);
    assert_false(dropped.core || dropped.all);
    dropped = gw_word_drop(&word, GW_HOLD_SEND);
    assert_false(dropped.core || dropped.all);
    dropped = gw_word_drop(&word, GW_HOLD_CLOSE);
    assert_true(dropped.core);
    assert_false(dropped.all);
    dropped = gw_word_drop(&word, GW_HOLD_LETGO);
    assert_true(dropped.all);
    gw_word_free(&word);
    assert_int_equal(gw_word_state(&word), GW_CALL_FREE);
}

static void a_client_that_goes_leaves_a_zombie(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, fresh(GW_HOLD_CLOSE));
    assert_true(gw_word_queue(&word));
    assert_true(gw_word_take(&word, 0));
    struct gw_dropped dropped = gw_word_drop(&word, GW_HOLD_CLOSE);
    assert_true(dropped.core);
    assert_false(dropped.all);
    assert_false(gw_word_drop(&word, GW_HOLD_LETGO).all); /* BACKEND is still there */
    dropped = gw_word_drop(&word, GW_HOLD_BACKEND);
    assert_true(dropped.all);
    assert_false(dropped.core); /* core's part went before */
}

static void the_last_of_core_may_be_slower_than_the_backend(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, fresh(GW_HOLD_CLOSE));
    assert_true(gw_word_queue(&word));
    assert_true(gw_word_take(&word, 0));
    assert_true(gw_word_drop(&word, GW_HOLD_CLOSE).core);
    assert_false(gw_word_drop(&word, GW_HOLD_BACKEND).all); /* LETGO keeps the slot */
    assert_true(gw_word_drop(&word, GW_HOLD_LETGO).all);
}

static void nothing_is_queued_or_held_after_the_answer(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, fresh(GW_HOLD_CLOSE | GW_HOLD_RECEIVE));
    assert_true(gw_word_take(&word, GW_HOLD_SEND));
    assert_false(gw_word_queue(&word));
    assert_false(gw_word_holds(&word, GW_HOLD_BACKEND));
}

static void who_is_late_cannot_take_the_slots_next_call(void **state)
{
    (void)state;
    gw_word word;
    atomic_init(&word, fresh(GW_HOLD_CLOSE));
    uint32_t generation = gw_word_generation(&word);
    assert_false(gw_word_take_if(&word, generation + 1, GW_HOLD_SEND));
    assert_true(gw_word_take_if(&word, generation, 0));
    assert_false(gw_word_take_if(&word, generation, 0));
    gw_word_drop(&word, GW_HOLD_CLOSE);
    gw_word_drop(&word, GW_HOLD_LETGO);
    gw_word_free(&word);
    assert_false(gw_word_take_if(&word, generation, 0));
    gw_word_arm(&word);
    assert_false(gw_word_take_if(&word, generation + 1, 0)); /* ARMED is no call yet */
    gw_word_open(&word, GW_HOLD_CLOSE);
    assert_false(gw_word_take_if(&word, generation, 0));
    assert_true(gw_word_take_if(&word, generation + 1, 0));
}

/* ---- races ---- */

#define ROUNDS 20000

struct race {
    gw_word word;
    pthread_barrier_t barrier;
    atomic_uint taken, core, all;
};

static void dropped(struct race *race, uint32_t hold)
{
    struct gw_dropped result = gw_word_drop(&race->word, hold);
    if (result.core) {
        atomic_fetch_add(&race->core, 1);
        result = gw_word_drop(&race->word, GW_HOLD_LETGO);
    }
    if (result.all)
        atomic_fetch_add(&race->all, 1);
}

/* The loop's side: a REPLY comes, answers if it is first, and ends the backend. */
static void *reply(void *ctx)
{
    struct race *race = ctx;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&race->barrier);
        if (gw_word_take(&race->word, GW_HOLD_SEND)) {
            atomic_fetch_add(&race->taken, 1);
            dropped(race, GW_HOLD_SEND);
        }
        dropped(race, GW_HOLD_BACKEND);
        pthread_barrier_wait(&race->barrier);
    }
    return NULL;
}

/* The queue's side: the client goes. */
static void *goes(void *ctx)
{
    struct race *race = ctx;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&race->barrier);
        if (gw_word_take(&race->word, 0))
            atomic_fetch_add(&race->taken, 1);
        dropped(race, GW_HOLD_CLOSE);
        pthread_barrier_wait(&race->barrier);
    }
    return NULL;
}

/* A third: the deadline, by handle. */
static void *expires(void *ctx)
{
    struct race *race = ctx;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&race->barrier);
        uint32_t generation = gw_word_generation(&race->word);
        if (gw_word_take_if(&race->word, generation, GW_HOLD_SEND)) {
            atomic_fetch_add(&race->taken, 1);
            dropped(race, GW_HOLD_SEND);
        }
        pthread_barrier_wait(&race->barrier);
    }
    return NULL;
}

static void racing_ends_meet_once(void **state)
{
    (void)state;
    static struct race race;
    pthread_t threads[3];
    void *(*const sides[3])(void *) = {reply, goes, expires};
    pthread_barrier_init(&race.barrier, NULL, 4);
    gw_word_arm(&race.word);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sides[i], &race), 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        gw_word_open(&race.word, GW_HOLD_CLOSE);
        assert_true(gw_word_queue(&race.word));
        pthread_barrier_wait(&race.barrier); /* all start */
        pthread_barrier_wait(&race.barrier); /* all have ended */
        assert_int_equal(atomic_load(&race.taken), i + 1);
        assert_int_equal(atomic_load(&race.core), i + 1);
        assert_int_equal(atomic_load(&race.all), i + 1);
        gw_word_free(&race.word);
        gw_word_arm(&race.word);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&race.barrier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_is_armed_and_disarmed),
        cmocka_unit_test(an_answered_call_goes_through_all),
        cmocka_unit_test(a_client_that_goes_leaves_a_zombie),
        cmocka_unit_test(the_last_of_core_may_be_slower_than_the_backend),
        cmocka_unit_test(nothing_is_queued_or_held_after_the_answer),
        cmocka_unit_test(who_is_late_cannot_take_the_slots_next_call),
        cmocka_unit_test(racing_ends_meet_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
