/* f32 convolutions over NCHW planes: im2col + GEMM.
 *
 * Compiled once per instruction set; runs on the caller's thread. The chain of an output goes from
 * the bias over (c, ky, kx), padding taps as fma(weight, +0, t). */
#include "gpu-worker/cpu/gemm.h"
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/kernels.h"
#include "gpu-worker/cpu/window.h"

#include "gpu-worker/cpu/epilogue.h"

/* ---- im2col ---- */

/* The 16 neighbouring output pixels of one vector: where their tap (0, 0) lies. All other taps lie
 * at a constant distance, so only which lanes are inside the plane changes from tap to tap. */
struct pixels {
    ptrdiff_t iy[16], ix[16]; /* may be outside the plane */
    int32_t index[16];        /* iy * w + ix */
    unsigned count;           /* lanes that are pixels */
    bool run;                 /* index[l] is index[0] + l */
};

/* Pixels j .. j+count-1, count 1..16. Where the output is as wide as the input and the stride is 1,
 * pixels of neighbouring rows are neighbours in memory too, so most vectors are runs. */
static void pixels_init(const struct k_window *w, size_t j, size_t count, struct pixels *p)
{
    size_t oy = j / w->ow, ox = j % w->ow;
    p->count = (unsigned)count;
    p->run = true;
    for (unsigned l = 0; l < VL; l++) {
        p->iy[l] = (ptrdiff_t)(oy * w->stride_h) - (ptrdiff_t)w->pad_top;
        p->ix[l] = (ptrdiff_t)(ox * w->stride_w) - (ptrdiff_t)w->pad_left;
        p->index[l] = l < count ? (int32_t)(p->iy[l] * (ptrdiff_t)w->w + p->ix[l]) : 0;
        p->run &= l >= count || p->index[l] == p->index[0] + (int32_t)l;
        if (++ox == w->ow) {
            ox = 0;
            oy++;
        }
    }
}

/* A bit for each pixel whose coordinate, moved by distance, is within 0..size-1. */
static unsigned lanes_inside(const ptrdiff_t *at, unsigned count, size_t distance, size_t size)
{
    unsigned mask = 0;
    for (unsigned l = 0; l < VL; l++)
        mask |= (unsigned)((size_t)(at[l] + (ptrdiff_t)distance) < size) << l;
    return mask & ((1u << count) - 1u);
}

/* One tap of one vector in all channels of [first, ...): every taps-th k below k1. from is where
 * the tap finds pixel index 0 in the first channel; it may lie outside the plane, the lanes that
 * are read do not. */
static void pack_tap(const struct pixels *p, unsigned inside, uintptr_t from, size_t plane,
                     size_t k, size_t k1, size_t taps, size_t width, float *out)
{
    for (; k < k1; k += taps, from += plane * sizeof(float), out += taps * width) {
        v x;
        if (!p->run)
            x = v_gather((const float *)from, p->index, inside);
        else if (inside == 0xffffu)
            x = v_load((const float *)from + p->index[0]);
        else
            x = v_loadm((const float *)from + p->index[0], inside);
        v_store(out, x);
    }
}

#define MASKED_TAPS 32 /* column taps whose masks are kept at a time */

/* Packs k [k0, k1) of one vector of pixels; k = (c, ky, kx). */
static void pack_vector(const struct k_conv *c, const float *image, const struct pixels *p,
                        size_t k0, size_t k1, size_t width, float *out)
{
    const struct k_window *w = &c->win;
    size_t taps = w->kh * w->kw, plane = w->h * w->w;
    unsigned columns[MASKED_TAPS];
    for (size_t x0 = 0; x0 < w->kw; x0 += MASKED_TAPS) {
        size_t x1 = w->kw - x0 < MASKED_TAPS ? w->kw : x0 + MASKED_TAPS;
        for (size_t kx = x0; kx < x1; kx++)
            columns[kx - x0] = lanes_inside(p->ix, p->count, kx * w->dilation_w, w->w);
        for (size_t ky = 0; ky < w->kh; ky++) {
            unsigned rows = lanes_inside(p->iy, p->count, ky * w->dilation_h, w->h);
            for (size_t kx = x0; kx < x1; kx++) {
                size_t tap = ky * w->kw + kx;
                /* The first channel whose (c, tap) is not before k0. */
                size_t first = k0 > tap ? (k0 - tap + taps - 1) / taps : 0;
                size_t k = first * taps + tap;
                size_t from = first * plane + ky * w->dilation_h * w->w + kx * w->dilation_w;
                pack_tap(p, rows & columns[kx - x0], (uintptr_t)image + from * sizeof(float), plane,
                         k, k1, taps, width, out + (k - k0) * width);
            }
        }
    }
}

/* Packs k [k0, k1) of pixels [j, j + cols), cols <= K_PANEL, as one panel. */
static void pack_panel(const struct k_conv *c, const float *image, size_t j, size_t cols, size_t k0,
                       size_t k1, float *out)
{
    size_t width = (cols + VL - 1) / VL * VL;
    for (size_t q = 0; q < width; q += VL) {
        struct pixels p;
        pixels_init(&c->win, j + q, cols - q < VL ? cols - q : VL, &p);
        pack_vector(c, image, &p, k0, k1, width, out + q);
    }
}

/* Panels [p0, p1) of one image and group, by im2col. */
static void conv_packed(const struct k_conv *c, struct k_gemm g, const float *image, size_t p0,
                        size_t p1, float *workspace)
{
    const size_t pixels = g.n, k_all = g.k;
    const float *weight = g.a;
    float *y = g.c;
    struct k_epilogue last;
    if (g.epilogue)
        last = epilogue_at(g.epilogue, p0 * K_PANEL, 0, 0);
    const bool fused = g.epilogue != NULL;
    size_t k0 = 0;
    do {
        size_t k1 = k_all - k0 < GEMM_KC ? k_all : k0 + GEMM_KC;
        size_t panels = p1 - p0, first = p0 * K_PANEL;
        size_t n = pixels - first < panels * K_PANEL ? pixels - first : panels * K_PANEL;
        for (size_t p = 0; p < panels; p++) {
            size_t cols = n - p * K_PANEL < K_PANEL ? n - p * K_PANEL : K_PANEL;
            pack_panel(c, image, first + p * K_PANEL, cols, k0, k1,
                       workspace + p * K_PANEL * (k1 - k0));
        }
        g.n = n;
        g.k = k1 - k0;
        g.a = weight + k0;
        g.b = workspace;
        g.c = y + first;
        g.epilogue = fused && k1 == k_all ? &last : NULL;
        if (k0 > 0) { /* the chain goes on from what is parked in y */
            g.init = g.c;
            g.init_rs = g.ldc;
            g.init_cs = 1;
        }
        K_NAME(f32_gemm)(&g, 0, g.m, 0, panels);
        k0 = k1;
    } while (k0 < k_all);
}

void K_NAME(f32_conv)(const struct k_conv *c, size_t i0, size_t i1, float *workspace)
{
    size_t pixels = c->win.oh * c->win.ow, panels = k_panels(pixels);
    size_t k = c->ic * c->win.kh * c->win.kw, plane = c->win.h * c->win.w;
    bool plain = conv_is_plain(c);
    size_t block = plain ? panels : conv_block_panels(c);
    while (i0 < i1) {
        size_t at = i0 / panels, p0 = i0 % panels; /* at = image * groups + group */
        size_t group = at % c->groups;
        size_t p1 = panels - p0 < i1 - i0 ? panels : p0 + (i1 - i0);
        if (p1 - p0 > block) {
            p1 = p0 + block;
            /* A last panel of one vector goes with the one before it, as in f32_gemm. */
            if (p1 + 1 == panels && pixels - p1 * K_PANEL <= VL && p1 - p0 < i1 - i0)
                p1++;
        }
        const float *image = c->x + at * c->ic * plane;
        struct k_gemm g = {.m = c->oc, .n = pixels, .k = k, .lda = k, .ldc = pixels};
        g.a = c->weight + group * c->oc * k;
        g.c = c->y + at * c->oc * pixels;
        if (c->bias) {
            g.init = c->bias + group * c->oc;
            g.init_rs = 1;
        }
        struct k_epilogue part;
        if (c->epilogue) {
            part = epilogue_at(c->epilogue, at * c->oc * pixels, group * c->oc, 0);
            g.epilogue = &part;
        }
        if (plain) {
            g.b = image;
            g.ldb = pixels;
            K_NAME(f32_gemm)(&g, 0, g.m, p0, p1);
        } else {
            conv_packed(c, g, image, p0, p1, workspace);
        }
        i0 += p1 - p0;
    }
}
