/* y[i] = f(a[i], b[i]) over strided views; stride 0 broadcasts. May run in place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_MAP2)
layout(binding = 0) readonly buffer buffer_a { float a[]; };
layout(binding = 1) readonly buffer buffer_b { float b[]; };
layout(binding = 2) writeonly buffer buffer_y { float y[]; };

float binary(float u, float v)
{
    switch (spec0) {
    case DTI_B_ADD: return dti_m_pair_add(u, v);
    case DTI_B_SUB: return dti_m_pair_sub(u, v);
    case DTI_B_MUL: return dti_m_pair_mul(u, v);
    case DTI_B_DIV: return dti_m_pair_div(u, v);
    case DTI_B_MAX: return dti_m_pair_max(u, v);
    case DTI_B_MIN: return dti_m_pair_min(u, v);
    case DTI_B_POW: return dti_m_pair_pow(u, v);
    case DTI_B_EQ: return dti_m_pair_eq(u, v);
    case DTI_B_LT: return dti_m_pair_lt(u, v);
    case DTI_B_LE: return dti_m_pair_le(u, v);
    case DTI_B_GT: return dti_m_pair_gt(u, v);
    case DTI_B_GE: return dti_m_pair_ge(u, v);
    }
    return DTI_NAN;
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    float u = a[args.a_offset + dti_walk(i, args.dim, args.a_stride)];
    float v = b[args.b_offset + dti_walk(i, args.dim, args.b_stride)];
    y[args.y_offset + dti_walk(i, args.dim, args.y_stride)] = binary(u, v);
}
