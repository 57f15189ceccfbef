/* CPU backend: NonMaxSuppression. The data decide how many boxes are left: a counting pass
 * (measure) runs the whole algorithm, and the filling pass runs it again without trusting the
 * count. See backend_priv.h.
 *
 * Boxes of one class are taken by falling score, equal scores by rising index, so that the order
 * of the output depends on nothing else. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float score;
    uint32_t box;
};

/* Corners, however the box was given. */
struct corners {
    float y0, x0, y1, x1;
};

struct nms {
    const struct wk_node *node;
    bool center;
    size_t images, boxes, classes;
};

/* Scratch memory of one class: a candidate and a chosen box for each box. */
struct nms_room {
    struct candidate *candidates;
    struct corners *chosen;
};

struct nms_limits {
    size_t most; /* per class */
    float overlap, score;
    bool has_score;
};

static struct nms nms_of(const struct wk_call *call)
{
    const struct cm_shape *scores = &wk_call_in(call, 1)->shape;
    return (struct nms){call->node, wk_node_int(call->node, "center_point_box", 0) != 0,
                        (size_t)scores->dims[0], (size_t)scores->dims[2], (size_t)scores->dims[1]};
}

static enum cm_err read_limits(const struct nms *nms, const void *const *in, struct cm_error *err,
                               struct nms_limits *ret)
{
    const struct wk_node *node = nms->node;
    int64_t most = node->n_in > 2 && in[2] ? *(const volatile int64_t *)in[2] : 0;
    ret->overlap = node->n_in > 3 && in[3] ? *(const volatile float *)in[3] : 0;
    ret->has_score = node->n_in > 4 && in[4];
    ret->score = ret->has_score ? *(const volatile float *)in[4] : 0;
    ret->most = most < 0 ? 0 : (uint64_t)most > nms->boxes ? nms->boxes : (size_t)most;
    if (!(ret->overlap >= 0 && ret->overlap <= 1))
        return wk_node_fail(err, CM_INVALID, node, "iou_threshold %g is not in [0, 1]",
                            (double)ret->overlap);
    return CM_OK;
}

static bool comes_first(struct candidate a, struct candidate b)
{
    return a.score != b.score ? a.score > b.score : a.box < b.box;
}

/* A heap whose root comes first. */
static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && comes_first(heap[child + 1], heap[child]))
            child++;
        if (!comes_first(heap[child], heap[i]))
            return;
        struct candidate kept = heap[i];
        heap[i] = heap[child];
        heap[child] = kept;
        i = child;
    }
}

static struct corners read_box(const struct nms *nms, const volatile float *box)
{
    float a = box[0], b = box[1], c = box[2], d = box[3];
    if (nms->center) /* x and y of the centre, width, height */
        return (struct corners){b - d / 2, a - c / 2, b + d / 2, a + c / 2};
    return (struct corners){a < c ? a : c, b < d ? b : d, a < c ? c : a, b < d ? d : b};
}

/* Do they overlap by more than the limit? */
static bool overlaps(struct corners a, struct corners b, float limit)
{
    float height = (a.y1 < b.y1 ? a.y1 : b.y1) - (a.y0 > b.y0 ? a.y0 : b.y0);
    float width = (a.x1 < b.x1 ? a.x1 : b.x1) - (a.x0 > b.x0 ? a.x0 : b.x0);
    if (!(height > 0 && width > 0))
        return false;
    float common = height * width;
    float area_a = (a.y1 - a.y0) * (a.x1 - a.x0), area_b = (b.y1 - b.y0) * (b.x1 - b.x0);
    float all = area_a + area_b - common;
    return area_a > 0 && area_b > 0 && all > 0 && common / all > limit;
}

static size_t find_candidates(const struct nms *nms, const struct nms_limits *limits,
                              const volatile float *scores, struct candidate *heap)
{
    size_t n = 0;
    for (size_t i = 0; i < nms->boxes; i++) {
        float score = scores[i];
        /* What is not a number has no place in an order. */
        if (!isnan(score) && (!limits->has_score || score > limits->score))
            heap[n++] = (struct candidate){score, (uint32_t)i};
    }
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
    return n;
}

/* Calls keep for each box of one class that is left; false stops. */
typedef bool keep_fn(void *context, size_t image, size_t class, uint32_t box);

static bool suppress_class(const struct nms *nms, const struct nms_limits *limits,
                           const void *const *in, size_t image, size_t class,
                           const struct nms_room *room, keep_fn *keep, void *context)
{
    const float *boxes = (const float *)in[0] + image * nms->boxes * 4;
    const float *scores = (const float *)in[1] + (image * nms->classes + class) * nms->boxes;
    struct candidate *heap = room->candidates;
    size_t n = find_candidates(nms, limits, scores, heap), chosen = 0;
    while (n > 0 && chosen < limits->most) {
        struct candidate best = heap[0];
        struct corners box = read_box(nms, boxes + (size_t)best.box * 4);
        size_t k = 0;
        heap[0] = heap[--n];
        sift_down(heap, n, 0);
        while (k < chosen && !overlaps(box, room->chosen[k], limits->overlap))
            k++;
        if (k < chosen)
            continue;
        room->chosen[chosen++] = box;
        if (!keep(context, image, class, best.box))
            return false;
    }
    return true;
}

static bool suppress_all(const struct nms *nms, const struct nms_limits *limits,
                         const void *const *in, const struct nms_room *room, keep_fn *keep,
                         void *context)
{
    bool goes_on = true;
    for (size_t image = 0; image < nms->images && goes_on; image++)
        for (size_t class = 0; class < nms->classes && goes_on; class ++)
            goes_on = suppress_class(nms, limits, in, image, class, room, keep, context);
    return goes_on;
}

static bool count_box(void *context, size_t image, size_t class, uint32_t box)
{
    (void)image, (void)class, (void)box;
    ++*(size_t *)context;
    return true;
}

enum cm_err cpu_measure_non_max_suppression(const struct wk_call *call, const void *const *in,
                                            struct wk_fact *facts, struct cm_error *err)
{
    struct nms nms = nms_of(call);
    struct nms_limits limits;
    size_t found = 0;
    enum cm_err code = read_limits(&nms, in, err, &limits);
    if (code != CM_OK)
        return code;
    struct nms_room room = {calloc(nms.boxes + 1, sizeof(struct candidate)),
                            calloc(nms.boxes + 1, sizeof(struct corners))};
    if (!room.candidates || !room.chosen)
        code = cm_fail(err, CM_NOMEM, "out of memory");
    else
        suppress_all(&nms, &limits, in, &room, count_box, &found);
    free(room.candidates);
    free(room.chosen);
    facts[call->node->out[0]].shape.dims[0] = (int64_t)found;
    return code;
}

struct nms_step {
    struct cpu_step step;
    struct nms nms;
    size_t found, chosen_at;
};

/* The output as it fills. */
struct filling {
    int64_t *y;
    size_t n, room;
};

static bool write_box(void *context, size_t image, size_t class, uint32_t box)
{
    struct filling *f = context;
    if (f->n == f->room)
        return false;
    f->y[3 * f->n] = (int64_t)image;
    f->y[3 * f->n + 1] = (int64_t) class;
    f->y[3 * f->n + 2] = box;
    f->n++;
    return true;
}

static enum cm_err nms_run(const struct cpu_backend *cpu, const struct cpu_step *step,
                           const struct wk_run *run)
{
    const struct nms_step *s = (const struct nms_step *)step;
    struct nms_room room = {run->workspace,
                            (struct corners *)((char *)run->workspace + s->chosen_at)};
    struct filling filling = {run->out[0], 0, s->found};
    struct nms_limits limits;
    (void)cpu;
    enum cm_err code = read_limits(&s->nms, run->in, run->err, &limits);
    if (code != CM_OK)
        return code;
    if (!suppress_all(&s->nms, &limits, run->in, &room, write_box, &filling) ||
        filling.n != s->found)
        return wk_node_fail(run->err, CM_INVALID, s->nms.node,
                            "its input changed while it was read");
    return CM_OK;
}

enum cm_err cpu_prepare_non_max_suppression(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    struct nms_step *s = cpu_step_take(p, sizeof *s, NULL, 0, 1, 0);
    if (!s)
        return CM_NOMEM;
    s->step.run = nms_run;
    s->nms = nms_of(p->call);
    s->found = (size_t)wk_call_out(p->call)->shape.dims[0];
    s->chosen_at = (s->nms.boxes + 1) * sizeof(struct candidate);
    s->chosen_at += s->chosen_at % sizeof(struct corners);
    p->workspace = s->chosen_at + (s->nms.boxes + 1) * sizeof(struct corners);
    *ret_step = &s->step;
    return CM_OK;
}
