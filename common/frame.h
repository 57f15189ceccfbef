/* The frame header of every message on both planes, and the trace header of every data-plane
 * record.
 *
 * Little endian, fixed layout. On the data plane the crc covers header (with its crc field as zero)
 * and record, never tensor bytes; on the control plane it covers header and protobuf bytes. A
 * peer's frame is hostile input: cm_frame_check decides. Any thread. */
#ifndef COMMON_FRAME_H
#define COMMON_FRAME_H

#include "common/err.h"

#include <stdint.h>

#define CM_FRAME_MAGIC   0x544f474eu /* "NGOT" in memory order */
#define CM_FRAME_VERSION 1

struct cm_frame {
    uint32_t magic;
    uint8_t version;
    uint8_t type; /* enum cm_record_type on the data plane; CM_FRAME_CONTROL on the control plane */
    uint16_t flags; /* unknown bits are refused; none is defined yet */
    uint32_t payload_length;
    uint32_t crc32c;
};
_Static_assert(sizeof(struct cm_frame) == 16, "frame header is 16 bytes");

#define CM_FRAME_CONTROL 0xc0

/* stage: enum cm_stage of the sender. device: the worker's index, 0xffff before one is chosen. */
struct cm_trace {
    uint64_t
        trace_id; /* 32 bits of milliseconds | 12 bits of process number | 20 bits of sequence */
    uint32_t span_id;
    uint16_t stage;
    uint16_t device;
};
_Static_assert(sizeof(struct cm_trace) == 16, "trace header is 16 bytes");

#define CM_NO_DEVICE 0xffff

enum cm_stage {
    CM_STAGE_SUBMIT = 1,
    CM_STAGE_EXECUTE = 2,
    CM_STAGE_DONE = 3,
    CM_STAGE_REPLY = 4,
};

/* Fills the header and computes the crc for a payload that lies in two pieces, so that a ring
 * producer need not join them first. Either length may be 0 (its pointer is then not used); the sum
 * must fit 32 bits. */
void cm_frame_seal(struct cm_frame *ret_frame, uint8_t type, const void *head, uint32_t head_length,
                   const void *tail, uint32_t tail_length);

/* The checks that need no payload (magic, version, flags, length), for a reader that must know
 * whether the length can be believed before it copies. Errors as cm_frame_check. */
CM_MUST_CHECK enum cm_err cm_frame_check_header(const struct cm_frame *frame, uint32_t max_length,
                                                struct cm_error *err);

/* CM_CORRUPT (magic, flags, crc, length over max_length), CM_UNSUPPORTED (another version: the
 * sentence names both). frame and payload must already be private copies of what the peer wrote. */
CM_MUST_CHECK enum cm_err cm_frame_check(const struct cm_frame *frame, const void *payload,
                                         uint32_t max_length, struct cm_error *err);

/* A new trace id: sorts by time. number: this process's 12-bit number from memmgr; sequence: the
 * caller's counter. */
uint64_t cm_trace_id(uint64_t realtime_ns, uint32_t number, uint32_t sequence);

#endif
