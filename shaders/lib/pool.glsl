/* Windows of the pooling kernels, along one axis: window p covers [p * stride - pad, + k), cut to
 * [0, in). Signed: a window may begin in the padding. */
ivec2 dti_window(uint p, uint stride, uint pad, uint k, uint size)
{
    int begin = int(p * stride) - int(pad);
    return ivec2(max(begin, 0), min(begin + int(k), int(size)));
}

/* The windows [x, y) that contain element i; none where the stride skips it. */
uvec2 dti_windows_of(uint i, uint stride, uint pad, uint k, uint windows)
{
    uint at = i + pad;
    return uvec2(at < k ? 0u : (at - k) / stride + 1u, min(at / stride + 1u, windows));
}
