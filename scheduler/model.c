/* The model table. Pure; one thread. */
#include "scheduler/model.h"

#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sd_model_state_name(enum sd_model_state state)
{
    switch (state) {
#define X(name, number)   \
    case SD_MODEL_##name: \
        return #name;
        SD_MODEL_STATE_MAP(X)
#undef X
    }
    return "?";
}

/* ---- signatures ---- */

static void infos_free(struct sd_tensor_info *infos, uint32_t count)
{
    for (uint32_t i = 0; infos && i < count; i++)
        free(infos[i].name);
    free(infos);
}

void sd_signature_fini(struct sd_signature *signature)
{
    infos_free(signature->inputs, signature->n_inputs);
    infos_free(signature->outputs, signature->n_outputs);
    *signature = (struct sd_signature){0};
}

static enum cm_err infos_check(const struct sd_tensor_info *infos, uint32_t count, const char *what,
                               struct cm_error *err)
{
    if (count > CM_MAX_TENSORS)
        return cm_fail(err, CM_INVALID, "%u %ss; at most %u are supported", count, what,
                       CM_MAX_TENSORS);
    for (uint32_t i = 0; i < count; i++) {
        const struct sd_tensor_info *info = &infos[i];
        if (cm_dtype_size(info->dtype) == 0)
            return cm_fail(err, CM_INVALID, "%s %u has an unknown element type", what, i);
        if (info->shape.rank > CM_MAX_RANK)
            return cm_fail(err, CM_INVALID, "%s %u has more than %d dimensions", what, i,
                           CM_MAX_RANK);
        for (unsigned d = 0; d < info->shape.rank; d++)
            if (info->shape.dims[d] < -1)
                return cm_fail(err, CM_INVALID, "%s %u has a negative dimension", what, i);
    }
    return CM_OK;
}

enum cm_err sd_signature_check(const struct sd_signature *signature, struct cm_error *err)
{
    enum cm_err code = infos_check(signature->inputs, signature->n_inputs, "input", err);
    if (code == CM_OK)
        code = infos_check(signature->outputs, signature->n_outputs, "output", err);
    if (code != CM_OK)
        return code;
    if (signature->n_outputs == 0)
        return cm_fail(err, CM_INVALID, "a model without outputs");
    if (signature->max_batch == 0)
        return cm_fail(err, CM_INVALID, "a maximum batch of 0 rows");
    if (!signature->batchable)
        return CM_OK;
    if (signature->n_inputs == 0)
        return cm_fail(err, CM_INVALID, "a batch dimension without inputs");
    for (uint32_t i = 0; i < signature->n_inputs; i++)
        if (signature->inputs[i].shape.rank == 0)
            return cm_fail(err, CM_INVALID, "input %u is a scalar and cannot have rows", i);
    return CM_OK;
}

static bool infos_equal(const struct sd_tensor_info *a, const struct sd_tensor_info *b,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (a[i].dtype != b[i].dtype || !cm_shape_equal(&a[i].shape, &b[i].shape) ||
            strcmp(a[i].name, b[i].name) != 0)
            return false;
    return true;
}

static bool signature_equal(const struct sd_signature *a, const struct sd_signature *b)
{
    return a->n_inputs == b->n_inputs && a->n_outputs == b->n_outputs &&
           a->max_batch == b->max_batch && a->batchable == b->batchable &&
           infos_equal(a->inputs, b->inputs, a->n_inputs) &&
           infos_equal(a->outputs, b->outputs, a->n_outputs);
}

/* ---- the table ---- */

enum cm_err sd_models_init(struct sd_models *models, uint32_t generation)
{
    struct sd_model *items = calloc(SD_MAX_MODELS, sizeof *items);
    if (!items)
        return CM_NOMEM;
    *models = (struct sd_models){.items = items, .generation = generation};
    return CM_OK;
}

void sd_models_renumber(struct sd_models *models, uint32_t generation)
{
    models->generation = generation;
    for (uint32_t i = 0; i < models->count; i++)
        models->items[i].ref.generation = generation;
}

void sd_models_fini(struct sd_models *models)
{
    for (uint32_t i = 0; i < models->count; i++)
        sd_signature_fini(&models->items[i].signature);
    free(models->items);
    *models = (struct sd_models){0};
}

struct sd_model *sd_models_add(struct sd_models *models, const char *name, uint32_t version,
                               const struct cm_model_config *config, const char *broken_reason)
{
    if (models->count == SD_MAX_MODELS)
        return NULL;
    struct sd_model *model = &models->items[models->count++];
    *model = (struct sd_model){
        .ref = {.id = models->count, .generation = models->generation},
        .version = version,
        .config = *config,
        .broken = broken_reason != NULL,
        .state = broken_reason ? SD_MODEL_FAILED : SD_MODEL_LOADING,
    };
    snprintf(model->name, sizeof model->name, "%s", name);
    snprintf(model->reason, sizeof model->reason, "%s", broken_reason ? broken_reason : "");
    return model;
}

struct sd_model *sd_models_find(const struct sd_models *models, struct cm_model_ref ref)
{
    if (ref.generation != models->generation || ref.id == 0 || ref.id > models->count)
        return NULL;
    return &models->items[ref.id - 1];
}

static bool enter(struct sd_model *model, enum sd_model_state state)
{
    bool changed = model->state != state;
    model->state = state;
    return changed;
}

bool sd_model_asked(struct sd_model *model, uint32_t worker)
{
    uint64_t bit = 1ull << worker;
    model->loading |= bit;
    bool changed = (model->ready & bit) != 0;
    model->ready &= ~bit;
    model->failed &= ~bit;
    return changed;
}

bool sd_model_failed(struct sd_model *model, uint32_t worker, const char *reason)
{
    uint64_t bit = 1ull << worker;
    bool changed = (model->ready & bit) != 0;
    model->loading &= ~bit;
    model->ready &= ~bit;
    model->failed |= bit;
    /* A model that serves, or served, elsewhere goes on: one worker's trouble is not the model's.
     */
    if (model->state == SD_MODEL_READY)
        return changed;
    if (strncmp(model->reason, reason, sizeof model->reason - 1) != 0) {
        snprintf(model->reason, sizeof model->reason, "%s", reason);
        changed = true;
    }
    return enter(model, SD_MODEL_FAILED) || changed;
}

bool sd_model_ready(struct sd_model *model, uint32_t worker, struct sd_signature *signature,
                    struct cm_error *ret_err)
{
    uint64_t bit = 1ull << worker;
    ret_err->code = CM_OK;
    if (model->has_signature && !signature_equal(&model->signature, signature)) {
        sd_signature_fini(signature);
        cm_fail(ret_err, CM_PRECONDITION,
                "worker %u reads another model %s/%u than the workers before it", worker,
                model->name, model->version);
        return sd_model_failed(model, worker, ret_err->text);
    }
    if (!model->has_signature) {
        model->signature = *signature;
        model->has_signature = true;
        *signature = (struct sd_signature){0};
    }
    sd_signature_fini(signature);
    bool changed = (model->ready & bit) == 0;
    model->loading &= ~bit;
    model->failed &= ~bit;
    model->ready |= bit;
    model->reason[0] = '\0';
    return enter(model, SD_MODEL_READY) || changed;
}

bool sd_models_worker_gone(struct sd_models *models, uint32_t worker)
{
    uint64_t bit = 1ull << worker;
    bool changed = false;
    for (uint32_t i = 0; i < models->count; i++) {
        struct sd_model *model = &models->items[i];
        changed |= (model->ready & bit) != 0;
        model->ready &= ~bit;
        model->failed &= ~bit;
        model->loading &= ~bit;
    }
    return changed;
}

bool sd_models_settled(const struct sd_models *models)
{
    for (uint32_t i = 0; i < models->count; i++)
        if (models->items[i].loading || models->items[i].state == SD_MODEL_LOADING)
            return false;
    return true;
}

/* ---- does a request fit? ---- */

static enum cm_err check_input(const struct sd_model *model, uint32_t index,
                               const struct cm_tensor_desc *desc, uint32_t rows,
                               struct cm_error *err)
{
    const struct sd_tensor_info *info = &model->signature.inputs[index];
    char want[128], got[128];
    struct cm_shape shape = cm_desc_shape(desc);
    if (desc->index != index)
        return cm_fail(err, CM_INVALID, "the inputs of model %s are not in its order", model->name);
    if (desc->dtype != info->dtype)
        return cm_fail(err, CM_INVALID, "input %.64s of model %s is %s, not %s", info->name,
                       model->name, cm_dtype_name(info->dtype), cm_dtype_name(desc->dtype));
    bool fits = shape.rank == info->shape.rank;
    /* The first dimension of a batchable model counts rows, whatever the graph calls it. */
    for (unsigned d = model->signature.batchable ? 1 : 0; fits && d < shape.rank; d++)
        fits = info->shape.dims[d] < 0 || info->shape.dims[d] == shape.dims[d];
    if (!fits)
        return cm_fail(err, CM_INVALID, "input %.64s of model %s has shape %s, not %s", info->name,
                       model->name, cm_shape_format(&info->shape, want, sizeof want),
                       cm_shape_format(&shape, got, sizeof got));
    if (model->signature.batchable && shape.dims[0] != (int64_t)rows)
        return cm_fail(err, CM_INVALID, "input %.64s of model %s has %lld rows, not %u", info->name,
                       model->name, (long long)shape.dims[0], rows);
    return CM_OK;
}

static enum cm_err check_rows(const struct sd_model *model, uint32_t rows, struct cm_error *err)
{
    if (!model->signature.batchable)
        return rows == 1 ? CM_OK
                         : cm_fail(err, CM_INVALID, "model %s does not batch: rows must be 1",
                                   model->name);
    if (rows == 0)
        return cm_fail(err, CM_INVALID, "a request for model %s needs at least one row",
                       model->name);
    if (rows > model->signature.max_batch)
        return cm_fail(err, CM_INVALID,
                       "%u rows in one request; model %s takes at most %u (its max_batch_size)",
                       rows, model->name, model->signature.max_batch);
    return CM_OK;
}

enum cm_err sd_model_check(const struct sd_model *model, const struct cm_record_submit *submit,
                           struct cm_error *err)
{
    if (model->state == SD_MODEL_FAILED)
        return cm_fail(err, CM_PRECONDITION, "model %s failed to load", model->name);
    if (!model->has_signature)
        return cm_fail(err, CM_UNAVAILABLE, "model %s is still loading", model->name);
    const struct sd_signature *signature = &model->signature;
    if (submit->n_inputs != signature->n_inputs)
        return cm_fail(err, CM_INVALID, "model %s has %u inputs, not %u", model->name,
                       signature->n_inputs, submit->n_inputs);
    if (submit->output_mask == 0 || (submit->output_mask >> signature->n_outputs) != 0)
        return cm_fail(err, CM_INVALID, "model %s has %u outputs; the request asks for others",
                       model->name, signature->n_outputs);
    enum cm_err code = check_rows(model, submit->rows, err);
    const struct cm_tensor_desc *inputs = cm_submit_inputs(submit);
    for (uint32_t i = 0; code == CM_OK && i < signature->n_inputs; i++)
        code = check_input(model, i, &inputs[i], submit->rows, err);
    return code;
}
