/* CPU backend: MatMul and Gemm. See backend_priv.h.
 *
 * FP32 and what is widened to it run on the vector kernel; FP64 and integers on plain_matmul.h.
 * Constant B is packed once at load; B that the graph computes is read as it is, or packed into the
 * workspace where it must be transposed. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/broadcast.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/plain_matmul.h"

#include <stdio.h>
#include <string.h>

enum { MAX_HEADS = CM_MAX_RANK };

/* Packed weights from this size on are not in the second-level cache when their product begins. */
#define FAR_FLOATS ((size_t)1 << 16)

struct gemm_step {
    struct cpu_step step;
    struct k_gemm args; /* pointers are set at run */
    struct cpu_stages stages;
    bool by_rows; /* items are row blocks, otherwise panels */
    size_t row_block, blocks;
    /* Batched MatMul: dimensions in front of the matrices, strides in floats. */
    unsigned n_heads;
    size_t heads[MAX_HEADS], a_stride[MAX_HEADS], b_stride[MAX_HEADS];
    /* Gemm only. */
    bool trans_a, pack_b, has_c;
    float alpha, beta;
    struct k_copy transpose;
    size_t packed_at, c_at, c_count; /* workspace offsets in floats; A's copy is at 0 */
    struct cpu_bcast add_c;
};

/* ---- packed constants ------------------------------------------------------------------------ */

/* B as matrices: how many, and their sizes. A vector is a matrix of one column. */
struct matrices {
    size_t count, k, n;
};

static struct matrices as_matrices(const struct cm_shape *b, bool transposed)
{
    struct matrices m = {1, (size_t)b->dims[0], 1};
    if (b->rank >= 2) {
        m.count = cpu_product(b, 0, b->rank - 2u);
        m.k = (size_t)b->dims[b->rank - (transposed ? 1 : 2)];
        m.n = (size_t)b->dims[b->rank - (transposed ? 2 : 1)];
    }
    return m;
}

/* B is stored packed: a constant of a type that is multiplied as FP32. */
static bool packs_b(const struct wk_call *call)
{
    enum cm_dtype dtype = wk_call_in(call, 1)->dtype;
    return wk_call_is_constant(call, 1) &&
           (dtype == CM_FP32 || dtype == CM_FP16 || dtype == CM_BF16);
}

static void layout_b(const struct wk_call *call, unsigned k, bool transposed,
                     struct wk_layout *ret_layout)
{
    size_t bytes;
    if (k != 1 || !packs_b(call))
        return;
    struct matrices m = as_matrices(&wk_call_in(call, 1)->shape, transposed);
    /* A tensor's size is limited, and padding columns multiplies it by at most 16. */
    bytes = m.count * k_packed_floats(m.k, m.n) * sizeof(float);
    *ret_layout = (struct wk_layout){transposed ? CPU_LAYOUT_PACKED_TRANSPOSED : CPU_LAYOUT_PACKED,
                                     bytes, true};
}

/* As k_f32_pack_b for elements of 16 bits, which are converted one by one. */
static void pack_half(enum cm_dtype dtype, const uint16_t *b, const struct matrices *m,
                      bool transposed, float *out)
{
    for (size_t p = 0; p < k_panels(m->n); p++) {
        size_t j = p * K_PANEL, cols = m->n - j < K_PANEL ? m->n - j : K_PANEL;
        size_t width = (cols + K_LANES - 1) / K_LANES * K_LANES;
        float *to = out + j * m->k;
        for (size_t kk = 0; kk < m->k; kk++, to += width) {
            if (!transposed)
                k_cast(dtype, CM_FP32, b + kk * m->n + j, to, cols);
            for (size_t c = 0; transposed && c < cols; c++)
                k_cast(dtype, CM_FP32, b + (j + c) * m->k + kk, to + c, 1);
            memset(to + cols, 0, (width - cols) * sizeof(float));
        }
    }
}

static void pack_b(const struct wk_call *call, bool transposed, float *out)
{
    enum cm_dtype dtype = wk_call_in(call, 1)->dtype;
    const void *b = call->graph->values[call->node->in[1]].constant->data;
    struct matrices m = as_matrices(&wk_call_in(call, 1)->shape, transposed);
    size_t floats = k_packed_floats(m.k, m.n);
    for (size_t i = 0; i < m.count && floats > 0; i++)
        if (dtype == CM_FP32)
            k_f32_pack_b((const float *)b + i * m.k * m.n, transposed ? 1 : m.n,
                         transposed ? m.k : 1, m.k, m.n, 0, k_panels(m.n), out + i * floats);
        else
            pack_half(dtype, (const uint16_t *)b + i * m.k * m.n, &m, transposed, out + i * floats);
}

/* B is worth fetching ahead. A single row goes through it in a line, which the processor sees. */
static bool is_far(bool packed, size_t rows, const struct matrices *b)
{
    return packed && rows > 1 && k_packed_floats(b->k, b->n) >= FAR_FLOATS;
}

static bool gemm_trans_b(const struct wk_node *node)
{
    return wk_node_int(node, "transB", 0) != 0;
}

void cpu_layout_matmul(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    layout_b(call, k, false, ret_layout);
}

void cpu_layout_gemm(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    layout_b(call, k, gemm_trans_b(call->node), ret_layout);
}

void cpu_pack_matmul(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    CM_ASSERT(k == 1);
    pack_b(call, false, ret_bytes);
}

void cpu_pack_gemm(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    CM_ASSERT(k == 1);
    pack_b(call, gemm_trans_b(call->node), ret_bytes);
}

/* ---- running products ------------------------------------------------------------------------ */

static void head_offsets(const struct gemm_step *s, size_t batch, size_t *ret_a, size_t *ret_b)
{
    size_t a = 0, b = 0;
    for (unsigned i = s->n_heads; i-- > 0;) {
        size_t index = batch % s->heads[i];
        batch /= s->heads[i];
        a += index * s->a_stride[i];
        b += index * s->b_stride[i];
    }
    *ret_a = a;
    *ret_b = b;
}

/* Blocks [b0, b1) of one matrix product. */
static void run_blocks(const struct cpu_backend *cpu, const struct gemm_step *s,
                       const struct k_gemm *args, size_t b0, size_t b1)
{
    if (s->by_rows) {
        size_t end = b1 * s->row_block;
        cpu->kernels->f32_gemm(args, b0 * s->row_block, end < args->m ? end : args->m, 0,
                               k_panels(args->n));
    } else {
        cpu->kernels->f32_gemm(args, 0, args->m, b0, b1);
    }
}

static void matmul_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    struct k_epilogue epilogue;
    const struct k_epilogue *fused = cpu_stages_bind(&s->stages, run, &epilogue);
    (void)thread;
    while (i0 < i1) {
        size_t batch = i0 / s->blocks, first = i0 % s->blocks, a, b;
        size_t last = i1 - i0 < s->blocks - first ? first + (i1 - i0) : s->blocks;
        struct k_gemm args = s->args;
        head_offsets(s, batch, &a, &b);
        args.a = (const float *)run->in[0] + a;
        args.b = (const float *)run->in[1] + b;
        args.c = (float *)run->out[0] + batch * args.m * args.n;
        struct k_epilogue part;
        if (fused) {
            part = k_epilogue_of(fused, batch * args.m * args.n);
            args.epilogue = &part;
        }
        run_blocks(cpu, s, &args, first, last);
        i0 += last - first;
    }
}

/* Rows or panels? Whatever gives every thread a share; bits do not depend on it. */
static void choose_blocks(const struct cpu_backend *cpu, struct gemm_step *s)
{
    size_t rows = cpu->kernels->gemm_rows;
    s->by_rows = s->args.m >= 2 * rows * cpu->threads;
    s->row_block = (s->args.m + cpu->threads - 1) / cpu->threads;
    s->row_block = (s->row_block + rows - 1) / rows * rows;
    s->blocks = k_panels(s->args.n);
    if (s->by_rows)
        s->blocks = (s->args.m + s->row_block - 1) / s->row_block;
}

/* Leading dimensions of the output, and how far each operand moves along them. */
static void plan_heads(struct gemm_step *s, const struct cm_shape *a, const struct cm_shape *b,
                       size_t a_matrix, size_t b_matrix, size_t *ret_batch)
{
    size_t a_stride = a_matrix, b_stride = b_matrix;
    unsigned a_rank = a->rank > 2 ? a->rank - 2u : 0, b_rank = b->rank > 2 ? b->rank - 2u : 0;
    s->n_heads = a_rank > b_rank ? a_rank : b_rank;
    *ret_batch = 1;
    for (unsigned i = 0; i < s->n_heads; i++) {
        unsigned at = s->n_heads - 1 - i;
        size_t a_dim = i < a_rank ? (size_t)a->dims[a_rank - 1 - i] : 1;
        size_t b_dim = i < b_rank ? (size_t)b->dims[b_rank - 1 - i] : 1;
        s->heads[at] = a_dim == 1 ? b_dim : a_dim;
        s->a_stride[at] = a_dim == 1 ? 0 : a_stride;
        s->b_stride[at] = b_dim == 1 ? 0 : b_stride;
        a_stride *= a_dim;
        b_stride *= b_dim;
        *ret_batch *= s->heads[at];
    }
}

static void describe_gemm(const struct cpu_backend *cpu, const struct cpu_step *step, char *buffer,
                          size_t size)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    snprintf(buffer, size, "f32_gemm %s %s%zux%zux%zu", wk_isa_name(cpu->kernels->isa),
             s->args.ldb == 0 ? "packed " : "", s->args.m, s->args.n, s->args.k);
}

/* ---- types without a vector kernel ----------------------------------------------------------- */

struct plain_gemm {
    struct gemm_step gemm; /* heads and their strides are in elements */
    size_t element;
    k_matmul_fn *fn;
    struct k_matmul args;
    k_scale_add_fn *finish; /* NULL: nothing to do */
    struct k_scale_add scale;
};

/* Items: rows of all the products. */
static void plain_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct plain_gemm *s = (const struct plain_gemm *)step;
    struct k_scale_add scale = s->scale;
    (void)cpu, (void)thread;
    while (i0 < i1) {
        struct k_matmul args = s->args;
        size_t batch = i0 / args.m, r0 = i0 % args.m, a, b;
        size_t r1 = args.m - r0 < i1 - i0 ? args.m : r0 + (i1 - i0);
        head_offsets(&s->gemm, batch, &a, &b);
        args.a = (const char *)run->in[0] + a * s->element;
        args.b = (const char *)run->in[1] + b * s->element;
        args.c = (char *)run->out[0] + batch * args.m * args.n * s->element;
        s->fn(&args, r0, r1);
        scale.y = args.c;
        scale.c = s->gemm.has_c ? run->in[2] : NULL;
        if (s->finish)
            s->finish(&scale, r0, r1);
        i0 += r1 - r0;
    }
}

static enum cm_err take_plain(struct cpu_prepare *p, struct k_matmul args, struct plain_gemm **ret)
{
    enum cm_dtype dtype = wk_call_in(p->call, 0)->dtype;
    double work = (double)cpu_count(&wk_call_out(p->call)->shape) * (double)args.k;
    struct plain_gemm *s = cpu_step_take(p, sizeof *s, plain_body, args.m, 1, work);
    if (!s)
        return CM_NOMEM;
    s->element = cm_dtype_size(dtype);
    s->fn = k_matmul_for(dtype);
    s->args = args;
    *ret = s;
    return CM_OK;
}

static enum cm_err plain_matmul(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape, *b = &wk_call_in(p->call, 1)->shape;
    struct matrices m = as_matrices(b, false);
    size_t rows = a->rank >= 2 ? (size_t)a->dims[a->rank - 2] : 1, batch;
    struct plain_gemm *s;
    enum cm_err code = take_plain(
        p,
        (struct k_matmul){
            .m = rows, .n = m.n, .k = m.k, .a_rs = m.k, .a_cs = 1, .b_rs = m.n, .b_cs = 1},
        &s);
    if (code != CM_OK)
        return code;
    plan_heads(&s->gemm, a, b, rows * m.k, m.k * m.n, &batch);
    s->gemm.step.items = rows * batch;
    *ret_step = &s->gemm.step;
    return CM_OK;
}

enum cm_err cpu_prepare_matmul(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape, *b = &wk_call_in(p->call, 1)->shape;
    bool packed = packs_b(p->call);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_matmul, packed ? 2 : 0, ret_step);
    if (wk_call_in(p->call, 0)->dtype != CM_FP32)
        return plain_matmul(p, ret_step);
    struct matrices m = as_matrices(b, false);
    size_t rows = a->rank >= 2 ? (size_t)a->dims[a->rank - 2] : 1, batch;
    double work = (double)cpu_count(&wk_call_out(p->call)->shape) * (double)m.k * 0.25;
    struct gemm_step *s = cpu_step_take(p, sizeof *s, matmul_body, 0, 1, work);
    if (!s)
        return CM_NOMEM;
    plan_heads(s, a, b, rows * m.k, packed ? k_packed_floats(m.k, m.n) : m.k * m.n, &batch);
    if (b->rank <= 2 && s->n_heads) {
        /* One B for all matrices: they are one tall A. */
        rows *= batch;
        batch = 1;
        s->n_heads = 0;
    }
    s->args = (struct k_gemm){.m = rows,
                              .n = m.n,
                              .k = m.k,
                              .lda = m.k,
                              .ldb = packed ? 0 : m.n,
                              .ldc = m.n,
                              .far_b = is_far(packed, rows, &m)};
    choose_blocks(p->cpu, s);
    s->step.items = batch * s->blocks;
    s->step.describe = describe_gemm;
    *ret_step = &s->step;
    return cpu_stages_init(p, -1, wk_call_out(p->call)->shape.rank - 1, &s->stages);
}

/* ---- Gemm: alpha * A' * B' + beta * C -------------------------------------------------------- */

static void gemm_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    struct k_gemm args = s->args;
    struct k_epilogue epilogue;
    float *workspace = run->workspace;
    (void)thread;
    args.a = s->trans_a ? workspace : run->in[0];
    args.b = s->pack_b ? workspace + s->packed_at : run->in[1];
    args.c = run->out[0];
    args.epilogue = cpu_stages_bind(&s->stages, run, &epilogue);
    if (s->has_c && s->alpha == 1.0f)
        args.init = s->beta == 1.0f ? run->in[2] : workspace + s->c_at;
    run_blocks(cpu, s, &args, i0, i1);
}

static void transpose_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    struct k_copy copy = ((const struct gemm_step *)step)->transpose;
    (void)cpu, (void)thread;
    copy.x = run->in[0];
    copy.y = run->workspace;
    k_copy_run(&copy, i0, i1);
}

static void pack_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    (void)cpu, (void)thread;
    k_f32_pack_b(run->in[1], 1, s->args.k, s->args.k, s->args.n, i0, i1,
                 (float *)run->workspace + s->packed_at);
}

/* y = alpha * y, and + beta * C, as two roundings each, in this order. */
static void scale_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    float *y = run->out[0];
    (void)thread;
    cpu->kernels->binary[K_BINARY_mul](y + i0, 1, &s->alpha, 0, y + i0, i1 - i0);
    if (s->has_c)
        cpu_bcast_f32(&s->add_c, cpu->kernels->binary[K_BINARY_add], y,
                      s->beta == 1.0f ? run->in[2] : (float *)run->workspace + s->c_at, y, i0, i1);
}

static enum cm_err gemm_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                            const struct wk_run *run)
{
    const struct gemm_step *s = (const struct gemm_step *)step;
    if (s->trans_a)
        cpu_split(cpu, step, run, transpose_body, k_copy_items(&s->transpose), 1);
    if (s->pack_b)
        cpu_split(cpu, step, run, pack_body, k_panels(s->args.n), 1);
    if (s->has_c && s->beta != 1.0f)
        cpu->kernels->binary[K_BINARY_mul](run->in[2], 1, &s->beta, 0,
                                           (float *)run->workspace + s->c_at, s->c_count);
    cpu_split(cpu, step, run, gemm_body, step->items, 1);
    if (s->alpha != 1.0f)
        cpu_split(cpu, step, run, scale_body, s->args.m * s->args.n, 1024);
    return CM_OK;
}

static size_t take_floats(struct cpu_prepare *p, size_t floats)
{
    return cpu_take_bytes(p, floats * sizeof(float)) / sizeof(float);
}

static void plan_transpose(struct gemm_step *s)
{
    s->transpose = (struct k_copy){.element = sizeof(float),
                                   .rank = 2,
                                   .dims = {s->args.m, s->args.k},
                                   .in_stride = {1, (ptrdiff_t)s->args.m},
                                   .out_stride = {(ptrdiff_t)s->args.k, 1}};
    k_copy_simplify(&s->transpose);
}

/* C is broadcast to [m][n]; as the start of the chains it only needs two strides. */
static void plan_c(struct cpu_prepare *p, struct gemm_step *s)
{
    const struct cm_shape *c = &wk_call_in(p->call, 2)->shape;
    const struct cm_shape *shapes[] = {&wk_call_out(p->call)->shape, c};
    int64_t columns = c->rank > 0 ? c->dims[c->rank - 1] : 1;
    s->args.init_cs = columns != 1;
    s->args.init_rs = c->rank == 2 && c->dims[0] != 1 ? (size_t)columns : 0;
    s->c_count = cpu_count(c);
    if (s->beta != 1.0f)
        s->c_at = take_floats(p, s->c_count);
    if (s->alpha != 1.0f)
        cpu_bcast_init(&s->add_c, &wk_call_out(p->call)->shape, shapes, 2);
}

/* beta = 0 drops C, as BLAS does, so that a NaN there cannot show. */
static bool gemm_has_c(const struct wk_call *call)
{
    return wk_call_in(call, 2) && wk_node_float(call->node, "beta", 1.0f) != 0.0f;
}

static enum cm_err plain_gemm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape, *b = &wk_call_in(p->call, 1)->shape;
    bool trans_a = wk_node_int(node, "transA", 0) != 0, trans_b = gemm_trans_b(node);
    size_t m = (size_t)a->dims[trans_a], k = (size_t)a->dims[!trans_a];
    size_t n = (size_t)b->dims[!trans_b];
    struct plain_gemm *s;
    enum cm_err code = take_plain(p,
                                  (struct k_matmul){.m = m,
                                                    .n = n,
                                                    .k = k,
                                                    .a_rs = trans_a ? 1 : k,
                                                    .a_cs = trans_a ? m : 1,
                                                    .b_rs = trans_b ? 1 : n,
                                                    .b_cs = trans_b ? k : 1},
                                  &s);
    if (code != CM_OK)
        return code;
    s->gemm.has_c = gemm_has_c(p->call);
    s->scale.n = n;
    s->scale.alpha = (double)wk_node_float(node, "alpha", 1.0f);
    s->scale.beta = s->gemm.has_c ? (double)wk_node_float(node, "beta", 1.0f) : 1.0;
    if (s->gemm.has_c) {
        const struct cm_shape *c = &wk_call_in(p->call, 2)->shape;
        int64_t columns = c->rank > 0 ? c->dims[c->rank - 1] : 1;
        s->scale.c_cs = columns != 1;
        s->scale.c_rs = c->rank == 2 && c->dims[0] != 1 ? (size_t)columns : 0;
    }
    if (s->gemm.has_c || s->scale.alpha != 1.0)
        s->finish = k_scale_add_for(wk_call_in(p->call, 0)->dtype);
    *ret_step = &s->gemm.step;
    return CM_OK;
}

enum cm_err cpu_prepare_gemm(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape, *b = &wk_call_in(p->call, 1)->shape;
    bool packed = packs_b(p->call);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_gemm, packed ? 2 : 0, ret_step);
    if (wk_call_in(p->call, 0)->dtype != CM_FP32)
        return plain_gemm(p, ret_step);
    struct matrices m = as_matrices(b, gemm_trans_b(node));
    double work = (double)cpu_count(&wk_call_out(p->call)->shape) * (double)m.k * 0.25;
    struct gemm_step *s = cpu_step_take(p, sizeof *s, gemm_body, 0, 1, work);
    if (!s)
        return CM_NOMEM;
    s->trans_a = wk_node_int(node, "transA", 0) != 0;
    s->pack_b = !packed && gemm_trans_b(node);
    s->alpha = wk_node_float(node, "alpha", 1.0f);
    s->beta = wk_node_float(node, "beta", 1.0f);
    s->has_c = gemm_has_c(p->call);
    s->args = (struct k_gemm){.m = (size_t)a->dims[s->trans_a],
                              .n = m.n,
                              .k = m.k,
                              .lda = m.k,
                              .ldb = packed || s->pack_b ? 0 : m.n,
                              .ldc = m.n,
                              .far_b = is_far(packed, (size_t)a->dims[s->trans_a], &m)};
    if (s->trans_a) {
        plan_transpose(s);
        (void)take_floats(p, s->args.m * s->args.k);
    }
    if (s->pack_b)
        s->packed_at = take_floats(p, k_packed_floats(m.k, m.n));
    if (s->has_c)
        plan_c(p, s);
    choose_blocks(p->cpu, s);
    s->step.items = s->blocks;
    s->step.run = gemm_run;
    s->step.describe = describe_gemm;
    *ret_step = &s->step;
    return cpu_stages_init(p, -1, 1, &s->stages);
}
