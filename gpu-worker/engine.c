/* The public face of the engine (engine.h): an engine is a backend, a model is a graph with its
 * weights. The owner's thread; no processes, no sockets, no logging. */
#include "gpu-worker/engine.h"

#include "common/check.h"
#include "gpu-worker/graph/batch.h"
#include "gpu-worker/graph/external.h"
#include "gpu-worker/graph/passes/passes.h"
#include "gpu-worker/graph/plan.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wk_engine {
    struct wk_backend *backend;
    enum wk_isa isa;
};

struct wk_model {
    struct wk_engine *engine;
    struct wk_graph graph;
    struct wk_weights weights;
    struct wk_signature signature;
    uint8_t key[32];
    const void *base; /* packed weights, once attached */
    bool attached;
};

enum cm_err wk_engine_create(const struct wk_engine_options *options, struct cm_error *err,
                             struct wk_engine **ret_engine)
{
    struct wk_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return cm_fail(err, CM_NOMEM, "out of memory");
    enum cm_err code = wk_cpu_backend_create(options, err, &engine->backend, &engine->isa);
    if (code != CM_OK) {
        free(engine);
        return code;
    }
    *ret_engine = engine;
    return CM_OK;
}

void wk_engine_destroy(struct wk_engine *engine)
{
    if (!engine)
        return;
    engine->backend->ops->destroy(engine->backend);
    free(engine);
}

enum wk_isa wk_engine_isa(const struct wk_engine *engine)
{
    return engine->isa;
}

const char *wk_engine_ops_text(void)
{
    return wk_ops_text();
}

/* ---- models ---------------------------------------------------------------------------------- */

static struct cm_shape public_shape(const struct cm_shape *shape)
{
    struct cm_shape out = *shape;
    for (unsigned i = 0; i < out.rank; i++)
        if (out.dims[i] < 0)
            out.dims[i] = -1;
    return out;
}

static enum cm_err fill_signature(struct wk_model *model, struct cm_error *err)
{
    struct wk_signature *signature = &model->signature;
    const struct wk_graph *graph = &model->graph;
    char name[96];
    signature->n_inputs = graph->n_inputs;
    signature->n_outputs = graph->n_outputs;
    for (unsigned i = 0; i < graph->n_inputs; i++)
        signature->inputs[i] = graph->input_info[i];
    for (unsigned i = 0; i < graph->n_outputs; i++) {
        const struct wk_fact *fact = &graph->facts[graph->outputs[i]];
        signature->outputs[i] = graph->output_info[i];
        /* The declared shape is a comment; what the graph computes is the truth, where it is known
         * before the run. */
        if (!fact->unranked)
            signature->outputs[i].shape = public_shape(&fact->shape);
        if (fact->dtype != CM_DTYPE_NONE && fact->dtype != graph->output_info[i].dtype)
            return cm_fail(err, CM_INVALID, "output \"%s\" is declared as %s but is %s",
                           wk_printable(graph->output_info[i].name, name, sizeof name),
                           cm_dtype_name(graph->output_info[i].dtype), cm_dtype_name(fact->dtype));
    }
    signature->batchable = wk_batch_proven(graph, signature->why_not, sizeof signature->why_not);
    return CM_OK;
}

/* Equal keys must mean equal packed bytes: the file, the files beside it, the passes that made
 * constants of them, the backend and its packing decide them. The model's bytes come with their
 * length, so that no byte of one part can pass as another's. */
static enum cm_err make_key(struct wk_model *model, const void *bytes, size_t length,
                            uint64_t disabled, struct cm_error *err)
{
    const struct wk_backend_ops *ops = model->engine->backend->ops;
    char tail[96];
    int tail_length = snprintf(tail, sizeof tail, "/%s/%u/%d/%llx", ops->name, ops->packing_version,
                               WK_PASSES_VERSION, (unsigned long long)disabled);
    uint8_t external[32];
    uint64_t file_bytes = length;
    enum cm_err code = wk_external_digest(model->graph.external, err, external);
    if (code != CM_OK)
        return code;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool fine = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) &&
                EVP_DigestUpdate(context, &file_bytes, sizeof file_bytes) &&
                EVP_DigestUpdate(context, bytes, length) &&
                EVP_DigestUpdate(context, external, sizeof external) &&
                EVP_DigestUpdate(context, tail, (size_t)tail_length) &&
                EVP_DigestFinal_ex(context, model->key, NULL);
    EVP_MD_CTX_free(context);
    return fine ? CM_OK : cm_fail(err, CM_NOMEM, "cannot compute a SHA-256");
}

enum cm_err wk_model_parse(struct wk_engine *engine, const void *bytes, size_t length,
                           const struct wk_load_options *options, struct cm_error *err,
                           struct wk_model **ret_model)
{
    const struct wk_load_options given = options ? *options : WK_LOAD_DEFAULTS;
    struct wk_model *model = calloc(1, sizeof *model);
    if (!model)
        return cm_fail(err, CM_NOMEM, "out of memory while loading a model");
    model->engine = engine;
    enum cm_err code = wk_graph_load(&model->graph, bytes, length, &given, err);
    if (code == CM_OK)
        code = wk_passes_run(&model->graph, engine->backend, given.disabled_passes, err);
    if (code == CM_OK)
        code = fill_signature(model, err);
    if (code == CM_OK)
        code = wk_weights_lay_out(engine->backend, &model->graph, err, &model->weights);
    if (code == CM_OK)
        code = make_key(model, bytes, length, given.disabled_passes, err);
    if (code == CM_OK)
        *ret_model = model;
    else
        wk_model_destroy(model);
    return code;
}

void wk_model_destroy(struct wk_model *model)
{
    if (!model)
        return;
    wk_weights_fini(&model->weights);
    wk_graph_fini(&model->graph);
    free(model);
}

const struct wk_signature *wk_model_signature(const struct wk_model *model)
{
    return &model->signature;
}

size_t wk_model_weights_bytes(const struct wk_model *model)
{
    return model->weights.bytes;
}

void wk_model_weights_key(const struct wk_model *model, uint8_t ret_key[32])
{
    memcpy(ret_key, model->key, sizeof model->key);
}

enum cm_err wk_model_pack(const struct wk_model *model, void *base, struct cm_error *err)
{
    if (model->attached)
        return cm_fail(err, CM_PRECONDITION, "a model is packed before it is attached");
    wk_weights_pack(&model->weights, model->engine->backend, &model->graph, base);
    return CM_OK;
}

enum cm_err wk_model_attach(struct wk_model *model, const void *base, struct cm_error *err)
{
    if (model->weights.bytes && (!base || (uintptr_t)base % WK_ALIGN != 0))
        return cm_fail(err, CM_INVALID, "packed weights must be aligned to %d bytes", WK_ALIGN);
    wk_graph_drop_proto(&model->graph);
    model->base = base;
    model->attached = true;
    return CM_OK;
}

enum cm_err wk_plan_create(struct wk_model *model, const struct cm_shape *inputs,
                           struct cm_error *err, struct wk_plan **ret_plan)
{
    if (!model->attached)
        return cm_fail(err, CM_PRECONDITION, "the model's weights are not attached");
    struct wk_fact facts[WK_MAX_IO] = {0};
    enum cm_err code = wk_plan_check_inputs(&model->graph, inputs, err, facts);
    if (code != CM_OK)
        return code;
    return wk_plan_build(model->engine->backend, &model->graph, model->base, facts, err, ret_plan);
}
