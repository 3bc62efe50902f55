/* dx[i] = dy[i] * f'(x[i]) over strided views. May run in place. In the arguments a is x, b is dy
 * and y is dx. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/fours.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"
#include "lib/unary.glsl"

DTI_PUSH(DTI_ARGS_MAP2)
DTI_READS(0u, x)
DTI_READS(1u, dy)
DTI_WRITES(2u, writeonly, dx)

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from_x = args.a_offset + dti_walk(i, args.dim, args.a_stride);
    uint from_dy = args.b_offset + dti_walk(i, args.dim, args.b_stride);
    uint to = args.y_offset + dti_walk(i, args.dim, args.y_stride), last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 u, v;
    DTI_TAKE(vec4, u, x, from_x, A_IS_ONE)
    DTI_TAKE(vec4, v, dy, from_dy, B_IS_ONE)
    DTI_EACH_OF_FOUR v[k] = dti_unary_grad(u[k], v[k], args.p0, args.p1);
    DTI_GIVE(dx, to, v)
}
