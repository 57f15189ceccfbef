/* An ONNX test case folder: DIR/model.onnx and DIR/test_data_set_N/{input_I.pb, output_I.pb}, as
 * the ONNX project ships them for each operator. Main thread, blocking. */
#ifndef DEPLOY_INGOT_TESTDIR_H
#define DEPLOY_INGOT_TESTDIR_H

#include "deploy/ingot/compare.h"
#include "gpu-worker/engine.h"

#include <jansson.h>
#include <stdbool.h>

struct ig_testdir_options {
    const char *dir;
    struct wk_engine_options engine;
    uint64_t disabled_passes;
    struct ig_tolerance tolerance;
};

/* Runs every data set. ret_report: {model, isa, passed, sets: [{name, passed, error, outputs:
 * [{name, passed, elements, mismatches, max_absolute_error, max_relative_error, error}]}]}; the
 * caller lets go of it. An error means that the folder or its model could not be used at all. */
CM_MUST_CHECK enum cm_err ig_testdir_run(const struct ig_testdir_options *options,
                                         struct cm_error *err, json_t **ret_report);

#endif
