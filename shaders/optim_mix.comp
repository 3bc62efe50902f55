/* y[i] = x_part * x[i] + z_part * z[i], in fours: sums of matrices in Muon's iterations. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_MIX)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) readonly buffer buffer_z { float z[]; };
layout(binding = 1) readonly buffer buffer_z4 { vec4 z4[]; };
layout(binding = 2) buffer buffer_y { float y[]; };
layout(binding = 2) buffer buffer_y4 { vec4 y4[]; };
DTI_WORDS_IN(float, vec4, x)
DTI_WORDS_IN(float, vec4, z)
DTI_WORDS_OUT(float, vec4, y)

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 value, other;
    DTI_TAKE(vec4, value, x, i, A_IS_ONE)
    DTI_TAKE(vec4, other, z, i, B_IS_ONE)
    value = fma(vec4(args.x_part), value, args.z_part * other);
    DTI_GIVE(y, i, value)
}
