/* The states of a region and the one table of legal edges. Pure: no I/O, no memory, any thread.
 *
 *   lease:    NEW -GRANT-> GRANTED -KEEP-> IDLE -GRANT-> GRANTED ...
 *             GRANTED -ORPHAN-> ORPHANED (the owner left, readers remain) -KEEP-> IDLE
 *             ORPHANED -ADOPT-> GRANTED (the owner had only lost its connection)
 *             NEW -KEEP-> IDLE (whoever asked is gone)
 *   weights:  NEW -WRITE-> WRITING -SEAL-> SEALED
 *   all:      -DROP-> GONE
 *
 *   After memmgr's own death: NEW --ADOPT--> GRANTED, NEW --AWAIT--> AWAITED (a reader handed it
 *   back before its owner), AWAITED --ADOPT--> GRANTED, AWAITED --ORPHAN--> ORPHANED, DROP. */
#ifndef MEMMGR_STATE_PRIV_H
#define MEMMGR_STATE_PRIV_H

#include <stdbool.h>

/* X(NAME, name in the ledger, who holds it) */
#define MM_STATE_MAP(X)                                                                  \
    X(NEW, "new")           /* numbered and paid for; its pages are being populated */   \
    X(IDLE, "idle")         /* in the pool, populated, nobody's */                       \
    X(GRANTED, "granted")   /* has its owner, and any number of readers */               \
    X(ORPHANED, "orphaned") /* the owner is gone, at least one reader is not */          \
    X(AWAITED, "awaited")   /* handed back by a reader, the owner may still come back */ \
    X(WRITING, "writing")   /* weights with their one writer */                          \
    X(SEALED, "sealed")     /* weights that never change again; any number of holders */ \
    X(GONE, "gone")         /* about to be forgotten */

enum mm_state {
#define X(name, text) MM_STATE_##name,
    MM_STATE_MAP(X)
#undef X
};

#define MM_EVENT_MAP(X) \
    X(GRANT)            \
    X(KEEP)             \
    X(ORPHAN)           \
    X(AWAIT)            \
    X(ADOPT)            \
    X(WRITE)            \
    X(SEAL)             \
    X(DROP)

enum mm_event {
#define X(name) MM_EVENT_##name,
    MM_EVENT_MAP(X)
#undef X
};

#define X(name, text) +1
enum { MM_STATE_COUNT = 0 MM_STATE_MAP(X) };
#undef X
#define X(name) +1
enum { MM_EVENT_COUNT = 0 MM_EVENT_MAP(X) };
#undef X

/* False, with ret_state untouched, for an edge that is not in the table. */
bool mm_state_next(enum mm_state state, enum mm_event event, enum mm_state *ret_state);

const char *mm_state_name(enum mm_state state);

#endif
