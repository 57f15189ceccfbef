/* The header of a safetensors file: which tensors it holds, of what type and shape, and where.
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *     data      the tensors one behind the other, with nothing between, before or after them
 *
 * Pure functions on bytes that the caller has read; hostile bytes are expected. Memory and time
 * stay within a small multiple of the header's length. Any thread. */
#ifndef GPU_WORKER_GRAPH_SAFETENSORS_H
#define GPU_WORKER_GRAPH_SAFETENSORS_H

#include "common/err.h"
#include "common/tensor.h"
#include "gpu-worker/graph/arena.h"

#include <stddef.h>
#include <stdint.h>

#define WK_SAFETENSORS_PREFIX      8          /* bytes in front of the header */
#define WK_SAFETENSORS_MAX_HEADER  100000000u /* bytes; the format's own limit */
#define WK_SAFETENSORS_MAX_TENSORS 65536u     /* of one file */
#define WK_SAFETENSORS_MAX_VALUES  1048576u   /* JSON values of one header */

struct wk_safetensor {
    const char *name;
    enum cm_dtype dtype; /* CM_DTYPE_NONE: a type that the format has and the engine lacks */
    struct cm_shape shape;
    uint64_t begin, end; /* bytes of the file, from its start */
};

struct wk_safetensors {
    struct wk_arena arena;
    uint32_t n;
    struct wk_safetensor *tensors; /* by name */
};

/* Length of the header from the file's first bytes. CM_CORRUPT where the file cannot hold it or the
 * format forbids it. what names the file in messages. */
CM_MUST_CHECK enum cm_err wk_safetensors_header(const uint8_t prefix[WK_SAFETENSORS_PREFIX],
                                                uint64_t file_bytes, const char *what,
                                                struct cm_error *err, size_t *ret_length);

/* Reads a whole header. ret must be zeroed, and is zeroed again on failure. CM_CORRUPT for what is
 * not the format: bytes that are not JSON in UTF-8, names that appear twice, unknown members, sizes
 * that do not fit types and shapes, tensors that overlap, leave holes, or do not end where the file
 * does. CM_UNSUPPORTED for element types that do not fill whole bytes, and unknown ones. CM_LIMIT
 * for more than the limits above or CM_MAX_RANK. */
CM_MUST_CHECK enum cm_err wk_safetensors_parse(const char *header, size_t length,
                                               uint64_t file_bytes, const char *what,
                                               struct cm_error *err, struct wk_safetensors *ret);
void wk_safetensors_fini(struct wk_safetensors *file);

/* NULL if the file has no tensor of that name. */
const struct wk_safetensor *wk_safetensors_find(const struct wk_safetensors *file,
                                                const char *name);

#endif
