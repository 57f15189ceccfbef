/* Recurrent layers (RNN, GRU, LSTM): their attributes and shapes. See infer.h. */
#include "gpu-worker/graph/infer_priv.h"

#include "common/check.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- attributes ------------------------------------------------------------------------------ */

/* Which of the lists activation_alpha and activation_beta an activation takes an element of, and
 * what stands for it where the list has ended. */
static const struct {
    const char *name;
    bool has_alpha, has_beta;
    float alpha, beta;
} activations[WK_ACT_COUNT] = {
    [WK_ACT_RELU] = {"Relu", false, false, 0, 0},
    [WK_ACT_TANH] = {"Tanh", false, false, 0, 0},
    [WK_ACT_SIGMOID] = {"Sigmoid", false, false, 0, 0},
    [WK_ACT_AFFINE] = {"Affine", true, true, 1.0f, 0},
    [WK_ACT_LEAKY_RELU] = {"LeakyRelu", true, false, 0.01f, 0},
    [WK_ACT_THRESHOLDED_RELU] = {"ThresholdedRelu", true, false, 1.0f, 0},
    [WK_ACT_SCALED_TANH] = {"ScaledTanh", true, true, 1.0f, 1.0f},
    [WK_ACT_HARD_SIGMOID] = {"HardSigmoid", true, true, 0.2f, 0.5f},
    [WK_ACT_ELU] = {"Elu", true, false, 1.0f, 0},
    [WK_ACT_SOFTSIGN] = {"Softsign", false, false, 0, 0},
    [WK_ACT_SOFTPLUS] = {"Softplus", false, false, 0, 0},
};

static unsigned activation_count(enum wk_op op)
{
    return op == WK_OP_LSTM ? 3 : op == WK_OP_GRU ? 2 : 1;
}

/* The next element of a list of parameters, or what stands for it. */
static float take_parameter(const struct wk_attr *list, size_t *at, float otherwise)
{
    return list && *at < list->count ? list->floats[(*at)++] : otherwise;
}

/* Names are taken whatever their case, as other runtimes do. */
static enum cm_err find_activation(const struct wk_node *node, const char *name,
                                   struct cm_error *err, enum wk_activation *ret)
{
    char text[48];
    for (unsigned i = 0; i < WK_ACT_COUNT; i++)
        if (strcasecmp(activations[i].name, name) == 0) {
            *ret = (enum wk_activation)i;
            return CM_OK;
        }
    return wk_node_fail(err, CM_UNSUPPORTED, node, "activation \"%s\" is not supported",
                        wk_printable(name, text, sizeof text));
}

static enum cm_err read_activations(const struct wk_node *node, struct cm_error *err,
                                    struct wk_recurrent *r)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const struct wk_attr *names = wk_node_attr(node, "activations");
    const struct wk_attr *alphas = wk_node_attr(node, "activation_alpha");
    const struct wk_attr *betas = wk_node_attr(node, "activation_beta");
    unsigned count = activation_count(node->op);
    size_t alpha = 0, beta = 0;
    if (names && names->count != (size_t)count * r->directions)
        return wk_node_fail(err, CM_INVALID, node, "has %zu activations; %u are needed",
                            names->count, count * r->directions);
    for (unsigned d = 0; d < r->directions; d++)
        for (unsigned k = 0; k < 3; k++) {
            enum wk_activation fn = WK_ACT_TANH;
            enum cm_err code = CM_OK;
            if (k < count && names)
                code = find_activation(node, names->strings[d * count + k], err, &fn);
            else if (k < count && count > 1)
                code = find_activation(node, usual[k], err, &fn);
            if (code != CM_OK)
                return code;
            r->act[d][k].fn = fn;
            if (activations[fn].has_alpha)
                r->act[d][k].alpha = take_parameter(alphas, &alpha, activations[fn].alpha);
            if (activations[fn].has_beta)
                r->act[d][k].beta = take_parameter(betas, &beta, activations[fn].beta);
        }
    return CM_OK;
}

enum cm_err wk_recurrent_resolve(const struct wk_node *node, struct cm_error *err,
                                 struct wk_recurrent *ret)
{
    const char *direction = wk_node_string(node, "direction", "forward");
    int64_t layout = wk_node_int(node, "layout", 0), hidden = wk_node_int(node, "hidden_size", 0);
    struct wk_recurrent r = {.gates = node->op == WK_OP_LSTM ? 4 : node->op == WK_OP_GRU ? 3 : 1};
    r.directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
    r.reverse = strcmp(direction, "reverse") == 0;
    if (r.directions == 1 && !r.reverse && strcmp(direction, "forward") != 0)
        return wk_node_fail(err, CM_INVALID, node,
                            "direction must be forward, reverse or bidirectional");
    if (layout != 0 && layout != 1)
        return wk_node_fail(err, CM_INVALID, node, "layout must be 0 or 1");
    if (hidden < 0 || (wk_node_attr(node, "hidden_size") && hidden == 0))
        return wk_node_fail(err, CM_INVALID, node, "hidden_size must be positive");
    r.clip = wk_node_float(node, "clip", INFINITY);
    if (!(r.clip >= 0))
        return wk_node_fail(err, CM_INVALID, node, "clip must not be negative");
    r.batch_first = layout == 1;
    r.hidden = hidden;
    r.linear_before_reset = wk_node_int(node, "linear_before_reset", 0) != 0;
    r.input_forget = wk_node_int(node, "input_forget", 0) != 0;
    enum cm_err code = read_activations(node, err, &r);
    if (code == CM_OK)
        *ret = r;
    return code;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

enum { X, W, R, B, SEQUENCE_LENS, INITIAL_H, INITIAL_C, P, N_INPUTS };

/* The layer's dimensions as far as its operands tell them. */
struct sizes {
    int64_t seq, batch, input, hidden, directions;
    int64_t gate_rows, bias, peepholes; /* multiples of hidden */
};

/* Two statements about one dimension; false where they contradict each other. */
static bool meet(int64_t *known, int64_t dim)
{
    if (!dim_known(*known)) {
        if (*known == WK_DIM_ANY || dim_known(dim))
            *known = dim;
        return true;
    }
    return !dim_known(dim) || dim == *known;
}

static enum cm_err check_types(struct infer *in)
{
    for (unsigned k = 0; k < in->node->n_in; k++) {
        const struct wk_fact *fact = infer_in(in, k);
        enum cm_dtype wanted = k == SEQUENCE_LENS ? CM_INT32 : CM_FP32;
        if (fact && fact->dtype != wanted)
            return wk_node_fail(in->err, CM_UNSUPPORTED, in->node,
                                "input %u has type %s; only %s is supported", k,
                                cm_dtype_name(fact->dtype), cm_dtype_name(wanted));
    }
    return CM_OK;
}

/* Input k has these dimensions, or learns them. */
static enum cm_err meet_input(struct infer *in, unsigned k, unsigned rank, int64_t *const *dims)
{
    const struct wk_fact *fact = infer_in(in, k);
    if (!fact || fact->unranked)
        return CM_OK;
    bool fits = fact->shape.rank == rank;
    for (unsigned i = 0; fits && i < rank; i++)
        fits = meet(dims[i], fact->shape.dims[i]);
    if (fits)
        return CM_OK;
    char text[96];
    return wk_node_fail(in->err, CM_INVALID, in->node, "input %u of shape %s does not fit", k,
                        cm_shape_format(&fact->shape, text, sizeof text));
}

/* hidden from the attribute, or else from whatever operand shows it. */
static enum cm_err find_hidden(struct infer *in, const struct wk_recurrent *r, struct sizes *s)
{
    const struct wk_fact *w = infer_in(in, W), *rec = infer_in(in, R);
    s->hidden = r->hidden ? r->hidden : WK_DIM_ANY;
    if (!r->hidden && rec->shape.rank == 3 && dim_known(rec->shape.dims[2]))
        s->hidden = rec->shape.dims[2];
    else if (!r->hidden && w->shape.rank == 3 && dim_known(w->shape.dims[1]))
        s->hidden = w->shape.dims[1] / r->gates;
    if (s->hidden == 0 || s->hidden > WK_MAX_DIM)
        return wk_node_fail(in->err, CM_INVALID, in->node, "its hidden size must be 1 to %lld",
                            (long long)WK_MAX_DIM);
    s->gate_rows = s->bias = s->peepholes = WK_DIM_ANY;
    if (dim_known(s->hidden)) {
        s->gate_rows = s->hidden * r->gates;
        s->bias = 2 * s->gate_rows;
        s->peepholes = 3 * s->hidden;
    }
    return CM_OK;
}

static enum cm_err meet_inputs(struct infer *in, const struct wk_recurrent *r, struct sizes *s)
{
    int64_t *x[] = {r->batch_first ? &s->batch : &s->seq, r->batch_first ? &s->seq : &s->batch,
                    &s->input};
    int64_t *w[] = {&s->directions, &s->gate_rows, &s->input};
    int64_t *rec[] = {&s->directions, &s->gate_rows, &s->hidden};
    int64_t *b[] = {&s->directions, &s->bias}, *p[] = {&s->directions, &s->peepholes};
    int64_t *lens[] = {&s->batch};
    int64_t *state[] = {r->batch_first ? &s->batch : &s->directions,
                        r->batch_first ? &s->directions : &s->batch, &s->hidden};
    const struct {
        unsigned rank;
        int64_t *const *dims;
    } wanted[N_INPUTS] = {{3, x},    {3, w},     {3, rec},   {2, b},
                          {1, lens}, {3, state}, {3, state}, {2, p}};
    enum cm_err code = CM_OK;
    for (unsigned k = 0; k < N_INPUTS && code == CM_OK; k++)
        code = meet_input(in, k, wanted[k].rank, wanted[k].dims);
    return code;
}

enum cm_err infer_recurrent(struct infer *in)
{
    struct wk_recurrent r;
    struct sizes s = {.seq = WK_DIM_ANY, .batch = WK_DIM_ANY, .input = WK_DIM_ANY};
    enum cm_err code = wk_recurrent_resolve(in->node, in->err, &r);
    if (code == CM_OK)
        code = check_types(in);
    if (code == CM_OK)
        code = find_hidden(in, &r, &s);
    s.directions = r.directions;
    if (code == CM_OK)
        code = meet_inputs(in, &r, &s);
    if (code != CM_OK)
        return code;
    struct cm_shape y = {.rank = 4, .dims = {s.seq, s.directions, s.batch, s.hidden}};
    struct cm_shape state = {.rank = 3, .dims = {s.directions, s.batch, s.hidden}};
    if (r.batch_first) {
        y = (struct cm_shape){.rank = 4, .dims = {s.batch, s.seq, s.directions, s.hidden}};
        state = (struct cm_shape){.rank = 3, .dims = {s.batch, s.directions, s.hidden}};
    }
    (void)infer_set_out(in, 0, CM_FP32, &y);
    (void)infer_set_out(in, 1, CM_FP32, &state);
    return infer_set_out(in, 2, CM_FP32, &state);
}
