/* Sums, or other folds, over a length that shapes decide, of one invocation. 32 addends are a run,
 * 32 runs are a stretch, and these are added up. So no chain of additions is long, and the rounding
 * error grows with the logarithm of the length. The order depends only on the length. */
const uint DTI_RUN = 32u;

/* NONE: what FOLD changes nothing with. dti_add takes the next value, dti_sum gives the result. */
#define DTI_FOLDS_OF(NAME, T, FOLD, NONE)                                                          \
    struct NAME {                                                                                  \
        T run, stretch, all;                                                                       \
        uint count;                                                                                \
    };                                                                                             \
    void dti_add(inout NAME s, T value)                                                            \
    {                                                                                              \
        s.run = FOLD(s.run, value);                                                                \
        s.count++;                                                                                 \
        if (s.count % DTI_RUN == 0u) {                                                             \
            s.stretch = FOLD(s.stretch, s.run);                                                    \
            s.run = NONE;                                                                          \
            if (s.count % (DTI_RUN * DTI_RUN) == 0u) {                                             \
                s.all = FOLD(s.all, s.stretch);                                                    \
                s.stretch = NONE;                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    T dti_sum(NAME s)                                                                              \
    {                                                                                              \
        return FOLD(s.all, FOLD(s.stretch, s.run));                                                \
    }
#define DTI_PLUS(a, b) ((a) + (b))
#define DTI_SUMS_OF(T) DTI_FOLDS_OF(dti_sum_##T, T, DTI_PLUS, T(0.0))
#define DTI_SUM_NONE(T) dti_sum_##T(T(0.0), T(0.0), T(0.0), 0u)
