/* Valid records of every type, for tests that then break them. */
#ifndef TESTS_COMMON_RECORDS_H
#define TESTS_COMMON_RECORDS_H

#include "common/check.h"
#include "common/record.h"

#include <stdalign.h>
#include <string.h>

struct record {
    alignas(8) unsigned char bytes[CM_RECORD_MAX];
    uint32_t length;
    uint8_t type;
};

static inline void record_begin(struct record *record, uint8_t type)
{
    record->type = type;
    record->length = 0;
}

static inline void *record_add(struct record *record, const void *part, size_t size)
{
    CM_ASSERT(size <= sizeof record->bytes - record->length);
    void *at = record->bytes + record->length;
    memcpy(at, part, size);
    record->length += (uint32_t)size;
    return at;
}

static inline void record_add_desc(struct record *record, uint8_t index, int64_t rows)
{
    struct cm_tensor_desc desc = {
        .slice = {.region = 3, .generation = 1, .offset = 256, .length = (uint64_t)rows * 64 * 4},
        .dims = {rows, 64},
        .dtype = CM_FP32,
        .rank = 2,
        .index = index,
    };
    record_add(record, &desc, sizeof desc);
}

static inline void record_submit(struct record *record, unsigned n_inputs)
{
    struct cm_record_submit submit = {.request = 7,
                                      .deadline_ns = 99,
                                      .output_mask = 5,
                                      .rows = 2,
                                      .n_inputs = (uint8_t)n_inputs};
    record_begin(record, CM_RECORD_SUBMIT);
    record_add(record, &submit, sizeof submit);
    for (unsigned i = 0; i < n_inputs; i++)
        record_add_desc(record, (uint8_t)i, 2);
}

static inline void record_execute(struct record *record, unsigned n_items, unsigned n_inputs)
{
    struct cm_record_execute execute = {.batch = 4,
                                        .rows = 2 * n_items,
                                        .n_items = (uint16_t)n_items,
                                        .n_inputs = (uint16_t)n_inputs};
    record_begin(record, CM_RECORD_EXECUTE);
    record_add(record, &execute, sizeof execute);
    for (unsigned i = 0; i < n_items; i++) {
        struct cm_execute_item item = {.output_mask = 1, .gateway = 2, .rows = 2};
        record_add(record, &item, sizeof item);
        for (unsigned k = 0; k < n_inputs; k++)
            record_add_desc(record, (uint8_t)k, 2);
    }
}

static inline void record_done(struct record *record, unsigned n_items, unsigned n_outputs)
{
    struct cm_record_done done = {.batch = 4, .n_items = (uint16_t)n_items};
    record_begin(record, CM_RECORD_DONE);
    record_add(record, &done, sizeof done);
    for (unsigned i = 0; i < n_items; i++) {
        struct cm_done_item item = {.slab = {9, 1, 1}, .n_outputs = (uint16_t)n_outputs};
        if (n_outputs == 0)
            item.status = CM_INTERNAL;
        record_add(record, &item, sizeof item);
        for (unsigned k = 0; k < n_outputs; k++)
            record_add_desc(record, (uint8_t)(2 * k), 1);
    }
}

static inline void record_done_failed(struct record *record, const char *text)
{
    struct cm_record_done done = {
        .batch = 4, .status = CM_INTERNAL, .text_length = (uint16_t)strlen(text)};
    record_begin(record, CM_RECORD_DONE);
    record_add(record, &done, sizeof done);
    record_add(record, text, strlen(text));
}

static inline void record_reply(struct record *record, unsigned n_outputs)
{
    struct cm_record_reply reply = {.request = 7,
                                    .batch_rows = 4,
                                    .batch_items = 2,
                                    .attempts = 1,
                                    .n_outputs = (uint16_t)n_outputs};
    record_begin(record, CM_RECORD_REPLY);
    record_add(record, &reply, sizeof reply);
    for (unsigned k = 0; k < n_outputs; k++)
        record_add_desc(record, (uint8_t)k, 4);
}

static inline void record_reply_failed(struct record *record, const char *text)
{
    struct cm_record_reply reply = {
        .request = 7, .status = CM_CANCELLED, .text_length = (uint16_t)strlen(text)};
    record_begin(record, CM_RECORD_REPLY);
    record_add(record, &reply, sizeof reply);
    record_add(record, text, strlen(text));
}

static inline void record_fixed(struct record *record, uint8_t type, uint32_t length)
{
    record_begin(record, type);
    memset(record->bytes, 0, length);
    record->length = length;
}

#endif
