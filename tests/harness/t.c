/* Test helpers. See t.h. */
#include "tests/harness/t.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_expired(uv_timer_t *timer)
{
    struct t_bound *bound = timer->data;
    bound->expired = true;
}

static void on_closed(uv_handle_t *handle)
{
    struct t_bound *bound = handle->data;
    bound->closed = true;
}

void t_bound_start(struct t_bound *bound, uv_loop_t *loop, uint64_t ms)
{
    memset(bound, 0, sizeof *bound);
    assert_int_equal(uv_timer_init(loop, &bound->timer), 0);
    bound->timer.data = bound;
    uv_update_time(loop);
    assert_int_equal(uv_timer_start(&bound->timer, on_expired, ms, 0), 0);
}

void t_bound_stop(struct t_bound *bound)
{
    uv_loop_t *loop = bound->timer.loop;
    uv_close((uv_handle_t *)&bound->timer, on_closed);
    while (!bound->closed)
        uv_run(loop, UV_RUN_NOWAIT);
}

void t_loop_finish(uv_loop_t *loop)
{
    struct t_bound bound;
    t_bound_start(&bound, loop, T_BOUND_MS);
    uv_unref((uv_handle_t *)&bound.timer);
    while (uv_loop_alive(loop) && !bound.expired)
        uv_run(loop, UV_RUN_ONCE);
    if (bound.expired)
        fail_msg("a handle keeps the loop alive");
    t_bound_stop(&bound);
    assert_int_equal(uv_loop_close(loop), 0);
}

void t_make_dir(char path[T_PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, T_PATH_MAX, "%s/ingot-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void t_remove_dir(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

uint64_t t_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1dull;
}
