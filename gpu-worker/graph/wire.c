/* Pre-check of protobuf wire bytes; see wire.h. Pure, any thread, allocates nothing. */
#include "gpu-worker/graph/wire.h"

#include "common/check.h"
#include "common/utf8.h"

#include <string.h>

enum {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_FIXED32 = 5,
    MAX_SEEN = 64 /* field slots of one message type; ONNX's largest has 22 */
};

struct walk {
    uint32_t fields, parts;
    struct cm_error *err;
};

struct cursor {
    const uint8_t *at, *end;
};

static bool take_varint(struct cursor *cursor, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (cursor->at == cursor->end)
            return false;
        uint8_t byte = *cursor->at++;
        if (shift == 63 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct cursor *cursor, uint64_t count)
{
    if (count > (uint64_t)(cursor->end - cursor->at))
        return false;
    cursor->at += count;
    return true;
}

static bool is_length_type(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_STRING || type == PROTOBUF_C_TYPE_BYTES ||
           type == PROTOBUF_C_TYPE_MESSAGE;
}

static unsigned scalar_wire(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_FIXED64;
    default:
        return WIRE_VARINT;
    }
}

/* A packed field's payload must be whole elements. */
static bool packed_is_whole(ProtobufCType type, struct cursor payload)
{
    unsigned wire = scalar_wire(type);
    size_t bytes = (size_t)(payload.end - payload.at);
    if (wire != WIRE_VARINT)
        return bytes % (wire == WIRE_FIXED32 ? 4 : 8) == 0;
    uint64_t ignored;
    while (payload.at < payload.end)
        if (!take_varint(&payload, &ignored))
            return false;
    return true;
}

static enum cm_err broken(struct walk *walk, const ProtobufCMessageDescriptor *type,
                          const char *what)
{
    return cm_fail(walk->err, CM_CORRUPT, "not a valid ONNX file: %s in a %s", what,
                   type->short_name);
}

static enum cm_err over(struct walk *walk, const char *what)
{
    return cm_fail(walk->err, CM_LIMIT, "the ONNX file has too many %s", what);
}

static enum cm_err check_message(struct walk *walk, const ProtobufCMessageDescriptor *type,
                                 struct cursor cursor, unsigned depth);

/* Names reach clients, which take UTF-8 only, and are compared as C strings, for which two names
 * that differ behind a NUL are the same. Comments are nobody's business. */
static enum cm_err check_text(struct walk *walk, const ProtobufCMessageDescriptor *type,
                              const ProtobufCFieldDescriptor *field, struct cursor payload)
{
    size_t length = (size_t)(payload.end - payload.at);
    if (strcmp(field->name, "doc_string") == 0)
        return CM_OK;
    if (cm_utf8_valid(payload.at, length) && !memchr(payload.at, 0, length))
        return CM_OK;
    return cm_fail(walk->err, CM_CORRUPT, "not a valid ONNX file: %s of a %s is not UTF-8 text",
                   field->name, type->short_name);
}

/* One length-delimited field; the cursor stands behind its tag. */
static enum cm_err check_bytes(struct walk *walk, const ProtobufCMessageDescriptor *type,
                               const ProtobufCFieldDescriptor *field, struct cursor *cursor,
                               unsigned depth)
{
    uint64_t length;
    if (!take_varint(cursor, &length) || length > (uint64_t)(cursor->end - cursor->at))
        return broken(walk, type, "a length that runs past the end");
    struct cursor payload = {cursor->at, cursor->at + length};
    cursor->at = payload.end;
    if (!field || is_length_type(field->type)) {
        if (++walk->parts > WK_WIRE_MAX_PARTS)
            return over(walk, "messages and strings");
        if (field && field->type == PROTOBUF_C_TYPE_MESSAGE)
            return check_message(walk, field->descriptor, payload, depth + 1);
        if (field && field->type == PROTOBUF_C_TYPE_STRING)
            return check_text(walk, type, field, payload);
        return CM_OK;
    }
    if (field->label != PROTOBUF_C_LABEL_REPEATED)
        return broken(walk, type, "a field of the wrong kind");
    if (!packed_is_whole(field->type, payload))
        return broken(walk, type, "a list that ends in the middle of an element");
    return CM_OK;
}

static enum cm_err check_scalar(struct walk *walk, const ProtobufCMessageDescriptor *type,
                                const ProtobufCFieldDescriptor *field, struct cursor *cursor,
                                unsigned wire)
{
    uint64_t ignored;
    bool whole;
    if (wire == WIRE_VARINT)
        whole = take_varint(cursor, &ignored);
    else if (wire == WIRE_FIXED32 || wire == WIRE_FIXED64)
        whole = skip(cursor, wire == WIRE_FIXED32 ? 4 : 8);
    else
        return broken(walk, type, "an unknown wire type");
    if (!whole)
        return broken(walk, type, "a number that is cut off");
    if (field && (is_length_type(field->type) || scalar_wire(field->type) != wire))
        return broken(walk, type, "a field of the wrong kind");
    if (!field && ++walk->parts > WK_WIRE_MAX_PARTS)
        return over(walk, "unknown fields");
    return CM_OK;
}

static enum cm_err check_message(struct walk *walk, const ProtobufCMessageDescriptor *type,
                                 struct cursor cursor, unsigned depth)
{
    if (depth > WK_WIRE_MAX_DEPTH)
        return cm_fail(walk->err, CM_LIMIT, "the ONNX file nests deeper than %d messages",
                       WK_WIRE_MAX_DEPTH);
    bool seen[MAX_SEEN] = {false};
    CM_ASSERT(type->n_fields <= MAX_SEEN);
    while (cursor.at < cursor.end) {
        uint64_t tag;
        if (!take_varint(&cursor, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
            return broken(walk, type, "a broken field number");
        if (++walk->fields > WK_WIRE_MAX_FIELDS)
            return over(walk, "fields");
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        if (field && field->label != PROTOBUF_C_LABEL_REPEATED) {
            /* Merging repeated singular messages is quadratic in protobuf-c, and no writer emits
             * them. */
            bool *slot = &seen[field - type->fields];
            if (*slot)
                return broken(walk, type, "a single field that appears twice");
            *slot = true;
        }
        unsigned wire = (unsigned)(tag & 7);
        enum cm_err code = wire == WIRE_BYTES ? check_bytes(walk, type, field, &cursor, depth)
                                              : check_scalar(walk, type, field, &cursor, wire);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

enum cm_err wk_wire_check(const ProtobufCMessageDescriptor *type, const void *bytes, size_t length,
                          struct cm_error *err)
{
    struct walk walk = {.err = err};
    const uint8_t *start = bytes;
    if (length == 0)
        return cm_fail(err, CM_CORRUPT, "not a valid ONNX file: it is empty");
    return check_message(&walk, type, (struct cursor){start, start + length}, 1);
}
