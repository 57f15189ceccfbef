/* f32 cells of recurrent layers: what follows the products of one time step. See kernels.h.
 *
 * Compiled once per instruction set; runs on the caller's thread. A row is a sequence of the batch,
 * a lane is a hidden unit. */
#include "gpu-worker/cpu/k.h"

#include "gpu-worker/cpu/k_functions.h"
#include "gpu-worker/cpu/kernels.h"

K_INLINE v clip(v x, const struct k_rnn_cell *c)
{
    return f_clip(x, v_set(-c->clip), v_set(c->clip));
}

/* Not inlined: a cell has up to five of them, and the usual ones have a way of their own. */
static __attribute__((noinline)) v activate(v x, const struct k_rnn_act *act)
{
    v alpha = v_set(act->alpha), beta = v_set(act->beta);
    switch (act->fn) {
    case K_RNN_RELU:
        return f_relu(x);
    case K_RNN_TANH:
        return v_tanh(x);
    case K_RNN_SIGMOID:
        return v_sigmoid(x);
    case K_RNN_AFFINE:
        return v_add(v_mul(alpha, x), beta);
    case K_RNN_LEAKY_RELU:
        return f_leaky_relu(x, alpha);
    case K_RNN_THRESHOLDED_RELU:
        return v_sel(v_lt(x, alpha), v_zero(), x);
    case K_RNN_SCALED_TANH:
        return v_mul(alpha, v_tanh(v_mul(beta, x)));
    case K_RNN_HARD_SIGMOID:
        return f_hard_sigmoid(x, alpha, beta);
    case K_RNN_ELU:
        return f_elu(x, alpha);
    case K_RNN_SOFTSIGN:
        return f_softsign(x);
    case K_RNN_SOFTPLUS:
        return v_softplus(x);
    }
    return x;
}

/* Activation k of a clipped x. usual: sigmoid, tanh, tanh without clipping, known when compiling.
 */
K_INLINE v act(v x, const struct k_rnn_cell *c, const unsigned k, const bool usual)
{
    if (usual)
        return k == 0 ? v_sigmoid(x) : v_tanh(x);
    return activate(clip(x, c), &c->act[k]);
}

static bool is_usual(const struct k_rnn_cell *c)
{
    return c->clip == __builtin_inff() && c->act[0].fn == K_RNN_SIGMOID &&
           c->act[1].fn == K_RNN_TANH && c->act[2].fn == K_RNN_TANH;
}

/* A row's new hidden state, to the state and to the output. */
K_INLINE void store_hidden(const struct k_rnn_cell *c, size_t i, size_t j, v h)
{
    v_storet(c->h + i * c->hidden + j, h, c->hidden - j);
    if (c->y)
        v_storet(c->y + i * c->y_stride + j, h, c->hidden - j);
}

void K_NAME(f32_rnn_cell)(const struct k_rnn_cell *c, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1; i++)
        for (size_t j = 0; j < c->hidden; j += VL)
            store_hidden(
                c, i, j,
                act(v_loadt(c->gates + i * c->gates_stride + j, c->hidden - j), c, 0, false));
}

K_INLINE void lstm_unit(const struct k_rnn_cell *c, size_t i, size_t j, const bool usual)
{
    const size_t hidden = c->hidden, n = hidden - j;
    const float *gates = c->gates + i * c->gates_stride + j, *peephole = c->peephole;
    float *state = c->c + i * hidden + j;
    v before = v_loadt(state, n), one = v_set(1.0f);
    v input = v_loadt(gates, n), output = v_loadt(gates + hidden, n);
    v forget = v_loadt(gates + 2 * hidden, n);
    if (peephole) {
        input = v_fma(v_loadt(peephole + j, n), before, input);
        forget = v_fma(v_loadt(peephole + 2 * hidden + j, n), before, forget);
    }
    input = act(input, c, 0, usual);
    forget = c->input_forget ? v_sub(one, input) : act(forget, c, 0, usual);
    v fresh = act(v_loadt(gates + 3 * hidden, n), c, 1, usual);
    v now = v_fma(forget, before, v_mul(input, fresh));
    if (peephole)
        output = v_fma(v_loadt(peephole + hidden + j, n), now, output);
    output = act(output, c, 0, usual);
    v_storet(state, now, n);
    store_hidden(c, i, j, v_mul(output, usual ? v_tanh(now) : activate(now, &c->act[2])));
}

void K_NAME(f32_lstm_cell)(const struct k_rnn_cell *c, size_t i0, size_t i1)
{
    const bool usual = is_usual(c);
    for (size_t i = i0; i < i1; i++)
        for (size_t j = 0; j < c->hidden; j += VL)
            if (usual)
                lstm_unit(c, i, j, true);
            else
                lstm_unit(c, i, j, false);
}

void K_NAME(f32_gru_reset)(const struct k_rnn_cell *c, size_t i0, size_t i1)
{
    const size_t hidden = c->hidden;
    for (size_t i = i0; i < i1; i++)
        for (size_t j = 0; j < hidden; j += VL) {
            v r = v_loadt(c->gates + i * c->gates_stride + hidden + j, hidden - j);
            v h = v_loadt(c->h + i * hidden + j, hidden - j);
            v_storet(c->reset + i * hidden + j, v_mul(act(r, c, 0, false), h), hidden - j);
        }
}

K_INLINE void gru_unit(const struct k_rnn_cell *c, size_t i, size_t j, const bool usual)
{
    const size_t hidden = c->hidden, n = hidden - j;
    const float *gates = c->gates + i * c->gates_stride + j;
    v before = v_loadt(c->h + i * hidden + j, n);
    v update = act(v_loadt(gates, n), c, 0, usual), fresh = v_loadt(gates + 2 * hidden, n);
    if (c->recurrent) {
        v reset = act(v_loadt(gates + hidden, n), c, 0, usual);
        fresh = v_fma(reset, v_loadt(c->recurrent + i * hidden + j, n), fresh);
    }
    fresh = act(fresh, c, 1, usual);
    v keep = v_mul(v_sub(v_set(1.0f), update), fresh);
    store_hidden(c, i, j, v_fma(update, before, keep));
}

void K_NAME(f32_gru_cell)(const struct k_rnn_cell *c, size_t i0, size_t i1)
{
    const bool usual = is_usual(c);
    for (size_t i = i0; i < i1; i++)
        for (size_t j = 0; j < c->hidden; j += VL)
            if (usual)
                gru_unit(c, i, j, true);
            else
                gru_unit(c, i, j, false);
}
