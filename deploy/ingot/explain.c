/* A plan as JSON and as a table; see explain.h. */
#include "deploy/ingot/explain.h"

#include <stdlib.h>

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The median of column i of rows of n times, in microseconds. column has room for rows. */
static double median_us(const uint64_t *node_ns, size_t n, size_t i, size_t rows, uint64_t *column)
{
    for (size_t row = 0; row < rows; row++)
        column[row] = node_ns[row * n + i];
    qsort(column, rows, sizeof *column, compare_times);
    return (double)column[(rows - 1) / 2] / 1e3;
}

static json_t *node_json(const struct wk_plan *plan, uint32_t i)
{
    static const char *const fates[] = {[WK_NODE_RUNS] = "runs",
                                        [WK_NODE_VIEW] = "view",
                                        [WK_NODE_KNOWN] = "known",
                                        [WK_NODE_LATE] = "late"};
    struct wk_node_info info;
    wk_plan_describe(plan, i, &info);
    json_t *shape = json_array();
    for (unsigned k = 0; k < info.shape.rank; k++)
        json_array_append_new(shape, json_integer(info.shape.dims[k]));
    json_t *name = json_string(info.name); /* NULL if it is not UTF-8 */
    return json_pack("{s:I, s:o, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:f}", "position",
                     (json_int_t)info.position, "name", name ? name : json_string("?"), "op",
                     info.op, "fused", info.fused, "fate", fates[info.fate], "kernel", info.kernel,
                     "datatype", cm_dtype_name(info.dtype), "shape", shape, "read_bytes",
                     (json_int_t)info.read_bytes, "written_bytes", (json_int_t)info.written_bytes,
                     "flops", info.flops);
}

json_t *ig_explain_json(const struct wk_plan *plan, const uint64_t *node_ns, size_t rows)
{
    uint32_t n = wk_plan_nodes(plan);
    uint64_t *column = rows ? malloc(rows * sizeof *column) : NULL;
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_t *node = node_json(plan, i);
        if (node_ns && column)
            json_object_set_new(node, "median_us",
                                json_real(median_us(node_ns, n, i, rows, column)));
        json_array_append_new(list, node);
    }
    free(column);
    return list;
}

static const char *text_of(const json_t *node, const char *key)
{
    return json_string_value(json_object_get(node, key));
}

static double number_of(const json_t *node, const char *key)
{
    return json_number_value(json_object_get(node, key));
}

/* "FP32 [1,16,24,24]" */
static const char *format_output(const json_t *node, char *text, size_t size)
{
    const json_t *shape = json_object_get(node, "shape");
    size_t used = (size_t)snprintf(text, size, "%s [", text_of(node, "datatype"));
    for (size_t i = 0; i < json_array_size(shape) && used < size; i++) {
        long long dim = json_integer_value(json_array_get(shape, i));
        used += (size_t)snprintf(text + used, size - used, dim < 0 ? "%s?" : "%s%lld", i ? "," : "",
                                 dim);
    }
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

/* Names come from the file: what a terminal would act on is not printed. */
static void print_name(FILE *out, const char *name)
{
    for (unsigned n = 0; *name && n < 40; name++, n++)
        fputc(*name >= 0x20 && *name < 0x7f ? *name : '?', out);
    fputc('\n', out);
}

void ig_explain_print(FILE *out, const json_t *list)
{
    double total_us = 0, total_flops = 0, total_bytes = 0;
    size_t i, steps = 0;
    json_t *node;
    json_array_foreach(list, i, node)
    {
        total_us += number_of(node, "median_us");
        total_flops += number_of(node, "flops");
        total_bytes += number_of(node, "read_bytes") + number_of(node, "written_bytes");
    }
    bool timed = json_array_size(list) && json_object_get(json_array_get(list, 0), "median_us");
    fprintf(out, "%5s  %-26s %-26s %-24s %10s %9s", "node", "operator", "kernel", "output", "KiB",
            "MFLOP");
    fprintf(out, timed ? " %10s %6s  name\n" : "  name\n", "us", "share");
    json_array_foreach(list, i, node)
    {
        char op[160], output[96];
        const char *fate = text_of(node, "fate"), *kernel = text_of(node, "kernel");
        double us = number_of(node, "median_us");
        bool runs = fate[0] == 'r';
        steps += runs;
        snprintf(op, sizeof op, "%s%s", text_of(node, "op"), text_of(node, "fused"));
        fprintf(out, "%5lld  %-26s %-26s %-24s",
                json_integer_value(json_object_get(node, "position")), op, runs ? kernel : fate,
                format_output(node, output, sizeof output));
        fprintf(out, " %10.1f %9.3f",
                (number_of(node, "read_bytes") + number_of(node, "written_bytes")) / 1024,
                number_of(node, "flops") / 1e6);
        if (timed)
            fprintf(out, " %10.1f %5.1f%%", us, total_us > 0 ? 100 * us / total_us : 0.0);
        fprintf(out, "  ");
        print_name(out, text_of(node, "name"));
    }
    fprintf(out, "%zu nodes, %zu steps; %.1f KiB read and written, %.3f MFLOP",
            json_array_size(list), steps, total_bytes / 1024, total_flops / 1e6);
    fprintf(out, timed ? "; %.1f us in steps\n" : "\n", total_us);
}
