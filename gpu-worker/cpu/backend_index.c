/* CPU backend: operators that take elements by index: Gather, GatherElements, GatherND,
 * ReverseSequence, OneHot. Every element type, by size. See backend_index.h. */
#include "gpu-worker/cpu/backend_index.h"

#include "common/check.h"
#include "gpu-worker/cpu/plain.h"

#include <string.h>

struct cpu_indices cpu_indices_of(struct cpu_prepare *p, unsigned input)
{
    p->workspace += sizeof(_Atomic size_t);
    return (struct cpu_indices){p->call->node, input,
                                wk_call_in(p->call, input)->dtype == CM_INT64};
}

/* Keeps the smallest position, so that the message does not depend on the threads. */
void cpu_bad_note(const struct wk_run *run, size_t i)
{
    _Atomic size_t *first = run->workspace;
    size_t seen = atomic_load_explicit(first, memory_order_relaxed);
    while (i < seen && !atomic_compare_exchange_weak_explicit(first, &seen, i, memory_order_relaxed,
                                                              memory_order_relaxed))
        ;
}

enum cm_err cpu_bad_report(const struct cpu_indices *indices, const struct wk_run *run, size_t i,
                           size_t limit)
{
    return wk_node_fail(run->err, CM_INVALID, indices->node, "input %u: index %lld of %zu elements",
                        indices->input, (long long)cpu_index_read(indices, run, i), limit);
}

static void copy_bytes(char *to, const char *from, size_t bytes)
{
    /* Sizes that the compiler knows are single moves. */
    if (bytes == 4)
        memcpy(to, from, 4);
    else if (bytes == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, bytes);
}

/* ---- Gather ---------------------------------------------------------------------------------- */

struct gather_step {
    struct cpu_step step;
    struct cpu_indices indices;
    size_t n; /* of the gathered axis */
    size_t n_indices;
    size_t run_bytes; /* bytes behind the axis */
};

static void gather_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct gather_step *s = (const struct gather_step *)step;
    size_t outer = i0 / s->n_indices, k = i0 % s->n_indices;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t index;
        if (cpu_index_at(&s->indices, run, k, s->n, &index))
            copy_bytes((char *)run->out[0] + i * s->run_bytes,
                       (const char *)run->in[0] + (outer * s->n + index) * s->run_bytes,
                       s->run_bytes);
        else
            cpu_bad_note(run, k);
        if (++k == s->n_indices) {
            k = 0;
            outer++;
        }
    }
}

static enum cm_err gather_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct gather_step *s = (const struct gather_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, gather_body, step->items, 1);
    return cpu_bad_any(run, &bad) ? cpu_bad_report(&s->indices, run, bad, s->n) : CM_OK;
}

enum cm_err cpu_prepare_gather(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *indices = wk_call_in(p->call, 1);
    size_t count = cpu_count(&wk_call_out(p->call)->shape);
    unsigned axis = 0;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), x->shape.rank, &axis));
    size_t n_indices = cpu_count(&indices->shape);
    struct gather_step *s = cpu_step_take(
        p, sizeof *s, NULL, cpu_product(&x->shape, 0, axis) * n_indices, 1, (double)count);
    if (!s)
        return CM_NOMEM;
    s->step.run = gather_run;
    s->indices = cpu_indices_of(p, 1);
    s->n = (size_t)x->shape.dims[axis];
    s->n_indices = n_indices;
    s->run_bytes = cpu_product(&x->shape, axis + 1, x->shape.rank) * cm_dtype_size(x->dtype);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- GatherElements -------------------------------------------------------------------------- */

struct elements_step {
    struct cpu_step step;
    struct cpu_indices indices;
    unsigned rank, axis;
    size_t element, n; /* n: of the axis */
    size_t dims[CM_MAX_RANK];
    size_t stride[CM_MAX_RANK]; /* of x */
};

/* Items are rows along the last dimension of the indices. */
static void elements_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                          const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct elements_step *s = (const struct elements_step *)step;
    unsigned last = s->rank - 1;
    size_t n = s->dims[last], along = s->axis == last ? 0 : 1;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t row = i, base = 0;
        for (unsigned d = last; d-- > 0;) {
            base += d == s->axis ? 0 : row % s->dims[d] * s->stride[d];
            row /= s->dims[d];
        }
        for (size_t k = 0; k < n; k++) {
            size_t index, from;
            if (!cpu_index_at(&s->indices, run, i * n + k, s->n, &index)) {
                cpu_bad_note(run, i * n + k);
                continue;
            }
            from = base + index * s->stride[s->axis] + k * along;
            copy_bytes((char *)run->out[0] + (i * n + k) * s->element,
                       (const char *)run->in[0] + from * s->element, s->element);
        }
    }
}

static enum cm_err elements_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                                const struct wk_run *run)
{
    const struct elements_step *s = (const struct elements_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, elements_body, step->items, 1);
    return cpu_bad_any(run, &bad) ? cpu_bad_report(&s->indices, run, bad, s->n) : CM_OK;
}

enum cm_err cpu_prepare_gather_elements(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    unsigned rank = out->shape.rank;
    ptrdiff_t strides[CM_MAX_RANK];
    struct elements_step *s =
        cpu_step_take(p, sizeof *s, NULL, cpu_product(&out->shape, 0, rank - 1), 1,
                      4 * (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    s->step.run = elements_run;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", 0), rank, &s->axis));
    s->indices = cpu_indices_of(p, 1);
    s->rank = rank;
    s->element = cm_dtype_size(x->dtype);
    s->n = (size_t)x->shape.dims[s->axis];
    cpu_strides(&x->shape, strides);
    for (unsigned i = 0; i < rank; i++) {
        s->dims[i] = (size_t)out->shape.dims[i];
        s->stride[i] = (size_t)strides[i];
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- GatherND -------------------------------------------------------------------------------- */

struct tuples_step {
    struct cpu_step step;
    struct cpu_indices indices;
    unsigned n;                                    /* indices in a tuple */
    size_t per_batch;                              /* tuples that share a batch */
    size_t batch_bytes;                            /* of one batch of x */
    size_t run_bytes;                              /* behind the indexed axes */
    size_t dims[CM_MAX_RANK], stride[CM_MAX_RANK]; /* of the indexed axes; strides in runs */
};

static void tuples_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                        const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct tuples_step *s = (const struct tuples_step *)step;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t at = 0, index;
        unsigned k = 0;
        while (k < s->n && cpu_index_at(&s->indices, run, i * s->n + k, s->dims[k], &index)) {
            at += index * s->stride[k];
            k++;
        }
        if (k < s->n)
            cpu_bad_note(run, i * s->n + k);
        else
            copy_bytes((char *)run->out[0] + i * s->run_bytes,
                       (const char *)run->in[0] + i / s->per_batch * s->batch_bytes +
                           at * s->run_bytes,
                       s->run_bytes);
    }
}

static enum cm_err tuples_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct tuples_step *s = (const struct tuples_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, tuples_body, step->items, 1);
    return cpu_bad_any(run, &bad) ? cpu_bad_report(&s->indices, run, bad, s->dims[bad % s->n])
                                  : CM_OK;
}

enum cm_err cpu_prepare_gather_nd(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct cm_shape *x = &wk_call_in(p->call, 0)->shape;
    const struct cm_shape *indices = &wk_call_in(p->call, 1)->shape;
    unsigned batch = (unsigned)wk_node_int(p->call->node, "batch_dims", 0);
    unsigned n = (unsigned)indices->dims[indices->rank - 1];
    size_t element = cm_dtype_size(wk_call_in(p->call, 0)->dtype);
    struct tuples_step *s =
        cpu_step_take(p, sizeof *s, NULL, cpu_product(indices, 0, indices->rank - 1u), 1,
                      4 * (double)cpu_count(&wk_call_out(p->call)->shape));
    if (!s)
        return CM_NOMEM;
    s->step.run = tuples_run;
    s->indices = cpu_indices_of(p, 1);
    s->n = n;
    s->per_batch = cpu_product(indices, batch, indices->rank - 1u);
    s->batch_bytes = cpu_product(x, batch, x->rank) * element;
    s->run_bytes = cpu_product(x, batch + n, x->rank) * element;
    for (unsigned k = 0; k < n; k++) {
        s->dims[k] = (size_t)x->dims[batch + k];
        s->stride[k] = cpu_product(x, batch + k + 1, batch + n);
    }
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- ReverseSequence ------------------------------------------------------------------------- */

struct reverse_step {
    struct cpu_step step;
    struct cpu_indices lengths;
    bool time_first;
    size_t time, batch, run_bytes;
};

static void reverse_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct reverse_step *s = (const struct reverse_step *)step;
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        size_t t = s->time_first ? i / s->batch : i % s->time;
        size_t b = s->time_first ? i % s->batch : i / s->time;
        int64_t length = cpu_index_read(&s->lengths, run, b);
        if (length < 0 || length > (int64_t)s->time) {
            cpu_bad_note(run, b);
            continue;
        }
        size_t from = t < (size_t)length ? (size_t)length - 1 - t : t;
        size_t at = s->time_first ? from * s->batch + b : b * s->time + from;
        memcpy((char *)run->out[0] + i * s->run_bytes, (const char *)run->in[0] + at * s->run_bytes,
               s->run_bytes);
    }
}

static enum cm_err reverse_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                               const struct wk_run *run)
{
    const struct reverse_step *s = (const struct reverse_step *)step;
    size_t bad;
    cpu_bad_clear(run);
    cpu_split(cpu, step, run, reverse_body, step->items, 1);
    if (!cpu_bad_any(run, &bad))
        return CM_OK;
    return wk_node_fail(run->err, CM_INVALID, s->lengths.node, "input 1: length %lld of %zu steps",
                        (long long)cpu_index_read(&s->lengths, run, bad), s->time);
}

enum cm_err cpu_prepare_reverse_sequence(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    unsigned time = (unsigned)wk_node_int(p->call->node, "time_axis", 0);
    struct reverse_step *s = cpu_step_take(p, sizeof *s, NULL, cpu_product(&x->shape, 0, 2), 1,
                                           (double)cpu_count(&x->shape));
    if (!s)
        return CM_NOMEM;
    s->step.run = reverse_run;
    s->lengths = cpu_indices_of(p, 1);
    s->time_first = time == 0;
    s->time = (size_t)x->shape.dims[time];
    s->batch = (size_t)x->shape.dims[1 - time];
    s->run_bytes = cpu_product(&x->shape, 2, x->shape.rank) * cm_dtype_size(x->dtype);
    *ret_step = &s->step;
    return CM_OK;
}

/* ---- OneHot ---------------------------------------------------------------------------------- */

struct one_hot_step {
    struct cpu_step step;
    enum cm_dtype index_dtype;
    size_t index_bytes, element;
    size_t depth, inner;
};

static void one_hot_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct one_hot_step *s = (const struct one_hot_step *)step;
    char off[8], on[8];
    (void)cpu, (void)thread;
    memcpy(off, run->in[2], s->element);
    memcpy(on, (const char *)run->in[2] + s->element, s->element);
    for (size_t i = i0; i < i1; i++) {
        int64_t index;
        k_cast(s->index_dtype, CM_INT64, (const char *)run->in[0] + i * s->index_bytes, &index, 1);
        index += index < 0 ? (int64_t)s->depth : 0;
        /* An index outside the depth makes no element hot. */
        char *y =
            (char *)run->out[0] + (i / s->inner * s->depth * s->inner + i % s->inner) * s->element;
        for (size_t d = 0; d < s->depth; d++)
            copy_bytes(y + d * s->inner * s->element, (int64_t)d == index ? on : off, s->element);
    }
}

enum cm_err cpu_prepare_one_hot(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *indices = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    unsigned axis = 0;
    CM_ASSERT(wk_axis(wk_node_int(p->call->node, "axis", -1), out->shape.rank, &axis));
    struct one_hot_step *s = cpu_step_take(p, sizeof *s, one_hot_body, cpu_count(&indices->shape),
                                           1, (double)cpu_count(&out->shape));
    if (!s)
        return CM_NOMEM;
    s->index_dtype = indices->dtype;
    s->index_bytes = cm_dtype_size(indices->dtype);
    s->element = cm_dtype_size(out->dtype);
    s->depth = (size_t)out->shape.dims[axis];
    s->inner = cpu_product(&out->shape, axis + 1, out->shape.rank);
    *ret_step = &s->step;
    return CM_OK;
}
