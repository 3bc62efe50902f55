/* What a device can do at most, for tools/gpu/dtgpu.c: chains of FMA in registers, and a copy in vec4.
 * Its words are in dtgpu_peak.h, whose head says how they are made. */
#version 450
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint COPIES = 0u;
layout(push_constant) uniform Args { uint n, loops; } args;
layout(binding = 0) readonly buffer From { vec4 from[]; };
layout(binding = 1) buffer To { vec4 to[]; };

/* 8 chains of 4: enough for any latency, and few enough for any register file. All begin differently,
 * or a compiler makes one of those that are alike. */
void multiply(uint i)
{
    vec4 x[8], a = vec4(0.999), b = vec4(1e-3) * float(i & 7u);
    [[unroll]] for (uint k = 0u; k < 8u; k++)
        x[k] = vec4(0.0, 0.25, 0.5, 0.75) + float(k);
    for (uint l = 0u; l < args.loops; l++) {
        [[unroll]] for (uint r = 0u; r < 4u; r++)
            [[unroll]] for (uint k = 0u; k < 8u; k++) x[k] = x[k] * a + b;
    }
    vec4 sum = x[0];
    [[unroll]] for (uint k = 1u; k < 8u; k++) sum += x[k];
    if (sum.x + sum.y + sum.z + sum.w == -1.0) to[0] = sum; /* never, but no compiler knows */
}

void main()
{
    uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x +
             gl_LocalInvocationID.x;
    if (i >= args.n) return;
    if (COPIES != 0u) to[i] = from[i];
    else multiply(i);
}
