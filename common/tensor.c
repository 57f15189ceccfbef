/* Element types and shapes. Pure functions, any thread. */
#include "common/tensor.h"

#include "common/check.h"

#include <stdio.h>
#include <string.h>

size_t cm_dtype_size(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bytes, text, onnx) \
    case CM_##name:                        \
        return bytes;
        CM_DTYPE_MAP(X)
#undef X
    case CM_DTYPE_NONE:
        break;
    }
    return 0;
}

const char *cm_dtype_name(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bytes, text, onnx) \
    case CM_##name:                        \
        return text;
        CM_DTYPE_MAP(X)
#undef X
    case CM_DTYPE_NONE:
        break;
    }
    return "?";
}

enum cm_dtype cm_dtype_from_name(const char *name, size_t length)
{
#define X(id, number, bytes, text, onnx)                               \
    if (length == sizeof(text) - 1 && memcmp(name, text, length) == 0) \
        return CM_##id;
    CM_DTYPE_MAP(X)
#undef X
    return CM_DTYPE_NONE;
}

enum cm_dtype cm_dtype_from_onnx(int32_t code)
{
    switch (code) {
#define X(name, number, bytes, text, onnx) \
    case onnx:                             \
        return CM_##name;
        CM_DTYPE_MAP(X)
#undef X
    default:
        return CM_DTYPE_NONE;
    }
}

int32_t cm_dtype_to_onnx(enum cm_dtype dtype)
{
    switch (dtype) {
#define X(name, number, bytes, text, onnx) \
    case CM_##name:                        \
        return onnx;
        CM_DTYPE_MAP(X)
#undef X
    case CM_DTYPE_NONE:
        break;
    }
    return 0;
}

enum cm_err cm_shape_count(const struct cm_shape *shape, int64_t *ret_count)
{
    if (shape->rank > CM_MAX_RANK)
        return CM_INVALID;
    int64_t count = 1;
    bool zero = false;
    for (unsigned i = 0; i < shape->rank; i++) {
        int64_t dim = shape->dims[i];
        if (dim < 0)
            return CM_INVALID;
        /* A zero does not excuse an absurd neighbour: multiply the others all the same. */
        if (dim == 0)
            zero = true;
        else if (__builtin_mul_overflow(count, dim, &count))
            return CM_LIMIT;
    }
    *ret_count = zero ? 0 : count;
    return CM_OK;
}

enum cm_err cm_shape_bytes(const struct cm_shape *shape, enum cm_dtype dtype, size_t *ret_bytes)
{
    int64_t count = 0;
    size_t size = cm_dtype_size(dtype);
    if (size == 0)
        return CM_INVALID;
    enum cm_err err = cm_shape_count(shape, &count);
    if (err != CM_OK)
        return err;
    return cm_size_mul((size_t)count, size, ret_bytes) ? CM_OK : CM_LIMIT;
}

bool cm_shape_equal(const struct cm_shape *a, const struct cm_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (unsigned i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

const char *cm_shape_format(const struct cm_shape *shape, char *buffer, size_t size)
{
    size_t used = 0;
    int n = snprintf(buffer, size, "[");
    for (unsigned i = 0; i < shape->rank && i < CM_MAX_RANK && n > 0; i++) {
        used += (size_t)n;
        if (used >= size)
            return buffer;
        n = snprintf(buffer + used, size - used, "%s%lld", i ? "," : "", (long long)shape->dims[i]);
    }
    if (n > 0 && used + (size_t)n < size)
        snprintf(buffer + used + n, size - used - (size_t)n, "]");
    return buffer;
}
