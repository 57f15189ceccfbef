/* The scheduler core as tables: at a time, an event, and the words that it must cause (fixture.h).
 * Each event is followed by a pump, as in the process. */
#include "scheduler/core.h"

#include "common/check.h"
#include "common/clock.h"
#include "tests/scheduler/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum op { TICK, SUBMIT, CANCEL, DONE, FAIL, WORKER, WORKER_DIES, GATEWAY, GATEWAY_DIES };

struct step {
    uint64_t at_us;
    enum op op;
    uint32_t who; /* gateway or worker */
    uint64_t handle;
    uint32_t model;
    uint32_t rows;
    int64_t width;
    uint64_t deadline_us;
    uint8_t priority;
    const char *expected;
    uint64_t wakeup_us; /* checked if not 0 */
};

/* Well into time, so that levels and waits have a past. */
#define START_NS (1000 * CM_NS_PER_S)

static void apply(struct fx *fx, const struct step *step, uint64_t now_ns)
{
    switch (step->op) {
    case TICK:
        break;
    case SUBMIT: {
        struct fx_submit submit = {
            .gateway = step->who,
            .handle = step->handle,
            .model = step->model,
            .rows = step->rows,
            .width = step->width,
            .deadline_ns = step->deadline_us ? START_NS + step->deadline_us * CM_NS_PER_US : 0,
            .priority = step->priority};
        fx_submit(fx, &submit, now_ns);
        break;
    }
    case CANCEL:
        fx_cancel(fx, step->who, step->handle, now_ns);
        break;
    case DONE:
        assert_true(fx_done(fx, step->who, CM_OK, now_ns));
        break;
    case FAIL:
        assert_true(fx_done(fx, step->who, CM_INVALID, now_ns));
        break;
    case WORKER:
        fx_add_worker(fx, step->who, 100 + step->who);
        break;
    case WORKER_DIES:
        fx_del_worker(fx, step->who, now_ns);
        break;
    case GATEWAY:
        fx_add_gateway(fx, step->who, 50 + step->who);
        break;
    case GATEWAY_DIES:
        fx_del_gateway(fx, step->who);
        break;
    }
}

/* Gateway 0 is there from the start; the table adds the rest. At the end nothing may be left. */
static void play(const char *name, const struct step *steps, size_t count)
{
    struct fx fx;
    char where[64];
    fx_open(&fx, NULL);
    fx_add_gateway(&fx, 0, 50);
    for (size_t i = 0; i < count; i++) {
        uint64_t now_ns = START_NS + steps[i].at_us * CM_NS_PER_US;
        apply(&fx, &steps[i], now_ns);
        sd_core_pump(fx.core, now_ns);
        sd_core_audit(fx.core);
        snprintf(where, sizeof where, "%s, step %zu", name, i);
        fx_expect(&fx, where, steps[i].expected ? steps[i].expected : "");
        if (steps[i].wakeup_us)
            assert_int_equal(sd_core_next_wakeup_ns(fx.core),
                             START_NS + steps[i].wakeup_us * CM_NS_PER_US);
    }
    if (sd_core_in_use(fx.core) != 0)
        fail_msg("%s: %u requests are left", name, sd_core_in_use(fx.core));
    assert_int_equal(sd_core_in_flight(fx.core), 0);
    assert_int_equal(sd_core_queued(fx.core), 0);
    fx_close(&fx);
}

#define PLAY(steps) play(#steps, steps, CM_COUNT_OF(steps))

static void one_request(void **state)
{
    (void)state;
    static const struct step alone[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.at_us = 90, .op = DONE, .expected = "R0:1=OK"},
    };
    static const struct step before_any_worker[] = {
        /* The signature is known from a worker that has gone: requests wait for the next one. */
        {.op = WORKER},
        {.op = WORKER_DIES},
        {.at_us = 10, .op = SUBMIT, .handle = 1},
        {.at_us = 20, .op = WORKER, .who = 3, .expected = "X3:1"},
        {.at_us = 90, .op = DONE, .who = 3, .expected = "R0:1=OK"},
    };
    static const struct step fails[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.at_us = 90, .op = FAIL, .expected = "R0:1=INVALID"},
    };
    PLAY(alone);
    PLAY(before_any_worker);
    PLAY(fails);
}

static void batches_form_while_workers_are_busy(void **state)
{
    (void)state;
    static const struct step fill[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"}, /* the second credit */
        {.op = SUBMIT, .handle = 3, .rows = 3},
        {.op = SUBMIT, .handle = 4, .rows = 3},
        {.op = SUBMIT, .handle = 5, .rows = 3}, /* 9 rows: does not fit with 3 and 4 */
        {.op = SUBMIT, .handle = 6, .rows = 2}, /* would fit, but overtakes nobody */
        {.at_us = 50, .op = DONE, .expected = "R0:1=OK X0:3,4"},
        {.at_us = 60, .op = DONE, .expected = "R0:2=OK X0:5,6"},
        {.at_us = 70, .op = DONE, .expected = "R0:3=OK R0:4=OK"},
        {.at_us = 80, .op = DONE, .expected = "R0:5=OK R0:6=OK"},
    };
    static const struct step shapes[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .width = 10, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .width = 20, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3, .width = 10},
        {.op = SUBMIT, .handle = 4, .width = 20},
        {.op = SUBMIT, .handle = 5, .width = 10},
        {.op = SUBMIT, .handle = 6, .model = FX_SINGLE, .width = 10},
        {.op = SUBMIT, .handle = 7, .model = FX_SINGLE, .width = 10},
        {.at_us = 50, .op = DONE, .expected = "R0:1=OK X0:3,5"},
        {.at_us = 60, .op = DONE, .expected = "R0:2=OK X0:4"},
        {.at_us = 70, .op = DONE, .expected = "R0:3=OK R0:5=OK X0:6"},
        {.at_us = 80, .op = DONE, .expected = "R0:4=OK X0:7"},
        {.at_us = 90, .op = DONE, .expected = "R0:6=OK"},
        {.at_us = 99, .op = DONE, .expected = "R0:7=OK"},
    };
    static const struct step idlest[] = {
        {.op = WORKER, .who = 0},
        {.op = WORKER, .who = 1},
        {.op = SUBMIT, .handle = 1, .rows = 2, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .rows = 1, .expected = "X1:2"},
        {.op = SUBMIT, .handle = 3, .expected = "X1:3"}, /* as many batches, fewer rows */
        {.op = SUBMIT, .handle = 4, .expected = "X0:4"},
        {.op = SUBMIT, .handle = 5},
        {.at_us = 9, .op = DONE, .who = 1, .expected = "R0:2=OK X1:5"},
        {.at_us = 10, .op = DONE, .who = 1, .expected = "R0:3=OK"},
        {.at_us = 11, .op = DONE, .who = 1, .expected = "R0:5=OK"},
        {.at_us = 12, .op = DONE, .who = 0, .expected = "R0:1=OK"},
        {.at_us = 13, .op = DONE, .who = 0, .expected = "R0:4=OK"},
    };
    PLAY(fill);
    PLAY(shapes);
    PLAY(idlest);
}

static void patient_models_wait_for_company(void **state)
{
    (void)state;
    static const struct step waits[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .model = FX_PATIENT, .wakeup_us = 1010},
        {.at_us = 20, .op = SUBMIT, .handle = 2, .model = FX_PATIENT, .wakeup_us = 1010},
        {.at_us = 1009, .op = TICK},
        {.at_us = 1010, .op = TICK, .expected = "X0:1,2"},
        {.at_us = 1100, .op = DONE, .expected = "R0:1=OK R0:2=OK"},
    };
    static const struct step fills[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .model = FX_PATIENT},
        {.at_us = 20,
         .op = SUBMIT,
         .handle = 2,
         .model = FX_PATIENT,
         .rows = 3,
         .expected = "X0:1,2"},
        {.at_us = 99, .op = DONE, .expected = "R0:1=OK R0:2=OK"},
    };
    static const struct step hurries[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .model = FX_PATIENT},
        /* Nothing is known about the run's time yet: leaves at its deadline less nothing. */
        {.at_us = 20,
         .op = SUBMIT,
         .handle = 2,
         .model = FX_PATIENT,
         .deadline_us = 500,
         .wakeup_us = 500},
        {.at_us = 30, .op = CANCEL, .handle = 2, .expected = "R0:2=CANCELLED", .wakeup_us = 1010},
        {.at_us = 1010, .op = TICK, .expected = "X0:1"},
        {.at_us = 1210, .op = DONE, .expected = "R0:1=OK"}, /* 200 us, +-100 */
        {.at_us = 2000,
         .op = SUBMIT,
         .handle = 3,
         .model = FX_PATIENT,
         .deadline_us = 2900,
         .wakeup_us = 2500},
        {.at_us = 2500, .op = TICK, .expected = "X0:3"},
        {.at_us = 2700, .op = DONE, .expected = "R0:3=OK"},
    };
    static const struct step impatient_neighbours[] = {
        /* The one model's wait does not hold up the other's requests. */
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .model = FX_PATIENT},
        {.at_us = 20, .op = SUBMIT, .handle = 2, .expected = "X0:2", .wakeup_us = 1010},
        {.at_us = 30, .op = DONE, .expected = "R0:2=OK"},
        {.at_us = 40, .op = CANCEL, .handle = 1, .expected = "R0:1=CANCELLED"},
    };
    static const struct step readme_example[] = {
        /* A run of two rows that takes 200 us, so that the high guess is 400. */
        {.op = WORKER},
        {.op = SUBMIT, .handle = 9, .model = FX_PATIENT, .rows = 2},
        {.at_us = 1000, .op = TICK, .expected = "X0:9"},
        {.at_us = 1200, .op = DONE, .expected = "R0:9=OK"},
        /* The table in the README, 2000 us later: 1 to 4 are A to D. */
        {.at_us = 2000, .op = SUBMIT, .handle = 1, .model = FX_PATIENT, .wakeup_us = 3000},
        {.at_us = 2100,
         .op = SUBMIT,
         .handle = 2,
         .model = FX_PATIENT,
         .deadline_us = 2900,
         .wakeup_us = 2500},
        {.at_us = 2200,
         .op = SUBMIT,
         .handle = 3,
         .model = FX_PATIENT,
         .width = 99,
         .wakeup_us = 2500},
        {.at_us = 2500, .op = TICK, .expected = "X0:2,1"},
        {.at_us = 2600,
         .op = SUBMIT,
         .handle = 4,
         .model = FX_PATIENT,
         .width = 99,
         .rows = 4,
         .expected = "X0:3"},
        {.at_us = 2700, .op = DONE, .expected = "R0:2=OK R0:1=OK X0:4"},
        {.at_us = 2800, .op = DONE, .expected = "R0:3=OK"},
        {.at_us = 2900, .op = DONE, .expected = "R0:4=OK"},
    };
    PLAY(waits);
    PLAY(readme_example);
    PLAY(fills);
    PLAY(hurries);
    PLAY(impatient_neighbours);
}

static void order_is_priority_deadline_arrival(void **state)
{
    (void)state;
    static const struct step by_deadline[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .model = FX_SINGLE, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .model = FX_SINGLE, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3, .model = FX_SINGLE},
        {.op = SUBMIT, .handle = 4, .model = FX_SINGLE, .deadline_us = 90000},
        {.op = SUBMIT, .handle = 5, .model = FX_SINGLE, .deadline_us = 80000},
        {.op = SUBMIT, .handle = 6, .model = FX_SINGLE, .priority = 1},
        {.at_us = 1, .op = DONE, .expected = "R0:1=OK X0:6"},
        {.at_us = 2, .op = DONE, .expected = "R0:2=OK X0:5"},
        {.at_us = 3, .op = DONE, .expected = "R0:6=OK X0:4"},
        {.at_us = 4, .op = DONE, .expected = "R0:5=OK X0:3"},
        {.at_us = 5, .op = DONE, .expected = "R0:4=OK"},
        {.at_us = 6, .op = DONE, .expected = "R0:3=OK"},
    };
    static const struct step ageing[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .model = FX_SINGLE, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .model = FX_SINGLE, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3, .model = FX_SINGLE, .priority = 12},
        /* One step (250 ms) is worth one priority: two steps later 11 no longer goes first. */
        {.at_us = 510000, .op = SUBMIT, .handle = 4, .model = FX_SINGLE, .priority = 11},
        {.at_us = 510000, .op = SUBMIT, .handle = 5, .model = FX_SINGLE, .priority = 9},
        {.at_us = 510001, .op = DONE, .expected = "R0:1=OK X0:5"},
        {.at_us = 510002, .op = DONE, .expected = "R0:2=OK X0:3"},
        {.at_us = 510003, .op = DONE, .expected = "R0:5=OK X0:4"},
        {.at_us = 510004, .op = DONE, .expected = "R0:3=OK"},
        {.at_us = 510005, .op = DONE, .expected = "R0:4=OK"},
    };
    PLAY(by_deadline);
    PLAY(ageing);
}

static void late_requests_do_not_run(void **state)
{
    (void)state;
    static const struct step already[] = {
        {.op = WORKER},
        {.at_us = 10, .op = SUBMIT, .handle = 1, .deadline_us = 10, .expected = "R0:1=DEADLINE"},
    };
    static const struct step in_queue[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .model = FX_SINGLE, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .model = FX_SINGLE, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3, .model = FX_SINGLE, .deadline_us = 500, .wakeup_us = 500},
        {.at_us = 500, .op = TICK, .expected = "R0:3=DEADLINE"},
        {.at_us = 600, .op = DONE, .expected = "R0:1=OK"},
        {.at_us = 700, .op = DONE, .expected = "R0:2=OK"},
    };
    static const struct step hopeless[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.at_us = 8000, .op = DONE, .expected = "R0:1=OK"}, /* low guess: 2 ms */
        {.at_us = 9000,
         .op = SUBMIT,
         .handle = 2,
         .deadline_us = 10000,
         .expected = "R0:2=DEADLINE"},
        {.at_us = 9000, .op = SUBMIT, .handle = 3, .deadline_us = 12000, .expected = "X0:3"},
        {.at_us = 9100, .op = DONE, .expected = "R0:3=OK"},
    };
    PLAY(already);
    PLAY(in_queue);
    PLAY(hopeless);
}

static void cancels(void **state)
{
    (void)state;
    static const struct step table[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3},
        {.op = SUBMIT, .handle = 4},
        {.op = CANCEL, .handle = 3, .expected = "R0:3=CANCELLED"}, /* at once: it waited */
        {.op = CANCEL, .handle = 1, .expected = "A0:0"},           /* a worker reads its inputs */
        {.op = CANCEL, .handle = 1},
        {.op = CANCEL, .handle = 77},
        {.at_us = 50, .op = DONE, .expected = "L0 R0:1=CANCELLED X0:4"},
        {.at_us = 60, .op = CANCEL, .handle = 2, .expected = "A0:0"},
        {.at_us = 60, .op = FAIL, .expected = "R0:2=CANCELLED"},
        {.at_us = 70, .op = CANCEL, .handle = 4, .expected = "A0:0"},
        {.at_us = 70, .op = WORKER_DIES, .expected = "R0:4=CANCELLED"},
        {.at_us = 80, .op = CANCEL, .handle = 4},
    };
    PLAY(table);
}

static void deaths_of_workers(void **state)
{
    (void)state;
    static const struct step another_worker[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = WORKER, .who = 1},
        {.op = WORKER_DIES, .who = 0, .expected = "X1:1"},
        {.at_us = 9, .op = DONE, .who = 1, .expected = "R0:1=OK"},
    };
    static const struct step waits_for_the_worker[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"},
        {.op = WORKER_DIES, .who = 0},
        {.op = SUBMIT, .handle = 3},
        {.op = WORKER, .who = 0, .expected = "X0:1,2,3"}, /* the older ones first */
        {.at_us = 9, .op = DONE, .expected = "R0:1=OK R0:2=OK R0:3=OK"},
    };
    static const struct step split_and_poison[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3},
        {.op = WORKER_DIES, .who = 0},
        {.op = WORKER, .who = 0, .expected = "X0:1,2,3"},
        /* The second death for 1 and 2, the first for 3. Suspects go first, each alone. */
        {.op = WORKER_DIES, .who = 0},
        {.op = WORKER, .who = 0, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0, .expected = "R0:1=POISON"},
        {.op = WORKER, .who = 0, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 4},
        {.at_us = 9, .op = DONE, .expected = "R0:2=OK X0:3,4"},
        {.at_us = 12, .op = DONE, .expected = "R0:3=OK R0:4=OK"},
    };
    static const struct step suspect_gets_an_idle_worker[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0},
        {.op = WORKER, .who = 0, .expected = "X0:1"},
        {.op = WORKER, .who = 1},
        {.op = SUBMIT, .handle = 2, .expected = "X1:2"},
        {.op = SUBMIT, .handle = 3, .expected = "X0:3"},
        {.op = SUBMIT, .handle = 4, .expected = "X1:4"},
        /* 1 is a suspect now; worker 1 is busy, so it is kept free of new batches. */
        {.op = WORKER_DIES, .who = 0},
        {.op = SUBMIT, .handle = 5},
        {.at_us = 9, .op = DONE, .who = 1, .expected = "R0:2=OK"},
        {.at_us = 10, .op = DONE, .who = 1, .expected = "R0:4=OK X1:1"},
        {.at_us = 11, .op = DONE, .who = 1, .expected = "R0:1=OK X1:3,5"},
        {.at_us = 12, .op = DONE, .who = 1, .expected = "R0:3=OK R0:5=OK"},
    };
    static const struct step suspect_can_be_cancelled[] = {
        {.op = WORKER, .who = 0},      {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0}, {.op = WORKER, .who = 0, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0}, {.op = CANCEL, .handle = 1, .expected = "R0:1=CANCELLED"},
    };
    static const struct step suspect_can_expire[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .deadline_us = 700, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0},
        {.op = WORKER, .who = 0, .expected = "X0:1"},
        {.op = WORKER_DIES, .who = 0, .wakeup_us = 700},
        {.at_us = 700, .op = TICK, .expected = "R0:1=DEADLINE"},
    };
    PLAY(another_worker);
    PLAY(waits_for_the_worker);
    PLAY(split_and_poison);
    PLAY(suspect_gets_an_idle_worker);
    PLAY(suspect_can_be_cancelled);
    PLAY(suspect_can_expire);
}

/* A run that fails is repeated by each of its requests alone, so that only the guilty one fails. */
static void failures_of_batches(void **state)
{
    (void)state;
    static const struct step one_is_guilty[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3},
        {.op = SUBMIT, .handle = 4},
        {.op = SUBMIT, .handle = 5},
        {.at_us = 9, .op = DONE, .expected = "R0:1=OK X0:3,4,5"},
        {.at_us = 10, .op = DONE, .expected = "R0:2=OK"},
        {.at_us = 11, .op = CANCEL, .handle = 5, .expected = "A0:2"},
        {.at_us = 12, .op = FAIL, .expected = "R0:5=CANCELLED X0:3"},
        {.at_us = 13, .op = DONE, .expected = "R0:3=OK X0:4"},
        {.at_us = 14, .op = FAIL, .expected = "R0:4=INVALID"},
    };
    static const struct step a_death_while_alone_is_the_first[] = {
        {.op = WORKER, .who = 0},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .handle = 2, .expected = "X0:2"},
        {.op = SUBMIT, .handle = 3},
        {.op = SUBMIT, .handle = 4},
        {.at_us = 9, .op = DONE, .expected = "R0:1=OK X0:3,4"},
        {.at_us = 10, .op = DONE, .expected = "R0:2=OK"},
        {.at_us = 11, .op = FAIL, .expected = "X0:3"},
        {.op = WORKER_DIES, .who = 0, .at_us = 12},
        {.op = WORKER, .who = 0, .at_us = 13, .expected = "X0:4"}, /* 3 went to the end */
        {.at_us = 14, .op = DONE, .expected = "R0:4=OK X0:3"},
        {.at_us = 15, .op = DONE, .expected = "R0:3=OK"},
    };
    PLAY(one_is_guilty);
    PLAY(a_death_while_alone_is_the_first);
}

static void deaths_of_gateways(void **state)
{
    (void)state;
    static const struct step table[] = {
        {.op = WORKER},
        {.op = GATEWAY, .who = 1},
        {.op = SUBMIT, .who = 1, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .who = 0, .handle = 1, .expected = "X0:1"},
        {.op = SUBMIT, .who = 1, .handle = 2},
        {.op = SUBMIT, .who = 0, .handle = 2},
        {.op = CANCEL, .who = 1, .handle = 1, .expected = "A0:0"},
        {.op = GATEWAY_DIES, .who = 1, .expected = "D0:51"},
        /* The same index, and a handle that an orphan still has. */
        {.op = GATEWAY, .who = 1},
        {.op = SUBMIT, .who = 1, .handle = 1},
        {.at_us = 9, .op = DONE, .expected = "L0 X0:2,1"},
        {.at_us = 10, .op = DONE, .expected = "R0:1=OK"},
        {.at_us = 11, .op = DONE, .expected = "R0:2=OK R1:1=OK"},
    };
    static const struct step both_die[] = {
        {.op = WORKER},
        {.op = SUBMIT, .handle = 1, .expected = "X0:1"},
        {.op = GATEWAY_DIES, .who = 0, .expected = "A0:0 D0:50"},
        {.op = WORKER_DIES, .who = 0},
        /* A worker that comes later is told, too. */
        {.op = WORKER, .who = 2, .expected = "D2:50"},
    };
    PLAY(table);
    PLAY(both_die);
}

static void hung_workers_are_reported_once(void **state)
{
    (void)state;
    static const struct step table[] = {
        {.op = WORKER, .who = 0},
        /* The first of its shape: nobody knows how long it takes. */
        {.op = SUBMIT, .handle = 1, .expected = "X0:1", .wakeup_us = 60000000},
        {.at_us = 30000000, .op = TICK},
        {.at_us = 30000001, .op = WORKER, .who = 1},
        {.at_us = 60000000, .op = TICK, .expected = "K0"},
        {.at_us = 60000001, .op = SUBMIT, .handle = 2, .expected = "X1:2"},
        {.at_us = 60000002, .op = WORKER_DIES, .who = 0, .expected = "X1:1"},
        {.at_us = 60000003, .op = DONE, .who = 1, .expected = "R0:2=OK"},
        {.at_us = 60000004, .op = DONE, .who = 1, .expected = "R0:1=OK"},
        /* Now its time is known. */
        {.at_us = 70000000, .op = SUBMIT, .handle = 3, .expected = "X1:3", .wakeup_us = 80000000},
        {.at_us = 80000000, .op = TICK, .expected = "K1"},
        {.at_us = 80000001, .op = WORKER_DIES, .who = 1},
        {.at_us = 80000002, .op = WORKER, .who = 2, .expected = "X2:3"},
        {.at_us = 80000003, .op = DONE, .who = 2, .expected = "R0:3=OK"},
    };
    PLAY(table);
}

/* ---- beyond tables ---- */

static void replies_tell_the_request_life(void **state)
{
    (void)state;
    struct fx fx;
    fx_open(&fx, NULL);
    fx_add_gateway(&fx, 0, 50);
    fx_add_worker(&fx, 4, 104);
    fx_submit(&fx, &(struct fx_submit){.handle = 1, .rows = 2, .mask = 3}, 1000);
    fx_submit(&fx, &(struct fx_submit){.handle = 2, .rows = 3}, 1001);
    sd_core_pump(fx.core, 1005);
    fx_done(&fx, 4, CM_OK, 2000);
    assert_int_equal(fx.last_reply.request, 2);
    assert_int_equal(fx.last_reply.trace.trace_id, 2);
    assert_int_equal(fx.last_reply.trace.stage, CM_STAGE_REPLY);
    assert_int_equal(fx.last_reply.trace.device, 4);
    assert_int_equal(fx.last_reply.batch_rows, 5);
    assert_int_equal(fx.last_reply.batch_items, 2);
    assert_int_equal(fx.last_reply.attempts, 1);
    assert_int_equal(fx.last_reply.n_outputs, 1);
    assert_int_equal(fx.last_reply.slab.worker, 104);
    assert_int_equal(fx.last_reply.times.queued_ns, 1001);
    assert_int_equal(fx.last_reply.times.dispatched_ns, 1005);
    assert_int_equal(fx.last_reply.times.started_ns, 2);
    assert_int_equal(fx.last_reply.times.replied_ns, 2000);
    fx_submit(&fx, &(struct fx_submit){.handle = 3}, 3000);
    sd_core_pump(fx.core, 3000);
    fx_done(&fx, 4, CM_UNSUPPORTED, 4000);
    assert_int_equal(fx.last_reply.status, CM_UNSUPPORTED);
    assert_string_equal(fx.last_text, "the kernel said no");
    fx_close(&fx);
}

static void full_queues_refuse(void **state)
{
    (void)state;
    struct fx fx;
    struct sd_limits limits = {.max_requests = 100, .max_buckets = 2};
    fx_open(&fx, &limits);
    fx_add_gateway(&fx, 0, 50);
    fx_add_worker(&fx, 0, 100);
    fx_del_worker(&fx, 0, 1);
    fx.used = 0;
    for (uint64_t i = 0; i < 64; i++)
        fx_submit(&fx, &(struct fx_submit){.handle = i}, 10);
    fx_expect(&fx, "fits", "");
    fx_submit(&fx, &(struct fx_submit){.handle = 64}, 10);
    fx_expect(&fx, "over the model's limit", "R0:64=UNAVAILABLE");
    assert_non_null(strstr(fx.last_text, "queue of model eager is full"));
    for (uint64_t i = 100; i < 136; i++)
        fx_submit(&fx, &(struct fx_submit){.handle = i, .model = FX_SINGLE}, 10);
    fx_expect(&fx, "fits", "");
    fx_submit(&fx, &(struct fx_submit){.handle = 200, .model = FX_SINGLE}, 10);
    fx_expect(&fx, "over the table", "R0:200=UNAVAILABLE");
    fx_submit(&fx, &(struct fx_submit){.handle = 201, .model = FX_SINGLE, .width = 3}, 10);
    fx_expect(&fx, "over the shapes", "R0:201=UNAVAILABLE");
    assert_non_null(strstr(fx.last_text, "shapes"));
    assert_int_equal(sd_core_counters(fx.core)->refused, 3);
    /* A slot that comes free is used again; so is an empty bucket. */
    for (uint64_t i = 0; i < 64; i++)
        fx_cancel(&fx, 0, i, 20);
    fx.used = 0;
    fx_submit(&fx, &(struct fx_submit){.handle = 300, .width = 3}, 10);
    fx_expect(&fx, "reuse", "");
    sd_core_audit(fx.core);
    fx_close(&fx);
}

static void duplicates_and_strangers_are_ignored(void **state)
{
    (void)state;
    struct fx fx;
    struct cm_error err;
    fx_open(&fx, NULL);
    fx_add_gateway(&fx, 0, 50);
    fx_add_worker(&fx, 0, 100);
    fx_submit(&fx, &(struct fx_submit){.handle = 1}, 10);
    fx_submit(&fx, &(struct fx_submit){.handle = 1}, 10);
    sd_core_pump(fx.core, 10);
    fx_expect(&fx, "once", "X0:1");
    assert_int_equal(sd_core_counters(fx.core)->duplicates_ignored, 1);
    /* DONE twice: the second changes nothing, and gives no credit. */
    struct fx_batch batch = *fx_oldest(&fx, 0);
    uint32_t length = fx_make_done(&fx, &batch, CM_OK, "");
    uint64_t copy[64];
    memcpy(copy, fx.record, length);
    for (int i = 0; i < 2; i++)
        assert_int_equal(sd_core_from_worker(fx.core, 0, CM_RECORD_DONE, copy, length, 20, &err),
                         CM_OK);
    fx_expect(&fx, "one answer", "R0:1=OK");
    assert_int_equal(sd_core_counters(fx.core)->dones_ignored, 1);
    /* A model of another life. */
    length = fx_make_submit(&fx, &(struct fx_submit){.handle = 9});
    memcpy(copy, fx.record, length);
    ((struct cm_record_submit *)copy)->model.generation++;
    assert_int_equal(sd_core_from_gateway(fx.core, 0, CM_RECORD_SUBMIT, copy, length, 20, &err),
                     CM_OK);
    fx_expect(&fx, "stale", "R0:9=STALE");
    /* A release for a worker that is gone. */
    fx_release(&fx, 0, &(struct cm_slab_ref){.worker = 12345}, 20);
    fx_expect(&fx, "release", "");
    assert_int_equal(sd_core_counters(fx.core)->releases_ignored, 1);
    sd_core_audit(fx.core);
    fx_close(&fx);
}

/* What a worker must not send changes nothing and names a reason; the owner cuts it off. */
static void hostile_dones_are_refused_whole(void **state)
{
    (void)state;
    struct fx fx;
    struct cm_error err;
    uint64_t copy[64];
    fx_open(&fx, NULL);
    fx_add_gateway(&fx, 0, 50);
    fx_add_worker(&fx, 0, 100);
    fx_submit(&fx, &(struct fx_submit){.handle = 1, .rows = 2, .mask = 2}, 10);
    sd_core_pump(fx.core, 10);
    fx_expect(&fx, "sent", "X0:1");
    for (int i = 0; i < 7; i++) {
        uint32_t length = fx_make_done(&fx, fx_oldest(&fx, 0), CM_OK, "");
        memcpy(copy, fx.record, length);
        struct cm_record_done *done = (struct cm_record_done *)copy;
        struct cm_done_item *item = (struct cm_done_item *)(done + 1);
        struct cm_tensor_desc *output = (struct cm_tensor_desc *)(item + 1);
        uint8_t type = CM_RECORD_DONE;
        switch (i) {
        case 0:
            done->n_items = 2;
            break;
        case 1:
            item->slab.worker = 101;
            break;
        case 2:
            item->n_outputs = 0;
            break;
        case 3:
            output->index = 0;
            break;
        case 4:
            output->dtype = CM_INT32;
            break;
        case 5:
            output->dims[0] = 1;
            break;
        case 6:
            type = CM_RECORD_SUBMIT;
            break;
        }
        assert_int_equal(sd_core_from_worker(fx.core, 0, type, copy, length, 20, &err), CM_CORRUPT);
        fx_expect(&fx, "nothing", "");
        sd_core_audit(fx.core);
    }
    assert_int_equal(sd_core_counters(fx.core)->hostile_records, 7);
    fx_done(&fx, 0, CM_OK, 30);
    fx_expect(&fx, "the honest one", "R0:1=OK");
    struct cm_record_done done = {0};
    assert_int_equal(sd_core_from_gateway(fx.core, 0, CM_RECORD_DONE, &done, sizeof done, 30, &err),
                     CM_CORRUPT);
    fx_close(&fx);
}

static enum cm_err held(struct fx *fx, uint64_t worker, uint32_t slab)
{
    struct cm_error err;
    struct cm_record_held record = {.slab = {.worker = worker, .slab = slab, .generation = 1}};
    return sd_core_from_gateway(fx->core, 0, CM_RECORD_HELD, &record, sizeof record, 10, &err);
}

static enum cm_err resumed(struct fx *fx, uint64_t instance)
{
    struct cm_error err;
    struct cm_record_resumed record = {.gateway = instance};
    return sd_core_from_gateway(fx->core, 0, CM_RECORD_RESUMED, &record, sizeof record, 10, &err);
}

static void held_outputs_reach_workers_that_come_late(void **state)
{
    (void)state;
    struct fx fx;
    struct sd_limits limits = {.max_held = 4};
    fx_open(&fx, &limits);
    fx_add_worker(&fx, 0, 100);
    fx_add_gateway(&fx, 0, 50);
    assert_int_equal(held(&fx, 100, 1), CM_OK);
    fx_expect(&fx, "to the worker that is here", "H0");
    assert_int_equal(held(&fx, 101, 1), CM_OK);
    assert_int_equal(held(&fx, 101, 2), CM_OK);
    assert_int_equal(held(&fx, 102, 3), CM_OK);
    assert_int_equal(resumed(&fx, 51), CM_CORRUPT);
    assert_int_equal(resumed(&fx, 50), CM_OK);
    fx_expect(&fx, "resumed", "S0:50");
    assert_int_equal(held(&fx, 101, 9), CM_CORRUPT);
    /* Released before its worker came: nothing to tell it. */
    fx_release(&fx, 0, &(struct cm_slab_ref){.worker = 101, .slab = 2, .generation = 1}, 20);
    assert_int_equal(sd_core_held(fx.core), 2);
    fx_add_worker(&fx, 1, 101);
    fx_expect(&fx, "late", "H1 S1:50");
    assert_int_equal(sd_core_held(fx.core), 1);
    fx_release(&fx, 0, &(struct cm_slab_ref){.worker = 101, .slab = 1, .generation = 1}, 20);
    fx_expect(&fx, "release", "L1");
    fx_del_gateway(&fx, 0);
    fx_expect(&fx, "drop", "D0:50 D1:50");
    assert_int_equal(sd_core_held(fx.core), 0);
    fx_close(&fx);
}

static void too_many_held_outputs_are_refused(void **state)
{
    (void)state;
    struct fx fx;
    struct sd_limits limits = {.max_held = 4};
    fx_open(&fx, &limits);
    fx_add_gateway(&fx, 0, 50);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(held(&fx, 101, i), CM_OK);
    assert_int_equal(held(&fx, 101, 4), CM_CORRUPT);
    fx_close(&fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request),
        cmocka_unit_test(batches_form_while_workers_are_busy),
        cmocka_unit_test(patient_models_wait_for_company),
        cmocka_unit_test(order_is_priority_deadline_arrival),
        cmocka_unit_test(late_requests_do_not_run),
        cmocka_unit_test(cancels),
        cmocka_unit_test(deaths_of_workers),
        cmocka_unit_test(failures_of_batches),
        cmocka_unit_test(deaths_of_gateways),
        cmocka_unit_test(hung_workers_are_reported_once),
        cmocka_unit_test(replies_tell_the_request_life),
        cmocka_unit_test(full_queues_refuse),
        cmocka_unit_test(duplicates_and_strangers_are_ignored),
        cmocka_unit_test(hostile_dones_are_refused_whole),
        cmocka_unit_test(held_outputs_reach_workers_that_come_late),
        cmocka_unit_test(too_many_held_outputs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
