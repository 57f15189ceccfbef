/* The readiness socket: sd_notify's protocol, the sender known by its pid. The supervisor's loop.
 *
 * The kernel says who sent a datagram (SCM_CREDENTIALS), so a process can report only itself. */
#include "deploy/ingot/supervisor_priv.h"

#include "common/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct ig_child *child_of_pid(struct ig_supervisor *sup, pid_t pid)
{
    for (unsigned i = 0; i < sup->n_children; i++)
        if (sup->children[i].running && sup->children[i].process.pid == pid)
            return &sup->children[i];
    return NULL;
}

static bool says_ready(const char *text)
{
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "READY=1", 7) == 0 && (line[7] == '\0' || line[7] == '\n'))
            return true;
    }
    return false;
}

/* One datagram; false when there is none. ret_pid is 0 if the kernel did not say. */
static bool receive(int fd, char *text, size_t size, pid_t *ret_pid)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(16 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = text, .iov_len = size - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return false;
    text[n] = '\0';
    *ret_pid = 0;
    for (struct cmsghdr *part_header = CMSG_FIRSTHDR(&message); part_header;
         part_header = CMSG_NXTHDR(&message, part_header)) {
        if (part_header->cmsg_level != SOL_SOCKET)
            continue;
        size_t length = part_header->cmsg_len - CMSG_LEN(0);
        if (part_header->cmsg_type == SCM_CREDENTIALS && length == sizeof(struct ucred)) {
            struct ucred sender;
            memcpy(&sender, CMSG_DATA(part_header), sizeof sender);
            *ret_pid = sender.pid;
        }
        /* Nobody is asked to send descriptors; those that come are not kept. */
        for (size_t i = 0; part_header->cmsg_type == SCM_RIGHTS && i < length / sizeof(int); i++) {
            int stray;
            memcpy(&stray, CMSG_DATA(part_header) + i * sizeof stray, sizeof stray);
            close(stray);
        }
    }
    return true;
}

static void on_notify(uv_poll_t *poll, int status, int events)
{
    struct ig_supervisor *sup = poll->data;
    char text[4096];
    pid_t pid;
    (void)events;
    if (status != 0)
        return;
    while (receive(sup->notify_fd, text, sizeof text, &pid)) {
        struct ig_child *child = child_of_pid(sup, pid);
        if (!child || !says_ready(text))
            continue;
        ig_child_ready(child);
        if (child->role == CM_ROLE_MEMMGR)
            ig_start_others(sup);
        ig_readiness_check(sup);
    }
}

enum cm_err ig_notify_open(struct ig_supervisor *sup, struct cm_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX];
    int yes = 1;
    ig_run_path(sup->options->run_dir, IG_FILE_NOTIFY, path);
    CM_ASSERT(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return cm_fail_errno(err, errno, "no socket for %s", path);
    unlink(path); /* of a supervisor that was killed: the lock is ours */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int errnum = errno;
        close(fd);
        return cm_fail_errno(err, errnum, "the socket %s cannot be made", path);
    }
    int result = uv_poll_init(&sup->loop, &sup->notify, fd);
    if (result != 0) {
        close(fd);
        return cm_fail(err, CM_IO, "the socket %s cannot be watched: %s", path,
                       uv_strerror(result));
    }
    sup->notify_fd = fd;
    sup->notify.data = sup;
    uv_poll_start(&sup->notify, UV_READABLE, on_notify);
    return CM_OK;
}

void ig_notify_close(struct ig_supervisor *sup)
{
    char path[PATH_MAX];
    if (sup->notify_fd < 0)
        return;
    uv_close((uv_handle_t *)&sup->notify, NULL);
    close(sup->notify_fd);
    sup->notify_fd = -1;
    unlink(ig_run_path(sup->options->run_dir, IG_FILE_NOTIFY, path));
}
