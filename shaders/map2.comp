/* y[i] = f(a[i], b[i]) over strided views, then ReLU (spec1); stride 0 broadcasts. May run in
 * place. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/index.glsl"
#include "lib/fours.glsl"
#include "lib/storage.glsl"
#include "lib/functions.glsl"

DTI_PUSH(DTI_ARGS_MAP2)
DTI_READS(0u, a)
DTI_READS(1u, b)
DTI_WRITES(2u, writeonly, y)

float binary(float u, float v)
{
    switch (spec0) {
#define DTI_CASE(ID, name) case DTI_B_##ID: return dti_m_pair_##name(u, v);
        DTI_BINARY_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}

float finished(float value)
{
    return spec1 == DTI_EPILOGUE_RELU && value < 0.0 ? 0.0 : value;
}

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from_a = args.a_offset + dti_walk(i, args.dim, args.a_stride);
    uint from_b = args.b_offset + dti_walk(i, args.dim, args.b_stride);
    uint to = args.y_offset + dti_walk(i, args.dim, args.y_stride), last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 u, v;
    DTI_TAKE(vec4, u, a, from_a, A_IS_ONE)
    DTI_TAKE(vec4, v, b, from_b, B_IS_ONE)
    DTI_EACH_OF_FOUR v[k] = finished(binary(u[k], v[k]));
    DTI_GIVE(y, to, v)
}
