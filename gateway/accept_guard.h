/* Keeps a listener alive through descriptor exhaustion, and caps connections.
 *
 * gRPC 1.51 retires a listener for good when one accept4 fails with EMFILE (CVE-2023-4785), and has
 * no cap on connections. This executable therefore defines accept4 and close itself; the dynamic
 * linker gives them to libgrpc too. On EMFILE and ENFILE a spare descriptor is given up to take the
 * connection and close it; ENOBUFS and ENOMEM become EAGAIN; above the cap a connection is taken
 * and closed. The cap is for TCP; Unix sockets (the bus) and one exempt listener (the admin port)
 * are never capped. Any thread. */
#ifndef GATEWAY_ACCEPT_GUARD_H
#define GATEWAY_ACCEPT_GUARD_H

#include <stdint.h>

/* Before any listener exists. */
void gw_accept_guard_init(uint32_t max_connections);

/* This listener's connections are not counted. */
void gw_accept_guard_exempt(int listener);

struct gw_accept_stats {
    uint64_t accepted;  /* kept */
    uint64_t exhausted; /* closed for want of descriptors */
    uint64_t capped;    /* closed because of the cap */
    uint64_t seen;      /* all three: connections that were taken off a listener */
    uint32_t open;      /* now */
};
struct gw_accept_stats gw_accept_stats(void);

#endif
