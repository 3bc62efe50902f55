/* What CONV and CONV_DX make of what: an image of a source, with weights. They differ in index
 * arithmetic only; ADJOINT, a constant of the includer, chooses it (CONV_DX).
 *
 * Made positions are `apart` from each other, in apart_h * apart_w classes with taps of their own
 * (CONV: 1). Along an axis the taps that count are first, first + step, ...; the position i reads
 * with tap k the source at origin + i * pitch + k * delta. */
const uint NOWHERE = 0xffffffffu;

struct dti_taps {
    uint first, step, count;
    int delta, origin;
};

uint source_channels, source_h, source_w; /* channels: of a group */
uint made_channels, made_h, made_w;
uint apart_h, apart_w, pitch_h, pitch_w;
uint source_at, made_offset;        /* of the images */
uint weight_made, weight_source;    /* strides of the channels */
uint rows, cols;                    /* positions of a class in an image */
uint group, class_h, class_w;       /* of this invocation, as what follows */
dti_taps taps_h, taps_w;

void describe_sides()
{
    uint taps = args.kh * args.kw;
    source_channels = ADJOINT ? args.co : args.ci;
    source_h = ADJOINT ? args.oh : args.ih, source_w = ADJOINT ? args.ow : args.iw;
    made_channels = ADJOINT ? args.ci : args.co;
    made_h = ADJOINT ? args.ih : args.oh, made_w = ADJOINT ? args.iw : args.ow;
    apart_h = ADJOINT ? args.stride_h : 1u, apart_w = ADJOINT ? args.stride_w : 1u;
    pitch_h = ADJOINT ? 1u : args.stride_h, pitch_w = ADJOINT ? 1u : args.stride_w;
    source_at = ADJOINT ? args.y_offset : args.x_offset;
    made_offset = ADJOINT ? args.x_offset : args.y_offset;
    weight_made = ADJOINT ? taps : args.ci * taps;
    weight_source = ADJOINT ? args.ci * taps : taps;
    rows = (made_h + apart_h - 1u) / apart_h;
    cols = (made_w + apart_w - 1u) / apart_w;
}

/* Of class `at`: the taps with at + pad - tap * dil a multiple of the stride. Every step'th fits if
 * one does. */
dti_taps taps_apart(uint at, uint stride, uint pad, uint dil, uint k)
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

/* `kind`: the class and the group. */
void choose_class(uint kind)
{
    uint both = kind / args.groups;
    group = kind - both * args.groups;
    class_h = both / apart_w;
    class_w = both - class_h * apart_w;
}

void choose_taps(uint kind)
{
    choose_class(kind);
    if (ADJOINT) {
        taps_h = taps_apart(class_h, args.stride_h, args.pad_h, args.dil_h, args.kh);
        taps_w = taps_apart(class_w, args.stride_w, args.pad_w, args.dil_w, args.kw);
    } else {
        taps_h = dti_taps(0u, 1u, args.kh, int(args.dil_h), -int(args.pad_h));
        taps_w = dti_taps(0u, 1u, args.kw, int(args.dil_w), -int(args.pad_w));
    }
}

/* Image, row and column of the class's position n. */
uvec3 position_of(uint n)
{
    uint rest = n / cols, b = rest / rows;
    return uvec3(b, rest - b * rows, n - rest * cols);
}

/* The epilogue, as args.h says it. z: the bias by channel of the image, or the mask, laid out as the
 * image; c: the channel of the image. */
float finished_at(float value, uint c, uint to)
{
    const bool masked = spec1 == DTI_EPILOGUE_RELU_GRAD, relu = spec1 == DTI_EPILOGUE_RELU;
    float other = 0.0;
    if (masked || spec0 != 0u)
        other = z_get(args.z_offset + (masked ? to : c));
    float sum = masked ? value : value + other;
    return (masked && !(other > 0.0)) || (relu && sum < 0.0) ? 0.0 : sum;
}
