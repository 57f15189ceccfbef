/* A real ingot-memmgr in a private run directory, and agents (agent.c) that tests talk to by lines.
 * Everything waits with a bound and fails the test when it is over. Test thread only. */
#ifndef TESTS_MEMMGR_NODE_H
#define TESTS_MEMMGR_NODE_H

#include "tests/harness/t.h"

#include <sys/types.h>

#define LINE_MAX_BYTES 512
#define AGENTS_MAX     16

struct agent {
    pid_t pid;
    int in, out; /* ours: writes to its input, reads from its output */
    char buffer[1 << 20];
    size_t used;
    unsigned long long instance, epoch;
};

struct node {
    char dir[T_PATH_MAX], run_dir[T_PATH_MAX + 8];
    pid_t memmgr;
    const char *budget;       /* --memory-budget, or NULL */
    unsigned long long files; /* RLIMIT_NOFILE, or 0 */
    struct agent *agents[AGENTS_MAX];
};

/* cmocka's set-up and tear-down: a fresh directory, memmgr not started; afterwards everything is
 * ended (memmgr must exit with 0 on SIGTERM if it still runs) and removed. */
int node_setup(void **state);
int node_teardown(void **state);

/* Waits until it says that it is ready. */
void node_start(struct node *node);
/* SIGKILL or SIGTERM, and waits for the end. Returns the exit status of waitpid. */
int node_stop(struct node *node, int signal);
/* Open descriptors of memmgr now. */
unsigned node_fds(const struct node *node);

/* Waits for the first "attached". */
struct agent *agent_start(struct node *node, const char *role, unsigned index);
/* Started, not yet attached. */
struct agent *agent_spawn(struct node *node, const char *role, unsigned index);
void agent_kill(struct node *node, struct agent *agent);
/* "quit"; asserts a clean exit. */
void agent_quit(struct node *node, struct agent *agent);
void agent_say(struct agent *agent, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Takes the next line that begins with word out of the agent's output; lines before it stay. An
 * "error" line fails the test unless that is the word. */
const char *agent_wait(struct agent *agent, const char *word);
/* Takes the next of either; true for the first word. */
bool agent_wait_any(struct agent *agent, const char *word, const char *other);
void agent_attached(struct agent *agent);
/* True if such a line has come by now (after a round trip). */
bool agent_has(struct agent *agent, const char *word);

struct lease {
    unsigned slot, generation;
    unsigned long long region, bytes;
};
struct lease agent_lease(struct agent *agent);
struct lease agent_acquire(struct agent *agent, unsigned long long bytes);
struct lease agent_open(struct agent *agent, struct lease lease);

struct weights {
    unsigned slot;
    int writer;
    unsigned long long bytes;
};
struct weights agent_weights(struct agent *agent);

struct ledger {
    unsigned long long total, resident, stale, orphans, epoch;
    unsigned long long held; /* total without what is pooled */
    unsigned entries, fresh, idle, granted, orphaned, awaited, writing, sealed, unheld, channels;
};
struct ledger agent_ledger(struct agent *agent);
unsigned long long agent_counter(struct agent *agent, const char *name);

/* Asks until the counter is at least value. */
void agent_counter_until(struct agent *agent, const char *name, unsigned long long value);

/* Asks for the ledger until the condition on it holds. */
#define LEDGER_UNTIL(agent, ledger, condition)                                               \
    do {                                                                                     \
        uint64_t end_ = uv_hrtime() + T_BOUND_MS * 1000000ull;                               \
        for ((ledger) = agent_ledger(agent); !(condition); (ledger) = agent_ledger(agent)) { \
            if (uv_hrtime() > end_)                                                          \
                fail_msg("%d ms went by without " #condition, T_BOUND_MS);                   \
        }                                                                                    \
    } while (0)

#endif
