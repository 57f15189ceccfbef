/* Tensors of a model file: every number is checked before it is used. The owner's thread. */
#include "gpu-worker/graph/load_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/external.h"

#include <string.h>

/* What a TensorProto says about itself. */
struct header {
    enum cm_dtype dtype;
    struct cm_shape shape;
    size_t count, bytes;
};

static enum cm_err read_header(const Onnx__TensorProto *proto, const char *what,
                               struct cm_error *err, struct header *ret)
{
    if (proto->segment)
        return cm_fail(err, CM_UNSUPPORTED, "%s is a segment of a tensor: not supported", what);
    ret->dtype = cm_dtype_from_onnx(proto->data_type);
    if (ret->dtype == CM_DTYPE_NONE)
        return cm_fail(err, CM_UNSUPPORTED, "%s has element type %d: not supported", what,
                       proto->data_type);
    if (proto->n_dims > CM_MAX_RANK)
        return cm_fail(err, CM_LIMIT, "%s has %zu dimensions, at most %d are supported", what,
                       proto->n_dims, CM_MAX_RANK);
    ret->shape.rank = (uint8_t)proto->n_dims;
    for (size_t i = 0; i < proto->n_dims; i++) {
        ret->shape.dims[i] = proto->dims[i];
        if (proto->dims[i] < 0)
            return cm_fail(err, CM_INVALID, "%s has the negative dimension %lld", what,
                           (long long)proto->dims[i]);
    }
    int64_t count;
    if (cm_shape_count(&ret->shape, &count) != CM_OK ||
        cm_shape_bytes(&ret->shape, ret->dtype, &ret->bytes) != CM_OK ||
        ret->bytes > WK_MAX_TENSOR_BYTES || !wk_dims_fit(&ret->shape))
        return cm_fail(err, CM_LIMIT, "%s is too large", what);
    ret->count = (size_t)count;
    return CM_OK;
}

/* Elements in the typed field that this element type uses, and how wide the field's are. */
static size_t typed_count(const Onnx__TensorProto *proto, enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_FP32:
        return proto->n_float_data;
    case CM_FP64:
        return proto->n_double_data;
    case CM_INT64:
        return proto->n_int64_data;
    case CM_UINT32:
    case CM_UINT64:
        return proto->n_uint64_data;
    default:
        return proto->n_int32_data;
    }
}

/* Narrows int32_data or uint64_data elements into out. The low bytes are the value. */
static void narrow(const Onnx__TensorProto *proto, enum cm_dtype dtype, size_t count, void *out)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == CM_UINT32) {
            ((uint32_t *)out)[i] = (uint32_t)proto->uint64_data[i];
        } else if (dtype == CM_BOOL) {
            ((uint8_t *)out)[i] = proto->int32_data[i] != 0;
        } else if (cm_dtype_size(dtype) == 1) {
            ((uint8_t *)out)[i] = (uint8_t)proto->int32_data[i];
        } else if (cm_dtype_size(dtype) == 2) {
            ((uint16_t *)out)[i] = (uint16_t)proto->int32_data[i];
        } else {
            ((int32_t *)out)[i] = proto->int32_data[i];
        }
    }
}

static enum cm_err read_typed(struct wk_graph *graph, const Onnx__TensorProto *proto,
                              const char *what, const struct header *header, struct cm_error *err,
                              const void **ret_data)
{
    size_t have = typed_count(proto, header->dtype);
    if (have != header->count)
        return cm_fail(err, CM_CORRUPT, "%s holds %zu elements, its dimensions say %zu", what, have,
                       header->count);
    switch (header->dtype) {
    case CM_FP32:
        *ret_data = proto->float_data;
        return CM_OK;
    case CM_FP64:
        *ret_data = proto->double_data;
        return CM_OK;
    case CM_INT64:
        *ret_data = proto->int64_data;
        return CM_OK;
    case CM_UINT64:
        *ret_data = proto->uint64_data;
        return CM_OK;
    default:
        break;
    }
    void *copy = wk_arena_take(&graph->arena, header->bytes, 1);
    if (!copy)
        return cm_fail(err, CM_NOMEM, "out of memory while reading %s", what);
    narrow(proto, header->dtype, header->count, copy);
    *ret_data = copy;
    return CM_OK;
}

static const void *keep_small(struct wk_graph *graph, const void *data, size_t bytes)
{
    void *copy = wk_arena_take(&graph->arena, bytes, 1);
    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

static bool is_external(const Onnx__TensorProto *proto)
{
    return proto->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
}

/* Data in two places would be two tensors of one name. */
static enum cm_err check_place(const Onnx__TensorProto *proto, const char *what,
                               struct cm_error *err)
{
    bool here = proto->has_raw_data || proto->n_float_data || proto->n_double_data ||
                proto->n_int64_data || proto->n_uint64_data || proto->n_int32_data;
    if (is_external(proto) && here)
        return cm_fail(err, CM_INVALID, "%s has data both in the model and outside", what);
    if (!is_external(proto) && proto->n_external_data)
        return cm_fail(err, CM_INVALID,
                       "%s has external_data, but its data_location is not EXTERNAL", what);
    return CM_OK;
}

enum cm_err wk_load_tensor(struct wk_graph *graph, const Onnx__TensorProto *proto, const char *what,
                           struct cm_error *err, const struct wk_const **ret_constant)
{
    struct header header;
    const void *data = NULL;
    enum cm_err code = check_place(proto, what, err);
    if (code == CM_OK)
        code = read_header(proto, what, err, &header);
    if (code != CM_OK)
        return code;
    if (is_external(proto)) {
        code = wk_external_read(graph->external, proto, what, header.dtype, &header.shape,
                                header.bytes, err, &data);
        if (code != CM_OK)
            return code;
    } else if (proto->has_raw_data) {
        if (proto->raw_data.len != header.bytes)
            return cm_fail(err, CM_CORRUPT, "%s holds %zu bytes, its type and dimensions say %zu",
                           what, proto->raw_data.len, header.bytes);
        data = proto->raw_data.data;
    } else {
        code = read_typed(graph, proto, what, &header, err, &data);
        if (code != CM_OK)
            return code;
    }
    struct wk_const *constant = wk_arena_take(&graph->arena, 1, sizeof *constant);
    if (constant && header.bytes <= WK_SMALL_CONST_BYTES)
        data = keep_small(graph, data, header.bytes);
    if (!constant || (!data && header.bytes))
        return cm_fail(err, CM_NOMEM, "out of memory while reading %s", what);
    *constant = (struct wk_const){header.dtype, header.shape, data, header.bytes};
    *ret_constant = constant;
    return CM_OK;
}

static enum cm_err read_shape(const Onnx__TensorShapeProto *proto, const char *what,
                              struct cm_error *err, struct cm_shape *ret)
{
    if (proto->n_dim > CM_MAX_RANK)
        return cm_fail(err, CM_LIMIT, "%s has %zu dimensions, at most %d are supported", what,
                       proto->n_dim, CM_MAX_RANK);
    struct cm_shape known = {.rank = (uint8_t)proto->n_dim},
                    fixed = {.rank = (uint8_t)proto->n_dim};
    for (size_t i = 0; i < proto->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *dim = proto->dim[i];
        bool is_value = dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        /* Exporters write 0 and -1 for "any" as well as names. */
        known.dims[i] = is_value && dim->dim_value > 0 ? dim->dim_value : -1;
        fixed.dims[i] = known.dims[i] < 0 ? 1 : known.dims[i];
        if (is_value && dim->dim_value < -1)
            return cm_fail(err, CM_INVALID, "%s has the negative dimension %lld", what,
                           (long long)dim->dim_value);
    }
    int64_t count;
    if (cm_shape_count(&fixed, &count) != CM_OK || count > (int64_t)WK_MAX_TENSOR_BYTES)
        return cm_fail(err, CM_LIMIT, "%s is too large", what);
    *ret = known;
    return CM_OK;
}

static bool has_control(const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name < ' ' || *name == 0x7f)
            return true;
    return false;
}

enum cm_err wk_load_info(const Onnx__ValueInfoProto *proto, const char *what, struct cm_error *err,
                         struct wk_tensor_info *ret_info)
{
    const Onnx__TypeProto *type = proto->type;
    const char *name = proto->name ? proto->name : "";
    if (strlen(name) >= WK_MAX_NAME)
        return cm_fail(err, CM_LIMIT, "%s: a name may have at most %d bytes", what,
                       WK_MAX_NAME - 1);
    /* It ends up on terminals and in logs. */
    if (has_control(name))
        return cm_fail(err, CM_INVALID, "%s: a name may have no control characters", what);
    if (!type || type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return cm_fail(err, CM_UNSUPPORTED, "%s is not a tensor: not supported", what);
    struct wk_tensor_info info = {.dtype = cm_dtype_from_onnx(type->tensor_type->elem_type)};
    if (info.dtype == CM_DTYPE_NONE)
        return cm_fail(err, CM_UNSUPPORTED, "%s has element type %d: not supported", what,
                       type->tensor_type->elem_type);
    if (!type->tensor_type->shape)
        return cm_fail(err, CM_UNSUPPORTED,
                       "%s declares no shape: not supported (free dimensions may be named, but the "
                       "number of dimensions must be there)",
                       what);
    enum cm_err code = read_shape(type->tensor_type->shape, what, err, &info.shape);
    if (code != CM_OK)
        return code;
    memcpy(info.name, name, strlen(name) + 1);
    *ret_info = info;
    return CM_OK;
}
