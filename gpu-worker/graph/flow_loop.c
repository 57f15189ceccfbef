/* Loop; see flow.h. */
#include "gpu-worker/graph/flow_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/infer.h"

#include <stdlib.h>
#include <string.h>

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

static enum cm_err loop_outputs(struct wk_flow *flow, struct trips *t, struct wk_tensor *out,
                                struct cm_error *err)
{
    const struct wk_graph *graph = flow->bodies[0].graph;
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < flow->node->n_out && code == CM_OK; i++) {
        if (i < t->n_carried)
            code = flow_give(&t->formal[2 + i], &out[i], err);
        else
            code = flow_stack_tensor(flow, &t->stacks[i - t->n_carried], 0, false,
                                     &graph->facts[graph->outputs[1 + i]], err, &out[i]);
    }
    return code;
}

enum cm_err flow_run_loop(struct wk_flow *flow, const struct wk_fact *facts, const void *const *in,
                          struct wk_tensor *out, struct cm_error *err)
{
    int64_t trips, going, trip = 0;
    uint8_t going_byte = 0;
    struct trips t;
    enum cm_err code = loop_number(flow, 0, facts, in, INT64_MAX, &trips, err);
    if (code == CM_OK)
        code = loop_number(flow, 1, facts, in, 1, &going, err);
    if (code != CM_OK)
        return code;
    code = flow_trips_take(flow, &t, flow->node->n_given - 2u, 1, err);
    for (uint32_t i = 0; i < t.n_carried && code == CM_OK; i++)
        t.formal[2 + i] = flow_borrow(&facts[flow->node->in[2 + i]], in[2 + i]);
    while (code == CM_OK && going && trip < trips) {
        if (trip == WK_MAX_TRIPS) {
            code = wk_node_fail(err, CM_LIMIT, flow->node, "more than %d trips", WK_MAX_TRIPS);
            break;
        }
        going_byte = (uint8_t)going;
        t.formal[0] = (struct wk_tensor){.dtype = CM_INT64, .data = &trip};
        t.formal[1] = (struct wk_tensor){.dtype = CM_BOOL, .data = &going_byte};
        code = flow_trip(flow, &t, facts, in, err);
        if (code != CM_OK)
            break;
        if (t.results[0].dtype != CM_BOOL || flow_tensor_bytes(&t.results[0]) != 1)
            code =
                wk_node_fail(err, CM_INVALID, flow->node, "the body's condition is not one BOOL");
        else
            going = *(const uint8_t *)t.results[0].data != 0;
        if (code == CM_OK)
            code = flow_trips_advance(flow, &t, 1, 2, err);
        trip++;
    }
    if (code == CM_OK)
        code = loop_outputs(flow, &t, out, err);
    flow_trips_end(&t);
    return code;
}
