#include "divide.glsl"

/* All kernels have the same products and sums, even if a compiler would rather fuse them. A value
 * that is made again is made by another kernel. scale: (factor, shift, mean). */
vec4 dti_norm_value4(vec4 v, vec4 factor, vec4 shift, float mean)
{
    precise vec4 product = factor * (v - mean);
    precise vec4 y = product + shift;
    return spec1 == DTI_EPILOGUE_RELU ? vec4(dti_max(y.x, 0.0), dti_max(y.y, 0.0),
                                             dti_max(y.z, 0.0), dti_max(y.w, 0.0))
                                      : y;
}

float dti_norm_value(float v, vec3 scale)
{
    precise float product = scale.x * (v - scale.z);
    precise float y = product + scale.y;
    return spec1 == DTI_EPILOGUE_RELU ? dti_max(y, 0.0) : y;
}

/* Channel, group and the next ones in step: a division only for the first element. */
struct dti_norm_place {
    uint channel, group;
    uint in_channel, in_group; /* elements before this one */
};

dti_norm_place dti_norm_place_of(uint e)
{
    uint run = dti_divided(e, args.spatial, args.by[0]);
    uint channel = run - dti_divided(run, args.channels, args.by[1]) * args.channels;
    uint group = args.batch == 1u ? channel : dti_divided(e, args.cols, args.by[2]);
    uint in_group = args.batch == 1u ? 0u : e - group * args.cols;
    return dti_norm_place(channel, group, e - run * args.spatial, in_group);
}

void dti_norm_place_next(inout dti_norm_place p)
{
    p.in_channel++;
    p.in_group++;
    if (p.in_channel == args.spatial) {
        p.in_channel = 0u;
        p.channel = p.channel + 1u == args.channels ? 0u : p.channel + 1u;
    }
    if (args.batch != 1u && p.in_group == args.cols) {
        p.in_group = 0u;
        p.group++;
    }
    if (args.batch == 1u)
        p.group = p.channel;
}
