/* A bare gRPC C echo server: the least that an answer over gRPC can cost.
 *
 *   bench-echo ADDRESS REPLY_BYTES
 *
 * One completion queue, one thread, insecure, no handler work: each call's message is received,
 * dropped, and answered with REPLY_BYTES bytes from static memory. Prints the bound port on its
 * first line. Ends on SIGTERM through the default action. Channel arguments are the library's
 * defaults. */
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARMED 128 /* calls waiting to be taken, so that 64 in flight never wait for arming */

struct call {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *message;
    int cancelled;
    enum { NEW, READING, REPLYING } step;
};

static grpc_server *server;
static grpc_completion_queue *queue;
static grpc_slice reply;

static void arm(struct call *call)
{
    memset(call, 0, sizeof *call);
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    if (grpc_server_request_call(server, &call->call, &call->details, &call->metadata, queue, queue,
                                 call) != GRPC_CALL_OK)
        abort();
}

static void start(struct call *call, const grpc_op *ops, size_t n)
{
    if (grpc_call_start_batch(call->call, ops, n, call, NULL) != GRPC_CALL_OK)
        abort();
}

static void answer(struct call *call)
{
    grpc_byte_buffer *out = grpc_raw_byte_buffer_create(&reply, 1);
    grpc_op ops[4];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = out;
    ops[2].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[2].data.send_status_from_server.status = GRPC_STATUS_OK;
    ops[3].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    ops[3].data.recv_close_on_server.cancelled = &call->cancelled;
    start(call, ops, 4);
    grpc_byte_buffer_destroy(out);
}

static void step(struct call *call, int success)
{
    grpc_op op;
    switch (call->step) {
    case NEW:
        if (!success)
            return;
        memset(&op, 0, sizeof op);
        op.op = GRPC_OP_RECV_MESSAGE;
        op.data.recv_message.recv_message = &call->message;
        call->step = READING;
        start(call, &op, 1);
        return;
    case READING:
        if (call->message)
            grpc_byte_buffer_destroy(call->message);
        call->step = REPLYING;
        answer(call);
        return;
    case REPLYING:
        grpc_call_unref(call->call);
        grpc_call_details_destroy(&call->details);
        grpc_metadata_array_destroy(&call->metadata);
        arm(call);
        return;
    }
}

int main(int argc, char **argv)
{
    static struct call calls[ARMED];
    if (argc != 3) {
        fprintf(stderr, "usage: bench-echo ADDRESS REPLY_BYTES\n");
        return 2;
    }
    /* The same malloc setting as the gateway's: large buffers are kept. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 16 << 20);
    grpc_init();
    reply = grpc_slice_malloc((size_t)strtoul(argv[2], NULL, 10));
    memset(GRPC_SLICE_START_PTR(reply), 0, GRPC_SLICE_LENGTH(reply));
    queue = grpc_completion_queue_create_for_next(NULL);
    server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int port = grpc_server_add_http2_port(server, argv[1], credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0) {
        fprintf(stderr, "bench-echo: cannot listen on %s\n", argv[1]);
        return 1;
    }
    grpc_server_start(server);
    printf("%d\n", port);
    fflush(stdout);
    for (size_t i = 0; i < ARMED; i++)
        arm(&calls[i]);
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_OP_COMPLETE)
            step(event.tag, event.success);
    }
}
