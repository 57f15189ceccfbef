/* CPU backend: ConvInteger, QLinearConv, MatMulInteger, QLinearMatMul. See backend_priv.h.
 *
 * Exact integer arithmetic in the FP32 product kernel: operands less their zero points are integers
 * of at most 255, so a float holds the sum of K_EXACT_TERMS products exactly. Longer dot products
 * are cut there, and the pieces added as 32-bit integers, which wrap. Constant weights are stored
 * as such floats when the model is loaded. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/quant.h"

/* ---- zero points and scales ------------------------------------------------------------------ */

/* Operands of the four operators by position; -1 for what an operator does not have. */
struct positions {
    int b, a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, bias;
};

static struct positions positions_of(enum wk_op op)
{
    if (op == WK_OP_ConvInteger || op == WK_OP_MatMulInteger)
        return (struct positions){1, -1, 2, -1, 3, -1, -1, -1};
    return (struct positions){3, 1, 2, 4, 5, 6, 7, op == WK_OP_QLinearConv ? 8 : -1};
}

/* One zero point for all, or one each. */
struct zeros {
    int at; /* operand, or -1 */
    enum cm_dtype dtype;
    size_t count, stored_at; /* in the workspace, as int32 */
};

static struct zeros plan_zeros(struct cpu_prepare *p, int at)
{
    const struct wk_fact *fact = at >= 0 ? wk_call_in(p->call, (unsigned)at) : NULL;
    struct zeros z = {.at = fact ? at : -1, .count = 1};
    if (fact) {
        z.dtype = fact->dtype;
        z.count = cpu_count(&fact->shape);
    }
    z.stored_at = cpu_take_bytes(p, z.count * sizeof(int32_t));
    return z;
}

static const int32_t *read_zeros(const struct zeros *z, const struct wk_run *run)
{
    int32_t *stored = (void *)((char *)run->workspace + z->stored_at);
    for (size_t i = 0; i < z->count; i++)
        stored[i] = z->at >= 0 ? k_int_at(z->dtype, run->in[z->at], i) : 0;
    return stored;
}

/* Factors (a_scale * b_scale) / y_scale: as many as the finer of the two scales has. */
struct factors {
    size_t a, b; /* scales of either, 0: the output is INT32 and has none */
    size_t stored_at;
};

static struct factors plan_factors(struct cpu_prepare *p, struct positions at)
{
    struct factors f = {0};
    if (at.y_scale < 0)
        return f;
    f.a = cpu_count(&wk_call_in(p->call, (unsigned)at.a_scale)->shape);
    f.b = cpu_count(&wk_call_in(p->call, (unsigned)at.b_scale)->shape);
    f.stored_at = cpu_take_bytes(p, f.a * f.b * sizeof(float));
    return f;
}

/* [a][b], rounded after the product and after the quotient. */
static void read_factors(const struct factors *f, struct positions at, const struct wk_run *run)
{
    float *stored = (void *)((char *)run->workspace + f->stored_at);
    for (size_t i = 0; i < f->a; i++)
        for (size_t j = 0; j < f->b; j++)
            stored[i * f->b + j] = ((const float *)run->in[at.a_scale])[i] *
                                   ((const float *)run->in[at.b_scale])[j] /
                                   *(const float *)run->in[at.y_scale];
}

/* ---- operands as floats ---------------------------------------------------------------------- */

/* An operand less its zero points: [rows][columns], zero points for each row (each == 1), for each
 * column (each == 2) or one. Rows repeat their zero points every `period` rows. */
struct centered {
    struct cpu_step step;
    enum cm_dtype dtype;
    size_t rows, columns, period, stored_at;
    int each, operand;
    bool packed; /* when the model was loaded */
    const void *x;
    const int32_t *zeros;
};

static void center_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct centered *c = (const struct centered *)step;
    float *y = (void *)((char *)run->workspace + c->stored_at);
    (void)cpu, (void)thread;
    for (; i0 < i1; i0++) {
        const int32_t *zero = c->zeros + (c->each == 1 ? i0 % c->period : 0);
        k_center(c->dtype, (const char *)c->x + i0 * c->columns, zero, c->each == 2,
                 y + i0 * c->columns, c->columns);
    }
}

/* B and its zero points are constants. */
static bool b_is_packed(const struct wk_call *call)
{
    struct positions at = positions_of(call->node->op);
    return wk_call_is_constant(call, (unsigned)at.b) &&
           (!wk_call_in(call, (unsigned)at.b_zero) ||
            wk_call_is_constant(call, (unsigned)at.b_zero));
}

static struct centered plan_centered(struct cpu_prepare *p, int operand, size_t rows,
                                     size_t columns)
{
    struct centered c = {.dtype = wk_call_in(p->call, (unsigned)operand)->dtype,
                         .rows = rows,
                         .columns = columns,
                         .period = 1,
                         .operand = operand,
                         .packed = operand > 0 && b_is_packed(p->call)};
    if (!c.packed)
        c.stored_at = cpu_take_bytes(p, rows * columns * sizeof(float));
    return c;
}

static void run_centered(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, struct centered c, const struct zeros *zeros)
{
    if (c.packed)
        return;
    c.step.alone = step->alone;
    c.x = run->in[c.operand];
    c.zeros = read_zeros(zeros, run);
    cpu_split(cpu, &c.step, run, center_body, c.rows, 1);
}

static const float *centered_data(const struct centered *c, const struct wk_run *run)
{
    return c->packed ? run->in[c->operand] : (const void *)((char *)run->workspace + c->stored_at);
}

static void layout_b(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    if ((int)k == positions_of(call->node->op).b && b_is_packed(call))
        *ret_layout = (struct wk_layout){
            CPU_LAYOUT_CENTERED, cpu_count(&wk_call_in(call, k)->shape) * sizeof(float), false};
}

/* rows of columns; zero points per row, per column or one, as many as there are. */
static void pack_b(const struct wk_call *call, size_t rows, size_t columns, bool by_row, float *out)
{
    struct positions at = positions_of(call->node->op);
    const struct wk_const *b = call->graph->values[call->node->in[at.b]].constant, *zeros = NULL;
    size_t count = 0;
    if (wk_call_in(call, (unsigned)at.b_zero)) {
        zeros = call->graph->values[call->node->in[at.b_zero]].constant;
        count = cpu_count(&zeros->shape);
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            size_t i = count > 1 ? (by_row ? r : c) : 0;
            int32_t zero = count ? k_int_at(zeros->dtype, zeros->data, i) : 0;
            out[r * columns + c] = (float)(k_int_at(b->dtype, b->data, r * columns + c) - zero);
        }
}

void cpu_layout_integer_conv(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    layout_b(call, k, ret_layout);
}

void cpu_pack_integer_conv(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    const struct cm_shape *w = &wk_call_in(call, k)->shape;
    pack_b(call, (size_t)w->dims[0], cpu_product(w, 1, w->rank), true, ret_bytes);
}

void cpu_layout_integer_product(const struct wk_call *call, unsigned k,
                                struct wk_layout *ret_layout)
{
    layout_b(call, k, ret_layout);
}

void cpu_pack_integer_product(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    const struct cm_shape *b = &wk_call_in(call, k)->shape;
    size_t columns = b->rank >= 2 ? (size_t)b->dims[b->rank - 1] : 1;
    pack_b(call, cpu_product(b, 0, b->rank >= 2 ? b->rank - 1u : 1), columns, false, ret_bytes);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

struct conv_integer_step {
    struct cpu_step step;
    struct positions at;
    struct k_window3 win;
    size_t groups, ic, oc; /* channels per group */
    struct zeros x_zero, w_zero;
    struct factors factors;
    struct centered x, w;
    enum cm_dtype to;
    struct k_conv planar; /* depthwise of few taps: the FP32 kernel's sums are exact */
    size_t sums_at;       /* then: its output, as floats */
    size_t threads_at, thread_bytes;
};

/* A thread's room: a packed panel, products of one piece, sums. */
struct conv_room {
    float *packed, *products;
    int32_t *sums;
};

static size_t conv_room_floats(size_t oc)
{
    return (size_t)K_EXACT_TERMS * K_PANEL + 2 * oc * K_PANEL;
}

static struct conv_room conv_room(const struct conv_integer_step *s, const struct wk_run *run,
                                  unsigned thread)
{
    float *base = (void *)((char *)run->workspace + s->threads_at + thread * s->thread_bytes);
    float *products = base + (size_t)K_EXACT_TERMS * K_PANEL;
    return (struct conv_room){base, products, (void *)(products + s->oc * K_PANEL)};
}

/* Sums of one panel of n pixels in all channels of a group: [oc][n]. */
static void conv_sums(const struct cpu_backend *cpu, const struct conv_integer_step *s,
                      const float *image, const float *weight, size_t j, size_t n,
                      const struct conv_room *room)
{
    size_t k_all = s->ic * k_window3_taps(&s->win), k0 = 0;
    struct k_gemm g = {.m = s->oc, .n = n, .lda = k_all, .ldc = n};
    bool plain = k_window3_is_plain(&s->win);
    g.b = room->packed;
    g.c = room->products;
    do {
        size_t k1 = k_all - k0 < K_EXACT_TERMS ? k_all : k0 + K_EXACT_TERMS;
        if (plain) {
            g.ldb = k_window3_inputs(&s->win);
            g.b = image + k0 * g.ldb + j;
        } else {
            k_f32_pack_window3(&s->win, image, k0, k1, j, n, room->packed);
        }
        g.a = weight + k0;
        g.k = k1 - k0;
        cpu->kernels->f32_gemm(&g, 0, g.m, 0, 1);
        k_accumulate(room->products, k0 == 0, room->sums, s->oc * n);
        k0 = k1;
    } while (k0 < k_all);
}

/* Adds the bias to one channel's sums and stores them as the output's type. */
static void conv_store(const struct conv_integer_step *s, const struct wk_run *run, size_t channel,
                       int32_t *sums, size_t n, size_t at)
{
    const float *factors = (const void *)((char *)run->workspace + s->factors.stored_at);
    const int32_t *bias = s->at.bias >= 0 ? run->in[s->at.bias] : NULL;
    for (size_t i = 0; bias && i < n; i++)
        sums[i] = (int32_t)((uint32_t)sums[i] + (uint32_t)bias[channel]);
    if (s->to == CM_INT32)
        for (size_t i = 0; i < n; i++)
            ((int32_t *)run->out[0])[at + i] = sums[i];
    else
        k_requantize(sums, factors + (s->factors.b > 1 ? channel : 0), 0,
                     k_int_at(s->to, run->in[s->at.y_zero], 0), s->to, (char *)run->out[0] + at, n);
}

/* Items are (image, group, panel of output pixels). */
static void conv_integer_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct conv_integer_step *s = (const struct conv_integer_step *)step;
    const float *x = centered_data(&s->x, run), *w = centered_data(&s->w, run);
    size_t pixels = k_window3_outputs(&s->win), panels = k_panels(pixels);
    struct conv_room room = conv_room(s, run, thread);
    for (; i0 < i1; i0++) {
        size_t at = i0 / panels, j = i0 % panels * K_PANEL, group = at % s->groups;
        size_t n = pixels - j < K_PANEL ? pixels - j : K_PANEL;
        conv_sums(cpu, s, x + at * s->ic * k_window3_inputs(&s->win),
                  w + group * s->oc * s->w.columns, j, n, &room);
        for (size_t c = 0; c < s->oc; c++)
            conv_store(s, run, group * s->oc + c, room.sums + c * n, n,
                       (at * s->oc + c) * pixels + j);
    }
}

/* Depthwise: items are planes. */
static void planar_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct conv_integer_step *s = (const struct conv_integer_step *)step;
    size_t pixels = k_window3_outputs(&s->win);
    float *room = (void *)((char *)run->workspace + s->threads_at + thread * s->thread_bytes);
    struct k_conv args = s->planar;
    args.x = centered_data(&s->x, run);
    args.weight = centered_data(&s->w, run);
    args.y = (void *)((char *)run->workspace + s->sums_at);
    for (; i0 < i1; i0++) {
        int32_t *sums = (void *)(room + k_dwconv_workspace(&args));
        cpu->kernels->f32_dwconv(&args, i0, i0 + 1, room);
        k_accumulate(args.y + i0 * pixels, true, sums, pixels);
        conv_store(s, run, i0 % s->groups, sums, pixels, i0 * pixels);
    }
}

static enum cm_err conv_integer_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                    const struct wk_run *run)
{
    const struct conv_integer_step *s = (const struct conv_integer_step *)step;
    run_centered(cpu, step, run, s->x, &s->x_zero);
    run_centered(cpu, step, run, s->w, &s->w_zero);
    read_factors(&s->factors, s->at, run);
    cpu_split(cpu, step, run, step->body, step->items, step->unit);
    return CM_OK;
}

static void plan_planar(struct cpu_prepare *p, struct conv_integer_step *s, size_t batch,
                        const struct wk_window *window)
{
    size_t pixels = k_window3_outputs(&s->win);
    s->planar = (struct k_conv){
        .win = cpu_window2(window), .batch = batch, .groups = s->groups, .ic = 1, .oc = 1};
    s->step.body = planar_body;
    s->step.items = batch * s->groups;
    s->sums_at = cpu_take_bytes(p, s->step.items * pixels * sizeof(float));
    s->threads_at = cpu_take_bytes(p, 0);
    s->thread_bytes = cpu_thread_floats(p, k_dwconv_workspace(&s->planar) + pixels) * sizeof(float);
}

enum cm_err cpu_prepare_integer_conv(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    struct positions at = positions_of(node->op);
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *w = &wk_call_in(p->call, (unsigned)at.b)->shape;
    struct wk_window window;
    enum cm_err code = wk_window_resolve(node, x, &w->dims[2], p->err, &window);
    if (code != CM_OK)
        return code;
    double work =
        (double)cpu_count(&wk_call_out(p->call)->shape) * (double)cpu_product(w, 1, w->rank);
    struct conv_integer_step *s = cpu_step_take(p, sizeof *s, conv_integer_body, 0, 1, work * 0.25);
    if (!s)
        return CM_NOMEM;
    s->step.run = conv_integer_run;
    s->at = at;
    s->win = cpu_window3(&window);
    s->groups = (size_t)wk_node_int(node, "group", 1);
    s->ic = (size_t)w->dims[1];
    s->oc = (size_t)w->dims[0] / s->groups;
    s->step.items = (size_t)x->dims[0] * s->groups * k_panels(k_window3_outputs(&s->win));
    s->to = wk_call_out(p->call)->dtype;
    if (at.bias >= 0 && !wk_call_in(p->call, (unsigned)at.bias))
        s->at.bias = -1;
    s->x_zero = plan_zeros(p, at.a_zero);
    s->w_zero = plan_zeros(p, at.b_zero);
    s->factors = plan_factors(p, at);
    s->x = plan_centered(p, 0, cpu_product(x, 0, 2), k_window3_inputs(&s->win));
    s->w = plan_centered(p, at.b, (size_t)w->dims[0], cpu_product(w, 1, w->rank));
    s->w.each = s->w_zero.count > 1;
    s->w.period = s->w_zero.count;
    *ret_step = &s->step;
    if (x->rank < 5 && s->ic == 1 && s->oc == 1 && k_window3_taps(&s->win) <= K_EXACT_TERMS) {
        plan_planar(p, s, (size_t)x->dims[0], &window);
        return CM_OK;
    }
    s->threads_at = cpu_take_bytes(p, 0);
    s->thread_bytes = cpu_thread_floats(p, conv_room_floats(s->oc)) * sizeof(float);
    return CM_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

enum { TILE_ROWS = 64, TILE_COLUMNS = 4 * K_PANEL };

struct product_step {
    struct cpu_step step;
    struct positions at;
    size_t m, n, k, row_tiles, column_tiles;
    unsigned n_heads; /* dimensions in front of the matrices; strides in matrices */
    size_t heads[CM_MAX_RANK], a_stride[CM_MAX_RANK], b_stride[CM_MAX_RANK];
    struct zeros a_zero, b_zero;
    struct factors factors;
    struct centered a, b;
    enum cm_dtype to;
    size_t threads_at, thread_bytes;
};

/* Which matrices of A and B an output matrix is made of. */
static void find_matrices(const struct product_step *s, size_t i, size_t *ret_a, size_t *ret_b)
{
    *ret_a = *ret_b = 0;
    for (unsigned d = s->n_heads; d-- > 0; i /= s->heads[d]) {
        *ret_a += i % s->heads[d] * s->a_stride[d];
        *ret_b += i % s->heads[d] * s->b_stride[d];
    }
}

/* One row of a tile's sums as the output's type. */
static void product_store(const struct product_step *s, const struct wk_run *run, size_t row,
                          size_t column, const int32_t *sums, size_t n, size_t at)
{
    const float *factors = (const void *)((char *)run->workspace + s->factors.stored_at);
    size_t first = (s->factors.a > 1 ? row * s->factors.b : 0) + (s->factors.b > 1 ? column : 0);
    if (s->to == CM_INT32)
        for (size_t i = 0; i < n; i++)
            ((int32_t *)run->out[0])[at + i] = sums[i];
    else
        k_requantize(sums, factors + first, s->factors.b > 1,
                     k_int_at(s->to, run->in[s->at.y_zero], 0), s->to, (char *)run->out[0] + at, n);
}

/* Items are (matrix, tile of rows, tile of columns). */
static void product_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct product_step *s = (const struct product_step *)step;
    float *products = (void *)((char *)run->workspace + s->threads_at + thread * s->thread_bytes);
    const float *all_a = centered_data(&s->a, run), *all_b = centered_data(&s->b, run);
    int32_t *sums = (void *)(products + TILE_ROWS * TILE_COLUMNS);
    for (; i0 < i1; i0++) {
        size_t column = i0 % s->column_tiles * TILE_COLUMNS, a, b, k0 = 0;
        size_t row = i0 / s->column_tiles % s->row_tiles * TILE_ROWS;
        size_t matrix = i0 / s->column_tiles / s->row_tiles;
        size_t n = s->n - column < TILE_COLUMNS ? s->n - column : TILE_COLUMNS;
        struct k_gemm g = {.m = s->m - row < TILE_ROWS ? s->m - row : TILE_ROWS, .n = n};
        find_matrices(s, matrix, &a, &b);
        g.lda = s->k;
        g.ldb = s->n;
        g.c = products;
        g.ldc = n;
        do {
            size_t k1 = s->k - k0 < K_EXACT_TERMS ? s->k : k0 + K_EXACT_TERMS;
            g.a = all_a + (a * s->m + row) * s->k + k0;
            g.b = all_b + (b * s->k + k0) * s->n + column;
            g.k = k1 - k0;
            cpu->kernels->f32_gemm(&g, 0, g.m, 0, k_panels(n));
            k_accumulate(products, k0 == 0, sums, g.m * n);
            k0 = k1;
        } while (k0 < s->k);
        for (size_t r = 0; r < g.m; r++)
            product_store(s, run, row + r, column, sums + r * n, n,
                          (matrix * s->m + row + r) * s->n + column);
    }
}

static enum cm_err product_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    const struct product_step *s = (const struct product_step *)step;
    run_centered(cpu, step, run, s->a, &s->a_zero);
    run_centered(cpu, step, run, s->b, &s->b_zero);
    read_factors(&s->factors, s->at, run);
    cpu_split(cpu, step, run, product_body, step->items, step->unit);
    return CM_OK;
}

/* Leading dimensions with broadcasting; the number of output matrices. */
static size_t plan_heads(struct product_step *s, const struct cm_shape *a, const struct cm_shape *b)
{
    unsigned a_rank = a->rank > 2 ? a->rank - 2u : 0, b_rank = b->rank > 2 ? b->rank - 2u : 0;
    size_t a_stride = 1, b_stride = 1, count = 1;
    s->n_heads = a_rank > b_rank ? a_rank : b_rank;
    for (unsigned i = 0; i < s->n_heads; i++) {
        unsigned at = s->n_heads - 1 - i;
        size_t a_dim = i < a_rank ? (size_t)a->dims[a_rank - 1 - i] : 1;
        size_t b_dim = i < b_rank ? (size_t)b->dims[b_rank - 1 - i] : 1;
        s->heads[at] = a_dim == 1 ? b_dim : a_dim;
        s->a_stride[at] = a_dim == 1 ? 0 : a_stride;
        s->b_stride[at] = b_dim == 1 ? 0 : b_stride;
        a_stride *= a_dim;
        b_stride *= b_dim;
        count *= s->heads[at];
    }
    return count;
}

enum cm_err cpu_prepare_integer_product(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct positions at = positions_of(p->call->node->op);
    const struct cm_shape *a = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *b = &wk_call_in(p->call, (unsigned)at.b)->shape;
    size_t k = (size_t)a->dims[a->rank - 1], outputs = cpu_count(&wk_call_out(p->call)->shape);
    struct product_step *s =
        cpu_step_take(p, sizeof *s, NULL, 0, 1, (double)outputs * (double)k * 0.25);
    if (!s)
        return CM_NOMEM;
    s->step.run = product_run;
    s->at = at;
    s->k = k;
    s->m = a->rank >= 2 ? (size_t)a->dims[a->rank - 2] : 1;
    s->n = b->rank >= 2 ? (size_t)b->dims[b->rank - 1] : 1;
    s->to = wk_call_out(p->call)->dtype;
    s->row_tiles = (s->m + TILE_ROWS - 1) / TILE_ROWS;
    s->column_tiles = (s->n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    s->step.items = plan_heads(s, a, b) * s->row_tiles * s->column_tiles;
    s->a_zero = plan_zeros(p, at.a_zero);
    s->b_zero = plan_zeros(p, at.b_zero);
    s->factors = plan_factors(p, at);
    s->a = plan_centered(p, 0, a->rank >= 2 ? cpu_product(a, 0, a->rank - 1u) : 1, k);
    s->a.each = s->a_zero.count > 1;
    s->a.period = s->a_zero.count;
    s->b = plan_centered(p, at.b, b->rank >= 2 ? cpu_product(b, 0, b->rank - 1u) : k, s->n);
    s->b.each = s->b_zero.count > 1 ? 2 : 0;
    s->threads_at = cpu_take_bytes(p, 0);
    s->thread_bytes = cpu_thread_floats(p, (size_t)2 * TILE_ROWS * TILE_COLUMNS) * sizeof(float);
    *ret_step = &s->step;
    return CM_OK;
}
