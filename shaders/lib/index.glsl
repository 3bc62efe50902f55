/* Strided walks over the 6 axes of args.h, innermost last. A walk's used axes are its last ones, the
 * others have dim 1; spec3 has the number that are used, so that one axis needs no division, and
 * two need one (0: not set, all may be). Of 2 to DTI_WALK_QUICK used axes the host has left
 * factors, in words where no dim is read. Each but the first axis is divided by its factor
 * (divide.c). More axes have no such place. Code that has the factors apart, of all axes but the
 * first, walks by dti_walk_far. */
#include "divide.glsl"
layout(constant_id = 4) const uint spec3 = 0u;

uint dti_walk_by(uint i, uint dim[DTI_AXES], uint stride[DTI_AXES], bool has_far, uint far[DTI_AXES - 1])
{
    uint used = spec3 == 0u ? uint(DTI_AXES) : spec3;
    uint offset = 0u;
    [[unroll]] for (uint axis = DTI_AXES - 1u; axis > 0u; axis--) {
        if (axis > DTI_AXES - used) {
            bool near = axis > DTI_AXES - DTI_WALK_QUICK && used <= DTI_WALK_QUICK;
            bool quick = near || (has_far && spec3 > DTI_WALK_QUICK);
            uint factor = near ? dim[(axis + used) % (DTI_AXES + 1u)] : far[axis - 1u];
            uint rest = quick ? dti_divided(i, dim[axis], factor) : i / dim[axis];
            offset += (i - rest * dim[axis]) * stride[axis];
            i = rest;
        } else if (axis == DTI_AXES - used) {
            offset += i * stride[axis];
        }
    }
    return used == uint(DTI_AXES) ? offset + i * stride[0] : offset;
}

uint dti_walk(uint i, uint dim[DTI_AXES], uint stride[DTI_AXES])
{
    return dti_walk_by(i, dim, stride, false, uint[DTI_AXES - 1](0u, 0u, 0u, 0u, 0u));
}

uint dti_walk_far(uint i, uint dim[DTI_AXES], uint stride[DTI_AXES], uint far[DTI_AXES - 1])
{
    return dti_walk_by(i, dim, stride, true, far);
}
