/* Which requests were delivered and what was answered: delivery at most once. Plain data, no I/O.
 *
 * A sender's sequence numbers only grow, over its lives too (they begin at the clock's
 * nanoseconds), but requests may arrive out of order, because a retry of an older one may come
 * after a newer one. So the last few of each sender are remembered one by one, and everything up to
 * the largest forgotten one counts as delivered. */
#include "common/bus_priv.h"

#include "common/check.h"

#include <stdlib.h>

#define SENDERS_MAX      CM_BUS_PEERS_MAX
#define SEEN_MAX         64u
#define ANSWER_BYTES_MAX (4u * CM_BUS_MESSAGE_MAX) /* of all remembered answers */

struct seen {
    TAILQ_ENTRY(seen) by_age; /* in memory->answers while answer is set */
    uint64_t sequence;        /* 0 = unused */
    struct cm_bus_packet *answer;
    bool answered;
};

struct sender {
    TAILQ_ENTRY(sender) by_use;
    uint32_t role, index;
    uint64_t forgotten; /* the largest sequence that fell out of seen */
    unsigned next;      /* where the next one goes: the oldest */
    struct seen seen[SEEN_MAX];
};

struct cm_bus_memory {
    TAILQ_HEAD(, sender) senders; /* least recently used first */
    unsigned count;
    TAILQ_HEAD(, seen) answers; /* oldest first */
    size_t answer_bytes;
};

static void forget_answer(struct cm_bus_memory *memory, struct seen *seen)
{
    if (!seen->answer)
        return;
    TAILQ_REMOVE(&memory->answers, seen, by_age);
    memory->answer_bytes -= seen->answer->length;
    cm_bus_packet_unref(seen->answer);
    seen->answer = NULL;
}

static void forget_sender(struct cm_bus_memory *memory, struct sender *sender)
{
    for (unsigned i = 0; i < SEEN_MAX; i++)
        forget_answer(memory, &sender->seen[i]);
    TAILQ_REMOVE(&memory->senders, sender, by_use);
    memory->count--;
    free(sender);
}

struct cm_bus_memory *cm_bus_memory_create(void)
{
    struct cm_bus_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return NULL;
    TAILQ_INIT(&memory->senders);
    TAILQ_INIT(&memory->answers);
    return memory;
}

void cm_bus_memory_destroy(struct cm_bus_memory *memory)
{
    if (!memory)
        return;
    while (!TAILQ_EMPTY(&memory->senders))
        forget_sender(memory, TAILQ_FIRST(&memory->senders));
    free(memory);
}

static struct sender *find_sender(struct cm_bus_memory *memory, const Ingot__Ipc__Sender *who)
{
    struct sender *sender;
    TAILQ_FOREACH(sender, &memory->senders, by_use)
    if (sender->role == who->role && sender->index == who->index)
        return sender;
    return NULL;
}

static struct sender *know_sender(struct cm_bus_memory *memory, const Ingot__Ipc__Sender *who)
{
    struct sender *sender = find_sender(memory, who);
    if (sender) {
        TAILQ_REMOVE(&memory->senders, sender, by_use);
    } else {
        sender = calloc(1, sizeof *sender);
        if (!sender)
            return NULL;
        if (memory->count >= SENDERS_MAX)
            forget_sender(memory, TAILQ_FIRST(&memory->senders));
        sender->role = who->role;
        sender->index = who->index;
        memory->count++;
    }
    TAILQ_INSERT_TAIL(&memory->senders, sender, by_use);
    return sender;
}

static struct seen *find_seen(struct sender *sender, uint64_t sequence)
{
    for (unsigned i = 0; i < SEEN_MAX; i++)
        if (sender->seen[i].sequence == sequence)
            return &sender->seen[i];
    return NULL;
}

enum cm_bus_verdict cm_bus_memory_ask(struct cm_bus_memory *memory,
                                      const Ingot__Ipc__Sender *sender, uint64_t sequence,
                                      struct cm_bus_packet **ret_answer)
{
    CM_ASSERT(sequence != 0);
    struct sender *known = know_sender(memory, sender);
    if (!known)
        return BUS_OLD;
    struct seen *seen = find_seen(known, sequence);
    if (seen) {
        if (!seen->answered)
            return BUS_WAITING;
        *ret_answer = seen->answer;
        return seen->answer ? BUS_KNOWN : BUS_OLD;
    }
    if (sequence <= known->forgotten)
        return BUS_OLD;
    seen = &known->seen[known->next];
    known->next = (known->next + 1) % SEEN_MAX;
    if (seen->sequence > known->forgotten)
        known->forgotten = seen->sequence;
    forget_answer(memory, seen);
    seen->sequence = sequence;
    seen->answered = false;
    return BUS_NEW;
}

void cm_bus_memory_answer(struct cm_bus_memory *memory, const Ingot__Ipc__Sender *sender,
                          uint64_t sequence, struct cm_bus_packet *answer)
{
    struct sender *known = find_sender(memory, sender);
    struct seen *seen = known && sequence != 0 ? find_seen(known, sequence) : NULL;
    if (!seen || seen->answered)
        return;
    seen->answered = true;
    seen->answer = cm_bus_packet_ref(answer);
    TAILQ_INSERT_TAIL(&memory->answers, seen, by_age);
    memory->answer_bytes += answer->length;
    while (memory->answer_bytes > ANSWER_BYTES_MAX)
        forget_answer(memory, TAILQ_FIRST(&memory->answers));
}
