/* The adjoint of conv by x: x[b, g, c, i, j] = sum over o, r, s of w[g, o, c, r, s] * y[b, g, o, p, q]
 * where p * stride - pad + r * dil = i, and q likewise (+ bias, + ReLU or its mask): a gather. With
 * strides the positions fall into stride_h * stride_w classes with taps of their own: an invocation
 * makes 8 channels of 8 positions of one class, which run on over rows and samples. */
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

uint group, channel, position, class_h, class_w; /* of this invocation; the first of a class */

/* Of class `at`: the taps with (at + pad - tap * dil) a multiple of the stride. */
dti_taps taps_of(uint at, uint stride, uint pad, uint dil, uint k)
{
    uint step = 1u, first = 0u;
    while (step * dil % stride != 0u)
        step++;
    while (first < step && (first * dil) % stride != (at + pad) % stride)
        first++;
    uint count = first < step && first < k ? (k - first + step - 1u) / step : 0u;
    return dti_taps(first, step, count, -int(step * dil / stride));
}

/* The source row that the first tap of the class reads at its first position; exact. */
int origin_of(uint at, dti_taps taps, uint stride, uint pad, uint dil)
{
    return taps.count == 0u ? 0 : (int(at + pad) - int(taps.first * dil)) / int(stride);
}

/* Of position j, counted within the class: image, row and column. Beyond the image: not stored. */
uvec3 place_of(uint j)
{
    uint rows = (args.ih + args.stride_h - 1u) / args.stride_h;
    uint cols = (args.iw + args.stride_w - 1u) / args.stride_w;
    uint rest = j / cols, b = rest / rows;
    return uvec3(b, rest - b * rows, j - rest * cols);
}

void place()
{
    source_h = args.oh;
    source_w = args.ow;
    source_channels = args.co;
    channels = min(args.ci - channel, CHANNELS);
    weight_channel = args.kh * args.kw;
    weight_source = args.ci * weight_channel;
    weight_at = args.w_offset + group * args.co * weight_source + channel * weight_channel;
    taps_h = taps_of(class_h, args.stride_h, args.pad_h, args.dil_h, args.kh);
    taps_w = taps_of(class_w, args.stride_w, args.pad_w, args.dil_w, args.kw);
    int from_h = origin_of(class_h, taps_h, args.stride_h, args.pad_h, args.dil_h);
    int from_w = origin_of(class_w, taps_w, args.stride_w, args.pad_w, args.dil_w);
    [[unroll]] for (uint j = 0u; j < POSITIONS; j++) {
        uvec3 at = place_of(position + j);
        uint b = min(at.x, args.n - 1u);
        origin_h[j] = from_h + int(at.y);
        origin_w[j] = from_w + int(at.z);
        plane[j] = args.y_offset + (b * args.groups + group) * args.co * args.oh * args.ow;
    }
}

void store()
{
    [[unroll]] for (uint j = 0u; j < POSITIONS; j++) {
        uvec3 at = place_of(position + j);
        uint row = at.y * args.stride_h + class_h, col = at.z * args.stride_w + class_w;
        uint to = (at.x * args.groups + group) * args.ci * args.ih * args.iw + row * args.iw + col;
        bool inside = at.x < args.n && row < args.ih && col < args.iw;
        [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
            if (inside && i < channels) {
                uint to_i = to + (channel + i) * args.ih * args.iw;
                x[args.x_offset + to_i] =
                    finished(acc[i][j], group * args.ci + channel + i, to_i);
            }
        }
    }
}

void main()
{
    uint rows = (args.ih + args.stride_h - 1u) / args.stride_h;
    uint cols = (args.iw + args.stride_w - 1u) / args.stride_w;
    uint tiles_m = (args.ci + CHANNELS - 1u) / CHANNELS;
    uint tiles_n = (args.n * rows * cols + POSITIONS - 1u) / POSITIONS;
    uint tile = dti_tile(tiles_m * tiles_n * args.groups * args.stride_h * args.stride_w);
    if (tile == DTI_NO_TILE)
        return;
    uint rest = tile / tiles_n, kind = rest / (tiles_m * args.groups);
    position = (tile - rest * tiles_n) * POSITIONS;
    rest -= kind * tiles_m * args.groups;
    group = rest / tiles_m;
    channel = (rest - group * tiles_m) * CHANNELS;
    class_h = kind / args.stride_w;
    class_w = kind - class_h * args.stride_w;
    place();
    multiply();
    store();
}
