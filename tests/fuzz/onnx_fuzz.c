/* The engine as a fuzz target: any bytes as a model file; what loads is planned and run.
 *
 * Never fails by itself: a crash, a sanitizer report, a changed guard byte or an abort (rows
 * that differ from their batch although the batch proof said they do not; a second run, or one on
 * another instruction set, that differs from the first; passes that change bytes) is the finding.
 */
#include "tests/fuzz/targets.h"

#include "gpu-worker/engine.h"
#include "tests/engine/kit.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/random.h"

#include <stdlib.h>
#include <string.h>

/* A model may ask for gigabytes and get them; a fuzzer's time is better spent elsewhere. */
#define MAX_WEIGHTS ((size_t)4 << 20)
#define MAX_SCRATCH ((size_t)4 << 20)
#define MAX_TENSOR  ((size_t)1 << 16)

#ifdef INGOT_SMALL_LIMITS
#define WITHOUT_PASSES 4u /* one input in so many is loaded again without passes */
#else
#define WITHOUT_PASSES 1u
#endif

#define ROWS       3u
#define MAX_MENDED 4u

/* One plan with buffers for it. plan is NULL where the shapes do not fit or are too large. */
struct attempt {
    struct wk_plan *plan;
    void *in[WK_MAX_IO], *out[WK_MAX_IO], *scratch;
    size_t in_bytes[WK_MAX_IO], out_bytes[WK_MAX_IO];
    bool ran;
    uint64_t sum; /* of what it made */
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
        if (!wk_plan_output_is_settled(a->plan, i))
            continue;
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

static bool is_nan(enum cm_dtype dtype, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, cm_dtype_size(dtype));
    switch (dtype) {
    case CM_FP16:
        return (bits & 0x7fff) > 0x7c00;
    case CM_BF16:
        return (bits & 0x7fff) > 0x7f80;
    case CM_FP32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case CM_FP64:
        return (bits & INT64_MAX) > 0x7ff0000000000000;
    default:
        return false;
    }
}

/* Reads what a run has made, to its last byte, into a number that depends on all of it but the
 * payloads of NaNs, which no kernel promises. */
static uint64_t look_at_outputs(const struct attempt *a, const struct wk_signature *s)
{
    uint64_t sum = 1;
    for (unsigned i = 0; i < s->n_outputs; i++) {
        const struct cm_shape *shape = wk_plan_output_shape(a->plan, i);
        bool settled = wk_plan_output_is_settled(a->plan, i);
        const uint8_t *data = settled ? a->out[i] : wk_plan_output_data(a->plan, i);
        enum cm_dtype dtype = wk_plan_output_dtype(a->plan, i);
        size_t bytes, each = cm_dtype_size(dtype);
        if (cm_shape_bytes(shape, dtype, &bytes) != CM_OK)
            abort();
        for (size_t k = 0; k < bytes; k += each) {
            uint64_t element = 0;
            memcpy(&element, data + k, each);
            sum = (sum ^ (is_nan(dtype, data + k) ? 1 : element)) * 0x100000001b3ull;
            sum ^= sum >> 29;
        }
    }
    return sum;
}

/* A plan may be run again, with equal results. */
static void run(struct attempt *a, const struct wk_signature *s)
{
    struct cm_error err;
    const void *const *in = (const void *const *)a->in;
    a->ran = wk_plan_run(a->plan, in, a->out, a->scratch, &err) == CM_OK;
    if (!a->ran)
        return;
    a->sum = look_at_outputs(a, s);
    if (wk_plan_run(a->plan, in, a->out, a->scratch, &err) != CM_OK ||
        look_at_outputs(a, s) != a->sum)
        abort();
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

/* What the numbers of an input mean only the model knows: small ones, so that indices and sizes fit
 * now and then, and sometimes any. Every row is different. */
static void fill(struct attempt *a, const struct wk_signature *s, uint64_t random)
{
    for (unsigned i = 0; i < s->n_inputs; i++) {
        enum cm_dtype dtype = s->inputs[i].dtype;
        size_t element = cm_dtype_size(dtype);
        bool any = below(&random, 4) == 0;
        for (size_t k = 0; k < a->in_bytes[i] / element; k++) {
            int64_t n = any ? (int64_t)next(&random) : (int64_t)below(&random, 6) - 1;
            double d = (double)(int64_t)next(&random) / 9e18;
            float f = any ? (float)n : (float)d;
            uint16_t half = any ? (uint16_t)n : (uint16_t)(0x3400 + below(&random, 0x0a00));
            const void *from = dtype == CM_FP32                       ? (const void *)&f
                               : dtype == CM_FP64                     ? (const void *)&d
                               : dtype == CM_FP16 || dtype == CM_BF16 ? (const void *)&half
                                                                      : (const void *)&n;
            if (dtype == CM_BOOL)
                n &= 1;
            memcpy((char *)a->in[i] + k * element, from, element);
        }
    }
}

/* Equal, but for the payloads of NaNs, which no kernel promises. */
static bool same_bytes(enum cm_dtype dtype, const void *a, const void *b, size_t bytes)
{
    size_t each = cm_dtype_size(dtype);
    for (size_t at = 0; at < bytes; at += each) {
        const char *x = (const char *)a + at, *y = (const char *)b + at;
        if (memcmp(x, y, each) != 0 && !(is_nan(dtype, x) && is_nan(dtype, y)))
            return false;
    }
    return true;
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
            run(&one, s);
            for (unsigned i = 0; i < s->n_outputs && one.ran; i++)
                if (one.out_bytes[i] * ROWS != batch->out_bytes[i] ||
                    !same_bytes(s->outputs[i].dtype, one.out[i],
                                (char *)batch->out[i] + row * one.out_bytes[i], one.out_bytes[i]))
                    abort();
        }
        end(&one);
    }
}

/* What a model has made with the smaller and the larger free dimensions: numbers that depend on all
 * of it, 0 for nothing. */
struct made {
    uint64_t small, large;
};

/* A number that depends on what was made; 0 if nothing was. */
static uint64_t plan_and_run(struct wk_model *model, int64_t free_dim, uint64_t random)
{
    struct attempt batch;
    if (begin(&batch, model, ROWS, free_dim)) {
        fill(&batch, wk_model_signature(model), random);
        run(&batch, wk_model_signature(model));
        if (batch.ran && wk_model_signature(model)->batchable)
            check_rows(model, &batch, free_dim);
    }
    end(&batch);
    return batch.sum;
}

/* Packs, attaches, and runs with two sizes of the free dimensions. */
static struct made use(struct wk_model *model, uint64_t random)
{
    struct cm_error err;
    struct made made = {0, 0};
    if (wk_model_weights_bytes(model) > MAX_WEIGHTS) {
        wk_model_destroy(model);
        return made;
    }
    void *weights = kit_guarded(wk_model_weights_bytes(model));
    if (wk_model_pack(model, weights, &err) == CM_OK &&
        wk_model_attach(model, weights, &err) == CM_OK) {
        made.small = plan_and_run(model, 1, random);
        made.large = plan_and_run(model, 7, random + 1);
    }
    kit_check_guards(weights);
    wk_model_destroy(model);
    kit_guarded_free(weights);
    return made;
}

/* The same on another instruction set and with two threads, where the machine has one: the same
 * bytes. */
static void compare(const uint8_t *data, size_t size, uint64_t random, struct made made)
{
    static struct wk_engine *other;
    const enum wk_isa scalar = WK_ISA_SCALAR;
    struct wk_model *model = NULL;
    if (wk_isa_best() == WK_ISA_SCALAR)
        return;
    if (!other)
        other = kit_engine(2, &scalar);
    if (wk_model_parse(other, data, size, NULL, NULL, &model) != CM_OK)
        abort();
    struct made again = use(model, random);
    if (again.small != made.small || again.large != made.large)
        abort();
}

/* Either may have been refused, or be too large for this target. */
static bool contradicts(uint64_t a, uint64_t b)
{
    return a && b && a != b;
}

/* Without the passes that change the arithmetic, and without any: the same bytes. */
static void compare_passes(struct wk_engine *engine, const uint8_t *data, size_t size,
                           uint64_t random)
{
    struct wk_load_options options = WK_LOAD_DEFAULTS;
    struct made made[2] = {{0, 0}, {0, 0}};
    uint64_t all, conv_bn, layer_norm;
    if (!wk_pass_from_name("all", &all) || !wk_pass_from_name("conv_bn", &conv_bn) ||
        !wk_pass_from_name("layer_norm", &layer_norm))
        abort();
    for (unsigned i = 0; i < 2; i++) {
        struct wk_model *model = NULL;
        options.disabled_passes = i == 0 ? conv_bn | layer_norm : all;
        if (wk_model_parse(engine, data, size, &options, NULL, &model) == CM_OK)
            made[i] = use(model, random);
    }
    if (contradicts(made[0].small, made[1].small) || contradicts(made[0].large, made[1].large))
        abort();
}

int fuzz_onnx(const uint8_t *data, size_t size)
{
    static struct wk_engine *engine;
    struct wk_model *model = NULL;
    struct cm_error err;
    uint8_t *mended = NULL;
    uint64_t random = 0x9e3779b97f4a7c15ull;
    if (!engine)
        engine = kit_engine(1, NULL);
    for (size_t i = 0; i < size; i++)
        random = (random ^ data[i]) * 0x100000001b3ull;
    enum cm_err code = wk_model_parse(engine, data, size, NULL, &err, &model);
    for (unsigned i = 0; i < MAX_MENDED && code == CM_INVALID; i++) {
        uint8_t *again = fuzz_mend(mended ? mended : data, size, err.text, &size);
        free(mended);
        mended = again;
        if (!mended)
            break;
        code = wk_model_parse(engine, mended, size, NULL, &err, &model);
    }
    if (code == CM_OK) {
        const uint8_t *bytes = mended ? mended : data;
        compare(bytes, size, random | 1, use(model, random | 1));
        if ((random >> 8) % WITHOUT_PASSES == 0)
            compare_passes(engine, bytes, size, random | 1);
    }
    free(mended);
    return code == CM_OK;
}
