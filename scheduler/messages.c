/* ModelTable out, ModelStatus in. Pure. */
#include "scheduler/messages.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- ModelTable ---- */

/* Parts of one block, each handed out once, in the order in which their sizes were added. */
struct block {
    Ingot__Ipc__Model *models;
    Ingot__Ipc__Model **model_list;
    Ingot__Ipc__TensorInfo *infos;
    Ingot__Ipc__TensorInfo **info_list;
    uint32_t *workers;
};

static Ingot__Ipc__TensorInfo **put_infos(struct block *block, const struct sd_tensor_info *infos,
                                          uint32_t count)
{
    Ingot__Ipc__TensorInfo **list = block->info_list;
    for (uint32_t i = 0; i < count; i++) {
        Ingot__Ipc__TensorInfo *out = block->infos++;
        ingot__ipc__tensor_info__init(out);
        out->name = infos[i].name;
        out->dtype = infos[i].dtype;
        out->n_shape = infos[i].shape.rank;
        out->shape = (int64_t *)infos[i].shape.dims;
        *block->info_list++ = out;
    }
    return list;
}

static void put_workers(struct block *block, uint64_t mask, Ingot__Ipc__Model *out)
{
    out->workers = block->workers;
    for (; mask; mask &= mask - 1) {
        *block->workers++ = (uint32_t)__builtin_ctzll(mask);
        out->n_workers++;
    }
}

static void put_model(struct block *block, const struct sd_model *model)
{
    Ingot__Ipc__Model *out = block->models++;
    ingot__ipc__model__init(out);
    out->id = model->ref.id;
    out->generation = model->ref.generation;
    out->name = (char *)model->name;
    out->version = model->version;
    out->state = (Ingot__Ipc__ModelState)model->state;
    out->reason = (char *)model->reason;
    out->n_inputs = model->signature.n_inputs;
    out->inputs = put_infos(block, model->signature.inputs, model->signature.n_inputs);
    out->n_outputs = model->signature.n_outputs;
    out->outputs = put_infos(block, model->signature.outputs, model->signature.n_outputs);
    out->max_batch_size = model->signature.max_batch;
    out->batchable = model->signature.batchable;
    out->weights_bytes = model->signature.weights_bytes;
    out->queued = model->queued;
    out->latest = true; /* one version of each name is loaded: the highest */
    out->batches = model->batches;
    out->requests = model->requests;
    out->rows = model->rows;
    put_workers(block, model->ready, out);
    *block->model_list++ = out;
}

enum cm_err sd_table_make(const struct sd_models *models, uint64_t revision, bool settled,
                          struct sd_table *ret_table)
{
    size_t n_infos = 0, n_workers = 0, n = models->count;
    for (uint32_t i = 0; i < models->count; i++) {
        const struct sd_model *model = &models->items[i];
        n_infos += model->signature.n_inputs + model->signature.n_outputs;
        n_workers += (size_t)__builtin_popcountll(model->ready);
    }
    /* All counts are bounded by the tables' limits: no overflow. Largest alignment first. */
    size_t bytes = n * sizeof(Ingot__Ipc__Model) + n * sizeof(void *) +
                   n_infos * sizeof(Ingot__Ipc__TensorInfo) + n_infos * sizeof(void *) +
                   n_workers * sizeof(uint32_t);
    char *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        return CM_NOMEM;
    struct block block = {.models = (void *)memory};
    block.model_list = (void *)(block.models + n);
    block.infos = (void *)(block.model_list + n);
    block.info_list = (void *)(block.infos + n_infos);
    block.workers = (void *)(block.info_list + n_infos);

    *ret_table = (struct sd_table){.memory = memory};
    ingot__ipc__model_table__init(&ret_table->message);
    ret_table->message.revision = revision;
    ret_table->message.settled = settled;
    ret_table->message.n_models = n;
    ret_table->message.models = block.model_list;
    for (uint32_t i = 0; i < models->count; i++)
        put_model(&block, &models->items[i]);
    return CM_OK;
}

void sd_table_free(struct sd_table *table)
{
    free(table->memory);
    *table = (struct sd_table){0};
}

/* ---- ModelStatus ---- */

static enum cm_err take_info(const Ingot__Ipc__TensorInfo *in, struct cm_error *err,
                             struct sd_tensor_info *out)
{
    if (in->n_shape > CM_MAX_RANK || in->dtype > UINT8_MAX)
        return cm_fail(err, CM_INVALID, "a worker described a tensor with an impossible type");
    if (strlen(in->name) > SD_MAX_TENSOR_NAME)
        return cm_fail(err, CM_LIMIT, "a tensor's name is longer than %u bytes",
                       SD_MAX_TENSOR_NAME);
    out->dtype = (enum cm_dtype)in->dtype;
    out->shape.rank = (uint8_t)in->n_shape;
    for (size_t d = 0; d < in->n_shape; d++)
        out->shape.dims[d] = in->shape[d];
    out->name = strdup(in->name);
    return out->name ? CM_OK : cm_fail(err, CM_NOMEM, "no memory for a signature");
}

static enum cm_err take_infos(Ingot__Ipc__TensorInfo **list, size_t count, struct cm_error *err,
                              struct sd_tensor_info **infos, uint32_t *n_infos)
{
    if (count > CM_MAX_TENSORS)
        return cm_fail(err, CM_LIMIT, "%zu inputs or outputs; at most %u are supported", count,
                       CM_MAX_TENSORS);
    *infos = calloc(count ? count : 1, sizeof **infos);
    if (!*infos)
        return cm_fail(err, CM_NOMEM, "no memory for a signature");
    *n_infos = (uint32_t)count;
    enum cm_err code = CM_OK;
    for (size_t i = 0; code == CM_OK && i < count; i++)
        code = take_info(list[i], err, &(*infos)[i]);
    return code;
}

enum cm_err sd_signature_from(const Ingot__Ipc__ModelStatus *status, struct cm_error *err,
                              struct sd_signature *ret_signature)
{
    struct sd_signature signature = {.max_batch = status->max_batch_size,
                                     .batchable = status->batchable,
                                     .weights_bytes = status->weights_bytes};
    enum cm_err code =
        take_infos(status->inputs, status->n_inputs, err, &signature.inputs, &signature.n_inputs);
    if (code == CM_OK)
        code = take_infos(status->outputs, status->n_outputs, err, &signature.outputs,
                          &signature.n_outputs);
    if (code == CM_OK)
        code = sd_signature_check(&signature, err);
    if (code != CM_OK) {
        sd_signature_fini(&signature);
        return code;
    }
    *ret_signature = signature;
    return CM_OK;
}
