/* Regions, their holders and the budget. memmgr's loop thread; no sockets, no clock. */
#include "memmgr/ledger_priv.h"

#include "common/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void mm_ledger_init(struct mm_ledger *ledger, uint64_t budget, uint64_t realtime_ns)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->budget = budget;
    ledger->last_number = realtime_ns;
    TAILQ_INIT(&ledger->all);
}

void mm_ledger_fini(struct mm_ledger *ledger)
{
    struct mm_region *region, *next;
    ledger->close_memory = NULL; /* nothing may outlive this call */
    MM_FOREACH_SAFE(region, next, &ledger->all, in_all)
    {
        CM_ASSERT(!region->owner && region->n_readers == 0);
        mm_ledger_move(ledger, region, MM_EVENT_DROP, 0);
    }
}

uint64_t mm_ledger_number(struct mm_ledger *ledger)
{
    return ++ledger->last_number;
}

void mm_ledger_saw(struct mm_ledger *ledger, uint64_t number)
{
    if (number > ledger->last_number)
        ledger->last_number = number;
}

struct mm_region *mm_ledger_find(struct mm_ledger *ledger, uint64_t number)
{
    struct mm_region *region;
    LIST_FOREACH(region, &ledger->buckets[number % MM_LEDGER_BUCKETS], in_bucket)
    {
        if (region->number == number)
            return region;
    }
    return NULL;
}

struct mm_region *mm_ledger_find_memory(struct mm_ledger *ledger, struct mm_memory_id id)
{
    struct mm_region *region;
    TAILQ_FOREACH(region, &ledger->all, in_all)
    {
        if (region->fd >= 0 && region->id.inode == id.inode && region->id.device == id.device)
            return region;
    }
    return NULL;
}

struct mm_region *mm_ledger_find_key(struct mm_ledger *ledger, const uint8_t key[32])
{
    struct mm_region *region, *found = NULL;
    TAILQ_FOREACH(region, &ledger->all, in_all)
    {
        if (region->kind != MM_KIND_WEIGHTS || memcmp(region->key, key, 32) != 0)
            continue;
        if (region->state == MM_STATE_SEALED)
            return region;
        found = region;
    }
    return found;
}

struct mm_region *mm_ledger_find_idle(struct mm_ledger *ledger, size_t bytes)
{
    struct mm_region *region, *found = NULL;
    TAILQ_FOREACH(region, &ledger->all, in_all)
    {
        if (region->state == MM_STATE_IDLE && region->bytes == bytes &&
            (!found || region->since_ns >= found->since_ns))
            found = region;
    }
    return found;
}

static bool is_unheld_weights(const struct mm_region *region)
{
    return region->state == MM_STATE_SEALED && region->n_readers == 0;
}

/* The region that has been of no use for the longest; pooled ones before weights, which are dearer
 * to get back. */
static struct mm_region *find_victim(struct mm_ledger *ledger)
{
    struct mm_region *region, *idle = NULL, *unheld = NULL;
    TAILQ_FOREACH(region, &ledger->all, in_all)
    {
        if (region->state == MM_STATE_IDLE && (!idle || region->since_ns < idle->since_ns))
            idle = region;
        if (is_unheld_weights(region) && (!unheld || region->since_ns < unheld->since_ns))
            unheld = region;
    }
    return idle ? idle : unheld;
}

static void evict(struct mm_ledger *ledger, struct mm_region *region)
{
    ledger->counters.regions_evicted++;
    mm_ledger_move(ledger, region, MM_EVENT_DROP, 0);
}

enum cm_err mm_ledger_make_room(struct mm_ledger *ledger, uint64_t bytes, const char *what,
                                struct cm_error *err)
{
    /* First see whether it can help: memory that others could use is not thrown away for nothing.
     */
    uint64_t spare = 0;
    struct mm_region *region;
    TAILQ_FOREACH(region, &ledger->all, in_all)
    {
        if (region->state == MM_STATE_IDLE || is_unheld_weights(region))
            spare += region->bytes;
    }
    uint64_t held = ledger->charged - spare, need;
    if (__builtin_add_overflow(held, bytes, &need) || need > ledger->budget) {
        ledger->counters.budget_refused++;
        uint64_t room = held < ledger->budget ? ledger->budget - held : 0;
        return cm_fail(err, CM_LIMIT,
                       "%s needs %" PRIu64 " bytes, %" PRIu64 " more than memmgr can give: budget "
                       "%" PRIu64 ", in use %" PRIu64,
                       what, bytes, bytes - room, ledger->budget, held);
    }
    while (ledger->charged + bytes > ledger->budget)
        evict(ledger, find_victim(ledger));
    return CM_OK;
}

void mm_ledger_evict_all(struct mm_ledger *ledger)
{
    struct mm_region *region;
    while ((region = find_victim(ledger)))
        evict(ledger, region);
}

enum cm_err mm_ledger_add(struct mm_ledger *ledger, const struct mm_region_init *init,
                          uint64_t now_ns, struct cm_error *err, struct mm_region **ret_region)
{
    if (ledger->n_regions >= MM_REGIONS_MAX)
        return cm_fail(err, CM_FULL, "memmgr holds %u regions, its limit", MM_REGIONS_MAX);
    struct mm_region *region = calloc(1, sizeof *region);
    if (!region)
        return cm_fail(err, CM_NOMEM, "memmgr is out of memory");
    region->number = init->number ? init->number : mm_ledger_number(ledger);
    region->kind = init->kind;
    region->state = MM_STATE_NEW;
    region->fd = init->fd;
    region->bytes = init->bytes;
    region->since_ns = now_ns;
    TAILQ_INIT(&region->readers);
    TAILQ_INIT(&region->waiting);
    TAILQ_INSERT_TAIL(&ledger->all, region, in_all);
    LIST_INSERT_HEAD(&ledger->buckets[region->number % MM_LEDGER_BUCKETS], region, in_bucket);
    ledger->n_regions++;
    mm_ledger_charge(ledger, region->bytes);
    *ret_region = region;
    return CM_OK;
}

static void forget(struct mm_ledger *ledger, struct mm_region *region)
{
    CM_ASSERT(!region->owner && region->n_readers == 0 && TAILQ_EMPTY(&region->waiting));
    if (region->orphaned)
        ledger->counters.orphans_reclaimed++;
    if (region->fd >= 0 && ledger->close_memory)
        ledger->close_memory(ledger->close_ctx, region->fd, region->bytes);
    else if (region->fd >= 0)
        close(region->fd);
    TAILQ_REMOVE(&ledger->all, region, in_all);
    LIST_REMOVE(region, in_bucket);
    ledger->n_regions--;
    mm_ledger_uncharge(ledger, region->bytes);
    free(region);
}

void mm_ledger_move(struct mm_ledger *ledger, struct mm_region *region, enum mm_event event,
                    uint64_t now_ns)
{
    enum mm_state next;
    CM_ASSERT(mm_state_next(region->state, event, &next));
    region->state = next;
    region->since_ns = now_ns;
    if (event == MM_EVENT_GRANT)
        region->generation++;
    if (next == MM_STATE_GONE)
        forget(ledger, region);
}

void mm_ledger_retire(struct mm_ledger *ledger, struct mm_region *region, uint64_t now_ns)
{
    CM_ASSERT(!region->owner && region->n_readers == 0);
    unsigned same = 0;
    struct mm_region *other;
    TAILQ_FOREACH(other, &ledger->all, in_all)
    {
        if (other->state == MM_STATE_IDLE && other->bytes == region->bytes)
            same++;
    }
    bool keep = !region->tainted && same < MM_IDLE_CLASS_MAX && region->generation < UINT32_MAX &&
                ledger->charged <= ledger->budget;
    mm_ledger_move(ledger, region, keep ? MM_EVENT_KEEP : MM_EVENT_DROP, now_ns);
}

struct mm_hold *mm_ledger_hold(struct mm_region *region, struct mm_conn *conn, bool owner,
                               struct mm_holds *in_conn)
{
    struct mm_hold *hold = calloc(1, sizeof *hold);
    if (!hold)
        return NULL;
    *hold = (struct mm_hold){.conn = conn, .region = region, .owner = owner};
    TAILQ_INSERT_TAIL(in_conn, hold, in_conn);
    if (owner) {
        CM_ASSERT(!region->owner);
        region->owner = hold;
    } else {
        TAILQ_INSERT_TAIL(&region->readers, hold, in_region);
        region->n_readers++;
    }
    return hold;
}

void mm_ledger_unhold(struct mm_hold *hold, struct mm_holds *in_conn, uint64_t now_ns)
{
    struct mm_region *region = hold->region;
    TAILQ_REMOVE(in_conn, hold, in_conn);
    if (hold->owner) {
        region->owner = NULL;
    } else {
        TAILQ_REMOVE(&region->readers, hold, in_region);
        region->n_readers--;
    }
    if (is_unheld_weights(region))
        region->since_ns = now_ns;
    free(hold);
}

static bool older_than(uint64_t since_ns, uint64_t now_ns, uint64_t age_ns)
{
    return now_ns > since_ns && now_ns - since_ns >= age_ns;
}

void mm_ledger_trim(struct mm_ledger *ledger, uint64_t now_ns, uint64_t settled_ns)
{
    struct mm_region *region, *next;
    MM_FOREACH_SAFE(region, next, &ledger->all, in_all)
    {
        bool idle =
            region->state == MM_STATE_IDLE && older_than(region->since_ns, now_ns, MM_IDLE_NS);
        bool unheld = is_unheld_weights(region) &&
                      older_than(region->since_ns, now_ns, MM_UNUSED_NS) &&
                      older_than(settled_ns, now_ns, MM_UNUSED_NS);
        if (idle || unheld)
            evict(ledger, region);
    }
}

void mm_ledger_charge(struct mm_ledger *ledger, uint64_t bytes)
{
    ledger->charged += bytes;
}

void mm_ledger_uncharge(struct mm_ledger *ledger, uint64_t bytes)
{
    CM_ASSERT(ledger->charged >= bytes);
    ledger->charged -= bytes;
}
