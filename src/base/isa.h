/* Instruction sets: their names, and which of them the CPU has. What is compiled once per set (the
 * kernels, the folds of comm) names its functions with DTI_CAT and chooses by dti_isa_select. */

#define DTI_ISA_PORTABLE 0
#define DTI_ISA_AVX2 1   /* with FMA */
#define DTI_ISA_AVX512 2 /* F, BW, DQ, VL */
#define DTI_ISA_AVX512_BF16 3
#define DTI_ISA_BEST DTI_ISA_AVX512_BF16
#define DTI_ISA_AMX 4 /* sums of bf16 have an order of their own: only where it is asked for */

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

#if DTI_X86_AMX
/* Linux gives a process the tiles' registers when it asks. */
static bool dti_isa_has_amx(void) {
    enum { FEATURES = 7, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, BOTH = AMX_BF16 | AMX_TILE };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(FEATURES, 0, &a, &b, &c, &d) && (d & BOTH) == BOTH &&
           !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#else
static bool dti_isa_has_amx(void) {
    return false;
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
