/* CONV and CONV_DX (lib/conv_sides.glsl), implicit products without a copy of x:
 *   y[b, g, o, p, q] = sum over c, r, s of w[g, o, c, r, s] *
 *                      x[b, g, c, p * stride_h - pad_h + r * dil_h, q * stride_w - pad_w + s * dil_w]
 * (+ bias, + ReLU; or its mask), and the adjoint by x, a gather, whose positions a stride apart have
 * the same taps and read neighbours. Bindings are the source, w, and the result.
 *
 * An invocation makes CHANNELS channels of 8 positions, which run on over rows and images. It adds
 * over source channel, tap row and tap column, in this order. A value per position and a weight per
 * channel serve all their products. With SLIDE a tile stays in one row. The taps of a row, which
 * lie side by side, share its loads, as a software driver pays for loads. The row of the kernel
 * chooses both: see dti_conv_tile in conv_grid.c. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_CONV)
#include "lib/tile.glsl"
layout(constant_id = 3) const uint spec2 = 0u;
layout(constant_id = 4) const uint spec3 = 0u;
DTI_READS(0u, x)
DTI_READS(1u, w)
DTI_WRITES(2u, writeonly, y)
DTI_READS(3u, z)

const bool ADJOINT = (spec2 & DTI_CONV_SLIDE_ADJOINT) != 0u;
/* 0, or all taps of a row, where pitch_w is 1 and delta 1 or -1 */
const uint SLIDE = spec2 & (DTI_CONV_SLIDE_ADJOINT - 1u);
const uint CHANNELS = spec3 == 0u ? 8u : spec3, WIDTH = 8u, SPAN = WIDTH - 1u + SLIDE;
const uint CHANNELS_MAX = 8u, SPAN_MAX = WIDTH - 1u + 5u;

#include "lib/conv_sides.glsl"

uint channel, position;             /* the first of this invocation */
uint plane[WIDTH];                  /* the first source channel of a position's image */
uint made[WIDTH];                   /* where a position's first channel of the group goes */
int origin_h[WIDTH], origin_w[WIDTH];
float acc[CHANNELS_MAX][WIDTH];

/* Beyond the end: not stored, and read as another. */
void place()
{
    uvec3 at = position_of(position);
    [[unroll]] for (uint j = 0u; j < WIDTH; j++) {
        uint row = at.y * apart_h + class_h, col = at.z * apart_w + class_w;
        uint image = min(at.x, args.n - 1u) * args.groups + group;
        bool inside = at.x < args.n && row < made_h && col < made_w;
        plane[j] = source_at + image * source_channels * source_h * source_w;
        made[j] = inside ? (image * made_channels * made_h + row) * made_w + col : NOWHERE;
        origin_h[j] = taps_h.origin + int(at.y * pitch_h);
        origin_w[j] = taps_w.origin + int(at.z * pitch_w);
        at = SLIDE != 0u ? at + uvec3(0u, 0u, 1u) : position_of(position + j + 1u);
    }
}

uint weight_of(uint source, uint r, uint s)
{
    uint tap = (taps_h.first + r * taps_h.step) * args.kw + taps_w.first + s * taps_w.step;
    return args.w_offset + group * args.ci * args.co * args.kh * args.kw + source * weight_source + tap;
}

void add_weighted(uint weight, float v[WIDTH])
{
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        float factor = w_get(weight + min(channel + i, made_channels - 1u) * weight_made);
        [[unroll]] for (uint j = 0u; j < WIDTH; j++) acc[i][j] += factor * v[j];
    }
}

float loaded(uint first, uint from, uint row, uint col)
{
    bool inside = row < source_h && col < source_w;
    float value = x_get(inside ? from + row * source_w + col : first);
    return inside ? value : 0.0;
}

void add_tap(uint source, uint r, uint s)
{
    uint from = source * source_h * source_w;
    float v[WIDTH];
    [[unroll]] for (uint j = 0u; j < WIDTH; j++) {
        uint row = uint(origin_h[j] + int(r) * taps_h.delta);
        uint col = uint(origin_w[j] + int(s) * taps_w.delta);
        v[j] = loaded(plane[j], plane[j] + from, row, col);
    }
    add_weighted(weight_of(source, r, s), v);
}

/* All taps of a row. The adjoint's go backwards: the window's first column is then the last tap's. */
void add_row(uint source, uint r)
{
    uint row = uint(origin_h[0] + int(r) * taps_h.delta);
    int begin = origin_w[0] - (ADJOINT ? int(SLIDE - 1u) : 0);
    uint from = plane[0] + source * source_h * source_w;
    float v[SPAN_MAX], shifted[WIDTH];
    [[unroll]] for (uint j = 0u; j < SPAN; j++)
        v[j] = loaded(plane[0], from, row, uint(begin + int(j)));
    [[unroll]] for (uint s = 0u; s < SLIDE; s++) {
        uint first = ADJOINT ? SLIDE - 1u - s : s;
        [[unroll]] for (uint j = 0u; j < WIDTH; j++) shifted[j] = v[first + j];
        add_weighted(weight_of(source, r, s), shifted);
    }
}

/* One loop over all taps. A software driver keeps the sums in memory, and each loop around them
 * costs a masked copy of all. */
void multiply()
{
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        [[unroll]] for (uint j = 0u; j < WIDTH; j++) acc[i][j] = 0.0;
    }
    uint taps = taps_h.count * (SLIDE != 0u ? 1u : taps_w.count), source = 0u, r = 0u, s = 0u;
    for (uint left = taps * source_channels; left > 0u; left--) {
        if (SLIDE != 0u)
            add_row(source, r);
        else
            add_tap(source, r, s);
        s = SLIDE != 0u || s + 1u == taps_w.count ? 0u : s + 1u;
        r = s != 0u ? r : r + 1u;
        source = r == taps_h.count ? source + 1u : source;
        r = r == taps_h.count ? 0u : r;
    }
}

/* Whether positions j to j + 3 are two words. */
bool halves_lie(uint j, uint from)
{
    uint at = made[j];
    return at != NOWHERE && ((from + at) & 3u) == 0u && made[j + 1u] == at + 1u && made[j + 2u] == at + 2u &&
           made[j + 3u] == at + 3u;
}

void store_four(uint i, uint j, uint c, uint on)
{
    vec4 v;
    [[unroll]] for (uint k = 0u; k < 4u; k++) v[k] = finished_at(acc[i][j + k], c, made[j + k] + on);
    y_put4((made_offset + made[j] + on) / 4u, v);
}

void store()
{
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        if (channel + i < made_channels) {
            uint c = group * made_channels + channel + i, on = (channel + i) * made_h * made_w;
            [[unroll]] for (uint j = 0u; j < WIDTH; j += 4u) {
                if (y_HALF && halves_lie(j, made_offset + on))
                    store_four(i, j, c, on);
                else
                    [[unroll]] for (uint k = 0u; k < 4u; k++) {
                        uint to = made[j + k] + on;
                        if (made[j + k] != NOWHERE)
                            y_put(made_offset + to, finished_at(acc[i][j + k], c, to));
                    }
            }
        }
    }
}

void main()
{
    describe_sides();
    if (SLIDE != 0u)
        cols = (cols + WIDTH - 1u) / WIDTH * WIDTH;
    uint tiles_m = (made_channels + CHANNELS - 1u) / CHANNELS;
    uint tiles_n = (args.n * rows * cols + WIDTH - 1u) / WIDTH;
    uint tile = dti_tile(tiles_m * tiles_n * args.groups * apart_h * apart_w, 1u);
    if (tile == DTI_NO_TILE)
        return;
    uint rest = tile / tiles_n, kind = rest / tiles_m;
    position = (tile - rest * tiles_n) * WIDTH;
    channel = (rest - kind * tiles_m) * CHANNELS;
    choose_taps(kind);
    place();
    multiply();
    store();
}
