/* Attributes of a node, checked against the operator table, and Constant nodes. The owner's thread.
 */
#include "gpu-worker/graph/load_priv.h"

#include "common/check.h"

#include <stdio.h>
#include <string.h>

enum { MAX_LIST = 4096 /* elements of an attribute list */ };

/* The type letter of what the attribute holds; 0 for what no operator here takes. */
static char attr_letter(const Onnx__AttributeProto *proto)
{
    if (proto->has_type && proto->type != ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED) {
        switch (proto->type) {
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT:
            return 'f';
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT:
            return 'i';
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING:
            return 's';
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR:
            return proto->t ? 't' : 0;
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH:
            return proto->g ? 'g' : 0;
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS:
            return 'F';
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS:
            return 'I';
        case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS:
            return 'S';
        default:
            return 0;
        }
    }
    /* Old writers leave the type out; exactly one field then says it. */
    if (proto->has_f)
        return 'f';
    if (proto->has_i)
        return 'i';
    if (proto->has_s)
        return 's';
    if (proto->t)
        return 't';
    if (proto->g)
        return 'g';
    if (proto->n_floats)
        return 'F';
    if (proto->n_ints)
        return 'I';
    return proto->n_strings ? 'S' : 0;
}

static enum cm_err copy_list(struct wk_graph *graph, const void *from, size_t count, size_t size,
                             const void **ret)
{
    void *copy = wk_arena_take(&graph->arena, count, size);
    if (!copy)
        return CM_NOMEM;
    if (count)
        memcpy(copy, from, count * size);
    *ret = copy;
    return CM_OK;
}

static enum cm_err copy_strings(struct wk_graph *graph, const Onnx__AttributeProto *proto,
                                struct wk_attr *ret)
{
    const char **strings = wk_arena_take(&graph->arena, proto->n_strings, sizeof *strings);
    if (!strings)
        return CM_NOMEM;
    for (size_t i = 0; i < proto->n_strings; i++) {
        const ProtobufCBinaryData *from = &proto->strings[i];
        strings[i] = wk_arena_text(&graph->arena, (const char *)from->data, from->len);
        if (!strings[i])
            return CM_NOMEM;
    }
    ret->strings = strings;
    return CM_OK;
}

static enum cm_err copy_attr(struct wk_graph *graph, const struct wk_node *node,
                             const Onnx__AttributeProto *proto, struct cm_error *err,
                             struct wk_attr *ret)
{
    const void *list = NULL;
    enum cm_err code = CM_OK;
    ret->name = wk_arena_text(&graph->arena, proto->name, strlen(proto->name));
    ret->f = proto->f;
    ret->i = proto->i;
    if (!ret->name)
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    if (ret->type == 't') {
        char what[128];
        snprintf(what, sizeof what, "attribute %s of node %u (%s)", ret->name, node->position,
                 wk_op_name(node->op));
        return wk_load_tensor(graph, proto->t, what, err, &ret->tensor);
    }
    if (ret->type == 's') {
        ret->s = wk_arena_text(&graph->arena, (const char *)proto->s.data, proto->s.len);
        code = ret->s ? CM_OK : CM_NOMEM;
    } else if (ret->type == 'I') {
        ret->count = proto->n_ints;
        code = ret->count > MAX_LIST
                   ? CM_LIMIT
                   : copy_list(graph, proto->ints, ret->count, sizeof *ret->ints, &list);
        ret->ints = list;
    } else if (ret->type == 'F') {
        ret->count = proto->n_floats;
        code = ret->count > MAX_LIST
                   ? CM_LIMIT
                   : copy_list(graph, proto->floats, ret->count, sizeof *ret->floats, &list);
        ret->floats = list;
    } else if (ret->type == 'S') {
        ret->count = proto->n_strings;
        code = ret->count > MAX_LIST ? CM_LIMIT : copy_strings(graph, proto, ret);
    }
    if (code != CM_OK)
        return wk_node_fail(err, code, node, "attribute %s: %s", ret->name, cm_err_text(code));
    return CM_OK;
}

enum cm_err wk_load_attrs(struct wk_graph *graph, struct wk_node *node,
                          const struct wk_op_version *version, const Onnx__NodeProto *proto,
                          struct cm_error *err)
{
    char name[64];
    if (proto->n_attribute > WK_MAX_ATTRS)
        return wk_node_fail(err, CM_LIMIT, node, "too many attributes");
    struct wk_attr *attrs = wk_arena_take(&graph->arena, proto->n_attribute, sizeof *attrs);
    if (!attrs)
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    node->attrs = attrs;
    for (size_t i = 0; i < proto->n_attribute; i++) {
        const Onnx__AttributeProto *from = proto->attribute[i];
        const char *text = from->name ? from->name : "";
        wk_printable(text, name, sizeof name);
        if (from->ref_attr_name && from->ref_attr_name[0])
            return wk_node_fail(err, CM_UNSUPPORTED, node, "attribute %s refers to a function's",
                                name);
        char wanted = wk_op_attribute(version, text);
        if (!wanted)
            return wk_node_fail(err, CM_UNSUPPORTED, node, "attribute %s is not supported", name);
        if (wk_node_attr(node, text))
            return wk_node_fail(err, CM_INVALID, node, "attribute %s appears twice", name);
        char type = attr_letter(from);
        /* An empty list has no field to tell its type by. */
        if (type == 0 && !from->has_type && (wanted == 'I' || wanted == 'F' || wanted == 'S'))
            type = wanted;
        if (type != wanted)
            return wk_node_fail(err, CM_INVALID, node, "attribute %s has the wrong type", name);
        attrs[i].type = type;
        enum cm_err code = copy_attr(graph, node, from, err, &attrs[i]);
        if (code != CM_OK)
            return code;
        node->n_attrs++;
    }
    return CM_OK;
}

enum cm_err wk_load_constant(struct wk_graph *graph, const struct wk_node *node,
                             struct cm_error *err, const struct wk_const **ret_constant)
{
    if (node->n_attrs != 1)
        return wk_node_fail(err, CM_INVALID, node, "must have exactly one value attribute");
    const struct wk_attr *attr = &node->attrs[0];
    if (attr->type == 't') {
        *ret_constant = attr->tensor;
        return CM_OK;
    }
    struct wk_const *constant = wk_arena_take(&graph->arena, 1, sizeof *constant);
    if (!constant)
        return wk_node_fail(err, CM_NOMEM, node, "out of memory");
    bool is_list = attr->type == 'I' || attr->type == 'F';
    bool is_int = attr->type == 'i' || attr->type == 'I';
    constant->dtype = is_int ? CM_INT64 : CM_FP32;
    if (is_list) {
        constant->shape = (struct cm_shape){.rank = 1, .dims = {(int64_t)attr->count}};
        constant->data = is_int ? (const void *)attr->ints : attr->floats;
    } else {
        constant->data = is_int ? (const void *)&attr->i : &attr->f;
    }
    constant->bytes = (is_list ? attr->count : 1) * cm_dtype_size(constant->dtype);
    *ret_constant = constant;
    return CM_OK;
}
