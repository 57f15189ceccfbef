/* What the tests of the gateway as a process share: see server_kit.h. */
#include "tests/gateway/server_kit.h"

#include <openssl/evp.h>
#include <stdlib.h>

grpc_channel *channel;
struct client_call call;

void start_all(const char *const *more)
{
    const char *args[16] = {"--plaintext", "--http", "127.0.0.1:0"};
    size_t n = 3;
    while (more && *more)
        args[n++] = *more++;
    fake_reset(NULL);
    start_memmgr();
    start_gateway(args);
    scheduler_start();
    worker_start(1 << 20);
    scheduler_table(READY, true);
    channel = client_connect(NULL);
}

void stop_all(void)
{
    grpc_channel_destroy(channel);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

uint64_t request_of(unsigned submit)
{
    T_WAIT(&loop, sched.n_submits > submit);
    return sched.submits[submit].record.request;
}

void ends_with(grpc_status_code status)
{
    client_wait(&call);
    if (call.status != status)
        fail_msg("status %d (%s), not %d", call.status, client_text(&call), status);
}

Ingot__V1__InferResponse *response(void)
{
    size_t length;
    uint8_t *bytes = client_message(&call, &length);
    assert_non_null(bytes);
    Ingot__V1__InferResponse *read = ingot__v1__infer_response__unpack(NULL, length, bytes);
    free(bytes);
    assert_non_null(read);
    return read;
}

const char *context(const char *id, uint64_t timeout_us, bool stats)
{
    static unsigned char text[512];
    unsigned char bytes[256];
    Ingot__V1__RequestContext message = INGOT__V1__REQUEST_CONTEXT__INIT;
    message.request_id = (char *)(uintptr_t)id;
    message.timeout_us = timeout_us;
    message.want_stats = stats;
    size_t length = ingot__v1__request_context__pack(&message, bytes);
    EVP_EncodeBlock(text, bytes, (int)length);
    return (const char *)text;
}
