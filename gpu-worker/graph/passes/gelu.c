/* Pass: GELU as exporters spell it becomes one node. Only the spellings whose operations are those
 * of the kernel, in its order, so that no bit changes:
 *
 *     ((1 + Erf(x / sqrt 2)) * x) * 0.5
 *     ((1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * (x * x * x)))) * x) * 0.5
 *
 * Sums and products of two may stand either way round. See passes.h. */
#include "gpu-worker/graph/passes/edit.h"

/* The producer of value, if it is this operator and value has no other use. */
static const struct wk_node *once(const struct wk_pass *pass, int32_t value, enum wk_op op)
{
    const struct wk_node *node = pass_producer_of(pass, value, op);
    return node && pass_uses(pass, value) == 1 ? node : NULL;
}

/* The other operand of a product or sum that is used once and has this number as one; -1. */
static int32_t beside_number(const struct wk_pass *pass, int32_t value, enum wk_op op, float number)
{
    const struct wk_node *node = once(pass, value, op);
    for (unsigned k = 0; node && k < 2; k++)
        if (pass_is_number(pass, node->in[k], number))
            return node->in[1 - k];
    return -1;
}

/* value is sqrt(2 / pi) * (x + 0.044715 * ((x * x) * x)). */
static bool is_cubic(const struct wk_pass *pass, int32_t value, int32_t x)
{
    int32_t sum = beside_number(pass, value, WK_OP_Mul, 0.797884583f);
    const struct wk_node *add = sum < 0 ? NULL : once(pass, sum, WK_OP_Add);
    for (unsigned k = 0; add && k < 2; k++) {
        int32_t cube = beside_number(pass, add->in[1 - k], WK_OP_Mul, 0.044715f);
        const struct wk_node *outer = cube < 0 ? NULL : once(pass, cube, WK_OP_Mul);
        for (unsigned l = 0; outer && add->in[k] == x && l < 2; l++) {
            const struct wk_node *square = pass_producer_of(pass, outer->in[l], WK_OP_Mul);
            if (square && outer->in[1 - l] == x && square->in[0] == x && square->in[1] == x &&
                pass_uses(pass, outer->in[l]) == 1)
                return true;
        }
    }
    return false;
}

/* value = (1 + f) * x; "tanh", "none" or NULL. */
static const char *find_gelu(const struct wk_pass *pass, int32_t value, int32_t *ret_x)
{
    const struct wk_node *mul = once(pass, value, WK_OP_Mul);
    for (unsigned k = 0; mul && k < 2; k++) {
        int32_t x = mul->in[1 - k], f = beside_number(pass, mul->in[k], WK_OP_Add, 1.0f);
        const struct wk_node *erf = f < 0 ? NULL : once(pass, f, WK_OP_Erf);
        const struct wk_node *tanh = f < 0 ? NULL : once(pass, f, WK_OP_Tanh);
        const struct wk_node *div = erf ? once(pass, erf->in[0], WK_OP_Div) : NULL;
        *ret_x = x;
        if (div && div->in[0] == x && pass_is_number(pass, div->in[1], 1.41421354f))
            return "none";
        if (tanh && is_cubic(pass, tanh->in[0], x))
            return "tanh";
    }
    return NULL;
}

static enum cm_err replace(struct wk_pass *pass, struct wk_node *node, int32_t x, const char *form)
{
    const struct wk_attr attr = {.name = "approximate", .type = 's', .s = form};
    struct wk_node made = *node;
    made.op = WK_OP_Gelu;
    made.opset = 20; /* the first that has it */
    made.n_in = made.n_given = 1;
    made.in = pass_values(pass, 1, &x);
    made.n_attrs = 1;
    made.attrs = pass_attrs(pass, 1, &attr);
    return made.in && made.attrs ? pass_set_node(pass, node, &made) : CM_NOMEM;
}

enum cm_err pass_gelu(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &graph->nodes[i];
        if (pass->idle[i] || node->op != WK_OP_Mul || graph->facts[node->out[0]].dtype != CM_FP32)
            continue;
        for (unsigned k = 0; k < 2; k++) {
            int32_t x = -1;
            const char *form = pass_is_number(pass, node->in[1 - k], 0.5f)
                                   ? find_gelu(pass, node->in[k], &x)
                                   : NULL;
            if (!form || !cm_shape_equal(&graph->facts[x].shape, &graph->facts[node->out[0]].shape))
                continue;
            code = replace(pass, node, x, form);
            break;
        }
    }
    return code;
}
