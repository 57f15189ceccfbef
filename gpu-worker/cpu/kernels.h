/* CPU kernels: what each computes, to the bit; its layouts; how its work may be split.
 *
 * Every kernel exists three times (scalar, AVX2 with FMA, AVX-512), from one source, with equal
 * result bits; cpu_kernels_for gives the table of one instruction set. Rules that hold for all:
 *
 *  - Pure functions of their arguments, any thread, no allocation, no failure. Sizes and ranges are
 *    the caller's promise: the graph is checked before it comes here. Zero sizes are legal and do
 *    nothing.
 *  - Work is split over outputs: a kernel takes a half-open range of items [i0, i1) and writes
 *    exactly these items' outputs, reading nothing that another range writes. The bits do not
 *    depend on the ranges. Threads that run ranges of one call at once need a workspace each.
 *  - No alignment is needed but of workspaces; 64-byte aligned data is faster. Nothing is read or
 *    written outside the operands.
 *  - Outputs do not overlap inputs, except where a contract says "in place".
 *  - Arithmetic (README.md has the full text): a dot product is one fused-multiply-add chain over k
 *    increasing; sums use 64 strided partial sums and one fixed tree; padding taps multiply +0;
 *    max and min let NaN through (a NaN operand gives NaN) and on ties keep the first operand.
 *    NaN payloads and signs are not defined. Denormals are kept. */
#ifndef GPU_WORKER_CPU_KERNELS_H
#define GPU_WORKER_CPU_KERNELS_H

#include "gpu-worker/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Columns of a full panel of packed B, and the unit that the last panel is padded to. */
#define K_PANEL 48
#define K_LANES 16

/* ---- Epilogue: what follows a GEMM or a convolution --------------------------------------------
 *
 * Stages that run on a piece of the output as soon as it is complete, while it is in cache. Each
 * stage is the element-wise kernel of the table with the same bits, so a fused chain equals the
 * unfused one. A zeroed epilogue, or NULL, does nothing.
 *   K_STAGE_UNARY        y = op(y, params), op an enum k_unary
 *   K_STAGE_BINARY       y = op(y, operand), or op(operand, y) if reversed; op an enum k_binary.
 * The operand has y's shape and strides (K_EACH: a residual; not y itself), one number for each row
 * or column of C, or one for all. The rows of a convolution are its channels; it has no columns.
 *   K_STAGE_SCALE_SHIFT  y = fma(y, scale[row], shift[row]); row is the row of C, and the channel
 * of a convolution */
struct k_unary_params {
    float alpha, beta;
};

enum k_spread { K_EACH, K_ROW, K_COLUMN, K_ONE };

enum k_stage_kind { K_STAGE_UNARY, K_STAGE_BINARY, K_STAGE_SCALE_SHIFT };

struct k_stage {
    enum k_stage_kind kind;
    int op;
    enum k_spread spread;
    bool reversed;
    struct k_unary_params params;
    const float *operand, *scale, *shift;
};

#define K_MAX_STAGES 8

struct k_epilogue {
    unsigned n_stages;
    struct k_stage stages[K_MAX_STAGES];
};

/* The same for a product further on: operands of y's shape begin that many floats later. */
static inline struct k_epilogue k_epilogue_of(const struct k_epilogue *e, size_t offset)
{
    struct k_epilogue part = *e;
    for (unsigned i = 0; i < part.n_stages; i++)
        if (part.stages[i].kind == K_STAGE_BINARY && part.stages[i].spread == K_EACH)
            part.stages[i].operand += offset;
    return part;
}

/* The same for rows from `row` on of an output whose rows are row_floats long. */
static inline struct k_epilogue k_epilogue_rows(const struct k_epilogue *e, size_t row,
                                                size_t row_floats)
{
    struct k_epilogue part = k_epilogue_of(e, row * row_floats);
    for (unsigned i = 0; i < part.n_stages; i++) {
        struct k_stage *s = &part.stages[i];
        if (s->kind == K_STAGE_BINARY && s->spread == K_ROW)
            s->operand += row;
        if (s->kind == K_STAGE_SCALE_SHIFT) {
            s->scale += row;
            s->shift += row;
        }
    }
    return part;
}

/* ---- GEMM: C[m,n] = init[m,n] + A[m,k] * B[k,n] ------------------------------------------------
 *
 * C[i,j] is one chain: t = init[i,j]; for kk = 0..k-1: t = fma(A[i,kk], B[kk,j], t).
 *
 * B comes packed or plain. Packed: panels of K_PANEL columns, each [k][width] with width K_PANEL,
 * in the last panel n's rest rounded up to K_LANES, zero filled; panel p starts at float
 * p*K_PANEL*k; k_packed_floats(k, n) in all. The same for every instruction set, so packed weights
 * can be shared. Plain: row-major with ldb, nothing read beyond column n.
 *
 * init may be a full matrix, a row, a column or one number: init[i*init_rs + j*init_cs], init_cs 0
 * or 1; NULL means +0. init == c with init_rs == ldc, init_cs == 1 is allowed (accumulate).
 *
 * Items: rows [m0, m1) times panels [p0, p1) of k_panels(n). k == 0 gives init. */
struct k_gemm {
    size_t m, n, k;
    const float *a; /* [m][k], row stride lda */
    size_t lda;
    const float *b;
    size_t ldb; /* 0: packed; otherwise the row stride of plain B */
    const float *init;
    size_t init_rs, init_cs;
    float *c; /* [m][n], row stride ldc */
    size_t ldc;
    const struct k_epilogue *epilogue; /* or NULL */
    bool far_b; /* a hint: packed B is large and comes from memory, not from a cache */
};

static inline size_t k_panels(size_t n)
{
    return (n + K_PANEL - 1) / K_PANEL;
}

/* Floats of packed B. The caller has checked that it does not overflow. */
static inline size_t k_packed_floats(size_t k, size_t n)
{
    return k * ((n + K_LANES - 1) / K_LANES * K_LANES);
}

/* Packs panels [p0, p1) of B[kk,j] = b[kk*row_stride + j*col_stride]: (n, 1) for row-major B,
 * (1, k) for a row-major transposed B [n][k]. out is the start of panel 0. Plain C, one version. */
void k_f32_pack_b(const float *b, size_t row_stride, size_t col_stride, size_t k, size_t n,
                  size_t p0, size_t p1, float *out);

/* ---- Windows over NCHW planes -----------------------------------------------------------------
 * Output (oy, ox), tap (ky, kx) looks at row oy*stride_h - pad_top + ky*dilation_h, and the same
 * for columns. Taps outside the plane are padding, whatever the pads say (so bottom and right pads
 * only show in oh and ow, except for k_pool's count). 1-D: h = kh = oh = 1. */
struct k_window {
    size_t h, w, oh, ow;
    size_t kh, kw;
    size_t stride_h, stride_w;
    size_t dilation_h, dilation_w;
    size_t pad_top, pad_left, pad_bottom, pad_right;
};

/* ---- Convolution ------------------------------------------------------------------------------
 * x [batch][groups*ic][h][w], weight [groups*oc][ic][kh][kw] (ONNX order, not packed),
 * bias [groups*oc] or NULL (+0), y [batch][groups*oc][oh][ow].
 *
 * y is one chain from the bias over (c, ky, kx), c slowest; padding taps are fma(weight, +0, t).
 * ic and oc are per group.
 *
 * f32_conv: any convolution (im2col per panel of K_PANEL pixels, then GEMM; 1x1 with stride 1 and
 * no padding reads the image directly). Items: k_conv_items; item = (image, group, panel).
 * f32_dwconv: ic == 1 and oc == 1 (depthwise), same bits as f32_conv, faster. Items:
 * batch*groups planes.
 * workspace: k_conv_workspace / k_dwconv_workspace floats per thread, 64-byte aligned. h*w < 2^31.
 */
struct k_conv {
    struct k_window win;
    size_t batch, groups, ic, oc;
    const float *x, *weight, *bias;
    float *y;
    const struct k_epilogue *epilogue; /* or NULL */
};

size_t k_conv_items(const struct k_conv *c);
size_t k_conv_workspace(const struct k_conv *c);
size_t k_dwconv_workspace(const struct k_conv *c);

/* ---- Pooling ----------------------------------------------------------------------------------
 * x [planes][h][w] -> y [planes][oh][ow]; planes = batch*channels. Items: planes.
 * max: over the taps inside the plane in (ky, kx) order, from -inf (a window of padding only gives
 * -inf); NaN gives NaN.
 * average: sum from +0 in (ky, kx) order, divided by a count: taps inside the plane, or with
 * count_include_pad taps inside the plane extended by the four pads. Count 0 gives +0.
 * workspace: k_pool_workspace floats per thread, 64-byte aligned.
 * Global average and maximum: f32_reduce_mean and f32_reduce_max over n = h*w. */
struct k_pool {
    struct k_window win;
    size_t planes;
    bool count_include_pad;
    const float *x;
    float *y;
};

size_t k_pool_workspace(const struct k_pool *p);

/* ---- Along one axis ---------------------------------------------------------------------------
 * x [outer][n][inner]; inner == 1 for the last axis. Items: (outer, inner) pairs, outer*inner of
 * them, inner fastest. Both layouts give the same bits for the same values.
 *
 * sum: 64 partial sums, s[j] = x[j] + x[j+64] + ... each from +0 in order; then 16 sums
 *   t[l] = (s[l] + s[l+32]) + (s[l+16] + s[l+48]); then t[l] + t[l+8], l < 8; +4; +2; +1.
 *   n == 0 gives +0. mean: sum / (float)n. max and min: the same order from -inf and +inf; prod:
 *   the same with products from 1. Output y [outer][inner].
 * l1: sum of |x|. sum_square: a partial sum is a chain s[j] = fma(x, x, s[j]); l2: its square root.
 * log_sum: log(sum).
 * log_sum_exp: m = max, or 0 where that is infinite; m + log(sum of exp(x - m)).
 * softmax: m = max; e = exp(x - m); y = e / sum(e). Output y [outer][n][inner], in place allowed.
 *   A row with NaN or +inf, or of -inf only, gives NaN.
 * logsoftmax: y = (x - m) - log(sum(exp(x - m))); as softmax. */
struct k_axis {
    size_t outer, n, inner;
    const float *x;
    float *y;
};

/* ---- Layer normalisation -----------------------------------------------------------------------
 * Rows x [rows][n] -> y. mean = sum / n; d = x - mean; inv = 1 / sqrt(spread / n + epsilon), spread
 * the sum of d * d in the order of sums, a partial sum being a chain s[j] = fma(d, d, s[j]);
 * t = d * inv; y = fma(t, scale[j], bias[j]), t * scale[j] without bias, t without scale (and then
 * without bias). In place allowed. mean and inv of each row are stored where not NULL.
 * Items: rows. */
struct k_norm {
    size_t n;
    float epsilon;
    const float *x, *scale, *bias; /* scale and bias [n] or NULL */
    float *y, *mean, *inv;
};

/* ---- Per channel ------------------------------------------------------------------------------
 * y = fma(x, scale[c], shift[c]) over x [batch][channels][plane]. In place allowed.
 * Items: batch*channels planes. BatchNormalization: scale and shift from k_f32_bn_fold. */
struct k_scale_shift {
    size_t channels, plane;
    const float *x, *scale, *shift;
    float *y;
};

/* scale[i] = (float)(gamma / sqrt(var + epsilon)); shift[i] = (float)(beta - mean * scale[i]), all
 * in double, each operation rounded once. Plain C, one version. */
void k_f32_bn_fold(const float *gamma, const float *beta, const float *mean, const float *var,
                   float epsilon, size_t channels, float *ret_scale, float *ret_shift);

/* ---- Recurrent cells --------------------------------------------------------------------------
 * One time step after its products: gates [rows][gates_stride] holds, gate after gate of `hidden`
 * columns in ONNX's order, the finished chains (bias, input part, recurrent part). States h and c
 * [rows][hidden] are read and replaced; the new h also goes to y, unless NULL, with y_stride.
 * Items: rows. f, g, k are act[0..2]; the arguments of f and g are clipped to [-clip, clip]
 * (INFINITY: not at all); k's, the cell state, is not, as in other runtimes. Products that are not
 * named fma are rounded.
 *
 * rnn_cell   h = f(gates)
 * lstm_cell  gates i, o, f, c. peephole is NULL or pi, po, pf, [hidden] each.
 *              i = f(fma(pi, c, i)); f = input_forget ? 1 - i : f(fma(pf, c, f)); g = g(c gate)
 *              c' = fma(f, c, i * g); o = f(fma(po, c', o)); h = o * k(c')
 * gru_reset  gates z, r, h: reset [rows][hidden] = f(r) * h; the caller adds reset * Rh to gate h
 *              before gru_cell, whose recurrent is then NULL.
 * gru_cell   z = f(z); with recurrent [rows][hidden] (linear_before_reset; Rb and h * Rh in it)
 * gate h is first fma(f(r), recurrent, gate h); h' = fma(z, h, (1 - z) * g(gate h)) */
enum k_rnn_fn {
    K_RNN_RELU,
    K_RNN_TANH,
    K_RNN_SIGMOID,
    K_RNN_AFFINE, /* alpha * x + beta, not fused */
    K_RNN_LEAKY_RELU,
    K_RNN_THRESHOLDED_RELU, /* x < alpha ? 0 : x, as recurrent layers define it */
    K_RNN_SCALED_TANH,      /* alpha * tanh(beta * x) */
    K_RNN_HARD_SIGMOID,
    K_RNN_ELU,
    K_RNN_SOFTSIGN,
    K_RNN_SOFTPLUS,
};

struct k_rnn_act {
    enum k_rnn_fn fn;
    float alpha, beta;
};

struct k_rnn_cell {
    size_t hidden, gates_stride, y_stride;
    const float *gates, *recurrent, *peephole;
    float *h, *c, *y, *reset;
    float clip;
    bool input_forget;
    struct k_rnn_act act[3];
};

/* ---- Element-wise, one operand ----------------------------------------------------------------
 * y[i] = f(x[i]), i < n. In place allowed. NaN gives NaN.
 *   relu          0 > x ? 0 : x  (so -0 stays -0)
 *   leaky_relu    x < 0 ? x * alpha : x
 *   clip          t = alpha > x ? alpha : x; beta < t ? beta : t; alpha is the minimum, beta the
 *                 maximum, -inf and +inf where a bound is absent
 *   hard_sigmoid  clip(alpha * x + beta, 0, 1): one product, one sum, not fused
 *   hard_swish    as ONNX: x * hard_sigmoid(x) with alpha (float)(1/6) and beta 0.5
 *   hard_swish_6   the same as PaddlePaddle's exporter spells it: (x * clip(x + 3, 0, 6)) / 6
 *   hard_swish_by_6  as PyTorch's does: x * (clip(x + 3, 0, 6) / 6)
 *   hard_gate     x * clip(alpha * x + beta, 0, 1): as hard_sigmoid and a product after it
 *   sigmoid, tanh, exp, log, erf   own polynomials; README.md has the largest errors
 *   sqrt, abs, neg, floor, ceil    exact as IEEE; reciprocal is 1 / x
 *   gelu          (x * (1 + erf(x / 1.41421354f))) * 0.5f, the order of exported graphs
 *   gelu_tanh     (x * (1 + tanh(0.797884583f * (x + 0.044715f * ((x * x) * x))))) * 0.5f
 *   sin, cos      own polynomials up to 39000, f64_math.h beyond: right for every float
 *   softplus      max(x, 0) + log(1 + e^-|x|)
 *   softsign      x / (1 + |x|)
 *   elu           x < 0 ? alpha * (e^x - 1) : x, e^x - 1 without cancellation
 *   selu          beta * elu(x, alpha); beta is ONNX's gamma
 *   celu          x < 0 ? alpha * (e^(x / alpha) - 1) : x
 *   thresholded_relu  x > alpha ? x : 0
 *   mish          x * tanh(softplus(x)), as x * ((w*w + 2w) / (w*w + 2w + 2)), w = e^x
 *   silu          x * sigmoid(x)
 *   sign          -1, 0 or 1; round: to the nearest integer, ties to even, exact
 * alpha and beta are read only where named; params may be NULL elsewhere. */
typedef void k_unary_fn(const float *x, float *y, size_t n, const struct k_unary_params *params);

enum k_unary {
#define KU(name) K_UNARY_##name,
#include "gpu-worker/cpu/kernels.inc"
    K_UNARY_COUNT
};

/* ---- Element-wise, two operands ---------------------------------------------------------------
 * y[i] = f(a[i*step_a], b[i*step_b]), steps 0 or 1. y may be exactly a or b where that one's step
 * is
 * 1. Broadcasting over more dimensions: broadcast.h. add, sub, mul, div as IEEE;
 * max: (b > a or b is NaN) ? b : a; min: (b < a or b is NaN) ? b : a. */
typedef void k_binary_fn(const float *a, size_t step_a, const float *b, size_t step_b, float *y,
                         size_t n);

enum k_binary {
#define KB(name) K_BINARY_##name,
#include "gpu-worker/cpu/kernels.inc"
    K_BINARY_COUNT
};

/* ---- The table of one instruction set ---------------------------------------------------------*/
struct cpu_kernels {
    enum wk_isa isa;
    unsigned gemm_rows; /* rows of a register tile: split m at multiples of it for speed */
    size_t gemm_mc, gemm_kc;
#define K(name, arguments) void(*name) arguments;
#include "gpu-worker/cpu/kernels.inc"
    k_unary_fn *unary[K_UNARY_COUNT];
    k_binary_fn *binary[K_BINARY_COUNT];
};

/* The table, valid for ever. The caller has checked with features.h that the machine can run it. */
const struct cpu_kernels *cpu_kernels_for(enum wk_isa isa);

/* Names without the instruction set ("f32_relu"), for logs and tests. */
const char *k_unary_name(enum k_unary op);
const char *k_binary_name(enum k_binary op);

/* Prototypes of all versions; use the table instead. */
#define K(name, arguments)            \
    void k_##name##_scalar arguments; \
    void k_##name##_avx2 arguments;   \
    void k_##name##_avx512 arguments;
#define KU(name)                      \
    k_unary_fn k_f32_##name##_scalar; \
    k_unary_fn k_f32_##name##_avx2;   \
    k_unary_fn k_f32_##name##_avx512;
#define KB(name)                       \
    k_binary_fn k_f32_##name##_scalar; \
    k_binary_fn k_f32_##name##_avx2;   \
    k_binary_fn k_f32_##name##_avx512;
#include "gpu-worker/cpu/kernels.inc"

#endif
