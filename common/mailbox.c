/* Mailboxes. post runs on any thread, everything else on the owner's loop. */
#include "common/mailbox.h"

#include "common/check.h"

/* All that is there now, in order. Caller holds no lock. */
static struct cm_mail *take_all(struct cm_mailbox *box, bool close)
{
    uv_mutex_lock(&box->lock);
    struct cm_mail *mail = box->first;
    box->first = NULL;
    box->last = &box->first;
    if (close)
        box->closed = true;
    uv_mutex_unlock(&box->lock);
    return mail;
}

/* Delivers from box->taken, not from a local list: a callback may close the box, and what was taken
 * before must then still come before what was posted later. */
static void deliver_taken(struct cm_mailbox *box)
{
    while (box->taken) {
        struct cm_mail *mail = box->taken;
        box->taken = mail->next;
        mail->next = NULL;
        box->deliver(box->ctx, mail);
    }
}

static void on_async(uv_async_t *async)
{
    struct cm_mailbox *box = cm_container_of(async, struct cm_mailbox, async);
    CM_ASSERT(!box->taken);
    box->taken = take_all(box, false);
    deliver_taken(box);
}

enum cm_err cm_mailbox_init(struct cm_mailbox *box, uv_loop_t *loop, cm_mail_fn deliver, void *ctx)
{
    *box = (struct cm_mailbox){.deliver = deliver, .ctx = ctx};
    box->last = &box->first;
    int rc = uv_mutex_init(&box->lock);
    if (rc != 0)
        return cm_err_from_errno(-rc);
    rc = uv_async_init(loop, &box->async, on_async);
    if (rc != 0) {
        uv_mutex_destroy(&box->lock);
        return cm_err_from_errno(-rc);
    }
    return CM_OK;
}

bool cm_mailbox_post(struct cm_mailbox *box, struct cm_mail *mail)
{
    mail->next = NULL;
    uv_mutex_lock(&box->lock);
    bool open = !box->closed;
    if (open) {
        bool was_empty = !box->first;
        *box->last = mail;
        box->last = &mail->next;
        /* Under the lock: close cannot take the handle away in between. One wake-up for many. */
        if (was_empty)
            uv_async_send(&box->async);
    }
    uv_mutex_unlock(&box->lock);
    return open;
}

void cm_mailbox_close(struct cm_mailbox *box)
{
    CM_ASSERT(!uv_is_closing((uv_handle_t *)&box->async));
    uv_close((uv_handle_t *)&box->async, NULL);
    deliver_taken(box); /* the rest of a delivery that we are called from */
    box->taken = take_all(box, true);
    deliver_taken(box);
    /* The lock stays: late posters still take it to learn that the box is closed. */
}
