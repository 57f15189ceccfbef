/* What reduces and scores, of every element type, against plain loops in double: reductions, ArgMax
 * and ArgMin, CumSum, softmax and hardmax, losses, global pools. Axes are negative,
 * empty and several, dimensions empty, attributes wrong. */
#include "tests/engine/typed_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

static const enum cm_dtype numbers[] = {CM_FP32,  CM_FP64,  CM_FP16,   CM_BF16,
                                        CM_INT32, CM_INT64, CM_UINT32, CM_UINT64};
static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};
static const enum cm_dtype all_numbers[] = {CM_FP32,  CM_FP64,   CM_FP16,   CM_BF16,
                                            CM_INT8,  CM_INT16,  CM_INT32,  CM_INT64,
                                            CM_UINT8, CM_UINT16, CM_UINT32, CM_UINT64};

/* ---- reductions ------------------------------------------------------------------------------ */

enum { SUM, MEAN, MAX, MIN, PROD, L1, L2, LOG_SUM, LOG_SUM_EXP, SUM_SQUARE, REDUCTIONS };
static const char *const reductions[] = {
    "ReduceSum", "ReduceMean", "ReduceMax",    "ReduceMin",       "ReduceProd",
    "ReduceL1",  "ReduceL2",   "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"};

static double reduction_start(int op)
{
    return op == MAX ? -INFINITY : op == MIN ? INFINITY : op == PROD ? 1 : 0;
}

static double reduction_step(int op, double t, double x)
{
    switch (op) {
    case MAX:
        return x > t ? x : t;
    case MIN:
        return x < t ? x : t;
    case PROD:
        return t * x;
    case L1:
        return t + fabs(x);
    case L2:
    case SUM_SQUARE:
        return t + x * x;
    case LOG_SUM_EXP:
        return t + exp(x);
    default:
        return t + x;
    }
}

static double reduction_end(int op, double t, size_t n, bool whole)
{
    t = op == MEAN ? t / (double)n : op == L2 ? sqrt(t) : t;
    t = op == LOG_SUM || op == LOG_SUM_EXP ? log(t) : t;
    return whole ? trunc(t) : t;
}

/* Positions of x whose kept coordinates are those of output element i, in the order of x. */
static void reduce_reference(int op, const struct typed_operand *x, unsigned axes, double *y,
                             size_t n_out)
{
    size_t n = 0;
    for (size_t o = 0; o < n_out; o++)
        y[o] = reduction_start(op);
    for (size_t i = 0; i < x->count; i++) {
        size_t rest = i, o = 0, stride = 1;
        for (int d = x->shape.rank - 1; d >= 0; d--) {
            size_t at = rest % (size_t)x->shape.dims[d];
            rest /= (size_t)x->shape.dims[d];
            if (axes >> d & 1)
                continue;
            o += at * stride;
            stride *= (size_t)x->shape.dims[d];
        }
        y[o] = reduction_step(op, y[o], x->v[i]);
        n += o == 0;
    }
    for (size_t o = 0; o < n_out; o++)
        y[o] = reduction_end(op, y[o], n, !typed_is_float(x->dtype));
}

struct axes_case {
    int n, given[4];
    unsigned marks;
};

static void reduce_case(int op, enum cm_dtype dtype, const struct axes_case *axes, bool keep,
                        struct cm_shape shape)
{
    struct typed_case c;
    struct cm_shape out = {0};
    bool by_input = op == SUM || (axes->n + keep) % 2;
    typed_begin(&c, by_input ? 18 : 13);
    struct typed_operand *x = typed_random(&c, "x", dtype, shape, 4);
    for (size_t i = 0; i < x->count && op == LOG_SUM; i++)
        x->v[i] = fabs(x->v[i]) + 1;
    typed_round(x);
    kit_node(c.model, reductions[op], by_input && axes->n ? "x,axes" : "x", "y");
    kit_attr_i(c.model, "keepdims", keep);
    if (by_input && axes->n)
        kit_ints(c.model, "axes", axes->n, axes->given[0], axes->given[1], axes->given[2]);
    else if (axes->n)
        kit_attr_ints(c.model, "axes", axes->n, axes->given[0], axes->given[1], axes->given[2]);
    for (unsigned d = 0; d < shape.rank; d++)
        if (!(axes->marks >> d & 1))
            out.dims[out.rank++] = shape.dims[d];
        else if (keep)
            out.dims[out.rank++] = 1;
    typed_output(&c, "y", dtype, out);
    double *want = typed_room(kit_count(out));
    reduce_reference(op, x, axes->marks, want, kit_count(out));
    typed_run(&c);
    typed_check(&c, 0, want, op == PROD || op == SUM_SQUARE ? 100 : 20);
    free(want);
    typed_end(&c);
}

static void reduce_every_type(void **state)
{
    static const struct axes_case axes[] = {{1, {1}, 2},     {1, {-1}, 4}, {2, {2, 0}, 5},
                                            {2, {-3, 1}, 3}, {0, {0}, 7},  {3, {0, 1, 2}, 7}};
    (void)state;
    for (int op = 0; op < REDUCTIONS; op++)
        for (int t = 0; t < COUNT(numbers); t++)
            for (int a = 0; a < COUNT(axes); a++)
                reduce_case(op, numbers[t], &axes[a], (op + t + a) % 2,
                            op == PROD ? kit_shape(3, 2, 2, 3) : kit_shape(3, 3, 5, 4));
}

static void reduce_bytes(void **state)
{
    static const enum cm_dtype bytes[] = {CM_INT8, CM_UINT8, CM_BOOL};
    static const struct axes_case axes[] = {{1, {1}, 2}, {2, {0, -1}, 5}};
    (void)state;
    for (int t = 0; t < COUNT(bytes); t++)
        for (int a = 0; a < COUNT(axes); a++)
            for (int op = MAX; op <= MIN; op++)
                reduce_case(op, bytes[t], &axes[a], a, kit_shape(3, 2, 3, 4));
}

/* Integer sums wrap, means truncate towards zero. */
static void reduce_integers(void **state)
{
    static const double big[] = {2147483647, 1, -7, -8};
    static const double sums[] = {-2147483648.0, -15}, means[] = {1073741824, -7};
    (void)state;
    for (int mean = 0; mean < 2; mean++) {
        struct typed_case c;
        typed_begin(&c, 13);
        typed_values(&c, "x", CM_INT32, kit_shape(2, 2, 2), big);
        kit_node(c.model, mean ? "ReduceMean" : "ReduceSum", mean ? "x" : "x,axes", "y");
        if (mean)
            kit_attr_ints(c.model, "axes", 1, 1);
        else
            kit_ints(c.model, "axes", 1, 1);
        kit_attr_i(c.model, "keepdims", 0);
        typed_output(&c, "y", CM_INT32, kit_shape(1, 2));
        typed_run(&c);
        typed_check(&c, 0, mean ? means : sums, 0);
        typed_end(&c);
    }
}

/* A dimension without elements, as FP32 (vectors), FP64 and INT64 (plain). */
static void reduce_nothing(void **state)
{
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64, CM_INT64, CM_FP16};
    (void)state;
    for (int op = 0; op < REDUCTIONS; op++)
        for (int t = 0; t < COUNT(types); t++) {
            bool whole = types[t] == CM_INT64;
            double want[3];
            for (int i = 0; i < 3; i++)
                want[i] = reduction_end(op, reduction_start(op), 0, false);
            /* Logarithms and extremes have no infinities to show in an integer. */
            if (whole && (op == LOG_SUM || op == LOG_SUM_EXP || op == MAX || op == MIN))
                continue;
            if (whole && op == MEAN)
                want[0] = want[1] = want[2] = 0;
            struct typed_case c;
            typed_begin(&c, 13);
            typed_random(&c, "x", types[t], kit_shape(2, 3, 0), 1);
            kit_node(c.model, reductions[op], op == SUM ? "x,axes" : "x", "y");
            if (op == SUM)
                kit_ints(c.model, "axes", 1, -1);
            else
                kit_attr_ints(c.model, "axes", 1, -1);
            typed_output(&c, "y", types[t], kit_shape(2, 3, 1));
            typed_run(&c);
            typed_check(&c, 0, want, 1);
            typed_end(&c);
        }
}

/* Dimensions beside the empty one are not looped over: there would be 2^61 of them. */
static void reduce_much_of_nothing(void **state)
{
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64};
    const struct cm_shape much = kit_shape(4, 1 << 30, 1 << 29, 4, 0);
    const char zeros[4 * sizeof(double)] = {0};
    const void *nothing = zeros;
    (void)state;
    for (int t = 0; t < COUNT(types); t++) {
        struct kit_model *m = kit_model(11);
        struct kit_loaded l;
        struct cm_shape shape;
        void *y;
        kit_input(m, "x", types[t], kit_shape(4, -1, -1, -1, -1));
        kit_node(m, "ReduceSum", "x", "y");
        kit_attr_ints(m, "axes", 3, 0, 1, 3);
        kit_attr_i(m, "keepdims", 0);
        kit_output(m, "y", types[t], kit_shape(1, -1));
        kit_load_model(&l, m, 1, NULL);
        kit_run(&l, &much, &nothing, &y, &shape);
        assert_true(shape.rank == 1 && shape.dims[0] == 4);
        assert_memory_equal(y, zeros, 4 * cm_dtype_size(types[t]));
        free(y);
        kit_unload(&l);
        kit_free(m);
    }
}

/* noop_with_empty_axes reduces over no axis: each element by itself. */
static void reduce_no_axes(void **state)
{
    (void)state;
    for (int op = 0; op < REDUCTIONS; op++)
        for (int empty = 0; empty < 2; empty++) {
            struct typed_case c;
            typed_begin(&c, 18);
            struct typed_operand *x = typed_random(&c, "x", CM_FP32, kit_shape(2, 3, 20), 2);
            for (size_t i = 0; i < x->count; i++)
                x->v[i] = fabs(x->v[i]) + 0.5;
            typed_round(x);
            kit_node(c.model, reductions[op], empty ? "x,axes" : "x", "y");
            kit_attr_i(c.model, "noop_with_empty_axes", 1);
            if (empty)
                kit_const(c.model, "axes", CM_INT64, kit_shape(1, 0), "");
            typed_output(&c, "y", CM_FP32, kit_shape(2, 3, 20));
            double *want = typed_room(60);
            reduce_reference(op, x, 0, want, 60);
            typed_run(&c);
            typed_check(&c, 0, want, 2);
            free(want);
            typed_end(&c);
        }
}

/* log(sum(exp)) does not overflow, and takes infinities as they are. */
static void log_sum_exp_edges(void **state)
{
    static const double x[] = {1000, 1000, -INFINITY, -INFINITY, INFINITY, 3, NAN, 3};
    const double want[] = {1000 + log(2), -INFINITY, INFINITY, NAN};
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64};
    (void)state;
    for (int t = 0; t < COUNT(types); t++)
        for (int axis = 0; axis < 2; axis++) { /* columns and rows take different paths */
            double moved[8];
            for (int i = 0; i < 8; i++)
                moved[axis ? i : i % 2 * 4 + i / 2] = x[i];
            struct typed_case c;
            typed_begin(&c, 13);
            typed_values(&c, "x", types[t], axis ? kit_shape(2, 4, 2) : kit_shape(2, 2, 4), moved);
            kit_node(c.model, "ReduceLogSumExp", "x", "y");
            kit_attr_ints(c.model, "axes", 1, axis);
            kit_attr_i(c.model, "keepdims", 0);
            typed_output(&c, "y", types[t], kit_shape(1, 4));
            typed_run(&c);
            typed_check(&c, 0, want, 1);
            typed_end(&c);
        }
}

static struct typed_case reduce_refusal(int opset, const char *op, enum cm_dtype dtype, int axis)
{
    struct typed_case c;
    typed_begin(&c, opset);
    typed_random(&c, "x", dtype, kit_shape(2, 2, 3), 1);
    kit_node(c.model, op, "x", "y");
    kit_attr_ints(c.model, "axes", 1, axis);
    typed_output(&c, "y", dtype, kit_shape(2, 2, 1));
    return c;
}

static void reduce_refusals(void **state)
{
    struct typed_case c;
    (void)state;
    c = reduce_refusal(13, "ReduceMax", CM_FP32, 2);
    typed_refused(&c, CM_INVALID, "axis 2 of 2 dimensions");
    c = reduce_refusal(13, "ReduceMean", CM_FP32, -3);
    typed_refused(&c, CM_INVALID, "axis -3 of 2 dimensions");
    c = reduce_refusal(13, "ReduceL1", CM_BOOL, 1);
    typed_refused(&c, CM_UNSUPPORTED, "has type BOOL");
    c = reduce_refusal(13, "ReduceSumSquare", CM_INT16, 1);
    typed_refused(&c, CM_UNSUPPORTED, "has type INT16");
    c = reduce_refusal(18, "ReduceL2", CM_FP32, 1);
    typed_refused(&c, CM_UNSUPPORTED, "attribute axes");
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "ReduceMin", "x", "y");
    kit_attr_ints(c.model, "axes", 2, 1, -1);
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 1));
    typed_refused(&c, CM_INVALID, "axis -1 of 2 dimensions");
    typed_begin(&c, 18);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    typed_random(&c, "axes", CM_INT32, kit_shape(1, 1), 1)->constant = true;
    kit_node(c.model, "ReduceProd", "x,axes", "y");
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 1));
    typed_refused(&c, CM_INVALID, "axes must be a vector of INT64");
}

/* ---- positions and running sums -------------------------------------------------------------- */

static void arg_case(enum cm_dtype dtype, int axis, bool max, bool last, bool keep)
{
    struct typed_case c;
    struct cm_shape shape = kit_shape(3, 3, 6, 5), out = {0};
    struct typed_around a = typed_around(shape, axis);
    typed_begin(&c, 13);
    struct typed_operand *x = typed_random(&c, "x", dtype, shape, 3); /* whole: many ties */
    for (size_t i = 0; i < x->count; i++)
        x->v[i] = rint(x->v[i]);
    kit_node(c.model, max ? "ArgMax" : "ArgMin", "x", "y");
    kit_attr_i(c.model, "axis", axis);
    kit_attr_i(c.model, "keepdims", keep);
    kit_attr_i(c.model, "select_last_index", last);
    for (int d = 0; d < 3; d++)
        if (d != (axis + 3) % 3)
            out.dims[out.rank++] = shape.dims[d];
        else if (keep)
            out.dims[out.rank++] = 1;
    typed_output(&c, "y", CM_INT64, out);
    double *want = typed_room(a.outer * a.inner);
    for (size_t o = 0; o < a.outer; o++)
        for (size_t q = 0; q < a.inner; q++) {
            size_t best = 0;
            const double *v = x->v + o * a.n * a.inner + q;
            for (size_t j = 1; j < a.n; j++) {
                double t = v[best * a.inner], u = v[j * a.inner];
                if (max ? u > t : u < t)
                    best = j;
                else if (last && u == t)
                    best = j;
            }
            want[o * a.inner + q] = (double)best;
        }
    typed_run(&c);
    typed_check(&c, 0, want, 0);
    free(want);
    typed_end(&c);
}

static void positions(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(all_numbers); t++)
        for (int axis = -3; axis < 3; axis++)
            for (unsigned how = 0; how < 4; how++)
                arg_case(all_numbers[t], axis, how & 1, how >> 1, (t + axis + 3) % 2);
}

static void positions_of_nan(void **state)
{
    static const double x[] = {1, NAN, 5, NAN};
    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        double want = how & 2 ? 3 : 1;
        struct typed_case c;
        typed_begin(&c, 13);
        typed_values(&c, "x", how & 1 ? CM_FP16 : CM_FP64, kit_shape(1, 4), x);
        kit_node(c.model, how & 1 ? "ArgMax" : "ArgMin", "x", "y");
        kit_attr_i(c.model, "select_last_index", how >> 1);
        typed_output(&c, "y", CM_INT64, kit_shape(1, 1));
        typed_run(&c);
        typed_check(&c, 0, &want, 0);
        typed_end(&c);
    }
}

static void running_sums(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(numbers); t++)
        for (int axis = -3; axis < 3; axis++)
            for (unsigned how = 0; how < 4; how++) {
                bool exclusive = how & 1, reverse = how >> 1;
                struct cm_shape shape = kit_shape(3, 3, 4, 5);
                struct typed_around a = typed_around(shape, axis);
                struct typed_case c;
                double at = axis;
                typed_begin(&c, 14);
                struct typed_operand *x = typed_random(&c, "x", numbers[t], shape, 4);
                /* The axis is an input as often as a constant, of either type. */
                typed_values(&c, "axis", how & 1 ? CM_INT64 : CM_INT32,
                             how & 2 ? KIT_SHAPE0() : kit_shape(1, 1), &at)
                    ->constant = axis & 1;
                kit_node(c.model, "CumSum", "x,axis", "y");
                kit_attr_i(c.model, "exclusive", exclusive);
                kit_attr_i(c.model, "reverse", reverse);
                typed_output(&c, "y", numbers[t], shape);
                double *want = typed_room(60);
                for (size_t o = 0; o < a.outer; o++)
                    for (size_t q = 0; q < a.inner; q++) {
                        double sum = 0;
                        for (size_t j = 0; j < a.n; j++) {
                            size_t i = (o * a.n + (reverse ? a.n - 1 - j : j)) * a.inner + q;
                            want[i] = exclusive ? sum : sum + x->v[i];
                            sum += x->v[i];
                        }
                    }
                typed_run(&c);
                typed_check(&c, 0, want, 10);
                free(want);
                typed_end(&c);
            }
}

/* ---- softmax --------------------------------------------------------------------------------- */

static void softmax_reference(const char *op, const double *x, double *y, size_t n, size_t stride)
{
    double max = x[0], sum = 0;
    size_t best = 0;
    for (size_t j = 1; j < n; j++)
        if (x[j * stride] > max) {
            max = x[j * stride];
            best = j;
        }
    for (size_t j = 0; j < n; j++)
        sum += exp(x[j * stride] - max);
    for (size_t j = 0; j < n; j++) {
        double d = x[j * stride] - max;
        y[j * stride] = op[0] == 'H' ? j == best : op[0] == 'S' ? exp(d) / sum : d - log(sum);
    }
}

static void softmaxes(void **state)
{
    static const char *const ops[] = {"Softmax", "LogSoftmax", "Hardmax"};
    (void)state;
    for (int op = 0; op < 3; op++)
        for (int t = 0; t < COUNT(floats); t++)
            for (int axis = -3; axis < 3; axis++)
                for (int coerced = 0; coerced < 2; coerced++) {
                    struct cm_shape shape = kit_shape(3, 3, 4, 6);
                    struct typed_around a = typed_around(shape, axis);
                    if (coerced)
                        a = (struct typed_around){a.outer, a.n * a.inner, 1};
                    struct typed_case c;
                    typed_begin(&c, coerced ? 11 : 13);
                    struct typed_operand *x = typed_random(&c, "x", floats[t], shape, 4);
                    kit_node(c.model, ops[op], "x", "y");
                    kit_attr_i(c.model, "axis", axis);
                    typed_output(&c, "y", floats[t], shape);
                    double *want = typed_room(72);
                    for (size_t o = 0; o < a.outer; o++)
                        for (size_t q = 0; q < a.inner; q++) {
                            size_t at = o * a.n * a.inner + q;
                            softmax_reference(ops[op], x->v + at, want + at, a.n, a.inner);
                        }
                    typed_run(&c);
                    typed_check(&c, 0, want, op == 1 ? 8 : 1);
                    free(want);
                    typed_end(&c);
                }
}

static void softmax_refusals(void **state)
{
    struct typed_case c;
    (void)state;
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_INT32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "Softmax", "x", "y");
    typed_output(&c, "y", CM_INT32, kit_shape(2, 2, 3));
    typed_refused(&c, CM_UNSUPPORTED, "has type INT32");
    typed_begin(&c, 13);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "Hardmax", "x", "y");
    kit_attr_i(c.model, "axis", 2);
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 3));
    typed_refused(&c, CM_INVALID, "axis 2 of 2 dimensions");
}

/* ---- what the data decides ------------------------------------------------------------------- */

/* Axes that are an input: shapes are known in the run only. */
static void late_axes(void **state)
{
    static const double axes[] = {2, -3};
    (void)state;
    for (int t = 0; t < COUNT(numbers); t++)
        for (int keep = 0; keep < 2; keep++) {
            struct typed_case c;
            typed_begin(&c, 18);
            struct typed_operand *x = typed_random(&c, "x", numbers[t], kit_shape(3, 3, 5, 4), 4);
            typed_values(&c, "axes", CM_INT64, kit_shape(1, 2), axes);
            kit_node(c.model, keep ? "ReduceMax" : "ReduceSum", "x,axes", "y");
            kit_attr_i(c.model, "keepdims", keep);
            typed_output(&c, "y", numbers[t], keep ? kit_shape(3, 1, 5, 1) : kit_shape(1, 5));
            double want[5];
            reduce_reference(keep ? MAX : SUM, x, 5, want, 5);
            typed_run(&c);
            typed_check(&c, 0, want, 20);
            typed_end(&c);
        }
}

/* ---- losses ---------------------------------------------------------------------------------- */

struct loss {
    bool softmax, weights, ignores;
    int reduction; /* none, sum, mean */
    enum cm_dtype dtype, labels;
    struct cm_shape shape;
};

static void loss_reference(const struct loss *l, const double *scores, const double *labels,
                           const double *weights, double *y, double *logs)
{
    struct typed_around a = typed_around(l->shape, 1);
    double sum = 0, total = 0;
    for (size_t i = 0; i < a.outer * a.n * a.inner; i++)
        logs[i] = scores[i];
    for (size_t o = 0; o < a.outer && l->softmax; o++)
        for (size_t q = 0; q < a.inner; q++)
            softmax_reference("LogSoftmax", scores + o * a.n * a.inner + q,
                              logs + o * a.n * a.inner + q, a.n, a.inner);
    for (size_t i = 0; i < a.outer * a.inner; i++) {
        int label = (int)labels[i];
        double w = l->ignores && label == 2 ? 0 : weights ? weights[label] : 1;
        double loss =
            w == 0 ? 0 : -w * logs[(i / a.inner * a.n + (size_t)label) * a.inner + i % a.inner];
        sum += loss;
        total += w;
        if (l->reduction == 0)
            y[i] = loss;
    }
    if (l->reduction)
        y[0] = l->reduction == 1 ? sum : sum / total;
}

static void loss_case(const struct loss *l)
{
    static const char *const reduction[] = {"none", "sum", "mean"};
    struct typed_case c;
    struct cm_shape labels = l->shape;
    for (unsigned d = 1; d + 1 < labels.rank; d++)
        labels.dims[d] = labels.dims[d + 1];
    labels.rank--;
    struct cm_shape out = l->reduction ? KIT_SHAPE0() : labels;
    typed_begin(&c, 13);
    double *scores = typed_random(&c, "x", l->dtype, l->shape, 3)->v;
    struct typed_operand *t = typed_random(&c, "t", l->labels, labels, 9);
    for (size_t i = 0; i < t->count; i++)
        t->v[i] = fmod(fabs(t->v[i]), (double)l->shape.dims[1]);
    double *weights = NULL;
    if (l->weights) {
        struct typed_operand *w =
            typed_random(&c, "w", l->dtype, kit_shape(1, (int)l->shape.dims[1]), 1);
        weights = w->v;
        for (size_t i = 0; i < w->count; i++)
            w->v[i] = fabs(w->v[i]) + 0.25;
        typed_round(w);
    }
    kit_node(c.model, l->softmax ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss",
             l->weights ? "x,t,w" : "x,t", l->softmax ? "y,logs" : "y");
    kit_attr_s(c.model, "reduction", reduction[l->reduction]);
    if (l->ignores)
        kit_attr_i(c.model, "ignore_index", 2);
    typed_output(&c, "y", l->dtype, out);
    if (l->softmax && l->reduction != 1)
        typed_output(&c, "logs", l->dtype, l->shape);
    double *want = typed_room(kit_count(out)), *logs = typed_room(kit_count(l->shape));
    loss_reference(l, scores, t->v, weights, want, logs);
    typed_run(&c);
    typed_check(&c, 0, want, l->reduction == 1 ? 60 : 8);
    if (c.n_out > 1)
        typed_check(&c, 1, logs, 8);
    free(want);
    free(logs);
    typed_end(&c);
}

static void losses(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (unsigned how = 0; how < 8; how++)
            for (int reduction = 0; reduction < 3; reduction++) {
                struct loss l = {.softmax = how & 1, .weights = how & 2, .ignores = how & 4};
                l.reduction = reduction;
                l.dtype = floats[t];
                l.labels = (t + reduction) % 2 ? CM_INT32 : CM_INT64;
                l.shape = how & 4 ? kit_shape(4, 2, 5, 3, 2) : kit_shape(2, 6, 5);
                loss_case(&l);
            }
}

/* A label that is no class is found in the run; the worker lives on. */
static void bad_labels(void **state)
{
    static const float x[] = {1, 2, 3};
    (void)state;
    for (int64_t label = -1; label <= 3; label += 4) {
        struct kit_model *m = kit_model(13);
        kit_input(m, "x", CM_FP32, kit_shape(2, 1, 3));
        kit_input(m, "t", CM_INT64, kit_shape(1, 1));
        kit_node(m, "NegativeLogLikelihoodLoss", "x,t", "y");
        kit_output(m, "y", CM_FP32, KIT_SHAPE0());
        struct kit_loaded l;
        const struct cm_shape shapes[] = {kit_shape(2, 1, 3), kit_shape(1, 1)};
        kit_load_model(&l, m, 1, NULL);
        kit_run_refused(&l, shapes, (const void *[]){x, &label}, CM_INVALID,
                        "NegativeLogLikelihoodLoss", "of 3 classes");
        kit_unload(&l);
        kit_free(m);
    }
}

static void loss_refusals(void **state)
{
    struct typed_case c;
    (void)state;
    for (int i = 0; i < 4; i++) {
        static const char *const texts[] = {"do not fit", "reduction must be", "has type FP32",
                                            "operands have types"};
        typed_begin(&c, 13);
        typed_random(&c, "x", CM_FP32, kit_shape(3, 2, 3, 4), 1);
        typed_random(&c, "t", i == 2 ? CM_FP32 : CM_INT64,
                     i == 0 ? kit_shape(2, 2, 3) : kit_shape(2, 2, 4), 1);
        typed_random(&c, "w", i == 3 ? CM_FP64 : CM_FP32, kit_shape(1, 3), 1);
        kit_node(c.model, "SoftmaxCrossEntropyLoss", "x,t,w", "y");
        kit_attr_s(c.model, "reduction", i == 1 ? "median" : "none");
        typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 4));
        typed_refused(&c, i == 2 ? CM_UNSUPPORTED : CM_INVALID, texts[i]);
    }
}

/* ---- global pools ---------------------------------------------------------------------------- */

static void global_pools(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int rank = 3; rank <= 5; rank++)
            for (int op = 0; op < 6; op++) { /* average, maximum, and p of 1 to 4 */
                static const char *const ops[] = {"GlobalAveragePool", "GlobalMaxPool",
                                                  "GlobalLpPool"};
                struct cm_shape shape = kit_shape(rank, 2, 3, 4, 5, 2), out = shape;
                struct typed_case c;
                typed_begin(&c, 13);
                struct typed_operand *x = typed_random(&c, "x", floats[t], shape, 2);
                kit_node(c.model, ops[op < 2 ? op : 2], "x", "y");
                if (op >= 2)
                    kit_attr_i(c.model, "p", op - 1);
                size_t n = 1;
                for (int d = 2; d < rank; d++) {
                    n *= (size_t)shape.dims[d];
                    out.dims[d] = 1;
                }
                typed_output(&c, "y", floats[t], out);
                double want[6];
                for (size_t i = 0; i < 6; i++) {
                    double sum = 0, max = -INFINITY;
                    for (size_t j = 0; j < n; j++) {
                        double v = x->v[i * n + j];
                        max = v > max ? v : max;
                        sum += op < 2 ? v : pow(fabs(v), op - 1);
                    }
                    want[i] = op == 0 ? sum / (double)n : op == 1 ? max : pow(sum, 1.0 / (op - 1));
                }
                typed_run(&c);
                typed_check(&c, 0, want, 20);
                typed_end(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_every_type),
        cmocka_unit_test(reduce_bytes),
        cmocka_unit_test(reduce_integers),
        cmocka_unit_test(reduce_nothing),
        cmocka_unit_test(reduce_much_of_nothing),
        cmocka_unit_test(reduce_no_axes),
        cmocka_unit_test(log_sum_exp_edges),
        cmocka_unit_test(reduce_refusals),
        cmocka_unit_test(positions),
        cmocka_unit_test(positions_of_nan),
        cmocka_unit_test(running_sums),
        cmocka_unit_test(softmaxes),
        cmocka_unit_test(softmax_refusals),
        cmocka_unit_test(losses),
        cmocka_unit_test(bad_labels),
        cmocka_unit_test(late_axes),
        cmocka_unit_test(loss_refusals),
        cmocka_unit_test(global_pools),
    };
    return cmocka_run_group_tests_name("reduce_ops", tests, NULL, NULL);
}
