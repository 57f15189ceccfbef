/* Runs the stages of an epilogue on pieces of rows. Included by kernel sources after k.h.
 *
 * The stages are the table's own element-wise kernels, called on a piece that is still in the first
 * level cache: the fused and the unfused chain cannot differ. */
#ifndef GPU_WORKER_CPU_EPILOGUE_H
#define GPU_WORKER_CPU_EPILOGUE_H

/* n values at y, which lies at `offset` from the output's start, in row `row`. */
static inline void epilogue_run(const struct k_epilogue *e, float *y, size_t offset, size_t row,
                                size_t n)
{
    static k_unary_fn *const unary[] = {
#define KU(name) [K_UNARY_##name] = K_NAME(f32_##name),
#include "gpu-worker/cpu/kernels.inc"
    };
    static k_binary_fn *const binary[] = {
#define KB(name) [K_BINARY_##name] = K_NAME(f32_##name),
#include "gpu-worker/cpu/kernels.inc"
    };
    for (unsigned i = 0; i < e->n_stages; i++) {
        const struct k_stage *s = &e->stages[i];
        struct k_scale_shift channel = {.channels = 1, .plane = n, .x = y, .y = y};
        switch (s->kind) {
        case K_STAGE_UNARY:
            unary[s->op](y, y, n, &s->params);
            break;
        case K_STAGE_BINARY:
            binary[s->op](y, 1, s->operand + offset, 1, y, n);
            break;
        case K_STAGE_SCALE_SHIFT:
            channel.scale = s->scale + row;
            channel.shift = s->shift + row;
            K_NAME(f32_scale_shift)(&channel, 0, 1);
            break;
        }
    }
}

/* The epilogue of a part of the output that starts at offset and row. */
static inline struct k_epilogue epilogue_at(const struct k_epilogue *e, size_t offset, size_t row)
{
    struct k_epilogue part = *e;
    for (unsigned i = 0; i < part.n_stages; i++) {
        struct k_stage *s = &part.stages[i];
        if (s->kind == K_STAGE_BINARY)
            s->operand += offset;
        if (s->kind == K_STAGE_SCALE_SHIFT) {
            s->scale += row;
            s->shift += row;
        }
    }
    return part;
}

#endif
