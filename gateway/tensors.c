/* An infer request against its model's signature, and its tensors' one copy. Pure; any thread. */
#include "gateway/codec.h"

#include "common/check.h"
#include "gateway/context.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool text_is(struct gw_text text, const char *word)
{
    return text.length == strlen(word) && memcmp(text.data, word, text.length) == 0;
}

/* A client's own word for a message: " 'word'", or nothing if it is long or no plain word. */
#define SHOWN_MAX 64

static const char *shown(struct gw_text text, char buffer[SHOWN_MAX + 4])
{
    buffer[0] = 0;
    if (text.length <= SHOWN_MAX && gw_word_valid(text.data, text.length))
        snprintf(buffer, SHOWN_MAX + 4, " '%.*s'", (int)text.length, text.data);
    return buffer;
}

static enum cm_err check_shape(const struct gw_input *input, unsigned index,
                               const struct gw_model *model, const struct gw_tensor_info *info,
                               struct cm_error *err)
{
    bool fits = input->shape.rank == info->shape.rank;
    for (unsigned i = 0; fits && i < info->shape.rank; i++) {
        int64_t have = input->shape.dims[i], want = info->shape.dims[i];
        bool batch = i == 0 && model->batchable;
        fits = want < 0 || batch ? have > 0 : have == want;
    }
    if (fits)
        return CM_OK;
    char have[192], want[192];
    return cm_fail(err, CM_INVALID, "inputs[%u] '%s': shape %s does not fit %s", index, info->name,
                   cm_shape_format(&input->shape, have, sizeof have),
                   gw_model_shape_format(model, info, want, sizeof want));
}

/* Bytes of the tensor; its contents are in one of the two forms and can be as long as they must. */
static enum cm_err check_size(const struct gw_input *input, unsigned index,
                              const struct gw_tensor_info *info, struct cm_error *err,
                              size_t *ret_bytes)
{
    size_t bytes;
    if (cm_shape_bytes(&input->shape, info->dtype, &bytes) != CM_OK)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': the shape's size overflows", index,
                       info->name);
    size_t count = bytes / cm_dtype_size(info->dtype);
    if (input->contents == GW_CONTENTS_NONE && bytes > 0)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': no contents", index, info->name);
    if (input->contents == GW_CONTENTS_RAW && input->data.left != bytes)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': %zu bytes for a shape of %zu", index,
                       info->name, input->data.left, bytes);
    /* A typed element takes a byte at least: a small message cannot ask for much memory. */
    if (input->contents == GW_CONTENTS_TYPED && input->data.left < count)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': contents are too short for the shape",
                       index, info->name);
    *ret_bytes = bytes;
    return CM_OK;
}

static enum cm_err check_input(const struct gw_input *input, unsigned index,
                               const struct gw_model *model, const struct gw_tensor_info *info,
                               struct cm_error *err)
{
    char word[SHOWN_MAX + 4];
    if (text_is(input->datatype, "BYTES"))
        return cm_fail(err, CM_INVALID,
                       "inputs[%u] '%s': datatype BYTES is not supported (no string tensors)",
                       index, info->name);
    enum cm_dtype dtype = cm_dtype_from_name(input->datatype.data, input->datatype.length);
    if (dtype == CM_DTYPE_NONE)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': unknown datatype%s", index, info->name,
                       shown(input->datatype, word));
    if (dtype != info->dtype)
        return cm_fail(err, CM_INVALID, "inputs[%u] '%s': datatype %s, the model wants %s", index,
                       info->name, cm_dtype_name(dtype), cm_dtype_name(info->dtype));
    return check_shape(input, index, model, info, err);
}

static int find_info(const struct gw_tensor_info *infos, unsigned count, struct gw_text name)
{
    for (unsigned i = 0; i < count; i++)
        if (text_is(name, infos[i].name))
            return (int)i;
    return -1;
}

/* Which request input is which of the model's: each exactly once. */
static enum cm_err match_inputs(const struct gw_request *request, const struct gw_model *model,
                                struct cm_error *err, struct gw_plan *plan)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < request->n_inputs; i++) {
        char word[SHOWN_MAX + 4];
        struct gw_text name = request->inputs[i].name;
        int at = find_info(model->inputs, model->n_inputs, name);
        if (at < 0)
            return cm_fail(err, CM_INVALID, "inputs[%u]: model '%s' has no such input%s", i,
                           model->name, shown(name, word));
        if (seen & 1u << at)
            return cm_fail(err, CM_INVALID, "inputs[%u]: '%s' is given twice", i,
                           model->inputs[at].name);
        seen |= 1u << at;
        plan->source[at] = (uint8_t)i;
    }
    for (unsigned i = 0; i < model->n_inputs; i++)
        if (!(seen & 1u << i))
            return cm_fail(err, CM_INVALID, "inputs: '%s' is missing", model->inputs[i].name);
    return CM_OK;
}

static enum cm_err match_outputs(const struct gw_request *request, const struct gw_model *model,
                                 struct cm_error *err, struct gw_plan *plan)
{
    plan->output_mask = 0;
    plan->n_outputs = 0;
    for (uint32_t i = 0; i < request->n_outputs; i++) {
        char word[SHOWN_MAX + 4];
        struct gw_text name = request->outputs[i];
        int at = find_info(model->outputs, model->n_outputs, name);
        if (at < 0)
            return cm_fail(err, CM_INVALID, "outputs[%u]: model '%s' has no such output%s", i,
                           model->name, shown(name, word));
        if (plan->output_mask & 1ull << at)
            return cm_fail(err, CM_INVALID, "outputs[%u]: '%s' is given twice", i,
                           model->outputs[at].name);
        plan->output_mask |= 1ull << at;
        plan->order[plan->n_outputs++] = (uint8_t)at;
    }
    if (request->n_outputs > 0)
        return CM_OK;
    for (uint8_t i = 0; i < model->n_outputs; i++)
        plan->order[plan->n_outputs++] = i;
    plan->output_mask = (1ull << model->n_outputs) - 1;
    return CM_OK;
}

/* The batch dimension: equal in all inputs, within the model's limit. */
static enum cm_err take_rows(const struct gw_input *input, unsigned index,
                             const struct gw_model *model, struct cm_error *err,
                             struct gw_plan *plan)
{
    if (!model->batchable || input->shape.rank == 0)
        return CM_OK;
    int64_t rows = input->shape.dims[0];
    if (rows > model->max_batch_size)
        return cm_fail(err, CM_INVALID, "inputs[%u]: %" PRId64 " rows, the model takes at most %u",
                       index, rows, model->max_batch_size);
    if (plan->rows != 0 && plan->rows != (uint32_t)rows)
        return cm_fail(err, CM_INVALID, "inputs[%u]: %" PRId64 " rows, another input has %u", index,
                       rows, plan->rows);
    plan->rows = (uint32_t)rows;
    return CM_OK;
}

enum cm_err gw_request_check(const struct gw_request *request, const struct gw_model *model,
                             struct cm_error *err, struct gw_plan *ret_plan)
{
    struct gw_plan *plan = ret_plan;
    plan->n_inputs = model->n_inputs;
    plan->rows = 0;
    plan->bytes = 0;
    enum cm_err code = match_inputs(request, model, err, plan);
    if (code == CM_OK)
        code = match_outputs(request, model, err, plan);
    for (unsigned i = 0; i < model->n_inputs && code == CM_OK; i++) {
        const struct gw_tensor_info *info = &model->inputs[i];
        unsigned index = plan->source[i];
        const struct gw_input *input = &request->inputs[index];
        code = check_input(input, index, model, info, err);
        if (code == CM_OK)
            code = take_rows(input, index, model, err, plan);
        if (code == CM_OK)
            code = check_size(input, index, info, err, &plan->length[i]);
        if (code != CM_OK)
            break;
        plan->offset[i] = plan->bytes;
        size_t padded;
        if (!cm_size_align(plan->length[i], GW_TENSOR_ALIGN, &padded) ||
            !cm_size_add(plan->bytes, padded, &plan->bytes))
            code = cm_fail(err, CM_INVALID, "inputs: the sum of sizes overflows");
    }
    if (code == CM_OK && plan->rows == 0)
        plan->rows = 1;
    return code;
}

/* Which field of InferTensorContents carries a datatype, and how. */
enum carrier { CARRY_NONE, CARRY_SIGNED, CARRY_UNSIGNED, CARRY_FIXED };

struct typed_form {
    uint8_t field;
    enum carrier carrier;
    int64_t minimum; /* SIGNED */
    uint64_t maximum;
    const char *name;
};

static const struct typed_form forms[] = {
    [CM_BOOL] = {1, CARRY_UNSIGNED, 0, UINT64_MAX, "bool_contents"},
    [CM_INT8] = {2, CARRY_SIGNED, INT8_MIN, INT8_MAX, "int_contents"},
    [CM_INT16] = {2, CARRY_SIGNED, INT16_MIN, INT16_MAX, "int_contents"},
    [CM_INT32] = {2, CARRY_SIGNED, INT32_MIN, INT32_MAX, "int_contents"},
    [CM_INT64] = {3, CARRY_SIGNED, INT64_MIN, INT64_MAX, "int64_contents"},
    [CM_UINT8] = {4, CARRY_UNSIGNED, 0, UINT8_MAX, "uint_contents"},
    [CM_UINT16] = {4, CARRY_UNSIGNED, 0, UINT16_MAX, "uint_contents"},
    [CM_UINT32] = {4, CARRY_UNSIGNED, 0, UINT32_MAX, "uint_contents"},
    [CM_UINT64] = {5, CARRY_UNSIGNED, 0, UINT64_MAX, "uint64_contents"},
    [CM_FP32] = {6, CARRY_FIXED, 0, 0, "fp32_contents"},
    [CM_FP64] = {7, CARRY_FIXED, 0, 0, "fp64_contents"},
    [CM_FP16] = {0, CARRY_NONE, 0, 0, NULL},
    [CM_BF16] = {0, CARRY_NONE, 0, 0, NULL},
};

/* Where converted elements go. */
struct sink {
    enum cm_dtype dtype;
    size_t size; /* of an element */
    size_t count, done;
    unsigned char *target;
};

static bool in_range(const struct typed_form *form, uint64_t value)
{
    if (form->carrier == CARRY_UNSIGNED)
        return value <= form->maximum;
    return (int64_t)value >= form->minimum && (int64_t)value <= (int64_t)form->maximum;
}

/* One element from wire. CM_LIMIT: does not fit the datatype; CM_FULL: one too many. */
static enum cm_err sink_one(struct sink *sink, const struct typed_form *form, struct gw_wire *wire)
{
    if (sink->done == sink->count)
        return CM_FULL;
    unsigned char *to = sink->target + sink->done * sink->size;
    sink->done++;
    if (form->carrier == CARRY_FIXED)
        return gw_wire_copy(wire, to, sink->size);
    uint64_t value;
    if (gw_wire_varint(wire, &value) != CM_OK)
        return CM_CORRUPT;
    if (sink->dtype == CM_BOOL)
        value = value != 0;
    /* int32 is sent sign-extended to 64 bits; uint32 never has more than 32. */
    if (!in_range(form, value))
        return CM_LIMIT;
    memcpy(to, &value, sink->size); /* little endian */
    return CM_OK;
}

static enum cm_err sink_field(struct sink *sink, const struct typed_form *form,
                              struct gw_wire *wire, enum gw_wire_type type)
{
    enum gw_wire_type single = form->carrier != CARRY_FIXED ? GW_WIRE_VARINT
                               : sink->size == 4            ? GW_WIRE_FIXED32
                                                            : GW_WIRE_FIXED64;
    if (type == single)
        return sink_one(sink, form, wire);
    struct gw_wire part;
    if (type != GW_WIRE_BYTES || gw_wire_bytes(wire, &part) != CM_OK)
        return CM_CORRUPT;
    if (form->carrier == CARRY_FIXED) { /* packed: the elements lie as they will */
        size_t count = part.left / sink->size;
        if (part.left % sink->size != 0)
            return CM_CORRUPT;
        if (count > sink->count - sink->done)
            return CM_FULL;
        enum cm_err code =
            gw_wire_copy(&part, sink->target + sink->done * sink->size, count * sink->size);
        sink->done += count;
        return code;
    }
    enum cm_err code = CM_OK;
    while (part.left > 0 && code == CM_OK)
        code = sink_one(sink, form, &part);
    return code;
}

static enum cm_err typed_failure(enum cm_err code, const struct sink *sink, const char *field,
                                 const char *name, struct cm_error *err)
{
    if (code == CM_FULL)
        return cm_fail(err, CM_INVALID, "%s.%s: more than the shape's %zu elements", field, name,
                       sink->count);
    if (code == CM_LIMIT)
        return cm_fail(err, CM_INVALID, "%s.%s: element %zu does not fit %s", field, name,
                       sink->done - 1, cm_dtype_name(sink->dtype));
    return cm_fail(err, CM_INVALID, "%s.%s: malformed protobuf", field, name);
}

enum cm_err gw_typed_copy(struct gw_wire contents, enum cm_dtype dtype, size_t count, void *target,
                          const char *field, struct cm_error *err)
{
    const struct typed_form *form = &forms[dtype];
    if (form->carrier == CARRY_NONE)
        return cm_fail(err, CM_INVALID, "%s: %s has no typed form, use raw_input_contents", field,
                       cm_dtype_name(dtype));
    struct sink sink = {dtype, cm_dtype_size(dtype), count, 0, target};
    for (;;) {
        uint32_t number;
        enum gw_wire_type type;
        enum cm_err code = gw_wire_next(&contents, &number, &type);
        if (code == CM_AGAIN)
            break;
        if (code != CM_OK)
            return typed_failure(code, &sink, field, "contents", err);
        if (number == form->field) {
            code = sink_field(&sink, form, &contents, type);
            if (code != CM_OK)
                return typed_failure(code, &sink, field, form->name, err);
            continue;
        }
        struct gw_wire at = contents;
        code = gw_wire_skip(&contents, type);
        if (code != CM_OK)
            return typed_failure(code, &sink, field, "contents", err);
        /* An empty packed list of another type is what some clients send for "not used". */
        if (number <= 8 && (type != GW_WIRE_BYTES || at.left - contents.left > 1))
            return cm_fail(err, CM_INVALID, "%s.contents: only %s may be set for %s", field,
                           form->name, cm_dtype_name(dtype));
    }
    if (sink.done != count)
        return cm_fail(err, CM_INVALID, "%s.%s: %zu elements for a shape of %zu", field, form->name,
                       sink.done, count);
    return CM_OK;
}

/* A byte that is neither 0 nor 1 is no BOOL: kernels may take the bits literally. */
static bool bools_valid(const unsigned char *bytes, size_t length)
{
    unsigned char any = 0;
    for (size_t i = 0; i < length; i++)
        any |= bytes[i];
    return any <= 1;
}

enum cm_err gw_request_copy(const struct gw_request *request, const struct gw_model *model,
                            const struct gw_plan *plan, unsigned char *block, struct cm_error *err)
{
    for (unsigned i = 0; i < plan->n_inputs; i++) {
        const struct gw_input *input = &request->inputs[plan->source[i]];
        enum cm_dtype dtype = model->inputs[i].dtype;
        unsigned char *target = block + plan->offset[i];
        struct gw_wire data = input->data;
        char field[24];
        snprintf(field, sizeof field, "inputs[%u]", plan->source[i]);
        enum cm_err code = CM_OK;
        if (input->contents == GW_CONTENTS_TYPED)
            code = gw_typed_copy(data, dtype, plan->length[i] / cm_dtype_size(dtype), target, field,
                                 err);
        else if (plan->length[i] > 0)
            code = gw_wire_copy(&data, target, plan->length[i]);
        if (code == CM_OK && dtype == CM_BOOL && !bools_valid(target, plan->length[i]))
            code = cm_fail(err, CM_INVALID, "%s: a BOOL is one byte, 0 or 1", field);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}
