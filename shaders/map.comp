/* y[i] = f(x[i]) over strided views. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/functions.glsl"
#include "lib/unary.glsl"

DTI_PUSH(DTI_ARGS_MAP1)
layout(binding = 0) readonly buffer buffer_x { DTI_S x[]; };
layout(binding = 1) writeonly buffer buffer_y { DTI_S y[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    DTI_A value = DTI_LOAD(x[args.x_offset + dti_walk(i, args.dim, args.x_stride)]);
    y[args.y_offset + dti_walk(i, args.dim, args.y_stride)] =
        DTI_STORE(dti_unary(value, args.p0, args.p1));
}
