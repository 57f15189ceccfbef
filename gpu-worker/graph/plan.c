/* Graph + concrete shapes -> plan: steps, lifetimes, memory. The owner's thread; see plan.h.
 *
 * Every value that is computed at run time gets one place: an output buffer of the caller's where
 * it is one (or is viewed by one), otherwise a range of scratch memory. Views share their root's
 * place. Constants lie in the packed weights; what shapes alone decide is written into the plan. */
#include "gpu-worker/graph/plan.h"

#include "common/check.h"
#include "common/clock.h"
#include "gpu-worker/graph/flow.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/late.h"
#include "gpu-worker/graph/memplan.h"

#include <stdlib.h>
#include <string.h>

enum where { AT_NOWHERE = 0, AT_INPUT, AT_OUTPUT, AT_SCRATCH, AT_FIXED };

/* The place of one root value. */
struct place {
    enum where where;
    uint32_t use;      /* AT_SCRATCH: lifetime entry; AT_INPUT, AT_OUTPUT: index */
    const void *fixed; /* AT_FIXED */
};

struct builder {
    struct wk_plan *plan;
    const struct wk_graph *graph;
    const struct wk_weights *weights;
    const char *base;
    struct cm_error *err;
    struct place *places; /* per value; only roots are used */
    struct wk_memplan_use *uses;
    uint32_t n_uses;
    uint32_t *workspaces; /* per step: lifetime entry, or WK_NO_WEIGHT */
    bool *late;           /* per node */
    bool *value_late;     /* per value: made by a late node */
    uint32_t n_late;
    struct wk_arena scratch; /* of the builder itself */
};

static enum cm_err out_of_memory(struct builder *b)
{
    return cm_fail(b->err, CM_NOMEM, "out of memory while planning");
}

static size_t fact_bytes(const struct wk_fact *fact)
{
    size_t bytes = 0;
    /* Inference has refused everything that could fail here. */
    CM_ASSERT(cm_shape_bytes(&fact->shape, fact->dtype, &bytes) == CM_OK);
    return bytes;
}

/* A node that becomes a step: views are places, folded nodes are constants. */
static bool is_step(const struct builder *b, const struct wk_node *node)
{
    return !wk_node_is_view(node) && !wk_node_is_folded(node, b->plan->facts) &&
           !b->late[node - b->graph->nodes];
}

/* Contents that the shapes have settled: not late, whatever they were made from. */
static bool is_known(const struct builder *b, const struct wk_node *node)
{
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && !wk_fact_is_known(&b->plan->facts[node->out[k]]))
            return false;
    return true;
}

static bool must_be_late(const struct builder *b, const struct wk_node *node)
{
    const struct wk_fact *facts = b->plan->facts;
    /* A branch writes all of its outputs: as a step it would have no memory for one that nobody
     * wants. */
    bool has_graphs = wk_node_has_graphs(node);
    if (node->op == WK_OP_Loop || node->op == WK_OP_Scan)
        return true;
    for (unsigned k = 0; k < node->n_in; k++) {
        int32_t value = node->in[k];
        if (value < 0)
            continue;
        if (wk_operand_decides(node, k) && !wk_fact_is_known(&facts[value]))
            return true;
        if (b->value_late[value] || !wk_fact_is_settled(&facts[value]))
            return true;
    }
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] < 0 ? has_graphs : !wk_fact_is_settled(&facts[node->out[k]]))
            return true;
    return false;
}

/* Which nodes must wait for the run to learn their shapes. */
static void find_late(struct builder *b)
{
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        const struct wk_node *node = &b->graph->nodes[i];
        b->late[i] = !is_known(b, node) && must_be_late(b, node);
        b->n_late += b->late[i];
        for (unsigned k = 0; k < node->n_out && b->late[i]; k++)
            if (node->out[k] >= 0)
                b->value_late[node->out[k]] = true;
    }
}

enum cm_err wk_plan_check_inputs(const struct wk_graph *graph, const struct cm_shape *inputs,
                                 struct cm_error *err, struct wk_fact *ret_facts)
{
    char name[96], got[96], want[96];
    for (uint32_t i = 0; i < graph->n_inputs; i++) {
        const struct wk_tensor_info *info = &graph->input_info[i];
        size_t bytes;
        bool fits = inputs[i].rank == info->shape.rank;
        for (unsigned k = 0; fits && k < info->shape.rank; k++)
            fits = info->shape.dims[k] < 0 || info->shape.dims[k] == inputs[i].dims[k];
        wk_printable(info->name, name, sizeof name);
        if (!fits)
            return cm_fail(err, CM_INVALID, "input \"%s\" has shape %s, the model takes %s", name,
                           inputs[i].rank > CM_MAX_RANK
                               ? "of too many dimensions"
                               : cm_shape_format(&inputs[i], got, sizeof got),
                           cm_shape_format(&info->shape, want, sizeof want));
        enum cm_err code = cm_shape_bytes(&inputs[i], info->dtype, &bytes);
        if (code == CM_OK && (bytes > WK_MAX_TENSOR_BYTES || !wk_dims_fit(&inputs[i])))
            code = CM_LIMIT;
        if (code != CM_OK)
            return cm_fail(err, code, "input \"%s\" has shape %s: %s", name,
                           cm_shape_format(&inputs[i], got, sizeof got), cm_err_text(code));
        ret_facts[i] = (struct wk_fact){.dtype = info->dtype, .shape = inputs[i]};
    }
    return CM_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Where the bytes of a value are. item is its stored constant, if any. Values that shapes decide
 * are written on first use. */
static enum cm_err place_of(struct builder *b, int32_t value, uint32_t item, struct place *ret)
{
    const struct wk_fact *fact = &b->plan->facts[value];
    int32_t root = b->graph->roots[value];
    if (item != WK_NO_WEIGHT) {
        *ret = (struct place){AT_FIXED, 0, b->base + b->weights->items[item].offset};
        return CM_OK;
    }
    /* The contents of a view are its root's, so that one copy serves both. */
    if ((fact->elems || fact->data) && b->places[root].where == AT_NOWHERE) {
        bool known;
        b->places[root].fixed = wk_fact_contents(fact, &b->plan->arena, &known);
        b->places[root].where = AT_FIXED;
        CM_ASSERT(known);
        if (!b->places[root].fixed)
            return out_of_memory(b);
    }
    *ret = b->places[root];
    return CM_OK;
}

/* Gives each computed output its own buffer where its root has none yet. */
static void place_outputs(struct builder *b)
{
    const struct wk_graph *graph = b->graph;
    for (uint32_t i = 0; i < graph->n_inputs; i++)
        b->places[graph->inputs[i]] = (struct place){AT_INPUT, i, NULL};
    for (uint32_t i = 0; i < graph->n_outputs; i++) {
        int32_t root = graph->roots[graph->outputs[i]];
        int32_t producer = graph->values[root].producer;
        if (b->value_late[graph->outputs[i]])
            continue;
        if (producer >= 0 && is_step(b, &graph->nodes[producer]) &&
            b->places[root].where == AT_NOWHERE)
            b->places[root] = (struct place){AT_OUTPUT, i, NULL};
    }
}

static uint32_t add_use(struct builder *b, size_t bytes, uint32_t step)
{
    b->uses[b->n_uses] = (struct wk_memplan_use){.bytes = bytes, .first = step, .last = step};
    return b->n_uses++;
}

/* What late nodes read stays until the end. */
static void keep_for_late(struct builder *b, uint32_t end)
{
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        const struct wk_node *node = &b->graph->nodes[i];
        for (unsigned k = 0; k < node->n_in && b->late[i]; k++) {
            struct place *place = node->in[k] < 0 ? NULL : &b->places[b->graph->roots[node->in[k]]];
            if (place && place->where == AT_SCRATCH)
                b->uses[place->use].last = end;
        }
    }
}

/* Lifetimes of everything in scratch, in step numbers. */
static void find_lifetimes(struct builder *b)
{
    uint32_t step = 0;
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        const struct wk_node *node = &b->graph->nodes[i];
        if (!is_step(b, node))
            continue;
        for (unsigned k = 0; k < node->n_in; k++) {
            if (node->in[k] < 0 || wk_operand_is_static(node, k))
                continue;
            struct place *place = &b->places[b->graph->roots[node->in[k]]];
            if (place->where == AT_SCRATCH)
                b->uses[place->use].last = step;
        }
        for (unsigned k = 0; k < node->n_out; k++) {
            struct place *place = node->out[k] < 0 ? NULL : &b->places[node->out[k]];
            if (place && place->where == AT_NOWHERE)
                *place = (struct place){
                    AT_SCRATCH, add_use(b, fact_bytes(&b->plan->facts[node->out[k]]), step), NULL};
        }
        step++;
    }
    /* An output that could not be produced in place is copied after the last step. */
    for (uint32_t i = 0; i < b->graph->n_outputs; i++) {
        struct place *place = &b->places[b->graph->roots[b->graph->outputs[i]]];
        if (place->where == AT_SCRATCH)
            b->uses[place->use].last = step;
    }
    keep_for_late(b, step);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Constants of a node as prepare sees them, in memory that lives until the plan is built. */
static enum cm_err prepare_step(struct builder *b, const struct wk_node *node, uint32_t index,
                                uint32_t step)
{
    const void **constants = wk_arena_take(&b->scratch, node->n_in, sizeof *constants);
    size_t workspace = 0;
    if (!constants)
        return out_of_memory(b);
    for (unsigned k = 0; k < node->n_in; k++) {
        uint32_t item = b->weights->of_input[b->weights->first_in[index] + k];
        if (item != WK_NO_WEIGHT && !node->loose)
            constants[k] = b->base + b->weights->items[item].offset;
    }
    struct wk_call call = {b->graph, node, b->plan->facts, constants};
    struct wk_step *made = &b->plan->steps[step];
    made->node = node;
    made->empty = true;
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && fact_bytes(&b->plan->facts[node->out[k]]) > 0)
            made->empty = false;
    if (wk_node_has_graphs(node)) {
        b->workspaces[step] = WK_NO_WEIGHT;
        enum cm_err made_code = wk_flow_create(b->plan->backend, b->graph, node, b->base,
                                               b->plan->facts, b->err, &made->flow);
        return made_code == CM_OK ? wk_flow_plan_branches(made->flow, b->err) : made_code;
    }
    enum cm_err code = b->plan->backend->ops->prepare(b->plan->backend, &call, &b->plan->arena,
                                                      b->err, &made->state, &workspace);
    b->workspaces[step] = code == CM_OK && workspace ? add_use(b, workspace, step) : WK_NO_WEIGHT;
    return code;
}

static void patch(struct builder *b, const void **where, struct place place)
{
    struct wk_plan *plan = b->plan;
    switch (place.where) {
    case AT_FIXED:
        *where = place.fixed;
        break;
    case AT_SCRATCH:
        plan->scratch_patches[plan->n_scratch_patches++] =
            (struct wk_patch){where, b->uses[place.use].offset};
        break;
    case AT_INPUT:
        plan->input_patches[plan->n_input_patches++] = (struct wk_patch){where, place.use};
        break;
    case AT_OUTPUT:
        plan->output_patches[plan->n_output_patches++] = (struct wk_patch){where, place.use};
        break;
    case AT_NOWHERE:
        break;
    }
}

static enum cm_err link_step(struct builder *b, const struct wk_node *node, uint32_t index,
                             uint32_t step)
{
    struct wk_step *made = &b->plan->steps[step];
    made->in = wk_arena_take(&b->plan->arena, node->n_in, sizeof *made->in);
    made->out = wk_arena_take(&b->plan->arena, node->n_out, sizeof *made->out);
    if (!made->in || !made->out)
        return out_of_memory(b);
    for (unsigned k = 0; k < node->n_in; k++) {
        struct place place;
        if (node->in[k] < 0 || wk_operand_is_static(node, k))
            continue;
        enum cm_err code =
            place_of(b, node->in[k], b->weights->of_input[b->weights->first_in[index] + k], &place);
        if (code != CM_OK)
            return code;
        patch(b, &made->in[k], place);
    }
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0)
            patch(b, (const void **)&made->out[k], b->places[node->out[k]]);
    if (b->workspaces[step] != WK_NO_WEIGHT)
        patch(b, (const void **)&made->workspace,
              (struct place){AT_SCRATCH, b->workspaces[step], NULL});
    return CM_OK;
}

/* Late nodes find the static part's values in slots. */
static enum cm_err link_late(struct builder *b)
{
    struct wk_plan *plan = b->plan;
    enum cm_err code =
        b->n_late ? wk_late_create(plan, b->base, b->late, b->err, &plan->late) : CM_OK;
    bool *linked = wk_arena_take(&b->scratch, b->graph->n_values, sizeof *linked);
    if (code == CM_OK && !linked)
        return out_of_memory(b);
    for (uint32_t i = 0; i < b->graph->n_nodes && code == CM_OK; i++) {
        const struct wk_node *node = &b->graph->nodes[i];
        for (unsigned k = 0; k < node->n_in && b->late[i]; k++) {
            int32_t root = node->in[k] < 0 ? -1 : b->graph->roots[node->in[k]];
            if (root < 0 || linked[root] || b->value_late[root] ||
                b->weights->of_input[b->weights->first_in[i] + k] != WK_NO_WEIGHT)
                continue;
            /* A late view leads back to its root, also where that is known before the run. */
            struct place place;
            code = place_of(b, root, WK_NO_WEIGHT, &place);
            linked[root] = true;
            if (code == CM_OK)
                patch(b, wk_late_slot(plan->late, root), place);
        }
    }
    return code;
}

static enum cm_err link_outputs(struct builder *b)
{
    struct wk_plan *plan = b->plan;
    for (uint32_t i = 0; i < b->graph->n_outputs; i++) {
        int32_t value = b->graph->outputs[i];
        uint32_t item = b->weights->of_output[i];
        struct place place;
        plan->output_is_late[i] = b->value_late[value];
        if (b->value_late[value]) {
            if (item != WK_NO_WEIGHT)
                plan->late_data[i] = b->base + b->weights->items[item].offset;
            continue;
        }
        enum cm_err code = place_of(b, value, b->weights->of_output[i], &place);
        if (code != CM_OK)
            return code;
        if (place.where == AT_OUTPUT && place.use == i)
            continue;
        CM_ASSERT(place.where != AT_NOWHERE);
        struct wk_final_copy *copy = &plan->copies[plan->n_copies++];
        *copy = (struct wk_final_copy){NULL, i, fact_bytes(&plan->facts[value])};
        patch(b, &copy->from, place);
    }
    return CM_OK;
}

static enum cm_err each_step(struct builder *b,
                             enum cm_err (*fn)(struct builder *, const struct wk_node *, uint32_t,
                                               uint32_t))
{
    uint32_t step = 0;
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        if (!is_step(b, &b->graph->nodes[i]))
            continue;
        enum cm_err code = fn(b, &b->graph->nodes[i], i, step++);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

static enum cm_err take_tables(struct builder *b)
{
    struct wk_plan *plan = b->plan;
    size_t pointers = b->graph->n_outputs, values = b->graph->n_values;
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        plan->n_steps += is_step(b, &b->graph->nodes[i]);
        pointers += (size_t)b->graph->nodes[i].n_in + b->graph->nodes[i].n_out + 1;
    }
    b->places = wk_arena_take(&b->scratch, values, sizeof *b->places);
    b->uses = wk_arena_take(&b->scratch, values + plan->n_steps, sizeof *b->uses);
    b->workspaces = wk_arena_take(&b->scratch, plan->n_steps, sizeof *b->workspaces);
    plan->output_is_late = wk_arena_take(&plan->arena, b->graph->n_outputs, sizeof(bool));
    plan->late_data = wk_arena_take(&plan->arena, b->graph->n_outputs, sizeof(void *));
    plan->steps = wk_arena_take(&plan->arena, plan->n_steps, sizeof *plan->steps);
    plan->copies = wk_arena_take(&plan->arena, b->graph->n_outputs, sizeof *plan->copies);
    plan->scratch_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    plan->input_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    plan->output_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    if (!b->places || !b->uses || !b->workspaces || !plan->output_is_late || !plan->late_data ||
        !plan->steps || !plan->copies || !plan->scratch_patches || !plan->input_patches ||
        !plan->output_patches)
        return out_of_memory(b);
    return CM_OK;
}

/* Facts, and which nodes the data decides. */
static enum cm_err settle(struct builder *b, const struct wk_fact *inputs)
{
    struct wk_plan *plan = b->plan;
    plan->facts = wk_arena_take(&plan->arena, b->graph->n_values, sizeof *plan->facts);
    b->late = wk_arena_take(&plan->arena, b->graph->n_nodes, sizeof *b->late);
    b->value_late = wk_arena_take(&b->scratch, b->graph->n_values, sizeof *b->value_late);
    if (!plan->facts || !b->late || !b->value_late)
        return out_of_memory(b);
    struct wk_spent spent = {0};
    struct wk_walk walk = {b->graph,      plan->facts, &plan->arena, b->err,
                           plan->backend, false,       false,        &spent};
    enum cm_err code = wk_infer_graph(&walk, inputs);
    if (code == CM_OK)
        find_late(b);
    plan->node_is_late = b->n_late ? b->late : NULL;
    return code;
}

static enum cm_err build(struct builder *b, const struct wk_fact *inputs)
{
    struct wk_plan *plan = b->plan;
    enum cm_err code = settle(b, inputs);
    if (code == CM_OK)
        code = take_tables(b);
    if (code != CM_OK)
        return code;
    place_outputs(b);
    find_lifetimes(b);
    code = each_step(b, prepare_step);
    if (code != CM_OK)
        return code;
    code = wk_memplan(b->uses, b->n_uses, WK_ALIGN, WK_MAX_PLAN_BYTES, &plan->scratch_bytes);
    if (code != CM_OK)
        return cm_fail(b->err, code, "the plan needs more than %zu bytes of memory",
                       WK_MAX_PLAN_BYTES);
    code = each_step(b, link_step);
    if (code == CM_OK)
        code = link_late(b);
    return code == CM_OK ? link_outputs(b) : code;
}

enum cm_err wk_plan_build(struct wk_backend *backend, const struct wk_graph *graph,
                          const void *base, const struct wk_fact *inputs, struct cm_error *err,
                          struct wk_plan **ret_plan)
{
    struct wk_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return cm_fail(err, CM_NOMEM, "out of memory while planning");
    plan->backend = backend;
    plan->graph = graph;
    plan->arena.most = WK_MAX_TABLE_BYTES;
    struct builder b = {
        .plan = plan, .graph = graph, .weights = graph->weights, .base = base, .err = err};
    enum cm_err code = build(&b, inputs);
    wk_arena_fini(&b.scratch);
    if (code == CM_OK)
        *ret_plan = plan;
    else
        wk_plan_destroy(plan);
    return code;
}

void wk_plan_destroy(struct wk_plan *plan)
{
    if (!plan)
        return;
    for (uint32_t i = 0; plan->steps && i < plan->n_steps; i++)
        wk_flow_destroy(plan->steps[i].flow);
    wk_late_destroy(plan->late);
    free(plan->sum_ns);
    wk_arena_fini(&plan->arena);
    free(plan);
}

/* ---- execution ------------------------------------------------------------------------------- */

static void apply(const struct wk_patch *patches, uint32_t count, const void *const *table)
{
    for (uint32_t i = 0; i < count; i++)
        *patches[i].where = table[patches[i].offset];
}

/* Late outputs whose shape was known before the run go to the caller's buffers as all others do. */
static enum cm_err give_late(struct wk_plan *plan, void *const *outputs, struct cm_error *err)
{
    for (uint32_t i = 0; i < plan->graph->n_outputs; i++) {
        size_t bytes = 0;
        if (!plan->output_is_late[i])
            continue;
        const struct wk_fact *fact = wk_late_fact(plan->late, plan->graph->outputs[i]);
        if (plan->graph->output_info && plan->graph->output_info[i].dtype != CM_DTYPE_NONE &&
            fact->dtype != plan->graph->output_info[i].dtype)
            return cm_fail(err, CM_INVALID, "output %u is declared as %s but is %s", i,
                           cm_dtype_name(plan->graph->output_info[i].dtype),
                           cm_dtype_name(fact->dtype));
        if (!wk_plan_output_is_settled(plan, i))
            continue;
        /* The caller has made room for what the plan said. */
        const struct wk_fact *planned = &plan->facts[plan->graph->outputs[i]];
        if (planned->dtype != fact->dtype || !cm_shape_equal(&planned->shape, &fact->shape))
            return cm_fail(err, CM_INVALID, "output %u has another shape in the run than before it",
                           i);
        CM_ASSERT(cm_shape_bytes(&fact->shape, fact->dtype, &bytes) == CM_OK);
        if (bytes)
            memcpy(outputs[i], wk_plan_output_data(plan, i), bytes);
    }
    return CM_OK;
}

enum cm_err wk_plan_run_inside(struct wk_plan *plan, const void *const *inputs,
                               void *const *outputs, void *scratch, struct cm_error *err)
{
    struct wk_backend *backend = plan->backend;
    enum cm_err code = CM_OK;
    if (scratch != plan->last_scratch || !scratch)
        for (uint32_t i = 0; i < plan->n_scratch_patches; i++)
            *plan->scratch_patches[i].where = (char *)scratch + plan->scratch_patches[i].offset;
    plan->last_scratch = scratch;
    apply(plan->input_patches, plan->n_input_patches, inputs);
    apply(plan->output_patches, plan->n_output_patches, (const void *const *)outputs);
    for (uint32_t i = 0; i < plan->n_steps && code == CM_OK; i++) {
        const struct wk_step *step = &plan->steps[i];
        struct wk_run run = {step->in, step->out, step->workspace, err};
        if (step->empty) /* its other dimensions may be too large to loop over */
            continue;
        uint64_t start_ns = wk_plan_is_timed(plan) ? cm_now_ns() : 0;
        code = step->flow ? wk_flow_branch(step->flow, step->in, step->out, err)
                          : backend->ops->run(backend, step->state, &run);
        if (wk_plan_is_timed(plan))
            wk_plan_add_time(plan, step->node, cm_now_ns() - start_ns);
    }
    if (plan->late && code == CM_OK)
        code = wk_late_run(plan->late, err);
    for (uint32_t i = 0; i < plan->n_copies && code == CM_OK; i++)
        if (plan->copies[i].bytes)
            memcpy(outputs[plan->copies[i].output], plan->copies[i].from, plan->copies[i].bytes);
    return plan->late && code == CM_OK ? give_late(plan, outputs, err) : code;
}

enum cm_err wk_plan_run(struct wk_plan *plan, const void *const *inputs, void *const *outputs,
                        void *scratch, struct cm_error *err)
{
    plan->backend->ops->begin(plan->backend);
    enum cm_err code = wk_plan_run_inside(plan, inputs, outputs, scratch, err);
    plan->backend->ops->end(plan->backend);
    return code;
}

static const struct wk_fact *output_fact(const struct wk_plan *plan, unsigned i)
{
    CM_ASSERT(i < plan->graph->n_outputs);
    const struct wk_fact *fact = &plan->facts[plan->graph->outputs[i]];
    if (!plan->output_is_late[i] || wk_fact_is_settled(fact))
        return fact;
    const struct wk_fact *late = wk_late_fact(plan->late, plan->graph->outputs[i]);
    return late->dtype == CM_DTYPE_NONE ? fact : late;
}

const struct cm_shape *wk_plan_output_shape(const struct wk_plan *plan, unsigned i)
{
    return &output_fact(plan, i)->shape;
}

enum cm_dtype wk_plan_output_dtype(const struct wk_plan *plan, unsigned i)
{
    return output_fact(plan, i)->dtype;
}

bool wk_plan_output_is_settled(const struct wk_plan *plan, unsigned i)
{
    CM_ASSERT(i < plan->graph->n_outputs);
    return !plan->output_is_late[i] || wk_fact_is_settled(&plan->facts[plan->graph->outputs[i]]);
}

const void *wk_plan_output_data(const struct wk_plan *plan, unsigned i)
{
    CM_ASSERT(i < plan->graph->n_outputs && plan->output_is_late[i]);
    return plan->late_data[i] ? plan->late_data[i]
                              : wk_late_data(plan->late, plan->graph->outputs[i]);
}

size_t wk_plan_scratch_bytes(const struct wk_plan *plan)
{
    return plan->scratch_bytes;
}
