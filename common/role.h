/* Who a process is. The numbers travel in messages: append only. Any thread. */
#ifndef COMMON_ROLE_H
#define COMMON_ROLE_H

#include <stdint.h>

/* X(name, number, text) */
#define CM_ROLE_MAP(X)           \
    X(MEMMGR, 1, "memmgr")       \
    X(WORKER, 2, "worker")       \
    X(SCHEDULER, 3, "scheduler") \
    X(GATEWAY, 4, "gateway")     \
    X(TOOL, 5, "tool") /* the command line; its index is its pid */

enum cm_role {
    CM_ROLE_NONE = 0,
#define X(name, number, text) CM_ROLE_##name = (number),
    CM_ROLE_MAP(X)
#undef X
};

/* A process. instance tells one life of (role, index) from the next: memmgr gives it at attach, it
 * only grows, also over memmgr's own restarts. 0 = not attached. */
struct cm_peer {
    enum cm_role role;
    uint32_t index;
    uint64_t instance;
};

/* "worker"; "?" for a number outside the list. */
const char *cm_role_name(enum cm_role role);

/* CM_ROLE_NONE for an unknown word. */
enum cm_role cm_role_from_name(const char *name);

#endif
