/* A process for tests: drives the real memmgr client by the lines that it reads, and prints what
 * happens, one event a line. The tests start several and kill them at chosen moments.
 *
 *   agent RUN_DIR ROLE INDEX
 *
 *   acquire BYTES | open REGION GENERATION   -> lease N REGION GENERATION BYTES | error CODE TEXT
 *   fill N BYTE | check N BYTE               -> filled N | same N, differs N
 *   release N                                -> released N
 *   weights KEY BYTES LABEL | seal N         -> weights N WRITER BYTES | error CODE TEXT
 *   close N                                  -> closed N
 *   want ROLE INDEX                          -> channel N ROLE INDEX INSTANCE FIRST (both ends)
 *   send N WORD                              -> sent N; the other end: got N WORD
 *   hangup N                                 -> hungup N; the other end: ended N
 *   ledger | stats                           -> entry ... / counter NAME VALUE, then done ...
 *   pss                                      -> pss BYTES (of what is mapped from memfds)
 *   many COUNT BYTES                         -> COUNT acquires at once
 *   sync                                     -> synced
 *   quit
 *
 * By themselves: attached INSTANCE NUMBER EPOCH, lost, revoked N, refused CODE. */
#include "common/bus.h"
#include "common/check.h"
#include "common/log.h"
#include "memmgr/client.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS       4096
#define RECORD_WORD CM_RECORD_CANCEL

static uv_loop_t loop;
static uv_poll_t input;
static struct mm_client *client;
static struct cm_bus *bus;
static struct mm_lease *leases[SLOTS];
static struct mm_weights *weights[SLOTS];
static struct cm_channel *channels[SLOTS];
static unsigned n_slots;

static unsigned new_slot(void)
{
    CM_ASSERT(n_slots < SLOTS);
    return n_slots++;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* --- Events --- */

static void on_attached(void *ctx, const struct mm_identity *identity)
{
    if (!bus) { /* only now is the place, and so the inbox's name, ours */
        struct cm_error error;
        struct cm_bus_options *options = ctx;
        if (cm_bus_open(options, &error, &bus) != CM_OK)
            say("error %s %s", cm_err_name(error.code), error.text);
    }
    cm_bus_set_instance(bus, identity->instance);
    say("attached %" PRIu64 " %u %" PRIu64, identity->instance, identity->number, identity->epoch);
}

static void on_lost(void *ctx)
{
    (void)ctx;
    say("lost");
}

static void on_refused(void *ctx, const struct cm_error *error)
{
    (void)ctx;
    say("refused %s %s", cm_err_name(error->code), error->text);
}

static void on_revoked(void *ctx, const struct mm_lease *lease)
{
    (void)ctx;
    for (unsigned i = 0; i < n_slots; i++) {
        if (leases[i] == lease)
            say("revoked %u", i);
    }
}

static unsigned channel_slot(const struct cm_channel *channel)
{
    for (unsigned i = 0; i < n_slots; i++) {
        if (channels[i] == channel)
            return i;
    }
    return SLOTS;
}

static void on_record(void *ctx, struct cm_channel *channel, uint8_t type, const void *payload,
                      uint32_t length)
{
    (void)ctx;
    CM_ASSERT(type == RECORD_WORD && length == sizeof(struct cm_record_cancel));
    const struct cm_record_cancel *record = payload;
    say("got %u %" PRIu64, channel_slot(channel), record->request);
}

static void on_closed(void *ctx, struct cm_channel *channel, enum cm_err reason)
{
    (void)ctx;
    unsigned slot = channel_slot(channel);
    say("ended %u %s", slot, cm_err_name(reason));
    channels[slot] = NULL;
    cm_channel_close(channel);
}

static void on_channel(void *ctx, struct cm_channel *channel)
{
    (void)ctx;
    static const struct cm_channel_events events = {.on_record = on_record, .on_closed = on_closed};
    struct cm_peer peer = cm_channel_peer(channel);
    unsigned slot = new_slot();
    channels[slot] = channel;
    CM_ASSERT(cm_channel_start(channel, &loop, &events) == CM_OK);
    say("channel %u %s %u %" PRIu64, slot, cm_role_name(peer.role), peer.index, peer.instance);
}

static void on_lease(void *ctx, const struct cm_error *error, struct mm_lease *lease)
{
    (void)ctx;
    if (!lease) {
        say("error %s %s", cm_err_name(error->code), error->text);
        return;
    }
    unsigned slot = new_slot();
    leases[slot] = lease;
    say("lease %u %" PRIu64 " %u %zu", slot, lease->region, lease->generation, lease->bytes);
}

static void on_weights(void *ctx, const struct cm_error *error, struct mm_weights *given)
{
    unsigned slot = (unsigned)(uintptr_t)ctx;
    if (!given) {
        say("error %s %s", cm_err_name(error->code), error->text);
        return;
    }
    if (slot == SLOTS)
        slot = new_slot();
    weights[slot] = given;
    say("weights %u %d %zu", slot, given->writer, given->bytes);
}

/* --- The bus --- */

static void on_message(void *ctx, struct cm_bus *from, const Ingot__Ipc__Envelope *message)
{
    (void)ctx;
    (void)from;
    (void)message;
}

static void on_answer(void *ctx, enum cm_err err, const Ingot__Ipc__Envelope *answer)
{
    (void)ctx;
    if (err != CM_OK) {
        say("error %s bus", cm_err_name(err));
    } else if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_STATS) {
        for (size_t i = 0; i < answer->stats->n_counters; i++)
            say("counter %s %" PRIu64, answer->stats->counters[i]->name,
                answer->stats->counters[i]->value);
        say("done");
    } else if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_LEDGER) {
        const Ingot__Ipc__Ledger *ledger = answer->ledger;
        for (size_t i = 0; i < ledger->n_entries; i++) {
            const Ingot__Ipc__LedgerEntry *e = ledger->entries[i];
            say("entry %s %s %" PRIu64 " %u owner=%s label=%s bytes=%" PRIu64 " resident=%" PRIu64
                " readers=%u",
                e->kind, e->state, e->region, e->generation, e->owner, e->label, e->bytes,
                e->resident_bytes, e->readers);
        }
        say("done epoch=%" PRIu64 " budget=%" PRIu64 " total=%" PRIu64 " resident=%" PRIu64
            " stale=%" PRIu64 " orphans=%" PRIu64,
            ledger->epoch, ledger->budget_bytes, ledger->total_bytes, ledger->total_resident_bytes,
            ledger->stale_refused, ledger->orphans_reclaimed);
    } else if (answer->body_case == INGOT__IPC__ENVELOPE__BODY_ERROR) {
        say("error %s %s", cm_err_name((enum cm_err)answer->error->code), answer->error->text);
    } else {
        say("error UNKNOWN body %d", (int)answer->body_case);
    }
}

static void query(const char *what)
{
    Ingot__Ipc__LedgerQuery ledger = INGOT__IPC__LEDGER_QUERY__INIT;
    Ingot__Ipc__StatsQuery stats = INGOT__IPC__STATS_QUERY__INIT;
    Ingot__Ipc__ModelsQuery models = INGOT__IPC__MODELS_QUERY__INIT;
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    if (strcmp(what, "ledger") == 0) {
        message.body_case = INGOT__IPC__ENVELOPE__BODY_LEDGER_QUERY;
        message.ledger_query = &ledger;
    } else if (strcmp(what, "stats") == 0) {
        message.body_case = INGOT__IPC__ENVELOPE__BODY_STATS_QUERY;
        message.stats_query = &stats;
    } else {
        message.body_case = INGOT__IPC__ENVELOPE__BODY_MODELS_QUERY;
        message.models_query = &models;
    }
    CM_ASSERT(cm_bus_request(bus, CM_ROLE_MEMMGR, 0, &message, 50, 20, on_answer, NULL) == CM_OK);
}

/* --- Commands --- */

static void say_pss(void)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    CM_ASSERT(file);
    char line[512];
    bool ours = false;
    unsigned long long sum = 0, kib;
    while (fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' '))
            ours = strstr(line, "/memfd:ingot") != NULL;
        else if (ours && sscanf(line, "Pss: %llu kB", &kib) == 1)
            sum += kib * 1024;
    }
    fclose(file);
    say("pss %llu", sum);
}

static void fill_or_check(unsigned slot, unsigned byte, bool fill)
{
    void *base = leases[slot] ? (void *)leases[slot]->base : weights[slot]->base;
    size_t bytes = leases[slot] ? leases[slot]->bytes : weights[slot]->bytes;
    if (fill) {
        memset(base, (int)byte, bytes);
        say("filled %u", slot);
        return;
    }
    size_t same = 0;
    for (size_t i = 0; i < bytes; i++)
        same += ((const unsigned char *)base)[i] == byte;
    say("%s %u", same == bytes ? "same" : "differs", slot);
}

static void let_go(unsigned slot, bool own)
{
    if (weights[slot])
        mm_client_weights_close(client, weights[slot]);
    else if (own)
        mm_client_release(client, leases[slot]);
    else
        mm_client_close_lease(client, leases[slot]);
    weights[slot] = NULL;
    leases[slot] = NULL;
    say("%s %u", own ? "released" : "closed", slot);
}

static void send_word(unsigned slot, unsigned long long word)
{
    struct cm_record_cancel record = {word};
    CM_ASSERT(cm_channel_send(channels[slot], RECORD_WORD, &record, sizeof record, NULL, 0) ==
              CM_OK);
    cm_channel_flush(channels[slot]);
    say("sent %u", slot);
}

static void quit(void)
{
    uv_close((uv_handle_t *)&input, NULL);
    for (unsigned i = 0; i < n_slots; i++)
        cm_channel_close(channels[i]);
    mm_client_destroy(client);
    cm_bus_close(bus);
}

static void must(enum cm_err code)
{
    if (code != CM_OK)
        say("error %s at once", cm_err_name(code));
}

static void run_line(const char *line)
{
    char word[32] = "", text[64] = "";
    unsigned long long a = 0, b = 0;
    uint8_t key[32];
    sscanf(line, "%31s %llu %llu %63s", word, &a, &b, text);
    memset(key, (int)a, sizeof key);
    if (strcmp(word, "acquire") == 0) {
        must(mm_client_acquire(client, a, on_lease, NULL));
    } else if (strcmp(word, "many") == 0) {
        for (unsigned long long i = 0; i < a; i++)
            must(mm_client_acquire(client, b, on_lease, NULL));
    } else if (strcmp(word, "open") == 0) {
        must(mm_client_open(client, a, (uint32_t)b, on_lease, NULL));
    } else if (strcmp(word, "fill") == 0 || strcmp(word, "check") == 0) {
        fill_or_check((unsigned)a, (unsigned)b, word[0] == 'f');
    } else if (strcmp(word, "release") == 0 || strcmp(word, "close") == 0) {
        let_go((unsigned)a, word[0] == 'r');
    } else if (strcmp(word, "weights") == 0) {
        must(mm_client_weights(client, key, b, text, on_weights, (void *)(uintptr_t)SLOTS));
    } else if (strcmp(word, "seal") == 0) {
        struct mm_weights *sealing = weights[a];
        weights[a] = NULL;
        must(mm_client_weights_seal(client, sealing, on_weights, (void *)(uintptr_t)a));
    } else if (strcmp(word, "want") == 0) {
        CM_ASSERT(sscanf(line, "want %63s %llu", text, &a) == 2);
        must(mm_client_want_channel(client, cm_role_from_name(text), (uint32_t)a));
    } else if (strcmp(word, "send") == 0) {
        send_word((unsigned)a, b);
    } else if (strcmp(word, "hangup") == 0) {
        cm_channel_close(channels[a]);
        channels[a] = NULL;
        say("hungup %llu", a);
    } else if (strcmp(word, "pss") == 0) {
        say_pss();
    } else if (strcmp(word, "sync") == 0) {
        say("synced");
    } else if (strcmp(word, "quit") == 0) {
        quit();
    } else {
        query(word);
    }
}

static void on_input(uv_poll_t *poll, int status, int events)
{
    static char buffer[65536];
    static size_t used;
    (void)status;
    (void)events;
    ssize_t got = read(STDIN_FILENO, buffer + used, sizeof buffer - used);
    if (got <= 0) { /* the test is over, one way or the other */
        if (!uv_is_closing((uv_handle_t *)poll))
            quit();
        return;
    }
    used += (size_t)got;
    char *line = buffer, *end;
    while ((end = memchr(line, '\n', used - (size_t)(line - buffer)))) {
        *end = 0;
        run_line(line);
        line = end + 1;
    }
    used -= (size_t)(line - buffer);
    memmove(buffer, line, used);
}

int main(int argc, char **argv)
{
    CM_ASSERT(argc == 4);
    struct cm_error error;
    enum cm_role role = cm_role_from_name(argv[2]);
    uint32_t index = (uint32_t)strtoul(argv[3], NULL, 10);
    cm_log_init(role, index);
    CM_ASSERT(uv_loop_init(&loop) == 0);
    struct cm_bus_options bus_options = {
        .loop = &loop, .run_dir = argv[1], .role = role, .index = index, .on_message = on_message};
    const struct mm_client_options options = {.loop = &loop,
                                              .run_dir = argv[1],
                                              .role = role,
                                              .index = index,
                                              .on_attached = on_attached,
                                              .on_lost = on_lost,
                                              .on_channel = on_channel,
                                              .on_revoked = on_revoked,
                                              .on_refused = on_refused,
                                              .ctx = &bus_options};
    if (mm_client_create(&options, &error, &client) != CM_OK) {
        fprintf(stderr, "agent: %s\n", error.text);
        return 1;
    }
    CM_ASSERT(uv_poll_init(&loop, &input, STDIN_FILENO) == 0);
    CM_ASSERT(uv_poll_start(&input, UV_READABLE, on_input) == 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    CM_ASSERT(uv_loop_close(&loop) == 0);
    return 0;
}
