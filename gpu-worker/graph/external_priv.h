/* Files of external data, shared by external*.c only. */
#ifndef GPU_WORKER_GRAPH_EXTERNAL_PRIV_H
#define GPU_WORKER_GRAPH_EXTERNAL_PRIV_H

#include "gpu-worker/graph/external.h"

#include <sys/stat.h>

/* Opens location beneath the folder, one component at a time, and checks what it is. what names
 * the tensor in messages. ret_fd is the caller's to close. */
CM_MUST_CHECK enum cm_err wk_external_open(int directory, const char *location, const char *what,
                                           struct cm_error *err, int *ret_fd, struct stat *ret_st);

/* Reads exactly length bytes; CM_UNAVAILABLE if the file ends before. */
CM_MUST_CHECK enum cm_err wk_external_pread(int fd, uint64_t offset, void *to, size_t length,
                                            const char *what, struct cm_error *err);

#endif
