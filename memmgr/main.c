/* ingot-memmgr: arguments, start, loop, exit code. Main thread. */
#include "memmgr/server_priv.h"

#include "common/args.h"
#include "common/proc.h"

#include <errno.h>
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

static bool take_bytes(const struct cm_arg *arg, const char *text)
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
    *(uint64_t *)arg->target = (uint64_t)value << shift;
    return true;
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
    const struct cm_arg args[] = {
        {"run-dir", cm_arg_text, &options.run_dir, .required = true},
        {"memory-budget", take_bytes, .target = &options.budget},
        {0},
    };
    enum cm_exit exit_code = CM_EXIT_OK;
    if (!cm_args_parse(argc, argv, usage, args, &exit_code))
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
