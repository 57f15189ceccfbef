#include "tests/gateway/models_kit.h"

#include "tests/harness/t.h"

#include <string.h>

const struct kit_model kit_pair = {
    .name = "pair",
    .version = 3,
    .state = INGOT__IPC__MODEL_STATE__MODEL_READY,
    .latest = true,
    .batchable = true,
    .max_batch_size = 8,
    .id = 5,
    .n_workers = 1,
    .n_inputs = 2,
    .n_outputs = 2,
    .inputs = {{"image", CM_FP32, 4, {-1, 1, 8, 8}}, {"mask", CM_INT64, 2, {-1, -1}}},
    .outputs = {{"scores", CM_FP32, 2, {-1, 10}}, {"label", CM_INT64, 1, {-1}}},
};

#define MODELS 16

struct built {
    Ingot__Ipc__Model model, *pointer;
    Ingot__Ipc__TensorInfo infos[6], *pointers[6];
    uint32_t workers[8];
};

static void build_tensor(const struct kit_tensor *from, Ingot__Ipc__TensorInfo *to)
{
    ingot__ipc__tensor_info__init(to);
    to->name = (char *)(uintptr_t)from->name;
    to->dtype = from->dtype;
    to->n_shape = from->rank;
    to->shape = (int64_t *)(uintptr_t)from->dims;
}

static void build_model(const struct kit_model *from, struct built *to)
{
    ingot__ipc__model__init(&to->model);
    to->pointer = &to->model;
    to->model.id = from->id;
    to->model.generation = 1;
    to->model.name = (char *)(uintptr_t)from->name;
    to->model.version = from->version;
    to->model.state = (Ingot__Ipc__ModelState)from->state;
    to->model.reason = (char *)(uintptr_t)(from->reason ? from->reason : "");
    to->model.latest = from->latest;
    to->model.batchable = from->batchable;
    to->model.max_batch_size = from->max_batch_size;
    to->model.n_workers = from->n_workers;
    to->model.workers = to->workers;
    for (unsigned i = 0; i < 6; i++) {
        build_tensor(i < 3 ? &from->inputs[i] : &from->outputs[i - 3], &to->infos[i]);
        to->pointers[i] = &to->infos[i];
    }
    to->model.n_inputs = from->n_inputs;
    to->model.inputs = to->pointers;
    to->model.n_outputs = from->n_outputs;
    to->model.outputs = to->pointers + 3;
}

enum cm_err kit_try_table(const struct kit_model *models, size_t count, uint64_t scheduler,
                          bool settled, const struct gw_models *previous, struct cm_error *err,
                          struct gw_models **ret_models)
{
    static uint64_t revision;
    struct built built[MODELS] = {0};
    Ingot__Ipc__Model *pointers[MODELS];
    Ingot__Ipc__ModelTable table = INGOT__IPC__MODEL_TABLE__INIT;
    assert_true(count <= MODELS);
    for (size_t i = 0; i < count; i++) {
        build_model(&models[i], &built[i]);
        pointers[i] = &built[i].model;
    }
    table.revision = ++revision;
    table.settled = settled;
    table.n_models = count;
    table.models = pointers;
    return gw_models_build(&table, scheduler, previous, err, ret_models);
}

struct gw_models *kit_table(const struct kit_model *models, size_t count, uint64_t scheduler,
                            bool settled, const struct gw_models *previous)
{
    struct gw_models *table = NULL;
    struct cm_error error = {.text = ""};
    if (kit_try_table(models, count, scheduler, settled, previous, &error, &table) != CM_OK)
        fail_msg("%s", error.text);
    return table;
}

struct gw_model *kit_find(const struct gw_models *models, const char *name, const char *version)
{
    struct gw_model *model = NULL;
    enum cm_err code =
        gw_models_find(models, name, strlen(name), version, strlen(version), NULL, &model);
    return code == CM_OK ? model : NULL;
}
