/* Prints one line per instruction set that this machine can run: its name and a digest of f64_math
 * and every kernel's outputs over the small cases. The lines of all machines must carry the same
 * digest; kernels_emulated runs this under emulators of lesser CPUs. Exit code 1 if they differ
 * here. */
#include "tests/engine/kernels_cases.h"

#include "gpu-worker/cpu/f64_math.h"
#include "gpu-worker/cpu/features.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_START  0xcbf29ce484222325u
#define HASH_FACTOR 0x100000001b3u

struct digest {
    const struct cpu_kernels *kernels;
    uint64_t hash; /* FNV-1a over the outputs' words */
    size_t cases;
};

static void one_case(void *context, const struct kc *c)
{
    struct digest *d = context;
    float *in[3], *y = malloc((c->out + 1) * sizeof(float));
    float *work = aligned_alloc(64, (kc_workspace(c) * sizeof(float) + 127) / 64 * 64);
    if (!y || !work)
        abort();
    for (int data = 0; data < KC_DATA_COUNT; data++) {
        for (unsigned i = 0; i < 3; i++) {
            in[i] = malloc((c->in[i] + 1) * sizeof(float));
            if (!in[i])
                abort();
            kc_fill((enum kc_data)data, d->cases * 3 + i, in[i], c->in[i]);
        }
        memset(y, 0, c->out * sizeof(float));
        kc_run(c, d->kernels, (const float *const *)in, y, work, 1);
        kc_canonical(y, c->out);
        for (size_t i = 0; i < c->out; i++) {
            uint32_t word;
            memcpy(&word, y + i, sizeof(word));
            d->hash = (d->hash ^ word) * HASH_FACTOR;
        }
        for (unsigned i = 0; i < 3; i++)
            free(in[i]);
    }
    free(work);
    free(y);
    d->cases++;
}

/* The double-precision functions at arguments of every size: emulators compute the 80-bit format in
 * software, so equal digests say that no processor's own idea of it shows. */
static uint64_t digest_f64(void)
{
#define ROW(name) f64_##name,
    double (*const functions[])(double) = {F64_FUNCTIONS(ROW)};
#undef ROW
    uint64_t hash = HASH_START, random = 1;
    for (unsigned i = 0; i < 4000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = i % 2 ? random : (random >> 8) | (1000 + i % 40) * (uint64_t)1 << 52;
        double x, results[sizeof functions / sizeof *functions + 1];
        memcpy(&x, &bits, sizeof x);
        for (unsigned f = 0; f < sizeof functions / sizeof *functions; f++)
            results[f] = functions[f](x);
        results[sizeof functions / sizeof *functions] = f64_pow(x < 0 ? -x : x, 1.7);
        for (unsigned f = 0; f < sizeof results / sizeof *results; f++) {
            memcpy(&bits, &results[f], sizeof bits);
            bits = results[f] == results[f] ? bits : 0; /* signs and payloads of NaN are open */
            hash = (hash ^ bits) * HASH_FACTOR;
        }
    }
    return hash;
}

int main(void)
{
    uint64_t first = 0, f64 = digest_f64();
    int status = 0;
    for (unsigned isa = 0; isa <= WK_ISA_AVX512; isa++) {
        if (!(cpu_isa_mask() & 1u << isa))
            continue;
        struct digest d = {cpu_kernels_for((enum wk_isa)isa), f64, 0};
        kc_each(true, one_case, &d);
        printf("%s %016llx %zu cases\n", wk_isa_name((enum wk_isa)isa), (unsigned long long)d.hash,
               d.cases);
        if (isa == 0)
            first = d.hash;
        else if (d.hash != first)
            status = 1;
    }
    return status;
}
