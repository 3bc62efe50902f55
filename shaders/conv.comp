/* y[b, g, o, p, q] = sum over c, r, s of w[g, o, c, r, s] * x[b, g, c, p * stride - pad + r * dil,
 * ...] (+ bias, + ReLU or its mask): an implicit GEMM without a copy of x. An invocation makes 8
 * channels of 8 positions, which run on over rows and samples. */
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

uint group, channel, position; /* the first of this invocation */

void place()
{
    source_h = args.ih;
    source_w = args.iw;
    source_channels = args.ci;
    channels = min(args.co - channel, CHANNELS);
    weight_source = args.kh * args.kw;
    weight_channel = args.ci * weight_source;
    weight_at = args.w_offset + (group * args.co + channel) * weight_channel;
    taps_h = dti_taps(0u, 1u, args.kh, int(args.dil_h));
    taps_w = dti_taps(0u, 1u, args.kw, int(args.dil_w));
    uint last = args.n * args.oh * args.ow - 1u;
    [[unroll]] for (uint j = 0u; j < POSITIONS; j++) {
        uint e = min(position + j, last), rest = e / args.ow, b = rest / args.oh;
        origin_h[j] = int((rest - b * args.oh) * args.stride_h) - int(args.pad_h);
        origin_w[j] = int((e - rest * args.ow) * args.stride_w) - int(args.pad_w);
        plane[j] = args.x_offset + (b * args.groups + group) * args.ci * args.ih * args.iw;
    }
}

void store()
{
    uint size = args.oh * args.ow, all = args.n * size;
    [[unroll]] for (uint j = 0u; j < POSITIONS; j++) {
        uint b = (position + j) / size;
        uint to = (b * args.groups + group) * args.co * size + position + j - b * size;
        [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
            if (position + j < all && i < channels) {
                uint at = to + (channel + i) * size;
                y[args.y_offset + at] = finished(acc[i][j], group * args.co + channel + i, at);
            }
        }
    }
}

void main()
{
    uint tiles_m = (args.co + CHANNELS - 1u) / CHANNELS;
    uint tiles_n = (args.n * args.oh * args.ow + POSITIONS - 1u) / POSITIONS;
    uint tile = dti_tile(tiles_m * tiles_n * args.groups);
    if (tile == DTI_NO_TILE)
        return;
    uint rest = tile / tiles_n;
    position = (tile - rest * tiles_n) * POSITIONS;
    group = rest / tiles_m;
    channel = (rest - group * tiles_m) * CHANNELS;
    place();
    multiply();
    store();
}
