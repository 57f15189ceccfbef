/* Graph + concrete shapes -> plan: steps, lifetimes, memory. The owner's thread; see plan.h.
 *
 * Every value that is computed at run time gets one place: an output buffer of the caller's where
 * it is one (or is viewed by one), otherwise a range of scratch memory. Views share their root's
 * place. Constants lie in the packed weights; what shapes alone decide is written into the plan. */
#include "gpu-worker/graph/plan.h"

#include "common/check.h"
#include "common/clock.h"
#include "gpu-worker/graph/infer.h"
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
    uint32_t *workspaces;    /* per step: lifetime entry, or WK_NO_WEIGHT */
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
    return !wk_node_is_view(node) && !wk_node_is_folded(node, b->plan->facts);
}

static enum cm_err check_inputs(const struct wk_graph *graph, const struct cm_shape *inputs,
                                struct cm_error *err)
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
    }
    return CM_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Writes elements that are known before the run as the tensor that a step reads. */
static const void *write_elems(struct wk_arena *arena, const struct wk_fact *fact)
{
    char *data = wk_arena_take(arena, fact->n_elems, cm_dtype_size(fact->dtype));
    for (uint32_t i = 0; data && i < fact->n_elems; i++) {
        CM_ASSERT(fact->elems[i].kind == WK_ELEM_KNOWN);
        int32_t narrow = (int32_t)fact->elems[i].v;
        if (fact->dtype == CM_INT64)
            memcpy(data + 8 * (size_t)i, &fact->elems[i].v, 8);
        else
            memcpy(data + 4 * (size_t)i, &narrow, 4);
    }
    return data;
}

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
    if (fact->elems) {
        /* The elements of a view are its root's, so that one copy serves both. */
        if (b->places[root].where == AT_NOWHERE) {
            b->places[root].fixed = write_elems(&b->plan->arena, fact);
            b->places[root].where = AT_FIXED;
            if (!b->places[root].fixed)
                return out_of_memory(b);
        }
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
        if (item != WK_NO_WEIGHT)
            constants[k] = b->base + b->weights->items[item].offset;
    }
    struct wk_call call = {b->graph, node, b->plan->facts, constants};
    struct wk_step *made = &b->plan->steps[step];
    made->node = node;
    made->empty = true;
    for (unsigned k = 0; k < node->n_out; k++)
        if (node->out[k] >= 0 && fact_bytes(&b->plan->facts[node->out[k]]) > 0)
            made->empty = false;
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

static enum cm_err link_outputs(struct builder *b)
{
    struct wk_plan *plan = b->plan;
    for (uint32_t i = 0; i < b->graph->n_outputs; i++) {
        int32_t value = b->graph->outputs[i];
        struct place place;
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
    size_t pointers = WK_MAX_IO, values = b->graph->n_values;
    for (uint32_t i = 0; i < b->graph->n_nodes; i++) {
        plan->n_steps += is_step(b, &b->graph->nodes[i]);
        pointers += (size_t)b->graph->nodes[i].n_in + b->graph->nodes[i].n_out + 1;
    }
    b->places = wk_arena_take(&b->scratch, values, sizeof *b->places);
    b->uses = wk_arena_take(&b->scratch, values + plan->n_steps, sizeof *b->uses);
    b->workspaces = wk_arena_take(&b->scratch, plan->n_steps, sizeof *b->workspaces);
    plan->steps = wk_arena_take(&plan->arena, plan->n_steps, sizeof *plan->steps);
    plan->copies = wk_arena_take(&plan->arena, WK_MAX_IO, sizeof *plan->copies);
    plan->scratch_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    plan->input_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    plan->output_patches = wk_arena_take(&plan->arena, pointers, sizeof(struct wk_patch));
    if (!b->places || !b->uses || !b->workspaces || !plan->steps || !plan->copies ||
        !plan->scratch_patches || !plan->input_patches || !plan->output_patches)
        return out_of_memory(b);
    return CM_OK;
}

/* Everything a step needs must be known before it is prepared. */
static enum cm_err check_settled(const struct builder *b)
{
    for (uint32_t i = 0; i < b->graph->n_nodes; i++)
        for (unsigned k = 0; k < b->graph->nodes[i].n_out; k++) {
            int32_t value = b->graph->nodes[i].out[k];
            const struct wk_fact *fact = value < 0 ? NULL : &b->plan->facts[value];
            bool settled = !fact || !fact->unranked;
            for (unsigned d = 0; settled && fact && d < fact->shape.rank; d++)
                settled = fact->shape.dims[d] >= 0;
            if (!settled)
                return wk_node_fail(b->err, CM_UNSUPPORTED, &b->graph->nodes[i],
                                    "the shape of output %u depends on data", k);
        }
    return CM_OK;
}

static enum cm_err build(struct builder *b, const struct cm_shape *inputs)
{
    struct wk_plan *plan = b->plan;
    enum cm_err code = check_inputs(b->graph, inputs, b->err);
    if (code != CM_OK)
        return code;
    plan->facts = wk_arena_take(&plan->arena, b->graph->n_values, sizeof *plan->facts);
    if (!plan->facts)
        return out_of_memory(b);
    code = wk_infer_concrete(b->graph, inputs, &plan->arena, plan->facts, b->err);
    if (code == CM_OK)
        code = check_settled(b);
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
    return code == CM_OK ? link_outputs(b) : code;
}

enum cm_err wk_plan_build(struct wk_backend *backend, const struct wk_graph *graph,
                          const struct wk_weights *weights, const void *base,
                          const struct cm_shape *inputs, struct cm_error *err,
                          struct wk_plan **ret_plan)
{
    struct wk_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return cm_fail(err, CM_NOMEM, "out of memory while planning");
    plan->backend = backend;
    plan->graph = graph;
    struct builder b = {.plan = plan, .graph = graph, .weights = weights, .base = base, .err = err};
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
    wk_arena_fini(&plan->arena);
    free(plan);
}

/* ---- execution ------------------------------------------------------------------------------- */

static void apply(const struct wk_patch *patches, uint32_t count, const void *const *table)
{
    for (uint32_t i = 0; i < count; i++)
        *patches[i].where = table[patches[i].offset];
}

enum cm_err wk_plan_run(struct wk_plan *plan, const void *const *inputs, void *const *outputs,
                        void *scratch, struct cm_error *err)
{
    struct wk_backend *backend = plan->backend;
    enum cm_err code = CM_OK;
    if (scratch != plan->last_scratch || !scratch)
        for (uint32_t i = 0; i < plan->n_scratch_patches; i++)
            *plan->scratch_patches[i].where = (char *)scratch + plan->scratch_patches[i].offset;
    plan->last_scratch = scratch;
    apply(plan->input_patches, plan->n_input_patches, inputs);
    apply(plan->output_patches, plan->n_output_patches, (const void *const *)outputs);
    backend->ops->begin(backend);
    for (uint32_t i = 0; i < plan->n_steps && code == CM_OK; i++) {
        const struct wk_step *step = &plan->steps[i];
        struct wk_run run = {step->in, step->out, step->workspace, err};
        if (step->empty) /* its other dimensions may be too large to loop over */
            continue;
        uint64_t start_ns = plan->node_ns ? cm_now_ns() : 0;
        code = backend->ops->run(backend, step->state, &run);
        if (plan->node_ns)
            plan->node_ns[step->node - plan->graph->nodes] = cm_now_ns() - start_ns;
    }
    backend->ops->end(backend);
    for (uint32_t i = 0; i < plan->n_copies && code == CM_OK; i++)
        if (plan->copies[i].bytes)
            memcpy(outputs[plan->copies[i].output], plan->copies[i].from, plan->copies[i].bytes);
    return code;
}

const struct cm_shape *wk_plan_output_shape(const struct wk_plan *plan, unsigned i)
{
    CM_ASSERT(i < plan->graph->n_outputs);
    return &plan->facts[plan->graph->outputs[i]].shape;
}

enum cm_dtype wk_plan_output_dtype(const struct wk_plan *plan, unsigned i)
{
    CM_ASSERT(i < plan->graph->n_outputs);
    return plan->facts[plan->graph->outputs[i]].dtype;
}

size_t wk_plan_scratch_bytes(const struct wk_plan *plan)
{
    return plan->scratch_bytes;
}
