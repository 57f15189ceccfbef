/* Answers of the infer calls on the wire: header pieces around the tensors' bytes. Pure; any
 * thread. */
#include "gateway/codec.h"

#include "common/check.h"

#include <string.h>

/* A repeated int64, packed. */
static void put_shape(struct gw_put *put, uint32_t field, const struct cm_shape *shape)
{
    if (shape->rank == 0)
        return;
    size_t bytes = 0;
    for (unsigned i = 0; i < shape->rank; i++)
        bytes += gw_varint_size((uint64_t)shape->dims[i]);
    gw_put_head(put, field, bytes);
    for (unsigned i = 0; i < shape->rank; i++)
        gw_put_varint(put, (uint64_t)shape->dims[i]);
}

/* Name, datatype, shape: the same field numbers in both services. */
static void put_description(struct gw_put *put, const struct gw_output *output)
{
    gw_put_text(put, 1, output->info->name);
    gw_put_text(put, 2, cm_dtype_name(output->info->dtype));
    put_shape(put, 3, &output->shape);
}

static size_t description_size(const struct gw_output *output)
{
    struct gw_put measure = {NULL, 0, 0};
    put_description(&measure, output);
    return measure.length;
}

void gw_put_stats(struct gw_put *put, const struct gw_stats *stats)
{
    gw_put_uint(put, 1, stats->batch_rows);
    gw_put_uint(put, 2, stats->batch_requests);
    gw_put_uint(put, 3, stats->worker);
    gw_put_uint(put, 4, stats->attempts);
    gw_put_double(put, 5, stats->decode_us);
    gw_put_double(put, 6, stats->submit_us);
    gw_put_double(put, 7, stats->queue_us);
    gw_put_double(put, 8, stats->dispatch_us);
    gw_put_double(put, 9, stats->gather_us);
    gw_put_double(put, 10, stats->execute_us);
    gw_put_double(put, 11, stats->return_us);
    gw_put_double(put, 12, stats->total_us);
    gw_put_text(put, 13, stats->trace_id);
}

static void end_piece(struct gw_answer *answer)
{
    CM_ASSERT(answer->n_pieces <= CM_MAX_TENSORS);
    answer->ends[answer->n_pieces++] = answer->header.length;
}

bool gw_answer_ingot(const struct gw_model *model, const struct gw_output *outputs,
                     uint32_t n_outputs, const struct gw_stats *stats, struct gw_answer *answer)
{
    struct gw_put *put = &answer->header;
    put->length = 0;
    answer->n_pieces = 0;
    gw_put_text(put, 1, model->name);
    gw_put_text(put, 2, model->version_text);
    for (uint32_t i = 0; i < n_outputs; i++) {
        size_t data = outputs[i].length;
        gw_put_head(put, 3, description_size(&outputs[i]) + 1 + gw_varint_size(data) + data);
        put_description(put, &outputs[i]);
        gw_put_head(put, 4, data);
        end_piece(answer);
    }
    struct gw_put measure = {NULL, 0, 0};
    gw_put_stats(&measure, stats);
    gw_put_head(put, 4, measure.length);
    gw_put_stats(put, stats);
    end_piece(answer);
    return put->length <= put->capacity;
}

/* An entry of map<string, InferParameter> with an int64. */
static void put_parameter(struct gw_put *put, const char *key, uint64_t value)
{
    size_t parameter = 1 + gw_varint_size(value);
    gw_put_head(put, 4, 2 + strlen(key) + 2 + parameter);
    gw_put_text(put, 1, key);
    gw_put_head(put, 2, parameter);
    gw_put_uint(put, 2, value);
}

bool gw_answer_oip(const struct gw_model *model, const struct gw_output *outputs,
                   uint32_t n_outputs, struct gw_text id, const struct gw_stats *stats,
                   struct gw_answer *answer)
{
    struct gw_put *put = &answer->header;
    put->length = 0;
    answer->n_pieces = 0;
    gw_put_text(put, 1, model->name);
    gw_put_text(put, 2, model->version_text);
    if (id.length > 0)
        gw_put_bytes(put, 3, id.data, id.length);
    put_parameter(put, "ingot_batch_rows", stats->batch_rows);
    put_parameter(put, "ingot_batch_requests", stats->batch_requests);
    for (uint32_t i = 0; i < n_outputs; i++) {
        gw_put_head(put, 5, description_size(&outputs[i]));
        put_description(put, &outputs[i]);
    }
    for (uint32_t i = 0; i < n_outputs; i++) {
        gw_put_head(put, 6, outputs[i].length);
        end_piece(answer);
    }
    end_piece(answer);
    return put->length <= put->capacity;
}
