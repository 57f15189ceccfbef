/* The graph of a model: values, nodes, constants, and what is known about each value.
 *
 * Built once by graph/load.c from a checked file and then read-only; belongs to the thread that
 * owns the model. Nothing here runs kernels or knows a backend. */
#ifndef GPU_WORKER_GRAPH_GRAPH_H
#define GPU_WORKER_GRAPH_GRAPH_H

#include "common/err.h"
#include "common/tensor.h"
#include "gpu-worker/engine.h"
#include "gpu-worker/graph/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of one graph; what exceeds them is refused at load. */
#define WK_MAX_NODES       65536
#define WK_MAX_VALUES      262144
#define WK_MAX_NODE_IO     1024
#define WK_MAX_ATTRS       64
#define WK_MAX_CAPTURES    8192       /* of one subgraph */
#define WK_MAX_SUBGRAPHS   4096       /* of a model, at all depths */
#define WK_MAX_TRACKED     1024       /* elements of a value known at plan time */
#define WK_MAX_TRACKED_SUM (1u << 24) /* of all of a graph's values: 256 MB */
#ifdef INGOT_SMALL_LIMITS             /* for fuzzing: time is better spent than on large tensors */
#define WK_MAX_TRIPS        1000      /* of one Loop or Scan */
#define WK_MAX_TENSOR_BYTES ((size_t)1 << 20)
#else
#define WK_MAX_TRIPS        1000000           /* of one Loop or Scan */
#define WK_MAX_TENSOR_BYTES ((size_t)1 << 30) /* of one tensor in a plan */
#endif
#define WK_MAX_DIM          ((int64_t)1 << 30) /* also beside a dimension that is 0 */
#define WK_MAX_PLAN_BYTES   ((size_t)4 << 30)  /* of a plan's scratch memory */
#define WK_MAX_TABLE_BYTES  ((size_t)2 << 30)  /* of a plan's steps and their tables */
#define WK_MAX_WEIGHT_BYTES ((size_t)8 << 30)  /* of a model's packed weights */
#define WK_MIN_OPSET        1 /* below 6: the few operators that have not changed since */
#define WK_MAX_OPSET        21

enum wk_op {
#define OP(name, rule, traits, note) WK_OP_##name,
#define VER(name, first, last, min_in, max_in, max_out, attributes)
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
    WK_OP_COUNT
};

/* One interface of an operator: a VER row of ops.inc. */
struct wk_op_version {
    enum wk_op op;
    uint16_t first, last;
    uint16_t min_in, max_in, max_out;
    const char *attributes;
};

/* Traits of an operator, a word of these: see ops.inc. The last static bit stands for all operands
 * from there on. */
#define WK_STATIC_BITS    16u
#define WK_STATIC(k)      (1u << (k))
#define WK_STATIC_FROM(k) (0xffffu & ~((1u << (k)) - 1u))
#define WK_VIEW           (1u << 16)
#define WK_SHAPE_ONLY     (1u << 17) /* static operands' contents do not matter either */
uint32_t wk_op_traits(enum wk_op op);

/* ONNX's name of an operator; the reverse gives WK_OP_COUNT for a name outside the table. */
const char *wk_op_name(enum wk_op op);
enum wk_op wk_op_from_name(const char *name);

/* The row for an operator in an opset; NULL if there is none. */
const struct wk_op_version *wk_op_version(enum wk_op op, int64_t opset);

/* The attribute's type letter in that row; 0 if the row does not list it. */
char wk_op_attribute(const struct wk_op_version *version, const char *name);

/* The table as text, one operator per line. Static storage. */
const char *wk_ops_text(void);

/* A constant tensor. data of up to WK_SMALL_CONST_BYTES is valid for the graph's life, larger data
 * until wk_graph_drop_proto. */
#define WK_SMALL_CONST_BYTES 8192
struct wk_const {
    enum cm_dtype dtype;
    struct cm_shape shape;
    const void *data;
    size_t bytes;
};

struct wk_attr {
    const char *name;
    char type; /* as in ops.inc */
    float f;
    int64_t i;
    const char *s;
    size_t count; /* of ints, floats or strings */
    const int64_t *ints;
    const float *floats;
    const char *const *strings;
    const struct wk_const *tensor;
    struct wk_graph *graph;
    uint32_t first_capture; /* graph: where its captured values start among the node's inputs */
};

struct wk_node;

/* An element-wise operator that runs on a node's output as it is made (graph/passes/activation.c).
 * With stages, a node's outputs are those of the last one; they all have the shape that the node's
 * own operator gives. */
struct wk_stage {
    const struct wk_node *node; /* as it stood in the graph: operator, attributes, constants */
    uint16_t operand;           /* which input of the host is its other operand; 0: it has none */
    bool reversed;              /* that operand is the left one */
};
#define WK_MAX_STAGES 8

/* What a pass has made of an operator that ONNX's does not say. */
enum wk_form {
    WK_FORM_OWN = 0, /* nothing */
    WK_FORM_VIEW,    /* Transpose: no byte moves */
    WK_FORM_GATE,    /* Sigmoid, HardSigmoid: y = x * op(x) */
    WK_FORM_SIX,     /* HardSwish: y = (x * clip(x + 3, 0, 6)) / 6 */
    WK_FORM_BY_SIX,  /* HardSwish: y = x * (clip(x + 3, 0, 6) / 6) */
};

/* A node with subgraphs (If, Loop, Scan) has the values that they take from outside as further
 * inputs behind its own, subgraph by subgraph. */
struct wk_node {
    enum wk_op op;
    uint32_t position; /* in the file, from 0; for messages */
    int32_t opset;
    const char *name; /* may be "" */
    uint16_t n_in, n_out, n_attrs;
    uint16_t n_given;   /* inputs as the file lists them; n_in counts captured values too */
    const int32_t *in;  /* value indices; -1 for an input that is left out */
    const int32_t *out; /* value indices; -1 for an output that is not wanted */
    const struct wk_attr *attrs;
    enum wk_form form;
    uint16_t n_own; /* with stages: inputs of the operator itself; stages have those after them */
    uint16_t n_stages;
    const struct wk_stage *stages;
    /* At load not even the ranks of its inputs were known, so its constants were not checked
     * against them: they are stored plain and are operands like others. */
    bool loose;
};

/* Inputs of the node's own operator. */
static inline unsigned wk_node_own_inputs(const struct wk_node *node)
{
    return node->n_stages ? node->n_own : node->n_in;
}

/* One name of the graph. Exactly one of input, constant and producer is set (not -1, not NULL). */
struct wk_value {
    const char *name;
    int32_t input;    /* index into the signature's inputs, or -1 */
    int32_t producer; /* node index, or -1 */
    const struct wk_const *constant;
};

/* Dimensions while shapes are still symbolic (at load). Concrete facts have neither. */
#define WK_DIM_ANY   (-1) /* not known */
#define WK_DIM_BATCH (-2) /* exactly the batch size, whatever that is */

/* One element of a value whose contents are known before the run. */
enum wk_elem_kind {
    WK_ELEM_KNOWN = 0,
    WK_ELEM_BATCH, /* exactly the batch size */
    WK_ELEM_ANY,   /* fixed by the input shapes without the batch, not known yet */
    WK_ELEM_MIXED, /* depends on the batch size in another way */
};
struct wk_elem {
    enum wk_elem_kind kind;
    int64_t v; /* if known */
};

/* How a value relates to the batch; filled at load only (graph/batch.c). */
enum wk_rows {
    WK_ROWS_FREE = 0, /* does not depend on the batch's size or rows */
    WK_ROWS_ROWS,     /* one axis is the batch; row i depends on row i of the inputs only */
    WK_ROWS_SIZE,  /* an integer vector that knows the batch only as whole WK_ELEM_BATCH elements */
    WK_ROWS_MIXED, /* none of these could be proven */
};

/* What is known about one value: with symbolic dimensions at load, concrete in a plan. */
struct wk_fact {
    enum cm_dtype dtype;
    struct cm_shape shape;
    enum wk_rows rows;
    bool unranked; /* not even the rank is known before the run; shape is then empty */
    uint32_t n_elems;
    const struct wk_elem *elems; /* NULL: contents are known only at run time */
    /* Dense contents where they are known before the run (small constants, what was evaluated from
     * them), else NULL; valid as long as the fact. */
    const void *data;
};

struct wk_weights;

/* A model's graph, or a subgraph of a node of it. The inputs of a subgraph are its formal ones and
 * then those that it captures from outside; constants from outside are constants in it too. */
struct wk_graph {
    struct wk_arena arena;
    uint32_t n_values, n_nodes, n_inputs, n_outputs;
    uint32_t n_formal;          /* of n_inputs */
    struct wk_graph *child;     /* all subgraphs of all nodes, deepest ones with their parents */
    struct wk_graph *sibling;   /* the next of the parent's */
    struct wk_weights *weights; /* set by wk_weights_lay_out */
    struct wk_value *values;
    struct wk_node *nodes; /* in an order in which producers come first; dead ones are gone */
    int32_t *inputs;       /* value of each signature input */
    int32_t *outputs;      /* value of each signature output */
    struct wk_fact *facts; /* symbolic, one per value */
    int32_t *roots;        /* per value: where its bytes are, followed back through views */
    struct wk_tensor_info *input_info, *output_info; /* as declared in the file; not of subgraphs */
    void *proto; /* unpacked file that constants point into; see wk_graph_drop_proto */
    struct wk_arena load_arena; /* data of large constants that passes made; goes with proto */
    /* Files beside the model that constants point into; NULL where it comes without a folder. Goes
     * with proto. A subgraph's is its model's. */
    struct wk_external *external;
};

/* File bytes -> graph with symbolic facts. options may be NULL. The graph must be zeroed; on
 * failure it is zeroed again. bytes may be freed afterwards. Errors as wk_model_parse. */
CM_MUST_CHECK enum cm_err wk_graph_load(struct wk_graph *graph, const void *bytes, size_t length,
                                        const struct wk_load_options *options,
                                        struct cm_error *err);
/* Roots and symbolic facts from values and nodes alone: once after loading, and again whenever a
 * pass has changed the graph. Errors as wk_model_parse. */
CM_MUST_CHECK enum cm_err wk_graph_settle(struct wk_graph *graph, struct cm_error *err);
/* Constants' data goes away; everything else stays. */
void wk_graph_drop_proto(struct wk_graph *graph);
void wk_graph_fini(struct wk_graph *graph);

/* Attributes with their defaults; types were checked at load. NULL where the node has none. */
const struct wk_attr *wk_node_attr(const struct wk_node *node, const char *name);
int64_t wk_node_int(const struct wk_node *node, const char *name, int64_t otherwise);
float wk_node_float(const struct wk_node *node, const char *name, float otherwise);
const char *wk_node_string(const struct wk_node *node, const char *name, const char *otherwise);

/* The node runs subgraphs. */
bool wk_node_has_graphs(const struct wk_node *node);

/* No dimension is above WK_MAX_DIM. An empty tensor may have any others by its bytes alone; sums
 * and windows over dimensions rely on this not to overflow. */
bool wk_dims_fit(const struct cm_shape *shape);

/* cm_fail with the node in front: `node "conv1" (Conv, opset 13): ...`. Names are made printable.
 */
enum cm_err wk_node_fail(struct cm_error *err, enum cm_err code, const struct wk_node *node,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* A name from a file made fit for a message: printable ASCII, cut to size. Returns buffer. */
const char *wk_printable(const char *name, char *buffer, size_t size);

#endif
