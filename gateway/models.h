/* The model table as the gateway knows it: who is there, in which state, with which signature.
 *
 * Tables are immutable snapshots made from the scheduler's ModelTable messages; models are counted,
 * since a call keeps its model until it is answered. Building is the loop's; lookups and references
 * are for any thread that holds a reference to the table (server.h says how one is got). Pure: no
 * I/O, no clock. */
#ifndef GATEWAY_MODELS_H
#define GATEWAY_MODELS_H

#include "common/err.h"
#include "common/model_config.h"
#include "common/record.h"
#include "common/tensor.h"
#include "proto/ipc.pb-c.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GW_NAME_MAX   255  /* bytes of a tensor's name; longer ones make a model unusable here */
#define GW_REASON_MAX 255  /* bytes kept of a model's reason */
#define GW_MODELS_MAX 4096 /* models of a table */

/* X(name, number). RETURNING: was ready, and is not while its scheduler or its workers come back:
 * calls for it are kept until it is ready again or their deadline. */
#define GW_MODEL_STATE_MAP(X) \
    X(LOADING, 1)             \
    X(READY, 2)               \
    X(FAILED, 3)              \
    X(RETURNING, 4)

enum gw_model_state {
#define X(name, number) GW_MODEL_##name = (number),
    GW_MODEL_STATE_MAP(X)
#undef X
};

struct gw_tensor_info {
    char name[GW_NAME_MAX + 1];
    enum cm_dtype dtype;
    struct cm_shape shape; /* -1 = any; dims[0] is the batch if the model batches */
};

/* Immutable after building, but for refs. */
struct gw_model {
    atomic_uint refs;
    enum gw_model_state state;
    uint64_t scheduler; /* instance that numbers it by ref */
    struct cm_model_ref ref;
    uint32_t version;
    uint32_t max_batch_size;
    bool batchable;
    bool latest;
    uint8_t n_inputs, n_outputs;
    uint32_t n_workers; /* that have it ready now */
    char name[CM_MODEL_NAME_MAX + 1];
    char version_text[12];
    char reason[GW_REASON_MAX + 1];
    struct gw_tensor_info *inputs, *outputs; /* behind the struct, in its allocation */
};

struct gw_models {
    atomic_uint refs;
    uint64_t scheduler; /* instance of the sender */
    uint64_t revision;
    bool settled;
    uint32_t count;
    struct gw_model *models[]; /* sorted by name, then version */
};

/* A table from a message of the scheduler with that instance. previous (may be NULL) is the table
 * that it replaces: a model that was ready there and is loading now, or is absent while the new
 * table is not settled, becomes RETURNING with its old signature. A model that makes no sense
 * (limits, names, dtypes, ranks) is FAILED, or left out if it has no valid name. CM_CORRUPT: too
 * many models, or one twice; CM_NOMEM. The caller owns the one reference. */
CM_MUST_CHECK enum cm_err gw_models_build(const Ingot__Ipc__ModelTable *message, uint64_t scheduler,
                                          const struct gw_models *previous, struct cm_error *err,
                                          struct gw_models **ret_models);

struct gw_models *gw_models_ref(struct gw_models *models);
void gw_models_unref(struct gw_models *models); /* NULL is allowed */
struct gw_model *gw_model_ref(struct gw_model *model);
void gw_model_unref(struct gw_model *model); /* NULL is allowed */

/* The model that a request means; version "" is the latest that is ready. name and version need not
 * be terminated. CM_OK also for one that is not ready: see gw_model_usable. CM_INVALID (malformed
 * name or version), CM_NOT_FOUND. No reference is taken. models may be NULL: nothing is known. */
CM_MUST_CHECK enum cm_err gw_models_find(const struct gw_models *models, const char *name,
                                         size_t name_length, const char *version,
                                         size_t version_length, struct cm_error *err,
                                         struct gw_model **ret_model);

/* Whether requests may be taken for it. CM_UNAVAILABLE (loading), CM_PRECONDITION (failed). */
CM_MUST_CHECK enum cm_err gw_model_usable(const struct gw_model *model, struct cm_error *err);

/* "[N,1,8,-1]": N for the batch dimension. Returns buffer. */
const char *gw_model_shape_format(const struct gw_model *model, const struct gw_tensor_info *info,
                                  char *buffer, size_t size);

/* True if both have the same inputs and outputs: a request decoded for one fits the other. */
bool gw_model_same_signature(const struct gw_model *a, const struct gw_model *b);

#endif
