/* Windows of the pooling kernels, along one axis: window p covers [p * stride - pad, + k), cut to
 * [0, in). Signed: a window may begin in the padding. */
#include "divide.glsl"

ivec2 dti_window(uint p, uint stride, uint pad, uint k, uint size)
{
    int begin = int(p * stride) - int(pad);
    return ivec2(max(begin, 0), min(begin + int(k), int(size)));
}

/* The windows [x, y) that contain element i; none where the stride skips it. by: its factor. */
uvec2 dti_windows_of(uint i, uint stride, uint by, uint pad, uint k, uint windows)
{
    uint at = i + pad;
    return uvec2(at < k ? 0u : dti_divided(at - k, stride, by) + 1u,
                 min(dti_divided(at, stride, by) + 1u, windows));
}

/* Element e of n planes [h, w]: plane, row and column. by: factors of h and w. */
uvec3 dti_plane_place(uint e, uint h, uint w, uint by_h, uint by_w)
{
    uint rest = dti_divided(e, w, by_w), plane = dti_divided(rest, h, by_h);
    return uvec3(plane, rest - plane * h, e - rest * w);
}
