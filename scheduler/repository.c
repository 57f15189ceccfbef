/* Scanning the model repository. Blocking file system calls; main thread, before the loop.
 *
 * Every path below the root is opened with RESOLVE_BENEATH: a symbolic link may point anywhere
 * inside (mounted volumes are full of them), and nowhere outside. */
#include "scheduler/repository.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_ENTRIES    4096u /* looked at, in the root and in each model */
#define MAX_CONFIG     (64u * 1024u)
#define MAX_MODEL_PATH (CM_MODEL_NAME_MAX + 32)

static int open_beneath(int root, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static enum cm_err open_failed(struct cm_error *err, int errnum, const char *what)
{
    if (errnum == EXDEV)
        return cm_fail(err, CM_PERMISSION, "%s lies outside the model repository", what);
    return cm_fail_errno(err, errnum, "cannot open %s", what);
}

/* ---- names ---- */

struct names {
    char **items;
    size_t count;
};

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
    *names = (struct names){0};
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in an open directory, sorted, without those that begin with a dot. Takes fd. */
static enum cm_err names_read(int fd, struct cm_error *err, struct names *ret_names)
{
    struct names names = {.items = calloc(MAX_ENTRIES, sizeof(char *))};
    DIR *dir = fdopendir(fd);
    if (!dir || !names.items) {
        int errnum = errno;
        dir ? closedir(dir) : close(fd);
        names_free(&names);
        return cm_fail_errno(err, errnum, "cannot read a directory");
    }
    struct dirent *entry;
    while (names.count < MAX_ENTRIES && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        char *name = strdup(entry->d_name);
        if (!name)
            break;
        names.items[names.count++] = name;
    }
    closedir(dir);
    qsort(names.items, names.count, sizeof names.items[0], by_bytes);
    *ret_names = names;
    return CM_OK;
}

/* A name that is not valid, made fit to be shown: never equal to a valid one. */
static void show_name(const char *name, char *buffer, size_t size)
{
    size_t n = 0;
    bool cut = strlen(name) >= size;
    size_t room = cut ? size - 3 : size - 1;
    for (; name[n] && n < room; n++)
        buffer[n] = name[n] > ' ' && name[n] < 0x7f ? name[n] : '?';
    if (cut) {
        buffer[n++] = '.'; /* ".." is in no valid name */
        buffer[n++] = '.';
    }
    buffer[n] = '\0';
}

/* ---- one model ---- */

static enum cm_err read_config(int root, const char *name, struct cm_error *err,
                               struct cm_model_config *config)
{
    char path[MAX_MODEL_PATH];
    snprintf(path, sizeof path, "%s/config.yaml", name);
    int fd = open_beneath(root, path, O_RDONLY);
    if (fd < 0 && errno == ENOENT)
        return CM_OK; /* optional */
    if (fd < 0)
        return open_failed(err, errno, "config.yaml");
    struct stat st;
    char *bytes = malloc(MAX_CONFIG + 1);
    size_t length = 0;
    ssize_t n = 1;
    enum cm_err code = CM_OK;
    if (!bytes || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        code = cm_fail(err, CM_INVALID, "config.yaml is not a regular file");
    while (code == CM_OK && n != 0 && length <= MAX_CONFIG) {
        n = read(fd, bytes + length, MAX_CONFIG + 1 - length);
        if (n < 0 && errno != EINTR)
            code = cm_fail_errno(err, errno, "cannot read config.yaml");
        length += n > 0 ? (size_t)n : 0;
    }
    if (code == CM_OK && length > MAX_CONFIG)
        code = cm_fail(err, CM_LIMIT, "config.yaml is larger than %u bytes", MAX_CONFIG);
    if (code == CM_OK)
        code = cm_model_config_parse(path, bytes, length, err, config);
    free(bytes);
    close(fd);
    return code;
}

/* Takes dir. */
static enum cm_err find_version(int dir, struct cm_error *err, uint32_t *ret_version)
{
    struct names names;
    enum cm_err code = names_read(dir, err, &names);
    if (code != CM_OK)
        return code;
    uint32_t best = 0;
    for (size_t i = 0; i < names.count; i++) {
        uint32_t version = cm_model_version_parse(names.items[i], strlen(names.items[i]));
        if (version > best)
            best = version;
    }
    names_free(&names);
    if (best == 0)
        return cm_fail(err, CM_NOT_FOUND,
                       "the model has no version: a directory named 1, 2, ... is missing");
    *ret_version = best;
    return CM_OK;
}

static enum cm_err check_file(int root, const char *name, uint32_t version, struct cm_error *err)
{
    char path[MAX_MODEL_PATH], what[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/%u/model.onnx", name, version);
    snprintf(what, sizeof what, "model.onnx of version %u", version);
    int fd = open_beneath(root, path, O_RDONLY);
    if (fd < 0)
        return open_failed(err, errno, what);
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    close(fd);
    return regular ? CM_OK : cm_fail(err, CM_INVALID, "%s is not a regular file", what);
}

/* Takes dir. */
static enum cm_err inspect(int root, const char *name, int dir, struct cm_error *err,
                           uint32_t *version, struct cm_model_config *config)
{
    if (!cm_model_name_valid(name, strlen(name))) {
        close(dir);
        return cm_fail(err, CM_INVALID,
                       "the directory's name is not a model name: letters, digits, '_', '-' and "
                       "'.', at most %d, the first a letter or digit, no '..'",
                       CM_MODEL_NAME_MAX);
    }
    enum cm_err code = find_version(dir, err, version);
    if (code == CM_OK)
        code = read_config(root, name, err, config);
    if (code == CM_OK)
        code = check_file(root, name, *version, err);
    return code;
}

/* Adds one directory; a plain file is none of ours. */
static void add(int root, const char *name, struct sd_models *models, uint32_t *skipped)
{
    struct cm_model_config config;
    struct cm_error err = {.code = CM_OK};
    uint32_t version = 0;
    char shown[CM_MODEL_NAME_MAX + 1];
    cm_model_config_init(&config);
    int dir = open_beneath(root, name, O_RDONLY | O_DIRECTORY);
    if (dir < 0 && errno == ENOTDIR)
        return;
    if (models->count == SD_MAX_MODELS) {
        if (dir >= 0)
            close(dir);
        ++*skipped;
        return;
    }
    enum cm_err code = dir < 0 ? open_failed(&err, errno, "the model's directory")
                               : inspect(root, name, dir, &err, &version, &config);
    bool valid = cm_model_name_valid(name, strlen(name));
    show_name(name, shown, sizeof shown);
    sd_models_add(models, valid ? name : shown, version, &config, code == CM_OK ? NULL : err.text);
}

enum cm_err sd_repository_scan(const char *root, struct sd_models *models, struct cm_error *err,
                               uint32_t *ret_skipped)
{
    struct names names;
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cm_fail_errno(err, errno, "cannot open the model repository %s", root);
    int list = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    enum cm_err code = list < 0 ? cm_fail_errno(err, errno, "cannot read the model repository")
                                : names_read(list, err, &names);
    if (code != CM_OK) {
        close(fd);
        return code;
    }
    *ret_skipped = 0;
    for (size_t i = 0; i < names.count; i++)
        add(fd, names.items[i], models, ret_skipped);
    names_free(&names);
    close(fd);
    return CM_OK;
}
