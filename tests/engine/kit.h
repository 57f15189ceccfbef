/* Builds ONNX models in memory and runs them: shared by the engine's tests.
 *
 * Every failure inside the kit fails the test at once (cmocka); tests read as model and expectation
 * only. Not for the kernels' own tests. */
#ifndef TESTS_ENGINE_KIT_H
#define TESTS_ENGINE_KIT_H

#include "common/tensor.h"
#include "gpu-worker/engine.h"

#include <stddef.h>
#include <stdint.h>

/* ---- models ---------------------------------------------------------------------------------- */

struct kit_model;

struct kit_model *kit_model(int opset);
void kit_free(struct kit_model *m);

/* A shape from dimensions; -1 is a free dimension. */
struct cm_shape kit_shape(int rank, ...);
#define KIT_SHAPE0() ((struct cm_shape){0})
size_t kit_count(struct cm_shape shape); /* elements; all dimensions known */

void kit_input(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape);
void kit_output(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape);

/* An initializer with raw data of cm_shape_bytes bytes. */
void kit_const(struct kit_model *m, const char *name, enum cm_dtype dtype, struct cm_shape shape,
               const void *data);
/* Moves the data of initializer i out of the model: keys and values of external_data follow, then
 * NULL. */
void kit_external(struct kit_model *m, unsigned i, ...) __attribute__((sentinel));
/* A vector of int64. */
void kit_ints(struct kit_model *m, const char *name, int count, ...);
/* Random floats in [-1, 1), from the name: the same in every build. */
void kit_random(struct kit_model *m, const char *name, struct cm_shape shape);

/* A node; inputs and outputs are lists like "x,w,,b". Its name is its first output's. Attributes
 * that follow belong to it. */
void kit_node(struct kit_model *m, const char *op, const char *inputs, const char *outputs);
void kit_attr_i(struct kit_model *m, const char *name, int64_t value);
void kit_attr_f(struct kit_model *m, const char *name, float value);
void kit_attr_s(struct kit_model *m, const char *name, const char *value);
void kit_attr_ints(struct kit_model *m, const char *name, int count, ...);
void kit_attr_floats(struct kit_model *m, const char *name, int count, const float *values);
/* names is a list like "Relu,Tanh". */
void kit_attr_strings(struct kit_model *m, const char *name, const char *names);
void kit_attr_tensor(struct kit_model *m, const char *name, enum cm_dtype dtype,
                     struct cm_shape shape, const void *data);

/* A subgraph: body's graph with its inputs, outputs and nodes. body belongs to m from here on. */
void kit_attr_graph(struct kit_model *m, const char *name, struct kit_model *body);

/* The generated message, for tests that break it; owned by m. */
struct Onnx__ModelProto *kit_proto(struct kit_model *m);

/* Bytes of the file; free() them. */
void *kit_bytes(struct kit_model *m, size_t *ret_length);

/* ---- running --------------------------------------------------------------------------------- */

/* An engine with a loaded model. */
struct kit_loaded {
    struct wk_engine *engine;
    struct wk_model *model;
    void *weights;
};

struct wk_engine *kit_engine(unsigned threads, const enum wk_isa *isa);

/* Parses, packs and attaches; what cannot be loaded fails the test with the engine's sentence. */
void kit_load(struct kit_loaded *l, const void *bytes, size_t length, unsigned threads,
              const enum wk_isa *isa);
/* The same on one thread with the best kernels, and without some passes (wk_load_options). */
void kit_load_without(struct kit_loaded *l, const void *bytes, size_t length,
                      uint64_t disabled_passes);
void kit_load_model(struct kit_loaded *l, struct kit_model *m, unsigned threads,
                    const enum wk_isa *isa);
void kit_unload(struct kit_loaded *l);

/* One run: plans the shapes, runs with guarded buffers (a byte written outside a buffer fails the
 * test), and gives output i as fresh memory of the planned size (free() each). */
void kit_run(struct kit_loaded *l, const struct cm_shape *shapes, const void *const *inputs,
             void **ret_outputs, struct cm_shape *ret_shapes);
/* The same, but the run, not the plan, must fail with code and a sentence that has op and part. */
void kit_run_refused(struct kit_loaded *l, const struct cm_shape *shapes, const void *const *inputs,
                     enum cm_err code, const char *op, const char *part);

/* Aligned zeroed memory with guard bytes on both sides; kit_check_guards fails the test if they
 * changed. */
void *kit_guarded(size_t bytes);
void kit_check_guards(void *memory);
void kit_guarded_free(void *memory);

/* Random numbers from a state, the same everywhere. */
uint64_t kit_next(uint64_t *state);
float kit_float(uint64_t *state);                   /* in [-1, 1) */
int kit_pick(uint64_t *state, int least, int most); /* both included */

#endif
