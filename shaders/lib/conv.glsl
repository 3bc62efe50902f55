/* The core of CONV and CONV_DX, which differ in their index arithmetic only. An invocation makes 8
 * channels (1 where spec3 is 1: few channels in a group) of 8 positions: for each channel summed
 * over, tap row and tap column, in this order, one value per position and one weight per channel.
 *
 * Along an axis the taps that count are first, first + step, ...; position i of tap k reads the
 * source at origin[i] + k * delta. CONV has all taps; CONV_DX with a stride has those that meet the
 * positions, which are a stride apart for that reason. */
struct dti_taps {
    uint first, step, count;
    int delta;
};

const uint POSITIONS = 8u;
const uint CHANNELS = 8u;

dti_taps taps_h, taps_w;
int origin_h[POSITIONS], origin_w[POSITIONS];
uint plane[POSITIONS]; /* where the first source channel of a position's image begins */
uint source_h, source_w, source_channels;
uint weight_at;                   /* of the first channel, source channel and tap */
uint weight_channel, weight_source; /* strides */
uint channels;                    /* of this invocation, 1 .. CHANNELS */
float acc[CHANNELS][POSITIONS];

void add_tap(uint source, uint r, uint s)
{
    uint from = source * source_h * source_w;
    float value[POSITIONS];
    [[unroll]] for (uint j = 0u; j < POSITIONS; j++) {
        uint row = uint(origin_h[j] + int(r) * taps_h.delta);
        uint col = uint(origin_w[j] + int(s) * taps_w.delta);
        bool inside = row < source_h && col < source_w;
        float loaded = SOURCE[inside ? plane[j] + from + row * source_w + col : plane[j]];
        value[j] = inside ? loaded : 0.0;
    }
    uint at = weight_at + source * weight_source +
              (taps_h.first + r * taps_h.step) * args.kw + taps_w.first + s * taps_w.step;
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        float weight = w[at + min(i, channels - 1u) * weight_channel];
        [[unroll]] for (uint j = 0u; j < POSITIONS; j++) acc[i][j] += weight * value[j];
    }
}

void multiply()
{
    [[unroll]] for (uint i = 0u; i < CHANNELS; i++) {
        [[unroll]] for (uint j = 0u; j < POSITIONS; j++) acc[i][j] = 0.0;
    }
    for (uint source = 0u; source < source_channels; source++) {
        for (uint r = 0u; r < taps_h.count; r++) {
            for (uint s = 0u; s < taps_w.count; s++)
                add_tap(source, r, s);
        }
    }
}

/* z: the bias by channel of the image, or the mask, laid out as the image. */
float finished(float value, uint channel, uint to)
{
    if (spec1 == DTI_EPILOGUE_RELU_GRAD)
        return z[args.z_offset + to] > 0.0 ? value : 0.0;
    if (spec0 != 0u)
        value += z[args.z_offset + channel];
    return spec1 == DTI_EPILOGUE_RELU ? dti_max(value, 0.0) : value;
}
