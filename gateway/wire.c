/* The wire format's reader and writer. Pure functions, any thread; no allocation, no recursion. */
#include "gateway/wire.h"

#include "common/check.h"

#include <string.h>

void gw_wire_init(struct gw_wire *ret_wire, const struct gw_wire_segment *segments, size_t count)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        CM_ASSERT(cm_size_add(sum, segments[i].length, &sum));
    *ret_wire = (struct gw_wire){segments, 0, sum};
}

/* Steps over used-up and empty segments. There is a byte left, so there is a segment with one. */
static void settle(struct gw_wire *wire)
{
    while (wire->offset == wire->segment->length) {
        wire->segment++;
        wire->offset = 0;
    }
}

static inline uint8_t take_byte(struct gw_wire *wire)
{
    settle(wire);
    wire->left--;
    return wire->segment->data[wire->offset++];
}

enum cm_err gw_wire_varint(struct gw_wire *wire, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (wire->left == 0)
            return CM_CORRUPT;
        uint8_t byte = take_byte(wire);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *ret_value = value;
            return CM_OK;
        }
    }
    return CM_CORRUPT;
}

enum cm_err gw_wire_next(struct gw_wire *wire, uint32_t *ret_field, enum gw_wire_type *ret_type)
{
    if (wire->left == 0)
        return CM_AGAIN;
    uint64_t tag;
    if (gw_wire_varint(wire, &tag) != CM_OK || tag > UINT32_MAX)
        return CM_CORRUPT;
    uint32_t type = tag & 7;
    uint32_t field = (uint32_t)(tag >> 3);
    bool known = type == GW_WIRE_VARINT || type == GW_WIRE_FIXED64 || type == GW_WIRE_BYTES ||
                 type == GW_WIRE_FIXED32;
    if (!known || field == 0)
        return CM_CORRUPT;
    *ret_field = field;
    *ret_type = (enum gw_wire_type)type;
    return CM_OK;
}

/* The caller has checked that length bytes are left. */
static void advance(struct gw_wire *wire, void *target, size_t length)
{
    unsigned char *out = target;
    wire->left -= length;
    while (length > 0) {
        settle(wire);
        size_t here = wire->segment->length - wire->offset;
        if (here > length)
            here = length;
        if (out) {
            memcpy(out, wire->segment->data + wire->offset, here);
            out += here;
        }
        wire->offset += here;
        length -= here;
    }
}

enum cm_err gw_wire_copy(struct gw_wire *wire, void *target, size_t length)
{
    if (length > wire->left)
        return CM_CORRUPT;
    advance(wire, target, length);
    return CM_OK;
}

enum cm_err gw_wire_fixed32(struct gw_wire *wire, uint32_t *ret_value)
{
    return gw_wire_copy(wire, ret_value, sizeof *ret_value);
}

enum cm_err gw_wire_fixed64(struct gw_wire *wire, uint64_t *ret_value)
{
    return gw_wire_copy(wire, ret_value, sizeof *ret_value);
}

enum cm_err gw_wire_bytes(struct gw_wire *wire, struct gw_wire *ret_part)
{
    uint64_t length;
    if (gw_wire_varint(wire, &length) != CM_OK || length > wire->left)
        return CM_CORRUPT;
    *ret_part = *wire;
    ret_part->left = (size_t)length;
    advance(wire, NULL, (size_t)length);
    return CM_OK;
}

enum cm_err gw_wire_skip(struct gw_wire *wire, enum gw_wire_type type)
{
    uint64_t value;
    struct gw_wire part;
    switch (type) {
    case GW_WIRE_VARINT:
        return gw_wire_varint(wire, &value);
    case GW_WIRE_FIXED64:
        return gw_wire_copy(wire, NULL, 8);
    case GW_WIRE_BYTES:
        return gw_wire_bytes(wire, &part);
    case GW_WIRE_FIXED32:
        return gw_wire_copy(wire, NULL, 4);
    }
    return CM_CORRUPT;
}

const uint8_t *gw_wire_peek(const struct gw_wire *part)
{
    if (part->left == 0)
        return (const uint8_t *)"";
    struct gw_wire at = *part;
    settle(&at);
    return at.segment->length - at.offset >= at.left ? at.segment->data + at.offset : NULL;
}

void gw_put_raw(struct gw_put *put, const void *bytes, size_t length)
{
    if (put->length <= put->capacity && length <= put->capacity - put->length && length > 0)
        memcpy(put->data + put->length, bytes, length);
    put->length += length;
}

void gw_put_varint(struct gw_put *put, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    while (value >= 0x80) {
        bytes[n++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[n++] = (uint8_t)value;
    gw_put_raw(put, bytes, n);
}

void gw_put_tag(struct gw_put *put, uint32_t field, enum gw_wire_type type)
{
    gw_put_varint(put, (uint64_t)field << 3 | type);
}

void gw_put_uint(struct gw_put *put, uint32_t field, uint64_t value)
{
    gw_put_tag(put, field, GW_WIRE_VARINT);
    gw_put_varint(put, value);
}

void gw_put_double(struct gw_put *put, uint32_t field, double value)
{
    gw_put_tag(put, field, GW_WIRE_FIXED64);
    gw_put_raw(put, &value, sizeof value);
}

void gw_put_head(struct gw_put *put, uint32_t field, size_t length)
{
    gw_put_tag(put, field, GW_WIRE_BYTES);
    gw_put_varint(put, length);
}

void gw_put_bytes(struct gw_put *put, uint32_t field, const void *bytes, size_t length)
{
    gw_put_head(put, field, length);
    gw_put_raw(put, bytes, length);
}

void gw_put_text(struct gw_put *put, uint32_t field, const char *text)
{
    gw_put_bytes(put, field, text, strlen(text));
}

size_t gw_varint_size(uint64_t value)
{
    size_t size = 1;
    while (value >= 0x80) {
        value >>= 7;
        size++;
    }
    return size;
}
