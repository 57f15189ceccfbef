/* memmgr's server and two clients on one loop, so that every allocation of the thread can be made
 * to fail in turn: whatever fails, all ends well, and nothing stays in the ledger. */
#include "tests/harness/t.h"

#include "memmgr/client.h"
#include "memmgr/server_priv.h"
#include "tests/harness/alloc.h"

#include <stdio.h>
#include <string.h>

struct side {
    uv_loop_t *loop;
    struct mm_client *client;
    bool wants; /* a channel to the other side */
    bool attached;
    struct cm_channel *channel;
    unsigned answers;
    enum cm_err code;
    struct mm_lease *lease;
    struct mm_weights *weights;
};

struct fixture {
    char dir[T_PATH_MAX];
    uv_loop_t loop;
    struct mm_server *server;
    struct side a, b;
};

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    (void)identity;
    ((struct side *)ctx)->attached = true;
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    (void)ctx, (void)channel, (void)type, (void)payload, (void)length;
}

/* The other end could not take its end: whoever wants a channel asks again. */
static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    struct side *side = ctx;
    (void)reason;
    cm_channel_close(channel);
    side->channel = NULL;
    if (side->wants)
        assert_int_equal(mm_client_want_channel(side->client, CM_ROLE_GATEWAY, 0), CM_OK);
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    struct side *side = ctx;
    const struct cm_channel_events events = {
        .on_record = on_record, .on_closed = on_closed, .ctx = side};
    cm_channel_close(side->channel);
    side->channel = channel;
    if (cm_channel_start(channel, side->loop, &events) != CM_OK)
        on_closed(side, channel, CM_NOMEM);
}

static void on_revoked(void *ctx, const struct mm_lease *lease)
{
    struct side *side = ctx;
    if (lease == side->lease) {
        mm_client_close_lease(side->client, side->lease);
        side->lease = NULL;
    }
}

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    struct side *side = ctx;
    side->answers++;
    side->code = error->code;
    side->lease = lease;
}

static void on_weights(void *ctx, const struct cm_error *error, struct mm_weights *weights)
{
    struct side *side = ctx;
    side->answers++;
    side->code = error->code;
    side->weights = weights;
}

static enum cm_err open_side(struct fixture *f, struct side *side, enum cm_role role)
{
    struct cm_error error;
    const struct mm_client_options options = {.loop = &f->loop,
                                              .run_dir = f->dir,
                                              .role = role,
                                              .index = 0,
                                              .on_attached = on_attached,
                                              .on_channel = on_channel,
                                              .on_revoked = on_revoked,
                                              .ctx = side};
    memset(side, 0, sizeof *side);
    side->loop = &f->loop;
    return mm_client_create(&options, &error, &side->client);
}

static int set_up(void **state)
{
    static struct fixture f;
    struct cm_error error;
    memset(&f, 0, sizeof f);
    t_make_dir(f.dir);
    *state = &f;
    const struct mm_server_options options = {
        .loop = &f.loop, .run_dir = f.dir, .budget = 256u << 20};
    if (uv_loop_init(&f.loop) != 0 || mm_server_create(&options, &error, &f.server) != CM_OK ||
        open_side(&f, &f.a, CM_ROLE_WORKER) != CM_OK ||
        open_side(&f, &f.b, CM_ROLE_GATEWAY) != CM_OK)
        return -1;
    T_WAIT(&f.loop, f.a.attached && f.b.attached);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    cm_channel_close(f->a.channel);
    cm_channel_close(f->b.channel);
    mm_client_destroy(f->a.client);
    mm_client_destroy(f->b.client);
    mm_server_close(f->server);
    t_loop_finish(&f->loop);
    t_remove_dir(f->dir);
    return 0;
}

static bool is_level(const struct fixture *f)
{
    return f->server->n_jobs == 0 && TAILQ_EMPTY(&f->server->parked) &&
           f->server->ledger.n_regions == 0 && f->server->ledger.charged == 0;
}

/* Gives all back; what is pooled or kept is forgotten. */
static void settle(struct fixture *f)
{
    if (f->b.lease)
        mm_client_close_lease(f->b.client, f->b.lease);
    if (f->a.lease)
        mm_client_release(f->a.client, f->a.lease);
    if (f->a.weights)
        mm_client_weights_close(f->a.client, f->a.weights);
    if (f->b.weights)
        mm_client_weights_close(f->b.client, f->b.weights);
    f->a.lease = f->b.lease = NULL;
    f->a.weights = f->b.weights = NULL;
    T_WAIT(&f->loop, (mm_ledger_evict_all(&f->server->ledger), is_level(f)));
}

/* One answer of side; its code. */
#define ASK(f, side, call)                                      \
    do {                                                        \
        unsigned before_ = (side)->answers;                     \
        enum cm_err code_ = (call);                             \
        if (code_ == CM_OK)                                     \
            T_WAIT(&(f)->loop, (side)->answers == before_ + 1); \
        else                                                    \
            (side)->code = code_;                               \
    } while (0)

static void lease_cycle(struct fixture *f)
{
    ASK(f, &f->a, mm_client_acquire(f->a.client, 1000, on_lease, &f->a));
    if (f->a.lease)
        ASK(f, &f->b,
            mm_client_open(f->b.client, f->a.lease->region, f->a.lease->generation, on_lease,
                           &f->b));
}

static void weights_cycle(struct fixture *f)
{
    static uint8_t key[32];
    key[0]++;
    ASK(f, &f->a, mm_client_weights(f->a.client, key, 5000, "x", on_weights, &f->a));
    if (!f->a.weights)
        return;
    unsigned before = f->b.answers;
    enum cm_err code = mm_client_weights(f->b.client, key, 5000, "x", on_weights, &f->b);
    struct mm_weights *sealing = f->a.weights;
    f->a.weights = NULL;
    unsigned sealed = f->a.answers;
    if (mm_client_weights_seal(f->a.client, sealing, on_weights, &f->a) == CM_OK)
        T_WAIT(&f->loop, f->a.answers == sealed + 1);
    else
        mm_client_weights_close(f->a.client, sealing);
    if (code == CM_OK) /* sealed weights, or the right to write them, or an error */
        T_WAIT(&f->loop, f->b.answers == before + 1);
}

static void fail_every_allocation(struct fixture *f, void (*cycle)(struct fixture *f))
{
    unsigned n = 1;
    for (bool failed = true; failed; n++) {
        t_alloc_fail_at(n);
        cycle(f);
        settle(f);
        failed = t_alloc_failed();
    }
    assert_true(n > 5);
    assert_int_equal(f->a.code, CM_OK); /* the last round had all it needed */
    assert_int_equal(f->b.code, CM_OK);
}

static void test_leases(void **state)
{
    fail_every_allocation(*state, lease_cycle);
}

static void test_weights(void **state)
{
    fail_every_allocation(*state, weights_cycle);
}

static void test_channels(void **state)
{
    struct fixture *f = *state;
    unsigned n = 1;
    for (bool failed = true; failed; n++) {
        f->a.wants = true;
        t_alloc_fail_at(n);
        assert_int_equal(mm_client_want_channel(f->a.client, CM_ROLE_GATEWAY, 0), CM_OK);
        T_WAIT(&f->loop, f->a.channel && f->b.channel && f->server->n_links == 1 &&
                             TAILQ_EMPTY(&f->server->wants));
        failed = t_alloc_failed();
        f->a.wants = false;
        cm_channel_close(f->a.channel);
        f->a.channel = NULL;
        T_WAIT(&f->loop, !f->b.channel); /* its lifeline */
    }
    assert_true(n > 3);
}

static void test_attaching(void **state)
{
    struct fixture *f = *state;
    unsigned n = 1;
    for (bool failed = true; failed; n++) {
        struct side side;
        t_alloc_fail_at(n);
        enum cm_err code = open_side(f, &side, CM_ROLE_SCHEDULER);
        if (code == CM_OK) {
            T_WAIT(&f->loop, side.attached);
            mm_client_destroy(side.client);
        } else {
            assert_int_equal(code, CM_NOMEM);
        }
        T_WAIT(&f->loop, f->server->n_conns == 2);
        failed = t_alloc_failed();
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_leases, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_weights, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_channels, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_attaching, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
