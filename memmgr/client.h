/* The client side of memmgr: what the other processes call to get memory, weights and channels.
 *
 * One struct mm_client per process, driven by one uv loop; all functions and callbacks are on that
 * loop's thread, nothing blocks. Mapped memory may be used by any thread.
 *
 * memmgr may die and come back at any time: the client reconnects by itself (back-off 5 ms to 500
 * ms), attaches again with its old instance, hands back the descriptors of what it holds, and sends
 * again every request that was not answered. Nothing that is held is lost; callbacks are only
 * later. */
#ifndef MEMMGR_CLIENT_H
#define MEMMGR_CLIENT_H

#include "common/channel.h"
#include "common/err.h"
#include "common/record.h"
#include "common/role.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define MM_LEASE_MIN (64u * 1024u)
#define MM_LEASE_MAX (1024u * 1024u * 1024u)

struct mm_client;

/* A mapped lease, ours (writable) or another process's (read-only). Lives until mm_client_release
 * or mm_client_close_lease. The fields never change. */
struct mm_lease {
    uint64_t region;
    uint32_t generation;
    bool writable;
    size_t bytes;
    unsigned char *base; /* page aligned; an own lease is populated in this process */
};

/* Mapped weights. writer: this process fills base, then seals; else base is read-only. */
struct mm_weights {
    uint8_t key[32];
    bool writer;
    size_t bytes;
    void *base; /* page aligned; NULL if bytes is 0 */
};

struct mm_identity {
    uint64_t instance; /* of this process; kept over memmgr's deaths */
    uint32_t number;   /* 0..4095, for trace ids */
    uint64_t epoch;    /* of memmgr; changes with each of its lives */
};

struct mm_client_options {
    uv_loop_t *loop;
    const char *run_dir; /* memmgr.sock lies in it */
    enum cm_role role;
    uint32_t index;
    /* First attach, and each attach to a new memmgr. */
    void (*on_attached)(void *ctx, const struct mm_identity *identity);
    /* memmgr is gone; the client is reconnecting. May be NULL. */
    void (*on_lost)(void *ctx);
    /* A channel that this or the other end asked for; the callee owns it and starts it. A new
     * channel to a role and index replaces an older one, whose lifeline hangs up. NULL if the
     * process takes none. */
    void (*on_channel)(void *ctx, struct cm_channel *channel);
    /* The owner of a lease that this process has open is dead, or has released it: finish with it
     * and close it. Its memory stays valid until then. Called once for each mapping. NULL if the
     * process opens none. */
    void (*on_revoked)(void *ctx, const struct mm_lease *lease);
    /* memmgr refuses this process for good (another live process has its role and index, or the
     * protocol versions differ): end with CM_EXIT_LOST. */
    void (*on_refused)(void *ctx, const struct cm_error *error);
    void *ctx;
};

CM_MUST_CHECK enum cm_err mm_client_create(const struct mm_client_options *options,
                                           struct cm_error *err, struct mm_client **ret_client);

/* Lets go of the connection (memmgr takes back all leases). Mapped leases and weights that were not
 * given back stay mapped until exit. Open callbacks get CM_CLOSED. Memory goes when the loop lets
 * go. NULL is allowed. */
void mm_client_destroy(struct mm_client *client);

/* error->code is CM_OK and lease is set, or lease is NULL. Errors: CM_LIMIT (over MM_LEASE_MAX or
 * memmgr's budget: error->text has the shortfall), CM_FULL (a table, or memmgr's descriptors: later
 * it may work), CM_NOMEM, CM_STALE, CM_CORRUPT (what came is not what was asked), CM_CLOSED. The
 * functions below return CM_FULL, CM_NOMEM or CM_CLOSED (memmgr has refused this process, or the
 * client is being destroyed) at once if the request was not taken; fn is then not called. */
typedef void (*mm_lease_fn)(void *ctx, const struct cm_error *error, struct mm_lease *lease);

/* A new lease of at least bytes, with any contents, populated, writable. */
CM_MUST_CHECK enum cm_err mm_client_acquire(struct mm_client *client, size_t bytes, mm_lease_fn fn,
                                            void *ctx);
/* Unmaps and gives back an own lease: no slice of it may be in use anywhere. */
void mm_client_release(struct mm_client *client, struct mm_lease *lease);

/* Maps another process's lease read-only. CM_STALE: no such region, or another generation. Opening
 * twice gives two mappings. */
CM_MUST_CHECK enum cm_err mm_client_open(struct mm_client *client, uint64_t region,
                                         uint32_t generation, mm_lease_fn fn, void *ctx);
/* Unmaps; memmgr may then give the memory to someone else. */
void mm_client_close_lease(struct mm_client *client, struct mm_lease *lease);

/* The bytes of a slice in a mapped lease: NULL unless region and generation match and offset +
 * length lie inside. The slice comes from a peer. Any thread. */
const void *mm_lease_resolve(const struct mm_lease *lease, const struct cm_slice_ref *slice);

typedef void (*mm_weights_fn)(void *ctx, const struct cm_error *error, struct mm_weights *weights);

/* Weights by content hash. The first asker becomes the writer; later ones are answered when the
 * seal is on (or, if the writer dies, one of them becomes the writer). label is for the ledger
 * ("digits/1"). Errors: as for leases, and CM_INVALID (the key is known with another size). */
CM_MUST_CHECK enum cm_err mm_client_weights(struct mm_client *client, const uint8_t key[32],
                                            size_t bytes, const char *label, mm_weights_fn fn,
                                            void *ctx);
/* The writer is done: unmaps, seals against writing, maps again read-only; fn gets the same weights
 * with writer false and a new base. If fn gets an error the weights are gone. On any other return
 * than CM_OK nothing has changed. */
CM_MUST_CHECK enum cm_err mm_client_weights_seal(struct mm_client *client,
                                                 struct mm_weights *weights, mm_weights_fn fn,
                                                 void *ctx);
void mm_client_weights_close(struct mm_client *client, struct mm_weights *weights);

/* Asks for a channel to a process by role and index; it comes through on_channel, when that process
 * is attached, at both ends. Asking again while a request is open does nothing. */
CM_MUST_CHECK enum cm_err mm_client_want_channel(struct mm_client *client, enum cm_role role,
                                                 uint32_t index);

#endif
