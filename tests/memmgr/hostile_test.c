/* Peers that break the rules: garbage, floods, false memory, deaf ones; and memmgr short of
 * descriptors. memmgr refuses, stays well, and keeps nothing of theirs. */
#include "tests/memmgr/node.h"

#include "common/clock.h"
#include "common/role.h"
#include "memmgr/memory.h"
#include "memmgr/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB 1024u

/* --- A raw peer --- */

static int raw_connect(const struct node *node)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/" MM_SOCKET_NAME, node->run_dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static bool raw_readable(int fd)
{
    struct pollfd watch = {.fd = fd, .events = POLLIN};
    return poll(&watch, 1, T_BOUND_MS) == 1;
}

/* The next message of a raw peer; CM_CLOSED for a hang-up. */
static enum cm_err raw_recv(int fd, struct mm_packet *ret_packet)
{
    struct cm_error error;
    if (!raw_readable(fd))
        fail_msg("memmgr says nothing");
    return mm_wire_recv(fd, ret_packet, &error);
}

static void raw_send(int fd, const union mm_wire_any *body, int with)
{
    assert_int_equal(mm_wire_send(fd, body, &with), CM_OK);
}

static void raw_expect(int fd, enum mm_wire_type type, struct mm_packet *ret_packet)
{
    assert_int_equal(raw_recv(fd, ret_packet), CM_OK);
    assert_string_equal(mm_wire_name(ret_packet->body.header.type), mm_wire_name(type));
}

static void raw_expect_end(int fd)
{
    struct mm_packet packet;
    assert_int_equal(raw_recv(fd, &packet), CM_CLOSED);
    close(fd);
}

static void raw_expect_failure(int fd, enum cm_err code)
{
    struct mm_packet packet;
    raw_expect(fd, MM_WIRE_FAILED, &packet);
    if (packet.body.failed.code != code)
        fail_msg("%s: %s, not %s", cm_err_name(packet.body.failed.code), packet.body.failed.text,
                 cm_err_name(code));
}

static int raw_attach(const struct node *node, enum cm_role role, uint32_t index)
{
    struct mm_packet packet;
    union mm_wire_any body;
    int fd = raw_connect(node);
    mm_wire_init(&body, MM_WIRE_ATTACH, 1);
    body.attach.role = role;
    body.attach.index = index;
    body.attach.number = MM_NUMBER_NONE;
    raw_send(fd, &body, -1);
    raw_expect(fd, MM_WIRE_ATTACHED, &packet);
    assert_true(packet.body.attached.number < 4096);
    return fd;
}

/* An honest client, which must not notice anything. */
static struct agent *witness;

static void start_with_witness(struct node *node)
{
    node_start(node);
    witness = agent_start(node, "gateway", 0);
    agent_ledger(witness);
}

static void assert_well(struct node *node, unsigned fds)
{
    struct ledger ledger;
    LEDGER_UNTIL(witness, ledger, agent_counter(witness, "processes") == 1 && ledger.held == 0);
    assert_int_equal(node_fds(node), fds + ledger.idle);
    assert_false(agent_has(witness, "lost"));
}

/* --- Messages --- */

static void test_garbage(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    uint64_t seed = 42;
    for (int i = 0; i < 300; i++) {
        unsigned char noise[2048];
        size_t length = 1 + t_random(&seed) % sizeof noise;
        for (size_t k = 0; k < length; k++)
            noise[k] = (unsigned char)t_random(&seed);
        int fd = raw_connect(node);
        assert_int_equal(send(fd, noise, length, MSG_NOSIGNAL), length);
        raw_expect_end(fd);
    }
    assert_int_equal(agent_counter(witness, "protocol_errors"), 300);
    int fd = raw_connect(node);
    assert_int_equal(send(fd, "", 0, 0), 0);
    raw_expect_end(fd);
    assert_well(node, fds);
}

static void test_bent_headers(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    for (int what = 0; what < 8; what++) {
        union mm_wire_any body;
        mm_wire_init(&body, MM_WIRE_ACQUIRE, 1);
        body.acquire.bytes = 1;
        size_t length = body.header.length;
        int fd = raw_attach(node, CM_ROLE_WORKER, 0);
        switch (what) {
        case 0:
            body.header.magic ^= 1;
            break;
        case 1:
            body.header.type = 63;
            break;
        case 2:
            body.header.length++;
            break;
        case 3:
            length--;
            break;
        case 4:
            length = sizeof body; /* longer than it says */
            break;
        case 5:
            length = 15;
            break;
        case 6:
            mm_wire_init(&body, MM_WIRE_REVOKED, 1); /* not for memmgr */
            length = body.header.length;
            break;
        case 7:
            mm_wire_init(&body, MM_WIRE_ATTACH, 1); /* a second time */
            length = body.header.length;
            break;
        }
        assert_int_equal(send(fd, &body, length, MSG_NOSIGNAL), length);
        raw_expect_end(fd);
    }
    int fd = raw_connect(node);
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_ACQUIRE, 1); /* before attaching */
    raw_send(fd, &body, -1);
    raw_expect_end(fd);
    assert_well(node, fds);
}

static void test_other_version(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    union mm_wire_any body;
    struct mm_packet packet;
    int fd = raw_connect(node);
    mm_wire_init(&body, MM_WIRE_ATTACH, 7);
    body.header.version = MM_WIRE_VERSION + 1;
    body.attach.role = CM_ROLE_WORKER;
    assert_int_equal(send(fd, &body, body.header.length, MSG_NOSIGNAL), body.header.length);
    raw_expect(fd, MM_WIRE_REFUSED, &packet);
    assert_int_equal(packet.body.failed.code, CM_UNSUPPORTED);
    assert_string_equal(packet.body.failed.text, "protocol version 2, this process speaks 1");
    raw_expect_end(fd);
}

static void test_false_identity(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    const struct {
        uint32_t role;
        uint64_t instance;
        enum cm_err code;
    } cases[] = {{0, 0, CM_INVALID},
                 {CM_ROLE_MEMMGR, 0, CM_INVALID},
                 {77, 0, CM_INVALID},
                 {CM_ROLE_WORKER, UINT64_MAX, CM_INVALID},
                 {CM_ROLE_GATEWAY, 0, CM_EXISTS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        union mm_wire_any body;
        struct mm_packet packet;
        int fd = raw_connect(node);
        mm_wire_init(&body, MM_WIRE_ATTACH, 1);
        body.attach.role = cases[i].role;
        body.attach.instance = cases[i].instance;
        raw_send(fd, &body, -1);
        raw_expect(fd, MM_WIRE_REFUSED, &packet);
        assert_int_equal(packet.body.failed.code, cases[i].code);
        raw_expect_end(fd);
    }
    int fd = raw_attach(node, CM_ROLE_WORKER, 0);
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_WANT_CHANNEL, 0);
    body.want.role = 99;
    raw_send(fd, &body, -1);
    raw_expect_end(fd);
    assert_false(agent_has(witness, "lost"));
}

/* --- Descriptors --- */

static void send_with_many(int fd, const union mm_wire_any *body, int with, unsigned count)
{
    char control[CMSG_SPACE(sizeof(int) * 253)] = {0};
    struct iovec part = {(void *)(uintptr_t)body, body->header.length};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (unsigned i = 0; i < count; i++)
        memcpy(CMSG_DATA(rights) + i * sizeof(int), &with, sizeof(int));
    assert_true(sendmsg(fd, &message, MSG_NOSIGNAL) > 0);
}

static void test_descriptor_flood(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    static const unsigned counts[] = {2, 4, 5, 6, 60, 253};
    int with = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        union mm_wire_any body;
        int fd = raw_attach(node, CM_ROLE_WORKER, 0);
        mm_wire_init(&body, MM_WIRE_RESTORE, 1);
        body.restore.kind = MM_RESTORE_OWNER;
        send_with_many(fd, &body, with, counts[i]);
        raw_expect_end(fd);
        fd = raw_attach(node, CM_ROLE_WORKER, 0);
        mm_wire_init(&body, MM_WIRE_ACQUIRE, 1); /* takes none at all */
        send_with_many(fd, &body, with, counts[i]);
        raw_expect_end(fd);
        fd = raw_connect(node); /* and before attaching */
        mm_wire_init(&body, MM_WIRE_RESTORE, 1);
        send_with_many(fd, &body, with, counts[i]);
        raw_expect_end(fd);
    }
    close(with);
    assert_well(node, fds);
}

static int new_memory(size_t bytes, int seals)
{
    struct cm_error error;
    int fd;
    assert_int_equal(mm_memory_create(bytes, seals, &error, &fd), CM_OK);
    return fd;
}

static union mm_wire_any restore(enum mm_restore_kind kind, uint64_t region, uint64_t bytes)
{
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_RESTORE, 9);
    body.restore.kind = kind;
    body.restore.region = region;
    body.restore.bytes = bytes;
    body.restore.generation = 1;
    body.restore.peer_role = CM_ROLE_SCHEDULER;
    body.restore.peer_instance = 1;
    return body;
}

static int readonly(int fd)
{
    struct cm_error error;
    int copy;
    assert_int_equal(mm_memory_readonly(fd, &error, &copy), CM_OK);
    return copy;
}

/* What is handed back must be what it is said to be. */
static void test_false_memory(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    int good = new_memory(64 * KIB, MM_SEALS_LEASE), bare = new_memory(64 * KIB, 0);
    int sealed = new_memory(64 * KIB, MM_SEALS_SEALED), file = open("/dev/zero", O_RDWR);
    int look = readonly(good), look_sealed = readonly(sealed);
    uint64_t n = cm_realtime_ns();
    const struct {
        enum mm_restore_kind kind;
        uint64_t region, bytes;
        int fd;
        enum cm_err code;
    } cases[] = {
        {MM_RESTORE_OWNER, n, 64 * KIB, bare, CM_CORRUPT},  /* could be truncated */
        {MM_RESTORE_READER, n, 64 * KIB, bare, CM_CORRUPT}, /* and it could write */
        {MM_RESTORE_OWNER, n, 128 * KIB, good, CM_CORRUPT}, /* smaller than it says */
        {MM_RESTORE_OWNER, n, 64 * KIB, look, CM_CORRUPT},  /* an owner that cannot write */
        {MM_RESTORE_READER, n, 64 * KIB, good, CM_CORRUPT}, /* a reader that can */
        {MM_RESTORE_OWNER, n, 64 * KIB, file, CM_CORRUPT},  /* not memory */
        {MM_RESTORE_OWNER, n, 65000, good, CM_INVALID},     /* no lease has that size */
        {MM_RESTORE_OWNER, n, 0, good, CM_INVALID},
        {MM_RESTORE_OWNER, n, UINT64_MAX, good, CM_INVALID},
        {MM_RESTORE_OWNER, 0, 64 * KIB, good, CM_INVALID}, /* never given out */
        {MM_RESTORE_OWNER, UINT64_MAX, 64 * KIB, good, CM_INVALID},
        {MM_RESTORE_HOLDER, n, 64 * KIB, look, CM_CORRUPT},   /* not sealed against writing */
        {MM_RESTORE_HOLDER, n, 64 * KIB, sealed, CM_CORRUPT}, /* not read-only */
        {MM_RESTORE_WRITER, n, 64 * KIB, look_sealed, CM_CORRUPT},
        {MM_RESTORE_WRITER, n, 64 * KIB, sealed, CM_CORRUPT}, /* sealed already */
        {MM_RESTORE_WRITER, n, UINT64_MAX, sealed, CM_INVALID},
        {MM_RESTORE_CHANNEL, n, 64 * KIB, bare, CM_CORRUPT},
        {MM_RESTORE_CHANNEL, n, 0, good, CM_INVALID},
        {MM_RESTORE_CHANNEL, n, UINT64_MAX, good, CM_INVALID},
        {(enum mm_restore_kind)6, n, 64 * KIB, good, CM_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        union mm_wire_any body = restore(cases[i].kind, cases[i].region, cases[i].bytes);
        raw_send(peer, &body, cases[i].fd);
        raw_expect_failure(peer, cases[i].code);
    }
    assert_int_equal(agent_counter(witness, "restore_refused"), sizeof cases / sizeof cases[0]);
    union mm_wire_any body = restore(MM_RESTORE_OWNER, n, 64 * KIB);
    memset(body.restore.label, 'x', sizeof body.restore.label); /* not terminated */
    raw_send(peer, &body, good);
    raw_expect_failure(peer, CM_INVALID);
    close(peer);
    assert_well(node, fds);
    close(good);
    close(bare);
    close(sealed);
    close(file);
    close(look);
    close(look_sealed);
}

/* One memory has one number, one number one memory, one lease one owner. */
static void test_restored_twice(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    struct mm_packet packet;
    int a = raw_attach(node, CM_ROLE_WORKER, 0), b = raw_attach(node, CM_ROLE_WORKER, 1);
    int memory = new_memory(64 * KIB, MM_SEALS_LEASE), other = new_memory(64 * KIB, MM_SEALS_LEASE);
    uint64_t n = cm_realtime_ns();
    union mm_wire_any body = restore(MM_RESTORE_OWNER, n, 64 * KIB);
    raw_send(a, &body, memory);
    raw_expect(a, MM_WIRE_RESTORED, &packet);
    raw_send(b, &body, memory);
    raw_expect_failure(b, CM_STALE); /* it has its owner */
    raw_send(b, &body, other);
    raw_expect_failure(b, CM_CORRUPT); /* another memory by that number */
    body.restore.region = n + 1;
    raw_send(b, &body, memory);
    raw_expect_failure(b, CM_CORRUPT); /* that memory by another number */
    int look = readonly(memory);
    body = restore(MM_RESTORE_READER, n, 64 * KIB);
    body.restore.generation = 2;
    raw_send(b, &body, look);
    raw_expect_failure(b, CM_STALE);
    body.restore.generation = 1;
    raw_send(b, &body, look);
    raw_expect(b, MM_WIRE_RESTORED, &packet);
    assert_int_equal(agent_ledger(witness).total, 64 * KIB);
    /* Numbers that were handed back are not given out again. */
    agent_say(witness, "acquire 1");
    assert_true(agent_lease(witness).region > n);
    agent_say(witness, "release 0");
    close(a);
    raw_expect(b, MM_WIRE_REVOKED, &packet);
    assert_true(packet.body.region.region == n);
    close(b);
    close(look);
    close(memory);
    close(other);
    assert_well(node, fds);
}

static void test_others_things(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    struct lease lease = agent_acquire(witness, 1);
    agent_say(witness, "weights 1 10 x/1");
    agent_weights(witness);
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    static const enum mm_wire_type silent[] = {MM_WIRE_RELEASE, MM_WIRE_CLOSE,
                                               MM_WIRE_WEIGHTS_CLOSE};
    union mm_wire_any body;
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < 3; i++) {
            mm_wire_init(&body, silent[i], 0);
            body.region.region = lease.region + (unsigned)kind; /* the weights came next */
            body.region.generation = lease.generation;
            raw_send(peer, &body, -1);
        }
        mm_wire_init(&body, MM_WIRE_SEAL, 5);
        body.region.region = lease.region + (unsigned)kind;
        raw_send(peer, &body, -1);
        raw_expect_failure(peer, CM_STALE);
    }
    mm_wire_init(&body, MM_WIRE_OPEN, 6); /* weights are not a lease */
    body.region.region = lease.region + 1;
    raw_send(peer, &body, -1);
    raw_expect_failure(peer, CM_STALE);
    struct ledger ledger = agent_ledger(witness);
    assert_int_equal(ledger.granted, 1);
    assert_int_equal(ledger.writing, 1);
    assert_int_equal(ledger.stale, 9);
    close(peer);
}

/* --- Behaviour --- */

static void test_writer_that_keeps_its_mapping(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    struct mm_packet packet;
    union mm_wire_any body;
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    mm_wire_init(&body, MM_WIRE_WEIGHTS, 2);
    body.weights.bytes = 4096;
    raw_send(peer, &body, -1);
    raw_expect(peer, MM_WIRE_WEIGHTS_GIVEN, &packet);
    uint64_t region = packet.body.granted.region;
    int fd = mm_packet_take(&packet, 0);
    void *base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    mm_wire_init(&body, MM_WIRE_SEAL, 3);
    body.region.region = region;
    raw_send(peer, &body, -1);
    raw_expect_failure(peer, CM_PRECONDITION);
    munmap(base, 4096);
    raw_send(peer, &body, -1);
    raw_expect(peer, MM_WIRE_WEIGHTS_GIVEN, &packet);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, packet.fds[0], 0),
                     MAP_FAILED);
    assert_int_equal(write(fd, "x", 1), -1);
    mm_packet_close(&packet);
    close(fd);
    close(peer);
}

static void test_deaf_peer(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    union mm_wire_any body;
    enum cm_err code = CM_OK;
    uint64_t end_ns = cm_now_ns() + T_BOUND_MS * CM_NS_PER_MS;
    mm_wire_init(&body, MM_WIRE_ACQUIRE, 1); /* 0 bytes: each is answered, no answer is read */
    while (code != CM_CLOSED && cm_now_ns() < end_ns) {
        struct pollfd watch = {.fd = peer, .events = POLLOUT};
        poll(&watch, 1, 1000);
        code = mm_wire_send(peer, &body, NULL);
    }
    assert_int_equal(code, CM_CLOSED);
    close(peer);
    assert_int_equal(agent_counter(witness, "slow_peers"), 1);
    assert_well(node, fds);
}

static void test_too_many_requests(void **state)
{
    struct node *node = *state;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    agent_say(witness, "weights 0 10 x/1");
    struct weights weights = agent_weights(witness);
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    union mm_wire_any body;
    mm_wire_init(&body, MM_WIRE_WEIGHTS, 1);
    body.weights.bytes = 10;
    for (uint32_t i = 0; i < 257; i++) {
        body.header.sequence = i + 1;
        raw_send(peer, &body, -1); /* waits for the witness */
    }
    raw_expect_failure(peer, CM_FULL);
    memset(body.weights.label, 'x', sizeof body.weights.label);
    raw_send(peer, &body, -1);
    raw_expect_failure(peer, CM_FULL);
    close(peer);
    peer = raw_attach(node, CM_ROLE_WORKER, 0);
    body.header.sequence = 1;
    raw_send(peer, &body, -1);
    raw_expect_failure(peer, CM_INVALID); /* the label has no end */
    memset(body.weights.label, 0, sizeof body.weights.label);
    body.weights.label[0] = '\n'; /* would forge a line of somebody's listing */
    raw_send(peer, &body, -1);
    raw_expect_failure(peer, CM_INVALID);
    close(peer);
    agent_say(witness, "close %u", weights.slot);
    assert_well(node, fds);
}

/* Right in form, random in content: small numbers so that they often meet something real. */
static void random_body(uint64_t *seed, union mm_wire_any *ret_body)
{
    static const enum mm_wire_type types[] = {
        MM_WIRE_ACQUIRE,       MM_WIRE_RELEASE,      MM_WIRE_OPEN,
        MM_WIRE_CLOSE,         MM_WIRE_WEIGHTS,      MM_WIRE_SEAL,
        MM_WIRE_WEIGHTS_CLOSE, MM_WIRE_WANT_CHANNEL, MM_WIRE_RESTORE};
    mm_wire_init(ret_body, types[t_random(seed) % 9], (uint32_t)t_random(seed));
    unsigned char *bytes = (unsigned char *)ret_body;
    for (size_t i = sizeof ret_body->header; i < ret_body->header.length; i++)
        bytes[i] = t_random(seed) % 4 ? 0 : (unsigned char)t_random(seed);
    if (ret_body->header.type == MM_WIRE_ACQUIRE)
        ret_body->acquire.bytes %= 300 * KIB;
    if (ret_body->header.type == MM_WIRE_WEIGHTS) {
        ret_body->weights.bytes %= 300 * KIB;
        if (t_random(seed) % 4)
            memset(ret_body->weights.label, 0, sizeof ret_body->weights.label);
    }
    if (ret_body->header.type == MM_WIRE_WANT_CHANNEL && t_random(seed) % 16) {
        ret_body->want.role = CM_ROLE_SCHEDULER + t_random(seed) % 3;
    } else if (ret_body->header.type == MM_WIRE_RESTORE && t_random(seed) % 2) {
        ret_body->restore.kind = 1 + t_random(seed) % 5;
        ret_body->restore.region = 1 + t_random(seed) % 8;
        ret_body->restore.bytes = 64 * KIB;
        ret_body->restore.generation = 1;
        ret_body->restore.peer_role = CM_ROLE_SCHEDULER;
        memset(ret_body->restore.label, 0, sizeof ret_body->restore.label);
    } else if (ret_body->header.type != MM_WIRE_WEIGHTS && t_random(seed) % 2) {
        ret_body->region.region = 1 + t_random(seed) % 8;
        ret_body->region.generation = 1;
    }
}

/* Until memmgr has seen to all that was sent, or has thrown the peer out. */
static void drain(int peer)
{
    union mm_wire_any body;
    struct mm_packet packet;
    bool last = false;
    mm_wire_init(&body, MM_WIRE_ACQUIRE, 0xfedcba98); /* of 0 bytes: answered at once */
    enum cm_err code = mm_wire_send(peer, &body, NULL);
    while (code == CM_OK && !last && (code = raw_recv(peer, &packet)) == CM_OK) {
        last = packet.body.header.sequence == body.header.sequence;
        mm_packet_close(&packet);
    }
    close(peer);
}

static void test_random_requests(void **state)
{
    struct node *node = *state;
    node->budget = "64M";
    start_with_witness(node);
    unsigned fds = node_fds(node);
    uint64_t seed = 7;
    int memory[4];
    memory[0] = new_memory(64 * KIB, MM_SEALS_LEASE);
    memory[1] = readonly(memory[0]);
    int sealed = new_memory(64 * KIB, MM_SEALS_SEALED);
    memory[2] = readonly(sealed);
    memory[3] = new_memory(64 * KIB, MM_SEALS_WRITING);
    for (int round = 0; round < 60; round++) {
        int peers[3];
        for (uint32_t i = 0; i < 3; i++)
            peers[i] = raw_attach(node, CM_ROLE_WORKER, i);
        for (int step = 0; step < 150; step++) {
            union mm_wire_any body;
            struct mm_packet packet;
            struct cm_error error;
            uint32_t which = t_random(&seed) % 3;
            random_body(&seed, &body);
            enum cm_err code = mm_wire_send(peers[which], &body, &memory[t_random(&seed) % 4]);
            while (code == CM_OK && (code = mm_wire_recv(peers[which], &packet, &error)) == CM_OK)
                mm_packet_close(&packet);
            if (code != CM_AGAIN) { /* thrown out, for a channel to nobody */
                close(peers[which]);
                peers[which] = raw_attach(node, CM_ROLE_WORKER, which);
            }
        }
        for (int i = 0; i < 3; i++)
            drain(peers[i]);
    }
    struct ledger ledger;
    LEDGER_UNTIL(witness, ledger, agent_counter(witness, "processes") == 1 && ledger.fresh == 0);
    assert_int_equal(ledger.granted + ledger.orphaned + ledger.writing + ledger.channels, 0);
    /* Channels that were being made for the dead close by themselves. */
    LEDGER_UNTIL(witness, ledger, node_fds(node) == fds + ledger.idle + ledger.sealed);
    assert_true(agent_counter(witness, "leases_granted") > 20);
    assert_true(agent_counter(witness, "restored") > 20);
    assert_true(agent_counter(witness, "stale_refused") > 100);
    agent_acquire(witness, 1);
    for (int i = 0; i < 4; i++)
        close(memory[i]);
    close(sealed);
}

/* --- Few descriptors --- */

static void test_out_of_descriptors(void **state)
{
    struct node *node = *state;
    node->files = 48;
    start_with_witness(node);
    unsigned fds = node_fds(node);
    int many[100];
    for (int i = 0; i < 100; i++)
        many[i] = raw_connect(node); /* the last ones stay in the backlog */
    agent_counter_until(witness, "accept_pauses", 1);
    agent_say(witness, "acquire 65536"); /* refused, not stuck */
    assert_non_null(strstr(agent_wait(witness, "error"), "FULL"));
    for (int i = 0; i < 100; i++)
        close(many[i]);
    int peer = raw_attach(node, CM_ROLE_WORKER, 0);
    agent_acquire(witness, 65536);
    agent_say(witness, "release 0");
    close(peer);
    assert_well(node, fds);
}

static void test_leases_use_up_descriptors(void **state)
{
    struct node *node = *state;
    node->files = 48;
    start_with_witness(node);
    struct agent *hog = agent_start(node, "worker", 0);
    agent_say(hog, "many 60 65536");
    unsigned granted = 0, refused = 0, fds;
    while (granted + refused < 60) {
        if (agent_wait_any(hog, "lease", "error"))
            granted++;
        else
            refused++;
    }
    assert_true(granted > 20 && refused > 0);
    agent_kill(node, hog);
    hog = agent_start(node, "worker", 0);
    agent_say(hog, "many 10 65536");
    for (int i = 0; i < 10; i++)
        agent_lease(hog);
    agent_kill(node, hog);
    struct ledger ledger;
    LEDGER_UNTIL(witness, ledger, ledger.total == 0);
    fds = node_fds(node);
    assert_true(fds < 40);
}

/* --- The run directory --- */

static int run_memmgr(const char *dir, char *ret_text, size_t size)
{
    char command[2 * T_PATH_MAX + 64];
    snprintf(command, sizeof command, "%s --run-dir %s 2>&1", BINARY_DIR "/bin/ingot-memmgr", dir);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t got = fread(ret_text, 1, size - 1, out);
    ret_text[got] = 0;
    return WEXITSTATUS(pclose(out));
}

static void test_directory(void **state)
{
    struct node *node = *state;
    char path[2 * T_PATH_MAX], text[2048];
    snprintf(path, sizeof path, "%s/open", node->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(run_memmgr(path, text, sizeof text), 2);
    assert_non_null(strstr(text, "chmod 700"));
    snprintf(path, sizeof path, "%s/file", node->dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(run_memmgr(path, text, sizeof text), 2);
    assert_non_null(strstr(text, "is not a directory"));
    snprintf(path, sizeof path, "%s/%0100d", node->dir, 1);
    assert_int_equal(run_memmgr(path, text, sizeof text), 2);
    assert_non_null(strstr(text, "choose a shorter one"));
    /* Something that is not a stale socket is not removed. */
    assert_int_equal(mkdir(node->run_dir, 0700), 0);
    snprintf(path, sizeof path, "%s/memmgr.sock", node->run_dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(run_memmgr(node->run_dir, text, sizeof text), 1);
    assert_non_null(strstr(text, "is not a socket"));
    assert_int_equal(unlink(path), 0);
    /* Nor is a socket that someone else listens on. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.107s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(run_memmgr(node->run_dir, text, sizeof text), 1);
    assert_non_null(strstr(text, "something else listens"));
    close(fd);
    node_start(node); /* now it is stale */
    agent_start(node, "worker", 0);
}

#define HOSTILE_TEST(name) cmocka_unit_test_setup_teardown(name, node_setup, node_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOSTILE_TEST(test_garbage),
        HOSTILE_TEST(test_bent_headers),
        HOSTILE_TEST(test_other_version),
        HOSTILE_TEST(test_false_identity),
        HOSTILE_TEST(test_descriptor_flood),
        HOSTILE_TEST(test_false_memory),
        HOSTILE_TEST(test_restored_twice),
        HOSTILE_TEST(test_others_things),
        HOSTILE_TEST(test_writer_that_keeps_its_mapping),
        HOSTILE_TEST(test_deaf_peer),
        HOSTILE_TEST(test_too_many_requests),
        HOSTILE_TEST(test_random_requests),
        HOSTILE_TEST(test_out_of_descriptors),
        HOSTILE_TEST(test_leases_use_up_descriptors),
        HOSTILE_TEST(test_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
