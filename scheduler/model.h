/* The model table: what is in the repository, what each worker says about it, and whether a SUBMIT
 * fits a model's signature.
 *
 *               all workers that answered say failed
 *            .-----------------------------------------.
 *   LOADING -+                                          +-> FAILED (reason kept)
 *            '--- one worker is ready ---> READY       <--- a later worker is ready
 *
 * READY is kept when the last worker goes: requests then wait for one to come back. A model whose
 * directory or configuration is wrong is FAILED from the start and never sent to a worker. Pure: no
 * input or output, no clock; memory for names and signatures is the table's own. One thread. */
#ifndef SCHEDULER_MODEL_H
#define SCHEDULER_MODEL_H

#include "common/err.h"
#include "common/model_config.h"
#include "common/record.h"
#include "common/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SD_MAX_MODELS      256u
#define SD_MAX_WORKERS     64u  /* bits of a mask */
#define SD_MAX_TENSOR_NAME 255u /* what gateways take: a longer one fails at load, not later */

/* X(name, number): the numbers are those of the protocol's ModelState. */
#define SD_MODEL_STATE_MAP(X) \
    X(LOADING, 1)             \
    X(READY, 2)               \
    X(FAILED, 3)

enum sd_model_state {
#define X(name, number) SD_MODEL_##name = (number),
    SD_MODEL_STATE_MAP(X)
#undef X
};

const char *sd_model_state_name(enum sd_model_state state);

struct sd_tensor_info {
    char *name; /* owned */
    enum cm_dtype dtype;
    struct cm_shape shape; /* -1 = any */
};

/* What the engine found in the graph. The arrays are owned: sd_signature_fini. */
struct sd_signature {
    struct sd_tensor_info *inputs;
    struct sd_tensor_info *outputs;
    uint32_t n_inputs;
    uint32_t n_outputs;
    uint32_t max_batch; /* rows in a run, at least 1 */
    bool batchable;
    uint64_t weights_bytes;
};

void sd_signature_fini(struct sd_signature *signature);

/* CM_INVALID with a sentence for a signature that a worker must not have sent: counts over
 * CM_MAX_TENSORS, no outputs, unknown dtypes, ranks or dimensions out of range, a batchable model
 * without inputs or with a scalar input. */
CM_MUST_CHECK enum cm_err sd_signature_check(const struct sd_signature *signature,
                                             struct cm_error *err);

struct sd_model {
    struct cm_model_ref ref; /* id = position + 1 */
    char name[CM_MODEL_NAME_MAX + 4];
    uint32_t version;
    struct cm_model_config config;
    bool broken; /* FAILED by the repository: no worker is asked */
    enum sd_model_state state;
    char reason[512];
    bool has_signature;
    struct sd_signature signature;
    uint64_t ready; /* bit i: worker i serves it */
    uint64_t failed;
    uint64_t loading;  /* asked, not answered */
    uint32_t queued;   /* requests that wait; the queues' business */
    uint64_t batches;  /* executed */
    uint64_t requests; /* completed */
    uint64_t rows;
};

struct sd_models {
    struct sd_model *items; /* SD_MAX_MODELS */
    uint32_t count;
    uint32_t generation;
};

/* generation: of all references of this table; tells one scheduler life's references from
 * another's. */
CM_MUST_CHECK enum cm_err sd_models_init(struct sd_models *models, uint32_t generation);
/* Gives the table another generation, before any reference has left this process. */
void sd_models_renumber(struct sd_models *models, uint32_t generation);
void sd_models_fini(struct sd_models *models);

/* A new model in LOADING, or, with a reason, broken. NULL when the table is full. */
struct sd_model *sd_models_add(struct sd_models *models, const char *name, uint32_t version,
                               const struct cm_model_config *config, const char *broken_reason);

/* NULL for a reference of another life or outside the table. */
struct sd_model *sd_models_find(const struct sd_models *models, struct cm_model_ref ref);

/* What a worker says. All three return true if something that others see has changed. */
bool sd_model_asked(struct sd_model *model, uint32_t worker);
/* Takes the signature (and empties it). A signature that differs from the one known makes this
 * worker's copy FAILED: err then has CM_PRECONDITION and a sentence, else CM_OK. */
bool sd_model_ready(struct sd_model *model, uint32_t worker, struct sd_signature *signature,
                    struct cm_error *ret_err);
bool sd_model_failed(struct sd_model *model, uint32_t worker, const char *reason);

/* Forgets a worker in every model. True if something that others see has changed. */
bool sd_models_worker_gone(struct sd_models *models, uint32_t worker);

/* True if no worker still has a model to answer for. */
bool sd_models_settled(const struct sd_models *models);

/* Whether a checked SUBMIT fits the model: state, counts, dtypes, shapes, rows, outputs. err has a
 * sentence for the client: CM_UNAVAILABLE (still loading), CM_PRECONDITION (failed), CM_INVALID. */
CM_MUST_CHECK enum cm_err sd_model_check(const struct sd_model *model,
                                         const struct cm_record_submit *submit,
                                         struct cm_error *err);

#endif
