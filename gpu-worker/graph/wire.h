/* Checks the wire bytes of a protobuf message before protobuf-c unpacks them. Pure, any thread.
 *
 * protobuf-c has no limit on nesting and allocates per field, so that a small file could cost the
 * stack or gigabytes. This walk allocates nothing and bounds both. */
#ifndef GPU_WORKER_GRAPH_WIRE_H
#define GPU_WORKER_GRAPH_WIRE_H

#include "common/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define WK_WIRE_MAX_DEPTH  64
#define WK_WIRE_MAX_FIELDS 16777216u /* of all kinds */
#define WK_WIRE_MAX_PARTS                                                   \
    2097152u /* messages, strings and unknown fields: each is an allocation \
              */

/* CM_OK if protobuf-c may unpack the bytes as a message of this type. CM_CORRUPT for broken
 * encoding, groups, wrong wire types, singular fields that appear twice, and strings (but for
 * doc_string) that are not UTF-8 or hold a NUL; CM_LIMIT for what goes over the limits above. */
CM_MUST_CHECK enum cm_err wk_wire_check(const ProtobufCMessageDescriptor *type, const void *bytes,
                                        size_t length, struct cm_error *err);

#endif
