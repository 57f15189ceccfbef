/* gRPC core as a client. Main thread; gRPC has its own threads beside. */
#include "deploy/ingot/rpc.h"

#include "common/check.h"
#include "common/clock.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ig_rpc {
    grpc_channel *channel;
    grpc_completion_queue *queue;
};

/* X(name, number) */
#define STATUS_MAP(X)         \
    X(OK, 0)                  \
    X(CANCELLED, 1)           \
    X(UNKNOWN, 2)             \
    X(INVALID_ARGUMENT, 3)    \
    X(DEADLINE_EXCEEDED, 4)   \
    X(NOT_FOUND, 5)           \
    X(ALREADY_EXISTS, 6)      \
    X(PERMISSION_DENIED, 7)   \
    X(RESOURCE_EXHAUSTED, 8)  \
    X(FAILED_PRECONDITION, 9) \
    X(ABORTED, 10)            \
    X(OUT_OF_RANGE, 11)       \
    X(UNIMPLEMENTED, 12)      \
    X(INTERNAL, 13)           \
    X(UNAVAILABLE, 14)        \
    X(DATA_LOSS, 15)          \
    X(UNAUTHENTICATED, 16)

const char *ig_rpc_status_name(int status)
{
    switch (status) {
#define X(name, number)                                                      \
    case number:                                                             \
        _Static_assert(GRPC_STATUS_##name == (number), "gRPC's own number"); \
        return #name;
        STATUS_MAP(X)
#undef X
    default:
        return "UNKNOWN";
    }
}

/* Nobody is there to type a passphrase. */
static int no_passphrase(char *buffer, int size, int writing, void *ctx)
{
    (void)buffer, (void)size, (void)writing, (void)ctx;
    return -1;
}

/* True for NULL too. */
static bool is_pem(const char *text, bool key)
{
    BIO *bio = text ? BIO_new_mem_buf(text, -1) : NULL;
    if (!bio)
        return !text;
    X509 *certificate = key ? NULL : PEM_read_bio_X509(bio, NULL, no_passphrase, NULL);
    EVP_PKEY *private = key ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    bool good = certificate || private;
    X509_free(certificate);
    EVP_PKEY_free(private);
    BIO_free(bio);
    ERR_clear_error();
    return good;
}

/* What core would tell only as a connection that fails, with its reason in a log. */
static enum cm_err check_credentials(const struct ig_rpc_credentials *who, struct cm_error *err)
{
    if (!is_pem(who->ca_pem, false))
        return cm_fail(err, CM_INVALID, "the CA file holds no certificate (PEM)");
    if (!is_pem(who->cert_pem, false))
        return cm_fail(err, CM_INVALID, "the file of --cert holds no certificate (PEM)");
    if (!is_pem(who->key_pem, true))
        return cm_fail(err, CM_INVALID,
                       "the file of --key holds no private key (PEM) without passphrase");
    return CM_OK;
}

/* The status says what went wrong; core's lines beside it are for whoever debugs core. */
static void ignore_log(gpr_log_func_args *args)
{
    (void)args;
}

static grpc_channel *open_channel(const char *address, const struct ig_rpc_credentials *who)
{
    grpc_arg list[] = {
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         .value.integer = -1},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_MAX_SEND_MESSAGE_LENGTH,
         .value.integer = -1},
        /* What is printed is what one call did. */
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_RETRIES, .value.integer = 0},
    };
    grpc_channel_args args = {.num_args = CM_COUNT_OF(list), .args = list};
    grpc_ssl_pem_key_cert_pair pair = {.private_key = who->key_pem, .cert_chain = who->cert_pem};
    grpc_channel_credentials *credentials =
        who->ca_pem
            ? grpc_ssl_credentials_create(who->ca_pem, who->cert_pem ? &pair : NULL, NULL, NULL)
            : grpc_insecure_credentials_create();
    if (!credentials)
        return NULL;
    grpc_channel *channel = grpc_channel_create(address, credentials, &args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

enum cm_err ig_rpc_open(const char *address, const struct ig_rpc_credentials *credentials,
                        struct cm_error *err, struct ig_rpc **ret_rpc)
{
    enum cm_err code = check_credentials(credentials, err);
    if (code != CM_OK)
        return code;
    struct ig_rpc *rpc = calloc(1, sizeof *rpc);
    if (!rpc)
        return cm_fail(err, CM_NOMEM, "no memory for a gRPC channel");
    if (!getenv("GRPC_VERBOSITY"))
        gpr_set_log_function(ignore_log);
    grpc_init();
    rpc->channel = open_channel(address, credentials);
    if (!rpc->channel) {
        grpc_shutdown();
        free(rpc);
        return cm_fail(err, CM_INVALID, "no gRPC channel to %s: are the certificates valid?",
                       address);
    }
    rpc->queue = grpc_completion_queue_create_for_pluck(NULL);
    *ret_rpc = rpc;
    return CM_OK;
}

void ig_rpc_close(struct ig_rpc *rpc)
{
    if (!rpc)
        return;
    grpc_channel_destroy(rpc->channel);
    grpc_completion_queue_shutdown(rpc->queue);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    free(rpc);
}

/* All of a reply's slices in one piece. */
static void gather(grpc_byte_buffer *buffer, struct ig_rpc_result *result)
{
    grpc_byte_buffer_reader reader;
    size_t length = grpc_byte_buffer_length(buffer), have = 0;
    unsigned char *bytes = malloc(length + 1);
    if (!bytes || !grpc_byte_buffer_reader_init(&reader, buffer)) {
        free(bytes);
        result->status = GRPC_STATUS_INTERNAL;
        snprintf(result->message, sizeof result->message, "the reply cannot be read");
        return;
    }
    grpc_slice slice;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        size_t part = GRPC_SLICE_LENGTH(slice);
        if (part > length - have)
            part = length - have;
        memcpy(bytes + have, GRPC_SLICE_START_PTR(slice), part);
        have += part;
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    result->reply = bytes;
    result->reply_length = have;
}

static void copy_message(grpc_slice details, struct ig_rpc_result *result)
{
    size_t length = GRPC_SLICE_LENGTH(details);
    if (length >= sizeof result->message)
        length = sizeof result->message - 1;
    memcpy(result->message, GRPC_SLICE_START_PTR(details), length);
    result->message[length] = '\0';
    /* The server's sentence goes to a terminal. */
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)result->message[i] < ' ' || result->message[i] == 0x7f)
            result->message[i] = '?';
}

/* Runs the call's one batch to its end. */
static void run_batch(struct ig_rpc *rpc, grpc_call *call, grpc_byte_buffer *request,
                      struct ig_rpc_result *result)
{
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *reply = NULL;
    grpc_status_code status = GRPC_STATUS_UNKNOWN;
    grpc_slice details = grpc_empty_slice();
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reply},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &trailing,
                                        .status = &status,
                                        .status_details = &details}},
    };
    grpc_call_error error = grpc_call_start_batch(call, ops, CM_COUNT_OF(ops), rpc, NULL);
    CM_ASSERT(error == GRPC_CALL_OK);
    grpc_completion_queue_pluck(rpc->queue, rpc, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    result->status = (int)status;
    copy_message(details, result);
    if (status == GRPC_STATUS_OK && reply)
        gather(reply, result);
    if (reply)
        grpc_byte_buffer_destroy(reply);
    grpc_slice_unref(details);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
}

void ig_rpc_call(struct ig_rpc *rpc, const char *method, const void *request, size_t request_length,
                 uint64_t deadline_ms, struct ig_rpc_result *ret_result)
{
    memset(ret_result, 0, sizeof *ret_result);
    grpc_slice path = grpc_slice_from_static_string(method);
    /* The request outlives the call: no copy. */
    grpc_slice body = grpc_slice_from_static_buffer(request, request_length);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&body, 1);
    gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                         gpr_time_from_millis((int64_t)deadline_ms, GPR_TIMESPAN));
    uint64_t start_ns = cm_now_ns();
    grpc_call *call = grpc_channel_create_call(rpc->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               rpc->queue, path, NULL, deadline, NULL);
    CM_ASSERT(call);
    run_batch(rpc, call, buffer, ret_result);
    ret_result->took_ns = cm_now_ns() - start_ns;
    grpc_call_unref(call);
    grpc_byte_buffer_destroy(buffer);
}

void ig_rpc_result_fini(struct ig_rpc_result *result)
{
    free(result->reply);
    result->reply = NULL;
}
