/* accumulate: y = (first micro-batch of the step ? 0 : y) + x.
 *
 * accumulate_long, sums of many micro-batches: z has what the sums before rounded away (Kahan),
 * which is taken off x first. spec0: DTI_ACCUMULATE_*. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/fours.glsl"

DTI_PUSH(DTI_ARGS_ACCUMULATE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) buffer buffer_y { float y[]; };
layout(binding = 1) buffer buffer_y4 { vec4 y4[]; };
layout(binding = 2) buffer buffer_z { float z[]; };
layout(binding = 2) buffer buffer_z4 { vec4 z4[]; };
DTI_WORDS_IN(float, vec4, x)
DTI_WORDS_IN(float, vec4, y)
DTI_WORDS_IN(float, vec4, z)
DTI_WORDS_OUT(float, vec4, y)
DTI_WORDS_OUT(float, vec4, z)

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + i, to = args.y_offset + i, last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    bool first = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_FIRST) != 0u;
    vec4 value, before, lost;
    DTI_TAKE(vec4, value, x, from, A_IS_ONE)
    if (SIDE == DTI_SIDE_ACCUMULATE) {
        if (!first) {
            DTI_TAKE(vec4, before, y, to, B_IS_ONE)
            DTI_EACH_OF_FOUR value[k] += before[k];
        }
        DTI_GIVE(y, to, value)
        return;
    }
    if (spec0 == DTI_ACCUMULATE_BY_STEP && first) {
        DTI_GIVE(y, to, value)
        DTI_GIVE(z, i, vec4(0.0))
        return;
    }
    DTI_TAKE(vec4, before, y, to, B_IS_ONE)
    DTI_TAKE(vec4, lost, z, i, B_IS_ONE)
    precise vec4 more = value - lost;
    precise vec4 sum = before + more;
    precise vec4 up = sum - before;
    precise vec4 rest = up - more;
    DTI_GIVE(y, to, sum)
    DTI_GIVE(z, i, rest)
}
