/* `ingot mem`: memmgr's ledger. Main thread. */
#include "deploy/ingot/on_cluster.h"

#define BOUND_MS 5000

static void print_text(const Ingot__Ipc__Ledger *ledger)
{
    printf("%20s %4s  %-8s %-12s %-9s %14s %14s %7s %10s  %s\n", "REGION", "GEN", "KIND", "OWNER",
           "STATE", "BYTES", "RESIDENT", "READERS", "AGE", "LABEL");
    for (size_t i = 0; i < ledger->n_entries; i++) {
        const Ingot__Ipc__LedgerEntry *entry = ledger->entries[i];
        printf("%20llu %4u  %-8s %-12s %-9s %14llu %14llu %7u %8.1f s  %s\n",
               (unsigned long long)entry->region, entry->generation, entry->kind,
               *entry->owner ? entry->owner : "-", entry->state, (unsigned long long)entry->bytes,
               (unsigned long long)entry->resident_bytes, entry->readers,
               (double)entry->age_ms / 1e3, entry->label);
    }
    printf("%20s %4s  %-8s %-12s %-9s %14llu %14llu\n", "total", "", "", "", "",
           (unsigned long long)ledger->total_bytes,
           (unsigned long long)ledger->total_resident_bytes);
    printf("\nbudget %llu bytes; epoch %llu; %llu stale references refused; %llu leases of dead "
           "processes reclaimed\n",
           (unsigned long long)ledger->budget_bytes, (unsigned long long)ledger->epoch,
           (unsigned long long)ledger->stale_refused,
           (unsigned long long)ledger->orphans_reclaimed);
}

static json_t *entry_json(const Ingot__Ipc__LedgerEntry *entry)
{
    return json_pack("{s:I, s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:I}", "region",
                     (json_int_t)entry->region, "generation", (int)entry->generation, "kind",
                     entry->kind, "owner", entry->owner, "label", entry->label, "state",
                     entry->state, "bytes", (json_int_t)entry->bytes, "resident_bytes",
                     (json_int_t)entry->resident_bytes, "readers", (int)entry->readers, "age_ms",
                     (json_int_t)entry->age_ms);
}

static void print_json(const Ingot__Ipc__Ledger *ledger)
{
    json_t *entries = json_array();
    for (size_t i = 0; i < ledger->n_entries; i++)
        json_array_append_new(entries, entry_json(ledger->entries[i]));
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "epoch", (json_int_t)ledger->epoch, "budget_bytes",
        (json_int_t)ledger->budget_bytes, "total_bytes", (json_int_t)ledger->total_bytes,
        "total_resident_bytes", (json_int_t)ledger->total_resident_bytes, "stale_refused",
        (json_int_t)ledger->stale_refused, "orphans_reclaimed",
        (json_int_t)ledger->orphans_reclaimed, "entries", entries);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

static enum cm_err ask(const char *run_dir, struct cm_error *err, Ingot__Ipc__Envelope **ret_answer)
{
    Ingot__Ipc__Envelope question = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__LedgerQuery query = INGOT__IPC__LEDGER_QUERY__INIT;
    question.body_case = INGOT__IPC__ENVELOPE__BODY_LEDGER_QUERY;
    question.ledger_query = &query;
    enum cm_err code = ig_bus_ask(run_dir, CM_ROLE_MEMMGR, 0, &question, BOUND_MS, err, ret_answer);
    if (code != CM_OK)
        return code;
    if ((*ret_answer)->body_case == INGOT__IPC__ENVELOPE__BODY_LEDGER)
        return CM_OK;
    ingot__ipc__envelope__free_unpacked(*ret_answer, NULL);
    *ret_answer = NULL;
    return cm_fail(err, CM_CORRUPT, "memmgr's answer is not understood");
}

static int show(const struct ig_command *command, const char *run_dir, bool json)
{
    Ingot__Ipc__Envelope *answer = NULL;
    int code = ig_on_cluster_ask(command, run_dir, ask, &answer);
    if (code != IG_EXIT_OK)
        return code;
    if (json)
        print_json(answer->ledger);
    else
        print_text(answer->ledger);
    ingot__ipc__envelope__free_unpacked(answer, NULL);
    return IG_EXIT_OK;
}

static int run_mem(const struct ig_command *command, int argc, char **argv)
{
    return ig_on_cluster(command, argc, argv, show);
}

const struct ig_command ig_command_mem = {
    .name = "mem",
    .summary = "show who holds which shared memory",
    .synopsis = "[--run-dir DIR] [--json]",
    .description =
        "Prints memmgr's ledger: every region with its kind (lease, weights, channel, idle), "
        "owner, state, bytes, what of it the kernel keeps resident, how many processes read it and "
        "its age. The totals are the sums of the lines; idle regions are kept ready for the next "
        "lease.",
    .options = ig_on_cluster_options,
    .files = "RUN-DIR/bus\tThe control bus, over which memmgr is asked.",
    .exit_codes =
        IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE) | IG_EXIT_BIT(NO_CLUSTER),
    .example =
        " $ ingot mem --json | jq '.entries | map(select(.kind == \"weights\").bytes) | add'\n"
        " 155648",
    .run = run_mem,
};
