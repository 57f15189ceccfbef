/* ingot-memmgr: arguments, start, loop, exit code. Main thread. */
#include "memmgr/server_priv.h"

#include "common/proc.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: ingot-memmgr --run-dir DIR [--memory-budget BYTES]\n"
    "\n"
    "Owns the memory that the processes of one node share: leases, weights, channels.\n"
    "\n"
    "  --run-dir DIR          the node's run directory (mode 0700, made if absent);\n"
    "                         the socket is DIR/memmgr.sock\n"
    "  --memory-budget BYTES  most bytes to hand out; default half of what is free at start;\n"
    "                         K, M and G may follow the number\n"
    "  --help                 this text\n"
    "\n"
    "Exit codes: 0 stopped on SIGTERM, 1 failed (the log says why), 2 bad arguments.\n";

static bool parse_bytes(const char *text, uint64_t *ret_bytes)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    static const char units[] = "KMG";
    const char *unit = *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (errno != 0 || end == text || text[0] == '-' || (unit ? end[1] : *end) != 0 ||
        value > UINT64_MAX >> shift || value == 0)
        return false;
    *ret_bytes = (uint64_t)value << shift;
    return true;
}

/* CM_EXIT_OK to go on; ret_done after --help. */
static enum cm_exit parse(int argc, char **argv, struct mm_server_options *options, bool *ret_done)
{
    static const struct option names[] = {{"run-dir", required_argument, NULL, 'r'},
                                          {"memory-budget", required_argument, NULL, 'b'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int option;
    while ((option = getopt_long(argc, argv, "h", names, NULL)) != -1) {
        switch (option) {
        case 'r':
            options->run_dir = optarg;
            break;
        case 'b':
            if (!parse_bytes(optarg, &options->budget)) {
                fprintf(stderr, "ingot-memmgr: --memory-budget %s is not a size\n", optarg);
                return CM_EXIT_USAGE;
            }
            break;
        case 'h':
            fputs(usage, stdout);
            *ret_done = true;
            return CM_EXIT_OK;
        default:
            fputs(usage, stderr);
            return CM_EXIT_USAGE;
        }
    }
    if (optind < argc || !options->run_dir) {
        fputs(usage, stderr);
        return CM_EXIT_USAGE;
    }
    return CM_EXIT_OK;
}

struct program {
    struct mm_server *server;
    struct cm_proc *proc;
};

static void on_stop(void *ctx)
{
    struct program *program = ctx;
    mm_server_close(program->server);
    cm_proc_close(program->proc);
}

int main(int argc, char **argv)
{
    cm_proc_early(CM_ROLE_MEMMGR, 0);
    uv_loop_t loop;
    struct program program = {0};
    struct mm_server_options options = {.loop = &loop};
    struct cm_error error;
    bool done = false;
    enum cm_exit exit_code = parse(argc, argv, &options, &done);
    if (exit_code != CM_EXIT_OK || done)
        return exit_code;
    if (uv_loop_init(&loop) != 0)
        return CM_EXIT_FAILURE;
    const struct cm_proc_options proc = {
        .loop = &loop, .role = CM_ROLE_MEMMGR, .index = 0, .on_stop = on_stop, .ctx = &program};
    enum cm_err code = mm_server_create(&options, &error, &program.server);
    if (code == CM_OK) {
        code = cm_proc_start(&proc, &error, &program.proc);
        if (code != CM_OK)
            mm_server_close(program.server);
    }
    if (code == CM_OK) {
        cm_log(CM_LOG_INFO, "listening", "run_dir=%s", options.run_dir);
        cm_proc_ready(program.proc, "listening");
    } else {
        cm_log(CM_LOG_ERROR, "start_failed", "reason=%s", error.text);
        exit_code = code == CM_INVALID || code == CM_PERMISSION ? CM_EXIT_USAGE : CM_EXIT_FAILURE;
    }
    cm_proc_run_dry(&loop);
    return exit_code;
}
