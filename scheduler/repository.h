/* The model repository: DIR/NAME/VERSION/model.onnx and DIR/NAME/config.yaml, read once at start.
 *
 * Of each name the highest version is taken. What is wrong with one model (its name, its versions,
 * its configuration, a link that leaves the repository) becomes that model's reason and harms no
 * other. Plain files and names that begin with a dot are not models: mounted volumes have them.
 * Blocking; before the loop runs. */
#ifndef SCHEDULER_REPOSITORY_H
#define SCHEDULER_REPOSITORY_H

#include "scheduler/model.h"

/* Adds what is there to models, sorted by name. Fails only if root itself cannot be read.
 * ret_skipped: models beyond SD_MAX_MODELS, which are left out. */
CM_MUST_CHECK enum cm_err sd_repository_scan(const char *root, struct sd_models *models,
                                             struct cm_error *err, uint32_t *ret_skipped);

#endif
