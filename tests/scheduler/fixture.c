/* Fake peers of the scheduler core. */
#include "tests/scheduler/fixture.h"

#include "common/check.h"
#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

__attribute__((format(printf, 2, 3))) static void word(struct fx *fx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(fx->words + fx->used, sizeof fx->words - fx->used, format, args);
    va_end(args);
    assert_true(n > 0);
    fx->used += (size_t)n;
    if (fx->used >= sizeof fx->words)
        fx->used = sizeof fx->words - 1; /* a long property test: nobody reads the words */
}

/* ---- the sink ---- */

/* Joins head and tail and checks them as the peer would. */
static const void *joined(struct fx *fx, uint8_t type, const void *head, uint32_t head_length,
                          const void *tail, uint32_t tail_length)
{
    struct cm_error err;
    assert_true(head_length + tail_length <= CM_RECORD_MAX);
    memcpy(fx->record, head, head_length);
    if (tail_length > 0)
        memcpy((char *)fx->record + head_length, tail, tail_length);
    if (cm_record_check(type, fx->record, head_length + tail_length, &err) != CM_OK)
        fail_msg("the core sent a bad record of type %u: %s", type, err.text);
    return fx->record;
}

static void to_gateway(void *ctx, uint32_t gateway, uint8_t type, const void *head,
                       uint32_t head_length, const void *tail, uint32_t tail_length)
{
    struct fx *fx = ctx;
    const struct cm_record_reply *reply = joined(fx, type, head, head_length, tail, tail_length);
    assert_int_equal(type, CM_RECORD_REPLY);
    assert_true(fx->gateways[gateway] != 0);
    word(fx, "R%u:%llu=%s ", gateway, (unsigned long long)reply->request,
         cm_err_name(reply->status));
    fx->last_reply = *reply;
    snprintf(fx->last_text, sizeof fx->last_text, "%.*s", (int)reply->text_length,
             reply->status == CM_OK ? "" : cm_reply_text(reply));
    if (fx->hooks.on_reply)
        fx->hooks.on_reply(fx->hooks.ctx, gateway, reply);
}

static void remember_execute(struct fx *fx, uint32_t worker,
                             const struct cm_record_execute *execute)
{
    assert_true(fx->n_batches < FX_BATCHES);
    struct fx_batch *batch = &fx->batches[fx->n_batches++];
    const struct cm_execute_item *item = cm_execute_first(execute);
    *batch = (struct fx_batch){.worker = worker,
                               .batch = execute->batch,
                               .rows = execute->rows,
                               .n_items = execute->n_items,
                               .width = cm_execute_inputs(item)->dims[1],
                               .model = execute->model};
    word(fx, "X%u:", worker);
    for (uint32_t i = 0; i < execute->n_items; i++, item = cm_execute_next(execute, item)) {
        batch->handles[i] = item->trace.trace_id;
        batch->gateways[i] = item->gateway;
        batch->item_rows[i] = item->rows;
        batch->masks[i] = item->output_mask;
        /* Two shapes never share a batch, and rows are those of the inputs. */
        assert_int_equal(cm_execute_inputs(item)->dims[1], batch->width);
        word(fx, "%s%llu", i ? "," : "", (unsigned long long)item->trace.trace_id);
    }
    word(fx, " ");
    if (fx->hooks.on_execute)
        fx->hooks.on_execute(fx->hooks.ctx, batch);
}

static void to_worker(void *ctx, uint32_t worker, uint8_t type, const void *head,
                      uint32_t head_length, const void *tail, uint32_t tail_length)
{
    struct fx *fx = ctx;
    const void *record = joined(fx, type, head, head_length, tail, tail_length);
    assert_true(fx->workers[worker] != 0);
    switch (type) {
    case CM_RECORD_EXECUTE:
        remember_execute(fx, worker, record);
        break;
    case CM_RECORD_RELEASE: {
        struct cm_slab_ref slab = ((const struct cm_record_release *)record)->slab;
        assert_int_equal(slab.worker, fx->workers[worker]);
        word(fx, "L%u ", worker);
        if (fx->hooks.on_release)
            fx->hooks.on_release(fx->hooks.ctx, worker, &slab);
        break;
    }
    case CM_RECORD_ABANDON:
        word(fx, "A%u:%u ", worker, ((const struct cm_record_abandon *)record)->item);
        break;
    case CM_RECORD_DROP:
        word(fx, "D%u:%llu ", worker,
             (unsigned long long)((const struct cm_record_drop *)record)->gateway);
        break;
    case CM_RECORD_HELD:
        word(fx, "H%u ", worker);
        break;
    case CM_RECORD_RESUMED:
        word(fx, "S%u:%llu ", worker,
             (unsigned long long)((const struct cm_record_resumed *)record)->gateway);
        break;
    default:
        fail_msg("record type %u to a worker", type);
    }
}

static void worker_hung(void *ctx, uint32_t worker)
{
    struct fx *fx = ctx;
    word(fx, "K%u ", worker);
    if (fx->hooks.on_hung)
        fx->hooks.on_hung(fx->hooks.ctx, worker);
}

/* ---- models ---- */

static struct sd_signature make_signature(bool batchable, uint32_t max_batch)
{
    struct sd_signature out = {.n_inputs = 1,
                               .n_outputs = 2,
                               .max_batch = max_batch,
                               .batchable = batchable,
                               .weights_bytes = 1000};
    out.inputs = calloc(1, sizeof *out.inputs);
    out.outputs = calloc(2, sizeof *out.outputs);
    out.inputs[0] = (struct sd_tensor_info){
        .name = strdup("x"), .dtype = CM_FP32, .shape = {.rank = 2, .dims = {-1, -1}}};
    out.outputs[0] = (struct sd_tensor_info){
        .name = strdup("y"), .dtype = CM_FP32, .shape = {.rank = 2, .dims = {-1, 4}}};
    out.outputs[1] = out.outputs[0];
    out.outputs[1].name = strdup("z");
    return out;
}

static void add_models(struct fx *fx)
{
    static const struct {
        const char *name;
        uint32_t wait_us, max_queue;
    } list[FX_MODELS] = {{"eager", 0, 64}, {"patient", 1000, 4096}, {"single", 0, 4096}};
    for (int i = 0; i < FX_MODELS; i++) {
        struct cm_model_config config;
        cm_model_config_init(&config);
        config.max_wait_us = list[i].wait_us;
        config.max_queue = list[i].max_queue;
        assert_non_null(sd_models_add(&fx->models, list[i].name, 1, &config, NULL));
    }
}

/* ---- the fixture ---- */

void fx_open(struct fx *fx, const struct sd_limits *limits)
{
    memset(fx, 0, sizeof *fx);
    fx->record = malloc(CM_RECORD_MAX);
    fx->batches = calloc(FX_BATCHES, sizeof *fx->batches);
    fx->next_slab = 1;
    assert_int_equal(sd_models_init(&fx->models, 7), CM_OK);
    add_models(fx);
    struct sd_limits none = {0};
    struct sd_sink sink = {to_gateway, to_worker, worker_hung, fx};
    assert_int_equal(sd_core_create(limits ? limits : &none, &fx->models, &sink, &fx->core), CM_OK);
}

void fx_close(struct fx *fx)
{
    sd_core_destroy(fx->core);
    sd_models_fini(&fx->models);
    free(fx->batches);
    free(fx->record);
}

void fx_add_gateway(struct fx *fx, uint32_t gateway, uint64_t instance)
{
    fx->gateways[gateway] = instance;
    assert_int_equal(sd_core_gateway_attach(fx->core, gateway, instance), CM_OK);
}

void fx_del_gateway(struct fx *fx, uint32_t gateway)
{
    fx->gateways[gateway] = 0;
    sd_core_gateway_detach(fx->core, gateway, true);
}

void fx_add_worker(struct fx *fx, uint32_t worker, uint64_t instance)
{
    struct cm_error err;
    fx->workers[worker] = instance;
    assert_int_equal(sd_core_worker_attach(fx->core, worker, instance), CM_OK);
    for (int i = 0; i < FX_MODELS; i++) {
        struct sd_signature signature = make_signature(i != FX_SINGLE, i == FX_EAGER     ? 8
                                                                       : i == FX_PATIENT ? 4
                                                                                         : 1);
        sd_model_asked(&fx->models.items[i], worker);
        sd_model_ready(&fx->models.items[i], worker, &signature, &err);
        assert_int_equal(err.code, CM_OK);
    }
}

void fx_del_worker(struct fx *fx, uint32_t worker, uint64_t now_ns)
{
    const struct fx_batch *batch;
    fx->workers[worker] = 0;
    while ((batch = fx_oldest(fx, worker)) != NULL)
        fx_forget(fx, batch);
    sd_models_worker_gone(&fx->models, worker);
    sd_core_worker_detach(fx->core, worker, now_ns);
}

uint32_t fx_make_submit(struct fx *fx, const struct fx_submit *in)
{
    struct {
        struct cm_record_submit submit;
        struct cm_tensor_desc input;
    } record = {
        .submit = {.trace = {.trace_id = in->handle, .stage = CM_STAGE_SUBMIT},
                   .request = in->handle,
                   .deadline_ns = in->deadline_ns ? in->deadline_ns : CM_NEVER,
                   .received_ns = 1,
                   .output_mask = in->mask ? in->mask : 1,
                   .model = fx->models.items[in->model].ref,
                   .rows = in->rows ? in->rows : 1,
                   .priority = in->priority,
                   .n_inputs = 1},
        .input = {.slice = {.region = 5, .generation = 1, .offset = 128},
                  .dtype = CM_FP32,
                  .rank = 2},
    };
    record.input.dims[0] = record.submit.rows;
    record.input.dims[1] = in->width ? in->width : 16;
    record.input.slice.length = 4ull * record.submit.rows * (uint64_t)record.input.dims[1];
    memcpy(fx->record, &record, sizeof record);
    return sizeof record;
}

static void from_gateway(struct fx *fx, uint32_t gateway, uint8_t type, const void *record,
                         uint32_t length, uint64_t now_ns)
{
    struct cm_error err;
    if (cm_record_check(type, record, length, &err) != CM_OK)
        fail_msg("a test built a bad record: %s", err.text);
    enum cm_err code = sd_core_from_gateway(fx->core, gateway, type, record, length, now_ns, &err);
    assert_int_equal(code, CM_OK);
}

void fx_submit(struct fx *fx, const struct fx_submit *submit, uint64_t now_ns)
{
    /* A copy: the sink joins its records in fx->record. */
    uint64_t copy[64];
    uint32_t length = fx_make_submit(fx, submit);
    memcpy(copy, fx->record, length);
    from_gateway(fx, submit->gateway, CM_RECORD_SUBMIT, copy, length, now_ns);
}

void fx_cancel(struct fx *fx, uint32_t gateway, uint64_t handle, uint64_t now_ns)
{
    struct cm_record_cancel cancel = {.request = handle};
    from_gateway(fx, gateway, CM_RECORD_CANCEL, &cancel, sizeof cancel, now_ns);
}

void fx_release(struct fx *fx, uint32_t gateway, const struct cm_slab_ref *slab, uint64_t now_ns)
{
    struct cm_record_release release = {.slab = *slab};
    from_gateway(fx, gateway, CM_RECORD_RELEASE, &release, sizeof release, now_ns);
}

const struct fx_batch *fx_oldest(const struct fx *fx, uint32_t worker)
{
    for (uint32_t i = 0; i < fx->n_batches; i++)
        if (fx->batches[i].worker == worker)
            return &fx->batches[i];
    return NULL;
}

void fx_forget(struct fx *fx, const struct fx_batch *batch)
{
    uint32_t at = (uint32_t)(batch - fx->batches);
    memmove(&fx->batches[at], &fx->batches[at + 1], (fx->n_batches - at - 1) * sizeof *fx->batches);
    fx->n_batches--;
}

static struct cm_tensor_desc make_output(uint32_t index, uint32_t rows)
{
    return (struct cm_tensor_desc){.slice = {.region = 9, .generation = 1, .length = 16ull * rows},
                                   .dims = {rows, 4},
                                   .dtype = CM_FP32,
                                   .rank = 2,
                                   .index = (uint8_t)index};
}

uint32_t fx_make_done(struct fx *fx, const struct fx_batch *batch, enum cm_err status,
                      const char *text)
{
    unsigned char *at = (unsigned char *)fx->record;
    struct cm_record_done done = {.batch = batch->batch,
                                  .received_ns = 1,
                                  .started_ns = 2,
                                  .finished_ns = 3,
                                  .status = status};
    done.n_items = status == CM_OK ? batch->n_items : 0;
    done.text_length = status == CM_OK ? 0 : (uint16_t)strlen(text);
    memcpy(at, &done, sizeof done);
    at += sizeof done;
    if (status != CM_OK) {
        memcpy(at, text, done.text_length);
        return (uint32_t)(sizeof done + done.text_length);
    }
    for (uint32_t i = 0; i < batch->n_items; i++) {
        struct cm_done_item item = {.slab = {.worker = fx->workers[batch->worker],
                                             .slab = fx->next_slab++,
                                             .generation = 1},
                                    .n_outputs = (uint16_t)__builtin_popcountll(batch->masks[i])};
        memcpy(at, &item, sizeof item);
        at += sizeof item;
        for (uint64_t left = batch->masks[i]; left; left &= left - 1) {
            struct cm_tensor_desc out =
                make_output((uint32_t)__builtin_ctzll(left), batch->item_rows[i]);
            memcpy(at, &out, sizeof out);
            at += sizeof out;
        }
    }
    return (uint32_t)(at - (unsigned char *)fx->record);
}

bool fx_done(struct fx *fx, uint32_t worker, enum cm_err status, uint64_t now_ns)
{
    struct cm_error err;
    const struct fx_batch *batch = fx_oldest(fx, worker);
    if (!batch)
        return false;
    uint32_t length = fx_make_done(fx, batch, status, "the kernel said no");
    fx_forget(fx, batch);
    void *copy = malloc(length);
    memcpy(copy, fx->record, length);
    if (cm_record_check(CM_RECORD_DONE, copy, length, &err) != CM_OK)
        fail_msg("a test built a bad DONE: %s", err.text);
    enum cm_err code =
        sd_core_from_worker(fx->core, worker, CM_RECORD_DONE, copy, length, now_ns, &err);
    free(copy);
    assert_int_equal(code, CM_OK);
    return true;
}

void fx_expect(struct fx *fx, const char *where, const char *expected)
{
    if (fx->used > 0 && fx->words[fx->used - 1] == ' ')
        fx->used--;
    fx->words[fx->used] = '\0';
    if (strcmp(fx->words, expected) != 0)
        fail_msg("%s: expected \"%s\", got \"%s\"", where, expected, fx->words);
    fx->used = 0;
    fx->words[0] = '\0';
}
