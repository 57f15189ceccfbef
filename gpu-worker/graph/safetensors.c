/* Headers of safetensors files; see safetensors.h. Pure, any thread.
 *
 * The JSON is read by jansson, which refuses duplicate members, text that is not UTF-8 and nesting
 * beyond its limit. It builds about a hundred bytes per value, so values are counted before: every
 * one of them has a comma, a bracket or a brace of its own. */
#include "gpu-worker/graph/safetensors.h"

#include "common/check.h"
#include "gpu-worker/graph/graph.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* X(name, bits, our type) */
#define DTYPES(X)                  \
    X("BOOL", 8, CM_BOOL)          \
    X("U8", 8, CM_UINT8)           \
    X("I8", 8, CM_INT8)            \
    X("U16", 16, CM_UINT16)        \
    X("I16", 16, CM_INT16)         \
    X("F16", 16, CM_FP16)          \
    X("BF16", 16, CM_BF16)         \
    X("U32", 32, CM_UINT32)        \
    X("I32", 32, CM_INT32)         \
    X("F32", 32, CM_FP32)          \
    X("U64", 64, CM_UINT64)        \
    X("I64", 64, CM_INT64)         \
    X("F64", 64, CM_FP64)          \
    X("F4", 4, CM_DTYPE_NONE)      \
    X("F6_E2M3", 6, CM_DTYPE_NONE) \
    X("F6_E3M2", 6, CM_DTYPE_NONE) \
    X("F8_E4M3", 8, CM_DTYPE_NONE) \
    X("F8_E5M2", 8, CM_DTYPE_NONE) \
    X("F8_E8M0", 8, CM_DTYPE_NONE) \
    X("C64", 64, CM_DTYPE_NONE)

struct dtype {
    const char *name;
    unsigned bits;
    enum cm_dtype dtype;
};

/* One header that is being read. */
struct reader {
    const char *what;
    uint64_t data_start, file_bytes;
    struct wk_safetensors *file;
    struct cm_error *err;
};

static const struct dtype *find_dtype(const char *name)
{
    static const struct dtype dtypes[] = {
#define X(name, bits, dtype) {name, bits, dtype},
        DTYPES(X)
#undef X
    };
    for (size_t i = 0; i < CM_COUNT_OF(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

enum cm_err wk_safetensors_header(const uint8_t prefix[WK_SAFETENSORS_PREFIX], uint64_t file_bytes,
                                  const char *what, struct cm_error *err, size_t *ret_length)
{
    uint64_t length = 0;
    for (unsigned i = WK_SAFETENSORS_PREFIX; i-- > 0;)
        length = length << 8 | prefix[i];
    if (length > WK_SAFETENSORS_MAX_HEADER)
        return cm_fail(err, CM_CORRUPT, "%s is not a safetensors file: its header is too large",
                       what);
    if (file_bytes < WK_SAFETENSORS_PREFIX || length > file_bytes - WK_SAFETENSORS_PREFIX)
        return cm_fail(err, CM_CORRUPT, "%s is not a whole safetensors file: it ends in its header",
                       what);
    if (length < 2)
        return cm_fail(err, CM_CORRUPT, "%s is not a safetensors file: it has no header", what);
    *ret_length = (size_t)length;
    return CM_OK;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static enum cm_err bad_tensor(struct reader *reader, const char *name, const char *why)
{
    char printable[96];
    return cm_fail(reader->err, CM_CORRUPT, "%s: tensor \"%s\" %s", reader->what,
                   wk_printable(name, printable, sizeof printable), why);
}

static bool read_number(const json_t *value, uint64_t *ret)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

/* Bytes of the tensor, with every product checked, also beside a dimension of 0. */
static enum cm_err read_shape(struct reader *reader, const char *name, const json_t *dims,
                              unsigned bits, struct wk_safetensor *tensor, uint64_t *ret_bytes)
{
    uint64_t count = 1, dim;
    if (!json_is_array(dims))
        return bad_tensor(reader, name, "has no shape");
    if (json_array_size(dims) > CM_MAX_RANK)
        return cm_fail(reader->err, CM_LIMIT, "%s: a tensor has more than %d dimensions",
                       reader->what, CM_MAX_RANK);
    tensor->shape.rank = (uint8_t)json_array_size(dims);
    for (unsigned i = 0; i < tensor->shape.rank; i++) {
        if (!read_number(json_array_get(dims, i), &dim))
            return bad_tensor(reader, name, "has a dimension that is no number from 0 up");
        if (__builtin_mul_overflow(count, dim, &count))
            return bad_tensor(reader, name, "has dimensions whose product is too large");
        tensor->shape.dims[i] = (int64_t)dim;
    }
    if (__builtin_mul_overflow(count, bits, &count))
        return bad_tensor(reader, name, "has dimensions whose product is too large");
    *ret_bytes = count / 8;
    return CM_OK;
}

static enum cm_err read_place(struct reader *reader, const char *name, const json_t *offsets,
                              uint64_t bytes, struct wk_safetensor *tensor)
{
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_number(json_array_get(offsets, 0), &begin) ||
        !read_number(json_array_get(offsets, 1), &end))
        return bad_tensor(reader, name, "has no data_offsets of two numbers from 0 up");
    if (begin > end || end > reader->file_bytes - reader->data_start)
        return bad_tensor(reader, name, "has data_offsets outside the file");
    if (end - begin != bytes)
        return bad_tensor(reader, name, "has data_offsets that do not fit its dtype and shape");
    tensor->begin = reader->data_start + begin;
    tensor->end = reader->data_start + end;
    return CM_OK;
}

static enum cm_err read_tensor(struct reader *reader, const char *name, const json_t *info,
                               struct wk_safetensor *tensor)
{
    const char *type = json_string_value(json_object_get(info, "dtype"));
    char printable[96], dtype_name[32];
    uint64_t bytes = 0;
    if (!json_is_object(info) || json_object_size(info) != 3 || !type)
        return bad_tensor(reader, name, "is not described by dtype, shape and data_offsets");
    const struct dtype *dtype = find_dtype(type);
    if (!dtype || dtype->bits % 8 != 0)
        return cm_fail(reader->err, CM_UNSUPPORTED,
                       "%s: tensor \"%s\" has element type %s: not supported", reader->what,
                       wk_printable(name, printable, sizeof printable),
                       wk_printable(type, dtype_name, sizeof dtype_name));
    tensor->dtype = dtype->dtype;
    enum cm_err code =
        read_shape(reader, name, json_object_get(info, "shape"), dtype->bits, tensor, &bytes);
    if (code == CM_OK)
        code = read_place(reader, name, json_object_get(info, "data_offsets"), bytes, tensor);
    return code;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct wk_safetensor *)a)->name, ((const struct wk_safetensor *)b)->name);
}

/* Empty tensors stand in front of the one that begins at the same place. */
static int by_place(const void *a, const void *b)
{
    const struct wk_safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Nothing between the tensors, before or behind them: no byte of the file has two meanings or none.
 */
static enum cm_err check_places(struct reader *reader)
{
    struct wk_safetensors *file = reader->file;
    uint64_t at = reader->data_start;
    qsort(file->tensors, file->n, sizeof *file->tensors, by_place);
    for (uint32_t i = 0; i < file->n; i++) {
        if (file->tensors[i].begin != at)
            return bad_tensor(reader, file->tensors[i].name,
                              file->tensors[i].begin < at ? "overlaps another"
                                                          : "has unused bytes in front of it");
        at = file->tensors[i].end;
    }
    if (at != reader->file_bytes)
        return cm_fail(reader->err, CM_CORRUPT, "%s has %llu bytes behind its last tensor",
                       reader->what, (unsigned long long)(reader->file_bytes - at));
    return CM_OK;
}

static enum cm_err check_metadata(struct reader *reader, json_t *metadata)
{
    const char *key;
    json_t *value;
    bool fine = json_is_object(metadata);
    if (fine)
        json_object_foreach(metadata, key, value) fine = fine && json_is_string(value);
    return fine ? CM_OK
                : cm_fail(reader->err, CM_CORRUPT, "%s: __metadata__ may hold nothing but strings",
                          reader->what);
}

static enum cm_err read_tensors(struct reader *reader, json_t *root)
{
    struct wk_safetensors *file = reader->file;
    enum cm_err code = CM_OK;
    const char *name;
    json_t *info;
    if (json_object_size(root) > WK_SAFETENSORS_MAX_TENSORS)
        return cm_fail(reader->err, CM_LIMIT, "%s has more than %u tensors", reader->what,
                       WK_SAFETENSORS_MAX_TENSORS);
    file->tensors = wk_arena_take(&file->arena, json_object_size(root), sizeof *file->tensors);
    if (!file->tensors)
        return cm_fail(reader->err, CM_NOMEM, "no memory for the header of %s", reader->what);
    json_object_foreach(root, name, info)
    {
        struct wk_safetensor *tensor = &file->tensors[file->n];
        if (strcmp(name, "__metadata__") == 0) {
            code = check_metadata(reader, info);
        } else {
            code = read_tensor(reader, name, info, tensor);
            tensor->name = wk_arena_text(&file->arena, name, strlen(name));
            file->n++;
            if (code == CM_OK && !tensor->name)
                code =
                    cm_fail(reader->err, CM_NOMEM, "no memory for the header of %s", reader->what);
        }
        if (code != CM_OK)
            return code;
    }
    code = check_places(reader);
    qsort(file->tensors, file->n, sizeof *file->tensors, by_name);
    return code;
}

/* An upper bound of the values in the text, whatever it is. */
static bool has_few_values(const char *text, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return count <= WK_SAFETENSORS_MAX_VALUES;
}

enum cm_err wk_safetensors_parse(const char *header, size_t length, uint64_t file_bytes,
                                 const char *what, struct cm_error *err, struct wk_safetensors *ret)
{
    struct reader reader = {
        .what = what,
        .data_start = WK_SAFETENSORS_PREFIX + length,
        .file_bytes = file_bytes,
        .file = ret,
        .err = err,
    };
    json_error_t json_error;
    CM_ASSERT(length <= WK_SAFETENSORS_MAX_HEADER && file_bytes >= reader.data_start);
    if (length == 0 || header[0] != '{')
        return cm_fail(err, CM_CORRUPT, "%s is not a safetensors file: its header is not JSON",
                       what);
    if (!has_few_values(header, length))
        return cm_fail(err, CM_LIMIT, "the header of %s has too many values", what);
    json_t *root = json_loadb(header, length, JSON_REJECT_DUPLICATES, &json_error);
    if (!root) {
        char why[96];
        return cm_fail(err, CM_CORRUPT, "the header of %s is not valid: %s", what,
                       wk_printable(json_error.text, why, sizeof why));
    }
    enum cm_err code = read_tensors(&reader, root);
    json_decref(root);
    if (code != CM_OK)
        wk_safetensors_fini(ret);
    return code;
}

void wk_safetensors_fini(struct wk_safetensors *file)
{
    wk_arena_fini(&file->arena);
    *file = (struct wk_safetensors){0};
}

const struct wk_safetensor *wk_safetensors_find(const struct wk_safetensors *file, const char *name)
{
    struct wk_safetensor key = {.name = name};
    return bsearch(&key, file->tensors, file->n, sizeof *file->tensors, by_name);
}
