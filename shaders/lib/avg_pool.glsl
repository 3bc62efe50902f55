/* The windows of the average pooling, along one axis, in the mode of spec0. */

/* [x, y) of the plane, and in z what the axis gives to the number to divide by. by: the factor of
 * windows. */
uvec3 dti_average_window(uint p, uint stride, uint pad, uint k, uint size, uint windows, uint by)
{
    if (spec0 == DTI_POOL_ADAPTIVE) {
        uint begin = dti_divided(p * size, windows, by);
        uint end = dti_divided((p + 1u) * size + windows - 1u, windows, by);
        return uvec3(begin, end, end - begin);
    }
    ivec2 cut = dti_window(p, stride, pad, k, size);
    int begin = int(p * stride) - int(pad);
    int whole = min(begin + int(k), int(size + pad)) - begin;
    return uvec3(cut, spec0 == DTI_POOL_INCLUDE_PAD ? whole : cut.y - cut.x);
}

/* The windows [x, y) that contain element i. by: factors of size and stride. */
uvec2 dti_average_windows_of(uint i, uint stride, uint pad, uint k, uint size, uint windows, uvec2 by)
{
    if (spec0 == DTI_POOL_ADAPTIVE)
        return uvec2(dti_divided(i * windows, size, by.x),
                     dti_divided((i + 1u) * windows + size - 1u, size, by.x));
    return dti_windows_of(i, stride, by.y, pad, k, windows);
}
