/* A model file run in this process by the worker's engine: `ingot run`.
 *
 * Owns the file's bytes, the packed weights, the engine and the model. Main thread, blocking. */
#ifndef DEPLOY_INGOT_OFFLINE_H
#define DEPLOY_INGOT_OFFLINE_H

#include "deploy/ingot/tensor_file.h"
#include "gpu-worker/engine.h"

#include <jansson.h>

#define IG_MODEL_FILE_MAX ((size_t)2 << 30) /* what a protobuf message can have */

struct ig_offline {
    unsigned char *file;
    size_t file_length;
    void *weights;
    struct wk_engine *engine;
    struct wk_model *model;
};

/* Parses the model, with the files beside it that it refers to, and packs its weights. Errors as
 * wk_engine_create, wk_model_parse and file reading; the sentence names the file. */
CM_MUST_CHECK enum cm_err ig_offline_open(const char *path, const struct wk_engine_options *options,
                                          uint64_t disabled_passes, struct cm_error *err,
                                          struct ig_offline *ret_offline);
/* All-zero is allowed. */
void ig_offline_close(struct ig_offline *offline);

/* Runs repeat times on inputs in the signature's order. outputs has room for the signature's
 * outputs, which the caller lets go of; times_ns for repeat times, or NULL. ret_plan, unless it is
 * NULL, gets the plan (explain.h) with the median of each node's time over the last runs; the
 * caller lets go of it. CM_INVALID with a sentence where an input's type or shape does not fit. */
CM_MUST_CHECK enum cm_err ig_offline_run(struct ig_offline *offline, const struct ig_tensor *inputs,
                                         size_t repeat, uint64_t *times_ns, json_t **ret_plan,
                                         struct cm_error *err, struct ig_tensor *ret_outputs);

#endif
