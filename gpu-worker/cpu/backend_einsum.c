/* CPU backend: Einsum and Det. See backend_priv.h.
 *
 * An einsum is a row of matrix products. Operands are taken in one after the other: what has been
 * multiplied so far is one side, the next operand the other. The labels of the two sides are of
 * four kinds: in both and needed later (a batch of products), in one and needed (rows, or columns),
 * in both and not needed (summed over), in one and not needed (summed over alone first, as a
 * product with ones). Each side is moved into [batch][rows][sum] or [batch][sum][columns] unless it
 * lies like that already. So every sum is one chain over its labels in row-major order. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"
#include "gpu-worker/cpu/backend_mixed.h"
#include "gpu-worker/cpu/plain.h"
#include "gpu-worker/cpu/plain_matmul.h"
#include "gpu-worker/graph/einsum.h"

#include <string.h>

/* Where a tensor is: an operand, the output, or bytes into the workspace. */
enum home { HOME_INPUT, HOME_OUTPUT, HOME_WORKSPACE };
struct tensor_at {
    enum home home;
    size_t at; /* number of the operand, or offset */
};

/* A tensor with a label per dimension. */
struct labelled {
    struct tensor_at where;
    unsigned rank;
    uint8_t labels[CM_MAX_RANK];
    size_t dims[CM_MAX_RANK];
    ptrdiff_t strides[CM_MAX_RANK];
};

/* One thing to do in the run. */
enum what { WHAT_COPY, WHAT_ONES, WHAT_PRODUCT };
struct action {
    enum what what;
    struct tensor_at a, b, c;
    struct k_copy copy;           /* from a to c */
    size_t batch, m, n, k, count; /* count: of ones */
};

struct einsum_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    unsigned n_actions;
    struct action *actions;
};

/* ---- running --------------------------------------------------------------------------------- */

static char *place(const struct wk_run *run, struct tensor_at where)
{
    if (where.home == HOME_INPUT)
        return (char *)run->in[where.at]; /* read only: nothing is ever written to an input */
    return where.home == HOME_OUTPUT ? run->out[0] : (char *)run->workspace + where.at;
}

/* An action as the threads that share it see it. */
struct shared_action {
    struct cpu_step step;
    const struct einsum_step *einsum;
    const struct action *action;
};

static void copy_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                      const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct action *action = ((const struct shared_action *)step)->action;
    struct k_copy copy = action->copy;
    (void)cpu, (void)thread;
    copy.x = place(run, action->a);
    copy.y = place(run, action->c);
    k_copy_run(&copy, i0, i1);
}

/* Items: rows of all the batch's products. */
static void product_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct shared_action *s = (const struct shared_action *)step;
    const struct action *t = s->action;
    enum cm_dtype dtype = s->einsum->dtype;
    size_t element = cm_dtype_size(dtype);
    (void)thread;
    while (i0 < i1) {
        size_t batch = i0 / t->m, r0 = i0 % t->m;
        size_t r1 = t->m - r0 < i1 - i0 ? t->m : r0 + (i1 - i0);
        const char *a = place(run, t->a) + batch * t->m * t->k * element;
        const char *b = place(run, t->b) + batch * t->k * t->n * element;
        char *c = place(run, t->c) + batch * t->m * t->n * element;
        if (dtype == CM_FP32) {
            struct k_gemm g = {.m = t->m, .n = t->n, .k = t->k};
            g.a = (const float *)(const void *)a, g.lda = t->k;
            g.b = (const float *)(const void *)b, g.ldb = t->n;
            g.c = (float *)(void *)c, g.ldc = t->n;
            cpu->kernels->f32_gemm(&g, r0, r1, 0, k_panels(t->n));
        } else {
            struct k_matmul g = {t->m, t->n, t->k, a, b, t->k, 1, t->n, 1, c};
            k_matmul_for(dtype)(&g, r0, r1);
        }
        i0 += r1 - r0;
    }
}

static void write_ones(enum cm_dtype dtype, size_t count, char *y)
{
    const double one = 1;
    for (size_t i = 0; i < count; i++)
        k_cast(CM_FP64, dtype, &one, y + i * cm_dtype_size(dtype), 1);
}

static enum cm_err einsum_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                              const struct wk_run *run)
{
    const struct einsum_step *s = (const struct einsum_step *)step;
    for (unsigned i = 0; i < s->n_actions; i++) {
        const struct action *t = &s->actions[i];
        struct shared_action shared = {*step, s, t};
        if (t->what == WHAT_COPY)
            cpu_split(cpu, &shared.step, run, copy_body, k_copy_items(&t->copy), 1);
        else if (t->what == WHAT_ONES)
            write_ones(s->dtype, t->count, place(run, t->c));
        else
            cpu_split(cpu, &shared.step, run, product_body, t->batch * t->m,
                      cpu->kernels->gemm_rows);
    }
    return CM_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

struct planner {
    struct cpu_prepare *p;
    struct einsum_step *step;
    const struct wk_einsum *einsum;
    size_t element;
    double work;
};

typedef uint64_t label_set;

static label_set labels_of(const struct labelled *t)
{
    label_set set = 0;
    for (unsigned i = 0; i < t->rank; i++)
        set |= 1ull << t->labels[i];
    return set;
}

static struct action *add(struct planner *pl, enum what what)
{
    struct action *t = &pl->step->actions[pl->step->n_actions++];
    t->what = what;
    return t;
}

static enum cm_err too_large(const struct planner *pl)
{
    return wk_node_fail(pl->p->err, CM_LIMIT, pl->p->call->node,
                        "a step of its equation needs too much memory");
}

/* Room for count elements. */
static enum cm_err take(struct planner *pl, size_t count, struct tensor_at *ret)
{
    size_t bytes;
    if (!cm_size_mul(count, pl->element, &bytes) || !cm_size_align(bytes, WK_ALIGN, &bytes) ||
        bytes > WK_MAX_PLAN_BYTES || pl->p->workspace > WK_MAX_PLAN_BYTES)
        return too_large(pl);
    *ret = (struct tensor_at){HOME_WORKSPACE, pl->p->workspace};
    pl->p->workspace += bytes;
    return CM_OK;
}

/* Elements of the labels in set; false on overflow. */
static bool extent(const struct planner *pl, label_set set, size_t *ret)
{
    *ret = 1;
    for (unsigned label = 0; label < WK_EINSUM_LABELS; label++)
        if (set >> label & 1 && !cm_size_mul(*ret, (size_t)pl->einsum->dims[label], ret))
            return false;
    return true;
}

/* Operand k: labels that stand for one element where others have more are dropped, labels that
 * occur twice walk the diagonal. */
static void read_operand(const struct planner *pl, unsigned k, struct labelled *ret)
{
    const struct cm_shape *shape = &wk_call_in(pl->p->call, k)->shape;
    ptrdiff_t strides[CM_MAX_RANK];
    *ret = (struct labelled){.where = {HOME_INPUT, k}};
    cpu_strides(shape, strides);
    for (unsigned i = 0; i < shape->rank; i++) {
        uint8_t label = pl->einsum->labels[k][i];
        unsigned at = 0;
        if (shape->dims[i] == 1 && pl->einsum->dims[label] != 1)
            continue;
        while (at < ret->rank && ret->labels[at] != label)
            at++;
        if (at == ret->rank) {
            ret->labels[at] = label;
            ret->dims[at] = (size_t)shape->dims[i];
            ret->strides[at] = 0;
            ret->rank++;
        }
        ret->strides[at] += strides[i];
    }
}

/* Appends t's labels that are in set to an order, in t's own order. */
static void append(const struct labelled *t, label_set set, struct labelled *order)
{
    for (unsigned i = 0; i < t->rank; i++)
        if (set >> t->labels[i] & 1) {
            order->labels[order->rank] = t->labels[i];
            order->dims[order->rank++] = t->dims[i];
        }
}

static void dense(struct labelled *t)
{
    ptrdiff_t stride = 1;
    for (unsigned i = t->rank; i-- > 0;) {
        t->strides[i] = stride;
        stride *= (ptrdiff_t)t->dims[i];
    }
}

/* t with its dimensions in the order of `order` (the same labels): a copy, unless it lies so. to is
 * where the copy goes if it is not NULL, and then there always is one. */
static enum cm_err arrange(struct planner *pl, struct labelled *t, struct labelled *order,
                           const struct tensor_at *to)
{
    bool same = !to;
    size_t count = 1;
    struct k_copy copy = {.element = pl->element, .rank = order->rank};
    dense(order);
    for (unsigned i = 0; i < order->rank; i++) {
        unsigned at = 0;
        while (t->labels[at] != order->labels[i])
            at++;
        copy.dims[i] = order->dims[i];
        copy.in_stride[i] = t->strides[at];
        copy.out_stride[i] = order->strides[i];
        count *= order->dims[i];
        same = same && (order->dims[i] == 1 || t->strides[at] == order->strides[i]);
    }
    if (same) {
        order->where = t->where;
        *t = *order;
        return CM_OK;
    }
    enum cm_err code = CM_OK;
    if (to)
        order->where = *to;
    else
        code = take(pl, count, &order->where);
    if (code != CM_OK)
        return code;
    struct action *action = add(pl, WHAT_COPY);
    action->a = t->where;
    action->c = order->where;
    action->copy = copy;
    k_copy_simplify(&action->copy);
    pl->work += (double)count;
    *t = *order;
    return CM_OK;
}

static enum cm_err add_product(struct planner *pl, const struct labelled *a,
                               const struct labelled *b, const size_t sizes[4],
                               struct tensor_at *ret)
{
    size_t count;
    if (!cm_size_mul(sizes[0], sizes[1], &count) || !cm_size_mul(count, sizes[2], &count))
        return too_large(pl);
    enum cm_err code = take(pl, count, ret);
    if (code != CM_OK)
        return code;
    struct action *t = add(pl, WHAT_PRODUCT);
    t->a = a->where;
    t->b = b->where;
    t->c = *ret;
    t->batch = sizes[0];
    t->m = sizes[1];
    t->n = sizes[2];
    t->k = sizes[3];
    pl->work += 0.25 * (double)count * (double)sizes[3];
    return CM_OK;
}

/* Sums over the labels in gone: a product with a column of ones. */
static enum cm_err sum_out(struct planner *pl, struct labelled *t, label_set gone)
{
    struct labelled order = {0}, ones = {0};
    size_t sizes[4] = {1, 1, 1, 1};
    if (!gone)
        return CM_OK;
    append(t, ~gone, &order);
    unsigned kept = order.rank;
    append(t, gone, &order);
    if (!extent(pl, labels_of(t) & ~gone, &sizes[1]) || !extent(pl, gone, &sizes[3]))
        return too_large(pl);
    enum cm_err code = arrange(pl, t, &order, NULL);
    if (code == CM_OK)
        code = take(pl, sizes[3], &ones.where);
    if (code != CM_OK)
        return code;
    struct action *fill = add(pl, WHAT_ONES);
    fill->c = ones.where;
    fill->count = sizes[3];
    struct tensor_at sums;
    code = add_product(pl, t, &ones, sizes, &sums);
    if (code != CM_OK)
        return code;
    t->where = sums;
    t->rank = kept;
    dense(t);
    return CM_OK;
}

/* a becomes the product of a and b over the labels of both that are not needed. */
static enum cm_err multiply(struct planner *pl, struct labelled *a, struct labelled *b,
                            label_set needed)
{
    label_set in_a = labels_of(a), in_b = labels_of(b), both = in_a & in_b;
    enum cm_err code = sum_out(pl, a, in_a & ~in_b & ~needed);
    if (code == CM_OK)
        code = sum_out(pl, b, in_b & ~in_a & ~needed);
    if (code != CM_OK)
        return code;
    in_a = labels_of(a);
    in_b = labels_of(b);
    label_set sets[4] = {both & needed, in_a & ~both, in_b & ~both, both & ~needed};
    struct labelled left = {0}, right = {0}, result = {0};
    size_t sizes[4], rank = 0;
    for (unsigned i = 0; i < 4; i++) {
        rank += i < 3 ? (size_t)__builtin_popcountll(sets[i]) : 0;
        if (!extent(pl, sets[i], &sizes[i]))
            return too_large(pl);
    }
    if (rank > CM_MAX_RANK)
        return wk_node_fail(pl->p->err, CM_UNSUPPORTED, pl->p->call->node,
                            "a step of its equation has %zu dimensions, at most %d are supported",
                            rank, CM_MAX_RANK);
    append(a, sets[0], &left);
    append(a, sets[1], &left);
    result = left;
    append(a, sets[0], &right); /* both sides agree on the order of what they share */
    append(b, sets[2], &result);
    append(a, sets[3], &left);
    append(a, sets[3], &right);
    append(b, sets[2], &right);
    code = arrange(pl, a, &left, NULL);
    if (code == CM_OK)
        code = arrange(pl, b, &right, NULL);
    if (code == CM_OK)
        code = add_product(pl, a, b, sizes, &result.where);
    dense(&result);
    *a = result;
    return code;
}

/* Labels of the output and of operands from k on. */
static label_set needed_from(const struct planner *pl, unsigned k)
{
    label_set set = 0;
    struct labelled t;
    for (unsigned i = 0; i < pl->einsum->out_rank; i++)
        set |= 1ull << pl->einsum->out[i];
    for (; k < pl->einsum->n_operands; k++) {
        read_operand(pl, k, &t);
        set |= labels_of(&t);
    }
    return set;
}

/* The result in the output's order; what the last product wrote in that order goes there at once.
 */
static enum cm_err write_output(struct planner *pl, struct labelled *result)
{
    struct labelled order = {.rank = pl->einsum->out_rank};
    const struct tensor_at out = {HOME_OUTPUT, 0};
    struct action *last = pl->step->n_actions ? &pl->step->actions[pl->step->n_actions - 1] : NULL;
    bool same = last && last->what == WHAT_PRODUCT;
    for (unsigned i = 0; i < order.rank; i++) {
        order.labels[i] = pl->einsum->out[i];
        order.dims[i] = (size_t)pl->einsum->dims[order.labels[i]];
        same = same && result->labels[i] == order.labels[i];
    }
    if (!same)
        return arrange(pl, result, &order, &out);
    last->c = out;
    return CM_OK;
}

static enum cm_err plan(struct planner *pl)
{
    struct labelled so_far, next;
    read_operand(pl, 0, &so_far);
    enum cm_err code = CM_OK;
    if (pl->einsum->n_operands == 1)
        code = sum_out(pl, &so_far, labels_of(&so_far) & ~needed_from(pl, 1));
    for (unsigned k = 1; k < pl->einsum->n_operands && code == CM_OK; k++) {
        read_operand(pl, k, &next);
        code = multiply(pl, &so_far, &next, needed_from(pl, k + 1));
    }
    return code == CM_OK ? write_output(pl, &so_far) : code;
}

enum cm_err cpu_prepare_einsum(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct wk_einsum einsum;
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_einsum, 0, ret_step);
    enum cm_err code = wk_einsum_resolve(p->call->node, p->call->facts, p->err, &einsum);
    if (code != CM_OK)
        return code;
    struct einsum_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    /* Per operand: two sums of three actions each, two copies, a product; and the last copy. */
    s->actions = wk_arena_take(p->arena, 9 * (size_t)einsum.n_operands + 4, sizeof *s->actions);
    if (!s->actions)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->step.run = einsum_run;
    s->dtype = wk_call_in(p->call, 0)->dtype;
    struct planner pl = {.p = p, .step = s, .einsum = &einsum, .element = cm_dtype_size(s->dtype)};
    code = cpu_count(&wk_call_out(p->call)->shape) > 0 ? plan(&pl) : CM_OK;
    s->step.alone = p->cpu->threads == 1 || pl.work < 65536;
    *ret_step = &s->step;
    return code;
}

/* ---- Det ------------------------------------------------------------------------------------- */

struct det_step {
    struct cpu_step step;
    enum cm_dtype dtype;
    size_t n, work_floats;
};

static void det_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                     const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct det_step *s = (const struct det_step *)step;
    float *work = (float *)run->workspace + thread * s->work_floats;
    (void)cpu;
    k_det(s->dtype, s->n, run->in[0], run->out[0], (double *)(void *)work, i0, i1);
}

enum cm_err cpu_prepare_det(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_fact *x = wk_call_in(p->call, 0);
    if (cpu_is_mixed(p))
        return cpu_prepare_mixed(p, cpu_prepare_det, 0, ret_step);
    size_t n = (size_t)x->shape.dims[x->shape.rank - 1];
    size_t matrices = cpu_count(&wk_call_out(p->call)->shape);
    struct det_step *s = cpu_step_take(p, sizeof *s, det_body, matrices, 1,
                                       (double)cpu_count(&x->shape) * (double)n);
    if (!s)
        return CM_NOMEM;
    s->dtype = x->dtype;
    s->n = n;
    s->work_floats = cpu_thread_floats(p, 2 * n * n + 1);
    *ret_step = &s->step;
    return CM_OK;
}
