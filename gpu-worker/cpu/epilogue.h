/* Runs the stages of an epilogue on pieces of rows. Included by kernel sources after k.h.
 *
 * The stages are the table's own element-wise kernels, called on a piece that is still in the first
 * level cache: the fused and the unfused chain cannot differ. */
#ifndef GPU_WORKER_CPU_EPILOGUE_H
#define GPU_WORKER_CPU_EPILOGUE_H

/* The operand of a stage for the piece of the output at offset, row and column. */
static inline const float *stage_operand(const struct k_stage *s, size_t offset, size_t row,
                                         size_t column)
{
    switch (s->spread) {
    case K_EACH:
        return s->operand + offset;
    case K_ROW:
        return s->operand + row;
    case K_COLUMN:
        return s->operand + column;
    case K_ONE:
        break;
    }
    return s->operand;
}

/* n values at y, which lies at `offset` from the output's start, in row `row` from `column` on. */
static inline void epilogue_run(const struct k_epilogue *e, float *y, size_t offset, size_t row,
                                size_t column, size_t n)
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
        const float *operand;
        size_t step;
        switch (s->kind) {
        case K_STAGE_UNARY:
            unary[s->op](y, y, n, &s->params);
            break;
        case K_STAGE_BINARY:
            operand = stage_operand(s, offset, row, column);
            step = s->spread == K_EACH || s->spread == K_COLUMN;
            if (s->reversed)
                binary[s->op](operand, step, y, 1, y, n);
            else
                binary[s->op](y, 1, operand, step, y, n);
            break;
        case K_STAGE_SCALE_SHIFT:
            channel.scale = s->scale + row;
            channel.shift = s->shift + row;
            K_NAME(f32_scale_shift)(&channel, 0, 1);
            break;
        }
    }
}

/* The epilogue of a part of the output that starts at offset, row and column. */
static inline struct k_epilogue epilogue_at(const struct k_epilogue *e, size_t offset, size_t row,
                                            size_t column)
{
    struct k_epilogue part = *e;
    for (unsigned i = 0; i < part.n_stages; i++) {
        struct k_stage *s = &part.stages[i];
        if (s->kind == K_STAGE_BINARY)
            s->operand = stage_operand(s, offset, row, column);
        if (s->kind == K_STAGE_SCALE_SHIFT) {
            s->scale += row;
            s->shift += row;
        }
    }
    return part;
}

#endif
