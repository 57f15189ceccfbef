/* Pass: moves that move nothing. A Transpose that only moves dimensions of 1 leaves the bytes where
 * they are; two in a row are one or none; a reshape of a reshape looks through the first; Identity
 * is its input. See passes.h. */
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/passes/edit.h"

/* Dimensions that are not 1 keep their order. */
static bool keeps_order(const struct cm_shape *x, const unsigned *perm)
{
    unsigned last = 0;
    for (unsigned i = 0; i < x->rank; i++) {
        if (x->dims[perm[i]] == 1)
            continue;
        if (perm[i] < last)
            return false;
        last = perm[i];
    }
    return true;
}

static bool read_perm(const struct wk_pass *pass, const struct wk_node *node, unsigned *perm)
{
    const struct wk_fact *x = &pass->graph->facts[node->in[0]];
    return !x->unranked && wk_transpose_perm(node, x->shape.rank, NULL, perm) == CM_OK;
}

/* Two transposes become one of the first one's input. */
static enum cm_err join_transposes(struct wk_pass *pass, struct wk_node *node)
{
    const struct wk_node *first = pass_producer_of(pass, node->in[0], WK_OP_Transpose);
    unsigned outer[CM_MAX_RANK], inner[CM_MAX_RANK];
    if (!first || !read_perm(pass, first, inner) || !read_perm(pass, node, outer))
        return CM_OK;
    unsigned rank = pass->graph->facts[first->in[0]].shape.rank;
    int64_t *perm = pass_take(pass, rank, sizeof *perm);
    bool nothing = true;
    if (!perm)
        return CM_NOMEM;
    for (unsigned i = 0; i < rank; i++) {
        perm[i] = inner[outer[i]];
        nothing = nothing && perm[i] == i;
    }
    if (nothing) {
        pass_replace(pass, node->out[0], first->in[0]);
        return CM_OK;
    }
    const struct wk_attr attr = {.name = "perm", .type = 'I', .ints = perm, .count = rank};
    struct wk_node made = *node;
    made.in = pass_values(pass, 1, first->in);
    made.n_attrs = 1;
    made.attrs = pass_attrs(pass, 1, &attr);
    return made.in && made.attrs ? pass_set_node(pass, node, &made) : CM_NOMEM;
}

static enum cm_err see_through(struct wk_pass *pass, struct wk_node *node)
{
    unsigned perm[CM_MAX_RANK];
    if (node->op == WK_OP_Transpose) {
        enum cm_err code = join_transposes(pass, node);
        if (code == CM_OK && pass_is_live(pass, node) && read_perm(pass, node, perm) &&
            keeps_order(&pass->graph->facts[node->in[0]].shape, perm)) {
            node->form = WK_FORM_VIEW;
            pass->changed = true;
        }
        return code;
    }
    if (node->op == WK_OP_Identity)
        pass_replace(pass, node->out[0], node->in[0]);
    return CM_OK;
}

/* A target without zeros says the whole shape, whatever the input's is. */
static bool names_all(const struct wk_pass *pass, const struct wk_node *node)
{
    const struct wk_fact *target = &pass->graph->facts[node->in[1]];
    if (!target->elems)
        return false;
    for (uint32_t i = 0; i < target->n_elems; i++)
        if (target->elems[i].kind != WK_ELEM_KNOWN || target->elems[i].v == 0)
            return false;
    return true;
}

enum { LOOK_BACK = 8 /* views in front of a view: a longer row is left as it is */ };

static enum cm_err skip_reshape(struct wk_pass *pass, struct wk_node *node)
{
    const struct wk_node *first = pass_producer(pass, node->in[0]);
    for (unsigned i = 0; first && wk_node_is_view(first) && i < LOOK_BACK; i++) {
        const struct wk_node *before = pass_producer(pass, first->in[0]);
        if (!before || !wk_node_is_view(before))
            break;
        first = before;
    }
    if (!first || !wk_node_is_view(first) || node->n_in != 2 || !names_all(pass, node))
        return CM_OK;
    struct wk_node made = *node;
    int32_t in[] = {first->in[0], node->in[1]};
    made.in = pass_values(pass, 2, in);
    return made.in ? pass_set_node(pass, node, &made) : CM_NOMEM;
}

enum cm_err pass_views(struct wk_pass *pass)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < pass->graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &pass->graph->nodes[i];
        if (pass->idle[i] || node->n_out != 1 || node->n_in == 0 || node->in[0] < 0)
            continue;
        code = node->op == WK_OP_Reshape ? skip_reshape(pass, node) : see_through(pass, node);
    }
    return code;
}
