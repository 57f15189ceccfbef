/* Offline execution of a model file. Main thread, blocking. */
#include "deploy/ingot/offline.h"

#include "common/check.h"
#include "common/clock.h"
#include "deploy/ingot/explain.h"
#include "deploy/ingot/rundir.h"

#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(IG_TENSOR_ALIGN == WK_ALIGN, "tensors of files go to the engine as they are");

/* At least one byte, so that NULL always means failure. */
static void *aligned(size_t bytes)
{
    size_t room;
    if (!cm_size_align(bytes ? bytes : 1, WK_ALIGN, &room))
        return NULL;
    return aligned_alloc(WK_ALIGN, room);
}

/* The folder of the file, for what the model keeps beside it. */
static int open_folder(const char *path)
{
    char *copy = strdup(path);
    int folder = copy ? open(dirname(copy), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    free(copy);
    return folder;
}

static enum cm_err load(struct ig_offline *offline, const char *path, uint64_t disabled_passes,
                        struct cm_error *err)
{
    struct wk_load_options how = WK_LOAD_DEFAULTS;
    how.directory = open_folder(path);
    how.disabled_passes = disabled_passes;
    enum cm_err code = wk_model_parse(offline->engine, offline->file, offline->file_length, &how,
                                      err, &offline->model);
    if (how.directory >= 0)
        close(how.directory);
    if (code != CM_OK)
        return code;
    size_t bytes = wk_model_weights_bytes(offline->model);
    offline->weights = aligned(bytes);
    if (!offline->weights)
        return cm_fail(err, CM_NOMEM, "no memory for %zu bytes of weights", bytes);
    code = wk_model_pack(offline->model, offline->weights, err);
    return code == CM_OK ? wk_model_attach(offline->model, offline->weights, err) : code;
}

enum cm_err ig_offline_open(const char *path, const struct wk_engine_options *options,
                            uint64_t disabled_passes, struct cm_error *err,
                            struct ig_offline *ret_offline)
{
    struct ig_offline offline = {0};
    struct cm_error why = {0};
    enum cm_err code =
        ig_read_file(path, IG_MODEL_FILE_MAX, err, &offline.file, &offline.file_length);
    if (code == CM_OK)
        code = wk_engine_create(options, err, &offline.engine);
    if (code == CM_OK) {
        code = load(&offline, path, disabled_passes, &why);
        if (code != CM_OK)
            cm_fail(err, code, "%.200s: %s", path, why.text);
    }
    if (code != CM_OK) {
        ig_offline_close(&offline);
        return code;
    }
    *ret_offline = offline;
    return CM_OK;
}

void ig_offline_close(struct ig_offline *offline)
{
    wk_model_destroy(offline->model);
    wk_engine_destroy(offline->engine);
    free(offline->weights);
    free(offline->file);
    memset(offline, 0, sizeof *offline);
}

static enum cm_err check_inputs(const struct wk_signature *signature,
                                const struct ig_tensor *inputs, struct cm_error *err)
{
    for (unsigned i = 0; i < signature->n_inputs; i++)
        if (inputs[i].dtype != signature->inputs[i].dtype)
            return cm_fail(err, CM_INVALID, "input '%s' is %s; the model wants %s",
                           signature->inputs[i].name, cm_dtype_name(inputs[i].dtype),
                           cm_dtype_name(signature->inputs[i].dtype));
    return CM_OK;
}

static enum cm_err make_outputs(const struct wk_signature *signature, const struct wk_plan *plan,
                                struct cm_error *err, struct ig_tensor *outputs)
{
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        if (!wk_plan_output_is_settled(plan, i))
            continue; /* take_outputs */
        enum cm_err code = ig_tensor_init(&outputs[i], wk_plan_output_dtype(plan, i),
                                          wk_plan_output_shape(plan, i), err);
        if (code != CM_OK)
            return code;
        memcpy(outputs[i].name, signature->outputs[i].name, sizeof outputs[i].name);
    }
    return CM_OK;
}

/* After a run: outputs whose shape the data has decided. */
static enum cm_err take_outputs(const struct wk_signature *signature, const struct wk_plan *plan,
                                struct cm_error *err, struct ig_tensor *outputs)
{
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        size_t bytes = 0;
        if (wk_plan_output_is_settled(plan, i))
            continue;
        const struct cm_shape *shape = wk_plan_output_shape(plan, i);
        enum cm_dtype dtype = wk_plan_output_dtype(plan, i);
        enum cm_err code = ig_tensor_init(&outputs[i], dtype, shape, err);
        if (code == CM_OK)
            code = cm_shape_bytes(shape, dtype, &bytes);
        if (code != CM_OK)
            return code;
        if (bytes)
            memcpy(outputs[i].data, wk_plan_output_data(plan, i), bytes);
        memcpy(outputs[i].name, signature->outputs[i].name, sizeof outputs[i].name);
    }
    return CM_OK;
}

_Static_assert(sizeof((struct ig_tensor *)0)->name == WK_MAX_NAME, "names are copied whole");

/* Runs whose nodes are timed: the last ones, so that memory stays small and caches are warm. */
#define TIMED_RUNS 1000

static enum cm_err execute(struct wk_plan *plan, const struct wk_signature *signature,
                           const struct ig_tensor *inputs, struct ig_tensor *outputs, size_t repeat,
                           uint64_t *times_ns, json_t **ret_plan, struct cm_error *err)
{
    const void *from[WK_MAX_IO] = {0};
    void *to[WK_MAX_IO] = {0};
    for (unsigned i = 0; i < signature->n_inputs; i++)
        from[i] = inputs[i].data;
    for (unsigned i = 0; i < signature->n_outputs; i++)
        to[i] = outputs[i].data;
    size_t rows = repeat < TIMED_RUNS ? repeat : TIMED_RUNS, nodes = wk_plan_nodes(plan);
    uint64_t *node_ns = ret_plan ? calloc(rows * nodes + 1, sizeof *node_ns) : NULL;
    void *scratch = aligned(wk_plan_scratch_bytes(plan));
    enum cm_err code = CM_OK;
    if (!scratch || (ret_plan && !node_ns))
        code = cm_fail(err, CM_NOMEM, "no memory for %zu bytes of scratch",
                       wk_plan_scratch_bytes(plan));
    for (size_t i = 0; i < repeat && code == CM_OK; i++) {
        if (node_ns && repeat - i <= rows)
            wk_plan_time_nodes(plan, node_ns + (rows - (repeat - i)) * nodes);
        uint64_t start_ns = cm_now_ns();
        code = wk_plan_run(plan, from, to, scratch, err);
        if (times_ns)
            times_ns[i] = cm_now_ns() - start_ns;
    }
    wk_plan_time_nodes(plan, NULL);
    if (code == CM_OK) /* now: they may lie in scratch */
        code = take_outputs(signature, plan, err, outputs);
    if (ret_plan && code == CM_OK)
        *ret_plan = ig_explain_json(plan, node_ns, rows);
    free(node_ns);
    free(scratch);
    return code;
}

enum cm_err ig_offline_run(struct ig_offline *offline, const struct ig_tensor *inputs,
                           size_t repeat, uint64_t *times_ns, json_t **ret_plan,
                           struct cm_error *err, struct ig_tensor *ret_outputs)
{
    const struct wk_signature *signature = wk_model_signature(offline->model);
    struct cm_shape shapes[WK_MAX_IO];
    struct ig_tensor outputs[WK_MAX_IO] = {0};
    struct wk_plan *plan = NULL;
    enum cm_err code = check_inputs(signature, inputs, err);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < signature->n_inputs; i++)
        shapes[i] = inputs[i].shape;
    code = wk_plan_create(offline->model, shapes, err, &plan);
    if (code == CM_OK)
        code = make_outputs(signature, plan, err, outputs);
    if (code == CM_OK)
        code = execute(plan, signature, inputs, outputs, repeat, times_ns, ret_plan, err);
    wk_plan_destroy(plan);
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        if (code == CM_OK)
            ret_outputs[i] = outputs[i];
        else
            ig_tensor_fini(&outputs[i]);
    }
    return code;
}
