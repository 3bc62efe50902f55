/* dx[i] = dy[i] * f'(x[i]) over strided views. May run in place. In the arguments a is x, b is dy
 * and y is dx. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/functions.glsl"
#include "lib/unary.glsl"

DTI_PUSH(DTI_ARGS_MAP2)
layout(binding = 0) readonly buffer buffer_x { DTI_S x[]; };
layout(binding = 1) readonly buffer buffer_dy { DTI_S dy[]; };
layout(binding = 2) writeonly buffer buffer_dx { DTI_S dx[]; };

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    DTI_A value = DTI_LOAD(x[args.a_offset + dti_walk(i, args.dim, args.a_stride)]);
    DTI_A grad = DTI_LOAD(dy[args.b_offset + dti_walk(i, args.dim, args.b_stride)]);
    dx[args.y_offset + dti_walk(i, args.dim, args.y_stride)] =
        DTI_STORE(dti_unary_grad(value, grad, args.p0, args.p1));
}
