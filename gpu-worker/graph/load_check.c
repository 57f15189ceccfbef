/* What the values of a node's attributes must be, whatever its inputs are. Shape rules rely on it.
 *
 * Without this a wrong word or number would only be found where a rule has come to know ranks and
 * dimensions, which for some nodes is in the run. The owner's thread. */
#include "gpu-worker/graph/load_priv.h"

#include "common/check.h"
#include "gpu-worker/graph/einsum.h"
#include "gpu-worker/graph/infer_move.h"

#include <stdio.h>
#include <string.h>

enum { ANY = WK_OP_COUNT, LAST = WK_MAX_OPSET };

/* Text attributes: one of the words. A missing one has ONNX's default, if it has any. */
static const struct {
    unsigned op;
    int32_t first, last; /* opsets */
    const char *attr, *words;
    bool required;
} texts[] = {
    {WK_OP_BitShift, 1, LAST, "direction", "LEFT RIGHT", true},
    {WK_OP_DepthToSpace, 1, LAST, "mode", "DCR CRD", false},
    {WK_OP_Gelu, 1, LAST, "approximate", "none tanh", false},
    {WK_OP_GridSample, 1, 19, "mode", "bilinear nearest bicubic", false},
    /* The old names are still met in files. */
    {WK_OP_GridSample, 20, LAST, "mode", "linear nearest cubic bilinear bicubic", false},
    {WK_OP_GridSample, 1, LAST, "padding_mode", "zeros border reflection", false},
    {WK_OP_NegativeLogLikelihoodLoss, 1, LAST, "reduction", "none mean sum", false},
    {WK_OP_Pad, 1, 18, "mode", "constant reflect edge", false},
    {WK_OP_Pad, 19, LAST, "mode", "constant reflect edge wrap", false},
    /* "bilinear" is how Upsample 7 was first written; exporters of the time used both. */
    {WK_OP_Resize, 1, 10, "mode", "nearest linear bilinear", false},
    {WK_OP_Resize, 11, LAST, "mode", "nearest linear cubic", false},
    {WK_OP_Resize, 1, LAST, "coordinate_transformation_mode",
     "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
     "tf_half_pixel_for_nn tf_crop_and_resize",
     false},
    {WK_OP_Resize, 1, LAST, "nearest_mode", "round_prefer_floor round_prefer_ceil floor ceil",
     false},
    {WK_OP_Resize, 1, LAST, "keep_aspect_ratio_policy", "stretch not_larger not_smaller", false},
    {WK_OP_RoiAlign, 1, LAST, "mode", "avg max", false},
    {WK_OP_RoiAlign, 1, LAST, "coordinate_transformation_mode", "half_pixel output_half_pixel",
     false},
    {WK_OP_ScatterElements, 1, 17, "reduction", "none add mul", false},
    {WK_OP_ScatterElements, 18, LAST, "reduction", "none add mul min max", false},
    {WK_OP_ScatterND, 1, 17, "reduction", "none add mul", false},
    {WK_OP_ScatterND, 18, LAST, "reduction", "none add mul min max", false},
    {WK_OP_SoftmaxCrossEntropyLoss, 1, LAST, "reduction", "none mean sum", false},
    {WK_OP_TfIdfVectorizer, 1, LAST, "mode", "TF IDF TFIDF", true},
    {WK_OP_Upsample, 1, LAST, "mode", "nearest linear bilinear", false},
};

/* Integers, alone or in a list of at most `most_entries`: within bounds. An axis may be named from
 * the back; Flatten and the like take one behind the last. */
static const struct {
    unsigned op;
    const char *attr;
    int64_t least, most;
    unsigned most_entries; /* 0: any number of them */
} numbers[] = {
    {ANY, "axes", -CM_MAX_RANK, CM_MAX_RANK - 1, CM_MAX_RANK},
    {ANY, "axis", -CM_MAX_RANK, CM_MAX_RANK, 1},
    {ANY, "batch_axis", 0, 1, 1},
    {ANY, "batch_dims", 0, CM_MAX_RANK - 1, 1},
    {ANY, "block_size", 0, WK_MAX_DIM, 1},
    {ANY, "blocksize", 1, 32768, 1},
    {ANY, "center_point_box", 0, 1, 1},
    {ANY, "directions", 0, 1, 0},
    {ANY, "num_groups", 1, WK_MAX_DIM, 1},
    {ANY, "num_outputs", 1, WK_MAX_NODE_IO, 1},
    {ANY, "num_scan_inputs", 1, WK_MAX_NODE_IO, 1},
    {ANY, "output_height", 1, WK_MAX_DIM, 1},
    {ANY, "output_width", 1, WK_MAX_DIM, 1},
    {ANY, "perm", 0, CM_MAX_RANK - 1, CM_MAX_RANK},
    {ANY, "pooled_shape", 1, WK_MAX_DIM, 2},
    {ANY, "sample_size", 0, WK_MAX_DIM, 1},
    {ANY, "sampling_ratio", 0, 1024, 1},
    {ANY, "scan_input_axes", -CM_MAX_RANK, CM_MAX_RANK - 1, 0},
    {ANY, "scan_input_directions", 0, 1, 0},
    {ANY, "scan_output_axes", -CM_MAX_RANK, CM_MAX_RANK - 1, 0},
    {ANY, "scan_output_directions", 0, 1, 0},
    {ANY, "storage_order", 0, 1, 1},
    {ANY, "time_axis", 0, 1, 1},
    {WK_OP_Col2Im, "dilations", 1, WK_MAX_DIM, CM_MAX_RANK - 2},
    {WK_OP_Col2Im, "pads", 0, WK_MAX_DIM, 2 * (CM_MAX_RANK - 2)},
    {WK_OP_Col2Im, "strides", 1, WK_MAX_DIM, CM_MAX_RANK - 2},
    {WK_OP_GlobalLpPool, "p", 1, INT64_MAX, 1},
    {WK_OP_LRN, "size", 1, INT64_MAX, 1},
    {WK_OP_LpNormalization, "p", 1, 2, 1},
    {WK_OP_Pad, "pads", -WK_MAX_DIM, WK_MAX_DIM, 2 * CM_MAX_RANK},
    {WK_OP_RandomNormal, "shape", 0, WK_MAX_DIM, CM_MAX_RANK},
    {WK_OP_RandomUniform, "shape", 0, WK_MAX_DIM, CM_MAX_RANK},
    {WK_OP_Split, "split", 0, WK_MAX_DIM, WK_MAX_NODE_IO},
    {WK_OP_TopK, "k", 0, WK_MAX_DIM, 1},
};

/* Integers that are ONNX's number of a type. */
static const char *const types[] = {"dtype", "output_datatype", "to"};

/* ---- one attribute --------------------------------------------------------------------------- */

static bool is_one_of(const char *given, const char *words)
{
    size_t length = strlen(given);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && memcmp(at, given, length) == 0)
            return true;
    return false;
}

/* "a b c" as "a, b or c". */
static const char *spell(const char *words, char *buffer, size_t size)
{
    size_t used = 0;
    for (const char *at = words; *at && used < size;) {
        size_t length = strcspn(at, " ");
        const char *next = at + length + (at[length] == ' ');
        bool last = !*next, before_last = !last && !next[strcspn(next, " ")];
        used += (size_t)snprintf(buffer + used, size - used, "%.*s%s", (int)length, at,
                                 last          ? ""
                                 : before_last ? " or "
                                               : ", ");
        at = next;
    }
    return buffer;
}

static enum cm_err check_texts(const struct wk_node *node, struct cm_error *err)
{
    char words[256], given[48];
    for (size_t i = 0; i < CM_COUNT_OF(texts); i++) {
        if (texts[i].op != (unsigned)node->op || node->opset < texts[i].first ||
            node->opset > texts[i].last)
            continue;
        const struct wk_attr *attr = wk_node_attr(node, texts[i].attr);
        if (!attr && texts[i].required)
            return wk_node_fail(err, CM_INVALID, node, "%s is missing: must be %s", texts[i].attr,
                                spell(texts[i].words, words, sizeof words));
        if (attr && !is_one_of(attr->s, texts[i].words))
            return wk_node_fail(err, CM_INVALID, node, "%s must be %s, not \"%s\"", texts[i].attr,
                                spell(texts[i].words, words, sizeof words),
                                wk_printable(attr->s, given, sizeof given));
    }
    return CM_OK;
}

static enum cm_err check_numbers(const struct wk_node *node, const struct wk_attr *attr, size_t row,
                                 struct cm_error *err)
{
    size_t count = attr->type == 'i' ? 1 : attr->count;
    const int64_t *values = attr->type == 'i' ? &attr->i : attr->ints;
    if (numbers[row].most_entries && count > numbers[row].most_entries)
        return wk_node_fail(err, CM_INVALID, node, "%s has %zu entries, at most %u are possible",
                            attr->name, count, numbers[row].most_entries);
    for (size_t i = 0; i < count; i++)
        if (values[i] < numbers[row].least || values[i] > numbers[row].most)
            return wk_node_fail(err, CM_INVALID, node, "%s %lld is not between %lld and %lld",
                                attr->name, (long long)values[i], (long long)numbers[row].least,
                                (long long)numbers[row].most);
    for (size_t i = 0; strcmp(attr->name, "axes") == 0 && i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (values[i] == values[k])
                return wk_node_fail(err, CM_INVALID, node, "axis %lld is repeated",
                                    (long long)values[i]);
    return CM_OK;
}

static enum cm_err check_attr(const struct wk_node *node, const struct wk_attr *attr,
                              struct cm_error *err)
{
    if (attr->type != 'i' && attr->type != 'I')
        return CM_OK;
    for (size_t i = 0; i < CM_COUNT_OF(types); i++)
        if (strcmp(attr->name, types[i]) == 0 &&
            (attr->i < 0 || attr->i > INT32_MAX ||
             cm_dtype_from_onnx((int32_t)attr->i) == CM_DTYPE_NONE))
            return wk_node_fail(err, CM_UNSUPPORTED, node, "%s = %lld is not supported", attr->name,
                                (long long)attr->i);
    for (size_t i = 0; i < CM_COUNT_OF(numbers); i++)
        if ((numbers[i].op == ANY || numbers[i].op == (unsigned)node->op) &&
            strcmp(attr->name, numbers[i].attr) == 0)
            return check_numbers(node, attr, i, err);
    return CM_OK;
}

/* ---- attributes among themselves ------------------------------------------------------------- */

static enum cm_err check_slice(const struct wk_node *node, struct cm_error *err)
{
    const struct wk_attr *starts = wk_node_attr(node, "starts"), *ends = wk_node_attr(node, "ends");
    const struct wk_attr *axes = wk_node_attr(node, "axes");
    if (node->opset < 10 && (!starts || !ends || starts->count != ends->count ||
                             (axes && axes->count != starts->count)))
        return wk_node_fail(err, CM_INVALID, node, "starts, ends, axes and steps do not fit");
    return CM_OK;
}

/* What several attributes of an operator say together, by the code that reads them later. */
static enum cm_err check_together(const struct wk_node *node, struct cm_error *err)
{
    const struct wk_attr *perm = wk_node_attr(node, "perm");
    struct wk_recurrent recurrent;
    unsigned order[CM_MAX_RANK];
    int64_t width;
    switch (node->op) {
    case WK_OP_AveragePool:
    case WK_OP_Conv:
    case WK_OP_ConvInteger:
    case WK_OP_ConvTranspose:
    case WK_OP_LpPool:
    case WK_OP_MaxPool:
    case WK_OP_MaxUnpool:
    case WK_OP_QLinearConv:
        return wk_window_check(node, err);
    case WK_OP_Einsum:
        return wk_einsum_check(node, err);
    case WK_OP_GRU:
    case WK_OP_LSTM:
    case WK_OP_RNN:
        return wk_recurrent_resolve(node, err, &recurrent);
    case WK_OP_Slice:
        return check_slice(node, err);
    case WK_OP_TfIdfVectorizer:
        return wk_ngrams_resolve(node, err, &width);
    case WK_OP_Transpose:
        return perm ? wk_transpose_perm(node, (unsigned)perm->count, err, order) : CM_OK;
    default:
        return CM_OK;
    }
}

enum cm_err wk_load_check(const struct wk_node *node, struct cm_error *err)
{
    enum cm_err code = check_texts(node, err);
    for (unsigned i = 0; i < node->n_attrs && code == CM_OK; i++)
        code = check_attr(node, &node->attrs[i], err);
    return code == CM_OK ? check_together(node, err) : code;
}
