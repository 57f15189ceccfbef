/* ingot-worker: arguments, run, exit. Everything else is in server.c (main loop) and device.c. */
#include "common/args.h"
#include "common/log.h"
#include "common/proc.h"
#include "gpu-worker/server.h"

static const char usage[] =
    "usage: ingot-worker --run-dir DIR --models DIR [--index N] [--threads N] [--isa ISA]\n"
    "\n"
    "Runs batches on this machine's CPU cores for the scheduler of the same run directory.\n"
    "Normally started by `ingot up`.\n"
    "\n"
    "  --run-dir DIR   the cluster's run directory (memmgr must be running there)\n"
    "  --models DIR    model repository: DIR/NAME/VERSION/model.onnx\n"
    "  --index N       this worker's number, 0 by default; no two live workers may share one\n"
    "  --threads N     threads that share one batch's work, 1 by default\n"
    "  --isa ISA       scalar, avx2 or avx512 instead of the best that the machine has\n"
    "\n"
    "Environment: INGOT_LOG (debug, info, warn, error), INGOT_CPU_ISA (can only lower the "
    "choice).\n"
    "Exit status: 0 after SIGTERM, 1 failure, 2 bad arguments, 3 memmgr refused it.\n";

struct worker {
    struct cm_proc *proc;
    struct wk_server *server;
    int status;
    bool stopping;
};

static bool take_isa(const struct cm_arg *arg, const char *text)
{
    struct wk_engine_options *engine = arg->target;
    return engine->isa_given = wk_isa_from_name(text, &engine->isa);
}

static void on_ready(void *ctx)
{
    struct worker *worker = ctx;
    cm_proc_ready(worker->proc, "serving");
}

static void on_stop(void *ctx)
{
    struct worker *worker = ctx;
    if (worker->stopping)
        return;
    worker->stopping = true;
    wk_server_stop(worker->server);
    cm_proc_close(worker->proc);
}

static void on_lost(void *ctx, const struct cm_error *error)
{
    struct worker *worker = ctx;
    cm_log(CM_LOG_ERROR, "worker_lost", "code=%s reason=%s", cm_err_name(error->code), error->text);
    worker->status = CM_EXIT_LOST;
    on_stop(worker);
}

int main(int argc, char **argv)
{
    static uv_loop_t loop;
    struct worker worker = {.status = CM_EXIT_OK};
    struct wk_server_options options = {
        .loop = &loop, .on_ready = on_ready, .on_lost = on_lost, .ctx = &worker};
    const struct cm_arg args[] = {
        {"run-dir", cm_arg_text, &options.run_dir, .required = true},
        {"models", cm_arg_text, &options.models, .required = true},
        {"index", cm_arg_number, &options.index, .maximum = 4095},
        {"threads", cm_arg_number, &options.engine.threads, .maximum = 256},
        {"isa", take_isa, .target = &options.engine},
        {0},
    };
    struct cm_error err = {0};
    enum cm_exit status;
    if (!cm_args_parse(argc, argv, usage, args, &status))
        return status;
    cm_proc_early(CM_ROLE_WORKER, options.index);
    struct cm_proc_options proc = {&loop, CM_ROLE_WORKER, options.index, on_stop, &worker};
    if (uv_loop_init(&loop) != 0 || cm_proc_start(&proc, &err, &worker.proc) != CM_OK ||
        wk_server_create(&options, &err, &worker.server) != CM_OK) {
        cm_log(CM_LOG_ERROR, "start_failed", "code=%s reason=%s", cm_err_name(err.code), err.text);
        return err.code == CM_UNSUPPORTED || err.code == CM_INVALID ? CM_EXIT_USAGE
                                                                    : CM_EXIT_FAILURE;
    }
    cm_proc_run_dry(&loop);
    wk_server_destroy(worker.server);
    return worker.status;
}
