/* Frame headers: seal and check. Pure functions, any thread. */
#include "common/frame.h"

#include "common/check.h"

#include <isa-l/crc.h>
#include <limits.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little endian in memory");

/* isa-l takes an int length and a non-const pointer that it only reads. */
static uint32_t crc_more(uint32_t crc, const void *bytes, uint32_t length)
{
    const unsigned char *next = bytes;
    while (length > 0) {
        uint32_t part = length < INT_MAX ? length : INT_MAX;
        crc = crc32_iscsi((unsigned char *)next, (int)part, crc);
        next += part;
        length -= part;
    }
    return crc;
}

/* CRC32C over the header with its crc field as zero, then the payload. */
static uint32_t frame_crc(const struct cm_frame *frame, const void *head, uint32_t head_length,
                          const void *tail, uint32_t tail_length)
{
    struct cm_frame header = *frame;
    header.crc32c = 0;
    uint32_t crc = crc_more(UINT32_MAX, &header, sizeof header);
    crc = crc_more(crc, head, head_length);
    crc = crc_more(crc, tail, tail_length);
    return ~crc;
}

void cm_frame_seal(struct cm_frame *ret_frame, uint8_t type, const void *head, uint32_t head_length,
                   const void *tail, uint32_t tail_length)
{
    CM_ASSERT(tail_length <= UINT32_MAX - head_length);
    *ret_frame = (struct cm_frame){
        .magic = CM_FRAME_MAGIC,
        .version = CM_FRAME_VERSION,
        .type = type,
        .payload_length = head_length + tail_length,
    };
    ret_frame->crc32c = frame_crc(ret_frame, head, head_length, tail, tail_length);
}

enum cm_err cm_frame_check_header(const struct cm_frame *frame, uint32_t max_length,
                                  struct cm_error *err)
{
    if (frame->magic != CM_FRAME_MAGIC)
        return cm_fail(err, CM_CORRUPT, "frame magic is 0x%08x, not 0x%08x", frame->magic,
                       CM_FRAME_MAGIC);
    /* Before everything that another version may have changed. */
    if (frame->version != CM_FRAME_VERSION)
        return cm_fail(err, CM_UNSUPPORTED,
                       "peer speaks frame version %u, this process %u: run one release on a node",
                       frame->version, CM_FRAME_VERSION);
    if (frame->flags != 0)
        return cm_fail(err, CM_CORRUPT, "frame has unknown flags 0x%04x", frame->flags);
    if (frame->payload_length > max_length)
        return cm_fail(err, CM_CORRUPT, "frame says %u payload bytes, at most %u are allowed",
                       frame->payload_length, max_length);
    return CM_OK;
}

enum cm_err cm_frame_check(const struct cm_frame *frame, const void *payload, uint32_t max_length,
                           struct cm_error *err)
{
    enum cm_err rc = cm_frame_check_header(frame, max_length, err);
    if (rc != CM_OK)
        return rc;
    uint32_t crc = frame_crc(frame, payload, frame->payload_length, NULL, 0);
    if (crc != frame->crc32c)
        return cm_fail(err, CM_CORRUPT, "frame crc is 0x%08x, its bytes give 0x%08x", frame->crc32c,
                       crc);
    return CM_OK;
}

uint64_t cm_trace_id(uint64_t realtime_ns, uint32_t number, uint32_t sequence)
{
    uint64_t ms = realtime_ns / 1000000u;
    return (ms & UINT32_MAX) << 32 | (uint64_t)(number & 0xfff) << 20 | (sequence & 0xfffff);
}
