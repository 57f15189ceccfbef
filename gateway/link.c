/* The scheduler's channel, sending side: SUBMIT, CANCEL, RELEASE, and what a new scheduler must be
 * told.
 *
 * The queue thread submits and cancels, the loop does both too, and a RELEASE comes from wherever
 * core drops an answer's last slice: so one mutex stands around the sending side and all that must
 * agree with it. It is held for a ring write, never over a callback or core.
 *
 * A channel's life, as this side sees it:
 *   none  -> open     HELD for each output held, RESUMED; RELEASE and CANCEL may go
 *   open  -> joined   the model table of that very scheduler is here; SUBMITs may go
 *   any   -> none     the scheduler is dead: SENT requests become UNSENT, zombies end */
#include "gateway/gw_priv.h"

#include "common/check.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

void gw_link_init(struct gw_link *link)
{
    memset(link, 0, sizeof *link);
    pthread_mutex_init(&link->lock, NULL);
}

void gw_link_fini(struct gw_link *link)
{
    CM_ASSERT(!link->channel && !link->held);
    pthread_mutex_destroy(&link->lock);
}

/* Under the lock. */
static void set_backend(struct gw_call *call, enum gw_backend backend)
{
    struct gw_link *link = &call->gw->link;
    link->n_unsent -= call->backend == GW_BACKEND_UNSENT;
    link->n_unsent += backend == GW_BACKEND_UNSENT;
    if (call->cancel_due && backend != GW_BACKEND_SENT) {
        call->cancel_due = false;
        link->n_due--;
    }
    call->backend = backend;
}

/* Writes the SUBMIT. CM_FULL: no room. CM_CLOSED: not now. Under the lock. */
static enum cm_err submit_locked(struct gw_call *call)
{
    struct gw_link *link = &call->gw->link;
    struct gw_infer *infer = &call->infer;
    if (!link->joined || infer->model->scheduler != link->peer ||
        infer->model->state != GW_MODEL_READY)
        return CM_CLOSED;
    infer->submit.model = infer->model->ref;
    enum cm_err code = cm_channel_send(
        link->channel, CM_RECORD_SUBMIT, &infer->submit, sizeof infer->submit, infer->inputs,
        (uint32_t)(infer->submit.n_inputs * sizeof infer->inputs[0]));
    if (code != CM_OK)
        return code == CM_FULL ? CM_FULL : CM_CLOSED;
    infer->submitted_ns = cm_now_ns();
    gw_count(call->gw, submitted, 1);
    return CM_OK;
}

/* A call whose BACKEND is the caller's: SENT, or UNSENT, or (CM_CANCELLED, CM_FULL unless keep)
 * still the caller's. */
static enum cm_err place(struct gw_call *call, bool keep)
{
    struct gw_link *link = &call->gw->link;
    pthread_mutex_lock(&link->lock);
    CM_ASSERT(call->backend == GW_BACKEND_NONE);
    enum cm_err code;
    if (gw_word_state(&call->word) == GW_CALL_ANSWERED)
        code = CM_CANCELLED;
    else
        code = submit_locked(call);
    if (code == CM_OK)
        set_backend(call, GW_BACKEND_SENT);
    else if (code == CM_CLOSED || (code == CM_FULL && keep))
        set_backend(call, GW_BACKEND_UNSENT);
    bool missed = code == CM_CLOSED && link->joined;
    if (code == CM_OK)
        cm_channel_flush(link->channel);
    pthread_mutex_unlock(&link->lock);
    if (code == CM_FULL)
        gw_count(call->gw, ring_full, 1);
    if (missed || (code == CM_FULL && keep))
        gw_kick(call->gw, GW_KICK_LINK);
    return code;
}

enum cm_err gw_link_submit(struct gw_call *call)
{
    enum cm_err code = place(call, false);
    return code == CM_CLOSED ? CM_OK : code;
}

/* Points the call at the model of the present table. CM_OK: found, in whatever state; CM_AGAIN: it
 * may come yet; otherwise the request has no model any more. */
static enum cm_err resolve_again(struct gw_call *call, const struct gw_models *models,
                                 struct cm_error *err)
{
    struct gw_infer *infer = &call->infer;
    struct gw_model *model = NULL;
    const char *name = infer->model->name, *version = infer->model->version_text;
    enum cm_err code =
        gw_models_find(models, name, strlen(name), version, strlen(version), err, &model);
    if (code != CM_OK && models && models->settled)
        return cm_fail(err, CM_UNAVAILABLE, "model '%s' version %s is gone", name, version);
    if (code != CM_OK || model->state == GW_MODEL_LOADING)
        return CM_AGAIN;
    code = gw_model_usable(model, err);
    if (code != CM_OK)
        return code;
    if (!gw_model_same_signature(model, infer->model))
        return cm_fail(err, CM_UNAVAILABLE, "model '%s' version %s was replaced", name, version);
    gw_model_ref(model);
    gw_model_unref(infer->model);
    infer->model = model;
    return CM_OK;
}

/* A call whose BACKEND is the loop's: resolves and places it, or ends it. False: no room. */
static bool submit_again(struct gw_call *call, const struct gw_models *models)
{
    struct cm_error error = {.code = CM_OK};
    enum cm_err code = resolve_again(call, models, &error);
    if (code != CM_OK && code != CM_AGAIN) {
        gw_call_fail(call, &error);
        gw_infer_backend_done(call);
        return true;
    }
    code = place(call, true);
    if (code == CM_CANCELLED)
        gw_infer_backend_done(call);
    if (code == CM_OK)
        gw_count(call->gw, resubmitted, 1);
    return code != CM_FULL;
}

void gw_link_submit_again(struct gw_call *call)
{
    struct gw_models *models = gw_models_now(call->gw);
    submit_again(call, models);
    gw_models_unref(models);
}

/* Takes an UNSENT call's BACKEND for the loop. */
static bool claim_unsent(struct gw_call *call)
{
    struct gw_link *link = &call->gw->link;
    pthread_mutex_lock(&link->lock);
    bool unsent = call->backend == GW_BACKEND_UNSENT;
    if (unsent)
        set_backend(call, GW_BACKEND_NONE);
    pthread_mutex_unlock(&link->lock);
    return unsent;
}

/* Every request that waits: try again. Loop thread. */
static void send_unsent(struct gw *gw)
{
    struct gw_models *models = gw_models_now(gw);
    uint32_t fresh = atomic_load_explicit(&gw->calls.fresh, memory_order_acquire);
    bool room = true;
    for (uint32_t i = 0; i < fresh && room; i++)
        if (claim_unsent(&gw->calls.slots[i]))
            room = submit_again(&gw->calls.slots[i], models);
    gw_models_unref(models);
}

/* Under the lock. CM_FULL: it waits for room. */
static enum cm_err cancel_locked(struct gw_call *call)
{
    struct gw_link *link = &call->gw->link;
    struct cm_record_cancel record = {gw_call_handle(call)};
    enum cm_err code =
        cm_channel_send(link->channel, CM_RECORD_CANCEL, &record, sizeof record, NULL, 0);
    if (code == CM_OK)
        gw_count(call->gw, cancels, 1);
    return code;
}

bool gw_link_cancel(struct gw_call *call)
{
    struct gw_link *link = &call->gw->link;
    pthread_mutex_lock(&link->lock);
    bool mine = call->backend == GW_BACKEND_UNSENT;
    bool due = false;
    if (mine) {
        set_backend(call, GW_BACKEND_NONE);
    } else if (call->backend == GW_BACKEND_SENT && link->channel) {
        due = cancel_locked(call) == CM_FULL;
        call->cancel_due = due;
        link->n_due += due;
        cm_channel_flush(link->channel);
    }
    pthread_mutex_unlock(&link->lock);
    if (due)
        gw_kick(call->gw, GW_KICK_LINK);
    return mine;
}

struct gw_call *gw_link_replied(struct gw *gw, uint64_t request)
{
    struct gw_call *call = gw_call_slot(gw, request);
    if (!call)
        return NULL;
    pthread_mutex_lock(&gw->link.lock);
    bool open = call->backend == GW_BACKEND_SENT && gw_call_handle(call) == request;
    if (open)
        set_backend(call, GW_BACKEND_NONE);
    pthread_mutex_unlock(&gw->link.lock);
    return open ? call : NULL;
}

/* ---- held outputs ---- */

static void held_insert(struct gw_link *link, struct gw_held *held)
{
    held->previous = NULL;
    held->next = link->held;
    if (link->held)
        link->held->previous = held;
    link->held = held;
    link->n_held++;
}

static void held_remove(struct gw_link *link, struct gw_held *held)
{
    if (held->next)
        held->next->previous = held->previous;
    if (held->previous)
        held->previous->next = held->next;
    else
        link->held = held->next;
    link->n_held--;
}

/* CM_OK also without a channel: the next scheduler is told what is held, and this is not. */
static enum cm_err release_locked(struct gw *gw, const struct cm_slab_ref *slab)
{
    struct gw_link *link = &gw->link;
    if (!link->channel)
        return CM_OK;
    struct cm_record_release record = {*slab};
    enum cm_err code =
        cm_channel_send(link->channel, CM_RECORD_RELEASE, &record, sizeof record, NULL, 0);
    if (code == CM_OK)
        gw_count(gw, releases, 1);
    return code == CM_FULL ? CM_FULL : CM_OK;
}

struct gw_held *gw_held_create(struct gw *gw, const struct cm_slab_ref *slab)
{
    struct gw_held *held = calloc(1, sizeof *held);
    pthread_mutex_lock(&gw->link.lock);
    if (held) {
        held->gw = gw;
        held->slab = *slab;
        atomic_init(&held->refs, 1);
        held_insert(&gw->link, held);
    } else if (release_locked(gw, slab) != CM_OK) {
        gw_count(gw, ring_full, 1);
    }
    pthread_mutex_unlock(&gw->link.lock);
    return held;
}

void gw_held_ref(struct gw_held *held)
{
    atomic_fetch_add_explicit(&held->refs, 1, memory_order_relaxed);
}

void gw_held_unref(struct gw_held *held)
{
    if (!held || atomic_fetch_sub_explicit(&held->refs, 1, memory_order_acq_rel) != 1)
        return;
    struct gw *gw = held->gw;
    struct gw_link *link = &gw->link;
    bool revoked = false;
    for (unsigned i = 0; i < held->n_leases; i++) {
        struct gw_lease *lease = held->leases[i];
        /* Read first: the loop may free the lease as soon as its last use is gone. */
        revoked |= atomic_load_explicit(&lease->revoked, memory_order_relaxed);
        atomic_fetch_sub_explicit(&lease->uses, 1, memory_order_release);
    }
    pthread_mutex_lock(&link->lock);
    enum cm_err code = release_locked(gw, &held->slab);
    if (code == CM_FULL) {
        held->due = true;
        link->n_due++;
    } else {
        held_remove(link, held);
    }
    pthread_mutex_unlock(&link->lock);
    if (code != CM_FULL)
        free(held);
    unsigned kicks = (code == CM_FULL ? GW_KICK_LINK : 0) | (revoked ? GW_KICK_LEASES : 0);
    if (kicks)
        gw_kick(gw, kicks);
}

/* ---- the channel's life; loop thread ---- */

/* What a new scheduler must know first. The ring is new and large: it does not fit only if we hold
 * more than a ring's worth, and then the scheduler reads while we write. */
static enum cm_err tell_held(struct gw *gw, struct cm_channel *channel)
{
    struct gw_held *next;
    for (struct gw_held *held = gw->link.held; held; held = next) {
        next = held->next;
        if (held->due) { /* its RELEASE waited for the old ring: not held any more */
            held_remove(&gw->link, held);
            gw->link.n_due--;
            free(held);
            continue;
        }
        struct cm_record_held record = {held->slab};
        enum cm_err code =
            cm_channel_send(channel, CM_RECORD_HELD, &record, sizeof record, NULL, 0);
        if (code != CM_OK)
            return code;
    }
    struct cm_record_resumed record = {gw->instance};
    return cm_channel_send(channel, CM_RECORD_RESUMED, &record, sizeof record, NULL, 0);
}

void gw_link_open(struct gw *gw, struct cm_channel *channel)
{
    struct gw_link *link = &gw->link;
    pthread_mutex_lock(&link->lock);
    CM_ASSERT(!link->channel);
    link->peer = cm_channel_peer(channel).instance;
    link->joined = false;
    link->channel = channel;
    enum cm_err code = tell_held(gw, channel);
    cm_channel_flush(channel);
    pthread_mutex_unlock(&link->lock);
    if (code != CM_OK)
        cm_log(CM_LOG_ERROR, "resume_failed", "reason=%s", cm_err_text(code));
}

/* The channel is gone. Requests that were sent are kept for the next scheduler; what was cancelled
 * ends here: no REPLY will come, and whoever still reads the inputs does so in vain. */
void gw_link_lost(struct gw *gw)
{
    struct gw_link *link = &gw->link;
    uint32_t fresh = atomic_load_explicit(&gw->calls.fresh, memory_order_acquire);
    pthread_mutex_lock(&link->lock);
    struct cm_channel *channel = link->channel;
    link->channel = NULL;
    link->joined = false;
    pthread_mutex_unlock(&link->lock);
    for (uint32_t i = 0; i < fresh; i++) {
        struct gw_call *call = &gw->calls.slots[i];
        bool over = false;
        pthread_mutex_lock(&link->lock);
        if (call->backend == GW_BACKEND_SENT) {
            over = gw_word_state(&call->word) == GW_CALL_ANSWERED;
            set_backend(call, over ? GW_BACKEND_NONE : GW_BACKEND_UNSENT);
        }
        pthread_mutex_unlock(&link->lock);
        if (over)
            gw_infer_backend_done(call);
    }
    cm_channel_close(channel);
}

void gw_link_joined(struct gw *gw)
{
    struct gw_link *link = &gw->link;
    struct gw_models *models = gw_models_now(gw);
    pthread_mutex_lock(&link->lock);
    link->joined = link->channel && models && models->scheduler == link->peer;
    bool send = link->joined && link->n_unsent > 0;
    pthread_mutex_unlock(&link->lock);
    gw_models_unref(models);
    if (send)
        send_unsent(gw);
}

/* RELEASEs and CANCELs that found the ring full. */
static void send_due(struct gw *gw)
{
    struct gw_link *link = &gw->link;
    pthread_mutex_lock(&link->lock);
    struct gw_held *next;
    for (struct gw_held *held = link->held; held && link->n_due > 0; held = next) {
        next = held->next;
        if (!held->due)
            continue;
        if (release_locked(gw, &held->slab) != CM_OK)
            break;
        held_remove(link, held);
        link->n_due--;
        free(held);
    }
    uint32_t fresh = atomic_load_explicit(&gw->calls.fresh, memory_order_acquire);
    for (uint32_t i = 0; i < fresh && link->n_due > 0 && link->channel; i++) {
        struct gw_call *call = &gw->calls.slots[i];
        if (!call->cancel_due)
            continue;
        if (cancel_locked(call) == CM_FULL)
            break;
        call->cancel_due = false;
        link->n_due--;
    }
    pthread_mutex_unlock(&link->lock);
}

void gw_link_retry(struct gw *gw)
{
    pthread_mutex_lock(&gw->link.lock);
    bool due = gw->link.n_due > 0;
    bool unsent = gw->link.n_unsent > 0 && gw->link.joined;
    pthread_mutex_unlock(&gw->link.lock);
    if (due)
        send_due(gw);
    if (unsent)
        send_unsent(gw);
    gw_link_flush(gw);
}

void gw_link_flush(struct gw *gw)
{
    pthread_mutex_lock(&gw->link.lock);
    if (gw->link.channel)
        cm_channel_flush(gw->link.channel);
    pthread_mutex_unlock(&gw->link.lock);
}

bool gw_link_up(struct gw *gw)
{
    pthread_mutex_lock(&gw->link.lock);
    bool up = gw->link.joined;
    pthread_mutex_unlock(&gw->link.lock);
    return up;
}
