/* The adjoint of conv by w, in parts. w[i, g, o, c, r, s] = sum over the samples b of part i and
 * over its p, q of y[b, g, o, p, q] * x[b, g, c, p * stride - pad + r * dil, ...]. An invocation
 * makes 8 output channels of 8 weights, which run on over c, r and s. It goes over b, p, q in
 * order. conv_dw_tile.comp is the same for GPUs. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_CONV)
#include "lib/tile.glsl"
DTI_READS(0u, y)
DTI_READS(1u, x)
layout(binding = 2) writeonly buffer buffer_w { float w[]; };

#include "lib/conv_part.glsl"

layout(constant_id = 4) const uint spec3 = 0u;

const uint CHANNELS = spec3 == 0u ? 8u : spec3; /* of an invocation */
const uint CHANNELS_MAX = 8u, WEIGHTS = 8u;

uint group, part, channel, weight;        /* the first of this invocation */
int origin_h[WEIGHTS], origin_w[WEIGHTS]; /* what weight j reads at position (0, 0) */
uint plane[WEIGHTS];                      /* its channel in sample 0 */
float acc[CHANNELS_MAX][WEIGHTS];

void place()
{
    uint taps = args.kh * args.kw, last = args.ci * taps - 1u;
    [[unroll]] for (uint j = 0u; j < WEIGHTS; j++) {
        uint e = min(weight + j, last), c = e / taps, tap = e - c * taps, r = tap / args.kw;
        origin_h[j] = int(r * args.dil_h) - int(args.pad_h);
        origin_w[j] = int((tap - r * args.kw) * args.dil_w) - int(args.pad_w);
        plane[j] = args.x_offset + (group * args.ci + c) * args.ih * args.iw;
        [[unroll]] for (uint i = 0u; i < CHANNELS; i++) acc[i][j] = 0.0;
    }
}

void add_position(uint b, uint p, uint q)
{
    float value[WEIGHTS];
    uint image = b * args.groups * args.ci * args.ih * args.iw;
    [[unroll]] for (uint j = 0u; j < WEIGHTS; j++) {
        uint row = uint(origin_h[j] + int(p * args.stride_h));
        uint col = uint(origin_w[j] + int(q * args.stride_w));
        bool inside = row < args.ih && col < args.iw;
        float loaded = x_get(inside ? plane[j] + image + row * args.iw + col : plane[j]);
        value[j] = inside ? loaded : 0.0;
    }
    uint size = args.oh * args.ow, last = args.co - 1u;
    uint from = args.y_offset + (b * args.groups + group) * args.co * size + p * args.ow + q;
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        float dy = y_get(from + min(channel + i, last) * size);
        [[unroll]] for (uint j = 0u; j < WEIGHTS; j++) acc[i][j] += dy * value[j];
    }
}

/* One loop over all positions. A software driver keeps the sums in memory, and each loop around
 * them costs a masked copy of all. */
void add_part()
{
    conv_part range = conv_part_of(part);
    uint b = range.first.x, p = range.first.y, q = range.first.z;
    uvec3 end = range.first + range.count;
    for (uint left = range.count.x * range.count.y * range.count.z; left > 0u; left--) {
        add_position(b, p, q);
        q = q + 1u == end.z ? range.first.z : q + 1u;
        p = q != range.first.z ? p : p + 1u;
        b = p == end.y ? b + 1u : b;
        p = p == end.y ? range.first.y : p;
    }
}

void store()
{
    uint weights = args.ci * args.kh * args.kw;
    uint to = args.w_offset + (part * args.groups + group) * args.co * weights + weight;
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        if (channel + i < args.co) {
            [[unroll]] for (uint j = 0u; j < WEIGHTS; j++) {
                if (weight + j < weights)
                    w[to + (channel + i) * weights + j] = acc[i][j];
            }
        }
    }
}

void main()
{
    uint tiles_m = (args.co + CHANNELS - 1u) / CHANNELS;
    uint tiles_n = (args.ci * args.kh * args.kw + WEIGHTS - 1u) / WEIGHTS;
    uint tile = dti_tile(tiles_m * tiles_n * args.groups * args.splits * args.cuts, 1u);
    if (tile == DTI_NO_TILE)
        return;
    uint rest = tile / tiles_n, outer = rest / tiles_m;
    weight = (tile - rest * tiles_n) * WEIGHTS;
    channel = (rest - outer * tiles_m) * CHANNELS;
    part = outer / args.groups;
    group = outer - part * args.groups;
    place();
    add_part();
    store();
}
