/* Infer requests and answers between protobuf's wire format and shared memory.
 *
 * A request is parsed into views and bookmarks of the received bytes, checked against the model's
 * signature, and only then copied: once, from where gRPC left it to where the worker reads it. An
 * answer's header is written by hand around the tensors' bytes. Both public services share all of
 * it; they differ in field numbers. Pure: no I/O, no clock, no allocation; any thread. */
#ifndef GATEWAY_CODEC_H
#define GATEWAY_CODEC_H

#include "common/record.h"
#include "common/tensor.h"
#include "gateway/models.h"
#include "gateway/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tensors are aligned so inside a request's block. */
#define GW_TENSOR_ALIGN 128u

/* Bytes of all strings of a request that arrived in pieces and had to be joined. */
#define GW_SCRATCH_BYTES 8192u

#define GW_ID_MAX 256u /* bytes of a request's own id */

struct gw_text {
    const char *data; /* not terminated; valid UTF-8 */
    size_t length;
};

enum gw_contents { GW_CONTENTS_NONE, GW_CONTENTS_RAW, GW_CONTENTS_TYPED };

struct gw_input {
    struct gw_text name;
    struct gw_text datatype;
    struct cm_shape shape;
    enum gw_contents contents;
    struct gw_wire data; /* RAW: the bytes; TYPED: an InferTensorContents */
};

/* A parsed request: borrows the message's bytes, and its own scratch (do not move it). */
struct gw_request {
    struct gw_text model, version;
    struct gw_text id;   /* Open Inference Protocol */
    uint64_t timeout_us; /* Open Inference Protocol's parameter; 0 = none */
    uint8_t priority;    /* the same; 0 = default */
    uint32_t n_inputs;   /* valid entries of inputs */
    uint32_t n_outputs;  /* valid entries of outputs; 0 = all */
    uint32_t n_raw;      /* raw_input_contents seen */
    struct gw_input inputs[CM_MAX_TENSORS];
    struct gw_text outputs[CM_MAX_TENSORS];
    struct gw_wire raw[CM_MAX_TENSORS];
    size_t scratch_used;
    char scratch[GW_SCRATCH_BYTES];
};

/* Parse an ingot.v1.InferRequest, and an inference.ModelInferRequest. CM_INVALID with the field's
 * path for whatever is wrong with it, CM_UNSUPPORTED for what the protocol has and we do not. On
 * failure model, version and id hold what was read. */
CM_MUST_CHECK enum cm_err gw_parse_ingot(struct gw_wire message, struct gw_request *ret_request,
                                         struct cm_error *err);
CM_MUST_CHECK enum cm_err gw_parse_oip(struct gw_wire message, struct gw_request *ret_request,
                                       struct cm_error *err);

/* A request that fits its model: where each of the model's inputs goes. */
struct gw_plan {
    size_t bytes; /* of one block for all inputs */
    uint32_t rows;
    uint64_t output_mask;
    uint8_t n_inputs, n_outputs;
    uint8_t source[CM_MAX_TENSORS]; /* by model input: index in request.inputs */
    size_t offset[CM_MAX_TENSORS];  /* by model input: in the block */
    size_t length[CM_MAX_TENSORS];
    uint8_t order[CM_MAX_TENSORS]; /* the answer's outputs, as indices of the model's */
};

/* Names, datatypes, shapes, sizes and rows against the signature. CM_INVALID. Nothing is allocated
 * or copied before this has said yes. */
CM_MUST_CHECK enum cm_err gw_request_check(const struct gw_request *request,
                                           const struct gw_model *model, struct cm_error *err,
                                           struct gw_plan *ret_plan);

/* Copies (raw) or converts (typed) all tensors into block, plan->bytes large. CM_INVALID for typed
 * values that do not fit their datatype or count. */
CM_MUST_CHECK enum cm_err gw_request_copy(const struct gw_request *request,
                                          const struct gw_model *model, const struct gw_plan *plan,
                                          unsigned char *block, struct cm_error *err);

/* Converts one InferTensorContents to count little-endian elements at target. field is for the
 * message only. */
CM_MUST_CHECK enum cm_err gw_typed_copy(struct gw_wire contents, enum cm_dtype dtype, size_t count,
                                        void *target, const char *field, struct cm_error *err);

/* One output of an answer. data: length bytes; NULL if the caller sends them itself. */
struct gw_output {
    const struct gw_tensor_info *info;
    struct cm_shape shape;
    size_t length;
};

struct gw_stats {
    uint32_t batch_rows, batch_requests, worker, attempts;
    double decode_us, submit_us, queue_us, dispatch_us, gather_us, execute_us, return_us, total_us;
    char trace_id[17];
};

/* The answer's bytes come out as header pieces: piece[0], data of output 0, piece[1], data of
 * output 1, ..., piece[n]. (The Open Inference Protocol: all outputs' descriptions are in
 * piece[0].) */
struct gw_answer {
    size_t n_pieces;                 /* outputs + 1 */
    size_t ends[CM_MAX_TENSORS + 1]; /* piece i is header.data[ends[i-1] .. ends[i]) */
    struct gw_put header;
};

#define GW_ANSWER_HEADER_MAX 16384u

/* put.header must have memory; id is the Open Inference Protocol's. False: the header did not fit.
 */
CM_MUST_CHECK bool gw_answer_ingot(const struct gw_model *model, const struct gw_output *outputs,
                                   uint32_t n_outputs, const struct gw_stats *stats,
                                   struct gw_answer *answer);
CM_MUST_CHECK bool gw_answer_oip(const struct gw_model *model, const struct gw_output *outputs,
                                 uint32_t n_outputs, struct gw_text id,
                                 const struct gw_stats *stats, struct gw_answer *answer);

/* InferStats on the wire, for the trailing metadata. */
void gw_put_stats(struct gw_put *put, const struct gw_stats *stats);

#endif
