/* Whether bytes are well-formed UTF-8. Pure, any thread. */
#include "common/utf8.h"

#include <stdint.h>

/* Bytes of the sequence that starts at s, or 0 if it is not valid. */
static size_t utf8_sequence(const uint8_t *s, size_t left)
{
    static const uint32_t minimum[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80             ? 1
                    : (s[0] & 0xe0) == 0xc0 ? 2
                    : (s[0] & 0xf0) == 0xe0 ? 3
                    : (s[0] & 0xf8) == 0xf0 ? 4
                                            : 0;
    if (length == 0 || length > left)
        return 0;
    if (length == 1)
        return 1;
    uint32_t point = s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (s[i] & 0x3f);
    }
    if (point < minimum[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff))
        return 0;
    return length;
}

bool cm_utf8_valid(const void *bytes, size_t length)
{
    const uint8_t *s = bytes;
    while (length > 0) {
        size_t step = utf8_sequence(s, length);
        if (step == 0)
            return false;
        s += step;
        length -= step;
    }
    return true;
}
