/* A worker's batch, from descriptors to DONE: rows of many requests against each request run alone,
 * what is refused, and what the records say. The model is the demo's; the leases are ordinary
 * memory. */
#include "common/check.h"
#include "gpu-worker/batch.h"
#include "gpu-worker/repo.h"
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PIXELS  64
#define CLASSES 10
#define ROW     (CLASSES * sizeof(float))
#define SLAB    (1u << 20)

static struct fixture {
    struct wk_engine *engine;
    struct wk_loaded loaded;
    struct wk_workspace workspace;
    struct wk_outputs *outputs;
    void *file, *weights;
    unsigned char *memory; /* the outputs' lease */
} f;

static int set_up(void **state)
{
    struct wk_engine_options engine = {0};
    struct wk_outputs_options outputs = {.worker = 5, .max_holds = 64, .max_regions = 1};
    struct cm_error err = {0};
    size_t length = 0;
    (void)state;
    memset(&f, 0, sizeof f);
    assert_int_equal(wk_engine_create(&engine, &err, &f.engine), CM_OK);
    assert_int_equal(
        wk_repo_read(SOURCE_DIR "/deploy/demo/models", "digits", 1, &err, &f.file, &length, NULL),
        CM_OK);
    assert_int_equal(wk_model_parse(f.engine, f.file, length, NULL, &err, &f.loaded.model), CM_OK);
    size_t bytes = wk_model_weights_bytes(f.loaded.model);
    assert_int_equal(posix_memalign(&f.weights, WK_ALIGN, bytes + 1), 0);
    assert_int_equal(wk_model_pack(f.loaded.model, f.weights, &err), CM_OK);
    assert_int_equal(wk_model_attach(f.loaded.model, f.weights, &err), CM_OK);
    f.loaded.max_rows = 32;
    assert_int_equal(wk_outputs_create(&outputs, &f.outputs), CM_OK);
    assert_int_equal(posix_memalign((void **)&f.memory, 4096, SLAB), 0);
    assert_int_equal(wk_outputs_add_region(f.outputs, 3, 1, SLAB, f.memory), CM_OK);
    assert_int_equal(wk_loaded_warm(&f.loaded, &f.workspace, &err), CM_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    wk_loaded_fini(&f.loaded);
    wk_workspace_fini(&f.workspace);
    wk_outputs_destroy(f.outputs);
    wk_engine_destroy(f.engine);
    free(f.weights);
    free(f.file);
    free(f.memory);
    return 0;
}

/* One request: an EXECUTE item with its descriptor, and pixels of its own. */
struct request {
    struct cm_execute_item item;
    struct cm_tensor_desc input;
    float *pixels;
};

static struct request *request_of(uint32_t rows, unsigned seed)
{
    struct request *request = calloc(1, sizeof *request);
    assert_non_null(request);
    size_t bytes = rows * PIXELS * sizeof(float);
    assert_int_equal(posix_memalign((void **)&request->pixels, WK_ALIGN, bytes), 0);
    srand(seed);
    for (size_t i = 0; i < rows * PIXELS; i++)
        request->pixels[i] = (float)(rand() % 17);
    request->item = (struct cm_execute_item){.output_mask = 1, .gateway = 9, .rows = rows};
    request->input = (struct cm_tensor_desc){
        .slice = {.length = bytes}, .dims = {rows, 1, 8, 8}, .dtype = CM_FP32, .rank = 4};
    return request;
}

static void free_request(struct request *request)
{
    free(request->pixels);
    free(request);
}

static void add(struct wk_run *run, struct request *request)
{
    run->loaded = &f.loaded;
    run->groups[run->n_groups++] =
        (struct wk_row_group){.item = &request->item, .inputs = {request->pixels}};
}

/* Runs and describes; *ret_slab and the record are for the caller to look at. */
static void execute(struct wk_run *run, struct wk_slab *ret_slab, unsigned char *record,
                    size_t *length)
{
    struct cm_error err = {0};
    struct cm_record_done done = {.batch = 1};
    uint64_t started = 0;
    assert_int_equal(wk_run_prepare(run, &f.workspace, &err), CM_OK);
    assert_int_equal(wk_outputs_reserve(f.outputs, run->slab_bytes, ret_slab), CM_OK);
    assert_int_equal(wk_run_execute(run, &f.workspace, ret_slab, &started, &err), CM_OK);
    assert_true(started > 0);
    assert_int_equal(
        wk_run_describe(run, f.outputs, ret_slab, &done, record, CM_RECORD_MAX, length), CM_OK);
    assert_int_equal(cm_record_check(CM_RECORD_DONE, record, (uint32_t)*length, &err), CM_OK);
}

static const unsigned char *output_of(const struct cm_done_item *item)
{
    const struct cm_tensor_desc *desc = cm_done_outputs(item);
    assert_int_equal(desc->slice.region, 3);
    assert_true(desc->slice.offset + desc->slice.length <= SLAB);
    return f.memory + desc->slice.offset;
}

/* The output bytes of a request that runs alone. */
static void alone(struct request *request, unsigned char *ret_bytes)
{
    static unsigned char record[CM_RECORD_MAX] __attribute__((aligned(8)));
    struct wk_run run = {0};
    struct wk_slab slab;
    size_t length;
    add(&run, request);
    execute(&run, &slab, record, &length);
    const struct cm_done_item *item = cm_done_first((struct cm_record_done *)record);
    memcpy(ret_bytes, output_of(item), request->item.rows * ROW);
    assert_true(wk_outputs_release(f.outputs, item->slab));
}

static void rows_of_many_requests_equal_each_alone(void **state)
{
    static unsigned char record[CM_RECORD_MAX] __attribute__((aligned(8)));
    static const uint32_t rows[] = {1, 3, 1, 2, 5, 1};
    struct request *requests[CM_COUNT_OF(rows)];
    struct wk_run run = {0};
    struct wk_slab slab;
    size_t length;
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(rows); i++) {
        requests[i] = request_of(rows[i], i + 1);
        add(&run, requests[i]);
    }
    execute(&run, &slab, record, &length);
    assert_int_equal(run.rows, 13);
    const struct cm_done_item *item = cm_done_first((struct cm_record_done *)record);
    for (unsigned i = 0; i < CM_COUNT_OF(rows); i++) {
        unsigned char expected[5 * ROW];
        const struct cm_tensor_desc *desc = cm_done_outputs(item);
        assert_int_equal(item->n_outputs, 1);
        assert_int_equal(desc->rank, 2);
        assert_int_equal(desc->dims[0], rows[i]);
        assert_int_equal(desc->dims[1], CLASSES);
        assert_int_equal(desc->slice.length, rows[i] * ROW);
        alone(requests[i], expected);
        assert_memory_equal(output_of(item), expected, rows[i] * ROW);
        assert_true(wk_outputs_release(f.outputs, item->slab));
        item = cm_done_next(item);
        free_request(requests[i]);
    }
    assert_int_equal(wk_outputs_stats(f.outputs).slabs, 0);
}

/* A client's slice need not be aligned as kernels want it. */
static void an_unaligned_lone_request_is_copied(void **state)
{
    static unsigned char record[CM_RECORD_MAX] __attribute__((aligned(8)));
    struct request *request = request_of(2, 77);
    unsigned char expected[2 * ROW];
    unsigned char *shifted = malloc(2 * PIXELS * sizeof(float) + 4);
    struct wk_run run = {0};
    struct wk_slab slab;
    size_t length;
    (void)state;
    assert_non_null(shifted);
    alone(request, expected);
    memcpy(shifted + 4, request->pixels, 2 * PIXELS * sizeof(float));
    add(&run, request);
    run.groups[0].inputs[0] = shifted + 4;
    execute(&run, &slab, record, &length);
    const struct cm_done_item *item = cm_done_first((struct cm_record_done *)record);
    assert_memory_equal(output_of(item), expected, sizeof expected);
    assert_true(wk_outputs_release(f.outputs, item->slab));
    free(shifted);
    free_request(request);
}

static void a_request_that_cannot_be_read_leaves_the_others(void **state)
{
    static unsigned char record[CM_RECORD_MAX] __attribute__((aligned(8)));
    struct request *a = request_of(1, 1), *b = request_of(2, 2), *c = request_of(1, 3);
    unsigned char expected[2 * ROW];
    struct wk_run run = {0};
    struct wk_slab slab;
    struct cm_error err = {0};
    size_t length;
    (void)state;
    alone(b, expected);
    add(&run, a);
    add(&run, b);
    add(&run, c);
    run.groups[0].status = CM_STALE;
    run.groups[2].status = CM_CORRUPT;
    execute(&run, &slab, record, &length);
    const struct cm_done_item *item = cm_done_first((struct cm_record_done *)record);
    assert_int_equal(item->status, CM_STALE);
    assert_int_equal(item->n_outputs, 0);
    item = cm_done_next(item);
    assert_int_equal(item->status, CM_OK);
    assert_memory_equal(output_of(item), expected, sizeof expected);
    assert_true(wk_outputs_release(f.outputs, item->slab));
    item = cm_done_next(item);
    assert_int_equal(item->status, CM_CORRUPT);
    run.groups[1].status = CM_STALE;
    assert_int_equal(wk_run_prepare(&run, &f.workspace, &err), CM_STALE);
    free_request(a);
    free_request(b);
    free_request(c);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    struct request *a = request_of(1, 1), *b = request_of(1, 2);
    struct cm_error err = {0};
    (void)state;
    struct wk_run mixed = {0};
    b->input.dims[3] = 9;
    add(&mixed, a);
    add(&mixed, b);
    assert_int_equal(wk_run_prepare(&mixed, &f.workspace, &err), CM_CORRUPT);
    struct wk_run wrong_rows = {0};
    a->item.rows = 2;
    add(&wrong_rows, a);
    assert_int_equal(wk_run_prepare(&wrong_rows, &f.workspace, &err), CM_CORRUPT);
    struct wk_run wrong_shape = {0};
    add(&wrong_shape, b);
    assert_int_equal(wk_run_prepare(&wrong_shape, &f.workspace, &err), CM_INVALID);
    assert_non_null(strstr(err.text, "image"));
    struct wk_run too_many = {0};
    a->item.rows = UINT32_MAX;
    a->input.dims[0] = UINT32_MAX;
    add(&too_many, a);
    assert_int_equal(wk_run_prepare(&too_many, &f.workspace, &err), CM_CORRUPT);
    free_request(a);
    free_request(b);
}

static void full_tables_leave_nothing_behind(void **state)
{
    static unsigned char record[CM_RECORD_MAX] __attribute__((aligned(8)));
    struct request *request = request_of(1, 1);
    struct wk_run run = {0};
    struct wk_slab slab;
    struct cm_error err = {0};
    struct cm_record_done done = {.batch = 1};
    size_t length = 0;
    (void)state;
    for (unsigned i = 0; i < CM_MAX_BATCH_ITEMS; i++)
        add(&run, request);
    assert_int_equal(wk_run_prepare(&run, &f.workspace, &err), CM_OK);
    assert_int_equal(wk_outputs_reserve(f.outputs, run.slab_bytes, &slab), CM_OK);
    assert_int_equal(wk_run_describe(&run, f.outputs, &slab, &done, record, CM_RECORD_MAX, &length),
                     CM_FULL);
    wk_outputs_abandon(f.outputs, &slab);
    assert_int_equal(wk_outputs_reserve(f.outputs, run.slab_bytes, &slab), CM_OK);
    assert_int_equal(wk_run_describe(&run, f.outputs, &slab, &done, record, 200, &length),
                     CM_LIMIT);
    wk_outputs_abandon(f.outputs, &slab);
    assert_int_equal(wk_outputs_stats(f.outputs).holds, 0);
    assert_int_equal(wk_outputs_stats(f.outputs).bytes_used, 0);
    free_request(request);
}

/* More shapes than places for plans: the least used makes way, and the answers stay the same. */
static void plans_come_and_go(void **state)
{
    struct request *one = request_of(1, 5);
    unsigned char expected[ROW], again[ROW];
    (void)state;
    alone(one, expected);
    for (uint32_t rows = 1; rows <= WK_PLANS_MAX + 10; rows++) {
        struct request *many = request_of(rows, rows);
        unsigned char *bytes = malloc(rows * ROW);
        assert_non_null(bytes);
        alone(many, bytes);
        free(bytes);
        free_request(many);
    }
    alone(one, again);
    assert_memory_equal(expected, again, ROW);
    free_request(one);
}

/* x [n,2] and a shape s; y is x in that shape, a view whose size only the run knows, and z is -x.
 */
static void load_reshape(struct kit_loaded *l)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_input(m, "s", CM_INT64, kit_shape(1, -1));
    kit_node(m, "Reshape", "x,s", "y");
    kit_node(m, "Neg", "x", "z");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    kit_output(m, "z", CM_FP32, kit_shape(2, -1, 2));
    kit_load_model(l, m, 1, NULL);
    kit_free(m);
}

/* A batch that has run and waits for room keeps its outputs, whatever becomes of its inputs and of
 * the workspace meanwhile; and it runs once. */
static void outputs_wait_for_room(void **state)
{
    struct {
        struct cm_execute_item item;
        struct cm_tensor_desc inputs[2];
    } request = {.item = {.output_mask = 3, .gateway = 9, .rows = 2}};
    _Alignas(WK_ALIGN) float x[] = {1, 2, 3, 4}, want[] = {1, 2, 3, 4},
                             negated[] = {-1, -2, -3, -4};
    _Alignas(WK_ALIGN) int64_t s[] = {4};
    struct wk_loaded loaded = {.max_rows = 1};
    struct kit_loaded l;
    struct cm_error err = {0};
    struct wk_slab slab;
    uint64_t started;
    (void)state;
    load_reshape(&l);
    loaded.model = l.model;
    request.inputs[0] = (struct cm_tensor_desc){
        .slice = {.length = sizeof x}, .dims = {2, 2}, .dtype = CM_FP32, .rank = 2};
    request.inputs[1] = (struct cm_tensor_desc){
        .slice = {.length = sizeof s}, .dims = {1}, .dtype = CM_INT64, .rank = 1};
    struct wk_run run = {.loaded = &loaded,
                         .n_groups = 1,
                         .batch = 7,
                         .groups = {{.item = &request.item, .inputs = {x, s}}}};
    assert_int_equal(wk_run_prepare(&run, &f.workspace, &err), CM_OK);
    memset(x, 0xee, sizeof x);
    memset(s, 0xee, sizeof s);
    memset(f.workspace.scratch, 0xee, f.workspace.scratch_bytes);
    memset(f.workspace.gather, 0xee, f.workspace.gather_bytes);
    memset(f.workspace.early, 0xee, f.workspace.early_bytes);
    assert_int_equal(wk_run_prepare(&run, &f.workspace, &err), CM_OK);
    assert_int_equal(wk_outputs_reserve(f.outputs, run.slab_bytes, &slab), CM_OK);
    assert_int_equal(wk_run_execute(&run, &f.workspace, &slab, &started, &err), CM_OK);
    assert_int_equal(run.early_batch, 0);
    assert_memory_equal(slab.base + run.output_offset[0], want, sizeof want);
    assert_memory_equal(slab.base + run.output_offset[1], negated, sizeof negated);
    wk_outputs_abandon(f.outputs, &slab);
    for (unsigned i = 0; i < WK_PLANS_MAX; i++)
        wk_plan_destroy(loaded.plans[i].plan);
    kit_unload(&l);
}

static void files_outside_the_repository_are_refused(void **state)
{
    char root[] = "/tmp/ingot-repo-XXXXXX", command[512];
    struct cm_error err = {0};
    void *bytes = NULL;
    size_t length = 0;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(command, sizeof command,
             "cd %s && mkdir -p a/1 b/1 c/1 d/1 real && echo x >real/m && ln -s ../../real/m "
             "a/1/model.onnx && "
             "ln -s /etc/passwd b/1/model.onnx && mkfifo c/1/model.onnx && mkdir d/1/model.onnx && "
             "ln -s / e",
             root);
    assert_int_equal(system(command), 0);
    assert_int_equal(wk_repo_read(root, "a", 1, &err, &bytes, &length, NULL),
                     CM_OK); /* a link inside */
    assert_int_equal(length, 2);
    free(bytes);
    assert_int_equal(wk_repo_read(root, "b", 1, &err, &bytes, &length, NULL), CM_PERMISSION);
    assert_null(strstr(err.text, root));
    assert_int_equal(wk_repo_read(root, "c", 1, &err, &bytes, &length, NULL), CM_INVALID);
    assert_int_equal(wk_repo_read(root, "d", 1, &err, &bytes, &length, NULL), CM_INVALID);
    assert_int_equal(wk_repo_read(root, "e", 1, &err, &bytes, &length, NULL), CM_PERMISSION);
    assert_int_equal(wk_repo_read(root, "f", 1, &err, &bytes, &length, NULL), CM_NOT_FOUND);
    assert_int_equal(wk_repo_read(root, "..", 1, &err, &bytes, &length, NULL), CM_INVALID);
    assert_int_equal(wk_repo_read(root, "a/../b", 1, &err, &bytes, &length, NULL), CM_INVALID);
    assert_int_equal(wk_repo_read("/nonexistent", "a", 1, &err, &bytes, &length, NULL),
                     CM_NOT_FOUND);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_of_many_requests_equal_each_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unaligned_lone_request_is_copied, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_request_that_cannot_be_read_leaves_the_others, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(shapes_that_do_not_fit_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(outputs_wait_for_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(full_tables_leave_nothing_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(plans_come_and_go, set_up, tear_down),
        cmocka_unit_test(files_outside_the_repository_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
