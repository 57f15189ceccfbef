/* f32 element-wise functions of two operands, and the per-channel scale and shift.
 *
 * Compiled once per instruction set; runs on the caller's thread. */
#include "gpu-worker/cpu/k.h"
#include "gpu-worker/cpu/kernels.h"

/* An operand that stays is loaded once; the branch on step is outside the loop. */
#define MAP2(name, op)                                                                           \
    void K_NAME(f32_##name)(const float *a, size_t step_a, const float *b, size_t step_b,        \
                            float *y, size_t n)                                                  \
    {                                                                                            \
        if (n == 0)                                                                              \
            return;                                                                              \
        const v a0 = v_set(*a), b0 = v_set(*b);                                                  \
        size_t i = 0;                                                                            \
        if (step_a && step_b)                                                                    \
            for (; n - i >= VL; i += VL)                                                         \
                v_store(y + i, op(v_load(a + i), v_load(b + i)));                                \
        else if (step_a)                                                                         \
            for (; n - i >= VL; i += VL)                                                         \
                v_store(y + i, op(v_load(a + i), b0));                                           \
        else if (step_b)                                                                         \
            for (; n - i >= VL; i += VL)                                                         \
                v_store(y + i, op(a0, v_load(b + i)));                                           \
        else                                                                                     \
            for (; n - i >= VL; i += VL)                                                         \
                v_store(y + i, op(a0, b0));                                                      \
        unsigned rest = (unsigned)(n - i);                                                       \
        if (rest > 0)                                                                            \
            v_storen(y + i,                                                                      \
                     op(step_a ? v_loadn(a + i, rest) : a0, step_b ? v_loadn(b + i, rest) : b0), \
                     rest);                                                                      \
    }

MAP2(add, v_add)
MAP2(sub, v_sub)
MAP2(mul, v_mul)
MAP2(div, v_div)
MAP2(min, v_min)
MAP2(max, v_max)

void K_NAME(f32_scale_shift)(const struct k_scale_shift *s, size_t i0, size_t i1)
{
    for (size_t i = i0; i < i1; i++) {
        size_t channel = i % s->channels;
        v scale = v_set(s->scale[channel]), shift = v_set(s->shift[channel]);
        const float *x = s->x + i * s->plane;
        float *y = s->y + i * s->plane;
        size_t j = 0;
        for (; s->plane - j >= VL; j += VL)
            v_store(y + j, v_fma(v_load(x + j), scale, shift));
        unsigned rest = (unsigned)(s->plane - j);
        if (rest > 0)
            v_storen(y + j, v_fma(v_loadn(x + j, rest), scale, shift), rest);
    }
}
