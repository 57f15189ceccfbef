/* The ledger: every region, who holds it, what it costs. memmgr's loop thread only.
 *
 * No sockets and no clock here: time comes in as an argument, holders are opaque. The only system
 * calls are the closing of a dropped region's descriptor and the fstat behind the sums. All changes
 * of state go through mm_ledger_move and the table in state.c. */
#ifndef MEMMGR_LEDGER_PRIV_H
#define MEMMGR_LEDGER_PRIV_H

#include "common/err.h"
#include "memmgr/memory.h"
#include "memmgr/state_priv.h"
#include "memmgr/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define MM_REGIONS_MAX    16384u
#define MM_IDLE_NS        (30ull * 1000000000ull) /* a pooled region goes back after this */
#define MM_IDLE_CLASS_MAX 16u                     /* pooled regions of one size */
#define MM_UNUSED_NS      (60ull * 1000000000ull) /* sealed weights that nobody holds */
#define MM_LEDGER_BUCKETS 1024u

/* sys/queue.h has no walk that survives the removal of the element. */
#define MM_FOREACH_SAFE(at, next, head, field) \
    for ((at) = TAILQ_FIRST(head); (at) && ((next) = TAILQ_NEXT(at, field), true); (at) = (next))

struct mm_conn;
struct mm_region;

/* X(name): counted since start, reported by name. */
#define MM_COUNTER_MAP(X) \
    X(connections)        \
    X(attached)           \
    X(refused)            \
    X(leases_granted)     \
    X(leases_from_pool)   \
    X(opens)              \
    X(stale_refused)      \
    X(orphans_reclaimed)  \
    X(revoked)            \
    X(weights_written)    \
    X(weights_shared)     \
    X(writers_lost)       \
    X(channels_made)      \
    X(restored)           \
    X(restore_refused)    \
    X(budget_refused)     \
    X(regions_evicted)    \
    X(protocol_errors)    \
    X(slow_peers)         \
    X(accept_pauses)

struct mm_counters {
#define X(name) uint64_t name;
    MM_COUNTER_MAP(X)
#undef X
};

enum mm_kind { MM_KIND_LEASE, MM_KIND_WEIGHTS };

/* One connection's claim on one region. Opening twice makes two. */
struct mm_hold {
    struct mm_conn *conn;
    struct mm_region *region;
    bool owner; /* of a lease, or the writer of weights; else a reader or holder */
    TAILQ_ENTRY(mm_hold) in_conn, in_region;
};
TAILQ_HEAD(mm_holds, mm_hold);

/* A request that waits: for pages, for a seal, or for what another client may hand back. In its
 * connection's list always, in a region's or the server's waiting list sometimes. */
struct mm_ask {
    struct mm_conn *conn;
    union mm_wire_any body;
    struct mm_asks *list; /* what it waits in, or NULL */
    TAILQ_ENTRY(mm_ask) in_conn, in_list;
};
TAILQ_HEAD(mm_asks, mm_ask);

struct mm_region {
    uint64_t number;
    uint32_t generation;
    enum mm_kind kind;
    enum mm_state state;
    int fd;        /* -1 while NEW and not created */
    bool writable; /* fd may write */
    /* Someone who held it vanished without a goodbye and might still touch the memory, or the
     * memory was handed back to us: it never goes to the pool. */
    bool tainted;
    bool orphaned; /* its owner vanished; for the counter */
    struct mm_memory_id id;
    size_t bytes;      /* of the memory */
    uint64_t since_ns; /* in this state, or (SEALED) without a holder */
    struct mm_hold *owner;
    struct mm_holds readers;
    unsigned n_readers;
    /* Weights only. */
    uint8_t key[32];
    size_t length;
    char label[MM_LABEL_BYTES];
    struct mm_asks waiting;
    LIST_ENTRY(mm_region) in_bucket;
    TAILQ_ENTRY(mm_region) in_all;
};
TAILQ_HEAD(mm_regions, mm_region);

struct mm_ledger {
    uint64_t budget, charged; /* bytes; channels are charged too */
    uint64_t last_number;
    unsigned n_regions;
    struct mm_regions all; /* oldest first */
    LIST_HEAD(, mm_region) buckets[MM_LEDGER_BUCKETS];
    struct mm_counters counters;
    /* Closes a region's descriptor; NULL: at once. Whoever closes the last one waits until the
     * kernel has freed the pages: half a second for 1 GiB. */
    void (*close_memory)(void *ctx, int fd, size_t bytes);
    void *close_ctx;
};

void mm_ledger_init(struct mm_ledger *ledger, uint64_t budget, uint64_t realtime_ns);
/* Drops everything; nobody holds anything any more. */
void mm_ledger_fini(struct mm_ledger *ledger);

/* The next number for a region or channel: never used before, also not in earlier lives. */
uint64_t mm_ledger_number(struct mm_ledger *ledger);
/* A number that a client handed back: new ones will be larger. */
void mm_ledger_saw(struct mm_ledger *ledger, uint64_t number);

struct mm_region *mm_ledger_find(struct mm_ledger *ledger, uint64_t number);
struct mm_region *mm_ledger_find_memory(struct mm_ledger *ledger, struct mm_memory_id id);
/* Weights under this key that are not yet gone; the sealed ones first. */
struct mm_region *mm_ledger_find_key(struct mm_ledger *ledger, const uint8_t key[32]);
/* A pooled region of exactly bytes, the one used last. */
struct mm_region *mm_ledger_find_idle(struct mm_ledger *ledger, size_t bytes);

/* Makes room for bytes in the budget, at the expense of what is pooled, then of weights that nobody
 * holds. CM_LIMIT with the exact shortfall. Charges nothing. */
CM_MUST_CHECK enum cm_err mm_ledger_make_room(struct mm_ledger *ledger, uint64_t bytes,
                                              const char *what, struct cm_error *err);
/* Forgets all that is pooled or unheld, so that descriptors come free. */
void mm_ledger_evict_all(struct mm_ledger *ledger);

/* What a region begins as. number 0: a new one. fd: -1 until it is created. */
struct mm_region_init {
    enum mm_kind kind;
    uint64_t number;
    size_t bytes;
    int fd;
};

/* A region in state NEW, charged. The ledger owns fd from here on. CM_FULL, CM_NOMEM. */
CM_MUST_CHECK enum cm_err mm_ledger_add(struct mm_ledger *ledger, const struct mm_region_init *init,
                                        uint64_t now_ns, struct cm_error *err,
                                        struct mm_region **ret_region);

/* The one function that changes a state; asserts that the edge is legal. GRANT counts the
 * generation up. DROP closes the descriptor, takes back the charge and frees the region. */
void mm_ledger_move(struct mm_ledger *ledger, struct mm_region *region, enum mm_event event,
                    uint64_t now_ns);

/* The end of a lease that has neither owner nor reader: to the pool, or gone. */
void mm_ledger_retire(struct mm_ledger *ledger, struct mm_region *region, uint64_t now_ns);

/* Takes and gives back a claim. Giving back frees hold. */
struct mm_hold *mm_ledger_hold(struct mm_region *region, struct mm_conn *conn, bool owner,
                               struct mm_holds *in_conn);
void mm_ledger_unhold(struct mm_hold *hold, struct mm_holds *in_conn, uint64_t now_ns);

/* Gives back what has been idle too long; settled_ns: when a process last came or went. */
void mm_ledger_trim(struct mm_ledger *ledger, uint64_t now_ns, uint64_t settled_ns);

void mm_ledger_charge(struct mm_ledger *ledger, uint64_t bytes);
void mm_ledger_uncharge(struct mm_ledger *ledger, uint64_t bytes);

#endif
