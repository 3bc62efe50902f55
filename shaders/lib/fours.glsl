/* The elements of an invocation of an elementwise kernel. It is one, or where spec2 is DTI_FOURS
 * four that follow each other along the last axis. These take one walk, and loads and stores of 128
 * bits. At the end of a range without strides there may be fewer. Then `whole` is false, and they
 * go one by one. Offsets and strides of other axes are then multiples of 4. */
layout(constant_id = 3) const uint spec2 = 0u;
const uint WIDTH = (spec2 & DTI_FOURS) != 0u ? 4u : 1u;
const bool A_IS_ONE = (spec2 & DTI_FOURS_OF_ONE_A) != 0u;
const bool B_IS_ONE = (spec2 & DTI_FOURS_OF_ONE_B) != 0u;

#define DTI_EACH_OF_FOUR [[unroll]] for (uint k = 0u; k < WIDTH; k++)

/* For an invocation with elements i to i + last at most. */
#define DTI_ARE_WHOLE(last) (WIDTH == 4u && ((spec2 & DTI_FOURS_AND_REST) == 0u || last >= 3u))

/* v, a T, = elements of x from place `at` on; one: they are all the same one. x and y are of DTI_READS
 * and DTI_WRITES (storage.glsl), or of these two where they are arrays of words. */
#define DTI_TAKE(T, v, x, at, one)                                                                 \
    if (whole && !one)                                                                             \
        v = x##_get4((at) / 4u);                                                                   \
    else if (one)                                                                                  \
        v = T(x##_get(at));                                                                        \
    else                                                                                           \
        DTI_EACH_OF_FOUR v[k] = x##_get((at) + min(k, last));
#define DTI_GIVE(y, at, v)                                                                         \
    if (whole)                                                                                     \
        y##_put4((at) / 4u, v);                                                                    \
    else                                                                                           \
        DTI_EACH_OF_FOUR if (k <= last) y##_put((at) + k, v[k]);
#define DTI_WORDS_IN(T, T4, x)                                                                     \
    T x##_get(uint at)                                                                             \
    {                                                                                              \
        return x[at];                                                                              \
    }                                                                                              \
    T4 x##_get4(uint i)                                                                            \
    {                                                                                              \
        return x##4[i];                                                                            \
    }
#define DTI_WORDS_OUT(T, T4, y)                                                                    \
    void y##_put(uint at, T value)                                                                 \
    {                                                                                              \
        y[at] = value;                                                                             \
    }                                                                                              \
    void y##_put4(uint i, T4 value)                                                                \
    {                                                                                              \
        y##4[i] = value;                                                                           \
    }
