/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). */
uvec4 dti_philox(uvec4 counter, uvec2 key)
{
    for (int turn = 0; turn < 10; turn++) {
        uint hi0, lo0, hi1, lo1;
        umulExtended(0xD2511F53u, counter.x, hi0, lo0);
        umulExtended(0xCD9E8D57u, counter.z, hi1, lo1);
        counter = uvec4(hi1 ^ counter.y ^ key.x, lo1, hi0 ^ counter.w ^ key.y, lo0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

/* The counter of element first + i of a stream, and which of its four words is the element's. Where
 * the tensor has a sample axis, elements are counted over the global batch, in 64 bits. So the
 * masks do not depend on how the batch is cut. */
uvec4 dti_random_counter(uint i, uint first, uint first_row, uint row_elements, uint step_number,
                         uint stream, out uint word)
{
    uint hi, lo, carry;
    umulExtended(first_row, row_elements, hi, lo);
    lo = uaddCarry(lo, first, carry);
    hi += carry;
    lo = uaddCarry(lo, i, carry);
    hi += carry;
    word = lo & 3u;
    return uvec4((lo >> 2) | (hi << 30), hi >> 2, step_number, stream);
}
