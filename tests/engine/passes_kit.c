/* See passes_kit.h. Test code, one thread. */
#include "tests/engine/passes_kit.h"

#include "common/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Passes after which sums are formed in another order. */
static bool changes_arithmetic(const char *pass)
{
    static const char *const passes[] = {"conv_bn", "layer_norm"};
    for (size_t i = 0; i < CM_COUNT_OF(passes); i++)
        if (strcmp(passes[i], pass) == 0)
            return true;
    return false;
}

uint64_t passes_bits(const char *names)
{
    uint64_t all = 0;
    char word[64];
    while (*names) {
        size_t length = strcspn(names, ",");
        uint64_t bits = 0;
        assert_true(length < sizeof word);
        memcpy(word, names, length);
        word[length] = '\0';
        if (!wk_pass_from_name(word, &bits))
            fail_msg("there is no pass '%s'", word);
        all |= bits;
        names += length + (names[length] == ',');
    }
    return all;
}

struct answer {
    unsigned n;
    bool batchable;
    void *outputs[WK_MAX_IO];
    struct cm_shape shapes[WK_MAX_IO];
    enum cm_dtype dtypes[WK_MAX_IO];
};

static void let_go(struct answer *answer)
{
    for (unsigned i = 0; i < answer->n; i++)
        free(answer->outputs[i]);
}

static void *random_input(const struct wk_tensor_info *info, const struct cm_shape *shape)
{
    uint64_t random = 7;
    size_t bytes = 0;
    assert_int_equal(cm_shape_bytes(shape, info->dtype, &bytes), CM_OK);
    unsigned char *data = malloc(bytes + 1);
    assert_non_null(data);
    for (size_t i = 0; i < bytes / cm_dtype_size(info->dtype); i++) {
        if (info->dtype == CM_FP32)
            ((float *)(void *)data)[i] = 2.0f * kit_float(&random);
        else if (info->dtype == CM_INT64)
            ((int64_t *)(void *)data)[i] = (int64_t)(kit_next(&random) % 2);
        else
            memset(data + i * cm_dtype_size(info->dtype), (int)(kit_next(&random) % 2),
                   cm_dtype_size(info->dtype));
    }
    return data;
}

static void run(const void *bytes, size_t length, const struct cm_shape *shapes, uint64_t disabled,
                struct answer *ret)
{
    struct kit_loaded loaded;
    void *inputs[WK_MAX_IO];
    kit_load_without(&loaded, bytes, length, disabled);
    const struct wk_signature *signature = wk_model_signature(loaded.model);
    for (unsigned i = 0; i < signature->n_inputs; i++)
        inputs[i] = random_input(&signature->inputs[i], &shapes[i]);
    ret->n = signature->n_outputs;
    ret->batchable = signature->batchable;
    kit_run(&loaded, shapes, (const void *const *)inputs, ret->outputs, ret->shapes);
    for (unsigned i = 0; i < ret->n; i++)
        ret->dtypes[i] = signature->outputs[i].dtype;
    for (unsigned i = 0; i < signature->n_inputs; i++)
        free(inputs[i]);
    kit_unload(&loaded);
}

static void check_near(const float *a, const float *b, size_t count, const char *pass, unsigned i)
{
    double largest = 0, worst = 0;
    for (size_t k = 0; k < count; k++) {
        largest = fmax(largest, fabs((double)a[k]));
        worst = fmax(worst, fabs((double)a[k] - (double)b[k]));
    }
    if (!(worst <= PASSES_TOLERANCE * (largest + 1e-30)))
        fail_msg("without %s output %u differs by %g, its largest number is %g", pass, i, worst,
                 largest);
}

static void compare(const struct answer *with, const struct answer *without, const char *pass,
                    bool exact)
{
    assert_int_equal(with->n, without->n);
    if (!with->batchable && without->batchable)
        fail_msg("%s hides the batch", pass);
    for (unsigned i = 0; i < with->n; i++) {
        size_t size = 0;
        assert_true(cm_shape_equal(&with->shapes[i], &without->shapes[i]));
        assert_int_equal(with->dtypes[i], without->dtypes[i]);
        assert_int_equal(cm_shape_bytes(&with->shapes[i], with->dtypes[i], &size), CM_OK);
        if (exact || with->dtypes[i] != CM_FP32) {
            if (memcmp(with->outputs[i], without->outputs[i], size) != 0)
                fail_msg("without %s the bytes of output %u differ", pass, i);
        } else {
            check_near(with->outputs[i], without->outputs[i], size / sizeof(float), pass, i);
        }
    }
}

void passes_compare(const void *bytes, size_t length, const struct cm_shape *shapes)
{
    struct answer with, without;
    run(bytes, length, shapes, 0, &with);
    for (unsigned i = 0; wk_pass_name(i); i++) {
        run(bytes, length, shapes, (uint64_t)1 << i, &without);
        compare(&with, &without, wk_pass_name(i), !changes_arithmetic(wk_pass_name(i)));
        let_go(&without);
    }
    run(bytes, length, shapes, passes_bits("all"), &without);
    compare(&with, &without, "all", false);
    let_go(&without);
    let_go(&with);
}

const char *passes_plan(const void *bytes, size_t length, const struct cm_shape *shapes,
                        uint64_t disabled, char *text, size_t size)
{
    struct kit_loaded loaded;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    size_t used = 0;
    kit_load_without(&loaded, bytes, length, disabled);
    if (wk_plan_create(loaded.model, shapes, &err, &plan) != CM_OK)
        fail_msg("plan: %s", err.text);
    text[0] = '\0';
    for (uint32_t i = 0; i < wk_plan_nodes(plan) && used < size; i++) {
        struct wk_node_info info;
        wk_plan_describe(plan, i, &info);
        if (info.fate == WK_NODE_RUNS)
            used += (size_t)snprintf(text + used, size - used, "%s%s%s", used ? " " : "", info.op,
                                     info.fused);
    }
    wk_plan_destroy(plan);
    kit_unload(&loaded);
    return text;
}
