/* The run directory: that it is ours alone, that only one memmgr lives there, and the socket.
 * memmgr's loop thread, at start and stop.
 *
 * The lock on memmgr.lock says who lives: the kernel drops it with the process. Only the holder of
 * the lock touches the socket's name, so a dead predecessor's socket can be removed without a race;
 * that it was there tells us that clients may come to hand back what they hold. */
#include "memmgr/server_priv.h"

#include "common/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static enum cm_err check_directory(const char *path, struct cm_error *err)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return cm_fail_errno(err, errno, "cannot make run directory %s", path);
    struct stat status;
    if (lstat(path, &status) != 0)
        return cm_fail_errno(err, errno, "cannot look at run directory %s", path);
    if (!S_ISDIR(status.st_mode))
        return cm_fail(err, CM_INVALID, "run directory %s is not a directory", path);
    if (status.st_uid != geteuid())
        return cm_fail(err, CM_PERMISSION, "run directory %s belongs to user %u, not to %u", path,
                       status.st_uid, geteuid());
    if (status.st_mode & 077)
        return cm_fail(err, CM_PERMISSION,
                       "run directory %s is open to other users (mode %03o): chmod 700 it", path,
                       status.st_mode & 0777);
    return CM_OK;
}

static enum cm_err take_lock(struct mm_server *server, const char *run_dir, struct cm_error *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/memmgr.lock", run_dir);
    if (length < 0 || (size_t)length >= sizeof path)
        return cm_fail(err, CM_INVALID, "the run directory's name is too long");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cm_fail_errno(err, errno, "cannot open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        enum cm_err code =
            errno == EWOULDBLOCK
                ? cm_fail(err, CM_EXISTS, "another memmgr is running on %s: stop it first", run_dir)
                : cm_fail_errno(err, errno, "cannot lock %s", path);
        close(fd);
        return code;
    }
    server->lock_fd = fd;
    return CM_OK;
}

/* Somebody who does not know about the lock could listen there: ask before removing. */
static enum cm_err remove_stale(const struct sockaddr_un *address, struct cm_error *err,
                                bool *ret_removed)
{
    *ret_removed = false;
    struct stat status;
    if (lstat(address->sun_path, &status) != 0)
        return errno == ENOENT ? CM_OK
                               : cm_fail_errno(err, errno, "cannot look at %s", address->sun_path);
    if (!S_ISSOCK(status.st_mode))
        return cm_fail(err, CM_EXISTS, "%s exists and is not a socket: remove it",
                       address->sun_path);
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return cm_fail_errno(err, errno, "cannot create a socket");
    int connected = connect(probe, (const struct sockaddr *)address, sizeof *address);
    int errnum = errno;
    close(probe);
    if (connected == 0 || errnum != ECONNREFUSED)
        return cm_fail(err, CM_EXISTS, "something else listens on %s: stop it first",
                       address->sun_path);
    if (unlink(address->sun_path) != 0)
        return cm_fail_errno(err, errno, "cannot remove the stale %s", address->sun_path);
    *ret_removed = true;
    return CM_OK;
}

static enum cm_err bind_socket(struct mm_server *server, const char *run_dir, struct cm_error *err,
                               bool *ret_succeeds)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/" MM_SOCKET_NAME, run_dir);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return cm_fail(err, CM_INVALID,
                       "run directory %s: a socket's name may have at most %zu bytes: choose a "
                       "shorter one",
                       run_dir, sizeof address.sun_path - 1);
    enum cm_err code = remove_stale(&address, err, ret_succeeds);
    if (code != CM_OK)
        return code;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return cm_fail_errno(err, errno, "cannot create a socket");
    server->socket_path = strdup(address.sun_path);
    if (!server->socket_path) {
        close(fd);
        return cm_fail(err, CM_NOMEM, "out of memory");
    }
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 128) != 0) {
        code = cm_fail_errno(err, errno, "cannot listen on %s", address.sun_path);
        close(fd);
        return code;
    }
    server->listen_fd = fd;
    return CM_OK;
}

enum cm_err mm_listen(struct mm_server *server, const char *run_dir, struct cm_error *err,
                      bool *ret_succeeds)
{
    enum cm_err code = check_directory(run_dir, err);
    if (code == CM_OK)
        code = take_lock(server, run_dir, err);
    if (code == CM_OK)
        code = bind_socket(server, run_dir, err, ret_succeeds);
    return code;
}

void mm_unlisten(struct mm_server *server, bool leave)
{
    if (server->listen_fd >= 0) {
        if (!leave)
            unlink(server->socket_path);
        close(server->listen_fd);
        server->listen_fd = -1;
    }
    if (server->lock_fd >= 0) {
        close(server->lock_fd);
        server->lock_fd = -1;
    }
}
