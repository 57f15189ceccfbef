/* CPU backend: RNN, GRU and LSTM. See backend_priv.h.
 *
 * A gate of one hidden unit at one time is one chain of fused multiply-adds: from the bias over the
 * input, then over the previous hidden state. The input's part is a product over many time steps at
 * once, which leaves unfinished chains; each step continues them in place with all rows of the
 * batch in one product, and a cell kernel (kernels.h) does the rest. A row's bits depend on no
 * other row.
 *
 * Rows and directions are independent through all of time, so threads share them out and never
 * meet; only where there is a single row do they share the columns of the large products.
 *
 * Stored forms, per direction (the parts of a direction lie behind each other):
 *   W      [input][gates * hidden] packed (kernels.h)
 *   R      [hidden][gates * hidden] packed; of GRU [hidden][2 hidden] and [hidden][hidden], because
 *          the third gate's product has another operand
 *   bias   [gates * hidden], Wb + Rb rounded once; with linear_before_reset the third gate has Wb
 *          only, and its Rb [hidden] follows */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"

#include <math.h>
#include <string.h>

enum { X, W, R, B, SEQUENCE_LENS, INITIAL_H, INITIAL_C, P };

/* Rows of an input product: enough for the GEMM kernel's speed, few enough to stay in cache. */
enum { CHUNK_ROWS = 64 };

/* Multiply-adds of a product that is worth sharing between threads. */
#define SHARED_PRODUCT ((size_t)1 << 17)

struct rnn_sizes {
    size_t directions, input, hidden, gates; /* gates: all gates' columns */
    size_t w, r, r_third, bias;              /* floats of one direction; r_third: where in r */
};

struct rnn_step {
    struct cpu_step step;
    enum wk_op op;
    const struct wk_node *node;
    struct wk_recurrent layer;
    struct rnn_sizes size;
    struct k_rnn_act act[2][3];
    unsigned n_in, n_out;
    size_t seq, batch;
    size_t blocks; /* parts of the batch; items are (direction, block) */
    size_t chunk;  /* time steps of one input product */
    bool shared;   /* a single item, whose products are shared between threads */
    bool pack[B + 1];
    size_t packed_at[B + 1];          /* workspace offsets in floats, where pack */
    size_t threads_at, thread_floats; /* workspace of each thread */
};

/* ---- stored forms ---------------------------------------------------------------------------- */

static struct rnn_sizes sizes_of(const struct wk_node *node, const struct cm_shape *w)
{
    struct rnn_sizes s = {
        .directions = (size_t)w->dims[0], .gates = (size_t)w->dims[1], .input = (size_t)w->dims[2]};
    bool gru = node->op == WK_OP_GRU;
    s.hidden = s.gates / (node->op == WK_OP_LSTM ? 4 : gru ? 3 : 1);
    s.w = k_packed_floats(s.input, s.gates);
    s.r = k_packed_floats(s.hidden, s.gates);
    if (gru) {
        s.r_third = k_packed_floats(s.hidden, 2 * s.hidden);
        s.r = s.r_third + k_packed_floats(s.hidden, s.hidden);
    }
    s.bias = s.gates + (gru && wk_node_int(node, "linear_before_reset", 0) ? s.hidden : 0);
    return s;
}

/* Rows [from, from + n) of the [.][k] matrix `rows` as the columns of a packed product. */
static void pack_rows(const float *rows, size_t from, size_t n, size_t k, float *out)
{
    k_f32_pack_b(rows + from * k, 1, k, k, n, 0, k_panels(n), out);
}

static void pack_bias(const struct rnn_sizes *s, const float *b, float *out)
{
    const float *rb = b + s->gates;
    size_t summed = s->bias > s->gates ? s->gates - s->hidden : s->gates;
    for (size_t i = 0; i < s->gates; i++)
        out[i] = i < summed ? b[i] + rb[i] : b[i];
    for (size_t i = s->gates; i < s->bias; i++)
        out[i] = rb[i - s->hidden];
}

static void pack_operand(enum wk_op op, const struct rnn_sizes *s, unsigned k, const float *from,
                         float *out)
{
    for (size_t d = 0; d < s->directions; d++) {
        if (k == W) {
            pack_rows(from + d * s->gates * s->input, 0, s->gates, s->input, out + d * s->w);
        } else if (k == R) {
            const float *rows = from + d * s->gates * s->hidden;
            size_t first = op == WK_OP_GRU ? 2 * s->hidden : s->gates;
            pack_rows(rows, 0, first, s->hidden, out + d * s->r);
            if (first < s->gates)
                pack_rows(rows, first, s->hidden, s->hidden, out + d * s->r + s->r_third);
        } else {
            pack_bias(s, from + d * 2 * s->gates, out + d * s->bias);
        }
    }
}

static size_t packed_floats(const struct rnn_sizes *s, unsigned k)
{
    return s->directions * (k == W ? s->w : k == R ? s->r : s->bias);
}

/* Sizes that the shape of input k (W, R or B) tells: all that its own stored form depends on. */
static struct rnn_sizes sizes_by(const struct wk_call *call, unsigned k)
{
    struct cm_shape shape = wk_call_in(call, k)->shape;
    if (k == B)
        shape = (struct cm_shape){.rank = 3, .dims = {shape.dims[0], shape.dims[1] / 2, 0}};
    return sizes_of(call->node, &shape);
}

/* Input k, a constant, has a shape and type that its stored form can be made of. Shape inference
 * has not looked at it yet where another input's rank is only known in the run; it will refuse the
 * node then, and until then the constant stays plain. */
static bool can_be_stored(const struct wk_call *call, unsigned k)
{
    const struct wk_fact *fact = wk_call_in(call, k);
    const int64_t *dims = fact->shape.dims;
    int64_t gates = call->node->op == WK_OP_LSTM ? 4 : call->node->op == WK_OP_GRU ? 3 : 1;
    if (fact->dtype != CM_FP32 || fact->shape.rank != (k == B ? 2 : 3))
        return false;
    return dims[1] % (k == B ? 2 * gates : gates) == 0 && (k != R || dims[2] * gates == dims[1]);
}

void cpu_layout_recurrent(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout)
{
    if (k < W || k > B || !can_be_stored(call, k))
        return;
    struct rnn_sizes s = sizes_by(call, k);
    uint32_t kind = k == B                                  ? CPU_LAYOUT_RNN_BIAS
                    : k == R && call->node->op == WK_OP_GRU ? CPU_LAYOUT_GRU_R
                                                            : CPU_LAYOUT_RNN;
    *ret_layout = (struct wk_layout){kind, packed_floats(&s, k) * sizeof(float), true};
}

void cpu_pack_recurrent(const struct wk_call *call, unsigned k, void *ret_bytes)
{
    struct rnn_sizes s = sizes_by(call, k);
    pack_operand(call->node->op, &s, k, call->graph->values[call->node->in[k]].constant->data,
                 ret_bytes);
}

/* ---- running --------------------------------------------------------------------------------- */

typedef void cell_fn(const struct k_rnn_cell *c, size_t i0, size_t i1);

/* One direction of a block of rows, in a run. */
struct rnn_part {
    const struct cpu_backend *cpu;
    const struct rnn_step *s;
    size_t rows;
    const float *w, *r, *bias, *x;
    const int32_t *lens; /* of the block's rows, or NULL */
    float *y, *gates, *extra;
    size_t x_time, x_row, y_time, y_row; /* strides in floats */
    struct k_rnn_cell cell;
    cell_fn *run_cell;
};

static const void *input_of(const struct rnn_step *s, const struct wk_run *run, unsigned k)
{
    return k < s->n_in ? run->in[k] : NULL;
}

static void *output_of(const struct rnn_step *s, const struct wk_run *run, unsigned k)
{
    return k < s->n_out ? run->out[k] : NULL;
}

/* W, R or B of a direction in its stored form; NULL for a B that is left out. */
static const float *operand_of(const struct rnn_step *s, const struct wk_run *run, unsigned k,
                               size_t direction)
{
    const float *at =
        s->pack[k] ? (const float *)run->workspace + s->packed_at[k] : input_of(s, run, k);
    size_t floats = k == W ? s->size.w : k == R ? s->size.r : s->size.bias;
    return at ? at + direction * floats : NULL;
}

struct shared_product {
    const struct cpu_backend *cpu;
    const struct k_gemm *g;
};

static void run_share(void *context, size_t part, unsigned thread)
{
    const struct shared_product *p = context;
    size_t p0, p1;
    (void)thread;
    cpu_pool_share(k_panels(p->g->n), 1, p->cpu->threads, part, &p0, &p1);
    if (p0 < p1)
        p->cpu->kernels->f32_gemm(p->g, 0, p->g->m, p0, p1);
}

static void product(const struct rnn_part *p, const struct k_gemm *g)
{
    struct shared_product shared = {p->cpu, g};
    if (p->s->shared && g->m * g->n * g->k >= SHARED_PRODUCT)
        cpu_pool_run(p->cpu->pool, run_share, &shared, p->cpu->threads,
                     (double)(g->m * g->n * g->k) * 0.25 * CPU_WORK_NS);
    else
        p->cpu->kernels->f32_gemm(g, 0, g->m, 0, k_panels(g->n));
}

/* Starts the chains of the time steps [t0, t0 + n): gates [n][rows][gates]. */
static void input_product(const struct rnn_part *p, size_t t0, size_t n)
{
    const struct rnn_sizes *size = &p->s->size;
    struct k_gemm g = {.m = p->rows, .n = size->gates, .k = size->input, .lda = p->x_row};
    g.b = p->w, g.init = p->bias, g.init_cs = 1, g.ldc = size->gates;
    g.a = p->x + t0 * p->x_time, g.c = p->gates;
    if (p->rows == 1 || p->x_time == p->rows * p->x_row) { /* one row of A follows another */
        g.m = n * p->rows;
        g.lda = p->rows == 1 ? p->x_time : p->x_row;
        product(p, &g);
        return;
    }
    for (size_t t = 0; t < n; t++, g.a += p->x_time, g.c += p->rows * size->gates)
        product(p, &g);
}

/* Continues a GRU's chains: the third gate's recurrent part is multiplied by the reset gate either
 * before its product or after it. */
static void gru_products(const struct rnn_part *p, struct k_gemm g, struct k_rnn_cell *cell)
{
    const size_t hidden = p->s->size.hidden, gates = p->s->size.gates;
    g.n = 2 * hidden;
    product(p, &g);
    g.n = hidden;
    g.b += p->s->size.r_third;
    if (p->s->layer.linear_before_reset) {
        g.c = p->extra, g.ldc = hidden;
        g.init = p->bias ? p->bias + gates : NULL, g.init_rs = 0;
        cell->recurrent = p->extra;
    } else {
        cell->reset = p->extra;
        p->cpu->kernels->f32_gru_reset(cell, 0, p->rows);
        g.a = p->extra;
        g.c += 2 * hidden;
        g.init = g.c;
    }
    product(p, &g);
}

/* The cells of the rows whose sequences reach time t; the others keep their state and give 0. */
static void run_cells(const struct rnn_part *p, size_t t, struct k_rnn_cell *cell)
{
    for (size_t i = 0, end; i < p->rows; i = end) {
        bool lives = !p->lens || t < (size_t)p->lens[i];
        for (end = p->lens ? i + 1 : p->rows; end < p->rows; end++)
            if ((t < (size_t)p->lens[end]) != lives)
                break;
        if (lives)
            p->run_cell(cell, i, end);
        for (size_t row = i; !lives && cell->y && row < end; row++)
            memset(cell->y + row * p->y_row, 0, p->s->size.hidden * sizeof(float));
    }
}

static void time_step(const struct rnn_part *p, size_t t, float *gates)
{
    const struct rnn_sizes *size = &p->s->size;
    struct k_rnn_cell cell = p->cell;
    struct k_gemm g = {.m = p->rows, .n = size->gates, .k = size->hidden, .lda = size->hidden};
    g.a = cell.h, g.b = p->r, g.c = gates, g.ldc = size->gates;
    g.init = gates, g.init_rs = size->gates, g.init_cs = 1;
    cell.gates = gates;
    cell.y = p->y ? p->y + t * p->y_time : NULL;
    if (p->s->op == WK_OP_GRU)
        gru_products(p, g, &cell);
    else
        product(p, &g);
    run_cells(p, t, &cell);
}

static void all_steps(const struct rnn_part *p, bool reverse)
{
    const size_t seq = p->s->seq, line = p->rows * p->s->size.gates;
    for (size_t done = 0, n; done < seq; done += n) {
        n = seq - done < p->s->chunk ? seq - done : p->s->chunk;
        size_t t0 = reverse ? seq - done - n : done;
        input_product(p, t0, n);
        for (size_t i = 0; i < n; i++) {
            size_t at = reverse ? n - 1 - i : i;
            time_step(p, t0 + at, p->gates + at * line);
        }
    }
}

/* Copies the block's states between an operand of ONNX's layout and [rows][hidden]; a NULL operand
 * is not written, and reads as zeros. */
static void copy_states(const struct rnn_step *s, size_t direction, size_t row, size_t rows,
                        const float *from, float *to, float *state)
{
    const size_t hidden = s->size.hidden, bytes = hidden * sizeof(float);
    for (size_t i = 0; i < rows; i++) {
        size_t at = s->layer.batch_first ? (row + i) * s->size.directions + direction
                                         : direction * s->batch + row + i;
        if (to)
            memcpy(to + at * hidden, state + i * hidden, bytes);
        else if (from)
            memcpy(state + i * hidden, from + at * hidden, bytes);
        else
            memset(state + i * hidden, 0, bytes);
    }
}

static struct rnn_part part_of(const struct cpu_backend *cpu, const struct rnn_step *s,
                               const struct wk_run *run, size_t d, size_t row, size_t rows)
{
    const size_t hidden = s->size.hidden;
    const struct cpu_kernels *k = cpu->kernels;
    struct rnn_part p = {.cpu = cpu, .s = s, .rows = rows};
    const int32_t *lens = input_of(s, run, SEQUENCE_LENS);
    const float *peephole = input_of(s, run, P);
    float *y = output_of(s, run, 0);
    bool first = s->layer.batch_first;
    p.x_time = first ? s->size.input : s->batch * s->size.input;
    p.x_row = first ? s->seq * s->size.input : s->size.input;
    p.y_time = s->size.directions * hidden * (first ? 1 : s->batch);
    p.y_row = first ? s->seq * s->size.directions * hidden : hidden;
    p.x = (const float *)run->in[X] + row * p.x_row;
    p.y = y ? y + row * p.y_row + d * hidden * (first ? 1 : s->batch) : NULL;
    p.w = operand_of(s, run, W, d), p.r = operand_of(s, run, R, d);
    p.bias = operand_of(s, run, B, d);
    p.lens = lens ? lens + row : NULL;
    p.cell = (struct k_rnn_cell){.hidden = hidden,
                                 .gates_stride = s->size.gates,
                                 .y_stride = p.y_row,
                                 .clip = s->layer.clip,
                                 .input_forget = s->layer.input_forget};
    p.cell.peephole = peephole ? peephole + d * 3 * hidden : NULL;
    memcpy(p.cell.act, s->act[d], sizeof p.cell.act);
    p.run_cell = s->op == WK_OP_LSTM  ? k->f32_lstm_cell
                 : s->op == WK_OP_GRU ? k->f32_gru_cell
                                      : k->f32_rnn_cell;
    return p;
}

static void rnn_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct rnn_step *s = (const struct rnn_step *)step;
    for (size_t i = i0; i < i1; i++) {
        size_t d = i / s->blocks, block = i % s->blocks;
        size_t row = s->batch * block / s->blocks, end = s->batch * (block + 1) / s->blocks;
        struct rnn_part p = part_of(cpu, s, run, d, row, end - row);
        size_t state = p.rows * s->size.hidden;
        p.cell.h = (float *)run->workspace + s->threads_at + thread * s->thread_floats;
        p.cell.c = p.cell.h + state;
        p.extra = p.cell.c + state;
        p.gates = p.extra + state;
        copy_states(s, d, row, p.rows, input_of(s, run, INITIAL_H), NULL, p.cell.h);
        copy_states(s, d, row, p.rows, input_of(s, run, INITIAL_C), NULL, p.cell.c);
        all_steps(&p, d == 1 || s->layer.reverse);
        if (output_of(s, run, 1))
            copy_states(s, d, row, p.rows, NULL, output_of(s, run, 1), p.cell.h);
        if (output_of(s, run, 2))
            copy_states(s, d, row, p.rows, NULL, output_of(s, run, 2), p.cell.c);
    }
}

static enum cm_err rnn_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run)
{
    const struct rnn_step *s = (const struct rnn_step *)step;
    const int32_t *lens = input_of(s, run, SEQUENCE_LENS);
    /* Another process may change them after this: they are only ever compared. */
    for (size_t i = 0; lens && i < s->batch; i++)
        if (lens[i] < 0 || (size_t)lens[i] > s->seq)
            return wk_node_fail(run->err, CM_INVALID, s->node,
                                "sequence_lens has a number that is not 0 to %zu", s->seq);
    for (unsigned k = W; k <= B; k++)
        if (s->pack[k])
            pack_operand(s->op, &s->size, k, run->in[k], (float *)run->workspace + s->packed_at[k]);
    if (s->shared)
        rnn_body(cpu, step, run, 0, step->items, 0);
    else
        cpu_split(cpu, step, run, rnn_body, step->items, 1);
    return CM_OK;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static void take_activations(struct rnn_step *s)
{
    static const enum k_rnn_fn fns[WK_ACT_COUNT] = {
        [WK_ACT_RELU] = K_RNN_RELU,
        [WK_ACT_TANH] = K_RNN_TANH,
        [WK_ACT_SIGMOID] = K_RNN_SIGMOID,
        [WK_ACT_AFFINE] = K_RNN_AFFINE,
        [WK_ACT_LEAKY_RELU] = K_RNN_LEAKY_RELU,
        [WK_ACT_THRESHOLDED_RELU] = K_RNN_THRESHOLDED_RELU,
        [WK_ACT_SCALED_TANH] = K_RNN_SCALED_TANH,
        [WK_ACT_HARD_SIGMOID] = K_RNN_HARD_SIGMOID,
        [WK_ACT_ELU] = K_RNN_ELU,
        [WK_ACT_SOFTSIGN] = K_RNN_SOFTSIGN,
        [WK_ACT_SOFTPLUS] = K_RNN_SOFTPLUS,
    };
    for (unsigned d = 0; d < 2; d++)
        for (unsigned k = 0; k < 3; k++)
            s->act[d][k] = (struct k_rnn_act){fns[s->layer.act[d][k].fn], s->layer.act[d][k].alpha,
                                              s->layer.act[d][k].beta};
}

/* Workspace: operands packed in the run, then each thread's states, third gate and gates. */
static enum cm_err take_workspace(struct cpu_prepare *p, struct rnn_step *s)
{
    size_t rows = (s->batch + s->blocks - 1) / s->blocks;
    size_t steps = rows < CHUNK_ROWS ? CHUNK_ROWS / (rows ? rows : 1) : 1;
    s->chunk = s->seq < steps ? (s->seq ? s->seq : 1) : steps;
    double states = (double)rows * 3.0 * (double)s->size.hidden;
    double gates = (double)rows * (double)s->chunk * (double)s->size.gates;
    if (states + gates > (double)WK_MAX_PLAN_BYTES / sizeof(float))
        return wk_node_fail(p->err, CM_LIMIT, p->call->node, "needs too much memory");
    for (unsigned k = W; k <= B; k++) {
        s->pack[k] = wk_call_in(p->call, k) &&
                     !(wk_call_has_constant(p->call, k) && can_be_stored(p->call, k));
        if (s->pack[k])
            s->packed_at[k] =
                cpu_take_bytes(p, packed_floats(&s->size, k) * sizeof(float)) / sizeof(float);
    }
    s->threads_at = cpu_take_bytes(p, 0) / sizeof(float);
    s->thread_floats = cpu_thread_floats(p, (size_t)(states + gates));
    return CM_OK;
}

enum cm_err cpu_prepare_recurrent(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *x = &wk_call_in(p->call, X)->shape;
    struct rnn_sizes size = sizes_of(node, &wk_call_in(p->call, W)->shape);
    struct wk_recurrent layer;
    enum cm_err code = wk_recurrent_resolve(node, p->err, &layer);
    if (code != CM_OK)
        return code;
    double work = (double)cpu_product(x, 0, 2) * (double)size.directions * (double)size.gates *
                  (double)(size.input + size.hidden) * 0.25;
    struct rnn_step *s = cpu_step_take(p, sizeof *s, rnn_body, 0, 1, work);
    if (!s)
        return CM_NOMEM;
    s->op = node->op;
    s->node = node;
    s->layer = layer;
    s->size = size;
    s->n_in = node->n_in;
    s->n_out = node->n_out;
    s->seq = (size_t)x->dims[layer.batch_first];
    s->batch = (size_t)x->dims[!layer.batch_first];
    take_activations(s);
    s->blocks = 1;
    if (!s->step.alone && s->batch > 1) {
        size_t wanted = (p->cpu->threads + size.directions - 1) / size.directions;
        s->blocks = wanted < s->batch ? wanted : s->batch;
    }
    s->step.items = size.directions * s->blocks;
    s->shared = !s->step.alone && s->step.items == 1;
    s->step.run = rnn_run;
    code = take_workspace(p, s);
    *ret_step = &s->step;
    return code;
}
