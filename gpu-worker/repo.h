/* Model files of the repository, opened beneath its root and read whole.
 *
 * May block on the disk: called on loader threads and by tools, never on a loop. */
#ifndef GPU_WORKER_REPO_H
#define GPU_WORKER_REPO_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

#define WK_MODEL_FILE_MAX (2ull << 30) /* bytes; a protobuf message cannot be larger */

/* Reads ROOT/NAME/VERSION/model.onnx. The path is resolved beneath root: a symlink that leaves it
 * is refused (inside it is allowed: mounted volumes are full of them). Only a regular file is read,
 * into memory of our own, so a later change of the file cannot hurt. ret_bytes is the caller's to
 * free(). The sentence names model and version, no path. */
CM_MUST_CHECK enum cm_err wk_repo_read(const char *root, const char *name, uint32_t version,
                                       struct cm_error *err, void **ret_bytes, size_t *ret_length);

/* The same for a file that a person named. */
CM_MUST_CHECK enum cm_err wk_file_read(const char *path, struct cm_error *err, void **ret_bytes,
                                       size_t *ret_length);

#endif
