/* ONNX test case folders. Main thread, blocking. */
#include "deploy/ingot/testdir.h"

#include "common/check.h"
#include "deploy/ingot/offline.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SET_PREFIX "test_data_set_"

/* files[i] = DIR/SET/KIND_i.pb */
static enum cm_err read_tensors(const char *dir, const char *set, const char *kind, unsigned count,
                                struct cm_error *err, struct ig_tensor *tensors)
{
    for (unsigned i = 0; i < count; i++) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%s/%s/%s_%u.pb", dir, set, kind, i);
        if (length < 0 || (size_t)length >= sizeof path)
            return cm_fail(err, CM_LIMIT, "the path of the test case is too long");
        enum cm_err code = ig_tensor_read(path, err, &tensors[i]);
        if (code != CM_OK)
            return code;
    }
    return CM_OK;
}

/* NumPy has no BF16, so the standard's files have its bits as UINT16: they are what the model says.
 */
static void read_as(struct ig_tensor *tensor, enum cm_dtype dtype)
{
    if (dtype == CM_BF16 && tensor->dtype == CM_UINT16)
        tensor->dtype = CM_BF16;
}

static json_t *output_json(const struct ig_tensor *actual, const struct ig_tensor *expected,
                           const struct ig_tolerance *tolerance, bool *ret_passed)
{
    struct cm_error err = {0};
    struct ig_difference difference = {0};
    if (ig_tensor_compare(actual, expected, tolerance, &err, &difference) != CM_OK) {
        *ret_passed = false;
        return json_pack("{s:s, s:b, s:s}", "name", actual->name, "passed", 0, "error", err.text);
    }
    *ret_passed = difference.mismatches == 0;
    return json_pack("{s:s, s:b, s:I, s:I, s:f, s:f}", "name", actual->name, "passed", *ret_passed,
                     "elements", (json_int_t)difference.count, "mismatches",
                     (json_int_t)difference.mismatches, "max_absolute_error",
                     difference.max_absolute, "max_relative_error", difference.max_relative);
}

/* One data set's entry of the report. */
static json_t *run_set(struct ig_offline *offline, const struct ig_testdir_options *options,
                       const char *set, bool *ret_passed)
{
    const struct wk_signature *signature = wk_model_signature(offline->model);
    struct ig_tensor inputs[WK_MAX_IO] = {0}, outputs[WK_MAX_IO] = {0}, expected[WK_MAX_IO] = {0};
    struct cm_error err = {0};
    json_t *list = json_array();
    enum cm_err code = read_tensors(options->dir, set, "input", signature->n_inputs, &err, inputs);
    if (code == CM_OK)
        code = read_tensors(options->dir, set, "output", signature->n_outputs, &err, expected);
    for (unsigned i = 0; i < signature->n_inputs && code == CM_OK; i++)
        read_as(&inputs[i], signature->inputs[i].dtype);
    if (code == CM_OK)
        code = ig_offline_run(offline, inputs, 1, NULL, NULL, &err, outputs);
    bool passed = code == CM_OK;
    for (unsigned i = 0; i < signature->n_outputs && code == CM_OK; i++) {
        bool good;
        read_as(&expected[i], outputs[i].dtype);
        json_array_append_new(list,
                              output_json(&outputs[i], &expected[i], &options->tolerance, &good));
        passed = passed && good;
    }
    for (unsigned i = 0; i < WK_MAX_IO; i++) {
        ig_tensor_fini(&inputs[i]);
        ig_tensor_fini(&outputs[i]);
        ig_tensor_fini(&expected[i]);
    }
    *ret_passed = passed;
    return json_pack("{s:s, s:b, s:o, s:o}", "name", set, "passed", passed, "error",
                     code == CM_OK ? json_null() : json_string(err.text), "outputs", list);
}

static int is_set(const struct dirent *entry)
{
    return strncmp(entry->d_name, SET_PREFIX, strlen(SET_PREFIX)) == 0;
}

static json_t *run_sets(struct ig_offline *offline, const struct ig_testdir_options *options,
                        struct dirent **sets, int count)
{
    json_t *list = json_array();
    bool all = true;
    for (int i = 0; i < count; i++) {
        bool passed;
        json_array_append_new(list, run_set(offline, options, sets[i]->d_name, &passed));
        all = all && passed;
    }
    return json_pack("{s:s, s:s, s:b, s:o}", "model", options->dir, "isa",
                     wk_isa_name(wk_engine_isa(offline->engine)), "passed", all, "sets", list);
}

enum cm_err ig_testdir_run(const struct ig_testdir_options *options, struct cm_error *err,
                           json_t **ret_report)
{
    char path[PATH_MAX];
    struct dirent **sets = NULL;
    struct ig_offline offline = {0};
    int length = snprintf(path, sizeof path, "%s/model.onnx", options->dir);
    if (length < 0 || (size_t)length >= sizeof path)
        return cm_fail(err, CM_LIMIT, "the path of the test case is too long");
    int count = scandir(options->dir, &sets, is_set, versionsort);
    if (count < 0)
        return cm_fail_errno(err, errno, "the folder %s", options->dir);
    enum cm_err code = CM_OK;
    if (count == 0)
        code = cm_fail(err, CM_NOT_FOUND,
                       "%s has no " SET_PREFIX "* folder: it is no ONNX test case", options->dir);
    if (code == CM_OK)
        code = ig_offline_open(path, &options->engine, options->disabled_passes, err, &offline);
    if (code == CM_OK)
        *ret_report = run_sets(&offline, options, sets, count);
    ig_offline_close(&offline);
    for (int i = 0; i < count; i++)
        free(sets[i]);
    free(sets);
    return code;
}
