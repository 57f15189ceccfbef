/* x-request-context and traceparent. Pure, any thread. */
#include "gateway/context.h"

#include "proto/ingot.pb-c.h"

#include <string.h>

static int base64_value(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

enum cm_err gw_base64_decode(const void *text, size_t length, void *target, size_t size,
                             size_t *ret_length)
{
    const uint8_t *in = text;
    uint8_t *out = target;
    size_t padding = 0;
    while (padding < 2 && length > 0 && in[length - 1] == '=') {
        length--;
        padding++;
    }
    size_t tail = length % 4;
    if (tail == 1 || (padding > 0 && (length + padding) % 4 != 0))
        return CM_INVALID;
    size_t bytes = length / 4 * 3 + (tail ? tail - 1 : 0);
    if (bytes > size)
        return CM_LIMIT;
    uint32_t bits = 0;
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        int value = base64_value(in[i]);
        if (value < 0)
            return CM_INVALID;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 0)
            out[n++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    if ((tail == 2 && (bits & 0xf)) || (tail == 3 && (bits & 0x3)))
        return CM_INVALID;
    *ret_length = n;
    return CM_OK;
}

bool gw_word_valid(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != ':' && c != '-')
            return false;
    }
    return length > 0;
}

static enum cm_err take_word(const char *field, const char *text, size_t limit,
                             struct cm_error *err, char *target)
{
    size_t length = strlen(text);
    if (length == 0)
        return CM_OK;
    if (length > limit || !gw_word_valid(text, length))
        return cm_fail(err, CM_INVALID,
                       "x-request-context: %s must be at most %zu of [A-Za-z0-9._:-]", field,
                       limit);
    memcpy(target, text, length + 1);
    return CM_OK;
}

static enum cm_err take_fields(const Ingot__V1__RequestContext *message, struct cm_error *err,
                               struct gw_context *ret)
{
    enum cm_err code =
        take_word("request_id", message->request_id, GW_REQUEST_ID_MAX, err, ret->request_id);
    if (code == CM_OK)
        code = take_word("tenant", message->tenant, GW_TENANT_MAX, err, ret->tenant);
    if (code != CM_OK)
        return code;
    if (message->priority > 255)
        return cm_fail(err, CM_INVALID, "x-request-context: priority must be 0 to 255");
    ret->priority = (uint8_t)message->priority;
    ret->timeout_us = message->timeout_us;
    ret->want_stats = message->want_stats;
    return CM_OK;
}

enum cm_err gw_context_parse(const void *value, size_t length, struct cm_error *err,
                             struct gw_context *ret_context)
{
    uint8_t bytes[GW_CONTEXT_MAX];
    size_t n;
    if (length > GW_CONTEXT_MAX || gw_base64_decode(value, length, bytes, sizeof bytes, &n))
        return cm_fail(err, CM_INVALID, "x-request-context: not base64 of at most %u characters",
                       GW_CONTEXT_MAX);
    Ingot__V1__RequestContext *message = ingot__v1__request_context__unpack(NULL, n, bytes);
    if (!message)
        return cm_fail(err, CM_INVALID, "x-request-context: not an ingot.v1.RequestContext");
    struct gw_context context = *ret_context;
    enum cm_err code = take_fields(message, err, &context);
    ingot__v1__request_context__free_unpacked(message, NULL);
    if (code == CM_OK)
        *ret_context = context;
    return code;
}

static bool hex_field(const char *text, size_t length, bool zero_allowed)
{
    bool zero = true;
    for (size_t i = 0; i < length; i++) {
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
        zero = zero && text[i] == '0';
    }
    return zero_allowed || !zero;
}

void gw_context_traceparent(struct gw_context *context, const void *value, size_t length)
{
    const char *text = value;
    context->traceparent[0] = 0;
    if (length != 55 || memcmp(text, "00-", 3) != 0 || text[35] != '-' || text[52] != '-')
        return;
    if (!hex_field(text + 3, 32, false) || !hex_field(text + 36, 16, false) ||
        !hex_field(text + 53, 2, true))
        return;
    memcpy(context->traceparent, text, 55);
    context->traceparent[55] = 0;
}
