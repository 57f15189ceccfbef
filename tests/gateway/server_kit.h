/* What the tests of the gateway as a process share: a gateway between a real memmgr and fakes
 * (fake.h), one client channel, one call. Test thread only. */
#ifndef TESTS_GATEWAY_SERVER_KIT_H
#define TESTS_GATEWAY_SERVER_KIT_H

#include "proto/ingot.pb-c.h"
#include "tests/gateway/fake.h"

#define READY   INGOT__IPC__MODEL_STATE__MODEL_READY
#define LOADING INGOT__IPC__MODEL_STATE__MODEL_LOADING
#define FAILED  INGOT__IPC__MODEL_STATE__MODEL_FAILED

extern grpc_channel *channel;
extern struct client_call call;

/* Everything up, both models ready. more: arguments of the gateway, NULL-terminated, or NULL. */
void start_all(const char *const *more);
void stop_all(void);

/* The gateway's handle of the SUBMIT with this number; waits for it. */
uint64_t request_of(unsigned submit);

/* Waits for the call, which must have this status. */
void ends_with(grpc_status_code status);

/* The call's answer; the caller frees it. */
Ingot__V1__InferResponse *response(void);

/* A value of x-request-context; valid until the next call. */
const char *context(const char *id, uint64_t timeout_us, bool stats);

#endif
