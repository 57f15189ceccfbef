/* Structured changes to models; see mutate.h. Tests only: running out of memory aborts. */
#include "tests/fuzz/mutate.h"

#include "common/tensor.h"
#include "gpu-worker/graph/graph.h"
#include "gpu-worker/graph/wire.h"
#include "tests/fuzz/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MAX_DATA     65536 /* bytes of a constant that is made here */

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static void *take(size_t bytes)
{
    return need(calloc(1, bytes ? bytes : 1));
}

static char *copy_text(const char *text)
{
    return need(strdup(text));
}

static void replace_text(char **text, const char *with)
{
    char *copy = copy_text(with);
    if (*text && *text != protobuf_c_empty_string)
        free(*text);
    *text = copy;
}

/* Appends to a repeated field of pointers. */
static void append(void *list, size_t *count, void *item)
{
    void ***items = list;
    *items = need(realloc(*items, (*count + 1) * sizeof(void *)));
    (*items)[(*count)++] = item;
}

/* Takes one out of a repeated field of pointers. */
static void *take_out(void *list, size_t *count, size_t at)
{
    void **items = list, *item = items[at];
    memmove(items + at, items + at + 1, (*count - at - 1) * sizeof(void *));
    (*count)--;
    return item;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int64_t absurd_number(uint64_t *random)
{
    static const int64_t numbers[] = {0,
                                      -1,
                                      1,
                                      2,
                                      3,
                                      4,
                                      5,
                                      7,
                                      8,
                                      9,
                                      16,
                                      17,
                                      31,
                                      64,
                                      255,
                                      256,
                                      65535,
                                      65536,
                                      -2,
                                      -3,
                                      -4,
                                      -5,
                                      1024,
                                      1000,
                                      1 << 20,
                                      1 << 30,
                                      INT32_MAX,
                                      INT32_MIN,
                                      INT64_MAX,
                                      INT64_MIN,
                                      (int64_t)1 << 32,
                                      (int64_t)1 << 40,
                                      (int64_t)1 << 62,
                                      -(1ll << 33)};
    /* Small ones more often: they fit something. */
    return below(random, 3) ? (int64_t)below(random, 8) - 2
                            : numbers[below(random, COUNT(numbers))];
}

static float absurd_float(uint64_t *random)
{
    static const float numbers[] = {0.0f,  -0.0f,  1.0f, -1.0f,  0.5f,   2.0f,  1e-38f, 1e38f,
                                    1e30f, -1e30f, 3.7f, 1e-45f, 255.0f, 0.25f, -0.75f, 65504.0f};
    size_t i = below(random, COUNT(numbers) + 3);
    return i < COUNT(numbers)        ? numbers[i]
           : i == COUNT(numbers)     ? __builtin_nanf("")
           : i == COUNT(numbers) + 1 ? __builtin_inff()
                                     : -__builtin_inff();
}

static const char *absurd_word(uint64_t *random)
{
    static const char *const words[] = {"",
                                        "x",
                                        "SAME_UPPER",
                                        "SAME_LOWER",
                                        "VALID",
                                        "NOTSET",
                                        "constant",
                                        "reflect",
                                        "edge",
                                        "wrap",
                                        "nearest",
                                        "linear",
                                        "cubic",
                                        "bilinear",
                                        "bicubic",
                                        "zeros",
                                        "border",
                                        "reflection",
                                        "avg",
                                        "max",
                                        "sum",
                                        "mean",
                                        "none",
                                        "add",
                                        "mul",
                                        "min",
                                        "half_pixel",
                                        "asymmetric",
                                        "align_corners",
                                        "pytorch_half_pixel",
                                        "tf_crop_and_resize",
                                        "half_pixel_symmetric",
                                        "output_half_pixel",
                                        "round_prefer_floor",
                                        "round_prefer_ceil",
                                        "floor",
                                        "ceil",
                                        "stretch",
                                        "not_larger",
                                        "not_smaller",
                                        "forward",
                                        "reverse",
                                        "bidirectional",
                                        "DCR",
                                        "CRD",
                                        "LEFT",
                                        "RIGHT",
                                        "tanh",
                                        "Relu",
                                        "Sigmoid",
                                        "Tanh",
                                        "Affine",
                                        "ij,jk->ik",
                                        "ii",
                                        "...ij->...ji",
                                        "bij,bjk",
                                        "i->",
                                        "->",
                                        "a,b,c->abc",
                                        "ij,",
                                        "i,,j",
                                        "ijj->i",
                                        "... ->",
                                        "zzz->z"};
    return words[below(random, COUNT(words))];
}

static const char *absurd_op(uint64_t *random)
{
    return wk_op_name((enum wk_op)below(random, WK_OP_COUNT));
}

static int32_t absurd_dtype(uint64_t *random)
{
    return below(random, 12) ? (int32_t)(1 + below(random, 16)) : (int32_t)absurd_number(random);
}

/* Contents that an operator might take for indices, sizes, or numbers. */
static void fill(void *data, enum cm_dtype dtype, size_t count, uint64_t *random)
{
    size_t each = cm_dtype_size(dtype);
    bool absurd = below(random, 4) == 0, positive = below(random, 2);
    for (size_t i = 0; i < count; i++) {
        int64_t n = absurd ? absurd_number(random) : (int64_t)below(random, 6) - (positive ? 0 : 2);
        float f = absurd ? absurd_float(random) : (float)n * 0.75f;
        double d = f;
        const void *from = dtype == CM_FP32 ? (const void *)&f : dtype == CM_FP64 ? (void *)&d : &n;
        if (dtype == CM_BOOL)
            n &= 1;
        else if (dtype == CM_FP16 || dtype == CM_BF16)
            n = (int64_t)next(random);
        memcpy((char *)data + i * each, from, each);
    }
}

/* A constant with data that fits it: up to four small dimensions. */
static void make_data(Onnx__TensorProto *t, int32_t onnx_dtype, const struct cm_shape *shape,
                      uint64_t *random)
{
    enum cm_dtype dtype = cm_dtype_from_onnx(onnx_dtype);
    int64_t count;
    if (dtype == CM_DTYPE_NONE || cm_shape_count(shape, &count) != CM_OK || count > MAX_DATA / 8)
        return;
    free(t->float_data), t->float_data = NULL, t->n_float_data = 0;
    free(t->int32_data), t->int32_data = NULL, t->n_int32_data = 0;
    free(t->int64_data), t->int64_data = NULL, t->n_int64_data = 0;
    free(t->double_data), t->double_data = NULL, t->n_double_data = 0;
    free(t->uint64_data), t->uint64_data = NULL, t->n_uint64_data = 0;
    free(t->raw_data.data);
    free(t->dims);
    t->data_type = onnx_dtype;
    t->has_data_type = 1;
    t->n_dims = shape->rank;
    t->dims = take(shape->rank * sizeof *t->dims);
    memcpy(t->dims, shape->dims, shape->rank * sizeof *t->dims);
    t->has_raw_data = 1;
    t->raw_data.len = (size_t)count * cm_dtype_size(dtype);
    t->raw_data.data = take(t->raw_data.len);
    fill(t->raw_data.data, dtype, (size_t)count, random);
}

static struct cm_shape small_shape(uint64_t *random)
{
    struct cm_shape shape = {.rank = (uint8_t)below(random, 5)};
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = below(random, 9) ? 1 + (int64_t)below(random, 5) : 0;
    return shape;
}

static Onnx__TensorProto *make_tensor(const char *name, uint64_t *random)
{
    static const int32_t usual[] = {1, 7, 7, 6, 9, 2, 3, 10, 11};
    Onnx__TensorProto *t = take(sizeof *t);
    struct cm_shape shape = small_shape(random);
    onnx__tensor_proto__init(t);
    t->name = copy_text(name);
    make_data(t, usual[below(random, COUNT(usual))], &shape, random);
    return t;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static void fill_attribute(Onnx__AttributeProto *a, char letter, uint64_t *random)
{
    static const char letters[] = "fistFI";
    a->has_type = 1;
    if (below(random, 20) == 0)
        letter = letters[below(random, sizeof letters - 1)];
    switch (letter) {
    case 'f':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
        a->has_f = 1;
        a->f = absurd_float(random);
        break;
    case 's': {
        const char *word = absurd_word(random);
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
        if (a->has_s)
            free(a->s.data);
        a->has_s = 1;
        a->s.data = (uint8_t *)copy_text(word);
        a->s.len = strlen(word);
        break;
    }
    case 't':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
        if (a->t)
            onnx__tensor_proto__free_unpacked(a->t, NULL);
        a->t = make_tensor("", random);
        break;
    case 'F':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS;
        a->n_floats = below(random, 9);
        a->floats = need(realloc(a->floats, (a->n_floats + 1) * sizeof *a->floats));
        for (size_t i = 0; i < a->n_floats; i++)
            a->floats[i] = absurd_float(random);
        break;
    case 'I':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
        a->n_ints = below(random, 9);
        a->ints = need(realloc(a->ints, (a->n_ints + 1) * sizeof *a->ints));
        for (size_t i = 0; i < a->n_ints; i++)
            a->ints[i] = absurd_number(random);
        break;
    default:
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        a->has_i = 1;
        a->i = absurd_number(random);
    }
}

/* The name and type letter of one attribute that the operator has in this opset; false if none. */
static bool pick_attribute(const char *op_type, int64_t opset, uint64_t *random, char name[64],
                           char *ret_letter)
{
    enum wk_op op = wk_op_from_name(op_type);
    const struct wk_op_version *version = op == WK_OP_COUNT ? NULL : wk_op_version(op, opset);
    const char *at = version ? version->attributes : "";
    size_t n = 0;
    for (const char *c = at; *c; c++)
        n += *c == ':';
    if (n == 0)
        return false;
    for (size_t i = below(random, n); i > 0; i--)
        at = strchr(at, ' ') + 1;
    size_t length = strcspn(at, ":");
    if (length > 63)
        return false;
    memcpy(name, at, length);
    name[length] = 0;
    *ret_letter = at[length + 1];
    return true;
}

static void add_attribute(Onnx__NodeProto *node, int64_t opset, uint64_t *random)
{
    char name[64], letter;
    if (!pick_attribute(node->op_type ? node->op_type : "", opset, random, name, &letter))
        return;
    for (size_t i = 0; i < node->n_attribute; i++) {
        if (strcmp(node->attribute[i]->name ? node->attribute[i]->name : "", name) == 0) {
            fill_attribute(node->attribute[i], letter, random);
            return;
        }
    }
    if (letter == 'g')
        return;
    Onnx__AttributeProto *a = take(sizeof *a);
    onnx__attribute_proto__init(a);
    a->name = copy_text(name);
    fill_attribute(a, letter, random);
    append(&node->attribute, &node->n_attribute, a);
}

static void drop_attribute(Onnx__NodeProto *node, size_t at)
{
    Onnx__AttributeProto *a = take_out(node->attribute, &node->n_attribute, at);
    onnx__attribute_proto__free_unpacked(a, NULL);
}

/* A small change to what is there. */
static void nudge_attribute(Onnx__NodeProto *node, uint64_t *random)
{
    if (!node->n_attribute)
        return;
    Onnx__AttributeProto *a = node->attribute[below(random, node->n_attribute)];
    if (a->n_ints && below(random, 4) == 0)
        a->n_ints--;
    else if (a->n_ints)
        a->ints[below(random, a->n_ints)] = absurd_number(random);
    else if (a->n_floats)
        a->floats[below(random, a->n_floats)] = absurd_float(random);
    else if (a->has_f)
        a->f = absurd_float(random);
    else if (a->has_s)
        fill_attribute(a, 's', random);
    else if (a->has_i)
        a->i = below(random, 2) ? absurd_number(random) : a->i ^ 1;
}

/* ---- names and nodes ------------------------------------------------------------------------- */

/* The name of any value of the graph, or "". */
static const char *any_name(const Onnx__GraphProto *graph, uint64_t *random)
{
    const char *name = NULL;
    size_t i;
    switch (below(random, 9)) {
    case 0:
        return "";
    case 1:
    case 2:
    case 3:
        if (graph->n_initializer)
            name = graph->initializer[below(random, graph->n_initializer)]->name;
        break;
    case 4:
    case 5:
        if (graph->n_input)
            name = graph->input[below(random, graph->n_input)]->name;
        break;
    default:
        if (!graph->n_node)
            break;
        i = below(random, graph->n_node);
        if (graph->node[i]->n_output)
            name = graph->node[i]->output[below(random, graph->node[i]->n_output)];
    }
    return name ? name : "";
}

static void change_operator(Onnx__NodeProto *node, int64_t opset, uint64_t *random)
{
    replace_text(&node->op_type, absurd_op(random));
    while (node->n_attribute && below(random, 8))
        drop_attribute(node, node->n_attribute - 1);
    for (size_t n = below(random, 4); n > 0; n--)
        add_attribute(node, opset, random);
}

static void change_wiring(Onnx__GraphProto *graph, Onnx__NodeProto *node, uint64_t *random)
{
    switch (below(random, 5)) {
    case 0: /* one more */
        append(&node->input, &node->n_input, copy_text(any_name(graph, random)));
        break;
    case 1: /* one less */
        if (node->n_input)
            free(take_out(node->input, &node->n_input, node->n_input - 1));
        break;
    case 2: { /* one more output */
        char name[32];
        snprintf(name, sizeof name, "o%u", (unsigned)below(random, 1000));
        append(&node->output, &node->n_output, copy_text(name));
        break;
    }
    default:
        if (node->n_input)
            replace_text(&node->input[below(random, node->n_input)], any_name(graph, random));
    }
}

/* A new node behind the others; often what it computes becomes the graph's first output. */
static void add_node(Onnx__GraphProto *graph, int64_t opset, uint64_t *random)
{
    Onnx__NodeProto *node = take(sizeof *node);
    char name[32];
    onnx__node_proto__init(node);
    node->op_type = copy_text(absurd_op(random));
    const struct wk_op_version *version = wk_op_version(wk_op_from_name(node->op_type), opset);
    unsigned least = version ? version->min_in : 1;
    unsigned most = version && version->max_in < least + 3 ? version->max_in : least + 3;
    for (size_t n = least + below(random, most - least + 1); n > 0; n--)
        append(&node->input, &node->n_input, copy_text(any_name(graph, random)));
    for (size_t n = below(random, 4); n > 0; n--)
        add_attribute(node, opset, random);
    snprintf(name, sizeof name, "n%u", (unsigned)below(random, 100000));
    append(&node->output, &node->n_output, copy_text(name));
    append(&graph->node, &graph->n_node, node);
    if (graph->n_output && below(random, 4))
        replace_text(&graph->output[0]->name, name);
}

static void drop_node(Onnx__GraphProto *graph, uint64_t *random)
{
    if (graph->n_node > 1)
        onnx__node_proto__free_unpacked(
            take_out(graph->node, &graph->n_node, below(random, graph->n_node)), NULL);
}

/* ---- constants, inputs, outputs -------------------------------------------------------------- */

static void change_constant(Onnx__TensorProto *t, uint64_t *random)
{
    struct cm_shape shape = small_shape(random);
    int32_t dtype = below(random, 3) ? t->data_type : absurd_dtype(random);
    bool keep_shape = below(random, 2) && t->n_dims <= CM_MAX_RANK;
    if (below(random, 10) == 0) { /* a number that nothing bears out */
        if (t->n_dims)
            t->dims[below(random, t->n_dims)] = absurd_number(random);
        else
            t->data_type = dtype;
        return;
    }
    if (keep_shape) {
        shape.rank = (uint8_t)t->n_dims;
        for (unsigned i = 0; i < shape.rank; i++)
            shape.dims[i] = t->dims[i];
        if (shape.rank && below(random, 2))
            shape.dims[below(random, shape.rank)] = (int64_t)below(random, 6);
    }
    make_data(t, dtype, &shape, random);
}

static Onnx__TypeProto__Tensor *tensor_type(Onnx__ValueInfoProto *info)
{
    if (!info->type || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
        return NULL;
    return info->type->tensor_type;
}

static void change_info(Onnx__ValueInfoProto *info, uint64_t *random)
{
    Onnx__TypeProto__Tensor *type = tensor_type(info);
    if (!type)
        return;
    Onnx__TensorShapeProto *shape = type->shape;
    if (below(random, 4) == 0 || !shape) {
        type->elem_type = absurd_dtype(random);
        type->has_elem_type = 1;
    } else if (below(random, 3) == 0) {
        Onnx__TensorShapeProto__Dimension *dim = take(sizeof *dim);
        onnx__tensor_shape_proto__dimension__init(dim);
        append(&shape->dim, &shape->n_dim, dim);
    } else if (shape->n_dim && below(random, 3) == 0) {
        protobuf_c_message_free_unpacked(take_out(shape->dim, &shape->n_dim, shape->n_dim - 1),
                                         NULL);
    } else if (shape->n_dim) {
        Onnx__TensorShapeProto__Dimension *dim = shape->dim[below(random, shape->n_dim)];
        if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
            free(dim->dim_param);
        dim->value_case = below(random, 3) ? ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE
                                           : ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE__NOT_SET;
        dim->dim_value = below(random, 8) ? (int64_t)below(random, 7) : absurd_number(random);
    }
}

/* An input becomes a constant, so that what it decides is known before the run. */
static void fix_input(Onnx__GraphProto *graph, uint64_t *random)
{
    struct cm_shape shape = {0};
    if (!graph->n_input)
        return;
    size_t at = below(random, graph->n_input);
    Onnx__ValueInfoProto *info = graph->input[at];
    Onnx__TypeProto__Tensor *type = tensor_type(info);
    if (!type || !type->shape || type->shape->n_dim > CM_MAX_RANK || !info->name)
        return;
    shape.rank = (uint8_t)type->shape->n_dim;
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] =
            type->shape->dim[i]->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE
                ? type->shape->dim[i]->dim_value
                : 2;
    Onnx__TensorProto *t = make_tensor(info->name, random);
    make_data(t, type->elem_type, &shape, random);
    append(&graph->initializer, &graph->n_initializer, t);
    onnx__value_info_proto__free_unpacked(take_out(graph->input, &graph->n_input, at), NULL);
}

/* A constant becomes an input, so that what it decides is known only in the run. */
static void free_constant(Onnx__GraphProto *graph, uint64_t *random)
{
    if (!graph->n_initializer)
        return;
    Onnx__TensorProto *t =
        take_out(graph->initializer, &graph->n_initializer, below(random, graph->n_initializer));
    Onnx__ValueInfoProto *info = take(sizeof *info);
    onnx__value_info_proto__init(info);
    info->name = copy_text(t->name ? t->name : "");
    info->type = take(sizeof *info->type);
    onnx__type_proto__init(info->type);
    info->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    Onnx__TypeProto__Tensor *type = info->type->tensor_type = take(sizeof *type);
    onnx__type_proto__tensor__init(type);
    type->has_elem_type = 1;
    type->elem_type = t->data_type;
    type->shape = take(sizeof *type->shape);
    onnx__tensor_shape_proto__init(type->shape);
    for (size_t i = 0; i < t->n_dims; i++) {
        Onnx__TensorShapeProto__Dimension *dim = take(sizeof *dim);
        onnx__tensor_shape_proto__dimension__init(dim);
        dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        dim->dim_value = t->dims[i];
        append(&type->shape->dim, &type->shape->n_dim, dim);
    }
    append(&graph->input, &graph->n_input, info);
    onnx__tensor_proto__free_unpacked(t, NULL);
}

static void change_output(Onnx__GraphProto *graph, uint64_t *random)
{
    if (!graph->n_output)
        return;
    Onnx__ValueInfoProto *info = graph->output[below(random, graph->n_output)];
    if (below(random, 2))
        replace_text(&info->name, any_name(graph, random));
    else
        change_info(info, random);
}

/* ---- all together ---------------------------------------------------------------------------- */

/* The model's graph, or one inside a node. */
static Onnx__GraphProto *pick_graph(Onnx__ModelProto *model, uint64_t *random)
{
    Onnx__GraphProto *graph = model->graph;
    for (unsigned tries = 0; tries < 8 && graph->n_node; tries++) {
        const Onnx__NodeProto *node = graph->node[below(random, graph->n_node)];
        if (!node->n_attribute)
            continue;
        const Onnx__AttributeProto *a = node->attribute[below(random, node->n_attribute)];
        if (a->g && below(random, 3))
            graph = a->g;
    }
    return graph;
}

static void change(Onnx__ModelProto *model, uint64_t *random)
{
    Onnx__GraphProto *graph = pick_graph(model, random);
    Onnx__NodeProto *node = graph->n_node ? graph->node[below(random, graph->n_node)] : NULL;
    int64_t opset = model->n_opset_import ? model->opset_import[0]->version : 13;
    size_t which = below(random, 24);
    if (which == 0 && model->n_opset_import)
        model->opset_import[0]->version = 5 + (int64_t)below(random, 18);
    else if (which <= 2 && graph->n_input)
        change_info(graph->input[below(random, graph->n_input)], random);
    else if (which == 3)
        change_output(graph, random);
    else if (which == 4)
        fix_input(graph, random);
    else if (which == 5)
        free_constant(graph, random);
    else if (which == 6)
        append(&graph->initializer, &graph->n_initializer,
               make_tensor((char[]){'c', (char)('a' + below(random, 26)), 0}, random));
    else if (which <= 8)
        add_node(graph, opset, random);
    else if (which == 9)
        drop_node(graph, random);
    else if (which <= 12 && graph->n_initializer)
        change_constant(graph->initializer[below(random, graph->n_initializer)], random);
    else if (!node)
        add_node(graph, opset, random);
    else if (which <= 15)
        change_wiring(graph, node, random);
    else if (which <= 17)
        change_operator(node, opset, random);
    else if (which == 18 && node->n_attribute)
        drop_attribute(node, below(random, node->n_attribute));
    else if (which <= 20)
        nudge_attribute(node, random);
    else
        add_attribute(node, opset, random);
}

void fuzz_change_model(Onnx__ModelProto *model, uint64_t *random)
{
    if (model->graph)
        for (size_t n = 1 + below(random, 3); n > 0; n--)
            change(model, random);
}

/* The output that is refused for its declared type gets the type it has; false if that is not what
 * is wrong. */
static bool mend_output(Onnx__ModelProto *model, const char *why)
{
    const char *at = strstr(why, "\" is declared as "), *is = at ? strstr(at, " but is ") : NULL;
    if (strncmp(why, "output \"", 8) != 0 || !is)
        return false;
    enum cm_dtype dtype = cm_dtype_from_name(is + 8, strlen(is + 8));
    size_t length = (size_t)(at - why) - 8;
    for (size_t i = 0; i < model->graph->n_output; i++) {
        Onnx__ValueInfoProto *info = model->graph->output[i];
        Onnx__TypeProto__Tensor *type = tensor_type(info);
        if (type && info->name && strlen(info->name) == length &&
            memcmp(info->name, why + 8, length) == 0) {
            type->elem_type = cm_dtype_to_onnx(dtype);
            return dtype != CM_DTYPE_NONE;
        }
    }
    return false;
}

/* The packed model, or NULL if it is larger than room. */
static uint8_t *pack(const Onnx__ModelProto *model, size_t room, size_t *ret_length)
{
    *ret_length = onnx__model_proto__get_packed_size(model);
    if (*ret_length > room)
        return NULL;
    uint8_t *bytes = take(*ret_length);
    onnx__model_proto__pack(model, bytes);
    return bytes;
}

static Onnx__ModelProto *unpack(const uint8_t *bytes, size_t length)
{
    struct cm_error err;
    if (wk_wire_check(&onnx__model_proto__descriptor, bytes, length, &err) != CM_OK)
        return NULL;
    return onnx__model_proto__unpack(NULL, length, bytes);
}

size_t fuzz_mutate(uint8_t *bytes, size_t length, size_t room, uint64_t *random)
{
    size_t packed_length;
    Onnx__ModelProto *model = unpack(bytes, length);
    if (!model)
        return 0;
    fuzz_change_model(model, random);
    uint8_t *packed = pack(model, room, &packed_length);
    if (packed)
        memcpy(bytes, packed, packed_length);
    free(packed);
    onnx__model_proto__free_unpacked(model, NULL);
    return packed ? packed_length : 0;
}

uint8_t *fuzz_mend(const uint8_t *bytes, size_t length, const char *why, size_t *ret_length)
{
    Onnx__ModelProto *model = unpack(bytes, length);
    uint8_t *packed = NULL;
    if (model && model->graph && mend_output(model, why))
        packed = pack(model, length + 16, ret_length);
    if (model)
        onnx__model_proto__free_unpacked(model, NULL);
    return packed;
}
