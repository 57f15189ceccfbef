/* Checks and walks of data-plane records. Pure functions, any thread.
 *
 * cm_record_check decides whether bytes from a peer are a record at all; everything after it (the
 * walks below, and the owners of the records) may then trust counts, limits and lengths. It reads a
 * private copy only: a field that the peer could still change would be checked for nothing. */
#include "common/record.h"

#include "common/check.h"

/* Bits of an output mask that can name an output. */
#define OUTPUT_BITS ((1ull << CM_MAX_TENSORS) - 1)

/* The part of a payload that is not yet accounted for. */
struct cursor {
    const unsigned char *next;
    uint32_t left;
};

/* The next size bytes, or NULL if they are not there. */
static const void *cursor_take(struct cursor *cursor, size_t size)
{
    if (size > cursor->left)
        return NULL;
    const void *part = cursor->next;
    cursor->next += size;
    cursor->left -= (uint32_t)size;
    return part;
}

static enum cm_err too_short(struct cm_error *err, const char *what)
{
    return cm_fail(err, CM_CORRUPT, "record ends before its %s", what);
}

static enum cm_err check_desc(const struct cm_tensor_desc *desc, struct cm_error *err)
{
    for (unsigned i = 0; i < CM_COUNT_OF(desc->reserved); i++)
        if (desc->reserved[i] != 0)
            return cm_fail(err, CM_CORRUPT, "tensor descriptor has reserved bytes set");
    if (desc->slice.reserved != 0)
        return cm_fail(err, CM_CORRUPT, "slice reference has reserved bytes set");
    if (desc->rank > CM_MAX_RANK)
        return cm_fail(err, CM_CORRUPT, "tensor rank is %u, at most %u is allowed", desc->rank,
                       CM_MAX_RANK);
    if (desc->index >= CM_MAX_TENSORS)
        return cm_fail(err, CM_CORRUPT, "tensor index is %u, it must be below %u", desc->index,
                       CM_MAX_TENSORS);
    struct cm_shape shape = cm_desc_shape(desc);
    size_t bytes = 0;
    if (cm_shape_bytes(&shape, desc->dtype, &bytes) != CM_OK)
        return cm_fail(err, CM_CORRUPT, "tensor has an impossible dtype (%u) or shape",
                       desc->dtype);
    if (desc->slice.length != bytes)
        return cm_fail(err, CM_CORRUPT, "tensor's slice has %llu bytes, its shape %zu",
                       (unsigned long long)desc->slice.length, bytes);
    uint64_t end;
    if (__builtin_add_overflow(desc->slice.offset, desc->slice.length, &end))
        return cm_fail(err, CM_CORRUPT, "slice ends beyond 64 bits");
    return CM_OK;
}

/* count descriptors with growing index, which is both "in the model's order" and "none twice". */
static enum cm_err check_descs(struct cursor *cursor, unsigned count, struct cm_error *err)
{
    int last = -1;
    for (unsigned i = 0; i < count; i++) {
        const struct cm_tensor_desc *desc = cursor_take(cursor, sizeof *desc);
        if (!desc)
            return too_short(err, "tensor descriptors");
        enum cm_err rc = check_desc(desc, err);
        if (rc != CM_OK)
            return rc;
        if (desc->index <= last)
            return cm_fail(err, CM_CORRUPT, "tensor index %u comes after %d", desc->index, last);
        last = desc->index;
    }
    return CM_OK;
}

static enum cm_err check_mask(uint64_t output_mask, struct cm_error *err)
{
    if (output_mask == 0 || (output_mask & ~OUTPUT_BITS) != 0)
        return cm_fail(err, CM_CORRUPT, "output mask is 0x%llx", (unsigned long long)output_mask);
    return CM_OK;
}

static enum cm_err check_status(uint32_t status, struct cm_error *err)
{
    switch (status) {
#define X(name, number, text) case number:
        CM_ERR_MAP(X)
#undef X
        return CM_OK;
    default:
        return cm_fail(err, CM_CORRUPT, "status %u is not an error code", status);
    }
}

static enum cm_err check_submit(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_record_submit *submit = cursor_take(cursor, sizeof *submit);
    if (!submit)
        return too_short(err, "fixed part");
    if (submit->reserved[0] != 0 || submit->reserved[1] != 0)
        return cm_fail(err, CM_CORRUPT, "submit has reserved bytes set");
    if (submit->n_inputs > CM_MAX_TENSORS)
        return cm_fail(err, CM_CORRUPT, "submit has %u inputs, at most %u are allowed",
                       submit->n_inputs, CM_MAX_TENSORS);
    if (submit->rows == 0)
        return cm_fail(err, CM_CORRUPT, "submit has no rows");
    enum cm_err rc = check_mask(submit->output_mask, err);
    return rc != CM_OK ? rc : check_descs(cursor, submit->n_inputs, err);
}

static enum cm_err check_execute(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_record_execute *execute = cursor_take(cursor, sizeof *execute);
    if (!execute)
        return too_short(err, "fixed part");
    if (execute->n_items == 0 || execute->n_items > CM_MAX_BATCH_ITEMS)
        return cm_fail(err, CM_CORRUPT, "execute has %u items, it must be 1 to %u",
                       execute->n_items, CM_MAX_BATCH_ITEMS);
    if (execute->n_inputs > CM_MAX_TENSORS)
        return cm_fail(err, CM_CORRUPT, "execute has %u inputs, at most %u are allowed",
                       execute->n_inputs, CM_MAX_TENSORS);
    uint64_t rows = 0; /* 128 items of 32 bits cannot wrap it */
    for (unsigned i = 0; i < execute->n_items; i++) {
        const struct cm_execute_item *item = cursor_take(cursor, sizeof *item);
        if (!item)
            return too_short(err, "items");
        if (item->reserved != 0)
            return cm_fail(err, CM_CORRUPT, "execute item has reserved bytes set");
        if (item->rows == 0)
            return cm_fail(err, CM_CORRUPT, "execute item has no rows");
        rows += item->rows;
        enum cm_err rc = check_mask(item->output_mask, err);
        if (rc == CM_OK)
            rc = check_descs(cursor, execute->n_inputs, err);
        if (rc != CM_OK)
            return rc;
    }
    if (rows != execute->rows)
        return cm_fail(err, CM_CORRUPT, "execute says %u rows, its items have %llu", execute->rows,
                       (unsigned long long)rows);
    return CM_OK;
}

static enum cm_err check_done_item(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_done_item *item = cursor_take(cursor, sizeof *item);
    if (!item)
        return too_short(err, "items");
    if (item->reserved != 0)
        return cm_fail(err, CM_CORRUPT, "done item has reserved bytes set");
    if (item->n_outputs > CM_MAX_TENSORS || (item->status == CM_OK) != (item->n_outputs > 0))
        return cm_fail(err, CM_CORRUPT, "done item with status %u has %u outputs", item->status,
                       item->n_outputs);
    enum cm_err rc = check_status(item->status, err);
    return rc != CM_OK ? rc : check_descs(cursor, item->n_outputs, err);
}

/* The sentence of a failure, or none of a success. */
static enum cm_err check_text(struct cursor *cursor, uint32_t status, uint16_t length,
                              struct cm_error *err)
{
    if (length > CM_MAX_TEXT || (status == CM_OK && length != 0))
        return cm_fail(err, CM_CORRUPT, "status %u with a text of %u bytes", status, length);
    if (!cursor_take(cursor, length))
        return too_short(err, "text");
    return CM_OK;
}

static enum cm_err check_done(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_record_done *done = cursor_take(cursor, sizeof *done);
    if (!done)
        return too_short(err, "fixed part");
    enum cm_err rc = check_status(done->status, err);
    if (rc != CM_OK)
        return rc;
    if (done->n_items > CM_MAX_BATCH_ITEMS || (done->status == CM_OK) != (done->n_items > 0))
        return cm_fail(err, CM_CORRUPT, "done with status %u has %u items", done->status,
                       done->n_items);
    for (unsigned i = 0; i < done->n_items && rc == CM_OK; i++)
        rc = check_done_item(cursor, err);
    return rc != CM_OK ? rc : check_text(cursor, done->status, done->text_length, err);
}

static enum cm_err check_reply(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_record_reply *reply = cursor_take(cursor, sizeof *reply);
    if (!reply)
        return too_short(err, "fixed part");
    enum cm_err rc = check_status(reply->status, err);
    if (rc != CM_OK)
        return rc;
    if (reply->n_outputs > CM_MAX_TENSORS || (reply->status == CM_OK) != (reply->n_outputs > 0))
        return cm_fail(err, CM_CORRUPT, "reply with status %u has %u outputs", reply->status,
                       reply->n_outputs);
    rc = check_descs(cursor, reply->n_outputs, err);
    return rc != CM_OK ? rc : check_text(cursor, reply->status, reply->text_length, err);
}

static enum cm_err check_fixed(struct cursor *cursor, size_t size, struct cm_error *err)
{
    return cursor_take(cursor, size) ? CM_OK : too_short(err, "fixed part");
}

static enum cm_err check_abandon(struct cursor *cursor, struct cm_error *err)
{
    const struct cm_record_abandon *abandon = cursor_take(cursor, sizeof *abandon);
    if (!abandon)
        return too_short(err, "fixed part");
    if (abandon->reserved != 0)
        return cm_fail(err, CM_CORRUPT, "ABANDON: reserved field is not zero");
    return CM_OK;
}

static enum cm_err check_body(uint8_t type, struct cursor *cursor, struct cm_error *err)
{
    switch ((enum cm_record_type)type) {
    case CM_RECORD_SUBMIT:
        return check_submit(cursor, err);
    case CM_RECORD_CANCEL:
        return check_fixed(cursor, sizeof(struct cm_record_cancel), err);
    case CM_RECORD_EXECUTE:
        return check_execute(cursor, err);
    case CM_RECORD_DONE:
        return check_done(cursor, err);
    case CM_RECORD_REPLY:
        return check_reply(cursor, err);
    case CM_RECORD_RELEASE:
        return check_fixed(cursor, sizeof(struct cm_record_release), err);
    case CM_RECORD_DROP:
        return check_fixed(cursor, sizeof(struct cm_record_drop), err);
    case CM_RECORD_HELD:
        return check_fixed(cursor, sizeof(struct cm_record_held), err);
    case CM_RECORD_RESUMED:
        return check_fixed(cursor, sizeof(struct cm_record_resumed), err);
    case CM_RECORD_ABANDON:
        return check_abandon(cursor, err);
    }
    return cm_fail(err, CM_CORRUPT, "record type %u is unknown", type);
}

enum cm_err cm_record_check(uint8_t type, const void *payload, uint32_t length,
                            struct cm_error *err)
{
    /* Alignment is the caller's buffer, not the peer's doing. */
    CM_ASSERT((uintptr_t)payload % _Alignof(uint64_t) == 0);
    struct cursor cursor = {payload, length};
    enum cm_err rc = check_body(type, &cursor, err);
    if (rc == CM_OK && cursor.left != 0)
        rc = cm_fail(err, CM_CORRUPT, "record of type %u has %u bytes too many", type, cursor.left);
    return rc;
}

const struct cm_tensor_desc *cm_submit_inputs(const struct cm_record_submit *submit)
{
    return (const void *)(submit + 1);
}

const struct cm_execute_item *cm_execute_first(const struct cm_record_execute *execute)
{
    return (const void *)(execute + 1);
}

const struct cm_execute_item *cm_execute_next(const struct cm_record_execute *execute,
                                              const struct cm_execute_item *item)
{
    return (const void *)(cm_execute_inputs(item) + execute->n_inputs);
}

const struct cm_tensor_desc *cm_execute_inputs(const struct cm_execute_item *item)
{
    return (const void *)(item + 1);
}

const struct cm_done_item *cm_done_first(const struct cm_record_done *done)
{
    return (const void *)(done + 1);
}

const struct cm_done_item *cm_done_next(const struct cm_done_item *item)
{
    return (const void *)(cm_done_outputs(item) + item->n_outputs);
}

const struct cm_tensor_desc *cm_done_outputs(const struct cm_done_item *item)
{
    return (const void *)(item + 1);
}

const char *cm_done_text(const struct cm_record_done *done)
{
    return (const char *)(done + 1); /* a text comes with no items */
}

const struct cm_tensor_desc *cm_reply_outputs(const struct cm_record_reply *reply)
{
    return (const void *)(reply + 1);
}

const char *cm_reply_text(const struct cm_record_reply *reply)
{
    return (const char *)(reply + 1); /* a text comes with no outputs */
}

struct cm_shape cm_desc_shape(const struct cm_tensor_desc *desc)
{
    struct cm_shape shape = {.rank = desc->rank};
    for (unsigned i = 0; i < desc->rank && i < CM_MAX_RANK; i++)
        shape.dims[i] = desc->dims[i];
    return shape;
}
