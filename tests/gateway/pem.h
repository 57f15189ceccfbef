/* Certificates and files with them, for the gateway's tests. */
#ifndef TESTS_GATEWAY_PEM_H
#define TESTS_GATEWAY_PEM_H

/* A self-signed certificate for localhost with a new key, each written whole over what was there.
 */
void pem_make_pair(const char *cert_file, const char *key_file);
/* Over what was there, as one step. */
void pem_write_text(const char *path, const char *text);
/* The file's text; free it. */
char *pem_read_text(const char *path);

#endif
