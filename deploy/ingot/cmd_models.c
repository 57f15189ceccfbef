/* `ingot models`: what the scheduler knows about the models. Main thread. */
#include "common/tensor.h"
#include "deploy/ingot/on_cluster.h"

#include <string.h>

#define BOUND_MS 5000

static void print_tensors(const char *what, Ingot__Ipc__TensorInfo *const *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char text[256];
        struct cm_shape shape = {0};
        for (size_t j = 0; j < tensors[i]->n_shape && j < CM_MAX_RANK; j++)
            shape.dims[shape.rank++] = tensors[i]->shape[j];
        printf("    %-7s %s %s %s\n", what, tensors[i]->name,
               cm_dtype_name((enum cm_dtype)tensors[i]->dtype),
               cm_shape_format(&shape, text, sizeof text));
    }
}

static void print_model(const Ingot__Ipc__Model *model)
{
    printf("%s version %u%s: %s", model->name, model->version, model->latest ? " (latest)" : "",
           ig_model_state_name(model->state));
    if (model->n_workers > 0)
        printf(" on worker%s", model->n_workers > 1 ? "s" : "");
    for (size_t i = 0; i < model->n_workers; i++)
        printf(" %u", model->workers[i]);
    printf("\n");
    if (*model->reason)
        printf("    reason  %s\n", model->reason);
    if (model->state != INGOT__IPC__MODEL_STATE__MODEL_READY)
        return;
    printf("    batch   up to %u rows%s\n", model->max_batch_size,
           model->batchable ? "" : " (rows of different requests never share a run)");
    printf("    weights %llu bytes\n", (unsigned long long)model->weights_bytes);
    printf("    served  %llu requests, %llu rows in %llu batches, %u queued\n",
           (unsigned long long)model->requests, (unsigned long long)model->rows,
           (unsigned long long)model->batches, model->queued);
    print_tensors("input", model->inputs, model->n_inputs);
    print_tensors("output", model->outputs, model->n_outputs);
}

static void print_json(const Ingot__Ipc__ModelTable *table)
{
    json_t *models = json_array();
    for (size_t i = 0; i < table->n_models; i++)
        json_array_append_new(models, ig_model_json(table->models[i]));
    json_t *root = json_pack("{s:I, s:b, s:o}", "revision", (json_int_t)table->revision, "settled",
                             table->settled, "models", models);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

static enum cm_err ask(const char *run_dir, struct cm_error *err, Ingot__Ipc__Envelope **ret_answer)
{
    return ig_cluster_models(run_dir, BOUND_MS, err, ret_answer);
}

static int show(const struct ig_command *command, const char *run_dir, bool json)
{
    Ingot__Ipc__Envelope *answer = NULL;
    int code = ig_on_cluster_ask(command, run_dir, ask, &answer);
    if (code != IG_EXIT_OK)
        return code;
    const Ingot__Ipc__ModelTable *table = answer->model_table;
    if (json)
        print_json(table);
    for (size_t i = 0; i < table->n_models && !json; i++)
        print_model(table->models[i]);
    if (table->n_models == 0 && !json)
        printf("no models\n");
    ingot__ipc__envelope__free_unpacked(answer, NULL);
    return IG_EXIT_OK;
}

static int run_models(const struct ig_command *command, int argc, char **argv)
{
    return ig_on_cluster(command, argc, argv, show);
}

const struct ig_command ig_command_models = {
    .name = "models",
    .summary = "list the models: versions, workers, inputs and outputs",
    .synopsis = "[--run-dir DIR] [--json]",
    .description = "Lists every version of every model with its state, the workers that have it "
                   "ready, its largest batch, the bytes of its weights, what it has served, and "
                   "its inputs and outputs. A dimension of -1 is free.",
    .options = ig_on_cluster_options,
    .files = "RUN-DIR/bus\tThe control bus, over which the scheduler is asked.",
    .exit_codes =
        IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE) | IG_EXIT_BIT(NO_CLUSTER),
    .example = " $ ingot models\n"
               " digits version 1 (latest): ready on workers 0 1\n"
               "     batch   up to 32 rows\n"
               "     weights 155008 bytes\n"
               "     served  10 requests, 10 rows in 10 batches, 0 queued\n"
               "     input   image FP32 [-1,1,8,8]\n"
               "     output  probabilities FP32 [-1,10]",
    .run = run_models,
};
