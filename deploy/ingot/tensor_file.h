/* Tensors in files: NumPy's .npy and ONNX's TensorProto (.pb).
 *
 * Files may be hostile: every number is checked before it is used. Blocking; any thread. */
#ifndef DEPLOY_INGOT_TENSOR_FILE_H
#define DEPLOY_INGOT_TENSOR_FILE_H

#include "common/err.h"
#include "common/tensor.h"

#include <stddef.h>

#define IG_TENSOR_FILE_MAX ((size_t)1 << 30) /* bytes of a file */
#define IG_TENSOR_ALIGN    128               /* of data: what the engine wants */

/* A tensor with its own memory. */
struct ig_tensor {
    char name[256]; /* from a .pb; empty otherwise */
    enum cm_dtype dtype;
    struct cm_shape shape;
    size_t bytes;
    void *data; /* row-major, little endian; never NULL in a valid tensor */
};

/* Memory for a tensor of this shape, zeroed. */
CM_MUST_CHECK enum cm_err ig_tensor_init(struct ig_tensor *tensor, enum cm_dtype dtype,
                                         const struct cm_shape *shape, struct cm_error *err);
/* All-zero tensors are allowed. */
void ig_tensor_fini(struct ig_tensor *tensor);

/* Parsing of bytes; ret_tensor is filled only on success. CM_CORRUPT: not such a file.
 * CM_UNSUPPORTED: big endian, Fortran order, structured or string elements, external data. */
CM_MUST_CHECK enum cm_err ig_npy_parse(const void *bytes, size_t length, struct cm_error *err,
                                       struct ig_tensor *ret_tensor);
CM_MUST_CHECK enum cm_err ig_pb_parse(const void *bytes, size_t length, struct cm_error *err,
                                      struct ig_tensor *ret_tensor);

/* The file's bytes for a tensor; the caller frees them. CM_UNSUPPORTED: BF16 has no .npy type. */
CM_MUST_CHECK enum cm_err ig_npy_format(const struct ig_tensor *tensor, struct cm_error *err,
                                        unsigned char **ret_bytes, size_t *ret_length);
CM_MUST_CHECK enum cm_err ig_pb_format(const struct ig_tensor *tensor, struct cm_error *err,
                                       unsigned char **ret_bytes, size_t *ret_length);

/* By the name's ending, .npy or .pb (CM_INVALID for another). The sentence names the file. */
CM_MUST_CHECK enum cm_err ig_tensor_read(const char *path, struct cm_error *err,
                                         struct ig_tensor *ret_tensor);
CM_MUST_CHECK enum cm_err ig_tensor_write(const char *path, const struct ig_tensor *tensor,
                                          struct cm_error *err);

/* Element i as a number: what is printed and compared. i must be in range. */
double ig_tensor_number(const struct ig_tensor *tensor, size_t i);
/* Element i in text, exact enough to be read back. Returns buffer. */
const char *ig_tensor_format(const struct ig_tensor *tensor, size_t i, char *buffer, size_t size);
/* Elements of the tensor. */
size_t ig_tensor_count(const struct ig_tensor *tensor);

#endif
