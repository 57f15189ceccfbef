/* Whether bytes from outside are text. Pure, any thread. */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Well-formed UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above
 * U+10FFFF. A NUL byte is valid, and so is no byte at all. */
bool cm_utf8_valid(const void *bytes, size_t length);

#endif
