/* Products of matrices of every element type against plain loops in double: MatMul, Gemm, Einsum,
 * Det. Operands are constants and inputs, transposed, broadcast and empty. */
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
static const enum cm_dtype all_numbers[] = {CM_FP32,  CM_FP64,   CM_FP16,   CM_BF16,
                                            CM_INT8,  CM_INT16,  CM_INT32,  CM_INT64,
                                            CM_UINT8, CM_UINT16, CM_UINT32, CM_UINT64};

/* ---- Einsum, and MatMul as one ----------------------------------------------------------------
 */

enum { LABELS = 128 };

/* Sums over every value of every label: for terms of letters only. */
static void einsum_reference(const char *const *terms, int n, const struct typed_operand *in,
                             const char *out, double *y)
{
    size_t dims[LABELS] = {0}, at[LABELS] = {0};
    char order[LABELS] = {0};
    int n_labels = 0;
    for (int k = 0; k < n; k++)
        for (int d = 0; terms[k][d]; d++) {
            size_t dim = (size_t)in[k].shape.dims[d];
            int label = terms[k][d];
            if (!strchr(order, label))
                order[n_labels++] = (char)label;
            if (dim > dims[label] || dims[label] == 1)
                dims[label] = dim;
        }
    for (int i = 0; i < n_labels; i++)
        if (dims[(int)order[i]] == 0)
            return;
    for (;;) {
        double product = 1;
        size_t to = 0;
        for (int k = 0; k < n; k++) {
            size_t index = 0;
            for (int d = 0; terms[k][d]; d++) {
                size_t dim = (size_t)in[k].shape.dims[d];
                index = index * dim + (dim == 1 ? 0 : at[(int)terms[k][d]]);
            }
            product *= in[k].v[index];
        }
        for (int d = 0; out[d]; d++)
            to = to * dims[(int)out[d]] + at[(int)out[d]];
        y[to] += product;
        int i = 0;
        while (i < n_labels && ++at[(int)order[i]] == dims[(int)order[i]])
            at[(int)order[i++]] = 0;
        if (i == n_labels)
            return;
    }
}

/* letters: the equation with the ellipsis written out, for the reference. dims: of the letters
 * a, b, c ...; a letter with a 1 behind it has one element there. */
struct einsum {
    const char *equation, *letters;
};

static int dim_of(char letter)
{
    static const int dims[] = {3, 4, 2, 5, 3, 2, 4};
    return dims[(letter - 'a') % COUNT(dims)];
}

static void einsum_case(const struct einsum *e, enum cm_dtype dtype)
{
    char text[64], *terms[4] = {NULL}, *out;
    static const char *const names[] = {"p", "q", "r", "s"};
    struct typed_case c;
    int n = 0;
    strcpy(text, e->letters);
    out = strchr(text, '>') + 1;
    *strchr(text, '>') = 0;
    typed_begin(&c, 13);
    char inputs[16] = "";
    for (char *term = strtok(text, ","); term; term = strtok(NULL, ","), n++) {
        struct cm_shape shape = {0};
        char *to = terms[n] = malloc(16);
        for (; *term; term++) {
            *to++ = *term;
            shape.dims[shape.rank++] = term[1] == '1' ? 1 : dim_of(*term);
            term += term[1] == '1';
        }
        *to = 0;
        typed_random(&c, names[n], dtype, shape, dtype == CM_INT8 ? 2 : 3)->constant = n == 1;
        strcat(inputs, n ? "," : "");
        strcat(inputs, names[n]);
    }
    kit_node(c.model, "Einsum", inputs, "y");
    kit_attr_s(c.model, "equation", e->equation);
    struct cm_shape shape = {0};
    for (char *o = out; *o; o++)
        shape.dims[shape.rank++] = dim_of(*o);
    typed_output(&c, "y", dtype, shape);
    double *want = typed_room(kit_count(shape));
    einsum_reference((const char *const *)terms, n, c.in, out, want);
    for (size_t i = 0; i < kit_count(shape) && dtype == CM_INT8; i++)
        want[i] = (double)(int8_t)(int64_t)want[i];
    for (size_t i = 0; i < kit_count(shape) && dtype == CM_UINT8; i++)
        want[i] = (double)(uint8_t)(int64_t)want[i];
    typed_run(&c);
    typed_check(&c, 0, want, n > 2 ? 800 : 100);
    free(want);
    for (int k = 0; k < n; k++)
        free(terms[k]);
    typed_end(&c);
}

static void einsums(void **state)
{
    static const struct einsum cases[] = {
        {"ab,bc->ac", "ab,bc>ac"},
        {"ab,bc", "ab,bc>ac"},
        {"ba,bc->ca", "ba,bc>ca"},
        {"ab,cb->ac", "ab,cb>ac"},
        {"ab->ba", "ab>ba"},
        {"ba", "ba>ab"},
        {"ab->", "ab>"},
        {"ab->b", "ab>b"},
        {"abc->cb", "abc>cb"},
        {"a,b->ab", "a,b>ab"},
        {"a,a->a", "a,a>a"},
        {"a,a", "a,a>"},
        {"aa->a", "aa>a"},
        {"aa", "aa>"},
        {"aba->b", "aba>b"},
        {"abc,acd->abd", "abc,acd>abd"},
        {"...bc,...cd->...bd", "abc,acd>abd"},
        {"...bc,cd->...bd", "eabc,cd>eabd"},
        {"b...,b...->b...", "bac,bac>bac"},
        {"...ab->...ba", "cdab>cdba"},
        {"...b", "acb>acb"},
        {" a b , b c -> a c ", "ab,bc>ac"},
        {"...a,...a->...", "bca,b1ca>bc"},
        {"a...,b...->ab...", "ac1d,bcd>abcd"},
        {"...a,...b->ab", "ca,cb>ab"},
        {"ab,bc,cd->ad", "ab,bc,cd>ad"},
        {"ab,cd,ef->", "ab,cd,ef>"},
        {"ab,ac,ad->bcd", "ab,ac,ad>bcd"},
        {"ab,bc,ca,db->d", "ab,bc,ca,db>d"},
        {"abcd,ebfd->aecf", "abcd,ebfd>aecf"},
        {"abc,b->ac", "abc,b>ac"},
        {"abd,bad->d", "abd,bad>d"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int t = 0; t < COUNT(all_numbers); t++)
            /* Long sums of products leave FP16 and the small integers' ranges. */
            if (strlen(cases[i].letters) < 8 || t < 2 || all_numbers[t] == CM_INT64)
                einsum_case(&cases[i], all_numbers[t]);
}

/* A dimension without elements, summed over and kept. */
static void einsum_of_nothing(void **state)
{
    static const enum cm_dtype types[] = {CM_FP32, CM_FP64, CM_INT32};
    static const double zeros[6] = {0};
    (void)state;
    for (int t = 0; t < COUNT(types); t++)
        for (int kept = 0; kept < 2; kept++) {
            struct typed_case c;
            typed_begin(&c, 13);
            typed_random(&c, "p", types[t], kit_shape(2, 2, kept ? 3 : 0), 1);
            typed_random(&c, "q", types[t], kit_shape(2, kept ? 3 : 0, kept ? 0 : 3), 1);
            kit_node(c.model, "Einsum", "p,q", "y");
            kit_attr_s(c.model, "equation", "ab,bc->ac");
            typed_output(&c, "y", types[t], kit_shape(2, 2, kept ? 0 : 3));
            typed_run(&c);
            typed_check(&c, 0, zeros, 0);
            typed_end(&c);
        }
}

static void einsum_refusals(void **state)
{
    static const struct {
        const char *equation, *text;
        enum cm_err code;
    } cases[] = {
        {"ab,bc->ac,", "goes on after its output", CM_INVALID},
        {"ab->a", "fewer terms", CM_INVALID},
        {"ab,bc,cd->ad", "more terms", CM_INVALID},
        {"ab,ba->ab", "does not fit", CM_INVALID},
        {"abc,bc->ac", "does not fit", CM_INVALID},
        {"a,bc->ac", "does not fit", CM_INVALID},
        {"ab,bc->ad", "output letter that no operand has", CM_INVALID},
        {"ab,bc->aa", "output letter that no operand has, or twice", CM_INVALID},
        {"a.b,bc->ac", "dots that are not one ellipsis", CM_INVALID},
        {"......,bc->c", "dots that are not one ellipsis", CM_INVALID},
        {"a1,bc->ac", "character that is no letter", CM_INVALID},
        {"ab,bc-ac", "stray character", CM_INVALID},
        {"abcdefghi,bc->a", "too many letters", CM_INVALID},
        {"", "fewer terms", CM_INVALID},
    };
    struct typed_case c;
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        typed_begin(&c, 13);
        typed_random(&c, "p", CM_FP32, kit_shape(2, 2, 3), 1);
        typed_random(&c, "q", CM_FP32, kit_shape(2, 3, 4), 1);
        kit_node(c.model, "Einsum", "p,q", "y");
        kit_attr_s(c.model, "equation", cases[i].equation);
        typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 4));
        typed_refused(&c, cases[i].code, cases[i].text);
    }
    typed_begin(&c, 13);
    typed_random(&c, "p", CM_FP32, kit_shape(2, 2, 3), 1);
    typed_random(&c, "q", CM_FP64, kit_shape(2, 3, 4), 1);
    kit_node(c.model, "Einsum", "p,q", "y");
    kit_attr_s(c.model, "equation", "ab,bc->ac");
    typed_output(&c, "y", CM_FP32, kit_shape(2, 2, 4));
    typed_refused(&c, CM_INVALID, "operands have types FP32 and FP64");
}

/* The products that are matrix products have MatMul's bits. */
static void einsum_is_matmul(void **state)
{
    (void)state;
    struct typed_case c;
    typed_begin(&c, 13);
    typed_random(&c, "p", CM_FP32, kit_shape(3, 2, 37, 130), 1);
    typed_random(&c, "q", CM_FP32, kit_shape(3, 2, 130, 53), 1);
    kit_node(c.model, "Einsum", "p,q", "y");
    kit_attr_s(c.model, "equation", "bij,bjk->bik");
    kit_node(c.model, "MatMul", "p,q", "z");
    typed_output(&c, "y", CM_FP32, kit_shape(3, 2, 37, 53));
    typed_output(&c, "z", CM_FP32, kit_shape(3, 2, 37, 53));
    typed_run(&c);
    assert_memory_equal(c.out[0].v, c.out[1].v, c.out[0].count * sizeof(double));
    typed_end(&c);
}

static void matmul_case(enum cm_dtype dtype, struct cm_shape a, struct cm_shape b,
                        const char *terms, bool constant)
{
    char text[32], *second, *out;
    struct cm_shape shape = {0};
    struct typed_case c;
    strcpy(text, terms);
    second = strchr(text, ',');
    *second++ = 0;
    out = strchr(second, '>');
    *out++ = 0;
    typed_begin(&c, 13);
    typed_random(&c, "a", dtype, a, 3);
    typed_random(&c, "b", dtype, b, 3)->constant = constant;
    kit_node(c.model, "MatMul", "a,b", "y");
    for (char *o = out; *o; o++) {
        int64_t dim = 0;
        for (int d = 0; text[d]; d++)
            dim = text[d] == *o && a.dims[d] > dim ? a.dims[d] : dim;
        for (int d = 0; second[d]; d++)
            dim = second[d] == *o && b.dims[d] > dim ? b.dims[d] : dim;
        shape.dims[shape.rank++] = dim;
    }
    typed_output(&c, "y", dtype, shape);
    double *want = typed_room(kit_count(shape));
    const char *const both[] = {text, second};
    einsum_reference(both, 2, c.in, out, want);
    typed_run(&c);
    typed_check(&c, 0, want, 200);
    free(want);
    typed_end(&c);
}

static void matmuls(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(numbers); t++)
        for (int constant = 0; constant < 2; constant++) {
            enum cm_dtype type = numbers[t];
            matmul_case(type, kit_shape(2, 5, 30), kit_shape(2, 30, 70), "mk,kn>mn", constant);
            matmul_case(type, kit_shape(1, 7), kit_shape(2, 7, 3), "k,kn>n", constant);
            matmul_case(type, kit_shape(2, 3, 7), kit_shape(1, 7), "mk,k>m", constant);
            matmul_case(type, kit_shape(1, 7), kit_shape(1, 7), "k,k>", constant);
            matmul_case(type, kit_shape(3, 4, 3, 5), kit_shape(3, 4, 5, 2), "bmk,bkn>bmn",
                        constant);
            matmul_case(type, kit_shape(3, 4, 3, 5), kit_shape(2, 5, 2), "bmk,kn>bmn", constant);
            matmul_case(type, kit_shape(3, 1, 3, 5), kit_shape(4, 2, 3, 5, 2), "bmk,abkn>abmn",
                        constant);
            matmul_case(type, kit_shape(2, 3, 5), kit_shape(3, 4, 5, 2), "mk,bkn>bmn", constant);
            matmul_case(type, kit_shape(2, 3, 0), kit_shape(2, 0, 2), "mk,kn>mn", constant);
        }
}

/* ---- Gemm ------------------------------------------------------------------------------------ */

struct gemm {
    bool trans_a, trans_b, constant;
    int c; /* 0: none, 1: a number, 2: a row, 3: a column, 4: full */
    float alpha, beta;
};

static void gemm_case(const struct gemm *g, enum cm_dtype dtype)
{
    enum { M = 5, N = 51, K = 9 };
    struct typed_case c;
    const struct cm_shape shapes[] = {KIT_SHAPE0(), kit_shape(1, 1), kit_shape(1, N),
                                      kit_shape(2, M, 1), kit_shape(2, M, N)};
    typed_begin(&c, 13);
    const double *a =
        typed_random(&c, "a", dtype, g->trans_a ? kit_shape(2, K, M) : kit_shape(2, M, K), 3)->v;
    struct typed_operand *b =
        typed_random(&c, "b", dtype, g->trans_b ? kit_shape(2, N, K) : kit_shape(2, K, N), 3);
    b->constant = g->constant;
    const double *add = g->c ? typed_random(&c, "c", dtype, shapes[g->c], 3)->v : NULL;
    kit_node(c.model, "Gemm", g->c ? "a,b,c" : "a,b", "y");
    kit_attr_i(c.model, "transA", g->trans_a);
    kit_attr_i(c.model, "transB", g->trans_b);
    kit_attr_f(c.model, "alpha", g->alpha);
    kit_attr_f(c.model, "beta", g->beta);
    typed_output(&c, "y", dtype, kit_shape(2, M, N));
    double *want = typed_room(M * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += a[g->trans_a ? k * M + i : i * K + k] *
                       b->v[g->trans_b ? j * K + k : k * N + j];
            int at = g->c == 2 ? j : g->c == 3 ? i : g->c == 4 ? i * N + j : 0;
            sum = (double)g->alpha * sum + (add ? (double)g->beta * add[at] : 0);
            want[i * N + j] = typed_is_float(dtype) ? sum : trunc(sum);
        }
    typed_run(&c);
    typed_check(&c, 0, want, 100);
    free(want);
    typed_end(&c);
}

static void gemms(void **state)
{
    (void)state;
    for (int t = 0; t < COUNT(numbers); t++)
        for (int i = 0; i < 40; i++) {
            struct gemm g = {.trans_a = i & 1, .trans_b = i >> 1 & 1, .constant = i >> 2 & 1};
            g.c = i % 5;
            g.alpha = i % 3 == 1 ? 0.5f : 1.0f;
            g.beta = i % 4 == 1 ? 2.0f : i % 4 == 2 ? 0.0f : 1.0f;
            gemm_case(&g, numbers[t]);
        }
}

/* Integer products wrap. */
static void products_wrap(void **state)
{
    static const double a[] = {65536, 65536}, b[] = {65536, 32767};
    static const double want[] = {2147418112};
    (void)state;
    struct typed_case c;
    typed_begin(&c, 13);
    typed_values(&c, "a", CM_INT32, kit_shape(2, 1, 2), a);
    typed_values(&c, "b", CM_INT32, kit_shape(2, 2, 1), b);
    kit_node(c.model, "MatMul", "a,b", "y");
    typed_output(&c, "y", CM_INT32, kit_shape(2, 1, 1));
    typed_run(&c);
    typed_check(&c, 0, want, 0);
    typed_end(&c);
}

static void product_refusals(void **state)
{
    struct typed_case c;
    (void)state;
    typed_begin(&c, 13);
    typed_random(&c, "a", CM_INT8, kit_shape(2, 2, 3), 1);
    typed_random(&c, "b", CM_INT8, kit_shape(2, 3, 2), 1);
    kit_node(c.model, "MatMul", "a,b", "y");
    typed_output(&c, "y", CM_INT8, kit_shape(2, 2, 2));
    typed_refused(&c, CM_UNSUPPORTED, "has type INT8");
    for (int gemm = 0; gemm < 2; gemm++) {
        typed_begin(&c, 13);
        typed_random(&c, "a", CM_FP64, kit_shape(2, 2, 3), 1);
        typed_random(&c, "b", CM_FP32, kit_shape(2, 3, 2), 1);
        kit_node(c.model, gemm ? "Gemm" : "MatMul", "a,b", "y");
        typed_output(&c, "y", CM_FP64, kit_shape(2, 2, 2));
        typed_refused(&c, CM_INVALID, "operands have types FP64 and FP32");
        typed_begin(&c, 13);
        typed_random(&c, "a", CM_FP16, kit_shape(2, 2, 3), 1);
        typed_random(&c, "b", CM_FP16, kit_shape(2, 2, 3), 1);
        kit_node(c.model, gemm ? "Gemm" : "MatMul", "a,b", "y");
        typed_output(&c, "y", CM_FP16, kit_shape(2, 2, 3));
        typed_refused(&c, CM_INVALID, "do not fit");
    }
}

/* ---- Det ------------------------------------------------------------------------------------- */

/* By the first row's cofactors. */
static double det_reference(const double *x, int n)
{
    double sum = 0, part[64];
    if (n == 0)
        return 1;
    for (int skip = 0; skip < n; skip++) {
        for (int i = 1; i < n; i++)
            for (int j = 0, to = 0; j < n; j++)
                if (j != skip)
                    part[(i - 1) * (n - 1) + to++] = x[i * n + j];
        sum += (skip % 2 ? -1 : 1) * x[skip] * det_reference(part, n - 1);
    }
    return sum;
}

static void determinants(void **state)
{
    static const enum cm_dtype floats[] = {CM_FP32, CM_FP64, CM_FP16, CM_BF16};
    (void)state;
    for (int t = 0; t < COUNT(floats); t++)
        for (int n = 0; n <= 6; n++)
            for (int heads = 0; heads < 2; heads++) {
                struct typed_case c;
                typed_begin(&c, 11);
                struct typed_operand *x = typed_random(
                    &c, "x", floats[t], heads ? kit_shape(4, 2, 3, n, n) : kit_shape(2, n, n), 2);
                for (int i = 0; heads && i < n; i++)
                    x->v[n + i] = x->v[i]; /* the first matrix is singular from 2 on */
                kit_node(c.model, "Det", "x", "y");
                typed_output(&c, "y", floats[t], heads ? kit_shape(2, 2, 3) : KIT_SHAPE0());
                double want[6];
                for (int i = 0; i < (heads ? 6 : 1); i++)
                    want[i] = det_reference(x->v + i * n * n, n);
                typed_run(&c);
                typed_check(&c, 0, want, 20);
                typed_end(&c);
            }
    struct typed_case c;
    typed_begin(&c, 11);
    typed_random(&c, "x", CM_FP32, kit_shape(2, 2, 3), 1);
    kit_node(c.model, "Det", "x", "y");
    typed_output(&c, "y", CM_FP32, KIT_SHAPE0());
    typed_refused(&c, CM_INVALID, "not made of squares");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(einsums),         cmocka_unit_test(einsum_of_nothing),
        cmocka_unit_test(einsum_refusals), cmocka_unit_test(einsum_is_matmul),
        cmocka_unit_test(matmuls),         cmocka_unit_test(gemms),
        cmocka_unit_test(products_wrap),   cmocka_unit_test(product_refusals),
        cmocka_unit_test(determinants),
    };
    return cmocka_run_group_tests_name("product_ops", tests, NULL, NULL);
}
