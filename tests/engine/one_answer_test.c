/* One answer, for generated networks, and for a model file when one is named:
 *
 *     one_answer_test                       generated networks
 *     one_answer_test FILE 3,48,192         this model with rows of this shape (one input)
 *     one_answer_test FILE NAME=X.npy...    this model with the rows of these files, one for each
 *                                           input; whole if the model is not batchable
 *
 * With a second form's shape the rows are seeded. */
#include "deploy/ingot/tensor_file.h"
#include "tests/engine/kit.h"
#include "tests/engine/one_answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char **arguments; /* FILE and what follows; taken from the front */

static void check(struct kit_model *m, struct cm_shape row)
{
    size_t length;
    void *bytes = kit_bytes(m, &length);
    struct one_answer_model model = {
        .bytes = bytes, .length = length, .shapes = &row, .rows = ONE_ANSWER_ROWS};
    unsigned checked = one_answer(&model);
    assert_true(checked >= 3);
    print_message("%u combinations of instruction set and threads agree\n", checked);
    free(bytes);
    kit_free(m);
}

/* Convolutions of every kind, normalisation, a gate with broadcasting, pooling, a classifier. */
static void convolutional_network(void **state)
{
    struct kit_model *m = kit_model(14);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(4, -1, 3, 19, 23));
    kit_random(m, "w1", kit_shape(4, 20, 3, 3, 3));
    kit_random(m, "b1", kit_shape(1, 20));
    kit_node(m, "Conv", "x,w1,b1", "c1");
    kit_attr_ints(m, "pads", 4, 1, 1, 1, 1);
    kit_attr_ints(m, "strides", 2, 2, 1);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        kit_random(m, name, kit_shape(1, 20));
    }
    float variance[20];
    for (int i = 0; i < 20; i++)
        variance[i] = 0.5f + 0.1f * (float)i;
    kit_const(m, "var", CM_FP32, kit_shape(1, 20), variance);
    kit_node(m, "BatchNormalization", "c1,n0,n1,n2,var", "n");
    kit_node(m, "HardSwish", "n", "h");
    kit_random(m, "w2", kit_shape(4, 20, 1, 5, 5));
    kit_node(m, "Conv", "h,w2", "d");
    kit_attr_i(m, "group", 20);
    kit_attr_ints(m, "pads", 4, 2, 2, 2, 2);
    kit_node(m, "GlobalAveragePool", "d", "g");
    kit_random(m, "w3", kit_shape(4, 20, 20, 1, 1));
    kit_node(m, "Conv", "g,w3", "s");
    kit_node(m, "Sigmoid", "s", "gate");
    kit_node(m, "Mul", "d,gate", "gated");
    kit_random(m, "w4", kit_shape(4, 24, 5, 3, 1));
    kit_node(m, "Conv", "gated,w4", "q");
    kit_attr_i(m, "group", 4);
    kit_attr_ints(m, "dilations", 2, 2, 1);
    kit_node(m, "Relu", "q", "r");
    kit_node(m, "MaxPool", "r", "p");
    kit_attr_ints(m, "kernel_shape", 2, 2, 2);
    kit_attr_ints(m, "strides", 2, 2, 2);
    kit_node(m, "Flatten", "p", "f");
    kit_random(m, "w5", kit_shape(2, 10, 24 * 3 * 11));
    kit_random(m, "b5", kit_shape(1, 10));
    kit_node(m, "Gemm", "f,w5,b5", "y");
    kit_attr_i(m, "transB", 1);
    kit_node(m, "Softmax", "y", "z");
    kit_output(m, "z", CM_FP32, kit_shape(2, -1, 10));
    check(m, kit_shape(4, 1, 3, 19, 23));
}

/* Two inputs' worth of attention-like products, softmax, reductions, transposes. */
static void attention_like_network(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(3, -1, 13, 24));
    kit_random(m, "wq", kit_shape(2, 24, 24));
    kit_random(m, "wk", kit_shape(2, 24, 24));
    kit_random(m, "wv", kit_shape(2, 24, 50));
    kit_node(m, "MatMul", "x,wq", "q");
    kit_node(m, "MatMul", "x,wk", "k");
    kit_node(m, "MatMul", "x,wv", "v");
    kit_node(m, "Transpose", "k", "kt");
    kit_attr_ints(m, "perm", 3, 0, 2, 1);
    kit_node(m, "MatMul", "q,kt", "scores");
    kit_node(m, "Softmax", "scores", "p");
    kit_node(m, "MatMul", "p,v", "o");
    kit_node(m, "Tanh", "o", "t");
    kit_node(m, "Erf", "t", "e");
    kit_node(m, "Exp", "e", "ex");
    kit_node(m, "ReduceMean", "ex", "mean");
    kit_attr_ints(m, "axes", 1, 1);
    kit_attr_i(m, "keepdims", 0);
    kit_node(m, "LogSoftmax", "mean", "y");
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, 50));
    kit_output(m, "t", CM_FP32, kit_shape(3, -1, 13, 50));
    check(m, kit_shape(3, 1, 13, 24));
}

static void *read_file(const char *name, size_t *ret_length)
{
    FILE *file = fopen(name, "rb");
    if (!file)
        fail_msg("%s cannot be opened", name);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    rewind(file);
    assert_true(length > 0);
    void *bytes = malloc((size_t)length);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)length, file), length);
    fclose(file);
    *ret_length = (size_t)length;
    return bytes;
}

static struct cm_shape parse_row(const char *text)
{
    struct cm_shape row = {.rank = 1, .dims = {1}};
    while (*text && row.rank < CM_MAX_RANK) {
        char *end;
        row.dims[row.rank++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    return row;
}

/* Files NAME=X.npy as tensors in the signature's order. */
static void read_inputs(const struct wk_signature *signature, struct ig_tensor *tensors)
{
    for (char **argument = arguments; *argument; argument++) {
        struct cm_error err = {0};
        const char *equals = strchr(*argument, '=');
        size_t length = equals ? (size_t)(equals - *argument) : 0;
        unsigned at = 0;
        while (at < signature->n_inputs && (strlen(signature->inputs[at].name) != length ||
                                            memcmp(signature->inputs[at].name, *argument, length)))
            at++;
        if (!equals || at == signature->n_inputs)
            fail_msg("%s is not INPUT=FILE of this model", *argument);
        if (ig_tensor_read(equals + 1, &err, &tensors[at]) != CM_OK)
            fail_msg("%s", err.text);
        assert_int_equal(tensors[at].dtype, signature->inputs[at].dtype);
    }
    for (unsigned i = 0; i < signature->n_inputs; i++)
        if (!tensors[i].data)
            fail_msg("input %s is missing", signature->inputs[i].name);
}

/* A batchable model's rows are counted by the first dimension of its inputs. */
static void with_files(struct one_answer_model *model)
{
    struct ig_tensor tensors[WK_MAX_IO] = {0};
    struct cm_shape shapes[WK_MAX_IO];
    const void *data[WK_MAX_IO];
    struct kit_loaded loaded;
    kit_load(&loaded, model->bytes, model->length, 1, NULL);
    const struct wk_signature *signature = wk_model_signature(loaded.model);
    read_inputs(signature, tensors);
    model->rows = 1;
    for (unsigned i = 0; i < signature->n_inputs; i++) {
        shapes[i] = tensors[i].shape;
        data[i] = tensors[i].data;
        if (!signature->batchable)
            continue;
        assert_true(shapes[i].rank > 0 && shapes[i].dims[0] <= ONE_ANSWER_ROWS);
        assert_true(i == 0 || shapes[i].dims[0] == shapes[0].dims[0]);
        model->rows = (unsigned)shapes[i].dims[0];
    }
    print_message("%s\n", signature->batchable ? "batchable" : signature->why_not);
    kit_unload(&loaded);
    model->shapes = shapes;
    model->data = data;
    print_message("%u combinations of instruction set and threads agree on %u rows\n",
                  one_answer(model), model->rows);
    for (unsigned i = 0; i < WK_MAX_IO; i++)
        ig_tensor_fini(&tensors[i]);
}

static void named_model(void **state)
{
    struct one_answer_model model = {.rows = ONE_ANSWER_ROWS, .brief = true};
    void *bytes = read_file(arguments[0], &model.length);
    (void)state;
    model.bytes = bytes;
    if (strchr(*++arguments, '=')) {
        with_files(&model);
    } else {
        struct cm_shape row = parse_row(*arguments);
        model.brief = false;
        model.shapes = &row;
        print_message("%u combinations of instruction set and threads agree\n", one_answer(&model));
    }
    free(bytes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest named[] = {cmocka_unit_test(named_model)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutional_network),
        cmocka_unit_test(attention_like_network),
    };
    if (argc > 2) {
        arguments = argv + 1;
        return cmocka_run_group_tests(named, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
