/* The functions of f64_math.h: errors against libm's 80-bit functions, C's special cases, the
 * reduction of large angles. Test code. */
#include "common/check.h"
#include "gpu-worker/cpu/f64_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Half a unit is the rounding; the rest is what 64 bits leave, and libm's own error. */
#define BOUND 0.51

static long double sigmoidl(long double x)
{
    return 1.0L / (1.0L + expl(-x));
}

static const struct function {
    const char *name;
    double (*own)(double);
    long double (*libm)(long double);
} functions[] = {
#define ROW(name) {#name, f64_##name, name##l},
    F64_FUNCTIONS(ROW)
#undef ROW
};

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double unit(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

static double any_double(void)
{
    uint64_t bits = random_bits() * 0x2545f4914f6cdd1du;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Units in the last place of a double between got and want; infinity where only one is NaN or
 * infinite. */
static double ulps(double got, long double want)
{
    double w = (double)want;
    int e;
    if (isnan(w) || isnan(got))
        return isnan(w) && isnan(got) ? 0.0 : INFINITY;
    if (isinf(w) || isinf(got))
        return w == got ? 0.0 : INFINITY;
    (void)frexp(w, &e);
    return fabs((double)(((long double)got - want) / ldexpl(1.0L, (e < -1021 ? -1021 : e) - 53)));
}

static void test_accuracy(void **state)
{
    (void)state;
    for (unsigned k = 0; k < CM_COUNT_OF(functions); k++) {
        const struct function *f = &functions[k];
        double worst = 0, at = 0;
        for (unsigned i = 0; i < 400000; i++) {
            double x = i % 4 == 0   ? any_double()
                       : i % 4 == 1 ? (unit() * 2 - 1) * 800
                       : i % 4 == 2 ? (unit() * 2 - 1) * 30
                                    : (unit() * 2 - 1) * 1.3;
            double u = ulps(f->own(x), f->libm((long double)x));
            if (u > worst) {
                worst = u;
                at = x;
            }
        }
        printf("%-8s %.4f ulp at %a\n", f->name, worst, at);
        if (!(worst <= BOUND))
            fail_msg("%s(%a) is %a, libm says %a", f->name, at, f->own(at),
                     (double)f->libm((long double)at));
    }
}

static void test_special_values(void **state)
{
    (void)state;
    static const double some[] = {0.0,
                                  -0.0,
                                  1.0,
                                  -1.0,
                                  INFINITY,
                                  -INFINITY,
                                  NAN,
                                  0x1p-1074,
                                  -0x1p-1074,
                                  0x1p-1022,
                                  0x1p-1030,
                                  0.5,
                                  -0.5,
                                  2.0,
                                  -2.0,
                                  1e308,
                                  -1e308,
                                  0x1.fffffffffffffp1023,
                                  710.0,
                                  -745.0,
                                  -746.0,
                                  709.78,
                                  0x1.921fb54442d18p0,
                                  0x1.921fb54442d18p1,
                                  0x1.fffffffffffffp-1,
                                  1e-300};
    for (unsigned k = 0; k < CM_COUNT_OF(functions); k++)
        for (unsigned i = 0; i < CM_COUNT_OF(some); i++) {
            double got = functions[k].own(some[i]);
            long double want = functions[k].libm((long double)some[i]);
            if (ulps(got, want) > BOUND || (!isnan(got) && !signbit(got) != !signbit(want)))
                fail_msg("%s(%a) is %a, libm says %a", functions[k].name, some[i], got,
                         (double)want);
        }
}

/* Next to multiples of pi/2 up to the largest double most bits of the quotient cancel. */
static void test_large_angles(void **state)
{
    (void)state;
    double worst = 0;
    /* The double nearest to a multiple of pi/2 of all: 6381956970095103 * 2^797. */
    double hardest = ldexp(6381956970095103.0, 797);
    assert_true(ulps(f64_cos(hardest), cosl(hardest)) <= BOUND);
    assert_true(fabs(f64_cos(hardest)) < 1e-18);
    for (unsigned i = 0; i < 200000; i++) {
        double n = floor(ldexp(unit(), (int)(random_bits() % 1023)));
        double x = n * 0x1.921fb54442d18p0;
        if (!(x < INFINITY))
            continue;
        for (int side = 0; side < 2; side++, x = nextafter(x, 0)) {
            double u = fmax(ulps(f64_sin(x), sinl(x)), ulps(f64_cos(x), cosl(x)));
            worst = fmax(worst, fmax(u, ulps(f64_tan(-x), tanl(-x))));
        }
    }
    printf("large angles %.4f ulp\n", worst);
    assert_true(worst <= BOUND);
}

static void test_pow(void **state)
{
    (void)state;
    static const double some[] = {
        0.0,    -0.0,      1.0,   -1.0,   0.5,    -0.5,     2.0,
        -2.0,   3.0,       -3.0,  2.5,    -2.5,   INFINITY, -INFINITY,
        NAN,    0x1p-1074, 1e300, -1e300, 1e-300, 0x1p53,   0x1.fffffffffffffp52,
        0x1p60, -7.0};
    for (unsigned i = 0; i < CM_COUNT_OF(some); i++)
        for (unsigned j = 0; j < CM_COUNT_OF(some); j++) {
            double got = f64_pow(some[i], some[j]);
            long double want = powl(some[i], some[j]);
            if (ulps(got, want) > BOUND || (!isnan(got) && !signbit(got) != !signbit(want)))
                fail_msg("pow(%a, %a) is %a, libm says %a", some[i], some[j], got, (double)want);
        }
    double worst = 0;
    for (unsigned i = 0; i < 400000; i++) {
        double x = i % 2 ? any_double() : unit() * (i % 4 ? 3 : 300);
        double y = i % 3 ? (unit() * 2 - 1) * 40 : any_double();
        worst = fmax(worst, ulps(f64_pow(x, y), powl((long double)x, (long double)y)));
        /* Near 1 the logarithm needs all its bits. */
        x = 1 + (unit() - 0.5) * ldexp(1, -(int)(random_bits() % 50));
        y = 700 / log(x) * (unit() * 2 - 1);
        worst = fmax(worst, ulps(f64_pow(x, y), powl((long double)x, (long double)y)));
    }
    printf("pow      %.4f ulp\n", worst);
    assert_true(worst <= BOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_large_angles),
        cmocka_unit_test(test_pow),
    };
    return cmocka_run_group_tests_name("f64_math", tests, NULL, NULL);
}
