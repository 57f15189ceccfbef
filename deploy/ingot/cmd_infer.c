/* `ingot infer`: one request, or many in a row, through the public gRPC service. Main thread. */
#include "common/check.h"
#include "deploy/ingot/cluster.h"
#include "deploy/ingot/command.h"
#include "deploy/ingot/rpc.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/show.h"
#include "deploy/ingot/tensor_file.h"
#include "proto/ingot.pb-c.h"

#include <getopt.h>
#include <grpc/status.h>
#include <stdlib.h>
#include <string.h>

#define METHOD      "/ingot.v1.Inference/Infer"
#define MAX_FILES   64
#define COUNT_MAX   1000000
#define DEADLINE_MS 60000
#define PEM_MAX     (1u << 20)

enum {
    OPT_INPUT = 1,
    OPT_OUTPUT,
    OPT_COUNT,
    OPT_DEADLINE,
    OPT_VERSION,
    OPT_RUN_DIR,
    OPT_ADDRESS,
    OPT_CA,
    OPT_CERT,
    OPT_KEY,
    OPT_PLAINTEXT,
    OPT_JSON,
};

static const struct ig_option options[] = {
    {OPT_INPUT, "input", "NAME=FILE",
     "An input tensor of the model and the .npy or .pb (ONNX TensorProto) file that has it. Once "
     "for each input."},
    {OPT_OUTPUT, "output", "NAME=FILE",
     "Write this output to a .npy or .pb file instead of printing it. May be repeated; the other "
     "outputs are then not asked for."},
    {OPT_COUNT, "count", "N",
     "Send the request N times, one after the other, and print the shortest, the median and the "
     "99th percentile of the times. The outputs are those of the last."},
    {OPT_DEADLINE, "deadline", "MS", "Give up after this many milliseconds. Default: 60000."},
    {OPT_VERSION, "version", "V", "The model's version. Default: the latest that is ready."},
    IG_OPTION_RUN_DIR(OPT_RUN_DIR),
    {OPT_ADDRESS, "address", "HOST:PORT",
     "A server to ask instead of the cluster in the run directory."},
    {OPT_CA, "ca", "FILE",
     "Certificates (PEM) to trust. Default: the run directory's own; with --address the system's."},
    {OPT_CERT, "cert", "FILE",
     "This client's certificate chain (PEM), for a server that asks for one (mutual TLS)."},
    {OPT_KEY, "key", "FILE", "The private key (PEM) of --cert."},
    {OPT_PLAINTEXT, "plaintext", NULL, "With --address: no TLS."},
    {OPT_JSON, "json", NULL, "Print one JSON object instead of text."},
    {0},
};

struct request {
    const char *model, *version, *run_dir, *address, *ca, *cert, *key;
    struct ig_binding inputs[MAX_FILES], outputs[MAX_FILES];
    unsigned n_inputs, n_outputs;
    uint64_t count, deadline_ms;
    bool plaintext, json;
};

static bool parse_option(const struct ig_command *command, int id, const char *value, void *target)
{
    struct request *request = target;
    switch (id) {
    case OPT_INPUT:
        return ig_add_binding(command, "input", value, request->inputs, MAX_FILES,
                              &request->n_inputs);
    case OPT_OUTPUT:
        return ig_add_binding(command, "output", value, request->outputs, MAX_FILES,
                              &request->n_outputs);
    case OPT_COUNT:
        return ig_take_number(command, "count", value, COUNT_MAX, &request->count);
    case OPT_DEADLINE:
        return ig_take_number(command, "deadline", value, 86400000, &request->deadline_ms);
    case OPT_VERSION:
        request->version = value;
        return true;
    case OPT_RUN_DIR:
        request->run_dir = value;
        return true;
    case OPT_ADDRESS:
        request->address = value;
        return true;
    case OPT_CA:
        request->ca = value;
        return true;
    case OPT_CERT:
        request->cert = value;
        return true;
    case OPT_KEY:
        request->key = value;
        return true;
    case OPT_PLAINTEXT:
        request->plaintext = true;
        return true;
    case OPT_JSON:
        request->json = true;
        return true;
    default:
        return false;
    }
}

/* --- where to */

struct target {
    char address[300];
    bool tls;
    char ca_path[PATH_MAX]; /* "" for the system's certificates */
};

/* A server that listens everywhere is dialled here. */
static void dialled(const char *bound, char *address, size_t size)
{
    static const struct {
        const char *wildcard, *local;
    } places[] = {{"0.0.0.0:", "127.0.0.1:"}, {"[::]:", "[::1]:"}};
    for (unsigned i = 0; i < CM_COUNT_OF(places); i++) {
        size_t length = strlen(places[i].wildcard);
        if (strncmp(bound, places[i].wildcard, length) == 0) {
            snprintf(address, size, "%s%s", places[i].local, bound + length);
            return;
        }
    }
    snprintf(address, size, "%s", bound);
}

/* The addresses that the cluster in the run directory has. An exit code. */
static int find_cluster(const struct ig_command *command, const struct request *request,
                        struct target *target)
{
    struct cm_error err = {0};
    char run_dir[PATH_MAX];
    json_t *status = NULL;
    if (ig_run_dir_resolve(request->run_dir, &err, run_dir) != CM_OK)
        return ig_usage(command, "%s", err.text);
    enum cm_err code = ig_cluster_status(run_dir, &err, &status);
    if (code != CM_OK)
        return ig_complain(command, code == CM_NOT_FOUND ? IG_EXIT_NO_CLUSTER : IG_EXIT_FAILURE,
                           "%s", err.text);
    const json_t *addresses = json_object_get(status, "addresses");
    const char *grpc = json_string_value(json_object_get(addresses, "grpc"));
    const char *ca = json_string_value(json_object_get(addresses, "ca"));
    if (grpc)
        dialled(grpc, target->address, sizeof target->address);
    target->tls = json_is_true(json_object_get(addresses, "tls"));
    snprintf(target->ca_path, sizeof target->ca_path, "%s",
             request->ca ? request->ca
             : ca        ? ca
                         : "");
    json_decref(status);
    if (!grpc)
        return ig_complain(
            command, IG_EXIT_UNAVAILABLE,
            "the cluster in %s is still starting: 'ingot status' shows how far it is", run_dir);
    return IG_EXIT_OK;
}

static int find_target(const struct ig_command *command, const struct request *request,
                       struct target *target)
{
    memset(target, 0, sizeof *target);
    if (!request->address)
        return find_cluster(command, request, target);
    if (strlen(request->address) >= sizeof target->address)
        return ig_usage(command, "--address is too long");
    snprintf(target->address, sizeof target->address, "%s", request->address);
    snprintf(target->ca_path, sizeof target->ca_path, "%s", request->ca ? request->ca : "");
    target->tls = !request->plaintext;
    return IG_EXIT_OK;
}

/* A PEM file that the command line named; NULL path gives NULL. An exit code. */
static int read_pem(const struct ig_command *command, const char *path, unsigned char **ret_pem)
{
    struct cm_error err = {0};
    size_t length = 0;
    if (path && ig_read_file(path, PEM_MAX, &err, ret_pem, &length) != CM_OK)
        return ig_usage(command, "%s", err.text);
    return IG_EXIT_OK;
}

static int open_rpc(const struct ig_command *command, const struct request *request,
                    const struct target *target, struct ig_rpc **ret_rpc)
{
    /* Where Debian keeps the public authorities. */
    static const char system_ca[] = "/etc/ssl/certs/ca-certificates.crt";
    struct cm_error err = {0};
    unsigned char *ca = NULL, *cert = NULL, *key = NULL;
    int code = IG_EXIT_OK;
    if (target->tls)
        code = read_pem(command, target->ca_path[0] ? target->ca_path : system_ca, &ca);
    if (code == IG_EXIT_OK)
        code = read_pem(command, request->cert, &cert);
    if (code == IG_EXIT_OK)
        code = read_pem(command, request->key, &key);
    struct ig_rpc_credentials credentials = {
        .ca_pem = (char *)ca, .cert_pem = (char *)cert, .key_pem = (char *)key};
    if (code == IG_EXIT_OK && ig_rpc_open(target->address, &credentials, &err, ret_rpc) != CM_OK)
        code = err.code == CM_INVALID ? ig_usage(command, "%s", err.text)
                                      : ig_complain(command, IG_EXIT_FAILURE, "%s", err.text);
    free(ca);
    free(cert);
    free(key);
    return code;
}

/* --- the request's bytes */

static int load_inputs(const struct ig_command *command, const struct request *request,
                       struct ig_tensor *tensors)
{
    struct cm_error err = {0};
    for (unsigned i = 0; i < request->n_inputs; i++)
        if (ig_tensor_read(request->inputs[i].file, &err, &tensors[i]) != CM_OK)
            return ig_usage(command, "%s", err.text);
    return IG_EXIT_OK;
}

/* The packed InferRequest; NULL without memory. */
static unsigned char *pack_request(const struct request *request, const struct ig_tensor *tensors,
                                   size_t *ret_length)
{
    Ingot__V1__InferRequest message = INGOT__V1__INFER_REQUEST__INIT;
    Ingot__V1__Tensor inputs[MAX_FILES], *input_list[MAX_FILES];
    char *output_list[MAX_FILES];
    for (unsigned i = 0; i < request->n_inputs; i++) {
        inputs[i] = (Ingot__V1__Tensor)INGOT__V1__TENSOR__INIT;
        inputs[i].name = (char *)request->inputs[i].name;
        inputs[i].datatype = (char *)cm_dtype_name(tensors[i].dtype);
        inputs[i].n_shape = tensors[i].shape.rank;
        inputs[i].shape = (int64_t *)tensors[i].shape.dims;
        inputs[i].data.data = tensors[i].data;
        inputs[i].data.len = tensors[i].bytes;
        input_list[i] = &inputs[i];
    }
    for (unsigned i = 0; i < request->n_outputs; i++)
        output_list[i] = (char *)request->outputs[i].name;
    message.model = (char *)request->model;
    message.version = (char *)(request->version ? request->version : "");
    message.n_inputs = request->n_inputs;
    message.inputs = input_list;
    message.n_outputs = request->n_outputs;
    message.outputs = output_list;
    size_t length = ingot__v1__infer_request__get_packed_size(&message);
    unsigned char *bytes = malloc(length + 1);
    if (bytes)
        ingot__v1__infer_request__pack(&message, bytes);
    *ret_length = length;
    return bytes;
}

/* --- the answer */

static enum ig_exit exit_of_status(int status)
{
    switch (status) {
    case GRPC_STATUS_OK:
        return IG_EXIT_OK;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
    case GRPC_STATUS_CANCELLED:
        return IG_EXIT_DEADLINE;
    case GRPC_STATUS_UNAVAILABLE:
    case GRPC_STATUS_RESOURCE_EXHAUSTED:
    case GRPC_STATUS_ABORTED:
        return IG_EXIT_UNAVAILABLE;
    case GRPC_STATUS_UNKNOWN:
    case GRPC_STATUS_INTERNAL:
    case GRPC_STATUS_DATA_LOSS:
        return IG_EXIT_SERVER;
    default:
        return IG_EXIT_REFUSED;
    }
}

/* The server is believed as little as a file is. */
static enum cm_err take_tensor(const Ingot__V1__Tensor *from, struct cm_error *err,
                               struct ig_tensor *to)
{
    struct cm_shape shape = {0};
    size_t bytes = 0;
    enum cm_dtype dtype = cm_dtype_from_name(from->datatype, strlen(from->datatype));
    if (dtype == CM_DTYPE_NONE || from->n_shape > CM_MAX_RANK)
        return cm_fail(err, CM_CORRUPT, "output '%.100s' has an unknown type or rank", from->name);
    shape.rank = (uint8_t)from->n_shape;
    for (unsigned i = 0; i < shape.rank; i++)
        shape.dims[i] = from->shape[i];
    if (cm_shape_bytes(&shape, dtype, &bytes) != CM_OK || bytes != from->data.len)
        return cm_fail(err, CM_CORRUPT, "output '%.100s' has not the bytes of its shape",
                       from->name);
    enum cm_err code = ig_tensor_init(to, dtype, &shape, err);
    if (code != CM_OK)
        return code;
    snprintf(to->name, sizeof to->name, "%s", from->name);
    if (bytes)
        memcpy(to->data, from->data.data, bytes);
    return CM_OK;
}

/* X(field, meaning): the stages in order. */
#define STAGE_MAP(X)                                \
    X(decode_us, "gateway: bytes to shared memory") \
    X(submit_us, "gateway to scheduler")            \
    X(queue_us, "waiting for a batch and a worker") \
    X(dispatch_us, "scheduler to worker")           \
    X(gather_us, "worker: rows into the batch")     \
    X(execute_us, "worker: the model")              \
    X(return_us, "worker to gateway")               \
    X(total_us, "gateway: first byte decoded to reply made")

static void show_stats(const Ingot__V1__InferStats *stats)
{
    printf("\n%-12s %12s\n", "STAGE", "us");
#define X(field, meaning) \
    printf("%-12.*s %12.1f  %s\n", (int)sizeof #field - 4, #field, stats->field, meaning);
    STAGE_MAP(X)
#undef X
    printf("batch of %u rows from %u requests on worker %u, attempt %u, trace %s\n",
           stats->batch_rows, stats->batch_requests, stats->worker, stats->attempts,
           stats->trace_id);
}

static json_t *stats_json(const Ingot__V1__InferStats *stats)
{
    json_t *root =
        json_pack("{s:i, s:i, s:i, s:i, s:s}", "batch_rows", (int)stats->batch_rows,
                  "batch_requests", (int)stats->batch_requests, "worker", (int)stats->worker,
                  "attempts", (int)stats->attempts, "trace_id", stats->trace_id);
#define X(field, meaning) json_object_set_new(root, #field, json_real(stats->field));
    STAGE_MAP(X)
#undef X
    return root;
}

/* Prints one output or writes it to the file that was named for it. */
static enum cm_err place_output(const struct request *request, const struct ig_tensor *tensor,
                                json_t *list, struct cm_error *err)
{
    const char *file = ig_binding_file(request->outputs, request->n_outputs, tensor->name);
    enum cm_err code = file ? ig_tensor_write(file, tensor, err) : CM_OK;
    if (code == CM_OK)
        ig_show_output(tensor, file, list);
    return code;
}

static int show_reply(const struct ig_command *command, const struct request *request,
                      const Ingot__V1__InferResponse *reply, const struct ig_latency *latency)
{
    struct cm_error err = {0};
    json_t *list = request->json ? json_array() : NULL;
    enum cm_err code = CM_OK;
    if (!request->json)
        printf("%s version %s\n", reply->model, reply->version);
    for (size_t i = 0; i < reply->n_outputs && code == CM_OK; i++) {
        struct ig_tensor tensor = {0};
        code = take_tensor(reply->outputs[i], &err, &tensor);
        if (code == CM_OK)
            code = place_output(request, &tensor, list, &err);
        ig_tensor_fini(&tensor);
    }
    if (code != CM_OK) {
        json_decref(list);
        return ig_complain(command, code == CM_CORRUPT ? IG_EXIT_SERVER : IG_EXIT_FAILURE, "%s",
                           err.text);
    }
    if (request->json) {
        json_t *root =
            json_pack("{s:s, s:s, s:o, s:o}", "model", reply->model, "version", reply->version,
                      "outputs", list, "latency_us", ig_latency_json(latency));
        json_object_set_new(root, "stats", reply->stats ? stats_json(reply->stats) : json_null());
        json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
        json_decref(root);
        return IG_EXIT_OK;
    }
    if (reply->stats)
        show_stats(reply->stats);
    ig_show_latency(stdout, latency);
    return IG_EXIT_OK;
}

/* --- the calls */

static int call(const struct ig_command *command, const struct request *request, struct ig_rpc *rpc,
                const void *bytes, size_t length)
{
    struct ig_rpc_result result = {0};
    uint64_t *times_ns = calloc(request->count, sizeof *times_ns);
    if (!times_ns)
        return ig_complain(command, IG_EXIT_FAILURE, "no memory for %llu times",
                           (unsigned long long)request->count);
    for (uint64_t i = 0; i < request->count; i++) {
        ig_rpc_result_fini(&result);
        ig_rpc_call(rpc, METHOD, bytes, length, request->deadline_ms, &result);
        times_ns[i] = result.took_ns;
        if (result.status != GRPC_STATUS_OK) {
            free(times_ns);
            return ig_complain(command, exit_of_status(result.status), "%s: %s",
                               ig_rpc_status_name(result.status), result.message);
        }
    }
    struct ig_latency latency = ig_latency_of(times_ns, request->count);
    free(times_ns);
    Ingot__V1__InferResponse *reply =
        ingot__v1__infer_response__unpack(NULL, result.reply_length, result.reply);
    ig_rpc_result_fini(&result);
    if (!reply)
        return ig_complain(command, IG_EXIT_SERVER, "the server's reply is not an InferResponse");
    int code = show_reply(command, request, reply, &latency);
    ingot__v1__infer_response__free_unpacked(reply, NULL);
    return code;
}

static int infer(const struct ig_command *command, const struct request *request)
{
    struct ig_tensor tensors[MAX_FILES] = {0};
    struct target target;
    struct ig_rpc *rpc = NULL;
    unsigned char *bytes = NULL;
    size_t length = 0;
    int code = load_inputs(command, request, tensors);
    if (code == IG_EXIT_OK) {
        bytes = pack_request(request, tensors, &length);
        if (!bytes)
            code = ig_complain(command, IG_EXIT_FAILURE, "no memory for the request");
    }
    for (unsigned i = 0; i < request->n_inputs; i++)
        ig_tensor_fini(&tensors[i]);
    if (code == IG_EXIT_OK)
        code = find_target(command, request, &target);
    if (code == IG_EXIT_OK)
        code = open_rpc(command, request, &target, &rpc);
    if (code == IG_EXIT_OK)
        code = call(command, request, rpc, bytes, length);
    ig_rpc_close(rpc);
    free(bytes);
    return code;
}

static int run_infer(const struct ig_command *command, int argc, char **argv)
{
    struct request request = {.count = 1, .deadline_ms = DEADLINE_MS};
    int code = ig_take_options(command, argc, argv, parse_option, &request, 1);
    if (code != IG_OPTIONS_TAKEN)
        return code;
    if (optind >= argc)
        return ig_usage(command, "which model? 'ingot models' lists them");
    if (request.plaintext && !request.address)
        return ig_usage(command, "--plaintext goes with --address; a run directory says itself "
                                 "whether its cluster uses TLS");
    if (!request.cert != !request.key)
        return ig_usage(command, "--cert and --key go together");
    request.model = argv[optind];
    return infer(command, &request);
}

const struct ig_command ig_command_infer = {
    .name = "infer",
    .summary = "send tensors to a model and print what it answers",
    .synopsis = "MODEL --input NAME=FILE... [--output NAME=FILE]... [--count N] [--deadline MS] "
                "[--version V] [--run-dir DIR | --address HOST:PORT [--ca FILE | --plaintext]] "
                "[--cert FILE --key FILE] "
                "[--json]",
    .description =
        "Calls ingot.v1.Inference/Infer over gRPC, as any client would, and prints the outputs "
        "(cut if they are long), the largest element of each row of a two-dimensional float "
        "output, the time of each stage inside the cluster, and the time of the whole call as this "
        "client saw it.\n"
        "\n"
        "'ingot models' shows a model's inputs with their types and shapes. .npy files must be "
        "little endian and in C order, as NumPy writes them.\n"
        "\n"
        "With --json: an object with model, version, outputs [{name, datatype, shape, data, "
        "argmax}], stats and latency_us {count, min, median, p99}.",
    .options = options,
    .files = "RUN-DIR/tls/ca.pem\tTrusted when the cluster made its own certificate.",
    .exit_codes = IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE) |
                  IG_EXIT_BIT(NO_CLUSTER) | IG_EXIT_BIT(REFUSED) | IG_EXIT_BIT(UNAVAILABLE) |
                  IG_EXIT_BIT(DEADLINE) | IG_EXIT_BIT(SERVER),
    .example = " $ ingot infer digits --input image=deploy/demo/samples/digit-7.npy",
    .run = run_infer,
};
