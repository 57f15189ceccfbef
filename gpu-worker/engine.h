/* The engine: an ONNX model in, tensors in, tensors out. No processes, no sockets, no logging.
 *
 * Used by the worker's device thread and by `ingot run`. Life of a model:
 *
 *   wk_model_parse    file bytes -> checked graph and signature; weights are still in the file
 *   wk_model_pack     writes packed weights into memory that the caller owns (one writer)
 *   wk_model_attach   uses packed weights that this or another process wrote, read-only
 *   wk_plan_create    input shapes -> order, kernels, memory; allocates what the steps need
 *   wk_plan_run       executes; see there for what it may allocate
 *
 * Threads: a wk_engine and everything made from it belong to one thread at a time; the engine's own
 * pool threads live only inside wk_plan_run. Several engines may live in one process.
 *
 * One answer: with the same input bytes a row's output bytes depend on nothing else: not on the
 * batch size, the row's place, the thread count or the instruction set. */
#ifndef GPU_WORKER_ENGINE_H
#define GPU_WORKER_ENGINE_H

#include "common/err.h"
#include "common/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits of one model; what exceeds them is refused at load. */
#define WK_MAX_IO   16  /* inputs, and outputs, of a model */
#define WK_MAX_NAME 256 /* bytes of a tensor's name with its terminator */
#define WK_ALIGN    128 /* of every tensor: buffers given to wk_plan_run and weights */

/* Instruction sets, worst first. */
enum wk_isa {
    WK_ISA_SCALAR = 0,
    WK_ISA_AVX2 = 1, /* with FMA */
    WK_ISA_AVX512 = 2,
};

/* "scalar", "avx2", "avx512"; the reverse returns false for other words. */
const char *wk_isa_name(enum wk_isa isa);
bool wk_isa_from_name(const char *name, enum wk_isa *ret_isa);

/* The best instruction set that this CPU and this operating system support. */
enum wk_isa wk_isa_best(void);

struct wk_engine;
struct wk_model;
struct wk_plan;

/* Zero values: one thread, the best instruction set. The environment variable INGOT_CPU_ISA can
 * only lower the choice. */
struct wk_engine_options {
    unsigned threads; /* including the caller; 0 means 1 */
    bool isa_given;   /* use isa below; CM_UNSUPPORTED if the machine lacks it */
    enum wk_isa isa;
};

CM_MUST_CHECK enum cm_err wk_engine_create(const struct wk_engine_options *options,
                                           struct cm_error *err, struct wk_engine **ret_engine);
/* Joins the pool. Models and plans must be destroyed before. NULL is allowed. */
void wk_engine_destroy(struct wk_engine *engine);
enum wk_isa wk_engine_isa(const struct wk_engine *engine);

/* One input or output of a model. A dimension of -1 is free. */
struct wk_tensor_info {
    char name[WK_MAX_NAME];
    enum cm_dtype dtype;
    struct cm_shape shape;
};

struct wk_signature {
    unsigned n_inputs, n_outputs;
    struct wk_tensor_info inputs[WK_MAX_IO], outputs[WK_MAX_IO];
    /* The first dimension of every input and output is a batch of independent rows: proven by
     * following the batch axis through the graph's operators, so that rows of different callers may
     * share a run. False where it could not be proven; why_not then says which node. */
    bool batchable;
    char why_not[256];
};

/* How a model is loaded; NULL stands for WK_LOAD_DEFAULTS. */
struct wk_load_options {
    /* The folder that the model's external data is looked for in, a descriptor that the caller
     * keeps open during wk_model_parse; -1: models with external data are refused. */
    int directory;
    uint64_t disabled_passes; /* bits of wk_pass_from_name, for debugging; 0: all passes run */
};
#define WK_LOAD_DEFAULTS ((struct wk_load_options){.directory = -1})

/* Parses and checks a model. bytes must outlive the model until wk_model_attach (initializers are
 * not copied before). Refused with a sentence: what is not an ONNX model (CM_CORRUPT), operators,
 * opsets, types or attributes that the engine lacks (CM_UNSUPPORTED; the sentence has operator,
 * opset and node name), limits (CM_LIMIT), inconsistent graphs (CM_INVALID). Hostile bytes are
 * expected. */
CM_MUST_CHECK enum cm_err wk_model_parse(struct wk_engine *engine, const void *bytes, size_t length,
                                         const struct wk_load_options *options,
                                         struct cm_error *err, struct wk_model **ret_model);
/* Plans must be destroyed before. Does not touch the packed weights. NULL is allowed. */
void wk_model_destroy(struct wk_model *model);

/* Valid for the model's life. */
const struct wk_signature *wk_model_signature(const struct wk_model *model);

/* Bytes of the packed weights, the same for every instruction set and thread count. May be 0. */
size_t wk_model_weights_bytes(const struct wk_model *model);

/* SHA-256 over the file's bytes, those read from files beside it, the passes and the packing's
 * version: equal keys mean equal packed bytes. */
void wk_model_weights_key(const struct wk_model *model, uint8_t ret_key[32]);

/* Writes wk_model_weights_bytes bytes at base (WK_ALIGN aligned, writable). */
CM_MUST_CHECK enum cm_err wk_model_pack(const struct wk_model *model, void *base,
                                        struct cm_error *err);

/* From here on the model reads its weights at base, which must stay mapped and unchanged until
 * wk_model_destroy; the file's bytes may be freed. */
CM_MUST_CHECK enum cm_err wk_model_attach(struct wk_model *model, const void *base,
                                          struct cm_error *err);

/* Plans one set of concrete input shapes (in signature order). CM_INVALID with a sentence where a
 * shape does not fit the signature or the graph; CM_LIMIT where a tensor or the plan is too large.
 * The model must be attached. */
CM_MUST_CHECK enum cm_err wk_plan_create(struct wk_model *model, const struct cm_shape *inputs,
                                         struct cm_error *err, struct wk_plan **ret_plan);
void wk_plan_destroy(struct wk_plan *plan);

/* Shape and type of output i, valid for the plan's life. Where data decides them they are only
 * right after a run and until the next one: before the first one unknown dimensions are -1. */
const struct cm_shape *wk_plan_output_shape(const struct wk_plan *plan, unsigned i);
enum cm_dtype wk_plan_output_dtype(const struct wk_plan *plan, unsigned i);

/* The shape of output i is known before the run, and the caller gives its buffer. Otherwise the
 * plan makes the tensor in the run, and wk_plan_output_data has its bytes, dense, until the next
 * run or wk_plan_destroy, and not after any buffer of the run has gone or changed: they may be
 * those of an input, of scratch, of another output or of the weights. NULL for no bytes. */
bool wk_plan_output_is_settled(const struct wk_plan *plan, unsigned i);
const void *wk_plan_output_data(const struct wk_plan *plan, unsigned i);

/* Bytes that wk_plan_run needs at scratch (activations and kernel workspace). */
size_t wk_plan_scratch_bytes(const struct wk_plan *plan);

/* Runs. inputs[i] and outputs[i] are WK_ALIGN aligned and hold the planned bytes (outputs that are
 * not settled are not looked at); scratch is WK_ALIGN aligned with wk_plan_scratch_bytes bytes. A
 * run allocates only for nodes whose shapes depend on data. Inputs are never written, and may alias
 * nothing else. Inputs may change while they are read (they live in another process's memory): the
 * results are then meaningless but nothing else breaks; indices taken from tensors are always
 * range-checked. */
CM_MUST_CHECK enum cm_err wk_plan_run(struct wk_plan *plan, const void *const *inputs,
                                      void *const *outputs, void *scratch, struct cm_error *err);

/* One node of a plan, for people: what is left of the file's nodes after passes, in the order of
 * execution. Names are valid for the plan's life. */
enum wk_node_fate {
    WK_NODE_RUNS,  /* a step of the plan */
    WK_NODE_VIEW,  /* its output is its input's memory */
    WK_NODE_KNOWN, /* its outputs follow from shapes: written when the plan was made */
    WK_NODE_LATE,  /* runs once the data has decided its shapes: those of the last run */
};
struct wk_node_info {
    enum wk_node_fate fate;
    uint32_t position;   /* in the file, from 0 */
    const char *name;    /* as in the file, perhaps "" */
    const char *op;      /* ONNX's name of the operator */
    char fused[128];     /* "+Relu+Add": what runs in the same step */
    char kernel[96];     /* how the backend runs it; "" if it does not run */
    enum cm_dtype dtype; /* of the first output */
    struct cm_shape shape;
    uint64_t read_bytes, written_bytes; /* at run time */
    double flops;                       /* an estimate */
};

/* Nodes of a plan; wk_plan_describe takes 0 <= i < that. */
uint32_t wk_plan_nodes(const struct wk_plan *plan);
void wk_plan_describe(const struct wk_plan *plan, uint32_t i, struct wk_node_info *ret_info);

/* From now on every run writes how long each node took, in nanoseconds, to node_ns[0 ..
 * wk_plan_nodes). NULL ends it; then nothing is measured. */
void wk_plan_time_nodes(struct wk_plan *plan, uint64_t *node_ns);

/* The plans that node i (If, Loop, Scan) keeps of its subgraphs, n counting from 0, and the
 * attribute that each subgraph is; NULL beyond the last. Valid until the next run. */
const struct wk_plan *wk_plan_inside(const struct wk_plan *plan, uint32_t i, unsigned n,
                                     const char **ret_attribute);
/* What node i of such a plan took in all timed runs together. */
uint64_t wk_plan_inside_ns(const struct wk_plan *plan, uint32_t i);

/* Passes over the graph at load, in their order: name and one line about it; NULL from the last one
 * on. Static storage. */
const char *wk_pass_name(unsigned i);
const char *wk_pass_summary(unsigned i);
/* The bit of a pass in wk_load_options, or all bits for "all"; false for other words. */
bool wk_pass_from_name(const char *name, uint64_t *ret_bits);

/* X(name): every operator the engine executes, with its opset range and notes, is listed by
 * gpu-worker/graph/ops.inc; this returns that table as text for `ingot run --ops`. */
const char *wk_engine_ops_text(void);

#endif
