/* `ingot run`: a model offline, with the worker's engine. Main thread. */
#include "common/check.h"
#include "deploy/ingot/command.h"
#include "deploy/ingot/explain.h"
#include "deploy/ingot/offline.h"
#include "deploy/ingot/show.h"
#include "deploy/ingot/testdir.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPEAT_MAX  10000000
#define THREADS_MAX 256

enum {
    OPT_INPUT = 1,
    OPT_OUTPUT,
    OPT_THREADS,
    OPT_ISA,
    OPT_REPEAT,
    OPT_TEST_DIR,
    OPT_RTOL,
    OPT_ATOL,
    OPT_EXPLAIN,
    OPT_NO_PASS,
    OPT_PASSES,
    OPT_OPS,
    OPT_JSON,
};

static const struct ig_option options[] = {
    {OPT_INPUT, "input", "NAME=FILE",
     "An input of the model and the .npy or .pb (ONNX TensorProto) file that has it. Once for each "
     "input."},
    {OPT_OUTPUT, "output", "NAME=FILE",
     "Write this output to a .npy or .pb file instead of printing it. May be repeated."},
    {OPT_THREADS, "threads", "N", "Compute threads. Default: 1. The result does not depend on it."},
    {OPT_ISA, "isa", "scalar|avx2|avx512",
     "Kernels to use. Default: the best that this machine has. The result does not depend on it."},
    {OPT_REPEAT, "repeat", "N",
     "Run N times and print the shortest, the median and the 99th percentile of the times."},
    {OPT_TEST_DIR, "test-dir", "DIR",
     "Run an ONNX test case folder (model.onnx, test_data_set_*/input_*.pb and output_*.pb) and "
     "compare the outputs. No MODEL, --input or --output."},
    {OPT_RTOL, "rtol", "R",
     "With --test-dir: allow |computed - expected| <= A + R * |expected|. Default: 1e-3."},
    {OPT_ATOL, "atol", "A", "With --test-dir: see --rtol. Default: 1e-7."},
    {OPT_EXPLAIN, "explain", NULL,
     "Print the plan: the nodes in their order after all passes, the kernel that each runs, its "
     "output, bytes and operations, and how long it took (the median of --repeat runs)."},
    {OPT_NO_PASS, "no-pass", "NAME",
     "Leave out a pass over the graph, for debugging, or all of them. May be repeated. "
     "--passes lists the names."},
    {OPT_PASSES, "passes", NULL, "Print the passes over a graph in their order and end."},
    {OPT_OPS, "ops", NULL, "Print the table of supported operators and end."},
    {OPT_JSON, "json", NULL, "Print one JSON object instead of text."},
    {0},
};

struct request {
    const char *model, *test_dir;
    struct ig_binding inputs[WK_MAX_IO], outputs[WK_MAX_IO];
    unsigned n_inputs, n_outputs;
    uint64_t repeat;
    struct wk_engine_options engine;
    struct ig_tolerance tolerance;
    uint64_t disabled_passes;
    bool ops, passes, explain, json;
};

static bool parse_tolerance(const struct ig_command *command, const char *option, const char *value,
                            double *ret_number)
{
    char *end = NULL;
    errno = 0;
    double number = strtod(value, &end);
    if (end == value || *end || !isfinite(number) || number < 0) {
        ig_usage(command, "--%s '%s' is not a number of at least 0", option, value);
        return false;
    }
    *ret_number = number;
    return true;
}

static void print_passes(FILE *out)
{
    for (unsigned i = 0; wk_pass_name(i); i++)
        fprintf(out, "%-12s %s\n", wk_pass_name(i), wk_pass_summary(i));
}

static bool parse_pass(const struct ig_command *command, const char *value, uint64_t *passes)
{
    uint64_t bits;
    char names[512] = "";
    size_t used = 0;
    if (wk_pass_from_name(value, &bits)) {
        *passes |= bits;
        return true;
    }
    for (unsigned i = 0; wk_pass_name(i) && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s, ", wk_pass_name(i));
    ig_usage(command, "--no-pass '%s' is none of %sall", value, names);
    return false;
}

static bool parse_option(const struct ig_command *command, int id, const char *value, void *target)
{
    struct request *request = target;
    uint64_t number;
    switch (id) {
    case OPT_INPUT:
        return ig_add_binding(command, "input", value, request->inputs, WK_MAX_IO,
                              &request->n_inputs);
    case OPT_OUTPUT:
        return ig_add_binding(command, "output", value, request->outputs, WK_MAX_IO,
                              &request->n_outputs);
    case OPT_THREADS:
        if (!ig_take_number(command, "threads", value, THREADS_MAX, &number))
            return false;
        request->engine.threads = (unsigned)number;
        return true;
    case OPT_ISA:
        request->engine.isa_given = wk_isa_from_name(value, &request->engine.isa);
        if (!request->engine.isa_given)
            ig_usage(command, "--isa '%s' is not scalar, avx2 or avx512", value);
        return request->engine.isa_given;
    case OPT_REPEAT:
        return ig_take_number(command, "repeat", value, REPEAT_MAX, &request->repeat);
    case OPT_TEST_DIR:
        request->test_dir = value;
        return true;
    case OPT_RTOL:
        return parse_tolerance(command, "rtol", value, &request->tolerance.relative);
    case OPT_ATOL:
        return parse_tolerance(command, "atol", value, &request->tolerance.absolute);
    case OPT_EXPLAIN:
        request->explain = true;
        return true;
    case OPT_NO_PASS:
        return parse_pass(command, value, &request->disabled_passes);
    case OPT_PASSES:
        request->passes = true;
        return true;
    case OPT_OPS:
        request->ops = true;
        return true;
    case OPT_JSON:
        request->json = true;
        return true;
    default:
        return false;
    }
}

/* --- test cases */

static void print_set(const json_t *set)
{
    size_t i;
    json_t *output;
    const char *error = json_string_value(json_object_get(set, "error"));
    printf("%s: %s%s%s\n", json_string_value(json_object_get(set, "name")),
           json_is_true(json_object_get(set, "passed")) ? "passed" : "FAILED", error ? ": " : "",
           error ? error : "");
    json_array_foreach(json_object_get(set, "outputs"), i, output)
    {
        const char *why = json_string_value(json_object_get(output, "error"));
        const char *name = json_string_value(json_object_get(output, "name"));
        if (why)
            printf("    %s: %s\n", name, why);
        else
            printf("    %s: %lld of %lld elements differ; largest error %.3g absolute, %.3g "
                   "relative\n",
                   name, (long long)json_integer_value(json_object_get(output, "mismatches")),
                   (long long)json_integer_value(json_object_get(output, "elements")),
                   json_real_value(json_object_get(output, "max_absolute_error")),
                   json_real_value(json_object_get(output, "max_relative_error")));
    }
}

static int run_test_dir(const struct ig_command *command, const struct request *request)
{
    struct cm_error err = {0};
    json_t *report = NULL;
    struct ig_testdir_options test = {.dir = request->test_dir,
                                      .engine = request->engine,
                                      .disabled_passes = request->disabled_passes,
                                      .tolerance = request->tolerance};
    if (ig_testdir_run(&test, &err, &report) != CM_OK)
        return ig_complain(command, IG_EXIT_USAGE, "%s", err.text);
    bool passed = json_is_true(json_object_get(report, "passed"));
    if (request->json) {
        json_dumpf(report, stdout, JSON_INDENT(2));
        printf("\n");
    } else {
        size_t i;
        json_t *set;
        json_array_foreach(json_object_get(report, "sets"), i, set) print_set(set);
    }
    json_decref(report);
    return passed ? IG_EXIT_OK : IG_EXIT_FAILURE;
}

/* --- one model */

static int find_name(const struct wk_tensor_info *list, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* "image FP32 [-1,1,8,8], ..." for a message. */
static const char *list_names(const struct wk_tensor_info *list, unsigned count, char *text,
                              size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < count && used < size; i++) {
        char shape[128];
        used += (size_t)snprintf(text + used, size - used, "%s%s %s %s", i ? ", " : "",
                                 list[i].name, cm_dtype_name(list[i].dtype),
                                 cm_shape_format(&list[i].shape, shape, sizeof shape));
    }
    return text;
}

/* The files' tensors in the signature's order. An exit code. */
static int load_inputs(const struct ig_command *command, const struct request *request,
                       const struct wk_signature *signature, struct ig_tensor *tensors)
{
    struct cm_error err = {0};
    char names[512];
    list_names(signature->inputs, signature->n_inputs, names, sizeof names);
    for (unsigned i = 0; i < request->n_inputs; i++) {
        int at = find_name(signature->inputs, signature->n_inputs, request->inputs[i].name);
        if (at < 0)
            return ig_usage(command, "the model has no input '%s'; its inputs are: %s",
                            request->inputs[i].name, names);
        if (ig_tensor_read(request->inputs[i].file, &err, &tensors[at]) != CM_OK)
            return ig_usage(command, "%s", err.text);
    }
    for (unsigned i = 0; i < signature->n_inputs; i++)
        if (!tensors[i].data)
            return ig_usage(command, "input '%s' is missing; the model's inputs are: %s",
                            signature->inputs[i].name, names);
    return IG_EXIT_OK;
}

static int check_outputs(const struct ig_command *command, const struct request *request,
                         const struct wk_signature *signature)
{
    char names[512];
    for (unsigned i = 0; i < request->n_outputs; i++)
        if (find_name(signature->outputs, signature->n_outputs, request->outputs[i].name) < 0)
            return ig_usage(
                command, "the model has no output '%s'; its outputs are: %s",
                request->outputs[i].name,
                list_names(signature->outputs, signature->n_outputs, names, sizeof names));
    return IG_EXIT_OK;
}

/* Writes outputs to their files, prints the others. An exit code. */
static int place_outputs(const struct ig_command *command, const struct request *request,
                         const struct ig_tensor *outputs, unsigned count, json_t *list)
{
    struct cm_error err = {0};
    for (unsigned i = 0; i < count; i++) {
        const char *file = ig_binding_file(request->outputs, request->n_outputs, outputs[i].name);
        if (file && ig_tensor_write(file, &outputs[i], &err) != CM_OK)
            return ig_complain(command, IG_EXIT_FAILURE, "%s", err.text);
        ig_show_output(&outputs[i], file, list);
    }
    return IG_EXIT_OK;
}

static int show(const struct ig_command *command, const struct request *request,
                const struct ig_offline *offline, const struct ig_tensor *outputs,
                const struct ig_latency *latency, json_t *plan)
{
    const char *isa = wk_isa_name(wk_engine_isa(offline->engine));
    unsigned count = wk_model_signature(offline->model)->n_outputs;
    json_t *list = request->json ? json_array() : NULL;
    int code = place_outputs(command, request, outputs, count, list);
    if (code != IG_EXIT_OK) {
        json_decref(list);
        return code;
    }
    if (!request->json) {
        ig_show_latency(stdout, latency);
        if (plan)
            ig_explain_print(stdout, plan);
        return code;
    }
    json_t *root = json_pack("{s:s, s:s, s:o, s:o}", "model", request->model, "isa", isa, "outputs",
                             list, "latency_us", ig_latency_json(latency));
    if (plan)
        json_object_set(root, "plan", plan);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(root);
    return code;
}

static int run_model(const struct ig_command *command, const struct request *request,
                     struct ig_offline *offline)
{
    const struct wk_signature *signature = wk_model_signature(offline->model);
    struct ig_tensor inputs[WK_MAX_IO] = {0}, outputs[WK_MAX_IO] = {0};
    struct cm_error err = {0};
    uint64_t *times_ns = calloc(request->repeat, sizeof *times_ns);
    json_t *plan = NULL;
    int code = times_ns ? check_outputs(command, request, signature)
                        : ig_complain(command, IG_EXIT_FAILURE, "no memory for the times");
    if (code == IG_EXIT_OK)
        code = load_inputs(command, request, signature, inputs);
    if (code == IG_EXIT_OK) {
        enum cm_err result = ig_offline_run(offline, inputs, request->repeat, times_ns,
                                            request->explain ? &plan : NULL, &err, outputs);
        if (result != CM_OK)
            code = ig_complain(command, result == CM_INVALID ? IG_EXIT_USAGE : IG_EXIT_FAILURE,
                               "%s", err.text);
    }
    if (code == IG_EXIT_OK) {
        struct ig_latency latency = ig_latency_of(times_ns, request->repeat);
        code = show(command, request, offline, outputs, &latency, plan);
    }
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        ig_tensor_fini(&inputs[i]);
        ig_tensor_fini(&outputs[i]);
    }
    json_decref(plan);
    free(times_ns);
    return code;
}

static int run_file(const struct ig_command *command, const struct request *request)
{
    struct cm_error err = {0};
    struct ig_offline offline = {0};
    if (ig_offline_open(request->model, &request->engine, request->disabled_passes, &err,
                        &offline) != CM_OK)
        return ig_complain(command, err.code == CM_NOMEM ? IG_EXIT_FAILURE : IG_EXIT_USAGE, "%s",
                           err.text);
    int code = run_model(command, request, &offline);
    ig_offline_close(&offline);
    return code;
}

static int run_run(const struct ig_command *command, int argc, char **argv)
{
    struct request request = {.repeat = 1,
                              .tolerance = {IG_TOLERANCE_RELATIVE, IG_TOLERANCE_ABSOLUTE}};
    int code = ig_take_options(command, argc, argv, parse_option, &request, 1);
    if (code != IG_OPTIONS_TAKEN)
        return code;
    if (request.ops) {
        fputs(wk_engine_ops_text(), stdout);
        return IG_EXIT_OK;
    }
    if (request.passes) {
        print_passes(stdout);
        return IG_EXIT_OK;
    }
    if (request.test_dir) {
        if (optind < argc)
            return ig_usage(command, "unexpected argument '%s'", argv[optind]);
        if (request.n_inputs || request.n_outputs)
            return ig_usage(command, "--test-dir has its own inputs and outputs");
        if (request.explain)
            return ig_usage(command, "--explain is about one run, --test-dir has several");
        return run_test_dir(command, &request);
    }
    if (optind == argc)
        return ig_usage(command, "which model? Name its .onnx file");
    request.model = argv[optind];
    return run_file(command, &request);
}

const struct ig_command ig_command_run = {
    .name = "run",
    .summary = "execute an ONNX model in this process, without a cluster",
    .synopsis = "MODEL.onnx --input NAME=FILE... [--output NAME=FILE]... [--threads N] [--isa "
                "scalar|avx2|avx512] [--repeat N] [--explain] [--no-pass NAME]... [--json]\n"
                "--test-dir DIR [--rtol R] [--atol A] [--threads N] [--isa ISA] "
                "[--no-pass NAME]... [--json]\n"
                "--ops\n"
                "--passes",
    .description =
        "Loads the model with the worker's own engine, runs it and prints the outputs (cut if they "
        "are long) and the time. What a cluster answers is the same to the last bit, whatever the "
        "batch, the instruction set or the number of threads.\n"
        "\n"
        "With --test-dir a folder in the form of ONNX's backend tests is run and each output "
        "compared with the expected one; the largest errors are printed, and the exit status is 0 "
        "only if all of them fit.\n"
        "\n"
        "A model that the engine cannot run is refused with the operator, its version and the "
        "node.",
    .options = options,
    .files = NULL,
    .exit_codes = IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE),
    .example = " $ ingot run deploy/demo/models/digits/1/model.onnx --isa scalar \\\n"
               "       --input image=deploy/demo/samples/digit-7.npy --repeat 1000\n"
               " $ ingot run --test-dir /usr/share/onnx/node/test_conv_with_autopad_same",
    .run = run_run,
};
