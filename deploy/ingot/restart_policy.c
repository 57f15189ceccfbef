/* Restart decisions of the supervisor. Pure; the supervisor's loop. */
#include "deploy/ingot/restart_policy.h"

#include "common/proc.h"

#include <string.h>

void ig_restart_on_start(struct ig_restart *restart)
{
    restart->ready = false;
    restart->ready_ns = 0;
}

void ig_restart_on_ready(struct ig_restart *restart, uint64_t now_ns)
{
    if (restart->ready)
        return;
    restart->ready = restart->proven = true;
    restart->ready_ns = now_ns;
    restart->failed = 0;
}

/* Delay before start number streak + 1 of a row: 0, then doubling up to the maximum. */
static uint64_t delay_of(unsigned streak)
{
    uint64_t delay_ns = IG_RESTART_FIRST_NS;
    if (streak == 0)
        return 0;
    while (--streak > 0 && delay_ns < IG_RESTART_MAX_NS)
        delay_ns *= 2;
    return delay_ns < IG_RESTART_MAX_NS ? delay_ns : IG_RESTART_MAX_NS;
}

/* True if this death fills the window. */
static bool note_failed_start(struct ig_restart *restart, uint64_t now_ns)
{
    if (restart->failed == IG_RESTART_DEATHS) {
        memmove(restart->failed_ns, restart->failed_ns + 1,
                (IG_RESTART_DEATHS - 1) * sizeof restart->failed_ns[0]);
        restart->failed--;
    }
    restart->failed_ns[restart->failed++] = now_ns;
    return restart->failed == IG_RESTART_DEATHS &&
           now_ns - restart->failed_ns[0] <= IG_RESTART_WINDOW_NS;
}

struct ig_restart_verdict ig_restart_on_exit(struct ig_restart *restart, uint64_t now_ns,
                                             int exit_code)
{
    struct ig_restart_verdict verdict = {.action = IG_RESTART_AFTER};
    bool steady = restart->ready && now_ns - restart->ready_ns >= IG_RESTART_STEADY_NS;
    bool rejected = exit_code == CM_EXIT_USAGE;
    if (rejected && !restart->proven) {
        verdict.action = IG_RESTART_CONFIGURATION;
        return verdict;
    }
    if (!restart->ready && !rejected && note_failed_start(restart, now_ns)) {
        verdict.action = IG_RESTART_GIVE_UP;
        return verdict;
    }
    if (steady)
        restart->streak = 0;
    verdict.delay_ns = delay_of(restart->streak);
    restart->streak++;
    return verdict;
}
