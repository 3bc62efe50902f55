/* Rows of x, [samples, heads, tokens, size], to their places in a cache: one invocation per
 * element, words as they are. A place beyond the cache is not written. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_CACHE)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) readonly buffer buffer_at { int at[]; };
layout(binding = 2) buffer buffer_y { uint y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.samples * args.heads * args.tokens * args.size)
        return;
    uint row = i / args.size, col = i - row * args.size;
    uint line = row / args.tokens, token = row - line * args.tokens;
    uint sampled = line / args.heads, head = line - sampled * args.heads;
    uint from = uint(at[args.at_offset + sampled * args.at_sample]); /* a negative one is beyond */
    if (from >= args.positions || token >= args.positions - from)
        return;
    uint place = sampled * args.positions + from + token;
    y[args.y_offset + place * args.y_row + head * args.size + col] =
        x[args.x_offset + sampled * args.x_sample + head * args.x_head + token * args.x_row +
          col * args.x_col];
}
