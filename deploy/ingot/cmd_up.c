/* `ingot up`: arguments, and the two ways of running the supervisor: here, or in a session of its
 * own that reports back. Main thread; no library has started a thread when the second is spawned.
 */
#include "common/check.h"
#include "deploy/ingot/command.h"
#include "deploy/ingot/rundir.h"
#include "deploy/ingot/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPORT_FD 3 /* in the detached supervisor */

enum {
    OPT_MODELS = 1,
    OPT_WORKERS,
    OPT_THREADS,
    OPT_RUN_DIR,
    OPT_GRPC,
    OPT_HTTP,
    OPT_PLAINTEXT,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CLIENT_CA,
    OPT_TIMEOUT,
    OPT_DETACH,
    OPT_REPORT,
};

static const struct ig_option options[] = {
    {OPT_MODELS, "models", "DIR",
     "The model repository: DIR/NAME/VERSION/model.onnx, with an optional DIR/NAME/config.yaml. "
     "Default: ./models."},
    {OPT_WORKERS, "workers", "N", "Worker processes, 1 to 64. Default: 1."},
    {OPT_THREADS, "threads", "N",
     "Compute threads of each worker, which share the work of one batch. Default: 1."},
    IG_OPTION_RUN_DIR(OPT_RUN_DIR),
    {OPT_GRPC, "grpc", "ADDR",
     "Where the gateway serves gRPC, HOST:PORT. Port 0 lets the system choose; the addresses in "
     "use are printed. Default: " IG_GRPC_ADDRESS "."},
    {OPT_HTTP, "http", "ADDR",
     "Where the gateway serves its plaintext probe port (/livez, /readyz). "
     "Default: " IG_HTTP_ADDRESS "."},
    {OPT_PLAINTEXT, "plaintext", NULL, "Serve gRPC without TLS. For a trusted network only."},
    {OPT_TLS_CERT, "tls-cert", "FILE",
     "The server's certificate chain (PEM). Read again when it changes. Without this option a "
     "private CA and a certificate for localhost and this host's name are made in the run "
     "directory, which the other commands trust."},
    {OPT_TLS_KEY, "tls-key", "FILE", "The certificate's private key (PEM)."},
    {OPT_TLS_CLIENT_CA, "tls-client-ca", "FILE",
     "Require clients to present a certificate that this CA (PEM) has signed."},
    {OPT_TIMEOUT, "timeout", "SECONDS",
     "How long the start may take, loading of the models included. Default: 300."},
    {OPT_DETACH, "detach", NULL,
     "Leave the cluster running in the background. The command then returns when the cluster is "
     "up, or says why it is not and leaves nothing running."},
    {OPT_REPORT, "report-fd", "N", NULL},
    {0},
};

struct request {
    struct ig_supervisor_options supervisor;
    const char *models, *run_dir, *tls_cert, *tls_key, *tls_client_ca;
    bool detach;
};

static bool parse_count(const struct ig_command *command, const char *option, const char *text,
                        unsigned maximum, unsigned *ret_count)
{
    uint64_t number;
    if (!ig_take_number(command, option, text, maximum, &number))
        return false;
    *ret_count = (unsigned)number;
    return true;
}

static bool parse_option(const struct ig_command *command, int id, const char *value, void *target)
{
    struct request *request = target;
    struct ig_supervisor_options *to = &request->supervisor;
    unsigned report;
    switch (id) {
    case OPT_MODELS:
        request->models = value;
        return true;
    case OPT_WORKERS:
        return parse_count(command, "workers", value, IG_WORKERS_MAX, &to->workers);
    case OPT_THREADS:
        return parse_count(command, "threads", value, IG_THREADS_MAX, &to->threads);
    case OPT_RUN_DIR:
        request->run_dir = value;
        return true;
    case OPT_GRPC:
        to->grpc = value;
        return true;
    case OPT_HTTP:
        to->http = value;
        return true;
    case OPT_PLAINTEXT:
        to->plaintext = true;
        return true;
    case OPT_TLS_CERT:
        request->tls_cert = value;
        return true;
    case OPT_TLS_KEY:
        request->tls_key = value;
        return true;
    case OPT_TLS_CLIENT_CA:
        request->tls_client_ca = value;
        return true;
    case OPT_TIMEOUT:
        return parse_count(command, "timeout", value, 86400, &to->timeout_s);
    case OPT_DETACH:
        request->detach = true;
        return true;
    case OPT_REPORT:
        if (!parse_count(command, "report-fd", value, 1024, &report))
            return false;
        to->report = (int)report;
        return true;
    default:
        return false;
    }
}

/* HOST:PORT as far as it can be told without resolving it. */
static bool address_good(const char *address)
{
    const char *colon = strrchr(address, ':');
    uint64_t port;
    return colon && colon > address && strlen(address) < IG_ADDRESS_MAX &&
           ig_parse_number(colon + 1, 0, 65535, &port);
}

/* Combinations that cannot be meant. 0, or an exit code. */
static int check_request(const struct ig_command *command, const struct request *request)
{
    const struct ig_supervisor_options *to = &request->supervisor;
    if (!address_good(to->grpc))
        return ig_usage(command, "--grpc '%s' is not HOST:PORT", to->grpc);
    if (!address_good(to->http))
        return ig_usage(command, "--http '%s' is not HOST:PORT", to->http);
    if (!request->tls_cert != !request->tls_key)
        return ig_usage(command, "--tls-cert and --tls-key go together");
    if (request->tls_client_ca && !request->tls_cert)
        return ig_usage(command, "--tls-client-ca needs --tls-cert and --tls-key");
    if (to->plaintext && request->tls_cert)
        return ig_usage(command, "--plaintext and --tls-cert exclude each other");
    return 0;
}

static bool resolve_file(const struct ig_command *command, const char *option, const char *given,
                         char path[PATH_MAX])
{
    path[0] = '\0';
    if (!given)
        return true;
    if (realpath(given, path) && access(path, R_OK) == 0)
        return true;
    ig_usage(command, "--%s %s: %s", option, given, strerror(errno));
    return false;
}

static bool resolve_models(const struct ig_command *command, const char *given, char path[PATH_MAX])
{
    struct stat info;
    const char *wanted = given ? given : "models";
    if (realpath(wanted, path) && stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return true;
        errno = ENOTDIR;
    }
    ig_usage(command, "the model repository %s: %s%s", wanted, strerror(errno),
             given ? "" : " (choose one with --models)");
    return false;
}

/* The programs lie beside this one. INGOT_PROGRAM_DIR is for tests that put others there. */
static bool resolve_programs(const struct ig_command *command, char dir[PATH_MAX])
{
    static const char *const names[] = {"memmgr", "worker", "scheduler", "gateway"};
    const char *given = getenv("INGOT_PROGRAM_DIR");
    char program[PATH_MAX + 32];
    if (given && *given) {
        if (!realpath(given, dir)) {
            ig_usage(command, "INGOT_PROGRAM_DIR %s: %s", given, strerror(errno));
            return false;
        }
    } else {
        ssize_t length = readlink("/proc/self/exe", dir, PATH_MAX - 1);
        dir[length > 0 ? length : 0] = '\0';
        char *slash = strrchr(dir, '/');
        if (slash)
            *slash = '\0';
    }
    for (unsigned i = 0; i < CM_COUNT_OF(names); i++) {
        snprintf(program, sizeof program, "%s/ingot-%s", dir, names[i]);
        if (strlen(program) < PATH_MAX && access(program, X_OK) == 0)
            continue;
        ig_complain(command, IG_EXIT_FAILURE, "the program %s is missing or cannot be run",
                    program);
        return false;
    }
    return true;
}

/* Absolute paths, and a run directory that is there. 0, or an exit code. */
static int resolve(const struct ig_command *command, struct request *request)
{
    struct ig_supervisor_options *to = &request->supervisor;
    struct cm_error err = {0};
    if (!resolve_models(command, request->models, to->models_dir) ||
        !resolve_file(command, "tls-cert", request->tls_cert, to->tls_cert) ||
        !resolve_file(command, "tls-key", request->tls_key, to->tls_key) ||
        !resolve_file(command, "tls-client-ca", request->tls_client_ca, to->tls_client_ca))
        return IG_EXIT_USAGE;
    if (!resolve_programs(command, to->program_dir))
        return IG_EXIT_FAILURE;
    if (ig_run_dir_resolve(request->run_dir, &err, to->run_dir) != CM_OK ||
        ig_run_dir_prepare(to->run_dir, &err) != CM_OK)
        return ig_usage(command, "%s", err.text);
    return 0;
}

/* --- detached */

static pid_t spawn_supervisor(const struct ig_command *command, const struct request *request,
                              int argc, char **argv, int report)
{
    char log[PATH_MAX], self[PATH_MAX], fd_text[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(fd_text, sizeof fd_text, "%d", REPORT_FD);
    char **args = calloc((size_t)argc + 4, sizeof *args);
    if (!args)
        return -1;
    args[0] = self;
    args[1] = argv[0];
    args[2] = (char *)"--report-fd";
    args[3] = fd_text;
    for (int i = 1; i < argc; i++)
        args[3 + i] = argv[i];

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    ig_run_path(request->supervisor.run_dir, IG_FILE_LOG_DIR "/supervisor.log", log);
    /* First, for report may be 0, 1 or 2 if the caller gave us none of these. */
    int errnum = posix_spawn_file_actions_adddup2(&actions, report, REPORT_FD);
    if (!errnum)
        errnum = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!errnum)
        errnum =
            posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (!errnum)
        errnum = posix_spawn_file_actions_adddup2(&actions, 1, 2);
    /* Whoever waits for the end of one of our caller's pipes must not wait for the cluster. */
    if (!errnum)
        errnum = posix_spawn_file_actions_addclosefrom_np(&actions, REPORT_FD + 1);
    if (!errnum)
        errnum = posix_spawn(&pid, self, &actions, &attributes, args, environ);
    if (errnum)
        ig_complain(command, IG_EXIT_FAILURE, "the supervisor cannot be started: %s",
                    strerror(errnum));
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    free(args);
    return errnum ? -1 : pid;
}

/* Prints what the supervisor tells until it concludes; its exit code, or -1 if it ended without. */
static int follow_report(int report)
{
    char *line = NULL;
    size_t room = 0;
    int code = -1;
    FILE *in = fdopen(report, "r");
    if (!in) {
        close(report);
        return -1;
    }
    while (code < 0 && getline(&line, &room, in) > 2) {
        if (line[0] == 'o')
            fputs(line + 2, stdout);
        else if (line[0] == 'e')
            fprintf(stderr, "ingot up: %s", line + 2);
        else if (line[0] == 'x')
            code = atoi(line + 2);
    }
    free(line);
    fclose(in);
    return code;
}

static int detach(const struct ig_command *command, const struct request *request, int argc,
                  char **argv)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return ig_complain(command, IG_EXIT_FAILURE, "no socket: %s", strerror(errno));
    pid_t pid = spawn_supervisor(command, request, argc, argv, ends[1]);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return IG_EXIT_FAILURE;
    }
    int code = follow_report(ends[0]);
    if (code == IG_EXIT_OK)
        return IG_EXIT_OK;
    /* It says so when all processes are gone; then it goes too. */
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (code < 0)
        return ig_complain(command, IG_EXIT_FAILURE,
                           "the supervisor ended before the cluster was up; see %s/%s",
                           request->supervisor.run_dir, IG_FILE_LOG_DIR "/supervisor.log");
    return code;
}

static int run_up(const struct ig_command *command, int argc, char **argv)
{
    struct request request = {
        .supervisor = {.grpc = IG_GRPC_ADDRESS,
                       .http = IG_HTTP_ADDRESS,
                       .workers = 1,
                       .timeout_s = IG_TIMEOUT_S,
                       .report = -1},
    };
    int code = ig_take_options(command, argc, argv, parse_option, &request, 0);
    if (code != IG_OPTIONS_TAKEN)
        return code;
    code = check_request(command, &request);
    if (code == 0)
        code = resolve(command, &request);
    if (code != 0)
        return code;
    if (request.detach && request.supervisor.report < 0)
        return detach(command, &request, argc, argv);
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    if (request.supervisor.report >= 0 && chdir("/") != 0)
        return ig_complain(command, IG_EXIT_FAILURE, "no root directory: %s", strerror(errno));
    return ig_supervisor_run(&request.supervisor);
}

const struct ig_command ig_command_up = {
    .name = "up",
    .summary = "start a cluster on this machine and keep it running",
    .synopsis = "[--models DIR] [--workers N] [--threads N] [--run-dir DIR] [--grpc ADDR] "
                "[--http ADDR] [--plaintext | --tls-cert FILE --tls-key FILE "
                "[--tls-client-ca FILE]] [--timeout SECONDS] [--detach]",
    .description =
        "Starts memmgr, the workers, the scheduler and the gateway, in this order, and supervises "
        "them. When every model is ready or has said why it is not, one line per model and the "
        "addresses are printed.\n"
        "\n"
        "A process that dies is started again at once; one that keeps dying waits longer each "
        "time, up to 5 s. One that dies 5 times within 60 s without having been ready, or that "
        "rejects its configuration, stops the cluster with the reason.\n"
        "\n"
        "SIGTERM, SIGINT and 'ingot down' stop the cluster cleanly: the gateway finishes its calls "
        "first. A second signal kills what still runs.",
    .options = options,
    .files = "RUN-DIR/log/ROLE-INDEX.log\tEach process's log; at 8 MiB it becomes .log.1.\n"
             "RUN-DIR/log/supervisor.log\tStarts, deaths and stops.\n"
             "RUN-DIR/tls/ca.pem\tThe certificate that clients must trust, unless --tls-cert or "
             "--plaintext was given.\n"
             "RUN-DIR/gateway.json\tThe addresses in use.",
    .exit_codes = IG_EXIT_BIT(OK) | IG_EXIT_BIT(FAILURE) | IG_EXIT_BIT(USAGE),
    .example = " $ ingot up --models deploy/demo/models --workers 2 --detach\n"
               " model digits version 1: ready on 2 workers\n"
               " grpc 127.0.0.1:8500 (TLS, trust /run/ingot/tls/ca.pem)\n"
               " http 127.0.0.1:8501",
    .run = run_up,
};
