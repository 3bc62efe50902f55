/* What every kernel begins with: the words of args.h, the workgroup size (specialisation constant
 * 0), the selectors (constants 1..4) and the linear ids. Buffers hold 32-bit words, or floats
 * of 16 bits where a kernel takes them (storage.glsl). A kernel of words alone declares each binding as
 * float, uint or int, whichever it mostly reads. Integers are never read through a
 * float view, because a small one is a denormal that a device may flush. */
#extension GL_EXT_control_flow_attributes : require
#define DTI_U32 uint
#define DTI_I32 int
#define DTI_F32 float
#define DTI_U16S(low, high) uint low##_##high;
#include "../args.h"

layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint spec0 = 0u;
layout(constant_id = 2) const uint spec1 = 0u;
/* Of kernels that share a text: which it is, DTI_SIDE_* (./build.sh shaders). */
#ifdef DTI_SIDE
const uint SIDE = DTI_SIDE;
#else
layout(constant_id = 5) const uint SIDE = 0u;
#endif

#define DTI_PUSH(fields)                                                                           \
    layout(push_constant) uniform dti_push                                                         \
    {                                                                                              \
        fields layout(offset = 124) uint first_group;                                              \
    }                                                                                              \
    args;
#define DTI_NAN uintBitsToFloat(0x7fc00000u)
#define DTI_INFINITY uintBitsToFloat(0x7f800000u)
/* Where a maximum starts whose values are then subtracted. A row of only -infinity gives NaN from
 * it too. A compiler that assumes that nothing is infinite has nothing to leave out. */
#define DTI_LOWEST uintBitsToFloat(0xff7fffffu)

/* Whether a row is no more than a workgroup keeps in registers: see DTI_LIES_SIZE. */
#define DTI_ALL_HELD ((1u << (spec3 >> DTI_LIES_SIZE)) <= DTI_LIES_HELD * gl_WorkGroupSize.x)

/* Grids are folded into x and y; the last workgroups of a fold may lie beyond the end. One of
 * several dispatches of a launch begins with first_group. vkCmdDispatchBase is not used, because
 * NVIDIA's driver 580 computes other workgroups then (of a pipeline that its cache had without a
 * base). */
#define dti_group()                                                                                \
    (args.first_group + gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)
#define dti_item() (dti_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x)

/* By bits: a compiler may assume that a float comparison never sees these values. */
bool dti_is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool dti_is_finite(float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

/* NaN in either gives NaN, as in PyTorch. */
float dti_max(float a, float b)
{
    return dti_is_nan(a) || a > b ? a : b;
}

float dti_min(float a, float b)
{
    return dti_is_nan(a) || a < b ? a : b;
}
