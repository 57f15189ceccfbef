/* Values of attributes that no request can make right are refused when the file is loaded, however
 * little is known of the node's inputs by then. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void refuse(struct kit_model *m, const char *part)
{
    struct wk_engine *engine = kit_engine(1, NULL);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    size_t length;
    void *bytes = kit_bytes(m, &length);
    enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (code == CM_OK || !strstr(err.text, part))
        fail_msg("wanted a refusal with \"%s\", got %s \"%s\"", part, cm_err_name(code), err.text);
    assert_true(code == CM_INVALID || code == CM_UNSUPPORTED);
    wk_engine_destroy(engine);
    free(bytes);
    kit_free(m);
}

/* The operator's input has not even a known rank at load; what its attributes say is still held
 * against it there. */
static void values_without_shapes(void **state)
{
    static const struct {
        int opset;
        const char *op, *inputs, *name;
        char type;
        int n, values[4];
        const char *text, *part;
    } cases[] = {
        {13, "Conv", "u,u", "strides", 'I', 2, {1, 0}, NULL, "strides has the value 0"},
        {13, "Conv", "u,u", "strides", 'I', 4, {1, 1, 1, 1}, NULL, "4 spatial dimensions"},
        {13, "Conv", "u,u", "pads", 'I', 3, {0, 0, 0}, NULL, "pads has 3 entries"},
        {13, "Conv", "u,u", "pads", 'I', 2, {0, -1}, NULL, "pads has the value -1"},
        {13, "Conv", "u,u", "group", 'i', 1, {-1}, NULL, "group -1"},
        {13, "Conv", "u,u", "auto_pad", 's', 0, {0}, "SAME", "is not one of ONNX's"},
        {13, "ConvTranspose", "u,u", "output_padding", 'I', 1, {1}, NULL, "is not below"},
        {13, "MaxPool", "u", "kernel_shape", 'I', 2, {3, 0}, NULL, "kernel_shape has the value 0"},
        {13, "MaxPool", "u", "strides", 'I', 1, {1}, NULL, "kernel_shape is missing"},
        {13, "MaxUnpool", "u,u", "kernel_shape", 'I', 1, {-2}, NULL, "kernel_shape has"},
        {18, "LpPool", "u", "p", 'i', 1, {65}, NULL, "p = 65"},
        {18, "Col2Im", "u,u,u", "dilations", 'I', 2, {1, 0}, NULL, "dilations 0"},
        {18, "Resize", "u,,u", "mode", 's', 0, {0}, "area", "mode must be"},
        {18, "Resize", "u,,u", "axes", 'I', 1, {8}, NULL, "axes 8"},
        {18, "Pad", "u,u", "mode", 's', 0, {0}, "wrap", "mode must be"},
        {18, "ScatterND", "u,u,u", "reduction", 's', 0, {0}, "mean", "reduction must be"},
        {13, "NegativeLogLikelihoodLoss", "u,u", "reduction", 's', 0, {0}, "max", "reduction"},
        {20, "GridSample", "u,u", "padding_mode", 's', 0, {0}, "ones", "padding_mode must be"},
        {16, "RoiAlign", "u,u,u", "sampling_ratio", 'i', 1, {-1}, NULL, "sampling_ratio -1"},
        {13, "LSTM", "u,u,u", "direction", 's', 0, {0}, "sideways", "direction must be"},
        {14, "GRU", "u,u,u", "layout", 'i', 1, {2}, NULL, "layout must be 0 or 1"},
        {11, "BitShift", "u,u", "direction", 's', 0, {0}, "UP", "LEFT or RIGHT"},
        {20, "Gelu", "u", "approximate", 's', 0, {0}, "erf", "none or tanh"},
        {13, "DepthToSpace", "u", "blocksize", 'i', 1, {0}, NULL, "blocksize 0"},
        {13, "Transpose", "u", "perm", 'I', 2, {0, -1}, NULL, "perm -1"},
        {13, "Transpose", "u", "perm", 'I', 3, {0, 1, 1}, NULL, "perm is not a permutation"},
        {11, "ReduceSum", "u", "axes", 'I', 2, {0, 0}, NULL, "repeated"},
        {13, "Softmax", "u", "axis", 'i', 1, {99}, NULL, "axis 99"},
        {13, "Cast", "u", "to", 'i', 1, {8}, NULL, "to = 8"},
        {9, "Slice", "u", "starts", 'I', 2, {0, 0}, NULL, "do not fit"},
        {9, "Upsample", "u,u", "mode", 's', 0, {0}, "cubic", "mode must be"},
        {9, "TfIdfVectorizer", "u", "mode", 's', 0, {0}, "TF", "is missing"},
        {9, "TopK", "u", "k", 'i', 1, {-1}, NULL, "k -1"},
        {13, "Einsum", "u", "equation", 's', 0, {0}, "i,j", "more terms"},
        {13, "Einsum", "u,u", "equation", 's', 0, {0}, "i?,j", "no letter"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kit_model *m = kit_model(cases[i].opset);
        kit_input(m, "x", CM_FP32, kit_shape(2, -1, 4));
        kit_input(m, "s", CM_INT64, kit_shape(1, -1));
        kit_output(m, "y", CM_FP32, kit_shape(1, -1));
        kit_node(m, "Reshape", "x,s", "u");
        kit_node(m, cases[i].op, cases[i].inputs, "y");
        if (cases[i].type == 's')
            kit_attr_s(m, cases[i].name, cases[i].text);
        else if (cases[i].type == 'i')
            kit_attr_i(m, cases[i].name, cases[i].values[0]);
        else
            kit_attr_ints(m, cases[i].name, cases[i].n, cases[i].values[0], cases[i].values[1],
                          cases[i].values[2], cases[i].values[3]);
        refuse(m, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_without_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
