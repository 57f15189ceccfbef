/* How a command talks to a running cluster: the supervisor's control socket, and questions over the
 * control bus.
 *
 * Blocking, with bounds; main thread. What comes back is checked: the run directory is trusted, the
 * processes behind it may be of another release. */
#ifndef DEPLOY_INGOT_CLUSTER_H
#define DEPLOY_INGOT_CLUSTER_H

#include "common/err.h"
#include "common/role.h"
#include "proto/ipc.pb-c.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#define IG_CONTROL_BOUND_MS 5000

struct ig_control {
    int fd;
};

/* CM_NOT_FOUND: no supervisor listens there; the sentence says how to start one. */
CM_MUST_CHECK enum cm_err ig_control_connect(const char *run_dir, struct cm_error *err,
                                             struct ig_control *ret_control);
/* One command and its answer, a JSON object that the caller lets go of. */
CM_MUST_CHECK enum cm_err ig_control_ask(struct ig_control *control, const char *command,
                                         struct cm_error *err, json_t **ret_answer);
/* Waits until the supervisor hangs up. CM_DEADLINE after bound_ms. */
CM_MUST_CHECK enum cm_err ig_control_wait_end(struct ig_control *control, unsigned bound_ms);
void ig_control_disconnect(struct ig_control *control);

/* Connects, asks for the status and disconnects. */
CM_MUST_CHECK enum cm_err ig_cluster_status(const char *run_dir, struct cm_error *err,
                                            json_t **ret_status);

/* Asks a process over the bus and waits for its answer, which the caller frees with
 * ingot__ipc__envelope__free_unpacked(answer, NULL). CM_DEADLINE: none within bound_ms. An Error
 * answer comes back as its code and sentence. */
CM_MUST_CHECK enum cm_err ig_bus_ask(const char *run_dir, enum cm_role role, uint32_t index,
                                     Ingot__Ipc__Envelope *question, unsigned bound_ms,
                                     struct cm_error *err, Ingot__Ipc__Envelope **ret_answer);

/* The scheduler's models; frees as above. */
CM_MUST_CHECK enum cm_err ig_cluster_models(const char *run_dir, unsigned bound_ms,
                                            struct cm_error *err,
                                            Ingot__Ipc__Envelope **ret_answer);

/* A model as `ingot models --json` and `ingot status --json` show it. */
json_t *ig_model_json(const Ingot__Ipc__Model *model);
/* "loading", "ready", "failed", "unknown" */
const char *ig_model_state_name(Ingot__Ipc__ModelState state);

#endif
