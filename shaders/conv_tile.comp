/* The sums of conv.comp, in its order, by workgroups (lib/conv_tile.glsl): m is the channel, n the
 * position of a class, k = (source channel, tap row, tap column). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_CONV)
layout(binding = 0) readonly buffer buffer_source { float source[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) writeonly buffer buffer_made { float made[]; };
layout(binding = 3) readonly buffer buffer_z { float z[]; };
layout(binding = 1) readonly buffer buffer_w4 { vec4 w4[]; };
layout(binding = 2) writeonly buffer buffer_made4 { vec4 made4[]; };

#define SOURCE source
#define A_ONE(at) w[at]
#define A_FOUR(at) w4[at]
#include "lib/conv_tile.glsl"

const bool ADJOINT = (spec3 & DTI_CONV_ADJOINT) != 0u;
#include "lib/conv_sides.glsl"

void describe(uint number)
{
    uint taps = args.kh * args.kw;
    choose_taps(number);
    product.k = uvec3(source_channels, taps_h.count, taps_w.count);
    if (taps_h.count == 0u || taps_w.count == 0u)
        product.k = uvec3(0u);
    product.a_m = weight_made;
    product.a_at = args.w_offset + group * args.co * args.ci * taps + taps_h.first * args.kw +
                   taps_w.first;
    product.a_k = uvec3(weight_source, taps_h.step * args.kw, taps_w.step);
    product.image = source_at;
    product.image_h = source_h;
    product.image_w = source_w;
    product.b_row = uint(taps_h.delta);
    product.b_col = uint(taps_w.delta);
    product.b_k = uvec3(source_h * source_w, product.b_row * source_w, product.b_col);
}

void describe_made(uint number)
{
    choose_class(number);
    product.c_m = made_h * made_w;
}

conv_place place_of(uint n)
{
    uvec3 at = position_of(n);
    uint row = at.y * pitch_h + uint(taps_h.origin), col = at.z * pitch_w + uint(taps_w.origin);
    uint plane = (at.x * args.groups + group) * source_channels * source_h;
    return conv_place(source_at + (plane + row) * source_w + col, row, col);
}

/* Classes are as large as the first one; others may have a row or column that is not there. */
uint made_at(uint n)
{
    uvec3 at = position_of(n);
    uint row = at.y * apart_h + class_h, col = at.z * apart_w + class_w;
    uint plane = (at.x * args.groups + group) * made_channels * made_h;
    return row < made_h && col < made_w ? (plane + row) * made_w + col : NOWHERE;
}

bool is_made(uint at)
{
    return !ADJOINT || at != NOWHERE;
}

float finished(float value, uint m, uint to)
{
    return finished_at(value, group * made_channels + m, to);
}

void write(uint to, float value)
{
    made[made_offset + to] = value;
}

void write_four(uint to, vec4 value)
{
    made4[(made_offset + to) >> 2] = value;
}

void main()
{
    describe_sides();
    convolve(made_channels, args.n * rows * cols, args.groups * apart_h * apart_w);
}
