/* The messages between memmgr and its clients: one fixed-layout struct each, one SOCK_SEQPACKET
 * packet each, little endian, descriptors beside them by SCM_RIGHTS. Private to memmgr/.
 *
 * Whatever arrives is hostile input: mm_wire_recv lets through only packets whose magic, version,
 * type, length and number of descriptors are right; the values are for the receiver to judge.
 * Nothing here blocks. Any thread. memmgr/README.md has the table of messages. */
#ifndef MEMMGR_WIRE_H
#define MEMMGR_WIRE_H

#include "common/err.h"

#include <stdbool.h>
#include <stdint.h>

#define MM_WIRE_MAGIC   0x524d4d49u /* "IMMR" in memory order */
#define MM_WIRE_VERSION 1
#define MM_WIRE_FDS_MAX 4u
#define MM_SOCKET_NAME  "memmgr.sock"

/* X(NAME, number, struct, descriptors). Numbers below 64 go to memmgr, the others to a client. */
#define MM_WIRE_MAP(X)               \
    X(ATTACH, 1, attach, 0)          \
    X(ACQUIRE, 2, acquire, 0)        \
    X(RELEASE, 3, region, 0)         \
    X(OPEN, 4, region, 0)            \
    X(CLOSE, 5, region, 0)           \
    X(WEIGHTS, 6, weights, 0)        \
    X(SEAL, 7, region, 0)            \
    X(WEIGHTS_CLOSE, 8, region, 0)   \
    X(WANT_CHANNEL, 9, want, 0)      \
    X(RESTORE, 10, restore, 1)       \
    X(ATTACHED, 64, attached, 0)     \
    X(REFUSED, 65, failed, 0)        \
    X(GRANTED, 66, granted, 1)       \
    X(WEIGHTS_GIVEN, 67, granted, 1) \
    X(FAILED, 68, failed, 0)         \
    X(RESTORED, 69, header, 0)       \
    X(REVOKED, 70, region, 0)        \
    X(CHANNEL, 71, channel, 4)       \
    X(CHANNEL_ENDED, 72, region, 0)

enum mm_wire_type {
#define X(name, number, layout, fds) MM_WIRE_##name = (number),
    MM_WIRE_MAP(X)
#undef X
};

/* length: of the whole packet. sequence: chosen by the client for what it asks, echoed by the
 * answer; 0 where nothing is answered. Its place and the next three fields' never change, so that
 * two versions can tell each other so. */
struct mm_wire_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t sequence;
    uint32_t length;
};
_Static_assert(sizeof(struct mm_wire_header) == 16, "wire header");

#define MM_NUMBER_NONE 0xffffffffu

/* The first message. instance and number: 0 and MM_NUMBER_NONE for a new process, else what it had
 * before the connection was lost. Answered by ATTACHED or REFUSED. */
struct mm_wire_attach {
    struct mm_wire_header header;
    uint64_t instance;
    uint32_t role;
    uint32_t index;
    uint32_t number;
    uint32_t reserved;
};
_Static_assert(sizeof(struct mm_wire_attach) == 40, "attach");

/* A lease of at least bytes. Answered by GRANTED (read-write descriptor) or FAILED. */
struct mm_wire_acquire {
    struct mm_wire_header header;
    uint64_t bytes;
};
_Static_assert(sizeof(struct mm_wire_acquire) == 24, "acquire");

/* RELEASE and CLOSE (unanswered): an own lease, another's. OPEN: GRANTED (read-only descriptor) or
 * FAILED. SEAL (the sender has unmapped): WEIGHTS_GIVEN or FAILED. WEIGHTS_CLOSE: unanswered.
 * REVOKED: the owner has let go or died. CHANNEL_ENDED: memmgr no longer counts channel "region".
 */
struct mm_wire_region {
    struct mm_wire_header header;
    uint64_t region;
    uint32_t generation;
    uint32_t reserved;
};
_Static_assert(sizeof(struct mm_wire_region) == 32, "region");

#define MM_LABEL_BYTES 64u

/* Weights by content hash. Answered by WEIGHTS_GIVEN or FAILED, maybe much later. label:
 * terminated, printable ASCII. */
struct mm_wire_weights {
    struct mm_wire_header header;
    uint64_t bytes;
    uint8_t key[32];
    char label[MM_LABEL_BYTES];
};
_Static_assert(sizeof(struct mm_wire_weights) == 120, "weights");

/* Unanswered; CHANNEL comes when the peer is there. last: id of the newest channel to that peer
 * that the sender has seen; a newer one is under way and answers the want already. */
struct mm_wire_want {
    struct mm_wire_header header;
    uint64_t last;
    uint32_t role;
    uint32_t index;
};
_Static_assert(sizeof(struct mm_wire_want) == 32, "want");

/* X(NAME, number): what a client hands back after the connection was lost. */
#define MM_RESTORE_MAP(X)                                                  \
    X(OWNER, 1)   /* an own lease, read-write descriptor */                \
    X(READER, 2)  /* another's lease, read-only descriptor */              \
    X(WRITER, 3)  /* unsealed weights that the sender fills, read-write */ \
    X(HOLDER, 4)  /* sealed weights, read-only descriptor */               \
    X(CHANNEL, 5) /* a channel's memory; region is its id, peer the other */

enum mm_restore_kind {
#define X(name, number) MM_RESTORE_##name = (number),
    MM_RESTORE_MAP(X)
#undef X
};

/* Answered by RESTORED or FAILED. bytes: a lease's or channel's memory, the weights' length. */
struct mm_wire_restore {
    struct mm_wire_header header;
    uint64_t region;
    uint64_t bytes;
    uint64_t peer_instance;
    uint32_t peer_role;
    uint32_t peer_index;
    uint32_t generation;
    uint32_t kind;
    uint8_t key[32];
    char label[MM_LABEL_BYTES];
};
_Static_assert(sizeof(struct mm_wire_restore) == 152, "restore");

struct mm_wire_attached {
    struct mm_wire_header header;
    uint64_t instance;
    uint64_t epoch;
    uint32_t number;
    uint32_t reserved;
};
_Static_assert(sizeof(struct mm_wire_attached) == 40, "attached");

#define MM_TEXT_BYTES 256u

/* FAILED answers one request; REFUSED answers ATTACH and ends the connection. text: terminated. */
struct mm_wire_failed {
    struct mm_wire_header header;
    uint32_t code; /* enum cm_err */
    uint32_t reserved;
    char text[MM_TEXT_BYTES];
};
_Static_assert(sizeof(struct mm_wire_failed) == 280, "failed");

/* GRANTED: bytes is the memory's size. WEIGHTS_GIVEN: bytes is the weights' length, the memory is
 * that rounded up to pages. writable: 1 with a read-write descriptor, else 0. */
struct mm_wire_granted {
    struct mm_wire_header header;
    uint64_t region;
    uint64_t bytes;
    uint32_t generation;
    uint32_t writable;
};
_Static_assert(sizeof(struct mm_wire_granted) == 40, "granted");

/* One end of a channel: descriptors are memory, bell in, bell out, lifeline. role, index and
 * instance are the other end's; bytes the memory's size. */
struct mm_wire_channel {
    struct mm_wire_header header;
    uint64_t id;
    uint64_t bytes;
    uint64_t instance;
    uint32_t role;
    uint32_t index;
    uint32_t first; /* 1: this end writes ring A */
    uint32_t reserved;
};
_Static_assert(sizeof(struct mm_wire_channel) == 56, "channel");

/* Any message. text is what makes it long enough to notice a packet that is too long. */
union mm_wire_any {
    struct mm_wire_header header;
    struct mm_wire_attach attach;
    struct mm_wire_acquire acquire;
    struct mm_wire_region region;
    struct mm_wire_weights weights;
    struct mm_wire_want want;
    struct mm_wire_restore restore;
    struct mm_wire_attached attached;
    struct mm_wire_failed failed;
    struct mm_wire_granted granted;
    struct mm_wire_channel channel;
};

struct mm_packet {
    union mm_wire_any body;
    unsigned n_fds;
    int fds[MM_WIRE_FDS_MAX]; /* the receiver's to close */
};

/* "ATTACH"; "?" for a number outside the list. */
const char *mm_wire_name(unsigned type);

/* True for a terminated label of printable ASCII: it is shown to people. */
bool mm_wire_label_valid(const char label[MM_LABEL_BYTES]);

/* Zeroes ret_body and fills its header. */
void mm_wire_init(union mm_wire_any *ret_body, enum mm_wire_type type, uint32_t sequence);

/* Sends body (header filled) with the descriptors its type has; they stay the caller's.
 * CM_AGAIN: no room now. CM_CLOSED: the peer is gone. */
CM_MUST_CHECK enum cm_err mm_wire_send(int sock, const union mm_wire_any *body, const int *fds);

/* Takes one packet. CM_AGAIN: none there. CM_CLOSED: hang-up. CM_UNSUPPORTED: another version (the
 * header is in ret_packet). CM_CORRUPT: wrong magic, type, length or number of descriptors, or
 * descriptors lost for want of room in this process. On anything but CM_OK no descriptor is left
 * open. err: a sentence for CM_CORRUPT and CM_UNSUPPORTED. */
CM_MUST_CHECK enum cm_err mm_wire_recv(int sock, struct mm_packet *ret_packet,
                                       struct cm_error *err);

/* Closes what is left in packet->fds. */
void mm_packet_close(struct mm_packet *packet);

/* The descriptor at position i, which the caller now owns. */
int mm_packet_take(struct mm_packet *packet, unsigned i);

#endif
