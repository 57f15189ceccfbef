/* Counter-based random numbers; see random.h. */
#include "gpu-worker/cpu/random.h"

#include "gpu-worker/cpu/f64_math.h"

#include <math.h>
#include <string.h>

void k_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (unsigned round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
    memcpy(ret, c, sizeof c);
}

/* Two words of 64 bits for one element. */
static void draw(uint64_t key, uint64_t index, uint64_t ret[2])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32)};
    const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t out[4];
    k_philox(counter, words, out);
    ret[0] = (uint64_t)out[1] << 32 | out[0];
    ret[1] = (uint64_t)out[3] << 32 | out[2];
}

uint64_t k_random_key(bool given, uint64_t seed)
{
    uint64_t words[2];
    draw(given ? 0x696e676f74736565u : 0x696e676f746e6f64u, seed, words);
    return words[0];
}

double k_random_uniform(uint64_t key, uint64_t index, unsigned bits)
{
    uint64_t words[2];
    draw(key, index, words);
    return ldexp((double)(words[0] >> (64 - bits)), -(int)bits);
}

/* Box and Muller's transform; the uniform under the logarithm is in (0, 1]. */
double k_random_normal(uint64_t key, uint64_t index)
{
    uint64_t words[2];
    draw(key, index, words);
    double u = (double)((words[0] >> 11) + 1) * 0x1p-53, v = (double)(words[1] >> 11) * 0x1p-53;
    return sqrt(-2.0 * f64_log(u)) * f64_cos(6.283185307179586 * v);
}
