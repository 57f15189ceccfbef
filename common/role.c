/* Role names. Any thread. */
#include "common/role.h"

#include <stddef.h>
#include <string.h>

const char *cm_role_name(enum cm_role role)
{
    switch (role) {
#define X(name, number, text) \
    case CM_ROLE_##name:      \
        return text;
        CM_ROLE_MAP(X)
#undef X
    case CM_ROLE_NONE:
        break;
    }
    return "?";
}

enum cm_role cm_role_from_name(const char *name)
{
#define X(id, number, text)      \
    if (strcmp(name, text) == 0) \
        return CM_ROLE_##id;
    CM_ROLE_MAP(X)
#undef X
    return CM_ROLE_NONE;
}
