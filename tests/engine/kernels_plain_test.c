/* Integers, comparisons, casts, copies, broadcasting, and the choice of the instruction set. Test
 * code. */
#include "common/check.h"
#include "gpu-worker/cpu/broadcast.h"
#include "gpu-worker/cpu/features.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_integer_edges(void **state)
{
    (void)state;
    int64_t a[] = {INT64_MIN, 7, -7, 5, INT64_MAX}, b[] = {-1, 2, 2, 0, 1}, y[5];
    k_arith_for(K_DIV, CM_INT64)(a, 1, b, 1, y, 5);
    const int64_t quotients[] = {INT64_MIN, 3, -3, 0, INT64_MAX};
    assert_memory_equal(y, quotients, sizeof(y));
    k_arith_for(K_ADD, CM_INT64)(a, 1, b, 1, y, 5);
    assert_true(y[0] == INT64_MAX && y[4] == INT64_MIN);
    int32_t c[] = {INT32_MIN, 65537}, d[] = {-1, 65537}, z[2];
    k_arith_for(K_DIV, CM_INT32)(c, 1, d, 1, z, 2);
    assert_true(z[0] == INT32_MIN && z[1] == 1);
    k_arith_for(K_MUL, CM_INT32)(c, 1, d, 1, z, 2);
    assert_true(z[0] == INT32_MIN && z[1] == 131073);
    uint16_t e[] = {65535, 0}, f[] = {65535, 1}, w[2];
    k_arith_for(K_MUL, CM_UINT16)(e, 1, f, 1, w, 2);
    assert_true(w[0] == 1 && w[1] == 0);
    k_arith_for(K_DIV, CM_UINT16)(e, 1, f, 1, w, 2);
    assert_true(w[0] == 1 && w[1] == 0);
    int8_t g = INT8_MIN, h = -1, v;
    k_arith_for(K_DIV, CM_INT8)(&g, 0, &h, 0, &v, 1);
    assert_int_equal(v, INT8_MIN);
    assert_null(k_arith_for(K_ADD, CM_FP16));
    assert_null(k_arith_for(K_ADD, CM_FP32));
    assert_null(k_arith_for((enum k_arith)99, CM_INT32));
}

static void test_steps(void **state)
{
    (void)state;
    const int32_t a[] = {1, 2, 3, 4}, b[] = {10, 20, 30, 40};
    int32_t y[4];
    k_arith_for(K_SUB, CM_INT32)(a, 0, b, 1, y, 4);
    assert_true(y[0] == -9 && y[3] == -39);
    k_arith_for(K_MAX, CM_INT32)(a, 1, b, 0, y, 4);
    assert_true(y[0] == 10 && y[3] == 10);
}

static void test_compare(void **state)
{
    (void)state;
    const float a[] = {1, 2, NAN, -0.0f}, b[] = {1, 1, 1, 0.0f};
    static const uint8_t want[5][4] = {
        {1, 0, 0, 1}, {0, 0, 0, 0}, {1, 0, 0, 1}, {0, 1, 0, 0}, {1, 1, 0, 1}};
    for (int op = K_EQUAL; op <= K_GREATER_EQUAL; op++) {
        uint8_t y[4];
        k_compare_for((enum k_compare)op, CM_FP32)(a, 1, b, 1, y, 4);
        assert_memory_equal(y, want[op], 4);
    }
    const uint8_t p[] = {0, 1, 2, 0}, q[] = {0, 2, 0, 5};
    uint8_t y[4];
    k_compare_for(K_EQUAL, CM_BOOL)(p, 1, q, 1, y, 4);
    assert_memory_equal(y, "\1\1\0\0", 4);
    assert_null(k_compare_for(K_LESS, CM_BOOL));
    k_bool_and(p, 1, q, 1, y, 4);
    assert_memory_equal(y, "\0\1\0\0", 4);
    k_bool_or(p, 1, q, 1, y, 4);
    assert_memory_equal(y, "\0\1\1\1", 4);
    k_bool_xor(p, 1, q, 1, y, 4);
    assert_memory_equal(y, "\0\0\1\1", 4);
    k_bool_not(p, y, 4);
    assert_memory_equal(y, "\1\0\0\1", 4);
    const int64_t s[] = {1, 2, 3, 4}, t[] = {-1, -2, -3, -4};
    int64_t w[4];
    k_where(8, p, 1, s, 1, t, 0, w, 4);
    assert_true(w[0] == -1 && w[1] == 2 && w[2] == 3 && w[3] == -1);
}

/* ---- casts ---- */

static void test_float_to_integer(void **state)
{
    (void)state;
    const float x[] = {0.9f, -0.9f, NAN, INFINITY, -INFINITY, 3e9f, -3e9f, 300.5f, -1.5f};
    int32_t i32[9];
    int64_t i64[9];
    uint8_t u8[9], truth[9];
    int8_t i8[9];
    k_cast(CM_FP32, CM_INT32, x, i32, 9);
    const int32_t want32[] = {0, 0, 0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 300, -1};
    assert_memory_equal(i32, want32, sizeof(i32));
    k_cast(CM_FP32, CM_INT64, x, i64, 9);
    assert_true(i64[2] == 0 && i64[3] == INT64_MAX && i64[4] == INT64_MIN && i64[5] == 3000000000);
    k_cast(CM_FP32, CM_UINT8, x, u8, 9);
    assert_memory_equal(u8, ((uint8_t[]){0, 0, 0, 255, 0, 255, 0, 255, 0}), 9);
    k_cast(CM_FP32, CM_INT8, x, i8, 9);
    assert_memory_equal(i8, ((int8_t[]){0, 0, 0, 127, -128, 127, -128, 127, -1}), 9);
    k_cast(CM_FP32, CM_BOOL, x, truth, 9);
    assert_memory_equal(truth, ((uint8_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1}), 9);
    const double edge[] = {9223372036854775807.0, -9223372036854775808.0, 1e300};
    k_cast(CM_FP64, CM_INT64, edge, i64, 3);
    assert_true(i64[0] == INT64_MAX && i64[1] == INT64_MIN && i64[2] == INT64_MAX);
}

static void test_integer_casts(void **state)
{
    (void)state;
    const int64_t x[] = {-1, 300, 1ll << 40, INT64_MIN, 16777217};
    int32_t i32[5];
    uint8_t u8[5];
    float f[5];
    k_cast(CM_INT64, CM_INT32, x, i32, 5);
    assert_memory_equal(i32, ((int32_t[]){-1, 300, 0, 0, 16777217}), sizeof(i32));
    k_cast(CM_INT64, CM_UINT8, x, u8, 5);
    assert_memory_equal(u8, ((uint8_t[]){255, 44, 0, 0, 1}), 5);
    k_cast(CM_INT64, CM_FP32, x, f, 5);
    assert_true(f[0] == -1.0f && f[3] == -0x1p63f && f[4] == 16777216.0f);
    const uint64_t big[] = {UINT64_MAX};
    k_cast(CM_UINT64, CM_FP32, big, f, 1);
    assert_true(f[0] == 0x1p64f);
    k_cast(CM_BOOL, CM_FP32, "\0\1\5", f, 3);
    assert_true(f[0] == 0 && f[1] == 1 && f[2] == 1);
}

/* Every half and every bfloat there and back, and rounding to nearest even between neighbours. */
static void test_small_floats(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        enum cm_dtype small = type ? CM_BF16 : CM_FP16;
        unsigned infinite = type ? 0x7f80u : 0x7c00u;
        float last = 0;
        for (unsigned bits = 0; bits <= infinite; bits++) {
            uint16_t h = (uint16_t)bits, back;
            float f, mid, up;
            k_cast(small, CM_FP32, &h, &f, 1);
            k_cast(CM_FP32, small, &f, &back, 1);
            assert_int_equal(back, h);
            if (bits == infinite)
                assert_true(isinf(f));
            if (bits == 0 || bits == infinite) {
                last = f;
                continue;
            }
            assert_true(f > last);
            mid = last + (f - last) / 2; /* exact: one more bit than the small type has */
            k_cast(CM_FP32, small, &mid, &back, 1);
            assert_int_equal(back, bits % 2 ? bits - 1 : bits); /* ties to even */
            up = nextafterf(mid, INFINITY);
            k_cast(CM_FP32, small, &up, &back, 1);
            assert_int_equal(back, bits);
            up = -up;
            k_cast(CM_FP32, small, &up, &back, 1);
            assert_int_equal(back, bits | 0x8000u);
            /* Beside the tie by less than a float can say. */
            double beside[] = {mid * (1 - 0x1p-40), mid * (1 + 0x1p-40)};
            uint16_t pair[2];
            k_cast(CM_FP64, small, beside, pair, 2);
            assert_true(pair[0] == bits - 1 && pair[1] == bits);
            last = f;
        }
        float nan = NAN, huge = 3.4028235e38f;
        uint16_t h;
        k_cast(CM_FP32, small, &nan, &h, 1);
        k_cast(small, CM_FP32, &h, &nan, 1);
        assert_true(isnan(nan));
        k_cast(CM_FP32, small, &huge, &h, 1);
        assert_int_equal(h, infinite);
    }
    /* Half and a bit: through a float this would round twice. */
    const double twice[] = {1.0 + 0x1p-11 + 0x1p-30};
    const int64_t integer[] = {(1ll << 53) + (1ll << 42) + 1};
    uint16_t h;
    k_cast(CM_FP64, CM_FP16, twice, &h, 1);
    assert_int_equal(h, 0x3c01);
    k_cast(CM_INT64, CM_BF16, integer, &h, 1);
    assert_int_equal(h, 0x5a00);
    const int64_t above[] = {(1ll << 62) + (1ll << 54) + 1};
    k_cast(CM_INT64, CM_BF16, above, &h, 1);
    assert_int_equal(h, 0x5e81);
}

/* Every pair of types carries small numbers. */
static void test_every_pair(void **state)
{
    (void)state;
    enum cm_dtype all[] = {
#define X(name, number, bytes, text, onnx) CM_##name,
        CM_DTYPE_MAP(X)
#undef X
    };
    enum { N = 600 }; /* more than one chunk */
    static uint64_t a[N], b[N], c[N];
    float start[N];
    for (unsigned i = 0; i < N; i++)
        start[i] = (float)(i % 100);
    for (unsigned i = 0; i < CM_COUNT_OF(all); i++)
        for (unsigned j = 0; j < CM_COUNT_OF(all); j++) {
            float end[N];
            k_cast(CM_FP32, all[i], start, a, N);
            k_cast(all[i], all[j], a, b, N);
            k_cast(all[j], CM_FP32, b, end, N);
            bool truth = all[i] == CM_BOOL || all[j] == CM_BOOL;
            for (unsigned k = 0; k < N; k++)
                assert_true(end[k] == (truth ? (float)(start[k] != 0) : start[k]));
            k_cast(all[j], all[j], b, c, N);
            assert_memory_equal(b, c, N * cm_dtype_size(all[j]));
        }
}

/* ---- copies ---- */

static void check_copy(struct k_copy c, size_t in_bytes, size_t out_bytes)
{
    unsigned char *x = malloc(in_bytes), *want = calloc(1, out_bytes), *y = calloc(1, out_bytes);
    for (size_t i = 0; i < in_bytes; i++)
        x[i] = (unsigned char)(i * 131 + 7);
    size_t index[CM_MAX_RANK] = {0};
    for (bool more = true; more;) {
        ptrdiff_t in = 0, out = 0;
        for (unsigned d = 0; d < c.rank; d++) {
            in += (ptrdiff_t)index[d] * c.in_stride[d];
            out += (ptrdiff_t)index[d] * c.out_stride[d];
        }
        memcpy(want + (size_t)out * c.element, x + (size_t)in * c.element, c.element);
        more = false;
        for (unsigned d = c.rank; d-- > 0 && !more;) {
            more = ++index[d] < c.dims[d];
            if (!more)
                index[d] = 0;
        }
    }
    c.x = x;
    c.y = y;
    for (int simple = 0; simple < 2; simple++) {
        memset(y, 0, out_bytes);
        size_t items = k_copy_items(&c);
        k_copy_run(&c, items / 3, items);
        k_copy_run(&c, 0, items / 3);
        assert_memory_equal(y, want, out_bytes);
        k_copy_simplify(&c);
    }
    free(x);
    free(want);
    free(y);
}

static void test_copy(void **state)
{
    (void)state;
    static const size_t elements[] = {1, 2, 3, 4, 8, 12, 16};
    for (unsigned e = 0; e < CM_COUNT_OF(elements); e++) {
        size_t s = elements[e];
        struct k_copy transpose = {.element = s, .rank = 3, .dims = {5, 7, 3}};
        transpose.in_stride[0] = 21, transpose.in_stride[1] = 3, transpose.in_stride[2] = 1;
        transpose.out_stride[0] = 1, transpose.out_stride[1] = 5, transpose.out_stride[2] = 35;
        check_copy(transpose, 105 * s, 105 * s);
        struct k_copy whole = {.element = s, .rank = 3, .dims = {5, 1, 4}};
        whole.in_stride[0] = whole.out_stride[0] = 4, whole.in_stride[1] = 99;
        whole.in_stride[2] = whole.out_stride[2] = 1;
        check_copy(whole, 20 * s, 20 * s);
        struct k_copy expand = {.element = s, .rank = 2, .dims = {6, 4}};
        expand.in_stride[0] = 0, expand.in_stride[1] = 1;
        expand.out_stride[0] = 4, expand.out_stride[1] = 1;
        check_copy(expand, 4 * s, 24 * s);
        struct k_copy one = {.element = s, .rank = 0};
        check_copy(one, s, s);
    }
    struct k_copy reverse = {.element = 4, .rank = 2, .dims = {3, 4}};
    float x[12], y[12];
    for (unsigned i = 0; i < 12; i++)
        x[i] = (float)i;
    reverse.x = x + 3, reverse.y = y;
    reverse.in_stride[0] = 4, reverse.in_stride[1] = -1;
    reverse.out_stride[0] = 4, reverse.out_stride[1] = 1;
    k_copy_simplify(&reverse);
    k_copy_run(&reverse, 0, k_copy_items(&reverse));
    assert_true(y[0] == 3 && y[3] == 0 && y[4] == 7 && y[11] == 8);
    /* More empty runs than there is time for. */
    const struct k_copy nothing = {
        .element = 4, .rank = 3, .dims = {(size_t)1 << 30, (size_t)1 << 30, 0}};
    assert_int_equal(k_copy_items(&nothing), 0);
}

/* ---- broadcasting ---- */

static struct cm_shape shape(unsigned rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t dims[] = {a, b, c, d};
    struct cm_shape s = {.rank = (uint8_t)rank};
    for (unsigned i = 0; i < rank; i++)
        s.dims[i] = dims[i];
    return s;
}

static size_t element_at(const struct cm_shape *out, const struct cm_shape *s, size_t e)
{
    size_t at = 0, stride = 1;
    for (unsigned d = 0; d < out->rank; d++) {
        size_t dim = (size_t)out->dims[out->rank - 1 - d], index = e % dim;
        e /= dim;
        if (d < s->rank && s->dims[s->rank - 1 - d] != 1) {
            at += index * stride;
            stride *= (size_t)s->dims[s->rank - 1 - d];
        }
    }
    return at;
}

static void check_bcast(struct cm_shape a, struct cm_shape b, unsigned want_rank)
{
    const struct cm_shape *const operands[] = {&a, &b};
    struct cm_shape out;
    struct cpu_bcast walk;
    float x0[512], x1[512], y[2048];
    assert_int_equal(cpu_bcast_shape(operands, 2, &out), CM_OK);
    cpu_bcast_init(&walk, &out, operands, 2);
    assert_int_equal(walk.rank, want_rank);
    for (unsigned i = 0; i < 512; i++) {
        x0[i] = (float)i;
        x1[i] = (float)i * 1000.0f;
    }
    const struct cpu_kernels *k = cpu_kernels_for(WK_ISA_SCALAR);
    size_t e = walk.count;
    cpu_bcast_f32(&walk, k->binary[K_BINARY_add], x0, x1, y, 0, e / 3);
    cpu_bcast_f32(&walk, k->binary[K_BINARY_add], x0, x1, y, e / 3, e);
    for (size_t i = 0; i < e; i++)
        assert_true(y[i] == x0[element_at(&out, &a, i)] + x1[element_at(&out, &b, i)]);
}

static void test_broadcast(void **state)
{
    (void)state;
    check_bcast(shape(4, 2, 3, 4, 5), shape(4, 2, 3, 4, 5), 1);
    check_bcast(shape(4, 2, 3, 4, 5), shape(0, 0, 0, 0, 0), 1);
    check_bcast(shape(4, 2, 3, 4, 5), shape(4, 1, 3, 1, 1), 3);
    check_bcast(shape(4, 1, 3, 4, 5), shape(4, 1, 3, 1, 1), 2);
    check_bcast(shape(2, 3, 4, 0, 0), shape(1, 4, 0, 0, 0), 2);
    check_bcast(shape(2, 3, 1, 0, 0), shape(2, 1, 4, 0, 0), 2);
    check_bcast(shape(3, 2, 1, 5, 0), shape(4, 3, 1, 4, 1), 4);
    check_bcast(shape(2, 1, 1, 0, 0), shape(1, 1, 0, 0, 0), 1);
    check_bcast(shape(2, 0, 3, 0, 0), shape(1, 3, 0, 0, 0), 2);
    const struct cm_shape a = shape(2, 3, 4, 0, 0), b = shape(1, 3, 0, 0, 0);
    const struct cm_shape big = shape(2, 1ll << 40, 1, 0, 0), wide = shape(1, 1ll << 40, 0, 0, 0);
    const struct cm_shape *const bad[] = {&a, &b}, *const huge[] = {&big, &wide};
    struct cm_shape out;
    assert_int_equal(cpu_bcast_shape(bad, 2, &out), CM_INVALID);
    assert_int_equal(cpu_bcast_shape(huge, 2, &out), CM_LIMIT);
}

/* ---- the choice of the instruction set ---- */

static void test_isa(void **state)
{
    (void)state;
    enum wk_isa isa, scalar = WK_ISA_SCALAR, best = wk_isa_best(), none = (enum wk_isa)77;
    struct cm_error err;
    unsetenv("INGOT_CPU_ISA");
    assert_true(cpu_isa_mask() & 1u);
    assert_int_equal(cpu_isa_choose(NULL, &err, &isa), CM_OK);
    assert_int_equal(isa, best);
    assert_int_equal(cpu_isa_choose(&scalar, &err, &isa), CM_OK);
    assert_int_equal(isa, WK_ISA_SCALAR);
    assert_int_equal(cpu_isa_choose(&none, &err, &isa), CM_UNSUPPORTED);
    setenv("INGOT_CPU_ISA", "scalar", 1);
    assert_int_equal(cpu_isa_choose(&best, &err, &isa), CM_OK);
    assert_int_equal(isa, WK_ISA_SCALAR);
    setenv("INGOT_CPU_ISA", "avx512", 1); /* never raises */
    assert_int_equal(cpu_isa_choose(&scalar, &err, &isa), CM_OK);
    assert_int_equal(isa, WK_ISA_SCALAR);
    setenv("INGOT_CPU_ISA", "sse9", 1);
    assert_int_equal(cpu_isa_choose(NULL, &err, &isa), CM_INVALID);
    assert_non_null(strstr(err.text, "sse9"));
    unsetenv("INGOT_CPU_ISA");
    for (unsigned i = 0; i <= WK_ISA_AVX512; i++) {
        assert_true(wk_isa_from_name(wk_isa_name((enum wk_isa)i), &isa));
        assert_int_equal(isa, i);
        assert_int_equal(cpu_kernels_for((enum wk_isa)i)->isa, i);
    }
    assert_false(wk_isa_from_name("AVX2", &isa));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integer_edges), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_compare),       cmocka_unit_test(test_float_to_integer),
        cmocka_unit_test(test_integer_casts), cmocka_unit_test(test_small_floats),
        cmocka_unit_test(test_every_pair),    cmocka_unit_test(test_copy),
        cmocka_unit_test(test_broadcast),     cmocka_unit_test(test_isa),
    };
    return cmocka_run_group_tests_name("kernels_plain", tests, NULL, NULL);
}
