/* The operator table as lookups and text; made from ops.inc. Pure, any thread. */
#include "gpu-worker/graph/graph.h"

#include "common/check.h"

#include <assert.h>
#include <string.h>

static const char *const names[] = {
#define OP(name, rule, traits, note) #name,
#define VER(name, first, last, min_in, max_in, max_out, attributes)
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
};

static const uint32_t traits_of[] = {
#define OP(name, rule, traits, note) (traits),
#define VER(name, first, last, min_in, max_in, max_out, attributes)
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
};

static const struct wk_op_version versions[] = {
#define OP(name, rule, traits, note)
#define VER(name, first, last, min_in, max_in, max_out, attributes) \
    {WK_OP_##name, first, last, min_in, max_in, max_out, attributes},
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
};

static_assert(CM_COUNT_OF(names) == WK_OP_COUNT, "one name per operator");

/* The text of wk_ops_text: columns padded at run time would need memory, so each line is a literal
 * of the table itself. */
static const char text[] =
#define OP(name, rule, traits, note) #name ": " note "\n"
#define VER(name, first, last, min_in, max_in, max_out, attributes) \
    "    opset " #first "-" #last " " attributes "\n"
#include "gpu-worker/graph/ops.inc"
#undef OP
#undef VER
    "";

const char *wk_op_name(enum wk_op op)
{
    CM_ASSERT((unsigned)op < WK_OP_COUNT);
    return names[op];
}

uint32_t wk_op_traits(enum wk_op op)
{
    CM_ASSERT((unsigned)op < WK_OP_COUNT);
    return traits_of[op];
}

enum wk_op wk_op_from_name(const char *name)
{
    unsigned op = 0;
    while (op < WK_OP_COUNT && strcmp(names[op], name) != 0)
        op++;
    return (enum wk_op)op;
}

const struct wk_op_version *wk_op_version(enum wk_op op, int64_t opset)
{
    for (unsigned i = 0; i < CM_COUNT_OF(versions); i++)
        if (versions[i].op == op && opset >= versions[i].first && opset <= versions[i].last)
            return &versions[i];
    return NULL;
}

char wk_op_attribute(const struct wk_op_version *version, const char *name)
{
    size_t length = strlen(name);
    const char *at = version->attributes;
    while (*at) {
        const char *colon = strchr(at, ':');
        if ((size_t)(colon - at) == length && memcmp(at, name, length) == 0)
            return colon[1];
        at = colon + 2;
        if (*at == ' ')
            at++;
    }
    return 0;
}

const char *wk_ops_text(void)
{
    return text;
}
