/* Opening files beside a model; the path rules of external.h. Any thread, blocking.
 *
 * The path is walked here, component by component with O_NOFOLLOW, instead of by openat2: a walk
 * that never follows a link and never goes up cannot leave the folder, works on every kernel and
 * sandbox, and can say which rule was broken. */
#include "gpu-worker/graph/external_priv.h"

#include "gpu-worker/graph/graph.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

struct walk {
    const char *what;
    char location[96]; /* printable */
    struct cm_error *err;
};

static enum cm_err refuse(const struct walk *walk, enum cm_err code, const char *why)
{
    return cm_fail(walk->err, code, "%s: external data \"%s\" %s", walk->what, walk->location, why);
}

static enum cm_err refuse_errno(const struct walk *walk, int errnum)
{
    if (errnum == ENOENT || errnum == ENOTDIR)
        return refuse(walk, CM_NOT_FOUND, "does not exist");
    if (errnum == ELOOP) /* a link that was put there a moment ago */
        return refuse(walk, CM_PERMISSION, "is a symbolic link");
    return cm_fail_errno(walk->err, errnum, "%s: cannot open external data \"%s\"", walk->what,
                         walk->location);
}

/* Whether the kind of file will do; what it is called matters for hard links only. */
static enum cm_err check_kind(const struct walk *walk, const struct stat *st, bool last)
{
    if (S_ISLNK(st->st_mode))
        return refuse(walk, CM_PERMISSION,
                      last ? "is a symbolic link" : "goes through a symbolic link");
    if (!last)
        return S_ISDIR(st->st_mode) ? CM_OK : refuse(walk, CM_NOT_FOUND, "does not exist");
    if (!S_ISREG(st->st_mode))
        return refuse(walk, CM_INVALID, "is not a regular file");
    if (st->st_nlink > 1)
        return refuse(walk, CM_PERMISSION, "has further names (hard links)");
    return CM_OK;
}

/* The kind is looked at before, because opening a device may do something, and after, because it
 * may be another file by then. */
static enum cm_err open_component(const struct walk *walk, int at, const char *name, bool last,
                                  int *ret_fd, struct stat *ret_st)
{
    int flags = last ? O_RDONLY | O_NONBLOCK | O_NOCTTY : O_PATH | O_DIRECTORY;
    if (fstatat(at, name, ret_st, AT_SYMLINK_NOFOLLOW) != 0)
        return refuse_errno(walk, errno);
    enum cm_err code = check_kind(walk, ret_st, last);
    if (code != CM_OK)
        return code;
    int fd = openat(at, name, flags | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return refuse_errno(walk, errno);
    code = fstat(fd, ret_st) == 0 ? check_kind(walk, ret_st, last) : refuse_errno(walk, errno);
    if (code != CM_OK)
        close(fd);
    else
        *ret_fd = fd;
    return code;
}

static enum cm_err check_component(const struct walk *walk, const char *name, size_t length)
{
    if (length == 0)
        return refuse(walk, CM_INVALID, "is not a path beneath the model's folder");
    if (length == 2 && name[0] == '.' && name[1] == '.')
        return refuse(walk, CM_INVALID, "leaves the model's folder");
    return length > NAME_MAX ? refuse(walk, CM_NOT_FOUND, "does not exist") : CM_OK;
}

enum cm_err wk_external_open(int directory, const char *location, const char *what,
                             struct cm_error *err, int *ret_fd, struct stat *ret_st)
{
    struct walk walk = {.what = what, .err = err};
    int at = directory;
    bool last = false;
    enum cm_err code = CM_OK;
    wk_printable(location, walk.location, sizeof walk.location);
    if (strlen(location) > WK_EXTERNAL_MAX_PATH)
        return refuse(&walk, CM_LIMIT, "is too long a path");
    /* A bad path is refused as such, whatever exists. */
    for (const char *name = location;; name++) {
        size_t length = strcspn(name, "/");
        code = check_component(&walk, name, length);
        if (code != CM_OK)
            return code;
        name += length;
        if (!*name)
            break;
    }
    for (const char *name = location; code == CM_OK && !last; name++) {
        char component[NAME_MAX + 1] = {0};
        size_t length = strcspn(name, "/");
        int next = -1;
        memcpy(component, name, length);
        name += length;
        last = !*name;
        code = open_component(&walk, at, component, last, &next, ret_st);
        if (at != directory)
            close(at);
        at = next;
    }
    if (code == CM_OK)
        *ret_fd = at;
    return code;
}

enum cm_err wk_external_pread(int fd, uint64_t offset, void *to, size_t length, const char *what,
                              struct cm_error *err)
{
    size_t have = 0;
    while (have < length) {
        ssize_t n = pread(fd, (char *)to + have, length - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cm_fail_errno(err, errno, "%s: cannot read its external data", what);
        if (n == 0)
            return cm_fail(err, CM_UNAVAILABLE, "%s: its external data changed while it was loaded",
                           what);
        have += (size_t)n;
    }
    return CM_OK;
}
