/* CPU backend: TfIdfVectorizer over integers: how often each of a pool of n-grams occurs in a row.
 * See backend_priv.h. */
#include "gpu-worker/cpu/backend_priv.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

/* N-grams of one length, in lexical order. */
struct ngrams {
    const struct ngram *list;
    size_t count;
};

struct ngram {
    const int64_t *items;
    size_t length;
    uint32_t column;
    float weight;
};

struct ngram_step {
    struct cpu_step step;
    bool wide;      /* INT64, otherwise INT32 */
    bool frequency; /* counts count; otherwise whether there is one */
    size_t row_length, width;
    size_t least, most;             /* gram lengths */
    size_t steps;                   /* distances between items of a gram: 1..steps */
    const struct ngrams *by_length; /* [most + 1] */
};

static int compare_ngrams(const void *a_bytes, const void *b_bytes)
{
    const struct ngram *a = a_bytes, *b = b_bytes;
    for (size_t i = 0; i < a->length; i++)
        if (a->items[i] != b->items[i])
            return a->items[i] < b->items[i] ? -1 : 1;
    /* Equal n-grams keep the pool's order, so that sorting never decides. */
    return a->items < b->items ? -1 : a->items > b->items;
}

static int64_t item_at(const struct ngram_step *s, const void *row, size_t i)
{
    return s->wide ? ((const int64_t *)row)[i] : ((const int32_t *)row)[i];
}

/* The n-gram that begins at item i with items `step` apart; NULL if the pool lacks it. */
static const struct ngram *find_ngram(const struct ngram_step *s, const struct ngrams *grams,
                                      const void *row, size_t i, size_t step, size_t length)
{
    size_t low = 0, high = grams->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const int64_t *items = grams->list[middle].items;
        size_t k = 0;
        while (k < length && items[k] == item_at(s, row, i + k * step))
            k++;
        if (k == length)
            return &grams->list[middle];
        if (items[k] < item_at(s, row, i + k * step))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void count_row(const struct ngram_step *s, const void *row, float *y)
{
    for (size_t length = s->least; length <= s->most; length++) {
        /* The distance makes no difference to single items: they are counted once. */
        size_t steps = length == 1 ? 1 : s->steps;
        for (size_t step = 1; step <= steps && s->by_length[length].count; step++)
            for (size_t i = 0; i + (length - 1) * step < s->row_length; i++) {
                const struct ngram *found =
                    find_ngram(s, &s->by_length[length], row, i, step, length);
                if (!found)
                    continue;
                if (s->frequency)
                    y[found->column] += found->weight;
                else
                    y[found->column] = found->weight;
            }
    }
}

static void ngram_body(const struct cpu_backend *cpu, const struct cpu_step *step,
                       const struct wk_run *run, size_t i0, size_t i1, unsigned thread)
{
    const struct ngram_step *s = (const struct ngram_step *)step;
    size_t row_bytes = s->row_length * (s->wide ? 8 : 4);
    (void)cpu, (void)thread;
    for (size_t i = i0; i < i1; i++) {
        float *y = (float *)run->out[0] + i * s->width;
        memset(y, 0, s->width * sizeof *y);
        count_row(s, (const char *)run->in[0] + i * row_bytes, y);
    }
}

/* The pool as sorted lists; the attributes were checked when the model was loaded. */
static enum cm_err read_pool(struct cpu_prepare *p, struct ngram_step *s)
{
    const struct wk_attr *counts = wk_node_attr(p->call->node, "ngram_counts");
    const struct wk_attr *indexes = wk_node_attr(p->call->node, "ngram_indexes");
    const struct wk_attr *pool = wk_node_attr(p->call->node, "pool_int64s");
    const struct wk_attr *weights = wk_node_attr(p->call->node, "weights");
    bool weighted = weights && strcmp(wk_node_string(p->call->node, "mode", "TF"), "TF") != 0;
    struct ngram *list = wk_arena_take(p->arena, indexes->count, sizeof *list);
    struct ngrams *by_length = wk_arena_take(p->arena, s->most + 1, sizeof *by_length);
    size_t n = 0;
    if (!list || !by_length)
        return cm_fail(p->err, CM_NOMEM, "out of memory while planning");
    s->by_length = by_length;
    for (size_t length = 1; length <= counts->count; length++) {
        size_t begin = (size_t)counts->ints[length - 1];
        size_t end = length < counts->count ? (size_t)counts->ints[length] : pool->count;
        struct ngram *first = &list[n];
        for (size_t at = begin; at < end; at += length, n++)
            list[n] = (struct ngram){&pool->ints[at], length, (uint32_t)indexes->ints[n],
                                     weighted ? weights->floats[n] : 1};
        if (length > s->most)
            continue;
        qsort(first, (end - begin) / length, sizeof *first, compare_ngrams);
        by_length[length] = (struct ngrams){first, (end - begin) / length};
    }
    return CM_OK;
}

enum cm_err cpu_prepare_tf_idf(struct cpu_prepare *p, const struct cpu_step **ret_step)
{
    const struct wk_node *node = p->call->node;
    const struct wk_fact *x = wk_call_in(p->call, 0), *out = wk_call_out(p->call);
    unsigned rank = x->shape.rank;
    size_t rows = rank == 2 ? (size_t)x->shape.dims[0] : 1;
    struct ngram_step *s = cpu_step_take(p, sizeof *s, ngram_body, rows, 1,
                                         32 * (double)cpu_count(&x->shape) *
                                             (double)(wk_node_int(node, "max_skip_count", 0) + 1));
    if (!s)
        return CM_NOMEM;
    s->wide = x->dtype == CM_INT64;
    s->frequency = strcmp(wk_node_string(node, "mode", "TF"), "IDF") != 0;
    s->row_length = (size_t)x->shape.dims[rank - 1];
    s->width = (size_t)out->shape.dims[rank - 1];
    s->least = (size_t)wk_node_int(node, "min_gram_length", 1);
    s->most = (size_t)wk_node_int(node, "max_gram_length", 1);
    s->steps = (size_t)wk_node_int(node, "max_skip_count", 0) + 1;
    *ret_step = &s->step;
    return read_pool(p, s);
}
