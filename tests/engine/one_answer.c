/* One answer: the bytes of a row do not depend on the batch, the place, the threads or the
 * instruction set. See one_answer.h. Test code, one thread plus the engines' pools. */
#include "tests/engine/one_answer.h"

#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_BATCH 16

static size_t row_bytes(const struct wk_tensor_info *info, const struct cm_shape *shape)
{
    struct cm_shape row = *shape;
    size_t bytes = 0;
    row.dims[0] = 1;
    assert_int_equal(cm_shape_bytes(&row, info->dtype, &bytes), CM_OK);
    return bytes;
}

/* Rows of all inputs, each row different. Floats in [-1, 1); other types small numbers. */
static void *make_rows(const struct wk_tensor_info *info, size_t bytes, unsigned rows)
{
    uint64_t random = 99;
    unsigned char *data = malloc(bytes * rows + 1);
    assert_non_null(data);
    for (size_t i = 0; i < bytes * rows / cm_dtype_size(info->dtype); i++) {
        if (info->dtype == CM_FP32)
            ((float *)(void *)data)[i] = kit_float(&random);
        else
            memset(data + i * cm_dtype_size(info->dtype), (int)(kit_next(&random) % 2),
                   cm_dtype_size(info->dtype));
    }
    return data;
}

struct run {
    struct kit_loaded loaded;
    const struct wk_signature *signature;
    const struct cm_shape *shapes; /* of one row each */
    void *const *rows;
    const size_t *in_bytes;
};

/* Runs the given rows as one batch; ret[i] is output i. */
static void run_batch(struct run *r, unsigned batch, const unsigned *which, void **ret,
                      struct cm_shape *ret_shapes)
{
    struct cm_shape shapes[WK_MAX_IO];
    void *in[WK_MAX_IO];
    for (unsigned i = 0; i < r->signature->n_inputs; i++) {
        shapes[i] = r->shapes[i];
        shapes[i].dims[0] = batch;
        in[i] = malloc(batch * r->in_bytes[i] + 1);
        assert_non_null(in[i]);
        for (unsigned k = 0; k < batch; k++)
            memcpy((char *)in[i] + k * r->in_bytes[i],
                   (char *)r->rows[i] + which[k] * r->in_bytes[i], r->in_bytes[i]);
    }
    kit_run(&r->loaded, shapes, (const void *const *)in, ret, ret_shapes);
    for (unsigned i = 0; i < r->signature->n_inputs; i++)
        free(in[i]);
}

/* Every batch size and every place in it; in each, place k holds row (k + shift) mod 16, with two
 * shifts, so that rows change places and neighbours. */
static void check_batches(struct run *r, void *const *truth, const size_t *out_bytes,
                          const char *where)
{
    for (unsigned batch = 1; batch <= MAX_BATCH; batch++) {
        for (unsigned shift = 0; shift < MAX_BATCH; shift += 9) {
            unsigned which[MAX_BATCH];
            void *out[WK_MAX_IO];
            for (unsigned k = 0; k < batch; k++)
                which[k] = (k + shift) % MAX_BATCH;
            run_batch(r, batch, which, out, NULL);
            for (unsigned i = 0; i < r->signature->n_outputs; i++) {
                for (unsigned k = 0; k < batch; k++)
                    if (memcmp((char *)out[i] + k * out_bytes[i],
                               (char *)truth[i] + which[k] * out_bytes[i], out_bytes[i]) != 0)
                        fail_msg("%s: output %u of row %u differs in place %u of a batch of %u",
                                 where, i, which[k], k, batch);
                free(out[i]);
            }
        }
    }
}

unsigned one_answer(const void *bytes, size_t length, const struct cm_shape *shapes)
{
    void *rows[WK_MAX_IO] = {NULL}, *truth[WK_MAX_IO] = {NULL};
    size_t in_bytes[WK_MAX_IO], out_bytes[WK_MAX_IO] = {0};
    const enum wk_isa first = WK_ISA_SCALAR;
    struct run r = {.shapes = shapes, .rows = rows, .in_bytes = in_bytes};
    unsigned checked = 0;
    /* The truth: each row alone, scalar kernels, one thread. */
    kit_load(&r.loaded, bytes, length, 1, &first);
    r.signature = wk_model_signature(r.loaded.model);
    if (!r.signature->batchable)
        fail_msg("the model is not batchable: %s", r.signature->why_not);
    for (unsigned i = 0; i < r.signature->n_inputs; i++) {
        in_bytes[i] = row_bytes(&r.signature->inputs[i], &shapes[i]);
        rows[i] = make_rows(&r.signature->inputs[i], in_bytes[i], MAX_BATCH);
    }
    for (unsigned k = 0; k < MAX_BATCH; k++) {
        struct cm_shape out_shapes[WK_MAX_IO];
        void *out[WK_MAX_IO];
        run_batch(&r, 1, &k, out, out_shapes);
        for (unsigned i = 0; i < r.signature->n_outputs; i++) {
            out_bytes[i] = row_bytes(&r.signature->outputs[i], &out_shapes[i]);
            if (!truth[i])
                truth[i] = calloc(MAX_BATCH, out_bytes[i] + 1);
            assert_non_null(truth[i]);
            memcpy((char *)truth[i] + k * out_bytes[i], out[i], out_bytes[i]);
            free(out[i]);
        }
    }
    unsigned n_inputs = r.signature->n_inputs, n_outputs = r.signature->n_outputs;
    kit_unload(&r.loaded);
    for (int isa = WK_ISA_SCALAR; isa <= WK_ISA_AVX512; isa++) {
        if ((enum wk_isa)isa > wk_isa_best()) {
            print_message("not checked: this machine lacks %s\n", wk_isa_name((enum wk_isa)isa));
            continue;
        }
        for (unsigned threads = 1; threads <= 2; threads++) {
            char where[64];
            enum wk_isa chosen = (enum wk_isa)isa;
            snprintf(where, sizeof where, "%s, %u threads", wk_isa_name(chosen), threads);
            kit_load(&r.loaded, bytes, length, threads, &chosen);
            r.signature = wk_model_signature(r.loaded.model);
            check_batches(&r, truth, out_bytes, where);
            kit_unload(&r.loaded);
            checked++;
        }
    }
    for (unsigned i = 0; i < n_inputs; i++)
        free(rows[i]);
    for (unsigned i = 0; i < n_outputs; i++)
        free(truth[i]);
    return checked;
}
