/* The bus without sockets: what is remembered of requests, and what bytes are a message. */
#include "common/bus_priv.h"

#include "common/check.h"
#include "common/frame.h"
#include "tests/harness/t.h"

#include <stdlib.h>
#include <string.h>

static Ingot__Ipc__Sender make_sender(uint32_t role, uint32_t index)
{
    Ingot__Ipc__Sender sender = INGOT__IPC__SENDER__INIT;
    sender.role = role;
    sender.index = index;
    return sender;
}

/* A packet of its own bytes; what is inside does not matter here. */
static struct cm_bus_packet *make_packet(size_t length)
{
    struct cm_bus_packet *packet = calloc(1, sizeof *packet + length);
    assert_non_null(packet);
    packet->references = 1;
    packet->length = length;
    return packet;
}

static void test_once(void **state)
{
    (void)state;
    struct cm_bus_memory *memory = cm_bus_memory_create();
    struct cm_bus_packet *packet = make_packet(10), *answer = NULL;
    Ingot__Ipc__Sender a = make_sender(2, 0), b = make_sender(2, 1);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 5, &answer), BUS_NEW);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 5, &answer), BUS_WAITING);
    assert_int_equal(cm_bus_memory_ask(memory, &b, 5, &answer), BUS_NEW); /* another sender's 5 */
    cm_bus_memory_answer(memory, &a, 5, packet);
    assert_int_equal(packet->references, 2);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 5, &answer), BUS_KNOWN);
    assert_ptr_equal(answer, packet);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 3, &answer), BUS_NEW); /* late, but not seen */
    cm_bus_memory_answer(memory, &a, 5, packet);  /* twice: the first stays */
    cm_bus_memory_answer(memory, &a, 77, packet); /* nobody asked */
    assert_int_equal(packet->references, 2);
    cm_bus_memory_destroy(memory);
    assert_int_equal(packet->references, 1);
    cm_bus_packet_unref(packet);
    cm_bus_packet_unref(NULL);
    cm_bus_memory_destroy(NULL);
}

static void test_old_is_never_delivered_again(void **state)
{
    (void)state;
    struct cm_bus_memory *memory = cm_bus_memory_create();
    struct cm_bus_packet *answer = NULL;
    Ingot__Ipc__Sender a = make_sender(2, 0);
    for (uint64_t n = 1; n <= 1000; n++)
        assert_int_equal(cm_bus_memory_ask(memory, &a, 2 * n, &answer), BUS_NEW);
    for (uint64_t n = 1; n <= 1000; n++) {
        enum cm_bus_verdict verdict = cm_bus_memory_ask(memory, &a, 2 * n, &answer);
        assert_true(verdict == BUS_OLD || verdict == BUS_WAITING);
    }
    assert_int_equal(cm_bus_memory_ask(memory, &a, 3, &answer), BUS_OLD); /* cannot be told apart */
    assert_int_equal(cm_bus_memory_ask(memory, &a, 1999, &answer), BUS_NEW);
    cm_bus_memory_destroy(memory);
}

static void test_senders_are_limited(void **state)
{
    (void)state;
    struct cm_bus_memory *memory = cm_bus_memory_create();
    struct cm_bus_packet *answer = NULL;
    for (uint32_t i = 0; i < 2000; i++) {
        Ingot__Ipc__Sender tool = make_sender(CM_ROLE_TOOL, i);
        assert_int_equal(cm_bus_memory_ask(memory, &tool, 1, &answer), BUS_NEW);
    }
    Ingot__Ipc__Sender last = make_sender(CM_ROLE_TOOL, 1999);
    assert_int_equal(cm_bus_memory_ask(memory, &last, 1, &answer), BUS_WAITING);
    cm_bus_memory_destroy(memory);
}

/* Answers of megabytes: the oldest are forgotten, and a repeat of theirs is not delivered again. */
static void test_answer_bytes_are_limited(void **state)
{
    (void)state;
    struct cm_bus_memory *memory = cm_bus_memory_create();
    struct cm_bus_packet *packet = make_packet(CM_BUS_MESSAGE_MAX), *answer = NULL;
    Ingot__Ipc__Sender a = make_sender(3, 0);
    for (uint64_t n = 1; n <= 10; n++) {
        assert_int_equal(cm_bus_memory_ask(memory, &a, n, &answer), BUS_NEW);
        cm_bus_memory_answer(memory, &a, n, packet);
    }
    assert_int_equal(packet->references, 1 + 4);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 1, &answer), BUS_OLD);
    assert_int_equal(cm_bus_memory_ask(memory, &a, 10, &answer), BUS_KNOWN);
    cm_bus_memory_destroy(memory);
    cm_bus_packet_unref(packet);
}

static struct cm_bus_packet *pack_hello(void)
{
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Sender sender = make_sender(CM_ROLE_WORKER, 3);
    Ingot__Ipc__Hello hello = INGOT__IPC__HELLO__INIT;
    struct cm_bus_packet *packet = NULL;
    hello.isa = "avx2";
    hello.threads = 2;
    message.sender = &sender;
    message.sequence = 41;
    message.wants_answer = 1;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_HELLO;
    message.hello = &hello;
    assert_int_equal(cm_bus_pack(&message, &packet), CM_OK);
    return packet;
}

static void test_round_trip(void **state)
{
    (void)state;
    struct cm_bus_packet *packet = pack_hello();
    Ingot__Ipc__Envelope *envelope = NULL;
    struct cm_error err;
    assert_true(packet->request);
    assert_int_equal(cm_bus_parse(packet->bytes, packet->length, &err, &envelope), CM_OK);
    assert_int_equal(envelope->sender->role, CM_ROLE_WORKER);
    assert_int_equal(envelope->sequence, 41);
    assert_int_equal(envelope->body_case, INGOT__IPC__ENVELOPE__BODY_HELLO);
    assert_string_equal(envelope->hello->isa, "avx2");
    ingot__ipc__envelope__free_unpacked(envelope, NULL);
    cm_bus_packet_unref(packet);
}

static void test_too_large(void **state)
{
    (void)state;
    Ingot__Ipc__Envelope message = INGOT__IPC__ENVELOPE__INIT;
    Ingot__Ipc__Error error = INGOT__IPC__ERROR__INIT;
    struct cm_bus_packet *packet = NULL;
    char *text = malloc(CM_BUS_MESSAGE_MAX + 1);
    memset(text, 'x', CM_BUS_MESSAGE_MAX);
    text[CM_BUS_MESSAGE_MAX] = '\0';
    error.text = text;
    message.body_case = INGOT__IPC__ENVELOPE__BODY_ERROR;
    message.error = &error;
    assert_int_equal(cm_bus_pack(&message, &packet), CM_LIMIT);
    free(text);
}

/* A frame around any payload. */
static enum cm_err parse_payload(const void *payload, uint32_t length, uint8_t type)
{
    unsigned char *bytes = malloc(sizeof(struct cm_frame) + length);
    struct cm_frame frame;
    struct cm_error err = {0};
    Ingot__Ipc__Envelope *envelope = NULL;
    cm_frame_seal(&frame, type, payload, length, NULL, 0);
    memcpy(bytes, &frame, sizeof frame);
    memcpy(bytes + sizeof frame, payload, length);
    enum cm_err rc = cm_bus_parse(bytes, sizeof frame + length, &err, &envelope);
    if (rc == CM_OK)
        ingot__ipc__envelope__free_unpacked(envelope, NULL);
    else
        assert_true(err.text[0] != '\0' && !envelope);
    free(bytes);
    return rc;
}

static void test_hostile_envelopes(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        uint32_t length;
        enum cm_err rc;
    } cases[] = {
        {"", 0, CM_CORRUPT},                                          /* no sender */
        {"\x0a\x02\x08\x02\x10\x05", 6, CM_OK},                       /* role 2, sequence 5 */
        {"\x0a\x02\x08\x02", 4, CM_CORRUPT},                          /* no sequence */
        {"\x0a\x00\x10\x05", 4, CM_CORRUPT},                          /* role 0 */
        {"\x0a\x02\x08\x06\x10\x05", 6, CM_CORRUPT},                  /* role 6 */
        {"\x0a\x06\x08\xff\xff\xff\xff\x0f\x10\x05", 10, CM_CORRUPT}, /* role 2^32 - 1 */
        {"\x0a\x7f\x08\x02\x10\x05", 6, CM_CORRUPT},                  /* cut short */
        {"\x0a\x02\x08\x02\x10\x05\xaa\x06\x00", 9, CM_OK},           /* unknown body 101 */
        {"\x0a\x02\x08\x02\x10\x05\x5a\x00\x52\x00", 10, CM_OK},      /* error, then ack */
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, CM_CORRUPT},
    };
    for (size_t i = 0; i < CM_COUNT_OF(cases); i++) {
        enum cm_err rc = parse_payload(cases[i].bytes, cases[i].length, CM_FRAME_CONTROL);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %s", i, cm_err_name(rc));
    }
    assert_int_equal(parse_payload("\x0a\x02\x08\x02\x10\x05", 6, 1), CM_CORRUPT); /* frame type */
}

/* Two million empty ledger entries in 4 MiB would be 200 MB of structs. */
static void test_small_messages_that_grow_large(void **state)
{
    (void)state;
    const uint32_t count = 2000000;
    uint32_t inside = 2 * count, length = 0;
    unsigned char *payload = malloc(inside + 32);
    memcpy(payload, "\x0a\x02\x08\x02\x10\x05\x9a\x01", 8); /* sender, sequence, ledger */
    length = 8;
    for (uint32_t rest = inside; rest > 0; rest >>= 7)
        payload[length++] = (unsigned char)((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
    for (uint32_t i = 0; i < count; i++) {
        payload[length++] = 0x2a; /* entries, empty */
        payload[length++] = 0;
    }
    assert_int_equal(parse_payload(payload, length, CM_FRAME_CONTROL), CM_CORRUPT);
    free(payload);
}

static void test_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    struct cm_bus_packet *packet = pack_hello();
    for (size_t bit = 0; bit < 8 * packet->length; bit++) {
        struct cm_error err;
        Ingot__Ipc__Envelope *envelope = NULL;
        packet->bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        enum cm_err rc = cm_bus_parse(packet->bytes, packet->length, &err, &envelope);
        assert_int_equal(rc, bit / 8 == 4 ? CM_UNSUPPORTED : CM_CORRUPT);
        packet->bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t length = 0; length < packet->length; length++) {
        struct cm_error err;
        Ingot__Ipc__Envelope *envelope = NULL;
        assert_int_equal(cm_bus_parse(packet->bytes, length, &err, &envelope), CM_CORRUPT);
    }
    cm_bus_packet_unref(packet);
}

/* Damage behind a correct crc: protobuf's parser and our checks are alone. */
static void test_fuzz(void **state)
{
    (void)state;
    struct cm_bus_packet *packet = pack_hello();
    uint32_t length = (uint32_t)(packet->length - sizeof(struct cm_frame));
    const unsigned char *valid = packet->bytes + sizeof(struct cm_frame);
    uint64_t seed = 4711;
    unsigned passed = 0;
    for (int round = 0; round < 100000; round++) {
        unsigned char payload[128];
        uint32_t n = length;
        assert_true(length <= sizeof payload);
        memcpy(payload, valid, length);
        uint64_t x = t_random(&seed);
        for (unsigned k = x % 4; k > 0; k--) {
            uint64_t y = t_random(&seed);
            payload[y % length] = (unsigned char)(y / 256);
        }
        if (x / 4 % 4 == 0)
            n = (uint32_t)(x / 16 % (length + 1));
        enum cm_err rc = parse_payload(payload, n, CM_FRAME_CONTROL);
        assert_true(rc == CM_OK || rc == CM_CORRUPT);
        passed += rc == CM_OK;
    }
    assert_true(passed > 1000);
    for (int round = 0; round < 100000; round++) {
        unsigned char payload[64];
        uint64_t x = t_random(&seed);
        uint32_t n = (uint32_t)(x % sizeof payload);
        for (uint32_t i = 0; i < n; i++)
            payload[i] = (unsigned char)t_random(&seed);
        enum cm_err rc = parse_payload(payload, n, CM_FRAME_CONTROL);
        assert_true(rc == CM_OK || rc == CM_CORRUPT);
    }
    cm_bus_packet_unref(packet);
}

static void test_paths(void **state)
{
    (void)state;
    char path[BUS_PATH_MAX], dir[200];
    assert_true(cm_bus_path("/run/ingot", CM_ROLE_WORKER, 3, path));
    assert_string_equal(path, "/run/ingot/bus/worker-3.ipc");
    memset(dir, 'd', sizeof dir);
    for (size_t length = 0; length < sizeof dir; length++) {
        dir[length] = '\0';
        bool fits = length + strlen("/bus/worker-4294967295.ipc") < BUS_PATH_MAX;
        assert_true(cm_bus_path(dir, CM_ROLE_WORKER, UINT32_MAX, path) == fits);
        dir[length] = 'd';
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_old_is_never_delivered_again),
        cmocka_unit_test(test_senders_are_limited),
        cmocka_unit_test(test_answer_bytes_are_limited),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_hostile_envelopes),
        cmocka_unit_test(test_small_messages_that_grow_large),
        cmocka_unit_test(test_every_flipped_bit_is_refused),
        cmocka_unit_test(test_fuzz),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
