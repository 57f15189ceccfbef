/* Protobuf's wire format by hand: a bounded reader over scattered bytes, and a writer into fixed
 * memory.
 *
 * For the messages that carry tensors, which must not be unpacked by copy: the reader walks the
 * slices that gRPC received and leaves bookmarks at the tensors' bytes. It never recurses, never
 * allocates, and treats every byte as hostile. Pure functions, any thread. */
#ifndef GATEWAY_WIRE_H
#define GATEWAY_WIRE_H

#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_wire_segment {
    const uint8_t *data;
    size_t length;
};

/* A cursor in a message, or in a part of one. A plain value: a copy is a bookmark. It borrows the
 * segments and their bytes. */
struct gw_wire {
    const struct gw_wire_segment *segment; /* where the next byte is; may be at its end */
    size_t offset;                         /* in *segment */
    size_t left;                           /* bytes to the end of this message */
};

enum gw_wire_type {
    GW_WIRE_VARINT = 0,
    GW_WIRE_FIXED64 = 1,
    GW_WIRE_BYTES = 2,
    GW_WIRE_FIXED32 = 5,
};

/* A cursor over all bytes of count segments; their lengths must not overflow in sum. */
void gw_wire_init(struct gw_wire *ret_wire, const struct gw_wire_segment *segments, size_t count);

/* Reads the next field's number and type. CM_AGAIN: the message ends here. CM_CORRUPT: not a field
 * (groups included). */
CM_MUST_CHECK enum cm_err gw_wire_next(struct gw_wire *wire, uint32_t *ret_field,
                                       enum gw_wire_type *ret_type);

/* Read one value of the type that gw_wire_next told. CM_CORRUPT: the message ends too early. */
CM_MUST_CHECK enum cm_err gw_wire_varint(struct gw_wire *wire, uint64_t *ret_value);
CM_MUST_CHECK enum cm_err gw_wire_fixed32(struct gw_wire *wire, uint32_t *ret_value);
CM_MUST_CHECK enum cm_err gw_wire_fixed64(struct gw_wire *wire, uint64_t *ret_value);
/* ret_part covers the field's bytes; wire goes on behind them. */
CM_MUST_CHECK enum cm_err gw_wire_bytes(struct gw_wire *wire, struct gw_wire *ret_part);
CM_MUST_CHECK enum cm_err gw_wire_skip(struct gw_wire *wire, enum gw_wire_type type);

/* Copies the next length bytes out. CM_CORRUPT if there are fewer. */
CM_MUST_CHECK enum cm_err gw_wire_copy(struct gw_wire *wire, void *target, size_t length);

/* The bytes of part where they lie if they are in one piece, else NULL. */
const uint8_t *gw_wire_peek(const struct gw_wire *part);

/* A writer into memory of fixed size. After an overflow it only counts: length is what would have
 * been needed. */
struct gw_put {
    uint8_t *data;
    size_t length, capacity;
};

void gw_put_raw(struct gw_put *put, const void *bytes, size_t length);
void gw_put_varint(struct gw_put *put, uint64_t value);
void gw_put_tag(struct gw_put *put, uint32_t field, enum gw_wire_type type);
/* Fields; a value that is the type's default is written all the same. */
void gw_put_uint(struct gw_put *put, uint32_t field, uint64_t value);
void gw_put_double(struct gw_put *put, uint32_t field, double value);
void gw_put_bytes(struct gw_put *put, uint32_t field, const void *bytes, size_t length);
void gw_put_text(struct gw_put *put, uint32_t field, const char *text);
/* Tag and length of a field whose bytes come next, from elsewhere. */
void gw_put_head(struct gw_put *put, uint32_t field, size_t length);

/* Bytes of a varint. */
size_t gw_varint_size(uint64_t value);

#endif
