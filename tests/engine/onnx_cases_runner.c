/* Runs ONNX test case folders through the engine and compares with their reference outputs.
 *
 *     onnx_cases_runner FOLDER...     each with model.onnx and test_data_set_N/{input,output}_K.pb
 *     onnx_cases_runner --ops         the operator table
 *
 * Prints one line per folder: "pass NAME", "refused NAME: why" (the loader or the planner said no,
 * with a sentence) or "fail NAME: what differs". Exits 1 if any failed. Floats may differ by the
 * tolerance of ONNX's own runner, everything else must be equal. */
#include "gpu-worker/engine.h"
#include "proto/onnx.pb-c.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RTOL 1e-3
#define ATOL 1e-7

/* A tensor read from a .pb file. */
struct tensor {
    enum cm_dtype dtype;
    struct cm_shape shape;
    size_t bytes;
    void *data; /* WK_ALIGN aligned */
};

static void *take_aligned(size_t bytes)
{
    void *memory = aligned_alloc(WK_ALIGN, (bytes / WK_ALIGN + 1) * WK_ALIGN);
    if (!memory)
        abort();
    return memset(memory, 0, bytes);
}

static void *read_file(const char *path, size_t *ret_length)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    void *bytes = malloc((size_t)length + 1);
    if (!bytes || fread(bytes, 1, (size_t)length, file) != (size_t)length)
        abort();
    fclose(file);
    *ret_length = (size_t)length;
    return bytes;
}

/* numpy writes raw data for every type that the engine has. */
static bool read_tensor(const char *path, struct tensor *ret)
{
    size_t length;
    uint8_t *bytes = read_file(path, &length);
    if (!bytes)
        return false;
    Onnx__TensorProto *proto = onnx__tensor_proto__unpack(NULL, length, bytes);
    free(bytes);
    if (!proto || proto->n_dims > CM_MAX_RANK)
        return false;
    *ret = (struct tensor){.dtype = cm_dtype_from_onnx(proto->data_type),
                           .shape = {.rank = (uint8_t)proto->n_dims}};
    for (size_t i = 0; i < proto->n_dims; i++)
        ret->shape.dims[i] = proto->dims[i];
    bool fine = cm_shape_bytes(&ret->shape, ret->dtype, &ret->bytes) == CM_OK &&
                proto->raw_data.len == ret->bytes;
    if (fine) {
        ret->data = take_aligned(ret->bytes);
        if (ret->bytes)
            memcpy(ret->data, proto->raw_data.data, ret->bytes);
    }
    onnx__tensor_proto__free_unpacked(proto, NULL);
    return fine;
}

static double element(const struct tensor *t, const void *data, size_t i)
{
    return t->dtype == CM_FP32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static bool same(const struct tensor *want, const void *got, char *what, size_t what_size)
{
    if (want->dtype != CM_FP32 && want->dtype != CM_FP64) {
        snprintf(what, what_size, "%s bytes differ", cm_dtype_name(want->dtype));
        return memcmp(want->data, got, want->bytes) == 0;
    }
    for (size_t i = 0; i < want->bytes / cm_dtype_size(want->dtype); i++) {
        double a = element(want, want->data, i), b = element(want, got, i);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        if (!(fabs(a - b) <= ATOL + RTOL * fabs(a))) {
            snprintf(what, what_size, "element %zu is %.9g, the reference %.9g", i, b, a);
            return false;
        }
    }
    return true;
}

enum verdict { PASS, REFUSED, FAIL };

/* FOLDER/KIND_I.pb as a tensor; false, with a sentence, if there is none. */
static bool read_numbered(const char *folder, const char *kind, unsigned i, struct tensor *ret,
                          char *what, size_t size)
{
    char path[1200];
    int length = snprintf(path, sizeof path, "%s/%s_%u.pb", folder, kind, i);
    if (length > 0 && (size_t)length < sizeof path && read_tensor(path, ret))
        return true;
    snprintf(what, size, "cannot read %s", path);
    return false;
}

static bool fits(const struct wk_plan *plan, unsigned i, const struct tensor *want, char *what,
                 size_t size)
{
    bool fine = cm_shape_equal(wk_plan_output_shape(plan, i), &want->shape) &&
                wk_plan_output_dtype(plan, i) == want->dtype;
    if (!fine)
        snprintf(what, size, "output %u has another shape or type", i);
    return fine;
}

static enum verdict run_set(struct wk_model *model, const char *folder, char *what, size_t size)
{
    const struct wk_signature *signature = wk_model_signature(model);
    struct tensor in[WK_MAX_IO] = {{0}}, want[WK_MAX_IO] = {{0}};
    struct cm_shape shapes[WK_MAX_IO];
    const void *inputs[WK_MAX_IO];
    void *outputs[WK_MAX_IO] = {NULL}, *scratch = NULL;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    enum verdict verdict = FAIL;
    for (unsigned i = 0; i < signature->n_inputs; i++) {
        if (!read_numbered(folder, "input", i, &in[i], what, size))
            goto out;
        shapes[i] = in[i].shape;
        inputs[i] = in[i].data;
    }
    if (wk_plan_create(model, shapes, &err, &plan) != CM_OK) {
        snprintf(what, size, "%s", err.text);
        verdict = REFUSED;
        goto out;
    }
    scratch = take_aligned(wk_plan_scratch_bytes(plan));
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        if (!read_numbered(folder, "output", i, &want[i], what, size))
            goto out;
        if (!wk_plan_output_is_settled(plan, i))
            continue;
        if (!fits(plan, i, &want[i], what, size))
            goto out;
        outputs[i] = take_aligned(want[i].bytes);
    }
    if (wk_plan_run(plan, inputs, outputs, scratch, &err) != CM_OK) {
        snprintf(what, size, "%s", err.text);
        goto out;
    }
    verdict = PASS;
    for (unsigned i = 0; i < signature->n_outputs && verdict == PASS; i++) {
        const void *got = outputs[i] ? outputs[i] : wk_plan_output_data(plan, i);
        if (!fits(plan, i, &want[i], what, size) || !same(&want[i], got, what, size))
            verdict = FAIL;
    }
out:
    wk_plan_destroy(plan);
    free(scratch);
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        free(in[i].data);
        free(want[i].data);
        free(outputs[i]);
    }
    return verdict;
}

static enum verdict run_case(struct wk_engine *engine, const char *folder, char *what, size_t size)
{
    char path[1024];
    size_t length = 0;
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    enum verdict verdict = PASS;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    void *bytes = read_file(path, &length);
    if (!bytes) {
        snprintf(what, size, "cannot read %s", path);
        return FAIL;
    }
    enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (code != CM_OK) {
        free(bytes);
        snprintf(what, size, "%s", err.text);
        return REFUSED;
    }
    void *weights = take_aligned(wk_model_weights_bytes(model));
    if (wk_model_pack(model, weights, &err) != CM_OK ||
        wk_model_attach(model, weights, &err) != CM_OK) {
        snprintf(what, size, "%s", err.text);
        verdict = FAIL;
    }
    free(bytes); /* nothing may look at the file from here on */
    for (unsigned set = 0; verdict == PASS; set++) {
        snprintf(path, sizeof path, "%s/test_data_set_%u", folder, set);
        char probe[1100];
        snprintf(probe, sizeof probe, "%s/output_0.pb", path);
        FILE *file = fopen(probe, "rb");
        if (!file)
            break;
        fclose(file);
        verdict = run_set(model, path, what, size);
    }
    wk_model_destroy(model);
    free(weights);
    return verdict;
}

int main(int argc, char **argv)
{
    static const char *const words[] = {"pass", "refused", "fail"};
    struct wk_engine_options options = {.threads = 2};
    struct wk_engine *engine = NULL;
    struct cm_error err = {0};
    bool failed = false;
    if (argc == 2 && strcmp(argv[1], "--ops") == 0) {
        fputs(wk_engine_ops_text(), stdout);
        return 0;
    }
    if (wk_engine_create(&options, &err, &engine) != CM_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        char what[2048] = "";
        enum verdict verdict = run_case(engine, argv[i], what, sizeof what);
        const char *slash = strrchr(argv[i], '/');
        printf("%s %s%s%s\n", words[verdict], slash ? slash + 1 : argv[i], what[0] ? ": " : "",
               what);
        failed |= verdict == FAIL;
    }
    wk_engine_destroy(engine);
    return failed;
}
