/* Shape inference: the walk over the graph, the table of rules, and what rules share. See infer.h.
 */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/batch.h"
#include "gpu-worker/graph/eval.h"

#include <string.h>

static infer_fn *const rules[WK_OP_COUNT] = {
#define OP(name, rule, traits, note) [WK_OP_##name] = infer_##rule,
#define VER(name, first, last, min_in, max_in, max_out, attributes)
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
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

enum cm_err infer_set_out(struct infer *in, unsigned k, enum cm_dtype dtype,
                          const struct cm_shape *shape)
{
    struct wk_fact *out = infer_out(in, k);
    if (out) {
        out->dtype = dtype;
        out->shape = *shape;
    }
    return CM_OK;
}

enum cm_err infer_set(struct infer *in, enum cm_dtype dtype, const struct cm_shape *shape)
{
    return infer_set_out(in, 0, dtype, shape);
}

bool infer_is_settled(const struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_in; k++) {
        const struct wk_fact *fact = infer_in(in, k);
        if (!fact)
            continue;
        if (!wk_fact_is_settled(fact))
            return false;
        if (wk_operand_decides(in->node, k) && !wk_fact_is_known(fact))
            return false;
    }
    return true;
}

enum cm_err infer_later(struct infer *in, unsigned k, enum cm_dtype dtype, int rank)
{
    struct wk_fact *out = infer_out(in, k);
    if (!out)
        return CM_OK;
    *out = (struct wk_fact){.dtype = dtype, .unranked = rank < 0};
    out->shape.rank = (uint8_t)(rank < 0 ? 0 : rank);
    for (int i = 0; i < rank; i++)
        out->shape.dims[i] = WK_DIM_ANY;
    return CM_OK;
}

/* Constants are values, not nodes. */
enum cm_err infer_none(struct infer *in)
{
    CM_ASSERT(!in->node);
    return CM_INTERNAL;
}

bool infer_is_tracked_type(enum cm_dtype dtype)
{
    return dtype == CM_INT64 || dtype == CM_INT32;
}

/* A chain of additions on small constants, two dozen bytes of the file each, would otherwise take
 * 16 KB a node. */
static enum cm_err take_elems(struct wk_arena *arena, int64_t count, struct cm_error *err,
                              struct wk_elem **ret)
{
    if (count > WK_MAX_TRACKED_SUM - arena->tracked)
        return cm_fail(err, CM_LIMIT, "the model computes more than %u integers for shapes",
                       WK_MAX_TRACKED_SUM);
    *ret = wk_arena_take(arena, (size_t)count, sizeof **ret);
    if (!*ret)
        return cm_fail(err, CM_NOMEM, "out of memory");
    arena->tracked += (uint32_t)count;
    return CM_OK;
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
    enum cm_err code = take_elems(in->arena, count, in->err, ret);
    if (code != CM_OK || !out)
        return code != CM_OK ? code : cm_fail(in->err, CM_NOMEM, "out of memory");
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
    if (!fact->elems) {
        in->missing = true;
        return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                            "%s must be int32 or int64, at most %d", what, WK_MAX_TRACKED);
    }
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
        if (node->out[k] >= 0 && !facts[node->out[k]].elems && !facts[node->out[k]].data)
            return false;
    return true;
}

bool wk_operand_is_static(const struct wk_node *node, unsigned k)
{
    if (k >= wk_node_own_inputs(node))
        return false;
    unsigned bit = k < WK_STATIC_BITS ? k : WK_STATIC_BITS - 1;
    return wk_op_traits(node->op) >> bit & 1;
}

bool wk_operand_decides(const struct wk_node *node, unsigned k)
{
    return wk_operand_is_static(node, k) && !(wk_op_traits(node->op) & WK_SHAPE_ONLY);
}

bool wk_node_is_view(const struct wk_node *node)
{
    if (node->form == WK_FORM_VIEW)
        return true;
    if (!(wk_op_traits(node->op) & WK_VIEW))
        return false;
    for (unsigned k = 1; k < node->n_out; k++)
        if (node->out[k] >= 0)
            return false; /* Dropout's mask */
    return node->op != WK_OP_Dropout ||
           ((node->n_in < 3 || node->in[2] < 0) && wk_dropout_is_identity(node, NULL));
}

/* ---- contents ---------------------------------------------------------------------------------
 */

bool wk_fact_is_settled(const struct wk_fact *fact)
{
    bool settled = !fact->unranked && fact->dtype != CM_DTYPE_NONE;
    for (unsigned i = 0; settled && i < fact->shape.rank; i++)
        settled = dim_known(fact->shape.dims[i]);
    return settled;
}

bool wk_fact_is_known(const struct wk_fact *fact)
{
    bool known = fact->data || fact->elems;
    for (uint32_t i = 0; fact->elems && i < fact->n_elems && known; i++)
        known = fact->elems[i].kind == WK_ELEM_KNOWN;
    return known;
}

enum cm_err wk_fact_know(struct wk_fact *fact, const void *data, struct wk_arena *arena,
                         struct cm_error *err)
{
    int64_t count;
    fact->data = data;
    if (fact->elems || !infer_is_tracked_type(fact->dtype) ||
        cm_shape_count(&fact->shape, &count) != CM_OK || count > WK_MAX_TRACKED)
        return CM_OK;
    struct wk_elem *elems;
    enum cm_err code = take_elems(arena, count, err, &elems);
    if (code != CM_OK)
        return code;
    for (int64_t i = 0; i < count; i++) {
        int32_t narrow;
        if (fact->dtype == CM_INT64) {
            memcpy(&elems[i].v, (const char *)data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)data + 4 * i, 4);
            elems[i].v = narrow;
        }
    }
    fact->n_elems = (uint32_t)count;
    fact->elems = elems;
    return CM_OK;
}

const void *wk_fact_contents(const struct wk_fact *fact, struct wk_arena *arena, bool *ret_known)
{
    *ret_known = wk_fact_is_known(fact);
    if (fact->data || !*ret_known)
        return fact->data;
    char *data = wk_arena_take(arena, fact->n_elems, cm_dtype_size(fact->dtype));
    for (uint32_t i = 0; data && i < fact->n_elems; i++) {
        int32_t narrow = (int32_t)fact->elems[i].v;
        if (fact->dtype == CM_INT64)
            memcpy(data + 8 * (size_t)i, &fact->elems[i].v, 8);
        else
            memcpy(data + 4 * (size_t)i, &narrow, 4);
    }
    return data;
}

/* ---- the walk ---------------------------------------------------------------------------------
 */

static enum cm_err constant_fact(const struct wk_const *constant, struct wk_arena *arena,
                                 struct cm_error *err, struct wk_fact *ret)
{
    *ret = (struct wk_fact){.dtype = constant->dtype, .shape = constant->shape};
    if (constant->bytes > WK_SMALL_CONST_BYTES)
        return CM_OK;
    enum cm_err code = wk_fact_know(ret, constant->data, arena, err);
    if (!ret->data)
        ret->data = ""; /* no bytes, but known */
    return code;
}

/* Every tensor's size is checked where it is inferred, so that later arithmetic cannot overflow. */
static enum cm_err check_outputs(struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_out; k++) {
        const struct wk_fact *out = infer_out(in, k);
        if (!out || (out->unranked && out->dtype == CM_DTYPE_NONE))
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

/* A rule needs ranks; and where contents decide an output, more than the rank may be missing. */
static void leave_for_later(struct infer *in)
{
    const struct wk_fact *first = infer_in(in, 0);
    for (unsigned k = 0; k < in->node->n_out; k++)
        (void)infer_later(in, k, first ? first->dtype : CM_DTYPE_NONE, -1);
}

static bool has_unranked_input(const struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_in; k++)
        if (infer_in(in, k) && infer_in(in, k)->unranked)
            return true;
    return false;
}

enum cm_err wk_infer_node(const struct wk_walk *walk, const struct wk_node *node)
{
    struct infer in = {node, walk->facts, walk->arena, walk->err, walk, false};
    CM_ASSERT(rules[node->op]);
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            walk->facts[node->out[k]] = (struct wk_fact){0};
    bool unranked = has_unranked_input(&in);
    if (walk->symbolic) /* the graph is still being made */
        ((struct wk_node *)node)->loose = unranked;
    /* Subgraphs take what they get. */
    if (unranked && !wk_node_has_graphs(node)) {
        for (unsigned k = 0; k < node->n_out; k++)
            (void)infer_later(&in, k, CM_DTYPE_NONE, -1);
        return CM_OK;
    }
    enum cm_err code = rules[node->op](&in);
    if (code == CM_UNSUPPORTED && in.missing) {
        leave_for_later(&in);
        code = CM_OK;
    }
    return code == CM_OK ? check_outputs(&in) : code;
}

enum cm_err wk_infer_graph(const struct wk_walk *walk, const struct wk_fact *inputs)
{
    const struct wk_graph *graph = walk->graph;
    if (walk->spent && (walk->spent->visits += graph->n_values) > WK_MAX_VISITS)
        return cm_fail(walk->err, CM_LIMIT, "the model's subgraphs are nested too deeply");
    for (uint32_t i = 0; i < graph->n_values; i++) {
        const struct wk_value *value = &graph->values[i];
        if (value->constant) {
            enum cm_err code =
                constant_fact(value->constant, walk->arena, walk->err, &walk->facts[i]);
            if (code != CM_OK)
                return code;
        } else if (value->input >= 0) {
            walk->facts[i] = inputs[value->input];
        }
    }
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        enum cm_err code = wk_infer_node(walk, &graph->nodes[i]);
        if (code == CM_OK && walk->backend)
            code = wk_eval_known(walk, &graph->nodes[i]);
        if (code != CM_OK)
            return code;
        if (walk->rows)
            wk_batch_node(&graph->nodes[i], walk->facts);
    }
    return CM_OK;
}

enum cm_err wk_infer_symbolic(struct wk_graph *graph, struct cm_error *err)
{
    struct wk_fact inputs[WK_MAX_IO] = {0};
    bool rows = graph->n_inputs > 0;
    for (uint32_t i = 0; i < graph->n_inputs; i++) {
        inputs[i].dtype = graph->input_info[i].dtype;
        inputs[i].shape = graph->input_info[i].shape;
        if (inputs[i].shape.rank == 0 || inputs[i].shape.dims[0] >= 0)
            rows = false;
    }
    for (uint32_t i = 0; i < graph->n_inputs && rows; i++) {
        inputs[i].shape.dims[0] = WK_DIM_BATCH;
        inputs[i].rows = WK_ROWS_ROWS;
    }
    struct wk_spent spent = {0};
    struct wk_walk walk = {graph, graph->facts, &graph->arena, err, NULL, true, rows, &spent};
    return wk_infer_graph(&walk, inputs);
}
