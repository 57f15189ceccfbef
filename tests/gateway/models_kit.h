/* Model tables for tests. */
#ifndef TESTS_GATEWAY_MODELS_KIT_H
#define TESTS_GATEWAY_MODELS_KIT_H

#include "gateway/models.h"

/* One tensor: name, dtype, rank and dimensions. */
struct kit_tensor {
    const char *name;
    enum cm_dtype dtype;
    unsigned rank;
    int64_t dims[CM_MAX_RANK];
};

struct kit_model {
    const char *name;
    uint32_t version;
    int state; /* Ingot__Ipc__ModelState */
    const char *reason;
    bool latest, batchable;
    uint32_t max_batch_size;
    uint32_t id;
    unsigned n_workers, n_inputs, n_outputs;
    struct kit_tensor inputs[3], outputs[3];
};

/* Builds a table, failing the test if it is refused. */
struct gw_models *kit_table(const struct kit_model *models, size_t count, uint64_t scheduler,
                            bool settled, const struct gw_models *previous);
/* The same, for tables that may be refused. */
enum cm_err kit_try_table(const struct kit_model *models, size_t count, uint64_t scheduler,
                          bool settled, const struct gw_models *previous, struct cm_error *err,
                          struct gw_models **ret_models);
struct gw_model *kit_find(const struct gw_models *models, const char *name, const char *version);

/* A model of two inputs and two outputs that batches, at most 8 rows:
 * image FP32 [N,1,8,8], mask INT64 [N,-1] -> scores FP32 [N,10], label INT64 [N]. */
extern const struct kit_model kit_pair;

#endif
