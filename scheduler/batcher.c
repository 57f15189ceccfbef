/* The closing rule. Pure. */
#include "scheduler/batcher.h"

#include "common/clock.h"

struct sd_close sd_batcher_close(const struct sd_waiting *waiting, uint64_t now_ns)
{
    if (waiting->rows >= waiting->max_rows || waiting->items >= waiting->max_items)
        return (struct sd_close){SD_CLOSE_FULL, now_ns};
    /* Asked only when a worker has a credit free: without a configured wait, leaving now is never
     * worse for those who are here. */
    if (waiting->max_wait_ns == 0)
        return (struct sd_close){SD_CLOSE_IDLE, now_ns};
    uint64_t waited_at = cm_time_add(waiting->oldest_ns, waiting->max_wait_ns);
    if (waited_at <= now_ns)
        return (struct sd_close){SD_CLOSE_WAITED, now_ns};
    uint64_t at = waited_at;
    if (waiting->earliest_deadline_ns != CM_NEVER) {
        uint64_t leave_at = waiting->earliest_deadline_ns > waiting->predicted_ns
                                ? waiting->earliest_deadline_ns - waiting->predicted_ns
                                : 0;
        if (leave_at <= now_ns)
            return (struct sd_close){SD_CLOSE_DEADLINE, now_ns};
        if (leave_at < at)
            at = leave_at;
    }
    return (struct sd_close){SD_CLOSE_NOT, at};
}
