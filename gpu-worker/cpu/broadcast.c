/* Broadcasting walk. Pure functions, any thread. */
#include "gpu-worker/cpu/broadcast.h"

#include "common/check.h"

#include <string.h>

/* Dimension d (counted from the right) of a shape; 1 beyond its rank. */
static int64_t dim_from_right(const struct cm_shape *s, unsigned d)
{
    return d < s->rank ? s->dims[s->rank - 1 - d] : 1;
}

enum cm_err cpu_bcast_shape(const struct cm_shape *const *operands, unsigned n_operands,
                            struct cm_shape *ret_shape)
{
    struct cm_shape out = {0};
    for (unsigned o = 0; o < n_operands; o++)
        if (operands[o]->rank > out.rank)
            out.rank = operands[o]->rank;
    if (out.rank > CM_MAX_RANK)
        return CM_INVALID;
    for (unsigned d = 0; d < out.rank; d++) {
        int64_t dim = 1;
        for (unsigned o = 0; o < n_operands; o++) {
            int64_t mine = dim_from_right(operands[o], d);
            if (mine != 1 && dim != 1 && mine != dim)
                return CM_INVALID;
            if (mine != 1)
                dim = mine;
        }
        out.dims[out.rank - 1 - d] = dim;
    }
    int64_t count;
    enum cm_err err = cm_shape_count(&out, &count);
    if (err == CM_OK)
        *ret_shape = out;
    return err;
}

/* Element strides of one operand along the output's dimensions, counted from the left. */
static void operand_strides(const struct cm_shape *out, const struct cm_shape *s, size_t *ret)
{
    size_t stride = 1;
    for (unsigned d = 0; d < out->rank; d++) {
        size_t dim = (size_t)dim_from_right(s, d);
        ret[out->rank - 1 - d] = dim == 1 ? 0 : stride;
        stride *= dim;
    }
}

void cpu_bcast_init(struct cpu_bcast *b, const struct cm_shape *out,
                    const struct cm_shape *const *operands, unsigned n_operands)
{
    CM_ASSERT(n_operands >= 1 && n_operands <= CPU_BCAST_OPERANDS && out->rank <= CM_MAX_RANK);
    size_t strides[CPU_BCAST_OPERANDS][CM_MAX_RANK];
    *b = (struct cpu_bcast){.n_operands = n_operands, .count = 1};
    for (unsigned o = 0; o < n_operands; o++)
        operand_strides(out, operands[o], strides[o]);
    for (unsigned d = 0; d < out->rank; d++) {
        size_t dim = (size_t)out->dims[d];
        b->count *= dim;
        if (dim == 1)
            continue;
        /* Joins the dimension to its left where every operand goes on by the same step. */
        bool joined = b->rank > 0;
        for (unsigned o = 0; joined && o < n_operands; o++)
            joined = b->strides[o][b->rank - 1] == strides[o][d] * dim;
        if (!joined)
            b->rank++;
        b->dims[b->rank - 1] = joined ? b->dims[b->rank - 1] * dim : dim;
        for (unsigned o = 0; o < n_operands; o++)
            b->strides[o][b->rank - 1] = strides[o][d];
    }
    if (b->rank == 0) { /* one element */
        b->rank = 1;
        b->dims[0] = 1;
    }
}

void cpu_bcast_walk(const struct cpu_bcast *b, size_t e0, size_t e1, cpu_bcast_fn *fn,
                    void *context)
{
    const unsigned last = b->rank - 1;
    while (e0 < e1) {
        struct cpu_bcast_run run = {.out = e0};
        size_t inner = e0 % b->dims[last], row = e0 / b->dims[last];
        run.n = b->dims[last] - inner;
        if (run.n > e1 - e0)
            run.n = e1 - e0;
        for (unsigned o = 0; o < b->n_operands; o++) {
            run.step[o] = b->strides[o][last];
            run.offset[o] = inner * run.step[o];
        }
        for (unsigned d = last; d-- > 0;) {
            size_t index = row % b->dims[d];
            row /= b->dims[d];
            for (unsigned o = 0; o < b->n_operands; o++)
                run.offset[o] += index * b->strides[o][d];
        }
        fn(context, &run);
        e0 += run.n;
    }
}

struct f32_call {
    k_binary_fn *fn;
    const float *x0, *x1;
    float *y;
};

static void f32_run(void *context, const struct cpu_bcast_run *run)
{
    const struct f32_call *call = context;
    call->fn(call->x0 + run->offset[0], run->step[0], call->x1 + run->offset[1], run->step[1],
             call->y + run->out, run->n);
}

void cpu_bcast_f32(const struct cpu_bcast *b, k_binary_fn *fn, const float *x0, const float *x1,
                   float *y, size_t e0, size_t e1)
{
    struct f32_call call = {fn, x0, x1, y};
    cpu_bcast_walk(b, e0, e1, f32_run, &call);
}
