/* y[b, g, o, p, q] = sum over c, r, s of w[g, o, c, r, s] *
 *                    x[b, g, c, p * stride_h - pad_h + r * dil_h, q * stride_w - pad_w + s * dil_w]
 * (+ bias, + ReLU; or its mask): an implicit product without a copy of x. An invocation makes a
 * tile of output channels and positions: lib/conv.glsl. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/tile.glsl"

DTI_PUSH(DTI_ARGS_CONV)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_y { float y[]; };
layout(binding = 3) readonly buffer buffer_z { float z[]; };

#define SOURCE x
#include "lib/conv.glsl"

void describe()
{
    source_channels = args.ci, source_h = args.ih, source_w = args.iw;
    made_channels = args.co, made_h = args.oh, made_w = args.ow;
    apart_h = 1u, apart_w = 1u;
    pitch_h = args.stride_h, pitch_w = args.stride_w;
    source_at = args.x_offset;
    weight_at = args.w_offset;
    weight_source = args.kh * args.kw;
    weight_made = args.ci * weight_source;
}

void choose_taps()
{
    taps_h = dti_taps(0u, 1u, args.kh, int(args.dil_h), -int(args.pad_h));
    taps_w = dti_taps(0u, 1u, args.kw, int(args.dil_w), -int(args.pad_w));
}

void write(uint at, float value)
{
    y[args.y_offset + at] = value;
}
