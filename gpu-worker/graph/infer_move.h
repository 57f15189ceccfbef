/* Shared by the rules of operators that move or describe data (infer_view.c, infer_move.c,
 * infer_slice.c, infer_index.c, infer_resize.c, infer_sample.c) and by the backend's preparation of
 * the same nodes, so that both read a node's operands in one way. See infer.h. */
#ifndef GPU_WORKER_GRAPH_INFER_MOVE_H
#define GPU_WORKER_GRAPH_INFER_MOVE_H

#include "gpu-worker/graph/infer_priv.h"

/* CM_INVALID: the node does not fit an input of this shape. */
enum cm_err infer_bad_shape(struct infer *in, const struct cm_shape *shape);

/* An element that is known, and a dimension as an element and back. dim_of_elem is false for a
 * negative one. */
struct wk_elem infer_known(int64_t v);
struct wk_elem infer_elem_of_dim(int64_t dim, enum wk_rows rows);
bool infer_dim_of_elem(struct wk_elem elem, int64_t *ret);

/* Input k must hold indices: INT64, or INT32 where narrow is allowed. */
enum cm_err infer_check_indices(struct infer *in, unsigned k, bool narrow);

/* Input k, where it is given, must be one element (of any rank). */
enum cm_err infer_check_scalar(struct infer *in, unsigned k);

/* A vector of integers that the node takes as an attribute or, from some opset on, as input k.
 * known: all of it can be read. length: -1 where not even the number of entries is known. */
struct wk_ints {
    bool given, known;
    int64_t length;
    const struct wk_attr *attr;
    const struct wk_fact *input;
};
/* CM_INVALID where the input is not a vector of INT32 or INT64. name may be NULL: no attribute. */
CM_MUST_CHECK enum cm_err wk_ints_read(const struct wk_node *node, const struct wk_fact *facts,
                                       const char *name, unsigned k, struct cm_error *err,
                                       struct wk_ints *ret_ints);
struct wk_elem wk_ints_at(const struct wk_ints *ints, size_t i);

/* Entry i of a fact whose contents are known, as a number: integers exactly up to 2^53 in the
 * double. false where the contents are not known. */
bool wk_fact_number(const struct wk_fact *fact, size_t i, double *ret);
bool wk_fact_integer(const struct wk_fact *fact, size_t i, int64_t *ret);

/* The sizes of the outputs of a Split with a concrete input; sizes has node->n_out entries. */
CM_MUST_CHECK enum cm_err wk_split_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                           struct cm_error *err, unsigned *ret_axis,
                                           int64_t *ret_sizes);

/* start, step and length of a Range whose operands are known. For integer types the numbers are
 * exact in the int64 fields, for the others in the double ones. */
struct wk_range {
    int64_t start, step, length;
    double float_start, float_step;
};
CM_MUST_CHECK enum cm_err wk_range_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                           struct cm_error *err, struct wk_range *ret_range);

/* A Resize or Upsample whose facts are concrete: per axis the size of the output, the factor that
 * coordinates are divided by, and the part of the input (1 is the whole axis) that a crop takes. */
enum wk_resize_mode { WK_RESIZE_NEAREST, WK_RESIZE_LINEAR, WK_RESIZE_CUBIC };
struct wk_resize {
    enum wk_resize_mode mode;
    bool exact; /* every factor is out over in: coordinates need not be divided by a rounded one */
    int64_t out[CM_MAX_RANK];
    double scale[CM_MAX_RANK], roi_start[CM_MAX_RANK], roi_end[CM_MAX_RANK];
};
CM_MUST_CHECK enum cm_err wk_resize_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                            struct cm_error *err, struct wk_resize *ret_resize);

/* Crop and padding per axis of a CenterCropPad: the output takes length elements from start of the
 * input and puts them at offset. */
struct wk_center {
    int64_t start[CM_MAX_RANK], length[CM_MAX_RANK], offset[CM_MAX_RANK];
};
CM_MUST_CHECK enum cm_err wk_center_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                            struct cm_error *err, struct wk_center *ret_center);

/* A Col2Im whose facts are concrete: everything per spatial axis. */
struct wk_col2im {
    unsigned rank;
    int64_t image[CM_MAX_RANK], block[CM_MAX_RANK], stride[CM_MAX_RANK], dilation[CM_MAX_RANK],
        pad_begin[CM_MAX_RANK], positions[CM_MAX_RANK];
};
CM_MUST_CHECK enum cm_err wk_col2im_resolve(const struct wk_node *node, const struct wk_fact *facts,
                                            struct cm_error *err, struct wk_col2im *ret_col2im);

/* The length of a TfIdfVectorizer's rows, from attributes that must agree. */
CM_MUST_CHECK enum cm_err wk_ngrams_resolve(const struct wk_node *node, struct cm_error *err,
                                            int64_t *ret_width);

#endif
