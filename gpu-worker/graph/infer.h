/* Shape inference, and evaluation of what shapes alone decide.
 *
 * The same rules run three times: at load with symbolic dimensions (WK_DIM_ANY, WK_DIM_BATCH),
 * which checks the model and feeds the batch proof; per plan with concrete input shapes; and in the
 * run for nodes whose shapes depend on data (graph/late.h). The owner's thread. */
#ifndef GPU_WORKER_GRAPH_INFER_H
#define GPU_WORKER_GRAPH_INFER_H

#include "gpu-worker/graph/graph.h"

struct wk_backend;

/* What a walk over a graph and its subgraphs has cost so far. A body is walked until what it
 * carries settles, within every round of the body around it: without a limit that is exponential in
 * the depth of nesting. */
#define WK_MAX_VISITS   ((uint64_t)1 << 23) /* values, counted again in every round */
#define WK_MAX_EVAL_SUM ((size_t)64 << 20)  /* bytes of outputs that were computed meanwhile */
struct wk_spent {
    uint64_t visits;
    size_t evaluated;
};

/* One walk over a graph. Element lists and contents live in arena. */
struct wk_walk {
    const struct wk_graph *graph;
    struct wk_fact *facts; /* one per value */
    struct wk_arena *arena;
    struct cm_error *err;
    struct wk_backend *backend; /* not NULL: small nodes whose inputs are known are run at once */
    bool symbolic;              /* at load: subgraphs keep their facts */
    bool rows;                  /* follow the batch (graph/batch.h) */
    struct wk_spent *spent;     /* NULL for a single node */
};

/* Facts of every value; facts must be zeroed. inputs has the facts of the graph's inputs, with
 * contents where they are known. CM_LIMIT over WK_MAX_VISITS, else as wk_infer_node. */
CM_MUST_CHECK enum cm_err wk_infer_graph(const struct wk_walk *walk, const struct wk_fact *inputs);

/* Facts of one node's outputs from those of its inputs: forgets what was known about the outputs.
 * CM_INVALID where the shapes do not fit, CM_LIMIT for a tensor over WK_MAX_TENSOR_BYTES. */
CM_MUST_CHECK enum cm_err wk_infer_node(const struct wk_walk *walk, const struct wk_node *node);

/* Fills graph->facts with symbolic dimensions. Where every input's first dimension is free it is
 * taken as the batch and rows are followed. Errors as wk_model_parse. */
CM_MUST_CHECK enum cm_err wk_infer_symbolic(struct wk_graph *graph, struct cm_error *err);

/* The fact has its type, its rank and all its dimensions. */
bool wk_fact_is_settled(const struct wk_fact *fact);

/* All of its contents are known. */
bool wk_fact_is_known(const struct wk_fact *fact);

/* Takes up the contents of a value: data must stay valid as long as the fact. Integers are listed
 * as elements too, if they are not too many. CM_NOMEM only. */
CM_MUST_CHECK enum cm_err wk_fact_know(struct wk_fact *fact, const void *data,
                                       struct wk_arena *arena, struct cm_error *err);

/* The dense bytes of a value whose contents are known, written into arena if need be; NULL when
 * memory is out, or with *ret_known false where they are not known. */
const void *wk_fact_contents(const struct wk_fact *fact, struct wk_arena *arena, bool *ret_known);

/* The node's outputs are all known without running it. */
bool wk_node_is_folded(const struct wk_node *node, const struct wk_fact *facts);

/* The node's input k is only looked at when a plan is made (shapes, axes, bounds): it needs no
 * memory at run time. */
bool wk_operand_is_static(const struct wk_node *node, unsigned k);

/* The contents of the node's input k decide shapes. */
bool wk_operand_decides(const struct wk_node *node, unsigned k);

/* The node gives its input 0 a new shape and leaves the bytes alone. Decided by the file alone. */
bool wk_node_is_view(const struct wk_node *node);

/* A window over one to three spatial dimensions, resolved from attributes and shapes. The entries
 * are depth, height and width; dimensions that the node lacks are 1 throughout. Symbolic sizes give
 * symbolic in, out; pads are then as written. */
#define WK_SPATIAL 3
struct wk_window {
    int64_t in[WK_SPATIAL], out[WK_SPATIAL], kernel[WK_SPATIAL], stride[WK_SPATIAL];
    int64_t dilation[WK_SPATIAL], pad_begin[WK_SPATIAL], pad_end[WK_SPATIAL];
};

/* x is the input [N,C,spatial...]; kernel the last dimensions of the weights, or NULL to take the
 * attribute kernel_shape. */
CM_MUST_CHECK enum cm_err wk_window_resolve(const struct wk_node *node, const struct cm_shape *x,
                                            const int64_t *kernel, struct cm_error *err,
                                            struct wk_window *ret_window);

/* The same for ConvTranspose, whose `in` is what it reads and `out` what its windows are scattered
 * over: pads follow from output_shape or auto_pad where these are given. */
CM_MUST_CHECK enum cm_err wk_transposed_window_resolve(const struct wk_node *node,
                                                       const struct cm_shape *x,
                                                       const int64_t *kernel, struct cm_error *err,
                                                       struct wk_window *ret_window);

/* Attributes of a node with windows as far as they can be wrong without knowing its inputs: words,
 * bounds, and whether its lists speak of equally many dimensions. */
CM_MUST_CHECK enum cm_err wk_window_check(const struct wk_node *node, struct cm_error *err);

/* How the elements of a QuantizeLinear or DequantizeLinear find their scale: element (o, a, i) of
 * [outer][n][inner] has scale a, or (o, a / block, i) of [outer][blocks][inner] where it is
 * blocked. Per tensor there is one. Shapes are concrete, but x may be anything per tensor. */
struct wk_quant {
    bool per_tensor, blocked;
    int64_t outer, n, inner, block, blocks;
};
CM_MUST_CHECK enum cm_err wk_quant_resolve(const struct wk_node *node, const struct cm_shape *x,
                                           const struct cm_shape *scale, struct cm_error *err,
                                           struct wk_quant *ret_quant);

/* The axis of a DFT as the node gives it; false if it depends on data. */
bool wk_dft_axis(const struct wk_node *node, const struct wk_fact *facts, int64_t *ret_axis);

/* Start, step and length per axis of a Slice whose facts are concrete. */
struct wk_slice {
    int64_t start[CM_MAX_RANK], step[CM_MAX_RANK], length[CM_MAX_RANK];
};
CM_MUST_CHECK enum cm_err wk_slice_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                           struct cm_error *err, struct wk_slice *ret_slice);

/* Begin and end padding per axis of a Pad. */
CM_MUST_CHECK enum cm_err wk_pad_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                         struct cm_error *err, int64_t ret_begin[CM_MAX_RANK],
                                         int64_t ret_end[CM_MAX_RANK]);

/* Which axes a reduction removes, from the attribute or the input. */
CM_MUST_CHECK enum cm_err wk_reduce_axes(const struct wk_node *node, const struct wk_fact *facts,
                                         struct cm_error *err, bool ret_axes[CM_MAX_RANK]);

/* The permutation of a Transpose; reversed axes by default. */
CM_MUST_CHECK enum cm_err wk_transpose_perm(const struct wk_node *node, unsigned rank,
                                            struct cm_error *err, unsigned ret_perm[CM_MAX_RANK]);

/* The shape of an element-wise operator's second operand as broadcasting sees it: its own from
 * opset 7 on, moved to the attribute axis before. CM_INVALID where it does not fit a. */
CM_MUST_CHECK enum cm_err wk_second_shape(const struct wk_node *node, const struct cm_shape *a,
                                          const struct cm_shape *b, struct cm_error *err,
                                          struct cm_shape *ret_shape);

/* The Dropout is known to give its input back, and a mask of ones. */
bool wk_dropout_is_identity(const struct wk_node *node, const struct wk_fact *facts);

/* What an RNN, GRU or LSTM node asks for, from its attributes alone. */
enum wk_activation {
    WK_ACT_RELU,
    WK_ACT_TANH,
    WK_ACT_SIGMOID,
    WK_ACT_AFFINE,
    WK_ACT_LEAKY_RELU,
    WK_ACT_THRESHOLDED_RELU,
    WK_ACT_SCALED_TANH,
    WK_ACT_HARD_SIGMOID,
    WK_ACT_ELU,
    WK_ACT_SOFTSIGN,
    WK_ACT_SOFTPLUS,
    WK_ACT_COUNT
};
struct wk_recurrent {
    unsigned gates;      /* 1, 3 or 4: blocks of hidden rows in W and R */
    unsigned directions; /* 1 or 2 */
    bool reverse;        /* the first direction runs from the end; the second always does */
    bool batch_first;    /* layout 1 */
    bool linear_before_reset, input_forget;
    float clip;     /* INFINITY: none */
    int64_t hidden; /* 0: only R says */
    struct {
        enum wk_activation fn;
        float alpha, beta;
    } act[2][3]; /* by direction; those that the operator lacks are WK_ACT_TANH */
};
CM_MUST_CHECK enum cm_err wk_recurrent_resolve(const struct wk_node *node, struct cm_error *err,
                                               struct wk_recurrent *ret);

/* An axis counted from the back made positive; false outside [-rank, rank - 1]. */
bool wk_axis(int64_t axis, unsigned rank, unsigned *ret_axis);

#endif
