/* Operands that decide shapes, counts and places, read from a request: the most extreme values they
 * can hold. Each run ends with a result within the engine's limits or with a sentence, soon, and
 * never with gigabytes. The build with sanitizers sees what is read or computed out of bounds.
 *
 * Every operator runs in a process of its own with limited processor time and address space. */
#include "gpu-worker/graph/graph.h"
#include "tests/engine/kit.h"

#include <float.h>
#include <math.h>
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
#define SECONDS 120
/* Terabytes of addresses are the sanitizer's own: it watches the memory in use instead. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:hard_rss_limit_mb=3500";
}
#else
#define SECONDS 30
#define BYTES   ((rlim_t)4 << 30)
#endif

enum { MAX_OPERANDS = 6, MIXED_ROUNDS = 60 };

/* ---- what runs ------------------------------------------------------------------------------- */

struct operand {
    enum cm_dtype dtype;
    int rank, dims[4];
    bool hostile;
};

#define DATA(...)                   \
    {                               \
        CM_FP32, __VA_ARGS__, false \
    }
#define INT64(...)                  \
    {                               \
        CM_INT64, __VA_ARGS__, true \
    }
#define INT32(...)                  \
    {                               \
        CM_INT32, __VA_ARGS__, true \
    }
#define FP32(...)                  \
    {                              \
        CM_FP32, __VA_ARGS__, true \
    }
#define BOOL(...)                  \
    {                              \
        CM_BOOL, __VA_ARGS__, true \
    }
#define LEFT_OUT                     \
    {                                \
        CM_DTYPE_NONE, 0, {0}, false \
    }
#define V(n) \
    1,       \
    {        \
        n    \
    }
#define M(a, b) \
    2,          \
    {           \
        a, b    \
    }
#define T(a, b, c) \
    3,             \
    {              \
        a, b, c    \
    }
#define Q(a, b, c, d) \
    4,                \
    {                 \
        a, b, c, d    \
    }
#define S \
    0,    \
    {     \
        0 \
    }

struct hostile {
    const char *op;
    int opset;
    enum cm_dtype out;
    struct operand in[MAX_OPERANDS];
    unsigned n_in;
    const char *attr; /* one attribute of integers; NULL: none */
    int n_values, values[4];
};

static const struct hostile cases[] = {
    {"NonZero", 13, CM_INT64, {FP32(M(3, 5))}, 1, NULL, 0, {0}},
    {"Compress", 11, CM_FP32, {DATA(M(3, 5)), BOOL(V(5))}, 2, "axis", -1, {1}},
    {"Compress", 11, CM_FP32, {DATA(M(3, 5)), BOOL(V(40))}, 2, NULL, 0, {0}},
    {"NonMaxSuppression",
     11,
     CM_INT64,
     {FP32(T(1, 6, 4)), FP32(T(1, 2, 6)), INT64(S), FP32(S), FP32(S)},
     5,
     "center_point_box",
     -1,
     {1}},
    {"NonMaxSuppression",
     11,
     CM_INT64,
     {FP32(T(1, 6, 4)), FP32(T(1, 2, 6)), INT64(V(1)), FP32(V(1)), FP32(V(1))},
     5,
     NULL,
     0,
     {0}},
    {"Unique", 11, CM_FP32, {FP32(M(3, 5))}, 1, NULL, 0, {0}},
    {"Unique", 11, CM_FP32, {FP32(M(3, 5))}, 1, "axis", -1, {1}},
    {"Slice",
     13,
     CM_FP32,
     {DATA(M(4, 6)), INT64(V(2)), INT64(V(2)), INT64(V(2)), INT64(V(2))},
     5,
     NULL,
     0,
     {0}},
    {"Slice",
     13,
     CM_FP32,
     {DATA(M(4, 6)), INT64(V(1)), INT64(V(1)), LEFT_OUT, INT64(V(1))},
     5,
     NULL,
     0,
     {0}},
    {"Reshape", 14, CM_FP32, {DATA(M(4, 6)), INT64(V(3))}, 2, "allowzero", -1, {1}},
    {"Reshape", 13, CM_FP32, {DATA(M(0, 6)), INT64(V(8))}, 2, NULL, 0, {0}},
    {"Tile", 13, CM_FP32, {DATA(M(4, 6)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"Tile", 13, CM_FP32, {DATA(M(0, 6)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"Expand", 13, CM_FP32, {DATA(M(1, 1)), INT64(V(4))}, 2, NULL, 0, {0}},
    {"Expand", 13, CM_FP32, {DATA(M(0, 1)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"Pad", 18, CM_FP32, {DATA(M(4, 6)), INT64(V(2)), FP32(S), INT64(V(1))}, 4, NULL, 0, {0}},
    {"Pad", 13, CM_FP32, {DATA(M(4, 6)), INT64(V(4))}, 2, NULL, 0, {0}},
    {"CenterCropPad", 18, CM_FP32, {DATA(M(4, 6)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"Range", 11, CM_INT64, {INT64(S), INT64(S), INT64(S)}, 3, NULL, 0, {0}},
    {"Range", 11, CM_INT32, {INT32(S), INT32(S), INT32(S)}, 3, NULL, 0, {0}},
    {"Range", 11, CM_FP32, {FP32(S), FP32(S), FP32(S)}, 3, NULL, 0, {0}},
    {"ConstantOfShape", 9, CM_FP32, {INT64(V(3))}, 1, NULL, 0, {0}},
    {"Resize", 13, CM_FP32, {DATA(M(4, 6)), LEFT_OUT, LEFT_OUT, INT64(V(2))}, 4, NULL, 0, {0}},
    {"Resize", 13, CM_FP32, {DATA(M(4, 6)), LEFT_OUT, FP32(V(2))}, 3, NULL, 0, {0}},
    {"Upsample", 9, CM_FP32, {DATA(M(4, 6)), FP32(V(2))}, 2, NULL, 0, {0}},
    {"TopK", 11, CM_FP32, {FP32(M(4, 6)), INT64(V(1))}, 2, NULL, 0, {0}},
    {"OneHot", 11, CM_FP32, {INT64(V(5)), INT64(S), DATA(V(2))}, 3, NULL, 0, {0}},
    {"OneHot", 11, CM_FP32, {FP32(V(5)), FP32(S), DATA(V(2))}, 3, "axis", -1, {0}},
    {"Gather", 13, CM_FP32, {DATA(M(4, 6)), INT64(V(3))}, 2, "axis", -1, {1}},
    {"Gather", 13, CM_FP32, {DATA(M(0, 6)), INT64(V(3))}, 2, NULL, 0, {0}},
    {"GatherElements", 13, CM_FP32, {DATA(M(4, 6)), INT64(M(4, 6))}, 2, NULL, 0, {0}},
    {"GatherND", 13, CM_FP32, {DATA(M(4, 6)), INT64(M(3, 2))}, 2, NULL, 0, {0}},
    {"ScatterElements",
     16,
     CM_FP32,
     {DATA(M(4, 6)), INT64(M(2, 3)), DATA(M(2, 3))},
     3,
     "axis",
     -1,
     {1}},
    {"ScatterND", 16, CM_FP32, {DATA(M(4, 6)), INT64(M(3, 2)), DATA(V(3))}, 3, NULL, 0, {0}},
    {"ReverseSequence", 10, CM_FP32, {DATA(M(4, 3)), INT64(V(3))}, 2, NULL, 0, {0}},
    {"LSTM",
     14,
     CM_FP32,
     {DATA(T(4, 2, 3)), DATA(T(1, 20, 3)), DATA(T(1, 20, 5)), LEFT_OUT, INT32(V(2))},
     5,
     NULL,
     0,
     {0}},
    {"GRU",
     14,
     CM_FP32,
     {DATA(T(4, 2, 3)), DATA(T(1, 15, 3)), DATA(T(1, 15, 5)), LEFT_OUT, INT32(V(2))},
     5,
     NULL,
     0,
     {0}},
    {"Split", 13, CM_FP32, {DATA(M(4, 6)), INT64(V(1))}, 2, NULL, 0, {0}},
    {"Squeeze", 13, CM_FP32, {DATA(T(1, 4, 1)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"Unsqueeze", 13, CM_FP32, {DATA(T(1, 4, 1)), INT64(V(3))}, 2, NULL, 0, {0}},
    {"ReduceSum", 13, CM_FP32, {DATA(M(4, 6)), INT64(V(2))}, 2, NULL, 0, {0}},
    {"CumSum", 14, CM_FP32, {DATA(M(4, 6)), INT64(S)}, 2, NULL, 0, {0}},
    {"Trilu", 14, CM_FP32, {DATA(M(4, 6)), INT64(S)}, 2, NULL, 0, {0}},
    {"AffineGrid", 20, CM_FP32, {FP32(T(2, 2, 3)), INT64(V(4))}, 2, NULL, 0, {0}},
    {"Col2Im", 18, CM_FP32, {DATA(T(1, 4, 9)), INT64(V(2)), INT64(V(2))}, 3, NULL, 0, {0}},
    {"MaxUnpool",
     11,
     CM_FP32,
     {DATA(Q(1, 1, 2, 2)), INT64(Q(1, 1, 2, 2)), INT64(V(4))},
     3,
     "kernel_shape",
     2,
     {2, 2}},
    {"GridSample", 16, CM_FP32, {DATA(Q(1, 1, 4, 4)), FP32(Q(1, 3, 3, 2))}, 2, NULL, 0, {0}},
    {"RoiAlign", 16, CM_FP32, {DATA(Q(2, 1, 4, 4)), FP32(M(3, 4)), INT64(V(3))}, 3, NULL, 0, {0}},
    {"MaxRoiPool", 13, CM_FP32, {DATA(Q(2, 1, 4, 4)), FP32(M(3, 5))}, 2, "pooled_shape", 2, {2, 2}},
    {"HannWindow", 17, CM_FP32, {INT64(S)}, 1, NULL, 0, {0}},
    {"MelWeightMatrix",
     17,
     CM_FP32,
     {INT64(S), INT64(S), INT64(S), FP32(S), FP32(S)},
     5,
     NULL,
     0,
     {0}},
    {"DFT", 20, CM_FP32, {DATA(T(1, 8, 1)), INT64(S), INT64(S)}, 3, NULL, 0, {0}},
    {"STFT", 17, CM_FP32, {DATA(T(1, 16, 1)), INT64(S), LEFT_OUT, INT64(S)}, 4, NULL, 0, {0}},
    {"NegativeLogLikelihoodLoss", 13, CM_FP32, {DATA(M(3, 4)), INT64(V(3))}, 2, NULL, 0, {0}},
    {"Dropout", 13, CM_FP32, {DATA(M(3, 4)), FP32(S), BOOL(S)}, 3, NULL, 0, {0}},
    {"Bernoulli", 15, CM_FP32, {FP32(M(3, 4))}, 1, NULL, 0, {0}},
    {"Multinomial", 13, CM_INT32, {FP32(M(3, 4))}, 1, "sample_size", -1, {5}},
    {"QuantizeLinear", 13, CM_UINT8, {FP32(M(3, 4)), FP32(S)}, 2, NULL, 0, {0}},
    {"Div", 13, CM_INT64, {INT64(V(7)), INT64(V(7))}, 2, NULL, 0, {0}},
    {"Mod", 13, CM_INT64, {INT64(V(7)), INT64(V(7))}, 2, NULL, 0, {0}},
    {"Mod", 13, CM_INT32, {INT32(V(7)), INT32(V(7))}, 2, NULL, 0, {0}},
    {"Pow", 13, CM_INT64, {INT64(V(7)), INT64(V(7))}, 2, NULL, 0, {0}},
    {"Clip", 13, CM_FP32, {FP32(V(7)), FP32(S), FP32(S)}, 3, NULL, 0, {0}},
    {"ArgMax", 13, CM_INT64, {FP32(V(7))}, 1, NULL, 0, {0}},
};

static struct cm_shape shape_of(const struct operand *o)
{
    struct cm_shape shape = {.rank = (uint8_t)o->rank};
    for (int i = 0; i < o->rank; i++)
        shape.dims[i] = o->dims[i];
    return shape;
}

static struct kit_model *model_of(const struct hostile *h)
{
    struct kit_model *m = kit_model(h->opset);
    char list[64] = "", name[8];
    for (unsigned k = 0; k < h->n_in; k++) {
        bool given = h->in[k].dtype != CM_DTYPE_NONE;
        snprintf(name, sizeof name, "i%u", k);
        if (given)
            kit_input(m, name, h->in[k].dtype, shape_of(&h->in[k]));
        strcat(list, k ? "," : "");
        strcat(list, given ? name : "");
    }
    kit_node(m, h->op, list, "y");
    if (h->attr && h->n_values < 0)
        kit_attr_i(m, h->attr, h->values[0]);
    else if (h->attr)
        kit_attr_ints(m, h->attr, h->n_values, h->values[0], h->values[1]);
    kit_output(m, "y", h->out, kit_shape(1, -1));
    return m;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const int64_t integers[] = {0,
                                   1,
                                   -1,
                                   2,
                                   3,
                                   7,
                                   -2,
                                   INT64_MIN,
                                   INT64_MAX,
                                   INT64_MIN + 1,
                                   INT64_MAX - 1,
                                   INT32_MIN,
                                   INT32_MAX,
                                   65536,
                                   -65536,
                                   1 << 20,
                                   1 << 30,
                                   (1 << 30) + 1,
                                   (int64_t)1 << 31,
                                   (int64_t)1 << 32,
                                   (int64_t)1 << 62,
                                   -((int64_t)1 << 62),
                                   1000003,
                                   46341,
                                   4294967295};
static const float floats[] = {0,        -0.0f,  1,          -1,        0.5f,          3,
                               NAN,      -NAN,   INFINITY,   -INFINITY, FLT_MAX,       -FLT_MAX,
                               FLT_MIN,  1e-45f, 1e10f,      -1e10f,    2147483648.0f, 9.3e18f,
                               -9.3e18f, 1e-30f, 16777216.0f};
enum { N_INTEGERS = sizeof integers / sizeof *integers, N_FLOATS = sizeof floats / sizeof *floats };

/* Every element the round's value, or in later rounds each its own: any, or one that often fits. */
static void fill(void *data, const struct operand *o, size_t count, unsigned round,
                 uint64_t *random)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t pick = round < N_INTEGERS ? round : kit_next(random) >> 8;
        bool small = round >= N_INTEGERS && (pick & 0x300);
        int64_t n = !o->hostile ? (int64_t)(i % 3)
                    : small     ? (int64_t)(pick % 8) - 2
                                : integers[pick % N_INTEGERS];
        float f = !o->hostile ? (float)(i % 5) - 1
                  : small     ? (float)(pick % 8) / 2 - 1
                              : floats[pick % N_FLOATS];
        int32_t narrow = (int32_t)n;
        if (o->dtype == CM_FP32)
            memcpy((char *)data + 4 * i, &f, 4);
        else if (o->dtype == CM_INT64)
            memcpy((char *)data + 8 * i, &n, 8);
        else if (o->dtype == CM_INT32)
            memcpy((char *)data + 4 * i, &narrow, 4);
        else
            ((uint8_t *)data)[i] = (uint8_t)n; /* not only 0 and 1 */
    }
}

/* ---- one run --------------------------------------------------------------------------------- */

static void need(bool fact, const struct hostile *h, unsigned round, const char *what)
{
    if (fact)
        return;
    printf("%s of opset %d, round %u: %s\n", h->op, h->opset, round, what);
    fflush(stdout);
    _exit(1);
}

/* An error says which node it was, of a subgraph perhaps. Limits come before memory is out. */
static void check_end(const struct hostile *h, unsigned round, enum cm_err code,
                      const struct cm_error *err)
{
    need(code == CM_OK || code == CM_INVALID || code == CM_LIMIT || code == CM_UNSUPPORTED, h,
         round, err->text);
    need(code == CM_OK || strstr(err->text, "node ") || strstr(err->text, h->op), h, round,
         err->text);
}

static bool run_round(struct kit_loaded *l, const struct hostile *h, unsigned round,
                      uint64_t *random)
{
    const struct wk_signature *s = wk_model_signature(l->model);
    struct cm_shape shapes[MAX_OPERANDS];
    void *in[MAX_OPERANDS], *out = NULL;
    struct cm_error err = {0};
    struct wk_plan *plan = NULL;
    size_t bytes;
    unsigned n = 0;
    for (unsigned k = 0; k < h->n_in; k++) {
        if (h->in[k].dtype == CM_DTYPE_NONE)
            continue;
        shapes[n] = shape_of(&h->in[k]);
        need(cm_shape_bytes(&shapes[n], h->in[k].dtype, &bytes) == CM_OK, h, round, "operand");
        in[n] = kit_guarded(bytes);
        fill(in[n], &h->in[k], bytes / cm_dtype_size(h->in[k].dtype), round, random);
        n++;
    }
    enum cm_err code = wk_plan_create(l->model, shapes, &err, &plan);
    need(code == CM_OK, h, round, err.text);
    void *scratch = kit_guarded(wk_plan_scratch_bytes(plan));
    if (wk_plan_output_is_settled(plan, 0)) {
        need(cm_shape_bytes(wk_plan_output_shape(plan, 0), s->outputs[0].dtype, &bytes) == CM_OK, h,
             round, "output");
        out = kit_guarded(bytes);
    }
    code = wk_plan_run(plan, (const void *const *)in, &out, scratch, &err);
    check_end(h, round, code, &err);
    if (code == CM_OK)
        need(cm_shape_bytes(wk_plan_output_shape(plan, 0), wk_plan_output_dtype(plan, 0), &bytes) ==
                     CM_OK &&
                 bytes <= WK_MAX_TENSOR_BYTES,
             h, round, "an output beyond the limits");
    for (unsigned k = 0; k < n; k++) {
        kit_check_guards(in[k]);
        kit_guarded_free(in[k]);
    }
    kit_check_guards(scratch);
    kit_guarded_free(scratch);
    if (out) {
        kit_check_guards(out);
        kit_guarded_free(out);
    }
    wk_plan_destroy(plan);
    return code == CM_OK;
}

/* ---- the limited process --------------------------------------------------------------------- */

/* The child's part: all rounds of one operator. */
static void run_limited(const struct hostile *h, struct kit_model *m, unsigned rounds)
{
    struct rlimit seconds = {SECONDS, SECONDS};
    struct rusage usage;
    struct kit_loaded l;
    uint64_t random = 1;
    unsigned fine = 0;
    setrlimit(RLIMIT_CPU, &seconds);
#ifdef BYTES
    struct rlimit space = {BYTES, BYTES};
    setrlimit(RLIMIT_AS, &space);
#endif
    kit_load_model(&l, m, 1, NULL);
    for (unsigned round = 0; round < rounds; round++)
        fine += run_round(&l, h, round, &random);
    kit_unload(&l);
    kit_free(m);
    getrusage(RUSAGE_SELF, &usage);
    printf("%-26s %u of %u runs gave a result, %ld.%02ld s, %ld MB\n", h->op, fine, rounds,
           (long)usage.ru_utime.tv_sec, (long)usage.ru_utime.tv_usec / 10000,
           usage.ru_maxrss / 1024);
    fflush(stdout);
}

static bool survives(const struct hostile *h, struct kit_model *m, unsigned rounds)
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run_limited(h, m, rounds);
        exit(0); /* leaks are looked for */
    }
    kit_free(m);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status != 0)
        printf("%s of opset %d: status %x\n", h->op, h->opset, (unsigned)status);
    return status == 0;
}

static void operands(void **state)
{
    unsigned failed = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += !survives(&cases[i], model_of(&cases[i]), N_INTEGERS + MIXED_ROUNDS);
    assert_int_equal(failed, 0);
}

/* A Loop whose count is the request's: one state that stays small, one that doubles. */
static struct kit_model *loop(const char *op, const char *inputs)
{
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    kit_input(body, "trip", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, kit_shape(1, -1));
    kit_node(body, "Identity", "going", "on");
    kit_node(body, op, inputs, "b");
    if (strcmp(op, "Concat") == 0)
        kit_attr_i(body, "axis", 0);
    kit_output(body, "on", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "b", CM_FP32, kit_shape(1, -1));
    kit_input(m, "i0", CM_INT64, KIT_SHAPE0());
    kit_input(m, "i1", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "i2", CM_FP32, kit_shape(1, 4));
    kit_node(m, "Loop", "i0,i1,i2", "y");
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    return m;
}

static void trip_counts(void **state)
{
    static const struct hostile h = {"Loop", 13,   CM_FP32, {INT64(S), BOOL(S), DATA(V(4))},
                                     3,      NULL, 0,       {0}};
    (void)state;
    /* Up to INT64_MAX: a million trips are allowed, so that all integers would take too long. */
    assert_true(survives(&h, loop("Add", "a,a"), 9));
    assert_true(survives(&h, loop("Concat", "a,a"), 9));
}

/* A Loop with many scan outputs of a megabyte a trip: each would stay below the limit of a tensor
 * for a thousand trips. */
static void scan_outputs(void **state)
{
    static const struct hostile h = {"Loop", 13,   CM_FP32, {INT64(S), BOOL(S), DATA(V(262144))},
                                     3,      NULL, 0,       {0}};
    (void)state;
#ifdef BYTES /* a sanitizer keeps what is freed and grown */
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    kit_input(body, "trip", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_input(body, "a", CM_FP32, kit_shape(1, -1));
    kit_node(body, "Neg", "a", "b");
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    for (int i = 0; i < 9; i++)
        kit_output(body, "b", CM_FP32, kit_shape(1, -1));
    kit_input(m, "i0", CM_INT64, KIT_SHAPE0());
    kit_input(m, "i1", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "i2", CM_FP32, kit_shape(1, 262144));
    kit_node(m, "Loop", "i0,i1,i2", "y,s1,s2,s3,s4,s5,s6,s7,s8");
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    assert_true(survives(&h, m, 9));
#else
    (void)h;
#endif
}

/* States that double, together: each would stay below the limit of a tensor. */
static void many_states(void **state)
{
    enum { STATES = 6 };
    static const struct hostile h = {"Loop", 13,   CM_FP32, {INT64(S), BOOL(S), DATA(V(4))},
                                     3,      NULL, 0,       {0}};
    (void)state;
#ifdef BYTES
    struct kit_model *m = kit_model(13), *body = kit_model(13);
    char in[64] = "i0,i1", out[64] = "", name[8];
    kit_input(body, "trip", CM_INT64, KIT_SHAPE0());
    kit_input(body, "going", CM_BOOL, KIT_SHAPE0());
    kit_output(body, "going", CM_BOOL, KIT_SHAPE0());
    for (int i = 0; i < STATES; i++) {
        snprintf(name, sizeof name, "a%d", i);
        kit_input(body, name, CM_FP32, kit_shape(1, -1));
        kit_output(body, "b", CM_FP32, kit_shape(1, -1));
        strcat(in, ",i2");
        snprintf(out + strlen(out), sizeof out - strlen(out), i ? ",y%d" : "y", i);
    }
    kit_node(body, "Concat", "a0,a0", "b");
    kit_attr_i(body, "axis", 0);
    kit_input(m, "i0", CM_INT64, KIT_SHAPE0());
    kit_input(m, "i1", CM_BOOL, KIT_SHAPE0());
    kit_input(m, "i2", CM_FP32, kit_shape(1, 4));
    kit_node(m, "Loop", in, out);
    kit_attr_graph(m, "body", body);
    kit_output(m, "y", CM_FP32, kit_shape(1, -1));
    assert_true(survives(&h, m, 9));
#else
    (void)h;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands),
        cmocka_unit_test(trip_counts),
        cmocka_unit_test(scan_outputs),
        cmocka_unit_test(many_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
