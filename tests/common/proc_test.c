/* The process skeleton: early settings, readiness messages, signals. Everything that changes the
 * process happens in a child. */
#include "common/proc.h"

#include "common/check.h"
#include "tests/harness/t.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int exit_code(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void set_parent(pid_t pid)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", (long)pid);
    setenv("INGOT_SUPERVISED", text, 1);
}

/* The supervisor died between fork and the wish to be told. */
static void test_orphan(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        set_parent(getpid()); /* surely not the parent */
        cm_proc_early(CM_ROLE_GATEWAY, 0);
        _exit(0);
    }
    assert_int_equal(exit_code(pid), CM_EXIT_LOST);
}

static void test_early(void **state)
{
    (void)state;
    for (int supervised = 0; supervised < 2; supervised++) {
        pid_t pid = fork();
        if (pid == 0) {
            int death = -1;
            struct sigaction action;
            struct rlimit limit;
            if (supervised)
                set_parent(getppid());
            else
                unsetenv("INGOT_SUPERVISED");
            cm_proc_early(CM_ROLE_GATEWAY, 0);
            sigaction(SIGPIPE, NULL, &action);
            getrlimit(RLIMIT_NOFILE, &limit);
            prctl(PR_GET_PDEATHSIG, &death);
            _exit(umask(0) == 0077 && action.sa_handler == SIG_IGN &&
                          limit.rlim_cur == limit.rlim_max && death == (supervised ? SIGTERM : 0)
                      ? 0
                      : 1);
        }
        assert_int_equal(exit_code(pid), 0);
    }
}

/* A supervisor's datagram socket; its address goes to $NOTIFY_SOCKET. */
static int listen_notify(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    memcpy(address.sun_path, name, length);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
                     0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static void expect_datagram(int fd, const char *text)
{
    char bytes[2048];
    ssize_t n = recv(fd, bytes, sizeof bytes - 1, MSG_DONTWAIT);
    assert_true(n >= 0);
    bytes[n] = '\0';
    assert_string_equal(bytes, text);
}

static void on_stop(void *ctx)
{
    unsigned *stops = ctx;
    ++*stops;
}

static void test_notify(void **state)
{
    (void)state;
    char dir[T_PATH_MAX], path[T_PATH_MAX + 16], abstract[64];
    t_make_dir(dir);
    snprintf(path, sizeof path, "%s/notify.sock", dir);
    snprintf(abstract, sizeof abstract, "@ingot-test-%d", (int)getpid());
    const char *const names[] = {path, abstract};
    for (size_t i = 0; i < CM_COUNT_OF(names); i++) {
        uv_loop_t loop;
        struct cm_proc *proc = NULL;
        struct cm_error err;
        unsigned stops = 0;
        assert_int_equal(uv_loop_init(&loop), 0);
        const struct cm_proc_options options = {&loop, CM_ROLE_WORKER, 1, on_stop, &stops};
        assert_int_equal(cm_proc_start(&options, &err, &proc), CM_OK);
        int fd = listen_notify(names[i]);
        cm_proc_ready(proc, "2 models\nREADY=0");
        expect_datagram(fd, "READY=1\nSTATUS=2 models READY=0");
        cm_proc_ready(proc, "3 models");
        expect_datagram(fd, "STATUS=3 models");
        cm_proc_status(proc, "draining");
        expect_datagram(fd, "STATUS=draining");
        close(fd);
        cm_proc_status(proc, "nobody listens");
        unsetenv("NOTIFY_SOCKET");
        cm_proc_status(proc, "nobody asked");
        cm_proc_close(proc);
        cm_proc_run_dry(&loop);
    }
    t_remove_dir(dir);
}

static void test_ready_without_text(void **state)
{
    (void)state;
    char name[64];
    uv_loop_t loop;
    struct cm_proc *proc = NULL;
    struct cm_error err;
    unsigned stops = 0;
    snprintf(name, sizeof name, "@ingot-test-plain-%d", (int)getpid());
    int fd = listen_notify(name);
    assert_int_equal(uv_loop_init(&loop), 0);
    const struct cm_proc_options options = {&loop, CM_ROLE_WORKER, 1, on_stop, &stops};
    assert_int_equal(cm_proc_start(&options, &err, &proc), CM_OK);
    cm_proc_ready(proc, NULL);
    expect_datagram(fd, "READY=1\n");
    cm_proc_ready(proc, NULL); /* nothing new to say */
    char byte;
    assert_true(recv(fd, &byte, 1, MSG_DONTWAIT) < 0);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
    cm_proc_close(proc);
    cm_proc_run_dry(&loop);
}

static void test_signals(void **state)
{
    (void)state;
    const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < CM_COUNT_OF(signals); i++) {
        uv_loop_t loop;
        struct cm_proc *proc = NULL;
        struct cm_error err;
        unsigned stops = 0;
        assert_int_equal(uv_loop_init(&loop), 0);
        const struct cm_proc_options options = {&loop, CM_ROLE_WORKER, 1, on_stop, &stops};
        assert_int_equal(cm_proc_start(&options, &err, &proc), CM_OK);
        raise(signals[i]);
        T_WAIT(&loop, stops == 1);
        cm_proc_close(proc);
        cm_proc_run_dry(&loop);
        assert_int_equal(stops, 1);
    }
}

static void test_second_signal_ends_at_once(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        uv_loop_t loop;
        struct cm_proc *proc = NULL;
        struct cm_error err;
        unsigned stops = 0;
        CM_ASSERT(uv_loop_init(&loop) == 0);
        const struct cm_proc_options options = {&loop, CM_ROLE_WORKER, 1, on_stop, &stops};
        CM_ASSERT(cm_proc_start(&options, &err, &proc) == CM_OK);
        raise(SIGTERM);
        while (stops == 0)
            uv_run(&loop, UV_RUN_ONCE);
        raise(SIGINT);
        uv_run(&loop, UV_RUN_DEFAULT); /* the handles keep it alive */
        _exit(99);
    }
    assert_int_equal(exit_code(pid), CM_EXIT_FAILURE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_early),   cmocka_unit_test(test_orphan),
        cmocka_unit_test(test_notify),  cmocka_unit_test(test_ready_without_text),
        cmocka_unit_test(test_signals), cmocka_unit_test(test_second_signal_ends_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
