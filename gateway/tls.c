/* Certificates that may be replaced at any time: see tls.h for threads. */
#include "gateway/tls.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES         3 /* certificate, key, client CA */
#define FILE_MAX_SIZE (1024 * 1024)

/* Enough of a file's status to see that it was replaced or rewritten. */
struct stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
};

struct material {
    char *text[FILES]; /* terminated PEM; the CA may be NULL */
    struct stamp stamps[FILES];
    int64_t expires;
};

struct gw_tls {
    const char *paths[FILES];
    pthread_mutex_t lock;        /* all below */
    struct material current;     /* what core has or is about to get */
    bool fetched;                /* core has it */
    struct stamp refused[FILES]; /* files that were bad: not read again until they change */
    uint64_t reloads, failures;
};

static const char *const file_names[FILES] = {"certificate", "key", "client CA"};

static void take_stamp(const char *path, struct stamp *ret)
{
    struct stat status;
    memset(ret, 0, sizeof *ret);
    if (!path || stat(path, &status) != 0)
        return;
    ret->device = status.st_dev;
    ret->inode = status.st_ino;
    ret->size = status.st_size;
    ret->modified = status.st_mtim;
    ret->changed = status.st_ctim;
}

static bool same_stamps(const struct stamp *a, const struct stamp *b)
{
    return memcmp(a, b, FILES * sizeof *a) == 0;
}

static enum cm_err read_text(int index, const char *path, struct cm_error *err, char **ret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return cm_fail_errno(err, error, "cannot read the TLS %s file", file_names[index]);
    }
    enum cm_err code = CM_OK;
    char *text = NULL;
    ssize_t length = 0;
    if (!S_ISREG(status.st_mode) || status.st_size > FILE_MAX_SIZE)
        code = cm_fail(err, CM_INVALID, "the TLS %s file is no regular file of at most 1 MiB",
                       file_names[index]);
    else if (!(text = calloc(1, FILE_MAX_SIZE + 1)))
        code = cm_fail(err, CM_NOMEM, "no memory for the TLS %s", file_names[index]);
    while (code == CM_OK && length < FILE_MAX_SIZE) {
        ssize_t n = read(fd, text + length, (size_t)(FILE_MAX_SIZE - length));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            code = cm_fail_errno(err, errno, "cannot read the TLS %s file", file_names[index]);
        if (n <= 0)
            break;
        length += n;
    }
    close(fd);
    if (code != CM_OK) {
        free(text);
        return code;
    }
    *ret = text;
    return CM_OK;
}

static void material_fini(struct material *material)
{
    for (int i = 0; i < FILES; i++) {
        if (material->text[i])
            OPENSSL_cleanse(material->text[i], strlen(material->text[i]));
        free(material->text[i]);
        material->text[i] = NULL;
    }
}

static int64_t not_after(const X509 *cert)
{
    struct tm broken;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(cert), &broken) != 1)
        return 0;
    return (int64_t)timegm(&broken);
}

/* A private key may be protected by a passphrase; nobody is there to type it. */
static int no_passphrase(char *buffer, int size, int writing, void *ctx)
{
    (void)buffer, (void)size, (void)writing, (void)ctx;
    return -1;
}

/* What core would refuse only in the handshake: key and certificate must parse and belong
 * together. */
static enum cm_err check(struct material *material, struct cm_error *err)
{
    BIO *cert_bio = BIO_new_mem_buf(material->text[0], -1);
    BIO *key_bio = BIO_new_mem_buf(material->text[1], -1);
    BIO *ca_bio = material->text[2] ? BIO_new_mem_buf(material->text[2], -1) : NULL;
    X509 *cert = cert_bio ? PEM_read_bio_X509(cert_bio, NULL, no_passphrase, NULL) : NULL;
    EVP_PKEY *key = key_bio ? PEM_read_bio_PrivateKey(key_bio, NULL, no_passphrase, NULL) : NULL;
    X509 *ca = ca_bio ? PEM_read_bio_X509(ca_bio, NULL, no_passphrase, NULL) : NULL;
    enum cm_err code = CM_OK;
    if (!cert)
        code = cm_fail(err, CM_INVALID, "the TLS certificate file holds no PEM certificate");
    else if (!key)
        code = cm_fail(err, CM_INVALID, "the TLS key file holds no PEM private key");
    else if (X509_check_private_key(cert, key) != 1)
        code = cm_fail(err, CM_INVALID, "the TLS key does not belong to the certificate");
    else if (material->text[2] && !ca)
        code = cm_fail(err, CM_INVALID, "the TLS client CA file holds no PEM certificate");
    if (code == CM_OK)
        material->expires = not_after(cert);
    X509_free(ca);
    EVP_PKEY_free(key);
    X509_free(cert);
    BIO_free(ca_bio);
    BIO_free(key_bio);
    BIO_free(cert_bio);
    ERR_clear_error();
    return code;
}

static enum cm_err load(const struct gw_tls *tls, struct cm_error *err, struct material *ret)
{
    struct material material = {0};
    enum cm_err code = CM_OK;
    for (int i = 0; i < FILES && code == CM_OK; i++) {
        take_stamp(tls->paths[i], &material.stamps[i]);
        if (tls->paths[i])
            code = read_text(i, tls->paths[i], err, &material.text[i]);
    }
    if (code == CM_OK)
        code = check(&material, err);
    if (code != CM_OK) {
        material_fini(&material);
        return code;
    }
    *ret = material;
    return CM_OK;
}

enum cm_err gw_tls_create(const char *cert, const char *key, const char *client_ca,
                          struct cm_error *err, struct gw_tls **ret_tls)
{
    struct gw_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return cm_fail(err, CM_NOMEM, "no memory for TLS");
    tls->paths[0] = cert;
    tls->paths[1] = key;
    tls->paths[2] = client_ca;
    enum cm_err code = load(tls, err, &tls->current);
    if (code != CM_OK) {
        free(tls);
        return code;
    }
    pthread_mutex_init(&tls->lock, NULL);
    *ret_tls = tls;
    return CM_OK;
}

void gw_tls_destroy(struct gw_tls *tls)
{
    if (!tls)
        return;
    material_fini(&tls->current);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

/* Reads changed files into current. Under the lock. */
static void refresh(struct gw_tls *tls)
{
    struct stamp now[FILES];
    for (int i = 0; i < FILES; i++)
        take_stamp(tls->paths[i], &now[i]);
    if (same_stamps(now, tls->current.stamps) || same_stamps(now, tls->refused))
        return;
    struct material material;
    struct cm_error error;
    if (load(tls, &error, &material) != CM_OK) {
        memcpy(tls->refused, now, sizeof now);
        tls->failures++;
        cm_log(CM_LOG_ERROR, "tls_reload_failed", "reason=%s kept=%s", error.text, "old");
        return;
    }
    material_fini(&tls->current);
    tls->current = material;
    tls->fetched = false;
    tls->reloads++;
    cm_log(CM_LOG_INFO, "tls_reloaded", "expires=%lld", (long long)material.expires);
}

static grpc_ssl_certificate_config_reload_status fetch(
    void *ctx, grpc_ssl_server_certificate_config **ret_config)
{
    struct gw_tls *tls = ctx;
    pthread_mutex_lock(&tls->lock);
    refresh(tls);
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    if (!tls->fetched) {
        grpc_ssl_pem_key_cert_pair pair = {tls->current.text[1], tls->current.text[0]};
        /* core asserts that roots are there, also where clients are not asked: the server's own
         * chain then stands in, and nothing is verified against it. */
        const char *roots = tls->current.text[2] ? tls->current.text[2] : tls->current.text[0];
        *ret_config = grpc_ssl_server_certificate_config_create(roots, &pair, 1);
        status = *ret_config ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                             : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
        tls->fetched = *ret_config != NULL;
    }
    pthread_mutex_unlock(&tls->lock);
    return status;
}

grpc_server_credentials *gw_tls_credentials(struct gw_tls *tls)
{
    grpc_ssl_client_certificate_request_type request =
        tls->paths[2] ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                      : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch, tls);
    return options ? grpc_ssl_server_credentials_create_with_options(options) : NULL;
}

struct gw_tls_stats gw_tls_stats(struct gw_tls *tls)
{
    pthread_mutex_lock(&tls->lock);
    struct gw_tls_stats stats = {tls->reloads, tls->failures, tls->current.expires};
    pthread_mutex_unlock(&tls->lock);
    return stats;
}
