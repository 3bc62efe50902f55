/* The windows of the average pooling, along one axis, in the mode of spec0. */

/* [x, y) of the plane, and in z what the axis gives to the number to divide by. */
uvec3 dti_average_window(uint p, uint stride, uint pad, uint k, uint size, uint windows)
{
    if (spec0 == DTI_POOL_ADAPTIVE) {
        uint begin = p * size / windows, end = ((p + 1u) * size + windows - 1u) / windows;
        return uvec3(begin, end, end - begin);
    }
    ivec2 cut = dti_window(p, stride, pad, k, size);
    int begin = int(p * stride) - int(pad);
    int whole = min(begin + int(k), int(size + pad)) - begin;
    return uvec3(cut, spec0 == DTI_POOL_INCLUDE_PAD ? whole : cut.y - cut.x);
}

/* The windows [x, y) that contain element i. */
uvec2 dti_average_windows_of(uint i, uint stride, uint pad, uint k, uint size, uint windows)
{
    if (spec0 == DTI_POOL_ADAPTIVE)
        return uvec2(i * windows / size, ((i + 1u) * windows + size - 1u) / size);
    return dti_windows_of(i, stride, pad, k, windows);
}
