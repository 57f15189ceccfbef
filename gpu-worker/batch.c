/* Steps of one batch: see batch.h. Device thread only. */
#include "gpu-worker/batch.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

void wk_loaded_fini(struct wk_loaded *loaded)
{
    for (unsigned i = 0; i < WK_PLANS_MAX; i++)
        wk_plan_destroy(loaded->plans[i].plan);
    wk_model_destroy(loaded->model);
    *loaded = (struct wk_loaded){0};
}

void wk_workspace_fini(struct wk_workspace *workspace)
{
    free(workspace->scratch);
    free(workspace->gather);
    free(workspace->early);
    free(workspace->kept);
    *workspace = (struct wk_workspace){0};
}

/* Grows an aligned, touched buffer; its contents are lost. */
static enum cm_err reserve(unsigned char **buffer, size_t *have, size_t want)
{
    size_t rounded;
    if (want <= *have)
        return CM_OK;
    if (!cm_size_align(want, 4096, &rounded))
        return CM_LIMIT;
    void *grown = NULL;
    if (posix_memalign(&grown, 4096, rounded) != 0)
        return CM_NOMEM;
    memset(grown, 0, rounded); /* page faults now, not in the middle of a run */
    free(*buffer);
    *buffer = grown;
    *have = rounded;
    return CM_OK;
}

/* Bytes that the inputs need when they are gathered, each part aligned. */
static enum cm_err gather_bytes(const struct wk_signature *signature, const struct cm_shape *inputs,
                                size_t *ret_bytes)
{
    size_t total = 0;
    for (unsigned i = 0; i < signature->n_inputs; i++) {
        size_t bytes = 0;
        enum cm_err err = cm_shape_bytes(&inputs[i], signature->inputs[i].dtype, &bytes);
        if (err != CM_OK)
            return err;
        if (!cm_size_align(bytes, WK_ALIGN, &bytes) || !cm_size_add(total, bytes, &total))
            return CM_LIMIT;
    }
    *ret_bytes = total;
    return CM_OK;
}

static struct wk_planned *find_plan(struct wk_loaded *loaded, const struct cm_shape *inputs,
                                    unsigned n_inputs)
{
    for (unsigned p = 0; p < WK_PLANS_MAX; p++) {
        struct wk_planned *planned = &loaded->plans[p];
        bool same = planned->plan != NULL;
        for (unsigned i = 0; same && i < n_inputs; i++)
            same = cm_shape_equal(&planned->inputs[i], &inputs[i]);
        if (same)
            return planned;
    }
    return NULL;
}

static struct wk_planned *oldest_plan(struct wk_loaded *loaded)
{
    struct wk_planned *oldest = &loaded->plans[0];
    for (unsigned p = 0; p < WK_PLANS_MAX; p++) {
        struct wk_planned *planned = &loaded->plans[p];
        if (!planned->plan)
            return planned;
        if (planned->used < oldest->used)
            oldest = planned;
    }
    return oldest;
}

enum cm_err wk_loaded_plan(struct wk_loaded *loaded, struct wk_workspace *workspace,
                           const struct cm_shape *inputs, struct cm_error *err,
                           struct wk_plan **ret_plan)
{
    const struct wk_signature *signature = wk_model_signature(loaded->model);
    struct wk_planned *planned = find_plan(loaded, inputs, signature->n_inputs);
    if (!planned) {
        size_t gather = 0;
        struct wk_plan *plan = NULL;
        enum cm_err code = gather_bytes(signature, inputs, &gather);
        if (code != CM_OK)
            return cm_fail(err, code, "the batch's inputs are too large together");
        code = wk_plan_create(loaded->model, inputs, err, &plan);
        if (code != CM_OK)
            return code;
        if ((code = reserve(&workspace->gather, &workspace->gather_bytes, gather)) != CM_OK ||
            (code = reserve(&workspace->scratch, &workspace->scratch_bytes,
                            wk_plan_scratch_bytes(plan))) != CM_OK) {
            wk_plan_destroy(plan);
            return cm_fail(err, code, "no memory for activations: send smaller tensors");
        }
        planned = oldest_plan(loaded);
        wk_plan_destroy(planned->plan);
        planned->plan = plan;
        memcpy(planned->inputs, inputs, signature->n_inputs * sizeof inputs[0]);
    }
    planned->used = ++loaded->clock;
    *ret_plan = planned->plan;
    return CM_OK;
}

static bool is_settled(const struct wk_plan *plan, const struct wk_signature *signature)
{
    bool settled = true;
    for (unsigned i = 0; i < signature->n_outputs; i++)
        settled = settled && wk_plan_output_is_settled(plan, i);
    return settled;
}

/* Lays the plan's outputs into one slab. */
static enum cm_err lay_outputs(struct wk_run *run, const struct wk_signature *signature,
                               struct cm_error *err)
{
    size_t total = 0;
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        const struct cm_shape *shape = wk_plan_output_shape(run->plan, i);
        size_t bytes = 0, aligned = 0;
        enum cm_err code = cm_shape_bytes(shape, wk_plan_output_dtype(run->plan, i), &bytes);
        if (code != CM_OK || !cm_size_align(bytes, WK_ALIGN, &aligned))
            return cm_fail(err, CM_LIMIT, "output '%s' is too large", signature->outputs[i].name);
        if (signature->batchable && (shape->rank == 0 || shape->dims[0] != (int64_t)run->rows))
            return cm_fail(err, CM_INTERNAL, "output '%s' lost its batch dimension",
                           signature->outputs[i].name);
        run->output_offset[i] = total;
        run->output_row[i] = signature->batchable && run->rows ? bytes / run->rows : bytes;
        if (!cm_size_add(total, aligned, &total))
            return cm_fail(err, CM_LIMIT, "the outputs are too large together");
    }
    run->slab_bytes = total;
    return CM_OK;
}

/* The shape of input i for all live groups: the first one's, with the rows summed. False: a group
 * differs from it, which the scheduler must never send. */
static bool shape_of_input(const struct wk_run *run, unsigned i, bool batchable,
                           struct cm_shape *ret_shape)
{
    bool first = true;
    for (unsigned g = 0; g < run->n_groups; g++) {
        if (run->groups[g].status != CM_OK)
            continue;
        struct cm_shape shape = cm_desc_shape(&cm_execute_inputs(run->groups[g].item)[i]);
        if (batchable) {
            if (shape.rank == 0 || shape.dims[0] != (int64_t)run->groups[g].item->rows)
                return false;
            shape.dims[0] = run->rows;
        }
        if (first)
            *ret_shape = shape;
        else if (!batchable || !cm_shape_equal(&shape, ret_shape))
            return false;
        first = false;
    }
    return !first;
}

/* Rows of each live group, and their sum. */
static enum cm_err count_rows(struct wk_run *run, struct cm_error *err)
{
    uint64_t rows = 0;
    bool any = false;
    for (unsigned g = 0; g < run->n_groups; g++) {
        if (run->groups[g].status != CM_OK)
            continue;
        any = true;
        run->groups[g].first_row = (uint32_t)rows;
        rows += run->groups[g].item->rows;
        if (rows > INT32_MAX)
            return cm_fail(err, CM_CORRUPT, "a batch of too many rows");
    }
    run->rows = (uint32_t)rows;
    return any ? CM_OK : cm_fail(err, CM_STALE, "no request of the batch can be read any more");
}

/* Input i of the whole batch: a single aligned group's own bytes, or a gathered copy at *cursor. */
static const void *gather_input(const struct wk_run *run, unsigned i, unsigned char **cursor)
{
    unsigned char *start = *cursor, *to = start;
    unsigned live = 0;
    const void *only = NULL;
    for (unsigned g = 0; g < run->n_groups; g++)
        if (run->groups[g].status == CM_OK) {
            live++;
            only = run->groups[g].inputs[i];
        }
    if (live == 1 && (uintptr_t)only % WK_ALIGN == 0)
        return only;
    for (unsigned g = 0; g < run->n_groups; g++) {
        const struct wk_row_group *group = &run->groups[g];
        if (group->status != CM_OK)
            continue;
        size_t bytes = cm_execute_inputs(group->item)[i].slice.length;
        memcpy(to, group->inputs[i], bytes);
        to += bytes;
    }
    size_t used = (size_t)(to - start);
    *cursor = start + (used + WK_ALIGN - 1) / WK_ALIGN * WK_ALIGN;
    return start;
}

/* Buffers for the outputs that have a size before the run. */
static enum cm_err reserve_early(struct wk_run *run, struct wk_workspace *workspace,
                                 void **ret_outputs, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    size_t total = 0, offsets[WK_MAX_IO];
    for (unsigned i = 0; i < signature->n_outputs; i++) {
        size_t bytes = 0;
        ret_outputs[i] = NULL;
        offsets[i] = total;
        if (wk_plan_output_is_settled(run->plan, i) &&
            (cm_shape_bytes(wk_plan_output_shape(run->plan, i), wk_plan_output_dtype(run->plan, i),
                            &bytes) != CM_OK ||
             !cm_size_align(bytes, WK_ALIGN, &bytes) || !cm_size_add(total, bytes, &total)))
            return cm_fail(err, CM_LIMIT, "the outputs are too large together");
    }
    enum cm_err code =
        reserve(&workspace->early, &workspace->early_bytes, total ? total : WK_ALIGN);
    if (code != CM_OK)
        return cm_fail(err, code, "no memory for the outputs");
    for (unsigned i = 0; i < signature->n_outputs; i++)
        if (wk_plan_output_is_settled(run->plan, i))
            ret_outputs[i] = workspace->early + offsets[i];
    return CM_OK;
}

/* Runs a batch whose outputs have no size before; ret_outputs gets those that had one. */
static enum cm_err run_early(struct wk_run *run, struct wk_workspace *workspace, void **ret_outputs,
                             struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    const void *inputs[WK_MAX_IO];
    unsigned char *cursor = workspace->gather;
    for (unsigned i = 0; i < signature->n_inputs; i++)
        inputs[i] = gather_input(run, i, &cursor);
    enum cm_err code = reserve_early(run, workspace, ret_outputs, err);
    run->started_ns = cm_now_ns();
    return code == CM_OK ? wk_plan_run(run->plan, inputs, ret_outputs, workspace->scratch, err)
                         : code;
}

/* Copies the outputs of an early run to where nothing else writes: an output may be a view of an
 * input or lie in scratch. */
static enum cm_err keep_early(struct wk_run *run, struct wk_workspace *workspace,
                              void *const *outputs, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    enum cm_err code = reserve(&workspace->kept, &workspace->kept_bytes, run->slab_bytes);
    if (code != CM_OK)
        return cm_fail(err, code, "no memory for the outputs");
    for (unsigned i = 0; i < signature->n_outputs; i++)
        if (run->output_row[i])
            memcpy(workspace->kept + run->output_offset[i],
                   outputs[i] ? outputs[i] : wk_plan_output_data(run->plan, i), run->output_row[i]);
    return CM_OK;
}

static void give_early(struct wk_run *run, const struct wk_workspace *workspace,
                       const struct wk_slab *slab)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    for (unsigned i = 0; i < signature->n_outputs; i++)
        if (run->output_row[i])
            memcpy(slab->base + run->output_offset[i], workspace->kept + run->output_offset[i],
                   run->output_row[i]);
    run->early_batch = 0;
}

/* The run, its layout and its copies; what has been done for this batch is not done again. */
static enum cm_err prepare_early(struct wk_run *run, struct wk_workspace *workspace,
                                 struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    void *outputs[WK_MAX_IO];
    if (run->early_batch == run->batch)
        return CM_OK;
    enum cm_err code = run_early(run, workspace, outputs, err);
    if (code == CM_OK)
        code = lay_outputs(run, signature, err);
    if (code == CM_OK)
        code = keep_early(run, workspace, outputs, err);
    if (code == CM_OK)
        run->early_batch = run->batch;
    return code;
}

enum cm_err wk_run_prepare(struct wk_run *run, struct wk_workspace *workspace, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    struct cm_shape shapes[WK_MAX_IO];
    enum cm_err code = count_rows(run, err);
    if (code != CM_OK)
        return code;
    for (unsigned i = 0; i < signature->n_inputs; i++)
        if (!shape_of_input(run, i, signature->batchable, &shapes[i]))
            return cm_fail(err, CM_CORRUPT, "requests of different shapes in one batch");
    code = wk_loaded_plan(run->loaded, workspace, shapes, err, &run->plan);
    if (code != CM_OK)
        return code;
    return is_settled(run->plan, signature) ? lay_outputs(run, signature, err)
                                            : prepare_early(run, workspace, err);
}

enum cm_err wk_run_execute(struct wk_run *run, struct wk_workspace *workspace,
                           const struct wk_slab *slab, uint64_t *ret_started_ns,
                           struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    const void *inputs[WK_MAX_IO];
    void *outputs[WK_MAX_IO];
    unsigned char *cursor = workspace->gather;
    if (!is_settled(run->plan, signature)) {
        *ret_started_ns = run->started_ns;
        give_early(run, workspace, slab);
        return CM_OK;
    }
    for (unsigned i = 0; i < signature->n_inputs; i++)
        inputs[i] = gather_input(run, i, &cursor);
    for (unsigned i = 0; i < signature->n_outputs; i++)
        outputs[i] = slab->base + run->output_offset[i];
    *ret_started_ns = cm_now_ns();
    return wk_plan_run(run->plan, inputs, outputs, workspace->scratch, err);
}

/* Output i of one group in the slab. */
static struct cm_tensor_desc describe_output(const struct wk_run *run, const struct wk_slab *slab,
                                             const struct wk_row_group *group, unsigned i)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    const struct cm_shape *shape = wk_plan_output_shape(run->plan, i);
    struct cm_tensor_desc desc = {
        .slice = {.region = slab->region,
                  .generation = slab->generation,
                  .offset = slab->offset + run->output_offset[i],
                  .length = run->output_row[i]},
        .dtype = (uint8_t)wk_plan_output_dtype(run->plan, i),
        .rank = shape->rank,
        .index = (uint8_t)i,
    };
    for (unsigned d = 0; d < shape->rank; d++)
        desc.dims[d] = shape->dims[d];
    if (signature->batchable) {
        desc.dims[0] = group->item->rows;
        desc.slice.offset += (uint64_t)group->first_row * run->output_row[i];
        desc.slice.length = (uint64_t)group->item->rows * run->output_row[i];
    }
    return desc;
}

/* Appends one item and its descriptors. */
static enum cm_err describe_group(struct wk_run *run, struct wk_outputs *outputs,
                                  const struct wk_slab *slab, const struct wk_row_group *group,
                                  unsigned char *buffer, size_t size, size_t *length)
{
    const struct wk_signature *signature = wk_model_signature(run->loaded->model);
    struct cm_done_item item = {.status = (uint32_t)group->status};
    size_t at = *length + sizeof item;
    if (at > size)
        return CM_LIMIT;
    if (group->status == CM_OK) {
        enum cm_err err = wk_outputs_hold(outputs, slab, group->item->gateway, &item.slab);
        if (err != CM_OK)
            return err;
        for (unsigned i = 0; i < signature->n_outputs; i++) {
            if (!(group->item->output_mask >> i & 1))
                continue;
            struct cm_tensor_desc desc = describe_output(run, slab, group, i);
            if (size - at < sizeof desc)
                return CM_LIMIT;
            memcpy(buffer + at, &desc, sizeof desc);
            at += sizeof desc;
            item.n_outputs++;
        }
    }
    memcpy(buffer + *length, &item, sizeof item);
    *length = at;
    return CM_OK;
}

enum cm_err wk_run_describe(struct wk_run *run, struct wk_outputs *outputs,
                            const struct wk_slab *slab, struct cm_record_done *done,
                            unsigned char *buffer, size_t size, size_t *ret_length)
{
    size_t length = sizeof *done;
    CM_ASSERT(size >= length);
    for (unsigned g = 0; g < run->n_groups; g++) {
        enum cm_err err =
            describe_group(run, outputs, slab, &run->groups[g], buffer, size, &length);
        if (err != CM_OK)
            return err; /* the caller abandons the slab, and the holds with it */
    }
    done->n_items = (uint16_t)run->n_groups;
    memcpy(buffer, done, sizeof *done);
    *ret_length = length;
    return CM_OK;
}

/* The signature's input shapes with the batch dimension set; false where another dimension is free.
 */
static bool warm_shapes(const struct wk_signature *signature, uint32_t rows,
                        struct cm_shape ret_shapes[WK_MAX_IO])
{
    for (unsigned i = 0; i < signature->n_inputs; i++) {
        ret_shapes[i] = signature->inputs[i].shape;
        if (signature->batchable)
            ret_shapes[i].dims[0] = rows;
        for (unsigned d = 0; d < ret_shapes[i].rank; d++)
            if (ret_shapes[i].dims[d] < 0)
                return false;
    }
    return true;
}

static enum cm_err warm_rows(struct wk_loaded *loaded, struct wk_workspace *workspace,
                             uint32_t rows, struct cm_error *err)
{
    const struct wk_signature *signature = wk_model_signature(loaded->model);
    struct cm_shape shapes[WK_MAX_IO];
    struct wk_run run = {.loaded = loaded, .rows = rows};
    if (!warm_shapes(signature, rows, shapes))
        return CM_OK;
    enum cm_err code = wk_loaded_plan(loaded, workspace, shapes, err, &run.plan);
    if (code != CM_OK)
        return code;
    /* What zeros would make of data-dependent shapes warms nothing and may fail. */
    if (!is_settled(run.plan, signature))
        return CM_OK;
    if ((code = lay_outputs(&run, signature, err)) != CM_OK)
        return code;
    unsigned char *slab = NULL;
    if (posix_memalign((void **)&slab, WK_ALIGN, run.slab_bytes ? run.slab_bytes : 1) != 0)
        return cm_fail(err, CM_NOMEM, "no memory to warm the model up");
    const void *inputs[WK_MAX_IO];
    void *outputs[WK_MAX_IO];
    for (unsigned i = 0; i < signature->n_inputs; i++)
        inputs[i] = workspace->gather; /* they may alias: nothing is kept */
    memset(workspace->gather, 0, workspace->gather_bytes);
    for (unsigned i = 0; i < signature->n_outputs; i++)
        outputs[i] = slab + run.output_offset[i];
    code = wk_plan_run(run.plan, inputs, outputs, workspace->scratch, err);
    free(slab);
    return code;
}

enum cm_err wk_loaded_warm(struct wk_loaded *loaded, struct wk_workspace *workspace,
                           struct cm_error *err)
{
    enum cm_err code = warm_rows(loaded, workspace, 1, err);
    if (code == CM_OK && loaded->max_rows > 1)
        code = warm_rows(loaded, workspace, loaded->max_rows, err);
    return code;
}
