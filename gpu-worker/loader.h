/* Loading models: file -> checked graph -> shared weights -> device thread, one model at a time.
 *
 *   QUEUED -> PARSING -> WEIGHTS -> PACKING -> SEALING -> ATTACHED -> (device) -> READY
 *                           `-- another process has them: ATTACHED          any step: FAILED
 *
 * Runs on the main loop; reading, parsing and packing happen in libuv's thread pool, off the
 * serving path. A model that fails says why and harms nothing. */
#ifndef GPU_WORKER_LOADER_H
#define GPU_WORKER_LOADER_H

#include "common/err.h"
#include "common/model_config.h"
#include "gpu-worker/device.h"
#include "memmgr/client.h"

#include <uv.h>

struct wk_loader;

/* What became of a request to load. signature and weights_bytes are set when error->code is CM_OK.
 */
struct wk_load_result {
    struct cm_model_ref ref;
    struct cm_error error;
    const struct wk_signature *signature;
    uint32_t max_rows;
    size_t weights_bytes;
};

/* Called once per wk_loader_load on the main loop, unless a later load of the same model came
 * first. */
typedef void (*wk_loaded_fn)(void *ctx, const struct wk_load_result *result);

struct wk_loader_options {
    uv_loop_t *loop;
    const char *models; /* the repository's root */
    struct mm_client *memory;
    struct wk_device *device;
    wk_loaded_fn on_result;
    void *ctx;
};

CM_MUST_CHECK enum cm_err wk_loader_create(const struct wk_loader_options *options,
                                           struct wk_loader **ret_loader);

/* Loads NAME/VERSION, or, when this process has it, gives it its new ref. max_batch: from the
 * configuration, 0 = 32 rows if the graph's rows are independent, else 1. CM_FULL: too many models.
 */
CM_MUST_CHECK enum cm_err wk_loader_load(struct wk_loader *loader, struct cm_model_ref ref,
                                         const char *name, uint32_t version, uint32_t max_batch);

/* The device has answered WK_MAIL_MODEL or WK_MAIL_ROUTE. */
void wk_loader_device_answered(struct wk_loader *loader, const struct wk_mail *mail);

/* Starts no more loads; the current one still comes to its end. */
void wk_loader_stop(struct wk_loader *loader);

/* After the device is gone and no work is in the pool: frees. NULL is allowed. Models on the device
 * are the device's. */
void wk_loader_destroy(struct wk_loader *loader);

/* True while the thread pool works for the loader: do not destroy it, or the device's engine, yet.
 */
bool wk_loader_busy(const struct wk_loader *loader);

#endif
