/* Model files of the repository, opened beneath its root and read whole.
 *
 * May block on the disk: called on loader threads, never on a loop. */
#ifndef GPU_WORKER_REPO_H
#define GPU_WORKER_REPO_H

#include "common/err.h"

#include <stddef.h>
#include <stdint.h>

#define WK_MODEL_FILE_MAX (2ull << 30) /* bytes; a protobuf message cannot be larger */

/* Reads ROOT/NAME/VERSION/model.onnx. The path is resolved beneath root: a symlink that leaves it
 * is refused (inside it is allowed: mounted volumes are full of them). Only a regular file is read,
 * into memory of our own, so a later change of the file cannot hurt. ret_bytes is the caller's to
 * free(). ret_directory is the folder ROOT/NAME/VERSION itself, the one that the model was found
 * in, for what the model keeps beside it; the caller's to close(), or NULL. The sentence names
 * model and version, no path. */
CM_MUST_CHECK enum cm_err wk_repo_read(const char *root, const char *name, uint32_t version,
                                       struct cm_error *err, void **ret_bytes, size_t *ret_length,
                                       int *ret_directory);

#endif
