/* The engine as a fuzz target: any bytes as a model file; what loads is planned and run.
 *
 * Defines LLVMFuzzerTestOneInput, so that clang's libFuzzer can drive it:
 *     clang -g -fsanitize=fuzzer,address,undefined -I. -Ibuild/asan tests/engine/fuzz_model.c ...
 * fuzz_test.c drives it with a fixed number of repeatable mutations. Never fails by itself: a
 * crash, a sanitizer report or a guard byte is the finding. */
#include "tests/engine/fuzz_model.h"

#include "gpu-worker/engine.h"
#include "tests/engine/kit.h"

#include <stdlib.h>
#include <string.h>

/* A model may ask for gigabytes and get them; a fuzzer's time is better spent elsewhere. */
#define MAX_WEIGHTS ((size_t)4 << 20)
#define MAX_SCRATCH ((size_t)4 << 20)
#define MAX_TENSOR  ((size_t)1 << 20)

static void run(struct wk_plan *plan, const struct wk_signature *s, const struct cm_shape *shapes)
{
    void *in[WK_MAX_IO] = {NULL}, *out[WK_MAX_IO] = {NULL};
    bool small = wk_plan_scratch_bytes(plan) <= MAX_SCRATCH;
    struct cm_error err;
    size_t bytes = 0;
    for (unsigned i = 0; i < s->n_inputs && small; i++) {
        small =
            cm_shape_bytes(&shapes[i], s->inputs[i].dtype, &bytes) == CM_OK && bytes <= MAX_TENSOR;
        if (small)
            in[i] = kit_guarded(bytes);
    }
    for (unsigned i = 0; i < s->n_outputs && small; i++) {
        small = cm_shape_bytes(wk_plan_output_shape(plan, i), wk_plan_output_dtype(plan, i),
                               &bytes) == CM_OK &&
                bytes <= MAX_TENSOR;
        if (small)
            out[i] = kit_guarded(bytes);
    }
    if (small) {
        void *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
        (void)!wk_plan_run(plan, (const void *const *)in, out, scratch, &err);
        kit_check_guards(scratch);
        kit_guarded_free(scratch);
    }
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        if (in[i]) {
            kit_check_guards(in[i]);
            kit_guarded_free(in[i]);
        }
        if (out[i]) {
            kit_check_guards(out[i]);
            kit_guarded_free(out[i]);
        }
    }
}

static void plan_and_run(struct wk_model *model, int64_t free_dim)
{
    const struct wk_signature *s = wk_model_signature(model);
    struct cm_shape shapes[WK_MAX_IO];
    struct wk_plan *plan = NULL;
    struct cm_error err;
    for (unsigned i = 0; i < s->n_inputs; i++) {
        shapes[i] = s->inputs[i].shape;
        for (unsigned k = 0; k < shapes[i].rank; k++)
            if (shapes[i].dims[k] < 0)
                shapes[i].dims[k] = k == 0 ? 2 : free_dim;
    }
    if (wk_plan_create(model, shapes, &err, &plan) == CM_OK)
        run(plan, s, shapes);
    wk_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct wk_engine *engine;
    struct wk_model *model = NULL;
    struct cm_error err;
    int result = 0;
    if (!engine)
        engine = kit_engine(1, NULL);
    if (wk_model_parse(engine, data, size, &err, &model) != CM_OK)
        return 0;
    if (wk_model_weights_bytes(model) <= MAX_WEIGHTS) {
        void *weights = kit_guarded(wk_model_weights_bytes(model));
        if (wk_model_pack(model, weights, &err) == CM_OK &&
            wk_model_attach(model, weights, &err) == CM_OK) {
            plan_and_run(model, 1);
            plan_and_run(model, 16);
            result = 1;
        }
        kit_check_guards(weights);
        wk_model_destroy(model);
        kit_guarded_free(weights);
    } else {
        wk_model_destroy(model);
    }
    return result;
}
