/* The elements of an invocation of an elementwise kernel: one, or where spec2 says so (DTI_FOURS)
 * four that follow each other along the last axis, so that they take one walk, and loads and stores
 * of 128 bits. At the end of a range without strides there may be fewer: then `whole` is false, and
 * they go one by one. Offsets and strides of other axes are then multiples of 4. */
layout(constant_id = 3) const uint spec2 = 0u;
const uint WIDTH = (spec2 & DTI_FOURS) != 0u ? 4u : 1u;
const bool A_IS_ONE = (spec2 & DTI_FOURS_OF_ONE_A) != 0u;
const bool B_IS_ONE = (spec2 & DTI_FOURS_OF_ONE_B) != 0u;

#define DTI_EACH_OF_FOUR [[unroll]] for (uint k = 0u; k < WIDTH; k++)

/* For an invocation with elements i to i + last at most. */
#define DTI_ARE_WHOLE(last) (WIDTH == 4u && ((spec2 & DTI_FOURS_AND_REST) == 0u || last >= 3u))

/* v, a T, = elements of x (x4: by fours) from place `at` on; one: they are all the same one. */
#define DTI_TAKE(T, v, x, x4, at, one)                                                             \
    if (whole && !one)                                                                             \
        v = DTI_LOAD4(x4[(at) / 4u]);                                                              \
    else if (one)                                                                                  \
        v = T(DTI_LOAD(x[at]));                                                                    \
    else                                                                                           \
        DTI_EACH_OF_FOUR v[k] = DTI_LOAD(x[(at) + min(k, last)]);
#define DTI_GIVE(y, y4, at, v)                                                                     \
    if (whole)                                                                                     \
        y4[(at) / 4u] = DTI_STORE4(v);                                                             \
    else                                                                                           \
        DTI_EACH_OF_FOUR if (k <= last) y[(at) + k] = DTI_STORE(v[k]);
