/* y = (x - mean) / sqrt(var + eps), with the stats of each element's group, then * w[channel] and
 * + b[channel] (spec0, DTI_NORM_*), then ReLU (spec1). An invocation has 4 elements. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
layout(constant_id = 4) const uint spec3 = 0u;

DTI_PUSH(DTI_ARGS_NORM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) readonly buffer buffer_stats { float stats[]; };
layout(binding = 2) readonly buffer buffer_w { float w[]; };
layout(binding = 3) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) writeonly buffer buffer_y4 { vec4 y4[]; };

#include "lib/norm.glsl"

/* y = scale.x * (x - scale.z) + scale.y */
vec3 scale_of(uint channel, uint group)
{
    float mean = stats[args.s_offset + 2u * group];
    float factor = 1.0 / sqrt(stats[args.s_offset + 2u * group + 1u] + args.eps);
    float shift = 0.0;
    if (spec0 != DTI_NORM_PLAIN)
        factor *= w[args.w_offset + channel];
    if (spec0 == DTI_NORM_AFFINE)
        shift = w[args.b_offset + channel];
    return vec3(factor, shift, mean);
}

void main()
{
    uint e = 4u * dti_item();
    if (e >= args.n)
        return;
    dti_norm_place p = dti_norm_place_of(e);
    if ((spec3 & DTI_NORM_FOURS) != 0u) { /* in one channel and one group */
        vec3 scale = scale_of(p.channel, p.group);
        y4[(args.y_offset + e) / 4u] =
            dti_norm_value4(x4[(args.x_offset + e) / 4u], vec4(scale.x), vec4(scale.y), scale.z);
        return;
    }
    for (uint i = 0u; i < 4u && e + i < args.n; i++) {
        vec3 scale = scale_of(p.channel, p.group);
        y[args.y_offset + e + i] = dti_norm_value(x[args.x_offset + e + i], scale);
        dti_norm_place_next(p);
    }
}
