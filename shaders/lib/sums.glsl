/* Sums over a length that shapes decide, of one invocation: 32 addends are a run, 32 runs are a
 * stretch, and these are added up. So no chain of additions is long, and the rounding error grows with
 * the logarithm of the length. The order depends on the length alone. */
const uint DTI_RUN = 32u;

#define DTI_SUMS_OF(T)                                                                             \
    struct dti_sum_##T {                                                                           \
        T run, stretch, all;                                                                       \
        uint count;                                                                                \
    };                                                                                             \
    void dti_add(inout dti_sum_##T s, T value)                                                     \
    {                                                                                              \
        s.run += value;                                                                            \
        s.count++;                                                                                 \
        if (s.count % DTI_RUN == 0u) {                                                             \
            s.stretch += s.run;                                                                    \
            s.run = T(0.0);                                                                        \
            if (s.count % (DTI_RUN * DTI_RUN) == 0u) {                                             \
                s.all += s.stretch;                                                                \
                s.stretch = T(0.0);                                                                \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    T dti_sum(dti_sum_##T s)                                                                       \
    {                                                                                              \
        return s.all + (s.stretch + s.run);                                                        \
    }
#define DTI_SUM_NONE(T) dti_sum_##T(T(0.0), T(0.0), T(0.0), 0u)
