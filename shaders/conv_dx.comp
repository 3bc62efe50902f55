/* The adjoint of conv by x: x[b, g, c, i, j] = sum over o, r, s of w[g, o, c, r, s] * y[b, g, o, p,
 * q] where p * stride_h - pad_h + r * dil_h = i, and q likewise (+ bias, + ReLU; or its mask): a
 * gather. Positions that are a stride apart have the same taps, and read y at neighbours. An
 * invocation makes a tile of input channels and such positions: lib/conv.glsl. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/tile.glsl"

DTI_PUSH(DTI_ARGS_CONV)
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_x { float x[]; };
layout(binding = 3) readonly buffer buffer_z { float z[]; };

#define SOURCE y
#include "lib/conv.glsl"

void describe()
{
    source_channels = args.co, source_h = args.oh, source_w = args.ow;
    made_channels = args.ci, made_h = args.ih, made_w = args.iw;
    apart_h = args.stride_h, apart_w = args.stride_w;
    pitch_h = 1u, pitch_w = 1u;
    source_at = args.y_offset;
    weight_at = args.w_offset;
    weight_made = args.kh * args.kw;
    weight_source = args.ci * weight_made;
}

/* Of class `at`: the taps with at + pad - tap * dil a multiple of the stride. Every step'th fits if
 * one does. */
dti_taps taps_of(uint at, uint stride, uint pad, uint dil, uint k)
{
    uint step = 1u, first = 0u;
    while (step * dil % stride != 0u)
        step++;
    while (first < step && first * dil % stride != (at + pad) % stride)
        first++;
    if (first >= min(step, k))
        return dti_taps(0u, 1u, 0u, 0, 0);
    int origin = (int(at + pad) - int(first * dil)) / int(stride); /* exact */
    return dti_taps(first, step, (k - first + step - 1u) / step, -int(step * dil / stride), origin);
}

void choose_taps()
{
    taps_h = taps_of(class_h, args.stride_h, args.pad_h, args.dil_h, args.kh);
    taps_w = taps_of(class_w, args.stride_w, args.pad_w, args.dil_w, args.kw);
}

void write(uint at, float value)
{
    x[args.x_offset + at] = value;
}
