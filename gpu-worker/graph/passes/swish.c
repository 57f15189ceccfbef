/* Pass: products of a value with a gate made from itself become one node, with the operations and
 * the order that the graph has, so that no bit changes:
 *
 *     x * Sigmoid(x)                        x * HardSigmoid(x)
 *     (x * Clip(x + 3, 0, 6)) / 6           PaddlePaddle's HardSwish
 *     x * (Clip(x + 3, 0, 6) / 6)           PyTorch's
 *
 * PaddlePaddle also writes Sigmoid(x * 1). See passes.h. */
#include "gpu-worker/graph/passes/edit.h"

static const struct wk_node *once(const struct wk_pass *pass, int32_t value, enum wk_op op)
{
    const struct wk_node *node = pass_producer_of(pass, value, op);
    return node && pass_uses(pass, value) == 1 ? node : NULL;
}

/* A bound of Clip, as an input or an attribute. */
static bool is_bound(const struct wk_pass *pass, const struct wk_node *clip, unsigned k,
                     const char *name, float number)
{
    if (clip->opset >= 11)
        return pass_is_number(pass, pass_in(clip, k), number);
    const struct wk_attr *attr = wk_node_attr(clip, name);
    return attr && attr->f == number;
}

/* value = Clip(x + 3, 0, 6). */
static bool is_clip(const struct wk_pass *pass, int32_t value, int32_t x)
{
    const struct wk_node *clip = once(pass, value, WK_OP_Clip);
    const struct wk_node *add = clip ? once(pass, clip->in[0], WK_OP_Add) : NULL;
    if (!add || !is_bound(pass, clip, 1, "min", 0.0f) || !is_bound(pass, clip, 2, "max", 6.0f))
        return false;
    return (add->in[0] == x && pass_is_number(pass, add->in[1], 3.0f)) ||
           (add->in[1] == x && pass_is_number(pass, add->in[0], 3.0f));
}

/* x itself, or x * 1. */
static bool is_same(const struct wk_pass *pass, int32_t value, int32_t x)
{
    const struct wk_node *mul = value == x ? NULL : once(pass, value, WK_OP_Mul);
    return value == x || (mul && ((mul->in[0] == x && pass_is_number(pass, mul->in[1], 1.0f)) ||
                                  (mul->in[1] == x && pass_is_number(pass, mul->in[0], 1.0f))));
}

/* What stands for x * gate, in op, form and attributes; false if nothing does. */
static bool find_gate(const struct wk_pass *pass, int32_t gate, int32_t x, struct wk_node *made)
{
    const struct wk_node *sigmoid = once(pass, gate, WK_OP_Sigmoid);
    const struct wk_node *hard = once(pass, gate, WK_OP_HardSigmoid);
    const struct wk_node *div = once(pass, gate, WK_OP_Div);
    if ((sigmoid && is_same(pass, sigmoid->in[0], x)) || (hard && hard->in[0] == x)) {
        const struct wk_node *from = sigmoid ? sigmoid : hard;
        made->op = from->op;
        made->opset = from->opset;
        made->n_attrs = from->n_attrs;
        made->attrs = from->attrs;
        made->form = WK_FORM_GATE;
        return true;
    }
    if (div && pass_is_number(pass, div->in[1], 6.0f) && is_clip(pass, div->in[0], x)) {
        made->op = WK_OP_HardSwish;
        made->form = WK_FORM_BY_SIX;
        return true;
    }
    return false;
}

/* The pattern that ends in node; x is its input. */
static bool find_swish(const struct wk_pass *pass, const struct wk_node *node, int32_t *x,
                       struct wk_node *made)
{
    const struct wk_node *mul = node;
    bool six = node->op == WK_OP_Div && pass_is_number(pass, node->in[1], 6.0f);
    if (six)
        mul = once(pass, node->in[0], WK_OP_Mul);
    if (!mul || mul->op != WK_OP_Mul)
        return false;
    for (unsigned k = 0; k < 2; k++) {
        *x = mul->in[k];
        if (six && is_clip(pass, mul->in[1 - k], *x)) {
            made->op = WK_OP_HardSwish;
            made->form = WK_FORM_SIX;
            return true;
        }
        if (!six && mul->in[0] != mul->in[1] && find_gate(pass, mul->in[1 - k], *x, made))
            return true;
    }
    return false;
}

enum cm_err pass_swish(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &graph->nodes[i];
        struct wk_node made = *node;
        struct wk_call call = {.graph = graph, .node = &made, .facts = graph->facts};
        int32_t x = -1;
        if (pass->idle[i] || node->n_out != 1 || graph->facts[node->out[0]].dtype != CM_FP32)
            continue;
        made.n_attrs = 0;
        if (!find_swish(pass, node, &x, &made))
            continue;
        /* A scalar that is broadcast would have made the number of dimensions grow. */
        if (!cm_shape_equal(&graph->facts[x].shape, &graph->facts[node->out[0]].shape))
            continue;
        made.n_in = made.n_given = 1;
        made.in = &x;
        if (!pass->backend->ops->fuses(pass->backend, &call, &made, WK_SPREAD_NONE))
            continue;
        made.in = pass_values(pass, 1, &x);
        code = made.in ? pass_set_node(pass, node, &made) : CM_NOMEM;
    }
    return code;
}
