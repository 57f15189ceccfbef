/* Certificates and files with them: see pem.h. Failures fail the test. */
#include "tests/gateway/pem.h"

#include "tests/harness/t.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pem_write_text(const char *path, const char *text)
{
    char temporary[T_PATH_MAX * 2];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(rename(temporary, path), 0);
}

char *pem_read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 8192);
    assert_non_null(text);
    assert_true(fread(text, 1, 8191, file) > 0);
    fclose(file);
    return text;
}

/* What was written to bio, into the file. */
static void save(BIO *bio, const char *path)
{
    char text[8192];
    int length = BIO_read(bio, text, sizeof text - 1);
    assert_true(length > 0);
    text[length] = 0;
    pem_write_text(path, text);
    BIO_free(bio);
}

void pem_make_pair(const char *cert_file, const char *key_file)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    BIO *cert_bio = BIO_new(BIO_s_mem()), *key_bio = BIO_new(BIO_s_mem());
    assert_true(key && cert && cert_bio && key_bio);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost", -1, -1,
                               0);
    X509_set_issuer_name(cert, name);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    PEM_write_bio_X509(cert_bio, cert);
    PEM_write_bio_PrivateKey(key_bio, key, NULL, NULL, 0, NULL, NULL);
    save(key_bio, key_file);
    save(cert_bio, cert_file);
    X509_free(cert);
    EVP_PKEY_free(key);
}
