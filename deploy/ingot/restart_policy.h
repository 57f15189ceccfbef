/* When a dead process is started again, and when the cluster gives up on it.
 *
 * Pure decisions about one process; time is an argument (CLOCK_MONOTONIC nanoseconds), nothing is
 * read or allocated. Used on the supervisor's loop.
 *
 *   - A first death is answered at once. Deaths in a row wait longer: 0, 100 ms, 200 ms, ... 5 s.
 *   - A life that was ready for a second ends the row: what worked and was then killed is not what
 *     keeps dying, and its users wait for it. (Should it die each second for ever, one start a
 *     second is a load that the machine bears.)
 *   - Five deaths within 60 s, none of which came after READY, mean that it cannot start: give up.
 *   - CM_EXIT_USAGE means that its arguments or its configuration are wrong: give up at once,
 * unless it was ready in an earlier life. Then its arguments are right, and what it rejects (a
 *     certificate whose key is just being replaced) may be right again soon. */
#ifndef DEPLOY_INGOT_RESTART_POLICY_H
#define DEPLOY_INGOT_RESTART_POLICY_H

#include "common/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define IG_RESTART_FIRST_NS  (100 * CM_NS_PER_MS)
#define IG_RESTART_MAX_NS    (5 * CM_NS_PER_S)
#define IG_RESTART_STEADY_NS (1 * CM_NS_PER_S)
#define IG_RESTART_WINDOW_NS (60 * CM_NS_PER_S)
#define IG_RESTART_DEATHS    5u

/* Embedded in the supervisor's process record; all zero is a process that was never started. */
struct ig_restart {
    bool ready;        /* in this life */
    uint64_t ready_ns; /* when it said so */
    bool proven;       /* was ready, in whatever life */
    unsigned streak;   /* deaths in a row */
    /* Times of the last deaths before READY, a ring; a life that became ready empties it. */
    uint64_t failed_ns[IG_RESTART_DEATHS];
    unsigned failed;
};

enum ig_restart_action {
    IG_RESTART_AFTER,         /* start it again after delay_ns */
    IG_RESTART_GIVE_UP,       /* it cannot start */
    IG_RESTART_CONFIGURATION, /* it was started wrongly */
};

struct ig_restart_verdict {
    enum ig_restart_action action;
    uint64_t delay_ns;
};

void ig_restart_on_start(struct ig_restart *restart);
/* READY came; later ones of the same life change nothing. */
void ig_restart_on_ready(struct ig_restart *restart, uint64_t now_ns);

/* It died without having been told to stop. exit_code: its own, or -1 if a signal ended it or it
 * could not be started at all. */
struct ig_restart_verdict ig_restart_on_exit(struct ig_restart *restart, uint64_t now_ns,
                                             int exit_code);

#endif
