/* A gateway under test: the real ingot-memmgr and ingot-gateway as processes, and in this one a
 * scheduler and a worker that do only what a test tells them, and a gRPC client.
 *
 * Everything is on the test's thread and loop, but the client's completion queue, whose thread
 * marks calls as done and wakes the loop. */
#ifndef TESTS_GATEWAY_FAKE_H
#define TESTS_GATEWAY_FAKE_H

#include "common/bus.h"
#include "common/channel.h"
#include "common/record.h"
#include "memmgr/client.h"
#include "tests/harness/t.h"

#include <grpc/grpc.h>
#include <stdatomic.h>
#include <sys/types.h>

#define SUBMITS_MAX 128
#define FLOATS      4     /* of a row of x */
#define SMALL       2     /* floats of a row of y, model "small" */
#define LARGE       65536 /* the same, model "large"; and of x, model "wide" */

extern uv_loop_t loop;
extern char base_dir[T_PATH_MAX], run_dir[T_PATH_MAX * 2];

/* ---- processes ---- */
extern pid_t memmgr_pid, gateway_pid;
void start_memmgr(void);
void start_memmgr_with(const char *budget);
/* args: more arguments of ingot-gateway, NULL at the end; waits for gateway.json. */
void start_gateway(const char *const *args);
extern char grpc_address[300], http_address[300];
void kill_hard(pid_t *pid);
/* SIGTERM, then runs the loop until the process has gone; its exit status. */
int stop_softly(pid_t *pid);

/* ---- the scheduler ---- */
struct submit {
    struct cm_record_submit record;
    struct cm_tensor_desc inputs[CM_MAX_TENSORS];
};

struct fake_scheduler {
    struct mm_client *memory;
    struct cm_bus *bus;
    struct cm_channel *channel;
    uint64_t instance;
    unsigned hellos, acks;
    struct submit submits[SUBMITS_MAX];
    unsigned n_submits, n_cancels, n_releases, n_held, n_resumed;
    uint64_t last_cancel;
    struct cm_slab_ref last_release, last_held;
    unsigned n_before_resumed; /* records other than HELD that came before RESUMED */
};
extern struct fake_scheduler sched;

void scheduler_start(void); /* returns when the gateway's channel and Hello are here */
void scheduler_die(void);
/* A table of "small", "large" and "wide" in that state; waits until the gateway has it. */
void scheduler_table(Ingot__Ipc__ModelState state, bool settled);
/* REPLY with status and text. */
void reply_error(uint64_t request, enum cm_err status, const char *text);
/* REPLY with one output in the worker's lease at offset, rows x width floats. */
void reply_output(uint64_t request, uint64_t offset, int64_t rows, int64_t width, uint32_t slab);
/* The same with the descriptor changed by the caller. */
void reply_desc(uint64_t request, const struct cm_tensor_desc *desc, uint32_t slab);
struct cm_tensor_desc output_desc(uint64_t offset, int64_t rows, int64_t width);
/* A counter of the gateway, asked over the bus. */
uint64_t gateway_counter(const char *name);

/* ---- the worker ---- */
extern struct mm_lease *worker_lease;
void worker_start(size_t bytes);
void worker_die(void);

/* ---- the client ---- */
struct client_call {
    grpc_call *core;
    grpc_byte_buffer *request, *response;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    atomic_bool done;
};

/* credentials: taken over; NULL: plaintext. */
grpc_channel *client_connect(grpc_channel_credentials *credentials);
/* False: calls that are started send, but do not take their answers. */
extern bool client_reads;
/* Starts a unary call with these bytes, or NULL: its message is still to come; context: the value
 * of x-request-context or NULL. */
void client_start(struct client_call *call, grpc_channel *channel, const char *method,
                  const void *bytes, size_t length, const char *context, unsigned timeout_ms);
/* An ingot.v1 Infer of rows rows for model; of four rows for "wide": 1 MiB. */
void client_infer(struct client_call *call, grpc_channel *channel, const char *model, int64_t rows,
                  const char *context, unsigned timeout_ms);
/* Sends the message of an Infer that was started without. */
void client_say_infer(struct client_call *call, const char *model, int64_t rows);
void client_wait(struct client_call *call);
void client_fini(struct client_call *call);
/* The answer's message in one piece; free it. NULL if there is none. */
uint8_t *client_message(struct client_call *call, size_t *ret_length);
/* The status text; valid until the next use. */
const char *client_text(struct client_call *call);
/* A trailer's value or NULL; the same. */
const char *client_trailer(struct client_call *call, const char *key);

/* Group set-up: loop, directory, client; and its end. */
int fake_setup(void **state);
int fake_teardown(void **state);
/* Per test: everything stopped, the run directory emptied. */
int fake_reset(void **state);

#endif
