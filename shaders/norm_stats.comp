/* stats[g] = (mean, biased variance) of group g of x, or (spec0 = 1, RMS) (0, mean of squares); of a
 * group in chunks their pairs, and zeros for its own. A workgroup per chunk. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/reduce.glsl"
#include "lib/runs.glsl"
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) writeonly buffer buffer_stats { float stats[]; };

#define DTI_NORM_X
#include "lib/stats.glsl"

void write(uint at, vec2 pair)
{
    stats[at] = pair.x;
    stats[at + 1u] = pair.y;
}

void main()
{
    dti_norm_chunk c = dti_norm_chunk_of(args.groups, args.cols);
    if (c.number >= max(args.chunks, 1u))
        return;
    uint base = args.x_offset + c.group * (args.batch == 1u ? args.spatial : args.cols);
    vec2 pair = dti_norm_stats(base, c, spec0 == 1u);
    if (gl_LocalInvocationID.x != 0u)
        return;
    uint own = args.s_offset + 2u * c.group;
    write(args.chunks > 1u ? dti_norm_pair(c) : own, pair);
    if (args.chunks > 1u && c.number == 0u)
        write(own, vec2(0.0));
}
