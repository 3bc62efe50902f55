/* Rows of a table's gradient, by the inverse index of its entries: sums of rows of dy.
 *
 * scatter_rows: dtable[v, :] = the sum of row v's entries: of a long one, of its chunks in ascending
 * order. spec1: 1 = rows without any are 0 already.
 *
 * scatter_parts: what chunks of long rows sum to. Slot 2w: the chunk, beginning in window w, of the
 * row that its first entry is of; slot 2w + 1: of the row of its last entry, where that row begins
 * after the first. 0 where it is missing. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/sums.glsl"

DTI_PUSH(DTI_ARGS_SCATTER)
layout(binding = 0) readonly buffer buffer_dy { float dy[]; };
layout(binding = 0) readonly buffer buffer_dy4 { vec4 dy4[]; };
layout(binding = 1) readonly buffer buffer_inverse { uint inverse[]; };
layout(binding = 2) readonly buffer buffer_entries { uint keys[]; }; /* scatter_parts reads them, */
layout(binding = 2) readonly buffer buffer_parts { float parts[]; }; /* scatter_rows these */
layout(binding = 2) readonly buffer buffer_parts4 { vec4 parts4[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) writeonly buffer buffer_y4 { vec4 y4[]; };

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

/* Entries [x, y). */
uvec2 chunk_of(uint slot)
{
    uint window = (slot >> 1) * args.chunk, last = min(window + args.chunk, args.n) - 1u;
    bool second = (slot & 1u) != 0u;
    uint key = keys[second ? last : window];
    if (key >= args.table_rows)
        return uvec2(0u);
    uint begin = start_of(key), end = start_of(key + 1u);
    if (end - begin <= args.chunk || (second && begin <= window))
        return uvec2(0u);
    if (!second)
        begin += (window - begin + args.chunk - 1u) / args.chunk * args.chunk;
    return uvec2(begin, min(begin + args.chunk, end));
}

/* Where scatter_parts has put the chunk that begins with entry `at` of a row from `begin` on. */
uint slot_of(uint at, uint begin)
{
    uint window = at / args.chunk;
    return 2u * window + (at == begin && window * args.chunk != at ? 1u : 0u);
}

#define DTI_SCATTER_JOIN(TYPE, NAME, PARTS, SUM)                                                   \
    TYPE NAME(uint begin, uint end, uint col, uint cols)                                           \
    {                                                                                              \
        if (SIDE == DTI_SIDE_SCATTER_PARTS || end - begin <= args.chunk)                           \
            return SUM(begin, end, col);                                                           \
        dti_sum_##TYPE sums = DTI_SUM_NONE(TYPE);                                                  \
        for (uint at = begin; at < end; at += args.chunk)                                          \
            dti_add(sums, PARTS[slot_of(at, begin) * cols + col]);                                 \
        return dti_sum(sums);                                                                      \
    }
DTI_SUMS_OF(float)
DTI_SUMS_OF(vec4)
DTI_SCATTER_JOIN(float, row_of, parts, sum_of)
DTI_SCATTER_JOIN(vec4, row_of_four, parts4, sum_of_four)

void main()
{
    uint item = dti_item(), cols = FOURS ? args.cols >> 2 : args.cols;
    uint row = item / cols, col = item - row * cols, to = item; /* of scatter_parts: a slot */
    uvec2 entries;
    if (SIDE == DTI_SIDE_SCATTER_ROWS) {
        if (row >= args.table_rows)
            return;
        entries = uvec2(start_of(row), start_of(row + 1u));
        if (spec1 != 0u && entries.x == entries.y)
            return;
        to += FOURS ? args.table_offset >> 2 : args.table_offset;
    } else {
        if ((row >> 1) * args.chunk >= args.n)
            return;
        entries = chunk_of(row);
    }
    if (FOURS)
        y4[to] = row_of_four(entries.x, entries.y, col, cols);
    else
        y[to] = row_of(entries.x, entries.y, col, cols);
}
