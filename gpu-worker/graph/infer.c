/* Shape inference: the walk over the graph, the table of rules, and what rules share. See infer.h.
 */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/batch.h"

#include <string.h>

static infer_fn *const rules[WK_OP_COUNT] = {
    [WK_OP_Abs] = infer_compute_unary,
    [WK_OP_Add] = infer_binary,
    [WK_OP_And] = infer_logic,
    [WK_OP_AveragePool] = infer_pool,
    [WK_OP_BatchNormalization] = infer_batch_norm,
    [WK_OP_Cast] = infer_cast,
    [WK_OP_Ceil] = infer_compute_unary,
    [WK_OP_Clip] = infer_clip,
    [WK_OP_Concat] = infer_concat,
    [WK_OP_ConstantOfShape] = infer_constant_of_shape,
    [WK_OP_Conv] = infer_conv,
    [WK_OP_Div] = infer_binary,
    [WK_OP_Dropout] = infer_dropout,
    [WK_OP_Equal] = infer_compare,
    [WK_OP_Erf] = infer_compute_unary,
    [WK_OP_Exp] = infer_compute_unary,
    [WK_OP_Expand] = infer_expand,
    [WK_OP_Flatten] = infer_flatten,
    [WK_OP_Floor] = infer_compute_unary,
    [WK_OP_Gather] = infer_gather,
    [WK_OP_Gelu] = infer_compute_unary,
    [WK_OP_Gemm] = infer_gemm,
    [WK_OP_GlobalAveragePool] = infer_global_pool,
    [WK_OP_GlobalMaxPool] = infer_global_pool,
    [WK_OP_Greater] = infer_compare,
    [WK_OP_GreaterOrEqual] = infer_compare,
    [WK_OP_HardSigmoid] = infer_compute_unary,
    [WK_OP_HardSwish] = infer_compute_unary,
    [WK_OP_Identity] = infer_same,
    [WK_OP_LeakyRelu] = infer_compute_unary,
    [WK_OP_Less] = infer_compare,
    [WK_OP_LessOrEqual] = infer_compare,
    [WK_OP_Log] = infer_compute_unary,
    [WK_OP_LogSoftmax] = infer_softmax,
    [WK_OP_MatMul] = infer_matmul,
    [WK_OP_Max] = infer_variadic,
    [WK_OP_MaxPool] = infer_pool,
    [WK_OP_Min] = infer_variadic,
    [WK_OP_Mul] = infer_binary,
    [WK_OP_Neg] = infer_compute_unary,
    [WK_OP_Not] = infer_logic,
    [WK_OP_Or] = infer_logic,
    [WK_OP_Pad] = infer_pad,
    [WK_OP_Pow] = infer_binary,
    [WK_OP_Reciprocal] = infer_compute_unary,
    [WK_OP_ReduceMax] = infer_reduce,
    [WK_OP_ReduceMean] = infer_reduce,
    [WK_OP_ReduceMin] = infer_reduce,
    [WK_OP_ReduceSum] = infer_reduce,
    [WK_OP_Relu] = infer_compute_unary,
    [WK_OP_Reshape] = infer_reshape,
    [WK_OP_Shape] = infer_shape,
    [WK_OP_Sigmoid] = infer_compute_unary,
    [WK_OP_Size] = infer_size,
    [WK_OP_Slice] = infer_slice,
    [WK_OP_Softmax] = infer_softmax,
    [WK_OP_Sqrt] = infer_compute_unary,
    [WK_OP_Squeeze] = infer_squeeze,
    [WK_OP_Sub] = infer_binary,
    [WK_OP_Sum] = infer_variadic,
    [WK_OP_Tanh] = infer_compute_unary,
    [WK_OP_Transpose] = infer_transpose,
    [WK_OP_Unsqueeze] = infer_unsqueeze,
    [WK_OP_Where] = infer_where,
    [WK_OP_Xor] = infer_logic,
};

/* ---- what rules share ------------------------------------------------------------------------ */

const struct wk_fact *infer_in(const struct infer *in, unsigned k)
{
    if (k >= in->node->n_in || in->node->in[k] < 0)
        return NULL;
    return &in->facts[in->node->in[k]];
}

struct wk_fact *infer_out(const struct infer *in, unsigned k)
{
    if (k >= in->node->n_out || in->node->out[k] < 0)
        return NULL;
    return &in->facts[in->node->out[k]];
}

enum cm_err infer_set(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape)
{
    struct wk_fact *out = infer_out(in, 0);
    if (out) {
        out->dtype = dtype;
        out->shape = *shape;
    }
    return CM_OK;
}

bool infer_is_tracked_type(enum cm_dtype dtype)
{
    return dtype == CM_INT64 || dtype == CM_INT32;
}

enum cm_err infer_track(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape,
                        struct wk_elem **ret)
{
    int64_t count;
    *ret = NULL;
    if (!infer_is_tracked_type(dtype) || cm_shape_count(shape, &count) != CM_OK ||
        count > WK_MAX_TRACKED)
        return CM_OK;
    struct wk_fact *out = infer_out(in, 0);
    *ret = wk_arena_take(in->arena, (size_t)count, sizeof **ret);
    if (!*ret || !out)
        return cm_fail(in->err, CM_NOMEM, "out of memory");
    out->n_elems = (uint32_t)count;
    out->elems = *ret;
    return CM_OK;
}

bool dim_mul(int64_t a, int64_t b, int64_t *ret)
{
    if (dim_known(a) && dim_known(b))
        return !__builtin_mul_overflow(a, b, ret);
    if (a == 1 || b == 1)
        *ret = a == 1 ? b : a;
    else
        *ret = a == 0 || b == 0 ? 0 : WK_DIM_ANY;
    return true;
}

bool dim_broadcast(int64_t a, int64_t b, int64_t *ret)
{
    if (a == b || b == 1)
        *ret = a;
    else if (a == 1)
        *ret = b;
    else if (dim_known(a) && dim_known(b))
        return false;
    else if (dim_known(a) || dim_known(b))
        *ret = dim_known(a) ? a : b; /* the symbolic one must turn out to be this, or 1 */
    else
        *ret = WK_DIM_ANY;
    return true;
}

bool shape_broadcast(const struct cm_shape *a, const struct cm_shape *b, struct cm_shape *ret)
{
    struct cm_shape out = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (unsigned i = 0; i < out.rank; i++) {
        int64_t da = i < a->rank ? a->dims[a->rank - 1 - i] : 1;
        int64_t db = i < b->rank ? b->dims[b->rank - 1 - i] : 1;
        if (!dim_broadcast(da, db, &out.dims[out.rank - 1 - i]))
            return false;
    }
    *ret = out;
    return true;
}

enum cm_err infer_elems(struct infer *in, unsigned k, const char *what,
                        const struct wk_elem **ret_elems, unsigned *ret_count)
{
    const struct wk_fact *fact = infer_in(in, k);
    CM_ASSERT(fact);
    if (!fact->elems)
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "%s must follow from constants and shapes, not from data", what);
    *ret_elems = fact->elems;
    *ret_count = fact->n_elems;
    return CM_OK;
}

bool wk_axis(int64_t axis, unsigned rank, unsigned *ret_axis)
{
    if (axis < -(int64_t)rank || axis >= (int64_t)rank)
        return false;
    *ret_axis = (unsigned)(axis < 0 ? axis + rank : axis);
    return true;
}

/* ---- questions about nodes ------------------------------------------------------------------- */

bool wk_node_is_folded(const struct wk_node *node, const struct wk_fact *facts)
{
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && !facts[node->out[k]].elems)
            return false;
    return true;
}

bool wk_operand_is_static(const struct wk_node *node, unsigned k)
{
    switch (node->op) {
    case WK_OP_Shape:
    case WK_OP_Size:
    case WK_OP_ConstantOfShape:
        return true;
    case WK_OP_Reshape:
    case WK_OP_Expand:
    case WK_OP_Slice:
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
    case WK_OP_ReduceMax:
    case WK_OP_ReduceMean:
    case WK_OP_ReduceMin:
    case WK_OP_ReduceSum:
    case WK_OP_Dropout:
        return k >= 1;
    case WK_OP_Pad:
        return k == 1 || k == 3;
    default:
        return false;
    }
}

bool wk_node_is_view(const struct wk_node *node)
{
    switch (node->op) {
    case WK_OP_Reshape:
    case WK_OP_Flatten:
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
    case WK_OP_Identity:
    case WK_OP_Dropout:
        return true;
    default:
        return false;
    }
}

/* ---- the walk -------------------------------------------------------------------------------- */

static enum cm_err constant_fact(const struct wk_const *constant, struct wk_arena *arena,
                                 struct cm_error *err, struct wk_fact *ret)
{
    int64_t count;
    *ret = (struct wk_fact){.dtype = constant->dtype, .shape = constant->shape};
    if (!infer_is_tracked_type(constant->dtype) ||
        cm_shape_count(&constant->shape, &count) != CM_OK || count > WK_MAX_TRACKED)
        return CM_OK;
    struct wk_elem *elems = wk_arena_take(arena, (size_t)count, sizeof *elems);
    if (!elems)
        return cm_fail(err, CM_NOMEM, "out of memory");
    for (int64_t i = 0; i < count; i++) {
        int32_t narrow;
        if (constant->dtype == CM_INT64) {
            memcpy(&elems[i].v, (const char *)constant->data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)constant->data + 4 * i, 4);
            elems[i].v = narrow;
        }
    }
    ret->n_elems = (uint32_t)count;
    ret->elems = elems;
    return CM_OK;
}

/* Every tensor's size is checked where it is inferred, so that later arithmetic cannot overflow. */
static enum cm_err check_outputs(struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_out; k++) {
        const struct wk_fact *out = infer_out(in, k);
        if (!out)
            continue;
        struct cm_shape shape = out->shape;
        size_t bytes;
        for (unsigned i = 0; i < shape.rank; i++)
            if (!dim_known(shape.dims[i]))
                shape.dims[i] = 1;
        if (!wk_dims_fit(&shape))
            return wk_node_fail(in->err, CM_LIMIT, in->node,
                                "its output has a dimension larger than %lld",
                                (long long)WK_MAX_DIM);
        if (out->dtype == CM_DTYPE_NONE)
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node, "output %u is not supported", k);
        if (cm_shape_bytes(&shape, out->dtype, &bytes) != CM_OK || bytes > WK_MAX_TENSOR_BYTES)
            return wk_node_fail(in->err, CM_LIMIT, in->node, "its output is larger than %zu bytes",
                                WK_MAX_TENSOR_BYTES);
    }
    return CM_OK;
}

static enum cm_err infer_node(struct infer *in)
{
    CM_ASSERT(rules[in->node->op]);
    enum cm_err code = rules[in->node->op](in);
    return code == CM_OK ? check_outputs(in) : code;
}

static enum cm_err infer_all(const struct wk_graph *graph, const struct cm_shape *inputs,
                             struct wk_arena *arena, struct wk_fact *facts, bool rows,
                             struct cm_error *err)
{
    for (uint32_t i = 0; i < graph->n_values; i++) {
        const struct wk_value *value = &graph->values[i];
        if (value->constant) {
            enum cm_err code = constant_fact(value->constant, arena, err, &facts[i]);
            if (code != CM_OK)
                return code;
        } else if (value->input >= 0) {
            facts[i] = (struct wk_fact){.dtype = graph->input_info[value->input].dtype,
                                        .shape = inputs[value->input],
                                        .rows = rows ? WK_ROWS_ROWS : WK_ROWS_FREE};
        }
    }
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        struct infer in = {&graph->nodes[i], facts, arena, err};
        enum cm_err code = infer_node(&in);
        if (code != CM_OK)
            return code;
        if (rows)
            wk_batch_node(&graph->nodes[i], facts);
    }
    return CM_OK;
}

enum cm_err wk_infer_symbolic(struct wk_graph *graph, struct cm_error *err)
{
    struct cm_shape inputs[WK_MAX_IO];
    bool rows = graph->n_inputs > 0;
    for (uint32_t i = 0; i < graph->n_inputs; i++) {
        inputs[i] = graph->input_info[i].shape;
        if (inputs[i].rank == 0 || inputs[i].dims[0] >= 0)
            rows = false;
    }
    for (uint32_t i = 0; i < graph->n_inputs && rows; i++)
        inputs[i].dims[0] = WK_DIM_BATCH;
    return infer_all(graph, inputs, &graph->arena, graph->facts, rows, err);
}

enum cm_err wk_infer_concrete(const struct wk_graph *graph, const struct cm_shape *inputs,
                              struct wk_arena *arena, struct wk_fact *facts, struct cm_error *err)
{
    return infer_all(graph, inputs, arena, facts, false, err);
}
