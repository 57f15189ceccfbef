/* The one door between threads: a list of messages under a mutex and one uv_async_t.
 *
 * Any thread posts; the owner's loop receives all that is there per wake-up, in each sender's
 * order. A message embeds struct cm_mail as its first idea and belongs to the receiver once posted.
 */
#ifndef COMMON_MAILBOX_H
#define COMMON_MAILBOX_H

#include "common/err.h"

#include <stdbool.h>
#include <uv.h>

struct cm_mail {
    struct cm_mail *next;
};

/* Called on the owner's loop for each message; the callee owns it. */
typedef void (*cm_mail_fn)(void *ctx, struct cm_mail *mail);

struct cm_mailbox {
    uv_mutex_t lock;
    uv_async_t async;
    struct cm_mail *first, **last; /* under lock */
    bool closed;                   /* under lock */
    struct cm_mail *taken;         /* owner only: being delivered */
    cm_mail_fn deliver;
    void *ctx;
};

CM_MUST_CHECK enum cm_err cm_mailbox_init(struct cm_mailbox *box, uv_loop_t *loop,
                                          cm_mail_fn deliver, void *ctx);

/* False if the box is closed: the message is still the caller's. Any thread, never blocks for long.
 */
CM_MUST_CHECK bool cm_mailbox_post(struct cm_mailbox *box, struct cm_mail *mail);

/* On the owner's loop: delivers what is left, refuses later posts, closes the async handle. The
 * memory of box may go after the loop has run dry, when no thread can post any more. */
void cm_mailbox_close(struct cm_mailbox *box);

#endif
