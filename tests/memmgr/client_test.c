/* The client in this very process: slices, allocation failures at every point, destruction with
 * requests open, a memmgr that is not there, and one that talks nonsense. */
#include "tests/memmgr/node.h"

#include "common/check.h"
#include "memmgr/client.h"
#include "memmgr/memory.h"
#include "memmgr/wire.h"
#include "tests/harness/alloc.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct fixture {
    uv_loop_t loop;
    struct mm_client *client;
    struct mm_identity identity;
    unsigned attached, lost, refused, answers;
    enum cm_err code;
    char text[512];
    struct mm_lease *lease;
    struct mm_weights *weights;
    bool destroy_in_callback;
};

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    struct fixture *f = ctx;
    f->identity = *identity;
    f->attached++;
}

static void on_lost(void *ctx)
{
    ((struct fixture *)ctx)->lost++;
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    struct fixture *f = ctx;
    f->refused++;
    f->code = error->code;
    snprintf(f->text, sizeof f->text, "%s", error->text);
}

static void note(struct fixture *f, const struct cm_error *error)
{
    f->answers++;
    f->code = error->code;
    if (f->destroy_in_callback) {
        f->destroy_in_callback = false;
        mm_client_destroy(f->client);
        f->client = NULL;
    }
}

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    struct fixture *f = ctx;
    f->lease = lease;
    note(f, error);
}

static void on_weights(void *ctx, const struct cm_error *error, struct mm_weights *weights)
{
    struct fixture *f = ctx;
    f->weights = weights;
    note(f, error);
}

static void open_client(struct fixture *f, const char *run_dir)
{
    struct cm_error error;
    const struct mm_client_options options = {.loop = &f->loop,
                                              .run_dir = run_dir,
                                              .role = CM_ROLE_WORKER,
                                              .index = 0,
                                              .on_attached = on_attached,
                                              .on_lost = on_lost,
                                              .on_refused = on_refused,
                                              .ctx = f};
    memset(f, 0, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(mm_client_create(&options, &error, &f->client), CM_OK);
}

static void close_client(struct fixture *f)
{
    mm_client_destroy(f->client);
    t_loop_finish(&f->loop);
}

static void start(struct node *node, struct fixture *f)
{
    node_start(node);
    open_client(f, node->run_dir);
    T_WAIT(&f->loop, f->attached == 1);
}

static void test_resolve(void **state)
{
    (void)state;
    unsigned char bytes[4096];
    const struct mm_lease lease = {.region = 7, .generation = 3, .bytes = 4096, .base = bytes};
    const struct {
        uint64_t region, offset, length;
        uint32_t generation;
        bool inside;
    } cases[] = {
        {7, 0, 4096, 3, true},
        {7, 4095, 1, 3, true},
        {7, 4096, 0, 3, true},
        {7, 0, 4097, 3, false},
        {7, 1, 4096, 3, false},
        {7, 4097, 0, 3, false},
        {7, 0, 1, 2, false},
        {8, 0, 1, 3, false},
        {7, UINT64_MAX, 1, 3, false},
        {7, 1, UINT64_MAX, 3, false},
        {7, UINT64_MAX, UINT64_MAX, 3, false},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        struct cm_slice_ref slice = {.region = cases[i].region,
                                     .generation = cases[i].generation,
                                     .offset = cases[i].offset,
                                     .length = cases[i].length};
        const void *at = mm_lease_resolve(&lease, &slice);
        assert_ptr_equal(at, cases[i].inside ? bytes + cases[i].offset : NULL);
    }
}

/* --- No memory --- */

/* Whatever fails, the caller hears of it once, and the next try works. */
static void test_lease_without_memory(void **state)
{
    struct node *node = *state;
    struct fixture f;
    start(node, &f);
    unsigned n = 1;
    for (bool failed = true; failed; n++) {
        unsigned before = f.answers;
        t_alloc_fail_at(n);
        enum cm_err code = mm_client_acquire(f.client, 65536, on_lease, &f);
        if (code == CM_OK) {
            /* A lost connection needs memory too; it comes back in any case. */
            T_WAIT(&f.loop, f.answers == before + 1);
            code = f.code;
        }
        failed = t_alloc_failed();
        assert_int_equal(code, failed ? CM_NOMEM : CM_OK);
        if (f.lease)
            mm_client_release(f.client, f.lease);
        f.lease = NULL;
    }
    assert_true(n > 3);
    assert_true(f.lost >= 1);
    close_client(&f);
}

static void test_weights_without_memory(void **state)
{
    struct node *node = *state;
    struct fixture f;
    uint8_t key[32] = {0};
    start(node, &f);
    unsigned n = 1;
    for (bool failed = true; failed; n++) {
        unsigned before = f.answers;
        key[0]++;
        t_alloc_fail_at(n);
        enum cm_err code = mm_client_weights(f.client, key, 1000, NULL, on_weights, &f);
        if (code == CM_OK) {
            T_WAIT(&f.loop, f.answers == before + 1);
            code = f.code;
        }
        if (code == CM_OK) {
            struct mm_weights *weights = f.weights;
            code = mm_client_weights_seal(f.client, weights, on_weights, &f);
            if (code == CM_OK)
                T_WAIT(&f.loop, f.answers == before + 2);
            else
                mm_client_weights_close(f.client, weights);
        }
        failed = t_alloc_failed();
        assert_int_equal(code, failed ? CM_NOMEM : CM_OK);
    }
    assert_true(n > 4);
    assert_false(f.weights->writer);
    close_client(&f);
}

static void test_create_without_memory(void **state)
{
    struct node *node = *state;
    struct cm_error error;
    struct mm_client *client;
    char path[512];
    struct mm_client_options options = {.run_dir = node->run_dir, .role = CM_ROLE_WORKER};
    t_alloc_fail_at(1);
    assert_int_equal(mm_client_create(&options, &error, &client), CM_NOMEM);
    assert_true(t_alloc_failed());
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    options.run_dir = path;
    assert_int_equal(mm_client_create(&options, &error, &client), CM_INVALID);
    mm_client_destroy(NULL);
}

/* --- Ends --- */

static void test_destroy_with_requests(void **state)
{
    struct node *node = *state;
    struct fixture f;
    uint8_t key[32] = {1};
    /* At several depths: not connected, connected, answers under way, mapping under way. */
    for (int turns = 0; turns < 40; turns++) {
        if (turns == 1)
            node_start(node);
        open_client(&f, node->run_dir);
        for (int i = 0; i < 100; i++)
            assert_int_equal(mm_client_acquire(f.client, 1u << 20, on_lease, &f), CM_OK);
        assert_int_equal(mm_client_weights(f.client, key, 1000, "x", on_weights, &f), CM_OK);
        assert_int_equal(mm_client_want_channel(f.client, CM_ROLE_GATEWAY, 0), CM_OK);
        for (int i = 0; i < turns && f.answers < 101; i++)
            uv_run(&f.loop, UV_RUN_ONCE);
        close_client(&f);
        assert_int_equal(f.answers, 101);
    }
}

static void test_destroy_inside_callbacks(void **state)
{
    struct node *node = *state;
    struct fixture f;
    uint8_t key[32] = {2};
    for (int what = 0; what < 5; what++) {
        if (what == 0)
            node_start(node);
        open_client(&f, node->run_dir);
        T_WAIT(&f.loop, f.attached == 1);
        assert_int_equal(mm_client_weights(f.client, key, 1000, "x", on_weights, &f), CM_OK);
        T_WAIT(&f.loop, f.answers == 1);
        f.destroy_in_callback = true;
        if (what == 0)
            assert_int_equal(mm_client_acquire(f.client, 1, on_lease, &f), CM_OK);
        else if (what == 1) /* mapped on a worker thread */
            assert_int_equal(mm_client_acquire(f.client, 1u << 22, on_lease, &f), CM_OK);
        else if (what == 2) /* answered with a failure */
            assert_int_equal(mm_client_open(f.client, 1, 1, on_lease, &f), CM_OK);
        else if (what == 3 && f.weights->writer)
            assert_int_equal(mm_client_weights_seal(f.client, f.weights, on_weights, &f), CM_OK);
        else
            assert_int_equal(mm_client_acquire(f.client, SIZE_MAX, on_lease, &f), CM_OK);
        T_WAIT(&f.loop, f.answers == 2);
        assert_null(f.client);
        t_loop_finish(&f.loop);
    }
}

static void test_too_many_requests(void **state)
{
    struct node *node = *state;
    struct fixture f;
    open_client(&f, node->run_dir); /* nobody is there */
    for (int i = 0; i < 1024; i++)
        assert_int_equal(mm_client_acquire(f.client, 1, on_lease, &f), CM_OK);
    assert_int_equal(mm_client_acquire(f.client, 1, on_lease, &f), CM_FULL);
    assert_int_equal(mm_client_open(f.client, 1, 1, on_lease, &f), CM_FULL);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(mm_client_want_channel(f.client, CM_ROLE_GATEWAY, i), CM_OK);
    assert_int_equal(mm_client_want_channel(f.client, CM_ROLE_GATEWAY, 256), CM_FULL);
    assert_int_equal(mm_client_want_channel(f.client, CM_ROLE_GATEWAY, 255), CM_OK);
    close_client(&f);
    assert_int_equal(f.answers, 1024);
    assert_int_equal(f.code, CM_CLOSED);
}

/* --- A memmgr that is none --- */

static int listen_as_memmgr(const struct node *node)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_int_equal(mkdir(node->run_dir, 0700), 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/" MM_SOCKET_NAME, node->run_dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

/* Runs the client's loop until fd, which is not in it, can be read. */
static void until_readable(struct fixture *f, int fd)
{
    uint64_t end_ns = uv_hrtime() + T_BOUND_MS * 1000000ull;
    struct pollfd watch[2] = {{.fd = fd, .events = POLLIN},
                              {.fd = uv_backend_fd(&f->loop), .events = POLLIN}};
    while (!(watch[0].revents & POLLIN)) {
        uv_run(&f->loop, UV_RUN_NOWAIT);
        int timeout_ms = uv_backend_timeout(&f->loop);
        poll(watch, 2, timeout_ms < 0 || timeout_ms > T_BOUND_MS ? T_BOUND_MS : timeout_ms);
        if (uv_hrtime() > end_ns)
            fail_msg("the client says nothing");
    }
}

static int accept_on(struct fixture *f, int listener)
{
    until_readable(f, listener);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    return fd;
}

static void hear(struct fixture *f, int fd, enum mm_wire_type type, struct mm_packet *ret_packet)
{
    struct cm_error error;
    until_readable(f, fd);
    assert_int_equal(mm_wire_recv(fd, ret_packet, &error), CM_OK);
    assert_string_equal(mm_wire_name(ret_packet->body.header.type), mm_wire_name(type));
}

static void attach_it(struct fixture *f, int fd)
{
    struct mm_packet packet;
    union mm_wire_any body;
    unsigned before = f->attached;
    hear(f, fd, MM_WIRE_ATTACH, &packet);
    mm_wire_init(&body, MM_WIRE_ATTACHED, packet.body.header.sequence);
    body.attached.instance = 11;
    body.attached.epoch = 12;
    assert_int_equal(mm_wire_send(fd, &body, NULL), CM_OK);
    T_WAIT(&f->loop, f->attached == before + 1);
}

static void test_false_grants(void **state)
{
    struct node *node = *state;
    struct fixture f;
    struct cm_error error;
    int listener = listen_as_memmgr(node);
    open_client(&f, node->run_dir);
    int good, bare, small;
    assert_int_equal(mm_memory_create(65536, MM_SEALS_LEASE, &error, &good), CM_OK);
    assert_int_equal(mm_memory_create(65536, 0, &error, &bare), CM_OK);
    assert_int_equal(mm_memory_create(4096, MM_SEALS_LEASE, &error, &small), CM_OK);
    const struct {
        int fd;
        uint64_t bytes;
        uint32_t writable;
    } cases[] = {{bare, 65536, 1},          {small, 65536, 1},       {good, 65536, 0},
                 {good, 65536, 2},          {good, 4096, 1},         {good, UINT64_MAX, 1},
                 {good, 1ull << 32 | 1, 1}, {STDIN_FILENO, 65536, 1}};
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        int fd = accept_on(&f, listener);
        attach_it(&f, fd);
        assert_int_equal(mm_client_acquire(f.client, 65536, on_lease, &f), CM_OK);
        struct mm_packet packet;
        union mm_wire_any body;
        hear(&f, fd, MM_WIRE_ACQUIRE, &packet);
        mm_wire_init(&body, MM_WIRE_GRANTED, packet.body.header.sequence);
        body.granted.region = 5;
        body.granted.bytes = cases[i].bytes;
        body.granted.writable = cases[i].writable;
        assert_int_equal(mm_wire_send(fd, &body, &cases[i].fd), CM_OK);
        T_WAIT(&f.loop, f.answers == i + 1);
        assert_int_equal(f.code, CM_CORRUPT);
        assert_null(f.lease);
        assert_int_equal(f.lost, i + 1);
        close(fd);
    }
    close_client(&f);
    close(good);
    close(bare);
    close(small);
    close(listener);
}

/* Messages that nobody asked for, or that are none: a new connection, and the request again. */
static void test_nonsense(void **state)
{
    struct node *node = *state;
    struct fixture f;
    int listener = listen_as_memmgr(node);
    open_client(&f, node->run_dir);
    assert_int_equal(mm_client_acquire(f.client, 1, on_lease, &f), CM_OK);
    for (unsigned what = 0; what < 7; what++) {
        struct mm_packet packet;
        union mm_wire_any body;
        int fd = accept_on(&f, listener);
        attach_it(&f, fd);
        hear(&f, fd, MM_WIRE_ACQUIRE, &packet);
        uint32_t sequence = packet.body.header.sequence;
        static const enum mm_wire_type types[] = {MM_WIRE_FAILED,   MM_WIRE_ATTACHED,
                                                  MM_WIRE_RESTORED, MM_WIRE_ATTACH,
                                                  MM_WIRE_RESTORED, MM_WIRE_REFUSED};
        mm_wire_init(&body, types[what % 6], what == 4 ? sequence : sequence + 77);
        if (what == 6)
            body.header.magic = 0;
        assert_int_equal(mm_wire_send(fd, &body, NULL), CM_OK);
        T_WAIT(&f.loop, f.lost == what + 1);
        close(fd);
    }
    assert_int_equal(f.answers, 0);
    close_client(&f);
    assert_int_equal(f.answers, 1);
    close(listener);
}

static void test_other_version(void **state)
{
    struct node *node = *state;
    struct fixture f;
    union mm_wire_any body;
    struct mm_packet packet;
    int listener = listen_as_memmgr(node);
    open_client(&f, node->run_dir);
    int fd = accept_on(&f, listener);
    hear(&f, fd, MM_WIRE_ATTACH, &packet);
    mm_wire_init(&body, MM_WIRE_ATTACHED, 1);
    body.header.version = 9;
    assert_int_equal(mm_wire_send(fd, &body, NULL), CM_OK);
    T_WAIT(&f.loop, f.refused == 1);
    assert_int_equal(f.code, CM_UNSUPPORTED);
    assert_string_equal(f.text, "protocol version 9, this process speaks 1");
    assert_int_equal(mm_client_acquire(f.client, 1, on_lease, &f), CM_CLOSED);
    close_client(&f);
    close(fd);
    close(listener);
}

#define CLIENT_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve),
        CLIENT_TEST(test_lease_without_memory),
        CLIENT_TEST(test_weights_without_memory),
        CLIENT_TEST(test_create_without_memory),
        CLIENT_TEST(test_destroy_with_requests),
        CLIENT_TEST(test_destroy_inside_callbacks),
        CLIENT_TEST(test_too_many_requests),
        CLIENT_TEST(test_false_grants),
        CLIENT_TEST(test_nonsense),
        CLIENT_TEST(test_other_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
