/* What SCATTER_PARTS and SCATTER_ROWS sum: rows of dy by the inverse index, whose rows begin at
 * start_of. Binding 2 and where they write is each one's own. */
#include "sums.glsl"
layout(binding = 0) readonly buffer buffer_dy { float dy[]; };
layout(binding = 0) readonly buffer buffer_dy4 { vec4 dy4[]; };
layout(binding = 1) readonly buffer buffer_inverse { uint inverse[]; };

const bool FOURS = spec0 != 0u;

uint start_of(uint row)
{
    return inverse[args.n + row];
}

/* Entries [begin, end), column `col`, in runs; loads of four are under way at once. */
#define DTI_SCATTER_SUM(TYPE, NAME, DY, COLS, OFFSET)                                              \
    TYPE NAME(uint begin, uint end, uint col)                                                      \
    {                                                                                              \
        uint cols = COLS, from = (OFFSET) + col, i = begin;                                        \
        TYPE sum = TYPE(0.0), run = sum;                                                           \
        for (; i + 4u <= end; i += 4u) {                                                           \
            TYPE a = DY[from + inverse[i] * cols], b = DY[from + inverse[i + 1u] * cols];          \
            TYPE c = DY[from + inverse[i + 2u] * cols], d = DY[from + inverse[i + 3u] * cols];     \
            run = (((run + a) + b) + c) + d;                                                       \
            if ((i - begin) % DTI_RUN == DTI_RUN - 4u) {                                           \
                sum += run;                                                                        \
                run = TYPE(0.0);                                                                   \
            }                                                                                      \
        }                                                                                          \
        for (; i < end; i++) run += DY[from + inverse[i] * cols];                                  \
        return sum + run;                                                                          \
    }
DTI_SCATTER_SUM(float, sum_of, dy, args.cols, args.y_offset)
DTI_SCATTER_SUM(vec4, sum_of_four, dy4, args.cols >> 2, args.y_offset >> 2)
