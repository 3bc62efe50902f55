/* The adjoint of conv by x: x[b, g, c, i, j] = sum over o, r, s of w[g, o, c, r, s] * y[b, g, o, p,
 * q] where p * stride_h - pad_h + r * dil_h = i, and q likewise (+ bias, + ReLU; or its mask): a
 * gather. Positions that are a stride apart have the same taps, and read y at neighbours. An
 * invocation makes a tile of input channels and such positions: lib/conv.glsl. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_CONV)
#include "lib/tile.glsl"
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_x { float x[]; };
layout(binding = 3) readonly buffer buffer_z { float z[]; };

#define SOURCE y
const bool ADJOINT = true;
#include "lib/conv.glsl"

void write(uint at, float value)
{
    x[args.x_offset + at] = value;
}
