/* Bus messages to bytes and back. Pure functions, any thread.
 *
 * cm_bus_parse decides what a peer's bytes are; it must not trust them, nor let a few megabytes of
 * tiny nested messages become gigabytes of structs. */
#include "common/bus_priv.h"

#include "common/check.h"
#include "common/frame.h"

#include <stdlib.h>
#include <string.h>

/* What one message may unpack to. */
#define UNPACKED_MAX (64u * 1024u * 1024u)

struct cm_bus_packet *cm_bus_packet_ref(struct cm_bus_packet *packet)
{
    packet->references++;
    return packet;
}

void cm_bus_packet_unref(struct cm_bus_packet *packet)
{
    if (packet && --packet->references == 0)
        free(packet);
}

enum cm_err cm_bus_pack(const Ingot__Ipc__Envelope *message, struct cm_bus_packet **ret_packet)
{
    size_t body = ingot__ipc__envelope__get_packed_size(message);
    if (body > CM_BUS_MESSAGE_MAX - sizeof(struct cm_frame))
        return CM_LIMIT;
    struct cm_bus_packet *packet = malloc(sizeof *packet + sizeof(struct cm_frame) + body);
    if (!packet)
        return CM_NOMEM;
    packet->references = 1;
    packet->request = message->wants_answer;
    packet->length = sizeof(struct cm_frame) + body;
    unsigned char *payload = packet->bytes + sizeof(struct cm_frame);
    ingot__ipc__envelope__pack(message, payload);
    struct cm_frame frame;
    cm_frame_seal(&frame, CM_FRAME_CONTROL, payload, (uint32_t)body, NULL, 0);
    memcpy(packet->bytes, &frame, sizeof frame);
    *ret_packet = packet;
    return CM_OK;
}

/* An allocator for one unpack, with what it may still give. What it gives is malloc's, so that the
 * result can be freed without it. */
static void *budget_alloc(void *budget, size_t size)
{
    size_t *left = budget;
    if (size > *left)
        return NULL;
    *left -= size;
    return malloc(size);
}

static void budget_free(void *budget, void *pointer)
{
    (void)budget;
    free(pointer);
}

static enum cm_err check_envelope(const Ingot__Ipc__Envelope *envelope, struct cm_error *err)
{
    if (!envelope->sender)
        return cm_fail(err, CM_CORRUPT, "message without a sender");
    uint32_t role = envelope->sender->role;
    if (role > INT32_MAX || cm_role_name((enum cm_role)role)[0] == '?')
        return cm_fail(err, CM_CORRUPT, "message from a process with the unknown role %u", role);
    if (envelope->sequence == 0)
        return cm_fail(err, CM_CORRUPT, "message without a sequence number");
    return CM_OK;
}

enum cm_err cm_bus_parse(const void *bytes, size_t length, struct cm_error *err,
                         Ingot__Ipc__Envelope **ret_envelope)
{
    struct cm_frame frame;
    if (length < sizeof frame || length > CM_BUS_MESSAGE_MAX)
        return cm_fail(err, CM_CORRUPT, "message of %zu bytes", length);
    memcpy(&frame, bytes, sizeof frame);
    const unsigned char *payload = (const unsigned char *)bytes + sizeof frame;
    size_t body = length - sizeof frame;
    enum cm_err rc = cm_frame_check_header(&frame, CM_BUS_MESSAGE_MAX, err);
    if (rc != CM_OK)
        return rc;
    if (frame.payload_length != body || frame.type != CM_FRAME_CONTROL)
        return cm_fail(err, CM_CORRUPT, "frame of type %u says %u bytes, %zu are there", frame.type,
                       frame.payload_length, body);
    rc = cm_frame_check(&frame, payload, CM_BUS_MESSAGE_MAX, err);
    if (rc != CM_OK)
        return rc;

    size_t budget = UNPACKED_MAX;
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    Ingot__Ipc__Envelope *envelope = ingot__ipc__envelope__unpack(&allocator, body, payload);
    if (!envelope)
        return cm_fail(err, CM_CORRUPT, "message of %zu bytes is not an envelope", body);
    rc = check_envelope(envelope, err);
    if (rc != CM_OK) {
        ingot__ipc__envelope__free_unpacked(envelope, NULL);
        return rc;
    }
    *ret_envelope = envelope;
    return CM_OK;
}

bool cm_bus_path(const char *run_dir, enum cm_role role, uint32_t index, char path[BUS_PATH_MAX])
{
    int n = snprintf(path, BUS_PATH_MAX, "%s/bus/%s-%u.ipc", run_dir, cm_role_name(role), index);
    return n > 0 && n < BUS_PATH_MAX;
}
