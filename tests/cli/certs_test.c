/* The certificates of `ingot up`: what is in them, when they are kept, when they are made again. */
#include "deploy/ingot/certs.h"

#include "common/check.h"
#include "deploy/ingot/rundir.h"
#include "tests/harness/t.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DAY (24 * 60 * 60)

struct fixture {
    char dir[T_PATH_MAX];
    struct ig_certs_options options;
};

static int set_up(void **state)
{
    static struct fixture fixture;
    struct cm_error err = {0};
    memset(&fixture, 0, sizeof fixture);
    t_make_dir(fixture.dir);
    assert_int_equal(ig_run_dir_prepare(fixture.dir, &err), CM_OK);
    fixture.options.run_dir = fixture.dir;
    fixture.options.hosts[0] = "some-host";
    fixture.options.hosts[1] = "192.0.2.7";
    fixture.options.now = time(NULL);
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    t_remove_dir(fixture->dir);
    return 0;
}

static bool ensure(struct fixture *fixture)
{
    struct cm_error err = {0};
    bool made = false;
    if (ig_certs_ensure(&fixture->options, &err, &made) != CM_OK)
        fail_msg("%s", err.text);
    return made;
}

static X509 *read_cert(struct fixture *fixture, const char *file)
{
    char path[PATH_MAX];
    FILE *in = fopen(ig_run_path(fixture->dir, file, path), "r");
    assert_non_null(in);
    X509 *cert = PEM_read_X509(in, NULL, NULL, NULL);
    fclose(in);
    assert_non_null(cert);
    return cert;
}

static void client_accepts_the_chain(void **state)
{
    struct fixture *fixture = *state;
    assert_true(ensure(fixture));
    X509 *ca = read_cert(fixture, IG_FILE_CA), *cert = read_cert(fixture, IG_FILE_CERT);
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    assert_int_equal(X509_STORE_add_cert(store, ca), 1);
    assert_int_equal(X509_STORE_CTX_init(context, store, cert, NULL), 1);
    X509_STORE_CTX_set_purpose(context, X509_PURPOSE_SSL_SERVER);
    if (X509_verify_cert(context) != 1)
        fail_msg("%s", X509_verify_cert_error_string(X509_STORE_CTX_get_error(context)));
    assert_int_equal(X509_check_host(cert, "localhost", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(cert, "some-host", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(cert, "other-host", 0, 0, NULL), 0);
    assert_int_equal(X509_check_ip_asc(cert, "127.0.0.1", 0), 1);
    assert_int_equal(X509_check_ip_asc(cert, "::1", 0), 1);
    assert_int_equal(X509_check_ip_asc(cert, "192.0.2.7", 0), 1);
    assert_int_equal(X509_check_ip_asc(cert, "192.0.2.8", 0), 0);
    assert_int_equal(X509_check_ca(cert), 0);
    assert_true(X509_check_ca(ca) > 0);
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    X509_free(ca);
    X509_free(cert);
}

static void key_is_private(void **state)
{
    struct fixture *fixture = *state;
    char path[PATH_MAX];
    struct stat info;
    assert_true(ensure(fixture));
    assert_int_equal(stat(ig_run_path(fixture->dir, IG_FILE_KEY, path), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

static void kept_while_they_fit(void **state)
{
    struct fixture *fixture = *state;
    assert_true(ensure(fixture));
    assert_false(ensure(fixture));
    fixture->options.hosts[0] = NULL; /* fewer names: still covered */
    assert_false(ensure(fixture));
    fixture->options.now += (IG_CERT_DAYS - IG_CERT_RENEW_DAYS - 1) * (time_t)DAY;
    assert_false(ensure(fixture));
    fixture->options.now += 2 * DAY;
    assert_true(ensure(fixture));
    assert_false(ensure(fixture));
}

static void made_again_for_another_host(void **state)
{
    struct fixture *fixture = *state;
    assert_true(ensure(fixture));
    fixture->options.hosts[2] = "203.0.113.9";
    assert_true(ensure(fixture));
    fixture->options.hosts[3] = "moved-host";
    assert_true(ensure(fixture));
    assert_false(ensure(fixture));
}

static void made_again_from_the_future(void **state)
{
    struct fixture *fixture = *state;
    assert_true(ensure(fixture));
    fixture->options.now -= 2 * DAY; /* not valid yet */
    assert_true(ensure(fixture));
}

static void overwrite(struct fixture *fixture, const char *file, const char *text)
{
    char path[PATH_MAX];
    struct cm_error err = {0};
    assert_int_equal(
        ig_write_file(ig_run_path(fixture->dir, file, path), 0600, text, strlen(text), &err),
        CM_OK);
}

static void made_again_when_damaged(void **state)
{
    static const char *const files[] = {IG_FILE_CA, IG_FILE_CERT, IG_FILE_KEY};
    struct fixture *fixture = *state;
    char path[PATH_MAX];
    assert_true(ensure(fixture));
    for (unsigned i = 0; i < CM_COUNT_OF(files); i++) {
        overwrite(fixture, files[i], "-----BEGIN NOTHING-----\n");
        assert_true(ensure(fixture));
        assert_int_equal(unlink(ig_run_path(fixture->dir, files[i], path)), 0);
        assert_true(ensure(fixture));
    }
    assert_false(ensure(fixture));
}

/* A set of which one file is of another making: an interrupted renewal. */
static void made_again_when_mixed(void **state)
{
    static const char *const files[] = {IG_FILE_CA, IG_FILE_CERT, IG_FILE_KEY};
    struct fixture *fixture = *state;
    for (unsigned i = 0; i < CM_COUNT_OF(files); i++) {
        char path[PATH_MAX];
        unsigned char *old = NULL;
        size_t length = 0;
        struct cm_error err = {0};
        ensure(fixture);
        ig_run_path(fixture->dir, files[i], path);
        assert_int_equal(ig_read_file(path, 65536, &err, &old, &length), CM_OK);
        overwrite(fixture, IG_FILE_CA, "");
        assert_true(ensure(fixture));
        overwrite(fixture, files[i], (char *)old);
        assert_true(ensure(fixture));
        free(old);
    }
}

static void unwritable_directory_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    struct cm_error err = {0};
    bool made = false;
    fixture->options.run_dir = "/nonexistent";
    assert_int_not_equal(ig_certs_ensure(&fixture->options, &err, &made), CM_OK);
    assert_non_null(strstr(err.text, "/nonexistent"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(client_accepts_the_chain),   T(key_is_private),
        T(kept_while_they_fit),        T(made_again_for_another_host),
        T(made_again_from_the_future), T(made_again_when_damaged),
        T(made_again_when_mixed),      T(unwritable_directory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
