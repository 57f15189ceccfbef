/* models/NAME/config.yaml and the names below the model repository.
 *
 * Pure parsing of bytes; any thread. Unknown keys, wrong types and values out of range are errors
 * with file and line. */
#ifndef COMMON_MODEL_CONFIG_H
#define COMMON_MODEL_CONFIG_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CM_MODEL_NAME_MAX 64 /* bytes without terminator */

/* The one list of keys. X(key, field, type, minimum, maximum, default, meaning) */
#define CM_MODEL_CONFIG_MAP(X)                                                                    \
    X("max_batch_size", max_batch_size, uint32_t, 0, 128, 0,                                      \
      "rows that may share a run; 0 = 32 where the graph proves that rows are independent, else " \
      "1")                                                                                        \
    X("max_wait_us", max_wait_us, uint32_t, 0, 1000000, 0,                                        \
      "how long the oldest request may wait for company although a worker is idle")               \
    X("max_queue", max_queue, uint32_t, 1, 65536, 4096,                                           \
      "requests that may wait; more are refused with UNAVAILABLE")

struct cm_model_config {
#define X(key, field, type, minimum, maximum, initial, meaning) type field;
    CM_MODEL_CONFIG_MAP(X)
#undef X
};

void cm_model_config_init(struct cm_model_config *config);

/* file is for messages only. CM_INVALID with "file:line: ..." for anything wrong. An empty file is
 * valid. */
CM_MUST_CHECK enum cm_err cm_model_config_parse(const char *file, const void *bytes, size_t length,
                                                struct cm_error *err,
                                                struct cm_model_config *ret_config);

/* Names: [A-Za-z0-9][A-Za-z0-9_.-]*, at most CM_MODEL_NAME_MAX bytes, no "..". length excludes any
 * terminator; a NUL inside is refused. */
bool cm_model_name_valid(const char *name, size_t length);

/* Versions: decimal, 1..INT32_MAX, no sign, no leading zero. 0 if it is not one. */
uint32_t cm_model_version_parse(const char *text, size_t length);

#endif
