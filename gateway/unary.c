/* The Open Inference Protocol's small calls. Queue thread. */
#include "gateway/gw_priv.h"

#include "proto/inference.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* Packs and answers; the message is small by construction. */
static void answer(struct gw_call *call, const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes) {
        gw_call_failf(call, CM_NOMEM, "no memory for the answer");
        return;
    }
    protobuf_c_message_pack(message, bytes);
    gw_call_answer(call, bytes, length);
    free(bytes);
}

static void malformed(struct gw_call *call)
{
    gw_call_failf(call, CM_INVALID, "malformed protobuf");
}

/* For messages without fields: what came is dropped, but it must have been a message. */
static bool well_formed(struct gw_call *call, ProtobufCMessage *message)
{
    if (!message) {
        malformed(call);
        return false;
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return true;
}

void gw_server_live(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    if (!well_formed(call, (void *)inference__server_live_request__unpack(NULL, length, bytes)))
        return;
    Inference__ServerLiveResponse message = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
    message.live = true;
    answer(call, &message.base);
}

void gw_server_ready(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    if (!well_formed(call, (void *)inference__server_ready_request__unpack(NULL, length, bytes)))
        return;
    Inference__ServerReadyResponse message = INFERENCE__SERVER_READY_RESPONSE__INIT;
    message.ready = atomic_load_explicit(&call->gw->ready, memory_order_relaxed);
    answer(call, &message.base);
}

void gw_model_ready(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    Inference__ModelReadyRequest *request =
        inference__model_ready_request__unpack(NULL, length, bytes);
    if (!request) {
        malformed(call);
        return;
    }
    struct gw_models *models = gw_models_now(call->gw);
    struct gw_model *model = NULL;
    struct cm_error error;
    enum cm_err code = gw_models_find(models, request->name, strlen(request->name),
                                      request->version, strlen(request->version), &error, &model);
    Inference__ModelReadyResponse message = INFERENCE__MODEL_READY_RESPONSE__INIT;
    if (code == CM_OK) {
        message.ready = model->state == GW_MODEL_READY && model->n_workers > 0;
        answer(call, &message.base);
    } else {
        gw_call_fail(call, &error);
    }
    gw_models_unref(models);
    inference__model_ready_request__free_unpacked(request, NULL);
}

void gw_server_metadata(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    if (!well_formed(call, (void *)inference__server_metadata_request__unpack(NULL, length, bytes)))
        return;
    /* Clients act on this list: only what is there. */
    char *extensions[] = {(char *)(uintptr_t) "binary_tensor_data"};
    Inference__ServerMetadataResponse message = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
    message.name = (char *)(uintptr_t) "ingot";
    message.version = (char *)(uintptr_t)INGOT_VERSION;
    message.n_extensions = 1;
    message.extensions = extensions;
    answer(call, &message.base);
}

typedef Inference__ModelMetadataResponse__TensorMetadata tensor_metadata;

struct described {
    tensor_metadata tensors[2 * CM_MAX_TENSORS], *pointers[2 * CM_MAX_TENSORS];
};

static void describe(const struct gw_tensor_info *infos, size_t count, struct described *ret,
                     size_t at)
{
    for (size_t i = 0; i < count; i++) {
        tensor_metadata *to = &ret->tensors[at + i];
        inference__model_metadata_response__tensor_metadata__init(to);
        to->name = (char *)(uintptr_t)infos[i].name;
        to->datatype = (char *)(uintptr_t)cm_dtype_name(infos[i].dtype);
        to->n_shape = infos[i].shape.rank;
        to->shape = (int64_t *)(uintptr_t)infos[i].shape.dims;
        ret->pointers[at + i] = to;
    }
}

static void answer_metadata(struct gw_call *call, const struct gw_models *models,
                            const struct gw_model *model)
{
    struct described described;
    Inference__ModelMetadataResponse message = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    char **versions = calloc(models->count, sizeof *versions);
    if (!versions) {
        gw_call_failf(call, CM_NOMEM, "no memory for the answer");
        return;
    }
    for (uint32_t i = 0; i < models->count; i++)
        if (strcmp(models->models[i]->name, model->name) == 0 &&
            models->models[i]->state == GW_MODEL_READY)
            versions[message.n_versions++] = models->models[i]->version_text;
    describe(model->inputs, model->n_inputs, &described, 0);
    describe(model->outputs, model->n_outputs, &described, CM_MAX_TENSORS);
    message.name = (char *)(uintptr_t)model->name;
    message.versions = versions;
    message.platform = (char *)(uintptr_t) "onnx_onnxv1";
    message.n_inputs = model->n_inputs;
    message.inputs = described.pointers;
    message.n_outputs = model->n_outputs;
    message.outputs = described.pointers + CM_MAX_TENSORS;
    answer(call, &message.base);
    free(versions);
}

void gw_model_metadata(struct gw_call *call, const uint8_t *bytes, size_t length)
{
    Inference__ModelMetadataRequest *request =
        inference__model_metadata_request__unpack(NULL, length, bytes);
    if (!request) {
        malformed(call);
        return;
    }
    struct gw_models *models = gw_models_now(call->gw);
    struct gw_model *model = NULL;
    struct cm_error error;
    enum cm_err code = gw_models_find(models, request->name, strlen(request->name),
                                      request->version, strlen(request->version), &error, &model);
    if (code == CM_OK)
        code = gw_model_usable(model, &error);
    if (code == CM_OK)
        answer_metadata(call, models, model);
    else
        gw_call_fail(call, &error);
    gw_models_unref(models);
    inference__model_metadata_request__free_unpacked(request, NULL);
}
