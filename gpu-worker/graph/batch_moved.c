/* Rows that lie along another axis than the first: attention of vision models turns [N,L,3,H,D]
 * into [3,N,H,L,D] and back. See batch_priv.h. Pure, the owner's thread.
 *
 * A value that is rows has WK_DIM_BATCH exactly once in its shape; where, is its batch axis. A node
 * keeps rows if the batch axis of its output comes from the batch axes of its inputs and nothing is
 * computed across it. Fewer operators are known here than in batch.c: those that stand between such
 * a Transpose and the one that brings the batch back. */
#include "gpu-worker/graph/batch_priv.h"

#include "gpu-worker/graph/infer_reduce.h"

int batch_axis(const struct cm_shape *shape)
{
    int found = -1;
    for (unsigned i = 0; i < shape->rank; i++) {
        if (shape->dims[i] != WK_DIM_BATCH)
            continue;
        if (found >= 0)
            return -1;
        found = (int)i;
    }
    return found;
}

/* The batch axis of rows; -1 where input k is something else or is left out. */
static int axis_of(const struct judge *j, unsigned k)
{
    const struct wk_fact *fact = batch_input(j, k);
    return fact && fact->rows == WK_ROWS_ROWS ? batch_axis(&fact->shape) : -1;
}

/* Input k, aligned to the right of the output, has the batch where the output has it, or repeats
 * over it. */
static bool lines_up(const struct judge *j, unsigned k, int out_axis)
{
    const struct wk_fact *in = batch_input(j, k);
    if (!in)
        return true;
    int axis = out_axis - (int)(j->out->shape.rank - in->shape.rank);
    if (in->rows == WK_ROWS_ROWS)
        return batch_axis(&in->shape) == axis;
    return in->rows == WK_ROWS_FREE && (axis < 0 || in->shape.dims[axis] == 1);
}

static bool lines_up_all(const struct judge *j, unsigned from, unsigned end, int out_axis)
{
    for (unsigned k = from; k < end; k++)
        if (!lines_up(j, k, out_axis))
            return false;
    return true;
}

/* Only input 0 is rows. */
static bool rest_is_free(const struct judge *j)
{
    for (unsigned k = 1; k < wk_node_own_inputs(j->node); k++)
        if (batch_input(j, k) && batch_input(j, k)->rows != WK_ROWS_FREE)
            return false;
    return axis_of(j, 0) >= 0;
}

/* The attribute axis names another axis than the batch; at least says that axes behind it are the
 * node's too. */
static bool works_beside(const struct judge *j, int64_t otherwise, bool behind_too)
{
    unsigned axis;
    int batch = axis_of(j, 0);
    return rest_is_free(j) &&
           wk_axis(wk_node_int(j->node, "axis", otherwise), batch_input(j, 0)->shape.rank, &axis) &&
           (behind_too ? batch < (int)axis : batch != (int)axis);
}

static bool moved_transpose(const struct judge *j, int out_axis)
{
    unsigned perm[CM_MAX_RANK];
    return wk_transpose_perm(j->node, j->out->shape.rank, NULL, perm) == CM_OK &&
           axis_of(j, 0) >= 0 && (int)perm[out_axis] == axis_of(j, 0);
}

/* Elements before and behind the batch keep their counts, so no element changes its row. */
static bool moved_view(const struct judge *j, int out_axis)
{
    const struct wk_fact *x = batch_input(j, 0);
    int in_axis = axis_of(j, 0);
    int64_t before_in = 1, before_out = 1;
    if (in_axis < 0)
        return false;
    for (int i = 0; i < in_axis; i++)
        if (x->shape.dims[i] < 0 || __builtin_mul_overflow(before_in, x->shape.dims[i], &before_in))
            return false;
    for (int i = 0; i < out_axis; i++)
        if (j->out->shape.dims[i] < 0 ||
            __builtin_mul_overflow(before_out, j->out->shape.dims[i], &before_out))
            return false;
    return before_in == before_out && before_in > 0;
}

/* One of the stacked matrices' axes, or the rows of A. */
static bool moved_matmul(const struct judge *j, int out_axis)
{
    const struct wk_fact *a = batch_input(j, 0), *b = batch_input(j, 1);
    int rank = j->out->shape.rank;
    if (a->shape.rank < 2 || b->shape.rank < 2)
        return false;
    if (out_axis < rank - 2)
        return lines_up_all(j, 0, 2, out_axis);
    return out_axis == rank - 2 && lines_up(j, 0, out_axis) && a->rows == WK_ROWS_ROWS &&
           b->rows == WK_ROWS_FREE;
}

static bool moved_gather(const struct judge *j, int out_axis)
{
    const struct wk_fact *x = batch_input(j, 0), *indices = batch_input(j, 1);
    unsigned axis;
    int batch = axis_of(j, 0);
    if (!works_beside(j, 0, false) ||
        !wk_axis(wk_node_int(j->node, "axis", 0), x->shape.rank, &axis))
        return false;
    return out_axis == (batch < (int)axis ? batch : batch + (int)indices->shape.rank - 1);
}

static bool moved_concat(const struct judge *j, int out_axis)
{
    unsigned axis;
    if (!wk_axis(wk_node_int(j->node, "axis", 0), j->out->shape.rank, &axis) ||
        (int)axis == out_axis)
        return false;
    for (unsigned k = 0; k < j->node->n_in; k++)
        if (axis_of(j, k) != out_axis)
            return false;
    return true;
}

/* The batch is where it was, and the node looks at one element, or along other axes, at a time. */
static bool stays(const struct judge *j, int out_axis)
{
    return rest_is_free(j) && axis_of(j, 0) == out_axis;
}

bool batch_moved(const struct judge *j, int out_axis)
{
    const struct wk_node *node = j->node;
    unsigned own = wk_node_own_inputs(node);
    if (!lines_up_all(j, own, node->n_in, out_axis))
        return false;
    switch (node->op) {
    case WK_OP_Transpose:
        return moved_transpose(j, out_axis);
    case WK_OP_Reshape:
    case WK_OP_Flatten:
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
        return batch_names_only(j, 1) && moved_view(j, out_axis);
    case WK_OP_MatMul:
        return moved_matmul(j, out_axis);
    case WK_OP_Gather:
        return moved_gather(j, out_axis);
    case WK_OP_Concat:
        return moved_concat(j, out_axis);
    case WK_OP_Softmax:
    case WK_OP_LogSoftmax:
        return node->opset >= 13 && works_beside(j, -1, false);
    case WK_OP_LayerNormalization:
        return works_beside(j, -1, true) && stays(j, out_axis) && lines_up_all(j, 1, own, out_axis);
    case WK_OP_Add:
    case WK_OP_Div:
    case WK_OP_Max:
    case WK_OP_Min:
    case WK_OP_Mul:
    case WK_OP_Pow:
    case WK_OP_Sub:
    case WK_OP_Sum:
    case WK_OP_Where:
        return lines_up_all(j, 0, own, out_axis);
    case WK_OP_Cast:
    case WK_OP_Clip:
    case WK_OP_Erf:
    case WK_OP_Exp:
    case WK_OP_Gelu:
    case WK_OP_HardSigmoid:
    case WK_OP_HardSwish:
    case WK_OP_Identity:
    case WK_OP_LeakyRelu:
    case WK_OP_Neg:
    case WK_OP_Relu:
    case WK_OP_Sigmoid:
    case WK_OP_Sqrt:
    case WK_OP_Tanh:
    /* An axis that these cut or sum up is no longer the batch in the output's shape; without
     * keepdims the batch moves by the axes that go away in front of it. */
    case WK_OP_Slice:
    case WK_OP_Split:
        return stays(j, out_axis);
    case WK_OP_ReduceMax:
    case WK_OP_ReduceMean:
    case WK_OP_ReduceMin:
    case WK_OP_ReduceSum:
        return rest_is_free(j) && (wk_node_int(node, "keepdims", 1) == 0 || stays(j, out_axis));
    default:
        return false;
    }
}
