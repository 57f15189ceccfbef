/* The wrappers behind alloc.h; the linker puts them in place of the real functions (--wrap). */
#include "tests/harness/alloc.h"

#include <errno.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
char *__wrap_strdup(const char *text);

static _Thread_local unsigned countdown; /* 0 = disarmed */
static _Thread_local bool failed;

void t_alloc_fail_at(unsigned n)
{
    countdown = n;
    failed = false;
}

bool t_alloc_failed(void)
{
    countdown = 0;
    return failed;
}

static bool fail_this_one(void)
{
    if (countdown == 0 || --countdown > 0)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fail_this_one() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fail_this_one() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size)
{
    return fail_this_one() ? NULL : __real_realloc(pointer, size);
}

char *__wrap_strdup(const char *text)
{
    return fail_this_one() ? NULL : __real_strdup(text);
}
