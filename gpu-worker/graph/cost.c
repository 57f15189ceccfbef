/* Estimates of work; see cost.h. */
#include "gpu-worker/graph/cost.h"

static double product(const struct cm_shape *shape, unsigned from, unsigned to)
{
    double count = 1;
    for (unsigned i = from; i < to && i < shape->rank; i++)
        count *= shape->dims[i] < 0 ? 1 : (double)shape->dims[i];
    return count;
}

static double elements(const struct wk_fact *fact)
{
    return fact ? product(&fact->shape, 0, fact->shape.rank) : 0;
}

double wk_fact_bytes(const struct wk_fact *fact)
{
    return elements(fact) * (double)cm_dtype_size(fact->dtype);
}

static const struct wk_fact *input(const struct wk_node *node, const struct wk_fact *facts,
                                   unsigned k)
{
    return k < node->n_in && node->in[k] >= 0 ? &facts[node->in[k]] : NULL;
}

static double largest(const struct wk_node *node, const struct wk_fact *facts)
{
    double count = 0;
    for (unsigned k = 0; k < node->n_in; k++)
        if (elements(input(node, facts, k)) > count)
            count = elements(input(node, facts, k));
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && elements(&facts[node->out[k]]) > count)
            count = elements(&facts[node->out[k]]);
    return count;
}

/* Length of the axis that a product sums over. */
static double summed(const struct wk_node *node, const struct wk_fact *a)
{
    if (a->shape.rank == 0)
        return 1;
    unsigned axis = a->shape.rank - 1u;
    if (node->op == WK_OP_Gemm && wk_node_int(node, "transA", 0))
        axis = 0;
    return product(&a->shape, axis, axis + 1);
}

double wk_node_flops(const struct wk_node *node, const struct wk_fact *facts)
{
    const struct wk_fact *x = input(node, facts, 0), *w = input(node, facts, 1);
    const struct wk_fact *out = node->n_out && node->out[0] >= 0 ? &facts[node->out[0]] : NULL;
    switch (node->op) {
    case WK_OP_QLinearConv:
        w = input(node, facts, 3);
        /* Fall through. */
    case WK_OP_Conv:
    case WK_OP_ConvInteger:
        return out && w ? 2 * elements(out) * product(&w->shape, 1, w->shape.rank) : 0;
    case WK_OP_ConvTranspose:
        return x && w ? 2 * elements(x) * product(&w->shape, 1, w->shape.rank) : 0;
    case WK_OP_Gemm:
    case WK_OP_MatMul:
    case WK_OP_MatMulInteger:
    case WK_OP_QLinearMatMul:
        return out && x ? 2 * elements(out) * summed(node, x) : 0;
    case WK_OP_Softmax:
    case WK_OP_LogSoftmax:
        return 5 * elements(x);
    default:
        return largest(node, facts);
    }
}
