/* Pass: a BatchNormalization behind a convolution becomes part of its weights. Scale and shift are
 * applied in double and rounded once, so that results differ from the two operators' in the last
 * bits: this pass changes arithmetic. See passes.h. */
#include "gpu-worker/graph/passes/edit.h"

#include <math.h>
#include <string.h>

/* An FP32 constant with that many elements; NULL for all else. */
static const float *floats(const struct wk_pass *pass, int32_t value, size_t count)
{
    const struct wk_const *constant = pass_constant(pass, value);
    if (!constant || constant->dtype != CM_FP32 || constant->bytes != count * sizeof(float))
        return NULL;
    return constant->data;
}

/* y = BatchNormalization(conv) with constants for everything but the convolution's input. */
struct pair {
    struct wk_node *conv, *norm;
    const struct wk_const *weight;
    const float *bias; /* NULL: none */
    const float *gamma, *beta, *mean, *variance;
    size_t channels;
};

static bool find_norm(const struct wk_pass *pass, struct wk_node *conv, struct pair *ret)
{
    struct wk_node *norm = pass_only_user(pass, conv->out[0]);
    if (!norm || norm->op != WK_OP_BatchNormalization || norm->n_in != 5 ||
        norm->in[0] != conv->out[0] || wk_node_int(norm, "training_mode", 0) ||
        !wk_node_int(norm, "spatial", 1))
        return false;
    for (unsigned k = 1; k < norm->n_out; k++)
        if (norm->out[k] >= 0)
            return false;
    ret->conv = conv;
    ret->norm = norm;
    return true;
}

static bool find_pair(const struct wk_pass *pass, struct wk_node *conv, struct pair *ret)
{
    const struct wk_const *weight = pass_constant(pass, pass_in(conv, 1));
    /* Weights that are shared would have to be copied for each user: more than the file holds. */
    if (!weight || pass_uses(pass, conv->in[1]) != 1 || weight->dtype != CM_FP32 ||
        weight->shape.rank < 3 || weight->bytes == 0 || !find_norm(pass, conv, ret))
        return false;
    size_t channels = (size_t)weight->shape.dims[0];
    ret->weight = weight;
    ret->channels = channels;
    ret->bias = NULL;
    if (pass_in(conv, 2) >= 0) {
        ret->bias = floats(pass, conv->in[2], channels);
        if (!ret->bias)
            return false;
    }
    ret->gamma = floats(pass, ret->norm->in[1], channels);
    ret->beta = floats(pass, ret->norm->in[2], channels);
    ret->mean = floats(pass, ret->norm->in[3], channels);
    ret->variance = floats(pass, ret->norm->in[4], channels);
    return ret->gamma && ret->beta && ret->mean && ret->variance;
}

/* False where a channel's scale is no number to multiply weights by: its NaN or infinity must come
 * out as the two operators would give it. */
static bool fold(const struct pair *pair, float *weight, float *bias)
{
    size_t each = pair->weight->bytes / sizeof(float) / pair->channels;
    const float *from = pair->weight->data;
    double epsilon = (double)wk_node_float(pair->norm, "epsilon", 1e-5f);
    for (size_t c = 0; c < pair->channels; c++) {
        double scale = (double)pair->gamma[c] / sqrt((double)pair->variance[c] + epsilon);
        double old = pair->bias ? (double)pair->bias[c] : 0.0;
        bias[c] = (float)((old - (double)pair->mean[c]) * scale + (double)pair->beta[c]);
        if (!isfinite(scale) || !isfinite(bias[c]))
            return false;
        for (size_t i = c * each; i < (c + 1) * each; i++)
            weight[i] = (float)((double)from[i] * scale);
    }
    return true;
}

static enum cm_err replace(struct wk_pass *pass, const struct pair *pair)
{
    struct cm_shape vector = {.rank = 1, .dims = {(int64_t)pair->channels}};
    void *weight_data, *bias_data;
    struct wk_const *weight = pass_new_constant(pass, CM_FP32, &pair->weight->shape, &weight_data);
    struct wk_const *bias = pass_new_constant(pass, CM_FP32, &vector, &bias_data);
    if (!weight || !bias)
        return CM_NOMEM;
    if (!fold(pair, weight_data, bias_data))
        return CM_OK;
    int32_t in[3] = {pair->conv->in[0], -1, -1};
    enum cm_err code = pass_add_value(pass, pair->conv->name, weight, &in[1]);
    if (code == CM_OK)
        code = pass_add_value(pass, pair->norm->name, bias, &in[2]);
    if (code != CM_OK)
        return code;
    struct wk_node made = *pair->conv;
    made.in = pass_values(pass, 3, in);
    made.n_in = made.n_given = 3;
    made.out = pair->norm->out;
    made.n_out = 1;
    return made.in ? pass_set_node(pass, pair->norm, &made) : CM_NOMEM;
}

enum cm_err pass_conv_bn(struct wk_pass *pass)
{
    enum cm_err code = CM_OK;
    for (uint32_t i = 0; i < pass->graph->n_nodes && code == CM_OK; i++) {
        struct wk_node *node = &pass->graph->nodes[i];
        struct pair pair;
        if (!pass->idle[i] && node->op == WK_OP_Conv && !node->n_stages &&
            find_pair(pass, node, &pair))
            code = replace(pass, &pair);
    }
    return code;
}
