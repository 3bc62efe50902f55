/* The sums of conv.comp, in its order, by workgroups (lib/conv_tile.glsl): m is the channel, n the
 * position of a class, k = (source channel, tap row, tap column). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_CONV)
DTI_READS(0u, source)
DTI_READS(1u, w)
DTI_WRITES(2u, writeonly, made)
DTI_READS(3u, z)

#define SOURCE(at) source_get(at)
#define A_ONE(at) w_get(at)
#define A_FOUR(at) w_get4(at)
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
    made_put(made_offset + to, value);
}

void write_four(uint to, vec4 value)
{
    made_put4((made_offset + to) >> 2, value);
}

void main()
{
    describe_sides();
    convolve(made_channels, args.n * rows * cols, args.groups * apart_h * apart_w);
}
