/* Control flow and shapes that the data decides: If, Loop, Scan, and what follows them. Values are
 * compared with plain C; refusals by their sentence; and every allocation of a run fails once. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- an allocator that fails at the n-th call -------------------------------------------------
 */

static long left = -1; /* calls that still succeed; -1: all */

static bool fails(void)
{
    if (left < 0)
        return false;
    return left == 0 || left-- == 0;
}

#define FAILING(type, failure, name, parameters, arguments) \
    type __real_##name parameters;                          \
    type __wrap_##name parameters;                          \
    type __wrap_##name parameters                           \
    {                                                       \
        if (fails())                                        \
            return failure;                                 \
        return __real_##name arguments;                     \
    }
FAILING(void *, NULL, malloc, (size_t size), (size))
FAILING(void *, NULL, calloc, (size_t count, size_t size), (count, size))
FAILING(void *, NULL, realloc, (void *memory, size_t size), (memory, size))
FAILING(int, 12, posix_memalign, (void **memory, size_t alignment, size_t size),
        (memory, alignment, size))

/* ---- running ----------------------------------------------------------------------------------
 */

/* Runs m, with inputs as floats, int64s or bools behind pointers, on 1 and on 2 threads; checks
 * output 0 against want, a shape and floats. Frees m unless keep. */
static void expect(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                   struct cm_shape want_shape, const float *want)
{
    char got_text[96], want_text[96];
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        void *outputs[WK_MAX_IO] = {NULL};
        struct cm_shape got[WK_MAX_IO];
        size_t length;
        void *bytes = kit_bytes(m, &length);
        kit_load(&l, bytes, length, threads, NULL);
        free(bytes);
        for (int again = 0; again < 2; again++) {
            size_t want_bytes = 0;
            kit_run(&l, shapes, inputs, outputs, got);
            assert_string_equal(cm_shape_format(&got[0], got_text, sizeof got_text),
                                cm_shape_format(&want_shape, want_text, sizeof want_text));
            assert_int_equal(cm_shape_bytes(&want_shape, CM_FP32, &want_bytes), CM_OK);
            if (want_bytes)
                assert_memory_equal(outputs[0], want, want_bytes);
            for (unsigned i = 0; i < WK_MAX_IO; i++) {
                free(outputs[i]);
                outputs[i] = NULL;
            }
        }
        kit_unload(&l);
    }
}

static void refuse(struct kit_model *m, const char *why)
{
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    size_t length;
    void *bytes = kit_bytes(m, &length);
    enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (code == CM_OK || !strstr(err.text, why))
        fail_msg("wanted a refusal with \"%s\", got %s \"%s\"", why, cm_err_name(code), err.text);
    free(bytes);
    kit_free(m);
    wk_engine_destroy(engine);
}

/* A run that must fail with this sentence. */
static void fail_run(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                     enum cm_err code, const char *why)
{
    struct kit_loaded l;
    kit_load_model(&l, m, 1, NULL);
    kit_run_refused(&l, shapes, inputs, code, "", why);
    kit_unload(&l);
    kit_free(m);
}

/* ---- If ---------------------------------------------------------------------------------------
 */

static struct kit_model *branch(const char *op, const char *inputs)
{
    struct kit_model *m = kit_model(13);
    kit_node(m, op, inputs, "r");
    kit_output(m, "r", CM_FP32, KIT_SHAPE0());
    return m;
}

/* Inputs c (bool) and x [-1,2]; y = c ? x + w : x * w, w a constant from outside. */
static struct kit_model *choice(void)
{
    static const float w[] = {10, 20};
    struct kit_model *m = kit_model(13);
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_const(m, "w", CM_FP32, kit_shape(1, 2), w);
    kit_node(m, "If", "c", "y");
    kit_attr_graph(m, "then_branch", branch("Add", "x,w"));
    kit_attr_graph(m, "else_branch", branch("Mul", "x,w"));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 2));
    return m;
}

static void branches_of_one_shape(void **state)
{
    const float x[] = {1, 2, 3, 4}, sum[] = {11, 22, 13, 24}, product[] = {10, 40, 30, 80};
    const uint8_t yes = 1, no = 0;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(2, 2, 2)};
    struct kit_model *m = choice();
    (void)state;
    expect(m, shapes, (const void *[]){&yes, x}, shapes[1], sum);
    expect(m, shapes, (const void *[]){&no, x}, shapes[1], product);
    kit_free(m);
}

/* The branches give [2,2] and [4]: the run decides, also for what comes behind. */
static void branches_of_different_shapes(void **state)
{
    const float x[] = {1, -2, 3, -4}, negated[] = {-1, 2, -3, 4};
    const uint8_t yes = 1, no = 0;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(2, 2, 2)};
    struct kit_model *m = kit_model(13), *flat = kit_model(13);
    (void)state;
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_ints(flat, "all", 1, -1);
    kit_node(flat, "Reshape", "x,all", "r");
    kit_output(flat, "r", CM_FP32, KIT_SHAPE0());
    kit_node(m, "If", "c", "z");
    kit_attr_graph(m, "then_branch", flat);
    kit_attr_graph(m, "else_branch", branch("Identity", "x"));
    kit_node(m, "Neg", "z", "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    expect(m, shapes, (const void *[]){&yes, x}, kit_shape(1, 4), negated);
    expect(m, shapes, (const void *[]){&no, x}, kit_shape(2, 2, 2), negated);
    kit_free(m);
}

/* A constant condition, a branch that gives back what it was given, and an If inside an If that
 * uses a value from two levels up. */
static void branches_inside_branches(void **state)
{
    const float x[] = {1, 2}, twice[] = {2, 4};
    const uint8_t yes = 1, no = 0;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(2, 1, 2)};
    struct kit_model *m = kit_model(13), *outer = kit_model(13);
    (void)state;
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_const(m, "true", CM_BOOL, KIT_SHAPE0(), &yes);
    kit_node(outer, "If", "c", "inner");
    kit_attr_graph(outer, "then_branch", branch("Add", "x,x"));
    kit_attr_graph(outer, "else_branch", branch("Identity", "x"));
    kit_output(outer, "inner", CM_FP32, KIT_SHAPE0());
    struct kit_model *as_is = kit_model(13);
    kit_output(as_is, "x", CM_FP32, KIT_SHAPE0());
    kit_node(m, "If", "true", "y");
    kit_attr_graph(m, "then_branch", outer);
    kit_attr_graph(m, "else_branch", as_is);
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 2));
    expect(m, shapes, (const void *[]){&yes, x}, shapes[1], twice);
    expect(m, shapes, (const void *[]){&no, x}, shapes[1], x);
    kit_free(m);
}

/* ---- Loop -------------------------------------------------------------------------------------
 */

/* Inputs n (int64), go (bool), x [2]: each trip adds w to the state and collects it; it goes on
 * while the sum is below 100. Output y is the state, s what was collected. */
static struct kit_model *loop(const char *first_output)
{
    static const float w[] = {1, 10}, limit = 100;
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    kit_input(m, "n", CM_INT64, KIT_SHAPE0());
    kit_input(m, "go", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_const(m, "w", CM_FP32, kit_shape(1, 2), w);
    kit_input(body, "i", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, kit_shape(1, 2));
    kit_const(body, "limit", CM_FP32, KIT_SHAPE0(), &limit);
    kit_node(body, "Add", "a,w", "b");
    kit_node(body, "ReduceSum", "b", "total");
    kit_attr_i(body, "keepdims", 0);
    kit_node(body, "Less", "total,limit", "goes_on");
    kit_node(body, "Identity", "b", "seen");
    kit_output(body, "goes_on", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "b", CM_FP32, KIT_SHAPE0());
    kit_output(body, "seen", CM_FP32, KIT_SHAPE0());
    kit_node(m, "Loop", "n,go,x", "last,all");
    kit_attr_graph(m, "body", body);
    kit_node(m, "Identity", first_output, "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    return m;
}

static void loops(void **state)
{
    const struct cm_shape shapes[] = {KIT_SHAPE0(), KIT_SHAPE0(), kit_shape(1, 2)};
    const float x[] = {0, 0}, three[] = {3, 30}, all[] = {1, 10, 2, 20, 3, 30}, ten[] = {10, 100};
    const uint8_t yes = 1, no = 0;
    const int64_t n3 = 3, n100 = 100, n0 = 0;
    struct kit_model *last = loop("last"), *collected = loop("all");
    (void)state;
    expect(last, shapes, (const void *[]){&n3, &yes, x}, kit_shape(1, 2), three);
    expect(last, shapes, (const void *[]){&n100, &yes, x}, kit_shape(1, 2), ten);
    expect(last, shapes, (const void *[]){&n0, &yes, x}, kit_shape(1, 2), x);
    expect(last, shapes, (const void *[]){&n3, &no, x}, kit_shape(1, 2), x);
    expect(collected, shapes, (const void *[]){&n3, &yes, x}, kit_shape(2, 3, 2), all);
    expect(collected, shapes, (const void *[]){&n0, &yes, x}, kit_shape(2, 0, 2), x);
    kit_free(last);
    kit_free(collected);
}

/* The state grows by a column each trip: every trip meets new shapes. */
static void a_state_that_grows(void **state)
{
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(1, 1)};
    const float x = 7, sevens[] = {7, 7, 7, 7, 7, 7, 7, 7};
    const int64_t n = 7;
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    (void)state;
    kit_input(m, "n", CM_INT64, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 1));
    kit_input(body, "i", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, KIT_SHAPE0());
    kit_node(body, "Concat", "a,x", "b");
    kit_attr_i(body, "axis", 0);
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "b", CM_FP32, KIT_SHAPE0());
    kit_node(m, "Loop", "n,,x", "y");
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    expect(m, shapes, (const void *[]){&n, &x}, kit_shape(1, 8), sevens);
    kit_free(m);
}

static void an_endless_loop(void **state)
{
    const struct cm_shape shape = kit_shape(1, 1);
    const float x = 1;
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(1, 1));
    kit_input(body, "i", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, KIT_SHAPE0());
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "a", CM_FP32, KIT_SHAPE0());
    kit_node(m, "Loop", ",,x", "y");
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    fail_run(m, &shape, (const void *[]){&x}, CM_LIMIT, "more than 1000000 trips");
}

/* ---- Scan -------------------------------------------------------------------------------------
 */

/* Running sums along axis 1 of x [2,3], from the back, stacked along axis 1. */
static void scans(void **state)
{
    const struct cm_shape shapes[] = {kit_shape(1, 2), kit_shape(2, 2, 3)};
    const float start[] = {0, 100}, x[] = {1, 2, 3, 4, 5, 6};
    const float sums[] = {6, 5, 3, 115, 111, 106};
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    (void)state;
    kit_input(m, "start", CM_FP32, kit_shape(1, 2));
    kit_input(m, "x", CM_FP32, kit_shape(2, 2, -1));
    kit_input(body, "sum", CM_FP32, KIT_SHAPE0());
    kit_input(body, "piece", CM_FP32, KIT_SHAPE0());
    kit_node(body, "Add", "sum,piece", "new");
    kit_node(body, "Identity", "new", "seen");
    kit_output(body, "new", CM_FP32, KIT_SHAPE0());
    kit_output(body, "seen", CM_FP32, KIT_SHAPE0());
    kit_node(m, "Scan", "start,x", "last,y");
    kit_attr_graph(m, "body", body);
    kit_attr_i(m, "num_scan_inputs", 1);
    kit_attr_ints(m, "scan_input_axes", 1, 1);
    kit_attr_ints(m, "scan_input_directions", 1, 1);
    kit_attr_ints(m, "scan_output_axes", 1, -1);
    kit_attr_ints(m, "scan_output_directions", 1, 1);
    kit_output(m, "y", CM_FP32, kit_shape(2, 2, -1));
    expect(m, shapes, (const void *[]){start, x}, kit_shape(2, 2, 3), sums);
    kit_free(m);
}

/* ---- shapes from data -------------------------------------------------------------------------
 */

/* The second input is the shape: static nodes before, late ones behind, an output of each kind. */
static struct kit_model *reshaped(void)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_input(m, "s", CM_INT64, kit_shape(1, -1));
    kit_node(m, "Neg", "x", "n");
    kit_node(m, "Reshape", "n,s", "r");
    kit_node(m, "Abs", "r", "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    kit_output(m, "n", CM_FP32, kit_shape(2, -1, 2));
    return m;
}

static void shapes_from_data(void **state)
{
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t s3[] = {2, 1, 4}, s1[] = {-1};
    struct kit_model *m = reshaped();
    (void)state;
    expect(m, (struct cm_shape[]){kit_shape(2, 4, 2), kit_shape(1, 3)}, (const void *[]){x, s3},
           kit_shape(3, 2, 1, 4), x);
    expect(m, (struct cm_shape[]){kit_shape(2, 4, 2), kit_shape(1, 1)}, (const void *[]){x, s1},
           kit_shape(1, 8), x);
    kit_free(m);
}

static void shapes_from_bad_data(void **state)
{
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t wrong[] = {3, 3}, huge[] = {INT64_MAX, 2}, negative[] = {-5, 2};
    const struct cm_shape shapes[] = {kit_shape(2, 4, 2), kit_shape(1, 2)};
    (void)state;
    fail_run(reshaped(), shapes, (const void *[]){x, wrong}, CM_INVALID, "Reshape");
    fail_run(reshaped(), shapes, (const void *[]){x, huge}, CM_INVALID, "Reshape");
    fail_run(reshaped(), shapes, (const void *[]){x, negative}, CM_INVALID, "Reshape");
}

/* x as [2,2] or as [4], which only c decides. */
static struct kit_model *of_either_rank(void)
{
    struct kit_model *m = kit_model(13), *flat = kit_model(13);
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, 2));
    kit_ints(flat, "all", 1, -1);
    kit_node(flat, "Reshape", "x,all", "r");
    kit_output(flat, "r", CM_FP32, KIT_SHAPE0());
    kit_node(m, "If", "c", "z");
    kit_attr_graph(m, "then_branch", flat);
    kit_attr_graph(m, "else_branch", branch("Identity", "x"));
    return m;
}

/* Constants whose shapes cannot be checked at load, because what they meet has no rank yet, are
 * checked in the run and not packed before. */
static void constants_behind_unknown_ranks(void **state)
{
    const float x[] = {1, 2, 3, 4}, w[] = {1, 10, 100, 1000, 10000, 100000};
    const float product[] = {2001, 20010, 200100, 4003, 40030, 400300};
    const uint8_t yes = 1, no = 0;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(2, 2, 2)};
    struct kit_model *m = of_either_rank();
    (void)state;
    kit_const(m, "w", CM_FP32, kit_shape(2, 2, 3), w);
    kit_node(m, "MatMul", "z,w", "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    expect(m, shapes, (const void *[]){&no, x}, kit_shape(2, 2, 3), product);
    fail_run(m, shapes, (const void *[]){&yes, x}, CM_INVALID, "MatMul");

    m = of_either_rank();
    kit_random(m, "scale", kit_shape(1, 2));
    kit_random(m, "short", kit_shape(1, 1));
    kit_node(m, "BatchNormalization", "z,scale,short,scale,scale", "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    fail_run(m, shapes, (const void *[]){&no, x}, CM_INVALID, "BatchNormalization");
}

/* What --explain shows of an If: both branches' plans, and which of them took time. */
static void plans_inside_a_plan(void **state)
{
    static float x[64 * 2], y[64 * 2];
    const uint8_t yes = 1;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(2, 64, 2)};
    struct kit_model *m = choice();
    struct kit_loaded l;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    uint64_t node_ns[4] = {0};
    const char *name = NULL;
    (void)state;
    kit_load_model(&l, m, 1, NULL);
    assert_int_equal(wk_plan_create(l.model, shapes, &err, &plan), CM_OK);
    assert_int_equal(wk_plan_nodes(plan), 1);
    wk_plan_time_nodes(plan, node_ns);
    void *scratch = kit_guarded(wk_plan_scratch_bytes(plan)), *out[] = {y};
    for (int i = 0; i < 3; i++)
        assert_int_equal(wk_plan_run(plan, (const void *[]){&yes, x}, out, scratch, &err), CM_OK);
    wk_plan_time_nodes(plan, NULL);
    assert_true(node_ns[0] > 0);
    const struct wk_plan *inside = wk_plan_inside(plan, 0, 0, &name);
    assert_non_null(inside);
    assert_string_equal(name, "else_branch");
    assert_true(wk_plan_inside_ns(inside, 0) == 0);
    inside = wk_plan_inside(plan, 0, 1, &name);
    assert_non_null(inside);
    assert_string_equal(name, "then_branch");
    assert_true(wk_plan_inside_ns(inside, 0) > 0);
    struct wk_node_info info;
    wk_plan_describe(inside, 0, &info);
    assert_string_equal(info.op, "Add");
    assert_null(wk_plan_inside(plan, 0, 2, &name));
    kit_guarded_free(scratch);
    wk_plan_destroy(plan);
    kit_unload(&l);
    kit_free(m);
}

/* ---- refusals ---------------------------------------------------------------------------------
 */

static void bad_subgraphs(void **state)
{
    const uint8_t yes = 1;
    (void)state;
    struct kit_model *m = kit_model(13);
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_node(m, "If", "c", "y");
    kit_attr_graph(m, "then_branch", branch("Neg", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "attribute else_branch is missing");

    m = kit_model(13);
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_node(m, "If", "c", "y");
    kit_attr_graph(m, "then_branch", branch("Neg", "nothing"));
    kit_attr_graph(m, "else_branch", branch("Neg", "nothing"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "uses \"nothing\", which nothing defines");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_node(m, "If", "x", "y");
    kit_attr_graph(m, "then_branch", branch("Neg", "x"));
    kit_attr_graph(m, "else_branch", branch("Abs", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "the condition is FP32, must be BOOL");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_node(m, "If", "c", "y,z");
    kit_attr_graph(m, "then_branch", branch("Neg", "x"));
    kit_attr_graph(m, "else_branch", branch("Abs", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "a branch must have no inputs and 2 outputs");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_node(m, "If", "c", "y");
    kit_attr_graph(m, "then_branch", branch("Neg", "x"));
    kit_attr_graph(m, "else_branch", branch("Shape", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "output 0 has different types in the branches");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_const(m, "yes", CM_BOOL, KIT_SHAPE0(), &yes);
    kit_node(m, "Loop", ",yes,x", "y");
    kit_attr_graph(m, "body", branch("Neg", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "the body has 0 inputs and 1 outputs, needs 3 and at least 2");

    m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_node(m, "Scan", "x", "y");
    kit_attr_graph(m, "body", branch("Neg", "x"));
    kit_attr_i(m, "num_scan_inputs", 2);
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "num_scan_inputs = 2 of 1 inputs");
}

/* A node of a branch that uses its own If's output: a cycle through the subgraph. */
static void a_cycle_through_a_branch(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_node(m, "If", "c", "y");
    kit_attr_graph(m, "then_branch", branch("Neg", "y"));
    kit_attr_graph(m, "else_branch", branch("Abs", "x"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    refuse(m, "cycle");
}

static void nesting_is_bounded(void **state)
{
    struct kit_model *m = branch("Neg", "x");
    (void)state;
    for (int i = 0; i < 40; i++) {
        struct kit_model *outer = kit_model(13);
        kit_node(outer, "If", "c", "r");
        kit_attr_graph(outer, "then_branch", m);
        kit_attr_graph(outer, "else_branch", branch("Abs", "x"));
        kit_output(outer, "r", CM_FP32, KIT_SHAPE0());
        m = outer;
    }
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    refuse(m, "nests deeper");
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Plans and runs with the n-th allocation failing, for every n until none fails: each time a
 * sentence, nothing lost (the address sanitizer looks), and the next run is right. */
static void exhaust(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs)
{
    struct kit_loaded l;
    long n = 0;
    kit_load_model(&l, m, 1, NULL);
    for (bool done = false; !done; n++) {
        struct wk_plan *plan = NULL;
        struct cm_error err = {0};
        void *outputs[WK_MAX_IO] = {NULL}, *scratch = NULL;
        left = n;
        enum cm_err code = wk_plan_create(l.model, shapes, &err, &plan);
        long rest = left;
        left = -1;
        if (code == CM_OK) {
            scratch = kit_guarded(wk_plan_scratch_bytes(plan));
            for (unsigned i = 0; i < wk_model_signature(l.model)->n_outputs; i++)
                if (wk_plan_output_is_settled(plan, i))
                    outputs[i] = kit_guarded(4096);
            left = rest;
            code = wk_plan_run(plan, inputs, outputs, scratch, &err);
            done = left > 0;
            left = -1;
            assert_true(code == CM_OK || code == CM_NOMEM);
            assert_int_equal(wk_plan_run(plan, inputs, outputs, scratch, &err), CM_OK);
        }
        assert_true(code == CM_OK || code == CM_NOMEM);
        wk_plan_destroy(plan);
        for (unsigned i = 0; i < WK_MAX_IO; i++)
            if (outputs[i])
                kit_guarded_free(outputs[i]);
        if (scratch)
            kit_guarded_free(scratch);
    }
    printf("%ld allocations\n", n - 1);
    kit_unload(&l);
    kit_free(m);
}

static void every_allocation_fails_once(void **state)
{
    const float x[] = {1, 2, 3, 4};
    const int64_t n = 2, s[] = {4};
    const uint8_t yes = 1;
    (void)state;
    exhaust(choice(), (struct cm_shape[]){KIT_SHAPE0(), kit_shape(2, 2, 2)},
            (const void *[]){&yes, x});
    exhaust(loop("all"), (struct cm_shape[]){KIT_SHAPE0(), KIT_SHAPE0(), kit_shape(1, 2)},
            (const void *[]){&n, &yes, x});
    exhaust(reshaped(), (struct cm_shape[]){kit_shape(2, 2, 2), kit_shape(1, 1)},
            (const void *[]){x, s});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(branches_of_one_shape),
        cmocka_unit_test(branches_of_different_shapes),
        cmocka_unit_test(branches_inside_branches),
        cmocka_unit_test(loops),
        cmocka_unit_test(a_state_that_grows),
        cmocka_unit_test(an_endless_loop),
        cmocka_unit_test(scans),
        cmocka_unit_test(shapes_from_data),
        cmocka_unit_test(shapes_from_bad_data),
        cmocka_unit_test(constants_behind_unknown_ranks),
        cmocka_unit_test(plans_inside_a_plan),
        cmocka_unit_test(bad_subgraphs),
        cmocka_unit_test(a_cycle_through_a_branch),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
