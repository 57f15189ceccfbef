/* Reading model files: see repo.h. Blocking. */
#include "gpu-worker/repo.h"

#include "common/model_config.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads an open descriptor to its end as fstat gives it. */
static enum cm_err read_all(int fd, const char *what, struct cm_error *err, void **ret_bytes,
                            size_t *ret_length)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return cm_fail_errno(err, errno, "cannot read %s", what);
    if (!S_ISREG(st.st_mode))
        return cm_fail(err, CM_INVALID, "%s is not a regular file", what);
    if (st.st_size < 0 || (uint64_t)st.st_size > WK_MODEL_FILE_MAX)
        return cm_fail(err, CM_LIMIT, "%s is larger than 2 GiB", what);
    size_t length = (size_t)st.st_size, have = 0;
    unsigned char *bytes = malloc(length ? length : 1);
    if (!bytes)
        return cm_fail(err, CM_NOMEM, "no memory to read %s (%zu bytes)", what, length);
    while (have < length) {
        ssize_t n = read(fd, bytes + have, length - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int errnum = n < 0 ? errno : EIO;
            free(bytes);
            return cm_fail_errno(err, errnum, "cannot read %s", what);
        }
        have += (size_t)n;
    }
    *ret_bytes = bytes;
    *ret_length = length;
    return CM_OK;
}

/* Opens path beneath the folder: links may lead about in it, but not out of it. */
static int open_beneath(int folder, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
}

/* The version's folder and the model in it. Folders may be swapped meanwhile, so the model is
 * opened in the folder that was found; only where it is a link out of that folder, which mounted
 * volumes have, it is looked up from the root. */
static int open_model(int root, const char *folder, int *ret_directory)
{
    char path[CM_MODEL_NAME_MAX + 64];
    const uint64_t flags = O_RDONLY | O_NOCTTY | O_NONBLOCK;
    int directory = open_beneath(root, folder, O_PATH | O_DIRECTORY);
    if (directory < 0)
        return -1;
    int fd = open_beneath(directory, "model.onnx", flags);
    if (fd < 0 && errno == EXDEV) {
        snprintf(path, sizeof path, "%s/model.onnx", folder);
        fd = open_beneath(root, path, flags);
    }
    if (fd < 0) {
        int errnum = errno;
        close(directory);
        errno = errnum;
        return -1;
    }
    *ret_directory = directory;
    return fd;
}

enum cm_err wk_repo_read(const char *root, const char *name, uint32_t version, struct cm_error *err,
                         void **ret_bytes, size_t *ret_length, int *ret_directory)
{
    char folder[CM_MODEL_NAME_MAX + 32], what[CM_MODEL_NAME_MAX + 64];
    if (!cm_model_name_valid(name, strlen(name)) || version == 0)
        return cm_fail(err, CM_INVALID, "not a model name");
    snprintf(folder, sizeof folder, "%s/%u", name, version);
    snprintf(what, sizeof what, "model.onnx of %s version %u", name, version);
    int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC), directory;
    if (dir < 0)
        return cm_fail_errno(err, errno, "cannot open the model repository");
    int fd = open_model(dir, folder, &directory);
    int errnum = errno;
    close(dir);
    if (fd < 0 && errnum == EXDEV)
        return cm_fail(err, CM_PERMISSION, "%s lies outside the model repository", what);
    if (fd < 0)
        return cm_fail_errno(err, errnum, "cannot open %s", what);
    enum cm_err code = read_all(fd, what, err, ret_bytes, ret_length);
    close(fd);
    if (code == CM_OK && ret_directory)
        *ret_directory = directory;
    else
        close(directory);
    return code;
}
