/* The only place that reads a clock. Any thread.
 *
 * All times inside a process and in ring records are CLOCK_MONOTONIC nanoseconds: processes of a
 * node share that clock. The real-time clock is for log lines, trace ids and certificates only. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CM_NS_PER_US 1000ull
#define CM_NS_PER_MS 1000000ull
#define CM_NS_PER_S  1000000000ull

/* A deadline that never comes. */
#define CM_NEVER UINT64_MAX

static inline uint64_t cm_clock_read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * CM_NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline uint64_t cm_now_ns(void)
{
    return cm_clock_read_ns(CLOCK_MONOTONIC);
}

static inline uint64_t cm_realtime_ns(void)
{
    return cm_clock_read_ns(CLOCK_REALTIME);
}

/* now + delay without wrapping: CM_NEVER on overflow. */
static inline uint64_t cm_time_add(uint64_t now_ns, uint64_t delay_ns)
{
    uint64_t sum;
    return __builtin_add_overflow(now_ns, delay_ns, &sum) ? CM_NEVER : sum;
}

#endif
