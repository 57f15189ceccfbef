/* One answer: see one_answer.h. Test code, one thread plus the engines' pools. */
#include "tests/engine/one_answer.h"

#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const unsigned thread_counts[] = {1, 2, 4};

struct run {
    const struct one_answer_model *model;
    struct kit_loaded loaded;
    const struct wk_signature *signature;
    const void *data[WK_MAX_IO];
    void *made[WK_MAX_IO];                            /* data that this test made */
    size_t in_bytes[WK_MAX_IO], out_bytes[WK_MAX_IO]; /* of a row, or of the whole */
    void *truth[WK_MAX_IO];
    bool by_rows;
    char where[64];
};

static size_t bytes_of(const struct wk_tensor_info *info, struct cm_shape shape, bool row)
{
    size_t bytes = 0;
    if (row)
        shape.dims[0] = 1;
    assert_int_equal(cm_shape_bytes(&shape, info->dtype, &bytes), CM_OK);
    return bytes;
}

/* Elements that differ from row to row: floats in [-1, 1), zeros and ones of other types. */
static void *make_data(const struct wk_tensor_info *info, size_t bytes)
{
    uint64_t random = 99;
    size_t size = cm_dtype_size(info->dtype);
    unsigned char *data = calloc(1, bytes + 1);
    assert_non_null(data);
    for (size_t i = 0; i < bytes / size; i++) {
        float value = kit_float(&random);
        if (info->dtype == CM_FP32)
            memcpy(data + i * size, &value, size);
        else
            data[i * size] = value < 0; /* little endian */
    }
    return data;
}

static void load(struct run *r, enum wk_isa isa, unsigned threads)
{
    snprintf(r->where, sizeof r->where, "%s, %u threads", wk_isa_name(isa), threads);
    kit_load(&r->loaded, r->model->bytes, r->model->length, threads, &isa);
    r->signature = wk_model_signature(r->loaded.model);
}

/* Runs the given rows as one batch, or a whole input; ret[i] is output i. */
static void run_batch(struct run *r, unsigned batch, const unsigned *which, void **ret,
                      struct cm_shape *ret_shapes)
{
    struct cm_shape shapes[WK_MAX_IO];
    void *in[WK_MAX_IO];
    for (unsigned i = 0; i < r->signature->n_inputs; i++) {
        size_t bytes = r->in_bytes[i];
        shapes[i] = r->model->shapes[i];
        if (r->by_rows)
            shapes[i].dims[0] = batch;
        in[i] = malloc(batch * bytes + 1);
        assert_non_null(in[i]);
        for (unsigned k = 0; k < batch; k++)
            memcpy((char *)in[i] + k * bytes, (const char *)r->data[i] + which[k] * bytes, bytes);
    }
    kit_run(&r->loaded, shapes, (const void *const *)in, ret, ret_shapes);
    for (unsigned i = 0; i < r->signature->n_inputs; i++)
        free(in[i]);
}

static void find_data(struct run *r)
{
    for (unsigned i = 0; i < r->signature->n_inputs; i++) {
        const struct wk_tensor_info *info = &r->signature->inputs[i];
        r->in_bytes[i] = bytes_of(info, r->model->shapes[i], r->by_rows);
        if (r->model->data)
            r->data[i] = r->model->data[i];
        else
            r->data[i] = r->made[i] = make_data(info, r->in_bytes[i] * r->model->rows);
    }
}

/* Each row alone, scalar kernels, one thread. */
static void find_truth(struct run *r)
{
    load(r, WK_ISA_SCALAR, 1);
    r->by_rows = r->signature->batchable;
    if (r->model->rows > 1 && !r->by_rows)
        fail_msg("the model is not batchable: %s", r->signature->why_not);
    find_data(r);
    for (unsigned k = 0; k < r->model->rows; k++) {
        struct cm_shape shapes[WK_MAX_IO];
        void *out[WK_MAX_IO];
        run_batch(r, 1, &k, out, shapes);
        for (unsigned i = 0; i < r->signature->n_outputs; i++) {
            r->out_bytes[i] = bytes_of(&r->signature->outputs[i], shapes[i], r->by_rows);
            if (!r->truth[i])
                r->truth[i] = calloc(r->model->rows, r->out_bytes[i] + 1);
            assert_non_null(r->truth[i]);
            memcpy((char *)r->truth[i] + k * r->out_bytes[i], out[i], r->out_bytes[i]);
            free(out[i]);
        }
    }
    kit_unload(&r->loaded);
}

/* Place k of the batch holds row (k + shift) mod rows. */
static void check_batch(struct run *r, unsigned batch, unsigned shift)
{
    unsigned which[ONE_ANSWER_ROWS];
    void *out[WK_MAX_IO];
    for (unsigned k = 0; k < batch; k++)
        which[k] = (k + shift) % r->model->rows;
    run_batch(r, batch, which, out, NULL);
    for (unsigned i = 0; i < r->signature->n_outputs; i++) {
        size_t bytes = r->out_bytes[i];
        for (unsigned k = 0; k < batch; k++)
            if (memcmp((char *)out[i] + k * bytes, (char *)r->truth[i] + which[k] * bytes, bytes) !=
                0)
                fail_msg("%s: output %u of row %u differs in place %u of a batch of %u", r->where,
                         i, which[k], k, batch);
        free(out[i]);
    }
}

/* Two shifts, so that rows change places and neighbours; what is not batchable runs twice. */
static void check_batches(struct run *r, bool brief)
{
    unsigned other = r->model->rows > 1 ? r->model->rows / 2 + 1 : 0;
    if (brief) {
        check_batch(r, r->model->rows, other);
        return;
    }
    for (unsigned batch = 1; batch <= r->model->rows; batch++) {
        check_batch(r, batch, 0);
        check_batch(r, batch, other);
    }
}

unsigned one_answer(const struct one_answer_model *model)
{
    struct run r = {.model = model};
    unsigned checked = 0;
    find_truth(&r);
    for (int isa = WK_ISA_SCALAR; isa <= WK_ISA_AVX512; isa++) {
        if ((enum wk_isa)isa > wk_isa_best()) {
            print_message("not checked: this machine lacks %s\n", wk_isa_name((enum wk_isa)isa));
            continue;
        }
        for (unsigned t = 0; t < sizeof thread_counts / sizeof thread_counts[0]; t++) {
            load(&r, (enum wk_isa)isa, thread_counts[t]);
            check_batches(&r, model->brief && isa == WK_ISA_SCALAR);
            kit_unload(&r.loaded);
            checked++;
        }
    }
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        free(r.made[i]);
        free(r.truth[i]);
    }
    return checked;
}
