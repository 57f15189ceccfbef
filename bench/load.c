/* A closed-loop gRPC client: N unary calls always in flight on one connection.
 *
 *   bench-load ADDRESS METHOD REQUEST_FILE IN_FLIGHT WARM_MS RUN_MS [CA_FILE]
 *
 * Sends the file's bytes as each call's message. After WARM_MS of traffic it measures for RUN_MS
 * and prints one line of figures: "calls N seconds S p50_us X p99_us Y reply_bytes B errors E".
 * With CA_FILE the connection is TLS to "localhost". One thread; latency is from starting a call to
 * its final status. */
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_IN_FLIGHT 1024
#define MAX_SAMPLES   (8u << 20)

struct call {
    grpc_call *call;
    uint64_t start_ns;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *reply;
    grpc_status_code status;
    grpc_slice details;
};

static grpc_channel *channel;
static grpc_completion_queue *queue;
static void *method; /* registered */
static grpc_slice request;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void start(struct call *call)
{
    grpc_op ops[6];
    memset(ops, 0, sizeof ops);
    memset(call, 0, sizeof *call);
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->start_ns = now_ns();
    call->call = grpc_channel_create_registered_call(
        channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, method,
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(20, GPR_TIMESPAN)), NULL);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&request, 1);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = message;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &call->reply;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[5].data.recv_status_on_client.status = &call->status;
    ops[5].data.recv_status_on_client.status_details = &call->details;
    if (grpc_call_start_batch(call->call, ops, 6, call, NULL) != GRPC_CALL_OK)
        abort();
    grpc_byte_buffer_destroy(message);
}

static void finish(struct call *call)
{
    if (call->reply)
        grpc_byte_buffer_destroy(call->reply);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    grpc_call_unref(call->call);
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static char *read_file(const char *path, size_t *ret_length)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)length + 1);
    if (!bytes || fread(bytes, 1, (size_t)length, file) != (size_t)length) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    fclose(file);
    bytes[length] = 0;
    *ret_length = (size_t)length;
    return bytes;
}

static grpc_channel *open_channel(const char *address, const char *ca_file)
{
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = -1},
        {.type = GRPC_ARG_STRING,
         .key = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = "localhost"},
    };
    grpc_channel_args list = {ca_file ? 2 : 1, args};
    grpc_channel_credentials *credentials;
    if (ca_file) {
        size_t length;
        char *ca = read_file(ca_file, &length);
        credentials = grpc_ssl_credentials_create(ca, NULL, NULL, NULL);
        free(ca);
    } else {
        credentials = grpc_insecure_credentials_create();
    }
    grpc_channel *made = grpc_channel_create(address, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return made;
}

/* What one measured stretch saw. */
struct figures {
    uint32_t *samples_ns;
    size_t n;
    size_t reply_bytes;
    uint64_t errors;
};

static void record(struct figures *figures, const struct call *call, uint64_t now)
{
    uint64_t took = now - call->start_ns;
    if (call->status != GRPC_STATUS_OK) {
        if (figures->errors++ == 0)
            fprintf(stderr, "bench-load: status %d: %.*s\n", (int)call->status,
                    (int)GRPC_SLICE_LENGTH(call->details),
                    (const char *)GRPC_SLICE_START_PTR(call->details));
        return;
    }
    if (call->reply)
        figures->reply_bytes = grpc_byte_buffer_length(call->reply);
    if (figures->n < MAX_SAMPLES)
        figures->samples_ns[figures->n++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

/* Keeps in_flight calls going until end; those started before from are not counted. */
static double drive(struct call *calls, int in_flight, uint64_t from, uint64_t end,
                    struct figures *figures)
{
    int running = in_flight;
    uint64_t last = from;
    for (int i = 0; i < in_flight; i++)
        start(&calls[i]);
    while (running > 0) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        struct call *call = event.tag;
        uint64_t now = now_ns();
        if (call->start_ns >= from && now < end) {
            record(figures, call, now);
            last = now;
        }
        finish(call);
        if (now < end)
            start(call);
        else
            running--;
    }
    return (double)(last - from) / 1e9;
}

int main(int argc, char **argv)
{
    static struct call calls[MAX_IN_FLIGHT];
    struct figures figures = {0};
    size_t length;
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "usage: bench-load ADDRESS METHOD REQUEST_FILE IN_FLIGHT WARM_MS RUN_MS "
                        "[CA_FILE]\n");
        return 2;
    }
    int in_flight = atoi(argv[4]);
    if (in_flight < 1 || in_flight > MAX_IN_FLIGHT) {
        fprintf(stderr, "bench-load: IN_FLIGHT is 1..%d\n", MAX_IN_FLIGHT);
        return 2;
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    grpc_init();
    char *bytes = read_file(argv[3], &length);
    request = grpc_slice_from_copied_buffer(bytes, length);
    queue = grpc_completion_queue_create_for_next(NULL);
    channel = open_channel(argv[1], argc == 8 ? argv[7] : NULL);
    method = grpc_channel_register_call(channel, argv[2], NULL, NULL);
    figures.samples_ns = malloc(MAX_SAMPLES * sizeof *figures.samples_ns);
    if (!figures.samples_ns)
        return 1;
    uint64_t from = now_ns() + (uint64_t)atoi(argv[5]) * 1000000u;
    double seconds =
        drive(calls, in_flight, from, from + (uint64_t)atoi(argv[6]) * 1000000u, &figures);
    if (figures.n == 0) {
        fprintf(stderr, "bench-load: no call succeeded\n");
        return 1;
    }
    qsort(figures.samples_ns, figures.n, sizeof *figures.samples_ns, compare);
    printf("calls %zu seconds %.6f p50_us %.2f p99_us %.2f reply_bytes %zu errors %llu\n",
           figures.n, seconds, figures.samples_ns[figures.n / 2] / 1e3,
           figures.samples_ns[figures.n - 1 - figures.n / 100] / 1e3, figures.reply_bytes,
           (unsigned long long)figures.errors);
    return figures.errors ? 1 : 0;
}
