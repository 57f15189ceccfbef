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

/* Takes one field of a message, or skips it. */
typedef enum cm_err take_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                               enum gw_wire_type type, void *target);

/* Every field of a message in turn; anything broken is the client's mistake. */
static enum cm_err walk_fields(struct walk *walk, struct gw_wire message, take_field *take,
                               void *target)
{
    for (;;) {
        uint32_t field;
        enum gw_wire_type type;
        enum cm_err code = gw_wire_next(&message, &field, &type);
        if (code == CM_AGAIN)
            return CM_OK;
        code = code == CM_CORRUPT ? broken(walk, "") : code;
        if (code == CM_OK)
            code = take(walk, &message, field, type, target);
        if (code != CM_OK)
            return code;
    }
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

/* A sub-message of a repeated field, walked into target under the name "field[index]". */
static enum cm_err descend(struct walk *walk, struct gw_wire part, const char *field,
                           unsigned index, take_field *take, void *target)
{
    char path[24];
    snprintf(path, sizeof path, "%s[%u]", field, index);
    walk->path = path;
    enum cm_err code = walk_fields(walk, part, take, target);
    walk->path = "";
    return code;
}

/* What both protocols say of an input in the same fields. */
static enum cm_err take_described(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                  enum gw_wire_type type, struct gw_input *input)
{
    switch (field) {
    case 1:
        return take_text(walk, wire, type, "name", &input->name);
    case 2:
        return take_text(walk, wire, type, "datatype", &input->datatype);
    case 3:
        return take_shape(walk, wire, type, &input->shape);
    default:
        return skip(walk, wire, type);
    }
}

/* An input, whose contents are so as long as no field says otherwise. */
static enum cm_err take_input(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type,
                              enum gw_contents contents, take_field *take)
{
    struct gw_wire part;
    struct gw_input *input = NULL;
    unsigned index = walk->request->n_inputs;
    enum cm_err code = take_part(walk, wire, type, "inputs", &part);
    if (code == CM_OK)
        code = new_input(walk, &input);
    if (code != CM_OK)
        return code;
    input->contents = contents;
    input->data = part;
    input->data.left = 0;
    return descend(walk, part, "inputs", index, take, input);
}

/* ---- ingot.v1 -------------------------------------------------------------------------------- */

static enum cm_err take_tensor_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                     enum gw_wire_type type, void *target)
{
    struct gw_input *input = target;
    return field == 4 ? take_part(walk, wire, type, "data", &input->data)
                      : take_described(walk, wire, field, type, input);
}

static enum cm_err take_ingot_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                    enum gw_wire_type type, void *target)
{
    struct gw_request *request = target;
    struct gw_text *output = NULL;
    enum cm_err code;
    switch (field) {
    case 1:
        return take_text(walk, wire, type, "model", &request->model);
    case 2:
        return take_text(walk, wire, type, "version", &request->version);
    case 3:
        /* Without a data field the tensor has no bytes: what proto3 means by absent. */
        return take_input(walk, wire, type, GW_CONTENTS_RAW, take_tensor_field);
    case 4:
        code = new_output(walk, &output);
        return code == CM_OK ? take_text(walk, wire, type, "outputs", output) : code;
    default:
        return skip(walk, wire, type);
    }
}

enum cm_err gw_parse_ingot(struct gw_wire message, struct gw_request *ret_request,
                           struct cm_error *err)
{
    struct walk walk = {ret_request, err, ""};
    request_init(ret_request);
    return walk_fields(&walk, message, take_ingot_field, ret_request);
}

/* ---- the Open Inference Protocol ------------------------------------------------------------- */

/* One value of an InferParameter, as far as the reserved names need it. */
struct parameter {
    bool is_text, is_number, negative;
    uint64_t number;
    struct gw_text text;
};

static enum cm_err take_value_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                    enum gw_wire_type type, void *target)
{
    struct parameter *value = target;
    if (field == 3) {
        value->is_text = true;
        value->is_number = false;
        return take_text(walk, wire, type, "parameters", &value->text);
    }
    if ((field != 1 && field != 2 && field != 5) || type != GW_WIRE_VARINT)
        return skip(walk, wire, type);
    if (gw_wire_varint(wire, &value->number) != CM_OK)
        return broken(walk, "parameters");
    value->is_number = true;
    value->is_text = false;
    value->negative = field == 2 && (int64_t)value->number < 0;
    return CM_OK;
}

/* A map entry: key and value, in any order, each perhaps absent. */
struct entry {
    struct gw_text key;
    struct parameter value;
};

static enum cm_err take_entry_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                    enum gw_wire_type type, void *target)
{
    struct entry *entry = target;
    struct gw_wire part;
    if (field == 1)
        return take_text(walk, wire, type, "parameters", &entry->key);
    if (field != 2)
        return skip(walk, wire, type);
    enum cm_err code = take_part(walk, wire, type, "parameters", &part);
    if (code != CM_OK)
        return code;
    entry->value = (struct parameter){.text = {"", 0}};
    return walk_fields(walk, part, take_value_field, &entry->value);
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
    struct entry entry = {{"", 0}, {.text = {"", 0}}};
    enum cm_err code = take_part(walk, wire, type, "parameters", &part);
    if (code == CM_OK)
        code = walk_fields(walk, part, take_entry_field, &entry);
    if (code != CM_OK)
        return code;
    return walk->path[0] ? use_tensor_parameter(walk, entry.key)
                         : use_parameter(walk, entry.key, &entry.value);
}

static enum cm_err take_input_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                    enum gw_wire_type type, void *target)
{
    struct gw_input *input = target;
    if (field == 4)
        return take_parameter(walk, wire, type);
    if (field != 5)
        return take_described(walk, wire, field, type, input);
    /* Legal protobuf would merge two of them; nobody sends that on purpose. */
    if (input->contents == GW_CONTENTS_TYPED)
        return cm_fail(walk->err, CM_INVALID, "%s.contents: given twice", walk->path);
    input->contents = GW_CONTENTS_TYPED;
    return take_part(walk, wire, type, "contents", &input->data);
}

static enum cm_err take_output_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                     enum gw_wire_type type, void *target)
{
    if (field == 1)
        return take_text(walk, wire, type, "name", target);
    if (field == 2)
        return take_parameter(walk, wire, type);
    return skip(walk, wire, type);
}

static enum cm_err take_output(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type)
{
    struct gw_wire part;
    struct gw_text *name = NULL;
    unsigned index = walk->request->n_outputs;
    enum cm_err code = take_part(walk, wire, type, "outputs", &part);
    if (code == CM_OK)
        code = new_output(walk, &name);
    return code == CM_OK ? descend(walk, part, "outputs", index, take_output_field, name) : code;
}

static enum cm_err take_raw(struct walk *walk, struct gw_wire *wire, enum gw_wire_type type)
{
    struct gw_request *request = walk->request;
    if (request->n_raw >= CM_MAX_TENSORS)
        return cm_fail(walk->err, CM_INVALID, "raw_input_contents: more than %u", CM_MAX_TENSORS);
    return take_part(walk, wire, type, "raw_input_contents", &request->raw[request->n_raw++]);
}

static enum cm_err take_oip_field(struct walk *walk, struct gw_wire *wire, uint32_t field,
                                  enum gw_wire_type type, void *target)
{
    struct gw_request *request = target;
    enum cm_err code;
    switch (field) {
    case 1:
        return take_text(walk, wire, type, "model_name", &request->model);
    case 2:
        return take_text(walk, wire, type, "model_version", &request->version);
    case 3:
        code = take_text(walk, wire, type, "id", &request->id);
        if (code == CM_OK && request->id.length > GW_ID_MAX)
            code = cm_fail(walk->err, CM_INVALID, "id: longer than %u bytes", GW_ID_MAX);
        return code;
    case 4:
        return take_parameter(walk, wire, type);
    case 5:
        return take_input(walk, wire, type, GW_CONTENTS_NONE, take_input_field);
    case 6:
        return take_output(walk, wire, type);
    case 7:
        return take_raw(walk, wire, type);
    default:
        return skip(walk, wire, type);
    }
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

enum cm_err gw_parse_oip(struct gw_wire message, struct gw_request *ret_request,
                         struct cm_error *err)
{
    struct walk walk = {ret_request, err, ""};
    request_init(ret_request);
    enum cm_err code = walk_fields(&walk, message, take_oip_field, ret_request);
    return code == CM_OK ? pair_raw(&walk) : code;
}
