/* Slow kernel work away from the loop: populating a region, freeing one, making a channel.
 *
 * work_* run on a uv worker thread and touch only their struct mm_job; done_* run on the loop. A
 * region with a job stays NEW, so nothing else can drop it meanwhile. */
#include "memmgr/server_priv.h"

#include "common/check.h"

#include <stdlib.h>
#include <unistd.h>

#define CLOSE_INLINE_MAX (1024u * 1024u)

struct mm_job {
    uv_work_t work;
    struct mm_server *server;
    struct mm_region *region; /* populate */
    struct mm_want *want;     /* channel */
    int fd;
    size_t bytes;
    uint64_t id;
    struct cm_channel_fds ends[2];
    enum cm_err code;
    struct cm_error error;
};

static void work_populate(uv_work_t *work)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    job->code = mm_memory_populate(job->fd, job->bytes, &job->error);
}

static void done_populate(uv_work_t *work, int status)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    struct mm_server *server = job->server;
    if (status != 0) /* cancelled: never run */
        job->code = cm_fail(&job->error, CM_CANCELLED, "memmgr is stopping");
    if (job->region->kind == MM_KIND_LEASE)
        mm_lease_ready(server, job->region, job->code, &job->error);
    else
        mm_weights_ready(server, job->region, job->code, &job->error);
    free(job);
    server->n_jobs--;
    mm_server_reap(server);
    mm_server_unref(server);
}

/* Descriptors run out before memory does: what is merely kept gives its own back. */
static enum cm_err create_memory(struct mm_server *server, struct mm_region *region,
                                 struct cm_error *err)
{
    int seals = region->kind == MM_KIND_LEASE ? MM_SEALS_LEASE : MM_SEALS_WRITING;
    enum cm_err code = mm_memory_create(region->bytes, seals, err, &region->fd);
    if (code == CM_FULL) {
        mm_ledger_evict_all(&server->ledger);
        code = mm_memory_create(region->bytes, seals, err, &region->fd);
    }
    if (code == CM_OK)
        code = mm_memory_check(region->fd, region->bytes, seals, true, err, &region->id);
    region->writable = true;
    return code;
}

enum cm_err mm_job_populate(struct mm_server *server, struct mm_region *region,
                            struct cm_error *err)
{
    enum cm_err code = create_memory(server, region, err);
    if (code != CM_OK)
        return code;
    struct mm_job *job = calloc(1, sizeof *job);
    if (!job)
        return cm_fail(err, CM_NOMEM, "memmgr is out of memory");
    *job = (struct mm_job){
        .server = server, .region = region, .fd = region->fd, .bytes = region->bytes};
    CM_ASSERT(uv_queue_work(server->loop, &job->work, work_populate, done_populate) == 0);
    server->n_jobs++;
    return CM_OK;
}

static void work_channel(uv_work_t *work)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    job->code = cm_channel_make(job->id, MM_CHANNEL_RING_BYTES, &job->error, job->ends);
}

static void done_channel(uv_work_t *work, int status)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    struct mm_server *server = job->server;
    if (status != 0)
        job->code = cm_fail(&job->error, CM_CANCELLED, "memmgr is stopping");
    struct mm_want *want = job->want;
    want->making = false;
    server->n_jobs--;
    mm_link_ready(server, want, job->code, &job->error, job->id, job->ends);
    free(job);
    mm_server_reap(server);
    mm_server_unref(server);
}

enum cm_err mm_job_channel(struct mm_server *server, struct mm_want *want)
{
    struct mm_job *job = calloc(1, sizeof *job);
    if (!job)
        return CM_NOMEM;
    *job = (struct mm_job){.server = server, .want = want, .id = mm_ledger_number(&server->ledger)};
    CM_ASSERT(uv_queue_work(server->loop, &job->work, work_channel, done_channel) == 0);
    want->making = true;
    server->n_jobs++;
    return CM_OK;
}

static void work_close(uv_work_t *work)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    close(job->fd);
}

static void done_close(uv_work_t *work, int status)
{
    struct mm_job *job = cm_container_of(work, struct mm_job, work);
    struct mm_server *server = job->server;
    CM_ASSERT(status == 0); /* nobody cancels */
    free(job);
    server->n_jobs--;
    mm_server_unref(server);
}

void mm_job_close(void *ctx, int fd, size_t bytes)
{
    struct mm_server *server = ctx;
    struct mm_job *job = bytes > CLOSE_INLINE_MAX ? calloc(1, sizeof *job) : NULL;
    if (!job) {
        close(fd);
        return;
    }
    job->server = server;
    job->fd = fd;
    CM_ASSERT(uv_queue_work(server->loop, &job->work, work_close, done_close) == 0);
    server->n_jobs++;
}
