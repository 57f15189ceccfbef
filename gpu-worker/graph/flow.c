/* If, Loop and Scan; see flow.h. */
#include "gpu-worker/graph/flow_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/plan.h"
#include "gpu-worker/graph/weights.h"

#include <stdlib.h>
#include <string.h>

/* Of all outputs of a subgraph: a Loop's states of one trip stay while the next ones are made. */
#define MAX_RESULTS (WK_MAX_PLAN_BYTES / 2)

/* ---- tensors --------------------------------------------------------------------------------- */

void wk_tensor_fini(struct wk_tensor *tensor)
{
    free(tensor->owned);
    *tensor = (struct wk_tensor){0};
}

enum cm_err wk_tensor_make(struct wk_tensor *tensor, enum cm_dtype dtype,
                           const struct cm_shape *shape, struct cm_error *err)
{
    size_t bytes, rounded;
    void *memory = NULL;
    enum cm_err code = cm_shape_bytes(shape, dtype, &bytes);
    if (code != CM_OK || bytes > WK_MAX_TENSOR_BYTES || !cm_size_align(bytes, WK_ALIGN, &rounded))
        return cm_fail(err, CM_LIMIT, "a tensor of the run is larger than %zu bytes",
                       WK_MAX_TENSOR_BYTES);
    if (posix_memalign(&memory, WK_ALIGN, rounded ? rounded : WK_ALIGN) != 0)
        return cm_fail(err, CM_NOMEM, "no memory for a tensor of %zu bytes", bytes);
    *tensor = (struct wk_tensor){dtype, *shape, memory, memory};
    return CM_OK;
}

size_t flow_tensor_bytes(const struct wk_tensor *tensor)
{
    size_t bytes = 0;
    CM_ASSERT(cm_shape_bytes(&tensor->shape, tensor->dtype, &bytes) == CM_OK);
    return bytes;
}

/* Tensors that the flow does not own. */
struct wk_tensor flow_borrow(const struct wk_fact *fact, const void *data)
{
    return (struct wk_tensor){fact->dtype, fact->shape, data, NULL};
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static void end_plan(struct body_plan *plan)
{
    wk_plan_destroy(plan->plan);
    free(plan->scratch);
    free(plan->inputs);
    *plan = (struct body_plan){0};
}

static bool is_planned_for(const struct body *body, const struct body_plan *plan)
{
    bool same = plan->plan != NULL;
    for (uint32_t i = 0; same && i < body->graph->n_inputs; i++)
        same = plan->inputs[i].dtype == body->asked[i].dtype &&
               cm_shape_equal(&plan->inputs[i].shape, &body->asked[i].shape);
    return same;
}

/* Times that cannot be kept for want of memory are not: they are only for people. */
static void time_plan(struct wk_plan *plan)
{
    if (!plan->sum_ns)
        plan->sum_ns = calloc(plan->graph->n_nodes + 1, sizeof *plan->sum_ns);
    wk_plan_time_inside(plan);
}

void wk_flow_time(struct wk_flow *flow)
{
    flow->timed = true;
    for (unsigned i = 0; i < flow->n_bodies; i++)
        for (unsigned k = 0; k < CACHED_PLANS; k++)
            if (flow->bodies[i].plans[k].plan)
                time_plan(flow->bodies[i].plans[k].plan);
}

struct wk_plan *wk_flow_plan(const struct wk_flow *flow, unsigned n, const char **ret_attribute)
{
    for (unsigned i = 0; i < flow->n_bodies; i++)
        for (unsigned k = 0; k < CACHED_PLANS; k++) {
            if (!flow->bodies[i].plans[k].plan || n--)
                continue;
            *ret_attribute = flow->n_bodies == 1 ? "body" : i ? "then_branch" : "else_branch";
            return flow->bodies[i].plans[k].plan;
        }
    return NULL;
}

/* A plan for body->asked. */
static enum cm_err find_plan(struct wk_flow *flow, struct body *body, struct cm_error *err,
                             struct body_plan **ret_plan)
{
    for (unsigned i = 0; i < CACHED_PLANS; i++)
        if (is_planned_for(body, &body->plans[i])) {
            *ret_plan = &body->plans[i];
            return CM_OK;
        }
    struct body_plan *plan = &body->plans[body->next++ % CACHED_PLANS];
    size_t n = body->graph->n_inputs;
    end_plan(plan);
    enum cm_err code =
        wk_plan_build(flow->backend, body->graph, body->base, body->asked, err, &plan->plan);
    if (code != CM_OK)
        return code;
    plan->inputs = malloc((n + 1) * sizeof *plan->inputs);
    size_t scratch = wk_plan_scratch_bytes(plan->plan);
    if (!plan->inputs || (scratch && posix_memalign(&plan->scratch, WK_ALIGN, scratch) != 0)) {
        end_plan(plan);
        return wk_node_fail(err, CM_NOMEM, flow->node, "no memory to run a subgraph");
    }
    memcpy(plan->inputs, body->asked, n * sizeof *plan->inputs);
    if (flow->timed)
        time_plan(plan->plan);
    *ret_plan = plan;
    return CM_OK;
}

/* Asks for the types and shapes of the formal inputs, and of what is captured from facts. */
void flow_ask(struct wk_flow *flow, struct body *body, const struct wk_tensor *formal,
              const struct wk_fact *facts, const void *const *in)
{
    const struct wk_graph *graph = body->graph;
    for (uint32_t i = 0; i < graph->n_formal; i++) {
        body->asked[i] = (struct wk_fact){.dtype = formal[i].dtype, .shape = formal[i].shape};
        body->in[i] = formal[i].data;
    }
    for (uint32_t i = graph->n_formal; i < graph->n_inputs; i++) {
        uint32_t k = body->first + i - graph->n_formal;
        int32_t value = flow->node->in[k];
        const struct wk_fact *known = &flow->known[value];
        /* Contents are the plan's business only if every run has the same. */
        body->asked[i] = (struct wk_fact){.dtype = facts[value].dtype, .shape = facts[value].shape};
        if (known->elems || known->data) {
            body->asked[i].n_elems = known->n_elems;
            body->asked[i].elems = known->elems;
            body->asked[i].data = known->data;
        }
        body->in[i] = in[k];
    }
}

/* Memory for output i of a body. */
static enum cm_err take_result(const struct wk_flow *flow, const struct wk_plan *plan, uint32_t i,
                               size_t *taken, struct wk_tensor *ret, struct cm_error *err)
{
    enum cm_err code =
        wk_tensor_make(ret, wk_plan_output_dtype(plan, i), wk_plan_output_shape(plan, i), err);
    if (code != CM_OK)
        return code;
    *taken += flow_tensor_bytes(ret);
    if (*taken > MAX_RESULTS)
        return wk_node_fail(err, CM_LIMIT, flow->node,
                            "what a subgraph gives is larger together than %zu bytes", MAX_RESULTS);
    return CM_OK;
}

/* Runs a body for what was asked; out gets new tensors. */
enum cm_err flow_run_body(struct wk_flow *flow, struct body *body, struct wk_tensor *out,
                          struct cm_error *err)
{
    struct body_plan *made;
    uint32_t n_out = body->graph->n_outputs;
    size_t taken = 0;
    enum cm_err code = find_plan(flow, body, err, &made);
    memset(out, 0, n_out * sizeof *out);
    for (uint32_t i = 0; i < n_out && code == CM_OK; i++) {
        body->out[i] = NULL;
        if (!wk_plan_output_is_settled(made->plan, i))
            continue;
        code = take_result(flow, made->plan, i, &taken, &out[i], err);
        body->out[i] = out[i].owned;
    }
    if (code == CM_OK)
        code = wk_plan_run_inside(made->plan, body->in, body->out, made->scratch, err);
    for (uint32_t i = 0; i < n_out && code == CM_OK; i++) {
        if (wk_plan_output_is_settled(made->plan, i))
            continue;
        code = take_result(flow, made->plan, i, &taken, &out[i], err);
        if (code == CM_OK && flow_tensor_bytes(&out[i]))
            memcpy(out[i].owned, wk_plan_output_data(made->plan, i), flow_tensor_bytes(&out[i]));
    }
    if (code != CM_OK)
        for (uint32_t i = 0; i < n_out; i++)
            wk_tensor_fini(&out[i]);
    return code;
}

/* ---- making ---------------------------------------------------------------------------------- */

static enum cm_err add_body(struct wk_flow *flow, const struct wk_attr *attr, const char *base,
                            struct cm_error *err)
{
    struct body *body = &flow->bodies[flow->n_bodies++];
    body->graph = attr->graph;
    body->base = base + attr->graph->weights->first_byte;
    body->first = attr->first_capture;
    body->asked = wk_arena_take(&flow->arena, attr->graph->n_inputs, sizeof *body->asked);
    body->in = wk_arena_take(&flow->arena, attr->graph->n_inputs, sizeof *body->in);
    body->out = wk_arena_take(&flow->arena, attr->graph->n_outputs, sizeof *body->out);
    return body->asked && body->in && body->out
               ? CM_OK
               : wk_node_fail(err, CM_NOMEM, flow->node, "out of memory");
}

enum cm_err wk_flow_create(struct wk_backend *backend, const struct wk_graph *graph,
                           const struct wk_node *node, const void *base,
                           const struct wk_fact *known, struct cm_error *err,
                           struct wk_flow **ret_flow)
{
    struct wk_flow *flow = calloc(1, sizeof *flow);
    if (!flow)
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    (void)graph;
    flow->backend = backend;
    flow->node = node;
    flow->known = known;
    flow->certain = -1;
    enum cm_err code = CM_OK;
    if (node->op == WK_OP_If) {
        /* Branch 1 is taken where the condition is true. */
        code = add_body(flow, wk_node_attr(node, "else_branch"), base, err);
        if (code == CM_OK)
            code = add_body(flow, wk_node_attr(node, "then_branch"), base, err);
    } else {
        code = add_body(flow, wk_node_attr(node, "body"), base, err);
    }
    if (code == CM_OK)
        *ret_flow = flow;
    else
        wk_flow_destroy(flow);
    return code;
}

void wk_flow_destroy(struct wk_flow *flow)
{
    if (!flow)
        return;
    for (unsigned i = 0; i < flow->n_bodies; i++)
        for (unsigned k = 0; k < CACHED_PLANS; k++)
            end_plan(&flow->bodies[i].plans[k]);
    wk_arena_fini(&flow->arena);
    free(flow);
}

/* ---- If ---------------------------------------------------------------------------------------
 */

enum cm_err wk_flow_plan_branches(struct wk_flow *flow, struct cm_error *err)
{
    const struct wk_fact *condition = &flow->known[flow->node->in[0]];
    enum cm_err code = CM_OK;
    if (condition->data)
        flow->certain = *(const uint8_t *)condition->data != 0;
    for (int i = 0; i < 2 && code == CM_OK; i++) {
        struct body *body = &flow->bodies[i];
        struct body_plan *plan;
        if (flow->certain >= 0 && flow->certain != i)
            continue;
        for (uint32_t k = 0; k < body->graph->n_inputs; k++)
            body->asked[k] = flow->known[flow->node->in[body->first + k]];
        code = find_plan(flow, body, err, &plan);
        if (code == CM_NOMEM)
            return code;
        /* A branch that does not fit these shapes fails when it is taken; the rule has seen that
         * the other one fits. */
        for (uint32_t k = 0; k < body->graph->n_outputs && code == CM_OK; k++)
            CM_ASSERT(wk_plan_output_is_settled(plan->plan, k));
        code = CM_OK;
    }
    return code;
}

enum cm_err wk_flow_branch(struct wk_flow *flow, const void *const *in, void *const *out,
                           struct cm_error *err)
{
    int branch = flow->certain >= 0 ? flow->certain : *(const uint8_t *)in[0] != 0;
    struct body *body = &flow->bodies[branch];
    struct body_plan *plan;
    for (uint32_t k = 0; k < body->graph->n_inputs; k++)
        body->in[k] = in[body->first + k];
    if (!body->plans[0].plan) {
        enum cm_err code = find_plan(flow, body, err, &plan); /* for its sentence */
        CM_ASSERT(code != CM_OK);
        return code;
    }
    return wk_plan_run_inside(body->plans[0].plan, body->in, out, body->plans[0].scratch, err);
}

static enum cm_err run_if(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                          struct wk_tensor *out, struct cm_error *err)
{
    int64_t count = 0;
    const struct wk_fact *condition = &facts[flow->node->in[0]];
    if (cm_shape_count(&condition->shape, &count) != CM_OK || count != 1 ||
        condition->dtype != CM_BOOL)
        return wk_node_fail(err, CM_INVALID, flow->node, "the condition must be one BOOL");
    struct body *body = &flow->bodies[*(const uint8_t *)in[0] != 0];
    flow_ask(flow, body, NULL, facts, in);
    return flow_run_body(flow, body, out, err);
}

enum cm_err wk_flow_run(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                        struct wk_tensor *out, struct cm_error *err)
{
    switch (flow->node->op) {
    case WK_OP_If:
        return run_if(flow, facts, in, out, err);
    case WK_OP_Loop:
        return flow_run_loop(flow, facts, in, out, err);
    default:
        CM_ASSERT(flow->node->op == WK_OP_Scan);
        return flow_run_scan(flow, facts, in, out, err);
    }
}
