/* Element-wise operators of two and more operands for every type and over broadcasting shapes,
 * against plain loops: in double for floating point (of which one rounding gives the bits of every
 * narrower type), in 128 bits for integers. */
#include "common/check.h"
#include "tests/engine/map_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 11;

/* Shapes of two operands and of the result; an empty tensor, and eight dimensions too. */
struct shapes {
    struct cm_shape a, b, y;
};
#define SHAPES 7
static struct shapes shapes_of(int i)
{
    switch (i) {
    case 0:
        return (struct shapes){kit_shape(2, 17, 19), kit_shape(2, 17, 19), kit_shape(2, 17, 19)};
    case 1:
        return (struct shapes){kit_shape(3, 3, 5, 7), kit_shape(1, 7), kit_shape(3, 3, 5, 7)};
    case 2:
        return (struct shapes){KIT_SHAPE0(), kit_shape(2, 6, 50), kit_shape(2, 6, 50)};
    case 3:
        return (struct shapes){kit_shape(3, 4, 1, 6), kit_shape(2, 5, 1), kit_shape(3, 4, 5, 6)};
    case 4:
        return (struct shapes){kit_shape(2, 0, 3), kit_shape(1, 3), kit_shape(2, 0, 3)};
    case 5:
        return (struct shapes){kit_shape(8, 2, 1, 2, 1, 2, 3, 1, 2), kit_shape(6, 1, 3, 2, 1, 4, 1),
                               kit_shape(8, 2, 1, 2, 3, 2, 3, 4, 2)};
    default: /* work for two threads */
        return (struct shapes){kit_shape(2, 300, 301), kit_shape(2, 300, 1),
                               kit_shape(2, 300, 301)};
    }
}

/* ---- definitions ----------------------------------------------------------------------------- */

static bool is(const char *op, const char *name)
{
    return strcmp(op, name) == 0;
}

static double real_of(const char *op, double a, double b)
{
    if (is(op, "Add"))
        return a + b;
    if (is(op, "Sub"))
        return a - b;
    if (is(op, "Mul"))
        return a * b;
    if (is(op, "Div"))
        return a / b;
    if (is(op, "Mod"))
        return fmod(a, b);
    if (is(op, "PRelu"))
        return a < 0 ? a * b : a;
    assert_true(is(op, "Min") || is(op, "Max"));
    if (isnan(a) || isnan(b))
        return NAN;
    return is(op, "Min") ? (b < a ? b : a) : b > a ? b : a;
}

/* Unsigned, because two factors of 64 bits, or a shift, may take all of 128. */
__extension__ typedef unsigned __int128 wide;

static map_int whole_of(const struct map_node *node, enum cm_dtype dtype, map_int a, map_int b)
{
    const char *op = node->op;
    int bits = 8 * (int)cm_dtype_size(dtype);
    if (is(op, "Add"))
        return a + b;
    if (is(op, "Sub"))
        return a - b;
    if (is(op, "Mul"))
        return (map_int)((wide)a * (wide)b);
    if (is(op, "Div"))
        return b == 0 ? 0 : a / b;
    if (is(op, "Min"))
        return a < b ? a : b;
    if (is(op, "Max"))
        return a > b ? a : b;
    if (is(op, "PRelu"))
        return a < 0 ? a * b : a;
    if (is(op, "BitwiseAnd"))
        return a & b;
    if (is(op, "BitwiseOr"))
        return a | b;
    if (is(op, "BitwiseXor"))
        return a ^ b;
    if (is(op, "BitShift"))
        return b >= bits ? 0 : node->attrs[0].s[0] == 'L' ? (map_int)((wide)a << b) : a >> b;
    assert_string_equal(op, "Mod");
    if (b == 0)
        return 0;
    map_int rest = a % b; /* the dividend's sign */
    return node->attrs[0].i || rest == 0 || (rest < 0) == (b < 0) ? rest : rest + b;
}

static bool compared(const char *op, double a, double b)
{
    if (is(op, "Equal"))
        return a == b;
    if (is(op, "Less"))
        return a < b;
    if (is(op, "LessOrEqual"))
        return a <= b;
    return is(op, "Greater") ? a > b : a >= b;
}

static bool compared_whole(const char *op, map_int a, map_int b)
{
    if (is(op, "Equal"))
        return a == b;
    if (is(op, "Less"))
        return a < b;
    if (is(op, "LessOrEqual"))
        return a <= b;
    return is(op, "Greater") ? a > b : a >= b;
}

static bool logic_of(const char *op, bool a, bool b)
{
    return is(op, "And") ? a && b : is(op, "Or") ? a || b : a != b;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void want_equal(const struct map_node *node, const struct map_tensor *y,
                       const struct map_tensor *want)
{
    for (size_t i = 0; i < y->count; i++) {
        if (!map_is_float(y->dtype)) {
            if (map_get_int(y, i) != map_get_int(want, i))
                fail_msg("%s of %s: element %zu is %lld, not %lld", node->op,
                         cm_dtype_name(y->dtype), i, (long long)map_get_int(y, i),
                         (long long)map_get_int(want, i));
            continue;
        }
        double got = map_get(y, i), exact = map_get(want, i);
        if (isnan(exact) ? !isnan(got) : got != exact || signbit(got) != signbit(exact))
            fail_msg("%s of %s: element %zu is %.17g, not %.17g", node->op, cm_dtype_name(y->dtype),
                     i, got, exact);
    }
}

static void fill_pair(struct map_tensor t[2], const struct map_node *node)
{
    map_fill(&t[0], &seed, map_is_float(t[0].dtype) ? 9 : 0);
    map_fill(&t[1], &seed, map_is_float(t[1].dtype) ? 3 : is(node->op, "BitShift") ? 70 : 0);
    if (!map_is_float(t[0].dtype) && is(node->op, "Equal")) /* something must be equal */
        for (size_t i = 0; i < t[0].count && i < t[1].count; i += 2)
            map_put_int(&t[0], i, map_get_int(&t[1], i));
}

/* One operator, type and pair of shapes. */
static void check_pair(const struct map_node *node, enum cm_dtype dtype, const struct shapes *s)
{
    bool compares = is(node->op, "Equal") || node->op[0] == 'L' || node->op[0] == 'G';
    bool logic = is(node->op, "And") || is(node->op, "Or") || is(node->op, "Xor");
    struct map_tensor t[2] = {map_tensor(dtype, s->a), map_tensor(dtype, s->b)};
    struct map_tensor want = map_tensor(compares ? CM_BOOL : dtype, s->y);
    fill_pair(t, node);
    for (size_t i = 0; i < want.count; i++) {
        size_t at = map_under(s->y, s->a, i), bt = map_under(s->y, s->b, i);
        if (map_is_float(dtype)) {
            double a = map_get(&t[0], at), b = map_get(&t[1], bt);
            if (compares)
                map_put_int(&want, i, compared(node->op, a, b));
            else
                map_put(&want, i, real_of(node->op, a, b));
            continue;
        }
        map_int a = map_get_int(&t[0], at), b = map_get_int(&t[1], bt);
        map_put_int(&want, i,
                    compares ? compared_whole(node->op, a, b)
                    : logic  ? logic_of(node->op, a != 0, b != 0)
                             : whole_of(node, dtype, a, b));
    }
    struct map_tensor y = map_run(node, t, 2, want.dtype, s->y);
    want_equal(node, &y, &want);
    map_free(&t[0]), map_free(&t[1]), map_free(&want), map_free(&y);
}

/* ---- tests ----------------------------------------------------------------------------------- */

enum { REAL = 1, INTEGER = 2, UNSIGNED_ONLY = 4, BOOLEAN = 8 };

static bool takes(int kinds, enum cm_dtype dtype)
{
    if (dtype == CM_BOOL)
        return kinds & BOOLEAN;
    if (map_is_float(dtype))
        return kinds & REAL;
    return kinds & INTEGER || (kinds & UNSIGNED_ONLY && !map_is_signed(dtype));
}

static const struct {
    struct map_node node;
    int kinds;
} pairs[] = {
    {{"Add", 14, {{0}}}, REAL | INTEGER},
    {{"Sub", 7, {{0}}}, REAL | INTEGER},
    {{"Mul", 14, {{0}}}, REAL | INTEGER},
    {{"Div", 14, {{0}}}, REAL | INTEGER},
    {{"Mod", 13, {MAP_I("fmod", 0)}}, INTEGER},
    {{"Mod", 13, {MAP_I("fmod", 1)}}, REAL | INTEGER},
    {{"PRelu", 16, {{0}}}, REAL | INTEGER},
    {{"Min", 13, {{0}}}, REAL | INTEGER},
    {{"Max", 13, {{0}}}, REAL | INTEGER},
    {{"BitwiseAnd", 18, {{0}}}, INTEGER},
    {{"BitwiseOr", 18, {{0}}}, INTEGER},
    {{"BitwiseXor", 18, {{0}}}, INTEGER},
    {{"BitShift", 11, {MAP_S("direction", "LEFT")}}, UNSIGNED_ONLY},
    {{"BitShift", 11, {MAP_S("direction", "RIGHT")}}, UNSIGNED_ONLY},
    {{"Equal", 13, {{0}}}, REAL | INTEGER | BOOLEAN},
    {{"Less", 13, {{0}}}, REAL | INTEGER},
    {{"LessOrEqual", 16, {{0}}}, REAL | INTEGER},
    {{"Greater", 13, {{0}}}, REAL | INTEGER},
    {{"GreaterOrEqual", 16, {{0}}}, REAL | INTEGER},
    {{"And", 7, {{0}}}, BOOLEAN},
    {{"Or", 7, {{0}}}, BOOLEAN},
    {{"Xor", 7, {{0}}}, BOOLEAN},
};

static void two_operands(void **state)
{
    (void)state;
    for (size_t n = 0; n < CM_COUNT_OF(pairs); n++)
        for (int type = 0; type < MAP_TYPES; type++) {
            struct shapes s = shapes_of(0);
            if (!takes(pairs[n].kinds, map_types[type])) {
                struct map_tensor t[2] = {map_tensor(map_types[type], s.a),
                                          map_tensor(map_types[type], s.b)};
                map_refuse(&pairs[n].node, t, 2, CM_INVALID, cm_dtype_name(map_types[type]));
                map_free(&t[0]), map_free(&t[1]);
                continue;
            }
            for (int i = 0; i < SHAPES; i++) {
                s = shapes_of(i);
                /* A slope is never larger than what it applies to. */
                if (!is(pairs[n].node.op, "PRelu") || cm_shape_equal(&s.a, &s.y))
                    check_pair(&pairs[n].node, map_types[type], &s);
            }
        }
}

/* Below opset 7: the second operand lies where the attribute says, or at the end. */
static void old_broadcasting(void **state)
{
    const struct {
        struct map_node node;
        struct cm_shape b, as; /* as: what it is under the later rule */
    } cases[] = {
        {{"Add", 6, {MAP_I("broadcast", 1), MAP_I("axis", 1)}},
         kit_shape(2, 3, 4),
         kit_shape(3, 3, 4, 1)},
        {{"Sub", 6, {MAP_I("broadcast", 1), MAP_I("axis", 0)}},
         kit_shape(1, 2),
         kit_shape(4, 2, 1, 1, 1)},
        {{"Mul", 6, {MAP_I("broadcast", 1), MAP_I("axis", -2)}},
         kit_shape(1, 4),
         kit_shape(2, 4, 1)},
        {{"Div", 6, {MAP_I("broadcast", 1)}}, kit_shape(2, 4, 5), kit_shape(2, 4, 5)},
        {{"Pow", 6, {MAP_I("broadcast", 1), MAP_I("axis", 2)}}, KIT_SHAPE0(), KIT_SHAPE0()},
        {{"Less", 6, {MAP_I("broadcast", 1), MAP_I("axis", 1)}},
         kit_shape(2, 3, 1),
         kit_shape(3, 3, 1, 1)},
        {{"Greater", 6, {{0}}}, kit_shape(4, 2, 3, 4, 5), kit_shape(4, 2, 3, 4, 5)},
        {{"PRelu", 6, {{0}}}, kit_shape(1, 3), kit_shape(3, 3, 1, 1)},
        {{"PRelu", 6, {{0}}}, kit_shape(1, 1), kit_shape(1, 1)},
        {{"PRelu", 6, {{0}}}, kit_shape(3, 3, 1, 1), kit_shape(3, 3, 1, 1)},
    };
    struct map_tensor t[2] = {map_tensor(CM_FP32, kit_shape(4, 2, 3, 4, 5))};
    (void)state;
    map_fill(&t[0], &seed, 3);
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        struct map_node now = {cases[i].node.op, 9, {{0}}};
        bool compares = is(now.op, "Less") || is(now.op, "Greater");
        t[1] = map_tensor(CM_FP32, cases[i].b);
        map_fill(&t[1], &seed, 3);
        struct map_tensor y =
            map_run(&cases[i].node, t, 2, compares ? CM_BOOL : CM_FP32, t[0].shape);
        t[1].shape = cases[i].as;
        struct map_tensor want = map_run(&now, t, 2, y.dtype, t[0].shape);
        assert_memory_equal(y.data, want.data, y.count * cm_dtype_size(y.dtype));
        map_free(&t[1]), map_free(&y), map_free(&want);
    }
    t[1] = map_tensor(CM_FP32, kit_shape(2, 4, 5));
    map_refuse(&(struct map_node){"Add", 6, {{0}}}, t, 2, CM_INVALID, "do not fit");
    map_refuse(&(struct map_node){"Add", 6, {MAP_I("broadcast", 1), MAP_I("axis", 3)}}, t, 2,
               CM_INVALID, "axis 3 for operands of 4 and 2");
    map_refuse(&(struct map_node){"Add", 6, {MAP_I("broadcast", 1), MAP_I("axis", -5)}}, t, 2,
               CM_INVALID, "axis -5");
    map_refuse(&(struct map_node){"Add", 6, {MAP_I("broadcast", 1), MAP_I("axis", 1)}}, t, 2,
               CM_INVALID, "do not fit");
    struct map_tensor swapped[2] = {t[1], t[0]};
    map_refuse(&(struct map_node){"Add", 6, {MAP_I("broadcast", 1)}}, swapped, 2, CM_INVALID,
               "do not fit");
    map_refuse(&(struct map_node){"Add", 7, {MAP_I("axis", 1)}}, t, 2, CM_UNSUPPORTED, "axis");
    map_free(&t[0]), map_free(&t[1]);
}

/* ---- Pow ------------------------------------------------------------------------------------- */

static map_int whole_power(map_int x, map_int n)
{
    uint64_t r = 1;
    if (n < 0)
        return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;
    for (map_int k = 0; k < n; k++)
        r *= (uint64_t)x;
    return (map_int)(int64_t)r;
}

static long double number(const struct map_tensor *t, size_t i)
{
    return map_is_float(t->dtype) ? (long double)map_get(t, i) : (long double)map_get_int(t, i);
}

static void check_power(const struct map_tensor t[2], const struct map_tensor *y, size_t i,
                        size_t at, size_t bt)
{
    long double x = number(&t[0], at), n = number(&t[1], bt);
    if (!map_is_float(y->dtype)) {
        struct map_tensor want = map_tensor(y->dtype, kit_shape(1, 1));
        if (n == floorl(n))
            map_put_int(&want, 0, whole_power((map_int)x, (map_int)n));
        else if (x >= 0) { /* of a negative base it is NaN, which a cast makes 0 */
            map_int most = ((map_int)1 << (8 * cm_dtype_size(y->dtype) - 1)) - 1;
            map_int cut = (map_int)powl(x, n);
            map_put_int(&want, 0, cut > most ? most : cut);
        }
        if (x != 0 || n >= 0)
            assert_true(map_get_int(y, i) == map_get_int(&want, 0));
        map_free(&want);
        return;
    }
    struct map_tensor rounded = map_tensor(y->dtype, kit_shape(1, 1));
    map_put(&rounded, 0, (double)powl(x, n));
    double want = map_get(&rounded, 0), got = map_get(y, i);
    double allowed = 2 * map_epsilon(y->dtype) * fabs(want);
    if (isnan(want) ? !isnan(got) : want != got && !(fabs(got - want) <= allowed))
        fail_msg("%Lg to the %Lg of %s and %s is %g, not %g", x, n, cm_dtype_name(t[0].dtype),
                 cm_dtype_name(t[1].dtype), got, want);
    map_free(&rounded);
}

static void powers(void **state)
{
    static const struct map_node node = {"Pow", 15, {{0}}};
    (void)state;
    for (int base = 0; base < MAP_TYPES; base++)
        for (int exponent = 1; exponent < MAP_TYPES; exponent++) {
            struct map_tensor t[2] = {map_tensor(map_types[base], kit_shape(2, 40, 1)),
                                      map_tensor(map_types[exponent], kit_shape(1, 30))};
            struct cm_shape shape = kit_shape(2, 40, 30);
            if (!map_is_float(t[0].dtype) && !map_is_signed(t[0].dtype)) {
                map_refuse(&node, t, 2, CM_INVALID, "must be a signed type");
                map_free(&t[0]), map_free(&t[1]);
                continue;
            }
            map_fill(&t[0], &seed, 5);
            map_fill(&t[1], &seed, 3);
            if (!map_is_float(t[0].dtype) && map_is_float(t[1].dtype))
                for (size_t i = 0; i < t[1].count; i++) /* nothing that is not a number */
                    map_put(&t[1], i, (double)(i % 13) / 2 - 1);
            struct map_tensor y = map_run(&node, t, 2, t[0].dtype, shape);
            for (size_t i = 0; i < y.count; i++)
                check_power(t, &y, i, i / 30, i % 30);
            map_free(&t[0]), map_free(&t[1]), map_free(&y);
        }
    struct map_tensor t[2] = {map_tensor(CM_FP32, kit_shape(1, 2)),
                              map_tensor(CM_INT32, kit_shape(1, 2))};
    map_refuse(&(struct map_node){"Pow", 7, {{0}}}, t, 2, CM_INVALID, "FP32 and INT32");
    map_free(&t[1]);
    t[1] = map_tensor(CM_BOOL, kit_shape(1, 2));
    map_refuse(&node, t, 2, CM_INVALID, "input 1 has type BOOL");
    map_free(&t[0]), map_free(&t[1]);
}

/* ---- any number of operands, Where ----------------------------------------------------------- */

static void check_variadic(const char *op, enum cm_dtype dtype, int n)
{
    struct map_node node = {op, 13, {{0}}};
    struct cm_shape shape = kit_shape(3, 2, 300, 7);
    struct map_tensor t[5] = {map_tensor(dtype, n == 1 ? shape : kit_shape(2, 300, 1)),
                              map_tensor(dtype, shape), map_tensor(dtype, kit_shape(1, 7)),
                              map_tensor(dtype, KIT_SHAPE0()),
                              map_tensor(dtype, kit_shape(3, 2, 1, 1))};
    struct map_tensor want = map_tensor(dtype, shape);
    for (int k = 0; k < 5; k++)
        map_fill(&t[k], &seed, map_is_float(dtype) ? 9 : 0);
    for (size_t i = 0; i < want.count; i++) {
        size_t at = map_under(shape, t[0].shape, i);
        /* FP32 and FP64 round every sum, the small types only the last. */
        double real = map_is_float(dtype) ? map_get(&t[0], at) : 0;
        map_int whole = map_is_float(dtype) ? 0 : map_get_int(&t[0], at);
        const char *pair = is(op, "Sum") || is(op, "Mean") ? "Add" : op;
        for (int k = 1; k < n; k++) {
            at = map_under(shape, t[k].shape, i);
            if (!map_is_float(dtype)) {
                whole = whole_of(&(struct map_node){pair, 13, {{0}}}, dtype, whole,
                                 map_get_int(&t[k], at));
                continue;
            }
            real = real_of(pair, real, map_get(&t[k], at));
            real = dtype == CM_FP64 ? real : (double)(float)real;
        }
        if (is(op, "Mean") && n > 1)
            real = dtype == CM_FP64 ? real / n : (double)((float)real / (float)n);
        if (map_is_float(dtype))
            map_put(&want, i, real);
        else
            map_put_int(&want, i, whole);
    }
    struct map_tensor y = map_run(&node, t, n, dtype, shape);
    want_equal(&node, &y, &want);
    for (int k = 0; k < 5; k++)
        map_free(&t[k]);
    map_free(&want), map_free(&y);
}

static void variadics(void **state)
{
    static const char *const ops[] = {"Min", "Max", "Sum", "Mean"};
    (void)state;
    for (size_t op = 0; op < CM_COUNT_OF(ops); op++)
        for (int type = 0; type < MAP_TYPES; type++) {
            bool fits = map_types[type] != CM_BOOL &&
                        (map_is_float(map_types[type]) || !is(ops[op], "Mean"));
            struct map_tensor x = map_tensor(map_types[type], kit_shape(1, 2));
            if (!fits)
                map_refuse(&(struct map_node){ops[op], 13, {{0}}}, &x, 1, CM_INVALID,
                           "input 0 has type");
            for (int n = 1; fits && n <= 5; n++)
                check_variadic(ops[op], map_types[type], n);
            map_free(&x);
        }
    struct map_tensor t[2] = {map_tensor(CM_FP32, kit_shape(1, 2)),
                              map_tensor(CM_FP64, kit_shape(1, 2))};
    map_refuse(&(struct map_node){"Max", 13, {{0}}}, t, 2, CM_INVALID, "FP32 and FP64");
    map_free(&t[1]);
    t[1] = map_tensor(CM_FP32, kit_shape(1, 3));
    map_refuse(&(struct map_node){"Sum", 13, {{0}}}, t, 2, CM_INVALID, "[2] and [3] do not fit");
    map_free(&t[0]), map_free(&t[1]);
}

static void wheres(void **state)
{
    (void)state;
    for (int type = 0; type < MAP_TYPES; type++)
        for (int i = 0; i < SHAPES; i++) {
            struct shapes s = shapes_of(i);
            struct map_tensor t[3] = {map_tensor(CM_BOOL, s.b), map_tensor(map_types[type], s.a),
                                      map_tensor(map_types[type], s.y)};
            size_t bytes = cm_dtype_size(map_types[type]);
            for (int k = 0; k < 3; k++)
                map_fill(&t[k], &seed, 3);
            struct map_tensor y =
                map_run(&(struct map_node){"Where", 16, {{0}}}, t, 3, map_types[type], s.y);
            for (size_t e = 0; e < y.count; e++) {
                const char *from = ((uint8_t *)t[0].data)[map_under(s.y, s.b, e)]
                                       ? (char *)t[1].data + map_under(s.y, s.a, e) * bytes
                                       : (char *)t[2].data + e * bytes;
                assert_memory_equal((char *)y.data + e * bytes, from, bytes);
            }
            for (int k = 0; k < 3; k++)
                map_free(&t[k]);
            map_free(&y);
        }
}

static void refusals(void **state)
{
    struct map_tensor t[2] = {map_tensor(CM_UINT8, kit_shape(1, 4)),
                              map_tensor(CM_UINT8, kit_shape(1, 4))};
    struct map_tensor f[2] = {map_tensor(CM_FP32, kit_shape(1, 4)),
                              map_tensor(CM_FP32, kit_shape(2, 2, 4))};
    struct map_tensor mixed[2] = {t[0], f[0]};
    (void)state;
    map_refuse(&(struct map_node){"BitShift", 11, {{0}}}, t, 2, CM_INVALID, "LEFT or RIGHT");
    map_refuse(&(struct map_node){"BitShift", 11, {MAP_S("direction", "UP")}}, t, 2, CM_INVALID,
               "LEFT or RIGHT");
    map_refuse(&(struct map_node){"Mod", 13, {{0}}}, f, 2, CM_INVALID, "fmod must be 1");
    map_refuse(&(struct map_node){"PRelu", 9, {{0}}}, f, 2, CM_INVALID, "do not fit");
    map_refuse(&(struct map_node){"Add", 13, {{0}}}, mixed, 2, CM_INVALID, "UINT8 and FP32");
    map_refuse(&(struct map_node){"Equal", 13, {{0}}}, mixed, 2, CM_INVALID, "UINT8 and FP32");
    map_refuse(&(struct map_node){"Where", 16, {{0}}}, (struct map_tensor[]){t[0], f[0], f[0]}, 3,
               CM_INVALID, "UINT8, FP32 and FP32");
    map_free(&t[0]), map_free(&t[1]), map_free(&f[0]), map_free(&f[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_operands), cmocka_unit_test(old_broadcasting),
        cmocka_unit_test(powers),       cmocka_unit_test(variadics),
        cmocka_unit_test(wheres),       cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
