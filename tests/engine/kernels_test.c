/* Every kernel of kernels.inc: equal bits on every instruction set this machine has, for every cut
 * of the work, every alignment; equal to the definition; nothing touched outside. Test code. */
#include "tests/engine/kernels_cases.h"

#include "common/check.h"
#include "gpu-worker/cpu/features.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- memory between two pages that nobody may touch ---- */

#define ARENA_BYTES (4u << 20)

struct arena {
    char *base; /* ARENA_BYTES of memory, a forbidden page on either side */
};

static void arena_init(struct arena *a)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, ARENA_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + page, ARENA_BYTES, PROT_READ | PROT_WRITE), 0);
    a->base = p + page;
}

static void arena_fini(struct arena *a)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(a->base - page, ARENA_BYTES + 2 * page);
}

/* n floats: 0: from the first byte; 1: up to the last; 2: a float beyond a 64-byte line (all other
 * offsets are test_every_alignment's). */
static float *arena_place(const struct arena *a, size_t n, unsigned place)
{
    assert_true(n * sizeof(float) + 1024 <= ARENA_BYTES);
    if (place == 1)
        return (float *)(void *)(a->base + ARENA_BYTES) - n;
    return (float *)(void *)a->base + (place == 2 ? 257 : 0);
}

#define PLACES 3

/* All data in all places. Where the address sanitizer watches, kernels are unoptimised and their
 * accesses do not depend on data: each data in one place. */
#ifdef __SANITIZE_ADDRESS__
#define FIRST_PLACE(data) (unsigned)(data)
#define END_PLACE(data)   ((unsigned)(data) + 1)
_Static_assert((int)KC_DATA_COUNT == PLACES, "each data has a place");
#else
#define FIRST_PLACE(data) 0
#define END_PLACE(data)   PLACES
#endif

/* ---- one case ---- */

struct bench {
    struct arena in[3], out, work;
    float *want; /* the scalar kernel's result */
    size_t cases, runs;
    double worst[KC_BINARY + 1]; /* share of the tolerance used, by family */
    bool seen_kernel[256];
};

enum {
#define K(name, arguments) INDEX_##name,
#define KU(name)           INDEX_f32_##name,
#define KB(name)           INDEX_f32_##name,
#include "gpu-worker/cpu/kernels.inc"
    N_KERNELS
};

static void bench_init(struct bench *b)
{
    for (unsigned i = 0; i < 3; i++)
        arena_init(&b->in[i]);
    arena_init(&b->out);
    arena_init(&b->work);
    b->want = malloc(ARENA_BYTES);
    assert_non_null(b->want);
}

static void bench_fini(struct bench *b)
{
    for (unsigned i = 0; i < 3; i++)
        arena_fini(&b->in[i]);
    arena_fini(&b->out);
    arena_fini(&b->work);
    free(b->want);
}

static void guard_fill(float *x, size_t n)
{
    const uint32_t guard = KC_GUARD;
    for (size_t i = 0; i < n; i++)
        memcpy(x + i, &guard, sizeof(guard));
}

/* Everything of the arena outside [y, y + n) near it still holds the guard. */
static void guard_check(const struct kc *c, const struct arena *a, const float *y, size_t n)
{
    const float *low = (const float *)(const void *)a->base;
    const float *high = low + ARENA_BYTES / sizeof(float);
    const uint32_t guard = KC_GUARD;
    for (size_t i = 1; i <= 64; i++) {
        if (y - low >= (ptrdiff_t)i && memcmp(y - i, &guard, 4) != 0)
            fail_msg("%s %s: wrote %zu floats before its output", c->kernel, c->what, i);
        if (high - (y + n) >= (ptrdiff_t)i && memcmp(y + n + i - 1, &guard, 4) != 0)
            fail_msg("%s %s: wrote %zu floats after its output", c->kernel, c->what, i);
    }
}

static void compare_bits(const struct kc *c, const char *whose, const char *data, const float *got,
                         const float *want)
{
    if (memcmp(got, want, c->out * sizeof(float)) == 0)
        return;
    for (size_t i = 0; i < c->out; i++)
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0)
            fail_msg("%s %s, %s data: output %zu is %a on %s, expected %a", c->kernel, c->what,
                     data, i, (double)got[i], whose, (double)want[i]);
}

static void run_one(struct bench *b, const struct kc *c, enum wk_isa isa, const float *const in[3],
                    unsigned place, unsigned parts, float *ret)
{
    float *y = arena_place(&b->out, c->out, place);
    size_t around = 64;
    float *low = place == 0 ? y : y - around;
    guard_fill(low, (size_t)(y - low) + c->out + (place == 1 ? 0 : around));
    float *work = arena_place(&b->work, kc_workspace(c), 0);
    guard_fill(work + kc_workspace(c), 64);
    kc_run(c, cpu_kernels_for(isa), in, y, work, parts);
    guard_check(c, &b->out, y, c->out);
    guard_check(c, &b->work, work, kc_workspace(c));
    memcpy(ret, y, c->out * sizeof(float));
    kc_canonical(ret, c->out);
    b->runs++;
}

static void case_on_all(struct bench *b, const struct kc *c, enum kc_data data)
{
    float *got = malloc((c->out + 1) * sizeof(float));
    const unsigned first_place = FIRST_PLACE(data), end_place = END_PLACE(data);
    for (unsigned place = first_place; place < end_place; place++) {
        const float *in[3];
        for (unsigned i = 0; i < 3; i++) {
            float *x = arena_place(&b->in[i], c->in[i], place);
            kc_fill(data, 7 + i + b->cases * 3, x, c->in[i]);
            in[i] = x;
        }
        for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++) {
            if (!(cpu_isa_mask() & 1u << isa))
                continue;
            unsigned parts = place == 0 ? 1 : place + 1;
            bool first = isa == 0 && place == first_place;
            run_one(b, c, (enum wk_isa)isa, in, place, parts, first ? b->want : got);
            if (!first)
                compare_bits(c, wk_isa_name((enum wk_isa)isa), kc_data_name(data), got, b->want);
        }
        if (place == first_place) {
            guard_fill(got, c->out);
            if (kc_oracle_float(c, in, got)) {
                kc_canonical(got, c->out);
                compare_bits(c, "the definition", kc_data_name(data), got, b->want);
            }
        }
    }
    free(got);
}

/* Against double precision, for plain data: each rounding may add half an ulp of the largest
 * partial result, for which the sum of magnitudes stands. */
static void case_against_double(struct bench *b, const struct kc *c)
{
    double *y = calloc(c->out + 1, sizeof(double)), *size = calloc(c->out + 1, sizeof(double));
    float *abs_in[3];
    const float *in[3];
    for (unsigned i = 0; i < 3; i++) {
        abs_in[i] = malloc((c->in[i] + 1) * sizeof(float));
        kc_fill(KC_NORMAL, 7 + i + b->cases * 3, abs_in[i], c->in[i]);
        in[i] = abs_in[i];
    }
    bool has = kc_oracle_double(c, in, y);
    bool softmax = c->family == KC_AXIS && c->op >= KC_REDUCE_LOG_SUM_EXP;
    bool norm = c->family == KC_LAYER_NORM;
    bool sums = !softmax && !norm && c->family != KC_BINARY;
    for (unsigned i = 0; i < 3 && sums; i++)
        for (size_t j = 0; j < c->in[i]; j++)
            abs_in[i][j] = fabsf(abs_in[i][j]);
    if (has)
        kc_oracle_double(c, in, size);
    for (size_t i = 0; has && i < c->out; i++) {
        uint32_t bits;
        memcpy(&bits, &b->want[i], sizeof(bits));
        if (bits == KC_GUARD || !isfinite(y[i]))
            continue;
        /* Logarithms are of, or taken from, what is below 6 in size; a row is divided by about 1.
         */
        bool moved = norm || (softmax && c->op != KC_SOFTMAX);
        double magnitude = fabs(size[i]) + (moved ? 6.0 : 0.0);
        double bound = ldexp((double)c->terms, -24) * magnitude + ldexp(1, -149);
        double share = fabs((double)b->want[i] - y[i]) / bound;
        if (share > b->worst[c->family])
            b->worst[c->family] = share;
        if (!(share <= 1.0))
            fail_msg("%s %s: output %zu is %g, double says %g: %.0f %% of the tolerance", c->kernel,
                     c->what, i, (double)b->want[i], y[i], share * 100);
    }
    for (unsigned i = 0; i < 3; i++)
        free(abs_in[i]);
    free(size);
    free(y);
}

static unsigned kernel_index(const char *name)
{
    static const char *const names[] = {
#define K(name, arguments) #name,
#define KU(name)           "f32_" #name,
#define KB(name)           "f32_" #name,
#include "gpu-worker/cpu/kernels.inc"
    };
    for (unsigned i = 0; i < CM_COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fail_msg("no kernel %s in kernels.inc", name);
    return 0;
}

static void one_case(void *context, const struct kc *c)
{
    struct bench *b = context;
    b->cases++;
    b->seen_kernel[kernel_index(c->kernel)] = true;
    for (int data = KC_DATA_COUNT - 1; data >= 0; data--) /* normal last: its result is kept */
        case_on_all(b, c, (enum kc_data)data);
    case_against_double(b, c);
}

/* ---- alignments ---- */

enum { ALIGNMENTS = 16, ALIGNED_CASES = 4 };

struct aligned {
    struct bench *b;
    unsigned cases_of[256]; /* by kernel, so far */
    size_t runs;
};

/* n floats at a distance of `offset` floats from a 64-byte line. */
static float *arena_aligned(const struct arena *a, size_t offset)
{
    return (float *)(void *)a->base + 256 + offset;
}

/* Every operand at an offset of its own; all of them take all of 0..15 as `first` does. */
static void run_aligned(struct bench *b, const struct kc *c, const struct cpu_kernels *k,
                        unsigned first, float *ret)
{
    const float *in[3];
    for (unsigned i = 0; i < 3; i++) {
        float *x = arena_aligned(&b->in[i], (first * (2 * i + 1) + i) % ALIGNMENTS);
        kc_fill(KC_SPECIAL, 31 + i, x, c->in[i]);
        in[i] = x;
    }
    float *y = arena_aligned(&b->out, (first * 5 + 3) % ALIGNMENTS);
    float *work = arena_place(&b->work, kc_workspace(c), 0);
    guard_fill(y - 64, c->out + 128);
    kc_run(c, k, in, y, work, 1);
    guard_check(c, &b->out, y, c->out);
    memcpy(ret, y, c->out * sizeof(float));
    kc_canonical(ret, c->out);
}

/* The first cases of each kernel that have whole vectors and a rest. */
static void aligned_case(void *context, const struct kc *c)
{
    struct aligned *a = context;
    unsigned *count = &a->cases_of[kernel_index(c->kernel)];
    if (c->out < 3 * K_LANES || c->out > 20000 || *count == ALIGNED_CASES)
        return;
    ++*count;
    float *got = malloc(c->out * sizeof(float));
    bool first = true;
    for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++)
        for (unsigned offset = 0; cpu_isa_mask() >> isa & 1 && offset < ALIGNMENTS; offset++) {
            run_aligned(a->b, c, cpu_kernels_for((enum wk_isa)isa), offset,
                        first ? a->b->want : got);
            if (!first)
                compare_bits(c, wk_isa_name((enum wk_isa)isa), "aligned", got, a->b->want);
            first = false;
            a->runs++;
        }
    free(got);
}

static void test_every_alignment(void **state)
{
    (void)state;
    static struct bench b;
    struct aligned a = {.b = &b};
    bench_init(&b);
    kc_each(false, aligned_case, &a);
    for (unsigned i = 0; i < N_KERNELS; i++)
        if (a.cases_of[i] == 0)
            fail_msg("kernel %u of kernels.inc has no case of more than a vector", i);
    printf("%zu runs at all offsets\n", a.runs);
    bench_fini(&b);
}

static void test_every_case(void **state)
{
    (void)state;
    static struct bench b;
    static const char *const families[] = {"gemm",        "conv", "dwconv",     "pool",  "axis",
                                           "scale_shift", "cell", "layer_norm", "unary", "binary"};
    bench_init(&b);
    kc_each(false, one_case, &b);
    for (unsigned i = 0; i < N_KERNELS; i++)
        if (!b.seen_kernel[i])
            fail_msg("kernel %u of kernels.inc has no case", i);
    printf("%zu cases, %zu runs; instruction sets 0x%x\n", b.cases, b.runs, cpu_isa_mask());
    for (unsigned i = 0; i < CM_COUNT_OF(families); i++)
        if (b.worst[i] > 0)
            printf("%-12s %5.1f %% of the tolerance against double\n", families[i],
                   b.worst[i] * 100);
    bench_fini(&b);
}

/* A value depends neither on its row, nor on its column, nor on what stands around it. */
static void test_position_independence(void **state)
{
    (void)state;
    enum { M = 21, N = 115, KK = 40 };
    static float a[M * KK], b[KK * N], c[M * N], a2[M * KK], b2[KK * N], c2[M * N];
    static float packed[KK * 128];
    kc_fill(KC_SPECIAL, 1, a, M * KK);
    kc_fill(KC_NORMAL, 2, b, KK * N);
    for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++) {
        if (!(cpu_isa_mask() & 1u << isa))
            continue;
        struct k_gemm g = {.m = M, .n = N, .k = KK, .a = a, .lda = KK, .c = c, .ldc = N};
        k_f32_pack_b(b, N, 1, KK, N, 0, k_panels(N), packed);
        g.b = packed;
        cpu_kernels_for((enum wk_isa)isa)->f32_gemm(&g, 0, M, 0, k_panels(N));
        for (size_t shift = 1; shift < 50; shift += 6) {
            for (size_t i = 0; i < M; i++)
                memcpy(a2 + (i + shift) % M * KK, a + i * KK, sizeof(float) * KK);
            for (size_t k = 0; k < KK; k++)
                for (size_t j = 0; j < N; j++)
                    b2[k * N + (j + shift) % N] = b[k * N + j];
            k_f32_pack_b(b2, N, 1, KK, N, 0, k_panels(N), packed);
            g.a = a2;
            g.c = c2;
            cpu_kernels_for((enum wk_isa)isa)->f32_gemm(&g, 0, M, 0, k_panels(N));
            kc_canonical(c, M * N);
            kc_canonical(c2, M * N);
            for (size_t i = 0; i < M; i++)
                for (size_t j = 0; j < N; j++)
                    assert_memory_equal(&c[i * N + j], &c2[(i + shift) % M * N + (j + shift) % N],
                                        sizeof(float));
        }
    }
}

/* Packing a transposed B gives the same panels; ragged columns are zero. */
static void test_pack(void **state)
{
    (void)state;
    enum { K1 = 7, N1 = 70 };
    float b[K1 * N1], bt[N1 * K1], p1[K1 * 80], p2[K1 * 80];
    kc_fill(KC_NORMAL, 3, b, K1 * N1);
    for (size_t k = 0; k < K1; k++)
        for (size_t j = 0; j < N1; j++)
            bt[j * K1 + k] = b[k * N1 + j];
    assert_int_equal(k_packed_floats(K1, N1), K1 * 80);
    k_f32_pack_b(b, N1, 1, K1, N1, 0, 2, p1);
    k_f32_pack_b(bt, 1, K1, K1, N1, 1, 2, p2);
    k_f32_pack_b(bt, 1, K1, K1, N1, 0, 1, p2);
    assert_memory_equal(p1, p2, sizeof(p1));
    for (size_t k = 0; k < K1; k++)
        for (size_t j = 0; j < 80; j++) {
            float value = j < 48 ? p1[k * 48 + j] : p1[48 * K1 + k * 32 + (j - 48)];
            assert_true(value == (j < N1 ? b[k * N1 + j] : 0.0f));
        }
}

static void test_bn_fold(void **state)
{
    (void)state;
    enum { C = 50 };
    float gamma[C], beta[C], mean[C], var[C], scale[C], shift[C];
    kc_fill(KC_NORMAL, 4, gamma, C);
    kc_fill(KC_NORMAL, 5, beta, C);
    kc_fill(KC_NORMAL, 6, mean, C);
    kc_fill(KC_NORMAL, 7, var, C);
    for (unsigned i = 0; i < C; i++)
        var[i] = fabsf(var[i]);
    k_f32_bn_fold(gamma, beta, mean, var, 1e-5f, C, scale, shift);
    for (unsigned i = 0; i < C; i++) {
        double s = gamma[i] / sqrt((double)var[i] + (double)1e-5f);
        assert_true(scale[i] == (float)s);
        double at_mean = (double)mean[i] * scale[i] + (double)shift[i];
        assert_true(fabs(at_mean - (double)beta[i]) <= ldexp(fabs((double)shift[i]) + 1e-30, -24));
    }
}

/* ---- epilogues: a fused chain equals the operators one after the other ---- */

#define FUSED_MAX 300000

struct fused {
    const struct cpu_kernels *k;
    struct k_epilogue e;
    float residual[FUSED_MAX], scale[512], shift[512];
    float plain[FUSED_MAX], y[FUSED_MAX];
    size_t cases;
};

static void run_binary(const struct fused *f, const struct k_stage *s, float *y, size_t all_rows,
                       size_t rows, size_t columns)
{
    for (size_t i = 0; i < all_rows * columns; i++) {
        size_t row = i / columns % rows, column = i % columns;
        size_t at = s->spread == K_EACH ? i : s->spread == K_ROW ? row : column;
        const float *operand = &s->operand[s->spread == K_ONE ? 0 : at];
        if (s->reversed)
            f->k->binary[s->op](operand, 1, y + i, 1, y + i, 1);
        else
            f->k->binary[s->op](y + i, 1, operand, 1, y + i, 1);
    }
}

/* The stages as operators of their own over the whole output of rows x columns (by channel). */
static void run_stages(const struct fused *f, float *y, size_t batch, size_t rows, size_t columns)
{
    size_t n = batch * rows * columns;
    for (unsigned i = 0; i < f->e.n_stages; i++) {
        const struct k_stage *s = &f->e.stages[i];
        struct k_scale_shift c = {rows, columns, y, s->scale, s->shift, y};
        if (s->kind == K_STAGE_UNARY)
            f->k->unary[s->op](y, y, n, &s->params);
        else if (s->kind == K_STAGE_BINARY)
            run_binary(f, s, y, batch * rows, rows, columns);
        else
            f->k->f32_scale_shift(&c, 0, batch * rows);
    }
}

static void fused_case(void *context, const struct kc *original)
{
    struct fused *f = context;
    struct kc c = *original;
    size_t batch = 1, rows = 0;
    f->e.stages[5].spread = K_ONE;
    if (c.family == KC_GEMM && c.u.gemm.ldc == c.u.gemm.n) {
        rows = c.u.gemm.m;
        if (f->cases % 2 &&
            c.u.gemm.n + 3 <= CM_COUNT_OF(f->shift)) /* only products have columns */
            f->e.stages[5].spread = K_COLUMN;
        c.u.gemm.epilogue = &f->e;
    } else if (c.family == KC_CONV || c.family == KC_DWCONV) {
        batch = c.u.conv.batch;
        rows = c.u.conv.groups * c.u.conv.oc;
        c.u.conv.epilogue = &f->e;
    }
    if (rows == 0 || c.out == 0)
        return;
    assert_true(c.out <= FUSED_MAX && rows <= CM_COUNT_OF(f->scale));
    float *in[3], *work = aligned_alloc(64, kc_workspace(&c) * sizeof(float) / 64 * 64 + 64);
    for (unsigned i = 0; i < 3; i++) {
        in[i] = malloc((c.in[i] + 1) * sizeof(float));
        kc_fill(f->cases % 2 ? KC_NORMAL : KC_SPECIAL, i + f->cases, in[i], c.in[i]);
    }
    kc_run(original, f->k, (const float *const *)in, f->plain, work, 1);
    run_stages(f, f->plain, batch, rows, c.out / batch / rows);
    kc_run(&c, f->k, (const float *const *)in, f->y, work, 3);
    kc_canonical(f->plain, c.out);
    kc_canonical(f->y, c.out);
    compare_bits(&c, "the fused chain", "", f->y, f->plain);
    for (unsigned i = 0; i < 3; i++)
        free(in[i]);
    free(work);
    f->cases++;
}

static void test_epilogue(void **state)
{
    (void)state;
    static struct fused f;
    kc_fill(KC_NORMAL, 11, f.residual, FUSED_MAX);
    kc_fill(KC_NORMAL, 12, f.scale, CM_COUNT_OF(f.scale));
    kc_fill(KC_NORMAL, 13, f.shift, CM_COUNT_OF(f.shift));
    f.e.n_stages = 6;
    f.e.stages[0] =
        (struct k_stage){.kind = K_STAGE_SCALE_SHIFT, .scale = f.scale, .shift = f.shift};
    f.e.stages[1] = (struct k_stage){.kind = K_STAGE_UNARY, .op = K_UNARY_hard_swish};
    f.e.stages[2] =
        (struct k_stage){.kind = K_STAGE_BINARY, .op = K_BINARY_add, .operand = f.residual};
    f.e.stages[3] =
        (struct k_stage){.kind = K_STAGE_UNARY, .op = K_UNARY_clip, .params = {-1.0f, 6.0f}};
    f.e.stages[4] = (struct k_stage){.kind = K_STAGE_BINARY,
                                     .op = K_BINARY_sub,
                                     .spread = K_ROW,
                                     .reversed = true,
                                     .operand = f.scale};
    f.e.stages[5] = (struct k_stage){
        .kind = K_STAGE_BINARY, .op = K_BINARY_div, .spread = K_ONE, .operand = f.shift + 3};
    for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++) {
        if (!(cpu_isa_mask() & 1u << isa))
            continue;
        f.k = cpu_kernels_for((enum wk_isa)isa);
        kc_each(isa == 0, fused_case, &f);
    }
    printf("%zu fused cases\n", f.cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case),
        cmocka_unit_test(test_every_alignment),
        cmocka_unit_test(test_position_independence),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_bn_fold),
        cmocka_unit_test(test_epilogue),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
