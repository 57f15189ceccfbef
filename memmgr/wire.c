/* Sending and receiving memmgr's messages with their descriptors. Both sides, any thread; never
 * blocks, never trusts what arrives. */
#include "memmgr/wire.h"

#include "common/check.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct wire_rule {
    uint16_t type;
    uint16_t length;
    unsigned n_fds;
    const char *name;
};

static const struct wire_rule wire_rules[] = {
#define X(name, number, layout, fds) {number, sizeof(struct mm_wire_##layout), fds, #name},
    MM_WIRE_MAP(X)
#undef X
};

static const struct wire_rule *wire_rule(unsigned type)
{
    for (size_t i = 0; i < CM_COUNT_OF(wire_rules); i++) {
        if (wire_rules[i].type == type)
            return &wire_rules[i];
    }
    return NULL;
}

const char *mm_wire_name(unsigned type)
{
    const struct wire_rule *rule = wire_rule(type);
    return rule ? rule->name : "?";
}

bool mm_wire_label_valid(const char label[MM_LABEL_BYTES])
{
    for (size_t i = 0; i < MM_LABEL_BYTES; i++) {
        if (label[i] == 0)
            return true;
        if (label[i] < 0x20 || label[i] > 0x7e)
            return false;
    }
    return false;
}

void mm_wire_init(union mm_wire_any *ret_body, enum mm_wire_type type, uint32_t sequence)
{
    const struct wire_rule *rule = wire_rule(type);
    CM_ASSERT(rule);
    memset(ret_body, 0, sizeof *ret_body);
    ret_body->header.magic = MM_WIRE_MAGIC;
    ret_body->header.version = MM_WIRE_VERSION;
    ret_body->header.type = (uint16_t)type;
    ret_body->header.sequence = sequence;
    ret_body->header.length = rule->length;
}

enum cm_err mm_wire_send(int sock, const union mm_wire_any *body, const int *fds)
{
    const struct wire_rule *rule = wire_rule(body->header.type);
    CM_ASSERT(rule && rule->length == body->header.length);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MM_WIRE_FDS_MAX)];
    } control;
    struct iovec part = {(void *)(uintptr_t)body, rule->length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (rule->n_fds > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * rule->n_fds);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int) * rule->n_fds);
        memcpy(CMSG_DATA(rights), fds, sizeof(int) * rule->n_fds);
    }
    for (;;) {
        if (sendmsg(sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return CM_OK;
        if (errno == EINTR)
            continue;
        /* ETOOMANYREFS: too many descriptors are in flight; the peer has to read first. */
        if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS)
            return CM_AGAIN;
        return CM_CLOSED;
    }
}

/* More descriptors than fit are closed by the kernel, which says so with MSG_CTRUNC. */
static void collect_fds(struct msghdr *message, struct mm_packet *packet)
{
    packet->n_fds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (packet->n_fds < MM_WIRE_FDS_MAX)
                packet->fds[packet->n_fds++] = fd;
            else
                close(fd);
        }
    }
}

static enum cm_err check_packet(const struct mm_packet *packet, size_t length, int flags,
                                struct cm_error *err)
{
    const struct mm_wire_header *header = &packet->body.header;
    if (length < sizeof *header)
        return cm_fail(err, CM_CORRUPT, "packet of %zu bytes is shorter than a header", length);
    if (header->magic != MM_WIRE_MAGIC)
        return cm_fail(err, CM_CORRUPT, "packet has magic %08x, not %08x", header->magic,
                       MM_WIRE_MAGIC);
    if (header->version != MM_WIRE_VERSION)
        return cm_fail(err, CM_UNSUPPORTED, "protocol version %u, this process speaks %u",
                       header->version, MM_WIRE_VERSION);
    const struct wire_rule *rule = wire_rule(header->type);
    if (!rule)
        return cm_fail(err, CM_CORRUPT, "packet has unknown type %u", header->type);
    if ((flags & MSG_TRUNC) || length != rule->length || header->length != rule->length)
        return cm_fail(err, CM_CORRUPT, "%s has %zu bytes and says %u, not %u", rule->name, length,
                       header->length, rule->length);
    if (flags & MSG_CTRUNC)
        return cm_fail(err, CM_CORRUPT, "%s lost descriptors: too many, or none free here",
                       rule->name);
    if (packet->n_fds != rule->n_fds)
        return cm_fail(err, CM_CORRUPT, "%s came with %u descriptors, not %u", rule->name,
                       packet->n_fds, rule->n_fds);
    return CM_OK;
}

enum cm_err mm_wire_recv(int sock, struct mm_packet *ret_packet, struct cm_error *err)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MM_WIRE_FDS_MAX)];
    } control;
    memset(ret_packet, 0, sizeof *ret_packet);
    struct iovec part = {&ret_packet->body, sizeof ret_packet->body};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t length;
    do
        length = recvmsg(sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        return errno == EAGAIN ? CM_AGAIN : CM_CLOSED;
    collect_fds(&message, ret_packet);
    /* An empty packet looks like a hang-up; nobody sends one in earnest. */
    enum cm_err code =
        length == 0 ? CM_CLOSED : check_packet(ret_packet, (size_t)length, message.msg_flags, err);
    if (code != CM_OK)
        mm_packet_close(ret_packet);
    return code;
}

void mm_packet_close(struct mm_packet *packet)
{
    for (unsigned i = 0; i < packet->n_fds; i++) {
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    }
    packet->n_fds = 0;
}

int mm_packet_take(struct mm_packet *packet, unsigned i)
{
    CM_ASSERT(i < packet->n_fds);
    int fd = packet->fds[i];
    packet->fds[i] = -1;
    return fd;
}
