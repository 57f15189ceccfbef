/* Conversions between element types. Plain C compiled once; pure functions, any thread.
 *
 * Every pair goes through one of two carriers, both exact for what they carry: int64 (with uint64
 * as its bits) for integers, double for floating point. So 13 readers and 13 writers make all
 * pairs. */
#include "gpu-worker/cpu/half.h"
#include "gpu-worker/cpu/plain.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define CHUNK 256

/* Truncation towards zero; NaN gives 0, values outside [low, high] saturate. high + 1 is exact in
 * double for every integer type, high itself is not. */
static int64_t saturate_signed(double x, double low, double past_high, int64_t high)
{
    if (x != x)
        return 0;
    if (x <= low)
        return (int64_t)low;
    return x >= past_high ? high : (int64_t)x;
}

static uint64_t saturate_unsigned(double x, double past_high, uint64_t high)
{
    if (!(x > 0.0))
        return 0;
    return x >= past_high ? high : (uint64_t)x;
}

enum carrier { SIGNED, UNSIGNED, FLOATING };

static enum carrier carrier_of(enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_FP16:
    case CM_BF16:
    case CM_FP32:
    case CM_FP64:
        return FLOATING;
    case CM_INT8:
    case CM_INT16:
    case CM_INT32:
    case CM_INT64:
        return SIGNED;
    default:
        return UNSIGNED;
    }
}

#define READ(id, type, carrier, expression) \
    case CM_##id: {                         \
        const type *p = x;                  \
        for (size_t i = 0; i < n; i++)      \
            out[i] = (carrier)(expression); \
        break;                              \
    }

static void read_integers(enum cm_dtype from, const void *x, uint64_t *out, size_t n)
{
    switch (from) {
        READ(BOOL, uint8_t, uint64_t, p[i] != 0)
        READ(UINT8, uint8_t, uint64_t, p[i])
        READ(UINT16, uint16_t, uint64_t, p[i])
        READ(UINT32, uint32_t, uint64_t, p[i])
        READ(UINT64, uint64_t, uint64_t, p[i])
        READ(INT8, int8_t, uint64_t, (int64_t)p[i])
        READ(INT16, int16_t, uint64_t, (int64_t)p[i])
        READ(INT32, int32_t, uint64_t, (int64_t)p[i])
        READ(INT64, int64_t, uint64_t, p[i])
    default:
        break;
    }
}

static void read_floats(enum cm_dtype from, const void *x, double *out, size_t n)
{
    switch (from) {
        READ(FP16, uint16_t, double, half_to_float(p[i]))
        READ(BF16, uint16_t, double, bfloat_to_float(p[i]))
        READ(FP32, float, double, p[i])
        READ(FP64, double, double, p[i])
    default:
        break;
    }
}

#define WRITE(id, type, expression)    \
    case CM_##id: {                    \
        type *q = y;                   \
        for (size_t i = 0; i < n; i++) \
            q[i] = (type)(expression); \
        break;                         \
    }

/* Integer to integer wraps: the low bits. */
static void write_integers(enum cm_dtype to, const uint64_t *in, void *y, size_t n)
{
    switch (to) {
        WRITE(BOOL, uint8_t, in[i] != 0)
        WRITE(UINT8, uint8_t, in[i])
        WRITE(UINT16, uint16_t, in[i])
        WRITE(UINT32, uint32_t, in[i])
        WRITE(UINT64, uint64_t, in[i])
        WRITE(INT8, int8_t, in[i])
        WRITE(INT16, int16_t, in[i])
        WRITE(INT32, int32_t, in[i])
        WRITE(INT64, int64_t, in[i])
    default:
        break;
    }
}

/* 64-bit integers to the smaller floats: FP32 directly (one rounding); to FP16 and BF16 through a
 * double rounded to odd (the low bit stands for all lost ones), so that the second rounding is the
 * only one that shows. */
static double odd_double(uint64_t magnitude, bool negative)
{
    unsigned shift = magnitude >> 53 ? 11u - (unsigned)__builtin_clzll(magnitude) : 0;
    uint64_t kept = magnitude >> shift;
    if (shift && magnitude & ((1ull << shift) - 1))
        kept |= 1;
    double d = ldexp((double)kept, (int)shift);
    return negative ? -d : d;
}

#define NARROW(i) \
    (is_signed && (int64_t)in[i] < 0 ? odd_double(0 - in[i], true) : odd_double(in[i], false))

static void integers_to_floats(enum cm_dtype to, const uint64_t *in, bool is_signed, void *y,
                               size_t n)
{
    switch (to) {
        WRITE(FP16, uint16_t, double_to_half(NARROW(i)))
        WRITE(BF16, uint16_t, double_to_bfloat(NARROW(i)))
        WRITE(FP32, float, is_signed ? (float)(int64_t)in[i] : (float)in[i])
        WRITE(FP64, double, is_signed ? (double)(int64_t)in[i] : (double)in[i])
    default:
        break;
    }
}

static void write_floats(enum cm_dtype to, const double *in, void *y, size_t n)
{
    switch (to) {
        WRITE(BOOL, uint8_t, in[i] != 0.0)
        WRITE(UINT8, uint8_t, saturate_unsigned(in[i], 0x1p8, UINT8_MAX))
        WRITE(UINT16, uint16_t, saturate_unsigned(in[i], 0x1p16, UINT16_MAX))
        WRITE(UINT32, uint32_t, saturate_unsigned(in[i], 0x1p32, UINT32_MAX))
        WRITE(UINT64, uint64_t, saturate_unsigned(in[i], 0x1p64, UINT64_MAX))
        WRITE(INT8, int8_t, saturate_signed(in[i], -0x1p7, 0x1p7, INT8_MAX))
        WRITE(INT16, int16_t, saturate_signed(in[i], -0x1p15, 0x1p15, INT16_MAX))
        WRITE(INT32, int32_t, saturate_signed(in[i], -0x1p31, 0x1p31, INT32_MAX))
        WRITE(INT64, int64_t, saturate_signed(in[i], -0x1p63, 0x1p63, INT64_MAX))
        WRITE(FP16, uint16_t, double_to_half(in[i]))
        WRITE(BF16, uint16_t, double_to_bfloat(in[i]))
        WRITE(FP32, float, in[i])
        WRITE(FP64, double, in[i])
    default:
        break;
    }
}

/* FP16 and BF16 to and from FP32 without a detour: their operators do it for every element. */
static bool cast_halves(enum cm_dtype from, enum cm_dtype to, const void *x, void *y, size_t n)
{
    const uint16_t *h = x;
    const float *f = x;
    uint16_t *out_h = y;
    float *out_f = y;
    if (from == CM_FP16 && to == CM_FP32)
        for (size_t i = 0; i < n; i++)
            out_f[i] = half_to_float(h[i]);
    else if (from == CM_BF16 && to == CM_FP32)
        for (size_t i = 0; i < n; i++)
            out_f[i] = bfloat_to_float(h[i]);
    else if (from == CM_FP32 && to == CM_FP16)
        for (size_t i = 0; i < n; i++)
            out_h[i] = float_to_half(f[i]);
    else if (from == CM_FP32 && to == CM_BF16)
        for (size_t i = 0; i < n; i++)
            out_h[i] = float_to_bfloat(f[i]);
    else
        return false;
    return true;
}

static void cast_chunk(enum cm_dtype from, enum cm_dtype to, const void *x, void *y, size_t n)
{
    enum carrier carrier = carrier_of(from);
    if (carrier == FLOATING) {
        double values[CHUNK];
        read_floats(from, x, values, n);
        write_floats(to, values, y, n);
        return;
    }
    uint64_t values[CHUNK];
    read_integers(from, x, values, n);
    if (carrier_of(to) == FLOATING)
        integers_to_floats(to, values, carrier == SIGNED, y, n);
    else
        write_integers(to, values, y, n);
}

void k_cast(enum cm_dtype from, enum cm_dtype to, const void *x, void *y, size_t n)
{
    size_t in = cm_dtype_size(from), out = cm_dtype_size(to);
    if (from == to && from != CM_BOOL) {
        memmove(y, x, n * in);
        return;
    }
    if (cast_halves(from, to, x, y, n))
        return;
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        cast_chunk(from, to, (const char *)x + i * in, (char *)y + i * out, count);
    }
}
