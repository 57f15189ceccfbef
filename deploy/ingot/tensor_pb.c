/* ONNX TensorProto files. Pure; any thread. */
#include "deploy/ingot/tensor_file.h"

#include "common/check.h"
#include "proto/onnx.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* Fields of typed data, each with its own number of elements. */
static size_t typed_count(const Onnx__TensorProto *proto)
{
    return proto->n_float_data + proto->n_int32_data + proto->n_int64_data + proto->n_double_data +
           proto->n_uint64_data;
}

static enum cm_err check_kind(const Onnx__TensorProto *proto, struct cm_error *err,
                              enum cm_dtype *ret_dtype, struct cm_shape *ret_shape)
{
    enum cm_dtype dtype = cm_dtype_from_onnx(proto->has_data_type ? proto->data_type : 0);
    if (!proto->has_data_type || proto->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__UNDEFINED)
        return cm_fail(err, CM_CORRUPT, "this is not a TensorProto: it has no element type");
    if (dtype == CM_DTYPE_NONE || proto->n_string_data > 0)
        return cm_fail(err, CM_UNSUPPORTED, "ONNX element type %d is not supported",
                       proto->data_type);
    if (proto->n_external_data > 0 ||
        (proto->has_data_location &&
         proto->data_location != ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT))
        return cm_fail(err, CM_UNSUPPORTED, "the tensor's data lie in another file");
    if (proto->segment)
        return cm_fail(err, CM_UNSUPPORTED, "the tensor is one segment of a larger one");
    if (proto->n_dims > CM_MAX_RANK)
        return cm_fail(err, CM_UNSUPPORTED, "the tensor has %zu dimensions; the limit is %d",
                       proto->n_dims, CM_MAX_RANK);
    ret_shape->rank = (uint8_t)proto->n_dims;
    for (unsigned i = 0; i < proto->n_dims; i++)
        ret_shape->dims[i] = proto->dims[i];
    *ret_dtype = dtype;
    return CM_OK;
}

/* Copies integers that travel wider than they are; false if one does not fit. */
static bool narrow(struct ig_tensor *tensor, const int32_t *values, size_t count)
{
    bool is_signed = tensor->dtype == CM_INT8 || tensor->dtype == CM_INT16;
    unsigned bits = (unsigned)cm_dtype_size(tensor->dtype) * 8;
    int32_t low = is_signed ? -(1 << (bits - 1)) : 0;
    int32_t high = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
    if (tensor->dtype == CM_BOOL)
        high = 1;
    for (size_t i = 0; i < count; i++) {
        if (values[i] < low || values[i] > high)
            return false;
        if (bits == 8)
            ((uint8_t *)tensor->data)[i] = (uint8_t)values[i];
        else
            ((uint16_t *)tensor->data)[i] = (uint16_t)values[i];
    }
    return true;
}

static bool narrow_uint32(struct ig_tensor *tensor, const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] > UINT32_MAX)
            return false;
        ((uint32_t *)tensor->data)[i] = (uint32_t)values[i];
    }
    return true;
}

/* Typed data into the tensor; the count has been checked to be the only field's count. */
static bool copy_typed(const Onnx__TensorProto *proto, struct ig_tensor *tensor, size_t count)
{
    const void *same = NULL;
    switch (tensor->dtype) {
    case CM_FP32:
        same = proto->n_float_data == count ? proto->float_data : NULL;
        break;
    case CM_FP64:
        same = proto->n_double_data == count ? proto->double_data : NULL;
        break;
    case CM_INT64:
        same = proto->n_int64_data == count ? proto->int64_data : NULL;
        break;
    case CM_UINT64:
        same = proto->n_uint64_data == count ? proto->uint64_data : NULL;
        break;
    case CM_INT32:
        same = proto->n_int32_data == count ? proto->int32_data : NULL;
        break;
    case CM_UINT32:
        return proto->n_uint64_data == count && narrow_uint32(tensor, proto->uint64_data, count);
    default:
        return proto->n_int32_data == count && narrow(tensor, proto->int32_data, count);
    }
    if (same)
        memcpy(tensor->data, same, tensor->bytes);
    return same != NULL;
}

static enum cm_err fill(const Onnx__TensorProto *proto, struct cm_error *err,
                        struct ig_tensor *tensor)
{
    size_t count = ig_tensor_count(tensor), typed = typed_count(proto);
    if (proto->has_raw_data && proto->raw_data.len > 0) {
        if (typed > 0 || proto->raw_data.len != tensor->bytes)
            return cm_fail(err, CM_CORRUPT,
                           "the tensor has %zu bytes of elements, not those of its shape",
                           proto->raw_data.len);
        memcpy(tensor->data, proto->raw_data.data, tensor->bytes);
        return CM_OK;
    }
    if (typed != count || (count > 0 && !copy_typed(proto, tensor, count)))
        return cm_fail(err, CM_CORRUPT,
                       "the tensor's elements do not fit its shape and element type");
    return CM_OK;
}

/* The bytes that the elements take must be there before memory is taken for them: a file of 20
 * bytes must not ask for gigabytes. */
static bool plausible(const Onnx__TensorProto *proto, enum cm_dtype dtype,
                      const struct cm_shape *shape)
{
    size_t bytes = 0;
    if (cm_shape_bytes(shape, dtype, &bytes) != CM_OK)
        return false;
    size_t raw = proto->has_raw_data ? proto->raw_data.len : 0;
    return bytes == raw || bytes / cm_dtype_size(dtype) == typed_count(proto);
}

static enum cm_err from_proto(const Onnx__TensorProto *proto, struct cm_error *err,
                              struct ig_tensor *ret_tensor)
{
    struct ig_tensor tensor = {0};
    struct cm_shape shape = {0};
    enum cm_dtype dtype = CM_DTYPE_NONE;
    enum cm_err code = check_kind(proto, err, &dtype, &shape);
    if (code != CM_OK)
        return code;
    if (!plausible(proto, dtype, &shape))
        return cm_fail(err, CM_CORRUPT,
                       "the tensor's elements do not fit its shape and element type");
    code = ig_tensor_init(&tensor, dtype, &shape, err);
    if (code == CM_OK)
        code = fill(proto, err, &tensor);
    if (code != CM_OK) {
        ig_tensor_fini(&tensor);
        return code;
    }
    if (proto->name)
        strncpy(tensor.name, proto->name, sizeof tensor.name - 1);
    *ret_tensor = tensor;
    return CM_OK;
}

enum cm_err ig_pb_parse(const void *bytes, size_t length, struct cm_error *err,
                        struct ig_tensor *ret_tensor)
{
    Onnx__TensorProto *proto = onnx__tensor_proto__unpack(NULL, length, bytes);
    if (!proto)
        return cm_fail(err, CM_CORRUPT, "this is not an ONNX TensorProto");
    enum cm_err code = from_proto(proto, err, ret_tensor);
    onnx__tensor_proto__free_unpacked(proto, NULL);
    return code;
}

enum cm_err ig_pb_format(const struct ig_tensor *tensor, struct cm_error *err,
                         unsigned char **ret_bytes, size_t *ret_length)
{
    int64_t dims[CM_MAX_RANK];
    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    memcpy(dims, tensor->shape.dims, sizeof dims);
    proto.n_dims = tensor->shape.rank;
    proto.dims = dims;
    proto.has_data_type = 1;
    proto.data_type = cm_dtype_to_onnx(tensor->dtype);
    proto.name = tensor->name[0] ? (char *)tensor->name : NULL;
    proto.has_raw_data = 1;
    proto.raw_data.data = tensor->data;
    proto.raw_data.len = tensor->bytes;
    size_t length = onnx__tensor_proto__get_packed_size(&proto);
    unsigned char *bytes = malloc(length);
    if (!bytes)
        return cm_fail(err, CM_NOMEM, "no memory for a .pb file");
    onnx__tensor_proto__pack(&proto, bytes);
    *ret_bytes = bytes;
    *ret_length = length;
    return CM_OK;
}
