/* CPUID and XGETBV, once. Any thread: the probe is idempotent, so a race costs a second probe.
 *
 * CPUID says what the core has, XGETBV what the operating system saves on a context switch; an
 * instruction set is usable only with both. */
#include "gpu-worker/cpu/features.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define XCR0_YMM (1u << 1 | 1u << 2) /* SSE and AVX state */
#define XCR0_ZMM \
    (XCR0_YMM | 1u << 5 | 1u << 6 | 1u << 7) /* and opmask, ZMM high halves, ZMM16-31 */

static const char *const isa_names[] = {"scalar", "avx2", "avx512"};

const char *wk_isa_name(enum wk_isa isa)
{
    return (unsigned)isa < 3 ? isa_names[isa] : "?";
}

bool wk_isa_from_name(const char *name, enum wk_isa *ret_isa)
{
    for (unsigned i = 0; i < 3; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *ret_isa = (enum wk_isa)i;
            return true;
        }
    }
    return false;
}

static unsigned read_xcr0(void)
{
    unsigned eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

static unsigned probe(void)
{
    unsigned mask = 1u << WK_ISA_SCALAR;
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE) || !(ecx & bit_AVX))
        return mask;
    bool fma = ecx & bit_FMA;
    unsigned xcr0 = read_xcr0();
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return mask;
    if ((xcr0 & XCR0_YMM) != XCR0_YMM || !fma || !(ebx & bit_AVX2))
        return mask;
    mask |= 1u << WK_ISA_AVX2;
    const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((xcr0 & XCR0_ZMM) == XCR0_ZMM && (ebx & avx512) == avx512)
        mask |= 1u << WK_ISA_AVX512;
    return mask;
}

unsigned cpu_isa_mask(void)
{
    static atomic_uint cached; /* 0: not probed; a probed mask is never 0 */
    unsigned mask = atomic_load_explicit(&cached, memory_order_relaxed);
#ifdef INGOT_SCALAR_ONLY /* the others were not built */
    mask = 1u << WK_ISA_SCALAR;
#endif
    if (mask == 0) {
        mask = probe();
        atomic_store_explicit(&cached, mask, memory_order_relaxed);
    }
    return mask;
}

enum wk_isa wk_isa_best(void)
{
    unsigned mask = cpu_isa_mask();
    if (mask & 1u << WK_ISA_AVX512)
        return WK_ISA_AVX512;
    return mask & 1u << WK_ISA_AVX2 ? WK_ISA_AVX2 : WK_ISA_SCALAR;
}

enum cm_err cpu_isa_choose(const enum wk_isa *wanted, struct cm_error *err, enum wk_isa *ret_isa)
{
    enum wk_isa isa = wanted ? *wanted : wk_isa_best();
    if ((unsigned)isa > WK_ISA_AVX512 || !(cpu_isa_mask() & 1u << isa))
        return cm_fail(err, CM_UNSUPPORTED, "this machine cannot run %s; its best is %s",
                       wk_isa_name(isa), wk_isa_name(wk_isa_best()));
    const char *limit = getenv("INGOT_CPU_ISA");
    enum wk_isa lowered = isa;
    if (limit && *limit && !wk_isa_from_name(limit, &lowered))
        return cm_fail(err, CM_INVALID, "INGOT_CPU_ISA is '%.40s'; use scalar, avx2 or avx512",
                       limit);
    *ret_isa = lowered < isa ? lowered : isa;
    return CM_OK;
}
