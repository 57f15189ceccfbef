/* Damaged models, a fixed number of them and always the same ones: truncated at every 64th part,
 * with flipped bits, with pieces cut out or repeated, and with well-formed but absurd contents
 * (dimensions, attributes, operators, names). The seeds are the files in corpus/ and the demo
 * model.
 *
 *     fuzz_test [FACTOR]     FACTOR times as many mutations */
#include "gpu-worker/graph/graph.h"
#include "proto/onnx.pb-c.h"
#include "tests/engine/fuzz_model.h"
#include "tests/engine/kit.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_SEEDS 32

struct seed {
    char name[64];
    uint8_t *bytes;
    size_t length;
};

static struct seed seeds[MAX_SEEDS];
static unsigned n_seeds;
static unsigned factor = 1;
static uint64_t random_state = 7;

static size_t below(size_t limit)
{
    return (size_t)(kit_next(&random_state) % limit);
}

static void add_seed(const char *path, const char *name)
{
    FILE *file = fopen(path, "rb");
    struct seed *seed = &seeds[n_seeds++];
    assert_non_null(file);
    snprintf(seed->name, sizeof seed->name, "%s", name);
    fseek(file, 0, SEEK_END);
    seed->length = (size_t)ftell(file);
    rewind(file);
    seed->bytes = malloc(seed->length);
    assert_non_null(seed->bytes);
    assert_int_equal(fread(seed->bytes, 1, seed->length, file), seed->length);
    fclose(file);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int load_seeds(void **state)
{
    struct dirent **entries;
    char path[1024];
    int count = scandir(SOURCE_DIR "/tests/engine/corpus", &entries, NULL, by_name);
    (void)state;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        if (strstr(entries[i]->d_name, ".onnx")) {
            assert_true(n_seeds + 1 < MAX_SEEDS);
            snprintf(path, sizeof path, SOURCE_DIR "/tests/engine/corpus/%s", entries[i]->d_name);
            add_seed(path, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    add_seed(SOURCE_DIR "/deploy/demo/models/digits/1/model.onnx", "digits");
    return 0;
}

static int free_seeds(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++)
        free(seeds[i].bytes);
    return 0;
}

static void seeds_load(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++)
        if (!LLVMFuzzerTestOneInput(seeds[i].bytes, seeds[i].length))
            fail_msg("%s does not load", seeds[i].name);
}

/* A copy of exactly this size, so that a sanitizer sees the first byte behind it. */
static int try_bytes(const uint8_t *bytes, size_t length)
{
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    if (length)
        memcpy(copy, bytes, length);
    int loaded = LLVMFuzzerTestOneInput(copy, length);
    free(copy);
    return loaded;
}

static void truncated(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        for (size_t part = 0; part < 64; part++)
            (void)try_bytes(seeds[i].bytes, seeds[i].length * part / 64);
        /* Small files also at every single byte. */
        for (size_t at = 0; at < seeds[i].length && seeds[i].length < 2000; at++)
            (void)try_bytes(seeds[i].bytes, at);
    }
}

/* One random damage to a copy that has room for twice the length. */
static size_t damage(uint8_t *bytes, size_t length)
{
    size_t at = below(length), from = below(length), n = 1 + below(16);
    switch (below(6)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        bytes[at] = (uint8_t)kit_next(&random_state);
        break;
    case 2: /* a long varint */
        for (size_t i = 0; i < n && at + i < length; i++)
            bytes[at + i] = 0xff;
        break;
    case 3: /* cut out */
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + at + n, length - at - n);
        length -= n;
        break;
    case 4: /* repeat */
        n = n < length - from ? n : length - from;
        memmove(bytes + at + n, bytes + at, length - at);
        memmove(bytes + at, bytes + (from >= at ? from + n : from), n);
        length += n;
        break;
    default: /* overwrite with another part */
        n = n < length - from ? n : length - from;
        n = n < length - at ? n : length - at;
        memmove(bytes + at, bytes + from, n);
    }
    return length ? length : 1;
}

static void damaged(void **state)
{
    unsigned loaded = 0, tried = 0;
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        unsigned rounds = factor * (seeds[i].length < 20000 ? 1500 : 400);
        uint8_t *copy = malloc(2 * seeds[i].length + 1024);
        assert_non_null(copy);
        for (unsigned round = 0; round < rounds; round++, tried++) {
            size_t length = seeds[i].length;
            memcpy(copy, seeds[i].bytes, length);
            for (size_t n = 1 + below(4); n > 0; n--)
                length = damage(copy, length);
            loaded += (unsigned)try_bytes(copy, length);
        }
        free(copy);
    }
    print_message("%u of %u damaged files still loaded\n", loaded, tried);
}

/* ---- well-formed, but absurd ----------------------------------------------------------------- */

static int64_t absurd_number(int64_t now)
{
    static const int64_t numbers[] = {0,    -1,        1,         2,         3,        7,  8,
                                      16,   255,       65536,     1 << 20,   1 << 30,  -2, -3,
                                      1024, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    size_t i = below(sizeof numbers / sizeof *numbers + 2);
    return i < sizeof numbers / sizeof *numbers ? numbers[i]
                                                : (int64_t)((uint64_t)now + below(5) - 2);
}

static void replace_text(char **text, const char *with)
{
    char *copy = strdup(with);
    assert_non_null(copy);
    if (*text && *text != protobuf_c_empty_string)
        free(*text);
    *text = copy;
}

static void change_attribute(Onnx__NodeProto *node)
{
    static const char *const names[] = {"axis",  "axes",     "pads",      "strides", "dilations",
                                        "group", "auto_pad", "keepdims",  "perm",    "alpha",
                                        "to",    "value",    "allowzero", "transB",  "ceil_mode"};
    if (!node->n_attribute)
        return;
    Onnx__AttributeProto *attr = node->attribute[below(node->n_attribute)];
    if (below(6) == 0)
        replace_text(&attr->name, names[below(sizeof names / sizeof *names)]);
    else if (attr->n_ints)
        attr->ints[below(attr->n_ints)] = absurd_number(attr->ints[0]);
    else
        attr->i = absurd_number(attr->i);
    if (attr->n_ints && below(8) == 0)
        attr->n_ints--;
}

static void change_node(Onnx__GraphProto *graph)
{
    Onnx__NodeProto *node = graph->node[below(graph->n_node)];
    Onnx__NodeProto *other = graph->node[below(graph->n_node)];
    switch (below(5)) {
    case 0:
        replace_text(&node->op_type, wk_op_name((enum wk_op)below(WK_OP_COUNT)));
        break;
    case 1:
        if (node->n_input && other->n_output)
            replace_text(&node->input[below(node->n_input)], other->output[0]);
        break;
    case 2:
        if (node->n_input && other->n_input)
            replace_text(&node->input[below(node->n_input)], other->input[below(other->n_input)]);
        break;
    default:
        change_attribute(node);
    }
}

static void change_tensor(Onnx__TensorProto *tensor)
{
    if (tensor->n_dims && below(3))
        tensor->dims[below(tensor->n_dims)] = absurd_number(tensor->dims[0]);
    else if (tensor->raw_data.len && below(3))
        tensor->raw_data.data[below(tensor->raw_data.len)] = (uint8_t)absurd_number(1);
    else if (tensor->n_dims == 2 && below(2)) { /* the same amount of data, another shape */
        int64_t first = tensor->dims[0];
        tensor->dims[0] = tensor->dims[1];
        tensor->dims[1] = first;
    } else
        tensor->data_type = (int32_t)below(18);
}

static void change_model(Onnx__ModelProto *model)
{
    Onnx__GraphProto *graph = model->graph;
    size_t which = below(10);
    if (which == 0 && model->n_opset_import) {
        model->opset_import[0]->version = 5 + (int64_t)below(18);
    } else if (which == 1 && graph->n_input) {
        Onnx__TypeProto__Tensor *tensor = graph->input[below(graph->n_input)]->type->tensor_type;
        if (tensor->shape && tensor->shape->n_dim) {
            Onnx__TensorShapeProto__Dimension *dim =
                tensor->shape->dim[below(tensor->shape->n_dim)];
            if (dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE)
                dim->dim_value = absurd_number(dim->dim_value);
        }
    } else if (which <= 3 && graph->n_initializer) {
        change_tensor(graph->initializer[below(graph->n_initializer)]);
    } else if (graph->n_node) {
        change_node(graph);
    }
}

static void absurd(void **state)
{
    unsigned loaded = 0, tried = 0;
    (void)state;
    for (unsigned i = 0; i < n_seeds; i++) {
        unsigned rounds = factor * (seeds[i].length < 20000 ? 1500 : 300);
        for (unsigned round = 0; round < rounds; round++, tried++) {
            Onnx__ModelProto *model =
                onnx__model_proto__unpack(NULL, seeds[i].length, seeds[i].bytes);
            assert_non_null(model);
            for (size_t n = 1 + below(3); n > 0; n--)
                change_model(model);
            size_t length = onnx__model_proto__get_packed_size(model);
            uint8_t *bytes = malloc(length);
            assert_non_null(bytes);
            onnx__model_proto__pack(model, bytes);
            loaded += (unsigned)LLVMFuzzerTestOneInput(bytes, length);
            free(bytes);
            onnx__model_proto__free_unpacked(model, NULL);
        }
    }
    print_message("%u of %u absurd models loaded\n", loaded, tried);
    assert_true(loaded > 0 && loaded < tried);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_load),
        cmocka_unit_test(truncated),
        cmocka_unit_test(damaged),
        cmocka_unit_test(absurd),
    };
    if (argc > 1)
        factor = (unsigned)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, load_seeds, free_seeds);
}
