/* What cmocka lacks: bounded waiting on a loop, seeded random numbers. Test thread only. */
#ifndef TESTS_HARNESS_T_H
#define TESTS_HARNESS_T_H

/* cmocka.h needs these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <uv.h>

/* How long a test waits for anything before it says that it will not come. */
#define T_BOUND_MS 20000

struct t_bound {
    uv_timer_t timer;
    bool expired;
    bool closed;
};

void t_bound_start(struct t_bound *bound, uv_loop_t *loop, uint64_t ms);
/* Closes the timer and runs the loop until it is gone. */
void t_bound_stop(struct t_bound *bound);

/* Runs loop until condition holds, for T_BOUND_MS at most; fails the test at this line otherwise.
 */
#define T_WAIT(loop, condition)                                        \
    do {                                                               \
        struct t_bound t_bound_;                                       \
        t_bound_start(&t_bound_, (loop), T_BOUND_MS);                  \
        while (!(condition) && !t_bound_.expired)                      \
            uv_run((loop), UV_RUN_ONCE);                               \
        bool t_expired_ = t_bound_.expired;                            \
        t_bound_stop(&t_bound_);                                       \
        if (t_expired_ && !(condition))                                \
            fail_msg("%d ms went by without " #condition, T_BOUND_MS); \
    } while (0)

/* Runs the loop until nothing is left and closes it: fails if a handle stays active. */
void t_loop_finish(uv_loop_t *loop);

/* A private directory below $TMPDIR or /tmp; t_remove_dir deletes it with all that is inside. */
#define T_PATH_MAX 256
void t_make_dir(char path[T_PATH_MAX]);
void t_remove_dir(const char *path);

/* xorshift64*: the same numbers for the same seed (not 0) everywhere. */
uint64_t t_random(uint64_t *state);

#endif
