/* Region states: the table of legal edges. Pure. */
#include "memmgr/state_priv.h"

#include "common/check.h"

/* 0 (NEW, which nothing leads to) means: no such edge. */
#define TO(name) MM_STATE_##name

static const unsigned char edges[MM_STATE_COUNT][MM_EVENT_COUNT] = {
    [MM_STATE_NEW] = {[MM_EVENT_GRANT] = TO(GRANTED),
                      [MM_EVENT_KEEP] = TO(IDLE),
                      [MM_EVENT_ORPHAN] = TO(ORPHANED),
                      [MM_EVENT_AWAIT] = TO(AWAITED),
                      [MM_EVENT_ADOPT] = TO(GRANTED),
                      [MM_EVENT_WRITE] = TO(WRITING),
                      [MM_EVENT_SEAL] = TO(SEALED),
                      [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_IDLE] = {[MM_EVENT_GRANT] = TO(GRANTED), [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_GRANTED] =
        {[MM_EVENT_KEEP] = TO(IDLE), [MM_EVENT_ORPHAN] = TO(ORPHANED), [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_ORPHANED] =
        {[MM_EVENT_KEEP] = TO(IDLE), [MM_EVENT_ADOPT] = TO(GRANTED), [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_AWAITED] = {[MM_EVENT_ORPHAN] = TO(ORPHANED),
                          [MM_EVENT_ADOPT] = TO(GRANTED),
                          [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_WRITING] = {[MM_EVENT_SEAL] = TO(SEALED), [MM_EVENT_DROP] = TO(GONE)},
    [MM_STATE_SEALED] = {[MM_EVENT_DROP] = TO(GONE)},
};

bool mm_state_next(enum mm_state state, enum mm_event event, enum mm_state *ret_state)
{
    CM_ASSERT((unsigned)state < MM_STATE_COUNT && (unsigned)event < MM_EVENT_COUNT);
    unsigned char next = edges[state][event];
    if (next == 0)
        return false;
    *ret_state = (enum mm_state)next;
    return true;
}

const char *mm_state_name(enum mm_state state)
{
    switch (state) {
#define X(name, text)     \
    case MM_STATE_##name: \
        return text;
        MM_STATE_MAP(X)
#undef X
    }
    return "?";
}
