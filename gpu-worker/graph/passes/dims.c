/* Identities of dimensions; see dims.h. */
#include "gpu-worker/graph/passes/dims.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"

#include <string.h>

/* What an identity is made of, so that equal numbers from different sources differ. */
enum source { FROM_NUMBER = 1, FROM_BATCH, FROM_VALUE, FROM_ELEM, FROM_WINDOW, FROM_BROADCAST };

static pass_dim mix(pass_dim a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ (a >> 31);
}

static pass_dim of_number(int64_t n)
{
    return mix(FROM_NUMBER, (uint64_t)n);
}

static pass_dim fresh(enum source source, int32_t value, unsigned axis)
{
    return mix(mix(source, (uint64_t)value), axis);
}

/* ---- one node -------------------------------------------------------------------------------- */

struct walk {
    struct pass_dims *dims;
    const struct wk_node *node;
    const struct wk_fact *facts;
    int32_t out;                /* output 0 */
    const struct wk_fact *fact; /* of output 0 */
    pass_dim *to;               /* its identities, to be filled where the dimension is free */
};

static const struct wk_fact *input(const struct walk *w, unsigned k)
{
    return pass_in(w->node, k) < 0 ? NULL : &w->facts[w->node->in[k]];
}

static const pass_dim *dims_of(const struct walk *w, unsigned k)
{
    return w->dims->shape[w->node->in[k]];
}

static void keep(const struct walk *w, unsigned axis, pass_dim id)
{
    if (axis < w->fact->shape.rank && w->fact->shape.dims[axis] == WK_DIM_ANY)
        w->to[axis] = id;
}

static void follow_same(const struct walk *w)
{
    if (input(w, 0)->shape.rank == w->fact->shape.rank)
        for (unsigned i = 0; i < w->fact->shape.rank; i++)
            keep(w, i, dims_of(w, 0)[i]);
}

/* Operands [0, n), of which the last `tail` dimensions do not take part. */
static void follow_broadcast(const struct walk *w, unsigned n, unsigned tail)
{
    unsigned rank = w->fact->shape.rank;
    for (unsigned axis = 0; axis + tail < rank; axis++) {
        unsigned back = rank - axis; /* counted from the end */
        pass_dim id = 0;
        bool same = true;
        for (unsigned k = 0; k < n; k++) {
            const struct wk_fact *fact = input(w, k);
            if (!fact || fact->shape.rank < back || fact->shape.dims[fact->shape.rank - back] == 1)
                continue;
            pass_dim other = dims_of(w, k)[fact->shape.rank - back];
            same = same && (id == 0 || id == other);
            id = id == 0 || same ? other : mix(mix(FROM_BROADCAST, id), other);
        }
        if (id)
            keep(w, axis, id);
    }
}

static int64_t entry(const struct wk_node *node, const char *name, size_t i, int64_t otherwise)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr && i < attr->count ? attr->ints[i] : otherwise;
}

/* Where sizes are not known yet no rule has looked at how large these are. */
static bool keeps_size(int64_t kernel, int64_t dilation, int64_t before, int64_t after)
{
    int64_t reach, pads;
    return !__builtin_mul_overflow(kernel - 1, dilation, &reach) &&
           !__builtin_add_overflow(before, after, &pads) && pads == reach;
}

/* A window keeps the size of a dimension where it moves by one and the padding makes up for it. */
static void follow_window(const struct walk *w, const struct wk_fact *weights)
{
    const struct wk_node *node = w->node;
    const char *mode = wk_node_string(node, "auto_pad", "NOTSET");
    unsigned n = w->fact->shape.rank - 2u;
    bool given = strcmp(mode, "NOTSET") == 0, same = strncmp(mode, "SAME", 4) == 0;
    if (input(w, 0)->shape.rank != w->fact->shape.rank || w->fact->shape.rank < 3)
        return;
    for (unsigned i = 0; i < n; i++) {
        int64_t kernel = weights ? weights->shape.dims[2 + i] : entry(node, "kernel_shape", i, 0);
        int64_t stride = entry(node, "strides", i, 1), dilation = entry(node, "dilations", i, 1);
        int64_t before = given ? entry(node, "pads", i, 0) : 0;
        int64_t after = given ? entry(node, "pads", n + i, 0) : 0;
        pass_dim id = dims_of(w, 0)[2 + i];
        if (stride != 1 || kernel < 1 || !(same || keeps_size(kernel, dilation, before, after))) {
            id = mix(mix(mix(FROM_WINDOW, id), (uint64_t)kernel), (uint64_t)stride);
            id = mix(mix(id, (uint64_t)dilation), (uint64_t)before + (uint64_t)after);
            id = mix(mix(id, (uint64_t)mode[0]),
                     (uint64_t)(given || !mode[0] ? 0 : mode[strlen(mode) - 1]));
            id = mix(id, (uint64_t)wk_node_int(node, "ceil_mode", 0));
        }
        keep(w, 2 + i, id);
    }
    keep(w, 0, dims_of(w, 0)[0]);
}

static void follow_matmul(const struct walk *w)
{
    const struct cm_shape *a = &input(w, 0)->shape, *b = &input(w, 1)->shape;
    unsigned rank = w->fact->shape.rank;
    if (a->rank < 2 || b->rank < 2)
        return;
    follow_broadcast(w, 2, 2);
    keep(w, rank - 2, dims_of(w, 0)[a->rank - 2]);
    keep(w, rank - 1, dims_of(w, 1)[b->rank - 1]);
}

static void follow_gemm(const struct walk *w)
{
    keep(w, 0, dims_of(w, 0)[wk_node_int(w->node, "transA", 0) != 0]);
    keep(w, 1, dims_of(w, 1)[wk_node_int(w->node, "transB", 0) == 0]);
}

static void follow_transpose(const struct walk *w)
{
    unsigned perm[CM_MAX_RANK];
    if (wk_transpose_perm(w->node, w->fact->shape.rank, NULL, perm) != CM_OK)
        return;
    for (unsigned i = 0; i < w->fact->shape.rank; i++)
        keep(w, i, dims_of(w, 0)[perm[i]]);
}

static void follow_concat(const struct walk *w)
{
    unsigned axis;
    if (!wk_axis(wk_node_int(w->node, "axis", 0), w->fact->shape.rank, &axis))
        return;
    for (unsigned i = 0; i < w->fact->shape.rank; i++)
        if (i != axis)
            keep(w, i, dims_of(w, 0)[i]);
}

static void follow_gather(const struct walk *w)
{
    const struct cm_shape *x = &input(w, 0)->shape, *index = &input(w, 1)->shape;
    unsigned axis;
    if (!wk_axis(wk_node_int(w->node, "axis", 0), x->rank, &axis))
        return;
    for (unsigned i = 0; i < axis; i++)
        keep(w, i, dims_of(w, 0)[i]);
    for (unsigned i = 0; i < index->rank; i++)
        keep(w, axis + i, dims_of(w, 1)[i]);
    for (unsigned i = axis + 1; i < x->rank; i++)
        keep(w, i + index->rank - 1, dims_of(w, 0)[i]);
}

static void follow_reduce(const struct walk *w)
{
    bool axes[CM_MAX_RANK];
    unsigned out = 0;
    if (wk_reduce_axes(w->node, w->facts, NULL, axes) != CM_OK)
        return;
    for (unsigned i = 0; i < input(w, 0)->shape.rank; i++) {
        if (!axes[i])
            keep(w, out++, dims_of(w, 0)[i]);
        else if (wk_node_int(w->node, "keepdims", 1))
            out++;
    }
}

/* Only dimensions of 1 come and go, so that the others keep their order. */
static void follow_squeeze(const struct walk *w)
{
    const struct cm_shape *x = &input(w, 0)->shape, *y = &w->fact->shape;
    unsigned n_x = 0, n_y = 0, from = 0;
    for (unsigned i = 0; i < x->rank; i++)
        n_x += x->dims[i] != 1;
    for (unsigned i = 0; i < y->rank; i++)
        n_y += y->dims[i] != 1;
    for (unsigned i = 0; i < y->rank && n_x == n_y; i++) {
        if (y->dims[i] == 1)
            continue;
        while (x->dims[from] == 1)
            from++;
        keep(w, i, dims_of(w, 0)[from++]);
    }
}

/* A target that names each dimension; 0 copies one, and -1 is not followed. */
static void follow_reshape(const struct walk *w)
{
    const struct wk_fact *target = input(w, 1);
    if (!target || !target->elems || target->n_elems != w->fact->shape.rank)
        return;
    for (unsigned i = 0; i < target->n_elems; i++) {
        const struct wk_elem *elem = &target->elems[i];
        if (elem->kind != WK_ELEM_KNOWN)
            keep(w, i, w->dims->elems[w->node->in[1]][i]);
        else if (elem->v == 0 && i < input(w, 0)->shape.rank &&
                 !wk_node_int(w->node, "allowzero", 0))
            keep(w, i, dims_of(w, 0)[i]);
    }
}

static void follow_shape(const struct walk *w)
{
    switch (w->node->op) {
    case WK_OP_Add:
    case WK_OP_Div:
    case WK_OP_Mul:
    case WK_OP_Pow:
    case WK_OP_Sub:
    case WK_OP_Where:
        follow_broadcast(w, wk_node_own_inputs(w->node), 0);
        break;
    case WK_OP_AveragePool:
    case WK_OP_MaxPool:
        follow_window(w, NULL);
        break;
    case WK_OP_Conv:
        follow_window(w, input(w, 1));
        break;
    case WK_OP_MatMul:
        follow_matmul(w);
        break;
    case WK_OP_Gemm:
        follow_gemm(w);
        break;
    case WK_OP_Transpose:
        follow_transpose(w);
        break;
    case WK_OP_Concat:
        follow_concat(w);
        break;
    case WK_OP_Gather:
        follow_gather(w);
        break;
    case WK_OP_ReduceMax:
    case WK_OP_ReduceMean:
    case WK_OP_ReduceMin:
    case WK_OP_ReduceSum:
        follow_reduce(w);
        break;
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
        follow_squeeze(w);
        break;
    case WK_OP_Reshape:
        follow_reshape(w);
        break;
    case WK_OP_Abs:
    case WK_OP_BatchNormalization:
    case WK_OP_Cast:
    case WK_OP_Clip:
    case WK_OP_Erf:
    case WK_OP_Exp:
    case WK_OP_Gelu:
    case WK_OP_HardSigmoid:
    case WK_OP_HardSwish:
    case WK_OP_Identity:
    case WK_OP_LeakyRelu:
    case WK_OP_Log:
    case WK_OP_LogSoftmax:
    case WK_OP_Neg:
    case WK_OP_Reciprocal:
    case WK_OP_Relu:
    case WK_OP_Sigmoid:
    case WK_OP_Softmax:
    case WK_OP_Sqrt:
    case WK_OP_Tanh:
        follow_same(w);
        break;
    default:
        break;
    }
}

/* ---- contents -------------------------------------------------------------------------------- */

static bool is_followed(const struct wk_fact *fact)
{
    return fact && fact->elems && fact->n_elems <= CM_MAX_RANK;
}

static void keep_elem(const struct walk *w, unsigned i, pass_dim id)
{
    if (i < w->fact->n_elems && w->fact->elems[i].kind == WK_ELEM_ANY)
        w->dims->elems[w->out][i] = id;
}

static void copy_elems(const struct walk *w, unsigned from, unsigned to, unsigned count)
{
    for (unsigned i = 0; i < count && from + i < CM_MAX_RANK; i++)
        keep_elem(w, to + i, w->dims->elems[w->node->in[0]][from + i]);
}

static void follow_shape_elems(const struct walk *w)
{
    int64_t start = wk_node_int(w->node, "start", 0), rank = input(w, 0)->shape.rank;
    if (start < 0)
        start += rank;
    for (int64_t i = start < 0 ? 0 : start; i < rank; i++)
        keep_elem(w, (unsigned)(i - (start < 0 ? 0 : start)), dims_of(w, 0)[i]);
}

static void follow_gather_elems(const struct walk *w)
{
    const struct wk_fact *index = input(w, 1);
    if (!is_followed(input(w, 0)) || !is_followed(index) || input(w, 0)->shape.rank != 1)
        return;
    for (unsigned i = 0; i < index->n_elems; i++) {
        int64_t at = index->elems[i].v;
        if (at < 0)
            at += input(w, 0)->n_elems;
        if (index->elems[i].kind == WK_ELEM_KNOWN && at >= 0 && at < input(w, 0)->n_elems)
            keep_elem(w, i, w->dims->elems[w->node->in[0]][at]);
    }
}

static void follow_elems(const struct walk *w)
{
    struct wk_slice slice;
    unsigned at = 0;
    switch (w->node->op) {
    case WK_OP_Shape:
        follow_shape_elems(w);
        break;
    case WK_OP_Cast:
    case WK_OP_Identity:
    case WK_OP_Reshape:
    case WK_OP_Squeeze:
    case WK_OP_Unsqueeze:
        if (is_followed(input(w, 0)))
            copy_elems(w, 0, 0, input(w, 0)->n_elems);
        break;
    case WK_OP_Gather:
        follow_gather_elems(w);
        break;
    case WK_OP_Slice:
        if (is_followed(input(w, 0)) && input(w, 0)->shape.rank == 1 &&
            wk_slice_resolve(w->node, w->facts, NULL, &slice) == CM_OK && slice.step[0] == 1)
            copy_elems(w, (unsigned)slice.start[0], 0, (unsigned)slice.length[0]);
        break;
    case WK_OP_Concat:
        for (unsigned k = 0; k < w->node->n_in; k++) {
            if (!is_followed(input(w, k)))
                return;
            for (unsigned i = 0; i < input(w, k)->n_elems; i++)
                keep_elem(w, at++, w->dims->elems[w->node->in[k]][i]);
        }
        break;
    default:
        break;
    }
}

/* ---- the walk -------------------------------------------------------------------------------- */

static void start_value(struct pass_dims *dims, int32_t value)
{
    const struct wk_fact *fact = &dims->graph->facts[value];
    for (unsigned i = 0; i < fact->shape.rank; i++) {
        int64_t dim = fact->shape.dims[i];
        dims->shape[value][i] = dim >= 0              ? of_number(dim)
                                : dim == WK_DIM_BATCH ? FROM_BATCH
                                                      : fresh(FROM_VALUE, value, i);
    }
    for (unsigned i = 0; is_followed(fact) && i < fact->n_elems; i++) {
        const struct wk_elem *elem = &fact->elems[i];
        dims->elems[value][i] = elem->kind == WK_ELEM_KNOWN   ? of_number(elem->v)
                                : elem->kind == WK_ELEM_BATCH ? FROM_BATCH
                                                              : fresh(FROM_ELEM, value, i);
    }
}

static bool inputs_are_ranked(const struct walk *w)
{
    for (unsigned k = 0; k < w->node->n_in; k++)
        if (input(w, k) && input(w, k)->unranked)
            return false;
    return input(w, 0) && !w->fact->unranked;
}

enum cm_err pass_dims_fill(struct wk_pass *pass, struct pass_dims *ret)
{
    const struct wk_graph *graph = pass->graph;
    *ret = (struct pass_dims){.graph = graph};
    ret->shape = wk_arena_take(&pass->arena, graph->n_values, sizeof *ret->shape);
    ret->elems = wk_arena_take(&pass->arena, graph->n_values, sizeof *ret->elems);
    if (!ret->shape || !ret->elems)
        return cm_fail(pass->err, CM_NOMEM, "out of memory while loading a model");
    for (uint32_t i = 0; i < graph->n_values; i++)
        start_value(ret, (int32_t)i);
    for (uint32_t i = 0; i < graph->n_nodes; i++) {
        const struct wk_node *node = &graph->nodes[i];
        if (node->n_out == 0 || node->out[0] < 0)
            continue;
        struct walk w = {.dims = ret,
                         .node = node,
                         .facts = graph->facts,
                         .out = node->out[0],
                         .fact = &graph->facts[node->out[0]],
                         .to = ret->shape[node->out[0]]};
        if (!inputs_are_ranked(&w))
            continue;
        follow_shape(&w);
        if (is_followed(w.fact))
            follow_elems(&w);
    }
    return CM_OK;
}

/* ---- spreads --------------------------------------------------------------------------------- */

bool pass_find_spread(const struct pass_dims *dims, int32_t out, int32_t operand,
                      enum wk_spread *ret_spread)
{
    const struct wk_fact *y = &dims->graph->facts[out], *x = &dims->graph->facts[operand];
    unsigned lead = y->shape.rank - x->shape.rank, differing = 0, at = 0;
    if (x->unranked || y->unranked || x->shape.rank > y->shape.rank)
        return false;
    for (unsigned i = 0; i < x->shape.rank; i++) {
        if (x->shape.dims[i] == 1)
            continue;
        if (dims->shape[operand][i] != dims->shape[out][lead + i])
            return false;
        at = lead + i;
        differing++;
    }
    /* The same shape, up to dimensions of 1 that the output has too. */
    bool each = x->shape.rank == y->shape.rank;
    for (unsigned i = 0; each && i < x->shape.rank; i++)
        each = dims->shape[operand][i] == dims->shape[out][i];
    if (differing == 0)
        *ret_spread = WK_SPREAD_ONE;
    else if (each)
        *ret_spread = WK_SPREAD_EACH;
    else if (differing == 1 && at + 1u == y->shape.rank)
        *ret_spread = WK_SPREAD_LAST;
    else if (differing == 1 && at == 1)
        *ret_spread = WK_SPREAD_CHANNEL;
    else
        *ret_spread = WK_SPREAD_OTHER;
    return true;
}
