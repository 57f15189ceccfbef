/* Mailboxes: order per sender, one wake-up for many, close with mail inside, close from a delivery,
 * close while others post. */
#include "common/mailbox.h"

#include "common/check.h"
#include "tests/harness/t.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SENDERS  4
#define MESSAGES 20000

struct message {
    struct cm_mail mail;
    unsigned sender;
    unsigned number;
};

struct fixture {
    uv_loop_t loop;
    struct cm_mailbox box;
    unsigned next[SENDERS]; /* expected number of each sender */
    unsigned received;
    unsigned close_at; /* close the box from this delivery; 0 = never */
    bool closed;
};

static void on_mail(void *ctx, struct cm_mail *mail)
{
    struct fixture *f = ctx;
    struct message *message = cm_container_of(mail, struct message, mail);
    assert_int_equal(message->number, f->next[message->sender]);
    f->next[message->sender]++;
    f->received++;
    free(message);
    if (f->received == f->close_at) {
        cm_mailbox_close(&f->box);
        f->closed = true;
    }
}

static void begin(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(cm_mailbox_init(&f->box, &f->loop, on_mail, f), CM_OK);
}

static bool post(struct fixture *f, unsigned sender, unsigned number)
{
    struct message *message = malloc(sizeof *message);
    *message = (struct message){.sender = sender, .number = number};
    if (cm_mailbox_post(&f->box, &message->mail))
        return true;
    free(message);
    return false;
}

static void test_order(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    for (unsigned i = 0; i < 100; i++)
        assert_true(post(&f, 0, i));
    T_WAIT(&f.loop, f.received == 100);
    assert_true(post(&f, 0, 100));
    cm_mailbox_close(&f.box); /* delivers what is left, at once */
    assert_int_equal(f.received, 101);
    assert_false(post(&f, 0, 101));
    t_loop_finish(&f.loop);
    assert_int_equal(f.received, 101);
}

static void test_close_from_delivery(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    f.close_at = 3;
    for (unsigned i = 0; i < 10; i++)
        assert_true(post(&f, 0, i));
    T_WAIT(&f.loop, f.closed);
    assert_int_equal(f.received, 10); /* all, in order, from inside the third */
    t_loop_finish(&f.loop);
}

struct sender {
    struct fixture *fixture;
    unsigned id;
    unsigned posted;
};

static void send_all(void *arg)
{
    struct sender *sender = arg;
    while (sender->posted < MESSAGES && post(sender->fixture, sender->id, sender->posted))
        sender->posted++;
}

static void run_threads(unsigned close_at)
{
    struct fixture f;
    begin(&f);
    f.close_at = close_at;
    uv_thread_t threads[SENDERS];
    struct sender senders[SENDERS];
    for (unsigned i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.fixture = &f, .id = i};
        assert_int_equal(uv_thread_create(&threads[i], send_all, &senders[i]), 0);
    }
    unsigned all = SENDERS * MESSAGES;
    T_WAIT(&f.loop, close_at ? f.closed : f.received == all);
    unsigned posted = 0;
    for (unsigned i = 0; i < SENDERS; i++) {
        uv_thread_join(&threads[i]);
        posted += senders[i].posted;
    }
    if (!f.closed)
        cm_mailbox_close(&f.box);
    /* What a sender was told is in, came out. */
    assert_int_equal(f.received, posted);
    t_loop_finish(&f.loop);
}

static void test_threads(void **state)
{
    (void)state;
    run_threads(0);
}

static void test_close_while_posting(void **state)
{
    (void)state;
    for (unsigned at = 1; at < 3000; at = at * 3 + 1)
        run_threads(at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_close_from_delivery),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_close_while_posting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
