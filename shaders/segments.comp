/* The inverse index of sorted entries: their places, and where each row's begin. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_SCATTER)
layout(binding = 0) readonly buffer buffer_x { uint x[]; };
layout(binding = 1) writeonly buffer buffer_y { uint y[]; };

#include "lib/bisect.glsl"

void main()
{
    uint i = dti_item();
    if (i < args.n)
        y[i] = x[args.n + i];
    if (i <= args.table_rows)
        y[args.n + i] = dti_bisect(0u, args.n, i);
}
