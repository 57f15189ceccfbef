/* Operators that sum up, on tensors large enough that threads share the work: one thread and two
 * must give equal bytes, in every floating type. What the values are is for the other tests. */
#include "tests/engine/typed_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

/* Operand x, up to four further ones p, q, r, s of one shape, and the result y. */
struct job {
    const char *op, *inputs, *attribute;
    int opset, value;
    struct cm_shape x, p, y;
    bool positions; /* the result is INT64 */
};

#define S1(a) \
    {         \
        1,    \
        {     \
            a \
        }     \
    }
#define S2(a, b) \
    {            \
        2,       \
        {        \
            a, b \
        }        \
    }
#define S3(a, b, c) \
    {               \
        3,          \
        {           \
            a, b, c \
        }           \
    }
#define S4(a, b, c, d) \
    {                  \
        4,             \
        {              \
            a, b, c, d \
        }              \
    }
#define NONE \
    {        \
        0    \
    }

static const struct job jobs[] = {
    {"ReduceMean", "x", "keepdims", 13, 0, S3(80, 90, 40), NONE, NONE, false}, /* one result */
    {"ArgMax", "x", "axis", 13, 1, S3(80, 90, 40), NONE, S3(80, 1, 40), true},
    {"ArgMin", "x", "axis", 13, 2, S3(80, 90, 40), NONE, S3(80, 90, 1), true},
    {"Softmax", "x", "axis", 13, 1, S3(80, 90, 40), NONE, S3(80, 90, 40), false},
    {"LogSoftmax", "x", "axis", 13, 2, S3(80, 90, 40), NONE, S3(80, 90, 40), false},
    {"Hardmax", "x", "axis", 13, 0, S3(80, 90, 40), NONE, S3(80, 90, 40), false},
    {"GlobalLpPool", "x", "p", 13, 3, S4(30, 40, 10, 12), NONE, S4(30, 40, 1, 1), false},
    {"GlobalAveragePool", "x", NULL, 13, 0, S4(30, 40, 10, 12), NONE, S4(30, 40, 1, 1), false},
    {"MatMul", "x,p", NULL, 13, 0, S3(3, 60, 70), S2(70, 90), S3(3, 60, 90), false},
    {"MatMul", "x,p", NULL, 13, 0, S3(5, 6, 70), S3(5, 70, 90), S3(5, 6, 90), false},
    {"Gemm", "x,p", "transA", 13, 1, S2(70, 60), S2(70, 200), S2(60, 200), false},
    {"Det", "x", NULL, 13, 0, S3(500, 9, 9), NONE, S1(500), false},
    {"LayerNormalization", "x,p", "axis", 17, -1, S3(80, 90, 40), S1(40), S3(80, 90, 40), false},
    {"LayerNormalization", "x,p", "axis", 17, 1, S3(80, 90, 40), S2(90, 1), S3(80, 90, 40), false},
    {"InstanceNormalization", "x,p,q", NULL, 13, 0, S3(80, 90, 40), S1(90), S3(80, 90, 40), false},
    {"GroupNormalization", "x,p,q", "num_groups", 21, 9, S3(80, 90, 40), S1(90), S3(80, 90, 40),
     false},
    {"BatchNormalization", "x,p,q,r,s", "training_mode", 15, 0, S3(80, 90, 40), S1(90),
     S3(80, 90, 40), false},
    {"BatchNormalization", "x,p,q,r,s", "training_mode", 15, 1, S3(80, 90, 40), S1(90),
     S3(80, 90, 40), false},
    {"LRN", "x", "size", 13, 5, S3(80, 90, 40), NONE, S3(80, 90, 40), false},
    {"LpNormalization", "x", "axis", 13, 1, S3(80, 90, 40), NONE, S3(80, 90, 40), false},
    {"MeanVarianceNormalization", "x", NULL, 13, 0, S4(40, 50, 12, 12), NONE, S4(40, 50, 12, 12),
     false},
};

static void run_job(const struct job *j, enum cm_dtype dtype)
{
    static const char *const names[] = {"p", "q", "r", "s"};
    struct typed_case c;
    typed_begin(&c, j->opset);
    typed_random(&c, "x", dtype, j->x, 2);
    for (int k = 0; k < COUNT(names); k++)
        if (strchr(j->inputs, names[k][0])) {
            struct typed_operand *o = typed_random(&c, names[k], dtype, j->p, 2);
            for (size_t i = 0; i < o->count && k == 3; i++)
                o->v[i] = fabs(o->v[i]) + 0.5; /* a variance */
        }
    kit_node(c.model, j->op, j->inputs, "y");
    if (j->attribute)
        kit_attr_i(c.model, j->attribute, j->value);
    typed_output(&c, "y", j->positions ? CM_INT64 : dtype, j->y);
    typed_run(&c);
    typed_end(&c);
}

static void shared_work(void **state)
{
    static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};
    (void)state;
    for (int i = 0; i < COUNT(jobs); i++)
        for (int t = 0; t < COUNT(floats); t++)
            run_job(&jobs[i], floats[t]);
}

/* Reductions by attribute, over axes that lie together and that do not. */
static void shared_reductions(void **state)
{
    static const char *const ops[] = {"ReduceMax",  "ReduceMin",       "ReduceL1",       "ReduceL2",
                                      "ReduceProd", "ReduceLogSumExp", "ReduceSumSquare"};
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64, CM_FP16, CM_INT32, CM_UINT64};
    (void)state;
    for (int op = 0; op < COUNT(ops); op++)
        for (int t = 0; t < COUNT(types); t++)
            for (int apart = 0; apart < 2; apart++) {
                struct typed_case c;
                typed_begin(&c, 13);
                typed_random(&c, "x", types[t], kit_shape(3, 80, 90, 40), 2);
                kit_node(c.model, ops[op], "x", "y");
                kit_attr_ints(c.model, "axes", 1 + apart, apart ? 0 : 1, 2);
                kit_attr_i(c.model, "keepdims", 0);
                typed_output(&c, "y", types[t], apart ? kit_shape(1, 90) : kit_shape(2, 80, 40));
                typed_run(&c);
                typed_end(&c);
            }
}

static void shared_rest(void **state)
{
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64, CM_BF16, CM_INT32};
    static const double axis = 1;
    (void)state;
    for (int t = 0; t < COUNT(types); t++) {
        struct typed_case c;
        typed_begin(&c, 14);
        typed_random(&c, "x", types[t], kit_shape(3, 80, 90, 40), 2);
        typed_values(&c, "axis", CM_INT64, KIT_SHAPE0(), &axis);
        kit_node(c.model, "CumSum", "x,axis", "sums");
        kit_ints(c.model, "k", 1, 7);
        kit_node(c.model, "TopK", "x,k", "values,indices");
        kit_attr_i(c.model, "axis", 1);
        kit_node(c.model, "Einsum", "x,x", "products");
        kit_attr_s(c.model, "equation", "abc,adc->abd");
        kit_node(c.model, "Einsum", "x", "total");
        kit_attr_s(c.model, "equation", "abc->cb");
        typed_output(&c, "sums", types[t], kit_shape(3, 80, 90, 40));
        typed_output(&c, "values", types[t], kit_shape(3, 80, 7, 40));
        typed_output(&c, "indices", CM_INT64, kit_shape(3, 80, 7, 40));
        typed_output(&c, "products", types[t], kit_shape(3, 80, 90, 90));
        typed_output(&c, "total", types[t], kit_shape(2, 40, 90));
        typed_run(&c);
        typed_end(&c);
        if (!typed_is_float(types[t]))
            continue;
        typed_begin(&c, 13);
        typed_random(&c, "x", types[t], kit_shape(3, 200, 30, 20), 2);
        struct typed_operand *labels = typed_random(&c, "t", CM_INT32, kit_shape(2, 200, 20), 29);
        for (size_t i = 0; i < labels->count; i++)
            labels->v[i] = fabs(labels->v[i]);
        kit_node(c.model, "SoftmaxCrossEntropyLoss", "x,t", "y,logs");
        typed_output(&c, "y", types[t], KIT_SHAPE0());
        typed_output(&c, "logs", types[t], kit_shape(3, 200, 30, 20));
        typed_run(&c);
        typed_end(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_work),
        cmocka_unit_test(shared_reductions),
        cmocka_unit_test(shared_rest),
    };
    return cmocka_run_group_tests_name("split_ops", tests, NULL, NULL);
}
