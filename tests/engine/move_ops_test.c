/* Operators that move data, for every element type and on one and two threads, against maps of
 * where each output element comes from that are written here from the operators' definitions; and
 * what they refuse. */
#include "tests/engine/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 77;

static int pick(int least, int most)
{
    return kit_pick(&random_state, least, most);
}

static const enum cm_dtype all_dtypes[] = {
#define X(name, number, bytes, text, onnx) CM_##name,
    CM_DTYPE_MAP(X)
#undef X
};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0] };

/* Random elements: any bytes, but booleans are 0 or 1. */
static void *random_tensor(enum cm_dtype dtype, struct cm_shape shape)
{
    size_t bytes = kit_count(shape) * cm_dtype_size(dtype);
    unsigned char *data = malloc(bytes + 8);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(kit_next(&random_state) & (dtype == CM_BOOL ? 1 : 255));
    return data;
}

/* The coordinates of element i, and back. */
static void unravel(struct cm_shape shape, size_t i, int64_t at[CM_MAX_RANK])
{
    for (unsigned d = shape.rank; d-- > 0;) {
        at[d] = (int64_t)(i % (size_t)shape.dims[d]);
        i /= (size_t)shape.dims[d];
    }
}

static size_t ravel(struct cm_shape shape, const int64_t *at)
{
    size_t i = 0;
    for (unsigned d = 0; d < shape.rank; d++)
        i = i * (size_t)shape.dims[d] + (size_t)at[d];
    return i;
}

/* One run on each number of threads; inputs as the model declares them. Output 0 must be want.
 * Frees m and want. */
static void check(struct kit_model *m, const struct cm_shape *shapes, const void *const *inputs,
                  enum cm_dtype dtype, struct cm_shape shape, void *want)
{
    for (unsigned threads = 1; threads <= 2; threads++) {
        struct kit_loaded l;
        struct cm_shape got_shape[4];
        void *got[4];
        kit_load_model(&l, m, threads, NULL);
        unsigned n_outputs = wk_model_signature(l.model)->n_outputs;
        kit_run(&l, shapes, inputs, got, got_shape);
        kit_unload(&l);
        if (!cm_shape_equal(&got_shape[0], &shape)) {
            char a[96], b[96];
            fail_msg("shape %s, wanted %s", cm_shape_format(&got_shape[0], a, sizeof a),
                     cm_shape_format(&shape, b, sizeof b));
        }
        assert_memory_equal(got[0], want, kit_count(shape) * cm_dtype_size(dtype));
        for (unsigned i = 0; i < n_outputs; i++)
            free(got[i]);
    }
    free(want);
    kit_free(m);
}

/* Where element i of the output comes from in x; -1: zero. */
typedef int64_t map_fn(const void *context, struct cm_shape x, const int64_t *at);

/* A node y = f(x, ...) that moves elements of x: its other operands are constants already. */
static void check_moved(struct kit_model *m, enum cm_dtype dtype, struct cm_shape x,
                        struct cm_shape y, map_fn *map, const void *context)
{
    size_t size = cm_dtype_size(dtype);
    char *data = random_tensor(dtype, x), *want = calloc(kit_count(y) + 1, size);
    int64_t at[CM_MAX_RANK];
    const void *inputs[] = {data};
    assert_non_null(want);
    for (size_t i = 0; i < kit_count(y); i++) {
        unravel(y, i, at);
        int64_t from = map(context, x, at);
        if (from >= 0)
            memcpy(want + i * size, data + (size_t)from * size, size);
    }
    kit_input(m, "x", dtype, x);
    kit_output(m, "y", dtype, y);
    check(m, &x, inputs, dtype, y, want);
    free(data);
}

/* ---- maps ------------------------------------------------------------------------------------ */

static int64_t map_tile(const void *context, struct cm_shape x, const int64_t *at)
{
    int64_t from[CM_MAX_RANK];
    (void)context;
    for (unsigned d = 0; d < x.rank; d++)
        from[d] = at[d] % x.dims[d];
    return (int64_t)ravel(x, from);
}

struct pads {
    const char *mode;
    int64_t begin[3], end[3];
};

static int64_t map_pad(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct pads *p = context;
    int64_t from[CM_MAX_RANK];
    for (unsigned d = 0; d < x.rank; d++) {
        int64_t low = p->begin[d] < 0 ? -p->begin[d] : 0;
        int64_t high = x.dims[d] - (p->end[d] < 0 ? -p->end[d] : 0) - 1;
        from[d] = at[d] - p->begin[d];
        for (int k = 0; k < 100 && (from[d] < low || from[d] > high); k++) {
            if (strcmp(p->mode, "constant") == 0)
                return -1;
            if (strcmp(p->mode, "edge") == 0 || low == high)
                from[d] = from[d] < low ? low : high;
            else if (strcmp(p->mode, "wrap") == 0)
                from[d] += from[d] < low ? high - low + 1 : low - high - 1;
            else
                from[d] = from[d] < low ? 2 * low - from[d] : 2 * high - from[d];
        }
    }
    return (int64_t)ravel(x, from);
}

static int64_t map_center(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct cm_shape *y = context;
    int64_t from[CM_MAX_RANK];
    for (unsigned d = 0; d < x.rank; d++) {
        int64_t more = x.dims[d] - y->dims[d];
        from[d] = more >= 0 ? at[d] + more / 2 : at[d] - (-more) / 2;
        if (from[d] < 0 || from[d] >= x.dims[d])
            return -1;
    }
    return (int64_t)ravel(x, from);
}

struct blocks {
    int64_t size;
    bool columns_first, to_space;
};

/* Channel of the deep tensor for a place in the wide one. */
static int64_t deep_channel(const struct blocks *b, int64_t channels, int64_t c, int64_t i,
                            int64_t j)
{
    return b->columns_first ? (c * b->size + i) * b->size + j : (i * b->size + j) * channels + c;
}

static int64_t map_blocks(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct blocks *b = context;
    int64_t s = b->size, from[4] = {at[0], 0, 0, 0};
    if (b->to_space) {
        from[1] = deep_channel(b, x.dims[1] / (s * s), at[1], at[2] % s, at[3] % s);
        from[2] = at[2] / s;
        from[3] = at[3] / s;
    } else {
        int64_t block = at[1] / x.dims[1];
        from[1] = at[1] % x.dims[1];
        from[2] = at[2] * s + block / s;
        from[3] = at[3] * s + block % s;
    }
    return (int64_t)ravel(x, from);
}

struct triangle {
    bool upper;
    int64_t k;
};

static int64_t map_trilu(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct triangle *t = context;
    int64_t row = at[x.rank - 2] + t->k, column = at[x.rank - 1];
    return (t->upper ? column >= row : column <= row) ? (int64_t)ravel(x, at) : -1;
}

struct indices {
    unsigned axis;
    struct cm_shape shape;
    const int64_t *data;
};

static int64_t positive(int64_t index, int64_t n)
{
    return index < 0 ? index + n : index;
}

static int64_t map_gather(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct indices *g = context;
    int64_t from[CM_MAX_RANK];
    unsigned n = g->shape.rank;
    for (unsigned d = 0; d < x.rank; d++)
        from[d] = d < g->axis ? at[d] : d > g->axis ? at[d + n - 1] : 0;
    from[g->axis] = positive(g->data[ravel(g->shape, at + g->axis)], x.dims[g->axis]);
    return (int64_t)ravel(x, from);
}

static int64_t map_elements(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct indices *g = context;
    int64_t from[CM_MAX_RANK];
    memcpy(from, at, sizeof from);
    from[g->axis] = positive(g->data[ravel(g->shape, at)], x.dims[g->axis]);
    return (int64_t)ravel(x, from);
}

/* axis: the number of batch dimensions. */
static int64_t map_tuples(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct indices *g = context;
    int64_t from[CM_MAX_RANK], index[CM_MAX_RANK];
    unsigned batch = g->axis, n = (unsigned)g->shape.dims[g->shape.rank - 1];
    memcpy(index, at, sizeof index);
    for (unsigned d = 0; d < batch; d++)
        from[d] = at[d];
    for (unsigned k = 0; k < n; k++) {
        index[g->shape.rank - 1] = k;
        from[batch + k] = positive(g->data[ravel(g->shape, index)], x.dims[batch + k]);
    }
    for (unsigned d = batch + n; d < x.rank; d++)
        from[d] = at[g->shape.rank - 1 + d - batch - n];
    return (int64_t)ravel(x, from);
}

struct reversal {
    bool time_first;
    const int64_t *lengths;
};

static int64_t map_reverse(const void *context, struct cm_shape x, const int64_t *at)
{
    const struct reversal *r = context;
    int64_t from[CM_MAX_RANK];
    unsigned time = r->time_first ? 0 : 1;
    memcpy(from, at, sizeof from);
    int64_t length = r->lengths[at[1 - time]];
    from[time] = at[time] < length ? length - 1 - at[time] : at[time];
    return (int64_t)ravel(x, from);
}

/* ---- every type ------------------------------------------------------------------------------ */

static int64_t *random_indices(struct cm_shape shape, int64_t n)
{
    int64_t *data = calloc(kit_count(shape) + 1, sizeof *data);
    assert_non_null(data);
    for (size_t i = 0; i < kit_count(shape); i++)
        data[i] = pick((int)-n, (int)n - 1);
    return data;
}

/* Large enough in one dimension for the work to be split over threads. */
static struct cm_shape some_shape(int round, int a, int b)
{
    return round % 4 == 0 ? kit_shape(3, a, b, 9000) : kit_shape(3, a, b, pick(1, 70));
}

static void tiles(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * N_DTYPES; round++) {
        struct cm_shape x = some_shape(round, pick(1, 3), pick(1, 4)), y = x;
        int r[3] = {pick(1, 3), pick(1, 3), pick(1, 2)};
        for (int d = 0; d < 3; d++)
            y.dims[d] *= r[d];
        struct kit_model *m = kit_model(round % 2 ? 6 : 13);
        kit_ints(m, "r", 3, r[0], r[1], r[2]);
        kit_node(m, "Tile", "x,r", "y");
        check_moved(m, all_dtypes[round % N_DTYPES], x, y, map_tile, NULL);
    }
}

static void paddings(void **state)
{
    static const char *const modes[] = {"constant", "reflect", "edge", "wrap"};
    (void)state;
    for (int round = 0; round < 8 * N_DTYPES; round++) {
        struct pads p = {.mode = modes[round % 4]};
        struct cm_shape x = some_shape(round / 4, pick(2, 4), pick(4, 9)), y = x;
        int64_t pads[6];
        for (int d = 0; d < 3; d++) {
            p.begin[d] = pads[d] = pick(-1, 6);
            p.end[d] = pads[3 + d] = pick(x.dims[d] > 2 ? -1 : 0, 6);
            y.dims[d] += p.begin[d] + p.end[d];
        }
        bool by_axes = round % 3 == 0; /* the same, named backwards */
        struct kit_model *m = kit_model(19);
        if (by_axes) {
            int64_t turned[6];
            for (int d = 0; d < 6; d++)
                turned[d] = pads[d < 3 ? 2 - d : 8 - d];
            memcpy(pads, turned, sizeof pads);
            kit_ints(m, "a", 3, -1, 1, -3);
        }
        kit_const(m, "p", CM_INT64, kit_shape(1, 6), pads);
        kit_node(m, "Pad", by_axes ? "x,p,,a" : "x,p", "y");
        kit_attr_s(m, "mode", p.mode);
        check_moved(m, all_dtypes[round % N_DTYPES], x, y, map_pad, &p);
    }
}

/* The filler that comes with the request, and the attribute of old opsets in other types. */
static void pad_values(void **state)
{
    (void)state;
    for (int i = 0; i < N_DTYPES; i++) {
        enum cm_dtype dtype = all_dtypes[i];
        size_t size = cm_dtype_size(dtype);
        struct cm_shape shapes[2] = {kit_shape(2, 2, 3), kit_shape(0)};
        char *x = random_tensor(dtype, shapes[0]), *v = random_tensor(dtype, shapes[1]);
        char *want = calloc(20, size);
        const void *inputs[] = {x, v};
        assert_non_null(want);
        for (int e = 0; e < 20; e++) {
            int row = e / 5, column = e % 5 - 2;
            bool inside = row < 2 && column >= 0;
            memcpy(want + (size_t)e * size, inside ? x + (size_t)(row * 3 + column) * size : v,
                   size);
        }
        struct kit_model *m = kit_model(13);
        kit_ints(m, "p", 4, 0, 2, 2, 0);
        kit_input(m, "x", dtype, shapes[0]);
        kit_input(m, "v", dtype, shapes[1]);
        kit_node(m, "Pad", "x,p,v", "y");
        kit_output(m, "y", dtype, kit_shape(2, 4, 5));
        check(m, shapes, inputs, dtype, kit_shape(2, 4, 5), want);
        free(x);
        free(v);
    }
    double x = 3, *want = malloc(2 * sizeof *want);
    const void *inputs[] = {&x};
    struct cm_shape shape = kit_shape(1, 1);
    assert_non_null(want);
    want[0] = -1.5;
    want[1] = 3;
    struct kit_model *m = kit_model(9);
    kit_input(m, "x", CM_FP64, shape);
    kit_node(m, "Pad", "x", "y");
    kit_attr_ints(m, "pads", 2, 1, 0);
    kit_attr_f(m, "value", -1.5f);
    kit_output(m, "y", CM_FP64, kit_shape(1, 2));
    check(m, &shape, inputs, CM_FP64, kit_shape(1, 2), want);
}

static void centers(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * N_DTYPES; round++) {
        struct cm_shape x = some_shape(round, pick(1, 5), pick(1, 9)), y = x;
        for (int d = 0; d < 2; d++)
            y.dims[d] = pick(1, 9);
        struct kit_model *m = kit_model(18);
        kit_ints(m, "s", 2, (int)y.dims[1], (int)y.dims[0]);
        kit_node(m, "CenterCropPad", "x,s", "y");
        kit_attr_ints(m, "axes", 2, -2, 0);
        check_moved(m, all_dtypes[round % N_DTYPES], x, y, map_center, &y);
    }
}

static void blocks(void **state)
{
    (void)state;
    for (int round = 0; round < 4 * N_DTYPES; round++) {
        struct blocks b = {pick(1, 3), round % 3 == 0, round % 2 == 0};
        int64_t c = pick(1, 3), h = pick(1, 6), w = round % 5 ? pick(1, 9) : 700, s = b.size;
        struct cm_shape deep = kit_shape(4, 2, (int)(c * s * s), (int)h, (int)w);
        struct cm_shape wide = kit_shape(4, 2, (int)c, (int)(h * s), (int)(w * s));
        struct kit_model *m = kit_model(13);
        b.columns_first = b.columns_first && b.to_space;
        kit_node(m, b.to_space ? "DepthToSpace" : "SpaceToDepth", "x", "y");
        kit_attr_i(m, "blocksize", s);
        if (b.to_space)
            kit_attr_s(m, "mode", b.columns_first ? "CRD" : "DCR");
        check_moved(m, all_dtypes[round % N_DTYPES], b.to_space ? deep : wide,
                    b.to_space ? wide : deep, map_blocks, &b);
    }
}

static void triangles(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * N_DTYPES; round++) {
        struct cm_shape x = some_shape(round, pick(1, 4), pick(1, 9));
        struct triangle t = {round % 2 == 0, round % 7 == 0 ? INT64_MIN : pick(-10, 10)};
        struct kit_model *m = kit_model(14);
        kit_const(m, "k", CM_INT64, kit_shape(0), &t.k);
        kit_node(m, "Trilu", "x,k", "y");
        kit_attr_i(m, "upper", t.upper);
        t.k = t.k < -100 ? -100 : t.k; /* the map adds to it */
        check_moved(m, all_dtypes[round % N_DTYPES], x, x, map_trilu, &t);
    }
}

static void indexed(void **state)
{
    (void)state;
    for (int round = 0; round < 4 * N_DTYPES; round++) {
        enum cm_dtype dtype = all_dtypes[round % N_DTYPES];
        struct cm_shape x = some_shape(round, pick(1, 5), pick(1, 5)), y;
        unsigned axis = (unsigned)pick(0, 2);
        struct indices g = {axis, kit_shape(2, pick(0, 4), pick(1, 5)), NULL};
        struct kit_model *m = kit_model(13);
        int64_t *data = random_indices(g.shape, x.dims[axis]);
        g.data = data;
        y = (struct cm_shape){.rank = 4};
        for (unsigned d = 0; d < 4; d++)
            y.dims[d] = d < axis       ? x.dims[d]
                        : d < axis + 2 ? g.shape.dims[d - axis]
                                       : x.dims[d - 1];
        kit_const(m, "i", CM_INT64, g.shape, data);
        kit_node(m, "Gather", "x,i", "y");
        kit_attr_i(m, "axis", (int)axis - 3);
        check_moved(m, dtype, x, y, map_gather, &g);
        free(data);

        g.shape = x;
        g.shape.dims[axis] = pick(0, 6);
        if (axis != 1)
            g.shape.dims[1] = pick(1, (int)x.dims[1]);
        g.data = data = random_indices(g.shape, x.dims[axis]);
        m = kit_model(13);
        if (round % 2) { /* 32 bits */
            int32_t *narrow = calloc(kit_count(g.shape) + 1, sizeof *narrow);
            assert_non_null(narrow);
            for (size_t i = 0; i < kit_count(g.shape); i++)
                narrow[i] = (int32_t)data[i];
            kit_const(m, "i", CM_INT32, g.shape, narrow);
            free(narrow);
        } else {
            kit_const(m, "i", CM_INT64, g.shape, data);
        }
        kit_node(m, "GatherElements", "x,i", "y");
        kit_attr_i(m, "axis", axis);
        check_moved(m, dtype, x, g.shape, map_elements, &g);
        free(data);
    }
}

static void tuples(void **state)
{
    (void)state;
    for (int round = 0; round < 4 * N_DTYPES; round++) {
        int batch = pick(0, 2), n = pick(1, 3 - batch), lengths[3] = {pick(1, 4), pick(1, 4), 0};
        struct cm_shape x = some_shape(round, lengths[0], lengths[1]), y = {0};
        struct indices g = {(unsigned)batch, {.rank = (uint8_t)(batch + 2)}, NULL};
        for (int d = 0; d < batch; d++)
            g.shape.dims[d] = x.dims[d];
        g.shape.dims[batch] = pick(1, 5);
        g.shape.dims[batch + 1] = n;
        int64_t least = INT32_MAX;
        for (int k = 0; k < n; k++)
            least = x.dims[batch + k] < least ? x.dims[batch + k] : least;
        int64_t *data = random_indices(g.shape, least);
        g.data = data;
        for (int d = 0; d <= batch; d++)
            y.dims[y.rank++] = g.shape.dims[d];
        for (unsigned d = (unsigned)(batch + n); d < x.rank; d++)
            y.dims[y.rank++] = x.dims[d];
        struct kit_model *m = kit_model(13);
        kit_const(m, "i", CM_INT64, g.shape, data);
        kit_node(m, "GatherND", "x,i", "y");
        kit_attr_i(m, "batch_dims", batch);
        check_moved(m, all_dtypes[round % N_DTYPES], x, y, map_tuples, &g);
        free(data);
    }
}

static void reversals(void **state)
{
    (void)state;
    for (int round = 0; round < 2 * N_DTYPES; round++) {
        struct cm_shape x = some_shape(round, pick(1, 6), pick(1, 6));
        struct reversal r = {round % 2 == 0, NULL};
        int64_t lengths[6], time = x.dims[r.time_first ? 0 : 1];
        int64_t batch = x.dims[r.time_first ? 1 : 0];
        for (int i = 0; i < batch; i++)
            lengths[i] = pick(0, (int)time);
        r.lengths = lengths;
        struct kit_model *m = kit_model(10);
        kit_const(m, "l", CM_INT64, kit_shape(1, (int)batch), lengths);
        kit_node(m, "ReverseSequence", "x,l", "y");
        kit_attr_i(m, "time_axis", r.time_first ? 0 : 1);
        kit_attr_i(m, "batch_axis", r.time_first ? 1 : 0);
        check_moved(m, all_dtypes[round % N_DTYPES], x, x, map_reverse, &r);
    }
}

/* ---- Split ----------------------------------------------------------------------------------- */

/* Splits x [3][7] along the last axis into 4 + 0 + 3, or into parts of 3, 3 and 1. */
static void splits(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_DTYPES; i++) {
        enum cm_dtype dtype = all_dtypes[i % N_DTYPES];
        size_t size = cm_dtype_size(dtype);
        bool even = i >= N_DTYPES;
        int64_t parts[3] = {even ? 3 : 4, even ? 3 : 0, even ? 1 : 3}, at = 0;
        struct cm_shape x = kit_shape(2, 3, 7), shapes[3];
        char *data = random_tensor(dtype, x);
        const void *inputs[] = {data};
        void *got[3];
        struct kit_model *m = kit_model(even ? 18 : 13);
        struct kit_loaded l;
        kit_input(m, "x", dtype, x);
        if (!even)
            kit_const(m, "s", CM_INT64, kit_shape(1, 3), parts);
        kit_node(m, "Split", even ? "x" : "x,s", "a,b,c");
        kit_attr_i(m, "axis", -1);
        if (even)
            kit_attr_i(m, "num_outputs", 3);
        kit_output(m, "a", dtype, kit_shape(2, 3, (int)parts[0]));
        kit_output(m, "b", dtype, kit_shape(2, 3, (int)parts[1]));
        kit_output(m, "c", dtype, kit_shape(2, 3, (int)parts[2]));
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, &x, inputs, got, shapes);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(shapes[k].dims[1], parts[k]);
            for (int row = 0; row < 3; row++)
                assert_memory_equal((char *)got[k] + (size_t)(row * parts[k]) * size,
                                    data + (size_t)(row * 7 + at) * size, (size_t)parts[k] * size);
            at += parts[k];
            free(got[k]);
        }
        kit_unload(&l);
        kit_free(m);
        free(data);
    }
}

/* ---- OneHot, Range --------------------------------------------------------------------------- */

static void one_hots(void **state)
{
    (void)state;
    for (int i = 0; i < N_DTYPES; i++) {
        enum cm_dtype dtype = all_dtypes[i];
        size_t size = cm_dtype_size(dtype);
        const int32_t indices[4] = {0, -1, 5, 1}; /* 5 is outside and hot nowhere */
        const float depth = 3;
        struct cm_shape shapes[1] = {kit_shape(1, 2)};
        char *values = random_tensor(dtype, shapes[0]), *want = calloc(12, size);
        const void *inputs[] = {values};
        assert_non_null(want);
        for (int e = 0; e < 12; e++) { /* [2][3][2]: the new axis in the middle */
            int row = e / 6, d = e / 2 % 3, column = e % 2, index = indices[row * 2 + column];
            bool hot = (index < 0 ? index + 3 : index) == d;
            memcpy(want + (size_t)e * size, values + (hot ? size : 0), size);
        }
        struct kit_model *m = kit_model(11);
        kit_const(m, "i", CM_INT32, kit_shape(2, 2, 2), indices);
        kit_const(m, "d", CM_FP32, kit_shape(0), &depth);
        kit_input(m, "v", dtype, shapes[0]);
        kit_node(m, "OneHot", "i,d,v", "y");
        kit_attr_i(m, "axis", 1);
        kit_output(m, "y", dtype, kit_shape(3, 2, 3, 2));
        check(m, shapes, inputs, dtype, kit_shape(3, 2, 3, 2), want);
        free(values);
    }
}

/* A range is made of constants alone; a second node lets it reach an output with an input. */
static void ranges(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        static const enum cm_dtype dtypes[] = {CM_INT16, CM_INT32, CM_INT64, CM_FP32, CM_FP64};
        enum cm_dtype dtype = dtypes[round % 5];
        int start = pick(-20, 20), step = pick(1, 7) * (round % 2 ? -1 : 1);
        int n = round < 5 ? 3000 : pick(1, 9), limit = start + step * (n - 1) + (step > 0 ? 1 : -1);
        char operands[3][8];
        double numbers[3] = {start, limit, step};
        void *want = calloc((size_t)n, 8);
        assert_non_null(want);
        for (int k = 0; k < 3 + n; k++) {
            double v = k < 3 ? numbers[k] : start + step * (k - 3);
            char *to = k < 3 ? operands[k] : (char *)want + (size_t)(k - 3) * cm_dtype_size(dtype);
            int16_t i16 = (int16_t)v;
            int32_t i32 = (int32_t)v;
            int64_t i64 = (int64_t)v;
            float f32 = (float)v;
            memcpy(to,
                   dtype == CM_INT16   ? (void *)&i16
                   : dtype == CM_INT32 ? (void *)&i32
                   : dtype == CM_INT64 ? (void *)&i64
                   : dtype == CM_FP32  ? (void *)&f32
                                       : (void *)&v,
                   cm_dtype_size(dtype));
        }
        struct kit_model *m = kit_model(11);
        char zero[8] = {0};
        const void *inputs[] = {zero};
        struct cm_shape one = kit_shape(1, 1);
        kit_const(m, "a", dtype, kit_shape(0), operands[0]);
        kit_const(m, "b", dtype, kit_shape(0), operands[1]);
        kit_const(m, "c", dtype, kit_shape(1, 1), operands[2]);
        kit_node(m, "Range", "a,b,c", "r");
        kit_input(m, "x", dtype, one);
        kit_node(m, "Concat", "x,r", "all");
        kit_attr_i(m, "axis", 0);
        kit_ints(m, "from", 1, 1);
        kit_ints(m, "to", 1, INT32_MAX);
        kit_node(m, "Slice", "all,from,to", "y");
        kit_output(m, "y", dtype, kit_shape(1, n));
        check(m, &one, inputs, dtype, kit_shape(1, n), want);
    }
}

/* ---- empty tensors --------------------------------------------------------------------------- */

static void empties(void **state)
{
    static const struct {
        const char *op, *operands;
        int opset, x[2], y[2], list[4], n;
    } cases[] = {
        {"Tile", "x,l", 13, {2, 3}, {0, 3}, {0, 1}, 2},
        {"Tile", "x,l", 13, {0, 3}, {0, 6}, {5, 2}, 2},
        {"Pad", "x,l", 13, {0, 2}, {3, 2}, {1, 0, 2, 0}, 4},
        {"Pad", "x,l", 13, {2, 2}, {0, 2}, {-1, 0, -1, 0}, 4},
        {"Expand", "x,l", 13, {0, 1}, {0, 4}, {1, 4}, 2},
        {"GatherElements", "x,e", 13, {3, 2}, {0, 2}, {0}, 0},
        {"ScatterElements", "x,e,u", 13, {3, 2}, {3, 2}, {0}, 0},
        {"Trilu", "x", 14, {0, 4}, {0, 4}, {0}, 0},
        {"CenterCropPad", "x,l", 18, {0, 3}, {2, 2}, {2, 2}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cm_shape x = kit_shape(2, cases[i].x[0], cases[i].x[1]);
        struct cm_shape y = kit_shape(2, cases[i].y[0], cases[i].y[1]);
        float data[6] = {0}, *want = calloc(kit_count(y) + 1, sizeof *want);
        int64_t list[4] = {cases[i].list[0], cases[i].list[1], cases[i].list[2], cases[i].list[3]};
        const void *inputs[] = {data};
        struct kit_model *m = kit_model(cases[i].opset);
        assert_non_null(want);
        if (strchr(cases[i].operands, 'l'))
            kit_const(m, "l", CM_INT64, kit_shape(1, cases[i].n), list);
        if (strchr(cases[i].operands, 'e'))
            kit_const(m, "e", CM_INT64, kit_shape(2, 0, 2), list);
        if (strchr(cases[i].operands, 'u'))
            kit_const(m, "u", CM_FP32, kit_shape(2, 0, 2), data);
        kit_input(m, "x", CM_FP32, x);
        kit_node(m, cases[i].op, cases[i].operands, "y");
        kit_output(m, "y", CM_FP32, y);
        check(m, &x, inputs, CM_FP32, y, want);
    }
}

/* ---- Scatter --------------------------------------------------------------------------------- */

/* a op b of one element, through 64-bit integers or double. */
static void combine(enum cm_dtype dtype, const char *op, void *a, const void *b)
{
#define INTEGER(name, type)                                              \
    if (dtype == CM_##name) {                                            \
        type x, y;                                                       \
        memcpy(&x, a, sizeof x);                                         \
        memcpy(&y, b, sizeof y);                                         \
        x = strcmp(op, "add") == 0   ? (type)((uint64_t)x + (uint64_t)y) \
            : strcmp(op, "mul") == 0 ? (type)((uint64_t)x * (uint64_t)y) \
            : strcmp(op, "min") == 0 ? (y < x ? y : x)                   \
            : strcmp(op, "max") == 0 ? (y > x ? y : x)                   \
                                     : y;                                \
        memcpy(a, &x, sizeof x);                                         \
    }
#define FLOATING(name, type)                           \
    if (dtype == CM_##name) {                          \
        type x, y;                                     \
        memcpy(&x, a, sizeof x);                       \
        memcpy(&y, b, sizeof y);                       \
        x = strcmp(op, "add") == 0   ? x + y           \
            : strcmp(op, "mul") == 0 ? x * y           \
            : strcmp(op, "min") == 0 ? (y < x ? y : x) \
            : strcmp(op, "max") == 0 ? (y > x ? y : x) \
                                     : y;              \
        memcpy(a, &x, sizeof x);                       \
    }
    INTEGER(UINT8, uint8_t)
    INTEGER(UINT16, uint16_t)
    INTEGER(UINT32, uint32_t)
    INTEGER(UINT64, uint64_t)
    INTEGER(INT8, int8_t)
    INTEGER(INT16, int16_t)
    INTEGER(INT32, int32_t)
    INTEGER(INT64, int64_t)
    FLOATING(FP32, float)
    FLOATING(FP64, double)
    if (dtype == CM_BOOL) {
        char x = *(char *)a, y = *(const char *)b;
        bool either = strcmp(op, "add") == 0 || strcmp(op, "max") == 0;
        *(char *)a = strcmp(op, "none") == 0 ? y : either ? x || y : x && y;
    }
}

/* Random elements that are finite where they are floats. */
static void *random_numbers(enum cm_dtype dtype, struct cm_shape shape)
{
    char *data = random_tensor(dtype, shape);
    for (size_t i = 0; i < kit_count(shape); i++) {
        double wide = kit_float(&random_state);
        float single = (float)wide;
        if (dtype == CM_FP32)
            memcpy(data + 4 * i, &single, 4);
        if (dtype == CM_FP64)
            memcpy(data + 8 * i, &wide, 8);
    }
    return data;
}

static void scatters(void **state)
{
    static const char *const ops[] = {"none", "add", "mul", "min", "max"};
    (void)state;
    for (int round = 0; round < 5 * 2 * N_DTYPES; round++) {
        enum cm_dtype dtype = all_dtypes[round % N_DTYPES];
        const char *op = ops[round % 5];
        bool tuple = round >= 5 * N_DTYPES;
        size_t size = cm_dtype_size(dtype);
        if (dtype == CM_FP16 || dtype == CM_BF16)
            continue; /* halves */
        struct cm_shape x = round % 7 ? kit_shape(2, 5, 6) : kit_shape(2, 5, 20000);
        struct cm_shape shape = tuple ? kit_shape(2, 9, 1) : kit_shape(2, 9, (int)x.dims[1]);
        struct cm_shape updates = tuple ? kit_shape(2, 9, (int)x.dims[1]) : shape;
        int64_t *indices = random_indices(shape, 5);
        char *data = random_numbers(dtype, x), *more = random_numbers(dtype, updates);
        char *want = malloc(kit_count(x) * size);
        const void *inputs[] = {data, more};
        struct cm_shape shapes[] = {x, updates};
        assert_non_null(want);
        memcpy(want, data, kit_count(x) * size);
        for (size_t i = 0; i < kit_count(updates); i++) {
            size_t column = i % (size_t)x.dims[1];
            int64_t row = positive(indices[tuple ? i / (size_t)x.dims[1] : i], 5);
            combine(dtype, op, want + ((size_t)row * (size_t)x.dims[1] + column) * size,
                    more + i * size);
        }
        struct kit_model *m = kit_model(18);
        kit_input(m, "x", dtype, x);
        kit_input(m, "u", dtype, updates);
        kit_const(m, "i", CM_INT64, shape, indices);
        kit_node(m, tuple ? "ScatterND" : "ScatterElements", "x,i,u", "y");
        kit_attr_s(m, "reduction", op);
        kit_output(m, "y", dtype, x);
        check(m, shapes, inputs, dtype, x, want);
        free(indices);
        free(data);
        free(more);
    }
}

/* 1 + 2^-11 + 2^-11 is 1 in FP16 where each sum is rounded, and the order of sums is the updates'.
 */
static void halves(void **state)
{
    const uint16_t x[1] = {0x3c00}, u[2] = {0x1000, 0x1000};
    const int64_t indices[2] = {0, 0};
    uint16_t *want = malloc(2);
    const void *inputs[] = {x, u};
    struct cm_shape shapes[] = {kit_shape(1, 1), kit_shape(1, 2)};
    (void)state;
    assert_non_null(want);
    *want = 0x3c00;
    struct kit_model *m = kit_model(16);
    kit_input(m, "x", CM_FP16, shapes[0]);
    kit_input(m, "u", CM_FP16, shapes[1]);
    kit_const(m, "i", CM_INT64, kit_shape(1, 2), indices);
    kit_node(m, "ScatterElements", "x,i,u", "y");
    kit_attr_s(m, "reduction", "add");
    kit_output(m, "y", CM_FP16, shapes[0]);
    check(m, shapes, inputs, CM_FP16, shapes[0], want);
}

/* ---- bad indices ----------------------------------------------------------------------------- */

/* Every operator with an index that comes with the request and is one too large or too small. */
static void bad_indices(void **state)
{
    static const struct {
        const char *op, *operands;
        int rank, dims[2];
        const char *message;
    } cases[] = {
        {"Gather", "x,i", 1, {2, 0}, "input 1: index"},
        {"GatherElements", "x,i", 2, {1, 2}, "input 1: index"},
        {"GatherND", "x,i", 2, {1, 2}, "input 1: index"},
        {"ScatterElements", "x,i,u", 2, {1, 2}, "input 1: index"},
        {"ScatterND", "x,i,v", 2, {2, 1}, "input 1: index"},
        {"ReverseSequence", "x,i", 1, {2, 0}, "input 1: length"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int wide = 0; wide < 2; wide++) {
            bool reverse = strcmp(cases[c].op, "ReverseSequence") == 0;
            if (!wide && (strstr(cases[c].op, "ND") || reverse))
                continue;
            struct kit_model *m = kit_model(13);
            struct cm_shape shapes[2] = {
                kit_shape(2, 3, 2),
                {.rank = (uint8_t)cases[c].rank, .dims = {cases[c].dims[0], cases[c].dims[1]}}};
            float x[6] = {0}, u[4] = {0};
            struct kit_loaded l;
            kit_input(m, "x", CM_FP32, shapes[0]);
            kit_input(m, "i", wide ? CM_INT64 : CM_INT32, shapes[1]);
            kit_const(m, "u", CM_FP32, kit_shape(2, 1, 2), u);
            kit_const(m, "v", CM_FP32, kit_shape(2, 2, 2), u);
            kit_node(m, cases[c].op, cases[c].operands, "y");
            kit_node(m, "Identity", "y", "z");
            kit_output(m, "z", CM_FP32, kit_shape(2, -1, -1));
            kit_load_model(&l, m, 2, NULL);
            for (int bad = 0; bad < 3; bad++) {
                const int64_t values[] = {reverse ? 4 : 3, reverse ? -1 : -4, INT32_MIN};
                int64_t indices[2] = {0, values[bad]};
                int32_t narrow[2] = {0, (int32_t)values[bad]};
                if (strcmp(cases[c].op, "GatherND") == 0)
                    indices[0] = 2; /* a good row, a bad column */
                const void *inputs[] = {x, wide ? (void *)indices : narrow};
                kit_run_refused(&l, shapes, inputs, CM_INVALID, cases[c].op, cases[c].message);
            }
            kit_unload(&l);
            kit_free(m);
        }
    }
}

/* A table per axis may be larger than the tensor that it is for: of 2^29 bytes it has 2^31. */
static void tables_without_end(void **state)
{
    const struct cm_shape shape = kit_shape(1, 1);
    struct kit_model *m = kit_model(13);
    struct kit_loaded l;
    struct wk_plan *plan = NULL;
    struct cm_error err = {0};
    (void)state;
    kit_input(m, "x", CM_INT8, shape);
    kit_ints(m, "n", 1, 1 << 29);
    kit_node(m, "Tile", "x,n", "y");
    kit_output(m, "y", CM_INT8, kit_shape(1, 1 << 29));
    kit_load_model(&l, m, 1, NULL);
    assert_int_equal(wk_plan_create(l.model, &shape, &err, &plan), CM_NOMEM);
    kit_unload(&l);
    kit_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles),
        cmocka_unit_test(paddings),
        cmocka_unit_test(pad_values),
        cmocka_unit_test(centers),
        cmocka_unit_test(blocks),
        cmocka_unit_test(triangles),
        cmocka_unit_test(indexed),
        cmocka_unit_test(tuples),
        cmocka_unit_test(reversals),
        cmocka_unit_test(splits),
        cmocka_unit_test(one_hots),
        cmocka_unit_test(ranges),
        cmocka_unit_test(empties),
        cmocka_unit_test(scatters),
        cmocka_unit_test(halves),
        cmocka_unit_test(bad_indices),
        cmocka_unit_test(tables_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
