/* y[i] = f(x[i]) over strided views. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/fours.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"
#include "lib/unary.glsl"

DTI_PUSH(DTI_ARGS_MAP1)
DTI_READS(0u, x)
DTI_WRITES(1u, writeonly, y)

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + dti_walk_far(i, args.dim, args.x_stride, args.far);
    uint to = args.y_offset + dti_walk_far(i, args.dim, args.y_stride, args.far), last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 v;
    DTI_TAKE(vec4, v, x, from, A_IS_ONE)
    DTI_EACH_OF_FOUR v[k] = dti_unary(v[k], args.p0, args.p1);
    DTI_GIVE(y, to, v)
}
