/* Restart decisions as tables: events with their times, and what must follow. */
#include "deploy/ingot/restart_policy.h"

#include "common/check.h"
#include "tests/harness/t.h"

#define MS(n) ((n)*CM_NS_PER_MS)

enum what { START, READY, DEATH, END };

struct event {
    enum what what;
    uint64_t at_ms;
    int exit_code; /* of a death; -1: a signal */
    enum ig_restart_action action;
    uint64_t delay_ms;
};

#define S(at)                             \
    {                                     \
        START, at, 0, IG_RESTART_AFTER, 0 \
    }
#define R(at)                             \
    {                                     \
        READY, at, 0, IG_RESTART_AFTER, 0 \
    }
#define D(at, code, action, delay)     \
    {                                  \
        DEATH, at, code, action, delay \
    }
#define E                              \
    {                                  \
        END, 0, 0, IG_RESTART_AFTER, 0 \
    }

struct story {
    const char *name;
    struct event events[40];
};

static const struct story stories[] = {
    {"first death is answered at once", {S(0), R(50), D(90, -1, IG_RESTART_AFTER, 0), E}},
    {"deaths in a row wait longer, up to 5 s",
     {S(0),     R(1),     D(2, 1, IG_RESTART_AFTER, 0),
      S(10),    R(11),    D(12, 1, IG_RESTART_AFTER, 100),
      S(200),   R(201),   D(202, 1, IG_RESTART_AFTER, 200),
      S(500),   R(501),   D(502, 1, IG_RESTART_AFTER, 400),
      S(1000),  R(1001),  D(1002, 1, IG_RESTART_AFTER, 800),
      S(2000),  R(2001),  D(2002, 1, IG_RESTART_AFTER, 1600),
      S(4000),  R(4001),  D(4002, 1, IG_RESTART_AFTER, 3200),
      S(8000),  R(8001),  D(8002, 1, IG_RESTART_AFTER, 5000),
      S(14000), R(14001), D(14002, 1, IG_RESTART_AFTER, 5000),
      S(20000), R(20001), D(20002, 1, IG_RESTART_AFTER, 5000),
      S(26000), R(26001), D(26002, 1, IG_RESTART_AFTER, 5000),
      E}},
    {"a life that was ready for a second ends the row",
     {S(0), R(10), D(20, -1, IG_RESTART_AFTER, 0), S(20), R(30), D(40, -1, IG_RESTART_AFTER, 100),
      S(140), R(150), D(1150, -1, IG_RESTART_AFTER, 0), S(1150), R(1160),
      D(1170, -1, IG_RESTART_AFTER, 100), E}},
    {"killed every two seconds it is back at once each time",
     {S(0), R(100), D(2000, -1, IG_RESTART_AFTER, 0), S(2000), R(2100),
      D(4000, -1, IG_RESTART_AFTER, 0), S(4000), R(4100), D(6000, -1, IG_RESTART_AFTER, 0), E}},
    {"five deaths before READY within 60 s: give up",
     {S(0), D(10, 1, IG_RESTART_AFTER, 0), S(10), D(20, -1, IG_RESTART_AFTER, 100), S(120),
      D(130, 3, IG_RESTART_AFTER, 200), S(330), D(340, 0, IG_RESTART_AFTER, 400), S(740),
      D(60010, 1, IG_RESTART_GIVE_UP, 0), E}},
    {"the window slides",
     {S(0), D(0, 1, IG_RESTART_AFTER, 0), S(1), D(20000, 1, IG_RESTART_AFTER, 100), S(20100),
      D(40000, 1, IG_RESTART_AFTER, 200), S(40200), D(50000, 1, IG_RESTART_AFTER, 400), S(50400),
      D(60001, 1, IG_RESTART_AFTER, 800),           /* the first was 60.001 s ago */
      S(60801), D(80000, 1, IG_RESTART_GIVE_UP, 0), /* five since 20 s */
      E}},
    {"a life that became ready empties the window",
     {S(0), D(10, 1, IG_RESTART_AFTER, 0), S(10), D(20, 1, IG_RESTART_AFTER, 100), S(120),
      D(130, 1, IG_RESTART_AFTER, 200), S(330), D(340, 1, IG_RESTART_AFTER, 400), S(740), R(750),
      D(760, 1, IG_RESTART_AFTER, 800), S(1560), D(1570, 1, IG_RESTART_AFTER, 1600), E}},
    {"a configuration error is not tried again", {S(0), D(10, 2, IG_RESTART_CONFIGURATION, 0), E}},
    {"but for as long as it takes if it was accepted before",
     {S(0),
      R(5),
      D(100, 2, IG_RESTART_AFTER, 0),
      S(100),
      D(110, 2, IG_RESTART_AFTER, 100),
      S(210),
      D(220, 2, IG_RESTART_AFTER, 200),
      S(420),
      D(430, 2, IG_RESTART_AFTER, 400),
      S(830),
      D(840, 2, IG_RESTART_AFTER, 800),
      S(1640),
      D(1650, 2, IG_RESTART_AFTER, 1600),
      S(3250),
      D(3260, 2, IG_RESTART_AFTER, 3200),
      S(6460),
      D(6470, 2, IG_RESTART_AFTER, 5000),
      S(11470),
      R(11480),
      D(12480, -1, IG_RESTART_AFTER, 0),
      E}},
    {"which other deaths are not",
     {S(0), R(5), D(100, -1, IG_RESTART_AFTER, 0), S(100), D(110, 1, IG_RESTART_AFTER, 100), S(210),
      D(220, 1, IG_RESTART_AFTER, 200), S(420), D(430, 1, IG_RESTART_AFTER, 400), S(830),
      D(840, 1, IG_RESTART_AFTER, 800), S(1640), D(1650, 1, IG_RESTART_GIVE_UP, 0), E}},
    {"a second READY changes nothing",
     {S(0), R(10), D(20, -1, IG_RESTART_AFTER, 0), S(30), R(40), R(1500),
      D(1600, -1, IG_RESTART_AFTER, 0), /* ready since 40 ms */
      E}},
};

static void play(const struct story *story)
{
    struct ig_restart restart = {0};
    for (const struct event *event = story->events; event->what != END; event++) {
        /* Not from 0: the clock is not. */
        uint64_t now_ns = MS(event->at_ms) + 7 * CM_NS_PER_S;
        if (event->what == START) {
            ig_restart_on_start(&restart);
        } else if (event->what == READY) {
            ig_restart_on_ready(&restart, now_ns);
        } else {
            struct ig_restart_verdict verdict =
                ig_restart_on_exit(&restart, now_ns, event->exit_code);
            if (verdict.action != event->action || verdict.delay_ns != MS(event->delay_ms))
                fail_msg("%s: at %llu ms action %d after %llu ms", story->name,
                         (unsigned long long)event->at_ms, verdict.action,
                         (unsigned long long)(verdict.delay_ns / CM_NS_PER_MS));
        }
    }
}

static void stories_end_as_told(void **state)
{
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(stories); i++)
        play(&stories[i]);
}

/* However long a row is, the delay neither overflows nor leaves its bound. */
static void long_rows_stay_bounded(void **state)
{
    struct ig_restart restart = {0};
    uint64_t now_ns = CM_NS_PER_S;
    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        ig_restart_on_start(&restart);
        ig_restart_on_ready(&restart, now_ns);
        struct ig_restart_verdict verdict = ig_restart_on_exit(&restart, now_ns + 1, -1);
        assert_int_equal(verdict.action, IG_RESTART_AFTER);
        assert_true(verdict.delay_ns <= IG_RESTART_MAX_NS);
        now_ns += verdict.delay_ns + 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stories_end_as_told),
        cmocka_unit_test(long_rows_stay_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
