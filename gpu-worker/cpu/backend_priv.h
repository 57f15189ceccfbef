/* Pieces of the CPU backend, shared by backend*.c only. */
#ifndef GPU_WORKER_CPU_BACKEND_PRIV_H
#define GPU_WORKER_CPU_BACKEND_PRIV_H

#include "gpu-worker/backend.h"
#include "gpu-worker/cpu/kernels.h"
#include "gpu-worker/cpu/plain_window.h"
#include "gpu-worker/cpu/pool.h"
#include "gpu-worker/graph/infer.h"

struct cpu_backend {
    struct wk_backend base;
    const struct cpu_kernels *kernels;
    struct cpu_pool *pool; /* NULL: one thread */
    unsigned threads;
};

struct cpu_step;
struct cpu_backend;

/* What cannot be read off the operator's name, for people: "f32_gemm packed 48". */
typedef void cpu_describe_fn(const struct cpu_backend *cpu, const struct cpu_step *step,
                             char *buffer, size_t size);

/* Runs items [i0, i1) of a step on one thread. */
typedef void cpu_body_fn(const struct cpu_backend *cpu, const struct cpu_step *step,
                         const struct wk_run *run, size_t i0, size_t i1, unsigned thread);

/* Runs a whole step, splitting its parts with cpu_split. */
typedef enum cm_err cpu_step_fn(const struct cpu_backend *cpu, const struct cpu_step *step,
                                const struct wk_run *run);

/* A prepared node; operators embed it first and add what they need. */
struct cpu_step {
    cpu_step_fn *run; /* NULL: body over all items */
    cpu_body_fn *body;
    size_t items, unit;        /* boundaries between threads fall on multiples of unit */
    double work;               /* in simple operations */
    bool alone;                /* too little work to share */
    cpu_describe_fn *describe; /* NULL: the operator's row says enough */
};

/* What prepare functions share: the call, and where its results go. */
struct cpu_prepare {
    const struct cpu_backend *cpu;
    const struct wk_call *call;
    struct wk_arena *arena;
    struct cm_error *err;
    size_t workspace; /* bytes; set by the operator */
};
typedef enum cm_err cpu_prepare_fn(struct cpu_prepare *p, const struct cpu_step **ret_step);

/* Layout and packing of an operator's constants; NULL in the table means plain. */
typedef void cpu_layout_fn(const struct wk_call *call, unsigned k, struct wk_layout *ret_layout);
typedef void cpu_pack_fn(const struct wk_call *call, unsigned k, void *ret_bytes);

/* Fills the unknown dimensions of the outputs in facts from the contents of the inputs. */
typedef enum cm_err cpu_measure_fn(const struct wk_call *call, const void *const *in,
                                   struct wk_fact *facts, struct cm_error *err);

/* Layouts of the CPU backend. */
enum {
    CPU_LAYOUT_PACKED = WK_LAYOUT_OWN, /* B of a product in panels (kernels.h), matrix by matrix */
    CPU_LAYOUT_PACKED_TRANSPOSED,      /* the same from B stored [n][k] */
    CPU_LAYOUT_BATCH_NORM,             /* scale[C] and shift[C] of a BatchNormalization */
    CPU_LAYOUT_RNN,                    /* weights of a recurrent layer, see backend_rnn.c */
    CPU_LAYOUT_GRU_R,
    CPU_LAYOUT_RNN_BIAS,
    CPU_LAYOUT_CONV_TRANSPOSE, /* [group][output channel, tap][input channel] */
    CPU_LAYOUT_CENTERED,       /* 8-bit integers less their zero points, as floats */
};

/* About how long a simple operation (the unit of work) takes, in nanoseconds. */
#define CPU_WORK_NS 0.05

/* Zeroed state of size bytes with the step's work filled in. work is in the unit of one simple
 * operation per element; NULL when memory is out (err is filled). */
void *cpu_step_take(struct cpu_prepare *p, size_t size, cpu_body_fn *body, size_t items,
                    size_t unit, double work);

/* Runs body over items on all threads, or in the caller if the step is alone. */
void cpu_split(const struct cpu_backend *cpu, const struct cpu_step *step, const struct wk_run *run,
               cpu_body_fn *body, size_t items, size_t unit);

/* The stages of a node (graph.h) as the kernels take them. */
struct cpu_stages {
    struct k_epilogue epilogue;
    uint16_t input[K_MAX_STAGES]; /* of the run; 0: no operand */
};

/* Fills stages from a call; rows is the output's axis that the kernel's rows are (-1: none),
 * columns likewise. CM_INTERNAL where an operand does not lie as the pass took for granted. */
CM_MUST_CHECK enum cm_err cpu_stages_init(struct cpu_prepare *p, int rows, int columns,
                                          struct cpu_stages *ret_stages);
/* The epilogue of one run in *ret; NULL if there are no stages. */
const struct k_epilogue *cpu_stages_bind(const struct cpu_stages *stages, const struct wk_run *run,
                                         struct k_epilogue *ret);

/* Element-wise operators on FP32 that kernels exist for: false for others. params and op are filled
 * in; constants of Clip are read. */
bool cpu_stage_kernel(const struct wk_graph *graph, const struct wk_node *node,
                      struct k_stage *ret_stage);
bool cpu_fuses(const struct wk_call *host, const struct wk_node *stage, enum wk_spread spread);

/* A chain of element-wise operators on FP32 in one pass over memory: a node with stages. */
cpu_prepare_fn cpu_prepare_chain;
bool cpu_is_chain(const struct wk_call *call);

/* Elements of a concrete shape, and of its dimensions [from, to). */
size_t cpu_count(const struct cm_shape *shape);
size_t cpu_product(const struct cm_shape *shape, unsigned from, unsigned to);

/* Dense row-major strides in elements. */
void cpu_strides(const struct cm_shape *shape, ptrdiff_t ret_strides[CM_MAX_RANK]);

/* A workspace of floats for each thread: adds threads * floats to the prepared workspace and
 * returns the padded floats per thread. Sums that overflow make a workspace that is refused. */
size_t cpu_thread_floats(struct cpu_prepare *p, size_t floats);

/* Room in the workspace that all threads share, aligned for anything: its offset in bytes. */
size_t cpu_take_bytes(struct cpu_prepare *p, size_t bytes);

/* A resolved window as the plain loops take it, and its last two dimensions as kernels do. */
struct k_window3 cpu_window3(const struct wk_window *w);
struct k_window cpu_window2(const struct wk_window *w);

/* Every function that rows.inc names. */
#define ROW(op, name) cpu_prepare_fn cpu_prepare_##name;
#define ROW_PACKED(op, name)           \
    cpu_prepare_fn cpu_prepare_##name; \
    cpu_layout_fn cpu_layout_##name;   \
    cpu_pack_fn cpu_pack_##name;
#define ROW_MEASURED(op, name)         \
    cpu_prepare_fn cpu_prepare_##name; \
    cpu_measure_fn cpu_measure_##name;
#include "gpu-worker/cpu/rows.inc"
#undef ROW
#undef ROW_PACKED
#undef ROW_MEASURED

#endif
