/* The accept guard: this program, too, gets accept4 and close from it. A listener survives the
 * exhaustion of descriptors, and the cap is kept. */
#include "gateway/accept_guard.h"
#include "tests/harness/t.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CAP 8

static int listener(struct sockaddr_in *ret_address)
{
    socklen_t length = sizeof *ret_address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *ret_address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)ret_address, sizeof *ret_address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret_address, &length), 0);
    assert_int_equal(listen(fd, 128), 0);
    return fd;
}

static int dial(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        assert_int_equal(connect(fd, (const struct sockaddr *)address, sizeof *address), 0);
    return fd;
}

static int take(int fd)
{
    struct pollfd wait = {fd, POLLIN, 0};
    poll(&wait, 1, 1000);
    return accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* The other side has closed. */
static bool hung_up(int fd)
{
    char byte;
    struct pollfd wait = {fd, POLLIN, 0};
    assert_int_equal(poll(&wait, 1, 5000), 1);
    return read(fd, &byte, 1) <= 0;
}

static void the_cap_is_kept(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int fd = listener(&address), clients[CAP + 1], servers[CAP];
    for (int i = 0; i < CAP; i++) {
        clients[i] = dial(&address);
        servers[i] = take(fd);
        assert_true(servers[i] >= 0);
    }
    assert_int_equal(gw_accept_stats().open, CAP);
    clients[CAP] = dial(&address);
    assert_int_equal(take(fd), -1); /* taken and closed, then nothing was there */
    assert_int_equal(errno, EAGAIN);
    assert_true(hung_up(clients[CAP]));
    assert_int_equal(gw_accept_stats().capped, 1);
    close(clients[CAP]);
    close(servers[0]);
    assert_int_equal(gw_accept_stats().open, CAP - 1);
    clients[CAP] = dial(&address);
    servers[0] = take(fd);
    assert_true(servers[0] >= 0);
    for (int i = 0; i < CAP; i++)
        close(servers[i]);
    for (int i = 0; i < CAP + 1; i++)
        close(clients[i]);
    assert_int_equal(gw_accept_stats().open, 0);
    close(fd);
}

static void other_listeners_are_not_capped(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int fd = listener(&address), clients[CAP + 2], servers[CAP + 2];
    gw_accept_guard_exempt(fd);
    for (int i = 0; i < CAP + 2; i++) {
        clients[i] = dial(&address);
        servers[i] = take(fd);
        assert_true(servers[i] >= 0);
    }
    assert_int_equal(gw_accept_stats().open, 0);
    for (int i = 0; i < CAP + 2; i++) {
        close(servers[i]);
        close(clients[i]);
    }
    gw_accept_guard_exempt(-1);
    close(fd);
    struct sockaddr_un path = {.sun_family = AF_UNIX}; /* unnamed: the kernel gives a name */
    socklen_t length = sizeof path;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&path, sizeof(sa_family_t)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&path, &length), 0);
    assert_int_equal(listen(fd, 8), 0);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (struct sockaddr *)&path, length), 0);
    int server = take(fd);
    assert_true(server >= 0);
    assert_int_equal(gw_accept_stats().open, 0);
    close(server);
    close(client);
    close(fd);
}

static void a_listener_survives_exhaustion(void **state)
{
    (void)state;
    struct sockaddr_in address;
    int fd = listener(&address), client = dial(&address), filler[64], n = 0;
    uint64_t before = gw_accept_stats().exhausted;
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)dup(0) + 4;
    close((int)low.rlim_cur - 4);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while (n < 64 && (filler[n] = dup(0)) >= 0)
        n++;
    assert_int_equal(errno, EMFILE);
    assert_int_equal(take(fd), -1);
    assert_int_equal(errno, EAGAIN); /* not EMFILE: the event loop goes on listening */
    assert_int_equal(gw_accept_stats().exhausted, before + 1);
    assert_true(hung_up(client));
    while (n > 0)
        close(filler[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    int again = dial(&address), served = take(fd);
    assert_true(served >= 0);
    close(served);
    close(again);
    close(client);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cap_is_kept),
        cmocka_unit_test(other_listeners_are_not_capped),
        cmocka_unit_test(a_listener_survives_exhaustion),
    };
    gw_accept_guard_init(CAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
