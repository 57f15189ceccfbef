/* Element types and shapes: the vocabulary that model files, clients, ring records and kernels
 * share.
 *
 * Pure functions, any thread. Sizes that come from outside go through cm_shape_count and
 * cm_shape_bytes, which refuse overflow. */
#ifndef COMMON_TENSOR_H
#define COMMON_TENSOR_H

#include "common/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Ranks above this are refused at load and at the door. */
#define CM_MAX_RANK 8

/* X(name, number, bytes, protocol name, ONNX TensorProto.DataType)
 * The numbers travel in ring records: append only. The protocol names are those of the Open
 * Inference Protocol. The engine has no string tensors. */
#define CM_DTYPE_MAP(X)           \
    X(BOOL, 1, 1, "BOOL", 9)      \
    X(UINT8, 2, 1, "UINT8", 2)    \
    X(UINT16, 3, 2, "UINT16", 4)  \
    X(UINT32, 4, 4, "UINT32", 12) \
    X(UINT64, 5, 8, "UINT64", 13) \
    X(INT8, 6, 1, "INT8", 3)      \
    X(INT16, 7, 2, "INT16", 5)    \
    X(INT32, 8, 4, "INT32", 6)    \
    X(INT64, 9, 8, "INT64", 7)    \
    X(FP16, 10, 2, "FP16", 10)    \
    X(BF16, 11, 2, "BF16", 16)    \
    X(FP32, 12, 4, "FP32", 1)     \
    X(FP64, 13, 8, "FP64", 11)

enum cm_dtype {
    CM_DTYPE_NONE = 0,
#define X(name, number, bytes, text, onnx) CM_##name = (number),
    CM_DTYPE_MAP(X)
#undef X
};

/* dims[0..rank) are valid; a dimension of -1 means "any" where a model's signature is described and
 * is never valid in a concrete tensor. Rank 0 is a scalar (one element). Zero dimensions are legal.
 */
struct cm_shape {
    uint8_t rank;
    int64_t dims[CM_MAX_RANK];
};

/* Bytes per element; 0 for a number outside the list. */
size_t cm_dtype_size(enum cm_dtype dtype);

/* The protocol's name ("FP32"); "?" for a number outside the list. */
const char *cm_dtype_name(enum cm_dtype dtype);

/* CM_DTYPE_NONE if the name is not in the list (comparison is exact). name need not be terminated.
 */
enum cm_dtype cm_dtype_from_name(const char *name, size_t length);

/* ONNX TensorProto.DataType to and from ours; CM_DTYPE_NONE, and 0, for what is not in the list. */
enum cm_dtype cm_dtype_from_onnx(int32_t onnx);
int32_t cm_dtype_to_onnx(enum cm_dtype dtype);

/* Elements of a concrete shape. CM_INVALID for a negative dimension or rank > CM_MAX_RANK, CM_LIMIT
 * where the product exceeds INT64_MAX (also when a later dimension is 0). */
CM_MUST_CHECK enum cm_err cm_shape_count(const struct cm_shape *shape, int64_t *ret_count);

/* Bytes of a concrete tensor; as cm_shape_count, and CM_INVALID for an unknown dtype. */
CM_MUST_CHECK enum cm_err cm_shape_bytes(const struct cm_shape *shape, enum cm_dtype dtype,
                                         size_t *ret_bytes);

bool cm_shape_equal(const struct cm_shape *a, const struct cm_shape *b);

/* "[1,3,48,-1]" into buffer, cut to size, always terminated. Returns buffer. */
const char *cm_shape_format(const struct cm_shape *shape, char *buffer, size_t size);

#endif
