/* Models that keep tensors in files beside them: what is found and how, and every path, link, kind
 * of file and number that is refused. */
#include "gpu-worker/graph/external.h"
#include "tests/engine/kit.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#define N 64 /* w is [N,N], v is [N] */

static struct wk_engine *engine;
static char folder[] = "/tmp/ingot-external-XXXXXX";
static int directory;
static float w[N * N], v[N];
static size_t data_start; /* in w.safetensors */

static void shell(const char *command)
{
    char text[1024];
    snprintf(text, sizeof text, "cd %s && %s", folder, command);
    if (system(text) != 0)
        fail_msg("%s", text);
}

static void write_file(const char *name, const void *before, size_t before_length)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (before_length)
        assert_int_equal(fwrite(before, before_length, 1, file), 1);
    assert_int_equal(fwrite(w, sizeof w, 1, file), 1);
    assert_int_equal(fwrite(v, sizeof v, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

/* A header of this text, with its length in front. Returns the bytes of both. */
static size_t header(const char *text, uint8_t *ret)
{
    size_t length = strlen(text);
    for (unsigned i = 0; i < 8; i++)
        ret[i] = (uint8_t)(length >> (8 * i));
    memcpy(ret + 8, text, length);
    return length + 8;
}

static int start(void **state)
{
    uint64_t random = 11;
    uint8_t head[512];
    (void)state;
    engine = kit_engine(1, NULL);
    for (unsigned i = 0; i < N * N; i++)
        w[i] = kit_float(&random);
    for (unsigned i = 0; i < N; i++)
        v[i] = kit_float(&random);
    assert_non_null(mkdtemp(folder));
    shell("mkdir sub");
    write_file("weights.bin", NULL, 0);
    write_file("sub/weights.bin", "xyz", 3); /* nothing is aligned */
    data_start = header("{\"w\":{\"dtype\":\"F32\",\"shape\":[64,64],\"data_offsets\":[0,16384]},"
                        "\"layer.v\":{\"dtype\":\"F32\",\"shape\":[64],"
                        "\"data_offsets\":[16384,16640]}}",
                        head);
    write_file("w.safetensors", head, data_start);
    write_file(
        "broken.safetensors", head,
        header("{\"w\":{\"dtype\":\"F32\",\"shape\":[64,64],\"data_offsets\":[0,16384]}}", head));
    directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(directory >= 0);
    return 0;
}

static int stop(void **state)
{
    char command[256];
    (void)state;
    close(directory);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    wk_engine_destroy(engine);
    return 0;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* y = x w + v, both constants inside the model. */
static struct kit_model *whole(void)
{
    struct kit_model *m = kit_model(13);
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, N));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, N));
    kit_const(m, "w", CM_FP32, kit_shape(2, N, N), w);
    kit_const(m, "v", CM_FP32, kit_shape(1, N), v);
    kit_node(m, "MatMul", "x,w", "p");
    kit_node(m, "Add", "p,v", "y");
    return m;
}

static enum cm_err parse(struct kit_model *m, struct cm_error *err, struct wk_model **ret)
{
    struct wk_load_options how = WK_LOAD_DEFAULTS;
    size_t length;
    void *bytes = kit_bytes(m, &length);
    how.directory = directory;
    enum cm_err code = wk_model_parse(engine, bytes, length, &how, err, ret);
    free(bytes);
    kit_free(m);
    return code;
}

static void refuse(struct kit_model *m, enum cm_err code, const char *part)
{
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    enum cm_err got = parse(m, &err, &model);
    if (got != code || !strstr(err.text, part))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", cm_err_name(code), part,
                 cm_err_name(got), err.text);
    assert_null(model);
    assert_null(strstr(err.text, folder));
}

/* The packed weights of a model, which must be free()d, and its key. */
static void *packed(struct kit_model *m, size_t *ret_bytes, uint8_t ret_key[32])
{
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    if (parse(m, &err, &model) != CM_OK)
        fail_msg("%s", err.text);
    *ret_bytes = wk_model_weights_bytes(model);
    void *weights = aligned_alloc(WK_ALIGN, *ret_bytes);
    assert_non_null(weights);
    assert_int_equal(wk_model_pack(model, weights, &err), CM_OK);
    assert_int_equal(wk_model_attach(model, weights, &err), CM_OK);
    wk_model_weights_key(model, ret_key);
    wk_model_destroy(model);
    return weights;
}

/* The model must hold what whole() holds. */
static void accept(struct kit_model *m)
{
    uint8_t key_a[32], key_b[32];
    size_t bytes_a, bytes_b;
    void *a = packed(whole(), &bytes_a, key_a), *b = packed(m, &bytes_b, key_b);
    assert_int_equal(bytes_a, bytes_b);
    assert_memory_equal(a, b, bytes_a);
    assert_memory_not_equal(key_a, key_b, 32);
    free(a);
    free(b);
}

#define WITH_W(code, part, ...)                         \
    do {                                                \
        struct kit_model *m_ = whole();                 \
        kit_external(m_, 0, __VA_ARGS__, (char *)NULL); \
        refuse(m_, code, part);                         \
    } while (0)

/* ---- what is found --------------------------------------------------------------------------- */

static void plain_files(void **state)
{
    struct kit_model *m = whole();
    (void)state;
    kit_external(m, 0, "location", "weights.bin", "offset", "0", "length", "16384", NULL);
    kit_external(m, 1, "location", "weights.bin", "offset", "16384", "length", "256", NULL);
    accept(m);
    m = whole();
    kit_external(m, 0, "location", "weights.bin", NULL); /* from the start, as long as the tensor */
    kit_external(m, 1, "offset", "16387", "location", "sub/weights.bin", NULL);
    accept(m);
    m = whole();
    kit_external(m, 0, "location", "./sub/./weights.bin", "offset", "3", "basepath", "/models",
                 NULL);
    accept(m);
}

/* Two tensors of the same bytes are one tensor; the bytes are read once. */
static void shared_bytes(void **state)
{
    struct kit_model *m = kit_model(13);
    size_t bytes;
    uint8_t key[32];
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, N));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, N));
    kit_const(m, "a", CM_FP32, kit_shape(2, N, N), w);
    kit_const(m, "b", CM_FP32, kit_shape(2, N, N), w);
    kit_node(m, "MatMul", "x,a", "p");
    kit_node(m, "MatMul", "p,b", "y");
    kit_external(m, 0, "location", "weights.bin", "offset", "0", NULL);
    kit_external(m, 1, "location", "./weights.bin", NULL);
    free(packed(m, &bytes, key));
}

static void safetensors(void **state)
{
    char offset[32];
    struct kit_model *m = whole();
    (void)state;
    kit_external(m, 0, "location", "w.safetensors", NULL);
    kit_external(m, 1, "location", "w.safetensors", "tensor", "layer.v", NULL);
    accept(m);
    m = whole(); /* by place, as other runtimes read it */
    snprintf(offset, sizeof offset, "%zu", data_start);
    kit_external(m, 0, "location", "w.safetensors", "offset", offset, "length", "16384", NULL);
    accept(m);
    WITH_W(CM_NOT_FOUND, "has no tensor \"x\"", "location", "w.safetensors", "tensor", "x");
    WITH_W(CM_INVALID, "has shape [64], the model says [64,64]", "location", "w.safetensors",
           "tensor", "layer.v");
    WITH_W(CM_INVALID, "is for safetensors files", "location", "w.safetensors", "tensor", "w",
           "offset", "0");
    WITH_W(CM_INVALID, "is for safetensors files", "location", "weights.bin", "tensor", "w");
    WITH_W(CM_CORRUPT, "\"broken.safetensors\" has 256 bytes behind", "location",
           "broken.safetensors");
    WITH_W(CM_CORRUPT, "\"broken.safetensors\" has 256 bytes behind", "location",
           "broken.safetensors", "offset", "0");
    m = whole();
    kit_external(m, 1, "location", "w.safetensors", NULL);
    refuse(m, CM_NOT_FOUND, "has no tensor \"v\"");
    m = kit_model(13);
    const int32_t ints[N] = {0};
    kit_output(m, "y", CM_INT32, kit_shape(1, N));
    kit_const(m, "layer.v", CM_INT32, kit_shape(1, N), ints);
    kit_node(m, "Neg", "layer.v", "y");
    kit_external(m, 0, "location", "w.safetensors", NULL);
    refuse(m, CM_INVALID, "has another element type");
}

/* Other bytes in the file are other weights, although the model file is the same. */
static void the_key_covers_the_file(void **state)
{
    uint8_t before[32], again[32], after[32];
    size_t bytes;
    struct kit_model *m;
    uint8_t *keys[] = {before, again, after};
    (void)state;
    write_file("other.bin", NULL, 0);
    for (int i = 0; i < 3; i++) {
        m = whole();
        kit_external(m, 0, "location", "other.bin", NULL);
        if (i == 2)
            shell("printf x | dd of=other.bin bs=1 seek=16383 conv=notrunc 2>/dev/null");
        free(packed(m, &bytes, keys[i]));
    }
    assert_memory_equal(before, again, 32);
    assert_memory_not_equal(before, after, 32);
}

static void checksums(void **state)
{
    char path[256], sha1[41] = {0};
    struct kit_model *m = whole();
    (void)state;
    shell("sha1sum weights.bin >sum");
    snprintf(path, sizeof path, "%s/sum", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(sha1, 40, 1, file), 1);
    fclose(file);
    kit_external(m, 0, "location", "weights.bin", "checksum", sha1, NULL);
    kit_external(m, 1, "location", "weights.bin", "offset", "16384", "checksum", sha1, NULL);
    accept(m);
    sha1[0] = sha1[0] == '0' ? '1' : '0';
    WITH_W(CM_CORRUPT, "checksum of its external data does not match", "location", "weights.bin",
           "checksum", sha1);
    WITH_W(CM_CORRUPT, "checksum of its external data does not match", "location", "weights.bin",
           "checksum", "");
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void paths(void **state)
{
    char longest[WK_EXTERNAL_MAX_PATH + 2], component[300];
    (void)state;
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    memset(component, 'b', sizeof component - 1);
    component[sizeof component - 1] = 0;
    WITH_W(CM_INVALID, "leaves the model's folder", "location", "../weights.bin");
    WITH_W(CM_INVALID, "leaves the model's folder", "location", "..");
    WITH_W(CM_INVALID, "leaves the model's folder", "location", "sub/../weights.bin");
    WITH_W(CM_INVALID, "leaves the model's folder", "location", "sub/..");
    WITH_W(CM_INVALID, "leaves the model's folder", "location", "nosuch/../../etc/passwd");
    WITH_W(CM_INVALID, "not a path beneath", "location", "/etc/passwd");
    WITH_W(CM_INVALID, "not a path beneath", "location", "//etc/passwd");
    WITH_W(CM_INVALID, "not a path beneath", "location", "");
    WITH_W(CM_INVALID, "not a path beneath", "location", "/");
    WITH_W(CM_INVALID, "not a path beneath", "location", "sub//weights.bin");
    WITH_W(CM_INVALID, "not a path beneath", "location", "weights.bin/");
    WITH_W(CM_LIMIT, "too long a path", "location", longest);
    WITH_W(CM_NOT_FOUND, "does not exist", "location", component);
    WITH_W(CM_NOT_FOUND, "\"nosuch?[2J.bin\" does not exist", "location", "nosuch\x1b[2J.bin");
    WITH_W(CM_NOT_FOUND, "does not exist", "location", "sub/nosuch.bin");
    WITH_W(CM_NOT_FOUND, "does not exist", "location", "weights.bin/x");
    WITH_W(CM_NOT_FOUND, "does not exist", "location", "C:\\weights.bin");
}

static void kinds_of_files(void **state)
{
    (void)state;
    shell("ln -s weights.bin link.bin && ln -s sub sublink && ln -s /etc/passwd passwd && "
          "ln -s nosuch dangling && ln -s loop loop && ln -s / root && ln -s /dev/zero zero && "
          "mkfifo fifo && cp weights.bin one.bin && ln one.bin two.bin");
    WITH_W(CM_PERMISSION, "is a symbolic link", "location", "link.bin");
    WITH_W(CM_PERMISSION, "is a symbolic link", "location", "passwd");
    WITH_W(CM_PERMISSION, "is a symbolic link", "location", "dangling");
    WITH_W(CM_PERMISSION, "is a symbolic link", "location", "loop");
    WITH_W(CM_PERMISSION, "is a symbolic link", "location", "zero");
    WITH_W(CM_PERMISSION, "goes through a symbolic link", "location", "sublink/weights.bin");
    WITH_W(CM_PERMISSION, "goes through a symbolic link", "location", "root/etc/passwd");
    WITH_W(CM_PERMISSION, "has further names", "location", "one.bin");
    WITH_W(CM_PERMISSION, "has further names", "location", "two.bin");
    WITH_W(CM_INVALID, "is not a regular file", "location", "fifo");
    WITH_W(CM_INVALID, "is not a regular file", "location", "sub");
    WITH_W(CM_INVALID, "is not a regular file", "location", ".");
    if (geteuid() == 0) {
        struct stat st;
        char path[256];
        snprintf(path, sizeof path, "%s/device", folder);
        /* A container may forbid this; then there is no device to be read either. */
        if (mknod(path, S_IFCHR | 0600, makedev(1, 5)) == 0 && stat(path, &st) == 0)
            WITH_W(CM_INVALID, "is not a regular file", "location", "device");
        else
            print_message("no device node could be made here\n");
    }
}

static void numbers(void **state)
{
    (void)state;
    shell("truncate -s 1T sparse.bin");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset", "-1");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset", "");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset", "0x10");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset", " 0");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset",
           "9223372036854775808");
    WITH_W(CM_INVALID, "\"offset\" is not a number", "location", "weights.bin", "offset",
           "99999999999999999999999999");
    WITH_W(CM_INVALID, "\"length\" is not a number", "location", "weights.bin", "length", "-16384");
    WITH_W(CM_CORRUPT, "its type and dimensions say 16384", "location", "weights.bin", "length",
           "16383");
    WITH_W(CM_CORRUPT, "its type and dimensions say 16384", "location", "weights.bin", "length",
           "9223372036854775807");
    WITH_W(CM_CORRUPT, "past the end of a file of 16640", "location", "weights.bin", "offset",
           "257");
    WITH_W(CM_CORRUPT, "past the end of a file", "location", "weights.bin", "offset",
           "9223372036854775807");
    WITH_W(CM_CORRUPT, "past the end of a file", "location", "weights.bin", "offset",
           "9223372036854759424");
    WITH_W(CM_LIMIT, "is too large", "location", "sparse.bin", "checksum",
           "0000000000000000000000000000000000000000");
}

static void entries(void **state)
{
    struct kit_model *m = whole();
    (void)state;
    WITH_W(CM_INVALID, "\"location\" is missing", "offset", "0");
    WITH_W(CM_INVALID, "\"location\" is there twice", "location", "a", "location", "weights.bin");
    WITH_W(CM_INVALID, "\"offset\" is there twice", "location", "weights.bin", "offset", "0",
           "offset", "0");
    WITH_W(CM_INVALID, "\"Offset\" is not known", "location", "weights.bin", "Offset", "4");
    WITH_W(CM_INVALID, "\"__class__\" is not known", "location", "weights.bin", "__class__", "x");
    WITH_W(CM_INVALID, "\"\" is not known", "location", "weights.bin", "", "x");
    kit_external(m, 0, (char *)NULL);
    refuse(m, CM_INVALID, "\"location\" is missing");
}

/* The different tensors of a file may not be larger together than the file: a small file could
 * claim any amount of memory otherwise. */
static void overlapping_tensors(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_input(m, "x", CM_FP32, kit_shape(2, -1, N));
    kit_output(m, "y", CM_FP32, kit_shape(2, -1, N));
    kit_const(m, "a", CM_FP32, kit_shape(2, N, N), w);
    kit_const(m, "b", CM_FP32, kit_shape(2, N, N), w);
    kit_node(m, "MatMul", "x,a", "p");
    kit_node(m, "MatMul", "p,b", "y");
    kit_external(m, 0, "location", "weights.bin", "offset", "0", NULL);
    kit_external(m, 1, "location", "weights.bin", "offset", "4", NULL);
    refuse(m, CM_CORRUPT, "overlaps that of other tensors");
}

/* As many tensors as a model may have, from as many files, in bounded time and without a limit on
 * open files getting in the way. */
static void many_files(void **state)
{
    struct rlimit old, few;
    struct kit_model *m = whole();
    char name[64];
    (void)state;
    shell("mkdir many && for i in $(seq 0 499); do printf abcd >many/$i; done");
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "t%u", i);
        kit_const(m, name, CM_FP32, kit_shape(1, 1), v);
        snprintf(name, sizeof name, "many/%u", i % 500);
        kit_external(m, 2 + i, "location", name, NULL);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 40;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    accept(m);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

/* A constant inside a node is a tensor like any. */
static void constants_of_nodes(void **state)
{
    struct kit_model *m = kit_model(13);
    (void)state;
    kit_output(m, "y", CM_FP32, kit_shape(1, N));
    kit_node(m, "Constant", "", "c");
    kit_attr_tensor(m, "value", CM_FP32, kit_shape(1, N), v);
    kit_node(m, "Neg", "c", "y");
    Onnx__TensorProto *t = kit_proto(m)->graph->node[0]->attribute[0]->t;
    Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    Onnx__StringStringEntryProto *list[] = {&entry};
    char key[] = "location", value[] = "../weights.bin";
    entry.key = key;
    entry.value = value;
    t->has_raw_data = 0;
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    t->n_external_data = 1;
    t->external_data = list;
    refuse(m, CM_INVALID, "attribute value of node 0 (Constant): external data");
}

/* If's two branches, the same one: y = the constant v, which lies outside. */
static struct kit_model *branches(struct kit_model *branch, const char *location)
{
    struct kit_model *m = kit_model(13);
    static const char *const names[] = {"then_branch", "else_branch"};
    kit_output(branch, "s", CM_FP32, kit_shape(1, N));
    kit_const(branch, "c", CM_FP32, kit_shape(1, N), v);
    kit_external(branch, 0, "location", location, "offset", "16384", NULL);
    kit_node(branch, "Neg", "c", "s");
    kit_input(m, "condition", CM_BOOL, KIT_SHAPE0());
    kit_output(m, "y", CM_FP32, kit_shape(1, N));
    kit_node(m, "If", "condition", "y");
    for (unsigned i = 0; i < 2; i++) {
        kit_attr_i(m, names[i], 0);
        Onnx__AttributeProto *a = kit_proto(m)->graph->node[0]->attribute[i];
        a->has_i = 0;
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
        a->g = kit_proto(branch)->graph;
    }
    return m;
}

static void constants_of_subgraphs(void **state)
{
    struct kit_model *branch = kit_model(13);
    struct wk_model *model = NULL;
    struct cm_error err = {0};
    (void)state;
    if (parse(branches(branch, "weights.bin"), &err, &model) != CM_OK)
        fail_msg("%s", err.text);
    wk_model_destroy(model);
    kit_free(branch);
    branch = kit_model(13);
    refuse(branches(branch, "../weights.bin"), CM_INVALID, "leaves the model's folder");
    kit_free(branch);
}

/* The file is looked at again after every read: a writer meanwhile is noticed. */
static void files_that_change(void **state)
{
    struct wk_external *external = wk_external_create(directory);
    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    Onnx__StringStringEntryProto place = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    Onnx__StringStringEntryProto offset = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    Onnx__StringStringEntryProto *list[] = {&place, &offset};
    struct cm_shape shape = kit_shape(1, 4);
    struct cm_error err = {0};
    const void *data = NULL;
    char texts[][16] = {"location", "changing.bin", "offset", "0", "16"};
    (void)state;
    assert_non_null(external);
    write_file("changing.bin", NULL, 0);
    place.key = texts[0], place.value = texts[1];
    offset.key = texts[2], offset.value = texts[3];
    proto.n_external_data = 2;
    proto.external_data = list;
    assert_int_equal(wk_external_read(external, &proto, "t", CM_FP32, &shape, 16, &err, &data),
                     CM_OK);
    assert_memory_equal(data, w, 16);
    shell("truncate -s 20 changing.bin");
    assert_memory_equal(data, w, 16); /* ours already */
    offset.value = texts[4];
    assert_int_equal(wk_external_read(external, &proto, "t", CM_FP32, &shape, 16, &err, &data),
                     CM_UNAVAILABLE);
    assert_non_null(strstr(err.text, "changed while it was loaded"));
    wk_external_destroy(external);
    wk_external_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_files),
        cmocka_unit_test(shared_bytes),
        cmocka_unit_test(safetensors),
        cmocka_unit_test(the_key_covers_the_file),
        cmocka_unit_test(checksums),
        cmocka_unit_test(paths),
        cmocka_unit_test(kinds_of_files),
        cmocka_unit_test(numbers),
        cmocka_unit_test(entries),
        cmocka_unit_test(overlapping_tensors),
        cmocka_unit_test(many_files),
        cmocka_unit_test(constants_of_nodes),
        cmocka_unit_test(constants_of_subgraphs),
        cmocka_unit_test(files_that_change),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
