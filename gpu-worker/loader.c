/* Loading models: see loader.h. Main loop, but for the two *_work functions. */
#include "gpu-worker/loader.h"

#include "common/check.h"
#include "common/log.h"
#include "gpu-worker/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SEALS_LOST 8u
#define MAX_LOADS      256u
#define DEFAULT_ROWS   32u

enum load_state {
    LOAD_QUEUED,
    LOAD_WORKING, /* in the pool, with memmgr or with the device */
    LOAD_READY,
    LOAD_FAILED,
};

/* One model that was asked for; stays for the process's life. */
struct load {
    struct wk_loader *loader;
    enum load_state state;
    char name[CM_MODEL_NAME_MAX + 1];
    uint32_t version;
    struct cm_model_ref ref;  /* the latest that was asked for */
    struct cm_model_ref sent; /* what the device was told */
    uint32_t max_batch;
    uv_work_t work;
    struct cm_error error;
    void *file; /* while parsing and packing */
    size_t file_length;
    struct wk_model *model; /* ours until the device has it */
    struct mm_weights *weights;
    size_t weights_bytes;
    uint32_t max_rows;
    unsigned seals_lost;
    bool posted; /* the device has, or is getting, the model */
};

struct wk_loader {
    struct wk_loader_options options;
    struct load *loads[MAX_LOADS];
    unsigned n_loads;
    struct load *current; /* the one that is being loaded */
    bool working;         /* in the pool */
    bool stopping;
};

static void start_next(struct wk_loader *loader);
static void ask_weights(struct load *load);

enum cm_err wk_loader_create(const struct wk_loader_options *options, struct wk_loader **ret_loader)
{
    struct wk_loader *loader = calloc(1, sizeof *loader);
    if (!loader)
        return CM_NOMEM;
    loader->options = *options;
    *ret_loader = loader;
    return CM_OK;
}

static bool same_ref(struct cm_model_ref a, struct cm_model_ref b)
{
    return a.id == b.id && a.generation == b.generation;
}

static void report(struct load *load)
{
    struct wk_load_result result = {.ref = load->ref, .error = load->error};
    if (load->error.code == CM_OK) {
        result.signature = wk_model_signature(load->model);
        result.max_rows = load->max_rows;
        result.weights_bytes = load->weights_bytes;
    }
    load->loader->options.on_result(load->loader->options.ctx, &result);
}

/* Ends the current load, well or badly, and starts the next one. */
static void finish(struct load *load)
{
    struct wk_loader *loader = load->loader;
    CM_ASSERT(loader->current == load);
    free(load->file);
    load->file = NULL;
    load->state = load->error.code == CM_OK ? LOAD_READY : LOAD_FAILED;
    if (load->state == LOAD_FAILED) {
        wk_model_destroy(load->model);
        load->model = NULL;
        if (load->weights)
            mm_client_weights_close(loader->options.memory, load->weights);
        load->weights = NULL;
    }
    loader->current = NULL;
    if (load->state == LOAD_FAILED || same_ref(load->sent, load->ref))
        report(load);
    start_next(loader);
}

static void to_device(struct load *load, enum wk_mail_kind kind)
{
    struct wk_mail *mail = wk_mail_new(kind);
    if (mail) {
        mail->model = load->model;
        mail->ref = load->sent = load->ref;
        mail->max_rows = load->max_rows;
    }
    if (!mail || !wk_device_post(load->loader->options.device, mail)) {
        cm_fail(&load->error, CM_UNAVAILABLE, "the worker is stopping");
        if (kind == WK_MAIL_MODEL) {
            load->posted = false;
            finish(load);
        }
    }
}

static void attach(struct load *load, const void *base)
{
    if (wk_model_attach(load->model, base, &load->error) != CM_OK) {
        finish(load);
        return;
    }
    free(load->file);
    load->file = NULL;
    load->posted = true;
    to_device(load, WK_MAIL_MODEL);
}

static void on_sealed(void *ctx, const struct cm_error *error, struct mm_weights *weights)
{
    struct load *load = ctx;
    load->weights = weights;
    if (error->code == CM_OK) {
        attach(load, weights->base);
    } else if (error->code == CM_STALE && load->seals_lost++ < MAX_SEALS_LOST) {
        /* memmgr died or lost us while we packed, and somebody else may be the writer now. */
        ask_weights(load);
    } else {
        load->error = *error;
        finish(load);
    }
}

static void pack_work(uv_work_t *work)
{
    struct load *load = cm_container_of(work, struct load, work);
    load->error.code = wk_model_pack(load->model, load->weights->base, &load->error);
}

static void pack_done(uv_work_t *work, int status)
{
    struct load *load = cm_container_of(work, struct load, work);
    load->loader->working = false;
    if (status != 0)
        cm_fail_errno(&load->error, -status, "cannot pack the weights");
    if (load->error.code == CM_OK) {
        enum cm_err err =
            mm_client_weights_seal(load->loader->options.memory, load->weights, on_sealed, load);
        if (err == CM_OK)
            return;
        cm_fail(&load->error, err, "cannot seal the weights: %s", cm_err_text(err));
    }
    finish(load);
}

static void queue_work(struct load *load, uv_work_cb work, uv_after_work_cb done)
{
    int failed = uv_queue_work(load->loader->options.loop, &load->work, work, done);
    CM_ASSERT(failed == 0); /* fails only for a NULL callback */
    load->loader->working = true;
}

static void on_weights(void *ctx, const struct cm_error *error, struct mm_weights *weights)
{
    struct load *load = ctx;
    load->weights = weights;
    if (error->code != CM_OK) {
        load->error = *error;
        finish(load);
    } else if (weights->writer) {
        queue_work(load, pack_work, pack_done);
    } else {
        attach(load, weights->base);
    }
}

static void ask_weights(struct load *load)
{
    char label[CM_MODEL_NAME_MAX + 16];
    uint8_t key[32];
    wk_model_weights_key(load->model, key);
    snprintf(label, sizeof label, "%s/%u", load->name, load->version);
    enum cm_err err = mm_client_weights(load->loader->options.memory, key, load->weights_bytes,
                                        label, on_weights, load);
    if (err == CM_OK)
        return;
    cm_fail(&load->error, err, "cannot ask for the weights: %s", cm_err_text(err));
    finish(load);
}

static void parse_work(uv_work_t *work)
{
    struct load *load = cm_container_of(work, struct load, work);
    const struct wk_loader_options *options = &load->loader->options;
    struct wk_load_options how = WK_LOAD_DEFAULTS;
    load->error.code = wk_repo_read(options->models, load->name, load->version, &load->error,
                                    &load->file, &load->file_length, &how.directory);
    if (load->error.code != CM_OK)
        return;
    load->error.code = wk_model_parse(wk_device_engine(options->device), load->file,
                                      load->file_length, &how, &load->error, &load->model);
    close(how.directory);
}

/* Rows that one run may have. */
static uint32_t effective_rows(const struct load *load, const struct wk_signature *signature)
{
    if (!signature->batchable)
        return 1;
    return load->max_batch ? load->max_batch : DEFAULT_ROWS;
}

static void parse_done(uv_work_t *work, int status)
{
    struct load *load = cm_container_of(work, struct load, work);
    load->loader->working = false;
    if (status != 0)
        cm_fail_errno(&load->error, -status, "cannot parse the model");
    if (load->error.code == CM_OK) {
        load->max_rows = effective_rows(load, wk_model_signature(load->model));
        load->weights_bytes = wk_model_weights_bytes(load->model);
        if (load->weights_bytes == 0) {
            attach(load, NULL);
            return;
        }
        ask_weights(load);
        return;
    }
    finish(load);
}

static void start_next(struct wk_loader *loader)
{
    if (loader->stopping)
        return;
    for (unsigned i = 0; !loader->current && i < loader->n_loads; i++) {
        struct load *load = loader->loads[i];
        if (load->state != LOAD_QUEUED)
            continue;
        loader->current = load;
        load->state = LOAD_WORKING;
        load->error = (struct cm_error){0};
        queue_work(load, parse_work, parse_done);
    }
}

void wk_loader_device_answered(struct wk_loader *loader, const struct wk_mail *mail)
{
    for (unsigned i = 0; i < loader->n_loads; i++) {
        struct load *load = loader->loads[i];
        if (!load->model || load->model != mail->model)
            continue;
        bool first = loader->current == load;
        if (first) {
            load->error = mail->error;
            load->posted = mail->error.code == CM_OK;
            finish(load);
        }
        if (load->state == LOAD_READY && !same_ref(load->sent, load->ref))
            to_device(load, WK_MAIL_ROUTE);
        else if (load->state == LOAD_READY && !first && same_ref(mail->ref, load->ref))
            report(load);
        return;
    }
}

static struct load *find(struct wk_loader *loader, const char *name, uint32_t version)
{
    for (unsigned i = 0; i < loader->n_loads; i++)
        if (loader->loads[i]->version == version && strcmp(loader->loads[i]->name, name) == 0)
            return loader->loads[i];
    return NULL;
}

enum cm_err wk_loader_load(struct wk_loader *loader, struct cm_model_ref ref, const char *name,
                           uint32_t version, uint32_t max_batch)
{
    if (!cm_model_name_valid(name, strlen(name)) || version == 0)
        return CM_INVALID;
    struct load *load = find(loader, name, version);
    if (!load) {
        if (loader->n_loads == MAX_LOADS)
            return CM_FULL;
        load = calloc(1, sizeof *load);
        if (!load)
            return CM_NOMEM;
        load->loader = loader;
        load->version = version;
        memcpy(load->name, name, strlen(name) + 1);
        loader->loads[loader->n_loads++] = load;
    }
    load->ref = ref;
    load->max_batch = max_batch;
    if (load->state == LOAD_READY) {
        load->max_rows = effective_rows(load, wk_model_signature(load->model));
        to_device(load, WK_MAIL_ROUTE);
    } else if (load->state == LOAD_FAILED) {
        load->state = LOAD_QUEUED; /* the file may have been mended */
    }
    start_next(loader);
    return CM_OK;
}

void wk_loader_stop(struct wk_loader *loader)
{
    loader->stopping = true;
}

bool wk_loader_busy(const struct wk_loader *loader)
{
    return loader->working;
}

void wk_loader_destroy(struct wk_loader *loader)
{
    if (!loader)
        return;
    CM_ASSERT(!loader->working);
    for (unsigned i = 0; i < loader->n_loads; i++) {
        struct load *load = loader->loads[i];
        if (!load->posted)
            wk_model_destroy(load->model);
        free(load->file);
        free(load);
    }
    free(loader);
}
