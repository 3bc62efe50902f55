/* The sum of a product's chunks or parts (+ bias per column, + epilogue), which workgroups of their
 * own made. They are added in ascending order, more than DTI_PRODUCT_CHAIN of them in runs. An
 * invocation makes four values, by fours where all allows it. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/storage.glsl"

DTI_PUSH(DTI_ARGS_PRODUCT_SUM)
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 0) readonly buffer buffer_x4 { vec4 x4[]; };
DTI_READS(1u, beside)
DTI_WRITES(2u, writeonly, c)
DTI_READS(3u, bias)
#include "lib/epilogue.glsl"

/* Values from `at` on, `apart` from each other, in chains of DTI_PRODUCT_CHAIN. Four are read before
 * they are added. */
#define DTI_PRODUCT_SUM(T, NAME, X)                                                                \
    T NAME(uint at, uint apart)                                                                    \
    {                                                                                              \
        T run = X[at], sum = T(0.0);                                                               \
        uint p = 1u;                                                                               \
        for (; p + 4u <= args.parts; p += 4u) {                                                    \
            T a = X[at + p * apart], b = X[at + (p + 1u) * apart];                                 \
            T c = X[at + (p + 2u) * apart], d = X[at + (p + 3u) * apart];                          \
            run = (((run + a) + b) + c) + d;                                                       \
            if (p % DTI_PRODUCT_CHAIN == DTI_PRODUCT_CHAIN - 3u) {                                 \
                sum += run;                                                                        \
                run = T(0.0);                                                                      \
            }                                                                                      \
        }                                                                                          \
        for (; p < args.parts; p++) run += X[at + p * apart];                                      \
        return args.parts <= DTI_PRODUCT_CHAIN ? run : sum + run;                                  \
    }
DTI_PRODUCT_SUM(float, sum_of, x)
DTI_PRODUCT_SUM(vec4, sum_of_four, x4)

void main()
{
    uint i = 4u * dti_item();
    if (i >= args.n)
        return;
    if (((args.n | args.part | args.x_offset | args.c_offset) & 3u) == 0u) {
        vec4 sum = sum_of_four((args.x_offset + i) >> 2, args.part >> 2);
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] = finished(sum[j], i + j, (i + j) % args.cols);
        c_put4((args.c_offset + i) >> 2, sum);
        return;
    }
    for (uint j = i; j < min(i + 4u, args.n); j++) {
        float sum = sum_of(args.x_offset + j, args.part);
        c_put(args.c_offset + j, finished(sum, j, j % args.cols));
    }
}
