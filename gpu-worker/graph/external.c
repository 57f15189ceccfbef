/* Reading tensors from files beside a model; see external.h. One thread, blocking.
 *
 * A part of a file is read once however often the model refers to it, and all different parts of a
 * file together may not be larger than it: what a model can make us read is bounded by the files it
 * comes with. */
#include "gpu-worker/graph/external.h"

#include "common/check.h"
#include "gpu-worker/graph/arena.h"
#include "gpu-worker/graph/external_priv.h"
#include "gpu-worker/graph/graph.h"
#include "gpu-worker/graph/safetensors.h"

#include <openssl/evp.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SHA1_BYTES 20

/* A part of a file that is in memory. */
struct range {
    uint64_t offset, length;
    const void *data;
};

struct file {
    struct stat st;  /* as it was first seen */
    void *ranges;    /* tree of struct range */
    uint64_t in_use; /* bytes of all ranges */
    bool has_sha1, has_header;
    uint8_t sha1[SHA1_BYTES];
    struct wk_safetensors header;
};

struct wk_external {
    int directory;
    int fd; /* of current, or -1: one file is open at a time */
    struct file *current;
    char location[WK_EXTERNAL_MAX_PATH + 1]; /* of current */
    struct wk_arena arena, data;             /* what describes; what was read */
    void *files;                             /* tree of struct file, by device and inode */
    size_t total;
    EVP_MD_CTX *sha256;
};

/* What external_data says, and the tensor it says it of. */
struct request {
    const char *what;
    const char *location, *tensor, *checksum;
    uint64_t offset, length;
    bool has_offset, has_length;
    enum cm_dtype dtype;
    const struct cm_shape *shape;
    struct cm_error *err;
};

struct wk_external *wk_external_create(int directory)
{
    struct wk_external *external = calloc(1, sizeof *external);
    if (!external)
        return NULL;
    external->directory = directory;
    external->fd = -1;
    external->sha256 = EVP_MD_CTX_new();
    if (!external->sha256 || !EVP_DigestInit_ex(external->sha256, EVP_sha256(), NULL)) {
        wk_external_destroy(external);
        return NULL;
    }
    return external;
}

static void keep(void *node)
{
    (void)node; /* it lies in the arena */
}

static void forget_file(void *node)
{
    struct file *file = node;
    tdestroy(file->ranges, keep);
    wk_safetensors_fini(&file->header);
}

void wk_external_destroy(struct wk_external *external)
{
    if (!external)
        return;
    if (external->fd >= 0)
        close(external->fd);
    tdestroy(external->files, forget_file);
    EVP_MD_CTX_free(external->sha256);
    wk_arena_fini(&external->arena);
    wk_arena_fini(&external->data);
    free(external);
}

enum cm_err wk_external_digest(struct wk_external *external, struct cm_error *err,
                               uint8_t ret_digest[32])
{
    memset(ret_digest, 0, 32);
    if (!external || external->total == 0 || EVP_DigestFinal_ex(external->sha256, ret_digest, NULL))
        return CM_OK;
    return cm_fail(err, CM_NOMEM, "cannot compute a SHA-256");
}

/* ---- what external_data says ----------------------------------------------------------------- */

static enum cm_err bad_entry(const struct request *request, const char *key, const char *why)
{
    char printable[64];
    return cm_fail(request->err, CM_INVALID, "%s: external_data: \"%s\" %s", request->what,
                   wk_printable(key, printable, sizeof printable), why);
}

/* Digits and nothing else: no sign, no space. */
static bool read_decimal(const char *text, uint64_t *ret)
{
    uint64_t value = 0;
    size_t i = 0;
    for (; text[i] >= '0' && text[i] <= '9'; i++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return false;
    *ret = value;
    return i > 0 && !text[i] && value <= INT64_MAX;
}

static enum cm_err read_entry(struct request *request, const char *key, const char *value)
{
    const char **text = strcmp(key, "location") == 0   ? &request->location
                        : strcmp(key, "tensor") == 0   ? &request->tensor
                        : strcmp(key, "checksum") == 0 ? &request->checksum
                                                       : NULL;
    bool is_offset = strcmp(key, "offset") == 0, is_length = strcmp(key, "length") == 0;
    if (text) {
        if (*text)
            return bad_entry(request, key, "is there twice");
        *text = value;
        return CM_OK;
    }
    if (is_offset || is_length) {
        bool *has = is_offset ? &request->has_offset : &request->has_length;
        if (*has)
            return bad_entry(request, key, "is there twice");
        if (!read_decimal(value, is_offset ? &request->offset : &request->length))
            return bad_entry(request, key, "is not a number of bytes");
        *has = true;
        return CM_OK;
    }
    /* Where the file once was; ONNX's own writer leaves it there. */
    return strcmp(key, "basepath") == 0 ? CM_OK : bad_entry(request, key, "is not known");
}

static enum cm_err read_request(struct request *request, const Onnx__TensorProto *proto)
{
    for (size_t i = 0; i < proto->n_external_data; i++) {
        const Onnx__StringStringEntryProto *entry = proto->external_data[i];
        enum cm_err code =
            read_entry(request, entry->key ? entry->key : "", entry->value ? entry->value : "");
        if (code != CM_OK)
            return code;
    }
    return request->location ? CM_OK : bad_entry(request, "location", "is missing");
}

/* ---- files ----------------------------------------------------------------------------------- */

static int by_identity(const void *a, const void *b)
{
    const struct stat *x = &((const struct file *)a)->st, *y = &((const struct file *)b)->st;
    if (x->st_dev != y->st_dev)
        return x->st_dev < y->st_dev ? -1 : 1;
    return (x->st_ino > y->st_ino) - (x->st_ino < y->st_ino);
}

static int by_range(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->length > y->length) - (x->length < y->length);
}

static bool is_unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static enum cm_err changed(const struct request *request)
{
    return cm_fail(request->err, CM_UNAVAILABLE,
                   "%s: its external data changed while it was loaded", request->what);
}

static enum cm_err no_memory(const struct request *request)
{
    return cm_fail(request->err, CM_NOMEM, "%s: no memory for its external data", request->what);
}

/* The file's record: a new one, or that from when it was first seen. */
static enum cm_err find_file(struct wk_external *external, const struct request *request,
                             const struct stat *st, struct file **ret_file)
{
    struct file key = {.st = *st};
    struct file **slot = tfind(&key, &external->files, by_identity);
    if (!slot) {
        struct file *file = wk_arena_take(&external->arena, 1, sizeof *file);
        if (!file)
            return no_memory(request);
        file->st = *st;
        slot = tsearch(file, &external->files, by_identity);
        if (!slot)
            return no_memory(request);
    }
    *ret_file = *slot;
    return is_unchanged(&(*slot)->st, st) ? CM_OK : changed(request);
}

/* Makes the request's file the current one. Models that name files in turn open them in turn:
 * thousands of open files would be worse. */
static enum cm_err open_current(struct wk_external *external, const struct request *request)
{
    struct stat st;
    int fd;
    if (external->current && strcmp(external->location, request->location) == 0)
        return CM_OK;
    enum cm_err code = wk_external_open(external->directory, request->location, request->what,
                                        request->err, &fd, &st);
    if (code != CM_OK)
        return code;
    if (external->fd >= 0)
        close(external->fd);
    external->fd = fd;
    external->current = NULL;
    memcpy(external->location, request->location, strlen(request->location) + 1);
    struct file *file = NULL;
    code = find_file(external, request, &st, &file);
    if (code == CM_OK)
        external->current = file;
    return code;
}

static enum cm_err hash_file(struct wk_external *external, const struct request *request)
{
    struct file *file = external->current;
    enum { CHUNK = 1 << 20 };
    uint64_t size = (uint64_t)file->st.st_size;
    unsigned char *chunk = malloc(CHUNK);
    EVP_MD_CTX *sha1 = EVP_MD_CTX_new();
    enum cm_err code = CM_OK;
    bool fine = chunk && sha1 && EVP_DigestInit_ex(sha1, EVP_sha1(), NULL);
    if (size > WK_MAX_WEIGHT_BYTES)
        code = cm_fail(request->err, CM_LIMIT, "%s: the file of its external data is too large",
                       request->what);
    for (uint64_t at = 0; at < size && fine && code == CM_OK; at += CHUNK) {
        size_t part = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        code = wk_external_pread(external->fd, at, chunk, part, request->what, request->err);
        fine = code != CM_OK || EVP_DigestUpdate(sha1, chunk, part);
    }
    fine = fine && EVP_DigestFinal_ex(sha1, file->sha1, NULL);
    EVP_MD_CTX_free(sha1);
    free(chunk);
    if (code == CM_OK && !fine)
        return no_memory(request);
    file->has_sha1 = code == CM_OK;
    return code;
}

static enum cm_err check_sha1(struct wk_external *external, const struct request *request)
{
    static const char digits[] = "0123456789abcdef";
    char wanted[2 * SHA1_BYTES + 1] = {0};
    enum cm_err code = CM_OK;
    if (!external->current->has_sha1)
        code = hash_file(external, request);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < SHA1_BYTES; i++) {
        wanted[2 * i] = digits[external->current->sha1[i] >> 4];
        wanted[2 * i + 1] = digits[external->current->sha1[i] & 15];
    }
    return strcasecmp(wanted, request->checksum) == 0
               ? CM_OK
               : cm_fail(request->err, CM_CORRUPT,
                         "%s: the checksum of its external data does not match", request->what);
}

/* ---- safetensors ----------------------------------------------------------------------------- */

static bool is_safetensors(const char *location)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(location), tail = sizeof ending - 1;
    return length > tail && strcmp(location + length - tail, ending) == 0;
}

static enum cm_err read_header(struct wk_external *external, const struct request *request)
{
    struct file *file = external->current;
    uint8_t prefix[WK_SAFETENSORS_PREFIX] = {0};
    uint64_t size = (uint64_t)file->st.st_size;
    char what[128], printable[96];
    size_t length = 0;
    snprintf(what, sizeof what, "\"%s\"",
             wk_printable(request->location, printable, sizeof printable));
    if (file->has_header)
        return CM_OK;
    enum cm_err code =
        wk_external_pread(external->fd, 0, prefix, size < sizeof prefix ? size : sizeof prefix,
                          request->what, request->err);
    if (code == CM_OK)
        code = wk_safetensors_header(prefix, size, what, request->err, &length);
    if (code != CM_OK)
        return code;
    char *header = malloc(length);
    if (!header)
        return no_memory(request);
    code =
        wk_external_pread(external->fd, sizeof prefix, header, length, request->what, request->err);
    if (code == CM_OK)
        code = wk_safetensors_parse(header, length, size, what, request->err, &file->header);
    free(header);
    file->has_header = code == CM_OK;
    return code;
}

/* Fills in offset and length from the header. */
static enum cm_err look_up(const struct wk_external *external, struct request *request,
                           const char *name)
{
    char printable[96], of_file[64], of_model[64];
    const struct wk_safetensor *tensor = wk_safetensors_find(&external->current->header, name);
    wk_printable(name, printable, sizeof printable);
    if (!tensor)
        return cm_fail(request->err, CM_NOT_FOUND, "%s: its safetensors file has no tensor \"%s\"",
                       request->what, printable);
    if (tensor->dtype != request->dtype)
        return cm_fail(request->err, CM_INVALID,
                       "%s: tensor \"%s\" of its safetensors file has another element type",
                       request->what, printable);
    if (!cm_shape_equal(&tensor->shape, request->shape))
        return cm_fail(request->err, CM_INVALID,
                       "%s: tensor \"%s\" of its safetensors file has shape %s, the model says %s",
                       request->what, printable,
                       cm_shape_format(&tensor->shape, of_file, sizeof of_file),
                       cm_shape_format(request->shape, of_model, sizeof of_model));
    request->offset = tensor->begin;
    return CM_OK;
}

static enum cm_err locate(struct wk_external *external, struct request *request, const char *name)
{
    bool safetensors = is_safetensors(request->location);
    bool by_name = safetensors && !request->has_offset;
    if (request->tensor && !by_name)
        return bad_entry(request, "tensor", "is for safetensors files without an offset");
    enum cm_err code = safetensors ? read_header(external, request) : CM_OK;
    if (code == CM_OK && by_name)
        code = look_up(external, request, request->tensor ? request->tensor : name);
    return code;
}

/* ---- data ------------------------------------------------------------------------------------ */

static enum cm_err read_range(struct wk_external *external, const struct request *request,
                              size_t bytes, struct range **ret_range)
{
    struct file *file = external->current;
    struct range *range = wk_arena_take(&external->arena, 1, sizeof *range);
    void *data = wk_arena_take(&external->data, bytes, 1);
    if (!range || !data)
        return no_memory(request);
    enum cm_err code =
        wk_external_pread(external->fd, request->offset, data, bytes, request->what, request->err);
    if (code != CM_OK)
        return code;
    struct stat st;
    if (fstat(external->fd, &st) != 0 || !is_unchanged(&file->st, &st))
        return changed(request);
    *range = (struct range){request->offset, bytes, data};
    if (!EVP_DigestUpdate(external->sha256, data, bytes) ||
        !tsearch(range, &file->ranges, by_range))
        return no_memory(request);
    file->in_use += bytes;
    external->total += bytes;
    *ret_range = range;
    return CM_OK;
}

static enum cm_err take_range(struct wk_external *external, const struct request *request,
                              size_t bytes, const void **ret_data)
{
    struct file *file = external->current;
    uint64_t size = (uint64_t)file->st.st_size;
    if (request->offset > size || bytes > size - request->offset)
        return cm_fail(request->err, CM_CORRUPT,
                       "%s: its external data (%zu bytes from %llu on) goes past the end of a file "
                       "of %llu bytes",
                       request->what, bytes, (unsigned long long)request->offset,
                       (unsigned long long)size);
    struct range key = {request->offset, bytes, NULL}, *range = NULL;
    struct range **slot = tfind(&key, &file->ranges, by_range);
    if (slot) {
        *ret_data = (*slot)->data;
        return CM_OK;
    }
    if (bytes > size - file->in_use)
        return cm_fail(request->err, CM_CORRUPT,
                       "%s: its external data overlaps that of other tensors", request->what);
    if (bytes > WK_MAX_WEIGHT_BYTES - external->total)
        return cm_fail(request->err, CM_LIMIT, "the model's weights are too large");
    enum cm_err code = read_range(external, request, bytes, &range);
    if (code == CM_OK)
        *ret_data = range->data;
    return code;
}

enum cm_err wk_external_read(struct wk_external *external, const Onnx__TensorProto *proto,
                             const char *what, enum cm_dtype dtype, const struct cm_shape *shape,
                             size_t bytes, struct cm_error *err, const void **ret_data)
{
    struct request request = {.what = what, .dtype = dtype, .shape = shape, .err = err};
    if (!external)
        return cm_fail(err, CM_UNSUPPORTED,
                       "%s keeps its data in another file, and this model comes without a folder",
                       what);
    enum cm_err code = read_request(&request, proto);
    if (code != CM_OK)
        return code;
    if (request.has_length && request.length != bytes)
        return cm_fail(err, CM_CORRUPT,
                       "%s has %llu bytes of external data, its type and dimensions say %zu", what,
                       (unsigned long long)request.length, bytes);
    code = open_current(external, &request);
    if (code == CM_OK && request.checksum)
        code = check_sha1(external, &request);
    if (code == CM_OK)
        code = locate(external, &request, proto->name ? proto->name : "");
    if (code == CM_OK)
        code = take_range(external, &request, bytes, ret_data);
    return code;
}
