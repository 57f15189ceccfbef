/* Elementary functions in double precision, by extended precision: see f64_math.h for why.
 *
 * Every function works with 64-bit mantissas from the argument to the last step and then rounds to
 * double. Series are the Taylor series, cut where the rest is below 2^-65 on the reduced range;
 * coefficients are exact values rounded to 64 bits. Nothing here reads or sets the floating-point
 * environment but through ordinary arithmetic. */
#include "gpu-worker/cpu/f64_math.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static_assert(LDBL_MANT_DIG == 64, "long double is the 80-bit format of x86");

typedef long double wide;

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static const wide ln2_high = 0xb17217f7d1cf7800p-64L; /* 53 bits: times 11 bits it is exact */
static const wide ln2_low = 0xd5e4f1d9cc01f97bp-119L;
static const wide log2_e = 0xb8aa3b295c17f0bcp-63L;
static const wide half_pi = 0xc90fdaa22168c235p-63L;

/* c[0] x^(n-1) + ... + c[n-1]. */
static wide poly(wide x, const wide *c, unsigned n)
{
    wide y = c[0];
    for (unsigned i = 1; i < n; i++)
        y = y * x + c[i];
    return y;
}

/* 2^n for |n| < 16000. */
static wide pow2(int n)
{
    const uint64_t mantissa = (uint64_t)1 << 63;
    const uint16_t exponent = (uint16_t)(n + 16383);
    wide r = 0;
    memcpy(&r, &mantissa, 8);
    memcpy((char *)&r + 8, &exponent, 2);
    return r;
}

/* x = m 2^*ret_e with m in [sqrt(1/2), sqrt(2)), x positive and finite. */
static wide split(wide x, int *ret_e)
{
    uint16_t exponent;
    memcpy(&exponent, (const char *)&x + 8, 2);
    int e = (int)exponent - 16383;
    wide m = x * pow2(-e);
    if (m >= 0xb504f333f9de6484p-63L)
        m *= 0.5L, e++;
    *ret_e = e;
    return m;
}

/* ---- exponentials ---- */

/* e^r - 1 for |r| < 0.35. */
static wide expm1_reduced(wide r)
{
    static const wide c[] = {
        0xd73f9f399dc0f88fp-108L, 0xd73f9f399dc0f88fp-104L, 0xc9cba54603e4e906p-100L,
        0xb092309d43684be5p-96L,  0x8f76c77fc6c4bdaap-92L,  0xd7322b3faa271c7fp-89L,
        0x93f27dbbc4fae397p-85L,  0xb8ef1d2ab6399c7dp-82L,  0xd00d00d00d00d00dp-79L,
        0xd00d00d00d00d00dp-76L,  0xb60b60b60b60b60bp-73L,  0x8888888888888889p-70L,
        0xaaaaaaaaaaaaaaabp-68L,  0xaaaaaaaaaaaaaaabp-66L,  0x8000000000000000p-64L};
    return r * r * poly(r, c, COUNT(c)) + r;
}

/* The multiple of log 2 next to x, as a number of them. */
static int ln2_multiples(wide x)
{
    wide n = x * log2_e;
    return (int)(n < 0 ? n - 0.5L : n + 0.5L);
}

/* e^x; beyond |x| = 11000 as for that. */
static wide exp_wide(wide x)
{
    x = x > 11000.0L ? 11000.0L : x < -11000.0L ? -11000.0L : x;
    int n = ln2_multiples(x);
    return (expm1_reduced((x - n * ln2_high) - n * ln2_low) + 1.0L) * pow2(n);
}

static wide expm1_wide(wide x)
{
    return x > -0.34L && x < 0.34L ? expm1_reduced(x) : exp_wide(x) - 1.0L;
}

double f64_exp(double x)
{
    return x != x ? x : (double)exp_wide(x);
}

double f64_expm1(double x)
{
    return x != x || x == 0 ? x : (double)expm1_wide(x);
}

double f64_sigmoid(double x)
{
    if (x != x)
        return x;
    wide e = exp_wide(-fabsl((wide)x));
    return (double)((x < 0 ? e : 1.0L) / (1.0L + e));
}

double f64_sinh(double x)
{
    if (x != x || x == 0)
        return x;
    wide e = expm1_wide(fabsl((wide)x));
    return copysign((double)(0.5L * (e + e / (e + 1.0L))), x);
}

double f64_cosh(double x)
{
    if (x != x)
        return x;
    wide e = exp_wide(fabsl((wide)x));
    return (double)(0.5L * (e + 1.0L / e));
}

double f64_tanh(double x)
{
    if (x != x || x == 0)
        return x;
    wide e = expm1_wide(2.0L * fabsl((wide)x));
    return copysign((double)(e / (e + 2.0L)), x);
}

/* ---- logarithms ---- */

/* 2 atanh(s) - 2 s, |s| < 0.172: the series' terms but the first. */
static wide log_tail(wide s)
{
    wide z = s * s, t = 1.0L / 29;
    for (int n = 27; n >= 3; n -= 2)
        t = t * z + 1.0L / n;
    return 2.0L * s * (z * t);
}

/* log x, x positive and finite: log m = 2 atanh((m - 1) / (m + 1)). */
static wide log_wide(wide x)
{
    int e;
    wide m = split(x, &e), s = (m - 1.0L) / (m + 1.0L);
    return e * ln2_high + ((2.0L * s + log_tail(s)) + e * ln2_low);
}

static wide log1p_wide(wide x)
{
    if (x < -0.29L || x > 0.41L)
        return log_wide(1.0L + x);
    wide s = x / (2.0L + x);
    return 2.0L * s + log_tail(s);
}

/* log at a number that is not positive and finite. */
static double log_special(double x)
{
    return x == 0 ? -INFINITY : x > 0 || x != x ? x : NAN;
}

double f64_log(double x)
{
    return x > 0 && x < INFINITY ? (double)log_wide(x) : log_special(x);
}

double f64_log2(double x)
{
    if (!(x > 0 && x < INFINITY))
        return log_special(x);
    int e;
    wide m = split(x, &e), s = (m - 1.0L) / (m + 1.0L);
    return (double)(e + (2.0L * s + log_tail(s)) * log2_e);
}

double f64_log1p(double x)
{
    if (x == 0)
        return x;
    return x > -1.0 && x < INFINITY ? (double)log1p_wide(x) : log_special(1.0 + x);
}

double f64_asinh(double x)
{
    if (x == 0 || !(fabs(x) < INFINITY))
        return x;
    wide a = fabsl((wide)x), z = a * a;
    return copysign((double)log1p_wide(a + z / (1.0L + sqrtl(1.0L + z))), x);
}

double f64_acosh(double x)
{
    if (!(x < INFINITY))
        return x;
    if (x < 1.0)
        return NAN;
    wide t = (wide)x - 1.0L;
    return (double)log1p_wide(t + sqrtl(2.0L * t + t * t));
}

double f64_atanh(double x)
{
    wide a = fabsl((wide)x);
    if (x == 0 || x != x)
        return x;
    if (a >= 1.0L)
        return a > 1.0L ? NAN : copysign(INFINITY, x);
    return copysign((double)(0.5L * log1p_wide(2.0L * a / (1.0L - a))), x);
}

/* ---- circular functions ---- */

/* 2 / pi after the point: enough for the largest double's fraction in quarter turns to have 128
 * bits of which 61 may cancel. */
static const uint64_t two_over_pi[] = {
    0xa2f9836e4e441529u, 0xfc2757d1f534ddc0u, 0xdb6295993c439041u, 0xfe5163abdebbc561u,
    0xb7246e3a424dd2e0u, 0x06492eea09d1921cu, 0xfe1deb1cb129a73eu, 0xe88235f52ebb4484u,
    0xe99c7026b45f7e41u, 0x3991d639835339f4u, 0x9c845f8bbdf9283bu, 0x1ff897ffde05980fu,
    0xef2f118b5a0a6d1fu, 0x6d367ecf27cb09b7u, 0x4f463f669e5fea2du, 0x7527bac7ebe5f17bu,
    0x3d0739f78a5292eau, 0x6bfb5fb11f8d5d08u, 0x56033046fc7b6babu, 0xf0cfbc209af4361du};

/* Word of 64 bits of 2 / pi from bit `from` after the point; bits before the point are 0. */
static uint64_t two_over_pi_bits(int from)
{
    int word = from >= 0 ? from / 64 : -((63 - from) / 64), shift = from - word * 64;
    uint64_t high = word < 0 ? 0 : two_over_pi[word];
    uint64_t low = word + 1 < 0 ? 0 : two_over_pi[word + 1];
    return shift == 0 ? high : high << shift | low >> (64 - shift);
}

/* x = (n + f) pi/2 with |f| <= 1/2: returns f pi/2, and n modulo 4. x is finite, |x| > 1/2.
 * x is an integer of 53 bits times 2^e; of the product with 2/pi only three words matter: those
 * above are whole turns, those below are too small. */
static wide reduce(double x, unsigned *ret_quadrant)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52 & 2047) - 1075;
    uint64_t m = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    int first = e - 2; /* the product's word then starts with the quarter turns modulo 4 */
    uint64_t w0 = two_over_pi_bits(first), w1 = two_over_pi_bits(first + 64),
             w2 = two_over_pi_bits(first + 128);
    unsigned __int128 low = (unsigned __int128)m * w2, middle = (unsigned __int128)m * w1;
    middle += low >> 64;
    unsigned __int128 turns = ((unsigned __int128)(m * w0) << 64) + middle;
    unsigned quadrant = (unsigned)(turns >> 126);
    __int128 fraction = (__int128)(turns << 2); /* signed: a half or more belongs to the next */
    quadrant += fraction < 0;
    if (x < 0) {
        quadrant = 0u - quadrant;
        fraction = -fraction;
    }
    *ret_quadrant = quadrant & 3;
    return (wide)fraction * pow2(-128) * half_pi;
}

static wide sin_reduced(wide r)
{
    static const wide c[] = {0xb8dc77b6e7ab8c5fp-129L, -0x97a4da340a0ab926p-120L,
                             0xca963b81856a5359p-112L, -0xd73f9f399dc0f88fp-104L,
                             0xb092309d43684be5p-96L,  -0xd7322b3faa271c7fp-89L,
                             0xb8ef1d2ab6399c7dp-82L,  -0xd00d00d00d00d00dp-76L,
                             0x8888888888888889p-70L,  -0xaaaaaaaaaaaaaaabp-66L};
    wide z = r * r;
    return r + r * (z * poly(z, c, COUNT(c)));
}

static wide cos_reduced(wide r)
{
    static const wide c[] = {
        -0x8671cb6dbfc294a3p-133L, 0xf2a15d201011283dp-125L,  -0xb413c31dcbecbbdep-116L,
        0xd73f9f399dc0f88fp-108L,  -0xc9cba54603e4e906p-100L, 0x8f76c77fc6c4bdaap-92L,
        -0x93f27dbbc4fae397p-85L,  0xd00d00d00d00d00dp-79L,   -0xb60b60b60b60b60bp-73L,
        0xaaaaaaaaaaaaaaabp-68L,   -0x8000000000000000p-64L};
    wide z = r * r;
    return 1.0L + z * poly(z, c, COUNT(c));
}

/* Reduced argument of x, which need not be large; false for infinities and NaN. */
static bool reduce_any(double x, wide *ret_r, unsigned *ret_quadrant)
{
    *ret_quadrant = 0;
    *ret_r = x;
    if (fabs(x) > 0.75)
        *ret_r = fabs(x) < INFINITY ? reduce(x, ret_quadrant) : 0.0L;
    return fabs(x) < INFINITY;
}

/* sin of x and `more` quarter turns. */
static double sin_turned(double x, unsigned more)
{
    wide r;
    unsigned quadrant;
    if (!reduce_any(x, &r, &quadrant))
        return NAN;
    quadrant += more;
    wide y = quadrant & 1 ? cos_reduced(r) : sin_reduced(r);
    return (double)(quadrant & 2 ? -y : y);
}

double f64_sin(double x)
{
    return x == 0 ? x : sin_turned(x, 0);
}

double f64_cos(double x)
{
    return sin_turned(x, 1);
}

double f64_tan(double x)
{
    wide r;
    unsigned quadrant;
    if (x == 0)
        return x;
    if (!reduce_any(x, &r, &quadrant))
        return NAN;
    wide s = sin_reduced(r), c = cos_reduced(r);
    return (double)(quadrant & 1 ? -c / s : s / c);
}

/* atan t, t >= 0, also infinite: atan(k/8) + atan((t - k/8) / (1 + t k/8)), the latter's argument
 * at most 1/16. */
static wide atan_wide(wide t)
{
    static const wide eighths[] = {0.0L,
                                   0xfeadd4d5617b6e33p-67L,
                                   0xfadbafc96406eb15p-66L,
                                   0xb7b0ca0f26f78474p-65L,
                                   0xed63382b0dda7b45p-65L,
                                   0x8f005d5ef7f59f9bp-64L,
                                   0xa4bc7d1934f70924p-64L,
                                   0xb8053e2bc2319e74p-64L,
                                   0xc90fdaa22168c235p-64L};
    wide u = t > 1.0L ? 1.0L / t : t;
    unsigned k = (unsigned)(u * 8.0L + 0.5L);
    wide c = k * 0.125L, d = (u - c) / (1.0L + u * c), z = d * d, p = 1.0L / 19;
    for (int n = 17; n >= 3; n -= 2)
        p = 1.0L / n - p * z;
    wide y = eighths[k] + (d - d * (z * p));
    return t > 1.0L ? half_pi - y : y;
}

double f64_atan(double x)
{
    return x == 0 || x != x ? x : copysign((double)atan_wide(fabsl((wide)x)), x);
}

double f64_asin(double x)
{
    wide a = fabsl((wide)x);
    if (x == 0 || x != x)
        return x;
    if (a > 1.0L)
        return NAN;
    return copysign((double)atan_wide(a / sqrtl((1.0L - a) * (1.0L + a))), x);
}

double f64_acos(double x)
{
    wide w = x;
    if (!(x >= -1.0 && x <= 1.0))
        return NAN;
    return x == -1.0 ? (double)(2.0L * half_pi)
                     : (double)(2.0L * atan_wide(sqrtl((1.0L - w) / (1.0L + w))));
}

/* ---- erf ---- */

/* 1 - erf x, 1 <= x <= 6: e^(-x^2) times a polynomial in t, which interpolates at Chebyshev's nodes
 * (its error is below 2^-75). x^2 is taken in two exact parts. */
static wide erfc_wide(wide x)
{
    static const wide c[] = {
        0xb97f258d9adde1b3p-92L,  0x9160d06427a2a94fp-90L,  0xc4dca592c8a1a47bp-95L,
        -0xa72ef106200bb781p-88L, -0xfdc441d21b3c083dp-88L, 0xbf500b6a22b7fffdp-87L,
        0xd12faeb5b23d6d9bp-85L,  0xa06a80097ab65ab6p-87L,  -0xf3d446f6c3bca633p-83L,
        -0x9a3b537f82edee8ap-82L, 0xfd8247e0d529efecp-81L,  0x9c26722a0bd24684p-79L,
        -0x8f5f2dd1b0d9336ap-78L, -0x8723349d22c66cf9p-76L, 0xef7965362fe48374p-76L,
        0xe59db0dcb2180f10p-74L,  -0xad2b8b672a7f3757p-72L, -0x82dd97f2dfa829a8p-71L,
        0xa385d0fb3f4ff03fp-68L,  -0x8008aa1b8b648be2p-66L, 0x80e08d39ae6cc2d1p-65L,
        -0xbe5446f610bd3354p-65L, 0xd7dd9f9db9a1d661p-66L};
    wide t = (x - 2.5L) / (x + 2.5L), high = (float)x;
    wide square = expm1_wide((high - x) * (high + x)) + 1.0L;
    return exp_wide(-high * high) * square * poly(t, c, COUNT(c));
}

double f64_erf(double x)
{
    static const wide c[] = {
        0xd5ae618a44f94863p-130L,  -0x8c6645030e23caa3p-125L, 0xafbc8cde33dc5e12p-121L,
        -0xd1003d79a23fae0dp-117L, 0xeb859a9bfa3b2788p-113L,  -0xfab7838d442e7467p-109L,
        0xfb41d7254b8035c2p-105L,  -0xec229e5862374ef7p-101L, 0xcf356af2ad397e41p-97L,
        -0xa8eb8c0e2e9b6424p-93L,  0xfe62b9031260de6dp-90L,   -0xafba17621f38cf8bp-86L,
        0xdcf364ee328d1404p-83L,   -0xfa692e1f06175af3p-80L,  0xfcd1937cdc4dbbd3p-77L,
        -0xe016da00205c2c4dp-74L,  0xab2de6873529f72cp-71L,   -0xdc167189445a86f0p-69L,
        0xe71790d0215f0dafp-67L,   -0xc093a3581bcf3612p-65L,  0x906eba8214db688dp-63L};
    wide a = fabsl((wide)x);
    if (x != x)
        return x;
    if (a < 1.0L)
        return (double)(x * poly(a * a, c, COUNT(c)));
    return copysign(a < 6.0L ? (double)(1.0L - erfc_wide(a)) : 1.0, x);
}

/* ---- pow ---- */

/* log x = high + low to some 70 bits, |low| small: the quotient s is taken in two parts, and so is
 * the sum with e log 2. */
static wide log_two_parts(double x, wide *ret_low)
{
    int e;
    wide m = split(x, &e), f = m - 1.0L, g = m + 1.0L;
    wide s = f / g, s1 = (float)s, g1 = (float)g;
    wide s2 = ((f - s1 * g1) - s1 * (g - g1)) / g;
    wide a = e * ln2_high, b = 2.0L * s1, high = a + b, part = high - a;
    *ret_low = ((a - (high - part)) + (b - part)) + (e * ln2_low + (2.0L * s2 + log_tail(s)));
    return high;
}

/* x^y for positive, finite x and finite y. */
static wide pow_wide(double x, double y)
{
    wide low, high = log_two_parts(x, &low), size = y * (high + low);
    if (size > 800.0L || size < -800.0L)
        return pow2(size > 0 ? 1100 : -1200); /* becomes infinity or 0 */
    int n = ln2_multiples(size);
    wide y1 = (float)y, y2 = (wide)y - y1, h1 = (float)high;
    wide r = (y1 * h1 - n * ln2_high) + y2 * h1;
    r += (y * ((high - h1) + low) - n * ln2_low);
    return (expm1_reduced(r) + 1.0L) * pow2(n);
}

double f64_pow(double x, double y)
{
    if (x == 1.0 || y == 0.0)
        return 1.0;
    if (x != x || y != y)
        return x + y;
    double a = fabs(x);
    bool integer = floor(y) == y, odd = integer && floor(y * 0.5) != y * 0.5;
    bool negative = odd && signbit(x);
    double r;
    if (a == 1.0 && (integer || isinf(y)))
        return negative ? -1.0 : 1.0;
    if (isinf(y))
        return (a > 1.0) == (y > 0) ? INFINITY : 0.0;
    if (a == 0 || isinf(a))
        r = (a == 0) == (y > 0) ? 0.0 : INFINITY;
    else if (x < 0 && !integer)
        return NAN;
    else
        r = (double)pow_wide(a, y);
    return negative ? -r : r;
}
