/* conv_dw.comp's sums, in its order, by workgroups (lib/conv_tile.glsl): m is the output channel, n
 * the weight (c, r, s), k = (b, p, q) of a part. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_CONV)
DTI_READS(0u, y)
DTI_READS(1u, x)
layout(binding = 2) writeonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_w4 { vec4 w4[]; };

#define SOURCE(at) x_get(at)
#define A_ONE(at) y_get(at)
#define A_FOUR(at) y_get4(at)
#include "lib/conv_part.glsl"
#include "lib/conv_tile.glsl"

conv_part part;
uint made; /* where the part's group begins */

void describe(uint number)
{
    uint index = number / args.groups, group = number - index * args.groups;
    uint area = args.oh * args.ow, plane = args.ih * args.iw;
    part = conv_part_of(index);
    uint image = part.first.x * args.groups + group;
    product.k = part.count;
    product.a_at = args.y_offset + image * args.co * area + part.first.y * args.ow + part.first.z;
    product.a_m = area;
    product.a_k = uvec3(args.groups * args.co * area, args.ow, 1u);
    product.image = args.x_offset + image * args.ci * plane;
    product.image_h = args.ih;
    product.image_w = args.iw;
    product.b_k =
        uvec3(args.groups * args.ci * plane, args.stride_h * args.iw, args.stride_w);
    product.b_row = args.stride_h;
    product.b_col = args.stride_w;
}

void describe_made(uint number)
{
    product.c_m = args.ci * args.kh * args.kw;
    made = args.w_offset + number * args.co * product.c_m;
}

conv_place place_of(uint n)
{
    uint taps = args.kh * args.kw, c = n / taps, tap = n - c * taps, r = tap / args.kw;
    uint row = r * args.dil_h - args.pad_h + part.first.y * args.stride_h;
    uint col = (tap - r * args.kw) * args.dil_w - args.pad_w + part.first.z * args.stride_w;
    return conv_place(product.image + (c * args.ih + row) * args.iw + col, row, col);
}

uint made_at(uint n)
{
    return made + n;
}

bool is_made(uint at)
{
    return true;
}

float finished(float value, uint m, uint to)
{
    return value;
}

void write(uint to, float value)
{
    w[to] = value;
}

void write_four(uint to, vec4 value)
{
    w4[to >> 2] = value;
}

void main()
{
    convolve(args.co, args.ci * args.kh * args.kw, args.groups * args.splits * args.cuts);
}
