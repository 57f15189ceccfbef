/* Random arrivals, cancels, ends, duplicates and deaths against the promises of the core:
 *  - every SUBMIT gets exactly one REPLY, unless its gateway died, then none after the death;
 *  - no worker ever has more batches than credits (sd_core_audit);
 *  - every item that a worker finished is either in a REPLY or released, once;
 *  - some requests kill every worker that runs them: they end as poison, their company does not
 * hang;
 *  - inputs are not given back (REPLY) while a living worker may read them;
 *  - when all is over the tables are empty. */
#include "common/check.h"
#include "common/clock.h"
#include "tests/scheduler/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HANDLES  4000
#define GATEWAYS 3
#define WORKERS  4

enum life { UNUSED, OPEN, REPLIED, LOST };

struct world {
    struct fx fx;
    uint64_t now_ns;
    uint64_t seed;
    enum life lives[GATEWAYS][HANDLES];
    uint32_t next_handle[GATEWAYS];
    uint64_t next_instance;
    uint32_t slabs_made, slabs_back;
    bool hung[WORKERS];
};

static uint32_t roll(struct world *world, uint32_t sides)
{
    world->seed = world->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(world->seed >> 33) % sides;
}

/* ---- watching ---- */

static bool with_a_worker(const struct world *world, uint64_t gateway, uint64_t handle)
{
    for (uint32_t i = 0; i < world->fx.n_batches; i++)
        for (uint32_t k = 0; k < world->fx.batches[i].n_items; k++)
            if (world->fx.batches[i].gateways[k] == gateway &&
                world->fx.batches[i].handles[k] == handle)
                return true;
    return false;
}

static void on_reply(void *ctx, uint32_t gateway, const struct cm_record_reply *reply)
{
    struct world *world = ctx;
    enum life *life = &world->lives[gateway][reply->request];
    assert_int_equal(*life, OPEN);
    *life = REPLIED;
    assert_false(with_a_worker(world, world->fx.gateways[gateway], reply->request));
    if (reply->status == CM_OK)
        world->slabs_back++;
}

static void on_release(void *ctx, uint32_t worker, const struct cm_slab_ref *slab)
{
    struct world *world = ctx;
    (void)worker, (void)slab;
    world->slabs_back++;
}

static void on_execute(void *ctx, const struct fx_batch *batch)
{
    struct world *world = ctx;
    uint32_t most = batch->model.id == FX_EAGER + 1 ? 8 : batch->model.id == FX_PATIENT + 1 ? 4 : 1;
    assert_true(batch->rows <= most);
    assert_true(!world->hung[batch->worker]);
}

static void on_hung(void *ctx, uint32_t worker)
{
    ((struct world *)ctx)->hung[worker] = true;
}

/* ---- events ---- */

static void submit(struct world *world)
{
    uint32_t gateway = roll(world, GATEWAYS);
    if (!world->fx.gateways[gateway] || world->next_handle[gateway] == HANDLES)
        return;
    uint64_t handle = world->next_handle[gateway]++;
    world->lives[gateway][handle] = OPEN;
    uint32_t model = roll(world, FX_MODELS);
    struct fx_submit in = {.gateway = gateway,
                           .handle = handle,
                           .model = model,
                           .rows = model == FX_SINGLE ? 1 : 1 + roll(world, 4),
                           .width = 1 + roll(world, 3),
                           .priority = (uint8_t)roll(world, 4),
                           .mask = 1 + roll(world, 3)};
    if (roll(world, 2))
        in.deadline_ns = world->now_ns + roll(world, 5000) * CM_NS_PER_US;
    fx_submit(&world->fx, &in, world->now_ns);
}

static void cancel(struct world *world)
{
    uint32_t gateway = roll(world, GATEWAYS);
    uint32_t used = world->next_handle[gateway];
    if (world->fx.gateways[gateway] && used > 0)
        fx_cancel(&world->fx, gateway, used - 1 - roll(world, used < 20 ? used : 20),
                  world->now_ns);
}

static void worker_event(struct world *world, uint32_t worker)
{
    if (world->fx.workers[worker])
        fx_del_worker(&world->fx, worker, world->now_ns);
    else
        fx_add_worker(&world->fx, worker, world->next_instance++);
    world->hung[worker] = false;
}

static bool kills(const struct fx_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_items; i++)
        if (batch->handles[i] % 61 == 5)
            return true;
    return false;
}

/* Now and then a worker's second batch is done before its first, or a DONE comes twice. */
static void done(struct world *world)
{
    struct fx *fx = &world->fx;
    struct cm_error err;
    if (fx->n_batches == 0)
        return;
    struct fx_batch batch = fx->batches[roll(world, fx->n_batches)];
    if (world->hung[batch.worker])
        return;
    if (kills(&batch)) {
        worker_event(world, batch.worker);
        return;
    }
    enum cm_err status = roll(world, 10) == 0 ? CM_INTERNAL : CM_OK;
    uint32_t length = fx_make_done(fx, &batch, status, "no");
    void *copy = malloc(length);
    memcpy(copy, fx->record, length);
    for (uint32_t i = 0; i < fx->n_batches; i++)
        if (fx->batches[i].batch == batch.batch)
            fx_forget(fx, &fx->batches[i]);
    if (status == CM_OK)
        world->slabs_made += batch.n_items;
    for (uint32_t times = 1 + (roll(world, 5) == 0); times > 0; times--)
        assert_int_equal(sd_core_from_worker(fx->core, batch.worker, CM_RECORD_DONE, copy, length,
                                             world->now_ns, &err),
                         CM_OK);
    free(copy);
}

static void gateway_event(struct world *world, uint32_t gateway)
{
    if (!world->fx.gateways[gateway]) {
        fx_add_gateway(&world->fx, gateway, world->next_instance++);
        return;
    }
    for (uint32_t i = 0; i < HANDLES; i++)
        if (world->lives[gateway][i] == OPEN)
            world->lives[gateway][i] = LOST;
    fx_del_gateway(&world->fx, gateway);
}

static void step(struct world *world)
{
    world->now_ns += roll(world, 200) * CM_NS_PER_US;
    uint32_t what = roll(world, 1000);
    if (what < 500)
        submit(world);
    else if (what < 600)
        cancel(world);
    else if (what < 980)
        done(world);
    else if (what < 995)
        worker_event(world, roll(world, WORKERS));
    else
        gateway_event(world, roll(world, GATEWAYS));
    if (roll(world, 3) > 0) /* several records may share a wake-up */
        sd_core_pump(world->fx.core, world->now_ns);
    for (uint32_t w = 0; w < WORKERS; w++)
        if (world->hung[w])
            worker_event(world, w);
    world->fx.used = 0;
}

static void settle(struct world *world)
{
    for (uint32_t w = 0; w < WORKERS; w++)
        if (!world->fx.workers[w])
            worker_event(world, w);
    for (int i = 0; i < 20000 && sd_core_in_use(world->fx.core) > 0; i++) {
        world->now_ns += 100 * CM_NS_PER_US;
        done(world);
        for (uint32_t w = 0; w < WORKERS; w++)
            if (!world->fx.workers[w])
                worker_event(world, w);
        sd_core_pump(world->fx.core, world->now_ns);
        world->fx.used = 0;
    }
}

static void run(uint64_t seed, struct sd_counters *sum)
{
    struct world *world = calloc(1, sizeof *world);
    struct sd_limits limits = {.max_requests = 60, .max_buckets = 6, .hang_ns = CM_NS_PER_S / 10};
    fx_open(&world->fx, &limits);
    world->fx.hooks = (struct fx_hooks){on_reply, on_release, on_execute, on_hung, world};
    world->now_ns = 1000 * CM_NS_PER_S;
    world->seed = seed;
    world->next_instance = 1000;
    for (uint32_t i = 0; i < 2; i++) {
        worker_event(world, i);
        gateway_event(world, i);
    }
    for (int i = 0; i < 6000; i++) {
        step(world);
        sd_core_audit(world->fx.core);
    }
    settle(world);
    for (uint32_t g = 0; g < GATEWAYS; g++)
        for (uint32_t i = 0; i < world->next_handle[g]; i++)
            if (world->lives[g][i] != REPLIED && world->lives[g][i] != LOST)
                fail_msg("seed %llu: request %u of gateway %u has no answer",
                         (unsigned long long)seed, i, g);
    assert_int_equal(sd_core_in_use(world->fx.core), 0);
    assert_int_equal(sd_core_queued(world->fx.core), 0);
    assert_int_equal(sd_core_in_flight(world->fx.core), 0);
    assert_int_equal(world->slabs_made, world->slabs_back);
    const struct sd_counters *counters = sd_core_counters(world->fx.core);
#define X(name) sum->name += counters->name;
    SD_COUNTER_MAP(X)
#undef X
    fx_close(&world->fx);
    free(world);
}

static void every_request_ends_once(void **state)
{
    (void)state;
    struct sd_counters sum = {0};
    for (uint64_t seed = 1; seed <= 25; seed++)
        run(seed, &sum);
    /* The run is worth something only if it went through all the doors. */
    assert_true(sum.completed > 10000);
    assert_true(sum.failed > 0 && sum.cancelled > 0 && sum.expired > 0 && sum.refused > 0);
    assert_true(sum.poison > 0 && sum.split > 0 && sum.redispatched > 0 && sum.orphaned > 0);
    assert_true(sum.dones_ignored > 0 && sum.cancels_ignored > 0 && sum.closed_waited > 0);
    assert_true(sum.closed_full > 0 && sum.closed_idle > 0 && sum.closed_alone > 0);
    assert_true(sum.submitted == sum.completed + sum.failed + sum.cancelled + sum.expired +
                                     sum.refused + sum.poison + sum.orphaned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_request_ends_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
