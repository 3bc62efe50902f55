/* Sums and maxima over a workgroup, by a tree in shared memory. Every invocation calls with its
 * part and gets the result. The order depends on `count` (how many invocations have a part) and on
 * the workgroup size alone; with few parts the tree is short, which saves barriers. */
shared float dti_shared[256];

uint dti_tree_start(uint count)
{
    uint half_size = gl_WorkGroupSize.x >> 1;
    while (half_size >= count && half_size > 0u)
        half_size >>= 1;
    return half_size;
}

float dti_group_sum(float part, uint count)
{
    uint lane = gl_LocalInvocationID.x;
    barrier(); /* the last result has been read */
    dti_shared[lane] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (lane < s)
            dti_shared[lane] += dti_shared[lane + s];
        barrier();
    }
    return dti_shared[0];
}

float dti_group_max(float part, uint count)
{
    uint lane = gl_LocalInvocationID.x;
    barrier();
    dti_shared[lane] = part;
    barrier();
    for (uint s = dti_tree_start(count); s > 0u; s >>= 1) {
        if (lane < s)
            dti_shared[lane] = dti_max(dti_shared[lane], dti_shared[lane + s]);
        barrier();
    }
    return dti_shared[0];
}
