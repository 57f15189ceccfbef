/* Certificates from files: mistakes at the start. What core does with them, and replacement while
 * running, is in server_test.c. */
#include "tests/harness/t.h"
#include "gateway/tls.h"
#include "tests/gateway/pem.h"

#include <grpc/grpc.h>
#include <stdio.h>
#include <string.h>

static char dir[T_PATH_MAX];
static char cert_path[T_PATH_MAX + 16], key_path[T_PATH_MAX + 16], other_path[T_PATH_MAX + 16];

static int setup(void **state)
{
    (void)state;
    t_make_dir(dir);
    snprintf(cert_path, sizeof cert_path, "%s/cert.pem", dir);
    snprintf(key_path, sizeof key_path, "%s/key.pem", dir);
    snprintf(other_path, sizeof other_path, "%s/other.pem", dir);
    pem_make_pair(cert_path, key_path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    t_remove_dir(dir);
    return 0;
}

static void good_files_are_taken(void **state)
{
    (void)state;
    struct gw_tls *tls;
    struct cm_error error;
    assert_int_equal(gw_tls_create(cert_path, key_path, NULL, &error, &tls), CM_OK);
    struct gw_tls_stats stats = gw_tls_stats(tls);
    assert_int_equal(stats.reloads, 0);
    assert_true(stats.expires > 0);
    gw_tls_destroy(tls);
    assert_int_equal(gw_tls_create(cert_path, key_path, cert_path, &error, &tls), CM_OK);
    gw_tls_destroy(tls);
}

static void bad_files_are_told_apart(void **state)
{
    (void)state;
    struct gw_tls *tls = NULL;
    struct cm_error error;
    char wrong_key[T_PATH_MAX + 16];
    snprintf(wrong_key, sizeof wrong_key, "%s/wrong.pem", dir);
    pem_make_pair(other_path, wrong_key);
    assert_int_equal(gw_tls_create(cert_path, wrong_key, NULL, &error, &tls), CM_INVALID);
    assert_non_null(strstr(error.text, "does not belong"));
    assert_int_equal(gw_tls_create(key_path, key_path, NULL, &error, &tls), CM_INVALID);
    assert_int_equal(gw_tls_create(cert_path, cert_path, NULL, &error, &tls), CM_INVALID);
    assert_int_equal(gw_tls_create(cert_path, key_path, key_path, &error, &tls), CM_INVALID);
    assert_int_equal(gw_tls_create("/nonexistent", key_path, NULL, &error, &tls), CM_NOT_FOUND);
    assert_null(strstr(error.text, "/nonexistent")); /* it may be told to others */
    assert_int_equal(gw_tls_create("/dev/zero", key_path, NULL, &error, &tls), CM_INVALID);
    pem_write_text(other_path, "");
    assert_int_equal(gw_tls_create(other_path, key_path, NULL, &error, &tls), CM_INVALID);
    pem_write_text(other_path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert_int_equal(gw_tls_create(other_path, key_path, NULL, &error, &tls), CM_INVALID);
}

static void credentials_are_made(void **state)
{
    (void)state;
    struct gw_tls *tls;
    struct cm_error error;
    grpc_init();
    assert_int_equal(gw_tls_create(cert_path, key_path, NULL, &error, &tls), CM_OK);
    grpc_server_credentials *credentials = gw_tls_credentials(tls);
    assert_non_null(credentials);
    grpc_server_credentials_release(credentials);
    gw_tls_destroy(tls);
    grpc_shutdown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_are_taken),
        cmocka_unit_test(bad_files_are_told_apart),
        cmocka_unit_test(credentials_are_made),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
