/* Tensors that a model keeps in files beside it: ONNX's external data, and safetensors.
 *
 * Where a tensor's bytes are is said by the model file, which may be hostile, so the path rules are
 * strict: relative, beneath the model's folder, no "..", no symbolic link on the way, a regular
 * file with a single name (hard link). Bytes are read into memory of our own instead of being
 * mapped: a mapped file that is cut short kills the process that reads it, one that is rewritten
 * could change a number after it was checked, and the SHA-256 that makes packed weights shareable
 * must be that of the bytes which are packed. What is read is held until the graph's constants are
 * dropped. Belongs to the graph that it is loaded for; one thread. */
#ifndef GPU_WORKER_GRAPH_EXTERNAL_H
#define GPU_WORKER_GRAPH_EXTERNAL_H

#include "common/err.h"
#include "common/tensor.h"
#include "proto/onnx.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WK_EXTERNAL_MAX_PATH 1024 /* bytes of a location */

struct wk_external;

/* directory: the model's folder, kept open by the caller while tensors are read. NULL when memory
 * is out. */
struct wk_external *wk_external_create(int directory);
/* NULL is allowed. What was read is gone. */
void wk_external_destroy(struct wk_external *external);

/* The bytes of a tensor with data_location EXTERNAL, aligned for its type, valid until
 * wk_external_destroy; dtype and shape are what the model says, bytes their size. Entries of
 * external_data: location; offset (default 0) and length (default, and otherwise equal to, the
 * tensor's size); checksum (SHA-1 of the file, checked). A location that ends in ".safetensors"
 * must be such a file, whole and well-formed; without an offset the tensor is looked up in it by
 * its own name, or by that in an entry "tensor", and type and shape must agree. external NULL:
 * there is no folder, CM_UNSUPPORTED. CM_INVALID for broken entries and paths, CM_NOT_FOUND,
 * CM_PERMISSION for links, CM_CORRUPT for what the file cannot hold, CM_LIMIT, CM_UNAVAILABLE for a
 * file that changes meanwhile. */
CM_MUST_CHECK enum cm_err wk_external_read(struct wk_external *external,
                                           const Onnx__TensorProto *proto, const char *what,
                                           enum cm_dtype dtype, const struct cm_shape *shape,
                                           size_t bytes, struct cm_error *err,
                                           const void **ret_data);

/* SHA-256 over everything that was read, in the order of reading, which the model file decides;
 * zeros if that was nothing. Nothing can be read afterwards. NULL is allowed. */
CM_MUST_CHECK enum cm_err wk_external_digest(struct wk_external *external, struct cm_error *err,
                                             uint8_t ret_digest[32]);

#endif
