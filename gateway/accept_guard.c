/* accept4 and close for the whole process: see accept_guard.h. Any thread; atomics and one mutex
 * around the spare descriptor. */
#include "gateway/accept_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Descriptors above this are not counted against the cap: RLIMIT_NOFILE is rarely so high. */
#define TRACKED 65536

static atomic_uint max_open = UINT32_MAX;
static atomic_uint now_open;
static _Atomic uint64_t accepted, exhausted, capped;
static _Atomic uint64_t tracked[TRACKED / 64]; /* bit per accepted descriptor */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static int spare = -1; /* under spare_lock */

void gw_accept_guard_init(uint32_t max_connections)
{
    atomic_store(&max_open, max_connections);
    pthread_mutex_lock(&spare_lock);
    if (spare < 0)
        spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pthread_mutex_unlock(&spare_lock);
}

struct gw_accept_stats gw_accept_stats(void)
{
    struct gw_accept_stats stats = {
        .accepted = atomic_load(&accepted),
        .exhausted = atomic_load(&exhausted),
        .capped = atomic_load(&capped),
        .open = atomic_load(&now_open),
    };
    stats.seen = stats.accepted + stats.exhausted + stats.capped;
    return stats;
}

static atomic_int exempt_listener = -1;

void gw_accept_guard_exempt(int listener)
{
    atomic_store(&exempt_listener, listener);
}

/* Clients of the gRPC port: not the bus's Unix sockets, not the admin port. */
static bool counts(int listener)
{
    int domain = 0;
    socklen_t length = sizeof domain;
    return listener != atomic_load(&exempt_listener) &&
           getsockopt(listener, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
           (domain == AF_INET || domain == AF_INET6);
}

static int raw_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    return (int)syscall(SYS_accept4, fd, address, length, flags);
}

static int raw_close(int fd)
{
    return (int)syscall(SYS_close, fd);
}

/* True if the bit was set before. */
static bool mark(int fd, bool set)
{
    if (fd < 0 || fd >= TRACKED)
        return false;
    uint64_t bit = 1ull << (fd % 64);
    _Atomic uint64_t *word = &tracked[fd / 64];
    if (set)
        return atomic_fetch_or(word, bit) & bit;
    if (!(atomic_load_explicit(word, memory_order_relaxed) & bit))
        return false; /* the usual case of close: not a connection */
    return atomic_fetch_and(word, ~bit) & bit;
}

int close(int fd)
{
    if (mark(fd, false))
        atomic_fetch_sub(&now_open, 1);
    return raw_close(fd);
}

/* No descriptor is left: gives up the spare one, takes a connection and closes it. False: nothing
 * could be taken, errno says why. */
static bool shed(int listener)
{
    pthread_mutex_lock(&spare_lock);
    if (spare >= 0)
        raw_close(spare);
    int fd = raw_accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int error = errno;
    if (fd >= 0)
        raw_close(fd);
    spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pthread_mutex_unlock(&spare_lock);
    errno = error;
    return fd >= 0;
}

/* Failures of one connection, or of the moment, that say nothing about the listener: accept(2). */
static bool is_passing(int error)
{
    switch (error) {
    case ENOBUFS:
    case ENOMEM:
    case EPERM:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case ETIMEDOUT:
        return true;
    default:
        return false;
    }
}

/* True: the connection is kept. */
static bool admit(int connection)
{
    if (atomic_load(&now_open) >= atomic_load(&max_open)) {
        raw_close(connection);
        atomic_fetch_add(&capped, 1);
        return false;
    }
    if (connection < TRACKED && !mark(connection, true))
        atomic_fetch_add(&now_open, 1);
    atomic_fetch_add(&accepted, 1);
    return true;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    bool counted = counts(fd);
    for (;;) {
        socklen_t room = length ? *length : 0;
        int connection = raw_accept4(fd, address, length, flags);
        if (connection >= 0) {
            if (!counted || admit(connection))
                return connection;
            if (length)
                *length = room;
            continue;
        }
        if (errno == EMFILE || errno == ENFILE) {
            if (shed(fd)) {
                atomic_fetch_add(&exhausted, 1);
                continue;
            }
            if (errno != EINTR)
                errno = EAGAIN; /* another thread took the spare's place: the listener stays */
            return -1;
        }
        if (is_passing(errno))
            errno = EAGAIN;
        return -1;
    }
}
