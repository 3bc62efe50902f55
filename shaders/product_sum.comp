/* The sum of a product's chunks, in ascending order (+ bias per column, + epilogue), which
 * were made by workgroups of their own. An invocation makes four values, by fours where all allows
 * it. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"

DTI_PUSH(DTI_ARGS_PRODUCT_SUM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
layout(binding = 1) readonly buffer buffer_beside { float beside[]; };
layout(binding = 2) writeonly buffer buffer_c { float c[]; };
layout(binding = 2) writeonly buffer buffer_c4 { vec4 c4[]; };
layout(binding = 3) readonly buffer buffer_bias { float bias[]; };
#include "lib/epilogue.glsl"

void main()
{
    uint i = 4u * dti_item();
    if (i >= args.n)
        return;
    if (((args.n | args.part | args.x_offset | args.c_offset) & 3u) == 0u) {
        uint from = (args.x_offset + i) >> 2;
        uint part = args.part >> 2, p = 1u;
        vec4 sum = x4[from];
        for (; p + 4u <= args.parts; p += 4u) { /* read before they are added */
            vec4 a = x4[from + p * part], b = x4[from + (p + 1u) * part];
            vec4 c = x4[from + (p + 2u) * part], d = x4[from + (p + 3u) * part];
            sum = (((sum + a) + b) + c) + d;
        }
        for (; p < args.parts; p++) sum += x4[from + p * part];
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] = finished(sum[j], i + j, (i + j) % args.cols);
        c4[(args.c_offset + i) >> 2] = sum;
        return;
    }
    for (uint j = i; j < min(i + 4u, args.n); j++) {
        float sum = x[args.x_offset + j];
        for (uint p = 1u; p < args.parts; p++) sum += x[args.x_offset + j + p * args.part];
        c[args.c_offset + j] = finished(sum, j, j % args.cols);
    }
}
