/* .npy and TensorProto files: every type there and back, what NumPy and ONNX write, what is
 * refused, and mutated files by the thousand. */
#include "deploy/ingot/tensor_file.h"

#include "common/check.h"
#include "proto/onnx.pb-c.h"
#include "tests/harness/t.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUTATIONS 20000

static const enum cm_dtype dtypes[] = {
#define X(name, number, bytes, text, onnx) CM_##name,
    CM_DTYPE_MAP(X)
#undef X
};

static struct ig_tensor make_tensor(enum cm_dtype dtype, struct cm_shape shape)
{
    struct ig_tensor tensor;
    uint64_t seed = 12345;
    assert_int_equal(ig_tensor_init(&tensor, dtype, &shape, NULL), CM_OK);
    for (size_t i = 0; i < tensor.bytes; i++)
        ((unsigned char *)tensor.data)[i] = (unsigned char)(t_random(&seed) >> 20);
    return tensor;
}

static void assert_same(const struct ig_tensor *a, const struct ig_tensor *b)
{
    assert_int_equal(a->dtype, b->dtype);
    assert_true(cm_shape_equal(&a->shape, &b->shape));
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
    assert_int_equal((uintptr_t)b->data % IG_TENSOR_ALIGN, 0);
}

static const struct cm_shape shapes[] = {
    {0, {0}}, {1, {1}}, {1, {7}}, {2, {3, 5}}, {2, {0, 5}}, {8, {1, 2, 1, 2, 1, 2, 1, 3}},
};

static void npy_there_and_back(void **state)
{
    (void)state;
    for (unsigned d = 0; d < CM_COUNT_OF(dtypes); d++) {
        for (unsigned s = 0; s < CM_COUNT_OF(shapes); s++) {
            struct cm_error err = {0};
            struct ig_tensor tensor = make_tensor(dtypes[d], shapes[s]), copy = {0};
            unsigned char *bytes = NULL;
            size_t length = 0;
            enum cm_err code = ig_npy_format(&tensor, &err, &bytes, &length);
            if (dtypes[d] == CM_BF16) {
                assert_int_equal(code, CM_UNSUPPORTED);
            } else {
                assert_int_equal(code, CM_OK);
                assert_int_equal((length - tensor.bytes) % 64, 0); /* as NumPy aligns it */
                assert_int_equal(ig_npy_parse(bytes, length, &err, &copy), CM_OK);
                assert_same(&tensor, &copy);
            }
            free(bytes);
            ig_tensor_fini(&tensor);
            ig_tensor_fini(&copy);
        }
    }
}

static void pb_there_and_back(void **state)
{
    (void)state;
    for (unsigned d = 0; d < CM_COUNT_OF(dtypes); d++) {
        for (unsigned s = 0; s < CM_COUNT_OF(shapes); s++) {
            struct cm_error err = {0};
            struct ig_tensor tensor = make_tensor(dtypes[d], shapes[s]), copy = {0};
            unsigned char *bytes = NULL;
            size_t length = 0;
            snprintf(tensor.name, sizeof tensor.name, "a tensor");
            assert_int_equal(ig_pb_format(&tensor, &err, &bytes, &length), CM_OK);
            assert_int_equal(ig_pb_parse(bytes, length, &err, &copy), CM_OK);
            assert_same(&tensor, &copy);
            assert_string_equal(copy.name, "a tensor");
            free(bytes);
            ig_tensor_fini(&tensor);
            ig_tensor_fini(&copy);
        }
    }
}

/* --- .npy as others write it */

/* A whole file: version 1 or 2, the header's text as given (not padded), then elements. */
static size_t build_npy(unsigned char *file, unsigned version, const char *header,
                        const void *elements, size_t bytes)
{
    size_t text = strlen(header), at = 8;
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)version;
    file[7] = 0;
    file[at++] = (unsigned char)text;
    file[at++] = (unsigned char)(text >> 8);
    if (version == 2) {
        file[at++] = 0;
        file[at++] = 0;
    }
    memcpy(file + at, header, text);
    memcpy(file + at + text, elements, bytes);
    return at + text + bytes;
}

static void npy_forms_are_read(void **state)
{
    static const struct {
        unsigned version;
        const char *header;
        unsigned rank;
    } cases[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", 2},
        {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", 2},
        {1, "{\"shape\": (6,), \"fortran_order\": False, \"descr\": \"<f4\"}\n", 1},
        {1, "{'descr': '<f4', 'fortran_order': True, 'shape': (6,), }\n", 1},
        {1, "{'descr':'<f4','fortran_order':False,'shape':(2,3,)}", 2},
    };
    float elements[6] = {1, 2, 3, 4, 5, 6.5f};
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++) {
        unsigned char file[512];
        struct cm_error err = {0};
        struct ig_tensor tensor = {0};
        size_t length =
            build_npy(file, cases[i].version, cases[i].header, elements, sizeof elements);
        if (ig_npy_parse(file, length, &err, &tensor) != CM_OK)
            fail_msg("%s: %s", cases[i].header, err.text);
        assert_int_equal(tensor.shape.rank, cases[i].rank);
        assert_memory_equal(tensor.data, elements, sizeof elements);
        ig_tensor_fini(&tensor);
    }
}

static void npy_refusals_are_clear(void **state)
{
    static const struct {
        const char *header;
        enum cm_err code;
        const char *says;
    } cases[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (6,), }", CM_UNSUPPORTED, "big endian"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", CM_UNSUPPORTED, "Fortran"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", CM_UNSUPPORTED,
         "structured"},
        {"{'descr': '<U6', 'fortran_order': False, 'shape': (6,), }", CM_UNSUPPORTED, "'<U6'"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (6,), }", CM_UNSUPPORTED, "'|O'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,), }", CM_UNSUPPORTED, "'<c8'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,), }", CM_UNSUPPORTED, "''"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }", CM_CORRUPT, "24 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }", CM_CORRUPT, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 6, }", CM_CORRUPT, "tuple"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6 6), }", CM_CORRUPT, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", CM_CORRUPT,
         "shape"},
        {"{'descr': '<f4', 'fortran_order': False, "
         "'shape': (4294967296, 4294967296, 4294967296), }",
         CM_CORRUPT, "24 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6), }", CM_UNSUPPORTED,
         "dimensions"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (6,), }", CM_CORRUPT, "fortran_order"},
        {"{'descr': '<f4', 'shape': (6,), }", CM_CORRUPT, "lacks"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,), }", CM_CORRUPT,
         "repeated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}", CM_CORRUPT, "key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), } import os", CM_CORRUPT,
         "after"},
        {"__import__('os')", CM_CORRUPT, "dictionary"},
        {"", CM_CORRUPT, "dictionary"},
        {"{'descr': '<f4", CM_UNSUPPORTED, ""},
    };
    float elements[6] = {0};
    (void)state;
    for (unsigned i = 0; i < CM_COUNT_OF(cases); i++) {
        unsigned char file[512];
        struct cm_error err = {0};
        struct ig_tensor tensor = {0};
        size_t length = build_npy(file, 1, cases[i].header, elements, sizeof elements);
        enum cm_err code = ig_npy_parse(file, length, &err, &tensor);
        if (code != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].header, code, err.text);
        assert_null(tensor.data);
    }
}

static void npy_versions_and_lengths_are_checked(void **state)
{
    unsigned char file[512];
    struct cm_error err = {0};
    struct ig_tensor tensor = {0};
    float elements[6] = {0};
    const char *header = "{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }\n";
    size_t length = build_npy(file, 1, header, elements, sizeof elements);
    (void)state;
    for (size_t cut = 0; cut < length; cut++)
        assert_int_not_equal(ig_npy_parse(file, cut, &err, &tensor), CM_OK);
    file[6] = 3;
    assert_int_equal(ig_npy_parse(file, length, &err, &tensor), CM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "3.0"));
    file[6] = 2; /* its length field is four bytes, so it now reaches into the text */
    assert_int_equal(ig_npy_parse(file, length, &err, &tensor), CM_CORRUPT);
}

/* --- TensorProto as others write it */

static enum cm_err parse_proto(const Onnx__TensorProto *proto, struct cm_error *err,
                               struct ig_tensor *tensor)
{
    size_t length = onnx__tensor_proto__get_packed_size(proto);
    unsigned char *bytes = malloc(length + 1);
    assert_non_null(bytes);
    onnx__tensor_proto__pack(proto, bytes);
    enum cm_err code = ig_pb_parse(bytes, length, err, tensor);
    free(bytes);
    return code;
}

static void pb_typed_fields_are_read(void **state)
{
    struct cm_error err = {0};
    struct ig_tensor tensor = {0};
    int64_t dims[1] = {3};
    float floats[3] = {1, -2, 3.5f};
    int32_t ints[3] = {0, 1, 1}, bytes[3] = {-128, 0, 127}, halves[3] = {0x3c00, 0xc000, 0x7c00};
    (void)state;

    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    proto.n_dims = 1;
    proto.dims = dims;
    proto.has_data_type = 1;
    proto.data_type = 1;
    proto.n_float_data = 3;
    proto.float_data = floats;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    assert_memory_equal(tensor.data, floats, sizeof floats);
    ig_tensor_fini(&tensor);

    proto.n_float_data = 0;
    proto.n_int32_data = 3;
    proto.int32_data = ints;
    proto.data_type = 9;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    assert_memory_equal(tensor.data, "\0\1\1", 3);
    ig_tensor_fini(&tensor);

    proto.int32_data = bytes;
    proto.data_type = 3;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    assert_memory_equal(tensor.data, "\x80\x00\x7f", 3);
    ig_tensor_fini(&tensor);
    proto.data_type = 2; /* -128 is no UINT8 */
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);

    proto.int32_data = halves;
    proto.data_type = 10;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    assert_true(ig_tensor_number(&tensor, 0) == 1);
    assert_true(ig_tensor_number(&tensor, 1) == -2);
    assert_true(isinf(ig_tensor_number(&tensor, 2)));
    ig_tensor_fini(&tensor);
}

static void pb_64_bit_fields_are_read(void **state)
{
    struct cm_error err = {0};
    struct ig_tensor tensor = {0};
    int64_t dims[1] = {3};
    int64_t longs[3] = {INT64_MIN, 0, INT64_MAX};
    uint64_t unsigneds[3] = {0, 1, UINT32_MAX};
    (void)state;

    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    proto.n_dims = 1;
    proto.dims = dims;
    proto.has_data_type = 1;
    proto.n_int64_data = 3;
    proto.int64_data = longs;
    proto.data_type = 7;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    char text[32];
    assert_string_equal(ig_tensor_format(&tensor, 2, text, sizeof text), "9223372036854775807");
    ig_tensor_fini(&tensor);

    proto.n_int64_data = 0;
    proto.n_uint64_data = 3;
    proto.uint64_data = unsigneds;
    proto.data_type = 12;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_OK);
    assert_true(ig_tensor_number(&tensor, 2) == UINT32_MAX);
    ig_tensor_fini(&tensor);
    unsigneds[2]++;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);
}

static void pb_refusals_are_clear(void **state)
{
    struct cm_error err = {0};
    struct ig_tensor tensor = {0};
    int64_t dims[9] = {3, 1, 1, 1, 1, 1, 1, 1, 1};
    float floats[3] = {0};
    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    (void)state;
    assert_int_equal(ig_pb_parse("", 0, &err, &tensor), CM_CORRUPT);
    assert_int_equal(ig_pb_parse("\xff\xff", 2, &err, &tensor), CM_CORRUPT);

    proto.n_dims = 1;
    proto.dims = dims;
    proto.has_data_type = 1;
    proto.data_type = 1;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT); /* no elements */
    proto.n_float_data = 2;
    proto.float_data = floats;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT); /* too few */
    proto.n_float_data = 3;
    proto.data_type = 11; /* three floats are no doubles */
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);
    proto.data_type = 8;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_UNSUPPORTED);
    proto.data_type = 1;
    dims[0] = -3;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);
    dims[0] = INT64_MAX; /* a small file must not ask for memory */
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);
    dims[0] = 3;
    proto.n_dims = 9;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_UNSUPPORTED);
    proto.n_dims = 1;
    proto.has_raw_data = 1; /* both kinds of data */
    proto.raw_data.data = (unsigned char *)floats;
    proto.raw_data.len = sizeof floats;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_CORRUPT);
    proto.has_raw_data = 0;
    proto.has_data_location = 1;
    proto.data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    assert_int_equal(parse_proto(&proto, &err, &tensor), CM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "another file"));
}

/* --- files */

static void files_are_told_by_their_ending(void **state)
{
    char dir[T_PATH_MAX], path[T_PATH_MAX + 32];
    struct cm_error err = {0};
    struct cm_shape shape = {1, {4}};
    struct ig_tensor tensor = make_tensor(CM_INT16, shape), copy = {0};
    static const char *const endings[] = {"npy", "pb"};
    (void)state;
    t_make_dir(dir);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/x.%s", dir, endings[i]);
        assert_int_equal(ig_tensor_write(path, &tensor, &err), CM_OK);
        assert_int_equal(ig_tensor_read(path, &err, &copy), CM_OK);
        assert_same(&tensor, &copy);
        ig_tensor_fini(&copy);
    }
    snprintf(path, sizeof path, "%s/x.txt", dir);
    assert_int_equal(ig_tensor_write(path, &tensor, &err), CM_INVALID);
    assert_int_equal(ig_tensor_read(path, &err, &copy), CM_INVALID);
    snprintf(path, sizeof path, "%s/missing.npy", dir);
    assert_int_equal(ig_tensor_read(path, &err, &copy), CM_NOT_FOUND);
    assert_non_null(strstr(err.text, "missing.npy"));
    assert_int_equal(ig_tensor_read(dir, &err, &copy), CM_INVALID);
    ig_tensor_fini(&tensor);
    t_remove_dir(dir);
}

/* --- mutation */

typedef enum cm_err (*parse_fn)(const void *bytes, size_t length, struct cm_error *err,
                                struct ig_tensor *ret_tensor);

/* Changes some bytes, sometimes the length; what is accepted must be consistent. The copy has its
 * exact size, so that a sanitizer sees a read past its end. */
static unsigned mutate(parse_fn parse, const unsigned char *file, size_t length, uint64_t seed)
{
    unsigned accepted = 0;
    for (unsigned i = 0; i < MUTATIONS; i++) {
        size_t size = t_random(&seed) % 4 ? length : t_random(&seed) % (length + 1);
        unsigned char *copy = malloc(size ? size : 1);
        assert_non_null(copy);
        memcpy(copy, file, size);
        for (unsigned n = (unsigned)(t_random(&seed) % 4); n > 0 && size > 0; n--)
            copy[t_random(&seed) % size] = (unsigned char)(t_random(&seed) >> 13);
        struct cm_error err = {0};
        struct ig_tensor tensor = {0};
        enum cm_err code = parse(copy, size, &err, &tensor);
        if (code == CM_OK) {
            size_t bytes = 0;
            accepted++;
            assert_int_equal(cm_shape_bytes(&tensor.shape, tensor.dtype, &bytes), CM_OK);
            assert_int_equal(bytes, tensor.bytes);
            assert_true(tensor.bytes <= length * 8);
            for (size_t e = 0; e < ig_tensor_count(&tensor); e++)
                (void)ig_tensor_number(&tensor, e);
        } else {
            assert_null(tensor.data);
            assert_true(err.text[0] != '\0');
        }
        ig_tensor_fini(&tensor);
        free(copy);
    }
    return accepted;
}

static void mutated_files_break_nothing(void **state)
{
    struct cm_shape shape = {2, {3, 4}};
    struct cm_error err = {0};
    unsigned char *bytes = NULL;
    size_t length = 0;
    int64_t dims[1] = {5};
    int32_t values[5] = {1, 2, 3, 4, 5};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct ig_tensor tensor = make_tensor(i == 0 ? CM_UINT8 : CM_FP32, shape);
        assert_int_equal(ig_npy_format(&tensor, &err, &bytes, &length), CM_OK);
        assert_true(mutate(ig_npy_parse, bytes, length, 99 + i) > 0);
        free(bytes);
        assert_int_equal(ig_pb_format(&tensor, &err, &bytes, &length), CM_OK);
        assert_true(mutate(ig_pb_parse, bytes, length, 199 + i) > 0);
        free(bytes);
        ig_tensor_fini(&tensor);
    }
    Onnx__TensorProto proto = ONNX__TENSOR_PROTO__INIT;
    proto.n_dims = 1;
    proto.dims = dims;
    proto.has_data_type = 1;
    proto.data_type = 5;
    proto.n_int32_data = 5;
    proto.int32_data = values;
    length = onnx__tensor_proto__get_packed_size(&proto);
    bytes = malloc(length);
    assert_non_null(bytes);
    onnx__tensor_proto__pack(&proto, bytes);
    assert_true(mutate(ig_pb_parse, bytes, length, 7) > 0);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(npy_there_and_back),
        cmocka_unit_test(pb_there_and_back),
        cmocka_unit_test(npy_forms_are_read),
        cmocka_unit_test(npy_refusals_are_clear),
        cmocka_unit_test(npy_versions_and_lengths_are_checked),
        cmocka_unit_test(pb_typed_fields_are_read),
        cmocka_unit_test(pb_64_bit_fields_are_read),
        cmocka_unit_test(pb_refusals_are_clear),
        cmocka_unit_test(files_are_told_by_their_ending),
        cmocka_unit_test(mutated_files_break_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
