/* Model tables: building, lookup, reference counts. See models.h for threads. */
#include "gateway/models.h"

#include "common/check.h"
#include "common/utf8.h"
#include "gateway/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gw_model *gw_model_ref(struct gw_model *model)
{
    atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
    return model;
}

void gw_model_unref(struct gw_model *model)
{
    if (model && atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel) == 1)
        free(model);
}

struct gw_models *gw_models_ref(struct gw_models *models)
{
    atomic_fetch_add_explicit(&models->refs, 1, memory_order_relaxed);
    return models;
}

void gw_models_unref(struct gw_models *models)
{
    if (!models || atomic_fetch_sub_explicit(&models->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < models->count; i++)
        gw_model_unref(models->models[i]);
    free(models);
}

static int compare_key(const struct gw_model *model, const char *name, size_t length,
                       uint32_t version)
{
    size_t own = strlen(model->name);
    size_t least = own < length ? own : length;
    int order = memcmp(model->name, name, least);
    if (order != 0)
        return order;
    if (own != length)
        return own < length ? -1 : 1;
    return model->version < version ? -1 : model->version > version;
}

static int compare_models(const void *a, const void *b)
{
    const struct gw_model *const *left = a, *const *right = b;
    return compare_key(*left, (*right)->name, strlen((*right)->name), (*right)->version);
}

/* Index of the first model that is not before the key. */
static uint32_t lower_bound(const struct gw_models *models, const char *name, size_t length,
                            uint32_t version)
{
    uint32_t low = 0, high = models->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_key(models->models[middle], name, length, version) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct gw_model *find_exact(const struct gw_models *models, const char *name, size_t length,
                                   uint32_t version)
{
    uint32_t at = lower_bound(models, name, length, version);
    bool hit = at < models->count && compare_key(models->models[at], name, length, version) == 0;
    return hit ? models->models[at] : NULL;
}

static enum cm_err take_info(const Ingot__Ipc__TensorInfo *from, struct cm_error *err,
                             struct gw_tensor_info *to)
{
    size_t length = strlen(from->name);
    if (length > GW_NAME_MAX || !cm_utf8_valid(from->name, length))
        return cm_fail(err, CM_CORRUPT, "a tensor's name is too long or not UTF-8");
    if (from->n_shape > CM_MAX_RANK || cm_dtype_size((enum cm_dtype)from->dtype) == 0)
        return cm_fail(err, CM_CORRUPT, "tensor '%s' has a rank or datatype out of range",
                       from->name);
    memcpy(to->name, from->name, length + 1);
    to->dtype = (enum cm_dtype)from->dtype;
    to->shape.rank = (uint8_t)from->n_shape;
    for (size_t i = 0; i < from->n_shape; i++) {
        if (from->shape[i] < -1)
            return cm_fail(err, CM_CORRUPT, "tensor '%s' has a negative dimension", from->name);
        to->shape.dims[i] = from->shape[i];
    }
    return CM_OK;
}

static enum cm_err take_signature(const Ingot__Ipc__Model *from, struct cm_error *err,
                                  struct gw_model *to)
{
    enum cm_err code = CM_OK;
    for (size_t i = 0; i < from->n_inputs && code == CM_OK; i++)
        code = take_info(from->inputs[i], err, &to->inputs[i]);
    for (size_t i = 0; i < from->n_outputs && code == CM_OK; i++)
        code = take_info(from->outputs[i], err, &to->outputs[i]);
    return code;
}

static struct gw_model *model_create(size_t n_inputs, size_t n_outputs)
{
    struct gw_model *model =
        calloc(1, sizeof *model + (n_inputs + n_outputs) * sizeof(struct gw_tensor_info));
    if (!model)
        return NULL;
    atomic_init(&model->refs, 1);
    model->inputs = (struct gw_tensor_info *)(void *)(model + 1);
    model->outputs = model->inputs + n_inputs;
    model->n_inputs = (uint8_t)n_inputs;
    model->n_outputs = (uint8_t)n_outputs;
    return model;
}

static enum gw_model_state state_from(Ingot__Ipc__ModelState state)
{
    switch (state) {
    case INGOT__IPC__MODEL_STATE__MODEL_READY:
        return GW_MODEL_READY;
    case INGOT__IPC__MODEL_STATE__MODEL_FAILED:
        return GW_MODEL_FAILED;
    default:
        return GW_MODEL_LOADING;
    }
}

static enum cm_err model_from(const Ingot__Ipc__Model *from, uint64_t scheduler,
                              struct cm_error *err, struct gw_model **ret)
{
    if (!cm_model_name_valid(from->name, strlen(from->name)) || from->version == 0 ||
        from->version > INT32_MAX)
        return cm_fail(err, CM_CORRUPT, "a model's name or version is malformed");
    if (from->n_inputs > CM_MAX_TENSORS || from->n_outputs > CM_MAX_TENSORS)
        return cm_fail(err, CM_CORRUPT, "model '%s' has too many tensors", from->name);
    struct gw_model *model = model_create(from->n_inputs, from->n_outputs);
    if (!model)
        return cm_fail(err, CM_NOMEM, "no memory for the model table");
    model->state = state_from(from->state);
    model->scheduler = scheduler;
    model->ref = (struct cm_model_ref){from->id, from->generation};
    model->version = from->version;
    model->max_batch_size = from->max_batch_size ? from->max_batch_size : 1;
    model->batchable = from->batchable;
    model->latest = from->latest;
    model->n_workers = (uint32_t)from->n_workers;
    strcpy(model->name, from->name);
    snprintf(model->version_text, sizeof model->version_text, "%" PRIu32, from->version);
    snprintf(model->reason, sizeof model->reason, "%s", from->reason);
    enum cm_err code = take_signature(from, err, model);
    if (code != CM_OK) {
        gw_model_unref(model);
        return code;
    }
    *ret = model;
    return CM_OK;
}

static bool was_ready(const struct gw_model *model)
{
    return model && (model->state == GW_MODEL_READY || model->state == GW_MODEL_RETURNING);
}

/* The old model under a new state and number. */
static struct gw_model *returning(const struct gw_model *old, const struct gw_model *now)
{
    struct gw_model *model = model_create(old->n_inputs, old->n_outputs);
    if (!model)
        return NULL;
    struct gw_tensor_info *inputs = model->inputs, *outputs = model->outputs;
    memcpy(inputs, old->inputs, old->n_inputs * sizeof *inputs);
    memcpy(outputs, old->outputs, old->n_outputs * sizeof *outputs);
    *model = *old;
    atomic_init(&model->refs, 1);
    model->inputs = inputs;
    model->outputs = outputs;
    model->state = GW_MODEL_RETURNING;
    model->n_workers = 0;
    if (now)
        model->ref = now->ref;
    return model;
}

static struct gw_model *unusable(const Ingot__Ipc__Model *from, const char *reason)
{
    struct gw_model *model = model_create(0, 0);
    if (!model)
        return NULL;
    model->state = GW_MODEL_FAILED;
    model->version = from->version;
    model->max_batch_size = 1;
    strcpy(model->name, from->name);
    snprintf(model->version_text, sizeof model->version_text, "%" PRIu32, from->version);
    snprintf(model->reason, sizeof model->reason, "%.*s", (int)sizeof model->reason - 1, reason);
    return model;
}

/* A model that makes no sense must not take the others with it: it has failed, and whoever asks for
 * it is told why. *ret_model is NULL if it has no name that a client could say: a directory of the
 * repository that is no model. */
static enum cm_err take_model(const Ingot__Ipc__Model *from, uint64_t scheduler,
                              struct cm_error *err, struct gw_model **ret_model)
{
    *ret_model = NULL;
    enum cm_err code = model_from(from, scheduler, err, ret_model);
    if (code != CM_CORRUPT)
        return code;
    if (!cm_model_name_valid(from->name, strlen(from->name)) || from->version > INT32_MAX)
        return CM_OK;
    bool failed = state_from(from->state) == GW_MODEL_FAILED;
    *ret_model = unusable(from, failed ? from->reason : err->text);
    return *ret_model ? CM_OK : cm_fail(err, CM_NOMEM, "no memory for the model table");
}

static enum cm_err take_models(const Ingot__Ipc__ModelTable *message, struct cm_error *err,
                               const struct gw_models *previous, struct gw_models *models)
{
    for (size_t i = 0; i < message->n_models; i++) {
        struct gw_model *model;
        enum cm_err code = take_model(message->models[i], models->scheduler, err, &model);
        if (code != CM_OK)
            return code;
        if (!model)
            continue;
        struct gw_model *old =
            previous ? find_exact(previous, model->name, strlen(model->name), model->version)
                     : NULL;
        if (model->state == GW_MODEL_LOADING && was_ready(old)) {
            struct gw_model *back = returning(old, model);
            gw_model_unref(model);
            if (!back)
                return cm_fail(err, CM_NOMEM, "no memory for the model table");
            back->scheduler = models->scheduler;
            model = back;
        }
        models->models[models->count++] = model;
    }
    qsort(models->models, models->count, sizeof models->models[0], compare_models);
    for (uint32_t i = 1; i < models->count; i++)
        if (compare_models(&models->models[i - 1], &models->models[i]) == 0)
            return cm_fail(err, CM_CORRUPT, "model '%s' is listed twice", models->models[i]->name);
    return CM_OK;
}

/* A scheduler that has just come back does not know yet what its workers have. */
static enum cm_err keep_absent(const struct gw_models *previous, struct cm_error *err,
                               struct gw_models *models)
{
    uint32_t known = models->count;
    for (uint32_t i = 0; i < previous->count; i++) {
        struct gw_model *old = previous->models[i];
        bool listed = false;
        for (uint32_t k = 0; k < known && !listed; k++)
            listed = compare_models(&models->models[k], &previous->models[i]) == 0;
        if (listed || !was_ready(old) || models->count >= GW_MODELS_MAX)
            continue;
        struct gw_model *back = returning(old, NULL);
        if (!back)
            return cm_fail(err, CM_NOMEM, "no memory for the model table");
        models->models[models->count++] = back;
    }
    qsort(models->models, models->count, sizeof models->models[0], compare_models);
    return CM_OK;
}

enum cm_err gw_models_build(const Ingot__Ipc__ModelTable *message, uint64_t scheduler,
                            const struct gw_models *previous, struct cm_error *err,
                            struct gw_models **ret_models)
{
    if (message->n_models > GW_MODELS_MAX)
        return cm_fail(err, CM_CORRUPT, "the model table has %zu models", message->n_models);
    size_t room = message->n_models + (previous ? previous->count : 0);
    struct gw_models *models = calloc(1, sizeof *models + room * sizeof models->models[0]);
    if (!models)
        return cm_fail(err, CM_NOMEM, "no memory for the model table");
    atomic_init(&models->refs, 1);
    models->scheduler = scheduler;
    models->revision = message->revision;
    models->settled = message->settled;
    enum cm_err code = take_models(message, err, previous, models);
    if (code == CM_OK && previous && !models->settled)
        code = keep_absent(previous, err, models);
    if (code != CM_OK) {
        gw_models_unref(models);
        return code;
    }
    *ret_models = models;
    return CM_OK;
}

/* Of one name's versions: the scheduler's choice, else one that comes back, loads, or failed. */
static struct gw_model *find_latest(const struct gw_models *models, const char *name, size_t length)
{
    struct gw_model *best = NULL;
    int best_rank = 0;
    for (uint32_t i = lower_bound(models, name, length, 0); i < models->count; i++) {
        struct gw_model *model = models->models[i];
        if (strlen(model->name) != length || memcmp(model->name, name, length) != 0)
            break;
        static const int ranks[] = {
            [GW_MODEL_FAILED] = 1,
            [GW_MODEL_LOADING] = 2,
            [GW_MODEL_RETURNING] = 3,
            [GW_MODEL_READY] = 4,
        };
        int rank = model->state == GW_MODEL_READY && model->latest ? 5 : ranks[model->state];
        if (rank >= best_rank) {
            best = model;
            best_rank = rank;
        }
    }
    return best;
}

enum cm_err gw_models_find(const struct gw_models *models, const char *name, size_t name_length,
                           const char *version, size_t version_length, struct cm_error *err,
                           struct gw_model **ret_model)
{
    if (!cm_model_name_valid(name, name_length))
        return cm_fail(err, CM_INVALID,
                       "the model's name must be [A-Za-z0-9][A-Za-z0-9_.-]*, at most %d characters",
                       CM_MODEL_NAME_MAX);
    uint32_t number = version_length ? cm_model_version_parse(version, version_length) : 0;
    if (version_length && number == 0)
        return cm_fail(err, CM_INVALID, "the model's version must be a number from 1 to %d",
                       INT32_MAX);
    struct gw_model *model = NULL;
    if (models)
        model = number ? find_exact(models, name, name_length, number)
                       : find_latest(models, name, name_length);
    if (!model && number)
        return cm_fail(err, CM_NOT_FOUND, "model '%.*s' version %" PRIu32 " is not known",
                       (int)name_length, name, number);
    if (!model)
        return cm_fail(err, CM_NOT_FOUND, "model '%.*s' is not known", (int)name_length, name);
    *ret_model = model;
    return CM_OK;
}

enum cm_err gw_model_usable(const struct gw_model *model, struct cm_error *err)
{
    switch (model->state) {
    case GW_MODEL_READY:
    case GW_MODEL_RETURNING:
        return CM_OK;
    case GW_MODEL_LOADING:
        return cm_fail(err, CM_UNAVAILABLE, "model '%s' version %s is loading", model->name,
                       model->version_text);
    case GW_MODEL_FAILED:
        break;
    }
    if (model->version == 0)
        return cm_fail(err, CM_PRECONDITION, "model '%s' failed to load: %s", model->name,
                       model->reason);
    return cm_fail(err, CM_PRECONDITION, "model '%s' version %s failed to load: %s", model->name,
                   model->version_text, model->reason);
}

const char *gw_model_shape_format(const struct gw_model *model, const struct gw_tensor_info *info,
                                  char *buffer, size_t size)
{
    size_t at = 0;
    for (unsigned i = 0; i <= info->shape.rank && at < size; i++) {
        const char *lead = i == 0 ? "[" : i == info->shape.rank ? "]" : ",";
        int n;
        if (i == info->shape.rank)
            n = snprintf(buffer + at, size - at, "%s", i == 0 ? "[]" : lead);
        else if (i == 0 && model->batchable && info->shape.dims[0] < 0)
            n = snprintf(buffer + at, size - at, "[N");
        else
            n = snprintf(buffer + at, size - at, "%s%" PRId64, lead, info->shape.dims[i]);
        at += (size_t)n;
    }
    return buffer;
}

static bool same_infos(const struct gw_tensor_info *a, const struct gw_tensor_info *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(a[i].name, b[i].name) != 0 || a[i].dtype != b[i].dtype ||
            !cm_shape_equal(&a[i].shape, &b[i].shape))
            return false;
    return true;
}

bool gw_model_same_signature(const struct gw_model *a, const struct gw_model *b)
{
    return a->n_inputs == b->n_inputs && a->n_outputs == b->n_outputs &&
           a->batchable == b->batchable && same_infos(a->inputs, b->inputs, a->n_inputs) &&
           same_infos(a->outputs, b->outputs, a->n_outputs);
}
