/* The run directory and whole-file helpers. Main thread, blocking. */
#include "deploy/ingot/rundir.h"

#include "common/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void default_run_dir(char path[PATH_MAX])
{
    const char *own = getenv("INGOT_RUN_DIR");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (own && *own)
        snprintf(path, PATH_MAX, "%s", own);
    else if (runtime && *runtime)
        snprintf(path, PATH_MAX, "%s/ingot", runtime);
    else if (geteuid() == 0)
        snprintf(path, PATH_MAX, "/run/ingot");
    else
        snprintf(path, PATH_MAX, "/tmp/ingot-%u", (unsigned)geteuid());
}

enum cm_err ig_run_dir_resolve(const char *given, struct cm_error *err, char ret_path[PATH_MAX])
{
    char path[PATH_MAX];
    if (given && !*given)
        return cm_fail(err, CM_INVALID, "the run directory's name is empty");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        default_run_dir(path);
    char absolute[2 * PATH_MAX];
    if (path[0] == '/') {
        snprintf(absolute, sizeof absolute, "%s", path);
    } else {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here))
            return cm_fail_errno(err, errno, "the current directory has no path");
        snprintf(absolute, sizeof absolute, "%s/%s", here, path);
    }
    size_t length = strlen(absolute);
    while (length > 1 && absolute[length - 1] == '/')
        absolute[--length] = '\0';
    if (length > IG_RUN_DIR_MAX)
        return cm_fail(err, CM_LIMIT,
                       "the run directory %s has %zu bytes; with more than %d the sockets in it "
                       "have no valid address: choose a shorter one with --run-dir",
                       absolute, length, IG_RUN_DIR_MAX);
    memcpy(ret_path, absolute, length + 1);
    return CM_OK;
}

static enum cm_err make_parents(const char *path, struct cm_error *err)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST)
            return cm_fail_errno(err, errno, "the directory %s cannot be made", part);
        *slash = '/';
    }
    return CM_OK;
}

static enum cm_err make_private(const char *path, struct cm_error *err)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return cm_fail_errno(err, errno, "the directory %s cannot be made", path);
    /* lstat: a link that someone else put there is refused, not followed. */
    if (lstat(path, &info) != 0)
        return cm_fail_errno(err, errno, "the directory %s cannot be looked at", path);
    if (!S_ISDIR(info.st_mode))
        return cm_fail(err, CM_INVALID, "%s is not a directory", path);
    if (info.st_uid != geteuid() || (info.st_mode & 077))
        return cm_fail(err, CM_PERMISSION,
                       "the directory %s must belong to this user and be closed to others (mode "
                       "0700): processes trust everything in it",
                       path);
    return CM_OK;
}

enum cm_err ig_run_dir_prepare(const char *run_dir, struct cm_error *err)
{
    static const char *const folders[] = {IG_FILE_LOG_DIR, IG_FILE_TLS_DIR, IG_FILE_BUS_DIR};
    char path[PATH_MAX];
    enum cm_err code = make_parents(run_dir, err);
    if (code == CM_OK)
        code = make_private(run_dir, err);
    for (unsigned i = 0; i < CM_COUNT_OF(folders) && code == CM_OK; i++)
        code = make_private(ig_run_path(run_dir, folders[i], path), err);
    return code;
}

const char *ig_run_path(const char *run_dir, const char *file, char buffer[PATH_MAX])
{
    int length = snprintf(buffer, PATH_MAX, "%s/%s", run_dir, file);
    CM_ASSERT(length > 0 && length < PATH_MAX);
    return buffer;
}

/* Reads an open regular file. */
static enum cm_err read_open(int fd, const char *path, size_t max, struct cm_error *err,
                             unsigned char **ret_bytes, size_t *ret_length)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return cm_fail_errno(err, errno, "%s cannot be looked at", path);
    if (!S_ISREG(info.st_mode))
        return cm_fail(err, CM_INVALID, "%s is not a regular file", path);
    if (info.st_size < 0 || (uintmax_t)info.st_size > max)
        return cm_fail(err, CM_LIMIT, "%s has %jd bytes; the limit is %zu", path,
                       (intmax_t)info.st_size, max);
    size_t size = (size_t)info.st_size, have = 0;
    unsigned char *bytes = malloc(size + 1);
    if (!bytes)
        return cm_fail(err, CM_NOMEM, "no memory for the %zu bytes of %s", size, path);
    while (have < size) {
        ssize_t n = read(fd, bytes + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            enum cm_err code = cm_fail_errno(err, errno, "%s cannot be read", path);
            free(bytes);
            return code;
        }
        if (n == 0)
            break;
        have += (size_t)n;
    }
    bytes[have] = '\0';
    *ret_bytes = bytes;
    *ret_length = have;
    return CM_OK;
}

enum cm_err ig_read_file(const char *path, size_t max, struct cm_error *err,
                         unsigned char **ret_bytes, size_t *ret_length)
{
    /* O_NONBLOCK: opening a fifo must not wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return cm_fail_errno(err, errno, "%s cannot be opened", path);
    enum cm_err code = read_open(fd, path, max, err, ret_bytes, ret_length);
    close(fd);
    return code;
}

static enum cm_err write_all(int fd, const void *bytes, size_t length)
{
    const unsigned char *next = bytes;
    while (length > 0) {
        ssize_t n = write(fd, next, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cm_err_from_errno(errno);
        next += n;
        length -= (size_t)n;
    }
    return CM_OK;
}

/* /dev/stdout, a fifo: renaming over it would replace it. */
static enum cm_err write_in_place(const char *path, const void *bytes, size_t length,
                                  struct cm_error *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return cm_fail_errno(err, errno, "%s cannot be opened for writing", path);
    enum cm_err code = write_all(fd, bytes, length);
    close(fd);
    return code == CM_OK ? CM_OK : cm_fail(err, code, "%s cannot be written", path);
}

enum cm_err ig_write_file(const char *path, unsigned mode, const void *bytes, size_t length,
                          struct cm_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return write_in_place(path, bytes, length, err);
    mode_t mask = umask(0);
    umask(mask);
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    if (n < 0 || (size_t)n >= sizeof temporary)
        return cm_fail(err, CM_LIMIT, "the path %.60s... is too long", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return cm_fail_errno(err, errno, "%s cannot be written", path);
    bool good = write_all(fd, bytes, length) == CM_OK && fchmod(fd, mode & ~mask) == 0;
    int errnum = errno;
    if (close(fd) != 0 && good) {
        good = false;
        errnum = errno;
    }
    if (good && rename(temporary, path) != 0) {
        good = false;
        errnum = errno;
    }
    if (good)
        return CM_OK;
    unlink(temporary);
    return cm_fail_errno(err, errnum, "%s cannot be written", path);
}
