/* Data-plane records: what travels in the rings between gateway, scheduler and workers.
 *
 *   gateway -> scheduler   SUBMIT, CANCEL, RELEASE, HELD, RESUMED
 *   scheduler -> gateway   REPLY
 *   scheduler -> worker    EXECUTE, ABANDON, RELEASE, DROP, HELD, RESUMED
 *   worker -> scheduler    DONE
 *
 * Fixed layout, little endian, offsets and indices only. A record is read from a private copy and
 * then checked by its cm_record_check_x function before any field is used: a peer's record is
 * hostile input. Sizes are bounded so that every record fits CM_RECORD_MAX. Any thread. */
#ifndef COMMON_RECORD_H
#define COMMON_RECORD_H

#include "common/err.h"
#include "common/frame.h"
#include "common/tensor.h"

#include <stdint.h>

#define CM_RECORD_MAX      (256u * 1024u) /* payload bytes of one record */
#define CM_MAX_TENSORS     16u            /* inputs, and outputs, of one request */
#define CM_MAX_BATCH_ITEMS 128u           /* requests in one batch */
#define CM_MAX_TEXT        256u           /* bytes of an error sentence, without a terminator */

enum cm_record_type {
    CM_RECORD_SUBMIT = 1,
    CM_RECORD_CANCEL = 2,
    CM_RECORD_EXECUTE = 3,
    CM_RECORD_DONE = 4,
    CM_RECORD_REPLY = 5,
    CM_RECORD_RELEASE = 6,
    CM_RECORD_DROP = 7,
    CM_RECORD_HELD = 8,
    CM_RECORD_RESUMED = 9,
    CM_RECORD_ABANDON = 10,
};

/* Bytes in a lease: region is memmgr's number for the lease's memfd (never reused), generation
 * counts its grants, offset and length lie inside it. */
struct cm_slice_ref {
    uint64_t region;
    uint32_t generation;
    uint32_t reserved; /* zero */
    uint64_t offset;
    uint64_t length;
};
_Static_assert(sizeof(struct cm_slice_ref) == 32, "slice reference is 32 bytes");

/* A tensor in a slice. slice.length equals the shape's bytes. */
struct cm_tensor_desc {
    struct cm_slice_ref slice;
    int64_t dims[CM_MAX_RANK];
    uint8_t dtype; /* enum cm_dtype */
    uint8_t rank;
    uint8_t index; /* position in the model's list of inputs or outputs */
    uint8_t reserved[5];
};
_Static_assert(sizeof(struct cm_tensor_desc) == 104, "tensor descriptor is 104 bytes");

/* A model as the scheduler numbers it in its model table; valid for one scheduler's life. */
struct cm_model_ref {
    uint32_t id;
    uint32_t generation;
};

/* SUBMIT: one request. Followed by n_inputs tensor descriptors, in the model's input order. */
struct cm_record_submit {
    struct cm_trace trace;
    uint64_t request;     /* the gateway's handle, echoed in REPLY */
    uint64_t deadline_ns; /* CM_NEVER if none */
    uint64_t received_ns; /* when the gateway had the call's bytes */
    uint64_t output_mask; /* bit i: output i is wanted; 0 is refused */
    struct cm_model_ref model;
    uint32_t rows;    /* first dimension of every input if the model batches, else 1 */
    uint8_t priority; /* 1 highest .. 255 lowest; 0 = the default, 128 */
    uint8_t n_inputs;
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct cm_record_submit) == 64, "submit is 64 bytes and its tensors");

/* CANCEL: the client is gone or late. The scheduler answers with REPLY all the same (CM_CANCELLED,
 * or the result if it was first): each SUBMIT has exactly one REPLY, after which no process touches
 * the request's inputs. */
struct cm_record_cancel {
    uint64_t request;
};

/* EXECUTE: one batch. Followed by n_items times {struct cm_execute_item, n_inputs descriptors}. */
struct cm_record_execute {
    uint64_t batch;       /* the scheduler's handle, echoed in DONE */
    uint64_t deadline_ns; /* the latest of the items' deadlines: after it nobody wants the result */
    struct cm_model_ref model;
    uint32_t rows; /* sum of the items' rows */
    uint16_t n_items;
    uint16_t n_inputs;
};
_Static_assert(sizeof(struct cm_record_execute) == 32, "execute is 32 bytes and its items");

struct cm_execute_item {
    struct cm_trace trace;
    uint64_t output_mask;
    uint64_t gateway; /* instance of the gateway that will hold the outputs */
    uint32_t rows;
    uint32_t reserved;
};
_Static_assert(sizeof(struct cm_execute_item) == 40, "execute item is 40 bytes");

/* ABANDON: nobody wants this item of a batch any more. A worker that has not begun the batch leaves
 * the item out (its DONE item, or the whole DONE if nothing is left, says CM_CANCELLED); one that
 * has begun it ignores the record. Batches and items that it does not know are ignored. */
struct cm_record_abandon {
    uint64_t batch;
    uint32_t item; /* position in EXECUTE */
    uint32_t reserved;
};
_Static_assert(sizeof(struct cm_record_abandon) == 16, "abandon is 16 bytes");

/* Where one request's outputs are kept: a worker's slab, counted down by RELEASE. */
struct cm_slab_ref {
    uint64_t worker; /* instance */
    uint32_t slab;
    uint32_t generation;
};
_Static_assert(sizeof(struct cm_slab_ref) == 16, "slab reference is 16 bytes");

/* DONE: a batch has ended. status CM_OK: followed by n_items times {struct cm_done_item, n_outputs
 * of the item descriptors}, in EXECUTE's order. Otherwise n_items is 0 and text_length bytes of a
 * sentence follow: every request of the batch failed with that status. */
struct cm_record_done {
    uint64_t batch;
    uint64_t received_ns; /* the worker read EXECUTE */
    uint64_t started_ns;  /* inputs gathered, kernels start */
    uint64_t finished_ns; /* kernels done */
    uint32_t status;      /* enum cm_err */
    uint16_t n_items;
    uint16_t text_length;
};
_Static_assert(sizeof(struct cm_record_done) == 40, "done is 40 bytes and its items");

/* n_outputs descriptors follow, those of the item's output_mask in order. All of one item's slices
 * belong to slab; one RELEASE lets go of the item. n_outputs 0 and a non-zero status: this item
 * alone failed (no slab). */
struct cm_done_item {
    struct cm_slab_ref slab;
    uint32_t status; /* enum cm_err */
    uint16_t n_outputs;
    uint16_t reserved;
};
_Static_assert(sizeof(struct cm_done_item) == 24, "done item is 24 bytes");

/* The life of a request as REPLY tells it; 0 where a stage was not reached. */
struct cm_stage_times {
    uint64_t received_ns;   /* gateway had the bytes (echoed) */
    uint64_t queued_ns;     /* scheduler read SUBMIT */
    uint64_t dispatched_ns; /* its batch was sent to a worker */
    uint64_t accepted_ns;   /* worker read EXECUTE */
    uint64_t started_ns;    /* kernels start */
    uint64_t finished_ns;   /* kernels done */
    uint64_t replied_ns;    /* scheduler sent REPLY */
};

/* REPLY: the one answer to a SUBMIT. status CM_OK: n_outputs descriptors follow, and the gateway
 * owes one RELEASE of slab. Otherwise text_length bytes of a sentence for the client. */
struct cm_record_reply {
    struct cm_trace trace;
    uint64_t request;
    struct cm_stage_times times;
    struct cm_slab_ref slab;
    uint32_t status;      /* enum cm_err */
    uint32_t batch_rows;  /* rows of the batch it rode in */
    uint16_t batch_items; /* requests of that batch */
    uint16_t attempts;    /* dispatches, 1 normally */
    uint16_t n_outputs;
    uint16_t text_length;
};
_Static_assert(sizeof(struct cm_record_reply) == 112, "reply is 112 bytes and its tensors");

/* RELEASE: the gateway has sent (or dropped) one request's outputs. The scheduler passes it to the
 * worker of that instance, or drops it if that worker is gone. Stale references are ignored and
 * counted. */
struct cm_record_release {
    struct cm_slab_ref slab;
};

/* DROP: the gateway of this instance is gone: the worker lets go of every item that it holds. */
struct cm_record_drop {
    uint64_t gateway;
};

/* HELD: after a scheduler's death the gateway tells the new one, first thing on the new channel,
 * which outputs it still holds; the scheduler passes each to its worker. RESUMED ends the list, and
 * goes to every worker: it then frees what it produced under the old scheduler for this gateway, or
 * for gateways that no longer live, and is not held. */
struct cm_record_held {
    struct cm_slab_ref slab;
};

struct cm_record_resumed {
    uint64_t gateway; /* the sender's instance */
};

/* Checks of a private copy of a payload: length against the counts, counts against the limits,
 * reserved fields zero, dtypes, ranks and dimensions, slice.length equal to the shape's bytes, no
 * overflow of offset + length. CM_CORRUPT with a sentence otherwise. Whether a slice lies inside
 * its lease is for whoever maps the lease. */
CM_MUST_CHECK enum cm_err cm_record_check(uint8_t type, const void *payload, uint32_t length,
                                          struct cm_error *err);

/* Walks the parts of checked records. */
const struct cm_tensor_desc *cm_submit_inputs(const struct cm_record_submit *submit);
/* Item 0, and the item after item (its descriptors follow it). */
const struct cm_execute_item *cm_execute_first(const struct cm_record_execute *execute);
const struct cm_execute_item *cm_execute_next(const struct cm_record_execute *execute,
                                              const struct cm_execute_item *item);
const struct cm_tensor_desc *cm_execute_inputs(const struct cm_execute_item *item);
const struct cm_done_item *cm_done_first(const struct cm_record_done *done);
const struct cm_done_item *cm_done_next(const struct cm_done_item *item);
const struct cm_tensor_desc *cm_done_outputs(const struct cm_done_item *item);
const char *cm_done_text(const struct cm_record_done *done);
const struct cm_tensor_desc *cm_reply_outputs(const struct cm_record_reply *reply);
const char *cm_reply_text(const struct cm_record_reply *reply);

/* The shape of a checked descriptor. */
struct cm_shape cm_desc_shape(const struct cm_tensor_desc *desc);

#endif
