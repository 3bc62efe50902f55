/* y[i] = f(a[i], b[i]) over strided views, then ReLU (spec1); stride 0 broadcasts. May run in
 * place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_MAP2)
layout(binding = 0) readonly buffer buffer_a { DTI_S a[]; };
layout(binding = 1) readonly buffer buffer_b { DTI_S b[]; };
layout(binding = 2) writeonly buffer buffer_y { DTI_S y[]; };

DTI_A binary(DTI_A u, DTI_A v)
{
    switch (spec0) {
#define DTI_CASE(number, ID, name) case number: return dti_m_pair_##name(u, v);
        DTI_BINARY_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}

DTI_A finished(DTI_A value)
{
    return spec1 == DTI_EPILOGUE_RELU && value < 0.0 ? 0.0 : value;
}

void main()
{
    uint i = dti_item();
    if (i >= args.n)
        return;
    DTI_A u = DTI_LOAD(a[args.a_offset + dti_walk(i, args.dim, args.a_stride)]);
    DTI_A v = DTI_LOAD(b[args.b_offset + dti_walk(i, args.dim, args.b_stride)]);
    y[args.y_offset + dti_walk(i, args.dim, args.y_stride)] = DTI_STORE(finished(binary(u, v)));
}
