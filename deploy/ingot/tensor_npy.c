/* NumPy's .npy, format versions 1 and 2. Pure; any thread.
 *
 *   "\x93NUMPY" | major u8 | minor u8 | header length u16 (v1) or u32 (v2) | header | elements
 *
 * The header is a Python dictionary literal with exactly descr, fortran_order and shape; it is
 * parsed here as what NumPy writes, not as Python. */
#include "deploy/ingot/tensor_file.h"

#include "common/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC        "\x93NUMPY"
#define MAGIC_LENGTH 6
#define HEADER_MAX   (64u * 1024u)
#define DATA_ALIGN   64 /* what NumPy pads the header to */

/* NumPy's names without the byte order. BF16 has none. */
#define NPY_TYPE_MAP(X) \
    X(BOOL, "b1")       \
    X(UINT8, "u1")      \
    X(UINT16, "u2")     \
    X(UINT32, "u4")     \
    X(UINT64, "u8")     \
    X(INT8, "i1")       \
    X(INT16, "i2")      \
    X(INT32, "i4")      \
    X(INT64, "i8")      \
    X(FP16, "f2")       \
    X(FP32, "f4")       \
    X(FP64, "f8")

struct header {
    char descr[8];
    bool fortran;
    struct cm_shape shape;
    bool has_descr, has_order, has_shape;
};

/* What is left of the header's text. */
struct cursor {
    const char *next, *end;
};

static bool skip_to(struct cursor *at, char wanted)
{
    while (at->next < at->end && (*at->next == ' ' || *at->next == '\n'))
        at->next++;
    if (at->next == at->end || *at->next != wanted)
        return false;
    at->next++;
    return true;
}

static bool read_string(struct cursor *at, char *text, size_t size)
{
    char quote = '\'';
    if (!skip_to(at, quote)) {
        quote = '"';
        if (!skip_to(at, quote))
            return false;
    }
    const char *close = memchr(at->next, quote, (size_t)(at->end - at->next));
    if (!close || (size_t)(close - at->next) >= size)
        return false;
    memcpy(text, at->next, (size_t)(close - at->next));
    text[close - at->next] = '\0';
    at->next = close + 1;
    return true;
}

static bool read_bool(struct cursor *at, bool *ret_value)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"False", false}, {"True", true}};
    while (at->next < at->end && *at->next == ' ')
        at->next++;
    for (unsigned i = 0; i < CM_COUNT_OF(words); i++) {
        size_t length = strlen(words[i].word);
        if ((size_t)(at->end - at->next) >= length &&
            memcmp(at->next, words[i].word, length) == 0) {
            at->next += length;
            *ret_value = words[i].value;
            return true;
        }
    }
    return false;
}

static bool read_dimension(struct cursor *at, int64_t *ret_value)
{
    int64_t value = 0;
    const char *first = at->next;
    while (at->next < at->end && *at->next >= '0' && *at->next <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *at->next - '0', &value))
            return false;
        at->next++;
    }
    *ret_value = value;
    return at->next > first;
}

/* (), (3,), (3, 4), (3, 4,) */
static enum cm_err read_shape(struct cursor *at, struct cm_error *err, struct cm_shape *shape)
{
    shape->rank = 0;
    if (!skip_to(at, '('))
        return cm_fail(err, CM_CORRUPT, "the shape in the .npy header is not a tuple");
    bool more = true;
    while (!skip_to(at, ')')) {
        if (!more)
            return cm_fail(err, CM_CORRUPT, "the shape in the .npy header is malformed");
        if (shape->rank == CM_MAX_RANK)
            return cm_fail(err, CM_UNSUPPORTED, "the .npy file has more than %d dimensions",
                           CM_MAX_RANK);
        if (!read_dimension(at, &shape->dims[shape->rank]))
            return cm_fail(err, CM_CORRUPT, "the shape in the .npy header is malformed");
        shape->rank++;
        more = skip_to(at, ',');
    }
    return CM_OK;
}

static enum cm_err read_entry(struct cursor *at, struct cm_error *err, struct header *header)
{
    char key[32];
    if (!read_string(at, key, sizeof key) || !skip_to(at, ':'))
        return cm_fail(err, CM_CORRUPT, "the .npy header is not a dictionary of its three keys");
    if (strcmp(key, "descr") == 0 && !header->has_descr) {
        header->has_descr = true;
        if (!read_string(at, header->descr, sizeof header->descr))
            return cm_fail(err, CM_UNSUPPORTED,
                           "the .npy file has structured elements; only plain numbers are read");
        return CM_OK;
    }
    if (strcmp(key, "fortran_order") == 0 && !header->has_order) {
        header->has_order = true;
        if (!read_bool(at, &header->fortran))
            return cm_fail(err, CM_CORRUPT, "fortran_order in the .npy header is no truth value");
        return CM_OK;
    }
    if (strcmp(key, "shape") == 0 && !header->has_shape) {
        header->has_shape = true;
        return read_shape(at, err, &header->shape);
    }
    return cm_fail(err, CM_CORRUPT, "the .npy header has an unknown or repeated key");
}

static enum cm_err parse_header(const char *text, size_t length, struct cm_error *err,
                                struct header *header)
{
    struct cursor at = {.next = text, .end = text + length};
    if (!skip_to(&at, '{'))
        return cm_fail(err, CM_CORRUPT, "the .npy header is not a dictionary");
    while (!skip_to(&at, '}')) {
        enum cm_err code = read_entry(&at, err, header);
        if (code != CM_OK)
            return code;
        if (!skip_to(&at, ',') && !(at.next < at.end && *at.next == '}'))
            return cm_fail(err, CM_CORRUPT, "the .npy header is malformed");
    }
    while (at.next < at.end && (*at.next == ' ' || *at.next == '\n'))
        at.next++;
    if (at.next != at.end || !header->has_descr || !header->has_order || !header->has_shape)
        return cm_fail(err, CM_CORRUPT, "the .npy header lacks a key or has text after its end");
    return CM_OK;
}

static enum cm_err dtype_of(const char *descr, struct cm_error *err, enum cm_dtype *ret_dtype)
{
    enum cm_dtype dtype = CM_DTYPE_NONE;
#define X(name, text)                             \
    if (*descr && strcmp(descr + 1, (text)) == 0) \
        dtype = CM_##name;
    NPY_TYPE_MAP(X)
#undef X
    bool single = cm_dtype_size(dtype) == 1;
    if (dtype != CM_DTYPE_NONE && *descr == '>' && !single)
        return cm_fail(err, CM_UNSUPPORTED,
                       "the .npy file is big endian ('%s'); store it as little endian", descr);
    if (dtype == CM_DTYPE_NONE || !(*descr == '<' || (single && strchr("|>=", *descr))))
        return cm_fail(err, CM_UNSUPPORTED, "elements of type '%s' are not supported", descr);
    *ret_dtype = dtype;
    return CM_OK;
}

/* Where the header's text lies. */
static enum cm_err find_header(const unsigned char *bytes, size_t length, struct cm_error *err,
                               size_t *ret_start, size_t *ret_length)
{
    if (length < MAGIC_LENGTH + 4 || memcmp(bytes, MAGIC, MAGIC_LENGTH) != 0)
        return cm_fail(err, CM_CORRUPT, "this is not a .npy file");
    unsigned major = bytes[MAGIC_LENGTH], minor = bytes[MAGIC_LENGTH + 1];
    size_t start, header;
    if (major == 1 && minor == 0) {
        start = MAGIC_LENGTH + 4;
        header = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    } else if (major == 2 && minor == 0 && length >= MAGIC_LENGTH + 6) {
        start = MAGIC_LENGTH + 6;
        header = (size_t)bytes[8] | (size_t)bytes[9] << 8 | (size_t)bytes[10] << 16 |
                 (size_t)bytes[11] << 24;
    } else {
        return cm_fail(err, CM_UNSUPPORTED,
                       "the .npy format version is %u.%u; only 1.0 and 2.0 are read", major, minor);
    }
    if (header > HEADER_MAX || header > length - start)
        return cm_fail(err, CM_CORRUPT, "the .npy header is cut off or too long");
    *ret_start = start;
    *ret_length = header;
    return CM_OK;
}

enum cm_err ig_npy_parse(const void *bytes, size_t length, struct cm_error *err,
                         struct ig_tensor *ret_tensor)
{
    struct header header = {0};
    struct ig_tensor tensor = {0};
    enum cm_dtype dtype = CM_DTYPE_NONE;
    size_t start = 0, header_length = 0;
    enum cm_err code = find_header(bytes, length, err, &start, &header_length);
    if (code == CM_OK)
        code = parse_header((const char *)bytes + start, header_length, err, &header);
    if (code == CM_OK)
        code = dtype_of(header.descr, err, &dtype);
    if (code != CM_OK)
        return code;
    if (header.fortran && header.shape.rank > 1)
        return cm_fail(err, CM_UNSUPPORTED,
                       "the .npy file is in Fortran order; store it with numpy.ascontiguousarray");
    size_t need = 0, have = length - start - header_length;
    code = cm_shape_bytes(&header.shape, dtype, &need);
    if (code != CM_OK || need != have)
        return cm_fail(err, CM_CORRUPT,
                       "the .npy file has %zu bytes of elements, not those of "
                       "its shape",
                       have);
    code = ig_tensor_init(&tensor, dtype, &header.shape, err);
    if (code != CM_OK)
        return code;
    memcpy(tensor.data, (const char *)bytes + start + header_length, need);
    *ret_tensor = tensor;
    return CM_OK;
}

static const char *descr_of(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(name, text) \
    case CM_##name:   \
        return text;
        NPY_TYPE_MAP(X)
#undef X
    default:
        return NULL;
    }
}

/* The header's text without padding. */
static size_t format_header(const struct ig_tensor *tensor, const char *descr, char *text,
                            size_t size)
{
    size_t used =
        (size_t)snprintf(text, size, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                         cm_dtype_size(tensor->dtype) == 1 ? '|' : '<', descr);
    for (unsigned i = 0; i < tensor->shape.rank; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "",
                                 tensor->shape.dims[i]);
    used +=
        (size_t)snprintf(text + used, size - used, "%s), }", tensor->shape.rank == 1 ? "," : "");
    CM_ASSERT(used < size);
    return used;
}

enum cm_err ig_npy_format(const struct ig_tensor *tensor, struct cm_error *err,
                          unsigned char **ret_bytes, size_t *ret_length)
{
    char text[512];
    const char *descr = descr_of(tensor->dtype);
    if (!descr)
        return cm_fail(err, CM_UNSUPPORTED, "%s has no .npy type: write a .pb file",
                       cm_dtype_name(tensor->dtype));
    size_t used = format_header(tensor, descr, text, sizeof text);
    size_t start = MAGIC_LENGTH + 4 + used + 1; /* and its newline */
    start = (start + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    size_t header = start - MAGIC_LENGTH - 4, length = 0;
    unsigned char *bytes = NULL;
    if (cm_size_add(start, tensor->bytes, &length))
        bytes = malloc(length);
    if (!bytes)
        return cm_fail(err, CM_NOMEM, "no memory for a .npy file");
    memcpy(bytes, MAGIC, MAGIC_LENGTH);
    bytes[6] = 1;
    bytes[7] = 0;
    bytes[8] = (unsigned char)(header & 0xff);
    bytes[9] = (unsigned char)(header >> 8);
    memset(bytes + 10, ' ', header);
    memcpy(bytes + 10, text, used);
    bytes[start - 1] = '\n';
    memcpy(bytes + start, tensor->data, tensor->bytes);
    *ret_bytes = bytes;
    *ret_length = length;
    return CM_OK;
}
