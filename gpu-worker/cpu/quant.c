/* Quantised numbers; see quant.h. */
#include "gpu-worker/cpu/quant.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <stdbool.h>

#define CHUNK 256

struct range {
    int32_t low, high;
};

static struct range range_of(enum cm_dtype dtype)
{
    switch (dtype) {
    case CM_INT8:
        return (struct range){INT8_MIN, INT8_MAX};
    case CM_UINT8:
        return (struct range){0, UINT8_MAX};
    case CM_INT16:
        return (struct range){INT16_MIN, INT16_MAX};
    default:
        CM_ASSERT(dtype == CM_UINT16);
        return (struct range){0, UINT16_MAX};
    }
}

/* Nearest integer, ties to even, of a number below 2^22 in size: adding 1.5 * 2^23 leaves no bits
 * behind the point. Plain SSE2 has no instruction for it. */
static inline int32_t round_small(float x)
{
    return (int32_t)((x + 0x1.8p23f) - 0x1.8p23f);
}

/* Bounds are integers, so clamping before rounding is the same as after, and the rounding is then
 * of a small number. */
static inline int32_t to_quantized(float t, struct range r, int32_t zero)
{
    float low = (float)(r.low - zero), high = (float)(r.high - zero);
    t = t == t ? t : 0.0f;
    t = t < low ? low : t;
    t = t > high ? high : t;
    return round_small(t) + zero;
}

static inline int32_t double_to_quantized(double t, struct range r, int32_t zero)
{
    double low = r.low - zero, high = r.high - zero;
    t = t == t ? t : 0.0;
    t = t < low ? low : t;
    t = t > high ? high : t;
    return (int32_t)((t + 0x1.8p52) - 0x1.8p52) + zero;
}

static void narrow(const int32_t *x, enum cm_dtype to, void *y, size_t n)
{
    if (cm_dtype_size(to) == 1)
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)y)[i] = (uint8_t)x[i];
    else
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)y)[i] = (uint16_t)x[i];
}

/* A zero point of 16 bits makes bounds of up to 2^17, far below what round_small takes. */
static void quantize_chunk(enum cm_dtype from, const void *x, const float *scale,
                           const int32_t *zero, size_t step, struct range r, int32_t *y, size_t n)
{
    float values[CHUNK];
    if (from == CM_INT32) {
        for (size_t i = 0; i < n; i++)
            y[i] = double_to_quantized((double)((const int32_t *)x)[i] / (double)scale[i * step], r,
                                       zero[i * step]);
        return;
    }
    if (from != CM_FP32) {
        k_cast(from, CM_FP32, x, values, n);
        x = values;
    }
    if (step == 0)
        for (size_t i = 0; i < n; i++)
            y[i] = to_quantized(((const float *)x)[i] / *scale, r, *zero);
    else
        for (size_t i = 0; i < n; i++)
            y[i] = to_quantized(((const float *)x)[i] / scale[i], r, zero[i]);
}

void k_quantize(enum cm_dtype from, const void *x, const float *scale, const int32_t *zero,
                size_t step, enum cm_dtype to, void *y, size_t n)
{
    int32_t values[CHUNK];
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        quantize_chunk(from, (const char *)x + i * cm_dtype_size(from), scale + i * step,
                       zero + i * step, step, range_of(to), values, count);
        narrow(values, to, (char *)y + i * cm_dtype_size(to), count);
    }
}

static void widen(enum cm_dtype from, const void *x, int32_t *y, size_t n)
{
    switch (from) {
#define X(dtype, type)                   \
    case dtype:                          \
        for (size_t i = 0; i < n; i++)   \
            y[i] = ((const type *)x)[i]; \
        break;
        X(CM_INT8, int8_t)
        X(CM_UINT8, uint8_t)
        X(CM_INT16, int16_t)
        X(CM_UINT16, uint16_t)
        X(CM_INT32, int32_t)
#undef X
    default:
        CM_ASSERT(false);
    }
}

int32_t k_int_at(enum cm_dtype dtype, const void *x, size_t i)
{
    int32_t value;
    widen(dtype, (const char *)x + i * cm_dtype_size(dtype), &value, 1);
    return value;
}

void k_dequantize(enum cm_dtype from, const void *x, const float *scale, const int32_t *zero,
                  size_t step, enum cm_dtype to, void *y, size_t n)
{
    int32_t values[CHUNK];
    float floats[CHUNK];
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        float *out = to == CM_FP32 ? (float *)y + i : floats;
        widen(from, (const char *)x + i * cm_dtype_size(from), values, count);
        if (from == CM_INT32) /* the difference may need 33 bits */
            for (size_t l = 0; l < count; l++)
                out[l] = (float)((int64_t)values[l] - zero[(i + l) * step]) * scale[(i + l) * step];
        else if (step == 0)
            for (size_t l = 0; l < count; l++)
                out[l] = (float)(values[l] - *zero) * *scale;
        else
            for (size_t l = 0; l < count; l++)
                out[l] = (float)(values[l] - zero[i + l]) * scale[i + l];
        if (to != CM_FP32)
            k_cast(CM_FP32, to, floats, (char *)y + i * cm_dtype_size(to), count);
    }
}

void k_center(enum cm_dtype dtype, const void *x, const int32_t *zero, size_t step, float *y,
              size_t n)
{
    int32_t values[CHUNK];
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        widen(dtype, (const char *)x + i, values, count);
        if (step == 0)
            for (size_t l = 0; l < count; l++)
                y[i + l] = (float)(values[l] - *zero);
        else
            for (size_t l = 0; l < count; l++)
                y[i + l] = (float)(values[l] - zero[i + l]);
    }
}

void k_accumulate(const float *x, bool first, int32_t *sum, size_t n)
{
    if (first)
        for (size_t i = 0; i < n; i++)
            sum[i] = (int32_t)x[i];
    else
        for (size_t i = 0; i < n; i++)
            sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)(int32_t)x[i]);
}

void k_requantize(const int32_t *sum, const float *factor, size_t step, int32_t zero,
                  enum cm_dtype to, void *y, size_t n)
{
    int32_t values[CHUNK];
    struct range r = range_of(to);
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t count = n - i < CHUNK ? n - i : CHUNK;
        for (size_t l = 0; l < count; l++)
            values[l] = to_quantized((float)sum[i + l] * factor[(i + l) * step], r, zero);
        narrow(values, to, (char *)y + i, count);
    }
}
