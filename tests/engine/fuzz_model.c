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

#define ROWS 3u

/* One plan with buffers for it. plan is NULL where the shapes do not fit or are too large. */
struct attempt {
    struct wk_plan *plan;
    void *in[WK_MAX_IO], *out[WK_MAX_IO], *scratch;
    size_t in_bytes[WK_MAX_IO], out_bytes[WK_MAX_IO];
    bool ran;
};

static bool take_buffers(struct attempt *a, const struct wk_signature *s,
                         const struct cm_shape *shapes)
{
    if (wk_plan_scratch_bytes(a->plan) > MAX_SCRATCH)
        return false;
    for (unsigned i = 0; i < s->n_inputs; i++) {
        if (cm_shape_bytes(&shapes[i], s->inputs[i].dtype, &a->in_bytes[i]) != CM_OK ||
            a->in_bytes[i] > MAX_TENSOR)
            return false;
        a->in[i] = kit_guarded(a->in_bytes[i]);
    }
    for (unsigned i = 0; i < s->n_outputs; i++) {
        if (cm_shape_bytes(wk_plan_output_shape(a->plan, i), wk_plan_output_dtype(a->plan, i),
                           &a->out_bytes[i]) != CM_OK ||
            a->out_bytes[i] > MAX_TENSOR)
            return false;
        a->out[i] = kit_guarded(a->out_bytes[i]);
    }
    a->scratch = kit_guarded(wk_plan_scratch_bytes(a->plan));
    return true;
}

/* Free dimensions become free_dim, the first one the batch. */
static bool begin(struct attempt *a, struct wk_model *model, int64_t batch, int64_t free_dim)
{
    const struct wk_signature *s = wk_model_signature(model);
    struct cm_shape shapes[WK_MAX_IO];
    struct cm_error err;
    *a = (struct attempt){0};
    for (unsigned i = 0; i < s->n_inputs; i++) {
        shapes[i] = s->inputs[i].shape;
        for (unsigned k = 0; k < shapes[i].rank; k++)
            if (shapes[i].dims[k] < 0)
                shapes[i].dims[k] = k == 0 ? batch : free_dim;
    }
    return wk_plan_create(model, shapes, &err, &a->plan) == CM_OK && take_buffers(a, s, shapes);
}

static void run(struct attempt *a)
{
    struct cm_error err;
    a->ran = wk_plan_run(a->plan, (const void *const *)a->in, a->out, a->scratch, &err) == CM_OK;
}

static void guard(void *memory)
{
    if (memory) {
        kit_check_guards(memory);
        kit_guarded_free(memory);
    }
}

static void end(struct attempt *a)
{
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        guard(a->in[i]);
        guard(a->out[i]);
    }
    guard(a->scratch);
    wk_plan_destroy(a->plan);
}

/* Floats in [-1, 1); other types 0 or 1. Every row is different. */
static void fill(struct attempt *a, const struct wk_signature *s)
{
    uint64_t random = 5;
    for (unsigned i = 0; i < s->n_inputs; i++) {
        size_t element = cm_dtype_size(s->inputs[i].dtype);
        for (size_t k = 0; k < a->in_bytes[i] / element; k++) {
            float f = kit_float(&random);
            int64_t n = f > 0;
            memcpy((char *)a->in[i] + k * element,
                   s->inputs[i].dtype == CM_FP32 ? (const void *)&f : &n, element);
        }
    }
}

/* Equal, but for the payloads of NaNs, which no kernel promises. */
static bool same_bytes(enum cm_dtype dtype, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) == 0)
        return true;
    for (size_t i = 0; dtype == CM_FP32 && i < bytes / sizeof(float); i++) {
        float x, y;
        memcpy(&x, (const char *)a + i * sizeof x, sizeof x);
        memcpy(&y, (const char *)b + i * sizeof y, sizeof y);
        if (memcmp(&x, &y, sizeof x) != 0 && !(x != x && y != y))
            return false;
    }
    return dtype == CM_FP32;
}

/* The batch proof said yes: rows alone must give what they gave in the batch, whatever the model.
 */
static void check_rows(struct wk_model *model, const struct attempt *batch, int64_t free_dim)
{
    const struct wk_signature *s = wk_model_signature(model);
    for (unsigned row = 0; row < ROWS; row++) {
        struct attempt one;
        if (begin(&one, model, 1, free_dim)) {
            for (unsigned i = 0; i < s->n_inputs; i++)
                memcpy(one.in[i], (char *)batch->in[i] + row * one.in_bytes[i], one.in_bytes[i]);
            run(&one);
            for (unsigned i = 0; i < s->n_outputs && one.ran; i++)
                if (one.out_bytes[i] * ROWS != batch->out_bytes[i] ||
                    !same_bytes(s->outputs[i].dtype, one.out[i],
                                (char *)batch->out[i] + row * one.out_bytes[i], one.out_bytes[i]))
                    abort();
        }
        end(&one);
    }
}

static void plan_and_run(struct wk_model *model, int64_t free_dim)
{
    struct attempt batch;
    if (begin(&batch, model, ROWS, free_dim)) {
        fill(&batch, wk_model_signature(model));
        run(&batch);
        if (batch.ran && wk_model_signature(model)->batchable)
            check_rows(model, &batch, free_dim);
    }
    end(&batch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct wk_engine *engine;
    struct wk_model *model = NULL;
    struct cm_error err;
    int result = 0;
    if (!engine)
        engine = kit_engine(1, NULL);
    if (wk_model_parse(engine, data, size, NULL, &err, &model) != CM_OK)
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
