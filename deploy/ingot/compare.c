/* Comparison of tensors. Pure; any thread. */
#include "deploy/ingot/compare.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static bool same_bits(const struct ig_tensor *a, const struct ig_tensor *b, size_t i)
{
    size_t size = cm_dtype_size(a->dtype);
    return memcmp((const char *)a->data + i * size, (const char *)b->data + i * size, size) == 0;
}

static bool fits(double actual, double expected, const struct ig_tolerance *tolerance,
                 struct ig_difference *difference)
{
    if (isnan(actual) || isnan(expected))
        return isnan(actual) && isnan(expected);
    if (isinf(actual) || isinf(expected))
        return actual == expected;
    double distance = fabs(actual - expected);
    if (distance > difference->max_absolute)
        difference->max_absolute = distance;
    if (expected != 0 && distance / fabs(expected) > difference->max_relative)
        difference->max_relative = distance / fabs(expected);
    return distance <= tolerance->absolute + tolerance->relative * fabs(expected);
}

enum cm_err ig_tensor_compare(const struct ig_tensor *actual, const struct ig_tensor *expected,
                              const struct ig_tolerance *tolerance, struct cm_error *err,
                              struct ig_difference *ret_difference)
{
    char have[128], want[128];
    if (actual->dtype != expected->dtype || !cm_shape_equal(&actual->shape, &expected->shape))
        return cm_fail(err, CM_INVALID, "%s %s instead of %s %s", cm_dtype_name(actual->dtype),
                       cm_shape_format(&actual->shape, have, sizeof have),
                       cm_dtype_name(expected->dtype),
                       cm_shape_format(&expected->shape, want, sizeof want));
    struct ig_difference difference = {.count = ig_tensor_count(actual)};
    for (size_t i = 0; i < difference.count; i++) {
        /* Bits first: 64-bit integers do not all survive as doubles. */
        if (same_bits(actual, expected, i) ||
            fits(ig_tensor_number(actual, i), ig_tensor_number(expected, i), tolerance,
                 &difference))
            continue;
        if (difference.mismatches++ == 0)
            difference.first = i;
    }
    *ret_difference = difference;
    return CM_OK;
}
