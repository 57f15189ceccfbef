/* The gateway as a process, around its calls: connections, health, the admin port, certificates,
 * the end. */
#include "tests/gateway/server_kit.h"

#include "common/clock.h"
#include "proto/health.pb-c.h"
#include "tests/gateway/pem.h"

#include <arpa/inet.h>
#include <grpc/grpc_security.h>
#include <jansson.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A TCP connection to the gateway that says nothing. */
static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port =
                                      htons((uint16_t)atoi(strrchr(grpc_address, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void service_resumes_after_a_flood_of_connections(void **state)
{
    (void)state;
    enum { FLOOD = 150 };
    int links[FLOOD];
    start_all(NULL);
    struct rlimit few = {64, 64};
    assert_int_equal(prlimit(gateway_pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < FLOOD; i++)
        links[i] = dial();
    T_WAIT(&loop, gateway_counter("connections_exhausted") > 0);
    for (int i = 0; i < FLOOD; i++)
        close(links[i]);
    T_WAIT(&loop, gateway_counter("connections") < 10);
    client_infer(&call, channel, "small", 1, NULL, 20000);
    reply_output(request_of(0), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    stop_all();
}

static void connections_have_a_cap(void **state)
{
    (void)state;
    int links[8];
    start_all((const char *[]){"--max-connections", "4", NULL});
    client_infer(&call, channel, "small", 1, NULL, 10000);
    reply_output(request_of(0), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    for (int i = 0; i < 8; i++)
        links[i] = dial();
    T_WAIT(&loop, gateway_counter("connections_capped") == 5);
    client_infer(&call, channel, "small", 1, NULL, 10000); /* whoever is in is served */
    reply_output(request_of(1), 0, 1, SMALL, 0);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    for (int i = 0; i < 8; i++)
        close(links[i]);
    stop_all();
}

/* Until the gateway has heard that it is to stop. */
static void until_refused(void)
{
    struct client_call refused;
    for (;;) {
        client_infer(&refused, channel, "none", 1, NULL, 1000);
        client_wait(&refused);
        grpc_status_code status = refused.status;
        client_fini(&refused);
        if (status == GRPC_STATUS_UNAVAILABLE)
            return;
        assert_int_equal(status, GRPC_STATUS_NOT_FOUND);
    }
}

/* The stop has been asked for: a second signal would end it at once. */
static void gateway_ends(void)
{
    int status = 0;
    T_WAIT(&loop, waitpid(gateway_pid, &status, WNOHANG) == gateway_pid);
    gateway_pid = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_stop_waits_for_open_calls(void **state)
{
    (void)state;
    start_all(NULL);
    client_infer(&call, channel, "small", 1, NULL, 20000);
    uint64_t request = request_of(0);
    kill(gateway_pid, SIGTERM);
    until_refused();
    assert_false(atomic_load(&call.done));
    reply_output(request, 0, 1, SMALL, 1);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

static void a_stop_does_not_wait_for_ever(void **state)
{
    (void)state;
    start_all((const char *[]){"--drain-ms", "200", NULL});
    client_infer(&call, channel, "small", 1, NULL, 20000);
    request_of(0);       /* never answered */
    int silent = dial(); /* a peer that would not say goodbye */
    uint64_t begin = cm_now_ns();
    assert_int_equal(stop_softly(&gateway_pid), 0);
    assert_true(cm_now_ns() - begin < 8 * CM_NS_PER_S);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    client_fini(&call);
    close(silent);
    grpc_channel_destroy(channel);
}

/* The answer's bytes still point into the worker's memory when the stop's time is up. */
static void a_stop_does_not_wait_for_a_reader(void **state)
{
    (void)state;
    start_all((const char *[]){"--drain-ms", "300", NULL});
    client_reads = false;
    client_infer(&call, channel, "large", 3, NULL, 20000);
    client_reads = true;
    reply_output(request_of(0), 0, 3, LARGE, 1);
    T_WAIT(&loop, gateway_counter("zero_copy") == 1);
    assert_int_equal(gateway_counter("outputs_held"), 1);
    kill(gateway_pid, SIGTERM);
    gateway_ends();
    client_wait(&call);
    client_fini(&call);
    grpc_channel_destroy(channel);
}

/* A scheduler that does not read: its ring is full of RELEASEs, more wait for room. */
static void a_stop_does_not_wait_for_room(void **state)
{
    (void)state;
    start_all(NULL);
    uint64_t give_up = cm_now_ns() + 20 * CM_NS_PER_S;
    struct cm_tensor_desc desc = output_desc(0, 1, SMALL);
    for (unsigned i = 0; i < 60000; i++) {
        while (cm_channel_room(sched.channel) < 4096 && cm_now_ns() < give_up)
            sched_yield();
        reply_desc(UINT64_MAX, &desc, i);
    }
    int status = 0;
    kill(gateway_pid, SIGTERM);
    while (waitpid(gateway_pid, &status, WNOHANG) == 0 && cm_now_ns() < give_up)
        sched_yield();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    gateway_pid = 0;
    grpc_channel_destroy(channel);
}

/* Memory is refused, and the message comes when the stop has begun: it cannot wait for more. */
static void a_stop_does_not_wait_for_memory(void **state)
{
    (void)state;
    fake_reset(NULL);
    start_memmgr_with("16M");
    start_gateway((const char *[]){"--plaintext", "--drain-ms", "2000", NULL});
    scheduler_start();
    scheduler_table(READY, true);
    channel = client_connect(NULL);
    client_start(&call, channel, "/ingot.v1.Inference/Infer", NULL, 0, NULL, 20000);
    T_WAIT(&loop, gateway_counter("in_flight") == 1);
    kill(gateway_pid, SIGTERM);
    until_refused();
    client_say_infer(&call, "small", 1);
    ends_with(GRPC_STATUS_UNAVAILABLE);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

static grpc_status_code check_health(const char *service, int *ret_status)
{
    uint8_t bytes[64];
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    size_t length = grpc__health__v1__health_check_request__pack(&request, bytes);
    client_start(&call, channel, "/grpc.health.v1.Health/Check", bytes, length, NULL, 10000);
    client_wait(&call);
    grpc_status_code code = call.status;
    uint8_t *message = client_message(&call, &length);
    *ret_status = -1;
    if (message) {
        Grpc__Health__V1__HealthCheckResponse *read =
            grpc__health__v1__health_check_response__unpack(NULL, length, message);
        *ret_status = (int)read->status;
        grpc__health__v1__health_check_response__free_unpacked(read, NULL);
    }
    free(message);
    client_fini(&call);
    return code;
}

static bool health_is(const char *service, int wanted)
{
    int status;
    return check_health(service, &status) == GRPC_STATUS_OK && status == wanted;
}

static void health_follows_the_models(void **state)
{
    (void)state;
    int status;
    fake_reset(NULL);
    start_memmgr();
    start_gateway((const char *[]){"--plaintext", "--drain-ms", "2000", NULL});
    channel = client_connect(NULL);
    assert_true(health_is("", 2));
    assert_true(health_is("liveness", 1));
    assert_int_equal(check_health("model/small", &status), GRPC_STATUS_NOT_FOUND);
    scheduler_start();
    scheduler_table(LOADING, false);
    assert_true(health_is("", 2));
    assert_true(health_is("model/small", 2));
    scheduler_table(READY, true);
    T_WAIT(&loop, health_is("", 1));
    assert_true(health_is("model/small", 1));
    assert_true(health_is("small", 1));
    assert_true(health_is("readiness", 1));
    scheduler_die();
    assert_true(health_is("", 1)); /* a scheduler may be away for a moment */
    T_WAIT(&loop, health_is("", 2));
    stop_all();
}

/* Clients that watch must not take the place of those that ask. */
static void watches_leave_room_for_checks(void **state)
{
    enum { MOST = 6 };
    struct client_call watches[MOST + 1];
    (void)state;
    start_all((const char *[]){"--max-connections", "6", NULL});
    for (unsigned i = 0; i <= MOST; i++) {
        client_start(&watches[i], channel, "/grpc.health.v1.Health/Watch", "", 0, NULL, 0);
        T_WAIT(&loop, gateway_counter("streams") > i || atomic_load(&watches[i].done));
    }
    client_wait(&watches[MOST]);
    assert_int_equal(watches[MOST].status, GRPC_STATUS_UNAVAILABLE);
    T_WAIT(&loop, health_is("", 1));
    for (unsigned i = 0; i <= MOST; i++) {
        if (i < MOST)
            assert_false(atomic_load(&watches[i].done));
        grpc_call_cancel(watches[i].core, NULL);
        client_wait(&watches[i]);
        client_fini(&watches[i]);
    }
    T_WAIT(&loop, gateway_counter("streams") == 0);
    stop_all();
}

/* ---- the admin port ---- */

/* One request on a connection of its own; the status code, and the body in body. */
static int http(const char *request, char body[16384])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strrchr(http_address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    char text[256];
    int length = snprintf(text, sizeof text,
                          "%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", request);
    assert_int_equal(write(fd, text, (size_t)length), length);
    size_t have = 0;
    ssize_t n;
    while (have < 16383 && (n = read(fd, body + have, 16383 - have)) > 0)
        have += (size_t)n;
    close(fd);
    body[have] = 0;
    assert_true(strncmp(body, "HTTP/1.1 ", 9) == 0);
    int status = atoi(body + 9);
    char *end = strstr(body, "\r\n\r\n");
    assert_non_null(end);
    memmove(body, end + 4, strlen(end + 4) + 1);
    return status;
}

static void the_admin_port_answers(void **state)
{
    char body[16384];
    (void)state;
    start_all(NULL);
    assert_int_equal(http("GET /livez", body), 200);
    T_WAIT(&loop, http("GET /readyz", body) == 200);
    assert_int_equal(http("GET /nothing", body), 404);
    assert_int_equal(http("POST /livez", body), 405);
    assert_int_equal(http("GET /health", body), 200);
    json_t *health = json_loads(body, 0, NULL);
    assert_true(json_is_true(json_object_get(health, "live")));
    assert_true(json_is_true(json_object_get(health, "ready")));
    assert_int_equal(json_array_size(json_object_get(health, "models")), 3);
    json_decref(health);

    client_infer(&call, channel, "small", 1, NULL, 20000);
    uint64_t request = request_of(0);
    kill(gateway_pid, SIGTERM);
    until_refused();
    assert_int_equal(http("GET /readyz", body), 503);
    assert_string_equal(body, "draining\n");
    assert_int_equal(http("GET /livez", body), 200);
    reply_output(request, 0, 1, SMALL, 1);
    ends_with(GRPC_STATUS_OK);
    client_fini(&call);
    grpc_channel_destroy(channel);
    gateway_ends();
}

/* ---- TLS ---- */

static char cert_file[T_PATH_MAX * 2], key_file[T_PATH_MAX * 2], ca_file[T_PATH_MAX * 2];

/* A client's certificate with its key, as texts. */
struct identity {
    char *cert, *key;
};

static struct identity identity_make(void)
{
    char cert[T_PATH_MAX * 2], key[T_PATH_MAX * 2];
    snprintf(cert, sizeof cert, "%s/client.pem", base_dir);
    snprintf(key, sizeof key, "%s/client.key", base_dir);
    pem_make_pair(cert, key);
    return (struct identity){pem_read_text(cert), pem_read_text(key)};
}

static void identity_fini(struct identity *who)
{
    free(who->cert);
    free(who->key);
}

/* A new connection that trusts root: is it served? */
static bool served(const char *root, const struct identity *who)
{
    grpc_ssl_pem_key_cert_pair pair = {0};
    if (who)
        pair = (grpc_ssl_pem_key_cert_pair){who->key, who->cert};
    grpc_channel *fresh =
        client_connect(grpc_ssl_credentials_create(root, who ? &pair : NULL, NULL, NULL));
    client_start(&call, fresh, "/inference.GRPCInferenceService/ServerLive", "", 0, NULL, 10000);
    client_wait(&call);
    grpc_status_code status = call.status;
    client_fini(&call);
    grpc_channel_destroy(fresh);
    assert_true(status == GRPC_STATUS_OK || status == GRPC_STATUS_UNAVAILABLE);
    return status == GRPC_STATUS_OK;
}

static void start_tls(bool mutual)
{
    fake_reset(NULL);
    start_memmgr();
    snprintf(cert_file, sizeof cert_file, "%s/cert.pem", base_dir);
    snprintf(key_file, sizeof key_file, "%s/key.pem", base_dir);
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", base_dir);
    pem_make_pair(cert_file, key_file);
    start_gateway((const char *[]){"--tls-cert", cert_file, "--tls-key", key_file,
                                   mutual ? "--tls-client-ca" : NULL, ca_file, NULL});
    scheduler_start();
}

static void certificates_are_read_again(void **state)
{
    char new_cert[T_PATH_MAX * 2], new_key[T_PATH_MAX * 2];
    (void)state;
    start_tls(false);
    char *old = pem_read_text(cert_file);
    assert_true(served(old, NULL));
    snprintf(new_cert, sizeof new_cert, "%s/new.pem", base_dir);
    snprintf(new_key, sizeof new_key, "%s/new.key", base_dir);
    pem_make_pair(new_cert, new_key);
    char *new = pem_read_text(new_cert);
    /* One of the two is replaced first: until the other is, the old pair serves. */
    assert_int_equal(rename(new_key, key_file), 0);
    assert_true(served(old, NULL));
    assert_int_equal(gateway_counter("tls_reload_failures"), 1);
    assert_int_equal(rename(new_cert, cert_file), 0);
    assert_true(served(new, NULL));
    assert_false(served(old, NULL));
    assert_int_equal(gateway_counter("tls_reloads"), 1);
    pem_write_text(cert_file, "no certificate");
    assert_true(served(new, NULL));
    assert_int_equal(unlink(cert_file), 0);
    assert_true(served(new, NULL));
    pem_write_text(cert_file, new);
    assert_true(served(new, NULL));
    assert_int_equal(gateway_counter("tls_reloads"), 2);
    free(new);
    free(old);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

/* Ten seconds are what a handshake may take, whatever the peer does or does not do. */
static void slow_handshakes_end(void **state)
{
    (void)state;
    start_tls(false);
    int ends[2] = {dial(), dial()};
    uint64_t begin = cm_now_ns();
    /* A ClientHello of 512 bytes is announced, and a few of them come; the other says nothing. */
    assert_int_equal(write(ends[0], "\x16\x03\x01\x02\x00\x01", 6), 6);
    for (unsigned i = 0; i < 2; i++) {
        struct pollfd end = {ends[i], POLLIN, 0};
        char byte;
        assert_int_equal(poll(&end, 1, 16000), 1);
        assert_true(read(ends[i], &byte, 1) <= 0);
        close(ends[i]);
    }
    assert_true(cm_now_ns() - begin > 8 * CM_NS_PER_S);
    T_WAIT(&loop, gateway_counter("connections") == 0);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

static void client_authorities_are_read_again(void **state)
{
    (void)state;
    struct identity first = identity_make(), second = identity_make();
    snprintf(ca_file, sizeof ca_file, "%s/ca.pem", base_dir);
    pem_write_text(ca_file, first.cert);
    start_tls(true);
    char *root = pem_read_text(cert_file);
    assert_true(served(root, &first));
    assert_false(served(root, &second));
    assert_false(served(root, NULL));
    pem_write_text(ca_file, second.cert);
    assert_true(served(root, &second));
    assert_false(served(root, &first));
    free(root);
    identity_fini(&first);
    identity_fini(&second);
    assert_int_equal(stop_softly(&gateway_pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(service_resumes_after_a_flood_of_connections),
        cmocka_unit_test(connections_have_a_cap),
        cmocka_unit_test(a_stop_waits_for_open_calls),
        cmocka_unit_test(a_stop_does_not_wait_for_ever),
        cmocka_unit_test(a_stop_does_not_wait_for_a_reader),
        cmocka_unit_test(a_stop_does_not_wait_for_room),
        cmocka_unit_test(a_stop_does_not_wait_for_memory),
        cmocka_unit_test(health_follows_the_models),
        cmocka_unit_test(watches_leave_room_for_checks),
        cmocka_unit_test(the_admin_port_answers),
        cmocka_unit_test(certificates_are_read_again),
        cmocka_unit_test(slow_handshakes_end),
        cmocka_unit_test(client_authorities_are_read_again),
    };
    int failed = cmocka_run_group_tests(tests, fake_setup, NULL);
    fake_reset(NULL);
    fake_teardown(NULL);
    return failed;
}
