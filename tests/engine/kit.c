/* Builds ONNX models in memory and runs them; see kit.h. Test code, one thread. */
#include "tests/engine/kit.h"

#include "proto/onnx.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD_BYTES = 128, GUARD_FILL = 0xa5 };

struct kit_model {
    Onnx__ModelProto *proto;
    void **allocations;
    size_t n_allocations, room;
};

static void own(struct kit_model *m, void *memory)
{
    if (m->n_allocations == m->room) {
        m->room = m->room ? m->room * 2 : 256;
        m->allocations = realloc(m->allocations, m->room * sizeof(void *));
        assert_non_null(m->allocations);
    }
    m->allocations[m->n_allocations++] = memory;
}

static void *take(struct kit_model *m, size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    assert_non_null(memory);
    own(m, memory);
    return memory;
}

static char *text(struct kit_model *m, const char *from, size_t length)
{
    char *copy = take(m, length + 1);
    memcpy(copy, from, length);
    return copy;
}

/* Appends to a repeated field. Room doubles at powers of two. */
static void push(struct kit_model *m, void *list, size_t *count, void *item)
{
    void ***items = list;
    if ((*count & (*count - 1)) == 0) {
        void **grown = take(m, (*count ? 2 * *count : 1) * sizeof(void *));
        if (*count)
            memcpy(grown, *items, *count * sizeof(void *));
        *items = grown;
    }
    (*items)[(*count)++] = item;
}

/* ---- models ---------------------------------------------------------------------------------- */

struct kit_model *kit_model(int opset)
{
    struct kit_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->proto = take(m, sizeof *m->proto);
    onnx__model_proto__init(m->proto);
    m->proto->has_ir_version = 1;
    m->proto->ir_version = 8;
    Onnx__OperatorSetIdProto *import = take(m, sizeof *import);
    onnx__operator_set_id_proto__init(import);
    import->domain = text(m, "", 0);
    import->has_version = 1;
    import->version = opset;
    push(m, &m->proto->opset_import, &m->proto->n_opset_import, import);
    m->proto->graph = take(m, sizeof *m->proto->graph);
    onnx__graph_proto__init(m->proto->graph);
    m->proto->graph->name = text(m, "test", 4);
    return m;
}

void kit_free(struct kit_model *m)
{
    for (size_t i = 0; i < m->n_allocations; i++)
        free(m->allocations[i]);
    free(m->allocations);
    free(m);
}

struct Onnx__ModelProto *kit_proto(struct kit_model *m)
{
    return m->proto;
}

struct cm_shape kit_shape(int rank, ...)
{
    struct cm_shape shape = {.rank = (uint8_t)rank};
    va_list args;
    va_start(args, rank);
    for (int i = 0; i < rank; i++)
        shape.dims[i] = va_arg(args, int);
    va_end(args);
    return shape;
}

static Onnx__ValueInfoProto *value_info(struct kit_model *m, const char *name, enum cm_dtype dtype,
                                        struct cm_shape shape)
{
    Onnx__ValueInfoProto *info = take(m, sizeof *info);
    onnx__value_info_proto__init(info);
    info->name = text(m, name, strlen(name));
    info->type = take(m, sizeof *info->type);
    onnx__type_proto__init(info->type);
    info->type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    Onnx__TypeProto__Tensor *tensor = info->type->tensor_type = take(m, sizeof *tensor);
    onnx__type_proto__tensor__init(tensor);
    tensor->has_elem_type = 1;
    tensor->elem_type = cm_dtype_to_onnx(dtype);
    tensor->shape = take(m, sizeof *tensor->shape);
    onnx__tensor_shape_proto__init(tensor->shape);
    for (unsigned i = 0; i < shape.rank; i++) {
        Onnx__TensorShapeProto__Dimension *dim = take(m, sizeof *dim);
        onnx__tensor_shape_proto__dimension__init(dim);
        if (shape.dims[i] < 0) {
            char free_name[16];
            snprintf(free_name, sizeof free_name, "d%u", i);
            dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
            dim->dim_param = text(m, free_name, strlen(free_name));
        } else {
            dim->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
            dim->dim_value = shape.dims[i];
        }
        push(m, &tensor->shape->dim, &tensor->shape->n_dim, dim);
    }
    return info;
}

size_t kit_count(struct cm_shape shape)
{
    int64_t count = 0;
    assert_int_equal(cm_shape_count(&shape, &count), CM_OK);
    return (size_t)count;
}

void kit_input(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape)
{
    push(m, &m->proto->graph->input, &m->proto->graph->n_input, value_info(m, name, dtype, shape));
}

void kit_output(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape)
{
    push(m, &m->proto->graph->output, &m->proto->graph->n_output,
         value_info(m, name, dtype, shape));
}

static Onnx__TensorProto *tensor(struct kit_model *m, const char *name, enum cm_dtype dtype,
                                 struct cm_shape shape, const void *data)
{
    Onnx__TensorProto *t = take(m, sizeof *t);
    size_t bytes = 0;
    onnx__tensor_proto__init(t);
    t->name = text(m, name, strlen(name));
    t->has_data_type = 1;
    t->data_type = cm_dtype_to_onnx(dtype);
    t->n_dims = shape.rank;
    t->dims = take(m, sizeof shape.dims);
    memcpy(t->dims, shape.dims, sizeof shape.dims);
    assert_int_equal(cm_shape_bytes(&shape, dtype, &bytes), CM_OK);
    t->has_raw_data = 1;
    t->raw_data.len = bytes;
    t->raw_data.data = take(m, bytes);
    if (bytes)
        memcpy(t->raw_data.data, data, bytes);
    return t;
}

void kit_const(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape,
               const void *data)
{
    push(m, &m->proto->graph->initializer, &m->proto->graph->n_initializer,
         tensor(m, name, dtype, shape, data));
}

void kit_external(struct kit_model *m, unsigned i, ...)
{
    Onnx__TensorProto *t = m->proto->graph->initializer[i];
    const char *key;
    va_list args;
    t->has_raw_data = 0;
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    va_start(args, i);
    while ((key = va_arg(args, const char *))) {
        const char *value = va_arg(args, const char *);
        Onnx__StringStringEntryProto *entry = take(m, sizeof *entry);
        onnx__string_string_entry_proto__init(entry);
        entry->key = text(m, key, strlen(key));
        entry->value = text(m, value, strlen(value));
        push(m, &t->external_data, &t->n_external_data, entry);
    }
    va_end(args);
}

void kit_ints(struct kit_model *m, const char *name, int count, ...)
{
    int64_t values[64];
    va_list args;
    va_start(args, count);
    for (int i = 0; i < count; i++)
        values[i] = va_arg(args, int);
    va_end(args);
    kit_const(m, name, CM_INT64, kit_shape(1, count), values);
}

void kit_random(struct kit_model *m, const char *name, struct cm_shape shape)
{
    int64_t count = 0;
    uint64_t state = 1;
    for (const char *c = name; *c; c++)
        state = state * 131 + (unsigned char)*c;
    assert_int_equal(cm_shape_count(&shape, &count), CM_OK);
    float *data = malloc((size_t)count * sizeof *data + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = kit_float(&state);
    kit_const(m, name, CM_FP32, shape, data);
    free(data);
}

static void push_names(struct kit_model *m, char ***list, size_t *count, const char *names)
{
    for (;;) {
        const char *comma = strchr(names, ',');
        size_t length = comma ? (size_t)(comma - names) : strlen(names);
        push(m, list, count, text(m, names, length));
        if (!comma)
            return;
        names = comma + 1;
    }
}

void kit_node(struct kit_model *m, const char *op, const char *inputs, const char *outputs)
{
    Onnx__NodeProto *node = take(m, sizeof *node);
    onnx__node_proto__init(node);
    node->op_type = text(m, op, strlen(op));
    if (inputs[0])
        push_names(m, &node->input, &node->n_input, inputs);
    push_names(m, &node->output, &node->n_output, outputs);
    node->name = node->output[0];
    push(m, &m->proto->graph->node, &m->proto->graph->n_node, node);
}

static Onnx__AttributeProto *attribute(struct kit_model *m, const char *name,
                                       Onnx__AttributeProto__AttributeType type)
{
    Onnx__GraphProto *graph = m->proto->graph;
    Onnx__NodeProto *node = graph->node[graph->n_node - 1];
    Onnx__AttributeProto *attr = take(m, sizeof *attr);
    onnx__attribute_proto__init(attr);
    attr->name = text(m, name, strlen(name));
    attr->has_type = 1;
    attr->type = type;
    push(m, &node->attribute, &node->n_attribute, attr);
    return attr;
}

void kit_attr_i(struct kit_model *m, const char *name, int64_t value)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
    attr->has_i = 1;
    attr->i = value;
}

void kit_attr_f(struct kit_model *m, const char *name, float value)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
    attr->has_f = 1;
    attr->f = value;
}

void kit_attr_s(struct kit_model *m, const char *name, const char *value)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    attr->has_s = 1;
    attr->s.len = strlen(value);
    attr->s.data = (uint8_t *)text(m, value, strlen(value));
}

void kit_attr_ints(struct kit_model *m, const char *name, int count, ...)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
    va_list args;
    attr->n_ints = (size_t)count;
    attr->ints = take(m, (size_t)count * sizeof *attr->ints);
    va_start(args, count);
    for (int i = 0; i < count; i++)
        attr->ints[i] = va_arg(args, int);
    va_end(args);
}

void kit_attr_floats(struct kit_model *m, const char *name, int count, const float *values)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS);
    attr->n_floats = (size_t)count;
    attr->floats = take(m, (size_t)count * sizeof *attr->floats);
    for (int i = 0; i < count; i++)
        attr->floats[i] = values[i];
}

void kit_attr_strings(struct kit_model *m, const char *name, const char *names)
{
    Onnx__AttributeProto *attr = attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
    attr->strings = take(m, (strlen(names) + 1) * sizeof *attr->strings);
    for (const char *at = names; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        ProtobufCBinaryData *to = &attr->strings[attr->n_strings++];
        to->len = length;
        to->data = (uint8_t *)text(m, at, length);
        at += length;
    }
}

void kit_attr_tensor(struct kit_model *m, const char *name, enum cm_dtype dtype,
                     struct cm_shape shape, const void *data)
{
    attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR)->t =
        tensor(m, "", dtype, shape, data);
}

void kit_attr_graph(struct kit_model *m, const char *name, struct kit_model *body)
{
    attribute(m, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g = body->proto->graph;
    for (size_t i = 0; i < body->n_allocations; i++)
        own(m, body->allocations[i]);
    free(body->allocations);
    free(body);
}

void *kit_bytes(struct kit_model *m, size_t *ret_length)
{
    size_t length = onnx__model_proto__get_packed_size(m->proto);
    void *bytes = malloc(length + 1);
    assert_non_null(bytes);
    assert_int_equal(onnx__model_proto__pack(m->proto, bytes), length);
    *ret_length = length;
    return bytes;
}

/* ---- running --------------------------------------------------------------------------------- */

uint64_t kit_next(uint64_t *state)
{
    /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int kit_pick(uint64_t *state, int least, int most)
{
    return least + (int)(kit_next(state) % (uint64_t)(most - least + 1));
}

float kit_float(uint64_t *state)
{
    return (float)((int64_t)(kit_next(state) >> 40) - (1 << 23)) / (float)(1 << 23);
}

struct wk_engine *kit_engine(unsigned threads, const enum wk_isa *isa)
{
    struct wk_engine_options options = {.threads = threads};
    struct wk_engine *engine = NULL;
    struct cm_error err = {0};
    if (isa) {
        options.isa_given = true;
        options.isa = *isa;
    }
    if (wk_engine_create(&options, &err, &engine) != CM_OK)
        fail_msg("engine: %s", err.text);
    return engine;
}

static void load_into(struct kit_loaded *l, const void *bytes, size_t length,
                      const struct wk_load_options *options)
{
    struct cm_error err = {0};
    if (wk_model_parse(l->engine, bytes, length, options, &err, &l->model) != CM_OK)
        fail_msg("parse: %s", err.text);
    l->weights = kit_guarded(wk_model_weights_bytes(l->model));
    if (wk_model_pack(l->model, l->weights, &err) != CM_OK)
        fail_msg("pack: %s", err.text);
    kit_check_guards(l->weights);
    if (wk_model_attach(l->model, l->weights, &err) != CM_OK)
        fail_msg("attach: %s", err.text);
}

void kit_load(struct kit_loaded *l, const void *bytes, size_t length, unsigned threads,
              const enum wk_isa *isa)
{
    *l = (struct kit_loaded){.engine = kit_engine(threads, isa)};
    load_into(l, bytes, length, NULL);
}

void kit_load_without(struct kit_loaded *l, const void *bytes, size_t length,
                      uint64_t disabled_passes)
{
    struct wk_load_options options = WK_LOAD_DEFAULTS;
    options.disabled_passes = disabled_passes;
    *l = (struct kit_loaded){.engine = kit_engine(1, NULL)};
    load_into(l, bytes, length, &options);
}

void kit_load_model(struct kit_loaded *l, struct kit_model *m, unsigned threads,
                    const enum wk_isa *isa)
{
    size_t length;
    void *bytes = kit_bytes(m, &length);
    kit_load(l, bytes, length, threads, isa);
    free(bytes);
}

void kit_unload(struct kit_loaded *l)
{
    wk_model_destroy(l->model);
    wk_engine_destroy(l->engine);
    if (l->weights) {
        kit_check_guards(l->weights);
        kit_guarded_free(l->weights);
    }
    *l = (struct kit_loaded){0};
}

/* Layout: [bytes as size_t, then guard][memory][guard]. */
void *kit_guarded(size_t bytes)
{
    size_t total = (2 * GUARD_BYTES + bytes + WK_ALIGN - 1) / WK_ALIGN * WK_ALIGN;
    unsigned char *block = aligned_alloc(WK_ALIGN, total);
    assert_non_null(block);
    memset(block, GUARD_FILL, total);
    memcpy(block, &bytes, sizeof bytes);
    memset(block + GUARD_BYTES, 0, bytes);
    return block + GUARD_BYTES;
}

void kit_check_guards(void *memory)
{
    unsigned char *block = (unsigned char *)memory - GUARD_BYTES;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    for (size_t i = sizeof bytes; i < GUARD_BYTES; i++)
        assert_int_equal(block[i], GUARD_FILL);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(block[GUARD_BYTES + bytes + i], GUARD_FILL);
}

void kit_guarded_free(void *memory)
{
    free((unsigned char *)memory - GUARD_BYTES);
}

static void *guarded_copy(const void *data, const struct cm_shape *shape, enum cm_dtype dtype)
{
    size_t bytes = 0;
    assert_int_equal(cm_shape_bytes(shape, dtype, &bytes), CM_OK);
    void *memory = kit_guarded(bytes);
    if (data && bytes)
        memcpy(memory, data, bytes);
    return memory;
}

/* A plan with guarded buffers for one run. */
struct call {
    const struct wk_signature *signature;
    struct wk_plan *plan;
    const void *in[WK_MAX_IO];
    void *out[WK_MAX_IO], *scratch;
};

static void begin_call(const struct kit_loaded *l, const struct cm_shape *shapes,
                       const void *const *inputs, struct call *call)
{
    struct cm_error err = {0};
    *call = (struct call){.signature = wk_model_signature(l->model)};
    if (wk_plan_create(l->model, shapes, &err, &call->plan) != CM_OK)
        fail_msg("plan: %s", err.text);
    for (unsigned i = 0; i < call->signature->n_inputs; i++)
        call->in[i] = guarded_copy(inputs[i], &shapes[i], call->signature->inputs[i].dtype);
    for (unsigned i = 0; i < call->signature->n_outputs; i++)
        if (wk_plan_output_is_settled(call->plan, i))
            call->out[i] = guarded_copy(NULL, wk_plan_output_shape(call->plan, i),
                                        wk_plan_output_dtype(call->plan, i));
    call->scratch = kit_guarded(wk_plan_scratch_bytes(call->plan));
}

/* Nothing may have been written outside of the buffers, or into inputs. */
static void end_call(struct call *call, const struct cm_shape *shapes, const void *const *inputs)
{
    for (unsigned i = 0; i < call->signature->n_outputs; i++) {
        if (!call->out[i])
            continue;
        kit_check_guards(call->out[i]);
        kit_guarded_free(call->out[i]);
    }
    kit_check_guards(call->scratch);
    kit_guarded_free(call->scratch);
    for (unsigned i = 0; i < call->signature->n_inputs; i++) {
        size_t bytes = 0;
        assert_int_equal(cm_shape_bytes(&shapes[i], call->signature->inputs[i].dtype, &bytes),
                         CM_OK);
        kit_check_guards((void *)call->in[i]);
        assert_memory_equal(call->in[i], inputs[i], bytes);
        kit_guarded_free((void *)call->in[i]);
    }
    wk_plan_destroy(call->plan);
}

void kit_run(struct kit_loaded *l, const struct cm_shape *shapes, const void *const *inputs,
             void **ret_outputs, struct cm_shape *ret_shapes)
{
    struct call call;
    struct cm_error err = {0};
    begin_call(l, shapes, inputs, &call);
    if (wk_plan_run(call.plan, call.in, call.out, call.scratch, &err) != CM_OK)
        fail_msg("run: %s", err.text);
    /* Outputs that the data sized may be an input's memory: they are read first. */
    for (unsigned i = 0; i < call.signature->n_outputs; i++) {
        const struct cm_shape *shape = wk_plan_output_shape(call.plan, i);
        size_t bytes = 0;
        assert_int_equal(cm_shape_bytes(shape, wk_plan_output_dtype(call.plan, i), &bytes), CM_OK);
        ret_outputs[i] = malloc(bytes + 1);
        assert_non_null(ret_outputs[i]);
        if (bytes)
            memcpy(ret_outputs[i], call.out[i] ? call.out[i] : wk_plan_output_data(call.plan, i),
                   bytes);
        if (ret_shapes)
            ret_shapes[i] = *shape;
    }
    end_call(&call, shapes, inputs);
}

void kit_run_refused(struct kit_loaded *l, const struct cm_shape *shapes, const void *const *inputs,
                     enum cm_err code, const char *op, const char *part)
{
    struct call call;
    struct cm_error err = {0};
    begin_call(l, shapes, inputs, &call);
    enum cm_err got = wk_plan_run(call.plan, call.in, call.out, call.scratch, &err);
    if (got != code || !strstr(err.text, op) || !strstr(err.text, part))
        fail_msg("%s: wanted %s with \"%s\", got %s: %s", op, cm_err_name(code), part,
                 cm_err_name(got), err.text);
    end_call(&call, shapes, inputs);
}
