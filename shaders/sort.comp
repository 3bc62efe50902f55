/* A pass of a stable sort: sorted runs of `run` entries become sorted runs of `made`. An entry goes
 * after those that come before it. In its own run these are the earlier ones, in other runs those
 * with a smaller key. In earlier runs they are also those with the same. No invocation sees
 * another's result. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_SORT)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) writeonly buffer buffer_y { uint y[]; };

#include "lib/bisect.glsl"

uint key_at(uint i)
{
    return spec0 != 0u ? min(x[args.index_offset + i], args.keys) : x[i];
}

uint before(uint first, uint end, uint limit)
{
    if (spec0 != 0u) /* runs of one */
        return key_at(first) < limit ? 1u : 0u;
    return dti_bisect(first, end, limit) - first;
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    uint base = i / args.made * args.made, end = min(base + args.made, args.n);
    uint own = base + (i - base) / args.run * args.run, key = key_at(i);
    uint to = base + (i - own);
    for (uint run = base; run < end; run += args.run) {
        if (run != own)
            to += before(run, min(run + args.run, end), run < own ? key + 1u : key);
    }
    y[to] = key;
    y[args.n + to] = spec0 != 0u ? i : x[args.n + i];
}
