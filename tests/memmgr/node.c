/* Starting, talking to and ending the processes of memmgr's tests. */
#include "tests/memmgr/node.h"

#include "common/check.h"
#include "memmgr/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- Processes --- */

/* in, out: descriptors for its standard input and output, or -1. */
static pid_t spawn(const struct node *node, char *const argv[], int in, int out, rlim_t files)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    if (out >= 0)
        dup2(out, STDOUT_FILENO);
    char log[T_PATH_MAX + 16];
    snprintf(log, sizeof log, "%s/log", node->dir);
    int err = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(err, STDERR_FILENO);
    if (files > 0) {
        struct rlimit limit = {files, files};
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    closefrom(3);
    execv(argv[0], argv);
    _exit(127);
}

static void show_log(const struct node *node)
{
    char command[T_PATH_MAX + 32];
    snprintf(command, sizeof command, "cat %s/log >&2", node->dir);
    if (system(command) != 0)
        return;
}

/* As a supervisor hears of it: READY=1 on the notify socket; an end shows as a hang-up of alive. */
static void wait_ready(struct node *node, int notify, int alive)
{
    uint64_t end_ns = uv_hrtime() + T_BOUND_MS * 1000000ull;
    char message[256] = "";
    while (strncmp(message, "READY=1", 7) != 0) {
        struct pollfd watch[2] = {{.fd = notify, .events = POLLIN}, {.fd = alive, .events = 0}};
        uint64_t now_ns = uv_hrtime();
        int left_ms = now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) : 0;
        if (poll(watch, 2, left_ms) == 0 || !(watch[0].revents & POLLIN)) {
            show_log(node);
            fail_msg("memmgr does not come up");
        }
        ssize_t got = recv(notify, message, sizeof message - 1, 0);
        assert_true(got > 0);
        message[got] = 0;
    }
}

void node_start(struct node *node)
{
    char *argv[] = {(char *)(uintptr_t)BINARY_DIR "/bin/ingot-memmgr",
                    (char *)(uintptr_t) "--run-dir",
                    node->run_dir,
                    (char *)(uintptr_t)(node->budget ? "--memory-budget" : NULL),
                    (char *)(uintptr_t)node->budget,
                    NULL};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int alive[2];
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s/notify", node->dir);
    unlink(address.sun_path);
    int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(notify, (const struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
    node->memmgr = spawn(node, argv, -1, alive[1], node->files);
    unsetenv("NOTIFY_SOCKET");
    close(alive[1]);
    wait_ready(node, notify, alive[0]);
    close(alive[0]);
    close(notify);
}

int node_stop(struct node *node, int signal)
{
    int status = 0;
    kill(node->memmgr, signal);
    assert_int_equal(waitpid(node->memmgr, &status, 0), node->memmgr);
    node->memmgr = 0;
    return status;
}

unsigned node_fds(const struct node *node)
{
    char path[64];
    unsigned count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)node->memmgr);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}

int node_setup(void **state)
{
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return -1;
    signal(SIGPIPE, SIG_IGN);
    t_make_dir(node->dir);
    snprintf(node->run_dir, sizeof node->run_dir, "%s/run", node->dir);
    *state = node;
    return 0;
}

int node_teardown(void **state)
{
    struct node *node = *state;
    for (size_t i = 0; i < AGENTS_MAX; i++) {
        if (node->agents[i])
            agent_kill(node, node->agents[i]);
    }
    int status = node->memmgr > 0 ? node_stop(node, SIGTERM) : 0;
    if (status != 0)
        show_log(node);
    t_remove_dir(node->dir);
    free(node);
    return status;
}

/* --- Agents --- */

struct agent *agent_spawn(struct node *node, const char *role, unsigned index)
{
    int to[2], from[2];
    size_t place = 0;
    char number[16];
    while (place < AGENTS_MAX && node->agents[place])
        place++;
    assert_true(place < AGENTS_MAX);
    struct agent *agent = calloc(1, sizeof *agent);
    assert_non_null(agent);
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    snprintf(number, sizeof number, "%u", index);
    char *argv[] = {(char *)(uintptr_t)BINARY_DIR "/tests/memmgr_agent", node->run_dir,
                    (char *)(uintptr_t)role, number, NULL};
    agent->pid = spawn(node, argv, to[0], from[1], 0);
    agent->in = to[1];
    agent->out = from[0];
    close(to[0]);
    close(from[1]);
    node->agents[place] = agent;
    return agent;
}

struct agent *agent_start(struct node *node, const char *role, unsigned index)
{
    struct agent *agent = agent_spawn(node, role, index);
    agent_attached(agent);
    return agent;
}

static int agent_end(struct node *node, struct agent *agent)
{
    int status;
    assert_int_equal(waitpid(agent->pid, &status, 0), agent->pid);
    close(agent->in);
    close(agent->out);
    for (size_t i = 0; i < AGENTS_MAX; i++) {
        if (node->agents[i] == agent)
            node->agents[i] = NULL;
    }
    free(agent);
    return status;
}

void agent_kill(struct node *node, struct agent *agent)
{
    kill(agent->pid, SIGKILL);
    agent_end(node, agent);
}

void agent_quit(struct node *node, struct agent *agent)
{
    agent_say(agent, "quit");
    int status = agent_end(node, agent);
    if (status != 0)
        show_log(node);
    assert_int_equal(status, 0);
}

void agent_say(struct agent *agent, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[length++] = '\n';
    assert_int_equal(write(agent->in, line, (size_t)length), length);
}

/* Takes a complete line beginning with word out of the buffer. */
static bool take_line(struct agent *agent, const char *word, char ret_line[LINE_MAX_BYTES])
{
    char *line = agent->buffer, *end;
    size_t length = strlen(word);
    while ((end = memchr(line, '\n', agent->used - (size_t)(line - agent->buffer)))) {
        if ((size_t)(end - line) >= length && memcmp(line, word, length) == 0 &&
            (line[length] == ' ' || line[length] == '\n')) {
            snprintf(ret_line, LINE_MAX_BYTES, "%.*s", (int)(end - line), line);
            size_t rest = agent->used - (size_t)(end + 1 - agent->buffer);
            memmove(line, end + 1, rest);
            agent->used -= (size_t)(end + 1 - line);
            return true;
        }
        line = end + 1;
    }
    return false;
}

/* One read, until the time is over. */
static void read_more(struct agent *agent, uint64_t end_ns, const char *word)
{
    struct pollfd watch = {.fd = agent->out, .events = POLLIN};
    uint64_t now_ns = uv_hrtime();
    int left_ms = now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) : 0;
    if (poll(&watch, 1, left_ms) == 0)
        fail_msg("no \"%s\" from the agent; it said: %.*s", word, (int)agent->used, agent->buffer);
    assert_true(agent->used < sizeof agent->buffer);
    ssize_t got = read(agent->out, agent->buffer + agent->used, sizeof agent->buffer - agent->used);
    if (got <= 0)
        fail_msg("the agent ended before \"%s\"; it said: %.*s", word, (int)agent->used,
                 agent->buffer);
    agent->used += (size_t)got;
}

const char *agent_wait(struct agent *agent, const char *word)
{
    static char line[LINE_MAX_BYTES];
    char error[LINE_MAX_BYTES];
    uint64_t end_ns = uv_hrtime() + T_BOUND_MS * 1000000ull;
    while (!take_line(agent, word, line)) {
        if (take_line(agent, "error", error))
            fail_msg("\"%s\" instead of \"%s\"", error, word);
        read_more(agent, end_ns, word);
    }
    return line;
}

bool agent_wait_any(struct agent *agent, const char *word, const char *other)
{
    char line[LINE_MAX_BYTES];
    uint64_t end_ns = uv_hrtime() + T_BOUND_MS * 1000000ull;
    for (;;) {
        if (take_line(agent, word, line))
            return true;
        if (take_line(agent, other, line))
            return false;
        read_more(agent, end_ns, word);
    }
}

void agent_attached(struct agent *agent)
{
    unsigned number;
    assert_int_equal(sscanf(agent_wait(agent, "attached"), "attached %llu %u %llu",
                            &agent->instance, &number, &agent->epoch),
                     3);
}

bool agent_has(struct agent *agent, const char *word)
{
    char line[LINE_MAX_BYTES];
    agent_say(agent, "sync");
    agent_wait(agent, "synced");
    return take_line(agent, word, line);
}

struct lease agent_lease(struct agent *agent)
{
    struct lease lease;
    assert_int_equal(sscanf(agent_wait(agent, "lease"), "lease %u %llu %u %llu", &lease.slot,
                            &lease.region, &lease.generation, &lease.bytes),
                     4);
    return lease;
}

struct lease agent_acquire(struct agent *agent, unsigned long long bytes)
{
    agent_say(agent, "acquire %llu", bytes);
    return agent_lease(agent);
}

struct lease agent_open(struct agent *agent, struct lease lease)
{
    agent_say(agent, "open %llu %u", lease.region, lease.generation);
    return agent_lease(agent);
}

struct weights agent_weights(struct agent *agent)
{
    struct weights weights;
    assert_int_equal(sscanf(agent_wait(agent, "weights"), "weights %u %d %llu", &weights.slot,
                            &weights.writer, &weights.bytes),
                     3);
    return weights;
}

static unsigned *count_of(struct ledger *ledger, const char *kind, const char *state)
{
    if (strcmp(kind, "channel") == 0)
        return &ledger->channels;
    const struct {
        const char *state;
        unsigned *count;
    } counts[] = {{"idle", &ledger->idle},         {"granted", &ledger->granted},
                  {"orphaned", &ledger->orphaned}, {"awaited", &ledger->awaited},
                  {"writing", &ledger->writing},   {"sealed", &ledger->sealed},
                  {"new", &ledger->fresh}};
    for (size_t i = 0; i < CM_COUNT_OF(counts); i++) {
        if (strcmp(counts[i].state, state) == 0)
            return counts[i].count;
    }
    fail_msg("no state is called %s", state);
    return NULL;
}

struct ledger agent_ledger(struct agent *agent)
{
    struct ledger ledger = {0};
    unsigned long long sum = 0, budget;
    char line[LINE_MAX_BYTES];
    agent_say(agent, "ledger");
    const char *done = agent_wait(agent, "done");
    assert_int_equal(sscanf(done,
                            "done epoch=%llu budget=%llu total=%llu resident=%llu "
                            "stale=%llu orphans=%llu",
                            &ledger.epoch, &budget, &ledger.total, &ledger.resident, &ledger.stale,
                            &ledger.orphans),
                     6);
    ledger.held = ledger.total;
    while (take_line(agent, "entry", line)) {
        char kind[32], state[32];
        unsigned long long bytes;
        assert_int_equal(sscanf(line, "entry %31s %31s", kind, state), 2);
        assert_int_equal(sscanf(strstr(line, "bytes="), "bytes=%llu", &bytes), 1);
        sum += bytes;
        ledger.entries++;
        ++*count_of(&ledger, kind, state);
        if (strcmp(state, "idle") == 0)
            ledger.held -= bytes;
        if (strcmp(state, "sealed") == 0 && strstr(line, "readers=0"))
            ledger.unheld++;
    }
    assert_int_equal(sum, ledger.total);
    return ledger;
}

unsigned long long agent_counter(struct agent *agent, const char *name)
{
    unsigned long long value = UINT64_MAX, got;
    char line[LINE_MAX_BYTES], found[64];
    agent_say(agent, "stats");
    agent_wait(agent, "done");
    while (take_line(agent, "counter", line)) {
        assert_int_equal(sscanf(line, "counter %63s %llu", found, &got), 2);
        if (strcmp(found, name) == 0)
            value = got;
    }
    assert_true(value != UINT64_MAX);
    return value;
}

void agent_counter_until(struct agent *agent, const char *name, unsigned long long value)
{
    uint64_t end_ns = uv_hrtime() + T_BOUND_MS * 1000000ull;
    while (agent_counter(agent, name) < value) {
        if (uv_hrtime() > end_ns)
            fail_msg("%d ms went by and %s is not %llu", T_BOUND_MS, name, value);
    }
}
