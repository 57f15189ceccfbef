/* Tensors and times for people and for scripts. */
#include "deploy/ingot/show.h"

#include "common/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static bool has_rows(const struct ig_tensor *tensor)
{
    enum cm_dtype dtype = tensor->dtype;
    return tensor->shape.rank == 2 && tensor->bytes > 0 && tensor->shape.dims[1] > 1 &&
           (dtype == CM_FP32 || dtype == CM_FP64 || dtype == CM_FP16 || dtype == CM_BF16);
}

size_t ig_tensor_argmax(const struct ig_tensor *tensor, size_t row)
{
    size_t columns = (size_t)tensor->shape.dims[1], best = 0;
    for (size_t i = 1; i < columns; i++)
        if (ig_tensor_number(tensor, row * columns + i) >
            ig_tensor_number(tensor, row * columns + best))
            best = i;
    return best;
}

static void show_elements(FILE *out, const struct ig_tensor *tensor)
{
    char text[32];
    size_t count = ig_tensor_count(tensor);
    /* A new line after each run of the last dimension, or after 8 elements. */
    size_t row = tensor->shape.rank ? (size_t)tensor->shape.dims[tensor->shape.rank - 1] : 1;
    if (row == 0 || row > 16)
        row = 8;
    for (size_t i = 0; i < count && i < IG_SHOW_ELEMENTS; i++)
        fprintf(out, "%s%s",
                i % row ? " "
                : i     ? "\n    "
                        : "    ",
                ig_tensor_format(tensor, i, text, sizeof text));
    if (count > IG_SHOW_ELEMENTS)
        fprintf(out, "\n    ... %zu more", count - IG_SHOW_ELEMENTS);
    if (count > 0)
        fprintf(out, "\n");
}

void ig_show_tensor(FILE *out, const struct ig_tensor *tensor)
{
    char shape[256], text[32];
    fprintf(out, "%s %s %s\n", tensor->name, cm_dtype_name(tensor->dtype),
            cm_shape_format(&tensor->shape, shape, sizeof shape));
    show_elements(out, tensor);
    if (!has_rows(tensor))
        return;
    size_t rows = (size_t)tensor->shape.dims[0], columns = (size_t)tensor->shape.dims[1];
    for (size_t row = 0; row < rows && row < IG_SHOW_ELEMENTS; row++) {
        size_t best = ig_tensor_argmax(tensor, row);
        fprintf(out, "    row %zu: largest at %zu (%s)\n", row, best,
                ig_tensor_format(tensor, row * columns + best, text, sizeof text));
    }
}

static json_t *element_json(const struct ig_tensor *tensor, size_t i)
{
    char text[32];
    switch (tensor->dtype) {
    case CM_BOOL:
        return json_boolean(ig_tensor_number(tensor, i) != 0);
    case CM_INT64:
        return json_integer(((const int64_t *)tensor->data)[i]);
    case CM_UINT64:
        if (((const uint64_t *)tensor->data)[i] > INT64_MAX)
            return json_string(ig_tensor_format(tensor, i, text, sizeof text));
        return json_integer((json_int_t)((const uint64_t *)tensor->data)[i]);
    case CM_FP16:
    case CM_BF16:
    case CM_FP32:
    case CM_FP64:
        if (!isfinite(ig_tensor_number(tensor, i)))
            return json_string(ig_tensor_format(tensor, i, text, sizeof text));
        return json_real(ig_tensor_number(tensor, i));
    default:
        return json_integer((json_int_t)ig_tensor_number(tensor, i));
    }
}

json_t *ig_tensor_json(const struct ig_tensor *tensor)
{
    json_t *shape = json_array();
    for (unsigned i = 0; i < tensor->shape.rank; i++)
        json_array_append_new(shape, json_integer(tensor->shape.dims[i]));
    json_t *root = json_pack("{s:s, s:s, s:o}", "name", tensor->name, "datatype",
                             cm_dtype_name(tensor->dtype), "shape", shape);
    size_t count = ig_tensor_count(tensor);
    if (count <= IG_JSON_ELEMENTS) {
        json_t *data = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(data, element_json(tensor, i));
        json_object_set_new(root, "data", data);
    }
    if (has_rows(tensor)) {
        json_t *list = json_array();
        for (size_t row = 0; row < (size_t)tensor->shape.dims[0]; row++)
            json_array_append_new(list, json_integer((json_int_t)ig_tensor_argmax(tensor, row)));
        json_object_set_new(root, "argmax", list);
    }
    return root;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void ig_show_output(const struct ig_tensor *tensor, const char *file, json_t *list)
{
    if (list)
        json_array_append_new(list, ig_tensor_json(tensor));
    else if (file)
        printf("%s written to %s\n", tensor->name, file);
    else
        ig_show_tensor(stdout, tensor);
}

struct ig_latency ig_latency_of(uint64_t *times_ns, size_t count)
{
    CM_ASSERT(count > 0);
    qsort(times_ns, count, sizeof times_ns[0], compare_times);
    /* The smallest value that 99 of 100 do not exceed. */
    size_t p99 = (count * 99 + 99) / 100 - 1;
    return (struct ig_latency){
        .count = count,
        .min_us = (double)times_ns[0] / 1e3,
        .median_us = (double)times_ns[(count - 1) / 2] / 1e3,
        .p99_us = (double)times_ns[p99] / 1e3,
    };
}

void ig_show_latency(FILE *out, const struct ig_latency *latency)
{
    fprintf(out, "%zu runs: min %.1f us, median %.1f us, p99 %.1f us\n", latency->count,
            latency->min_us, latency->median_us, latency->p99_us);
}

json_t *ig_latency_json(const struct ig_latency *latency)
{
    return json_pack("{s:I, s:f, s:f, s:f}", "count", (json_int_t)latency->count, "min",
                     latency->min_us, "median", latency->median_us, "p99", latency->p99_us);
}
