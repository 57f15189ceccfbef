/* Model configuration files and the alphabet of names. Pure parsing of bytes, any thread.
 *
 * The file is one flat YAML mapping of words to whole numbers, so the parser's events are walked
 * directly: anything but a plain scalar where one belongs is an error at its line. Anchors,
 * aliases, tags and further documents are refused rather than half understood. */
#include "common/model_config.h"

#include "common/check.h"

#include <string.h>
#include <yaml.h>

/* No sensible file comes near it; keeps libyaml's work bounded. */
#define FILE_BYTES_MAX (64u * 1024u)

struct key {
    const char *name;
    size_t offset;
    uint64_t minimum, maximum;
};

static const struct key keys[] = {
#define X(key, field, type, minimum, maximum, initial, meaning) \
    {key, offsetof(struct cm_model_config, field), minimum, maximum},
    CM_MODEL_CONFIG_MAP(X)
#undef X
};

/* set_value writes this type; a key of another one needs a case there. */
#define X(key, field, type, minimum, maximum, initial, meaning) \
    _Static_assert(_Generic((type)0, uint32_t : 1, default : 0), key " is not a uint32_t");
CM_MODEL_CONFIG_MAP(X)
#undef X

struct parse {
    const char *file;
    struct cm_error *err;
    yaml_parser_t parser;
    struct cm_model_config config;
    bool seen[CM_COUNT_OF(keys)];
};

/* Lines count from 1 for people. */
static unsigned line_of(yaml_mark_t mark)
{
    return (unsigned)mark.line + 1;
}

static enum cm_err next_event(struct parse *p, yaml_event_t *ret_event)
{
    if (yaml_parser_parse(&p->parser, ret_event))
        return CM_OK;
    if (p->parser.error == YAML_MEMORY_ERROR)
        return cm_fail(p->err, CM_NOMEM, "%s: no memory to parse it", p->file);
    /* The reader's errors (bytes that are not UTF-8) come without a mark. */
    unsigned line = p->parser.error == YAML_READER_ERROR ? 1 : line_of(p->parser.problem_mark);
    return cm_fail(p->err, CM_INVALID, "%s:%u: not valid YAML: %s", p->file, line,
                   p->parser.problem ? p->parser.problem : "cannot be read");
}

static const struct key *find_key(const char *name, size_t length)
{
    for (size_t i = 0; i < CM_COUNT_OF(keys); i++)
        if (strlen(keys[i].name) == length && memcmp(keys[i].name, name, length) == 0)
            return &keys[i];
    return NULL;
}

/* "max_batch_size, max_wait_us, max_queue" */
static const char *list_keys(char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < CM_COUNT_OF(keys) && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%s", i ? ", " : "", keys[i].name);
    return buffer;
}

/* What a file may say about a scalar beyond its bytes is refused. */
static bool scalar_is_plain(const yaml_event_t *event)
{
    return event->type == YAML_SCALAR_EVENT && !event->data.scalar.anchor &&
           !event->data.scalar.tag && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static enum cm_err check_key(struct parse *p, const yaml_event_t *event, const struct key **ret_key)
{
    unsigned line = line_of(event->start_mark);
    if (event->type != YAML_SCALAR_EVENT)
        return cm_fail(p->err, CM_INVALID, "%s:%u: a key must be a word", p->file, line);
    const char *name = (const char *)event->data.scalar.value;
    const struct key *key = find_key(name, event->data.scalar.length);
    if (!key) {
        char known[256];
        return cm_fail(p->err, CM_INVALID, "%s:%u: unknown key '%.64s'; the keys are %s", p->file,
                       line, name, list_keys(known, sizeof known));
    }
    if (event->data.scalar.anchor || event->data.scalar.tag)
        return cm_fail(p->err, CM_INVALID, "%s:%u: anchors and tags are not supported", p->file,
                       line);
    if (p->seen[key - keys])
        return cm_fail(p->err, CM_INVALID, "%s:%u: key '%s' is there twice", p->file, line, name);
    p->seen[key - keys] = true;
    *ret_key = key;
    return CM_OK;
}

/* Decimal digits only; false also for what does not fit 64 bits. */
static bool parse_decimal(const char *text, size_t length, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return false;
    }
    *ret_value = value;
    return length > 0;
}

static enum cm_err set_value(struct parse *p, const struct key *key, const yaml_event_t *event)
{
    unsigned line = line_of(event->start_mark);
    uint64_t value = 0;
    if (!scalar_is_plain(event) ||
        !parse_decimal((const char *)event->data.scalar.value, event->data.scalar.length, &value))
        return cm_fail(p->err, CM_INVALID, "%s:%u: '%s' must be a whole number from %llu to %llu",
                       p->file, line, key->name, (unsigned long long)key->minimum,
                       (unsigned long long)key->maximum);
    if (value < key->minimum || value > key->maximum)
        return cm_fail(p->err, CM_INVALID, "%s:%u: '%s' is %llu; it must be from %llu to %llu",
                       p->file, line, key->name, (unsigned long long)value,
                       (unsigned long long)key->minimum, (unsigned long long)key->maximum);
    uint32_t narrow = (uint32_t)value;
    memcpy((char *)&p->config + key->offset, &narrow, sizeof narrow);
    return CM_OK;
}

static enum cm_err parse_pair(struct parse *p, const yaml_event_t *key_event)
{
    const struct key *key = NULL;
    yaml_event_t value;
    enum cm_err rc = check_key(p, key_event, &key);
    if (rc == CM_OK)
        rc = next_event(p, &value);
    if (rc != CM_OK)
        return rc;
    rc = set_value(p, key, &value);
    yaml_event_delete(&value);
    return rc;
}

/* The document's root: a mapping, or nothing at all. */
static enum cm_err parse_root(struct parse *p, const yaml_event_t *root)
{
    if (scalar_is_plain(root) && root->data.scalar.length == 0)
        return CM_OK;
    if (root->type != YAML_MAPPING_START_EVENT || root->data.mapping_start.anchor ||
        root->data.mapping_start.tag)
        return cm_fail(p->err, CM_INVALID, "%s:%u: the file must be 'key: value' lines", p->file,
                       line_of(root->start_mark));
    for (;;) {
        yaml_event_t event;
        enum cm_err rc = next_event(p, &event);
        if (rc != CM_OK)
            return rc;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end)
            rc = parse_pair(p, &event);
        yaml_event_delete(&event);
        if (rc != CM_OK || end)
            return rc;
    }
}

static enum cm_err parse_stream(struct parse *p)
{
    unsigned documents = 0;
    for (;;) {
        yaml_event_t event;
        enum cm_err rc = next_event(p, &event);
        if (rc != CM_OK)
            return rc;
        yaml_event_type_t type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT && documents++ > 0)
            rc = cm_fail(p->err, CM_INVALID, "%s:%u: a second document begins here", p->file,
                         line_of(event.start_mark));
        else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                 type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT)
            rc = parse_root(p, &event);
        yaml_event_delete(&event);
        if (rc != CM_OK || type == YAML_STREAM_END_EVENT)
            return rc;
    }
}

void cm_model_config_init(struct cm_model_config *config)
{
    *config = (struct cm_model_config){
#define X(key, field, type, minimum, maximum, initial, meaning) .field = initial,
        CM_MODEL_CONFIG_MAP(X)
#undef X
    };
}

enum cm_err cm_model_config_parse(const char *file, const void *bytes, size_t length,
                                  struct cm_error *err, struct cm_model_config *ret_config)
{
    if (length > FILE_BYTES_MAX)
        return cm_fail(err, CM_INVALID, "%s:1: the file has %zu bytes, at most %u are allowed",
                       file, length, FILE_BYTES_MAX);
    struct parse p = {.file = file, .err = err};
    cm_model_config_init(&p.config);
    if (!yaml_parser_initialize(&p.parser))
        return cm_fail(err, CM_NOMEM, "%s: no memory to parse it", file);
    yaml_parser_set_input_string(&p.parser, length > 0 ? bytes : (const void *)"", length);
    enum cm_err rc = parse_stream(&p);
    yaml_parser_delete(&p.parser);
    if (rc == CM_OK)
        *ret_config = p.config;
    return rc;
}

static bool alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool cm_model_name_valid(const char *name, size_t length)
{
    if (length == 0 || length > CM_MODEL_NAME_MAX || !alphanumeric(name[0]))
        return false;
    for (size_t i = 1; i < length; i++) {
        char c = name[i];
        if (!alphanumeric(c) && c != '_' && c != '.' && c != '-')
            return false;
        if (c == '.' && name[i - 1] == '.')
            return false;
    }
    return true;
}

uint32_t cm_model_version_parse(const char *text, size_t length)
{
    uint64_t value = 0;
    if (length == 0 || length > 10 || text[0] == '0' || !parse_decimal(text, length, &value))
        return 0;
    return value <= INT32_MAX ? (uint32_t)value : 0;
}
