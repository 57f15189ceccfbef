/* f32 GEMM: register tiles of gemm_rows x up to 48 columns over packed or plain B.
 *
 * Compiled once per instruction set; runs on the caller's thread. Loop order: block of MC rows,
 * panel, block of KC k, tile of rows. So packed B is read linearly, the rows of A in a block stay
 * in L2 across panels, and where k exceeds KC the accumulators are parked in C: stored and loaded
 * again, which changes no bit. Only the tile's shape differs between instruction sets. */
#include "gpu-worker/cpu/gemm.h"

#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/kernels.h"

#include "gpu-worker/cpu/epilogue.h"

/* Accumulators plus a column of B plus one broadcast fit the register file: 8x48 is 24 + 3 + 1 of
 * 32 zmm, 6x16 is 12 + 2 + 1 of 16 ymm. */
#if defined(K_AVX512)
#define MR 8
#define NV 3
#elif defined(K_AVX2)
#define MR 6
#define NV 1
#else
#define MR 4
#define NV 1
#endif

struct tile {
    const float *a, *b, *init;
    float *c;
    size_t lda, ldb, ldc, init_rs, init_cs, k;
    unsigned tail;   /* columns of the last vector, 1..16 */
    const float *b4; /* of a wide tile: B of its fourth vector */
    size_t ldb4;
    size_t a_mask;     /* A is fetched ahead where (k & mask) is 0 */
    const float *next; /* the next block of B, and lines of it to fetch for each k */
    unsigned lines;
};

/* Fetching ahead into the second-level cache. A that few columns share comes straight from memory:
 * while a tile runs, the next tile's rows are fetched, a line of each at a time. B that few rows
 * share does too: the first tiles of a block of k fetch the next block, line by line. */
#define LINE      (64 / sizeof(float))
#define A_SETTLED SIZE_MAX

K_INLINE void fetch_rows(const float *a, size_t lda, const unsigned R)
{
    K_UNROLL(8)
    for (unsigned r = 0; r < R; r++)
        __builtin_prefetch(a + (R + r) * lda, 0, 2);
}

K_INLINE void fetch_lines(const float *b, unsigned lines)
{
    if (lines > 0)
        __builtin_prefetch(b, 0, 2);
    if (lines > 1)
        __builtin_prefetch(b + LINE, 0, 2);
    if (lines > 2)
        __builtin_prefetch(b + 2 * LINE, 0, 2);
}

/* R, V and plain are constants after inlining; the accumulators are a fixed array, because a
 * variable-length one would live in memory. plain: B has no padding, so the last vector is loaded
 * with care (only used with V == 1). */
K_INLINE void tile_run(const struct tile *t, const unsigned R, const unsigned V, const bool plain)
{
    v c[8][3];
    K_UNROLL(8)
    for (unsigned r = 0; r < R; r++) {
        K_UNROLL(3)
        for (unsigned j = 0; j < V; j++) {
            const float *init = t->init + r * t->init_rs;
            if (t->init == NULL)
                c[r][j] = v_zero();
            else if (t->init_cs == 0)
                c[r][j] = v_set(*init);
            else
                c[r][j] = v_loadt(init + j * VL, j + 1 == V ? t->tail : VL);
        }
    }
    const float *a = t->a, *b = t->b, *next = t->next;
    size_t lda = t->lda, ldb = t->ldb, a_mask = t->a_mask;
    unsigned lines = t->lines;
    for (size_t k = t->k; k > 0; k--) {
        if ((k & a_mask) == 0)
            fetch_rows(a, lda, R);
        if (lines > 0) {
            fetch_lines(next, lines);
            next += K_PANEL;
        }
        v x[3];
        K_UNROLL(3)
        for (unsigned j = 0; j < V; j++)
            x[j] = plain ? v_loadn(b, t->tail) : v_load(b + j * VL);
        K_UNROLL(8)
        for (unsigned r = 0; r < R; r++) {
            v w = v_set(a[r * lda]);
            K_UNROLL(3)
            for (unsigned j = 0; j < V; j++)
                c[r][j] = v_fma(w, x[j], c[r][j]);
        }
        a++;
        b += ldb;
    }
    K_UNROLL(8)
    for (unsigned r = 0; r < R; r++) {
        K_UNROLL(3)
        for (unsigned j = 0; j < V; j++)
            v_storet(t->c + r * t->ldc + j * VL, c[r][j], j + 1 == V ? t->tail : VL);
    }
}

/* Every tile as a function: rows 1..8, vectors 1..NV, and the plain ragged vector. (AVX2 and scalar
 * never use the rows above MR.) */
#define TILE(r, nv)                                   \
    static void tile_##r##_##nv(const struct tile *t) \
    {                                                 \
        tile_run(t, r, nv < 4 ? nv : 1, nv == 4);     \
    }
#define TILES(nv) \
    TILE(1, nv)   \
    TILE(2, nv)   \
    TILE(3, nv)   \
    TILE(4, nv)   \
    TILE(5, nv)   \
    TILE(6, nv)   \
    TILE(7, nv)   \
    TILE(8, nv)
#define ROWS(nv)                                                                                   \
    {                                                                                              \
        tile_1_##nv, tile_2_##nv, tile_3_##nv, tile_4_##nv, tile_5_##nv, tile_6_##nv, tile_7_##nv, \
            tile_8_##nv                                                                            \
    }

typedef void tile_fn(const struct tile *t);

TILES(1)
TILES(4)
static tile_fn *const tiles_plain[8] = ROWS(4);
#if NV == 3
TILES(2)
TILES(3)
static tile_fn *const tiles[NV][8] = {ROWS(1), ROWS(2), ROWS(3)};
#else
static tile_fn *const tiles[NV][8] = {ROWS(1)};
#endif

/* All row tiles, of at most `most` rows, of a block over one group of nv vectors. Rows are spread
 * evenly: 49 rows are seven tiles of seven, not six of eight and one of one. */
K_INLINE void rows_run(struct tile t, size_t rows, const size_t most, tile_fn *const *fns)
{
    size_t left = (rows + most - 1) / most;
    unsigned lines = t.lines ? K_PANEL / LINE : 0; /* to be fetched by the tiles that are left */
    for (; rows > 0; left--) {
        size_t r = (rows + left - 1) / left;
        t.lines = left >= lines ? lines > 0 : left == 1 ? lines : 2;
        fns[r - 1](&t);
        t.next += t.lines * LINE;
        lines -= t.lines;
        rows -= r;
        t.a += r * t.lda;
        t.c += r * t.ldc;
        if (t.init)
            t.init += r * t.init_rs;
    }
}

/* One panel of cols columns, one block of k. t.b and t.c are at the panel's first column. */
static void panel_run(struct tile t, size_t rows, size_t cols, bool packed)
{
    size_t j = 0;
    while (j < cols) {
        size_t left = cols - j;
        size_t vectors = packed ? (left + VL - 1) / VL : left / VL;
        bool plain_tail = vectors == 0;
        size_t nv = plain_tail ? 1 : vectors < NV ? vectors : NV;
        struct tile s = t;
        s.b += j;
        s.c += j;
        if (s.init)
            s.init += j * t.init_cs;
        size_t width = nv * VL;
        s.tail = (unsigned)(left < width ? left - (nv - 1) * VL : VL);
        rows_run(s, rows, MR, plain_tail ? tiles_plain : tiles[nv - 1]);
        j += width;
    }
}

/* ---- wide tiles: a full panel and a last one of a single vector ----
 *
 * A tile of one vector is bound by loads: it takes two thirds of a full panel's time. Together with
 * the panel before it is a third more than that: 24 accumulators, 4 of B and a broadcast. */
#if NV == 3
#define WIDE_MR 6

K_INLINE void wide_run(const struct tile *t, const unsigned R, const bool masked)
{
    v c[WIDE_MR][4];
    K_UNROLL(6)
    for (unsigned r = 0; r < R; r++) {
        const float *init = t->init + r * t->init_rs;
        K_UNROLL(4)
        for (unsigned j = 0; j < 4; j++) {
            if (t->init == NULL)
                c[r][j] = v_zero();
            else if (t->init_cs == 0)
                c[r][j] = v_set(*init);
            else
                c[r][j] = v_loadt(init + j * VL, j == 3 ? t->tail : VL);
        }
    }
    const float *a = t->a, *b = t->b, *b4 = t->b4;
    size_t lda = t->lda, ldb = t->ldb, ldb4 = t->ldb4, a_mask = t->a_mask;
    for (size_t k = t->k; k > 0; k--) {
        if ((k & a_mask) == 0)
            fetch_rows(a, lda, R);
        v x0 = v_load(b), x1 = v_load(b + VL), x2 = v_load(b + 2 * VL);
        v x3 = masked ? v_loadn(b4, t->tail) : v_load(b4);
        K_UNROLL(6)
        for (unsigned r = 0; r < R; r++) {
            v w = v_set(a[r * lda]);
            c[r][0] = v_fma(w, x0, c[r][0]);
            c[r][1] = v_fma(w, x1, c[r][1]);
            c[r][2] = v_fma(w, x2, c[r][2]);
            c[r][3] = v_fma(w, x3, c[r][3]);
        }
        a++;
        b += ldb;
        b4 += ldb4;
    }
    K_UNROLL(6)
    for (unsigned r = 0; r < R; r++) {
        K_UNROLL(4)
        for (unsigned j = 0; j < 4; j++)
            v_storet(t->c + r * t->ldc + j * VL, c[r][j], j == 3 ? t->tail : VL);
    }
}

#define WIDE(r)                                  \
    static void wide_##r(const struct tile *t)   \
    {                                            \
        wide_run(t, r, false);                   \
    }                                            \
    static void masked_##r(const struct tile *t) \
    {                                            \
        wide_run(t, r, true);                    \
    }
WIDE(1)
WIDE(2)
WIDE(3)
WIDE(4)
WIDE(5)
WIDE(6)
static tile_fn *const tiles_wide[WIDE_MR] = {wide_1, wide_2, wide_3, wide_4, wide_5, wide_6};
static tile_fn *const tiles_masked[WIDE_MR] = {masked_1, masked_2, masked_3,
                                               masked_4, masked_5, masked_6};

/* Panel p and the next, which is the last, one block of k. */
static void pair_run(struct tile t, size_t rows, size_t cols, bool packed)
{
    t.tail = (unsigned)(cols - K_PANEL);
    rows_run(t, rows, WIDE_MR, packed || t.tail == VL ? tiles_wide : tiles_masked);
}

static bool is_pair(const struct k_gemm *g, size_t p, size_t p1)
{
    size_t left = g->n - p * K_PANEL;
    return p + 2 == p1 && left > K_PANEL && left <= K_PANEL + VL;
}
#else
static void pair_run(struct tile t, size_t rows, size_t cols, bool packed)
{
    (void)t, (void)rows, (void)cols, (void)packed;
}

static bool is_pair(const struct k_gemm *g, size_t p, size_t p1)
{
    (void)g, (void)p, (void)p1;
    return false;
}
#endif

/* Panels that an epilogue runs over at a time: long pieces of rows make its calls few, and the
 * block of rows is still in the second-level cache. */
#define EPILOGUE_PANELS 8

/* One block of rows of panel p, or of the last two. */
static void block_run(const struct k_gemm *g, size_t mb, size_t rows, size_t p, size_t cols,
                      bool first)
{
    bool packed = g->ldb == 0, pair = cols > K_PANEL;
    size_t j = p * K_PANEL, kb = 0;
    size_t padded = pair ? K_PANEL : (cols + K_LANES - 1) / K_LANES * K_LANES;
    do { /* once even if k is 0: C still gets init */
        struct tile t = {.lda = g->lda, .ldc = g->ldc, .ldb = packed ? padded : g->ldb};
        t.k = g->k - kb < GEMM_KC ? g->k - kb : GEMM_KC;
        t.a = g->a + mb * g->lda + kb;
        t.b = packed ? g->b + j * g->k + kb * padded : g->b + kb * g->ldb + j;
        t.c = g->c + mb * g->ldc + j;
        t.a_mask = first ? LINE - 1 : A_SETTLED;
        if (g->far_b && packed && padded == K_PANEL) {
            t.next = t.b + t.k * padded;
            t.lines = 1;
        }
        if (kb > 0) {
            t.init = t.c;
            t.init_rs = g->ldc;
            t.init_cs = 1;
        } else if (g->init) {
            t.init = g->init + mb * g->init_rs + j * g->init_cs;
            t.init_rs = g->init_rs;
            t.init_cs = g->init_cs;
        }
        if (pair) {
            t.ldb4 = packed ? K_LANES : g->ldb;
            t.b4 = packed ? g->b + (j + K_PANEL) * g->k + kb * K_LANES : t.b + K_PANEL;
            pair_run(t, rows, cols, packed);
        } else {
            panel_run(t, rows, cols, packed);
        }
        kb += t.k;
    } while (kb < g->k);
}

void K_NAME(f32_gemm)(const struct k_gemm *g, size_t m0, size_t m1, size_t p0, size_t p1)
{
    for (size_t mb = m0; mb < m1; mb += GEMM_MC) {
        size_t rows = m1 - mb < GEMM_MC ? m1 - mb : GEMM_MC;
        size_t from = p0; /* panels whose epilogue is to be run */
        for (size_t p = p0; p < p1;) {
            size_t next = is_pair(g, p, p1) ? p + 2 : p + 1;
            size_t end = next * K_PANEL < g->n ? next * K_PANEL : g->n;
            block_run(g, mb, rows, p, end - p * K_PANEL, p == p0);
            p = next;
            if (!g->epilogue || (p < p1 && p - from < EPILOGUE_PANELS))
                continue;
            size_t j = from * K_PANEL;
            for (size_t i = mb; i < mb + rows; i++)
                epilogue_run(g->epilogue, g->c + i * g->ldc + j, i * g->ldc + j, i, j, end - j);
            from = p;
        }
    }
}
