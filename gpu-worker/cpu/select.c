/* The three tables. Pure data; any thread. */
#include "gpu-worker/cpu/gemm.h"
#include "gpu-worker/cpu/kernels.h"

#include "common/check.h"

static const struct cpu_kernels scalar = {
    .isa = WK_ISA_SCALAR,
    .gemm_rows = 4,
    .gemm_mc = GEMM_MC,
    .gemm_kc = GEMM_KC,
#define K(name, arguments) .name = k_##name##_scalar,
#define KU(name)           .unary[K_UNARY_##name] = k_f32_##name##_scalar,
#define KB(name)           .binary[K_BINARY_##name] = k_f32_##name##_scalar,
#include "gpu-worker/cpu/kernels.inc"
};

#ifndef INGOT_SCALAR_ONLY
static const struct cpu_kernels avx2 = {
    .isa = WK_ISA_AVX2,
    .gemm_rows = 6,
    .gemm_mc = GEMM_MC,
    .gemm_kc = GEMM_KC,
#define K(name, arguments) .name = k_##name##_avx2,
#define KU(name)           .unary[K_UNARY_##name] = k_f32_##name##_avx2,
#define KB(name)           .binary[K_BINARY_##name] = k_f32_##name##_avx2,
#include "gpu-worker/cpu/kernels.inc"
};

static const struct cpu_kernels avx512 = {
    .isa = WK_ISA_AVX512,
    .gemm_rows = 8,
    .gemm_mc = GEMM_MC,
    .gemm_kc = GEMM_KC,
#define K(name, arguments) .name = k_##name##_avx512,
#define KU(name)           .unary[K_UNARY_##name] = k_f32_##name##_avx512,
#define KB(name)           .binary[K_BINARY_##name] = k_f32_##name##_avx512,
#include "gpu-worker/cpu/kernels.inc"
};
#endif

const struct cpu_kernels *cpu_kernels_for(enum wk_isa isa)
{
    switch (isa) {
    case WK_ISA_SCALAR:
        return &scalar;
#ifdef INGOT_SCALAR_ONLY /* a build for fuzzing; features.c never gives the others */
    case WK_ISA_AVX2:
    case WK_ISA_AVX512:
        break;
#else
    case WK_ISA_AVX2:
        return &avx2;
    case WK_ISA_AVX512:
        return &avx512;
#endif
    }
    CM_ASSERT(!"known instruction set");
    return &scalar;
}

const char *k_unary_name(enum k_unary op)
{
    static const char *const names[] = {
#define KU(name) "f32_" #name,
#include "gpu-worker/cpu/kernels.inc"
    };
    CM_ASSERT((unsigned)op < K_UNARY_COUNT);
    return names[op];
}

const char *k_binary_name(enum k_binary op)
{
    static const char *const names[] = {
#define KB(name) "f32_" #name,
#include "gpu-worker/cpu/kernels.inc"
    };
    CM_ASSERT((unsigned)op < K_BINARY_COUNT);
    return names[op];
}
