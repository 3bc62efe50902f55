/* y[b, g, o, p, q] = sum over c, r, s of w[g, o, c, r, s] *
 *                    x[b, g, c, p * stride_h - pad_h + r * dil_h, q * stride_w - pad_w + s * dil_w]
 * (+ bias, + ReLU; or its mask): an implicit product without a copy of x. An invocation makes a
 * tile of output channels and positions: lib/conv.glsl. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_CONV)
#include "lib/tile.glsl"
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) readonly buffer buffer_z { float z[]; };

#define SOURCE x
const bool ADJOINT = false;
#include "lib/conv.glsl"

void write(uint at, float value)
{
    y[args.y_offset + at] = value;
}
