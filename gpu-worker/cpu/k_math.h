/* exp, expm1, log, log1p, tanh, sigmoid, erf, sin and cos on logical vectors, with a fixed order of
 * operations. Included by kernel sources after k.h. The largest errors, against double precision,
 * are in README.md and are checked by the tests.
 *
 * exp, log and tanh use the polynomials of Cephes' single-precision library; erf's two polynomials
 * are minimax fits of this project: of erf(x)/x - 1 in x*x below ERF_CUT, of log(erfc(x)) above; so
 * are those of log1p, sin and cos. */
#ifndef GPU_WORKER_CPU_K_MATH_H
#define GPU_WORKER_CPU_K_MATH_H

#include "gpu-worker/cpu/f64_math.h"

/* Adding it rounds a small float to the nearest integer, which then stands in the low bits. */
#define ROUND_MAGIC      12582912.0f
#define ROUND_MAGIC_BITS 0x4b400000u

/* c[0] x^(n-1) + ... + c[n-1], by Horner's rule with fused steps. */
K_INLINE v v_poly(v x, const float *c, const unsigned n)
{
    v y = v_set(c[0]);
    K_UNROLL(10)
    for (unsigned i = 1; i < n; i++)
        y = v_fma(y, x, v_set(c[i]));
    return y;
}

/* 2^i for an integer i in -126..127. */
K_INLINE v v_pow2(vi i)
{
    return vi_asfloat(vi_sll(vi_add(i, vi_set(127)), 23));
}

/* e^x = 2^n e^r, r = x - n log 2 in two steps. 2^n is applied as two factors, the first exact, so
 * that denormal results are rounded once and 2^128 does not overflow too early. */
K_LARGE v v_exp(v x)
{
    static const float c[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                              4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    x = v_minraw(v_set(89.0f), v_maxraw(v_set(-104.0f), x)); /* keeps NaN */
    v t = v_fma(x, v_set(1.44269504088896341f), v_set(ROUND_MAGIC));
    v n = v_sub(t, v_set(ROUND_MAGIC));
    v r = v_fnma(n, v_set(0.693359375f), x);
    r = v_fnma(n, v_set(-2.12194440e-4f), r);
    v y = v_fma(v_poly(r, c, 6), v_mul(r, r), r);
    y = v_add(y, v_set(1.0f));
    vi whole = vi_sub(v_asint(t), vi_set(ROUND_MAGIC_BITS));
    v half = v_fma(n, v_set(0.5f), v_set(ROUND_MAGIC));
    vi first = vi_sub(v_asint(half), vi_set(ROUND_MAGIC_BITS));
    return v_mul(v_mul(y, v_pow2(first)), v_pow2(vi_sub(whole, first)));
}

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), all halved so that 2^128 fits. Below -17.4 it is -1.
 */
K_LARGE v v_expm1(v x)
{
    static const float c[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                              4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    x = v_minraw(v_set(89.0f), v_maxraw(v_set(-17.4f), x)); /* keeps NaN */
    v t = v_fma(x, v_set(1.44269504088896341f), v_set(ROUND_MAGIC));
    v n = v_sub(t, v_set(ROUND_MAGIC));
    v r = v_fnma(n, v_set(0.693359375f), x);
    r = v_fnma(n, v_set(-2.12194440e-4f), r);
    v y = v_fma(v_poly(r, c, 6), v_mul(r, r), r);
    v half = v_pow2(vi_sub(v_asint(t), vi_set(ROUND_MAGIC_BITS + 1)));
    v whole = v_fma(half, y, v_sub(half, v_set(0.5f)));
    return v_sel(v_lt(v_abs(x), v_set(0.25f)), y,
                 v_add(whole, whole)); /* denormals are not halved */
}

/* log x = e log 2 + log m, m in [sqrt(1/2), sqrt(2)). */
K_LARGE v v_log(v x)
{
    static const float c[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                              -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                              2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    vm denormal = v_lt(x, v_set(1.17549435e-38f));
    v scaled = v_sel(denormal, v_mul(x, v_set(8388608.0f)), x);
    vi i = vi_sra(vi_sub(v_asint(scaled), vi_set(0x3f3504f3u)), 23);
    v m = vi_asfloat(vi_sub(v_asint(scaled), vi_sll(i, 23)));
    v e = v_add(vi_tofloat(i), v_sel(denormal, v_set(-23.0f), v_zero()));
    v f = v_sub(m, v_set(1.0f));
    v z = v_mul(f, f);
    v y = v_mul(v_mul(v_poly(f, c, 9), f), z);
    y = v_fma(e, v_set(-2.12194440e-4f), y);
    y = v_fnma(v_set(0.5f), z, y);
    y = v_fma(e, v_set(0.693359375f), v_add(f, y));
    /* Not a positive finite number: inf and NaN stay, zeros give -inf, negative numbers NaN. */
    y = v_sel(v_lt(v_set(3.40282347e+38f), x), x, y);
    v other = v_sel(v_lt(x, v_zero()), v_bits(0x7fc00000u), v_bits(0xff800000u));
    return v_sel(v_lt(v_zero(), x), y, v_sel(v_isnan(x), x, other));
}

/* log(1 + x) for x in 0..1: 2 atanh(s), s = x / (2 + x), and 2 s = x - s x, so that only x itself
 * is not multiplied by something small. */
K_LARGE v v_log1p(v x)
{
    static const float c[] = {0.12154162675142288f, 0.10712925344705582f, 0.14308518171310425f,
                              0.19999437034130096f, 0.3333333730697632f};
    v s = v_div(x, v_add(v_set(2.0f), x));
    v z = v_mul(s, s);
    v rest = v_mul(v_add(z, z), v_poly(z, c, 5));
    return v_fma(s, v_sub(rest, x), x);
}

/* 1 / (1 + e^-x), with the exponential's argument never positive: a = 1 / (1 + e), e = e^-|x|. For
 * negative x the quotient e / (1 + e) starts as e a and is corrected by what e - q (1 + e) leaves,
 * the rounding of 1 + e included. */
K_LARGE v v_sigmoid(v x)
{
    v e = v_exp(v_neg(v_abs(x)));
    v one = v_set(1.0f);
    v d = v_add(one, e);
    v lost = v_add(v_sub(one, d), e);
    v a = v_div(one, d);
    v q = v_mul(e, a);
    v rest = v_fnma(q, lost, v_fnma(q, d, e));
    return v_sel(v_lt(x, v_zero()), v_fma(rest, a, q), a);
}

K_LARGE v v_tanh(v x)
{
    static const float c[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                              1.33314422036e-1f, -3.33332819422e-1f};
    v a = v_abs(x);
    v z = v_mul(a, a);
    v small = v_fma(v_mul(v_poly(z, c, 5), z), a, a);
    v one = v_set(1.0f);
    v big = v_sub(one, v_div(v_set(2.0f), v_add(v_exp(v_add(a, a)), one)));
    v y = v_sel(v_lt(a, v_set(0.625f)), small, big);
    return v_xorbits(y, v_andbits(x, v_bits(0x80000000u)));
}

#define ERF_CUT 0.9f
K_LARGE v v_erf(v x)
{
    static const float near_zero[] = {8.513104629799987e-05f, -0.0008175639429242085f,
                                      0.005203859172386673f,  -0.026860508468377946f,
                                      0.11283715032946427f,   -0.3761263497985712f,
                                      0.12837916676436606f};
    static const float log_erfc[] = {-2.0828547707295578e-05f, 0.00043139281375860917f,
                                     -0.004156251576703442f,   0.02508060846171324f,
                                     -0.1082203727321628f,     -0.6334008602017442f,
                                     -1.1294884022342768f,     0.0001692043354788123f};
    v a = v_abs(x);
    v small = v_fma(v_poly(v_mul(x, x), near_zero, 7), x, x);
    v t = v_minraw(v_set(4.0f), a); /* erf is 1 from there on; keeps NaN */
    v big = v_sub(v_set(1.0f), v_exp(v_poly(t, log_erfc, 8)));
    big = v_xorbits(big, v_andbits(x, v_bits(0x80000000u)));
    return v_sel(v_lt(a, v_set(ERF_CUT)), small, big);
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|). */
K_LARGE v v_softplus(v x)
{
    v tail = v_log1p(v_exp(v_neg(v_abs(x))));
    return v_add(v_sel(v_lt(x, v_zero()), v_zero(), x), tail);
}

/* Lanes of y whose bit is set by a function in double: for arguments too large for float
 * arithmetic. Rare, so never inlined. */
static __attribute__((noinline, unused)) v v_lanes(v x, v y, unsigned lanes, double (*f)(double))
{
    float from[VL], to[VL];
    v_store(from, x);
    v_store(to, y);
    for (unsigned l = 0; l < VL; l++)
        if (lanes >> l & 1)
            to[l] = (float)f((double)from[l]);
    return v_load(to);
}

/* sin of x and `more` quarter turns: x = n pi/2 + r in three steps, the first exact; polynomials in
 * r*r. Above TURN_LIMIT n is too large for the steps to leave r accurate. */
#define TURN_LIMIT 39000.0f
K_INLINE v v_sin_turned(v x, uint32_t more, double (*far)(double))
{
    static const float s[] = {-0.00019510870333760977f, 0.008332131430506706f,
                              -0.16666653752326965f};
    static const float c[] = {2.4431239580735564e-05f, -0.0013887305976822972f,
                              0.04166664555668831f};
    v t = v_fma(x, v_set(0.6366197466850281f), v_set(ROUND_MAGIC));
    v n = v_sub(t, v_set(ROUND_MAGIC));
    v r = v_fnma(n, v_set(1.5707963705062866f), x);
    r = v_fnma(n, v_set(-4.371138828673793e-08f), r);
    r = v_fnma(n, v_set(-1.7151245100058819e-15f), r);
    v z = v_mul(r, r);
    v sine = v_fma(v_mul(v_poly(z, s, 3), z), r, r);
    v cosine = v_fma(v_mul(v_poly(z, c, 3), z), z, v_fnma(v_set(0.5f), z, v_set(1.0f)));
    vi quarter = vi_add(v_asint(t), vi_set(more));
    v odd = v_xorbits(v_set(1.0f), vi_asfloat(vi_sll(quarter, 31))); /* -1 or 1 */
    v y = v_sel(v_lt(odd, v_zero()), cosine, sine);
    y = v_xorbits(y, vi_asfloat(vi_sll(vi_sra(quarter, 1), 31)));
    unsigned lanes = vm_bits(v_lt(v_set(TURN_LIMIT), v_abs(x)));
    return lanes ? v_lanes(x, y, lanes, far) : y;
}

K_LARGE v v_sin(v x)
{
    v y = v_sin_turned(x, 0, f64_sin);
    return v_sel(v_lt(v_zero(), v_abs(x)), y, x); /* keeps -0 and NaN */
}

K_LARGE v v_cos(v x)
{
    return v_sin_turned(x, 1, f64_cos);
}

#endif
