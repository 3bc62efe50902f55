/* Resizes n planes [ih, iw] to [oh, ow], to the nearest or (spec0 = 1) bilinear, as args.h says. An
 * invocation per element of y. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/divide.glsl"
#include "lib/resize.glsl"

DTI_PUSH(DTI_ARGS_RESIZE)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) writeonly buffer buffer_y { float y[]; };

float between(uint row, dti_source cols)
{
    return (1.0 - cols.weight) * x[row + cols.first] + cols.weight * x[row + cols.second];
}

void main()
{
    uint e = dti_item();
    if (e >= args.n * args.oh * args.ow)
        return;
    uint rest = dti_divided(e, args.ow, args.by[3]), plane = dti_divided(rest, args.oh, args.by[2]);
    dti_source cols = dti_resize_source(e - rest * args.ow, args.scale_w, args.iw);
    dti_source rows = dti_resize_source(rest - plane * args.oh, args.scale_h, args.ih);
    uint first = args.x_offset + (plane * args.ih + rows.first) * args.iw;
    uint second = args.x_offset + (plane * args.ih + rows.second) * args.iw;
    float value = spec0 == 0u ? x[first + cols.first]
                              : (1.0 - rows.weight) * between(first, cols) +
                                    rows.weight * between(second, cols);
    y[args.y_offset + e] = value;
}
