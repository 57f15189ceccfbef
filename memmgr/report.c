/* What memmgr tells over the bus: the ledger and the counters. memmgr's loop thread. */
#include "memmgr/server_priv.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>

/* Entries in one answer, so that it fits a bus message; the sums are over all. */
#define ENTRIES_MAX 16384u
#define NAME_BYTES  32u

struct report {
    Ingot__Ipc__Ledger ledger;
    Ingot__Ipc__LedgerEntry *entries;
    Ingot__Ipc__LedgerEntry **list;
    char (*names)[NAME_BYTES * 2];
    size_t used, room;
    uint64_t now_ns;
};

static const char *name_place(char *buffer, struct cm_peer peer)
{
    snprintf(buffer, NAME_BYTES, "%s.%u", cm_role_name(peer.role), peer.index);
    return buffer;
}

static bool report_init(struct report *report, const struct mm_server *server)
{
    *report = (struct report){.now_ns = cm_now_ns()};
    ingot__ipc__ledger__init(&report->ledger);
    size_t all = (size_t)server->ledger.n_regions + server->n_links;
    report->room = all < ENTRIES_MAX ? all : ENTRIES_MAX;
    report->entries = calloc(report->room + 1, sizeof *report->entries);
    report->list = calloc(report->room + 1, sizeof *report->list);
    report->names = calloc(report->room + 1, sizeof *report->names);
    return report->entries && report->list && report->names;
}

static void report_fini(struct report *report)
{
    free(report->entries);
    free(report->list);
    free(report->names);
}

/* The entry to fill, or a scratch one beyond the last. ret_names: room for two names. */
static Ingot__Ipc__LedgerEntry *add_entry(struct report *report, uint64_t bytes, uint64_t resident,
                                          uint64_t since_ns, char **ret_names)
{
    report->ledger.total_bytes += bytes;
    report->ledger.total_resident_bytes += resident;
    Ingot__Ipc__LedgerEntry *entry = &report->entries[report->used];
    *ret_names = report->names[report->used];
    ingot__ipc__ledger_entry__init(entry);
    entry->bytes = bytes;
    entry->resident_bytes = resident;
    entry->age_ms = report->now_ns > since_ns ? (report->now_ns - since_ns) / CM_NS_PER_MS : 0;
    if (report->used < report->room) {
        report->list[report->used] = entry;
        report->used++;
    }
    return entry;
}

static void add_region(struct report *report, struct mm_region *region)
{
    char *names;
    Ingot__Ipc__LedgerEntry *entry =
        add_entry(report, region->bytes, mm_memory_resident(region->fd), region->since_ns, &names);
    static const char *const kinds[] = {[MM_KIND_LEASE] = "lease", [MM_KIND_WEIGHTS] = "weights"};
    bool idle = region->state == MM_STATE_IDLE;
    entry->region = region->number;
    entry->generation = region->generation;
    entry->kind = (char *)(uintptr_t)(idle ? "idle" : kinds[region->kind]);
    entry->state = (char *)(uintptr_t)mm_state_name(region->state);
    entry->label = region->label;
    entry->readers = region->n_readers;
    if (region->owner)
        entry->owner = (char *)(uintptr_t)name_place(names, region->owner->conn->peer);
}

static void add_link(struct report *report, struct mm_link *link)
{
    char *names;
    Ingot__Ipc__LedgerEntry *entry =
        add_entry(report, link->bytes, mm_memory_resident(link->fd), link->since_ns, &names);
    entry->region = link->id;
    entry->kind = (char *)(uintptr_t) "channel";
    entry->state = (char *)(uintptr_t)mm_state_name(MM_STATE_GRANTED);
    entry->owner = (char *)(uintptr_t)name_place(names, link->ends[0]);
    entry->label = (char *)(uintptr_t)name_place(names + NAME_BYTES, link->ends[1]);
    entry->readers = 1;
}

static enum cm_err answer_ledger(struct mm_server *server, const Ingot__Ipc__Envelope *message)
{
    struct report report;
    enum cm_err code = CM_NOMEM;
    if (report_init(&report, server)) {
        struct mm_region *region;
        struct mm_link *link;
        TAILQ_FOREACH(region, &server->ledger.all, in_all)
        add_region(&report, region);
        TAILQ_FOREACH(link, &server->links, in_server)
        add_link(&report, link);
        report.ledger.epoch = server->epoch;
        report.ledger.budget_bytes = server->ledger.budget;
        report.ledger.stale_refused = server->ledger.counters.stale_refused;
        report.ledger.orphans_reclaimed = server->ledger.counters.orphans_reclaimed;
        report.ledger.n_entries = report.used;
        report.ledger.entries = report.list;
        Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
        answer.body_case = INGOT__IPC__ENVELOPE__BODY_LEDGER;
        answer.ledger = &report.ledger;
        code = cm_bus_answer(server->bus, message, &answer);
    }
    report_fini(&report);
    return code;
}

static enum cm_err answer_stats(struct mm_server *server, const Ingot__Ipc__Envelope *message)
{
    struct {
        const char *name;
        uint64_t value;
    } values[] = {
#define X(name) {#name, server->ledger.counters.name},
        MM_COUNTER_MAP(X)
#undef X
            {"budget_bytes", server->ledger.budget},
        {"charged_bytes", server->ledger.charged},
        {"regions", server->ledger.n_regions},
        {"channels", server->n_links},
        {"processes", server->n_conns},
    };
    Ingot__Ipc__Counter counters[CM_COUNT_OF(values)], *list[CM_COUNT_OF(values)];
    for (size_t i = 0; i < CM_COUNT_OF(values); i++) {
        ingot__ipc__counter__init(&counters[i]);
        counters[i].name = (char *)(uintptr_t)values[i].name;
        counters[i].value = values[i].value;
        list[i] = &counters[i];
    }
    Ingot__Ipc__Stats stats = INGOT__IPC__STATS__INIT;
    stats.n_counters = CM_COUNT_OF(values);
    stats.counters = list;
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_STATS;
    answer.stats = &stats;
    return cm_bus_answer(server->bus, message, &answer);
}

static enum cm_err answer_refusal(struct mm_server *server, const Ingot__Ipc__Envelope *message)
{
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    error.code = CM_UNSUPPORTED;
    error.text = (char *)(uintptr_t) "memmgr answers ledger and statistics queries only";
    Ingot__Ipc__Envelope answer = INGOT__IPC__ENVELOPE__INIT;
    answer.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
    answer.error = &error;
    return cm_bus_answer(server->bus, message, &answer);
}

void mm_report_message(void *ctx, struct cm_bus *bus, const Ingot__Ipc__Envelope *message)
{
    struct mm_server *server = ctx;
    (void)bus;
    if (!message->wants_answer || server->closing)
        return;
    enum cm_err code;
    if (message->body_case == INGOT__IPC__ENVELOPE__BODY_LEDGER_QUERY)
        code = answer_ledger(server, message);
    else if (message->body_case == INGOT__IPC__ENVELOPE__BODY_STATS_QUERY)
        code = answer_stats(server, message);
    else
        code = answer_refusal(server, message);
    uint64_t held_back;
    if (code != CM_OK && cm_log_allowed(&server->job_log, cm_now_ns(), &held_back))
        cm_log(CM_LOG_WARN, "answer_failed", "reason=%s suppressed=%llu", cm_err_text(code),
               (unsigned long long)held_back);
}
