/* Strided copies: transpose, slice, concat, expand. Plain C; pure functions, any thread. */
#include "gpu-worker/cpu/plain.h"

#include <string.h>

size_t k_copy_items(const struct k_copy *c)
{
    size_t items = 1;
    /* Of runs without elements there may be too many to loop over. */
    if (c->rank > 0 && c->dims[c->rank - 1] == 0)
        return 0;
    for (unsigned d = 0; d + 1 < c->rank; d++)
        items *= c->dims[d];
    return items;
}

#define COPY_AS(type)                                                   \
    do {                                                                \
        const type *from = (const type *)(const void *)x;               \
        type *to = (type *)(void *)y;                                   \
        for (size_t i = 0; i < n; i++)                                  \
            to[(ptrdiff_t)i * out_step] = from[(ptrdiff_t)i * in_step]; \
    } while (0)

/* n elements along the last dimension. */
static void copy_run(size_t element, const char *x, ptrdiff_t in_step, char *y, ptrdiff_t out_step,
                     size_t n)
{
    if (in_step == 1 && out_step == 1) {
        memcpy(y, x, n * element);
        return;
    }
    switch (element) {
    case 1:
        COPY_AS(uint8_t);
        return;
    case 2:
        COPY_AS(uint16_t);
        return;
    case 4:
        COPY_AS(uint32_t);
        return;
    case 8:
        COPY_AS(uint64_t);
        return;
    default:
        for (size_t i = 0; i < n; i++)
            memcpy(y + (ptrdiff_t)(i * element) * out_step, x + (ptrdiff_t)(i * element) * in_step,
                   element);
    }
}

void k_copy_run(const struct k_copy *c, size_t i0, size_t i1)
{
    const ptrdiff_t element = (ptrdiff_t)c->element;
    const unsigned last = c->rank ? c->rank - 1 : 0;
    const size_t n = c->rank ? c->dims[last] : 1;
    const ptrdiff_t in_step = c->rank ? c->in_stride[last] : 1;
    const ptrdiff_t out_step = c->rank ? c->out_stride[last] : 1;
    for (size_t i = i0; i < i1; i++) {
        ptrdiff_t in = 0, out = 0;
        size_t row = i;
        for (unsigned d = last; d-- > 0;) {
            ptrdiff_t index = (ptrdiff_t)(row % c->dims[d]);
            row /= c->dims[d];
            in += index * c->in_stride[d];
            out += index * c->out_stride[d];
        }
        copy_run(c->element, (const char *)c->x + in * element, in_step,
                 (char *)c->y + out * element, out_step, n);
    }
}

static void swap_dims(struct k_copy *c, unsigned a, unsigned b)
{
    size_t dim = c->dims[a];
    ptrdiff_t in = c->in_stride[a], out = c->out_stride[a];
    c->dims[a] = c->dims[b];
    c->in_stride[a] = c->in_stride[b];
    c->out_stride[a] = c->out_stride[b];
    c->dims[b] = dim;
    c->in_stride[b] = in;
    c->out_stride[b] = out;
}

static size_t distance(ptrdiff_t stride)
{
    return stride < 0 ? -(size_t)stride : (size_t)stride;
}

/* Orders dimensions by falling output stride (so that writes are as linear as they can be), drops
 * those of size 1 and joins neighbours that continue each other on both sides. */
void k_copy_simplify(struct k_copy *c)
{
    for (unsigned i = 1; i < c->rank; i++)
        for (unsigned d = i; d > 0 && distance(c->out_stride[d]) > distance(c->out_stride[d - 1]);
             d--)
            swap_dims(c, d, d - 1);
    unsigned rank = 0;
    for (unsigned d = 0; d < c->rank; d++) {
        ptrdiff_t dim = (ptrdiff_t)c->dims[d];
        if (dim == 1)
            continue;
        if (rank > 0 && c->in_stride[rank - 1] == c->in_stride[d] * dim &&
            c->out_stride[rank - 1] == c->out_stride[d] * dim) {
            c->dims[rank - 1] *= c->dims[d];
        } else {
            c->dims[rank] = c->dims[d];
            rank++;
        }
        c->in_stride[rank - 1] = c->in_stride[d];
        c->out_stride[rank - 1] = c->out_stride[d];
    }
    c->rank = rank;
}
