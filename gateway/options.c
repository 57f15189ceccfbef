/* The command line. Main thread. */
#include "gateway/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum cm_err take_number(const char *flag, const char *text, uint64_t minimum,
                               uint64_t maximum, struct cm_error *err, uint64_t *ret)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || value < minimum || value > maximum)
        return cm_fail(err, CM_INVALID, "--%s: '%s' is not a number from %" PRIu64 " to %" PRIu64,
                       flag, text, minimum, maximum);
    *ret = value;
    return CM_OK;
}

/* Sets the option that has a value; CM_NOT_FOUND for an unknown flag. */
static enum cm_err take_value(struct gw_options *options, const char *flag, size_t length,
                              const char *value, struct cm_error *err)
{
#define TEXT(name, field, minimum, maximum) (options->field = value, CM_OK)
#define NUMBER(name, field, minimum, maximum) \
    take_number(name, value, minimum, maximum, err, &options->field)
#define X(name, field, kind, initial, minimum, maximum, shown, help) \
    if (strlen(name) == length && memcmp(name, flag, length) == 0)   \
        return kind(name, field, minimum, maximum);
    GW_OPTION_MAP(X)
#undef X
#undef NUMBER
#undef TEXT
    return CM_NOT_FOUND;
}

static enum cm_err check(const struct gw_options *options, struct cm_error *err)
{
    char host[256];
    uint16_t port;
    if (!options->run_dir)
        return cm_fail(err, CM_INVALID, "--run-dir is required");
    if (options->plaintext && (options->tls_cert || options->tls_key || options->tls_client_ca))
        return cm_fail(err, CM_INVALID, "--plaintext and --tls-... exclude each other");
    if (!options->plaintext && (!options->tls_cert || !options->tls_key))
        return cm_fail(err, CM_INVALID, "--tls-cert and --tls-key are required, or --plaintext");
    if (strcmp(options->reflection, "on") != 0 && strcmp(options->reflection, "off") != 0)
        return cm_fail(err, CM_INVALID, "--reflection must be on or off");
    enum cm_err code = gw_address_split(options->grpc, err, host, &port);
    if (code == CM_OK && options->http)
        code = gw_address_split(options->http, err, host, &port);
    return code;
}

enum cm_err gw_options_parse(int argc, char **argv, struct cm_error *err,
                             struct gw_options *ret_options)
{
    struct gw_options options = {
#define X(name, field, kind, initial, minimum, maximum, shown, help) .field = initial,
        GW_OPTION_MAP(X)
#undef X
    };
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
            options.help = true;
            *ret_options = options;
            return CM_OK;
        }
        if (strncmp(flag, "--", 2) != 0)
            return cm_fail(err, CM_INVALID, "unexpected argument '%s'", flag);
        if (strcmp(flag, "--plaintext") == 0) {
            options.plaintext = true;
            continue;
        }
        const char *equals = strchr(flag, '=');
        size_t length = equals ? (size_t)(equals - flag) - 2 : strlen(flag) - 2;
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return cm_fail(err, CM_INVALID, "%s needs a value (or is not known)", flag);
        enum cm_err code = take_value(&options, flag + 2, length, value, err);
        if (code == CM_NOT_FOUND)
            return cm_fail(err, CM_INVALID, "unknown option '%s'", flag);
        if (code != CM_OK)
            return code;
    }
    enum cm_err code = check(&options, err);
    if (code == CM_OK)
        *ret_options = options;
    return code;
}

void gw_options_help(void)
{
    puts(
        "Usage: ingot-gateway --run-dir DIR [options]\n"
        "\n"
        "Serves inference over gRPC: takes calls, puts their tensors into shared memory, hands\n"
        "them to the scheduler and sends the answers. One process of an Ingot cluster; `ingot up`\n"
        "starts it.\n"
        "\n"
        "Options (and their defaults):");
#define TEXT(initial)   printf("%s\n", (initial) ? (const char *)(initial) : "none")
#define NUMBER(initial) printf("%d\n", (int)(initial))
#define X(name, field, kind, initial, minimum, maximum, shown, help) \
    printf("  --%s %s\n      %s. Default: ", name, shown, help);     \
    kind(initial);
    GW_OPTION_MAP(X)
#undef X
#undef NUMBER
#undef TEXT
    puts("  --plaintext\n"
         "      no TLS\n"
         "  --help\n"
         "\n"
         "The bound addresses are written to RUN/gateway.json. Certificate files are read again\n"
         "when they change. SIGTERM drains: no new calls, open ones end, at most --drain-ms; a\n"
         "second one ends at once.\n"
         "\n"
         "Exit codes: 0 stopped as asked; 1 failure, the last error line says why; 2 bad\n"
         "arguments; 3 something it cannot work without is gone.");
}

enum cm_err gw_address_split(const char *address, struct cm_error *err, char ret_host[256],
                             uint16_t *ret_port)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == address || colon[1] < '0' || colon[1] > '9' || *end != 0 || port > 65535)
        return cm_fail(err, CM_INVALID, "'%s' is not host:port", address);
    const char *host = address;
    size_t length = (size_t)(colon - address);
    if (host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    }
    if (length == 0 || length > 255)
        return cm_fail(err, CM_INVALID, "'%s' is not host:port", address);
    memcpy(ret_host, host, length);
    ret_host[length] = 0;
    *ret_port = (uint16_t)port;
    return CM_OK;
}
