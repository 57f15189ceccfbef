/* A run allocates nothing: malloc and its family are counted (the linker's --wrap) while a plan
 * that uses every kind of step runs. And what a run may not depend on: old scratch contents,
 * addresses. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static atomic_uint calls; /* pool threads would be seen too */

#define COUNTED(type, name, parameters, arguments) \
    type __real_##name parameters;                 \
    type __wrap_##name parameters;                 \
    type __wrap_##name parameters                  \
    {                                              \
        atomic_fetch_add(&calls, 1);               \
        return __real_##name arguments;            \
    }
COUNTED(void *, malloc, (size_t size), (size))
COUNTED(void *, calloc, (size_t count, size_t size), (count, size))
COUNTED(void *, realloc, (void *memory, size_t size), (memory, size))
COUNTED(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
COUNTED(int, posix_memalign, (void **memory, size_t alignment, size_t size),
        (memory, alignment, size))

/* Every file of the fuzz corpus and the demo model: together, every family of operators. */
static const char *const files[] = {
    "/tests/engine/corpus/conv.onnx",          "/tests/engine/corpus/shapes.onnx",
    "/tests/engine/corpus/matmul.onnx",        "/tests/engine/corpus/old.onnx",
    "/deploy/demo/models/digits/1/model.onnx",
};

static void load_file(struct kit_loaded *l, const char *name, unsigned threads)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s", SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size_t length = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(length);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, length, file), length);
    fclose(file);
    kit_load(l, bytes, length, threads, NULL);
    free(bytes);
}

/* A plan with its buffers. */
struct prepared {
    struct wk_plan *plan;
    void *in[WK_MAX_IO], *out[WK_MAX_IO], *scratch;
    size_t out_bytes[WK_MAX_IO];
};

static void prepare(struct prepared *p, struct kit_loaded *l, int64_t batch)
{
    const struct wk_signature *s = wk_model_signature(l->model);
    struct cm_shape shapes[WK_MAX_IO];
    struct cm_error err = {0};
    uint64_t random = 3;
    for (unsigned i = 0; i < s->n_inputs; i++) {
        size_t bytes = 0;
        shapes[i] = s->inputs[i].shape;
        for (unsigned k = 0; k < shapes[i].rank; k++)
            if (shapes[i].dims[k] < 0)
                shapes[i].dims[k] = k ? 8 : batch;
        assert_int_equal(cm_shape_bytes(&shapes[i], s->inputs[i].dtype, &bytes), CM_OK);
        p->in[i] = kit_guarded(bytes);
        for (size_t k = 0; k < bytes / 4 && s->inputs[i].dtype == CM_FP32; k++)
            ((float *)p->in[i])[k] = kit_float(&random);
    }
    if (wk_plan_create(l->model, shapes, &err, &p->plan) != CM_OK)
        fail_msg("%s", err.text);
    for (unsigned i = 0; i < s->n_outputs; i++) {
        assert_int_equal(cm_shape_bytes(wk_plan_output_shape(p->plan, i),
                                        wk_plan_output_dtype(p->plan, i), &p->out_bytes[i]),
                         CM_OK);
        p->out[i] = kit_guarded(p->out_bytes[i]);
    }
    p->scratch = kit_guarded(wk_plan_scratch_bytes(p->plan));
}

static void finish(struct prepared *p)
{
    kit_check_guards(p->scratch);
    kit_guarded_free(p->scratch);
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        if (p->in[i])
            kit_guarded_free(p->in[i]);
        if (p->out[i])
            kit_guarded_free(p->out[i]);
    }
    wk_plan_destroy(p->plan);
    *p = (struct prepared){0};
}

static void a_run_allocates_nothing(void **state)
{
    (void)state;
    for (unsigned f = 0; f < sizeof files / sizeof *files; f++)
        for (unsigned threads = 1; threads <= 2; threads++) {
            struct kit_loaded l;
            struct prepared p = {0};
            struct cm_error err = {0};
            load_file(&l, files[f], threads);
            unsigned before = atomic_load(&calls);
            prepare(&p, &l, 3);
            assert_true(atomic_load(&calls) > before); /* the count counts */
            before = atomic_load(&calls);
            for (int i = 0; i < 3; i++)
                if (wk_plan_run(p.plan, (const void *const *)p.in, p.out, p.scratch, &err))
                    fail_msg("%s: %s", files[f], err.text);
            assert_int_equal(atomic_load(&calls), before);
            finish(&p);
            kit_unload(&l);
        }
}

/* Scratch may hold anything, and may move between runs. */
static void a_run_depends_on_its_inputs_only(void **state)
{
    (void)state;
    for (unsigned f = 0; f < sizeof files / sizeof *files; f++) {
        struct kit_loaded l;
        struct prepared p = {0};
        struct cm_error err = {0};
        void *first[WK_MAX_IO] = {NULL};
        load_file(&l, files[f], 1);
        prepare(&p, &l, 2);
        size_t scratch_bytes = wk_plan_scratch_bytes(p.plan);
        unsigned n_outputs = wk_model_signature(l.model)->n_outputs;
        for (int round = 0; round < 4; round++) {
            static const int fills[] = {0, 0xff, 0x7f, 0x55};
            if (round == 2) {
                kit_guarded_free(p.scratch);
                p.scratch = kit_guarded(scratch_bytes);
            }
            memset(p.scratch, fills[round], scratch_bytes);
            for (unsigned i = 0; i < n_outputs; i++)
                memset(p.out[i], fills[3 - round], p.out_bytes[i]);
            assert_int_equal(wk_plan_run(p.plan, (const void *const *)p.in, p.out, p.scratch, &err),
                             CM_OK);
            for (unsigned i = 0; i < n_outputs; i++) {
                if (round == 0) {
                    first[i] = malloc(p.out_bytes[i] + 1);
                    assert_non_null(first[i]);
                    memcpy(first[i], p.out[i], p.out_bytes[i]);
                }
                assert_memory_equal(first[i], p.out[i], p.out_bytes[i]);
            }
        }
        for (unsigned i = 0; i < n_outputs; i++)
            free(first[i]);
        finish(&p);
        kit_unload(&l);
    }
}

/* Two processes share packed weights, so packing must give the same bytes on every machine. */
static void packed_weights_are_the_same_everywhere(void **state)
{
    (void)state;
    for (unsigned f = 0; f < sizeof files / sizeof *files; f++) {
        struct kit_loaded a, b;
        load_file(&a, files[f], 1);
        load_file(&b, files[f], 2);
        size_t bytes = wk_model_weights_bytes(a.model);
        assert_int_equal(bytes, wk_model_weights_bytes(b.model));
        assert_memory_equal(a.weights, b.weights, bytes);
        kit_unload(&b);
        for (int isa = WK_ISA_SCALAR; isa < (int)wk_isa_best(); isa++) {
            enum wk_isa chosen = (enum wk_isa)isa;
            struct wk_engine *engine = kit_engine(1, &chosen);
            assert_int_equal(wk_engine_isa(engine), chosen);
            wk_engine_destroy(engine);
        }
        kit_unload(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_allocates_nothing),
        cmocka_unit_test(a_run_depends_on_its_inputs_only),
        cmocka_unit_test(packed_weights_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
