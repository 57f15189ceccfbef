/* Private CA and server certificate through libcrypto. Main thread, blocking. */
#include "deploy/ingot/certs.h"

#include "common/check.h"
#include "deploy/ingot/rundir.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAY          (24 * 60 * 60)
#define CLOCK_LEEWAY (60 * 60) /* a client's clock may be behind */
#define PEM_MAX      (64u * 1024u)

static enum cm_err crypto_failed(struct cm_error *err, const char *what)
{
    char text[256] = "no reason given";
    unsigned long code = ERR_get_error();
    if (code)
        ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return cm_fail(err, CM_INTERNAL, "%s: %s", what, text);
}

static bool is_address(const char *host)
{
    unsigned char raw[16];
    return inet_pton(AF_INET, host, raw) == 1 || inet_pton(AF_INET6, host, raw) == 1;
}

/* The names that every certificate of ours has, and the caller's. */
static unsigned list_hosts(const struct ig_certs_options *options, const char *list[8])
{
    unsigned n = 0;
    list[n++] = "localhost";
    list[n++] = "127.0.0.1";
    list[n++] = "::1";
    for (unsigned i = 0; i < CM_COUNT_OF(options->hosts); i++) {
        const char *host = options->hosts[i];
        bool known = !host || !*host;
        for (unsigned j = 0; j < n && !known; j++)
            known = strcmp(list[j], host) == 0;
        if (!known)
            list[n++] = host;
    }
    return n;
}

static X509 *read_cert(const char *run_dir, const char *file)
{
    char path[PATH_MAX];
    FILE *in = fopen(ig_run_path(run_dir, file, path), "re");
    if (!in)
        return NULL;
    X509 *cert = PEM_read_X509(in, NULL, NULL, NULL);
    fclose(in);
    return cert;
}

static EVP_PKEY *read_key(const char *run_dir)
{
    char path[PATH_MAX];
    FILE *in = fopen(ig_run_path(run_dir, IG_FILE_KEY, path), "re");
    if (!in)
        return NULL;
    /* An empty passphrase: never ask on the terminal. */
    EVP_PKEY *key = PEM_read_PrivateKey(in, NULL, NULL, "");
    fclose(in);
    return key;
}

static bool covers_hosts(X509 *cert, const struct ig_certs_options *options)
{
    const char *hosts[8];
    unsigned n = list_hosts(options, hosts);
    for (unsigned i = 0; i < n; i++) {
        int match = is_address(hosts[i]) ? X509_check_ip_asc(cert, hosts[i], 0)
                                         : X509_check_host(cert, hosts[i], 0, 0, NULL);
        if (match != 1)
            return false;
    }
    return true;
}

static bool lasts(X509 *cert, time_t now)
{
    time_t until = now + (time_t)IG_CERT_RENEW_DAYS * DAY;
    return X509_cmp_time(X509_get0_notBefore(cert), &now) < 0 &&
           X509_cmp_time(X509_get0_notAfter(cert), &until) > 0;
}

static bool files_fit(const struct ig_certs_options *options)
{
    X509 *ca = read_cert(options->run_dir, IG_FILE_CA);
    X509 *cert = read_cert(options->run_dir, IG_FILE_CERT);
    EVP_PKEY *key = read_key(options->run_dir);
    bool fit = ca && cert && key && X509_check_private_key(cert, key) == 1 &&
               X509_check_issued(ca, cert) == X509_V_OK &&
               X509_verify(cert, X509_get0_pubkey(ca)) == 1 && lasts(ca, options->now) &&
               lasts(cert, options->now) && covers_hosts(cert, options);
    X509_free(ca);
    X509_free(cert);
    EVP_PKEY_free(key);
    ERR_clear_error();
    return fit;
}

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool good = extension && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return good;
}

/* Alternative names are built as objects: a host name must not be read as configuration text. */
static bool add_host(GENERAL_NAMES *names, const char *host)
{
    GENERAL_NAME *name = GENERAL_NAME_new();
    if (!name)
        return false;
    if (is_address(host)) {
        ASN1_OCTET_STRING *address = a2i_IPADDRESS(host);
        if (address)
            GENERAL_NAME_set0_value(name, GEN_IPADD, address);
        if (address && sk_GENERAL_NAME_push(names, name) > 0)
            return true;
    } else {
        ASN1_IA5STRING *text = ASN1_IA5STRING_new();
        if (text && ASN1_STRING_set(text, host, -1) == 1) {
            GENERAL_NAME_set0_value(name, GEN_DNS, text);
            if (sk_GENERAL_NAME_push(names, name) > 0)
                return true;
        } else {
            ASN1_IA5STRING_free(text);
        }
    }
    GENERAL_NAME_free(name);
    return false;
}

static bool add_hosts(X509 *cert, const struct ig_certs_options *options)
{
    const char *hosts[8];
    unsigned n = list_hosts(options, hosts);
    GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
    bool good = names != NULL;
    for (unsigned i = 0; i < n && good; i++)
        good = add_host(names, hosts[i]);
    if (good)
        good = X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT) == 1;
    GENERAL_NAMES_free(names);
    return good;
}

/* A certificate with everything but extensions and signature. */
static X509 *new_cert(EVP_PKEY *key, const char *common_name, time_t now)
{
    unsigned char serial[16];
    X509 *cert = X509_new();
    BIGNUM *number = NULL;
    bool good = cert && RAND_bytes(serial, sizeof serial) == 1;
    if (good) {
        serial[0] = (serial[0] & 0x7f) | 0x40; /* positive, full length */
        number = BN_bin2bn(serial, sizeof serial, NULL);
    }
    good = good && number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) &&
           X509_set_version(cert, X509_VERSION_3) == 1 &&
           ASN1_TIME_set(X509_getm_notBefore(cert), now - CLOCK_LEEWAY) &&
           ASN1_TIME_set(X509_getm_notAfter(cert), now + (time_t)IG_CERT_DAYS * DAY) &&
           X509_set_pubkey(cert, key) == 1 &&
           X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                      (const unsigned char *)common_name, -1, -1, 0) == 1;
    BN_free(number);
    if (good)
        return cert;
    X509_free(cert);
    return NULL;
}

static X509 *make_ca(EVP_PKEY *key, time_t now)
{
    X509 *ca = new_cert(key, "Ingot private CA", now);
    bool good = ca && X509_set_issuer_name(ca, X509_get_subject_name(ca)) == 1 &&
                add_extension(ca, ca, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                add_extension(ca, ca, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                add_extension(ca, ca, NID_subject_key_identifier, "hash") &&
                X509_sign(ca, key, EVP_sha256()) > 0;
    if (good)
        return ca;
    X509_free(ca);
    return NULL;
}

static X509 *make_server(EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key,
                         const struct ig_certs_options *options)
{
    X509 *cert = new_cert(key, "Ingot server", options->now);
    bool good = cert && X509_set_issuer_name(cert, X509_get_subject_name(ca)) == 1 &&
                add_extension(cert, ca, NID_basic_constraints, "critical,CA:FALSE") &&
                add_extension(cert, ca, NID_key_usage, "critical,digitalSignature") &&
                add_extension(cert, ca, NID_ext_key_usage, "serverAuth") &&
                add_extension(cert, ca, NID_subject_key_identifier, "hash") &&
                add_extension(cert, ca, NID_authority_key_identifier, "keyid") &&
                add_hosts(cert, options) && X509_sign(cert, ca_key, EVP_sha256()) > 0;
    if (good)
        return cert;
    X509_free(cert);
    return NULL;
}

/* cert or key, not both, as PEM into a file. */
static enum cm_err write_pem(const char *run_dir, const char *file, X509 *cert, EVP_PKEY *key,
                             struct cm_error *err)
{
    char path[PATH_MAX];
    char *bytes = NULL;
    BIO *memory = BIO_new(BIO_s_mem());
    bool good =
        memory && (cert ? PEM_write_bio_X509(memory, cert) == 1
                        : PEM_write_bio_PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL) == 1);
    long length = good ? BIO_get_mem_data(memory, &bytes) : 0;
    enum cm_err code;
    if (length > 0 && (unsigned long)length < PEM_MAX)
        code = ig_write_file(ig_run_path(run_dir, file, path), key ? 0600 : 0644, bytes,
                             (size_t)length, err);
    else
        code = crypto_failed(err, "a certificate file cannot be encoded");
    BIO_free(memory);
    return code;
}

static enum cm_err make_files(const struct ig_certs_options *options, struct cm_error *err)
{
    EVP_PKEY *ca_key = EVP_EC_gen("P-256");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *ca = ca_key && key ? make_ca(ca_key, options->now) : NULL;
    X509 *cert = ca ? make_server(key, ca, ca_key, options) : NULL;
    enum cm_err code;
    if (!cert)
        code = crypto_failed(err, "no certificate could be made");
    else
        code = write_pem(options->run_dir, IG_FILE_KEY, NULL, key, err);
    if (code == CM_OK)
        code = write_pem(options->run_dir, IG_FILE_CERT, cert, NULL, err);
    /* Last: a set that was interrupted does not fit together and is made again. */
    if (code == CM_OK)
        code = write_pem(options->run_dir, IG_FILE_CA, ca, NULL, err);
    X509_free(cert);
    X509_free(ca);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
    return code;
}

enum cm_err ig_certs_ensure(const struct ig_certs_options *options, struct cm_error *err,
                            bool *ret_made)
{
    if (files_fit(options)) {
        *ret_made = false;
        return CM_OK;
    }
    enum cm_err code = make_files(options, err);
    if (code == CM_OK)
        *ret_made = true;
    return code;
}
