/* Pass: layer normalisation as exporters spell it becomes one node.
 *
 *     m = ReduceMean(x)   d = x - m   v = ReduceMean(d ^ 2)   y = d / Sqrt(v + epsilon) * scale +
 * bias
 *
 * over the last axis. The node sums in another order than ReduceMean does, so that results differ
 * in the last bits: this pass changes arithmetic. See passes.h. */
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/passes/edit.h"

#include <string.h>

struct layer {
    int32_t x, scale, bias; /* bias -1: none */
    float epsilon;
};

/* The operand of a two-operand node that is not `one`; -1 if it is not its operand. */
static int32_t other_of(const struct wk_node *node, int32_t one)
{
    return node->in[0] == one ? node->in[1] : node->in[1] == one ? node->in[0] : -1;
}

/* The mean along the last axis, which stays: its input, or -1. */
static int32_t mean_of(const struct wk_pass *pass, int32_t value)
{
    const struct wk_node *node = pass_producer_of(pass, value, WK_OP_ReduceMean);
    bool axes[CM_MAX_RANK];
    if (!node || !wk_node_int(node, "keepdims", 1) || pass->graph->facts[node->in[0]].unranked ||
        wk_reduce_axes(node, pass->graph->facts, NULL, axes) != CM_OK)
        return -1;
    unsigned rank = pass->graph->facts[node->in[0]].shape.rank;
    for (unsigned i = 0; i < rank; i++)
        if (axes[i] != (i + 1 == rank))
            return -1;
    return rank ? node->in[0] : -1;
}

/* value is centred ^ 2, used for nothing else? */
static bool is_square(const struct wk_pass *pass, int32_t value, int32_t centred)
{
    const struct wk_node *pow = pass_producer_of(pass, value, WK_OP_Pow);
    const struct wk_node *mul = pass_producer_of(pass, value, WK_OP_Mul);
    if (pass_uses(pass, value) != 1)
        return false;
    if (pow)
        return pow->in[0] == centred && pass_is_number(pass, pow->in[1], 2.0f) &&
               pass_uses(pass, centred) == 2;
    return mul && mul->in[0] == centred && mul->in[1] == centred && pass_uses(pass, centred) == 3;
}

/* Sqrt(mean(centred ^ 2) + epsilon), each step used once. */
static bool is_deviation(const struct wk_pass *pass, int32_t value, int32_t centred,
                         float *ret_epsilon)
{
    const struct wk_node *root = pass_producer_of(pass, value, WK_OP_Sqrt);
    const struct wk_node *add = root ? pass_producer_of(pass, root->in[0], WK_OP_Add) : NULL;
    if (!add || pass_uses(pass, value) != 1 || pass_uses(pass, root->in[0]) != 1)
        return false;
    unsigned k = pass_number(pass, add->in[0], ret_epsilon) ? 1 : 0;
    int32_t variance = add->in[k], square = mean_of(pass, variance);
    return pass_number(pass, add->in[1 - k], ret_epsilon) && square >= 0 &&
           pass_uses(pass, variance) == 1 && is_square(pass, square, centred);
}

/* A vector as long as x's last axis. */
static bool is_row(const struct wk_pass *pass, int32_t value, int32_t x)
{
    const struct wk_fact *row = &pass->graph->facts[value], *whole = &pass->graph->facts[x];
    return row->dtype == CM_FP32 && !row->unranked && row->shape.rank == 1 &&
           row->shape.dims[0] > 0 && row->shape.dims[0] == whole->shape.dims[whole->shape.rank - 1];
}

/* value = (x - mean) / deviation * scale. */
static bool find_scaled(const struct wk_pass *pass, int32_t value, struct layer *ret)
{
    const struct wk_node *mul = pass_producer_of(pass, value, WK_OP_Mul);
    for (unsigned k = 0; mul && k < 2; k++) {
        const struct wk_node *div = pass_producer_of(pass, mul->in[k], WK_OP_Div);
        const struct wk_node *sub = div ? pass_producer_of(pass, div->in[0], WK_OP_Sub) : NULL;
        if (!sub || pass_uses(pass, mul->in[k]) != 1 || mean_of(pass, sub->in[1]) != sub->in[0] ||
            pass_uses(pass, sub->in[1]) != 1 || pass->graph->facts[sub->in[0]].dtype != CM_FP32 ||
            !is_deviation(pass, div->in[1], div->in[0], &ret->epsilon))
            continue;
        ret->x = sub->in[0];
        ret->scale = mul->in[1 - k];
        ret->bias = -1;
        return is_row(pass, ret->scale, ret->x);
    }
    return false;
}

/* The whole pattern, ending in node. */
static bool find_layer(const struct wk_pass *pass, const struct wk_node *node, struct layer *ret)
{
    if (node->op == WK_OP_Mul) {
        /* With a bias behind it the Add is the end. */
        const struct wk_node *add = pass_only_user(pass, node->out[0]);
        struct layer whole;
        if (add && add->op == WK_OP_Add && find_layer(pass, add, &whole))
            return false;
        return find_scaled(pass, node->out[0], ret);
    }
    for (unsigned k = 0; node->op == WK_OP_Add && k < 2; k++)
        if (pass_uses(pass, node->in[k]) == 1 && find_scaled(pass, node->in[k], ret)) {
            ret->bias = other_of(node, node->in[k]);
            return ret->bias >= 0 && is_row(pass, ret->bias, ret->x);
        }
    return false;
}

static enum cm_err replace(struct wk_pass *pass, struct wk_node *node, const struct layer *layer)
{
    const int32_t in[] = {layer->x, layer->scale, layer->bias};
    const struct wk_attr attrs[] = {{.name = "axis", .type = 'i', .i = -1},
                                    {.name = "epsilon", .type = 'f', .f = layer->epsilon}};
    struct wk_node made = *node;
    made.op = WK_OP_LayerNormalization;
    made.opset = 17; /* the first that has it */
    made.n_in = made.n_given = layer->bias < 0 ? 2 : 3;
    made.in = pass_values(pass, made.n_in, in);
    made.n_attrs = 2;
    made.attrs = pass_attrs(pass, 2, attrs);
    return made.in && made.attrs ? pass_set_node(pass, node, &made) : CM_NOMEM;
}

enum cm_err pass_layer_norm(struct wk_pass *pass)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < pass->graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &pass->graph->nodes[i];
        struct layer layer;
        if (!pass->idle[i] && find_layer(pass, node, &layer))
            code = replace(pass, node, &layer);
    }
    return code;
}
