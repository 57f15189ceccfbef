/* The supervisor's control socket: one JSON object a line, {"command":"status"} or
 * {"command":"down"}; each is answered by one line. A client that asked for down waits for the
 * hang-up, which comes when everything is gone. The supervisor's loop.
 *
 * Who may connect is decided by the run directory (0700). A client can still be broken: its lines,
 * its number and what it does not read are bounded. */
#include "deploy/ingot/supervisor_priv.h"

#include "common/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ig_control_client {
    struct ig_control_client *next;
    struct ig_supervisor *supervisor;
    uv_pipe_t pipe;
    char line[IG_CONTROL_LINE];
    size_t length;
    bool closing;
    bool writing; /* one answer at a time: a second question before it was taken ends the client */
};

struct answer {
    uv_write_t write;
    char *text;
};

static void on_client_closed(uv_handle_t *handle)
{
    struct ig_control_client *client = handle->data;
    struct ig_supervisor *sup = client->supervisor;
    for (struct ig_control_client **at = &sup->clients; *at; at = &(*at)->next) {
        if (*at == client) {
            *at = client->next;
            sup->n_clients--;
            break;
        }
    }
    free(client);
}

static void close_client(struct ig_control_client *client)
{
    if (client->closing)
        return;
    client->closing = true;
    uv_close((uv_handle_t *)&client->pipe, on_client_closed);
}

static void on_written(uv_write_t *write, int status)
{
    struct answer *answer = cm_container_of(write, struct answer, write);
    struct ig_control_client *client = write->handle->data;
    client->writing = false;
    if (status != 0)
        close_client(client);
    free(answer->text);
    free(answer);
}

/* Takes value. */
static void send_answer(struct ig_control_client *client, json_t *value)
{
    struct answer *answer = calloc(1, sizeof *answer);
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    size_t length = text ? strlen(text) : 0;
    char *line = text ? realloc(text, length + 2) : NULL;
    if (!answer || !line || client->writing) {
        free(answer);
        free(line ? line : text);
        close_client(client);
        return;
    }
    memcpy(line + length, "\n", 2);
    answer->text = line;
    client->writing = true;
    uv_buf_t buffer = uv_buf_init(line, (unsigned)(length + 1));
    if (uv_write(&answer->write, (uv_stream_t *)&client->pipe, &buffer, 1, on_written) != 0) {
        client->writing = false;
        free(line);
        free(answer);
        close_client(client);
    }
}

/* --- what is answered */

static json_t *time_text(time_t when)
{
    char text[32];
    struct tm parts;
    gmtime_r(&when, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

static json_t *child_json(const struct ig_child *child)
{
    return json_pack("{s:s, s:i, s:o, s:s, s:o, s:i, s:o}", "role", cm_role_name(child->role),
                     "index", (int)child->index, "pid",
                     child->running ? json_integer(child->process.pid) : json_null(), "state",
                     ig_child_state_name(child->state), "since", time_text(child->since),
                     "restarts", (int)child->restarts, "last_exit",
                     child->last_exit[0] ? json_string(child->last_exit) : json_null());
}

static json_t *addresses_json(struct ig_supervisor *sup)
{
    char ca[PATH_MAX];
    bool known = ig_read_addresses(sup);
    bool own_ca = known && sup->tls && !sup->options->tls_cert[0];
    return json_pack("{s:o, s:o, s:b, s:o}", "grpc", known ? json_string(sup->grpc) : json_null(),
                     "http", known && sup->http[0] ? json_string(sup->http) : json_null(), "tls",
                     known ? sup->tls : !sup->options->plaintext, "ca",
                     own_ca ? json_string(ig_run_path(sup->options->run_dir, IG_FILE_CA, ca))
                            : json_null());
}

static json_t *status_json(struct ig_supervisor *sup)
{
    static const char *const phases[] = {"starting", "up", "stopping"};
    json_t *processes = json_array();
    for (unsigned i = 0; i < sup->n_children; i++)
        json_array_append_new(processes, child_json(&sup->children[i]));
    return json_pack("{s:s, s:s, s:i, s:o, s:s, s:s, s:o, s:o}", "state", phases[sup->phase],
                     "version", INGOT_VERSION, "pid", (int)getpid(), "since", time_text(sup->since),
                     "run_dir", sup->options->run_dir, "models_dir", sup->options->models_dir,
                     "addresses", addresses_json(sup), "processes", processes);
}

static void handle_line(struct ig_control_client *client)
{
    struct ig_supervisor *sup = client->supervisor;
    json_t *request = json_loadb(client->line, client->length, 0, NULL);
    const char *command = json_string_value(json_object_get(request, "command"));
    if (command && strcmp(command, "status") == 0) {
        send_answer(client, status_json(sup));
    } else if (command && strcmp(command, "down") == 0) {
        send_answer(client, json_pack("{s:b}", "ok", 1));
        if (sup->phase != IG_PHASE_STOPPING)
            ig_stop(sup, sup->phase == IG_PHASE_STARTING ? IG_EXIT_FAILURE : IG_EXIT_OK,
                    "asked to by ingot down");
    } else {
        send_answer(client, json_pack("{s:s}", "error", "unknown command"));
    }
    json_decref(request);
}

/* --- the socket */

static void on_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    static char shared[IG_CONTROL_LINE];
    (void)handle;
    (void)suggested;
    *buffer = uv_buf_init(shared, sizeof shared);
}

static void on_read(uv_stream_t *stream, ssize_t length, const uv_buf_t *buffer)
{
    struct ig_control_client *client = stream->data;
    if (length < 0)
        close_client(client);
    for (ssize_t i = 0; i < length && !client->closing; i++) {
        if (buffer->base[i] == '\n') {
            handle_line(client);
            client->length = 0;
        } else if (client->length == sizeof client->line) {
            close_client(client);
        } else {
            client->line[client->length++] = buffer->base[i];
        }
    }
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct ig_supervisor *sup = listener->data;
    struct ig_control_client *client = status == 0 ? calloc(1, sizeof *client) : NULL;
    if (!client)
        return;
    client->supervisor = sup;
    uv_pipe_init(&sup->loop, &client->pipe, 0);
    client->pipe.data = client;
    client->next = sup->clients;
    sup->clients = client;
    sup->n_clients++;
    /* One too many is accepted and closed: left in the backlog it would wait for ever. */
    if (uv_accept(listener, (uv_stream_t *)&client->pipe) != 0 || sup->n_clients > IG_CONTROL_MAX ||
        uv_read_start((uv_stream_t *)&client->pipe, on_buffer, on_read) != 0)
        close_client(client);
}

enum cm_err ig_control_open(struct ig_supervisor *sup, struct cm_error *err)
{
    char path[PATH_MAX];
    ig_run_path(sup->options->run_dir, IG_FILE_CONTROL, path);
    unlink(path); /* of a supervisor that was killed: the lock is ours */
    uv_pipe_init(&sup->loop, &sup->control, 0);
    sup->control.data = sup;
    sup->control_listening = true;
    int result = uv_pipe_bind(&sup->control, path);
    if (result == 0)
        result = uv_listen((uv_stream_t *)&sup->control, 16, on_connection);
    if (result != 0)
        return cm_fail(err, CM_IO, "the socket %s cannot be made: %s", path, uv_strerror(result));
    return CM_OK;
}

/* A second descriptor of the connection, closed by the kernel at our exit: a client that waits for
 * the hang-up shall find no supervisor any more, not one that is about to end. */
static void keep_until_exit(struct ig_control_client *client)
{
    uv_os_fd_t fd;
    if (!client->closing && uv_fileno((uv_handle_t *)&client->pipe, &fd) == 0)
        (void)fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

void ig_control_close(struct ig_supervisor *sup)
{
    if (sup->control_listening) /* uv unlinks what it has bound */
        uv_close((uv_handle_t *)&sup->control, NULL);
    sup->control_listening = false;
    for (struct ig_control_client *client = sup->clients; client; client = client->next) {
        keep_until_exit(client);
        close_client(client);
    }
}
