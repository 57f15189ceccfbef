/* Block sizes of the GEMM, shared by its sources and the table. The same for every instruction set:
 * they bound the convolution's workspace. They change no bit. */
#ifndef GPU_WORKER_CPU_GEMM_H
#define GPU_WORKER_CPU_GEMM_H

#define GEMM_MC 128
#define GEMM_KC 768
/* Floats of packed pixels that a convolution prepares at a time: 384 KiB beside A's block in L2. */
#define CONV_BLOCK_FLOATS 98304

#endif
