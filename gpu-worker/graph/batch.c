/* The batch-axis proof; see batch.h. Pure, the owner's thread.
 *
 * Two facts carry every rule. A ROWS value has WK_DIM_BATCH once in its shape; in the rules of this
 * file as its first dimension (batch_moved.c has the others). A FREE value, and the shape of one
 * row, do not change with the batch size. */
#include "gpu-worker/graph/batch_priv.h"

#include "gpu-worker/graph/einsum.h"
#include "gpu-worker/graph/infer_reduce.h"

#include <stdio.h>
#include <string.h>

const struct wk_fact *batch_input(const struct judge *j, unsigned k)
{
    if (k >= j->node->n_in || j->node->in[k] < 0)
        return NULL;
    return &j->facts[j->node->in[k]];
}

static enum wk_rows rows_of(const struct judge *j, unsigned k)
{
    const struct wk_fact *fact = batch_input(j, k);
    return fact ? fact->rows : WK_ROWS_FREE;
}

/* Inputs [from, n_in) are all FREE. */
static bool rest_is_free(const struct judge *j, unsigned from)
{
    for (unsigned k = from; k < wk_node_own_inputs(j->node); k++)
        if (rows_of(j, k) != WK_ROWS_FREE)
            return false;
    return true;
}

bool batch_names_only(const struct judge *j, unsigned k)
{
    const struct wk_fact *shape = batch_input(j, k);
    if (!shape || shape->rows == WK_ROWS_FREE)
        return true;
    for (uint32_t i = 0; i < shape->n_elems; i++)
        if (shape->elems[i].kind == WK_ELEM_MIXED)
            return false;
    return shape->rows == WK_ROWS_SIZE;
}

/* Element-wise with broadcasting: batch axes line up, and what is FREE repeats over the batch.
 * Inputs [from, end). */
static bool rows_broadcast(const struct judge *j, unsigned from, unsigned end)
{
    for (unsigned k = from; k < end; k++) {
        const struct wk_fact *in = batch_input(j, k);
        if (!in)
            continue;
        if (in->rows == WK_ROWS_ROWS && in->shape.rank != j->out->shape.rank)
            return false;
        if (in->rows == WK_ROWS_FREE && in->shape.rank == j->out->shape.rank &&
            in->shape.dims[0] != 1)
            return false;
        if (in->rows == WK_ROWS_SIZE)
            return false;
    }
    return true;
}

static bool rows_elementwise(const struct judge *j)
{
    return rows_broadcast(j, 0, wk_node_own_inputs(j->node));
}

/* Operands of fused element-wise operators. */
static bool rows_stages(const struct judge *j)
{
    return rows_broadcast(j, wk_node_own_inputs(j->node), j->node->n_in);
}

static bool rows_gemm(const struct judge *j)
{
    const struct wk_fact *c = batch_input(j, 2);
    if (wk_node_int(j->node, "transA", 0) || rows_of(j, 0) != WK_ROWS_ROWS ||
        rows_of(j, 1) != WK_ROWS_FREE)
        return false;
    if (!c || c->rows == WK_ROWS_FREE)
        return !c || c->shape.rank < 2 || c->shape.dims[0] == 1;
    return c->rows == WK_ROWS_ROWS && c->shape.rank == 2;
}

/* A [..., m, k] x B [..., k, n], B being input at. The batch may be m of a matrix or a leading
 * axis. */
static bool rows_matmul(const struct judge *j, unsigned at)
{
    const struct wk_fact *a = batch_input(j, 0), *b = batch_input(j, at);
    unsigned rank = j->out->shape.rank;
    bool a_rows = a->rows == WK_ROWS_ROWS, b_rows = b->rows == WK_ROWS_ROWS;
    if ((a_rows && a->shape.rank < 2) || (b_rows && b->shape.rank < 3))
        return false; /* the batch would be summed over */
    if ((!a_rows && a->rows != WK_ROWS_FREE) || (!b_rows && b->rows != WK_ROWS_FREE))
        return false;
    if (a_rows && (b->shape.rank == 1 ? a->shape.rank - 1u : a->shape.rank) != rank)
        return false;
    if (b_rows && (b->shape.rank != rank || (a_rows && a->shape.rank != rank)))
        return false;
    if (a_rows && !b_rows)
        return b->shape.rank < 3 || b->shape.rank < a->shape.rank || b->shape.dims[0] == 1;
    if (!a_rows)
        return a->shape.rank < 3 || a->shape.rank < b->shape.rank || a->shape.dims[0] == 1;
    return true;
}

/* Input k does not tell one row from another: it is FREE and one number. */
static bool is_free_number(const struct judge *j, unsigned k)
{
    const struct wk_fact *fact = batch_input(j, k);
    int64_t count;
    return !fact || (fact->rows == WK_ROWS_FREE && cm_shape_count(&fact->shape, &count) == CM_OK &&
                     count == 1);
}

/* Integer products: zero points and scales of A may be given per row, which then is not free. */
static bool rows_integer_product(const struct judge *j)
{
    bool linear = j->node->op == WK_OP_QLinearMatMul;
    for (unsigned k = linear ? 1 : 2; k < j->node->n_in; k++) {
        bool of_a = linear ? k <= 2 : k == 2;
        if (linear && k == 3)
            continue;
        if (of_a ? !is_free_number(j, k) : rows_of(j, k) != WK_ROWS_FREE)
            return false;
    }
    return rows_matmul(j, linear ? 3 : 1);
}

/* Scales along another axis than the batch, or one for all. */
static bool rows_quantize(const struct judge *j)
{
    unsigned axis;
    if (rows_of(j, 0) != WK_ROWS_ROWS || !rest_is_free(j, 1) ||
        wk_node_int(j->node, "block_size", 0) != 0)
        return false;
    if (is_free_number(j, 1))
        return true;
    return wk_axis(wk_node_int(j->node, "axis", 1), j->out->shape.rank, &axis) && axis != 0;
}

static bool rows_dft(const struct judge *j)
{
    int64_t given;
    unsigned axis;
    return rows_of(j, 0) == WK_ROWS_ROWS && rest_is_free(j, 1) &&
           wk_dft_axis(j->node, j->facts, &given) && wk_axis(given, j->out->shape.rank, &axis) &&
           axis != 0;
}

/* The indices of a MaxPool count through the whole batch. */
static bool rows_max_pool(const struct judge *j)
{
    return rows_of(j, 0) == WK_ROWS_ROWS && j->node->out[0] >= 0 &&
           j->out == &j->facts[j->node->out[0]];
}

static bool rows_softmax(const struct judge *j)
{
    unsigned axis, rank = batch_input(j, 0)->shape.rank;
    int64_t given = wk_node_int(j->node, "axis", j->node->opset < 13 ? 1 : -1);
    return rows_of(j, 0) == WK_ROWS_ROWS && (!wk_axis(given, rank, &axis) || axis != 0);
}

/* Rows of x [batch, ...] stay rows where the node works along another axis. */
static bool rows_beside_axis(const struct judge *j, int64_t otherwise)
{
    unsigned axis, rank = batch_input(j, 0)->shape.rank;
    return rows_of(j, 0) == WK_ROWS_ROWS && rest_is_free(j, 1) &&
           wk_axis(wk_node_int(j->node, "axis", otherwise), rank, &axis) && axis != 0;
}

/* The axis is an operand that must be known. */
static bool rows_cum_sum(const struct judge *j)
{
    const struct wk_fact *axis = batch_input(j, 1);
    unsigned at;
    return rows_of(j, 0) == WK_ROWS_ROWS && axis->n_elems == 1 &&
           axis->elems[0].kind == WK_ELEM_KNOWN &&
           wk_axis(axis->elems[0].v, batch_input(j, 0)->shape.rank, &at) && at != 0;
}

static bool rows_mean_variance(const struct judge *j)
{
    bool axes[CM_MAX_RANK];
    return rows_of(j, 0) == WK_ROWS_ROWS &&
           wk_mean_variance_axes(j->node, batch_input(j, 0)->shape.rank, NULL, axes) == CM_OK &&
           !axes[0];
}

/* Scale and bias belong to the row, not to the batch. */
static bool rows_layer_norm(const struct judge *j)
{
    const struct wk_fact *x = batch_input(j, 0);
    for (unsigned k = 1; k < j->node->n_in; k++) {
        const struct wk_fact *operand = batch_input(j, k);
        if (operand && operand->shape.rank == x->shape.rank && operand->shape.dims[0] != 1)
            return false;
    }
    return rows_beside_axis(j, -1);
}

/* The label of axis 0 leads in every operand with rows, occurs there once, and nowhere else. */
static bool rows_einsum(const struct judge *j)
{
    struct wk_einsum e;
    if (wk_einsum_resolve(j->node, j->facts, NULL, &e) != CM_OK || e.out_rank == 0)
        return false;
    for (unsigned k = 0; k < e.n_operands; k++) {
        bool rows = rows_of(j, k) == WK_ROWS_ROWS;
        if (!rows && rows_of(j, k) != WK_ROWS_FREE)
            return false;
        for (unsigned i = 0; i < batch_input(j, k)->shape.rank; i++)
            if ((e.labels[k][i] == e.out[0]) != (rows && i == 0))
                return false;
    }
    return true;
}

static bool rows_concat(const struct judge *j)
{
    unsigned axis;
    if (!wk_axis(wk_node_int(j->node, "axis", 0), j->out->shape.rank, &axis) || axis == 0)
        return false;
    for (unsigned k = 0; k < j->node->n_in; k++)
        if (rows_of(j, k) != WK_ROWS_ROWS)
            return false;
    return true;
}

static bool rows_gather(const struct judge *j)
{
    const struct wk_fact *x = batch_input(j, 0);
    unsigned axis;
    if (!wk_axis(wk_node_int(j->node, "axis", 0), x->shape.rank, &axis))
        return false;
    if (x->rows == WK_ROWS_ROWS)
        return axis != 0 && rows_of(j, 1) == WK_ROWS_FREE;
    return x->rows == WK_ROWS_FREE && axis == 0 && rows_of(j, 1) == WK_ROWS_ROWS;
}

static bool rows_transpose(const struct judge *j)
{
    unsigned perm[CM_MAX_RANK], rank = j->out->shape.rank;
    return rows_of(j, 0) == WK_ROWS_ROWS && rank > 0 &&
           wk_transpose_perm(j->node, rank, NULL, perm) == CM_OK && perm[0] == 0;
}

/* With layout 1 the batch leads. Weights must not depend on it, and whatever is per sequence must
 * be rows of it. With layout 0 axis 0 is time. */
static bool rows_recurrent(const struct judge *j)
{
    for (unsigned k = 0; k < j->node->n_in; k++) {
        bool per_row = k == 0 || (k >= 4 && k <= 6); /* X, sequence_lens, initial states */
        if (batch_input(j, k) && rows_of(j, k) != (per_row ? WK_ROWS_ROWS : WK_ROWS_FREE))
            return false;
    }
    return wk_node_int(j->node, "layout", 0) == 1;
}

/* Rows repeat along other axes, or something FREE repeats over the batch. */
static bool rows_expand(const struct judge *j)
{
    const struct wk_fact *x = batch_input(j, 0);
    if (!batch_names_only(j, 1))
        return false;
    if (x->rows == WK_ROWS_ROWS)
        return x->shape.rank == j->out->shape.rank;
    return x->rows == WK_ROWS_FREE && (x->shape.rank < j->out->shape.rank || x->shape.dims[0] == 1);
}

/* Every operand has the batch in front, and the node works along another axis. */
static bool rows_along(const struct judge *j, int64_t otherwise)
{
    unsigned axis;
    if (!wk_axis(wk_node_int(j->node, "axis", otherwise), j->out->shape.rank, &axis) || axis == 0)
        return false;
    for (unsigned k = 0; k < j->node->n_in; k++)
        if (rows_of(j, k) != WK_ROWS_ROWS)
            return false;
    return true;
}

static bool rows_one_hot(const struct judge *j)
{
    unsigned axis;
    return wk_axis(wk_node_int(j->node, "axis", -1), j->out->shape.rank, &axis) && axis != 0 &&
           rows_of(j, 0) == WK_ROWS_ROWS && rest_is_free(j, 1);
}

/* Scales or sizes, and the axis 0 that they leave as it is; a region of interest may cut it, or
 * turn it round, all the same. */
static bool rows_resize(const struct judge *j)
{
    if (rows_of(j, 0) != WK_ROWS_ROWS ||
        strcmp(wk_node_string(j->node, "coordinate_transformation_mode", ""),
               "tf_crop_and_resize") == 0)
        return false;
    for (unsigned k = 1; k < j->node->n_in; k++)
        if (!batch_names_only(j, k))
            return false;
    return true;
}

/* Operands 0 and 1 both have the batch in front. */
static bool rows_pair(const struct judge *j)
{
    return rows_of(j, 0) == WK_ROWS_ROWS && rows_of(j, 1) == WK_ROWS_ROWS;
}

/* The rule of a node that has at least one input which is not FREE. That the output leads with the
 * batch, and has it nowhere else, is checked by the caller for all. */
static bool rows_rule(const struct judge *j)
{
    switch (j->node->op) {
    case WK_OP_Add:
    case WK_OP_BitShift:
    case WK_OP_BitwiseAnd:
    case WK_OP_BitwiseOr:
    case WK_OP_BitwiseXor:
    case WK_OP_Div:
    case WK_OP_Max:
    case WK_OP_Mean:
    case WK_OP_Min:
    case WK_OP_Mod:
    case WK_OP_Mul:
    case WK_OP_Pow:
    case WK_OP_Sub:
    case WK_OP_Sum:
    case WK_OP_And:
    case WK_OP_Or:
    case WK_OP_Xor:
    case WK_OP_Equal:
    case WK_OP_Less:
    case WK_OP_LessOrEqual:
    case WK_OP_Greater:
    case WK_OP_GreaterOrEqual:
    case WK_OP_Where:
        return rows_elementwise(j);
    case WK_OP_PRelu: /* below opset 7 a slope may lie along other axes than broadcasting says */
        return rows_elementwise(j) && (j->node->opset >= 7 || rows_of(j, 1) == WK_ROWS_FREE);
    case WK_OP_CastLike: /* the second operand only lends its type */
        return rows_of(j, 0) == WK_ROWS_ROWS;
    case WK_OP_Dropout: /* in training, a row's mask depends on its place in the batch */
        return rows_of(j, 0) == WK_ROWS_ROWS && wk_dropout_is_identity(j->node, j->facts);
    case WK_OP_Gemm:
        return rows_gemm(j);
    case WK_OP_MatMul:
        return rows_matmul(j, 1);
    case WK_OP_MatMulInteger:
    case WK_OP_QLinearMatMul:
        return rows_integer_product(j);
    case WK_OP_QuantizeLinear:
    case WK_OP_DequantizeLinear:
        return rows_quantize(j);
    case WK_OP_DFT:
        return rows_dft(j);
    case WK_OP_MaxPool:
        return rows_max_pool(j);
    case WK_OP_Softmax:
    case WK_OP_LogSoftmax:
    case WK_OP_Hardmax:
        return rows_softmax(j);
    case WK_OP_ArgMax:
    case WK_OP_ArgMin:
        return rows_beside_axis(j, 0);
    case WK_OP_LpNormalization:
    case WK_OP_TopK:
        return rows_beside_axis(j, -1);
    case WK_OP_CumSum:
        return rows_cum_sum(j);
    case WK_OP_Einsum:
        return rows_einsum(j);
    case WK_OP_LayerNormalization:
        return rows_layer_norm(j);
    case WK_OP_MeanVarianceNormalization:
        return rows_mean_variance(j);
    case WK_OP_BatchNormalization:
        return !wk_batch_norm_trains(j->node) && rows_of(j, 0) == WK_ROWS_ROWS &&
               rest_is_free(j, 1);
    case WK_OP_AffineGrid:
    case WK_OP_Resize:
    case WK_OP_Upsample:
        return rows_resize(j);
    case WK_OP_Concat:
        return rows_concat(j);
    case WK_OP_GatherElements:
    case WK_OP_Scatter:
    case WK_OP_ScatterElements:
        return rows_along(j, 0);
    case WK_OP_GatherND:
        return rows_pair(j) && wk_node_int(j->node, "batch_dims", 0) > 0;
    case WK_OP_GridSample:
        return rows_pair(j);
    case WK_OP_OneHot:
        return rows_one_hot(j);
    case WK_OP_ReverseSequence:
        return rows_pair(j) && wk_node_int(j->node, "batch_axis", 1) == 0;
    case WK_OP_TfIdfVectorizer:
        return rows_of(j, 0) == WK_ROWS_ROWS && batch_input(j, 0)->shape.rank == 2;
    case WK_OP_Trilu:
        return rows_of(j, 0) == WK_ROWS_ROWS && rest_is_free(j, 1) && j->out->shape.rank > 2;
    case WK_OP_Gather:
        return rows_gather(j);
    case WK_OP_Transpose:
        return rows_transpose(j);
    case WK_OP_Expand:
        return rows_expand(j);
    case WK_OP_GRU:
    case WK_OP_LSTM:
    case WK_OP_RNN:
        return rows_recurrent(j);
    case WK_OP_ConstantOfShape:
        return batch_names_only(j, 0); /* every row is the same constant */
    case WK_OP_Reshape:
    case WK_OP_Flatten:
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
        /* Bytes keep their order, so equal first dimensions mean equal rows. */
        return rows_of(j, 0) == WK_ROWS_ROWS && batch_names_only(j, 1);
    case WK_OP_Abs:
    case WK_OP_Acos:
    case WK_OP_Acosh:
    case WK_OP_Asin:
    case WK_OP_Asinh:
    case WK_OP_Atan:
    case WK_OP_Atanh:
    case WK_OP_AveragePool:
    case WK_OP_BitwiseNot:
    case WK_OP_Cast:
    case WK_OP_Ceil:
    case WK_OP_Celu:
    case WK_OP_Clip:
    case WK_OP_Conv:
    case WK_OP_ConvInteger:
    case WK_OP_ConvTranspose:
    case WK_OP_Cos:
    case WK_OP_Cosh:
    case WK_OP_Det: /* at least three dimensions: the batch is still there */
    case WK_OP_Elu:
    case WK_OP_Erf:
    case WK_OP_Exp:
    case WK_OP_Floor:
    case WK_OP_Gelu:
    case WK_OP_GlobalAveragePool:
    case WK_OP_GlobalLpPool:
    case WK_OP_GlobalMaxPool:
    case WK_OP_GroupNormalization:
    case WK_OP_HardSigmoid:
    case WK_OP_HardSwish:
    case WK_OP_Identity:
    case WK_OP_IsInf:
    case WK_OP_IsNaN:
    case WK_OP_InstanceNormalization:
    case WK_OP_LeakyRelu:
    case WK_OP_LRN:
    case WK_OP_Log:
    case WK_OP_LpPool:
    case WK_OP_Mish:
    case WK_OP_Neg:
    case WK_OP_Not:
    case WK_OP_QLinearConv:
    case WK_OP_Reciprocal:
    case WK_OP_Relu:
    case WK_OP_Round:
    case WK_OP_Selu:
    case WK_OP_Shrink:
    case WK_OP_Sigmoid:
    case WK_OP_Sign:
    case WK_OP_Sin:
    case WK_OP_Sinh:
    case WK_OP_Softplus:
    case WK_OP_Softsign:
    case WK_OP_Sqrt:
    case WK_OP_STFT:
    case WK_OP_Tan:
    case WK_OP_Tanh:
    case WK_OP_ThresholdedRelu:
    case WK_OP_Col2Im:
    case WK_OP_DepthToSpace:
    case WK_OP_SpaceToDepth:
    /* An axis 0 that the following touch is no longer the batch in the output's shape. */
    case WK_OP_CenterCropPad:
    case WK_OP_Compress:
    case WK_OP_Split:
    case WK_OP_Tile:
    case WK_OP_Pad:
    case WK_OP_ReduceL1:
    case WK_OP_ReduceL2:
    case WK_OP_ReduceLogSum:
    case WK_OP_ReduceLogSumExp:
    case WK_OP_ReduceMax:
    case WK_OP_ReduceMean:
    case WK_OP_ReduceMin:
    case WK_OP_ReduceProd:
    case WK_OP_ReduceSum:
    case WK_OP_ReduceSumSquare:
    case WK_OP_Slice:
        return rows_of(j, 0) == WK_ROWS_ROWS && rest_is_free(j, 1);
    default:
        return false; /* Constant, Shape and Size never get here */
    }
}

/* Class of a value whose elements are known: by the elements alone. */
static enum wk_rows rows_of_elems(const struct wk_fact *fact)
{
    for (uint32_t i = 0; i < fact->n_elems; i++)
        if (fact->elems[i].kind == WK_ELEM_BATCH || fact->elems[i].kind == WK_ELEM_MIXED)
            return WK_ROWS_SIZE;
    return WK_ROWS_FREE;
}

static enum wk_rows judge_output(const struct judge *j)
{
    bool all_free = true;
    if (j->out->elems)
        return rows_of_elems(j->out);
    for (unsigned k = 0; k < j->node->n_in; k++) {
        if (rows_of(j, k) == WK_ROWS_MIXED)
            return WK_ROWS_MIXED;
        all_free &= rows_of(j, k) == WK_ROWS_FREE;
    }
    if (all_free)
        return WK_ROWS_FREE;
    int axis = batch_axis(&j->out->shape);
    bool lead = axis == 0;
    for (unsigned k = 0; k < j->node->n_in; k++)
        lead =
            lead && (rows_of(j, k) != WK_ROWS_ROWS || batch_axis(&batch_input(j, k)->shape) == 0);
    if (axis < 0 || !(lead ? rows_rule(j) && rows_stages(j) : batch_moved(j, axis)))
        return WK_ROWS_MIXED;
    return WK_ROWS_ROWS;
}

void wk_batch_node(const struct wk_node *node, struct wk_fact *facts)
{
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0) {
            struct judge j = {node, facts, &facts[node->out[k]]};
            facts[node->out[k]].rows = judge_output(&j);
        }
}

/* The first node, in execution order, whose output could not be proven though its inputs were. */
static const struct wk_node *first_mixed(const struct wk_graph *graph)
{
    for (uint32_t i = 0; i < graph->n_nodes; i++)
        for (unsigned k = 0; k < graph->nodes[i].n_out; k++)
            if (graph->nodes[i].out[k] >= 0 &&
                graph->facts[graph->nodes[i].out[k]].rows == WK_ROWS_MIXED)
                return &graph->nodes[i];
    return NULL;
}

bool wk_batch_proven(const struct wk_graph *graph, char *why, size_t why_size)
{
    char name[96];
    if (graph->n_inputs == 0) {
        snprintf(why, why_size, "the model has no inputs");
        return false;
    }
    for (uint32_t i = 0; i < graph->n_inputs; i++)
        if (graph->input_info[i].shape.rank == 0 || graph->input_info[i].shape.dims[0] >= 0) {
            snprintf(why, why_size, "the first dimension of input \"%s\" is fixed",
                     wk_printable(graph->input_info[i].name, name, sizeof name));
            return false;
        }
    for (uint32_t i = 0; i < graph->n_outputs; i++) {
        const struct wk_fact *fact = &graph->facts[graph->outputs[i]];
        if (fact->rows == WK_ROWS_ROWS && batch_axis(&fact->shape) == 0)
            continue;
        const struct wk_node *node = first_mixed(graph);
        char output[96], op[160] = "";
        wk_printable(graph->output_info[i].name, output, sizeof output);
        if (fact->rows == WK_ROWS_ROWS)
            snprintf(op, sizeof op, ": its batch is axis %d", batch_axis(&fact->shape));
        else if (fact->rows == WK_ROWS_MIXED && node)
            snprintf(op, sizeof op, ": node %u \"%s\" (%s) may mix rows", node->position,
                     wk_printable(node->name, name, sizeof name), wk_op_name(node->op));
        snprintf(why, why_size, "the rows of output \"%s\" are not provably the batch's%s", output,
                 op);
        return false;
    }
    why[0] = 0;
    return true;
}
