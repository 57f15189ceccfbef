/* Control flow and late shapes against files that mean harm: shapes and types that turn out in the
 * run to be others than at load, outputs that nobody wants, conditions of many numbers. Buffers are
 * guarded, so that a byte outside of one is a failure. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Plans and runs m twice and checks output 0's shape and bytes; frees m. */
static void expect(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                   struct cm_shape want_shape, const void *want, size_t want_bytes)
{
    struct kit_loaded l;
    char got_text[96], want_text[96];
    kit_load_model(&l, m, 1, NULL);
    for (int again = 0; again < 2; again++) {
        void *outputs[WK_MAX_IO] = {NULL};
        struct cm_shape got[WK_MAX_IO];
        kit_run(&l, shapes, inputs, outputs, got);
        assert_string_equal(cm_shape_format(&got[0], got_text, sizeof got_text),
                            cm_shape_format(&want_shape, want_text, sizeof want_text));
        assert_memory_equal(outputs[0], want, want_bytes);
        for (unsigned i = 0; i < WK_MAX_IO; i++)
            free(outputs[i]);
    }
    kit_unload(&l);
    kit_free(m);
}

/* Planning or running m must fail with this sentence; frees m. */
static void expect_failure(struct kit_model *m, const struct cm_shape *shapes,
                           const void *const *inputs, const char *why)
{
    struct kit_loaded l;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    void *outputs[WK_MAX_IO] = {NULL};
    kit_load_model(&l, m, 1, NULL);
    enum cm_err code = wk_plan_create(l.model, shapes, &err, &plan);
    if (code == CM_OK) {
        for (unsigned i = 0; i < wk_model_signature(l.model)->n_outputs; i++)
            outputs[i] = kit_guarded(256);
        void *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
        code = wk_plan_run(plan, inputs, outputs, scratch, &err);
        kit_guarded_free(scratch);
    }
    if (code == CM_OK || !strstr(err.text, why))
        fail_msg("wanted a failure with \"%s\", got \"%s\"", why, err.text);
    for (unsigned i = 0; i < WK_MAX_IO; i++)
        if (outputs[i])
            kit_guarded_free(outputs[i]);
    wk_plan_destroy(plan);
    kit_unload(&l);
    kit_free(m);
}

/* Outputs p = op(x) and q = -x, neither of them declared further. */
static struct kit_model *two_outputs(const char *op)
{
    struct kit_model *m = kit_model(13);
    kit_node(m, op, "x", "p");
    kit_node(m, "Neg", "x", "q");
    kit_output(m, "p", CM_FP32, KIT_SHAPE0());
    kit_output(m, "q", CM_FP32, KIT_SHAPE0());
    return m;
}

static struct kit_model *choice(int condition_rank, const char *outputs)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "c", CM_BOOL, condition_rank ? kit_shape(1, -1) : KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    kit_node(m, "If", "c", outputs);
    kit_attr_graph(m, "then_branch", two_outputs("Abs"));
    kit_attr_graph(m, "else_branch", two_outputs("Relu"));
    kit_output(m, "y", CM_FP32, kit_shape(1, 2));
    return m;
}

/* Branches write all of their outputs, also those that the node leaves out. */
static void an_output_that_nobody_wants(void **state)
{
    const float x[] = {1, -2}, negated[] = {-1, 2}, absolute[] = {1, 2};
    const uint8_t yes = 1;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(1, 2)};
    (void)state;
    expect(choice(0, ",y"), shapes, (const void *[]){&yes, x}, shapes[1], negated, sizeof negated);
    expect(choice(0, "y,"), shapes, (const void *[]){&yes, x}, shapes[1], absolute,
           sizeof absolute);
}

static void conditions_of_no_or_many_numbers(void **state)
{
    const float x[] = {1, -2};
    const uint8_t yes[] = {1, 1};
    (void)state;
    for (int n = 0; n < 3; n += 2)
        expect_failure(choice(1, "y,"), (struct cm_shape[]){kit_shape(1, n), kit_shape(1, 2)},
                       (const void *[]){yes, x}, "must be one number");
}

/* A view whose shape is data, of bytes that are known before the run: of a constant and of what
 * Shape gives, as an output and in front of another node. */
static void late_views_of_known_values(void **state)
{
    const int64_t k[] = {2, 3, 5, 7}, s[] = {2, 2}, twice[] = {4, 6, 10, 14};
    const float x[210] = {0};
    const struct cm_shape shapes[] = {kit_shape(4, 2, 3, 5, 7), kit_shape(1, 2)};
    const void *const inputs[] = {x, s};
    (void)state;
    for (int use = 0; use < 4; use++) {
        struct kit_model *m = kit_model(13);
        kit_input(m, "x", CM_FP32, kit_shape(4, -1, -1, -1, -1));
        kit_input(m, "s", CM_INT64, kit_shape(1, -1));
        if (use & 1)
            kit_const(m, "k", CM_INT64, kit_shape(1, 4), k);
        else
            kit_node(m, "Shape", "x", "k");
        kit_node(m, "Reshape", "k,s", use & 2 ? "r" : "y");
        if (use & 2)
            kit_node(m, "Add", "r,r", "y");
        kit_output(m, "y", CM_INT64, kit_shape(2, -1, -1));
        expect(m, shapes, inputs, kit_shape(2, 2, 2), use & 2 ? twice : k, sizeof k);
    }
}

enum { STATES = 8, LONG = 1000 };

/* A Scan of STATES states, each trip handing them on to the one before; only the last one is long,
 * so that it takes as many rounds of inference as there are states to see that all may be. */
static void states_that_hand_on_their_shapes(void **state)
{
    static float row[LONG];
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    struct cm_shape shapes[STATES + 1];
    const void *inputs[STATES + 1];
    char in[256] = "", out[256] = "", name[16], next[16];
    (void)state;
    for (unsigned i = 0; i < LONG; i++)
        row[i] = (float)i;
    for (unsigned i = 0; i < STATES; i++) {
        shapes[i] = i + 1 < STATES ? KIT_SHAPE0() : kit_shape(1, LONG);
        inputs[i] = row;
        snprintf(name, sizeof name, "i%u", i);
        kit_input(m, name, CM_FP32, shapes[i]);
        strcat(strcat(in, name), ",");
        snprintf(name, sizeof name, i ? "f%u" : "y", i);
        strcat(strcat(out, i ? "," : ""), name);
        snprintf(name, sizeof name, "s%u", i);
        kit_input(body, name, CM_FP32, KIT_SHAPE0());
    }
    kit_input(body, "piece", CM_FP32, KIT_SHAPE0());
    for (unsigned i = 0; i < STATES; i++) {
        snprintf(name, sizeof name, "s%u", (i + 1) % STATES);
        snprintf(next, sizeof next, "t%u", i);
        kit_node(body, "Identity", name, next);
        kit_output(body, next, CM_FP32, KIT_SHAPE0());
    }
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    shapes[STATES] = kit_shape(1, STATES - 1);
    inputs[STATES] = row;
    kit_node(m, "Scan", strcat(in, "x"), out);
    kit_attr_graph(m, "body", body);
    kit_attr_i(m, "num_scan_inputs", 1);
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    expect(m, shapes, inputs, kit_shape(1, LONG), row, sizeof row);
}

/* A Loop of no trips: it gives back x, but nobody can say so before the run. */
static void add_unknown(struct kit_model *m, const char *in, const char *out)
{
    const int64_t none = 0;
    struct kit_model *body = kit_model(13);
    kit_input(body, "i", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, KIT_SHAPE0());
    kit_ints(body, "more", 1, 0);
    kit_node(body, "Unsqueeze", "a,more", "b");
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "b", CM_FP32, KIT_SHAPE0());
    kit_const(m, "none", CM_INT64, KIT_SHAPE0(), &none);
    kit_node(m, "Loop", in, out);
    kit_attr_graph(m, "body", body);
}

/* One of FP32, and one whose type is not known at load: what follows relies on FP32. */
static void a_branch_of_another_type(void **state)
{
    const float x[] = {1, 2};
    const uint8_t yes = 1;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(1, 2)};
    struct kit_model *m = kit_model(13), *a = kit_model(13), *b = kit_model(13);
    (void)state;
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    add_unknown(m, "none,,x", "u");
    kit_node(a, "Cast", "u", "r");
    kit_attr_i(a, "to", 11);
    kit_output(a, "r", CM_FP64, KIT_SHAPE0());
    kit_node(b, "Neg", "x", "r");
    kit_output(b, "r", CM_FP32, KIT_SHAPE0());
    kit_node(m, "If", "c", "z");
    kit_attr_graph(m, "then_branch", a);
    kit_attr_graph(m, "else_branch", b);
    kit_node(m, "Identity", "z", "y");
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    expect_failure(m, shapes, (const void *[]){&yes, x}, "output 0 must be FP32 but is FP64");
}

static void a_state_that_changes_its_type(void **state)
{
    const float x[] = {1, 2};
    const int64_t n = 1;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(1, 2)};
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    (void)state;
    kit_input(m, "n", CM_INT64, KIT_SHAPE0());
    kit_input(m, "x", CM_FP32, kit_shape(1, 2));
    add_unknown(m, "none,,x", "u");
    kit_input(body, "i", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, KIT_SHAPE0());
    kit_node(body, "Cast", "u", "b");
    kit_attr_i(body, "to", 11);
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "b", CM_FP32, KIT_SHAPE0());
    kit_node(m, "Loop", "n,,x", "y");
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    expect_failure(m, shapes, (const void *[]){&n, x}, "carried value 0 changes its type");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_that_nobody_wants),
        cmocka_unit_test(conditions_of_no_or_many_numbers),
        cmocka_unit_test(late_views_of_known_values),
        cmocka_unit_test(states_that_hand_on_their_shapes),
        cmocka_unit_test(a_branch_of_another_type),
        cmocka_unit_test(a_state_that_changes_its_type),
    };
    return cmocka_run_group_tests_name("flow_hostile", tests, NULL, NULL);
}
