/* Reflection over a serialized FileDescriptorSet, walked by hand. Any thread. */
#include "gateway/reflect.h"

#include "common/check.h"
#include "common/utf8.h"
#include "gateway/wire.h"

#include <grpc/status.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX   32
#define SYMBOLS_MAX 512
#define NAME_MAX_   192
#define DEPTH_MAX   8

/* A file, by where its descriptor lies in the set. */
struct file {
    const uint8_t *data;
    size_t length;
    char name[NAME_MAX_];
    char imports[FILES_MAX][NAME_MAX_];
    size_t n_imports;
};

struct symbol {
    char name[NAME_MAX_];
    uint8_t file;
    bool service;
};

struct gw_reflection {
    struct gw_wire_segment segment;
    struct file files[FILES_MAX];
    size_t n_files;
    struct symbol symbols[SYMBOLS_MAX];
    size_t n_symbols;
};

/* INGOT_DESCRIPTORS is the file that protoc wrote. */
__asm__(".section .rodata\n"
        ".balign 16\n"
        "gw_descriptor_set:\n"
        ".incbin \"" INGOT_DESCRIPTORS "\"\n"
        "gw_descriptor_set_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const uint8_t gw_descriptor_set[], gw_descriptor_set_end[];

const uint8_t *gw_reflection_set(size_t *ret_length)
{
    *ret_length = (size_t)(gw_descriptor_set_end - gw_descriptor_set);
    return gw_descriptor_set;
}

/* The text of a length-delimited field; false if it is none or too long. */
static bool take_name(struct gw_wire *wire, enum gw_wire_type type, char ret[NAME_MAX_])
{
    struct gw_wire part;
    if (type != GW_WIRE_BYTES || gw_wire_bytes(wire, &part) != CM_OK || part.left >= NAME_MAX_)
        return false;
    size_t length = part.left;
    ret[length] = 0;
    return gw_wire_copy(&part, ret, length) == CM_OK && !memchr(ret, 0, length);
}

/* The name (field 1) of a descriptor of any kind. */
static bool find_name(struct gw_wire part, char ret[NAME_MAX_])
{
    uint32_t field;
    enum gw_wire_type type;
    ret[0] = 0;
    while (gw_wire_next(&part, &field, &type) == CM_OK) {
        if (field == 1)
            return take_name(&part, type, ret);
        if (gw_wire_skip(&part, type) != CM_OK)
            return false;
    }
    return true;
}

static bool add_symbol(struct gw_reflection *reflection, const char *scope, const char *name,
                       bool service, char ret_full[NAME_MAX_])
{
    size_t scope_length = strlen(scope), name_length = strlen(name);
    if (reflection->n_symbols == SYMBOLS_MAX || scope_length + 1 + name_length >= NAME_MAX_)
        return false;
    struct symbol *symbol = &reflection->symbols[reflection->n_symbols++];
    memcpy(symbol->name, scope, scope_length);
    size_t at = scope_length;
    if (scope_length > 0)
        symbol->name[at++] = '.';
    memcpy(symbol->name + at, name, name_length + 1);
    symbol->file = (uint8_t)(reflection->n_files - 1);
    symbol->service = service;
    memcpy(ret_full, symbol->name, NAME_MAX_);
    return true;
}

/* A message, enum or service, and what lies in it. The depth is bounded: these are our own files,
 * yet a walk that cannot run away is as short. inner: the field numbers of nested declarations. */
static bool add_declaration(struct gw_reflection *reflection, const char *scope,
                            struct gw_wire part, const uint32_t inner[2], bool service,
                            unsigned depth)
{
    static const uint32_t message[2] = {3, 4}, leaf[2] = {0, 0};
    char name[NAME_MAX_], full[NAME_MAX_];
    if (depth > DEPTH_MAX || !find_name(part, name) ||
        !add_symbol(reflection, scope, name, service, full))
        return false;
    uint32_t field;
    enum gw_wire_type type;
    while (gw_wire_next(&part, &field, &type) == CM_OK) {
        struct gw_wire below;
        bool nested = field == inner[0] || field == inner[1];
        if (!nested) {
            if (gw_wire_skip(&part, type) != CM_OK)
                return false;
            continue;
        }
        const uint32_t *below_inner = inner[0] == message[0] && field == 3 ? message : leaf;
        if (type != GW_WIRE_BYTES || gw_wire_bytes(&part, &below) != CM_OK ||
            !add_declaration(reflection, full, below, below_inner, false, depth + 1))
            return false;
    }
    return true;
}

/* Name, package and imports first: declarations need the package. */
static bool read_head(struct file *file, struct gw_wire part, char ret_package[NAME_MAX_])
{
    uint32_t field;
    enum gw_wire_type type;
    ret_package[0] = 0;
    while (gw_wire_next(&part, &field, &type) == CM_OK) {
        bool good;
        if (field == 1)
            good = take_name(&part, type, file->name);
        else if (field == 2)
            good = take_name(&part, type, ret_package);
        else if (field == 3)
            good = file->n_imports < FILES_MAX &&
                   take_name(&part, type, file->imports[file->n_imports++]);
        else
            good = gw_wire_skip(&part, type) == CM_OK;
        if (!good)
            return false;
    }
    return true;
}

static bool add_file(struct gw_reflection *reflection, struct gw_wire part)
{
    static const uint32_t message[2] = {3, 4}, leaf[2] = {0, 0}, service[2] = {2, 0};
    char package[NAME_MAX_];
    if (reflection->n_files == FILES_MAX)
        return false;
    struct file *file = &reflection->files[reflection->n_files++];
    file->data = gw_wire_peek(&part);
    file->length = part.left;
    if (!read_head(file, part, package))
        return false;
    uint32_t field;
    enum gw_wire_type type;
    while (gw_wire_next(&part, &field, &type) == CM_OK) {
        struct gw_wire below;
        if (field < 4 || field > 6) {
            if (gw_wire_skip(&part, type) != CM_OK)
                return false;
            continue;
        }
        if (type != GW_WIRE_BYTES || gw_wire_bytes(&part, &below) != CM_OK ||
            !add_declaration(reflection, package, below,
                             field == 4   ? message
                             : field == 5 ? leaf
                                          : service,
                             field == 6, 0))
            return false;
    }
    return true;
}

enum cm_err gw_reflection_create(const uint8_t *set, size_t length,
                                 struct gw_reflection **ret_reflection)
{
    struct gw_reflection *reflection = calloc(1, sizeof *reflection);
    if (!reflection)
        return CM_NOMEM;
    reflection->segment = (struct gw_wire_segment){set, length};
    struct gw_wire wire;
    gw_wire_init(&wire, &reflection->segment, 1);
    uint32_t field;
    enum gw_wire_type type;
    enum cm_err code;
    bool good = true;
    while (good && (code = gw_wire_next(&wire, &field, &type)) == CM_OK) {
        struct gw_wire part;
        good = field == 1 && type == GW_WIRE_BYTES && gw_wire_bytes(&wire, &part) == CM_OK &&
               add_file(reflection, part);
    }
    if (!good || code != CM_AGAIN || reflection->n_files == 0) {
        free(reflection);
        return CM_CORRUPT;
    }
    *ret_reflection = reflection;
    return CM_OK;
}

void gw_reflection_destroy(struct gw_reflection *reflection)
{
    free(reflection);
}

/* ---- answers ---- */

/* The question: the last of the oneof's fields that was set. */
struct question {
    uint32_t kind; /* field number; 0: none */
    char host[NAME_MAX_];
    char name[NAME_MAX_];
};

static bool parse_question(struct gw_wire wire, struct question *ret)
{
    uint32_t field;
    enum gw_wire_type type;
    enum cm_err code;
    *ret = (struct question){0};
    while ((code = gw_wire_next(&wire, &field, &type)) == CM_OK) {
        bool good;
        struct gw_wire part;
        if (field == 1) {
            good = take_name(&wire, type, ret->host);
        } else if (field == 3 || field == 4 || field == 6 || field == 7) {
            /* A name that is too long names nothing. */
            struct gw_wire at = wire;
            good = take_name(&at, type, ret->name);
            if (!good)
                strcpy(ret->name, "?");
            good = type == GW_WIRE_BYTES && gw_wire_bytes(&wire, &part) == CM_OK;
            ret->kind = field;
        } else if (field == 5) {
            good = type == GW_WIRE_BYTES && gw_wire_bytes(&wire, &part) == CM_OK &&
                   find_name(part, ret->name);
            ret->kind = field;
        } else {
            good = gw_wire_skip(&wire, type) == CM_OK;
        }
        if (!good)
            return false;
    }
    return code == CM_AGAIN && cm_utf8_valid(ret->host, strlen(ret->host));
}

static int file_by_name(const struct gw_reflection *reflection, const char *name)
{
    for (size_t i = 0; i < reflection->n_files; i++)
        if (strcmp(reflection->files[i].name, name) == 0)
            return (int)i;
    return -1;
}

static const struct symbol *symbol_by_name(const struct gw_reflection *reflection, const char *name)
{
    for (size_t i = 0; i < reflection->n_symbols; i++)
        if (strcmp(reflection->symbols[i].name, name) == 0)
            return &reflection->symbols[i];
    return NULL;
}

/* The file and all that it imports, each once, into the answer's file_descriptor_response. */
static void put_files(const struct gw_reflection *reflection, size_t first, struct gw_put *put)
{
    size_t order[FILES_MAX] = {first}, count = 1, bytes = 0;
    bool taken[FILES_MAX] = {false};
    taken[first] = true;
    for (size_t i = 0; i < count; i++) {
        const struct file *file = &reflection->files[order[i]];
        bytes += 1 + gw_varint_size(file->length) + file->length;
        for (size_t k = 0; k < file->n_imports; k++) {
            int at = file_by_name(reflection, file->imports[k]);
            if (at < 0 || taken[at])
                continue;
            taken[at] = true;
            order[count++] = (size_t)at;
        }
    }
    gw_put_head(put, 4, bytes);
    for (size_t i = 0; i < count; i++)
        gw_put_bytes(put, 1, reflection->files[order[i]].data, reflection->files[order[i]].length);
}

static void put_error(struct gw_put *put, grpc_status_code code, const char *text)
{
    gw_put_head(put, 7, 1 + gw_varint_size(code) + 1 + gw_varint_size(strlen(text)) + strlen(text));
    gw_put_uint(put, 1, code);
    gw_put_text(put, 2, text);
}

static void put_services(const struct gw_reflection *reflection, struct gw_put *put)
{
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1)
            gw_put_head(put, 6, bytes);
        for (size_t i = 0; i < reflection->n_symbols; i++) {
            const struct symbol *symbol = &reflection->symbols[i];
            if (!symbol->service)
                continue;
            size_t inner = 1 + gw_varint_size(strlen(symbol->name)) + strlen(symbol->name);
            if (pass == 0) {
                bytes += 1 + gw_varint_size(inner) + inner;
            } else {
                gw_put_head(put, 1, inner);
                gw_put_text(put, 1, symbol->name);
            }
        }
    }
}

static void put_numbers(const struct gw_reflection *reflection, const char *name,
                        struct gw_put *put)
{
    /* proto3 messages have no extensions: a known type has none. */
    if (!symbol_by_name(reflection, name)) {
        put_error(put, GRPC_STATUS_NOT_FOUND, "type not found");
        return;
    }
    gw_put_head(put, 5, 1 + gw_varint_size(strlen(name)) + strlen(name));
    gw_put_text(put, 1, name);
}

bool gw_reflection_answer(const struct gw_reflection *reflection, const uint8_t *request,
                          size_t length, uint8_t *answer, size_t *ret_length)
{
    struct gw_wire_segment segment = {request, length};
    struct gw_wire wire;
    struct question question;
    gw_wire_init(&wire, &segment, 1);
    if (!parse_question(wire, &question))
        return false;
    struct gw_put put = {answer, 0, GW_REFLECTION_ANSWER_MAX};
    gw_put_text(&put, 1, question.host);
    gw_put_bytes(&put, 2, request, length);
    int file = -1;
    switch (question.kind) {
    case 3:
    case 4:
        if (question.kind == 3) {
            file = file_by_name(reflection, question.name);
        } else {
            const struct symbol *symbol = symbol_by_name(reflection, question.name);
            file = symbol ? symbol->file : -1;
        }
        if (file >= 0)
            put_files(reflection, (size_t)file, &put);
        else
            put_error(&put, GRPC_STATUS_NOT_FOUND, "file or symbol not found");
        break;
    case 5:
        put_error(&put, GRPC_STATUS_NOT_FOUND, "extension not found");
        break;
    case 6:
        put_numbers(reflection, question.name, &put);
        break;
    case 7:
        put_services(reflection, &put);
        break;
    default:
        put_error(&put, GRPC_STATUS_INVALID_ARGUMENT, "no question");
    }
    CM_ASSERT(put.length <= put.capacity); /* all descriptors are a few kilobytes */
    *ret_length = put.length;
    return true;
}
