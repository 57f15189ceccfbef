/* Tensors and their files, by ending; element access. Any thread, blocking where files are. */
#include "deploy/ingot/tensor_file.h"

#include "common/check.h"
#include "deploy/ingot/rundir.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum cm_err ig_tensor_init(struct ig_tensor *tensor, enum cm_dtype dtype,
                           const struct cm_shape *shape, struct cm_error *err)
{
    size_t bytes = 0, room = 0;
    enum cm_err code = cm_shape_bytes(shape, dtype, &bytes);
    if (code != CM_OK)
        return cm_fail(err, code, "the tensor's shape is impossible");
    /* A whole number of alignments, at least one: aligned_alloc asks for it. */
    if (!cm_size_align(bytes ? bytes : 1, IG_TENSOR_ALIGN, &room))
        return cm_fail(err, CM_LIMIT, "the tensor is too large");
    void *data = aligned_alloc(IG_TENSOR_ALIGN, room);
    if (!data)
        return cm_fail(err, CM_NOMEM, "no memory for a tensor of %zu bytes", bytes);
    memset(data, 0, room);
    *tensor = (struct ig_tensor){.dtype = dtype, .shape = *shape, .bytes = bytes, .data = data};
    return CM_OK;
}

void ig_tensor_fini(struct ig_tensor *tensor)
{
    free(tensor->data);
    *tensor = (struct ig_tensor){0};
}

static bool ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

static enum cm_err unknown_ending(const char *path, struct cm_error *err)
{
    return cm_fail(err, CM_INVALID,
                   "%s: tensor files end in .npy (NumPy) or .pb (ONNX TensorProto)", path);
}

enum cm_err ig_tensor_read(const char *path, struct cm_error *err, struct ig_tensor *ret_tensor)
{
    bool npy = ends_with(path, ".npy");
    if (!npy && !ends_with(path, ".pb"))
        return unknown_ending(path, err);
    unsigned char *bytes = NULL;
    size_t length = 0;
    enum cm_err code = ig_read_file(path, IG_TENSOR_FILE_MAX, err, &bytes, &length);
    if (code != CM_OK)
        return code;
    struct cm_error why = {0};
    code = npy ? ig_npy_parse(bytes, length, &why, ret_tensor)
               : ig_pb_parse(bytes, length, &why, ret_tensor);
    free(bytes);
    return code == CM_OK ? CM_OK : cm_fail(err, code, "%.200s: %s", path, why.text);
}

enum cm_err ig_tensor_write(const char *path, const struct ig_tensor *tensor, struct cm_error *err)
{
    bool npy = ends_with(path, ".npy");
    if (!npy && !ends_with(path, ".pb"))
        return unknown_ending(path, err);
    unsigned char *bytes = NULL;
    size_t length = 0;
    enum cm_err code = npy ? ig_npy_format(tensor, err, &bytes, &length)
                           : ig_pb_format(tensor, err, &bytes, &length);
    if (code != CM_OK)
        return code;
    code = ig_write_file(path, 0666, bytes, length, err);
    free(bytes);
    return code;
}

size_t ig_tensor_count(const struct ig_tensor *tensor)
{
    size_t size = cm_dtype_size(tensor->dtype);
    return size ? tensor->bytes / size : 0;
}

static double from_fp16(uint16_t bits)
{
    unsigned exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    double value;
    if (exponent == 0x1f)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, -24);
    else
        value = ldexp(1024 + fraction, (int)exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

double ig_tensor_number(const struct ig_tensor *tensor, size_t i)
{
    CM_ASSERT(i < ig_tensor_count(tensor));
    switch (tensor->dtype) {
    case CM_BOOL:
    case CM_UINT8:
        return ((const uint8_t *)tensor->data)[i];
    case CM_UINT16:
        return ((const uint16_t *)tensor->data)[i];
    case CM_UINT32:
        return ((const uint32_t *)tensor->data)[i];
    case CM_UINT64:
        return (double)((const uint64_t *)tensor->data)[i];
    case CM_INT8:
        return ((const int8_t *)tensor->data)[i];
    case CM_INT16:
        return ((const int16_t *)tensor->data)[i];
    case CM_INT32:
        return ((const int32_t *)tensor->data)[i];
    case CM_INT64:
        return (double)((const int64_t *)tensor->data)[i];
    case CM_FP16:
        return from_fp16(((const uint16_t *)tensor->data)[i]);
    case CM_BF16:
        return from_bf16(((const uint16_t *)tensor->data)[i]);
    case CM_FP32:
        return (double)((const float *)tensor->data)[i];
    case CM_FP64:
        return ((const double *)tensor->data)[i];
    case CM_DTYPE_NONE:
        break;
    }
    return NAN;
}

const char *ig_tensor_format(const struct ig_tensor *tensor, size_t i, char *buffer, size_t size)
{
    /* 64-bit integers do not survive a double. */
    if (tensor->dtype == CM_INT64)
        snprintf(buffer, size, "%" PRId64, ((const int64_t *)tensor->data)[i]);
    else if (tensor->dtype == CM_UINT64)
        snprintf(buffer, size, "%" PRIu64, ((const uint64_t *)tensor->data)[i]);
    else
        snprintf(buffer, size, "%.*g", tensor->dtype == CM_FP64 ? 17 : 9,
                 ig_tensor_number(tensor, i));
    return buffer;
}
