/* Are two tensors equal within a tolerance? Pure; any thread. */
#ifndef DEPLOY_INGOT_COMPARE_H
#define DEPLOY_INGOT_COMPARE_H

#include "deploy/ingot/tensor_file.h"

struct ig_tolerance {
    double relative, absolute;
};

/* What ONNX's own backend tests allow. */
#define IG_TOLERANCE_RELATIVE 1e-3
#define IG_TOLERANCE_ABSOLUTE 1e-7

struct ig_difference {
    size_t count;        /* elements */
    size_t mismatches;   /* of them outside the tolerance */
    size_t first;        /* index of the first mismatch */
    double max_absolute; /* over all elements that are numbers on both sides */
    double max_relative; /* to the expected value; elements expected to be 0 are left out */
};

/* An element fits if |actual - expected| <= absolute + relative * |expected|, as NumPy's
 * assert_allclose has it; equal infinities and two NaNs fit. CM_INVALID with a sentence if type or
 * shape differ. */
CM_MUST_CHECK enum cm_err ig_tensor_compare(const struct ig_tensor *actual,
                                            const struct ig_tensor *expected,
                                            const struct ig_tolerance *tolerance,
                                            struct cm_error *err,
                                            struct ig_difference *ret_difference);

#endif
