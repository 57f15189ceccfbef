/* Parsing infer requests. Pure; any thread. Checks and copies are in tensors.c, answers in
 * answer.c.
 *
 * proto3's rules are kept: of a singular field the last one counts, unknown fields are skipped,
 * packed and unpacked forms are both read. */
#include "gateway/codec.h"

#include "common/check.h"
#include "common/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message being walked: where it is, for error texts, and the request that it fills. */
struct walk {
    struct gw_request *request;
    struct cm_error *err;
    const char *path; /* "inputs[3]" or "" */
};

static enum cm_err broken(const struct walk *walk, const char *field)
{
    return cm_fail(walk->err, CM_INVALID, "%s%s%s: malformed protobuf", walk->path,
                   walk->path[0] && field[0] ? "." : "", field);
}

/* The views of request start empty; its large arrays need no clearing. */
static void request_init(struct gw_request *request)
{
    static const struct gw_text empty = {"", 0};
    request->model = request->version = request->id = empty;
    request->timeout_us = 0;
    request->priority = 0;
    request->n_inputs = request->n_outputs = request->n_raw = 0;
    request->scratch_used = 0;
}

/* A string field as a view: where it lies, or joined in scratch. */
static enum cm_err take_text(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type,
                             const char *field, struct gw_text *ret)
{
    struct gw_wire part;
    if (type != GW_WIRE_BYTES || gw_wire_bytes(wire, &part) != CM_OK)
        return broken(walk, field);
    struct gw_request *request = walk->request;
    size_t length = part.left;
    const char *data = (const char *)gw_wire_peek(&part);
    if (!data) {
        if (length > GW_SCRATCH_BYTES - request->scratch_used)
            return cm_fail(walk->err, CM_INVALID, "%s%s%s: too long", walk->path,
                           walk->path[0] ? "." : "", field);
        char *joined = request->scratch + request->scratch_used;
        enum cm_err code = gw_wire_copy(&part, joined, length);
        CM_ASSERT(code == CM_OK); /* the part knows its length */
        request->scratch_used += length;
        data = joined;
    }
    if (!cm_utf8_valid(data, length))
        return cm_fail(walk->err, CM_INVALID, "%s%s%s: not UTF-8", walk->path,
                       walk->path[0] ? "." : "", field);
    *ret = (struct gw_text){data, length};
    return CM_OK;
}

static enum cm_err add_dim(struct walk *walk, struct cm_shape *shape, uint64_t value)
{
    if (shape->rank >= CM_MAX_RANK)
        return cm_fail(walk->err, CM_INVALID, "%s.shape: more than %d dimensions", walk->path,
                       CM_MAX_RANK);
    shape->dims[shape->rank++] = (int64_t)value;
    return CM_OK;
}

static enum cm_err take_shape(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type,
                              struct cm_shape *shape)
{
    uint64_t value;
    if (type == GW_WIRE_VARINT) {
        if (gw_wire_varint(wire, &value) != CM_OK)
            return broken(walk, "shape");
        return add_dim(walk, shape, value);
    }
    struct gw_wire part;
    if (type != GW_WIRE_BYTES || gw_wire_bytes(wire, &part) != CM_OK)
        return broken(walk, "shape");
    while (part.left > 0) {
        if (gw_wire_varint(&part, &value) != CM_OK)
            return broken(walk, "shape");
        enum cm_err code = add_dim(walk, shape, value);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

static enum cm_err take_part(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type,
                             const char *field, struct gw_wire *ret)
{
    struct gw_wire part;
    if (type != GW_WIRE_BYTES || gw_wire_bytes(wire, &part) != CM_OK)
        return broken(walk, field);
    *ret = part;
    return CM_OK;
}

static enum cm_err skip(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type)
{
    return gw_wire_skip(wire, type) == CM_OK ? CM_OK : broken(walk, "");
}

/* gw_wire_next for loops: CM_AGAIN ends the message, anything broken is the client's mistake. */
static enum cm_err next_field(struct walk *walk, struct gw_wire *wire, uint32_t *ret_field,
                              enum gw_wire_type *ret_type)
{
    enum cm_err code = gw_wire_next(wire, ret_field, ret_type);
    return code == CM_CORRUPT ? broken(walk, "") : code;
}

static enum cm_err new_input(struct walk *walk, struct gw_input **ret)
{
    struct gw_request *request = walk->request;
    if (request->n_inputs >= CM_MAX_TENSORS)
        return cm_fail(walk->err, CM_INVALID, "inputs: more than %u", CM_MAX_TENSORS);
    struct gw_input *input = &request->inputs[request->n_inputs++];
    input->name = input->datatype = (struct gw_text){"", 0};
    input->shape.rank = 0;
    input->contents = GW_CONTENTS_NONE;
    *ret = input;
    return CM_OK;
}

static enum cm_err new_output(struct walk *walk, struct gw_text **ret)
{
    struct gw_request *request = walk->request;
    if (request->n_outputs >= CM_MAX_TENSORS)
        return cm_fail(walk->err, CM_INVALID, "outputs: more than %u", CM_MAX_TENSORS);
    *ret = &request->outputs[request->n_outputs++];
    **ret = (struct gw_text){"", 0};
    return CM_OK;
}

static enum cm_err parse_tensor(struct walk *walk, struct gw_wire part)
{
    struct gw_input *input = NULL;
    enum cm_err code = new_input(walk, &input);
    /* Without a data field the tensor has no bytes: what proto3 means by absent. */
    if (input) {
        input->contents = GW_CONTENTS_RAW;
        input->data = part;
        input->data.left = 0;
    }
    while (code == CM_OK) {
        uint32_t field;
        enum gw_wire_type type;
        code = next_field(walk, &part, &field, &type);
        if (code != CM_OK)
            break;
        switch (field) {
        case 1:
            code = take_text(walk, &part, type, "name", &input->name);
            break;
        case 2:
            code = take_text(walk, &part, type, "datatype", &input->datatype);
            break;
        case 3:
            code = take_shape(walk, &part, type, &input->shape);
            break;
        case 4:
            code = take_part(walk, &part, type, "data", &input->data);
            break;
        default:
            code = skip(walk, &part, type);
        }
    }
    return code == CM_AGAIN ? CM_OK : code;
}

enum cm_err gw_parse_ingot(struct gw_wire message, struct gw_request *ret_request,
                           struct cm_error *err)
{
    struct walk walk = {ret_request, err, ""};
    request_init(ret_request);
    enum cm_err code = CM_OK;
    while (code == CM_OK) {
        uint32_t field;
        enum gw_wire_type type;
        struct gw_wire part;
        struct gw_text *output = NULL;
        char path[24];
        code = next_field(&walk, &message, &field, &type);
        if (code != CM_OK)
            break;
        switch (field) {
        case 1:
            code = take_text(&walk, &message, type, "model", &ret_request->model);
            break;
        case 2:
            code = take_text(&walk, &message, type, "version", &ret_request->version);
            break;
        case 3:
            code = take_part(&walk, &message, type, "inputs", &part);
            if (code != CM_OK)
                break;
            snprintf(path, sizeof path, "inputs[%u]", ret_request->n_inputs);
            walk.path = path;
            code = parse_tensor(&walk, part);
            walk.path = "";
            break;
        case 4:
            code = new_output(&walk, &output);
            if (code == CM_OK)
                code = take_text(&walk, &message, type, "outputs", output);
            break;
        default:
            code = skip(&walk, &message, type);
        }
    }
    return code == CM_AGAIN ? CM_OK : code;
}

/* One value of an InferParameter, as far as the reserved names need it. */
struct parameter {
    bool is_text, is_number, negative;
    uint64_t number;
    struct gw_text text;
};

static enum cm_err parse_parameter(struct walk *walk, struct gw_wire part, struct parameter *ret)
{
    *ret = (struct parameter){.text = {"", 0}};
    for (;;) {
        uint32_t field;
        enum gw_wire_type type;
        enum cm_err code = next_field(walk, &part, &field, &type);
        if (code != CM_OK)
            return code == CM_AGAIN ? CM_OK : code;
        if (field == 3) {
            code = take_text(walk, &part, type, "parameters", &ret->text);
            ret->is_text = true;
            ret->is_number = false;
        } else if ((field == 1 || field == 2 || field == 5) && type == GW_WIRE_VARINT) {
            code =
                gw_wire_varint(&part, &ret->number) == CM_OK ? CM_OK : broken(walk, "parameters");
            ret->is_number = true;
            ret->is_text = false;
            ret->negative = field == 2 && (int64_t)ret->number < 0;
        } else {
            code = skip(walk, &part, type);
        }
        if (code != CM_OK)
            return code;
    }
}

/* A map entry: key and value, in any order, each perhaps absent. */
static enum cm_err parse_entry(struct walk *walk, struct gw_wire part, struct gw_text *ret_key,
                               struct parameter *ret_value)
{
    *ret_key = (struct gw_text){"", 0};
    *ret_value = (struct parameter){.text = {"", 0}};
    for (;;) {
        uint32_t field;
        enum gw_wire_type type;
        struct gw_wire value;
        enum cm_err code = next_field(walk, &part, &field, &type);
        if (code != CM_OK)
            return code == CM_AGAIN ? CM_OK : code;
        if (field == 1) {
            code = take_text(walk, &part, type, "parameters", ret_key);
        } else if (field == 2) {
            code = take_part(walk, &part, type, "parameters", &value);
            if (code == CM_OK)
                code = parse_parameter(walk, value, ret_value);
        } else {
            code = skip(walk, &part, type);
        }
        if (code != CM_OK)
            return code;
    }
}

static bool text_is(struct gw_text text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.data, word, text.length) == 0;
}

/* The request's own parameters: those that mean something here, those that are refused, and all
 * others, which are ignored. */
static enum cm_err use_parameter(struct walk *walk, struct gw_text key,
                                 const struct parameter *value)
{
    struct gw_request *request = walk->request;
    if (text_is(key, "priority")) {
        if (!value->is_number || value->negative || value->number > 255)
            return cm_fail(walk->err, CM_INVALID, "parameters.priority: must be 0 to 255");
        request->priority = (uint8_t)value->number;
    } else if (text_is(key, "timeout")) {
        if (!value->is_number || value->negative)
            return cm_fail(walk->err, CM_INVALID,
                           "parameters.timeout: must be microseconds, not negative");
        request->timeout_us = value->number;
    } else if (text_is(key, "sequence_id")) {
        if (value->number != 0 || value->text.length != 0)
            return cm_fail(walk->err, CM_UNSUPPORTED, "parameters.sequence_id: not supported");
    } else if (key.length >= 7 && memcmp(key.data, "triton_", 7) == 0 &&
               !text_is(key, "triton_enable_empty_final_response")) {
        return cm_fail(walk->err, CM_INVALID,
                       "parameters: names that start with triton_ are "
                       "reserved");
    }
    return CM_OK;
}

/* A tensor's parameters: what would change the meaning of its bytes must not be ignored. */
static enum cm_err use_tensor_parameter(struct walk *walk, struct gw_text key)
{
    static const char *const refused[] = {"shared_memory_region", "shared_memory_offset",
                                          "shared_memory_byte_size", "classification"};
    for (size_t i = 0; i < CM_COUNT_OF(refused); i++)
        if (text_is(key, refused[i]))
            return cm_fail(walk->err, CM_UNSUPPORTED, "%s.parameters.%s: not supported", walk->path,
                           refused[i]);
    return CM_OK;
}

static enum cm_err take_parameter(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type)
{
    struct gw_wire part;
    struct gw_text key;
    struct parameter value;
    enum cm_err code = take_part(walk, wire, type, "parameters", &part);
    if (code == CM_OK)
        code = parse_entry(walk, part, &key, &value);
    if (code != CM_OK)
        return code;
    return walk->path[0] ? use_tensor_parameter(walk, key) : use_parameter(walk, key, &value);
}

static enum cm_err parse_oip_input(struct walk *walk, struct gw_wire part)
{
    struct gw_input *input = NULL;
    enum cm_err code = new_input(walk, &input);
    while (code == CM_OK) {
        uint32_t field;
        enum gw_wire_type type;
        code = next_field(walk, &part, &field, &type);
        if (code != CM_OK)
            break;
        switch (field) {
        case 1:
            code = take_text(walk, &part, type, "name", &input->name);
            break;
        case 2:
            code = take_text(walk, &part, type, "datatype", &input->datatype);
            break;
        case 3:
            code = take_shape(walk, &part, type, &input->shape);
            break;
        case 4:
            code = take_parameter(walk, &part, type);
            break;
        case 5:
            /* Legal protobuf would merge two of them; nobody sends that on purpose. */
            if (input->contents == GW_CONTENTS_TYPED)
                return cm_fail(walk->err, CM_INVALID, "%s.contents: given twice", walk->path);
            code = take_part(walk, &part, type, "contents", &input->data);
            input->contents = GW_CONTENTS_TYPED;
            break;
        default:
            code = skip(walk, &part, type);
        }
    }
    return code == CM_AGAIN ? CM_OK : code;
}

static enum cm_err parse_oip_output(struct walk *walk, struct gw_wire part)
{
    struct gw_text *name = NULL;
    enum cm_err code = new_output(walk, &name);
    while (code == CM_OK) {
        uint32_t field;
        enum gw_wire_type type;
        code = next_field(walk, &part, &field, &type);
        if (code != CM_OK)
            break;
        if (field == 1)
            code = take_text(walk, &part, type, "name", name);
        else if (field == 2)
            code = take_parameter(walk, &part, type);
        else
            code = skip(walk, &part, type);
    }
    return code == CM_AGAIN ? CM_OK : code;
}

/* The raw form: one entry per input, in order, and then no typed contents. */
static enum cm_err pair_raw(struct walk *walk)
{
    struct gw_request *request = walk->request;
    if (request->n_raw == 0)
        return CM_OK;
    if (request->n_raw != request->n_inputs)
        return cm_fail(walk->err, CM_INVALID, "raw_input_contents: %u for %u inputs",
                       request->n_raw, request->n_inputs);
    for (uint32_t i = 0; i < request->n_inputs; i++) {
        if (request->inputs[i].contents == GW_CONTENTS_TYPED)
            return cm_fail(walk->err, CM_INVALID,
                           "inputs[%u].contents: given together with raw_input_contents", i);
        request->inputs[i].contents = GW_CONTENTS_RAW;
        request->inputs[i].data = request->raw[i];
    }
    return CM_OK;
}

/* A sub-message of a repeated field, walked under the name "field[index]". */
static enum cm_err descend(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type,
                           uint32_t field)
{
    const char *name = field == 5 ? "inputs" : "outputs";
    struct gw_request *request = walk->request;
    struct gw_wire part;
    enum cm_err code = take_part(walk, wire, type, name, &part);
    if (code != CM_OK)
        return code;
    char path[24];
    snprintf(path, sizeof path, "%s[%u]", name,
             field == 5 ? request->n_inputs : request->n_outputs);
    walk->path = path;
    code = field == 5 ? parse_oip_input(walk, part) : parse_oip_output(walk, part);
    walk->path = "";
    return code;
}

static enum cm_err take_raw(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type)
{
    struct gw_request *request = walk->request;
    if (request->n_raw >= CM_MAX_TENSORS)
        return cm_fail(walk->err, CM_INVALID, "raw_input_contents: more than %u", CM_MAX_TENSORS);
    return take_part(walk, wire, type, "raw_input_contents", &request->raw[request->n_raw++]);
}

enum cm_err gw_parse_oip(struct gw_wire message, struct gw_request *ret_request,
                         struct cm_error *err)
{
    struct walk walk = {ret_request, err, ""};
    request_init(ret_request);
    enum cm_err code = CM_OK;
    while (code == CM_OK) {
        uint32_t field;
        enum gw_wire_type type;
        code = next_field(&walk, &message, &field, &type);
        if (code != CM_OK)
            break;
        switch (field) {
        case 1:
            code = take_text(&walk, &message, type, "model_name", &ret_request->model);
            break;
        case 2:
            code = take_text(&walk, &message, type, "model_version", &ret_request->version);
            break;
        case 3:
            code = take_text(&walk, &message, type, "id", &ret_request->id);
            if (code == CM_OK && ret_request->id.length > GW_ID_MAX)
                code = cm_fail(err, CM_INVALID, "id: longer than %u bytes", GW_ID_MAX);
            break;
        case 4:
            code = take_parameter(&walk, &message, type);
            break;
        case 5:
        case 6:
            code = descend(&walk, &message, type, field);
            break;
        case 7:
            code = take_raw(&walk, &message, type);
            break;
        default:
            code = skip(&walk, &message, type);
        }
    }
    return code == CM_AGAIN ? pair_raw(&walk) : code;
}
