/* ingot-scheduler: arguments, run, exit. Everything else is in server.c. */
#include "common/args.h"
#include "common/log.h"
#include "common/proc.h"
#include "scheduler/server.h"

static const char usage[] =
    "usage: ingot-scheduler --run-dir DIR --models DIR [--workers N]\n"
    "\n"
    "Queues, batches and routes the requests of one run directory's gateways to its workers.\n"
    "Normally started by `ingot up`.\n"
    "\n"
    "  --run-dir DIR   the cluster's run directory (memmgr must be running there)\n"
    "  --models DIR    model repository: DIR/NAME/VERSION/model.onnx, DIR/NAME/config.yaml;\n"
    "                  of each name the highest version is loaded\n"
    "  --workers N     so many workers must have come before the model table counts as settled,\n"
    "                  1 by default; more or fewer may serve\n"
    "\n"
    "Environment: INGOT_LOG (debug, info, warn, error).\n"
    "Exit status: 0 after SIGTERM, 1 failure, 2 bad arguments, 3 memmgr refused it.\n";

struct scheduler {
    struct cm_proc *proc;
    struct sd_server *server;
    int status;
    bool stopping;
};

static void on_ready(void *ctx)
{
    struct scheduler *scheduler = ctx;
    cm_proc_ready(scheduler->proc, "attached");
}

static void on_stop(void *ctx)
{
    struct scheduler *scheduler = ctx;
    if (scheduler->stopping)
        return;
    scheduler->stopping = true;
    sd_server_stop(scheduler->server);
    cm_proc_close(scheduler->proc);
}

static void on_lost(void *ctx, const struct cm_error *error)
{
    struct scheduler *scheduler = ctx;
    cm_log(CM_LOG_ERROR, "scheduler_lost", "code=%s reason=%s", cm_err_name(error->code),
           error->text);
    scheduler->status = CM_EXIT_LOST;
    on_stop(scheduler);
}

int main(int argc, char **argv)
{
    static uv_loop_t loop;
    struct scheduler scheduler = {.status = CM_EXIT_OK};
    struct sd_server_options options = {
        .loop = &loop, .on_ready = on_ready, .on_lost = on_lost, .ctx = &scheduler};
    const struct cm_arg args[] = {
        {"run-dir", cm_arg_text, &options.run_dir, .required = true},
        {"models", cm_arg_text, &options.models, .required = true},
        {"workers", cm_arg_number, &options.workers, .minimum = 1, .maximum = 64},
        {0},
    };
    struct cm_error err = {0};
    enum cm_exit status;
    if (!cm_args_parse(argc, argv, usage, args, &status))
        return status;
    cm_proc_early(CM_ROLE_SCHEDULER, 0);
    struct cm_proc_options proc = {&loop, CM_ROLE_SCHEDULER, 0, on_stop, &scheduler};
    if (uv_loop_init(&loop) != 0 || cm_proc_start(&proc, &err, &scheduler.proc) != CM_OK ||
        sd_server_create(&options, &err, &scheduler.server) != CM_OK) {
        cm_log(CM_LOG_ERROR, "start_failed", "code=%s reason=%s", cm_err_name(err.code), err.text);
        return err.code == CM_NOT_FOUND || err.code == CM_PERMISSION ? CM_EXIT_USAGE
                                                                     : CM_EXIT_FAILURE;
    }
    cm_proc_run_dry(&loop);
    sd_server_destroy(scheduler.server);
    return scheduler.status;
}
