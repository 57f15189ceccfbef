/* What a plan does, for people: see wk_plan_describe in engine.h. The owner's thread; not while the
 * plan runs. */
#include "gpu-worker/graph/plan.h"

#include "common/check.h"
#include "gpu-worker/graph/cost.h"
#include "gpu-worker/graph/flow.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/late.h"

#include <stdio.h>
#include <string.h>

/* The operator's name, or that of what a pass has made of it. */
static const char *title(const struct wk_node *node)
{
    if (node->form == WK_FORM_GATE)
        return node->op == WK_OP_Sigmoid ? "Swish" : "HardSwish";
    return wk_op_name(node->op);
}

uint32_t wk_plan_nodes(const struct wk_plan *plan)
{
    return plan->graph->n_nodes;
}

static const struct wk_step *find_step(const struct wk_plan *plan, const struct wk_node *node)
{
    /* Steps are in the order of their nodes. */
    uint32_t low = 0, high = plan->n_steps;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (plan->steps[middle].node < node)
            low = middle + 1;
        else
            high = middle;
    }
    return low < plan->n_steps && plan->steps[low].node == node ? &plan->steps[low] : NULL;
}

static struct wk_flow *find_flow(const struct wk_plan *plan, uint32_t i)
{
    const struct wk_node *node = &plan->graph->nodes[i];
    if (!wk_node_has_graphs(node))
        return NULL;
    const struct wk_step *step = find_step(plan, node);
    if (step)
        return step->flow;
    return plan->late ? wk_late_flow(plan->late, i) : NULL;
}

void wk_plan_time_inside(struct wk_plan *plan)
{
    for (uint32_t i = 0; i < plan->graph->n_nodes; i++) {
        struct wk_flow *flow = find_flow(plan, i);
        if (flow)
            wk_flow_time(flow);
    }
}

void wk_plan_time_nodes(struct wk_plan *plan, uint64_t *node_ns)
{
    bool first = node_ns && !plan->node_ns;
    plan->node_ns = node_ns;
    if (first)
        wk_plan_time_inside(plan);
}

void wk_plan_add_time(struct wk_plan *plan, const struct wk_node *node, uint64_t ns)
{
    if (plan->node_ns)
        plan->node_ns[node - plan->graph->nodes] = ns;
    if (plan->sum_ns)
        plan->sum_ns[node - plan->graph->nodes] += ns;
}

const struct wk_plan *wk_plan_inside(const struct wk_plan *plan, uint32_t i, unsigned n,
                                     const char **ret_attribute)
{
    CM_ASSERT(i < plan->graph->n_nodes);
    const struct wk_flow *flow = find_flow(plan, i);
    return flow ? wk_flow_plan(flow, n, ret_attribute) : NULL;
}

uint64_t wk_plan_inside_ns(const struct wk_plan *plan, uint32_t i)
{
    CM_ASSERT(i < plan->graph->n_nodes);
    return plan->sum_ns ? plan->sum_ns[i] : 0;
}

/* What is known about the values of a node: of a late one since the last run. */
static const struct wk_fact *facts_of(const struct wk_plan *plan, uint32_t i)
{
    bool late = plan->node_is_late && plan->node_is_late[i];
    return late ? wk_late_fact(plan->late, 0) : plan->facts;
}

static void describe_step(const struct wk_plan *plan, const struct wk_node *node,
                          const struct wk_step *step, const struct wk_fact *facts,
                          struct wk_node_info *info)
{
    struct wk_call call = {.graph = plan->graph, .node = node, .facts = facts};
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            info->written_bytes += (uint64_t)wk_fact_bytes(&facts[node->out[k]]);
    for (unsigned k = 0; k < node->n_in; k++)
        if (node->in[k] >= 0 && !wk_operand_is_static(node, k)) {
            uint64_t bytes = (uint64_t)wk_fact_bytes(&facts[node->in[k]]);
            /* Of a table only what is looked up is read. */
            if (node->op == WK_OP_Gather && k == 0 && bytes > info->written_bytes)
                bytes = info->written_bytes;
            info->read_bytes += bytes;
        }
    info->flops = wk_node_flops(node, facts);
    for (unsigned k = 0; k < node->n_stages; k++)
        info->flops += wk_fact_bytes(&facts[node->out[0]]) / 4;
    if (step && step->state)
        plan->backend->ops->describe(plan->backend, &call, step->state, info->kernel,
                                     sizeof info->kernel);
}

void wk_plan_describe(const struct wk_plan *plan, uint32_t i, struct wk_node_info *ret_info)
{
    CM_ASSERT(i < plan->graph->n_nodes);
    const struct wk_node *node = &plan->graph->nodes[i];
    const struct wk_step *step = find_step(plan, node);
    struct wk_node_info info = {
        .fate = WK_NODE_KNOWN, .position = node->position, .name = node->name, .op = title(node)};
    const struct wk_fact *facts = facts_of(plan, i);
    size_t used = 0;
    for (unsigned k = 0; k < node->n_stages && used < sizeof info.fused; k++)
        used += (size_t)snprintf(info.fused + used, sizeof info.fused - used, "+%s",
                                 title(node->stages[k].node));
    for (unsigned k = node->n_out; k-- > 0;)
        if (node->out[k] >= 0) {
            info.dtype = facts[node->out[k]].dtype;
            info.shape = facts[node->out[k]].shape;
        }
    if (plan->node_is_late && plan->node_is_late[i])
        info.fate = WK_NODE_LATE;
    else if (step)
        info.fate = WK_NODE_RUNS;
    else if (wk_node_is_view(node) && !wk_node_is_folded(node, plan->facts))
        info.fate = WK_NODE_VIEW;
    if (step || info.fate == WK_NODE_LATE)
        describe_step(plan, node, step, facts, &info);
    *ret_info = info;
}
