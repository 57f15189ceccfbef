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

/* The nodes of a subgraph's plan; times are means over the runs. */
static json_t *inside_json(const struct wk_plan *plan, size_t rows);

/* Adds the plans that a node keeps of its subgraphs. */
static void add_inside(json_t *node, const struct wk_plan *plan, uint32_t i, size_t rows)
{
    const char *attribute = "";
    json_t *list = json_array();
    for (unsigned n = 0;; n++) {
        const struct wk_plan *inside = wk_plan_inside(plan, i, n, &attribute);
        if (!inside)
            break;
        json_array_append_new(list, json_pack("{s:s, s:o}", "attribute", attribute, "nodes",
                                              inside_json(inside, rows)));
    }
    if (json_array_size(list))
        json_object_set(node, "inside", list);
    json_decref(list);
}

static json_t *inside_json(const struct wk_plan *plan, size_t rows)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < wk_plan_nodes(plan); i++) {
        json_t *node = node_json(plan, i);
        if (rows)
            json_object_set_new(node, "mean_us",
                                json_real((double)wk_plan_inside_ns(plan, i) / 1e3 / (double)rows));
        add_inside(node, plan, i, rows);
        json_array_append_new(list, node);
    }
    return list;
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
        add_inside(node, plan, i, node_ns ? rows : 0);
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

/* What a table sums up. */
struct totals {
    double us, flops, bytes;
    size_t nodes, steps;
    bool timed;
};

static double time_of(const json_t *node)
{
    const json_t *mean = json_object_get(node, "mean_us");
    return mean ? json_number_value(mean) : number_of(node, "median_us");
}

static void print_list(FILE *out, const json_t *list, const struct totals *totals, unsigned depth);

static void print_node(FILE *out, const json_t *node, const struct totals *totals, unsigned depth)
{
    char op[160], output[96];
    const char *fate = text_of(node, "fate"), *kernel = text_of(node, "kernel");
    size_t k;
    const json_t *inside;
    snprintf(op, sizeof op, "%*s%s%s", (int)depth * 2, "", text_of(node, "op"),
             text_of(node, "fused"));
    fprintf(out, "%5lld  %-26s %-26s %-24s", json_integer_value(json_object_get(node, "position")),
            op, fate[0] == 'r' ? kernel : fate, format_output(node, output, sizeof output));
    fprintf(out, " %10.1f %9.3f",
            (number_of(node, "read_bytes") + number_of(node, "written_bytes")) / 1024,
            number_of(node, "flops") / 1e6);
    if (totals->timed)
        fprintf(out, " %10.1f %5.1f%%", time_of(node),
                totals->us > 0 ? 100 * time_of(node) / totals->us : 0.0);
    fprintf(out, "  ");
    print_name(out, text_of(node, "name"));
    json_array_foreach(json_object_get(node, "inside"), k, inside)
    {
        fprintf(out, "%*s%s:\n", (int)depth * 2 + 8, "", text_of(inside, "attribute"));
        print_list(out, json_object_get(inside, "nodes"), totals, depth + 1);
    }
}

static void print_list(FILE *out, const json_t *list, const struct totals *totals, unsigned depth)
{
    size_t i;
    const json_t *node;
    json_array_foreach(list, i, node) print_node(out, node, totals, depth);
}

void ig_explain_print(FILE *out, const json_t *list)
{
    struct totals t = {.nodes = json_array_size(list)};
    size_t i;
    const json_t *node;
    json_array_foreach(list, i, node)
    {
        t.us += number_of(node, "median_us");
        t.flops += number_of(node, "flops");
        t.bytes += number_of(node, "read_bytes") + number_of(node, "written_bytes");
        t.steps += text_of(node, "fate")[0] == 'r';
    }
    t.timed = t.nodes && json_object_get(json_array_get(list, 0), "median_us");
    fprintf(out, "%5s  %-26s %-26s %-24s %10s %9s", "node", "operator", "kernel", "output", "KiB",
            "MFLOP");
    fprintf(out, t.timed ? " %10s %6s  name\n" : "  name\n", "us", "share");
    print_list(out, list, &t, 0);
    fprintf(out, "%zu nodes, %zu steps; %.1f KiB read and written, %.3f MFLOP", t.nodes, t.steps,
            t.bytes / 1024, t.flops / 1e6);
    fprintf(out, t.timed ? "; %.1f us in steps\n" : "\n", t.us);
}
