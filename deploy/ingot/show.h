/* Tensors and times for people and for scripts. Pure but for the printing; any thread. */
#ifndef DEPLOY_INGOT_SHOW_H
#define DEPLOY_INGOT_SHOW_H

#include "deploy/ingot/tensor_file.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#define IG_SHOW_ELEMENTS 64u   /* more are cut in text */
#define IG_JSON_ELEMENTS 4096u /* more are left out of JSON: ask for a file */

/* Name, type and shape, the elements, and the largest of each row of a two-dimensional float
 * tensor. */
void ig_show_tensor(FILE *out, const struct ig_tensor *tensor);

/* {name, datatype, shape, data, argmax}: data is absent above IG_JSON_ELEMENTS, argmax unless the
 * tensor is two-dimensional and float. JSON has no NaN or infinity: they are strings. */
json_t *ig_tensor_json(const struct ig_tensor *tensor);

/* An output as commands show it: appended to list (--json), or printed; only its file's name if it
 * was written to one. file and list may be NULL. */
void ig_show_output(const struct ig_tensor *tensor, const char *file, json_t *list);

/* Index of row's largest element; the first of equals; 0 if nothing is comparable. */
size_t ig_tensor_argmax(const struct ig_tensor *tensor, size_t row);

struct ig_latency {
    size_t count;
    double min_us, median_us, p99_us;
};

/* Sorts times in place; count > 0. */
struct ig_latency ig_latency_of(uint64_t *times_ns, size_t count);
void ig_show_latency(FILE *out, const struct ig_latency *latency);
json_t *ig_latency_json(const struct ig_latency *latency);

#endif
