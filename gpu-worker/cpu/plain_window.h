/* Sliding windows over one to three spatial dimensions, for what has no kernel of its own: 3-D
 * convolutions (as panels for the GEMM), double precision, pooling with indices, integers. Plain C
 * compiled once; pure functions, any thread, same rules as kernels.h. */
#ifndef GPU_WORKER_CPU_PLAIN_WINDOW_H
#define GPU_WORKER_CPU_PLAIN_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Depth, height, width; dimensions that an operator lacks are 1. Output o, tap t looks at
 * o*stride - pad_begin + t*dilation; what lies outside is padding. pad_end only shows in out, and
 * in what an average counts. */
struct k_window3 {
    size_t in[3], out[3], kernel[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
};

size_t k_window3_inputs(const struct k_window3 *w);  /* of one plane */
size_t k_window3_outputs(const struct k_window3 *w); /* of one plane */
size_t k_window3_taps(const struct k_window3 *w);

/* Output and input are one for one: the image itself is the matrix that a convolution multiplies.
 */
bool k_window3_is_plain(const struct k_window3 *w);

/* Rows [k0, k1) of the matrix that a convolution multiplies with, for output pixels [j, j + count),
 * count <= K_PANEL: k = (c, kz, ky, kx), padding +0. out is one panel of packed B of kernels.h:
 * [k1 - k0][width], width being count rounded up to K_LANES. */
void k_f32_pack_window3(const struct k_window3 *w, const float *image, size_t k0, size_t k1,
                        size_t j, size_t count, float *out);

/* One output plane of a convolution: from the bias over (c, kz, ky, kx); every product and every
 * sum is rounded; padding taps multiply +0. image is [channels][in], weight [channels][taps]. */
void k_f64_conv_plane(const struct k_window3 *w, const double *image, size_t channels,
                      const double *weight, double bias, double *y);

/* Pooling of one plane.
 *   K_POOL_MAX      over the taps inside in (kz, ky, kx) order, the first of equals, NaN gives NaN;
 *                   a window of padding only gives -inf and index -1
 *   K_POOL_AVERAGE  sum from +0 in that order / count; count as in k_pool, 0 gives +0
 *   K_POOL_LP       (sum of |x|^p)^(1/p) over the taps inside, powers by repeated products
 * index, for maximums, may be NULL: base + place of the maximum in the plane, row-major, or with
 * the first dimension fastest where column_major. */
enum k_pool3_kind { K_POOL_MAX, K_POOL_AVERAGE, K_POOL_LP };
struct k_pool3 {
    struct k_window3 win;
    enum k_pool3_kind kind;
    bool count_include_pad, column_major;
    unsigned p;
};
void k_f64_pool_plane(const struct k_pool3 *p, const double *x, double *y, int64_t *index,
                      int64_t base);

/* Adds one tap's products to an output plane of a transposed convolution, whose window is w with in
 * and out as the operator names them: y[i*stride - pad_begin + tap*dilation] += x[i] for every i
 * whose place is inside. */
void k_f32_scatter_tap(const struct k_window3 *w, const size_t tap[3], const float *x, float *y);
void k_f64_scatter_tap(const struct k_window3 *w, const size_t tap[3], const double *x, double *y);

#endif
