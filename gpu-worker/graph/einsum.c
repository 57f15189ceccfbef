/* Einsum's equation against shapes; see einsum.h.
 *
 * The equation is read twice: the first pass finds how many axes the longest ellipsis stands for,
 * the second gives each axis its label. */
#include "gpu-worker/graph/einsum.h"

#include "gpu-worker/graph/infer_reduce.h"

#include <string.h>

/* One operand's term, or the output's: letters, with at most one ellipsis. */
struct term {
    unsigned n; /* letters */
    uint8_t letters[2 * CM_MAX_RANK];
    int dots; /* letters in front of the ellipsis; -1 without one */
};

struct reader {
    const struct wk_node *node;
    struct cm_error *err;
    const char *at;
};

static enum cm_err wrong(const struct reader *r, const char *what)
{
    return wk_node_fail(r->err, CM_INVALID, r->node, "its equation %s", what);
}

static int label_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    return c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}

/* Reads up to a comma, an arrow or the end. */
static enum cm_err read_term(struct reader *r, struct term *ret)
{
    *ret = (struct term){.dots = -1};
    for (; *r->at && *r->at != ',' && *r->at != '-'; r->at++) {
        if (*r->at == ' ')
            continue;
        if (*r->at == '.') {
            if (strncmp(r->at, "...", 3) != 0 || ret->dots >= 0)
                return wrong(r, "has dots that are not one ellipsis");
            ret->dots = (int)ret->n;
            r->at += 2;
            continue;
        }
        int label = label_of(*r->at);
        if (label < 0)
            return wrong(r, "has a character that is no letter");
        if (ret->n == CM_MAX_RANK)
            return wrong(r, "has a term of too many letters");
        ret->letters[ret->n++] = (uint8_t)label;
    }
    return CM_OK;
}

/* A label takes an operand's dimension. Only the ellipsis broadcasts. */
static bool meet(struct wk_einsum *e, unsigned label, int64_t dim, bool seen)
{
    int64_t *have = &e->dims[label];
    if (!seen) {
        *have = dim;
        return true;
    }
    if (label >= WK_EINSUM_DOTS)
        return dim_broadcast(*have, dim, have);
    if (!infer_same_dim(*have, dim))
        return false;
    if (!dim_known(*have) && *have != dim)
        *have = dim_known(dim) ? dim : WK_DIM_ANY;
    return true;
}

static enum cm_err read_operand(struct reader *r, struct wk_einsum *e, const struct cm_shape *shape,
                                unsigned counts[WK_EINSUM_LABELS])
{
    struct term term;
    char text[96];
    enum cm_err code = read_term(r, &term);
    if (code != CM_OK)
        return code;
    if (term.n > shape->rank || (term.dots < 0 && term.n != shape->rank))
        return wk_node_fail(r->err, CM_INVALID, r->node, "term %u of its equation does not fit %s",
                            e->n_operands, cm_shape_format(shape, text, sizeof text));
    uint8_t *labels = e->labels[e->n_operands++];
    unsigned covered = shape->rank - term.n, axis = 0;
    for (unsigned i = 0; i <= term.n; i++) {
        for (unsigned j = 0; (int)i == term.dots && j < covered; j++)
            labels[axis++] = (uint8_t)(WK_EINSUM_DOTS + covered - 1 - j);
        if (i < term.n)
            labels[axis++] = term.letters[i];
    }
    for (unsigned i = 0; i < shape->rank; i++)
        if (!meet(e, labels[i], shape->dims[i], counts[labels[i]]++ > 0))
            return wk_node_fail(r->err, CM_INVALID, r->node, "its equation does not fit %s",
                                cm_shape_format(shape, text, sizeof text));
    return CM_OK;
}

static enum cm_err add_out(const struct reader *r, struct wk_einsum *e, unsigned label)
{
    if (e->out_rank == CM_MAX_RANK)
        return wk_node_fail(r->err, CM_LIMIT, r->node, "its output has more than %d dimensions",
                            CM_MAX_RANK);
    e->out[e->out_rank++] = (uint8_t)label;
    return CM_OK;
}

static enum cm_err add_dots(const struct reader *r, struct wk_einsum *e,
                            const unsigned counts[WK_EINSUM_LABELS])
{
    enum cm_err code = CM_OK;
    for (unsigned label = WK_EINSUM_LABELS; label-- > WK_EINSUM_DOTS && code == CM_OK;)
        if (counts[label])
            code = add_out(r, e, label);
    return code;
}

/* Without an arrow: the ellipsis, then what occurs once, in the order of the alphabet. */
static enum cm_err implicit_output(const struct reader *r, struct wk_einsum *e,
                                   const unsigned counts[WK_EINSUM_LABELS])
{
    enum cm_err code = add_dots(r, e, counts);
    for (unsigned label = 0; label < WK_EINSUM_DOTS && code == CM_OK; label++)
        if (counts[label] == 1)
            code = add_out(r, e, label);
    return code;
}

static enum cm_err explicit_output(struct reader *r, struct wk_einsum *e,
                                   const unsigned counts[WK_EINSUM_LABELS])
{
    struct term term;
    uint64_t seen = 0;
    r->at += 2;
    enum cm_err code = read_term(r, &term);
    if (code == CM_OK && *r->at)
        code = wrong(r, "goes on after its output");
    for (unsigned i = 0; code == CM_OK && i <= term.n; i++) {
        if ((int)i == term.dots)
            code = add_dots(r, e, counts);
        if (code != CM_OK || i == term.n)
            break;
        if (!counts[term.letters[i]] || seen >> term.letters[i] & 1)
            return wrong(r, "has an output letter that no operand has, or twice");
        seen |= 1ull << term.letters[i];
        code = add_out(r, e, term.letters[i]);
    }
    return code;
}

enum cm_err wk_einsum_resolve(const struct wk_node *node, const struct wk_fact *facts,
                              struct cm_error *err, struct wk_einsum *ret)
{
    struct reader r = {node, err, wk_node_string(node, "equation", "")};
    unsigned counts[WK_EINSUM_LABELS] = {0};
    enum cm_err code = CM_OK;
    memset(ret, 0, sizeof *ret);
    for (unsigned k = 0; k < node->n_in && code == CM_OK; k++) {
        if (k > 0 && *r.at++ != ',')
            return wrong(&r, "has fewer terms than the node has inputs");
        if (node->in[k] < 0)
            return wk_node_fail(err, CM_INVALID, node, "input %u must not be empty", k);
        code = read_operand(&r, ret, &facts[node->in[k]].shape, counts);
    }
    if (code != CM_OK)
        return code;
    if (strncmp(r.at, "->", 2) == 0)
        return explicit_output(&r, ret, counts);
    return *r.at ? wrong(&r, "has more terms than the node has inputs, or a stray character")
                 : implicit_output(&r, ret, counts);
}

enum cm_err wk_einsum_check(const struct wk_node *node, struct cm_error *err)
{
    struct reader r = {node, err, wk_node_string(node, "equation", "")};
    struct term term;
    enum cm_err code = CM_OK;
    if (!wk_node_attr(node, "equation"))
        return wk_node_fail(err, CM_INVALID, node, "attribute equation is missing");
    if (node->n_in > WK_EINSUM_OPERANDS)
        return wk_node_fail(err, CM_LIMIT, node, "has more than %d operands", WK_EINSUM_OPERANDS);
    for (unsigned k = 0; k < node->n_in && code == CM_OK; k++) {
        if (k > 0 && *r.at++ != ',')
            return wrong(&r, "has fewer terms than the node has inputs");
        code = read_term(&r, &term);
    }
    if (code == CM_OK && strncmp(r.at, "->", 2) == 0) {
        r.at += 2;
        code = read_term(&r, &term);
        return code == CM_OK && *r.at ? wrong(&r, "goes on after its output") : code;
    }
    return code == CM_OK && *r.at
               ? wrong(&r, "has more terms than the node has inputs, or a stray character")
               : code;
}
