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
    unsigned tail; /* columns of the last vector, 1..16 */
};

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
    const float *a = t->a, *b = t->b;
    size_t lda = t->lda, ldb = t->ldb;
    for (size_t k = t->k; k > 0; k--) {
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

/* All row tiles of a block over one group of nv vectors. Rows are spread evenly: 49 rows are seven
 * tiles of seven, not six of eight and one of one. */
static void rows_run(struct tile t, size_t rows, tile_fn *const *fns)
{
    size_t left = (rows + MR - 1) / MR;
    for (; rows > 0; left--) {
        size_t r = (rows + left - 1) / left;
        fns[r - 1](&t);
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
        rows_run(s, rows, plain_tail ? tiles_plain : tiles[nv - 1]);
        j += width;
    }
}

/* Panels that an epilogue runs over at a time: long pieces of rows make its calls few, and the
 * block of rows is still in the second-level cache. */
#define EPILOGUE_PANELS 8

void K_NAME(f32_gemm)(const struct k_gemm *g, size_t m0, size_t m1, size_t p0, size_t p1)
{
    bool packed = g->ldb == 0;
    for (size_t mb = m0; mb < m1; mb += GEMM_MC) {
        size_t rows = m1 - mb < GEMM_MC ? m1 - mb : GEMM_MC;
        for (size_t p = p0; p < p1; p++) {
            size_t j = p * K_PANEL;
            size_t cols = g->n - j < K_PANEL ? g->n - j : K_PANEL;
            size_t padded = (cols + K_LANES - 1) / K_LANES * K_LANES;
            size_t kb = 0;
            do { /* once even if k is 0: C still gets init */
                struct tile t = {.lda = g->lda, .ldc = g->ldc, .ldb = packed ? padded : g->ldb};
                t.k = g->k - kb < GEMM_KC ? g->k - kb : GEMM_KC;
                t.a = g->a + mb * g->lda + kb;
                t.b = packed ? g->b + j * g->k + kb * padded : g->b + kb * g->ldb + j;
                t.c = g->c + mb * g->ldc + j;
                if (kb > 0) {
                    t.init = t.c;
                    t.init_rs = g->ldc;
                    t.init_cs = 1;
                } else if (g->init) {
                    t.init = g->init + mb * g->init_rs + j * g->init_cs;
                    t.init_rs = g->init_rs;
                    t.init_cs = g->init_cs;
                }
                panel_run(t, rows, cols, packed);
                kb += t.k;
            } while (kb < g->k);
            if (g->epilogue && (p + 1 == p1 || (p + 1 - p0) % EPILOGUE_PANELS == 0)) {
                size_t from = (p0 + (p - p0) / EPILOGUE_PANELS * EPILOGUE_PANELS) * K_PANEL;
                for (size_t i = mb; i < mb + rows; i++)
                    epilogue_run(g->epilogue, g->c + i * g->ldc + from, i * g->ldc + from, i, from,
                                 j + cols - from);
            }
        }
    }
}
