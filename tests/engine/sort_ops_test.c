/* What ranks, of every element type, against loops in double: TopK and Unique, with ties, NaN, k
 * and sizes that only the run knows. */
#include "tests/engine/typed_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(*(array))))

static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};
static const enum cm_dtype all_numbers[] = {CM_FP32,  CM_FP64,   CM_FP16,   CM_BF16,
                                            CM_INT8,  CM_INT16,  CM_INT32,  CM_INT64,
                                            CM_UINT8, CM_UINT16, CM_UINT32, CM_UINT64};

/* ---- TopK ------------------------------------------------------------------------------------ */

static bool ranks_before(const double *x, size_t stride, size_t i, size_t j, bool largest)
{
    double a = x[i * stride], b = x[j * stride];
    if (a != a || b != b)
        return a != a && b != b ? i < j : largest ? a != a : b != b;
    return a == b ? i < j : largest ? a > b : a < b;
}

static void top_k_reference(const double *x, size_t n, size_t stride, size_t k, bool largest,
                            double *values, double *indices)
{
    for (size_t i = 0; i < n; i++) {
        size_t rank = 0;
        for (size_t j = 0; j < n; j++)
            rank += j != i && ranks_before(x, stride, j, i, largest);
        if (rank < k) {
            values[rank * stride] = x[i * stride];
            indices[rank * stride] = (double)i;
        }
    }
}

static void top_k_case(int opset, enum cm_dtype dtype, int axis, int k, bool largest, bool nan)
{
    struct typed_case c;
    struct cm_shape shape = kit_shape(3, 4, 7, 5), out = shape;
    struct typed_around a = typed_around(shape, axis);
    typed_begin(&c, opset);
    struct typed_operand *x = typed_random(&c, "x", dtype, shape, 6);
    for (size_t i = 0; i < x->count; i++)
        x->v[i] = nan && i % 11 == 3 ? NAN : rint(x->v[i]);
    out.dims[(axis + 3) % 3] = k;
    kit_node(c.model, "TopK", opset < 10 ? "x" : "x,k", "values,indices");
    kit_attr_i(c.model, "axis", axis);
    if (opset < 10)
        kit_attr_i(c.model, "k", k);
    else
        kit_ints(c.model, "k", 1, k);
    if (opset >= 11) {
        kit_attr_i(c.model, "largest", largest);
        kit_attr_i(c.model, "sorted", k % 2);
    }
    typed_output(&c, "values", dtype, out);
    typed_output(&c, "indices", CM_INT64, out);
    double *values = typed_room(kit_count(out)), *indices = typed_room(kit_count(out));
    for (size_t o = 0; o < a.outer; o++)
        for (size_t q = 0; q < a.inner; q++) {
            size_t to = o * (size_t)k * a.inner + q;
            top_k_reference(x->v + o * a.n * a.inner + q, a.n, a.inner, (size_t)k, largest,
                            values + to, indices + to);
        }
    typed_run(&c);
    typed_check(&c, 0, values, 0);
    typed_check(&c, 1, indices, 0);
    free(values);
    free(indices);
    typed_end(&c);
}

static void top_ks(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(all_numbers); t++)
        for (int axis = -3; axis < 3; axis++)
            for (int k = 0; k <= 4; k++)
                top_k_case(11, all_numbers[t], axis, k, (t + k) % 2, false);
    for (int largest = 0; largest < 2; largest++)
        for (int t = 0; t < COUNT(floats); t++)
            top_k_case(11, floats[t], 1, 7, largest, true);
    top_k_case(9, CM_FP32, -1, 3, true, false);
    top_k_case(10, CM_FP64, 0, 2, true, false);
}

static void top_k_refusals(void **state)
{
    static const struct {
        int opset, k, axis;
        const char *text;
    } cases[] = {{11, 4, -1, "k is 4, axis 1 has 3 elements"},
                 {11, -1, -1, "k is -1"},
                 {11, 1, 2, "axis 2 of 2 dimensions"},
                 {9, 4, 1, "k is 4"}};
    struct typed_case c;
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        typed_begin(&c, cases[i].opset);
        typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
        kit_node(c.model, "TopK", cases[i].opset < 10 ? "x" : "x,k", "y,i");
        kit_attr_i(c.model, "axis", cases[i].axis);
        if (cases[i].opset < 10)
            kit_attr_i(c.model, "k", cases[i].k);
        else
            kit_ints(c.model, "k", 1, cases[i].k);
        typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 3));
        typed_refused(&c, CM_INVALID, cases[i].text);
    }
    typed_begin(&c, 9);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "TopK", "x", "y,i");
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 3));
    typed_refused(&c, CM_INVALID, "attribute k is missing");
}

/* k that is an input: shapes are known in the run only. */
static void late_k(void **state)
{
    static const double k = 2;
    (void)state;
    for (int t = 0; t < COUNT(all_numbers); t++) {
        double values[10], indices[10];
        struct typed_case c;
        typed_begin(&c, 11);
        struct typed_operand *x = typed_random(&c, "x", all_numbers[t], kit_shape(2, 5, 7), 4);
        typed_values(&c, "k", CM_INT64, kit_shape(1, 1), &k);
        kit_node(c.model, "TopK", "x,k", "values,indices");
        typed_output(&c, "values", all_numbers[t], kit_shape(2, 5, 2));
        typed_output(&c, "indices", CM_INT64, kit_shape(2, 5, 2));
        for (int i = 0; i < 5; i++)
            top_k_reference(x->v + 7 * i, 7, 1, 2, true, values + 2 * i, indices + 2 * i);
        typed_run(&c);
        typed_check(&c, 0, values, 0);
        typed_check(&c, 1, indices, 0);
        typed_end(&c);
    }
}

/* ---- Unique ---------------------------------------------------------------------------------- */

/* Below 0, 0, above 0; NaN is above numbers. */
static int order_of(const double *x, struct typed_around a, size_t i, size_t j)
{
    for (size_t o = 0; o < a.outer; o++)
        for (size_t q = 0; q < a.inner; q++) {
            double p = x[(o * a.n + i) * a.inner + q], r = x[(o * a.n + j) * a.inner + q];
            if (p != p || r != r) {
                if ((p != p) != (r != r))
                    return p != p ? 1 : -1;
            } else if (p != r) {
                return p > r ? 1 : -1;
            }
        }
    return 0;
}

struct unique {
    double *y, *first, *group, *size;
    size_t count;
};

static struct unique unique_reference(const double *x, struct typed_around a, bool sorted)
{
    struct unique u = {typed_room(a.outer * a.n * a.inner), typed_room(a.n), typed_room(a.n),
                       typed_room(a.n), 0};
    size_t *heads = calloc(a.n + 1, sizeof *heads);
    assert_non_null(heads);
    for (size_t j = 0; j < a.n; j++) {
        size_t k = 0, at = 0;
        while (k < u.count && order_of(x, a, heads[k], j) != 0)
            k++;
        if (k < u.count)
            continue;
        at = u.count;
        for (; sorted && at > 0 && order_of(x, a, heads[at - 1], j) > 0; at--)
            heads[at] = heads[at - 1];
        heads[at] = j;
        u.count++;
    }
    for (size_t k = 0; k < u.count; k++) {
        u.first[k] = (double)heads[k];
        for (size_t j = 0; j < a.n; j++)
            if (order_of(x, a, heads[k], j) == 0) {
                u.group[j] = (double)k;
                u.size[k]++;
            }
        for (size_t o = 0; o < a.outer; o++)
            for (size_t q = 0; q < a.inner; q++)
                u.y[(o * u.count + k) * a.inner + q] = x[(o * a.n + heads[k]) * a.inner + q];
    }
    free(heads);
    return u;
}

static void unique_case(enum cm_dtype dtype, int axis, bool sorted, bool nan)
{
    struct cm_shape shape = kit_shape(3, 2, 6, 2), y = kit_shape(1, 0);
    struct typed_around a = {1, 24, 1};
    struct typed_case c;
    typed_begin(&c, 13);
    struct typed_operand *x = typed_random(&c, "x", dtype, shape, axis == 3 ? 4 : 1.6);
    for (size_t i = 0; i < x->count; i++)
        x->v[i] = nan && i % 5 == 2 ? NAN : rint(x->v[i]);
    typed_round(x);
    kit_node(c.model, "Unique", "x", "y,first,group,size");
    if (axis < 3) {
        kit_attr_i(c.model, "axis", axis);
        a = typed_around(shape, axis);
        y = shape;
    }
    kit_attr_i(c.model, "sorted", sorted);
    struct unique u = unique_reference(x->v, a, sorted);
    y.dims[axis < 3 ? (axis + 3) % 3 : 0] = (int64_t)u.count;
    typed_output(&c, "y", dtype, y);
    typed_output(&c, "first", CM_INT64, kit_shape(1, (int)u.count));
    typed_output(&c, "group", CM_INT64, kit_shape(1, (int)a.n));
    typed_output(&c, "size", CM_INT64, kit_shape(1, (int)u.count));
    typed_run(&c);
    typed_check(&c, 0, u.y, 0);
    typed_check(&c, 1, u.first, 0);
    typed_check(&c, 2, u.group, 0);
    typed_check(&c, 3, u.size, 0);
    free(u.y);
    free(u.first);
    free(u.group);
    free(u.size);
    typed_end(&c);
}

static void uniques(void **state)
{
    (void)state;
    for (int t = 0; t <= COUNT(all_numbers); t++)
        for (int axis = -2; axis <= 3; axis++) /* 3: none */
            for (int sorted = 0; sorted < 2; sorted++)
                unique_case(t == COUNT(all_numbers) ? CM_BOOL : all_numbers[t], axis, sorted,
                            false);
    for (int t = 0; t < COUNT(floats); t++)
        for (int axis = 1; axis <= 3; axis += 2)
            for (int sorted = 0; sorted < 2; sorted++)
                unique_case(floats[t], axis, sorted, true);
}

static void unique_edges(void **state)
{
    struct typed_case c;
    (void)state;
    typed_begin(&c, 11);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 0, 3), 1);
    kit_node(c.model, "Unique", "x", "y");
    typed_output(&c, "y", CM_FP32, kit_shape(1, 0));
    typed_run(&c);
    typed_end(&c);
    typed_begin(&c, 11);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "Unique", "x", "y");
    kit_attr_i(c.model, "axis", 2);
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 3));
    typed_refused(&c, CM_INVALID, "axis 2 of 2 dimensions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_ks),  cmocka_unit_test(top_k_refusals), cmocka_unit_test(late_k),
        cmocka_unit_test(uniques), cmocka_unit_test(unique_edges),
    };
    return cmocka_run_group_tests_name("sort_ops", tests, NULL, NULL);
}
