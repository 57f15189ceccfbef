/* If, Loop and Scan; see flow.h. */
#include "gpu-worker/graph/flow.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"
#include "gpu-worker/graph/plan.h"
#include "gpu-worker/graph/weights.h"

#include <stdlib.h>
#include <string.h>

enum { CACHED_PLANS = 4 };

/* A subgraph planned for one set of input types and shapes. */
struct body_plan {
    struct wk_plan *plan;
    void *scratch;
    struct wk_fact *inputs; /* n_inputs of them */
};

struct body {
    const struct wk_graph *graph;
    const char *base; /* its packed weights */
    uint32_t first;   /* of its captured values among the node's inputs */
    struct body_plan plans[CACHED_PLANS];
    unsigned next;         /* to be replaced */
    struct wk_fact *asked; /* room for n_inputs facts */
    const void **in;       /* room for n_inputs addresses */
    void **out;            /* room for n_outputs */
};

struct wk_flow {
    struct wk_backend *backend;
    const struct wk_node *node;
    const struct wk_fact *known;
    struct body bodies[2];
    unsigned n_bodies;
    int certain; /* the branch that an If is known to take, or -1 */
    struct wk_arena arena;
};

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

static size_t tensor_bytes(const struct wk_tensor *tensor)
{
    size_t bytes = 0;
    CM_ASSERT(cm_shape_bytes(&tensor->shape, tensor->dtype, &bytes) == CM_OK);
    return bytes;
}

/* Tensors that the flow does not own. */
static struct wk_tensor borrow(const struct wk_fact *fact, const void *data)
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
    *ret_plan = plan;
    return CM_OK;
}

/* Asks for the types and shapes of the formal inputs, and of what is captured from facts. */
static void ask(struct wk_flow *flow, struct body *body, const struct wk_tensor *formal,
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

/* Runs a body for what was asked; out gets new tensors. */
static enum cm_err run_body(struct wk_flow *flow, struct body *body, struct wk_tensor *out,
                            struct cm_error *err)
{
    struct body_plan *made;
    uint32_t n_out = body->graph->n_outputs;
    enum cm_err code = find_plan(flow, body, err, &made);
    memset(out, 0, n_out * sizeof *out);
    for (uint32_t i = 0; i < n_out && code == CM_OK; i++) {
        body->out[i] = NULL;
        if (!wk_plan_output_is_settled(made->plan, i))
            continue;
        code = wk_tensor_make(&out[i], wk_plan_output_dtype(made->plan, i),
                              wk_plan_output_shape(made->plan, i), err);
        body->out[i] = out[i].owned;
    }
    if (code == CM_OK)
        code = wk_plan_run_inside(made->plan, body->in, body->out, made->scratch, err);
    for (uint32_t i = 0; i < n_out && code == CM_OK; i++) {
        if (wk_plan_output_is_settled(made->plan, i))
            continue;
        code = wk_tensor_make(&out[i], wk_plan_output_dtype(made->plan, i),
                              wk_plan_output_shape(made->plan, i), err);
        if (code == CM_OK && tensor_bytes(&out[i]))
            memcpy(out[i].owned, wk_plan_output_data(made->plan, i), tensor_bytes(&out[i]));
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
    ask(flow, body, NULL, facts, in);
    return run_body(flow, body, out, err);
}

/* ---- Loop and Scan: tensors that grow by one piece per trip -----------------------------------
 */

struct stack {
    enum cm_dtype dtype;
    struct cm_shape piece;
    size_t piece_bytes, used, room;
    char *memory;
    int64_t count;
};

static enum cm_err stack_push(struct wk_flow *flow, struct stack *stack,
                              const struct wk_tensor *piece, struct cm_error *err)
{
    size_t bytes = tensor_bytes(piece);
    if (stack->count == 0) {
        stack->dtype = piece->dtype;
        stack->piece = piece->shape;
        stack->piece_bytes = bytes;
    } else if (stack->dtype != piece->dtype || !cm_shape_equal(&stack->piece, &piece->shape)) {
        return wk_node_fail(err, CM_INVALID, flow->node,
                            "a scan output changes its type or shape from trip to trip");
    }
    if (stack->used + bytes > WK_MAX_TENSOR_BYTES)
        return wk_node_fail(err, CM_LIMIT, flow->node, "a scan output is larger than %zu bytes",
                            WK_MAX_TENSOR_BYTES);
    if (stack->used + bytes > stack->room) {
        size_t room = stack->used + bytes > 2 * stack->room ? stack->used + bytes : 2 * stack->room;
        char *grown = realloc(stack->memory, room);
        if (!grown)
            return wk_node_fail(err, CM_NOMEM, flow->node, "no memory for a scan output");
        stack->memory = grown;
        stack->room = room;
    }
    if (bytes)
        memcpy(stack->memory + stack->used, piece->data, bytes);
    stack->used += bytes;
    stack->count++;
    return CM_OK;
}

/* The stack as a tensor whose axis `axis` counts the pieces, from the last one if reverse. fact
 * tells type and shape of a piece where there was none. */
static enum cm_err stack_tensor(struct wk_flow *flow, const struct stack *stack, unsigned axis,
                                bool reverse, const struct wk_fact *fact, struct cm_error *err,
                                struct wk_tensor *ret)
{
    struct cm_shape piece = stack->count ? stack->piece : fact->shape;
    struct cm_shape shape = {.rank = (uint8_t)(piece.rank + 1)};
    if (piece.rank == CM_MAX_RANK || axis > piece.rank)
        return wk_node_fail(err, CM_INVALID, flow->node,
                            "a scan output cannot be stacked along axis %u", axis);
    for (unsigned i = 0; i < shape.rank; i++) {
        int64_t dim = i == axis ? stack->count : piece.dims[i < axis ? i : i - 1];
        shape.dims[i] = dim < 0 ? 0 : dim; /* never computed, so never known */
    }
    enum cm_err code = wk_tensor_make(ret, stack->count ? stack->dtype : fact->dtype, &shape, err);
    if (code != CM_OK)
        return code;
    size_t outer = 1, inner = stack->piece_bytes;
    for (unsigned i = 0; i < axis; i++)
        outer *= (size_t)piece.dims[i];
    inner = outer && stack->count ? stack->piece_bytes / outer : 0;
    for (int64_t p = 0; p < stack->count; p++) {
        int64_t place = reverse ? stack->count - 1 - p : p;
        for (size_t o = 0; o < outer && inner; o++)
            memcpy((char *)ret->owned + (o * (size_t)stack->count + (size_t)place) * inner,
                   stack->memory + (size_t)p * stack->piece_bytes + o * inner, inner);
    }
    return CM_OK;
}

/* What Loop and Scan carry from trip to trip, and what they collect. */
struct trips {
    struct wk_tensor *formal;  /* n_formal inputs of the body */
    struct wk_tensor *results; /* n_outputs of the body */
    struct stack *stacks;      /* one per scan output */
    uint32_t n_formal, n_results, n_carried, n_stacks;
};

static enum cm_err take_trips(struct wk_flow *flow, struct trips *t, uint32_t n_carried,
                              uint32_t before, struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    *t = (struct trips){.n_formal = graph->n_formal,
                        .n_results = graph->n_outputs,
                        .n_carried = n_carried,
                        .n_stacks = graph->n_outputs - before - n_carried};
    t->formal = calloc(t->n_formal + 1, sizeof *t->formal);
    t->results = calloc(t->n_results + 1, sizeof *t->results);
    t->stacks = calloc(t->n_stacks + 1, sizeof *t->stacks);
    return t->formal && t->results && t->stacks
               ? CM_OK
               : wk_node_fail(err, CM_NOMEM, flow->node, "out of memory");
}

static void end_trips(struct trips *t)
{
    for (uint32_t i = 0; t->formal && i < t->n_formal; i++)
        wk_tensor_fini(&t->formal[i]);
    for (uint32_t i = 0; t->results && i < t->n_results; i++)
        wk_tensor_fini(&t->results[i]);
    for (uint32_t i = 0; t->stacks && i < t->n_stacks; i++)
        free(t->stacks[i].memory);
    free(t->formal);
    free(t->results);
    free(t->stacks);
}

/* Results [from, from + n_carried) replace the formal inputs from `to` on; the rest is pushed. */
static enum cm_err take_results(struct wk_flow *flow, struct trips *t, uint32_t from, uint32_t to,
                                struct cm_error *err)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < t->n_carried; i++) {
        wk_tensor_fini(&t->formal[to + i]);
        t->formal[to + i] = t->results[from + i];
        t->results[from + i] = (struct wk_tensor){0};
    }
    for (uint32_t i = 0; i < t->n_stacks && code == CM_OK; i++)
        code = stack_push(flow, &t->stacks[i], &t->results[from + t->n_carried + i], err);
    for (uint32_t i = 0; i < t->n_results; i++)
        wk_tensor_fini(&t->results[i]);
    return code;
}

/* A carried tensor as an output: what is borrowed is copied. */
static enum cm_err give(struct wk_tensor *from, struct wk_tensor *to, struct cm_error *err)
{
    if (from->owned) {
        *to = *from;
        *from = (struct wk_tensor){0};
        return CM_OK;
    }
    enum cm_err code = wk_tensor_make(to, from->dtype, &from->shape, err);
    if (code == CM_OK && tensor_bytes(from))
        memcpy(to->owned, from->data, tensor_bytes(from));
    return code;
}

/* ---- Loop -------------------------------------------------------------------------------------
 */

/* One number of type int64 or bool that Loop takes, or otherwise if it is left out. */
static enum cm_err loop_number(struct wk_flow *flow, unsigned k, const struct wk_fact *facts,
                               const void *const *in, int64_t otherwise, int64_t *ret,
                               struct cm_error *err)
{
    int64_t count;
    *ret = otherwise;
    if (flow->node->in[k] < 0)
        return CM_OK;
    const struct wk_fact *fact = &facts[flow->node->in[k]];
    if (cm_shape_count(&fact->shape, &count) != CM_OK || count != 1 ||
        fact->dtype != (k == 0 ? CM_INT64 : CM_BOOL))
        return wk_node_fail(err, CM_INVALID, flow->node, "input %u must be one %s", k,
                            k == 0 ? "INT64" : "BOOL");
    if (k == 0)
        memcpy(ret, in[k], sizeof *ret);
    else
        *ret = *(const uint8_t *)in[k] != 0;
    return CM_OK;
}

static enum cm_err one_trip(struct wk_flow *flow, struct trips *t, const struct wk_fact *facts,
                            const void *const *in, struct cm_error *err)
{
    ask(flow, &flow->bodies[0], t->formal, facts, in);
    return run_body(flow, &flow->bodies[0], t->results, err);
}

static enum cm_err loop_outputs(struct wk_flow *flow, struct trips *t, struct wk_tensor *out,
                                struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < flow->node->n_out && code == CM_OK; i++) {
        if (i < t->n_carried)
            code = give(&t->formal[2 + i], &out[i], err);
        else
            code = stack_tensor(flow, &t->stacks[i - t->n_carried], 0, false,
                                &graph->facts[graph->outputs[1 + i]], err, &out[i]);
    }
    return code;
}

static enum cm_err run_loop(struct wk_flow *flow, const struct wk_fact *facts,
                            const void *const *in, struct wk_tensor *out, struct cm_error *err)
{
    int64_t trips, going, trip = 0;
    uint8_t going_byte = 0;
    struct trips t;
    enum cm_err code = loop_number(flow, 0, facts, in, INT64_MAX, &trips, err);
    if (code == CM_OK)
        code = loop_number(flow, 1, facts, in, 1, &going, err);
    if (code != CM_OK)
        return code;
    code = take_trips(flow, &t, flow->node->n_given - 2u, 1, err);
    for (uint32_t i = 0; i < t.n_carried && code == CM_OK; i++)
        t.formal[2 + i] = borrow(&facts[flow->node->in[2 + i]], in[2 + i]);
    while (code == CM_OK && going && trip < trips) {
        if (trip == WK_MAX_TRIPS) {
            code = wk_node_fail(err, CM_LIMIT, flow->node, "more than %d trips", WK_MAX_TRIPS);
            break;
        }
        going_byte = (uint8_t)going;
        t.formal[0] = (struct wk_tensor){.dtype = CM_INT64, .data = &trip};
        t.formal[1] = (struct wk_tensor){.dtype = CM_BOOL, .data = &going_byte};
        code = one_trip(flow, &t, facts, in, err);
        if (code != CM_OK)
            break;
        if (t.results[0].dtype != CM_BOOL || tensor_bytes(&t.results[0]) != 1)
            code =
                wk_node_fail(err, CM_INVALID, flow->node, "the body's condition is not one BOOL");
        else
            going = *(const uint8_t *)t.results[0].data != 0;
        if (code == CM_OK)
            code = take_results(flow, &t, 1, 2, err);
        trip++;
    }
    if (code == CM_OK)
        code = loop_outputs(flow, &t, out, err);
    end_trips(&t);
    return code;
}

/* ---- Scan -------------------------------------------------------------------------------------
 */

static int64_t list_entry(const struct wk_node *node, const char *name, uint32_t i)
{
    const struct wk_attr *attr = wk_node_attr(node, name);
    return attr && i < attr->count ? attr->ints[i] : 0;
}

/* Scan of opset 8 runs for each row of a batch; later ones have no batch. */
struct scan {
    uint32_t first; /* the node's first state input: 1 in opset 8, behind sequence_lens */
    uint32_t n_state, n_scan;
    bool batched;
    int64_t length;
};

/* The axis that scan input i is cut along, and its length. */
static enum cm_err scan_axis(struct wk_flow *flow, const struct scan *scan, uint32_t i,
                             const struct cm_shape *shape, unsigned *ret_axis, struct cm_error *err)
{
    int64_t axis = scan->batched ? 1 : list_entry(flow->node, "scan_input_axes", i);
    if (!wk_axis(axis, shape->rank, ret_axis))
        return wk_node_fail(err, CM_INVALID, flow->node, "scan axis %lld of %u dimensions",
                            (long long)axis, shape->rank);
    return CM_OK;
}

/* Piece `at` of x along axis (and of row `row` where axis 0 is a batch). */
static enum cm_err cut(const struct wk_tensor *x, unsigned axis, int64_t at, bool batched,
                       int64_t row, struct cm_error *err, struct wk_tensor *ret)
{
    struct cm_shape shape = {0};
    size_t outer = 1, element = cm_dtype_size(x->dtype), inner = element, begin = batched ? 1 : 0;
    for (unsigned i = (unsigned)begin; i < x->shape.rank; i++) {
        if (i == axis)
            continue;
        shape.dims[shape.rank++] = x->shape.dims[i];
        if (i < axis)
            outer *= (size_t)x->shape.dims[i];
        else
            inner *= (size_t)x->shape.dims[i];
    }
    enum cm_err code = wk_tensor_make(ret, x->dtype, &shape, err);
    size_t length = (size_t)x->shape.dims[axis];
    const char *from = x->data;
    if (batched)
        from += (size_t)row * outer * length * inner;
    for (size_t o = 0; o < outer && inner && code == CM_OK; o++)
        memcpy((char *)ret->owned + o * inner, from + (o * length + (size_t)at) * inner, inner);
    return code;
}

static enum cm_err scan_shape(struct wk_flow *flow, const struct wk_fact *facts, struct scan *scan,
                              int64_t *ret_rows, struct cm_error *err)
{
    const struct wk_node *node = flow->node;
    scan->batched = node->opset < 9;
    scan->first = scan->batched ? 1 : 0;
    int64_t n_scan = wk_node_int(node, "num_scan_inputs", 0);
    uint32_t n_rest = node->n_given - scan->first;
    if (n_scan < 1 || n_scan > n_rest)
        return wk_node_fail(err, CM_INVALID, node, "num_scan_inputs = %lld", (long long)n_scan);
    scan->n_scan = (uint32_t)n_scan;
    scan->n_state = n_rest - scan->n_scan;
    scan->length = -1;
    *ret_rows = 1;
    for (uint32_t i = 0; i < n_rest; i++) {
        const struct cm_shape *shape = &facts[node->in[scan->first + i]].shape;
        unsigned axis;
        if (scan->batched && (shape->rank == 0 || (i && shape->dims[0] != *ret_rows)))
            return wk_node_fail(err, CM_INVALID, node, "inputs differ in their batch");
        if (scan->batched)
            *ret_rows = shape->dims[0];
        if (i < scan->n_state)
            continue;
        enum cm_err code = scan_axis(flow, scan, i - scan->n_state, shape, &axis, err);
        if (code != CM_OK)
            return code;
        if (scan->length >= 0 && scan->length != shape->dims[axis])
            return wk_node_fail(err, CM_INVALID, node, "inputs differ in their sequence length");
        scan->length = shape->dims[axis];
    }
    if (scan->length > WK_MAX_TRIPS)
        return wk_node_fail(err, CM_LIMIT, node, "more than %d trips", WK_MAX_TRIPS);
    return CM_OK;
}

/* A state of row `row`: the whole input, or a row of it. */
static struct wk_tensor scan_state(const struct wk_fact *fact, const void *data, bool batched,
                                   int64_t row)
{
    struct wk_tensor state = borrow(fact, data);
    if (batched) {
        state.shape.rank--;
        memmove(state.shape.dims, state.shape.dims + 1, state.shape.rank * sizeof(int64_t));
        state.data = (const char *)data + (size_t)row * tensor_bytes(&state);
    }
    return state;
}

static enum cm_err scan_row(struct wk_flow *flow, const struct scan *scan, struct trips *t,
                            const struct wk_fact *facts, const void *const *in, int64_t row,
                            int64_t length, struct cm_error *err)
{
    const struct wk_node *node = flow->node;
    const char *directions = scan->batched ? "directions" : "scan_input_directions";
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < scan->n_state; i++)
        t->formal[i] =
            scan_state(&facts[node->in[scan->first + i]], in[scan->first + i], scan->batched, row);
    for (int64_t trip = 0; trip < length && code == CM_OK; trip++) {
        for (uint32_t i = 0; i < scan->n_scan && code == CM_OK; i++) {
            uint32_t k = scan->first + scan->n_state + i;
            struct wk_tensor x = borrow(&facts[node->in[k]], in[k]);
            unsigned axis = 0;
            code = scan_axis(flow, scan, i, &x.shape, &axis, err);
            wk_tensor_fini(&t->formal[scan->n_state + i]);
            if (code == CM_OK)
                code = cut(&x, axis, list_entry(node, directions, i) ? length - 1 - trip : trip,
                           scan->batched, row, err, &t->formal[scan->n_state + i]);
        }
        if (code == CM_OK)
            code = one_trip(flow, t, facts, in, err);
        if (code == CM_OK)
            code = take_results(flow, t, 0, 0, err);
    }
    return code;
}

/* Rows of a batch become one tensor. */
static enum cm_err join_row(struct wk_flow *flow, struct wk_tensor *out, struct wk_tensor *row,
                            int64_t at, int64_t rows, int64_t pad_to, struct cm_error *err)
{
    struct cm_shape shape = {.rank = (uint8_t)(row->shape.rank + 1)};
    if (row->shape.rank == CM_MAX_RANK)
        return wk_node_fail(err, CM_INVALID, flow->node, "an output has too many dimensions");
    memcpy(shape.dims + 1, row->shape.dims, row->shape.rank * sizeof(int64_t));
    shape.dims[0] = rows;
    if (pad_to >= 0)
        shape.dims[1] = pad_to;
    enum cm_err code = CM_OK;
    if (at == 0) {
        code = wk_tensor_make(out, row->dtype, &shape, err);
        if (code == CM_OK && tensor_bytes(out))
            memset(out->owned, 0, tensor_bytes(out));
    } else if (!cm_shape_equal(&shape, &out->shape)) {
        code = wk_node_fail(err, CM_INVALID, flow->node, "rows differ in their output's shape");
    }
    if (code == CM_OK && tensor_bytes(row))
        memcpy((char *)out->owned + (size_t)at * (tensor_bytes(out) / (size_t)rows), row->data,
               tensor_bytes(row));
    return code;
}

static enum cm_err scan_outputs(struct wk_flow *flow, const struct scan *scan, struct trips *t,
                                int64_t row, int64_t rows, struct wk_tensor *out,
                                struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < flow->node->n_out && code == CM_OK; i++) {
        struct wk_tensor made = {0};
        uint32_t s = i - scan->n_state;
        if (i < scan->n_state) {
            code = give(&t->formal[i], &made, err);
        } else {
            unsigned axis = 0;
            const struct stack *stack = &t->stacks[s];
            unsigned rank =
                (stack->count ? stack->piece.rank : graph->facts[graph->outputs[i]].shape.rank) +
                1u;
            int64_t given = scan->batched ? 0 : list_entry(flow->node, "scan_output_axes", s);
            if (!wk_axis(given, rank, &axis))
                code = wk_node_fail(err, CM_INVALID, flow->node, "scan output axis %lld",
                                    (long long)given);
            if (code == CM_OK)
                code = stack_tensor(flow, stack, axis,
                                    !scan->batched &&
                                        list_entry(flow->node, "scan_output_directions", s),
                                    &graph->facts[graph->outputs[i]], err, &made);
        }
        if (code == CM_OK && scan->batched)
            code = join_row(flow, &out[i], &made, row, rows, i < scan->n_state ? -1 : scan->length,
                            err);
        else if (code == CM_OK)
            out[i] = made, made = (struct wk_tensor){0};
        wk_tensor_fini(&made);
    }
    return code;
}

/* Opset 8 may give each row of the batch a length of its own. */
static enum cm_err row_length(struct wk_flow *flow, const struct scan *scan,
                              const struct wk_fact *facts, const void *const *in, int64_t row,
                              int64_t *ret, struct cm_error *err)
{
    *ret = scan->length;
    if (!scan->batched || flow->node->in[0] < 0)
        return CM_OK;
    const struct wk_fact *lengths = &facts[flow->node->in[0]];
    int64_t count;
    if (lengths->dtype != CM_INT64 || cm_shape_count(&lengths->shape, &count) != CM_OK ||
        row >= count)
        return wk_node_fail(err, CM_INVALID, flow->node, "sequence_lens must be INT64 per row");
    memcpy(ret, (const char *)in[0] + 8 * row, 8);
    if (*ret < 0 || *ret > scan->length)
        return wk_node_fail(err, CM_INVALID, flow->node, "sequence length %lld of %lld",
                            (long long)*ret, (long long)scan->length);
    return CM_OK;
}

static enum cm_err run_scan(struct wk_flow *flow, const struct wk_fact *facts,
                            const void *const *in, struct wk_tensor *out, struct cm_error *err)
{
    struct scan scan = {0};
    int64_t rows = 0, length = 0;
    enum cm_err code = scan_shape(flow, facts, &scan, &rows, err);
    for (int64_t row = 0; row < rows && code == CM_OK; row++) {
        struct trips t;
        code = take_trips(flow, &t, scan.n_state, 0, err);
        if (code == CM_OK)
            code = row_length(flow, &scan, facts, in, row, &length, err);
        if (code == CM_OK)
            code = scan_row(flow, &scan, &t, facts, in, row, length, err);
        if (code == CM_OK)
            code = scan_outputs(flow, &scan, &t, row, rows, out, err);
        end_trips(&t);
    }
    if (code == CM_OK && rows == 0)
        code = wk_node_fail(err, CM_UNSUPPORTED, flow->node, "an empty batch is not supported");
    return code;
}

enum cm_err wk_flow_run(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                        struct wk_tensor *out, struct cm_error *err)
{
    switch (flow->node->op) {
    case WK_OP_If:
        return run_if(flow, facts, in, out, err);
    case WK_OP_Loop:
        return run_loop(flow, facts, in, out, err);
    default:
        CM_ASSERT(flow->node->op == WK_OP_Scan);
        return run_scan(flow, facts, in, out, err);
    }
}
