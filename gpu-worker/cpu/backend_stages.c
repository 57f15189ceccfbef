/* CPU backend: element-wise operators that run in the step of another node. See backend_priv.h.
 *
 * After a product or a convolution they are stages of the kernel's epilogue. After an element-wise
 * operator they are a chain: each piece of the output goes through all of them while it is in the
 * first-level cache. Either way every operator is the kernel that it would be alone. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/broadcast.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

_Static_assert(WK_MAX_STAGES <= K_MAX_STAGES, "a node's stages fit an epilogue");

/* ---- operators ------------------------------------------------------------------------------- */

/* The kernel of an operator that has one whatever its attributes are. */
static bool unary_of(enum wk_op op, enum k_unary *ret)
{
    static const struct {
        enum wk_op op;
        enum k_unary kernel;
    } table[] = {
        {WK_OP_Abs, K_UNARY_abs},
        {WK_OP_Ceil, K_UNARY_ceil},
        {WK_OP_Clip, K_UNARY_clip},
        {WK_OP_Erf, K_UNARY_erf},
        {WK_OP_Exp, K_UNARY_exp},
        {WK_OP_Floor, K_UNARY_floor},
        {WK_OP_Gelu, K_UNARY_gelu},
        {WK_OP_HardSigmoid, K_UNARY_hard_sigmoid},
        {WK_OP_HardSwish, K_UNARY_hard_swish},
        {WK_OP_LeakyRelu, K_UNARY_leaky_relu},
        {WK_OP_Log, K_UNARY_log},
        {WK_OP_Neg, K_UNARY_neg},
        {WK_OP_Reciprocal, K_UNARY_reciprocal},
        {WK_OP_Relu, K_UNARY_relu},
        {WK_OP_Sigmoid, K_UNARY_sigmoid},
        {WK_OP_Sqrt, K_UNARY_sqrt},
        {WK_OP_Tanh, K_UNARY_tanh},
    };
    for (size_t i = 0; i < CM_COUNT_OF(table); i++)
        if (table[i].op == op) {
            *ret = table[i].kernel;
            return true;
        }
    return false;
}

/* The kernel of what a pass has made of an operator. */
static bool form_of(const struct wk_node *node, enum k_unary *ret)
{
    switch (node->form) {
    case WK_FORM_GATE:
        *ret = node->op == WK_OP_Sigmoid ? K_UNARY_silu : K_UNARY_hard_gate;
        return node->op == WK_OP_Sigmoid || node->op == WK_OP_HardSigmoid;
    case WK_FORM_SIX:
        *ret = K_UNARY_hard_swish_6;
        return node->op == WK_OP_HardSwish;
    case WK_FORM_BY_SIX:
        *ret = K_UNARY_hard_swish_by_6;
        return node->op == WK_OP_HardSwish;
    default:
        return false;
    }
}

static bool binary_of(enum wk_op op, enum k_binary *ret)
{
    switch (op) {
    case WK_OP_Add:
        *ret = K_BINARY_add;
        return true;
    case WK_OP_Sub:
        *ret = K_BINARY_sub;
        return true;
    case WK_OP_Mul:
        *ret = K_BINARY_mul;
        return true;
    case WK_OP_Div:
        *ret = K_BINARY_div;
        return true;
    default:
        return false;
    }
}

/* A bound of Clip as an attribute or a constant; false if the graph computes it. */
static bool clip_bound(const struct wk_graph *graph, const struct wk_node *node, unsigned k,
                       float *bound)
{
    if (k >= node->n_in || node->in[k] < 0)
        return true;
    const struct wk_const *constant = graph->values[node->in[k]].constant;
    if (!constant || constant->dtype != CM_FP32 || constant->bytes != sizeof(float))
        return false;
    memcpy(bound, constant->data, sizeof(float)); /* small: valid for the graph's life */
    return true;
}

static bool fill_params(const struct wk_graph *graph, const struct wk_node *node,
                        struct k_stage *stage)
{
    bool hard = node->op == WK_OP_HardSigmoid;
    stage->params.alpha = wk_node_float(node, "alpha", hard ? 0.2f : 0.01f);
    stage->params.beta = wk_node_float(node, "beta", 0.5f);
    if (node->op == WK_OP_Clip) {
        stage->params.alpha = wk_node_float(node, "min", -FLT_MAX);
        stage->params.beta = wk_node_float(node, "max", FLT_MAX);
        return clip_bound(graph, node, 1, &stage->params.alpha) &&
               clip_bound(graph, node, 2, &stage->params.beta);
    }
    return true;
}

bool cpu_stage_kernel(const struct wk_graph *graph, const struct wk_node *node,
                      struct k_stage *ret_stage)
{
    enum k_unary unary;
    enum k_binary binary;
    *ret_stage = (struct k_stage){.kind = K_STAGE_UNARY};
    if (binary_of(node->op, &binary)) {
        ret_stage->kind = K_STAGE_BINARY;
        ret_stage->op = (int)binary;
        return node->opset >= 7; /* before, they broadcast as an attribute says */
    }
    if (!unary_of(node->op, &unary))
        return false;
    if (strcmp(wk_node_string(node, "approximate", "none"), "tanh") == 0)
        unary = K_UNARY_gelu_tanh;
    if (node->form != WK_FORM_OWN && !form_of(node, &unary))
        return false;
    ret_stage->op = (int)unary;
    return fill_params(graph, node, ret_stage);
}

/* ---- which pairs ----------------------------------------------------------------------------- */

static bool is_float(const struct wk_call *call, unsigned k)
{
    const struct wk_fact *fact = wk_call_in(call, k);
    return !fact || (fact->dtype == CM_FP32 && !fact->unranked);
}

/* An element-wise node whose operands are all FP32. */
bool cpu_is_chain(const struct wk_call *call)
{
    struct k_stage own;
    return cpu_stage_kernel(call->graph, call->node, &own) && is_float(call, 0) &&
           is_float(call, 1);
}

bool cpu_fuses(const struct wk_call *host, const struct wk_node *stage, enum wk_spread spread)
{
    const struct wk_node *node = host->node;
    struct k_stage kernel;
    if (!cpu_stage_kernel(host->graph, stage, &kernel) || !is_float(host, 0) ||
        !is_float(host, 1) || node->n_stages == K_MAX_STAGES)
        return false;
    bool simple = spread == WK_SPREAD_NONE || spread == WK_SPREAD_ONE || spread == WK_SPREAD_EACH;
    switch (node->op) {
    case WK_OP_Conv:
        return wk_call_in(host, 0)->shape.rank <= 4 && (simple || spread == WK_SPREAD_CHANNEL);
    case WK_OP_Gemm:
        return wk_node_float(node, "alpha", 1.0f) == 1.0f && (simple || spread == WK_SPREAD_LAST);
    case WK_OP_MatMul:
        if (wk_call_in(host, 0)->shape.rank < 2 || wk_call_in(host, 1)->shape.rank < 2)
            return simple;
        return simple || spread == WK_SPREAD_LAST;
    default:
        return cpu_is_chain(host);
    }
}

/* ---- stages of an epilogue ------------------------------------------------------------------- */

/* Every dimension but the one at `axis` of the output is 1, and that one is the output's. */
static bool lies_along(const struct cm_shape *operand, const struct cm_shape *out, int axis)
{
    for (unsigned i = 0; i < operand->rank; i++) {
        int at = (int)(out->rank - operand->rank + i);
        if (operand->dims[i] != (at == axis ? out->dims[at] : 1))
            return false;
    }
    return axis >= 0 && operand->rank + (unsigned)axis >= out->rank;
}

static bool find_spread(const struct cm_shape *operand, const struct cm_shape *out, int rows,
                        int columns, enum k_spread *ret)
{
    if (operand->rank > out->rank)
        return false;
    if (cpu_count(operand) == 1)
        *ret = K_ONE;
    else if (cm_shape_equal(operand, out))
        *ret = K_EACH;
    else if (lies_along(operand, out, rows))
        *ret = K_ROW;
    else if (lies_along(operand, out, columns))
        *ret = K_COLUMN;
    else
        return false;
    return true;
}

enum cm_err cpu_stages_init(struct cpu_prepare *p, int rows, int columns,
                            struct cpu_stages *ret_stages)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    *ret_stages = (struct cpu_stages){.epilogue.n_stages = node->n_stages};
    for (unsigned i = 0; i < node->n_stages; i++) {
        const struct wk_stage *from = &node->stages[i];
        struct k_stage *stage = &ret_stages->epilogue.stages[i];
        bool fine = cpu_stage_kernel(p->call->graph, from->node, stage);
        stage->reversed = from->reversed;
        ret_stages->input[i] = from->operand;
        if (from->operand)
            fine = fine && find_spread(&wk_call_in(p->call, from->operand)->shape, out, rows,
                                       columns, &stage->spread);
        if (!fine)
            return wk_node_fail(p->err, CM_INTERNAL, from->node,
                                "its operands do not have the shapes that it was fused for");
    }
    return CM_OK;
}

const struct k_epilogue *cpu_stages_bind(const struct cpu_stages *stages, const struct wk_run *run,
                                         struct k_epilogue *ret)
{
    if (stages->epilogue.n_stages == 0)
        return NULL;
    *ret = stages->epilogue;
    for (unsigned i = 0; i < ret->n_stages; i++)
        if (stages->input[i])
            ret->stages[i].operand = run->in[stages->input[i]];
    return ret;
}

/* ---- chains ---------------------------------------------------------------------------------- */

enum { CHAIN_PIECE = 4096 /* elements: with an operand or two they fit the first-level cache */ };

struct chain_link {
    struct k_stage stage;
    struct cpu_bcast bcast; /* binary: (y, operand), or (operand, y) if reversed */
    uint16_t input;
};

struct chain_step {
    struct cpu_step step;
    unsigned n;
    struct chain_link own, links[K_MAX_STAGES];
};

static void run_link(const struct cpu_backend *cpu, const struct chain_link *link, const float *x,
                     const float *operand, float *y, size_t e0, size_t e1)
{
    if (link->stage.kind == K_STAGE_UNARY)
        cpu->kernels->unary[link->stage.op](x + e0, y + e0, e1 - e0, &link->stage.params);
    else if (link->stage.reversed)
        cpu_bcast_f32(&link->bcast, cpu->kernels->binary[link->stage.op], operand, x, y, e0, e1);
    else
        cpu_bcast_f32(&link->bcast, cpu->kernels->binary[link->stage.op], x, operand, y, e0, e1);
}

static void chain_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct chain_step *s = (const struct chain_step *)step;
    float *y = run->out[0];
    (void)thread;
    for (; i0 < i1; i0 += CHAIN_PIECE) {
        size_t end = i1 - i0 < CHAIN_PIECE ? i1 : i0 + CHAIN_PIECE;
        run_link(cpu, &s->own, run->in[0], s->own.input ? run->in[1] : NULL, y, i0, end);
        for (unsigned i = 0; i < s->n; i++)
            run_link(cpu, &s->links[i], y, s->links[i].input ? run->in[s->links[i].input] : NULL, y,
                     i0, end);
    }
}

static void describe_chain(const struct cpu_backend *cpu, const struct cpu_step *step, char *buffer,
                           size_t size)
{
    snprintf(buffer, size, "f32 chain of %u %s", ((const struct chain_step *)step)->n + 1,
             wk_isa_name(cpu->kernels->isa));
}

/* Operands (a, b) over the output; CM_INTERNAL if the stage would make it larger. */
static enum cm_err init_link(struct cpu_prepare *p, const struct cm_shape *x, unsigned input,
                             struct chain_link *link)
{
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    if (link->stage.kind == K_STAGE_UNARY)
        return CM_OK;
    const struct cm_shape *operand = &wk_call_in(p->call, input)->shape;
    const struct cm_shape *shapes[] = {x, operand};
    if (link->stage.reversed) {
        shapes[0] = operand;
        shapes[1] = x;
    }
    bool fits = operand->rank <= out->rank;
    for (unsigned i = 0; fits && i < operand->rank; i++) {
        int64_t dim = out->dims[out->rank - operand->rank + i];
        fits = operand->dims[i] == 1 || operand->dims[i] == dim;
    }
    if (!fits)
        return wk_node_fail(p->err, CM_INTERNAL, p->call->node,
                            "its operands do not have the shapes that it was fused for");
    link->input = (uint16_t)input;
    cpu_bcast_init(&link->bcast, out, shapes, 2);
    return CM_OK;
}

enum cm_err cpu_prepare_chain(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct cm_shape *out = &wk_call_out(p->call)->shape;
    size_t count = cpu_count(out);
    struct chain_step *s = cpu_step_take(p, sizeof *s, chain_body, count, 1024,
                                         (double)count * (1.0 + node->n_stages));
    if (!s)
        return CM_NOMEM;
    s->n = node->n_stages;
    s->step.describe = describe_chain;
    bool fine = cpu_stage_kernel(p->call->graph, node, &s->own.stage);
    enum cm_err code = init_link(p, &wk_call_in(p->call, 0)->shape, 1, &s->own);
    for (unsigned i = 0; i < s->n && code == CM_OK; i++) {
        struct chain_link *link = &s->links[i];
        fine = fine && cpu_stage_kernel(p->call->graph, node->stages[i].node, &link->stage);
        link->stage.reversed = node->stages[i].reversed;
        code = init_link(p, out, node->stages[i].operand, link);
    }
    CM_ASSERT(fine); /* cpu_fuses has asked the same */
    *ret_step = &s->step;
    return code;
}
