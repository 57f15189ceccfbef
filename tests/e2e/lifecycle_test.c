/* The life of a real cluster as its user sees it: start, requests through the command line, deaths,
 * refusals, stop. */
#include "tests/harness/cluster.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLE "image=" SOURCE_DIR "/deploy/demo/samples/digit-7.npy"

static const struct tc_options demo = {.workers = 2};

static int set_up(void **state)
{
    static struct tc_cluster cluster;
    tc_init(&cluster);
    *state = &cluster;
    return 0;
}

static int tear_down(void **state)
{
    tc_fini(*state);
    return 0;
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

#define INGOT(cluster, result, command, ...) \
    tc_ingot((cluster), (command), (const char *const[]){__VA_ARGS__, NULL}, (result))

static void infer_digit(struct tc_cluster *cluster)
{
    struct tc_result result;
    INGOT(cluster, &result, "infer", "digits", "--input", SAMPLE, "--deadline", "15000");
    if (result.status != 0)
        fail_msg("ingot infer ended with %d: %s", result.status, result.errors);
    assert_contains(result.output, "largest at 7");
}

static void serves_and_stops(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    tc_start(cluster, &demo);
    assert_contains(cluster->up.output, "model digits version 1: ready on 2 workers");
    assert_true(cluster->ca[0] != '\0'); /* TLS is the default */
    INGOT(cluster, &result, "status", NULL);
    assert_int_equal(result.status, 0);
    infer_digit(cluster);
    pid_t gateway = tc_pid(cluster, "gateway", 0), memmgr = tc_pid(cluster, "memmgr", 0);
    assert_int_equal(tc_down(cluster), 0);
    assert_int_equal(kill(gateway, 0), -1);
    assert_int_equal(kill(memmgr, 0), -1);
    tc_start(cluster, &demo); /* the run directory can be used again */
    infer_digit(cluster);
}

static void infer_says_what_happened(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    char output[T_PATH_MAX + 64];
    tc_start(cluster, &demo);
    INGOT(cluster, &result, "infer", "digits", "--input", SAMPLE, "--json", "--count", "20");
    assert_int_equal(result.status, 0);
    json_t *root = json_loads(result.output, 0, NULL);
    json_t *first = json_array_get(json_object_get(root, "outputs"), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(first, "argmax"), 0)), 7);
    json_t *stats = json_object_get(root, "stats");
    assert_true(json_real_value(json_object_get(stats, "total_us")) > 0);
    assert_true(json_real_value(json_object_get(stats, "execute_us")) > 0);
    assert_int_equal(json_integer_value(json_object_get(stats, "attempts")), 1);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "latency_us"), "count")), 20);
    json_decref(root);

    snprintf(output, sizeof output, "probabilities=%s/out.npy", cluster->dir);
    INGOT(cluster, &result, "infer", "digits", "--input", SAMPLE, "--output", output);
    assert_int_equal(result.status, 0);
    assert_int_equal(access(strchr(output, '/'), R_OK), 0);

    INGOT(cluster, &result, "infer", "nothing", "--input", SAMPLE);
    assert_int_equal(result.status, 5);
    assert_contains(result.errors, "NOT_FOUND");
    INGOT(cluster, &result, "infer", "digits", "--version", "7", "--input", SAMPLE);
    assert_int_equal(result.status, 5);
    INGOT(cluster, &result, "infer", "digits", "--input",
          "image=" SOURCE_DIR "/deploy/demo/heldout/images.npy"); /* UINT8 */
    assert_int_equal(result.status, 5);
    assert_contains(result.errors, "INVALID_ARGUMENT");
    INGOT(cluster, &result, "infer", "digits", "--input", "image=/nonexistent.npy");
    assert_int_equal(result.status, 2);
    INGOT(cluster, &result, "infer", "digits", "--input", SAMPLE, "--ca", "/etc/hostname");
    assert_int_not_equal(result.status, 0);
    INGOT(cluster, &result, "infer", "digits", "--input", SAMPLE, "--address", "127.0.0.1:1",
          "--plaintext", "--deadline", "3000");
    assert_true(result.status == 6 || result.status == 7); /* nobody listens there */
}

static void models_and_memory_are_shown(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    tc_start(cluster, &demo);
    infer_digit(cluster);
    INGOT(cluster, &result, "models", "--json");
    assert_int_equal(result.status, 0);
    json_t *root = json_loads(result.output, 0, NULL);
    json_t *model = json_array_get(json_object_get(root, "models"), 0);
    assert_string_equal(json_string_value(json_object_get(model, "name")), "digits");
    assert_string_equal(json_string_value(json_object_get(model, "state")), "ready");
    assert_int_equal(json_array_size(json_object_get(model, "workers")), 2);
    assert_true(json_is_true(json_object_get(model, "batchable")));
    assert_int_equal(json_integer_value(json_object_get(model, "requests")), 1);
    json_decref(root);
    INGOT(cluster, &result, "models", NULL);
    assert_contains(result.output, "input   image FP32 [-1,1,8,8]");

    INGOT(cluster, &result, "mem", "--json");
    assert_int_equal(result.status, 0);
    root = json_loads(result.output, 0, NULL);
    json_int_t sum = 0, weights = 0;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(root, "entries"), i, entry)
    {
        sum += json_integer_value(json_object_get(entry, "bytes"));
        weights += strcmp(json_string_value(json_object_get(entry, "kind")), "weights") == 0;
    }
    assert_int_equal(sum, json_integer_value(json_object_get(root, "total_bytes")));
    assert_int_equal(weights, 1); /* two workers, one copy */
    json_decref(root);
    INGOT(cluster, &result, "mem", NULL);
    assert_contains(result.output, "digits/1");
}

static bool answers(void *ctx)
{
    struct tc_result result;
    INGOT(ctx, &result, "infer", "digits", "--input", SAMPLE, "--deadline", "2000");
    return result.status == 0;
}

static bool all_ready(void *ctx)
{
    struct tc_result result;
    INGOT(ctx, &result, "status", NULL);
    return result.status == 0;
}

static void each_process_comes_back(void **state)
{
    static const struct {
        const char *role;
        int index;
    } processes[] = {{"worker", 0}, {"worker", 1}, {"scheduler", 0}, {"gateway", 0}, {"memmgr", 0}};
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &demo);
    for (unsigned i = 0; i < sizeof processes / sizeof processes[0]; i++) {
        pid_t old = tc_kill(cluster, processes[i].role, processes[i].index);
        tc_wait_ready(cluster, processes[i].role, processes[i].index, old);
        tc_wait("an answer after a death", answers, cluster);
        tc_wait("everything ready again", all_ready, cluster);
    }
}

static void second_up_is_refused(void **state)
{
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &demo);
    assert_int_equal(tc_up(cluster, &demo), 2);
    assert_contains(cluster->up.errors, "already running");
    infer_digit(cluster);
}

/* A start that cannot succeed says why and leaves nothing behind. */
static void occupied_port_fails_the_start(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    char text[64];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(address.sin_port));
    const char *args[] = {"--grpc", text, NULL};
    struct tc_options options = {.args = args};
    assert_int_not_equal(tc_up(cluster, &options), 0);
    assert_contains(cluster->up.errors, "gateway.0");
    assert_contains(cluster->up.errors, text);
    close(fd);
    INGOT(cluster, &result, "status", NULL);
    assert_int_equal(result.status, 3);
}

static void write_text(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

/* One model of rubbish beside the good one: it says why, and harms nothing. */
static void bad_model_harms_nothing(void **state)
{
    struct tc_cluster *cluster = *state;
    struct tc_result result;
    char models[T_PATH_MAX], path[T_PATH_MAX + 64];
    snprintf(models, sizeof models, "%.200s/models", cluster->dir);
    const char *copy[] = {"/usr/bin/env", "cp", "-r", SOURCE_DIR "/deploy/demo/models",
                          models,         NULL};
    tc_run(copy, 10000, &result);
    assert_int_equal(result.status, 0);
    snprintf(path, sizeof path, "%s/rubbish", models);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/rubbish/1", models);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/rubbish/1/model.onnx", models);
    write_text(path, "this is no model");
    struct tc_options options = {.models = models};
    tc_start(cluster, &options);
    assert_contains(cluster->up.output, "model digits version 1: ready");
    assert_contains(cluster->up.output, "model rubbish version 1: failed: ");
    infer_digit(cluster);
    INGOT(cluster, &result, "status", NULL);
    assert_int_equal(result.status, 4);
    INGOT(cluster, &result, "infer", "rubbish", "--input", SAMPLE);
    assert_int_equal(result.status, 5);
    assert_contains(result.errors, "FAILED_PRECONDITION");
}

static void plaintext_when_asked_for(void **state)
{
    static const char *const args[] = {"--plaintext", NULL};
    struct tc_options options = {.args = args};
    struct tc_cluster *cluster = *state;
    tc_start(cluster, &options);
    assert_string_equal(cluster->ca, "");
    assert_contains(cluster->up.output, "(plaintext)");
    infer_digit(cluster);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(serves_and_stops),        T(infer_says_what_happened), T(models_and_memory_are_shown),
        T(each_process_comes_back), T(second_up_is_refused),     T(occupied_port_fails_the_start),
        T(bad_model_harms_nothing), T(plaintext_when_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
