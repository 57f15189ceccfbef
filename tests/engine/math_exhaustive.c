/* Every one of the 2^32 floats through the approximating f32 kernels, against double precision:
 * the largest error of each, and whether all instruction sets agree. Too long for a test run
 * (minutes per function): kernels_math_test takes every 1021st float.
 *
 *   math_exhaustive [-i] [function...]    names as in kernels.inc; -i: also compare the sets
 *
 * Exit code 1 where a bound of math_functions.h is broken or bits differ. Test code. */
#include "tests/engine/math_functions.h"

#include "common/check.h"
#include "gpu-worker/cpu/features.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 4096 };

static bool chosen(const char *name, char **wanted, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(wanted[i], name) == 0 || strcmp(wanted[i], name + strlen("f32_")) == 0)
            return true;
    return n == 0;
}

/* Floats of other bits than the best instruction set's. */
static uint64_t differences(const struct math_function *f, const struct k_unary_params *params,
                            const float *x, const float *y)
{
    uint64_t count = 0;
    for (unsigned isa = 0; isa < (unsigned)wk_isa_best(); isa++) {
        float z[BLOCK];
        cpu_kernels_for((enum wk_isa)isa)->unary[f->op](x, z, BLOCK, params);
        for (unsigned i = 0; i < BLOCK; i++)
            count += memcmp(&y[i], &z[i], sizeof *y) != 0 && !(isnan(y[i]) && isnan(z[i]));
    }
    return count;
}

static bool all_floats(const struct math_function *f, bool compare)
{
    const struct k_unary_params params = {MATH_ALPHA, MATH_BETA};
    double worst = 0;
    float worst_at = 0;
    uint64_t rounded_wrong = 0, differ = 0;
    for (uint64_t first = 0; first <= UINT32_MAX; first += BLOCK) {
        float x[BLOCK], y[BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++) {
            uint32_t bits = (uint32_t)first + i;
            memcpy(&x[i], &bits, sizeof bits);
        }
        cpu_kernels_for(wk_isa_best())->unary[f->op](x, y, BLOCK, &params);
        for (unsigned i = 0; i < BLOCK; i++) {
            if (x[i] < f->from)
                continue;
            double want = f->want((double)x[i]), u = math_ulps(y[i], want);
            rounded_wrong += (float)want != y[i] && u > 0;
            if (u > worst) {
                worst = u;
                worst_at = x[i];
            }
        }
        if (compare)
            differ += differences(f, &params, x, y);
    }
    printf("%-14s %.3f ulp at %a; bound %.1f; %.2f %% correctly rounded", k_unary_name(f->op),
           worst, (double)worst_at, f->bound, 100.0 - (double)rounded_wrong / 42949672.96);
    if (compare)
        printf("; %" PRIu64 " differ between instruction sets", differ);
    printf("\n");
    fflush(stdout);
    return worst <= f->bound && differ == 0;
}

int main(int argc, char **argv)
{
    bool compare = argc > 1 && strcmp(argv[1], "-i") == 0, good = true;
    argc -= compare;
    argv += compare;
    for (unsigned i = 0; i < CM_COUNT_OF(math_functions); i++)
        if (chosen(k_unary_name(math_functions[i].op), argv + 1, argc - 1))
            good &= all_floats(&math_functions[i], compare);
    return good ? 0 : 1;
}
