/* Pass: element-wise operators join the node in front of them. A bias, an activation, a residual:
 * what follows a product, a convolution or another element-wise operator, and is the only thing
 * that does, runs on its output while that is in cache. No arithmetic changes. See passes.h. */
#include "gpu-worker/graph/passes/dims.h"

#include <string.h>

/* What has been found after one host. */
struct chain {
    struct wk_pass *pass;
    const struct pass_dims *dims;
    struct wk_node host;  /* with the stages so far; its own memory is taken at the end */
    struct wk_node *last; /* whose output is the chain's */
    struct wk_stage stages[WK_MAX_STAGES];
    int32_t operands[WK_MAX_STAGES]; /* values; -1: none */
};

/* The other operand of a user of `value`: its slot, or -1 where there is none. Constants that only
 * set parameters (Clip's bounds) are none. */
static int other_slot(const struct wk_node *user, int32_t value)
{
    switch (user->op) {
    case WK_OP_Add:
    case WK_OP_Div:
    case WK_OP_Mul:
    case WK_OP_Sub:
        return user->in[0] == value ? 1 : 0;
    default:
        return -1;
    }
}

/* The user's output has the type and shape of its input, and the backend can run it there. */
static bool can_join(struct chain *chain, const struct wk_node *user, int32_t value)
{
    struct wk_graph *graph = chain->pass->graph;
    struct wk_call call = {.graph = graph, .node = &chain->host, .facts = graph->facts};
    enum wk_spread spread = WK_SPREAD_NONE;
    int other = other_slot(user, value);
    if (user->n_stages || user->n_out != 1 || graph->facts[user->out[0]].dtype != CM_FP32 ||
        (other < 0 && pass_in(user, 0) != value))
        return false;
    if (other >= 0) {
        if (graph->facts[user->in[other]].dtype != CM_FP32 ||
            !pass_find_spread(chain->dims, value, user->in[other], &spread))
            return false;
    }
    return chain->pass->backend->ops->fuses(chain->pass->backend, &call, user, spread);
}

static void join(struct chain *chain, struct wk_node *user, int32_t value)
{
    unsigned i = chain->host.n_stages++;
    int other = other_slot(user, value);
    chain->operands[i] = other < 0 ? -1 : user->in[other];
    chain->stages[i] = (struct wk_stage){.reversed = other == 0};
    chain->last = user;
}

/* Bounds of Clip that are constants become attributes, so that a stage, and the host of one, need
 * nothing of the graph that they came from. */
static enum cm_err bake_bounds(struct wk_pass *pass, struct wk_node *node)
{
    struct wk_attr attrs[2];
    unsigned n = 0;
    if (node->op != WK_OP_Clip || node->n_in < 2)
        return CM_OK;
    for (unsigned k = 1; k <= 2; k++) {
        struct wk_attr attr = {.name = k == 1 ? "min" : "max", .type = 'f'};
        if (pass_number(pass, pass_in(node, k), &attr.f))
            attrs[n++] = attr;
    }
    node->n_in = node->n_given = 1;
    node->n_attrs = (uint16_t)n;
    node->attrs = pass_attrs(pass, n, attrs);
    return node->attrs ? CM_OK : CM_NOMEM;
}

/* Inputs that the operator could have and does not are -1, so that operands of stages come after
 * them. */
static enum cm_err finish(struct chain *chain, const struct wk_node *host,
                          struct wk_node *const *users)
{
    struct wk_pass *pass = chain->pass;
    struct wk_node made = *host;
    enum cm_err code = bake_bounds(pass, &made);
    const struct wk_op_version *version = wk_op_version(host->op, host->opset);
    unsigned own = version && version->max_in > made.n_in ? version->max_in : made.n_in;
    unsigned n = chain->host.n_stages, n_in = own;
    int32_t *in = pass_take(pass, own + n, sizeof *in);
    struct wk_stage *stages = pass_take(pass, n, sizeof *stages);
    struct wk_node *nodes = pass_take(pass, n, sizeof *nodes);
    if (code != CM_OK || !in || !stages || !nodes)
        return CM_NOMEM;
    for (unsigned k = 0; k < own; k++)
        in[k] = pass_in(&made, k);
    for (unsigned i = 0; i < n; i++) {
        nodes[i] = *users[i];
        code = bake_bounds(pass, &nodes[i]);
        if (code != CM_OK)
            return code;
        stages[i] = chain->stages[i];
        stages[i].node = &nodes[i];
        if (chain->operands[i] >= 0) {
            stages[i].operand = (uint16_t)n_in;
            in[n_in++] = chain->operands[i];
        }
    }
    made.in = in;
    made.n_in = (uint16_t)n_in;
    made.out = chain->last->out;
    made.n_own = (uint16_t)own;
    made.n_stages = (uint16_t)n;
    made.stages = stages;
    return pass_set_node(pass, chain->last, &made);
}

static enum cm_err fuse_after(struct wk_pass *pass, const struct pass_dims *dims,
                              struct wk_node *host)
{
    struct chain chain = {.pass = pass, .dims = dims, .host = *host, .last = host};
    struct wk_node *users[WK_MAX_STAGES];
    while (chain.host.n_stages < WK_MAX_STAGES) {
        int32_t value = chain.last->out[0];
        struct wk_node *user = pass_only_user(pass, value);
        if (!user || !can_join(&chain, user, value))
            break;
        users[chain.host.n_stages] = user;
        join(&chain, user, value);
    }
    return chain.host.n_stages ? finish(&chain, host, users) : CM_OK;
}

enum cm_err pass_activation(struct wk_pass *pass)
{
    struct wk_graph *graph = pass->graph;
    struct pass_dims dims;
    enum cm_err code = pass_dims_fill(pass, &dims);
    for (uint32_t i = 0; i < graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &graph->nodes[i];
        if (pass->idle[i] || node->n_stages || node->n_out != 1 || node->out[0] < 0 ||
            graph->facts[node->out[0]].dtype != CM_FP32 || pass_in(node, 0) < 0)
            continue;
        code = fuse_after(pass, &dims, node);
    }
    return code;
}
