/* The largest and worst-shaped models that a file can hold, each loaded in a process with a limit
 * on processor time and address space: refused, or loaded and planned a few times, but in bounded
 * time and memory.
 *
 * Under the address sanitizer, which needs terabytes of addresses, the time is limited only. */
#include "gpu-worker/graph/graph.h"
#include "proto/onnx.pb-c.h"
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SECONDS 200
#else
#define SECONDS 20
#define BYTES   ((rlim_t)3 << 30)
#endif

/* ---- files ----------------------------------------------------------------------------------- */

/* A file under construction; pieces are put together from the inside. */
struct bytes {
    uint8_t *data;
    size_t length, room;
};

static void put(struct bytes *b, const void *data, size_t length)
{
    if (b->room - b->length < length) {
        b->room = 2 * b->room + length;
        b->data = realloc(b->data, b->room);
        assert_non_null(b->data);
    }
    if (length)
        memcpy(b->data + b->length, data, length);
    b->length += length;
}

static void put_varint(struct bytes *b, uint64_t n)
{
    uint8_t byte;
    do {
        byte = (uint8_t)((n & 0x7f) | (n >> 7 ? 0x80 : 0));
        put(b, &byte, 1);
    } while (n >>= 7);
}

static void put_field(struct bytes *b, unsigned number, const void *data, size_t length)
{
    put_varint(b, number << 3 | 2);
    put_varint(b, length);
    put(b, data, length);
}

static void put_text(struct bytes *b, unsigned number, const char *text)
{
    put_field(b, number, text, strlen(text));
}

/* The model around a graph, which is consumed. */
static void *model_of(struct bytes *graph, size_t *ret_length)
{
    struct bytes file = {0};
    put(&file, "\x08\x08\x42\x02\x10\x0d", 6); /* ir_version 8, opset 13 */
    put_field(&file, 7, graph->data, graph->length);
    free(graph->data);
    *ret_length = file.length;
    return file.data;
}

static void *of_kit(struct kit_model *m, size_t *ret_length)
{
    void *bytes = kit_bytes(m, ret_length);
    kit_free(m);
    return bytes;
}

static struct kit_model *with_io(enum cm_dtype dtype, int64_t n)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", dtype, kit_shape(1, (int)n));
    kit_output(m, "y", dtype, kit_shape(1, (int)n));
    return m;
}

/* Nodes OP(v[i-1], v[i-1]) -> v[i], from first to y. */
static void chain(struct kit_model *m, const char *op, const char *first, const char *second,
                  unsigned count)
{
    char in[64], out[32];
    for (unsigned i = 0; i < count; i++) {
        char before[24];
        snprintf(before, sizeof before, "v%u", i);
        snprintf(in, sizeof in, "%s%s%s", i ? before : first, second ? "," : "",
                 !second     ? ""
                 : second[0] ? second
                 : i         ? before
                             : first);
        snprintf(out, sizeof out, i + 1 < count ? "v%u" : "y", i + 1);
        kit_node(m, op, in, out);
    }
}

static void *million_nodes(size_t *ret)
{
    struct bytes node = {0}, graph = {0};
    put_text(&node, 1, "x"), put_text(&node, 2, "y"), put_text(&node, 4, "Relu");
    for (unsigned i = 0; i < 1000000; i++)
        put_field(&graph, 1, node.data, node.length);
    free(node.data);
    return model_of(&graph, ret);
}

static void *million_initializers(size_t *ret)
{
    struct bytes graph = {0};
    for (unsigned i = 0; i < 1000000; i++) {
        struct bytes tensor = {0};
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        put(&tensor, "\x08\x01\x10\x01", 4); /* dims 1, float */
        put_field(&tensor, 9, "abcd", 4);
        put_text(&tensor, 8, name);
        put_field(&graph, 5, tensor.data, tensor.length);
        free(tensor.data);
    }
    return model_of(&graph, ret);
}

static void *deep_graphs(size_t *ret)
{
    struct bytes graph = {0};
    for (unsigned i = 0; i < 10000; i++) { /* node { attribute { g } } around what there is */
        struct bytes attribute = {0}, node = {0}, around = {0};
        put_text(&attribute, 1, "body");
        put_field(&attribute, 6, graph.data, graph.length);
        put_field(&node, 5, attribute.data, attribute.length);
        put_field(&around, 1, node.data, node.length);
        free(graph.data), free(attribute.data), free(node.data);
        graph = around;
    }
    return model_of(&graph, ret);
}

static void *long_names(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 4);
    char *name = malloc(1000001);
    assert_non_null(name);
    memset(name, 'n', 1000000);
    name[1000000] = 0;
    kit_node(m, "Relu", "x", name);
    kit_node(m, "Neg", name, "y");
    free(name);
    return of_kit(m, ret);
}

static void *many_attributes(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 4);
    kit_node(m, "Relu", "x", "y");
    for (unsigned i = 0; i < 100000; i++)
        kit_attr_i(m, "axis", i);
    return of_kit(m, ret);
}

static void *longest_chain(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 4);
    chain(m, "Relu", "x", NULL, WK_MAX_NODES);
    return of_kit(m, ret);
}

/* 2^65536 paths from x to y. */
static void *doubling_paths(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 4);
    chain(m, "Add", "x", "", WK_MAX_NODES);
    return of_kit(m, ret);
}

static void *equal_nodes(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 4);
    char out[16];
    for (unsigned i = 0; i < WK_MAX_NODES - 1024; i++) {
        snprintf(out, sizeof out, "v%u", i);
        kit_node(m, "Relu", "x", out);
    }
    for (unsigned i = 0; i < 1000; i++) {
        char in[32];
        snprintf(in, sizeof in, "%s%u,v%u", i ? "s" : "v", i ? i - 1 : 60000, i * 60);
        snprintf(out, sizeof out, i + 1 < 1000 ? "s%u" : "y", i);
        kit_node(m, "Add", in, out);
    }
    return of_kit(m, ret);
}

/* Integers that are evaluated while shapes are settled, as many as are tracked, everywhere. */
static void *tracked_everywhere(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    int64_t values[WK_MAX_TRACKED];
    for (unsigned i = 0; i < WK_MAX_TRACKED; i++)
        values[i] = i;
    kit_output(m, "y", CM_INT64, kit_shape(1, WK_MAX_TRACKED));
    kit_const(m, "c", CM_INT64, kit_shape(1, WK_MAX_TRACKED), values);
    chain(m, "Add", "c", "", WK_MAX_NODES);
    return of_kit(m, ret);
}

/* Constants that grow as they are folded: 2^40 bytes if nothing stops them. */
static void *growing_constants(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    const float values[4] = {1, 2, 3, 4};
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    kit_const(m, "c", CM_FP32, kit_shape(1, 4), values);
    char in[64], out[16];
    for (unsigned i = 0; i < 26; i++) {
        snprintf(in, sizeof in, i ? "v%u,v%u" : "c,c", i, i);
        snprintf(out, sizeof out, i + 1 < 26 ? "v%u" : "y", i + 1);
        kit_node(m, "Concat", in, out);
        kit_attr_i(m, "axis", 0);
    }
    return of_kit(m, ret);
}

/* Many constants of a quarter megabyte, each from a node of a few bytes. */
static void *many_fills(size_t *ret)
{
    struct kit_model *m = with_io(CM_FP32, 65536);
    char in[64], out[16], fill[16];
    kit_ints(m, "n", 1, 65536);
    for (unsigned i = 0; i < 30000; i++) {
        snprintf(fill, sizeof fill, "f%u", i);
        snprintf(in, sizeof in, "%s%.0u,%s", i ? "v" : "x", i, fill);
        snprintf(out, sizeof out, i + 1 < 30000 ? "v%u" : "y", i + 1);
        kit_node(m, "ConstantOfShape", "n", fill);
        kit_node(m, "Add", in, out);
    }
    return of_kit(m, ret);
}

/* Every node has as many inputs as are allowed. */
static void *wide_nodes(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    static char in[2 * WK_MAX_NODE_IO];
    char out[16];
    kit_input(m, "x", CM_FP32, kit_shape(1, 1));
    kit_output(m, "y", CM_FP32, kit_shape(1, WK_MAX_NODE_IO));
    for (unsigned i = 0; i < WK_MAX_NODE_IO; i++)
        memcpy(in + 2 * i, "x,", 2);
    in[sizeof in - 1] = 0;
    for (unsigned i = 0; i < 1500; i++) {
        snprintf(out, sizeof out, i ? "v%u" : "y", i);
        kit_node(m, "Concat", in, out);
        kit_attr_i(m, "axis", 0);
    }
    return of_kit(m, ret);
}

/* Loops in each other, each with states that take several rounds of inference to settle. */
static struct kit_model *loops_in_loops(unsigned depth)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "i", CM_INT64, KIT_SHAPE0());
    kit_input(m, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "a", CM_FP32, KIT_SHAPE0());
    kit_input(m, "b", CM_FP32, KIT_SHAPE0());
    kit_input(m, "c", CM_FP32, KIT_SHAPE0());
    kit_input(m, "d", CM_FP32, KIT_SHAPE0());
    kit_output(m, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(m, "b", CM_FP32, KIT_SHAPE0());
    kit_output(m, "c", CM_FP32, KIT_SHAPE0());
    kit_output(m, "d", CM_FP32, KIT_SHAPE0());
    kit_output(m, "a", CM_FP32, KIT_SHAPE0());
    if (!depth)
        return m;
    kit_node(m, "Loop", "n,,x,x,x,w", "e");
    kit_attr_graph(m, "body", loops_in_loops(depth - 1));
    kit_output(m, "e", CM_FP32, KIT_SHAPE0());
    return m;
}

static void *nested_loops(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    const float w[4] = {0};
    const int64_t n = 1;
    kit_input(m, "x", CM_FP32, kit_shape(1, 1));
    kit_const(m, "w", CM_FP32, kit_shape(2, 2, 2), w);
    kit_const(m, "n", CM_INT64, KIT_SHAPE0(), &n);
    kit_node(m, "Loop", "n,,x,x,x,w", "y");
    kit_attr_graph(m, "body", loops_in_loops(17));
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    return of_kit(m, ret);
}

/* Two subgraphs a node, each of nothing but a name. */
static void *many_branches(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    char in[16], out[16];
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "v0", CM_FP32, kit_shape(1, 1));
    for (unsigned i = 0; i < 30000; i++) {
        snprintf(in, sizeof in, "v%u", i);
        snprintf(out, sizeof out, i + 1 < 30000 ? "v%u" : "y", i + 1);
        kit_node(m, "If", "c", out);
        for (int k = 0; k < 2; k++) {
            struct kit_model *branch = kit_model(13);
            kit_output(branch, in, CM_FP32, KIT_SHAPE0());
            kit_attr_graph(m, k ? "then_branch" : "else_branch", branch);
        }
    }
    kit_output(m, "y", CM_FP32, KIT_SHAPE0());
    return of_kit(m, ret);
}

/* What only a plan can compute: from the shape of the input. */
static void *known_per_plan(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    char in[16], out[16];
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    kit_node(m, "Shape", "x", "s");
    kit_node(m, "ConstantOfShape", "s", "v0");
    for (unsigned i = 0; i < 60000; i++) {
        snprintf(in, sizeof in, "v%u", i);
        snprintf(out, sizeof out, "v%u", i + 1);
        kit_node(m, "Abs", in, out);
    }
    kit_node(m, "Add", "v60000,x", "y");
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    return of_kit(m, ret);
}

/* The same in integers, which are tracked one by one. */
static void *tracked_by_request(size_t *ret)
{
    struct kit_model *m = kit_model(15);
    const int64_t one = 1;
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    kit_output(m, "y", CM_INT64, kit_shape(1, -1));
    kit_ints(m, "half", 1, 2);
    kit_node(m, "Shape", "x", "d");
    kit_attr_i(m, "end", 1);
    kit_node(m, "Div", "d,half", "s"); /* no more than WK_MAX_TRACKED */
    kit_node(m, "ConstantOfShape", "s", "c");
    kit_attr_tensor(m, "value", CM_INT64, kit_shape(1, 1), &one);
    chain(m, "Add", "c", "", WK_MAX_NODES - 3);
    return of_kit(m, ret);
}

/* Activations that double from node to node. */
static void *growing_activations(size_t *ret)
{
    struct kit_model *m = kit_model(13);
    char in[32], out[16];
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    for (unsigned i = 0; i < 40; i++) {
        snprintf(in, sizeof in, i ? "v%u,v%u" : "x,x", i, i);
        snprintf(out, sizeof out, i + 1 < 40 ? "v%u" : "y", i + 1);
        kit_node(m, "Concat", in, out);
        kit_attr_i(m, "axis", 0);
    }
    return of_kit(m, ret);
}

/* Branches inside branches, two at each level, as deep as they may be. */
static struct kit_model *branches(unsigned depth)
{
    struct kit_model *m = kit_model(13);
    if (depth == 0) {
        kit_node(m, "Relu", "x", "r");
    } else {
        kit_node(m, "If", "c", "r");
        kit_attr_graph(m, "then_branch", branches(depth - 1));
        kit_attr_graph(m, "else_branch", branches(depth - 1));
    }
    kit_output(m, "r", CM_FP32, kit_shape(1, -1));
    return m;
}

static void *nested_branches(size_t *ret)
{
    struct kit_model *m = branches(10);
    kit_input(m, "x", CM_FP32, kit_shape(1, -1));
    kit_input(m, "c", CM_BOOL, KIT_SHAPE0());
    return of_kit(m, ret);
}

/* ---- the limited process --------------------------------------------------------------------- */

struct worst {
    const char *name;
    void *(*make)(size_t *ret_length);
    enum cm_err code; /* of loading and planning */
};

static const struct worst worst[] = {
    {"a million nodes", million_nodes, CM_LIMIT},
    {"a million initializers", million_initializers, CM_LIMIT},
    {"ten thousand graphs in each other", deep_graphs, CM_LIMIT},
    {"names of a megabyte", long_names, CM_LIMIT},
    {"a hundred thousand attributes", many_attributes, CM_LIMIT},
    {"the longest chain", longest_chain, CM_OK},
    {"doubling paths", doubling_paths, CM_OK},
    {"equal nodes", equal_nodes, CM_OK},
    {"tracked integers everywhere", tracked_everywhere, CM_LIMIT},
    {"growing constants", growing_constants, CM_OK},
    {"many fills", many_fills, CM_OK},
    {"wide nodes", wide_nodes, CM_OK},
    {"loops in loops", nested_loops, CM_LIMIT},
    {"many branches", many_branches, CM_LIMIT},
    {"known per plan", known_per_plan, CM_OK},
    {"tracked per plan", tracked_by_request, CM_LIMIT},
    {"growing activations", growing_activations, CM_LIMIT},
    {"nested branches", nested_branches, CM_OK},
};

/* Several plans at once, as a worker keeps them, for inputs of up to 8 KB. */
static enum cm_err plan_some(struct wk_model *model, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(model);
    struct wk_plan *plans[4] = {NULL};
    void *weights = NULL;
    enum cm_err code = posix_memalign(&weights, WK_ALIGN, wk_model_weights_bytes(model) + WK_ALIGN)
                           ? CM_NOMEM
                           : wk_model_pack(model, weights, err);
    if (code == CM_OK)
        code = wk_model_attach(model, weights, err);
    for (int k = 0; k < 4 && code == CM_OK; k++) {
        struct cm_shape shapes[WK_MAX_IO];
        for (unsigned i = 0; i < signature->n_inputs; i++) {
            shapes[i] = signature->inputs[i].shape;
            for (unsigned d = 0; d < shapes[i].rank; d++)
                shapes[i].dims[d] = shapes[i].dims[d] < 0 ? 2048 - k : shapes[i].dims[d];
        }
        code = wk_plan_create(model, shapes, err, &plans[k]);
    }
    for (int k = 0; k < 4; k++)
        wk_plan_destroy(plans[k]);
    free(weights);
    return code;
}

/* The child's part; what it prints ends up in the test's output. */
static int load_limited(const struct worst *w, const void *bytes, size_t length)
{
    struct rlimit seconds = {SECONDS, SECONDS};
    struct rusage usage;
    struct cm_error err = {0};
    struct wk_model *model = NULL;
    setrlimit(RLIMIT_CPU, &seconds);
#ifdef BYTES
    struct rlimit space = {BYTES, BYTES};
    setrlimit(RLIMIT_AS, &space);
#endif
    struct wk_engine *engine = kit_engine(1, NULL);
    enum cm_err code = wk_model_parse(engine, bytes, length, NULL, &err, &model);
    if (code == CM_OK)
        code = plan_some(model, &err);
    wk_model_destroy(model);
    wk_engine_destroy(engine);
    getrusage(RUSAGE_SELF, &usage);
    printf("%s (%zu bytes): %s, %ld.%02ld s, %ld MB\n", w->name, length,
           code == CM_OK ? "loaded" : err.text, (long)usage.ru_utime.tv_sec,
           (long)usage.ru_utime.tv_usec / 10000, usage.ru_maxrss / 1024);
    fflush(stdout);
    return code == w->code ? 0 : 1;
}

static void bounded(void **state)
{
    unsigned failed = 0;
    (void)state;
    for (size_t i = 0; i < sizeof worst / sizeof *worst; i++) {
        size_t length;
        int status;
        void *bytes = worst[i].make(&length);
        fflush(stdout);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(load_limited(&worst[i], bytes, length));
        free(bytes);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status != 0) {
            printf("%s: status %x\n", worst[i].name, (unsigned)status);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
