/* Instruction sets: their names, and which of them the CPU has. Code that is compiled once per set
 * (the kernels, the folds of comm) names its functions with DTI_CAT and chooses by
 * dti_isa_select. */

#define DTI_ISA_PORTABLE 0
#define DTI_ISA_AVX2 1   /* with FMA */
#define DTI_ISA_AVX512 2 /* F, BW, DQ, VL */
#define DTI_ISA_AVX512_BF16 3
#define DTI_ISA_BEST DTI_ISA_AVX512_BF16
#define DTI_ISA_AMX 4 /* sums of bf16 have an order of their own: only on request */

/* Classes of sets: those of one class have the same bits. */
enum {
    DTI_CLASS_PLAIN, /* without FMA */
    DTI_CLASS_FMA,
    DTI_CLASS_AMX, /* with FMA; of bf16 by AMX */
    DTI_CLASSES
};

#if defined __x86_64__ && !defined DTI_NO_SIMD
#define DTI_X86 1
#else
#define DTI_X86 0
#endif
#if DTI_X86 && !defined DT_NO_AVX512
#define DTI_X86_AVX512 1
#else
#define DTI_X86_AVX512 0
#endif
#if DTI_X86_AVX512 && (defined __clang__ || __GNUC__ >= 10)
#define DTI_X86_AVX512_BF16 1
#else
#define DTI_X86_AVX512_BF16 0
#endif
#if DTI_X86_AVX512_BF16 && defined __linux__ && (defined __clang__ || __GNUC__ >= 11)
#define DTI_X86_AMX 1
#else
#define DTI_X86_AMX 0
#endif

#define DTI_CAT_(a, b) a##b
#define DTI_CAT(a, b) DTI_CAT_(a, b)

/* Around functions that are compiled for other sets than the host's. */
#ifdef __clang__
#define DTI_TARGET(sets)                                                                           \
    DTI_PRAGMA(clang attribute push(__attribute__((target(sets))), apply_to = function))
#define DTI_TARGET_END DTI_PRAGMA(clang attribute pop)
#else
#define DTI_TARGET(sets) DTI_PRAGMA(GCC push_options) DTI_PRAGMA(GCC target(sets))
#define DTI_TARGET_END DTI_PRAGMA(GCC pop_options)
#endif

#if DTI_X86
/* CPUID's leaf 7: features that not every compiler's __builtin_cpu_supports knows. In a virtual
 * machine it takes microseconds. */
static void dti_isa_features(uint32_t *b, uint32_t *d) {
    uint32_t a = 0, c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(*b), "+c"(c), "=d"(*d));
    const bool leaf = a >= 7;
    a = 7, c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(*b), "+c"(c), "=d"(*d));
    *b = leaf ? *b : 0;
    *d = leaf ? *d : 0;
}

static bool dti_isa_has_amx(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, BOTH = AMX_BF16 | AMX_TILE };
    uint32_t b, d;
    dti_isa_features(&b, &d);
    return DTI_X86_AMX && (d & BOTH) == BOTH && dti_cpu_tiles();
}
#endif

/* The best set that this CPU and its system have, at most isa_max. */
static int dti_isa_select(int isa_max) {
#if DTI_X86
    __builtin_cpu_init();
    if (DTI_X86_AVX512 && isa_max >= DTI_ISA_AVX512 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
#if DTI_X86_AVX512_BF16
        if (isa_max >= DTI_ISA_AVX512_BF16 && __builtin_cpu_supports("avx512bf16"))
            return isa_max >= DTI_ISA_AMX && dti_isa_has_amx() ? DTI_ISA_AMX : DTI_ISA_AVX512_BF16;
#endif
        return DTI_ISA_AVX512;
    }
    if (isa_max >= DTI_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return DTI_ISA_AVX2;
#endif
    return DTI_ISA_PORTABLE;
}
