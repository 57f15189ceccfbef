/* Pieces of the loader, shared by load*.c only. */
#ifndef GPU_WORKER_GRAPH_LOAD_PRIV_H
#define GPU_WORKER_GRAPH_LOAD_PRIV_H

#include "gpu-worker/graph/graph.h"
#include "proto/onnx.pb-c.h"

/* A tensor of the file, fully checked: type, dimensions, amount of data. The result lives in the
 * graph's arena; its data is in the unpacked file or, where the file stores wide elements, in the
 * arena. what names the tensor in messages. */
CM_MUST_CHECK enum cm_err wk_load_tensor(struct wk_graph *graph, const Onnx__TensorProto *proto,
                                         const char *what, struct cm_error *err,
                                         const struct wk_const **ret_constant);

/* Attributes of one node against the operator's row. node has everything but attrs. */
CM_MUST_CHECK enum cm_err wk_load_attrs(struct wk_graph *graph, struct wk_node *node,
                                        const struct wk_op_version *version,
                                        const Onnx__NodeProto *proto, struct cm_error *err);

/* The values of its attributes, as far as they can be right or wrong by themselves. */
CM_MUST_CHECK enum cm_err wk_load_check(const struct wk_node *node, struct cm_error *err);

/* The tensor that a Constant node stands for. */
CM_MUST_CHECK enum cm_err wk_load_constant(struct wk_graph *graph, const struct wk_node *node,
                                           struct cm_error *err,
                                           const struct wk_const **ret_constant);

/* Declared inputs and outputs -> names, types and shapes with free dimensions as -1. */
CM_MUST_CHECK enum cm_err wk_load_info(const Onnx__ValueInfoProto *proto, const char *what,
                                       struct cm_error *err, struct wk_tensor_info *ret_info);

/* Brings nodes into an order in which producers come first, and drops what no output needs.
 * CM_INVALID where the graph has a cycle. */
CM_MUST_CHECK enum cm_err wk_load_order(struct wk_graph *graph, struct cm_error *err);

#endif
